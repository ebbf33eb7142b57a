"""What a hostile file may cost. Defaults that no real model meets."""

from __future__ import annotations

from attrs import define


@define(frozen=True)
class Limits:
    """Ceilings for reading one file; a reader that meets one raises `LimitError`.

    Attributes:
        objects: how many tables, tensors, storages, objects and functions a file may hold.
        depth: how deep values may be nested.
        payload_depth: how deep objects whose class reads a payload of its own may be nested in one another.
        dimensions: how many dimensions a tensor may have.
        pickle_operations: how many operations the pickles of one file may have together.
        inflate_ratio: how many times its own size the deflated members of an archive may grow to.
        inflate_bytes: what they may grow to in any case.
        repeated_nodes: how often, in total, a description or a state dict may repeat what is shared in the file.
    """

    objects: int = 100_000_000
    depth: int = 1_000_000
    payload_depth: int = 64
    dimensions: int = 1_000
    pickle_operations: int = 20_000_000
    inflate_ratio: int = 100
    inflate_bytes: int = 1 << 28
    repeated_nodes: int = 1_000_000


DEFAULT_LIMITS = Limits()
