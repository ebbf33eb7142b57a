"""Named tensors, as in safetensors, npz and HDF5: their bytes row by row, and which of them share memory.

In a format without links, a tensor is written under every one of its names, so that any reader finds all keys, and the
file's metadata lists the views of one storage: `views`, by name a list of the storage's number, its element count, the
view's offset and its strides, in elements. Our readers tie them again, after checking that they still agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, field

from ..data import define, np
from ..errors import CorruptError, ModelError
from ..graph.dtypes import ElementType
from ..graph.storage import Span, Storage
from ..graph.tensor import (
    Tensor,
    as_stored,
    byte_strides,
    contiguous,
    is_conjugated_or_negated,
    is_dense,
    rows,
    view_fault,
)
from ..io.copy import Extent
from ..io.source import ByteSource, Piece, PiecesSource
from ..limits import Limits
from ..report import Note
from ..text import few

Name = tuple[str, ...]
"""The steps of a tensor's path: `("model", "0.weight")`."""
_Key = TypeVar("_Key")
METADATA_KEY = "t7bridge"
"""The name of our entry in a file's metadata."""


@define(frozen=True)
class TensorView:
    """Position of a tensor in a storage shared by several names.

    Attributes:
        storage: number of the storage in the file, which all its views state.
        count: number of elements of the storage.
        offset: of the tensor's first element in the storage, 0-based, in elements.
        stride: elements between neighbours along each dimension.
    """

    storage: int
    count: int
    offset: int
    stride: tuple[int, ...]

    def as_list(self) -> list[Any]:
        """Return the view as data for JSON."""
        return [self.storage, self.count, self.offset, list(self.stride)]

    @classmethod
    def from_list(cls, data: Any) -> TensorView:
        """Return the view of which `as_list` made data for JSON.

        Args:
            data: of a file, where it may be anything.

        Raises:
            ValueError, TypeError: the data are not a view.
        """
        storage, count, offset, stride = data
        numbers = (storage, count, offset, *stride)
        are_integers = all(type(number) is int and abs(number) < 1 << 63 for number in numbers)
        if not isinstance(stride, list) or not are_integers:
            raise ValueError("a view is three integers and a list of integers")
        return cls(storage, count, offset, tuple(stride))


@define(eq=False)
class NamedTensors:
    """Content of a file of named tensors.

    Attributes:
        tensors: each under the steps of its path.
        metadata: strings by name.
        views: by the steps of each tensor that shares memory with others: its place there. `plan_views` computes them;
            without them each tensor is written for itself.
    """

    tensors: dict[Name, Tensor]
    metadata: dict[str, str] = field(factory=dict)
    views: dict[Name, TensorView] = field(factory=dict)

    @classmethod
    def of(cls, value: NamedTensors | Mapping[Any, Tensor]) -> NamedTensors:
        """Create the content from a dict of tensors, by name or by steps.

        Raises:
            ModelError: the value is not such a dict, or two names are the same text.
        """
        if isinstance(value, NamedTensors):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(item, Tensor) for item in value.values()):
            raise ModelError("is not a dict of tensors", found=type(value).__name__)
        named = cls({})
        for name, tensor in value.items():
            steps = name if isinstance(name, tuple) else (str(name),)
            named.tensors[steps] = tensor
        if len(named.tensors) != len(value):  # the keys 1 and "1"
            raise ModelError("two tensors would have one name")
        named.views, _ = plan_views(named.tensors)
        return named

    @property
    def storages(self) -> int:
        """Number of storages that our readers find in the file."""
        return len(self.tensors) - len(self.views) + len({view.storage for view in self.views.values()})


def dotted(values: Mapping[Name, _Key]) -> dict[str, _Key]:
    """Return values by the text of their names: the steps joined with dots.

    Args:
        values: of any kind, by the steps of their names.

    Raises:
        ModelError: two names coincide.
    """
    joined = {".".join(steps): value for steps, value in values.items()}
    if len(joined) != len(values):
        raise ModelError("two tensors would have one name", hint="--to hdf5 keeps them apart.")
    return joined


