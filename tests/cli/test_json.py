"""`--json` of every verb, against the JSON Schemas of docs/json.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from helpers import ROOT, TESTFILES

import t7bridge
from t7bridge import Tensor
from t7bridge.cli import VERBS, main

_PAGE = (ROOT / "docs" / "json.md").read_text("utf-8")
BLOCKS: dict[str, Any] = {
    verb: json.loads(text)
    for names, text in re.findall(r"^## ([^\n]*)\n.*?^```json\n(.*?)^```$", _PAGE, re.M | re.S)
    for verb in names.split(", ")
}
LINEAR, RESNET, LSTM = "nn/Linear.t7", "models/resnet_small.t7", "models/char_lstm_nngraph.t7"
COMMANDS = [
    ["convert", RESNET, "OUT.pt"],
    ["diff", LINEAR, "CHANGED.t7"],
    ["diff", RESNET, LINEAR],
    ["export", LINEAR, "OUT.pt2", "--input", "2x5"],
    ["inspect", LSTM],
    ["inspect", RESNET, "--stats"],
    ["inspect", "models/siamese_shared.t7"],
    ["inspect", "STATE.pt"],
    ["lua", "torch.nn:Linear(5, 3)", "STATE.pt", "-o", "OUT", "--input", "1x5"],
    ["match", LINEAR, LINEAR],
    ["match", RESNET, LINEAR],
    ["module", LINEAR, "-o", "OUT"],
    ["prove", "prove/dilated.eval.t7"],
    ["prove", LINEAR, LINEAR],
    ["scan", LINEAR, "hostile/README.md", "format/function_plain.t7"],
    ["verify", LINEAR, "STATE.pt"],
    ["zoo", LINEAR, "hostile/README.md", "-o", "OUT", "--workers", "0"],
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_outputs_have_their_schema(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No field is missing, undocumented, or of another type; numbers are finite."""
    value = t7bridge.load(TESTFILES / LINEAR)
    value["weight"] = Tensor.from_numpy(value["weight"].numpy() + np.inf)
    t7bridge.save(value, tmp_path / "CHANGED.t7")
    t7bridge.convert(TESTFILES / LINEAR, tmp_path / "STATE.pt")
    capsys.readouterr()
    words = [
        str(tmp_path / each) if each[:1].isupper() else str(TESTFILES / each) if "/" in each else each
        for each in command[1:]
    ]
    assert main([command[0], *words, "--json"]) in (0, 1)
    out = capsys.readouterr().out
    values = [
        json.loads(line, parse_constant=pytest.fail) for line in (out.splitlines() if "\n " not in out else [out])
    ]
    schema = {**BLOCKS[command[0]], "$defs": BLOCKS["Definitions"]}
    for each in values:
        jsonschema.validate(each, schema, jsonschema.Draft202012Validator)


def test_every_verb_has_one() -> None:
    """Those without `--json`, and `draw`, whose graph has a page of its own, have none."""
    assert set(BLOCKS) == {*VERBS, "Definitions"} - {"completion", "describe", "draw"}
