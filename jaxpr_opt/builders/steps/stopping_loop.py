"""The regions of a `while` that stops early: whether it goes on, and one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.first_taken import are_first
from jaxpr_opt.analysis.steps.questions import is_known_in_steps
from jaxpr_opt.analysis.steps.skips import Skip, has_branch
from jaxpr_opt.analysis.values.constants import defined
from jaxpr_opt.bridge.slicing import write_row
from jaxpr_opt.builders.steps.any_row import any_true
from jaxpr_opt.builders.steps.step_rows import row_at
from jaxpr_opt.builders.steps.taken_steps import (
    are_taken,
    predicate_of,
)
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import reads
from jaxpr_opt.ir.graph import Op, Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.unrolling import steps_as_one


def is_in_range(scan: Scan, row: jax.Array, stop: Any) -> jax.Array:
    """Whether there is such a row before the last one."""
    return lax.ge(row, np.int32(0)) if scan.reverse else lax.lt(row, stop)


def goes_on(skip: Skip, inits: list[Value], stop: Value, along: bool, rw: Rewriter) -> Region:
    """Whether row `row` is to be run: it is in range and, if that is known in the loop only,
    its step is taken.
    """
    scan = skip.scan
    region = rw.new_region(inits)
    row, end = region.params[0], region.terminator

    def and_taken(go_on: jax.Array, p: jax.Array) -> jax.Array:
        return lax.bitwise_and(go_on, any_true(are_taken(skip, p)))

    is_below = partial(is_in_range, scan)
    go_on = rw.insert(is_below, row, stop, before=end)
    if skip.kind == "carried":
        given = region.params[1:]
        known = given[-1] if along else predicate_after(given, skip, end, rw)
        taken = _in_less_time(known, region, rw)
        if skip.products:  # up to there, it runs in any case
            in_range = rw.insert(is_below, row, rw.scalar(scan.length, np.int32), before=end)
            taken = rw.insert(and_taken, in_range, taken, before=end)
            go_on = rw.insert(lax.bitwise_or, go_on, taken, before=end)
        else:
            go_on = rw.insert(and_taken, go_on, taken, before=end)
    rw.set_outputs(region, [go_on])
    return region


def predicate_after(carries: Sequence[Value], skip: Skip, before: Op, rw: Rewriter) -> Value:
    """The predicate of a step that starts with such carries."""
    params = (c.param for c in skip.scan.carries)
    return predicate_of(skip, dict(zip(params, carries, strict=False)), before, rw)


def _in_less_time(taken: Value, region: Region, rw: Rewriter) -> Value:
    """A truth value; whether any of many is true, as `any_true` computes it."""
    op = taken.op
    if op is None or op.region is not region or op.name != "reduce_or" or taken.shape:
        return taken
    return rw.insert(any_true, op.operands[0], before=op) if op.operands[0].dtype == bool else taken


def is_carried_along(skip: Skip, every: int) -> bool:
    """Whether each step computes the predicate of the next, which otherwise a question before
    `every` so many steps, and each reader in a step, would compute: a batch knows its rows only, so
    the step needs it.
    """
    model = cost_model()
    if skip.kind != "carried" or skip.predicate.shape == ():
        return False
    if every > 1 and not model.asks_the_host:  # carrying it slows down a loop that is one function
        return False
    saved = len({*skip.predicate.users} - {*skip.slice}) - 1 + 1 / every
    return model.is_worth_carrying(skip.predicate, skip.slice, saved)


def one_step(
    skip: Skip, inits: list[Value], refilling: set[Op], every: int, along: bool, rw: Rewriter
) -> tuple[Region, list[Value]]:
    """One step: rows of streams are sliced, rows of stacks written; and the rows of streams.

    Its predicate is true where each step is asked, except to the ops that are going to compute what
    skipped steps stack.
    """
    scan, n = skip.scan, skip.scan.num_carries
    region = rw.new_region(inits)
    row, end = region.params[0], region.terminator
    # Condition 2 of exit-loop-early.
    is_known = not skip.products and (is_known_in_steps(skip) or are_first(skip))
    if every == 1 and is_known and _is_rid_of(skip):
        for value, truth in _known(skip):
            known = rw.constant(np.bool_(truth), value.aval)
            rw.replace(value, known, lambda use: use.op not in refilling)
    if along:
        rw.replace(skip.predicate, region.params[-1], lambda use: use.op not in refilling)
    reading = reads(scan.body.ops)
    rows = [row_at(s, row, scan, end, rw) if s.param in reading else s.param for s in scan.streams]
    outputs = rw.inline(scan.body, [*region.params[1 : n + 1], *rows], end)
    written = [
        rw.typed(write_row, b.aval, b, defined(v), row, before=end)
        for b, v in zip(region.params[n + 1 :], outputs[n:], strict=False)
    ]
    onward = lax.sub if scan.reverse else lax.add
    following = rw.insert(lambda i: onward(i, np.int32(1)), row, before=end)
    results = [following, *outputs[:n], *written]
    if along:
        mapping = dict(zip(region.params[1:], outputs[:n], strict=False))
        results.append(predicate_of(skip, mapping, end, rw))
    rw.set_outputs(region, results)
    return region, rows


def _known(skip: Skip) -> Iterator[tuple[Value, bool]]:
    """What is known in each step that is run, as the step is taken: its predicate, or, of a batch,
    whether that is true of any row.
    """
    pending = [(skip.predicate, skip.taken_when)]
    for value, truth in pending:
        if value.shape == ():
            yield value, truth
            continue
        telling = "reduce_or" if truth else "reduce_and"
        for op in value.users:
            if op.name == telling and op.result.shape == ():
                yield op.result, truth
            elif op.name in ("not", "reshape") and op.result.dtype == bool:
                pending.append((op.result, truth != (op.name == "not")))


def _is_rid_of(skip: Skip) -> bool:
    """Whether steps without their predicate take less time.  In a loop of few numbers selects of a
    few cost nothing, and keep XLA from computing again what they choose, for the next predicate.
    """
    are_few = all(cost_model().is_no_line(carry.param.nbytes) for carry in skip.kept)
    is_next = skip.kind == "carried" and are_few and not has_branch(skip)
    return not (is_next and cost_model().is_one_function(skip.scan))


def repeated(step: Region, times: int, like: Scan, rw: Rewriter) -> Region:
    """So many steps."""
    region = rw.new_region(step.params)
    params, end = region.params, region.terminator
    many = partial(rw.new_scan, length=times, reverse=False, like=like, before=end)
    loop = many(step, params, [], [])
    rw.set_scan(loop, unroll=steps_as_one(like))
    rw.set_outputs(region, loop.results)
    return region
