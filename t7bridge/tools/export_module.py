"""`write_module`: a Lua model as `model.py` and `model.pt`."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ..conversion.left_out import count_leaves, note_beside, note_data
from ..conversion.options import AT, CLASSES, FORCE, INDEX_BASE, JSON, LIMITS, STRICT, SYNC, flag, option, takes, verb
from ..conversion.strictness import check_strict
from ..conversion.tree import to_python
from ..errors import LimitError, ModelError, WriteError
from ..io.inputs import inputs_protected
from ..io.output import FileOutput
from ..io.source import ByteSource, PathLike
from ..limits import Budget, Limits
from ..nn.state_dict import state_dict
from ..report import Report
from .load_module import one_module


@verb
class WriteModule:
    """Generate model.py for the model of a .t7, which needs only PyTorch, and model.pt with its weights."""

    EXAMPLES = ("t7bridge module model.t7 -o model/", "t7bridge module checkpoint.t7 --at root.protos.rnn -o rnn/")
    src: PathLike = option(".t7 file to read", kw_only=False, metavar="SRC", stdin=True)
    directory: PathLike = option(
        "folder for model.py and model.pt; created if missing", kw_only=False, flags=("-o", "--output"), metavar="DIR"
    )
    at: str | None = option(AT, default=None, kw_only=False)
    index_base: int = INDEX_BASE
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
    in `config.json` under `data`; without any there is no such file. Neither PyTorch nor Lua is needed to write them.

    Args:
        src: the `.t7` file.
        directory: the folder of the files; created if missing.
        at: the path of the module if the file holds several: `root.protos.rnn`.
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
    from ..codegen.generate import generate
    from ..formats.pt.writer import PtWriter
    from ..nn.compact import compacted

    if request.index_base not in (0, 1):
        raise ModelError(
            "the first element is number 0 or 1", expected="index_base=0 or 1", found=f"{request.index_base}"
        )
    if request.classes is not None:
        from ..nn.registry import load_classes

        load_classes(request.classes)
    with ByteSource.from_path(request.src) as source:
        path, module = one_module(source, request.at, request.limits)
        made = generate(
            module,
            path,
            index_base=request.index_base,
            limits=request.limits,
            source=os.path.basename(source.name),
            weights="model.pt",
        )
        folder = os.fspath(request.directory)
        report = Report(source.name, folder, "t7", "pt", "module", source_bytes=source.size, notes=made.notes)
        data = state_dict(module, path, request.limits).data
        found = json_data(data, request.limits)
        for place, note in ((True, note_beside), (False, note_data)):
            rows = [
                (f"{path}.{name}", module.class_name, item) for name, item in data.items() if (name in found) is place
            ]
            note(rows, report)
        check_strict(report, request.strict)
        names = ["model.py", "model.pt", *["config.json"] * bool(found)]
        with ExitStack() as stack:
            stack.enter_context(new_folder(folder))
            # The source is renamed last: a model.py never exists without its weights.
            paths = (os.path.join(folder, name) for name in names)
            outputs = [stack.enter_context(FileOutput(each, force=request.force, sync=request.sync)) for each in paths]
            text, state = outputs[:2]
            writer = PtWriter(state)
            writer.write(OrderedDict(compacted(made.tensors)))
            writer.finish()
            text.write(made.text.encode())
            for output in outputs[2:]:
                output.write((json.dumps({"data": found}, indent=2) + "\n").encode())
        report.tensors, report.storages = writer.tensors, writer.storages
        report.target_bytes = sum(output.position for output in outputs)
    return report


def json_data(data: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the tables of a module's fields as data for JSON, without those that contain themselves or are too deep.

    Text that is not UTF-8 has escapes, as in names of tensors.
    """
    found: dict[str, Any] = {}
    for name, item in data.items():
        budget = Budget(limits, "writing shared tables", free=2 * count_leaves(item).values)
        with suppress(RecursionError, LimitError):
            made = _json_value(to_python(item), budget)
            json.dumps(made)
            found[name] = made
    return found


def _json_value(value: Any, budget: Budget) -> Any:
    budget.spend()
    if isinstance(value, dict):
        return {_json_value(key, budget): _json_value(item, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item, budget) for item in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


@contextmanager
def new_folder(path: str) -> Iterator[None]:
    """Create a folder for the outputs of the block; on failure, folders that were created are removed."""
    made: list[str] = []
    missing = os.path.abspath(path)
    while not os.path.lexists(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    try:
        try:
            os.makedirs(path, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise WriteError(f"the folder cannot be created: {reason}", file=path) from error
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                os.rmdir(folder)
        raise
