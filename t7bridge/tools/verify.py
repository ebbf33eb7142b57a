"""`verify` and `diff`: compare the content of two files, as every reader sees it, or as numbers.

PyTorch, if it is installed, is a second, independent reader of `.pt` files; only its safe loader is used.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from attrs import asdict, evolve, field

from .. import formats
from ..codegen.generate import generate
from ..conversion.lua_tree import to_lua
from ..conversion.named_tensors import flatten, name_tensors
from ..conversion.options import FORCE, JSON, LIMITS, option, takes, verb
from ..conversion.records import structure_of
from ..conversion.request import Convert, has_modules, metadata_left_out
from ..conversion.simplified import simplified
from ..conversion.targets import plain_value
from ..data import define
from ..errors import T7BridgeError
from ..formats.named import same_rows
from ..formats.table import Document, FormatSpec
from ..graph.lua import TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor, TensorExtras
from ..graph.walk import Path, pairwise
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.layouts import compact_in, compacted
from ..nn.places import find_models, layer_names
from ..report import Printed, Report
from ..text import counted
from ..values.compare import Comparer, Difference, Pairs, ValueComparer, closest
from ..values.widened import HINTS
from .files import MANY_OBJECTS, FileContent


@define
class Comparison(Printed):
    """The result of comparing two files.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        differences: the differences; empty if both hold the same. For tensors of one shape `diff` has a
            `TensorDifference`, with numbers.
    """

    first: str
    second: str
    differences: list[Difference] = field(factory=list)

    @property
    def same(self) -> bool:
        """True if no difference was found."""
        return not self.differences

    @property
    def hint(self) -> str:
        """A hint on how to compare files whose keys differ; empty if they do not."""
        if not {"is missing in the first", "is missing in the second"} <= {each.message for each in self.differences}:
            return ""
        return (
            f"the files have different keys. `t7bridge match {self.first} {self.second} -o C.pt` maps them, and writes "
            f"the weights of the first under the keys of the second: then compare C.pt with {self.second}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON, in which infinity becomes `None`."""
        return {**asdict(self, value_serializer=_finite), "hint": self.hint, "same": self.same}


def _finite(_: Any, __: Any, value: Any) -> Any:
    return None if value == math.inf else value


@define
class VerifyReport(Comparison):
    """The result of `verify`.

    Attributes:
        readers: for each file, its readers besides t7bridge itself: `torchfile`, `torch`, or none.
        left_out: for each file what `convert` leaves out and is no difference, as sentences: what is in no state dict
            of its modules, and strings of its metadata.
    """

    readers: dict[str, list[str]] = field(factory=dict)
    left_out: dict[str, list[str]] = field(factory=dict)

    def lines(self) -> list[str]:
        """Return the differences, what was left out, and the readers used."""
        return [
            *map(str, self.differences),
            *(f"{name}: {text}" for name, texts in self.left_out.items() for text in texts),
            *(f"{name}: read by {' and '.join(['t7bridge', *readers])}" for name, readers in self.readers.items()),
            "the same" if self.same else counted(len(self.differences), "difference"),
        ]


@define
class DiffReport(Comparison):
    """The result of `diff`.

    Attributes:
        tensors: number of pairs of tensors compared.
        drawn: numbers of differing blocks by kind: `only first`, `only second`, `shape`, `options`, `weights`.
    """

    tensors: int = 0
    drawn: dict[str, int] = field(factory=dict)

    def lines(self) -> list[str]:
        """Return the differences, and their number."""
        found = counted(len(self.differences), "difference") if self.differences else "no difference"
        return [*map(str, self.differences), f"{found}; {counted(self.tensors, 'tensor')} compared"]


@define(eq=False)
class RowComparer(Comparer):
    """Compares tensors row by row: formats of named tensors have neither strides nor shared memory."""

    def _tensors(self, path: Path, a: Tensor, b: Tensor) -> Pairs:
        same = (a.element.name, a.shape) == (b.element.name, b.shape)
        self._same(path, "type", a.element.name, b.element.name)
        self._same(path, "shape", a.shape, b.shape)
        if same and not same_rows(a, b):
            self._differs(path, "other elements")
        return ()


