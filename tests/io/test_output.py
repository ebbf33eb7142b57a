"""Output that appears whole or not at all."""

from __future__ import annotations

import io
import os
import resource
import signal
import zlib

import pytest

from t7bridge.errors import TargetExistsError, TruncatedError, WriteError
from t7bridge.io import ByteSource, Extent, FileOutput, Output

CHUNK_BYTES = 1 << 20
"""More than is copied at a time."""


def names(folder) -> list[str]:
    """Return the content of a folder."""
    return sorted(os.listdir(folder))


def fail_half_way(output: FileOutput, error) -> None:
    """Write something, then fail."""
    with output:
        output.write(b"half")
        output.flush()
        raise error


def test_output_counts_and_keeps_order():
    """Small and large pieces arrive in order, and the position counts them before they are handed on."""
    file = io.BytesIO()
    output = Output(file, "here")
    pieces = [b"a" * 10, b"b" * 300_000, bytearray(b"c"), memoryview(b"d" * 5)]
    for piece in pieces:
        output.write(piece)
    assert output.position == 300_016
    output.flush()
    assert file.getvalue() == b"".join(bytes(piece) for piece in pieces)
    assert output.position == 300_016


def test_file_that_takes_little_at_a_time():
    """A file object that writes fewer bytes than it is given is given the rest."""

    class Slow(io.RawIOBase):
        data = b""

        def write(self, data):
            self.data += bytes(data[:7])
            return min(7, len(data))

    slow = Slow()
    output = Output(slow)
    output.write(b"0123456789" * 10)
    output.flush()
    assert slow.data == b"0123456789" * 10


def test_full_disk():
    """The error of a failed write has the system's reason, the file and the byte."""

    class Full(io.RawIOBase):
        def write(self, data):
            raise OSError(28, "No space left on device")

    output = Output(Full(), "weights.pt")
    output.write(b"x")
    with pytest.raises(WriteError, match=r"weights\.pt: byte 0: cannot be written: No space left on device"):
        output.flush()


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_copy(length, tmp_path):
    """Bytes of a file and of memory are copied in order, with their CRC-32 where it is asked for."""
    data = os.urandom(length + 20)
    path = tmp_path / "in"
    path.write_bytes(data)
    for source in (ByteSource.from_path(path), ByteSource.from_bytes(data)):
        file = io.BytesIO()
        output = Output(file)
        output.write(b"head")
        found: list[int] = []
        output.copy(Extent(source, 10, length), found.append)
        output.write(b"tail")
        output.flush()
        assert file.getvalue() == b"head" + data[10 : 10 + length] + b"tail"
        assert found == [zlib.crc32(data[10 : 10 + length])]
        assert output.position == length + 8


def test_copy_of_a_file_that_became_shorter(tmp_path):
    """A file that is cut while it is copied is an error with its name, and the target does not appear."""
    path = tmp_path / "in"
    path.write_bytes(bytes(3 * CHUNK_BYTES))
    source = ByteSource.from_path(path)
    os.truncate(path, CHUNK_BYTES + 7)
    with (
        pytest.raises(TruncatedError, match=r"in: byte 1,048,576: became shorter"),
        FileOutput(tmp_path / "out") as out,
    ):
        out.copy(Extent(source, 0, 3 * CHUNK_BYTES))
    assert names(tmp_path) == ["in"]


def test_file_appears_when_it_is_complete(tmp_path):
    """The target is not there while it is written, then it is, whole, with the rights of any new file."""
    path = tmp_path / "out.t7"
    with FileOutput(path) as output:
        output.write(b"abc")
        output.flush()
        assert "out.t7" not in names(tmp_path)
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == ["out.t7"]
    assert path.read_bytes() == b"abc"
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_nothing(error, tmp_path):
    """However writing ends, neither the target nor a temporary file is left."""
    with pytest.raises(error):
        fail_half_way(FileOutput(tmp_path / "out.t7"), error)
    assert names(tmp_path) == []


def test_failure_keeps_the_old_file(tmp_path):
    """A failed overwrite leaves the old file unchanged."""
    path = tmp_path / "out.t7"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="stop"):
        fail_half_way(FileOutput(path, force=True), ValueError("stop"))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["out.t7"]


