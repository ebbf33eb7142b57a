"""Files of any format: `open` reads one, `write` writes one, `FORMATS` lists what each can hold.

Only this module and `table` know the set of formats; no other part of the package asks for the format of a file. A
format is a module in this folder, loaded on first use, and knows no other.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ..data import face, pattern
from ..errors import ModelError, T7BridgeError, UnknownFormatError, UnsupportedError, about_file
from ..io.source import FOLDER_HINT, ByteSource
from ..limits import DEFAULT_LIMITS
from .table import FORMATS, HEAD_BYTES, LUA, NAMED, PYTHON, SUFFIXES, WHOLE_CHECKPOINT, FormatSpec, identify

if TYPE_CHECKING:
    from ..io.source import ByteSource, PathLike, Readable
    from ..limits import Limits
    from .table import Document, Written

__all__ = ["FORMATS", "LUA", "NAMED", "PYTHON", "SUFFIXES", "FormatSpec", "format_for", "format_of", "open", "write"]


def open(source: Readable | ByteSource, *, limits: Limits | None = None, **options: Any) -> Document:
    """Open a file of any format, detected by its content.

    Args:
        source: a path, bytes, or a binary file object, whose position must be 0 except for a `.t7`.
        limits: resource limits.
        **options: of the format's reader.

    Returns:
        The document: its format, values and layout. Only what identifies the format has been read.

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: the format is unknown; the message says what the file is instead.
        UnsupportedError: PyTorch distributed one checkpoint over this file and others.

    Example:
        >>> with t7bridge.open("model.t7") as document:
        ...     document.format, len(document.roots)
    """
    limits = limits or DEFAULT_LIMITS
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        return _home(_folder_format(source)).read_folder(os.fspath(source), limits, **options)  # type: ignore[no-any-return]
    opened, start = ByteSource.open(source)
    if start:  # in the middle of a file object: only a `.t7` supports that
        return _home(FORMATS["t7"]).read(source, limits, **options)  # type: ignore[no-any-return]
    if opened.name.endswith(".distcp"):
        raise UnsupportedError(
            "is one of the files of a folder of torch.distributed.checkpoint, among which its tensors are cut",
            file=opened.name,
            hint=f"{WHOLE_CHECKPOINT} makes one file of the folder.",
        )
    with about_file(opened.name):
        return _home(format_of(opened, limits)).read(opened, limits, **options)  # type: ignore[no-any-return]


def format_of(source: ByteSource, limits: Limits | None = None) -> FormatSpec:
    """Return the format of a file by its content, whatever its name.

    Raises:
        UnknownFormatError: the format is not supported; the message says what the file is.
    """
    head = source.read(0, HEAD_BYTES)
    signature = identify(head)
    specs = formats_with(signature.kind) if signature is not None else []
    if not specs and not _T7_HEAD.match(head):
        spec = _behind_user_block(source)
        if spec is not None:
            return spec
    if signature is None:
        return FORMATS["t7"]  # its reader decides
    if not specs:
        hint = signature.hint or f"t7bridge reads {known_suffixes()} files."
        raise UnknownFormatError(f"is {signature.title}, which t7bridge does not read", file=source.name, hint=hint)
    if len(specs) == 1:
        return specs[0]
    return _archive_format(source, specs, limits)


_T7_HEAD = pattern(rb"[1-8]\r?\n|[\x01-\x08]\0{3}|\0{3}[\x01-\x08]")
"""The tag of a value other than nil, in ascii or in either byte order."""


def _behind_user_block(source: ByteSource) -> FormatSpec | None:
    """Return the format of a file that begins with bytes of its user; `None` if there is none.

    HDF5 looks for its signature at 512, 1024, 2048, … (HDF5 File Format Specification, II.A). MATLAB 7.3 writes text
    before it.
    """
    offset = _LEAST_USER_BLOCK
    while offset < source.size:
        signature = identify(source.read(offset, HEAD_BYTES))
        if signature is not None and signature.kind == "hdf5":
            return formats_with("hdf5")[0]
        offset *= 2
    return None


_LEAST_USER_BLOCK = 512


def _archive_format(source: ByteSource, specs: list[FormatSpec], limits: Limits | None) -> FormatSpec:
    """Return which of several formats a zip archive has, by the names of its members; the last one if it is damaged."""
    from .pt.zip import ZipArchive

    try:
        names = list(ZipArchive(source, limits or DEFAULT_LIMITS, exact_case=True).members)
    except T7BridgeError:
        return specs[-1]  # its reader reports the damage
    for spec in specs:
        if spec.members is not None and spec.members(names):
            return spec
    return specs[-1]


def _folder_format(path: PathLike) -> FormatSpec:
    """Return the format of a folder, by the names of its files.

    Raises:
        UnknownFormatError: no format matches.
        UnsupportedError: PyTorch distributed one checkpoint over the files.
    """
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise T7BridgeError(f"cannot be read: {error.strerror}", file=os.fspath(path)) from error
    for spec in FORMATS.values():
        if spec.folder is not None and spec.folder(names):
            return spec
    if ".metadata" in names:
        raise UnsupportedError(
            "is a folder of torch.distributed.checkpoint, whose tensors are cut among its files",
            file=os.fspath(path),
            hint=f"{WHOLE_CHECKPOINT} makes one file of it.",
        )
    message = "is a folder, and no checkpoint in several files"
    raise UnknownFormatError(message, file=os.fspath(path), hint=FOLDER_HINT)


def formats_with(kind: str) -> list[FormatSpec]:
    """Return the formats whose files may begin with a kind of signature."""
    return [spec for spec in FORMATS.values() if kind in {signature.kind for signature in spec.signatures}]


def known_suffixes() -> str:
    """Return the suffix of each format, for messages."""
    return ", ".join(spec.suffix for spec in FORMATS.values() if spec.suffixes)


def format_for(path: PathLike, to: str | None = None) -> FormatSpec:
    """Return the format to write.

    Args:
        path: of the file, whose suffix selects the format unless `to` is given.
        to: the format's name.

    Raises:
        ModelError: the name is unknown.
        UnsupportedError: the suffix is unknown.
    """
    if to is not None:
        if to not in FORMATS or not FORMATS[to].suffixes:
            written = " or ".join(name for name, spec in FORMATS.items() if spec.suffixes)
            raise ModelError(f"unknown output format {to!r}", expected=written)
        return FORMATS[to]
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    spec = SUFFIXES.get(suffix)
    if spec is None:
        names = ", ".join(name for name, spec in FORMATS.items() if spec.suffixes)
        raise UnsupportedError(
            "the output format is not clear from this name",
            file=name,
            expected="a name that ends in " + ", ".join(SUFFIXES),
            hint=_OTHERS.get(suffix, f"Name it with --to (to=…): {names}."),
        )
    return spec


_OTHERS = {
    **dict.fromkeys((".onnx", ".pt2"), "t7bridge export writes it: a model with its computation."),
    **dict.fromkeys((".html", ".svg", ".png", ".dot"), "t7bridge draw makes pictures."),
    ".json": "t7bridge describe writes values, t7bridge draw the graph of a model.",
    ".lua": "t7bridge lua writes a PyTorch model as Lua.",
    ".py": "t7bridge module writes the model's source.",
}
"""The verbs that write what no format is."""


def write(value: Any, path: PathLike, format: str | None = None, *, force: bool = False, **options: Any) -> Written:
    """Write a value that a format can hold directly; `t7bridge.save` accepts any.

    Args:
        value: Lua values for a `.t7`, builtins with tensors in them for a `.pt`, a dict of tensors for the others.
        path: of the file.
        format: its name; by default that of the path's suffix.
        force: whether an existing file is replaced.
        **options: of the format's writer.

    Raises:
        TargetExistsError: the file exists and `force` is not set.
        UnsupportedError: the format cannot hold something in the value.
        WriteError: the disk reports an error.
    """
    spec = format_for(path, format)
    from ..io.output import FileOutput

    with FileOutput(path, force=force) as output:
        return _home(spec).write(output, value, **options)  # type: ignore[no-any-return]


def home(name: str) -> Any:
    """Return the module of a format, by the format's name."""
    return _home(FORMATS[name])


