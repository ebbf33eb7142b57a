"""The meaning of Lua's layers: weights to and from state dicts, and plans of modules.

May import graph, errors, limits and report. Knows neither formats nor PyTorch.
"""

from . import layers as layers
