"""Random residual networks whose keys are known: what `match` decides is never wrong, however both sides are built."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import fuzz_alike
import fuzz_match
import numpy as np
import pytest

from t7bridge import Tensor, match

Leaf = tuple[str, tuple[int, ...], int]
"""What a layer is: kind, shape of its weight, and a number that no other has."""

SOURCES = ("nested", "nested, shortcut first", "flat", "flat, shortcut first", "in turn")
BRANCHES = ("in turn", "norms last", "container", "lists")


def layers_of(random: random.Random) -> tuple[list[Leaf], list[tuple[list[Leaf], list[Leaf]]], list[Leaf]]:
    """A stem, blocks of a branch and a shortcut, a head."""
    numbers = iter(range(1000))

    def conv(inputs: int, outputs: int, size: int) -> list[Leaf]:
        kernel = (outputs, inputs, size, size)
        return [("conv", kernel, next(numbers)), ("norm", (outputs,), next(numbers))]

    widths = random.choice([[4, 4], [4, 8], [4, 4, 8], [4, 8, 8]])
    bottleneck = random.random() < 0.5
    width = widths[0]
    stem, blocks = conv(3, width, 3), []
    for inner in widths:
        for _ in range(random.choice([1, 2])):
            outer = inner * 2 if bottleneck else inner
            if bottleneck:
                branch = conv(width, inner, 1) + conv(inner, inner, 3) + conv(inner, outer, 1)
            else:
                branch = conv(width, inner, 3) + conv(inner, inner, 3)
            changes = width != outer or random.random() < 0.2
            blocks.append((branch, conv(width, outer, 1) if changes else []))
            width = outer
    return stem, blocks, [("linear", (5, width), next(numbers))]


def source_of(model: Any, style: str) -> list[tuple[str, Leaf]]:
    """The names in Lua's containers and graphs."""
    stem, blocks, head = model
    named: list[tuple[str, Leaf]] = [(str(number), leaf) for number, leaf in enumerate(stem)]
    at = len(stem)
    for branch, short in blocks:
        both = [short, branch] if style.endswith("first") else [branch, short]
        if style.startswith("nested"):
            named += [(f"{at}.0.{side}.{n}", leaf) for side, part in enumerate(both) for n, leaf in enumerate(part)]
            at += 1
            continue
        order = both[0] + both[1]
        if style == "in turn":
            pairs = zip(branch, short)
            order = [leaf for pair in pairs for leaf in pair] + branch[len(short) :]
        named += [(str(at + number), leaf) for number, leaf in enumerate(order)]
        at += len(order)
    return named + [(str(at), leaf) for leaf in head]


def target_of(model: Any, random: random.Random) -> list[tuple[str, Leaf]]:
    """The names in a user's model, with all the blocks defined in the same way."""
    stem, blocks, head = model
    style, over = random.choice(BRANCHES), "net." * (random.random() < 0.3)
    contained, first, head_first = (random.random() < share for share in (0.5, 0.5, 0.3))
    staged = random.random() < 0.5
    named = [(f"{over}{name}", leaf) for name, leaf in zip(("conv1", "bn1"), stem)]
    for number, (branch, short) in enumerate(blocks):
        above = f"{over}layer{number // 2}.{number % 2}." if staged else f"{over}block{number}."
        kinds = [[leaf for leaf in branch if leaf[0] == kind] for kind in ("conv", "norm")]
        if style == "in turn":
            inside = [(f"{above}m{n}", leaf) for n, leaf in enumerate(branch)]
        elif style == "container":
            inside = [(f"{above}main.{n}", leaf) for n, leaf in enumerate(branch)]
        else:
            dot = "." * (style == "lists")
            inside = [(f"{above}{kind[0][0]}{dot}{n}", leaf) for kind in kinds for n, leaf in enumerate(kind)]
        beside = [(f"{above}down{'.' * contained}{n}", leaf) for n, leaf in enumerate(short)]
        named += beside + inside if first else inside + beside
    last = [("fc", leaf) for leaf in head]
    return last + named if head_first else named + last


