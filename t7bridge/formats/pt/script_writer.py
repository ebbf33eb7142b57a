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

from collections.abc import Collection, Mapping
from typing import IO, Any

from attrs import evolve, field

from ...data import define
from ...errors import ModelError, UnsupportedError
from ...graph.dtypes import INT64
from ...graph.python import PythonGlobal
from ...graph.storage import Storage
from ...graph.tensor import Tensor, TensorExtras, bits_of
from ...io.output import Output
from ...limits import BYTES_PER_STEP, DEFAULT_LIMITS, Budget, Limits
from ..fields import shown
from .members import CONSTANTS_MEMBER
from .pickle.pickler import PickleWriter
from .pickle.reductions import FORMS, Naming, Reduction
from .storages import span_of_bytes
from .writer import Place, PtWriter

_STEPS_PER_MODULE = 64
"""Steps of `Limits.work` for writing a shared module again."""
_BUFFER_NAMES = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Names of PyTorch's own buffers, which are buffers whatever their element type."""
_VERSION = "1.5.0"
"""The text that C++ writes as `pytorch_version`, and requires, since 1.5."""
_FLOAT, _INT, _BOOL, _TENSOR, _PAIR = "float", "int", "bool", "Tensor", "Tuple[float, float]"
"""TorchScript's names of types; that of Adam's `betas` is the pair."""
_TypedValues = dict[str, tuple[Any, str]]
"""Attributes by name: the value, and TorchScript's name of its type."""


@define(frozen=True)
class _Optimizer:
    """The options and the state that C++ has of one optimizer, with their types.

    Types are TorchScript's names: `float`, `int`, `bool`, `Tensor`, or that of a pair.

    Attributes:
        options: type of each option of a group, by name. All must be there.
        state: type of each value that a parameter may have, by name. `step` is a number in C++ and a tensor in Python.
    """

    options: dict[str, str]
    state: dict[str, str]


def _kinds(text: str) -> dict[str, str]:
    """Return types by name from a text of `name` or `name:type`; those without a type are floats."""
    full_names = {"": _FLOAT, "pair": _PAIR, "tensor": _TENSOR}
    kinds = {}
    for word in text.split():
        name, _, kind = word.partition(":")
        kinds[name] = full_names.get(kind, kind)
    return kinds


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
_ONLY_IN_PYTHON = frozenset({"foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"})
"""Options of Python's optimizers that say how a step is computed, not what; and `decoupled_weight_decay`, which
identifies AdamW."""
_PICKLED_EMPTY_TUPLE = b"\x80\x02)."
"""By protocol 2."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


@define(eq=False)
class _Module:
    """One module of the archive that is written: its class, attributes and submodules.

    Attributes:
        number: of its class, from 0 on; each module has a class of its own.
        values: its attributes by name, with TorchScript's names of their types, in order. Tensors are among them.
        modules: its submodules by name; no name is also in `values`.
        buffers: names of the tensors of `values` that are buffers.
        parameters: names of the tensors of `values` that are parameters.
    """

    number: int
    values: _TypedValues = field(factory=dict)
    modules: dict[str, _Module] = field(factory=dict)
    buffers: list[str] = field(factory=list)
    parameters: list[str] = field(factory=list)

    @property
    def python_module(self) -> str:
        """The Python module of its class, as TorchScript names it."""
        # PyTorch mangles the names of all classes but the first.
        return f"__torch__.___torch_mangle_{self.number - 1}" if self.number else "__torch__"

    def source(self) -> str:
        """The source of its class, as PyTorch prints it."""
        lines = [
            "class Module(Module):",
            f"  __parameters__ = [{_listed(self.parameters)}]",
            f"  __buffers__ = [{_listed(self.buffers)}]",
            "  __annotations__ = []",
        ]
        # Annotations allow any name, keywords too.
        for name, (_, script_type) in self.values.items():
            lines.append(f"  __annotations__[{quoted(name)}] = {script_type}")
        for name, submodule in self.modules.items():
            lines.append(f"  __annotations__[{quoted(name)}] = {submodule.python_module}.Module")
        return "\n".join(lines) + "\n"


def _listed(names: list[str]) -> str:
    """Return the content of a list of names, with PyTorch's comma after the last."""
    return "".join(f"{quoted(name)}, " for name in names)


