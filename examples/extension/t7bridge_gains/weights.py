"""The format `.weights`: a signature, the length of the header, a header in JSON, and the elements in its order."""

import json
import re

from t7bridge.errors import CorruptError
from t7bridge.formats import (
    ELEMENT_TYPES,
    Document,
    FormatSpec,
    NamedTensors,
    Signature,
    Written,
    content,
    dotted,
    tensor_of_bytes,
)

MAGIC = b"WEIGHTS1"
FORMAT = FormatSpec(
    "weights",
    "a file of plain weights",
    (".weights",),
    signatures=(Signature("weights", "a file of plain weights", re.escape(MAGIC)),),
    elements=frozenset({"float32", "float64", "int64"}),
    text_bytes=0,
)


def read(source, limits):
    """Return the document; its tensors stay in the file until they are used."""
    length = int.from_bytes(source.read_exact(8, 8, "the length of the header"), "little")
    if length > limits.header_bytes:
        raise limits.exceeded("header_bytes", "the header is too long", found=f"{length} bytes")
    try:
        header = json.loads(source.read_exact(16, length, "the header"))
        rows = [(str(name), ELEMENT_TYPES[kind], [int(size) for size in shape]) for name, kind, shape in header]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptError("the header is not a list of name, type and shape", offset=16) from error
    tensors = {}
    start = 16 + length
    for name, element, shape in rows:
        nbytes = element.itemsize
        for size in shape:
            if size < 0:
                raise CorruptError("a size is negative", offset=16, path=name)
            nbytes *= size
        if start + nbytes > source.size:
            raise CorruptError("a tensor is longer than the file", offset=16, path=name)
        tensors[name] = tensor_of_bytes(source, start, nbytes, element, shape, path=name, limits=limits)
        start += nbytes
    return Document("weights", source, lambda: [tensors])


def write(output, value):
    """Write named tensors; their bytes are copied from file to file."""
    named = NamedTensors.of(value)
    tensors = dotted(named.tensors)
    header = json.dumps([[name, tensor.element.name, list(tensor.shape)] for name, tensor in tensors.items()]).encode()
    output.write(MAGIC + len(header).to_bytes(8, "little") + header)
    for tensor in tensors.values():
        output.append(content(tensor))
    output.flush()
    return Written(len(tensors), named.storages)
