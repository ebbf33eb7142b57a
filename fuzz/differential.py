"""Differential fuzzing of the `.pt` readers: CPython's C unpickler, and PyTorch's own loader with `weights_only=True`.

`pickles` mutates data-only pickles and compares the results of `Unpickler` and `_pickle.Unpickler`, whose
`find_class` and `persistent_load` return inert stand-ins. `archives` mutates whole files of `torch.save` and compares
the results of `PtReader` and `torch.load(weights_only=True)`.

The rule: a file that both accept must have one value. Inputs that we refuse are
not passed to the reference reader, which some of them would keep busy forever. Inputs that only we accept are harmless
if no other
reader takes the file, and is counted.

    python fuzz/differential.py pickles --count 300000
    python fuzz/differential.py archives --count 300000 --seed 7
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pickle
import random
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz_mutate import mutate, overwrite
from fuzz_workers import in_workers

from t7bridge.errors import T7BridgeError
from t7bridge.formats.pt.pickle.unpickler import Unpickler
from t7bridge.formats.pt.reader import PtReader
from t7bridge.graph.python import PythonGlobal, PythonObject
from t7bridge.graph.tensor import Tensor
from t7bridge.io.source import ByteSource
from t7bridge.limits import DEFAULT_LIMITS

TESTFILES = Path(__file__).resolve().parent.parent / "testfiles"
_DEEPEST = 200
_LARGEST = 8_000
_MOST_VALUES = 50_000
_SKETCHED = 60
_REFEREE_BYTES = 1 << 28


class Difference(AssertionError):
    """Both readers accept the input, but disagree about its value."""


# One text for a value, whichever reader made it


class _Writer:
    """Writes values as text; shared and cyclic values by number, as each reader shares them."""

    def __init__(self, leaf: Callable[[Any], list[Any] | None]) -> None:
        self._leaf = leaf
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._left = _MOST_VALUES

    def text(self, value: Any, depth: int = 0) -> str:
        """Return the text of a value."""
        if value is None or isinstance(value, (bool, int, str, bytes)):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, (float, complex)):
            return f"{type(value).__name__}:{value!r}"
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:  # tuples are written at each occurrence, possibly endlessly
            return "deep"
        if id(value) in self._seen and type(value) is not tuple:
            return f"#{self._seen[id(value)]}"
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        parts = self._leaf(value)
        if parts is None:
            parts = self._container(value)
        head, *rest = parts
        return f"{head}({', '.join(self.text(part, depth + 1) for part in rest)})"

    def _container(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            pairs = [*value.items(), *sorted(getattr(value, "__dict__", {}).items())]
            return [type(value).__name__, *(part for pair in pairs for part in pair)]
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *value]
        if isinstance(value, (set, frozenset)):
            return [type(value).__name__, *sorted(value, key=self._sketch)]
        if isinstance(value, bytearray):
            return ["bytearray", bytes(value)]
        return [f"other {type(value).__name__}"]

    def _sketch(self, item: Any) -> list[str]:
        """Return the first values of an element of a set, to sort the elements independently of the reader."""
        words: list[str] = []
        waiting = [item]
        for _ in range(_SKETCHED):
            if not waiting:
                break
            value = waiting.pop()
            simple = value is None or isinstance(value, (bool, int, float, complex, str, bytes))
            parts = [f"{type(value).__name__}:{value!r}"] if simple else self._leaf(value)
            if parts is None:
                is_set = isinstance(value, (set, frozenset))
                parts = [f"{type(value).__name__}{len(value)}"] if is_set else self._container(value)
            words.append(str(parts[0]))
            waiting.extend(reversed(parts[1:_SKETCHED]))
        return words


# CPython's C unpickler


class _Named:
    """A global, by its name; calling it creates an inert object."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Made(self, args, kwargs)


class _Made:
    """The result of a call."""

    def __init__(self, made_by: Any, args: Any, kwargs: Any = None) -> None:
        self.made_by, self.args, self.kwargs = made_by, args, kwargs
        self.items: list[Any] = []
        self.pairs: list[Any] = []
        self.states: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        if self.states:
            raise pickle.UnpicklingError("two states")
        self.states.append(state)

    def extend(self, items: Any) -> None:
        """Store the items of APPENDS."""
        self.items.extend(items)

    def append(self, item: Any) -> None:
        """Store the item of APPEND."""
        self.items.append(item)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))


class _Id:
    """The object of a persistent id."""

    def __init__(self, saved_id: Any) -> None:
        self.saved_id = saved_id


class _CUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        if key not in self.known:
            self.known[key] = _Named(module, name)
        return self.known[key]

    def persistent_load(self, pid: Any) -> Any:
        return _Id(pid)

    known: dict[tuple[str, str], _Named]


