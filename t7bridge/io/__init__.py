"""Random access to the bytes of files without loading them, and output that appears whole or not at all.

Knows no format. Imports only `errors`.
"""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "copy": "Buffer Change Extent NO_CHANGE reversal combine crc32",
        "output": "FileOutput Output",
        "platform": "MemoryWatch",
        "source": "ByteSource inputs_protected",
    },
)
