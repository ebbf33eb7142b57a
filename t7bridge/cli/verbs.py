"""The verbs: each calls its function of Python, prints the result and returns the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import t7bridge

from ..conversion.options import AT, FORCE, INPUT, JSON, LIMITS, STRICT, SYNC, flag, option, verb
from ..errors import ModelError, T7BridgeError, UnsupportedError, about_file
from ..text import printable
from .parser import arguments_of
from .streams import print_hint, print_json, print_notes, wrong_usage

if TYPE_CHECKING:
    from ..report import Report

DONE, FAILED = 0, 1


def convert(options: argparse.Namespace) -> int:
    """Convert, and print the report."""
    if options.partial and options.template is None:
        return wrong_usage("--partial requires --template")
    if options.dst == "-":
        return _to_stdout(options)
    report = t7bridge.convert(**arguments_of(options, "convert"))
    if options.json:
        print_json(report.as_dict())
        return DONE
    print_notes(report)
    print(f"{report.target}: {report.mode}, {report.tensors} tensors, {report.target_bytes} bytes")
    return DONE


def _to_stdout(options: argparse.Namespace) -> int:
    """Convert to a temporary file and print its bytes: the parts of a format are not written in order."""
    import shutil
    import tempfile

    if options.to is None or options.json:
        return wrong_usage("standard output requires --to FORMAT, and excludes --json")
    with tempfile.TemporaryDirectory(prefix="t7bridge-stdout-") as folder:
        path = os.path.join(folder, "out")
        print_notes(t7bridge.convert(**{**arguments_of(options, "convert"), "dst": path}))
        with open(path, "rb") as file:
            shutil.copyfileobj(file, (sys.__stdout__ or sys.stdout).buffer, 1 << 20)
        sys.stdout.flush()
    return DONE


@verb
class Describe:
    """Print a file's content as canonical JSON: the same for every encoding of the same value."""

    EXAMPLES = ("t7bridge describe model.t7 | python -m json.tool", "t7bridge describe - < model.pt")
    file = option("a file of any format", metavar="FILE", stdin=True)
    limits = LIMITS


def describe(options: argparse.Namespace) -> int:
    """Print the description."""
    from ..values.describe_lua import json_pieces

    sys.stdout.writelines(json_pieces(t7bridge.describe(options.file, limits=options.limits)))
    print()
    return DONE


def diff(options: argparse.Namespace) -> int:
    """Compare, print each difference and their number."""
    report = t7bridge.diff(**arguments_of(options, "diff"))
    if options.json:
        print_json(report.as_dict())
        return DONE if report.same else FAILED
    for difference in report.differences:
        print(printable(str(difference)))
    count = len(report.differences)
    found = f"{count} difference{'s' if count > 1 else ''}" if count else "no difference"
    print(f"{found}; {report.tensors} tensors compared")
    if options.draw is not None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.drawn.items()) or "no differing block"
        print(printable(f"{options.draw}: {kinds}"))
    print_hint(report.hint)
    return DONE if report.same else FAILED


def draw(options: argparse.Namespace) -> int:
    """Draw the model."""
    if options.dst is None and not options.json:
        return wrong_usage("one of the arguments -o/--output --json is required")
    if options.dst is not None and options.json:
        return wrong_usage("argument --json: not allowed with argument -o/--output")
    drawing = t7bridge.draw(**arguments_of(options, "draw"))
    if options.json:
        import json

        print(json.dumps(drawing.graph(), indent=1))
        return DONE
    print(printable(f"{options.dst}: {drawing.modules} modules, {drawing.blocks[0].parameters:,} parameters"))
    return DONE


def export(options: argparse.Namespace) -> int:
    """Write the file, and print the largest difference from the live module."""
    from attrs import asdict

    from ..tools.hub import HubReport

    report = t7bridge.export(**arguments_of(options, "export"))
    if options.json:
        print_json(asdict(report))
        return DONE
    if isinstance(report, HubReport):
        for note in report.notes:
            print(f"t7bridge: {note}", file=sys.stderr)
        print(f"{report.target}: {', '.join(report.files)}; {report.tensors} tensors; {report.checked}")
        return DONE
    inputs, outputs = ", ".join(report.inputs), ", ".join(report.outputs)
    print(
        f"{report.target}: {inputs} -> {outputs}, {report.target_bytes} bytes; "
        f"run by {report.runner}, largest difference {report.difference:.2g}"
    )
    return DONE


def inspect(options: argparse.Namespace) -> int:
    """Print the summary, or the outline."""
    if options.all or options.depth or options.items:
        return _outline(options)
    summary = t7bridge.inspect(**arguments_of(options, "inspect"))
    if options.json:
        import json

        print(json.dumps(summary.to_json(), indent=1))
        return DONE
    for number, line in enumerate(summary.lines()):
        sys.stdout.write(_styled(line, number, len(summary.header)) + "\n")
    return DONE


