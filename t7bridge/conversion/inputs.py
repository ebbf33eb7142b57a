"""Example inputs of models, as every `--input` and every `input=` takes them.

1x3x224x224               one tensor, its batch first
1x20:int64                of a type
1x20:int64:1..5000        of whole numbers in a range, both ends included
image=1x3x224x224         with a name
[1x4,[1x4,hidden=1x8]]    a table of tensors, or of tables
in.npz  batch=in.t7       the tensor, or the tensors, in a file of any format
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import Any

from attrs import evolve

from .. import formats
from ..data import pattern
from ..errors import ModelError, about_file
from ..graph.lua import Table
from ..graph.tensor import Tensor
from ..io.source import is_address
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..nn.output_shapes import Example, Examples

Inputs = str | Sequence[int] | Sequence[str | os.PathLike[str] | Sequence[int]]
"""Inputs as users state them: one shape, as integers or text; or texts, one for each input."""

_SHAPE = pattern(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:[xX×,]\d+)*)"
    r"(?::(?P<dtype>[A-Za-z]\w*))?(?::(?P<low>-?\d{1,18})\.\.(?P<high>-?\d{1,18}))?\Z",
    re.ASCII,
)
"""`image=1x20:int64:1..99`: only the sizes have to be there."""
_NAME = pattern(r"([A-Za-z_]\w*)=(.+)", re.ASCII | re.DOTALL)
"""`image=in.t7`: a name, and the rest."""
_FILE = pattern(r"[^:]*[^:.]\.[A-Za-z]\w*\Z", re.ASCII)
"""`in.t7`: the name of a file with a suffix."""
_SHAPE_IN_TABLE = pattern(r"[^\[\],]*[^\[\],\s][^\[\],]*")
"""A shape between brackets and commas."""
_MOST_LETTERS = 60
"""Letters of an input that an error shows."""
_LONGEST_SHAPE = 400
"""Letters of the longest text that is read as a shape: Python refuses to read numbers of thousands of digits."""
_DEEPEST = 32
"""Levels of tables in tables: far more than any model takes."""
_MOST_ITEMS = 100_000
"""Maximum number of tensors in one table of a file."""
_WORK_PER_VALUE = 10
"""Steps of `Limits.work` that each value of a file takes, after those of the largest table."""
_MOST_ELEMENTS = 1 << 40
"""Maximum number of elements of a shape: more than any machine holds."""
_MOST_REPEATED_ELEMENTS = 1 << 22
"""Maximum number of elements of a tensor of a file whose storage has fewer."""
EXPECTED = "1x3x224x224, image=1x3x224x224, 1x20:int64, [1x4,1x4] for a table, or a file such as in.t7"


def parse_inputs(inputs: Inputs, *, limits: Limits = DEFAULT_LIMITS) -> Examples:
    """Return the example inputs of a model: one, or a list for a table, each with a name.

    Args:
        inputs: one input: a text or path (the forms are in the module's docstring), or a shape as a sequence of
            integers. Or a sequence of these, one for each element of the table that the model takes.
        limits: resource limits, for files.

    Raises:
        ModelError: a text is not an input, two inputs have one name, or a file holds no tensor.
        MissingFileError: a text is the name of a missing file.
        FormatError: a file is damaged.
    """
    stated: list[Any] = [inputs]
    if isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes)):
        items = list(inputs)
        stated = [items] if _sizes_of(items) else items
    texts = [_text_of(item) for item in stated]
    if not texts:
        raise ModelError("no input is given", expected=EXPECTED)
    examples = [_input_of(text, limits) for text in texts]
    tree = _with_names(examples[0] if len(examples) == 1 else examples, "input")
    names = [leaf.name for leaf in leaves(tree)]
    if not names:
        raise ModelError("the input is an empty table", expected=EXPECTED)
    if len(set(names)) < len(names):
        raise ModelError("two inputs have one name", found=max(names, key=names.count)[:_MOST_LETTERS])
    return tree


def leaves(tree: Examples) -> Iterator[Example]:
    """Yield the tensors of an input, in order."""
    if isinstance(tree, Example):
        yield tree
    else:
        for part in tree:
            yield from leaves(part)


def _text_of(value: Any) -> str:
    """Return a shape of integers as text, `1x4`, and a text or path as it is.

    Raises:
        ModelError: it is none of these.
    """
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    sizes = _sizes_of(value)
    if not sizes:
        raise ModelError("an input is not a shape", found=repr(value)[:_MOST_LETTERS], expected=EXPECTED)
    return "x".join(map(str, sizes))


def _sizes_of(value: Any) -> list[int]:
    """Return the integers of a shape, Python's or numpy's, as Python's; none for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        return []
    try:
        return [index(size) for size in value]
    except TypeError:  # also for an array of several numbers, though it has `__index__`
        return []


def _input_of(text: str, limits: Limits) -> Examples:
    """Return the input that a text describes: a table in brackets, a shape, or the name of a file.

    Raises:
        ModelError: it is none of these, or the file holds no tensor.
        MissingFileError: it looks like the name of a file that is missing.
    """
    if text.lstrip().startswith("["):
        return _from_brackets(text)
    if _SHAPE.match(text.strip()):
        return _from_shape(text)
    # A file may have a name such as `a=b.t7`: the whole text comes first.
    name = ""
    path = text
    match = _NAME.match(text)
    if match is not None and not _exists(text):
        name, path = match.groups()
    # A missing file is reported as such where the text looks like the name of one.
    if _exists(path) or os.path.sep in text or _FILE.match(path):
        return _from_file(name, path, limits)
    return _from_shape(text)


def _exists(path: str) -> bool:
    """Return whether there is such a file; of an address it is assumed, as its server would have to be asked."""
    return os.path.exists(path) or is_address(path)


def _from_shape(text: str) -> Example:
    """Return the input that a shape describes, with its name, type and range if it has them.

    Raises:
        ModelError: the text is not a shape, or the range is empty.
    """
    match = _SHAPE.match(text.strip())
    shape: tuple[int, ...] = ()
    if match is not None and len(match["shape"]) < _LONGEST_SHAPE:
        shape = tuple(map(int, re.split("[xX×,]", match["shape"])))
    has_zero = not all(shape)
    if match is None or not shape or has_zero or math.prod(shape) > _MOST_ELEMENTS:
        raise ModelError("an input is not a shape", found=repr(text[:_MOST_LETTERS]), expected=EXPECTED)
    bounds = (int(match["low"]), int(match["high"])) if match["low"] else None
    if bounds and bounds[0] > bounds[1]:
        raise ModelError(
            "the range of an input is empty", found=repr(text[:_MOST_LETTERS]), expected="the smaller number first"
        )
    return Example(match["name"] or "", shape, match["dtype"] or "", bounds)


def _from_brackets(text: str) -> Examples:
    """Return the table that brackets enclose, `[1x4,[1x4,1x8]]`: with quotes around the shapes it is JSON.

    Raises:
        ModelError: the brackets do not fit, or are nested too deeply.
    """
    as_json = _SHAPE_IN_TABLE.sub(lambda match: json.dumps(match[0]), text)
    try:
        return _table_of_parts(json.loads(as_json))
    except (json.JSONDecodeError, RecursionError):
        message = "the brackets of an input do not fit"
        raise ModelError(message, found=repr(text[:_MOST_LETTERS]), expected=EXPECTED) from None


def _table_of_parts(part: str | list[Any], depth: int = 0) -> Examples:
    """Return the input of a text between brackets, or of a list of such parts.

    Args:
        part: a shape as text, or a list of these.
        depth: levels of lists around it.

    Raises:
        ModelError: a text is not a shape.
        RecursionError: the lists are nested too deeply.
    """
    if isinstance(part, str):
        return _from_shape(part.strip())
    if depth == _DEEPEST:
        raise RecursionError  # as `json` does at its own limit
    return [_table_of_parts(item, depth + 1) for item in part]


def _from_file(name: str, path: str, limits: Limits) -> Examples:
    """Return the tensor in a file of any format, or its tensors: those of a table, or of names in their order.

    Args:
        name: of a single tensor, as the user stated it; empty for none.
        path: of the file.
        limits: resource limits.
    """
    document = formats.open(path, limits=limits)
    # Of the values of a `.t7` the first, as Lua's `torch.load` returns it.
    value = document.first if document.spec.values == formats.LUA else document.value
    budget = Budget(limits, "reading the tables of an input", free=_WORK_PER_VALUE * _MOST_ITEMS)
    with about_file(path):
        tree = _from_value(name="", value=value, budget=budget)
    if document.spec.values == formats.NAMED and isinstance(tree, list) and len(tree) == 1:
        tree = tree[0]  # the only tensor of a file that holds them by name
    if name and isinstance(tree, Example):
        return evolve(tree, name=name)
    return tree


def _from_value(name: str, value: Any, budget: Budget, depth: int = 0) -> Examples:
    """Return a value of a file as an input.

    Args:
        name: its own, if it is the entry of a dict.
        value: a tensor, or a table, list or dict of such.
        budget: spent by each value, as tables may be shared very often.
        depth: levels of tables around it.

    Raises:
        ModelError: it is neither.
    """
    budget.spend(_WORK_PER_VALUE)
    items: Sequence[Any] = ()
    keys: Sequence[Any] = ()
    if isinstance(value, Table):
        items = value.sequence() or ()
    elif isinstance(value, (list, tuple)):
        items = value
    elif isinstance(value, dict):
        items = list(value.values())
        keys = list(value)
    if items and depth < _DEEPEST and len(items) <= _MOST_ITEMS:
        names = [_name_of_key(key) for key in keys] if keys else [""] * len(items)
        return [_from_value(own_name, item, budget, depth + 1) for own_name, item in zip(names, items)]
    if isinstance(value, Tensor) and value.storage:
        # A tensor that repeats its elements, by strides of 0, may be larger than its file.
        most_elements = max(value.storage.count, _MOST_REPEATED_ELEMENTS)
        if 0 < value.numel <= most_elements:
            return Example(name, tuple(value.shape), value.element.name, value=value)
    raise ModelError("the file holds neither a tensor nor a table of tensors")


def _name_of_key(key: Any) -> str:
    """Return the key of a dict as the name of an input; empty if it cannot be one."""
    if isinstance(key, str) and key.isidentifier():
        return key
    return ""


def _with_names(tree: Examples, name: str) -> Examples:
    """Return an input with names for the tensors that have none: by number, `input2_1` for the first in the second."""
    if isinstance(tree, Example):
        return evolve(tree, name=tree.name or name)
    separator = "_" if name[-1].isdigit() else ""
    return [_with_names(part, f"{name}{separator}{number}") for number, part in enumerate(tree, 1)]
