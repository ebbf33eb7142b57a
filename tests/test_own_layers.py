"""Thirteen layers of users, each registered by one entry, in every verb."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import module_of, written

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.layers import unregister_layer

CONTAINERS = ("Residual", "Summed", "Crossed", "Refined")
TRANSPARENT = ("Residual", "Crossed")
NAMES = ("Shift", "Scale", "Negate", "Rows", "Total", "Halves", *CONTAINERS, "Blink", "Leaky", "Quartic")
SHAPES = {"Rows": "4×2×3", "Total": "4×6", "Halves": "4×3, 4×3", "Crossed": "4×6, 4×6"}
"""The output of the layer itself, if it is not that of the input, 4×6."""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The program that registers the layers, until the test is over."""
    sys.modules.pop("own_layers", None)
    importlib.import_module("own_layers")
    yield
    for name in NAMES:
        unregister_layer(f"my.{name}")


def tensor(array: Any) -> Tensor:
    """Elements in memory of their own."""
    return Tensor.from_numpy(np.array(array, "f4"))


def layer(name: str, output: Any, **fields: Any) -> TorchObject:
    """A layer in evaluation that recorded its output: an array, a list of arrays, or a tensor that others hold too."""
    if isinstance(output, list):
        output = Table.from_list([tensor(each) for each in output])
    elif isinstance(output, np.ndarray):
        output = tensor(output)
    return TorchObject(name, 1, Table.of({"output": output, "gradInput": tensor([]), "train": False, **fields}))


def sequential(*layers: TorchObject) -> TorchObject:
    """The layers in a row."""
    return TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(list(layers)), "train": False}))


def cases() -> Iterator[tuple[str, TorchObject, np.ndarray, np.ndarray]]:
    """Yield name, model, input and output of each layer, behind two others that recorded their outputs."""
    random = np.random.default_rng(0)

    def linear(x: np.ndarray, output: Any = None) -> tuple[TorchObject, np.ndarray]:
        weight, bias = random.normal(size=(6, 6)).astype("f4"), random.normal(size=6).astype("f4")
        y = x @ weight.T + bias
        return layer("nn.Linear", y if output is None else output, weight=tensor(weight), bias=tensor(bias)), y

    x = random.normal(size=(4, 6)).astype("f4")
    first, h = linear(x)
    second, y = linear(h)
    third, z = linear(y)
    gain = random.normal(size=6).astype("f4")

    def case(name: str, output: Any, **fields: Any) -> tuple[str, TorchObject, np.ndarray, np.ndarray]:
        return name, sequential(first, second, layer(f"my.{name}", output, **fields)), x, output

    yield case("Shift", y + 2, by=2.0)
    yield case("Scale", y * gain * 3, gain=tensor(gain), slope=3.0)
    shared = tensor(-y)
    before = TorchObject("nn.Linear", 1, Table.of({**dict(second.fields.items()), "output": shared}))
    yield "Negate", sequential(first, before, layer("my.Negate", shared, inplace=True)), x, -y
    yield case("Rows", y.reshape(4, 2, 3), rows=2.0)
    parts = layer("nn.ConcatTable", [z, y], modules=Table.from_list([third, layer("nn.Identity", y)]))
    yield "Total", sequential(first, second, parts, layer("my.Total", z + y)), x, z + y
    halves = [y[:, :3], y[:, 3:]]
    yield "Halves", sequential(first, second, layer("my.Halves", halves)), x, np.stack(halves)
    yield case("Residual", z, modules=Table.from_list([third]))
    identity = layer("nn.Identity", y)
    yield case("Summed", z + y, modules=Table.from_list([third, identity]))
    inside, output = linear(z)
    yield (
        "Crossed",
        sequential(
            first,
            second,
            layer("nn.ConcatTable", [z, y], modules=Table.from_list([third, identity])),
            layer("my.Crossed", [y, output], modules=Table.from_list([layer("nn.Identity", y), inside])),
        ),
        x,
        np.stack([y, output]),
    )
    joined = layer("nn.CAddTable", y + y + y + z)
    yield case("Refined", y + y + y + z, modules=Table.from_list([third, joined]), times=3.0)
    mask = (random.random((4, 6)) > 0.5).astype("f4")
    name, model, *_ = case("Blink", y * mask, p=0.5, noise=tensor(mask))
    model["modules"][3.0]["train"] = True
    yield name, model, x, y / 2
    steps = random.normal(size=(5, 2, 6)).astype("f4")
    state, outputs = np.zeros((2, 6), "f4"), []
    for step in np.maximum(steps, 0):
        state = 0.5 * state + gain * step
        outputs.append(state)
    rectified = layer("nn.ReLU", np.maximum(steps, 0))
    leaky = layer("my.Leaky", np.stack(outputs), weight=tensor(gain), decay=0.5)
    yield "Leaky", sequential(rectified, leaky), steps, np.stack(outputs)
    yield "Quartic", layer("my.Quartic", 0.0, power=4.0), x, (x**4).mean()


def parts(value: Any) -> Any:
    """A list of tensors as one."""
    return torch.stack(list(value)) if isinstance(value, (list, tuple)) else value


def cleared(module: TorchObject) -> TorchObject:
    """A model without its recorded outputs."""
    module["output"] = tensor([])
    for child in module["modules"].as_list() if "modules" in module else ():
        cleared(child)
    return module


