"""Whether nothing reads the rows that skipped steps stack.

The reading loops may be in a nest, as the stacking loop is: then step `i, j` of one reads what step
`i, j` of the other has stacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from jaxpr_opt.analysis.residuals.counterparts import counterparts, names_around
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, routes
from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.going_on import find_goings, going_on
from jaxpr_opt.analysis.steps.masked_rows import agrees
from jaxpr_opt.analysis.steps.masks import takes_no_more
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.steps.skips import Skip, all_taken, find_ends, find_skips, stays
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.flags import compared_with_zero
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.values.step_numbers import counted_alike
from jaxpr_opt.analysis.values.truths import implied
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import depending_on, inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.traits import (
    BARRIER,
    LAYING,
    can_move,
    may_depend_on,
    may_not_end,
    may_skip_steps,
)


def readers(stack: Stack, skip: Skip, *, ends: bool = False) -> tuple[Skip, ...] | None:
    """How the loops that read a stack of the loop of `skip` skip, row by row, so that they make
    nothing of the rows of skipped steps; None if something else reads it. `ends`: nothing of those
    after the last step that is taken.
    """
    if not stack.result.uses:
        return ()
    ways = routes(stack.result, nests=True)
    found = [_reader(row, route, skip, ends) for route, row in ways or ()]
    known = tuple(each for each in found if each is not None)
    return known if ways is not None and len(known) == len(found) else None


def _reader(row: Value, route: Route, skip: Skip, ends: bool) -> Skip | None:
    """How the loop at the end of one route skips."""
    last = route[-1]
    assert isinstance(last, Rows)
    # Condition 4 of isolate-skipped-steps.
    if any(map(acts, depending_on({row}, last.scan.body.ops))):
        return None
    skips = (*find_skips(last.scan), *(_ends(last.scan) if ends else ()))
    found = [
        other
        for other in skips
        if isinstance(other, Skip)
        # Condition 2 of isolate-skipped-steps.
        and all(isinstance(other.skipped[s.value], Splat) for s in last.scan.stacks)
        # Condition 7 of exit-loop-early.
        and row not in going_on(other).known
        and _skips_with(last.scan, other, skip, route)
    ]
    if found or not ends:
        return next((other for other in found if not _asks(other, row)), None)
    return _begun(last.scan, skip, route)


def _ends(scan: Scan) -> tuple[Skip, ...]:
    """The ways in which a loop skips steps at its end, or at its start."""
    return (*find_ends(scan), *find_goings(scan))


@remembered
def _begun(scan: Scan, skip: Skip, route: Route) -> Skip | None:
    """How a transposed loop makes nothing of the rows of skipped steps, which it reads first: what
    these are leaves its carries as they begin, whichever predicates it has.
    """
    is_transposed = scan.reverse and not skip.scan.reverse and carries_cotangents(scan)
    # Condition 7 of exit-loop-early.
    if len(route) > 1 or not is_transposed or skip.scan.region is not scan.region:
        return None
    found = counterparts(skip.scan, route, ())
    # Conditions 3, 7 of exit-loop-early.
    if found is None or not may_depend_on(skip.predicate, scan.body.ops, scan):
        return None
    rows = ((param, skip.skipped[there]) for param, there in found.names.items())
    begun = all_taken(scan, {param: known for param, known in rows if isinstance(known, Splat)})
    is_number = all(isinstance(begun.skipped[s.value], Splat) for s in scan.stacks)
    # Condition 7 of exit-loop-early.
    return begun if is_number and stays(scan, begun.skipped, begun.counters) else None


def tells_ends(stack: Stack, *, quickly: bool = False) -> bool:
    """Whether a row of a stack tells a loop which steps it need not take: known without the loop
    that stacks it, it tells where that one may stop, too. `quickly`: in less time than they take.
    """
    ways = [(route[-1], row) for route, row in routes(stack.result) or ()]
    loops = [(last.scan, row) for last, row in ways if isinstance(last, Rows)]
    return any(
        _asks(skip, row) and (not quickly or _is_worth_asking(skip))
        for loop, row in loops
        for skip in _ends(loop)
    )


def _is_worth_asking(skip: Skip) -> bool:
    return cost_model().is_worth_questions(skip.scan.body, skip.predicate, skip.slice)


def feeders(skip: Skip) -> tuple[Scan, ...]:
    """The loops that make nothing but rows for a loop whose last step is known before it: they may
    stop, or begin, with it.
    """
    # Condition 10 of exit-loop-early.
    if skip.kind != "upfront" or skip.going or skip.products:
        return ()
    made = (stream.operand.op for stream in skip.scan.streams)
    found = dict.fromkeys(op for op in made if isinstance(op, Scan))
    return tuple(op for op in found if _only_feeds(op, skip))


def _only_feeds(scan: Scan, skip: Skip) -> bool:
    reader, asked = skip.scan, skip.asked
    # Condition 10 of exit-loop-early.
    if scan.region is not reader.region or scan.reverse:
        return False
    for use in [use for result in scan.results for use in result.uses]:
        # Condition 10 of exit-loop-early.
        if use.op is not reader or use.position < reader.num_carries:
            return False
        # Condition 10 of exit-loop-early.
        if reader.body.params[use.position] in asked:
            return False
    # Condition 10 of exit-loop-early.
    if not may_depend_on(skip.predicate, scan.body.ops, scan):
        return False
    # Condition 10 of exit-loop-early.
    return may_skip_steps(scan)


def is_by_zeros(skip: Skip) -> bool:
    """Whether a step skips, or stacks a number, because a product with zero is zero: then its
    operands must be finite.
    """
    plain, written = without_zeros(skip), {write.op.result for write in skip.blanks}
    made = [*(s.value for s in skip.scan.stacks), *(write.value for write in skip.blanks)]
    is_kept = all(plain.keeps(c) for c in skip.kept if c.next not in written)
    return not is_kept or not all(isinstance(plain[value], Splat) for value in made)


def without_zeros(skip: Skip) -> Assumed:
    """The values of a skipped step where a product with zeros may be anything."""
    return _assuming(skip.scan, skip.predicate, truth=not skip.taken_when)


@remembered
def _assuming(scan: Scan, predicate: Value, *, truth: bool) -> Assumed:
    return Assumed(scan.body, {predicate: truth})


def acts(op: Op) -> bool:
    """Whether it matters what an op reads, even if nobody reads what it makes."""
    return op.name != BARRIER and (not can_move(op) or may_not_end(op))


# Condition 2 of isolate-skipped-steps.
def _asks(skip: Skip, row: Value) -> bool:
    """Whether a loop needs a row to tell which steps it skips."""
    return row is skip.predicate or any(row in inputs(op) for op in skip.slice)


@remembered
def _skips_with(scan: Scan, other: Skip, skip: Skip, route: Route) -> bool:
    """Whether a loop skips, as `other` says, each step whose rows a skipped step has stacked: it
    takes no more steps than that loop has counted, or its predicate is made of rows of stacks of
    that loop, and of what is computed alike from the same rows and the numbers of steps.
    """
    if takes_no_more(other, skip, names_around(skip.scan, route)):
        return True
    if len(route) == 1 and _asks_the_same(other, skip):
        return True
    found = counterparts(skip.scan, route, ())
    if found is None:
        return False
    rows = ((param, skip.skipped[there]) for param, there in found.names.items())
    facts = {param: known for param, known in rows if isinstance(known, Splat)}
    renamed = {there: param for param, there in found.names.items()}
    alike = partial(counted_alike, skip.scan, scan)
    told = implied(skip.predicate, not skip.taken_when)
    facts |= {
        value: Splat(np.bool_(told[there]))
        for value in (v for v in other.asked if v.dtype == bool)
        for there in told
        if same_expression(there, value, renamed, alike)
    }
    known = Assumed(scan.body, facts)[other.predicate]
    return known == Splat(np.bool_(not other.taken_when))


def _asks_the_same(other: Skip, skip: Skip) -> bool:
    """Whether the predicate of one loop is the rows of an array, and that of the other says the
    same of each row, or is the rows of that array, too, however each is laid out; or both ask
    whether these are zero.
    """
    if other.scan.length != skip.scan.length:
        return False
    alike = other.taken_when == skip.taken_when
    for one, two in ((other, skip), (skip, other)):
        stream = one.scan.stream_of(one.predicate)
        if stream is not None and agrees(two.predicate, stream.operand, 0, two.scan) is alike:
            return True
    array = _asked_array(other)
    return alike and array is not None and array == _asked_array(skip)


def _asked_array(skip: Skip) -> tuple[Value, bool] | None:
    """The array of which a predicate is the rows, and whether it asks if these are zero."""
    number = compared_with_zero(skip.predicate)
    stream = skip.scan.stream_of(skip.predicate if number is None else number)
    return (_laid_out(stream.operand), number is not None) if stream is not None else None


def _laid_out(array: Value) -> Value:
    """The array from which this one is reshaped or moved, row by row."""
    while array.op is not None and array.op.name in LAYING:
        source = array.op.operands[0]
        if source.size != array.size or source.shape[:1] != array.shape[:1]:
            break
        array = source
    return array


def needed_row(skip: Skip, stack: Stack) -> SkippedRow:
    """The row that a skipped step must stack; undefined if nothing reads it."""
    row = skipped_row(skip, stack)
    if isinstance(row, str) or (row.ops and readers(stack, skip) is not None):
        return SkippedRow()
    return row


def kept_for_nobody(skip: Skip) -> Iterator[Stack]:
    """The stacks of what a skipped step keeps, of which nobody reads rows of such a step; only of
    one predicate a step, and where loops that read them may have branches for steps.
    """
    for stack in skip.scan.stacks if skip.predicate.shape == () else ():
        row = skipped_row(skip, stack)
        # Condition 2 of isolate-skipped-steps.
        found = readers(stack, skip) if isinstance(row, SkippedRow) and row.value else None
        if found and all(cost_model().is_worth_a_question(each.scan.body) for each in found):
            yield stack
