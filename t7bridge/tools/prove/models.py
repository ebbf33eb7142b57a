"""The models of a file that are proved."""

from __future__ import annotations

from importlib.util import find_spec

from ... import formats
from ...errors import ModelError, UnsupportedError
from ...graph.lua import Table, TorchObject, Value
from ...io.source import Readable
from ...limits import Limits
from ...nn.places import module_at
from ...nn.state_dict import find_modules


def need_torch() -> None:
    """Check that PyTorch is installed.

    Raises:
        UnsupportedError: it is not.
    """
    if find_spec("torch") is None:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'")


def lua_value(source: Readable | Value, limits: Limits) -> tuple[Value, str]:
    """Return the first value of a `.t7` file, and the file's name.

    Raises:
        FormatError: the file is damaged, or of another format.
        UnsupportedError: it is of another format.
    """
    if isinstance(source, (Table, TorchObject)):
        return source, ""
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise UnsupportedError("only .t7 files hold values recorded by Lua Torch", file=document.path)
    return document.first, document.path


def chosen(value: Value, name: str, at: str | None) -> list[tuple[str, TorchObject]]:
    """Return the selected models of a value, with their paths.

    Raises:
        ModelError: there is none.
    """
    found = find_modules(value)
    if not found:
        raise ModelError("the file holds no module", file=name)
    if at is None:
        return found
    module = module_at(value, at)
    if module is None:
        listed = ", ".join(path for path, _ in found[:50])
        raise ModelError(f"the file holds no module at {at}", file=name, hint=f"There are: {listed}.")
    return [(at, module)]


def one_module(value: Value, name: str, at: str | None) -> tuple[str, TorchObject]:
    """Return the only selected model of a value, with its path.

    Raises:
        ModelError: there is none, or several.
    """
    found = chosen(value, name, at)
    if len(found) > 1:
        paths = ", ".join(path for path, _ in found[:50])
        raise ModelError("the file holds several modules", file=name, hint=f"Name one with --at: {paths}.")
    return found[0]
