"""The canonical description of a value, as data that becomes JSON: a Lua value as Lua Torch sees it, others as PyTorch.

Every node is a dict with its kind under `t`.

Of a Lua value: nil, bool, num, str, table, object, tensor, storage, function, cdata, userdata, values for several in
one file, or ref for an object that was described before. Ids count from 1 in the order of the walk, offsets count
elements from 0, the pairs of a table are sorted. A storage's `crc32` is that of its little-endian bytes.

Of a Python-side value: none, bool, int, float, str, bytes, list, tuple, dict, odict, tensor, module, or other with the
name of the class under `v`. Of a pickled module `parameters`, `buffers`, `modules` and `attributes` are pairs of name
and node; of another object `args`, `kwargs`, `state`, `items` and `pairs` are the nodes that it is constructed from, if
not empty. A storage's number is its order of appearance; tensors whose storages begin at the same address have the same
number. Shared values are described at each occurrence; a value that contains itself is `{"t": "cycle", "up": levels}`
where it would begin again.
"""

from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

from ..graph.dtypes import NUMPY_ELEMENTS
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value, index_key
from ..graph.python import (
    MODULE_PARTS,
    UNSET,
    Device,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PythonGlobal,
    PythonObject,
    TorchConstant,
)
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage
from ..graph.walk import Fill, Path, Rebuilder, fill_list
from ..limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ..text import printable_json

Node = dict[str, Any]
_CONTAINERS = (list, tuple, dict, SparseTensor, PythonObject)


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> Fill:
    """Return a list of pairs to be filled."""
    slots = [list(pair) for pair in pairs]
    return Fill(slots, _sides(slots))


