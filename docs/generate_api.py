"""Write `docs/public.txt`, every public name with its signature.

    python docs/generate_api.py

A test compares it with the package: whoever changes a public name or signature sees it in the change. The pages in
`docs/api` have the docstrings, by theme.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import t7bridge

DOCS = Path(__file__).parent
MODULES = ("t7bridge", "t7bridge.errors", "t7bridge.formats", "t7bridge.layers", "t7bridge.lua", "t7bridge.torchfile")


def public(module: types.ModuleType) -> list[str]:
    """Return the public names of a module, sorted."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
    return sorted(name for name in names if not name.startswith("__") and not inspect.ismodule(getattr(module, name)))


def signature(value: Any) -> str:
    """Return the arguments of a function or class, as in its source; a default that is code is shown as `...`."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parts: list[str] = []
    for each in found.parameters.values():
        if each.name == "self" or each.name.startswith("_"):
            continue
        if each.kind is each.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        text = stars + each.name + (f": {_type(each.annotation)}" if each.annotation is not each.empty else "")
        if each.default is not each.empty:
            default = each.default
            plain = type(default) in (bool, int, float, str, tuple, type(None))
            text += f" = {default!r}" if plain else " = ..."
        parts.append(text)
    returned = found.return_annotation
    result = "" if inspect.isclass(value) or returned is found.empty else f" -> {_type(returned)}"
    return f"({', '.join(parts)}){result}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class of this package defines, sorted."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "t7bridge":
            found.update({name: value for name, value in vars(base).items() if not name.startswith("_")})
    for name, value in sorted(found.items()):
        if isinstance(value, property) or callable(value) or isinstance(value, (classmethod, staticmethod)):
            yield name, value


def names() -> Iterator[str]:
    """Yield every public name with its signature, members after their class."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public(module):
            value = getattr(module, name)
            yield f"{module_name}.{name}{signature(value) if callable(value) else ''}"
            if inspect.isclass(value) and module is t7bridge:
                for member, inside in members(value):
                    text = "" if isinstance(inside, property) else signature(getattr(value, member))
                    yield f"{module_name}.{name}.{member}{text}"


def page() -> str:
    """Return the text of `public.txt`."""
    return "".join(f"{name}\n" for name in names())


if __name__ == "__main__":
    (DOCS / "public.txt").write_text(page(), "utf-8")
