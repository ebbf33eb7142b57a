"""Models stored as named tensors or as Python objects, drawn by the nesting of their names."""

from __future__ import annotations

from typing import Any

from ...data import define
from ...errors import LimitError, ModelError
from ...graph.lua import Table, TdsHash, TdsVec, TorchObject
from ...graph.python import MODULE_PARTS, UNSET, PythonObject
from ...graph.show import clean, short
from ...graph.tensor import Tensor
from .blocks import MAX_BLOCKS, Block, check_count, count_parameters, mark_weights, weights_by_block

_BUFFERS = {"running_mean", "running_var", "num_batches_tracked"}
_DEPTH = 200
_FIELDS = 40
_CHAIN = "torch.nn.modules.container.Sequential"


def structure_blocks(value: Any, title: str) -> list[Block]:
    """Return all blocks of a value that holds tensors, each before those inside it.

    Args:
        value: a state dict, a checkpoint, an object of a pickled module, or a Lua table of tensors.
        title: of the whole.

    Raises:
        ModelError: it contains no tensors.
        LimitError: there are too many blocks, or they are nested too deep.
    """
    tensors: dict[str, Tensor] = {}
    classes: dict[tuple[str, ...], str] = {}
    fields: dict[tuple[str, ...], dict[str, str]] = {}
    _gather(value, tensors, classes, fields)
    if not any(tensors):
        raise ModelError("the file holds no module and no tensors", hint="t7bridge inspect shows its content.")
    weights = weights_by_block(tensors, {key: "buffer" for key in tensors if key.rpartition(".")[2] in _BUFFERS})
    root = Block("", classes.get((), title), "side", class_name=classes.get((), ""))
    blocks = [root]
    known: dict[tuple[str, ...], Block] = {(): root}
    for key in [*weights, *map(".".join, classes)]:
        steps = tuple(key.split(".")) if key else ()
        for depth in range(1, len(steps) + 1):
            if steps[:depth] in known:
                continue
            path = ".".join(steps[:depth])
            class_name = classes.get(steps[:depth], "")
            block = Block(clean(steps[depth - 1], 60), class_name.rpartition(".")[2], key=path, path=path)
            block.class_name = class_name
            block.target = class_name if class_name.startswith("torch.nn.") else ""
            known[steps[:depth]] = block
            above = known[steps[: depth - 1]]
            above.inside.append(block)
            if above.kind == "layer":
                above.kind = "chain" if above.class_name == _CHAIN else "side"
            blocks.append(block)
            check_count(len(blocks))
    if not root.inside:
        root.kind = "layer"
    for steps, block in known.items():
        block.weights = weights.get(".".join(steps), [])
        block.fields = fields.get(steps, {})
        mark_weights(block)
        block.lines += [
            clean(f"{each.name} {'×'.join(map(str, each.tensor.shape)) or 'scalar'}") for each in block.weights[:3]
        ]
        block.hint = ", ".join(filter(None, (block.class_name, block.path)))
    ordered, stack = [], [root]
    while stack:
        block = stack.pop()
        ordered.append(block)
        stack += reversed(block.inside)
    count_parameters(ordered)
    return ordered


@define(eq=False)
class _Visit:
    key: str
    value: Any
    depth: int


def _gather(
    value: Any,
    tensors: dict[str, Tensor],
    classes: dict[tuple[str, ...], str],
    fields: dict[tuple[str, ...], dict[str, str]],
) -> None:
    """Collect the tensors of a value under names, and the classes of the objects that contain them."""
    seen: set[int] = set()
    stack = [_Visit("", value, 0)]
    steps = 0
    while stack:
        visit = stack.pop()
        key, value = visit.key, visit.value
        if isinstance(value, Tensor):
            tensors[key] = value
            check_count(len(tensors))
            continue
        inside = _inside(value)
        if inside is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (PythonObject, TorchObject)):
            place = tuple(key.split(".")) if key else ()
            classes[place] = clean(value.path if isinstance(value, PythonObject) else value.class_name, 80)
            fields[place] = {clean(name, 60): clean(short(item), 80) for name, item in _plain(value)}
            check_count(len(classes))
        steps += len(inside)
        if visit.depth > _DEPTH or steps > 100 * MAX_BLOCKS:
            raise LimitError("the values are nested too deep, or are too many, for a picture", found=key[:60])
        stack += [
            _Visit(f"{key}.{name}" if key else name, item, visit.depth + 1)
            for name, item in reversed(inside)
            if isinstance(item, Tensor) or _inside(item) is not None
        ]


def _inside(value: Any) -> list[tuple[str, Any]] | None:
    """Return the named values in a value; `None` for one that has none."""
    if isinstance(value, PythonObject):
        found = [(name, item) for name, item in _attributes(value).items() if isinstance(name, str)]
        listed = [
            pair for name, group in found if name in MODULE_PARTS and isinstance(group, dict) for pair in group.items()
        ]
        return [(str(name), item) for name, item in listed] or [pair for pair in found if pair[0][:1] != "_"]
    if isinstance(value, dict):
        return [(str(name), item) for name, item in value.items() if isinstance(name, (str, int))]
    if isinstance(value, (list, tuple)):
        return [(str(number), item) for number, item in enumerate(value)]
    if isinstance(value, TdsVec):
        return [(str(number), item) for number, item in enumerate(value.elements, 1)]
    table = value.fields if isinstance(value, TorchObject) else value.content if isinstance(value, TdsHash) else value
    if isinstance(table, Table):
        return [
            (key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else f"{key:.14g}", item)
            for key, item in table.raw_items()
            if isinstance(key, (bytes, float))
        ]
    return None


def _attributes(value: PythonObject) -> dict[str, Any]:
    return {} if value.state is UNSET else value.attributes


def _plain(value: PythonObject | TorchObject) -> list[tuple[str, Any]]:
    """Return the attributes of an object that are numbers, strings and the like."""
    if isinstance(value, TorchObject):
        return []
    kinds = (bool, int, float, str, tuple)
    found = [(name, item) for name, item in _attributes(value).items() if isinstance(name, str)]
    return [(name, item) for name, item in found if isinstance(item, kinds) and name[:1] != "_"][:_FIELDS]
