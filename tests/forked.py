"""Programs that need PyTorch, each in a copy of one process that has imported it.

A Python that imports PyTorch takes two seconds, a copy some milliseconds. The process has imported PyTorch and nothing
of t7bridge, and has run no operation, so that it has one thread and may be copied. A program sees it as its own
interpreter: with its arguments, folder, environment and streams, and as `__main__`. Tests of imports, memory, signals
and the end of a process start a Python of their own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers import PATIENCE

SERVER = """
import gc, json, os, runpy, signal, sys, traceback, types
import torch

requests = os.fdopen(os.dup(0))
answers = os.fdopen(os.dup(1), "w")


def run(arguments):
    kind, *rest = arguments
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(kind))
        runpy.run_path(kind, run_name="__main__")


def code_of(arguments):
    try:
        run(arguments)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


gc.freeze()
for line in requests:
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
        continue
    request = json.loads(line)
    signal.alarm(request["seconds"])  # ends a program that hangs
    os.close(requests.fileno())
    os.close(answers.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, request["output"]), (2, request["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    code = code_of(request["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process of this worker of pytest; it ends with the worker, which closes its input."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return server


def run_python(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, and return its exit code and what it printed.

    Args:
        arguments: those of `python`: `-c` and code, `-m` and a module, or a file, and then the program's own.
        folder: where it runs; here by default.
    """
    words = list(map(str, arguments))
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE
        )
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as streams:
        output, errors = Path(streams, "output"), Path(streams, "errors")
        request = {
            "arguments": words,
            "seconds": PATIENCE,
            "folder": str(folder or Path.cwd()),
            "environment": dict(os.environ),
            "output": str(output),
            "errors": str(errors),
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, "the process that is copied has ended"
        return subprocess.CompletedProcess(words, int(answer), output.read_text("utf-8"), errors.read_text("utf-8"))
