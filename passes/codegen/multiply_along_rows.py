"""Multiply so that the larger factor is read row by row, not across its rows.

Before::

    t = transpose a
    y = dot_general t v                           # v:f32[128]
    z = dot_general[contract=0x0] a b             # a:f32[128,512], b:f32[128,4]

After::

    y = dot_general[contract=0x0] a v
    s = dot_general[contract=0x0] b a
    o = optimization_barrier s
    z = transpose o

``A.T @ r`` is in each step of least squares, of the lasso, of matching pursuit, of Sinkhorn's
algorithm. XLA:CPU multiplies a vector by a transpose in a loop of its own, which reads number by
number across the rows of the matrix. It reads the first of two matrices so, too, if that is summed
along its columns; so it does in the gradient of ``x @ w`` for `w`, ``(ct.T @ x).T``, which XLA
makes ``x.T @ ct`` of. The fence keeps it from that. Sound, up to rounding, when

1. the product sums along the same axes, and its own come out in the same order;
2. types and the op do not say which device holds which rows.

Cost: none for a vector, if only products read the transpose, which XLA else makes, before a loop,
too (conjugate gradients of normal equations: 0.02 to 0.2, in no more memory); for matrices one op,
and the result once more. It fires where reading so many numbers across the rows takes longer than
starting an op; and, of two matrices, than writing the result again, if the larger one exceeds the
first cache. By a vector 128 x 128 to 512 x 512 numbers take 0.14 to 0.03 times as long, the lasso,
Sinkhorn's and a power iteration 0.06 to 0.1. By 2 to 64 columns 128 x 512 to 512 x 512 take 0.06 to
0.6 times as long, batches of eight 256 x 256 by 8 columns 0.2 (JAX 0.10 and 0.12). Matrices of
complex numbers take 1.3 to 1.6 times as long, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from jaxpr_opt.bridge.parameters import (
    along_other_axes,
    is_resharded,
    numbers_of,
    permutation_of,
)
from jaxpr_opt.builders.fences import barrier
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.builders.swapped_factors import fenced_swapped
from jaxpr_opt.cost.layouts import is_made_transposed, is_read_across
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Phase, Value, is_sized
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class FactorAcross(Match):
    """A product, and which of its factors it reads across the rows."""

    position: int
    is_by_vector: bool

    @property
    def factor(self) -> Value:
        """What is read so."""
        return self.op.operands[self.position]


@dataclass(frozen=True)
class MultiplyAlongRows(Pass[FactorAcross]):
    """A factor that is read across its rows -> one that is read row by row."""

    name: ClassVar[str] = "multiply-along-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[FactorAcross]:
        if not all(is_sized(v.shape) for v in op.operands) or not numbers_of(op)[0][0]:
            return
        if is_resharded(op) or any(map(is_sharded, op.operands)):  # (2)
            return
        for position, factor in enumerate(op.operands):
            is_by_vector = _free(op, 1 - position) == 1
            if is_by_vector:
                is_across = _is_transposed(factor) and not numbers_of(op)[1][0]
                is_across = is_across and _keeps_order(op, position)  # (1)
            else:
                is_larger = factor.size > op.operands[1 - position].size
                is_across = is_larger and _is_left(op, position) and is_read_across(op, position)
            if is_across and _free(op, position) > 1:
                says = f"{factor.label} is multiplied row by row"
                yield FactorAcross(op, says, position, is_by_vector, about=factor)
                return

    def refuse(self, match: FactorAcross) -> str | None:
        model, factor = cost_model(), match.factor
        if match.is_by_vector:
            is_slow = model.is_slow_across(factor)
        else:
            is_slow = model.is_less_along(factor, match.op.operands[1 - match.position], match.op)
        return None if is_slow else "reading it across its rows takes no longer"

    def rewrite(self, match: FactorAcross, rw: Rewriter) -> None:
        op = match.op
        if match.is_by_vector:
            transpose, operands = match.factor.op, [*op.operands]
            assert transpose is not None
            (operands[match.position],) = transpose.operands
            params = along_other_axes(op, _numbers(op, match.position))
            made = on_others(op, operands, rw, before=op, params=params)
        elif match.position == 1:  # what reads the result transposes it
            assert op.next is not None
            barrier(rw, [op.result], op.next)
            return
        else:
            made = fenced_swapped(op, rw)
        rw.replace(op.result, made)
        rw.erase(op)


def _free(product: Op, position: int) -> int:
    """How many rows or columns of the result are a factor's own."""
    (contracted, batch), shape = numbers_of(product), product.operands[position].shape
    others = {*contracted[position], *batch[position]}
    return prod(size for axis, size in enumerate(shape) if axis not in others)


def _is_transposed(factor: Value) -> bool:
    """Whether a factor is a transpose that only products read, here or further in."""
    if factor.op is None or factor.op.name != "transpose":
        return False
    return all(user.name == "dot_general" for user in factor.users)


def _is_left(product: Op, position: int) -> bool:
    """Whether a factor comes first where XLA multiplies: a product whose result is transposed is
    one of the factors in the other order.
    """
    users = product.result.users
    is_turned = len(users) == 1 and users[0].name == "transpose" and is_made_transposed(users[0])
    return position == int(is_turned)


def _keeps_order(product: Op, position: int) -> bool:
    """Whether axes that are not summed up are in order before a factor is transposed, too (1)."""
    summed, transpose = numbers_of(product)[0][position], product.operands[position].op
    assert transpose is not None
    axes = [axis for at, axis in enumerate(permutation_of(transpose)) if at not in summed]
    return axes == sorted(axes)


def _numbers(product: Op, position: int) -> tuple[Any, Any]:
    """The dimension numbers of the product by what was transposed (1)."""
    contracted, batch = numbers_of(product)
    axes: list[Sequence[int]] = list(contracted)
    transpose = product.operands[position].op
    assert transpose is not None
    axes[position] = tuple(permutation_of(transpose)[axis] for axis in axes[position])
    return tuple(axes), batch
