"""Write `t7bridge/formats/pt/pickle/weights_only.txt`: what the installed PyTorch's safe loader takes from a pickle.

Names are asked of `torch/_weights_only_unpickler.py` itself, and each operation is tried.

Run: python docs/generate_weights_only.py
"""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import _weights_only_unpickler as safe
from torch._utils import IMPORT_MAPPING, NAME_MAPPING
from torch.serialization import StorageType

TABLE = Path(__file__).resolve().parent.parent / "t7bridge/formats/pt/pickle/weights_only.txt"

_HEAD = """\
# What torch.load(weights_only=True) of PyTorch {release} takes from a pickle. Made by docs/generate_weights_only.py.
#
# name       a name that a pickle may hold, and its uses: "call" by REDUCE, "new" for its class by NEWOBJ
# operation  an operation that a pickle may have
# module     a module of Python 2, and the one of Python 3 in which its names are looked up
# attribute  an attribute of tensors that cannot be set
"""


def names() -> dict[str, Any]:
    """Return the values that the safe loader has for names."""
    return dict(safe._get_allowed_globals())


def constructed(known: dict[str, Any]) -> set[str]:
    """Return the names of classes of which an object can be made: on a machine without CUDA none of its tensors.

    `torch.device` needs an argument.
    """
    found: set[str] = set()
    for name, value in known.items():
        if not isinstance(value, type):
            continue
        try:
            value.__new__(value, *(["cpu"] if value is torch.device else []))
        except TypeError:
            continue
        found.add(name)
    return found


def operations() -> set[str]:
    """Return the names of the operations that the safe loader does not refuse as such."""
    by_code = {
        value[0]: name for name, value in vars(pickle).items() if name.isupper() and isinstance(value, bytes) and value
    }
    known: set[str] = set()
    for code in range(256):
        try:
            safe.load(io.BytesIO(bytes([code])), encoding="utf-8")
        except Exception as error:
            if str(error) == f"Unsupported operand {code}":
                continue
        known.add(by_code[code])
    return known


def modules(known: dict[str, Any]) -> dict[str, str]:
    """Return the modules of which the safe loader takes the names for those of others that it knows."""
    starts = {name[:end] for name in known for end in range(len(name)) if name[end] == "."}
    if any(".".join(new) in known for new in NAME_MAPPING.values()):
        raise NotImplementedError("single names are renamed too: the table needs another kind of line")
    return {old: new for old, new in IMPORT_MAPPING.items() if new in starts}


def attributes() -> list[str]:
    """Return the attributes of tensors that PyTorch does not let be anything."""
    found: list[str] = []
    for name in dir(torch.Tensor):
        try:
            setattr(torch.ones(1), name, object())
        except Exception:
            found.append(name)
    return found


def text() -> str:
    """Return the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = names()
        new = constructed(known)
        lines = [_HEAD.format(release=".".join(torch.__version__.split(".")[:2]))]
        for name, value in sorted(known.items()):
            is_called = (
                name in new if isinstance(value, type) else callable(value) and not isinstance(value, StorageType)
            )
            lines.append(f"name {name}{' call' * is_called}{' new' * (name in new)}\n")
        lines += [f"operation {name}\n" for name in sorted(operations())]
        lines += [f"module {old} {new}\n" for old, new in sorted(modules(known).items())]
        lines += [f"attribute {name}\n" for name in attributes()]
        return "".join(lines)


if __name__ == "__main__":
    TABLE.write_text(text(), "ascii")
