"""Hypothesis strategies for whole graphs: Lua values and Python-side values, with all that files can hold.

Views over shared storages, overlaps, strides of 0, tables and objects that are shared and cyclic, functions, deep
nesting. Numbers are such that every encoding can hold them: a nan is the plain one, and longs fit 4 bytes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
from hypothesis import strategies as st

from t7bridge import LuaFunction, Storage, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.graph import (
    ELEMENT_TYPES,
    PACKED,
    DefaultDict,
    Device,
    ElementType,
    PythonGlobal,
    TorchConstant,
    TorchSize,
    index_key,
)

LUA_ELEMENTS = [element for element in ELEMENT_TYPES.values() if element.lua]
PT_ELEMENTS = [element for element in ELEMENT_TYPES.values() if element.name not in PACKED]
LARGEST = 24
"""Elements of a storage."""

lua_numbers = st.one_of(
    st.floats(allow_nan=False),
    st.integers(-(2**53), 2**53).map(float),
    st.sampled_from((0.0, -0.0, float("inf"), 1e-320)),
)
lua_strings = st.one_of(
    st.binary(max_size=12), st.sampled_from((b"", b"weight", b"modules", "größe".encode(), b"\xff\0\n"))
)
lua_scalars = st.one_of(st.none(), st.booleans(), lua_numbers, st.just(float("nan")), lua_strings)
class_names = st.sampled_from(("nn.Linear", "nn.Sequential", "corpus.Custom", "nn.gModule", "my.Ürsprung"))
# Strategies are made here once where they can be: Hypothesis looks through each new one before it draws.
lua_scalar_keys = st.one_of(st.booleans(), lua_numbers, lua_strings)
lua_field_names = st.lists(lua_strings, max_size=5)
empty_tensors = st.builds(Tensor, st.sampled_from(LUA_ELEMENTS), st.none())
lua_nodes = st.lists(
    st.one_of(
        st.builds(Table),
        st.builds(TorchObject, class_names, st.sampled_from((None, 1, 2))),
        st.builds(LuaFunction, st.binary(max_size=30), tag=st.sampled_from((6, 7, 8))),
        st.builds(TdsHash),
        st.builds(TdsVec),
    ),
    min_size=1,
    max_size=12,
)


def _array(draw: Any, element: ElementType) -> np.ndarray:
    """The elements of a storage, of all bit patterns that every encoding can hold."""
    count = draw(st.integers(0, LARGEST))
    data = draw(st.binary(min_size=count * element.itemsize, max_size=count * element.itemsize))
    array = np.frombuffer(data, element.code if element.code != "?" else "u1").copy()
    if element.code == "?":
        return (array & 1).astype("?")
    if element.name == "int64":
        return array % 2**31
    if array.dtype.kind in "fc":
        parts = array.view(f"f{element.itemsize // (2 if array.dtype.kind == 'c' else 1)}")
        missing = np.isnan(parts)
        parts[missing] = np.nan
        if parts.itemsize == 2:  # Lua Torch reads the text as this one
            parts.view("u2")[missing] = 0x7FFF
    return array


dimension_counts = st.integers(1, 4)
steps = st.integers(0, 5)


@st.composite
def storages(draw: Any, elements: list[ElementType]) -> Storage:
    """A storage of one of the element types."""
    element = draw(st.sampled_from(elements))
    array = _array(draw, element)
    return Storage(element, len(array), array)


@st.composite
def views(draw: Any, pool: list[Storage], scalars: bool = False) -> Tensor:
    """A tensor on one of the storages: any sizes and strides that stay inside, 0 and overlaps among them."""
    storage = draw(st.sampled_from(pool))
    if not storage.count:
        return Tensor(storage.element, storage, *(((0,), (1,)) if scalars else ((), ())))
    if scalars and draw(st.booleans()):
        return Tensor(storage.element, storage, (), (), draw(st.integers(0, storage.count - 1)), True)
    offset = draw(st.integers(0, storage.count - 1))
    left = storage.count - 1 - offset
    size, stride = [], []
    for _ in range(draw(dimension_counts)):
        step = draw(steps)
        extent = draw(st.integers(1, 3 if not step else min(4, left // step + 1)))
        left -= (extent - 1) * step
        size.append(extent)
        stride.append(step)
    return Tensor(storage.element, storage, tuple(size), tuple(stride), offset)


def _entries(draw: Any, keys: list[Any], values: st.SearchStrategy[Any], table: Table) -> None:
    """Fill a table; its keys are distinct for Lua."""
    known: set[Any] = set()
    for key in keys:
        name = index_key(key) if isinstance(key, (bool, float, bytes)) else id(key)
        if (type(name), name) not in known:
            known.add((type(name), name))
            table.raw_keys.append(key)
            table.raw_values.append(draw(values))


@st.composite
def lua_values(draw: Any, elements: list[ElementType] | None = None) -> Any:
    """A Lua value: a graph of up to 12 tables, objects, functions and collections over up to 3 storages."""
    pool = draw(st.lists(storages(elements or LUA_ELEMENTS), min_size=1, max_size=3))
    tensors = draw(st.lists(views(pool), min_size=2, max_size=4))
    nodes = draw(lua_nodes)
    # A function without a number is written wherever it is met, so it may stand at one place only.
    loose = [node for node in nodes if not (isinstance(node, LuaFunction) and node.tag == 6)]
    known = [*pool, *tensors, *loose]
    inside = st.one_of(lua_scalars, st.sampled_from(known), st.sampled_from([*tensors, *loose]), empty_tensors)
    inside_of_vec = st.lists(inside, max_size=5)
    keys = st.lists(st.one_of(lua_scalar_keys, lua_scalar_keys, st.sampled_from(known)), max_size=6)
    for node in nodes:
        if isinstance(node, Table):
            _entries(draw, draw(keys), inside, node)
        elif isinstance(node, TorchObject):
            node.fields = Table()
            _entries(draw, draw(lua_field_names), inside, node.fields)
        elif isinstance(node, TdsHash):
            _entries(draw, draw(keys), inside, node.content)
        elif isinstance(node, TdsVec):
            node.elements.extend(draw(inside_of_vec))
        else:
            node.upvalues = draw(_upvalues(inside, node.tag))
    root: Any = draw(st.sampled_from(nodes))
    if draw(st.booleans()):
        root = Table.from_list([*loose, *tensors])
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 40, 300)))):  # nesting
        root = Table([1.0], [root]) if draw(st.booleans()) else Table([b"inner"], [root])
    return root


@st.composite
def _upvalues(draw: Any, inside: st.SearchStrategy[Any], tag: int) -> Table:
    """The upvalues of a function as in files."""
    table = Table()
    for number in range(1, draw(st.integers(1, 4))):
        value = draw(inside)
        entry = Table([b"name", b"id", b"value"], [b"up%d" % number, float(number), value]) if tag == 8 else value
        table.raw_keys.append(float(number))
        table.raw_values.append(entry)
    return table


texts = st.one_of(st.text(max_size=8), st.sampled_from(("", "conv1.weight", "größe", "a\nb")))
py_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**70), 2**70), st.floats(), texts, st.binary(max_size=12),
    st.complex_numbers(allow_nan=False, max_magnitude=1e10),
)  # fmt: skip
py_constants = st.one_of(
    st.builds(TorchConstant, st.just("dtype"), st.sampled_from(("float32", "bfloat16", "int64"))),
    st.builds(Device, st.sampled_from(("cpu", "cuda")), st.sampled_from((None, 0, 1))),
    st.lists(st.integers(0, 9), max_size=4).map(TorchSize),
    st.builds(PythonGlobal, st.just("torch.nn.parameter"), st.just("Parameter")),
)
py_leaves = st.one_of(py_scalars, py_constants)
py_keys = st.one_of(texts, st.integers(-5, 5), st.tuples(texts, st.integers(0, 3)))
some_py_keys = st.lists(py_keys, max_size=5)
py_nodes: st.SearchStrategy[list[Any]] = st.lists(
    st.one_of(st.builds(dict), st.builds(OrderedDict), st.builds(list), st.builds(Counter), st.builds(DefaultDict)),
    min_size=1,
    max_size=10,
)


@st.composite
def python_values(draw: Any, elements: list[ElementType] | None = None) -> Any:
    """A value of a `.pt`: a graph of builtins over up to 3 storages."""
    pool = draw(st.lists(storages(elements or PT_ELEMENTS), min_size=1, max_size=3))
    tensors = draw(st.lists(views(pool, scalars=True), max_size=4))
    for tensor in tensors:
        if tensor.element.code[0] in "fc":
            tensor.requires_grad = draw(st.booleans())
            tensor.is_parameter = draw(st.booleans())
    nodes = draw(py_nodes)
    tuples = draw(
        st.lists(st.lists(st.one_of(py_leaves, st.sampled_from([*nodes, *tensors])), max_size=3).map(tuple), max_size=3)
    )
    inside = st.one_of(py_leaves, st.sampled_from([*nodes, *tensors, *tuples]))
    inside_of_list = st.lists(inside, max_size=5)
    for node in nodes:
        if isinstance(node, list):
            node.extend(draw(inside_of_list))
            continue
        for key in draw(some_py_keys):
            node[key] = draw(inside)
    root: Any = draw(st.sampled_from(nodes))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 30)))):
        root = {"inner": root} if draw(st.booleans()) else [root]
    return root
