"""A drop-in for torchfile 0.1.0: `import t7bridge.torchfile as torchfile`.

The same functions, classes and values, from a reader that checks what it reads and also reads ascii files, files of
other byte orders and sizes of `long`, half precision, and objects in file objects that are not files. Fields that an
object does not have are `None`, as in torchfile; damaged files raise `T7ReaderException`.
"""

from __future__ import annotations

from typing import IO, Any

from .errors import FormatError
from .formats.t7 import layout as tags
from .formats.t7.file import refuse_unexplained
from .formats.t7.reader import T7Reader as _Reader
from .formats.torchfile_values import LuaFunction, TorchfileBuilder, TorchObject, hashable_uniq_dict
from .limits import DEFAULT_LIMITS, Limits

__all__ = ["LuaFunction", "T7Reader", "T7ReaderException", "TorchObject", "hashable_uniq_dict", "load"]

T7ReaderException = FormatError
TYPE_NIL, TYPE_NUMBER, TYPE_STRING, TYPE_TABLE, TYPE_TORCH, TYPE_BOOLEAN = (
    tags.NIL,
    tags.NUMBER,
    tags.STRING,
    tags.TABLE,
    tags.TORCH,
    tags.BOOLEAN,
)
TYPE_FUNCTION, LEGACY_TYPE_RECUR_FUNCTION, TYPE_RECUR_FUNCTION = (
    tags.FUNCTION_WITHOUT_INDEX,
    tags.LEGACY_FUNCTION,
    tags.FUNCTION,
)


class T7Reader:
    """Read a stream of values and objects with torchfile's methods.

    Args:
        fileobj: a binary file object; reading starts at its position.
        use_list_heuristic: return tables with the keys 1 to n, and tables without entries, as lists.
        use_int_heuristic: return integral numbers as `int`.
        utf8_decode_strings: return strings as `str`, else as `bytes`. Class names are `bytes` in any case.
        force_deserialize_classes: as in torchfile 0.1.0, must be None.
        force_8bytes_long: the file has 8-byte longs; otherwise their size is detected.

    Raises:
        DeprecationWarning: `force_deserialize_classes` is set.
    """

    def __init__(
        self,
        fileobj: IO[bytes],
        use_list_heuristic: bool = True,
        use_int_heuristic: bool = True,
        utf8_decode_strings: bool = False,
        force_deserialize_classes: bool | None = None,
        force_8bytes_long: bool = False,
        *,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if force_deserialize_classes is not None:
            raise DeprecationWarning("force_deserialize_classes is now always forced to be true, so no longer required")
        self.f = fileobj
        self.use_list_heuristic = use_list_heuristic
        self.use_int_heuristic = use_int_heuristic
        self.utf8_decode_strings = utf8_decode_strings
        self.force_8bytes_long = force_8bytes_long
        self._reader = _Reader(fileobj, limits=limits, long_size=8 if force_8bytes_long else None)
        self._builder = TorchfileBuilder(use_list_heuristic, use_int_heuristic, utf8_decode_strings)

    def read_obj(self) -> Any:
        """Read one value and everything inside it."""
        return self._builder.run(self._reader.read_object())

    def _only_object(self) -> Any:
        """Read the first value of a file, which must account for some of its bytes."""
        value = self._reader.read_object()
        refuse_unexplained(self._reader, value)
        return self._builder.run(value)

    def read_boolean(self) -> bool:
        """Read an integer; 1 is True."""
        return self.read_int() == 1

    def read_int(self) -> int:
        """Read a 4-byte integer."""
        return self._reader.read_int()

    def read_long(self) -> int:
        """Read a C long, of the file's size."""
        return self._reader.read_long()

    def read_long_array(self, n: int) -> list[int]:
        """Read `n` C longs."""
        return [self._reader.read_long() for _ in range(n)]

    def read_float(self) -> float:
        """Read a 4-byte float."""
        return self._reader.read_float()

    def read_double(self) -> float:
        """Read an 8-byte float."""
        return self._reader.read_double()

    def read_string(self, disable_utf8: bool = False) -> bytes | str:
        """Read a length and that many bytes."""
        data = self._reader.read_string()
        return data if disable_utf8 or not self.utf8_decode_strings else data.decode()


def load(filename: str, **kwargs: Any) -> Any:
    """Load a `.t7` file.

    Args:
        filename: path of the file.
        kwargs: those of `T7Reader`.

    Raises:
        FileNotFoundError: there is no such file.
        T7ReaderException: the file is damaged, or is not a `.t7`.
    """
    with open(filename, "rb") as file:
        reader = T7Reader(file, **kwargs)
        return reader._only_object()
