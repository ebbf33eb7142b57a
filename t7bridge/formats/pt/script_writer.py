"""ScriptWriter: named tensors as an archive for `torch.jit.load` and the C++ API of PyTorch.

The layout is that of C++'s `torch::serialize::OutputArchive`: a tree of objects of classes `__torch__.Module`,
`__torch__.___torch_mangle_0.Module` and so on, each with the source of its class, which has attributes and no methods.
So `torch::load(module, path)` finds parameters, buffers and submodules by name, `torch::load(tensor, path)` a tensor
called `0`, `torch::load(optimizer, path)` the state of an optimizer, and `torch.jit.load(path).state_dict()` all
tensors of a state dict.

State dicts of optimizers become what C++'s `torch::load(optimizer, path)` reads: `pytorch_version`, a module `state`
with one module for each parameter, under the number of the parameter, and a module `param_groups` with, for each group,
the numbers of its parameters and a module `options`. Python's state dicts do not name the optimizer: the options of its
groups identify it. Options that C++ does not have are left out if they are off.

Source: PyTorch 2.13 `torch/csrc/api/src/serialize/output-archive.cpp`, `input-archive.cpp`,
`torch/csrc/jit/serialization/python_print.cpp`; `torch/csrc/api/include/torch/optim/serialize.h`, and of each optimizer
`serialize` in `torch/csrc/api/src/optim/*.cpp`; `torch/optim/optimizer.py` `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from attrs import evolve, field

from ...data import define
from ...errors import ModelError, UnsupportedError
from ...graph.dtypes import INT64
from ...graph.python import PythonGlobal
from ...graph.storage import Storage
from ...graph.tensor import Tensor, TensorExtras
from ...io.output import Output
from ...limits import BYTES_PER_STEP, DEFAULT_LIMITS, Budget, Limits
from ..fields import shown
from .archive import CONSTANTS_MEMBER
from .pickle.pickler import PickleWriter
from .pickle.reductions import FORMS, Naming, Reduction
from .storages import span_of_bytes
from .writer import Place, PtWriter

_STEPS_PER_MODULE = 64
"""Steps of `Limits.work` for writing a shared module again."""
_BUFFERS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Buffers of PyTorch's own modules that are floats, or that every reader treats as buffers."""
_VERSION = "1.5.0"
"""The text that C++ writes as `pytorch_version`, and requires, since 1.5."""
_FLOAT, _BOOL, _TENSOR, _PAIR = "float", "bool", "Tensor", "Tuple[float, float]"


@define(frozen=True)
class _Optimizer:
    """State of an optimizer in C++.

    Attributes:
        options: of a group, with their types.
        state: of a parameter, with their types; of these `step` is a number in C++ and a tensor in Python.
    """

    options: dict[str, str]
    state: dict[str, str]


def _kinds(text: str) -> dict[str, str]:
    """Return types by name; those without a colon are floats."""
    words = (word.partition(":") for word in text.split())
    return {name: {"": _FLOAT, "pair": _PAIR, "tensor": _TENSOR}.get(kind, kind) for name, _, kind in words}


