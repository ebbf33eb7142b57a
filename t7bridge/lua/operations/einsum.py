"""Sums of products along named dimensions: einsum, tensordot."""

from __future__ import annotations

from typing import Any

from ..build import Builder, CannotError, LearnedTensor
from ..table import operation
from .linear import applied, flattened, product
from .reduction import reduced

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@operation("einsum.default", "nn.Transpose, nn.View, nn.MM, nn.Sum")
def einsum(b: Builder, equation: str, tensors: Any, path: Any = None) -> Any:
    """Multiply tensors along named dimensions, from left to right."""
    terms, result = _spelled(equation, tensors)
    if any(len(set(term)) != len(term) for term in terms):
        raise CannotError("einsum takes the diagonal of a tensor")
    values = [
        _alone(b, term, value, terms[:place] + terms[place + 1 :], result)
        for place, (term, value) in enumerate(zip(terms, tensors))
    ]
    letters, made = values[0]
    for place, (other, value) in enumerate(values[1:], 1):
        later = {letter for term, _ in values[place + 1 :] for letter in term} | set(result)
        letters, made = _pair(b, letters, made, other, value, later)
    return b.permute(b.wire(made), tuple(letters.index(letter) for letter in result))


def _spelled(equation: str, tensors: Any) -> tuple[list[str], str]:
    """Return the letters of each tensor and of the result, with `...` spelled out."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [letter for letter in LETTERS if letter not in equation]
    most = max((len(value.shape) - len(term) + 3 for term, value in zip(terms, tensors) if "..." in term), default=0)
    names = "".join(spare[:most])
    spelled = []
    for term, value in zip(terms, tensors):
        count = len(value.shape) - len(term) + 3
        spelled.append(term.replace("...", names[most - count :]) if "..." in term else term)
    if not arrow:
        once = sorted(letter for letter in set(left) - {",", "."} if left.count(letter) == 1)
        return spelled, names + "".join(once)
    return spelled, result.replace("...", names)


def _alone(b: Builder, term: str, value: Any, others: list[str], result: str) -> tuple[str, Any]:
    """Sum over the dimensions that are in neither another tensor nor the result."""
    places = [place for place, letter in enumerate(term) if letter not in result and letter not in "".join(others)]
    if not places:
        return term, value
    made = reduced(b, "nn.Sum", b.wire(value), places, False)
    return "".join(letter for place, letter in enumerate(term) if place not in places), made


def _pair(b: Builder, one: str, first: Any, two: str, second: Any, kept: set[str]) -> tuple[str, Any]:
    """Multiply two tensors; return the letters of the product, and the product."""
    extents = {**dict(zip(one, first.shape)), **dict(zip(two, second.shape))}
    batch = [letter for letter in one if letter in two and letter in kept]
    summed = [letter for letter in one if letter in two and letter not in kept]
    rows = [letter for letter in one if letter not in two]
    columns = [letter for letter in two if letter not in one]

    def arranged(value: Any, letters: str, wanted: list[str], groups: list[list[str]]) -> Any:
        moved = b.permute(value, tuple(letters.index(letter) for letter in wanted))
        return b.reshape(moved, tuple(flattened([extents[letter] for letter in group]) for group in groups))

    learned = isinstance(second, LearnedTensor) and not isinstance(first, LearnedTensor)
    if not batch and learned and len(summed) == 1 and len(columns) == 1:
        weight = second if two == columns[0] + summed[0] else b.permute(second, (1, 0))
        value = arranged(first, one, [*rows, *summed], [[letter] for letter in (*rows, *summed)])
        made: Any = applied(b, b.wire(value), weight, None)
    else:
        lead = [batch] if batch else []
        left = arranged(first, one, [*batch, *rows, *summed], [*lead, rows, summed])
        right = arranged(second, two, [*batch, *summed, *columns], [*lead, summed, columns])
        made = product(b, left, right)
    letters = [*batch, *rows, *columns]
    return "".join(letters), b.reshape(made, tuple(extents[letter] for letter in letters))


@operation("tensordot.default", "as einsum")
def tensordot(b: Builder, self: Any, other: Any, dims_self: Any, dims_other: Any) -> Any:
    """Multiply two tensors along pairs of dimensions."""
    one, two = list(LETTERS[: len(self.shape)]), list(LETTERS[: len(other.shape)].lower())
    for place, twin in zip(dims_self, dims_other):
        two[twin] = one[place]
    result = [letter for letter in one if letter not in two] + [letter for letter in two if letter not in one]
    return einsum(b, f"{''.join(one)},{''.join(two)}->{''.join(result)}", [self, other])
