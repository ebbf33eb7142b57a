"""The table of options, from which the command line and the zoo are generated; `convert`'s signature agrees with it."""

from __future__ import annotations

from typing import Any

from ..data import define
from ..errors import ModelError
from ..formats import FORMATS, LUA, NAMED, PYTHON
from ..report import Report


@define(frozen=True)
class Option:
    """An option.

    Attributes:
        name: of the argument in Python; on the command line with `--` and dashes.
        help: one line.
        verbs: the functions, and verbs of the command line, that accept it.
        default: its default value.
        choices: the allowed values, if enumerable.
        kind: type of the value: `flag`, `text`, `path`, `int`, `list` for a repeatable option.
        metavar: name of the value in the help.
        flags: the spellings on the command line; empty for `--` and the name.
        sources: kinds of formats to which it applies as inputs.
        targets: kinds of formats to which it applies as outputs.
        formats: the formats to which it applies, if not all of these kinds.
        group: the heading in the help.
    """

    name: str
    help: str
    verbs: tuple[str, ...]
    default: Any = None
    choices: tuple[Any, ...] = ()
    kind: str = "text"
    metavar: str = ""
    flags: tuple[str, ...] = ()
    sources: tuple[str, ...] = (LUA, PYTHON, NAMED)
    targets: tuple[str, ...] = (LUA, PYTHON, NAMED)
    formats: tuple[str, ...] = ()
    group: str = ""

    def spellings(self) -> tuple[str, ...]:
        """Return the spellings on the command line: `--no-record` for a flag that is on by default."""
        inverse = "no-" if self.kind == "flag" and self.default is True else ""
        return self.flags or (f"--{inverse}{self.name.replace('_', '-')}",)

    def applies(self, source: str, target: str) -> bool:
        """Return whether it applies to a conversion between two formats."""
        one, other = FORMATS[source].values, FORMATS[target].values
        return one in self.sources and other in self.targets and (not self.formats or target in self.formats)


_T7, _PT, _OUT = ".t7 output", ".pt output", "output"
_BOTH = ("convert", "zoo")
_WRITING = ("convert", "module", "match")

