"""Containers that declare to do nothing besides their flow, compared with what they really do."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from t7bridge.layers import Domain, Traits, flows
from t7bridge.nn import LAYERS, GraphNode, GraphSpec, ModuleSpec, declared_traits, graph_arguments


class Probe(nn.Module):
    """A module inside: its output tells the type, the dimensions and the number of its calls, and the weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3, 4), weight))
        self.state: Any = None

    def forward(self, input: Any) -> Any:
        """Return a value like the input."""
        self.state = 1 if self.state is None else self.state + 1
        return self._changed(input)

    def _changed(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._changed(item) for item in value]
        if value is None:
            return None
        return (value * self.weight.mean() + value.dim() + self.state).to(value.dtype)


class Live(Domain[Any]):
    """Tensors of torch; what a flow does not say raises `LookupError`."""

    def __init__(self, inside: dict[str, nn.Module]) -> None:
        self._inside = inside

    def tensor(self) -> Any:
        raise LookupError("a tensor of which nothing is known")

    def items(self, values: Sequence[Any]) -> Any:
        return list(values)

    def item(self, value: Any, index: int, dim: int | None = None) -> Any:
        return value[index] if dim is None else value.select(dim, index)

    def length(self, value: Any, dim: int | None = None) -> int | None:
        if dim is not None:
            return int(value.size(dim))
        return len(value) if isinstance(value, list) else None

    def is_list(self, value: Any) -> bool | None:
        return isinstance(value, list)

    def concat(self, values: Sequence[Any], dim: int, *, pads: bool = False) -> Any:
        if pads:
            raise LookupError("where the smaller ones are padded is not said")
        return torch.cat(list(values), dim)

    def merge(self, value: Any, dims: int, apply: Callable[[Any], Any]) -> Any:
        extra = value.dim() - dims + 1
        if extra <= 1:
            return apply(value)
        output = apply(value.flatten(0, extra - 1))
        return output.reshape(*value.shape[:extra], *output.shape[1:])

    def steps(self, value: Any, apply: Callable[[Any], Any]) -> Any:
        outputs = [apply(step) for step in value]
        return torch.stack(outputs) if isinstance(value, Tensor) else outputs

    def stack(self, value: Any, apply: Callable[[Any], Any]) -> Any:
        return list(apply(torch.stack(value)).unbind(0))

    def call(self, spec: ModuleSpec, child: str, value: Any, node: int | None = None) -> Any:
        return self._inside[child](value)


GRAPH = GraphSpec(
    (GraphNode("0", ((0, ()),)), GraphNode("1", ((0, ()), (1, ()))), GraphNode(None, ((2, (1,)),))),
    ((3, ()), (1, ())),
    True,
)
TENSOR = (2, 3, 4)
LIST = [(2, 3, 4), (2, 3, 4)]
CASES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any], Any]]] = {
    "torch.nn.Sequential": [((), {}, TENSOR), ((), {}, LIST)],
    "torch.nn.Identity": [((), {}, TENSOR), ((), {}, LIST)],
    "containers.Concat": [((), {"dim": 1}, TENSOR)],
    "containers.TypedConcat": [((), {"dim": 1, "dtype": "float64"}, TENSOR)],
    "containers.DepthConcat": [((), {"dim": 1}, TENSOR)],
    "containers.Parallel": [
        ((), {"input_dim": 0, "output_dim": 0}, TENSOR),
        ((), {"input_dim": 0, "output_dim": 0, "dtype": "float64"}, TENSOR),
    ],
    "containers.Bottle": [((), {"n_input_dims": 2, "n_output_dims": 2}, TENSOR), ((), {"n_input_dims": 2}, (3, 4))],
    "containers.Batched": [((), {}, (2, 3, 4, 5)), ((), {}, TENSOR)],
    "containers.ConcatTable": [((), {}, TENSOR), ((), {}, LIST)],
    "containers.ParallelTable": [((), {}, LIST), ((), {}, [*LIST, TENSOR])],
    "containers.MapTable": [((), {}, [*LIST, TENSOR])],
    "containers.SharedParallelTable": [((), {}, [*LIST, TENSOR])],
    "containers.DontCast": [((), {}, TENSOR), ((), {"inside": "float64"}, TENSOR)],
    "containers.Graph": [((), graph_arguments(GRAPH), TENSOR)],
    "containers.Stateful": [((), graph_arguments(GRAPH), TENSOR)],
    "containers.WeightNorm": [((), {"dim": 0, "length_shape": (3,), "direction_shape": (3, 4)}, TENSOR)],
    "recurrent.Recursor": [((), {}, TENSOR)],
    "recurrent.MaskZero": [((), {}, (2, 4))],
    "sequence.MaskedSequential": [((), {}, TENSOR)],
    "sequence.Reversed": [((), {}, TENSOR)],
    "sequence.Sequencer": [((), {}, TENSOR), ((), {}, LIST)],
    "sequence.MaskedSequencer": [((), {}, TENSOR), ((), {}, LIST)],
    "sequence.Steps": [((), {}, TENSOR), ((), {}, LIST)],
    "sequence.Repeater": [((2,), {}, TENSOR)],
    "sequence.ReverseSequence": [((), {}, TENSOR), ((), {}, LIST)],
    "table.SelectTable": [((1,), {}, LIST), ((-1,), {}, TENSOR)],
    "table.ConnectedSelectTable": [((1,), {}, LIST)],
    "table.NarrowTable": [((0, 1), {}, LIST), ((1, 2), {}, LIST)],
    "table.ConnectedNarrowTable": [((1, 1), {}, LIST)],
    "table.JustTable": [((), {}, TENSOR), ((), {}, LIST)],
    "table.FlattenTable": [((), {}, [TENSOR, LIST]), ((), {}, TENSOR)],
    "table.ReverseTable": [((), {}, LIST)],
    "table.ZipTable": [((), {}, [LIST, [*LIST, TENSOR]])],
    "table.ZipTableOneToMany": [((), {}, [TENSOR, LIST])],
}
"""Of each class with a flow that says what it returns: positional and keyword arguments, and the shapes of inputs."""
ONE = (
    "Bottle",
    "DontCast",
    "WeightNorm",
    "MaskZero",
    "Sequencer",
    "MaskedSequencer",
    "Repeater",
    "SharedParallelTable",
)
"""Containers of one module; others have two here."""
SAYS_NOTHING = (flows.unknown, flows.tensors, flows.constant, flows.pair, flows.with_state, flows.recurrence)
"""Flows of modules that compute what they return."""


