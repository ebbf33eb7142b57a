"""PyTorch's serialization ↔ the graph. Knows nothing of Lua's bytes or of what a layer means.

`zip_writer` and `pickle_out` write the parts of today's layout, `writer` puts them together.
"""
