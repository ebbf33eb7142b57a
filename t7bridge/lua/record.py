"""Names of a PyTorch state dict inside a Lua model: a field of each module with weights, and one of the root.

A module's field is a table: name of a tensor field → `key` of the state dict, `size` of that tensor, `start` of the
part that the field holds (0-based, in elements), `transposed`. The root's field has the order of the keys, other keys
for tied tensors, and the tensors that no module holds. The fields move with the modules that they describe, so they
hold after training, `getParameters`, cloning and surgery in Lua.
"""

from __future__ import annotations

from ..graph.lua import Table
from .layers import WeightRef

FIELD = "t7bridge"
ROOT_FIELD = "t7bridge_state_dict"


def weight_entry(ref: WeightRef, shape: tuple[int, ...]) -> Table:
    """Return the entry of a tensor field."""
    entry = Table.of({"key": ref.key, "size": Table.from_list([float(extent) for extent in shape])})
    if ref.start:
        entry["start"] = float(ref.start)
    if ref.transposed:
        entry["transposed"] = True
    return entry