def _of_module(module: _Module, _: Naming) -> Reduction:
    """Return how a module is pickled: an object whose state is its values, then its submodules."""
    state = {name: value for name, (value, _type) in module.values.items()}
    state.update(module.modules)
    return Reduction(PythonGlobal(module.python_module, "Module"), is_new=True, state=state)


FORMS[_Module] = _of_module


def _steps_of_module(path: str, is_repeated: bool) -> int:
    """Return the work that is charged for a module made of a dictionary: nothing, but for what can grow without end.

    Args:
        path: of the dictionary, which grows with the depth.
        is_repeated: whether the dictionary was met before: a shared one is written as several modules, and one that
            contains itself would be without end.
    """
    steps = len(path) // BYTES_PER_STEP
    return steps + _STEPS_PER_MODULE if is_repeated else steps


@define(frozen=True)
class _ToFill:
    """A module that is to be filled with the tensors of a dictionary.

    Attributes:
        module: the module, without content.
        content: the dictionary; anything else is refused.
        path: of the dictionary in the value.
        depth: number of modules around the module.
    """

    module: _Module
    content: Any
    path: str
    depth: int


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
        """All modules, by the numbers of their classes; `_members` writes their source."""
        self._tensors: dict[tuple[Any, ...], Tensor] = {}
        """The one tensor that is written for each view of a storage: see `_shared_tensor`."""

    def write(self, value: Any) -> None:
        """Prepare the modules and their pickle. `finish`, of the base class, writes them.

        Args:
            value: a state dict, or nested dictionaries; one tensor, which is named `0` as in C++; or the state dict of
                an optimizer, for `torch::load(optimizer, path)`.

        Raises:
            UnsupportedError: it holds anything but named tensors.
            ModelError: a name is empty, or names both a tensor and a module.
        """
        if _is_optimizer(value):
            root = self._modules_of_optimizer(value)
        elif isinstance(value, Tensor):
            root = self._modules_of_names({"0": value})
        else:
            root = self._modules_of_names(value)
        # The classes of the modules, below `__torch__`, are foreign names: only C++ knows them.
        writer = PickleWriter(self._keys.key_and_device, allow_foreign=True)
        self._pickle = writer.dumps(root)
        # There are no other foreign names: so `left_out_names` and `refused_names` stay empty.
        self.tensors = writer.tensors

    def _modules_of_names(self, value: Any) -> _Module:
        """Return the root of the modules for nested dictionaries of tensors, whose names may have dots.

        Args:
            value: the outermost dictionary: each one inside it, and each dot in a name, becomes a submodule.

        Raises:
            UnsupportedError: a value is neither a tensor nor a dictionary.
            ModelError: a name is empty, or names both a tensor and a module.
            LimitError: dictionaries are nested too deep, or repeated too often.
        """
        root = self._new_module()
        budget = Budget(self._limits, "writing modules that are shared or contain themselves")
        visited: set[int] = set()  # identities of dictionaries
        stack = [_ToFill(root, value, "root", depth=0)]
        while stack:
            to_fill = stack.pop()
            content = to_fill.content
            path = to_fill.path
            budget.spend(_steps_of_module(path, is_repeated=id(content) in visited), path)
            visited.add(id(content))
            if not isinstance(content, Mapping):
                raise UnsupportedError(
                    "TorchScript archives hold named tensors only", path=path, found=shown(content), expected="a tensor"
                )
            stack += self._filled(to_fill)
        return root

    def _filled(self, to_fill: _ToFill) -> list[_ToFill]:
        """Add the tensors of a dictionary to its module; return the modules for the dictionaries in it, still empty."""
        inner: list[_ToFill] = []
        path = to_fill.path
        for key, item in to_fill.content.items():
            *parents, name = _parts_of_name(key, path)
            owner_depth = to_fill.depth + len(parents)
            if owner_depth > self._limits.module_depth:
                raise self._limits.exceeded("module_depth", "modules are nested too deep", path=path)
            item_path = f"{path}[{key!r}]"  # only now that the key is text: others may have no `repr`
            owner = self._module_below(to_fill.module, parents, item_path)
            if isinstance(item, Tensor):
                self._add_tensor(owner, name, item, item_path)
            else:  # a dictionary, or what is refused as none when its turn comes
                submodule = self._submodule(owner, name, item_path)
                inner.append(_ToFill(submodule, item, item_path, depth=owner_depth + 1))
        return inner

    def _module_below(self, module: _Module, names: list[str], path: str) -> _Module:
        """Return the submodule at the end of a path of names below a module; those that do not exist are created."""
        for name in names:
            module = self._submodule(module, name, path)
        return module

    def _add_tensor(self, module: _Module, name: str, tensor: Tensor, path: str) -> None:
        """Add a parameter or buffer to a module. Only floating-point and complex tensors can be parameters.

        Args:
            module: receives it.
            name: in the module.
            tensor: the tensor.
            path: of the tensor in the value, for errors.

        Raises:
            ModelError: the module has another value of this name.
        """
        if name in module.modules or name in module.values:
            raise ModelError("two values have one name", path=path)
        # Buffers are also those of PyTorch's own names, such as `running_mean`, of whatever type.
        is_buffer = name in _BUFFER_NAMES or not tensor.element.name.startswith(("float", "bfloat", "complex"))
        if is_buffer:
            module.buffers.append(name)
        else:
            module.parameters.append(name)
        module.values[name] = (self._shared_tensor(tensor, requires_grad=not is_buffer), _TENSOR)

    def _modules_of_optimizer(self, value: Mapping[str, Any]) -> _Module:
        """Return the root of the modules for the state dict of an optimizer, see the head of this file.

        Args:
            value: `state`, by the number of each parameter, and `param_groups`; see `_is_optimizer`.

        Raises:
            UnsupportedError: C++ has no such optimizer, or cannot hold part of the state.
            ModelError: an option or a state has another type than PyTorch's.
        """
        optimizer = _optimizer_of(value)
        root = self._new_module({"pytorch_version": (_VERSION, "str")})
        root.modules["state"] = self._modules_of_states(value["state"], optimizer)
        root.modules["param_groups"] = self._modules_of_groups(value["param_groups"], optimizer)
        return root

    def _modules_of_states(self, states_by_number: Mapping[Any, Any], optimizer: _Optimizer) -> _Module:
        """Return the module with a module for the state of each parameter. Errors as above.

        Args:
            states_by_number: the states, by the number of the parameter.
            optimizer: the kind of optimizer.
        """
        states = self._new_module()
        for number, state in states_by_number.items():
            path = f"root['state'][{number!r}]"
            if not isinstance(state, Mapping):
                raise ModelError("is not the state of an optimizer", path=path, found=shown(state))
            # Python has None for a state that is off, such as the buffer of no momentum; C++ has no entry. Options,
            # below, are never off.
            present_kinds = {name: kind for name, kind in optimizer.state.items() if state.get(name) is not None}
            states.modules[_number(number, path)] = self._new_module(self._in_cpp_types(state, present_kinds, path))
            _refuse_rest(state, optimizer.state, path)
        return states

    def _modules_of_groups(self, param_groups: list[Any], optimizer: _Optimizer) -> _Module:
        """Return the module with a module for each group of parameters. Errors as above.

        C++ has a list as its length, and one entry for each number: `params/size`, `params/0`, `params/1`.

        Args:
            param_groups: the groups: the numbers of their parameters, and options.
            optimizer: the kind of optimizer.
        """
        groups = self._new_module()
        self._add_size(groups, "param_groups/size", len(param_groups))
        for number, group in enumerate(param_groups):
            path = f"root['param_groups'][{number}]"
            module = groups.modules[f"param_groups/{number}"] = self._new_module()
            self._add_size(module, "params/size", len(group["params"]))
            for position, parameter in enumerate(group["params"]):
                module.values[f"params/{position}"] = (_number(parameter, path), "str")
            module.modules["options"] = self._new_module(self._in_cpp_types(group, optimizer.options, path))
            _refuse_rest(group, {"params", *optimizer.options}, path)
        return groups

    def _in_cpp_types(self, values: Mapping[str, Any], kinds: dict[str, str], path: str) -> _TypedValues:
        """Return options or states in C++'s types, with the names of these types.

        Args:
            values: those of Python, by name; others than in `kinds` are left to `_refuse_rest`.
            kinds: the type of each value to write.
            path: of the values, for errors.

        Raises:
            ModelError: an option is missing, or a value has another type.
        """
        converted = {}
        for name, kind in kinds.items():
            if name not in values:
                raise ModelError("a group has no such option", path=path, expected=name)
            value = _in_cpp_type(values[name], kind, f"{path}[{name!r}]")
            if kind == _TENSOR:  # states of an optimizer are not trained
                value = self._shared_tensor(value, requires_grad=False)
            converted[name] = (value, kind)
        return converted

    def _add_size(self, module: _Module, name: str, count: int) -> None:
        """Add the size of a list, as C++ writes it: a parameter that is a tensor of one integer.

        Args:
            module: receives it.
            name: of the parameter, `params/size`.
            count: the size.
        """
        storage = Storage(INT64, 1, span_of_bytes(count.to_bytes(8, "little"), INT64.itemsize))
        tensor = Tensor(INT64, storage, (), (), is_scalar=True)
        module.values[name] = (self._shared_tensor(tensor, requires_grad=False), _TENSOR)
        module.parameters.append(name)

    def _shared_tensor(self, tensor: Tensor, requires_grad: bool) -> Tensor:
        """Return the one tensor of a view, without Python state: PyTorch shares only what the pickle names as one.

        Args:
            tensor: of the value; others that are the same view become the same tensor.
            requires_grad: whether the one that is written requires a gradient.
        """
        # Of the extras only whether it is conjugated or negated when it is read stays; all else is Python's.
        bits = bits_of(tensor)
        view = (id(tensor.storage), tensor.element.name, tensor.size, tensor.stride, tensor.offset)
        key = (*view, *bits, requires_grad)
        if key not in self._tensors:
            extras = TensorExtras(*bits) if any(bits) else None
            self._tensors[key] = evolve(tensor, is_parameter=False, requires_grad=requires_grad, extras=extras)
        return self._tensors[key]

    def _new_module(self, values: _TypedValues | None = None) -> _Module:
        """Add a module to the archive, with a class of its own, and return it."""
        module = _Module(len(self._modules), values or {})
        self._modules.append(module)
        return module

    def _submodule(self, module: _Module, name: str, path: str) -> _Module:
        """Return the submodule of a name, which is created if there is none.

        Args:
            module: the module around it.
            name: in that module.
            path: in the value, for the error.

        Raises:
            ModelError: a tensor has the name.
        """
        if name in module.values:
            raise ModelError("names both a tensor and a module", path=path, found=name)
        if name not in module.modules:
            module.modules[name] = self._new_module()
        return module.modules[name]

    def _members(self) -> list[tuple[str, bytes]]:
        """Return the members beside pickle and storages, with their bytes: the classes' source, and no constants."""
        members = []
        for module in self._modules:
            members.append((f"code/{module.python_module.replace('.', '/')}.py", module.source().encode()))
        # There is no code that could refer to constants.
        members.append((CONSTANTS_MEMBER, _PICKLED_EMPTY_TUPLE))
        return members


