"""Large runs of bytes from file to file: right bytes, right CRC, one error, and nothing left running."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
import time
import zlib

import pytest
from helpers import PATIENCE

from t7bridge.errors import CorruptError, ModelError, TruncatedError, WriteError
from t7bridge.io import NO_CHANGE, Buffer, ByteSource, Change, Extent, FileOutput, combine, crc32, reversal
from t7bridge.io import copy as transfer
from t7bridge.io import output as disk


@pytest.fixture
def no_thread_left():
    """Threads started by a test end with it, or shortly after."""
    before, end = set(threading.enumerate()), time.monotonic() + PATIENCE
    yield
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < end, left
        time.sleep(0.01)


@pytest.fixture
def small_pieces(monkeypatch, no_thread_left):
    """Pieces of a few kilobytes, so that small files go by several threads."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", 4096)
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1000)
    monkeypatch.setattr("t7bridge.io.output.WORTH_BYTES", 8192)


@pytest.mark.parametrize("lengths", [(0, 0), (1, 0), (0, 1), (5, 70_001), (123_457, 3)])
def test_combined_crc(lengths):
    """The CRC-32 of two consecutive runs is combined correctly; the fast function is zlib's."""
    first, second = (random.Random(length).randbytes(length) for length in lengths)
    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
    assert crc32(second, crc32(first)) == zlib.crc32(first + second)


@pytest.mark.parametrize("word", [2, 4, 8])
@pytest.mark.parametrize("length", [16, 8192, 50_000, 1_000_008])
def test_reversed_words(tmp_path, small_pieces, word, length):
    """The bytes of each word are reversed wherever the run begins in both files; the CRC is that of the result."""
    data = random.Random(1).randbytes(length + 77)
    (tmp_path / "in").write_bytes(data)
    wanted = b"".join(data[at : at + word][::-1] for at in range(77, 77 + length, word))
    found: list[int] = []
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        output.write(b"before!")
        output.copy(Extent(source, 77, length, reversal(word)), found.append)
        output.write(b"behind")
    assert (tmp_path / "out").read_bytes() == b"before!" + wanted + b"behind"
    assert found == [zlib.crc32(wanted)]


@pytest.mark.parametrize("length", [8192, 50_000, 1_000_003])
@pytest.mark.parametrize("times", [1, 2, 7])
def test_bytes_and_crc(tmp_path, small_pieces, length, times):
    """Copies between other writes are at the right positions, with zlib's CRC-32."""
    data = random.Random(1).randbytes(length + 77)
    (tmp_path / "in").write_bytes(data)
    found: list[int] = []
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        for _ in range(times):
            output.write(b"before")
            output.copy(Extent(source, 77, length), found.append)
            output.write(b"behind")
        assert output.position == times * (length + 12)
        output.put(1, b"EFO")
    assert (tmp_path / "out").read_bytes() == b"b" + ((b"before" + data[77:] + b"behind") * times)[1:].replace(
        b"efo", b"EFO", 1
    )
    assert found == [zlib.crc32(data[77:])] * times


def test_waiting_twice(tmp_path, small_pieces):
    """Copies added after a wait complete with the next one."""
    (tmp_path / "in").write_bytes(data := random.Random(2).randbytes(100_000))
    found: list[int] = []
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        for _ in range(3):
            output.copy(Extent(source, 0, 100_000), found.append)
            output.wait()
            assert found.pop() == zlib.crc32(data)
            assert not found
    assert (tmp_path / "out").read_bytes() == data * 3


def test_mistake_in_a_thread(tmp_path, small_pieces, monkeypatch):
    """Any error in a helper thread is raised."""
    (tmp_path / "in").write_bytes(bytes(1_000_000))
    original, main = transfer.write_at, threading.main_thread()

    def write_at(*arguments):
        if threading.current_thread() is not main:
            raise MemoryError
        original(*arguments)

    monkeypatch.setattr(transfer, "write_at", write_at)

    def copy() -> None:
        with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
            for _ in range(100):
                output.copy(Extent(source, 0, 1_000_000))

    with pytest.raises(MemoryError):
        copy()
    assert os.listdir(tmp_path) == ["in"]


