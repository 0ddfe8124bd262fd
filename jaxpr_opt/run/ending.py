"""The reports that `jaxpr-opt run` writes when the script has ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxpr_opt.frames import blame
from jaxpr_opt.printing import show
from jaxpr_opt.run import compared, files, pages, table
from jaxpr_opt.run.recorder import Recorder, current
from jaxpr_opt.run.summaries import summaries
from jaxpr_opt.stderr import complain, working


def report(options: dict[str, Any]) -> None:
    """Say on stderr what was compiled; nothing that fails here changes how the script ended."""
    try:
        _report(options, current)
    except KeyboardInterrupt:
        sys.stderr.write("jaxpr-opt: interrupted\n")
    except Exception as error:
        if options["traceback"]:
            raise
        complain("error", f"{blame(error)}; --traceback shows more")


def _report(options: dict[str, Any], recorder: Recorder) -> None:
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if options["quiet"]:
        found = summaries(recorder.programs.values(), lambda _: None, compiles=False)
        list(files.save(found, Path(options["save"])))
        return
    optimized = options["optimize"]
    with working("looking at what was compiled") as tell:
        found = summaries(recorder.programs.values(), tell, compiles=not optimized)
        sheet = compared.sheet(compared.compared(found, tell)) if optimized else table.sheet(found)
    show("", console)
    show(table.Shown(found, recorder, sheet, optimized), console)
    if options["save"]:
        for line in files.save(found, Path(options["save"])):
            show(line, console)
    if options["html"]:
        with working("writing pages"):
            line = pages.write(sheet, recorder, Path(options["html"]))
        show(line, console)
