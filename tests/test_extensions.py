"""Installed packages add formats, layers and operations: the example package, and what faults of such packages do."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, TESTFILES

import t7bridge
from t7bridge import extensions
from t7bridge.cli import main
from t7bridge.errors import CorruptError, T7BridgeWarning, TruncatedError, UnknownFormatError, UnsupportedError
from t7bridge.formats import table
from t7bridge.layers import layer_of, unregister_layer

EXAMPLE = ROOT / "examples/extension"
ENTRIES = re.findall(r'^\[project\.entry-points\."([^"]*)"\]\n(.*)$', (EXAMPLE / "pyproject.toml").read_text(), re.M)
LENET = TESTFILES / "models/lenet_mm.t7"


def install(folder: Path, entries: list[tuple[str, str]], package: str = "example") -> None:
    """Write what pip would write of a package: its metadata, with entry points as in pyproject.toml."""
    home = folder / f"{package}-1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    rows = [f"[{group}]\n{row.replace(chr(34), '')}\n" for group, row in entries]
    (home / "entry_points.txt").write_text("".join(rows))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Returns a function that installs a package for one test; all that it adds is removed at the end."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    modules = set(sys.modules)
    operations = sys.modules.get("t7bridge.workshop.lua.build")
    before = dict(operations.OPERATIONS) if operations is not None else {}

    def forget() -> None:
        extensions._entry_points.cache_clear()
        extensions._tried.clear()

    def add(entries: list[tuple[str, str]], **options: str) -> None:
        install(site, entries, **options)
        forget()

    forget()
    yield add
    for name in [*table._ADDED]:
        spec = table._ADDED.pop(name)
        del table.FORMATS[name]
        for suffix in spec.suffixes:
            del table.SUFFIXES[suffix]
    unregister_layer("gains.Gain")
    if operations is not None:
        operations.OPERATIONS.clear()
        operations.OPERATIONS.update(before)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("t7bridge_gains", "broken"):
            del sys.modules[name]
    forget()  # last: what is removed above may be looked up once more


def test_the_example_names_all_three_groups() -> None:
    """Formats, layers and operations."""
    assert [group for group, _ in ENTRIES] == [extensions.FORMATS, extensions.LAYERS, extensions.LUA]


def test_a_format(installed: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By suffix, by `--to` and by content: written, read without loading, converted back, and damage is found."""
    with pytest.raises(UnsupportedError, match="output format is not clear"):
        t7bridge.convert(LENET, tmp_path / "a.weights")
    installed(ENTRIES)
    t7bridge.convert(LENET, tmp_path / "a.weights")
    assert main(["convert", str(LENET), str(tmp_path / "b"), "--to", "weights"]) == 0
    data = (tmp_path / "a.weights").read_bytes()
    assert (tmp_path / "b").read_bytes() == data
    with t7bridge.open(tmp_path / "b") as document:
        assert document.format == "weights"
        assert document.value["9.bias"].storage.data.source.name == str(tmp_path / "b")
        t7bridge.convert(LENET, tmp_path / "x.npz")
        expected = np.load(tmp_path / "x.npz")
        assert set(document.value) == set(expected)
        for name, tensor in document.value.items():
            np.testing.assert_array_equal(tensor.numpy(), expected[name])
    t7bridge.convert(tmp_path / "b", tmp_path / "c.npz")
    assert not t7bridge.diff(tmp_path / "c.npz", tmp_path / "x.npz").differences
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "b")]) == 0
    assert "a file of plain weights" in capsys.readouterr().out
    for damaged in (data[:12], data[:40], data[:-1], data[:8] + b"\xff" * 8 + data[16:]):
        with pytest.raises((CorruptError, TruncatedError, t7bridge.errors.LimitError)):
            t7bridge.open(damaged).value  # noqa: B018
    report = t7bridge.scan(tmp_path / "b")
    assert report.error  # nobody here can say what that reader does
    assert not report.clean
    # Files of ours are what they are, and those of nobody stay unknown.
    assert t7bridge.open(LENET).format == "t7"
    with pytest.raises(UnknownFormatError, match="JSON"):
        t7bridge.open(b'{"a": 1}')
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(LENET), str(tmp_path / "d"), "--to", "nothing"])


