"""Rewrite what one loop passes to another: store the values of a cut and recompute residuals from
them where they are read; store one stack of rows instead of many of scalars.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.cuts import Cut, available
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, Split, Stacked, routes
from jaxpr_opt.analysis.values.constants import strong
from jaxpr_opt.builders.fences import from_memory
from jaxpr_opt.ir.devices import is_partly_manual
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Scan, Stack, Stream, Value, reads
from jaxpr_opt.ir.inputs import inputs
from jaxpr_opt.ir.rewriter import Rewriter


def stack_of_rows(scan: Scan, scalars: Iterable[Value], rw: Rewriter) -> Stack:
    """A stack of rows of scalars of a step, which is not one of the scan's yet."""
    row = rw.insert(_row, *scalars, before=scan.body.terminator)
    return Stack(row, rw.new_value(rw.stacked_aval(row, scan.length)))


def _row(*scalars: jax.Array) -> jax.Array:
    row = lax.concatenate([lax.expand_dims(each, (0,)) for each in scalars], 0)
    return strong(row)


def make_cut(scan: Scan, cut: Cut, rw: Rewriter) -> None:
    """Replace the residuals of `cut` in every loop that reads them."""
    rows = _store(scan, cut, rw)
    by_route: dict[Route, list[tuple[Value, Value]]] = {}
    for stack, value in cut.residuals:
        for route, row in routes(stack.result, nests=True) or ():
            by_route.setdefault(route, []).append((row, value))
    for route, read in by_route.items():
        _replay(route, read, scan, cut, rows, rw)
    gone = {stack.result for stack, _ in cut.residuals}
    drop_unread(gone, by_route, rw)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result not in gone])


def send(scan: Scan, stack: Stack, made: Sequence[tuple[Op, Value, Route]], rw: Rewriter) -> None:
    """Stack values of a step in place of a stack of which ops at the ends of routes read a part."""
    for op, value, route in made:
        rw.replace(op.result, carried_along(stacked(value, scan, rw), route, rw))
        rw.erase(op)
    drop_unread({stack.result}, [route for _, _, route in made], rw)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not stack.result])


def _store(scan: Scan, cut: Cut, rw: Rewriter) -> dict[Value, Value]:
    """Stack what the cut stores; the stacked array of each value."""
    rows = dict(available(scan))
    for value in cut.stored:
        if value not in rows:
            visible = value if value.region is scan.body else _yielded(value, rw)
            rows[value] = stacked(visible, scan, rw)
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
    known = [*((v, rows[v]) for v in cut.stored), *((s.param, s.operand) for s in scan.streams)]
    mapping = {
        value: carried_along(operand, route, rw) for value, operand in known if value in needed
    }
    for op, start in _places(last.scan, read, cut):
        rw.clone([op], mapping, start)
    for row, value in read:
        rw.replace(row, from_memory(mapping[value], rw))


def _places(scan: Scan, read: list[tuple[Value, Value]], cut: Cut) -> Iterator[tuple[Op, Op]]:
    """What makes what is read, in order, each with the op before which it goes: at the start of the
    one branch in which it is needed, else of the step.
    """
    needed: dict[Value, set[Region]] = {}
    for row, value in read:
        needed.setdefault(value, set()).add(_home(scan, row))
    homes: dict[Op, Region] = {}
    for op in reversed(cut.ops):
        found = set[Region]().union(*(needed.get(value, ()) for value in op.results))
        if found:
            homes[op] = found.pop() if len(found) == 1 else scan.body
        for value in inputs(op) if op in homes else ():
            needed.setdefault(value, set()).add(homes[op])
    starts = {region: region.first for region in homes.values()}
    for op in cut.ops:
        if op in homes and (start := starts[homes[op]]) is not None:
            yield op, start


def carried_along(array: Value, route: Route, rw: Rewriter) -> Value:
    """The row of `array` at the end of a route."""
    for hop in route:
        if isinstance(hop, Split):
            lead = len(hop.op.operands[0].shape) - len(hop.op.result.shape) + len(hop.sizes)
            array = rw.insert(partial(_split, hop.sizes, lead), array, before=hop.op)
        elif isinstance(hop, Stacked):
            array = stacked(array, hop.scan, rw)
        else:
            present = next((s for s in hop.scan.streams if s.operand is array), None)
            if present is None:
                present = Stream(array, rw.new_value(rw.row_aval(array), array.name))
                rw.set_scan(hop.scan, streams=[*hop.scan.streams, present])
            array = present.param
    return array


def stacked(value: Value, scan: Scan, rw: Rewriter) -> Value:
    """The stack of a value of a loop's step; of a row of a stream, its operand."""
    stream = scan.stream_of(value)
    if stream is not None:
        return stream.operand
    present = next((s.result for s in scan.stacks if s.value is value), None)
    if present is None:
        present = rw.new_value(rw.stacked_aval(value, scan.length), value.name)
        rw.set_scan(scan, stacks=[*scan.stacks, Stack(value, present)])
    return present


def _split(sizes: tuple[int, ...], lead: int, x: jax.Array) -> jax.Array:
    return lax.reshape(x, (*sizes, *x.shape[lead:]))


def drop_unread(gone: set[Value], ways: Iterable[Route], rw: Rewriter) -> None:
    """Remove residuals from loops that no longer read them, the innermost loop first."""
    for route in ways:
        for hop in reversed(route):
            if isinstance(hop, Rows):
                rw.set_scan(hop.scan, streams=[s for s in hop.scan.streams if s.param.uses])
            elif isinstance(hop, Stacked):
                rw.set_scan(hop.scan, stacks=[s for s in hop.scan.stacks if s.result.uses])
            elif not hop.op.result.uses and hop.op.region is not None:
                rw.erase(hop.op)
    assert not any(value.uses for value in gone)


def _home(scan: Scan, row: Value) -> Region:
    """The branch in which a row is read, if that is one, else the body.

    The body, too, where XLA may insert collectives: devices may take different branches.
    """
    if is_partly_manual(scan):
        return scan.body
    homes: set[Region] = set()
    for use in row.uses:
        region = use.op.region
        while region is not None and region is not scan.body and isinstance(region.owner, Op):
            if region.owner.region is scan.body:
                break
            region = region.owner.region
        homes.add(region if region is not None and isinstance(region.owner, Cond) else scan.body)
    return homes.pop() if len(homes) == 1 else scan.body
