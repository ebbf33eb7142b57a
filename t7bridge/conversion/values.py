"""The value that a conversion starts from, its simple form, and notes that say what was read and what was written."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ..errors import CorruptError
from ..formats import FORMATS, NAMED, PYTHON
from ..formats.pt.arrays import tensor_of_array, text_items
from ..graph.dtypes import NUMPY_ELEMENTS
from ..graph.lua import COMPOSITE
from ..graph.python import NumpyArray, NumpyScalar, TorchSize, is_pickled_module
from ..graph.tensor import QuantizedTensor, SparseTensor, UntypedStorage
from ..graph.walk import SCALARS, objects, walk
from ..report import Report
from ..text import and_more, counted, few, listed

if TYPE_CHECKING:
    from ..formats.pt.pickle.pickler import PickleWriter
    from ..formats.pt.writer import LegacyPtWriter, PtWriter
    from ..formats.table import Document

from .request import Attempt


def value_of(document: Document, request: Attempt, report: Report) -> Any:
    """Return the value of a file that holds Python values or named tensors, and note what the file has besides.

    Args:
        document: the file.
        request: the present attempt: says whether recorded types are used, and whether there is a `config.json`.
        report: names the format of the target; receives the notes.

    Raises:
        UnsupportedError: a tensor is one process's part of a tensor.
    """
    value = document.value
    if any(name.startswith("torch.distributed") for name in document.foreign):
        from ..formats.pt.pickle.tensors import check_whole

        check_whole(value)  # a DTensor is one process's part of a tensor
    note_foreign(document.foreign, report)
    report.notes += document.notes
    if document.metadata:
        value = _with_recorded_types(value, document.metadata, request, report)
        _note_metadata_left_out(document.metadata, request, report)
    return value


def _with_recorded_types(value: Any, metadata: dict[str, str], request: Attempt, report: Report) -> Any:
    """Return a value with the element types and numbers that the metadata of its file record, where they fit.

    Args:
        value: of the file.
        metadata: the strings of the file; those under the keys of `HINTS` record the types.
        request: the present attempt: says whether records are used, and whether they are checked before that.
        report: names the format of the target; receives a note on the tensors whose elements are of other types.
    """
    from ..values.widened import HINTS, NUMBERS_KEY, restore_values

    goal = FORMATS[report.target_format]
    hints = {name: text for name, text in metadata.items() if name in HINTS}
    if goal.values == NAMED and not goal.numbers:
        # Tensors that were numbers stay tensors, as readers of the source see them: the target has numbers as text.
        hints.pop(NUMBERS_KEY, None)
    if not request.record or not hints:
        return value
    # What is not checked now is checked while it is copied: an element that does not fit is a `RecordError` then, and
    # `convert` makes a second attempt, in which no such error may occur.
    value, refused_names = restore_values(value, hints, check=request.checks_records_first)
    if refused_names:
        others = f", and {len(refused_names) - 1} more tensors" if len(refused_names) > 1 else ""
        report.note(
            "warning",
            f"its elements are not all of the type that the metadata record, which is not used{others}",
            refused_names[0],
            code="record",
            count=len(refused_names),
        )
    return value


def _note_metadata_left_out(metadata: dict[str, str], request: Attempt, report: Report) -> None:
    """Note the strings of a file's metadata that the target has no place for.

    Args:
        metadata: the strings by name; those of `HINTS`, which say what the tensors were, are not the user's.
        request: says whether there is a `config.json`, which has the string `config`.
        report: names the format of the target; receives the note.
    """
    from ..values.widened import HINTS

    goal = FORMATS[report.target_format]
    if goal.values == NAMED:
        return
    # `format` says which library's tensors they are, as safetensors does: nothing of the model.
    not_noted = HINTS | {"format"}
    if goal.values == PYTHON and request.config:
        # What stands beside the model becomes a file beside the `.pt`, and `convert` notes that.
        not_noted |= {"config"}
    names = [name for name in metadata if name not in not_noted]
    if names:
        report.note("info", metadata_left_out(names), code="metadata", count=len(names))


def note_states(value: Any, report: Report) -> None:
    """Note which state dicts are inside a value, unless it is one, or a note on modules says so already.

    Args:
        value: builtins with tensors in them, as it is written.
        report: with the notes so far; receives this one.
    """
    is_noted = any(note.code == "state-dict" for note in report.notes)
    if is_noted or not isinstance(value, (dict, list, tuple)):
        return
    from .checkpoints import plain_states

    paths = [path for path, _ in plain_states(value)]
    is_state_dict = "root" in paths
    if paths and not is_state_dict:
        message = f"{counted(len(paths), 'state dict')} inside the value: {listed(paths)}; --at writes one alone"
        report.note("info", message, code="state-dict", count=len(paths))


def note_plain_nans(count: int, report: Report) -> None:
    """Note the NaNs whose bits an ascii `.t7` cannot have, if there are any."""
    if count:
        message = f"{count} NaN payloads cannot be represented in an ascii file; they are written as nan"
        report.note("info", message, loss="precision", code="precision", count=count)


def metadata_left_out(names: list[str]) -> str:
    """Return the sentence on strings of a file's metadata that its target does not have."""
    strings = "1 string" if len(names) == 1 else f"{len(names)} strings"
    return f"{strings} of the file's metadata left out: {few(names)}"


_MOST_NOTES = 20
"""Maximum number of classes and names that have a note of their own."""
_MOST_LETTERS = 200
"""Characters of a name that a note shows: a file may have names of any length."""


