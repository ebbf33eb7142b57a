"""Models of installed libraries, by the shapes of their layers: which of them has those of a state dict. A factory is a
class or function that makes a model. The signature of a model counts its layers by their shapes; it is computed once
for each release of a library, and kept in a file in the user's cache folder.

A cache is data: only factories that the library offers itself are ever called.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import signature as arguments_of
from math import prod
from typing import Any

from attrs import asdict, evolve, field

from ... import torchmodules
from ...data import define
from ...errors import ModelError, T7BridgeError
from ...io.output import FileOutput
from ...io.platform import cache_folder
from ...io.progress import count_steps
from ...text import counted, listed
from ...torchmodules.factories import Factory
from .parts import parts_of

LIBRARIES = ("torchvision.models", "timm")
"""Asked by default, in this order, until one has a model with the same layers."""
_FORMAT = 1
"""Of the cache; a file of another one is computed again."""
_MAX_BYTES = 1 << 26
"""Maximum size of a file of the cache: 64 MiB."""
_WITHOUT_TRAINING = {"aux_logits": False}
"""The argument that leaves out classifiers that only training uses."""
_VARIANTS: tuple[dict[str, Any], ...] = ({}, _WITHOUT_TRAINING)
"""Arguments with which each factory is called that takes them."""
NEAR = 0.3
"""Least share of equal layers of a model whose keys are compared."""

_FEWEST = 5
"""Least number of layers that are more than a coincidence where nobody asked."""

Signature = Counter[str]
"""Number of layers by their matrices, `64x147`, or, for layers without any, their vectors."""


def signature(tensors: Mapping[str, Any], derived: Iterable[str] = ()) -> Signature:
    """Return the signature of a state dict, whose biases and statistics do not count.

    Args:
        tensors: the state dict, of anything that has a shape.
        derived: keys of tensors that do not count either.
    """
    layers: Signature = Counter()
    for part in parts_of(tensors, derived):
        # Sets: a part may have one shape several times, as a normalization has that of its weight for all it has.
        shapes = {shape for name, shape in part.shapes.items() if name not in part.optional}
        # A kernel counts as its matrix, since a linear layer on patches is a convolution.
        texts = {f"{shape[0]}x{prod(shape[1:])}" for shape in shapes if len(shape) > 1}
        if not texts:  # a normalization, say
            texts = {"x".join(map(str, shape)) for shape in shapes}
        layers[",".join(sorted(texts))] += 1
    return layers


def _in_words(layers: Signature) -> str:
    """Return the most frequent shapes of a signature."""
    return "weights of " + listed([f"{shape} ({count})" for shape, count in layers.most_common()], 3)


def other_classes(source: Signature, target: Signature) -> int | None:
    """Return the source's number of classes if both sides differ in that, and in nothing else; `None` otherwise.

    Args:
        source: the signature of the source: a text for each layer, `1000x2048` for one that maps 2048 features to 1000
            classes.
        target: that of the target, which has `10x2048` there.
    """
    # The extents of each matrix that only one side has: rows, which are classes, and columns.
    only_source = [text.split("x") for text in (source - target).elements()]
    only_target = [text.split("x") for text in (target - source).elements()]
    source_rows = {rows for rows, *_ in only_source}
    target_rows = {rows for rows, *_ in only_target}
    if len(source_rows) != 1 or len(target_rows) != 1:
        return None
    # The layers that classify differ in their number of rows alone. Texts of vectors have no columns, and those of
    # several matrices more than one number.
    source_columns = sorted(columns for _, *columns in only_source)
    target_columns = sorted(columns for _, *columns in only_target)
    if source_columns != target_columns or any(len(columns) != 1 for columns in source_columns):
        return None
    return int(source_rows.pop())


@define(frozen=True)
class Candidate:
    """A model of a library that may have the layers of a state dict.

    Attributes:
        factory: makes it.
        classes: its number of classes; `None` if that is not an argument of its factory.
        equal: number of layers that both have.
        only_wanted: the layers of the state dict that it has not.
        only_own: the layers that only it has.
    """

    factory: Factory
    classes: int | None
    equal: int
    only_wanted: Signature = field(factory=Counter)
    only_own: Signature = field(factory=Counter)

    @property
    def has_same_layers(self) -> bool:
        """Whether it has all the layers of the state dict, and no others but those that classify."""
        return not self.only_wanted and not self.only_own

    @property
    def share(self) -> float:
        """The share of equal layers of the side that has more."""
        return self.equal / self._most

    @property
    def _most(self) -> int:
        """The number of layers of the side that has more."""
        return self.equal + max(self.only_wanted.total(), self.only_own.total())

    def __str__(self) -> str:
        sides = ("lacks", self.only_wanted), ("adds", self.only_own)
        words = [f"; it {verb} {_in_words(layers)}" for verb, layers in sides if layers]
        return f"{self.factory}, with {self.equal} of {counted(self._most, 'layer')} in common{''.join(words)}"


@define(frozen=True)
class Variant:
    """A model of a library with its usual arguments, or with others of `_VARIANTS`.

    Attributes:
        layers: its signature.
        classes: its number of classes; `None` if it has none to choose.
    """

    layers: Signature
    classes: int | None = None


@define(eq=False)
class Library:
    """The models of a library.

    Attributes:
        home: the package, or a file.
        release: its version; empty for a file, or a package that was not installed.
        models: the variants of each factory, by its text, in the order of `_VARIANTS`; only the first if it has no such
            arguments, none if it cannot be called.
    """

    home: str
    release: str = ""
    models: dict[str, list[Variant]] = field(factory=dict)

    def candidates(self, wanted: Signature) -> tuple[list[Candidate], list[Candidate]]:
        """Return the models with the layers wanted and no others, the shortest name first, and the rest, nearest first.

        The number of classes is free: a model with another one is made with that of the layers wanted. Models without
        a layer in common are left out.

        Raises:
            ModelError: a key of `models` is not the text of a factory.
        """
        same: list[Candidate] = []
        others: list[Candidate] = []
        for name, variants in self.models.items():
            for arguments, variant in zip(_VARIANTS, variants):
                if not variant.layers & wanted:
                    continue
                candidate = _candidate_of(Factory.parse(name).calling(**arguments), variant, wanted)
                if candidate.has_same_layers:
                    same.append(candidate)
                else:
                    others.append(candidate)
        same.sort(key=_length_and_name)
        others.sort(key=lambda candidate: (-candidate.share, *_length_and_name(candidate)))
        return same, others

    def only_with_layers(self, count: int) -> Library:
        """Return the library with those of its factories of which a variant has so many layers."""
        models = {}
        for name, variants in self.models.items():
            if any(variant.layers.total() == count for variant in variants):
                models[name] = variants
        return evolve(self, models=models)


def _length_and_name(candidate: Candidate) -> tuple[int, str]:
    """Return the key by which the shortest names come first."""
    text = str(candidate.factory)
    return len(text), text


def _candidate_of(factory: Factory, variant: Variant, wanted: Signature) -> Candidate:
    """Return a model as a candidate for a state dict; with the number of classes of that, if nothing else differs.

    Args:
        factory: makes the model.
        variant: what is known of it.
        wanted: the layers of the state dict.
    """
    layers = variant.layers
    equal = (layers & wanted).total()
    if layers != wanted and variant.classes is not None:
        classes = other_classes(wanted, layers)
        if classes is not None:
            return Candidate(factory.calling(num_classes=classes), classes, equal)
    return Candidate(factory, variant.classes, equal, only_wanted=wanted - layers, only_own=layers - wanted)


def library(home: str) -> Library:
    """Return the models of a package or file; those that the cache does not have of its release are computed, and kept.

    Raises:
        ImportError: the package is not installed.
        ModelError: it has no factories.
    """
    factories = torchmodules.factories_in(home)
    if not factories:
        raise ModelError(f"{home} has no class or function that makes a PyTorch module without arguments")
    release = _release(home)
    if not release:  # nothing would tell whether what was kept is still right
        result = Library(home)
        _add_variants(result.models, factories)
        return result
    path = os.path.join(cache_folder(), f"{home}-{release}.json")
    cached = _read(path).models  # none if there is no such file
    names = [str(factory) for factory in factories]
    result = Library(home, release, {name: cached[name] for name in names if name in cached})
    missing = [factory for factory in factories if str(factory) not in cached]
    if missing:
        try:
            _add_variants(result.models, missing)
        finally:  # of an interrupted run, what is computed is kept: the next one continues
            _write(path, result)
    return result


def with_classes(factory: Factory, classes: int) -> Factory | None:
    """Return a factory with another number of classes; `None` if no module can be made with that."""
    other = factory.calling(num_classes=classes)
    try:
        torchmodules.skeleton(other)
    except ModelError:
        return None
    return other


def names_among(paths: Iterable[str], tensors: Mapping[str, Any]) -> list[str]:
    """Return the models in files of the cache that have the layers of a state dict; nothing is imported or called.

    Of each library the first of its files counts, and of its models the one with the shortest name.

    Args:
        paths: of the files, the newest first; one that cannot be read holds no models.
        tensors: the state dict.
    """
    wanted = signature(tensors)
    if wanted.total() < _FEWEST:
        return []
    newest: dict[str, Library] = {}
    for models in map(_read, paths):
        newest.setdefault(models.home, models)
    names = []
    for models in newest.values():
        # A model with the same layers, or with another number of classes, has as many: others need not be compared.
        likely = models.only_with_layers(wanted.total())
        with suppress(ModelError):  # a text in the file is not the name of a factory
            with_same_layers, _ = likely.candidates(wanted)
            if with_same_layers:
                names.append(str(with_same_layers[0].factory))
    return sorted(names, key=len)


def _release(home: str) -> str:
    """Return the version of an imported package; empty for a file, or where it has none."""
    package = sys.modules.get(home.partition(".")[0])
    return "" if home.endswith(".py") else str(getattr(package, "__version__", ""))


def _add_variants(models: dict[str, list[Variant]], factories: list[Factory]) -> None:
    """Call factories, and add their variants.

    A class gets none if functions make its modules: `resnet50` is the name that counts, not `ResNet`.

    Args:
        models: receives the variants of each factory, by its text, in the order of `_VARIANTS`.
        factories: those to call, without memory for weights.
    """
    # Of the factories that are classes, the names of these in Python, by the text of the factory.
    class_of_factory: dict[str, str] = {}
    made_by_functions: set[str] = set()  # classes, by the same names
    for number, factory in enumerate(factories):
        count_steps(number, len(factories))
        variants = []
        for module in _modules_of(factory):
            class_ = type(module)
            class_name = f"{class_.__module__}.{class_.__qualname__}"
            if factory.attribute == class_.__qualname__:
                class_of_factory[str(factory)] = class_name
            else:
                made_by_functions.add(class_name)
            variants.append(_variant_of(module, _arguments_taken(factory, module)))
        models[str(factory)] = variants
    for name, class_name in class_of_factory.items():
        if class_name in made_by_functions:
            models[name] = []


def _modules_of(factory: Factory) -> Iterator[Any]:
    """Yield the modules that a factory makes with the arguments of `_VARIANTS`; none if it needs others, or data.

    The first one is made without arguments. Its class, too, says whether there is a second one: a factory may pass
    on to it what it does not name itself.
    """
    for arguments in _VARIANTS:
        try:
            module = torchmodules.skeleton(factory.calling(**arguments))
        except T7BridgeError:
            return
        yield module
        if _arguments_taken(factory, module).isdisjoint(_WITHOUT_TRAINING):
            return


def _arguments_taken(factory: Factory, module: Any) -> set[str]:
    """Return the names of the arguments of a factory, and of the class of the module that it makes."""
    return {*arguments_of(type(module)).parameters, *arguments_of(factory.load()).parameters}


def _variant_of(module: Any, arguments_taken: set[str]) -> Variant:
    """Return what is kept of a module of a library.

    Args:
        module: made without memory for weights.
        arguments_taken: the names of the arguments with which it can be made.
    """
    tensors = {key: item for key, item in module.state_dict().items() if hasattr(item, "shape")}
    matrices = [tensor for tensor in tensors.values() if len(tensor.shape) > 1]
    # The last matrix is that of the layer that classifies.
    classes = matrices[-1].shape[0] if matrices and "num_classes" in arguments_taken else None
    return Variant(signature(tensors), classes)


def _read(path: str) -> Library:
    """Return what a file of the cache holds; an empty library if it is missing, damaged or another program's."""
    try:
        with open(path, "rb") as file:
            return _parsed(json.loads(file.read(_MAX_BYTES)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Library("")


def _parsed(value: Any) -> Library:
    """Return the library in the content of a file of the cache, as `_write` makes it.

    Raises:
        ValueError: it is of another format, or has names that are no text, or numbers that are none. Any other content
            may raise what Python raises when it is read as such: `LookupError`, `TypeError` or `AttributeError`.
    """
    models = {}
    numbers: list[Any] = []  # all that are in the file
    for name, variants in value["models"].items():
        models[name] = [Variant(Counter(row["layers"]), row["classes"]) for row in variants]
        for variant in models[name]:
            numbers += variant.layers.values()
            if variant.classes is not None:
                numbers.append(variant.classes)
    home = value["home"]
    release = value["release"]
    has_texts = type(home) is str and type(release) is str
    if value["format"] != _FORMAT or not has_texts or any(type(number) is not int for number in numbers):
        raise ValueError("not what `_write` makes")
    return Library(home, release, models)


def _write(path: str, models: Library) -> None:
    """Keep signatures in the cache; a folder that cannot be written costs their computation only."""
    rows = {name: [asdict(variant) for variant in variants] for name, variants in models.models.items()}
    value = {"format": _FORMAT, "home": models.home, "release": models.release, "models": rows}
    with suppress(OSError, T7BridgeError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with FileOutput(path, force=True) as output:
            output.write(json.dumps(value).encode())
