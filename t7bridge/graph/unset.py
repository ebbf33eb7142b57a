"""The marker for a missing state."""

from __future__ import annotations

from typing import Any


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # the one object, in copies and pickles too


UNSET: Any = _Unset()
"""The state of an object that has none."""
