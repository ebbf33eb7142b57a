"""What is declared about the constructors of this package's layers, compared with the constructors themselves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
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
"""What replaces any argument."""
TUPLES = ((), (2, 3), (-1,), ("a", "b"), (1, 2, 3, 4))
"""What also replaces a tuple."""


def _classes() -> set[str]:
    """Return every layer of the package by its dotted name, without those that are only bases of others."""
    layers: list[type] = []
    for home in layer_files():
        for name, value in vars(importlib.import_module(home)).items():
            is_layer = isinstance(value, type) and issubclass(value, torch.nn.Module)
            if is_layer and value.__module__ == home and not name.startswith("_"):
                layers.append(value)
    bases = {base for layer in layers for base in layer.__mro__[1:]}
    return {f"{layer.__module__}.{layer.__name__}" for layer in layers if layer not in bases}


def _specs() -> dict[str, dict[str, ModuleSpec]]:
    """Return modules of the test files, and those above, by class: one for each choice of arguments and children."""
    specs: dict[str, dict[str, ModuleSpec]] = {}
    for spec in (*_specs_of_files(), *_further_specs()):
        key = repr((spec.args, spec.kwargs, [*spec.children], [*spec.refers]))
        specs.setdefault(spec.target, {}).setdefault(key, spec)
    return specs


def _specs_of_files() -> Iterator[ModuleSpec]:
    """Yield the modules of this package's classes in all test files of less than 4 MB, without graphs."""
    for path in corpus("*.t7", "nn/*.t7", "models/*.t7", "rnn/*.t7"):
        if path.stat().st_size >= 4 << 20 or path.name.endswith((".io.t7", ".grad.t7")):
            continue
        for _, module in find_modules(read(path)):
            with suppress(T7BridgeError):  # it has no plan
                specs = list(specs_in(build_plan(module).root))
                yield from (spec for spec in specs if spec.target.startswith(OURS) and spec.graph is None)


def _further_specs() -> Iterator[ModuleSpec]:
    """Yield the modules of `FURTHER`; among the keywords, identities are children."""
    for name, (args, keywords) in FURTHER.items():
        children = {key: value for key, value in keywords.items() if value is IDENTITY}
        kwargs = {key: value for key, value in keywords.items() if value is not IDENTITY}
        _, _, class_name = name.partition(".")
        candidates = [f"{home}.{class_name}" for home in layer_files()]
        target = next(candidate for candidate in candidates if short_name(candidate) == name)
        yield ModuleSpec(target, args, kwargs, children)


def _separated(modules: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the children with numbers as names, which a constructor takes by position, and the others by name."""
    numbered = [module for name, module in modules.items() if name.isdigit()]
    named = {name: module for name, module in modules.items() if not name.isdigit()}
    return numbered, named


def _declared(
    spec: ModuleSpec, inside: dict[str, ModuleArgument]
) -> tuple[dict[str, Any], dict[str, ModuleSpec]] | str:
    """Return the shapes of tensors, and the children, that are declared for a module, or why it is refused.

    Args:
        spec: the module.
        inside: its children and what it refers to, by name.
    """
    numbered, named = _separated(inside)
    try:
        tensors, modules = constructed_parts(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
        # PyTorch constructs a convolution whose kernel has too few or too many dimensions, and fails later.
        return "refused kernel" if "a kernel of" in str(error) else "refused"
    return tensors, {name: module.spec for name, module in modules.items() if name not in spec.refers}


def _real(spec: ModuleSpec, modules: dict[str, torch.nn.Module]) -> tuple[dict[str, Any], dict[str, ModuleSpec]] | str:
    """Return the shapes of its own tensors, and the children, of a module that PyTorch constructs, or "refused".

    Args:
        spec: the module.
        modules: its children and what it refers to, constructed, by name.
    """
    numbered, named = _separated(modules)
    home, _, class_name = spec.target.rpartition(".")
    layer = getattr(importlib.import_module(home), class_name)
    try:
        with torch.device("meta"):  # without memory
            constructed = layer(*numbered, *spec.args, **named, **spec.kwargs)
    except RAISED:
        return "refused"
    spec_of = {id(modules[name]): inner for name, inner in {**spec.children, **spec.refers}.items()}
    children = {name: spec_of[id(module)] for name, module in constructed._modules.items() if id(module) in spec_of}
    prefixes = tuple(f"{name}." for name in children)
    tensors = {
        name: tuple(tensor.shape) for name, tensor in constructed.state_dict().items() if not name.startswith(prefixes)
    }
    return tensors, children


def _variants(spec: ModuleSpec) -> Iterator[ModuleSpec]:
    """Yield a module, and the same with each argument replaced, one too few, too many, and an unknown one."""

    def other(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleSpec:
        return ModuleSpec(spec.target, args, kwargs, spec.children, spec.refers)

    def replacements(value: Any) -> tuple[Any, ...]:
        return (*HOSTILE, *TUPLES) if isinstance(value, tuple) else HOSTILE

    args = tuple(spec.args)
    kwargs = dict(spec.kwargs)
    yield spec
    for index, value in enumerate(args):
        for replacement in replacements(value):
            yield other((*args[:index], replacement, *args[index + 1 :]), kwargs)
    for name, value in kwargs.items():
        for replacement in replacements(value):
            yield other(args, {**kwargs, name: replacement})
    yield other(args[:-1], kwargs)
    yield other((*args, *[7] * 9), kwargs)
    yield other(args, {**kwargs, "unknown": 1})
    for name in kwargs:
        yield other(args, {key: value for key, value in kwargs.items() if key != name})


def _as_arguments(spec: ModuleSpec, modules: dict[str, torch.nn.Module]) -> dict[str, ModuleArgument]:
    """Return the modules in a module as arguments of a constructor that is only checked: with shapes of tensors."""
    arguments = {}
    for name, inner in {**spec.children, **spec.refers}.items():
        shapes = {key: tuple(tensor.shape) for key, tensor in modules[name].state_dict().items()}
        arguments[name] = ModuleArgument(inner, shapes)
    return arguments


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_declared_tensors_children_and_refusals_are_those_of_the_constructors():
    """For every class of the package, what is declared is what its constructor does, or refuses."""
    specs = _specs()
    graphs = {f"{LAYERS}containers.{name}" for name in ("Graph", "Stateful")}  # their children are those of the plan
    assert _classes() - graphs <= set(specs), sorted(_classes() - graphs - set(specs))
    counts = {"refused": 0, "constructed": 0, "tensors": 0}
    differing = []
    for target, specs_of_class in sorted(specs.items()):
        for spec in [*specs_of_class.values()][:2]:
            for variant in _variants(spec):
                modules = {name: construct(inner) for name, inner in {**spec.children, **spec.refers}.items()}
                declared = _declared(variant, _as_arguments(spec, modules))
                real = _real(variant, modules)
                if declared not in (real, "refused kernel"):
                    differing.append((target, variant.args, dict(variant.kwargs), declared, real))
                counts["refused" if real == "refused" else "constructed"] += 1
                counts["tensors"] += bool(real != "refused" and real[0])
    advice = "`shapes` in the traits of a class is what its constructor makes: class, arguments, declared, made"
    assert not differing, "\n".join([advice, *map(str, differing[:40])])
    assert min(counts.values()) > 500
