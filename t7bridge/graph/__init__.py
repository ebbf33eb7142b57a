"""The ground floor: the content of a Lua Torch or PyTorch file as a graph of plain objects.

Knows no file format. Imports only `errors`, `limits`, `text` and `io` (a storage knows where its bytes are).
"""
