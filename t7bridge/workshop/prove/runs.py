"""The runs of the layers of a Lua model in its last pass, in order: a run is one call of one module, see `run`.

May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...graph.lua import TorchObject
from ...limits import DEFAULT_LIMITS, Budget, Limits
from .containers import add_runs_inside
from .run import Place, Reading, Run


def runs(
    root: TorchObject, path: str = "root", limits: Limits = DEFAULT_LIMITS, in_other_mode: bool = False
) -> list[Run]:
    """List the runs of a model's layers that are compared, in the order in which they end.

    Args:
        root: the model.
        path: its own path.
        limits: `work` bounds the number of runs of each reading.
        in_other_mode: whether the model ran in another mode than that in which it was saved.

    Raises:
        LimitError: there are too many.
    """
    # A module has the output of its last run. Which run is the last one, and how often each module runs, only a reading
    # of the whole pass shows. It is read again with this knowledge: each run then has `is_last` of the one at its place
    # in the first reading (`Run.first_reading`).
    place = Place(None, path)
    first_reading = Run(place, root, input=None, reading=_new_reading(limits, in_other_mode))
    runs_by_begin, _ = _follow(first_reading)
    _mark_last_runs(runs_by_begin)
    run_counts = Counter(id(run.obj) for run in runs_by_begin)
    second_reading = Run(
        place,
        root,
        input=None,
        reading=_new_reading(limits, in_other_mode, run_counts),
        is_last=first_reading.is_last,
        first_reading=first_reading,
    )
    _, runs_by_end = _follow(second_reading)
    return [run for run in runs_by_end if run.is_compared]


def _new_reading(limits: Limits, in_other_mode: bool, run_counts: Mapping[int, int] | None = None) -> Reading:
    """Return a reading of the pass that has spent nothing of its limits; see `Reading`.

    Args:
        limits: `work` bounds the number of its runs.
        in_other_mode: whether the model ran in another mode than that in which it was saved.
        run_counts: how often each module runs; `None` for the first reading.
    """
    return Reading(in_other_mode, Budget(limits, "following the runs of the layers"), run_counts or {})


def _mark_last_runs(runs_by_begin: list[Run]) -> None:
    """Set `is_last` of all runs.

    Args:
        runs_by_begin: in the order in which they begin.
    """
    modules_seen: set[int] = set()  # by their ids
    for run in reversed(runs_by_begin):
        run.is_last = id(run.obj) not in modules_seen
        modules_seen.add(id(run.obj))


def _follow(start: Run) -> tuple[list[Run], list[Run]]:
    """Add the runs inside a run, those inside these, and so on, each with what is recorded of it.

    Returns:
        All of them and the run itself, twice: in the order in which they begin, of which it is the first, and in that
        in which they end. Lua's containers write their output after their modules: the second order is that of the
        writes. Of modules that contain themselves the run inside is in neither.
    """
    begun: list[Run] = []
    ended: list[Run] = []
    # A run is twice on the stack: to begin, and, below the runs inside it, to end. The truth value tells which.
    stack: list[tuple[Run, bool]] = [(start, False)]
    running: set[int] = set()  # modules, by their ids
    while stack:
        run, is_at_end = stack.pop()
        if is_at_end:
            running.discard(id(run.obj))
            ended.append(run)
            continue
        if id(run.obj) in running:
            continue  # it contains itself
        begun.append(run)
        running.add(id(run.obj))
        add_runs_inside(run)
        run.read_recorded()  # after that, as it may clear the input, which the runs inside have got by then
        stack.append((run, True))
        stack += [(inside, False) for inside in reversed(run.inside)]
    return begun, ended