def page(path: Path, folder: Path) -> torch.nn.Module:
    """The model of the page that is written for a file."""
    t7bridge.write_module(path, folder)
    found: torch.nn.Module = module_of(folder / "model.py").load()
    return found


ARROWS = {
    "Summed": {("input", "0", ""), ("input", "1", ""), ("0", "output", ""), ("1", "output", "")},
    "Crossed": {("input", "0", "[1]"), ("input", "1", "[0]"), ("0", "table", ""), ("1", "table", "")},
    "Refined": {("input", "0", ""), ("input", "1", ""), ("0", "1", ""), ("1", "output", "")},
}


def test_containers_say_once_what_they_do(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The flow of a container is all that arrows, and shapes of it and of the modules inside, are made from."""
    for name, model, *_ in cases():
        if name not in ARROWS:
            continue
        with subtests.test(name):
            path = tmp_path / f"{name}.t7"
            t7bridge.save(cleared(model), path)
            blocks = t7bridge.draw(path).blocks
            (container,) = [block for block in blocks if block.title == name]
            names = [block.name or block.lines[0] for block in container.inside]
            arrows = {(names[flow.start], names[flow.end], flow.label) for flow in container.flows}
            assert arrows == ARROWS[name]
            # Without PyTorch, for an input that the first layer accepts.
            shapes = [row.output for row in t7bridge.inspect(path).layers if row.path.startswith(f"{container.path}.")]
            assert shapes == [((1, 6),)] * 2


def test_proofs_follow_containers_of_users(subtests: pytest.Subtests) -> None:
    """The inputs of the modules inside follow from the flow: each agrees, and one whose weight changed is named."""
    for name, model, *_ in cases():
        if name not in CONTAINERS:
            continue
        with subtests.test(name):
            before = {layer.path: layer.verdict for layer in t7bridge.prove(model).layers}
            container = model["modules"].as_list()[-1]
            inside = container["modules"].as_list()
            place, linear = next(row for row in enumerate(inside, 1) if row[1].class_name == "nn.Linear")
            path = f"root.modules[{len(model['modules'])}].modules[{place}]"
            assert before[path] == "agrees"
            weight = linear["weight"]
            linear["weight"] = tensor(weight.numpy() * 1.01)
            differing = [layer.path for layer in t7bridge.prove(model).layers if layer.verdict == "differs"]
            linear["weight"] = weight  # other cases have the same layer
            assert differing == [path]


@pytest.mark.slow
def test_every_verb(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each layer loads, is written as a page, converted and back, has shapes, is proved and printed, and exported."""
    for name, model, given, output in cases():
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "model.t7"
        t7bridge.save(model, path)
        inputs = [torch.tensor(given), torch.zeros(given.shape)][: 2 if name == "Quartic" else 1]
        shape = "x".join(map(str, given.shape))
        wanted = torch.tensor(output)

        with subtests.test(name, verb="load_module"):
            live = t7bridge.load_module(path).eval()
            assert torch.allclose(parts(live(*[each.clone() for each in inputs])), wanted, 1e-4, 1e-5)
        with subtests.test(name, verb="write_module"):
            made = page(path, folder / "page").eval()
            # Of a transparent container the page has the steps.
            assert (f"{name}(" in (folder / "page" / "model.py").read_text()) == (name not in TRANSPARENT)
            assert torch.allclose(parts(made(*[each.clone() for each in inputs])), wanted, 1e-4, 1e-5)
        with subtests.test(name, verb="convert"):
            t7bridge.convert(path, folder / "model.pt")
            t7bridge.convert(folder / "model.pt", folder / "back.t7", template=path)
            assert (folder / "back.t7").read_bytes() == path.read_bytes()
        if name not in ("Leaky", "Quartic"):
            with subtests.test(name, verb="inspect and draw"):
                found = t7bridge.inspect(path, input_shape=given.shape).header["output"]
                assert found == SHAPES.get(name, "4×6")
                bare = written(cleared(t7bridge.load(path)))
                assert t7bridge.inspect(bare).header["output"] == SHAPES.get(name, "4×6").replace("4×", "1×")
                t7bridge.draw(path, folder / "model.svg")
                assert name in (folder / "model.svg").read_text()
        if name != "Quartic":
            with subtests.test(name, verb="prove"):
                verdicts = {each.class_name: each.verdict for each in t7bridge.prove(path).layers}
                # A transparent container only passes values: its modules have verdicts.
                assert verdicts.get(f"my.{name}") == (None if name in TRANSPARENT else "agrees")
        with subtests.test(name, verb="repr"):
            text = {"Shift": "my.Shift(2)", "Residual": "my.Residual @ nn.", "Summed": "`-> (2): nn."}.get(
                name, f"my.{name}"
            )
            assert text in str(t7bridge.load(path))
        with subtests.test(name, verb="save_module and write_lua"):
            t7bridge.save_module(live, folder / "made.t7", tuple(inputs) if inputs[1:] else inputs[0])
            made = t7bridge.load_module(folder / "made.t7").eval()
            again = made([each.clone() for each in inputs] if inputs[1:] else inputs[0].clone())
            assert torch.allclose(parts(again), wanted, 1e-4, 1e-5)
            t7bridge.write_lua(live, folder / "lua", tuple(inputs) if inputs[1:] else inputs[0])
        with subtests.test(name, verb="export"):
            report = t7bridge.export(path, folder / "model.pt2", input=[shape] * len(inputs))
            assert report.difference < 1e-5
