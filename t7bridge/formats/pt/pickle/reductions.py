"""Reductions of tensors for pickling: the call by which PyTorch rebuilds each.

The counterpart of `globals` and `rebuild_tensors`, which read the same calls. Rare values are in `rare_reductions`.
Source: PyTorch 2.13 `torch/_tensor.py` `__reduce_ex__`, `torch/_utils.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from attrs import field

from ....data import define
from ....errors import UnsupportedError
from ....graph.storage import Storage
from ....graph.tensor import UNSET, Tensor

_PYTHON_2_MODULES = {"builtins": "__builtin__", "copyreg": "copy_reg"}
"""Protocol 2 names of modules that Python 3 renamed."""


@define(frozen=True)
class Global:
    """A name in a pickle.

    Attributes:
        path: module and name, with a space between.
    """

    path: str


@define(frozen=True, eq=False)
class NamedStorage:
    """A persistent id that names a storage.

    Attributes:
        storage: the memory.
        element: name of the storage class in `torch`; `UntypedStorage` where the tensor states its element type.
        count: number of elements, or of bytes where the class is untyped.
    """

    storage: Storage
    storage_class: str
    count: int


@define(frozen=True, eq=False)
class Reduction:
    """A call that builds a value, and the state set afterwards.

    Attributes:
        constructor: the callable: a `Global`, or another value.
        args: the arguments.
        new: whether it is `cls.__new__`.
        state: the argument of `__setstate__`; `UNSET` if there is none.
        items: items to append.
        pairs: entries to set by key.
    """

    constructor: Any
    args: Any = ()
    new: bool = False
    state: Any = UNSET
    items: list[Any] = field(factory=list)
    pairs: list[tuple[Any, Any]] = field(factory=list)


def named(module: str, name: str) -> Global:
    """Return a name as protocol 2 writes it: two lines of text.

    Raises:
        UnsupportedError: it does not fit on a line.
    """
    if any(mark in word for word in (module, name) for mark in "\n\r "):
        raise UnsupportedError(
            "a class or function has a name that a pickle cannot write", found=f"{module}.{name}"[:80]
        )
    return Global(f"{_PYTHON_2_MODULES.get(module, module)} {name}")


def place(tensor: Tensor) -> tuple[Storage, int]:
    """Return the storage of a tensor in PyTorch's terms, and the tensor's offset there in elements.

    A storage that views another's bytes as another element type is replaced by that one. One that is a part of another,
    as PyTorch had them until 1.5, stays a storage of its own: today's files cannot express the relation.
    """
    storage = tensor.storage or Storage.empty(tensor.element)
    return whole(storage), tensor.offset


def whole(storage: Storage) -> Storage:
    """Return the storage with the same bytes of which one is a view."""
    while storage.base is not None and not storage.base_offset and storage.nbytes == storage.base.nbytes:
        storage = storage.base
    return storage


def of_storage(storage: Storage) -> NamedStorage:
    """Return the name of a storage outside of tensors.

    Raises:
        UnsupportedError: PyTorch has no storage of its element type.
    """
    if whole(storage) is not storage or not storage.element.torch_storage:
        raise UnsupportedError(f"a storage of {storage.element.name} outside of a tensor cannot be written to a .pt")
    return NamedStorage(storage, storage.element.torch_storage, storage.count)


def of_ordered(value: OrderedDict[Any, Any]) -> Reduction:
    """Return the reduction of an `OrderedDict`, with its attributes."""
    state = dict(vars(value)) or UNSET
    return Reduction(named("collections", "OrderedDict"), state=state, pairs=list(value.items()))


def is_typed(tensor: Tensor) -> bool:
    """Return whether the class of a tensor's storage determines its element type."""
    return bool(tensor.element.torch_storage) and place(tensor)[0].element is tensor.element


def dense(tensor: Tensor, hooks: Any = None) -> Reduction:
    """Return the reduction of a tensor whose storage determines its element type."""
    storage, offset = place(tensor)
    stride = tensor.stride if tensor.size or tensor.is_scalar else (1,)
    named_storage = NamedStorage(storage, tensor.element.torch_storage, storage.count)
    hooks = OrderedDict() if hooks is None else hooks
    arguments = (named_storage, offset, tensor.shape, stride, tensor.requires_grad, hooks)
    return Reduction(named("torch._utils", "_rebuild_tensor_v2"), arguments)


def common_reduction(value: Any) -> Reduction | NamedStorage | None:
    """Return the reduction of a plain tensor, storage or `OrderedDict`; `None` for other values."""
    kind = type(value)
    if kind is Tensor:
        return dense(value) if value.extras is None and not value.is_parameter and is_typed(value) else None
    if kind is OrderedDict:
        return of_ordered(value)
    return of_storage(value) if kind is Storage else None
