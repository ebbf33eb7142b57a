"""`write_module`: a model of a `.t7` as PyTorch source with its state dict; of a language model also a program that
samples text.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, ClassVar

from attrs import asdict

from ..codegen.generate import Generated, generate
from ..codegen.page import MADE_BY
from ..conversion.beside import beside, config_text
from ..conversion.options import (
    AT,
    CLASSES,
    FORCE,
    INDEX_BASE,
    JSON,
    LIMITS,
    STRICT,
    SYNC,
    flag,
    option,
    takes,
    verb,
)
from ..conversion.state_dicts import count_leaves, note_data
from ..conversion.tree import as_tree
from ..data import collector_paused, define
from ..errors import LimitError
from ..formats.pt.writer import PtWriter
from ..formats.table import Document
from ..graph.lua import Table, TorchObject, Value
from ..io.output import check_replaceable, local_target, outputs_in
from ..io.source import ByteSource, PathLike, inputs_protected
from ..limits import Budget, Limits
from ..nn.blocks import blocks_of
from ..nn.fields import items_of
from ..nn.layouts import compacted
from ..nn.mapping import ModuleSpec, specs_in
from ..nn.places import choose_module, find_models, is_criterion
from ..nn.registry import load_classes
from ..nn.torch_nn import argument_at
from ..report import Report, check_strict
from ..text import listed
from .modules import lua_document
from .shapes import infer

MODULE_FILES = ("model.py", "model.pt", "config.json", "sample.py")
"""The files of a model's folder; the last two only where the model has something for them."""
_LONGEST_FOLDER_NAME = 100
"""Characters of the name of a folder for one of several models."""


@verb
class WriteModule:
    """Generate model.py, which needs only PyTorch, from the model in a .t7, and model.pt with its weights."""

    COMMON = ("target", "at", "lift", "prove", "force", "json")
    EXAMPLES = ("t7bridge module model.t7 -o model/", "t7bridge module checkpoint.t7 --at root.protos.rnn -o rnn/")
    OLD_NAMES: ClassVar = {"src": "source", "directory": "target"}
    source: PathLike = option(".t7 file to read", kw_only=False, metavar="SRC", stdin=True)
    target: PathLike = option(
        "folder for model.py and model.pt; created if missing", kw_only=False, flags=("-o", "--output"), metavar="DIR"
    )
    at: str | None = option(AT, default=None, kw_only=False)
    index_base: int = INDEX_BASE
    lift: bool = option("keep the layers of recurrent cells, instead of nn.LSTMCell and the like", default=True)
    force: bool = FORCE
    strict: bool = STRICT
    sync: bool = SYNC
    classes: PathLike | None = CLASSES
    prove = flag("compare each layer with what Lua Torch recorded in SRC")
    json = JSON
    limits: Limits = LIMITS


@takes(WriteModule)
@inputs_protected()
def write_module(request: WriteModule) -> Report:
    """Write the model of a `.t7` file as Python source that needs only PyTorch, with its weights.

    `model.py` has a class `Model` and a function `load(weights=None)`, which returns the model in evaluation mode;
    `model.pt` is its state dict, in PyTorch's order. The model has the inputs and outputs of the Lua module: tensors in
    Lua's shapes, and lists for tables. Tables of strings and numbers in the module's fields, such as a vocabulary, are
    in `config.json` under `data`; what stands beside the model in a checkpoint, means, class names, vocabularies and
    options, under `checkpoint`; and in words what numbers and lists mean under `about`. Without any there is no such
    file. Of a file with several models each is in a folder with the name of its path, `netG` for `root.netG`. For a
    language model with its vocabulary, `sample.py` generates text. Neither PyTorch nor Lua is needed to write them.

    Args:
        source: the `.t7` file.
        target: the folder of the files; created if missing.
        at: the path of the module if not all are wanted: `root.protos.rnn`.
        lift: whether recurrent cells that are recognized in graphs become modules such as `nn.LSTMCell`.
        sync: whether to return only when both files are on the disk, so that they survive a power cut; those that
            replace files always are by then.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        NoModuleError: the file holds no module.
        ModelError: there is nothing at `at`; the message lists the modules.
        UnsupportedLayerError: layers of a model have no PyTorch equivalent; it lists all of them.
        TargetExistsError: a file exists and `force` is not set.
        WriteError: the folder or a file cannot be written.
        StrictError: with `strict`: the model would lose something; the error has the notes.
    """
    if request.classes is not None:
        load_classes(request.classes)
    folder = local_target(request.target)
    with ByteSource.from_path(request.source) as source, collector_paused():
        document = lua_document(source, request.limits)
        models = find_models(document.value) if request.at is None else []
        # Of several models and criterions, those that a program runs.
        several = [(path, module) for path, module in models if not is_criterion(module)]
        if len(several) > 1:
            return _write_each(several, document, source, folder, request)
        path, module = choose_module(document.value, request.at, document.path)
        return _write(_folder_content(path, module, folder, document, source, request), request)


