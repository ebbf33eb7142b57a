"""The marker for a missing state."""

from __future__ import annotations

from typing import Any

UNSET: Any = type("Unset", (), {"__repr__": lambda self: "UNSET"})()
"""The state of an object that has none."""
