"""Writes layers.md from the registry of layers: `python docs/generate_layers.py`.

Needs t7bridge and not PyTorch: what the layers of the runtime do is read from their source.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import t7bridge.nn
from t7bridge.nn.mapping import LAYERS, Read, Row
from t7bridge.nn.registry import ALIAS_PREFIXES, Layer, Param, registered_layers

DOCUMENT = Path(__file__).with_name("layers.md")
FAMILIES = Path(t7bridge.nn.__file__).parent / "layers"
RUNTIME = FAMILIES.parent.parent / "torchmodules" / "layers"

HEAD = f"""# Layers

What becomes of each class of Lua. This page is made from the registry by `python docs/generate_layers.py`; do not edit
it by hand.

- **In PyTorch** is what `load_module` makes. A name of `nn.` is a class of `torch.nn`; other names are classes of
  `t7bridge.torchmodules.layers`, described in a line. Arguments are Lua's fields; `a \\| b` means that others call the
  field `b`, `a = 1` that 1 counts where the file has none, and `a - 1` that Lua counts from 1. *Depends* is shown
  where more than values decides; the possible classes follow. Classes without anything there have a state dict only.
- **State dict** lists the keys that `convert` writes, after the name of the layer: *buffers* in italics, `(derived)`
  what follows from other fields, struck through what Lua keeps and does not read.
- A class that is not listed has the entry of the `nn` class of the same name if its package is one of
  {", ".join(f"`{prefix}*`" for prefix in ALIAS_PREFIXES)}: `cudnn.SpatialConvolution` is `nn.SpatialConvolution`.
- A class of your own gets an entry by `register_layer`. Any other class keeps its tensors under Lua's names, with a
  warning.
"""


# What the runtime's classes do


def runtime_classes() -> dict[str, str]:
    """The first line of the docstring of each class of the runtime, by family and name: `shape.View`."""
    found = {}
    for path in sorted(RUNTIME.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                found[f"{path.stem}.{node.name}"] = first.replace("|", "\\|")
    return found


CLASSES = runtime_classes()


# Arguments


def argument(value: Any) -> str:
    """Where an argument comes from, as text."""
    if not isinstance(value, Read):
        return repr(value)
    name = " | ".join(value.fields[:1] if value.kind != "pair" else ()).replace("|", " | ")
    default = "" if value.default is None else f" = {value.default:g}"
    match value.kind:
        case "pair":
            return f"({', '.join(each.replace('|', ' | ') for each in value.fields)})"
        case "dim":
            return f"{name} - 1"
        case "extent":
            return f"{name}.shape[{value.dim}]"
        case "shape":
            return f"{name}.shape"
        case "has":
            return f"has {name}"
        case "base":
            return "index base"
        case "flag":
            return name
        case _:
            return name + default


def called(row: Row) -> str:
    """A row of the registry as the call that it makes."""
    args = [argument(each) for each in row.args]
    args += [f"{name}={argument(value)}" for name, value in row.kwargs.items()]
    target = row.target.removeprefix(LAYERS)
    text = code(f"{target.removeprefix('torch.')}({', '.join(args)})")
    if target in CLASSES:
        text += f": {CLASSES[target]}"
    if row.plain:
        text += f" For inputs that all have a batch dimension {code(row.plain.removeprefix('torch.'))} does."
    return text


def code(text: str) -> str:
    """Text as code in a table."""
    return "`" + text.replace("|", "\\|") + "`"


# Functions


def texts_in(function: Callable[..., Any], depth: int = 2) -> Iterator[str]:
    """The strings that a function may build of its constants and of what it closes over, in the order of its source."""
    function = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)).strip().rstrip(","))
        names = inspect.getclosurevars(function)
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    known = {**names.globals, **names.nonlocals}
    for value in names.nonlocals.values():
        if isinstance(value, str):
            yield value
    pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in pieces:
                yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [evaluated(part, known) for part in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.Name) and depth and node.id in known:
            inner = known[node.id]
            if inspect.isfunction(inner) and inner.__module__.startswith("t7bridge.nn."):
                yield from texts_in(inner, depth - 1)
            elif isinstance(inner, Row):
                yield inner.target


def evaluated(part: ast.expr, known: dict[str, Any]) -> str:
    """A piece of a formatted string; what cannot be known here is `*`."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
        return str(known.get(part.value.id, "*"))
    return "*"


def targets_of(function: Callable[..., Any]) -> list[str]:
    """The classes that a function may give."""
    found: dict[str, None] = {}
    for text in texts_in(function):
        name = text.removeprefix(LAYERS)
        if re.fullmatch(r"torch\.nn\.[\w*]+", name):
            found[name.removeprefix("torch.")] = None
        elif name in CLASSES:
            found[name] = None
        elif re.fullmatch(r"\w+\.\w*\*\w*", name) and len(name.partition(".")[2]) > 3:
            pattern = re.escape(name).replace(r"\*", r"\w+")
            found |= dict.fromkeys(known for known in CLASSES if re.fullmatch(pattern, known))
    return [name for name in found if name != "nn.*"]


