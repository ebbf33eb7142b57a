"""Foreign JSON objects, with every field checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..errors import CorruptError

_MAX_DEPTH = 500
"""Python's own parser fails at 990 levels or more, by version and place: a browser's stack is the smallest."""
_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.?)*"?|[][{}]', re.DOTALL)
"""A string, whose brackets do not count, or a bracket. One that does not end matches, too: nothing is tried twice."""
_TYPE_NAMES = {dict: "an object", list: "a list", str: "text", int: "a whole number", tuple: "a tuple"}
"""What types are called in errors."""


class Fields:
    """The fields of a mapping in a file, checked when each is read.

    Args:
        value: the mapping.
        path: its place in the file, for messages.

    Attributes:
        values: the mapping, for fields that may have any type, or be missing.
        path: its place, for messages about those.

    Raises:
        CorruptError: it is not a mapping.
    """

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise CorruptError(f"{path} is not in PyTorch's format", expected="an object", found=shown(value))
        self.values: dict[Any, Any] = value
        self.path = path

    @classmethod
    def parse(cls, text: bytes | None, path: str) -> Fields:
        """Return the fields of a JSON object."""
        return cls(parse_json(text, path), path)

    def get(self, name: str, kind: Any, *default: Any) -> Any:
        """Return a field.

        Args:
            name: of the field.
            kind: its type, or several; `int` excludes truth values, which Python has as integers.
            *default: at most one: the value of a missing field. Without it, one that is missing is an error. (Not a
                keyword, as `None` is a default, too.)

        Raises:
            CorruptError: it is missing or has another type.
        """
        if name not in self.values:
            if default:
                return default[0]
            raise CorruptError(f"has no field {name}", path=self.path)
        value = self.values[name]
        if not isinstance(value, kind) or (kind is int and type(value) is bool):
            expected = _TYPE_NAMES.get(kind, "")
            raise CorruptError(f"the field {name} is invalid", path=self.path, expected=expected, found=shown(value))
        return value

    def inner(self, name: str, *default: Any) -> Fields:
        """Return the fields of a field."""
        return Fields(self.get(name, dict, *default), f"{self.path}: {name}")

    def each(self, name: str) -> list[Fields]:
        """Return the objects in a list; none if it is missing."""
        return [Fields(value, f"{self.path}: {name}") for value in self.get(name, list, [])]

    def items(self) -> Iterator[tuple[Any, Fields]]:
        """Yield the name of each field, and its own fields."""
        for name, value in self.values.items():
            text = name if type(name) is str else shown(name)
            yield name, Fields(value, f"{self.path}: {text}")


def parse_json(text: bytes | None, path: str) -> Any:
    """Return the value of a JSON text.

    Args:
        text: in UTF-8; `None` for a member that is missing, and damaged as an empty one is.
        path: of the text in the file, for errors.

    Raises:
        CorruptError: it is not JSON, or nested deeper than any program.
    """
    import json  # which most files do not need

    text = text or b""
    try:
        if _depth(text) > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} lists and objects in each other")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is not in PyTorch's format", expected="JSON", found=str(error)[:80]) from error


def _depth(text: bytes) -> int:
    """Return the largest number of lists and objects that are open at once in a JSON text."""
    depth = 0
    largest = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in b"[{":
            depth += 1
            largest = max(largest, depth)
        elif token in b"]}":
            depth -= 1
    return largest


def shown(value: Any) -> str:
    """Return a value of a file for a message, in at most a few words, whatever is inside it."""
    if isinstance(value, (str, bytes)):
        return repr(value[:60])
    if value is None or isinstance(value, (int, float)):
        return f"{value}"
    return f"a {type(value).__name__}"
