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
from functools import lru_cache
from itertools import islice, repeat
from typing import Any

from ..graph.dtypes import NUMPY_ELEMENTS
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value, class_of, index_key
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
from ..graph.walk import SCALARS
from ..limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ..text import printable_json

Node = dict[str, Any]
_CONTAINERS = (list, tuple, dict, SparseTensor, PythonObject)


class _Undescribed:
    """A value inside a node that is still to be described: the nodes of all values may not fit into memory together."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


_UNFINISHED = (dict, list, _Undescribed)
"""The types of what is not the text of a scalar in a node: they may have values to be described in them."""


class _Describer:
    """Describes values one by one, without recursion: a node refers to the values in it, which are described later.

    A node is a dict: `t` is the kind of the value, and the other keys depend on that, see the module's docstring.
    A subclass says what the nodes of its values are. `whole` and `text` go through a node in the order of its text.
    """

    def scalar(self, value: Any) -> Node:
        """Describe a value without parts and identity."""
        raise NotImplementedError

    def begin(self, value: Any) -> tuple[Node, bool]:
        """Describe a value with parts or identity.

        Returns:
            Its node, in which parts may be undescribed; and whether `close` is to be called when all of them are.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Note that all in a value is described: the one that `begin` got last, of those that are not closed."""

    def part(self, value: Any) -> Any:
        """Return the node of a scalar; for another value, a mark that it is still to be described."""
        return self.scalar(value) if type(value) in SCALARS else _Undescribed(value)

    def pairs(self, pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
        """Return the nodes of pairs, as lists of two."""
        return [[self.part(key), self.part(item)] for key, item in pairs]

    def whole(self, node: Any) -> Any:
        """Return a node with all values in it described; the node itself is changed."""
        root = [node]
        # The places of nodes to go through, the next one last: a dict or list, and a key or index in it. `None` below
        # those in a value stands for its end, where it is to be closed.
        stack: list[tuple[Any, Any] | None] = [(root, 0)]
        while stack:
            place = stack.pop()
            if place is None:
                self.close()
                continue
            container, key = place
            inner = container[key]
            if type(inner) is _Undescribed:
                inner, closes = self.begin(inner.value)
                container[key] = inner
                if closes:
                    stack.append(None)
            keys = reversed(inner) if isinstance(inner, dict) else range(len(inner) - 1, -1, -1)
            stack += [(inner, key) for key in keys if isinstance(inner[key], _UNFINISHED)]
        return root[0]

    def text(self, node: Any) -> list[str]:
        """Return a node with everything in it as compact JSON, a text in parts of many pieces each."""
        pieces = _json(node, self)
        texts: list[str] = []
        while True:
            text = "".join(islice(pieces, _PIECES_JOINED))
            if not text:
                return texts
            texts.append(text)


_PIECES_JOINED = 10_000
"""Pieces that are joined to one text: a list of all of them would take far more memory than their letters."""


# Lua


def _sort_key(key: Value) -> bytes:
    """Return the sort key of a table's key: numbers, strings, booleans, then the rest by class name."""
    if isinstance(key, bool):
        return b"3" + str(key).lower().encode()
    if isinstance(key, (int, float)):
        # As in the script that ran in Lua. 1e15 makes usual keys positive, so that texts of equal length are ordered as
        # the numbers are.
        shifted = float(key) + 1e15
        text = f"{shifted:040.10f}" if math.isfinite(shifted) else f"{shifted:>40}"
        return b"1" + text.encode()
    if isinstance(key, bytes):
        return b"2" + key
    name = class_of(key)
    if name is None:
        name = "function" if isinstance(key, LuaFunction) else "table"
    return b"4" + name.encode()


def _live_pairs(table: Table) -> list[tuple[Value, Value]]:
    """Return the pairs that Lua would have after reading: the last of equal keys, without nil values; sorted."""
    pairs = {index_key(key): (key, value) for key, value in table.raw_items()}
    live = [(key, value) for key, value in pairs.values() if value is not None]
    return sorted(live, key=lambda pair: _sort_key(pair[0]))


