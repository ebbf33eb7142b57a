"""`convert_zoo`: plan, dispatch files to an engine, record the outcomes, and report."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import Any

from attrs import evolve, field

from ..conversion.options import INDEX_BASE, Option, flag, option, options_of, takes, verb
from ..conversion.request import MODE, Conversion
from ..data import __version__, define
from ..errors import ModelError
from ..formats import FORMATS
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..text import listed
from .journal import DONE, FAILED, FOREIGN, PLANNED, Journal, Record
from .places import Folder, open_folder
from .plan import RunPlan, Settings, make_plan
from .report import ZooReport, report_files, summarize
from .workers import Engine, open_engine

_LARGE_BYTES = 32 << 20
_COMMIT_SECONDS = 1.0
_SHOW_SECONDS = 0.1
_WINDOW_SECONDS = 10.0
_EACH, _HOW, _WHICH = "processing of each file", "execution", "selection of files"

_CONVERSION: dict[str, Option] = {
    name: evolve(option, name=name)
    for name, option in {"mode": MODE, **options_of(Conversion), "index_base": INDEX_BASE}.items()
    if name not in ("to", "force", "limits")
}
"""The options of each conversion, or of each `write_module`."""
_OF_MODULES = {"strict", "classes", "index_base"}
"""Those of `write_module`."""


@verb
class Zoo(Conversion):
    """Convert many files into a folder that mirrors their tree. Run the same command again to resume."""

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
    memory: int | None = option(
        "memory limit for one file: 512M, 4G", default=None, kind="bytes", metavar="SIZE", group=_HOW
    )
    retry_failed: bool = option("retry files that failed in an earlier run", default=False, group=_WHICH)
    dry_run: bool = option("print the plan without converting", default=False, group=_WHICH)
    force: bool = option(
        "replace foreign files, and convert everything again if options changed", default=False, group=_WHICH
    )
    limits: Limits = option(
        "convert at most N files in this run; NAME=N: resource limit for each file (--limit help)",
        default=DEFAULT_LIMITS, kind="limits or files", metavar="N", flags=("--limit",), group=_WHICH,
    )  # fmt: skip
    json = flag("print one line of JSON per file, and a final one")

    limit: int | None = field(default=None, kw_only=True)
    on_start: Callable[[RunPlan], None] | None = field(default=None, kw_only=True)
    on_file: Callable[[Record], None] | None = field(default=None, kw_only=True)
    on_progress: Callable[[Progress], None] | None = field(default=None, kw_only=True)

    def settings(self) -> Settings:
        """Return the settings of each conversion, without options that have their defaults.

        Raises:
            ModelError: an option does not apply, or excludes another.
        """
        options = {
            name: getattr(self, name) for name in _CONVERSION if getattr(self, name) != _CONVERSION[name].default
        }
        self._check(options)
        if "classes" in options:
            options["classes"] = os.path.abspath(options["classes"])
        same = {name: getattr(self, name) for name in ("to", "module", "verify", "draw", "prove", "limits", "memory")}
        return Settings(os.fspath(self.output), options=options, flush=self.engine != "local", **same)

    def _check(self, options: dict[str, Any]) -> None:
        """Refuse options that exclude one another, once and not for every file.

        Args:
            options: the options of each conversion that have a value.
        """
        target = FORMATS[self.to].values if self.to else None
        wrong = [name for name in options if name != "index_base" and target not in (None, *_CONVERSION[name].targets)]
        for refused, message in (
            (
                self.module and (self.to or self.verify or not _OF_MODULES.issuperset(options)),
                f"module excludes to, verify and all options of conversions but {listed(sorted(_OF_MODULES))}",
            ),
            ("index_base" in options and not self.module, "index_base requires module"),
            (wrong, f"{listed(wrong)} does not apply to {self.to}"),
            (
                self.verify and self.to == "safetensors" and self.engine == "local" and not find_spec("safetensors"),
                "verify reads .safetensors files with the library safetensors, which is not installed: "
                "pip install safetensors",
            ),
            (self.scheduler and self.engine != "dask", "only the Dask engine has a scheduler"),
            (self.workers == 0 and (self.timeout or self.memory), "time and memory limits need worker processes"),
        ):
            if refused:
                raise ModelError(message)


@takes(Zoo)
def convert_zoo(request: Zoo) -> ZooReport:
    """Convert many files into a folder that mirrors their tree, and resume when called again.

    Files are recognized by content, not by name. Failures do not stop other files. Progress is stored in a journal in
    the output folder: a file is converted again only if it changed, or its output is missing. The folder gets
    `report.html`, `report.json` and `report.csv`.

    Args:
        sources: files, folders, patterns and URLs of any file system of fsspec, one or several.
        output: a folder, or the URL of one.
        to: the format of all outputs, as in `convert`; by default each `.t7` becomes a `.pt`, and each file of
            another format a `.t7`.
        module: whether each model becomes a folder with `model.py` and `model.pt`, as `write_module` makes it.
        verify: whether each output is read back, by other readers too, and compared with its input.
        draw: whether each model is drawn next to its output, as `NAME.html`, to which `report.html` links.
        prove: whether each layer is compared with what Lua Torch recorded in the same file: a note of the file.
        engine: `local` for processes on this machine, `dask` for a cluster.
        workers: number of processes; 0 for none but this one; by default one a core.
        scheduler: the address of a Dask scheduler; by default the Dask engine starts a local cluster.
        timeout: time limit for one file, in seconds.
        memory: bytes that the work on one file may allocate.
        retry_failed: whether to retry files that failed in an earlier run.
        limit: maximum number of files converted in this run.
        limits: resource limits for each file.
        dry_run: whether to make only the plan, without writing anything.
        force: whether to replace foreign files in the output folder, and to convert everything again if the options
            differ from those of earlier runs.
        on_start: called with the plan.
        on_file: called with the record of each finished file.
        on_progress: called with the progress, several times a second.

    Returns:
        The report on the folder.

    Raises:
        T7BridgeError: a source cannot be found, the folder is locked by another run, or no worker can be started.
        ModelError: the options contradict each other, or those of earlier runs; outputs would be in a source.
        UnsupportedError: a library is not installed.
    """
    places = [
        os.fspath(source)
        for source in ([request.sources] if isinstance(request.sources, (str, os.PathLike)) else request.sources)
    ]
    settings = request.settings()
    with closing(open_folder(settings.folder, places, make=not request.dry_run)) as folder:
        settings = evolve(settings, folder=folder.place)
        if request.dry_run and not folder.has_journal:
            plan = make_plan(places, (), folder, settings, force=request.force)
            return _planned(request.on_start, plan, folder)
        with closing(Journal(folder.journal_path)) as journal, ExitStack() as last, ExitStack() as stack:

            def start(places: Iterable[str]) -> Engine:
                opened = open_engine(
                    request.engine,
                    settings,
                    (folder.place, *places),
                    workers=request.workers,
                    timeout=request.timeout,
                    scheduler=request.scheduler,
                )
                stack.callback(folder.sweep)  # leftovers of killed workers
                return stack.enter_context(closing(opened))

            restart = _compare_options(journal, settings, request.force)
            known = () if restart else tuple(journal.records())
            # If all files are new, the workers can start while the plan is made.
            started = start(places) if not known and not request.dry_run else None
            plan = make_plan(places, known, folder, settings, retry_failed=request.retry_failed, force=request.force)
            if request.dry_run:
                return _planned(request.on_start, plan, folder)
            facts = {"options": settings.asked(), "version": __version__, "sources": places}
            journal.plan(plan.stale, facts, restart=restart)
            todo = [row for row in plan.rows if row.status == PLANNED][: request.limit]
            last.callback(folder.store_journal)  # on every way out
            if todo:
                folder.store_journal()  # before the first output: an interrupted run knows its own files
            folder.sweep()
            if request.on_start is not None:
                request.on_start(plan)
            with _Run(journal, folder, todo, request.on_file, request.on_progress) as run:
                if todo:
                    run.go(started or start(row.place for row in todo))
                stack.close()
                report = summarize(folder.place, plan.rows, settings.asked(), __version__)
                report.seconds, report.now = run.progress.seconds, dict(run.progress.counts)
                reports = report_files(report)  # while the last outputs go to the disk
            for name, data in reports.items():
                folder.write(name, data)
        return report


def _planned(on_start: Callable[[RunPlan], None] | None, plan: RunPlan, folder: Folder) -> ZooReport:
    """Return the report of a dry run."""
    if on_start is not None:
        on_start(plan)
    return ZooReport(folder.place, rows=plan.rows)


def _compare_options(journal: Journal, settings: Settings, force: bool) -> bool:
    """Return whether everything is converted again because the options changed.

    Raises:
        ModelError: they changed without `force`.
    """
    before = journal.fact("options")
    now = settings.asked()
    if before is None or before == now:
        return False
    words = {"None": "not given", "True": "on", "False": "off"}
    differences: list[str] = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new:
            differences.append(f"{name} was {words.get(str(old), old)} and is {words.get(str(new), new)}")
    changes = ", ".join(differences)
    if not force:
        raise ModelError(
            f"the folder was made with other options: {changes}",
            file=journal.path,
            hint="Give the same options, another folder, or --force (force=True) to convert everything again.",
        )
    return True


@define
class Progress:
    """Progress of a run.

    Attributes:
        files: number of files in this run.
        bytes: their total size.
        counts: number of them `done`, `failed`, `foreign`.
        done_bytes: size of the finished ones.
        current: names of the files in progress, as far as known.
        started: start of the conversion, on the clock of `time.monotonic`.
    """

    files: int
    bytes: int
    counts: Counter[str] = field(factory=Counter)
    done_bytes: int = 0
    current: list[str] = field(factory=list)
    started: float = field(factory=time.monotonic)
    _marks: deque[tuple[float, int, int]] = field(factory=deque, repr=False)

    @property
    def finished(self) -> int:
        """Number of files that are finished."""
        return self.counts[DONE] + self.counts[FAILED] + self.counts[FOREIGN]

    @property
    def seconds(self) -> float:
        """Seconds since the conversion began."""
        return time.monotonic() - self.started

    def add(self, status: str, size: int) -> None:
        """Count a finished file."""
        self.counts[status] += 1
        self.done_bytes += size

    def mark(self) -> None:
        """Sample the progress, for the rates; to be called a few times a second."""
        now = time.monotonic()
        self._marks.append((now, self.finished, self.done_bytes))
        while now - self._marks[0][0] > _WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def rates(self) -> tuple[float, float]:
        """Return files and bytes a second, over the last ten seconds."""
        if len(self._marks) < 2:
            return 0.0, 0.0
        start, files_at_start, bytes_at_start = self._marks[0]
        end, files, size = self._marks[-1]
        seconds = max(end - start, 1e-6)
        return (files - files_at_start) / seconds, (size - bytes_at_start) / seconds

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate, by files or by bytes, whichever is longer; `None` while unknown."""
        files_a_second, bytes_a_second = self.rates
        estimates: list[float] = []
        if files_a_second > 0 and self.files > self.finished:
            estimates.append((self.files - self.finished) / files_a_second)
        if bytes_a_second > 0 and self.bytes > self.done_bytes:
            estimates.append((self.bytes - self.done_bytes) / bytes_a_second)
        return max(estimates, default=None)


