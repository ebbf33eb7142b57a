"""A large zoo, killed five times at random, and timed with one worker and two. Not part of the test run.

`python tests/zoo_acceptance.py [SMALL [LARGE [FOLDER]]]`: 10 000 small files and 20 of 64 MiB if not said otherwise.
Nothing is removed between the timed runs: ext4 is slow to make files where others have just been removed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from zoo_helpers import command, process, tree, verdicts
from zoo_maker import make_zoo


def timed(zoo: Path, output: Path, workers: int) -> float:
    """Return the seconds of a run, as a user would measure them."""
    began = time.perf_counter()
    subprocess.run(command(zoo, "-o", output, "--workers", workers), capture_output=True, check=False)
    return time.perf_counter() - began


def killed_five_times(zoo: Path, output: Path, span: float) -> None:
    """Runs that are killed, and one that is not."""
    for _ in range(5):
        with process(*command(zoo, "-o", output, "--workers", "2")) as run:
            time.sleep(random.uniform(0.3, span))
            ended = run.poll() is not None
            run.send_signal(signal.SIGKILL)
            run.wait()
        print("  ended by itself" if ended else "  killed", sum(path.is_file() for path in output.rglob("*")), "files")
    subprocess.run(command(zoo, "-o", output, "--workers", "2"), capture_output=True, check=False)


def main(small: int = 10_000, large: int = 20, folder: str = "") -> None:
    """Make the zoo, and try everything."""
    place = Path(folder or tempfile.mkdtemp(prefix="zoo-acceptance-"))
    wanted = make_zoo(place / "zoo", small, large)
    seconds = timed(place / "zoo", place / "whole", 2)
    found = verdicts(place / "whole")
    wrong = [name for name in wanted if found.get(name) != wanted[name]]
    print(f"{len(wanted)} files in {seconds:.1f} s; wrong verdicts: {len(wrong)} {wrong[:5]}")
    killed_five_times(place / "zoo", place / "killed", seconds / 2)
    print("after five kills:", "the same bytes" if tree(place / "killed") == tree(place / "whole") else "OTHER BYTES")

    make_zoo(place / "small", small)
    times: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for turn in range(3):
        for workers, taken in times.items():
            os.sync()
            taken.append(timed(place / "small", place / f"timed-{workers}-{turn}", workers))
    for workers, taken in times.items():
        shown = ", ".join(f"{each:.2f}" for each in taken)
        print(f"{workers} workers: {shown} s; at best {small / min(taken):.0f} files a second")
    print(f"two workers are {min(times[1]) / min(times[2]):.2f} times as fast as one; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
