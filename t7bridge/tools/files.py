"""Reading, writing and describing whole files by path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import formats
from ..conversion.options import LIMITS, option, takes, verb
from ..errors import about_file
from ..formats.t7.layout import T7Layout
from ..graph.lua import Value
from ..io.source import PathLike, Readable, inputs_protected
from ..limits import DEFAULT_LIMITS, Limits
from ..values.describe import Node, describe_lua, describe_python, lua_json, python_json
from ..values.widened import HINTS, restore_values

if TYPE_CHECKING:
    from ..graph.lua import Field


def load(source: Readable, *, limits: Limits = DEFAULT_LIMITS, mmap: bool = False) -> Field:
    """Load the value of a file, whose format is detected by content.

    Of a `.t7` with several values it is the first, as in Lua's `torch.load`; `T7Reader` reads the others. Weights are
    not read until they are used. An `IncompleteFileWarning` is issued if bytes after the values are truncated or not a
    value.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.
        mmap: whether arrays are views of a memory map of the file, which take no memory and show what others write to
            it. If the file becomes shorter while they are used, the system ends the process.

    Returns:
        For a `.t7`: `None`, `bool`, `float`, `bytes` or an object of `t7bridge.graph`. For a `.pt`: builtins with
        `Tensor` in them. For the others: a dict of `Tensor`. Type checkers see a `Field`, which `isinstance` narrows.

    Raises:
        T7BridgeError: the file cannot be opened.
        FormatError: the file is damaged, or in no supported format.
    """
    first, *_others = _values(source, limits, mmap)
    return cast("Field", first)


def load_all(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> list[Value]:
    """Load all values of a file: most have one, a `.t7` may hold several.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.

    Raises:
        T7BridgeError: the file cannot be opened.
        FormatError: the file is damaged, or in no supported format.
    """
    return _values(source, limits)


def _values(source: Readable, limits: Limits, mmap: bool = False) -> list[Any]:
    """Return all values of a file, with the numbers and element types that its metadata record.

    A recorded type is used only where it can represent all elements of the tensor.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.
        mmap: whether elements are mapped into memory instead of read.
    """
    with inputs_protected():
        document = formats.open(source, limits=limits)
        document.source.maps = mmap
        document.warn(stacklevel=3)  # at the line that calls `load`
        roots = document.roots  # before the metadata: those of a checkpoint in several files are read with its values
        if HINTS.isdisjoint(document.metadata):
            return roots
        values = []
        for root in roots:
            # Checked now: otherwise an element that does not fit is an error when the caller reads it.
            value, _names_of_unfit = restore_values(root, document.metadata, check=True)
            values.append(value)
        return values


def save(value: Any, path: PathLike, *, force: bool = False, layout: T7Layout | None = None) -> None:
    """Save a value in the format of the path's suffix.

    A Lua value (`Table`, `TorchObject`, …) is written to a `.t7` directly, and to a `.pt` in `tree` mode; builtins with
    `Tensor` in them to a `.pt` directly, and to a `.t7` as tables. A format of named tensors, such
    as safetensors, receives the tensors, under their paths; modules are their state dicts there.

    Args:
        value: the result of `load`, numpy arrays, torch tensors, modules (their state dicts are saved), or builtins of
            these. Tensors that share memory do so in the file.
        path: of the file to write.
        force: whether an existing file is replaced.
        layout: encoding, byte order and size of `long` of a `.t7`.

    Raises:
        TargetExistsError: the file exists and `force` is not set.
        WriteError: the value cannot be stored, or the disk reports an error.
        UnsupportedError: the format cannot hold part of the value.
    """
    from ..conversion.adopt import adopt
    from ..conversion.targets import write_value
    from ..io.output import FileOutput

    goal = formats.format_for(path)
    value = adopt(value)
    with FileOutput(path, force=force) as output:
        write_value(output, value, goal, layout)


@verb
class Describe:
    """Print a file's content as canonical JSON: the same for every encoding of the same value."""

    EXAMPLES = ("t7bridge describe model.t7 | python -m json.tool", "t7bridge describe - < model.pt")
    source: Readable = option("a file of any format", kw_only=False, metavar="FILE", stdin=True)
    limits: Limits = LIMITS


@takes(Describe)
def describe(request: Describe) -> Node:
    """Describe a file's content, as data that becomes JSON: the same for every encoding of the same value.

    A description may be nested deeper than Python's recursion limit, where `==` and the `json` module fail;
    `t7bridge.values.describe.json_pieces` writes it as JSON whatever its depth.

    Args:
        source: a path, bytes, or a binary file object.

    Returns:
        See `t7bridge.values.describe`. For a `.t7` with several values `{"t": "values", "v": [...]}` of all.

    Raises:
        FormatError: the file is damaged, or in no supported format.
    """
    return _described(request, describe_lua, describe_python)


def description(request: Describe) -> list[str]:
    """Return the JSON of what `describe` returns, in pieces, in much less memory."""
    return _described(request, lua_json, python_json)


_Described = TypeVar("_Described")


def _described(
    request: Describe, lua: Callable[..., _Described], python: Callable[[Any, Limits], _Described]
) -> _Described:
    """Return the description of a file, by the function for its side.

    Args:
        request: names the file.
        lua: describes the values of a `.t7`, each an argument.
        python: describes the value of any other file.
    """
    with inputs_protected():
        document = formats.open(request.source, limits=request.limits)
        document.source.read_all()  # for the checksum of each storage
        if document.spec.values == formats.LUA:
            document.warn()
            return lua(*document.roots)
        with about_file(document.path):
            return python(document.value, request.limits)
