"""Models whose fields were swapped, emptied or replaced still have a state dict."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from bounds import bounded
from helpers import corpus, read, walk

from t7bridge import Storage, Table, Tensor, TorchObject, state_dict
from t7bridge.errors import LimitError, UnsupportedLayerError
from t7bridge.nn import build_plan, find_modules, layer_names

FILES = [path for path in corpus("nn/*.t7", "models/*.t7", "rnn/*.t7") if path.suffixes == [".t7"]]
ODD = [None, True, 0.0, -1.0, 1e308, float("nan"), float("inf"), 2.5, b"x", b"", Table()]
KEYS = [1.0, 2.0, b"weight", b"bias", b"modules", b"v", b"kW", True, float("nan")]
SHAPES = [(0,), (1,), (3, 2), (2, 3, 4, 5), ()]
CLASSES = ["nn.WeightNorm", "nn.LSTM", "nn.SeqLSTM", "cudnn.LSTM", "nn.gModule", "nn.PartialLinear", "my.Layer"]


def damage(root: object, rng: random.Random) -> None:
    """Change a few fields, keys and class names of a model."""
    values = [visit.value for visit in walk(root)]
    objects = [value for value in values if isinstance(value, TorchObject)]
    tables = [value if isinstance(value, Table) else value.fields for value in values if isinstance(value, Table)]
    tables += [value.fields for value in objects if value.fields]
    for _ in range(rng.randint(1, 6)):
        table = rng.choice([table for table in tables if len(table)])
        place = rng.randrange(len(table))
        kind = rng.randrange(5)
        if kind == 0:
            table.raw_values[place] = rng.choice(ODD)
        elif kind == 1:
            table.raw_values[place] = rng.choice(values)
        elif kind == 2:
            table.raw_values[place] = Tensor.from_numpy(
                np.zeros(rng.choice(SHAPES), rng.choice(["f4", "f2", "i8", "u1"]))
            )
        elif kind == 3:
            table.raw_keys[place] = rng.choice(KEYS)
            table._index = None
        elif objects:
            rng.choice(objects).class_name = rng.choice(CLASSES)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_models(seed):
    """For any values of the fields, only limits stop it, and every tensor lies in its storage."""
    rng, checked, limited = random.Random(seed), 0, 0
    for _ in range(25):
        root = read(str(rng.choice(FILES)))
        damage(root, rng)
        try:
            for path, module in find_modules(root):
                for tensor in state_dict(module, path).tensors.values():
                    tensor.check()
                    checked += 1
        except LimitError:
            limited += 1
    assert checked > 5
    assert limited < 5


def test_shared_content_is_bounded():
    """Lists that hold one list many times, and modules that contain themselves, are refused or read once."""
    lists: dict[str, Any] = {
        "outputSize": Table.from_list([2.0]),
        "outputs": Tensor.from_numpy(np.ones(2, "f4")),
        "size": Storage.from_array(np.ones(1, "i8")),
    }
    for name in lists:
        inside: Any = Table.from_list([lists[name]] * 2)
        for _ in range(40):
            inside = Table.from_list([inside] * 4)
        lists[name] = inside
    last = Table.from_list([lists["outputs"]])
    recurrence = TorchObject("nn.Recurrence", 1, Table.of({"nInputDim": 1.0, "outputsize": lists["outputSize"]}))
    resumed = TorchObject("nn.RecGRU", 1, Table.of({"outputsize": 2.0, "step": 2.0, "outputs": last}))
    for model in (recurrence, resumed):
        with pytest.raises(UnsupportedLayerError, match="too many elements"):
            build_plan(model)
    reshape = TorchObject("nn.Reshape", 1, Table.of({"size": lists["size"]}))
    steps = Table.from_list([TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([reshape])}))])
    cell = TorchObject("nn.GRU", 1, Table.of({"inputSize": 2.0, "outputSize": 2.0, "modules": steps}))
    assert not state_dict(cell)
    endless = TorchObject("nn.Sequential", 1, Table.of({}))
    endless["modules"] = Table.from_list([endless])
    fields = {"kernel": Tensor.from_numpy(np.ones((3, 3), "f4")), "meanestimator": endless}
    assert build_plan(TorchObject("nn.SpatialSubtractiveNormalization", 1, Table.of(fields)))
    once, twice = (
        TorchObject("nn.MapTable", 1, Table.of({"modules": Table.from_list(each)})) for each in ([], [endless] * 2)
    )
    assert not state_dict(once)
    assert not state_dict(twice)


def test_graphs_with_many_names_take_time_in_proportion():
    """Names of nodes are counted once, not again for each node."""
    first = data = Table.of({})
    nodes, modules = [], []
    for number in range(4000):
        modules.append(TorchObject("nn.Identity", 1, Table.of({})))
        names = Table.of({"name": f"node{number}".encode()})
        data = Table.of({"module": modules[-1], "annotations": names, "mapindex": Table.from_list([data])})
        nodes.append(Table.of({"data": data}))
    last = Table.of({"mapindex": Table.from_list([data])})
    ends = {"innode": Table.of({"data": first}), "outnode": Table.of({"data": last})}
    lists = {"modules": Table.from_list(modules), "forwardnodes": Table.from_list(nodes)}
    with bounded(150):
        assert "node3999" in build_plan(TorchObject("nn.gModule", 1, Table.of({**lists, **ends}))).root.children


def test_many_tensors_of_one_name_take_time_in_proportion():
    """Tables `a` and `a.a` inside one another lead to the name `a.a.a.…` in very many ways; each gets a number."""

    def named(length: int) -> Table:
        fields: dict[Any, Any] = {b".".join([b"a"] * steps): named(length - steps) for steps in range(1, length)}
        fields[b".".join([b"a"] * length)] = Tensor.from_numpy(np.ones(1, "f4"))
        return Table.of(fields)

    model = TorchObject("my.Layer", 1, Table.of({"in": named(14)}))
    with bounded(60):
        names = list(state_dict(model))
    assert len(names) == 2**13
    assert names[-1] == f"{names[0]}_{2**13}"


def test_names_of_deeply_nested_modules_are_not_made():
    """A path per module would take the square of their number."""
    model = TorchObject("nn.Tanh", 1, Table.of({}))
    for _ in range(10_000):
        model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([model])}))
    assert 1000 <= len(layer_names(model)) < 1100
