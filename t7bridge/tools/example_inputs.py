"""Example inputs as specified by users: shapes, lists of shapes in brackets, files of values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ..errors import ModelError
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.example import EXPECTED, Example, Examples, is_shape, parse_shapes
from .prove.prove import values_in
from .prove.values import Recorded


def parse_inputs(given: str | Sequence[int] | Sequence[str], *, limits: Limits = DEFAULT_LIMITS) -> Examples:
    """Read the example inputs of a model.

    Args:
        given: the shape of the one input, as integers or a text; or a list of texts, one for each element of the
            table that the model takes. A text is a shape with a name and a type as they are needed
            (`image=1x3x224x224`, `1x20:int64`), a table of such in brackets (`[1x4,[1x4,1x8]]`), or the path of a
            file that holds a tensor or a table of tensors.

    Raises:
        ModelError: a text is none of these, two inputs have one name, or a file holds no tensor.
        FormatError: a file is damaged.
    """
    if not isinstance(given, str) and all(isinstance(size, int) for size in given):
        given = "x".join(map(str, given))
    texts = [given] if isinstance(given, str) else [str(text) for text in given]
    if not texts:
        raise ModelError("no input is given", expected=EXPECTED)
    found = [_one(text, limits) for text in texts]
    tree = _named(found[0] if len(found) == 1 else found, "input")
    names = [leaf.name for leaf in leaves(tree)]
    if not names:
        raise ModelError("the input is an empty table", expected=EXPECTED)
    if len(set(names)) < len(names):
        raise ModelError("two inputs have one name", found=max(names, key=names.count)[:60])
    return tree


def leaves(tree: Examples) -> Iterator[Example]:
    """Yield the tensors of an input, in order."""
    if isinstance(tree, Example):
        yield tree
    else:
        for each in tree:
            yield from leaves(each)


def _one(text: str, limits: Limits) -> Examples:
    if not text.lstrip().startswith("[") and not is_shape(text) and (os.path.sep in text or os.path.exists(text)):
        return _of_value(values_in(text, limits), text)
    return parse_shapes(text)


def _of_value(value: Recorded, file: str) -> Examples:
    if isinstance(value, list):
        return [_of_value(each, file) for each in value]
    if isinstance(value, Tensor):
        return Example("", tuple(value.shape), value.element.name, value)
    raise ModelError("the file holds neither a tensor nor a table of tensors", file=file)


def _named(tree: Examples, name: str) -> Examples:
    if isinstance(tree, Example):
        return Example(tree.name or name, tree.shape, tree.dtype, tree.value)
    middle = "_" if name[-1].isdigit() else ""
    return [_named(each, f"{name}{middle}{number}") for number, each in enumerate(tree, 1)]