# Sharing


def plan_views(tensors: Mapping[Name, Tensor]) -> tuple[dict[Name, TensorView], list[Name]]:
    """Determine which tensors share memory.

    Elements outside of all tensors are not written: a storage is divided where there are such.

    Args:
        tensors: those of a file, by the steps of their names.

    Returns:
        The view of each tensor that overlaps or adjoins another; and the tensors whose sharing the file cannot express,
        because too much of the storage is outside of all tensors.
    """
    views: dict[Name, TensorView] = {}
    not_shared: list[Name] = []
    number = 0  # of the next storage in the file
    for ranges in _ranges_by_storage(tensors):
        for group in _overlapping(ranges):
            if len(group) == 1:  # it shares nothing
                continue
            views_of_group = _views_of_group(tensors, group, number)
            if views_of_group is None:
                not_shared += [name for _, _, name in group]
            else:
                views.update(views_of_group)
                number += 1
    return views, not_shared


def _views_of_group(tensors: Mapping[Name, Tensor], group: list[_Range], number: int) -> dict[Name, TensorView] | None:
    """Return the views of tensors that overlap or adjoin, of a storage that has just their elements.

    Args:
        tensors: those of a file.
        group: the ranges of those that overlap or adjoin.
        number: that of the storage in the file.

    Returns:
        `None` if the storage would have more elements than the tensors one by one: strides may skip some.
    """
    start = min(first for first, _, _ in group)
    count = max(end for _, end, _ in group) - start
    if count > sum(tensors[name].numel for _, _, name in group):
        return None
    views: dict[Name, TensorView] = {}
    for _, _, name in group:
        tensor = tensors[name]
        views[name] = TensorView(number, count, tensor.offset - start, tensor.stride)
    return views


_Range = tuple[int, int, Name]
"""Elements of a storage that a tensor has: the first, the one after the last, and the name of the tensor."""


def _ranges_by_storage(tensors: Mapping[Name, Tensor]) -> Iterable[list[_Range]]:
    """Return for each storage the ranges of the tensors that have elements on it."""
    by_storage: dict[int, list[_Range]] = {}
    for name, tensor in tensors.items():
        # One that is conjugated or negated when it is read has other elements than its storage.
        if tensor.storage is not None and tensor.numel and not is_conjugated_or_negated(tensor):
            first, end = tensor.reach()
            by_storage.setdefault(id(tensor.storage), []).append((first, end, name))
    return by_storage.values()


def _overlapping(ranges: list[_Range]) -> Iterator[list[_Range]]:
    """Yield groups of ranges that overlap or adjoin, in the order of the storage.

    Args:
        ranges: of one storage: of each tensor its first element there, the one after its last, and its name.
    """
    group: list[_Range] = []
    group_end = 0
    for first, end, name in sorted(ranges, key=lambda item: item[:2]):  # those at one place stay in their order
        if group and first > group_end:
            yield group
            group = []
        group_end = max(group_end, end)
        group.append((first, end, name))
    if group:
        yield group


def write_order(named: NamedTensors) -> list[Name]:
    """Return the names in writing order: wide elements first, then by name; views of one storage follow one another.

    Of these the dense ones come first, each where the one before ends, so that a storage shared by several tensors is
    one run of bytes in the file if possible; then the others.
    """
    first_names = _first_names(named)
    consecutive = _consecutive_views(named)

    def sort_key(steps: Name) -> tuple[Any, ...]:
        """Return width, descending; the name, of views the first of their storage; then their order on the storage.

        Of a storage the consecutive views come first, then the others, each by offset.
        """
        name = ".".join(steps)
        width = named.tensors[steps].element.itemsize
        view = named.views.get(steps)
        if view is None:
            return (-width, name, False, 0, name)
        is_later = steps not in consecutive
        return (-width, first_names[view.storage], is_later, view.offset, name)

    return sorted(named.tensors, key=sort_key)


