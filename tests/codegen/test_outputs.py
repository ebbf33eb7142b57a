"""Generated models against what Lua computed: every class, further options, and networks of well-known shapes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers import TESTFILES, corpus, name_of, read
from looping import new_folder
from runtime_helpers import as_torch, difference, recorded, run
from source_helpers import run_source

from t7bridge import TorchObject
from t7bridge.nn import find_modules
from t7bridge.torchmodules import live_module

CASES = [path for path in corpus("nn/*.t7") + corpus("models/*.t7") if not path.name.endswith((".io.t7", ".grad.t7"))]
LEGACY = [path.with_suffix("").with_suffix(".t7") for path in corpus("legacy/*.io.t7")]

_RANDOM = "the output depends on random numbers that Lua drew and that are not in the file"
# What cannot agree, each with the reason.
UNEQUAL = {
    "nn/SpatialFractionalMaxPooling.t7": _RANDOM,
    "nn/VolumetricFractionalMaxPooling.t7": _RANDOM,
    "legacy/avgpool_without_pad.t7": "recorded before the field was taken away without which Lua sums",
}
# Source that is written for batches, where Lua made a batch of one example.
BATCHES_ONLY = {"nn_options.t7 u.bnnet": "nn.BatchNorm2d takes batches"}


@cache
def recorded_cases(name: str) -> dict[str, dict[str, Any]]:
    """The cases of a file that has many, by name."""
    table = read(TESTFILES / name)
    return {
        key.decode(): {inner.decode(): value for inner, value in case.raw_items()} for key, case in table.raw_items()
    }


FILES = ("nn_options.t7", "architectures.t7", "match_models.t7", "zoo_classes.t7", "nested.t7")


def named(*files: str) -> list[tuple[str, str]]:
    """File and name of each case of some files."""
    return [(name, case) for name in files for case in sorted(recorded_cases(name))]


def module_in(path: Any) -> TorchObject:
    """The one module of a file."""
    ((_, module),) = find_modules(read(path))
    return module


@pytest.mark.slow
def test_output_is_that_of_lua(subtests, tmp_path):
    """A generated model returns what Lua's module returned."""
    for path in [path for path in CASES + LEGACY if name_of(path) not in UNEQUAL]:
        with subtests.test(name_of(path)), new_folder(tmp_path) as folder:
            _, model = run_source(module_in(path), folder)
            case = recorded(path, "io")
            assert not difference(run(model, case), case["output"])


@pytest.mark.parametrize("path", [path for path in CASES + LEGACY if name_of(path) in UNEQUAL], ids=name_of)
def test_exceptions_are_still_needed(path, tmp_path):
    """A case that is named as unequal is."""
    _, model = run_source(module_in(path), tmp_path)
    case = recorded(path, "io")
    assert difference(run(model, case), case["output"]).startswith("off by")


@pytest.mark.slow
def test_further_cases(subtests, tmp_path):
    """Other options and sizes, and networks with the shapes of well-known ones, with names that do not collide."""
    for file, name in [row for row in named(*FILES) if " ".join(row) not in BATCHES_ONLY]:
        with subtests.test(f"{file}, {name}"), new_folder(tmp_path) as folder:
            case = recorded_cases(file)[name]
            made, model = run_source(case["module"], folder, name)
            model.train(bool(case.get("train")))
            case = {key: as_torch(value) for key, value in case.items()}
            with torch.no_grad():
                assert not difference(run(model, case), case["output"])
            assert "t7bridge" not in made.text.partition("from __future__")[2]


@pytest.mark.parametrize("name", sorted(BATCHES_ONLY))
def test_one_example_is_refused_where_a_batch_is_meant(name, tmp_path):
    """If the source requires batches, a single example is an error of PyTorch's, not another result."""
    case = recorded_cases(name.split()[0])[name.split()[1]]
    _, model = run_source(case["module"], tmp_path)
    with pytest.raises(ValueError, match="expected 4D input"):
        model(as_torch(case["input"]))


@pytest.mark.slow
def test_live_modules(subtests):
    """The live modules of the same networks agree with Lua, too."""
    for file, name in named("architectures.t7", "nested.t7"):
        with subtests.test(f"{file}, {name}"):
            case = recorded_cases(file)[name]
            module = live_module(case["module"], name)
            case = {key: as_torch(value) for key, value in case.items()}
            with torch.no_grad():
                assert not difference(run(module, case), case["output"])


@pytest.mark.slow
def test_trains_as_the_live_module_does(subtests, tmp_path):
    """Gradients of all parameters are those of the live module, in evaluation mode."""
    for name in sorted(recorded_cases("architectures.t7")):
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            case = recorded_cases("architectures.t7")[name]
            made, model = run_source(case["module"], folder, name)
            live = live_module(case["module"], name)
            for module in (model, live):
                total(module(as_torch(case["input"]))).backward()
            parameters = dict(model.named_parameters(remove_duplicate=False))
            live_parameters = dict(live.named_parameters(remove_duplicate=False))
            compared = 0
            for live_key, (key, *_tied_keys) in made.keys.items():
                expected = live_parameters[live_key].grad if live_key in live_parameters else None
                if expected is not None:  # neither a buffer nor a parameter without use
                    assert not difference(parameters[key].grad, expected, 1e-3, 1e-5), live_key
                    compared += 1
            assert compared


def total(value: Any) -> torch.Tensor:
    """The sum of the squares of all outputs."""
    if isinstance(value, torch.Tensor):
        return value.square().sum()
    return sum((total(item) for item in value), start=torch.zeros(()))
