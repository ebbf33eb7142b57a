"""The files of a zoo and the names of their outputs: a list that is the same on every run."""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import evolve

from ..data import define
from ..errors import ModelError, T7BridgeError
from ..formats import SUFFIXES, formats_with
from ..formats.signatures import identify
from .filesystems import Entry, list_remote, local_path

CLAIMS = (".t7", ".t7b", ".pt", ".pth", ".safetensors")
"""Suffixes that declare a file to be a model: such a file that is something else is a failure."""
_STRIPPED = {*SUFFIXES, ".th", ".dat"}
_GLOB = "*?["


@define(frozen=True)
class Found:
    """An input.

    Attributes:
        name: its path in the zoo, with `/`: the same wherever the zoo is located. Its name in journal and report.
        place: its path or URL.
        bytes: its size, 0 if unknown.
        stamp: a value that changes when the file does.
        given: whether it was named explicitly, not found in a folder.
    """

    name: str
    place: str
    bytes: int
    stamp: str
    given: bool


def find_inputs(sources: Sequence[str], output: str) -> list[Found]:
    """Return the files in all sources, sorted by name; hidden ones, and those in the output folder, are excluded.

    For one folder, pattern or archive, names are relative to it; for several, each begins with its own. Files that were
    named individually have names relative to their common folder.

    Args:
        sources: paths of files and folders, patterns, URLs.
        output: the output folder, which may be inside a source.

    Raises:
        T7BridgeError: a source does not exist, or cannot be listed.
        ModelError: two inputs have the same name, or the output folder is a source.
    """
    roots: list[tuple[str, list[Entry]]] = []
    singles: list[Entry] = []
    for source in sources:
        path = local_path(source)
        if path is None:
            entries, is_file = list_remote(source)
            root = source.split("::")[-1].rstrip("/").rpartition("/")[2]
        else:
            entries, is_file = _list_local(path, output)
            root = os.path.basename(os.path.abspath(_fixed_part(path)))
        if is_file:
            singles += entries
        else:
            roots.append((root, entries))
    found: dict[str, Found] = {}
    for entry, given in _named(roots, singles):
        inside = safe_name(entry.inside)
        if any(part.startswith(".") for part in inside.split("/")) and not given:
            continue
        item = Found(inside, entry.place, entry.bytes, entry.stamp, given)
        if found.setdefault(inside, item).place != item.place:
            raise ModelError(
                f"two inputs have the name {inside}: {found[inside].place} and {item.place}",
                hint="Convert them into two folders, or put them into one tree first.",
            )
    return sorted(found.values(), key=lambda item: item.name)


def safe_name(inside: str) -> str:
    """Return a path that stays inside its folder, whatever an archive or a server calls its members."""
    parts = [part for part in inside.replace("\\", "/").replace("\0", "_").split("/") if part not in ("", ".")]
    return "/".join("__" if part == ".." else part for part in parts) or "_"