def _first_names(named: NamedTensors) -> dict[int, str]:
    """Return for each shared storage, by its number, the first name of its tensors in alphabetical order."""
    first_names: dict[int, str] = {}
    for steps, view in named.views.items():
        name = ".".join(steps)
        first_names[view.storage] = min(first_names.get(view.storage, name), name)
    return first_names


def _consecutive_views(named: NamedTensors) -> set[Name]:
    """Return the names of the dense views that are one run of elements of their storage.

    The run begins with the first element of the storage; each view begins where the one before it ends.
    """
    consecutive: set[Name] = set()
    ends: dict[int, int] = {}
    """By the number of a storage: where the last of these views ends."""
    for steps in sorted(named.views, key=lambda steps: (named.views[steps].storage, named.views[steps].offset)):
        view = named.views[steps]
        tensor = named.tensors[steps]
        if view.offset == ends.get(view.storage, 0) and is_dense(tensor.size, tensor.stride):
            consecutive.add(steps)
            ends[view.storage] = view.offset + tensor.numel
    return consecutive


@define(frozen=True)
class _Member:
    """A tensor of a file that had a common storage with others when it was written.

    Attributes:
        name: of the tensor.
        tensor: as it was read, on a storage of its own.
        view: its place in the common storage, from the file's metadata.
    """

    name: Any
    tensor: Tensor
    view: TensorView


def tie(tensors: dict[_Key, Tensor], views: Mapping[_Key, TensorView], notes: list[Note]) -> dict[_Key, Tensor]:
    """Put tensors that were views of one storage back on one storage, if they still agree.

    Args:
        tensors: the tensors of a file, each on a storage of its own; tied ones are replaced in this dict.
        views: from the file's metadata; other programs may have changed the tensors since.
        notes: receives disagreements.

    Returns:
        The same dict.
    """
    groups: dict[int, list[_Member]] = {}
    for name, view in views.items():
        if name in tensors:
            groups.setdefault(view.storage, []).append(_Member(name, tensors[name], view))
    for members in groups.values():
        if len(members) == 1:  # the others are missing
            continue
        tied_tensors = _tied(members)
        if tied_tensors is None:
            names = few(_text_name(member.name) for member in members)
            message = f"tensors that shared memory no longer agree: {names}"
            notes.append(Note("info", path="", message=message, loss="sharing", code="unshared"))
        else:
            tensors.update(tied_tensors)
    return tensors


def _text_name(name: Any) -> str:
    """Return a name for messages: text, or steps joined with dots."""
    return ".".join(name) if isinstance(name, tuple) else str(name)


def _tied(members: list[_Member]) -> dict[Any, Tensor] | None:
    """Return tensors, by name, as views of one storage; `None` if their elements or the views do not agree.

    Args:
        members: all tensors that the metadata have on the storage.
    """
    if not _may_share_storage(members):
        return None
    storage, agreeing_names = _common_storage(members)
    tied_tensors: dict[Any, Tensor] = {}
    for member in members:
        tied_tensor = evolve(member.tensor, storage=storage, offset=member.view.offset, stride=member.view.stride)
        if member.name not in agreeing_names and not same_rows(tied_tensor, member.tensor):
            return None
        tied_tensors[member.name] = tied_tensor
    return tied_tensors


def _may_share_storage(members: list[_Member]) -> bool:
    """Return whether tensors may be views of one storage, judging by types, shapes and places, not by elements."""
    element = members[0].tensor.element
    count = members[0].view.count
    # A storage is never larger than its tensors together: see `plan_views`. A file could claim any size.
    if count > sum(member.tensor.numel for member in members):
        return False
    for member in members:
        tensor = member.tensor
        view = member.view
        if view.count != count or tensor.element is not element:
            return False
        if view_fault(tensor.size, view.stride, view.offset, count, tensor.is_scalar):
            return False
    return True


