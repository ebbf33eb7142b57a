"""State dicts of PyTorch's optimizers as C++'s `torch::load(optimizer, path)` reads them.

C++ keeps `pytorch_version`, a module `state` with one module for each parameter, under the number of the
parameter, and a module `param_groups` with, for each group, the numbers of its parameters and a module `options`.
Python's state dicts do not name the optimizer: the options of its groups identify it. Options that C++ does not have
are left out if they are off.

Source: PyTorch 2.13 `torch/csrc/api/include/torch/optim/serialize.h`, and of each optimizer `serialize` in
`torch/csrc/api/src/optim/*.cpp`; `torch/optim/optimizer.py` `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field

from ...data import define
from ...errors import ModelError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from .storages import shown, span_of_bytes

VERSION = "1.5.0"
"""The text that C++ writes as `pytorch_version`, and requires, since 1.5."""
FLOAT, INT, BOOL, TENSOR, PAIR = "float", "int", "bool", "Tensor", "Tuple[float, float]"


@define(frozen=True)
class _Optimizer:
    """State of an optimizer in C++.

    Attributes:
        options: of a group, with their types.
        state: of a parameter, with their types; of these `step` is a number in C++ and a tensor in Python.
    """

    options: dict[str, str]
    state: dict[str, str]


_OPTIMIZERS = {
    "SGD": _Optimizer(
        {"lr": FLOAT, "momentum": FLOAT, "dampening": FLOAT, "weight_decay": FLOAT, "nesterov": BOOL},
        {"momentum_buffer": TENSOR},
    ),
    "Adam": _Optimizer(  # and AdamW
        {"lr": FLOAT, "betas": PAIR, "eps": FLOAT, "weight_decay": FLOAT, "amsgrad": BOOL},
        {"step": INT, "exp_avg": TENSOR, "exp_avg_sq": TENSOR, "max_exp_avg_sq": TENSOR},
    ),
    "RMSprop": _Optimizer(
        {"lr": FLOAT, "alpha": FLOAT, "eps": FLOAT, "weight_decay": FLOAT, "momentum": FLOAT, "centered": BOOL},
        {"step": INT, "square_avg": TENSOR, "momentum_buffer": TENSOR, "grad_avg": TENSOR},
    ),
    "Adagrad": _Optimizer(
        {
            "lr": FLOAT, "lr_decay": FLOAT, "weight_decay": FLOAT, "initial_accumulator_value": FLOAT, "eps": FLOAT,
        },
        {"step": INT, "sum": TENSOR},
    ),
}  # fmt: skip
_PYTHONS_OWN = frozenset({"foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"})
"""Options of Python's optimizers that affect the computation, or, for `decoupled_weight_decay`, identify AdamW."""


@define(eq=False)
class ArchiveNode:
    """A module of an archive: values and modules by name.

    Attributes:
        values: value and TorchScript's name of its type, in order.
        modules: inner modules.
        parameters: names of the tensors that C++ writes as parameters.
    """

    values: dict[str, tuple[Any, str]] = field(factory=dict)
    modules: dict[str, ArchiveNode] = field(factory=dict)
    parameters: list[str] = field(factory=list)


def is_optimizer(value: Any) -> bool:
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


def optimizer_node(value: Mapping[str, Any]) -> ArchiveNode:
    """Return the modules of an archive for the state dict of an optimizer.

    Raises:
        UnsupportedError: C++ has no such optimizer, or cannot hold part of the state.
        ModelError: an option or a state has another type than PyTorch's.
    """
    known = _kind_of(value)
    root = ArchiveNode({"pytorch_version": (VERSION, "str")})
    states = root.modules["state"] = ArchiveNode()
    for number, state in value["state"].items():
        path = f"root['state'][{number!r}]"
        node = states.modules[_number(number, path)] = ArchiveNode()
        if not isinstance(state, Mapping):
            raise ModelError("is not the state of an optimizer", path=path, found=shown(state))
        for name, kind in known.state.items():
            if state.get(name) is not None:
                node.values[name] = (_converted(state[name], kind, f"{path}[{name!r}]"), kind)
        _refuse_rest(state, known.state, path)
    groups = root.modules["param_groups"] = ArchiveNode()
    _size(groups, "param_groups/size", len(value["param_groups"]))
    for number, group in enumerate(value["param_groups"]):
        path = f"root['param_groups'][{number}]"
        node = groups.modules[f"param_groups/{number}"] = ArchiveNode()
        _size(node, "params/size", len(group["params"]))
        for place, parameter in enumerate(group["params"]):
            node.values[f"params/{place}"] = (_number(parameter, path), "str")
        options = node.modules["options"] = ArchiveNode()
        for name, kind in known.options.items():
            if name not in group:
                raise ModelError("a group has no such option", path=path, expected=name)
            options.values[name] = (_converted(group[name], kind, f"{path}[{name!r}]"), kind)
        _refuse_rest(group, {"params": "", **known.options}, path)
    return root


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
    if kind == TENSOR:
        if isinstance(value, Tensor):
            return value
    elif kind == PAIR:
        if isinstance(value, (tuple, list)) and len(value) == 2:
            return tuple(_converted(item, FLOAT, path) for item in value)
    else:
        if isinstance(value, Tensor) and value.numel == 1:
            value = value.numpy().reshape(()).item()
        if kind == BOOL and isinstance(value, bool):
            return value
        if kind != BOOL and isinstance(value, (int, float)) and not isinstance(value, bool):
            if kind == FLOAT:
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


def _size(node: ArchiveNode, name: str, count: int) -> None:
    """Add a tensor with a size, as C++ writes it."""
    element = ELEMENT_TYPES["int64"]
    storage = Storage(element, 1, span_of_bytes(count.to_bytes(8, "little"), 8))
    node.values[name] = (Tensor(element, storage, (), (), is_scalar=True), TENSOR)
    node.parameters.append(name)
