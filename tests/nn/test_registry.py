"""The table of layers: complete, without duplicates, open to users."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import TESTFILES, read

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.errors import ModelError, UnsupportedLayerError
from t7bridge.layers import (
    BASE,
    Lua,
    Permute,
    dim,
    either,
    flag,
    has,
    layer_of,
    modules,
    number,
    of_torch,
    optional,
    optional_dim,
    optional_number,
    pair,
    param,
    register_layer,
    registered_layers,
    sizes,
    unregister_layer,
)
from t7bridge.nn import build_plan, registry
from t7bridge.torchmodules import live_module


def numbers(*size: int) -> Tensor:
    """The numbers from 0 on."""
    return Tensor.from_numpy(np.arange(np.prod(size), dtype="f4").reshape(size))


def obj(name: str, **fields: object) -> TorchObject:
    """An object with these fields."""
    return TorchObject(name, 1, Table.of(fields))


def test_every_case_of_nn_has_an_entry():
    """Every class that the corpus is named after is in the table."""
    names = {path.name.split(".")[0] for path in (TESTFILES / "nn").glob("*.t7")}
    assert not [name for name in names if layer_of(f"nn.{name}") is None]


@pytest.mark.parametrize(
    "name",
    [
        "cudnn.SpatialConvolution",
        "cudnn.VolumetricBatchNormalization",
        "cudnn.BLSTM",
        "cunn.Linear",
        "fbcunn.LookupTable",
        "ccn2.SpatialConvolution",
        "inn.ROIPooling",
        "w2nn.LeakyReLU",
        "nn.gModule",
        "nn.Recursor",
    ],
)
def test_other_packages(name):
    """Classes of other packages have entries, of their own or that of nn."""
    assert layer_of(name) is not None


def test_unknown_classes_have_none():
    """No entry is guessed."""
    assert layer_of("my.Linear") is None
    assert layer_of("cudnn.NotYetWritten") is None


def test_an_own_entry_that_is_loaded_with_nns_counts(monkeypatch):
    """Before the rarer entries are loaded, cudnn.LSTM is not torch-rnn's nn.LSTM either."""
    loaded = {name: layer_of(name) for name in ("nn.LSTM", "cudnn.LSTM")}
    monkeypatch.setattr(registry, "_LAYERS", {})
    monkeypatch.setattr(registry, "load_more", lambda name, installed: registry._LAYERS.update(loaded))
    assert layer_of("cudnn.LSTM") is loaded["cudnn.LSTM"]
    assert layer_of("cunn.LSTM") is loaded["nn.LSTM"]


def test_entries_name_each_tensor_once():
    """No entry has two tensors of the same name, and only computed tensors lack a source."""
    for name, layer in registered_layers().items():
        if not callable(layer.params):
            kept = [item.name for item in layer.params]
            assert len(kept) == len(set(kept)), name
            assert all(item.sources or item.make for item in layer.params), name


def test_users_can_register():
    """A user's class gets an entry, once, and loses it again."""
    register_layer("my.Scale", params=(param("scale", Permute((1, 0)), field="gain"),), children=modules)
    try:
        result = state_dict(obj("my.Scale", gain=numbers(2, 3)))
        assert result.tensors["scale"].shape == (3, 2)
        assert not result.notes
        with pytest.raises(ModelError, match="already registered"):
            register_layer("my.Scale")
    finally:
        unregister_layer("my.Scale")
    assert layer_of("my.Scale") is None


def test_classes_without_a_module():
    """A class with weights but no module is distinguished from an unknown one, for which the hint is to register it."""
    register_layer("my.Scale", params=(param("scale", field="gain"),))
    try:
        for name, reason, hinted in (("my.Scale", "has no PyTorch module yet", False), ("my.Other", "", True)):
            model = obj("nn.Sequential", modules=Table.from_list([obj(name, gain=numbers(2, 3)), obj("nn.Tanh")]))
            with pytest.raises(UnsupportedLayerError) as caught:
                live_module(model)
            assert [path for path, _, _ in caught.value.layers] == ["root.modules[1]"]
            assert reason in str(caught.value)
            assert ("has no PyTorch module yet" in str(caught.value)) != hinted
            assert ("register_module" in caught.value.hint) == hinted
    finally:
        unregister_layer("my.Scale")


def test_origins_lead_back():
    """Every tensor of a state dict knows the Lua tensor and the layout it came from."""
    root = read(str(TESTFILES / "models/text_cnn.t7"))
    result = state_dict(root)
    origin = result.origins["1.weight"]
    assert origin.obj.class_name == "nn.TemporalConvolution"
    entry = layer_of("nn.TemporalConvolution")
    assert entry is not None
    assert origin.layout == entry.params[0].sources[0].layout != ()
    assert origin.tensor is origin.obj["weight"]