OPTIONS: tuple[Option, ...] = (
    Option(
        "to", "output format, regardless of DST's suffix", _BOTH,
        choices=tuple(name for name, spec in FORMATS.items() if spec.suffixes), group=_OUT,
    ),
    Option(
        "force", "replace existing files", (*_WRITING, "draw", "export", "lua", "prove"),
        default=False, kind="flag", group=_OUT,
    ),
    Option(
        "mode", "convert nn modules to state dicts (auto) or to dicts with every field (tree)",
        _BOTH, default="auto", choices=("auto", "tree"), flags=("--mode", "--as"),
        sources=(LUA, PYTHON), targets=(PYTHON, NAMED), group=_PT,
    ),
    Option(
        "encoding", "encoding (default: that of SRC)", _BOTH,
        choices=("binary", "ascii"), targets=(LUA,), group=_T7,
    ),
    Option(
        "byte_order", "byte order of a binary file (default: that of SRC)", _BOTH,
        choices=("little", "big"), targets=(LUA,), group=_T7,
    ),
    Option(
        "long_size", "bytes of a C long in a binary file (default: as in SRC)", _BOTH,
        choices=(4, 8), kind="int", targets=(LUA,), group=_T7,
    ),
    Option(
        "keep_device", "keep CUDA tensors on CUDA, in a .pt and in a .t7 made from a .pt", _BOTH,
        default=False, kind="flag", targets=(LUA, PYTHON), group=_PT,
    ),
    Option(
        "map_location", "device of the tensors in a .pt: cuda:1, or cuda:0=cuda:1,ipu=cpu", _BOTH,
        targets=(PYTHON,), group=_PT, metavar="DEVICE",
    ),
    Option(
        "record", "do not write or use the round-trip record", _BOTH,
        default=True, kind="flag", group=_OUT,
    ),
    Option(
        "nested", "t.conv1.weight instead of t['conv1.weight']", _BOTH,
        default=False, kind="flag", sources=(PYTHON, NAMED), targets=(LUA,), group=_T7,
    ),
    Option(
        "pt_format", "legacy: for PyTorch 0.2 to 1.5; torchscript: for torch.jit.load and C++", _BOTH,
        default="zip", choices=("zip", "legacy", "torchscript"), targets=(PYTHON,), formats=("pt",), group=_PT,
    ),
    Option(
        "template", "fill the models of this .t7 with the state dict of SRC", _BOTH,
        kind="path", metavar="FILE", sources=(PYTHON, NAMED), targets=(LUA,), group=_T7,
    ),
    Option(
        "partial", "with --template: allow missing and extra keys", _BOTH,
        default=False, kind="flag", sources=(PYTHON, NAMED), targets=(LUA,), group=_T7,
    ),
    Option(
        "compact", "write only the used part of each storage", (*_BOTH, "match"),
        default=False, kind="flag", sources=(LUA,), targets=(PYTHON,), group=_PT,
    ),
    Option(
        "strict", "fail if the output would lose a type, precision or sharing",
        (*_WRITING, "zoo"), default=False, kind="flag", group=_OUT,
    ),
    Option(
        "allow_foreign", "keep references to classes of other packages (default: write plain data)",
        _BOTH, default=False, kind="flag", targets=(PYTHON,), group=_PT,
    ),
    Option("sync", "wait until the output is on the disk", (*_WRITING, "lua"), default=False, kind="flag", group=_OUT),
    Option(
        "classes", "Python file that registers classes (docs/own-layers.md); it is executed",
        ("convert", "module", "zoo"), kind="path", metavar="FILE.py",
    ),
    Option(
        "at", "path of the module, if there are several: root.protos.rnn",
        ("module", "draw", "match", "export", "prove"), metavar="PATH",
    ),
    Option(
        "index_base", "number of the first class, row or element: 1 as in Lua, or 0", ("module", "export"),
        default=1, choices=(0, 1), kind="int",
    ),
    Option(
        "input", "input: 1x3x224x224, 2x7:int64, NAME=SHAPE, [1x4,1x8], or a .t7 file with one; may be repeated",
        ("export", "lua", "prove"), default=(), kind="list", metavar="[NAME=]SHAPE[:TYPE]",
    ),
    Option(
        "output", "name of an output; may be repeated", ("export",),
        default=(), kind="list", flags=("--output-name",), metavar="NAME",
    ),
    Option(
        "dynamic", "let the first dimension of every input have any size", ("export",),
        default=(), choices=("batch",), kind="list",
    ),
    Option(
        "hub", "write a folder for model hubs: model.safetensors, config.json, model.py, README.md",
        ("export",), default=False, kind="flag",
    ),
    Option(
        "allow", "Lua package that the model may require: rnn, for nn.SeqLSTM", ("lua",),
        default=(), kind="list", metavar="NAME",
    ),
    Option(
        "expect", "file with Lua's output for --input; one per --input", ("prove",),
        default=(), kind="list", metavar="Y.t7",
    ),
)  # fmt: skip
"""Every option, in the order of the help. Options of a single verb are declared there."""

BY_NAME = {option.name: option for option in OPTIONS}


def options_for(verb: str) -> list[Option]:
    """Return the options of the table that a verb accepts."""
    return [option for option in OPTIONS if verb in option.verbs]


def check_choices(given: dict[str, Any]) -> None:
    """Check that a value is one of the choices; `None` means not given.

    Raises:
        ModelError: it is not.
    """
    for name, choice in given.items():
        choices = BY_NAME[name].choices
        if choice is not None and choices and choice not in choices:
            raise ModelError(
                f"unknown {'format' if name == 'to' else name} {choice!r}", expected=" or ".join(map(str, choices))
            )


def note_ignored(given: dict[str, Any], report: Report) -> None:
    """Note the options that were given but do not apply to this conversion.

    Args:
        given: options of `convert` with their values.
        report: names the formats, and receives the notes.
    """
    source, target = report.source_format, report.target_format
    from_to = f"from {FORMATS[source].suffix} to {FORMATS[target].suffix}"
    layout = {"encoding", "byte_order", "long_size"}
    ignored = []
    for name, value in given.items():
        option = BY_NAME[name]
        if value == option.default or name in ("to", "force", "record", "strict", "sync"):
            continue
        applies = option.applies(source, target)
        if name in ("byte_order", "long_size"):
            applies = applies and given.get("encoding") != "ascii"
        elif name == "keep_device":
            applies = applies and not FORMATS[source].values == FORMATS[target].values == LUA
        elif name == "nested":
            applies = applies and given.get("template") is None
        elif name == "compact":
            applies = applies and given.get("mode", "auto") == "auto"
        if not applies:
            ignored.append("the layout of a .t7" if name in layout and FORMATS[target].values != LUA else name)
    for name in dict.fromkeys(ignored):
        report.note("warning", f"{name} does not apply {from_to}, and is ignored", code="option")
    if given.get("pt_format") == "legacy" and given.get("record", True) and (source, target) == ("t7", "pt"):
        report.note("info", "the legacy format cannot hold the round-trip record of the .t7", code="no-record")
