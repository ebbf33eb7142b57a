"""Rules for the keys of state dicts."""

from __future__ import annotations

import random
import re
from collections import OrderedDict

import pytest
import torch
from torch import nn

from t7bridge.conversion.naming import Naming, Rule
from t7bridge.errors import ModelError


@pytest.mark.parametrize(
    ("rule", "key", "name"),
    [
        ("features=backbone.body", "features.0.weight", "backbone.body.0.weight"),
        ("features.=backbone.", "features.0.weight", "backbone.0.weight"),
        ("features=backbone", "features2.weight", None),
        ("fc.weight=head.weight", "fc.weight", "head.weight"),
        ("fc.weight=head.weight", "fc.weight_g", None),
        ("module=", "module.fc.bias", "fc.bias"),
        ("module=", "module", None),
        ("=net", "fc.bias", "net.fc.bias"),
        ("layers.{}.ln_{}=blocks.{}.norm{}", "layers.3.ln_1.weight", "blocks.3.norm1.weight"),
        ("{}.gamma={}.weight", "stem.0.bn.gamma", "stem.0.bn.weight"),
        ("{}.gamma={}.weight", ".gamma", None),
        ("conv{}=c{}", "conv", None),
        ("a{}b{}c=x{}y{}z", "a1b2b3c", "x1y2b3z"),
    ],
)
def test_a_rule(rule, key, name):
    """A rule renames a key, the steps before others, or what a pattern describes."""
    assert Rule.parse(rule).apply(key) == name


def test_patterns_are_those_of_expressions():
    """`{}` is what `(.+?)` is in an expression for the whole key, on random keys and patterns."""
    source = random.Random(44_010)
    matched = 0
    for _ in range(4_000):
        old = "".join(source.choice(["a", "b", ".", "{}"]) for _ in range(source.randint(1, 7)))
        if "{}" not in old:
            continue
        key = "".join(source.choice("ab.") for _ in range(source.randint(1, 9)))
        parts = old.split("{}")
        new = "-".join(["{}"] * (len(parts) - 1))
        expected = re.fullmatch("(.+?)".join(map(re.escape, parts)), key)
        result = Rule.of(old, new).apply(key)
        assert result == (None if expected is None else "-".join(expected.groups())), (old, key)
        matched += expected is not None
    assert matched > 300


def test_a_long_key_costs_no_more_than_its_length():
    """Each part of a pattern is looked for once: 30 patterns in a key of 100 000 letters."""
    rule = Rule.of("{}" + "x{}" * 30 + "y", "{}" * 31)
    assert rule.apply("x" * 100_000) is None


def test_several_rules_in_one_text():
    """Rules that are joined by commas are refused, as a key may have commas."""
    with pytest.raises(ModelError, match=r"several rules for names in one.*Repeat --rename"):
        Naming("0=c1,3=c2")


def test_rules_apply_one_after_the_other():
    """The prefixes come first; each rule sees what the ones before have made."""
    naming = Naming(["layers=blocks", "{}.gamma={}.weight", "=net"], strip=["module", "encoder"])
    assert naming.name("module.encoder.layers.0.gamma") == "net.blocks.0.weight"


@pytest.mark.parametrize(
    "renames", [{"a": "b", "c": "d"}, ["a=b", "c=d"], [("a", "b"), ("c", "d")], ("a=b", ["c", "d"])], ids=str
)
def test_forms_of_rules(renames):
    """A mapping, texts and pairs say the same."""
    assert list(Naming(renames).renamed({"a.x": 1, "c": 2, "e": 3})) == ["b.x", "d", "e"]


@pytest.mark.parametrize(
    ("renames", "words"),
    [
        (["features"], "not a rule"),
        (["a.{}=b"], "number of {}"),
        ([("a", "b", "c")], "not a rule"),
        ([("a", 1)], "not a rule"),
        ([3], "not a rule"),
        (3, "not a rule"),
        ({"a": None}, "not a rule"),
    ],
)
def test_wrong_rules(renames, words):
    """The error says what a rule is."""
    with pytest.raises(ModelError, match=re.escape(words)):
        Naming(renames)


@pytest.mark.parametrize("strip", [[3], 3, b"a.", [b"a."], ["a", None]])
def test_wrong_prefixes(strip):
    """A prefix that is not text is an error that says so."""
    with pytest.raises(ModelError, match="not a prefix of keys; expected text"):
        Naming(strip=strip)


def test_keys_stay_apart():
    """Two keys that get one name are an error, with both."""
    with pytest.raises(ModelError, match=r"a\.w and b\.w both become c\.w"):
        Naming(["a=c", "b=c"]).renamed({"a.w": 1, "b.w": 2})


def test_rules_that_rename_nothing_are_known():
    """Each has a sentence with the keys that there are."""
    naming = Naming(["conv=c", "fc=head"], strip="module")
    naming.renamed({"fc.weight": 1})
    assert naming.problems(["fc.weight"]) == (
        ("strip", "module renames nothing; the keys are fc.weight"),
        ("rename", "conv=c renames nothing; the keys are fc.weight"),
    )


class Net(nn.Module):
    """A network whose modules have versions of their own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        self.head = nn.Linear(2, 2)


def test_metadata_follow_as_in_pytorch():
    """`strip` does what `consume_prefix_in_state_dict_if_present` does, with `_metadata`; the way back undoes it."""
    state = nn.DataParallel(Net()).state_dict()
    stripped = Naming(strip=["module"]).renamed(state)
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert list(stripped) == list(state)
    assert dict(stripped._metadata) == dict(state._metadata)
    with_prefix = Naming({"": "module"}).renamed(stripped)
    assert with_prefix._metadata["module.body.1"] == state._metadata["body.1"]


def test_metadata_of_modules_without_keys():
    """The version of a module moves with its keys, and with those around it."""
    state = Net().state_dict()
    renamed = Naming(["body.{}=layers.{}", "{}.weight={}.w"]).renamed(state)
    assert set(renamed._metadata) == {"", "body", "layers.0", "layers.1", "layers.2", "head"}
    assert isinstance(renamed, OrderedDict)
