"""Every pair of formats that are written: tensors come through, with their sharing where the format can."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from helpers import TESTFILES
from looping import new_folder

import t7bridge
from t7bridge import Storage, Tensor
from t7bridge.formats import FORMATS

KINDS: dict[str, dict[str, Any]] = {
    **{name: {"suffix": spec.suffix[1:]} for name, spec in FORMATS.items() if spec.suffixes},
    "legacy": {"suffix": "pt", "pt_format": "legacy"},
}
PAIRS = list(product(KINDS, KINDS))
FEW = [
    "format/shared_across_objects.t7",
    "format/shared_evens.t7",
    "format/shared_flat_parameters.t7",
    "format/checkpoint.t7",
    "models/autoencoder_flat.t7",
]


def tensors(value: Any) -> dict[str, Tensor]:
    """The tensors with elements in a value, by their paths joined by dots."""
    found: dict[str, Tensor] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    seen: set[int] = set()
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, Storage):  # a tensor of one dimension where there are only tensors
            item = Tensor(item.element, item, (item.count,), (1,))
        if isinstance(item, Tensor):
            if item.numel:
                found[path.lstrip(".")] = item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, t7bridge.Table):
            whole = item.sequence()
            entries = list(enumerate(whole)) if whole is not None else list(item.items())
            waiting += [(f"{path}.{key}", inner) for key, inner in entries]
        elif isinstance(item, dict):
            waiting += [(f"{path}.{key}", inner) for key, inner in item.items()]
        elif isinstance(item, (list, tuple)):
            waiting += [(f"{path}.{key}", inner) for key, inner in enumerate(item)]
    return found


def shared(found: dict[str, Tensor]) -> set[frozenset[str]]:
    """The groups of paths whose tensors are views of one storage."""
    groups: dict[int, set[str]] = {}
    for path, tensor in found.items():
        groups.setdefault(id(tensor.storage), set()).add(path)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


NUMBERS = ("bool", "uint8", "int64", "float64")  # Lua has bytes for truth values


def convert(source: Path, kind: str, folder: Path, name: str) -> tuple[Path, t7bridge.Report]:
    """Convert a file without the record, by which a target would be the source's own bytes again."""
    options = dict(KINDS[kind])
    target = folder / f"{name}_{kind}.{options.pop('suffix')}"
    report = t7bridge.convert(source, target, record=False, **options)
    return target, report


def started(source: Path, folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """A file as a `.pt`, and its tensors."""
    start, _ = convert(source, "pt", folder, "start")
    return start, tensors(t7bridge.load(start))


def check(start: Path, wanted: dict[str, Tensor], first: str, second: str, folder: Path) -> None:
    """Compare what is in the second format with what went into the first."""
    middle, one = convert(start, first, folder, "middle")
    end, two = convert(middle, second, folder, "end")
    found = tensors(t7bridge.load(end))
    if set(wanted) == {""} and set(found) == {"root"}:  # the name that a tensor gets where there must be one
        found = {"": found["root"]}
    # Numbers are arrays of a `.npz`, and without the record they stay so.
    numbers = set(found) - set(wanted) if first == "npz" else set()
    assert all(len(found[path].shape) < 2 and found[path].dtype in NUMBERS for path in numbers)
    assert set(found) - numbers == set(wanted)
    found = {path: found[path] for path in wanted}
    for path, tensor in wanted.items():
        # Lua's tensors have a dimension at least, and without the record nothing says that there was none.
        shape = (1,) if tensor.is_scalar and "t7" in (first, second) else tensor.shape
        assert found[path].shape == shape, (first, second, path)
        assert found[path].dtype == tensor.dtype, (first, second, path)
        assert found[path].numpy().tobytes() == tensor.numpy().tobytes(), (first, second, path)
    apart = [note for note in (*one.notes, *two.notes) if note.code == "unshared"]
    assert shared(found) == shared(wanted) or apart
    assert not (apart and {first, second} <= {"t7", "pt", "legacy"}), "these have all sharing"


def corpus_files() -> list[Path]:
    """The files of the corpus, but for those of a class that must be registered first."""
    found = {*(TESTFILES / "format").glob("*.t7"), *(TESTFILES / "models").glob("*.t7")}
    return sorted(path for path in found if not path.name.startswith("object_custom_write"))


@pytest.mark.parametrize("name", FEW)
def test_tensors_come_through(subtests, name, tmp_path):
    """Names, shapes, element types, values and sharing are those of the source."""
    start, wanted = started(TESTFILES / name, tmp_path)
    assert wanted
    for pair in PAIRS:
        with subtests.test(pair=pair), new_folder(tmp_path) as folder:
            check(start, wanted, *pair, folder)


@pytest.mark.slow
def test_the_whole_corpus(subtests, tmp_path):
    """Each file of the corpus goes round through one pair after another, or has nothing that named formats hold."""
    with_tensors = 0
    for path in corpus_files():
        with subtests.test(path=path), new_folder(tmp_path) as case_folder:
            start, wanted = started(path, case_folder)
            for number in range(6 if wanted else 0):
                first, second = PAIRS[(len(path.name) + 7 * number) % len(PAIRS)]
                folder = case_folder / str(number)
                folder.mkdir()
                check(start, wanted, first, second, folder)
                with_tensors += 1
    assert with_tensors > 1000
