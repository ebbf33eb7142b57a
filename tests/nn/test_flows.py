"""What is known of lists before a model runs, and what follows from the options of containers and criterions."""

from __future__ import annotations

import ast

import pytest
import torch
from fuzz_networks import records
from helpers import TESTFILES, layer_files
from runtime_helpers import as_torch

from t7bridge.nn import ANY, TENSOR, Kinds, build_plan, declared_traits, listed, many, traits_of
from t7bridge.nn.kinds import kind_of
from t7bridge.nn.mapping import LAYERS, ModuleSpec
from t7bridge.nn.output_shapes import Mismatch
from t7bridge.torchmodules import live_module
from t7bridge.torchmodules.layers.containers import DepthConcat

TENSORS = {
    "FromList",
    "OutputsOnly",
    "OutputsLSTM",
    "OutputsGRU",
    "OutputsRNN",
    "SeqLSTM",
    "ModuleCriterion",
    "MaskZeroCriterion",
}
"""Classes that return a tensor although their annotation allows more: PyTorch's own is such, or the loss is;
and a base, whose classes declare their own."""


def test_every_class_that_may_return_a_list_declares_its_flow():
    """A layer of the runtime returns a tensor, by the annotation of `forward`, or its traits have a `flow`."""
    traits = declared_traits()  # those of all packages
    wrong = []
    for home, path in layer_files().items():
        for kind in ast.parse(path.read_text(encoding="utf-8")).body:
            for method in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and method.name == "forward" and kind.name not in TENSORS:
                    facts = traits.get(f"{home}.{kind.name}")
                    returned = ast.unparse(method.returns) if method.returns else ""
                    if returned != "Tensor" and (facts is None or facts.flow is None):
                        wrong.append(kind.name)
    assert wrong == []


@pytest.mark.slow
def test_kinds_are_those_of_what_the_models_return():
    """The predicted structure of the output of each network that Lua made is that of its outputs."""
    known = 0

    def fits(kind, value):
        if isinstance(value, torch.Tensor):
            return not kind.is_list
        if kind.name == "tensor" or (kind.items is not None and len(kind.items) != len(value)):
            return False
        return all(fits(kind.at(at), item) for at, item in enumerate(value))

    def kind_of(value):
        return TENSOR if isinstance(value, torch.Tensor) else listed(map(kind_of, value))

    for name in (
        "found_lists",
        "found_lengths",
        "random_lists",
        "random_nn",
        "random_graph",
        "random_rnn",
        "found_nets",
    ):
        for record in records(TESTFILES / f"{name}.t7"):
            spec = build_plan(record["model"]).root
            more = zip(*(as_torch(record.get(field)) or () for field in ("moreInputs", "moreOutputs")))
            for input, output in ((as_torch(record["input"]), as_torch(record["output"])), *more):
                for given in (kind_of(input), ANY):
                    kind = Kinds(traits_of)(spec, given)
                    assert fits(kind, output), (name, record["text"], kind)
                    known += kind != ANY
    assert known > 300


def test_padded_outputs_are_concatenated_along_a_dimension_from_either_end():
    """The predicted shape is that of what DepthConcat returns, also for a dimension counted from the end."""
    input = torch.zeros(2, 3, 4, 4)
    modules = (torch.nn.Identity(), torch.nn.AvgPool2d(2))
    kinds = [kind_of(tuple(module(input).shape)) for module in modules]
    for dim in (1, -3, -1):
        output = DepthConcat(*modules, dim=dim)(input)
        assert Kinds(traits_of).concat(kinds, dim, pads=True).shape == tuple(output.shape)
    with pytest.raises(Mismatch):
        Kinds(traits_of).concat(kinds, 4, pads=True)


def test_upsampled_shapes_are_known_for_one_factor_only():
    """A factor for each dimension, and a size, leave the shape unknown; a size counts before a factor."""
    images = kind_of((1, 3, 4, 4))
    bilinear = f"{LAYERS}resample.UpsamplingBilinear2d"
    for target, args, kwargs, shape in (
        ("torch.nn.Upsample", (), {"scale_factor": 2}, (1, 3, 8, 8)),
        ("torch.nn.Upsample", (), {"scale_factor": (2, 3)}, None),
        ("torch.nn.Upsample", ((8, 8),), {}, None),
        ("torch.nn.Upsample", (8,), {}, None),
        (bilinear, (), {"scale_factor": 2}, (1, 3, 8, 8)),
        (bilinear, (), {"scale_factor": 2, "size": (5, 5)}, None),
    ):
        spec = ModuleSpec(target=target, args=args, kwargs=kwargs)
        assert Kinds(traits_of)(spec, images).shape == shape, spec


def test_large_lists_are_known_by_their_elements_only():
    """A kind is bounded, whatever a file nests or shares: no list of lists of lists grows with each layer."""
    kind = TENSOR
    for _ in range(100):
        kind = listed([kind, kind])
    assert kind.size < 500
    assert many(TENSOR).at(7) == TENSOR
    assert listed([TENSOR] * 3).at(-1) == TENSOR
    assert listed([TENSOR] * 3).at(3) == ANY


def test_criterions_take_a_missing_average_as_lua_does():
    """`sizeAverage` missing, or set on the criterion inside a cross entropy: the loss is Lua's."""
    for record in records(TESTFILES / "found_criterions.t7"):
        found = live_module(record["module"], "root")(as_torch(record["input"]), as_torch(record.get("target")))
        assert float(found) == pytest.approx(record["output"], rel=1e-12), record["name"]


def test_gradients_of_criterions_where_they_have_none():
    """At margins, of equal numbers and of probabilities that are 0 or 1, the gradient is the one that Lua takes."""
    for record in records(TESTFILES / "found_kink_criterions.t7"):
        inputs = as_torch(record["input"])
        leaves = [each.requires_grad_() for each in (inputs if isinstance(inputs, list) else [inputs])]
        loss = live_module(record["module"], "root")(inputs, as_torch(record.get("target")))
        assert loss.item() == pytest.approx(record["output"], rel=1e-12, abs=1e-15), record["text"]
        wanted = as_torch(record["gradInput"])
        for leaf, each in zip(leaves, wanted if isinstance(wanted, list) else [wanted]):
            (found,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            assert torch.allclose(found, each.reshape(found.shape), rtol=1e-12, atol=1e-15), record["text"]


def test_a_change_of_mode_starts_a_new_sequence():
    """As in Lua, `train` after `eval` and back forgets the last sequence; the same mode again does not."""
    record = next(each for each in records(TESTFILES / "found_nets.t7") if each["text"].startswith(b"remember"))
    steps = as_torch(record["input"])
    fresh = live_module(record["model"], "root").eval()
    resumed = fresh(steps)[0]
    assert torch.allclose(resumed, as_torch(record["output"])[0])
    again = live_module(record["model"], "root").eval().eval()
    assert torch.equal(again(steps)[0], resumed)
    turned = live_module(record["model"], "root").eval().train().eval()
    first = turned(steps)[0]
    assert not torch.allclose(first, resumed)
    second = turned(steps)[0]
    assert not torch.allclose(first, second)
    assert torch.equal(turned.train().eval()(steps)[0], first)
