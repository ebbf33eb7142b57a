"""Classes of other packages whose names without the package are those of nn: they are never taken for these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES, read
from source_helpers import run_source

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.errors import UnsupportedLayerError
from t7bridge.layers import unregister_layer
from t7bridge.nn import LAYERS, load_classes, traits_of

PROGRAM = """
import torch
from t7bridge.layers import Traits, flows, modules, number, register_module

@register_module("my.Tanh", args=(number("factor", 3.0),))
class Tanh(torch.nn.Module):
    "Not the hyperbolic tangent."

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, input):
        return input * self.factor

@register_module("my.SoftMax", args=(4.0,))
class Softmax(Tanh):
    "Called like a class that pages copy."

@register_module("my.Model", args=(5.0,))
class Model(Tanh):
    "Called like the class that every page has."

@register_module("my.Tensor", args=(6.0,))
class Tensor(Tanh):
    "Called like a name that every page imports."

@register_module("my.nn", args=(7.0,))
class nn(Tanh):
    "Called like a module that every page imports."

@register_module("my.Linear")
class Linear(torch.nn.Module):
    "Doubles the features, without weights."

    def forward(self, input):
        return torch.cat([input, -input], 1)

@register_module("my.SpatialConvolution", args=(3, 5, 7), kwargs={"bias": True, "stride": 1})
class Conv2d(torch.nn.Module):
    "Takes arguments of another meaning than those of torch.nn."

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, input):
        return input

@register_module("my.Parallel", children=modules, traits=Traits(flow=flows.branches, returns_list=True))
class Parallel(torch.nn.Sequential):
    "Passes its input to every module inside."

    def forward(self, input):
        return [module(input) for module in self]

@register_module("my.ConcatTable", children=modules)
class ConcatTable(torch.nn.Sequential):
    "Of which nothing is declared: it calls its modules one after another."
"""
NAMES = ("Tanh", "SoftMax", "Model", "Tensor", "nn", "Linear", "SpatialConvolution", "Parallel", "ConcatTable")


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All classes of the program, until the tests of this file are over."""
    path = tmp_path_factory.mktemp("classes") / "classes_of_bare_names.py"
    path.write_text(PROGRAM)
    load_classes(path)
    yield
    for name in NAMES:
        unregister_layer(f"my.{name}")


def obj(class_name: str, *inside: TorchObject, **fields: Any) -> TorchObject:
    """An object of Lua, with modules inside."""
    if inside:
        fields["modules"] = Table.from_list([*inside])
    return TorchObject(class_name, 1, Table.of(fields))


def ones(*shape: int) -> Tensor:
    """A tensor of ones."""
    return Tensor.from_numpy(np.ones(shape))


COMPOUNDS = {
    "TanhShrink": obj("nn.TanhShrink", tanh=obj("my.Tanh")),
    "softmax": obj("nn.CrossEntropyCriterion", lsm=obj("my.LogSoftMax")),
    "loss": obj("nn.CrossEntropyCriterion", nll=obj("my.ClassNLLCriterion")),
    "loss of volumes": obj("cudnn.VolumetricCrossEntropyCriterion", scec=obj("my.SpatialCrossEntropyCriterion")),
    "InstanceNormalization": obj(
        "nn.InstanceNormalization", nOutput=2.0, bn=obj("my.SpatialBatchNormalization", eps=1e-5)
    ),
    "estimator": obj(
        "nn.SpatialSubtractiveNormalization",
        kernel=ones(3, 3),
        meanestimator=obj("nn.Sequential", obj("my.SpatialConvolution", weight=ones(1, 1, 3, 3))),
    ),
    "estimator inside": obj(
        "nn.SpatialSubtractiveNormalization",
        kernel=ones(3, 3),
        meanestimator=obj("my.SpatialSubtractiveNormalization", meanestimator=obj("nn.Sequential")),
    ),
    "thresholder": obj("nn.SpatialDivisiveNormalization", kernel=ones(3, 3), thresholder=obj("my.Threshold")),
}


def test_a_compound_with_a_foreign_class_is_refused(subtests: Any, tmp_path: Path) -> None:
    """A layer whose constructor builds modules of nn is not one with another package's class of the same name."""
    for name, compound in COMPOUNDS.items():
        t7bridge.save(compound, tmp_path / "x.t7", force=True)
        with subtests.test(name), pytest.raises(UnsupportedLayerError, match=r"changed|inside"):
            t7bridge.load_module(tmp_path / "x.t7")


