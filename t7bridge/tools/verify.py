"""`verify`: compare the content of two files, also with independent readers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from attrs import asdict, evolve, field

from .. import formats
from ..data import define
from ..errors import T7BridgeError
from ..formats.document import Document
from ..formats.t7.file import T7File
from ..formats.table import FormatSpec
from ..graph.lua import TorchObject, Value
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from ..values.compare import Difference, closest


@define
class VerifyReport:
    """The result of `verify`.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        differences: the differences; empty if both hold the same.
        readers: for each file, its readers besides t7bridge itself: `torchfile`, `torch`, or none.
    """

    first: str
    second: str
    differences: list[Difference] = field(factory=list)
    readers: dict[str, list[str]] = field(factory=dict)
    hint: str = ""
    """A hint on how to compare files whose keys differ."""

    @property
    def same(self) -> bool:
        """True if no difference was found."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        return {**asdict(self), "same": self.same}


@define(eq=False)
class FileContent:
    """Content of one file.

    Attributes:
        lua: its Lua value, if it is a `.t7`, or a `.pt` with the record of one.
        python: its Python-side value, if it is a `.pt`, or a `.t7` with the record of one.
        is_lua: whether it is a `.t7`.
        trailing: bytes after the values of a `.t7` that are neither values nor a record.
        content: the content of a `.t7`.
    """

    is_lua: bool
    lua: Value = None
    python: Any = None
    trailing: bytes = b""
    has_lua: bool = False
    has_python: bool = False
    content: T7File | None = None
    named: FormatSpec | None = None
    """The format, where it holds named tensors and nothing else."""


def verify(a: PathLike, b: PathLike, *, independent: bool = True, limits: Limits = DEFAULT_LIMITS) -> VerifyReport:
    """Check that two files hold the same values, sharing and views.

    Two `.t7` files are compared as Lua has them, whatever their encodings. A `.t7` is compared with a `.pt` as
    `convert` would make one from the other: by the record of the original, in `tree` mode, with state dicts for
    modules, or as tables; the best match counts. Each file is also read by independent readers if possible, and their
    results are compared with ours: torchfile reads `.t7` files, and PyTorch `.pt` files if it is installed.

    Args:
        a: a `.t7` or `.pt` file.
        b: another.
        independent: whether to use independent readers.
        limits: resource limits.

    Raises:
        FormatError: a file is damaged, including a wrong CRC in an archive, or in no supported format.
    """
    report = VerifyReport(str(a), str(b))
    with formats.open(a, limits=limits) as first, formats.open(b, limits=limits) as second:
        one, two = read_side(first, limits), read_side(second, limits)
        for source, side in ((first, one), (second, two)):
            if source.path not in report.readers:  # a file compared with itself is read once
                report.readers[source.path] = _ask_others(source, side, report) if independent else []
        report.differences += closest(pairs_of(one, two, limits))[0].found
        report.hint = hint_for(report.differences, report.first, report.second)
        if one.trailing != two.trailing:
            report.differences.append(Difference("", "the bytes after the last value differ"))
    return report


def pairs_of(a: FileContent, b: FileContent, limits: Limits = DEFAULT_LIMITS) -> Iterator[tuple[Any, Any]]:
    """Return the forms in which two files can be compared."""
    _without_modules(a, b, limits)
    if a.named or b.named:
        goal = a.named or b.named
        assert goal is not None
        yield from ((one, other) for one in _named_forms(a, goal) for other in _named_forms(b, goal))
        return
    if a.is_lua == b.is_lua:
        yield (a.lua, b.lua) if a.is_lua else (a.python, b.python)
        return
    if a.has_lua and b.has_lua:
        yield a.lua, b.lua
    if a.has_python and b.has_python:
        yield a.python, b.python
    from ..conversion.lua_tree import to_lua
    from ..conversion.state_dicts import state_dict_of

    lua, python = (a, b) if a.is_lua else (b, a)
    for replace in (None, state_dict_of):
        made = _as_python(lua.lua, replace)
        yield (made, python.python) if a.is_lua else (python.python, made)
    made = _as_model_file(lua.lua, python.python)
    if made is not None:
        yield (made, python.python) if a.is_lua else (python.python, made)
    made = to_lua(python.python, limits=limits).value
    yield (lua.lua, made) if a.is_lua else (made, lua.lua)


