"""The layers that PyTorch lacks, or computes differently from Lua.

Each needs torch and nothing else: what is here goes into the source of generated models
too. Dimensions count from 0, tables are lists, and a layer that took one example at a
time in Lua does so here too.
"""
