"""The canonical description of a Lua value: its content as Lua Torch sees it, as data that becomes JSON.

Every node is a dict with its kind under `t`: nil, bool, num, str, table, object, tensor, storage, function, cdata,
userdata, values for several in one file, or ref for an object that was described before. Ids
count from 1 in the order of the walk, offsets count elements from 0, the pairs of a table are sorted. A storage's
`crc32` is that of its little-endian bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value, index_key
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..text import printable_json

Node = dict[str, Any]


def number_text(value: float) -> str:
    """Return a double as C's `%.17g` prints it, without the sign of a NaN."""
    return f"{value:.17g}"


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
    return b"4" + _class_of(key).encode()


def _class_of(value: Value) -> str:
    if isinstance(value, (Tensor, Storage)):
        return value.lua_class or value.element.name
    if isinstance(value, TorchObject):
        return value.class_name
    if isinstance(value, (TdsHash, TdsVec)):
        return value.lua_class
    return "function" if isinstance(value, LuaFunction) else "table"


def _live_pairs(table: Table) -> list[tuple[Value, Value]]:
    """Return the pairs that Lua would have after reading: the last of equal keys, without nil values; sorted."""
    pairs = {index_key(key): (key, value) for key, value in table.raw_items()}
    live = [(key, value) for key, value in pairs.values() if value is not None]
    return sorted(live, key=lambda pair: _sort_key(pair[0]))


class _Describer:
    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._open: list[tuple[Any, Any, Value]] = []
        """Stack of work: a container, the position in it, the value; the next one last."""

    def run(self, root: Value) -> Node:
        result: list[Any] = [None]
        self._add(result, 0, root)
        while self._open:
            target, place, value = self._open.pop()
            target[place] = self._node(value)
        return result[0]  # type: ignore[no-any-return]

    def _add(self, target: Any, place: Any, value: Value) -> None:
        self._open.append((target, place, value))

    def _node(self, value: Value) -> Node:
        if value is None:
            return {"t": "nil"}
        if isinstance(value, bool):
            return {"t": "bool", "v": value}
        if isinstance(value, (int, float)):
            return {"t": "num", "v": number_text(value)}
        if isinstance(value, (bytes, str)):
            return {"t": "str", "hex": (value.encode() if isinstance(value, str) else value).hex()}
        number = self._ids.get(id(value))
        if number is not None:
            return {"t": "ref", "id": number}
        number = self._ids[id(value)] = len(self._ids) + 1
        return self._object(value, number)

    def _object(self, value: Value, number: int) -> Node:
        if isinstance(value, Table):
            kv = self._pairs(_live_pairs(value))
            return {"t": "table", "id": number, "n": len(kv), "kv": kv}
        if isinstance(value, TorchObject):
            if value.fields is None:
                return {"t": "userdata", "class": value.class_name}
            return {
                "t": "object",
                "id": number,
                "class": value.class_name,
                "kv": self._pairs(_live_pairs(value.fields)),
            }
        if isinstance(value, Storage):
            crc = value.crc32() if value.count else 0
            return {"t": "storage", "id": number, "class": _class_of(value), "n": value.count, "crc32": crc}
        if isinstance(value, Tensor):
            node: Node = {
                "t": "tensor",
                "id": number,
                "class": _class_of(value),
                "size": list(value.size),
                "stride": list(value.stride),
                "offset": value.offset,
                "storage": None,
            }
            if value.storage is not None:
                self._add(node, "storage", value.storage)
            return node
        if isinstance(value, LuaFunction):
            upvalues = value.upvalue_list()
            up: list[Node] = [{"name": entry.name.decode("utf-8", "replace"), "v": None} for entry in upvalues]
            for slot, entry in reversed(list(zip(up, upvalues))):
                self._add(slot, "v", entry.value)
            return {"t": "function", "id": number, "nups": len(up), "up": up}
        if isinstance(value, TdsHash):
            kv = self._pairs(_live_pairs(value.content))
        elif isinstance(value, TdsVec):
            kv = self._pairs([(float(place), item) for place, item in enumerate(value.elements, 1)])
        else:
            raise TypeError(f"{type(value).__name__} is not a Lua value")
        # Every tds collection is described under its current name, as the old name has the same metatable in Lua.
        return {"t": "cdata", "id": number, "class": value.lua_class, "kv": kv}

    def _pairs(self, pairs: list[tuple[Value, Value]]) -> list[list[Any]]:
        slots: list[list[Any]] = [[None, None] for _ in pairs]
        for slot, (key, value) in zip(reversed(slots), reversed(pairs)):
            self._add(slot, 1, value)
            self._add(slot, 0, key)
        return slots


def describe_value(value: Value) -> Node:
    """Describe a Lua value; see the module's docstring.

    Args:
        value: the result of `T7Reader.read_object`.

    Source: the walk in `testfiles/gen/describe.lua`, which ran in Lua Torch.
    """
    return _Describer().run(value)


def describe_values(values: list[Value]) -> Node:
    """Describe the values of one file, numbering their objects together; see the module's docstring.

    Args:
        values: at least one; a single one is described as `describe_value` does.
    """
    describer = _Describer()
    nodes = [describer.run(value) for value in values]
    return nodes[0] if len(nodes) == 1 else {"t": "values", "v": nodes}


def json_pieces(node: Any) -> Iterator[str]:
    """Yield compact JSON of dicts, lists and scalars at any depth; the `json` module would recurse."""
    encode = json.JSONEncoder(ensure_ascii=False).encode

    def text(value: Any) -> str:
        return printable_json(encode(value))

    stack: list[Any] = [iter((node,))]
    closing: list[str] = [""]
    first = True
    while stack:
        for item in stack[-1]:
            if not first and len(stack) > 1:
                yield ","
            if type(item) is tuple:  # a key of a dict with its value
                yield text(item[0]) + ":"
                item = item[1]
            if isinstance(item, dict):
                yield "{"
                stack.append(iter(item.items()))
                closing.append("}")
                first = True
                break
            if isinstance(item, list):
                yield "["
                stack.append(iter(item))
                closing.append("]")
                first = True
                break
            yield text(item)
            first = False
        else:
            stack.pop()
            yield closing.pop()
            first = False
