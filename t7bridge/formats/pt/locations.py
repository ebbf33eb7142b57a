"""Devices to which tensors of a `.pt` are loaded: their names, and `map_location`.

Source: PyTorch 2.13 `torch/serialization.py` `_get_restore_location`, `torch/_C` `Device` (names and indices).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ModelError

Location = str | Mapping[str, str] | Callable[[str], Any]
"""A device for all, `"cuda:0=cuda:1,ipu=cpu"` or the same as a mapping, or a function of the name in the file."""
MapLocation = Location | None
"""A location, or none: devices are kept or become the CPU."""
Place = Callable[[str], str]
"""Maps the device of a storage to the name to write."""

_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,30}(?::\d{1,4})?\Z")
_EXPECTED = "a name such as cpu or cuda:0"


def placed(map_location: Location, keep_device: bool) -> Place:
    """Return the function from the device in a file to the one written.

    Args:
        map_location: see `Location`. Devices that a mapping lacks, and those for which a function returns `None`, are
            treated as without it.
        keep_device: whether other devices are kept; otherwise they are `cpu`.

    Raises:
        ModelError: it names no valid device.
    """
    if isinstance(map_location, str) and "=" in map_location:
        pairs = [part.partition("=") for part in map_location.split(",")]
        map_location = {old.strip(): new.strip() for old, _, new in pairs}
    if isinstance(map_location, Mapping):
        known = {str(old): checked(new) for old, new in map_location.items()}
        return lambda device: known.get(device, device if keep_device else "cpu")
    if callable(map_location):
        ask = map_location

        def place(device: str) -> str:
            found = ask(device)
            return checked(found) if found is not None else device if keep_device else "cpu"

        return place
    device = checked(map_location)
    return lambda _: device


def checked(device: Any) -> str:
    """Return the name of a device, from text or a `torch.device`.

    Raises:
        ModelError: it is not a device.
    """
    name = str(device)
    if not _DEVICE.match(name):
        raise ModelError("is not the name of a device", expected=_EXPECTED, found=repr(name[:40]))
    return name
