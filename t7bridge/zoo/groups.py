"""Samples of names and groups of messages: what is said of many files, in memory that does not grow with them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import field

from ..data import define
from ..text import and_more

_VARYING = re.compile(r"('[^']*'|(?<![A-Za-z0-9])-?\d(?:[\d ,.]*\d)?)")
"""Parts of a message that differ between files with the same problem: quoted names, and numbers of their own."""
FIRST = 20
"""Names that a sample has."""
_MOST_GROUPS = 10_000
"""Groups that are told apart. The messages of hostile files could all be different."""


@define
class Names:
    """A sample of the names of files: how many files there are, and the names of the first.

    Attributes:
        count: number of files.
        first: the first names, at most `FIRST`.
    """

    count: int = 0
    first: list[str] = field(factory=list)

    def add(self, name: str) -> None:
        """Count a file."""
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(name)

    def listed(self, most: int) -> str:
        """Return at most `most` names, and the number of the others: `a, b, and 7 more`."""
        shown = self.first[:most]
        return ", ".join(shown) + and_more(self.count - len(shown))

    def __str__(self) -> str:
        """Return the only name, or `a, …`; nothing for no file."""
        return f"{self.first[0]}, …" if self.count > 1 else "".join(self.first)


@define
class Group:
    """Files about which the same is said.

    Attributes:
        kind: class of the error; empty for a warning.
        parts: the message, cut into what is the same in all files (even places) and what may vary; `None` for a part
            that does vary.
        names: the files.
    """

    kind: str
    parts: list[str | None]
    names: Names = field(factory=Names)

    @property
    def message(self) -> str:
        """The message; `…` stands where the files differ."""
        return "".join("…" if part is None else part for part in self.parts)


class Groups:
    """Groups of files by what is said about them: messages that differ in numbers and quoted names are the same."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], Group] = {}
        """By the kind, and the texts between what varies in a message."""

    def add(self, message: str, name: str, kind: str = "") -> None:
        """Put a file into the group of a message; beyond `_MOST_GROUPS` a message that would be a new one is left out.

        Args:
            message: of an error or a warning.
            name: of the file.
            kind: class of the error; empty for a warning.
        """
        # `split` returns text and what varies in turn, text first: the texts tell groups apart.
        parts = _VARYING.split(message)
        key = (kind, *parts[::2])
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) == _MOST_GROUPS:
                return
            group = self._groups[key] = Group(kind, parts)
        for position in range(1, len(parts), 2):
            if group.parts[position] != parts[position]:
                group.parts[position] = None
        group.names.add(name)

    def __iter__(self) -> Iterator[Group]:
        """Yield the groups, the largest first."""
        return iter(sorted(self._groups.values(), key=lambda group: (-group.names.count, group.kind, group.message)))
