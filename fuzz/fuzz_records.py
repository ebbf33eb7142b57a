"""Forged records against a stranger's reading: `convert` writes what a source shows, whatever it records of its past.

A source is converted from a seed, and its record is forged: the Lua stream in a `.pt`, the pickle behind a `.t7`, the
metadata of safetensors, npz and HDF5. Readers that know no record (PyTorch, numpy, h5py, and two short ones here) read
it and the output of `convert`: what the source shows must be in the output, exactly, and no other tensor.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_mutate import overwrite
from fuzz_workers import in_workers, tally, write_finding

import t7bridge
from t7bridge.errors import T7BridgeError

_CODES = {
    "Byte": "u1", "Char": "i1", "Short": "i2", "Int": "i4", "Long": "i8", "Half": "f2", "Float": "f4", "Double": "f8",
}  # fmt: skip
_PLAIN = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?", "C64": "<c8",
}  # fmt: skip
Leaves = dict[tuple[str, ...], Any]
"""Arrays, numbers and texts by their paths."""


class Unread(Exception):
    """A reader does not read a file."""


# Strangers


class _Lua:
    """A short reader of binary and ascii `.t7` files: values as dicts, lists and arrays."""

    def __init__(self, data: bytes, text: bool, order: str, long: str) -> None:
        self.data, self.text, self.order, self.long = data, text, order, long
        self.place, self.seen = 0, dict[int, Any]()

    def one(self, code: str) -> Any:
        """Read a number."""
        if self.text:
            end = self.data.index(b"\n", self.place)
            word, self.place = self.data[self.place : end].strip(), end + 1
            return float(word) if code == "d" else int(word)
        code = self.order + (self.long if code == "q" else code)
        (number,) = struct.unpack_from(code, self.data, self.place)
        self.place += struct.calcsize(code)
        return number

    def longs(self, count: int) -> list[int]:
        """Read sizes or strides."""
        if not self.text:
            return [self.one("q") for _ in range(count)]
        end = self.data.index(b"\n", self.place)
        words, self.place = self.data[self.place : end].split(), end + 1
        return [int(word) for word in words]

    def string(self) -> bytes:
        """Read a text."""
        length = self.one("i")
        if not 0 <= length <= len(self.data) - self.place:
            raise Unread
        found = self.data[self.place : self.place + length]
        self.place += length + self.text
        return found

    def elements(self, count: int, code: str) -> np.ndarray:
        """Read the elements of a storage."""
        if self.text and code not in ("u1", "i1"):
            end = self.data.index(b"\n", self.place)
            words, self.place = self.data[self.place : end].split(), end + 1
            return np.array([float(word) if code[0] == "f" else int(word) for word in words]).astype(code)
        width = 4 if (code, self.long) == ("i8", "i") else int(code[1])
        found = np.frombuffer(self.data, self.order + code[0] + str(width), count, self.place).astype(code)
        self.place += count * width + self.text
        return found

    def value(self) -> Any:
        """Read a value."""
        tag = self.one("i")
        if tag == 0:
            return None
        if tag == 1:
            return self.one("d")
        if tag == 2:
            return self.string().decode("utf-8", "surrogateescape")
        if tag == 5:
            return bool(self.one("i"))
        if tag not in (3, 4):
            raise Unread
        index = self.one("i")
        if index in self.seen:
            return self.seen[index]
        if tag == 3:
            table = self.seen[index] = {}
            for _ in range(self.one("i")):
                key = self.value()
                table[key if isinstance(key, (str, float)) else repr(key)] = self.value()
            return table
        name = self.string()
        name = (self.string() if name.startswith(b"V ") else name).decode()
        found = re.fullmatch(r"torch\.(\w+)(Tensor|Storage)", name)
        if found is None or found[1] not in _CODES:
            raise Unread
        if found[2] == "Storage":
            count = self.one("q")
            if not 0 <= count <= len(self.data):
                raise Unread
            self.seen[index] = made = self.elements(count, _CODES[found[1]])
            return made
        dimensions = self.one("i")
        if not 0 <= dimensions <= 20:
            raise Unread
        size, stride, offset = self.longs(dimensions), self.longs(dimensions), self.one("q") - 1
        storage = self.value()
        made = np.empty(0, _CODES[found[1]])
        if dimensions and storage is not None:
            reach = offset + sum((extent - 1) * step for extent, step in zip(size, stride))
            if min([offset, *size, *stride]) < 0 or reach >= len(storage):
                raise Unread
            steps = [step * storage.itemsize for step in stride]
            made = np.lib.stride_tricks.as_strided(storage[offset:], size, steps)
        self.seen[index] = made
        return made


def read_t7(data: bytes) -> list[Any]:
    """Return the value of a `.t7` in each layout in which it can be read, today's first."""
    layouts = [(True, "", "")] if re.match(rb"\d+\r?\n", data) else []
    found = []
    for text, order, long in [*layouts, (False, "<", "q"), (False, "<", "i"), (False, ">", "q"), (False, ">", "i")]:
        try:
            found.append(_Lua(data, text, order, long).value())
        except (Unread, ValueError, struct.error, RecursionError, TypeError, OverflowError):
            continue
    return found


