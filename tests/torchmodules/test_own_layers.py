"""Layers of users: what `register_module` makes of their classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers import ROOT, written
from source_helpers import generate

import t7bridge
from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.errors import ModelError, UnsupportedLayerError
from t7bridge.layers import (
    Row,
    Traits,
    extent,
    integer,
    named_modules,
    number,
    of_torch,
    param,
    register_layer,
    register_module,
    same,
    unregister_layer,
)
from t7bridge.nn import traits_of


class Scale(torch.nn.Module):
    """A factor for each feature."""

    def __init__(self, features: int, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.scale = torch.nn.Parameter(torch.ones(features))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the shape of the input."""
        return input * self.scale * self.slope


class Twice(torch.nn.Module):
    """A module, two times."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return what the module makes of its own output."""
        return self.inner(self.inner(input))


class Model1(torch.nn.Module):
    """A class with the name of the model in a page, and a number."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the shape of the input."""
        return 3 * input


class Flatten(torch.nn.Module):
    """A class with the name of one of torch.nn, which does something else."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the shape of the input."""
        return 2 * input


@pytest.fixture
def registered() -> Iterator[None]:
    """Both classes, until the test is over."""
    args = (extent("scale"), number("slope", 1.0))
    register_module("my.Scale", params=(param("scale", field="gain"),), args=args)(Scale)
    register_module("my.Twice", children=named_modules("inner"))(Twice)
    yield
    unregister_layer("my.Scale")
    unregister_layer("my.Twice")


def scale() -> TorchObject:
    """A my.Scale of three features."""
    return TorchObject("my.Scale", 1, Table.of({"gain": Tensor.from_numpy(np.array([1, 2, 3], "f4")), "slope": 2.0}))


@pytest.mark.usefixtures("registered")
def test_state_dict_and_module():
    """The class has its keys in the state dict, and runs: alone, in a Lua container and in another class."""
    assert list(state_dict(scale()).tensors) == ["scale"]
    alone = t7bridge.load_module(written(scale()))
    assert isinstance(alone, Scale)
    assert alone(torch.ones(1, 3)).tolist() == [[2.0, 4.0, 6.0]]

    twice = TorchObject("my.Twice", 1, Table.of({"inner": scale()}))
    whole = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([twice])}))
    module = t7bridge.load_module(written(whole))
    assert list(module.state_dict()) == ["0.inner.scale"]
    assert module(torch.ones(1, 3)).tolist() == [[4.0, 16.0, 36.0]]


class Hooked(torch.nn.Module):
    """A class with hooks: the factor of its file is that of a module inside, and it keeps the sum."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inner = Scale(features, 1.0)
        self.total = 0.0
        self.register_load_state_dict_pre_hook(self.rename)
        self.register_load_state_dict_post_hook(self.add_up)

    @staticmethod
    def rename(module: torch.nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: object) -> None:
        """Give the factor the key of the module inside."""
        state[f"{prefix}inner.scale"] = state.pop(f"{prefix}factor")

    @staticmethod
    def add_up(module: torch.nn.Module, _: object) -> None:
        """Keep the sum of the factor."""
        module.total = module.inner.scale.sum().item()


def test_hooks_of_a_class():
    """A class whose hooks read the state dict, or what was loaded, is loaded as PyTorch loads it."""
    register_module("my.Hooked", params=(param("factor", field="gain"),), args=(extent("factor"),))(Hooked)
    try:
        hooked = TorchObject("my.Hooked", 1, Table.of({"gain": Tensor.from_numpy(np.array([1, 2, 3], "f4"))}))
        whole = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([hooked])}))
        loaded = t7bridge.load_module(written(whole))[0]
    finally:
        unregister_layer("my.Hooked")
    assert loaded.inner.scale.tolist() == [1, 2, 3]
    assert loaded.total == 6


class Halves(torch.nn.Module):
    """The two halves of the features, each times a factor."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(features))

    def forward(self, input: torch.Tensor) -> list[torch.Tensor]:
        """Return a list of two tensors."""
        return list((input * self.scale).chunk(2, dim=-1))


def test_traits_of_a_class():
    """A class that returns a list declares it once: the module and its source split the list; and tensors that do not
    have the shapes that it declares are refused with their path."""
    traits = Traits(returns_list=True, shapes=lambda features: {"scale": (features,)})
    register_module("my.Halves", params=(param("scale"),), args=(integer("n"),), traits=traits)(Halves)
    try:
        weight = Tensor.from_numpy(np.array([1, 2, 3, 4], "f4"))
        halves = TorchObject("my.Halves", 1, Table.of({"scale": weight, "n": 4.0}))
        second = TorchObject("nn.SelectTable", 1, Table.of({"index": 2.0}))
        whole = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([halves, second])}))
        assert t7bridge.load_module(written(whole))(torch.ones(1, 4)).tolist() == [[3.0, 4.0]]
        source = generate(whole).text
        assert "return self.halves(input)[1]" in source, source
        halves.fields[b"n"] = 3.0
        with pytest.raises(ModelError, match=r"root\.modules\[1\]\.scale.*expected the shape \[3\]"):
            t7bridge.load_module(written(whole))
    finally:
        unregister_layer("my.Halves")
    assert traits_of(f"{Halves.__module__}.Halves") == Traits()


