"""Output under real conditions: full disks, limits, signals, permissions, files that change or vanish under us.

Each of them ends in one clear error, no half file under the target's name, and no temporary file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import PATIENCE, TESTFILES

import t7bridge
from t7bridge import cli
from t7bridge.errors import T7BridgeError, TargetExistsError, WriteError

COMMAND = [sys.executable, "-m", "t7bridge"]
SMALL, MODEL = TESTFILES / "format/checkpoint.t7", TESTFILES / "models/resnet_small.t7"


def large(path: Path, count: int = 1 << 24) -> Path:
    """A `.t7` with a FloatTensor of so many zeros; the file is sparse."""
    head = struct.pack("<iii3si17s", 4, 1, 3, b"V 1", 17, b"torch.FloatTensor") + struct.pack("<iqqq", 1, count, 1, 1)
    head += struct.pack("<iii3si18s", 4, 2, 3, b"V 1", 18, b"torch.FloatStorage") + struct.pack("<q", count)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * count)
    return path


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own."""
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def refused(found: subprocess.CompletedProcess[str], words: str) -> None:
    """The run failed with one line that has the words."""
    assert found.returncode == 2
    assert words in found.stderr
    assert found.stderr.startswith("t7bridge: error: ")
    assert len(found.stderr.splitlines()) == 1
    assert found.stdout == ""


def limited(size: int) -> dict[str, object]:
    """Options of a child process with a limit on the size of files, before anything else.

    It must not store what Python compiles: Python before 3.13 keeps a file of which it could write a part.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return {"preexec_fn": limit, "env": {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}}


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, 65 << 20])
@pytest.mark.parametrize("suffix", ["pt", "t7"])
def test_limit_on_the_size_of_files(size, suffix, tmp_path):
    """Wherever the limit of the system is met, in the head or in the weights, nothing is left."""
    source = large(tmp_path / "x.t7", 17 << 20)
    found = run("convert", source, tmp_path / f"y.{suffix}", **limited(size))
    refused(found, "cannot be written: File too large")
    assert os.listdir(tmp_path) == ["x.t7"]


@pytest.mark.slow
def test_limit_in_both_files_of_a_module(tmp_path):
    """A module is two files: where one cannot be written, neither is there."""
    found = run("module", MODEL, "-o", tmp_path / "m", **limited(2000))
    refused(found, "cannot be written: File too large")
    assert not (tmp_path / "m").exists()


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs rights that are not there")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt", "t7"])
@pytest.mark.parametrize("count", [300_000, 4_000_000, 17_000_000])
def test_full_disk(suffix, count, tiny_disk, tmp_path):
    """A disk that is full before the end: one error, and all of its space is free again."""
    source = large(tmp_path / "x.t7", count)
    refused(run("convert", source, tiny_disk / f"y.{suffix}"), "cannot be written: No space left on device")
    assert os.listdir(tiny_disk) == []
    status = os.statvfs(tiny_disk)
    assert status.f_bfree == status.f_blocks
    assert run("convert", SMALL, tiny_disk / "small.pt", "--sync").returncode == 0


def test_disk_without_room_for_a_name(tiny_disk, tmp_path):
    """A disk that is full already: the error is the same, and the old file is what it was."""
    (tiny_disk / "old.pt").write_bytes(b"old")
    with open(tiny_disk / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    refused(run("convert", SMALL, tiny_disk / "old.pt", "--force"), "No space left on device")
    assert (tiny_disk / "old.pt").read_bytes() == b"old"
    assert sorted(os.listdir(tiny_disk)) == ["filling", "old.pt"]


def test_read_only_disk(tiny_disk):
    """A disk that accepts nothing."""
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    refused(run("convert", SMALL, tiny_disk / "y.pt"), "cannot be written: Read-only file system")


def as_nobody(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder, run by a user without rights; what it imports is loaded before."""
    log = folder.parent / "log"
    with open(log, "w+") as file:
        child = os.fork()
        if not child:
            code = 99
            try:
                os.chdir(folder)
                os.dup2(file.fileno(), 2)
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                sys.stderr = os.fdopen(2, "w", closefd=False)
                code = cli.main(arguments)
                sys.stderr.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(status), "", log.read_text())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("case", ["folder without rights", "unreadable input", "file of somebody else"])
