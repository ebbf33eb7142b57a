"""Every class of rnn and dpnn in the corpus against what Lua computed: outputs, and the keys of the state dict."""

from __future__ import annotations

import pytest
import torch
from helpers import corpus, name_of, read
from runtime_helpers import difference, recorded, run

import t7bridge
from t7bridge import state_dict
from t7bridge.errors import T7BridgeError, UnsupportedLayerError
from t7bridge.nn import find_modules, is_scratch
from t7bridge.torchmodules import live_module

# Written with Moses 2, which made every field hold its own name: neither the module nor its weights are in the file.
EMPTY = "rnn/Serial.t7"
CASES = [path for path in corpus("rnn/*.t7") if not path.name.endswith(".io.t7") and name_of(path) != EMPTY]
# Values that no field of these classes should have.
WRONG = [None, -1.0, 0.0, 0.5, 1e300, float("nan"), b"text", True]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("path", CASES, ids=name_of)
def test_output_is_that_of_lua(path):
    """The live module returns what Lua's returned, and the same again, as Lua's forgot the first call."""
    module, case = t7bridge.load_module(path), recorded(path, "io")
    with torch.no_grad():
        assert not difference(run(module, case), case["output"])
        assert not difference(run(module, case), case["output"])


@pytest.mark.parametrize("path", CASES, ids=name_of)
def test_keys_are_those_of_the_file(path):
    """The keys, shapes and element types of `state_dict()` are those that `convert` writes."""
    wanted = state_dict(read(path)).tensors
    found = t7bridge.load_module(path).state_dict()
    assert sorted(found) == sorted(wanted)
    for key, tensor in wanted.items():
        assert (tuple(found[key].shape), str(found[key].dtype)) == (tensor.shape, f"torch.{tensor.element.name}"), key


def test_a_file_without_its_module():
    """Weights that are not in the file are reported as missing."""
    with pytest.raises(UnsupportedLayerError, match="where a module belongs"):
        t7bridge.load_module(corpus(EMPTY)[0])


def test_cells_have_few_weights():
    """A cell that Lua builds of thirty modules and more is a cell with a few weights here, under PyTorch's names."""
    found = {name: list(t7bridge.load_module(corpus(f"rnn/Sequencer.{name}.t7")[0]).state_dict()) for name in CELLS}
    assert found == {name: [f"0.{key}" for key in keys.split()] for name, keys in CELLS.items()}


CELLS = {
    "FastLSTM": "weight_ih weight_hh bias",
    "GRU": "weight_ih bias_ih weight_hh weight_in bias_in weight_hn",
    "LSTM": "weight_ii bias_i weight_hi weight_ci weight_if bias_f weight_hf weight_cf weight_ig bias_g weight_hg "
    "weight_io bias_o weight_ho weight_co",
}


@pytest.mark.slow
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_damaged_fields(value):
    """For any value of a field of the outermost modules, the module is made or the error is one of ours."""
    made = refused = asked = 0
    for path in CASES:
        whole = find_modules(read(path))[0][1]
        for module in (whole, whole.get("module")):
            for name in list(module.fields.raw_keys) if module is not None else ():
                if is_scratch(name.decode()) and value is not WRONG[0]:
                    continue  # what no module is made from: one value for all
                kept = module[name]
                module[name] = value
                asked += 1
                try:
                    assert isinstance(live_module(whole), torch.nn.Module)
                    made += 1
                except T7BridgeError as error:
                    refused += "root" in str(error)
                module[name] = kept
    assert made > 20
    assert refused > 20
    assert made + refused == asked, "every error says where"