def read_pt(data: bytes) -> list[Any]:
    """Return the value of a `.pt`, as PyTorch's safe loader has it."""
    import torch

    try:
        return [torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")]
    except Exception:  # PyTorch raises anything
        return []


def read_safetensors(data: bytes) -> list[Any]:
    """Return the tensors of a safetensors file."""
    import torch

    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    made = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        raw, kind = data[8 + length + start : 8 + length + end], entry["dtype"]
        if kind in _PLAIN:
            array = np.frombuffer(raw, _PLAIN[kind])
        else:
            dtype = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}[kind]
            array = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).float().numpy() if raw else []
        made[name] = np.asarray(array).reshape(entry["shape"])
    return [made]


def read_npz(data: bytes) -> list[Any]:
    """Return the arrays of a `.npz`."""
    with np.load(io.BytesIO(data)) as file:
        return [{name: file[name] for name in file.files}]


def read_h5(data: bytes) -> list[Any]:
    """Return the data sets of an HDF5 file."""
    import h5py

    def content(group: Any) -> dict[str, Any]:
        return {name: content(item) if isinstance(item, h5py.Group) else item[()] for name, item in group.items()}

    with h5py.File(io.BytesIO(data), "r") as file:
        return [content(file)]


READERS: dict[str, Callable[[bytes], list[Any]]] = {
    "t7": read_t7, "pt": read_pt, "safetensors": read_safetensors, "npz": read_npz, "h5": read_h5,
}  # fmt: skip


def leaves(value: Any, named: bool = False) -> Leaves:
    """Return the leaves of a value by path; of named tensors by the words of their names."""
    import torch

    found: Leaves = {}
    seen: set[int] = set()
    stack: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, (dict, list, tuple)):
            if (id(item), path) in seen or len(path) > 50 or len(found) > 2000:
                continue
            pairs = list(item.items()) if isinstance(item, dict) else list(enumerate(item))
            if isinstance(item, dict) and item and all(isinstance(key, float) for key in item):
                pairs = [(int(key) - 1, inner) for key, inner in pairs]  # a Lua list
            stack += [((*path, _key(key)), inner) for key, inner in pairs]
            continue
        if isinstance(item, torch.Tensor):
            item = item.detach().resolve_conj().resolve_neg()
            code = str(item.dtype)[6:]
            item = (item.float() if code.startswith(("bfloat16", "float8")) else item).numpy()
        if isinstance(item, (np.ndarray, np.generic)):
            array = np.asarray(item)
            found[path] = np.stack((array.real, array.imag), -1) if array.dtype.kind == "c" else array
        elif isinstance(item, (bool, int, float, str, bytes)):
            found[path] = item
    return {tuple(".".join(path).split(".")): leaf for path, leaf in found.items()} if named else found


