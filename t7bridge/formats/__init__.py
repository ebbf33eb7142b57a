"""Files of any format: `open` reads one, `write` writes one, `FORMATS` lists what each can hold.

What a package needs that adds a format is public (docs/extensions.md): `FormatSpec`, `Signature`, `Document`,
`NamedTensors` and others in `__all__`. Only this module and `table` know the set of formats; no other part of the
package asks for the format of a file. A format is a module in this folder, loaded on first use, and knows no other.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data import face
from ..errors import ModelError, T7BridgeError, UnknownFormatError, UnsupportedError, about_file
from ..io.source import FOLDER_HINT, ByteSource, PiecesSource
from ..limits import DEFAULT_LIMITS
from ..text import few
from .table import FORMATS as FORMATS
from .table import (
    HEAD_BYTES,
    NAMED,
    T7_HEAD,
    WHOLE_CHECKPOINT,
    FormatSpec,
    added_formats,
    format_of_suffix,
    identify,
    is_unpacked,
    module_of,
)
from .table import LUA as LUA
from .table import PYTHON as PYTHON
from .table import SUFFIXES as SUFFIXES
from .table import WRITABLE as WRITABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..graph.dtypes import ELEMENT_TYPES
    from ..io.source import PathLike, Readable
    from ..limits import Limits
    from .named import NamedTensors, content, dotted, tensor_of_bytes
    from .pt.zip import ZipArchive
    from .table import Document, Signature, Written

__all__ = [
    "ELEMENT_TYPES",
    "NAMED",
    "ByteSource",
    "Document",
    "FormatSpec",
    "NamedTensors",
    "Signature",
    "Written",
    "content",
    "dotted",
    "tensor_of_bytes",
]


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
    limits = DEFAULT_LIMITS if limits is None else limits
    folder = _folder_of(source) if isinstance(source, (str, os.PathLike)) else ""
    if folder:
        return module_of(_folder_format(folder)).read_folder(folder, limits, **options)  # type: ignore[no-any-return]
    opened, start = ByteSource.open(source)
    if start:  # in the middle of a file object: only a `.t7` supports that, and asks for the position again
        return module_of(FORMATS["t7"]).read(source, limits, **options)  # type: ignore[no-any-return]
    return _open_source(opened, limits, options)


def _open_source(source: ByteSource, limits: Limits, options: dict[str, Any]) -> Document:
    """Open a file, or the model inside an archive, by its content; see `open`."""
    if source.name.endswith(".distcp"):
        raise UnsupportedError(
            "is one of the files of a folder of torch.distributed.checkpoint, among which its tensors are cut",
            file=source.name,
            hint=f"{WHOLE_CHECKPOINT} makes one file of the folder.",
        )
    with about_file(source.name):
        spec = format_of(source, limits)
        if isinstance(spec, OtherArchive):
            return _open_inside(spec, limits, options)
        return module_of(spec).read(source, limits, **options)  # type: ignore[no-any-return]


class OtherArchive(NamedTuple):
    """A zip archive of none of the formats, which may have models inside.

    Attributes:
        source: the open file of the archive.
        archive: its members.
    """

    source: ByteSource
    archive: ZipArchive

    @property
    def title(self) -> str:
        """A description of the archive by the names of its members."""
        for title, member in _ARCHIVES.items():
            if member in self.archive.members:
                return title
        return "a zip archive"

    @property
    def models(self) -> list[str]:
        """The names of the members whose suffix is that of a format."""
        return [name for name in self.archive.members if _is_model(name)]

    def member(self, name: str, limits: Limits) -> tuple[ByteSource, Limits]:
        """Return a member as a source of its own, whose bytes are checked, and the limits for what is in it.

        Closing the source closes the archive.

        Raises:
            CorruptError: the member does not have its CRC-32.
            LimitError: too many archives are inside one another.
        """
        if not limits.nested_files:
            raise limits.exceeded("nested_files", "archives are nested in one another")
        return _Inside(self.source, self.archive, name), limits._replace(nested_files=limits.nested_files - 1)

    def refusal(self) -> UnknownFormatError:
        """Return the error for an archive that is not read."""
        names = list(self.archive.members)
        return UnknownFormatError(
            f"is {self.title}, but not one of PyTorch",
            file=self.source.name,
            expected="the file of a model" if names else "members",
            found=few(names, most=4, longest=60) or "no members",
            hint=_hint_for(self.source.name, self.models, names),
        )


def _open_inside(other: OtherArchive, limits: Limits, options: dict[str, Any]) -> Document:
    """Open the model inside an archive of another kind.

    Args:
        other: the archive.
        limits: resource limits; those for the model allow one archive inside another less.
        options: of the reader of the model's format.

    Raises:
        UnknownFormatError: there is none, or there are several.
    """
    models = other.models
    if len(models) != 1:
        raise other.refusal()
    (name,) = models
    member, inner_limits = other.member(name, limits)
    document = open(member, limits=inner_limits, **options)
    document.described = f"{other.title} with {document.title} inside"
    left_out = [member_name for member_name in other.archive.members if member_name != name]
    if left_out:
        from ..report import Note  # which loads attrs

        text = f"{name:.80} inside the archive is read; left out are {few(left_out, longest=60)}"
        document.add_note(Note("info", path="", message=text, code="left-out", count=len(left_out)))
    return document


class _Inside(PiecesSource):
    """A member of a zip archive as a source of its own, whose bytes are checked; closing it closes the archive.

    Args:
        source: the archive's file.
        archive: its members.
        name: of the member.
    """

    def __init__(self, source: ByteSource, archive: ZipArchive, name: str) -> None:
        archive.check(name)
        inner, start = archive.span(name)
        # `inner` is the archive's file, or the inflated bytes of the member.
        super().__init__(address_inside(source.name, name), [(inner, start, archive.members[name].size)])
        self._archive_source = source
        """The archive's file, which is closed with the member."""

    def close(self) -> None:
        """Close the file of the archive."""
        self._archive_source.close()


