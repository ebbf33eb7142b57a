"""Lua Torch's serialization ↔ the graph. Knows nothing of the meaning of layers.

`layout` holds the tables, `binary` and `text` the primitives of the two encodings, `reader` and `writer` the objects,
`registry` the classes whose objects have a layout of their own.
"""
