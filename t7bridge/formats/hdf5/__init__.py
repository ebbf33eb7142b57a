"""HDF5 files: `file` is the format; h5py reads them in the process `child`, whose other end is `library`."""

LARGEST_READ = 1 << 22
"""Bytes of a file that the child asks for, and the parent reads, at once."""
