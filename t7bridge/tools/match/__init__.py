"""Mapping the keys of one state dict to another model's, by structure, order and shape.

`sides` opens files and reads graphs, `parts` cuts state dicts into modules and determines which look alike, `align`
pairs them, `matching` combines these with the user's mapping, `result` is what follows.
"""

from .align import longest_rising
from .matching import match
from .result import Ambiguity, Match, Pair, WriteMatch, write_match
from .sides import gate_orders

__all__ = ["Ambiguity", "Match", "Pair", "WriteMatch", "gate_orders", "longest_rising", "match", "write_match"]
