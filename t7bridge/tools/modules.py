"""PyTorch modules from the models in files, and modules and programs as Lua models: `load_module`, `save_module` and
`write_lua`.

`write_loader` writes the source that loads a state dict without code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field

from .. import formats
from ..codegen.generate import generate
from ..conversion.convert import convert
from ..conversion.inputs import parse_inputs
from ..conversion.options import FORCE, INPUT, JSON, SYNC, option, takes, verb
from ..conversion.template import torch_weights
from ..errors import ModelError, UnsupportedError, WriteError
from ..formats.pt.archive import CONSTANTS_MEMBER, PT2_MEMBERS
from ..formats.pt.file import PtReader
from ..formats.pt.writer import placed
from ..formats.t7.writer import T7Writer
from ..formats.table import Document
from ..graph.lua import TorchObject
from ..io.output import FileOutput, check_replaceable, local_target
from ..io.platform import require_torch
from ..io.source import ByteSource, PathLike, Readable, require_file
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.places import choose_module
from ..nn.state_dict import Recorded
from ..report import Report
from ..torchmodules.factories import Factory, is_factory
from .scan import scan

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..formats.pt.writer import MapLocation
    from ..lua.convert import LuaModel


def load_module(
    source: Readable,
    at: str | None = None,
    *,
    index_base: int = 1,
    map_location: MapLocation | torch.device = None,
    lift: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> nn.Module:
    """Load a model of a `.t7` file as a live PyTorch module, in evaluation mode.

    The module has the inputs and outputs of the Lua module: tensors in Lua's shapes, and lists for tables. It can be
    trained, and its `state_dict()` has the keys that `convert` writes. A criterion is called with input and target.

    Args:
        source: a path, bytes, or a binary file object.
        at: the path of the module, if the file holds several or one inside another is requested: `root.protos.rnn`,
            `root.model.modules[3]`.
        index_base: number of the first class, row or element: 1 as in Lua, or 0.
        map_location: the device of its parameters: `"cuda"`, a `torch.device`, a mapping such as `{"cuda:0":
            "cuda:1"}`, or a function that receives the device in the file (`cuda:0` for Cuda tensors) and returns one,
            or `None` for the CPU. By default the CPU.
        lift: whether recurrent cells that are recognized in graphs become modules such as `torch.nn.LSTMCell`; the
            keys of its state dict are then those of the `model.pt` that `write_module` writes.
        limits: resource limits.

    Returns:
        A `torch.nn.Module`, its parameters in the element types of the file.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: the file holds no module, or several and `at` names none of them; the message lists them.
        UnsupportedLayerError: layers of the model have no PyTorch equivalent; it lists all of them.
        UnsupportedError: the file is not a `.t7`, PyTorch is not installed, or has no such device.

    Example:
        >>> model = load_module("model.t7")  # doctest: +SKIP
        >>> model(torch.randn(1, 3, 224, 224))  # doctest: +SKIP
    """
    if index_base not in (0, 1):
        raise ModelError("the first element is number 0 or 1", expected="index_base=0 or 1", found=f"{index_base}")
    path, module = one_module(source, at, limits)
    require_torch()
    from ..torchmodules.build import live_module

    place = None
    if map_location is not None:
        location = map_location if callable(map_location) or isinstance(map_location, Mapping) else str(map_location)
        place = placed(location, keep_device=False)

    def keys() -> Recorded:
        return generate(module, path, index_base=index_base, limits=limits, only_keys=True).record()

    return live_module(module, path, index_base, limits, place, lift, keys)


def one_module(
    source: Readable | ByteSource, at: str | None, limits: Limits = DEFAULT_LIMITS
) -> tuple[str, TorchObject]:
    """Return the selected module of a `.t7` file, with its path.

    Args:
        source: a path, bytes, a binary file object, or an open document.
        at: the path of the module if the file holds several.
        limits: resource limits.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        NoModuleError: the file holds no module.
        ModelError: it holds several and `at` names none of them; the message lists them.
        UnsupportedError: the file is not a `.t7`.
    """
    document = lua_document(source, limits)
    return choose_module(document.first, at, document.path)


def lua_document(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a `.t7` file to take a module from it.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        UnsupportedError: the file is not a `.t7`.
    """
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise UnsupportedError(
            f"is {document.spec.title}; modules are made from files of Lua Torch, which hold their layers",
            file=document.path,
            hint=f"t7bridge convert {document.path} weights.pt writes the weights for torch.load.",
        )
    document.warn(5)
    return document


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
            `t7bridge.conversion.inputs`. The first dimension is treated as the batch if the module lets it vary, all
            other extents are fixed by the example. An exported program has its sizes, and needs them only where other
            dimensions than the first are open.
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
    report = _report(request.module, os.fspath(request.target), model)
    classes = model.classes()  # the source of layers that Lua Torch lacks
    path_of_classes = os.path.join(os.path.dirname(os.path.abspath(request.target)), "layers.lua")
    with (
        FileOutput(request.target, force=request.force, sync=request.sync) as output,
        FileOutput(path_of_classes, force=request.force, sync=request.sync) if classes else nullcontext() as code,
    ):
        T7Writer(output).write_object(model.root)
        report.target_bytes = output.position
        if code is not None:
            code.write(classes.encode())
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
    module = request.module
    origin = request.source
    if request.loader:
        weights: Any = request.weights or module
        return write_loader(request.target, weights, force=request.force, sync=request.sync)
    folder = local_target(request.target)
    for name in ("model.t7", "model.lua"):  # before the work, which may take minutes
        check_replaceable(os.path.realpath(os.path.join(folder, name)), request.force)
    if isinstance(module, (str, os.PathLike)) and not is_factory(module):
        if os.fspath(module).endswith(".py"):
            hint = f"Name the class: t7bridge lua {os.fspath(module)}:Net"
            raise ModelError("a module is named FILE.py:CLASS", found=os.fspath(module), hint=hint)
        if request.weights is not None:
            raise ModelError("the weights are in the file of the program", found=os.fspath(request.weights))
        origin = origin or os.path.basename(module)
        module = _program_of(os.fspath(module))
        module.training = request.train
    elif module is None or isinstance(module, str):
        if module is None or not request.example_inputs:
            raise ModelError(
                "the module and the sizes of its inputs are required",
                expected="PACKAGE:FACTORY --input SIZES",
                hint=WriteLua.EXAMPLES[0],
            )
        origin = origin or module
        module = _module_of(module, request.weights).train(request.train)
    model = lua_model(module, request.example_inputs, request.allow, request.inference)
    report = _report(module, folder, model, origin)
    texts = {"model.lua": model.source(report.source), "layers.lua": model.classes()}
    names = ["model.t7", *(name for name, text in texts.items() if text)]
    with outputs_in(folder, names, force=request.force, sync=request.sync) as outputs:
        T7Writer(outputs["model.t7"]).write_object(model.root)
        for name in names[1:]:
            outputs[name].write(texts[name].encode())
        report.target_bytes = outputs["model.t7"].position + outputs["model.lua"].position
    return report


