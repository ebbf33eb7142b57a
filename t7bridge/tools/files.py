"""Reading, writing and describing whole files by path: what most users call."""

from __future__ import annotations

from typing import Any

from ..errors import T7BridgeError
from ..formats.t7.file import read_values, source_format, target_format
from ..formats.t7.layout import T7Layout
from ..formats.t7.reader import T7Reader
from ..graph.lua import Value
from ..io.output import FileOutput
from ..io.source import ByteSource, PathLike, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..values.describe_lua import Node, describe_values


def load(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Value:
    """Load the value of a `.t7` or `.pt` file, told apart by content.

    Of a `.t7` with several values it is the first, as in Lua's `torch.load`; `T7Reader` reads the others. Weights
    are not read before they are asked for. An `IncompleteFileWarning` says that something stands behind the values
    that is cut off or no value.

    Args:
        source: a path, bytes, or a binary file object.
        limits: what the file may cost.

    Returns:
        For a `.t7`: `None`, `bool`, `float`, `bytes` or an object of `t7bridge.graph`. For a `.pt`: builtins with
        `Tensor` in them.

    Raises:
        T7BridgeError: the file cannot be opened.
        FormatError: the file is damaged, or is something else.
    """
    opened, start = ByteSource.open(source)
    if start == 0 and source_format(opened) == "pt":
        from ..formats.pt.reader import PtReader

        return PtReader(opened, limits=limits).read()
    if start:  # the caller knows what else is in the file
        return T7Reader(source, limits=limits).read_object()
    values = read_values(opened, limits)
    values.warn()
    return values.roots[0]


def load_all(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> list[Value]:
    """Load all values of a file: of most there is one, a `.t7` may hold several.

    Args:
        source: a path, bytes, or a binary file object.
        limits: what the file may cost.

    Raises:
        T7BridgeError: the file cannot be opened.
        FormatError: the file is damaged, or is something else.
    """
    opened, start = ByteSource.open(source)
    if start or source_format(opened) == "pt":
        return [load(source, limits=limits)]
    values = read_values(opened, limits)
    values.warn()
    return values.roots


def save(value: Any, path: PathLike, *, force: bool = False, layout: T7Layout | None = None) -> None:
    """Save a value as `.t7` or `.pt`, by the path's suffix.

    A Lua value (`Table`, `TorchObject`, …) goes to a `.t7` as it is, and to a `.pt` in `tree` mode; builtins with
    `Tensor` in them go to a `.pt` as they are, and to a `.t7` as tables.

    Args:
        value: what `load` returns, numpy arrays, torch tensors, modules (their state dicts are saved), or builtins
            of these. Tensors that share memory do so in the file.
        path: of the file to write.
        force: whether an existing file is replaced.
        layout: encoding, byte order and size of `long` of a `.t7`.

    Raises:
        TargetExistsError: the file exists and `force` is not set.
        WriteError: the value or the disk does not allow it.
        UnsupportedError: the value holds something that the format does not have.
    """
    from ..conversion.adopt import adopt
    from ..conversion.convert import write_pt, write_t7

    to = target_format(path)
    value = adopt(value)
    with FileOutput(path, force=force) as output:
        if to == "t7":
            write_t7(output, value, layout or T7Layout())
        else:
            write_pt(output, value)


def describe(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Describe what a file holds, as data that becomes JSON: the same for every encoding of the same value.

    A description may be nested deeper than Python's recursion limit, where `==` and the `json` module give up;
    `t7bridge.values.describe_lua.json_pieces` writes it as JSON whatever its depth.

    Args:
        source: a path, bytes, or a binary file object.
        limits: what the file may cost.

    Returns:
        See `t7bridge.values.describe_lua`. Of a `.t7` with several values `{"t": "values", "v": [...]}` of all.

    Raises:
        FormatError: the file is damaged, or is something else.
    """
    opened, _ = ByteSource.open(source)
    if source_format(opened) == "pt":
        from ..formats.pt.reader import PtReader
        from ..values.describe_python import describe_python

        value = PtReader(opened, limits=limits).read()
        try:
            return describe_python(value, limits)
        except T7BridgeError as error:
            error.file = error.file or opened.name
            raise
    values = read_values(opened, limits)
    values.warn()
    return describe_values(values.roots)
