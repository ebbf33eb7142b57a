"""CPU and memory of a verb for a file, each in a child of one process that has imported everything: for `test_bars`."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from t7bridge import cli
from t7bridge.errors import T7BridgeWarning

KILLED_AFTER = 30
"""Seconds of CPU after which the system ends a child."""


def cost(arguments: Sequence[str]) -> tuple[int, float, int]:
    """Run a verb in a child process.

    Returns:
        Its exit code (negative: the signal that ended it), the seconds of CPU and the peak of the child's memory in
        MiB, the parent's included.
    """
    child = os.fork()
    if not child:
        code = 99
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (KILLED_AFTER, KILLED_AFTER))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            with contextlib.suppress(SystemExit):
                code = cli.main(list(arguments))
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss >> 10


def main() -> None:
    """Answer `{"verbs": {name: arguments}, "good": {verb: file}, "files": […]}` of standard input with a list of rows.

    In arguments FILE is the file and OUT the stem of an output. The good file of a verb is done first, in this process
    for its imports, then in a child; its cost is taken off each row `[verb, file, code, seconds, MiB]`.
    """
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("ignore", category=T7BridgeWarning)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=asked["folder"]))

    def given(verb: str, file: str) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return [each.replace("FILE", file).replace("OUT", f"{folder}/out") for each in asked["verbs"][verb]]

    for verb, file in asked["good"].items():
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
            code = cli.main(given(verb, file))
        if code:
            sys.exit(f"{verb} ends with {code} for {file}")
    gc.collect()
    gc.freeze()
    rows = []
    for verb in asked["verbs"]:
        _, seconds, peak = cost(given(verb, asked["good"][verb]))
        for file in asked["files"]:
            code, taken, most = cost(given(verb, file))
            rows.append([verb, file, code, taken - seconds, most - peak])
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
