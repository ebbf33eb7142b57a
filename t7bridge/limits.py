"""What a hostile file may cost. Defaults that no real model meets."""

from __future__ import annotations

from .data import define

OBJECT_BYTES = 256
"""What an object of a file takes in memory, at least, for `Limits.allocated_bytes`."""


@define(frozen=True)
class Limits:
    """Ceilings for reading one file; a reader that meets one raises `LimitError`.

    Raise one with `Limits(objects=…)` in Python and `--limit objects=…` on the command line.

    Attributes:
        objects: how many tables, tensors, storages, objects and functions a `.t7` may hold.
        depth: how deep values of a `.t7` may be nested.
        payload_depth: how deep objects whose class reads a payload of its own may be nested in one another.
        dimensions: how many dimensions a tensor may have.
        string_bytes: how long one string may be, or the code of one function.
        allocated_bytes: what the values of a file may take in memory beside their weights, at 256 bytes an object or
            operation; weights stay in the file.
        pickle_operations: how many operations each pickle, or chain of pickles, of a file may have.
        inflated_operations: how many of them a deflated pickle may have for each byte of the file, beyond 500 000.
        nested_files: how often a `.pt` may stand inside a pickle inside a `.pt`.
        module_depth: how deep the modules of a `.pt` may be nested, whose keys grow with every level.
        archive_members: how many members an archive may have.
        inflate_ratio: how many times its own size the deflated members of an archive may grow to.
        inflate_bytes: what they may grow to in any case.
        repeated_nodes: how often, in total, a description or a state dict may repeat what is shared in the file.
    """

    objects: int = 100_000_000
    depth: int = 1_000_000
    payload_depth: int = 64
    dimensions: int = 1_000
    string_bytes: int = 1 << 30
    allocated_bytes: int = 1 << 34
    pickle_operations: int = 20_000_000
    inflated_operations: int = 4
    nested_files: int = 4
    module_depth: int = 1_000
    archive_members: int = 1_000_000
    inflate_ratio: int = 100
    inflate_bytes: int = 1 << 28
    repeated_nodes: int = 100_000


DEFAULT_LIMITS = Limits()
