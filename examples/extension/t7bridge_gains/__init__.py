"""Example of a package that adds a file format, a Lua class and an operation of PyTorch to t7bridge."""