def test_existing_target(tmp_path):
    """An existing file is overwritten only where that is asked for."""
    path = tmp_path / "out.t7"
    path.write_bytes(b"old")
    with pytest.raises(TargetExistsError, match=r"out\.t7: exists already.*--force"):
        FileOutput(path)
    assert path.read_bytes() == b"old"
    with FileOutput(path, force=True) as output:
        output.write(b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["out.t7"]


@pytest.mark.parametrize("force", [False, True])
def test_folder_is_no_target(force, tmp_path):
    """A folder is not overwritten, force or not."""
    with pytest.raises(TargetExistsError, match="is a folder"):
        FileOutput(tmp_path, force=force)


def test_folder_that_does_not_exist(tmp_path):
    """A target in a folder that is not there is an error that names the target."""
    with pytest.raises(WriteError, match=r"missing/out\.t7: cannot be written: its folder does not exist"):
        FileOutput(tmp_path / "missing" / "out.t7")


def test_very_long_name(tmp_path):
    """The longest name that the file system allows can be written to."""
    path = tmp_path / ("x" * 252 + ".t7")
    with FileOutput(path) as output:
        output.write(b"abc")
    assert names(tmp_path) == [path.name]


def test_rename_that_fails(tmp_path):
    """If the rename fails in the end, nothing is left and the error has the reason."""
    path = tmp_path / "out.t7"
    output = FileOutput(path, force=True)
    output.write(b"abc")
    path.mkdir()
    with pytest.raises(WriteError, match="cannot be written"), output:
        pass
    assert names(tmp_path) == ["out.t7"]
    assert names(path) == []


def test_name_taken_meanwhile(tmp_path):
    """A file created by another process meanwhile is not replaced."""
    path = tmp_path / "out.t7"
    output = FileOutput(path)
    output.write(b"mine")
    path.write_bytes(b"theirs")
    with pytest.raises(TargetExistsError, match="exists already"), output:
        pass
    assert path.read_bytes() == b"theirs"
    assert names(tmp_path) == ["out.t7"]


def test_pipes_are_not_replaced(tmp_path):
    """A target that is not a regular file is left alone, forced or not."""
    os.mkfifo(tmp_path / "pipe.t7")
    for force in (False, True):
        with pytest.raises(TargetExistsError, match="not a regular file"):
            FileOutput(tmp_path / "pipe.t7", force=force)
    assert names(tmp_path) == ["pipe.t7"]


def test_links_are_followed(tmp_path):
    """The file that a symbolic link names is written, and the link stays."""
    (tmp_path / "real.t7").write_bytes(b"old")
    (tmp_path / "link.t7").symlink_to(tmp_path / "real.t7")
    with FileOutput(tmp_path / "link.t7", force=True) as output:
        output.write(b"new")
    assert (tmp_path / "link.t7").is_symlink()
    assert (tmp_path / "real.t7").read_bytes() == b"new"


def test_mode_is_kept(tmp_path):
    """A replaced file passes its mode on to the new one."""
    path = tmp_path / "out.t7"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with FileOutput(path, force=True) as output:
        output.write(b"new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_file_size_limit(tmp_path):
    """A limit of the system on the size of files ends in an error, and leaves nothing."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(WriteError, match="cannot be written"), FileOutput(tmp_path / "out") as output:
            output.write(bytes(5 << 19))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == []


def test_relative_target(tmp_path, monkeypatch):
    """A target without a folder is written to the current one."""
    monkeypatch.chdir(tmp_path)
    with FileOutput("out.t7") as output:
        output.write(b"abc")
    assert names(tmp_path) == ["out.t7"]


def test_file_systems_without_links(tmp_path, monkeypatch):
    """If links are not supported, the file is renamed, and one created meanwhile is still not replaced."""

    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with FileOutput(tmp_path / "a") as output:
        output.write(b"abc")
    assert (tmp_path / "a").read_bytes() == b"abc"
    second = FileOutput(tmp_path / "b")
    (tmp_path / "b").write_bytes(b"theirs")
    with pytest.raises(TargetExistsError, match="exists already"), second:
        pass
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b"theirs"


def test_folder_that_takes_no_file(tmp_path):
    """If a temporary file cannot be created, the error names the target and the system's reason."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="cannot be written: Not a directory"):
        FileOutput(tmp_path / "file" / "out")


def test_a_signal_while_the_file_is_made_leaves_none(tmp_path, monkeypatch):
    """A signal is heard when the call that makes the file returns."""
    make = os.open

    def interrupted(*arguments):
        os.close(make(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        FileOutput(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_cannot_be_prepared_leaves_none(tmp_path, monkeypatch):
    """The system may make a file and then refuse to change its mode."""

    def refuse(*arguments):
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "out"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(WriteError, match="cannot be written: Operation not permitted"):
        FileOutput(path, force=True)
    assert names(tmp_path) == ["out"]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_forgotten_output_leaves_none(tmp_path):
    """A signal may come before `with` has begun, and a program may not use it."""
    output = FileOutput(tmp_path / "x")
    output.write(b"abc")
    del output
    assert names(tmp_path) == []
