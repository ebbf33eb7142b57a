"""Write `docs/api.md`, every public name with its signature, and `docs/public.txt`, the same without sentences.

    python docs/generate_api.py

A test compares both with the package: whoever changes a public name or signature sees it in the change.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import t7bridge

DOCS = Path(__file__).parent
MODULES = {
    "t7bridge": "Verbs and values",
    "t7bridge.errors": "Errors",
    "t7bridge.layers": "Layers of your own",
    "t7bridge.torchfile": "Drop-in for torchfile",
}
HEAD = """# Public names

What programs may import. Everything else is private and may move between releases. Made by `docs/generate_api.py`;
`docs/public.txt` has the same names and signatures, one a line.
"""


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
            plain = isinstance(default, (bool, int, float, str, tuple, type(None)))
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


def listed() -> Iterator[tuple[str, str, str, str]]:
    """Yield module, name, signature and first sentence of every public name, members after their class."""
    for name in MODULES:
        module = t7bridge if name == "t7bridge" else getattr(t7bridge, name.partition(".")[2])
        for each in public(module):
            value = getattr(module, each)
            yield name, each, signature(value) if callable(value) else "", sentence(value)
            if inspect.isclass(value) and name == "t7bridge":
                for member, inside in members(value):
                    text = "" if isinstance(inside, property) else signature(getattr(value, member))
                    yield name, f"{each}.{member}", text, sentence(inside)


def sentence(value: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    if not (callable(value) or isinstance(value, (property, classmethod, staticmethod))):
        return ""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def pages() -> tuple[str, str]:
    """Return the texts of `api.md` and `public.txt`."""
    rows = list(listed())
    lines = [HEAD]
    for name, title in MODULES.items():
        lines.append(f"\n## {title}: `{name}`\n")
        for module, each, text, said in rows:
            if module == name:
                lines.append(f"- `{each}{text}`" + (f": {said}" if said else ""))
    return "\n".join(lines) + "\n", "".join(f"{module}.{each}{text}\n" for module, each, text, _ in rows)


if __name__ == "__main__":
    for file, text in zip(("api.md", "public.txt"), pages()):
        (DOCS / file).write_text(text, "utf-8")
