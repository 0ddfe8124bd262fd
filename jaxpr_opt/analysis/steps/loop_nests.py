"""Whether a loop of loops can be one loop, and what that loop consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.masks import Prefix, implies, prefix, steps_mask, tested_value
from jaxpr_opt.analysis.steps.skips import Skip, find_skips
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.ir.dataflow import backward_slice, reads
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import UNDEFINED, Carry, Op, Scan, Stack, Value
from jaxpr_opt.ir.traits import are_pure, is_speculable


@dataclass(frozen=True, slots=True, eq=False)
class LoopNest:
    """A scan that skips, and the scan that is its step."""

    skip: Skip
    inner: Scan

    @property
    def outer(self) -> Scan:
        return self.skip.scan


@dataclass(frozen=True, slots=True)
class OneLoop:
    """What the merged loop consists of, in terms of the two loops."""

    inner_skip: Skip
    carries: tuple[Carry, ...]
    """The outer carry of each inner one."""
    sources: tuple[Stack | tuple[Op, ...], ...]
    """For each outer stack the inner one it is made of, or the ops that compute its value from
    outer carries.
    """
    joint: bool
    """Whether `p` must be asked too (condition 2b)."""


@remembered
def one_loop(outer: Scan, nest: LoopNest) -> OneLoop | str:
    """How a nest becomes one loop, or why it cannot. Remembered, for `refuse` and `rewrite`."""
    inner = nest.inner
    # Condition 5 of collapse-loops.
    if not inner.length or outer.reverse != inner.reverse:
        return "the inner loop is empty, or the two run in opposite directions"
    # Condition 5 of collapse-loops.
    if not dtypes.holds(np.int32, outer.length * inner.length):
        return "one loop would take more steps than JAX counts"
    # Condition 5 of collapse-loops.
    if any(unroll_of(loop) != 1 for loop in (outer, inner)):
        return "the scan asks to be unrolled"
    if not are_pure(outer.body.walk()):
        # Conditions 1, 5 of collapse-loops.
        return "the outer step does more than running the inner loop"
    carries = _paired_carries(nest)
    if isinstance(carries, str):
        return carries
    streams = {s.param for s in outer.streams}
    # Condition 1 of collapse-loops.
    if not all(s.operand in streams for s in inner.streams):
        return "the inner loop reads an array that the outer loop does not read row by row"
    # Condition 1 of collapse-loops.
    own = {v for v in inner.body.captures() if outer.body.defines(v)}
    # Condition 1 of collapse-loops.
    if own:
        return f"the inner step reads {next(iter(own)).name or 'a value'} of the outer step"
    predicates = _inner_skip(nest, carries)
    if isinstance(predicates, str):
        return predicates
    inner_skip, joint = predicates
    stacks = _stacks(nest, inner_skip, carries)
    return stacks if isinstance(stacks, str) else OneLoop(inner_skip, carries, stacks, joint)


# Condition 1 of collapse-loops.
def _paired_carries(nest: LoopNest) -> tuple[Carry, ...] | str:
    """Condition 1: inner carries are the outer ones, in some order."""
    outer, inner, skip = nest.outer, nest.inner, nest.skip
    taken = Assumed(outer.body, {skip.predicate: skip.taken_when})
    by_next = {taken[c.next]: c for c in outer.carries}
    paired = []
    for carry in inner.carries:
        source = by_next.pop(carry.result, None)
        name = carry.param.name or f"a carry {carry.param.type}"
        if source is None:
            return f"{name} of the inner loop does not continue in the next outer step"
        if not _equal(carry.init, source.param, taken):
            return f"{name} of the inner loop starts anew in every outer step"
        paired.append(source)
    if not all(taken.keeps(c) for c in by_next.values()):
        return "the outer step changes more than the inner loop does"
    if len(paired) != len(outer.carries):
        return "an outer carry never changes"
    return tuple(paired)


# Condition 1 of collapse-loops.
def _equal(init: Value, param: Value, taken: Assumed) -> bool:
    """Whether `init` is the outer carry, perhaps folded to what it is known to be in a step
    that is taken.
    """
    known, value = taken[param], taken[init]
    if isinstance(known, Splat) and isinstance(value, Splat):
        return bool(known.value == value.value)
    return value is known


# Condition 2 of collapse-loops.
def _inner_skip(nest: LoopNest, carries: Sequence[Carry]) -> tuple[Skip, bool] | str:
    """Condition 2: how the inner loop skips, and whether the outer predicate must be asked too."""
    skip = nest.skip
    if skip.predicate.shape != ():
        return "its predicate differs from row to row of a batch"
    for inner in find_skips(nest.inner):
        if (
            not isinstance(inner, Skip)
            or inner.counters
            or inner.predicate.shape != ()
            or inner.kind != skip.kind
        ):
            continue
        if inner.kind == "carried" and inner.taken_when == skip.taken_when:
            renamed = {
                outer.param: c.param for outer, c in zip(carries, nest.inner.carries, strict=True)
            }
            if same_expression(skip.predicate, inner.predicate, renamed):
                return inner, False
        elif inner.taken_when and skip.taken_when:
            return inner, not _implied(nest, inner)
    return "the inner predicate is not proved false where the outer one is"


# Condition 2 of collapse-loops.
def _implied(nest: LoopNest, inner: Skip) -> bool:
    """Whether the masks show that the inner predicate implies the outer one."""
    p, q = steps_mask(nest.skip), _inner_mask(nest, inner)
    return p is not None and q is not None and implies(q, p)


def _inner_mask(nest: LoopNest, inner: Skip) -> Prefix | None:
    """The inner predicate over both loops' rows: it reads rows of rows of an array that the
    outer loop reads.
    """
    row = inner.scan.stream_of(tested) if (tested := tested_value(inner.predicate)) else None
    rows = nest.outer.stream_of(row.operand) if row is not None else None
    return prefix(rows.operand) if rows is not None else None


def _stacks(
    nest: LoopNest, inner: Skip, carries: Sequence[Carry]
) -> tuple[Stack | tuple[Op, ...], ...] | str:
    """Conditions 3 and 4, stack by stack."""
    outer, skip = nest.outer, nest.skip
    taken = Assumed(outer.body, {skip.predicate: skip.taken_when})
    inner_stacks = {s.result: s for s in nest.inner.stacks}
    sources: list[Stack | tuple[Op, ...]] = []
    for stack in outer.stacks:
        known = taken[stack.value]
        made = inner_stacks.get(known) if isinstance(known, Value) else None
        name = stack.result.name or stack.result.type
        if made is not None:
            # Condition 3 of collapse-loops.
            if not _same_when_skipped(skip.skipped[stack.value], inner.skipped[made.value]):
                return f"the rows of {name} of skipped steps differ between the loops"
            sources.append(made)
            continue
        ops = backward_slice([stack.value], lambda v: v.region is not outer.body)
        params = {c.param for c in carries}
        used = {stack.value, *reads(ops)}
        local = {v for op in ops for v in op.results} | params
        foreign = any(outer.body.defines(v) and v not in local for v in used)
        # Condition 4 of collapse-loops.
        if foreign or not all(map(is_speculable, ops)):
            return f"{name} is stacked once per outer step"
        sources.append(tuple(ops))
    return tuple(sources)


# Condition 3 of collapse-loops.
def _same_when_skipped(outer: Known, inner: Known) -> bool:
    if isinstance(outer, Splat):
        return isinstance(inner, Splat) and bool(outer.value == inner.value)
    return outer.op is not None and outer.op.name == UNDEFINED