@verb
class Verify:
    """Check that two files hold the same values, sharing and views, whatever their formats."""

    EXAMPLES = ("t7bridge verify model.t7 model.pt", "t7bridge verify --quiet a.t7 b.t7 && echo same")
    OLD_NAMES: ClassVar = {"a": "source", "b": "other"}
    source: PathLike = option("a file of any format", kw_only=False, metavar="A", stdin=True)
    other: PathLike = option("another", kw_only=False, metavar="B", stdin=True)
    independent: bool = option("skip the check with torchfile and PyTorch", default=True, flags=("--quick",))
    compact: bool = option("expect views of models as `convert --compact` writes them", default=False)
    json = JSON
    limits: Limits = LIMITS


@takes(Verify)
def verify(request: Verify) -> VerifyReport:
    """Check that two files hold the same values, sharing and views, as every reader sees them: no record is used.

    Two `.t7` files are compared as Lua has them, whatever their encodings. Files of different formats are compared as
    `convert` would make one from the other: in `tree` mode, with state dicts for modules, as tables, or as named
    tensors, which have neither strides nor shared memory; the best match counts. What a format cannot hold is missing
    in its file; what is not part of a module's state dict, and strings of metadata where the other format has none, are
    listed apart, and are no difference. Each file is also read
    by independent readers if possible, and their results are compared with ours: torchfile reads `.t7` files, and
    PyTorch `.pt` files if it is installed.

    Args:
        independent: whether to use independent readers.
        compact: whether a `.pt` has the state dicts of a `.t7` as `compact` of `convert` makes them: views are
            tensors of their own.

    Raises:
        FormatError: a file is damaged, including a wrong CRC in an archive, or in no supported format.
    """
    report = VerifyReport(str(request.source), str(request.other))

    def read(document: Document) -> FileContent:
        side = read_side(document)
        side.compact = request.compact
        if document.path not in report.readers:  # a file compared with itself is read once
            report.readers[document.path] = _ask_others(document, side, report) if request.independent else []
        return side

    with _both(request) as (first, second):
        one, two, same = _read_both(first, second, read, request.limits)
        if not same:
            make = RowComparer if one.is_named or two.is_named else Comparer
            comparer, forms = closest(pairs_of(one, two, request.limits), partial(make, limits=request.limits))
            report.differences += comparer.found
            for side, form in zip((one, two), forms):
                if texts := side.left_out(form):
                    report.left_out[side.document.path] = texts
        if one.is_lua and two.is_lua and one.trailing != two.trailing:
            report.differences.append(Difference("", "the bytes after the last value differ"))
        for side, other in ((one, two), (two, one)):
            if side.trailing and not other.is_lua:
                report.left_out.setdefault(side.document.path, []).append(side.trailing_message)
    return report


@contextmanager
def _both(request: Verify | Diff) -> Iterator[tuple[Document, Document]]:
    with (
        formats.open(request.source, limits=request.limits) as first,
        formats.open(request.other, limits=request.limits) as second,
    ):
        yield first, second


@verb
class Diff:
    """Report the values that differ between two files, and by how much, whatever their formats."""

    EXAMPLES = (
        "t7bridge diff model.t7 model.pt",
        "t7bridge diff a.safetensors b.npz --rtol 1e-5",
        "t7bridge diff before.t7 after.t7 --draw changes.html",
    )
    OLD_NAMES: ClassVar = {"a": "source", "b": "other"}
    source: PathLike = option("a file of any format", kw_only=False, metavar="A", stdin=True)
    other: PathLike = option("another", kw_only=False, metavar="B", stdin=True)
    rtol: float = option("relative tolerance, as a fraction of B's value", default=0.0, metavar="X")
    atol: float = option("absolute tolerance", default=0.0, metavar="X")
    draw: PathLike | None = option(
        "write a page (.html) with both models side by side", default=None, metavar="PAGE", group="output"
    )
    force: bool = FORCE
    json = JSON
    limits: Limits = LIMITS


