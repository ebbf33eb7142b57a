"""`--shard-size`: several files with an index, as transformers' `save_pretrained` writes them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

import t7bridge
from t7bridge.conversion.options import byte_count
from t7bridge.errors import ModelError, OptionError, TargetExistsError
from t7bridge.values.widened import ELEMENTS_KEY


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


def test_sizes_are_bytes_or_texts(tmp_path: Path) -> None:
    """`GB` as on disks and in transformers, `G` and `GiB` in powers of 1024."""
    for text, size in {"2GB": 2 * 10**9, "2G": 2 << 30, "2 GiB": 2 << 30, "7": 7, "7B": 7, "3kB": 3000}.items():
        assert byte_count(text) == size
    assert byte_count(2e9) == 2 * 10**9
    for wrong in ("", "GB", "2XB", "1.5GB", "-2GB", "2GBB", "9" * 5000, float("inf"), float("nan")):
        with pytest.raises(ModelError, match="is not a size"):
            byte_count(wrong)
    torch.save({"a": torch.zeros(2000), "b": torch.zeros(1)}, tmp_path / "in.pt")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.safetensors", shard_size="1kB")
    assert len(t7bridge.load_state_dict(tmp_path / "out.safetensors.index.json")) == 2


def test_strings_and_types_of_the_whole(tmp_path: Path) -> None:
    """What is said of the whole stands in the first shard, and is read with any of them, as from one file."""
    pairs = torch.tensor([1 + 2j, 3], dtype=torch.complex128)  # which safetensors has as numbers with a word on them
    value = {"a": torch.arange(9, dtype=torch.uint8), "pairs": pairs, "name": "net", "epoch": 3}
    torch.save(value, tmp_path / "in.pt")
    for name, size in {"one": 1 << 20, "more": 10}.items():
        (tmp_path / name).mkdir()
        t7bridge.convert(tmp_path / "in.pt", tmp_path / name / "model.safetensors", shard_size=size)
    with t7bridge.open(tmp_path / "one/model.safetensors") as one, t7bridge.open(tmp_path / "more") as more:
        assert one.value.keys() == more.value.keys()
        assert one.metadata == more.metadata
    assert torch.equal(t7bridge.to_torch(t7bridge.load(tmp_path / "more"))["pairs"], pairs)
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "again.safetensors")
    t7bridge.convert(tmp_path / "more", tmp_path / "joined.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "joined.safetensors").read_bytes()


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
    for _ in range(2):
        t7bridge.convert(tmp_path / "in.pt", target, shard_size=20_000, force=True)
    assert "model.safetensors" not in names(folder)
    for size in (20_000, 1 << 30):
        with pytest.raises(TargetExistsError, match="is the input file itself"):
            t7bridge.convert(folder, target, shard_size=size, force=True)
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
    """A size is positive; other formats have no shards, and nothing is written."""
    torch.save(state(), tmp_path / "in.pt")
    with pytest.raises(ModelError, match="positive number of bytes"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.safetensors", shard_size=0)
    with pytest.raises(OptionError, match=r"shard_size does not apply .* to \.safetensors"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.npz", shard_size=100)
    assert names(tmp_path) == ["in.pt"]


def test_a_record_that_is_wrong_is_noted_once(tmp_path: Path) -> None:
    """Elements that the recorded type lacks: shards have the notes of a single file."""
    path = tmp_path / "in.safetensors"
    metadata = {ELEMENTS_KEY: json.dumps({"w": "bfloat16"})}
    safetensors.torch.save_file({"w": torch.tensor([1.1, 2.0]), "b": torch.ones(2)}, path, metadata)
    single = t7bridge.convert(path, tmp_path / "single.safetensors")
    shards = t7bridge.convert(path, tmp_path / "shards.safetensors", shard_size=8)

    wanted = [str(note) for note in single.notes if note.code == "record"]
    assert [str(note) for note in shards.notes if note.code == "record"] == wanted
    assert len(wanted) == 1
