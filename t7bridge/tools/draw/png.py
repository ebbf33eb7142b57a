"""Pictures as PNG, by any installed converter of SVG."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from ...errors import UnsupportedError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LARGEST = 16_000
"""Maximum pixels of a side in browsers."""
_PATIENCE = 120


def as_png(svg: str, width: int, height: int) -> bytes:
    """Convert a picture: by CairoSVG, rsvg-convert, or a headless Chromium.

    Args:
        svg: the picture.
        width: its width, in pixels.
        height: its height.

    Raises:
        UnsupportedError: none of them is installed, or can convert this one.
    """
    data = svg.encode("utf-8", "replace")
    try:
        import cairosvg
    except ImportError:
        pass
    else:
        return bytes(cairosvg.svg2png(bytestring=data))
    program = shutil.which("rsvg-convert")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is not None:
        found = subprocess.run([program], input=data, capture_output=True, check=False).stdout
    elif browser is not None and max(width, height) <= _LARGEST:
        found = _by_browser(browser, data, width, height)
    else:
        raise UnsupportedError(
            "no converter to .png is installed",
            hint="pip install 't7bridge[png]', install rsvg-convert (librsvg), or write .svg or .html.",
        )
    if not found.startswith(b"\x89PNG"):
        raise UnsupportedError("this picture cannot be converted to .png", hint="Write .svg or .html.")
    return found


def _by_browser(program: str, svg: bytes, width: int, height: int) -> bytes:
    """Return a screenshot of the picture, which holds no scripts; empty if the browser fails."""
    with tempfile.TemporaryDirectory(prefix="t7bridge-", ignore_cleanup_errors=True) as folder:
        source, target = os.path.join(folder, "picture.svg"), os.path.join(folder, "picture.png")
        with open(source, "wb") as file:
            file.write(svg)
        flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        flags += ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        command = [program, *flags, f"--window-size={width},{height}", f"--screenshot={target}", f"file://{source}"]
        try:
            subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE)
            with open(target, "rb") as file:
                return file.read()
        except (OSError, subprocess.TimeoutExpired):
            return b""
