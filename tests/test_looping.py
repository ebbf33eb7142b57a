"""The loop that replaces many parametrizations runs each case and hides no failure."""

from pathlib import Path

import pytest
from looping import for_each


def test_every_case_that_fails_is_named(tmp_path):
    """One failing case fails the test, by name; the others still run, each in a folder of its own."""
    seen = []

    @for_each("number", range(5))
    def check(number: int, tmp_path: Path) -> None:
        seen.append(tmp_path.name)
        assert number not in (1, 3), "odd"

    with pytest.raises(AssertionError, match=r"2 of 5 cases fail\n1: AssertionError: odd.*\n(.*\n)*3: AssertionError"):
        check(tmp_path=tmp_path)
    assert seen == ["0", "1", "2", "3", "4"]


def test_cases_are_listed_when_the_test_runs():
    """A function of cases is not called while tests are collected; no cases are an error then."""
    seen = []

    @for_each("number", lambda: seen or [7])
    def check(number: int) -> None:
        seen.append(number)

    @for_each("number", list)
    def nothing(number: int) -> None:
        """Never runs."""

    assert seen == []
    check()
    assert seen == [7]
    with pytest.raises(AssertionError, match="no cases"):
        nothing()


def test_no_cases_are_an_error():
    """A loop over nothing asserts nothing, so it is refused."""
    with pytest.raises(AssertionError, match="no cases"):
        for_each("value", [])
