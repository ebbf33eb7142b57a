"""Names of a file as names in Python source: normalized, then checked for collisions and reserved names."""

from __future__ import annotations

import builtins
import keyword
import unicodedata

from ..nn.graphs import is_free_name

MAX_NAME = 60
"""Maximum length of a name; a longer one of a file is not used."""
_OWN = "self torch nn F input inputs Tensor target Path Any Model load model weights path load_file from_pretrained"
TAKEN = frozenset((*dir(builtins), *_OWN.split()))
"""Names reserved by a page, and those of Python; no variable has one."""


def usable_name(name: str) -> str:
    """Return the Python name derived from a name of the file; empty if there is none.

    Python normalizes identifiers to NFKC, in which two names can become one.
    """
    if len(name) > MAX_NAME:
        return ""
    found = unicodedata.normalize("NFKC", name)
    return found if found.isidentifier() and len(found) <= MAX_NAME and not found.startswith("_") else ""


def free_variable(name: str, taken: frozenset[str] = frozenset()) -> bool:
    """Return whether a variable can have a name without shadowing another in the page.

    Args:
        name: an identifier.
        taken: names of the classes of the page.
    """
    return not keyword.iskeyword(name) and name not in TAKEN and name not in taken


def free_attribute(name: str) -> bool:
    """Return whether a module can be an attribute of this name."""
    return is_free_name(name)
