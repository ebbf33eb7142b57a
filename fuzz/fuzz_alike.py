"""Random pairs of networks whose layers look alike through `match`: no pair may be wrong.

    python fuzz/fuzz_alike.py --count 300 --seed 1
    python fuzz/fuzz_alike.py --count 100 --seed 1 --forms t7,module     # slower: models are traced for Lua

A network is a chain of blocks: layers, residual branches, branches that are added or concatenated. Two authors write
it: each has its own names, lists, containers and order of definitions. Lists are numbered as they run; names with
numbers may count down. Each side is a module, its state dict, its state dict as safetensors sorts it, or a `.t7`. Exits
with 1 if a pair is wrong, and prints the seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import field
from torch import nn

import t7bridge
from t7bridge import match
from t7bridge.data import define

WIDTH = 4
WORDS = (
    "alpha",
    "beta",
    "delta",
    "north",
    "south",
    "east",
    "west",
    "red",
    "blue",
    "gold",
    "kilo",
    "lima",
    "nova",
    "oscar",
)
FORMS = ("module", "state", "sorted")

Node = tuple[Any, ...]
"""Kind and content: a number of a layer, nothing of a tanh, a node of a residual, nodes of a chain, sum or cat."""


@define(eq=False)
class Network:
    """A network without names.

    Attributes:
        chance: the random numbers.
        layers: kind, inputs and outputs of each layer.
        blocks: of the chain.
        tied: a layer that has the tensors of another one.
    """

    chance: random.Random
    layers: list[tuple[str, int, int]] = field(factory=list)
    blocks: list[Node] = field(factory=list)
    tied: dict[int, int] = field(factory=dict)

    @classmethod
    def of(cls, chance: random.Random) -> Network:
        """Return a random network."""
        network = cls(chance)
        kinds = [chance.choice(["chain", "residual", "sum", "cat"])] * chance.randint(2, 5)
        if chance.random() < 0.3:
            kinds = [chance.choice(["chain", "residual", "sum", "cat"]) for _ in kinds]
        elif chance.random() < 0.3:
            kinds = ["chain"] * chance.randint(11, 14)
        has_norms, norms_first = chance.random() < 0.5, chance.random() < 0.3
        if chance.random() < 0.3:
            network.blocks.append(network.layer("linear", chance.choice([3, WIDTH]), WIDTH))
        for kind in kinds:
            count = 1 if kind in ("chain", "residual") else chance.randint(2, 3)
            branches = [network.branch(has_norms, norms_first) for _ in range(count)]
            node: Node = (kind, branches) if count > 1 else branches[0] if kind == "chain" else (kind, branches[0])
            if kind == "cat":
                node = ("chain", [node, network.layer("linear", count * WIDTH, WIDTH)])
            network.blocks.append(node)
        if chance.random() < 0.7:
            network.blocks.append(network.layer("linear", WIDTH, chance.choice([WIDTH, WIDTH, 2])))
        alike = [number for number, layer in enumerate(network.layers) if layer == ("linear", WIDTH, WIDTH)]
        if chance.random() < 0.2 and len(alike) > 2:
            first, second = sorted(chance.sample(alike, 2))
            network.tied[second] = first
        return network

    def layer(self, kind: str, inputs: int = WIDTH, outputs: int = WIDTH) -> Node:
        """Return a new layer."""
        self.layers.append((kind, inputs, outputs))
        return ("layer", len(self.layers) - 1)

    def branch(self, has_norms: bool, norms_first: bool) -> Node:
        """Return a chain of one or two layers with their norms."""
        nodes: list[Node] = []
        for _ in range(self.chance.randint(1, 2)):
            unit = [self.layer("linear"), self.layer("norm")] if has_norms else [self.layer("linear")]
            nodes += [*(reversed(unit) if norms_first else unit), ("tanh",)]
        return ("chain", nodes)

    @property
    def inputs(self) -> int:
        """Return the number of features of an input."""
        return self.layers[next(layers_in(("chain", self.blocks)))][1]


def layers_in(node: Node) -> Iterator[int]:
    """Yield the layers of a node as they run, branch by branch."""
    if node[0] == "layer":
        yield node[1]
    elif node[0] == "residual":
        yield from layers_in(node[1])
    elif node[0] != "tanh":
        for inner in node[1]:
            yield from layers_in(inner)


def named_flat(network: Network, chance: random.Random, words: list[str]) -> dict[int, tuple[str, ...]]:
    """Return a path for each layer, without containers of blocks."""
    order = list(layers_in(("chain", network.blocks)))
    style = chance.choice(["list", "list with gaps", "list of each kind", "words", "counted", "counted down"])
    paths: dict[int, tuple[str, ...]] = {}
    counts: Counter[str] = Counter()
    totals = Counter(network.layers[number][0] for number in order)
    place = 0
    for number in order:
        kind = network.layers[number][0]
        counts[kind] += 1
        if style == "words":
            paths[number] = (words.pop(),)
        elif style == "list of each kind":
            paths[number] = (f"{kind}s", str(counts[kind] - 1))
        elif style == "counted":
            paths[number] = (f"{kind}{counts[kind]}",)
        elif style == "counted down":
            paths[number] = ({"linear": "up", "norm": "scale"}[kind] + str(totals[kind] - counts[kind] + 1),)
        else:
            paths[number] = ("layers", str(place))
        place += 1 if style == "list" else chance.choice([1, 2])
    return paths


def named_in_blocks(network: Network, chance: random.Random, words: list[str]) -> dict[int, tuple[str, ...]]:
    """Return a path for each layer, in containers: those of blocks, or cut somewhere else."""
    order = list(layers_in(("chain", network.blocks)))
    groups = [list(layers_in(block)) for block in network.blocks]
    if chance.random() < 0.3:
        cuts = sorted(chance.sample(range(1, len(order)), min(len(order) - 1, 3)))
        groups = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)])]
    container = chance.choice(["list", "stages", "counted", "words"])
    inside = chance.choice(["numbers", "counted", "words"])
    name = words.pop()
    inner_words = [words.pop() for _ in range(3)]
    paths: dict[int, tuple[str, ...]] = {}
    for place, group in enumerate(groups):
        above = {
            "list": (name, str(place)),
            "stages": (f"stage{place // 2}", str(place % 2)),
            "counted": (f"{name}{place + 1}",),
            "words": (words.pop(),),
        }[container]
        counts: Counter[str] = Counter()
        for at, number in enumerate(group):
            kind = network.layers[number][0]
            counts[kind] += 1
            inner = {
                "numbers": str(at),
                "counted": f"{kind}{counts[kind]}",
                "words": f"{inner_words[at % 3]}_{'x' * at}",
            }
            paths[number] = (*above, inner[inside])
    return paths


class Written(nn.Module):
    """A network as an author writes it.

    Args:
        network: the network.
        chance: the random numbers.
    """

    def __init__(self, network: Network, chance: random.Random) -> None:
        super().__init__()
        words = [f"{one}_{other}" for one in WORDS for other in WORDS]
        chance.shuffle(words)
        paths = chance.choice([named_flat, named_in_blocks])(network, chance, words)
        prefix = chance.choice([(), (), ("net",), ("module",)])
        self.network, self.paths = network, {number: (*prefix, *path) for number, path in paths.items()}
        order = list(layers_in(("chain", network.blocks)))
        how = chance.choice(["as they run", "head first", "shuffled"])
        if how == "head first":
            order.insert(0, order.pop())
        elif how == "shuffled":
            chance.shuffle(order)
        for number in order:
            kind, inputs, outputs = network.layers[number]
            layer = nn.Linear(inputs, outputs) if kind == "linear" else nn.LayerNorm(inputs)
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -1, 1)
            parent: nn.Module = self
            for step in self.paths[number][:-1]:
                if step not in parent._modules:
                    parent.add_module(step, nn.Module())
                parent = parent.get_submodule(step)
            parent.add_module(self.paths[number][-1], layer)
        for second, first in network.tied.items():
            self.layer(second).weight, self.layer(second).bias = self.layer(first).weight, self.layer(first).bias

    def layer(self, number: int) -> Any:
        """Return a layer."""
        return self.get_submodule(".".join(self.paths[number]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the network."""
        return self.run(("chain", self.network.blocks), x)

    def run(self, node: Node, x: Any) -> Any:
        """Run a node."""
        kind = node[0]
        if kind == "layer":
            return self.layer(node[1])(x)
        if kind == "tanh":
            return torch.tanh(x)
        if kind == "residual":
            return x + self.run(node[1], x)
        if kind == "chain":
            for inner in node[1]:
                x = self.run(inner, x)
            return x
        outputs = [self.run(inner, x) for inner in node[1]]
        return torch.cat(outputs, -1) if kind == "cat" else sum(outputs[1:], outputs[0])

    def keys(self) -> dict[str, tuple[int, str]]:
        """Return the layer and the name of each key; of tied layers the first."""
        return {
            ".".join((*path, name)): (self.network.tied.get(number, number), name)
            for number, path in self.paths.items()
            for name in ("weight", "bias")
        }