@takes(Diff)
def diff(request: Diff) -> DiffReport:
    """Report the values that differ between two files, and by how much.

    Elements of tensors are compared as numbers; their storage (sharing, offsets, strides, devices) is ignored, as
    `verify` compares it. The files may have different formats: one is converted to the form that matches the other
    best, including the state dicts of its modules.

    Args:
        atol: absolute tolerance, added to the relative one.
        draw: a page to write, `.html`: both models side by side, differences in colour.

    Raises:
        FormatError: a file is damaged, or in no supported format.
    """
    with _both(request) as (first, second):
        report = DiffReport(str(request.source), str(request.other))
        a, b, same = _read_both(first, second, read_side, request.limits)
        if not same:
            # The best form is chosen by structure and shapes, so that no element is read twice.
            _, (one, two) = closest(pairs_of(a, b, request.limits), partial(ValueComparer, elements=False))
            comparer = ValueComparer(rtol=request.rtol, atol=request.atol)
            report.differences, report.tensors = comparer.run(one, two), comparer.tensors
            if report.differences and (a.is_lua or b.is_lua):
                by_path = layer_names(a.value if a.is_lua else b.value, request.limits)
                names = {**{name: (name, kind) for name, kind in by_path.values()}, **by_path}
                report.differences = [_with_layer(each, names) for each in report.differences]
        if request.draw is not None:
            from .draw.drawing import draw_pair

            report.drawn = draw_pair(first, second, request)
        return report


def _with_layer(found: Difference, names: dict[str, tuple[str, str]]) -> Difference:
    """Return a difference with the layer that it is in.

    Args:
        found: the difference.
        names: the result of `layer_names`, and the same by the names in it.
    """
    path = found.path.removeprefix("root['").removesuffix("']")  # of a state dict
    while path and path not in names:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    layer, class_name = names.get(path, ("", ""))
    return evolve(found, layer=layer, class_name=class_name)


def read_side(document: Document) -> FileContent:
    """Read one file.

    Raises:
        FormatError: it is damaged, including a wrong CRC in an archive.
    """
    if document.spec.values != formats.LUA:
        document.verify()
        return FileContent(document)
    document.warn(4)
    content = document.content
    return FileContent(document, b"" if content.has_pt_record else content.trailing, content.message)


def _read_both(
    first: Document, second: Document, read: Callable[[Document], FileContent], limits: Limits
) -> tuple[FileContent, FileContent, bool]:
    """Read two files; return too whether they are known to hold the same Lua value, of many objects and no tensors.

    A hash of its structure takes less time than a comparison pair by pair, and the memory of one value.
    """
    one = read(first)
    structure, other = _structure(first, second), second
    two = read(second)
    if first.spec.values != formats.LUA:
        structure, other = _structure(second, first), first
    return one, two, bool(structure) and structure in _structures(other, limits)


def _structure(document: Document, other: Document) -> str:
    """Return the hash of the structure of a `.t7`, and release its values; empty if they are compared pair by pair."""
    if document.spec.values != formats.LUA or other.spec.values == formats.NAMED:
        return ""
    content = document.content
    kinds = set(map(type, content.objects))
    if len(content.objects) < MANY_OBJECTS or len(content.roots) > 1 or kinds & {Tensor, Storage}:
        return ""
    if other.spec.values != formats.LUA and not content.has_pt_record:
        return ""  # it was not made from a Python value, and is compared as one first
    found = structure_of(content.roots[0])[0]
    document.forget()
    return found


def _structures(document: Document, limits: Limits) -> Iterator[str]:
    """Yield the hash of the structure of a value, as it is in Lua or as it is converted."""
    if document.spec.values != formats.LUA:
        for nested in (False, True):
            yield structure_of(to_lua(document.value, nested=nested, limits=limits).value)[0]
    elif len(document.roots) == 1:
        yield structure_of(document.value)[0]


_LONGEST_NAME = 1000
"""Maximum length of a class or function name in a pickle passed to PyTorch."""


def _ask_others(document: Document, side: FileContent, report: VerifyReport) -> list[str]:
    """Let another reader read a file too, and compare; return its name, if there is one."""
    name, found = "", None
    if document.format == "pt":
        value = document.value  # what its pickle names is known once it is read
        # PyTorch refuses pickles of anything but checkpoints; and such names, but searches its own message for seconds.
        if document.layout != "pickle" and all(len(each) <= _LONGEST_NAME for each in document.content.judged):
            name, found = "torch", differences(document.path, value)
    elif side.is_lua and len(document.roots) == 1 and not document.content.trailing:
        from ..formats import torchfile

        name, found = "torchfile", torchfile.differences(document.path, side.value, document.layout)
    report.differences += [Difference(document.path, message) for message in found or ()]
    return [] if found is None else [name]


