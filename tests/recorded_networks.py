"""Records of random and published networks that Lua Torch ran, by their names."""

from __future__ import annotations

from functools import cache
from typing import Any

from fuzz_networks import records
from helpers import TESTFILES


@cache
def records_by_name(file: str) -> dict[str, dict[str, Any]]:
    """Return the records of a file of `testfiles/`, which is read once for all tests; none of them changes a record."""
    return {record["name"].decode(): record for record in records(TESTFILES / file)}
