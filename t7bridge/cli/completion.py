"""Print a completion script for bash, zsh or fish."""

from __future__ import annotations

import argparse

from ..conversion.options import option, verb
from . import VERBS
from .parser import parser_for


@verb
class Completion:
    """Print a completion script for bash, zsh or fish."""

    EXAMPLES = (
        "t7bridge completion bash > ~/.local/share/bash-completion/completions/t7bridge",
        "t7bridge completion zsh > ~/.zfunc/_t7bridge",
        "t7bridge completion fish > ~/.config/fish/completions/t7bridge.fish",
    )
    shell = option("the shell", choices=("bash", "zsh", "fish"))


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
    print(script(options.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the script for a shell, generated from the parsers of the verbs."""
    parsers = {name: parser_for(name) for name in VERBS}
    if shell == "fish":
        return _fish(parsers)
    bash = _bash(parsers)
    return bash if shell == "bash" else _ZSH.format(bash)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def _bash(parsers: dict[str, argparse.ArgumentParser]) -> str:
    choices, options = [], []
    for name, parser in parsers.items():
        spellings = [each for action in _actions(parser) for each in action.option_strings]
        line = 'COMPREPLY=($(compgen -W "%s" -- "$word"))'
        options.append(f"            {name}) {line % ' '.join(spellings)} ;;")
        for action in parser._actions:
            if not action.choices:
                continue
            reply = line % " ".join(map(str, action.choices))
            if action.option_strings:
                names = "|".join(f'"{name} {each}"' for each in action.option_strings)
                choices.append(f"        {names}) {reply}; return ;;")
            else:
                choices.append(f'        "{name} {name}") [ "${{word#-}}" = "$word" ] && {reply} ;;')
    return _BASH % {"verbs": " ".join(parsers), "choices": "\n".join(choices), "options": "\n".join(options)}


def _fish(parsers: dict[str, argparse.ArgumentParser]) -> str:
    lines = [f"complete -c t7bridge -n __fish_use_subcommand -a {verb} -d {_quoted(VERBS[verb])}" for verb in parsers]
    lines.append("complete -c t7bridge -n __fish_use_subcommand -a help -d 'print the help of a verb'")
    lines.append(f"complete -c t7bridge -n '__fish_seen_subcommand_from help' -x -a {_quoted(' '.join(parsers))}")
    for name, parser in parsers.items():
        seen = f"complete -c t7bridge -n '__fish_seen_subcommand_from {name}'"
        lines += [
            f"{seen} -x -a {_quoted(' '.join(map(str, action.choices)))}"
            for action in parser._actions
            if action.choices and not action.option_strings
        ]
        for action in _actions(parser):
            words = [f"-l {each[2:]}" for each in action.option_strings if each.startswith("--")]
            words += [f"-s {each[1:]}" for each in action.option_strings if not each.startswith("--")]
            if action.choices:
                words.append(f"-x -a {_quoted(' '.join(map(str, action.choices)))}")
            elif action.nargs != 0:
                words.append("-r")
            words.append(f"-d {_quoted((action.help or '').replace('%%', '%'))}")
            lines.append(f"{seen} {' '.join(words)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
