"""PyTorch's serialization ↔ the graph. Knows nothing of Lua's bytes or of the meaning of layers.

`zip/archive_writer` and `pickle/pickler` write the parts of today's layout, `writer` combines them.
"""
