"""Conversion of whole files: to PyTorch's eyes, and back to the same bytes."""

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from looping import new_folder

import t7bridge
from t7bridge import register_class
from t7bridge.errors import FormatError, ModelError, TargetExistsError, UnsupportedError, WriteError
from t7bridge.formats import unregister_class

ROOT = Path(__file__).parents[2] / "testfiles"
T7_FILES = sorted(path for path in ROOT.glob("*/*.t7") if path.parent.name not in ("bad", "found", "hostile"))
NAMES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32",
    "Long": "int64", "Half": "float16", "Float": "float32", "Double": "float64",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _custom_class() -> Iterator[None]:
    """The class of `object_custom_write`, which writes a payload of its own."""

    @register_class("corpus.Custom")
    class Custom:
        @staticmethod
        def read(reader: Any, obj: Any) -> None:
            obj["a"] = float(reader.read_int())
            obj["rest"] = reader.read_object()
            obj["q"] = reader.read_double()

        @staticmethod
        def write(writer: Any, obj: Any) -> None:
            writer.write_int(int(obj["a"]))
            writer.write_object(obj["rest"])
            writer.write_double(obj["q"])

    yield
    unregister_class("corpus.Custom")


def by_name(path: Path) -> str:
    """A test's name for a file."""
    return f"{path.parent.name}/{path.name}"


def torch_tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor object in what `torch.load` returned, once."""
    seen: dict[int, Any] = {}
    stack = [value]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            stack += item
    return [item for item in seen.values() if isinstance(item, torch.Tensor)]


def crc32_of(storage: torch.UntypedStorage) -> int:
    """The checksum of a storage's bytes."""
    return zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())


def lua_tensors(path: Path) -> list[dict[str, Any]] | None:
    """Return every tensor that Lua saw in a file, with its storage; `None` without a recording of Lua's."""
    golden = path.parent / (path.name.split(".")[0] + ".json")
    if not golden.exists():
        return None
    text = golden.read_text()
    storages: dict[int, Any] = {}
    found = []
    # Not by walking the decoded tree: table_deep is nested deeper than the json module goes.
    decoder = json.JSONDecoder()
    for kind, into in (('{"t":"tensor"', found), ('{"t":"storage"', storages)):
        place = text.find(kind)
        while place >= 0:
            node = decoder.raw_decode(text, place)[0]
            if isinstance(into, list):
                into.append(node)
            else:
                into[node["id"]] = node
            place = text.find(kind, place + 1)
    for node in found:
        if node["storage"]:
            node["storage"] = storages[node["storage"]["id"]]
    return found