def test_permission_denied(case, tmp_path):
    """A folder without write permission, a file without read permission, a foreign file in a shared folder."""
    cli.main(["convert", str(SMALL), str(tmp_path / "loaded.pt")])
    (work := tmp_path / "work").mkdir()
    shutil.copy(SMALL, work / "x.t7")
    (work / "x.t7").chmod(0o600 if case == "unreadable input" else 0o644)
    (work / "old.pt").write_bytes(b"old")
    work.chmod({"folder without rights": 0o755, "unreadable input": 0o777, "file of somebody else": 0o1777}[case])
    found = as_nobody(work, "convert", "x.t7", "old.pt", "--force")
    refused(found, "Operation not permitted" if case == "file of somebody else" else "Permission denied")
    assert (work / "old.pt").read_bytes() == b"old"
    assert sorted(os.listdir(work)) == ["old.pt", "x.t7"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_at_random_moments(number, tmp_path):
    """Whenever a signal comes, the target is whole or not there, and nothing else is there."""
    source = large(tmp_path / "x.t7", 1 << 23)
    times = [time.monotonic()]
    for _ in range(3):
        run("convert", source, tmp_path / "whole.pt", "--force")
        times.append(time.monotonic())
    lasts = min(end - begin for begin, end in itertools.pairwise(times))
    whole = (tmp_path / "whole.pt").stat().st_size
    (tmp_path / "whole.pt").unlink()
    choose = random.Random(int(number))
    stopped = 0
    for turn in range(8):
        target = tmp_path / f"{turn}.pt"
        command = [*COMMAND, "convert", str(source), str(target)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(choose.uniform(0, lasts))
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
        stopped += process.returncode != 0
        assert not target.exists() or target.stat().st_size == whole
        # A signal that comes while Python itself starts ends it in Python's own way, before there is any file.
        assert process.returncode in (0, 128 + number, -number, 1)
        python_says = "Traceback" in errors or "Fatal Python error: init_" in errors
        assert process.returncode != 1 or python_says
        assert not list(tmp_path.glob(".t7bridge-*"))
        target.unlink(missing_ok=True)
    assert stopped


def test_kill_leaves_no_half_file(tmp_path):
    """SIGKILL, which nothing can catch, leaves a temporary file at most, never one under the target's name."""
    source = large(tmp_path / "x.t7", 1 << 26)
    process = subprocess.Popen([*COMMAND, "convert", source, tmp_path / "y.pt"], stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob(".t7bridge-*")) and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait(PATIENCE)
    assert not (tmp_path / "y.pt").exists()
    left = [path.name for path in tmp_path.iterdir() if path.name != "x.t7"]
    assert all(name.startswith(".t7bridge-") and name.endswith(".tmp") for name in left)


class Slowly:
    """Does something to the files while a conversion runs, again and again until it is over."""

    def __init__(self, action) -> None:
        self._stop = threading.Event()
        self._action = action
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._action()
            time.sleep(0.001)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def test_source_cut_under_us(tmp_path):
    """A source that becomes shorter after its structure was read is an error that says so."""
    source = large(tmp_path / "x.t7", 1 << 22)
    value = t7bridge.load(source)
    os.truncate(source, 1 << 20)
    with pytest.raises(T7BridgeError, match="became shorter"):
        t7bridge.save(value, tmp_path / "y.pt")
    assert os.listdir(tmp_path) == ["x.t7"]


def test_source_cut_while_it_is_converted(tmp_path):
    """At whatever moment a source is cut, the result is whole or an error, never a shorter file."""
    for turn in range(6):
        source, target = large(tmp_path / "x.t7", 1 << 23), tmp_path / "y.pt"
        length = source.stat().st_size
        cut = threading.Timer(0.001 * turn * turn, os.truncate, (source, length // 2))
        cut.start()
        try:
            outcome = str(t7bridge.convert(source, target).target_bytes)
        except T7BridgeError as error:
            outcome = str(error)
        cut.join()
        assert (
            (target.exists() and target.stat().st_size == int(outcome) > length)
            if outcome.isdigit()
            else (str(source) in outcome and not target.exists())
        )
        target.unlink(missing_ok=True)
        assert not list(tmp_path.glob(".t7bridge-*"))


def test_source_replaced_under_us(tmp_path):
    """A source that is replaced or removed meanwhile is read to its end unchanged: it was open."""
    source, target = large(tmp_path / "x.t7", 1 << 23), tmp_path / "y.pt"
    wanted = t7bridge.convert(source, tmp_path / "wanted.pt")

    def replace() -> None:
        (tmp_path / "other").write_bytes(b"something else")
        os.replace(tmp_path / "other", source)

    value = t7bridge.load(source)
    replace()
    t7bridge.save(value, target)
    assert target.stat().st_size > 4 << 23
    assert wanted.target_bytes > 4 << 23
    source.unlink()
    t7bridge.save(value, target, force=True)
    assert t7bridge.load(target).numel == 1 << 23


def test_folder_removed_meanwhile(tmp_path):
    """A target folder that vanishes is an error with the target's name."""
    folder = tmp_path / "out"
    source = large(tmp_path / "x.t7", 1 << 23)
    value = t7bridge.load(source)
    folder.mkdir()

    def save() -> None:
        for _ in range(50):  # the folder may be away before the first byte, or after the last
            t7bridge.save(value, folder / "y.pt", force=True)
            time.sleep(0.01)

    with (
        Slowly(lambda: shutil.rmtree(folder, ignore_errors=True)),
        pytest.raises(WriteError, match=r"out/y\.pt: cannot"),
    ):
        save()
    assert not folder.exists()


@pytest.mark.slow
def test_target_made_by_another_meanwhile(tmp_path):
    """Two runs with one target: the first to end has it, the other reports it, and both files are never mixed."""
    sources = [large(tmp_path / f"{number}.t7", (1 << 22) + number) for number in range(4)]
    processes = [
        subprocess.Popen(
            [*COMMAND, "convert", source, tmp_path / "y.pt"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for source in sources
    ]
    errors = [process.communicate(timeout=PATIENCE)[1].decode() for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2, 2, 2]
    assert all("exists already" in error for error, code in zip(errors, codes) if code)
    assert t7bridge.load(tmp_path / "y.pt").numel == (1 << 22) + codes.index(0)
    assert not list(tmp_path.glob(".t7bridge-*"))


@pytest.mark.slow
def test_force_replaces_as_a_whole(tmp_path):
    """Whoever reads a target that is replaced again and again sees one whole file or the other."""
    target = tmp_path / "y.t7"
    values = [t7bridge.load(large(tmp_path / f"{number}.t7", 100_000 + number)) for number in range(2)]
    t7bridge.save(values[0], target)
    replaced = 0

    def replace() -> None:
        nonlocal replaced
        t7bridge.save(values[replaced % 2], target, force=True)
        replaced += 1

    end = time.monotonic() + PATIENCE
    with Slowly(replace):
        while replaced < 50 and time.monotonic() < end:
            assert t7bridge.load(target.read_bytes()).numel in (100_000, 100_001)
    assert replaced >= 50


def test_its_own_input(tmp_path):
    """A file is never converted onto itself, under whatever name."""
    shutil.copy(SMALL, tmp_path / "x.t7")
    os.link(tmp_path / "x.t7", tmp_path / "hard.t7")
    (tmp_path / "soft.t7").symlink_to("x.t7")
    for name in ("x.t7", "hard.t7", "soft.t7"):
        with pytest.raises(TargetExistsError, match="is the input file itself"):
            t7bridge.convert(tmp_path / "x.t7", tmp_path / name, force=True)
    assert (tmp_path / "x.t7").read_bytes() == SMALL.read_bytes()


@pytest.mark.parametrize("sync", [False, True])
def test_sync(sync, tmp_path, monkeypatch):
    """`sync` waits for the file before it takes its name, and for the folder after it; otherwise nothing waits."""
    done: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        done.append(("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file") + str((tmp_path / "y.pt").exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    t7bridge.convert(SMALL, tmp_path / "y.pt", sync=sync)
    assert done == (["fileFalse", "folderTrue"] if sync else [])
