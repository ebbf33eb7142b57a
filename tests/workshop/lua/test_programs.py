"""Exported programs and TorchScript as Lua models: files that hold their graph."""

from __future__ import annotations

import io
import pickle
import shutil
import zipfile

import pytest
import torch
from torch import nn

import t7bridge
from t7bridge.cli import main
from t7bridge.errors import ModelError

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in ("`torch.jit", "`isinstance.treespec")]

X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


class Net(nn.Module):
    """Reads the size of its batch, and uses a layer twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.up, self.drop = nn.ConvTranspose2d(4, 2, 2, 2), nn.Dropout(0.5)
        self.line = nn.Linear(2 * 6 * 6, 5)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        y = self.up(nn.functional.max_pool2d(y + self.conv(x), 2))
        return self.line(self.drop(y).view(x.size(0), -1)).softmax(1)


def net():
    """Return the net with statistics and weights that differ from each other."""
    torch.manual_seed(3)
    made = Net().eval()
    for tensor in (*made.norm.parameters(), made.norm.running_mean, made.norm.running_var):
        tensor.detach().uniform_(0.5, 1.5)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["script", "trace", "frozen", "export", "open", "decomposed"])
def test_files(kind, tmp_path):
    """The Lua model of a file computes the same, with the keys of the file."""
    module, path = net(), tmp_path / "net.pt"
    if kind in ("script", "trace", "frozen"):
        script = torch.jit.trace(module, X) if kind == "trace" else torch.jit.script(module)
        torch.jit.save(torch.jit.freeze(script) if kind == "frozen" else script, path)
    else:
        sizes = ({0: torch.export.Dim("batch"), 2: torch.export.Dim.AUTO},) if kind == "open" else None
        program = torch.export.export(module, (X,), dynamic_shapes=sizes)
        torch.export.save(program.run_decompositions() if kind == "decomposed" else program, path)
    sizes = [] if kind in ("export", "decomposed") else ["--input", "2x3x6x6"]
    assert main(["lua", str(path), *sizes, "-o", str(tmp_path)]) == 0
    made = t7bridge.load_module(tmp_path / "model.t7")
    torch.testing.assert_close(made(X), module(X), rtol=1e-5, atol=1e-6)
    assert sorted(made.state_dict()) == sorted(t7bridge.load(path))
    if kind in ("trace", "open"):
        torch.testing.assert_close(made(X[:1]), module(X[:1]), rtol=1e-5, atol=1e-6)


class Indexed(nn.Module):
    """Takes channels by indices, and has two biases of zeros, which freezing makes one."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.register_buffer("factor", torch.tensor(1.5))
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.last(self.second(torch.relu(self.first(x[:, self.order]))) * self.factor)


@pytest.mark.slow
def test_constants_have_the_numbers_of_the_file(subtests, tmp_path):
    """The weights of a frozen module have the keys that `convert` writes, whatever the trace calls them."""
    module, path, x = Indexed().eval(), tmp_path / "net.pt", torch.randn(2, 3)
    frozen = torch.jit.freeze(torch.jit.script(module))
    frozen.save(str(path))
    stored = t7bridge.load_state_dict(path)
    for name, script in {"in memory": frozen, "of a file": torch.jit.load(path)}.items():
        with subtests.test(name):
            t7bridge.save_module(script, tmp_path / "m.t7", example_inputs=x, force=True)
            made = t7bridge.load_module(tmp_path / "m.t7")
            weights = made.state_dict()
            assert len(weights) == 5
            for key, tensor in weights.items():
                assert torch.equal(tensor, stored[key])
            torch.testing.assert_close(made(x), module(x))


@pytest.mark.slow
def test_programs_in_memory(tmp_path):
    """`save_module` takes programs and script modules; tied weights stay tied; a program's sizes are checked."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    x = torch.ones(2, 3)
    program = torch.export.export(module, (x,))
    for one, inputs in ((program, ()), (torch.jit.script(module), x)):
        t7bridge.save_module(one, tmp_path / "m.t7", inputs, force=True)
        made = t7bridge.load_module(tmp_path / "m.t7")
        torch.testing.assert_close(made(x), module(x))
        assert len(set(map(id, made.parameters()))) == 3
    with pytest.raises(ModelError, match="sizes of the program's inputs are fixed"):
        t7bridge.save_module(program, tmp_path / "m.t7", torch.ones(3, 3), force=True)


class Effect:
    """Calls `print` where its pickle is loaded."""

    def __reduce__(self):
        return print, ("executed",)


def test_hostile_programs_are_refused(tmp_path, capsys):
    """A file is judged before PyTorch loads it: pickles in archives, and scripts that write files."""
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(nn.ReLU(), (X,)), path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as target:
        for name in source.namelist():
            content = io.BytesIO(source.read(name))
            if "sample_inputs" in name:
                torch.save(Effect(), content := io.BytesIO(), pickle_module=pickle)
            target.writestr(name, content.getvalue())

    class Writer(nn.Module):
        def forward(self, x):
            torch.save(x, "stolen.pt")
            return x

    torch.jit.save(torch.jit.script(Writer()), tmp_path / "bad.pt")
    for name, reason in (("bad.pt2", "print"), ("bad.pt", "aten::save")):
        assert main(["lua", str(tmp_path / name), "--input", "2x3x6x6", "-o", str(tmp_path / "out")]) != 0
        found = capsys.readouterr()
        assert "PyTorch's loader could execute" in found.err
        assert reason in found.err
        assert "executed" not in found.out
    assert not (tmp_path / "out").exists()


def test_files_without_a_graph(tmp_path, capsys):
    """A state dict is refused with what is missing, and weights beside a program too."""
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "net.pt")
    assert main(["lua", str(tmp_path / "net.pt"), "--input", "2x2", "-o", str(tmp_path / "out")]) != 0
    assert "PACKAGE:FACTORY net.pt" in capsys.readouterr().err
    shutil.copy(tmp_path / "net.pt", tmp_path / "other.pt")
    args = ["lua", str(tmp_path / "net.pt"), str(tmp_path / "other.pt"), "-o", str(tmp_path / "out")]
    assert main(args) != 0
    assert "the weights are in the file" in capsys.readouterr().err


def test_a_file_that_is_no_program_says_what_to_do(tmp_path, monkeypatch, capsys):
    """A pickled module, a `.t7`, a `.py` without a class, and an output that exists are refused."""
    monkeypatch.chdir(tmp_path)
    torch.save(Net(), "whole.pt")
    t7bridge.save({"a": 1}, "a.t7")
    (tmp_path / "net.py").write_text("import torch\n")
    for source, found in (
        ("whole.pt", "t7bridge lua PACKAGE:FACTORY whole.pt"),
        ("a.t7", "is a file of Lua Torch already"),
        ("net.py", "t7bridge lua net.py:Net"),
    ):
        assert main(["lua", source, "--input", "2x2", "-o", "out"]) == 2
        assert found in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out/model.lua").touch()
    assert main(["lua", "missing:Net", "--input", "2x2", "-o", "out"]) == 2
    assert "exists already" in capsys.readouterr().err
