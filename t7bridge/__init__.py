"""t7bridge carries Lua Torch's `.t7` files to PyTorch and PyTorch's weights back to Lua.

Neither Lua nor PyTorch is needed. The names here are the public ones; each is loaded when it is first used, so that
importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api import describe, load, save
    from .conversion import convert
    from .differing import diff
    from .drawing.draw import draw
    from .errors import T7BridgeError
    from .graph.objects import LuaFunction, Table, TdsHash, TdsVec, TorchObject
    from .graph.storage import Storage
    from .graph.tensor import Tensor
    from .interop.torchfile import load_as_torchfile
    from .limits import Limits
    from .matching.matcher import match
    from .module_files import write_module
    from .modules import load_module
    from .nn.registry import register_module
    from .nn.state_dict import state_dict
    from .pt.reader import PtReader
    from .pt.writer import PtWriter
    from .report import Note, Report
    from .scanning import scan
    from .t7.layout import T7Layout
    from .t7.reader import T7Reader
    from .t7.registry import register_class
    from .t7.writer import T7Writer
    from .verification import verify
    from .zoo.run import convert_zoo

_HOMES = {
    "convert": "conversion",
    "convert_zoo": "zoo.run",
    "describe": "api",
    "diff": "differing",
    "draw": "drawing.draw",
    "load": "api",
    "save": "api",
    "scan": "scanning",
    "verify": "verification",
    "state_dict": "nn.state_dict",
    "load_as_torchfile": "interop.torchfile",
    "load_module": "modules",
    "write_module": "module_files",
    "match": "matching.matcher",
    "register_class": "t7.registry",
    "register_module": "nn.registry",
    "T7Reader": "t7.reader",
    "T7Writer": "t7.writer",
    "T7Layout": "t7.layout",
    "PtReader": "pt.reader",
    "PtWriter": "pt.writer",
    "Storage": "graph.storage",
    "Tensor": "graph.tensor",
    "Table": "graph.objects",
    "TorchObject": "graph.objects",
    "LuaFunction": "graph.objects",
    "TdsHash": "graph.objects",
    "TdsVec": "graph.objects",
    "Limits": "limits",
    "Note": "report",
    "Report": "report",
    "T7BridgeError": "errors",
}

__all__ = [
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
    "__version__",
    "convert",
    "convert_zoo",
    "describe",
    "diff",
    "draw",
    "load",
    "load_as_torchfile",
    "load_module",
    "match",
    "register_class",
    "register_module",
    "save",
    "scan",
    "state_dict",
    "verify",
    "write_module",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
