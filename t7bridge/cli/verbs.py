"""The verbs: each calls its function of Python, prints the result and returns the exit code. Completion of shells."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve

import t7bridge

from ..conversion.options import options_of
from ..data import define
from ..errors import ModelError, T7BridgeError
from ..formats import FORMATS, PYTHON
from ..text import counted, listed, printable
from .parsers import arguments_of
from .streams import DONE, FAILED, failed, is_styled, print_hint, print_json, print_notes, terminal_width

if TYPE_CHECKING:
    from ..report import Note, Report
    from ..values.summary import Summary
    from ..workshop.match import KnownModel, Match
    from ..workshop.prove import Proof

UNREADABLE = 2
"""Exit code of `scan` for a file that could not be read, where nothing was found in others."""

_PIPE_BYTES = 1 << 20
"""Bytes that are copied to standard output at a time."""

NOT_PROVED = 2
"""Exit code of `prove` where nothing was compared: whoever asks for a proof must not take 0 for one."""


def _print(
    options: argparse.Namespace,
    data: Callable[[], Any],
    lines: Iterable[str],
    notes: Iterable[Note] = (),
    *,
    hint: str = "",
    following: str = "",
    ok: bool = True,
) -> int:
    """Print a result, as JSON if that is asked for, and else as notes, lines and a hint; return the exit code.

    Args:
        options: the arguments.
        data: returns the result as data for JSON.
        lines: the result as text.
        notes: of the report.
        hint: of the report.
        following: what users do next; a terminal shows it where there is no hint.
        ok: whether nothing was found that the exit code should tell.
    """
    if options.json:
        print_json(data())
    else:
        print_notes(notes)
        for line in lines:
            print(printable(line))
        print_hint(hint or (following if sys.stderr.isatty() else ""))
    return DONE if ok else FAILED


def convert(options: argparse.Namespace) -> int:
    """Convert, and print the report."""
    if options.partial and options.template is None:
        return failed("--partial requires --template")
    if options.target == "-":
        return _to_stdout(options)
    report = t7bridge.convert(**arguments_of(options, "convert"))
    following = _after_conversion(options, report) if sys.stderr.isatty() else ""
    return _print(options, report.as_dict, report.lines(), report.notes, following=following)


def _after_conversion(options: argparse.Namespace, report: Report) -> str:
    """Return the command that users of a converted file need next, with its reason; empty if nothing is to be done.

    Args:
        options: of `convert`.
        report: its result.
    """
    if report.mode == "state dict":
        import shlex

        operands = [report.source]
        if options.at:
            operands += ["--at", options.at]
        if options.classes is not None:
            operands += ["--classes", os.fspath(options.classes)]
        folder = shlex.quote(_module_folder(report.target))
        command = f"t7bridge module {shlex.join(operands)} -o {folder}"
        return f"{report.target} has weights only; a module to run them: {command}"
    if report.target_format == "t7":
        path = report.target.replace("\\", "\\\\").replace("'", "\\'")
        return f"in Lua: value = torch.load('{path}')"
    return ""


def _to_stdout(options: argparse.Namespace) -> int:
    """Convert to a temporary file and print its bytes: the parts of a format are not written in order."""
    import shutil
    import tempfile

    if options.to is None or options.json:
        return failed("standard output requires --to FORMAT, and excludes --json")
    # The original stream: with --quiet, `sys.stdout` is a buffer that is thrown away. Its bytes, as it writes text.
    stream = getattr(sys.__stdout__ or sys.stdout, "buffer", None)
    if stream is None:
        raise T7BridgeError("is closed", file="standard output")
    with tempfile.TemporaryDirectory(prefix="t7bridge-stdout-") as folder:
        path = os.path.join(folder, "out")
        arguments = {**arguments_of(options, "convert"), "target": path}
        if FORMATS[options.to].values == PYTHON:
            # Beside a stream there is no place for a configuration; other formats have it inside, or none.
            arguments["config"] = False
        print_notes(t7bridge.convert(**arguments).notes)
        with open(path, "rb") as file:
            shutil.copyfileobj(file, stream, _PIPE_BYTES)
        stream.flush()
    return DONE


def describe(options: argparse.Namespace) -> int:
    """Print the description."""
    from ..tools.files import Describe, description

    sys.stdout.writelines(description(Describe(**arguments_of(options, "describe"))))
    print()
    return DONE


def diff(options: argparse.Namespace) -> int:
    """Compare, print each difference and their number."""
    report = t7bridge.diff(**arguments_of(options, "diff"))
    return _print(options, report.as_dict, report.lines(), hint=report.hint, ok=not report.differences)


def verify(options: argparse.Namespace) -> int:
    """Compare, print the differences and the readers used."""
    report = t7bridge.verify(**arguments_of(options, "verify"))
    return _print(options, report.as_dict, report.lines(), hint=report.hint, ok=not report.differences)


def draw(options: argparse.Namespace) -> int:
    """Draw the model."""
    # As argparse words it for options of which exactly one is required.
    if options.target is None and not options.json:
        return failed("one of the arguments -o/--output --json is required")
    if options.target is not None and options.json:
        return failed("argument --json: not allowed with argument -o/--output")
    drawing = t7bridge.draw(**arguments_of(options, "draw"))
    if options.json:
        print_json(drawing.graph(), indent=1)
        return DONE
    line = f"{options.target}: {drawing.contents}, {counted(drawing.blocks[0].parameters, 'parameter')}"
    following = f"open {options.target} in a browser" if options.target.lower().endswith(".html") else ""
    return _print(options, drawing.graph, [line], following=following)


def export(options: argparse.Namespace) -> int:
    """Export, and print the largest difference between the file's outputs and those of the module."""
    report = t7bridge.export(**arguments_of(options, "export"))
    return _print(options, partial(asdict, report), report.lines())


