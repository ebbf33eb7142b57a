"""`prove`: each layer of a model against the values that Lua Torch recorded. Imports torch when it is asked to."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from attrs import field

from ... import formats
from ...conversion.inputs import Inputs
from ...conversion.options import AT, INPUT, JSON, LIMITS, flag, option, takes, verb
from ...errors import T7BridgeError, UnsupportedError
from ...graph.lua import Table, TorchObject, Value
from ...io.platform import require_torch
from ...io.source import Readable, require_file
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.places import choose_module, layer_names
from .proof import Proof, Subject


@verb
class Prove:
    """Compare each layer of a model with the values that Lua Torch recorded in the same file.

    Exit codes: 0 all that is recorded agrees, or all weights were updated since; 1 something else differs; 2 nothing
    could be compared.
    """

    COMMON = ("at", "input", "expect", "all")
    EXAMPLES = (
        "t7bridge prove model.t7",
        "t7bridge prove model.t7 --input in.t7 --expect out.t7",
        "t7bridge prove model.t7 model/ --input 1x3x224x224",
    )
    OLD_NAMES: ClassVar = {"shapes": "input"}
    source: Readable | Value = option(
        "a .t7 file with a model, saved without clearState()", kw_only=False, metavar="FILE", stdin=True
    )
    other = option("a second model: compare both on the same inputs", default=None, metavar="B", nargs="?")
    at: str | None = option(AT, default=None, kw_only=False)
    against: Any = field(default=None, kw_only=True)
    input: Inputs = option(INPUT, default=(), flags=("--input", "--shape"))
    expect = option("file with Lua's output for each --input, a file too; may be repeated", default=(), metavar="Y.t7")
    recording = option(
        "compare with the input and output in a table of Lua", default=None, metavar="IO.t7", flags=("--with",)
    )
    factory: str | None = option(
        "class or function that returns the model of a .pt, to compare two models", default=None,
        metavar="PACKAGE:FACTORY", flags=("--module",),
    )  # fmt: skip
    all = flag("also list layers without recorded values")
    json = JSON
    limits: Limits = LIMITS


@takes(Prove)
def prove(request: Prove) -> Proof:
    """Compare each layer of a `.t7` file with the values that Lua Torch recorded in it, or a model with a reference.

    A model saved without `clearState` contains the results of Lua's last pass: the output of each layer, which is the
    input of the next. Each layer whose input and output are recorded is run in PyTorch on Lua's input.

    Args:
        source: path, bytes, a binary file object, or a value that was read from a `.t7`.
        at: the path of one model if the file contains several: `root.model`. All of them otherwise.
        against: the reference, if it is not in the file: a pair of an input and Lua's output for it, or a list of
            pairs, each a tensor, a list of tensors or the path of a file that holds these; a `.t7` with a table of
            `input` and `output`; or a second model, which is run on the same seeded inputs: a `torch.nn.Module`, a
            `.t7`, a folder written by `t7bridge module`, whose model.py is imported and run, a TorchScript archive, or
            a state dict or a `.pt` with one, with `factory`.
        input: the input of two models, in any form of `t7bridge.conversion.inputs`; inferred from the layers of the
            first if empty.
        factory: `package:name` of the constructor of the model of a `.pt`, which is imported and called.

    Returns:
        The verdict on each layer.

    Raises:
        FormatError: a file is damaged, or of another format.
        ModelError: the file holds no module, or none at `at`; or the reference is of another model, or cannot be run.
        UnsupportedError: the file is not a `.t7`, or PyTorch is not installed.

    Example:
        >>> proof = prove("model.t7")  # doctest: +SKIP
        >>> proof.sentence()  # doctest: +SKIP
        'checked against 298 recorded activations of Lua Torch, largest difference 3e-06'
    """
    value, name = _lua_value(request.source, request.limits)
    if isinstance(request.against, (str, os.PathLike)):
        require_file(request.against)
    require_torch()
    from . import against as references  # it imports torch

    if request.against is None:
        proof = references.recorded_values(value, name, request.at, request.limits)
    else:
        path, model = choose_module(value, request.at, name)
        subject = Subject(model, path, name, request.limits)
        proof = references.compared(subject, request.against, request.input, request.factory)
    names = layer_names(value, request.limits)
    for layer in proof.layers:
        # Name and class; a copy that a cell keeps of a step has none.
        layer.layer, _ = names.get(layer.path, ("", ""))
    return proof


def _lua_value(source: Readable | Value, limits: Limits) -> tuple[Value, str]:
    """Return the value in a `.t7`, or the list of several, and its name; a value of Lua that was read before has none.

    Raises:
        FormatError: the file is damaged, or of an unknown format.
        UnsupportedError: the file is not a `.t7`.
    """
    if isinstance(source, (Table, TorchObject)):
        return source, ""
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise UnsupportedError(
            f"is {document.spec.title}; only files of Lua Torch hold recorded values", file=document.path
        )
    return document.value, document.path


def try_proof(
    source: Readable | TorchObject, at: str | None = None, *, limits: Limits = DEFAULT_LIMITS, **reference: Any
) -> Proof:
    """Prove a file; if that is not possible, the result has the `problem` in place of verdicts.

    Args:
        source: see `prove`.
        at: the path of one model if the file contains several.
        limits: resource limits.
        reference: further arguments of `prove`: `against`, `input`, `factory`.
    """
    try:
        return prove(source, at, limits=limits, **reference)
    except T7BridgeError as error:
        return Proof("", problem=". ".join(filter(None, (error.message, error.hint))) or str(error))
