"""Classes without an entry, damaged models and hostile ones: nothing is dropped silently, nothing runs forever."""

from __future__ import annotations

import numpy as np
import pytest
from bounds import bounded

from t7bridge import Limits, Table, TdsHash, TdsVec, Tensor, TorchObject, state_dict
from t7bridge.errors import LimitError, ModelError, UnsupportedLayerError
from t7bridge.layers import Fields
from t7bridge.nn import build_plan, find_modules, is_module


def tensor(*size: int) -> Tensor:
    """A tensor of ones."""
    return Tensor.from_numpy(np.ones(size, "f4"))


def obj(name: str, /, **fields: object) -> TorchObject:
    """An object with these fields; Python's lists become Lua's."""
    items = {key: Table.from_list(value) if isinstance(value, list) else value for key, value in fields.items()}
    return TorchObject(name, 1, Table.of(items))


def linear() -> TorchObject:
    """A Linear layer."""
    return obj("nn.Linear", weight=tensor(2, 3), bias=tensor(2))


def warnings_of(result: object) -> list[str]:
    """The warnings of a state dict, as text."""
    return [str(note) for note in result.notes if note.level == "warning"]


def test_unknown_layer_keeps_its_usual_tensors():
    """An unknown class keeps weight and bias, and names what else it had."""
    result = state_dict(obj("my.Layer", bias=tensor(2), weight=tensor(2, 3), extra=tensor(5), gradWeight=tensor(2, 3)))
    assert list(result.tensors) == ["weight", "bias"]
    assert warnings_of(result) == [
        "warning: root: no mapping yet for class my.Layer: its tensors keep Lua's names",
        "warning: root.extra: extra of my.Layer holds a tensor that is left out",
    ]


def test_unknown_layer_without_usual_names():
    """Without weight and bias every tensor that is not scratch is kept, in tables too."""
    layer = obj("my.Layer", scale=tensor(2), output=tensor(9), _tmp=tensor(3), pair=[tensor(1), tensor(4)])
    result = state_dict(layer)
    assert {name: t.shape for name, t in result.tensors.items()} == {
        "scale": (2,),
        "pair.0": (1,),
        "pair.1": (4,),
    }


def test_modules_in_fields_of_unknown_classes():
    """Modules are found in any field, under the field's name; an alias of a child is not listed again."""
    inner = linear()
    layer = obj(
        "onmt.Encoder", modules=[inner], net=inner, other=obj("nn.Sequential", modules=[linear()]), rnns=[linear()]
    )
    result = state_dict(layer)
    assert list(result.tensors) == [
        "0.weight",
        "0.bias",
        "other.0.weight",
        "other.0.bias",
        "rnns.0.weight",
        "rnns.0.bias",
    ]


def test_notes_are_grouped():
    """An unknown class at many places causes one note with the first path."""
    result = state_dict(obj("nn.Sequential", modules=[obj("my.Swish") for _ in range(5)]))
    assert warnings_of(result) == [
        "warning: root.modules[1]: no mapping yet for class my.Swish: it has no tensors of its own "
        "(and at 4 more places)"
    ]


def test_left_out_fields_of_known_classes():
    """A tensor or module that a user added to a known layer is named in a note, unless it is kept elsewhere."""
    layer = linear()
    layer["mine"] = tensor(7)
    layer["alias"] = layer["weight"]
    layer["sub"] = obj("nn.Linear", weight=tensor(2, 2))
    assert warnings_of(state_dict(layer)) == [
        "warning: root.mine: mine of nn.Linear holds a tensor that is left out",
        "warning: root.sub: sub of nn.Linear holds a nn.Linear that is left out",
    ]


@pytest.mark.parametrize("name", ["nn.Linear", "nn.SpatialConvolution", "nn.BatchNormalization", "nn.WeightNorm"])
def test_empty_objects(name):
    """A known class without any field has no tensors and causes no error."""
    assert dict(state_dict(obj(name)).tensors) == {}
    assert dict(state_dict(TorchObject(name, 1, None)).tensors) == {}


def test_wrong_fields():
    """Inconsistent fields keep Lua's layout, with a warning that has the reason."""
    conv = obj("nn.SpatialConvolutionMM", weight=tensor(4, 18), bias=b"none", kW=5.0, kH=7.0)
    result = state_dict(conv)
    assert result.tensors["weight"].shape == (4, 18)
    assert "weight of nn.SpatialConvolutionMM keeps Lua's layout" in warnings_of(result)[0]


@pytest.mark.parametrize("modules", [b"modules", 3.0, True])
def test_modules_that_are_no_list(modules):
    """A container whose `modules` are something else is warned of."""
    assert len(warnings_of(state_dict(obj("nn.Sequential", modules=modules)))) == 1


