"""Files at addresses: ranges over HTTP and from stores, members of archives, and what can go wrong on the way."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import re
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import TESTFILES, run_here
from zoo_helpers import answers, free_port, process, wait_for

import t7bridge
from t7bridge.errors import MissingFileError, T7BridgeError, TruncatedError, UnsupportedError, WriteError
from t7bridge.io import remote
from t7bridge.io.source import is_address

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
LINEAR = TESTFILES / "nn" / "Linear.t7"
WORDS = 1 << 19
"""Elements of each tensor of the large file."""


class Server(http.server.ThreadingHTTPServer):
    """Serves the files of a folder, in a manner that the first part of the path names.

    Attributes:
        sent: bytes of files sent.
        asked: requests for them.
        requests: all requests.
        at_once: the ranges that are being sent, and the most that were.
        arrived: set by each range that is asked for.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, folder))
        self.reset()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def reset(self) -> None:
        """Begin to count."""
        self.sent = self.asked = self.requests = 0
        self.at_once = [0, 0]
        self.arrived = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    """`ranges` as it should be; the others are servers and days as they are."""

    protocol_version = "HTTP/1.1"
    server: Server

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder = folder
        super().__init__(*arguments)  # type: ignore[arg-type]

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.server.requests += 1
        if "/headless/" in self.path:
            self.send_error(405)
        elif not self.attack():
            self.reply(b"")

    def attack(self) -> bool:
        """Answer as a server that means harm does, if the path asks for that."""
        _, manner, name = self.path.split("/")
        if manner.startswith("to-"):
            self.send_response(302)
            host = {"6": "[::1]", "mapped": "[::ffff:127.0.0.1]"}.get(manner[3:], manner[3:])
            self.send_header("Location", f"http://{host}:{self.server.server_port}/ranges/{name}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return True
        if manner not in ("endless", "inflating") and (manner != "flood" or "Range" not in self.headers):
            return False
        data = b"]" * (12 << 20)
        self.send_response(206 if manner == "flood" else 200)
        if manner == "flood":
            self.send_header("Content-Range", self.headers["Range"].replace("=", " ") + "/2000000")
        if manner == "inflating":
            data = gzip.compress(data)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.command == "GET":
            with contextlib.suppress(OSError):  # nobody listens any more
                self.wfile.write(data)
        return True

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.attack():
            return
        _, manner, name = self.path.split("/")
        if manner == "refused" or not (self.folder / name).is_file():
            self.send_error(403 if manner == "refused" else 404)
            return
        self.server.asked += 1
        size = (self.folder / name).stat().st_size
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if manner != "whole" else None
        first, last = (int(part[1]), min(int(part[2]), size - 1)) if part else (0, size - 1)
        with open(self.folder / name, "rb") as file:
            file.seek(first)
            data = file.read(last - first + 1)
        if manner == "pairs" and first:
            self.wait_for_another(last + 1 == size)
        if manner == "elsewhere" and first:
            first, last = first - 1, last - 1
        if manner == "cut" or (manner == "later" and first):
            data, self.close_connection = data[: len(data) // 2], True
        elif manner == "short" and first:
            data, last = data[: len(data) // 2], first + len(data) // 2 - 1
        self.server.sent += len(data)
        self.reply(data, (first, last, size) if part else None)

    def wait_for_another(self, is_last: bool) -> None:
        """Send a range only while another is asked for."""
        self.server.arrived.set()
        self.server.at_once[0] += 1
        self.server.at_once[1] = max(self.server.at_once)
        if not is_last:
            self.server.arrived.clear()
            assert self.server.at_once[0] > 1 or self.server.arrived.wait(20)
        self.server.at_once[0] -= 1

    def reply(self, data: bytes, part: tuple[int, int, int] | None = None) -> None:
        """Send headers, of the whole file without a part, and bytes."""
        _, manner, name = self.path.split("/")
        path = self.folder / name
        if manner == "refused" or not path.is_file():
            self.send_error(403 if manner == "refused" else 404)
            return
        first, last, size = part or (0, path.stat().st_size - 1, path.stat().st_size)
        self.send_response(206 if part else 200)
        if manner != "nameless":
            self.send_header("Content-Length", str(last - first + 1))
        else:
            self.send_header("Connection", "close")
        if part:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        version: object = 1
        if manner == "changing" or (manner == "overwritten" and self.command == "HEAD"):
            version = self.server.asked
        elif manner.startswith("version"):  # the file is replaced after some requests, and then has other bytes
            version = self.server.requests > int(manner[7:])
            data = data.replace(b"\0", b"\1") if version else data
        elif manner == "overwritten" and part is not None and last == 0:
            version = "other"
        self.send_header("Last-Modified" if manner.startswith("version") else "ETag", f'"{version}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large file in two formats, a small one, and an archive of both."""
    folder = tmp_path_factory.mktemp("served")
    value = {f"layer{n}": {"weight": np.full(WORDS, n, "f4"), "bias": np.arange(9.0)} for n in range(12)}
    t7bridge.save(value, folder / "large.t7")
    t7bridge.save(value, folder / "large.pt")
    (folder / "small.t7").write_bytes(LINEAR.read_bytes())
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.write(folder / "large.t7", "deep/large.t7")
        file.write(folder / "small.t7", "small.t7")
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    """The server of these files."""
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(running: Server) -> Server:
    """The same, with the counts at zero."""
    running.reset()
    return running


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("https://host/x.t7", True),
        ("zip://a/b.t7::s3://bucket/x.zip", True),
        ("simplecache::https://host/x", True),
        ("s3://b", True),
        ("C:\\nets\\x.t7", False),
        ("C://x", False),
        ("a::b.t7", False),
        ("nets.py:Net", False),
        ("torchvision.models:resnet18", False),
        ("x.t7", False),
    ],
)
def test_what_is_an_address(name: str, wanted: bool) -> None:
    """Paths of Windows and factories are none."""
    assert is_address(name) is wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.t7", "large.pt"])
def test_headers_only(server: Server, folder: Path, name: str) -> None:
    """A summary costs the headers of a file, a conversion its bytes once."""
    summary, wanted = t7bridge.inspect(f"{server.url}/ranges/{name}"), t7bridge.inspect(folder / name)
    assert str(summary) == str(wanted)
    assert server.sent <= (1 << 20) + (30 << 14)  # the first request, and a block for each storage
    assert t7bridge.describe(f"{server.url}/ranges/small.t7") == t7bridge.describe(LINEAR)


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["ranges", "whole", "nameless"])
@pytest.mark.parametrize("name", ["large.t7", "large.pt"])
def test_same_output(server: Server, folder: Path, tmp_path: Path, manner: str, name: str) -> None:
    """Whatever a server offers, the output is that of the local file."""
    for suffix in ("pt", "t7", "safetensors"):
        t7bridge.convert(f"{server.url}/{manner}/{name}", tmp_path / f"far.{suffix}")
        t7bridge.convert(folder / name, tmp_path / f"near.{suffix}")
        assert (tmp_path / f"far.{suffix}").read_bytes() == (tmp_path / f"near.{suffix}").read_bytes()
    if manner == "ranges":
        assert server.sent < 3.3 * (folder / name).stat().st_size
        assert server.asked < 120


@pytest.mark.parametrize(
    ("verb", "size", "most"),
    [("inspect", 1000, 2), ("inspect", 1_000_000, 2), ("scan", 1_000_000, 2), ("convert", 1_000_000, 2),
     ("inspect", 3_000_000, 4), ("convert", 12_000_000, 4), ("verify", 3_000_000, 3)],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["t7", "pt"])
def test_requests(server: Server, folder: Path, tmp_path: Path, verb: str, size: int, most: int, suffix: str) -> None:
    """A file of a megabyte is one answer, however many layers it has, and one request checks it at the end."""
    path = folder / f"{size}.{suffix}"
    layers = 40
    if not path.exists():
        t7bridge.save({f"layer{n}": np.full(size // layers // 4, n, "f4") for n in range(layers)}, path)
    url = f"{server.url}/headless/{path.name}" if verb == "scan" else f"{server.url}/ranges/{path.name}"
    if verb == "convert":
        t7bridge.convert(url, tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz") as arrays:
            assert all((arrays[f"layer{n}"] == n).all() for n in range(layers))
    elif verb == "verify":
        assert t7bridge.verify(url, path).same
    else:
        getattr(t7bridge, verb)(url)
    if suffix == "pt" and size > 1 << 20:
        most += 1  # the directory of a zip archive is at its end
    if verb == "scan":
        most += 1  # a server without HEAD is asked for a byte
    assert server.requests <= most
    assert server.sent <= 1.2 * path.stat().st_size + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.t7", "large.pt"])
def test_two_ranges_ahead(server: Server, folder: Path, tmp_path: Path, name: str) -> None:
    """Ranges of a conversion are asked for two at a time, each byte once."""
    t7bridge.convert(f"{server.url}/pairs/{name}", tmp_path / "far.npz")
    t7bridge.convert(folder / name, tmp_path / "near.npz")
    assert (tmp_path / "far.npz").read_bytes() == (tmp_path / "near.npz").read_bytes()
    assert server.at_once == [0, 2]
    assert server.requests <= 7
    assert server.sent < 1.05 * (folder / name).stat().st_size


class Ranges:
    """A file of zeros on a server, which notes the blocks that each request asks for: the first, and that behind."""

    refuses_other_versions = True

    def __init__(self, blocks: int) -> None:
        self.size = blocks * remote._BLOCK_BYTES
        self.asked: list[tuple[int, int]] = []

    def begin(self) -> bytes:
        """Return the first four blocks."""
        return bytes(4 * remote._BLOCK_BYTES)

    def fetch(self, start: int, end: int) -> bytes:
        """Return a range of bytes."""
        self.asked.append((start // remote._BLOCK_BYTES, end // remote._BLOCK_BYTES))
        return bytes(end - start)


def test_only_the_last_run_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that comes to the end of the file, where one was before, is the last one: no other is read ahead again."""
    server = Ranges(100)
    monkeypatch.setattr(remote, "_MOST_BLOCKS", 8)
    monkeypatch.setattr(remote, "server_of", lambda name: server)
    file = remote.Remote("memory://zeros")
    for number in (99, *range(4, 12), *range(95, 99)):
        file.read_into(number * remote._BLOCK_BYTES, memoryview(bytearray(remote._BLOCK_BYTES)))
    assert (98, 100) in server.asked
    assert (28, 36) not in server.asked


@pytest.mark.parametrize("after", [1, 2, 4, 6])
@pytest.mark.parametrize("name", ["large.t7", "large.pt"])
def test_versions_are_not_mixed(server: Server, folder: Path, tmp_path: Path, after: int, name: str) -> None:
    """A file that is replaced after any request is an error, or all of what it was."""
    path = tmp_path / "out.npz"
    message = ""
    try:
        t7bridge.convert(f"{server.url}/version{after}/{name}", path)
    except T7BridgeError as error:
        message = str(error)
    assert path.exists() == (not message)
    if after < server.requests:
        assert "has changed while it was read" in message
    else:
        with np.load(path) as arrays:
            assert all((arrays[f"layer{n}.weight"] == n).all() for n in range(12))


def test_answers_are_checked_once(server: Server) -> None:
    """A call checks its inputs at its end; what is read after it is checked at once."""
    t7bridge.load(f"{server.url}/ranges/small.t7")
    assert server.requests == 2
    with t7bridge.open(f"{server.url}/ranges/large.t7") as document:
        requests = server.requests
        assert len(document.value) == 12
        asked = server.asked
        assert asked > 4
        assert server.requests - requests == 2 * (asked - 2)


@pytest.mark.slow
def test_arrays(server: Server) -> None:
    """Storages are fetched when their elements are."""
    value = t7bridge.load(f"{server.url}/ranges/large.t7")
    assert server.sent < (1 << 20) + (30 << 14)
    assert (value["layer7"]["weight"].numpy() == 7).all()
    assert server.sent < 8 * WORDS


@pytest.mark.parametrize(
    ("manner", "kind", "words"),
    [
        ("refused", T7BridgeError, "cannot be read: 403 Forbidden"),
        ("cut", T7BridgeError, "not completed|not all bytes arrived|Not enough data"),
        ("later", T7BridgeError, "not completed|not all bytes arrived|Not enough data"),
        ("short", TruncatedError, r"byte [\d ]+.*: not all bytes arrived; expected \d+ bytes; found"),
        ("changing", T7BridgeError, "has changed while it was read. Run it again"),
        ("overwritten", T7BridgeError, "has changed while it was read. Run it again"),
        ("elsewhere", T7BridgeError, "the server sends another part than it was asked for"),
    ],
)
@pytest.mark.parametrize("name", ["large.t7", "large.pt"])
def test_bad_days(server: Server, tmp_path: Path, manner: str, kind: type, words: str, name: str) -> None:
    """One error that names the address, and no output."""
    url = f"{server.url}/{manner}/{name}"
    for call in (t7bridge.inspect, lambda source: t7bridge.convert(source, tmp_path / "out.pt")):
        with pytest.raises(kind, match=words) as found:
            call(url)
        assert found.value.file == url
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        ("endless", "sends more than 1 048 576 bytes. If that is right, download the file"),
        ("inflating", "sends more than 1 048 576 bytes"),
        ("flood", "the server sends more than it was asked for"),
    ],
)
def test_answers_without_end(server: Server, monkeypatch: pytest.MonkeyPatch, manner: str, words: str) -> None:
    """What a server sends beyond what it announced is neither written nor kept."""
    monkeypatch.setattr("t7bridge.io.addresses._MOST_UNANNOUNCED", 1 << 20)
    with pytest.raises(T7BridgeError, match=words):
        t7bridge.load(f"{server.url}/{manner}/small.t7")


def test_redirects(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public server cannot have a private address read; a private one can name others."""
    assert t7bridge.load(f"{server.url}/to-localhost/small.t7")
    monkeypatch.setattr("t7bridge.io.addresses._is_private", lambda host: False)
    for host in ("localhost", "127.0.0.1", "6", "mapped", "169.254.169.254", "10.0.0.1"):
        with pytest.raises(T7BridgeError, match="leads to a private address"):
            t7bridge.load(f"{server.url}/to-{host}/small.t7")


def test_members_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of an archive may grow to a hundred times its size; to more, only as an answer without end may."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.t7", bytes(1 << 21))
        file.write(LINEAR, "small.t7")
    with t7bridge.open(f"zip://small.t7::{tmp_path}/x.zip") as document:
        assert document.roots
    monkeypatch.setattr("t7bridge.io.addresses._MOST_UNANNOUNCED", 1 << 20)
    with pytest.raises(T7BridgeError, match="sends more than"):
        t7bridge.load(f"zip://zeros.t7::{tmp_path}/x.zip")


def test_nothing_there(server: Server) -> None:
    """A missing file, and a server that does not answer, are told apart."""
    with pytest.raises(MissingFileError, match=r"none\.t7: cannot be read: no such file\. Check"):
        t7bridge.load(f"{server.url}/ranges/none.t7")
    with pytest.raises(T7BridgeError, match="Cannot connect to host 127") as found:
        t7bridge.load(f"http://127.0.0.1:{free_port()}/x.t7")
    assert not isinstance(found.value, MissingFileError)
    with pytest.raises(T7BridgeError, match="cannot be reached: Protocol not known: foo"):
        t7bridge.load("foo://x.t7")


@pytest.mark.slow
def test_archives_and_memory(server: Server, folder: Path, tmp_path: Path) -> None:
    """Members of archives, also of one on a server, and files in memory."""
    system = fsspec.filesystem("memory")
    system.pipe("/some/large.t7", (folder / "large.t7").read_bytes())
    for url in (
        f"zip://deep/large.t7::{folder}/all.zip",
        f"zip://deep/large.t7::{server.url}/ranges/all.zip",
        "memory://some/large.t7",
        f"file://{folder}/large.t7",
    ):
        report = t7bridge.verify(url, folder / "large.pt")
        assert report.same
    with pytest.raises(UnsupportedError, match=r"is a folder. Give the address of a file; t7bridge zoo takes folders"):
        t7bridge.load("memory://some")
    with t7bridge.open("memory://some/large.t7") as document:
        system.pipe("/some/large.t7", (folder / "small.t7").read_bytes())
        with pytest.raises(T7BridgeError, match="has changed"):
            document.value  # noqa: B018
    system.rm("/some", recursive=True)


VERBS: dict[str, list[str]] = {
    "describe": ["URL"],
    "diff": ["URL", "FILE"],
    "draw": ["URL", "-o", "OUT.svg"],
    "export": ["URL", "OUT.pt2", "--input", "2x5"],
    "inspect": ["URL"],
    "match": ["URL", "FILE"],
    "module": ["URL", "-o", "OUT"],
    "prove": ["URL"],
    "scan": ["URL"],
    "verify": ["FILE", "URL"],
    "zoo": ["URL", "-o", "OUT", "--workers", "0"],
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_verbs(server: Server, tmp_path: Path, verb: str) -> None:
    """Every verb that reads a file reads one at an address."""
    words = {"URL": f"{server.url}/ranges/small.t7", "FILE": str(LINEAR)}
    given = [words.get(each, each.replace("OUT", str(tmp_path / "out"))) for each in VERBS[verb]]
    run, here = (
        run_here(verb, *given),
        run_here(verb, *(str(LINEAR) if each == words["URL"] else each for each in given)),
    )
    assert server.asked
    assert run.returncode in (0, here.returncode), run.stderr  # the second time there are outputs
    assert "error" not in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["scan", "inspect", "export", "verify", "prove"])
def test_standard_input(tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is standard input."""
    source = TESTFILES / "prove" / "lenet.eval.t7" if verb == "prove" else LINEAR
    more = {"verify": [LINEAR], "export": [tmp_path / "out.pt2", "--input", "2x5"]}
    with open(source) as file:
        monkeypatch.setattr("sys.stdin", file)
        run = run_here(verb, "-", *more.get(verb, ()))
    assert run.returncode == 0, run.stderr


def writes(target: str) -> list[Callable[[], object]]:
    return [
        lambda: t7bridge.convert(LINEAR, f"{target}.pt"),
        lambda: t7bridge.save({"x": np.ones(2)}, f"{target}.pt"),
        lambda: t7bridge.write_module(LINEAR, target),
        lambda: t7bridge.draw(LINEAR, f"{target}.svg"),
        lambda: t7bridge.export(LINEAR, f"{target}.pt2", input="2x5"),
    ]


def test_outputs_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder called `s3:` is made."""
    monkeypatch.chdir(tmp_path)
    for write in writes("s3://bucket/out"):
        with pytest.raises(WriteError, match=r"outputs cannot be addresses. Write to a path"):
            write()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "url", "library"),
    [("fsspec.core", "https://h/x", "fsspec aiohttp"), ("aiohttp", "http://h/x", "aiohttp"),
     ("s3fs", "s3://b/x", "s3fs"), ("huggingface_hub", "hf://a/b/x", "huggingface_hub"),
     ("s3fs", "zip://x::s3://b/x.zip", "s3fs"), ("fsspec.core", "s3://b/x", "fsspec s3fs")],
)  # fmt: skip
def test_missing_libraries(hidden: str, url: str, library: str) -> None:
    """The error names the library."""
    code = f"import sys; sys.modules[{hidden!r}] = None; from t7bridge.cli import main; sys.exit(main(sys.argv[1:]))"
    run = subprocess.run(
        [sys.executable, "-c", code, "inspect", url], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert run.returncode == 2
    assert f"pip install {library}" in run.stderr


@pytest.mark.slow
def test_s3(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a bucket are read by few ranges; one that is replaced meanwhile is an error."""
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
    log = tmp_path / "requests.txt"

    def requests(name: str) -> int:
        return log.read_text().count(f"/zoo/{name} HTTP")

    with (
        open(log, "wb") as lines,
        process(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), stderr=lines),
    ):
        wait_for(lambda: answers(url))
        urllib.request.urlopen(urllib.request.Request(f"{url}/zoo", method="PUT")).close()
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.put_file(str(folder / "large.t7"), "zoo/large.t7")
        before = requests("large.t7")
        t7bridge.convert("s3://zoo/large.t7", tmp_path / "far.pt")
        assert requests("large.t7") - before <= 5  # 25 MB: what it is, the first megabyte, three ranges
        t7bridge.convert(folder / "large.t7", tmp_path / "near.pt")
        assert (tmp_path / "far.pt").read_bytes() == (tmp_path / "near.pt").read_bytes()
        names = [f"models/{number}.t7" for number in range(3)]
        for name in names:
            system.put_file(str(folder / "small.t7"), f"zoo/{name}")
        before = sum(map(requests, names))
        assert t7bridge.convert_zoo("s3://zoo/models", tmp_path / "zoo", workers=1).ok
        assert sum(map(requests, names)) - before == 2 * len(names)  # the first bytes for the plan, then all
        assert "models%2F0.t7" not in log.read_text()  # no store is asked whether a file is a folder
        with pytest.raises(MissingFileError):
            t7bridge.load("s3://zoo/none.t7")
        with pytest.raises(UnsupportedError, match="is a folder"):
            t7bridge.load("s3://zoo")
        with t7bridge.open("s3://zoo/large.t7") as document:
            system.put_file(str(folder / "small.t7"), "zoo/large.t7")
            with pytest.raises(T7BridgeError, match=r"zoo/large\.t7: "):
                document.value  # noqa: B018
