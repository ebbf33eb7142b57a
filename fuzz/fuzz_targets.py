"""Fuzz targets: for each reader a function of bytes that must not raise.

Each function reads the bytes, describes the value, writes it and reads that again. Errors of the package are
expected; anything else, or a graph that differs after writing and reading, is a finding.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from t7bridge import PtReader, Storage, T7Layout, T7Reader
from t7bridge.errors import LimitError, T7BridgeError, UnsupportedError, WriteError
from t7bridge.formats.pt.pickle.context import Origin, PickleContext
from t7bridge.formats.pt.pickle.unpickler import Unpickler
from t7bridge.formats.pt.writer import PtWriter
from t7bridge.formats.t7.writer import T7Writer
from t7bridge.graph.walk import walk
from t7bridge.io.output import Output
from t7bridge.io.source import ByteSource
from t7bridge.values.describe import describe_lua, describe_python, json_pieces

TESTFILES = Path(__file__).resolve().parent.parent / "testfiles"
LARGEST_SEED = 60_000


class Finding(AssertionError):
    """A violated promise."""


def _described(value: Any) -> str:
    return "".join(json_pieces(describe_lua(value)))


def _t7(data: bytes, encoding: str) -> bool:
    try:
        reader = T7Reader(data, encoding=encoding)
        value = reader.read_object()
        before = _described(value)
        for storage in (path.value for path in walk(value) if isinstance(path.value, Storage)):
            _ = storage.array
    except T7BridgeError:
        return False
    layout = reader.layout
    if layout.encoding == "binary":
        layout = T7Layout(byte_order=layout.byte_order, long_size=layout.long_size)
    output = io.BytesIO()
    try:
        T7Writer(output, layout).write_object(value)
    except (WriteError, UnsupportedError) as error:
        raise Finding(f"was read and cannot be written: {error}") from error
    stated = {"encoding": encoding}
    if encoding == "binary":
        stated |= {"byte_order": layout.byte_order, "long_size": layout.long_size}
    again = _described(T7Reader(output.getvalue(), **stated).read_object())
    if again != before:
        raise Finding("another graph after writing and reading")
    return True


def t7_binary(data: bytes) -> bool:
    """Lua Torch's binary encoding."""
    return _t7(data, "binary")


def t7_ascii(data: bytes) -> bool:
    """Lua Torch's ascii encoding."""
    return _t7(data, "ascii")


def _pt(data: bytes) -> bool:
    try:
        reader = PtReader(data)
        reader.verify()
        value = reader.read()
        before = json.dumps(describe_python(value)) if _shallow(value) else ""
    except T7BridgeError:
        return False
    if not before:
        return True
    output = io.BytesIO()
    out = Output(output)
    writer = PtWriter(out, allow_foreign=True)
    try:
        writer.write(value)
    except (WriteError, UnsupportedError, LimitError):
        return True  # inert objects of foreign classes may have a form that our pickles never have
    writer.finish()
    out.flush()
    again = json.dumps(describe_python(PtReader(output.getvalue()).read()))
    if again != before:
        raise Finding("another graph after writing and reading")
    return True


def _shallow(value: Any, most: int = 100) -> bool:
    """Return whether `json` can write the description: deep nesting is not tested here."""
    stack = [(value, 0)]
    seen = set()
    while stack:
        item, depth = stack.pop()
        if depth > most:
            return False
        if id(item) in seen:
            continue
        seen.add(id(item))
        inside = list(item.values()) + list(item) if isinstance(item, dict) else item
        if isinstance(inside, (list, tuple)):
            stack.extend((each, depth + 1) for each in inside)
    return True


def pt_file(data: bytes) -> bool:
    """A whole file: zip, tar, magic number or plain pickle, according to its bytes."""
    return _pt(data)


def _zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


_STORAGES = {f"a/data/{key}": bytes(range(64)) * 8 for key in range(8)}


def pt_members(data: bytes) -> bool:
    """The pickle of a checkpoint, in an otherwise valid archive."""
    return _pt(_zipped({"a/data.pkl": data, **_STORAGES, "a/version": b"3\n"}))


