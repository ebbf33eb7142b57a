"""Convert a PyTorch module to a Lua Torch model: model.t7, and model.lua, the source that builds it.

With --loader: write loader.lua, which loads a state dict into an existing Lua model by name.
"""

from __future__ import annotations

import argparse
import json
import os

from .shared import add_options, print_notes

EXAMPLES = (
    "t7bridge lua net.py:Net net.pt --input 1x3x32x32 -o lua/",
    "t7bridge lua --loader weights.pt -o lua/",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "factory",
        metavar="PACKAGE:FACTORY",
        nargs="?",
        help="class or function of the module: torchvision.models:resnet18, net.py:Net, 'nets:make(5, wide=True)'",
    )
    parser.add_argument("weights", metavar="WEIGHTS.pt", nargs="?", help="its state dict; random weights if not given")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder for model.t7 and model.lua")
    add_options(parser, "lua")


def run(options: argparse.Namespace) -> int:
    """Write the files, and print the report."""
    if options.loader:
        return _write_loader(options)
    from ..errors import ModelError, UnsupportedError

    if options.factory is None or not options.input:
        raise ModelError(
            "the module and the sizes of its inputs are required",
            expected="PACKAGE:FACTORY --input SIZES",
            hint=EXAMPLES[0],
        )
    from ..tools.save_module import write_lua

    try:
        from ..lua.factory import example, fill, make_module
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error
    module = make_module(options.factory)
    if options.weights:
        from ..conversion.torch_weights import torch_weights

        fill(module, torch_weights(options.weights), options.weights)
    inputs = tuple(example(text) for text in options.input)
    report = write_lua(
        module.train() if options.train else module.eval(),
        options.output,
        inputs,
        allow=tuple(options.allow),
        force=options.force,
        sync=options.sync,
        source=options.factory,
    )
    if options.json:
        print(json.dumps(report.as_dict()))
        return 0
    print_notes(report)
    print(f"{os.path.join(report.target, 'model.t7')}: {report.tensors} tensors; its source is model.lua")
    return 0


def _write_loader(options: argparse.Namespace) -> int:
    """Write loader.lua, and the weights as a table of tensors if a file is given."""
    from ..tools.save_module import write_loader

    weights = options.weights or options.factory
    report = write_loader(options.output, weights, force=options.force, sync=options.sync)
    if options.json:
        print(json.dumps(report.as_dict()))
        return 0
    print_notes(report)
    beside = f"; its weights are in weights.t7, {report.tensors} tensors" if weights else ""
    print(f"{os.path.join(options.output, 'loader.lua')}: loads a state dict into a Lua model by name{beside}")
    return 0
