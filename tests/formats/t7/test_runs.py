"""Long tables of things that are alike: what is read at once is what Lua wrote, and errors are those of one by one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from helpers import LAYOUTS, TESTFILES, description, read, stated, written

import t7bridge
from t7bridge import Limits, T7Reader
from t7bridge.errors import FormatError, LimitError
from t7bridge.formats import Alike
from t7bridge.formats.t7 import reader as reading

RUNS = TESTFILES / "runs.t7"


@pytest.fixture(autouse=True)
def runs_from_the_start(monkeypatch):
    """Runs are read at once in small files, too."""
    monkeypatch.setattr(reading, "_FEW_OBJECTS", 0)


def outcome(data: bytes, limits: Limits | None = None) -> Any:
    """Return the result of reading: the description, or the error with all its parts."""
    try:
        reader = T7Reader(data, limits=limits) if limits else T7Reader(data)
        return description(reader.read_object())
    except (FormatError, LimitError) as error:
        return type(error).__name__, error.message, error.offset, error.path, error.expected, error.found


def test_values_are_those_that_lua_saw():
    """Records, arrays and tensors, with all that breaks a run, are described as Lua describes them."""
    assert t7bridge.describe(RUNS) == json.loads(RUNS.with_suffix(".json").read_text())


@pytest.mark.parametrize("name", ["little8", "big8", "little4", "big4"])
def test_every_binary_layout(name):
    """Byte order and the size of `long` are respected, and the same bytes come back."""
    layout = LAYOUTS[name]
    value = read(RUNS)
    data = written(value, layout)
    assert description(read(data, **stated(layout))) == description(value)
    assert written(read(data, **stated(layout)), layout) == data


def test_runs_are_really_read_at_once(monkeypatch):
    """Most of the objects do not go through the object reader one by one."""
    opened = []
    original = reading.ObjectReader._open
    monkeypatch.setattr(reading.ObjectReader, "_open", lambda self, tag: opened.append(tag) or original(self, tag))
    reader = T7Reader(RUNS)
    reader.read_object()
    assert len(opened) < len(list(reader.objects)) / 4


@pytest.mark.slow
def test_damage_gives_the_error_of_one_by_one(monkeypatch):
    """Cut anywhere, or with any byte changed, the result or error is that of reading without runs."""
    data = RUNS.read_bytes()
    rng = random.Random(7)
    damaged = [data[: rng.randrange(len(data))] for _ in range(60)]
    for _ in range(140):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] = rng.choice((0, 1, 2, 3, 4, 127, 255))
        damaged.append(bytes(changed))
    at_once = [outcome(each) for each in damaged]
    monkeypatch.setattr(Alike, "read", lambda *arguments: None)
    assert [outcome(each) for each in damaged] == at_once


@pytest.mark.parametrize("objects", [1, 2, 5, 100, 301, 302, 303, 400, 500])
def test_limit_of_objects(objects, monkeypatch):
    """The limit is met at the same object, however many are read at once."""
    data = RUNS.read_bytes()
    limits = Limits(objects=objects)
    at_once = outcome(data, limits)
    monkeypatch.setattr(Alike, "read", lambda *arguments: None)
    assert outcome(data, limits) == at_once
    assert at_once[0] == "LimitError"
