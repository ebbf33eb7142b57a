"""TorchScript: which attributes are parameters and buffers, in which order, and what is data besides."""

from __future__ import annotations

import io
from collections import OrderedDict

import pytest
import torch
from pt_helpers import PT, golden, members_of, torch_describe, zipped
from torch import nn

from t7bridge.errors import FormatError, LimitError
from t7bridge.formats.pt.reader import PtReader
from t7bridge.formats.pt.torchscript import parse_classes
from t7bridge.values.describe_python import describe_python

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
    """Looking at source takes time in proportion to its length."""
    parse_classes(source)
    parse_classes("class A(Module):\n" + source)


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
    """Names, order, sharing and bytes of a scripted module's state dict."""
    script, data = scripted(Net().eval())
    reader = PtReader(data)

    assert reader.kind == "torchscript"
    assert torch_describe(OrderedDict(script.state_dict())) == describe_python(reader.read())


def test_attributes_are_data():
    """Lists, dicts, flags and tensors that are neither parameter nor buffer are attributes by name."""
    reader = PtReader(scripted(Net().eval())[1])
    reader.read()

    assert reader.attributes["first.names"] == ["a", "b"]
    assert reader.attributes["first.table"] == {"k": 1.5}
    assert reader.attributes["first.plain"].numpy().tolist() == [7, 7]
    assert reader.attributes["layers.1.training"] is False
    assert reader.foreign == []


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


def test_archives_without_source():
    """Where the source is missing, every tensor of a module counts as state."""
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
    """What is no module, or has attributes without names, is an error."""
    members = members_of((PT / "cpp_archive.pt").read_bytes())

    with pytest.raises(FormatError):
        PtReader(zipped({**members, "cpp_archive/data.pkl": code})).read()