def _styled(line: str, number: int, header: int) -> str:
    """Style a line of the summary; table heads are bold on a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return line
    width = os.get_terminal_size().columns
    line = line if len(line) <= width else line[: width - 1] + "…"
    if number < header:
        name, space, value = line.partition("  ")
        return f"\x1b[2m{name}\x1b[0m{space}{value}"
    return f"\x1b[1m{line}\x1b[0m" if line.startswith(("layer ", "path ", "tensor ")) else line


def _outline(options: argparse.Namespace) -> int:
    from ..tools.files import load_all
    from ..tools.inspect import OUTLINE_DEPTH, OUTLINE_ITEMS, value_at
    from ..values.outline import outline

    values = load_all(options.source, limits=options.limits)
    if options.at:
        with about_file(options.source):
            values = [value_at(values, options.at)]
    for number, value in enumerate(values, 1):
        if len(values) > 1:
            sys.stdout.write(f"value {number} of {len(values)}\n")
        for line in outline(value, depth=options.depth or OUTLINE_DEPTH, items=options.items or OUTLINE_ITEMS):
            sys.stdout.write(line + "\n")
    return DONE


@verb
class Lua:
    """Convert a PyTorch module to a Lua Torch model: model.t7, and model.lua, the source that builds it.

    With --loader: write loader.lua, which loads a state dict into an existing Lua model by name.
    """

    EXAMPLES = (
        "t7bridge lua net.py:Net net.pt --input 1x3x32x32 -o lua/",
        "t7bridge lua --loader weights.pt -o lua/",
    )
    factory = option(
        "class or function of the module: torchvision.models:resnet18, net.py:Net, 'nets:make(5, wide=True)'",
        default=None, metavar="PACKAGE:FACTORY", nargs="?",
    )  # fmt: skip
    weights = option("its state dict; random weights if not given", default=None, metavar="WEIGHTS.pt", nargs="?")
    output = option("folder for model.t7 and model.lua", flags=("-o", "--output"), metavar="DIR")
    input = option(INPUT, default=())
    allow = option(
        "Lua package that the model may require: rnn, for nn.SeqLSTM", default=(), kind="list", metavar="NAME"
    )
    loader = flag("write loader.lua instead, and weights.t7 from the state dict of the .pt, if given")
    train = flag("leave the Lua model in training mode")
    force = option(FORCE, default=False, kind="flag")
    sync = option(SYNC, default=False, kind="flag")
    json = JSON


def lua(options: argparse.Namespace) -> int:
    """Write the files, and print the report."""
    if options.loader:
        return _write_loader(options)
    if options.factory is None or not options.input:
        raise ModelError(
            "the module and the sizes of its inputs are required",
            expected="PACKAGE:FACTORY --input SIZES",
            hint=Lua.EXAMPLES[0],
        )
    from ..tools.example_inputs import parse_inputs

    try:
        from ..lua.factory import fill, make_module
        from ..torchmodules.export import example
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error
    module = make_module(options.factory)
    if options.weights:
        from ..conversion.torch_weights import torch_weights

        fill(module, torch_weights(options.weights), options.weights)
    inputs = example(module, parse_inputs(options.input), first=0)
    report = t7bridge.write_lua(
        module.train() if options.train else module.eval(),
        options.output,
        tuple(inputs) if len(options.input) > 1 else (inputs,),
        allow=tuple(options.allow),
        force=options.force,
        sync=options.sync,
        source=options.factory,
    )
    if options.json:
        print_json(report.as_dict())
        return DONE
    print_notes(report)
    print(f"{os.path.join(report.target, 'model.t7')}: {report.tensors} tensors; its source is model.lua")
    return DONE


def _write_loader(options: argparse.Namespace) -> int:
    """Write loader.lua, and the weights as a table of tensors if a file is given."""
    from ..tools.save_module import write_loader

    weights = options.weights or options.factory
    report = write_loader(options.output, weights, force=options.force, sync=options.sync)
    if options.json:
        print_json(report.as_dict())
        return DONE
    print_notes(report)
    beside = f"; its weights are in weights.t7, {report.tensors} tensors" if weights else ""
    print(f"{os.path.join(options.output, 'loader.lua')}: loads a state dict into a Lua model by name{beside}")
    return DONE


@verb
class Match:
    """Map the keys of one state dict to another model's, by structure, order and shape.

    Ambiguous keys are listed, never guessed. --map FILE resolves them: one pair a line, source first, `#` for comments;
    two keys, or two module names that end in a dot; `-` for a key without counterpart.
    """

    EXAMPLES = (
        "t7bridge match model.t7 target.pt -o weights.pt",
        "t7bridge match model.t7 target.pt --map pairs.txt",
        "t7bridge match weights.pt model.t7 -o filled.t7",
    )
    src = option("the weights: a .t7, or a .pt with a state dict", metavar="SRC", stdin=True)
    target = option("the model to fill: a .pt with its state dict, or a .t7", metavar="TARGET")
    out = option(
        ".pt: the weights under TARGET's keys; .t7: TARGET, a .t7, with these weights",
        default=None, flags=("-o",), metavar="OUT",
    )  # fmt: skip
    force = option(FORCE, default=False, kind="flag")
    compact = flag("write only the used part of each storage", group=".pt output")
    strict = option(STRICT, default=False, kind="flag")
    sync = option(SYNC, default=False, kind="flag")
    at = option(AT, default=None)
    factory = option(
        "class or function that returns the model of a .pt, to compare two models", default=None,
        metavar="PACKAGE:FACTORY", flags=("--module",),
    )  # fmt: skip
    mapping = option("known pairs: `source.key target.key`, one a line", default=None, metavar="FILE", flags=("--map",))
    target_at = option("path of the state dict in TARGET, if it has several", default=None, metavar="PATH")
    partial = flag("drop keys that TARGET lacks, and keep those only TARGET has")
    prove = flag("run both models and compare; without --module, prove only the .t7")
    json = JSON
    limits = LIMITS


def match(options: argparse.Namespace) -> int:
    """Match, write if complete, and print."""
    from ..tools.match import write_match

    found = t7bridge.match(
        options.src,
        options.target,
        options.mapping,
        at=options.at,
        target_at=options.target_at,
        limits=options.limits,
    )
    done = found.complete or (options.partial and not found.ambiguous)
    if done and options.out is not None:
        asked = {name: getattr(options, name) for name in ("partial", "compact", "force", "strict", "sync")}
        write_match(found, options.out, **asked)
    if options.prove:
        _prove_match(options, found.report, done and options.out is not None)
    if options.json:
        print_json(found.as_dict())
        return DONE if done else FAILED
    print_notes(found.report)
    if options.out is None:
        width = max((len(pair.source or "-") for pair in found.pairs), default=0)
        for pair in found.pairs:
            print(f"{pair.source or '-':{width}}  {pair.target}  {list(pair.target_shape)} {pair.why}")
    elif done:
        print(f"{options.out}: {len(found.pairs)} tensors, {found.report.target_bytes} bytes")
    if not found.complete:
        print(f"t7bridge: {'note' if done else 'error'}: {found.problems(options.partial and done)}", file=sys.stderr)
    return DONE if done else FAILED


def _prove_match(options: argparse.Namespace, report: Report, written: bool) -> None:
    """Add the findings of a proof to the report: of both models if they can be run, else of the .t7 alone."""
    from ..tools.prove.note import note_of, prove_note

    limits = options.limits
    source, target = (os.fspath(path).endswith(".t7") for path in (options.src, options.target))
    if written and (options.factory or (source and target)):
        from ..tools.prove.two import prove_two

        pair = (options.src, options.out) if source else (options.out, options.src)
        try:
            proof = prove_two(*pair, factory=None if source and target else options.factory, limits=limits)
            report.notes.append(note_of(proof))
        except T7BridgeError as error:
            report.note("info", f"proof: not possible: {error.message or error}", code="prove")
    elif source:
        report.notes.append(prove_note(options.src, options.at, limits=limits))
    elif target:
        report.notes.append(prove_note(options.target, options.target_at, limits=limits))


def module(options: argparse.Namespace) -> int:
    """Write both files, and print the report."""
    report = t7bridge.write_module(**arguments_of(options, "module"))
    if options.prove:
        from ..tools.prove.note import prove_note

        report.notes.append(prove_note(options.src, options.at, limits=options.limits))
    if options.json:
        print_json(report.as_dict())
        return DONE
    print_notes(report)
    print(f"{os.path.join(report.target, 'model.py')}: {report.tensors} tensors in model.pt")
    return DONE


@verb
class Scan:
    """Report what a pickle would import or execute, and Lua functions and foreign classes. Nothing is executed."""

    EXAMPLES = ("t7bridge scan *.pt *.t7", "t7bridge scan --json download.pth", "t7bridge scan checkpoint/")
    files = option("a file of any format, or a folder", metavar="FILE", nargs="+")
    json = JSON
    limits = LIMITS


def scan(options: argparse.Namespace) -> int:
    """Scan, print, and exit with 1 if anything was found."""
    from ..tools.scan import ScanReport

    reports = []
    for path in options.files:
        try:
            reports.append(t7bridge.scan(path, limits=options.limits))
        except T7BridgeError as error:
            reports.append(ScanReport(path, error=str(error)))
    if options.json:
        print_json([report.as_dict() for report in reports])
    else:
        for report in reports:
            for finding in report.findings:
                print(printable(f"{report.file}: {finding}"))
            if report.error:
                print(printable(f"t7bridge: error: {report.error}"), file=sys.stderr)
            elif not report.findings:
                print(printable(f"{report.file}: nothing found"))
    return DONE if all(report.clean for report in reports) else FAILED


def verify(options: argparse.Namespace) -> int:
    """Compare, print the differences and the readers used."""
    report = t7bridge.verify(**arguments_of(options, "verify"))
    if options.json:
        print_json(report.as_dict())
        return DONE if report.same else FAILED
    for difference in report.differences:
        print(difference)
    for name, texts in report.left_out.items():
        for text in texts:
            print(f"{name}: {printable(text)}")
    for name, readers in report.readers.items():
        print(f"{name}: read by t7bridge" + "".join(f" and {reader}" for reader in readers))
    count = len(report.differences)
    print("the same" if report.same else f"{count} difference{'s' if count > 1 else ''}")
    print_hint(report.hint)
    return DONE if report.same else FAILED
