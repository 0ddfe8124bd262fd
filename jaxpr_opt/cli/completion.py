"""`jaxpr-opt completion`: a script that completes commands and options in a shell.

It is made of the grammar when it is printed, so a key press costs no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from jaxpr_opt.cli.words import options_of

BASH = """\
_jaxpr_opt() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=()
    case "$word" in -*) COMPREPLY=($(compgen -W "$words" -- "$word"));; esac
    if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "$words" -- "$word")); fi
}}
complete -o default -F _jaxpr_opt jaxpr-opt
"""
FISH = """\
complete -c jaxpr-opt -n __fish_use_subcommand -f -a "{commands}"
{cases}
"""

Commands = Mapping[str, argparse.ArgumentParser]


def bash(commands: Commands) -> str:
    """The script for bash."""
    cases = [
        f'            {name}) words="{" ".join(options_of(command))}";;'
        for name, command in commands.items()
    ]
    return BASH.format(commands=" ".join(commands), cases="\n".join(cases))


def zsh(commands: Commands) -> str:
    """The script for zsh, which understands that of bash."""
    return f"autoload -Uz bashcompinit && bashcompinit\n{bash(commands)}"


def fish(commands: Commands) -> str:
    """The script for fish."""
    cases = [
        f'complete -c jaxpr-opt -n "__fish_seen_subcommand_from {name}" {option}'
        for name, command in commands.items()
        for option in _for_fish(options_of(command))
    ]
    return FISH.format(commands=" ".join(commands), cases="\n".join(cases))


def _for_fish(options: Iterable[str]) -> Iterable[str]:
    return (f"-l {o[2:]}" if o.startswith("--") else f"-s {o[1:]}" for o in options)


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
"""What makes the script for each shell."""
