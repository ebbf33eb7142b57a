"""HDF5 files: `file` is the format; h5py reads them in the process `child`, whose other end is `library`."""