class _Inert:
    """The meaning of names for our unpickler."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], PythonGlobal] = {}

    def find(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            self.known[module, name] = PythonGlobal(module, name)
        return self.known[module, name]

    def make(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        if not isinstance(constructor, PythonGlobal) or not isinstance(args, tuple) or how.startswith("newobj"):
            raise T7BridgeError("is not a call that the referee supports")
        return PythonObject(constructor, how, args, kwargs)

    def build(self, value: Any, state: Any) -> Any:
        if not isinstance(value, PythonObject) or value.state is not UNSET_STATE:
            raise T7BridgeError("is not a state that the referee supports")
        value.state = state
        return value

    def persistent(self, saved_id: Any) -> Any:
        return _Id(saved_id)


UNSET_STATE = PythonObject(None, "").state


def _ours_leaf(value: Any) -> list[Any] | None:
    if isinstance(value, PythonGlobal):
        return ["global", value.module, value.name]
    if isinstance(value, PythonObject):
        states = [] if value.state is UNSET_STATE else [value.state]
        return ["made", value.constructor, value.args, value.items, value.pairs, states]
    return ["id", value.saved_id] if isinstance(value, _Id) else None


def _theirs_leaf(value: Any) -> list[Any] | None:
    if isinstance(value, _Named):
        return ["global", value.module, value.name]
    if isinstance(value, _Made):
        return ["made", value.made_by, value.args, value.items, value.pairs, value.states]
    return ["id", value.saved_id] if isinstance(value, _Id) else None


def compare_pickle(data: bytes) -> str:
    """Read a pickle with both unpicklers.

    Returns:
        `both` or `ours`: the readers that accept it; `refused` if we do not, without running the reference reader.

    Raises:
        Difference: both accept it, with different values or ends.
    """
    ours: Any = None
    theirs: Any = None
    reader = Unpickler(ByteSource.from_bytes(data), 0, len(data), _Inert(), DEFAULT_LIMITS)
    try:
        ours = (reader.load(),)
    except T7BridgeError:
        return "refused"
    file = io.BytesIO(data)
    referee = _CUnpickler(file, fix_imports=False, encoding="utf-8")
    referee.known = {}
    try:
        theirs = (referee.load(),)
    except (RecursionError, MemoryError):
        raise
    except Exception:  # CPython raises anything for damaged pickles
        pass
    if theirs is None:
        return "ours"
    texts = _Writer(_ours_leaf).text(ours[0]), _Writer(_theirs_leaf).text(theirs[0])
    if texts[0] != texts[1]:
        raise Difference(f"ours {texts[0][:300]}\ntheirs {texts[1][:300]}")
    if file.tell() != reader.position:
        raise Difference(f"ours ends at {reader.position}, theirs at {file.tell()}")
    return "both"


# PyTorch's loader


def _torch_leaf(value: Any) -> list[Any] | None:
    import torch

    if isinstance(value, torch.Tensor):
        dense = value.detach()
        kind = str(dense.dtype)[6:]
        if dense.layout != torch.strided or dense.is_quantized:
            return ["special", kind]
        data = bytes(dense.contiguous().view(torch.uint8).flatten().tolist()) if dense.numel() and dense.dim() else b""
        if dense.numel() and not dense.dim():
            data = bytes(dense.reshape(1).view(torch.uint8).tolist())
        return ["tensor", kind, list(dense.shape), data, bool(value.requires_grad)]
    if isinstance(value, (torch.storage.TypedStorage, torch.UntypedStorage)):
        return ["storage"]
    if isinstance(value, torch.Size):
        return ["size", *value]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    is_name = type(value).__module__.startswith("torch") or isinstance(value, type) or callable(value)
    return ["constant"] if is_name else None


def _value_leaf(value: Any) -> list[Any] | None:
    from t7bridge.graph import python
    from t7bridge.graph.storage import Storage

    if isinstance(value, (python.QuantizedTensor, python.SparseTensor)):
        values = value.tensor if isinstance(value, python.QuantizedTensor) else value.values
        return ["special", values.element.name]
    if isinstance(value, Tensor):
        extras = value.extras
        if value.element.name.startswith(("complex", "q")) or (extras and (extras.conj or extras.neg)):
            return ["tensor", value.element.name, list(value.shape), None, value.requires_grad]
        data = value.numpy().tobytes() if value.size or value.is_scalar else b""
        return ["tensor", value.element.name, list(value.shape), data, value.requires_grad]
    if isinstance(value, (Storage, python.UntypedStorage)):
        return ["storage"]
    if isinstance(value, python.TorchSize):
        return ["size", *value]
    if isinstance(value, python.Device):
        return ["device", str(value)]
    return ["constant"] if isinstance(value, (PythonGlobal, PythonObject, python.TorchConstant)) else None


def compare_archive(data: bytes) -> str:
    """Read a file with both loaders.

    Returns:
        `both` or `ours`: the readers that accept it; `refused` if we do not, without running the reference reader.

    Raises:
        Difference: both accept it, with different values.
    """
    import torch

    ours: Any = None
    theirs: Any = None
    try:
        reader = PtReader(data)
        value = reader.read()
        ours = (_Writer(_value_leaf).text(value),)
    except T7BridgeError:
        return "refused"
    try:
        loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
        theirs = (_Writer(_torch_leaf).text(loaded),)
    except RecursionError:
        raise
    except Exception:  # PyTorch raises anything for damaged files
        pass
    if theirs is None:
        return "ours"
    if ours[0] != theirs[0] and "complex" not in ours[0]:
        raise Difference(f"ours {ours[0][:400]}\ntheirs {theirs[0][:400]}")
    return "both"


# Inputs


def pickle_seeds() -> Iterator[bytes]:
    """Return pickles of every protocol, and those of the corpus."""
    shared = [1, 2.5, "text"]
    value = {
        "a": shared, "b": (shared, {"c": None, 3: True}), "d": b"bytes" * 20, "e": {1, 2}, "f": frozenset({4}),
        "long": [2**70, -(2**63), 255, 65536, -1], "g": "\u20ac" * 70, "h": 0.1, "t": (1, 2, 3, 4), "x": "y" * 300,
    }  # fmt: skip
    for protocol in range(6):
        yield pickle.dumps(value, protocol)
        yield pickle.dumps([shared, "s" * 300, shared], protocol)
    yield b"(I1\nI-5\nL7L\nF1.5\nS'a\\x41b'\np0\nVtext\ng0\nI01\nI00\nlp3\n."
    yield b"(cmod\nname\nI1\noq\x00(I2\nimod\nname\ne]q\x01(h\x01e."
    for path in sorted(TESTFILES.glob("*/*.pt")):
        data = path.read_bytes()
        if data[:2] == b"PK":
            try:
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    data = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
            except Exception:
                continue
        if data[:1] == b"\x80" and len(data) < _LARGEST:
            yield data


def archive_seeds() -> Iterator[bytes]:
    """Return files of `torch.save` that the safe loader accepts."""
    for path in sorted(TESTFILES.glob("pt/*.pt")):
        if path.stat().st_size < _LARGEST and "torchscript" not in path.name and "tar" not in path.name:
            yield path.read_bytes()


TARGETS: dict[str, tuple[Callable[[bytes], str], Callable[[], Iterator[bytes]]]] = {
    "pickles": (compare_pickle, pickle_seeds),
    "archives": (compare_archive, archive_seeds),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one comparison; exit code 1 if the readers differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--input", type=Path, help="compare the readers of one file")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    compare, seeds = TARGETS[options.target]
    if options.input:
        print(compare(options.input.read_bytes()))
        return 0
    files = list(seeds())
    compare(files[0])  # so that no child loads PyTorch

    def made(number: int) -> bytes:
        choose = random.Random(f"{options.target} {options.seed} {number}")
        data, other = choose.choice(files), choose.choice(files)
        if data[:2] != b"PK" and choose.random() < 0.3:  # a file that is usually still readable
            return overwrite(data, choose)
        return mutate(data, other, choose)

    def judged(number: int) -> str:
        try:
            return compare(made(number))
        except (RecursionError, MemoryError):
            return "too much for the referee"
        except Difference as difference:
            return f"DIFFERENT: {difference}"

    counts: dict[str, int] = {}
    found = 0
    stop = time.monotonic() + options.seconds
    # CPython's memo is an array as long as the largest number in it.
    nbytes = _REFEREE_BYTES if options.target == "pickles" else 0
    for number, answer in in_workers(options.count, judged, nbytes=nbytes):
        kind = answer.partition(":")[0]
        if kind == "DIFFERENT" or kind.startswith(("killed", "ended")):
            found += 1
            data = made(number)
            options.findings.mkdir(parents=True, exist_ok=True)
            path = options.findings / f"{options.target}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
            path.write_bytes(data)
            print(f"{path}: {answer}", file=sys.stderr, flush=True)
        counts[kind] = counts.get(kind, 0) + 1
        if number % 20_000 == 19_999:
            print(number + 1, counts, flush=True)
        if time.monotonic() > stop:
            break
    print(options.target, sum(counts.values()), counts, flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
