"""What the site has beside `docs/*.md`: pages from the top of the repository, and drawn models.

MkDocs loads it (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import t7bridge

LOG = logging.getLogger("mkdocs.hooks.site")
ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]*)(#[^)]*)?\)")
OPTION = re.compile(r"(?<=[ >])--?\w[\w-]*( [\w./]+(?=[ <]))?")
DRAWN = re.compile(r"\(drawn/([\w./]+)\.svg\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository, and the drawings that pages show as `drawn/FILE.svg`."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=relinked((ROOT / source).read_text("utf-8"), ROOT)))
    pages = [Path(file.abs_src_path).read_text("utf-8") for file in files.documentation_pages() if file.abs_src_path]
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted({name for page in pages for name in DRAWN.findall(page)}):
            picture = Path(folder, "x.svg")
            t7bridge.draw(ROOT / "testfiles" / f"{name}.t7", picture, force=True)
            files.append(File.generated(config, f"drawn/{name}.svg", content=picture.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of `docs/` to pages of the site."""
    source = page.file.abs_src_path
    return relinked(markdown, Path(source).parent) if source else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Show the bars in the code of tables, which Markdown escapes, and keep options with their values on one line."""

    def shown(code: re.Match[str]) -> str:
        return OPTION.sub(r'<span style="white-space: nowrap">\g<0></span>', code[0].replace("\\|", "|"))

    return re.sub(r"<code>[^<]*</code>", shown, html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn, which is an error in strict builds, of what a page would load from another host."""
    for found in re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"https?://[^>]*>", output):
        LOG.warning("%s loads %s", page.file.src_uri, found)
    return output


def relinked(markdown: str, folder: Path) -> str:
    """Return a text whose links lead to pages of the site; a file of the repository without one is a name."""

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = (folder / target).resolve()
        docs = ROOT / "docs"
        if not target or not path.exists() or (path.is_relative_to(docs) and folder.is_relative_to(docs)):
            return found[0]
        name = path.relative_to(ROOT).as_posix()
        if path.is_relative_to(docs):
            return f"[{text}]({path.relative_to(docs).as_posix()}{anchor})"
        up = "../" * len(folder.relative_to(docs).parts) if folder.is_relative_to(docs) else ""
        return f"[{text}]({up}{PAGES[name]}{anchor})" if name in PAGES else f"`{name}`" if text != name else text

    return LINK.sub(link, markdown)
