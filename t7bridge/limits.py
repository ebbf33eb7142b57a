"""Resource limits for untrusted input, and the counter of work. No real model meets the defaults."""

from __future__ import annotations

from attrs import fields

from .data import define
from .errors import LimitError

OBJECT_BYTES = 256
"""Least memory of an object of a file, in bytes, for `Limits.allocated_bytes`."""
BYTES_PER_STEP = 64
"""Bytes made in memory that count as one step of `Limits.work`."""
STEPS_PER_NODE = 10
"""Steps of `Limits.work` that repeating a shared value counts as."""


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
        work: steps that one task (comparing, describing, drawing, generating, building a module) may take beyond what
            the size of its input explains: a value of the file that is repeated since it is shared counts as ten, 64
            bytes that are made in memory without standing in the file as one.
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
    work: int = 1_000_000

    def __repr__(self) -> str:
        changed = [each for each in fields(Limits) if getattr(self, each.name) != each.default]
        return f"Limits({', '.join(f'{each.name}={getattr(self, each.name)!r}' for each in changed)})"


DEFAULT_LIMITS = Limits()


class Budget:
    """Counter of the work that one task may do, `Limits.work`.

    Linear work is free: a task charges the steps that sharing, repetition or a number in the file asks for, or
    declares with `free` how many steps its input explains and charges every step.

    Args:
        limits: the limits of the file.
        task: named in the error: `comparing the values`.
        free: steps that the size of the input explains.

    Example:
        >>> budget = Budget(Limits(work=10), "drawing the model", free=5)
        >>> budget.spend(15)
        >>> budget.left
        0
    """

    __slots__ = ("_limit", "_task", "left")

    def __init__(self, limits: Limits = DEFAULT_LIMITS, task: str = "this", free: int = 0) -> None:
        self.left = limits.work + free
        """Steps that may still be taken."""
        self._task = task
        self._limit = limits.work

    def spend(self, steps: int = 1, path: str = "") -> None:
        """Charge steps.

        Args:
            steps: how many.
            path: path inside the value, for the error.

        Raises:
            LimitError: more than the limit in total.
        """
        self.left -= steps
        if self.left < 0:
            raise LimitError(
                f"{self._task} takes more work than the size of the file explains",
                path=path,
                limit="work",
                value=self._limit,
                expected=f"at most {self._limit:,} steps beyond it (the limit work)".replace(",", " "),
            )

    def allocate(self, nbytes: int, stored: int = 0, path: str = "") -> None:
        """Charge bytes that are about to be made in memory.

        Args:
            nbytes: how many will be made.
            stored: how many of them the file holds; these are free.
            path: path inside the value, for the error.

        Raises:
            LimitError: more than the limit in total, at 64 bytes a step.
        """
        if nbytes > stored:
            self.spend((nbytes - stored) // BYTES_PER_STEP + 1, path)
