"""The table of options, from which the command line and the zoo are generated; Python's signatures agree with it."""

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
        kind: type of the value: `flag`, `text`, `path`, `int`, `count` (from 1), `number` (from 0), `seconds`, `bytes`
            (4G), `tolerance`, `shape` (1x3x224x224 or guess); `list` and `shapes` for a repeatable option.
        metavar: name of the value in the help.
        flags: the spellings on the command line; empty for `--` and the name.
        sources: kinds of formats to which it applies as inputs.
        targets: kinds of formats to which it applies as outputs.
        formats: the formats to which it applies, if not all of these kinds.
        group: the heading in the help.
        command_line: whether it exists on the command line only.
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
    command_line: bool = False

    def spellings(self) -> tuple[str, ...]:
        """Return the spellings on the command line: `--no-record` for a flag that is on by default."""
        inverse = "no-" if self.kind == "flag" and self.default is True else ""
        return self.flags or (f"--{inverse}{self.name.replace('_', '-')}",)

    def applies(self, source: str, target: str) -> bool:
        """Return whether it applies to a conversion between two formats."""
        one, other = FORMATS[source].values, FORMATS[target].values
        return one in self.sources and other in self.targets and (not self.formats or target in self.formats)


_T7, _PT, _OUT = ".t7 output", ".pt output", "output"
_EACH, _HOW, _WHICH = "processing of each file", "execution", "selection of files"
_BOTH = ("convert", "zoo")
_WRITING = ("convert", "module", "match")
OUTLINE_DEPTH, OUTLINE_ITEMS = 6, 40
_FLAG: dict[str, Any] = {"default": False, "kind": "flag"}