@define(eq=False)
class _FolderContent:
    """What is written of one model into a folder; made before anything is written.

    Attributes:
        folder: of the files.
        report: of the conversion, with its notes.
        model: the text of `model.py`, and the tensors of `model.pt`.
        texts: the contents of all files but `model.pt`, by name: `model.py`, and `config.json` and `sample.py` if
            there are such.
    """

    folder: str
    report: Report
    model: Generated
    texts: dict[str, bytes]

    @property
    def names(self) -> list[str]:
        """The names of all files."""
        return [name for name in MODULE_FILES if name in self.texts or name == "model.pt"]


def _write_each(
    models: list[tuple[str, TorchObject]], document: Document, source: ByteSource, folder: str, request: WriteModule
) -> Report:
    """Write several models of one file, each into a folder with the name of its path; return a report of all.

    All are made before the first is written.

    Args:
        models: the path and the module of each.
        document: the file.
        source: the same file, for its name and size.
        folder: around the folders of the models.
        request: with the options.
    """
    names = _folder_names([path for path, _ in models])
    contents: list[_FolderContent] = []
    for name, (path, module) in zip(names, models):
        contents.append(_folder_content(path, module, os.path.join(folder, name), document, source, request))
    for content in contents:  # so that nothing is written if one cannot be
        for name in content.names:
            check_replaceable(os.path.join(content.folder, name), request.force)
    report = Report(source.name, folder, "t7", "pt", "module", source_bytes=source.size)
    message = f"{len(models)} models, a folder each: {listed(os.path.basename(content.folder) for content in contents)}"
    report.note("info", message, code="several-models", count=len(models))
    for content in contents:
        _write(content, request)
        report.notes += content.report.notes
        report.tensors += content.report.tensors
        report.storages += content.report.storages
        report.target_bytes += content.report.target_bytes
    return report


def _folder_names(paths: Iterable[str]) -> list[str]:
    """Return a name of a folder for the model at each path; no two are one name on systems that know no case.

    Where paths have one name, a number tells them apart, `name~2`: no name has a tilde, see `_folder_name`.
    """
    names: list[str] = []
    uses: Counter[str] = Counter()
    for path in paths:
        name = _folder_name(path)
        uses[name.lower()] += 1
        number = uses[name.lower()]
        names.append(name if number == 1 else f"{name}~{number}")
    return names


def _folder_name(path: str) -> str:
    """Return the name of a folder for the model at a path: `protos.rnn` for `root.protos.rnn`."""
    steps = path.removeprefix("root").strip(".")
    # Other characters, as slashes in keys, mean something to file systems.
    name = re.sub(r"[^\w.\-\[\]]", "_", steps)
    return name[:_LONGEST_FOLDER_NAME] or "model"


def _folder_content(
    path: str, module: TorchObject, folder: str, document: Document, source: ByteSource, request: WriteModule
) -> _FolderContent:
    """Return what is to be written of one model; nothing is written.

    Args:
        path: of the model in the file.
        module: the model.
        folder: of its files.
        document: the file.
        source: the same file, for its name and size.
        request: with the options.

    Raises:
        UnsupportedLayerError: layers of the model have no PyTorch equivalent.
        StrictError: with `strict`: the model would lose something.
    """
    name = os.path.basename(source.name)
    model = generate(module, path, index_base=request.index_base, limits=request.limits, source=name, lift=request.lift)
    report = Report(source.name, folder, "t7", "pt", "module", source_bytes=source.size, notes=model.notes)
    json_data = _noted_data(model.state.data, module, path, report, request.limits)
    check_strict(report, request.strict)  # by the notes so far; those below are about what the model keeps
    beside_model = beside(document.value, module)
    beside_model.note(report, "config.json")
    beside_model.own = json_data  # only now, as `note` would note it once more
    config = beside_model.config(from_lua=True, index_base=request.index_base)
    texts = {"model.py": model.text.encode()}
    sampling = _sampling_of(module, path, document.value, request.index_base, model.is_stateful, request.limits)
    if sampling is not None:
        config["sampling"] = asdict(sampling)
        texts["sample.py"] = (files("t7bridge.torchmodules") / "sample.py").read_bytes()
        _note_sampling(sampling, folder, report)
    if config:
        texts["config.json"] = config_text(config).encode()
    return _FolderContent(folder, report, model, texts)