def inspect(options: argparse.Namespace) -> int:
    """Print the summary, or the outline."""
    if options.all or options.depth or options.items:
        of_summary = {
            "--json": options.json,
            "--stats": options.statistics,
            "--input-shape": bool(options.input_shape),
        }
        names = _given(of_summary)
        if names:
            return failed(f"{listed(names)} does not apply to an outline: --all, --depth and --items print one")
        return _outline(options)
    summary = t7bridge.inspect(**arguments_of(options, "inspect"))
    if options.json:
        print_json(summary.to_json(), indent=1)
        return DONE
    width = terminal_width() if sys.stdout.isatty() else 0  # 0: lines are not cut
    for number, line in enumerate(summary.lines(width)):
        sys.stdout.write(_styled(line, number, len(summary.header)) + "\n")
    if sys.stderr.isatty():
        print_hint(_after_inspection(options, summary))
    return DONE


def _after_inspection(options: argparse.Namespace, summary: Summary) -> str:
    """Return the commands that draw what was summarized, and of a Lua model write the module; empty without layers.

    Args:
        options: of `inspect`.
        summary: its result.
    """
    if not summary.layers:
        return ""
    import shlex

    source = shlex.quote(options.source)
    if options.at:
        source += f" --at {shlex.quote(options.at)}"
    stem = shlex.quote(os.path.splitext(summary.file)[0])
    commands = [f"t7bridge draw {source} -o {stem}.html"]
    is_lua = summary.header["format"] == FORMATS["t7"].title
    if is_lua and any(row.class_name for row in summary.layers):
        commands.append(f"t7bridge module {source} -o {shlex.quote(_module_folder(summary.file))}")
    return "; ".join(commands)


def _styled(line: str, number: int, header: int) -> str:
    """Style a line of the summary on a terminal: names in its header are faint, heads of tables bold.

    Rows of tables are cut to the width, as they could not be read below one another otherwise; sentences go on below.

    Args:
        line: the line.
        number: its number, from 0.
        header: number of lines of the header, which come first.
    """
    if not is_styled(sys.stdout):
        return line
    width = terminal_width()
    # Below the header are tables, and a sentence on shapes.
    is_row = number >= header and not line.startswith("shapes: ")
    if is_row and len(line) > width:
        line = line[: width - 1] + "…"
    if number < header:
        name, space, value = line.partition("  ")
        return f"\x1b[2m{name}\x1b[0m{space}{value}"
    if line.startswith(("layer ", "path ", "tensor ")):
        return f"\x1b[1m{line}\x1b[0m"
    return line


