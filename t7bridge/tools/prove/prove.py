"""Prove that the layers of a model compute what Lua Torch recorded: `prove`. Imports torch when it is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import T7BridgeError
from ...graph.lua import Value
from ...io.source import Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...report import Note
from .models import lua_value, need_torch, one_module
from .proof import NOTE, Proof


def prove(
    source: Readable | Value,
    at: str | None = None,
    *,
    against: Any = None,
    shapes: Sequence[tuple[int, ...]] = (),
    factory: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Proof:
    """Compare each layer of a `.t7` file with the values that Lua Torch recorded in it, or a model with a reference.

    A model saved without `clearState` contains the results of Lua's last pass: the output of each layer, which is the
    input of the next. Each layer whose input and output are recorded is run in PyTorch on Lua's input.

    Args:
        source: path, bytes, a binary file object, or a value that was read from a `.t7`.
        at: the path of one model if the file contains several: `root.model`. All of them otherwise.
        against: the reference, if it is not in the file: a pair of an input and Lua's output for it, or a list of
            pairs, each a tensor, a list of tensors or the path of a file that holds these; the recording of the script
            of `prove --probe`, or any `.t7` with a table of `input` and `output`; or a second model, which is run on
            the same seeded inputs: a `torch.nn.Module`, a `.t7`, a folder written by `t7bridge module`, whose model.py
            is imported and run, a TorchScript archive, or a `.pt` with a state dict, with `factory`.
        shapes: of the inputs of two models; inferred from the layers of the first if empty.
        factory: `package:name` of the constructor of the model of a `.pt`, which is imported and called.
        limits: resource limits.

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
    need_torch()
    from . import against as references

    value, name = lua_value(source, limits)
    if against is None:
        return references.recorded_values(value, name, at, limits)
    path, model = one_module(value, name, at)
    subject = references.Subject(model, path, name, limits)
    return subject.against(against, shapes, factory)


def prove_note(source: Readable, at: str | None = None, *, limits: Limits = DEFAULT_LIMITS, **reference: Any) -> Note:
    """Prove a file and return the result as a note, also if it cannot be proved; see `prove`."""
    try:
        return prove(source, at, limits=limits, **reference).note()
    except T7BridgeError as error:
        return Note("info", "", f"{NOTE}not possible: {error.message or error}", code="prove")
