"""What is declared about the constructors of this package's layers, compared with the constructors themselves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import corpus, layer_files, read

from t7bridge.codegen import ModuleArgument, constructed_parts
from t7bridge.errors import T7BridgeError
from t7bridge.nn import LAYERS, OURS, ModuleSpec, Refused, build_plan, find_modules, short_name, specs_in
from t7bridge.torchmodules import construct

RAISED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
IDENTITY = ModuleSpec("torch.nn.Identity")
# Classes that no test file has.
FURTHER: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "pt.Convolution": (((1, 1), (0, 0), (1, 1), 1), {}),
    "pt.CumProd": ((1,), {}),
    "pt.Extremum": ((1, False), {}),
    "pt.Fold": (((4, 4), (2, 2), (1, 1), (0, 0), (1, 1)), {}),
    "pt.Function": (("sin",), {}),
    "pt.Gather": ((1,), {}),
    "pt.GridSample": (("bilinear", "zeros", True), {}),
    "pt.MaxPlaces": (((2, 2), (2, 2), (0, 0), (1, 1), False), {}),
    "pt.Pairwise": (("pow",), {}),
    "pt.Scatter": ((1, True), {}),
    "pt.Sort": ((1, True), {}),
    "bnn.BinaryConv2d": (((4, 3, 2, 2),), {}),
    "ccn2.SpatialAvgPooling": ((2, 2), {}),
    "ccn2.SpatialConvolution": ((3, 4, 2), {}),
    "ccn2.SpatialConvolutionLocal": (((5, 6, 4, 3, 2, 2),), {}),
    "ccn2.SpatialCrossMaxPooling": ((2, 2), {}),
    "ccn2.SpatialMaxPooling": ((2, 2), {}),
    "ccn2.SpatialResponseNormalization": ((3, 0.1), {}),
    "sequence.BareRNN": ((4,), {"bidirectional": True}),
    "sequence.BatchRNN": ((), {"0": IDENTITY}),
    "sequence.Steps": ((), {"0": IDENTITY}),
    "sequence.OutputsGRU": ((3, 4), {"num_layers": 2, "remember": True}),
    "sequence.OutputsLSTM": ((3, 4), {"bidirectional": True, "dropout": 0.5, "num_layers": 2}),
    "training.PCAColorTransform": ((3,), {}),
    "training.SimpleColorTransform": ((0.1, 0.2), {}),
    "linear.SpatialFeatNormalization": ((3,), {}),
    "training.SpatialRegionDropout": ((0.2,), {}),
    "resample.SpatialUniformCrop": ((3, 4), {}),
    "inn.ROIPooling": (((3, 4),), {}),
    "inn.SpatialStochasticPooling": (((2, 2), (2, 2)), {}),
    "pooling.SumPool3d": ((2,), {}),
    "deepmask.DeepMask": ((), dict.fromkeys(("trunk", "maskBranch", "scoreBranch"), IDENTITY)),
    "deepmask.SharpMask": (
        (),
        {**dict.fromkeys(("trunk", "scoreBranch", "maskBranchDM", "ref0", "ref1"), IDENTITY), "skips": (1, 2)},
    ),
    "training.ReinforceGamma": ((1.0,), {"stochastic": True}),
    "criterion.SpatialBinaryLogisticRegression": ((), {}),
    "shape.ExpandAs": ((), {}),
    "resample.SpatialPadding": ((1, 1, 1, 1), {}),
    "style.GenNoise": ((3,), {}),
    "style.LeadingNoise": ((3,), {}),
    "style.NoiseFill": ((3,), {}),
    "table.JustTable": ((), {}),
    "w2nn.DepthExpand2x": ((), {}),
    "w2nn.PSNRCriterion": ((), {}),
    **{
        f"recurrent.{name}Cell": ((2, 3), {"bias": True}) for name in ("LSTM", "PeepholeLSTM", "GRU", "ResetGRU", "RNN")
    },
    "w2nn.WeightedSquaresCriterion": (((2, 3),), {}),
    "linear.Highway": ((3,), {"nonlinearity": "tanh", "gate_bias": -2.0}),
    "sequence.StatefulGRU": ((4, 3), {"batch_first": True}),
    "sequence.StatefulLSTM": ((4, 3), {"num_layers": 2, "dropout": 0.5}),
    "sequence.StatefulRNN": ((4, 3), {"nonlinearity": "relu"}),
}
HOSTILE = (None, -1, 0, 7, 2.5, "x")
TUPLES = ((), (2, 3), (-1,), ("a", "b"), (1, 2, 3, 4))


def _classes() -> set[str]:
    """Return every layer of the package by its dotted name, without those that are only bases of others."""
    found = [
        each
        for home in layer_files()
        for name, each in vars(importlib.import_module(home)).items()
        if isinstance(each, type) and issubclass(each, torch.nn.Module)
        if each.__module__ == home and not name.startswith("_")
    ]
    bases = {base for each in found for base in each.__mro__[1:]}
    return {f"{each.__module__}.{each.__name__}" for each in found if each not in bases}


def _specs() -> dict[str, dict[str, ModuleSpec]]:
    """Return all modules of the test files, and those above, by class and arguments."""
    found: dict[str, dict[str, ModuleSpec]] = {}

    def add(spec: ModuleSpec) -> None:
        key = repr((spec.args, spec.kwargs, [*spec.children], [*spec.refers]))
        found.setdefault(spec.target, {}).setdefault(key, spec)

    for path in corpus("*.t7", "nn/*.t7", "models/*.t7", "rnn/*.t7"):
        if path.stat().st_size < 4 << 20 and not path.name.endswith((".io.t7", ".grad.t7")):
            for _, module in find_modules(read(path)):
                try:
                    specs = list(specs_in(build_plan(module).root))
                except T7BridgeError:
                    continue
                for spec in specs:
                    if spec.target.startswith(OURS) and spec.graph is None:
                        add(spec)
    for name, (args, named) in FURTHER.items():
        children = {key: value for key, value in named.items() if value is IDENTITY}
        every = [f"{home}.{name.partition('.')[2]}" for home in layer_files()]
        target = next(each for each in every if short_name(each) == name)
        add(ModuleSpec(target, args, {k: v for k, v in named.items() if k not in children}, children))
    return found


def _declared(
    spec: ModuleSpec, inside: dict[str, ModuleArgument]
) -> tuple[dict[str, Any], dict[str, ModuleSpec]] | str:
    """Return the tensors and children that are declared for a module."""
    numbered = [each for name, each in inside.items() if name.isdigit()]
    named = {name: each for name, each in inside.items() if not name.isdigit()}
    try:
        tensors, modules = constructed_parts(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
        # PyTorch constructs a convolution whose kernel has too few or too many dimensions, and fails later.
        return "refused kernel" if "a kernel of" in str(error) else "refused"
    return tensors, {name: each.spec for name, each in modules.items() if name not in spec.refers}


def _real(spec: ModuleSpec, modules: dict[str, torch.nn.Module]) -> tuple[dict[str, Any], dict[str, ModuleSpec]] | str:
    """Return the tensors and children of a module that PyTorch constructs without memory."""
    numbered = [each for name, each in modules.items() if name.isdigit()]
    named = {name: each for name, each in modules.items() if not name.isdigit()}
    home, _, name = spec.target.rpartition(".")
    try:
        with torch.device("meta"):
            made = getattr(importlib.import_module(home), name)(*numbered, *spec.args, **named, **spec.kwargs)
    except RAISED:
        return "refused"
    owners = {id(modules[name]): each for name, each in {**spec.children, **spec.refers}.items()}
    children = {name: owners[id(each)] for name, each in made._modules.items() if id(each) in owners}
    inside = [f"{name}." for name in children]
    tensors = {name: tuple(each.shape) for name, each in made.state_dict().items()}
    return {name: each for name, each in tensors.items() if not name.startswith(tuple(inside))}, children


def _variants(spec: ModuleSpec) -> Iterator[ModuleSpec]:
    """Yield a module, and the same with other arguments, one too few and one too many."""

    def other(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleSpec:
        return ModuleSpec(spec.target, args, kwargs, spec.children, spec.refers)

    args, kwargs = tuple(spec.args), dict(spec.kwargs)
    yield spec
    for at, old in enumerate(args):
        for value in HOSTILE + TUPLES * isinstance(old, tuple):
            yield other((*args[:at], value, *args[at + 1 :]), kwargs)
    for name, old in kwargs.items():
        for value in HOSTILE + TUPLES * isinstance(old, tuple):
            yield other(args, {**kwargs, name: value})
    yield other(args[:-1], kwargs)
    yield other((*args, *[7] * 9), kwargs)
    yield other(args, {**kwargs, "unknown": 1})
    for name in kwargs:
        yield other(args, {key: value for key, value in kwargs.items() if key != name})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_declared_tensors_children_and_refusals_are_those_of_the_constructors():
    """For every class of the package, what is declared is what its constructor does, or refuses."""
    specs = _specs()
    graphs = {f"{LAYERS}containers.{name}" for name in ("Graph", "Stateful")}  # their children are those of the plan
    assert _classes() - graphs <= set(specs), sorted(_classes() - graphs - set(specs))
    counts = {"refused": 0, "constructed": 0, "tensors": 0}
    differing = []
    for target, found in sorted(specs.items()):
        for spec in [*found.values()][:2]:
            below = {**spec.children, **spec.refers}
            for variant in _variants(spec):
                modules = {name: construct(each) for name, each in below.items()}
                inside = {
                    name: ModuleArgument(
                        below[name], {key: tuple(each.shape) for key, each in module.state_dict().items()}
                    )
                    for name, module in modules.items()
                }
                declared, real = _declared(variant, inside), _real(variant, modules)
                if declared not in (real, "refused kernel"):
                    differing.append((target, variant.args, dict(variant.kwargs), declared, real))
                counts["refused" if real == "refused" else "constructed"] += 1
                counts["tensors"] += bool(real != "refused" and real[0])
    advice = "`shapes` in the traits of a class is what its constructor makes: class, arguments, declared, made"
    assert not differing, "\n".join([advice, *map(str, differing[:40])])
    assert min(counts.values()) > 500