def _outline(options: argparse.Namespace) -> int:
    """Print every value, as an indented outline."""
    from ..tools.inspect import outline_lines

    for line in outline_lines(options.source, options.at, options.depth, options.items, options.limits):
        sys.stdout.write(line + "\n")
    return DONE


def lua(options: argparse.Namespace) -> int:
    """Write the files, and print the report."""
    report = t7bridge.write_lua(**arguments_of(options, "lua"))
    if options.loader:
        weights = f"; its weights are in weights.t7, {counted(report.tensors, 'tensor')}" if report.source else ""
        line = f"{os.path.join(options.target, 'loader.lua')}: loads a state dict into a Lua model by name{weights}"
    else:
        line = (
            f"{os.path.join(report.target, 'model.t7')}: {counted(report.tensors, 'tensor')}; its source is model.lua"
        )
    return _print(options, report.as_dict, [line], report.notes)


def match(options: argparse.Namespace) -> int:
    """Match, write the result if it is usable, and print; without TARGET, name models of libraries that fit."""
    if options.target is None and options.out is not None:
        return failed("-o requires TARGET: t7bridge match SRC names models that have its layers")
    problem = _inapplicable_option(options)
    if problem:
        return failed(problem)
    result = t7bridge.match(**arguments_of(options, "match"))
    if options.target is None:
        return _recognize(options, result)
    # With --partial, tensors may be left over, but none may be assigned by chance.
    is_usable = result.complete or (options.partial and not result.ambiguous)
    proof = _run(options, result) if is_usable else None
    lines: list[str] = []
    if options.out is None:
        lines = result.listed_pairs()
    elif is_usable:
        lines = _written(options, result, proof)
    is_refuted = proof is not None and bool(proof.exit_code)
    code = _print(options, result.as_dict, lines, result.report.notes, ok=is_usable and not is_refuted)
    if not (result.complete or options.json):
        level = "note" if is_usable else "error"
        print(f"t7bridge: {level}: {result.problems(partial=options.partial and is_usable)}", file=sys.stderr)
    return code


def _inapplicable_option(options: argparse.Namespace) -> str:
    """Return what is wrong with an option of `match` that is for another form of it: with `-o`, or without TARGET.

    Empty if nothing is.
    """
    needing_output = {
        "--dtype": options.dtype is not None,
        "--compact": options.compact,
        "--strict": options.strict,
        "--sync": options.sync,
        "--force": options.force,
    }
    names = _given(needing_output)
    if options.out is None and names:
        return f"{listed(names)} does not apply without -o: nothing is written"
    if options.target is None and options.target_at is not None:
        return "--target-at does not apply without TARGET"
    if options.target is not None and options.among:
        return "--among does not apply with TARGET: it names libraries to choose one from"
    return ""


def _given(options: dict[str, bool]) -> list[str]:
    """Return the names of options that were given, by whether each was."""
    return [name for name, is_given in options.items() if is_given]


def _written(options: argparse.Namespace, result: Match, proof: Proof | None) -> list[str]:
    """Write the result of a match, unless a run shows that pairs may be wrong; return the lines to print.

    Args:
        options: of `match`.
        result: the match.
        proof: of a run of both models on the same inputs; `None` if they were not run.
    """
    from ..workshop.match import WriteMatch, write_match

    if result.complete and proof is not None and proof.misplaced:
        message = f"{options.out} is not written: layers may have the weights of others; --no-run writes it"
        result.report.note("warning", message, code="match")
        return []
    write_match(result, options.out, **{name: getattr(options, name) for name in options_of(WriteMatch)})
    return [f"{options.out}: {counted(len(result.pairs), 'tensor')}, {result.report.target_bytes:,} bytes"]


_MOST_RUN = 6
"""Models of libraries that are run to find the one that computes what a file does."""