def test_given_up(tmp_path, small_pieces):
    """An error elsewhere ends the threads before the file is taken away."""
    (tmp_path / "in").write_bytes(bytes(10_000_000))

    def copy() -> None:
        with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
            output.copy(Extent(source, 0, 10_000_000))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        copy()
    assert os.listdir(tmp_path) == ["in"]


def test_source_that_became_shorter(tmp_path, small_pieces):
    """One error, no file, and no thread left."""
    (tmp_path / "in").write_bytes(bytes(100_000))
    source = ByteSource.from_path(tmp_path / "in")
    os.truncate(tmp_path / "in", 60_000)
    with pytest.raises(TruncatedError, match="became shorter"), FileOutput(tmp_path / "out") as output:
        output.copy(Extent(source, 0, 100_000))
    assert os.listdir(tmp_path) == ["in"]


def test_target_that_takes_no_more(tmp_path, small_pieces, monkeypatch):
    """An error while writing is the same from any thread."""
    (tmp_path / "in").write_bytes(bytes(100_000))

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer.os, "pwrite", refuse)
    with (
        pytest.raises(WriteError, match="No space left"),
        ByteSource.from_path(tmp_path / "in") as source,
        FileOutput(tmp_path / "out") as output,
    ):
        output.copy(Extent(source, 0, 100_000))
    assert os.listdir(tmp_path) == ["in"]


def test_without_preallocation(tmp_path, small_pieces, monkeypatch):
    """A file system that cannot preallocate results in the same bytes."""

    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(disk.os, "posix_fallocate", refuse)
    (tmp_path / "in").write_bytes(bytes(range(256)) * 400)
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        output.copy(Extent(source, 0, 102_400))
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


