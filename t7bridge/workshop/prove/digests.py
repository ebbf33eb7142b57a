"""Digests: fingerprints of the values in a model that tell them apart without storing them, and of its weights.

May import nothing of this room.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ...data import define

CLOSE = 1e-9
"""Largest difference of two values that are the same, relative to their norm: both are computed in double precision."""
_CHUNK = 1 << 16
"""Elements of a tensor that are digested at once."""

# Values


@define(eq=False)
class Digest:
    """A fingerprint of a tensor, which tells values apart without storing them.

    Attributes:
        numel: the number of elements.
        norm: the Euclidean norm.
        projection: the sum of the elements, each times a random number, relative to the norm; 0 if all are zeros.
    """

    numel: int
    norm: float
    projection: float

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Digest:
        """Return the digest of a tensor, which does not depend on its shape."""
        values = dense_reals(tensor.detach()).reshape(-1).double()
        norm = float(values.norm())
        # An element's factor is one random number for its place in a chunk, times one for the chunk. There are enough
        # of the latter for 2^32 elements, 32 GiB.
        random = _random_numbers()
        whole_chunks = len(values) // _CHUNK
        chunks = values[: whole_chunks * _CHUNK].view(whole_chunks, _CHUNK)
        rest = values[whole_chunks * _CHUNK :]
        projection = float(rest @ random[: len(rest)] * random[whole_chunks])
        if whole_chunks:
            projection += float((chunks @ random) @ random[:whole_chunks])
        return cls(len(values), norm, projection / norm if norm else 0.0)

    @property
    def is_finite(self) -> bool:
        """Whether all elements are numbers, and none is infinite, or so large that the norm is."""
        return isfinite(self.norm)

    def matches(self, other: Digest) -> bool:
        """Return whether two values are the same, apart from rounding in double precision.

        Values that are not finite match none, not even themselves: what a model makes of them says nothing.
        """
        if self.numel != other.numel or not self.is_finite or not other.is_finite:
            return False
        is_same_norm = abs(self.norm - other.norm) <= CLOSE * max(self.norm, other.norm)
        return is_same_norm and abs(self.projection - other.projection) <= CLOSE  # relative to the norm already


@cache
def _random_numbers() -> torch.Tensor:
    """Return the factors of a projection, the same in each process."""
    return torch.randn(_CHUNK, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def dense_reals(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose elements are all stored, as real numbers: two for each complex one, in a last dimension."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def match(values: list[Digest], others: list[Digest]) -> bool:
    """Return whether two lists of values are the same."""
    return len(values) == len(others) and all(map(Digest.matches, values, others))


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a value."""
    return [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]


def floats_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a value that are of a floating-point type."""
    return [item for item in tensors_of(value) if item.is_floating_point()]


def are_whole_numbers(value: Any) -> bool:
    """Return whether a value has tensors, and all their elements are whole numbers, of whatever type."""
    tensors = [dense_reals(item) for item in tensors_of(value)]
    return bool(tensors) and all(not item.is_floating_point() or torch.equal(item, item.round()) for item in tensors)


# Weights


def own_tensors(layer: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's own weights and statistics, by name."""
    tensors = {**dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers(recurse=False))}
    return {name: item for name, item in tensors.items() if item.is_floating_point() and item.numel()}


class Fingerprint(NamedTuple):
    """What tells weights apart, in whatever layout and order of their elements.

    Attributes:
        numel: the number of elements.
        bits: the sum of the bits of all elements, each a 64-bit integer.
    """

    numel: int
    bits: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Fingerprint:
        """Return the fingerprint of weights.

        The sum is kept for the next run of their layer, with the version of the tensor, which a change in place raises.
        """
        no_version = -1
        version, bits = _sums_of_bits.get(tensor, (no_version, 0))
        if version != tensor._version:
            bits = int(tensor.detach().double().contiguous().view(torch.int64).sum())
            _sums_of_bits[tensor] = tensor._version, bits
        return cls(tensor.numel(), bits)


_sums_of_bits: Any = WeakIdKeyDictionary()
"""By tensors, not by what they hold: their version, and the sum of their bits then."""