@pytest.mark.slow
def test_t7_to_pt_and_back(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """PyTorch's safe loader sees the tensors, strides, offsets and sharing that Lua saw; back come the same bytes."""
    for path in T7_FILES:
        with subtests.test(by_name(path)), new_folder(tmp_path) as folder:
            there, back = folder / "x.pt", folder / "y.t7"
            t7bridge.convert(path, there, mode="tree")

            value = torch.load(there, weights_only=True)
            lua = lua_tensors(path)
            if lua is not None:
                wanted = sorted(
                    (
                        NAMES[node["class"][6:-6]],
                        node["size"],
                        node["stride"],
                        node["offset"],
                        node["storage"]["crc32"],
                    )
                    for node in lua
                    if node["storage"] and node["size"]
                )
                mine = [
                    t for t in torch_tensors(value) if t.dim() and t.untyped_storage().nbytes() and 0 not in t.shape
                ]
                got = sorted(
                    (
                        str(t.dtype).removeprefix("torch."),
                        list(t.shape),
                        list(t.stride()),
                        t.storage_offset(),
                        crc32_of(t.untyped_storage()),
                    )
                    for t in mine
                )
                assert wanted == got
                memories = {node["storage"]["id"] for node in lua if node["storage"] and node["size"]}
                assert len(memories) == len({t.untyped_storage().data_ptr() for t in mine})

            t7bridge.convert(there, back)
            assert path.read_bytes() == back.read_bytes()


@pytest.mark.slow
def test_t7_to_t7(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Without options a copy has the same bytes."""
    for path in T7_FILES:
        with subtests.test(by_name(path)), new_folder(tmp_path) as folder:
            t7bridge.convert(path, folder / "copy.t7")

            assert path.read_bytes() == (folder / "copy.t7").read_bytes()


@pytest.mark.slow
def test_auto_keeps_every_parameter(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """PyTorch's safe loader sees a tensor as large as each that Lua has in `module:parameters()`."""
    for path in sorted(ROOT.glob("nn/*.grad.t7")):
        with subtests.test(by_name(path)), new_folder(tmp_path) as folder:
            t7bridge.convert(path.with_name(path.name.replace(".grad.t7", ".t7")), folder / "x.pt")

            found = Counter(tensor.numel() for tensor in torch_tensors(torch.load(folder / "x.pt", weights_only=True)))
            lua = t7bridge.load(path).get("gradParameters")
            gradients = [] if lua is None else lua.values() if callable(lua.values) else lua.values
            wanted = Counter(math.prod(gradient.shape) for gradient in gradients)
            if path.name.startswith("MapTable"):  # its clones share their weights, and Lua lists the gradient of each
                wanted = Counter(list(wanted))
            assert wanted <= found


def test_auto_checkpoint(tmp_path: Path) -> None:
    """A module inside a table is replaced by its state dict; the rest is unchanged."""
    report = t7bridge.convert(ROOT / "models/training_checkpoint.t7", tmp_path / "x.pt")

    value = torch.load(tmp_path / "x.pt", weights_only=True)
    assert report.mode == "state dict"
    assert list(value["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert {k: v for k, v in value["optimState"].items() if k != "dfdx"} == {"learningRate": 0.1, "momentum": 0.9}
    assert value["classes"] == ["cat", "dog"]
    assert value["epoch"] == 12


def test_state_dict_loads_strictly(tmp_path: Path) -> None:
    """The state dict of a Lua convolutional network loads into the same PyTorch network, with Lua's outputs."""
    io = t7bridge.load(ROOT / "models/lenet_mm.io.t7")
    t7bridge.convert(ROOT / "models/lenet_mm.t7", tmp_path / "x.pt")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5), torch.nn.Tanh(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 8, 5), torch.nn.Tanh(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(200, 20), torch.nn.Tanh(), torch.nn.Linear(20, 10), torch.nn.LogSoftmax(1),
    )  # fmt: skip
    net.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True), strict=True)

    output = net(torch.from_numpy(io["input"].numpy().copy()))

    expected = torch.from_numpy(io["output"].numpy().copy())
    assert torch.allclose(expected, output, rtol=1e-4, atol=1e-5)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    """Converting twice results in the same file."""
    for name in ("a.pt", "b.pt"):
        t7bridge.convert(ROOT / "models/unet_nngraph.t7", tmp_path / name, mode="tree")

    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_devices(tmp_path: Path) -> None:
    """CUDA tensors come to the CPU, unless they are to keep their device."""
    path = ROOT / "models/cuda_cudnn_convnet.t7"
    t7bridge.convert(path, tmp_path / "cpu.pt", mode="tree")
    t7bridge.convert(path, tmp_path / "cuda.pt", mode="tree", keep_device=True)

    assert {"cpu"} == {t.device.type for t in torch_tensors(torch.load(tmp_path / "cpu.pt", weights_only=True))}
    assert b"cuda:0" not in (tmp_path / "cpu.pt").read_bytes()
    assert b"cuda:0" in (tmp_path / "cuda.pt").read_bytes()
    mapped = torch.load(tmp_path / "cuda.pt", weights_only=True, map_location="cpu")
    assert torch_tensors(mapped)
    t7bridge.convert(tmp_path / "cuda.pt", tmp_path / "back.t7")
    assert path.read_bytes() == (tmp_path / "back.t7").read_bytes()


def test_reencoding_from_a_record(tmp_path: Path) -> None:
    """A `.t7` made from a record may have another encoding than the original."""
    source = ROOT / "format/checkpoint.t7"
    t7bridge.convert(source, tmp_path / "x.pt", mode="tree")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7", encoding="ascii")

    assert (ROOT / "format/checkpoint.ascii.t7").read_bytes() == (tmp_path / "x.t7").read_bytes()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ascii", {"encoding": "ascii"}),
        ("big", {"byte_order": "big"}),
        ("long4", {"long_size": 4}),
    ],
)
def test_encodings_equal_luas(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Another encoding has the bytes that Lua Torch wrote for it."""
    count = 0
    for path in sorted(ROOT.glob(f"format/*.{name}.t7")):
        # Lua's memory held other numbers in what it had not set when it wrote each of these.
        source = path.parent / path.name.replace(f".{name}", "")
        out = tmp_path / path.name
        t7bridge.convert(source, out, **options)
        assert path.read_bytes() == out.read_bytes(), path.name
        count += 1
    assert count > 40


def test_several_values(tmp_path: Path) -> None:
    """A file with values after the first, and trailing bytes, is copied whole; the note says so."""
    report = t7bridge.convert(ROOT / "format/stream.t7", tmp_path / "x.t7")

    assert (ROOT / "format/stream.t7").read_bytes() == (tmp_path / "x.t7").read_bytes()
    assert any("not a value" in note.message for note in report.notes)
    with pytest.raises(WriteError, match="not a value"):
        t7bridge.convert(ROOT / "format/stream.t7", tmp_path / "y.t7", encoding="ascii")
    assert not (tmp_path / "y.t7").exists()


def test_existing_target(tmp_path: Path) -> None:
    """An existing file is replaced only when asked for, and never while it is the input."""
    source, target = tmp_path / "a.t7", tmp_path / "b.t7"
    source.write_bytes((ROOT / "format/table_list.t7").read_bytes())
    target.write_bytes(b"precious")

    with pytest.raises(TargetExistsError, match="--force"):
        t7bridge.convert(source, target)
    assert target.read_bytes() == b"precious"
    with pytest.raises(TargetExistsError, match="input"):
        t7bridge.convert(source, source, force=True)
    t7bridge.convert(source, target, force=True)
    assert source.read_bytes() == target.read_bytes()


@pytest.mark.parametrize("target", ["x.pt", "x.t7"])
def test_damaged_source_leaves_nothing(target: str, tmp_path: Path) -> None:
    """A damaged file is an error with byte and path, and leaves no output, not even a temporary file."""
    data = (ROOT / "models/resnet_small.t7").read_bytes()
    (tmp_path / "bad.t7").write_bytes(data[: len(data) // 2])

    with pytest.raises(FormatError) as caught:
        t7bridge.convert(tmp_path / "bad.t7", tmp_path / target)

    assert caught.value.offset is not None
    assert caught.value.path.startswith("root.modules[")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.t7"]


def test_source_that_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that becomes shorter while its weights are copied is an error, and leaves nothing."""
    source = tmp_path / "a.t7"
    data = (ROOT / "format/shared_small_of_large.t7").read_bytes()
    source.write_bytes(data)
    original = t7bridge.T7Reader.read_object

    def shrink(reader: t7bridge.T7Reader) -> Any:
        value = original(reader)
        source.write_bytes(data[:300])
        return value

    monkeypatch.setattr(t7bridge.T7Reader, "read_object", shrink)
    with pytest.raises(FormatError, match="shorter"):
        t7bridge.convert(source, tmp_path / "x.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.t7"]


def test_wrong_options(tmp_path: Path) -> None:
    """Unknown modes, formats and suffixes are refused."""
    source = ROOT / "format/table_list.t7"
    with pytest.raises(ModelError, match="mode"):
        t7bridge.convert(source, tmp_path / "x.pt", mode="best")
    with pytest.raises(ModelError, match="format"):
        t7bridge.convert(source, tmp_path / "x.pt", to="onnx")
    with pytest.raises(UnsupportedError, match=r"\.pt"):
        t7bridge.convert(source, tmp_path / "x")
    for name, verb in {"x.onnx": "export", "x.SVG": "draw", "x.py": "module", "x.lua": "lua"}.items():
        with pytest.raises(UnsupportedError, match=f"t7bridge {verb}"):  # the verb that writes it
            t7bridge.convert(source, tmp_path / name)
    t7bridge.convert(source, tmp_path / "x", to="pt")
    assert torch.load(tmp_path / "x", weights_only=True) == ["hello", "world", "third", 124, True]


def test_part(tmp_path: Path) -> None:
    """`at` converts one part of a file, as if it held nothing else: a module becomes the state dict itself."""
    source = ROOT / "models/training_checkpoint.t7"

    whole = t7bridge.convert(source, tmp_path / "whole.pt")
    report = t7bridge.convert(source, tmp_path / "model.pt", at="root.model")
    t7bridge.convert(source, tmp_path / "options.t7", at="root.optimState")

    want = torch.load(tmp_path / "whole.pt")["model"]
    state = torch.load(tmp_path / "model.pt")
    assert list(state) == list(want) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(torch.equal(state[key], want[key]) for key in want)
    assert report.tensors == 4
    assert [note.message for note in whole.notes if note.code == "state-dict"] == [
        "1 state dict inside the value: root.model; --at writes one alone"
    ]
    options = t7bridge.load(tmp_path / "options.t7")
    assert (options["learningRate"], options["momentum"]) == (0.1, 0.9)


def test_part_of_a_pickle(tmp_path: Path) -> None:
    """`at` names a part of a `.pt` likewise; the record of the whole is not written for it."""
    torch.save({"epoch": 3, "state_dict": {"fc.weight": torch.arange(6.0).view(2, 3)}}, tmp_path / "c.pt")
    t7bridge.convert(tmp_path / "c.pt", tmp_path / "whole.t7")

    for source in ("c.pt", "whole.t7"):
        t7bridge.convert(tmp_path / source, tmp_path / "part.t7", at="root.state_dict", force=True)
        t7bridge.convert(tmp_path / "part.t7", tmp_path / "back.pt", force=True)
        back = torch.load(tmp_path / "back.pt")
        assert list(back) == ["fc.weight"]
        assert torch.equal(back["fc.weight"], torch.arange(6.0).view(2, 3))


def test_no_such_part(tmp_path: Path) -> None:
    """A path that is not there is an error with the steps that there are, and nothing is written."""
    with pytest.raises(ModelError, match=r"nothing at root\.modl.*\.model"):
        t7bridge.convert(ROOT / "models/training_checkpoint.t7", tmp_path / "x.pt", at="root.modl")

    assert list(tmp_path.iterdir()) == []
