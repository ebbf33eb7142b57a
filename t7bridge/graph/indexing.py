"""Basic indexing of tensors, with numpy's rules."""

from __future__ import annotations

from typing import Any

from .show import short


def asks_for_view(key: Any) -> bool:
    """Return whether a key selects a view even if it has one element."""
    return key is Ellipsis or (isinstance(key, tuple) and any(each is Ellipsis or each is None for each in key))


def view_of(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, key: Any
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return sizes, strides and offset of the view that a key selects, as numpy's basic indexing does.

    Raises:
        IndexError: the key has more parts than the tensor has dimensions, or one is out of range.
        TypeError: a part is not an int, slice, `...` or None.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can contain only one ...")
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > len(size):
        raise IndexError(f"{used} indices for a tensor of {len(size)} dimensions")
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    new_size: list[int] = []
    new_stride: list[int] = []
    at = 0
    for part in parts:
        if part is Ellipsis:
            end = at + len(size) - used
            new_size += size[at:end]
            new_stride += stride[at:end]
            at = end
        elif part is None:
            new_size.append(1)
            new_stride.append(0)
        elif isinstance(part, slice):
            start, stop, step = part.indices(size[at])
            count = len(range(start, stop, step))
            new_size.append(count)
            new_stride.append(stride[at] * step)
            offset += start * stride[at] if count else 0
            at += 1
        else:
            if isinstance(part, bool) or not hasattr(part, "__index__"):
                raise TypeError(
                    f"a tensor is indexed by ints, slices, ... and None, not by {short(part)}; numpy() takes more"
                )
            number = part.__index__()
            if not -size[at] <= number < size[at]:
                raise IndexError(f"index {number} is out of range for a dimension of {size[at]}")
            offset += (number % size[at]) * stride[at]
            at += 1
    return tuple(new_size), tuple(new_stride), offset