def _recognize(options: argparse.Namespace, result: Match) -> int:
    """Print which models of libraries have the same layers, which of them computes the same, and the next command.

    If none has, the next command writes a module for the model. So it does if the layers are recurrent: libraries have
    no such models, but what kind of layers they are is a result.

    Args:
        options: of `match`.
        result: its result, with a match for each model of a library that has the same layers.

    Returns:
        The exit code.
    """
    if result.recurrent or not result.models:
        hint = ""
        if result.source_side.module is not None:  # which `module` can write
            hint = _module_command(options)
        return _print(options, result.as_dict, [result.sentence()], hint=hint, ok=bool(result.recurrent))
    candidates = _ranked(options, result)
    # The match of the best model is printed as the result of the whole request: it gets what only `result` has.
    best = candidates[0].match
    best.models = [candidate.model for candidate in candidates]
    best.asked = result.asked
    notes = [note for note in best.report.notes if note.code == "prove"]
    lines = [best.sentence()]
    for model in best.models[1:]:
        lines.append(f"also {model}")
    has_warning = any(note.level == "warning" for note in notes)
    hint = _next_command(options, best)
    return _print(options, best.as_dict, lines, notes, hint=hint, ok=best.complete and not has_warning)


def _module_command(options: argparse.Namespace) -> str:
    """Return the command that writes a module for the model in the source."""
    import shlex

    command = ["t7bridge", "module", options.source]
    if options.at:
        command += ["--at", options.at]
    return shlex.join([*command, "-o", _module_folder(os.path.basename(options.source))])


