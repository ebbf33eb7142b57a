"""An option is a field: command line, Python's signatures, docstrings, completion, notes and docs have it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from attrs.exceptions import FrozenInstanceError
from helpers import ROOT, module_of, run_here

import t7bridge
from t7bridge import Report, cli, formats
from t7bridge.cli import VERBS, arguments_of, parser_for, parsers, script
from t7bridge.conversion import REQUIRED, Convert, Option, note_ignored, option, options_of, takes, verb
from t7bridge.conversion.inputs import parse_inputs

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "convert": t7bridge.convert,
    "diff": t7bridge.diff,
    "draw": t7bridge.draw,
    "describe": t7bridge.describe,
    "export": t7bridge.export,
    "inspect": t7bridge.inspect,
    "lua": t7bridge.write_lua,
    "match": t7bridge.match,
    "module": t7bridge.write_module,
    "prove": t7bridge.prove,
    "scan": t7bridge.scan,
    "verify": t7bridge.verify,
    "zoo": t7bridge.convert_zoo,
}
"""Functions that take the class of their verb."""
PYTHON_ONLY = {"prove": {"against"}, "lua": {"source"}, "zoo": {"on_start", "on_file", "on_progress"}}


def test_every_verb_is_here() -> None:
    """The table above has all verbs with a function."""
    assert {*FUNCTIONS, "completion"} == set(VERBS)


def test_requests_do_not_change() -> None:
    """No option of a request can be set while it is served."""
    for name in FUNCTIONS:
        request = cli.class_of(name)
        operands = [0 for each in options_of(request).values() if each.python and each.default is REQUIRED]
        served = request(*operands)
        for field, each in options_of(request).items():
            if each.python:
                with pytest.raises(FrozenInstanceError):
                    setattr(served, field, None)


def check_parser(verb: str) -> None:
    """Each option of the parser is one of the class, with spellings, default and help, and the other way round."""
    actions = {each.dest: each for each in parser_for(verb)._actions if each.dest not in ("help", "help_all", "quiet")}
    assert set(actions) == set(options_of(cli.class_of(verb)))
    for name, each in options_of(cli.class_of(verb)).items():
        action = actions[name]
        spellings = () if each.is_operand else each.spellings()
        assert tuple(action.option_strings) == spellings, name
        # The heading of a group may say the formats already.
        assert action.help in (each.help, f"{each.help}; {each.scope()}"), name
        if each.default is not REQUIRED:
            assert action.default == (list(each.default) if each.kind == "list" else each.default), name


def check_completion(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of the command line is completed."""
    monkeypatch.setattr("t7bridge.cli.completion.VERBS", {verb: "for one verb"})
    bash, fish = script("bash"), script("fish")
    for each in options_of(cli.class_of(verb)).values():
        for word in () if each.is_operand else each.spellings():
            assert re.search(rf" {verb}\) .*[\" ]{re.escape(word)}[\" ]", bash), word
            assert f" -{'l' if word.startswith('--') else 's'} {word.lstrip('-')} " in fish, word


def check_signature(function: Callable[..., Any], options: dict[str, Option], more: set[str]) -> None:
    """A function has each option that Python has, with its default, and explains it; and no other."""
    parameters = inspect.signature(function).parameters
    python = {name: each for name, each in options.items() if each.python}
    assert set(parameters) == {*python, *more}
    for name, each in python.items():
        given = parameters[name].default
        assert (REQUIRED if given is inspect.Parameter.empty else given) == each.default, name
        assert len(re.findall(rf"^ *{name}: ", function.__doc__ or "", re.MULTILINE)) == 1, name


