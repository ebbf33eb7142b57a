"""Conversion of many files: plan, run, workers, places, journal and report. `convert_zoo` is the entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..data import face

if TYPE_CHECKING:
    from .run import convert_zoo as convert_zoo

__getattr__ = face(
    __name__,
    {
        "groups": "Group Groups Names",
        "journal": "Journal Record",
        "names": "OutputNames safe_name",
        "places": "Folder",
        "plan": "RunPlan Settings find_inputs kind_of",
        "progress": "Progress",
        "report": "COLUMNS ZooReport as_csv counts_line left_out_text",
        "run": "convert_zoo",
        "workers": "convert_one",
    },
)
