"""Options: each is one field of the class of its verb, with type, default, help and applicability.

The class is what the verb's function takes (`takes`); the command line, its completion, the zoo, the notes on options
without effect and docs/options.md are made from its fields.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from ..data import define, field
from ..errors import ModelError
from ..formats import FORMATS, LUA, NAMED, PYTHON
from ..io.progress import in_notebook, progress
from ..limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

else:

    def dataclass_transform(**options: Any) -> Any:
        """Leave the decorator as it is: it tells type checkers only."""
        return lambda decorator: decorator


Arguments = ParamSpec("Arguments")
Request = TypeVar("Request")
Result = TypeVar("Result")
REQUIRED: Any = object()
"""Default of an argument that has none."""


class Option(NamedTuple):
    """An option, or an operand: an argument without a name on the command line.

    A named tuple, as tables of formats and limits are: attrs takes longer to load than a help to print.

    Attributes:
        help: one line.
        default: its default value, or `REQUIRED`.
        choices: the allowed values, if enumerable.
        kind: how the command line reads a value: `flag`, `text`, `int`, `count` (from 1), `number` (from 0), `seconds`,
            `bytes` (4G), `tolerance`; `list` and `limits` for a repeatable option; that of the field's type by default.
        metavar: name of the value in the help.
        flags: the spellings on the command line; empty for `--` and the name.
        nargs: of an operand, as in argparse.
        stdin: whether `-` is standard input.
        sources: kinds of formats to which it applies as inputs.
        targets: kinds of formats to which it applies as outputs.
        formats: the formats to which it applies, if not all of these kinds.
        unless: why it does not apply nevertheless, empty if it does: of the request, and the kinds of values of source
            and target.
        except_for: where it does not apply by `unless`, for the help: `from .t7 to .t7`.
        group: the heading in the help.
        kw_only: whether Python's argument has to be named.
        name: of the argument in Python; that of the field.
        python: whether the verb's function takes it; otherwise it exists on the command line only.
    """

    help: str
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    kind: str = ""
    metavar: str = ""
    flags: tuple[str, ...] = ()
    nargs: str | None = None
    stdin: bool = False
    sources: tuple[str, ...] = (LUA, PYTHON, NAMED)
    targets: tuple[str, ...] = (LUA, PYTHON, NAMED)
    formats: tuple[str, ...] = ()
    unless: Callable[[Any, str, str], str] | None = None
    except_for: str = ""
    group: str = ""
    kw_only: bool = True
    name: str = ""
    python: bool = False

    @property
    def is_operand(self) -> bool:
        """Whether its value has no name before it on the command line."""
        return not self.flags and (self.default is REQUIRED or self.nargs is not None)

    def spellings(self) -> tuple[str, ...]:
        """Return the spellings on the command line: `--no-record` for a flag that is on by default."""
        if self.flags:
            return self.flags
        inverse = "no-" if self.kind == "flag" and self.default is True else ""
        return (f"--{inverse}{self.name.replace('_', '-')}",)

    def refused(self, request: Any, source: str, target: str) -> str:
        """Return why it does not apply to a conversion between two formats, as part of a sentence; empty if it does.

        Args:
            request: of the verb, with the values of all options.
            source: name of the source's format.
            target: name of the target's format.
        """
        source_values = FORMATS[source].values
        target_values = FORMATS[target].values
        has_kinds = source_values in self.sources and target_values in self.targets
        has_format = not self.formats or target in self.formats
        if not has_kinds or not has_format:
            return f"from {FORMATS[source].suffix} to {FORMATS[target].suffix}; it is for conversions {self.scope()}"
        if self.unless is None:
            return ""
        return self.unless(request, source_values, target_values)

    def scope(self) -> str:
        """Return for which formats it is, as part of a sentence: `from .t7 to .pt`; empty for all."""
        words = []
        if set(self.sources) != set(_ALL_KINDS):
            words.append(f"from {_suffixes(self.sources)}")
        if self.formats:
            words.append("to " + " or ".join(FORMATS[name].suffix for name in self.formats))
        elif set(self.targets) != set(_ALL_KINDS):
            words.append(f"to {_suffixes(self.targets)}")
        if self.except_for:
            words.append(f"not {self.except_for}")
        # "from .t7 to .pt", and "to .t7 or .pt, not from .t7 to .t7"
        return " ".join(words) if not self.except_for else ", ".join(words)

    def check(self, value: Any) -> None:
        """Check that a value is one of the choices; `None` means not given.

        Raises:
            ModelError: it is not.
        """
        if value is None or not self.choices or value in self.choices:
            return
        noun = "format" if self.name == "to" else self.name  # `unknown to 'x'` says nothing
        raise ModelError(f"unknown {noun} {value!r}", expected=" or ".join(map(str, self.choices)))


_ALL_KINDS = (LUA, PYTHON, NAMED)


def _suffixes(kinds: Sequence[str]) -> str:
    """Return the suffixes of the formats whose values are of these kinds, for a sentence: `.t7 or .pt`."""
    if set(kinds) == {PYTHON, NAMED}:
        return "other formats than .t7"
    *others, last = [spec.suffix for spec in FORMATS.values() if spec.values in kinds and spec.suffixes]
    return f"{', '.join(others)} or {last}" if others else last


_KINDS = {"int": "int", "int | None": "int", "float": "tolerance"}
"""The kind of an option by the type of its field, as it is written."""


def _kind(default: Any, type_name: str) -> str:
    """Return the kind of an option from its default, or else from its type: `flag`, `list`, one of `_KINDS`, or `text`.

    Args:
        default: the default value.
        type_name: the annotation of the field, as text.
    """
    kinds_by_default = {bool: "flag", tuple: "list"}
    return kinds_by_default.get(type(default)) or _KINDS.get(type_name, "text")


def option(
    help: str | Option,
    *,
    default: Any = REQUIRED,
    kw_only: bool = True,
    choices: tuple[Any, ...] = (),
    **facts: Any,
) -> Any:
    """Return an `Option`, which declares a field of a verb's class: `name: type = option(…)`.

    A class attribute without annotation is an option of the command line only.

    Args:
        help: one line; or an option of several verbs, for one that differs from it in `default`, `kw_only` and `facts`.
        default: its default value; without one it is required.
        kw_only: whether Python's argument has to be named.
        choices: the allowed values, if enumerable; an option of several verbs has its own.
        **facts: others of `Option`.
    """
    if isinstance(help, Option):
        return help._replace(default=default, kw_only=kw_only, **facts)
    return Option(help, default, choices, kw_only=kw_only, **facts)


def flag(help: str, **facts: Any) -> Any:
    """Return an option of the command line that is off by default."""
    return Option(help, default=False, **facts)


@dataclass_transform(kw_only_default=True, field_specifiers=(option, field))
def verb(cls: type[Request]) -> type[Request]:
    """Make the class of a verb: its annotated options are fields, and arguments of the verb's function.

    The class gets `OPTIONS`, all of them by name, operands first. A request does not change while it is served.
    """
    types = vars(cls).get("__annotations__", {})
    options: dict[str, Option] = {}
    for name, value in vars(cls).items():
        if isinstance(value, Option):
            kind = value.kind or _kind(value.default, types.get(name, ""))
            options[name] = value._replace(name=name, python=name in types, kind=kind)
    for name, argument in options.items():
        # One without annotation exists on the command line only.
        if not argument.python:
            continue
        # For attrs, a field without this argument is required; `None` would be a default.
        default = {} if argument.default is REQUIRED else {"default": argument.default}
        setattr(cls, name, field(kw_only=argument.kw_only, **default))
    request_class: Any = define(eq=False, frozen=True)(cls)
    with_inherited: dict[str, Option] = {**getattr(cls, "OPTIONS", {}), **options}
    operands = {name: argument for name, argument in with_inherited.items() if argument.is_operand}
    request_class.OPTIONS = operands | with_inherited  # operands first, the others in their order
    return request_class  # type: ignore[no-any-return]


def options_of(request: Any) -> dict[str, Option]:
    """Return the options of a verb's class, or of an instance, by name."""
    options: dict[str, Option] = request.OPTIONS
    return options