def options_page() -> Any:
    """docs/generate_options.py as a module."""
    return module_of(ROOT / "docs/generate_options.py")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_command_line_is_that_of_the_class(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parser and completion have each option of the class."""
    check_parser(verb)
    check_completion(verb, monkeypatch)


@pytest.mark.parametrize("verb", sorted(FUNCTIONS))
def test_signature_is_that_of_the_class(verb: str) -> None:
    """The function has the options of the class, but for those of the command line only."""
    check_signature(FUNCTIONS[verb], options_of(cli.class_of(verb)), PYTHON_ONLY.get(verb, set()))


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_fits_a_terminal(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--help` is at most 25 lines with two examples, and says how many options `--help-all` adds."""
    monkeypatch.setenv("COLUMNS", "80")
    short = run_here(verb, "--help").stdout
    assert run_here("help", verb).stdout == short
    lines = short.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: t7bridge {verb} ")
    examples = getattr(cli.class_of(verb), "EXAMPLES", ())
    assert len(examples) >= 2
    assert lines[lines.index("examples:") + 1 :][:2] == [f"  {example}" for example in examples[:2]]
    everything = run_here(verb, "--help-all").stdout
    options = options_of(cli.class_of(verb)).values()
    for each in options:
        for spelling in () if each.is_operand else each.spellings():
            assert spelling in everything
    listed = sum(line.startswith("  -") for line in lines)
    hidden = sum(not each.is_operand for each in options) - listed
    if verb == "convert":
        assert lines[-1].startswith("names --rename")
        assert all(spelling in everything for spelling in re.findall(r"--[\w-]+", lines[-1]))
    assert (f"--help-all lists {hidden} more options." in short) == (hidden > 0)


def test_help_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    """Lines are longer only where a word is, and wrapped examples are the same commands for a shell."""
    columns = 40
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("", *VERBS):
        with subtests.test(name):
            shown = run_here(*filter(None, (name, "--help"))).stdout
            for line in shown.splitlines():
                assert len(line) <= columns or len(line.strip(" \\").split(" ")) <= 2, line
            for example in getattr(cli.class_of(name), "EXAMPLES", ())[:2] if name else ():
                joined = shown.partition("examples:")[2].replace("\\\n", " ")
                commands = [" ".join(line.split()) for line in joined.splitlines()]
                assert example.partition("   ")[0] in commands


def test_words_in_capitals_are_understood(subtests: pytest.Subtests) -> None:
    """The message names the verb, option or value that was meant; suffixes and shapes may have capitals."""
    for arguments, meant in (
        (["CONVERT"], "convert"),
        (["convert", "a", "b", "--FORCE"], "--force"),
        (["convert", "a", "b", "--encoding", "ASCII"], "ascii"),
        (["convert", "a", "b", "--to", "SafeTensors"], "safetensors"),
        (["completion", "BASH"], "bash"),
    ):
        with subtests.test(arguments[-1]):
            assert f"did you mean {meant}?" in run_here(*arguments).stderr
    assert parse_inputs("1X3X8X8").shape == (1, 3, 8, 8)
    assert formats.format_for("MODEL.PT").name == "pt"


def test_the_help_ends_with_what_programs_use() -> None:
    """`describe` and `completion` come last; operands are in capitals."""
    assert list(VERBS)[-2:] == ["describe", "completion"]
    for name in VERBS:
        operands = run_here(name, "--help").stdout.splitlines()[0].partition("[OPTION]...")[2]
        assert re.fullmatch(r"[A-Z:.\[\] ]+", operands.replace("WEIGHTS.pt", "WEIGHTS"))


def test_page_of_options() -> None:
    """docs/options.md is what the classes make it."""
    found = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert found == options_page().page(), "run `python docs/generate_options.py`"


def test_a_new_option_is_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field added to `convert` is in its parser, completion, signature, docstring, page and notes."""

    @verb
    class Louder(Convert):
        """Convert a file, louder."""

        volume: int = option("number of exclamation marks", default=1, choices=(1, 2, 3), targets=("lua",))

    @takes(Louder)
    def louder(request: Louder) -> str:
        """Convert.

        Args:
            src: the file to read.
        """
        return "!" * request.volume

    # The command line, its completion and the page take the class of a verb from its function; that of `convert` from
    # where it is, only because the function takes long to load.
    monkeypatch.setattr(t7bridge, "convert", louder)
    monkeypatch.delitem(parsers._CLASSES, "convert")
    check_parser("convert")
    check_signature(louder, options_of(Louder), set())
    asked = arguments_of(parser_for("convert").parse_args(["a", "b", "--volume", "3"]), "convert")
    assert louder(**asked) == "!!!"
    assert (
        "| `--volume 1 or 2 or 3` | `volume=1` | number of exclamation marks (**to .t7**) |\n" in options_page().page()
    )
    check_completion("convert", monkeypatch)
    report = Report("a", "b", "t7", "pt")
    note_ignored(Louder("a", "b", volume=2), report)
    (note,) = report.notes
    assert note.message == ("volume does not apply from .t7 to .pt; it is for conversions to .t7, and is ignored")
    with pytest.raises(TypeError, match=r"louder\(\) got an unexpected keyword argument 'volumes'"):
        louder("a", "b", volumes=2)  # type: ignore[call-arg]
