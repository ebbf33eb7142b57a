"""The last step of an optimizer, as far as the file tells it: gradients, and states saved beside the model.

`getParameters` puts all weights into one storage, and the package optim keeps tensors of the same length: a weight has
the same offset in both. Source: optim a5ceed7 `sgd.lua`, `adam.lua`, `adamax.lua`, `rmsprop.lua`, `adagrad.lua`,
`adadelta.lua`. May import graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...data import define
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...lazy import np

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

MOST = 8
"""States that are tried; a checkpoint has one for each network."""
MOST_TABLES = 1000
"""Tables that are searched for them."""
_STEPS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Array], Array | None], Array | None]]] = {
    "momentum": (("dfdx",), lambda state, slope: state["dfdx"]),
    "Adam": (("m", "denom"), lambda state, slope: state["m"] / state["denom"]),
    "Adamax": (("m", "u"), lambda state, slope: state["m"] / state["u"]),
    "RMSprop": (("m", "tmp"), lambda state, slope: None if slope is None else slope / state["tmp"]),
    "Adadelta": (("delta",), lambda state, slope: state["delta"]),
    "Adagrad": (("paramStd",), lambda state, slope: None if slope is None else slope / state["paramStd"]),
}
"""By the name of the optimizer: the required tensors of its state, and the step, up to a factor, from these and the
recorded gradient.
"""


@define(eq=False)
class Direction:
    """A direction in which an optimizer moved all weights.

    Attributes:
        name: its origin, for messages.
        pick: the direction of the weights in a field of a module, from the module, the field, the weights and their
            recorded gradient; `None` where it is not known.
    """

    name: str
    pick: Callable[[TorchObject, str, Tensor, Any], Any]


def _gradient(obj: TorchObject, name: str, tensor: Tensor, slope: Any) -> Array | None:
    return slope.numpy() if isinstance(slope, Tensor) and slope.shape == tensor.shape else None


GRADIENT = Direction("the recorded gradient", _gradient)
"""Gradient descent, Nesterov's too, and with weight decay, which optim adds to the recorded gradient."""


def directions(value: Value) -> tuple[Direction, ...]:
    """Return the directions that a file tells: of optimizers' states in tables beside the models, and the gradient."""
    found: list[Direction] = []
    stack: list[Value] = [value]
    seen: set[int] = set()
    while stack and len(found) < MOST and len(seen) < MOST_TABLES:
        item = stack.pop()
        if isinstance(item, Table) and id(item) not in seen:
            seen.add(id(item))
            found += _states(item)
            stack += [inside for inside in item.raw_values if isinstance(inside, Table)]
    return (*found[:MOST], GRADIENT)


def _states(table: Table) -> Iterator[Direction]:
    for name, (fields, _) in _STEPS.items():
        kept = {field: table.get(field) for field in fields}
        if all(isinstance(item, Tensor) and _is_flat(item) for item in kept.values()):
            yield Direction(f"the last step of {name}", _picker(name, kept))
            if name == "Adadelta":
                return  # it has the fields of Adagrad as well


def _is_flat(tensor: Tensor) -> bool:
    """Return whether elements are contiguous; Adamax stores them as a matrix of one row."""
    return tensor.numel > 0 and max(tensor.size) == tensor.numel and tensor.stride[tensor.size.index(tensor.numel)] == 1


def _picker(name: str, state: dict[str, Any]) -> Callable[[TorchObject, str, Tensor, Any], Array | None]:
    def pick(obj: TorchObject, field: str, tensor: Tensor, slope: Any) -> Array | None:
        parts: dict[str, Array] = {}
        for key, flat in state.items():
            if tensor.storage is None or flat.numel != tensor.storage.count:
                return None
            view = Tensor(flat.element, flat.storage, tensor.size, tensor.stride, flat.offset + tensor.offset)
            parts[key] = view.numpy().astype("f8")
        now = _gradient(obj, field, tensor, slope)
        with np.errstate(all="ignore"):
            found = _STEPS[name][1](parts, None if now is None else now.astype("f8"))
        return None if found is None else np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)

    return pick
