"""Recognized cells: small layers that together compute an LSTM, a GRU or the like, and layers over sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .lift import cells_in as cells_in
    from .stacks import Recurrence as Recurrence
    from .stacks import recognized as recognized
    from .stacks import recurrence as recurrence

__getattr__ = face(
    __name__,
    {
        "lift": "cells_in",
        "stacks": "Recurrence recognized recurrence",
    },
)
