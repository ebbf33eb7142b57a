"""The command line: all printing and all exit codes are here. One file a verb, loaded when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence

from ..text import printable_lines

DONE, FAILED, WRONG_USAGE = 0, 1, 2

VERBS = {
    "convert": "convert a file to .pt, to .t7, or to another encoding",
    "describe": "print what a file holds as canonical JSON",
    "diff": "say which values of two files differ, and by how much",
    "graph": "draw a model as SVG, or for Graphviz",
    "inspect": "print what a file holds, for people",
    "match": "find out which key of a state dict is which of another model's",
    "module": "write a model as Python source that needs only PyTorch, with its weights",
    "scan": "say what files would do in readers that trust them",
    "verify": "check that two files hold the same values, sharing and views",
    "zoo": "convert thousands of files, and go on where it was stopped",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process where not given.

    Returns:
        0 done, 1 something failed, 2 wrong usage; 128 and the signal's number where one has ended it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored, and means it
                signal.signal(number, _stop)
    if not arguments or arguments[0] not in VERBS:
        return _general(arguments)
    verb = importlib.import_module(f".{arguments[0]}", __name__)
    parser = argparse.ArgumentParser(f"t7bridge {arguments[0]}", description=verb.__doc__, formatter_class=_formatter)
    verb.add_arguments(parser)
    options = parser.parse_args(arguments[1:])
    from ..errors import T7BridgeError

    try:
        code = int(verb.run(options))
        sys.stdout.flush()
        return code
    except T7BridgeError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader of a pipe has gone: not an error, but nothing more can be printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        _fail("interrupted; no output was left behind")
        return 128 + signal.SIGINT
    except MemoryError:
        return _fail("out of memory")
    except OSError as error:
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("T7BRIDGE_TRACEBACK"):
            raise
        return _fail(
            f"a mistake in t7bridge itself: {type(error).__name__}: {error}. Please report it, with what "
            "T7BRIDGE_TRACEBACK=1 in the environment prints."
        )


def _formatter(prog: str) -> argparse.HelpFormatter:
    """argparse makes one for each option, only to check it, and would load all of `shutil` for the width."""
    width = os.environ.get("COLUMNS", "")
    if not width.isdecimal():
        try:
            width = str(os.get_terminal_size().columns)
        except OSError:  # no terminal
            width = "80"
    return argparse.HelpFormatter(prog, width=int(width) - 2)


def _stop(number: int, frame: object) -> None:
    """End like Ctrl-C does, so that what is half written is removed."""
    raise SystemExit(128 + number)


def _fail(message: str) -> int:
    print(f"t7bridge: error: {printable_lines(message)}", file=sys.stderr)
    return FAILED


def _general(arguments: Sequence[str]) -> int:
    """What does not name a verb: help, the version, or wrong usage."""
    from ..version import __version__

    width = max(map(len, VERBS))
    parser = argparse.ArgumentParser(
        prog="t7bridge",
        description="Carries Lua Torch .t7 files to PyTorch and PyTorch weights back to Lua.",
        epilog="verbs:\n"
        + "\n".join(f"  {verb:{width}}  {text}" for verb, text in VERBS.items())
        + "\n\n't7bridge VERB --help' says more. Exit codes: 0 done, 1 something failed, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t7bridge {__version__}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its arguments")
    if not arguments:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    parser.parse_args(arguments)
    return WRONG_USAGE
