"""Convert Lua Torch's `.t7` files to PyTorch and PyTorch's weights back to Lua.

Neither Lua nor PyTorch is needed. The names below are the public API; each is loaded on first use, so that importing
the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import errors, layers, torchfile
    from .conversion.convert import convert
    from .conversion.plain import to_python, to_torch
    from .errors import T7BridgeError
    from .formats import open
    from .formats.document import Document
    from .formats.pt.reader import PtReader
    from .formats.t7.layout import T7Layout
    from .formats.t7.reader import T7Reader, register_class
    from .formats.torchfile import load_as_torchfile
    from .graph.lua import Key, LuaFunction, Table, TdsHash, TdsVec, TorchObject
    from .graph.lua import LuaValue as Value
    from .graph.storage import Storage
    from .graph.tensor import Tensor
    from .limits import Limits
    from .nn.registry import register_module
    from .nn.state_dict import state_dict
    from .report import Note, Report
    from .tools.draw import draw
    from .tools.export import export
    from .tools.export_module import write_module
    from .tools.files import describe, load, save
    from .tools.inspect import inspect
    from .tools.match import match
    from .tools.modules import load_module, save_module, write_lua
    from .tools.prove.prove import prove
    from .tools.scan import scan
    from .tools.verify import diff, verify
    from .tools.writers import PtWriter, T7Writer
    from .zoo import convert_zoo

_HOMES = {
    "convert": "conversion.convert",
    "convert_zoo": "zoo",
    "describe": "tools.files",
    "diff": "tools.verify",
    "draw": "tools.draw",
    "export": "tools.export",
    "inspect": "tools.inspect",
    "load": "tools.files",
    "open": "formats",
    "save": "tools.files",
    "prove": "tools.prove.prove",
    "scan": "tools.scan",
    "verify": "tools.verify",
    "state_dict": "nn.state_dict",
    "load_as_torchfile": "formats.torchfile",
    "load_module": "tools.modules",
    "write_module": "tools.export_module",
    "save_module": "tools.modules",
    "write_lua": "tools.modules",
    "match": "tools.match",
    "register_class": "formats.t7.reader",
    "register_module": "nn.registry",
    "T7Reader": "formats.t7.reader",
    "T7Writer": "tools.writers",
    "T7Layout": "formats.t7.layout",
    "PtReader": "formats.pt.reader",
    "PtWriter": "tools.writers",
    "to_python": "conversion.plain",
    "to_torch": "conversion.plain",
    "Key": "graph.lua",
    "Value": "graph.lua",
    "Storage": "graph.storage",
    "Tensor": "graph.tensor",
    "Table": "graph.lua",
    "TorchObject": "graph.lua",
    "LuaFunction": "graph.lua",
    "TdsHash": "graph.lua",
    "TdsVec": "graph.lua",
    "Document": "formats.document",
    "Limits": "limits",
    "Note": "report",
    "Report": "report",
    "T7BridgeError": "errors",
}

_OTHER_NAMES = {"Value": "LuaValue"}
_MODULES = frozenset(("errors", "layers", "torchfile"))

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
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
