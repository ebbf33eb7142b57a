"""Recorded values: what a file keeps of the tensors that passed through a Lua model, with `None` for what is missing.

A module of Lua keeps its last output in the field `output`, and the gradient with respect to its input in `gradInput`.
May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ...data import np
from ...errors import ModelError
from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor
from ...nn.fields import Fields
from ...nn.registry import layer_of

Recorded = Any
"""A `Tensor` with elements, a `float`, a list of these, or `None` for values missing from the file."""

DEEPEST = 32
"""Maximum nesting of tables of tensors, and of modules that are searched for states."""
LONGEST = 100_000
"""Maximum number of elements of a table of tensors, or of steps in a tensor."""
_MOST_REPEATED = 1 << 22
"""Maximum number of elements of a recorded tensor whose storage has fewer."""

# Fields of modules


def recorded(value: Any, depth: int = 0) -> Recorded:
    """Return a field's value as recorded tensors and lists; empty, cleared and too large values are `None`.

    A list in which some elements are missing stays a list; one in which all are is `None`.

    Args:
        value: the field's value.
        depth: how many tables it is inside of, whose reading this is part of.
    """
    if isinstance(value, Tensor):
        if not value.numel or value.storage is None or value.element.name.startswith("complex"):
            return None  # Lua Torch computes no complex numbers
        # A view may repeat few elements of a file any number of times.
        return value if value.numel <= max(value.storage.count, _MOST_REPEATED) else None
    if isinstance(value, float):
        return value
    if isinstance(value, Table) and depth < DEEPEST and 0 < len(value) <= LONGEST:
        elements = [recorded(item, depth + 1) for item in value.sequence() or ()]
        return elements if any(item is not None for item in elements) else None
    return None


def output_of(obj: Any) -> Recorded:
    """Return the recorded output of a module."""
    return recorded(obj.get("output")) if isinstance(obj, TorchObject) else None


def grad_input_of(obj: Any) -> Recorded:
    """Return the recorded gradient with respect to a module's input."""
    return recorded(obj.get("gradInput")) if isinstance(obj, TorchObject) else None


def recorded_of_step(obj: TorchObject, name: str, step: int) -> Recorded:
    """Return what a recurrent module keeps of a step; `None` if it is not in the file.

    Args:
        obj: the module.
        name: the field with a table of all steps.
        step: from 1.
    """
    table = obj.get(name)
    return recorded(table.get(float(step))) if isinstance(table, Table) else None


def own_weights(obj: TorchObject) -> dict[str, Tensor]:
    """Return the weights in an object's own fields, by their names there.

    Those that are missing, or empty, are left out.
    """
    weights = {}
    for name in _names_of_weights(obj):
        value = obj.get(name)
        if isinstance(value, Tensor) and value.numel:
            weights[name] = value
    return weights


def _names_of_weights(obj: TorchObject) -> list[str]:
    """Return the fields of an object that its entry maps to parameters, and not to buffers.

    Of a class without an entry these are `weight` and `bias`, as of most classes of Lua.
    """
    layer = layer_of(obj.class_name)
    if layer is None:
        return ["weight", "bias"]
    names = []
    with suppress(ModelError):  # its fields contradict one another: the names before that count
        for parameter in layer.params_of(Fields(obj, path="", defaults=layer.defaults)):
            if parameter.kind == "parameter":
                names += [source.path for source in parameter.sources]
    return names


def own_parameters(obj: TorchObject) -> int:
    """Count the elements of the weights in an object's own fields."""
    return sum(item.numel for item in own_weights(obj).values())


# Values in nested lists, recorded or of PyTorch


def flattened(value: Any) -> Iterator[Any]:
    """Yield what is in the lists of a value, and in lists in these, in order; a value that is no list as it is."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flattened(item)
    else:
        yield value


def map_instances(value: Any, kind: type | tuple[type, ...], change: Callable[..., Any]) -> Any:
    """Return a value with a function applied to all objects of one type, or of several, in its lists."""
    if isinstance(value, (list, tuple)):
        return [map_instances(item, kind, change) for item in value]
    return change(value) if isinstance(value, kind) else value


def tensors_in(value: Recorded) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    return (item for item in flattened(value) if isinstance(item, Tensor))


def is_complete(value: Recorded) -> bool:
    """Return whether no part of a value is missing from the file."""
    if isinstance(value, list):
        return bool(value) and all(map(is_complete, value))
    return value is not None


def first_of(value: Recorded) -> Recorded:
    """Return the first element of a table; other values as they are."""
    return value[0] if isinstance(value, list) and value else value


def zeros_like(value: Recorded) -> Recorded:
    """Return zeros in the structure of a value."""
    return map_instances(value, Tensor, lambda item: Tensor.from_numpy(np.zeros(item.shape, item.numpy().dtype)))


def element(value: Recorded, index: int) -> Recorded:
    """Return an element of a table, from 0, or from -1 backwards; `None` if there is none, which is nil in Lua."""
    return value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None


def without_table(value: Recorded) -> Recorded:
    """Return the element of a table of one element; other values as they are."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def slice_along(value: Recorded, dim: int, places: int | slice) -> Recorded:
    """Return a part of a tensor along a dimension, as a view; `None` if there is none.

    Args:
        value: the tensor; of anything else there is no part.
        dim: the dimension, from 0.
        places: one place, from 0, of which the view has a dimension less, or several.
    """
    if not isinstance(value, Tensor) or not 0 <= dim < value.ndim:
        return None
    if isinstance(places, int):
        if not 0 <= places < value.size[dim]:
            return None
        if value.ndim == 1:  # nn's layers make a vector of one element, as tensors of Lua have dimensions
            places = slice(places, places + 1)
    all_of_dims_before = (slice(None),) * dim
    key = (*all_of_dims_before, places)
    return value[key]


def steps_in(value: Recorded) -> list[Recorded]:
    """Return the steps of a sequence: the elements of a list, or the slices of a tensor along its first dimension.

    It is empty for a value that is neither, and for a tensor of more than `LONGEST` slices; lists are never longer.
    """
    if isinstance(value, Tensor) and value.size and value.size[0] <= LONGEST:
        return [slice_along(value, 0, index) for index in range(value.size[0])]
    return value if isinstance(value, list) else []
