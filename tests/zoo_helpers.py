"""Shared helpers for zoos: trees as hashes, servers, and the processes of a run."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from helpers import PATIENCE

ROOT = Path(__file__).parents[1]
JOURNAL = "t7bridge-zoo.sqlite"


def tree(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder but the journal."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != JOURNAL
    }


def verdicts(folder: Path) -> dict[str, str]:
    """Return the report's entry of each file."""
    return {row["name"]: row["status"] for row in json.loads((folder / "report.json").read_text())["table"]}


def command(*arguments: object) -> list[str]:
    """The command line of a run."""
    return [sys.executable, "-m", "t7bridge", "zoo", *map(str, arguments)]


def zoo(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    env = {**os.environ, **environment}
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, env=env, timeout=PATIENCE)


def workers_of(pid: int) -> list[int]:
    """The worker processes of a run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if b"zoo.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until something is true; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def answers(url: str) -> bool:
    """Return whether a server answers."""
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError as error:
        return hasattr(error, "code")
    return True


@contextlib.contextmanager
def web_server(folder: Path, slow: str = "") -> Iterator[tuple[str, threading.Event]]:
    """A web server with the files of a folder; what is called `slow` comes only in part, and then nothing.

    Yields:
        Its address, and what is set once somebody waits for the slow file.
    """
    waits, over = threading.Event(), threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

        def copyfile(self, source: Any, outputfile: Any) -> None:
            data = source.read()
            if slow and self.path.endswith(slow) and "Range" not in self.headers:
                outputfile.write(data[:8])
                outputfile.flush()
                if len(data) > 1000:
                    waits.set()
                    over.wait(PATIENCE)
                    return
                data = data[8:]
            with contextlib.suppress(OSError):
                outputfile.write(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", waits
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def process(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended at the end."""
    running = subprocess.Popen(arguments, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options})
    try:
        yield running
    finally:
        running.kill()
        running.wait()


_ports = itertools.count()


def free_port() -> int:
    """A port that nobody listens on, nor will: below those that the system chooses, and another in each process."""
    while True:
        port = 10_000 + (7 * os.getpid() + next(_ports)) % 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