def side(module: Written, form: str, folder: Path) -> Any:
    """Return a module as `match` gets it."""
    if form == "module":
        return module
    if form == "t7":
        path = folder / "model.t7"
        t7bridge.save_module(module, path, torch.randn(2, module.network.inputs), force=True)
        return t7bridge.load(path)
    state = dict(module.state_dict())
    return dict(sorted(state.items())) if form == "sorted" else state


def trial(seed: str, forms: tuple[str, ...] = FORMS) -> tuple[str, str]:
    """Match two authors' networks; return `complete`, `listed` or `wrong`, and what is wrong."""
    chance = random.Random(seed)
    torch.manual_seed(chance.getrandbits(30))
    network = Network.of(chance)
    modules = [Written(network, chance).eval() for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        source, target = (side(module, chance.choice(forms), Path(folder)) for module in modules)
        found = match(source, target)
    known, wanted = modules[0].keys(), modules[1].keys()
    for pair in found.pairs:
        if pair.source is not None and known[pair.source] != wanted[pair.target]:
            return "wrong", f"{pair.source} = {pair.target} ({pair.why})"
    return ("complete" if found.complete else "listed"), ""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--forms", default=",".join(FORMS))
    options = parser.parse_args()
    results: Counter[str] = Counter()
    for number in range(options.count):
        seed = f"{options.seed} {number}"
        result, what = trial(seed, tuple(options.forms.split(",")))
        results[result] += 1
        if result == "wrong":
            print(f"seed {seed!r}: {what}", flush=True)
    print(dict(results))
    return 1 if results["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
