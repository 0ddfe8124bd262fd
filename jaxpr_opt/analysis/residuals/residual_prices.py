"""What it costs to store a value of a step, or to compute it again in the loops that read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf, prod

from jaxpr_opt.analysis.residuals.adjacent_step_stacks import is_good_part, readers_back, shifted
from jaxpr_opt.analysis.residuals.cuts import available, handed_over, outermost, residuals
from jaxpr_opt.analysis.residuals.register_stacks import stored_as_rows
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.analysis.residuals.versions import restored
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.values.rounding import is_discontinuous, rounded
from jaxpr_opt.cost.model import CostModel, cost_model
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.cost.prediction import runs
from jaxpr_opt.ir.graph import Constant, Op, Scan, Value, program_of
from jaxpr_opt.ir.traits import TRANSCENDENTAL, is_arithmetic, is_speculable

READS = frozenset({"dynamic_slice", "gather"})
"""Primitives that read windows."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What stacks and repeated ops cost in a step, in units that a flow network can add up."""

    model: CostModel
    stacked: int
    """Bytes of all stacks: how far away memory is."""
    free: Set[Value]
    """Values that the readers have, or will have, whatever is stacked."""
    present: Set[Value]
    """Values that are stacked already, or streamed."""
    computed: Set[Value]
    """Values that are there at the end of a step, and take longer to be computed again than what is
    made of them: storing them is a little cheaper than that."""
    restored: Set[Value]
    spread: Set[Value]
    """What is repeated along axes of what is made of it."""
    rows: Set[Op]
    """What makes rows as long as a restored buffer, or is made of such rows in linear time."""
    entering: Mapping[Value, int]
    """Shift registers, and how many bytes storing what enters them takes."""
    windows: Mapping[Op, int]
    """Reads of windows of arrays that the readers have, and of how many."""
    unstable: Set[Op]
    """What must not be repeated, as it may be rounded otherwise, where that makes a difference."""
    skips: bool
    """Whether the loop skips steps."""
    runs: int = 1
    """How often the loop runs while it holds its stacks once."""

    def store(self, value: Value) -> int:
        """To write a row in a step and to read it in the step of the loop back."""
        if value in self.free:
            return 0
        nbytes = self.entering.get(value, value.nbytes)
        seconds = self.model.kept(nbytes, self.stacked)
        held = self.model.held(nbytes) / self.runs
        if value in self.computed:
            return _units(seconds + held - self.model.elementwise(value, ops=2))
        is_new = not (self.skips or value in self.present)
        return _units(held + (self.model.doubtful(seconds) if is_new else seconds))

    def repeat(self, op: Op) -> int | None:
        """To run an op again; None if it may not, or should not, be run again."""
        made = sum(v.nbytes for v in op.results)
        # Condition 3 of narrow-residuals.
        if op in self.unstable:
            return None
        # Condition 2 of narrow-residuals.
        if is_arithmetic(op):
            is_spread = op.results[0] in self.spread
            made_by = self.model.one_by_one if is_spread else self.model.elementwise
            return _units(made_by(op.results[0]))
        if op in self.windows:
            return _units(self.model.read_windows(made, self.windows[op]))
        if op in self.rows:
            read = sum(v.nbytes for v in op.operands if v not in self.restored)
            return _units(self.model.streamed(made + read))
        priced = self.model.byte > 0
        if self.skips or not (priced or self.model.is_far(self.stacked)):
            return None
        # Condition 2 of narrow-residuals.
        is_repeatable = is_speculable(op) and (priced or not op.regions)
        seconds = self.model.repeated_apart(op) if is_repeatable else inf
        return None if seconds == inf else _units(seconds)


def _units(seconds: float) -> int:
    return round(seconds * 1e15)


def residual_prices(scan: Scan) -> Prices:
    """The prices of the residuals of a scan, and of all that they are made of."""
    found, whole = residuals(scan, nests=True), restored(scan)
    present, read = handed_over(scan, found), {value for _, value in found}
    free = (present - read) | whole | shared_with_next_step(scan)
    skips, stacked = find_skip(scan) is not None, sum(s.result.nbytes for s in scan.stacks)
    return Prices(
        model=cost_model(),
        stacked=stacked,
        free=free,
        present=present,
        computed=transcendental_carries(scan),
        restored=whole,
        spread=_spread(scan, read),
        rows=_rows(scan, whole),
        entering=stored_as_rows(scan),
        windows=_windows(scan),
        unstable=_unstable(scan, free | present),
        skips=skips,
        runs=max(runs(outermost(scan, found)), 1),
    )