def _key(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "surrogateescape")
    return str(int(key)) if isinstance(key, float) and key.is_integer() else str(key)


def difference(want: Leaves, got: Leaves, tensors_only: bool) -> str:
    """Return how an output differs from what its source shows; empty if it does not."""
    for path, leaf in want.items():
        if tensors_only and not isinstance(leaf, np.ndarray):
            continue
        if path not in got and isinstance(leaf, np.ndarray) and leaf.ndim == 1:  # a list of numbers in an .npz
            numbers = [got.get((*path, str(place))) for place in range(leaf.size)]
            if all(number is not None and _same(each, number) for each, number in zip(leaf.tolist(), numbers)):
                continue
        if path not in got:
            return f"{'.'.join(path)} is missing"
        if not _same(leaf, got[path]):
            return f"{'.'.join(path)}: {leaf!r:.80} became {got[path]!r:.80}"
    for path, leaf in got.items():
        if isinstance(leaf, np.ndarray) and leaf.size and path not in want:
            numbers = [want.get((*path, str(place))) for place in range(leaf.size)]  # a list of numbers in a table
            if leaf.ndim > 1 or not all(
                number is not None and _same(a, number) for a, number in zip(leaf.ravel(), numbers)
            ):
                return f"{'.'.join(path)} is not in the source"
    return ""


def _same(a: Any, b: Any) -> bool:
    # A number is an array without dimensions in an .npz.
    a, b = (
        x.item() if isinstance(x, np.ndarray) and not x.ndim and not isinstance(y, np.ndarray) else x
        for x, y in ((a, b), (b, a))
    )
    if isinstance(a, np.ndarray) != isinstance(b, np.ndarray):
        return False
    if isinstance(a, (str, bytes)) or isinstance(b, (str, bytes)):
        a, b = (x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else x for x in (a, b))
        return bool(a == b)
    if not isinstance(a, np.ndarray):
        return float(a) == float(b) or (a != a and b != b)
    if a.size != b.size or (a.size > 1 and a.shape != b.shape):
        return False
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return a.ravel().tolist() == b.ravel().tolist()
    return bool(np.array_equal(a.ravel().astype("f8"), b.ravel().astype("f8"), equal_nan=True))


# Forging


def forge_json(value: Any, words: list[Any], choose: random.Random) -> Any:
    """Change JSON data in one to three places: exchange, move, copy or replace values and keys."""
    value = json.loads(json.dumps(value))
    for _ in range(choose.randint(1, 3)):
        holders = [holder for holder in _holders(value) if holder]
        if not holders:
            return value
        holder = choose.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        one, other = choose.choice(keys), choose.choice(keys)
        action = choose.randrange(5)
        if action == 0:
            holder[one], holder[other] = holder[other], holder[one]
        elif action == 1:
            holder[one] = holder[other]
        elif action == 2 and isinstance(holder, dict):
            holder[str(choose.choice(words))] = holder[one]
        elif action == 3 and isinstance(holder, list):
            choose.shuffle(holder)
        elif isinstance(holder[one], int):
            holder[one] = choose.choice(
                [0, 1, 2, 3, 4, 6, 8, 17, holder[one] + 1, holder[one] - 1, 2 * holder[one], -1]
            )
        elif isinstance(holder[one], str):
            holder[one] = choose.choice(words)
    return value


def _holders(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list)):
            yield item
            stack += item.values() if isinstance(item, dict) else item


def _forge_stream(data: bytes, names: list[bytes], choose: random.Random) -> bytes:
    """Change a pickle or a Lua stream: exchange names and storages, change small numbers, or overwrite bytes."""
    made = bytearray(data)
    for _ in range(choose.randint(1, 3)):
        action = choose.randrange(4)
        if action == 0:
            one, other = choose.choice(names), choose.choice(names)
            if len(one) == len(other):
                made = made.replace(one, b"\0" * len(one)).replace(other, one).replace(b"\0" * len(one), other)
        elif action == 1 and len(made) > 4:
            place = choose.randrange(len(made) - 4)
            made[place] = choose.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, made[place] ^ 1])
        elif action == 2:
            small = [place for place, byte in enumerate(made) if 0 < byte < 10]
            if small:
                made[choose.choice(small)] = choose.randrange(10)
        else:
            made = bytearray(overwrite(bytes(made), choose))
    return bytes(made)


