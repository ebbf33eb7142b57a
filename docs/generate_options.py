"""Write `docs/options.md` and the completion scripts: the options of every verb, from the fields of their classes.

Run: python docs/generate_options.py
"""

from __future__ import annotations

from pathlib import Path

from t7bridge.cli import VERBS, class_of, write_scripts
from t7bridge.conversion.options import REQUIRED, Option, options_of

PAGE = Path(__file__).resolve().parent / "options.md"
HEAD = """\
# Options

The options of each verb on the command line, and the arguments of its function in Python. Made by
`docs/generate_options.py` from the classes of the verbs. Every verb also has `--quiet`.

An option that is not for all formats says for which it is (**to .pt**). Elsewhere it is an error, as are rules for
names that fit no key: nothing is written. `zoo`, whose files differ, warns in the notes of a file that an option does
not fit, and converts it without that option; with `--strict` the file fails. An option that fits no file, whatever its
format, is an error in `zoo`, too.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for verb, text in VERBS.items():
        parts.append(
            f"\n## {verb}\n\n{text[0].upper()}{text[1:]}.\n\n| command line | Python | |\n| --- | --- | --- |\n"
        )
        parts += map(_row, options_of(class_of(verb)).values())
    return "".join(parts)


def _row(option: Option) -> str:
    value = option.metavar or " or ".join(map(str, option.choices)) or option.name.upper()
    spelled = [value] if option.is_operand else list(option.spellings())
    if not option.is_operand and option.kind != "flag":
        spelled = [f"{each} {value}" for each in spelled]
    default = "" if option.default is REQUIRED or option.kind.startswith("limits") else f"={option.default!r}"
    scope = f" (**{option.scope()}**)" if option.scope() else ""
    python = f"`{option.name}{default}`" if option.python else ""
    return f"| {', '.join(f'`{each}`' for each in spelled)} | {python} | {option.help}{scope} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    write_scripts()
