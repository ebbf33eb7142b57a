"""Whole `.pt` files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...io.output import Output
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, Limits
from ..document import Document, Written
from . import writer as writers
from .reader import PtReader
from .script_writer import ScriptWriter

if TYPE_CHECKING:
    from .writer import LegacyPtWriter, MapLocation, PtWriter


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS, *, forbid: bool = True) -> Document:
    """Open a `.pt` file.

    Args:
        source: a path, bytes, a binary file object, or an open source.
        limits: resource limits.
        forbid: see `PtReader`.

    Raises:
        FormatError: it is damaged, or in no supported format.
    """
    reader = PtReader(source, limits=limits, forbid=forbid)
    return Document("pt", reader.source, lambda: [reader.read()], content=lambda: reader, layout=lambda: reader.kind)


def writer(
    output: Output,
    pt_format: str = "zip",
    *,
    keep_device: bool = False,
    map_location: MapLocation = None,
    allow_foreign: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> PtWriter | LegacyPtWriter:
    """Return a writer of a `.pt`.

    Args:
        output: the output file.
        pt_format: `zip`, `legacy` for PyTorch 0.2 to 1.5, or `torchscript`.
        keep_device: whether tensors keep the device that they name.
        map_location: the replacement of each device; see `writer.placed`.
        allow_foreign: whether names of other packages are written.
        limits: bound what a TorchScript archive repeats.

    Raises:
        ModelError: `map_location` names no device.
    """
    place = writers.placed(map_location, keep_device)
    if pt_format == "torchscript":
        return ScriptWriter(output, place=place, limits=limits)
    kind = writers.LegacyPtWriter if pt_format == "legacy" else writers.PtWriter
    return kind(output, place=place, allow_foreign=allow_foreign)


def write(output: Output, value: Any, pt_format: str = "zip", *, keep_device: bool = False) -> Written:
    """Write one value as a `.pt`.

    Raises:
        UnsupportedError: something in it is neither a builtin nor a tensor.
        WriteError: the output does not accept the bytes.
    """
    made = writer(output, pt_format, keep_device=keep_device)
    made.write(value)
    made.finish()
    return Written(made.tensors, made.storages)
