"""Fuzz `scan` and `convert` against PyTorch's safe loader, `torch.load(weights_only=True)`.

`generated` are files with pickles of calls that the safe loader knows, with right and wrong arguments; `archives` and
`legacy` are mutated files of `torch.save`. Two rules, one an option:

- a file that `scan` calls clean is taken by the safe loader; what it takes and `scan` does not call clean is counted.
- with `--written`: a `.pt` that `convert` writes of the input (as it is, as a tree, by way of a `.t7`) is taken by it.

    python fuzz/fuzz_scan.py generated --count 20000 --seed 7
    TMPDIR=/dev/shm python fuzz/fuzz_scan.py archives --count 20000 --written
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import struct
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from differential import archive_seeds, legacy_seeds
from fuzz_mutate import mutate, overwrite
from fuzz_workers import in_workers, is_finding, tally, write_finding

import t7bridge
from t7bridge.errors import T7BridgeError
from t7bridge.formats import SAFE

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-scan-"))
_STORAGE_BYTES = 64
_HEAD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."
"""The magic number, the version and the machine of the legacy format."""


class Maker:
    """Makes a random pickle.

    Args:
        choose: the source of randomness.
        is_legacy: whether persistent ids are those of the legacy format.
    """

    def __init__(self, choose: random.Random, is_legacy: bool) -> None:
        self._choose = choose
        self._is_legacy = is_legacy
        self.keys: list[str] = []
        self._classes: dict[str, str] = {}
        self._numbered = 0
        self._wild = choose.choice((0.0, 0.02, 0.1, 0.3))

    def pickle(self) -> bytes:
        """Return a pickle of protocol 2."""
        return b"\x80\x02" + self._value(3) + b"."

    def _name(self, path: str) -> bytes:
        module, _, name = path.rpartition(".")
        if module == "builtins" and self._choose.random() < 0.5:
            module = "__builtin__"
        return f"c{module}\n{name}\n".encode()

    @staticmethod
    def _text(text: str) -> bytes:
        data = text.encode()
        return b"X" + struct.pack("<I", len(data)) + data

    @staticmethod
    def _number(number: int) -> bytes:
        return b"J" + struct.pack("<i", number)

    @staticmethod
    def _tuple(*parts: bytes) -> bytes:
        return b"(" + b"".join(parts) + b"t"

    def _call(self, path: str, *parts: bytes) -> bytes:
        if self._choose.random() < self._wild:
            parts = self._changed(parts)
        return self._name(path) + self._tuple(*parts) + b"R"

    def _changed(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return arguments of which one is replaced, missing, or too many."""
        items = list(parts)
        place = self._choose.randrange(len(items) + 1)
        items[place : place + self._choose.randrange(2)] = [self._value(1)] * self._choose.randrange(2)
        return tuple(items)

    def _numbers(self, count: int, most: int) -> bytes:
        return self._tuple(*(self._number(self._choose.randrange(most)) for _ in range(count)))

    def _bool(self) -> bytes:
        return b"\x89" if self._choose.random() < 0.8 else b"\x88"

    def _storage(self, word: str = "") -> bytes:
        choose = self._choose
        key = str(choose.randrange(4))
        word = self._classes.setdefault(key, word or choose.choice(("Float", "Double", "Long", "Byte", "Half", "Bool")))
        self._classes[key] = word
        if key not in self.keys:
            self.keys.append(key)
        width = {"Float": 4, "Double": 8, "Long": 8, "Half": 2}.get(word, 1)
        count = _STORAGE_BYTES // width
        if choose.random() < self._wild:
            count = choose.randrange(2 * count)
        name = "torch.storage.UntypedStorage" if choose.random() < 0.05 else f"torch.{word}Storage"
        parts = [self._text("storage"), self._name(name), self._text(key), self._text("cpu"), self._number(count)]
        if self._is_legacy:
            parts.append(b"N")
        if choose.random() < self._wild:
            parts = list(self._changed(tuple(parts)))
        return self._tuple(*parts) + b"Q"

    def _ordered(self) -> bytes:
        return self._name("collections.OrderedDict") + b")R"

    def _dtype(self) -> bytes:
        return self._name(f"torch.{self._choose.choice(('float32', 'int64', 'bool', 'bfloat16', 'int1', 'bits8'))}")

    def _tensor(self) -> bytes:
        choose = self._choose
        count = choose.randrange(3)
        shape = (self._numbers(count, 3), self._numbers(count, 3))
        offset = self._number(choose.randrange(3))
        kind = choose.randrange(9)
        if kind < 4:
            return self._call(
                "torch._utils._rebuild_tensor_v2", self._storage(), offset, *shape, self._bool(), self._ordered()
            )
        if kind == 4:
            return self._call(
                "torch._utils._rebuild_tensor_v3", self._storage(), offset, *shape, self._bool(), self._ordered(),
                self._dtype(),
            )  # fmt: skip
        if kind == 5:
            return self._call("torch._utils._rebuild_parameter", self._tensor(), self._bool(), self._ordered())
        if kind == 6:
            state = b"}(" + self._text(choose.choice(("note", "shape", "data", "grad", "__class__"))) + b"K\x01u"
            inner = self._tuple(self._storage(), offset, *shape, self._bool(), self._ordered())
            return self._call(
                "torch._tensor._rebuild_from_type_v2", self._name("torch._utils._rebuild_tensor_v2"),
                self._name(choose.choice(("torch.Tensor", "torch.nn.parameter.Parameter"))), inner, state,
            )  # fmt: skip
        if kind == 7:
            layout = self._call("torch.serialization._get_layout", self._text("torch.sparse_coo"))
            indices = self._call(
                "torch._utils._rebuild_tensor_v2", self._storage("Long"), b"K\0", self._tuple(b"K\1", b"K\2"),
                self._tuple(b"K\2", b"K\1"), b"\x89", self._ordered(),
            )  # fmt: skip
            values = self._call(
                "torch._utils._rebuild_tensor_v2", self._storage("Float"), b"K\0", self._tuple(b"K\2"),
                self._tuple(b"K\1"), b"\x89", self._ordered(),
            )  # fmt: skip
            return self._call(
                "torch._utils._rebuild_sparse_tensor", layout, self._tuple(indices, values, self._numbers(1, 9))
            )
        scheme = self._tuple(self._name("torch.per_tensor_affine"), b"G" + struct.pack(">d", 0.5), b"K\x03")
        return self._call(
            "torch._utils._rebuild_qtensor", self._storage("QUInt8"), offset, *shape, scheme, self._bool(),
            self._ordered(),
        )  # fmt: skip

    def _scalar(self) -> bytes:
        choose = self._choose
        return choose.choice(
            (
                b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", b"K\x07", b"M\x01\x02", self._number(-5),
                b"G" + struct.pack(">d", 0.5), self._text("x"), b"\x8a\x03\x01\x02\x03", b"U\x02ab", b"U\x01\xff",
                self._dtype(), self._name(choose.choice(sorted(SAFE.names))), self._ordered(),
            )
        )  # fmt: skip

    def _known(self, depth: int) -> bytes:
        """Return a call of one of Python's own types, or of PyTorch's small ones."""
        choose = self._choose
        pairs = self._tuple(self._tuple(self._scalar(), self._value(depth)))
        latin = self._call("_codecs.encode", self._text("ab"), self._text("latin1"))
        codec = choose.choice(("utf8", "latin1"))
        device = choose.choice(("cpu", "cuda:1", "meta", "foo", "cpu:x"))
        cls = self._name(choose.choice(sorted(SAFE.constructed)))
        parameter = self._name("torch.nn.parameter.Parameter")
        return choose.choice(
            (
                lambda: self._call("torch.Size", self._numbers(choose.randrange(3), 5)),
                lambda: self._call("torch.device", self._text(device)),
                lambda: self._call("builtins.set", b"](" + self._value(depth) + b"e"),
                lambda: self._call("builtins.complex", b"K\1", self._value(0)),
                lambda: self._call("builtins.bytearray", latin),
                lambda: self._call("_codecs.encode", self._text("ab\u20ac"), self._text(codec)),
                lambda: self._call("collections.Counter", b"}(" + self._text("a") + b"K\1u"),
                lambda: self._call("collections.OrderedDict", pairs),
                lambda: self._call(choose.choice(sorted(SAFE.called)), self._value(depth)),
                lambda: cls + self._tuple(self._value(depth)) + b"\x81",
                lambda: cls + b")\x81",
                lambda: parameter + self._tuple(self._tensor(), self._bool()) + b"\x81",
                lambda: self._call(
                    "torch._utils._rebuild_meta_tensor_no_storage", self._dtype(), self._numbers(1, 5),
                    self._numbers(1, 5), self._bool(),
                ),
            )
        )()  # fmt: skip

    def _value(self, depth: int) -> bytes:
        choose = self._choose
        kind = choose.randrange(12)
        if depth <= 0 or kind < 2:
            made = self._scalar()
        elif kind < 6:
            made = self._tensor()
        elif kind == 6:
            made = self._known(depth - 1)
        elif kind == 7:
            made = b"](" + b"".join(self._value(depth - 1) for _ in range(choose.randrange(4))) + b"e"
        elif kind == 8:
            made = self._tuple(*(self._value(depth - 1) for _ in range(choose.randrange(4))))
        elif kind == 9:
            made = self._value(depth - 1) + choose.choice((b"\x85", self._value(0) + b"\x86"))
        elif kind == 10:
            made = self._ordered() + b"}(" + self._text("_metadata") + self._value(0) + b"ub"
        else:
            entries = (self._scalar() + self._value(depth - 1) for _ in range(choose.randrange(4)))
            made = b"}(" + b"".join(entries) + b"u"
        if choose.random() < self._wild:
            made += choose.choice(
                (b"0N", b"2\x86", self._value(0) + b"b", self._value(0) + b"a", self._value(0) * 2 + b"s", b"Q", b"R",
                 b"(", b"\x86", b"t", b"\x8c\x01a\x86", b"\x94", b"I1\n\x86", b")R", b")\x81")
            )  # fmt: skip
        if choose.random() < 0.2:
            self._numbered += 1
            made += b"q" + bytes([self._numbered % 250])
        elif self._numbered and choose.random() < 0.1:
            made += b"h" + bytes([choose.randrange(self._numbered + 1) % 250]) + b"\x86"
        return made


