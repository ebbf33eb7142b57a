"""The request of a conversion: the options of `convert`, and those of each file of a zoo; and the value it starts from.

Notes about the values of a `.pt` say what was read, and what was written.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field

from ..errors import CorruptError
from ..formats import FORMATS, LUA, NAMED, PYTHON
from ..formats.pt.arrays import tensor_of_array, text_items
from ..formats.pt.modules import is_module
from ..graph.dtypes import NUMPY_ELEMENTS
from ..graph.lua import COMPOSITE
from ..graph.python import NumpyArray, NumpyScalar, TorchSize
from ..graph.tensor import QuantizedTensor, SparseTensor, UntypedStorage
from ..graph.walk import SCALARS, objects, walk
from ..io.source import PathLike
from ..limits import Limits
from ..report import Report
from ..text import and_more, few, listed
from .options import CLASSES, FORCE, JSON, LIMITS, PART, REQUIRED, STRICT, SYNC, option, options_of, verb

if TYPE_CHECKING:
    from ..formats.pt.pickle.pickler import PickleWriter
    from ..formats.pt.writer import LegacyPtWriter, MapLocation, PtWriter
    from ..formats.table import Document

_T7, _PT = ".t7 output", ".pt output"
_LAYOUT = "the layout of a .t7"


MODE = option(
    "convert nn modules to state dicts (auto) or to dicts with every field (tree)", default="auto",
    choices=("auto", "tree"), flags=("--mode", "--as"), sources=(LUA, PYTHON), targets=(PYTHON, NAMED), group=_PT,
)  # fmt: skip


@verb
class Conversion:
    """Options of every conversion: of one file, and of each file of a zoo."""

    to: str | None = option(
        "output format (default: by DST's suffix; in a zoo .pt for .t7, and .t7 for others)", default=None,
        choices=tuple(name for name, spec in FORMATS.items() if spec.suffixes), group="output",
    )  # fmt: skip
    force: bool = FORCE
    encoding: str | None = option(
        "encoding (default: that of SRC)", default=None, choices=("binary", "ascii"), targets=(LUA,), group=_T7,
        noun=_LAYOUT,
    )  # fmt: skip
    byte_order: str | None = option(
        "byte order of a binary file (default: that of SRC)", default=None, choices=("little", "big"),
        targets=(LUA,), group=_T7, noun=_LAYOUT,
        unless=lambda asked, source, target: "to ascii" if asked.encoding == "ascii" else "",
    )  # fmt: skip
    long_size: int | None = option(
        "bytes of a C long in a binary file (default: as in SRC)", default=None, choices=(4, 8),
        targets=(LUA,), group=_T7, noun=_LAYOUT,
        unless=lambda asked, source, target: "to ascii" if asked.encoding == "ascii" else "",
    )  # fmt: skip
    keep_device: bool = option(
        "keep CUDA tensors on CUDA, in a .pt and in a .t7 made from a .pt", default=False, targets=(LUA, PYTHON),
        unless=lambda asked, source, target: "from .t7 to .t7" if source == target == LUA else "", group=_PT,
    )  # fmt: skip
    record: bool = option("do not write or use the round-trip record", default=True, group="output")
    pt_format: str = option(
        "legacy: for PyTorch 0.2 to 1.5; torchscript: for torch.jit.load and C++", default="zip",
        choices=("zip", "legacy", "torchscript"), targets=(PYTHON,), formats=("pt",), group=_PT,
    )  # fmt: skip
    compact: bool = option(
        "write only the used part of each storage", default=False, sources=(LUA,), targets=(PYTHON,),
        unless=lambda asked, source, target: f"in mode {asked.mode}" if asked.mode != "auto" else "", group=_PT,
    )  # fmt: skip
    strict: bool = STRICT
    allow_foreign: bool = option(
        "name classes that torch.load(weights_only=True) refuses (default: write plain data)", default=False,
        targets=(PYTHON,), group=_PT,
    )  # fmt: skip
    classes: PathLike | None = CLASSES
    limits: Limits = LIMITS


@verb
class Convert(Conversion):
    """Convert a file of any format to any other, or a .t7 to another encoding. SRC's format is detected by content."""

    COMMON = ("to", "force", "mode", "at", "template", "strict")
    EXAMPLES = (
        "t7bridge convert model.t7 model.pt                      for PyTorch",
        "t7bridge convert model.t7 model.safetensors             also .h5 and .npz",
        "t7bridge convert tuned.pt out.t7 --template model.t7    into the Lua model",
        "t7bridge convert model.t7 ascii.t7 --encoding ascii     binary to ascii",
        "curl -s URL | t7bridge convert - - --to safetensors     through pipes",
    )
    OLD_NAMES: ClassVar = {"src": "source", "dst": "target"}
    source: PathLike = option("file to read", kw_only=False, metavar="SRC", stdin=True)
    target: PathLike = option("file to write; the suffix selects the format", kw_only=False, metavar="DST")
    mode: str = option(MODE, default="auto", kw_only=False)
    at: str | None = PART
    map_location: MapLocation = option(
        "device of the tensors in a .pt: cuda:1, or cuda:0=cuda:1,ipu=cpu", default=None, targets=(PYTHON,), group=_PT,
        metavar="DEVICE",
    )  # fmt: skip
    nested: bool = option(
        "t.conv1.weight instead of t['conv1.weight']", default=False, sources=(PYTHON, NAMED), targets=(LUA,),
        unless=lambda asked, source, target: "with a template" if asked.template is not None else "", group=_T7,
    )  # fmt: skip
    template: PathLike | None = option(
        "fill the models of this .t7 with the state dict of SRC", default=None, metavar="FILE",
        sources=(PYTHON, NAMED), targets=(LUA,), group=_T7,
    )  # fmt: skip
    partial: bool = option(
        "with --template: allow missing and extra keys", default=False, sources=(PYTHON, NAMED), targets=(LUA,),
        group=_T7,
    )  # fmt: skip
    sync: bool = SYNC
    json = JSON

    @property
    def layout(self) -> dict[str, Any]:
        """The requested parts of a `.t7`'s layout."""
        asked = {"encoding": self.encoding, "byte_order": self.byte_order, "long_size": self.long_size}
        return {name: value for name, value in asked.items() if value is not None}


