"""The README's command converts a real file."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_convert_command(tmp_path: Path) -> None:
    """The conversion in the README's first command results in a state dict that PyTorch loads."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- convert command -->\n```sh\n(.*)\n```", text)
    assert block is not None
    command = shlex.split(block.group(1).split("&&")[-1])
    assert command[0] == ".venv/bin/t7bridge"

    target = tmp_path / command[-1]
    run = [sys.executable, "-m", "t7bridge", *command[1:-1], str(target)]
    subprocess.run(run, cwd=ROOT, check=True, capture_output=True)

    state = torch.load(target, weights_only=True)
    assert "0.weight" in state
    assert tuple(state["0.weight"].shape) == (4, 3, 3, 3)