def _named_forms(side: FileContent, goal: FormatSpec) -> Iterator[dict[str, Any]]:
    """Yield the content of a file that a format of named tensors can hold: tensors by name, compacted, detached."""
    from ..conversion.named_tensors import fit_names, flatten
    from ..conversion.state_dicts import state_dict_of
    from ..nn.weights.compact import compacted

    forms = [side.python] if side.has_python else []
    if side.is_lua:
        forms += [_as_python(side.lua, replace) for replace in (state_dict_of, None)]
    for form in forms:
        flat = flatten(form)
        fit_names(flat, goal)
        dotted = {".".join(steps): tensor for steps, tensor in flat.tensors.items()}
        if len(dotted) < len(flat.tensors):  # `a.b` beside `b` in the group `a`
            dotted = {"/".join(steps): tensor for steps, tensor in flat.tensors.items()}
        tensors = sorted(compacted(dotted).items())
        # One object for each name: only storages are shared, never tensors.
        yield {name: evolve(tensor, requires_grad=False, is_parameter=False) for name, tensor in tensors}


def _as_python(value: Value, replace: Callable[[TorchObject], Any] | None) -> Any:
    """Return the Python-side value of a `.t7`, a list if the file holds several."""
    from ..conversion.tree import to_python

    return [to_python(root, replace) for root in value] if isinstance(value, list) else to_python(value, replace)


def _without_modules(a: FileContent, b: FileContent, limits: Limits) -> None:
    """Replace the whole modules of one file by their state dicts, as `convert` does, if the other has none."""
    from ..conversion.pt_values import has_modules
    from ..conversion.simplified import simplified

    sides = [side for side in (a, b) if side.has_python and not side.named and has_modules(side.python)]
    if len(sides) == 1:
        sides[0].python = simplified(sides[0].python, Report(), limits)


def _as_model_file(lua: Value, python: Any) -> Any:
    """Return the state dict of the `model.pt` that `module` writes for a model, if a `.pt` has exactly its keys."""
    if not isinstance(python, dict) or not all(isinstance(key, str) for key in python):
        return None
    from ..codegen.generate import generate
    from ..nn.plan.places import find_models
    from ..nn.weights.compact import compacted

    found = [] if isinstance(lua, list) else find_models(lua)
    if len(found) != 1:
        return None
    try:
        made = generate(found[0][1], found[0][0]).tensors
    except T7BridgeError:  # it has no model.py
        return None
    return OrderedDict(compacted(made)) if set(made) == set(python) else None


def hint_for(differences: list[Difference], a: str, b: str) -> str:
    """Return a hint on how to compare files whose keys differ; empty if they do not."""
    ends = {difference.message for difference in differences}
    if not {"is missing in the first", "is missing in the second"} <= ends:
        return ""
    return (
        f"the files have different keys. `t7bridge match {a} {b} -o C.pt` maps them, and writes the "
        f"weights of the first under the keys of the second: then compare C.pt with {b}."
    )


def read_side(document: Document, limits: Limits) -> FileContent:
    """Read one file."""
    if document.spec.values == formats.LUA:
        document.warn(3)
        return _read_lua(document.content, limits)
    return _read_python(document, limits)


_LONGEST_NAME = 1000
"""Maximum length of a class or function name in a pickle passed to PyTorch."""


def _ask_others(document: Document, side: FileContent, report: VerifyReport) -> list[str]:
    """Let another reader read a file too, and compare; return its name, if there is one."""
    name, found = "", None
    if document.format == "pt":
        from . import torch_oracle as torch

        # PyTorch refuses such names, but searches its own message for seconds.
        if all(len(each) <= _LONGEST_NAME for each in document.content.judged):
            name, found = "torch", torch.differences(document.path, side.python)
    elif side.content is not None and len(side.content.roots) == 1 and not side.content.trailing:
        from ..formats import torchfile

        name, found = "torchfile", torchfile.differences(document.path, side.lua, side.content.layout)
    report.differences += [Difference(document.path, message) for message in found or ()]
    return [] if found is None else [name]


def _read_lua(content: T7File, limits: Limits) -> FileContent:
    side = FileContent(True, _value_of(content), has_lua=True, content=content)
    if not content.has_pt_record:
        side.trailing = content.trailing
    else:
        from ..conversion.pt_record import original_pt

        original = original_pt(content, limits)
        if original is not None:
            side.python, side.has_python = original[0], True
    return side


def _read_python(document: Document, limits: Limits) -> FileContent:
    document.verify()
    side = FileContent(
        False,
        python=document.value,
        has_python=True,
        named=document.spec if document.spec.values == formats.NAMED else None,
    )
    if document.format == "pt":
        from ..conversion.t7_record import original_t7

        restored, _ = original_t7(document.content, limits)
        if restored is not None:
            side.lua, side.has_lua = _value_of(restored), True
            side.trailing = b"" if restored.has_pt_record else restored.trailing
    return side


def _value_of(content: T7File) -> Value:
    """Return the value of a `.t7`, or the list of its values."""
    return content.roots[0] if len(content.roots) == 1 else content.roots
