"""Output, CPU and memory of runs of the command line, in children of one process that has imported everything.

For `test_bars.py`.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bounds import reference
from helpers import run_here

from t7bridge.errors import T7BridgeWarning

KILLED_AFTER = 600
"""References of CPU (`tests/bounds.py`) after which the system ends a child."""
SHARED_SECONDS = 0.3
"""CPU seconds after which a child makes room for the next: a child takes as long as some runs."""

Result = dict[str, Any]
"""Of a run: `code` (negative: the signal that ended the process), `seconds` of CPU, `mebibytes` at the peak, the texts
`out` and `err`, and `files`, the names of what it left in its folder."""


def results(runs: Sequence[Sequence[str]], folder: Path, enough: float = math.inf) -> list[Result]:
    """Run commands one after the other in a child process, as long as it lives and until it has taken enough seconds.

    The peak is that of the child so far, the parent's memory included. Each run finds the folder empty.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            seconds = math.ceil(KILLED_AFTER * reference())
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with open(writer, "w") as pipe:
                for arguments in runs:
                    result = _result(arguments, folder)
                    print(json.dumps(result), file=pipe, flush=True)
                    enough -= result["seconds"]
                    if enough < 0:
                        break
            os._exit(0)
        finally:
            os._exit(98)
    os.close(writer)
    with open(reader) as pipe:
        finished = [json.loads(line) for line in pipe]
    _, status, used = os.wait4(child, 0)
    if status:
        finished.append(
            {
                "code": os.waitstatus_to_exitcode(status),
                "seconds": used.ru_utime + used.ru_stime,
                "mebibytes": used.ru_maxrss >> 10,
                "out": "",
                "err": "",
                "files": [],
            }
        )
    return finished


def _result(arguments: Sequence[str], folder: Path) -> Result:
    """Run a command in this process."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    before = time.process_time()
    done = run_here(*arguments)
    return {
        "code": done.returncode,
        "seconds": time.process_time() - before,
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "out": done.stdout,
        "err": done.stderr,
        "files": os.listdir(folder),
    }


def main() -> None:
    """Answer `{"good": {kind: arguments}, "runs": [[kind, arguments], …], "folder": …, "megabytes": …}` with results.

    Standard input has the question, standard output gets the list of results, in the order of the runs. Runs may write
    into the folder. The good run of a kind is done first, in this process for its imports, then in a child; its cost is
    taken off each result of its kind: `references` of CPU and `megabytes`. Runs share a child as long as they take,
    together, less than a few tenths of a second; one that seems to need more than the megabytes that are allowed is
    asked again in a child of its own.
    """
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("ignore", category=T7BridgeWarning)
    torch.set_num_threads(1)
    folder = Path(asked["folder"])
    for kind, arguments in asked["good"].items():
        result = _result(arguments, folder)
        if result["code"]:
            sys.exit(f"{kind} ends with {result['code']}: {result['err']}")
    reference()  # measured here, once, and not in each child
    gc.collect()
    gc.freeze()
    usual = {kind: results([arguments], folder)[0] for kind, arguments in asked["good"].items()}
    runs = asked["runs"]
    finished: list[Result] = []
    while len(finished) < len(runs):
        finished += results([arguments for _, arguments in runs[len(finished) :]], folder, SHARED_SECONDS)
    for number, (kind, arguments) in enumerate(runs):
        if (finished[number]["mebibytes"] - usual[kind]["mebibytes"]) << 20 > asked["megabytes"] * 10**6:
            finished[number] = results([arguments], folder)[0]
        result = finished[number]
        result["references"] = (result["seconds"] - usual[kind]["seconds"]) / reference()
        result["megabytes"] = ((result["mebibytes"] - usual[kind]["mebibytes"]) << 20) / 10**6
    json.dump(finished, sys.stdout)


if __name__ == "__main__":
    main()
