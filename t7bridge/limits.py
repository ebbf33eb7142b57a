"""Resource limits for untrusted input, and the work counter. No real model reaches the defaults."""

from typing import Any, NamedTuple

from .errors import LimitError

OBJECT_BYTES = 256
"""Minimum memory of an object of a file, in bytes, for `Limits.allocated_bytes`."""
BYTES_PER_STEP = 64
"""Bytes allocated that count as one step of `Limits.work`."""
STEPS_PER_NODE = 10
"""Steps of `Limits.work` that repeating a shared value costs."""


class Limits(NamedTuple):
    """Resource limits for reading one file; a reader that exceeds one raises `LimitError`.

    Raise one with `Limits(objects=…)` in Python and `--limit objects=…` on the command line.

    Attributes:
        objects: number of tables, tensors, storages, objects and functions of a `.t7`.
        depth: nesting depth of values in a `.t7`.
        payload_depth: nesting depth of objects whose class reads a payload of its own.
        dimensions: dimensions of a tensor.
        string_bytes: length of a string, or of the code of a function.
        allocated_bytes: memory for the values of a file without their weights, at 256 bytes an object or operation;
            weights stay in the file.
        pickle_operations: operations of each pickle, or chain of pickles, of a file.
        inflated_operations: operations of a deflated pickle for each byte of the file, beyond 500 000.
        following_pickles: pickles that follow the value of a `.pt`, which programs may load one after another.
        nested_files: nesting of a `.pt` inside a pickle inside a `.pt`.
        module_depth: nesting depth of the modules of a `.pt`, whose keys grow with every level.
        archive_members: members of an archive.
        inflate_ratio: total size of the deflated members of an archive, as a multiple of its own size.
        inflate_bytes: total size that deflated members may reach in any case.
        header_bytes: size of a description in JSON: the header of safetensors, the index of shards, the graph of a
            `.pt2`, and the inflated metadata of an `.npz`.
        library_seconds: time of the processor that the HDF5 library may take to list a file, or to read a part of a
            data set, beyond 4 seconds for each megabyte of the file; of the clock, 10 seconds more.
        library_bytes: memory that the HDF5 library may allocate.
        name_chars: characters of all names and paths of one model; deep nesting makes every name long.
        searched_values: values that are searched for tensors and modules in objects of classes without an entry.
        blocks: blocks of a picture; `inspect` shows no structure of a larger model.
        repeats: total size of the tensors that are written by name, as to a `.safetensors`, as a multiple of the bytes
            that they view, beyond 64 megabytes.
        work: steps that one task (comparing, describing, drawing, generating, building a module) may take beyond what
            the size of its input explains: repeating a shared value of the file counts as ten, 64 bytes allocated that
            are not in the file as one.
    """

    objects: int = 100_000_000
    depth: int = 1_000_000
    payload_depth: int = 64
    dimensions: int = 1_000
    string_bytes: int = 1 << 30
    allocated_bytes: int = 1 << 34
    pickle_operations: int = 20_000_000
    inflated_operations: int = 4
    following_pickles: int = 1_000
    nested_files: int = 4
    module_depth: int = 1_000
    archive_members: int = 1_000_000
    inflate_ratio: int = 100
    inflate_bytes: int = 1 << 28
    header_bytes: int = 100_000_000
    library_seconds: int = 1
    library_bytes: int = 1 << 31
    name_chars: int = 1 << 26
    searched_values: int = 30_000_000
    blocks: int = 20_000
    repeats: int = 16
    work: int = 1_000_000

    def exceeded(self, limit: str, message: str, **where: Any) -> LimitError:
        """Return the error for a file that exceeds a limit, by the name of its field."""
        return LimitError(message, limit=limit, value=getattr(self, limit), **where)

    def __repr__(self) -> str:
        changed = [
            f"{name}={limit!r}"
            for (name, default), limit in zip(self._field_defaults.items(), self, strict=True)
            if limit != default
        ]
        return f"Limits({', '.join(changed)})"


DEFAULT_LIMITS = Limits()


class Inflation:
    """The bytes that the compressed parts of a file may become, all together.

    Args:
        size: of the file, in bytes.
        limits: resource limits.

    Attributes:
        bytes_left: bytes that may still be produced.
    """

    def __init__(self, size: int, limits: Limits) -> None:
        self._limits = limits
        self.bytes_left = max(limits.inflate_bytes, limits.inflate_ratio * size)

    def spend(self, nbytes: int, what: str, **where: Any) -> None:
        """Charge the bytes that a part becomes.

        Args:
            nbytes: number of bytes.
            what: names the part, for the error: `the pickle`.
            **where: its place, as the fields of the error.

        Raises:
            LimitError: the total exceeds the limits.
        """
        self.bytes_left -= nbytes
        if self.bytes_left < 0:
            expected = (
                f"at most {self._limits.inflate_ratio} times the file's size (the limit inflate_ratio), or "
                f"{self._limits.inflate_bytes} bytes (the limit inflate_bytes), of all together"
            )
            message = f"{what} would grow too large when inflated"
            raise self._limits.exceeded("inflate_ratio", message, expected=expected, found=f"{nbytes} bytes", **where)


class Budget:
    """Counter of the work of one task, bounded by `Limits.work`.

    Linear work is free: a task charges the steps that sharing, repetition or a number in the file asks for, or
    declares with `free` how many steps its input explains and charges every step.

    Args:
        limits: the limits of the file.
        task: named in the error: `comparing the values`.
        free: steps that the size of the input accounts for.

    Example:
        >>> budget = Budget(Limits(work=10), "drawing the model", free=5)
        >>> budget.spend(15)
        >>> budget.steps_left
        0
    """

    __slots__ = ("_limit", "_task", "steps_left")

    def __init__(self, limits: Limits = DEFAULT_LIMITS, task: str = "this", free: int = 0) -> None:
        self.steps_left = limits.work + free
        """Steps that may still be taken."""
        self._task = task
        self._limit = limits.work

    def spend(self, steps: int = 1, path: str = "") -> None:
        """Charge steps.

        Args:
            steps: number of steps.
            path: path inside the value, for the error.

        Raises:
            LimitError: the total exceeds the limit.
        """
        self.steps_left -= steps
        if self.steps_left < 0:
            raise LimitError(
                f"{self._task} takes more work than the size of the file explains",
                path=path,
                limit="work",
                value=self._limit,
                expected=f"at most {self._limit:,} steps beyond it (the limit work)".replace(",", " "),
            )

    def allocate(self, nbytes: int, stored: int = 0, path: str = "") -> None:
        """Charge bytes that are about to be allocated.

        Args:
            nbytes: number of bytes.
            stored: number of them that the file holds; these are free.
            path: path inside the value, for the error.

        Raises:
            LimitError: the total exceeds the limit, at 64 bytes a step.
        """
        if nbytes > stored:
            self.spend((nbytes - stored) // BYTES_PER_STEP + 1, path)
