"""`convert_zoo`: plan, dispatch files to an engine, record the outcomes, and report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import Any

from attrs import evolve, field

from ..conversion.options import INDEX_BASE, Option, byte_count, options_of, takes
from ..conversion.request import MODE, Conversion
from ..data import __version__, define
from ..errors import ModelError, OptionError
from ..formats import FORMATS
from ..formats.table import FormatSpec
from ..text import listed
from .journal import DONE, Journal, Record
from .places import Folder, open_folder
from .plan import RunPlan, Settings, make_plan
from .progress import Progress
from .report import ZooReport, check_reports, summarize, write_reports
from .request import Zoo
from .workers import Engine, open_engine

_LARGE_BYTES = 32 << 20
"""Bytes of an input from which on it is converted before the smaller ones."""
_COMMIT_SECONDS = 1.0
"""Seconds between two transactions with outcomes, each of which waits for the disk."""
_SHOW_SECONDS = 0.1
"""Seconds between two calls with the progress."""

_CONVERSION: dict[str, Option] = {
    name: option._replace(name=name)
    for name, option in {"mode": MODE, **options_of(Conversion), "index_base": INDEX_BASE}.items()
    if name not in ("to", "force", "limits")
}
"""The options of each conversion, or of each `write_module`."""
_OF_MODULES = {"strict", "classes", "index_base"}
"""Those that `write_module` has."""


@takes(Zoo)
def convert_zoo(request: Zoo) -> ZooReport:
    """Convert many files into a folder that mirrors their tree, and resume when called again.

    Files are recognized by content, not by name. Failures do not stop other files. Progress is stored in a journal in
    the output folder: a file is converted again only if it changed, or its output is missing. The folder gets
    `report.html`, `report.json` and `report.csv`. Memory does not grow with the number of files.

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
        memory: bytes that the work on one file may allocate, or a text such as `"4G"`.
        retry_failed: whether to retry files that failed in an earlier run.
        include: patterns of the names of inputs, such as `*.t7`; by default all are. A pattern without `/` is one of
            the last part of a name.
        max_files: maximum number of files converted in this run.
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
        TargetExistsError: a foreign file has the name of a report, and `force` is not set.
        UnsupportedError: a library is not installed.
    """
    sources = request.sources
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    places = [os.fspath(source) for source in sources]
    settings = _settings(request)
    with closing(open_folder(settings.folder, places, make=not request.dry_run)) as folder:
        settings = evolve(settings, folder=folder.place)
        may_have_foreign_reports = not folder.has_journal and not request.force
        if may_have_foreign_reports:
            check_reports(folder)
        if request.dry_run:
            return _plan_only(request, places, folder, settings)
        with closing(Journal(folder.journal_path)) as journal:
            return _convert(request, places, folder, settings, journal)


def _plan_only(request: Zoo, places: Sequence[str], folder: Folder, settings: Settings) -> ZooReport:
    """Plan in a private copy of the journal, or in an empty one of a new zoo; return the report of a dry run.

    Args:
        request: that of the run.
        places: paths, patterns and URLs of the inputs.
        folder: the output folder, which is not written to.
        settings: of each conversion.
    """
    if folder.has_journal:
        with closing(Journal(folder.journal_path)) as existing:
            journal = existing.copy()
    else:
        journal = Journal("")
    restart = _needs_restart(journal, settings, request.force)
    plan = _plan(request, places, folder, settings, journal, restart)
    if request.on_start is not None:
        request.on_start(plan)
    return summarize(folder.place, journal, settings.output_options(), plan.left_out)


def _plan(
    request: Zoo, places: Sequence[str], folder: Folder, settings: Settings, journal: Journal, restart: bool
) -> RunPlan:
    """Make the plan, in one transaction: a run that is interrupted meanwhile leaves the journal as it was.

    Args:
        request: that of the run.
        places: paths, patterns and URLs of the inputs.
        folder: the output folder.
        settings: of each conversion.
        journal: gets the plan.
        restart: whether all earlier outcomes are forgotten first.
    """
    include = (request.include,) if isinstance(request.include, str) else request.include
    with journal.transaction():
        if restart:
            journal.clear()
        plan = make_plan(
            places,
            journal,
            folder,
            settings,
            include=include,
            retry_failed=request.retry_failed,
            force=request.force,
        )
        # Later runs compare the options with theirs.
        journal.set_facts({"options": settings.output_options(), "version": __version__, "sources": places})
    return plan


def _convert(request: Zoo, places: Sequence[str], folder: Folder, settings: Settings, journal: Journal) -> ZooReport:
    """Plan, convert, and write the reports.

    Args:
        request: that of the run.
        places: paths, patterns and URLs of the inputs.
        folder: the output folder.
        settings: of each conversion.
        journal: that of the output folder, which has the outcomes of earlier runs, and gets those of this one.
    """
    # The workers end before what is left to do at the end, also if the run is interrupted.
    with ExitStack() as at_end, closing(_Workers(request, folder, settings, places)) as workers:
        restart = _needs_restart(journal, settings, request.force)
        all_are_new = restart or journal.is_empty()
        if all_are_new:
            workers.start()  # they get ready while the plan is made
        plan = _plan(request, places, folder, settings, journal, restart)
        files, size = journal.plan_work(_LARGE_BYTES, request.max_files)
        at_end.callback(folder.store_journal)
        if files:
            # Before the first output: a later run knows which files are those of this one, however it ends.
            folder.store_journal()
        folder.sweep()  # of earlier runs
        if request.on_start is not None:
            request.on_start(plan)
        progress = Progress(files, size)
        with _Run(journal, folder, progress, request.on_file, request.on_progress) as run:
            if files:
                run.convert_all(workers.start())
            workers.close()  # while the last outcomes are recorded
        report = summarize(folder.place, journal.copy(), settings.output_options(), plan.left_out)
        _add_this_run(report, progress)
        write_reports(report, folder)
    return report


def _add_this_run(report: ZooReport, progress: Progress) -> None:
    """Add to a report what it says of this run, and not of the files in the journal."""
    report.version = __version__
    report.seconds = progress.seconds
    report.now = dict(progress.counts)


@define(eq=False)
class _Workers:
    """The workers of a run: the engine that it uses, from its start to its end.

    Attributes:
        request: that of the run.
        folder: the output folder.
        settings: of each conversion.
        inputs: paths, patterns and URLs of the inputs.
    """

    request: Zoo
    folder: Folder
    settings: Settings
    inputs: Sequence[str]
    _engine: Engine | None = None

    def start(self) -> Engine:
        """Return the engine; start it unless it is running."""
        if self._engine is None:
            self._engine = open_engine(
                self.request.engine,
                self.settings,
                (self.folder.place, *self.inputs),
                workers=self.request.workers,
                timeout=self.request.timeout,
                scheduler=self.request.scheduler,
            )
        return self._engine

    def close(self) -> None:
        """End the engine if it is running, and remove what killed workers have left in the output folder."""
        if self._engine is None:
            return
        engine = self._engine
        self._engine = None
        try:
            engine.close()
        finally:
            self.folder.sweep()


def _settings(request: Zoo) -> Settings:
    """Return the settings of each conversion, with the output folder as it was given: the caller makes it absolute.

    Raises:
        ModelError: an option does not apply, or excludes another.
    """
    options = _options_of_conversions(request)
    _check(request, options)
    return Settings(
        os.fspath(request.output),
        to=request.to,
        module=request.module,
        verify=request.verify,
        draw=request.draw,
        prove=request.prove,
        options=options,
        limits=request.limits,
        memory=byte_count(request.memory) if request.memory else None,
        # The run flushes what local workers wrote, all at once; other machines flush each output themselves.
        flush=request.engine != "local",
    )


def _options_of_conversions(request: Zoo) -> dict[str, Any]:
    """Return the options of each conversion that differ from their defaults.

    The others are absent, and so a journal of a release without such an option has the same options, too.
    """
    options: dict[str, Any] = {}
    for name, option in _CONVERSION.items():
        value = getattr(request, name)
        if value != option.default:
            options[name] = _as_from_json(value)
    if "classes" in options:
        options["classes"] = os.path.abspath(options["classes"])  # workers may have another working directory
    return options


def _as_from_json(value: Any) -> Any:
    """Return the value of an option as a journal and workers have it, with which it is compared: without tuples."""
    if isinstance(value, (list, tuple)):
        return [_as_from_json(item) for item in value]
    return value


def _check(request: Zoo, options: dict[str, Any]) -> None:
    """Refuse options that exclude one another, once and not for every file.

    Args:
        options: the options of each conversion that differ from their defaults.

    Raises:
        ModelError: some options exclude one another.
        OptionError: some apply to no file, whatever its format. What fits some files only is a note of the others.
    """
    has_other_options = not _OF_MODULES.issuperset(options)
    if request.module and (request.to or request.verify or has_other_options):
        others = listed(sorted(_OF_MODULES))
        raise ModelError(f"module excludes to, verify and all options of conversions but {others}")
    if "index_base" in options and not request.module:
        raise ModelError("index_base requires module")
    if request.to:
        _check_target(FORMATS[request.to], options)
    _check_library(request)
    _check_engine(request)


def _check_library(request: Zoo) -> None:
    """Refuse to verify outputs if the library that reads them is missing; on a cluster, other machines may have it.

    Raises:
        ModelError: it is missing.
    """
    reads_safetensors = request.verify and request.to == "safetensors" and request.engine == "local"
    if reads_safetensors and not find_spec("safetensors"):
        raise ModelError(
            "verify reads .safetensors files with the library safetensors, which is not installed: "
            "pip install safetensors"
        )


def _check_engine(request: Zoo) -> None:
    """Refuse options that the engine does not have.

    Raises:
        ModelError: there are some.
    """
    if request.scheduler and request.engine != "dask":
        raise ModelError("only the Dask engine has a scheduler")
    if request.timeout is not None and not request.timeout >= 0:  # `not` also refuses a NaN
        raise ModelError("timeout must be 0, for no limit, or a positive number of seconds")
    if request.workers == 0 and (request.timeout or request.memory):
        raise ModelError("time and memory limits need worker processes")


def _check_target(target: FormatSpec, options: Iterable[str]) -> None:
    """Refuse options that do not apply to the format of all outputs.

    Raises:
        OptionError: there are some.
    """
    problems: list[tuple[str, str]] = []
    for name in options:
        option = _CONVERSION[name]
        if target.values not in option.targets:
            problem = f"does not apply to {target.suffix}; it is for conversions {option.scope()}"
            problems.append((name, problem))
    if problems:
        raise OptionError(problems=tuple(problems))


def _needs_restart(journal: Journal, settings: Settings, force: bool) -> bool:
    """Return whether everything is converted again because the options differ from those of earlier runs.

    Args:
        journal: has the options of earlier runs, if there were any.
        settings: those of this run.
        force: whether options may differ.

    Raises:
        ModelError: they changed without `force`.
    """
    before = journal.fact("options")
    now = settings.output_options()
    if before is None or before == now:
        return False
    if not force:
        raise ModelError(
            f"the folder was made with other options: {_differences(before, now)}",
            file=journal.path,
            hint="Give the same options, another folder, or --force (force=True) to convert everything again.",
        )
    return True


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return how options of outputs differ, for users; those that have their defaults may be absent."""
    words = {"None": "not given", "True": "on", "False": "off"}
    differences: list[str] = []
    for name in sorted({*before, *now}):
        old = before.get(name)
        new = now.get(name)
        if old != new:
            differences.append(f"{name} was {words.get(str(old), old)} and is {words.get(str(new), new)}")
    return ", ".join(differences)


