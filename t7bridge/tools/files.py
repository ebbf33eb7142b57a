"""Reading, writing and describing whole files by path; writers that also accept values of numpy, torch and builtins."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from .. import formats
from ..conversion.lua_tree import to_lua
from ..conversion.options import LIMITS, option, takes, verb
from ..conversion.plain import Adopter
from ..errors import about_file
from ..formats.pt import writer as pt_writer
from ..formats.t7 import writer as t7_writer
from ..formats.t7.layout import T7Layout
from ..graph.lua import COMPOSITE, Value
from ..io.source import PathLike, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..values.describe import Node, describe_lua, describe_python
from ..values.elements import HINTS, restore_values

if TYPE_CHECKING:
    from ..graph.lua import Field


def load(source: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Field:
    """Load the value of a file, whose format is detected by content.

    Of a `.t7` with several values it is the first, as in Lua's `torch.load`; `T7Reader` reads the others. Weights are
    not read until they are used. An `IncompleteFileWarning` is issued if bytes after the values are truncated or not a
    value.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.

    Returns:
        For a `.t7`: `None`, `bool`, `float`, `bytes` or an object of `t7bridge.graph`. For a `.pt`: builtins with
        `Tensor` in them. For the others: a dict of `Tensor`. Type checkers see a `Field`, which `isinstance` narrows.

    Raises:
        T7BridgeError: the file cannot be opened.
        FormatError: the file is damaged, or in no supported format.
    """
    return cast("Field", _values(source, limits)[0])


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


def _values(source: Readable, limits: Limits) -> list[Any]:
    """Return all values of a file, with the recorded numbers, and element types where these have all elements."""
    document = formats.open(source, limits=limits)
    document.warn(3)
    if HINTS.isdisjoint(document.metadata):
        return document.roots
    return [restore_values(root, document.metadata, check=True)[0] for root in document.roots]


def save(value: Any, path: PathLike, *, force: bool = False, layout: T7Layout | None = None) -> None:
    """Save a value in the format of the path's suffix.

    A Lua value (`Table`, `TorchObject`, …) is written to a `.t7` directly, and to a `.pt` in `tree` mode; builtins with
    `Tensor` in them to a `.pt` directly, and to a `.t7` as tables. A `.safetensors`, `.h5` or `.npz` receives the
    tensors, under their paths; modules are their state dicts there.

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
    from ..conversion.convert import write_value
    from ..conversion.plain import adopt
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
    document = formats.open(request.source, limits=request.limits)
    if document.spec.values == formats.LUA:
        document.warn()
        return describe_lua(*document.roots)

    with about_file(document.path):
        return describe_python(document.value, request.limits)


_LUA = (*COMPOSITE, type(None), bool, int, float, str, bytes)


class T7Writer(t7_writer.T7Writer):
    """Writes values to a `.t7` file, one after another, as Lua's `torch.DiskFile` does.

    An object already written becomes a reference to it, so that sharing and cycles are kept. The elements of
    storages are copied from their source to the output without being loaded into memory.

    Args:
        target: a binary file object.
        layout: encoding, byte order, size of `long`.
        referenced: `False` writes every object anew at each occurrence, as `file:referenced(false)` does; sharing
            is lost, and cycles are refused.
        payloads: if given, storages are appended to it and their elements are omitted from the stream.

    Example:
        >>> with open("out.t7", "wb") as file:
        ...     T7Writer(file).write_object({"epoch": 3, "weights": np.zeros((2, 3), "f4")})
    """

    @cached_property
    def _adopter(self) -> Adopter:
        """One for all values, so that tensors of different values share memory in the file as in Python."""
        return Adopter()

    def write_object(self, value: Any) -> None:
        """Write one value and everything inside it.

        Args:
            value: `None`, `bool`, `int`, `float`, `bytes`, `str` (as UTF-8), an object of `t7bridge.graph`, a numpy
                array, a torch tensor, a module (its state dict), or builtins of these, which become tables. Tensors
                that share memory do so in the file.

        Raises:
            UnsupportedError: the value is none of these, or a tensor of a type that Lua Torch does not have.
            WriteError: a number does not fit into the layout, or the output cannot be written.
        """
        if not isinstance(value, _LUA):
            value = self._adopter.run(value)
            if not isinstance(value, _LUA):
                value = to_lua(value).value
        super().write_object(value)


class PtWriter(pt_writer.PtWriter):
    """Writes one value to a `.pt` file that `torch.load(weights_only=True)` reads, also by memory map.

    Each storage is written once, with all its elements, so that sharing, offsets and strides are those of the
    value. Its bytes are copied from their source to the archive without being loaded into memory.

    Args:
        target: a binary file object.
        keep_device: whether tensors keep their device (`cuda:0`); otherwise all are on the CPU.
        place: the new device of tensors, by their old one, instead.
        allow_foreign: whether objects of other packages keep the names of their classes; otherwise they are written as
            plain data.

    Example:
        >>> with open("out.pt", "wb") as file:
        ...     writer = PtWriter(file)
        ...     writer.write({"weight": np.zeros((2, 3), "f4")})
        ...     writer.finish()
    """

    def write(self, value: Any) -> None:
        """Accept the value. `finish` writes it, with the storages named by it and by `storage_key`.

        Args:
            value: builtins, `OrderedDict`, `Tensor` and `Storage`, numpy arrays, torch tensors and modules (their state
                dicts), nested and shared in any way.

        Raises:
            UnsupportedError: the value contains something that the format cannot store.
        """
        super().write(Adopter().run(value))