def test_container_with_strangers():
    """A value in a list of modules that is not a module causes a warning; the others are kept."""
    result = state_dict(obj("nn.Sequential", modules=[linear(), tensor(3), linear()]))
    assert list(result.tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "modules[2]: nn.Sequential holds a Tensor where a module belongs" in warnings_of(result)[0]


def test_shared_modules():
    """A module at two places has keys at both, and the same tensors, computed ones included."""
    norm = obj("nn.BatchNormalization", running_mean=tensor(3), running_std=tensor(3), eps=1e-5)
    tensors = state_dict(obj("nn.Sequential", modules=[norm, norm])).tensors
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert tensors[f"0.{name}"] is tensors[f"1.{name}"]


def test_tied_copies_stay_tied():
    """Weights that share memory and have to be copied are copied once."""
    weight = tensor(2, 3, 2, 2)

    def layer() -> TorchObject:
        return obj("nn.SpatialDepthWiseConvolution", weight=weight, kW=2.0, kH=2.0)

    tensors = state_dict(obj("nn.Sequential", modules=[layer(), layer()])).tensors
    assert tensors["0.weight"].shape == (6, 1, 2, 2)
    assert tensors["0.weight"].storage is tensors["1.weight"].storage


def test_cycles():
    """A module that contains itself is taken once; so is an unknown one that points at its parent."""
    root = obj("nn.Sequential", modules=[linear()])
    root["modules"].raw_keys.append(2.0)
    root["modules"].raw_values.append(root)
    root["modules"]._index = None
    result = state_dict(root)
    assert list(result.tensors) == ["0.weight", "0.bias"]
    assert "contains itself" in warnings_of(result)[0]
    child = obj("my.Child", weight=tensor(1))
    parent = obj("my.Parent", child=child)
    child["parent"] = parent
    assert list(state_dict(parent).tensors) == ["child.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nn.Sequential", "my.Wrapper"])
def test_deep_nesting(name):
    """Ten thousand containers in one another: no recursion, and names built once."""
    root = linear()
    for _ in range(10_000):
        root = obj(name, modules=[root])
    assert [len(key) for key in state_dict(root).tensors] == [20_006, 20_004]
    assert [path for path, _ in find_modules(root)] == ["root"]


def test_names_that_are_too_long():
    """A tensor at every one of many levels would need gigabytes of names: here the limit is a megabyte."""
    root = linear()
    for _ in range(3000):
        root = obj("my.Wrapper", modules=[root], weight=tensor(1))
    with pytest.raises(LimitError, match="nested too deep"):
        state_dict(root, limits=Limits(name_chars=1 << 20))


def test_sharing_that_explodes():
    """Fifty containers that each hold the next one twice have 2^50 places."""
    root = linear()
    for _ in range(50):
        root = obj("nn.Sequential", modules=[root, root])
    with pytest.raises(LimitError, match="shared in too many places"):
        state_dict(root, limits=Limits(work=10_000))


@pytest.mark.slow
def test_tables_shared_by_many_objects():
    """A table without tensors is searched once, however many unknown objects hold it."""
    words = Table.from_list([b"word"] * 100_000)
    vocabulary = Table.from_list([Table.from_list([b"word"]) for _ in range(100_000)])
    layers = [obj("my.Layer", weight=tensor(1), words=words, vocabulary=vocabulary) for _ in range(300)]
    assert len(state_dict(obj("nn.Sequential", modules=layers)).tensors) == 300


def test_equal_names():
    """Two tensors that come to the same name are both kept."""
    table = Table([1.0, b"1"], [tensor(1), tensor(2)])
    table.raw_keys.append(b"x")
    table.raw_values.append(1.0)
    result = state_dict(obj("my.Layer", pair=table))
    assert list(result.tensors) == ["pair.1", "pair.1_2"]


def test_find_modules():
    """The outermost modules and criterions, in tables, tds collections and Python containers, each once."""
    model, criterion = obj("nn.Sequential", modules=[linear()]), obj("nn.ClassNLLCriterion", weights=tensor(3))
    table = Table.of({"model": model, "again": model, "data": TdsVec([TdsHash(Table.of({"net": linear()}))])})
    table["criterion"] = criterion
    assert [path for path, _ in find_modules([table])] == [
        "root[0].model",
        "root[0].data[1].net",
        "root[0].criterion",
    ]
    result = state_dict(criterion)
    assert list(result.tensors) == ["weight"]
    assert [note.level for note in result.notes] == ["info"]


def test_is_module():
    """Modules are known by class, by package, or by the fields that every module has."""
    assert is_module(obj("nn.NotYetWritten"))
    assert is_module(obj("onmt.Decoder", output=tensor(1), gradInput=tensor(1)))
    assert is_module(obj("my.Net", modules=[linear()]))
    for other in (obj("my.Data", x=1.0), obj("nngraph.Node", data=Table()), tensor(2), Table(), None, 3.0):
        assert not is_module(other)


def test_no_object():
    """Only a Torch object has a state dict."""
    with pytest.raises(ModelError, match="made from an nn module"):
        state_dict(Table())


def test_fields_are_typed():
    """Fields of a wrong type are refused with their path; indices count from 0."""
    fields = Fields(obj("nn.Select", dimension=2.0, index=-1.0, kW=1.5, name=b"x", flag=False), "root.modules[3]")
    assert (fields.index0("dimension"), fields.index0("index")) == (1, -1)
    assert fields.text("name") == "x"
    assert not fields.flag("flag", True)
    with pytest.raises(ModelError, match=r"root\.modules\[3\]\.kW: .* whole number; found 1\.5"):
        fields.integer("kW")
    with pytest.raises(ModelError, match="expected a number; found bytes"):
        fields.number("name")
    with pytest.raises(ModelError, match="expected a tensor with elements; found nothing"):
        fields.tensor("weight")
    assert Fields(obj("x", size=[2.0, 3.0])).sizes("size") == (2, 3)


def test_many_unknown_layers_take_time_in_proportion():
    """Names like that of a class are looked for once, and each reason is compared with none of the others."""
    layers = Table.from_list([TorchObject("nn.Liner", 1, Table.of({})) for _ in range(3000)])
    with bounded(60), pytest.raises(UnsupportedLayerError, match="3000 layers have no PyTorch module"):
        build_plan(TorchObject("nn.Sequential", 1, Table.of({"modules": layers})))
