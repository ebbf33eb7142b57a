"""Lua models for other programs: `write_module` writes PyTorch source with its state dict, and what a checkpoint of a
language model has to sample text; `export` ONNX and `.pt2`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any, ClassVar

from attrs import asdict, field

from ..codegen.generate import MADE_BY, generate
from ..conversion.inputs import Inputs, parse_inputs
from ..conversion.options import (
    AT,
    CLASSES,
    FORCE,
    INDEX_BASE,
    INPUT,
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
from ..data import define
from ..errors import LimitError, ModelError, WriteError, about_file
from ..formats.pt.writer import PtWriter
from ..graph.lua import Table, TorchObject, Value
from ..io.output import check_replaceable, local_target
from ..io.source import ByteSource, PathLike, inputs_protected
from ..limits import Budget, Limits
from ..nn.fields import items_of
from ..nn.layouts import compacted
from ..nn.mapping import ModuleSpec, specs_in
from ..nn.places import choose_module
from ..nn.registry import load_classes
from ..nn.state_dict import state_dict
from ..report import Report, check_strict
from .draw.blocks import blocks_of
from .draw.shapes import infer
from .inspect import inspect
from .modules import load_module, lua_document, one_module, outputs_in

MODULE_FILES = ("model.py", "model.pt", "config.json", "sample.py")
"""The files of a model's folder; the last two only where the model has something for them."""


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
    in `config.json` under `data`, and the options beside the model in a checkpoint under `checkpoint`; without any
    there is no such file. For a language model with its vocabulary, `sample.py` generates text. Neither PyTorch nor
    Lua is needed to write them.

    Args:
        source: the `.t7` file.
        target: the folder of the files; created if missing.
        at: the path of the module if the file holds several: `root.protos.rnn`.
        lift: whether recurrent cells that are recognized in graphs become modules such as `nn.LSTMCell`.
        sync: whether to return only when both files are on the disk, so that they survive a power cut; those that
            replace files always are by then.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        NoModuleError: the file holds no module.
        ModelError: it holds several and `at` names none of them; the message lists them.
        UnsupportedLayerError: layers of the model have no PyTorch equivalent; it lists all of them.
        TargetExistsError: a file exists and `force` is not set.
        WriteError: the folder or a file cannot be written.
        StrictError: with `strict`: the model would lose something; the error has the notes.
    """
    if request.classes is not None:
        load_classes(request.classes)
    folder = local_target(request.target)
    with ByteSource.from_path(request.source) as source:
        document = lua_document(source, request.limits)
        path, module = choose_module(document.first, request.at, document.path)
        name = os.path.basename(source.name)
        model = generate(
            module, path, index_base=request.index_base, limits=request.limits, source=name, lift=request.lift
        )
        report = Report(source.name, folder, "t7", "pt", "module", source_bytes=source.size, notes=model.notes)
        data = state_dict(module, path, request.limits).data
        json_data = _json_data(data, request.limits)
        in_config: list[tuple[str, str, Any]] = []
        omitted: list[tuple[str, str, Any]] = []
        for field_name, item in data.items():
            row = (f"{path}.{field_name}", module.class_name, item)
            (in_config if field_name in json_data else omitted).append(row)
        note_data(in_config, report, "in config.json")
        note_data(omitted, report, "")
        check_strict(report, request.strict)
        config = _config(json_data, document.first, request.limits)
        sampling = _sampling_of(module, path, document.first, request.index_base, model.is_stateful, request.limits)
        if sampling is not None:
            config["sampling"] = asdict(sampling)
            command = f"python {os.path.join(folder, 'sample.py')}"
            message = f"sample.py generates text with the vocabulary of {len(sampling.tokens)} tokens: {command}"
            report.note("info", message, code="beside")
        texts = {"model.py": model.text.encode()}
        if config:
            texts["config.json"] = _json(config)
        if sampling is not None:
            texts["sample.py"] = (files("t7bridge.torchmodules") / "sample.py").read_bytes()
        names = [name for name in MODULE_FILES if name in texts or name == "model.pt"]
        outdated = _paths_of_another(folder, names) if request.force else []
        with outputs_in(folder, names, force=request.force, sync=request.sync) as outputs:
            writer = PtWriter(outputs["model.pt"])
            writer.write(OrderedDict(compacted(model.tensors)))
            writer.finish()
            for name, text in texts.items():
                outputs[name].write(text)
        for outdated_path in outdated:
            os.unlink(outdated_path)
        report.tensors = writer.tensors
        report.storages = writer.storages
        report.target_bytes = sum(output.position for output in outputs.values())
    return report


def _paths_of_another(folder: str, names: Sequence[str]) -> list[str]:
    """Return the files that `write_module` wrote for another model into a folder, and that this one does not have."""
    try:
        with open(os.path.join(folder, "model.py"), "rb") as file:
            is_ours = MADE_BY.encode() in file.readline()
    except OSError:
        return []
    if not is_ours:
        return []
    others = [os.path.join(folder, name) for name in MODULE_FILES if name not in names]
    return [path for path in others if os.path.isfile(path)]


_PLAIN = (bytes, bool, float)
_DEEPEST = 4
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
    """Return how to sample text from a model, if the checkpoint has a vocabulary for it.

    A vocabulary numbers as many tokens as the last linear layer has outputs. The model takes a token and states, and
    returns the new states and scores; or sequences and a state, and returns scores and state.

    Args:
        module: the model.
        path: its path.
        checkpoint: the value that it is part of.
        index_base: the number of the first token, for the model in PyTorch.
        is_stateful: whether the model in PyTorch takes sequences and a state.
        limits: resource limits.
    """
    vocabularies = list(_vocabularies(checkpoint, limits))
    if not vocabularies:
        return None
    blocks = blocks_of(module, path, limits)
    spec = blocks[0].spec
    count = _outputs(spec) if spec is not None else 0
    tokens = next((vocabulary for vocabulary in vocabularies if len(vocabulary) == count), None)
    if tokens is None:
        return None
    if is_stateful:
        return Sampling(tokens, index_base, None)
    states = _states(*infer(blocks).values, count)
    return None if states is None else Sampling(tokens, index_base, states)


def _outputs(root: ModuleSpec) -> int:
    """Return the number of outputs of the last linear layer."""
    sizes = [spec.args[1] for spec in specs_in(root) if spec.target == "torch.nn.Linear"]
    return sizes[-1] if sizes and isinstance(sizes[-1], int) else 0


def _states(inputs: Any, outputs: Any, count: int) -> list[list[int]] | None:
    """Return the shapes of the states of a model of one step: it returns each in its place, and the scores last.

    Args:
        inputs: the shapes of its inputs, with a batch of one.
        outputs: likewise.
        count: the number of tokens.
    """
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not 0 < len(inputs) == len(outputs):
        return None
    token, *states = inputs
    *new_states, scores = outputs
    is_step = token == (1,) and states == new_states and scores == (1, count)
    return [list(shape[1:]) for shape in states] if is_step else None


def _vocabularies(root: Value, limits: Limits) -> Iterator[list[str]]:
    """Yield the tables of a checkpoint that number texts from 1 on, as lists of the texts.

    Args:
        root: the checkpoint.
        limits: as many of its entries are searched as `work` has steps; a vocabulary is near the root.
    """
    entries_left = limits.work
    level = [root]
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        next_level: list[Value] = []
        for value in level:
            if not isinstance(value, (Table, TorchObject)) or id(value) in seen or entries_left < 0:
                continue
            seen.add(id(value))
            values = value.values()
            entries_left -= len(values)
            texts = _numbered(value) if isinstance(value, Table) else []
            if texts:
                yield texts
            next_level += values
        level = next_level


def _numbered(table: Table) -> list[str]:
    """Return the texts that a table numbers from 1 on, in order: as its keys, or as its items."""
    items = items_of(table) or []
    if not items:
        text_of_number = {number: text for text, number in table.raw_items() if isinstance(number, float)}
        items = [text_of_number.get(float(number)) for number in range(1, len(table) + 1)]
    texts = [item for item in items if isinstance(item, bytes)]
    is_vocabulary = len(texts) == len(items) == len(set(texts)) == len(table)
    return [text.decode("utf-8", "surrogateescape") for text in texts] if is_vocabulary else []


def _beside(checkpoint: Value) -> dict[str, Value]:
    """Return the entries of a checkpoint that describe its model: texts, numbers, and tables in which there are texts.

    Args:
        checkpoint: the value that the model is part of; nothing stands beside a model that is the whole file.
    """
    if not isinstance(checkpoint, Table):
        return {}
    entries = ((name, item) for name, item in checkpoint.items() if isinstance(name, str))
    return {name: item for name, item in entries if isinstance(item, _PLAIN) or _describes(item)}


def _describes(value: Any) -> bool:
    """Return whether a value is a table of texts and numbers, and not of numbers alone."""
    if not isinstance(value, Table):
        return False
    inside = [*value.raw_keys, *value.raw_values]
    return all(isinstance(part, _PLAIN) for part in inside) and any(isinstance(part, bytes) for part in inside)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _config(data: dict[str, Any], checkpoint: Value, limits: Limits) -> dict[str, Any]:
    """Return the content of `config.json`: data of the module's fields, and what stands beside it in a checkpoint."""
    config = {"data": data, "checkpoint": _json_data(_beside(checkpoint), limits)}
    return {name: part for name, part in config.items() if part}


