"""Command lines without a valid verb: help, version, wrong usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence


def perhaps(wrong: str, known: Sequence[str]) -> str:
    """Return a did-you-mean suggestion to append to a message; empty if there is none."""
    from difflib import get_close_matches

    found = get_close_matches(wrong, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


def general(arguments: Sequence[str], verbs: Mapping[str, str]) -> str:
    """Run a command line without a valid verb: help or the version.

    Args:
        arguments: of the command line.
        verbs: each with its description.

    Returns:
        The error message; empty where usage was printed.
    """
    from ..version import __version__

    width = max(map(len, verbs))
    parser = argparse.ArgumentParser(
        prog="t7bridge",
        usage="t7bridge [-h] [--version] VERB ...",
        description="Convert Lua Torch .t7 files to PyTorch, and PyTorch models back to Lua.",
        epilog="verbs:\n"
        + "\n".join(f"  {verb:{width}}  {text}" for verb, text in verbs.items())
        + "\n\nRun 't7bridge help VERB' for details. Exit codes: 0 success; 1 finding (a\n"
        "difference, a threat, a failed file); 2 wrong usage or error; 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t7bridge {__version__}")
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help=argparse.SUPPRESS)
    if not arguments:
        parser.print_help(sys.stderr)
        return ""
    if arguments[0] == "help":
        arguments = arguments[1:] or ["--help"]
    verb = parser.parse_args(arguments).verb
    parser.print_usage(sys.stderr)
    return f"unknown verb {verb!r}{perhaps(verb, list(verbs)) or '; t7bridge --help lists them'}"
