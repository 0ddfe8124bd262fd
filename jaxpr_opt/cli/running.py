"""`jaxpr-opt run` and `jaxpr-opt init`, which run a script in a process of its own."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from jaxpr_opt import settings
from jaxpr_opt.cli.linting import save
from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint import config
from jaxpr_opt.memory.budget import parse_budget
from jaxpr_opt.printing import plural, show
from jaxpr_opt.run import new_targets
from jaxpr_opt.saving.process import check, command, programs


def run(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt run`: where that is possible, this process becomes the script's."""
    del console
    words, is_module = _words(options)
    _check_environment()
    line = command(
        words,
        is_module,
        all=options.all,
        html=options.html and str(Path(options.html).absolute()),
        save=options.save and str(Path(options.save).absolute()),
        only=options.only,
        optimize=options.optimize,
        stop_after=options.stop_after,
        traceback=options.traceback,
    )
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(sys.executable, line)
    return subprocess.call(line)  # where a process cannot become another


def _check_environment() -> None:
    """Raise `TargetError` for a budget that the process of the script could not read."""
    written = os.environ.get(settings.MEMORY)
    try:
        if written:
            parse_budget(written, settings.MEMORY)
    except ValueError as error:
        raise TargetError(str(error)) from error


def init(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt init`."""
    words, is_module = _words(options)
    written = shlex.join(["-m", *words] if is_module else words)
    file = config.find(Path.cwd()) or Path.cwd() / "pyproject.toml"
    if file.parent != Path.cwd():
        raise TargetError(f"write targets from {file.parent}, where {file.name} is")
    project = config.load(file if file.is_file() else None)
    found = programs(written, options.stop_after, file.parent, is_heard=True)
    if not found:
        raise TargetError(f"{written} compiled no function of yours")
    made = new_targets.made(written, options.stop_after, found, project)
    if made:
        save(file, new_targets.added(file, made))
    names = f": {', '.join(made)}" if made else "; the others are there already"
    show(f"wrote {plural(len(made), 'target')} to {file.name}{names}", console)
    show("jaxpr-opt lint checks them", console)
    return 0


def _words(options: argparse.Namespace) -> tuple[list[str], bool]:
    """The program with its arguments, and whether it is a module."""
    is_module = options.module is not None
    words: list[str] = options.module if is_module else options.program
    check(words, is_module)
    return words, is_module
