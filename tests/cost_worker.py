"""CPU and memory of a verb for a file, each in a child of one process that has imported everything: for `test_bars`."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from bounds import reference

from t7bridge import cli
from t7bridge.errors import T7BridgeWarning

KILLED_AFTER = 600
"""References of CPU (`tests/bounds.py`) after which the system ends a child."""
SHARED_SECONDS = 0.3


Cost = tuple[int, float, int]
"""Exit code (negative: the signal that ended the process), seconds of CPU, and the peak of memory in MiB."""


def costs(runs: Sequence[Sequence[str]], enough: float = math.inf) -> list[Cost]:
    """Run verbs one after the other in a child process, as long as it lives and until it has taken enough seconds.

    The peak is that of the child so far, the parent's memory included.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            seconds = math.ceil(KILLED_AFTER * reference())
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            for arguments in runs:
                code, before = 99, time.process_time()
                with contextlib.suppress(SystemExit):
                    code = cli.main(list(arguments))
                taken, peak = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                os.write(writer, json.dumps([code, taken, peak]).encode() + b"\n")
                enough -= taken
                if enough < 0:
                    break
            os._exit(0)
        finally:
            os._exit(98)
    os.close(writer)
    with open(reader, "rb") as pipe:
        found = [tuple(json.loads(line)) for line in pipe]
    _, status, used = os.wait4(child, 0)
    if status:
        found.append((os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss >> 10))
    return found


def main() -> None:
    """Answer `{"verbs": {name: arguments}, "good": {verb: file}, "files": […], …}` of standard input with rows.

    In arguments FILE is the file and OUT the stem of an output. The good file of a verb is done first, in this process
    for its imports, then in a child; its cost is taken off each row `[verb, file, code, references, MiB]`. The verbs of
    a file share a child as long as they take, together, less than a few tenths of a second; one that seems to need
    more than the `megabytes` that are allowed is asked again in a child of its own.
    """
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("ignore", category=T7BridgeWarning)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=asked["folder"]))
    verbs = list(asked["verbs"])

    def given(verb: str, file: str) -> list[str]:
        out = f"{folder}/{verbs.index(verb)}"
        return [each.replace("FILE", file).replace("OUT", out) for each in asked["verbs"][verb]]

    def alone(verb: str, file: str) -> Cost:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return costs([given(verb, file)])[0]

    for verb, file in asked["good"].items():
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
            code = cli.main(given(verb, file))
        if code:
            sys.exit(f"{verb} ends with {code} for {file}")
    gc.collect()
    gc.freeze()
    usual = {verb: alone(verb, asked["good"][verb]) for verb in verbs}
    rows = []
    for file in asked["files"]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        found: list[Cost] = []
        while len(found) < len(verbs):
            found += costs([given(verb, file) for verb in verbs[len(found) :]], SHARED_SECONDS)
        for verb, (code, seconds, peak) in zip(verbs, found):
            if peak - usual[verb][2] > asked["megabytes"]:
                code, seconds, peak = alone(verb, file)
            references = (seconds - usual[verb][1]) / reference()
            rows.append([verb, file, code, references, peak - usual[verb][2]])
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