def _json_data(data: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the tables of a module's fields as data for JSON, without those that contain themselves or are too deep.

    Text that is not UTF-8 has escapes, as in names of tensors.
    """
    converted: dict[str, Any] = {}
    for name, item in data.items():
        budget = Budget(limits, "writing shared tables", free=2 * count_leaves(item).values)
        with suppress(RecursionError, LimitError):
            value = _json_value(as_tree(item), budget)
            json.dumps(value)  # an error where it is too deep for JSON
            converted[name] = value
    return converted


def _json_value(value: Any, budget: Budget) -> Any:
    """Return a tree as data for JSON; a table whose keys would become one is a list of pairs."""
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


SUFFIXES = (".onnx", ".pt2")
_STEPS_PER_CALL = 2000
"""Steps that tracing one call of a module costs: about 5 ms."""
_CALLS = 700
"""Calls that any model may have besides those of `Limits.work`."""
_BYTES_PER_CALL = 1 << 10
"""Bytes of the file that account for one more."""


@define(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        source: path of the Lua model.
        target: path of the file written.
        inputs: names of its inputs.
        outputs: names of its outputs.
        difference: largest absolute difference between its outputs and the live module's, for the example inputs.
        runner: the program that ran the file.
        target_bytes: size of the files written.
        files: their names.
    """

    source: str
    target: str
    inputs: list[str]
    outputs: list[str]
    difference: float
    runner: str
    target_bytes: int
    files: list[str] = field(factory=list)


@verb
class Export:
    """Export a Lua model as ONNX or a .pt2 archive, checked against the model."""

    COMMON = ("input", "dynamic", "at", "force")
    EXAMPLES = (
        "t7bridge export model.t7 model.onnx --input 1x3x224x224",
        "t7bridge export model.t7 model.pt2 --input 1x3x224x224 --dynamic batch",
    )
    OLD_NAMES: ClassVar = {"path": "source", "dst": "target"}
    source: PathLike = option(".t7 file to read", kw_only=False, metavar="SRC", stdin=True)
    target: PathLike = option("file to write: X.onnx or X.pt2", kw_only=False, metavar="DST")
    input: Inputs = INPUT
    output: Sequence[str] = option(
        "name of an output; may be repeated", default=(), flags=("--output-name",), metavar="NAME"
    )
    dynamic: Sequence[str] = option(
        "let the first dimension of every input have any size", default=(), choices=("batch",)
    )
    at: str | None = AT
    index_base: int = INDEX_BASE
    force: bool = FORCE
    json = JSON
    limits: Limits = LIMITS


@takes(Export)
@inputs_protected()
def export(request: Export) -> ExportReport:
    """Export a Lua model as ONNX (`.onnx`) or as a `.pt2` archive of torch.export, by PyTorch's own exporters.

    The file is run immediately, by onnxruntime or by PyTorch, and compared with the live module on seeded inputs of the
    given shapes. A file with different results is deleted.

    Args:
        source: the `.t7` file.
        target: the file to write; its suffix selects the format.
        input: the input, `(1, 3, 224, 224)` or any form of `t7bridge.conversion.inputs`; a list of such texts for a
            model with a table as input.
        output: names for the outputs.
        dynamic: `("batch",)` if the first dimension of every input may have any size.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: no input is given, a shape is invalid or does not fit, or the exported model computes something
            else.
        UnsupportedError: a package is missing, or the exporter refuses a layer; the message names it.
        TargetExistsError: the file exists and `force` is not set.
    """
    if not request.input:
        one_module(request.source, request.at, request.limits)
        shape_in_file = inspect(request.source, at=request.at, limits=request.limits).header.get("input", "")
        raise ModelError(
            "no input is given",
            expected="the shape of the input: --input 1x3x224x224 (input=…)",
            hint=f"The file has {shape_in_file.replace('×', 'x')}." if shape_in_file else "",
        )
    target = local_target(request.target)
    suffix = os.path.splitext(target)[1].lower()
    if suffix not in SUFFIXES:
        raise ModelError("unknown format", file=target, expected=" or ".join(SUFFIXES), found=suffix or "no suffix")
    check_replaceable(os.path.realpath(target), request.force)
    inputs = parse_inputs(request.input, limits=request.limits)
    module = load_module(request.source, request.at, index_base=request.index_base, limits=request.limits)
    from ..torchmodules.export import export_onnx, export_pt2

    with about_file(os.fspath(request.source)), ByteSource.from_path(request.source) as source:
        _check_calls(module, source.size, request.limits)
    # Under its own name, as ONNX finds the weights by the name of the file next to it.
    with _appearing_together(target, request.force) as (temporary, sizes), about_file(os.fspath(request.source)):
        if suffix == ".onnx":
            result = export_onnx(module, inputs, temporary, request.output, request.dynamic)
        else:
            result = export_pt2(module, inputs, temporary, request.dynamic)
    return ExportReport(
        os.fspath(request.source),
        target,
        **asdict(result),
        target_bytes=sum(sizes.values()),
        files=list(sizes),
    )


@contextmanager
def _appearing_together(target: str, force: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Provide a path for a file that may have others beside it, and a dict for the sizes of all of them by name.

    They get their names only if the context ends without an error; the file that refers to the others the last.
    """
    folder = os.path.dirname(os.path.abspath(target))
    try:
        scratch = tempfile.mkdtemp(prefix=".t7bridge-", dir=folder)
    except OSError as error:
        raise WriteError(f"the folder cannot be written: {error.strerror}", file=folder) from error
    try:
        files: dict[str, int] = {}
        yield os.path.join(scratch, os.path.basename(target)), files
        for name in sorted(os.listdir(scratch), key=lambda name: name == os.path.basename(target)):
            files[name] = os.path.getsize(os.path.join(scratch, name))
            check_replaceable(os.path.realpath(os.path.join(folder, name)), force)
        for name in files:
            os.replace(os.path.join(scratch, name), os.path.join(folder, name))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_calls(module: Any, nbytes: int, limits: Limits) -> None:
    """Charge the call of each module, at each of its places, before the exporter traces them.

    A module without weights takes some 100 bytes of a file and 5 ms of the exporter, so that the size of the file
    bounds them: 1 200 calls, and one more for each KiB. The layers of real models have weights.

    Args:
        module: the live module.
        nbytes: size of its file.
        limits: resource limits.

    Raises:
        LimitError: there are far more calls than the size of the file accounts for.
    """
    free_calls = _CALLS + nbytes // _BYTES_PER_CALL
    budget = Budget(limits, "exporting a model of so many modules", _STEPS_PER_CALL * free_calls)
    for _ in module.named_modules(remove_duplicate=False):
        budget.spend(_STEPS_PER_CALL)
