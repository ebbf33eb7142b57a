"""Each operation of the table: what is loaded from the saved case computes what PyTorch did, and has its gradients."""

from __future__ import annotations

import json
import os
from functools import wraps

import pytest
import torch
from attrs import evolve
from lua_nets import flat
from lua_operations import CASES, allowed, case_of

import t7bridge
from t7bridge.workshop.lua import operations
from t7bridge.workshop.lua.build import OF_COMPLEX, OPERATIONS


class Diagonal(torch.nn.Module):
    """Doubles the diagonal of each matrix in place."""

    def forward(self, x):
        y = x + 0
        y.diagonal(0, 1, 2).mul_(2)
        return y


class Quotient(torch.nn.Module):
    """Divides and rounds."""

    def forward(self, x):
        return torch.div(x, 0.25, rounding_mode="floor") * x


# Cases that Lua has not recorded with the others, and what each may need: `testfiles/lua/values.t7` has quotients.
UNRECORDED = {
    "diagonal": (Diagonal(), [torch.randn(2, 3, 3)], ()),
    "quotient": (Quotient(), [torch.randn(2, 5)], ("layers",)),
}


def check(name, path):
    """Outputs and gradients of inputs and weights are those of PyTorch."""
    module, inputs, allow = UNRECORDED[name] if name in UNRECORDED else (*case_of(name), allowed(name))
    t7bridge.save_module(module, path, example_inputs=inputs, allow=allow, force=True)
    again = t7bridge.load_module(path)
    results = []
    for one, packed in ((module, False), (again, True)):
        own = [value.clone().requires_grad_(value.is_floating_point()) for value in inputs]
        outputs = flat(one(own if len(own) > 1 else own[0]) if packed else one(*own))
        total = sum((output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum() for output in outputs)
        if total.requires_grad:
            total.backward()
        results.append((outputs, [value.grad for value in own if value.is_floating_point()]))
    (want, slopes), (got, own_slopes) = results
    for a, b in zip([*got, *own_slopes], [*want, *slopes], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


SHARDS = 6


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_operations(subtests, tmp_path, tmp_path_factory, monkeypatch, shard):
    """Each case computes what PyTorch does, and each entry of the table is used by one."""
    assert operations.shape  # which fills the table
    used = set()

    def counted(entry):
        @wraps(entry.build)
        def build(*args, **kwargs):
            used.add(entry.names)
            return entry.build(*args, **kwargs)

        return evolve(entry, build=build)

    for table in (OPERATIONS, OF_COMPLEX):
        for name, entry in list(table.items()):
            monkeypatch.setitem(table, name, counted(entry))

    monkeypatch.setattr("t7bridge.workshop.lua.trace.notes_on_modes", lambda *args: [])  # test_save_module.py
    for name in [*CASES, *UNRECORDED][shard::SHARDS]:
        with subtests.test(name):
            check(name, tmp_path / "m.t7")
    assert not {entry.names for entry in OPERATIONS.values()} - used_by_all(used, shard, tmp_path_factory)


def used_by_all(used, shard, tmp_path_factory):
    """Return the entries that all shards used; while others run, in this or another worker, every entry."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers of this run
    (folder / f"operations.{shard}.new").write_text(json.dumps(sorted(used)))
    (folder / f"operations.{shard}.new").rename(folder / f"operations.{shard}.json")
    finished = list(folder.glob("operations.*.json"))
    if len(finished) < SHARDS:
        return {entry.names for entry in OPERATIONS.values()}
    return {tuple(names) for path in finished for names in json.loads(path.read_text())}
