"""Every corpus file that Lua Torch wrote: reads with no option stated, means what Lua saw, is written back the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import LAYOUTS, LITTLE8, corpus, description, name_of, read, stated, storages, tensors, written

from t7bridge import T7Reader, register_class
from t7bridge.errors import WriteError
from t7bridge.formats import unregister_class
from t7bridge.values import describe_lua

# Not one value of known classes: read by tests of their own.
STREAM = {"format/stream.t7"}
NEEDS_CLASS = {"format/object_custom_write.t7", "format/object_custom_write.ascii.t7"}
FORMS = (".ascii", ".big", ".long4")

ALL = [path for path in corpus("*/*.t7") if name_of(path) not in STREAM | NEEDS_CLASS]
FORMAT = [path for path in ALL if path.parent.name == "format"]
# Longs beyond 4 bytes, which Lua Torch did not write with 4-byte longs either.
LONGS_BEYOND_4 = {"tensor_long_extremes"}


def case_of(path: Path) -> str:
    """`tensor_byte` of `tensor_byte.big.t7`."""
    return path.name.partition(".")[0]


def golden(path: Path) -> object:
    """Return Lua Torch's description of a file of format/."""
    return json.loads(path.with_name(case_of(path) + ".json").read_text())


@pytest.fixture
def deep_json():
    """A recursion limit that lets the json module parse and compare `table_deep.json`."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    yield
    sys.setrecursionlimit(limit)


def test_corpus_is_whole():
    """The corpus holds the 924 files of Lua Torch that the tests are written for."""
    folders = ("format", "legacy", "models", "nn", "rnn")
    assert len(corpus(*(f"{folder}/*.t7" for folder in folders))) == 924


@pytest.mark.slow
def test_read_write_is_byte_identical(subtests):
    """Reading with no option and writing with the detected layout restores the file's bytes."""
    for path in ALL:
        with subtests.test(name_of(path)):
            reader = T7Reader(path)
            value = reader.read_object()
            assert reader.at_end
            assert written(value, reader.layout) == path.read_bytes()


def test_description_is_what_lua_saw(subtests):
    """The description of a file in any encoding equals Lua Torch's JSON."""
    for path in [p for p in FORMAT if case_of(p) != "table_deep"]:
        with subtests.test(name_of(path)):
            assert describe_lua(read(path)) == golden(path)


@pytest.mark.parametrize("name", ["table_deep.t7", "table_deep.ascii.t7"])
def test_deep_description_is_what_lua_saw(name, deep_json):
    """A table nested 1 000 deep reads without recursion and equals Lua's JSON."""
    path = corpus(f"format/{name}")[0]
    assert describe_lua(read(path)) == golden(path)


def test_found_layout_is_the_one_written(subtests):
    """The detected layout has the encoding and byte order of the file's name, and the size of its longs."""
    for path in FORMAT:
        with subtests.test(name_of(path)):
            reader = T7Reader(path)
            reader.read_object()
            form = path.suffixes[0] if len(path.suffixes) == 2 else ""
            assert reader.layout.encoding == ("ascii" if form == ".ascii" else "binary")
            assert reader.layout.byte_order == ("big" if form == ".big" else "little")
            assert reader.layout.numbers == ()
            if form == ".long4" and case_of(path) != "checkpoint":
                assert reader.layout.long_size == 4
            if form == ".big" and case_of(path).startswith(("tensor_", "storage_", "view_")):
                assert reader.layout.long_size == 8


@pytest.mark.parametrize("path", [p for p in FORMAT if len(p.suffixes) == 1], ids=name_of)
def test_written_in_every_layout_means_the_same(subtests, path):
    """A value written in another encoding, byte order or size of long has the same description."""
    value = read(path)
    wanted = description(value)
    for layout in LAYOUTS:
        with subtests.test(layout=layout):
            if case_of(path) in LONGS_BEYOND_4 and LAYOUTS[layout].long_size == 4:
                with pytest.raises(WriteError):
                    written(value, LAYOUTS[layout])
                continue
            data = written(value, LAYOUTS[layout])
            assert description(read(data, **stated(LAYOUTS[layout]))) == wanted


@pytest.mark.slow
def test_other_forms_become_the_binary_file(subtests):
    """A file in ascii, big-endian or with 4-byte longs, written as Lua's default, is the file Lua wrote by default.

    Where Lua wrote the pairs of a table in another order the second time, descriptions are compared.
    """
    for path in [p for p in FORMAT if len(p.suffixes) == 2 and p.suffixes[0] in FORMS]:
        with subtests.test(name_of(path)):
            plain = path.with_name(case_of(path) + ".t7")
            value = read(path)
            data = written(value, LITTLE8)
            assert len(data) == plain.stat().st_size
            assert description(read(data)) == description(read(plain))


@pytest.mark.slow
def test_models_hold_tensors_inside_their_storages(subtests):
    """Every tensor of a model file is a view of its storage, has a path, and its elements can be read."""
    for path in corpus("nn/*.t7", "rnn/*.t7", "models/*.t7"):
        with subtests.test(name_of(path)):
            value = read(path)
            found = list(tensors(value))
            for where, tensor in found:
                assert where.startswith("root")
                tensor.check()
                assert tensor.numpy().shape == tensor.shape
            viewed = {id(tensor.storage) for _, tensor in found if tensor.storage}
            assert viewed <= {id(storage) for storage in storages(value)}


def test_recorded_inputs_and_outputs_are_there(subtests):
    """A file of computed values is a table with `input` and `output`."""
    for path in corpus("nn/*.io.t7", "rnn/*.io.t7", "models/*.io.t7"):
        with subtests.test(name_of(path)):
            value = read(path)
            assert value["input"] is not None
            assert value["output"] is not None


@pytest.mark.parametrize("form", ["", ".ascii"])
def test_class_with_a_payload_of_its_own(form):
    """A class that writes an int, an object and a double is read, described as in Lua and written the same."""

    class Custom:
        @staticmethod
        def read(reader, obj):
            obj["a"] = float(reader.read_int())
            obj["rest"] = reader.read_object()
            obj["q"] = reader.read_double()

        @staticmethod
        def write(writer, obj):
            writer.write_int(int(obj["a"]))
            writer.write_object(obj["rest"])
            writer.write_double(obj["q"])

    path = corpus(f"format/object_custom_write{form}.t7")[0]
    register_class("corpus.Custom")(Custom)
    try:
        reader = T7Reader(path)
        value = reader.read_object()
        assert describe_lua(value) == golden(path)
        assert value["c"]["a"] == 21.0
        assert value["c"]["rest"]["twice"] == 42.0
        assert value["c"]["q"] == 5.25
        assert written(value, reader.layout) == path.read_bytes()
    finally:
        unregister_class("corpus.Custom")
