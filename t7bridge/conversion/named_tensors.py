"""Formats that hold named tensors and nothing else: safetensors and HDF5.

The value becomes what `convert` writes in `auto` mode, state dicts in the place of modules, and each tensor in it gets
the path to it as its name: `model.0.weight`. What is no tensor does not go along, and is named in the report; numbers
and strings go into the file's metadata as far as it has room.
"""

from __future__ import annotations

import json
import os
from typing import Any

from attrs import field

from ..data import define
from ..errors import ModelError
from ..formats.t7.file import read_t7, source_format
from ..graph.tensor import Tensor
from ..io.source import ByteSource
from ..limits import Limits
from ..report import Report

_SCALARS = 1_000


@define(eq=False)
class Flat:
    """A value as named tensors.

    Attributes:
        tensors: each tensor under the steps to it: `("model", "0.weight")`.
        scalars: numbers, strings and truth values as JSON, likewise.
        left_out: paths and types of what is neither.
    """

    tensors: dict[tuple[str, ...], Tensor] = field(factory=dict)
    scalars: dict[tuple[str, ...], str] = field(factory=dict)
    left_out: list[tuple[str, str]] = field(factory=list)


def flatten(value: Any) -> Flat:
    """Name the tensors of a value of dicts and lists. Lists count from 0; a container that is met twice is one."""
    flat = Flat()
    seen: set[int] = set()
    stack: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while stack:
        steps, item = stack.pop()
        if isinstance(item, Tensor):
            if item.extras is not None and (item.extras.conj or item.extras.neg):
                flat.left_out.append((".".join(steps), "a tensor that is to be conjugated or negated"))
            else:
                flat.tensors[steps or ("root",)] = item
        elif isinstance(item, (dict, list, tuple)):
            if id(item) in seen:
                flat.left_out.append((".".join(steps), "a container that is there under another name"))
                continue
            seen.add(id(item))
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            stack += [((*steps, _step(key)), inner) for key, inner in reversed(list(pairs))]
        elif isinstance(item, (bool, int, float, str)):
            flat.scalars[steps or ("root",)] = json.dumps(item)
        elif item is not None:
            flat.left_out.append((".".join(steps), type(item).__name__))
    return flat


def _step(key: Any) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)


def read_flat(source: str, limits: Limits, report: Report) -> Flat:
    """The tensors of a `.t7` or `.pt` file."""
    opened = ByteSource.from_path(source)  # open as long as a tensor is wanted
    report.source_bytes, report.source_format = opened.size, source_format(opened)
    value: Any
    if report.source_format == "pt":
        from ..formats.pt.reader import PtReader

        value = PtReader(opened, limits=limits).read()
    else:
        from .convert import state_dict_of
        from .tree import to_python

        content = read_t7(opened, limits)
        if content.message:
            report.note("warning", content.message)
        roots = [to_python(root, lambda obj: state_dict_of(obj, report)) for root in content.roots]
        value = roots[0] if len(roots) == 1 else roots
    return flatten(value)


def write_flat(source: str, target: str, to: str, limits: Limits) -> Report:
    """Write the tensors of a `.t7` or `.pt` file as safetensors or HDF5.

    Args:
        source: path of the input.
        target: path of the output; a file there is replaced.
        to: `safetensors` or `hdf5`.
        limits: what the input may cost.

    Raises:
        FormatError: the input is damaged, or is something else.
        ModelError: it holds no tensor.
        UnsupportedError: the format has no such elements, or its library is not installed.
        WriteError: the disk refuses.
    """
    report = Report(source, target, target_format=to, mode="tensors")
    flat = read_flat(source, limits, report)
    if not flat.tensors:
        raise ModelError("the file holds no tensor", hint=f"A {to} file holds tensors only.")
    if len(flat.scalars) > _SCALARS:
        report.note("warning", f"{len(flat.scalars)} numbers and strings are too many for {to}'s metadata; left out")
        flat.scalars.clear()
    for trail, what in flat.left_out:
        report.note("warning", f"{what}: left out, as {to} holds tensors only", trail)
    if to == "safetensors":
        from ..formats.safetensors import write_safetensors

        write_safetensors(target, dotted(flat.tensors), dotted(flat.scalars), report)
    else:
        from ..formats.hdf5 import write_hdf5

        write_hdf5(target, flat.tensors, dotted(flat.scalars), report)
    report.tensors = len(flat.tensors)
    report.target_bytes = os.path.getsize(target)
    return report


def dotted(values: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """Values under their steps joined by dots.

    Raises:
        ModelError: two have one name then.
    """
    joined = {".".join(steps): value for steps, value in values.items()}
    if len(joined) != len(values):
        raise ModelError("two tensors would have one name", hint="--to hdf5 keeps them apart.")
    return joined


def differences(source: str, target: str, to: str, limits: Limits) -> list[str]:
    """What an output has in another way than its input, as the format's own library reads it.

    Raises:
        UnsupportedError: the library is not installed.
    """
    tensors = read_flat(source, limits, Report()).tensors
    if to == "safetensors":
        from ..formats.safetensors import safetensors_differences

        return safetensors_differences(target, dotted(tensors))
    from ..formats.hdf5 import hdf5_differences

    return hdf5_differences(target, tensors)
