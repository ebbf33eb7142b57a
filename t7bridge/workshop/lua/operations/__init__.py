"""The operations of the table, one file per family. Importing this module fills `build.OPERATIONS`."""

from . import complex, elementwise, image, linear, recurrent, shape

__all__ = ["complex", "elementwise", "image", "linear", "recurrent", "shape"]
