"""Workers that die, hang or exhaust memory lose their file and nothing else; a killed run resumes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import PATIENCE, corpus
from zoo_helpers import command, process, tree, verdicts, wait_for, web_server, workers_of, zoo
from zoo_maker import greedy, make_zoo

import t7bridge
from t7bridge.errors import T7BridgeError
from t7bridge.io import MemoryWatch
from t7bridge.zoo import Record, Settings, convert_one
from t7bridge.zoo.journal import to_line
from t7bridge.zoo.workers import LocalEngine

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_same_result_as_in_this_process(tmp_path: Path, workers: int) -> None:
    """Worker processes produce the bytes and the reports of this process."""
    wanted = make_zoo(tmp_path / "zoo", 100)
    t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "here", workers=0)
    t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "there", workers=workers)

    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    assert verdicts(tmp_path / "there") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_dies(tmp_path: Path, number: signal.Signals) -> None:
    """A worker that dies loses the file that it worked on; those that were queued behind it are converted."""
    wanted = make_zoo(tmp_path / "zoo", 100)
    (tmp_path / "zoo/a/slow.t7").write_bytes(b"\3\0\0\0" + bytes(5000))
    with (
        web_server(tmp_path / "zoo", slow="slow.t7") as (url, waits),
        subprocess.Popen(
            command(f"{url}/", "-o", tmp_path / "out", "--workers", 1),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as run,
    ):
        assert waits.wait(PATIENCE)
        os.kill(wait_for(lambda: workers_of(run.pid))[0], number)
        assert run.wait(PATIENCE) == 1

    assert verdicts(tmp_path / "out") == {**wanted, "a/slow.t7": "failed"}
    assert f"ended with signal {number.name}" in (tmp_path / "out/report.csv").read_text()
    assert not list((tmp_path / "out").rglob("*.tmp"))


@pytest.mark.slow
def test_a_file_takes_too_long(tmp_path: Path) -> None:
    """A file that hangs is given up after the timeout, and the others are converted."""
    wanted = make_zoo(tmp_path / "zoo", 60)
    (tmp_path / "zoo/a/slow.t7").write_bytes(b"\3\0\0\0" + bytes(5000))
    with web_server(tmp_path / "zoo", slow="slow.t7") as (url, _):
        run = zoo(f"{url}/", "-o", tmp_path / "out", "--workers", 2, "--timeout", 10)

    assert run.returncode == 1
    assert "a/slow.t7: took longer than the 10 seconds of --timeout (Timeout)" in run.stderr
    assert verdicts(tmp_path / "out") == {**wanted, "a/slow.t7": "failed"}


@pytest.mark.slow
def test_a_file_takes_too_much_memory(tmp_path: Path) -> None:
    """A file that needs more memory than allowed fails, and its worker continues with the others."""
    wanted = make_zoo(tmp_path / "zoo", 60)
    greedy(tmp_path / "zoo/greedy.t7")
    report = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=1, memory=48 << 20)
    enough = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=1, memory=2 << 30, retry_failed=True)

    assert [row.kind for row in report.rows if row.name == "greedy.t7"] == ["OutOfMemory"]
    assert {row.name: row.status for row in report.rows} == {**wanted, "greedy.t7": "failed"}
    assert {row.name: row.status for row in enough.rows} == {**wanted, "greedy.t7": "done"}


STUCK = """
import os, sys, time
from t7bridge.io.platform import memory_limit
with memory_limit(32 << 20):
    held = []
    reserve = bytearray(1 << 18)  # for what Python needs to leave the loop; far less than is asked for below
    try:
        while True:
            held.append(bytearray(1 << 10))
    except MemoryError:
        del reserve
        print("full", flush=True)
    while True:  # as CPython does while it unwinds
        try:
            more = bytearray(3 << 20)
            break
        except MemoryError:
            pass
