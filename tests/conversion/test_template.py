"""State dicts put back into the Lua models that they were made from."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import TESTFILES, corpus, description, name_of, read, written
from looping import new_folder

from t7bridge import (
    PtReader,
    Report,
    Storage,
    Table,
    Tensor,
    TorchObject,
    convert,
    load_module,
    save_module,
    state_dict,
    write_module,
)
from t7bridge.conversion import MAX_LISTED, fill_template, state_dict_in
from t7bridge.errors import FormatError, ModelError, TargetExistsError
from t7bridge.graph import FLOAT64, Span
from t7bridge.nn import find_modules

torch = pytest.importorskip("torch", reason="tunes the weights in PyTorch")

# Files of the corpus that hold no module.
NO_MODULE = {"function_type6.t7", "function_type7.t7", "unversioned_tensor.t7"}
MODELS = [
    path
    for path in corpus("models/*.t7", "nn/*.t7", "rnn/*.t7", "legacy/*.t7")
    if not path.name.endswith((".io.t7", ".grad.t7"))
]


def model(name: str) -> Path:
    """A file of the corpus."""
    return TESTFILES / f"{name}.t7"


def weights(path: Path, folder: Path) -> Any:
    """Return the value that PyTorch loads from a Lua file converted in `auto` mode."""
    convert(path, folder / "weights.pt", force=True)
    return torch.load(folder / "weights.pt", weights_only=True)


def fill(value: Any, template: Path, folder: Path, **options: Any) -> Report:
    """Save a value in PyTorch, and put it into a template: `out.t7` in the folder."""
    torch.save(value, folder / "tuned.pt")
    return convert(folder / "tuned.pt", folder / "out.t7", template=template, force=True, **options)


def messages(report: Report) -> str:
    """The notes of a report as text."""
    return "\n".join(map(str, report.notes))


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The tensors of the first module of a Lua file, under PyTorch's keys."""
    module = find_modules(read(str(path)))[0][1]
    return {key: np.array(tensor.numpy()) for key, tensor in state_dict(module).tensors.items()}


def linear(kind: str = "f4", size: int = 2, **fields: Any) -> TorchObject:
    """An nn.Linear of zeros."""
    made = {"weight": np.zeros((size, 3), kind), "bias": np.zeros(size, kind)}
    tensors = {name: Tensor.from_numpy(array) for name, array in made.items()}
    return TorchObject("nn.Linear", 1, Table.of({**tensors, **fields}))


def container(name: str, *children: TorchObject) -> TorchObject:
    """A container of modules."""
    return TorchObject(name, 1, Table.of({"modules": Table.from_list(list(children))}))


def saved(value: Any, folder: Path) -> Path:
    """A Lua value as `template.t7` in the folder."""
    path = folder / "template.t7"
    path.write_bytes(written(value))
    return path


@pytest.mark.slow
def test_unchanged_weights_give_the_same_bytes(subtests, tmp_path):
    """The result of `auto` mode, with the file as template, restores the same bytes; also running_std."""
    for path in [path for path in MODELS if path.name not in NO_MODULE]:
        with subtests.test(name_of(path)), new_folder(tmp_path) as folder:
            convert(path, folder / "x.pt")
            report = convert(folder / "x.pt", folder / "y.t7", template=path)

            assert path.read_bytes() == (folder / "y.t7").read_bytes()
            assert report.mode == "template"
            assert not [note for note in report.notes if note.level == "warning"]


@pytest.mark.parametrize("name", sorted(NO_MODULE))
def test_template_without_module(name, tmp_path):
    """A file without a module is not a template."""
    with pytest.raises(ModelError, match="no nn module"):
        fill({}, TESTFILES / "legacy" / name, tmp_path)
    assert not (tmp_path / "out.t7").exists()


TUNED = [
    *(f"models/{path.stem}" for path in MODELS if path.parent.name == "models"),
    *("nn/SpatialConvolutionMM", "nn/TemporalConvolution", "nn/TemporalRowConvolution", "nn/PartialLinear"),
    *("nn/SpatialDepthWiseConvolution", "nn/SpatialConvolutionLocal", "nn/VolumetricFullConvolution"),
    *("nn/LayerNormalization", "nn/MapTable", "nn/SpatialConvolutionMap", "nn/Euclidean", "nn/PReLU"),
    *("legacy/bn_running_std", "legacy/conv_mm_padding", "legacy/conv_weight_2d", "legacy/windows_long4_model"),
    *("rnn/language_model", "rnn/Sequencer.LSTM", "rnn/BiSequencer", "rnn/SeqGRU", "rnn/Recurrent"),
    "rnn/Sequencer.GRU",
]