def test_ccn2_kernel():
    """Kernels of cuda-convnet2 have the output plane last."""
    weight = numbers(2 * 3 * 3, 16)
    tensors = state_dict(obj("ccn2.SpatialConvolution", weight=weight, kH=3.0)).tensors
    assert tensors["weight"].storage is weight.storage
    np.testing.assert_array_equal(tensors["weight"].numpy(), weight.numpy().reshape(2, 3, 3, 16).transpose(3, 0, 1, 2))


def test_grouped_kernel():
    """A grouped convolution's matrix has as many input planes as one group."""
    conv = obj("cudnn.SpatialConvolution", weight=numbers(4, 2 * 3 * 3), kW=3.0, kH=3.0, nInputPlane=8.0, groups=4.0)
    assert state_dict(conv).tensors["weight"].shape == (4, 2, 3, 3)


def test_transpose_of_dimension_0():
    """Lua refuses dimension 0, which PyTorch would count from the end; with an example's dimensions it is the batch."""
    permutations = Table.from_list([Table.from_list([0.0, 1.0])])
    with pytest.raises(UnsupportedLayerError, match="a dimension from 1"):
        build_plan(obj("nn.Transpose", permutations=permutations))
    assert build_plan(obj("nn.Transpose", permutations=permutations, numInputDims=2.0)).root.args == ((-1, 0),)


def test_cudnn_temporal_convolution():
    """cudnn.TemporalConvolution means other things by kH and kW, and has nn's weights."""
    conv = obj("cudnn.TemporalConvolution", weight=numbers(5, 3 * 4), inputFrameSize=4.0, kW=4.0, kH=3.0)
    weight = state_dict(conv).tensors["weight"]
    np.testing.assert_array_equal(weight.numpy(), conv["weight"].numpy().reshape(5, 3, 4).transpose(0, 2, 1))


def test_instance_normalization():
    """The statistics that the layer never reads, and the network inside it, are left out; that is noted."""
    inner = obj("nn.SpatialBatchNormalization", weight=numbers(6))
    layer = obj("nn.InstanceNormalization", weight=numbers(3), bias=numbers(3), running_mean=numbers(3), bn=inner)
    result = state_dict(layer)
    assert list(result.tensors) == ["weight", "bias"]
    assert [str(note) for note in result.notes] == [
        "info: root: nn.InstanceNormalization normalizes, as it did with nn before August 2017; later releases of nn "
        "take the running statistics of the batch normalization inside instead",
        "info: root.running_mean: running_mean of nn.InstanceNormalization: "
        "the layer does not use it, so it is left out",
    ]


@pytest.mark.parametrize(("name", "kind", "twice"), [("LSTM", "LSTM", 1), ("BLSTM", "LSTM", 2), ("GRU", "GRU", 1)])
def test_flat_recurrent_weights(name, kind, twice):
    """cuDNN's flat vector becomes the parameters of torch.nn, all of them views of it."""
    torch = pytest.importorskip("torch", reason="the names and shapes are PyTorch's")
    module = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=twice == 2)
    count = sum(weight.numel() for weight in module.parameters())
    flat = numbers(count)
    layer = obj(f"cudnn.{name}", weight=flat, inputSize=3.0, hiddenSize=4.0, numLayers=2.0, numDirections=float(twice))
    tensors = state_dict(layer).tensors
    assert {key: tuple(t.shape) for key, t in tensors.items()} == {
        k: tuple(t.shape) for k, t in module.state_dict().items()
    }
    assert list(tensors) == list(module.state_dict())
    assert all(tensor.storage is flat.storage for tensor in tensors.values())
    starts = [tensors[key].offset for key in tensors if key.startswith("weight")]
    assert starts == sorted(starts)
    assert tensors["bias_ih_l0"].offset > max(starts)


def test_flat_recurrent_weights_of_another_length():
    """A flat vector that the fields do not explain is unchanged, with a note."""
    layer = obj("cudnn.LSTM", weight=numbers(10), inputSize=3.0, hiddenSize=4.0, numLayers=1e18, numDirections=1e18)
    result = state_dict(layer)
    assert result.tensors["weight"].shape == (10,)
    assert "left as they are" in result.notes[0].message


def test_torch_rnn_lstm():
    """torch-rnn's nn.LSTM has a weight of its own, rnn's class of that name has modules."""
    own = obj("nn.LSTM", weight=numbers(5, 8), bias=numbers(8), input_dim=3.0, hidden_dim=2.0)
    assert {name: t.shape for name, t in state_dict(own).tensors.items()} == {
        "weight_ih_l0": (8, 3),
        "weight_hh_l0": (8, 2),
        "bias_ih_l0": (8,),
        "bias_hh_l0": (8,),
    }


def test_rows_give_arguments():
    """A declarative row reads each argument from its field, with older names and defaults, and what the shapes tell."""
    row = of_torch("Example", number("a|old", 0.5), dim("d"), bias=has("bias"), size=pair("h", "w"), first=BASE)
    lua = Lua(obj("nn.Example", old=2.0, d=3.0, h=4.0, w=5.0), shapes={"bias": (1,)}, index_base=0)
    assert row(lua).args == (2.0, 2)
    assert row(lua).kwargs == {"bias": True, "size": (4, 5), "first": 0}
    assert row(Lua(obj("nn.Example", d=-1.0, h=4.0, w=5.0))).args == (0.5, -1)


