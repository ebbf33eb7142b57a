"""Whose key is whose: a state dict under the keys of another model, found by structure, order and shape.

`parts` cuts state dicts into modules, `classes` says which modules look alike, `stretches` and `align` find which is
which, `sides` opens files, `mapping` reads what the user settles, `matcher` puts the answer together.
"""

from .matcher import match
from .result import Ambiguity, Match, Pair

__all__ = ["Ambiguity", "Match", "Pair", "match"]