@pytest.mark.parametrize("name", TUNED)
def test_tuned_weights(name, tmp_path):
    """Changed weights are those of the Lua model; every other field, the sharing and the views stay."""
    value = weights(model(name), tmp_path)
    module = value["model"] if name.endswith("checkpoint") else value
    changed = set()
    for key, tensor in module.items():
        if tensor.data_ptr() not in changed and not key.endswith("num_batches_tracked"):
            tensor += 0.5
            changed.add(tensor.data_ptr())
    fill(value, model(name), tmp_path)

    result = arrays(tmp_path / "out.t7")
    assert list(result) == list(module)
    for key, tensor in module.items():
        np.testing.assert_allclose(result[key], tensor.numpy(), rtol=0 if "running_var" not in key else 1e-5)
    before, after = (description(read(str(path))) for path in (model(name), tmp_path / "out.t7"))
    assert before != after
    assert re.sub(r'"crc32":\d+', "", before) == re.sub(r'"crc32":\d+', "", after)


def test_lstm_has_one_bias_in_lua(tmp_path):
    """PyTorch's second bias is added to the first, whose gates are put in Lua's order."""
    tuned = weights(model("rnn/SeqLSTM"), tmp_path)
    for key, tensor in tuned.items():
        tensor += 0.25 * (1 + torch.arange(tensor.numel()).reshape(tensor.shape)) * (1 + ("hh" in key))
    report = fill(tuned, model("rnn/SeqLSTM"), tmp_path)

    result = arrays(tmp_path / "out.t7")
    for key in ("weight_ih_l0", "weight_hh_l0"):
        assert np.array_equal(result[key], tuned[key].numpy())
    assert np.allclose(result["bias_ih_l0"], (tuned["bias_ih_l0"] + tuned["bias_hh_l0"]).numpy())
    assert "bias_hh_l0" in messages(report)


def test_weights_that_follow_from_others(tmp_path):
    """A weight that Lua keeps next to g and v is recomputed from them; another one in the `.pt` causes a warning."""
    source = read(str(model("nn/LinearWeightNorm")))
    source["weight"] = state_dict(source).tensors["weight"]
    template = saved(source, tmp_path)
    tuned = weights(template, tmp_path)
    tuned["weight_g"] *= 2
    report = fill({key: tuned[key] for key in ("weight_g", "weight_v", "bias")}, template, tmp_path)

    assert np.allclose(read(str(tmp_path / "out.t7"))["weight"].numpy(), 2 * tuned["weight"].numpy(), rtol=1e-5)
    assert not report.notes
    assert "weight follows from other tensors" in messages(fill(tuned, template, tmp_path))


