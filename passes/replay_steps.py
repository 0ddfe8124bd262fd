"""Save what a step starts from and replay it in the transposed loop, where storing what it
computed costs more.

Before::

    c_n, r = scan[n] carry(c=c_0) { ...; d, v = cond p { h = ..c..; yield f(h), g(h) } else { c,
    undefined }; yield d ys(v) } a_n    = scan[n, reverse] carry(a=a_0) xs(v=r) { ...; cond p_i {
    ..v.. } else { a } }

After::

    c_n, s = scan[n] carry(c=c_0) { ...; yield d ys(c) }
    a_n    = scan[n, reverse] carry(a=a_0) xs(c=s) { ...; cond p_i { h = ..c..; v = g(h); ..v.. }
    else { a } }

What a step hands to its transpose may be cut anywhere between its inputs and the residuals AD has
chosen.  Two cuts are priced here (a minimum cut over the body is to take their place): *cheap*,
which recomputes elementwise tails only, and *full*, which stores no more than the step's inputs
and replays it.

A whole buffer is made for each stack, however few steps are taken.  So a loop that may stop early
stores only if its buffers cost no more than replaying a single step: then storing is never the
worse choice, whatever the number of steps. Replaying costs one more forward step for each step
that is taken, whatever the bound.

Sound when

1. every use of a residual is row by row, in a loop or a nest of loops of as many steps, so that
   row `i` is needed with row `i` only, and any other array of as many rows can be sent the same
   way;
2. what is replayed has no effects, ends, does not communicate, and reads nothing of the forward
   loop but its carries and streams, and outer values that are still there;
3. what a step that is taken computes stands for the residual only if that of a skipped step is
   unspecified: somebody may read it.

It fires on loops that skip; on others only if nothing more than before is stored.  Source:
Griewank and Walther, "Evaluating Derivatives", ch. 12 (store or replay); Chen et al.,
arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax
from jaxpr_opt.analysis.assume import Assumed, Known
from jaxpr_opt.analysis.constants import is_undefined
from jaxpr_opt.analysis.cost import cost
from jaxpr_opt.analysis.routes import Route, Rows, Split, routes
from jaxpr_opt.analysis.skips import find_skip
from jaxpr_opt.ir import (
    Cond,
    Constant,
    Op,
    Outcome,
    Region,
    Scan,
    Stack,
    Stream,
    Value,
    backward_slice,
    reads,
)
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import is_arithmetic, is_speculable

FLOPS_PER_BYTE = 8.0
"""How many operations take as long as moving one byte: an XLA:CPU core does about 50 GFLOP/s
and 6 GB/s.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A way of giving the transposed loop its residuals."""

    kind: str
    residuals: tuple[tuple[Stack, Value], ...]
    """The stacks that go, each with the value of a step that is taken."""
    stored: tuple[Value, ...]
    """Values of the forward body that are stacked for it."""
    ops: tuple[Op, ...]
    """What is replayed, in order."""
    stored_bytes: int
    replay_bytes: float
    """Work of one replayed step."""


@dataclass(frozen=True, slots=True, eq=False)
class Handover(Match):
    """A forward loop, and the better cut."""

    cut: Cut


@dataclass(frozen=True)
class ReplaySteps(Pass):
    """Stored residuals of a step -> its inputs, and the step replayed."""

    name: ClassVar[str] = "replay-steps"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Handover]:
        assert isinstance(op, Scan)
        residuals = _residuals(op)
        cut = _best(op, residuals) if residuals else None
        if cut is not None:
            before = sum(stack.result.nbytes for stack, _ in cut.residuals)
            what = (
                "replays each step taken"
                if cut.kind == "full"
                else "recomputes elementwise residuals"
            )
            yield Handover(
                op,
                f"the transposed loop {what}: {before:,} bytes of residuals become {cut.stored_bytes:,}",
                cut,
            )

    def refuse(self, match: Handover) -> str | None:
        for op in match.cut.ops:
            if not is_speculable(op):
                return f"replaying it would repeat {op.name}"
        return None

    def rewrite(self, match: Handover, rw: Rewriter) -> None:
        scan, cut = match.op, match.cut
        assert isinstance(scan, Scan)
        rows = _store(scan, cut, rw)
        gone = {stack.result for stack, _ in cut.residuals}
        by_route: dict[Route, list[tuple[Value, Value]]] = {}
        for stack, value in cut.residuals:
            for route, row in routes(stack.result) or ():
                by_route.setdefault(route, []).append((row, value))
        for route, read in by_route.items():
            _replay(route, read, scan, cut, rows, rw)
        _unread(gone, by_route, rw)
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result not in gone])


def _residuals(scan: Scan) -> list[tuple[Stack, Value]]:
    """Stacks that other loops of as many steps read row by row (condition 1), with what they
    hold if a step is taken.
    """
    skip = find_skip(scan)
    # In a batch, a step that is taken is so by some rows only.
    alone = skip if skip is not None and skip.predicate.shape == () else None
    taken = Assumed(scan.body, {alone.predicate: alone.taken_when}) if alone is not None else None
    found = []
    for stack in scan.stacks:
        known: Known = stack.value
        if (
            alone is not None
            and taken is not None
            and _is_unspecified(alone.in_skipped_step(known))
        ):
            known = taken[stack.value]  # (3)
        if not isinstance(known, Value) or known.op is None or not scan.body.defines(known):
            continue
        if stack.result.uses and routes(stack.result) is not None:
            found.append((stack, known))
    return found


def _is_unspecified(known: Known) -> bool:
    return isinstance(known, Value) and is_undefined(known)


def _best(scan: Scan, residuals: list[tuple[Stack, Value]]) -> Cut | None:
    """The cheapest cut, None if it is the one there is."""
    now = sum(stack.result.nbytes for stack, _ in residuals)
    cheap = _cut("cheap", scan, residuals, lambda v: v.op is not None and not is_arithmetic(v.op))
    full = _cut("full", scan, residuals, lambda v: False)
    skips = find_skip(scan) is not None
    if (
        full is not None
        and skips
        and min(now, cheap.stored_bytes if cheap else now) > full.replay_bytes + full.stored_bytes
    ):
        return full
    if cheap is not None and cheap.ops and cheap.stored_bytes < now:
        made = {s.value for s in scan.stacks}
        if skips or all(v in made for v in cheap.stored):
            return cheap
    return None


def _cut(
    kind: str, scan: Scan, residuals: list[tuple[Stack, Value]], keep: Callable[[Value], bool]
) -> Cut | None:
    """The cut that stops at the step's inputs and at values for which `keep` holds."""
    body = scan.body

    def stop(value: Value) -> bool:
        return value.owner is body or not body.defines(value) or keep(value)

    chosen = [(stack, value) for stack, value in residuals if not stop(value)]
    ops = backward_slice([value for _, value in chosen], stop)
    inner = {v for op in ops for each in op.walk() for v in each.results}
    params = {p for op in ops for each in op.walk() for r in each.regions for p in r.params}
    leaves = [
        v
        for v in dict.fromkeys(_reads_in_order(ops))
        if v not in inner and v not in params and body.defines(v)
    ]
    streams = {s.param for s in scan.streams}
    stored = [v for v in leaves if v not in streams]
    if not chosen or any(not _can_store(v, scan) for v in stored):
        return None
    already = {s.value for s in scan.stacks}
    size = sum(v.nbytes for v in stored if v not in already) * scan.length
    size += sum(s.result.nbytes for s, _ in residuals) - sum(s.result.nbytes for s, _ in chosen)
    return Cut(kind, tuple(chosen), tuple(stored), tuple(ops), size, sum(map(_work, ops)))


