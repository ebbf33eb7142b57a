"""Save the networks and operations of the tests for Lua, with what `lua_models.lua` is to run them on.

    python testfiles/gen/lua_models.py WORK && th testfiles/gen/lua_models.lua WORK testfiles/lua

Names after WORK save these alone, and a number after the folder of the results is that of the first file of operations
and of styles, so that cases can be added:

    python testfiles/gen/lua_models.py WORK left_out && th testfiles/gen/lua_models.lua WORK testfiles/lua 11

Run from the root of the repository, with `tests` on PYTHONPATH.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from lua_nets import NETS, flat, module_of
from lua_operations import CASES, allowed, case_of
from lua_styles import STYLES, style_of

import t7bridge
import t7bridge.workshop.lua
from t7bridge import Table, Tensor

work = Path(sys.argv[1])
work.mkdir(parents=True, exist_ok=True)


def plain(tensor: torch.Tensor) -> Tensor:
    """A tensor as Lua has it."""
    return Tensor.from_numpy(tensor.detach().reshape(tensor.shape or (1,)).contiguous().numpy())


def packed(values: list[torch.Tensor]) -> object:
    """One tensor, or a table of several."""
    return plain(values[0]) if len(values) == 1 else Table.from_list([plain(value) for value in values])


names = []
for name in sys.argv[2:] or (*NETS, *CASES, *STYLES):
    made = module_of(name) if name in NETS else case_of(name) if name in CASES else style_of(name)
    module, inputs = made
    label = name if name in NETS else f"{'op' if name in CASES else 'style'}_{name}"
    t7bridge.save_module(module, work / f"{label}.t7", example_inputs=inputs, allow=allowed(name), force=True)
    torch.manual_seed(5)
    slopes = [torch.randn(output.shape) for output in flat(module(*inputs))]
    weights = {key: plain(value) for key, value in module.state_dict().items()}
    case = {"input": packed(list(inputs)), "gradOutput": packed(slopes), "weights": Table.of(weights)}
    t7bridge.save(Table.of(case), work / f"{label}.case.t7", force=True)
    names.append(label)
shutil.copy(Path(t7bridge.workshop.lua.__file__).with_name("classes.lua"), work / "layers.lua")  # of all cases
(work / "names.txt").write_text("\n".join(names) + "\n")
