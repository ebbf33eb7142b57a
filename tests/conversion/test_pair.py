"""The pair of readers and writers: the same four names, paths and streams, several values and what they share."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES, corpus
from torch import nn

import t7bridge
from t7bridge import PtReader, PtWriter, T7Reader, T7Writer
from t7bridge.errors import ModelError, TargetExistsError, UnsupportedError, WriteError

LENET = TESTFILES / "models/lenet_mm.t7"
WRITERS = pytest.mark.parametrize("writer", [PtWriter, T7Writer])


@pytest.mark.slow
def test_from_lua_through_the_graph_and_back(tmp_path: Path, subtests: Any) -> None:
    """What a `.t7` holds goes through a `.pt`, which PyTorch's safe loader reads, and is the same in Lua again.

    Functions are not: they are data in a `.pt`, and a `.t7` from it has tables with their bytes.
    """
    compared = 0
    for path in corpus("models/*.t7", "format/*.t7", "legacy/*.t7", "tutorials/*.t7", "beside/*.t7"):
        # Encodings of one value, classes with a layout of their own, and bytes that are no value.
        if any(word in path.name for word in (".ascii.", ".big.", ".long4.", "custom_write", "stream")):
            continue
        compared += 1
        with subtests.test(str(path.relative_to(TESTFILES))):
            with T7Reader(path) as reader, PtWriter(tmp_path / "a.pt", force=True) as writer:
                writer.write(reader.read())
            with PtReader(tmp_path / "a.pt") as source, T7Writer(tmp_path / "b.t7", force=True) as target:
                target.write(source.read())
            torch.load(tmp_path / "a.pt", weights_only=True)
            differences = list(map(str, t7bridge.verify(path, tmp_path / "b.t7").differences))
            assert all("a function against a table" in text for text in differences) or "shared_upvalue" in path.name
            assert not differences or "function" in path.name
    assert compared > 60


@WRITERS
def test_paths_and_streams(tmp_path: Path, writer: Any) -> None:
    """Both hold the same bytes; a file at a path appears when it is complete, a stream stays open."""
    path = tmp_path / "out.bin"
    with writer(path) as file:
        file.write({"a": np.arange(3)})
        assert not path.exists()
    with io.BytesIO() as stream:
        with writer(stream) as file:
            file.write({"a": np.arange(3)})
        assert stream.getvalue() == path.read_bytes()
    with pytest.raises(TargetExistsError):
        writer(path)
    with writer(path, force=True) as file:
        file.write(1.0)
    assert list(tmp_path.iterdir()) == [path]


def test_several_values_of_a_t7(tmp_path: Path) -> None:
    """Each is read by one call; objects and tensors that two share are one object, and one memory."""
    model = t7bridge.load(LENET)
    weights = np.ones((2, 3), "f4")
    with T7Writer(tmp_path / "out.t7") as writer:
        writer.write(model)
        writer.write({"model": model})
        writer.write(weights)
        writer.write({"weights": weights})
    with T7Reader(tmp_path / "out.t7") as reader:
        first, second, third, fourth = (reader.read() for _ in range(4))
        assert reader.at_end
    assert second["model"] is first
    assert fourth["weights"].storage is third.storage


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_buffer_that_is_used_again_is_refused(tmp_path: Path, kind: str) -> None:
    """The file would refer to its first elements; copies, and a file without references, have each."""
    buffer: Any = np.zeros(4) if kind == "numpy" else torch.zeros(4)
    with T7Writer(tmp_path / "out.t7") as writer:
        writer.write({"x": buffer})
        writer.write({"x": buffer})
        buffer[:] = 1
        with pytest.raises(WriteError, match="was changed since"):
            writer.write({"x": buffer})
    for referenced in (True, False):
        with T7Writer(tmp_path / "out.t7", referenced=referenced, force=True) as writer:
            for number in range(3):
                buffer[:] = number
                copy = buffer.copy() if kind == "numpy" else buffer.clone()
                writer.write({"number": number, "x": copy if referenced else buffer})
        with T7Reader(tmp_path / "out.t7") as reader:
            assert [reader.read()["x"].tolist() for _ in range(3)] == [[float(number)] * 4 for number in range(3)]


def test_several_values_of_a_pt(tmp_path: Path) -> None:
    """They are a list, which shares what they share, Lua's objects too."""
    model = t7bridge.load(LENET)
    layer = nn.Linear(2, 2)
    with PtWriter(tmp_path / "out.pt") as writer:
        for value in (model, {"model": model}, layer, {"weight": layer.weight}):
            writer.write(value)
    first, second, third, fourth = torch.load(tmp_path / "out.pt", weights_only=True)
    assert second["model"] is first
    assert first["__class__"] == "nn.Sequential"
    assert fourth["weight"].data_ptr() == third["weight"].data_ptr()
    with PtReader(tmp_path / "out.pt") as reader:
        assert len(reader.read()) == 4