def _common_storage(members: list[_Member]) -> tuple[Storage, set[Any]]:
    """Return a storage with the elements of tensors: without copying, if bytes in the file make it up; else in memory.

    Args:
        members: the tensors; they may share a storage, see `_may_share_storage`.

    Returns:
        The storage; and the names of tensors that certainly have its elements. Others may disagree with it.
    """
    first = members[0]
    pieces = _covering_pieces(members)
    span = _span_of_pieces(pieces) if pieces else None
    if span is None:
        return _assembled_storage(members), set()
    storage = Storage(first.tensor.element, first.view.count, span)
    # A piece that begins where its tensor does is all of the tensor, whose bytes of the file are then on the storage.
    return storage, {member.name for start, member in pieces if start == member.view.offset}


def _covering_pieces(members: list[_Member]) -> list[tuple[int, _Member]]:
    """Return pieces of tensors that make up their storage; empty if those that lie dense in it do not cover it.

    Returns:
        Of each piece its first element in the storage, and the tensor that has the elements from there on.
    """
    pieces: list[tuple[int, _Member]] = []
    end = 0
    # Of those that begin at one place, the largest covers most.
    for member in sorted(members, key=lambda member: (member.view.offset, -member.tensor.numel)):
        tensor = member.tensor
        view = member.view
        # Dense in the storage and in the file, so that a range of the one is a range of the other.
        if not is_dense(tensor.size, view.stride) or not is_dense(tensor.size, tensor.stride):
            continue
        if view.offset <= end < view.offset + tensor.numel:
            pieces.append((end, member))
            end = view.offset + tensor.numel
    count = members[0].view.count
    return pieces if end == count else []


def _span_of_pieces(pieces: list[tuple[int, _Member]]) -> Span | None:
    """Return the bytes of a storage, which are those of tensors in the file.

    Args:
        pieces: of the storage, at least one, see `_covering_pieces`.

    Returns:
        `None` if they are not all in the file, or differ in byte order or width.
    """
    parts: list[Piece] = []
    encodings: set[tuple[str, int]] = set()
    for start, member in pieces:
        tensor = member.tensor
        span = tensor.storage.data if tensor.storage is not None else None
        if not isinstance(span, Span):
            return None
        encodings.add((span.order, span.width))
        parts.append(_bytes_from(tensor, span, start - member.view.offset))
    if len(encodings) > 1:
        return None
    ((order, width),) = encodings
    first_source, _, _ = parts[0]
    # Pieces that follow one another in the file become one, and need no source of their own.
    source, offset = PiecesSource(first_source.name, parts).resolve(0)
    return Span(source, offset, width, order)


def _bytes_from(tensor: Tensor, span: Span, first: int) -> Piece:
    """Return where the bytes of a dense tensor are, from its element `first` on; `span` has those of its storage."""
    offset = span.offset + (tensor.offset + first) * span.width
    return span.source, offset, (tensor.numel - first) * span.width


def _assembled_storage(members: list[_Member]) -> Storage:
    """Return a storage in memory, into which the elements of the tensors are copied in turn; others are 0.

    Where they disagree, the last one counts; `_tied` compares them all with the result.

    Args:
        members: the tensors, whose views are inside the storage: see `_may_share_storage`.
    """
    element = members[0].tensor.element
    count = members[0].view.count
    array = np.zeros(count, element.code)
    for member in members:
        tensor = member.tensor
        strides = byte_strides(tensor.size, member.view.stride, array.itemsize)
        elements = np.lib.stride_tricks.as_strided(array[member.view.offset :], tensor.size, strides)
        elements[...] = tensor.array
    return Storage(element, count, array)


