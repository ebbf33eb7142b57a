"""Mapping the keys of one state dict to another model's, by structure, order and shape.

`sides` opens files, `parts` cuts state dicts into modules and determines which look alike, `align` pairs them, `gates`
knows the order of recurrent gates, `matching` combines these with the user's mapping, `result` is what follows.
"""

from .align import longest_rising
from .gates import gate_orders
from .matching import match
from .result import Ambiguity, Match, Pair, WriteMatch, write_match

__all__ = ["Ambiguity", "Match", "Pair", "WriteMatch", "gate_orders", "longest_rising", "match", "write_match"]