def differences(path: PathLike, value: Any) -> list[str] | None:
    """Read a file with `torch.load(weights_only=True)` and compare with the value from `PtReader`.

    Args:
        path: of the file.
        value: the value from `PtReader`.

    Returns:
        The differences, each with its path; `None` if PyTorch is not installed or does not read the file safely.
    """
    try:
        import torch
    except ImportError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # its safe loader refuses files in many ways; then it is not a reference for this one
        return None
    return _Comparer(torch).run(value, other)


class _Comparer:
    """Compares the values of both readers side by side; values that are not plain data are skipped."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._found: list[str] = []
        self._memory: dict[int, int] = {}
        self._seen: set[int] = set()

    def run(self, mine: Any, theirs: Any) -> list[str]:
        pairwise(mine, theirs, self._pair)
        return self._found

    def _pair(self, path: Path, a: Any, b: Any) -> Iterable[tuple[Any, Any, Any]]:
        if isinstance(a, Tensor):
            self._tensor(path, a, b)
        elif isinstance(a, (dict, list, tuple)):
            if id(a) not in self._seen:
                self._seen.add(id(a))
                return self._inside(path, a, b)
        elif isinstance(a, (bool, int, float, str, bytes, type(None))) and repr(a) != repr(b):
            self._found.append(f"{path}: PyTorch has {b!r:.60} for {a!r:.60}")
        return ()

    def _inside(self, path: Path, a: Any, b: Any) -> Iterable[tuple[Any, Any, Any]]:
        kind = dict if isinstance(a, dict) else list if isinstance(a, list) else tuple
        if not isinstance(b, kind) or len(a) != len(b):
            self._found.append(f"{path}: PyTorch has a {type(b).__name__} where here is a {type(a).__name__}")
            return ()
        if isinstance(a, dict) and isinstance(b, dict):
            return zip(a, a.values(), b.values())
        return zip(range(len(a)), a, b)

    def _tensor(self, path: Path, a: Tensor, b: Any) -> None:
        if not isinstance(b, self._torch.Tensor):
            self._found.append(f"{path}: PyTorch has a {type(b).__name__} for a tensor")
            return
        extras = a.extras or TensorExtras()
        mine = (a.element.name, a.shape, a.requires_grad, extras.conj, extras.neg)
        theirs = (str(b.dtype).removeprefix("torch."), tuple(b.shape), b.requires_grad, b.is_conj(), b.is_neg())
        if mine != theirs:
            self._found.append(f"{path}: PyTorch has {theirs} for {mine}")
        elif a.storage is not None and a.numel and not hasattr(b, "__tensor_flatten__"):  # such as a DTensor: no memory
            if (a.stride, a.offset) != (b.stride(), b.storage_offset()):
                self._found.append(f"{path}: PyTorch has another stride or offset")
            self._storage(path, a.storage, b.untyped_storage())

    def _storage(self, path: Path, a: Storage, b: Any) -> None:
        known = self._memory.get(id(a))
        if known is None:
            self._memory[id(a)] = b.data_ptr()
            view = self._torch.empty(0, dtype=self._torch.uint8).set_(b).numpy()
            digest = hashlib.sha256()
            for chunk in a.chunks():
                digest.update(chunk)
            if digest.digest() != hashlib.sha256(view).digest():
                self._found.append(f"{path}: PyTorch has different elements")
        elif known != b.data_ptr():
            self._found.append(f"{path}: memory shared here is not shared in PyTorch")


# The forms in which two files can be compared


def pairs_of(a: FileContent, b: FileContent, limits: Limits = DEFAULT_LIMITS) -> Iterator[tuple[Any, Any]]:
    """Yield the forms in which two files can be compared."""
    if a.is_lua and b.is_lua:
        yield a.value, b.value
        return
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
        made = plain_value(side.document, request, said, with_data=with_data)
        yield side.add_form(compact_in(made) if side.compact and mode == "auto" else made, said)


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
