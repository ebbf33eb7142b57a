"""Random networks and altered twins of them through `match`, whose pairs are known: none may be wrong.

    python fuzz/fuzz_match.py --count 2000 --seed 1

A network is a stem, blocks and a classifier; a block is residual (its norms before or after the convolutions), a dense
layer, or parallel branches. Each side names the same layers in its own way: containers for stages, blocks and branches
or none, shortcuts and classifiers first or last, norms in turn or at the end, branches in another order. A twin may
lack a block, a bias or a norm, have another width, kernel or classifier, or one block twice.

Branches of equal layers keep their order. State dicts alone are matched: `fuzz_alike.py` has graphs too. Exits with 1
if a pair is wrong, and prints the seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

import numpy as np
from attrs import evolve, field

from t7bridge import Tensor, match
from t7bridge.data import define

Shape = tuple[int, ...]


@define(frozen=True)
class Leaf:
    """A layer.

    Attributes:
        kind: `conv`, `norm` or `linear`.
        shape: of its weight.
        number: which no other layer has.
        bias: whether it has one.
    """

    kind: str
    shape: Shape
    number: int
    bias: bool


@define(frozen=True)
class Block:
    """Branches of layers side by side, whose outputs are added or concatenated.

    Attributes:
        branches: the layers of each, in order; of a residual block the main one and its shortcut.
        is_residual: whether they are added.
    """

    branches: tuple[tuple[Leaf, ...], ...]
    is_residual: bool


@define(frozen=True)
class Net:
    """A network: stem, blocks, and the classifiers."""

    stem: tuple[Leaf, ...]
    blocks: tuple[Block, ...]
    head: tuple[Leaf, ...]


@define(eq=False)
class Maker:
    """Makes random networks.

    Attributes:
        chance: the random numbers.
        count: number of layers made.
    """

    chance: random.Random
    count: int = 0
    bias: bool = field(init=False, default=False)

    def leaf(self, kind: str, *shape: int, bias: bool = True) -> Leaf:
        """Return a new layer."""
        self.count += 1
        return Leaf(kind, shape, self.count, bias)

    def conv(self, inputs: int, outputs: int, size: int, before: bool = False, norm: bool = True) -> list[Leaf]:
        """Return a convolution with its norm, before or after it."""
        made = [self.leaf("conv", outputs, inputs, size, size, bias=self.bias or not norm)]
        norms = [self.leaf("norm", inputs if before else outputs)] if norm else []
        return norms + made if before else made + norms

    def net(self) -> Net:
        """Return a network."""
        chance = self.chance
        self.bias = chance.random() < 0.2
        kind = chance.choice(["residual", "before", "bottleneck", "bottleneck before", "dense", "inception", "mixed"])
        norm = chance.random() < 0.8
        width = chance.choice([4, 8])
        stem, blocks = self.conv(3, width, 3, norm=norm), []
        for _ in range(chance.randint(2, 5)):
            this = chance.choice(["residual", "bottleneck", "dense", "inception"]) if kind == "mixed" else kind
            if this == "dense":
                growth = chance.choice([2, 4])
                inner = self.conv(width, growth * 2, 1, True, norm) + self.conv(growth * 2, growth, 3, True, norm)
                blocks.append(Block((tuple(inner),), False))
                width += growth
            elif this == "inception":
                branches = [self.branch(width, norm) for _ in range(chance.randint(2, 4))]
                blocks.append(Block(tuple(map(tuple, branches)), False))
                width = sum(next(each.shape[0] for each in branch[::-1] if each.kind == "conv") for branch in branches)
            else:
                outputs = chance.choice([width, width, width * 2])
                blocks.append(self.residual(width, outputs, this, norm))
                width = outputs
        classes = chance.choice([5, 10])
        head = [self.leaf("linear", classes, width)]
        if chance.random() < 0.2:
            head = [self.leaf("linear", 16, width), self.leaf("linear", classes, 16)]
        return Net(tuple(stem), tuple(blocks), tuple(head))

    def residual(self, inputs: int, outputs: int, kind: str, norm: bool) -> Block:
        """Return a residual block."""
        before = kind.endswith("before")
        sizes = [(inputs, outputs, 3), (outputs, outputs, 3)]
        if kind.startswith("bottleneck"):
            inner = max(outputs // 4, 1)
            sizes = [(inputs, inner, 1), (inner, inner, 3), (inner, outputs, 1)]
        main = [leaf for size in sizes for leaf in self.conv(*size, before, norm)]
        changes = inputs != outputs or self.chance.random() < 0.3
        short = self.conv(inputs, outputs, 1, norm=norm and not before) if changes else []
        return Block((tuple(main), tuple(short)) if short else (tuple(main),), True)

    def branch(self, inputs: int, norm: bool) -> list[Leaf]:
        """Return a branch of an inception block."""
        widths = [self.chance.choice([2, 3, 4, 6]) for _ in range(self.chance.randint(1, 3))]
        found: list[Leaf] = []
        for number, (one, other) in enumerate(zip([inputs, *widths], widths)):
            found += self.conv(one, other, 1 if not number else 3, norm=norm)
        return found

    def twin(self, net: Net) -> tuple[Net, str]:
        """Return a network with one change, and its name."""
        change = self.chance.choice(["", "", "", "missing", "twice", "width", "kernel", "bias", "head", "norm"])
        at = self.chance.randrange(len(net.blocks))
        blocks = list(net.blocks)
        if change == "missing":
            del blocks[at]
        elif change == "twice":
            copied = [
                tuple(self.leaf(each.kind, *each.shape, bias=each.bias) for each in row) for row in blocks[at].branches
            ]
            blocks.insert(at, Block(tuple(copied), blocks[at].is_residual))
        elif change == "head":
            first, *rest = net.head[::-1]
            net = evolve(net, head=(*rest[::-1], evolve(first, shape=(7, *first.shape[1:]))))
        elif change:
            branches = [list(row) for row in blocks[at].branches]
            row = self.chance.choice(branches)
            place = self.chance.randrange(len(row))
            leaf = row[place]
            if change == "norm" and leaf.kind == "norm":
                del row[place]
            elif change == "bias" and leaf.kind == "conv":
                row[place] = evolve(leaf, bias=not leaf.bias)
            elif change == "width":
                row[place] = self.leaf(leaf.kind, leaf.shape[0] + 1, *leaf.shape[1:], bias=leaf.bias)
            elif change == "kernel" and leaf.kind == "conv":
                row[place] = self.leaf("conv", *leaf.shape[:2], 5, 5, bias=leaf.bias)
            blocks[at] = Block(tuple(tuple(each) for each in branches if each), blocks[at].is_residual)
        return evolve(net, blocks=tuple(blocks)), change


@define(frozen=True)
class Style:
    """How one side names its layers.

    Attributes:
        stages: blocks in a container of so many.
        blocks: whether a block is a container.
        branches: whether a branch is one, also of a single layer.
        grouped: whether norms follow all convolutions of a branch.
        short_first: whether shortcuts come first.
        head_first: whether the classifiers come first.
        order: seed of the order of branches in every block of as many; 0 for that of the network.
    """

    stages: int
    blocks: bool
    branches: bool
    grouped: bool
    short_first: bool
    head_first: bool
    order: int

    @classmethod
    def of(cls, chance: random.Random, lua: bool) -> Style:
        """Return a random style: of Lua's containers, or of a class of PyTorch."""
        share = chance.random
        if lua:
            return cls(chance.choice([1, 2, 9]), share() < 0.8, share() < 0.8, False, share() < 0.2, False, 0)
        return cls(
            chance.choice([1, 2, 9]), share() < 0.8, share() < 0.5, share() < 0.3, share() < 0.4, share() < 0.2,
            chance.choice([0, 0, 1, 2, 3]),
        )  # fmt: skip

    def rows(self, block: Block) -> list[tuple[int, tuple[Leaf, ...]]]:
        """Return the branches in their order, each with its number; equal ones keep theirs."""
        rows = list(enumerate(block.branches))
        if block.is_residual:
            return rows[::-1] if self.short_first else rows
        if self.order:
            random.Random(self.order * 10 + len(rows)).shuffle(rows)
        return rows

    def names(self, net: Net) -> list[tuple[str, Leaf]]:
        """Return the layers with their names."""
        named = [(f"stem{number}", leaf) for number, leaf in enumerate(net.stem)]
        for number, block in enumerate(net.blocks):
            stage = f"stage{number // self.stages}." if self.stages > 1 else ""
            above = f"{stage}block{number}." if self.blocks else f"{stage}b{number}_"
            for place, row in self.rows(block):
                main = block.is_residual and not place and not self.branches
                inside = above if main else f"{above}branch{place}" + (".0." if self.branches else "_")
                order = sorted(row, key=lambda leaf: leaf.kind) if self.grouped else row
                named += [(f"{inside}{at}", leaf) for at, leaf in enumerate(order)]
        head = [(f"head{number}", leaf) for number, leaf in enumerate(net.head)]
        return head + named if self.head_first else named + head


