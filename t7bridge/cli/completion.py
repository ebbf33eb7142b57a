"""Completion of shells: the verb, and its scripts, which are made from the parsers of all verbs.

To make one, all verbs are loaded. So `docs/generate_options.py` writes the scripts beside this module, and the command
line prints them.
"""

from __future__ import annotations

import argparse
import os

from ..conversion.options import option, verb
from . import SHELLS, VERBS, completed
from .parsers import parser_for


@verb
class Completion:
    """Print a completion script for bash, zsh or fish."""

    EXAMPLES = (
        "t7bridge completion bash > ~/.local/share/bash-completion/completions/t7bridge",
        "t7bridge completion zsh > ~/.zfunc/_t7bridge",
        "t7bridge completion fish > ~/.config/fish/completions/t7bridge.fish",
    )
    shell = option("the shell: bash, zsh or fish", choices=SHELLS)


_BASH = """\
_t7bridge() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "%(verbs)s help --help --version" -- "$word"))
        return
    fi
    if [ "${word#-}" != "$word" ]; then
        case "$verb" in
%(options)s
        esac
        return
    fi
    case "$verb $before" in
%(choices)s
    esac
    [ "$verb" = help ] && COMPREPLY=($(compgen -W "%(verbs)s" -- "$word"))
}
complete -o default -F _t7bridge t7bridge
"""

_ZSH = """\
#compdef t7bridge
autoload -U +X bashcompinit && bashcompinit
{}[ "${{funcstack[1]}}" = _t7bridge ] && _bash_complete -o default -F _t7bridge
"""
"""zsh runs bash's functions; the last line completes at once when zsh loads the file on the first use."""


def completion(options: argparse.Namespace) -> int:
    """Print the script."""
    print(completed(options.shell), end="")
    return 0


def write_scripts() -> None:
    """Write the scripts beside this module, for `completed`."""
    for shell in SHELLS:
        with open(os.path.join(os.path.dirname(__file__), f"completion.{shell}"), "w", encoding="utf-8") as file:
            file.write(script(shell))


def script(shell: str) -> str:
    """Return the script for a shell, generated from the parsers of the verbs."""
    parsers = {name: parser_for(name) for name in VERBS}
    if shell == "fish":
        return _fish(parsers)
    bash = _bash(parsers)
    return bash if shell == "bash" else _ZSH.format(bash)


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options of a parser, without operands."""
    return [action for action in parser._actions if action.option_strings]


def _bash(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """Return the script for bash, from the parser of each verb by name."""
    # Branches on verb and word before, with the choices for what follows.
    choices: list[str] = []
    # Branches on the verb, with its options.
    options: list[str] = []
    template = 'COMPREPLY=($(compgen -W "%s" -- "$word"))'
    for verb_name, parser in parsers.items():
        spellings = [spelling for action in _options(parser) for spelling in action.option_strings]
        options.append(f"            {verb_name}) {template % ' '.join(spellings)} ;;")
        for action in parser._actions:
            if not action.choices:
                continue
            reply = template % " ".join(map(str, action.choices))
            if action.option_strings:
                patterns = "|".join(f'"{verb_name} {spelling}"' for spelling in action.option_strings)
                choices.append(f"        {patterns}) {reply}; return ;;")
            else:  # an operand: the first word behind the verb, unless that is an option
                choices.append(f'        "{verb_name} {verb_name}") [ "${{word#-}}" = "$word" ] && {reply} ;;')
    return _BASH % {"verbs": " ".join(parsers), "choices": "\n".join(choices), "options": "\n".join(options)}


def _fish(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """Return the script for fish, from the parser of each verb by name."""
    lines = [f"complete -c t7bridge -n __fish_use_subcommand -a {verb} -d {_quoted(VERBS[verb])}" for verb in parsers]
    lines.append("complete -c t7bridge -n __fish_use_subcommand -a help -d 'print the help of a verb'")
    lines.append(f"complete -c t7bridge -n '__fish_seen_subcommand_from help' -x -a {_quoted(' '.join(parsers))}")
    for name, parser in parsers.items():
        after_verb = f"complete -c t7bridge -n '__fish_seen_subcommand_from {name}'"
        for action in parser._actions:
            if action.choices and not action.option_strings:
                lines.append(f"{after_verb} -x -a {_quoted(' '.join(map(str, action.choices)))}")
        lines += [f"{after_verb} {_fish_option(action)}" for action in _options(parser)]
    return "\n".join(lines) + "\n"


def _fish_option(action: argparse.Action) -> str:
    """Return an option for `complete` of fish: its spellings, whether it has a value or choices, and its help."""
    words = [f"-l {spelling[2:]}" for spelling in action.option_strings if spelling.startswith("--")]
    words += [f"-s {spelling[1:]}" for spelling in action.option_strings if not spelling.startswith("--")]
    if action.choices:
        words.append(f"-x -a {_quoted(' '.join(map(str, action.choices)))}")
    elif action.nargs != 0:  # it has a value
        words.append("-r")
    words.append(f"-d {_quoted((action.help or '').replace('%%', '%'))}")  # argparse writes a `%` so
    return " ".join(words)


def _quoted(text: str) -> str:
    """Return a text in the quotes of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
