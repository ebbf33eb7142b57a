"""A folder for model hubs: weights, configuration, source and a card of a Lua model."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from .. import formats
from ..conversion.named_tensors import name_tensors
from ..data import define
from ..errors import ModelError, UnsupportedError
from ..formats.safetensors import write as write_safetensors
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..io.inputs import inputs_protected
from ..io.output import FileOutput
from ..io.source import ByteSource, PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.places import Places
from ..nn.state_dict import state_dict
from ..report import Note, Report
from ..text import printable
from ..version import __version__
from .export_module import json_data, new_folder
from .load_module import one_module

WEIGHTS, CONFIG, SOURCE, CARD = FILES = ("model.safetensors", "config.json", "model.py", "README.md")
_LINES = 200
_CHUNK_BYTES = 1 << 20


@define(frozen=True)
class HubReport:
    """The result of writing a hub folder.

    Attributes:
        source: path of the Lua model.
        target: the folder.
        files: names of the files in it.
        tensors: number of tensors.
        parameters: number of their elements; tied ones count once.
        sha256: of the source file.
        checked: the result of `prove`, as a sentence.
        target_bytes: size of the files.
        notes: notes for the user.
    """

    source: str
    target: str
    files: list[str]
    tensors: int
    parameters: int
    sha256: str
    checked: str
    target_bytes: int
    notes: list[Note]


@inputs_protected()
def export_hub(
    path: PathLike,
    directory: PathLike,
    *,
    at: str | None = None,
    index_base: int = 1,
    force: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> HubReport:
    """Write a Lua model as a folder for model hubs.

    `model.safetensors` has the weights, `model.py` the model as source that needs only PyTorch and safetensors
    (`from_pretrained(folder)` returns it in evaluation mode), `config.json` metadata for programs and `README.md` the
    same as a model card: origin, classes, parameters, and the result of `prove`. The licence is left to the user.

    Args:
        path: the `.t7` file.
        directory: the folder; created if missing.
        at: the path of the module, if the file holds several.
        index_base: number of the first class, row or element: 1 as in Lua, or 0.
        force: replace existing files.
        limits: resource limits.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: the file holds no module, or several and `at` names none of them.
        UnsupportedLayerError: layers of the model have no PyTorch equivalent; it lists all of them.
        UnsupportedError: safetensors cannot hold a tensor.
        TargetExistsError: a file exists and `force` is not set.
    """
    from ..codegen.generate import generate
    from ..nn.compact import compacted

    if index_base not in (0, 1):
        raise ModelError("the first element is number 0 or 1", expected="index_base=0 or 1", found=f"{index_base}")
    folder = os.fspath(directory)
    with ByteSource.from_path(path) as source, ExitStack() as stack:
        inside, module = one_module(source, at, limits)
        name = os.path.basename(source.name)
        made = generate(module, inside, index_base=index_base, limits=limits, source=name, weights=WEIGHTS)
        tensors = compacted(made.tensors)
        report = Report(source.name, folder, "t7", "safetensors", notes=list(made.notes))
        named = name_tensors(dict(tensors), formats.FORMATS["safetensors"], report)
        facts: dict[str, Any] = {
            "architectures": ["Model"],
            "model_file": SOURCE,
            "weights_file": WEIGHTS,
            "lua_class": printable(module.class_name),
            "dtype": _dtype(tensors),
            "parameters": count_parameters(tensors),
            "tensors": len(tensors),
            "index_base": index_base,
            "origin": {
                "file": printable(name), "path": printable(inside), "bytes": source.size, "sha256": file_sha256(source),
            },
            "checked": _checked(path, inside, limits),
            "converter": f"t7bridge {__version__}",
        }  # fmt: skip
        data = json_data(state_dict(module, inside, limits).data, limits)
        if data:
            facts["data"] = data
        stack.enter_context(new_folder(folder))
        # Renamed in the opposite order: the source never exists without its weights.
        outputs = {
            each: stack.enter_context(FileOutput(os.path.join(folder, each), force=force)) for each in reversed(FILES)
        }
        write_safetensors(outputs[WEIGHTS], named)
        outputs[CONFIG].write((json.dumps(facts, indent=2, default=repr) + "\n").encode())
        outputs[SOURCE].write(made.text.encode())
        outputs[CARD].write(("\n".join(_card(facts, module, inside, limits)) + "\n").encode())
        size = sum(output.position for output in outputs.values())
    return HubReport(
        os.fspath(path),
        folder,
        list(FILES),
        len(tensors),
        facts["parameters"],
        facts["origin"]["sha256"],
        facts["checked"],
        size,
        report.notes,
    )


def file_sha256(source: ByteSource) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    found = hashlib.sha256()
    for offset in range(0, source.size, _CHUNK_BYTES):
        found.update(source.read(offset, min(_CHUNK_BYTES, source.size - offset)))
    return found.hexdigest()


def count_parameters(tensors: dict[str, Tensor]) -> int:
    """Return the number of elements of a state dict; tensors that are the same view of a storage count once."""
    views = {(id(each.storage), each.offset, each.size, each.stride): each.numel for each in tensors.values()}
    return sum(views.values())


def _dtype(tensors: dict[str, Tensor]) -> str:
    """Return the element type of most weights."""
    counts: dict[str, int] = {}
    for tensor in tensors.values():
        counts[tensor.element.name] = counts.get(tensor.element.name, 0) + tensor.numel
    return max(counts, key=lambda name: counts[name], default="")


def _checked(path: PathLike, inside: str, limits: Limits) -> str:
    """Return the verdict of `prove` as a sentence."""
    try:
        from .prove.prove import prove

        return prove(path, inside, limits=limits).sentence()
    except UnsupportedError as error:
        return f"not checked: {error.message}"


def _card(facts: dict[str, Any], module: TorchObject, inside: str, limits: Limits) -> Iterator[str]:
    """Yield the lines of the model card."""
    origin = facts["origin"]
    yield from ("---", "library_name: pytorch", "tags:", "- lua-torch", "- t7bridge", "---", "")
    yield f"# {_plain(os.path.splitext(origin['file'])[0])}"
    yield from ("", f"A model of Lua Torch, converted to PyTorch by {facts['converter']}.", "")
    yield from ("| | |", "| --- | --- |")
    yield f"| Origin | `{_plain(origin['file'])}`, {origin['bytes']} bytes |"
    yield f"| SHA-256 of the origin | `{origin['sha256']}` |"
    yield f"| Module in it | `{_plain(origin['path'])}`, of class `{_plain(facts['lua_class'])}` |"
    count = f"{facts['parameters']:,} elements in {facts['tensors']} tensors"
    yield f"| Parameters and buffers | {count}, most of them {facts['dtype']} |"
    yield f"| Checked | {_plain(facts['checked'])} |"
    yield "| Licence | not known to the converter: state it here and as `license:` at the top before publishing |"
    yield from ("", "## Use", "", "```python", "from model import from_pretrained", "")
    yield from ('model = from_pretrained(".")', "```", "", "It needs PyTorch and safetensors, and nothing else.")
    yield from ("", "## Classes", "", "```")
    for number, place in enumerate(Places(module, inside, limits)):
        if number == _LINES:
            yield "…"
            break
        indent = "  " * min(place.depth, 20)
        yield f"{indent}{_plain(place.step) or _plain(inside)}: {_plain(place.obj.class_name)}"
    yield "```"


def _plain(text: str) -> str:
    """Return a text from a file without markup of Markdown or HTML."""
    return re.sub(r"[^\w .,:;()\[\]/+-]", "_", printable(text))[:200]
