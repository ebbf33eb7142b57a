"""Mapping the keys of one state dict to another model's, by structure, order and shape.

`parts` cuts state dicts into modules, `classes` determines which modules look alike, `stretches` and `align` pair them,
`sides` opens files, `mapping` reads the user's pairs, `matcher` combines the results.
"""

from .matcher import match
from .result import Ambiguity, Match, Pair

__all__ = ["Ambiguity", "Match", "Pair", "match"]