def test_copies_of_a_module(tmp_path):
    """The replicas of a DataParallelTable have memory of their own, and get what the first gets."""
    table = container("nn.DataParallelTable", linear(), linear())
    table.payload, table.version = None, 1
    template = saved(table, tmp_path)
    fill({"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2)}, template, tmp_path)

    replicas = read(str(tmp_path / "out.t7"))["modules"].as_list()
    assert [replica["weight"].numpy().sum() for replica in replicas] == [6, 6]


def test_weights_are_not_read(tmp_path):
    """A tensor that fills a whole storage is a span of the `.pt`, wherever it lies there."""
    root = read(str(model("models/lenet_mm")))
    tuned = weights(model("models/lenet_mm"), tmp_path)
    joined = torch.cat([torch.zeros(7), tuned["7.weight"].reshape(-1) + 1])
    torch.save({**tuned, "7.weight": joined[7:].view(20, 200)}, tmp_path / "x.pt")
    reader = PtReader(tmp_path / "x.pt")
    fill_template([root], reader.read())

    held = [tensor.storage for tensor in state_dict(root).tensors.values()]
    assert all(isinstance(item.data, Span) and item.data.source is reader.source for item in held)
    assert np.array_equal(state_dict(root).tensors["7.weight"].numpy(), (tuned["7.weight"] + 1).numpy())


def test_weights_that_are_views_have_no_checksum_of_their_own(tmp_path):
    """The CRC-32 of a storage of a `.pt` is that of all its bytes, not of a part."""
    tuned = weights(model("models/lenet_mm"), tmp_path)
    joined = torch.cat([torch.zeros(7), tuned["7.weight"].reshape(-1) + 1])
    torch.save({**tuned, "7.weight": joined[7:].view(20, 200)}, tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "x.t7", template=model("models/lenet_mm"))
    found = state_dict(read(str(tmp_path / "x.t7"))).tensors["7.weight"]
    assert np.array_equal(found.numpy(), (tuned["7.weight"] + 1).numpy())


def test_error_lists_every_key(tmp_path):
    """Missing, extra and wrongly shaped keys are one error with the shapes, and no file is written."""
    tuned = weights(model("models/lenet_mm"), tmp_path)
    del tuned["0.bias"], tuned["9.weight"]
    tuned["3.weight"] = torch.zeros(8, 6, 3, 3)
    tuned["7.bias"] = "text"
    tuned["head.weight"] = torch.zeros(2, 1)
    with pytest.raises(ModelError) as caught:
        fill(tuned, model("models/lenet_mm"), tmp_path)

    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'tuned.pt'}: ")
    assert "2 missing, 1 extra, 2 of another shape or kind" in text
    for line in (
        "wrong 3.weight: expected [8, 6, 5, 5]; found [8, 6, 3, 3]",
        "wrong 7.bias: expected [20]; found str",
        "missing 0.bias: expected [6]",
        "missing 9.weight: expected [10, 20]",
        "extra head.weight: found [2, 1]",
    ):
        assert f"\n  {line}" in text
    assert not (tmp_path / "out.t7").exists()


def test_odd_keys(tmp_path):
    """Keys that are not names are quoted in a way that cannot break a message."""
    odd = {3: torch.zeros(1), 2**200: 1, ("a", 1): 2, "a\nb": 3, "x" * 1000: 4}
    with pytest.raises(ModelError) as caught:
        fill({**weights(model("nn/Linear"), tmp_path), **odd}, model("nn/Linear"), tmp_path)
    lines = ["3: found [1]", "<int>: found int", "<tuple>: found int", r"'a\nb': found int", "x" * 200 + ": found int"]
    assert caught.value.message.split("\n  ")[1:] == [f"extra {line}" for line in lines]


def test_error_is_cut(tmp_path):
    """An error that names very many keys ends with their count."""
    extra = {f"layer{number}.weight": torch.zeros(1) for number in range(MAX_LISTED + 10)}
    with pytest.raises(ModelError, match=f"{MAX_LISTED + 10} extra") as caught:
        fill({**weights(model("nn/Linear"), tmp_path), **extra}, model("nn/Linear"), tmp_path)
    assert caught.value.message.endswith("… and 10 more")


def test_partial(tmp_path):
    """`partial` keeps Lua's values for missing keys and leaves out extra ones, with notes; shapes must fit."""
    tuned = {"0.weight": torch.ones(6, 1, 5, 5), "fc.weight": torch.zeros(3)}
    with pytest.raises(ModelError, match="--partial"):
        fill(tuned, model("models/lenet_mm"), tmp_path)
    report = fill(tuned, model("models/lenet_mm"), tmp_path, partial=True)

    before, after = arrays(model("models/lenet_mm")), arrays(tmp_path / "out.t7")
    assert (after.pop("0.weight") == 1).all()
    assert after.keys() == before.keys() - {"0.weight"}
    assert all(np.array_equal(after[key], before[key]) for key in after)
    assert re.search("warning: 7 keys are missing.*0.bias", messages(report))
    assert re.search("warning: 1 key does not exist in Lua.*fc.weight", messages(report))
    with pytest.raises(ModelError, match=r"expected \[6\]; found \[5\]"):
        fill({**tuned, "0.bias": torch.zeros(5)}, model("models/lenet_mm"), tmp_path, partial=True)
    with pytest.raises(ModelError, match="no key"):
        fill({"fc.weight": torch.zeros(3)}, model("models/lenet_mm"), tmp_path, partial=True)


def test_tied_weights_with_different_values(tmp_path):
    """Two keys that are one memory in Lua must have the same values, in one memory in PyTorch or not."""
    tuned = {key: tensor.clone() for key, tensor in weights(model("models/siamese_shared"), tmp_path).items()}
    fill(tuned, model("models/siamese_shared"), tmp_path)
    assert model("models/siamese_shared").read_bytes() == (tmp_path / "out.t7").read_bytes()
    tuned["0.1.2.weight"][0, 0] += 1

    with pytest.raises(ModelError, match=r"0\.0\.2\.weight and 0\.1\.2\.weight"):
        fill(tuned, model("models/siamese_shared"), tmp_path)


def test_tensors_that_overlap(tmp_path):
    """Tensors that share a part of their memory must agree there; a tensor that repeats one element, with itself."""
    memory = Storage.from_array(np.zeros(8, "f4"))
    first, second = (Tensor(memory.element, memory, (5,), (1,), offset) for offset in (0, 3))
    repeated = Tensor(memory.element, Storage.from_array(np.zeros(1, "f4")), (3,), (0,))
    layers = [TorchObject("nn.Add", 1, Table.of({"bias": tensor})) for tensor in (first, second, repeated)]
    template = saved(container("nn.Sequential", *layers), tmp_path)
    tuned = {"0.bias": torch.arange(5.0), "1.bias": torch.arange(3.0, 8.0), "2.bias": torch.ones(3)}
    fill(tuned, template, tmp_path)
    assert np.array_equal(arrays(tmp_path / "out.t7")["1.bias"], tuned["1.bias"].numpy())

    tuned["1.bias"] += 1
    tuned["2.bias"] = torch.arange(3.0)
    with pytest.raises(ModelError) as caught:
        fill(tuned, template, tmp_path)
    assert caught.value.message.count("\n") == 2
    assert "0.bias and 1.bias" in caught.value.message
    assert "2.bias gets different values" in caught.value.message


@pytest.mark.parametrize(
    ("kind", "dtype", "values", "note"),
    [
        ("f8", torch.float32, [0.1, 2.0], ""),
        ("f8", torch.bfloat16, [0.1, 2.0], ""),
        ("f4", torch.bfloat16, [0.1, 2.0], ""),
        ("f4", torch.float8_e4m3fn, [0.5, -2.0], ""),
        ("f4", torch.int64, [3.0, -1.0], ""),
        ("f4", torch.bool, [0.0, 1.0], ""),
        ("f4", torch.float64, [0.5, 2.0], ""),
        ("f4", torch.float64, [0.1, 2.0], "info: 1 tensor rounded"),
        ("f4", torch.float64, [1e300, 2.0], "warning: 1 tensor with numbers"),
        ("f2", torch.float32, [1e6, 2.0], "warning: 1 tensor with numbers"),
        ("i8", torch.float32, [0.5, 2.0], "warning: 1 tensor with numbers"),
    ],
)
def test_element_types(kind, dtype, values, note, tmp_path):
    """The template's element type is kept; a note says if it cannot hold PyTorch's values."""
    bias = torch.tensor(values, dtype=torch.float64).to(dtype)
    report = fill({"weight": torch.zeros(2, 3), "bias": bias}, saved(linear(kind), tmp_path), tmp_path)

    result = arrays(tmp_path / "out.t7")["bias"]
    with np.errstate(all="ignore"):
        assert np.array_equal(result, bias.double().numpy().astype(kind))
    assert result.dtype == kind
    assert messages(report)[: len(note) or None] == note


def test_complex_weights(tmp_path):
    """Complex numbers do not fit any Lua tensor."""
    bias = torch.zeros(2, dtype=torch.complex64)
    with pytest.raises(ModelError, match="wrong bias: expected float32; found complex64"):
        fill({"weight": torch.zeros(2, 3), "bias": bias}, saved(linear(), tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["models/unet_nngraph", "models/autoencoder_flat", "legacy/bn_running_std"])
@pytest.mark.parametrize("layout", [{"encoding": "ascii"}, {"byte_order": "big"}, {"long_size": 4}], ids=str)
def test_layout_is_the_templates(name, layout, tmp_path):
    """Encoding, byte order and size of long are the template's, or what is asked for."""
    template = tmp_path / "template.t7"
    convert(model(name), template, **layout)
    value = weights(model(name), tmp_path)
    fill(value, template, tmp_path)
    assert template.read_bytes() == (tmp_path / "out.t7").read_bytes()
    fill(value, model(name), tmp_path, **layout)
    assert template.read_bytes() == (tmp_path / "out.t7").read_bytes()


@pytest.mark.parametrize(
    ("wrap", "note"),
    [
        (lambda state: state, ""),
        (lambda state: OrderedDict((f"module.{key}", tensor) for key, tensor in state.items()), "begin with module."),
        (lambda state: {"state_dict": state, "best": 0.5}, "state dicts of the .pt: best"),
        (lambda state: {"model": state, "mean": torch.zeros(3), "epoch": 13}, "state dicts of the .pt: mean, epoch"),
        (lambda state: {"model_state_dict": {f"module.{key}": t for key, t in state.items()}}, "begin with module."),
        (lambda state: {key: torch.nn.Parameter(tensor) for key, tensor in state.items()}, ""),
    ],
)
@pytest.mark.parametrize("name", ["training_checkpoint", "autoencoder_flat"])
def test_shapes_of_checkpoints(name, wrap, note, tmp_path):
    """A state dict may be alone or in a checkpoint, and fills the one module of a template."""
    value = weights(model(f"models/{name}"), tmp_path)
    state = {key: tensor + 1 for key, tensor in value.get("model", value).items()}
    report = fill(wrap(state), model(f"models/{name}"), tmp_path)

    result = arrays(tmp_path / "out.t7")
    assert all(np.array_equal(result[key], tensor.numpy()) for key, tensor in state.items())
    assert note in messages(report)
    assert bool(note) == bool(report.notes)


def test_whole_module(tmp_path):
    """A module that was pickled whole counts as its state dict."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 8), torch.nn.Sigmoid())
    fill(net, model("models/autoencoder_flat"), tmp_path)

    result = arrays(tmp_path / "out.t7")
    assert all(np.array_equal(result[key], tensor.numpy()) for key, tensor in net.state_dict().items())


def test_several_modules(tmp_path):
    """Several modules are filled at their paths; one state dict is ambiguous, except with a criterion."""
    template = saved(Table.of({"netG": linear(), "nets": Table.from_list([linear(size=4)])}), tmp_path)
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    other = {"weight": torch.ones(4, 3), "bias": torch.ones(4)}
    report = fill({"netG": state, "nets": [other], "epoch": 3}, template, tmp_path)

    filled = [array for _, module in find_modules(read(str(tmp_path / "out.t7"))) for array in _values(module)]
    assert sorted(array.shape for array in filled) == [(2,), (2, 3), (4,), (4, 3)]
    assert all((array == 1).all() for array in filled)
    assert messages(report) == "info: ignored besides the state dicts of the .pt: epoch"
    with pytest.raises(ModelError, match=r"several modules.*root\.netG, root\.nets\[1\]"):
        fill(state, template, tmp_path)
    with pytest.raises(ModelError, match=r"missing root\.nets\[1\]: weight: expected \[4, 3\]"):
        fill({"netG": state}, template, tmp_path)
    criterion = TorchObject("nn.ClassNLLCriterion", 1, Table.of({"weights": linear()["bias"]}))
    template = saved(Table.of({"model": linear(), "criterion": criterion}), tmp_path)
    assert "root.criterion keeps its values" in messages(fill(state, template, tmp_path))


def _values(module: TorchObject) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in state_dict(module).tensors.values()]


def test_two_state_dicts(tmp_path):
    """A checkpoint with two state dicts is ambiguous."""
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    with pytest.raises(ModelError, match="several state dicts; found state_dict, model"):
        fill({"state_dict": state, "model": dict(state)}, saved(linear(), tmp_path), tmp_path)


def test_class_without_mapping(tmp_path):
    """Tensors of unknown classes keep Lua's names both ways."""
    layer = TorchObject("my.Layer", 1, Table.of({"gain": linear()["bias"], "output": None, "gradInput": None}))
    fill({"0.gain": torch.ones(2)}, saved(container("nn.Sequential", layer), tmp_path), tmp_path)
    assert arrays(tmp_path / "out.t7")["0.gain"].all()


def test_what_a_template_is_for(tmp_path):
    """A template is a `.t7` for a `.pt`, is never written to, and its record of another value does not count."""
    source = model("nn/Linear")
    template = saved(linear(), tmp_path)
    data = template.read_bytes()
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(TargetExistsError, match="input"):
        convert(tmp_path / "x.pt", template, template=template, force=True)
    with pytest.raises(ModelError, match=r"from \.t7 to \.t7"):
        convert(source, tmp_path / "y.t7", template=template)
    with pytest.raises(ModelError, match=r"from \.pt to \.pt"):
        convert(tmp_path / "x.pt", tmp_path / "y.pt", template=template)
    with pytest.raises(ModelError, match="partial"):
        convert(tmp_path / "x.pt", tmp_path / "y.t7", partial=True)
    with pytest.raises(FormatError, match=r"is not a \.t7"):
        convert(tmp_path / "x.pt", tmp_path / "y.t7", template=tmp_path / "x.pt")
    assert template.read_bytes() == data
    convert(model("models/lenet_mm"), tmp_path / "tree.pt", mode="tree")
    with pytest.raises(ModelError, match=r"the keys do not match|no state dict"):
        convert(tmp_path / "tree.pt", tmp_path / "y.t7", template=model("models/lenet_mm"))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pt", ".pt", ".t7"]


@pytest.mark.slow
def test_command_line(tmp_path):
    """`convert --template` reports mismatches, with exit code 2; `--partial` alone is wrong usage."""
    template = saved(Table.of({"net": linear("f8"), "name": b"x"}), tmp_path)
    torch.save({"weight": torch.ones(2, 3)}, tmp_path / "x.pt")
    command = [sys.executable, "-m", "t7bridge", "convert", str(tmp_path / "x.pt"), str(tmp_path / "y.t7")]
    runs = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        for more in (["--template", str(template)], ["--partial"], ["--template", str(template), "--partial"])
    ]

    assert [run.returncode for run in runs] == [2, 2, 0]
    assert "missing root.net: bias: expected [2]" in runs[0].stderr
    assert "1 key is missing" in runs[2].stderr
    value = read(str(tmp_path / "y.t7"))
    assert value["name"] == b"x"
    assert value["net"]["weight"].element == FLOAT64


def test_one_state_dict_under_two_names(tmp_path):
    """A checkpoint that names one state dict twice has one."""
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    fill({"state_dict": state, "model": state}, saved(linear(), tmp_path), tmp_path)
    assert (arrays(tmp_path / "out.t7")["weight"] == 1).all()


def test_checkpoint_inside_itself():
    """A wrapper that contains itself ends, and is not a state dict."""
    value = {"epoch": 1}
    value["model"] = value
    assert state_dict_in(value) is None


def test_batches_are_counted(tmp_path):
    """PyTorch's batch counter, which Lua lacks, is left out, and the note has the count."""
    path = saved(container("nn.Sequential", linear(size=3), linear(size=3)), tmp_path)
    state = {**weights(path, tmp_path), "0.num_batches_tracked": torch.tensor(5)}
    state["1.num_batches_tracked"] = torch.tensor(7)
    resnet = model("models/resnet_small")
    tuned = weights(resnet, tmp_path)
    for value, template, times in ((state, path, 2), (tuned, resnet, sum("batches" in key for key in tuned))):
        notes = [note for note in fill(value, template, tmp_path).notes if "num_batches_tracked" in note.message]
        assert [(note.level, f"{times} times" in note.message) for note in notes] == [("info", True)]


def test_partial_lists_what_is_wrong_only(tmp_path):
    """With `partial` an error about shapes names neither missing nor extra keys; an empty dict is called one."""
    with pytest.raises(ModelError) as caught:
        fill({"weight": torch.ones(2, 2), "more": torch.ones(1)}, saved(linear(), tmp_path), tmp_path, partial=True)
    assert "wrong root.weight" in str(caught.value).replace("wrong weight", "wrong root.weight")
    assert "missing bias" not in str(caught.value)
    assert "extra more" not in str(caught.value)


class Tied(torch.nn.Module):
    """An embedding whose matrix is also that of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.b, self.l = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False), torch.nn.Linear(7, 2)
        self.b.weight = self.e.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two numbers for each token."""
        return self.l(self.b(self.e(x)))


@pytest.fixture(scope="module")
def recorded_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A `.t7` by `save_module`, which has the names of PyTorch, and its state dict."""
    torch.manual_seed(41)
    module = Tied().eval()
    path = tmp_path_factory.mktemp("recorded") / "model.t7"
    save_module(module, path, torch.randint(0, 7, (3,)))
    return path, module.state_dict()


def doubled(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Other weights, tied as these."""
    return {key: value * 2 for key, value in state.items()}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "net.", "module.", "model.inner."])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_recorded_names(prefix, dtype, recorded_model, tmp_path):
    """Weights return under any prefix, and from types that Lua lacks, with exactly their numbers."""
    path, state = recorded_model
    narrow = {key: value.to(dtype) for key, value in doubled(state).items()}
    report = fill({prefix + key: value for key, value in narrow.items()}, path, tmp_path)
    for key, value in load_module(tmp_path / "out.t7").state_dict().items():
        assert torch.equal(value, narrow[key].float()), key
    said = prefix in ("", "module.") or f"all keys begin with no prefix in the template, not with {prefix}"
    assert said is True or said in messages(report)


