"""Files of 10 GB, sparse: opening them and finding every tensor takes milliseconds, as no weight is read."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from bounds import bounded
from pt_helpers import members_of, saved

import t7bridge

TENSORS, ELEMENTS = 10, 250_000_000
"""Ten tensors of 1 GB of float32."""


def safetensors(path: Path) -> Path:
    """Return a safetensors file of 10 GB that occupies a few KB of the disk."""
    nbytes = 4 * ELEMENTS
    header = {f"w{n}": {"dtype": "F32", "shape": [ELEMENTS], "data_offsets": [n * nbytes, (n + 1) * nbytes]}
              for n in range(TENSORS)}  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + TENSORS * nbytes)
    return path


def sparse_zip(path: Path, small: dict[str, bytes], large: dict[str, int]) -> Path:
    """A zip64 archive whose large members are holes."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, data in small.items():
            archive.writestr(name, data)
        assert archive.fp is not None
        end = archive.start_dir
        for name, size in large.items():
            info = zipfile.ZipInfo(name)
            info.file_size = info.compress_size = size
            info.header_offset, info.CRC = end, 0
            archive.fp.seek(end)
            header = info.FileHeader(zip64=False)
            archive.fp.write(header)
            archive.filelist.append(info)
            end += len(header) + size
        archive.start_dir = end  # where the directory is written when the archive is closed
        archive._didModify = True
    return path


def pt(path: Path) -> Path:
    """A `.pt` of 10 GB: PyTorch's pickle with other counts."""
    members = members_of(saved({f"w{n}": torch.zeros(1) for n in range(TENSORS)}))
    name = next(name for name in members if name.endswith("data.pkl"))
    root = name.removesuffix("data.pkl")
    count = b"J" + struct.pack("<i", ELEMENTS)  # in place of the 1 of one element
    pickle = members[name].replace(b"K\x01tq", count + b"tq").replace(b"K\x00K\x01\x85", b"K\x00" + count + b"\x85")
    small = {key: data for key, data in members.items() if "/data/" not in key} | {name: pickle}
    return sparse_zip(path, small, {f"{root}data/{n}": 4 * ELEMENTS for n in range(TENSORS)})


def pt2(path: Path) -> Path:
    """A `.pt2` of 10 GB."""
    meta = {
        "dtype": 7, "sizes": [{"as_int": ELEMENTS}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0},
        "layout": 7, "requires_grad": False, "device": {"type": "cpu", "index": None},
    }  # fmt: skip
    config = {f"w{n}": {"path_name": f"weight_{n}", "is_param": True, "use_pickle": False, "tensor_meta": meta}
              for n in range(TENSORS)}  # fmt: skip
    small = {
        "m/archive_format": b"pt2",
        "m/models/model.json": b"{}",
        "m/data/weights/model_weights_config.json": json.dumps({"config": config}).encode(),
        "m/data/constants/model_constants_config.json": b'{"config": {}}',
    }
    return sparse_zip(path, small, {f"m/data/weights/weight_{n}": 4 * ELEMENTS for n in range(TENSORS)})


def shards(path: Path) -> Path:
    """A folder with a shard of 10 GB and its index."""
    path.mkdir()
    safetensors(path / "a.safetensors")
    index = {"metadata": {}, "weight_map": {f"w{n}": "a.safetensors" for n in range(TENSORS)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize("make", [safetensors, pt, pt2, shards], ids=lambda make: make.__name__)
def test_ten_gigabytes_open_in_milliseconds(make, tmp_path):
    """Opening a file of 10 GB and finding its tensors reads no weights, which would take seconds of CPU."""
    path = make(tmp_path / "large")
    with bounded(20):
        value = t7bridge.load(path)
    assert [tensor.numel for tensor in value.values()] == [ELEMENTS] * TENSORS
