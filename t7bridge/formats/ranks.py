"""Folders of the files that each process of `torch.distributed` saved: their parts of tensors are assembled.

A `DTensor` is divided along the dimensions of a grid of processes, one after the other: `Shard(d)` cuts what is left of
dimension d as `torch.chunk` does, `Replicate()` not at all. Source: PyTorch 2.13
`torch/distributed/tensor/_utils.py` `compute_local_shape_and_global_offset`.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from ..errors import CorruptError, UnknownFormatError, UnsupportedError
from ..graph.python import PythonObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path, entries, pairwise, walk
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..report import Note
from ..text import and_more
from .named import same_rows
from .pt.distributed import whole_of_chunks
from .pt.file import PtReader
from .pt.pickle.tensors import Part, check_whole, part_of
from .table import Document

_SCALARS = (bool, int, float, complex, str, bytes, type(None))


def read_folder(folder: PathLike, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a folder whose files are those of all processes.

    Raises:
        UnknownFormatError: its files are not parts of one value.
        UnsupportedError: files of processes are missing.
        FormatError: a file is damaged, or they contradict one another.
    """
    path = os.fspath(folder)
    readers = [PtReader(os.path.join(path, name), limits=limits) for name in sorted(os.listdir(path))]
    values = [reader.read() for reader in readers]
    names = dict.fromkeys(name for reader in readers for name in reader.foreign)
    foreign = [name for name in names if not name.startswith("torch.distributed.")]
    joined = _Joined(path, values, limits)
    value = joined.run()
    return Document(
        "ranks",
        readers[0].source,
        lambda: [value],
        content=lambda: SimpleNamespace(foreign=foreign),
        notes=joined.notes,
    )


class _Joined:
    """The value of the first process, with the tensors of all.

    Args:
        folder: for messages.
        values: of the processes.
        limits: resource limits.

    Attributes:
        notes: values of other processes that are not those of the first, which are used.
    """

    def __init__(self, folder: str, values: list[Any], limits: Limits) -> None:
        self._folder = folder
        self._values = values
        self._budget = Budget(limits, "comparing the parts of tensors")
        self._parts: dict[int, list[Part]] = {}
        """The parts of a tensor, by the identity of the first."""
        self._different: list[str] = []
        self.notes: list[Note] = []

    def run(self) -> Any:
        """Return the value."""
        found = [next((part for each in walk(value) if (part := part_of(each.value))), None) for value in self._values]
        ranks = {part.rank for part in found if part is not None}
        if None in found:
            hint = "Give the path of a file. A folder with the files of all processes, and no other, is read too."
            raise UnknownFormatError("is not a regular file", file=self._folder, hint=hint)
        first, total = self._values[0], max(part.ranks for part in found if part is not None)
        missing = sorted(set(range(total)) - ranks)
        if missing or len(found) != total:
            raise UnsupportedError(
                f"{len(found)} files hold the parts of {total} processes",
                file=self._folder,
                found=f"no file of rank {missing[0]}" if missing else "several files of one rank",
                hint="The folder needs the file of each process, and no other.",
            )
        for value, part in zip(self._values[1:], found[1:]):
            self._seen: set[int] = set()
            pairwise(first, value, self._compare)
            if self._different and part is not None:
                count = len(self._different)
                more = and_more(count - 1)
                message = f"that of rank {part.rank} is another than that of the first, and left out{more}"
                self.notes.append(Note("warning", self._different[0], message, code="left-out", count=count))
            self._different = []
        made = {
            id(path.value): _assembled(self._parts[id(path.value)], len(found), path.text(), self._budget)
            for path in walk(first)
            if id(path.value) in self._parts
        }
        for container in walk(first):
            value = container.value.attributes if isinstance(container.value, PythonObject) else container.value
            if isinstance(value, (dict, list)):
                for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                    if id(item) in made:
                        value[key] = made[id(item)]
        check_whole(first)
        return first

    def _compare(self, path: Path, one: Any, other: Any) -> Any:
        """Collect parts of tensors and paths of differences; return the pairs inside."""
        if id(one) in self._seen and not isinstance(one, _SCALARS):
            return None
        self._seen.add(id(one))
        part, another = part_of(one), part_of(other)
        if part is not None and another is not None:
            self._parts.setdefault(id(one), [part]).append(another)
        elif isinstance(one, Tensor) and (another is not None or isinstance(other, Tensor)):
            # The part of the first process may be the whole.
            if another is None and not _same(one, other):
                self._different.append(path.text())
        elif type(one) is not type(other) or (isinstance(one, _SCALARS) and one != other and one == one):
            self._different.append(path.text())
        elif not isinstance(one, (Storage, *_SCALARS)):
            inside, others = (
                {key: item for key, item in entries(each) if isinstance(key, (str, int, float, bytes))}
                for each in (one, other)
            )
            only = [key for key in {**inside, **others} if (key in inside) != (key in others)]
            self._different += [Path(path, key).text() for key in only]
            return [(key, item, others[key]) for key, item in inside.items() if key in others]
        return None


def _assembled(parts: list[Part], processes: int, path: str, budget: Budget) -> Tensor:
    """Return the tensor that the processes' parts make up."""
    first = parts[0]
    if len(parts) != processes:
        raise CorruptError("is a part of a tensor in some files only", path=path)
    grid = [max(extents) + 1 for extents in zip(*(part.coordinate for part in parts))]
    chunks: dict[tuple[int, ...], Tensor] = {}
    for part in parts:
        if (part.size, part.cuts, len(part.coordinate)) != (first.size, first.cuts, len(first.cuts)):
            raise CorruptError("the processes do not agree on how it is divided", path=path)
        start, extent = [0] * len(part.size), list(part.size)
        for cut, count, number in zip(part.cuts, grid, part.coordinate):
            if cut is not None:
                step = -(-extent[cut] // count)
                start[cut] += min(number * step, extent[cut])
                extent[cut] = max(0, min(step, extent[cut] - number * step))
        if part.local.shape != tuple(extent):
            raise CorruptError("a part is not of the size that its place has", path=path,
                               expected=str(extent), found=str(list(part.local.shape)))  # fmt: skip
        known = chunks.setdefault(tuple(start), part.local) if 0 not in extent else part.local
        if known is not part.local and not _same(known, part.local):
            raise CorruptError("copies of one part differ", path=path)
    whole = whole_of_chunks(first.size, list(chunks.items()) or [((0,) * len(first.size), first.local)], path, budget)
    whole.requires_grad = first.requires_grad
    return whole


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.element, one.shape) == (other.element, other.shape) and same_rows(one, other)