def state(named: list[tuple[str, Leaf]]) -> tuple[dict[str, Tensor], dict[str, tuple[int, str]]]:
    """Return a state dict, and what each key really is."""
    tensors, known = {}, {}
    for name, leaf in named:
        keys = {"weight": leaf.shape} | ({"bias": leaf.shape[:1]} if leaf.bias else {})
        if leaf.kind == "norm":
            keys |= dict.fromkeys(("running_mean", "running_var"), leaf.shape)
        for key, shape in keys.items():
            tensors[f"{name}.{key}"] = Tensor.from_numpy(np.zeros(shape, "f4"))
            known[f"{name}.{key}"] = (leaf.number, key)
    return tensors, known


def same_branches(net: Net) -> bool:
    """Return whether layers of parallel branches look alike, so that only their order could tell them apart."""
    for block in net.blocks:
        classes = Counter((leaf.kind, leaf.shape, place) for place, row in enumerate(block.branches) for leaf in row)
        if len({(kind, shape) for kind, shape, _ in classes}) < len(classes) and not block.is_residual:
            return True
    return False


def trial(seed: str) -> tuple[str, str]:
    """Match one network with a twin; return `complete`, `listed` or `wrong`, and what was changed."""
    chance = random.Random(seed)
    maker = Maker(chance)
    net = maker.net()
    twin, change = maker.twin(net)
    sides = [Style.of(chance, True), Style.of(chance, False)]
    if same_branches(net) or same_branches(twin):
        sides[1] = evolve(sides[1], order=0)
    if chance.random() < 0.3:
        net, twin = twin, net
    (source, known), (target, wanted) = (state(style.names(each)) for style, each in zip(sides, (net, twin)))
    found = match(source, target)
    for pair in found.pairs:
        if pair.source is not None and known[pair.source] != wanted[pair.target]:
            return "wrong", f"{change}: {pair.source} = {pair.target} ({pair.why})"
    return "complete" if found.complete else "listed", change


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    results: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for number in range(options.count):
        seed = f"{options.seed} {number}"
        result, what = trial(seed)
        if result == "wrong":
            wrong += 1
            print(f"seed {seed!r}: {what}", flush=True)
        results[result, what.partition(":")[0]] += 1
    for (result, change), count in sorted(results.items()):
        print(f"{result:9} {change or 'the same':9} {count}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