def _reads_in_order(ops: list[Op]) -> list[Value]:
    return [
        v for op in ops for each in op.walk() for v in each.operands if not isinstance(v, Constant)
    ]


def _can_store(value: Value, scan: Scan) -> bool:
    """A value of the body itself, or of a branch of one of its conds."""
    home = value.region
    owner = home.owner if home is not None else None
    return home is scan.body or (isinstance(owner, Cond) and owner.region is scan.body)


def _work(op: Op) -> float:
    """One replay of an op, in bytes moved."""
    price = cost(op)
    moved = sum(v.nbytes for v in (*op.operands, *op.results))
    return moved + (price.flops or 0) / FLOPS_PER_BYTE


def _store(scan: Scan, cut: Cut, rw: Rewriter) -> dict[Value, Value]:
    """Stack what the cut stores; the stacked array of each value."""
    rows = {s.value: s.result for s in scan.stacks}
    added = []
    for value in cut.stored:
        if value in rows:
            continue
        visible = value if value.region is scan.body else _yielded(value, rw)
        made = rw.new_value(rw.stacked_aval(value, scan.length), value.name)
        added.append(Stack(visible, made))
        rows[value] = made
    rw.set_scan(scan, stacks=[*scan.stacks, *added])
    return rows


def _yielded(value: Value, rw: Rewriter) -> Value:
    """A value of one branch as a result of its cond, unspecified if another branch is taken."""
    cond = value.region.owner if value.region is not None else None
    assert isinstance(cond, Cond)
    values = tuple(
        value if branch is value.region else rw.undefined(value.aval, before=branch.terminator)
        for branch in cond.branches
    )
    result = rw.new_value(value.aval, value.name)
    rw.set_cond(cond, [*cond.outcomes, Outcome(result, values)])
    return result