def generated(choose: random.Random) -> bytes:
    """Return a file, zip or legacy, with a random pickle."""
    is_legacy = choose.random() < 0.4
    maker = Maker(choose, is_legacy)
    pickle = maker.pickle()
    data = bytes(choose.choice((0, 0, 1, 60)) for _ in range(_STORAGE_BYTES))
    if is_legacy:
        keys = b"\x80\x02](" + b"".join(maker._text(key) for key in maker.keys) + b"e."
        widths = {"Float": 4, "Double": 8, "Long": 8, "Half": 2}
        storages = (
            struct.pack("<q", _STORAGE_BYTES // widths.get(maker._classes[key], 1)) + data for key in maker.keys
        )
        return _HEAD + pickle + keys + b"".join(storages)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", "little")
        for key in maker.keys:
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def _taken(path: Path) -> str:
    """Return why PyTorch's safe loader refuses a file; empty if it takes it."""
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def compare_scan(path: Path) -> str:
    """Return what `scan` and the safe loader say of a file; `DIFFERENT: …` if it is clean and refused."""
    report = t7bridge.scan(path)
    refused = _taken(path)
    if b"/constants.pkl" in path.read_bytes():  # TorchScript, which is judged by what its code reaches
        return "TorchScript"
    if report.clean and refused and report.format == "pt":
        return f"DIFFERENT: clean, but {refused}"
    said = "clean" if report.clean else "named" if report.findings else "unreadable"
    if not refused and not report.clean:
        why = report.error or str(report.findings[0])
        return f"taken, and {said}: {why}"
    return f"{'refused' if refused else 'taken'} and {said}"


def compare_written(path: Path) -> str:
    """Convert a file in several ways; return `DIFFERENT: …` if the safe loader refuses what was written."""
    written = 0
    for way in ("auto", "tree", "t7"):
        source, target = path, path.with_name("out.pt")
        try:
            if way == "t7":
                source = path.with_name("out.t7")
                t7bridge.convert(path, source, force=True)
            t7bridge.convert(source, target, force=True, **({"mode": "tree"} if way == "tree" else {}))
        except T7BridgeError:
            continue
        written += 1
        if refused := _taken(target):
            return f"DIFFERENT: {way}: {refused}"
    return f"{written} written"


def main(arguments: list[str] | None = None) -> int:
    """Run one comparison; exit code 1 if a rule does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=("generated", "archives", "legacy"))
    parser.add_argument("--written", action="store_true", help="compare what convert writes")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--show", action="store_true", help="print what the safe loader takes and scan does not")
    parser.add_argument("--input", type=Path, help="compare one file")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    compare: Any = compare_written if options.written else compare_scan
    if options.input:
        print(compare(options.input))
        return 0
    seeds = {"generated": list, "archives": archive_seeds, "legacy": legacy_seeds}
    files = list(seeds[options.target]())

    def made(number: int) -> bytes:
        choose = random.Random(f"scan {options.target} {options.seed} {number}")
        if options.target == "generated":
            return generated(choose)
        data = choose.choice(files)
        if data[:2] != b"PK" and choose.random() < 0.3:
            return overwrite(data, choose)
        return mutate(data, choose.choice(files), choose)

    def judged(number: int) -> str:
        path = _FOLDER / "in.pt"
        path.write_bytes(made(number))
        return compare(path)

    def answers() -> Iterator[tuple[int, str]]:
        for number, answer in in_workers(options.count, judged, block=500):
            if options.show and answer.startswith("taken, and"):
                print(number, answer)
            yield number, answer

    def store(number: int) -> Path:
        data = made(number)
        return write_finding(
            options.findings, f"scan-{options.target}-{hashlib.sha256(data).hexdigest()[:12]}.pt", data
        )

    counts = tally(options.target, answers(), store, seconds=options.seconds)
    return int(any(map(is_finding, counts)))


if __name__ == "__main__":
    sys.exit(main())