def torchscript(data: bytes) -> bool:
    """The pickle of a TorchScript archive; after a line of `#` the source of its classes."""
    pickle, _, source = data.partition(b"\n####\n")
    code = {"a/code/__torch__.py": source, "a/code/__torch__/torch/nn/modules/linear.py": source}
    return _pt(
        _zipped({"a/data.pkl": pickle, **code, "a/constants.pkl": b"\x80\x02).", **_STORAGES, "a/version": b"3\n"})
    )


def json_archive(data: bytes) -> bool:
    """The JSON of a TorchScript archive of 1.0 to 1.2."""
    tensors = {f"a/tensors/{key}": bytes(512) for key in range(8)}
    return _pt(
        _zipped({"a/model.json": data, "a/attributes.pkl": b"\x80\x02K\x01\x85.", **tensors, "a/version": b"2\n"})
    )


def pickle(data: bytes) -> bool:
    """A standalone pickle."""
    origin = Origin(ByteSource.from_bytes(data))
    try:
        Unpickler(origin.source, 0, len(data), PickleContext(origin)).load()
    except T7BridgeError:
        return False
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "t7_binary": t7_binary,
    "t7_ascii": t7_ascii,
    "pt_zip": pt_file,
    "pt_legacy": pt_file,
    "tar": pt_file,
    "pt_members": pt_members,
    "torchscript": torchscript,
    "json_archive": json_archive,
    "pickle": pickle,
}


_TENSOR = {"dims": ["2", "3"], "offset": "0", "strides": ["3", "1"], "requiresGrad": True, "dataType": "FLOAT"}
_LINEAR = {
    "name": "fc",
    "parameters": [
        {"isBuffer": False, "tensorId": "0", "name": "weight"},
        {"isBuffer": True, "tensorId": "1", "name": "mean"},
    ],
    "attributes": [{"type": "Tensor", "name": "x", "id": 0}],
    "submodules": [],
}
_MODEL = {
    "protoVersion": "2",
    "mainModule": {"name": "net", "submodules": [_LINEAR, {**_LINEAR, "name": "gc"}], "optimize": True},
    "producerName": "pytorch",
    "tensors": [
        {**_TENSOR, "data": {"key": "tensors/0"}, "device": "cpu"},
        {
            **_TENSOR,
            "dataType": "UINT8",
            "isQuantized": True,
            "scale": 0.5,
            "zeroPoint": "3",
            "data": {"key": "tensors/1"},
        },
    ],
}
"""A `model.json` of archives of 1.0 to 1.2, which no current release writes."""


def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target, from `testfiles/`."""
    found = list(_seeds(target))
    if not found:
        raise LookupError(f"no seeds for {target}")
    return found


def _seeds(target: str) -> Iterator[bytes]:
    if target.startswith("t7_"):
        for path in sorted(TESTFILES.glob("*/*.t7")):
            if path.stat().st_size <= LARGEST_SEED and (".ascii." in path.name) == (target == "t7_ascii"):
                yield path.read_bytes()
        return
    if target == "json_archive":
        yield json.dumps(_MODEL).encode()
    kinds = {"pt_zip": b"PK", "pt_legacy": b"\x80\x02\x8a", "tar": b""}
    for path in sorted([*TESTFILES.glob("pt/*.pt"), *TESTFILES.glob("bad/*.pt")]):
        data = path.read_bytes()
        if len(data) > LARGEST_SEED:
            continue
        if target in kinds:
            if data.startswith(kinds[target]) and (target != "tar" or data[257:262] == b"ustar"):
                yield data
            continue
        if target == "pickle" and data[:1] == b"\x80":
            yield data
        if not data.startswith(b"PK"):
            continue
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
        except Exception:  # Python's own reader raises anything for the files in bad/
            continue
        if target == "json_archive" and "model.json" in members:
            yield members["model.json"]
        elif target in ("pt_members", "pickle") and "data.pkl" in members:
            yield members["data.pkl"]
        elif target == "torchscript" and "constants.pkl" in members and "data.pkl" in members:
            source = b"\n".join(content for name, content in members.items() if name.endswith(".py"))
            yield members["data.pkl"] + b"\n####\n" + source
