"""PyTorch modules from the models in files, and modules and programs as Lua models: `load_module`, `save_module` and
`write_lua`.

`write_loader` writes the source that loads a state dict without code.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field

from ...conversion.convert import convert
from ...conversion.inputs import parse_inputs
from ...conversion.options import FORCE, INPUT, JSON, SYNC, option, takes, verb
from ...conversion.template import torch_weights
from ...errors import ModelError, UnsupportedError
from ...formats.pt.file import PtReader
from ...formats.pt.members import CONSTANTS_MEMBER, PT2_MEMBERS
from ...formats.t7.writer import T7Writer
from ...io.output import FileOutput, check_replaceable, local_target, outputs_in
from ...io.platform import require_torch
from ...io.source import ByteSource, PathLike, require_file
from ...report import Report
from ...tools.scan import scan
from ...torchmodules.factories import Factory, is_factory

if TYPE_CHECKING:
    from torch import nn

    from .convert import LuaModel


PACKAGES = ("layers", "rnn")
"""What a model may need besides nn and nngraph if allowed: layers of its own, in `layers.lua`; a Lua package."""


@verb
class ToLua:
    """Options of each way to Lua."""

    allow: tuple[str, ...] = option(
        "what the model may need: layers, classes of its own in layers.lua; rnn, for nn.SeqLSTM; may be repeated",
        default=(),
        metavar="NAME",
    )
    inference: bool = option(
        "leave out the tensors of gradients, half of the file: Lua can evaluate the model, but not train it",
        default=False,
    )
    force: bool = FORCE
    sync: bool = SYNC


@verb
class SaveModule(ToLua):
    """Save a PyTorch module, a script module or an exported program as a Lua Torch model."""

    OLD_NAMES: ClassVar = {"path": "target"}
    module: nn.Module = field(kw_only=False)
    target: PathLike = field(kw_only=False)
    example_inputs: Any = field(default=(), kw_only=False)


@verb
class WriteLua(ToLua):
    """Convert a PyTorch module, a .pt2 or a TorchScript file to a Lua Torch model: model.t7, and its source model.lua.

    With --loader: write loader.lua, which loads a state dict into an existing Lua model by name.
    """

    COMMON = ("target", "example_inputs", "inference", "force")
    EXAMPLES = (
        "t7bridge lua net.py:Net net.pt --input 1x3x32x32 -o lua/",
        "t7bridge lua net.pt2 -o lua/",
        "t7bridge lua --loader weights.pt -o lua/",
    )
    OLD_NAMES: ClassVar = {"directory": "target"}
    module: nn.Module | str | None = option(
        "class or function of the module: torchvision.models:resnet18, net.py:Net, 'nets:make(5, wide=True)'; "
        "or a file with its graph: .pt2, or TorchScript",
        kw_only=False, metavar="PACKAGE:FACTORY", nargs="?",
    )  # fmt: skip
    weights: PathLike | None = option(
        "its state dict; random weights if not given", default=None, metavar="WEIGHTS.pt", nargs="?", stdin=True
    )
    target: PathLike = option(
        "folder for model.t7 and model.lua", kw_only=False, flags=("-o", "--output"), metavar="DIR"
    )
    example_inputs: Any = option(INPUT, default=(), kw_only=False, flags=("--input",))
    loader: bool = option(
        "write loader.lua instead, and weights.t7 from the state dict of the .pt, if given", default=False
    )
    train: bool = option("leave the Lua model in training mode", default=False)
    json = JSON

    # For Python only: the origin that the first line of the source names; empty for the name of the class or file.
    source: str = field(default="", kw_only=True)


@takes(SaveModule)
def save_module(request: SaveModule) -> Report:
    """Save a PyTorch module as a `.t7` that stock Lua Torch loads, runs, trains and saves again.

    The model consists of nn and nngraph only. It has the inputs and outputs of the module: one tensor, or a table of
    several. Running means of batch normalization and dropout keep their meaning in training. `load_module` of the file
    computes the same, with the same state dict keys.

    Args:
        module: the module, a script module, or a `torch.export.ExportedProgram`; it is not changed.
        target: of the `.t7` to write.
        example_inputs: a tensor, or a tuple of the inputs; or their shapes, in any form of
            `t7bridge.conversion.inputs`. Sizes that the module lets vary stay open, first of all that of the batch, the
            first dimension; the others are fixed by the example. An exported program has its sizes, and needs them only
            where other dimensions than the first are open.
        allow: what the model may need besides nn and nngraph: `layers` for classes of PyTorch's functions that nn lacks
            (sine, sorting, sampling of images), which are written to `layers.lua` beside the model; `rnn`,
            Element-Research's, for `nn.SeqLSTM`, without which recurrent layers are unrolled.
        inference: leave out the tensors of gradients, half of the file. The Lua model is in evaluation mode, and Lua
            cannot train it.

    Returns:
        The report, with notes for the user, such as the fixed length of unrolled recurrent layers.

    Raises:
        UnsupportedError: operations that nn and nngraph cannot express, all of them with their lines; or PyTorch is not
            installed.
        TargetExistsError: the file exists and `force` is not set.

    Example:
        >>> save_module(model, "model.t7", example_inputs=torch.randn(1, 3, 224, 224))  # doctest: +SKIP
    """
    model = lua_model(request.module, request.example_inputs, request.allow, request.inference)
    report = _report(model, os.fspath(request.target), type(request.module).__name__)
    source_of_classes = model.classes()  # of layers that nn lacks; empty if there are none
    with ExitStack() as outputs:  # at whose end both files take their names
        output = outputs.enter_context(FileOutput(request.target, force=request.force, sync=request.sync))
        if source_of_classes:
            path = os.path.join(os.path.dirname(os.path.abspath(request.target)), "layers.lua")
            output_of_classes = outputs.enter_context(FileOutput(path, force=request.force, sync=request.sync))
            output_of_classes.write(source_of_classes.encode())
        T7Writer(output).write_object(model.root)
        report.target_bytes = output.position
    return report


@takes(WriteLua)
def write_lua(request: WriteLua) -> Report:
    """Write a PyTorch module as `model.t7` and as source that builds it, `model.lua`.

    Args:
        module: see `save_module`; or the text `PACKAGE:FACTORY` or `FILE.py:FACTORY`, which is imported and called; or
            the path of a `.pt2` archive or TorchScript file, which must be clean for `scan`.
        target: the folder of the two files; created if missing.
        example_inputs: see `save_module`.
        weights: a file with the state dict of a module named by a text; random weights if not given.
        allow: see `save_module`.
        inference: see `save_module`.
        loader: write `loader.lua` and `weights.t7` instead, see `write_loader`; `weights` or `module` is the file.
        train: whether a module named by a text is saved in training mode.
        source: the origin of the module, for the first line of the source.

    Raises:
        UnsupportedError: see `save_module`.
        TargetExistsError: a file exists and `force` is not set.
        WriteError: the folder or a file cannot be written.
    """
    if request.loader:
        weights: Any = request.weights or request.module
        return write_loader(request.target, weights, force=request.force, sync=request.sync)
    folder = local_target(request.target)
    for name in ("model.t7", "model.lua"):  # before the work, which may take minutes
        check_replaceable(os.path.realpath(os.path.join(folder, name)), request.force)
    module, origin = _requested_module(request)
    model = lua_model(module, request.example_inputs, request.allow, request.inference)
    report = _report(model, folder, request.source or origin)
    texts = {"model.lua": model.source(report.source)}
    classes = model.classes()
    if classes:
        texts["layers.lua"] = classes
    with outputs_in(folder, ["model.t7", *texts], force=request.force, sync=request.sync) as outputs:
        T7Writer(outputs["model.t7"]).write_object(model.root)
        for name, text in texts.items():
            outputs[name].write(text.encode())
        report.target_bytes = sum(output.position for output in outputs.values())
    return report


def _requested_module(request: WriteLua) -> tuple[Any, str]:
    """Return the module of a request: a program of a file, what a factory makes, or the object itself.

    Also, as text, where it is from: the name of the file, the factory as it was named, or the name of the class.

    Raises:
        ModelError: the module is not named, or not as the file of its source requires; or weights are given to a file
            that has them.
        UnsupportedError: see `_load_program`.
    """
    module = request.module
    if isinstance(module, (str, os.PathLike)) and not is_factory(module):
        path = os.fspath(module)
        return _module_of_file(path, request), os.path.basename(path)
    if module is None or (isinstance(module, str) and not request.example_inputs):
        raise ModelError(
            "the module and the sizes of its inputs are required",
            expected="PACKAGE:FACTORY --input SIZES",
            hint=WriteLua.EXAMPLES[0],
        )
    if isinstance(module, str):
        return _module_of_factory(module, request.weights).train(request.train), module
    # An object has its own weights and mode: `weights` and `train` are of modules named by a text.
    return module, type(module).__name__


def _module_of_file(path: str, request: WriteLua) -> Any:
    """Return the exported program or script module of a file, with the mode that the request asks for.

    Args:
        path: of the file.
        request: whose `train` becomes the attribute `training`; it cannot have weights besides.

    Raises:
        ModelError: the file is Python source, or weights are given besides.
        UnsupportedError: see `_load_program`.
    """
    if path.endswith(".py"):
        hint = f"Name the class: t7bridge lua {path}:Net"
        raise ModelError("a module is named FILE.py:CLASS", found=path, hint=hint)
    if request.weights is not None:
        raise ModelError("the weights are in the file of the program", found=os.fspath(request.weights))
    program = _load_program(path)
    # An exported program has no `train`: the attribute is what `convert_module` reads.
    program.training = request.train
    return program


def lua_model(module: Any, example_inputs: Any, allow: tuple[str, ...] = (), inference: bool = False) -> LuaModel:
    """Convert a PyTorch module to a Lua model in memory.

    Args:
        module: a module, a script module or an exported program.
        example_inputs: see `save_module`.
        allow: see `save_module`.
        inference: see `save_module`.

    Raises:
        ModelError: `module` is not a module, or there are no example inputs.
        UnsupportedError: see `save_module`.
    """
    require_torch()
    from .convert import convert_module

    if not hasattr(module, "state_dict") or not callable(module):
        raise ModelError("save_module requires a torch.nn.Module", found=type(module).__name__)
    inputs = _example_tensors(module, example_inputs)
    unknown = sorted(set(allow) - set(PACKAGES))
    if unknown:
        raise ModelError("unknown name in allow", expected=" or ".join(PACKAGES), found=", ".join(unknown))
    return convert_module(module, inputs, allow, inference)


def _example_tensors(module: Any, example_inputs: Any) -> tuple[Any, ...]:
    """Return example inputs as they are passed to a module: as they are given, or made for the shapes that are.

    Args:
        module: a module, a script module or an exported program, which has example inputs of its own.
        example_inputs: see `save_module`.

    Raises:
        ModelError: there are none, and the module is no program.
    """
    from ...torchmodules.build import example

    is_program = hasattr(module, "graph_signature")
    inputs = example_inputs
    if not isinstance(inputs, (list, tuple, str)):
        inputs = (inputs,)
    if not inputs and not is_program:
        raise ModelError("save_module needs example inputs", hint="example_inputs=torch.randn(1, 3, 224, 224)")
    are_shapes = bool(inputs) and all(isinstance(item, (str, int)) for item in inputs)  # `1x3x8x8`, (1, 3, 8, 8)
    if not are_shapes:
        return tuple(inputs)
    runner = module.module() if is_program else module
    tensors = example(runner, parse_inputs(inputs), first=0)  # indices count from 0 in PyTorch
    return tuple(tensors) if isinstance(tensors, list) else (tensors,)


def _load_program(path: str) -> Any:
    """Return the exported program or script module of a file, which is clean for `scan`.

    Raises:
        MissingFileError: there is no file.
        UnsupportedError: PyTorch's loader could execute something in the file, or the file has no program.
    """
    require_file(path)
    verdict = scan(path)
    if verdict.error:
        raise UnsupportedError(verdict.error)
    # The kind of file is told first, so that one without a program is not refused for what is in it.
    if verdict.format == "t7":
        raise UnsupportedError("is a file of Lua Torch already", file=path, hint=f"t7bridge inspect {path} shows it.")
    is_script = _is_script(path, verdict.format)
    if not verdict.clean:
        raise UnsupportedError(
            "PyTorch's loader could execute what is in the file",
            file=path,
            found="; ".join(map(str, verdict.findings[:3])),
            hint="If you trust it, pass torch.jit.load(…) or torch.export.load(…) of it to save_module.",
        )
    require_torch()
    from .exporting import load_program

    return load_program(path, is_script)


def _is_script(path: str, file_format: str) -> bool:
    """Return whether a file is TorchScript, or else a `.pt2` archive, by the members of its archive.

    Args:
        path: of the file.
        file_format: by `scan`: `pt` for both.

    Raises:
        UnsupportedError: it is neither.
    """
    members: set[str] = set()
    if file_format == "pt":
        with ByteSource.from_path(path) as source:
            # Names of members without the folder that all are in.
            members = {name.partition("/")[2] or name for name in PtReader(source).members}
    if not members.isdisjoint(PT2_MEMBERS):
        return False
    if CONSTANTS_MEMBER in members:
        return True
    raise UnsupportedError(
        "the file has no program, only values",
        file=path,
        expected="a .pt2 of torch.export.save, or TorchScript of torch.jit.save",
        hint=f"State its module too: t7bridge lua PACKAGE:FACTORY {os.path.basename(path)} --input SIZES.",
    )


def _module_of_factory(factory: str, weights: PathLike | None) -> nn.Module:
    """Return the module that a factory makes, with the weights of a file if there is one.

    Args:
        factory: `PACKAGE:FACTORY`, see `WriteLua`.
        weights: the file of a state dict.
    """
    if weights:
        require_file(weights)  # before the module is made, which may take long
    require_torch()
    from ...torchmodules.build import load_weights, make_module

    module = make_module(Factory.parse(factory))
    if weights:
        load_weights(module, torch_weights(os.fspath(weights)), os.fspath(weights))
    return module


def _report(model: LuaModel, target: str, source: str) -> Report:
    """Return the report of a conversion: the model's notes, and its tensors, each of which has a storage of its own."""
    report = Report(source, target, "pt", "t7", "lua", notes=list(model.notes))
    report.tensors = model.tensors
    report.storages = model.tensors
    return report


def loader_source() -> str:
    """Return `loader.lua`: Lua source that loads a state dict into an existing nn or nngraph model, by name."""
    return (files("t7bridge.workshop.lua") / "loader.lua").read_text(encoding="utf-8")


def write_loader(
    directory: PathLike, weights: PathLike | None = None, *, force: bool = False, sync: bool = False
) -> Report:
    """Write `loader.lua`, and a state dict as its table of tensors, `weights.t7`.

    Args:
        directory: the folder of the files.
        weights: a file with a state dict, of any format; by default only the loader is written.
        force: whether existing files are replaced.
        sync: whether to return only when the files are on the disk.

    Raises:
        FormatError: the weights are damaged, or in no supported format.
        TargetExistsError: a file exists and `force` is not set.
        WriteError: the folder or a file cannot be written.
    """
    folder = local_target(directory)
    # With weights, the report of their conversion takes the place of this one.
    report = Report(os.fspath(weights) if weights else "", folder, "", "t7", "loader")
    with outputs_in(folder, ["loader.lua"], force=force, sync=sync) as outputs:
        outputs["loader.lua"].write(loader_source().encode())
        if weights is not None:
            report = convert(weights, os.path.join(folder, "weights.t7"), force=force, sync=sync)
    return report
