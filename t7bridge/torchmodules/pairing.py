"""Two live modules on one input: outputs of their layers, and the pairs of layers. May import nn and below.

The code of generated folders and of factories is the user's own, and is imported on the user's request.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
import zipfile
from typing import Any

import torch
from torch import nn

from ..data import define
from ..errors import ModelError
from ..graph.lua import TorchObject
from ..io.inputs import add_input
from ..limits import DEFAULT_LIMITS, Limits
from .build import live_module
from .judging import measure
from .running import flat, mapped


@define(eq=False)
class LayerPair:
    """One layer of both models.

    Attributes:
        name: of the layer in the first model; empty for the whole.
        class_name: its class.
        agrees: whether outputs are equal up to rounding.
        max_abs: largest absolute difference.
        max_rel: the same relative to the largest value.
        cosine: of the angle between the outputs.
        excess: the largest difference in units of 1e-9 of the largest value, in double precision.
        count: number of values compared.
        parameters: number of the layer's own weights.
        reason: its name in the second model.
    """

    name: str
    class_name: str
    agrees: bool
    max_abs: float
    max_rel: float
    cosine: float
    excess: float
    count: int
    parameters: int
    reason: str


def live(model: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> nn.Module:
    """Return the live module of a Lua model, in evaluation mode and double precision."""
    return live_module(model, path, limits=limits).double().eval()


def from_folder(path: str) -> nn.Module:
    """Load the model of a folder written by `t7bridge module`: its `model.py` is imported.

    Raises:
        ModelError: there is no `model.py` with a `load`.
    """
    source = os.path.join(path, "model.py")
    spec = importlib.util.spec_from_file_location("t7bridge_model_of_folder", source)
    if spec is None or spec.loader is None or not os.path.exists(source):
        raise ModelError("the folder holds no model.py", file=path)
    add_input(source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _as_module(module.load(), source)


def from_factory(factory: str, weights: dict[str, Any], path: str) -> nn.Module:
    """Call a factory and load weights into its result.

    Args:
        factory: `package:name`.
        weights: tensors by key.
        path: of their file, for the error.

    Raises:
        ModelError: the factory cannot be imported, or the weights do not match.
    """
    package, _, name = factory.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(package), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(f"{factory} cannot be imported: {error}", expected="package:factory") from error
    finally:
        sys.path.remove(os.getcwd())
    try:
        made.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ModelError(f"the weights do not match: {str(error)[:300]}", file=path) from error
    return _as_module(made, factory)


def is_torchscript(path: str) -> bool:
    """Return whether a file is a TorchScript archive."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def from_torchscript(path: str) -> nn.Module:
    """Load the model of a TorchScript archive."""
    return _as_module(torch.jit.load(path), path)  # type: ignore[no-untyped-call]


def _as_module(made: Any, where: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise ModelError("the factory's result is not a torch.nn.Module", file=where, found=type(made).__name__)
    return made.double().eval()


def compare(one: nn.Module, other: nn.Module, value: Any) -> list[LayerPair]:
    """Run both modules and compare the outputs of the layers that have weights, in order, and of the whole.

    Layers correspond if both models have the same sequence of weight shapes; if they do not, only the whole is
    compared.

    Raises:
        ModelError: a model does not accept the input.
    """
    mine, result = _outputs(one, value)
    theirs, answer = _outputs(other, value)
    rows = []
    if [kind for _, kind, _, _ in mine] == [kind for _, kind, _, _ in theirs]:
        for (name, _, layer, left), (partner, _, _, right) in zip(mine, theirs):
            rows.append(_row(name, type(layer).__name__, left, right, _count(layer), f"{partner} in the other"))
    rows.append(_row("", type(one).__name__, result, answer, 0, "the whole"))
    return rows


def _count(module: nn.Module) -> int:
    return sum(item.numel() for item in module.parameters(recurse=False))


def _outputs(module: nn.Module, value: Any) -> tuple[list[tuple[str, Any, nn.Module, Any]], Any]:
    found: list[tuple[str, Any, nn.Module, Any]] = []
    handles = []
    names = {id(layer): name for name, layer in module.named_modules()}

    def keep(layer: nn.Module, _: Any, output: Any) -> None:
        kind = tuple(sorted(tuple(item.shape) for item in layer.parameters(recurse=False)))
        found.append((names[id(layer)], kind, layer, mapped(output, torch.clone)))

    if not isinstance(module, torch.jit.ScriptModule):
        for layer in module.modules():
            if next(layer.parameters(recurse=False), None) is not None:
                handles.append(layer.register_forward_hook(keep))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = module(mapped(value, torch.clone))
    except Exception as error:  # the user's code may raise anything
        raise ModelError(f"a model does not accept the input: {type(error).__name__}: {str(error)[:300]}") from error
    finally:
        for handle in handles:
            handle.remove()
    return found, result


def _row(name: str, class_name: str, left: Any, right: Any, parameters: int, partner: str) -> LayerPair:
    want, got = list(flat(right)), list(flat(left))
    largest = max((float(item.double().abs().max()) for item in want if item.numel()), default=0.0)
    # Both run in double precision: only the order of sums may differ.
    scales = [torch.full_like(item.double(), 1e-10 * largest + 1e-300) for item in got]
    found = measure([item.double() for item in want], [item.double() for item in got], scales)
    reason = "; ".join(filter(None, (partner, found.reason)))
    agrees = found.excess <= 1
    return LayerPair(
        name or "root",
        class_name,
        agrees,
        found.max_abs,
        found.max_rel,
        found.cosine,
        found.excess,
        found.count,
        parameters,
        reason,
    )
