"""Write a number where a mask says that something was written, instead of selecting everywhere.

Before::

    s = scatter 0 i ids                     # ids[k] = k + 1, in an array of zeros
    m = eq s 0
    d = select_n m 0.0 c

After::

    d = scatter c i 0.0

``x.at[i].set(u)`` with several places in `i` is differentiated by numbers that JAX writes to zeros
at the same places: where they are still zero, the array and its cotangent stay. So each step of a
loop writes, compares and selects as many elements as the array has, and stores the mask for the
gradient. So does ``jnp.where(jnp.zeros(n, bool).at[banned].set(True), -jnp.inf, x)``. If a mask is
stacked for another loop, its indices are, and that loop writes. Sound when

1. the mask is what is written into an array of one integer or truth value, or compares that array
   with a number;
2. no number that is written compares as what is around it, so that the mask tells exactly which
   elements were written, at whatever places: dropped, clamped or several times;
3. the select takes one number where something was written, so that it does not matter which of two
   writes came last; its mask may be the same along further axes, as of all rows of a batch;
4. of a stacked mask, rows are only read by such selects, in loops of as many steps.

Cost: the elements that are written, not the array. It fires in loops only, if those are not most of
the array.
Source: `_scatter_jvp` in jax/_src/lax/slicing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.masks.written_masks import WrittenMask, written_mask
from jaxpr_opt.analysis.residuals.stack_consumers import Route, routes
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.window_primitives import UPDATE, places, written
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of
from jaxpr_opt.builders.residual_transfer import carried_along, drop_stacks, stacked
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Constant, Op, Scan, Stack, Value
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Masked(Match):
    """Selects by a mask: here, or by rows of a stack of masks."""

    mask: WrittenMask
    stack: Stack | None
    selects: tuple[tuple[Op, Route], ...]


@dataclass(frozen=True)
class WriteWhereMasked(Pass[Masked]):
    """A select by where something was written -> a write."""

    name: ClassVar[str] = "write-where-masked"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"select_n", "scan"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Masked]:
        if isinstance(op, Scan):
            for stack in op.stacks:
                mask = written_mask(stack.value) if stack.result.uses else None
                ways = routes(stack.result, nests=True) if mask is not None else None
                if mask is None or ways is None:  # (1, 2, 4)
                    continue
                users = [(way, user, row) for way, rows in ways for user, row in _readers(rows)]
                if users and all(_chooses(user, row, mask) for _, user, row in users):  # (3, 4)
                    says = f"places are stacked, not the mask {stack.value.label}"
                    selects = tuple((user, way) for way, user, _ in users)
                    yield Masked(op, says, mask, stack, selects, about=stack.result)
        elif op.result.uses and is_in_a_loop(op):
            mask = written_mask(_before_spread(op.operands[0]))
            if mask is not None and _chooses(op, op.operands[0], mask):  # (1, 2, 3)
                says = "a select under a mask of what was written becomes a write"
                yield Masked(op, says, mask, None, ((op, ()),), about=op.result, waste="select")

    def refuse(self, match: Masked) -> str | None:
        write = match.mask.write
        update, array = write.operands[UPDATE[write.name]], write.result
        if cost_model().is_most(update.size, array.size):
            return "most of the array is written"
        return None

    def rewrite(self, match: Masked, rw: Rewriter) -> None:
        write, scan = match.mask.write, match.op
        for select, route in match.selects:
            at = places(write)
            if match.stack is not None:
                assert isinstance(scan, Scan)
                at = [_sent(index, scan, route, rw) for index in at]
            number, kept = _cases(select, match.mask)
            fun, spread = partial(_written, write, uniform(number)), select.operands[0]
            for axis in _spread_axes(spread):
                fun = jax.vmap(fun, (axis, *(None for _ in at)), axis)
            rw.replace(select.result, rw.typed(fun, select.result.aval, kept, *at, before=select))
            rw.erase(select)
            if _spread_axes(spread) and not spread.uses and spread.op is not None:
                rw.erase(spread.op)
        if match.stack is not None:
            assert isinstance(scan, Scan)
            drop_stacks(scan, [match.stack], [way for _, way in match.selects], rw)


def _sent(index: Value, scan: Scan, route: Route, rw: Rewriter) -> Value:
    """An index of the step that writes, in the step that reads."""
    if isinstance(index, Constant):
        return index
    return carried_along(stacked(index, scan, rw), route, rw)


def _cases(select: Op, mask: WrittenMask) -> tuple[Value, Value]:
    """The case that a select takes where something was written, and the one that it takes
    elsewhere.
    """
    _, if_false, if_true = select.operands
    return (if_true, if_false) if mask.there else (if_false, if_true)


def _before_spread(mask: Value) -> Value:
    """The mask that is the same along some axes of a mask: of all rows of a batch."""
    is_spread = mask.op is not None and mask.op.name == "broadcast_in_dim"
    return mask.op.operands[0] if mask.op is not None and is_spread else mask


def _spread_axes(mask: Value) -> list[int]:
    """The axes along which it is the same, and that the mask before has not, in order."""
    if mask.op is None or mask.op.name != "broadcast_in_dim":
        return []
    return [d for d in range(len(mask.shape)) if d not in broadcast_dimensions_of(mask.op)]


def _readers(mask: Value) -> Iterator[tuple[Op, Value]]:
    """The ops that read a mask, or one that is the same along more axes; each with that."""
    for user in mask.users:
        if user.name == "broadcast_in_dim" and user.result.uses:
            yield from ((each, user.result) for each in user.result.users)
        else:
            yield user, mask


def _chooses(op: Op, mask: Value, write: WrittenMask) -> bool:
    """Whether an op is a select by a mask, and takes one number where something was written (3)."""
    if op.name != "select_n" or len(op.operands) != 3 or op.operands[0] is not mask:
        return False
    axes = [d for d in range(len(mask.shape)) if d not in _spread_axes(mask)]
    if _before_spread(mask).shape != tuple(mask.shape[d] for d in axes):
        return False
    number, kept = _cases(op, write)
    return kept.shape == mask.shape and uniform(number) is not None and uniform(kept) is None


def _written(write: Op, number: Any, array: jax.Array, *at: jax.Array) -> jax.Array:
    """Another array with a number where an op writes."""
    shape = write.operands[UPDATE[write.name]].shape
    return written(write, array, lax.full(shape, number, array.dtype), *at)
