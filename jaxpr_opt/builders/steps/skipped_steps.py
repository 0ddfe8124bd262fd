"""Turn a step into a branch, or make it select, so that a skipped step computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.masks.parts import summands
from jaxpr_opt.analysis.residuals.unread_rows import needed_row, without_zeros
from jaxpr_opt.analysis.sparse.scatter_chains import Piece, added
from jaxpr_opt.analysis.steps.computed import Computed
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.builders.step_numbers import numbered
from jaxpr_opt.builders.steps.any_row import any_row
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.graph import Carry, Op, Region, Stack, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


def into_branch(
    skip: Skip,
    rw: Rewriter,
    taken: Value | None = None,
    row_of: Callable[[Skip, Stack], SkippedRow] = needed_row,
) -> Value:
    """Move what a step computes into a branch: of the steps of its predicate, or of the first rows,
    as many as `taken`. A skipped step stacks `row_of`.

    Returns:
      Whether a step is taken.
    """
    scan = skip.scan
    body, end = scan.body, scan.body.terminator
    outside, moved = _written_outside(skip), ops_of_branch(skip)
    outputs = body.outputs
    kept = {c.next: c.param for c in skip.kept}
    rows: dict[Value, SkippedRow] = {}
    for stack in scan.stacks:
        row = rows.get(stack.value)  # another stack of it may be read elsewhere
        if stack.value not in kept and (row is None or row.is_unspecified):
            rows[stack.value] = row_of(skip, stack)
    rows |= {w.value: _number(skip.skipped[w.value]) for w in outside}
    rows |= {c.next: _made(skip, c.next) for c in skip.going}
    some, skipped = rw.new_region(), rw.new_region()
    made = {v for op in moved for v in op.results}
    through = [v for v in dict.fromkeys((*outputs, *rows)) if v in made]
    for op in moved:
        rw.move(op, some.terminator)
    rw.set_outputs(some, through)
    instead = [
        _instead(skip, v, rows[v], skipped.terminator, rw) if v in rows else kept[v]
        for v in through
    ]
    rw.set_outputs(skipped, instead)
    if taken is None:
        asked = rw.insert(partial(is_taken, skip), skip.predicate, before=end)
    else:
        number = numbered(np.arange(scan.length), scan, rw)
        asked = rw.insert(lax.lt, number, taken, before=end)
    cond = rw.new_cond(asked, [skipped, some], like=scan, before=end)
    results = dict(zip(through, cond.results, strict=True))
    rw.set_outputs(body, [results.get(v, v) for v in outputs])
    for write in outside:
        rw.move(write.op, end)
        value = write.value
        rw.replace(value, results.get(value, value), lambda use: use.op is write.op)  # noqa: B023
    return asked


def ops_of_branch(skip: Skip) -> list[Op]:
    """The ops of a step that move into its branch."""
    body = skip.scan.body
    places = _places(_written_outside(skip), body)
    stays = {*skip.slice, *(c.next.op for c, _ in skip.counters), *places}
    return [op for op in body.ops if op not in stays and not op.is_terminator]


# Condition 5 of isolate-skipped-steps.
def select_kept(skip: Skip, rw: Rewriter) -> None:
    """Select in each step, so that a skipped step keeps its carries and stacks a number."""
    scan, end = skip.scan, skip.scan.body.terminator
    plain, outputs = without_zeros(skip), list(scan.body.outputs)
    some = rw.insert(partial(is_taken, skip), skip.predicate, before=end)
    written = {original(write.array) for write in skip.blanks}
    kept = {carry.param for carry in skip.kept} - written
    for place, carry in enumerate(scan.carries):
        if carry.param not in kept or plain.keeps(carry):
            continue
        pieces = _pieces(carry, skip)
        for piece in pieces:
            _add_nothing(skip, piece, rw)
        if not pieces:
            outputs[place] = rw.typed(
                lax.select_n, carry.next.aval, some, carry.param, carry.next, before=end
            )
    for place, stack in enumerate(scan.stacks, scan.num_carries):
        number = skip.skipped[stack.value]
        if not isinstance(plain[stack.value], Splat):
            assert isinstance(number, Splat)
            row = rw.full(number.value, stack.value.aval, before=end)
            outputs[place] = rw.typed(
                lax.select_n, stack.value.aval, some, row, stack.value, before=end
            )
    rw.set_outputs(scan.body, outputs)


def _pieces(carry: Carry, skip: Skip) -> tuple[Piece, ...]:
    """The windows that a step adds to a carry, if it does nothing else to it and knows by then
    whether it is taken.  XLA adds them in place; it would copy an array that is selected whole.
    """
    chains = [added(term) for term in _terms(carry)]
    links = [link for chain in chains for link in chain.links]
    pieces = tuple(link for link in links if isinstance(link, Piece))
    roots = [chain.root for chain in chains if not chain.starts_at_zero]
    is_sum = roots == [carry.param] and len(pieces) == len(links)
    return pieces if is_sum and all(_is_selected_apart(each, skip) for each in pieces) else ()


def _terms(carry: Carry) -> list[Value]:
    """The terms that a step adds up for the next carry."""
    op = carry.next.op
    if op is None or op.name not in SUMS or len(carry.next.uses) != 1:
        return [carry.next]
    return summands(op, carry.param)[1]


def _is_selected_apart(piece: Piece, skip: Skip) -> bool:
    """Whether a step can select what it adds to a window, which is less than the array."""
    op = piece.op
    is_alone = piece.update in op.operands and len(op.result.uses) == 1
    return is_alone and piece.nbytes < op.result.nbytes and dominates(skip.predicate, op)


def _add_nothing(skip: Skip, piece: Piece, rw: Rewriter) -> None:
    """Let a skipped step add zeros."""
    op, update = piece.op, piece.update
    some = rw.insert(partial(is_taken, skip), skip.predicate, before=op)
    zeros = rw.full(0, update.aval, before=op)
    selected = rw.typed(lax.select_n, update.aval, some, zeros, update, before=op)
    rw.set_operand(op, op.operands.index(update), selected)


# Condition 2 of isolate-skipped-steps.
def leave_unspecified(
    skip: Skip, stacks: Iterable[Stack], rw: Rewriter, some: Value | None = None
) -> None:
    """Let a skipped step stack anything; `some`, whether a step is taken, if that is known."""
    scan, end = skip.scan, skip.scan.body.terminator
    outputs, gone = list(scan.body.outputs), {stack.result for stack in stacks}
    if some is None:
        some = rw.insert(partial(is_taken, skip), skip.predicate, before=end)
    for place, stack in enumerate(scan.stacks, scan.num_carries):
        if stack.result in gone:
            row = stack.value
            nothing = rw.undefined(row.aval, before=end)
            outputs[place] = rw.typed(lax.select_n, row.aval, some, nothing, row, before=end)
    rw.set_outputs(scan.body, outputs)


def _written_outside(skip: Skip) -> list[Access]:
    """Writes that only a step's end reads: XLA copies what a branch writes into."""
    end = skip.scan.body.terminator
    return [w for w in skip.blanks if all(use.op is end for use in w.op.result.uses)]


