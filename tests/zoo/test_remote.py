"""Inputs and outputs on other file systems: memory, HTTP, S3, archives."""

import os
import random
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from helpers import run_here
from zoo_helpers import JOURNAL, answers, free_port, process, tree, verdicts, wait_for, web_server, zoo
from zoo_maker import LITTLE8, linear, make_zoo, tensor

import t7bridge
from t7bridge.errors import ModelError, T7BridgeError, UnsupportedError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo, and the result of a run on local folders."""
    folder = tmp_path_factory.mktemp("remote")
    make_zoo(folder / "zoo", 100)
    t7bridge.convert_zoo(folder / "zoo", folder / "out", workers=0)
    return folder


@pytest.fixture
def memory() -> Iterator[object]:
    """fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.mark.slow
def test_memory(local: Path, tmp_path: Path, memory) -> None:  # type: ignore[no-untyped-def]
    """A zoo in memory has the same bytes; the journal is there too, and is resumed."""
    memory.put(str(local / "zoo"), "/zoo", recursive=True)
    t7bridge.convert_zoo("memory://zoo", "memory://out", max_files=30)
    report = t7bridge.convert_zoo("memory://zoo", "memory://out")
    again = t7bridge.convert_zoo("memory://zoo", "memory://out")
    memory.get("/out", str(tmp_path / "out"), recursive=True)

    assert tree(tmp_path / "out") == tree(local / "out")
    assert sum(report.now.values()) == sum(status != "foreign" for status in verdicts(local / "out").values()) - 30 + 1
    assert again.now == {}


