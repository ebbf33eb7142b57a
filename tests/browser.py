"""A headless Chromium that tests drive, over its debugging pipe."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_PATIENCE = 60.0


class Browser:
    """One page of a browser. Errors of the page's scripts and refused resources are collected in `errors`."""

    def __init__(self, width: int = 1280, height: int = 800, *, dark: bool = False) -> None:
        assert PROGRAM is not None
        self.errors: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-extensions --hide-scrollbars"
        flags += " --disable-background-networking --disable-component-update --disable-sync"
        command = f'exec "$0" {flags} --remote-debugging-pipe --user-data-dir="$1" about:blank 3<&{theirs} 4>&{ours}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, self._folder.name],
            pass_fds=(theirs, ours),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self._text = b""
        self._number = 0
        self._session = ""
        self._loaded = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.dark(dark)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._session = ""
        os.close(self._to)
        os.close(self._from)
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, path: Path, fragment: str = "") -> float:
        """Open a page; return the seconds until it had drawn itself."""
        self.go("about:blank")  # another fragment alone would not load the page again
        begin = time.perf_counter()
        self.go(path.resolve().as_uri() + fragment)
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return time.perf_counter() - begin

    def go(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._loaded = 0
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def peak_memory(self) -> int:
        """The largest peak of memory, in bytes, of a process that shows a page: Linux only."""
        peak = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                command = status.with_name("cmdline").read_bytes()
                if b"--type=renderer" in command and os.fsencode(self._folder.name) in command:
                    kilobytes = re.search(rb"VmHWM:\s+(\d+)", status.read_bytes())
                    peak = max(peak, int(kilobytes[1]) << 10 if kilobytes else 0)
            except OSError:  # it ended meanwhile
                pass
        return peak

    def dark(self, dark: bool) -> None:
        """Prefer dark or light pages."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def click(self, x: float, y: float, times: int = 1) -> None:
        """Click at a place of the window."""
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Move the mouse with its button down."""
        (x, y), (u, v) = start, end
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for step in (0.3, 0.6, 1.0):
            at = {"x": x + (u - x) * step, "y": y + (v - y) * step}
            self.call("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=u, y=v, button="left", clickCount=1)

    def wheel(self, x: float, y: float, down: float) -> None:
        """Turn the mouse wheel at a place."""
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=down)

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"windowsVirtualKeyCode": 13} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._from], [], [], _PATIENCE)
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            self._text += part
        line, _, self._text = self._text.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        method = message.get("method")
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.errors.append(str(message["params"]["entry"]["text"]))
        return message
