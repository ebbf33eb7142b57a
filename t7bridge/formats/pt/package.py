"""Values in archives of `torch.package`. Their Python source is ignored, and nothing is executed.

`FOLDER/NAME.pkl` are pickles, `.data/KEY.storage` the storages that they name, `.data/extern_modules` and
`.data/python_version` describe how to import the archive. All else is source, text and bytes added by the user.

Source: PyTorch 2.13 `torch/package/package_exporter.py` (`save_pickle`, `_persistent_id`, `_finalize_zip`),
`package_importer.py` (`load_pickle`).
"""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedError
from ...report import Note
from .checkpoint import PACKAGE_FOLDER, PtArchive

_FACTS = ("version", "byteorder")
_SHOWN = 5


def read_package(archive: PtArchive, notes: list[Note]) -> Any:
    """Read the pickles of an archive.

    Args:
        archive: the archive.
        notes: receives what is left out.

    Returns:
        The value, if there is one pickle; otherwise a dictionary of values by the names of their members.

    Raises:
        UnsupportedError: it has no pickles.
        FormatError: a pickle is damaged.
    """
    names = [name[len(archive.root) :] for name in archive.zip.members if name.startswith(archive.root)]
    inside = [name for name in names if not name.startswith(PACKAGE_FOLDER) and name not in _FACTS]
    pickles = [name for name in inside if name.endswith(".pkl")]
    if not pickles:
        raise UnsupportedError(
            "is an archive of torch.package without pickled values",
            file=archive.zip.source.name,
            expected="a member .pkl",
            found=_few(inside) or "no members",
        )
    values = {name: archive.unpickle(name, PACKAGE_FOLDER) for name in pickles}
    rest = [name for name in inside if name not in values]
    if rest:
        count = f"{len(rest)} member{'s' * (len(rest) > 1)}"
        notes.append(
            Note(
                "info",
                "",
                f"{count} of the package (source and other files) left out ({_few(rest)})",
                code="left-out",
            )
        )
    located = archive.located
    unread = [name for name in names if name.endswith(".storage") and archive.root + name not in located]
    if unread:
        notes.append(
            Note(
                "warning",
                "",
                f"{len(unread)} storages that no pickle names are left out: {_few(unread)}",
                code="left-out",
                count=len(unread),
            )
        )
    return values if len(values) > 1 else next(iter(values.values()))


def _few(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