def same_rows(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and type have the same elements, bit for bit."""
    from ..values.compare import same_bytes  # which files without shared memory do not need

    return same_bytes(rows(one), rows(other))


# Bytes


def content(tensor: Tensor) -> Extent | Iterator[bytes | memoryview]:
    """Return a tensor's elements row by row, little-endian: where they are in a file, or pieces of bounded size."""
    storage = as_stored(tensor)
    extent = storage.extent() if storage is not None else None
    if extent is None:
        return rows(tensor)
    return extent


def tensor_of_bytes(
    source: ByteSource,
    start: int,
    nbytes: int,
    element: ElementType,
    shape: Sequence[int],
    *,
    path: str,
    limits: Limits,
    order: str = "little",
    by_columns: bool = False,
) -> Tensor:
    """Return the tensor whose elements are bytes of a file.

    Args:
        source: the file.
        start: offset of the first byte.
        nbytes: number of bytes.
        element: the element type.
        shape: of the tensor.
        path: of the tensor, for errors.
        limits: resource limits.
        order: byte order, `little` or `big`.
        by_columns: whether the elements are column by column, as Fortran has them; otherwise row by row.

    Raises:
        CorruptError: the bytes are not those of its shape.
        LimitError: it has too many dimensions.
    """
    dims = len(shape)
    if dims > limits.dimensions:
        text = "a tensor has too many dimensions"
        raise limits.exceeded("dimensions", text, offset=start, path=path, found=f"{dims}")
    count = math.prod(shape)
    wanted = count * element.itemsize
    if nbytes != wanted:
        text = "a tensor does not have the bytes of its shape"
        raise CorruptError(text, offset=start, path=path, expected=f"{wanted}", found=f"{nbytes}")
    stride = contiguous(shape[::-1])[::-1] if by_columns else contiguous(shape)
    storage = Storage(element, count, Span(source, start, element.itemsize, order))
    return Tensor(element, storage, tuple(shape), stride, is_scalar=not shape)


def compared(
    expected: Mapping[str, Tensor],
    by_library: Mapping[str, Any],
    described: Callable[[Any], tuple[Any, Any, bytes]],
    name_of_element: Callable[[Tensor], Any],
) -> list[str]:
    """Return how the tensors that another library reads differ from the expected ones.

    Args:
        expected: by name.
        by_library: the library's tensors by name.
        described: returns element type, shape and bytes of one of these.
        name_of_element: returns the library's name of a tensor's element type.

    Returns:
        One text for each tensor that is missing, unexpected or different; empty if all agree.
    """
    faults = [f"{name} is missing" for name in expected if name not in by_library]
    faults += [f"{name} is unexpected" for name in by_library if name not in expected]
    for name, tensor in expected.items():
        if name not in by_library:
            continue
        kind, shape, data = described(by_library[name])
        if (kind, tuple(shape)) != (name_of_element(tensor), tensor.shape):
            faults.append(f"{name} is {kind} of shape {shape}")
        elif data != b"".join(rows(tensor)):
            faults.append(f"{name} has different elements")
    return faults


def numpy_kind(tensor: Tensor) -> Any:
    """Return the element type that numpy has for a tensor."""
    return np.dtype(tensor.element.code)


def of_numpy(array: Any) -> tuple[Any, Any, bytes]:
    """Return element type, shape and bytes of an array, for `compared`."""
    return array.dtype, array.shape, array.tobytes()


# Metadata


def parse_views(text: str | bytes) -> dict[str, TensorView]:
    """Return the views in a file's metadata, by the names of the tensors.

    Args:
        text: JSON: an object with `views`, as `format_views` writes it; other entries are ignored.

    Raises:
        CorruptError: the metadata are invalid.
    """
    try:
        data = json.loads(text)
        return {str(name): TensorView.from_list(view) for name, view in data["views"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError("the metadata about shared memory cannot be read", found=str(error)) from error


def format_views(views: Mapping[str, TensorView]) -> str:
    """Return the views of tensors, by name, as metadata: JSON that `parse_views` reads."""
    return json.dumps({"views": {name: view.as_list() for name, view in views.items()}}, separators=(",", ":"))