def address_inside(file: str, member: str) -> str:
    """Return the address of a member of a zip archive."""
    return f"zip://{member}::{file}"


def _folder_of(path: PathLike) -> str:
    """Return the folder that a path names: itself, or that of a file which is only a part of a model.

    Such a file is the `data.pkl` of an unpacked archive. Empty for any other file, which is read by itself.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        return name
    folder, base = os.path.split(name)
    folder = folder or os.curdir
    specs = [spec for spec in FORMATS.values() if base in spec.inside]
    if specs and os.path.isdir(folder):
        names = os.listdir(folder)
        if _format_with_folder(specs, names) is not None:
            return folder
    return ""


def format_of(source: ByteSource, limits: Limits | None = None, *, installed: bool = True) -> FormatSpec | OtherArchive:
    """Return the format of a file by its content, whatever its name.

    Args:
        source: the file.
        limits: resource limits.
        installed: whether formats of installed packages are known, too; loading these packages takes time.

    Returns:
        An `OtherArchive` for a zip archive of none of the formats; `.t7` for what has no signature.

    Raises:
        UnknownFormatError: the format is not supported; the message says what the file is.
    """
    head = source.read(0, HEAD_BYTES)
    signature = identify(head, installed=installed)
    specs = formats_with(signature.kind) if signature is not None else []
    if signature is not None and specs:
        # Only zip archives are of several formats.
        return _archive_format(source, specs, limits, installed) if signature.kind == "zip" else specs[0]
    # An HDF5 file may begin with anything; but files that begin as a `.t7` are spared the search.
    hdf5 = None if T7_HEAD.match(head) else _behind_user_block(source)
    if hdf5 is not None:
        return hdf5
    if signature is None:
        return FORMATS["t7"]  # its reader refuses what it is not
    hint = signature.hint or f"t7bridge reads {known_suffixes()} files."
    raise UnknownFormatError(f"is {signature.title}, which t7bridge does not read", file=source.name, hint=hint)


def _behind_user_block(source: ByteSource) -> FormatSpec | None:
    """Return the format HDF5 for a file that begins with a block of its user's; `None` if it is no such file.

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
"""Bytes of the shortest block before HDF5's signature."""


def _archive_format(
    source: ByteSource, specs: list[FormatSpec], limits: Limits | None, installed: bool
) -> FormatSpec | OtherArchive:
    """Return which of several formats a zip archive has, by the names of its members.

    A damaged archive is PyTorch's, whose reader reports the damage; one of none of the formats is an `OtherArchive`.

    Args:
        source: the file.
        specs: our formats whose files are zip archives.
        limits: resource limits.
        installed: whether formats of installed packages are asked, too, where none of ours matches.
    """
    from .pt.zip import ZipArchive  # which other files do not need

    try:
        archive = ZipArchive(source, limits or DEFAULT_LIMITS, exact_case=True)
    except T7BridgeError:
        return FORMATS["pt"]  # its reader reports the damage
    names = list(archive.members)
    spec = _format_with_members(specs, names)
    if spec is None and installed:  # only now, as loading installed packages takes time
        spec = _format_with_members(added_formats(), names)
    return spec if spec is not None else OtherArchive(source, archive)


def _format_with_members(specs: list[FormatSpec], names: list[str]) -> FormatSpec | None:
    """Return the first format whose archives have members of these names."""
    return next((spec for spec in specs if spec.members is not None and spec.members(names)), None)


def _is_model(name: str) -> bool:
    """Return whether a member of an archive may be a model by its suffix; the hidden files that macOS adds are not."""
    folder, _, base = name.rpartition("/")
    is_hidden = base.startswith(".") or "__MACOSX" in folder
    return not is_hidden and os.path.splitext(base)[1].lower() in SUFFIXES


