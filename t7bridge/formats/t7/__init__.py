"""Lua Torch's serialization ↔ the graph. Knows nothing of the meaning of layers.

`layout` holds the tables, `binary` and `text` the primitives of the two encodings, `reader` and `writer` the objects,
`runs` reads many that are alike, `releases_2010` the classes of old files, and `file` is the format.
"""
