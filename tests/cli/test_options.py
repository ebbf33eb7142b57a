"""The one table of options: the command line and Python's signatures have its names and defaults."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import t7bridge
from t7bridge.cli import VERBS, parser_for
from t7bridge.conversion.options import OPTIONS, options_for
from t7bridge.tools.match.output import write_match
from t7bridge.tools.prove.given import probe as write_probe
from t7bridge.tools.prove.given import prove_pairs, prove_with
from t7bridge.tools.prove.two import prove_two
from t7bridge.tools.save_module import write_loader

FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "completion": (),
    "convert": (t7bridge.convert,),
    "describe": (t7bridge.describe,),
    "diff": (t7bridge.diff,),
    "draw": (t7bridge.draw,),
    "export": (t7bridge.export,),
    "inspect": (t7bridge.inspect,),
    "lua": (t7bridge.write_lua, write_loader),
    "match": (t7bridge.match, write_match, prove_two),
    "module": (t7bridge.write_module,),
    "prove": (t7bridge.prove, write_probe, prove_with, prove_pairs, prove_two),
    "scan": (t7bridge.scan,),
    "verify": (t7bridge.verify,),
    "zoo": (t7bridge.convert_zoo, t7bridge.convert),
}
"""What a verb calls; `convert_zoo` passes the options that it does not name itself to `convert`."""
OPERANDS = {("lua", "input"), ("prove", "input"), ("prove", "expect")}
"""Options that are arguments without a default in Python, under other names."""
FOR_EVERY_VERB = {"help", "quiet", "limits", "limit", "output", "out"}
"""Options of the command line that are not in the table: of every verb, and the file that is written."""
PYTHON_ONLY = {
    "draw": {"dst"},
    "lua": {"source", "weights"},
    "match": {"inputs", "at", "shapes", "seed"},
    "prove": {"seed"},
    "zoo": {"limit", "on_start", "on_file", "on_progress", "sync"},
}
"""Arguments with a default that are no option: files, functions, and what only Python can ask for."""


def arguments_of(verb: str) -> dict[str, Any]:
    """The default of each argument of a verb's functions that has one; that of the first function counts."""
    found: dict[str, Any] = {}
    for function in reversed(FUNCTIONS[verb]):
        for name, each in inspect.signature(function).parameters.items():
            if each.default is not each.empty:
                found[name] = each.default
    return found


def actions_of(verb: str) -> dict[str, argparse.Action]:
    """The options of a verb's parser."""
    parser = parser_for(verb, importlib.import_module(f"t7bridge.cli.{verb}"))
    return {action.dest: action for action in parser._actions if action.option_strings}


def test_every_verb_is_here() -> None:
    """The table above has all verbs."""
    assert set(FUNCTIONS) == set(VERBS)


@pytest.mark.parametrize("verb", sorted(FUNCTIONS))
def test_command_line_is_that_of_the_table(verb: str) -> None:
    """Each option of the parser is one of the table, with its spellings, default and help, and the other way round."""
    table = {option.name: option for option in options_for(verb)}
    assert len(table) == len(options_for(verb)), "a name twice"
    actions = {name: action for name, action in actions_of(verb).items() if name in table or name not in FOR_EVERY_VERB}

    assert set(actions) == set(table)
    for name, action in actions.items():
        option = table[name]
        default = list(option.default) if isinstance(option.default, tuple) else option.default
        assert (tuple(action.option_strings), action.default, action.help) == (
            option.spellings(), default, option.help,
        )  # fmt: skip


@pytest.mark.parametrize("verb", sorted(FUNCTIONS))
def test_signatures_are_those_of_the_table(verb: str) -> None:
    """Each option of the table is an argument of Python with the same default, and vice versa.

    But for options that exist on the command line only, which are no argument at all.
    """
    given = arguments_of(verb)
    table = {option.name: option for option in options_for(verb)}
    parameters = {name for function in FUNCTIONS[verb] for name in inspect.signature(function).parameters}

    for name, option in table.items():
        if option.command_line:
            assert name not in parameters, name
        elif name in parameters:
            assert name not in given or given[name] == option.default, name
        else:
            assert (verb, name) in OPERANDS or (verb, name) == ("zoo", "index_base"), name  # passed to write_module
    assert set(given) - set(table) - {"limits"} - PYTHON_ONLY.get(verb, set()) == set()


def test_function_of_a_verb_has_all_its_options() -> None:
    """Options of a single function are checked by that function, never left to `convert` or `export`."""
    for verb in ("convert", "diff", "export", "inspect", "module", "verify"):
        parameters = inspect.signature(FUNCTIONS[verb][0]).parameters
        names = {option.name for option in options_for(verb) if not option.command_line}
        assert names == {name for name, each in parameters.items() if each.default is not each.empty} - {"limits"}


def test_every_option_has_a_verb() -> None:
    """No row of the table is for a verb that does not exist."""
    for option in OPTIONS:
        assert option.verbs
        assert set(option.verbs) <= set(VERBS), option.name
