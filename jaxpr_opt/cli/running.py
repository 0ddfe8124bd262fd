"""`jaxpr-opt run`: a script is run by a process of its own, see `jaxpr_opt.run.launch`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from jaxpr_opt.targets import TargetError

LAUNCH = Path(__file__).parent.parent / "run" / "launch.py"


def run(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt run`: where that is possible, this process becomes the script's."""
    del console
    words = options.program if options.module is None else options.module
    _check(words, is_module=options.module is not None)
    told = {
        "module": options.module is not None,
        "all": options.all,
        "html": options.html and str(Path(options.html).absolute()),
        "save": options.save and str(Path(options.save).absolute()),
        "only": options.only,
        "optimize": options.optimize,
        "stop_after": options.stop_after,
        "traceback": options.traceback,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    command = [sys.executable, *flags, str(LAUNCH), json.dumps(told), *words]
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(sys.executable, command)
    return subprocess.call(command)  # where a process cannot become another


def _check(words: list[str], is_module: bool) -> None:
    """Raise for what is no program."""
    if not words:
        raise TargetError("run takes a script, as train.py, or a module, as -m package.train")
    path = Path(words[0])
    if is_module or path.is_file():
        if path.suffix == ".ipynb":
            hint = f"jupyter nbconvert --to script {path}"
            raise TargetError(f"{path} is a notebook: make a script of it with `{hint}`")
        return
    if path.is_dir():
        raise TargetError(f"{path} is a folder: name a script in it, or a module with -m")
    looks_like_module = path.suffix != ".py" and words[0].replace(".", "").isidentifier()
    hint = f"; for a module, write -m {words[0]}" if looks_like_module else ""
    raise TargetError(f"there is no file {path}{hint}")
