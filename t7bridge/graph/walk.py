"""Paths and walks: every object once, in Lua's writing order, without recursion; cycles are fine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from ..data import collector_paused, pattern
from ..errors import ModelError
from ..text import Holder, Step, short
from .lua import LuaFunction, Table, TdsHash, TdsVec
from .python import in_order, key_text
from .tensor import Tensor

Value = Any
SCALARS = frozenset((bytes, str, float, int, bool, type(None)))
"""The types of values without parts and identity."""
_SETS = (set, frozenset)
_WALKED = (Holder, dict, list, tuple, *_SETS)
"""The types of values with an identity, or with parts."""
_WORD = pattern(r"[A-Za-z_]\w*\Z")
# A text in quotes of either kind, with escapes.
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# One step as `step_name` writes it, in this order: `.weight`, `.<state>`; `[3]`, `["odd key"]`; the step to a key with
# parts; `<upvalues>`; what is none of these.
_STEP = pattern(rf"\.<?\w+>?|\[(?:{_QUOTED}|[^\]]*)\]|<key (?:\.\w+|\[.*?\])>|<\w+>|.+", re.DOTALL)
ROOT = Step("root")
_SHOWN_STEPS = 50
"""Last steps that a long path shows."""
_SHOWN_LETTERS = 200
"""Characters of a step that a path shows."""
_MOST_LETTERS_OF_KEY = 60
"""Characters of a key that is no word, in a step."""
_SHOWN_CHOICES = 12
"""Steps that the error for a wrong path lists."""


class KeyStep:
    """The step from a table or dict to a key that is an object, as a key has parts as well as its value."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


def step_name(key: Any) -> str:
    """Return one step of a path as text: `.weight`, `[3]`, `["odd key"]`.

    Args:
        key: of a table, dict or list, or a `Step` or `KeyStep`.
    """
    if isinstance(key, (bytes, str)):
        if type(key) is Step:  # a step as text already
            return key
        text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
        return f".{text}" if _WORD.match(text) else f"[{text[:_MOST_LETTERS_OF_KEY]!r}]"
    if isinstance(key, float) and key.is_integer() and abs(key) < 2**53:  # from there on not every integer is a double
        return f"[{int(key)}]"
    if key is None or isinstance(key, (bool, int, float)):
        return f"[{short(key)}]"
    if isinstance(key, KeyStep):
        return f"<key {step_name(key.key)}>"
    return f"[{key_text(key)}]"


class Path:
    """The path of a value inside another, `root.modules[3].weight`, as a chain of keys: text only when it is shown.

    Attributes:
        parent: the path of what contains the value; `None` for the root.
        key: its key there, or a `Step`; for the root, its name.
        value: the value, where a walk found it.
    """

    __slots__ = ("key", "parent", "value")

    def __init__(self, parent: Path | None = None, key: Any = ROOT, value: Any = None) -> None:
        self.parent = parent
        self.key = key
        self.value = value

    @classmethod
    def parse(cls, text: str, root: str = "root") -> Path:
        """Return the path that a text states.

        Args:
            text: as messages and reports write it, with or without the root.
            root: the path of the root.
        """
        path = cls(None, Step(root))
        rest = text.removeprefix(root)
        if rest[:1] not in ("", ".", "[", "<"):  # `rooting.weight` begins with a field, not with the root
            rest = f".{text}"
        for step in _STEP.findall(rest):
            path = cls(path, Step(step))
        return path

    def steps(self, most: int = sys.maxsize) -> list[Path]:
        """Return the paths from the root to this one, each one step longer; of more than `most` the last."""
        paths: list[Path] = []
        path: Path | None = self
        while path is not None and len(paths) < most:
            paths.append(path)
            path = path.parent
        return paths[::-1]

    def text(self) -> str:
        """Return `root.modules[3].weight`, at any length."""
        return "".join([step_name(path.key) for path in self.steps()])

    def __str__(self) -> str:
        """Return the text; of a very deep path the last steps only."""
        first, *rest = self.steps(_SHOWN_STEPS + 1)
        start = step_name(first.key) if first.parent is None else "root…"
        return start + "".join([step_name(path.key)[:_SHOWN_LETTERS] for path in rest])

    def follow(self, root: Value) -> Iterator[Path]:
        """Yield the path of each value on the way from a root, without it, to the value at this path.

        Raises:
            ModelError: there is no such value; the message lists the steps that there are.
        """
        first, *rest = self.steps()
        path = Path(None, first.key, root)
        for ancestor in rest:
            step = step_name(ancestor.key)
            matches = ((key, value) for key, value in entries(path.value) if step_name(key) == step)
            entry = next(matches, None)
            if entry is None:
                steps = ", ".join(step_name(key) for key, _ in islice(entries(path.value), _SHOWN_CHOICES))
                raise ModelError(
                    f"there is nothing at {self.text()}", path=path.text(), expected=steps or "no further step"
                )
            key, value = entry
            path = Path(path, key, value)
            yield path

    def get(self, root: Value) -> Value:
        """Return the value at this path.

        Raises:
            ModelError: there is none; the message lists the steps that there are.
        """
        for path in self.follow(root):
            root = path.value
        return root


