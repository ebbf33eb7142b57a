"""The request of a conversion, its options and those of each file of a zoo, and an attempt to serve it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ..data import field
from ..errors import OptionError, RecordError
from ..formats import FORMATS, LUA, NAMED, PYTHON, WRITABLE
from ..io.source import PathLike
from ..limits import Limits
from ..values import CAST_TYPES
from .naming import Renames
from .options import CLASSES, FORCE, JSON, LIMITS, PART, REQUIRED, STRICT, SYNC, option, options_of, verb

if TYPE_CHECKING:
    from ..formats.pt.writer import MapLocation
    from ..formats.table import Document
    from ..report import Report
    from .edits import Edits

_T7, _PT = ".t7 output", ".pt output"
_TO_SAME = "from .t7 to .t7"
_REENCODED = f"{_TO_SAME}, which copies every value; it is for all other conversions"
_OF_TREES = "in mode tree, which keeps names and storages; it is for mode auto"
_TO_ASCII = "to ascii; it is for the encoding binary"


def _without_state_dicts(asked: Any, source: str, target: str) -> str:
    """Return why rules for the keys of state dicts do not apply, empty if they do; see `Option.unless`."""
    if source == target == LUA:
        return _REENCODED
    mode = getattr(asked, "mode", "auto")  # other verbs with these options have no modes
    return "" if mode == "auto" else _OF_TREES


def _without_cast(asked: Any, source: str, target: str) -> str:
    """Return why elements are not cast, empty if they are."""
    if source == target == LUA:
        return _REENCODED
    return "with a template, which keeps its types" if getattr(asked, "template", None) is not None else ""


RENAME = option(
    "rename keys of the state dict: features=backbone.body, =net, layers.{}.ln=blocks.{}.norm; may be repeated",
    default=(), metavar="OLD=NEW", unless=_without_state_dicts, except_for=_TO_SAME, group="names and types",
)  # fmt: skip
STRIP = option(
    "leave a prefix out of the keys of the state dict, before --rename: module; may be repeated",
    default=(), metavar="PREFIX", unless=_without_state_dicts, except_for=_TO_SAME, group="names and types",
)  # fmt: skip
DTYPE = option(
    "round floating-point elements as PyTorch does; integers stay as they are", default=None, choices=CAST_TYPES,
    unless=_without_cast, except_for=_TO_SAME, group="names and types",
)  # fmt: skip


MODE = option(
    "convert nn modules to state dicts (auto) or to dicts with every field (tree)", default="auto",
    choices=("auto", "tree"), flags=("--mode", "--as"), sources=(LUA, PYTHON), targets=(PYTHON, NAMED), group=_PT,
)  # fmt: skip


@verb
class Conversion:
    """Options of every conversion: of one file, and of each file of a zoo."""

    to: str | None = option("output format (default: by DST's suffix)", default=None, choices=WRITABLE, group="output")
    force: bool = FORCE
    rename: Renames = RENAME
    strip: tuple[str, ...] = STRIP
    dtype: str | None = DTYPE
    encoding: str | None = option(
        "encoding (default: that of SRC)", default=None, choices=("binary", "ascii"), targets=(LUA,), group=_T7,
    )  # fmt: skip
    byte_order: str | None = option(
        "byte order of a binary file (default: that of SRC)", default=None, choices=("little", "big"),
        targets=(LUA,), group=_T7,
        unless=lambda asked, source, target: _TO_ASCII if asked.encoding == "ascii" else "",
    )  # fmt: skip
    long_size: int | None = option(
        "bytes of a C long in a binary file (default: as in SRC)", default=None, choices=(4, 8),
        targets=(LUA,), group=_T7,
        unless=lambda asked, source, target: _TO_ASCII if asked.encoding == "ascii" else "",
    )  # fmt: skip
    keep_device: bool = option(
        "keep CUDA tensors on CUDA, in a .pt and in a .t7 made from a .pt", default=False, targets=(LUA, PYTHON),
        unless=lambda asked, source, target: _REENCODED if source == target == LUA else "", except_for=_TO_SAME,
        group=_PT,
    )  # fmt: skip
    record: bool = option("do not write or use the round-trip record", default=True, group="output")
    pt_format: str = option(
        "legacy: for PyTorch 0.2 to 1.5; torchscript: for torch.jit.load and C++", default="zip",
        choices=("zip", "legacy", "torchscript"), targets=(PYTHON,), formats=("pt",), group=_PT,
    )  # fmt: skip
    compact: bool = option(
        "write only the used part of each storage", default=False, sources=(LUA,), targets=(PYTHON,),
        unless=lambda asked, source, target: "" if asked.mode == "auto" else _OF_TREES, group=_PT,
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
    MORE = "names --rename --strip; types --dtype; .t7 --encoding; size --shard-size"
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
    shard_size: int | str | None = option(
        "write files of at most this size, 2GB, with an index, as transformers reads them", default=None, kind="bytes",
        metavar="SIZE", targets=(NAMED,), formats=tuple(name for name, spec in FORMATS.items() if spec.shards),
        group="output",
    )  # fmt: skip
    config: bool = option(
        "do not write what describes the model beside a .pt, into NAME.config.json", default=True, targets=(PYTHON,),
        group=_PT,
    )  # fmt: skip
    map_location: MapLocation = option(
        "device of the tensors in a .pt: cuda:1, or cuda:0=cuda:1,ipu=cpu", default=None, targets=(PYTHON,), group=_PT,
        metavar="DEVICE",
    )  # fmt: skip
    nested: bool = option(
        "t.conv1.weight instead of t['conv1.weight']", default=False, sources=(PYTHON, NAMED), targets=(LUA,),
        unless=lambda asked, source, target: "" if asked.template is None else "with a template, which has its tables",
        group=_T7,
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
        trusts_records: whether the source's records are used first and checked while and after the target is written;
            otherwise they are checked first, or not used.
        has_target: whether a target is written. If only the value is wanted, nothing checks the records later.
        edits: the changes of names and types that are asked for, if any. Then records of the source are checked before
            they are used, and the target has none of its past.
        must_fit: whether options that do not apply, and rules for names that fit nothing, are errors. In a zoo, whose
            files differ, they are notes.
    """

    model: Document | None = field(default=None, kw_only=True)
    trusts_records: bool = field(default=True, kw_only=True)
    has_target: bool = field(default=True, kw_only=True)
    edits: Edits | None = field(default=None, kw_only=True)
    must_fit: bool = field(default=True, kw_only=True)

    @classmethod
    def of(cls, request: Convert, **facts: Any) -> Attempt:
        """Return the first attempt to serve a request.

        Args:
            request: the options that were asked for.
            **facts: the fields of an attempt, and options that follow from others.
        """
        options = {}
        for name, argument in options_of(request).items():
            if argument.python:  # others exist on the command line only
                options[name] = getattr(request, name)
        # In `tree` mode there are no state dicts; `options_without_effect` says so.
        has_rules = request.mode == "auto" and bool(request.rename or request.strip)
        # A template's tensors keep their types; `options_without_effect` says so.
        dtype = request.dtype if request.template is None else None
        edits: Edits | None = None
        if has_rules or dtype is not None:
            from .edits import Edits

            edits = Edits(
                rename=request.rename if has_rules else (),
                strip=request.strip if has_rules else (),
                dtype=dtype,
                must_fit=facts.get("must_fit", True),
            )
        fields = {**options, "edits": edits, **facts}  # facts come last: they may replace options
        return cls(**fields)

    @property
    def checks_records_first(self) -> bool:
        """Whether records are checked before they are used, not while and after a target is written."""
        return not self.trusts_records or not self.has_target or self.edits is not None

    def without_records(self) -> Attempt:
        """Return the second attempt, which follows when a record of the source was found wrong."""
        return Attempt.of(self, model=self.model, trusts_records=False, must_fit=self.must_fit)