_TYPES = [
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "bool", "complex64", "complex128",
    "float32", "float64", "int32", "int64", "uint8", "int8", "quint8", "float16", "complex32",
]  # fmt: skip
_WORDS = [
    *_TYPES,
    *"abcdefghij",
    "a/b",
    "h.p",
    "h.q",
    "h",
    "0",
    "1",
    "",
    ".",
    "..",
    "ascii",
    "binary",
    "big",
    "torch-5",
]


def _with_head(data: bytes, choose: random.Random, names: list[bytes], others: list[bytes]) -> bytes:
    """Forge a record: a line of JSON, and a stream whose length is in it."""
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    size = "pickle_bytes" if "pickle_bytes" in head else "stream_bytes"
    stream, tail = rest[: head[size]], rest[head[size] :]
    if choose.random() < 0.3:  # the record of another value
        other_line, _, other_rest = choose.choice(others).partition(b"\n")
        other = json.loads(other_line)
        if size in other:
            stream, tail = other_rest[: other[size]], other_rest[other[size] :]
            kept = {name: head[name] for name in ("structure", "content") if name in head}
            head = {**other, **kept}
    if choose.random() < 0.6:
        parts = {name: head[name] for name in head if name not in ("record", "structure", "content")}
        head.update(forge_json(parts, _WORDS, choose))
    if choose.random() < 0.6:
        stream = _forge_stream(stream, names, choose)
        head[size] = len(stream)
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + stream + tail


class Seed:
    """A file with a record, and its forging.

    Args:
        data: the file.
        form: the suffix of the format.
    """

    def __init__(self, data: bytes, form: str) -> None:
        self.data, self.form = data, form
        self.record = self._record()

    def _record(self) -> bytes:
        if self.form == "pt":
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                return archive.read("archive/.t7bridge/record")
        if self.form == "t7":
            return self.data[self.data.index(b'{"record":"t7bridge pt record') :]
        return b""

    def forged(self, choose: random.Random, others: list[bytes]) -> bytes:
        """Return the file with a forged record."""
        names = [name.encode() for name in "abcdefghij"]
        if self.form == "t7":
            keys = [b"X\x01\0\0\0" + name for name in [*names, b"0", b"1", b"2", b"3", b"4"]]
            return self.data[: -len(self.record)] + _with_head(self.record, choose, keys, others)
        if self.form == "pt":
            record = _with_head(self.record, choose, [b"\x01\0\0\0" + name for name in names], others)
            file = io.BytesIO()
            with zipfile.ZipFile(io.BytesIO(self.data)) as old, zipfile.ZipFile(file, "w") as new:
                for member in old.infolist():
                    new.writestr(member, record if member.filename.endswith("/record") else old.read(member))
            return file.getvalue()
        return {"safetensors": self._safetensors, "npz": self._npz, "h5": self._h5}[self.form](choose)

    def _safetensors(self, choose: random.Random) -> bytes:
        length = int.from_bytes(self.data[:8], "little")
        header = json.loads(self.data[8 : 8 + length])
        header["__metadata__"] = _texts_forged(header["__metadata__"], [*header], choose)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + self.data[8 + length :]

    def _npz(self, choose: random.Random) -> bytes:
        end = self.data.rindex(b"PK\x05\x06")
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            found, names = archive.comment, [name[:-4] for name in archive.namelist()]
        data = json.loads(zlib.decompress(found[len(b"t7bridge") :]))
        views = forge_json(data["views"], [*names, *_WORDS], choose) if choose.random() < 0.7 else data["views"]
        forged = {"metadata": _texts_forged(data["metadata"], names, choose), "views": views}
        comment = b"t7bridge" + zlib.compress(json.dumps(forged).encode())
        return self.data[: end + 20] + len(comment).to_bytes(2, "little") + comment

    def _h5(self, choose: random.Random) -> bytes:
        made = self.data
        for found in re.finditer(rb"\{[^\0{]*(\{[^\0]*?\})?[^\0{]*?\} {20,}", self.data):
            if choose.random() < 0.5:
                text = json.dumps(forge_json(json.loads(found[0]), _WORDS, choose)).encode()
                if len(text) <= len(found[0]):
                    made = made[: found.start()] + text.ljust(len(found[0])) + made[found.end() :]
        return made