OPTIONS: tuple[Option, ...] = (
    Option(
        "to", "output format (convert: by default that of DST's suffix)", _BOTH,
        choices=tuple(name for name, spec in FORMATS.items() if spec.suffixes), group=_OUT,
    ),
    Option(
        "force", "replace existing files", (*_WRITING, "diff", "draw", "export", "lua", "prove"),
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
        "index_base", "number of the first class, row or element: 1 as in Lua, or 0", ("module", "export", "zoo"),
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
    Option(
        "recording", "compare with the recording of the script of --probe", ("prove",),
        kind="path", metavar="PROOF.t7", flags=("--with",),
    ),
    Option(
        "probe", "write a Lua script that records every layer in Lua Torch", ("prove",),
        kind="path", metavar="X.lua", command_line=True,
    ),
    Option(
        "shapes", "shape of an input that is not recorded; may be repeated", ("prove",),
        default=(), kind="shapes", metavar="2x3x64x64", flags=("--shape",),
    ),
    Option(
        "factory", "class or function that returns the model of a .pt, to compare two models", ("prove", "match"),
        metavar="PACKAGE:FACTORY", flags=("--module",),
    ),
    Option(
        "draw", "draw the model coloured by verdict: .html, .svg, .png, .dot", ("prove",),
        kind="path", metavar="PICTURE", command_line=True,
    ),
    Option("all", "also list layers without recorded values", ("prove",), **_FLAG, command_line=True),
    Option(
        "mapping", "known pairs: `source.key target.key`, one a line", ("match",),
        kind="path", metavar="FILE", flags=("--map",),
    ),
    Option("target_at", "path of the state dict in TARGET, if it has several", ("match",), metavar="PATH"),
    Option("partial", "drop keys that TARGET lacks, and keep those only TARGET has", ("match",), **_FLAG),
    Option(
        "prove", "run both models and compare; without --module, prove only the .t7", ("match",),
        **_FLAG, command_line=True,
    ),
    Option(
        "prove", "compare each layer with what Lua Torch recorded in SRC", ("module",), **_FLAG, command_line=True
    ),
    Option(
        "loader", "write loader.lua instead, and weights.t7 from the state dict of the .pt, if given", ("lua",),
        **_FLAG, command_line=True,
    ),
    Option("train", "leave the Lua model in training mode", ("lua",), **_FLAG, command_line=True),
    Option("at", "path of a part of the file: root.model.modules[3]", ("inspect",), metavar="PATH"),
    Option("all", "print every value, as an indented outline", ("inspect",), **_FLAG, command_line=True),
    Option(
        "depth", f"levels of the outline (default: {OUTLINE_DEPTH})", ("inspect",),
        kind="count", metavar="N", command_line=True,
    ),
    Option(
        "items", f"entries of each table in the outline (default: {OUTLINE_ITEMS})", ("inspect",),
        kind="count", metavar="N", command_line=True,
    ),
    Option(
        "statistics", "read the weights; print minimum, maximum, mean, deviation, zeros, NaN", ("inspect",),
        **_FLAG, flags=("--stats",),
    ),
    Option("weights", "read the weights and show histograms in the page", ("draw",), **_FLAG),
    Option(
        "input_shape",
        "compute output shapes for an input, 1x3x224x224 or [1x4,1x20:int64]; nothing is run; guess: choose one",
        ("inspect", "draw"), kind="shape", metavar="SHAPE",
    ),
    Option(
        "independent", "skip the check with torchfile and PyTorch", ("verify",),
        default=True, kind="flag", flags=("--quick",),
    ),
    Option(
        "rtol", "relative tolerance, as a fraction of B's value", ("diff",), default=0.0, kind="tolerance", metavar="X"
    ),
    Option("atol", "absolute tolerance", ("diff",), default=0.0, kind="tolerance", metavar="X"),
    Option(
        "draw", "write a page (.html) with both models side by side", ("diff",), kind="path", metavar="PAGE", group=_OUT
    ),
    Option("module", "write a folder with model.py and model.pt for each model", ("zoo",), **_FLAG, group=_EACH),
    Option("draw", "draw each model next to its output, as NAME.html", ("zoo",), **_FLAG, group=_EACH),
    Option("prove", "compare layers with what Lua Torch recorded in the file", ("zoo",), **_FLAG, group=_EACH),
    Option("verify", "read each output back and compare", ("zoo",), **_FLAG, group=_EACH),
    Option(
        "engine", "local processes, or a Dask cluster", ("zoo",), default="local", choices=("local", "dask"), group=_HOW
    ),
    Option(
        "workers", "number of processes (default: one a core); 0: work in this one", ("zoo",),
        kind="number", metavar="N", group=_HOW,
    ),
    Option(
        "scheduler", "Dask scheduler, tcp://host:8786 (default: start one)", ("zoo",), metavar="ADDRESS", group=_HOW
    ),
    Option("timeout", "time limit for one file", ("zoo",), kind="seconds", metavar="SECONDS", group=_HOW),
    Option("memory", "memory limit for one file: 512M, 4G", ("zoo",), kind="bytes", metavar="SIZE", group=_HOW),
    Option("retry_failed", "retry files that failed in an earlier run", ("zoo",), **_FLAG, group=_WHICH),
    Option("dry_run", "print the plan without converting", ("zoo",), **_FLAG, group=_WHICH),
    Option(
        "force", "replace foreign files, and convert everything again if options changed", ("zoo",),
        **_FLAG, group=_WHICH,
    ),
    Option(
        "json", "print the result as JSON",
        ("convert", "module", "match", "prove", "export", "lua", "inspect", "verify", "diff", "scan"),
        **_FLAG, command_line=True,
    ),
    Option("json", "print the graph as JSON (docs/graph-json.md)", ("draw",), **_FLAG, command_line=True),
    Option("json", "print one line of JSON per file, and a final one", ("zoo",), **_FLAG, command_line=True),
)  # fmt: skip
"""Every option, in the order of the help; a verb has a name once. Files that a verb reads and writes are no options."""

BY_NAME = {option.name: option for option in reversed(OPTIONS)}
"""The first option of each name: that of `convert`, where it has one."""


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
