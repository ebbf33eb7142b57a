"""What a checkpoint of a language model says besides its weights: options, the vocabulary, and how to sample text."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from ..data import define
from ..graph.lua import Table, TorchObject, Value
from ..limits import Limits
from ..nn.fields import items_of
from ..nn.mapping import ModuleSpec, specs_in
from .draw.blocks import blocks_of
from .draw.shapes import infer

_MOST = 1 << 20
"""Maximum number of entries of a checkpoint that are searched for a vocabulary."""
_PLAIN = (bytes, bool, float)
_DEEPEST = 4
"""Maximum depth of a vocabulary in a checkpoint."""


@define(frozen=True)
class Sampling:
    """How to sample text from a model.

    Attributes:
        tokens: the vocabulary, in the order of the tokens' numbers. Bytes that are not UTF-8 are surrogates, as Python
            escapes them.
        index_base: the number of the first token.
        states: the shapes, without the batch, of the states that a model of one step takes and returns; `None` for a
            model of whole sequences.
    """

    tokens: list[str]
    index_base: int
    states: list[list[int]] | None


def sample_source() -> bytes:
    """Return `sample.py`: a program that generates text with the model next to it."""
    return (files("t7bridge.torchmodules") / "sample.py").read_bytes()


def sampling_of(
    module: TorchObject, path: str, checkpoint: Value, index_base: int, is_stateful: bool, limits: Limits
) -> Sampling | None:
    """Return how to sample text from a model, if the checkpoint has a vocabulary for it.

    A vocabulary numbers as many tokens as the last linear layer has outputs. The model takes a token and states, and
    returns the new states and scores; or sequences and a state, and returns scores and state.

    Args:
        module: the model.
        path: its path.
        checkpoint: the value that it is part of.
        index_base: the number of the first token, for the model in PyTorch.
        is_stateful: whether the model in PyTorch takes sequences and a state.
        limits: resource limits.
    """
    vocabularies = list(_vocabularies(checkpoint))
    if not vocabularies:
        return None
    blocks = blocks_of(module, path, limits)
    spec = blocks[0].spec
    count = _outputs(spec) if spec is not None else 0
    tokens = next((each for each in vocabularies if len(each) == count), None)
    if tokens is None:
        return None
    states = None if is_stateful else _states(*infer(blocks).values, count)
    return Sampling(tokens, index_base, states) if is_stateful or states is not None else None


def _outputs(root: ModuleSpec) -> int:
    """Return the number of outputs of the last linear layer."""
    sizes = [spec.args[1] for spec in specs_in(root) if spec.target == "torch.nn.Linear"]
    return sizes[-1] if sizes and isinstance(sizes[-1], int) else 0


def _states(taken: Any, returned: Any, count: int) -> list[list[int]] | None:
    """Return the shapes of the states of a model of one step: it returns each in its place, and the scores last."""
    if not isinstance(taken, list) or not isinstance(returned, list) or len(taken) != len(returned):
        return None
    token, states = taken[0], taken[1:]
    is_step = token == (1,) and states == returned[:-1] and returned[-1] == (1, count)
    return [list(shape[1:]) for shape in states] if is_step else None


def _vocabularies(root: Value) -> Iterator[list[str]]:
    """Yield the tables of a checkpoint that number texts from 1 on, as lists of the texts."""
    left, level, seen = _MOST, [root], set()
    for _ in range(_DEEPEST):
        below: list[Value] = []
        for value in level:
            if not isinstance(value, (Table, TorchObject)) or id(value) in seen or left < 0:
                continue
            seen.add(id(value))
            inside = value.values()
            left -= len(inside)
            if isinstance(value, Table) and (found := _numbered(value)):
                yield found
            below += inside
        level = below


def _numbered(table: Table) -> list[str]:
    """Return the texts that a table numbers from 1 on, in order: as its keys, or as its items."""
    found = items_of(table) or []
    if not found:
        numbers = {number: text for text, number in table.raw_items() if isinstance(number, float)}
        found = [numbers.get(float(place)) for place in range(1, len(table) + 1)]
    texts = [text for text in found if isinstance(text, bytes)]
    is_whole = len(texts) == len(found) == len(set(texts)) == len(table)
    return [text.decode("utf-8", "surrogateescape") for text in texts] if is_whole else []


def beside(checkpoint: Value) -> dict[str, Value]:
    """Return the entries of a checkpoint that describe its model: texts, numbers, and tables in which there are texts.

    Args:
        checkpoint: the value that the model is part of; nothing stands beside a model that is the whole file.
    """
    if not isinstance(checkpoint, Table):
        return {}
    entries = ((name, item) for name, item in checkpoint.items() if isinstance(name, str))
    return {name: item for name, item in entries if isinstance(item, _PLAIN) or _describes(item)}


def _describes(value: Any) -> bool:
    """Return whether a value is a table of texts and numbers, and not of numbers alone."""
    if not isinstance(value, Table):
        return False
    inside = [*value.raw_keys, *value.raw_values]
    return all(isinstance(part, _PLAIN) for part in inside) and any(isinstance(part, bytes) for part in inside)