_OPTIMIZERS = {
    "SGD": _Optimizer(
        _kinds("lr momentum dampening weight_decay nesterov:bool"),
        _kinds("momentum_buffer:tensor"),
    ),
    "Adam": _Optimizer(  # and AdamW
        _kinds("lr betas:pair eps weight_decay amsgrad:bool"),
        _kinds("step:int exp_avg:tensor exp_avg_sq:tensor max_exp_avg_sq:tensor"),
    ),
    "RMSprop": _Optimizer(
        _kinds("lr alpha eps weight_decay momentum centered:bool"),
        _kinds("step:int square_avg:tensor momentum_buffer:tensor grad_avg:tensor"),
    ),
    "Adagrad": _Optimizer(
        _kinds("lr lr_decay weight_decay initial_accumulator_value eps"),
        _kinds("step:int sum:tensor"),
    ),
}
_PYTHONS_OWN = frozenset({"foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"})
"""Options of Python's optimizers that affect the computation, or, for `decoupled_weight_decay`, identify AdamW."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


@define(eq=False)
class _Module:
    """One module of the archive.

    Attributes:
        number: of its class.
        values: its attributes by name, with TorchScript's names of their types, in order.
        modules: its submodules by name.
        buffers: names of the tensors that are buffers.
        parameters: names of the tensors that are parameters.
    """

    number: int
    values: dict[str, tuple[Any, str]] = field(factory=dict)
    modules: dict[str, _Module] = field(factory=dict)
    buffers: list[str] = field(factory=list)
    parameters: list[str] = field(factory=list)

    @property
    def module(self) -> str:
        """The Python module of its class."""
        return f"__torch__.___torch_mangle_{self.number - 1}" if self.number else "__torch__"

    def source(self) -> str:
        """The source of its class, as PyTorch prints it."""
        kinds = [(name, kind) for name, (_, kind) in self.values.items()]
        kinds += [(name, f"{inner.module}.Module") for name, inner in self.modules.items()]
        # Annotations allow any name, keywords too.
        lines = [
            "class Module(Module):",
            f"  __parameters__ = [{''.join(f'{quoted(name)}, ' for name in self.parameters)}]",
            f"  __buffers__ = [{''.join(f'{quoted(name)}, ' for name in self.buffers)}]",
            "  __annotations__ = []",
            *(f"  __annotations__[{quoted(name)}] = {kind}" for name, kind in kinds),
        ]
        return "\n".join(lines) + "\n"


def _of_module(value: _Module, _: Naming) -> Reduction:
    state = {**{name: item for name, (item, _) in value.values.items()}, **value.modules}
    return Reduction(PythonGlobal(value.module, "Module"), new=True, state=state)


FORMS[_Module] = _of_module


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
        if _is_optimizer(value):
            root = self._optimizer(value)
        else:
            root = self._tree({"0": value} if isinstance(value, Tensor) else value)
        writer = PickleWriter(self._keys.ref, allow_foreign=True)  # classes below `__torch__`
        self._pickle, self.tensors = writer.dumps(root), writer.tensors

    def _tree(self, value: Any) -> _Module:
        root = self._new()
        budget = Budget(self._limits, "writing modules that are shared or contain themselves")
        visited: set[int] = set()
        stack: list[tuple[_Module, Any, str, int]] = [(root, value, "root", 0)]
        while stack:
            module, item, path, depth = stack.pop()
            budget.spend(len(path) // BYTES_PER_STEP + (_STEPS_PER_MODULE if id(item) in visited else 0), path)
            visited.add(id(item))
            if not isinstance(item, Mapping):
                raise UnsupportedError(
                    "TorchScript archives hold named tensors only", path=path, found=shown(item), expected="a tensor"
                )
            for key, inner in item.items():
                if not isinstance(key, str) or not all(key.split(".")):
                    raise ModelError("is not the name of a tensor", path=path, found=shown(key))
                *parents, name = key.split(".")
                if depth + len(parents) > self._limits.module_depth:
                    raise self._limits.exceeded("module_depth", "modules are nested too deep", path=path)
                inside = f"{path}[{key!r}]"
                home = module
                for parent in parents:
                    home = self._inside(home, parent, inside)
                if not isinstance(inner, Tensor):
                    stack.append((self._inside(home, name, inside), inner, inside, depth + len(parents) + 1))
                elif name in home.modules or name in home.values:
                    raise ModelError("two values have one name", path=inside)
                else:
                    is_buffer = name in _BUFFERS or not inner.element.name.startswith(("float", "bfloat", "complex"))
                    (home.buffers if is_buffer else home.parameters).append(name)
                    home.values[name] = (self._tensor(inner, trained=not is_buffer), _TENSOR)
        return root

    def _optimizer(self, value: Mapping[str, Any]) -> _Module:
        """Return the modules for the state dict of an optimizer.

        Raises:
            UnsupportedError: C++ has no such optimizer, or cannot hold part of the state.
            ModelError: an option or a state has another type than PyTorch's.
        """
        known = _kind_of(value)
        root = self._new({"pytorch_version": (_VERSION, "str")})
        states = root.modules["state"] = self._new()
        for number, state in value["state"].items():
            path = f"root['state'][{number!r}]"
            if not isinstance(state, Mapping):
                raise ModelError("is not the state of an optimizer", path=path, found=shown(state))
            present = {name: kind for name, kind in known.state.items() if state.get(name) is not None}
            states.modules[_number(number, path)] = self._new(self._converted(state, present, path))
            _refuse_rest(state, known.state, path)
        groups = root.modules["param_groups"] = self._new()
        self._size(groups, "param_groups/size", len(value["param_groups"]))
        for number, group in enumerate(value["param_groups"]):
            path = f"root['param_groups'][{number}]"
            node = groups.modules[f"param_groups/{number}"] = self._new()
            self._size(node, "params/size", len(group["params"]))
            for place, parameter in enumerate(group["params"]):
                node.values[f"params/{place}"] = (_number(parameter, path), "str")
            node.modules["options"] = self._new(self._converted(group, known.options, path))
            _refuse_rest(group, {"params": "", **known.options}, path)
        return root

    def _converted(self, values: Mapping[str, Any], kinds: dict[str, str], path: str) -> dict[str, tuple[Any, str]]:
        """Return values in C++'s types, with their names."""
        found = {}
        for name, kind in kinds.items():
            if name not in values:
                raise ModelError("a group has no such option", path=path, expected=name)
            value = _converted(values[name], kind, f"{path}[{name!r}]")
            found[name] = (self._tensor(value, trained=False) if kind == _TENSOR else value, kind)
        return found

    def _size(self, node: _Module, name: str, count: int) -> None:
        """Add a tensor with a size, as C++ writes it."""
        storage = Storage(INT64, 1, span_of_bytes(count.to_bytes(8, "little"), 8))
        tensor = Tensor(INT64, storage, (), (), is_scalar=True)
        node.values[name] = (self._tensor(tensor, trained=False), _TENSOR)
        node.parameters.append(name)

    def _tensor(self, tensor: Tensor, trained: bool) -> Tensor:
        """Return the one tensor of a view, without Python state: PyTorch shares only what the pickle names as one."""
        extras = tensor.extras
        bits = (extras.conj, extras.neg) if extras else ()
        key = (id(tensor.storage), tensor.element.name, tensor.size, tensor.stride, tensor.offset, *bits, trained)
        if key not in self._tensors:
            extras = TensorExtras(*bits) if any(bits) else None
            self._tensors[key] = evolve(tensor, is_parameter=False, requires_grad=trained, extras=extras)
        return self._tensors[key]

    def _new(self, values: dict[str, tuple[Any, str]] | None = None) -> _Module:
        self._modules.append(_Module(len(self._modules), values or {}))
        return self._modules[-1]

    def _inside(self, home: _Module, name: str, path: str) -> _Module:
        if name in home.values:
            raise ModelError("names both a tensor and a module", path=path, found=name)
        if name not in home.modules:
            home.modules[name] = self._new()
        return home.modules[name]

    def _members(self) -> list[tuple[str, bytes]]:
        code = [(f"code/{each.module.replace('.', '/')}.py", each.source().encode()) for each in self._modules]
        return [*code, (CONSTANTS_MEMBER, b"\x80\x02).")]


