"""What a narrow terminal shows of a summary."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge.cli import verbs
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


def test_the_folder_of_a_module_is_not_the_file() -> None:
    """A file without a suffix has the name already that its module would have."""
    options = Namespace(source="nets/net.t7", at="")
    assert verbs._module_command(options) == "t7bridge module nets/net.t7 -o net"
    options.source = "net"
    assert verbs._module_command(options) == "t7bridge module net -o net-module"
