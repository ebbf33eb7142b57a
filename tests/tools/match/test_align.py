"""The parts of the alignment of two sequences, against brute force."""

from __future__ import annotations

import itertools
import random

from t7bridge.tools import longest_rising


def test_longest_rising_subsequence() -> None:
    """The places found rise in value, and no more places do."""
    draw = random.Random(5)
    for length in range(9):
        for _ in range(20):
            numbers = draw.sample(range(30), length)
            found = sorted(longest_rising(numbers))
            most = max(
                size
                for size in range(length + 1)
                for places in itertools.combinations(numbers, size)
                if list(places) == sorted(places)
            )
            chosen = [numbers[place] for place in found]
            assert chosen == sorted(chosen)
            assert len(found) == most, numbers
