"""The page that converts in the browser, built, served and driven as a user would."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from browser import Browser
from helpers import ROOT, module_of

PATIENCE = 120.0
HAS_NODE = shutil.which("node") is not None and shutil.which("npm") is not None


def builder() -> Any:
    """`site/build.py` as a module."""
    return module_of(ROOT / "site/build.py")


class _Server(http.server.SimpleHTTPRequestHandler):
    """A static host that remembers what was asked for."""

    extensions_map = {  # noqa: RUF012
        **http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm",
    }  # fmt: skip
    asked: list[str] = []  # noqa: RUF012

    def log_message(self, *arguments: Any) -> None:
        """Remember the path."""
        self.asked.append(self.path)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; yield its address, and the list of the paths that were asked for."""
    handler = type("Handler", (_Server,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.asked
        server.shutdown()


class Page:
    """The opened page."""

    def __init__(self, browser: Browser, address: str, downloads: Path) -> None:
        self.browser = browser
        self.downloads = downloads
        downloads.mkdir(exist_ok=True)
        browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        browser.go(address)
        self.wait("document.getElementById('status').textContent !== 'Loading Python …'")
        assert self.status == "Ready.", self.status

    @property
    def status(self) -> str:
        """The line that says what the page does."""
        return str(self.browser.run("document.getElementById('status').textContent"))

    def text(self, name: str) -> str:
        """The text of an element."""
        return str(self.browser.run(f"document.getElementById({json.dumps(name)}).textContent"))

    def wait(self, condition: str) -> None:
        """Wait until an expression of the page is true."""
        end = time.monotonic() + PATIENCE
        while not self.browser.run(condition):
            assert time.monotonic() < end, (condition, self.status)
            time.sleep(0.03)

    def drop(self, *files: Path) -> str:
        """Drop files on the page; return the text of the first."""
        count = self.browser.run("document.querySelectorAll('#opened button').length")
        data = {"items": [], "files": [str(file.resolve()) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.browser.call("Input.dispatchDragEvent", type=kind, x=300, y=120, data=data)
        self.wait(f"document.querySelectorAll('#opened button').length === {count + len(files)}")
        self.wait("!/^(Reading|Opening)/.test(document.getElementById('status').textContent)")
        self.wait("document.getElementById('text').textContent !== '…'")
        return self.text("text")

    def drawing(self, at: str) -> str:
        """Ask for the drawing of a part; return its address when it is shown."""
        before = self.browser.run("document.getElementById('drawing').firstChild?.src ?? ''")
        self.browser.run(
            f"document.getElementById('at').value = {json.dumps(at)};"
            "document.getElementById('at').dispatchEvent(new Event('change'))"
        )
        shown = "document.getElementById('drawing').firstChild"
        self.wait(f"{shown} && ({shown}.src ?? '') !== {json.dumps(before)}")
        return str(self.browser.run(f"{shown}.src"))

    def targets(self) -> list[str]:
        """What the page offers to save."""
        return list(self.browser.run("[...document.querySelectorAll('#targets button')].map(b => b.textContent)"))

    def convert(self, label: str) -> tuple[str, Path | None]:
        """Click on a target; return what was said, and the saved file."""
        before = self.browser.run("document.querySelectorAll('#result > div').length")
        script = f"[...document.querySelectorAll('#targets button')].find(b => b.textContent === {json.dumps(label)})"
        self.browser.run(f"{script}.click()")
        self.wait(f"document.querySelectorAll('#result > div').length === {before + 1}")
        first = "document.querySelector('#result > div')"
        said = self.browser.run(f"({first}.querySelector('pre:not(.dim)') ?? {{textContent: ''}}).textContent")
        name = self.browser.run(f"{first}.querySelector('a')?.download ?? null")
        return said, None if name is None else self._saved(name)

    def _saved(self, name: str) -> Path:
        """Wait until a download is complete; it is moved away, so that the next one of its name has it.

        Headless browsers drop one in some hundred downloads that begin by themselves: then the link is clicked on.
        """
        path = self.downloads / name
        end = time.monotonic() + PATIENCE
        again = time.monotonic() + 10
        while not path.exists() or path.with_name(f"{name}.crdownload").exists():
            assert time.monotonic() < end, name
            if time.monotonic() > again and not list(self.downloads.glob("*.crdownload")):
                self.browser.run("document.querySelector('#result > div a').click()")
                again = time.monotonic() + 10
            time.sleep(0.03)
        kept = self.downloads / f"{time.monotonic_ns()}-{name}"
        path.rename(kept)
        return kept