@WRITERS
def test_a_writer_that_is_not_closed_raises(tmp_path: Path, writer: Any) -> None:
    """Python's collector shows the error: the file is not there, and neither is a part of it."""
    with pytest.MonkeyPatch.context() as patch:
        raised: list[Any] = []
        patch.setattr("sys.unraisablehook", lambda event: raised.append(event.exc_value))
        file = writer(tmp_path / "out.bin")
        file.write({"a": 1})
        del file
        gc.collect()
    (error,) = raised
    assert isinstance(error, WriteError)
    assert "out.bin" in str(error)
    assert "never closed" in str(error)
    assert not list(tmp_path.iterdir())


def test_a_pt_in_a_stream_that_is_not_closed_raises() -> None:
    """Its archive is written at the end only; without a value there is nothing to lose."""
    with pytest.MonkeyPatch.context() as patch:
        raised: list[Any] = []
        patch.setattr("sys.unraisablehook", lambda event: raised.append(event.exc_value))
        PtWriter(io.BytesIO())
        PtWriter(io.BytesIO()).write(3)
        gc.collect()
    assert [type(error) for error in raised] == [WriteError]


@WRITERS
def test_an_error_leaves_no_file(tmp_path: Path, writer: Any) -> None:
    """Of the block, or of a value that the format cannot hold."""
    with pytest.raises(ZeroDivisionError), writer(tmp_path / "out.bin") as file:
        file.write({"a": 1 / len([])})
    with pytest.raises(UnsupportedError), writer(tmp_path / "out.bin") as file:
        file.write(object())
    assert not list(tmp_path.iterdir())


@WRITERS
def test_closing_ends_it(tmp_path: Path, writer: Any) -> None:
    """Closing again does nothing, writing is an error."""
    file = writer(tmp_path / "out.bin")
    file.write({"a": 1})
    file.close()
    size = (tmp_path / "out.bin").stat().st_size
    file.close()
    with pytest.raises(ModelError, match="the writer is closed"):
        file.write({"b": 2})
    assert (tmp_path / "out.bin").stat().st_size == size


def test_names_of_lua(tmp_path: Path) -> None:
    """`write_object` and the single values of `torch.DiskFile` work in a file at a path, too."""
    with T7Writer(tmp_path / "out.t7") as writer:
        writer.write_object({"a": 1})
        writer.write_int(7)
        writer.write_double(2.5)
    with pytest.raises(ModelError, match="closed"):
        writer.write_int(8)
    with T7Reader(tmp_path / "out.t7") as reader:
        assert (reader.read_object()["a"], reader.read_int(), reader.read_double()) == (1.0, 7, 2.5)


def test_a_pt_needs_a_value(tmp_path: Path) -> None:
    """A file without one is not written."""
    with pytest.raises(ModelError, match="none was written"), PtWriter(tmp_path / "out.pt"):
        pass
    assert not list(tmp_path.iterdir())


def test_finish_is_close_in_a_stream() -> None:
    """The former name of `close` for a stream writes the archive once."""
    stream = io.BytesIO()
    writer = PtWriter(stream)
    writer.write({"a": 1})
    writer.finish()
    size = len(stream.getvalue())
    writer.close()
    assert len(stream.getvalue()) == size
    assert PtReader(stream.getvalue()).read() == {"a": 1}


def test_finish_is_close_at_a_path(tmp_path: Path) -> None:
    """The file takes its name, and nothing is left beside it."""
    path = tmp_path / "out.pt"
    with PtWriter(path) as writer:
        writer.write({"a": np.arange(3)})
        writer.finish()
        assert list(tmp_path.iterdir()) == [path]
    assert list(tmp_path.iterdir()) == [path]
    assert t7bridge.load(path)["a"].tolist() == [0, 1, 2]
