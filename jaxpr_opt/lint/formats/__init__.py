"""What a run looks like for people and for machines: one module a format."""

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