def entries(value: Value, marks: dict[int, bytes] | None = None) -> Iterator[tuple[Any, Value]]:
    """Yield the values directly inside a value, each with its key, or the step to it.

    A key with parts is yielded itself, too, before its value: with a `KeyStep`.

    Args:
        value: any value; nothing is inside of those that are not of `_WALKED`.
        marks: the hashes of parts of earlier sets, as for `in_order`, to which those of this one are added.
    """
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Holder):
        pairs = value._inside()
    elif isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    elif isinstance(value, _SETS):
        pairs = zip(repeat(Step("{}")), in_order(value, marks))
    for key, item in pairs:
        # Most keys are scalars; subclasses of these, as `Step` is of text, have no parts either.
        if type(key) not in SCALARS and not isinstance(key, (str, int)):
            yield KeyStep(key), key
        yield key, item


def walk(root: Value, name: str = "root", kinds: Any = _WALKED) -> Iterator[Path]:
    """Yield every value with an identity or parts once, with its path, an object before what is inside it.

    Args:
        root: where the walk begins.
        name: its path.
        kinds: types of the values to visit; what is inside others is not visited.
    """
    seen: set[int] = set()
    marks: dict[int, bytes] = {}
    stack = [Path(None, Step(name), root)]
    while stack:
        path = stack.pop()
        value = path.value
        if id(value) in seen or not isinstance(value, kinds):
            continue
        seen.add(id(value))
        yield path
        inside = [(key, item) for key, item in entries(value, marks) if type(item) not in SCALARS]
        # The stack returns the last first.
        stack += [Path(path, key, item) for key, item in reversed(inside)]


