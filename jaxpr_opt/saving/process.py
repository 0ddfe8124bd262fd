"""Processes that run a script as `jaxpr_opt.run.launch` does, and what they have saved."""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpr_opt.errors import TargetError
from jaxpr_opt.saving.read import Saved, load

LAUNCH = Path(__file__).parents[1] / "run" / "launch.py"
_DEFAULTS = {
    "all": False,
    "html": None,
    "only": "*",
    "optimize": False,
    "quiet": False,
    "save": None,
    "stop_after": None,
    "traceback": False,
}


def command(words: Sequence[str], is_module: bool, **options: Any) -> list[str]:
    """The words of a process that runs a script, or a module, with its arguments."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    options_text = json.dumps({**_DEFAULTS, **options, "module": is_module})
    return [sys.executable, *flags, str(LAUNCH), options_text, *words]


def check(words: Sequence[str], is_module: bool, root: Path | None = None) -> None:
    """Raise for what is no program."""
    if not words:
        raise TargetError("name a script, as train.py, or a module, as -m package.train")
    path = Path(words[0])
    if is_module or (root or Path()).joinpath(path).is_file():
        if path.suffix == ".ipynb":
            hint = f"jupyter nbconvert --to script {path}"
            raise TargetError(f"{path} is a notebook: make a script of it with `{hint}`")
        return
    if path.is_dir():
        raise TargetError(f"{path} is a folder: name a script in it, or a module with -m")
    looks_like_module = path.suffix != ".py" and words[0].replace(".", "").isidentifier()
    hint = f"; for a module, write -m {words[0]}" if looks_like_module else ""
    raise TargetError(f"there is no file {path}{hint}")


@functools.cache
def programs(written: str, stop_after: int | None, root: Path, is_heard: bool) -> dict[str, Saved]:
    """The programs that a script compiles, by their names; it runs once.

    Args:
      written: the script and its arguments, as in a shell; or `-m` and a module.
      stop_after: after how many programs it ends.
      root: the folder it runs in.
      is_heard: whether what it prints is printed.

    Raises:
      TargetError: it cannot be run, or failed.
    """
    words = shlex.split(written)
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    check(words, is_module, root)
    with tempfile.TemporaryDirectory(prefix="jaxpr-opt-") as folder:
        line = command(words, is_module, quiet=True, save=folder, stop_after=stop_after)
        ended = subprocess.run(line, cwd=root, capture_output=not is_heard, text=True, check=False)
        if ended.returncode:
            raise TargetError(f"{written} ended with exit code {ended.returncode}{_last(ended)}")
        files = sorted(Path(folder).glob("*.json"))
        found = [load(path, root, warn=False) for path in files]  # of packages that are here
    return {each.__name__: each for each in found}


def _last(ended: Any) -> str:
    """The last line that a process wrote to its unheard errors, to end a message; or nothing."""
    lines = (ended.stderr or "").strip().splitlines()
    said = [line for line in lines if not line.startswith(("jaxpr-opt", "-", "For simplicity"))]
    return f": {said[-1]}" if said else ""