def _note_sampling(sampling: Sampling, folder: str, report: Report) -> None:
    """Note that a program in the folder generates text, and the command that runs it."""
    import shlex

    command = shlex.join(["python", os.path.join(folder, "sample.py")])
    message = f"sample.py generates text with the vocabulary of {len(sampling.tokens)} tokens: {command}"
    report.note("info", message, code="beside")


def _write(content: _FolderContent, request: WriteModule) -> Report:
    """Write the files of one model, and complete its report.

    With `force`, files of another model in the folder, which this one does not have, are removed.

    Args:
        content: what is to be written; its report receives the numbers of tensors, storages and bytes.
        request: with the options.
    """
    outdated = _paths_of_another(content.folder, content.names) if request.force else []
    with outputs_in(content.folder, content.names, force=request.force, sync=request.sync) as outputs:
        writer = PtWriter(outputs["model.pt"])
        writer.write(OrderedDict(compacted(content.model.tensors)))
        writer.finish()
        for name, text in content.texts.items():
            outputs[name].write(text)
    for outdated_path in outdated:
        os.unlink(outdated_path)
    report = content.report
    report.tensors = writer.tensors
    report.storages = writer.storages
    report.target_bytes = sum(output.position for output in outputs.values())
    return report


def _noted_data(
    data: Mapping[str, Any], module: TorchObject, path: str, report: Report, limits: Limits
) -> dict[str, Any]:
    """Return the tables of a module's fields as data for JSON; notes say which fields these are, and which are not.

    Args:
        data: the values of these fields.
        module: the module.
        path: its path.
        report: receives the notes.
        limits: resource limits.
    """
    json_data = _json_data(data, limits)
    in_config: list[tuple[str, str, Any]] = []
    omitted: list[tuple[str, str, Any]] = []
    for field_name, item in data.items():
        path_class_value = (f"{path}.{field_name}", module.class_name, item)
        if field_name in json_data:
            in_config.append(path_class_value)
        else:
            omitted.append(path_class_value)
    note_data(in_config, report, where="in config.json")
    note_data(omitted, report)
    return json_data


def _paths_of_another(folder: str, names: Sequence[str]) -> list[str]:
    """Return the paths of the files that `write_module` wrote for another model, and that this one does not have.

    Args:
        folder: of both models. Nothing in it is ours if its `model.py` is not, or if it has none.
        names: of the files of this model.
    """
    try:
        with open(os.path.join(folder, "model.py"), "rb") as file:
            is_ours = MADE_BY.encode() in file.readline()
    except OSError:
        return []
    if not is_ours:  # the other files may be the user's own
        return []
    others = [os.path.join(folder, name) for name in MODULE_FILES if name not in names]
    return [path for path in others if os.path.isfile(path)]


_VOCABULARY_DEPTH = 4
"""Maximum depth of a vocabulary in a checkpoint."""


@define(frozen=True)
class Sampling:
    """How to sample text from a model.

    Attributes:
        tokens: the vocabulary, in the order of the tokens' numbers. Bytes that are not UTF-8 are surrogates, as Python
            escapes them.
        index_base: the number of the first token.
        states: the shapes, without the batch, of the states that a model of one step takes and returns; `None` for a
            model of whole sequences.
    """

    tokens: list[str]
    index_base: int
    states: list[list[int]] | None


def _sampling_of(
    module: TorchObject, path: str, checkpoint: Value, index_base: int, is_stateful: bool, limits: Limits
) -> Sampling | None:
    """Return how to sample text from a model.

    A vocabulary numbers as many tokens as the last linear layer has outputs. The model takes a token and states, and
    returns the new states and scores; or sequences and a state, and returns scores and state.

    Args:
        module: the model.
        path: its path.
        checkpoint: the value that it is part of.
        index_base: the number of the first token, for the model in PyTorch.
        is_stateful: whether the model in PyTorch takes sequences and a state.
        limits: resource limits.

    Returns:
        `None` if the checkpoint has no vocabulary for the model, or this takes or returns something else.
    """
    vocabularies = list(_vocabularies(checkpoint, limits))
    if not vocabularies:
        return None
    blocks = blocks_of(module, path, limits)
    spec = blocks[0].spec  # of the model itself; here only the ends of graphs have none
    output_count = _last_linear_outputs(spec) if spec is not None else 0
    tokens = next((vocabulary for vocabulary in vocabularies if len(vocabulary) == output_count), None)
    if tokens is None:
        return None
    if is_stateful:
        return Sampling(tokens, index_base, states=None)  # the model begins with a state of its own
    shapes = infer(blocks)  # which sets those of the blocks, too: they are not needed
    states = _state_shapes(shapes.input_value, shapes.output_value, output_count)
    return None if states is None else Sampling(tokens, index_base, states)


