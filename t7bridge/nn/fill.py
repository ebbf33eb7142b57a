"""State dicts back to Lua: PyTorch's tensors as new elements of the Lua tensors that they come from.

May import graph and errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from ..errors import UnsupportedError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..lazy import np
from ..values.assign import Assignment, same_elements
from .fields import Fields
from .layers.containers import clones
from .layouts import copied, elements, undo_layout
from .places import Places
from .registry import first_module, layer_of, modules
from .state_dict import Origin, state_dict


def native(tensor: Tensor) -> Tensor:
    """Return a tensor with elements of a type that Lua has, exactly the same numbers.

    Raises:
        UnsupportedError: complex numbers, which are two numbers in Lua.
    """
    if tensor.element.lua:
        return tensor
    if tensor.element.name.startswith("complex"):
        raise UnsupportedError("Lua Torch has no complex numbers", found=tensor.element.name)
    from ..values.widened import widen

    packed = copied(tensor, elements(tensor))
    assert packed.storage is not None
    wider = widen(packed.storage)[0]
    return evolve(packed, element=wider.element, storage=wider)


def assignment(name: str, origin: Origin, tensor: Tensor, converted: Tensor) -> Assignment:
    """Return the assignment of a tensor to the Lua tensor that it comes from.

    The layout's steps are applied on Lua's side as far as they are views of Lua's storage; the others are undone.

    Args:
        name: its name in messages.
        origin: the Lua tensor and its layout; not of a computed tensor.
        tensor: PyTorch's, of the shape of `converted`.
        converted: the Lua tensor in PyTorch's layout.
    """
    assert origin.tensor is not None
    target, fields = origin.tensor, _fields(origin)
    rest = origin.source.layout if origin.source else ()
    while rest and (step := rest[0].apply(target, fields)).storage is target.storage:
        target, rest = step, rest[1:]
    if rest and same_elements(tensor, converted):  # unchanged: Lua's own elements, as undoing a step may round
        tensor = copied(target, elements(target))
    elif rest:
        tensor = undo_layout(rest, tensor, target, fields)
    return Assignment(name, target, tensor)


def recomputed(origin: Origin) -> Tensor | None:
    """Compute a derived tensor from the tensors that the Lua object holds now; `None` if it is not derived."""
    if origin.param is None or origin.param.make is None:
        return None
    try:
        with np.errstate(all="ignore"):
            return origin.param.make(_fields(origin))
    except ValueError:  # with inconsistent fields the forward conversion has no such tensor either
        return None


def kept_field(origin: Origin, made: Tensor) -> Tensor | None:
    """Return Lua's tensor with the name and shape of a computed one, read in evaluation; `None` if missing."""
    found = _fields(origin).find_tensor(origin.param.name) if origin.param is not None else None
    return found if found is not None and found.shape == made.shape else None


def added(first: Tensor, second: Tensor) -> Tensor | None:
    """Return the sum of two tensors; `None` if the second is zero."""
    one, other = elements(first), elements(second)
    if not other.any():
        return None
    with np.errstate(all="ignore"):
        return Tensor.from_numpy((one.astype("f8") + other).astype(np.result_type(one, other)))


def is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors agree up to the rounding of different ways to compute them."""
    return one.shape == other.shape and bool(np.allclose(one.array, other.array, 1e-3, 1e-5, equal_nan=True))


def learned_copies(root: TorchObject) -> Iterator[tuple[str, str, Origin, Tensor]]:
    """Yield the parameters in the copies of a module that its container runs in parallel.

    Yields:
        The key of the first of them in the state dict; the place of the copy; the copy's origin and tensor.
    """
    for place in Places(root):
        if place.layer is None or place.layer.children not in (first_module, clones):
            continue
        for child in list(modules(place.obj))[len(list(place.layer.children(place.obj))) :]:
            if not isinstance(child.value, TorchObject):
                continue
            found = state_dict(child.value, own_keys=True)
            for key, origin in found.origins.items():
                if origin.param is not None and origin.param.kind == "parameter":
                    yield f"{place.prefix}0.{key}", place.path + child.path, origin, found.tensors[key]


def _fields(origin: Origin) -> Fields:
    layer = layer_of(origin.obj.class_name)
    return Fields(origin.obj, "", layer.defaults if layer else {})
