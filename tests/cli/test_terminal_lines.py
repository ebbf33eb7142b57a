"""What a narrow terminal shows of a summary."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge.cli import main, verbs
from t7bridge.errors import UnsupportedError
from t7bridge.report import Report


def test_only_rows_of_tables_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts and the sentence on shapes go on in the next line: cut, they would be lost."""
    monkeypatch.setattr(verbs, "is_styled", lambda stream: True)
    monkeypatch.setattr(verbs, "terminal_width", lambda: 40)
    summary = t7bridge.inspect(TESTFILES / "models/lenet_mm.t7")
    header = len(summary.header)
    styled = [verbs._styled(line, number, header) for number, line in enumerate(summary.lines(40))]
    plain = [re.sub(r"\x1b\[\dm", "", line) for line in styled]
    assert plain[:header] == list(summary.lines())[:header]
    assert max(map(len, plain[:header])) > 40
    assert max(len(line) for line in plain[header:-1]) <= 40
    assert plain[-1] == f"shapes: {summary.shapes}"


def test_the_line_of_lua_is_lua() -> None:
    """A path is text of Lua, whatever characters it has."""
    report = Report(source="a.pt", target="it's\\a.t7", target_format="t7")
    assert verbs._after_conversion(Namespace(at=""), report) == r"in Lua: value = torch.load('it\'s\\a.t7')"


def test_the_module_of_a_state_dict_has_its_part_and_classes() -> None:
    """The command for it would fail without the file of own layers, or take another model."""
    report = Report(source="a b.t7", target="net.pt", target_format="pt", mode="state dict")
    line = verbs._after_conversion(Namespace(at="root.net", classes="own.py"), report)
    assert line.endswith("t7bridge module 'a b.t7' --at root.net --classes own.py -o net")


def test_commands_after_a_summary_are_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each works: only a Lua model has a module, and what was summarized is a part if one was named."""
    monkeypatch.chdir(tmp_path)
    model = t7bridge.load(TESTFILES / "models/siamese_shared.t7")
    t7bridge.save({"nets": {"a b": model, "other": model}}, "nets.t7")
    t7bridge.save(model, "whole.pt")
    t7bridge.save({"0.weight": np.zeros((2, 2))}, "tables.t7")
    for source, at, count in (
        ("nets.t7", None, 2), ("nets.t7", "root.nets['a b']", 2), ("whole.pt", None, 1), ("tables.t7", None, 1),
    ):  # fmt: skip
        summary = t7bridge.inspect(source, at=at)
        commands = verbs._after_inspection(Namespace(source=source, at=at), summary).split("; ")
        assert len(commands) == count, source
        for command in commands:
            program, *words = shlex.split(command)
            assert program == "t7bridge"
            assert ("--at" in words) == (at is not None)
            assert main([*words, "--force", "--quiet"]) == 0, command
    t7bridge.save({"epoch": 1.0}, "none.t7")
    assert verbs._after_inspection(Namespace(source="none.t7", at=None), t7bridge.inspect("none.t7")) == ""


def test_names_with_spaces_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands in the hints of `diff` and `module` are of a shell."""
    monkeypatch.chdir(tmp_path)
    t7bridge.save({"a.weight": np.zeros((2, 3))}, "one file.pt")
    t7bridge.save({"b.weight": np.zeros((2, 3))}, "an other.pt")
    hint = t7bridge.diff("one file.pt", "an other.pt").hint
    with pytest.raises(UnsupportedError) as raised:
        t7bridge.write_module("one file.pt", "folder")
    for command in (hint.split("`")[1], raised.value.hint.partition(" writes")[0]):
        _program, *words = shlex.split(command)
        assert main([*words, "--quiet"]) == 0, command


def test_the_folder_of_a_module_is_not_the_file() -> None:
    """A file without a suffix has the name already that its module would have."""
    options = Namespace(source="nets/net.t7", at="")
    assert verbs._module_command(options) == "t7bridge module nets/net.t7 -o net"
    options.source = "net"
    assert verbs._module_command(options) == "t7bridge module net -o net-module"
