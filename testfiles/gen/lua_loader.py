"""Save the state dicts and inputs that `lua_loader.lua` puts into Lua models.

    python testfiles/gen/lua_loader.py WORK.t7
    t7bridge lua --loader -o FOLDER && th testfiles/gen/lua_loader.lua FOLDER/loader.lua WORK.t7 testfiles/lua/loader.t7

Run from the root of the repository, with `tests` on PYTHONPATH.
"""

from __future__ import annotations

import sys

import torch
from lua_loading import NETS, net_of

import t7bridge
from t7bridge import Table, Tensor


def plain(tensor: torch.Tensor) -> Tensor:
    """A tensor as Lua has it."""
    return Tensor.from_numpy(tensor.detach().reshape(tensor.shape or (1,)).contiguous().numpy())


cases = {}
for name in NETS:
    module, value = net_of(name)
    weights = {key: plain(tensor) for key, tensor in module.state_dict().items()}
    cases[name] = Table.of({"weights": Table.of(weights), "input": plain(value)})
t7bridge.save(Table.of(cases), sys.argv[1], force=True)
