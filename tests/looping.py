"""Loops over many like cases inside one test, instead of thousands of parametrizations that differ in nothing."""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

_SHOWN = 20


def for_each(
    names: str | tuple[str, ...],
    values: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    ids: Callable[[Any], str] = str,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test for every value, as `pytest.mark.parametrize` does, in one loop that names all cases that fail.

    A `tmp_path` is a new folder for each case, removed when the case has passed. Functions of `pytest.mark.parametrize`
    and other fixtures work as before, except that fixtures are set up once.

    Args:
        names: the argument, or several.
        values: a value for each case, or a tuple of values where there are several names; or a function that returns
            them, which is called when the test runs: for cases that are read from a file.
        ids: name of a value, for the message.
    """
    names = (names,) if isinstance(names, str) else names

    def listed() -> list[Any]:
        found = [value if len(names) > 1 else (value,) for value in (values() if callable(values) else values)]
        assert found, "a loop over no cases asserts nothing"
        return found

    known = None if callable(values) else listed()

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def looped(**fixtures: Any) -> None:
            cases = known if known is not None else listed()
            failed: list[tuple[str, BaseException]] = []
            folder: Path | None = fixtures.get("tmp_path")
            for number, case in enumerate(cases):
                if folder is not None:
                    fixtures["tmp_path"] = folder / str(number)
                    fixtures["tmp_path"].mkdir()
                try:
                    test(**dict(zip(names, case)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((", ".join(ids(value) for value in case), error))
                else:
                    if folder is not None:
                        shutil.rmtree(fixtures["tmp_path"])
            if failed:
                lines = [f"{name}: {type(error).__name__}: {error}" for name, error in failed[:_SHOWN]]
                raise AssertionError(f"{len(failed)} of {len(cases)} cases fail\n" + "\n".join(lines)) from failed[0][1]

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
        looped.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return looped

    return decorate
