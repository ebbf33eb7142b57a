"""Values with other names and types: the changes of `Edits`, on the Python side of a value.

There state dicts are in place of modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..graph.storage import Storage
from ..graph.tensor import Tensor, UntypedStorage
from ..graph.walk import Path
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from ..text import counted, listed
from ..values.casts import Casts
from .checkpoints import is_optimizer, plain_states
from .edits import Edits
from .simplified import Simplified

if TYPE_CHECKING:
    from .state_dicts import StateDicts


def edited(
    value: Any,
    edits: Edits,
    report: Report,
    limits: Limits = DEFAULT_LIMITS,
    modules: StateDicts | None = None,
) -> Any:
    """Return a new value with the changes made; elements are cast when they are read, not here.

    Args:
        value: builtins with tensors in them.
        edits: the changes.
        report: receives the notes on names, and the number of tensors that are cast.
        limits: resource limits.
        modules: of a Lua value, the modules that became state dicts: only these have keys to rename.

    Raises:
        ModelError: there is no state dict, or there are several; or two keys get one name.
    """
    if edits.naming:
        value = _with_new_names(value, edits, report, limits, modules)
    if edits.casts is not None:
        caster = _Caster(edits.casts, limits)
        value = caster.run(value)
        _note_casts(edits.casts, report)
        if caster.optimizers:
            report.note("info", "the state of the optimizer keeps its types", code="precision")
    return value


def _with_new_names(value: Any, edits: Edits, report: Report, limits: Limits, modules: StateDicts | None) -> Any:
    """Return a value whose only state dict has new names.

    Where the rules need not fit, a value without a state dict, or with several, is returned as it is, with a note.

    Args:
        value: builtins with tensors in them.
        edits: the changes, with the rules.
        report: receives the notes.
        limits: resource limits.
        modules: of a Lua value, the modules that became state dicts.

    Raises:
        ModelError: there is no state dict, or several, and the rules must fit; or two keys get one name.
    """
    try:
        state = _only_state_dict(value, modules, report.source)
    except ModelError as error:
        if edits.must_fit:
            raise
        kept = f"{error.message}: {error.found}" if error.found else error.message
        report.note("warning", f"names stay as they are: {kept}", code="renamed")
        return value
    return _renamed(value, state, edits, report, limits)


def _only_state_dict(value: Any, modules: StateDicts | None, file: str) -> dict[Any, Any]:
    """Return the state dict of a value whose keys are to be renamed.

    Args:
        value: builtins with tensors in them.
        modules: of a Lua value, the modules that became state dicts; these come first.
        file: the path of the file, for errors.

    Raises:
        ModelError: there is none, or there are several.
    """
    states = _states_with_keys(value, modules)
    if not states:
        raise ModelError("there is no state dict whose keys could be renamed", file=file)
    if len(states) > 1:
        paths = listed((path for path, _ in states), 12)
        raise ModelError(
            "there are several state dicts, and rules for names are about the keys of one",
            file=file,
            found=paths,
            hint="Name one with --at (at=… in Python).",
        )
    ((_, state),) = states
    return state


def _states_with_keys(value: Any, modules: StateDicts | None) -> list[tuple[str, dict[Any, Any]]]:
    """Return the state dicts of a value that are dicts, with their paths; the arguments are those of the caller."""
    if modules is not None and modules.state_dicts:
        return [*modules.states()]
    states = [(path, state) for path, state in plain_states(value) if isinstance(state, dict)]
    has_tensors = isinstance(value, dict) and any(isinstance(item, Tensor) for item in value.values())
    if not states and has_tensors:
        # The state dict of a module with more data of its own than tensors, which `is_state` does not take for one.
        return [("root", value)]
    return states


def _renamed(value: Any, state: dict[Any, Any], edits: Edits, report: Report, limits: Limits) -> Any:
    """Return a value in which one state dict has new names, and note how many changed.

    Args:
        value: the value.
        state: the state dict in it, or the value itself.
        edits: with the rules; those that fit nothing are an error or a note.
        report: receives the notes.
        limits: resource limits.

    Raises:
        ModelError: two keys get one name, or rules fit nothing.
    """
    naming = edits.naming
    new_state = naming.renamed(state)
    keys = [key for key in state if isinstance(key, str)]
    if edits.must_fit:
        naming.check_used(keys, report.source)
    # Without the keys, so that a zoo counts equal notes of its files as one.
    for option, problem in naming.problems():
        report.note("warning", f"{option} {problem}", code="renamed")
    changed = sum(old != new for old, new in zip(state, new_state))
    if changed:
        report.note("info", f"{counted(changed, 'key')} renamed", code="renamed", count=changed)
    if state is value:
        return new_state
    return _StateDictReplacer(state, new_state, limits).run(value)


class _StateDictReplacer(Simplified):
    """Rebuilds a value with another state dict in place of one.

    Args:
        old: the state dict, an object in the value.
        new: what takes its place.
        limits: resource limits.
    """

    def __init__(self, old: dict[Any, Any], new: dict[Any, Any], limits: Limits) -> None:
        super().__init__(limits, keep_classes=True)
        self._old_state = old
        self._new_state = new

    def make(self, value: Any, path: Path | None) -> Any:
        """Return the new state dict for the old one, and anything else rebuilt.

        Args:
            value: a part of the value that is rebuilt, not a scalar.
            path: of the part, for the base class.
        """
        return self._new_state if value is self._old_state else super().make(value, path)


class _Caster(Simplified):
    """Rebuilds a value with its floating-point tensors and storages in another type.

    The state of an optimizer stays as it is: it counts steps in floating-point tensors.

    Args:
        casts: the type, which counts the tensors that it casts.
        limits: resource limits.
    """

    def __init__(self, casts: Casts, limits: Limits) -> None:
        super().__init__(limits, keep_classes=True)
        self._casts = casts
        self.optimizers = 0
        """Number of optimizers met."""

    def make(self, value: Any, path: Path | None) -> Any:
        """Return a tensor or storage cast, the state of an optimizer as it is, and anything else rebuilt.

        Args:
            value: a part of the value that is rebuilt, not a scalar.
            path: of the part, for the base class.
        """
        if isinstance(value, Tensor):
            return self._casts.tensor(value)
        if isinstance(value, Storage):
            return self._casts.storage(value)
        if isinstance(value, UntypedStorage):
            storage = self._casts.storage(value.storage)
            return value if storage is value.storage else UntypedStorage(storage)
        if is_optimizer(value):
            self.optimizers += 1
            return value
        return super().make(value, path)


def _note_casts(casts: Casts, report: Report) -> None:
    """Note how many tensors are cast, and from which types; or that none is.

    Args:
        casts: the type, after the value is rebuilt: with the numbers of tensors by their types.
        report: receives the note.
    """
    total = sum(casts.counts.values())
    if not total:
        message = f"no tensor has floating-point elements of another type than {casts.element.name}"
        report.note("info", message, code="precision")
        return
    kinds = ", ".join(f"{count} of {name}" for name, count in casts.counts.items())
    message = f"{counted(total, 'tensor')} written as {casts.element.name}: {kinds}"
    report.note("info", message, code="precision", count=total)
