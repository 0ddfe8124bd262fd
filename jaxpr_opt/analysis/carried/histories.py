"""Carried arrays whose rows each step permutes, all in the same way, before it writes one more row.

Examples are ``hist[:, ancestors].at[t].set(x)`` in a particle filter and ``seqs[parents].at[:,
t].set(token)`` in beam search.  A row is what a step writes: all axes of the buffer but one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import lax

from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import fill_value_of, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Carry, Op, Scan, Use, Value


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """A gather that rearranges every row alike."""

    op: Op
    moved: tuple[int, ...]
    """The axes of the buffer along which elements change places."""
    numbers: lax.GatherDimensionNumbers
    """How it gathers from an array that has these axes only."""

    @property
    def fills(self) -> bool:
        """Whether elements out of range are replaced, not clamped."""
        mode = lax.GatherScatterMode.from_any(mode_of(self.op))
        return mode == lax.GatherScatterMode.FILL_OR_DROP

    @property
    def key(self) -> Any:
        """Equal for gathers that choose the same places, of whatever buffers."""
        sizes = tuple(self.op.operands[0].shape[axis] for axis in self.moved)
        return self.op.operands[1], sizes, self.numbers, mode_of(self.op)


@dataclass(frozen=True, slots=True, eq=False)
class BufferHistory:
    """A carry that a step makes of itself by gathers that rearrange rows, and by one write."""

    carry: Carry
    chain: tuple[Op, ...]
    """The ops that lead from the carry's parameter to its next value, in order."""
    gathers: tuple[Rearrangement, ...]
    write: Access
    reads: tuple[Access, ...]
    """Reads of the row that the step before has written, rearranged by some of the gathers, or of
    a part of it."""
    axis: int
    """The axis along which the written rows lie."""

    @property
    def moved(self) -> tuple[int, ...]:
        """The axes of the buffer along which elements change places."""
        return self.gathers[0].moved

    @property
    def places(self) -> tuple[int, ...]:
        """The lengths of the axes along which elements change places."""
        return tuple(self.carry.param.shape[axis] for axis in self.moved)

    @property
    def key(self) -> Any:
        """Equal for buffers that are rearranged together."""
        return tuple(gather.key for gather in self.gathers)

    @property
    def later(self) -> tuple[Rearrangement, ...]:
        """The gathers that rearrange the row that the same step has written."""
        return tuple(g for g in self.gathers if g not in self.until(self.write.op.result))

    def until(self, version: Value) -> tuple[Rearrangement, ...]:
        """The gathers that lead from the carry's parameter to one of its versions."""
        versions = [self.carry.param, *(op.result for op in self.chain)]
        led = self.chain[: versions.index(version)]
        return tuple(g for g in self.gathers if g.op in led)


def history(scan: Scan, carry: Carry) -> BufferHistory | str | None:
    """The history that a carry is; a string says why it is none; None if no step both rearranges
    and writes it.
    """
    chain = _chain(scan, carry)
    writes = [found for op in chain.ops if op.name in WRITES and (found := access(op)) is not None]
    gathers = [op for op in chain.ops if op.name == "gather"]
    if not gathers or not writes:
        return None
    name = carry.param.name or "the buffer"
    # Condition 1 of trace-back-rows.
    if not chain.is_closed:
        return f"a step reads {name} as a whole, or replaces it"
    if len(writes) > 1 or writes[0].kind != "write":
        return f"a step writes more than one row of {name}"
    (write,) = writes
    # Condition 3 of trace-back-rows.
    if not write.is_located:
        return f"the index of the row of {name} is unknown, or may be out of range"
    axis = _row_axis(write)
    if axis is None:
        return f"a step does not write one whole row of {name}"
    start = write.window[axis].start
    assert start is not None
    if set(start.steps) != {scan} or abs(start.steps[scan]) != 1:
        return f"the rows of {name} are not written one after the other"
    # Condition 2 of trace-back-rows.
    known = _alike(gathers, axis)
    if known is None:
        return f"a step does not rearrange all rows of {name} alike"
    if len({str(fill_value_of(each.op)) for each in known if each.fills}) > 1:
        return f"what is out of range in {name} is filled differently"
    if not dtypes.is_of_bytes(carry.param.dtype):
        return f"the elements of {name} are smaller than a byte, or no numbers"
    ops = tuple(chain.ops)
    before = {carry.param, *(op.result for op in ops[: ops.index(write.op)])}
    last = start + Affine(start.steps[scan] * (1 if scan.reverse else -1))
    for read in chain.reads:
        # Condition 1 of trace-back-rows.
        if read.array not in before or not _is_of_row(read, axis, last):
            return f"a step reads other rows of {name} than the last one written"
    return BufferHistory(carry, ops, known, write, tuple(chain.reads), axis)


