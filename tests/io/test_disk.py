"""Waiting until what was written is on the disk."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from t7bridge.io import output as disk
from t7bridge.io import platform


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the call")
def test_file_system(tmp_path):
    """A folder's file system is flushed; one that is not there is an error, and no descriptor stays open."""
    (tmp_path / "file").write_bytes(b"data")
    before = len(os.listdir("/proc/self/fd"))
    assert platform.flush_file_system(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        platform.flush_file_system(str(tmp_path / "none"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the call")
def test_file_system_that_cannot_write(tmp_path, monkeypatch):
    """The system's error is raised with the folder's name."""

    class Library:
        def __init__(self, *arguments, **options):
            pass

        @staticmethod
        def syncfs(fd):
            ctypes.set_errno(5)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    with pytest.raises(OSError, match=r"\[Errno 5\]") as found:
        platform.flush_file_system(str(tmp_path))
    assert found.value.filename == str(tmp_path)


@pytest.mark.parametrize("is_linux", [False, True])
def test_system_without_the_call(tmp_path, monkeypatch, is_linux):
    """Other systems, and a C library without it, report that it is unsupported."""
    monkeypatch.setattr(platform, "MAY_HAVE_SYNCFS", is_linux)
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())
    assert not platform.flush_file_system(str(tmp_path))


def test_folder_file_by_file(tmp_path, monkeypatch):
    """The files in a folder, the folder, and its name in the one above."""
    (tmp_path / "model").mkdir()
    for name in ("model.pt", "model.py"):
        (tmp_path / "model" / name).write_bytes(b"data")
    seen: list[str] = []
    monkeypatch.setattr(disk, "flush", seen.append)
    disk.flush_to_disk(str(tmp_path / "model"))
    names = {os.path.relpath(path, tmp_path) for path in seen}
    assert names == {"model/model.pt", "model/model.py", "model", "."}
