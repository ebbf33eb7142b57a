"""Effects of containers on memory, compared with what live models do to the memory of their inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fuzz_networks import records
from helpers import TESTFILES
from runtime_helpers import as_torch, leaves

from t7bridge.nn import MemoryEffects, ModuleSpec, build_plan
from t7bridge.torchmodules import live_module


def storages(value: Any) -> set[int]:
    """The addresses of the memory of all tensors in a value."""
    return {tensor.untyped_storage().data_ptr() for tensor in leaves(value) if tensor.numel()}


def watch(live: torch.nn.Module, spec: ModuleSpec, effects: MemoryEffects, exact: list[str]) -> None:
    """Check each call of a module, and of those inside; list those whose output is said to have memory of its own."""
    effect = effects.of(spec)
    before: list[list[torch.Tensor]] = []

    def begin(_: torch.nn.Module, inputs: Any) -> None:
        before.append([tensor.clone() for tensor in leaves(inputs)])

    def end(_: torch.nn.Module, inputs: Any, output: Any) -> None:
        copies = before.pop()
        if not effect.shares:
            assert not storages(inputs) & storages(output), f"{spec.path}, {spec.target}"
            exact.append(spec.target)
        if not effect.changes:
            assert all(map(torch.equal, copies, leaves(inputs))), f"{spec.path}, {spec.target}"

    live.register_forward_pre_hook(begin)
    live.register_forward_hook(end)
    inside = dict(live.named_children())
    for key, child in spec.children.items():
        if key in inside:
            watch(inside[key], child, effects, exact)


@pytest.mark.slow
def test_effects_cover_what_live_modules_do() -> None:
    """In each call of each module: an output in the memory of its input, or a changed input, is foreseen."""
    exact: list[str] = []
    for name in ("random_graph", "random_lists", "random_nn", "found_lists", "found_nets", "found_pages"):
        for record in records(TESTFILES / f"{name}.t7"):
            spec = build_plan(record["model"]).root
            module = live_module(record["model"], "root").eval()
            watch(module, spec, MemoryEffects(), exact)
            with torch.no_grad():
                module(as_torch(record["input"]))
    assert sum(target.endswith(("ConcatTable", "ParallelTable", "Sequential")) for target in exact) > 100