def _row_axis(write: Access) -> int | None:
    """The axis along which rows lie of which a write replaces one, whole; None if it does not."""
    shape, starts = write.array.shape, [extent.start for extent in write.window]
    whole = {d for d, n in enumerate(shape) if write.sizes[d] == n}
    apart = [d for d, n in enumerate(shape) if write.sizes[d] == 1 and n > 1]
    moving = [d for d, at in enumerate(starts) if at is not None and not at.is_constant]
    is_row = len(moving) == 1 and apart == moving and len(whole | {*moving}) == len(shape)
    return moving[0] if is_row else None


def _alike(gathers: Sequence[Op], axis: int) -> tuple[Rearrangement, ...] | None:
    """Gathers that rearrange all rows along the same axes; None if they are others."""
    moved = [rearrangement(op) for op in gathers]
    known = tuple(each for each in moved if each is not None and axis not in each.moved)
    is_alike = len(known) == len(gathers) and len({each.moved for each in known}) == 1
    return known if is_alike else None


def _is_of_row(read: Access, axis: int, row: Affine) -> bool:
    """Whether a read is of one row, or of a part of it at a place that is known."""
    others = [extent.start for d, extent in enumerate(read.window) if d != axis]
    is_known = all(at is not None and at.is_constant for at in others)
    return is_known and read.sizes[axis] == 1 and read.window[axis].start == row


@dataclass(slots=True)
class _Chain:
    """The ops that each make the only next version of a carry, from its parameter on."""

    ops: list[Op] = field(default_factory=list)
    reads: list[Access] = field(default_factory=list)
    """Reads of windows of these versions."""
    is_closed: bool = False
    """Whether the last version is the carry's next value, and there is no other use of any."""


def _chain(scan: Scan, carry: Carry) -> _Chain:
    found, version, others = _Chain(), carry.param, 0
    while version is not carry.next:
        read = {use: access(use.op) for use in version.uses if use.position == 0}
        windows = {use: each for use, each in read.items() if each and each.kind == "read"}
        found.reads.extend(windows.values())
        makers = [use.op for use in version.uses if use not in windows and _makes(use, scan)]
        others += len(version.uses) - len(windows) - len(makers)
        if len(makers) != 1:
            return found
        found.ops.extend(makers)
        version = makers[0].result
    found.is_closed = others == 0 and len(version.uses) == 1
    return found


def _makes(use: Use, scan: Scan) -> bool:
    """Whether an op makes the next version of what it uses."""
    makes = use.op.name == "gather" or use.op.name in WRITES or is_noop_cast(use.op)
    return use.position == 0 and makes and use.op.region is scan.body


def rearrangement(op: Op) -> Rearrangement | None:
    """A gather as one of elements along some axes, which keeps their places along the others."""
    (array, index), numbers, sizes = op.operands, numbers_of(op), slice_sizes_of(op)
    collapsed, batching = tuple(numbers.collapsed_slice_dims), tuple(numbers.operand_batching_dims)
    moved = tuple(sorted({*collapsed, *batching}))
    others = tuple(d for d in range(len(array.shape)) if d not in moved)
    if is_sharded(array) or op.result.shape != array.shape:
        return None
    if any(sizes[d] != array.shape[d] for d in others) or tuple(numbers.offset_dims) != others:
        return None
    if not set(numbers.start_index_map) <= set(collapsed):
        return None
    if index.shape[:-1] != tuple(array.shape[d] for d in moved):
        return None
    rank = {axis: number for number, axis in enumerate(moved)}
    alone = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=tuple(rank[d] for d in collapsed),
        start_index_map=tuple(rank[d] for d in numbers.start_index_map),
        operand_batching_dims=tuple(rank[d] for d in batching),
        start_indices_batching_dims=tuple(numbers.start_indices_batching_dims),
    )
    return Rearrangement(op, moved, alone)