@define(eq=False)
class _Run:
    """One run: dispatches jobs to an engine and records all outcomes in the journal."""

    journal: Journal
    folder: Folder
    todo: list[Record]
    on_file: Callable[[Record], None] | None
    on_progress: Callable[[Progress], None] | None
    progress: Progress = field(init=False)
    _pending: list[Record] = field(factory=list)
    _writing: Future[None] | None = None
    _due: float = 0.0
    _show_at: float = 0.0
    _pool: ThreadPoolExecutor = field(init=False)

    def __attrs_post_init__(self) -> None:
        # Flushing runs in parallel: it waits for the disk, and the workers need not.
        self._pool = ThreadPoolExecutor(1)
        self.progress = Progress(len(self.todo), sum(row.bytes for row in self.todo))

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._pool:
            self._write()  # record finished files even if the run is interrupted
            self._finish_writing()

    def _jobs(self) -> list[Record]:
        """Return the large files first, so that no worker is left alone with one at the end."""
        return sorted(self.todo, key=lambda row: -row.bytes if row.bytes >= _LARGE_BYTES else 0)

    def go(self, engine: Engine) -> None:
        """Convert all planned files."""
        self._due = time.monotonic() + _COMMIT_SECONDS
        with closing(engine.run(self._jobs())) as outcomes:
            for row in outcomes:
                if row is not None:
                    self._take(row)
                self._tick(engine)
        self._write()
        self._show(engine)

    def _tick(self, engine: Engine) -> None:
        """Record and report new outcomes, when due."""
        now = time.monotonic()
        if now > self._due and self._pending and (self._writing is None or self._writing.done()):
            self._write()
            self._due = now + _COMMIT_SECONDS
        if now > self._show_at:
            self._show(engine)
            self._show_at = now + _SHOW_SECONDS

    def _take(self, row: Record) -> None:
        row.version = __version__
        self.progress.add(row.status, row.bytes)
        self._pending.append(row)
        if self.on_file is not None:
            self.on_file(row)

    def _write(self) -> None:
        self._finish_writing()
        if self._pending:
            self._writing = self._pool.submit(self._commit, self._pending)
            self._pending = []

    def _finish_writing(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _commit(self, rows: list[Record]) -> None:
        """Mark as done only what has been flushed to the disk; a file that is not done has no output."""
        self.folder.remove(row.output for row in rows if row.status != DONE and row.ours and row.output)
        self.folder.flush_outputs(row.output for row in rows if row.status == DONE)
        self.journal.record(rows)
        self.folder.store_journal(now=False)

    def _show(self, engine: Engine) -> None:
        self.progress.mark()
        if self.on_progress is not None:
            self.progress.current = [row.name for row in engine.current()]
            self.on_progress(self.progress)