def _texts_forged(metadata: dict[str, str], names: list[str], choose: random.Random) -> dict[str, str]:
    """Forge the texts of metadata that are JSON of ours."""
    made = dict(metadata)
    for name, text in metadata.items():
        if name.startswith("t7bridge") and choose.random() < 0.7:
            made[name] = json.dumps(forge_json(json.loads(text), [*names, *_WORDS], choose))
    if choose.random() < 0.3:
        made["t7bridge.elements"] = json.dumps({choose.choice(names): choose.choice(_TYPES) for _ in range(3)})
    return made


def _values() -> Iterator[dict[str, Any]]:
    """Yield values for seeds: tensors of many types, shared and strided, and what is beside them."""
    import torch

    base = torch.arange(12.0) / 3
    numbers = torch.tensor([1 / 3, 2 / 3, 1e-9, 70001.0], dtype=torch.float64)
    yield {"a": numbers, "b": numbers + 5, "c": [1, 2.5, "x"], "d": {"p": base[:4], "q": base[2:6]}}
    yield {"a": base.view(3, 4), "b": base.view(3, 4).t(), "c": base[::2], "d": base[1::2], "e": "text", "f": 3}
    yield {"a": torch.tensor([1, 2, 70001], dtype=torch.int32), "b": torch.tensor([0, 1, 1], dtype=torch.uint8)}
    yield {"a": torch.ones(2, 2), "b": torch.zeros(2, 2), "c": torch.eye(2), "d": torch.eye(2).long(), "e": [], "f": {}}
    yield {
        "a": torch.tensor([1.5, 2.5, 3.0]).bfloat16(), "b": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        "c": torch.tensor([1, 65535]).to(torch.uint16), "d": torch.tensor([True, False]), "e": (1, None),
        "f": torch.tensor([1 + 2j, 3j]), "g": torch.tensor(7.0), "h": {"p": base[:6], "q": base[3:9]},
    }  # fmt: skip
    both = torch.arange(6.0)
    yield {"a": both, "b": both, "c": both[:3], "d": both[3:], "e": both.clone(), "f": both.bfloat16()}


def seeds(folder: Path) -> list[Seed]:
    """Return files of every format with a record."""
    import h5py
    import torch

    found = []
    for number, value in enumerate(_values()):
        source = folder / f"seed{number}.pt"
        torch.save(value, source)
        for form in ("t7", "safetensors", "npz", "h5"):
            t7bridge.convert(source, path := folder / f"seed{number}.{form}", force=True)
            if form == "h5":
                _pad(h5py, path)
            data = path.read_bytes()
            if form != "npz" or b"t7bridge" in data[-5000:]:  # one without metadata has no comment
                found.append(Seed(data, form))
        plain = folder / f"plain{number}.t7"
        t7bridge.convert(source, plain, record=False, force=True, encoding="ascii" if number == 1 else None)
        t7bridge.convert(plain, folder / "back.pt", force=True)
        found.append(Seed((folder / "back.pt").read_bytes(), "pt"))
    found.append(different_orders())
    return found


