"""Shared test helpers: the corpus, annotated hex, and reading and writing in one line."""

from __future__ import annotations

import importlib.util
import io
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from t7bridge import Storage, T7Layout, T7Reader, Tensor, cli
from t7bridge.formats import T7Writer
from t7bridge.graph.walk import walk
from t7bridge.values import describe_lua, json_pieces

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600
"""Seconds after which a test gives up on a process: on a busy machine only one that hangs takes so long."""
TESTFILES = ROOT / "testfiles"

LITTLE8 = T7Layout()
BIG8 = T7Layout(byte_order="big")
LITTLE4 = T7Layout(long_size=4)
BIG4 = T7Layout(byte_order="big", long_size=4)
ASCII = T7Layout(encoding="ascii")
LAYOUTS = {"little8": LITTLE8, "big8": BIG8, "little4": LITTLE4, "big4": BIG4, "ascii": ASCII}


def corpus(*patterns: str) -> list[Path]:
    """The corpus files that match, sorted; a pattern that matches nothing is a mistake in the test.

    Those in `bad/`, which no reader takes, only if they are asked for by name.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = {
            path
            for path in TESTFILES.glob(pattern)
            if path.parent.name not in ("bad", "found", "hostile") or pattern.startswith("bad/")
        }
        assert matches, f"no file matches testfiles/{pattern}"
        found |= matches
    return sorted(found)


def layer_files() -> dict[str, Path]:
    """The files with classes of PyTorch that this package has for layers, by the dotted names of their modules."""
    package = ROOT / "t7bridge"
    paths = [*package.glob("torchmodules/layers/*.py"), *package.glob("workshop/packages/*/modules.py")]
    homes = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(paths)}
    return {home: path for home, path in homes.items() if path.stem != "__init__"}


def module_of(path: Path) -> Any:
    """Return a program as a module of its own, whose name no other has."""
    spec = importlib.util.spec_from_file_location(f"program_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(path: Path) -> str:
    """A test's id for a corpus file: `format/nil.t7`."""
    return str(path.relative_to(TESTFILES))


def hexdump(text: str) -> bytes:
    """Bytes from annotated hex: everything from `#` to the end of a line is a comment.

    A line that starts with `>` gives its text as it stands, without the line feed: `> torch.FloatTensor`.
    """
    data = bytearray()
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("> "):
            data += stripped[2:].encode()
        else:
            data += bytes.fromhex(stripped.partition("#")[0])
    return bytes(data)


def lines(text: str) -> bytes:
    """An ascii file from its lines: indentation and everything from ` #` on is left out."""
    kept = [re.sub(r"\s+#.*", "", line).strip() for line in text.strip().splitlines()]
    return "".join(f"{line}\n" for line in kept).encode()


def read(data: Any, **options: Any) -> Any:
    """The one value of a file; nothing may follow it."""
    reader = T7Reader(data, **options)
    value = reader.read_object()
    assert reader.at_end, f"{reader.source.size - reader.position} bytes are left"
    return value


def written(value: Any, layout: T7Layout | None = None, **options: Any) -> bytes:
    """A value as the bytes of a file."""
    output = io.BytesIO()
    T7Writer(output, layout, **options).write_object(value)
    return output.getvalue()


def description(value: Any) -> str:
    """The canonical description as text, which compares without recursion."""
    return "".join(json_pieces(describe_lua(value)))


def check_read_write(data: bytes, **options: Any) -> Any:
    """Read a value and write it again: the bytes must be the same. Returns the value."""
    reader = T7Reader(data, **options)
    value = reader.read_object()
    assert reader.at_end
    assert written(value, reader.layout) == data
    return value


def check_write_read(value: Any) -> None:
    """Write a value in every layout and read it again: the description must be the same."""
    wanted = description(value)
    for layout in LAYOUTS.values():
        assert description(read(written(value, layout), **stated(layout))) == wanted, layout


def stated(layout: T7Layout) -> dict[str, Any]:
    """The reader's options that state a layout."""
    if layout.encoding == "ascii":
        return {"encoding": "ascii"}
    return {"encoding": "binary", "byte_order": layout.byte_order, "long_size": layout.long_size}


class Parts:
    """Builds a file by hand, in a binary layout or in ascii, independently of the package's own writer."""

    def __init__(self, layout: T7Layout) -> None:
        self.ascii = layout.encoding == "ascii"
        self.sign = "<" if layout.byte_order == "little" else ">"
        self.long_code = "q" if layout.long_size == 8 else "i"
        self._pieces: list[bytes] = []

    @property
    def data(self) -> bytes:
        """The file so far."""
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def _put(self, code: str, values: tuple[float, ...], form: Callable[[float], str] = str) -> Parts:
        if self.ascii:
            self._pieces.append(" ".join(map(form, values)).encode() + b"\n" if values else b"")
        else:
            self._pieces.append(struct.pack(f"{self.sign}{len(values)}{code}", *values))
        return self

    def ints(self, *values: int) -> Parts:
        """Integers, each by a call of its own."""
        for value in values:
            self._put("i", (value,))
        return self

    def longs(self, *values: int) -> Parts:
        """C longs in one call."""
        return self._put(self.long_code, values)

    def double(self, value: float) -> Parts:
        """An 8-byte float."""
        return self._put("d", (value,), "{:.17g}".format)

    def elements(self, code: str, *values: float) -> Parts:
        """A storage's elements: a struct code, `l` for C longs."""
        if code in "bB" or (code == "e" and not self.ascii):
            return self.raw(struct.pack(f"{self.sign}{len(values)}{code}", *values))
        return self._put(self.long_code if code == "l" else code, values, str if code in "hil" else "{:.9g}".format)

    def raw(self, data: bytes) -> Parts:
        """Append raw bytes."""
        self._pieces.append(data + (b"\n" if self.ascii and data else b""))
        return self

    def text(self, data: str | bytes) -> Parts:
        """A length and that many bytes."""
        data = data.encode() if isinstance(data, str) else data
        return self.ints(len(data)).raw(data)

    def string(self, data: str | bytes) -> Parts:
        """A tagged string."""
        return self.ints(2).text(data)

    def number(self, value: float) -> Parts:
        """A tagged number."""
        return self.ints(1).double(value)

    def torch(self, index: int, class_name: str, version: int | None = 1) -> Parts:
        """The head of a Torch object: tag, number, version, class name."""
        self.ints(4, index)
        if version is not None:
            self.text(f"V {version}")
        return self.text(class_name)


def run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which takes a hundredth of the time of one of its own."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            code: Any = cli.main(list(map(str, arguments)))
        except SystemExit as stop:  # wrong usage, and help
            code = stop.code
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([*map(str, arguments)], code, out, err)


# A process counts the memory of the one that started it, so a small one starts what is measured.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "t7bridge", *sys.argv[1:]], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(status, usage.ru_maxrss)
"""


def peak_mib(*arguments: object) -> float:
    """The peak resident memory of one run of the command line, in MiB."""
    command = [sys.executable, "-c", LAUNCHER, *map(str, arguments)]
    status, peak_kib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert status == "0"
    return int(peak_kib) / 1024


def storages(root: Any) -> Iterator[Storage]:
    """Yield every storage of a value once."""
    return (path.value for path in walk(root) if isinstance(path.value, Storage))


def tensors(root: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a value once, with its path."""
    return ((path.text(), path.value) for path in walk(root) if isinstance(path.value, Tensor))
