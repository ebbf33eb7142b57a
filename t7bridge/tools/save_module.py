"""PyTorch modules as Lua models: `save_module` and `write_lua`; and `write_loader` for state dicts without code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import ModelError, UnsupportedError, WriteError
from ..formats.t7.writer import T7Writer
from ..io.output import FileOutput
from ..io.source import PathLike
from ..report import Report

if TYPE_CHECKING:
    from torch import nn

    from ..lua.convert import LuaModel


PACKAGES = ("rnn",)
"""Lua packages besides nn and nngraph that a model may need if allowed."""


def save_module(
    module: nn.Module,
    path: PathLike,
    example_inputs: Any,
    *,
    allow: tuple[str, ...] = (),
    force: bool = False,
    sync: bool = False,
) -> Report:
    """Save a PyTorch module as a `.t7` that stock Lua Torch loads, runs, trains and saves again.

    The model consists of nn and nngraph only. It has the inputs and outputs of the module: one tensor, or a table of
    several. Running means of batch normalization and dropout keep their meaning in training. `load_module` of the file
    computes the same, with the same state dict keys.

    Args:
        module: the module; it is not changed.
        path: of the `.t7` to write.
        example_inputs: a tensor, or a tuple of the inputs; the first dimension is treated as the batch if the module
            lets it vary, all other extents are fixed by the example.
        allow: other Lua packages that the model may need: `rnn`, Element-Research's, for `nn.SeqLSTM`; without it
            recurrent layers are unrolled.
        force: whether an existing file is replaced.
        sync: whether to return only when the file is on the disk.

    Returns:
        The report, with notes for the user, such as the fixed length of unrolled recurrent layers.

    Raises:
        UnsupportedError: operations that nn and nngraph cannot express, all of them with their lines; or PyTorch is not
            installed.
        TargetExistsError: the file exists and `force` is not set.

    Example:
        >>> save_module(model, "model.t7", example_inputs=torch.randn(1, 3, 224, 224))  # doctest: +SKIP
    """
    model = lua_model(module, example_inputs, allow)
    name = os.fspath(path)
    report = Report(type(module).__name__, name, "pt", "t7", "lua", notes=list(model.notes))
    with FileOutput(path, force=force, sync=sync) as output:
        _write(output, model)
        report.target_bytes = output.position
    report.tensors, report.storages = model.tensors, model.tensors
    return report


def write_lua(
    module: nn.Module,
    directory: PathLike,
    example_inputs: Any,
    *,
    allow: tuple[str, ...] = (),
    force: bool = False,
    sync: bool = False,
    source: str = "",
) -> Report:
    """Write a PyTorch module as `model.t7` and as source that builds it, `model.lua`.

    Args:
        module: see `save_module`.
        directory: the folder of the two files; created if missing.
        example_inputs: see `save_module`.
        allow: see `save_module`.
        force: whether existing files are replaced.
        sync: whether to return only when the files are on the disk.
        source: the origin of the module, for the first line of the source.

    Raises:
        UnsupportedError: see `save_module`.
        TargetExistsError: a file exists and `force` is not set.
        WriteError: the folder or a file cannot be written.
    """
    model = lua_model(module, example_inputs, allow)
    folder = _made(directory)
    report = Report(source or type(module).__name__, folder, "pt", "t7", "lua", notes=list(model.notes))
    text = model.source(source or type(module).__name__)
    with (
        FileOutput(os.path.join(folder, "model.t7"), force=force, sync=sync) as output,
        FileOutput(os.path.join(folder, "model.lua"), force=force, sync=sync) as code,
    ):
        _write(output, model)
        code.write(text.encode())
        report.target_bytes = output.position + code.position
    report.tensors, report.storages = model.tensors, model.tensors
    return report


def lua_model(module: nn.Module, example_inputs: Any, allow: tuple[str, ...] = ()) -> LuaModel:
    """Convert a PyTorch module to a Lua model in memory.

    Raises:
        ModelError: `module` is not a module, or there are no example inputs.
        UnsupportedError: see `save_module`.
    """
    try:
        from ..lua.convert import convert_module
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error
    if not hasattr(module, "state_dict") or not callable(module):
        raise ModelError("save_module requires a torch.nn.Module", found=type(module).__name__)
    inputs = tuple(example_inputs) if isinstance(example_inputs, (list, tuple)) else (example_inputs,)
    if not inputs:
        raise ModelError("save_module needs example inputs", hint="example_inputs=torch.randn(1, 3, 224, 224)")
    unknown = sorted(set(allow) - set(PACKAGES))
    if unknown:
        raise ModelError("unknown Lua package", expected=" or ".join(PACKAGES), found=", ".join(unknown))
    return convert_module(module, inputs, allow)


def loader_source() -> str:
    """Return `loader.lua`: Lua source that loads a state dict into an existing nn or nngraph model, by name."""
    from importlib.resources import files

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
    from ..conversion.convert import convert

    folder = _made(directory)
    report = Report(os.fspath(weights) if weights else "", folder, "", "t7", "loader")
    with FileOutput(os.path.join(folder, "loader.lua"), force=force, sync=sync) as code:
        code.write(loader_source().encode())
        if weights is not None:
            report = convert(weights, os.path.join(folder, "weights.t7"), force=force, sync=sync)
    return report


def _made(directory: PathLike) -> str:
    folder = os.fspath(directory)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise WriteError(f"the folder cannot be created: {error.strerror}", file=folder) from error
    return folder


def _write(output: FileOutput, model: LuaModel) -> None:
    T7Writer(output).write_object(model.root)
