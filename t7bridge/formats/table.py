"""The table of file formats: names, suffixes, first and last bytes, and capabilities; and what their modules return.

A new format is a row here and a module of this folder with two functions:

    def read(source, limits, **options) -> Document        bytes to values
    def write(output, value, **options) -> Written         values to bytes

and, if it is one of named tensors that another library reads, a third:

    def differences(path, named) -> list[str]              what that library reads otherwise, for `zoo --verify`

The modules are loaded on first use. Installed packages add formats of the same form (docs/extensions.md), which are
asked for where no format of the table has a name or a file.
"""

from __future__ import annotations

import importlib
import re
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data import define, pattern
from ..errors import CorruptError, T7BridgeWarning, about_file
from ..extensions import FORMATS as ADDED_FORMATS
from ..extensions import load_extensions

if TYPE_CHECKING:
    from ..io.source import ByteSource
    from ..report import Note

LUA, PYTHON, NAMED = "lua", "python", "named"
"""Kinds of values of a format: Lua values; Python values with tensors in them; named tensors."""


class Signature(NamedTuple):
    """A kind of file recognized by its first bytes.

    Attributes:
        kind: short name: `zip`, `pickle`, `tar`.
        title: description in messages.
        pattern: an expression that matches the first bytes; `.` is any byte.
        hint: advice if such a file is not supported; empty for one that is.
        late: whether it is tried after all others, as its pattern is weak.
    """

    kind: str
    title: str
    pattern: bytes
    hint: str = ""
    late: bool = False


class FormatSpec(NamedTuple):
    """A file format.

    Attributes:
        name: as in `--to`.
        title: description in messages.
        suffixes: of file names, that of outputs first; none for a read-only format.
        home: its module, with `read` and `write`: in `t7bridge.formats`, or of an installed package the dotted name,
            by default that of its entry point.
        values: `LUA`, `PYTHON` or `NAMED`.
        signatures: first bytes of its files; a `.t7` has none, and is the fallback.
        members: for a zip archive: whether one with these member names has this format. Of several matching formats the
            first in the table is chosen. `None` if its files are not zip archives.
        folder: for folders: whether one with these names of files and folders in it has this format. `None` if the
            format has no folders.
        inside: names of files that are read as a part of the folder in which they are, if that has this format.
        links: whether two names may refer to one tensor.
        tree: whether names are nested, as groups; else a tensor's name is its path, joined by dots.
        elements: names of its element types; empty for all.
        fit: for formats of named tensors: a name as the format can hold it.
        text_bytes: maximum size of a text in its metadata, in bytes; 0 if it has no metadata, so that sharing is lost.
        shards: whether a checkpoint may be several such files, with an index.
        numbers: whether numbers, and lists of numbers, are tensors for its users, too.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    home: str = ""
    values: str = NAMED
    signatures: tuple[Signature, ...] = ()
    members: Callable[[Sequence[str]], bool] | None = None
    folder: Callable[[Sequence[str]], bool] | None = None
    inside: tuple[str, ...] = ()
    links: bool = False
    tree: bool = False
    elements: frozenset[str] = frozenset()
    fit: Callable[[str], str] = str
    text_bytes: int = 1 << 24
    numbers: bool = False
    shards: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of outputs; the name of a read-only format."""
        return self.suffixes[0] if self.suffixes else self.name


def one_or_list(roots: list[Any]) -> Any:
    """Return the value of a file that holds one, or the list itself if it holds several.

    In the list, the paths of the values are `root[0]`, `root[1]` and so on.
    """
    return roots[0] if len(roots) == 1 else roots


