"""The forms in which two files can be compared: one as `convert` makes the other's format of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from attrs import evolve

from .. import formats
from ..codegen.generate import generate
from ..conversion.lua_tree import to_lua
from ..conversion.named_tensors import flatten, name_tensors
from ..conversion.request import Convert, has_modules, metadata_left_out
from ..conversion.simplified import simplified
from ..conversion.targets import plain_value
from ..errors import T7BridgeError
from ..formats.table import FormatSpec
from ..graph.lua import TorchObject, Value
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.named import compacted
from ..nn.places import find_models
from ..report import Report
from ..values.widened import HINTS
from .files import MANY_OBJECTS, FileContent


def pairs_of(a: FileContent, b: FileContent, limits: Limits = DEFAULT_LIMITS) -> Iterator[tuple[Any, Any]]:
    """Return the forms in which two files can be compared, if one of them is no `.t7`."""
    goals = [side.document.spec for side in (a, b) if side.is_named]
    if goals:
        numbers = all(goal.numbers for goal in goals)
        goals = [evolve(goal, numbers=numbers) for goal in goals]
        for one in _named_forms(a, goals, limits):
            for other in _named_forms(b, goals, limits):
                yield (one, other) if a.is_named == b.is_named else _without_strings(a, b, one, other)
        return
    _without_modules(a, b, limits)
    if not (a.is_lua or b.is_lua):
        yield a.value, b.value
        for first, second in ((a, b.value), (b, a.value)):
            said = Report()
            made = first.add_form(simplified(first.value, said, limits), said)
            if made is not first.value:
                yield (made, second) if first is a else (second, made)
        return
    lua, python = (a, b) if a.is_lua else (b, a)
    # A `.t7` with the record of a `.pt` was made from one; the record itself is not read.
    kinds = (_forms_in_python, _forms_in_lua)
    for forms in reversed(kinds) if lua.document.content.has_pt_record else kinds:
        for one, other in forms(lua, python, limits):
            yield (one, other) if a.is_lua else (other, one)


def _forms_in_python(lua: FileContent, python: FileContent, limits: Limits) -> Iterator[tuple[Any, Any]]:
    """Yield the Python-side values that a `.t7` becomes, and that of the other file."""
    document = lua.document
    for made in _python_forms(lua, limits):
        if len(document.content.objects) >= MANY_OBJECTS:
            document.forget()
        yield made, python.value
    made = _as_model_file(lua.value, python.value)
    if made is not None:
        yield made, python.value


def _forms_in_lua(lua: FileContent, python: FileContent, limits: Limits) -> Iterator[tuple[Any, Any]]:
    """Yield the value of a `.t7`, and the Lua values that the other file becomes."""
    for nested in (False, True):
        yield lua.value, to_lua(python.value, nested=nested, limits=limits).value


def _python_forms(side: FileContent, limits: Limits, target: str = "pt") -> Iterator[Any]:
    """Yield the Python-side values that `convert` makes of a file, in each mode; no record in the file is used."""
    has_objects = side.is_lua and any(isinstance(found, TorchObject) for found in side.document.content.objects)
    for mode, with_data in (("tree", True), ("auto", False), ("auto", True)) if has_objects else (("auto", True),):
        request, said = Convert(side.document.path, "", mode, limits=limits), Report(target_format=target)
        request.believed = False
        yield side.add_form(plain_value(side.document, request, said, with_data=with_data), said)


def _named_forms(side: FileContent, goals: list[FormatSpec], limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield a file as formats of named tensors can hold it: tensors by name, strings, and what is left out."""
    # Arrays that were numbers stay arrays in a format without such.
    others = [goal.name for goal in goals if side.is_named and not formats.FORMATS[goal.name].numbers]
    for form in _python_forms(side, limits, *others[:1]):
        texts = side.left_out(form)
        left_out = [path for paths in flatten(form, limits).left_out.values() for path in paths]
        metadata = side.document.metadata
        for goal in goals:
            named = name_tensors(form, goal, Report(), metadata, limits)
            metadata = named.metadata
            form = {".".join(steps): tensor for steps, tensor in named.tensors.items()}
            if len(form) < len(named.tensors):  # `a.b` beside `other` in the group `source`
                form = {"/".join(steps): tensor for steps, tensor in named.tensors.items()}
        linked = all(goal.links for goal in goals)
        views: dict[Any, Tensor] = {}
        for name, each in form.items():
            view = (id(each.storage), each.element.name, each.offset, each.size, each.stride)
            form[name] = views.setdefault(view if linked and each.numel else name, evolve(each))
        strings = {name: text for name, text in metadata.items() if name != "format" and name not in HINTS}
        made = {**dict.fromkeys(left_out), **dict(sorted(form.items())), "__metadata__": strings}
        side.forms.append((made, texts))
        yield made


def _without_strings(a: FileContent, b: FileContent, one: Any, other: Any) -> tuple[Any, Any]:
    """Return the forms of a file of named tensors and of another, without strings of metadata that only the first has.

    `convert` leaves them out: no difference.
    """
    side, form, values = (a, one, other) if a.is_named else (b, other, one)
    strings, known = form["__metadata__"], values["__metadata__"]
    only = [name for name in strings if name not in known]
    if not only:
        return one, other
    made = {**form, "__metadata__": {name: text for name, text in strings.items() if name in known}}
    side.forms.append((made, [*side.left_out(form), metadata_left_out(only)]))
    return (made, values) if a.is_named else (values, made)


def _without_modules(a: FileContent, b: FileContent, limits: Limits) -> None:
    """Replace the whole modules of one file by their state dicts, as `convert` does, if the other has none."""
    sides = [side for side in (a, b) if not side.is_lua and has_modules(side.value)]
    if len(sides) == 1:
        said = Report()
        sides[0].simple = sides[0].add_form(simplified(sides[0].value, said, limits), said)


def _as_model_file(lua: Value, python: Any) -> Any:
    """Return the state dict of the `model.pt` that `module` writes for a model, if a `.pt` has exactly its keys."""
    if not isinstance(python, dict) or not all(isinstance(key, str) for key in python):
        return None
    found = [] if isinstance(lua, list) else find_models(lua)
    if len(found) != 1:
        return None
    try:
        made = generate(found[0][1], found[0][0], only_keys=True).tensors
    except T7BridgeError:  # it has no model.py
        return None
    return OrderedDict(compacted(made)) if set(made) == set(python) else None
