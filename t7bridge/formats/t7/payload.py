"""Layout of the data after the class name of an object that is not just a table of fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...data import define
from ...graph.lua import TorchObject

if TYPE_CHECKING:
    from .reader import T7Reader
    from .writer import T7Writer

ReadPayload = Callable[["T7Reader", TorchObject], None]
WritePayload = Callable[["T7Writer", TorchObject], None]


class PayloadClass(Protocol):
    """A class with two static methods, as decorated by `register_class`."""

    @staticmethod
    def read(reader: T7Reader, obj: TorchObject) -> None:
        """Fill an object from the reader."""

    @staticmethod
    def write(writer: T7Writer, obj: TorchObject) -> None:
        """Write an object to the writer."""


@define(frozen=True)
class Payload:
    """Layout of the objects of one class after the class name.

    Attributes:
        read: fills an object, whose `fields` is an empty table, from the reader.
        write: writes the same to the writer.
        since_version: objects with lower class versions are plain tables.
    """

    read: ReadPayload
    write: WritePayload
    since_version: int = 0