class Swapped(torch.nn.Module):
    """Layers that run in another order than that of their names, all under one name."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the second layer, then the first."""
        return self.net[0](self.net[1](x))


@pytest.mark.slow
def test_recorded_names_that_a_prefix_makes_others(tmp_path):
    """Recorded keys `net.0.weight` are not Lua's `0.weight`, of another layer, though a prefix would make them fit."""
    torch.manual_seed(43)
    module = Swapped().eval()
    path = tmp_path / "model.t7"
    save_module(module, path, torch.randn(2, 4))
    state = doubled(module.state_dict())
    report = fill(state, path, tmp_path)
    module.load_state_dict(state)
    example = torch.randn(3, 4)

    assert torch.equal(load_module(tmp_path / "out.t7")(example), module(example))
    assert "the keys are those that the module had in PyTorch" in messages(report)


WRONG = {
    "transposed": ({"l.weight": torch.zeros(7, 2)}, r"wrong l\.weight: expected \[2, 7\]; found \[7, 2\]"),
    "one column": ({"l.weight": torch.zeros(14, 1)}, r"wrong l\.weight: expected \[2, 7\]; found \[14, 1\]"),
    "untied": ({"b.weight": torch.zeros(7, 4)}, r"different values in e\.weight and b\.weight"),
    "bfloat16": ({"b.weight": torch.zeros(7, 4, dtype=torch.bfloat16)}, r"different values in e\.weight and b\.weight"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("prefix", ["", "net."])
def test_recorded_shapes_and_ties(case, prefix, recorded_model, tmp_path):
    """As many elements in another shape are not the same, and one tensor cannot have two values."""
    path, state = recorded_model
    change, message = WRONG[case]
    with pytest.raises(ModelError, match=message):
        fill({prefix + key: value for key, value in {**state, **change}.items()}, path, tmp_path)
    assert not (tmp_path / "out.t7").exists()


def test_prefixes_of_lua_names(tmp_path):
    """A prefix of all keys goes if the rest are those of the Lua model; another step is an error, as ever."""
    path = saved(container("nn.Sequential", linear(), linear()), tmp_path)
    state = {
        f"{place}.{name}": torch.ones(shape) for place in (0, 1) for name, shape in (("weight", (2, 3)), ("bias", 2))
    }
    report = fill({f"net.{key}": value for key, value in state.items()}, path, tmp_path)
    assert "not with net." in messages(report)
    assert all((value == 1).all() for value in arrays(tmp_path / "out.t7").values())
    with pytest.raises(ModelError, match="4 missing, 4 extra"):
        fill({key.replace(".", ".x."): value for key, value in state.items()}, path, tmp_path)


@pytest.mark.slow
def test_keys_of_model_py(tmp_path):
    """Shapes under the keys of a `model.py` are compared too, also those of recognized cells."""
    path = TESTFILES / "models" / "char_lstm_nngraph.t7"
    write_module(path, tmp_path / "page")
    state = torch.load(tmp_path / "page" / "model.pt", weights_only=True)
    fill({f"net.{key}": value.bfloat16() for key, value in state.items()}, path, tmp_path)
    kept = weights(tmp_path / "out.t7", tmp_path)
    assert all(torch.equal(value, value.bfloat16().float()) for value in kept.values())
    key = next(key for key, value in state.items() if value.dim() == 2 and len(set(value.shape)) == 2)
    with pytest.raises(ModelError, match=f"wrong {re.escape(key)}"):
        fill({**state, key: state[key].t().contiguous()}, path, tmp_path)