def test_memory_is_seen_by_this_process_only(memory, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Places in memory are refused if other processes would have to access them."""
    memory.pipe("/zoo/a.t7", tensor(random.Random(1)))

    with pytest.raises(ModelError, match="limits need worker processes"):
        t7bridge.convert_zoo("memory://zoo", tmp_path / "out", timeout=3)
    with pytest.raises(ModelError, match="other processes cannot access"):
        t7bridge.convert_zoo("memory://zoo", tmp_path / "out", engine="dask")


def test_foreign_files_with_names_of_pictures_stay(memory) -> None:  # type: ignore[no-untyped-def]
    """In a store, too, a file with the name of a picture that no run has drawn is not replaced; our own is."""
    memory.pipe("/zoo/a.t7", linear(random.Random(1), LITTLE8))
    memory.pipe("/out/a.pt.html", b"<p>mine")
    (row,) = t7bridge.convert_zoo("memory://zoo", "memory://out", draw=True).rows
    assert (row.status, row.notes[-1][2]) == ("done", "no picture: a foreign file has the name of the picture")
    assert memory.cat("/out/a.pt.html") == b"<p>mine"

    memory.rm("/out/a.pt.html")
    for force in (False, True):
        t7bridge.convert_zoo("memory://zoo", "memory://out", draw=True, prove=force, force=force)
    assert b"t7bridge draw" in memory.cat("/out/a.pt.html")


def test_names_of_archives_stay_inside(tmp_path: Path) -> None:
    """A member that is called `../x` stays in the output folder."""
    with zipfile.ZipFile(tmp_path / "zoo.zip", "w") as file:
        file.writestr("../../evil.t7", tensor(random.Random(1)))
        file.writestr("good.t7", tensor(random.Random(2)))
    t7bridge.convert_zoo(f"zip://::{tmp_path}/zoo.zip", tmp_path / "a/b/out", workers=0)

    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.pt")}
    assert found == {"a/b/out/__/__/evil.pt", "a/b/out/good.pt"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives(local: Path, tmp_path: Path, kind: str) -> None:
    """The members of an archive are a zoo, and are gone on with."""
    archive = shutil.make_archive(str(tmp_path / "zoo"), kind, local / "zoo")
    source = f"{kind}://::{archive}"
    t7bridge.convert_zoo(source, tmp_path / "out", workers=2)

    assert tree(tmp_path / "out") == tree(local / "out")
    assert t7bridge.convert_zoo(source, tmp_path / "out").now == {}


@pytest.mark.slow
def test_web_server(local: Path, tmp_path: Path) -> None:
    """The files that the pages of a web server link to are a zoo; single ones are files."""
    pytest.importorskip("aiohttp")
    with web_server(local / "zoo") as (url, _):
        run = zoo(f"{url}/", "-o", tmp_path / "out", "--workers", 2)
        again = zoo(f"{url}/", "-o", tmp_path / "out", "--workers", 0, "--json")
        name = next(name for name, status in sorted(verdicts(local / "out").items()) if status == "done")
        single = zoo(f"{url}/{name}", "-o", tmp_path / "single", "--workers", 0)

    assert (run.returncode, single.returncode) == (1, 0)
    assert tree(tmp_path / "out") == tree(local / "out")
    assert '"now": {}' in again.stdout
    assert list(verdicts(tmp_path / "single")) == [os.path.basename(name)]


def test_requests_for_a_file_of_a_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three: its size and time, its first bytes, and the whole."""
    pytest.importorskip("aiohttp")
    requests: list[str] = []
    send_response = SimpleHTTPRequestHandler.send_response

    def counted(handler: SimpleHTTPRequestHandler, *arguments: int) -> None:
        requests.append(handler.path)
        send_response(handler, *arguments)

    monkeypatch.setattr(SimpleHTTPRequestHandler, "send_response", counted)
    (tmp_path / "zoo").mkdir()
    names = [f"model{number}.t7" for number in range(4)]
    for name in names:
        (tmp_path / "zoo" / name).write_bytes(tensor(random.Random(name), count=30_000))
    with web_server(tmp_path / "zoo") as (url, _):
        report = t7bridge.convert_zoo(f"{url}/", tmp_path / "out", workers=0)

    assert report.counts["done"] == 4
    assert Counter(requests) == {"/": 1, **{f"/{name}": 3 for name in names}}


@pytest.mark.slow
def test_s3(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket is a source and a target, and a second run finds the journal there."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    with process(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)):
        wait_for(lambda: answers(url))
        urllib.request.urlopen(urllib.request.Request(f"{url}/zoo", method="PUT")).close()
        # With and without workers, in processes and here: each process that loads s3fs takes more than a second.
        there = zoo(local / "zoo", "-o", "s3://zoo/out", "--workers", 2, "--max-files", 40)
        rest = run_here("zoo", local / "zoo", "-o", "s3://zoo/out", "--workers", 0, "--json")
        moved = run_here("zoo", "s3://zoo/out", "-o", "s3://zoo/back", "--workers", 1, "--to", "safetensors")
        down = run_here("zoo", "s3://zoo/out/*/*/tensor*.pt", "-o", tmp_path / "down", "--to", "t7", "--workers", 0)
        fsspec.filesystem("s3", skip_instance_cache=True).get("zoo/out", str(tmp_path / "out"), recursive=True)

    assert (there.returncode, rest.returncode) == (1, 1), there.stderr + rest.stderr
    assert len(rest.stdout.splitlines()) < len(verdicts(local / "out")) - 39
    assert tree(tmp_path / "out") == tree(local / "out")
    assert (tmp_path / "out" / JOURNAL).exists()
    assert "done" in moved.stdout
    assert down.returncode == 0, down.stderr
    for path in (tmp_path / "down").rglob("*.t7"):
        inside = path.relative_to(tmp_path / "down")
        assert path.read_bytes() == (local / "zoo" / inside).read_bytes()


def test_read_only_targets(local: Path) -> None:
    """Nothing is written to archives and web servers."""
    for target in ("http://127.0.0.1:1/out", "zip://out::/tmp/x.zip"):
        with pytest.raises(UnsupportedError, match="is read-only"):
            t7bridge.convert_zoo(local / "zoo", target)


def test_nothing_there(tmp_path: Path) -> None:
    """A URL without a file is an error that names it."""
    with pytest.raises(T7BridgeError, match="memory://nothing"):
        t7bridge.convert_zoo("memory://nothing", tmp_path / "out")
    with pytest.raises(T7BridgeError, match="gopher"):
        t7bridge.convert_zoo("gopher://x/y", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "arguments", "hint"),
    [
        ("fsspec", ("memory://zoo", "-o", "out"), "pip install fsspec\n"),
        ("distributed", (".", "-o", "out", "--engine", "dask"), "pip install 'dask[distributed]'"),
        ("h5py", (".", "-o", "out", "--to", "hdf5"), "pip install h5py"),
        ("safetensors", (".", "-o", "out", "--to", "safetensors", "--verify"), "pip install safetensors"),
    ],
)
def test_missing_libraries(tmp_path: Path, hidden: str, arguments: tuple[str, ...], hint: str) -> None:
    """If a library is missing, the error names the package to install; nothing else needs it."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/a.t7").write_bytes(tensor(random.Random(1)))
    code = f"import sys; sys.modules[{hidden!r}] = None; from t7bridge.cli import main; sys.exit(main(sys.argv[1:]))"
    start = [sys.executable, "-c", code, "zoo"]
    options = {"capture_output": True, "text": True, "cwd": tmp_path / "zoo", "check": False}
    asked = [argument if argument != "out" else str(tmp_path / "out") for argument in arguments]
    run = subprocess.run([*start, *asked, "--workers", "0"], **options)  # type: ignore[call-overload]
    plain = subprocess.run([*start, ".", "-o", tmp_path / "plain", "--workers", "0"], **options)  # type: ignore[call-overload]

    assert run.returncode == (1 if hidden == "h5py" else 2)
    assert hint in run.stderr + run.stdout
    assert plain.returncode == 0