def _unstable(scan: Scan, kept: Set[Value]) -> Set[Op]:
    """Ops that jump where what they read is rounded otherwise; or what makes it, if the readers
    have that anyway.
    """
    found: set[Op] = set()
    for op in filter(is_discontinuous, scan.body.ops):
        sources = rounded(op.operands, scan.body)
        makers = {v.op for v in sources if v.op is not None}
        found |= {op} if sources - kept else makers
    return found


def _spread(scan: Scan, residuals: Iterable[Value]) -> Set[Value]:
    """Arrays that residuals are made of by basic arithmetic and by repeating them along some axes:
    XLA computes them where they are repeated.
    """
    found: set[Value] = set()
    pending = [(value, False) for value in residuals]
    seen = set(pending)
    while pending:
        value, is_spread = pending.pop()
        if is_spread and value.size > 1:
            found.add(value)
        if value.op is None or value.region is not scan.body or not is_arithmetic(value.op):
            continue
        repeats = value.op.name == "broadcast_in_dim"
        for each in value.op.operands:
            state = each, is_spread or (repeats and each.size < value.size)
            if state not in seen:
                seen.add(state)
                pending.append(state)
    return found


def supplied(scan: Scan) -> Mapping[Value, int]:
    """What costs less to store than its bytes, as another supplier has a source for it, and what it
    costs.
    """
    return {**stored_as_rows(scan), **dict.fromkeys(shared_with_next_step(scan), 0)}


def shared_with_next_step(scan: Scan) -> Set[Value]:
    """What all that reads a residual can have of the next step's (`share-shifted-stacks`)."""
    read = [readers_back(scan, stack.result) for stack, _ in residuals(scan, nests=True)]
    readers = [each for found in read if not isinstance(found, str) for each in found]
    if any(isinstance(found, str) for found in read):
        return frozenset()
    return {value for value in shifted(scan) if is_good_part(value, readers)}


def transcendental_carries(scan: Scan) -> Set[Value]:
    """Carries that are results of transcendental functions, if nothing stacks them yet."""
    nexts = {carry.next for carry in scan.carries}.difference(available(scan))
    return {v for v in nexts if v.op is not None and v.op.name in TRANSCENDENTAL}


def _rows(scan: Scan, whole: Set[Value]) -> Set[Op]:
    """The ops that multiply with a restored buffer, and what is made of that in linear time."""
    found: set[Op] = set()
    made: set[Value] = set()
    for op in scan.body.ops if whole else ():
        # Condition 2 of narrow-residuals.
        if op.regions or op.is_terminator or not is_speculable(op):
            continue
        if _multiplies(op, whole, scan) or (_is_linear(op) and not made.isdisjoint(op.operands)):
            found.add(op)
            made.update(op.results)
    return found


def _windows(scan: Scan) -> dict[Op, int]:
    """Reads of windows of arrays that are as large as the program's arguments, or no larger than
    all rows that a loop would store of them.
    """
    return {
        op: _number_of_windows(op)
        for op in scan.body.ops
        if op.name in READS and _is_at_hand(op.operands[0], op.result.nbytes * scan.length, scan)
    }


def _is_at_hand(array: Value, rows: int, scan: Scan) -> bool:
    """Whether an array is there for all that reads residuals, at no more memory than its rows."""
    program = program_of(scan)
    is_argument = array.op is None and program is not None and array.region is program.body
    return isinstance(array, Constant) or is_argument or array.nbytes <= rows


def _number_of_windows(read: Op) -> int:
    return prod(read.operands[1].shape[:-1]) if read.name == "gather" else 1


def _multiplies(op: Op, whole: Set[Value], scan: Scan) -> bool:
    """Whether rows come of a buffer for no more work than the readers do with it anyway."""
    buffers, is_longer = [v for v in op.operands if v in whole], cost_model().is_longer
    others = sum(v.nbytes for v in op.operands if v not in whole)
    if len(buffers) != 1 or not is_longer(others, sum(v.nbytes for v in op.results)):
        return False
    if is_longer(max(buffers[0].shape), scan.length):
        return False
    stacks = [stack.result for stack in scan.stacks if stack.value is buffers[0]]
    read = [row.users for stack in stacks for _, row in routes(stack) or ()]
    least, most = buffers[0].size, min(map(_work, read))
    return least <= _work([op]) <= most


def _is_linear(op: Op) -> bool:
    return _work([op]) <= sum(v.size for v in op.operands)


def _work(ops: Iterable[Op]) -> float:
    """Floating point operations; infinite if not known."""
    flops = [cost(op).flops for op in ops]
    return sum(inf if each is None else each for each in flops)