class _LuaDescriber(_Describer):
    """Describes Lua values, each object once: where it occurs again it is its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """The number of each object described so far, from 1, by its identity."""

    def scalar(self, value: Any) -> Node:
        """Describe nil, a boolean, a number or a string; numbers with the digits that tell two doubles apart."""
        if value is None:
            return {"t": "nil"}
        if isinstance(value, bool):
            return {"t": "bool", "v": value}
        if isinstance(value, (int, float)):
            return {"t": "num", "v": f"{value:.17g}"}  # without the sign of a NaN
        data = value.encode() if isinstance(value, str) else value
        return {"t": "str", "hex": data.hex()}

    def begin(self, value: Value) -> tuple[Node, bool]:
        """Return the node of an object; it needs no `close`, as an object that occurs again is only its number."""
        return self._node(value), False

    def _node(self, value: Value) -> Node:
        """Return the node of an object, with its number; of one described before, its number alone."""
        if id(value) in self._numbers:
            return {"t": "ref", "id": self._numbers[id(value)]}
        number = len(self._numbers) + 1
        self._numbers[id(value)] = number
        # As in the script that ran in Lua: it has a number, by which it is referred to, but does not show it.
        if isinstance(value, TorchObject) and value.fields is None:
            return {"t": "userdata", "class": value.class_name}
        content = self._content(value)
        kind = content.pop("t")
        return {"t": kind, "id": number, **content}  # the kind is first in the text, then the number

    def _content(self, value: Value) -> Node:
        """Return the node of a value that has a number, without it; what is inside is described later."""
        if isinstance(value, Table):
            kv = self.pairs(_live_pairs(value))
            return {"t": "table", "n": len(kv), "kv": kv}
        if isinstance(value, TorchObject):
            assert value.fields is not None
            return {"t": "object", "class": value.class_name, "kv": self.pairs(_live_pairs(value.fields))}
        if isinstance(value, Storage):
            crc = value.crc32() if value.count else 0
            return {"t": "storage", "class": class_of(value), "n": value.count, "crc32": crc}
        if isinstance(value, Tensor):
            return {
                "t": "tensor",
                "class": class_of(value),
                "size": list(value.size),
                "stride": list(value.stride),
                "offset": value.offset,
                "storage": None if value.storage is None else _Undescribed(value.storage),
            }
        if isinstance(value, LuaFunction):
            upvalues = []
            for upvalue in value.upvalue_list():
                upvalues.append({"name": upvalue.name.decode("utf-8", "replace"), "v": self.part(upvalue.value)})
            return {"t": "function", "nups": len(upvalues), "up": upvalues}
        # Every tds collection is described under its current name, as the old name has the same metatable in Lua.
        if isinstance(value, TdsHash):
            return {"t": "cdata", "class": value.lua_class, "kv": self.pairs(_live_pairs(value.content))}
        if isinstance(value, TdsVec):
            return {"t": "cdata", "class": value.lua_class, "kv": self.pairs(_numbered(value.elements))}
        raise TypeError(f"{type(value).__name__} is not a Lua value")


def _numbered(items: list[Value]) -> Iterable[tuple[float, Value]]:
    """Return the items of a list with their keys in Lua: from 1, as doubles."""
    return ((float(number), item) for number, item in enumerate(items, 1))


def _lua(values: tuple[Value, ...]) -> tuple[_Describer, Any]:
    """Return a describer, and the node of values in which objects are not described yet."""
    describer = _LuaDescriber()
    nodes = [describer.part(value) for value in values]
    return describer, nodes[0] if len(nodes) == 1 else {"t": "values", "v": nodes}


def describe_lua(*values: Value) -> Node:
    """Describe the Lua values of one file, numbering their objects together; see the module's docstring.

    Args:
        values: at least one; a single one is described as it is.

    Source: the walk in `testfiles/gen/describe.lua`, which ran in Lua Torch.
    """
    describer, node = _lua(values)
    return describer.whole(node)  # type: ignore[no-any-return]


def lua_json(*values: Value) -> list[str]:
    """Return what `describe_lua` returns as the text of `json_pieces`, in much less memory."""
    describer, node = _lua(values)
    return describer.text(node)


# Python


class _PythonDescriber(_Describer):
    """Describes Python-side values, each as often as it occurs.

    Args:
        limits: bound how often shared values are repeated.
    """

    def __init__(self, limits: Limits) -> None:
        self._budget = Budget(limits, "a description that repeats shared values")
        self._numbers: dict[tuple[int, int], int] = {}
        """The number of each address at which a storage begins: identity of the memory, and offset in it."""
        self._crcs: dict[int, int] = {}
        """The CRC-32 of each storage described so far, by its identity."""
        self._seen: set[int] = set()
        """Identities of the containers described so far; to describe one again costs budget."""
        self._open_depths: dict[int, int] = {}
        """The depth of each container in which something is still to be described, by its identity; innermost last."""
        self._alive: list[Storage] = []
        """Storages made here: kept, so that no later object gets the identity of one."""

    def scalar(self, value: Any) -> Node:
        """Describe None, a truth value, a number, text or bytes."""
        if value is None:
            return {"t": "none"}
        if isinstance(value, bytes):
            return {"t": "bytes", "hex": value.hex()}
        shown = value
        if type(value) is int:  # JSON's numbers are doubles for many readers
            shown = str(value)
        elif isinstance(value, float):
            shown = repr(value)
        return {"t": type(value).__name__, "v": shown}

    def begin(self, value: Any) -> tuple[Node, bool]:
        """Describe a value with parts, a tensor or a name, see `_Describer`.

        Containers are to be closed, so that one that contains itself is noticed: what is open is around it.
        """
        if isinstance(value, QuantizedTensor):
            value = value.tensor
        if isinstance(value, Tensor):
            return self._tensor(value), False
        if isinstance(value, NumpyScalar):
            return _numpy_scalar(value), False
        if not isinstance(value, _CONTAINERS):
            return {"t": "other", "v": _class_name(value)}, False
        if id(value) in self._open_depths:
            levels = len(self._open_depths) - self._open_depths[id(value)]
            return {"t": "cycle", "up": levels}, False
        node, count_of_parts = self._container(value)
        # Shared values are described at each occurrence, of which there may be exponentially many.
        if id(value) in self._seen:
            self._budget.spend(STEPS_PER_NODE * (1 + count_of_parts))
        self._seen.add(id(value))
        self._open_depths[id(value)] = len(self._open_depths)
        return node, True

    def close(self) -> None:
        """Note that all in the innermost open container is described."""
        self._open_depths.popitem()

    def _container(self, value: Any) -> tuple[Node, int]:
        """Return the node of a container, and the number of its parts, with which the work of describing it grows.

        Args:
            value: of one of the types in `_CONTAINERS`.
        """
        if isinstance(value, dict):
            # Items, not keys: looking a key up costs as much as the file makes its hash cost.
            kind = "odict" if isinstance(value, OrderedDict) else "dict"
            return {"t": kind, "v": self.pairs(value.items())}, len(value)
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {"t": kind, "v": [self.part(item) for item in value]}, len(value)
        if isinstance(value, SparseTensor):
            return self._sparse_tensor(value), 0  # three tensors at most
        if value.is_module:
            return self._module(value)
        return self._object(value)

    def _sparse_tensor(self, value: SparseTensor) -> Node:
        """Return the node of a sparse tensor, with the tensors that its layout has."""
        node: Node = {"t": "sparse", "layout": value.layout, "size": list(value.size)}
        for name in ("indices", "plain_indices", "values"):
            part = getattr(value, name)
            if part is not None:
                node[name] = self.part(part)
        return node

    def _object(self, value: PythonObject) -> tuple[Node, int]:
        """Return the node of an object that is not a module, and the number of its parts.

        A part that is not there, `None`, or an empty tuple or list is left out: that is how most objects lack one.
        """
        state = None if value.state is UNSET else value.state
        parts = {"args": value.args, "kwargs": value.kwargs, "state": state, "items": value.items, "pairs": value.pairs}
        node: Node = {"t": "other", "v": value.path}
        count = 0
        for name, part in parts.items():
            is_empty = isinstance(part, (tuple, list)) and not part
            if part is not None and not is_empty:
                node[name] = self.part(part)
                count += 1
        return node, count

    def _module(self, value: PythonObject) -> tuple[Node, int]:
        """Return the node of a pickled module, and the number of its parts."""
        attributes = value.attributes
        groups = {part.removeprefix("_"): attributes[part] for part in MODULE_PARTS}
        groups["attributes"] = {name: item for name, item in attributes.items() if name not in MODULE_PARTS}
        node: Node = {"t": "module", "v": value.path}
        for name, group in groups.items():
            node[name] = self.pairs(group.items())
        return node, sum(map(len, groups.values()))

    def _tensor(self, value: Tensor) -> Node:
        """Return the node of a tensor as PyTorch has it."""
        storage = value.storage
        if storage is None:
            # On the device "meta", for example: described as PyTorch has it, with a storage of no bytes.
            storage = Storage.empty(value.element)
            self._alive.append(storage)
        stride = value.stride
        if not value.size and not value.is_scalar:
            # Lua's empty tensor has no dimension; in PyTorch it has one, of extent 0.
            stride = (1,)
        if id(storage) not in self._crcs:
            self._crcs[id(storage)] = storage.crc32()
        return {
            "t": "tensor",
            "dtype": value.element.name,
            "size": list(value.shape),
            "stride": list(stride),
            "offset": value.offset,
            "storage": self._number_of(storage),
            "nbytes": storage.nbytes,
            "crc32": self._crcs[id(storage)],
            "requires_grad": value.requires_grad,
            "parameter": value.is_parameter,
        }

    def _number_of(self, storage: Storage) -> int:
        """Return the number of the address at which a storage begins, the next one for a new address."""
        # A storage without a base is a whole memory, and begins at its byte 0.
        base = storage.base or storage
        address = (id(base), storage.base_offset)
        return self._numbers.setdefault(address, len(self._numbers) + 1)


def _numpy_scalar(value: NumpyScalar) -> Node:
    """Describe a numpy scalar: a float64 is a Python float, text and bytes are Python's; of others, the type alone."""
    code, data = value.dtype.code, value.data
    if isinstance(data, bytes):  # of a damaged file it may be anything
        # numpy strips zero bytes from the ends of strings, as here.
        if code == "f8" and len(data) == 8:
            byte_order = ">" if value.dtype.order == ">" else "<"
            (number,) = struct.unpack(f"{byte_order}d", data)
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
    describer = _PythonDescriber(limits)
    return describer.whole(describer.part(value))  # type: ignore[no-any-return]


