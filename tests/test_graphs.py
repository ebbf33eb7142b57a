"""Random graphs of everything that files can hold: written and read in all encodings and both formats, and equal."""

from __future__ import annotations

import io
import json

import pytest
from helpers import LAYOUTS, LITTLE8, description, read, stated, walk, written
from hypothesis import HealthCheck, Phase, given, seed, settings
from strategies import LUA_ELEMENTS, lua_values, python_values

import t7bridge
from t7bridge import LuaFunction, PtReader, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.conversion import to_lua
from t7bridge.formats import LegacyPtWriter, PtWriter
from t7bridge.graph import COMPOSITE, ELEMENT_TYPES, entries
from t7bridge.io import Output
from t7bridge.values import describe_python, differences

SLOW = settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)


def pt_bytes(value, kind=PtWriter) -> bytes:
    """A value as a `.pt`."""
    file = io.BytesIO()
    output = Output(file)
    writer = kind(output)
    writer.write(value)
    writer.finish()
    output.flush()
    return file.getvalue()


def described(value) -> str:
    """The canonical description of a Python-side value as text."""
    return json.dumps(describe_python(value))


@pytest.mark.slow
@SLOW
@given(value=lua_values())
def test_lua_graphs_in_every_encoding(value):
    """A Lua graph is the same after writing and reading it, in every encoding; and so are the bytes the second time."""
    wanted = description(value)
    for layout in LAYOUTS.values():
        data = written(value, layout)
        again = read(data, **stated(layout))
        assert description(again) == wanted, layout
        assert not differences(value, again), layout
        assert written(again, layout) == data, layout


@pytest.mark.slow
@SLOW
@given(value=lua_values())
def test_lua_graphs_through_pytorch_s_format(value, tmp_path_factory):
    """A Lua graph has the same bytes after a round trip through a `.pt` in `tree` mode."""
    folder = tmp_path_factory.mktemp("x")
    (folder / "a.t7").write_bytes(written(value, LITTLE8))
    try:
        t7bridge.convert(folder / "a.t7", folder / "b.pt", mode="tree")
        t7bridge.convert(folder / "b.pt", folder / "c.t7")
    finally:
        data = (folder / "c.t7").read_bytes() if (folder / "c.t7").exists() else b""
        for path in folder.iterdir():
            path.unlink()
    assert data == written(value, LITTLE8)


@pytest.mark.slow
@SLOW
@given(value=python_values())
def test_python_graphs(value):
    """A value of a `.pt` is the same after writing and reading it."""
    assert described(PtReader(pt_bytes(value)).read()) == described(value)


@pytest.mark.slow
@SLOW
@given(value=python_values([element for element in ELEMENT_TYPES.values() if element.torch_storage and element.native]))
def test_python_graphs_in_the_legacy_format(value):
    """So it is in the format of PyTorch 0.2 to 1.5, which has fewer element types."""
    assert described(PtReader(pt_bytes(value, LegacyPtWriter)).read()) == described(value)


@pytest.mark.slow
@SLOW
@given(value=python_values())
def test_python_graphs_through_lua_s_format(value, tmp_path_factory):
    """A value of a `.pt` is the same after it was a `.t7`."""
    folder = tmp_path_factory.mktemp("x")
    (folder / "a.pt").write_bytes(pt_bytes(value))
    try:
        t7bridge.convert(folder / "a.pt", folder / "b.t7")
        t7bridge.convert(folder / "b.t7", folder / "c.pt")
        again = described(PtReader((folder / "c.pt").read_bytes()).read())
    finally:
        for path in folder.iterdir():
            path.unlink()
    assert again == described(value)


@pytest.mark.slow
@SLOW
@given(value=python_values([ELEMENT_TYPES[element.name] for element in LUA_ELEMENTS]))
def test_python_graphs_as_lua_graphs(value):
    """The Lua form of a Python-side value can be written and read in every encoding."""
    lua = to_lua(value).value
    for layout in LAYOUTS.values():
        assert description(read(written(lua, layout), **stated(layout))) == description(lua)


def views_of(value) -> list[Tensor]:
    """The tensors in a Lua graph."""
    return [visit.value for visit in walk(value) if isinstance(visit.value, Tensor) and visit.value.storage]


def is_cyclic(value) -> bool:
    """Return whether something in a Lua graph contains itself."""
    open_: list[tuple[object, frozenset[int]]] = [(value, frozenset())]
    for _ in range(2000):
        if not open_:
            return False
        item, path = open_.pop()
        if id(item) in path:
            return True
        open_ += [(inner, path | {id(item)}) for _, inner in entries(item) if isinstance(inner, COMPOSITE)]
    return False


CLAIMS = {
    "strides of 0": lambda value: any(0 in tensor.stride for tensor in views_of(value)),
    "overlaps": lambda value: any(tensor.numel > tensor.storage.count for tensor in views_of(value)),
    "shared storages": lambda value: len(views_of(value)) > len({id(tensor.storage) for tensor in views_of(value)}),
    "cycles": is_cyclic,
    "nesting": lambda value: sum(isinstance(visit.value, Table) for visit in walk(value)) > 250,
    **{
        kind.__name__: lambda value, kind=kind: any(isinstance(visit.value, kind) for visit in walk(value))
        for kind in (Table, TorchObject, LuaFunction, TdsHash, TdsVec)
    },
}


@pytest.mark.slow
def test_graphs_are_what_they_claim():
    """The strategy builds each of the things that it is for."""
    missing = set(CLAIMS)

    @settings(max_examples=20, phases=[Phase.generate])
    @given(value=lua_values())
    def look(value):
        missing.difference_update({claim for claim in missing if CLAIMS[claim](value)})

    for number in range(75):
        if missing:
            seed(number)(look)()
    assert not missing