def _sides(slots: list[Any]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield both sides of each pair, in place of which their descriptions are put."""
    for slot in slots:
        yield slot, 0, 0, slot[0]
        yield slot, 1, 1, slot[1]


def _parts(node: Node, names: Iterable[str], values: Iterable[Any]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Return named parts of a node to be filled, whose order is fixed at once."""
    names = list(names)
    node.update(dict.fromkeys(names))
    return zip(repeat(node), names, names, values)


# Lua


def _sort_key(key: Value) -> bytes:
    """Return the sort key of a table's key: numbers, strings, booleans, then the rest by class name."""
    if isinstance(key, bool):
        return b"3" + str(key).lower().encode()
    if isinstance(key, (int, float)):
        shifted = float(key) + 1e15
        text = f"{shifted:040.10f}" if math.isfinite(shifted) else f"{shifted:>40}"
        return b"1" + text.encode()
    if isinstance(key, bytes):
        return b"2" + key
    if isinstance(key, TorchObject):
        return b"4" + key.class_name.encode()
    return b"4" + (_lua_class(key) or ("function" if isinstance(key, LuaFunction) else "table")).encode()


def _lua_class(value: Value) -> str:
    if isinstance(value, (Tensor, Storage)):
        return value.lua_class or value.element.name
    return value.lua_class if isinstance(value, (TdsHash, TdsVec)) else ""


def _live_pairs(table: Table) -> list[tuple[Value, Value]]:
    """Return the pairs that Lua would have after reading: the last of equal keys, without nil values; sorted."""
    pairs = {index_key(key): (key, value) for key, value in table.raw_items()}
    live = [(key, value) for key, value in pairs.values() if value is not None]
    return sorted(live, key=lambda pair: _sort_key(pair[0]))


class _LuaDescriber(Rebuilder):
    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def scalar(self, value: Any, path: Path | None, key: Any) -> Node:
        if value is None:
            return {"t": "nil"}
        if isinstance(value, bool):
            return {"t": "bool", "v": value}
        if isinstance(value, (int, float)):
            return {"t": "num", "v": f"{value:.17g}"}  # without the sign of a NaN
        return {"t": "str", "hex": (value.encode() if isinstance(value, str) else value).hex()}

    def make(self, value: Value, path: Path) -> Any:
        self._count += 1
        self.made[id(value)] = {"t": "ref", "id": self._count}
        node: Node = {"t": "", "id": self._count}
        if isinstance(value, Table):
            kv = _pairs(_live_pairs(value))
            return Fill(node | {"t": "table", "n": len(kv.value), "kv": kv.value}, kv.parts)
        if isinstance(value, TorchObject):
            if value.fields is None:
                return {"t": "userdata", "class": value.class_name}
            kv = _pairs(_live_pairs(value.fields))
            return Fill(node | {"t": "object", "class": value.class_name, "kv": kv.value}, kv.parts)
        if isinstance(value, Storage):
            crc = value.crc32() if value.count else 0
            return node | {"t": "storage", "class": _lua_class(value), "n": value.count, "crc32": crc}
        if isinstance(value, Tensor):
            node |= {"t": "tensor", "class": _lua_class(value), "size": list(value.size), "stride": list(value.stride)}
            node |= {"offset": value.offset, "storage": None}
            return node if value.storage is None else Fill(node, _parts(node, ["storage"], [value.storage]))
        if isinstance(value, LuaFunction):
            upvalues = value.upvalue_list()
            up: list[Node] = [{"name": entry.name.decode("utf-8", "replace"), "v": None} for entry in upvalues]
            parts = ((slot, "v", entry.name, entry.value) for slot, entry in zip(up, upvalues))
            return Fill(node | {"t": "function", "nups": len(up), "up": up}, parts)
        if not isinstance(value, (TdsHash, TdsVec)):
            raise TypeError(f"{type(value).__name__} is not a Lua value")
        # Every tds collection is described under its current name, as the old name has the same metatable in Lua.
        kv = _pairs(_live_pairs(value.content) if isinstance(value, TdsHash) else _numbered(value.elements))
        return Fill(node | {"t": "cdata", "class": value.lua_class, "kv": kv.value}, kv.parts)


def _numbered(items: list[Value]) -> Iterable[tuple[float, Value]]:
    return ((float(number), item) for number, item in enumerate(items, 1))


def describe_lua(*values: Value) -> Node:
    """Describe the Lua values of one file, numbering their objects together; see the module's docstring.

    Args:
        values: at least one; a single one is described as it is.

    Source: the walk in `testfiles/gen/describe.lua`, which ran in Lua Torch.
    """
    describer = _LuaDescriber()
    nodes = [describer.run(value) for value in values]
    return nodes[0] if len(nodes) == 1 else {"t": "values", "v": nodes}


# Python


class _PythonDescriber(Rebuilder):
    remembers = False

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._budget = Budget(limits, "a description that repeats shared values")
        self._numbers: dict[tuple[int, int], int] = {}
        self._sums: dict[int, int] = {}
        self._seen: set[int] = set()
        self._around: dict[int, int] = {}
        """The containers being described, each with its depth."""

    def scalar(self, value: Any, path: Path | None, key: Any) -> Node:
        if value is None:
            return {"t": "none"}
        if isinstance(value, bytes):
            return {"t": "bytes", "hex": value.hex()}
        shown = str(value) if type(value) is int else repr(value) if isinstance(value, float) else value
        return {"t": type(value).__name__, "v": shown}

    def make(self, value: Any, path: Path) -> Any:
        value = value.tensor if isinstance(value, QuantizedTensor) else value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, NumpyScalar):
            return _numpy_scalar(value)
        if not isinstance(value, _CONTAINERS):
            return {"t": "other", "v": _class_name(value)}
        if id(value) in self._around:
            return {"t": "cycle", "up": len(self._around) - self._around[id(value)]}
        # Items, not keys: looking a key up costs as much as the file makes its hash cost.
        fill, count = _container(value)
        if id(value) in self._seen:
            self._budget.spend(STEPS_PER_NODE * (1 + count))
        self._seen.add(id(value))
        self._around[id(value)] = len(self._around)

        fill.done = partial(self._around.pop, id(value))
        return fill

    def _tensor(self, value: Tensor) -> Node:
        storage = value.storage
        if storage is None:
            storage = Storage.empty(value.element)
            self._kept.append(storage)
        base = storage.base or storage
        number = self._numbers.setdefault((id(base), storage.base_offset), len(self._numbers) + 1)
        crc = self._sums.get(id(storage))
        if crc is None:
            crc = self._sums[id(storage)] = storage.crc32()
        return {
            "t": "tensor",
            "dtype": value.element.name,
            "size": list(value.shape),
            "stride": list(value.stride if value.size or value.is_scalar else (1,)),
            "offset": value.offset,
            "storage": number,
            "nbytes": storage.nbytes,
            "crc32": crc,
            "requires_grad": value.requires_grad,
            "parameter": value.is_parameter,
        }


