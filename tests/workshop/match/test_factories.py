"""A class or function of PyTorch as a side of `match`, and models recognized by their layers."""

from __future__ import annotations

import json
import shlex
from collections import OrderedDict
from pathlib import Path

import factories
import pytest
import torch
from torch import nn

import t7bridge
from t7bridge import match
from t7bridge.cli import main
from t7bridge.errors import ModelError

HERE = factories.__file__


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Signatures go to a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "t7bridge"


def renamed(net: nn.Module) -> OrderedDict[str, torch.Tensor]:
    """The state dict of a module inside another one."""
    for tensor in net.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape) if tensor.is_floating_point() else tensor)
    return OrderedDict(
        (f"net.{key}", tensor) for key, tensor in net.state_dict().items() if not key.endswith("num_batches_tracked")
    )


def saved(tmp_path: Path, net: nn.Module) -> str:
    """A file with such a state dict."""
    torch.save(renamed(net), tmp_path / "source.pt")
    return str(tmp_path / "source.pt")


@pytest.mark.parametrize(
    "name", ["resnet", "resnet_bottleneck", "densenet", "inception", "ResNet()", "inception(num_classes=3)"]
)
def test_a_factory_is_the_target(tmp_path, name):
    """The weights under the keys of the factory's module load strictly, and are those of the source."""
    kwargs = {"num_classes": 3} if "3" in name else {}
    attribute = name.partition("(")[0]
    net = getattr(factories, attribute)(**({"weights": None} if attribute == "resnet" else {}), **kwargs)
    source, out = saved(tmp_path, net), tmp_path / "out.pt"
    assert main(["match", source, f"{HERE}:{name}", "-o", str(out)]) == 0
    state = torch.load(out, weights_only=True)
    assert list(state) == list(net.state_dict())
    for key, tensor in net.state_dict().items():
        assert torch.equal(state[key], torch.zeros_like(tensor) if key.endswith("tracked") else tensor)
    net.load_state_dict(state, strict=True)


def test_a_factory_that_reads_its_parameters_is_called_on_the_cpu():
    """Where the meta device does not do."""
    found = match({"0.weight": torch.zeros(3, 2)}, f"{HERE}:NeedsValues")
    assert found.complete


def test_another_number_of_classes_is_said(tmp_path, capsys):
    """The message has the call that makes a classifier of the right size."""
    source = saved(tmp_path, factories.ResNet(num_classes=9))
    assert main(["match", source, f"{HERE}:resnet"]) == 1
    assert f"only the number of classes differs: {HERE}:resnet(num_classes=9)" in capsys.readouterr().err
    assert match(source, f"{HERE}:resnet(num_classes=9)").complete


def test_own_values_of_a_factory(tmp_path):
    """With --partial, a classifier that the source lacks is the one that the factory has just made."""
    source = saved(tmp_path, factories.ResNet(num_classes=9))
    assert main(["match", source, f"{HERE}:resnet", "--partial", "-o", str(tmp_path / "out.pt")]) == 0
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    assert state["fc.weight"].shape == (5, 12)
    assert state["fc.weight"].abs().sum() > 0


def test_a_factory_is_the_source(tmp_path):
    """Its own weights go into another model."""
    torch.save(factories.ResNet().state_dict(), tmp_path / "target.pt")
    assert main(["match", f"{HERE}:resnet", str(tmp_path / "target.pt"), "-o", str(tmp_path / "out.pt")]) == 0
    assert torch.load(tmp_path / "out.pt", weights_only=True)["fc.weight"].abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "ValueError: no such option"),
        ("no_module", "does not return a torch.nn.Module"),
        ("missing", "cannot be imported"),
        ("resnet(wide=True)", "TypeError"),
        ("resnet(wide=x)", "Python literals"),
    ],
)
def test_factories_that_fail(name, message):
    """Each is an error of ours, with its reason."""
    with pytest.raises(ModelError, match=message):
        match({"weight": torch.zeros(2)}, f"{HERE}:{name}")


@pytest.mark.parametrize("classes", [5, 9, 1])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("resnet", factories.ResNet),
        ("resnet_bottleneck", factories.resnet_bottleneck),
        ("inception", factories.Inception),
        ("inception(aux_logits=False)", lambda num_classes: factories.Inception(num_classes, False)),
    ],
)
def test_models_are_recognized(tmp_path, capsys, name, make, classes):
    """The sentence names the factory, with the number of classes; its command writes the weights."""
    net = make(num_classes=classes)
    source = saved(tmp_path, net)
    assert main(["match", source, "--among", HERE]) == 0
    printed = capsys.readouterr()
    if classes != 5:
        name = name.replace(")", ", ") if name.endswith(")") else f"{name}("
        name = f"{name}num_classes={classes})"
    words = "1 class" if classes == 1 else f"{classes} classes"
    assert printed.out.splitlines()[0] == f"{HERE}:{name}, {words}, complete"
    assert f"t7bridge match {source} " in printed.err
    assert match(source, f"{HERE}:{name}").complete
    found = match(source, among=[HERE])
    assert [each.name for each in found.models] == [f"{HERE}:{name}"], "the class of the function is not named again"
    assert found.complete
    assert found.models[0].classes == classes


