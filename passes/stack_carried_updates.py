"""Stack the rows that a loop writes into a carried buffer, and stream the rows that it reads there.

Before::

    b = scan[8] carry(b=z) xs(x=xs, i=iota) {
      j = sub i 1
      y = dynamic_slice b j
      m = mul y x
      b1 = dynamic_update_slice b m i
      yield carry(b1)
    }

After::

    first = slice z
    last, rows = scan[8] carry(y=first) xs(x=xs) {
      m = mul y x
      yield carry(m) ys(y)
    }
    b = concatenate rows last

A window slides over the buffer by the same number of rows in each step. Its rows become values of
the step: rows that enter the window are streamed in, rows that stay are small carries, rows that
leave are stacked. Every read, write or addition refers to one of these.

Sound when

1. the carry is read and written by windows only, and leaves the step as one of its versions
   (`jaxpr_opt.analysis.carried.buffers`);
2. along one axis, every window starts at ``a * step + b``, with one nonzero `a` for all; along the
   others, at a constant. Rows along a short axis that are all at constants are separated first:
   each becomes a buffer of its own;
3. every window has elements and is in range at every step, and the loop takes at least one step.

Rows that no window touches keep their initial value.

Cost: the window's rows must be small: few of them, and not much larger than the part that is read
and written. XLA updates a buffer in place if only slices write it, so such a buffer stays. A buffer
that is also read stays if XLA need not copy it, perhaps thanks to `read-before-overwriting` (a rope
of points: 0.7 times the time of stacking, half the memory), and the rows would take a second
buffer: rows that leave the window are read later in another order or together with others; rows
that enter come from another loop's stack; or the step writes only part of a row. What is stacked
anyway takes no second buffer. In a gradient, stacking pays where rows only leave, because batched
trajectories take 1.3 times as long in place, for small buffers, and for those that XLA copies. It
does not pay if several rows are accessed at once, because each step would join and split them
(windows of 8 rows on JAX 0.10: 7 times as long). Rows that all stay move nothing, if they are
joined for the loop and read one by one after it.
Source: https://github.com/jax-ml/jax/issues/15906, https://github.com/jax-ml/jax/issues/17640;
scalar replacement of array references (Callahan, Carr and Kennedy, 1990).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import Buffer, buffer, copied_by
from jaxpr_opt.analysis.carried.sliding import Window, sliding
from jaxpr_opt.analysis.carried.sliding_costs import why_left_in_place, why_too_costly
from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.access import Extent, access
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.carried.sliding_rows import slide
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Sliding(Match):
    """A carry of a scan of which windows are written; or why that is not all."""

    op: Scan
    carry: Carry
    buffer: Buffer | str

    @property
    def scan(self) -> Scan:
        return self.op


@dataclass(frozen=True)
class StackCarriedUpdates(Pass[Sliding]):
    """A buffer that is carried, read and written at affine indices -> streams and stacks."""

    name: ClassVar[str] = "stack-carried-updates"
    after: ClassVar[tuple[After, ...]] = (
        After(
            "merge-common-subexpressions", "a window that is read and written has one index then"
        ),
        After(
            "forward-known-stacks",
            "an index that another loop stacks is unknown until it is forwarded",
        ),
        After("expand-combining-scatters", "a combining scatter is neither a read nor a write"),
        After("accumulate-sparse-cotangents", "a sum of dense arrays is no write of a window"),
    )
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    even_in_place: bool = False
    """Also where XLA does as well."""

    def find(self, op: Scan) -> Iterator[Sliding]:
        for carry in op.carries:
            writes = [user for user in carry.param.users if _writes(user, carry.param)]
            if writes:
                name = carry.param.name or carry.param.type
                says = f"each step reads and writes rows of {name}: they are stacked, not carried"
                found = buffer(op, carry)
                copied = copied_by(found) if isinstance(found, Buffer) else None
                waste: Waste | None = "copy" if copied is not None else None
                at = copied or writes[0]
                yield Sliding(op, says, carry, found, at=at, about=carry.param, waste=waste)

    def refuse(self, match: Sliding) -> str | None:
        plan = _plan(match)
        if isinstance(plan, str):
            return plan
        assert isinstance(match.buffer, Buffer)
        return None if self.even_in_place else why_left_in_place(match.scan, match.buffer, plan)

    def rewrite(self, match: Sliding, rw: Rewriter) -> None:
        plan = _plan(match)
        assert isinstance(plan, Window) and isinstance(match.buffer, Buffer)
        slide(match.scan, match.buffer, plan, rw)


def _writes(op: Op, array: Value) -> bool:
    """Whether an op writes a window of an array, or renames it."""
    writes = op.name in WRITES and op.operands[0] is array and access(op) is not None
    return writes or is_noop_cast(op)


def _plan(match: Sliding) -> Window | str:
    """The window that all accesses are in, or why there is none."""
    scan, found = match.scan, match.buffer
    if isinstance(found, str):
        return found  # (1)
    name = found.carry.param.name or "the buffer"
    if scan.length < 1:
        return "the loop has no steps"  # (3)
    if not dtypes.is_of_bytes(found.carry.param.dtype):
        return f"the elements of {name} are smaller than a byte, or no numbers"
    for each in found.accesses:  # (2, 3)
        if not each.is_located:
            where = f"the index of {each.op.name} in {name}"
            return f"{where} is not known from the step, or may be out of range"
        if 0 in each.sizes:
            return f"{each.op.name} uses no elements of {name}"
    if all(a.op.name == "dynamic_update_slice" for a in found.accesses):
        return f"XLA already updates {name} in place"
    windows = [access.window for access in found.accesses]
    moving = {d for w in windows for d, extent in enumerate(w) if not _is_constant(extent)}
    standing = _standing(found)
    if moving and standing is not None:
        size = found.carry.param.shape[standing]
        return Window(standing, 0, 0, size, scan.length, scan.reverse)
    if len(moving) != 1:  # (2)
        return f"the windows of {name} move along {len(moving)} axes"
    window = sliding(scan, found.accesses, *moving)
    if window is None:  # (2)
        return f"the windows of {name} move by different numbers of rows a step"
    return why_too_costly(found, window, name) or window


def _standing(found: Buffer) -> int | None:
    """A short axis along which all windows are at constant places, and none is whole."""
    for axis, n in enumerate(found.carry.param.shape):
        extents = [access.window[axis] for access in found.accesses]
        if 1 < n <= limits.ROWS_CARRIED and all(e.size < n and _is_constant(e) for e in extents):
            return axis
    return None


def _is_constant(extent: Extent) -> bool:  # (2)
    return extent.start is not None and extent.start.is_constant
