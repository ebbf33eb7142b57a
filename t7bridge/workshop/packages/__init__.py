"""Lua packages beyond nn, nngraph, rnn, dpnn and cudnn, and layers of published models, one folder a package.

A folder's `__init__` has the entries, read without PyTorch; its `modules` has the PyTorch classes that only these need.
Both import `t7bridge.layers` and nothing else of t7bridge, as the entries of a user's own package do.
"""

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .table import load_packages as load_packages

__getattr__ = face(__name__, {"table": "load_packages"})
