"""Store the values of a cut, and recompute residuals from them where they are read."""

from __future__ import annotations

from collections.abc import Iterator

from jaxpr_opt.analysis.residuals.cuts import Cut, available, hidden, outermost
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, paired, routes
from jaxpr_opt.builders.fences import from_memory
from jaxpr_opt.builders.residual_transfer import carried_along, counterpart, drop_stacks, stacked
from jaxpr_opt.ir.dataflow import inputs, reads
from jaxpr_opt.ir.devices import is_partly_manual
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def make_cut(scan: Scan, cut: Cut, rw: Rewriter) -> None:
    """Replace the residuals of `cut` in every loop that reads them."""
    rows = _store(scan, cut, rw)
    by_route: dict[Route, list[tuple[Value, Value]]] = {}
    for stack, value in cut.residuals:
        for route, row in routes(stack.result, nests=True) or ():
            by_route.setdefault(route, []).append((row, value))
    for route, read in by_route.items():
        _replay(route, read, scan, cut, rows, rw)
    drop_stacks(scan, [stack for stack, _ in cut.residuals], by_route, rw)


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
    pairs = paired(scan, route)
    for value in hidden(scan, outermost(scan, cut.residuals), cut.ops):
        assert pairs is not None, "a loop around the step is not paired"
        mapping[value] = counterpart(value, pairs, rw)
    for op, start in _places(last.scan, read, cut):
        rw.clone([op], mapping, start)
    for row, value in read:
        rw.replace(row, from_memory(mapping[value], rw))


def _places(scan: Scan, read: list[tuple[Value, Value]], cut: Cut) -> Iterator[tuple[Op, Op]]:
    """The ops to recompute, in order, each with the op to insert it before: at the start of the
    only branch that needs it, else of the step.
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
