"""`verify` and `diff`: compare two files as readers see them that know no records of t7bridge.

Both are one comparison. If the files have different formats, one of them is brought into the form that `convert` gives
it in the format of the other, by `convert`'s own functions and without any record, and their notes say what that form
leaves out. So there are four lists: equal values, different ones, and those that only one of the two has, be it that
the other lacks them or that its format or mode has no place for them. `verify` asks for the same bits, and for sharing
and views where both can hold them; `diff` compares numbers, within a tolerance.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import tee
from typing import Any, ClassVar

from attrs import asdict, evolve, field

from .. import formats
from ..conversion.beside import about_in_metadata
from ..conversion.lua_tree import note_nones, to_lua
from ..conversion.named_tensors import name_tensors
from ..conversion.options import JSON, LIMITS, flag, option, takes, verb
from ..conversion.records import structure_of, value_read_back
from ..conversion.request import Attempt
from ..conversion.simplified import simplified
from ..conversion.state_dicts import note_texts
from ..conversion.targets import plain_value
from ..conversion.tree import DROPPED, MERGED, WRAPPED
from ..conversion.values import is_simple, metadata_left_out, note_plain_nans
from ..data import decimal_text, define
from ..errors import T7BridgeError
from ..formats.t7.layout import T7Layout
from ..formats.table import Document, FormatSpec, Written
from ..graph.lua import TorchObject, Value
from ..graph.storage import Storage, array_chunks
from ..graph.tensor import Tensor, TensorExtras, bits_of
from ..graph.walk import Path, objects, pairwise
from ..io.copy import sha256
from ..io.source import PathLike, inputs_protected
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.layouts import compact_in, compacted
from ..nn.places import find_models, layer_names, layer_paths
from ..report import Note, Printed, Report
from ..text import clean, counted
from ..values.compare import Comparer, Difference, Homes, RowComparer, ValueComparer, closest
from ..values.widened import HINTS

_MANY_OBJECTS = 100_000
"""Objects of a `.t7` from which on memory is saved: hashes are compared, or the file's values released, if possible."""
_LEFT_OUT_CODES = frozenset({"left-out", "metadata", "precision", "trailing"})
"""The codes of notes about what a target does not show; the others are about types, names and shared memory."""


