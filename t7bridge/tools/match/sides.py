"""The two sides of a match: state dicts from files, models and dicts."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from attrs import field

from ... import formats
from ...conversion.template import state_dict_in
from ...data import define
from ...errors import ModelError, about_file
from ...formats.document import Document
from ...formats.pt.modules import MetModules, module_state_dict
from ...formats.pt.modules import is_module as is_pickled_module
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...graph.walk import walk
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.graphs import graphs_in
from ...nn.mapping import GraphSpec
from ...nn.places import choose, find_modules
from ...nn.state_dict import StateDict, state_dict
from ...report import Note
from .gates import gate_orders
from .parts import Path


@define(eq=False)
class Side:
    """One state dict of a match.

    Attributes:
        name: of the file, or its name in messages.
        format: its name; empty for a value in memory.
        tensors: its tensors by key, in order.
        others: its entries that are not plain tensors, which are not matched.
        keys: all keys, in order.
        derived: keys of derived tensors.
        runs: see `_graph_runs`.
        gates: see `gate_orders`.
        metadata: PyTorch's `_metadata`, if any.
        notes: notes of its construction.
        document: the file it comes from, open.
        module: the Lua module it comes from.
    """

    name: str = ""
    format: str = ""
    tensors: dict[str, Tensor] = field(factory=dict)
    others: dict[str, Any] = field(factory=dict)
    keys: list[str] = field(factory=list)
    derived: set[str] = field(factory=set)
    runs: dict[Path, str] = field(factory=dict)
    gates: dict[str, str] = field(factory=dict)
    metadata: Any = None
    notes: list[Note] = field(factory=list)
    document: Document | None = None
    module: TorchObject | None = None


def side_of(value: Any, name: str, at: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Side:
    """Return one side of a match from a file, a model or a state dict.

    Args:
        value: a path; a Lua module; a `StateDict`; a dict of tensors, t7bridge's or PyTorch's; a `torch.nn.Module`.
        name: its name in messages, if it is not a file.
        at: the path inside the value if it holds several state dicts: `root.protos.rnn`.
        limits: resource limits.

    Raises:
        ModelError: there is no state dict, or there are several and `at` names none of them.
        FormatError: the file is damaged, or in no supported format.
    """
    side = Side(name)
    if isinstance(value, (str, os.PathLike)):
        document = formats.open(value, limits=limits)
        side.name, side.format, side.document = document.path, document.format, document
        if document.spec.values == formats.LUA:
            document.warn(3)
            value = _module_in(document.roots, side.name, at)
        else:
            with about_file(side.name):
                value = _state_in(document.value, side.name, at, limits)
    if isinstance(value, TorchObject):
        side.runs = _graph_runs(value)
        side.gates = gate_orders(value)
        side.module = value
        value = state_dict(value, limits=limits)
    if isinstance(value, StateDict):
        side.derived = {key for key, origin in value.origins.items() if origin.param and origin.param.kind == "derived"}
        side.notes += value.notes
        value = value.tensors
    if not isinstance(value, Mapping) and callable(getattr(value, "state_dict", None)):
        value = value.state_dict()
    if not isinstance(value, Mapping):
        raise ModelError("is not a state dict", file=side.name, found=type(value).__name__)
    side.metadata = getattr(value, "_metadata", None)
    known: dict[Any, Tensor] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ModelError("a state dict has a key that is not text", file=side.name, found=type(key).__name__)
        side.keys.append(key)
        tensor = item if isinstance(item, Tensor) else _from_torch(item, known)
        if tensor is None or tensor.extras is not None:
            side.others[key] = item
        else:
            side.tensors[key] = tensor
    if not side.tensors:
        raise ModelError("holds no tensors", file=side.name)
    return side


def _graph_runs(root: TorchObject) -> dict[Path, str]:
    """Return the runs of nodes in the graphs of a model: chains of nodes whose output has exactly one use.

    Returns:
        The name of the run for the path of each module in a graph.
    """
    runs: dict[Path, str] = {}
    for place, graph in graphs_in(root):
        above = tuple(place.prefix.split(".")[:-1])
        for name, number in _runs(graph).items():
            path = (*above, name)
            runs[path] = f"~{number}"
    return runs


def _runs(graph: GraphSpec) -> dict[str, int]:
    takers = [0] * (len(graph.nodes) + 1)
    for node in graph.nodes:
        for before, _ in node.takes:
            takers[before] += 1
    for before, _ in graph.outputs:
        takers[before] += 1
    run_of: list[int] = [0]
    named: dict[str, int] = {}
    for number, node in enumerate(graph.nodes, 1):
        before = node.takes[0][0] if len(node.takes) == 1 else 0
        run_of.append(run_of[before] if before and takers[before] == 1 else number)
        if node.module is not None:
            named.setdefault(node.module, run_of[number])
    return named


def _from_torch(value: Any, known: dict[Any, Tensor]) -> Tensor | None:
    """Convert a live PyTorch tensor; return `None` for anything else. Tied ones stay the same tensor."""
    if not (hasattr(value, "detach") and hasattr(value, "data_ptr")):
        return None
    key = (value.data_ptr(), tuple(value.shape), value.stride())
    if key not in known or not value.numel():
        known[key] = Tensor.from_numpy(value.detach().cpu().numpy())
    return known[key]


def _module_in(roots: list[Any], name: str, at: str | None) -> TorchObject:
    """Return the only module with tensors in a `.t7`, or that at a path."""
    found = [
        (path, module)
        for number, root in enumerate(roots)
        for path, module in find_modules(root, "root" if len(roots) == 1 else f"root[{number + 1}]")
    ]
    if at is None and len(found) > 1:
        found = [(path, module) for path, module in found if state_dict(module).tensors] or found
    return choose(found, at, name)[1]


def _state_in(value: Any, name: str, at: str | None, limits: Limits) -> Any:
    """Return the only state dict in a `.pt`, or that at a path."""
    if at is None and (state := state_dict_in(value)):
        return state
    found: list[tuple[str, Any]] = []
    inside: set[Any] = set()
    met = MetModules(limits)
    for visit in walk(value):
        if visit.parent in inside:
            inside.add(visit)
        elif is_pickled_module(visit.value):
            inside.add(visit)
            found.append((visit.text(), module_state_dict(visit.value, limits=limits, met=met)))
        elif isinstance(visit.value, dict) and any(isinstance(item, Tensor) for item in visit.value.values()):
            found.append((visit.text(), visit.value))
    return choose(found, at, name, "state dict")[1]


def in_target_order(side: Side, tensors: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict with exactly the keys of a side, in their order, and its metadata."""
    result = OrderedDict((key, tensors[key]) for key in side.keys)
    if side.metadata is not None:
        result._metadata = side.metadata  # type: ignore[attr-defined]
    return result
