"""The public writers: those of the formats, which also accept values of numpy, torch and builtins."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..conversion.lua_tree import to_lua
from ..conversion.plain import Adopter
from ..formats.pt import writer as pt_writer
from ..formats.t7 import writer as t7_writer
from ..graph.lua import COMPOSITE

if TYPE_CHECKING:
    pass


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