def _parts_of_name(key: Any, path: str) -> list[str]:
    """Return the parts of a name with dots: those of the modules around it, then its own.

    Args:
        key: the name; of the user, who may have given anything.
        path: of the dictionary that has it, for errors.

    Raises:
        ModelError: it is not text, or a part is empty.
    """
    if not isinstance(key, str) or not all(key.split(".")):
        raise ModelError("is not the name of a tensor", path=path, found=shown(key))
    return key.split(".")


def _is_optimizer(value: Any) -> bool:
    """Return whether a value is an optimizer's state dict: `state`, and `param_groups` with parameter numbers."""
    if not isinstance(value, Mapping) or set(value) != {"state", "param_groups"}:
        return False
    groups = value["param_groups"]
    if not isinstance(value["state"], Mapping) or not isinstance(groups, list) or not groups:
        return False
    return all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)


def _optimizer_of(value: Mapping[str, Any]) -> _Optimizer:
    """Return the optimizer of C++ whose options all groups have; of several the one with the most options.

    Options that only Python has may be there too: `_refuse_rest` judges them.

    Raises:
        UnsupportedError: C++ has no optimizer with these options.
    """
    names = set.intersection(*(set(group) for group in value["param_groups"]))
    candidates = [optimizer for optimizer in _OPTIMIZERS.values() if set(optimizer.options) <= names]
    if not candidates:
        raise UnsupportedError(
            "the C++ API has no optimizer with these options",
            path="root['param_groups']",
            expected=", ".join(_OPTIMIZERS),
            found=", ".join(sorted(map(str, names)))[:200],
        )
    return max(candidates, key=lambda optimizer: len(optimizer.options))


