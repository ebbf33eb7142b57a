"""A storage is never read into memory to be copied."""

import struct
from pathlib import Path

import pytest
from helpers import peak_mib

SIZE_BYTES = 200 << 20
BOUND_MIB = 64


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.t7` with one float tensor of 200 MiB; the file is sparse, but what is written from it is not."""
    path = tmp_path_factory.mktemp("large") / "large.t7"
    count = SIZE_BYTES // 4

    def text(word: bytes) -> bytes:
        return struct.pack("<i", len(word)) + word

    head = struct.pack("<ii", 4, 1) + text(b"V 1") + text(b"torch.FloatTensor") + struct.pack("<iqqq", 1, count, 1, 1)
    head += struct.pack("<ii", 4, 2) + text(b"V 1") + text(b"torch.FloatStorage") + struct.pack("<q", count)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + SIZE_BYTES)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x.pt", "x.t7", "swapped.t7"])
def test_peak(large: Path, target: str, tmp_path: Path) -> None:
    """Converting a large file, also to the other byte order, needs little memory, and so does the way back."""
    options = ["--byte-order", "big"] if target == "swapped.t7" else []
    assert peak_mib("convert", *options, large, tmp_path / target) < BOUND_MIB
    assert peak_mib("convert", tmp_path / target, tmp_path / "back.t7") < BOUND_MIB
    assert (tmp_path / target).stat().st_size >= SIZE_BYTES
    (tmp_path / target).unlink()
    (tmp_path / "back.t7").unlink()


@pytest.mark.slow
def test_describe(large: Path) -> None:
    """Describing a large file, which reads it for its checksum, needs little memory."""
    assert peak_mib("describe", large) < BOUND_MIB
