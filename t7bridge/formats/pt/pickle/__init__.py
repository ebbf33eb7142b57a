"""Pickles of any protocol, read without importing or calling anything, and written in protocol 2."""

from __future__ import annotations

from . import tensors as tensors  # registers the calls with a meaning, as `reductions` does