@define
class Comparison(Printed):
    """The result of comparing two files.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        differences: values that differ, and those that only one file has though the other has a place for them. For
            tensors of one shape there is a `TensorDifference`, with numbers.
        left_out: for each file what only it has, as the other has no place for it: the sentences of `convert`.
        equal: number of values that are equal.
    """

    first: str
    second: str
    differences: list[Difference] = field(factory=list)
    left_out: dict[str, list[str]] = field(factory=dict, kw_only=True)
    equal: int = field(default=0, kw_only=True)

    @property
    def same(self) -> bool:
        """True if nothing differs, and neither file has anything that the other has not."""
        return not self.differences and not self.left_out

    @property
    def different(self) -> list[Difference]:
        """The values that both files have, and that differ."""
        return [difference for difference in self.differences if not difference.only]

    @property
    def only_first(self) -> list[Difference]:
        """The values that the second file lacks, though it has a place for them."""
        return [difference for difference in self.differences if difference.only == "first"]

    @property
    def only_second(self) -> list[Difference]:
        """The values that the first file lacks, though it has a place for them."""
        return [difference for difference in self.differences if difference.only == "second"]

    @property
    def hint(self) -> str:
        """A hint on how to compare files whose keys differ; empty if they do not."""
        if not (self.only_first and self.only_second):
            return ""
        import shlex

        files = shlex.join((self.first, self.second))
        return (
            f"the files have different keys. `t7bridge match {files} -o C.pt` maps them, and writes "
            f"the weights of the first under the keys of the second: then compare C.pt with {self.second}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON, in which infinity becomes `None`."""
        return {**asdict(self, value_serializer=_without_infinity), "hint": self.hint, "same": self.same}

    def _result(self) -> str:
        """Return the last line, and the names of the files."""
        names = [clean(os.path.basename(name)) for name in (self.first, self.second)]
        return f"{super()._result()} ({', '.join(names)})"

    def _listed(self) -> list[str]:
        """Return a line for each difference, and for each sentence on what only one file has."""
        lines = [str(difference) for difference in self.differences]
        for name, sentences in self.left_out.items():
            lines += [f"only in {name}: {sentence}" for sentence in sentences]
        return lines


def _without_infinity(_instance: Any, _attribute: Any, value: Any) -> Any:
    return None if value == math.inf else value  # JSON has no infinity


@define
class VerifyReport(Comparison):
    """The result of `verify`.

    Attributes:
        readers: for each file, its readers besides t7bridge itself: `torchfile`, `torch`, or none.
    """

    readers: dict[str, list[str]] = field(factory=dict)

    def lines(self) -> list[str]:
        """Return the differences, what only one file has, other readers, and the result."""
        result = "the same"
        if self.left_out:
            result = "no difference in what both can hold"
        if self.differences:
            result = counted(len(self.differences), "difference")
        readers = [f"{name}: also read by {' and '.join(names)}" for name, names in self.readers.items() if names]
        return [*self._listed(), *readers, result]


@define
class DiffReport(Comparison):
    """The result of `diff`.

    Attributes:
        tensors: number of pairs of tensors compared.
    """

    tensors: int = 0

    def lines(self) -> list[str]:
        """Return the differences, what only one file has, and the result."""
        result = "no difference"
        if self.left_out:
            result = "no difference in what both can hold"
        if self.differences:
            result = counted(len(self.differences), "difference")
        return [*self._listed(), f"{result}; {counted(self.tensors, 'tensor')} compared"]


@verb
class Verify:
    """Check that two files hold the same values, sharing and views, whatever their formats."""

    COMMON = ("independent", "compact", "json")
    EXAMPLES = ("t7bridge verify model.t7 model.pt", "t7bridge verify --quiet a.t7 b.t7 && echo no difference")
    OLD_NAMES: ClassVar = {"a": "source", "b": "other"}
    source: PathLike = option("a file of any format", kw_only=False, metavar="A", stdin=True)
    other: PathLike = option("another", kw_only=False, metavar="B", stdin=True)
    independent: bool = option("let torchfile and PyTorch read the files too, and compare", default=False)
    compact: bool = option("expect views of models as `convert --compact` writes them", default=False)
    quick = flag("without effect: --independent is off by default; kept for commands of earlier releases")
    json = JSON
    limits: Limits = LIMITS


@takes(Verify)
def verify(request: Verify) -> VerifyReport:
    """Check that two files hold the same values, sharing and views, as every reader sees them: no record is used.

    Two `.t7` files are compared as Lua has them, whatever their encodings. Files of different formats are compared as
    `convert` would make one from the other: in `tree` mode, with state dicts for modules, as tables, or as named
    tensors; the best match counts. Sharing, strides and types count where both formats can hold them. What the format
    or the mode of the other file has no place for, such as gradients beside a state dict, is in `left_out`, with the
    sentences of `convert`: it is no difference, but then the files are not the same. Nothing but the two files is read,
    no `config.json` beside one.

    Args:
        independent: whether torchfile reads `.t7` files, and PyTorch `.pt` files, if they are installed; their results
            are compared with ours.
        compact: whether a `.pt` has the state dicts of a `.t7` as `compact` of `convert` makes them: views are
            tensors of their own.

    Raises:
        FormatError: a file is damaged, including a wrong CRC in an archive, or in no supported format.
    """
    report = VerifyReport(str(request.source), str(request.other))
    with _opened_inputs(request) as (first, second):
        sides = Sides(first, second, request.limits, request.compact)
        if request.independent:
            for document in (first, second):
                if document.path not in report.readers:  # a file compared with itself is read once
                    report.readers[document.path] = _compare_with_other_reader(document, report)
        # Formats of named tensors have no strides and views that could be compared.
        comparer_class = RowComparer if sides.has_named else Comparer
        make_comparer = partial(comparer_class, limits=request.limits, homes=_finder_of_layers(first, request.limits))
        sides.compare(report, make_comparer)
        _name_layers(report, (first, second), request.limits)
        are_lua = first.spec.values == second.spec.values == formats.LUA
        if are_lua and _bytes_after_values(first) != _bytes_after_values(second):
            report.differences.append(Difference("", "the bytes after the last value differ"))
    return report


@contextmanager
def _opened_inputs(request: Verify | Diff) -> Iterator[tuple[Document, Document]]:
    """Open both files; verify the checksums in them, or warn of an incomplete `.t7`, which has none.

    Raises:
        FormatError: a file is damaged, or in no supported format.
    """
    with (
        inputs_protected(),
        formats.open(request.source, limits=request.limits) as first,
        formats.open(request.other, limits=request.limits) as second,
    ):
        for document in (first, second):
            document.source.read_all()  # sets how a file at an address is read: in large ranges
            if document.spec.values == formats.LUA:
                document.warn(stacklevel=4)  # at the line that calls the verb
            else:
                document.verify()
        yield first, second


def _bytes_after_values(document: Document) -> bytes:
    """Return the bytes after the values of a `.t7` that are no value; none if they are a record: it is not compared."""
    content = document.content
    return b"" if content.has_pt_record else bytes(content.trailing)


@verb
class Diff:
    """Report the values that differ between two files, and by how much, whatever their formats."""

    EXAMPLES = ("t7bridge diff model.t7 model.pt", "t7bridge diff a.safetensors b.npz --rtol 1e-5")
    OLD_NAMES: ClassVar = {"a": "source", "b": "other"}
    source: PathLike = option("a file of any format", kw_only=False, metavar="A", stdin=True)
    other: PathLike = option("another", kw_only=False, metavar="B", stdin=True)
    rtol: float = option("relative tolerance, as a fraction of B's value", default=0.0, metavar="X")
    atol: float = option("absolute tolerance", default=0.0, metavar="X")
    json = JSON
    limits: Limits = LIMITS


@takes(Diff)
def diff(request: Diff) -> DiffReport:
    """Report the values that differ between two files, and by how much.

    The comparison is that of `verify`, but elements of tensors are compared as numbers, and their storage (sharing,
    offsets, strides, devices) is ignored. The files may have different formats: one is converted to the form that
    matches the other best, including the state dicts of its modules.

    Args:
        rtol: relative tolerance.
        atol: absolute tolerance, added to the relative one.

    Raises:
        FormatError: a file is damaged, or in no supported format.
    """
    with _opened_inputs(request) as (first, second):
        report = DiffReport(str(request.source), str(request.other))
        sides = Sides(first, second, request.limits)
        make_comparer = partial(
            ValueComparer,
            limits=request.limits,
            homes=_finder_of_layers(first, request.limits),  # of the first file: a difference has its path there
            rtol=request.rtol,
            atol=request.atol,
        )
        comparer = sides.compare(report, make_comparer)
        if isinstance(comparer, ValueComparer):  # there is none if a hash says that files without tensors are equal
            report.tensors = comparer.tensors
        _name_layers(report, (first, second), request.limits)
        return report


def _finder_of_layers(document: Document, limits: Limits) -> Callable[[], Homes]:
    """Return a function that finds the layers of a `.t7` with their paths; other files have none.

    It is the argument `homes` of a `Comparer`, by which the path of a difference begins with that of its layer. Layers
    are searched once, and only if there is a difference.

    Args:
        document: the first of the two files: differences have its paths.
        limits: resource limits.
    """

    @cache
    def find_layers() -> Homes:
        return layer_paths(document.value, limits) if document.spec.values == formats.LUA else {}

    return find_layers


def _name_layers(report: Comparison, documents: tuple[Document, Document], limits: Limits) -> None:
    """Give each difference the layer of a `.t7` that it is in, by path or by key of a state dict.

    Args:
        report: its differences are replaced by such with layers.
        documents: both files; without a `.t7` among them nothing changes.
        limits: resource limits.
    """
    lua_documents = [document for document in documents if document.spec.values == formats.LUA]
    if not report.differences or not lua_documents:
        return
    # Paths in a second `.t7` lead to the same layers.
    names_by_path = layer_names(lua_documents[0].value, limits)  # name and class of each layer
    # A difference has a path in the `.t7`, or the key of a state dict, which begins with the name of the layer.
    names_by_key = {name: (name, class_name) for name, class_name in names_by_path.values()}
    names = names_by_key | names_by_path
    report.differences = [_with_layer(difference, names) for difference in report.differences]


def _with_layer(difference: Difference, names: dict[str, tuple[str, str]]) -> Difference:
    """Return a difference with the layer that it is in, if it is in one: `0` for `root.modules[1].weight`.

    Args:
        difference: the difference.
        names: name and class of each layer, by its path and by its name.
    """
    path_or_key = _path_or_key(difference.path)
    path = path_or_key
    while path and path not in names:  # without its last step, until it is that of a layer
        last_step = max(path.rfind("."), path.rfind("["), 0)
        path = path[:last_step]
    layer, class_name = names.get(path, ("", ""))
    steps_inside = path_or_key.removeprefix(path)
    name = f"{layer}{steps_inside}" if layer else ""
    return evolve(difference, layer=layer, class_name=class_name, name=name)


def _path_or_key(path: str) -> str:
    """Return a path, or of one that begins with the key of a state dict the key, with the steps behind it.

    `root['0.weight'].storage` becomes `0.weight.storage`.
    """
    if not path.startswith("root['"):
        return path
    return path.removeprefix("root['").replace("']", "", 1)


_LONGEST_NAME = 1000
"""Maximum length of a class or function name in a pickle passed to PyTorch."""


def _compare_with_other_reader(document: Document, report: VerifyReport) -> list[str]:
    """Let PyTorch read a `.pt`, or torchfile a `.t7`, and add the differences to a report.

    Args:
        document: the file, as t7bridge reads it.
        report: receives the differences, each with the path of the file.

    Returns:
        The name of the reader in a list; an empty list if none reads such a file, or it is not installed.
    """
    messages: list[str] | None = None
    reader = ""
    if document.format == "pt":
        reader = "torch"
        messages = _differences_from_torch_if_fast(document)
    elif document.spec.values == formats.LUA:
        reader = "torchfile"
        messages = _differences_from_torchfile(document)
    if messages is None:
        return []
    report.differences += [Difference(document.path, message) for message in messages]
    return [reader]


def _differences_from_torchfile(document: Document) -> list[str] | None:
    """Return the differences of a `.t7` as torchfile reads it; `None` if it cannot, or is not installed."""
    # It reads one value, and no bytes after it.
    if len(document.roots) != 1 or document.content.trailing:
        return None
    from ..formats import torchfile

    return torchfile.differences(document.path, document.value, document.layout)


def _differences_from_torch_if_fast(document: Document) -> list[str] | None:
    """Return the differences of a `.pt` as PyTorch reads it; `None` if it refuses the file, or would take long to."""
    value = document.value  # before `judged`, the names in the pickle, which are met while it is read
    has_long_names = any(len(name) > _LONGEST_NAME for name in document.content.judged)
    # PyTorch refuses pickles that are not checkpoints. It refuses long names, too, but takes seconds to make a message
    # of them.
    if document.layout == "pickle" or has_long_names:
        return None
    return differences_from_torch(document.path, value)


def differences_from_torch(path: PathLike, value: Any) -> list[str] | None:
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
    return _TorchComparer(torch).run(value, other)


class _TorchComparer:
    """Compares the values of both readers side by side; values that are not plain data are skipped.

    Args:
        torch: the package, which t7bridge imports only where it is needed.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._differences: list[str] = []
        self._addresses: dict[int, int] = {}
        """Of each storage, by identity, the address of PyTorch's."""
        self._visited: set[int] = set()
        """Our containers compared before, by identity: a value may contain itself."""

    def run(self, mine: Any, theirs: Any) -> list[str]:
        """Return the differences of our value and PyTorch's."""
        pairwise(mine, theirs, self._compare_pair)
        return self._differences

    def _compare_pair(self, path: Path, mine: Any, theirs: Any) -> Iterable[tuple[Any, Any, Any]]:
        """Compare our value with PyTorch's; return the pairs inside that are to be compared next, for `pairwise`.

        Args:
            path: of both.
            mine: a value of t7bridge; one that is no tensor, container or scalar is not compared.
            theirs: that of PyTorch at the same place.
        """
        if isinstance(mine, Tensor):
            self._compare_tensor(path, mine, theirs)
        elif isinstance(mine, (dict, list, tuple)):
            if id(mine) not in self._visited:
                self._visited.add(id(mine))
                return self._pairs_inside(path, mine, theirs)
        # By `repr`, in which 1, 1.0 and True differ, and NaN is equal to NaN.
        elif isinstance(mine, (bool, int, float, str, bytes, type(None))) and repr(mine) != repr(theirs):
            self._differences.append(f"{path}: PyTorch has {theirs!r:.60} for {mine!r:.60}")
        return ()

    def _pairs_inside(self, path: Path, mine: Any, theirs: Any) -> Iterable[tuple[Any, Any, Any]]:
        """Return the pairs in two containers, each with its key, in order.

        If their kinds or lengths differ, that is added as a difference, and there are no pairs.

        Items of dicts are paired by their order, which both readers have from one pickle; keys are not compared.

        Args:
            path: of both.
            mine: t7bridge's dict, list or tuple.
            theirs: PyTorch's value at the same place.
        """
        # Subclasses, such as OrderedDict, count as these.
        kind = next(kind for kind in (dict, list, tuple) if isinstance(mine, kind))
        if not isinstance(theirs, kind):
            message = f"{path}: PyTorch has a {type(theirs).__name__} where here is a {type(mine).__name__}"
            self._differences.append(message)
            return ()
        if len(mine) != len(theirs):
            self._differences.append(f"{path}: PyTorch has {counted(len(theirs), 'item')} where here are {len(mine)}")
            return ()
        if isinstance(mine, dict) and isinstance(theirs, dict):
            return zip(mine, mine.values(), theirs.values())
        return zip(range(len(mine)), mine, theirs)

    def _compare_tensor(self, path: Path, mine: Tensor, theirs: Any) -> None:
        """Compare type, shape and flags of tensors; if these are equal, strides and offset, and the storages.

        Args:
            path: of both.
            mine: t7bridge's.
            theirs: PyTorch's value at the same place, a `torch.Tensor` if all is well.
        """
        if not isinstance(theirs, self._torch.Tensor):
            self._differences.append(f"{path}: PyTorch has a {type(theirs).__name__} for a tensor")
            return
        extras = mine.extras or TensorExtras()
        here = (mine.element.name, mine.shape, mine.requires_grad, extras.conj, extras.neg)
        dtype = str(theirs.dtype).removeprefix("torch.")
        there = (dtype, tuple(theirs.shape), theirs.requires_grad, theirs.is_conj(), theirs.is_neg())
        if here != there:
            self._differences.append(f"{path}: PyTorch has {there} for {here}")
            return
        has_memory = not hasattr(theirs, "__tensor_flatten__")  # a DTensor, for example, has tensors inside instead
        if mine.storage is None or not mine.numel or not has_memory:
            return
        if (mine.stride, mine.offset) != (theirs.stride(), theirs.storage_offset()):
            self._differences.append(f"{path}: PyTorch has another stride or offset")
        self._compare_storage(path, mine.storage, theirs.untyped_storage())

    def _compare_storage(self, path: Path, mine: Storage, theirs: Any) -> None:
        """Compare the bytes of storages at their first path; at others, only that PyTorch shares the memory too.

        Args:
            path: of a tensor on the storage.
            mine: t7bridge's.
            theirs: PyTorch's `UntypedStorage`.
        """
        address = theirs.data_ptr()
        if id(mine) in self._addresses:
            if self._addresses[id(mine)] != address:
                self._differences.append(f"{path}: memory shared here is not shared in PyTorch")
            return
        self._addresses[id(mine)] = address
        digest = sha256()
        for chunk in mine.chunks():
            digest.update(chunk)
        array = self._torch.empty(0, dtype=self._torch.uint8).set_(theirs).numpy()
        if digest.digest() != sha256(memoryview(array)).digest():
            self._differences.append(f"{path}: PyTorch has different elements")


# The forms in which two files can be compared


@define(eq=False)
class Form:
    """The value of a file, or what `convert` makes of it in the format of another file: what is compared.

    Attributes:
        value: the value.
        notes: of the conversion.
    """

    value: Any
    notes: list[Note] = field(factory=list)

    @property
    def left_out(self) -> list[str]:
        """What the file has, and the form has not, as sentences."""
        sentences: dict[str, None] = {}  # as an ordered set: each once
        for note in self.notes:
            if note.code in _LEFT_OUT_CODES:
                sentence = f"{note.path}: {note.message}" if note.path else note.message
                sentences[sentence] = None
        return list(sentences)


def _own_form(document: Document) -> Form:
    """Return the value of a file as it is, with notes on what was not read."""
    value = document.value  # before the notes, which are made while it is read
    return Form(value, document.notes)


Pairs = Iterator[tuple[Form, Form]]


@define(eq=False)
class Sides:
    """Two files, and the pairs of forms in which they can be compared: each as it is, or as `convert` makes it.

    Attributes:
        first: the first file.
        second: the second file.
        limits: resource limits.
        compact: whether state dicts are compared as `convert --compact` makes them.
    """

    first: Document
    second: Document
    limits: Limits = DEFAULT_LIMITS
    compact: bool = False

    @property
    def has_named(self) -> bool:
        """Whether one of the files is of a format of named tensors."""
        return formats.NAMED in (self.first.spec.values, self.second.spec.values)

    def compare(self, report: Comparison, make_comparer: Callable[..., Comparer]) -> Comparer | None:
        """Compare the files in the forms that have most in common, and fill a report.

        Args:
            report: receives the differences, and what only one file has.
            make_comparer: creates it; takes `text`, whether a file is text, and `elements`, whether they are compared.

        Returns:
            The comparer; `None` if the files are known to be equal by the hashes of their structures.
        """
        if self._has_same_structure():
            return None
        make = partial(make_comparer, text=_is_text(self.first) or _is_text(self.second))
        # The pair of forms with most in common is chosen without elements, so that none is read twice.
        make_for_structure = partial(make, elements=False)
        _, (first, second) = closest(self.pairs(), make_for_structure, lambda form: form.value)
        comparer = make()  # which compares elements, too
        report.differences += comparer.run(first.value, second.value)
        report.equal = comparer.agreed
        self._add_left_out(report, first, second)
        return comparer

    def _add_left_out(self, report: Comparison, first: Form, second: Form) -> None:
        """Add to a report what the forms that were compared do not have of the two files.

        Args:
            report: receives the sentences, by the path of the file that has what they are about.
            first: the form of the first file.
            second: the form of the second file.
        """
        # Text has no bits of NaNs: those of the other file are what it lacks.
        if _is_text(self.second):
            first = _with_note_on_nans(first)
        if _is_text(self.first):
            second = _with_note_on_nans(second)
        # What is left out of both forms has no place in either.
        only_first = [sentence for sentence in first.left_out if sentence not in second.left_out]
        only_second = [sentence for sentence in second.left_out if sentence not in first.left_out]
        if only_first:
            report.left_out[report.first] = only_first
        if only_second:
            report.left_out[report.second] = only_second

    # A hash of its structure takes less time than a comparison pair by pair, and the memory of one value.

    def _has_same_structure(self) -> bool:
        """Return whether both files hold the same Lua value by a hash; `False` also where no hash could say so."""
        if self.first.spec.values == formats.LUA:
            lua, other = self.first, self.second
        else:
            lua, other = self.second, self.first
        if not self._may_be_equal_by_hash(lua, other):
            return False
        structure, _storages = structure_of(lua.content.roots[0])
        lua.forget()  # its values, so that those of one file at a time take memory; they are read again if needed
        return structure in self._possible_structures(other)

    @staticmethod
    def _may_be_equal_by_hash(lua: Document, other: Document) -> bool:
        """Return whether a hash of the structure can say that two files are equal, and is worth making.

        Args:
            lua: a `.t7`, if one of the files is one.
            other: the other file.
        """
        # Named tensors are never a whole value of Lua.
        if lua.spec.values != formats.LUA or other.spec.values == formats.NAMED:
            return False
        content = lua.content
        has_elements = not {Tensor, Storage}.isdisjoint(map(type, content.objects))  # which are no part of the hash
        if len(content.objects) < _MANY_OBJECTS or len(content.roots) > 1 or has_elements:
            return False
        # A `.t7` that was not made from a Python value, as the record says, is compared as one first.
        return other.spec.values == formats.LUA or content.has_pt_record

    def _possible_structures(self, document: Document) -> Iterator[str]:
        """Yield the hashes of the structures that a file's value may have in Lua: one for each way to convert it.

        The value of a `.t7` has one; a file with several values has none, as no hash is of all of them.

        Args:
            document: a `.t7`, or a file of Python values.
        """
        if document.spec.values == formats.LUA:
            if len(document.roots) == 1:
                structure, _storages = structure_of(document.value)
                yield structure
            return
        for nested in (False, True):
            tree = to_lua(document.value, nested=nested, limits=self.limits)
            structure, _storages = structure_of(tree.value)
            yield structure

    # Pairs of forms

    def pairs(self) -> Pairs:
        """Yield the forms in which the two files can be compared, those of the first file first."""
        kinds = (self.first.spec.values, self.second.spec.values)
        if kinds == (formats.LUA, formats.LUA):
            yield _own_form(self.first), _own_form(self.second)
        elif kinds == (formats.PYTHON, formats.PYTHON):
            yield from self._python_pairs()
        elif formats.NAMED in kinds:
            yield from self._named_pairs()
            if formats.LUA in kinds:  # the `.t7` may have been made from the named tensors
                yield from self._lua_pairs(self._as_lua)
        else:
            directions = [self._as_python, self._as_lua]
            # The first of equally good forms counts. A `.t7` with the record of a `.pt` was made from one; the record
            # itself is not read.
            lua = self.first if kinds[0] == formats.LUA else self.second
            if lua.content.has_pt_record:
                directions.reverse()
            for pairs_of in directions:
                yield from self._lua_pairs(pairs_of)

    def _python_pairs(self) -> Pairs:
        """Yield two `.pt` as they are; then either of them as `convert` writes it, with the other one as it is."""
        first = _own_form(self.first)
        second = _own_form(self.second)
        yield first, second
        for form in self._converted_forms(self.first):
            yield form, second
        for form in self._converted_forms(self.second):
            yield first, form

    def _converted_forms(self, document: Document) -> Iterator[Form]:
        """Yield what `convert` makes of a `.pt` in a `.pt`: with state dicts for modules, and in `tree` mode.

        Nothing if it makes the same value again. The form of `convert`'s default options is the first.

        Args:
            document: the `.pt`.
        """
        if is_simple(document.value):
            return
        # `--allow-foreign` keeps objects of classes that PyTorch's safe loader refuses; without it they become plain
        # data. The fourth combination, with `tree` mode, is the file's own value.
        for mode, allow_foreign in (("auto", False), ("tree", False), ("auto", True)):
            report = Report(source_format="pt", target_format="pt", notes=[*document.notes])
            value = document.value
            if mode == "auto":
                value = simplified(value, report, self.limits, keep_classes=allow_foreign)
            yield Form(value_read_back(value, report, self.limits, allow_foreign=allow_foreign), report.notes)

    def _lua_pairs(self, pairs_of: Callable[[Document, Document], Pairs]) -> Pairs:
        """Yield the forms of a `.t7` and of another file, those of the first file first.

        Args:
            pairs_of: yields them, those of the `.t7` first.
        """
        if self.first.spec.values == formats.LUA:
            yield from pairs_of(self.first, self.second)
        else:
            for lua_form, other_form in pairs_of(self.second, self.first):
                yield other_form, lua_form

    def _as_python(self, lua: Document, python: Document) -> Pairs:
        """Yield the Python-side values that a `.t7` becomes, each with that of the other file.

        Args:
            lua: the `.t7`.
            python: the other file, of Python values.
        """
        for form in self._python_forms(lua, "pt"):
            if len(lua.content.objects) >= _MANY_OBJECTS:
                lua.forget()  # frees memory while the form is compared; the values are read again if they are needed
            yield form, _own_form(python)
        # Or the other file is the `model.pt` beside a `model.py`, with state dicts as the last form has them.
        model_form = _form_of_model_file(lua.value, python.value, form.notes)
        if model_form is not None:
            yield model_form, _own_form(python)

    def _as_lua(self, lua: Document, other: Document) -> Pairs:
        """Yield the value of a `.t7` with each of the Lua values that the other file becomes.

        There are two, as for `convert --nested`: keys with dots stay, or become tables in tables.

        Args:
            lua: the `.t7`.
            other: the other file.
        """
        conversion = Report(source_format=other.format, target_format="t7")
        # As `convert` does for a `.t7`: modules become state dicts (`auto`), and their other data are in a table around
        # these (`WRAPPED`).
        value = plain_value(other, self._attempt(other, mode="auto"), conversion, unnamed_data=WRAPPED)
        # Strings of metadata, and None, which a table of Lua cannot hold, are not lost if the `.t7` has a record of the
        # `.pt`: that keeps them. It is no part of the value.
        has_record = lua.content.has_pt_record
        notes = conversion.notes
        if has_record:
            notes = [note for note in notes if note.code != "metadata"]
        for nested in (False, True):
            tree = to_lua(value, nested=nested, limits=self.limits)
            report = Report(notes=[*notes, *tree.notes])
            if not has_record:
                note_nones(tree, report)  # which `to_lua` only counts
            yield _own_form(lua), Form(tree.value, report.notes)

    def _attempt(self, document: Document, mode: str) -> Attempt:
        """Return what `plain_value` asks for: a conversion of a file in a mode, without a target and its records."""
        return Attempt(document.path, "", mode, limits=self.limits, trusts_records=False)

    def _python_forms(self, document: Document, target: str) -> Iterator[Form]:
        """Yield the Python-side values that `convert` makes of a file, in each mode; no record in the file is used.

        Args:
            document: the file.
            target: the name of the format to which it would be converted, on which the place of data depends.
        """
        has_objects = _has_lua_objects(document)
        is_to_python = formats.FORMATS[target].values == formats.PYTHON
        # As `convert` does with data of a module that no key names: a `.pt` does not have them; with named tensors they
        # are in the state dict of the module.
        unnamed_data = DROPPED if is_to_python else MERGED
        modes = ("tree", "auto") if has_objects else ("auto",)  # without objects both are the same
        for mode in modes:
            report = Report(source_format=document.format, target_format=target)
            value = plain_value(document, self._attempt(document, mode), report, unnamed_data)
            if self.compact and mode == "auto" and is_to_python:
                value = compact_in(value)
            yield Form(value, report.notes)

    # Named tensors

    def _named_pairs(self) -> Pairs:
        """Yield two files, of which one at least holds named tensors, as the formats of both can hold them."""
        first = self.first
        second = self.second
        goals = [document.spec for document in (first, second) if document.spec.values == formats.NAMED]
        # Numbers are arrays only if both formats have them as such.
        have_numbers = all(goal.numbers for goal in goals)
        goals = [goal._replace(numbers=have_numbers) for goal in goals]
        forms_of_second = self._named_forms(second, goals)
        for form in self._named_forms(first, goals):
            # `tee`: each form of the second file is made once, when it is needed for the first time.
            forms_of_second, others = tee(forms_of_second)
            for other in others:
                if first.spec.values == second.spec.values:
                    yield form, other
                # One file alone holds named tensors. Its strings that are no part of a value, the other cannot have.
                elif first.spec.values == formats.NAMED:
                    yield _without_other_strings(form, other), other
                else:
                    yield form, _without_other_strings(other, form)

    def _named_forms(self, document: Document, goals: list[FormatSpec]) -> Iterator[Form]:
        """Yield a file as formats of named tensors can hold it: tensors by name, and strings.

        Args:
            document: the file.
            goals: the formats: that of the only file of named tensors, or those of both.
        """
        # Of two formats the target is one without numbers, if there is such, in which arrays that were numbers stay
        # arrays. `FORMATS` says so of each; in `goals`, `numbers` is that of both.
        without_numbers = [goal.name for goal in goals if not formats.FORMATS[goal.name].numbers]
        target = without_numbers[0] if without_numbers else goals[0].name
        is_named = document.spec.values == formats.NAMED
        strings_of_file = self._strings_of(document)
        for form in self._python_forms(document, target):
            report = Report(source_format=document.format, target_format=target, notes=form.notes)
            tensors: dict[str, Tensor] = form.value
            metadata = strings_of_file
            # Through each format in turn, so that both sides lose what either format loses.
            for goal in goals:
                tensors, metadata = self._as_in_format(tensors, metadata, goal, report)
            tensors = _as_stored_tensors(tensors, all(goal.links for goal in goals))
            # Not the library that a `.safetensors` names, nor strings about the tensors, which are compared themselves.
            strings = {name: text for name, text in metadata.items() if name != "format" and name not in HINTS}
            notes = document.notes if is_named else report.notes
            yield Form({**dict(sorted(tensors.items())), _STRINGS_KEY: strings}, notes)

    def _strings_of(self, document: Document) -> dict[str, str]:
        """Return the strings in a file's metadata; of a `.t7` those that `convert` makes for it, if the other has them.

        Args:
            document: one of the two files.
        """
        other = self.second if document is self.first else self.first
        if "about" in other.metadata and _has_lua_objects(document):
            return about_in_metadata(document.value)
        return document.metadata

    def _as_in_format(
        self, value: Any, metadata: dict[str, str], goal: FormatSpec, report: Report
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors by name and the strings that a format of named tensors has of a value.

        The names are for the comparison alone, made of both files here: the steps joined by dots.

        Args:
            value: builtins with tensors in them.
            metadata: the strings of its file.
            goal: the format.
            report: receives notes on what the format does not have.
        """
        named = name_tensors(value, goal, report, metadata, self.limits)
        # The names of strings for which the format has no room; one with room for all does not have this function.
        left_out_by_format = getattr(formats.home(goal.name), "left_out", None)
        without_room = () if left_out_by_format is None else left_out_by_format(named)
        # As if the format had been written; the notes do not need the numbers of tensors and storages, here 0.
        note_texts(Written(0, 0, without_room), named, goal, report)
        strings = {name: text for name, text in named.metadata.items() if name not in without_room}
        tensors = {".".join(steps): tensor for steps, tensor in named.tensors.items()}
        # Two names may be one when they are joined: "a.b", and "b" in a group "a". Then all are JSON pointers, of which
        # no two are one. Those of the other file are, too, unless it lacks one of the pair, and differs anyway.
        if len(tensors) < len(named.tensors):
            tensors = {_pointer(steps): tensor for steps, tensor in named.tensors.items()}
        return tensors, strings


def _has_lua_objects(document: Document) -> bool:
    """Return whether a file is a `.t7` with objects of Lua's classes."""
    is_lua = document.spec.values == formats.LUA
    return is_lua and any(isinstance(item, TorchObject) for item in document.content.objects)


def _pointer(steps: Iterable[str]) -> str:
    """Return steps as one text that no other steps have, as a JSON pointer (RFC 6901) escapes them."""
    return "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)


_STRINGS_KEY = "__metadata__"
"""The key of the strings of metadata among tensors by name, as safetensors has it."""


def _is_text(document: Document) -> bool:
    """Return whether a file is an ascii `.t7`, whose numbers are decimal."""
    return isinstance(document.layout, T7Layout) and document.layout.encoding == "ascii"


def _with_note_on_nans(form: Form) -> Form:
    """Return a form with a note on the NaNs whose bits the other file, which is text, does not show."""
    report = Report(notes=list(form.notes))
    note_plain_nans(_nans_with_odd_bits(form.value), report)
    return Form(form.value, report.notes)


def _nans_with_odd_bits(value: Any) -> int:
    """Return the number of NaNs in a value whose bits text does not show."""
    count_odd_nans = decimal_text().count_odd_nans

    count = 0
    storages: set[int] = set()
    for item in objects(value):
        storage = item.storage if isinstance(item, Tensor) else item
        if isinstance(storage, Storage) and id(storage) not in storages:
            storages.add(id(storage))
            count += sum(count_odd_nans(array) for array in array_chunks(storage) if array.dtype.kind == "f")
    return count


def _as_stored_tensors(tensors: dict[str, Tensor], has_links: bool) -> dict[str, Tensor]:
    """Return copies of tensors by name that are shared as formats can say it.

    For a comparison, one object under two names is shared memory. It is one for equal views of a storage, if the
    formats have links; without them each name has an object of its own.

    Args:
        tensors: by name.
        has_links: whether the formats can say that two names have one tensor.
    """
    if not has_links:
        return {name: evolve(tensor) for name, tensor in tensors.items()}
    copy_of_view: dict[Any, Tensor] = {}
    linked = {}
    for name, tensor in tensors.items():
        view: Any = name  # an empty tensor is no view of memory: it is shared with none
        if tensor.numel:
            place = (tensor.offset, tensor.size, tensor.stride)
            view = (id(tensor.storage), tensor.element.name, *place, *bits_of(tensor))
        linked[name] = copy_of_view.setdefault(view, evolve(tensor))
    return linked


def _without_other_strings(form: Form, other: Form) -> Form:
    """Return a file of named tensors without the strings of metadata that the other form lacks, with a note on them.

    `convert` leaves them out in the same way.

    Args:
        form: of the file: its tensors by name, and the strings under `_STRINGS_KEY`.
        other: that of a file of other values, in the same form.
    """
    strings = form.value[_STRINGS_KEY]
    other_strings = other.value[_STRINGS_KEY]
    only_here = [name for name in strings if name not in other_strings]
    if not only_here:
        return form
    in_both = {name: text for name, text in strings.items() if name in other_strings}
    notes = [*form.notes, Note("info", "", metadata_left_out(only_here), code="metadata")]
    return Form({**form.value, _STRINGS_KEY: in_both}, notes)


def _form_of_model_file(lua: Value, python: Any, notes: list[Note]) -> Form | None:
    """Return the form of a model that is the `model.pt` which `module` writes; `None` if a `.pt` has other keys.

    Args:
        lua: the value of a `.t7`.
        python: the value of the `.pt`.
        notes: on what the state dicts that `convert` writes of this value leave out. For a model that is only a part of
            it, another note stands in their place.
    """
    if not isinstance(python, dict) or not all(isinstance(key, str) for key in python):
        return None
    models = [] if isinstance(lua, list) else find_models(lua)  # a list is several values of one file
    if len(models) != 1:
        return None
    ((path, model),) = models
    from ..codegen.generate import generate  # only for a model.pt beside its `.t7`

    try:
        tensors = generate(model, path, only_keys=True).tensors
    except T7BridgeError:  # it has no model.py
        return None
    if set(tensors) != set(python):
        return None
    if model is not lua:  # what stands beside it is in the `config.json`, which is not read
        message = f"left out is all but the state dict of {path}"
        notes = [Note("info", "", message, code="left-out")]
    return Form(OrderedDict(compacted(tensors)), notes)  # as `module` writes them
