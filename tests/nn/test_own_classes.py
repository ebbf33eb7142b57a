"""Registrations from a file, in Python, on the command line and in the workers of a zoo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import run_python
from helpers import PATIENCE

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.errors import ModelError, UnsupportedLayerError
from t7bridge.layers import register_layer, unregister_layer
from t7bridge.nn import load_classes
from t7bridge.nn.texts import layer_text

PROGRAM = """
import torch
from t7bridge import register_module
from t7bridge.nn import extent
from t7bridge.nn import param

@register_module("my.Scaled", params=(param("weight"),), args=(extent("weight", 0),))
class Scaled(torch.nn.Module):
    "A vector times its input."

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))

    def forward(self, input):
        return input * self.weight
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of a class of its own, and the program that registers the class."""
    weight = Tensor.from_numpy(np.array([1, 2, 3], "f4"))
    inner = TorchObject("my.Scaled", 1, Table.of({"weight": weight}))
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([inner])}))
    t7bridge.save(model, tmp_path / "model.t7")
    (tmp_path / "scaled_classes.py").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A verb in a process of its own, which knows no class yet."""
    return run_python("-m", "t7bridge", *arguments, folder=folder)


@pytest.mark.slow
def test_classes_on_the_command_line(folder: Path) -> None:
    """Without the program the class is unknown, and the message describes it and how to register it; with it the
    model is written, and imports the program."""
    without = run(folder, "module", "model.t7", "-o", "out")
    assert without.returncode == 2
    assert "my.Scaled is a class without an entry; it has weight 3" in without.stderr
    assert "register_module" in without.stderr
    assert "docs/own-layers.md" in without.stderr

    done = run(folder, "module", "model.t7", "-o", "out", "--classes", "scaled_classes.py")
    assert done.returncode == 0, done.stderr
    assert "from scaled_classes import Scaled" in (folder / "out" / "model.py").read_text()
    done = run(folder, "convert", "model.t7", "x.pt", "--classes", "scaled_classes.py")
    assert done.returncode == 0, done.stderr
    assert torch.load(folder / "x.pt")["0.weight"].tolist() == [1, 2, 3]


@pytest.mark.slow
def test_classes_in_the_workers_of_a_zoo(folder: Path) -> None:
    """Every worker runs the program."""
    done = run(folder, "zoo", "model.t7", "-o", "zoo", "--module", "--classes", "scaled_classes.py", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((folder / "zoo").rglob("model.py"))


def test_a_class_like_a_known_one_is_named() -> None:
    """A copy of a known class under another name is recognized by its fields."""
    fields = {"weight": Tensor.from_numpy(np.ones((2, 3), "f4")), "bias": Tensor.from_numpy(np.ones(2, "f4"))}
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([])}))
    model["modules"] = Table.from_list([TorchObject("nn.Linear01", 1, Table.of(fields))])
    from t7bridge.nn import build_plan

    with pytest.raises(
        UnsupportedLayerError, match=r"nn\.Linear01 .* it has weight 2 x 3, bias 2 and all fields of nn\.Linear"
    ):
        build_plan(model)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("json.py", "", "cannot have this name"),
        ("broken_classes.py", "1 / 0", "fails: ZeroDivisionError"),
        ("reading_classes.py", "open('absent.txt')", r"fails: FileNotFoundError: .*absent\.txt"),
        ("missing_classes.py", None, "cannot be read"),
        ("no_program.txt", "", "is not a Python file"),
    ],
)
def test_programs_that_cannot_be_run(name: str, text: str | None, words: str, tmp_path: Path) -> None:
    """Each is an error that names the file."""
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=words) as caught:
        load_classes(tmp_path / name)
    assert name in str(caught.value)


def test_sizes_in_texts_count_from_one() -> None:
    """`{weight:0}` names no dimension, not the last one: the next text is taken."""
    layer = TorchObject("my.Sized", 1, Table.of({"weight": Tensor.from_numpy(np.ones((2, 3), "f4"))}))
    register_layer("my.Sized", text=("({weight:0})", "({weight:2} of {weight:1})"))
    try:
        assert layer_text(layer) == "my.Sized(3 of 2)"
    finally:
        unregister_layer("my.Sized")


ENTRIES = """
from t7bridge.layers import Traits, becomes, either, extent, number, of_class, of_runtime, param, register_layer

register_layer(
    "gains.Gain",
    params=(param("gain"),),
    module=of_class(".modules.Gain", extent("gain"), slope=number("slope", 1.0)),
    traits={".modules.Gain": Traits(shares_memory=True)},
)
register_layer("gains.Clip", module=of_runtime("training.Clip", 0.0, 1.0))

@becomes(".modules.Gain")
def again(lua):
    return of_class("gains.modules.Gain", extent("gain"))(lua)

register_layer("gains.Again", params=(param("gain"),), module=again)
"""
MODULES = """
import torch
from t7bridge.layers import Layer

class Gain(Layer):
    features: int
    slope: float = 1.0

    def __post_init__(self):
        self.gain = torch.nn.Parameter(torch.empty(self.features))

    def forward(self, input):
        return input * self.gain * self.slope
"""
USE = """
import sys
import t7bridge
from t7bridge.nn import load_classes, traits_of

load_classes("gains/")
assert "torch" not in sys.modules, "entries are read without PyTorch"
assert traits_of("gains.modules.Gain").shares_memory
t7bridge.convert("model.t7", "model.pt", classes="gains")
t7bridge.write_module("model.t7", "page")
assert "torch" not in sys.modules, "nor does the source need it"

import torch
input = torch.tensor([[1.0, -1.0, 0.125]])
assert t7bridge.load_module("model.t7")(input).tolist() == [[1.0, 0.0, 0.75]]
sys.path.insert(0, "page")
import model
assert model.load()(input).tolist() == [[1.0, 0.0, 0.75]]
assert "from gains.modules import Gain" in open("page/model.py").read()
"""


@pytest.mark.slow
def test_a_package_of_entries_and_classes(tmp_path: Path) -> None:
    """Entries in a package name classes in a file beside them, as those of `workshop/packages` do."""
    package = tmp_path / "gains"
    package.mkdir()
    (package / "__init__.py").write_text(ENTRIES)
    (package / "modules.py").write_text(MODULES)

    def layer(name: str, *factors: float, **fields: float) -> TorchObject:
        gain = {"gain": Tensor.from_numpy(np.array(factors, "f4"))} if factors else {}
        return TorchObject(f"gains.{name}", 1, Table.of({**gain, **fields}))

    layers = [layer("Gain", 1, 2, 3, slope=2.0), layer("Clip"), layer("Again", 1, 1, 1)]
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)}))
    t7bridge.save(model, tmp_path / "model.t7")
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_relative_names_need_a_package() -> None:
    """A class whose name begins with a dot is in the caller's package, which a program alone has not."""
    program: dict[str, object] = {"__name__": "alone"}
    with pytest.raises(ModelError, match="relative name outside a package"):
        exec("from t7bridge.layers import of_class\nof_class('.modules.Gain')", program)
