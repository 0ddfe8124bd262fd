"""Sources of a value of another loop's step, other than a stack of all its rows.

`SUPPLIERS` is a table. A line has the source, the values of a step that it can supply, with the
bytes that a step then stores for each, and the pass that carries it out. The planner asks all of
them and stores a value at the least of these prices. A new source is a new line.

What costs nothing at all, whatever else is stored, is no line: passes replace it before the planner
is asked (`hoist-invariant-residuals`, `drop-dummy-residuals`, `forward-known-stacks`).
`jaxpr_opt.analysis.residuals.networks` says why no better plan is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.adjacent_step_stacks import stacked_by_next_step
from jaxpr_opt.analysis.residuals.cuts import known_to_readers, residuals
from jaxpr_opt.analysis.residuals.kept_alive import gone_before_readers
from jaxpr_opt.analysis.residuals.narrow_integers import narrow_beside
from jaxpr_opt.analysis.residuals.packed_truths import packed_beside_others
from jaxpr_opt.analysis.residuals.register_stacks import stored_as_rows
from jaxpr_opt.analysis.residuals.versions import restorable, restored
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Scan, Value


@dataclass(frozen=True, slots=True)
class Supplier:
    """A source of values of a step."""

    source: str
    stored: Callable[[Scan], Mapping[Value, int]]
    """The values it can supply, and the bytes that a step stores for each."""
    carried_out_by: str
    """The pass that makes the readers use it."""


def _present(scan: Scan) -> Mapping[Value, int]:
    """Rows of streams, and of stacks that stay whatever is planned, if they are there anyway."""
    found = residuals(scan, nests=True)
    known = known_to_readers(scan, found) - {value for _, value in found}
    return dict.fromkeys(known - gone_before_readers(scan, found), 0)


def _restored(scan: Scan) -> Mapping[Value, int]:
    return dict.fromkeys(restored(scan), 0)


def _next_step(scan: Scan) -> Mapping[Value, int]:
    return dict.fromkeys(stacked_by_next_step(scan), 0)


SUPPLIERS = (
    Supplier("a row that is streamed or stacked anyway", _present, "narrow-residuals"),
    Supplier("a version of a buffer, by undoing the writes", _restored, "undo-carried-writes"),
    Supplier("a version that no stack holds yet, likewise", restorable, "undo-carried-writes"),
    Supplier("the row that the next step stacks", _next_step, "share-shifted-stacks"),
    Supplier("the rows that enter a shift register", stored_as_rows, "stack-entering-rows"),
    Supplier("a bit, beside other truth values", packed_beside_others, "pack-truth-values"),
    Supplier("an integer in fewer bytes", narrow_beside, "stack-narrow-integers"),
)


@remembered
def stored_bytes(scan: Scan) -> Mapping[Value, int]:
    """The bytes that a step must store for each value that some supplier has, at the cheapest one.

    Any other value takes as many bytes as it has.
    """
    least: dict[Value, int] = {}
    for supplier in SUPPLIERS:
        for value, nbytes in supplier.stored(scan).items():
            least[value] = min(nbytes, least.get(value, nbytes))
    return least
