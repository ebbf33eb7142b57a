"""LegacyPtWriter: the format of PyTorch 0.2 to 1.5, which those releases read and today's still does.

Five pickles one after another (a magic number, the version, the machine, the value, the keys of the storages), then
each storage: the number of its elements as a 64-bit integer, and the elements. Source: PyTorch 2.13
`torch/serialization.py` `_legacy_save`.
"""

from __future__ import annotations

import struct
from typing import IO, Any

from ...graph.storage import Storage
from ...io.output import Output
from .layout import LEGACY_MAGIC, LEGACY_PROTOCOL
from .locations import Place
from .pickle.pickler import PickleWriter
from .writer import StorageKeys, write_elements

_SYS_INFO = {
    "protocol_version": LEGACY_PROTOCOL,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


class LegacyPtWriter:
    """Writes one value to a file for PyTorch 0.2 to 1.5. The same methods as `PtWriter`, but for the record.

    Args:
        target: a binary file object.
        keep_device: whether tensors keep the device that they name (`cuda:0`); otherwise all are on the CPU.
        place: which device each gets, by the one that it names, instead.
        allow_foreign: whether objects of other packages' classes name them; otherwise they are written as plain data.
    """

    def __init__(
        self,
        target: IO[bytes] | Output,
        *,
        keep_device: bool = False,
        place: Place | None = None,
        allow_foreign: bool = False,
    ) -> None:
        self._output = target if isinstance(target, Output) else Output(target)
        self._keys = StorageKeys(keep_device, place)
        self._pickle = b""
        self.tensors = 0
        self._allow_foreign = allow_foreign
        self.plain: dict[str, list[Any]] = {}
        """The names that were left out, as they are foreign, and the values that would have them."""
        self.blocking: dict[str, Any] = {}
        """The names that `torch.load(weights_only=True)` refuses, and the first value that has each."""

    def storage_key(self, storage: Storage) -> str:
        """The key of a storage; one that is new gets the next, and its elements will be written."""
        return self._keys.key(storage)

    def write(self, value: Any) -> None:
        """Take the value. `finish` writes it.

        Raises:
            UnsupportedError: something is inside that the format cannot hold.
        """
        writer = PickleWriter(self._keys.ref, old=True, allow_foreign=self._allow_foreign)
        self._pickle = writer.dumps(value)
        self.tensors, self.plain, self.blocking = writer.tensors, writer.plain, writer.blocking

    @property
    def storages(self) -> int:
        """Number of storages that are written."""
        return len(self._keys.storages)

    def _dumps(self, value: Any) -> bytes:
        return PickleWriter(self._keys.ref, old=True).dumps(value)

    def finish(self) -> None:
        """Write the file.

        Raises:
            WriteError: the output does not take the bytes.
        """
        for head in (LEGACY_MAGIC, LEGACY_PROTOCOL, _SYS_INFO):
            self._output.write(self._dumps(head))
        self._output.write(self._pickle)
        self._output.write(self._dumps([str(number) for number in range(len(self._keys.storages))]))
        for storage in self._keys.storages:
            self._output.write(struct.pack("<q", storage.count))
            write_elements(self._output, storage)
        self._output.flush()
