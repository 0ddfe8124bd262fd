"""Output formats of a run, one module each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxpr_opt.lint.formats import github, json, junit, markdown, sarif
from jaxpr_opt.lint.result import Result

WRITERS: Mapping[str, Callable[[Result], str]] = {
    "json": json.write,
    "github": github.write,
    "sarif": sarif.write,
    "junit": junit.write,
    "markdown": markdown.write,
}
"""By name; `text`, which knows about terminals, is apart."""