class Document:
    """An open file: its format, its values and its metadata.

    Values are read on demand, and their weights stay in the file: it is open until the document is closed, or else as
    long as one of its storages is in use. A context manager.

    Args:
        format: name of the format.
        source: the file.
        load: reads all values of the file; called when they are asked for first, and again after `forget`.
        content: returns the result of the format's own reader: a `T7File`, a `PtReader`; `None` if it adds nothing.
        layout: returns the attribute of this name.
        metadata: strings besides the values; `load` may add some to this dictionary.
        notes: what reading left out; `load` may add some to this list.
        warn: issues a warning if the file is incomplete; receives the stack depth.
        forget: releases what `load` and `content` keep.

    Attributes:
        format: name of the format, as in `--to`.
        source: the file.
        layout: how the values are encoded: a `T7Layout`; of a `.pt` its kind (`zip`, `legacy`, …); else `None`.
        metadata: strings stored in the file besides its values; of a checkpoint in several files once these are read.
        described: what the file is, where its reader knows more than the format's title: `a Keras model, an HDF5 file`;
            empty where it does not.
    """

    def __init__(
        self,
        format: str,
        source: ByteSource,
        load: Callable[[], list[Any]],
        *,
        content: Callable[[], Any] = lambda: None,
        layout: Callable[[], Any] = lambda: None,
        metadata: dict[str, str] | None = None,
        notes: list[Note] | None = None,
        warn: Callable[[int], None] = lambda stacklevel: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep what the reader of the format does when values, content or layout are asked for; nothing is read yet."""
        self.format = format
        self.source = source
        # The reader may add to both while it reads the values, so that an empty one of its own is kept, too.
        self.metadata = metadata if metadata is not None else {}
        self._notes = notes if notes is not None else []
        self.described = ""
        """What the file is, where that is more than the format's title; set by the reader."""
        self._warn = warn
        self._load = load
        self._forget = forget
        self._content = content
        self._layout = layout
        self._roots: list[Any] | None = None
        """The values that `_load` has returned; `None` until they are read, and again after `forget`."""
        self._has_been_read = False
        """Whether the values were read once; `forget` may have released them since."""

    @property
    def spec(self) -> FormatSpec:
        """The format's entry in the table of formats: what it can hold, its reader and writer."""
        return FORMATS[self.format]

    @property
    def title(self) -> str:
        """A description of the file, `a PyTorch file`; that of a pickle says who wrote it, once its values are read."""
        return self.described or getattr(self.content, "title", "") or self.spec.title

    @property
    def path(self) -> str:
        """The path of the file, or a description of the source."""
        return self.source.name

    @property
    def roots(self) -> list[Any]:
        """All values of the file; most files hold one.

        Raises:
            FormatError: the file is damaged.
        """
        if self._roots is None:
            note_count = len(self._notes)
            with about_file(self.path):
                self._roots = self._load()
            if self._has_been_read:  # reading again what `forget` released has added the same notes again
                del self._notes[note_count:]
            self._has_been_read = True
        return self._roots

    @property
    def value(self) -> Any:
        """The value of the file, or the list of its values if it holds several."""
        return one_or_list(self.roots)

    @property
    def first(self) -> Any:
        """The first value, which Lua's `torch.load` returns."""
        return self.roots[0]

    def narrow(self, part: Any) -> None:
        """Make a part of the document's value the only value of it; `content` is of that part, where it can be.

        Args:
            part: a value inside the document's.
        """
        whole = self.content
        self._roots = [part]
        self._load = lambda: [part]  # also after `forget`
        # Of our contents only a `T7File` can be that of a part.
        self._content = lambda: whole.part(part) if hasattr(whole, "part") else whole

    def warn(self, stacklevel: int = 2) -> None:
        """Issue an `IncompleteFileWarning` if unreadable bytes follow the values."""
        self._warn(stacklevel + 1)

    @property
    def content(self) -> Any:
        """The format's own reader: a `T7File`, a `PtReader`; `None` if it adds nothing."""
        return self._content()

    @property
    def layout(self) -> Any:
        """Encoding of the values."""
        return self._layout()

    @property
    def foreign(self) -> list[str]:
        """The names of classes and functions in the file that are not part of PyTorch; none was called."""
        return list(getattr(self.content, "foreign", ()))

    @property
    def notes(self) -> list[Note]:
        """Notes about what reading left out, and other information for users; complete once the values are read."""
        return [*self._notes, *getattr(self.content, "notes", ())]

    def add_note(self, note: Note) -> None:
        """Add a note about how the file was read."""
        self._notes.append(note)

    def verify(self) -> None:
        """Verify the checksums in the file, if any.

        Raises:
            CorruptError: one is wrong.
        """
        check = getattr(self.content, "verify", None)
        if check is not None:
            check()

    def forget(self) -> None:
        """Release the values, which are read again if they are asked for again."""
        self._roots = None
        self._forget()

    def close(self) -> None:
        """Close the file. Storages whose elements are still in it can no longer be read."""
        self.source.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Document {self.format}: {self.path!r}>"


@define(frozen=True)
class Written:
    """Result of writing a file.

    Attributes:
        tensors: number of tensors.
        storages: number of storages; tensors that share memory have one together.
        left_out: names of texts of the metadata for which there was no room.
    """

    tensors: int = 0
    storages: int = 0
    left_out: tuple[str, ...] = ()


_NATIVE = frozenset(
    {
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    }
)
"""The element types that numpy also has."""


def _npz_name(name: str) -> str:
    """Return a name without zero bytes, at which zip's readers stop, or the suffix that numpy adds to names itself."""
    return name.replace("\0", "_") + "_" * name.endswith(".npy")


def _safetensors_name(name: str) -> str:
    """Return a name that is not that of the metadata."""
    return name + "_" if name == "__metadata__" else name


def _is_npz(names: Sequence[str]) -> bool:
    """Return whether names are those of the members of a `.npz`: arrays, and not the value of a PyTorch archive."""
    has_arrays = any(name.endswith(".npy") for name in names)
    has_pytorch_value = any(f"/{name}".lower().endswith("/data.pkl") for name in names)
    return has_arrays and not has_pytorch_value


_PT_MEMBERS = ("data.pkl", "model.json", "archive_format", "serialized_exported_program.json", ".data/extern_modules")
"""Members by which PyTorch's archives are known; see `pt/members.py`."""


def _is_pt(names: Sequence[str]) -> bool:
    """Return whether names are those of the members of an archive of PyTorch, in any folder and case."""
    return any(f"/{name.lower()}".endswith(f"/{member}") for name in names for member in _PT_MEMBERS)


def is_unpacked(names: Sequence[str]) -> bool:
    """Return whether names of files in a folder are those of an archive of PyTorch that was unpacked.

    Other programs write a `data.pkl`, too, but not beside any of the other names.
    """
    return "data.pkl" in names and not {"data", "version", "byteorder", "constants.pkl"}.isdisjoint(names)


INDEX_SUFFIX = ".index.json"
"""End of the name of the file that maps each tensor of a checkpoint to one of several files."""

_SPECS = (
    FormatSpec(
        "t7",
        "a Lua Torch file",
        (".t7", ".t7b", ".net", ".ascii"),
        "t7.file",
        LUA,
        links=True,
        tree=True,
    ),
    FormatSpec(
        "npz",
        "a numpy archive",
        (".npz",),
        "npz",
        NAMED,
        (Signature("zip", "a zip archive", re.escape(b"PK\x03\x04")),),
        members=_is_npz,
        elements=_NATIVE,
        fit=_npz_name,
        numbers=True,
    ),
    FormatSpec(
        "pt",
        "a PyTorch file",
        (".pt", ".pth", ".ckpt", ".bin"),
        "pt.file",
        PYTHON,
        (
            Signature("zip", "a zip archive, as PyTorch 1.6 and newer write", re.escape(b"PK\x03\x04")),
            Signature("zip", "a zip archive without members", re.escape(b"PK\x05\x06")),
            # The length of a safetensors header may begin with the same two bytes, and zeros are not a pickle.
            Signature(
                "pickle",
                "a Python pickle, as PyTorch 0.2 to 1.5 write",
                rb"\x80[\x02-\x05](?!.[\x00-\x07]\x00{4}\{\s*[\"}])",
            ),
            Signature(
                "pickle",
                "a Python pickle of an old protocol",
                rb"[(\]}]{0,9}(?:c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n|[dl]p\d+\n)|[\]})]q\x00|L119547037146038801333356L\n\.",
            ),
            Signature("tar", "a tar archive", rb".{257}ustar", late=True),
        ),
        members=_is_pt,
        folder=is_unpacked,
        inside=("data.pkl",),
        links=True,
        tree=True,
    ),
    FormatSpec(
        "safetensors",
        "a safetensors file",
        (".safetensors",),
        "safetensors",
        NAMED,
        (
            # A header of at most 100 MB. One of a few bytes, or of that in the other byte order, is the tag of a `.t7`
            # whose value is short, and behind which its record begins.
            Signature(
                "safetensors",
                "a safetensors file",
                rb"(?![\x00-\x0f]\x00{7}|\x00{3}[\x00-\x0f]\x00{4}).{3}[\x00-\x07]\x00{4}\{\s*[\"}]",
                late=True,
            ),
        ),
        elements=_NATIVE - {"complex128"}
        | {
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e8m0fnu",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
        },
        fit=_safetensors_name,
        shards=True,
    ),
    FormatSpec(
        "hdf5",
        "an HDF5 file",
        (".h5", ".hdf5"),
        "hdf5.file",
        NAMED,
        (Signature("hdf5", "an HDF5 file, as Keras and torch-hdf5 write", re.escape(b"\x89HDF\r\n\x1a\n")),),
        links=True,
        tree=True,
        elements=_NATIVE,
        text_bytes=50_000,
    ),
    FormatSpec(
        "shards",
        "a checkpoint in several files",
        (),
        "shards",
        NAMED,
        (Signature("index", "the index of a checkpoint", rb"\{\s*\"(?:metadata|weight_map)\"\s*:"),),
        folder=lambda names: any(name.endswith(INDEX_SUFFIX) for name in names),
    ),
)

WHOLE_CHECKPOINT = "torch.distributed.checkpoint.format_utils.dcp_to_torch_save(FOLDER, FILE)"
"""The call of PyTorch that makes one file of a folder with a checkpoint of several processes."""


class _ByName(dict[str, FormatSpec]):
    """Formats by their names; one that is missing is looked for in installed packages."""

    def __missing__(self, name: str) -> FormatSpec:
        added_formats()
        if name not in self:
            raise KeyError(name)
        return self[name]


FORMATS: dict[str, FormatSpec] = _ByName((spec.name, spec) for spec in _SPECS)
"""Every format by its name."""

SUFFIXES: dict[str, FormatSpec] = {suffix: spec for spec in _SPECS for suffix in spec.suffixes}
"""Every format by the suffixes of its files' names."""

_ADDED: dict[str, FormatSpec] = {}
"""The formats of installed packages, which are in `FORMATS` and `SUFFIXES`, too."""


HEAD_BYTES = 512
"""Bytes at the beginning of a file by which it is identified: a header of tar."""
ZIP_TAIL_BYTES = 22 + 0xFFFF  # the longest comment
"""Maximum number of bytes after an archive's directory: the end record and a comment."""


def _starts(text: bytes) -> bytes:
    return re.escape(text)


_UNSUPPORTED = (
    Signature(
        "lfs",
        "a Git LFS pointer, not the file itself",
        _starts(b"version https://git-lfs"),
        "Fetch the file with `git lfs pull`.",
    ),
    Signature("gzip", "gzip-compressed", _starts(b"\x1f\x8b"), "Unpack it with gunzip or tar -xzf first."),
    Signature("bzip2", "bzip2-compressed", _starts(b"BZh"), "Unpack it with bunzip2 or tar -xjf first."),
    Signature("xz", "xz-compressed", _starts(b"\xfd7zXZ\x00"), "Unpack it with unxz or tar -xJf first."),
    Signature("7z", "a 7-Zip archive", _starts(b"7z\xbc\xaf\x27\x1c"), "Unpack it first."),
    Signature("rar", "a RAR archive", _starts(b"Rar!"), "Unpack it first."),
    Signature(
        "zlib",
        "zlib-compressed, as joblib stores scikit-learn's models",
        rb"\x78[\x01\x5e\x9c\xda]",
        "Load it with joblib.load in the program that wrote it, and save its arrays with numpy.savez.",
        late=True,
    ),
    # PaddlePaddle's binary tensors: versions and levels of 0, then a message with element type and sizes.
    Signature(
        "paddle",
        "a file of PaddlePaddle's binary parameters",
        rb"\x00{16}[\x00-\xff]\x00{3}\x08[\x00-\x1f]\x10",
        "Save them with paddle.save as .pdparams, a pickle of a state dict.",
    ),
    Signature(
        "paddle-program",
        "a program of PaddlePaddle",
        rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x08\x00\x10\xff{9}\x01",
        "Its weights are beside it, in .pdiparams; save them with paddle.save as .pdparams.",
    ),
    Signature("tflite", "a TensorFlow Lite model", rb".{4}TFL3"),
    Signature(
        "tensorflow",
        "a TensorFlow SavedModel",
        rb"\x08\x01\x12[\x80-\xff]{1,4}[\x00-\x7f]\x0a",
        "Save its weights with numpy.savez in TensorFlow.",
    ),
    Signature("npy", "a numpy array file", _starts(b"\x93NUMPY"), "Save it with numpy.savez, as a .npz."),
    Signature("lua", "Lua bytecode", _starts(b"\x1bL")),
    Signature(
        "html",
        "an HTML page, as a failed download leaves behind",
        rb"\s*(?i:<!doctype html|<html|<head|<\?xml)",
        "Download the file again; look at the page in a browser to see why.",
    ),
    Signature("json", "JSON text", rb"\s*[{\[]\s*(?:[\"{\[\]}]|$)"),
    Signature("image", "a picture", rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF.{4}WEBP|\s*<svg"),
    Signature("pdf", "a PDF document", _starts(b"%PDF-")),
    Signature(
        "onnx",
        "an ONNX model",
        rb"\x08[\x01-\x1f](?:\x12[\x00-\x7f]|\x3a)",
        "t7bridge export writes ONNX files; convert the model that this one was made from.",
    ),
    # A `.t7` in ascii begins with a number.
    Signature(
        "python",
        "Python source",
        rb"(?!\s*[-+]?\d)(?:[\t\r\x20-\x7e]*\n)*?(?:import [\w.]+(?: as \w+)?\s*[,\r\n]|from [\w.]+ import )",
        "Of a PyTorch module: t7bridge lua FILE.py:CLASS --input SHAPE; match takes FILE.py:CLASS, too.",
        late=True,
    ),
    # A `.t7` in ascii begins with a whole number, and a binary one has bytes of 0 in its first number.
    Signature(
        "text",
        "text",
        rb"(?!\s*[-+]?\d+(?:\s|\Z))(?:[\t\n\r\x20-\x7e]|[\xc2-\xf4][\x80-\xbf]{1,3})+[\xc2-\xf4]?\Z",
        late=True,
    ),
)
"""Files that are not models, with a hint for each."""

# The order matters if one pattern is part of another; `sorted` keeps it among equals.
_OWN = [signature for spec in reversed(_SPECS) for signature in spec.signatures]
_OWN_KINDS = frozenset(signature.kind for signature in _OWN)
SIGNATURES: tuple[Signature, ...] = tuple(sorted((*_OWN, *_UNSUPPORTED), key=lambda signature: signature.late))
T7_HEAD = pattern(rb"[1-8]\r?\n|[\x01-\x08]\0{3}|\0{3}[\x01-\x08]")
"""The tag of a value other than nil, in ascii or in either byte order."""


def _is_usual_t7(head: bytes) -> bool:
    """Return whether a file begins as almost every `.t7`: with the tag of a value, in binary and little-endian.

    No other format does, except that TensorFlow Lite and tar have their signatures after bytes that may be these.
    """
    has_tag = len(head) >= 4 and 1 <= head[0] <= 8 and head[1:4] == bytes(3)
    return has_tag and not head.startswith(b"TFL3", 4) and not head.startswith(b"ustar", 257)


def identify(head: bytes, *, installed: bool = False) -> Signature | None:
    """Return the kind of a file by its first bytes.

    Args:
        head: the first `HEAD_BYTES` bytes.
        installed: whether to try the formats of installed packages, too, if none of ours matches; loading these
            packages takes time.

    Returns:
        `None` for a file without a signature, such as a `.t7`.
    """
    # To compile the patterns would take longer than to read a small file. `re` keeps those that were tried.
    if _is_usual_t7(head):
        return None
    known = next((signature for signature in SIGNATURES if re.match(signature.pattern, head, re.DOTALL)), None)
    if known is not None and known.kind in _OWN_KINDS:
        return known
    # Installed packages take time to load, so that a `.t7` is spared it. Their formats come before those that are only
    # known as unsupported.
    if not installed or not head or (known is None and T7_HEAD.match(head)):
        return known
    for spec in added_formats():
        for added in spec.signatures:
            if re.match(added.pattern, head, re.DOTALL):
                return added
    return known


def added_formats() -> list[FormatSpec]:
    """Return the formats of installed packages, which are loaded by the first call and in the tables from then on.

    One whose name or suffix a format of ours has is left out, with a `T7BridgeWarning`.
    """
    for name, module, spec in load_extensions(ADDED_FORMATS):  # which returns each only once
        fault = _fault_of(name, spec)
        if fault:
            warnings.warn(f"the format {name!r} of {module} is left out: {fault}", T7BridgeWarning, stacklevel=2)
            continue
        _ADDED[name] = FORMATS[name] = spec._replace(home=spec.home or module)
        SUFFIXES.update(dict.fromkeys(spec.suffixes, FORMATS[name]))
    return list(_ADDED.values())


def _fault_of(name: str, spec: Any) -> str:
    """Return why the format of an installed package cannot be in the tables; empty if it can.

    Args:
        name: of its entry point.
        spec: what the entry point refers to; anything, if the package is wrong.
    """
    if not isinstance(spec, FormatSpec):
        return "its entry point is not a FormatSpec"
    if spec.name != name:
        return f"its FormatSpec has another name, {spec.name!r}"
    for name_or_suffix in (name, *spec.suffixes):
        if name_or_suffix in FORMATS or name_or_suffix in SUFFIXES:
            return f"{name_or_suffix} is that of another format"
    return ""


def format_named(name: str) -> FormatSpec | None:
    """Return a format by its name, also one of an installed package; `None` if there is none."""
    if name not in FORMATS:
        added_formats()
    return FORMATS.get(name)


def format_of_suffix(suffix: str) -> FormatSpec | None:
    """Return a format by a suffix of its files, also one of an installed package; `None` if there is none."""
    if suffix not in SUFFIXES:
        added_formats()
    return SUFFIXES.get(suffix)


def module_of(spec: FormatSpec) -> Any:
    """Return the module of a format, with `read` and `write`."""
    if spec.name in _ADDED:
        return importlib.import_module(spec.home)
    return importlib.import_module(f".{spec.home}", __package__)


class Writable(tuple[str, ...]):
    """The names of the formats that are written; a name that is not ours is looked for in installed packages."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        spec = format_named(name) if isinstance(name, str) else None
        return spec is not None and bool(spec.suffixes)


WRITABLE = Writable(spec.name for spec in _SPECS if spec.suffixes)


def refuse_two_formats(source: ByteSource, start: int = 0, title: str = "") -> None:
    """Refuse a file that has another format for readers that look elsewhere in it.

    Readers of zip archives begin at the end of a file, and `torch.load` tries to read any file as a tar archive.

    Args:
        source: the file, whose format by its first bytes is neither zip nor tar.
        start: first byte that is not known to belong to the file's value.
        title: description of the format by its first bytes; by default unspecific.

    Raises:
        CorruptError: it is also a zip or tar archive.
    """
    other_format = ""
    if ends_as_zip(source, start):
        other_format = "a zip archive by its last"
    elif is_tar(source.read(0, HEAD_BYTES)):
        other_format = "a tar archive"
    if other_format:
        raise CorruptError(
            f"is {title or 'a model'} by its first bytes, and {other_format}",
            file=source.name,
            offset=start,
            expected="one file",
            found="two files in one; readers disagree about which",
            hint="Do not trust it: such files are made to deceive.",
        )


def is_tar(block: bytes) -> bool:
    """Return whether Python's `tarfile`, and so `torch.load`, reads the first 512 bytes of a file as a header.

    Source: CPython 3.11 `Lib/tarfile.py` `TarInfo.frombuf`; its signature is not checked there.
    """
    if len(block) < HEAD_BYTES:
        return False
    # The checksum is that of the header with 8 spaces in its own place, by signed or by unsigned bytes.
    first, stop = _TAR_CHECKSUM
    rest = block[:first] + block[stop:]
    unsigned_sum = 8 * ord(" ") + sum(rest)
    signed_sum = unsigned_sum - 256 * sum(byte > 127 for byte in rest)
    if _tar_number(block[first:stop]) not in (unsigned_sum, signed_sum):
        return False
    return all(_tar_number(block[first:stop]) is not None for first, stop in _TAR_NUMBERS)


_TAR_CHECKSUM = (148, 156)
"""First byte of the field in a header, and the byte after its last."""
_TAR_NUMBERS = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (329, 337), (337, 345))
"""The same of mode, owner, group, size, time, and the two numbers of a device."""


def _tar_number(field: bytes) -> int | None:
    """Return a number of a tar header as Python's `tarfile` reads it; `None` if it does not.

    It is written in octal digits, or after a byte with the highest bit in base 256, most significant byte first.
    """
    if field[0] == 0o200:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0o377:  # a negative one
        modulus = 1 << 8 * (len(field) - 1)
        return int.from_bytes(field[1:], "big") - modulus
    try:
        return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return None


def ends_as_zip(source: ByteSource, start: int = 0) -> bool:
    """Return whether a file is a zip archive for readers that begin at the end.

    Args:
        source: the file.
        start: first byte that may belong to the archive's directory.
    """
    tail_start = max(start, source.size - ZIP_TAIL_BYTES)
    tail = source.read(tail_start, ZIP_TAIL_BYTES)
    place = tail.rfind(_ZIP_END)
    while place >= 0:
        if _is_zip_end(source, tail_start, tail, place):
            return True
        place = tail.rfind(_ZIP_END, 0, place)
    return False


_ZIP_END, _ZIP_ENTRY, _ZIP64_LOCATOR = b"PK\x05\x06", b"PK\x01\x02", b"PK\x06\x07"
"""Signatures in a zip archive: of the end record, of an entry of the directory, and of what finds the zip64 record."""
_ZIP_END_RECORD = struct.Struct("<4s8xIIH")
"""The end record: signature, numbers of disks and entries, size and offset of the directory, length of the comment."""
_ZIP64_LOCATOR_BYTES = 20
"""Size of the locator, which is right before the end record."""


def _is_zip_end(source: ByteSource, tail_start: int, tail: bytes, place: int) -> bool:
    """Return whether a reader could take the end record at a place in the tail of a file for that of an archive.

    Args:
        source: the file.
        tail_start: offset of the tail in the file.
        tail: the last bytes of the file.
        place: of the signature of an end record, in the tail.
    """
    record_end = place + _ZIP_END_RECORD.size
    if record_end > len(tail):
        return False
    record_offset = tail_start + place
    _signature, directory_size, directory_offset, comment_length = _ZIP_END_RECORD.unpack_from(tail, place)
    # Some readers look for the directory where the record says, others right before the record.
    for directory in {record_offset - directory_size, directory_offset}:
        if directory >= 0 and source.read(directory, len(_ZIP_ENTRY)) == _ZIP_ENTRY:
            return True
    has_zip64_locator = tail[max(0, place - _ZIP64_LOCATOR_BYTES) : place].startswith(_ZIP64_LOCATOR)
    ends_the_file = record_end + comment_length == len(tail)
    # The directory would begin before the file: the archive may have lost its beginning.
    lacks_its_beginning = ends_the_file and record_offset < directory_size
    return has_zip64_locator or lacks_its_beginning