def modules_in(value: Any) -> list[TorchObject]:
    """All objects of nn in a value, in any field."""
    found: dict[int, TorchObject] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, TorchObject) and each.class_name.startswith("nn.") and id(each) not in found:
            found[id(each)] = each
            stack += each.fields.values() if each.fields is not None else ()
        elif isinstance(each, Table):
            stack += each.values()
    return [*found.values()]


def test_recorded_compounds(subtests: Any, tmp_path: Path) -> None:
    """Compounds as Lua made them, with any module inside of another package: this is refused, or not even asked for."""
    for name in (
        "CReLU",
        "LayerNormalization",
        "TanhShrink",
        "SpatialContrastiveNormalization",
        "CrossEntropyCriterion",
    ):
        data = (TESTFILES / "nn" / f"{name}.t7").read_bytes()
        for at, inner in enumerate(modules_in(read(data))):
            model = read(data)
            module = modules_in(model)[at]
            if module is model:
                continue
            module.class_name = "other." + inner.class_name.partition(".")[2]
            t7bridge.save(model, tmp_path / "x.t7", force=True)
            with subtests.test(f"{name} {module.class_name}"), pytest.raises(UnsupportedLayerError):
                t7bridge.load_module(tmp_path / "x.t7")


def test_cudnn_has_the_same_classes(tmp_path: Path) -> None:
    """A class of cuDNN is that of nn, also inside of a compound."""
    _, page = run_source(obj("nn.TanhShrink", tanh=obj("cudnn.Tanh")), tmp_path)
    x = torch.randn(2, 3)
    assert torch.equal(page(x), torch.nn.Tanhshrink()(x))


def test_a_page_has_both_classes_of_one_name(subtests: Any, tmp_path: Path) -> None:
    """A user's class may be called as anything that a page has itself."""
    x = torch.randn(2, 3)
    factors = {"Tanh": 3, "SoftMax": 4, "Model": 5, "Tensor": 6, "nn": 7}
    for name, factor in factors.items():
        for inside in ([f"my.{name}", "nn.SoftMax"], ["nn.SoftMax", f"my.{name}", "nn.Reshape"]):
            layers = [obj(each, size=Table.from_list([3.0]), batchMode=True) for each in inside]
            with subtests.test(f"{inside}"):
                _, page = run_source(obj("nn.Sequential", *layers), tmp_path)
                before = inside[0] == "nn.SoftMax"
                assert torch.allclose(page(x), x.softmax(1) * factor if before else (x * factor).softmax(1))


def test_files_of_users_have_names_of_ours() -> None:
    """A class is known by its whole dotted name: a user may have a file `shape.py` with a class `View`."""
    assert traits_of(f"{LAYERS}shape.View").written
    assert not traits_of("shape.View").written


def test_pictures_say_nothing_of_a_foreign_class(tmp_path: Path) -> None:
    """Labels, colours and arrows come from what an entry declares."""
    branches = obj("my.Parallel", obj("my.Linear"), obj("my.SpatialConvolution"))
    undeclared = obj("my.ConcatTable", obj("nn.Tanh"), obj("nn.Tanh"))
    model = obj("nn.Sequential", branches, obj("nn.JoinTable", dimension=2.0), undeclared)
    t7bridge.save(model, tmp_path / "x.t7")
    nodes = t7bridge.draw(tmp_path / "x.t7").graph()["nodes"]
    by_class = {node.get("class"): node for node in nodes}
    assert by_class["my.Linear"]["category"] == by_class["my.SpatialConvolution"]["category"] == "other"
    assert by_class["my.SpatialConvolution"]["lines"] == ["3, 5, 7, bias=True, stride=1"]
    assert [edge[2] for edge in by_class["my.Parallel"]["edges"]] == ["", "", "", ""]
    assert by_class["my.ConcatTable"]["kind"] == "side"
    assert by_class["my.ConcatTable"]["edges"] == []
    assert t7bridge.inspect(tmp_path / "x.t7", input_shape=(2, 3)).layers[0].output == ((2, 9),)
