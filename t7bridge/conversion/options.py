"""What can be asked of `convert`: the choices, checked, and what has no meaning for the formats at hand."""

from __future__ import annotations

from typing import Any

from ..data import define
from ..errors import ModelError
from ..io.source import ByteSource
from ..limits import Limits
from ..report import Report

CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": ("auto", "tree"),
    "format": ("t7", "pt"),
    ".pt format": ("zip", "legacy", "torchscript"),
    "encoding": ("binary", "ascii"),
    "byte_order": ("little", "big"),
    "long_size": (4, 8),
}


@define(frozen=True)
class Options:
    """What was asked for; see `convert`.

    Attributes:
        layout: the stated parts of a `.t7`'s layout.
        template: the Lua model that a state dict is put into, open.
    """

    as_: str
    layout: dict[str, Any]
    keep_device: bool
    record: bool
    nested: bool
    pt_format: str
    limits: Limits
    template: ByteSource | None
    partial: bool
    compact: bool


def check_choices(choices: dict[str, Any]) -> None:
    """Check that what was chosen exists; `None` is no choice.

    Raises:
        ModelError: it does not.
    """
    for name, choice in choices.items():
        if choice is not None and choice not in CHOICES[name]:
            raise ModelError(f"there is no {name} {choice!r}", expected=" or ".join(map(str, CHOICES[name])))


def note_ignored(options: Options, report: Report) -> None:
    """Note what was asked for and has no meaning for these formats."""
    way = (report.source_format, report.target_format)
    rest = set(options.layout) - {"encoding"}
    asked = {
        "the layout of a .t7": (bool(options.layout), way[1] == "t7"),
        "byte order or size of long in ascii": (bool(rest) and options.layout.get("encoding") == "ascii", False),
        "the format of a .pt": (options.pt_format != "zip", way[1] == "pt"),
        "nested": (options.nested, way == ("pt", "t7") and options.template is None),
        "the mode of modules": (options.as_ != "auto", way == ("t7", "pt")),
        "compact": (options.compact, way == ("t7", "pt") and options.as_ == "auto"),
        "keeping the device": (options.keep_device, way != ("t7", "t7")),
    }
    for what, (is_set, applies) in asked.items():
        if is_set and not applies:
            report.note("warning", f"{what} has no meaning from .{way[0]} to .{way[1]} here, and is ignored")
    if options.pt_format == "legacy" and options.record and way == ("t7", "pt"):
        report.note("info", "the legacy format has no place for the record that gives the same .t7 back")
