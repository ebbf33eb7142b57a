"""Build the page that converts in the browser: `python site/build.py [FOLDER]`.

Python for browsers is Pyodide, from its npm package. The page, the library and attrs, with what Python compiles of
them, stand beside it; any static host serves the folder.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
PYODIDE = "pyodide@314.0.7"
# Of the package's archive, as npm's own lock files have it.
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
SAMPLE = ROOT / "testfiles/models/resnet_small.t7"
HOME = "../index.html"
"""The documentation, from the page's folder."""


def fetch_pyodide(cache: Path) -> Path:
    """Return the archive of the npm package, which is downloaded if the cache does not have it.

    Raises:
        ValueError: it is not the archive that this file names.
    """
    archive = cache / f"{PYODIDE.replace('@', '-')}.tgz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", PYODIDE, "--pack-destination", cache], check=True, stdout=sys.stderr)
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        archive.unlink()
        raise ValueError(f"{PYODIDE} is sha512-{digest}, expected {INTEGRITY}")
    return archive


def unpack_pyodide(archive: Path, target: Path) -> None:
    """Unpack what the page needs, and a list of no packages: the page loads none."""
    target.mkdir(parents=True)
    with tarfile.open(archive) as package:
        for name in RUNTIME:
            member = package.extractfile(f"package/{name}")
            assert member is not None, name
            (target / name).write_bytes(member.read())
        lock = package.extractfile("package/pyodide-lock.json")
        assert lock is not None
        info = json.load(lock)["info"]
    (target / "pyodide-lock.json").write_text(json.dumps({"info": info, "packages": {}}))


def collect_library(folder: Path) -> None:
    """Copy the library, attrs and the bridge between page and library."""
    shutil.copytree(ROOT / "t7bridge", folder / "t7bridge", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("attr", "attrs"):
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        source = Path(spec.origin).parent
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    shutil.copy(SITE / "bridge.py", folder)


COMPILE = """
import {{ loadPyodide }} from {module};
const python = await loadPyodide({{ indexURL: {runtime} }});
python.FS.mkdir("/library");
python.FS.mount(python.FS.filesystems.NODEFS, {{ root: {library} }}, "/library");
const done = python.runPython(`
import compileall, py_compile
compileall.compile_dir("/library", quiet=1, stripdir="/library",
                       invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
`);
if (!done) process.exit(1);
"""
"""A program for node: the Python of the page compiles the library, which takes three seconds there otherwise."""


def compile_library(runtime: Path, library: Path) -> None:
    """Compile a folder by the Python of the page."""
    text = COMPILE.format(
        module=json.dumps((runtime / "pyodide.mjs").as_uri()),
        runtime=json.dumps(f"{runtime}/"),
        library=json.dumps(str(library)),
    )
    subprocess.run(["node", "--input-type=module", "-e", text], check=True)


def pack(folder: Path, target: Path) -> None:
    """Pack a folder into a file that the page mounts where it is, the same bytes each time.

    It is compressed by gzip: the length of an index in 8 digits, the index, and the files one after the other. The
    index is that of Emscripten's file packager: each file's path, and where it starts and ends behind the index.
    """
    files = []
    contents = []
    position = 0
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        content = file.read_bytes()
        end = position + len(content)
        files.append({"filename": f"/{file.relative_to(folder).as_posix()}", "start": position, "end": end})
        contents.append(content)
        position = end
    index = json.dumps(files).encode()
    packed = gzip.compress(b"%08d%s%s" % (len(index), index, b"".join(contents)), mtime=0)
    target.write_bytes(packed)


def scripts_of_drawings() -> list[str]:
    """Return the sources that the policy of a drawing allows: the page shows drawings, under its own policy too."""
    import t7bridge

    with tempfile.TemporaryDirectory() as folder:
        drawing = Path(folder, "drawing.html")
        t7bridge.draw(SAMPLE, drawing)
        policy = re.search(r"script-src ([^;\"]+)", drawing.read_text("utf-8"))
    assert policy is not None
    return policy[1].split()


def write_pages(target: Path) -> None:
    """Write the page, which loads nothing but itself, and the one that may load a file from an address."""
    import t7bridge

    scripts = " ".join(scripts_of_drawings())
    template = (SITE / "index.html").read_text("utf-8")
    for name, connect in (("index.html", "'self'"), ("address.html", "'self' https:")):
        policy = (
            f"default-src 'none'; script-src 'self' blob: 'wasm-unsafe-eval' {scripts}; worker-src blob:; "
            f"connect-src {connect}; style-src 'self' 'unsafe-inline'; img-src data:; frame-src blob:; "
            "base-uri 'none'; form-action 'none'"
        )
        has_address = name != "index.html"
        text = template.format(
            policy=policy,
            version=html.escape(t7bridge.__version__),
            home=HOME,
            from_hidden="" if has_address else "hidden",
            link_hidden="hidden" if has_address else "",
        )
        (target / name).write_text(text, "utf-8")
    for name in ("page.js", "page.css", "worker.js"):
        shutil.copy(SITE / name, target)
    shutil.copy(SAMPLE, target / "sample.t7")


def build(target: Path, cache: Path) -> None:
    """Build the page in a folder, which is replaced."""
    archive = fetch_pyodide(cache)
    shutil.rmtree(target, ignore_errors=True)
    unpack_pyodide(archive, target / "pyodide")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder)
        collect_library(library)
        compile_library(target / "pyodide", library)
        pack(library, target / "library.gz")
    write_pages(target)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site/convert").resolve(), ROOT / "build/cache")
