"""The parsers of the verbs' arguments, and their help, made from the options of each verb's class."""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import t7bridge

from ..conversion.options import REQUIRED, Option, byte_count, options_of
from ..errors import ModelError
from ..limits import DEFAULT_LIMITS, Limits
from .streams import failed, perhaps, terminal_width

_FUNCTIONS = {"lua": "write_lua", "module": "write_module"}
"""The functions of Python that have another name than their verb."""
_CLASSES = {
    "completion": ("t7bridge.cli.completion", "Completion"),
    "convert": ("t7bridge.conversion.request", "Convert"),
    "zoo": ("t7bridge.zoo.request", "Zoo"),
}
"""Where the classes of other verbs are: of one that has no function, and of two whose functions take long to load."""


def class_of(verb: str) -> Any:
    """Return the class with the options and operands of a verb: the class of requests that its function has."""
    if verb in _CLASSES:
        module, name = _CLASSES[verb]
        return getattr(importlib.import_module(module), name)
    return getattr(t7bridge, _FUNCTIONS.get(verb, verb)).request


def arguments_of(options: argparse.Namespace, verb: str) -> dict[str, Any]:
    """Return the arguments of a verb's function of Python by name, from those of its command line.

    Lists become tuples, as the function has them.
    """
    values = {name: getattr(options, name) for name, item in options_of(class_of(verb)).items() if item.python}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def typed_options(verb: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return how to spell each option of a verb, by its name in Python: `--as` for `mode`.

    It is the spelling that was typed, or else the last one, which is the long one.

    Args:
        verb: the verb.
        arguments: what was typed behind it.
    """
    typed = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
    spellings: dict[str, str] = {}
    for name, item in options_of(class_of(verb)).items():
        if item.is_operand:
            continue
        typed_spellings = [spelling for spelling in item.spellings() if spelling in typed]
        # Not in the list is an option of which only the first letters were typed, as argparse takes it.
        spellings[name] = typed_spellings[0] if typed_spellings else item.spellings()[-1]
    return spellings


def parser_for(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb's arguments; its help describes all of them."""
    request = class_of(verb)
    parser = _Parser(
        f"t7bridge {verb}",
        add_help=False,  # both of ours are added below
        description=request.__doc__,
        epilog=_examples(request),
        formatter_class=_formatter,
    )
    parser.add_argument("-h", "--help", action=_Help, help="show the arguments that most calls need")
    parser.add_argument("--help-all", action=_HelpAll, help="show all arguments")
    groups: dict[str, argparse._ActionsContainer] = {"": parser}  # an option without a group is the parser's own
    for item in options_of(request).values():
        if item.group not in groups:
            groups[item.group] = parser.add_argument_group(item.group)
        scope = item.scope()  # `to .pt`, say; empty for an option of all formats
        # The heading `.pt output` of a group says it already.
        is_in_heading = item.group == f"{scope.removeprefix('to ')} output"
        text = f"{item.help}; {scope}" if scope and not is_in_heading else item.help
        _add_argument(groups[item.group], item._replace(help=text))
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only; see the exit code")
    parser.set_defaults(verb=verb)
    return parser


def _examples(request: Any, most: int | None = None) -> str | None:
    """Return the examples of a verb's class, or the first of them, as the end of its help; `None` if it has none."""
    lines = getattr(request, "EXAMPLES", ())[:most]
    if not lines:
        return None
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def _operands_and_common(request: type) -> list[Option]:
    """Return the operands of a verb, and the options in `COMMON` of its class; without `COMMON` all options."""
    options = options_of(request)
    common = getattr(request, "COMMON", tuple(options))
    operands = [item for item in options.values() if item.is_operand]
    return operands + [options[name] for name in common if not options[name].is_operand]


def _short_help(verb: str) -> str:
    """Return the help of a verb with its operands, the options in `COMMON` of its class, and two examples.

    Of a class without `COMMON`, whose options are few, all are shown.
    """
    request = class_of(verb)
    options = options_of(request)
    shown = _operands_and_common(request)
    parser = _Parser(
        f"t7bridge {verb}",
        add_help=False,
        description=request.__doc__,
        formatter_class=_formatter,
    )
    # One list: headings pay off where all options are listed.
    arguments = parser.add_argument_group("arguments")
    for item in shown:
        _add_argument(arguments, item._replace(flags=_usual_spellings(item)))
    others = len(options) - len(shown)  # both with the operands
    parser.usage = _in_lines(_usage(parser))
    parser.epilog = _examples(request, most=2)
    more = f"\n--help-all lists {others} more options.\n" if others else ""
    # A class with many options says which of the others are for what: "names --rename --strip; types --dtype".
    others_by_theme = getattr(request, "MORE", "")
    if not others_by_theme:
        return parser.format_help() + more
    return parser.format_help() + more + _in_lines(others_by_theme) + "\n"


def _usual_spellings(option: Option) -> tuple[str, ...]:
    """Return the spellings of an option up to the first long one: the others are those of earlier releases."""
    for count, spelling in enumerate(option.flags, 1):
        if spelling.startswith("--"):
            return option.flags[:count]
    return option.flags


class _Help(argparse.Action):
    """Print the short help of a verb."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Print, and exit with 0."""
        print(_short_help(parser.get_default("verb")), end="")
        parser.exit()


class _HelpAll(_Help):
    """Print the help with all options."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Print, and exit with 0."""
        parser.print_help()
        parser.exit()


def _add_argument(parser: argparse._ActionsContainer, option: Option) -> None:
    """Add an option or operand to a parser, or to a group of one.

    Args:
        parser: the parser or group.
        option: what the verb's class says of the argument.
    """
    if option.kind == "flag":
        action = "store_false" if option.default else "store_true"
        settings = {"default": option.default, "help": option.help, "action": action}
    else:
        settings = _settings_of_value(option)
    if option.is_operand:
        parser.add_argument(option.name, **settings)
    else:
        required = option.default is REQUIRED
        parser.add_argument(*option.spellings(), dest=option.name, required=required, **settings)


def _settings_of_value(option: Option) -> dict[str, Any]:
    """Return the arguments of argparse's `add_argument` for an operand, or an option with a value."""
    settings: dict[str, Any] = {"default": None if option.default is REQUIRED else option.default, "help": option.help}
    if option.choices:
        settings["choices"] = option.choices
        if option.is_operand:
            settings["metavar"] = option.name.upper()  # usage shows it; its help lists the choices
    else:
        settings["metavar"] = option.metavar or option.name.upper()
    if option.kind == "limits":
        settings["action"] = _SetLimit
    else:
        settings["type"] = _TYPES.get(option.kind, str)
    if option.kind == "list":  # the option may be repeated
        settings |= {"action": "append", "default": list(option.default)}
    if option.nargs is not None:
        settings["nargs"] = option.nargs
    return settings


class _SetLimit(argparse.Action):
    """Change one of the resource limits: `objects=100`."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, text: Any, option: str | None = None) -> None:
        """Set one of `limits`; for the text `help`, print their names with their defaults and exit.

        Args:
            parser: not needed; argparse passes it.
            namespace: the arguments so far, of which `limits` is replaced.
            text: what follows the option: `objects=100`.
            option: not needed, likewise.

        Raises:
            argparse.ArgumentError: there is no such limit, or no whole number after it.
        """
        if text == "help":
            _print_limits()
            raise SystemExit(0)
        is_zoo = hasattr(namespace, "max_files")  # an option that no other verb has
        if is_zoo and text.isdecimal():
            # `--limit N` is what `zoo` called its number of files in earlier releases.
            print(f"t7bridge: --limit {text} is deprecated; use --max-files {text}", file=sys.stderr)
            namespace.max_files = int(text)
            return
        name, _, number = text.rpartition("=")
        if not name:  # all is the name
            name = number
            number = ""
        if name not in Limits._fields:
            names = ", ".join(Limits._fields)
            raise argparse.ArgumentError(self, f"unknown limit {name!r}; the limits are {names}")
        if not number.isdecimal():
            raise argparse.ArgumentError(self, f"{name} needs a whole number: {name}=1000000")
        namespace.limits = namespace.limits._replace(**{name: int(number)})


def _print_limits() -> None:
    """Print the names of the resource limits, with their defaults."""
    width = max(map(len, Limits._fields))
    for name in Limits._fields:
        print(f"{name:{width}}  {getattr(DEFAULT_LIMITS, name)}")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest a similarly spelled option."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and argparse's message, to which a suggestion is added."""
        if message.startswith("unrecognized arguments: "):
            wrong = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
            if wrong.startswith("-"):
                message += perhaps(wrong, list(self._option_string_actions))
        wrong_choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if wrong_choice is not None:
            message += perhaps(wrong_choice[1], re.findall(r"[\w.-]+", wrong_choice[2]))
        print(f"usage: {_usage(self)}; --help-all lists the options", file=sys.stderr)
        # argparse calls a kind of value by the name of the function in `_TYPES` that reads it: `_size`.
        raise SystemExit(failed(message.replace(": invalid _", ": invalid ")))


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage of a verb in one line, without its options: `t7bridge zoo [OPTION]... SRC...`."""
    forms = {"?": "[{}]", "*": "[{}...]", "+": "{}..."}  # by argparse's `nargs`
    operands = [action for action in parser._actions if not action.option_strings]
    texts = [forms.get(str(operand.nargs), "{}").format(operand.metavar or operand.dest) for operand in operands]
    return " ".join([parser.prog, "[OPTION]...", *texts])


def _in_lines(text: str) -> str:
    """Return a usage, or a text like it, in the lines that the terminal needs behind `usage: `, later ones indented."""
    import textwrap

    width = terminal_width() - len("usage: ")
    return "\n".join(textwrap.wrap(text, max(width, 1), subsequent_indent="  ", break_long_words=False))


class _Formatter(argparse.HelpFormatter):
    """A help formatter that keeps the lines of examples, as far as the terminal has room for them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return a text of the help in lines, as argparse has it; the examples at the end keep theirs."""
        if not text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        lines: list[str] = []
        for line in text.splitlines():
            fits = len(line) <= width + 2  # the last columns, which argparse leaves free
            lines += [line] if fits else _narrow_example(line, width)
        return "\n".join(lines)


_NARROW = 60
"""Columns below which the explanation of an option begins below it, not beside it."""


def _narrow_example(line: str, width: int) -> list[str]:
    """Return an example in lines for few columns: what it does as a comment, then the command.

    The command's lines end with a backslash, by which a shell joins them again.

    Args:
        line: the command, at least three spaces, and what it does.
        width: columns of the terminal.
    """
    command, _, remark = line.strip().partition("   ")
    words = [word for word in command.split(" ") if word]
    lines = [f"  # {remark.strip()}"] if remark else []
    current = "  "
    for word in words:
        if len(current) + len(word) + 2 > width and current.strip():  # 2 for a space and the backslash
            lines.append(f"{current}\\")
            current = "    "
        current += f"{word} "
    return [*lines, current.rstrip()]


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return the formatter; argparse makes one per option just to check it, and would load `shutil` for the width."""
    columns = terminal_width()
    place = 24 if columns >= _NARROW else 6  # 24 is argparse's own
    return _Formatter(prog, width=columns - 2, max_help_position=place)  # 2 is argparse's own margin


def _count(text: str) -> int:
    """Return a positive whole number from its text."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def _number(text: str) -> int:
    """Return 0 or a positive whole number from its text."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or a positive number")
    return number


def _size(text: str) -> int:
    """Return the number of bytes that `512M` or `4G` means."""
    try:
        return byte_count(text)
    except ModelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tolerance(text: str) -> float:
    """Return 0 or a positive finite number from its text."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a valid tolerance")
    return value


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "count": _count,
    "number": _number,
    "seconds": float,
    "bytes": _size,
    "tolerance": _tolerance,
}
"""How the values of each kind of option are read; others are texts."""