def options_without_effect(request: Convert, source: str, target: str) -> tuple[tuple[str, str], ...]:
    """Return the options of a conversion that have a value and do not apply to it: name, and the rest of a sentence.

    Args:
        request: of the conversion.
        source: name of the source's format.
        target: name of the target's format.
    """
    problems: list[tuple[str, str]] = []
    for name, option_of_verb in options_of(request).items():
        default = option_of_verb.default
        if not option_of_verb.python or default is REQUIRED or default == getattr(request, name):
            continue
        reason = option_of_verb.refused(request, source, target)
        if reason:
            problems.append((name, f"does not apply {reason}"))
    return tuple(problems)


def check_options(request: Attempt, source: str, target: str) -> None:
    """Refuse options that do not apply to a conversion, before anything is written.

    Args:
        request: of the conversion.
        source: name of the source's format.
        target: name of the target's format.

    Raises:
        OptionError: some do not, and it is not one of the conversions of a zoo, which notes them.
    """
    problems = options_without_effect(request, source, target) if request.must_fit else ()
    if problems:
        raise OptionError(problems=problems)


def serve_without_wrong_records(attempt: Attempt, serve: Callable[[Attempt], Report]) -> Report:
    """Serve an attempt, and a second one without records if one of the source turns out to be wrong.

    Args:
        attempt: the first.
        serve: writes the target and returns the report; called again after a `RecordError`.

    Returns:
        The report of the attempt that succeeded, with a note on the record that was not used.
    """
    try:
        return serve(attempt)
    except RecordError as error:
        report = serve(attempt.without_records())
        is_noted = any(note.code == "record" for note in report.notes)
        if not is_noted:
            report.note("warning", f"{error.message}: its record is not used", code="record")
        return report


def note_ignored(request: Attempt, report: Report) -> None:
    """Note the options of a conversion that do not apply to it, where that is not an error.

    Args:
        request: of the conversion.
        report: names the formats, and receives the notes.
    """
    source, target = report.source_format, report.target_format
    for name, problem in options_without_effect(request, source, target):
        report.note("warning", f"{name} {problem}, and is ignored", code="option")
    if request.pt_format == "legacy" and request.record and (source, target) == ("t7", "pt"):
        report.note("info", "the legacy format cannot hold the round-trip record of the .t7", code="no-record")
