"""Numbers, strings, tables and tensors as Lua source; and the wrapping of long lines of Lua."""

from __future__ import annotations

import re
import textwrap
from itertools import pairwise
from math import copysign
from typing import Any

from ...data import np

WIDTH = 100
"""Columns of a line."""


def lua_string(text: str) -> str:
    """Return text as a Lua string literal; special characters are escaped byte by byte."""
    escaped = ""
    for byte in text.encode("utf-8", "surrogatepass"):
        char = chr(byte)
        is_plain = (char.isalnum() and byte < 128) or char in "._-/ :"
        escaped += char if is_plain else f"\\{byte:03d}"
    return f"'{escaped}'"


def lua_text(value: Any) -> str:
    """Return an argument of a constructor as Lua source.

    Args:
        value: `None`, a boolean, a string, a number, a tuple of these, a tuple of pairs of a name and a value, or an
            array, for a tensor.
    """
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return lua_string(value)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, tuple):
        is_of_pairs = bool(value) and isinstance(value[0], tuple)
        if is_of_pairs:
            items = [f"{name} = {lua_text(item)}" for name, item in value]
        else:
            items = [lua_text(item) for item in value]
        return "{" + ", ".join(items) + "}"
    return _tensor(value)


def _number(value: float) -> str:
    """Return a number as Lua source; NaN and infinities, which have no literals, as expressions."""
    if value != value:
        return "0/0"
    if value in (float("inf"), float("-inf")):
        return "math.huge" if value > 0 else "-math.huge"
    if value == 0 and copysign(1, value) < 0:
        return "-0"
    is_exact = abs(value) < 2**53  # as a double, Lua's only number
    if float(value).is_integer() and is_exact:
        return str(int(value))
    return repr(float(value))


def _tensor(array: Any) -> str:
    """Return an array as Lua source of a tensor: filled if all elements are equal, else listed with repetitions.

    `numbers`, a function of the source, makes a tensor of a list of sizes and a text of elements, `0.5 1*3`.

    Args:
        array: of floats or doubles, with one dimension and one element at least.
    """
    sizes = ", ".join(map(str, array.shape))
    flat = array.reshape(-1)
    first, *others = _runs(flat)
    if not others:
        return f"torch.Tensor({sizes}):fill({_number(float(flat[0]))})"
    text = " ".join([first, *others])
    if len(text) <= WIDTH // 2:  # leaves place for the call around it
        return f"numbers({{{sizes}}}, '{text}')"
    lines = textwrap.fill(text, WIDTH, break_on_hyphens=False)  # hyphens are minus signs
    return f"numbers({{{sizes}}}, [[\n{lines}]])"


def _runs(flat: Any) -> list[str]:
    """Return the runs of equal elements of a vector of floats or doubles, as `numbers` reads them: `0.5`, `1*3`."""
    is_float32 = flat.dtype.itemsize == 4
    bits = flat.view(f"u{flat.dtype.itemsize}")  # which differ for 0 and -0
    starts = [0, *np.flatnonzero(bits[1:] != bits[:-1]) + 1]
    texts = []
    for start, end in pairwise([*starts, len(flat)]):
        value = float(flat[start])
        number = f"{value:.9g}" if is_float32 else repr(value)  # 9 digits tell all floats apart
        count = end - start
        texts.append(number if count == 1 else f"{number}*{count}")
    return texts


def wrapped(source: str) -> str:
    """Return source whose lines are not too long, where they can be broken."""
    return re.sub(f".{{{WIDTH + 1},}}", lambda line: _wrapped_line(line[0]), source)


def _wrapped_line(line: str) -> str:
    """Return a line as several, those after the first indented by two levels more.

    A line stays too long where there is no comma to break it at.
    """
    rest = line
    indent = " " * (len(line) - len(line.lstrip()) + 6)
    lines = []
    while len(rest) > WIDTH:
        end = _end_of_first_line(rest)
        if end is None:
            break
        lines.append(rest[:end])
        rest = indent + rest[end:].lstrip()
    return "\n".join([*lines, rest])


def _end_of_first_line(line: str) -> int | None:
    """Return the column at which a long line is broken: behind the last of its outermost commas, if one of these fits.

    `None` if no comma fits in the width.
    """
    # Commas beyond the width may be further out than those that fit; twice the width is far enough to see.
    commas, last_bracket = _commas_and_brackets(line[: 2 * WIDTH])
    fitting = [(depth, end) for depth, end in commas if end <= WIDTH]
    if not fitting:
        return None
    outermost = min(depth for depth, _ in commas)
    outermost_fitting = min(depth for depth, _ in fitting)
    last_comma = max(end for depth, end in fitting if depth == outermost_fitting)
    if outermost < outermost_fitting:
        # None of the outermost commas fits. Better than at a comma further inside is behind the bracket that opens
        # their list, if it is in this line.
        return last_bracket.get(outermost, last_comma)
    return last_comma


def _commas_and_brackets(line: str) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Return the commas of a line, and the opening brackets up to the width, without those in strings.

    Returns:
        For each comma its depth, the number of brackets of the line around it, and the column behind it; and depth →
        the column behind the last bracket that opens it. Depths are below 0 behind brackets that close others.
    """
    depth = 0
    commas: list[tuple[int, int]] = []
    last_bracket: dict[int, int] = {}
    for match in re.finditer(r"'[^']*'|[(){},]", line):
        token = match[0]
        if token == ",":
            commas.append((depth, match.end()))
        elif token in ("(", "{"):
            depth += 1
            if match.end() <= WIDTH:
                last_bracket[depth] = match.end()
        elif token in (")", "}"):
            depth -= 1
    return commas, last_bracket
