"""Programs as users write them: small, and of many kinds; none was written for a pass."""

from __future__ import annotations

from bench.everyday import (
    checkpointed,
    layers,
    ragged,
    recurrences,
    sequences,
    simulations,
    stencils,
    tables,
    training,
)
from bench.everyday.entry import Entry as Entry

MODULES = (
    stencils,
    sequences,
    tables,
    training,
    layers,
    simulations,
    ragged,
    recurrences,
    checkpointed,
)

PROGRAMS: dict[str, Entry] = {}
"""By name."""

for _module in MODULES:
    assert PROGRAMS.keys().isdisjoint(_module.PROGRAMS), "two programs have one name"
    PROGRAMS |= _module.PROGRAMS
