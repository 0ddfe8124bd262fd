"""`jaxpr-opt init`: write a lint target for each program of a run to `pyproject.toml`."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint.config import Config
from jaxpr_opt.lint.program import of_saved
from jaxpr_opt.lint.result import NO_GRADIENT, Checked
from jaxpr_opt.lint.run import Run
from jaxpr_opt.saving.read import Saved
from jaxpr_opt.sizes import bytes_text


def made(
    written: str, stop_after: int | None, found: Mapping[str, Saved], project: Config
) -> dict[str, str]:
    """The tables of programs that are no targets already, by the names of the targets."""
    new = _named(
        [each for each in found if not _is_there(written, each, project)], written, project
    )
    targets = [of_saved(found[program], name) for program, name in new.items()]
    looked = Run(project, ()).result(targets).targets
    tables = {}
    for program, checked in zip(new, looked, strict=True):
        lines = [f"[tool.jaxpr-opt.lint.targets.{checked.name}]", f"run = {json.dumps(written)}"]
        lines += [] if stop_after is None else [f"stop-after = {stop_after}"]
        lines += [f"program = {json.dumps(program)}", *_budgets(checked)]
        tables[checked.name] = "\n".join(lines) + "\n"
    return tables


def _is_there(written: str, program: str, project: Config) -> bool:
    """Whether this program of the script is a target, whatever the script's other arguments."""
    script = _script(written)
    known = project.targets.values()
    return any(each.program == program and _script(each.run) == script for each in known)


def _script(written: str) -> str:
    words = shlex.split(written)
    return " ".join(words[:2] if words[:1] == ["-m"] else words[:1])


def _named(programs: Sequence[str], written: str, project: Config) -> dict[str, str]:
    """The name of each program as a target: that of the function, or with the script's name."""
    stem = Path(_script(written).rpartition(" ")[2]).stem
    named: dict[str, str] = {}
    for program in programs:
        taken = {*project.targets, *named.values()}
        key = _key(program)
        longer = (f"{_key(stem)}-{key}{n}" for n in itertools.chain([""], itertools.count(2)))
        named[program] = key if key not in taken else next(n for n in longer if n not in taken)
    return named


def _key(program: str) -> str:
    """A name as a key of TOML that needs no quotes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", program).strip("_") or "program"


def _budgets(checked: Checked) -> list[str]:
    """The measured figures as limits."""
    limits = {"max-peak-bytes": checked.figures.get("peak_bytes", 0)}
    if checked.how != NO_GRADIENT:
        limits["max-residual-bytes"] = checked.figures.get("residual_bytes", 0)
    return [f'{key} = "{rounded_up(value)}"' for key, value in limits.items()]


def rounded_up(value: int) -> str:
    """Bytes as `41.1 kB`, not less than they are."""
    unit = 1000 ** (int(math.log10(value)) // 3) if value >= 1000 else 1
    digits = 10 ** (int(math.log10(value)) - 2) if value >= 1000 else 1
    up = -(-value // digits) * digits
    return bytes_text(up) if unit > 1 else f"{value} B"


def added(file: Path, tables: Mapping[str, str]) -> str:
    """The text of the file with the tables at its end: nothing that is there is changed."""
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    after = before + gap + "\n".join(tables.values())
    try:
        tomllib.loads(after)
    except tomllib.TOMLDecodeError as error:
        shown = "\n".join(tables.values())
        raise TargetError(f"{file.name} takes no further targets ({error}): add\n{shown}") from None
    return after