def _home(spec: FormatSpec) -> Any:
    return importlib.import_module(f".{spec.home}", __name__)


__getattr__ = face(
    __name__,
    {
        "pt.members": (
            "ALIGNMENT_MEMBER BYTEORDER_MEMBER DATA_MEMBER FORMAT_MEMBER ID_MEMBER RECORD_MEMBER VERSION_MEMBER"
        ),
        "pt.modules": "ScriptModule is_module module_state_dict parse_classes",
        "pt.pickle.meaning": "Origin PtMeaning",
        "pt.pickle.names": "SAFE WEIGHTS_ONLY is_forbidden",
        "pt.pickle.pickler": "PickleWriter",
        "pt.pickle.unpickler": "Unpickler",
        "pt.script_writer": "ScriptWriter",
        "pt.streams": "tar_members",
        "pt.writer": "LegacyPtWriter PtWriter",
        "pt.zip": "ALIGNMENT_BYTES ZipArchive",
        "t7.file": "PT_RECORD_START read_t7",
        "t7.layout": "VINTAGES",
        "t7.reader": "payload_of unregister_class",
        "t7.releases_2010": "HINT RELEASES vintage_payload",
        "t7.runs": "Alike",
        "t7.writer": "T7Writer",
        "table": "HEAD_BYTES identify",
        "torchfile": "differences",
    },
)
