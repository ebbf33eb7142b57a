"""HDF5 files: `structure` finds groups, data sets and attributes, `elements` reads chunks, `file` is the format."""
