"""The request of a zoo: the options of `convert_zoo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from ..conversion.options import INDEX_BASE, flag, option, verb
from ..conversion.request import MODE, Conversion
from ..data import field
from ..formats import WRITABLE
from ..io.source import PathLike

if TYPE_CHECKING:
    from .journal import Record
    from .plan import RunPlan
    from .progress import Progress

_EACH, _HOW, _WHICH = "processing of each file", "execution", "selection of files"


@verb
class Zoo(Conversion):
    """Convert many files into a folder that mirrors their tree. Run the same command again to resume."""

    OLD_NAMES: ClassVar = {"limit": "max_files"}
    COMMON = ("output", "to", "force", "module", "verify", "workers", "dry_run")
    EXAMPLES = (
        "t7bridge zoo models/ -o converted/",
        "t7bridge zoo s3://bucket/nets -o out/ --to safetensors --verify",
        "t7bridge zoo models/ -o out/ --retry-failed",
    )
    sources: PathLike | Sequence[PathLike] = option(
        "file, folder, pattern, or URL (s3://, http://, zip://)", kw_only=False, metavar="SRC", nargs="+"
    )
    output: PathLike = option(
        "folder or URL for the outputs; created if missing", kw_only=False, flags=("-o", "--output"), metavar="DIR"
    )
    to: str | None = option(
        "output format (default: .pt for .t7, and .t7 for others)", default=None, choices=WRITABLE, group="output"
    )
    mode: str = MODE
    index_base: int = INDEX_BASE
    module: bool = option("write a folder with model.py and model.pt for each model", default=False, group=_EACH)
    draw: bool = option("draw each model next to its output, as NAME.html", default=False, group=_EACH)
    prove: bool = option("compare layers with what Lua Torch recorded in the file", default=False, group=_EACH)
    verify: bool = option("read each output back and compare", default=False, group=_EACH)
    engine: str = option("local processes, or a Dask cluster", default="local", choices=("local", "dask"), group=_HOW)
    workers: int | None = option(
        "number of processes (default: one a core); 0: work in this one", default=None, kind="number", metavar="N",
        group=_HOW,
    )  # fmt: skip
    scheduler: str | None = option(
        "Dask scheduler, tcp://host:8786 (default: start one)", default=None, metavar="ADDRESS", group=_HOW
    )
    timeout: float | None = option(
        "time limit for one file", default=None, kind="seconds", metavar="SECONDS", group=_HOW
    )
    memory: int | str | None = option(
        "memory limit for one file: 512M, 4G", default=None, kind="bytes", metavar="SIZE", group=_HOW
    )
    retry_failed: bool = option("retry files that failed in an earlier run", default=False, group=_WHICH)
    dry_run: bool = option("print the plan without converting", default=False, group=_WHICH)
    force: bool = option(
        "replace foreign files, and convert everything again if options changed", default=False, group=_WHICH
    )
    include: tuple[str, ...] = option(
        "convert only files with such a name, '*.t7'; may be repeated", default=(), metavar="PATTERN", group=_WHICH
    )
    max_files: int | None = option(
        "convert at most N files in this run", default=None, kind="number", metavar="N", group=_WHICH
    )
    json = flag("print one line of JSON per file, and a final one")

    on_start: Callable[[RunPlan], None] | None = field(default=None, kw_only=True)
    on_file: Callable[[Record], None] | None = field(default=None, kw_only=True)
    on_progress: Callable[[Progress], None] | None = field(default=None, kw_only=True)
