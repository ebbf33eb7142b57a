"""SECURITY.md agrees with the code."""

from __future__ import annotations

import re

from helpers import ROOT

from t7bridge import Limits
from t7bridge.cli import VERBS

PAGE = (ROOT / "SECURITY.md").read_text()


def test_limits_are_those_of_the_code():
    """The table of limits has all of them, in order, with their defaults."""
    rows = re.findall(r"^\| `(\w+)` \| ([\d ]+) \|", PAGE, re.MULTILINE)
    assert [(name, int(value.replace(" ", ""))) for name, value in rows] == list(Limits._field_defaults.items())


def test_named_files_exist():
    """Every test and file that the page names is there."""
    names = re.findall(r"`((?:tests|fuzz|testfiles|pt)/[\w/.*]*)`", PAGE)
    assert len(names) > 10
    for name in names:
        folder = ROOT / "t7bridge" if name.startswith("pt/") else ROOT
        assert list(folder.glob(name.rstrip("/"))), name


def test_every_verb_has_its_promise():
    """The table of verbs has each verb of the command line once, with what is promised and the tests of that."""
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z].+?\.) \| (.+) \|$", PAGE, re.MULTILINE)
    assert sorted(verb for verb, _, _ in rows) == sorted(VERBS)
    for verb, promise, tests in rows:
        assert len(promise) > 10, verb
        assert re.fullmatch(r"(?:`(?:tests|fuzz)/[\w/.*]+`(?:, )?)+", tests), (verb, tests)
