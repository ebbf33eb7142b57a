"""Modules by the name of their factory, and their weights: the text arguments of the command line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from typing import Any

from torch import nn

from ..errors import ModelError
from ..io.inputs import add_input


def make_module(name: str) -> nn.Module:
    """Import a factory, and call it. The current folder is searched first, as Python does for scripts.

    Args:
        name: `package.module:factory` or `path/to/net.py:factory`, a class or a function without required arguments;
            arguments may follow in parentheses, as Python literals: `nets:ResNet(18, num_classes=5)`.

    Raises:
        ModelError: the name does not exist, or its result is not a module.
    """
    match = re.fullmatch(r"(?P<home>.+?):(?P<attribute>[\w.]+)(?:\((?P<arguments>.*)\))?", name, re.DOTALL)
    if match is None:
        raise ModelError(
            "a module is named PACKAGE:FACTORY", found=name, hint="t7bridge lua torchvision.models:resnet18"
        )
    home = match["home"]
    args, kwargs = _arguments(match["arguments"] or "")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        value: Any = _file(home) if home.endswith(".py") else importlib.import_module(home)
        add_input(getattr(value, "__file__", None) or os.devnull)
        for attribute in match["attribute"].split("."):
            value = getattr(value, attribute)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise ModelError(f"{name} cannot be imported: {error}") from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
    made = value if isinstance(value, nn.Module) else value(*args, **kwargs)
    if not isinstance(made, nn.Module):
        raise ModelError(f"{name} does not return a torch.nn.Module", found=type(made).__name__)
    return made


def _file(path: str) -> Any:
    add_input(path)
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Parse arguments that are literals."""
    import ast

    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        args = [ast.literal_eval(item) for item in call.args]
        return args, {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ModelError("the arguments of a factory are Python literals", found=text) from error


def fill(module: nn.Module, state: dict[str, Any], path: str) -> None:
    """Load a state dict into a module, strictly.

    Args:
        module: receives the weights.
        state: tensors by key.
        path: of their file, for the error.

    Raises:
        ModelError: it belongs to another module.
    """
    try:
        module.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ModelError(f"the weights do not match the module: {error}", file=path) from error
