"""Fuzz `scan` against loaders of containers: `torch.export.load`, `torch.distributed.checkpoint` and `numpy.load`.

Each input is an archive or folder of which some members are mutated, renamed or hold a further name. The loader runs
with unpicklers that record the names that they are asked for and import none but those of tensors. The rule: of a file
that `scan` calls clean, a loader asks for no names but those that PyTorch's safe loader takes.

    python fuzz/fuzz_loaders.py export --count 20000
    TMPDIR=/dev/shm python fuzz/fuzz_loaders.py distributed --count 20000 --seed 7
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
from differential import _INERT, TESTFILES
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
        known = tensors or (module, name) in _INERT or module.startswith(("torch.distributed.checkpoint.", "numpy"))
        return super().find_class(module, name) if known else _Inert


def _load(file: Any, **options: Any) -> Any:
    return _Recording(file, **options).load()


def _loads(data: Any, **options: Any) -> Any:
    return _Recording(io.BytesIO(data), **options).load()


def _read_export(path: Path) -> None:
    from torch.export.pt2_archive._package import load_pt2

    load_pt2(str(path))


def _read_distributed(path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    metadata = FileSystemReader(path).read_metadata()
    for place in metadata.storage_data.values():
        with (path / place.relative_path).open("rb") as file:
            file.seek(place.offset)
            torch.load(io.BytesIO(file.read(place.length)), weights_only=True, map_location="cpu")


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
    if target == "distributed":
        for folder in ("single",):
            yield {path.name: path.read_bytes() for path in sorted((TESTFILES / "distributed" / folder).iterdir())}
    elif target == "numpy":
        for value in (np.array([{"a": 1}, [2], None], object), np.array(["x", np.float64(3)], object)):
            file = io.BytesIO()
            np.savez(file, plain=np.arange(3), objects=value, more=value[:1])
            yield _members(file.getvalue())
    else:
        program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(2, 2)), (torch.ones(1, 2),))
        file = io.BytesIO()
        torch.export.save(program, file)
        yield _members(file.getvalue())


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
        if how < 0.25:
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
    "distributed": ("", _read_distributed),
    "numpy": (".npz", _read_numpy),
}


def compare(target: str, files: Files) -> str:
    """Scan a container and let its loader read it; return the verdict, or names that `scan` does not tell."""
    suffix, read = LOADERS[target]
    folder = Path(tempfile.mkdtemp())
    path = folder / f"a{suffix}"
    try:
        if suffix:
            path.write_bytes(_zipped(files))
        else:
            for name, content in files.items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
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

    print("unchanged:", [compare(options.target, files) for files in seeds], flush=True)
    answers = in_workers(options.count, lambda number: compare(options.target, made(number)))
    counts = tally(options.target, answers, store, every=5_000)
    return int(any(kind not in ("alarm", "clean", "refused") for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
