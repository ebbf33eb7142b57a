"""The mapping that users specify: which key, or module, of the source corresponds to which of the target.

A file has one pair a line, source first, with white space between; `#` begins a comment:

    # a key                     and its name in the target
    classifier.1.weight         fc.weight
    # a module or a container   with all that is in it
    features.                   backbone.
    # a key or module of the source to leave out 9.bias                      - a key or module of the target that keeps
    # its own values
    -                           head.
    # the order of the gates of a cell that is not PyTorch's, a letter a gate
    i2h.                        lstm.                           ifog
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ...data import define
from ...errors import FormatError, ModelError
from ...io.inputs import add_input

NOTHING = "-"

Settled = Mapping[str, str] | Iterable[tuple[str, str]] | str | os.PathLike[str]
"""A mapping as users pass it: pairs, or the path of a file."""

_MAX_BYTES = 1 << 26
_GATES = set("ifgorzn")


@define(frozen=True)
class Line:
    """One pair.

    Attributes:
        source: a key; a prefix, which ends in a dot; or `-`.
        target: likewise.
        place: its location, for messages.
        gates: the order of the gates on the side that is not PyTorch's; empty if the pair does not state it.
    """

    source: str
    target: str
    place: str
    gates: str = ""


def read_mapping(settled: Settled | None) -> list[Line]:
    """Return the pairs of a mapping.

    Args:
        settled: pairs, or the path of a file.

    Raises:
        ModelError: a pair is malformed, or the file does not exist.
        FormatError: the file is not text.
    """
    if settled is None:
        return []
    if isinstance(settled, (str, os.PathLike)):
        return _read_file(os.fspath(settled))
    pairs = settled.items() if isinstance(settled, Mapping) else settled
    return [_line(source, target, f"pair {number}") for number, (source, target) in enumerate(pairs, 1)]


def _read_file(name: str) -> list[Line]:
    try:
        with open(name, "rb") as file:
            add_input(name, file.fileno())
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ModelError(f"the mapping cannot be read: {error.strerror}", file=name) from error
    except UnicodeDecodeError as error:
        raise FormatError("a mapping is text in UTF-8", file=name, offset=error.start) from error
    if len(data) > _MAX_BYTES:
        raise FormatError("is too long for a mapping", file=name)
    lines = []
    for number, row in enumerate(text.splitlines(), 1):
        words = row.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 and not (len(words) == 3 and set(words[2]) <= _GATES):
            raise FormatError(
                f"line {number} of the mapping is not a pair",
                file=name,
                expected="a key of the source and one of the target, and optionally an order of gates",
                found=f"{len(words)} words",
            )
        lines.append(_line(words[0], words[1], f"line {number}", *words[2:]))
    return lines


def _line(source: str, target: str, place: str, gates: str = "") -> Line:
    ends = {name.endswith(".") for name in (source, target) if name != NOTHING}
    if len(ends) != 1:
        raise ModelError(
            f"{place} of the mapping pairs a key with a module, or nothing with nothing",
            expected="two keys, or two modules, whose names end in a dot",
            found=f"{source} {target}",
        )
    return Line(source, target, place, gates)


def under(prefix: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that a key or a prefix of a mapping refers to."""
    if prefix.endswith("."):
        return [key for key in keys if key.startswith(prefix)]
    return [key for key in keys if key == prefix]