def takes(
    request_class: Callable[Arguments, Request],
) -> Callable[[Callable[[Request], Result]], Callable[Arguments, Result]]:
    """Make the arguments of a function those of a verb's class, of which it gets an instance with valid choices.

    Names of arguments in earlier releases (`OLD_NAMES` of the class) are accepted, with a `DeprecationWarning`.
    Its docstring gets the help of each option that it does not explain.
    """

    def decorate(function: Callable[[Request], Result]) -> Callable[Arguments, Result]:
        """Return the function that users call, with the signature and the help of the verb's options."""
        verb_name = function.__name__

        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            """Serve a request with these arguments; in a notebook with a bar that shows the progress."""
            _replace_old_names(kwargs, getattr(request_class, "OLD_NAMES", {}), verb_name)
            request: Any = request_class(*args, **kwargs)
            _check_choices(request)
            if not in_notebook():
                return function(request)
            # The bar shows a fraction of the source's size, where an output of about this size is written.
            writes_as_much = verb_name == "convert"
            path = request.source if writes_as_much and isinstance(request.source, str) else ""
            with progress(verb_name, path):
                return function(request)

        wrapper: Any = update_wrapper(call, function)  # `call` itself, to which mypy lets nothing be added
        cls: Any = request_class
        cls.__init__.__qualname__ = verb_name  # named in Python's errors
        wrapper.__wrapped__ = _Wrapped(cls, function)
        wrapper.__doc__ = _documented(function.__doc__ or "", options_of(cls).values())
        wrapper.request = request_class
        return call

    return decorate


def _check_choices(request: Any) -> None:
    """Check each option of a request that is an argument in Python; others have no value."""
    for name, argument in options_of(request).items():
        if argument.python:
            argument.check(getattr(request, name))


