"""Each operation of the table: what is loaded from the saved case computes what PyTorch did, and has its gradients."""

from __future__ import annotations

import pytest
import torch
from lua_nets import flat
from lua_operations import CASES, case_of

import t7bridge
from t7bridge.lua import OPERATIONS, operations
from t7bridge.lua.trace import trace


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
def test_operation(name, tmp_path):
    """Outputs and gradients of inputs and weights are those of PyTorch."""
    module, inputs = case_of(name)
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=inputs)
    again = t7bridge.load_module(tmp_path / "m.t7")
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_every_operation_has_a_case():
    """No entry of the table is without a case."""
    assert operations.shape
    used = set()
    for name in CASES:
        used |= {call.table_name for call in trace(*case_of(name), OPERATIONS).calls}
    entries = {id(entry): entry for entry in OPERATIONS.values()}
    untested = [entry.names[0] for entry in entries.values() if not used & set(entry.names)]
    assert not untested
