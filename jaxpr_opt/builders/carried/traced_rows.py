"""Trace rows back through a loop to where they have been moved, after the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.carried.histories import BufferHistory, Rearrangement
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import fill_value_of, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.ir.graph import Carry, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def trace_back(scan: Scan, group: Sequence[BufferHistory], rw: Rewriter) -> None:
    """Stack the rows that a loop writes and the places it moves elements to, instead of carrying
    the buffers; build these after the loop.
    """
    end, after = scan.body.terminator, scan.next
    assert after is not None
    plans = [_Plan(found, scan) for found in group]
    made = rw.insert(plans[0].sources, *plans[0].indices, before=end)
    rows = [rw.insert(each.row, *each.operands, before=end) for each in plans]
    stacks = [Stack(v, rw.new_value(rw.stacked_aval(v, scan.length))) for v in (made, *rows)]
    kept = [_carried(each, row, rw) for each, row in zip(plans, rows, strict=True)]
    inits = [found.carry.init for found in group]
    whole = rw.insert_many(
        partial(_traced, plans, scan.reverse), *(s.result for s in stacks), *inits, before=after
    )
    for found, array in zip(group, whole, strict=True):
        rw.replace(found.carry.result, array)
    gone = {found.carry.param for found in group}
    rw.set_scan(
        scan,
        carries=[*(c for c in scan.carries if c.param not in gone), *filter(None, kept)],
        stacks=[*scan.stacks, *stacks],
    )
    for found in group:
        for op in (*(read.op for read in found.reads), *reversed(found.chain)):
            rw.erase(op)


def _carried(plan: _Plan, row: Value, rw: Rewriter) -> Carry | None:
    """The row that the step before has written as a carry, in place of the reads of it, if any."""
    found, scan = plan.found, plan.scan
    if not found.reads:
        return None
    init = rw.insert(plan.first, found.carry.init, before=scan)
    param = rw.new_value(init.aval)
    for read in found.reads:
        gathers = found.until(read.array)
        indices = [gather.op.operands[1] for gather in gathers]
        as_read = partial(plan.read, read, gathers)
        made = rw.typed(as_read, read.op.result.aval, param, *indices, before=read.op)
        rw.replace(read.op.result, made)
    return Carry(init, param, row, rw.new_value(init.aval))


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one buffer is made again."""

    found: BufferHistory
    scan: Scan

    @property
    def indices(self) -> list[Value]:
        """Where the gathers of a step read."""
        return [gather.op.operands[1] for gather in self.found.gathers]

    @property
    def operands(self) -> list[Value]:
        """The value that a step writes, and the places from which the gathers read that rearrange
        it.
        """
        return [self.found.write.value, *(g.op.operands[1] for g in self.found.later)]

    @property
    def fills(self) -> bool:
        """Whether an element may be from nowhere: out of range, and filled."""
        return any(gather.fills for gather in self.found.gathers)

    def sources(self, *indices: jax.Array) -> jax.Array:
        """For each place, the place at the start of the step that its element is from; one past the
        last if it is filled.
        """
        count = prod(self.found.places)
        made = lax.reshape(lax.iota(np.int32, count), self.found.places)
        for gather, index in zip(self.found.gathers, indices, strict=True):
            ones, fill = (1,) * len(self.found.places), count if gather.fills else None
            mode = mode_of(gather.op)
            made = lax.gather(made, index, gather.numbers, ones, mode=mode, fill_value=fill)
        small = next(d for d in _COUNTS if dtypes.holds(d, count))
        return lax.convert_element_type(lax.reshape(made, (count,)), small)

    def row(self, value: jax.Array, *indices: jax.Array) -> jax.Array:
        """The row that a step leaves: what it writes, rearranged by the gathers after that."""
        window = self.moved(self.found.later, self.found.write.to_window(value), indices)
        return lax.squeeze(window, (self.found.axis,))

    def first(self, init: jax.Array) -> jax.Array:
        """The row that the first step reads."""
        start = self.found.reads[0].window[self.found.axis].start
        assert start is not None
        step = self.scan.length - 1 if self.scan.reverse else 0
        at = start.offset + step * start.steps[self.scan]
        return lax.index_in_dim(init, at, self.found.axis, keepdims=False)

    def read(
        self, read: Access, gathers: Sequence[Rearrangement], row: jax.Array, *indices: jax.Array
    ) -> jax.Array:
        """The row of the step before, as these gathers have rearranged it."""
        axis = self.found.axis
        window = self.moved(gathers, lax.expand_dims(row, (axis,)), indices)
        starts = enumerate(extent.start for extent in read.window)
        places = [0 if d == axis or at is None else at.offset for d, at in starts]
        return read.from_window(read_window(window, places, read.sizes))

    def moved(
        self, gathers: Sequence[Rearrangement], window: jax.Array, indices: Sequence[jax.Array]
    ) -> jax.Array:
        """A row, as a window of the buffer, that some gathers have rearranged."""
        for gather, index in zip(gathers, indices, strict=True):
            window = _gathered(gather, window, index, self.found.axis)
        return window

    def result(self, init: jax.Array, rows: jax.Array, sources: jax.Array) -> jax.Array:
        """The buffer after the loop, from the rows and from where elements of the first one are."""
        start = self.found.write.window[self.found.axis].start
        assert start is not None
        axis, step = self.found.axis, start.steps[self.scan]
        low, _ = start.range(())
        rows = lax.rev(rows, (0,)) if step < 0 else rows
        length = rows.shape[0]
        order = [*range(1, len(init.shape))]
        order.insert(axis, 0)
        rows = lax.transpose(rows, order)
        if length == init.shape[axis]:
            return rows
        moved = self.rearranged(init, sources)
        before = lax.slice_in_dim(moved, 0, low, axis=axis)
        behind = lax.slice_in_dim(moved, low + length, None, axis=axis)
        return lax.concatenate([before, rows, behind], axis)

    def rearranged(
        self, array: jax.Array, sources: jax.Array, axes: Sequence[int] = ()
    ) -> jax.Array:
        """The elements of an array from these places, along the axes of the buffer that elements
        move along, or those given.
        """
        axes = axes or self.found.moved
        others = [d for d in range(len(array.shape)) if d not in axes]
        order = [*axes, *others]
        flat = lax.transpose(array, order)
        rest = tuple(array.shape[d] for d in others)
        flat = lax.reshape(flat, (sources.shape[0], *rest))
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(1, len(rest) + 1)),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        )
        filling = next((g.op for g in self.found.gathers if g.fills), None)
        made = lax.gather(
            flat,
            lax.expand_dims(sources, (1,)),
            numbers,
            (1, *rest),
            mode="promise_in_bounds" if filling is None else "fill",
            fill_value=None if filling is None else fill_value_of(filling),
        )
        made = lax.reshape(made, tuple(array.shape[d] for d in order))
        return lax.transpose(made, [order.index(d) for d in range(len(order))])

    def earlier(self, at: jax.Array, sources: jax.Array) -> jax.Array:
        """Where elements have been at the start of a step, from where they are at its end."""
        count = sources.shape[0]
        numbers = lax.GatherDimensionNumbers((), (0,), (0,))
        index = lax.expand_dims(at, (1,))
        mode, fill = ("fill", count) if self.fills else ("promise_in_bounds", None)
        made = lax.gather(sources, index, numbers, (1,), mode=mode, fill_value=fill)
        return lax.convert_element_type(made, at.dtype)

    def row_axes(self) -> list[int]:
        """The axes of a row along which elements change places."""
        return [axis - (axis > self.found.axis) for axis in self.found.moved]


_COUNTS = (np.uint8, np.uint16, np.int32)


def _gathered(gather: Rearrangement, window: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    sizes = list(slice_sizes_of(gather.op))
    sizes[axis] = 1
    return lax.gather(
        window,
        index,
        numbers_of(gather.op),
        sizes,
        mode=mode_of(gather.op),
        fill_value=fill_value_of(gather.op),
    )


def _traced(plans: Sequence[_Plan], reverse: bool, *operands: jax.Array) -> list[jax.Array]:
    """The buffers, from the stacks of sources and rows, and from what they were before the loop."""
    sources, rows, inits = operands[0], operands[1 : len(plans) + 1], operands[len(plans) + 1 :]
    count = sources.shape[1]

    def step(at: jax.Array, here: Sequence[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        source, *written = here
        pairs = zip(plans, written, strict=True)
        made = [plan.rearranged(row, at, plan.row_axes()) for plan, row in pairs]
        return plans[0].earlier(at, source), made

    at, made = lax.scan(step, lax.iota(np.int32, count), (sources, *rows), reverse=not reverse)
    return [p.result(init, m, at) for p, init, m in zip(plans, inits, made, strict=True)]
