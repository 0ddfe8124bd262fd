"""JSON with everything that a run found; `--against` reads it."""

from __future__ import annotations

import json
from typing import Any

from jaxpr_opt.lint.baseline import VERSION, described, parts_of
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.result import Checked, Result


def write(result: Result) -> str:
    """The run as one object; bytes are numbers, files relative to the project."""
    document = {
        "version": VERSION,
        "exit_code": result.exit_code,
        "counts": result.counts(),
        "seconds": round(result.seconds, 3),
        "targets": [_target(each, result) for each in result.targets],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _target(checked: Checked, result: Result) -> dict[str, Any]:
    grown = checked.growth
    return {
        "target": checked.name,
        "error": checked.error or None,
        "figures": dict(checked.figures),
        "parts": parts_of(checked, result.root),
        "growth": grown and grown.to_dict(lambda file: relative(file, result.root)),
        "findings": [described(finding, result.root) for finding in checked.findings],
        "suppressed": [
            described(each.finding, result.root) | {"suppressed_by": each.how}
            for each in checked.suppressed
        ],
    }