def lua_model(module: Any, example_inputs: Any, allow: tuple[str, ...] = (), inference: bool = False) -> LuaModel:
    """Convert a PyTorch module to a Lua model in memory.

    Raises:
        ModelError: `module` is not a module, or there are no example inputs.
        UnsupportedError: see `save_module`.
    """
    require_torch()
    from ..lua.convert import convert_module
    from ..torchmodules.export import example

    if not hasattr(module, "state_dict") or not callable(module):
        raise ModelError("save_module requires a torch.nn.Module", found=type(module).__name__)
    is_program = hasattr(module, "graph_signature")
    inputs = example_inputs if isinstance(example_inputs, (list, tuple, str)) else (example_inputs,)
    if not inputs and not is_program:
        raise ModelError("save_module needs example inputs", hint="example_inputs=torch.randn(1, 3, 224, 224)")
    if inputs and all(isinstance(item, (str, int)) for item in inputs):  # shapes: `1x3x224x224`, (1, 3, 224, 224)
        tensors = example(module.module() if is_program else module, parse_inputs(inputs), first=0)
        inputs = tensors if isinstance(tensors, list) else [tensors]
    unknown = sorted(set(allow) - set(PACKAGES))
    if unknown:
        raise ModelError("unknown name in allow", expected=" or ".join(PACKAGES), found=", ".join(unknown))
    return convert_module(module, tuple(inputs), allow, inference)