def python_json(value: Any, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """Return what `describe_python` returns as the text of `json_pieces`, in much less memory."""
    describer = _PythonDescriber(limits)
    return describer.text(describer.part(value))


def json_pieces(node: Any) -> Iterator[str]:
    """Yield compact JSON of dicts, lists and scalars at any depth; the `json` module would recurse."""
    return _json(node, _Describer())  # nothing in it is undescribed


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _scalar(value: Any) -> str:
    """Return the JSON of a value that is not a dict or list; in texts, what a terminal obeys is escaped."""
    if type(value) is int:  # `json` makes an encoder for each
        return str(value)
    return printable_json(_encode(value))


_key = lru_cache(maxsize=100)(_scalar)
"""`_scalar` for the keys of nodes, most of which have the same few."""


def _json(node: Any, describer: _Describer) -> Iterator[str]:
    """Yield the JSON of a node, in pieces of text; what is undescribed in it is described when its text begins.

    Args:
        node: a dict or list, or a scalar.
        describer: describes what is undescribed.
    """
    if not isinstance(node, _UNFINISHED):
        yield _scalar(node)
        return
    # Texts and nodes to come, the next one last; `None` where a value is to be closed.
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if type(item) is str:
            yield item
        elif item is None:
            describer.close()
        else:
            if type(item) is _Undescribed:
                item, closes = describer.begin(item.value)
                if closes:
                    stack.append(None)
            stack += _reversed_pieces(item)


def _reversed_pieces(node: Any) -> list[Any]:
    """Return the JSON of a dict or list in pieces, the last one first: texts, and what is inside as nodes."""
    is_dict = isinstance(node, dict)
    pieces: list[Any] = []
    text = "{" if is_dict else "["
    separator = ""
    keys_and_parts = node.items() if is_dict else zip(repeat(""), node)
    for key, part in keys_and_parts:
        text += separator
        separator = ","
        if is_dict:
            text += _key(key) + ":"
        if isinstance(part, _UNFINISHED):
            pieces += (text, part)
            text = ""
        else:
            text += _scalar(part)
    pieces.append(text + ("}" if is_dict else "]"))
    pieces.reverse()
    return pieces