def _is_optimizer(value: Any) -> bool:
    """Return whether a value is an optimizer's state dict: `state`, and `param_groups` with parameter numbers."""
    if not isinstance(value, Mapping) or set(value) != {"state", "param_groups"}:
        return False
    groups = value["param_groups"]
    return (
        isinstance(value["state"], Mapping)
        and isinstance(groups, list)
        and bool(groups)
        and all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)
    )


def _kind_of(value: Mapping[str, Any]) -> _Optimizer:
    """Return the optimizer whose options the groups have; of several the one with the most."""
    names = set.intersection(*(set(group) for group in value["param_groups"]))
    found = [known for known in _OPTIMIZERS.values() if set(known.options) <= names]
    if not found:
        raise UnsupportedError(
            "the C++ API has no optimizer with these options",
            path="root['param_groups']",
            expected=", ".join(_OPTIMIZERS),
            found=", ".join(sorted(map(str, names)))[:200],
        )
    return max(found, key=lambda known: len(known.options))


def _refuse_rest(values: Mapping[Any, Any], known: dict[str, str], path: str) -> None:
    """Refuse what C++ cannot hold, unless it is off."""
    for name, value in values.items():
        if name in known or name in _PYTHONS_OWN or value is None or value is False:
            continue
        if name == "momentum" and value == 0:
            continue
        raise UnsupportedError("C++'s optimizer cannot hold this", path=f"{path}[{name!r}]", found=shown(value))


def _converted(value: Any, kind: str, path: str) -> Any:
    """Convert a value to C++'s type."""
    if kind == _TENSOR:
        if isinstance(value, Tensor):
            return value
    elif kind == _PAIR:
        if isinstance(value, (tuple, list)) and len(value) == 2:
            return tuple(_converted(item, _FLOAT, path) for item in value)
    else:
        if isinstance(value, Tensor) and value.numel == 1:
            value = value.numpy().reshape(()).item()
        if kind == _BOOL and isinstance(value, bool):
            return value
        if kind != _BOOL and isinstance(value, (int, float)) and not isinstance(value, bool):
            if kind == _FLOAT:
                return float(value)
            if int(value) == value:
                return int(value)
    raise ModelError(
        "does not have the type used by PyTorch's optimizers", path=path, expected=kind, found=shown(value)
    )


def _number(parameter: Any, path: str) -> str:
    """Return the number of a parameter: in C++ an address, so that 0 is invalid."""
    if type(parameter) is not int or not 0 <= parameter < 1 << 62:
        raise UnsupportedError("a parameter has no number", path=path, found=shown(parameter))
    return str(parameter + 1)


def quoted(name: str) -> str:
    """Return a name as TorchScript writes a string literal.

    Raises:
        UnsupportedError: it has characters that TorchScript's literals cannot express.
    """
    text = "".join(_ESCAPES.get(char, char) for char in name)
    if not all(char.isprintable() for char in name if char not in _ESCAPES) or "\0" in name:
        raise UnsupportedError("a name has characters that TorchScript cannot write", found=ascii(name))
    return f'"{text}"'