def _replay(
    route: Route,
    read: list[tuple[Value, Value]],
    scan: Scan,
    cut: Cut,
    rows: dict[Value, Value],
    rw: Rewriter,
) -> None:
    """At the end of a route, read what is stored instead of the residuals and compute them."""
    last = route[-1]
    assert isinstance(last, Rows)
    needed = reads(cut.ops)
    inputs = [*((v, rows[v]) for v in cut.stored), *((s.param, s.operand) for s in scan.streams)]
    mapping = {value: _send(operand, route, rw) for value, operand in inputs if value in needed}
    first = _common_region(last.scan, [row for row, _ in read]).first
    assert first is not None
    rw.clone(cut.ops, mapping, first)
    for row, value in read:
        rw.replace(row, mapping[value])


def _send(array: Value, route: Route, rw: Rewriter) -> Value:
    """The row of `array` at the end of a route."""
    for hop in route:
        if isinstance(hop, Split):
            lead = len(hop.op.operands[0].shape) - len(hop.op.result.shape) + len(hop.sizes)
            array = rw.insert(partial(_split, hop.sizes, lead), array, before=hop.op)
        else:
            present = next((s for s in hop.scan.streams if s.operand is array), None)
            if present is None:
                present = Stream(array, rw.new_value(rw.row_aval(array), array.name))
                rw.set_scan(hop.scan, streams=[*hop.scan.streams, present])
            array = present.param
    return array


def _split(sizes: tuple[int, ...], lead: int, x: jax.Array) -> jax.Array:
    return lax.reshape(x, (*sizes, *x.shape[lead:]))


def _unread(
    gone: set[Value], by_route: dict[Route, list[tuple[Value, Value]]], rw: Rewriter
) -> None:
    """Take the residuals out of the loops that read them no more, innermost first."""
    for route in by_route:
        for hop in reversed(route):
            if isinstance(hop, Rows):
                rw.set_scan(hop.scan, streams=[s for s in hop.scan.streams if s.param.uses])
            elif not hop.op.result.uses and hop.op.region is not None:
                rw.erase(hop.op)
    assert not any(value.uses for value in gone)


def _common_region(scan: Scan, values: list[Value]) -> Region:
    """The branch in which all of `values` are read, else the body."""
    homes: set[Region] = set()
    for use in (use for value in values for use in value.uses):
        region = use.op.region
        while region is not None and region is not scan.body and isinstance(region.owner, Op):
            if region.owner.region is scan.body:
                break
            region = region.owner.region
        homes.add(region if region is not None and isinstance(region.owner, Cond) else scan.body)
    return homes.pop() if len(homes) == 1 else scan.body
