"""Runs of a zoo that are interrupted at random moments, and resumed. Not part of the test run as a whole.

`python tests/zoo_interruptions.py [MOMENTS [SEED [KIND…]]]`: SIGINT and SIGKILL at 50 moments each, for each of
`local`, `dask` (a cluster of processes), `store` (a folder that is used as a store) and `s3` (moto), if not said
otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from zoo_helpers import JOURNAL, answers, command, free_port, process, wait_for
from zoo_maker import make_zoo

import t7bridge

KINDS = ("local", "dask", "store", "s3")


@contextlib.contextmanager
def target(kind: str, folder: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The place of output folders and the options of a run, with the servers that it needs."""
    if kind in ("local", "store"):
        yield f"local://{folder}" if kind == "store" else str(folder), ("--workers", 2)
    elif kind == "dask":
        address = f"tcp://127.0.0.1:{free_port()}"
        worker = (sys.executable, "-m", "distributed.cli.dask_worker", address)
        alone = ("--nthreads", "1", "--no-nanny", "--no-dashboard")
        with (
            process(sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard"),
            process(*worker, *alone),
            process(*worker, *alone),
        ):
            yield str(folder), ("--engine", "dask", "--scheduler", address)
    else:
        url = f"http://127.0.0.1:{free_port()}"
        os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
        with process(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", url.rpartition(":")[2]):
            wait_for(lambda: answers(url))
            urllib.request.urlopen(urllib.request.Request(f"{url}/zoo", method="PUT")).close()
            yield "s3://zoo", ("--workers", 2)


def listed(system: Any, folder: str) -> list[str]:
    """The outputs in a folder."""
    system.invalidate_cache()
    with contextlib.suppress(FileNotFoundError):
        return [name for name in system.find(folder) if name.endswith((".pt", ".t7"))]
    return []


def contents(system: Any, folder: str) -> dict[str, str]:
    """The hash of every file of an output folder but the journal and what an interrupted upload has left."""
    system.invalidate_cache()
    return {
        name.removeprefix(folder): info.get("ETag") or hashlib.sha256(system.cat_file(name)).hexdigest()
        for name, info in system.find(folder, detail=True).items()
        if not name.endswith((JOURNAL, ".tmp"))
    }


def failures(kind: str, moments: int, seed: int, files: int = 60) -> tuple[list[str], Counter[str]]:
    """Interrupt runs at random moments and resume each; return what is wrong, and how far the runs had come.

    Every other moment is a random time after the start, the others are those of a random number of outputs.
    """
    rng = random.Random(f"{kind} {seed}")
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="zoo-") as name, target(kind, Path(name) / "out") as (prefix, options):
        zoo = Path(name) / "zoo"
        make_zoo(zoo, files, seed=seed)
        began = time.monotonic()
        subprocess.run(command(zoo, "-o", f"{prefix}/whole", *options), capture_output=True, timeout=600, check=False)
        span = time.monotonic() - began
        system, path = url_to_fs(f"{prefix}/whole")
        whole, most = contents(system, path), len(listed(system, path))
        for number in range(moments):
            for sign in (signal.SIGINT, signal.SIGKILL):
                output = f"{prefix}/{sign.name}-{number}"
                folder = url_to_fs(output)[1]
                moment, outputs = rng.uniform(0.0, span), rng.randrange(1, most)
                with process(*command(zoo, "-o", output, *options)) as run:
                    if number % 2:
                        time.sleep(moment)
                    else:
                        while run.poll() is None and len(listed(system, folder)) < outputs:
                            time.sleep(0.02)
                    ended = run.poll() is not None
                    run.send_signal(sign)
                    run.wait(600)
                found = len(listed(system, folder))
                seen["had ended" if ended else "with outputs" if found else "before the first output"] += 1
                label = f"{kind} {sign.name} {number}, {found} outputs"
                try:
                    report = t7bridge.convert_zoo(zoo, output, workers=0)
                except t7bridge.T7BridgeError as error:
                    wrong.append(f"{label}: {error}")
                    continue
                if any(row.kind == "TargetExistsError" for row in report.rows):
                    wrong.append(f"{label}: its own outputs are foreign")
                if report.counts["planned"] or contents(system, folder) != whole:
                    wrong.append(f"{label}: other files than those of a whole run")
    return wrong, seen


def main(moments: int = 50, seed: int = 1, *kinds: str) -> None:
    """Try all kinds of targets, and print what happened."""
    for kind in kinds or KINDS:
        began = time.monotonic()
        wrong, seen = failures(kind, moments, seed)
        print(
            f"{kind}: {2 * moments} runs interrupted and resumed ({dict(seen)}), {len(wrong)} wrong; "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        print("".join(f"   {each}\n" for each in wrong), end="", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
