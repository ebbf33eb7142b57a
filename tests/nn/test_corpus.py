"""State dicts of the whole corpus, compared with Lua's own `module:parameters()`."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import TESTFILES, corpus, name_of, read

from t7bridge import Tensor, state_dict
from t7bridge.layers import items_of
from t7bridge.nn import StateDict, find_modules

NO_MODULE = {
    "legacy/function_type6.t7": "a table with a function",
    "legacy/function_type7.t7": "a table with a function",
    "legacy/unversioned_tensor.t7": "a tensor",
}
WARNED = {"rnn/Serial.t7": "a damaged file: its fields hold their own names"}
# PyTorch has the weight of a Lua LSTM in two parts.
SPLIT = {"rnn/SeqLSTM.t7": 3, "rnn/SeqLSTM.batchfirst.t7": 3, "rnn/SeqLSTMP.t7": 4, "rnn/SeqBRNN.t7": 6}

MODELS = [
    path
    for path in corpus("nn/*.t7", "models/*.t7", "legacy/*.t7", "rnn/*.t7")
    if not path.name.endswith((".io.t7", ".grad.t7")) and name_of(path) not in NO_MODULE
]
# Lua counted the parameters of the three copies that it made for three inputs; the file holds one.
COPIES = {"nn/MapTable.t7": 3}
GRADS = [path for path in MODELS if path.with_suffix(".grad.t7").exists()]


def dict_of(name: str | Path) -> StateDict:
    """The state dict of the first module in a corpus file."""
    modules = find_modules(read(str(TESTFILES / name)))
    return state_dict(modules[0][1], modules[0][0])


def learned(result: StateDict) -> list[Tensor]:
    """The parameters of a state dict: neither its buffers nor what was computed."""
    return [
        tensor
        for name, tensor in result.tensors.items()
        if (param := result.origins[name].param) is None or param.kind == "parameter"
    ]


def test_every_case_has_a_state_dict(subtests):
    """Every class of the corpus has an entry, so nothing is warned of, and every tensor lies in its storage."""
    for path in MODELS:
        with subtests.test(name_of(path)):
            result = dict_of(path)
            for tensor in result.tensors.values():
                tensor.check()
            warned = [str(note) for note in result.notes if note.level == "warning"]
            assert bool(warned) == (name_of(path) in WARNED), warned


def test_parameters_are_those_of_lua(subtests):
    """The number and sizes of parameters are those of `module:parameters()`."""
    for path in GRADS:
        with subtests.test(name_of(path)):
            gradients = items_of(read(str(path.with_suffix(".grad.t7"))).get("gradParameters")) or []
            parameters = learned(dict_of(path)) * COPIES.get(name_of(path), 1)
            assert len(parameters) == len(gradients)
            assert sorted(tensor.numel for tensor in parameters) == sorted(tensor.numel for tensor in gradients)


@pytest.mark.parametrize("name", SPLIT)
def test_lstm_parameters(name):
    """A Lua LSTM's weight becomes two; the second bias of PyTorch is zero and not counted."""
    assert len(learned(dict_of(name))) == SPLIT[name]


@pytest.mark.parametrize("name", ["models/autoencoder_flat.t7", "models/siamese_shared.t7", "models/lenet_mm.t7"])
def test_nothing_is_copied(name):
    """Weights that a view can show stay in the file's own storages."""
    result = dict_of(name)
    for key, tensor in result.tensors.items():
        assert tensor.storage is result.origins[key].tensor.storage, key


def test_flat_parameters_stay_one_storage():
    """After getParameters() all weights are views of one storage, at their own offsets."""
    tensors = dict_of("models/autoencoder_flat.t7").tensors
    assert len({id(tensor.storage) for tensor in tensors.values()}) == 1
    assert sorted(tensor.offset for tensor in tensors.values()) == [0, 32, 36, 68]


def test_siamese_branches_share_weights():
    """The two branches have keys of their own and the same memory."""
    tensors = dict_of("models/siamese_shared.t7").tensors
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        first, second = tensors[f"0.0.{name}"], tensors[f"0.1.{name}"]
        assert first.storage is second.storage
        assert (first.offset, first.size, first.stride) == (second.offset, second.size, second.stride)


def test_checkpoint_table():
    """The module of a checkpoint table is found at its path; the rest of the table is not a module."""
    modules = find_modules(read(str(TESTFILES / "models/training_checkpoint.t7")))
    assert [path for path, _ in modules] == ["root.model"]


def test_cuda_classes_and_names():
    """A cuDNN network has the keys and shapes of torch.nn, on the device that the file names."""
    tensors = dict_of("models/cuda_cudnn_convnet.t7").tensors
    assert list(tensors)[:7] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]
    assert tensors["4.weight"].shape == (6, 4, 3, 3)
    assert tensors["4.weight"].device == "cuda:0"


def test_graph_without_modules():
    """A gModule of before 2015-10 has no `modules`: its forward nodes determine the same keys."""
    root = read(str(TESTFILES / "models/unet_nngraph.t7"))
    expected = list(state_dict(root).tensors)
    root["modules"] = None
    result = state_dict(root)
    assert list(result.tensors) == expected
    assert not result.notes
