"""`--shard-size`: several files with an index, as transformers' `save_pretrained` writes them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

import t7bridge
from t7bridge.errors import ModelError, TargetExistsError


def state(seed: int = 44_040) -> dict[str, torch.Tensor]:
    """Tensors of 40 to 4 000 bytes; two are one memory, and one is larger than all shards."""
    source = random.Random(seed)
    torch.manual_seed(seed)
    tensors = {f"layers.{number}.weight": torch.randn(source.randint(10, 1000)) for number in range(12)}
    tensors["head"] = torch.randn(100, 100)
    tensors["tied"] = tensors["layers.0.weight"]
    tensors["count"] = torch.tensor(3)
    return tensors


def names(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("size", [1, 3_000, 10_000])
def test_shards_and_their_index(tmp_path: Path, size: int) -> None:
    """Each shard is a safetensors file of its library, of at most the size; together they are the state dict."""
    tensors = state()
    torch.save(tensors, tmp_path / "in.pt")
    folder = tmp_path / "out"
    folder.mkdir()
    report = t7bridge.convert(tmp_path / "in.pt", folder / "model.safetensors", shard_size=size)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    places = index["weight_map"]
    shards = sorted(set(places.values()))
    assert shards == [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    assert names(folder) == [*shards, "model.safetensors.index.json"]
    assert report.target == str(folder / "model.safetensors.index.json")
    assert places["tied"] == places["layers.0.weight"]
    total = 0
    for shard in shards:
        content = safetensors.torch.load_file(folder / shard)
        assert content.keys() == {name for name, place in places.items() if place == shard}
        for name, tensor in content.items():
            assert torch.equal(tensor, tensors[name])
        nbytes = sum(tensor.nbytes for tensor in content.values())
        total += nbytes
        assert nbytes <= size or len(content) == 1 or set(content) == {"tied", "layers.0.weight"}
    assert index["metadata"]["total_size"] == total == sum(tensor.nbytes for tensor in tensors.values())
    read = t7bridge.load_state_dict(folder)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert read["tied"].data_ptr() == read["layers.0.weight"].data_ptr()


def test_shards_are_those_of_huggingface_hub(tmp_path: Path) -> None:
    """Recorded from its `split_state_dict_into_shards_factory`, 2.4: a tensor larger than a shard interrupts none."""
    sizes = {"a": 40, "big": 400, "b": 50, "c": 30, "huge": 500, "d": 60}
    torch.save({name: torch.zeros(size // 4) for name, size in sizes.items()}, tmp_path / "in.pt")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "model.safetensors", shard_size=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    numbers = {name: int(place[len("model-") :][:5]) for name, place in index["weight_map"].items()}
    assert numbers == {"big": 1, "a": 2, "b": 2, "huge": 3, "c": 4, "d": 4}


def test_what_fits_is_one_file(tmp_path: Path) -> None:
    """It has no index; the file is that without the option."""
    torch.save(state(), tmp_path / "in.pt")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "one.safetensors")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "other.safetensors", shard_size=1 << 30)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()
    assert names(tmp_path) == ["in.pt", "one.safetensors", "other.safetensors"]


def test_a_checkpoint_that_is_replaced(tmp_path: Path) -> None:
    """Without `force` nothing is; with it no file of the former one is left for readers to find."""
    torch.save(state(), tmp_path / "in.pt")
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / "model.safetensors"
    (folder / "model-00001-of-00009.bin").write_text("of another")
    t7bridge.convert(tmp_path / "in.pt", target, shard_size=1_000)
    before = names(folder)
    for size in (1_000, 10_000, 1 << 30):
        with pytest.raises(TargetExistsError):
            t7bridge.convert(tmp_path / "in.pt", target, shard_size=size)
        assert names(folder) == before
    t7bridge.convert(tmp_path / "in.pt", target, shard_size=40_000, force=True, dtype="float16")
    assert names(folder) == ["model-00001-of-00009.bin", "model.safetensors"]
    with pytest.raises(TargetExistsError):
        t7bridge.convert(tmp_path / "in.pt", target, shard_size=1_000)
    t7bridge.convert(tmp_path / "in.pt", target, shard_size=20_000, force=True)
    assert "model.safetensors" not in names(folder)
    assert len(t7bridge.load_state_dict(folder)) == len(state())


def test_lua_models_and_edits(tmp_path: Path) -> None:
    """Names and types are those asked for in every shard."""
    source = Path(__file__).parents[2] / "testfiles/models/lenet_mm.t7"
    t7bridge.convert(source, tmp_path / "m.safetensors", shard_size=4_000, rename={"": "net"}, dtype="float16")
    expected = t7bridge.load_state_dict(source, rename={"": "net"}, dtype="float16")
    result = t7bridge.load_state_dict(tmp_path / "m.safetensors.index.json")
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[key], tensor) for key, tensor in expected.items())


def test_wrong_sizes_and_formats(tmp_path: Path) -> None:
    """A size is positive; other formats have no shards, which a note says."""
    torch.save(state(), tmp_path / "in.pt")
    with pytest.raises(ModelError, match="positive number of bytes"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.safetensors", shard_size=0)
    report = t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.npz", shard_size=100)
    assert any("shard_size does not apply" in note.message for note in report.notes)
    assert names(tmp_path) == ["in.pt", "out.npz"]
