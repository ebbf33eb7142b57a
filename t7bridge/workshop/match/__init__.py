"""Mapping the keys of one state dict to another model's, by structure, order and shape.

`sides` opens files, calls factories and reads graphs, `parts` cuts state dicts into parts and determines which look
alike, `pairing` pairs them, `matching` combines these with the user's mapping, `result` is what follows, `libraries`
knows the models of torchvision and timm, whose signatures `cache` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .cache import cached_names as cached_names
    from .matching import match as match
    from .result import KnownModel as KnownModel
    from .result import Match as Match
    from .result import WriteMatch as WriteMatch
    from .result import write_match as write_match

__getattr__ = face(
    __name__,
    {
        "cache": "cached_names",
        "matching": "match",
        "result": "KnownModel Match WriteMatch write_match",
    },
)
