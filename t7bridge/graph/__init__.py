"""The ground floor: what a Lua Torch or PyTorch file can hold, as a graph of plain objects.

Knows no file format. Imports only `errors`, `limits` and `binio` (a storage knows where its bytes are).
"""