def _pad(h5py: Any, path: Path) -> None:
    """Leave room in the attributes of an HDF5 file: forged ones replace them in place."""
    with h5py.File(path, "r+") as file:
        if "t7bridge.elements" in file.attrs:
            file.attrs["t7bridge.elements"] = file.attrs["t7bridge.elements"].ljust(300)

        def pad(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                last = name.rpartition("/")[2]
                text = item.attrs.get("t7bridge", json.dumps({"names": {name: [f"{last}/x"]}, "view": [0, 4, 0, [1]]}))
                item.attrs["t7bridge"] = text.ljust(300)

        file.visititems(pad)


def different_orders() -> Seed:
    """Return a `.npz` with arrays in Fortran's order and of another byte order, recorded as views of one memory."""
    first = np.arange(6.0).reshape(2, 3)
    arrays = {
        "a": np.asfortranarray(first), "b": first.ravel("F"), "c": np.arange(6.0), "d": np.arange(6.0, 12).astype(">f8")
    }  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **arrays)
    views = {"a": [0, 6, 0, [3, 1]], "b": [0, 6, 0, [1]], "c": [1, 9, 0, [1]], "d": [1, 9, 3, [1]]}
    comment = b"t7bridge" + zlib.compress(
        json.dumps({"metadata": {"t7bridge.elements": "{}"}, "views": views}).encode()
    )
    data = file.getvalue()
    return Seed(data[:-2] + len(comment).to_bytes(2, "little") + comment, "npz")


# The comparison

TARGETS = {
    "pt": ("t7", "t7", "t7", "safetensors"), "t7": ("pt", "pt", "pt", "safetensors", "npz", "h5"),
    "safetensors": ("pt", "t7", "npz"), "npz": ("pt", "t7", "safetensors"), "h5": ("pt", "t7", "npz"),
}  # fmt: skip


def compare(data: bytes, form: str, target: str, folder: Path) -> str:
    """Convert a file and compare the output with what the source shows.

    Returns:
        `same`, `dropped` where a record was not used, `refused`, `unread`, or `DIFFERENT: …`.
    """
    source, output = folder / f"in.{form}", folder / f"out.{target}"
    source.write_bytes(data)
    try:
        report = t7bridge.convert(source, output, force=True)
    except T7BridgeError:
        return "refused"
    try:
        shown = READERS[form](data)
    except Exception:  # its owner's library does not read it
        shown = []
    made = READERS[target](output.read_bytes())
    if not shown or not made:
        return "unread"
    named = ["safetensors", "npz", "h5"]
    joined = form in named or target in named
    wanted = leaves(shown[0], joined)
    answers = [difference(wanted, leaves(each, joined), joined) for each in made]
    if "" not in answers:
        return f"DIFFERENT: {form} to {target}, {report.mode}: {answers[0]}"
    return "dropped" if any(note.code == "record" for note in report.notes) else "same"


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison; exit code 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=36000.0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    root = Path(tempfile.mkdtemp(prefix="records-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        return _run(options, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def forged_input(found: list[Seed], name: str) -> tuple[bytes, str, str]:
    """Return the bytes of an input, its format and its target."""
    choose = random.Random(name)
    seed = choose.choice(found)
    others = [other.record for other in found if other.form == seed.form]
    return seed.forged(choose, others), seed.form, choose.choice(TARGETS[seed.form])


def _run(options: argparse.Namespace, root: Path) -> int:
    found = seeds(root)

    def judged(number: int) -> str:
        folder = root / str(os.getpid())
        folder.mkdir(exist_ok=True)
        try:
            return compare(*forged_input(found, f"{options.seed} {number}"), folder)
        except Exception as error:
            return f"DIFFERENT: {type(error).__name__}: {error}"

    def store(number: int) -> Path:
        data, form, target = forged_input(found, f"{options.seed} {number}")
        return write_finding(options.findings, f"record-{options.seed}-{number}-{target}.{form}", data)

    counts = tally("records", in_workers(options.count, judged), store, seconds=options.seconds, every=10_000)
    return 1 if set(counts) - {"same", "dropped", "refused", "unread"} else 0


if __name__ == "__main__":
    sys.exit(main())