def test_older_names_of_any_argument():
    """Names after `|` are tried whatever the type of the field, and messages name the first."""
    reads = [flag("a|old"), sizes("s|sizes"), optional_dim("d|dim"), optional_number("n|number"), optional("i|int")]
    fields = {"old": True, "sizes": Table.from_list([2.0, 3.0]), "dim": 2.0, "number": 0.5, "int": 7.0}
    assert of_torch("Example", *reads)(Lua(obj("nn.Example", **fields))).args == (True, (2, 3), 1, 0.5, 7)
    assert of_torch("Example", *reads[2:])(Lua(obj("nn.Example"))).args == (None, None, None)
    for source in (dim("d|dim"), sizes("d|dim")):
        with pytest.raises(ModelError, match=r"root\.d: "):
            source.get(Lua(obj("nn.Example", dim=0.0)))
    with pytest.raises(ModelError, match="a list of sizes"):
        sizes("s").get(Lua(obj("nn.Example", s=Table.from_list([float("nan")]))))


def test_containers_above_are_a_sequence():
    """A condition on a container that is not there is a reason against the layer, from either end."""
    for at in (1, -2):
        identity = of_torch("Identity")
        module = either(lambda lua, at=at: lua.above[at], identity, identity)
        register_layer("my.Inner", module=module)
        try:
            model = obj("nn.Sequential", modules=Table.from_list([obj("my.Inner")]))
            with pytest.raises(UnsupportedLayerError, match=r"root\.modules\[1\]: my\.Inner has inconsistent fields"):
                build_plan(model)
            assert build_plan(obj("nn.Sequential", modules=Table.from_list([model]))).root
        finally:
            unregister_layer("my.Inner")


def test_users_say_what_a_class_is_in_pytorch():
    """A custom entry results in a live module, with the weights where the entry puts them."""
    register_layer("my.Affine", params=(param("weight", field="w"),), module=of_torch("Linear", 3, 2, bias=False))
    try:
        module = live_module(obj("my.Affine", w=numbers(2, 3)))
        assert module(torch.ones(3)).tolist() == [3.0, 12.0]
    finally:
        unregister_layer("my.Affine")


def test_ceil_pooling_with_large_strides():
    """A note warns if cuDNN may add a window outside the input; not if windows touch, or ceil mode is off."""
    sizes = {"kW": 2.0, "kH": 2.0, "dW": 3.0, "dH": 2.0, "padW": 0.0, "padH": 0.0}
    class_name = "cudnn.SpatialAveragePooling"
    (note,) = state_dict(obj(class_name, **sizes, ceil_mode=True)).notes
    assert "a window outside the input" in str(note)
    assert not state_dict(obj(class_name, **sizes, ceil_mode=False)).notes
    assert not state_dict(obj(class_name, **{**sizes, "dW": 2.0}, ceil_mode=True)).notes
    assert not state_dict(obj(class_name, **{**sizes, "padW": 1.0}, ceil_mode=True)).notes
    assert not state_dict(obj(class_name, **{**sizes, "dW": b"x"}, ceil_mode=True)).notes


@pytest.mark.parametrize("class_name", ["nn.SpatialMaxPooling", "nn.SpatialAveragePooling"])
def test_windows_outside_the_input_are_lua_torchs_own(class_name):
    """Only ceil mode without padding, with a stride larger than the kernel, needs a class that PyTorch has not."""
    sizes = {"kW": 2.0, "kH": 2.0, "dW": 3.0, "dH": 2.0, "padW": 0.0, "padH": 0.0, "divide": True}
    made = live_module(obj(class_name, **sizes, ceil_mode=True))
    assert made(torch.ones(1, 4, 6)).shape == (1, 2, 3)
    for other in ({"ceil_mode": False}, {"dW": 2.0, "ceil_mode": True}, {"padW": 1.0, "ceil_mode": True}):
        assert type(live_module(obj(class_name, **{**sizes, **other}))).__module__.startswith("torch.nn.")


@pytest.mark.parametrize("class_name", ["nn.VolumetricMaxPooling", "nn.VolumetricDilatedMaxPooling"])
def test_ceil_mode_that_lua_does_not_read(class_name):
    """Lua sets the ceil mode to false when it reads class version 1, and so does the module; a note says it."""
    sizes = {f"{name}{axis}": 2.0 for name in "kd" for axis in "TWH"}
    fields = Table.of({**sizes, "ceil_mode": True})
    for version, rounds_up in ((None, False), (1, False), (2, True)):
        layer = TorchObject(class_name, version, fields)
        assert live_module(layer).ceil_mode is rounds_up
        assert len(state_dict(layer).notes) == (0 if rounds_up else 1)
    assert not state_dict(TorchObject(class_name, 1, Table.of(sizes))).notes