def _replace_old_names(kwargs: dict[str, Any], old_names: dict[str, str], verb_name: str) -> None:
    """Rename arguments of a verb's function that have names of earlier releases, with a `DeprecationWarning` each.

    Args:
        kwargs: the arguments, which change.
        old_names: the new name of each old one.
        verb_name: the name of the function.
    """
    for old_name in [name for name in kwargs if name in old_names]:
        new_name = old_names[old_name]
        if new_name in kwargs:
            continue  # both are given: Python's error names the old one
        message = f"{verb_name}({old_name}=…) is deprecated; use {new_name}=…"
        warnings.warn(message, DeprecationWarning, stacklevel=3)  # at the line that calls the verb
        kwargs[new_name] = kwargs.pop(old_name)


class _Wrapped:
    """What `inspect` finds between a verb's function and the one that serves it: the signature, made when asked for.

    To load `inspect`, which most verbs do without, takes a tenth of the start of a conversion.

    Args:
        cls: the class with the arguments.
        function: that serves a request.
    """

    def __init__(self, cls: type, function: Callable[..., Any]) -> None:
        self._class = cls
        self.__wrapped__ = function

    @property
    def __signature__(self) -> Any:
        """The signature of the verb's function."""
        from inspect import signature

        return signature(self._class).replace(return_annotation=self.__wrapped__.__annotations__["return"])


def _documented(text: str, options: Iterable[Option]) -> str:
    """Return a docstring whose section `Args` has each option: the help of those that it does not explain is added.

    One without such a section is returned as it is.

    Args:
        text: the docstring, as it stands in the source.
        options: of the verb.
    """
    heading = text.find("Args:\n")
    start_of_line = text.rfind("\n", 0, heading) + 1
    indent = text[start_of_line:heading]
    if heading < 0 or indent.strip(" "):
        return text
    explained_names = {line.lstrip(" ").partition(": ")[0] for line in text.splitlines()}
    rows = []
    for argument in options:
        if not argument.python or argument.name in explained_names:
            continue
        # The help of a flag that is on by default says what the command line's `--no-` does.
        value = "`False`: " if argument.default is True else ""
        rows.append(f"{indent}    {argument.name}: {value}{argument.help}.\n")
    # The rows go to the end of the section: after the newline before the next blank line, or that at the text's end.
    blank_line = text.find("\n\n", heading)
    last_newline = blank_line if blank_line >= 0 else len(text.rstrip())
    end = last_newline + 1
    return text[:end] + "".join(rows) + text[end:]


_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
"""The powers of 1000 or 1024."""


def byte_count(size: float | str) -> int:
    """Return the bytes of a size as users write it: `512M` and `2GiB` count in powers of 1024, `2GB` of 1000.

    Source: GNU coreutils, "Block size"; transformers and huggingface_hub read `2GB` likewise.

    Raises:
        ModelError: it is not a size.
    """
    if not isinstance(size, str):
        try:
            return int(size)
        except (OverflowError, ValueError):  # infinity and NaN
            size = str(size)
    # Python refuses to read numbers of thousands of digits.
    match = re.fullmatch(r"(\d{1,100}) ?(?:([KMGT])(i?B)?|B)?", size.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise ModelError(f"{size!r} is not a size", expected="bytes, or a size such as 512M, 2GB, 2GiB")
    number, unit, suffix = match.groups()
    base = 1000 if (suffix or "").upper() == "B" else 1024
    factor: int = base ** _UNITS[(unit or "").upper()]
    return int(number) * factor


FORCE = option("replace existing files", default=False, group="output")
STRICT = option("fail if the output would lose a type, precision or sharing", default=False, group="output")
SYNC = option("wait until the output is on the disk, so that it survives a power cut", default=False, group="output")
CLASSES = option(
    "Python file or package that registers classes (docs/own-layers.md); it is run", default=None, metavar="FILE.py"
)
AT = option("path of the module, if there are several: root.protos.rnn", default=None, metavar="PATH")
PART = option("path of a part of the file: root.model.modules[3]", default=None, metavar="PATH")
INDEX_BASE = option("number of the first class, row or element: 1 as in Lua, or 0", default=1, choices=(0, 1))
INPUT = option(
    "input: 1x3x224x224, 2x7:int64, 2x7:int64:1..99, NAME=SHAPE, [1x4,1x8] for a table, or a file; may be repeated",
    default=(), metavar="[NAME=]INPUT",
)  # fmt: skip
INPUT_SHAPE = option(
    "compute output shapes for an input: 1x3x224x224 or [1x4,1x20:int64]; nothing is run; guess: choose one",
    default=(), flags=("--input-shape", "--input"), metavar="INPUT",
)  # fmt: skip
LIMITS = option(
    "resource limits; --limit may be repeated, and --limit help lists them",
    default=DEFAULT_LIMITS, kind="limits", metavar="NAME=N", flags=("--limit",),
)  # fmt: skip
JSON = flag("print the result as JSON")
"""Options of several verbs."""
