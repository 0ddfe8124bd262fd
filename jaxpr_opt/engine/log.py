"""One line for each program that a pipeline ran over: what it did, and in what time.

They go to the logger ``jaxpr_opt`` at level INFO; ``JAXPR_OPT_LOG=1`` writes them to stderr.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from jaxpr_opt import settings

if TYPE_CHECKING:
    from jaxpr_opt.insight.journal import Journal

LOGGER = logging.getLogger("jaxpr_opt")
WHEN = {"differentiable": "traced", "differentiated": "with its gradient", "final": "compiled"}
"""What becomes of a program in each phase."""


def tell(journal: Journal) -> None:
    """Log what was done to a program."""
    if settings.current().log:
        _write_to_stderr()
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("%s", line(journal))


def line(journal: Journal) -> str:
    """`loss, compiled: collapse-loops 2, narrow-reads 1, in 12 ms`."""
    records = [each for each in journal.records.values() if not each.cleanup]
    counts = [(each.name, sum(not r.is_cleanup for r in each.rewrites)) for each in records]
    done = [f"{name} {count}" for name, count in counts if count]
    failed = [f"{name} failed" for name, _ in journal.failures]
    milliseconds = f"{1000 * journal.seconds:.0f} ms"
    summary = ", ".join([*done, *failed]) or "nothing to change"
    return f"{journal.name}, {WHEN[journal.phase]}: {summary}, in {milliseconds}"


@functools.cache
def _write_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("jaxpr_opt: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