def test_file_that_is_replaced_is_never_at_risk(tmp_path, monkeypatch):
    """The new file is on the disk before the rename, with or without sync, and the name before the call returns."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: events.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file") or fsync(fd)
    )
    monkeypatch.setattr(os, "replace", lambda *names: events.append("replace") or replace(*names))
    for _ in range(2):
        with FileOutput(tmp_path / "out", force=True) as output:
            output.write(b"data")
    assert events == ["replace", "file", "replace", "folder"]


def test_platform_without_preallocation(tmp_path, small_pieces, monkeypatch):
    """A platform without the call results in the same bytes."""
    monkeypatch.setattr(disk, "CAN_RESERVE", False)
    monkeypatch.delattr(disk.os, "posix_fallocate", raising=False)
    (tmp_path / "in").write_bytes(bytes(range(256)) * 400)
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        output.copy(Extent(source, 0, 102_400))
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


def test_preallocation_that_is_imitated(tmp_path, small_pieces, monkeypatch):
    """If the C library writes a byte to each block instead, it is called once, for little, and not again."""
    asked: list[int] = []

    def imitate(fd, start, size):
        asked.append(size)
        for position in range(start, start + size, 4096):
            os.pwrite(fd, b"\0", position)
        os.pwrite(fd, b"\0", start + size - 1)

    monkeypatch.setattr(disk.os, "posix_fallocate", imitate, raising=False)
    data = random.Random(3).randbytes(700_000)
    (tmp_path / "in").write_bytes(data)
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        for _ in range(3):
            output.write(b"head")
            output.copy(Extent(source, 0, 700_000))
    assert (tmp_path / "out").read_bytes() == (b"head" + data) * 3
    assert asked == [1 << 16]


@pytest.mark.skipif(not disk.CAN_RESERVE, reason="the platform has no such call")
def test_preallocation(tmp_path):
    """Blocks are allocated for the first bytes and those after them, and the write position is unchanged."""
    with open(tmp_path / "out", "wb", buffering=0) as file:
        file.write(b"data")
        found = disk.Blocks(file.fileno())
        for size in (300_000, 2_000_000):
            found.reserve(4, size)
        assert file.tell() == 4
        assert os.fstat(file.fileno()).st_size in (4, 2_000_004)  # as it was where the file system cannot


def test_every_block_of_a_large_file_is_found_first(tmp_path, small_pieces, monkeypatch):
    """Headers and tails too."""
    reserved: list[tuple[int, int]] = []
    monkeypatch.setattr(
        disk.os, "posix_fallocate", lambda fd, start, size: reserved.append((start, start + size)), raising=False
    )
    (tmp_path / "in").write_bytes(bytes(500_000))
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        for size in (1700, 10, 300_000):
            output.write(bytes(size))
            output.copy(Extent(source, 0, 500_000))
        output.copy(Extent(source, 0, 50))
        output.write(bytes(3000))
    end = 0
    for start, stop in sorted(reserved):
        assert start <= end
        end = max(end, stop)
    assert end == os.path.getsize(tmp_path / "out") == output.position


def test_small_files_need_no_blocks_first(tmp_path, monkeypatch):
    """For many small files the call would cost more than it saves."""
    reserved: list[int] = []
    monkeypatch.setattr(disk.os, "posix_fallocate", lambda *arguments: reserved.append(1), raising=False)
    (tmp_path / "in").write_bytes(bytes(5000))
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        output.write(bytes(1000))
        output.copy(Extent(source, 0, 5000))
    assert not reserved


def test_pieces_begin_where_large_pages_of_the_target_do(tmp_path, small_pieces, monkeypatch):
    """Wherever a run starts, all but its first chunk are written from multiples of a chunk's size on."""
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1024)
    positions: list[int] = []
    original = transfer.write_at
    monkeypatch.setattr(
        transfer,
        "write_at",
        lambda fd, data, position, name: positions.append(position) or original(fd, data, position, name),
    )
    (tmp_path / "in").write_bytes(bytes(50_000))
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        output.write(bytes(1664))
        output.copy(Extent(source, 0, 50_000))
    assert sorted(positions) == [1664, *range(2048, 51_664, 1024)]


@pytest.mark.parametrize(("sync", "times"), [(False, 0), (True, 2)])
def test_waits_for_the_disk_when_asked(tmp_path, monkeypatch, sync, times):
    """With `sync` the file and its folder are on the disk before the name counts; a new file is else the system's."""
    synced = []
    original = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or original(fd))
    with FileOutput(tmp_path / "out", sync=sync) as output:
        output.write(b"data")
    assert len(synced) == times


def test_many_small_runs_are_written_together(tmp_path, monkeypatch):
    """Neither a write nor a search for blocks for each of thousands of small storages."""
    reserved: list[int] = []
    monkeypatch.setattr(disk.os, "posix_fallocate", lambda *arguments: reserved.append(1), raising=False)
    data = random.Random(2).randbytes(1000)
    (tmp_path / "in").write_bytes(data)
    found: list[int] = []
    with ByteSource.from_path(tmp_path / "in") as source, FileOutput(tmp_path / "out") as output:
        for _ in range(5000):
            output.write(b"head")
            output.copy(Extent(source, 0, 1000), found.append)
        assert output.position == 5000 * 1004
    assert (tmp_path / "out").read_bytes() == (b"head" + data) * 5000
    assert found == [zlib.crc32(data)] * 5000
    assert len(reserved) < 30


