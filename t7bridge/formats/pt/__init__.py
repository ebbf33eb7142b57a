"""PyTorch's serialization ↔ the graph. Knows nothing of Lua's bytes or of the meaning of layers.

`zip` and `pickle` read and write the parts of today's layout; `archive` and `writer` combine them.
"""
