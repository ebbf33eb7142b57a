"""Example inputs as a user names them: shapes, lists of shapes in brackets, files of values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence

from ..errors import ModelError
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.example import Example, Examples
from .prove.prove import lua_value
from .prove.values import Recorded, is_whole, recorded

_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?\Z", re.ASCII)
_TOKEN = re.compile(r"\s*([\[\],]|[^\[\],]+)")
_DEEPEST = 32
"""Levels of tables in tables: far more than any model takes."""

EXPECTED = "1x3x224x224, image=1x3x224x224, 1x20:int64, [1x4,1x4] for a table, or a file such as in.t7"


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
    """Visit the tensors of an input, in order."""
    if isinstance(tree, Example):
        yield tree
    else:
        for each in tree:
            yield from leaves(each)


def _one(text: str, limits: Limits) -> Examples:
    if text.lstrip().startswith("["):
        return _brackets(text)
    if _INPUT.match(text) is None and (os.path.sep in text or os.path.exists(text)):
        value = recorded(lua_value(text, limits)[0])
        return _of_value(value if is_whole(value) else None, text)
    return _leaf(text)


def _leaf(text: str) -> Example:
    match = _INPUT.match(text.strip())
    shape = tuple(int(size) for size in match["shape"].split("x")) if match and len(match["shape"]) < 400 else ()
    if match is None or not shape or not all(shape) or math.prod(shape) > 1 << 40:
        raise ModelError("an input is not a shape", found=repr(text[:60]), expected=EXPECTED)
    return Example(match["name"] or "", shape, match["dtype"] or "")


def _brackets(text: str) -> Examples:
    levels: list[list[Examples]] = [[]]
    wants = True  # an element or a closing bracket, and not a comma
    end = 0
    for token in _TOKEN.finditer(text):
        end, part = token.end(), token[1].strip()
        if part == "[" and wants and len(levels) <= _DEEPEST and not (len(levels) == 1 and levels[0]):
            levels.append([])
        elif part == "]" and len(levels) > 1 and (not wants or not levels[-1]):
            made = levels.pop()
            levels[-1].append(made)
            wants = False
        elif part == "," and not wants and len(levels) > 1:
            wants = True
        elif part and part not in "[]," and wants and len(levels) > 1:
            levels[-1].append(_leaf(part))
            wants = False
        elif part:
            break
    else:
        if len(levels) == 1 and end == len(text.rstrip()):
            return levels[0][0]
    raise ModelError("the brackets of an input do not fit", found=repr(text[:60]), expected=EXPECTED)


def _of_value(value: Recorded, file: str) -> Examples:
    if isinstance(value, list):
        return [_of_value(each, file) for each in value]
    if isinstance(value, Tensor):
        return Example("", tuple(value.shape), value.element.name, value)
    raise ModelError("the file holds no tensor, and no table of tensors", file=file)


def _named(tree: Examples, name: str) -> Examples:
    if isinstance(tree, Example):
        return Example(tree.name or name, tree.shape, tree.dtype, tree.value)
    middle = "_" if name[-1].isdigit() else ""
    return [_named(each, f"{name}{middle}{number}") for number, each in enumerate(tree, 1)]
