"""What can be asked of a zoo's run: the options of `convert` and `write_module`, and what they mean for many files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from ..conversion.options import CHOICES
from ..errors import ModelError, T7BridgeError
from ..limits import Limits
from .job import FLAT_FORMATS, Settings

SUFFIX = {"t7": ".t7", "pt": ".pt", **FLAT_FORMATS}
"""Format of an output → suffix of its name."""
_OWN = {"src", "dst", "directory", "to", "force", "limits", "sync"}


def settings_of(
    to: str | None,
    module: bool,
    verify: bool,
    memory: int | None,
    limits: Limits,
    options: dict[str, Any],
    *,
    flush: bool,
) -> Settings:
    """Check what was asked for, once and not with every file.

    Raises:
        ModelError: an option does not exist, or makes no sense with the others.
    """
    asked = _asked(to, module, options) if options else {}
    choices = {"to": (to, (None, *SUFFIX)), "as_": (asked.get("as_", "auto"), CHOICES["mode"])}
    choices["pt_format"] = (asked.get("pt_format", "zip"), CHOICES[".pt format"])
    for name in ("encoding", "byte_order", "long_size"):
        choices[name] = (asked.get(name), (None, *CHOICES[name]))
    for name, (choice, there) in choices.items():
        if choice not in there:
            raise ModelError(f"there is no {name} {choice!r}", expected=" or ".join(str(one) for one in there if one))
    if module and (to is not None or verify):
        raise ModelError("a module is not compared, and has no other format", expected="module without to and verify")
    if asked.get("template"):
        if verify:
            raise ModelError("what went into a template cannot be compared with where it came from")
        asked["template"] = os.path.abspath(asked["template"])
        if not os.path.exists(asked["template"]):
            raise T7BridgeError("there is no such file", file=asked["template"])
    return Settings(to, module, verify, asked, limits, memory, flush)


def _asked(to: str | None, module: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are others than usual.

    Raises:
        ModelError: one does not exist, or means nothing here.
    """
    from ..conversion.convert import convert
    from ..tools.export_module import write_module

    known = inspect.signature(write_module if module else convert).parameters
    allowed = set(known) - _OWN
    asked = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in options.items()
        if name not in known or value != known[name].default
    }
    if not set(asked) <= allowed or (asked and to in FLAT_FORMATS):
        wrong = sorted(asked if to in FLAT_FORMATS else set(asked) - allowed)
        what = "with module" if module else f"for {to}" if to in FLAT_FORMATS else "here"
        raise ModelError(f"{', '.join(wrong)} has no meaning {what}", expected=", ".join(sorted(allowed)))
    return asked


def suffix_of(settings: Settings) -> Callable[[str], str]:
    """The suffix of an output, for what its input is."""
    if settings.module:
        return lambda kind: ""
    return lambda kind: SUFFIX[settings.to or ("pt" if kind == "t7" else "t7")]