@pytest.mark.usefixtures("registered")
def test_registered_twice():
    """A Lua class has one entry."""
    with pytest.raises(ModelError, match="already registered"):
        register_module("my.Scale")(Scale)


def test_class_inside_a_function():
    """A class that no other module could import is refused."""

    class Inner(torch.nn.Module):
        """Of this function."""

    with pytest.raises(ModelError, match="top level of its module"):
        register_module("my.Inner")(Inner)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no.such.Module", "cannot be imported"),
        ("Bare", "cannot be imported"),
        ("collections.OrderedDict", "not a class of modules"),
    ],
)
def test_wrong_targets(target, message):
    """The target of an entry must be a class of modules."""
    register_layer("my.Wrong", module=Row(target))
    try:
        with pytest.raises(ModelError, match=message):
            t7bridge.load_module(written(TorchObject("my.Wrong", 1, Table())))
    finally:
        unregister_layer("my.Wrong")


def test_modules_inside_others():
    """`at` names modules at any depth, also inside a class without a module of its own."""
    step = TorchObject("onmt.Network", 1, Table.of({"net": scale()}))
    encoder = TorchObject("onmt.Encoder", 1, Table.of({"modules": Table.from_list([step]), "network": step}))
    data = written(Table.of({"models": Table.of({"encoder": encoder})}))
    register_layer("my.Scale", module=Row("torch.nn.Identity"))
    try:
        inner = t7bridge.load_module(data, at="root.models.encoder.network.net")
        outer = t7bridge.load_module(data, at="root.models.encoder.modules[1]")
    finally:
        unregister_layer("my.Scale")
    assert type(inner) is torch.nn.Identity
    assert type(outer.net) is torch.nn.Identity
    with pytest.raises(UnsupportedLayerError, match=r"onmt\.Encoder"):
        t7bridge.load_module(data)
    for path in ("root.models", "root.models.encoder.networ", "root.models.encoder.network.gain", "other"):
        with pytest.raises(ModelError, match="no module at"):
            t7bridge.load_module(data, at=path)


def test_documentation_runs():
    """The first program of the documentation registers its class."""
    text = (ROOT / "docs/own-layers.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    names = {"__name__": __name__}
    try:
        exec(program, names)
        assert t7bridge.load_module(written(scale()))(torch.ones(1, 3)).tolist() == [[2.0, 4.0, 6.0]]
    finally:
        unregister_layer("my.Scale")


@pytest.mark.parametrize(("traits", "output"), [(None, "?"), (Traits(output=same), "1×4×224×224")])
def test_shapes_are_those_of_the_class_itself(traits, output):
    """A class whose name is that of a known one has no shapes of that one, but those that its entry declares."""
    zeros = Tensor.from_numpy(np.zeros((4, 3, 3, 3), "f4"))
    fields = {"nInputPlane": 3, "nOutputPlane": 4, "kW": 3, "kH": 3, "dW": 1, "dH": 1, "padW": 1, "padH": 1}
    convolution = TorchObject("nn.SpatialConvolution", 1, Table.of({**fields, "weight": zeros}))
    register_module("my.Flatten", traits=traits)(Flatten)
    try:
        model = Table.from_list([convolution, TorchObject("my.Flatten", 1, Table())])
        data = written(TorchObject("nn.Sequential", 1, Table.of({"modules": model})))
        assert t7bridge.inspect(data).header.get("output") == output
        assert t7bridge.load_module(data)(torch.zeros(2, 3, 6, 7)).shape == (2, 4, 6, 7)
    finally:
        unregister_layer("my.Flatten")


def test_the_model_of_a_page_is_always_model():
    """A class of the user called `Model1` takes no name from the page's own `Model`, which `load` constructs."""
    register_module("my.Model1")(Model1)
    try:
        layers = Table.from_list([TorchObject("my.Model1", 1, Table()), TorchObject("nn.Tanh", 1, Table())])
        text = generate(TorchObject("nn.Sequential", 1, Table.of({"modules": layers}))).text
        assert "class Model(nn.Module):" in text
        assert "import Model1" in text
    finally:
        unregister_layer("my.Model1")


def test_any_class_of_torch_can_be_written():
    """A layer of a class of torch.nn that t7bridge has no facts about is written as that class."""
    register_layer("my.CELU", module=of_torch("CELU", number("alpha")))
    try:
        layer = TorchObject("my.CELU", 1, Table.of({"alpha": 2.0}))
        assert "nn.CELU(2.0)" in generate(layer).text
    finally:
        unregister_layer("my.CELU")
