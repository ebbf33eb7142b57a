"""The canonical description of a Python-side value: its content as PyTorch sees it, as data that becomes JSON.

Every node is a dict with its kind under `t`: none, bool, int, float, str, bytes, list, tuple, dict, odict, tensor,
module, or other with the name of the class under `v`. Of a pickled module `parameters`, `buffers`, `modules` and
`attributes` are pairs of name and node; of another object `args`, `kwargs`, `state`, `items` and `pairs` are the nodes
that it is constructed from, if not empty. A storage's number is its order of appearance; tensors whose storages begin
at the same address have the same number. Shared values are described at each occurrence; a value that contains itself
is `{"t": "cycle", "up": levels}` where it would begin again.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ..graph.python import (
    MODULE_PARTS,
    UNSET,
    Device,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PythonGlobal,
    PythonObject,
    QuantizedTensor,
    SparseTensor,
    TorchConstant,
    UntypedStorage,
)
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits

Node = dict[str, Any]

_CONTAINERS = (list, tuple, dict, SparseTensor, PythonObject)
_LEAVE = object()
_NUMPY_SCALARS = {
    "b1": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "c8": "complex64",
    "c16": "complex128",
}


class _Describer:
    def __init__(self, limits: Limits) -> None:
        self._budget = Budget(limits, "a description that repeats shared values")
        self._numbers: dict[tuple[int, int], int] = {}
        self._sums: dict[int, int] = {}
        self._kept: list[Any] = []
        self._seen: set[int] = set()
        self._path: dict[int, int] = {}
        """The containers being described, each with its depth."""
        self._open: list[tuple[Any, Any, Any]] = []
        """Stack of work: a container, the position in it, the value; the next one last."""

    def run(self, root: Any) -> Node:
        result: list[Any] = [None]
        self._open.append((result, 0, root))
        while self._open:
            target, place, value = self._open.pop()
            if target is _LEAVE:
                del self._path[place]
            else:
                target[place] = self._node(value)
        return result[0]  # type: ignore[no-any-return]

    def _node(self, value: Any) -> Node:
        if value is None:
            return {"t": "none"}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, QuantizedTensor):
            return self._tensor(value.tensor)
        if isinstance(value, bool):
            return {"t": "bool", "v": value}
        if isinstance(value, int):
            return {"t": "int", "v": str(value)}
        if isinstance(value, float):
            return {"t": "float", "v": repr(value)}
        if isinstance(value, str):
            return {"t": "str", "v": value}
        if isinstance(value, bytes):
            return {"t": "bytes", "hex": value.hex()}
        if isinstance(value, NumpyScalar):
            return _numpy_scalar(value)
        if isinstance(value, _CONTAINERS):
            return self._container(value)
        return {"t": "other", "v": _class_name(value)}

    def _container(self, value: Any) -> Node:
        if id(value) in self._path:
            return {"t": "cycle", "up": len(self._path) - self._path[id(value)]}
        # Items, not keys: looking a key up costs as much as the file makes its hash cost.
        parts: list[Any] = _parts(value)
        if id(value) in self._seen:
            self._budget.spend(STEPS_PER_NODE * (1 + len(parts)))
        self._seen.add(id(value))
        self._path[id(value)] = len(self._path)
        self._open.append((_LEAVE, id(value), None))
        if isinstance(value, SparseTensor):
            return self._sparse(value)
        if isinstance(value, PythonObject):
            return self._object(value, parts)
        if isinstance(value, dict):
            slots = self._pairs(parts)
            return {"t": "odict" if isinstance(value, OrderedDict) else "dict", "v": slots}
        nodes: list[Any] = [None] * len(parts)
        self._open.extend((nodes, place, parts[place]) for place in range(len(parts) - 1, -1, -1))
        return {"t": "tuple" if isinstance(value, tuple) else "list", "v": nodes}

    def _pairs(self, parts: list[Any]) -> list[Any]:
        """Return the positions of pairs that are still to be described."""
        slots: list[Any] = [[None, None] for _ in parts]
        for slot, (key, item) in zip(reversed(slots), reversed(parts)):
            self._open.append((slot, 1, item))
            self._open.append((slot, 0, key))
        return slots

    def _object(self, value: PythonObject, parts: list[Any]) -> Node:
        if value.is_module:
            slots = self._pairs(parts)
            named: Node = {"t": "module", "v": value.path}
            for name, first, last in _module_parts(value):
                named[name] = slots[first:last]
            return named
        node: Node = {"t": "other", "v": value.path, **dict.fromkeys(name for name, _ in parts)}
        self._open.extend((node, name, part) for name, part in reversed(parts))
        return node

    def _sparse(self, value: SparseTensor) -> Node:
        node: Node = {"t": "sparse", "layout": value.layout, "size": list(value.size), "indices": None}
        self._open.append((node, "values", value.values))
        if value.plain_indices is not None:
            node["plain_indices"] = None
            self._open.append((node, "plain_indices", value.plain_indices))
        node["values"] = None
        self._open.append((node, "indices", value.indices))
        return node

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


def _parts(value: Any) -> list[Any]:
    """Return the direct content of a container: pairs of a dict or module, named parts of an object, or items."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, SparseTensor):
        return []
    if not isinstance(value, PythonObject):
        return list(value)
    if value.is_module:
        attributes = value.attributes
        held = [pair for part in MODULE_PARTS for pair in attributes[part].items()]
        return held + [pair for pair in attributes.items() if pair[0] not in MODULE_PARTS]
    state = None if value.state is UNSET else value.state
    named = {"args": value.args, "kwargs": value.kwargs, "state": state, "items": value.items, "pairs": value.pairs}
    empty = (tuple, list)
    return [(name, part) for name, part in named.items() if part or not (part is None or isinstance(part, empty))]


def _module_parts(value: PythonObject) -> Iterator[tuple[str, int, int]]:
    """Return the name of each group of a module's pairs, and where it begins and ends in `_parts`."""
    place = 0
    for part in MODULE_PARTS:
        count = len(value.attributes[part])
        yield part.removeprefix("_"), place, place + count
        place += count
    yield "attributes", place, place + len(value.attributes) - len(MODULE_PARTS)


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
    return {"t": "other", "v": f"numpy.{_NUMPY_SCALARS.get(code, code)}"}


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
    return _Describer(limits).run(value)