def input_of(shape: Any, draw: torch.Generator) -> Any:
    """A tensor of a shape, in which one example is zeros, or a list for a list of shapes."""
    if isinstance(shape, list):
        return [input_of(inner, draw) for inner in shape]
    value = torch.randn(shape, generator=draw)
    value[0] = 0
    return value


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are lists or tensors of the same elements and type."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype == other.dtype and one.equal(other)
    is_list = isinstance(one, list) and isinstance(other, list)
    return is_list and len(one) == len(other) and all(map(is_same, one, other))


def does_more(target: str, args: tuple[Any, ...], kwargs: dict[str, Any], shape: Any, facts: Traits) -> bool:
    """Return whether a container with probes inside does, in three calls, anything besides what its flow says."""
    home, _, name = (target if target.startswith("torch.") else LAYERS + target).rpartition(".")
    kind = getattr(import_module(home), name)
    assert facts.flow is not None
    holds_others = issubclass(kind, nn.Sequential) or name == "SharedParallelTable"
    count = (1 if name in ONE else 2) if holds_others else 0
    inside: dict[str, nn.Module] = {str(number): Probe(2.0 + number) for number in range(count)}
    alone = copy.deepcopy(inside)
    container = kind(OrderedDict(inside), **kwargs) if facts.is_graph else kind(*inside.values(), *args, **kwargs)
    if not set(public(kind)) <= {*public(nn.Sequential), "forward", "unit", "index", "start", "length"}:
        return True
    graph = GRAPH if facts.is_graph else None
    spec = ModuleSpec(target, args, kwargs, {child: ModuleSpec("") for child in inside}, graph=graph)
    if name == "MaskedSequencer":
        container.set_zero_mask(False)
    draw = torch.Generator().manual_seed(0)
    for is_training in (False, False, True):
        value = input_of(shape, draw)
        container.train(is_training)
        leaf = next(iter(tensors(value))).requires_grad_()
        output = container(value)
        try:
            expected = facts.flow(spec, value, Live(alone))
        except LookupError:
            return True
        if not is_same(output, expected) or has_gradients(output, value) != has_gradients(expected, value):
            return True
        leaf.requires_grad_(False)
    return False


def public(kind: type) -> list[str]:
    """The public names of a class."""
    return [name for name in dir(kind) if not name.startswith("_")]


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a value."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors(item)]


def has_gradients(output: Any, value: Any) -> list[bool]:
    """Return, for each tensor of an output, whether it depends on the first tensor of the input."""
    return [tensor.requires_grad for tensor in tensors(output)]


def test_transparent_containers_do_nothing_besides_their_flow(subtests: pytest.Subtests) -> None:
    """A class is declared transparent if, and only if, it does what its flow says and no more."""
    declared = {name.removeprefix(LAYERS): facts for name, facts in declared_traits().items() if facts.flow is not None}
    for name, facts in declared.items():
        if name not in CASES:
            with subtests.test(name):
                assert facts.flow in SAYS_NOTHING
                assert not facts.transparent
            continue
        with subtests.test(name):
            results = [does_more(name, *case, facts) for case in CASES[name]]
            assert facts.transparent == (not any(results)), results
    assert set(CASES) <= set(declared)
    assert not any(facts.transparent for facts in declared_traits().values() if facts.flow is None)
