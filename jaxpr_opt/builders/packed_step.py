"""Write the step of a loop with vectors in place of scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.scalars.packing import Column, LaneRun, Lanes, Pack, Packing, Vector
from jaxpr_opt.analysis.values.constants import is_weak, strong
from jaxpr_opt.builders.residual_transfer import stack_of_rows
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import VECTOR, is_arithmetic


@dataclass(eq=False, slots=True)
class StepWriter:
    """Writes the step of a loop again, with vectors, operands before their ops."""

    packing: Packing
    rw: Rewriter
    vectors: dict[Vector, Value] = field(default_factory=dict)

    def write(self) -> None:
        plan, rw = self.packing, self.rw
        body = plan.scan.body
        end, ops = body.terminator, list(body.ops)[:-1]
        needed: dict[Vector, list[tuple[Value, int]]] = {}
        for value in plan.scalars:
            vector, number = plan.places[value]
            needed.setdefault(vector, []).append((value, number))
        starts = [tuple((c.init, 0) for c in row.carries) for row in plan.rows]
        inits = [self._vector(lanes, plan.scan) for lanes in starts]
        for row, init in zip(plan.rows, inits, strict=True):
            self.vectors[row] = rw.new_value(init.aval, "row")
        for column in plan.columns:
            self.vectors[column] = self._join(column)
        for vector, param in self.vectors.items():
            _take(param, needed.get(vector, ()), ops[0], rw)
        for unit in plan.order:
            if isinstance(unit, Pack):
                self.vectors[unit] = self._compute(unit)
                _take(self.vectors[unit], needed.get(unit, ()), end, rw)
            elif unit.results and unit.results[0] in plan.arrays:  # its old self is dead
                rw.replace(unit.result, self._vector(plan.arrays[unit.result]))
            else:
                rw.move(unit, end)
        self._set_carries(inits)
        live = set(plan.order).difference(v.op for v in plan.arrays if v.op)
        for op in reversed(ops):
            if op not in live:
                rw.erase(op)

    def _set_carries(self, inits: Sequence[Value]) -> None:
        plan, rw, scan = self.packing, self.rw, self.packing.scan
        joined = {c.param for row in plan.rows for c in row.carries}
        carries = [c for c in scan.carries if c.param not in joined]
        after = scan.next
        assert after is not None
        for row, init in zip(plan.rows, inits, strict=True):
            param = self.vectors[row]
            last = self._vector(row.lanes)
            carries.append(Carry(init, param, last, rw.new_value(param.aval)))
            results = [(c.result, number) for number, c in enumerate(row.carries)]
            _take(carries[-1].result, results, after, rw)
        rw.set_scan(scan, carries=carries)

    def _join(self, column: Column) -> Value:
        """Make the loop that stacks scalars for this one stack rows of them."""
        rw, scan = self.rw, self.packing.scan
        operands = {s.operand for s in column.streams}
        (maker,) = {operand.op for operand in operands}
        assert isinstance(maker, Scan)
        scalars = {s.result: s.value for s in maker.stacks}
        values = [scalars[s.operand] for s in column.streams]
        stack = stack_of_rows(maker, values, rw)
        param = rw.new_value(stack.value.aval, "row")
        streams = [s for s in scan.streams if s not in column.streams]
        rw.set_scan(scan, streams=[*streams, Stream(stack.result, param)])
        rw.set_scan(maker, stacks=[*(s for s in maker.stacks if s.result not in operands), stack])
        return param

    def _compute(self, pack: Pack) -> Value:
        """An op on vectors in place of those on scalars."""
        rw, op, end = self.rw, pack.ops[0], self.packing.scan.body.terminator
        rw.anchor = op
        operands = [self._vector(lanes) for lanes in pack.operands]
        made = rw.insert(lambda *xs: bind_padded(op, xs), *operands, before=end)
        rw.anchor = self.packing.scan
        return made

    def _vector(self, lanes: Lanes, before: Op | None = None) -> Value:
        """A vector of these lanes; if not told where, it is put together before the loop if that
        can be, and spread where it is read.
        """
        scan, pieces = self.packing.scan, self.packing.pieces(lanes)
        sources = [
            each.source if isinstance(each.source, Value) else self.vectors[each.source]
            for each in pieces
        ]
        (first, *others) = pieces
        if not others and not first.repeats and sources[0].shape == (first.count,):
            return sources[0]
        outside = others and self.packing.is_outer(lanes)
        before = before or (scan if outside else scan.body.terminator)
        return self.rw.insert(lambda *xs: _joined(pieces, xs), *sources, before=before)


def _joined(pieces: Sequence[LaneRun], sources: Sequence[jax.Array]) -> jax.Array:
    """Elements of several arrays beside each other."""
    parts = [strong(_part(*each)) for each in zip(pieces, sources, strict=True)]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)


def _part(piece: LaneRun, source: jax.Array) -> jax.Array:
    width = 1 if piece.repeats else piece.count
    if width < source.size:
        flat = lax.reshape(source, (source.size,))
        source = lax.slice_in_dim(flat, piece.start, piece.start + width)
    if not piece.repeats:
        return lax.reshape(source, (width,))
    return lax.broadcast_in_dim(lax.reshape(source, ()), (piece.count,), ())


def bind_padded(op: Op, operands: Sequence[jax.Array]) -> Any:
    """Run an op on vectors so that each element has the bits of the scalar op (condition 2)."""
    assert op.primitive is not None
    (count,) = operands[0].shape
    more = padding(op, count)
    if not more:
        return op.primitive.bind(*operands, **op.params)
    longer = [lax.pad(x, x.dtype.type(0.5), [(0, more, 0)]) for x in operands]
    return lax.slice_in_dim(op.primitive.bind(*longer, **op.params), 0, count)


def padding(op: Op, count: int) -> int:
    """How many elements a vector of this length is padded by (2)."""
    # Condition 2 of pack-scalars.
    return 0 if is_arithmetic(op) else -count % VECTOR


def _take(vector: Value, wanted: Sequence[tuple[Value, int]], before: Op, rw: Rewriter) -> None:
    """Let elements of a vector stand for the values that they are."""
    wanted = sorted(((v, i) for v, i in wanted if v.uses), key=lambda each: each[1])
    if not wanted:
        return
    numbers = sorted({i for _, i in wanted})
    bounds = sorted({0, *numbers, *(i + 1 for i in numbers), *vector.shape})
    sizes = [stop - start for start, stop in pairwise(bounds)]

    def elements(row: jax.Array) -> list[jax.Array]:
        parts = lax.split(row, sizes)
        return [lax.reshape(parts[bounds.index(i)], v.shape) for v, i in wanted]

    made = rw.insert_many(elements, vector, before=before)
    for (old, _), new in zip(wanted, made, strict=True):
        weak = is_weak(old)
        rw.replace(old, rw.typed(lambda x: x, old.aval, new, before=before) if weak else new)