def _named(roots: list[tuple[str, list[Entry]]], singles: list[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Yield the entries under their names in the zoo, and whether each was named explicitly."""
    several = len(roots) + bool(singles) > 1
    times: Counter[str] = Counter()
    for root, entries in roots:
        times[root] += 1
        prefix = f"{root}/" if times[root] == 1 else f"{root}-{times[root]}/"
        for entry in entries:
            yield (evolve(entry, inside=prefix + entry.inside) if several else entry), False
    local = {entry.place for entry in singles if local_path(entry.place) is not None}
    common = os.path.commonpath([os.path.dirname(place) for place in local]) if local else ""
    for entry in singles:
        if entry.place in local:
            entry = evolve(entry, inside=os.path.relpath(entry.place, common).replace(os.sep, "/"))
        yield entry, True


def _fixed_part(path: str) -> str:
    """Return the folder of the first wildcard of a pattern; the path itself if there is none."""
    if os.path.lexists(path) or not glob.has_magic(path):
        return path
    return os.path.dirname(path[: min(path.index(char) for char in _GLOB if char in path)]) or os.curdir


def _list_local(path: str, output: str) -> tuple[list[Entry], bool]:
    target = local_path(output)
    own = os.path.realpath(target) if target is not None else ""
    if os.path.isdir(path):
        if own == os.path.realpath(path):
            raise ModelError("the output folder is a source too", hint="Give a folder of its own with -o.")
        return list(_walk(os.path.abspath(path), os.path.abspath(path), own)), False
    if os.path.exists(path):
        return [_local_entry(os.path.abspath(path), os.path.dirname(os.path.abspath(path)))], True
    start = os.path.abspath(_fixed_part(path))
    entries = []
    for match in sorted(glob.iglob(os.path.abspath(path), recursive=True)):
        if os.path.isfile(match):
            if not own or not os.path.realpath(match).startswith(own + os.sep):
                entries.append(_local_entry(match, start))
        elif "**" not in path:  # a recursive pattern lists the files itself
            entries += _walk(match, start, own)
    if not entries:
        raise T7BridgeError("no such file or folder", file=path)
    return entries, False


def _local_entry(path: str, start: str) -> Entry:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise T7BridgeError("is not a regular file", file=path, hint="Give the path of a file.")
    return Entry(path, os.path.relpath(path, start).replace(os.sep, "/"), status.st_size, str(status.st_mtime_ns))


def _walk(folder: str, start: str, own: str) -> Iterator[Entry]:
    """Yield regular files below a folder. Links to files are followed; those to folders may be cyclic, and are not."""
    stack = [folder]
    while stack:
        current = stack.pop()
        try:
            items = list(os.scandir(current))
        except OSError as error:
            raise T7BridgeError(f"cannot be listed: {error.strerror}", file=current) from error
        prefix = "" if current == start else os.path.relpath(current, start).replace(os.sep, "/") + "/"
        for item in items:
            if item.name.startswith("."):
                continue
            if item.is_dir(follow_symlinks=False):
                if os.path.realpath(item.path) != own:
                    stack.append(item.path)
            elif item.is_file():
                status = item.stat()
                yield Entry(item.path, prefix + item.name, status.st_size, str(status.st_mtime_ns))


def kind_of(head: bytes) -> str:
    """Return the likely format of a file from its first bytes; empty for a file that is not a model."""
    signature = identify(head)
    if signature is not None:
        found = formats_with(signature.kind)
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")].decode("utf-8", "replace")
        chosen = next((spec for spec in found if spec.members is not None and spec.members([first])), None)
        return (chosen or found[0]).name if found else ""
    # A binary file begins with a type tag; a file in ascii with one on a line of its own.
    if len(head) >= 4 and min(int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")) <= 8:
        return "t7"
    return "t7" if head[:1] in b"012345678" and head[1:2] in (b"\n", b"\r") else ""


def title_of(head: bytes) -> str:
    """Return a description of a file that is not a model."""
    signature = identify(head)
    return signature.title if signature is not None else "something else" if head else "empty"


def is_claimed(found: Found) -> bool:
    """Return whether a file is declared to be a model: it was named explicitly, or has such a suffix."""
    return found.given or os.path.splitext(found.name)[1].lower() in CLAIMS


def output_names(
    wanted: Iterable[tuple[str, str]], taken: Iterable[str], suffixes: Callable[[str], str]
) -> dict[str, str]:
    """Return the names of the outputs of new inputs: those of the inputs, with the suffix of the format.

    If two would get the same name, or a file that of a folder, both keep their own suffix too: `net.t7.pt`. Names
    differ in more than case, which some file systems ignore.

    Args:
        wanted: names of the inputs, and the format of each (`t7` or `pt`).
        taken: names of outputs that exist for other inputs.
        suffixes: the suffix of the output for each input format.

    Returns:
        The name of the output by that of the input.
    """
    inputs = dict(wanted)
    short = {name: _stem(name) + suffixes(kind) for name, kind in inputs.items()}
    used = {name.casefold() for name in taken}
    used |= _folders({*short.values(), *used})
    times = Counter(name.casefold() for name in short.values())
    names: dict[str, str] = {}
    for name, kind in inputs.items():
        choice = short[name]
        number = 1
        while (times[choice.casefold()] > 1 and choice == short[name]) or choice.casefold() in used:
            choice = name + ("" if number == 1 else f".{number}") + suffixes(kind)
            if number > len(inputs) + 2:
                raise ModelError(f"no name is free for the output of {name}")
            number += 1
        used.add(choice.casefold())
        names[name] = choice
    return names


def _stem(name: str) -> str:
    """Return `a/net` for `a/net.t7` and `a/net.pth.tar`; an unknown suffix stays."""
    stem, suffix = os.path.splitext(name)
    if suffix.lower() == ".tar" and os.path.splitext(stem)[1].lower() in _STRIPPED:
        stem, suffix = os.path.splitext(stem)
    return stem if suffix.lower() in _STRIPPED and os.path.basename(stem) else name


def _folders(names: Iterable[str]) -> set[str]:
    """Return the folders that contain files, and all their parents, in lower case."""
    found: set[str] = set()
    while names := {name.rpartition("/")[0].casefold() for name in names if "/" in name}:
        found |= names
    return found
