"""Differential fuzzing of the `.pt` readers: CPython's C unpickler, and PyTorch's own loader in both modes.

`pickles` mutates data-only pickles and compares the results of `Unpickler` and `_pickle.Unpickler`, whose
`find_class` and `persistent_load` return inert stand-ins. `archives` (zip), `legacy` and `tar` mutate whole files of
`torch.save`, and compare the results of `PtReader` and `torch.load` of a file on disk, with `weights_only=True`, and
with `False` and an unpickler that knows nothing but the names of tensors, so that nothing can run.

The rule: a file that both accept must have one value. Inputs that we refuse are
not passed to the reference reader, which some of them would keep busy forever. Inputs that only we accept are harmless
if no other
reader takes the file, and is counted.

    python fuzz/differential.py pickles --count 300000
    python fuzz/differential.py archives --count 300000 --seed 7
    TMPDIR=/dev/shm python fuzz/differential.py tar --count 100000
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pickle
import random
import struct
import sys
import tarfile
import tempfile
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz_mutate import mutate, overwrite
from fuzz_workers import in_workers, is_finding, tally, write_finding

from t7bridge import PtReader, Tensor
from t7bridge.errors import T7BridgeError
from t7bridge.formats.pt.pickle.context import Origin, PickleContext
from t7bridge.formats.pt.pickle.unpickler import Unpickler
from t7bridge.graph.python import PythonGlobal, PythonObject
from t7bridge.io.source import ByteSource

TESTFILES = Path(__file__).resolve().parent.parent / "testfiles"
_DEEPEST = 200
_LARGEST = 8_000
_MOST_VALUES = 50_000
_SKETCHED = 60
_MOST_ELEMENTS = 1 << 20
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


class _Inert(PickleContext):
    """The meaning of names for our unpickler."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(Origin(source))
        self.known: dict[tuple[str, str], PythonGlobal] = {}

    def find_global(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            self.known[module, name] = PythonGlobal(module, name)
        return self.known[module, name]

    def value_of_call(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        if not isinstance(constructor, PythonGlobal) or not isinstance(args, tuple) or how.startswith("newobj"):
            raise T7BridgeError("is not a call that the referee supports")
        return PythonObject(constructor, how, args, kwargs)

    def set_state(self, value: Any, state: Any) -> Any:
        if not isinstance(value, PythonObject) or value.state is not UNSET_STATE:
            raise T7BridgeError("is not a state that the referee supports")
        value.state = state
        return value

    def fill(self, value: PythonObject) -> None:
        pass

    def value_of_id(self, saved_id: Any) -> Any:
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
    source = ByteSource.from_bytes(data)
    reader = Unpickler(source, 0, len(data), _Inert(source))
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
        if dense.numel() > _MOST_ELEMENTS:  # of stride 0
            return ["tensor", kind, list(dense.shape), None, bool(value.requires_grad)]
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
    from t7bridge import Storage
    from t7bridge.graph import python
    from t7bridge.graph.tensor import QuantizedTensor, SparseTensor, UntypedStorage

    if isinstance(value, (QuantizedTensor, SparseTensor)):
        values = value.tensor if isinstance(value, QuantizedTensor) else value.values
        return ["special", values.element.name]
    if isinstance(value, Tensor):
        if value.numel > _MOST_ELEMENTS or value.element.name.startswith(("complex", "q")):
            return ["tensor", value.element.name, list(value.shape), None, value.requires_grad]
        data = value.numpy().tobytes() if value.size or value.is_scalar else b""
        return ["tensor", value.element.name, list(value.shape), data, value.requires_grad]
    if isinstance(value, (Storage, UntypedStorage)):
        return ["storage"]
    if isinstance(value, python.TorchSize):
        return ["size", *value]
    if isinstance(value, python.Device):
        return ["device", str(value)]
    return ["constant"] if isinstance(value, (PythonGlobal, PythonObject, python.TorchConstant)) else None


_INERT = {
    ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor"), ("torch._utils", "_rebuild_parameter"),
    ("collections", "OrderedDict"), ("torch", "Size"), ("builtins", "set"), ("builtins", "list"), ("builtins", "dict"),
    ("torch.nn.parameter", "Parameter"), ("_codecs", "encode"), ("builtins", "bytearray"), ("builtins", "complex"),
}  # fmt: skip


class _OnlyTensors(pickle.Unpickler):
    """CPython's unpickler with the names of tensors alone."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _INERT or (
            module == "torch" and name.endswith(("Storage", "Tensor")) and name[0].isupper()
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not a name of tensors")


def _only_tensors() -> types.ModuleType:
    module = types.ModuleType("only_tensors")
    module.Unpickler = _OnlyTensors  # type: ignore[attr-defined]
    module.load = lambda file, **options: _OnlyTensors(file, **options).load()  # type: ignore[attr-defined]
    return module


def compare_archive(data: bytes) -> str:
    """Read a file with both loaders, PyTorch's in both modes.

    Returns:
        `both` or `ours`: the readers that accept it; `refused` if we do not, without running the reference reader.

    Raises:
        Difference: both accept it, with different values.
    """
    import torch

    try:
        value = PtReader(data).read()
        ours = _Writer(_value_leaf).text(value)
    except T7BridgeError:
        return "refused"
    accepted = False
    with tempfile.NamedTemporaryFile(
        suffix=".pt"
    ) as file:  # only of a file on disk, PyTorch tries to read a tar archive
        file.write(data)
        file.flush()
        for weights_only in (True, False):
            module = None if weights_only else _only_tensors()
            try:
                loaded = torch.load(file.name, weights_only=weights_only, map_location="cpu", pickle_module=module)
                if isinstance(loaded, torch.jit.ScriptModule):
                    state = loaded.state_dict()
                    value = {name: value.get(name) for name in state}
                    loaded, ours = dict(state), _Writer(_value_leaf).text(value)
                theirs = _Writer(_torch_leaf).text(loaded)
            except RecursionError:
                raise
            except Exception:  # PyTorch raises anything for damaged files
                continue
            accepted = True
            if ours != theirs and "complex" not in ours:
                raise Difference(f"weights_only={weights_only}\nours {ours[:400]}\ntheirs {theirs[:400]}")
    return "both" if accepted else "ours"


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
        data = path.read_bytes()
        if len(data) < _LARGEST and "torchscript" not in path.name and data[:2] == b"PK":
            yield data


def legacy_seeds() -> Iterator[bytes]:
    """Return files of PyTorch 0.2 to 1.5."""
    for path in sorted(TESTFILES.glob("pt/*.legacy.pt")):
        if path.stat().st_size < _LARGEST:
            yield path.read_bytes()


def tar_seeds() -> Iterator[bytes]:
    """Return files of PyTorch 0.1."""
    for path in sorted(TESTFILES.glob("pt/tar_*.pt")):
        yield path.read_bytes()


def change_tar(data: bytes, choose: random.Random) -> bytes:
    """Change members of a tar archive, insert what other readers obey, and correct the checksums mostly."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [[bytearray(info.tobuf()[-512:]), bytearray(archive.extractfile(info).read())] for info in archive]  # type: ignore[union-attr]
    if choose.random() < 0.5:  # also in the order of names
        choose.shuffle(members)
    names = [b"pickle", b"tensors", b"storages", b"sys_info", b"./pickle", b"a/pickle", b"/pickle", b"pickle/", b""]
    for _ in range(choose.choice((1, 1, 2, 3))):
        place = choose.randrange(len(members))
        header, body = members[place]
        what = choose.randrange(9)
        if what == 0:  # an extended header
            name = choose.choice(names)
            key = choose.choice((b"path", b"size", b"mtime", b"GNU.sparse.name", b"linkpath", b"hdrcharset"))
            value = {b"size": b"%d" % choose.randrange(600), b"mtime": b"1.5", b"hdrcharset": b"BINARY"}.get(key, name)
            record = b" %b=%b\n" % (key, value)
            record = b"%d" % (len(record) + 2 + choose.choice((0, 0, 0, 1, -1))) + record
            members.insert(
                place, [_tar_header(b"././@PaxHeader", len(record), choose.choice(b"xxxgX")), bytearray(record)]
            )
        elif what == 1:
            name = choose.choice(names) + b"\0"
            members.insert(place, [_tar_header(b"././@LongLink", len(name), choose.choice(b"LLK")), bytearray(name)])
        elif what == 2:
            header[156] = choose.choice(b"0\x0001234567LKSxgXANVM")
        elif what == 3:
            header[:100] = choose.choice(names).ljust(100, b"\0")
        elif what == 4:
            header[345:500] = choose.choice((b"a", b".", b"", b"pickle")).ljust(155, b"\0")
        elif what == 5:
            size = choose.choice((len(body), 0, len(body) + 512, choose.randrange(2000)))
            header[124:136] = choose.choice(
                (b"%011o\0" % size, b"\x80" + size.to_bytes(11, "big"), b"%o\0garbage"[:12] % size, b" %10o " % size)
            ).ljust(12, b"\0")[:12]
        elif what == 6:
            members.insert(
                choose.randrange(len(members) + 1), [bytearray(header), bytearray(overwrite(bytes(body), choose))]
            )
        elif what == 7 and body:
            members[place][1] = bytearray(overwrite(bytes(body), choose))
        else:
            header[choose.randrange(512)] = choose.randrange(256)
    parts = []
    for header, body in members:
        if choose.random() < 0.95:
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
        parts += [bytes(header), bytes(body), bytes(-len(body) % 512)]
    return b"".join(parts) + bytes(choose.choice((1024, 1024, 512, 0)))


def _tar_header(name: bytes, size: int, kind: int) -> bytearray:
    header = bytearray(512)
    header[: len(name)] = name
    header[124:136] = b"%011o\0" % size
    header[156] = kind
    header[257:265] = b"ustar\x0000"
    return header


def two_in_one(data: bytes, tar: bytes) -> bytes:
    """Return a file of PyTorch 0.2 to 1.5 whose value is behind a string that is a tar archive."""
    file = io.BytesIO(data)
    for _ in range(3):
        pickle.load(file)
    start = file.tell() + 2
    text = bytearray(data[:start] + b"T\0\0\0\0").ljust(512, b"\0")
    text[start + 1 : start + 5] = struct.pack("<I", 512 + len(tar) - start - 5)
    text[124:136], text[257:265] = b"%011o\0" % 0, b"ustar\x0000"
    text[148:156] = b" " * 8
    text[148:156] = b"%06o\0 " % sum(text)
    return bytes(text) + tar + b"0" + data[start:]


def change_case(data: bytes, choose: random.Random) -> bytes:
    """Change letters of one name, in one place or in all."""
    name = choose.choice((b"data.pkl", b"data/", b"byteorder", b"archive/", b"constants.pkl"))
    changed = bytes(byte ^ 0x20 if 97 <= byte <= 122 and choose.random() < 0.5 else byte for byte in name)
    return data.replace(name, changed, choose.choice((-1, 1, 2)))


TARGETS: dict[str, tuple[Callable[[bytes], str], Callable[[], Iterator[bytes]]]] = {
    "pickles": (compare_pickle, pickle_seeds),
    "archives": (compare_archive, archive_seeds),
    "legacy": (compare_archive, legacy_seeds),
    "tar": (compare_archive, tar_seeds),
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
    tars = list(tar_seeds())

    def made(number: int) -> bytes:
        choose = random.Random(f"{options.target} {options.seed} {number}")
        data, other = choose.choice(files), choose.choice(files)
        if options.target == "tar" and choose.random() < 0.8:
            return change_tar(data, choose)
        if options.target == "legacy" and choose.random() < 0.1:
            data = two_in_one(data, change_tar(choose.choice(tars), choose))
            return data if choose.random() < 0.5 else overwrite(data, choose)
        if options.target == "archives" and choose.random() < 0.1:
            return change_case(data, choose)
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

    def store(number: int) -> Path:
        data = made(number)
        return write_finding(options.findings, f"{options.target}-{hashlib.sha256(data).hexdigest()[:12]}.bin", data)

    # CPython's memo is an array as long as the largest number in it.
    nbytes = _REFEREE_BYTES if options.target == "pickles" else 0
    answers = in_workers(options.count, judged, nbytes=nbytes)
    counts = tally(options.target, answers, store, seconds=options.seconds, every=20_000)
    return int(any(map(is_finding, counts)))


if __name__ == "__main__":
    sys.exit(main())
