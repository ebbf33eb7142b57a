"""Adaptive max pooling, whose windows Lua computes in single precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fuzz_networks import records
from helpers import TESTFILES
from runtime_helpers import as_torch

from t7bridge.graph.lua import Table, TorchObject
from t7bridge.nn.layers.pooling import _EXACT_COUNTS
from t7bridge.torchmodules import live_module
from t7bridge.torchmodules.layers.pooling import AdaptiveMaxPool2d, exact_windows, windows_in_single


def differing_sizes(count):
    """Return the sizes up to 2^16 for which some window of Lua's is not PyTorch's, in numpy's single precision."""
    sizes = np.arange(1, 2**16 + 1)
    differs = np.zeros(len(sizes), bool)
    for edge in range(count + 1):
        in_single = np.float32(edge) / np.float32(count) * sizes.astype("f4")
        product = edge * sizes
        if edge < count:
            differs |= np.floor(in_single) != product // count
        if edge > 0:
            differs |= np.ceil(in_single) != -(-product // count)
    return sizes[differs]


def test_counts_for_which_torch_nn_serves():
    """With these counts no size has a window of its own in Lua; with every other one up to 33 some size has."""
    for count in _EXACT_COUNTS:
        assert not len(differing_sizes(count)), count
    for count in range(1, 34):
        if count not in _EXACT_COUNTS:
            assert len(differing_sizes(count)), count


def test_windows_are_those_of_single_precision():
    """Python's numbers, rounded, are numpy's; some windows have an element more than PyTorch's."""
    generator = np.random.default_rng(8)
    for size, count in zip(generator.integers(1, 70000, 300).tolist(), generator.integers(1, 100, 300).tolist()):
        edges = np.arange(count + 1).astype("f4") / np.float32(count) * np.float32(size)
        expected = [(int(start), int(end)) for start, end in zip(np.floor(edges[:-1]), np.ceil(edges[1:]))]
        assert windows_in_single(size, count) == expected
    lengths = [end - start for start, end in windows_in_single(21, 7)]
    assert sorted(set(lengths)) == [3, 4]
    assert all(end - start == 3 for start, end in exact_windows(21, 7))


def test_which_module_a_layer_becomes():
    """PyTorch's own where its windows are Lua's for every size; otherwise a class that has them."""
    for height, width, expected in ((1, 6, torch.nn.AdaptiveMaxPool2d), (7, 6, AdaptiveMaxPool2d)):
        sizes = Table.of({"H": float(height), "W": float(width)})
        module = live_module(TorchObject("nn.SpatialAdaptiveMaxPooling", 1, sizes), "root")
        assert type(module) is expected
        assert module.output_size == (height, width)


@pytest.mark.slow
def test_exported_and_compiled_programs_have_the_windows():
    """A program of torch.export computes what the module does, in sizes with Lua's windows and others."""
    record = next(record for record in records(TESTFILES / "found_rounding.t7"))
    module = live_module(record["model"], "root")
    input = as_torch(record["input"])
    expected = as_torch(record["output"])
    assert not torch.equal(torch.nn.functional.adaptive_max_pool2d(input, expected.shape[-2:]), expected)
    for images, output in ((input, expected), (input[..., :8, :8], module(input[..., :8, :8]))):
        program = torch.export.export(module, (images,))
        assert torch.equal(program.module()(images), output)
