"""`--save`: write each program to a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxpr_opt.errors import TargetError
from jaxpr_opt.printing import plural
from jaxpr_opt.reports import observe
from jaxpr_opt.run.summaries import Summary
from jaxpr_opt.run.table import shown_path
from jaxpr_opt.saving.values import UnwritableError
from jaxpr_opt.saving.write import Written, to_json


def file_name(name: str) -> str:
    """A name as that of a file, without its suffix."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._") or "program"


def save(found: Sequence[Summary], folder: Path) -> Iterator[str]:
    """Write the programs; yields lines about that, and about what could not be written."""
    count = 0
    for each in found:
        try:
            made = _written(each)
        except UnwritableError as error:
            yield f"{each.checked.name} is not saved: a file cannot hold {error}"
            continue
        count += 1
        _write(folder / f"{file_name(each.checked.name)}.json", made)
        if made.opaque:
            names = ", ".join(made.opaque)
            yield f"{each.checked.name} is saved without what is in {names}"
    yield f"saved {plural(count, 'program')} to {shown_path(folder)}"


def _written(each: Summary) -> Written:
    program = each.largest
    graph, _ = observe.of_jaxpr(lambda: program.jaxpr, each.checked.name)
    measured = {
        "seconds": each.seconds,
        "times": each.times,
        "temp_bytes": program.temp_bytes,
        "optimized_bytes": each.optimized_bytes,
    }
    return to_json(graph, each.place, program.donated, measured)


def _write(path: Path, made: Written) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(made.data, separators=(",", ":"), allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}") from error
