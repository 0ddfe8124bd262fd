"""Read again what a loop would stack, if the row is known without running the loop.

Before::

    c_n, r, j = scan[8] carry(c=c_0) xs(i=iota) {
      k = select_n (lt i 0) i (add i 8)
      w = squeeze (dynamic_slice ws k 0)
      c1 = dot_general c w
      yield carry(c1) ys(w, k)
    }

After::

    c_n = scan[8] carry(c=c_0) xs(i=iota) {
      ...
      yield carry(c1)
    }
    r = ws
    j = iota

For the transposed loop, JAX stacks in each step what the loop has read of an array: a second copy
of all parameters, if they are read by layer. Sound when the rows of the stack are

1. integers that are affine in the step of the loop, and in no other loop's, or
2. windows of an array from outside the loop, made into rows by data movement only, that
3. move along one axis by as much as they extend, or extend by one; along the others their start
   does not depend on the loop;
4. and are in range at every step, of which the loop takes at least one.

Cost: none; a slice of an array replaces a copy of its rows.
Source: https://github.com/AI-Hypercomputer/maxtext/issues/4405;
https://github.com/jax-ml/jax/pull/4517 does so for streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.values.affine import Affine, stacked
from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.builders.step_numbers import number_of
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_data_movement


@dataclass(frozen=True, slots=True, eq=False)
class Counted(Match):
    """A stack of integers that are an affine function of its indices (1)."""

    op: Scan
    stack: Stack
    number: Affine


@dataclass(frozen=True, slots=True, eq=False)
class CopiedRows(Match):
    """A stack of windows of an array, and the ops that make a row of a window (2)."""

    op: Scan
    stack: Stack
    read: Access
    moved: tuple[Op, ...]


@dataclass(frozen=True)
class ForwardKnownStacks(Pass[Counted | CopiedRows]):
    """Stack of what is read or counted in a loop -> slice or iota."""

    name: ClassVar[str] = "forward-known-stacks"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Counted | CopiedRows]:
        for stack in op.stacks:
            value = stack.value
            if not stack.result.uses or not op.body.defines(value) or op.stream_of(value):
                continue  # of a stream or an outer value: hoist-invariant-residuals
            number = affine(value)
            if number is not None:  # (1)
                says = f"{value.label} depends only on the step number: computed again, not stored"
                yield Counted(op, says, stack, stacked(number, op))
                continue
            read, moved = _read(value, op)
            if read is not None:
                says = f"rows of {read.array.label} are read again, not stored"
                yield CopiedRows(op, says, stack, read, moved)

    def refuse(self, match: Counted | CopiedRows) -> str | None:
        scan = match.op
        if scan.length < 1:
            return "the loop has no steps"  # (4)
        if isinstance(match, Counted):
            return "it depends on an outer step, too" if match.number.steps else None  # (1)
        if not match.read.is_located:  # (3, 4)
            return "the start of the window is unknown, or may be out of range"
        axes = _moving(match)
        if len(axes) != 1:  # (3)
            return f"the window moves along {len(axes)} axes"
        extent = match.read.window[axes[0]]
        assert extent.start is not None
        if extent.size not in (1, abs(extent.start.steps[scan])):  # (3)
            return "the windows overlap, or leave rows out"
        return None

    def rewrite(self, match: Counted | CopiedRows, rw: Rewriter) -> None:
        scan, after = match.op, match.op.next
        assert after is not None
        if isinstance(match, Counted):
            result = match.stack.result
            rw.replace(result, rw.typed(lambda: _counted(match, result), result.aval, before=after))
            return
        windows = _windows(match, rw)
        rows = {match.read.op.result: windows}
        length = scan.length
        made = rw.vectorize(match.moved, match.stack.value, rows, length=length, before=scan)
        rw.replace(match.stack.result, made)


def _counted(match: Counted, result: Value) -> jax.Array:
    dtype, number = result.dtype, match.number
    same = next((axis for axis, stride in enumerate(number.strides) if stride), 0)
    shape = result.shape[same:]  # along the axes before, it is repeated
    start = lax.full(shape, dtypes.wrapped(dtype, number.offset), dtype)
    terms = [start] if number.offset or number.is_constant else []
    for axis, stride in enumerate(number.strides[same:]):
        if stride:
            places = lax.broadcasted_iota(dtype, shape, axis)
            terms.append(places if stride == 1 else lax.mul(places, dtypes.wrapped(dtype, stride)))
    return lax.broadcast(reduce(lax.add, terms), result.shape[:same])


def _read(value: Value, scan: Scan) -> tuple[Access | None, tuple[Op, ...]]:
    """The read of an outer array that a value of the body is moved from, and the ops that do."""
    moved: list[Op] = []
    while (op := value.op) is not None and scan.body.defines(value):
        found = access(op)
        if found is not None:
            is_outer = found.kind == "read" and not scan.body.defines(found.array)  # (2)
            return (found, tuple(reversed(moved))) if is_outer else (None, ())
        if not is_data_movement(op) or len(op.operands) != 1:  # (2)
            break
        moved.append(op)
        value = op.operands[0]
    return None, ()


def _moving(match: CopiedRows) -> list[int]:
    """The axes along which the window moves with the loop."""
    return [
        axis
        for axis, extent in enumerate(match.read.window)
        if extent.start is not None and match.op in extent.start.steps
    ]


def _windows(match: CopiedRows, rw: Rewriter) -> Value:
    """The windows that are read in each step, stacked."""
    scan, read = match.op, match.read
    (moving,) = _moving(match)
    starts = [extent.start for extent in read.window if extent.start is not None]
    stride, size = starts[moving].steps[scan], read.window[moving].size
    lows = list(starts)
    lows[moving] -= Affine(max(-stride, 0) * (scan.length - 1), (), {scan: stride})
    sizes = list(read.sizes)
    sizes[moving] = abs(stride) * (scan.length - 1) + size
    dynamic = [low for low in lows if not low.is_constant]
    values = [number_of(low, rw, before=scan) for low in dynamic]

    def windows(array: jax.Array, *values: jax.Array) -> jax.Array:
        given = iter(values)
        at = [low.offset if low.is_constant else next(given) for low in lows]
        part = read_window(array, at, sizes)
        if size == 1:
            part = lax.slice_in_dim(part, 0, None, abs(stride), moving)
        split = (*part.shape[:moving], scan.length, size, *part.shape[moving + 1 :])
        order = [moving, *(d for d in range(len(split)) if d != moving)]
        rows = lax.transpose(lax.reshape(part, split), order)
        rows = rows if stride > 0 else lax.rev(rows, (0,))
        return jax.vmap(read.from_window)(rows)

    return rw.insert(windows, read.array, *values, before=scan)
