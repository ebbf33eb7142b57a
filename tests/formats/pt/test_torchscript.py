"""TorchScript: which attributes are parameters and buffers, in which order, and what is data besides."""

from __future__ import annotations

import io
from collections import OrderedDict

import numpy as np
import pytest
import torch
from bounds import bounded
from pt_helpers import PT, golden, members_of, torch_describe, zipped
from torch import nn

import t7bridge
from t7bridge import PtReader, Storage, Tensor
from t7bridge.errors import FormatError, LimitError
from t7bridge.formats import ScriptModule, parse_classes
from t7bridge.graph import FLOAT32
from t7bridge.values import describe_python

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

SOURCE = r"""
op_version_set = 1
class Net(Module):
  __parameters__ = ["weight", "odd\"name", ]
  __buffers__ = ["mean", ]
  weight : Tensor
  __annotations__ = []
  __annotations__["0"] = Tensor
  training : bool
  leaf : __torch__.Leaf
  eps : Final[float] = 1e-05
  def forward(self: __torch__.Net,
    x: Tensor) -> Tensor:
    hidden : Tensor = x
    return x
class Pair(NamedTuple):
  a : Tensor
class Old(Module):
  __parameters__ = ["w", ]
  w : Tensor
  b : Tensor
class Plain:
  c : int
"""


def test_classes_in_source():
    """Parameters, buffers and types are read from the source, and nothing of the methods."""
    classes = parse_classes(SOURCE)

    assert list(classes) == ["Net", "Pair", "Old", "Plain"]
    assert classes["Net"].parameters == ["weight", 'odd"name']
    assert classes["Net"].buffers == ["mean"]
    assert classes["Net"].types["0"] == "Tensor"
    assert classes["Net"].types["leaf"] == "__torch__.Leaf"
    assert "hidden" not in classes["Net"].types
    assert classes["Net"].has_code
    assert [cls.is_module for cls in classes.values()] == [True, False, True, False]
    assert classes["Old"].buffers is None


@pytest.mark.parametrize(
    "source",
    [
        "class A(Module):\n" + " " * 200_000,
        '"' * 200_000,
        "class A(Module):\n  __parameters__ = [" + '\\"' * 100_000 + "]\n",
    ],
)
def test_source_that_is_made_to_be_slow(source):
    """Parsing 200 kB of source takes linear time, and finds no class that does not exist."""
    with bounded(60):
        assert set(parse_classes(source)) <= {"A"}
        assert set(parse_classes("class A(Module):\n" + source)) == {"A"}


class Leaf(nn.Module):
    """A module with everything that a module can have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.weight = nn.Parameter(torch.ones(3))
        self.names = ["a", "b"]
        self.table = {"k": 1.5}
        self.plain = torch.full((2,), 7.0)

    def forward(self, x):
        return x + self.weight.sum() + self.mean.sum() + self.plain.sum() + len(self.names) + self.table["k"]


class Net(nn.Module):
    """Modules in a module, one of them twice."""

    def __init__(self):
        super().__init__()
        self.first = Leaf()
        self.again = self.first
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.again(self.first(x))


def scripted(module: nn.Module) -> tuple[object, bytes]:
    """A module as TorchScript, and its archive."""
    script = torch.jit.script(module)
    file = io.BytesIO()
    torch.jit.save(script, file)
    return script, file.getvalue()


def test_state_dict_is_pytorchs():
    """Names, order, sharing and bytes of a scripted module's state dict; the tensor in an attribute follows, once."""
    script, data = scripted(Net().eval())
    reader = PtReader(data)

    assert reader.kind == "torchscript"
    expected = OrderedDict(script.state_dict())
    expected["attributes.first.plain"] = torch.full((2,), 7.0)
    assert torch_describe(expected) == describe_python(reader.read())
    (note,) = reader.notes
    assert "1 tensor is an attribute" in note.message
    assert "attributes.first.plain" in note.message


def test_attributes_are_data():
    """Lists, dicts, flags and tensors that are neither parameter nor buffer are attributes by name."""
    reader = PtReader(scripted(Net().eval())[1])
    reader.read()

    assert reader.attributes["first.names"] == ["a", "b"]
    assert reader.attributes["first.table"] == {"k": 1.5}
    assert reader.attributes["first.plain"].numpy().tolist() == [7, 7]
    assert reader.attributes["layers.1.training"] is False
    assert reader.foreign == []


