"""What stands beside the models in a file, and what describes them: means, class names, vocabularies, options.

It becomes data for JSON: `config.json` of a model's folder, or the metadata of a file of named tensors. Weights and
logs are not part of it. `about` says in words what numbers and lists mean where Python counts differently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field

from ..data import define
from ..formats.pt.arrays import tensor_of_array, text_items
from ..graph.dtypes import NUMPY_ELEMENTS
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec
from ..graph.python import NumpyArray, NumpyScalar, PythonObject, TorchSize, is_pickled_module
from ..graph.tensor import Tensor
from ..graph.walk import Path, entries
from ..nn.places import is_module, is_preprocessing
from ..report import Report
from ..text import Step, listed
from .checkpoints import is_optimizer
from .tree import python_scalar

_MOST_NUMBERS = 1_000
"""Most numbers of a list, or of a tensor that says how inputs are prepared: longer ones are logs and images."""
_MOST_VALUES = 1_000_000
"""Most values in all, of large vocabularies."""
_MOST_LISTED = 10
"""Most names of data in a note."""
_MOST_LEFT_OUT_LISTED = 5
"""Most paths of what is left out in a note."""
_MOST_REPEATS = 1_000
"""Most containers that are written again."""
_DEEPEST = 20
"""Maximum depth of what is collected."""
_NOT_DATA: Any = object()
"""The result of a collector for what is not data about the model; `None` is data."""
_CLASS_WORDS = ("class", "label", "categor")
"""Parts of the names of lists whose items are classes, in small letters."""


@define(eq=False)
class Beside:
    """What stands beside the models of a file.

    Attributes:
        data: by name, what is beside the model in its file: dicts, lists, text, numbers, truth values and None.
        own: the same kinds of values, of the fields or attributes of the model itself.
        left_out: the paths of numbers alone, as of losses, and of what is too long or too deep.
        words: what the data mean, by their paths with dots, if they were read from a `config.json`; otherwise `None`,
            and `config` asks `about`.
    """

    data: dict[str, Any] = field(factory=dict)
    own: dict[str, Any] = field(factory=dict)
    left_out: list[str] = field(factory=list)
    words: dict[str, str] | None = None

    @classmethod
    def from_text(cls, text: str) -> Beside | None:
        """Return what the text of a `config.json` says; `None` if it is another program's, or no text of ours."""
        try:
            config = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(config, dict) or not config.keys() <= {"data", "checkpoint", "about"}:
            return None
        if not all(isinstance(part, dict) for part in config.values()) or _is_excessive(config):
            return None
        return cls(data=config.get("checkpoint", {}), own=config.get("data", {}), words=config.get("about", {}))

    def __bool__(self) -> bool:
        return bool(self.data or self.own)

    def config(self, from_lua: bool, index_base: int = 1) -> dict[str, Any]:
        """Return the content of a `config.json`, with words on what it means.

        Args:
            from_lua: whether the data are Lua's, which counts from 1.
            index_base: the number of the first element for the model in PyTorch: 1 as in Lua, or 0.
        """
        # `data` is what the model itself has, as in the `config.json` of `write_module`.
        parts = {"data": self.own, "checkpoint": self.data}
        config: dict[str, Any] = {name: part for name, part in parts.items() if part}
        words = about(config, from_lua, index_base) if self.words is None else self.words
        if words:
            config["about"] = words
        return config

    def add_own(self, fields: Mapping[str, Any], report: Report, where: str) -> None:
        """Add data of the model itself, which a state dict leaves out; the report no longer says that they are lost.

        Args:
            fields: by the prefix of the module and the name of its field or attribute.
            report: of the conversion.
            where: the name of the file that they are in, for the note.
        """
        collector = _Collector(model=None)
        for name, value in fields.items():
            path = Path(Path(), name, value)
            # Numbers alone are no log here, and arrays no images: both are settings of the model.
            item = collector.collect(path, depth=1, is_preprocessing_value=True)
            if item is not _NOT_DATA:
                self.own[name] = item
        # What is no data keeps its note.
        paths_of_own = {f"root.{name}" for name in self.own}
        report.notes = [note for note in report.notes if note.code != "left-out" or note.path not in paths_of_own]
        if self.own:
            message = f"data of the model itself are in {where}: {listed(self.own, _MOST_LISTED)}"
            report.note("info", message, code="beside", count=len(self.own))

    def note(self, report: Report, where: str) -> None:
        """Note what stands beside the models, where it is in the result, and what is left out.

        Args:
            report: of the conversion.
            where: the name of the file, or "the metadata".
        """
        names = [*self.data, *self.own]
        if names:
            message = f"what stands beside the model is in {where}: {listed(names, _MOST_LISTED)}"
            report.note("info", message, code="beside", count=len(names))
        if self.left_out:
            paths = listed(self.left_out, _MOST_LEFT_OUT_LISTED)
            message = f"logs and images beside the model are not in {where}: {paths}"
            report.note("info", message, code="left-out", count=len(self.left_out))