@verb
class Attempt(Convert):
    """One attempt to serve a request. A second one is made if a record of the source turns out to be wrong.

    Attributes:
        model: the template, open.
        believed: whether the source's records are used, to be checked while and after the target is written.
    """

    model: Document | None = field(default=None, kw_only=True)
    believed: bool = field(default=True, kw_only=True)

    @classmethod
    def of(cls, request: Convert, **facts: Any) -> Attempt:
        """Return the first attempt to serve a request.

        Args:
            request: the options that were asked for.
            **facts: the fields of an attempt, and options that follow from others.
        """
        options = {name: getattr(request, name) for name, each in options_of(request).items() if each.python}
        return cls(**{**options, **facts})

    def without_records(self) -> Attempt:
        """Return the attempt that follows when a record of the source was found wrong."""
        return Attempt.of(self, model=self.model, believed=False)


def note_ignored(request: Convert, report: Report) -> None:
    """Note the options of a conversion that have a value and do not apply to it.

    Args:
        request: of the conversion.
        report: names the formats, and receives the notes.
    """
    source, target = report.source_format, report.target_format
    reasons: dict[str, str] = {}
    for name, field_of_verb in options_of(request).items():
        default = field_of_verb.default
        if not field_of_verb.python or default is REQUIRED or default == getattr(request, name):
            continue
        reason = field_of_verb.refused(request, source, target)
        if not reason:
            continue
        # Where no option of the group applies to the target, the group is noted once: "the layout of a .t7".
        applies_to_target = FORMATS[target].values in field_of_verb.targets
        noted_name = name if applies_to_target else field_of_verb.noun or name
        reasons[noted_name] = reason
    for noted_name, reason in reasons.items():
        report.note("warning", f"{noted_name} does not apply {reason}, and is ignored", code="option")
    if request.pt_format == "legacy" and request.record and (source, target) == ("t7", "pt"):
        report.note("info", "the legacy format cannot hold the round-trip record of the .t7", code="no-record")


def value_of(document: Document, request: Attempt, report: Report) -> Any:
    """Return the value of a file that holds Python values or named tensors."""
    value = document.value
    if any(name.startswith("torch.distributed") for name in document.foreign):
        from ..formats.pt.pickle.tensors import check_whole

        check_whole(value)
    note_foreign(document.foreign, report)
    report.notes += document.notes
    return _use_metadata(value, document, request, report) if document.metadata else value


def _use_metadata(value: Any, document: Document, request: Attempt, report: Report) -> Any:
    """Return a value with the element types and numbers that the file's metadata record; note strings left out."""
    from ..values.widened import HINTS, NUMBERS_KEY, restore_values

    goal = FORMATS[report.target_format]
    # As numbers they would be text in a file of tensors only, where readers of the source see arrays.
    unused = {NUMBERS_KEY} if goal.values == NAMED and not goal.numbers else set()
    hints = {name: text for name, text in document.metadata.items() if name in HINTS - unused}
    if request.record and hints:
        value, refused = restore_values(value, hints, check=not request.believed)
        if refused:
            others = f", and {len(refused) - 1} more tensors" if len(refused) > 1 else ""
            report.note(
                "warning",
                f"its elements are not all of the type that the metadata record, which is not used{others}",
                refused[0],
                code="record",
                count=len(refused),
            )
    metadata = [name for name in document.metadata if name not in HINTS]
    if metadata and goal.values != NAMED:
        report.note("info", metadata_left_out(metadata), code="metadata", count=len(metadata))
    return value


