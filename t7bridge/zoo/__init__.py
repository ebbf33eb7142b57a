"""Conversion of many files: plan, run, workers, places, journal and report. `convert_zoo` is the entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..data import face

if TYPE_CHECKING:
    from .run import convert_zoo as convert_zoo

__getattr__ = face(
    __name__,
    {
        "journal": "Journal Record",
        "places": "Folder",
        "plan": "RunPlan find_inputs kind_of output_names safe_name",
        "progress": "Progress",
        "report": "COLUMNS ZooReport as_csv",
        "run": "convert_zoo",
    },
)
