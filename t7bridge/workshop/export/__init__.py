"""Lua models as ONNX and `.pt2`, by PyTorch's own exporters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .exporting import export as export

__getattr__ = face(
    __name__,
    {
        "exporting": "export",
    },
)
