"""Recognized cells: small layers that together compute an LSTM, a GRU or the like, and layers over sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .lift import cells_in as cells_in
    from .recurrences import Recurrence as Recurrence
    from .recurrences import StateOfStep as StateOfStep
    from .recurrences import recurrence as recurrence
    from .stacks import recognized as recognized

__getattr__ = face(
    __name__,
    {
        "lift": "cells_in",
        "recurrences": "Recurrence StateOfStep recurrence",
        "stacks": "recognized",
    },
)