@define(eq=False)
class _Run:
    """One run: has an engine convert the planned files, and records all outcomes in the journal, in groups.

    A thread of its own records them, as it waits for the disk. As a context manager, it records at the end what is
    not recorded yet.

    Attributes:
        journal: has the files to convert, and gets their outcomes.
        folder: the output folder.
        progress: of the run; brought up to date.
        on_file: called with the record of each finished file.
        on_progress: called with the progress, several times a second.
    """

    journal: Journal
    folder: Folder
    progress: Progress
    on_file: Callable[[Record], None] | None
    on_progress: Callable[[Progress], None] | None
    _pending: list[Record] = field(factory=list)
    """Finished files whose recording has not begun."""
    _recording: Future[None] | None = None
    """The recording of those before, which may still be under way."""
    _record_at: float = 0.0
    """When the pending ones are to be recorded, on the clock of `time.monotonic`."""
    _show_at: float = 0.0
    """When the progress is to be shown, on the same clock."""
    _pool: ThreadPoolExecutor = field(init=False)

    def __attrs_post_init__(self) -> None:
        # One thread, so that groups are recorded one after another.
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._pool:
            # Also if the run was interrupted: what is finished need not be done again.
            self._begin_recording()
            self._finish_recording()

    def convert_all(self, engine: Engine) -> None:
        """Convert the files that `Journal.plan_work` has chosen; when it returns, the last may not be recorded yet."""
        self._record_at = time.monotonic() + _COMMIT_SECONDS
        with closing(engine.run(self.journal.work())) as outcomes:
            for row in outcomes:
                if row is not None:  # `None` comes while nothing is finished, so that the progress is shown
                    self._add_finished(row)
                self._record_and_show_if_due(engine)
        self._begin_recording()
        self._show(engine)

    def _record_and_show_if_due(self, engine: Engine) -> None:
        """Begin to record new outcomes, and show the progress, each if its time has come."""
        now = time.monotonic()
        is_disk_busy = self._recording is not None and not self._recording.done()
        if now > self._record_at and self._pending and not is_disk_busy:
            self._begin_recording()
            self._record_at = now + _COMMIT_SECONDS
        if now > self._show_at:
            self._show(engine)
            self._show_at = now + _SHOW_SECONDS

    def _add_finished(self, row: Record) -> None:
        """Count a finished file; it is recorded with the next ones."""
        row.version = __version__
        self.progress.add(row.status, row.bytes)
        self._pending.append(row)
        if self.on_file is not None:
            self.on_file(row)

    def _begin_recording(self) -> None:
        """Begin to record the pending files; first wait until those before are recorded."""
        self._finish_recording()
        if self._pending:
            self._recording = self._pool.submit(self._record, self._pending)
            self._pending = []

    def _finish_recording(self) -> None:
        """Wait until what was begun is recorded.

        Raises:
            T7BridgeError: the journal or an output cannot be written.
        """
        if self._recording is not None:
            self._recording.result()
            self._recording = None

    def _record(self, rows: list[Record]) -> None:
        """Record finished files, with their outcomes; runs in the thread for this.

        The order matters: what the journal calls done is on the disk before, and what it calls failed has no output.
        """
        # A foreign file at the path of an output, which is not `ours`, stays.
        self.folder.remove(row.output for row in rows if row.status != DONE and row.ours and row.output)
        self.folder.flush_outputs(row.output for row in rows if row.status == DONE)
        self.journal.record(rows)
        self.folder.store_journal(now=False)  # a store gets it now and then: each time takes a request

    def _show(self, engine: Engine) -> None:
        """Sample the progress, and call `on_progress`."""
        self.progress.mark()
        if self.on_progress is not None:
            self.progress.current = [row.name for row in engine.current()]
            self.on_progress(self.progress)