def note_plain_nans(count: int, report: Report) -> None:
    """Note the NaNs whose bits an ascii `.t7` cannot have, if there are any."""
    if count:
        message = f"{count} NaN payloads cannot be represented in an ascii file; they are written as nan"
        report.note("info", message, loss="precision", code="precision", count=count)


def metadata_left_out(names: list[str]) -> str:
    """Return the sentence on strings of a file's metadata that its target does not have."""
    strings = "1 string" if len(names) == 1 else f"{len(names)} strings"
    return f"{strings} of the file's metadata left out: {few(names)}"


_MOST_NOTES, _SHOWN = 20, 200


def note_foreign(names: list[str], report: Report) -> None:
    """Note the classes and functions of other packages that a pickle names, if there are any."""
    if not names:
        return
    shown = [name[:_SHOWN] for name in names]
    report.note(
        "warning",
        f"the pickle names what is not data; nothing was called: {listed(shown, _MOST_NOTES)}",
        code="foreign-name",
        class_name=names[0][:_SHOWN],
        count=len(names),
    )


def note_target(writer: PtWriter | LegacyPtWriter | PickleWriter, value: Any, report: Report) -> None:
    """Note the objects that were written as plain data, and whether `torch.load(weights_only=True)` reads the file.

    Args:
        writer: of the target, after it has written the value.
        value: the value written.
        report: receives the notes.
    """
    first_items = [items[0] for items in writer.plain.values() if items]
    noted = {id(item) for item in (*first_items, *writer.blocking.values())}
    paths = paths_of(value, noted) if noted else {}
    for name, items in list(writer.plain.items())[:_MOST_NOTES]:
        note_plain(name, items, paths, report)
    for name, item in list(writer.blocking.items())[:_MOST_NOTES]:
        report.note(
            "info",
            f"torch.load(weights_only=True) refuses the file, as it names {name[:_SHOWN]}",
            paths.get(id(item), ""),
            code="not-weights-only",
            class_name=name[:_SHOWN],
        )


def note_plain(
    name: str, items: list[Any], paths: dict[int, str], report: Report, level: str = "warning", hint: str = ""
) -> None:
    """Note the values of a class that were written as plain data, with the path of the first."""
    more = and_more(len(items) - 1)
    report.note(
        level,
        f"{name[:_SHOWN]} is written as plain data, not as a name that a reader would import{more}{hint}",
        paths.get(id(items[0]), ""),
        "type",
        code="plain-data",
        class_name=name[:_SHOWN],
        count=len(items),
    )


def paths_of(value: Any, wanted: set[int]) -> dict[int, str]:
    """Return the first path to each of some values, by their identities."""
    paths: dict[int, str] = {}
    for path in walk(value, kinds=object):
        if id(path.value) in wanted and id(path.value) not in paths:
            paths[id(path.value)] = str(path)
            if len(paths) == len(wanted):
                break
    return paths


def array_of(value: NumpyArray | NumpyScalar, path: str = "") -> NumpyArray:
    """Return a numpy array; of a scalar one without dimensions.

    Raises:
        CorruptError: a scalar's bytes do not fit its type.
    """
    if isinstance(value, NumpyArray):
        return value
    if isinstance(value.data, bytes) and len(value.data) != max(value.dtype.itemsize, 1):
        raise CorruptError("a numpy scalar's bytes do not fit its type", path=path)
    return value.array


def numpy_content(value: NumpyArray | NumpyScalar, path: str = "") -> Any:
    """Return an array as a tensor, or a list of text or objects; a scalar as a number or text.

    Returns:
        `None` for elements that only numpy has.

    Raises:
        CorruptError: a scalar's bytes do not fit its type.
    """
    array = array_of(value, path)
    if isinstance(array.data, list):
        return array.data
    texts = text_items(array)
    if texts is not None:
        return texts if array.shape else texts[0]
    element = NUMPY_ELEMENTS.get(array.dtype.code)
    if element is None:
        return None
    tensor = tensor_of_array(array, element, "cpu")
    if tensor is None or isinstance(value, NumpyArray):
        return tensor
    return tensor.array.item()


SIMPLE = (*COMPOSITE, TorchSize, UntypedStorage, QuantizedTensor, SparseTensor)
"""The types of values with parts that stay as they are where a value is simplified."""
_PLAIN_LISTS = frozenset((list, tuple, set))
SIMPLE_SCALARS = (bool, int, float, complex, str, bytes, bytearray, type(None))
"""The types of scalars that stay as they are there; a key of another type becomes text."""


def is_simple(root: Any) -> bool:
    """Return whether a value is its simple form already, as most state dicts are: a copy would take time and memory."""
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
    return any(is_module(item) for item in objects(value))