@pytest.mark.parametrize("arguments", [["--order"], ["--rename", "p=0", "--rename", "q=2"], ["--strip", "p"]])
def test_the_proposed_command_matches_in_the_same_way(tmp_path, capsys, arguments):
    """It has the options without which nothing may tell the layers apart."""
    library = tmp_path / "net.py"
    library.write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))\n"
    )
    names = ("p.0", "p.2") if "--strip" in arguments else ("p", "q")
    state = nn.ModuleDict({name.replace(".", "_"): nn.Linear(4, 4) for name in names}).state_dict()
    source = str(tmp_path / "source.pt")
    torch.save({key.replace("_", "."): tensor for key, tensor in state.items()}, source)
    assert main(["match", source, "--among", str(library), *arguments]) == 0
    command = capsys.readouterr().err.partition("hint: ")[2]
    program, *words, _out, _name = shlex.split(command)
    assert program == "t7bridge"
    assert set(arguments) <= set(words)
    assert main([*words, "-o", str(tmp_path / "out.pt")]) == 0
    assert list(torch.load(tmp_path / "out.pt")) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_model_of_no_library(tmp_path, capsys):
    """The nearest is named; the exit code is that of a finding."""
    source = saved(tmp_path, factories.DenseNet(layers=4))
    assert main(["match", source, "--among", HERE]) == 1
    assert (
        f"no model of {HERE} has these layers; the nearest is {HERE}:densenet, with 8 of 11 layers in common; it lacks "
        in capsys.readouterr().out
    )
    assert main(["match", source, "--among", HERE, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["models"] == []
    assert main(["match", source, "-o", str(tmp_path / "x.pt")]) == 2
    with pytest.raises(ModelError, match=r"no_such_package cannot be imported"):
        match(source, among=["no_such_package"])


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of a version, with one factory."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "nets_for_match.py").write_text(
        "from torch import nn\n"
        "__version__ = '1.2'\n"
        "CALLS = []\n"
        "def net(num_classes=3) -> nn.Module:\n"
        "    CALLS.append(1)\n"
        "    return nn.Sequential(nn.Linear(7, 6), nn.Linear(6, num_classes))\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(__import__("sys").modules, "nets_for_match", raising=False)


SMALL = {
    "0.weight": torch.zeros(6, 7),
    "0.bias": torch.zeros(6),
    "1.weight": torch.zeros(3, 6),
    "1.bias": torch.zeros(3),
}


def test_signatures_are_computed_once(tmp_path, monkeypatch, own_cache):
    """A release is asked once; files that are damaged or another program's are computed again, and never run."""
    installed(tmp_path, monkeypatch)
    assert match(SMALL, among=["nets_for_match"]).complete
    import nets_for_match

    path = own_cache / "nets_for_match-1.2.json"
    kept = path.read_text()
    hostile = kept.replace("nets_for_match:net", "os:getcwd")
    for content in (
        kept,
        "",
        "[1, 2",
        "[[[" * 9999,
        "{}",
        kept.replace("1", '"x"'),
        kept.replace('net"', 'gone"'),
        hostile,
    ):
        path.write_text(content)
        nets_for_match.CALLS.clear()
        found = match(SMALL, among=["nets_for_match"])
        assert [str(each) for each in found.models] == ["nets_for_match:net, 3 classes, complete"]
        assert (len(nets_for_match.CALLS) > 1) == (content != kept)
        assert path.read_text() == kept
    assert [each.name for each in own_cache.iterdir()] == [path.name]


def test_inspect_names_models_of_the_cache(tmp_path, monkeypatch, own_cache, capsys):
    """Once the layers of a library are known; nothing is computed or imported for it."""
    installed(tmp_path, monkeypatch)
    torch.save(nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 4)).state_dict(), tmp_path / "x.pt")
    assert "layers of" not in t7bridge.inspect(tmp_path / "x.pt").header
    match(SMALL, among=["nets_for_match"])
    assert "layers of" not in t7bridge.inspect(tmp_path / "x.pt").header  # two layers are a coincidence
    monkeypatch.setattr("t7bridge.workshop.match.libraries._FEWEST", 2)
    assert t7bridge.inspect(tmp_path / "x.pt").header["layers of"] == "nets_for_match:net(num_classes=4)"
    path = own_cache / "nets_for_match-1.2.json"
    path.write_text(path.read_text().replace("nets_for_match:net", "; rm"))
    assert "layers of" not in t7bridge.inspect(tmp_path / "x.pt").header
    assert main(["inspect", str(tmp_path / "x.pt")]) == 0


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, own_cache):
    """Costs time only."""
    installed(tmp_path, monkeypatch)
    own_cache.parent.write_text("a file")
    assert match(SMALL, among=["nets_for_match"]).complete
