"""The table of file formats: names, suffixes, signatures, and capabilities.

A new format is a row here and a module of this folder with two functions:

    def read(source, limits, **options) -> Document        bytes to values
    def write(output, value, **options) -> Written         values to bytes

Imports only data classes: the modules are loaded on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..data import define

LUA, PYTHON, NAMED = "lua", "python", "named"
"""Kinds of values of a format: Lua values; Python values with tensors in them; named tensors."""


@define(frozen=True)
class Signature:
    """A kind of file recognized by its first bytes.

    Attributes:
        kind: short name: `zip`, `pickle`, `tar`.
        title: description in messages.
        pattern: an expression that matches the first bytes; `.` is any byte.
        hint: advice if such a file is not supported.
        late: whether it is tried after all others, as its pattern is weak.
    """

    kind: str
    title: str
    pattern: bytes
    hint: str = ""
    late: bool = False


@define(frozen=True)
class FormatSpec:
    """A file format.

    Attributes:
        name: as in `--to`.
        title: description in messages.
        suffixes: of file names, that of outputs first; none for a read-only format.
        home: its module in `t7bridge.formats`, with `read` and `write`.
        values: `LUA`, `PYTHON` or `NAMED`.
        signatures: first bytes of its files; a `.t7` has none, and is the fallback.
        members: for a zip archive: whether one with these member names has this format. Of several matching formats the
            first in the table is chosen.
        folder: for folders: whether one with these file names has this format.
        links: whether two names may refer to one tensor.
        tree: whether names are nested, as groups; else a tensor's name is its path, joined by dots.
        elements: names of its element types; empty for all.
        fit: for formats of named tensors: a name as the format can hold it.
        text_bytes: size of a text in its metadata, in bytes.
        numbers: whether numbers, and lists of numbers, are tensors for its users, too.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    home: str
    values: str
    signatures: tuple[Signature, ...] = ()
    members: Callable[[Sequence[str]], bool] | None = None
    folder: Callable[[Sequence[str]], bool] | None = None
    links: bool = False
    tree: bool = False
    elements: frozenset[str] = frozenset()
    fit: Callable[[str], str] = str
    text_bytes: int = 1 << 24
    numbers: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of outputs; the name of a read-only format."""
        return self.suffixes[0] if self.suffixes else self.name


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
    return any(name.endswith(".npy") for name in names) and not any(
        name.rpartition("/")[2].lower() == "data.pkl" for name in names
    )


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
        members=lambda names: True,
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
        "distributed",
        "a folder of torch.distributed.checkpoint",
        (),
        "pt.distributed",
        PYTHON,
        folder=lambda names: ".metadata" in names,
        tree=True,
    ),
    FormatSpec(
        "shards",
        "a checkpoint in several files",
        (),
        "shards",
        NAMED,
        (Signature("index", "the index of a checkpoint", rb"\{\s*\"(?:metadata|weight_map)\"\s*:"),),
        folder=lambda names: any(name.endswith(".index.json") for name in names),
    ),
    FormatSpec(
        "ranks",
        "a folder with the files of all processes",
        (),
        "ranks",
        PYTHON,
        folder=lambda names: len(names) > 1 and all(name.endswith((".pt", ".pth", ".bin", ".ckpt")) for name in names),
        links=True,
        tree=True,
    ),
)

FORMATS: dict[str, FormatSpec] = {spec.name: spec for spec in _SPECS}
"""Every format by its name."""

SUFFIXES: dict[str, FormatSpec] = {suffix: spec for spec in _SPECS for suffix in spec.suffixes}
"""Every format by the suffixes of its files' names."""
