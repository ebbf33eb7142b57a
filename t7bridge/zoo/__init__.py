"""Conversion of many files: plan, run, workers, places, journal and report. `convert_zoo` is the entry point."""

from .journal import Journal, Record
from .places import Folder
from .plan import RunPlan, find_inputs, kind_of, output_names, safe_name
from .report import COLUMNS, ZooReport, as_csv
from .run import Progress, convert_zoo

__all__ = [
    "COLUMNS",
    "Folder",
    "Journal",
    "Progress",
    "Record",
    "RunPlan",
    "ZooReport",
    "as_csv",
    "convert_zoo",
    "find_inputs",
    "kind_of",
    "output_names",
    "safe_name",
]
