"""Comparison of a model's layers with the values that Lua Torch recorded in the same file."""