def _refuse_rest(values: Mapping[Any, Any], written: Collection[str], path: str) -> None:
    """Refuse values that C++ cannot hold, unless they are off.

    Args:
        values: of a group, or the state of a parameter.
        written: the names that C++ has, whose values are written.
        path: of the values, for the message.

    Raises:
        UnsupportedError: one of the values is not written and not off.
    """
    for name, value in values.items():
        # PyTorch keeps options of groups that its optimizer does not have: Adam's may say that there is no momentum.
        is_off = value is None or value is False or (name == "momentum" and value == 0)
        if name not in written and name not in _ONLY_IN_PYTHON and not is_off:
            raise UnsupportedError("C++'s optimizer cannot hold this", path=f"{path}[{name!r}]", found=shown(value))


def _in_cpp_type(value: Any, kind: str, path: str) -> Any:
    """Return an option or a state in the type that C++ has for it.

    Args:
        value: that of Python.
        kind: TorchScript's name of the type.
        path: of the value, for errors.

    Raises:
        ModelError: the value does not convert to the type.
    """
    if kind == _TENSOR and isinstance(value, Tensor):
        return value
    if kind == _PAIR and isinstance(value, (tuple, list)) and len(value) == 2:
        return tuple(_in_cpp_type(item, _FLOAT, path) for item in value)
    # Python's optimizers count steps, and may have learning rates, in tensors of one element.
    is_scalar_kind = kind in (_BOOL, _FLOAT, _INT)
    if is_scalar_kind and isinstance(value, Tensor) and value.numel == 1:
        value = value.numpy().reshape(()).item()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == _BOOL and isinstance(value, bool):
        return value
    if kind == _FLOAT and is_number:
        return float(value)
    # Steps are counted in floats, too. The remainder of an infinity is NaN, which is not 0.
    if kind == _INT and is_number and value % 1 == 0:
        return int(value)
    raise ModelError(
        "does not have the type used by PyTorch's optimizers", path=path, expected=kind, found=shown(value)
    )


def _number(parameter: Any, path: str) -> str:
    """Return the number of a parameter as C++ has it, a text: there it is an address, so that 0 is invalid."""
    if type(parameter) is not int or not 0 <= parameter < 1 << 62:
        raise UnsupportedError("a parameter has no number", path=path, found=shown(parameter))
    return str(parameter + 1)


def quoted(name: str) -> str:
    """Return a name as TorchScript writes a string literal.

    Raises:
        UnsupportedError: it has characters that TorchScript's literals cannot express.
    """
    for character in name:
        if not character.isprintable() and character not in _ESCAPES:
            raise UnsupportedError("a name has characters that TorchScript cannot write", found=ascii(name))
    return '"' + "".join(_ESCAPES.get(character, character) for character in name) + '"'
