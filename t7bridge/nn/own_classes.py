"""User registrations: a Python file that calls `register_module` and the like, run once."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

from ..errors import ModelError
from ..io.inputs import add_input
from ..io.source import PathLike

_loaded: dict[str, ModuleType] = {}


def load_classes(path: PathLike) -> None:
    """Run a Python file that registers classes, once in a process.

    The file is the caller's program, and is trusted; see `docs/own-layers.md`. Its module has the file's name, so that
    generated source can import it.

    Args:
        path: of the file.

    Raises:
        ModelError: the file does not exist or fails, or has the name of another module.
    """
    name = os.fspath(path)
    real = os.path.realpath(name)
    add_input(name)
    if real in _loaded:
        return
    stem = os.path.splitext(os.path.basename(name))[0]
    if stem in sys.modules or not stem.isidentifier():
        raise ModelError(
            "a file with registrations cannot have this name", file=name, expected="a name that no other module has"
        )
    spec = importlib.util.spec_from_file_location(stem, real)
    if spec is None or spec.loader is None:
        raise ModelError("is not a Python file", file=name, expected="a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        del sys.modules[stem]
        raise ModelError(f"the file with registrations cannot be read: {error.strerror}", file=name) from error
    except Exception as error:
        del sys.modules[stem]
        raise ModelError(f"the file with registrations fails: {type(error).__name__}: {error}", file=name) from error
    _loaded[real] = module