print("released", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes can be changed on Linux only")
def test_a_process_stuck_at_its_memory_limit_is_released() -> None:
    """A process that only tries to allocate again and again gets a little more memory than its limit, and goes on."""
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as run:
        watch = MemoryWatch(run.pid)
        assert run.stdout is not None
        assert run.stdout.readline() == "full\n"
        watch.raise_limit_if_stuck()
        assert run.poll() is None
        wait_for(lambda: watch.raise_limit_if_stuck() or run.poll() is not None)
        assert run.stdout.read() == "released\n"


@pytest.mark.slow
def test_killed_runs_go_on(tmp_path: Path) -> None:
    """Runs killed at any moment and restarted end with the result of one run, byte for byte."""
    make_zoo(tmp_path / "zoo", 400, large=2, large_bytes=4 << 20)
    t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "whole", workers=0)
    for pause in (0.15, 0.3, 0.45):
        with process(*command(tmp_path / "zoo", "-o", tmp_path / "out", "--workers", "2")) as run:
            time.sleep(pause)
            run.send_signal(signal.SIGKILL)
            run.wait()
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out/.t7bridge-0123456789abcdef.tmp").write_bytes(b"left over")
    last = zoo(tmp_path / "zoo", "-o", tmp_path / "out", "--workers", "2")

    assert last.returncode == 1
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_ended_leaves_nothing_half(tmp_path: Path) -> None:
    """A terminated run records its finished files, and removes incomplete ones."""
    make_zoo(tmp_path / "zoo", 60)
    (tmp_path / "zoo/a/slow.t7").write_bytes(b"\3\0\0\0" + bytes(5000))
    options = ("-o", tmp_path / "out", "--workers", "2")
    with web_server(tmp_path / "zoo", slow="slow.t7") as (url, waits):
        with process(*command(f"{url}/", *map(str, options))) as run:
            assert waits.wait(PATIENCE)
            wait_for(lambda: len(list((tmp_path / "out").rglob("*.pt"))) > 30)
            run.send_signal(signal.SIGTERM)
            assert run.wait(PATIENCE) == 128 + signal.SIGTERM
        left = [path.name for path in (tmp_path / "out").rglob("*.tmp")]
        again = zoo(f"{url}/", *options, "--dry-run")

    assert left == []
    done = int(again.stdout.splitlines()[-1].split()[4])
    assert 20 < done <= len(list((tmp_path / "out").rglob("*.pt")))


@pytest.mark.slow
def test_workers_end_with_their_run(tmp_path: Path) -> None:
    """No worker outlives the run that started it, even one that was killed."""
    make_zoo(tmp_path / "zoo", 20)
    (tmp_path / "zoo/a/slow.t7").write_bytes(b"\3\0\0\0" + bytes(5000))
    with web_server(tmp_path / "zoo", slow="slow.t7") as (url, waits):
        with process(*command(f"{url}/", "-o", tmp_path / "out", "--workers", "2")) as run:
            assert waits.wait(PATIENCE)
            found = workers_of(run.pid)
            run.send_signal(signal.SIGKILL)
            run.wait()

        def all_gone() -> bool:
            for pid in found:
                with contextlib.suppress(OSError):
                    if b"zoo.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return False
            return True

        assert len(found) == 2
        wait_for(all_gone)


def test_no_worker_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If workers end before they begin, the run ends with an error instead of retrying forever."""
    make_zoo(tmp_path / "zoo", 5)
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(T7BridgeError, match="cannot be started: it ended with exit code 1"):
        t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=2)


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_output_that_stays_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool) -> None:
    """A machine of a cluster flushes the new output, or the equal one of an interrupted run, which stays."""
    (source,) = corpus("nn/Bilinear.t7")
    output = tmp_path / "net.pt"
    t7bridge.convert(source, output)
    flushed: list[str] = []
    monkeypatch.setattr("t7bridge.zoo.workers.flush_to_disk", flushed.append)
    record = Record(name="net.t7", place=str(source), output="net.pt", ours=is_ours)

    convert_one(record, Settings(str(tmp_path), flush=True))
    assert (record.status, record.ours, flushed) == ("done", True, [str(output)])


@pytest.mark.slow
def test_a_late_file_that_is_finished_after_all_is_not_the_next_one(tmp_path: Path) -> None:
    """A worker that is killed for a slow file may have just finished it: its next file is given to another one."""
    engine = LocalEngine(Settings(folder=str(tmp_path)), workers=1, timeout=1e-9)
    slow, innocent = Record(number=1, name="slow.t7"), Record(number=2, name="innocent.t7")
    with contextlib.closing(engine):
        assert list(engine._outcomes_of(engine._answers.get(timeout=PATIENCE))) == []  # it is ready
        (worker,) = engine._workers
        worker.jobs.extend((slow, innocent))
        engine._watch(worker)
        line = to_line([Record(number=1, name="slow.t7", status="done")]).encode()
        assert [row.status for row in engine._outcomes_of((worker, [line])) if row is not None] == ["done"]
        assert list(engine._outcomes_of((worker, None))) == [None]
        assert list(engine._next_jobs) == [innocent]
        assert innocent.status == "planned"
