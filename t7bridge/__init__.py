"""Convert Lua Torch's `.t7` files to PyTorch and PyTorch's weights back to Lua.

Neither Lua nor PyTorch is needed. The names below are the public API; each is loaded on first use, so that importing
the package costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .data import face, hooks

if TYPE_CHECKING:
    from . import errors, layers, torchfile
    from .conversion.adopt import PtWriter, T7Writer
    from .conversion.convert import convert
    from .conversion.tree import to_python, to_torch
    from .data import __version__
    from .errors import T7BridgeError
    from .formats import open
    from .formats.pt.file import PtReader
    from .formats.t7.layout import T7Layout
    from .formats.t7.reader import T7Reader, register_class
    from .formats.table import Document
    from .formats.torchfile import load_as_torchfile
    from .graph.lua import Key, LuaFunction, Table, TdsHash, TdsVec, TorchObject
    from .graph.lua import LuaValue as Value
    from .graph.storage import Storage
    from .graph.tensor import Tensor
    from .limits import Limits
    from .nn.registry import register_module
    from .nn.state_dict import state_dict
    from .report import Note, Report
    from .tools.files import describe, load, save
    from .tools.inspect import inspect
    from .tools.modules import load_module
    from .tools.scan import scan
    from .tools.state_dicts import load_state_dict
    from .tools.verify import diff, verify
    from .tools.write_module import write_module
    from .workshop.draw import draw
    from .workshop.export import export
    from .workshop.lua import save_module, write_lua
    from .workshop.match import match
    from .workshop.prove import prove
    from .zoo import convert_zoo

_load = face(
    __name__,
    {
        "conversion.convert": "convert",
        "conversion.tree": "to_python to_torch",
        "data": "__version__",
        "errors": "T7BridgeError",
        "formats": "open",
        "formats.table": "Document",
        "formats.pt.file": "PtReader",
        "formats.t7.layout": "T7Layout",
        "formats.t7.reader": "register_class T7Reader",
        "formats.torchfile": "load_as_torchfile",
        "graph.lua": "Key LuaValue Table TorchObject LuaFunction TdsHash TdsVec",
        "graph.storage": "Storage",
        "graph.tensor": "Tensor",
        "limits": "Limits",
        "nn.registry": "register_module",
        "nn.state_dict": "state_dict",
        "report": "Note Report",
        "workshop.draw": "draw",
        "tools.write_module": "write_module",
        "tools.files": "describe load save",
        "tools.inspect": "inspect",
        "workshop.match": "match",
        "tools.modules": "load_module",
        "workshop.prove": "prove",
        "tools.scan": "scan",
        "tools.state_dicts": "load_state_dict",
        "tools.verify": "diff verify",
        "conversion.adopt": "T7Writer PtWriter",
        "workshop.export": "export",
        "workshop.lua": "save_module write_lua",
        "zoo": "convert_zoo",
    },
)


def _ask(room: str, name: str) -> Callable[..., Any]:
    """Return a function of a room of the workshop, which is imported when the function is called."""

    def asked(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f".workshop.{room}", __name__), name)(*arguments)

    return asked


hooks.update(
    recognized=_ask("cells", "recognized"),
    cached_names=_ask("match", "cached_names"),
    load_packages=_ask("packages", "load_packages"),
)

_OTHER_NAMES = {"Value": "LuaValue"}
_MODULES = frozenset(("errors", "formats", "layers", "lua", "torchfile"))

__all__ = [
    "Document",
    "Key",
    "Limits",
    "LuaFunction",
    "Note",
    "PtReader",
    "PtWriter",
    "Report",
    "Storage",
    "T7BridgeError",
    "T7Layout",
    "T7Reader",
    "T7Writer",
    "Table",
    "TdsHash",
    "TdsVec",
    "Tensor",
    "TorchObject",
    "Value",
    "__version__",
    "convert",
    "convert_zoo",
    "describe",
    "diff",
    "draw",
    "errors",
    "export",
    "inspect",
    "layers",
    "load",
    "load_as_torchfile",
    "load_module",
    "load_state_dict",
    "match",
    "open",
    "prove",
    "register_class",
    "register_module",
    "save",
    "save_module",
    "scan",
    "state_dict",
    "to_python",
    "to_torch",
    "torchfile",
    "verify",
    "write_lua",
    "write_module",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    value = globals()[name] = _load(_OTHER_NAMES.get(name, name))
    return value


def __dir__() -> list[str]:
    return __all__