def state(named: list[tuple[str, Leaf]]) -> tuple[dict[str, Tensor], dict[str, tuple[int, str]]]:
    """A state dict, and what each key really is."""
    tensors, known = {}, {}
    for name, (kind, shape, number) in named:
        keys = {"weight": shape}
        if kind == "norm":
            keys |= dict.fromkeys(("bias", "running_mean", "running_var"), shape)
        if kind == "linear":
            keys["bias"] = shape[:1]
        for key, extent in keys.items():
            tensors[f"{name}.{key}"] = Tensor.from_numpy(np.zeros(extent, "f4"))
            known[f"{name}.{key}"] = (number, key)
    return tensors, known


@pytest.mark.slow
@pytest.mark.parametrize("style", SOURCES)
def test_never_wrong(style):
    """No key gets what is another's, and some networks are decided completely by numbers and containers."""
    results: Counter[str] = Counter()
    for seed in range(80):
        chance = random.Random(f"{style} {seed}")
        model = layers_of(chance)
        (source, known), (target, wanted) = state(source_of(model, style)), state(target_of(model, chance))
        found = match(source, target)
        wrong = [pair for pair in found.pairs if known[pair.source] != wanted[pair.target]]
        assert not wrong, f"seed {seed}: {wrong[0]}"
        results["complete" if found.complete else "listed"] += 1
    assert results["complete"] > 0 or not style.startswith("nested")


@pytest.mark.slow
@pytest.mark.parametrize("style", SOURCES)
def test_never_wrong_with_another_head(style):
    """A classifier of another size is listed on both sides, and the other pairs are right."""
    for seed in range(60):
        chance = random.Random(f"{style} {seed}")
        model = layers_of(chance)
        (kind, (_, width), number) = model[2][0]
        other = (*model[:2], [(kind, (9, width), number)])
        (source, known), (target, wanted) = state(source_of(model, style)), state(target_of(other, chance))
        found = match(source, target)
        assert len(found.unmatched_source) == len(found.unmatched_target) == 2
        wrong = [pair for pair in found.pairs if known[pair.source] != wanted[pair.target]]
        assert not wrong, f"seed {seed}: {wrong[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
def test_never_wrong_with_a_block_missing(side):
    """If one side lacks a block, decided pairs are still right, and the rest is listed."""
    decided = 0
    for seed in range(120):
        chance = random.Random(seed)
        stem, blocks, head = layers_of(chance)
        gone = chance.randrange(len(blocks))
        less = (stem, blocks[:gone] + blocks[gone + 1 :], head)
        models = [less if side == at else (stem, blocks, head) for at in (0, 1)]
        style = chance.choice(SOURCES[:2])
        (source, known), (target, wanted) = state(source_of(models[0], style)), state(target_of(models[1], chance))
        found = match(source, target)
        assert not found.complete
        decided += len(found.pairs)
        wrong = [pair for pair in found.pairs if known[pair.source] != wanted[pair.target]]
        assert not wrong, f"seed {seed}: {wrong[0]}"
    assert decided > 400


WRONG_ONCE = ["2 298", "2 829", "2 1231", "2 1460", "3 137", "4 2553", "7 1333", "7 2760", "8 1256"]


@pytest.mark.slow
def test_altered_twins_are_never_wrong():
    """Networks of all kinds and twins with one change: pairs are right or listed."""
    for seed in [*WRONG_ONCE, *(f"5 {number}" for number in range(80))]:
        result, change = fuzz_match.trial(seed)
        assert result != "wrong", f"seed {seed}: {change}"


ALIKE_WRONG_ONCE = ["a1 275", "a2 481", "s1 214"]


@pytest.mark.slow
def test_layers_that_look_alike_are_never_wrong(subtests):
    """Two authors' networks of layers of one shape: pairs are right, or the keys are listed."""
    results: Counter[str] = Counter()
    for seed in [*ALIKE_WRONG_ONCE, *(f"alike {number}" for number in range(60))]:
        result, what = fuzz_alike.trial(seed)
        results[result] += 1
        with subtests.test(seed):
            assert result != "wrong", what
    assert results["complete"] > 5
