"""Read the row that a product with a one-hot array picks.

Before::

    h_n, ys = scan[100] carry(h=h_0) xs(i=ids) {
      e = eq iota i
      x = convert_element_type e
      p = dot_general x w                   # jax.nn.one_hot(i, n) @ w
      ...
    }

After::

    n = reduce_sum (not (is_finite w))      # how many numbers of each column are not finite
    h_n, ys = scan[100] carry(h=h_0) xs(i=ids) {
      r = gather[fill=0] w i
      o = sub n (not (is_finite r))         # and of those not in the row
      p = select_n (gt o 0) r nan
      ...
    }

A network over characters or classes, an embedding as a product, the weights of an expert. The
product goes through all of the table for each row. Sound when

1. one operand is one in one place along the axis that is summed up, and zero elsewhere, and has a
   number for each row of it, or one for all: `eq` of a number and of the places;
2. there are no batch axes, and the numbers are real, so that one times a number is that number, and
   zero times a number is zero, up to its sign, or NaN if that is not finite. A place out of range
   picks nothing, as `fill` does;
3. nothing differentiates the product any more (the final phase): zero times a cotangent that is not
   finite is NaN, and JAX's transpose of a read is a row.

Cost: the rows, and a look at all of the table, before the loops in which it stays the same. It
fires where that is less than the products take: not in a loop that trains the table row by row.
Source: recurrent networks over characters, https://gist.github.com/karpathy/d4dee566867f8291f086.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.values.float_bounds import is_finite
from jaxpr_opt.analysis.values.ranges import is_ranged
from jaxpr_opt.analysis.windows.one_hot import OneHotRow, one_hot_row
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.builders.rows_of_products import not_finite, or_nan, places, rows_of_product
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_divided, is_sharded
from jaxpr_opt.ir.graph import Op, Phase, Scan, Value, While, is_sized
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Product(Match):
    """A product with a one-hot array."""

    hot: OneHotRow
    side: int
    """Which operand the one-hot array is."""

    @property
    def table(self) -> Value:
        return self.op.operands[1 - self.side]


@dataclass(frozen=True)
class ReadOneHotRows(Pass[Product]):
    """A product with a one-hot array -> a row of the table."""

    name: ClassVar[str] = "read-one-hot-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"  # (3)
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general"})

    def find(self, op: Op) -> Iterator[Product]:
        contracted, (batch, _) = numbers_of(op)
        # Condition 2 of read-one-hot-rows.
        if batch or len(contracted[0]) != 1 or not all(is_ranged(v.dtype) for v in op.operands):
            return
        for side, hot in enumerate(op.operands):
            found = one_hot_row(hot, contracted[side][0])
            if found is not None:  # (1)
                says = f"a product with {hot.label}, which is one-hot, reads rows"
                yield Product(op, says, found, side, about=op.operands[1 - side])
                return

    def refuse(self, match: Product) -> str | None:
        op, table = match.op, match.table
        if is_divided(op) or any(map(is_sharded, op.operands)):
            return "its rows may be on several devices"
        if not is_sized(table.shape) or 0 in table.shape:
            return "it is not known how many rows there are, or there are none"
        looked = 0 if is_finite(table) else table.nbytes
        loops = _loops_of_the_same(table, op)
        steps = prod(loop.length for loop in loops if isinstance(loop, Scan))
        if not cost_model().is_picked(op, looked, steps):
            return "to see whether the table is finite takes as long as the product"
        return None

    def rewrite(self, match: Product, rw: Rewriter) -> None:
        op, table, side = match.op, match.table, match.side
        read = partial(rows_of_product, op, match.hot, side)
        row = rw.insert(read, table, places(match.hot, rw), before=op)
        if not is_finite(table):  # (2)
            *_, at = op, *_loops_of_the_same(table, op)
            (axis,) = numbers_of(op)[0][1 - side]
            count = rw.insert(partial(not_finite, axis), table, before=at)
            first = 0 if side else len(row.shape) - len(count.shape)
            row = rw.insert(partial(or_nan, first), row, count, before=op)
        dtype = op.result.dtype
        typed = lambda row: lax.convert_element_type(row, dtype)  # noqa: E731
        rw.replace(op.result, rw.typed(typed, op.result.aval, row, before=op))
        rw.erase(op)


def _loops_of_the_same(table: Value, op: Op) -> list[Scan | While]:
    """The loops around an op in which a table stays the same, the innermost first."""
    loops = []
    for around in with_parents(op.parent):
        if any(region.defines(table) for region in around.regions):
            break
        if isinstance(around, Scan | While):
            loops.append(around)
    return loops