def depends(function: Callable[..., Any]) -> str:
    """What a function may give, as text."""
    targets = targets_of(function)
    if len(targets) == 1 and targets[0] in CLASSES:
        return f"*Depends.* {code(targets[0])}: {CLASSES[targets[0]]}"
    return f"*Depends.* {', '.join(map(code, targets))}".rstrip()


# State dicts


def keys(layer: Layer) -> str:
    """The keys of a state dict."""
    if not callable(layer.params):
        return ", ".join(key(each) for each in layer.params)
    texts = list(dict.fromkeys(names_in(layer.params)))
    return f"*depends:* {', '.join(code(name) for name in texts)}" if texts else "*depends*"


def key(param: Param) -> str:
    """One key, or what is said of it."""
    shown = code(param.name)
    match param.kind:
        case "buffer":
            return f"*{shown}*"
        case "derived":
            return f"{shown} (derived)"
        case "unused":
            return f"~~{shown}~~"
        case _:
            return shown


def names_in(function: Callable[..., Any]) -> Iterator[str]:
    """The names of the tensors that a function of fields may list."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        known = {**inspect.getclosurevars(function).globals, **inspect.getclosurevars(function).nonlocals}
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id in ("param", "buffer", "Param") and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
        elif isinstance(node, ast.Name):
            value = known.get(node.id)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Param):
                    yield each.name


def notes(layer: Layer) -> str:
    """What the user should know."""
    found = [each for each in (layer.note, layer.remark) if each and isinstance(each, str)]
    if not callable(layer.params):
        found += [f"{code(each.name)}: {each.note}" for each in layer.params if each.note]
    return "; ".join(found).replace("|", "\\|")


# The page


def families() -> dict[str, tuple[str, list[str]]]:
    """The classes of each family, in the order of its file: title and names, by the name of the file."""
    layers = registered_layers()
    found: dict[str, tuple[str, list[str]]] = {}
    left = dict.fromkeys(layers)
    for path in (FAMILIES / f"{stem}.py" for stem in family_names()):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_registration(node)]
        calls.sort(key=lambda node: node.lineno)
        words = [
            node.value
            for call in calls
            for node in sorted(
                (n for n in ast.walk(call) if isinstance(n, ast.Constant)), key=lambda n: (n.lineno, n.col_offset)
            )
            if isinstance(node.value, str)
        ]
        names = [name for name in dict.fromkeys(words) if name in left]
        # Names that are put together while registering belong where the rest of their entry is.
        entries = {id(layers[name]) for name in names}
        names += [name for name in left if name not in names and id(layers[name]) in entries]
        if not names and "register_layer" in path.read_text():
            names = [name for name in left if made_in(layers[name], path.stem)]
        for name in names:
            left.pop(name)
        if names:
            title = (ast.get_docstring(tree) or path.stem).partition("\n")[0]
            found[path.stem] = (title, names)
    for name in left:
        home = next((stem for stem in found if made_in(layers[name], stem)), "other")
        found.setdefault(home, ("Others.", []))[1].append(name)
    return found


def family_names() -> list[str]:
    """The files that fill the registry, as the package imports them."""
    body = ast.parse((FAMILIES / "__init__.py").read_text()).body
    return [alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]


def is_registration(node: ast.Call) -> bool:
    """Whether a call puts classes into the registry."""
    return isinstance(node.func, ast.Name) and node.func.id.startswith(("register_", "_register"))


def made_in(layer: Layer, stem: str) -> bool:
    """Whether the functions of an entry are those of a file."""
    functions = [layer.params, layer.children, *layer.modules.values()]
    return any(getattr(each, "__module__", "") == f"t7bridge.nn.layers.{stem}" for each in functions)


def page() -> str:
    """The whole document."""
    layers = registered_layers()
    kinds: dict[str, int] = {}
    modules = 0
    for name, layer in layers.items():
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
        modules += layer.module_of(name) is not None
    counted = ", ".join(f"{number} {kind}s" for kind, number in sorted(kinds.items()))
    lines = [HEAD, f"{len(layers)} classes ({counted}), {modules} of them with a PyTorch module.\n"]
    for stem, (title, names) in families().items():
        lines += [f"## {stem.replace('_', ' ')}\n", f"{title}\n"]
        lines += ["| Lua | in PyTorch | state dict | notes |", "| --- | --- | --- | --- |"]
        for name in names:
            layer = layers[name]
            mapped = layer.module_of(name)
            made = "" if mapped is None else called(mapped) if isinstance(mapped, Row) else depends(mapped)
            kind = f" ({layer.kind})" if layer.kind != "layer" else ""
            lines.append(f"| {code(name)}{kind} | {made} | {keys(layer)} | {notes(layer)} |")
        lines.append("")
    return re.sub(r" +\|", " |", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(page())
    print(f"{DOCUMENT}: {len(registered_layers())} classes")