def _program_of(path: str) -> Any:
    """Return the exported program or script module of a file, which is clean for `scan`.

    Raises:
        MissingFileError: there is no file.
        UnsupportedError: PyTorch's loader could execute something in the file, or the file has no program.
    """
    require_file(path)
    judged = scan(path)
    if judged.error:
        raise UnsupportedError(judged.error)
    if judged.format == "t7":
        raise UnsupportedError("is a file of Lua Torch already", file=path, hint=f"t7bridge inspect {path} shows it.")
    members: set[str] = set()
    if judged.format == "pt":
        with ByteSource.from_path(path) as source:
            members = {name.partition("/")[2] or name for name in PtReader(source).members}
    if members.isdisjoint((CONSTANTS_MEMBER, *PT2_MEMBERS)):
        raise UnsupportedError(
            "the file has no program, only values",
            file=path,
            expected="a .pt2 of torch.export.save, or TorchScript of torch.jit.save",
            hint=f"State its module too: t7bridge lua PACKAGE:FACTORY {os.path.basename(path)} --input SIZES.",
        )
    if not judged.clean:
        raise UnsupportedError(
            "PyTorch's loader could execute what is in the file",
            file=path,
            found="; ".join(map(str, judged.findings[:3])),
            hint="If you trust it, pass torch.jit.load(…) or torch.export.load(…) of it to save_module.",
        )
    require_torch()
    from ..lua.trace import load_graph

    return load_graph(path, members.isdisjoint(PT2_MEMBERS))


def _module_of(factory: str, weights: PathLike | None) -> nn.Module:
    """Return the module that a factory makes, with its weights."""
    if weights:
        require_file(weights)
    require_torch()
    from ..torchmodules.build import load_weights, make_module

    module = make_module(Factory.parse(factory))
    if weights:
        load_weights(module, torch_weights(os.fspath(weights)), os.fspath(weights))
    return module


def _report(module: object, target: str, model: LuaModel, source: str = "") -> Report:
    report = Report(source or type(module).__name__, target, "pt", "t7", "lua", notes=list(model.notes))
    report.tensors = report.storages = model.tensors
    return report


def loader_source() -> str:
    """Return `loader.lua`: Lua source that loads a state dict into an existing nn or nngraph model, by name."""
    return (files("t7bridge.lua") / "loader.lua").read_text(encoding="utf-8")


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
    report = Report(os.fspath(weights) if weights else "", folder, "", "t7", "loader")
    with outputs_in(folder, ["loader.lua"], force=force, sync=sync) as outputs:
        outputs["loader.lua"].write(loader_source().encode())
        if weights is not None:
            report = convert(weights, os.path.join(folder, "weights.t7"), force=force, sync=sync)
    return report


@contextmanager
def outputs_in(path: str, names: Iterable[str], *, force: bool, sync: bool = False) -> Iterator[dict[str, FileOutput]]:
    """Create files in a folder. They are renamed in the opposite order: a source never exists without its weights.

    On failure, folders that were created are removed.
    """
    new_folders: list[str] = []  # the innermost first
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        new_folders.append(folder)
        folder = os.path.dirname(folder)
    try:
        try:
            os.makedirs(path, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise WriteError(f"the folder cannot be created: {reason}", file=path) from error
        with ExitStack() as stack:
            outputs = (FileOutput(os.path.join(path, name), force=force, sync=sync) for name in names)
            yield {name: stack.enter_context(output) for name, output in zip(names, outputs)}
    except BaseException:
        for folder in new_folders:
            with suppress(OSError):
                os.rmdir(folder)
        raise