def _module_folder(path: str) -> str:
    """Return a name for the folder of a module beside a file: the file's without its suffix, which may have none."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix else f"{path}-module"


@define(eq=False)
class _Candidate:
    """A model of a library that has the same layers.

    Attributes:
        model: the model, with a verdict if it was run.
        match: that of the source with it.
        rank: less for a better one: whether a layer has the weights of another, then the number of differences.
    """

    model: KnownModel
    match: Match
    rank: tuple[bool, int]

    @property
    def is_decided(self) -> bool:
        """Whether it was run and computes the same."""
        return self.rank == (False, 0)

    def run(self, options: argparse.Namespace) -> None:
        """Run both models, and set verdict and rank if that is possible."""
        proof = _run(options, self.match)
        if proof is not None and not proof.problem:
            self.model = evolve(self.model, verdict="not proven" if proof.exit_code else "proven")
            self.rank = proof.misplaced, len(proof.differences)


def _ranked(options: argparse.Namespace, result: Match) -> list[_Candidate]:
    """Return the models of libraries that have the same layers, the best first; equal ones stay in their order.

    The first of them are run, until one computes the same.

    Args:
        options: of `match`.
        result: its result, with these models and a match for each, in `candidates`; there is at least one.
    """
    rank_if_not_run = (True, len(result.models))  # behind all in which no layer has the weights of another
    candidates = [_Candidate(model, match, rank_if_not_run) for model, match in zip(result.models, result.candidates)]
    for candidate in candidates[:_MOST_RUN]:
        if candidate.match.complete:
            candidate.run(options)
        if candidate.is_decided:
            break
    return sorted(candidates, key=lambda candidate: candidate.rank)


def _run(options: argparse.Namespace, result: Match) -> Proof | None:
    """Run both models on the same inputs if that is asked for, or TARGET or SRC is a factory, and note the result.

    If a proof is asked for and there is only one model, a Lua module, it is compared with what Lua recorded in it.

    Returns:
        The proof; `None` if they were not run.
    """
    from ..workshop.prove import try_proof

    sides = result.source_side, result.target_side
    lua_modules = [side.module for side in sides if side.module is not None]
    if not lua_modules:  # only those can be run here
        return None
    factories = [str(side.factory) for side in sides if side.factory is not None]
    is_requested = options.prove or (bool(factories) and not options.no_run)
    are_both_lua = len(lua_modules) == 2
    # Two Lua modules run against each other; one runs against what a factory makes, if there is one.
    factory = None if are_both_lua else options.factory or next(iter(factories), None)
    if is_requested and (are_both_lua or factory):
        # If TARGET is a Lua module, it gets the weights of SRC here. `other` is the other Lua module, or the weights
        # for what the factory makes.
        module, other = result.lua_model_and_other(options.partial)
        proof = try_proof(module, against=other, factory=factory, input=options.input, limits=options.limits)
        result.report.notes.append(proof.note())
        return proof
    if options.prove:
        (lua_module,) = lua_modules
        result.report.notes.append(try_proof(lua_module, limits=options.limits).note())
    return None


def _next_command(options: argparse.Namespace, result: Match) -> str:
    """Return the command that writes the weights of the source under the keys of the best model, matched in this way.

    Args:
        options: of the `match` that found it.
        result: the match with that model, which a factory made: a function of a library.
    """
    factory = result.target_side.factory
    assert factory is not None
    stem = str(factory.args[0]) if factory.args else factory.attribute  # the name of the model
    words = ["t7bridge", "match"]
    if options.at:
        words += ["--at", options.at]
    for rule in options.rename:
        words += ["--rename", rule]
    for prefix in options.strip:
        words += ["--strip", prefix]
    if options.mapping:
        words += ["--map", os.fspath(options.mapping)]
    if options.order:
        words.append("--order")
    words += [options.source, str(factory)]
    import shlex

    return f"{shlex.join(words)} -o {shlex.quote(stem)}.pt"


def module(options: argparse.Namespace) -> int:
    """Write both files, and print the report."""
    report = t7bridge.write_module(**arguments_of(options, "module"))
    if options.prove:
        from ..workshop.prove import try_proof

        report.notes.append(try_proof(options.source, options.at, limits=options.limits).note())
    tensors = counted(report.tensors, "tensor")
    if any(note.code == "several-models" for note in report.notes):
        line = f"{report.target}: {tensors} in the model.pt of all folders"
        following = f"in each folder of {report.target}: from model import load; module = load()"
    else:
        line = f"{os.path.join(report.target, 'model.py')}: {tensors} in model.pt"
        following = f"in {report.target}: from model import load; module = load()"
    return _print(options, report.as_dict, [line], report.notes, following=following)


def scan(options: argparse.Namespace) -> int:
    """Scan each file, print, and return 1 if anything was found, or else 2 if a file could not be read."""
    from ..tools.scan import ScanReport

    reports = []
    for path in options.source:
        try:
            reports.append(t7bridge.scan(path, limits=options.limits))
        except T7BridgeError as error:
            reports.append(ScanReport(path, error=str(error)))
    if options.json:
        print_json([report.as_dict() for report in reports])
    else:
        for report in reports:
            for line in report.lines():
                print(printable(line))
            if report.error:
                failed(report.error)
        # One hint is enough: that of the first report that has one.
        print_hint(next((report.remedy for report in reports if report.remedy), ""))
    if any(report.findings for report in reports):
        return FAILED
    return UNREADABLE if any(report.error for report in reports) else DONE


def prove(options: argparse.Namespace) -> int:
    """Prove, print the table, worst first, and the verdict."""
    references = _given(
        {"--with": bool(options.recording), "--expect": bool(options.expect), "a second model": bool(options.other)}
    )
    if len(references) > 1:
        return failed(f"a model is compared with one of these: {' or '.join(references)}")
    input_count = len(options.input)
    output_count = len(options.expect)
    if options.expect and input_count != output_count:
        raise ModelError("each input needs an expected output", expected=f"{input_count}", found=f"{output_count}")
    pairs = list(zip(options.input, options.expect))
    against = options.recording or pairs or options.other  # otherwise, what Lua recorded in the model
    proof = t7bridge.prove(**{**arguments_of(options, "prove"), "against": against})
    is_checked = bool(proof.summary()["checked"])
    hint = ""
    if not (against or is_checked):
        hint = "in Lua Torch, run model:forward(input) and save the model: its layers keep their outputs"
    _print(options, proof.as_dict, proof.lines(everything=options.all), hint=hint)
    if not (is_checked or proof.exit_code):
        return NOT_PROVED
    return proof.exit_code
