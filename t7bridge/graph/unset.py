"""The mark of a state that an object was not given."""

from __future__ import annotations

from typing import Any

UNSET: Any = type("Unset", (), {"__repr__": lambda self: "UNSET"})()
"""The state of an object that was given none."""