def note_foreign(names: list[str], report: Report) -> None:
    """Note the classes and functions of other packages that a pickle names, if there are any."""
    if not names:
        return
    shown = [name[:_MOST_LETTERS] for name in names]
    report.note(
        "warning",
        f"the pickle names what is not data; nothing was called: {listed(shown, _MOST_NOTES)}",
        code="foreign-name",
        class_name=names[0][:_MOST_LETTERS],
        count=len(names),
    )


def note_target(writer: PtWriter | LegacyPtWriter | PickleWriter, value: Any, report: Report) -> None:
    """Note the objects that were written as plain data, and whether `torch.load(weights_only=True)` reads the file.

    Args:
        writer: of the target, after it has written the value. Its `left_out_names` have the objects by class; its
            `refused_names` one object for each name that PyTorch's safe loader refuses.
        value: the value written.
        report: receives the notes, each with the path of the first object that it is about.
    """
    first_items = [items[0] for items in writer.left_out_names.values()]
    noted_values = {id(item) for item in (*first_items, *writer.refused_names.values())}
    paths = paths_of(value, noted_values) if noted_values else {}
    for name, items in list(writer.left_out_names.items())[:_MOST_NOTES]:
        note_plain(name, items, paths, report)
    note_more_plain(len(writer.left_out_names) - _MOST_NOTES, report)
    for name, item in list(writer.refused_names.items())[:_MOST_NOTES]:
        report.note(
            "info",
            f"torch.load(weights_only=True) refuses the file, as it names {name[:_MOST_LETTERS]}",
            paths.get(id(item), ""),
            code="not-weights-only",
            class_name=name[:_MOST_LETTERS],
        )


def note_plain(
    name: str, items: list[Any], paths: dict[int, str], report: Report, level: str = "warning", hint: str = ""
) -> None:
    """Note the values of a class that were written as plain data, with the path of the first.

    Args:
        name: of the class.
        items: the values, at least one.
        paths: of the values, by identity.
        report: receives the note.
        level: of the note.
        hint: the end of the message: how the class could be kept.
    """
    more = and_more(len(items) - 1)
    report.note(
        level,
        f"{name[:_MOST_LETTERS]} is written as plain data, not as a name that a reader would import{more}{hint}",
        paths.get(id(items[0]), ""),
        loss="type",
        code="plain-data",
        class_name=name[:_MOST_LETTERS],
        count=len(items),
    )


def note_more_plain(count: int, report: Report) -> None:
    """Note how many classes besides those with a note of their own have values that were written as plain data."""
    if count > 0:
        message = f"values of {counted(count, 'more class', 'more classes')} are written as plain data"
        report.note("warning", message, loss="type", code="plain-data", count=count)


def paths_of(value: Any, wanted: set[int]) -> dict[int, str]:
    """Return the first path to each of some values, by their identities.

    Args:
        value: what contains them.
        wanted: their identities.
    """
    paths: dict[int, str] = {}
    for path in walk(value, kinds=object):
        if id(path.value) in wanted and id(path.value) not in paths:
            paths[id(path.value)] = str(path)
            if len(paths) == len(wanted):
                break
    return paths


def array_of(value: NumpyArray | NumpyScalar, path: str = "") -> NumpyArray:
    """Return a numpy array as it is, and a numpy scalar as an array without dimensions.

    Args:
        value: the array or scalar.
        path: of the value, for the error.

    Raises:
        CorruptError: a scalar's bytes do not fit its type.
    """
    if isinstance(value, NumpyArray):
        return value
    size = max(value.dtype.itemsize, 1)  # the code `?` of booleans states no size
    if isinstance(value.data, bytes) and len(value.data) != size:
        raise CorruptError("a numpy scalar's bytes do not fit its type", path=path)
    return value.array


def numpy_content(value: NumpyArray | NumpyScalar, path: str = "") -> Any:
    """Return an array as a tensor, or a list of text or objects; a scalar as a number or text.

    Args:
        value: the array or scalar.
        path: of the value, for the error.

    Returns:
        `None` for elements that only numpy has, such as dates.

    Raises:
        CorruptError: a scalar's bytes do not fit its type.
    """
    array = array_of(value, path)
    if isinstance(array.data, list):  # objects
        return array.data
    texts = text_items(array)  # `None` for other elements than text
    if texts is not None:
        return texts if array.shape else texts[0]
    element = NUMPY_ELEMENTS.get(array.dtype.code)
    tensor = None if element is None else tensor_of_array(array, element, "cpu")
    if tensor is None:
        return None
    return tensor if isinstance(value, NumpyArray) else tensor.array.item()


SIMPLE = (*COMPOSITE, TorchSize, UntypedStorage, QuantizedTensor, SparseTensor)
"""The types of values with parts that stay as they are where a value is simplified."""
_PLAIN_LISTS = frozenset((list, tuple, set))
SIMPLE_SCALARS = (bool, int, float, complex, str, bytes, bytearray, type(None))
"""The types of scalars that stay as they are there; a key of another type becomes text."""


def is_simple(root: Any) -> bool:
    """Return whether a value is already what `simplified` makes of it, as most state dicts are.

    A copy of these would take time and memory.
    """
    visited: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind in SCALARS or id(value) in visited:
            continue
        visited.add(id(value))
        if kind in _PLAIN_LISTS:
            stack += value
        elif kind is dict or kind is OrderedDict:
            if not all(isinstance(key, SIMPLE_SCALARS) for key in value):
                return False
            stack += value.values()
            if kind is OrderedDict:
                stack += vars(value).values()  # attributes, such as the `_metadata` of a state dict
        elif not isinstance(value, SIMPLE):
            return False
    return True


def has_modules(value: Any) -> bool:
    """Return whether a value contains whole modules."""
    return any(is_pickled_module(item) for item in objects(value))
