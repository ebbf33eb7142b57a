"""The signatures of libraries in the user's cache folder. Most users have none, and load nothing else of this room."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...io.platform import cache_folder


def cached_names(tensors: Mapping[str, Any]) -> list[str]:
    """Return the models of libraries in the cache that have the layers of a state dict, by the newest release of each.

    Args:
        tensors: of the state dict, by key.
    """
    folder = cache_folder()
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
        paths.sort(key=os.path.getmtime, reverse=True)
    except OSError:
        return []
    if not paths:
        return []
    from .libraries import names_among

    return names_among(paths, tensors)
