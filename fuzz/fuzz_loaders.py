"""Fuzz `scan` against loaders of containers: `torch.export.load` and `numpy.load`.

Each input is an archive of which some members are mutated, renamed or hold a further name; of arrays, some become
arrays of objects, whose elements are a pickle. The loader runs with unpicklers that record the names that they are
asked for and import none but those of tensors. The rule: of a file that `scan` calls clean, a loader asks for no names
but those that PyTorch's safe loader takes. Each archive is clean before it is changed, or the rule would say nothing.

    python fuzz/fuzz_loaders.py export --count 20000
    TMPDIR=/dev/shm python fuzz/fuzz_loaders.py numpy --count 20000 --seed 7
"""

from __future__ import annotations

import argparse
import io
import pickle
import random
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from differential import _INERT
from fuzz_mutate import mutate
from fuzz_workers import in_workers, tally, write_finding

import t7bridge
from t7bridge.errors import T7BridgeError
from t7bridge.formats import WEIGHTS_ONLY

Files = dict[str, bytes]
"""The members of a container by their names."""
_CALLS = (b"cos\nsystem\n0", b"cposix\nsystem\n(tR0", b"\x8c\x08builtins\x8c\x04exec\x930", b"cbuiltins\neval\n0")
_UNPICKLER = pickle.Unpickler
_asked: list[tuple[str, str]] = []


class _Inert:
    """Stands for every class and function that is not one of tensors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Inert()


class _Recording(_UNPICKLER):  # type: ignore[misc, valid-type]
    """CPython's unpickler, which records the names that it is asked for."""

    def find_class(self, module: str, name: str) -> Any:
        _asked.append((module, name))
        tensors = module == "torch" and name.endswith(("Storage", "Tensor")) and name[0].isupper()
        known = tensors or (module, name) in _INERT or module.startswith("numpy")
        return super().find_class(module, name) if known else _Inert


def _load(file: Any, **options: Any) -> Any:
    return _Recording(file, **options).load()


def _loads(data: Any, **options: Any) -> Any:
    return _Recording(io.BytesIO(data), **options).load()


def _read_export(path: Path) -> None:
    from torch.export.pt2_archive._package import load_pt2

    load_pt2(str(path))


def _read_numpy(path: Path) -> None:
    with np.load(path, allow_pickle=True) as file:
        for name in file.files:
            try:
                file[name]
            except Exception:
                continue


def _members(data: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zipped(files: Files) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


def _seeds(target: str) -> Iterator[Files]:
    if target == "numpy":
        pairs = np.array([(1, 2.5), (3, 4.5)], [("number", "<i4"), ("weight", "<f8")])
        for values in (np.arange(3), np.ones((2, 3), np.float32, order="F"), np.array(["cat", "dog"]), pairs):
            file = io.BytesIO()
            np.savez(file, plain=np.arange(4, dtype=np.uint8), values=values, scalar=np.float64(3))
            yield _members(file.getvalue())
    else:
        program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(2, 2)), (torch.ones(1, 2),))
        file = io.BytesIO()
        torch.export.save(program, file)
        yield _members(file.getvalue())


_OBJECT_TYPES = (
    *("'|O'", "'O'", "'O8'", "'object'", "'=O'", "u'|O'", "'<O8'", "'i4,O'", "'2O'", "'(2,)O'", "'f4, O, O'"),
    *("[('a', '|O')]", "[('a', '<i4'), ('b', 'O')]", "[('a', [('b', '|O')])]", "[('a', 'O', (2,))]"),
    *("('|O', (2,))", "('|O', {})", "('<f4', {'metadata': 1})", "[(('title', 'a'), '|O')]"),
    *("{'names': ['a'], 'formats': ['O']}", "'V8'", "'|V8'", "'<f8'", "'<i4'"),
)
"""Types of elements as headers of arrays describe them: most are of objects, in some release of numpy."""


