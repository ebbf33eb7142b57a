"""Bytes that stay where they are: random access to files, and output that appears whole or not at all.

Knows no format. Imports only `errors`.
"""