@pytest.mark.slow
@pytest.mark.parametrize("length", [16, 8192, 50_000, 1_000_008])
@pytest.mark.parametrize("in_memory", [False, True])
def test_change_of_size(tmp_path, small_pieces, length, in_memory):
    """Elements may become smaller or larger in a copy; both CRCs are zlib's, whichever thread copies the bytes."""
    data = random.Random(1).randbytes(length + 77)
    (tmp_path / "in").write_bytes(data)
    taken = data[77 : 77 + length]
    smaller = b"".join(taken[at : at + 4] for at in range(0, length, 8))
    larger = b"".join(taken[at : at + 2] * 2 for at in range(0, length, 2))

    class Halving(Buffer):
        """Keeps the first four of eight bytes."""

        def __init__(self):
            self.view = memoryview(bytearray(1000))

        def changed(self, length):
            return memoryview(b"".join(bytes(self.view[at : at + 4]) for at in range(0, length, 8)))

    class Doubling(Halving):
        """Writes two bytes twice."""

        def changed(self, length):
            return memoryview(b"".join(bytes(self.view[at : at + 2]) * 2 for at in range(0, length, 2)))

    crcs: list[int] = []
    of_source: list[int] = []
    with ByteSource.from_path(tmp_path / "in") as file, FileOutput(tmp_path / "out") as output:
        source = ByteSource.from_bytes(data) if in_memory else file
        output.write(b"before!")
        output.copy(Extent(source, 77, length, Change(8, 4, Halving), of_source.append), crcs.append)
        output.write(b"between")
        output.copy(Extent(source, 77, length, Change(2, 4, Doubling)), crcs.append)
        output.write(b"behind")
        assert output.position == 7 + len(smaller) + 7 + len(larger) + 6
    assert (tmp_path / "out").read_bytes() == b"before!" + smaller + b"between" + larger + b"behind"
    assert crcs == [zlib.crc32(smaller), zlib.crc32(larger)]
    assert of_source == [zlib.crc32(taken)]


@pytest.mark.parametrize("length", [800, 500_000])
def test_change_that_the_target_cannot_hold(tmp_path, small_pieces, length):
    """The error names the target, and no file is left."""
    (tmp_path / "in").write_bytes(bytes(length))

    class Refusing(Buffer):
        """Refuses every number."""

        def changed(self, length):
            raise ModelError("a number is too large", expected="at most 3", found="4", hint="Take less.")

    with (
        pytest.raises(WriteError, match=r"out: a number is too large; expected at most 3; found 4\. Take less\."),
        ByteSource.from_path(tmp_path / "in") as source,
        FileOutput(tmp_path / "out") as output,
    ):
        output.copy(Extent(source, 0, length, Change(8, 4, Refusing)))
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("length", [800, 500_000])
@pytest.mark.parametrize("change", [NO_CHANGE, reversal(4)])
def test_wrong_crc_of_a_source(tmp_path, small_pieces, length, change):
    """The check of the source's CRC-32 is called before the rename, and may refuse."""
    data = random.Random(4).randbytes(length)
    (tmp_path / "in").write_bytes(data)

    def check(crc: int) -> None:
        assert crc == zlib.crc32(data)
        raise CorruptError("damaged")

    with (
        pytest.raises(CorruptError, match="damaged"),
        ByteSource.from_path(tmp_path / "in") as source,
        FileOutput(tmp_path / "out") as output,
    ):
        output.copy(Extent(source, 0, length, change, check))
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.skipif(transfer.cores() < 2, reason="one processor has no helper")
def test_helpers_load_nothing(tmp_path):
    """All that copying needs is loaded before a thread starts: Ctrl-C may stop a load that a thread waits for."""
    code = f"""
import threading
from t7bridge.io import ByteSource, Extent, FileOutput
from t7bridge.io import copy

begun = threading.Thread.start
def start(thread):
    assert copy._fast_crc32.cache_info().currsize
    begun(thread)
threading.Thread.start = start

with ByteSource.from_path({str(tmp_path / "in")!r}) as source, FileOutput({str(tmp_path / "out")!r}) as output:
    output.copy(Extent(source, 0, {1 << 24}), print)
"""
    with open(tmp_path / "in", "wb") as file:
        file.truncate(1 << 24)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == f"{zlib.crc32(bytes(1 << 24))}\n", run.stderr
