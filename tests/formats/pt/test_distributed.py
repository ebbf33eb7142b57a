"""Folders of `torch.distributed.checkpoint`: what PyTorch reads from them, whole and sharded."""

from __future__ import annotations

import io
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from helpers import TESTFILES
from pt_helpers import saved

import t7bridge
from t7bridge import Tensor
from t7bridge.errors import CorruptError, T7BridgeError
from t7bridge.formats import DistributedReader, whole_of_chunks
from t7bridge.graph import Assembled
from t7bridge.limits import Budget

FOLDERS = TESTFILES / "distributed"


def tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of nested dictionaries and lists, by flat name."""
    if isinstance(value, Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, Tensor] = {}
    for key, inner in items:
        found.update(tensors(inner, f"{name}.{key}" if name else str(key)))
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("name", ["sharded", "single"])
def test_values_are_those_that_pytorch_loads(name):
    """Every tensor has the type, sizes and numbers that PyTorch puts into an empty state dict of the same shape."""
    with DistributedReader(FOLDERS / name) as reader:
        found = tensors(reader.read())
        wanted = {key: torch.zeros(each.shape, dtype=getattr(torch, each.element.name)) for key, each in found.items()}
        dcp.load(wanted, checkpoint_id=FOLDERS / name)

        names = dcp.FileSystemReader(FOLDERS / name).read_metadata().state_dict_metadata
        assert set(found) == {key for key, meta in names.items() if hasattr(meta, "chunks")}
        for key, each in found.items():
            assert torch.equal(torch.from_numpy(np.array(each.numpy())), wanted[key]), key


def test_nesting():
    """Dictionaries, lists and other values are nested as they were saved."""
    with DistributedReader(FOLDERS / "single") as reader:
        value = reader.read()
    assert list(value) == ["model", "optim", "name"]
    assert value["optim"]["param_groups"] == [{"lr": 0.1, "params": [0, 1]}]
    assert value["name"] == "x"


def test_sharded_tensors_stay_in_the_files():
    """Tensors of several shards are put together when they are written, and not before."""
    with DistributedReader(FOLDERS / "sharded") as reader:
        value = reader.read()["model"]
        assert isinstance(value["columns"].storage.data, Assembled)
        assert b"".join(value["cube"].storage.chunks()) == np.arange(4, 28, dtype="f4").tobytes()


def test_many_rows(tmp_path):
    """Shards larger than a chunk of a copy are put together in pieces."""
    rows = torch.arange(700_000, dtype=torch.float32).reshape(-1, 7)
    parts = ((0, 0), Tensor.from_numpy(rows[:60_000].numpy())), ((60_000, 0), Tensor.from_numpy(rows[60_000:].numpy()))
    data = Assembled(tuple(rows.shape), parts)
    storage = t7bridge.Storage(parts[0][1].element, rows.numel(), data)

    assert b"".join(storage.chunks()) == rows.numpy().tobytes()
    assert np.array_equal(storage.array, rows.numpy().reshape(-1))


def changed(tmp_path: Path, **fields: Any) -> Path:
    """The folder of one process whose metadata has other fields for one tensor."""
    folder = tmp_path / "changed"
    shutil.copytree(FOLDERS / "single", folder)
    metadata = dcp.FileSystemReader(folder).read_metadata()
    info = next(info for index, info in metadata.storage_data.items() if index.fqn == "model.half")
    chunk = metadata.state_dict_metadata["model.half"].chunks[0]
    for name, value in fields.items():
        setattr(chunk if hasattr(chunk, name) else info, name, value)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"relative_path": "../../secret"}, "outside the folder"),
        ({"relative_path": "/etc/passwd"}, "outside the folder"),
        ({"relative_path": "missing.distcp"}, "cannot be read"),
        ({"length": 1 << 40}, "outside the file|two values are at one place"),
        ({"offset": 0, "relative_path": "__0_0.distcp"}, "two values are at one place"),
        ({"length": -1}, "not a location"),
        ({"sizes": torch.Size([3])}, "not the tensor"),
        ({"offsets": torch.Size([1])}, "is in no file|make up"),
        ({"transform_descriptors": ["zstd"]}, "extension"),
    ],
    ids=str,
)
def test_damaged_metadata(tmp_path, fields, message):
    """Metadata that contradicts the files, or leads out of the folder, is refused."""
    with pytest.raises(T7BridgeError, match=message), DistributedReader(changed(tmp_path, **fields)) as reader:
        reader.read()


def test_two_values_at_one_place_of_the_nesting(tmp_path):
    """A value that would replace another, or contain it, is refused."""
    folder = changed(tmp_path)
    metadata = dcp.FileSystemReader(folder).read_metadata()
    metadata.planner_data["name"] = ("model",)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CorruptError, match="inside of"), DistributedReader(folder) as reader:
        reader.read()


def test_columns_are_compared_with_their_neighbours():
    """Thousands of chunks along any axis are put together in time in proportion to them."""
    one = Tensor.from_numpy(np.ones((2, 1), "f4"))
    start = time.process_time()
    whole = whole_of_chunks((2, 4000), [((0, place), one) for place in range(4000)], "x", Budget())
    assert whole.shape == (2, 4000)
    assert time.process_time() - start < 2


def test_foreign_metadata(tmp_path):
    """A pickle of something else is refused."""
    (tmp_path / ".metadata").write_bytes(io.BytesIO(saved({"a": 1})).getvalue())
    with pytest.raises(CorruptError, match="no field"), DistributedReader(tmp_path) as reader:
        reader.read()
