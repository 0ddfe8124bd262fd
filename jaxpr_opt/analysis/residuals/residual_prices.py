"""The prices of storing a value of a step, and of computing it again in the loops that read it.

These are the prices of the minimum cut. Storing asks the table of `suppliers`, repeating the table
of `repeated_ops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf

from jaxpr_opt.analysis.residuals.cuts import (
    Cut,
    Residual,
    available,
    cheapest,
    known_to_readers,
    outermost,
    residuals,
)
from jaxpr_opt.analysis.residuals.networks import price
from jaxpr_opt.analysis.residuals.repeated_ops import StepPrices, repeated_seconds, step_of
from jaxpr_opt.analysis.residuals.suppliers import stored_bytes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.nesting import runs
from jaxpr_opt.ir.traits import TRANSCENDENTAL


@dataclass(frozen=True, slots=True)
class ResidualPrices:
    """What storing a value of a step, or repeating an op, costs, in integers that a flow network
    can add.
    """

    step: StepPrices
    stored: Mapping[Value, int]
    """The bytes that a step stores for values that a supplier has."""
    present: Set[Value]
    """Values that are stacked already, or streamed."""
    computed: Set[Value]
    """Values that are there at the end of a step, and take longer to be computed again than what is
    made of them: storing them is a little cheaper than that."""
    runs: int = 1
    """How often the loop runs while it holds its stacks once."""

    def store(self, value: Value) -> int:
        """To write a row in a step and to read it in the step of the loop back."""
        held = self.step.model.held(self.stored.get(value, value.nbytes))
        return price(held / self.runs + self._kept(value))

    def repeat(self, op: Op) -> int | None:
        """To run an op again; None if it may not, or should not, be run again."""
        seconds = repeated_seconds(self.step, op)
        return None if seconds == inf else price(seconds)

    def more_seconds(self, cut: Cut) -> float:
        """The seconds that a step and the step back take longer with a cut."""
        kept = sum(self._kept(value) for value in cut.stored if value not in self.present)
        kept -= sum(map(self._kept, {value for _, value in cut.residuals}))
        return kept + sum(repeated_seconds(self.step, op) for op in cut.ops)

    def _kept(self, value: Value) -> float:
        """Seconds to write a row and to read it."""
        nbytes, model = self.stored.get(value, value.nbytes), self.step.model
        if value in self.stored and nbytes == 0:
            return 0.0
        is_computed = value in self.computed
        is_new = not (is_computed or self.step.skips or value in self.present)
        seconds = model.kept_row(nbytes, self.step.stacked, is_new=is_new)
        return seconds - (model.elementwise(value, ops=2) if is_computed else 0.0)


def residual_prices(scan: Scan) -> ResidualPrices:
    """The prices of a scan's residuals and of everything they are computed from."""
    found = residuals(scan, nests=True)
    return ResidualPrices(
        step=step_of(scan),
        stored=stored_bytes(scan),
        present=known_to_readers(scan, found),
        computed=_transcendental_carries(scan),
        runs=max(runs(outermost(scan, found)), 1),
    )


def cheapest_cut(scan: Scan, found: Sequence[Residual], prices: ResidualPrices) -> Cut | None:
    """The cut that costs least, if a step may take so much longer for it."""
    step, model = prices.step, prices.step.model
    best = cheapest(scan, found, prices.store, prices.repeat, step.fetched)
    if best is None or model.has_price or not model.byte:
        return best
    held = step.stacked * runs(scan) / prices.runs
    ops, row = [*scan.body.ops], step.stacked / scan.length
    if not (model.is_spared(held) and not model.is_quick(row)):
        return None
    whole = model.differentiated(ops, row) if step.one_by_one else model.run(ops)
    return best if model.is_slack(prices.more_seconds(best), whole) else None


def _transcendental_carries(scan: Scan) -> Set[Value]:
    """Carries that are results of transcendental functions and are not stacked yet, if XLA would
    compute them again for what is made of them.
    """
    nexts = {carry.next for carry in scan.carries}.difference(available(scan))
    makers = {v: v.op for v in nexts if v.op is not None and v.op.name in TRANSCENDENTAL}
    return {v for v, op in makers.items() if not cost_model().is_rounded_once(op)}
