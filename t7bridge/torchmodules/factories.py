"""Factories of PyTorch modules, named by a text: `torchvision.models:resnet50`, `net.py:Net(10, wide=True)`.

Knows nothing of torch, so that a text can be recognized without it; `build` calls the factories.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from typing import Any

from attrs import evolve, field

from ..data import define, pattern
from ..errors import ModelError
from ..io.source import add_input, is_address

_NAME = pattern(r"(?P<home>.+?):(?P<attribute>[\w.]+)(?:\((?P<arguments>.*)\))?", re.DOTALL)


@define(frozen=True)
class Factory:
    """A class or function that returns a module, and its arguments.

    Attributes:
        home: its package, `torchvision.models`, or a file, `path/to/net.py`.
        attribute: its name there, perhaps dotted.
        args: its arguments by position, literals.
        kwargs: its arguments by keyword, likewise.
    """

    home: str
    attribute: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict)

    @classmethod
    def parse(cls, name: str) -> Factory:
        """Return the factory that a text names: `package.module:factory`, or `nets.py:ResNet(18, num_classes=5)`.

        Raises:
            ModelError: the text names none.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise ModelError(
                "a module is named PACKAGE:FACTORY", found=name, hint="t7bridge lua torchvision.models:resnet18"
            )
        args, kwargs = _literal_arguments(match["arguments"] or "")
        return cls(match["home"], match["attribute"], args, kwargs)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        arguments = [repr(value) for value in self.args]
        arguments += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        name = f"{self.home}:{self.attribute}"
        return f"{name}({', '.join(arguments)})" if arguments else name

    def calling(self, **kwargs: Any) -> Factory:
        """Return the same factory with further arguments."""
        return evolve(self, kwargs={**self.kwargs, **kwargs})

    def load(self) -> Any:
        """Import and return the class or function, or a module. The current folder is searched first, as Python does
        for scripts.

        Raises:
            ModelError: it cannot be imported.
        """
        try:
            value = imported(self.home)
            for attribute in self.attribute.split("."):
                value = getattr(value, attribute)
        except Exception as error:  # of any code in the file
            hint = "Install it, or name a file: net.py:Net." if isinstance(error, ModuleNotFoundError) else ""
            raise ModelError(f"{self} cannot be imported: {error}", hint=hint) from error
        return value


def is_factory(value: Any) -> bool:
    """Return whether a value is the name of a factory, not of an existing file."""
    if not isinstance(value, str) or is_address(value):
        return False
    return _NAME.fullmatch(value) is not None and not os.path.exists(value)


def imported(home: str) -> Any:
    """Import a package, or run a file whose name ends in `.py`. The current folder is searched first.

    Raises:
        Exception: any error of the package's or the file's own code, too.
    """
    current_folder = os.getcwd()
    sys.path.insert(0, current_folder)
    try:
        module: Any = _imported_file(home) if home.endswith(".py") else importlib.import_module(home)
    finally:
        # The imported code may have removed it.
        if current_folder in sys.path:
            sys.path.remove(current_folder)
    # So that no output replaces its source. Packages of several folders have no file: then it notes one that is none.
    add_input(getattr(module, "__file__", None) or os.devnull)
    return module


def _imported_file(path: str) -> Any:
    """Run a file as a module with the file's name, as if it were in `sys.path`; return the module.

    It is run at each call, and replaces the module of this name in `sys.modules`.
    """
    add_input(path)
    name, _ = os.path.splitext(os.path.basename(path))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _literal_arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse the arguments of a call, all literals, by position and by keyword.

    Raises:
        ModelError: one is not a literal, or the text is more than arguments.
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        # A text such as `1), (2` closes the bracket itself.
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        args = tuple(ast.literal_eval(item) for item in call.args)
        kwargs = {item.arg: ast.literal_eval(item.value) for item in call.keywords if item.arg is not None}
        # `**…` has no name.
        if len(kwargs) < len(call.keywords):
            raise ValueError(text)
        return args, kwargs
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ModelError("the arguments of a factory are Python literals", found=text) from error