def _is_excessive(config: dict[str, Any]) -> bool:
    """Return whether the content of a `config.json` is deeper, or has more values, than what a conversion writes.

    Such text may be of another program, or hostile: written again with indents, it could be far longer.
    """
    level: list[Any] = [config]
    values = 0
    # Two dicts are around the `_DEEPEST` containers of what is collected: `config`, and in it `data` or `checkpoint`.
    for _ in range(_DEEPEST + 2):
        inside: list[Any] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else container
            values += len(container)
            inside += [item for item in items if isinstance(item, (dict, list))]
        if values > _MOST_VALUES:
            return True
        level = inside
    return bool(level)


def beside(root: Any, model: Any = None) -> Beside:
    """Return what stands beside the models in the value of a file.

    Args:
        root: the value: a table or dict; nothing stands beside a model that is the whole file.
        model: what is taken from the file, if it is not a module.
    """
    if is_module(root) or is_pickled_module(root) or root is model:
        return Beside()
    collector = _Collector(model)
    data = collector.collect(Path(None, Step("root"), root), depth=0)
    # Data of several values of a file, which are a list, have no names.
    return Beside(data if isinstance(data, dict) else {}, left_out=collector.left_out)


class _Collector:
    """One walk through a value, which collects what is data about the model. Its depth is bounded: it may recurse.

    Args:
        model: what is converted, which is not data about itself; `None` if the walk does not meet it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._visited_values = 0
        """How many values were met; after `_MOST_VALUES` nothing more is data."""
        self._around: set[int] = set()
        """The containers and objects around the present value, by identity."""
        self._seen: set[int] = set()
        """All containers and objects so far, by identity."""
        self._repeats = 0
        """How many containers were met again: what tables share is in JSON as often as they refer to it."""
        self.left_out: list[str] = []
        """The paths of what is about the model and is no setting: logs, images, and what is too deep."""

    def collect(self, path: Path, depth: int, is_preprocessing_value: bool = False) -> Any:
        """Return a value as data for JSON; `_NOT_DATA` if it is not about the model.

        Args:
            path: of the value, which it has.
            depth: number of containers around it.
            is_preprocessing_value: whether a name around it says how inputs are prepared, as `mean` does: then it is
                data even if it is an array or numbers alone.
        """
        value = path.value
        self._visited_values += 1
        if value is self._model or self._visited_values > _MOST_VALUES:
            return _NOT_DATA
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return _scalar(value)
        if isinstance(value, NumpyScalar):
            value = value.array
        if isinstance(value, (Tensor, NumpyArray)):
            return self._array(value, path, is_preprocessing_value)
        is_weights = is_module(value) or is_pickled_module(value) or is_optimizer(value)
        if is_weights or isinstance(value, LuaFunction) or id(value) in self._around:
            return _NOT_DATA
        if isinstance(value, PythonObject):
            value = value.attributes  # options of argparse, settings of a class
        if isinstance(value, (dict, list, tuple, Table, TdsHash, TdsVec)):
            return self._container(value, path, depth, is_preprocessing_value)
        return _NOT_DATA

    def _container(self, value: Any, path: Path, depth: int, is_preprocessing_value: bool) -> Any:
        """Return a list or dict as data; `_NOT_DATA` if nothing of it is about the model.

        A log, or a container that is too deep, is added to `left_out`, and `_NOT_DATA` too.

        Args:
            value: the container; of an object its attributes.
            path: of the container, or of the object.
            depth: number of containers around it.
            is_preprocessing_value: as for `collect`; its items are such values, too.
        """
        if depth == _DEEPEST:
            self.left_out.append(str(path))
            return _NOT_DATA
        identity = id(path.value)  # of an object itself: its attributes may be a new dict each time
        if identity in self._seen:
            self._repeats += 1
        if self._repeats > _MOST_REPEATS:
            return _NOT_DATA  # with no path in `left_out`: there may be very many
        self._seen.add(identity)
        self._around.add(identity)
        pairs = self._data_inside(value, path, depth, is_preprocessing_value)
        self._around.discard(identity)
        is_list_of_lua = isinstance(value, Table) and value.sequence() is not None
        is_list = is_list_of_lua or isinstance(value, (list, tuple, TdsVec))
        # Not all items may be data, as in a list of modules: those that are, by their numbers.
        if not is_list or len(pairs) < len(value):
            return self._dict(pairs, path, is_preprocessing_value)
        if not pairs and not isinstance(value, TorchSize):  # an empty list says nothing; an empty size is a shape
            return _NOT_DATA
        return self._list([item for _, item in pairs], path, is_preprocessing_value)

    def _data_inside(self, value: Any, path: Path, depth: int, is_preprocessing_value: bool) -> list[tuple[Any, Any]]:
        """Return the data in a container, each with its key; the arguments are those of `_container`."""
        pairs: list[tuple[Any, Any]] = []
        for key, item in entries(value):
            is_prepared = is_preprocessing_value or is_preprocessing(key)
            data = self.collect(Path(path, key, item), depth + 1, is_prepared)
            if data is not _NOT_DATA:
                pairs.append((key, data))
        return pairs

    def _list(self, items: list[Any], path: Path, is_preprocessing_value: bool) -> Any:
        """Return data as a list; `_NOT_DATA` if they are a log: numbers or truth values alone.

        Args:
            items: data for JSON.
            path: of the container, for `left_out`.
            is_preprocessing_value: as for `collect`: few numbers are settings then.
        """
        # A few numbers that say how inputs are prepared are none.
        may_be_log = not is_preprocessing_value or len(items) > _MOST_NUMBERS
        if may_be_log and all(isinstance(item, (int, float)) for item in items):
            self.left_out.append(str(path))
            return _NOT_DATA
        return items

    def _dict(self, pairs: list[tuple[Any, Any]], path: Path, is_preprocessing_value: bool) -> Any:
        """Return pairs as a dict; `_NOT_DATA` if there are none, or if they are a log: numbers under numbers.

        Args:
            pairs: keys, as the file has them, and items, which are data for JSON.
            path: of the container, for `left_out`.
            is_preprocessing_value: as for `collect`: few numbers are settings then.
        """
        if not pairs:
            return _NOT_DATA
        has_numbers_only = all(isinstance(part, (int, float)) for pair in pairs for part in pair)
        may_be_log = not is_preprocessing_value or len(pairs) > _MOST_NUMBERS
        if may_be_log and has_numbers_only:
            self.left_out.append(str(path))
            return _NOT_DATA
        return _json_dict(pairs)

    def _array(self, value: Tensor | NumpyArray, path: Path, is_preprocessing_value: bool) -> Any:
        """Return a small array as lists if it says how inputs are prepared, or is text; else `_NOT_DATA`.

        Args:
            value: the array.
            path: of it, for `left_out`.
            is_preprocessing_value: as for `collect`.
        """
        if isinstance(value, NumpyArray):
            texts = text_items(value)  # `None` for other elements than text
            if texts is not None:
                return texts if value.shape else texts[0]
            element = NUMPY_ELEMENTS.get(value.dtype.code)
            tensor = None if element is None else tensor_of_array(value, element, "cpu")
            if tensor is None:  # the elements are not numbers
                return _NOT_DATA
            value = tensor
            # An array of one number is a setting, as a number is.
            is_preprocessing_value = is_preprocessing_value or value.numel == 1
        if not is_preprocessing_value:
            return _NOT_DATA
        # JSON has no complex numbers.
        is_complex = value.element.name.startswith("complex")
        if value.storage is None or value.numel > _MOST_NUMBERS or is_complex:
            self.left_out.append(str(path))
            return _NOT_DATA
        return value.tolist()


def _scalar(value: Any) -> Any:
    """Return a scalar as JSON has it; text that is not UTF-8 has escapes."""
    value = python_scalar(value)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _json_dict(pairs: list[tuple[Any, Any]]) -> Any:
    """Return a dict for JSON, whose keys are texts; if two keys have one text, the list of pairs under `pairs`."""
    keys = [_scalar(key) if isinstance(key, (bool, int, float, str, bytes)) else str(key) for key, _ in pairs]
    texts = [key if isinstance(key, str) else json.dumps(key) for key in keys]
    if len(set(texts)) < len(texts):
        return {"__class__": "table", "pairs": [[key, item] for key, (_, item) in zip(keys, pairs)]}
    return dict(zip(texts, (item for _, item in pairs)))


def about(data: Mapping[str, Any], from_lua: bool, index_base: int = 1) -> dict[str, str]:
    """Return what numbers and lists mean, in words, by their paths with dots.

    Args:
        data: for JSON.
        from_lua: whether they are Lua's, which counts from 1.
        index_base: the number of the first element for the model in PyTorch: 1 as in Lua, or 0.
    """
    words: dict[str, str] = {}
    stack: list[tuple[str, Any]] = [("", data)]
    while stack:
        name, value = stack.pop()
        text = _in_words(name, value, from_lua, index_base)
        if text:
            words[name] = text
        elif isinstance(value, dict):
            inside = [(f"{name}.{key}" if name else key, item) for key, item in value.items()]
            stack += reversed(inside)
    return words


def _in_words(name: str, value: Any, from_lua: bool, index_base: int) -> str:
    """Return what a value means: how inputs are prepared, or where Lua counts from 1; empty if there is nothing to say.

    Args:
        name: its path with dots.
        value: data for JSON.
        from_lua: as for `about`.
        index_base: as for `about`.
    """
    last = name.rpartition(".")[2].lower()
    if is_preprocessing(last) and not isinstance(value, dict):
        return "how inputs are prepared, as the file says"
    if not from_lua:
        return ""
    base_of_model = f"; the model takes numbers from {index_base} on"
    if isinstance(value, dict) and _counts_from_one(value.values()):  # {"the": 1, "of": 2}
        return f"1-based in Lua; index 0 of the embedding is token 1{base_of_model}"
    if isinstance(value, dict) and _counts_from_one(_numbers_of(value)) and _are_texts(value.values()):  # {"1": "the"}
        return f"by number, 1-based in Lua; index 0 of the embedding is token 1{base_of_model}"
    if isinstance(value, list) and len(value) > 1 and _are_texts(value):  # of one item no number is asked
        thing = "class" if any(part in last for part in _CLASS_WORDS) else "item"
        return f"a list of Lua, 1-based there: index 0 here and in tensors is {thing} 1"
    return ""


def _numbers_of(value: dict[str, Any]) -> Iterator[Any]:
    """Yield the keys of a dict as numbers, and `None` for each that is not one."""
    for key in value:
        yield int(key) if key.isdecimal() else None


def _counts_from_one(numbers: Any) -> bool:
    """Return whether numbers are those from 1 on, at least two, each once."""
    counted = list(numbers)
    if len(counted) < 2 or not all(type(number) is int for number in counted):
        return False
    return sorted(counted) == list(range(1, len(counted) + 1))


def _are_texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def config_text(config: dict[str, Any]) -> str:
    """Return data as JSON, as `config.json` has it.

    JSON has no NaN and no infinity: Python's own words for them are used, which its reader knows.
    """
    return json.dumps(config, indent=2) + "\n"
