"""ScriptWriter: named tensors as an archive for `torch.jit.load` and the C++ API of PyTorch.

The layout is that of C++'s `torch::serialize::OutputArchive`: a tree of objects of classes `__torch__.Module`,
`__torch__.___torch_mangle_0.Module` and so on, each with the source of its class, which has attributes and no methods.
So `torch::load(module, path)` finds parameters, buffers and submodules by name, `torch::load(tensor, path)` a tensor
called `0`, `torch::load(optimizer, path)` the state of an optimizer, and `torch.jit.load(path).state_dict()` all
tensors of a state dict.

Source: PyTorch 2.13 `torch/csrc/api/src/serialize/output-archive.cpp`, `input-archive.cpp`,
`torch/csrc/jit/serialization/python_print.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from attrs import evolve, field

from ...data import define
from ...errors import LimitError, ModelError, UnsupportedError
from ...graph.tensor import Tensor
from ...io.output import Output
from ...limits import BYTES_PER_STEP, DEFAULT_LIMITS, Budget, Limits
from .checkpoint import CONSTANTS_MEMBER
from .cpp_optimizers import ArchiveNode, is_optimizer, optimizer_node
from .locations import Place
from .pickle.pickler import PickleWriter
from .pickle.reductions import Global, Reduction
from .storages import shown
from .writer import PtWriter

_STEPS_PER_MODULE = 64
"""Steps of `Limits.work` for writing a shared module again."""
_BUFFERS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Buffers of PyTorch's own modules that are floats, or that every reader treats as buffers."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


@define(eq=False)
class _Module:
    """One module of the archive.

    Attributes:
        number: of its class.
        tensors: its parameters and buffers by name.
        modules: its submodules by name.
        values: its other attributes by name, with their types; of an optimizer's archive.
        sizes: names of tensors among these that C++ writes as parameters.
    """

    number: int
    tensors: dict[str, Tensor] = field(factory=dict)
    modules: dict[str, _Module] = field(factory=dict)
    values: dict[str, tuple[Any, str]] = field(factory=dict)
    sizes: list[str] = field(factory=list)

    @property
    def module(self) -> str:
        """The Python module of its class."""
        return f"__torch__.___torch_mangle_{self.number - 1}" if self.number else "__torch__"

    def source(self) -> str:
        """The source of its class, as PyTorch prints it."""
        buffers = [name for name, tensor in self.tensors.items() if is_buffer(name, tensor)]
        parameters = [name for name in self.tensors if name not in buffers] + self.sizes
        lines = [
            "class Module(Module):",
            f"  __parameters__ = [{''.join(f'{quoted(name)}, ' for name in parameters)}]",
            f"  __buffers__ = [{''.join(f'{quoted(name)}, ' for name in buffers)}]",
        ]
        kinds = [(name, "Tensor") for name in self.tensors]
        kinds += [(name, kind) for name, (_, kind) in self.values.items()]
        kinds += [(name, f"{inner.module}.Module") for name, inner in self.modules.items()]
        # Annotations allow any name, keywords too.
        lines.append("  __annotations__ = []")
        lines += [f"  __annotations__[{quoted(name)}] = {kind}" for name, kind in kinds]
        return "\n".join(lines) + "\n"


class _ModulePickle(PickleWriter):
    """A pickle in which a `_Module` is an object of its class."""

    def _lowered(self, value: Any) -> None:
        if isinstance(value, _Module):
            values = {name: item for name, (item, _) in value.values.items()}
            state = {**value.tensors, **values, **value.modules}
            self._call(value, Reduction(Global(f"{value.module} Module"), (), new=True, state=state))
        else:
            super()._lowered(value)


class ScriptWriter(PtWriter):
    """Writes named tensors as an archive for `torch.jit.load` and for C++.

    Dots in names create modules: `conv1.weight` is the parameter `weight` of the submodule `conv1`. Offsets and strides
    are kept. Names of the same view of a storage are names of one tensor, as with tied weights; PyTorch reads different
    views of a storage as copies.

    Args:
        target: a binary file object.
        keep_device: write the devices that tensors name (`cuda:0`); otherwise all are on the CPU.
        place: maps the device named by each tensor to the one written.
        limits: resource limits; `module_depth` applies.
    """

    def __init__(
        self,
        target: IO[bytes] | Output,
        *,
        keep_device: bool = False,
        place: Place | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(target, keep_device=keep_device, place=place)
        self._limits = limits
        self._modules: list[_Module] = []
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def write(self, value: Any) -> None:
        """Accept the tensors. `finish` writes them.

        Args:
            value: a state dict, or nested dictionaries; one tensor, which is named `0` as in C++; or the state dict of
                an optimizer, for `torch::load(optimizer, path)`.

        Raises:
            UnsupportedError: it holds anything but named tensors.
            ModelError: a name is empty, or names both a tensor and a module.
        """
        if is_optimizer(value):
            root = self._of_node(optimizer_node(value))
        else:
            root = self._tree({"0": value} if isinstance(value, Tensor) else value)
        writer = _ModulePickle(self._keys.ref)
        self._pickle = writer.dumps(root)
        self.tensors = writer.tensors

    def _tree(self, value: Any) -> _Module:
        root = self._new()
        budget = Budget(self._limits, "writing modules that are shared or contain themselves")
        met: set[int] = set()
        stack: list[tuple[_Module, Any, str, int]] = [(root, value, "root", 0)]
        while stack:
            module, item, path, depth = stack.pop()
            budget.spend(len(path) // BYTES_PER_STEP + (_STEPS_PER_MODULE if id(item) in met else 0), path)
            met.add(id(item))
            if not isinstance(item, Mapping):
                raise UnsupportedError(
                    "TorchScript archives hold named tensors only", path=path, found=shown(item), expected="a tensor"
                )
            for key, inner in item.items():
                if not isinstance(key, str) or not all(key.split(".")):
                    raise ModelError("is not the name of a tensor", path=path, found=shown(key))
                *parents, name = key.split(".")
                if depth + len(parents) > self._limits.module_depth:
                    raise LimitError(
                        "modules are nested too deep", path=path, limit="module_depth", value=self._limits.module_depth
                    )
                home = module
                for parent in parents:
                    home = self._inside(home, parent, f"{path}[{key!r}]")
                if isinstance(inner, Tensor):
                    if name in home.modules or name in home.tensors:
                        raise ModelError("two values have one name", path=f"{path}[{key!r}]")
                    home.tensors[name] = self._tensor(inner, trained=not is_buffer(name, inner))
                else:
                    inside = self._inside(home, name, f"{path}[{key!r}]")
                    stack.append((inside, inner, f"{path}[{key!r}]", depth + len(parents) + 1))
        return root

    def _of_node(self, node: ArchiveNode) -> _Module:
        """Convert the modules of an optimizer's archive, which are three levels deep."""
        made = self._new()
        made.sizes = node.parameters
        made.values = {
            name: (self._tensor(value, trained=False) if isinstance(value, Tensor) else value, kind)
            for name, (value, kind) in node.values.items()
        }
        made.modules = {name: self._of_node(inner) for name, inner in node.modules.items()}
        return made

    def _tensor(self, tensor: Tensor, trained: bool) -> Tensor:
        """Return the one tensor of a view: PyTorch shares only what the pickle names as one object."""
        key = (id(tensor.storage), tensor.element.name, tensor.size, tensor.stride, tensor.offset, trained)
        if tensor.extras is not None or key not in self._tensors:
            self._tensors[key] = evolve(tensor, is_parameter=False, requires_grad=trained)
        return self._tensors[key]

    def _new(self) -> _Module:
        self._modules.append(_Module(len(self._modules)))
        return self._modules[-1]

    def _inside(self, home: _Module, name: str, path: str) -> _Module:
        if name in home.tensors:
            raise ModelError("names both a tensor and a module", path=path, found=name)
        if name not in home.modules:
            home.modules[name] = self._new()
        return home.modules[name]

    def _members(self) -> list[tuple[str, bytes]]:
        code = [(f"code/{each.module.replace('.', '/')}.py", each.source().encode()) for each in self._modules]
        return [*code, (CONSTANTS_MEMBER, b"\x80\x02).")]


def is_buffer(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor of a state dict is a buffer: by name, or because its type cannot have gradients."""
    return name in _BUFFERS or not tensor.element.name.startswith(("float", "bfloat", "complex"))


def quoted(name: str) -> str:
    """Return a name as TorchScript writes a string literal.

    Raises:
        UnsupportedError: it has characters that TorchScript's literals cannot express.
    """
    text = "".join(_ESCAPES.get(char, char) for char in name)
    if not all(char.isprintable() for char in name if char not in _ESCAPES) or "\0" in name:
        raise UnsupportedError("a name has characters that TorchScript cannot write", found=ascii(name))
    return f'"{text}"'
