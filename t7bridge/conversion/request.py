"""The request of a conversion: the options of `convert`, and those of each file of a zoo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..formats import FORMATS, LUA, NAMED, PYTHON, WRITABLE
from ..graph.dtypes import CAST_TYPES
from ..io.source import PathLike
from ..limits import Limits
from .naming import Renames
from .options import CLASSES, FORCE, JSON, LIMITS, PART, REQUIRED, STRICT, SYNC, option, options_of, verb

if TYPE_CHECKING:
    from ..formats.pt.writer import MapLocation
    from ..report import Report

_T7, _PT = ".t7 output", ".pt output"
_LAYOUT = "the layout of a .t7"


def _without_state_dicts(asked: Any, source: str, target: str) -> str:
    """Return why rules for the keys of state dicts do not apply, empty if they do."""
    if source == target == LUA:
        return "from .t7 to .t7"
    mode = getattr(asked, "mode", "auto")
    return f"in mode {mode}" if mode != "auto" else ""


def _without_cast(asked: Any, source: str, target: str) -> str:
    """Return why elements are not cast, empty if they are."""
    if source == target == LUA:
        return "from .t7 to .t7"
    return "with a template" if getattr(asked, "template", None) is not None else ""


RENAME = option(
    "rename keys of the state dict: features=backbone.body, =net, layers.{}.ln=blocks.{}.norm; may be repeated",
    default=(), metavar="OLD=NEW", unless=_without_state_dicts, group="names and types",
)  # fmt: skip
STRIP = option(
    "leave a prefix out of the keys of the state dict, before --rename: module; may be repeated",
    default=(), metavar="PREFIX", unless=_without_state_dicts, group="names and types",
)  # fmt: skip
DTYPE = option(
    "round floating-point elements as PyTorch does; integers stay as they are", default=None, choices=CAST_TYPES,
    unless=_without_cast, group="names and types",
)  # fmt: skip


MODE = option(
    "convert nn modules to state dicts (auto) or to dicts with every field (tree)", default="auto",
    choices=("auto", "tree"), flags=("--mode", "--as"), sources=(LUA, PYTHON), targets=(PYTHON, NAMED), group=_PT,
)  # fmt: skip


@verb
class Conversion:
    """Options of every conversion: of one file, and of each file of a zoo."""

    to: str | None = option(
        "output format (default: by DST's suffix; in a zoo .pt for .t7, and .t7 for others)", default=None,
        choices=WRITABLE, group="output",
    )  # fmt: skip
    force: bool = FORCE
    rename: Renames = RENAME
    strip: tuple[str, ...] = STRIP
    dtype: str | None = DTYPE
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
