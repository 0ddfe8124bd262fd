"""Programs as users write them: small, and of many kinds; none was written for a pass."""

from __future__ import annotations

from bench.everyday import layers, ragged, recurrences, sequences, simulations, stencils, tables
from bench.everyday.entry import Entry as Entry

PROGRAMS: dict[str, Entry] = {
    **stencils.PROGRAMS,
    **sequences.PROGRAMS,
    **tables.PROGRAMS,
    **layers.PROGRAMS,
    **simulations.PROGRAMS,
    **ragged.PROGRAMS,
    **recurrences.PROGRAMS,
}
"""By name."""
