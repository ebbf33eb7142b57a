"""Models of installed libraries, by the shapes of their layers: which of them has those of a state dict.

Their signatures are computed once for each release and kept in the user's cache folder. A cache is data: only factories
that the library offers itself are ever called.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from inspect import signature as arguments_of
from math import prod
from typing import Any

from attrs import field

from ... import torchmodules
from ...data import define
from ...errors import ModelError, T7BridgeError
from ...io.output import FileOutput
from ...torchmodules.factories import Factory
from .sides import parts_of

LIBRARIES = ("torchvision.models", "timm")
"""Asked by default, in this order, until one has a model with the same layers."""
_FORMAT = 1
"""Of the cache; a file of another one is computed again."""
_MAX_BYTES = 1 << 26
_VARIANTS: tuple[dict[str, Any], ...] = ({}, {"aux_logits": False})
"""Arguments with which each factory is called, where its module has them: training needs other classifiers too."""
_NEAR = 0.3
"""Least share of equal layers of a model that is called the nearest."""

Signature = Counter[str]
"""Number of layers by their matrices, `64x147`, or, for layers without any, their vectors."""


def signature(tensors: Mapping[str, Any], derived: Iterable[str] = ()) -> Signature:
    """Return the signature of a state dict, whose biases and statistics do not count."""
    found: Signature = Counter()
    for part in parts_of(tensors, derived):
        shapes = {shape for name, shape in part.shapes.items() if name not in part.optional}
        matrices = {f"{shape[0]}x{prod(shape[1:])}" for shape in shapes if len(shape) > 1}
        found[",".join(sorted(matrices or {"x".join(map(str, shape)) for shape in shapes}))] += 1
    return found


def other_classes(source: Signature, target: Signature) -> int | None:
    """Return the source's number of classes if both sides differ in nothing else; `None` otherwise."""
    sides = [[row.split("x") for row in more.elements()] for more in (source - target, target - source)]
    rows = [{each[0] for each in side} for side in sides]
    columns = [sorted(each[1:] for each in side) for side in sides]
    if any(len(side) != 1 for side in rows) or columns[0] != columns[1] or any(len(each) != 1 for each in columns[0]):
        return None
    return int(rows[0].pop())


@define(frozen=True)
class Candidate:
    """A model of a library that may have the layers of a state dict.

    Attributes:
        factory: makes it.
        equal: number of layers that both have.
        of: number of layers of the side that has more.
    """

    factory: Factory
    equal: int
    of: int


@define(eq=False)
class Library:
    """The models of a library.

    Attributes:
        home: the package, or a file.
        release: its version; empty for a file, or a package that was not installed.
        models: for each factory, as text, the signatures of its variants; none if it cannot be called.
    """

    home: str
    release: str = ""
    models: dict[str, list[Signature]] = field(factory=dict)

    def candidates(self, wanted: Signature) -> tuple[list[Candidate], list[Candidate]]:
        """Return the models that have all the layers wanted, the plainest names first, and the nearest other ones.

        The number of classes is free.
        """
        found, near = [], []
        count = wanted.total()
        for name, variant, known in self._variants():
            equal, most = (known & wanted).total(), max(known.total(), count)
            if known == wanted:
                found.append(Candidate(Factory.parse(name).calling(**variant), equal, most))
            elif equal >= _NEAR * most and (classes := other_classes(wanted, known)) is not None:
                found.append(Candidate(Factory.parse(name).calling(**variant, num_classes=classes), equal, most))
            elif equal >= _NEAR * most:
                near.append(Candidate(Factory.parse(name).calling(**variant), equal, most))
        found.sort(key=lambda each: (len(str(each.factory)), str(each.factory)))
        near.sort(key=lambda each: (-each.equal / each.of, len(str(each.factory)), str(each.factory)))
        return found, near

    def _variants(self) -> Iterator[tuple[str, dict[str, Any], Signature]]:
        for name, signatures in self.models.items():
            for variant, each in zip(_VARIANTS, signatures):
                yield name, variant, each


def library(home: str) -> Library:
    """Return the models of a package or file, from the cache if its release is there.

    Raises:
        ImportError: the package is not installed.
        ModelError: it has no factories.
    """
    factories = torchmodules.factories_in(home)
    if not factories:
        raise ModelError(f"{home} has no class or function that makes a PyTorch module without arguments")
    release = _release(home)
    names = [str(factory) for factory in factories]
    path = os.path.join(cache_folder(), f"{home}-{release}.json") if release else ""
    known = _read(path).models if path else {}
    if not set(names) <= set(known):
        known = _computed(factories)
        if path:
            _write(path, Library(home, release, known))
    return Library(home, release, {name: known[name] for name in names})


def cached_libraries() -> Iterator[Library]:
    """Yield the libraries in the cache, the newest release of each; nothing is imported."""
    folder = cache_folder()
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
        paths.sort(key=os.path.getmtime, reverse=True)
    except OSError:
        return
    seen = set()
    for path in paths:
        made = _read(path)
        if made.models and made.home not in seen:
            seen.add(made.home)
            yield made


def cache_folder() -> str:
    """Return the folder of the signatures: `t7bridge` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "t7bridge")


def _release(home: str) -> str:
    """Return the version of a package; empty for a file, or where it is not known."""
    try:
        return "" if home.endswith(".py") else metadata.version(home.partition(".")[0])
    except metadata.PackageNotFoundError:
        return ""


def _computed(factories: list[Factory]) -> dict[str, list[Signature]]:
    """Call each factory. A class whose modules functions return is left out: they have its usual arguments."""
    found: dict[str, list[Signature]] = {}
    classes: dict[str, str] = {}
    returned: set[str] = set()
    for factory in factories:
        signatures = found[str(factory)] = []
        for variant in _VARIANTS:
            try:
                module = torchmodules.skeleton(factory.calling(**variant))
            except T7BridgeError:
                break
            signatures.append(
                signature({key: each for key, each in module.state_dict().items() if hasattr(each, "shape")})
            )
            kind = type(module)
            home, name = kind.__module__, kind.__qualname__
            if factory.attribute == name:
                classes[str(factory)] = f"{home}.{name}"
            else:
                returned.add(f"{home}.{name}")
            if not set(_VARIANTS[-1]) & set(arguments_of(kind).parameters):
                break
    return {name: [] if classes.get(name) in returned else each for name, each in found.items()}


def _read(path: str) -> Library:
    """Return what a file of the cache holds; nothing if it is missing, damaged or another program's."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_MAX_BYTES))
        home, release, models = value["home"], value["release"], value["models"]
        known = {str(name): [Counter(each) for each in signatures] for name, signatures in models.items()}
        numbers = {type(number) for each in known.values() for one in each for number in one.values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Library("")
    if value.get("format") != _FORMAT or not isinstance(home, str) or not numbers <= {int}:
        return Library("")
    return Library(home, str(release), known)


def _write(path: str, made: Library) -> None:
    """Keep signatures in the cache; a folder that cannot be written costs their computation only."""
    value = {"format": _FORMAT, "home": made.home, "release": made.release, "models": made.models}
    with suppress(OSError, T7BridgeError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with FileOutput(path, force=True) as output:
            output.write(json.dumps(value).encode())
