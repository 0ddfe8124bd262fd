"""Packs of isomorphic ops on scalars in a loop's step, so that one op on vectors computes each
pack.

A loop over a dictionary of scalars treats each scalar alike. Ops that do the same to different
elements are a *pack*. Packs are found backwards, as in superword-level parallelism. The first lanes
are the carries at the end of a step, and rows that are joined from scalars. If the values in
adjacent lanes are results of isomorphic ops, these ops are a pack, and their operands are lanes in
turn. Operands need not come from a pack: a value that is the same in all lanes is broadcast, lanes
of another pack are sliced out of it, and other elements are joined one by one.

Source: Larsen and Amarasinghe, "Exploiting Superword Level Parallelism with Multimedia Instruction
Sets" (PLDI 2000).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from itertools import count, pairwise

from jaxpr_opt.analysis.scalars.element_provenance import element
from jaxpr_opt.analysis.scalars.isomorphic_ops import families, is_float, kind
from jaxpr_opt.analysis.scalars.packing import Column, Lanes, Pack, Packing, VectorCarry
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Stream, Value
from jaxpr_opt.ir.traits import SUMS, can_move


@remembered
def packing(scan: Scan) -> Packing | None:
    """How to compute the step of a scan with vectors, if there is anything to be packed."""
    arrays = _arrays(scan)
    ways = (_packed(scan, arrays, backwards) for backwards in (scan.reverse, not scan.reverse))
    return max(filter(None, ways), key=lambda found: found.saved, default=None)


def _packed(scan: Scan, arrays: dict[Value, Lanes], backwards: bool) -> Packing | None:
    """The same, with lanes in the order in which they are computed, or backwards: what JAX has
    transposed computes last what was computed first, and reads its streams of it.
    """
    found, rows = Packing(scan), _rows(scan, backwards)
    for row in rows:
        found.places.update((c.param, (row, i)) for i, c in enumerate(row.carries))
    _grow(found, [*(row.lanes for row in rows), *arrays.values()])
    _grow(found, [_lanes(terms, scan) for terms in _sums(scan, backwards)])
    if not found.packs:
        return None
    results = {op.result for pack in found.packs for op in pack.ops}
    found.rows = tuple(row for row in rows if any(v in results for v, _ in row.lanes))
    found.arrays = {a: lanes for a, lanes in arrays.items() if any(v in results for v, _ in lanes)}
    for row in set(rows).difference(found.rows):
        for carry in row.carries:
            del found.places[carry.param]
    found.columns = tuple(_columns(found))
    found.order = _ordered(found)
    return found if found.order else None


def _lanes(values: Iterable[Value], scan: Scan) -> Lanes:
    return tuple(element(value, 0, scan.body) for value in values)


def _rows(scan: Scan, backwards: bool) -> list[VectorCarry]:
    """Carries of scalars that are computed alike, in the order in which they are computed."""
    scalars = {c.next: c for c in scan.carries if is_float(c.param) and c.param.shape == ()}
    alike = _oriented(scalars, scan, backwards)
    return [
        VectorCarry(tuple(scalars[v] for v in values), _lanes(values, scan)) for values in alike
    ]


def _sums(scan: Scan, backwards: bool) -> Iterator[list[Value]]:
    """The terms of sums that isomorphic ops compute: of a loss, of what is shared in a gradient.
    The sums themselves stay as they are.
    """
    for op in scan.body.ops:
        if op.name not in SUMS or any(user.name == op.name for user in op.result.users):
            continue
        terms, pending = list[Value](), [op]
        while pending:
            for value in pending.pop().operands:
                inner = value.op
                if inner is not None and inner.name == op.name and len(value.uses) == 1:
                    pending.append(inner)
                else:
                    terms.append(value)
        if cost_model().is_vector(len(terms)):
            yield from _oriented(terms, scan, backwards)


def _oriented(values: Iterable[Value], scan: Scan, backwards: bool) -> Iterator[list[Value]]:
    for family in families(values, scan.body, cost_model().device.lanes):
        yield family[::-1] if backwards else family


def _arrays(scan: Scan) -> dict[Value, Lanes]:
    """Arrays of floats that the step puts together element by element."""
    nexts = {c.next for c in scan.carries}
    found: dict[Value, Lanes] = {}
    for op in scan.body.ops:
        joined = op.name in {"concatenate", "stack"} and cost_model().is_vector(len(op.operands))
        written = op.name == "dynamic_update_slice" and op.result in nexts
        if not (joined or written) or len(op.result.shape) != 1 or not is_float(op.result):
            continue
        few = op.result.size < limits.ELEMENTS_OF_A_ROW
        if few and cost_model().is_vector(op.result.size):
            whole = range(op.result.size)
            found[op.result] = tuple(element(op.result, i, scan.body) for i in whole)
    return found


def _columns(found: Packing) -> Iterator[Column]:
    """Streams that packs read beside each other, and that nobody else reads."""
    streams = {s.param: s for s in found.scan.streams if _is_private(s)}
    for lanes in dict.fromkeys(found.vectors):
        run = [streams[v] for v, _ in lanes if v in streams and v not in found.places]
        makers = {(s.operand.op, s.operand.dtype) for s in run}
        if cost_model().is_vector(len(run)) and len(makers) == 1 and len(set(run)) == len(run):
            column = Column(tuple(run))
            found.places.update((s.param, (column, i)) for i, s in enumerate(run))
            yield column


def _is_private(stream: Stream) -> bool:
    """Whether a stream of scalars reads what another loop stacks for this one alone."""
    made, param = stream.operand, stream.param
    stacked = isinstance(made.op, Scan) and made.op.stack_of(made) is not None
    # Condition 4 of pack-scalars.
    return stacked and len(made.uses) == 1 and param.shape == () and is_float(param)


def _grow(found: Packing, seeds: Iterable[Lanes]) -> None:
    """Find packs from lanes backwards, the longest first: shorter ones are often parts of them."""
    pending: list[tuple[int, int, tuple[Op, ...]]] = []
    number = count()

    def push(lanes: Lanes) -> None:
        for run in _runs(found, lanes):
            heapq.heappush(pending, (-len(run), next(number), run))

    for lanes in seeds:
        push(lanes)
    while pending:
        _, _, run = heapq.heappop(pending)
        if any(op.result in found.places for op in run):
            push(tuple((op.result, 0) for op in run))
            continue
        columns = zip(*(op.operands for op in run), strict=True)
        pack = Pack(run, tuple(_lanes(values, found.scan) for values in columns))
        # Condition 1 of pack-scalars.
        if not _depends_on_itself(found, pack):
            found.packs.append(pack)
            found.places.update((op.result, (pack, i)) for i, op in enumerate(run))
            for lanes in dict.fromkeys(pack.operands):
                push(lanes)


def _runs(found: Packing, lanes: Lanes) -> Iterator[tuple[Op, ...]]:
    """Lanes beside each other that ops of the step compute alike, and that are in no pack yet."""
    run: dict[Op, None] = {}
    last: Hashable = None
    for value, _ in lanes:
        op = None if value in found.places else value.op
        own = kind(op) if op is not None and op.region is found.scan.body else None
        # Condition 1 of pack-scalars.
        goes_on = own == last
        if not goes_on or op in run:
            if cost_model().is_vector(len(run)):
                yield tuple(run)
            run = {}
        if op is not None and own is not None:
            run[op] = None
        last = own
    if cost_model().is_vector(len(run)):
        yield tuple(run)


def _depends_on_itself(found: Packing, pack: Pack) -> bool:
    """Whether a lane needs another one of the same pack first."""
    own, seen = set(pack.ops), set[Op | Pack]()
    pending = list(found.units(found.read(pack)))
    while pending:
        unit = pending.pop()
        # Condition 1 of pack-scalars.
        if unit in own:
            return True
        if unit not in seen:
            seen.add(unit)
            pending.extend(found.units(found.read(unit)))
    return False


def _ordered(found: Packing) -> tuple[Op | Pack, ...]:
    """The units that the step needs, operands first, else in program order; empty if there is no
    order.
    """
    needs, done, entered = _needs(found), dict[Op | Pack, None](), set[Op | Pack]()
    for op in found.scan.body.ops:
        own = next(found.units(op.results), op)
        pending = [own] if own in needs else []
        while pending:
            unit = pending[-1]
            waiting = [each for each in needs[unit] if each not in done]
            if not waiting:
                done[pending.pop()] = None
            elif unit in entered:
                return ()
            else:
                entered.add(unit)
                pending.extend(waiting)
    return tuple(done)


def _needs(found: Packing) -> dict[Op | Pack, list[Op | Pack]]:
    """For each unit that is needed or must stay, the units that it needs.  Units that must stay
    keep their order.
    """
    # Condition 3 of pack-scalars.
    fixed = [op for op in found.scan.body.ops if not can_move(op)]
    ends = [value for row in found.rows for value, _ in row.lanes]
    pending = [*found.units([*found.outputs(), *ends]), *fixed]
    needs: dict[Op | Pack, list[Op | Pack]] = {}
    while pending:
        unit = pending.pop()
        if unit not in needs:
            needs[unit] = list(dict.fromkeys(found.units(found.read(unit))))
            pending.extend(needs[unit])
    for earlier, later in pairwise(fixed):
        # Condition 3 of pack-scalars.
        needs[later].append(earlier)
    return needs