def _of_objects(choose: random.Random) -> bytes:
    """Return the file of an array whose elements are a pickle, under a header of an odd form."""
    pieces = [
        f"'descr': {choose.choice(_OBJECT_TYPES)}",
        f"'fortran_order': {choose.choice(('False', 'True'))}",
        f"'shape': {choose.choice(('()', '(1,)', '(1L,)', '(0,)', '(2, 1)'))}",
    ]
    if choose.random() < 0.2:
        choose.shuffle(pieces)
    text = choose.choice(("", "", " ", "\t")) + "{" + ", ".join(pieces) + choose.choice((", }", "}"))
    header = text.encode() + b" " * choose.choice((0, 20, 20, 20, 9_990, 20_000)) + b"\n"
    major = choose.choice((1, 1, 1, 2, 3))
    length = len(header).to_bytes(2 if major == 1 else 4, "little")
    start = b"\x93NUMPY" + bytes([major, choose.choice((0, 0, 0, 1))]) + length
    value = choose.choice(([None], {"a": 1}, np.array(["x", None], object)))
    return start + header + _injected(pickle.dumps(value, choose.choice((0, 2, 4))), choose)


def _injected(data: bytes, choose: random.Random) -> bytes:
    """Put a name into one of the pickles in a member, at any depth."""
    try:
        files = _members(data)
    except Exception:  # no archive, or one that was changed before
        files = {}
    if files:
        name = choose.choice([name for name in files if name.endswith(".pkl")] or list(files))
        return _zipped({**files, name: _injected(files[name], choose)})
    starts = [place for place in range(len(data) - 1) if data[place] == 0x80 and 2 <= data[place + 1] <= 5]
    place = choose.choice(starts) + 2 if starts else choose.randrange(len(data) + 1)
    return data[:place] + choose.choice(_CALLS) + data[place:]


def _changed(files: Files, choose: random.Random) -> Files:
    made = dict(files)
    for _ in range(choose.choice((1, 1, 2, 3))):
        name = choose.choice(list(made))
        how = choose.random()
        if made[name].startswith(b"\x93NUMPY") and choose.random() < 0.4:
            made[name] = _of_objects(choose)
        elif how < 0.25:
            made[name] = _injected(made[name], choose)
        elif how < 0.75:
            made[name] = mutate(made[name], choose.choice(list(files.values())), choose)
        elif how < 0.9:
            other = choose.choice((name.swapcase(), name + ".npy", name.removesuffix(".npy"), name + "/a", "x/" + name))
            made[other] = made[name] if choose.random() < 0.5 else made.pop(name)
        else:
            made[name] = made[choose.choice(list(made))]
    return made


LOADERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "export": (".pt2", _read_export),
    "numpy": (".npz", _read_numpy),
}


def compare(target: str, files: Files) -> str:
    """Scan a container and let its loader read it; return the verdict, or names that `scan` does not tell."""
    suffix, read = LOADERS[target]
    folder = Path(tempfile.mkdtemp())
    path = folder / f"a{suffix}"
    try:
        path.write_bytes(_zipped(files))
        try:
            report = t7bridge.scan(path)
        except T7BridgeError:
            return "refused"
        if not report.clean:
            return "alarm"
        _asked.clear()
        try:
            read(path)
        except RecursionError:
            raise
        except Exception:  # loaders raise anything for damaged files
            pass
        told = [f"{module}.{name}" for module, name in _asked if f"{module}.{name}" not in WEIGHTS_ONLY]
        return f"DIFFERENT: clean, and the loader asks for {told[:5]}" if told else "clean"
    except (OSError, ValueError):  # a name that no file can have
        return "refused"
    finally:
        shutil.rmtree(folder)


def main(arguments: list[str] | None = None) -> int:
    """Run the fuzzer; exit code 1 if a loader asked for a name that `scan` did not tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=LOADERS)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    seeds = list(_seeds(options.target))
    pickle.Unpickler, pickle.load, pickle.loads = _Recording, _load, _loads  # type: ignore[misc, assignment]

    def made(number: int) -> Files:
        choose = random.Random(f"{options.target} {options.seed} {number}")
        return _changed(choose.choice(seeds), choose)

    def store(number: int) -> Path:
        return write_finding(options.findings, f"{options.target}-{options.seed}-{number}.zip", _zipped(made(number)))

    unchanged = [compare(options.target, files) for files in seeds]
    if set(unchanged) != {"clean"}:
        sys.exit(f"before any change: {unchanged}")
    answers = in_workers(options.count, lambda number: compare(options.target, made(number)))
    counts = tally(options.target, answers, store, every=5_000)
    return int(any(kind not in ("alarm", "clean", "refused") for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
