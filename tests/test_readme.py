"""The README's commands run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES, run_here

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


NET = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
"""


@pytest.mark.slow
def test_commands_of_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command runs, one after another, but those that need torchvision."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("model.t7", "a.t7", "models/resnet.t7"):
        shutil.copyfile(TESTFILES / "models/resnet_small.t7", name)
    shutil.copyfile(TESTFILES / "models/training_checkpoint.t7", "data.t7")
    shutil.copyfile(TESTFILES / "pt/checkpoint_adam.pt", "weights.pt")
    for name in ("tuned.pt", "mine.pt", "b.pt"):
        run_here("convert", "model.t7", name)
    Path("net.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.save(scope["Net"]().state_dict(), "net.pt")

    commands = re.findall(r"^\| `t7bridge ([^`]*)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) > 15
    for command in commands:
        if "torchvision" not in command and command != "match model.t7":
            shape = command.replace("224x224", "16x16")  # a smaller model stands for yours
            run = run_here(*shlex.split(shape), *(["--force"] if "b.t7" in command else []))
            # Nothing is recorded in the file that stands for yours.
            expected = 2 if command == "prove model.t7" else 0
            assert run.returncode == expected, (command, run.stderr)
