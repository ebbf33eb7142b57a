"""Mutated files in the default run: a fixed number with a fixed seed. `fuzz/run.py` runs as many as one likes."""

from __future__ import annotations

import random
import subprocess
import sys

import fuzz_modules
import pytest
from bounds import bounded
from fuzz_mutate import mutate
from fuzz_targets import TARGETS, seeds
from helpers import ROOT, TESTFILES, read
from runtime_helpers import as_torch

INPUTS = 300


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_mutations(name):
    """Only errors of the package escape, in time; what is accepted is the same after writing and reading it."""
    target, starts, choose = TARGETS[name], seeds(name), random.Random(f"{name} 20261121")
    accepted = sum(map(target, starts))
    assert accepted, "the seeds themselves are sound files"
    for number in range(INPUTS):
        data = mutate(choose.choice(starts), choose.choice(starts), choose)
        with bounded():
            try:
                accepted += target(data)
            except Exception as error:
                raise AssertionError(f"input {number} of {name}, {len(data)} bytes") from error
    assert accepted < INPUTS + len(starts), "some inputs are damaged"


@pytest.mark.slow
def test_memory():
    """A process that reads mutated files of every reader needs little more memory than one that reads sound ones."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "fuzz" / "run.py"), "all", "--count", "50", "--seed", "3"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(" 0 findings") == len(TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [b"\x8f", b"}", b"]", b")\x85", b"(", b"\x8f\x94", b"ccollections\nOrderedDict\nq\0" + b"h\0)R"]
)
def test_memory_of_empty_containers(seed):
    """A pickle of a megabyte of empty containers is refused, or costs no more than promised."""
    head, _, repeated = seed.rpartition(b"q\0")
    head = head + b"q\0" if head else b""
    code = (
        "import resource, sys; from t7bridge.errors import T7BridgeError\n"
        "from t7bridge import PtReader\n"
        f"data = b'\\x80\\x04' + {head!r} + {repeated!r} * (1_000_000 // {len(repeated)}) + b'.'\n"
        "PtReader(b'\\x80\\x02}.').read()\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: PtReader(data).read()\n"
        "except T7BridgeError: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) * 1024 <= 8 * 1_000_000 + (64 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("pickles", 1000), ("archives", 100)])
def test_referees_agree(name, count):
    """Inputs accepted both by ours and by CPython's unpickler, or PyTorch's safe loader, have one value."""
    command = [sys.executable, str(ROOT / "fuzz" / "differential.py"), name, "--count", str(count), "--seed", "5"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert "'both'" in run.stdout


@pytest.mark.slow
def test_modules_and_their_source_agree(tmp_path, capsys):
    """A module with changed options is refused, or its live module and its model.py compute the same."""
    code = fuzz_modules.main(["--count", "150", "--seed", "5", "--findings", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "'same'" in printed


@pytest.mark.slow
def test_modules_that_once_differed_agree():
    """Dimensions beyond an example's, lists where tensors belong, and sums of other shapes."""
    cases = read(TESTFILES / "found_modules.t7").as_list()
    found = [fuzz_modules.verdict(case["model"], as_torch(case["input"])) for case in cases]
    assert set(found) == {"same", "neither runs"}
    assert len(found) >= 10
