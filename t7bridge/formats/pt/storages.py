"""The storages of one file, by key: one object each, however many tensors and element types use it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import BY_TORCH_STORAGE, ELEMENT_TYPES, UINT8, ElementType
from ...graph.python import PythonGlobal
from ...graph.storage import Span, Storage
from ...graph.tensor import UntypedStorage
from ...io.source import ByteSource

Locate = Callable[[Any, ElementType, int], Span]
"""From (key, element type, bytes) to the span of the bytes."""

ZIP_PARTS, LEGACY_PARTS, NO_IDS = 5, 6, 0
"""Number of parts of a persistent id in zip archives and in the legacy format, whose sixth part says which part of
another storage is meant; 0 where a pickle has no persistent ids."""

_UNTYPED = ("UntypedStorage", "_UntypedStorage")
STORAGE_CLASSES = {
    f"{module}.{name}": element
    for name, element in (*BY_TORCH_STORAGE.items(), *((name, UINT8) for name in _UNTYPED))
    for module in ("torch", "torch.cuda", "torch.storage", "torch.sparse")
}
"""Element type of each storage class; untyped ones have bytes.

Source: PyTorch 2.13 `torch/storage.py`, `_storage_type_to_dtype_map`."""
DEVICE_TYPES = (
    *("cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia", "xla", "lazy"),
    *("vulkan", "mps", "meta", "hpu", "mtia", "privateuseone"),
)
"""PyTorch 2.13 `c10/core/Device.cpp` `parse_type`."""
_NOWHERE = ByteSource.from_bytes(b"", "<not located yet>")


def is_count(value: Any) -> bool:
    """Return whether a value can be a number of elements or bytes."""
    return type(value) is int and 0 <= value < 1 << 63


class StorageTable:
    """Finds or creates the storage of each key that pickles name: one object for each key and element type.

    The first element type used with a key is its root storage's; tensors of another type have a storage of their own
    whose `base` is the root.

    Args:
        locate: finds the bytes of a key; None if they follow the pickle: then the reader of the file sets `data` of
            each root later.
        one_class_per_key: whether to refuse a key that is named with a second storage class: in files that Python wrote
            PyTorch uses the first for both, so that a tensor would have other elements there.

    Attributes:
        roots: the storage of each key, with the element type that was used first. An untyped storage is not among them
            before a tensor claims it, or the pickle ends.
    """

    def __init__(self, locate: Locate | None = None, *, one_class_per_key: bool = False) -> None:
        self.roots: dict[Hashable, Storage] = {}
        self._locate = locate
        """Finds the bytes of a key; `None` where they follow the pickle, and are set as `data` of the roots later."""
        self._one_class_per_key = one_class_per_key
        self._first_classes: dict[Hashable, ElementType | None] = {}
        """The element type with which the pickle named each key first; `None` for an untyped storage."""
        self._views: dict[tuple[int, str, int, int], Storage] = {}
        """Parts and retyped views of roots: identity of the root, element type, offset in bytes, and count."""
        self._untyped: dict[Hashable, UntypedStorage] = {}
        """The storages that the pickle names without an element type, by key."""
        self._key_of_untyped: dict[int, Hashable] = {}
        """The key of each untyped storage, by its identity, for the tensors that claim it."""

    def get(self, key: Hashable, element: ElementType, count: int, device: str) -> Storage:
        """Return the storage of a key, viewed as elements of a type.

        Args:
            key: of the storage.
            element: the type.
            count: number of elements of a storage that is new; ignored for one that is known.
            device: PyTorch's name of the device of a storage that is new.

        Raises:
            CorruptError: its bytes are missing.
            UnsupportedError: it is known, and its bytes are not a whole number of such elements.
        """
        if key not in self.roots:
            width = element.itemsize
            span = Span(_NOWHERE, 0, width) if self._locate is None else self._locate(key, element, count * width)
            self.roots[key] = Storage(element, count, span, device)
        return self.retype(self.roots[key], element)

    def untyped(self, key: Hashable, nbytes: int, device: str) -> UntypedStorage:
        """Return the storage of a key without an element type: it has that of the first tensor on it, see `typed`.

        Args:
            key: of the storage.
            nbytes: its size in bytes, if it is new.
            device: PyTorch's name of its device, if it is new.
        """
        if key not in self._untyped:
            # Its bytes are located when a tensor claims it: only then the element type is known.
            storage = UntypedStorage(Storage(UINT8, nbytes, Span(_NOWHERE, 0, 1), device))
            self._untyped[key] = storage
            self._key_of_untyped[id(storage)] = key
        return self._untyped[key]

    def typed(self, storage: Any, element: ElementType | None = None) -> Storage:
        """Return the storage of a tensor of an element type, from the storage that the pickle gives the tensor.

        Args:
            storage: the result of `get` or `untyped`; of a damaged file any value.
            element: the tensor's type; `None` for that of the storage. An untyped one has that of the first tensor that
                claimed it, or bytes.

        Raises:
            CorruptError: it is not a storage.
            UnsupportedError: its bytes are not a whole number of elements.
        """
        if isinstance(storage, UntypedStorage) and id(storage) in self._key_of_untyped:
            key = self._key_of_untyped[id(storage)]
            untyped = storage.storage
            root = self.roots.get(key)  # of an earlier tensor with these bytes
            if element is None:
                element = root.element if root else UINT8
            # If there is a root, `get` ignores the count, and `retype` checks the root's bytes.
            if root is None and untyped.nbytes % element.itemsize:
                raise _not_whole_elements(untyped.nbytes, element)
            return self.get(key, element, untyped.nbytes // element.itemsize, untyped.device)
        if not isinstance(storage, Storage):
            raise CorruptError("a tensor has no storage", expected="a storage", found=type(storage).__name__)
        return self.retype(storage, element or storage.element)

    def storage_of_id(self, saved_id: Any) -> Storage | UntypedStorage:
        """Return the storage named by a persistent id, or the part of it that is named.

        Args:
            saved_id: ("storage", class, key, location, count), and in older files a part of the storage: its own key,
                first element and element count.

        Raises:
            CorruptError: it is invalid; or the key was named with another class before, and the file may have one only.
        """
        saved = _parsed_id(saved_id)
        first_type = self._first_classes.setdefault(saved.key, saved.element)
        # An untyped name may follow any class, as its tensor states the element type. A class must not follow an
        # untyped name: PyTorch would take the elements of its tensor for bytes.
        is_other_class = saved.element is not None and saved.element is not first_type
        if self._one_class_per_key and is_other_class:
            raise CorruptError(
                "a storage is named with two classes",
                expected="one, as PyTorch uses the first for both",
                found=f"key {saved.key!s:.60}",
            )
        if saved.element is None:  # PyTorch never wrote a part of an untyped storage
            return self.untyped(saved.key, saved.element_count, saved.device)
        storage = self.get(saved.key, saved.element, saved.element_count, saved.device)
        if saved.part is None:
            return storage
        _key_of_part, start, part_count = saved.part
        return self.part(storage, start, part_count)

    def retype(self, storage: Storage, element: ElementType) -> Storage:
        """Return the same memory viewed as elements of another type: the storage itself if it has this type.

        Raises:
            UnsupportedError: its bytes are not a whole number of such elements.
        """
        if storage.element is element:
            return storage
        if storage.nbytes % element.itemsize:
            raise _not_whole_elements(storage.nbytes, element)
        return self._view(storage, element, offset=0, count=storage.nbytes // element.itemsize)

    def part(self, storage: Storage, start: int, count: int) -> Storage:
        """Return a part of a storage as a storage of its own, as PyTorch had them until 0.3.

        Args:
            storage: the whole.
            start: first element of the part, 0-based.
            count: number of its elements.

        Raises:
            CorruptError: the part is not inside.
        """
        if not is_count(start) or not is_count(count) or start + count > storage.count:
            raise CorruptError(
                "a part of a storage is not inside of it",
                expected=f"at most {storage.count} elements",
                found=f"{count} from {start}",
            )
        if count == storage.count:  # all of it, so that `start` is 0
            return storage
        return self._view(storage, storage.element, offset=start * storage.element.itemsize, count=count)

    def _view(self, storage: Storage, element: ElementType, offset: int, count: int) -> Storage:
        """Return a part of a storage as elements of a type: one object for equal parts.

        A part of a part becomes a part of the base, as a storage's `base` is always a root.

        Args:
            storage: the storage.
            element: type of the part's elements.
            offset: of its first byte in the storage.
            count: its elements.
        """
        base = storage.base or storage
        base_offset = storage.base_offset + offset
        identity = (id(base), element.name, base_offset, count)
        if identity not in self._views:
            data = self._within(base, element, base_offset)
            view = Storage(element, count, data, storage.device, base=base, base_offset=base_offset)
            self._views[identity] = view
        return self._views[identity]

    @staticmethod
    def _within(base: Storage, element: ElementType, offset: int) -> Span:
        """Return the bytes of a storage from an offset in bytes on, as elements of a type.

        If the elements of the storage are computed on demand, they are computed now, and replaced by their bytes.

        Raises:
            UnsupportedError: the bytes are swapped, and elements of another size would be swapped otherwise.
        """
        if not isinstance(base.data, Span):  # elements computed on demand
            base.data = span_of_bytes(b"".join(base.chunks()), base.element.itemsize)
        if base.data.order != "little" and element.itemsize != base.element.itemsize:
            raise UnsupportedError(
                f"a big-endian storage of {base.element.name} is also seen as {element.name}, of which the bytes differ"
            )
        return Span(base.data.source, base.data.offset + offset, element.itemsize, base.data.order)

    def settle_untyped(self) -> None:
        """Give each untyped storage its root: that of the tensors that claimed it; a new one of bytes if none did."""
        for key, untyped in self._untyped.items():
            root = self.roots.get(key)
            if root is None:
                root = self.get(key, UINT8, untyped.storage.nbytes, untyped.storage.device)
            untyped.storage = root

    def complete_untyped_and_views(self) -> None:
        """Complete what had to wait for the end of the pickle: untyped storages, and the bytes of views.

        Where the bytes follow the pickle, roots have been located only after their views were made.
        """
        self.settle_untyped()
        for view in self._views.values():
            assert view.base is not None
            view.data = self._within(view.base, view.element, view.base_offset)


class _SavedId(NamedTuple):
    """A persistent id of a storage, checked.

    Attributes:
        key: of the storage: text, or a number in old files.
        element: the element type of the class; `None` for an untyped storage, which has that of the tensor that claims
            it.
        element_count: number of elements; of bytes for an untyped storage.
        device: PyTorch's name of its device.
        part: in older files the part of the storage that is meant: its own key, first element and element count, not
            checked; `None` for the whole.
    """

    key: str | int | bytes
    element: ElementType | None
    element_count: int
    device: str
    part: tuple[Any, ...] | None


def _parsed_id(saved_id: Any) -> _SavedId:
    """Check the parts of a persistent id: see `StorageTable.storage_of_id`.

    Raises:
        CorruptError: it is invalid.
    """
    parts_of_ids = (ZIP_PARTS, LEGACY_PARTS)
    if not isinstance(saved_id, tuple) or len(saved_id) not in parts_of_ids or text(saved_id[0]) != "storage":
        raise CorruptError("a persistent id does not name a storage", found=f"{type(saved_id).__name__}")
    _storage, kind, key, location, count, *optional_part = saved_id
    element = STORAGE_CLASSES.get(kind.path) if isinstance(kind, PythonGlobal) else None
    if element is None:
        named = kind.path if isinstance(kind, PythonGlobal) else type(kind).__name__
        raise CorruptError("a storage has an unknown class", found=named)
    device = text(location)
    if not isinstance(key, (str, int, bytes)) or not is_count(count) or device is None:
        raise CorruptError("a persistent id has no key, location or count")
    part = optional_part[0] if optional_part else None
    if part is not None and not (isinstance(part, tuple) and len(part) == 3):
        raise CorruptError("the description of a part of a storage is invalid")
    return _SavedId(
        key=text(key) or key,  # numbers stay as they are
        element=None if kind.name in _UNTYPED else element,
        element_count=count,
        device=device,
        part=part,
    )


def text(value: Any) -> str | None:
    """Return a `str`, also of Python 2; None for anything else."""
    if isinstance(value, bytes):
        return value.decode("latin1")
    return value if isinstance(value, str) else None


def _not_whole_elements(nbytes: int, element: ElementType) -> UnsupportedError:
    return UnsupportedError(f"a storage of {nbytes} bytes is not a whole number of {element.name} elements")


# Source: PyTorch 2.13 `torch/csrc/utils/tensor_dtypes.cpp`.
ELEMENT_NAMES = {
    **{name: name for name in ELEMENT_TYPES},
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
"""PyTorch's names of element types, aliases included, and which each is."""


def span_of_bytes(data: bytes, width: int, order: str = "little") -> Span:
    """Return bytes in memory as a span."""
    return Span(ByteSource.from_bytes(data), 0, width, order)