def gain() -> t7bridge.TorchObject:
    """An object of the class that the example adds."""
    fields = {"gain": t7bridge.Tensor.from_numpy(np.arange(3.0)), "slope": 2.0}
    return t7bridge.TorchObject("gains.Gain", 1, t7bridge.Table.of(fields))


def test_a_layer(installed: Callable[..., None], tmp_path: Path) -> None:
    """Known to `str`, `state_dict`, `load_module` and `module` without an import; entries need no PyTorch."""
    installed(ENTRIES)
    t7bridge.save(gain(), tmp_path / "gain.t7")
    assert "t7bridge_gains.layers" not in sys.modules
    assert str(gain()) == "gains.Gain(2)"
    assert "t7bridge_gains.modules" not in sys.modules
    assert list(t7bridge.state_dict(gain())) == ["gain"]
    import torch

    model = t7bridge.load_module(tmp_path / "gain.t7")
    assert model(torch.ones(1, 3, dtype=torch.float64)).tolist() == [[0.0, 2.0, 4.0]]
    t7bridge.write_module(tmp_path / "gain.t7", tmp_path / "page")
    assert "from t7bridge_gains.modules import Gain\n" in (tmp_path / "page/model.py").read_text()


@pytest.mark.slow
def test_an_operation(installed: Callable[..., None], tmp_path: Path) -> None:
    """`lua` builds it of layers of nn; without the package it is refused by its name."""
    import torch

    installed(ENTRIES[:2])
    t7bridge.save(gain(), tmp_path / "gain.t7")
    model = t7bridge.load_module(tmp_path / "gain.t7")
    example = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match=r"gains\.scale\.default"):
        t7bridge.write_lua(model, tmp_path / "lua", (example,))
    installed(ENTRIES[2:], package="operations")
    t7bridge.write_lua(model, tmp_path / "lua", (example,))
    assert ":add(nn.MulConstant(2))" in (tmp_path / "lua/model.lua").read_text()
    back = t7bridge.load_module(tmp_path / "lua/model.t7")
    assert torch.equal(back(example), model(example))


def test_a_package_that_fails_is_a_warning(installed: Callable[..., None], tmp_path: Path) -> None:
    """It is named, once, and the rest works; so is a format that takes the place of one of ours."""
    (tmp_path / "site/broken.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "site/taken.py").write_text(
        "from t7bridge.formats import FormatSpec\n"
        "FORMAT = FormatSpec('taken', 'taken', ('.pt',))\nOTHER = FormatSpec('pt', 'taken', ('.x',))\nTEXT = 'x'\n"
    )
    installed(
        [
            (extensions.LAYERS, 'my = "broken"'),
            (
                extensions.FORMATS,
                "a = taken:FORMAT\ntaken = taken:FORMAT\npt = taken:OTHER\nt = taken:TEXT\nz = broken",
            ),
        ]
    )
    with pytest.warns(T7BridgeWarning, match=r"package example adds my to t7bridge\.layers.*RuntimeError: not today"):
        assert layer_of("my.Layer") is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert table.format_named("other") is None
        assert table.format_named("other") is None
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 5
    for text in ("another name, 'taken'", "pt is that of another", ".pt is that of another", "not a FormatSpec"):
        assert any(text in shown for shown in texts), text
    assert table.FORMATS["pt"].title == "a PyTorch file"
    assert table.SUFFIXES[".pt"].name == "pt"


@pytest.mark.slow
def test_they_cost_nothing_where_all_is_known(tmp_path: Path) -> None:
    """Help, version, and what converts and shows known files do not look at the installed packages."""
    nngraph = TESTFILES / "models/unet_nngraph.t7"
    code = f"""
import os, sys, zipfile
from t7bridge.cli import main
for arguments in (["--help"], ["--version"], ["convert", "--help"], ["convert", {str(LENET)!r}, "a.pt"],
        ["convert", "a.pt", "b.t7"], ["convert", {str(nngraph)!r}, "c.safetensors"], ["inspect", {str(nngraph)!r}],
        ["verify", "a.pt", "b.t7"], ["scan", "a.pt"], ["inspect", "unpacked"]):
    if arguments[-1] == "unpacked":
        with zipfile.ZipFile("a.pt") as archive:
            archive.extractall()
        os.rename("archive", "unpacked")
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code
assert "importlib.metadata" not in sys.modules
assert not hasattr(sys.modules.get("t7bridge.extensions"), "_tried") or not sys.modules["t7bridge.extensions"]._tried
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