def _container(value: Any) -> tuple[Fill, int]:
    """Return the node of a container, to be filled, and the number of its parts."""
    if isinstance(value, dict):
        slots = _pairs(value.items())
        kind = "odict" if isinstance(value, OrderedDict) else "dict"
        return Fill({"t": kind, "v": slots.value}, slots.parts), len(slots.value)
    if isinstance(value, (list, tuple)):
        items = fill_list(value)
        return Fill({"t": "tuple" if isinstance(value, tuple) else "list", "v": items.value}, items.parts), len(value)
    if isinstance(value, SparseTensor):
        node: Node = {"t": "sparse", "layout": value.layout, "size": list(value.size)}
        names = [name for name in ("indices", "plain_indices", "values") if getattr(value, name) is not None]
        return Fill(node, _parts(node, names, [getattr(value, name) for name in names])), 0
    if value.is_module:
        attributes = value.attributes
        rest = {name: item for name, item in attributes.items() if name not in MODULE_PARTS}
        groups = {**{part[1:]: attributes[part] for part in MODULE_PARTS}, "attributes": rest}
        found = {name: _pairs(group.items()) for name, group in groups.items()}
        node = {"t": "module", "v": value.path, **{name: fill.value for name, fill in found.items()}}
        parts = chain.from_iterable(fill.parts for fill in found.values())
        return Fill(node, parts), sum(len(group) for group in groups.values())
    state = None if value.state is UNSET else value.state
    held = {"args": value.args, "kwargs": value.kwargs, "state": state, "items": value.items, "pairs": value.pairs}
    held = {name: part for name, part in held.items() if part or not (part is None or isinstance(part, (tuple, list)))}
    node = {"t": "other", "v": value.path}
    return Fill(node, _parts(node, held, held.values())), len(held)


def _numpy_scalar(value: NumpyScalar) -> Node:
    """Describe a numpy scalar: float64 is a Python float, a string a Python string, the rest neither."""
    code, data = value.dtype.code, value.data
    if isinstance(data, bytes):
        if code == "f8" and len(data) == 8:
            (number,) = struct.unpack((">" if value.dtype.order == ">" else "<") + "d", data)
            return {"t": "float", "v": f"np.float64({number!r})"}
        if code.startswith("S"):
            return {"t": "bytes", "hex": data.rstrip(b"\0").hex()}
        if code.startswith("U"):
            order = "be" if value.dtype.order == ">" else "le"
            return {"t": "str", "v": data.decode(f"utf-32-{order}", "replace").rstrip("\0")}
    element = NUMPY_ELEMENTS.get(code)
    return {"t": "other", "v": f"numpy.{element.name if element else code}"}


def _class_name(value: Any) -> str:
    """Return the name of the value's class in Python."""
    if isinstance(value, (PythonObject, PythonGlobal)):
        return value.path
    if isinstance(value, NumpyArray):
        return value.cls
    if isinstance(value, TorchConstant):
        return f"torch.{value.kind}"
    if isinstance(value, Storage):
        return f"torch.{value.element.torch_storage or 'UntypedStorage'}"
    names = {Device: "torch.device", NumpyDtype: "numpy.dtype", UntypedStorage: "torch.storage.UntypedStorage"}
    kind = type(value)
    return names.get(kind) or f"{kind.__module__}.{kind.__qualname__}"


def describe_python(value: Any, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Describe a Python-side value; see the module's docstring.

    Args:
        value: the result of `PtReader.read`.
        limits: bound how often shared values are repeated.

    Raises:
        LimitError: the description would repeat shared values too often.

    Source: `describe` in `testfiles/gen/pt_cases.py`, which ran in PyTorch.
    """
    return _PythonDescriber(limits).run(value)  # type: ignore[no-any-return]


def json_pieces(node: Any) -> Iterator[str]:
    """Yield compact JSON of dicts, lists and scalars at any depth; the `json` module would recurse."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    stack: list[tuple[Iterator[Any], str]] = [(iter((node,)), "")]
    first = True
    while stack:
        items, end = stack[-1]
        for item in items:
            if not first and len(stack) > 1:
                yield ","
            first = False
            if type(item) is tuple:  # a key of a dict with its value
                yield printable_json(encode(item[0])) + ":"
                item = item[1]
            if isinstance(item, (dict, list)):
                yield "{" if isinstance(item, dict) else "["
                inside = (iter(item.items()), "}") if isinstance(item, dict) else (iter(item), "]")
                stack.append(inside)
                first = True
                break
            yield printable_json(encode(item))
        else:
            stack.pop()
            yield end
            first = False
