"""Convert many files into a folder that mirrors their tree. Run the same command again to resume."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from attrs import evolve, fields

from ..conversion.options import BY_NAME
from ..limits import DEFAULT_LIMITS, Limits
from ..text import printable, printable_json
from . import DONE, FAILED, WRONG_USAGE
from .shared import add_options, given_options

_SHOWN = 20

EXAMPLES = (
    "t7bridge zoo models/ -o converted/",
    "t7bridge zoo s3://bucket/nets -o out/ --to safetensors --verify",
    "t7bridge zoo models/ -o out/ --retry-failed",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "sources", metavar="SRC", nargs="+", help="file, folder, pattern, or URL (s3://, http://, zip://)"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="folder or URL for the outputs; created if missing"
    )
    groups = add_options(parser, "zoo")
    groups["selection of files"].add_argument(
        "--limit",
        action="append",
        type=_limit,
        default=[],
        metavar="N",
        help="convert at most N files in this run; NAME=N: resource limit for each file (--limit help)",
    )


def _limit(text: str) -> tuple[str, int]:
    """Parse `100` as `("", 100)`, `objects=100` as `("objects", 100)`."""
    name, _, value = text.rpartition("=")
    names = ["", *(each.name for each in fields(Limits))]
    if name not in names or not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of files nor one of {'=N, '.join(names[1:])}=N")
    return name, int(value)


def run(options: argparse.Namespace) -> int:
    """Convert, show progress, and print a summary."""
    wrong = _wrong_usage(options)
    if wrong:
        print(f"t7bridge: error: {wrong}", file=sys.stderr)
        return WRONG_USAGE
    from ..zoo import convert_zoo
    from .zoo_display import open_display

    ceilings = dict(options.limit)
    try:
        with open_display(options.json) as display:
            report = convert_zoo(
                options.sources,
                options.output,
                limit=ceilings.pop("", None),
                limits=evolve(DEFAULT_LIMITS, **ceilings),
                on_start=display.start,
                on_file=display.file,
                on_progress=display.progress,
                **given_options(options, "zoo"),
            )
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; complete outputs stay in {options.output}, and the same command resumes"
        ) from error
    if options.dry_run:
        _print_plan(report, options.json)
        return DONE
    if options.json:
        print(printable_json(json.dumps({"summary": report.summary(), "output": report.output, "now": report.now})))
    else:
        _print_summary(report)
    return DONE if report.ok else FAILED


def _wrong_usage(options: argparse.Namespace) -> str:
    """Return which options exclude each other; empty if all is well."""
    from ..zoo import allowed_options

    conversion = {option.name for option in allowed_options(None, module=False)}
    given = [name for name in given_options(options, "zoo") if name in conversion]
    if options.module and (options.to or options.verify or set(given) - {"strict", "classes"}):
        return "--module excludes --to, --verify and all conversion options but --strict and --classes"
    if options.to is not None:
        known = {option.name for option in allowed_options(options.to, options.module)} | {"to"}
        wrong = [" or ".join(BY_NAME[name].spellings()) for name in given if name not in known]
        if wrong:
            return f"{', '.join(wrong)} has no meaning with --to {options.to}"
    if "index_base" in given_options(options, "zoo") and not options.module:
        return "--index-base requires --module"
    if options.partial and not options.template:
        return "--partial requires --template"
    if options.template and options.verify:
        return "--verify and --template exclude each other"
    if options.scheduler and options.engine != "dask":
        return "--scheduler requires --engine dask"
    if options.workers == 0 and (options.timeout or options.memory):
        return "--timeout and --memory need worker processes: --workers 1 or more"
    return ""


def _print_plan(report: Any, as_json: bool) -> None:
    for row in report.rows:
        if as_json:
            print(
                printable_json(
                    json.dumps({"file": row.name, "status": row.status, "output": row.output, "reason": row.reason})
                )
            )
        else:
            what = f" -> {row.output}" if row.status in ("planned", "done") else f": {row.reason}"
            print(printable(f"{row.status:8}{row.name}{what}"))
    if not as_json:
        counts = report.counts
        print(
            f"{counts['planned']} files to convert, {counts['done']} done, {counts['failed']} failed, "
            f"{counts['foreign']} skipped (not a model); nothing was written"
        )


def _print_summary(report: Any) -> None:
    for kind, message, names in report.failures[:_SHOWN]:
        print(printable(f"{len(names)} failed, {kind}: {message} ({names[0]}{', …' if len(names) > 1 else ''})"))
    if len(report.failures) > _SHOWN:
        print(f"and {len(report.failures) - _SHOWN} more kinds of failures")
    for name, files, times in report.layers[:_SHOWN]:
        print(printable(f"no mapping for {name}: {times} layers in {files} files"))
    for message, names in report.warnings[:_SHOWN]:
        what = f"{len(names)} file{'s' * (len(names) > 1)} with a warning"
        print(printable(f"{what}: {message} ({names[0]}{', …' if len(names) > 1 else ''})"))
    if len(report.warnings) > _SHOWN:
        print(f"and {len(report.warnings) - _SHOWN} more kinds of warnings")
    if report.losses:
        print("lost in outputs: " + ", ".join(f"{kind} in {files} files" for kind, files in report.losses.items()))
    counts, (before, after) = report.counts, report.bytes
    now = sum(report.now.values())
    rate = f", {now / report.seconds:.0f} a second" if now and report.seconds else ""
    print(f"{now} files in {report.seconds:.1f} s{rate}")
    print(
        f"{counts['done']} done, {counts['failed']} failed, {counts['foreign']} skipped (not a model)"
        + (f", {counts['planned']} still to do" if counts["planned"] else "")
        + f"; {before} bytes became {after}"
    )
    print(printable(f"{report.output}: report.html, report.json, report.csv"))
