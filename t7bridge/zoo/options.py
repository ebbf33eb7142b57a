"""Options of a zoo's run: those of `convert` and `write_module`, and their meaning for many files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..conversion.options import BY_NAME, Option, check_choices, options_for
from ..errors import ModelError, T7BridgeError
from ..formats import FORMATS, LUA
from ..limits import Limits
from .job import Settings

_OWN = {"to", "force", "sync", "at"}


def settings_of(
    to: str | None,
    module: bool,
    verify: bool,
    memory: int | None,
    limits: Limits,
    options: dict[str, Any],
    *,
    draw: bool = False,
    prove: bool = False,
    flush: bool,
) -> Settings:
    """Check the request, once and not for every file.

    Raises:
        ModelError: an option does not exist, or is incompatible with the others.
    """
    check_choices({"to": to})
    asked = _asked(to, module, options)
    if module and (to is not None or verify):
        raise ModelError("module excludes to and verify", expected="module without to and verify")
    if asked.get("template"):
        if verify:
            raise ModelError("verify and template exclude each other")
        asked["template"] = os.path.abspath(asked["template"])
        if not os.path.exists(asked["template"]):
            raise T7BridgeError("no such file", file=asked["template"])
    if asked.get("classes"):
        asked["classes"] = os.path.abspath(asked["classes"])
    return Settings(to, module, verify, draw, prove, asked, limits, memory, flush)


def allowed_options(to: str | None, module: bool) -> list[Option]:
    """Return the options that apply to one kind of output."""
    known = [option for option in options_for("module" if module else "zoo") if option.name not in _OWN]
    if module:
        return [option for option in known if not option.command_line]
    known = [option for option in known if "convert" in option.verbs]
    if to is None:
        return known
    return [option for option in known if FORMATS[to].values in option.targets]


def _asked(to: str | None, module: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with values other than their defaults.

    Raises:
        ModelError: one does not exist, or does not apply.
    """
    allowed = {option.name for option in allowed_options(to, module)}
    asked = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in options.items()
        if name not in BY_NAME or value != BY_NAME[name].default
    }
    if not set(asked) <= allowed:
        wrong = sorted(set(asked) - allowed)
        what = "with module" if module else f"for {to}" if to is not None else "here"
        raise ModelError(f"{', '.join(wrong)} does not apply {what}", expected=", ".join(sorted(allowed)))
    check_choices(asked)
    return asked


def suffix_of(settings: Settings) -> Callable[[str], str]:
    """Return the suffix of an output, for the format of its input."""
    if settings.module:
        return lambda kind: ""
    return lambda kind: FORMATS[settings.to or ("pt" if FORMATS[kind].values == LUA else "t7")].suffix