def _last_linear_outputs(root: ModuleSpec) -> int:
    """Return the number of outputs of the last linear layer; 0 if there is none."""
    # Linear(inputs, outputs)
    sizes = [argument_at(spec, 1) for spec in specs_in(root) if spec.target == "torch.nn.Linear"]
    return sizes[-1] if sizes and isinstance(sizes[-1], int) else 0


def _state_shapes(inputs: Any, outputs: Any, token_count: int) -> list[list[int]] | None:
    """Return the shapes, without the batch, of the states of a model of one step; `None` if it is another model.

    Its inputs are a token and the states, its outputs the new states and the scores.

    Args:
        inputs: the shapes of its inputs, with a batch of one.
        outputs: the shapes of its outputs, with a batch of one.
        token_count: the number of tokens.
    """
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return None
    if not inputs or len(inputs) != len(outputs):
        return None
    token, *states = inputs
    *new_states, scores = outputs
    is_step = token == (1,) and states == new_states and scores == (1, token_count)
    return [list(shape[1:]) for shape in states] if is_step else None


def _vocabularies(root: Value, limits: Limits) -> Iterator[list[str]]:
    """Yield the tables of a checkpoint that number texts from 1 on, as lists of the texts.

    Args:
        root: the checkpoint.
        limits: as many of its entries are searched as `work` has steps; a vocabulary is near the root.
    """
    entries_left = limits.work
    level = [root]
    visited: set[int] = set()
    for _ in range(_VOCABULARY_DEPTH):
        next_level: list[Value] = []
        for value in level:
            if not isinstance(value, (Table, TorchObject)) or id(value) in visited or entries_left < 0:
                continue
            visited.add(id(value))
            table = value.fields if isinstance(value, TorchObject) else value
            values = table.raw_values if table is not None else []
            entries_left -= len(values)
            texts = _numbered_texts(value) if isinstance(value, Table) else []
            if texts:
                yield texts
            next_level += values
        level = next_level


def _numbered_texts(table: Table) -> list[str]:
    """Return the texts that a table numbers from 1 on, in order: as its keys, or as its items.

    Empty if the table is not such a vocabulary.
    """
    if not all(isinstance(item, (bytes, float)) for item in table.raw_values):
        return []
    items = items_of(table)
    if not items:  # it is no list: its values may be the numbers, from 1 on, of its keys
        text_of_number = {number: text for text, number in table.raw_items() if isinstance(number, float)}
        items = [text_of_number.get(float(number)) for number in range(1, len(table) + 1)]
    texts = [item for item in items if isinstance(item, bytes)]
    are_all_texts = len(texts) == len(items)
    are_all_different = len(set(texts)) == len(texts)
    is_whole_table = len(items) == len(table)
    if not (are_all_texts and are_all_different and is_whole_table):
        return []
    return [text.decode("utf-8", "surrogateescape") for text in texts]


def _json_data(data: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the tables of a module's fields as data for JSON.

    Text that is not UTF-8 has escapes, as in names of tensors. A table is left out if it contains itself, is too deep,
    or contains shared tables at too many places.

    Args:
        data: tables of Lua, by the names of their fields.
        limits: resource limits.
    """
    converted: dict[str, Any] = {}
    for name, item in data.items():
        # JSON has a shared table at each of its places. A value and its key, 2 steps, are free at the first: the limit
        # is for what is written again.
        budget = Budget(limits, "writing shared tables", free=2 * count_leaves(item).values)
        with suppress(RecursionError, LimitError):
            value = _json_value(as_tree(item), budget)
            json.dumps(value)  # an error where it is too deep for JSON
            converted[name] = value
    return converted


def _json_value(value: Any, budget: Budget) -> Any:
    """Return a tree as data for JSON; a table of which two keys would become one is a list of pairs.

    Args:
        value: of `as_tree`: dicts, lists and scalars; text that is not UTF-8 is bytes.
        budget: is charged one step for each value and key.

    Raises:
        RecursionError: it contains itself, or is too deep.
        LimitError: shared tables would be written too often.
    """
    budget.spend()
    if isinstance(value, dict):
        pairs = [[_json_value(key, budget), _json_value(item, budget)] for key, item in value.items()]
        # Keys that differ may have one text in JSON, as 1 and "1" have.
        texts = {key if isinstance(key, str) else json.dumps(key) for key, _ in pairs}
        if len(texts) < len(pairs):
            return {"__class__": "table", "pairs": pairs}
        return dict(pairs)
    if isinstance(value, list):
        return [_json_value(item, budget) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