_ARCHIVES = {
    "an archive of stable-baselines": "_stable_baselines3_version",
    "a Keras archive": "model.weights.h5",
}
"""Archives of other programs, by a member of each."""


def _hint_for(file: str, models: list[str], names: list[str]) -> str:
    """Return how to read what is inside an archive; empty if there is nothing.

    Args:
        file: path of the archive.
        models: names of the members that may be models.
        names: of all members.
    """
    if models:
        addresses = few([address_inside(file, name) for name in models], most=4)
        return f"Give the address of one inside: {addresses}"
    return f"Unpack it, or give the address of a member: {address_inside(file, 'MEMBER')}" if names else ""


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
    spec = _format_with_folder(FORMATS.values(), names)
    if spec is None:  # only now, as loading installed packages takes time
        spec = _format_with_folder(added_formats(), names)
    if spec is None:
        raise _folder_refusal(os.fspath(path), names)
    return spec


def _format_with_folder(specs: Iterable[FormatSpec], names: list[str]) -> FormatSpec | None:
    """Return the first format whose folders have files of these names."""
    return next((spec for spec in specs if spec.folder is not None and spec.folder(names)), None)


def _folder_refusal(path: str, names: list[str]) -> T7BridgeError:
    """Return the error for a folder of no format.

    Args:
        path: of the folder.
        names: of the files and folders in it.
    """
    if ".metadata" in names:
        return UnsupportedError(
            "is a folder of torch.distributed.checkpoint, whose tensors are cut among its files",
            file=path,
            hint=f"{WHOLE_CHECKPOINT} makes one file of it.",
        )
    if "saved_model.pb" in names:
        return UnknownFormatError(
            "is a TensorFlow SavedModel, which t7bridge does not read",
            file=path,
            hint="Save its weights with numpy.savez in TensorFlow.",
        )
    hint = _hint_for_folder(path, names)
    return UnknownFormatError("is a folder, and no checkpoint in several files", file=path, hint=hint)


_MOST_LOOKED_INTO = 100
"""Names of a folder that are tried as folders."""


def _hint_for_folder(path: str, names: list[str]) -> str:
    """Return advice about a folder of no format: the path of an unpacked checkpoint in it, if there is one.

    Args:
        path: of the folder.
        names: of the files and folders in it.
    """
    for name in names[:_MOST_LOOKED_INTO]:
        inner = os.path.join(path, name)
        with suppress(OSError):  # it is a file, or may not be read
            if is_unpacked(os.listdir(inner)):
                return f"{inner} is an unpacked checkpoint of PyTorch: give that path."
    return FOLDER_HINT


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
        if to not in WRITABLE:
            raise ModelError(f"unknown output format {to!r}", expected=" or ".join(_written_formats()))
        return FORMATS[to]
    file = os.fspath(path)
    suffix = os.path.splitext(file)[1].lower()
    spec = format_of_suffix(suffix)  # formats that are only read have none
    if spec is None:
        raise UnsupportedError(
            "the output format is not clear from this name",
            file=file,
            expected="a name that ends in " + ", ".join(SUFFIXES),
            hint=_OTHER_VERBS.get(suffix, f"Name it with --to (to=…): {', '.join(_written_formats())}."),
        )
    return spec


def _written_formats() -> list[str]:
    """Return the names of the formats that are written, those of the installed packages loaded so far included."""
    return [name for name, spec in FORMATS.items() if spec.suffixes]  # others are read only


_OTHER_VERBS = {
    **dict.fromkeys((".onnx", ".pt2"), "t7bridge export writes it: a model with its computation."),
    **dict.fromkeys((".html", ".svg", ".png", ".dot"), "t7bridge draw makes pictures."),
    ".json": "t7bridge describe writes values, t7bridge draw the graph of a model.",
    ".lua": "t7bridge lua writes a PyTorch model as Lua.",
    ".py": "t7bridge module writes the model's source.",
}
"""By the suffixes of outputs that are not model files: the verb that writes them."""


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
    from ..io.output import FileOutput  # which readers do not need

    with FileOutput(path, force=force) as output:
        return module_of(spec).write(output, value, **options)  # type: ignore[no-any-return]


def home(name: str) -> Any:
    """Return the module of a format, by the format's name."""
    return module_of(FORMATS[name])


__getattr__ = face(
    __name__,
    {
        ".graph.dtypes": "ELEMENT_TYPES",
        "named": "NamedTensors content dotted tensor_of_bytes",
        "pt.members": (
            "ALIGNMENT_MEMBER BYTEORDER_MEMBER DATA_MEMBER FORMAT_MEMBER ID_MEMBER RECORD_MEMBER VERSION_MEMBER"
        ),
        "pt.modules": "ScriptModule is_module module_state_dict parse_classes",
        "pt.pickle.context": "Origin PickleContext",
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
        "table": "Document HEAD_BYTES Signature Written identify",
        "torchfile": "differences",
    },
)
