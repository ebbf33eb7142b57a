"""Random access to the bytes of files without loading them, and output that appears whole or not at all.

Knows no format. Imports only `errors`.
"""
