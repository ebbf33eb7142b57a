"""The page that converts in the browser writes what the command line does, and nothing leaves it."""

from __future__ import annotations

import filecmp
import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from browser import PROGRAM, Browser
from helpers import ROOT, TESTFILES
from site_driver import HAS_NODE, Page, builder, served

import t7bridge
from t7bridge import Table, Tensor, TorchObject, cli

MODELS = TESTFILES / "models"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not HAS_NODE, reason="there is no node"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The page at an address, and what was asked of its host."""
    build = builder()
    cache = ROOT / "build/cache" if os.access(ROOT, os.W_OK) else tmp_path_factory.mktemp("cache")
    try:
        build.fetch_pyodide(cache)
    except subprocess.CalledProcessError:
        pytest.skip("npm has no index")
    folder = tmp_path_factory.mktemp("site")
    build.build(folder / "convert", cache)
    with served(folder) as host:
        yield host


def on_the_command_line(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a verb in a folder; return its exit code, output and messages."""
    output, messages = io.StringIO(), io.StringIO()
    here = Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(output), redirect_stderr(messages):
            code = cli.main(list(arguments))
    except SystemExit as error:
        code = int(str(error.code))
    finally:
        os.chdir(here)
    return code, output.getvalue(), messages.getvalue()


def check(page: Page, file: Path, folder: Path) -> None:
    """Each target of the page has the bytes, and the messages, of the command line."""
    (folder / file.name).write_bytes(file.read_bytes())
    code, output, messages = on_the_command_line(folder, "inspect", file.name)
    text = page.drop(file)
    assert text == (messages if code else output), file
    if code:
        return
    for label in page.targets():
        said, saved = page.convert(label)
        name = saved.name.partition("-")[2] if saved else f"{file.stem}{label}"
        if label.startswith("model.py"):
            module = name.removesuffix(".zip") if saved else file.stem
            code, output, messages = on_the_command_line(folder, "module", file.name, "-o", module)
        elif label.startswith("drawing"):
            code, output, messages = on_the_command_line(folder, "draw", file.name, "-o", f"{file.stem}.svg")
        else:
            code, output, messages = on_the_command_line(folder, "convert", file.name, name)
        assert said == (messages + output).strip(), (file, label)
        assert (saved is not None) == (code == 0), (file, label, messages)
        if saved is None:
            continue
        if label.startswith("model.py"):
            with zipfile.ZipFile(saved) as archive:
                members = {member: archive.read(member) for member in archive.namelist()}
            written = [path for path in (folder / module).rglob("*") if path.is_file()]
            assert members == {str(path.relative_to(folder)): path.read_bytes() for path in written}, file
        else:
            assert saved.read_bytes() == (folder / name).read_bytes(), (file, label)
        saved.unlink()


def test_downloads_are_those_of_the_command_line(site: tuple[str, list[str]], tmp_path: Path) -> None:
    """Models of both sides, and what is no model: outputs and messages, byte for byte, without a request.

    One of five models has more files than the page has on disk, and each part its own drawing. On a narrow screen
    nothing is beside it, and after a run that is cancelled the next one is done.
    """
    five = tmp_path / "five.t7"
    t7bridge.save(Table.of({f"net{number}": linear(number) for number in range(1, 6)}), five)
    address, asked = site
    with Browser(400, 900, dark=True) as browser:
        page = Page(browser, f"{address}/convert/index.html", tmp_path / "downloads")
        loaded = len(asked)
        files = [
            MODELS / "char_lstm_nngraph.t7",
            ROOT / "testfiles/pt/checkpoint_adam.pt",
            ROOT / "testfiles/README.md",
            five,
        ]
        for number, file in enumerate(files):
            folder = tmp_path / str(number)
            folder.mkdir()
            check(page, file, folder)
        assert asked[loaded:] == []
        drawings = {page.drawing(at) for at in ("root.net2", "root.net3")}
        assert len(drawings) == 2
        page.drawing("")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        page.drop(MODELS / "resnet_small.t7")
        button = "[...document.querySelectorAll('#targets button')].find(b => b.textContent === '.pt')"
        browser.run(f"{button}.click(); document.getElementById('cancel').click()")
        page.wait("document.getElementById('status').textContent === 'Ready.'")
        assert page.convert(".pt")[1] is not None
        assert browser.errors == []
        page.drop(ROOT / "testfiles/bad/call_nested_file.pt")
        page.wait("document.getElementById('safety').textContent.includes('forbidden global: posix.system')")
        with served(tmp_path) as (elsewhere, heard):
            request = f"fetch('{elsewhere}/', {{ mode: 'no-cors' }}).then(() => true, () => false)"
            assert not browser.run(request)
            assert heard == []
            browser.go(f"{elsewhere}/")  # where no policy holds, the same request is sent
            assert browser.run(request)


@pytest.mark.fuzz
def test_large_files_stay_on_disk(site: tuple[str, list[str]], tmp_path: Path) -> None:
    """A tab that converts 500 MB has no more than 300 MB at any time, 125 of which are the browser's program."""
    layers = Table.of({number: linear(4096) for number in range(1, 9)})
    source = tmp_path / "large.t7"
    t7bridge.save(TorchObject("nn.Sequential", 1, Table.of({"modules": layers})), source)
    address, _ = site
    with Browser(1400, 1000) as browser:
        page = Page(browser, f"{address}/convert/index.html", tmp_path / "downloads")
        page.drop(source)
        for label in (".pt", ".safetensors"):
            _, saved = page.convert(label)
            on_the_command_line(tmp_path, "convert", "large.t7", f"wanted{label}")
            assert saved is not None
            assert filecmp.cmp(saved, tmp_path / f"wanted{label}", shallow=False)
        assert browser.peak_memory() < 300_000_000


def linear(size: int) -> TorchObject:
    """A square layer of floats."""
    weight = np.random.default_rng(size).standard_normal((size, size), dtype="f4")
    fields = {"weight": Tensor.from_numpy(weight), "bias": Tensor.from_numpy(weight[0].copy())}
    return TorchObject("nn.Linear", 1, Table.of(fields))


@pytest.mark.fuzz
def test_all_models_and_damaged_files(site: tuple[str, list[str]], tmp_path: Path) -> None:
    """Each model of the corpus, and each damaged file, is on the page what it is on the command line."""
    address, asked = site
    files = sorted(MODELS.glob("*.t7")) + sorted((ROOT / "testfiles/bad").iterdir())
    with Browser(1400, 1000) as browser:
        page = Page(browser, f"{address}/convert/index.html", tmp_path / "downloads")
        loaded = len(asked)
        for number, file in enumerate(files):
            if file.is_file():
                folder = tmp_path / str(number)
                folder.mkdir()
                check(page, file, folder)
        # Where Python ended it was loaded again; nothing else was asked for.
        assert set(asked[loaded:]) <= set(asked[:loaded])