def objects(root: Value) -> Iterator[Value]:
    """Yield every value with an identity or parts once, in any order: `walk` without paths, in a third of the time."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if type(value) in SCALARS or id(value) in seen or not isinstance(value, _WALKED):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, (list, tuple, *_SETS)):
            stack.extend(value)
        else:
            stack.extend([item for _, item in entries(value)])


def unfinished_step(value: Any) -> str:
    """Return the step, as text of a path, from a partly read object to the value being read inside it.

    Empty for an object whose content is no list or table of its own, but a table of fields or a payload.
    """
    table = value.content if isinstance(value, TdsHash) else value
    if isinstance(table, Table):
        if len(table.raw_keys) > len(table.raw_values):  # the last key is read, its value is not
            return step_name(table.raw_keys[-1])
        return f"<key {len(table.raw_keys) + 1}>"
    if isinstance(value, TdsVec):
        return f"[{len(value.elements) + 1}]"
    if isinstance(value, Tensor):
        return ".storage"
    if isinstance(value, LuaFunction):
        return "<upvalues>"
    return ""


_NO_PATH = Path()
"""The path of every value for a `Rebuilder` without paths."""


Part = tuple[Any, Any, Any, Any]
"""A part of a container that is to be made: where it goes (a list or dict, and the place there), its key for paths, and
the value that it is made from."""


class Fill:
    """A new container whose parts are still to be made, and how to fill it.

    Attributes:
        value: the container, or what it will be part of.
        parts: those still to be made.
        completed: called with `value` when all parts are in it; returns what takes its place everywhere, such as the
            tuple of a list. `None`: it stays what it is.
        on_filled: called when all parts are in it.
    """

    __slots__ = ("completed", "on_filled", "parts", "value")

    def __init__(
        self,
        value: Any,
        parts: Iterable[Part],
        completed: Callable[[Any], Any] | None = None,
        on_filled: Callable[[], Any] | None = None,
    ) -> None:
        self.value = value  # without its parts
        self.parts = parts
        # Both are called when all parts are there: the first makes another value of it, the second only acts.
        self.completed = completed
        self.on_filled = on_filled


def fill_list(items: list[Any] | tuple[Any, ...], completed: Callable[[Any], Any] | None = None) -> Fill:
    """Return a new list to be filled with what items become.

    Args:
        items: the items.
        completed: see `Fill`.
    """
    target: list[Any] = [None] * len(items)
    places = range(len(items))
    keys = places  # for paths
    return Fill(target, zip(repeat(target), places, keys, items), completed)


def fill_dict(target: dict[Any, Any], keys: Iterable[Any], values: Iterable[Any]) -> Fill:
    """Return a dict to be filled with what values become, under new keys: these are put into it at once, in order.

    Args:
        target: the dict, which may have other keys.
        keys: the new keys.
        values: the value for each.
    """
    keys = list(keys)
    target.update(dict.fromkeys(keys))
    places = keys  # in the dict, and the keys for paths
    return Fill(target, zip(repeat(target), places, keys, values))


class Rebuilder:
    """Builds a value from another, part by part, at any depth; what is one object stays one, cycles stay cycles.

    A subclass says in `make` what a value becomes. Results are remembered between calls.
    """

    remembers = True
    """Whether a value that occurs again is what it was made the first time; otherwise it is made again."""
    has_paths = True
    """Whether `make` and `scalar` receive the path of each value; otherwise always the same one, without memory."""

    def __init__(self) -> None:
        self.results: dict[int, Any] = {}
        """What became of each value that is not a scalar, by identity."""
        self._alive: list[Any] = []
        """These values: no other value gets the identity of one."""

    def make(self, value: Any, path: Path) -> Any:
        """Return what a value that is not a scalar becomes, or a `Fill` where this has parts to be made.

        If it becomes something else where it occurs again, `make` puts that into `results`.

        Args:
            value: the value, which has not been made before, or is made each time.
            path: of the value; of a class without `has_paths` one without memory of anything.
        """
        raise NotImplementedError

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return what a scalar becomes: here itself.

        Args:
            value: the scalar.
            path: of what contains it; `None` if nothing does.
            key: its key there.
        """
        return value

    def put(self, target: Any, place: Any, result: Any, value: Any) -> None:
        """Put what a value became at its place in a list or dict.

        Args:
            target: the list or dict.
            place: index or key.
            result: what the value became.
            value: the value, for subclasses.
        """
        target[place] = result

    @collector_paused()
    def run(self, root: Any) -> Any:
        """Return what a value becomes, with everything in it.

        Each value that is not a scalar goes through `make`, once if the class remembers, and what it becomes is put to
        all places where it occurs; a container that `completed` replaces is put there only when it is filled.
        """
        root_holder: list[Any] = [None]
        # Attributes are looked up once: the loop runs for each value of a file.
        results = self.results
        scalar = self.scalar
        put = self.put
        # What is still to be made, the next one last: (list or dict, place there, key for paths, value, path of what
        # contains it). Below the parts of a container stands the container itself, as (fill, its places, …), to be
        # closed when they are in it.
        stack: list[tuple[Any, Any, Any, Any, Path | None]] = [(root_holder, 0, ROOT, root, None)]
        while stack:
            target, place, key, value, path = stack.pop()
            if type(target) is Fill:
                self._close(target, place)
                continue
            if type(value) in SCALARS:
                target[place] = scalar(value, path, key)
                continue
            if id(value) in results:
                result = results[id(value)]
                if type(result) is _Places:  # inside itself, before it is finished
                    result.append((target, place, value))
                else:
                    put(target, place, result, value)
                continue
            here = Path(path, key) if self.has_paths else _NO_PATH
            result = self.make(value, here)
            fill = None
            if type(result) is Fill:
                fill = result
                result = fill.value
            if fill and fill.completed:
                # What it becomes is known when its parts are: until then, the places that wait for it.
                result = _Places([(target, place, value)])
            else:
                put(target, place, result, value)
            if self.remembers:
                self._alive.append(value)
                results.setdefault(id(value), result)  # `make` may have put something else there
            if fill:
                if fill.completed or fill.on_filled:
                    stack.append((fill, result, None, None, None))  # for `_close`
                parts = []
                for part_target, part_place, part_key, part in fill.parts:
                    if type(part) in SCALARS:
                        part_target[part_place] = scalar(part, here, part_key)
                    else:
                        parts.append((part_target, part_place, part_key, part, here))
                stack += reversed(parts)
                fill.parts = ()  # an exhausted iterator still refers to its last item
        return root_holder[0]

    def _close(self, fill: Fill, places: list[tuple[Any, Any, Any]]) -> None:
        """Finish a container that is filled: call `on_filled`, and put what `completed` makes of it where it belongs.

        Args:
            fill: the container.
            places: if it has `completed`, the places that wait for the result: list or dict, place in it, and the value
                that the container was made from.
        """
        if fill.on_filled is not None:
            fill.on_filled()
        if fill.completed is not None:
            result = fill.completed(fill.value)
            for target, place, value in places:
                if self.remembers:
                    self.results[id(value)] = result
                self.put(target, place, result, value)


class _Places(list[Any]):
    """The places that wait for a value which is made once its parts are: in `results` until then."""


@collector_paused()
def pairwise(a: Value, b: Value, compare: Callable[[Path, Value, Value], Any]) -> None:
    """Compare two values part by part, at any depth, in depth-first order.

    Args:
        a: a value.
        b: another.
        compare: called for each pair, with its path. Returns the pairs inside, to be compared next, as (key, a, b); or
            nothing, also for a pair that it has met before: pairs are not remembered here, and cycles would not end.
    """
    # Of each container around the present pair that has pairs left: its path, the next pair, and those after it.
    stack: list[tuple[Path | None, Any, Iterator[Any]]] = [(None, (ROOT, a, b), iter(()))]
    while stack:
        path, pair, pairs = stack.pop()
        while pair is not None:
            key, one, other = pair
            here = Path(path, key)
            inside = compare(here, one, other)
            pair = next(pairs, None)
            if inside:
                if pair is not None:
                    stack.append((path, pair, pairs))
                path = here
                pairs = iter(inside)
                pair = next(pairs, None)
