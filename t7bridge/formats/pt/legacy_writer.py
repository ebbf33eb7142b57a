"""LegacyPtWriter: the format of PyTorch 0.2 to 1.5, which all later releases read too.

Five pickles one after another (a magic number, the version, the machine, the value, the keys of the storages), then
each storage: the number of its elements as a 64-bit integer, and the elements. Source: PyTorch 2.13
`torch/serialization.py` `_legacy_save`.
"""

from __future__ import annotations

import struct

from .layout import LEGACY_MAGIC, LEGACY_PROTOCOL
from .writer import ValueWriter, write_elements

_SYS_INFO = {
    "protocol_version": LEGACY_PROTOCOL,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


class LegacyPtWriter(ValueWriter):
    """Writer of one value to a file for PyTorch 0.2 to 1.5; otherwise like `ValueWriter`."""

    _old = True

    def finish(self) -> None:
        """Write the file.

        Raises:
            WriteError: the output does not accept the bytes.
        """
        for head in (LEGACY_MAGIC, LEGACY_PROTOCOL, _SYS_INFO):
            self._output.write(self._dumps(head))
        self._output.write(self._pickle)
        self._output.write(self._dumps([str(number) for number in range(len(self._keys.storages))]))
        for storage in self._keys.storages:
            self._output.write(struct.pack("<q", storage.count))
            write_elements(self._output, storage)
        self._output.flush()
