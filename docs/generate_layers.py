"""Generate layers.md from the registry of layers: `python docs/generate_layers.py`.

Needs t7bridge, and PyTorch for the operations that `save_module` builds; the descriptions of the runtime's layers are
read from their source.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

from attrs import evolve

import t7bridge
from t7bridge.nn.mapping import Choice, Mapped, Read, Row, short_name
from t7bridge.nn.registry import ALIAS_PREFIXES, Layer, Param, ParamsOf, registered_layers
from t7bridge.workshop.lua import operations  # noqa: F401  # fills the table
from t7bridge.workshop.lua.build import OPERATIONS

DOCUMENT = Path(__file__).with_name("layers.md")
PACKAGE = Path(t7bridge.__file__).parent
RUNTIME = "torchmodules/layers/*.py"
PACKAGES = "workshop/packages/*/modules.py"

HEAD = f"""# Layers

The PyTorch equivalent of each Lua class. This page is generated from the registry by `python docs/generate_layers.py`;
do not edit it by hand.

- **In PyTorch** is the result of `load_module`. A name of `nn.` is a class of `torch.nn`; other names are classes of
  `t7bridge.torchmodules.layers`, or of the Lua package of that name in `t7bridge.workshop.packages`, described in a
  line. Arguments are Lua's fields; `a \\| b` means that other releases name the field `b`, `a = 1` is the default of a
  missing field, and `a - 1` converts from 1-based numbers. *Depends* is shown if more than values decides; the possible
  classes follow. Classes with an empty cell have a state dict only.
- **State dict** lists the keys that `convert` writes, after the name of the layer: *buffers* in italics, `(derived)`
  for computed tensors, struck through those that Lua keeps but does not read.
- **From PyTorch** lists the ATen operations for which `save_module` uses the class, alone or with others; the
  composition of each is in [lua-operations.md](lua-operations.md), from the same table.
- A class that is not listed has the entry of the `nn` class of the same name if its package is one of
  {", ".join(f"`{prefix}*`" for prefix in ALIAS_PREFIXES)}: `cudnn.SpatialConvolution` is `nn.SpatialConvolution`.
- A class of your own gets an entry by `register_layer`. Any other class keeps its tensors under Lua's names, with a
  warning.
"""


# Descriptions of the runtime's classes


def runtime_classes() -> dict[str, str]:
    """Return the first sentence of the docstring of each of our classes, by family and name: `shape.View`."""
    found = {}
    for path in sorted([*PACKAGE.glob(RUNTIME), *PACKAGE.glob(PACKAGES)]):
        family = path.parent.name if path.stem == "modules" else path.stem
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                paragraph = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
                found[f"{family}.{node.name}"] = re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0].replace("|", "\\|")
    return found


CLASSES = runtime_classes()


# Arguments


def argument(value: Any) -> str:
    """Return the source of an argument as text."""
    if not isinstance(value, Read):
        return repr(value)
    name = " | ".join(value.fields[:1] if value.kind != "pair" else ()).replace("|", " | ")
    default = "" if value.default is None else f" = {value.default:g}"
    if value.spread:
        return f"*{argument(evolve(value, spread=False))}"
    match value.kind:
        case "made":
            return "…"
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
    """Return a row of the registry as its call."""
    args = [argument(each) for each in row.args]
    args += [f"{name}={argument(value)}" for name, value in row.kwargs.items()]
    target = short_name(row.target)
    text = code(f"{target.removeprefix('torch.')}({', '.join(args)})")
    if target in CLASSES:
        text += f": {CLASSES[target]}"
    if row.plain:
        text += f" With a batch dimension: {code(row.plain.removeprefix('torch.'))}."
    return text


def code(text: str) -> str:
    """Format text as code in a table."""
    return "`" + text.replace("|", "\\|") + "`"


def depends(choice: Choice) -> str:
    """Return the classes that an object may become, as text."""
    names = [short_name(target).removeprefix("torch.") for target in choice.targets]
    if len(names) == 1 and names[0] in CLASSES:
        return f"*Depends.* {code(names[0])}: {CLASSES[names[0]]}"
    return f"*Depends.* {', '.join(map(code, names))}"


# State dicts


def keys(layer: Layer) -> str:
    """Return the keys of a state dict as text."""
    if isinstance(layer.params, ParamsOf):
        return f"*depends:* {', '.join(map(code, layer.params.names))}"
    assert isinstance(layer.params, tuple), layer.names
    return ", ".join(key(each) for each in layer.params)


def key(param: Param) -> str:
    """Return one key, or its description."""
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


def notes(layer: Layer) -> str:
    """Return the notes for users."""
    found = [each for each in (layer.note, layer.remark) if each and isinstance(each, str)]
    if not callable(layer.params):
        found += [f"{code(each.name)}: {each.note}" for each in layer.params if each.note]
    return "; ".join(found).replace("|", "\\|")


# The way back


def built_of() -> dict[str, list[str]]:
    """Return the operations of PyTorch that use each Lua class."""
    found: dict[str, dict[str, None]] = {name: {} for name in registered_layers()}
    for entry in dict.fromkeys(OPERATIONS.values()):
        classes = re.findall(r"nn\.\w+", entry.lua)
        for name in classes:
            short = [re.sub(r"(?<=[a-z0-9])_$", "", each.split(".")[1]) for each in entry.names]
            found.get(name, {}).update(dict.fromkeys(short))
    return {name: list(names) for name, names in found.items()}


# The page


def families() -> dict[str, list[str]]:
    """Return the classes of each family in the order of its file, by the dotted name of the module."""
    found: dict[str, list[str]] = {}
    for name, layer in registered_layers().items():
        found.setdefault(layer.home, []).append(name)
    return dict(sorted(found.items()))


def shown(mapped: Mapped | None) -> str:
    """Return the module of a class as text."""
    if mapped is None:
        return ""
    if isinstance(mapped, Row):
        return called(mapped)
    assert isinstance(mapped, Choice)
    return depends(mapped)


def page() -> str:
    """Return the whole document."""
    layers, built = registered_layers(), built_of()
    kinds: dict[str, int] = {}
    modules = 0
    for name, layer in layers.items():
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
        modules += layer.module_of(name) is not None
    counted = ", ".join(f"{number} {kind}s" for kind, number in sorted(kinds.items()))
    lines = [HEAD, f"{len(layers)} classes ({counted}), {modules} of them with a PyTorch module.\n"]
    for home, names in families().items():
        title = (sys.modules[home].__doc__ or "").partition("\n")[0]
        lines += [f"## {home.rpartition('.')[2].replace('_', ' ')}\n", f"{title}\n"]
        lines += ["| Lua | in PyTorch | state dict | from PyTorch | notes |", "| --- | --- | --- | --- | --- |"]
        for name in names:
            layer = layers[name]
            made = shown(layer.module_of(name))
            kind = f" ({layer.kind})" if layer.kind != "layer" else ""
            back = ", ".join(map(code, built[name]))
            lines.append(f"| {code(name)}{kind} | {made} | {keys(layer)} | {back} | {notes(layer)} |")
        lines.append("")
    return re.sub(r" +\|", " |", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(page())
    print(f"{DOCUMENT}: {len(registered_layers())} classes")
