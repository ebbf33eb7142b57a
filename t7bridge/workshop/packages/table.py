"""The Lua packages that have a folder here, by the prefixes of their classes."""

from __future__ import annotations

import importlib

from ...extensions import LAYERS, load_extensions

PREFIXES = {
    "bnn.": ("bnn",),
    "ccn2.": ("ccn2",),
    "inn.": ("inn",),
    # Packages that add classes to nn. Which of them has a class is known once all are loaded: a
    # name that nn has not is rare.
    "nn.": ("bnn", "crnn", "deepmask", "inn", "language", "nnx", "style"),
    "onmt.": ("onmt",),
    "pt.": ("pt",),
    "w2nn.": ("w2nn",),
}
"""The folders that may have classes with a prefix."""
_PACKAGES_WITHOUT_LAYERS = {"graph", "nngraph", "tds", "torch"}
"""What classes of Lua's own packages begin with that are no layers: nodes, edges, tensors, tables."""
_imported: set[str] = set()
"""The prefixes whose folders are imported as a whole, also if another thread began with them."""


def load_packages(class_name: str = "", installed: bool = True) -> None:
    """Import the entries of the packages that may have a class.

    Args:
        class_name: its full name in Lua; empty for all packages with a folder here, and no others.
        installed: whether entries of the class's package are also looked for in what the user has installed.
    """
    for prefix, names in PREFIXES.items():
        may_have_class = class_name.startswith(prefix) or not class_name
        if prefix in _imported or not may_have_class:
            continue
        for name in names:
            importlib.import_module(f"{__package__}.{name}")
        _imported.add(
            prefix
        )  # only now: another thread that finds it there needs all entries
    package = class_name.partition(".")[0]  # of `nn.Linear`, `nn`
    if package and installed and package not in _PACKAGES_WITHOUT_LAYERS:
        load_extensions(LAYERS, package)
