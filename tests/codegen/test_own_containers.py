"""Transparent containers of users as steps of a page, which computes what their classes do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from source_helpers import generate, run_source
from torch import nn

from t7bridge import Table, Tensor, TorchObject, inspect, save, write_module
from t7bridge.errors import ModelError
from t7bridge.layers import Domain, Row, Traits, modules, param, register_layer, register_module, unregister_layer
from t7bridge.torchmodules import live_module

Program = list[tuple[str, Any]]
"""What a container does, step by step: an operation, and what it needs.

Values are numbered, 0 the input, then one for each step. `call` needs a module's number and a value's, `items` and
`concat` those of values, `item` that of a list and an index.
"""


def program(draw: random.Random) -> tuple[Program, int, bool]:
    """Return a random container of up to seven steps, the number of modules in it, and whether it returns a list."""
    steps: Program = []
    modules_inside = 0
    tensors = [0]  # the values that modules inside accept
    lists: dict[int, int] = {}  # the lengths of the values that are lists
    for number in range(1, 1 + draw.randint(1, 7)):
        operation = draw.choice(["call", "again", "items", "item", "concat"])
        if operation == "again" and modules_inside:
            steps.append(("call", (draw.randrange(modules_inside), draw.choice(tensors))))
        elif operation == "item" and lists:
            source = draw.choice(list(lists))
            steps.append(("item", (source, draw.randrange(-lists[source], lists[source]))))
        elif operation == "items":
            parts = draw.choices(tensors, k=draw.randint(1, 3))
            steps.append(("items", parts))
            lists[number] = len(parts)
            continue
        elif operation == "concat":
            steps.append(("concat", draw.choices(tensors, k=2)))
            continue  # it is wider than the modules inside accept
        else:
            steps.append(("call", (modules_inside, draw.choice(tensors))))
            modules_inside += 1
        tensors.append(number)
    return steps, modules_inside, steps[-1][0] == "items"


def flow_of(steps: Program) -> Any:
    """The flow of a container that does what a program says."""

    def flow(spec: Any, value: Any, d: Domain[Any]) -> Any:
        values = [value]
        for operation, needs in steps:
            if operation == "call":
                module, source = needs
                values.append(d.call(spec, str(module), values[source]))
            elif operation == "items":
                values.append(d.items([values[source] for source in needs]))
            elif operation == "item":
                source, index = needs
                values.append(d.item(values[source], index))
            else:
                values.append(d.concat([values[source] for source in needs], 1))
        return values[-1]

    return flow


class Container(nn.Sequential):
    """A container of one of the programs."""

    steps: Program
    """Set before it is constructed, as constructors have no argument for it."""

    def forward(self, value: Any) -> Any:
        """Return the value of the last step; as in `flow_of`, but of tensors."""
        values = [value]
        for operation, needs in self.steps:
            if operation == "call":
                module, source = needs
                values.append(self[module](values[source]))
            elif operation == "items":
                values.append([values[source] for source in needs])
            elif operation == "item":
                source, index = needs
                values.append(values[source][index])
            else:
                values.append(torch.cat([values[source] for source in needs], 1))
        return values[-1]


def layer(draw: random.Random, generator: torch.Generator) -> TorchObject:
    """A layer of nn that keeps the shape."""
    name = draw.choice(["nn.Linear", "nn.Tanh", "nn.ReLU", "nn.Identity"])
    fields: dict[str, Any] = {"train": False}
    if name == "nn.Linear":
        fields["weight"] = Tensor.from_numpy(torch.randn(4, 4, generator=generator).numpy())
        fields["bias"] = Tensor.from_numpy(torch.randn(4, generator=generator).numpy())
    if name == "nn.ReLU":
        fields |= {"threshold": 0.0, "val": 0.0, "inplace": draw.random() < 0.5}
    return TorchObject(name, 1, Table.of(fields))


@pytest.mark.parametrize(("index", "named"), [(2, "element 3"), (-3, "element -3")])
def test_element_that_no_list_has(index: int, named: str) -> None:
    """An element that a module inside does not return is named as in Lua: from 1, or from -1 backwards."""

    def flow(spec: Any, value: Any, d: Domain[Any]) -> Any:
        return d.item(d.call(spec, "0", value), index)

    register_module("my.Element", children=modules, traits=Traits(flow=flow, transparent=True))(Container)
    tanh = TorchObject("nn.Tanh", 1, Table.of({}))
    pair = TorchObject("nn.ConcatTable", 1, Table.of({"modules": Table.from_list([tanh, tanh])}))
    obj = TorchObject("my.Element", 1, Table.of({"modules": Table.from_list([pair])}))
    try:
        with pytest.raises(ModelError) as raised:
            generate(obj)
        assert (raised.value.expected, raised.value.found) == ("one of 2", named)
    finally:
        unregister_layer("my.Element")


def test_branches_beside_another_call() -> None:
    """Two branches that are added up are a body and a shortcut, even if the container calls a third module, too."""

    def flow(spec: Any, value: Any, d: Domain[Any]) -> Any:
        first, second = (d.call(spec, name, value) for name in ("0", "1"))
        d.call(spec, "2", first)
        return d.items([first, second])

    traits = Traits(flow=flow, transparent=True, returns_list=True)
    register_module("my.Branches", children=modules, traits=traits)(Container)
    linear = TorchObject("nn.Linear", 1, Table.of({"weight": Tensor.from_numpy(np.ones((4, 4), "f4"))}))
    layers = [TorchObject("nn.Tanh", 1, Table.of({})) for _ in range(2)]
    branches = TorchObject("my.Branches", 1, Table.of({"modules": Table.from_list([linear, *layers])}))
    added = TorchObject("nn.CAddTable", 1, Table.of({}))
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([branches, added])}))
    try:
        assert "self.body = nn.Linear(4, 4, bias=False)" in generate(model).text
    finally:
        unregister_layer("my.Branches")


def test_entry_with_all_arguments_by_name(tmp_path: Path) -> None:
    """What a layer of torch.nn takes and returns is known where an entry names it, too.

    It is in a docstring, decides on a view before it, and is compared with a vocabulary.
    """
    register_layer(
        "my.Linear",
        params=(param("weight"), param("bias")),
        module=Row("torch.nn.Linear", kwargs={"in_features": 4, "out_features": 2}),
    )
    fields = {"weight": Tensor.from_numpy(np.ones((2, 4), "f4")), "bias": Tensor.from_numpy(np.ones(2, "f4"))}
    linear = TorchObject("my.Linear", 1, Table.of(fields))
    view = TorchObject("nn.View", 1, Table.of({"size": Table.from_list([4.0]), "numElements": 4, "numInputDims": 3}))
    pool = TorchObject("nn.SpatialMaxPooling", 1, Table.of({"kW": 1, "kH": 1, "dW": 1, "dH": 1, "padW": 0, "padH": 0}))
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([pool, view, linear])}))
    try:
        assert "Take (batch, 4); return the output." in generate(linear).text
        assert "nn.Flatten(start_dim=-3)" in generate(model).text
        save(Table.of({"model": linear, "vocab": Table.of({"a": 1.0, "b": 2.0})}), tmp_path / "checkpoint.t7")
        assert inspect(tmp_path / "checkpoint.t7").header["input"] == "1×4 (a guess from the layers)"
        write_module(tmp_path / "checkpoint.t7", tmp_path / "model")
    finally:
        unregister_layer("my.Linear")


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of a value."""
    return [value] if isinstance(value, torch.Tensor) else [leaf for item in value for leaf in leaves(item)]


def test_random_containers(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A page has the steps of any transparent container, in-place layers in it too, and not its class."""
    draw = random.Random(11)
    generator = torch.Generator().manual_seed(11)
    for number in range(30):
        steps, count, returns_list = program(draw)
        traits = Traits(flow=flow_of(steps), transparent=True, returns_list=returns_list)
        register_module("my.Random", children=modules, traits=traits)(Container)
        Container.steps = steps
        inside = [layer(draw, generator) for _ in range(count)]
        obj = TorchObject("my.Random", 1, Table.of({"modules": Table.from_list(inside), "train": False}))
        value = torch.randn(3, 4, generator=generator)
        try:
            with subtests.test(number=number, steps=steps):
                expected = leaves(live_module(obj, "root").eval()(value.clone()))
                made, page = run_source(obj, tmp_path)
                assert "Container" not in made.text
                outputs = leaves(page.eval()(value.clone()))
                assert len(outputs) == len(expected)
                assert all(map(torch.allclose, outputs, expected))
        finally:
            unregister_layer("my.Random")