def _places(writes: Sequence[Access], body: Region) -> set[Op]:
    """Writes, and what computes where they write."""
    where = [v for write in writes for v in write.indices]
    return {w.op for w in writes} | set(backward_slice(where, lambda v: v.region is not body))


def _made(skip: Skip, value: Value) -> SkippedRow:
    """The value that a skipped step computes instead of this one."""
    return SkippedRow(value=value, computed=skip.computed([value]))


def _number(known: Known) -> SkippedRow:
    assert isinstance(known, Splat)
    return SkippedRow(constant=known)


def is_taken(skip: Skip, p: jax.Array) -> jax.Array:
    """Whether any row takes the step."""
    return any_row(p, skip.taken_when)


def in_skipped_step(
    computed: Computed, mapping: dict[Value, Value], before: Op, rw: Rewriter
) -> Callable[[Value], Value]:
    """Copies of what a skipped step computes, reading `mapping` for what is renamed, params of the
    body say; with what a value then is.
    """

    def known(value: Value) -> Value:
        told = computed.known[value]
        if isinstance(told, Splat):
            return rw.full(told.value, value.aval, before=before)
        return mapping.get(told, told)

    for op in computed.ops:
        mapping |= {v: known(v) for v in inputs(op) if v in computed.known}
        rw.clone([op], mapping, before)
    return known


def _instead(skip: Skip, value: Value, row: SkippedRow, end: Op, rw: Rewriter) -> Value:
    """The row that a skipped step stacks for `value`."""
    if row.is_unspecified:
        return rw.undefined(value.aval, before=end)
    if row.value is not None:
        return in_skipped_step(row.computed, {}, end, rw)(row.value)
    constant = not skip.taken_when if row.constant is None else row.constant.value
    return rw.full(constant, value.aval, before=end)