class Holder(nn.Module):
    """Tensors in lists, tables and tuples of attributes; one of them is a parameter too, one is a view of another."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.cached = {"a.b": torch.arange(2.0), "c": torch.arange(4.0)}
        self.listed = [torch.arange(5.0), self.weight]
        self.pair = (1, self.listed[0][1:3])

    def forward(self, x):
        return x + self.cached["c"].sum() + self.listed[0].sum() + self.pair[1].sum() + self.weight.sum()


def test_tensors_in_attributes_are_carried(tmp_path):
    """Every storage of the archive is reached by what `convert` writes, for each target, and the report names them."""
    _, data = scripted(Holder().eval())
    (tmp_path / "s.pt").write_bytes(data)
    expected = {
        "weight": [1, 1, 1],
        "attributes.cached.a.b": [0, 1],
        "attributes.cached.c": [0, 1, 2, 3],
        "attributes.listed.0": [0, 1, 2, 3, 4],
        "attributes.pair.1": [1, 2],
    }
    for suffix in (".pt", ".npz", ".safetensors", ".t7"):
        report = t7bridge.convert(tmp_path / "s.pt", tmp_path / f"o{suffix}", record=False)
        assert any("4 tensors are attributes" in note.message for note in report.notes)
        found = t7bridge.to_python(t7bridge.load(tmp_path / f"o{suffix}"))
        assert {key: value.tolist() for key, value in found.items()} == expected
    state = torch.load(tmp_path / "o.pt", weights_only=True)
    missing, unexpected = Holder().load_state_dict(state, strict=False)
    assert not missing
    assert set(unexpected) == set(expected) - {"weight"}


@pytest.mark.slow
def test_names_that_are_taken():
    """Tensors whose paths read the same are carried each, under names of their own, in time that grows with them."""
    storage = Storage.from_array(np.arange(20_000, dtype=np.float32))
    tensors = [Tensor(FLOAT32, storage, (1,), (1,), number) for number in range(20_000)]
    table = {"x" * 200 + str(number): tensor for number, tensor in enumerate(tensors[2:])}
    module = ScriptModule([("a", [{"1": tensors[0], 1: tensors[1]}, table], False)])
    with bounded(100):
        module.carry_attributes()
        state = module.state_dict
    assert list(state)[:3] == ["attributes.a.0.1", "attributes.a.0.1~2", "attributes.a.1." + "x" * 100]
    assert [tensor.offset for tensor in state.values()] == list(range(20_000))


def test_constants():
    """The constants of traced code are tensors of the value, as frozen modules have no others; a note says so."""
    extra = torch.arange(3.0)
    traced = torch.jit.trace(lambda x: x + extra, torch.ones(3))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    reader = PtReader(file.getvalue())

    value = reader.read()
    assert list(value) == ["constants.0"]
    assert value["constants.0"].numpy().tolist() == [0, 1, 2]
    assert ["constants of its code" in note.message for note in reader.notes] == [True]
    assert [constant.numpy().tolist() for constant in reader.constants] == [[0, 1, 2]]


def test_conjugated_views_are_other_tensors():
    """A conjugated view of a parameter, or of another attribute, has elements of its own and is carried, too."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor([1 + 2j, 3j]))
    module.plain = torch.tensor([5 + 1j])
    module.of_plain = module.plain.conj()
    module.of_weight = module.weight.detach().conj()
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    value = PtReader(file.getvalue()).read()
    assert {name: tensor.numpy().tolist() for name, tensor in value.items()} == {
        "weight": [1 + 2j, 3j],
        "attributes.plain": [5 + 1j],
        "attributes.of_plain": [5 - 1j],
        "attributes.of_weight": [1 - 2j, -3j],
    }


def test_archives_without_source():
    """If the source is missing, every tensor of a module counts as state."""
    members = members_of((PT / "torchscript_script.pt").read_bytes())
    data = zipped({name: content for name, content in members.items() if "/code/" not in name})

    assert set(dict(map(_name, golden(PT / "torchscript_script.pt")["v"]))) == set(PtReader(data).read())


def _name(pair):
    return pair[0]["v"], pair[1]


def test_modules_that_hold_themselves():
    """A module in itself meets a limit."""
    members = members_of((PT / "cpp_archive.pt").read_bytes())
    code = b"\x80\x02c__torch__\nModule\n)\x81q\x00}X\x01\0\0\0xh\x00sb."

    with pytest.raises(LimitError):
        PtReader(zipped({**members, "cpp_archive/data.pkl": code})).read()


@pytest.mark.parametrize("code", [b"N.", b"]N.", b"c__torch__\nModule\n)\x81.", b"c__torch__\nModule\n)\x81}K\x01Nsb."])
def test_values_that_are_no_module(code):
    """A value that is not a module, or has attributes without names, is an error."""
    members = members_of((PT / "cpp_archive.pt").read_bytes())

    with pytest.raises(FormatError):
        PtReader(zipped({**members, "cpp_archive/data.pkl": code})).read()


def test_constants_do_not_replace_what_has_their_name():
    """A weight of a module called `constants` stays beside the constants of the code."""
    weight, constant = (Tensor.from_numpy(np.full(1, number, "f4")) for number in (1, 2))
    for whole in (False, True):
        module = ScriptModule([("constants.0", weight, True)], state_has_attributes=whole)
        module.inline((constant,), "constants")
        found = module.state_dict
        assert {name: each.numpy().item() for name, each in found.items()} == {"constants.0": 1, "constants.0~2": 2}
