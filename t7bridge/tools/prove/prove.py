"""Prove that the layers of a model compute the values recorded by Lua Torch: `prove`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ... import formats
from ...errors import ModelError, UnsupportedError
from ...graph.lua import TorchObject, Value
from ...io.source import Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.places import Places, module_at
from ...nn.state_dict import find_modules
from .criterions import is_criterion, prove_criterion
from .flows import runs
from .optimizers import directions
from .proof import AGREES, DIFFERS, NOT_RECORDED, LayerProof, Proof, StretchProof
from .runs import may_be_undone, own_parameters
from .values import Recorded, is_whole, recorded

if TYPE_CHECKING:
    from .optimizers import Direction


def prove(source: Readable, at: str | None = None, *, limits: Limits = DEFAULT_LIMITS) -> Proof:
    """Compare each layer of a `.t7` file with the values that Lua Torch recorded in it.

    A model saved without `clearState` contains the results of Lua's last pass: the output of each layer, which is the
    input of the next. Each layer whose input and output are recorded is run in PyTorch on Lua's input.

    Args:
        source: path, bytes, or a binary file object.
        at: the path of one model if the file contains several: `root.model`. All of them otherwise.
        limits: resource limits.

    Returns:
        The verdict on each layer.

    Raises:
        FormatError: the file is damaged, or of another format.
        ModelError: the file holds no module, or none at `at`.
        UnsupportedError: the file is not a `.t7`, or PyTorch is not installed.

    Example:
        >>> proof = prove("model.t7")  # doctest: +SKIP
        >>> proof.sentence()  # doctest: +SKIP
        'checked against 298 recorded activations of Lua Torch, largest difference 3e-06'
    """
    need_torch()
    value, name = lua_value(source, limits)
    return prove_value(value, name, at, limits)


def lua_value(source: Readable, limits: Limits) -> tuple[Value, str]:
    """Return the first value of a `.t7` file, and the file's name.

    Raises:
        FormatError: the file is damaged, or of another format.
        UnsupportedError: it is of another format.
    """
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise UnsupportedError("only .t7 files hold values recorded by Lua Torch", file=document.path)
    return document.first, document.path


def values_in(source: Readable, limits: Limits) -> Recorded:
    """Return the tensor in a file of any format, or its tensors: those of a table, or of names in their order.

    Raises:
        FormatError: the file is damaged.
        ModelError: it holds no tensors, or others are among them.
    """
    document = formats.open(source, limits=limits)
    value = document.first if document.spec.values == formats.LUA else document.value
    if isinstance(value, dict) and document.spec.values != formats.LUA:
        value = list(value.values())
    found = [recorded(each) for each in value] if isinstance(value, (list, tuple)) else recorded(value)
    if isinstance(found, list) and len(found) == 1 and document.spec.values == formats.NAMED:
        found = found[0]
    if not is_whole(found):
        raise ModelError("the file holds neither a tensor nor a table of tensors", file=document.path)
    return found


def need_torch() -> None:
    """Check that PyTorch is installed.

    Raises:
        UnsupportedError: it is not.
    """
    try:
        from ...torchmodules import running  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error


def chosen(value: Value, name: str, at: str | None) -> list[tuple[str, TorchObject]]:
    """Return the selected models of a value, with their paths.

    Raises:
        ModelError: there is none.
    """
    found = find_modules(value)
    if not found:
        raise ModelError("the file holds no module", file=name)
    if at is None:
        return found
    module = module_at(value, at)
    if module is None:
        listed = ", ".join(path for path, _ in found[:50])
        raise ModelError(f"the file holds no module at {at}", file=name, hint=f"There are: {listed}.")
    return [(at, module)]


def prove_value(value: Value, name: str, at: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Proof:
    """Return the verdicts on the models in a value. See `prove`."""
    proof = Proof(name)
    every = chosen(value, name, None)
    models = [module for _, module in every if not is_criterion(module)]
    steps = directions(value)
    for path, module in every if at is None else chosen(value, name, at):
        if is_criterion(module):
            proof.layers.append(prove_criterion(module, path, models, limits))
            continue
        layers, stretches = judged(module, path, limits, steps=steps)
        proof.layers += complete(layers, module, path, limits)
        proof.stretches += stretches
    return proof


def judged(
    module: TorchObject,
    path: str,
    limits: Limits,
    given: Recorded = None,
    grad_output: Recorded = None,
    steps: tuple[Direction, ...] = (),
) -> tuple[list[LayerProof], list[StretchProof]]:
    """Return the verdicts on the layers of one model that ran, and on whole stretches of them.

    Args:
        module: the model.
        path: its path.
        limits: resource limits.
        given: its input, if known.
        grad_output: the gradient with respect to its output, if known.
        steps: the directions of optimizers' last steps.
    """
    from .judge import Judge
    from .stretch import stretches
    from .verdicts import Vote

    tried = []
    for undone in (False, True):
        found, lost = runs(module, path, given, grad_output, limits, undone)
        judge = Judge(found, lost, limits)
        outcomes = judge.outcomes()
        layers = Vote(outcomes, steps, limits).decide()
        # Whether the last pass was a backward that restored in-place changes shows in how many layers agree.
        wrong = [layer.verdict for layer in layers if layer.verdict not in (AGREES, NOT_RECORDED)]
        tried.append((len(wrong), wrong.count(DIFFERS), layers, judge, outcomes))
        if not wrong or not any(may_be_undone(run.obj) for run in found):
            break
    _, _, layers, judge, outcomes = min(tried, key=lambda one: one[:2])
    return layers, [] if judge.turned else stretches(judge, outcomes)


def complete(layers: Iterable[LayerProof], module: TorchObject, path: str, limits: Limits) -> list[LayerProof]:
    """Return verdicts in the order of execution, including modules without one."""
    found = {layer.path: layer for layer in layers}
    for place in Places(module, path, limits):
        if place.layer is not None and not place.layer.children and place.path not in found:
            found[place.path] = LayerProof(
                place.path, place.obj.class_name, NOT_RECORDED, parameters=own_parameters(place.obj)
            )
    return list(found.values())
