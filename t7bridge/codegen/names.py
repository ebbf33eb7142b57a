"""Names of a file as names in Python source: normalized first, compared after that, and never one that is taken."""

from __future__ import annotations

import builtins
import keyword
import unicodedata

from ..nn.plan.names import is_free_name

MAX_NAME = 60
"""Characters of a name; a longer one of a file is not used."""
_OWN = "self torch nn F input inputs Tensor target Path Any Model load model weights path load_file from_pretrained"
TAKEN = frozenset((*dir(builtins), *_OWN.split()))
"""Names that a page uses for itself, and those of Python; no variable has one."""


def usable_name(name: str) -> str:
    """The name that a module or value of the source has after a name of the file; empty where it can have none.

    Python reads identifiers in the form NFKC, in which two names can become one.
    """
    if len(name) > MAX_NAME:
        return ""
    found = unicodedata.normalize("NFKC", name)
    return found if found.isidentifier() and len(found) <= MAX_NAME and not found.startswith("_") else ""


def free_variable(name: str, taken: frozenset[str] = frozenset()) -> bool:
    """Return whether a variable can have a name without hiding what the page means by it.

    Args:
        name: an identifier.
        taken: names of the classes of the page.
    """
    return not keyword.iskeyword(name) and name not in TAKEN and name not in taken


def free_attribute(name: str) -> bool:
    """Return whether a module can be an attribute of this name."""
    return is_free_name(name)
