"""The layers that PyTorch lacks, or computes differently from Lua.

Each needs only torch: the source of these layers is copied into generated models.
Dimensions count from 0, tables are lists, and a layer that accepts a single example in
Lua does so here too.
"""
