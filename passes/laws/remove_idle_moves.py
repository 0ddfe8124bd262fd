"""Remove data movement that has no effect.

Before::

    a = reshape[new_sizes=(8, 3)] x
    b = transpose[permutation=(1, 0)] a
    c = transpose[permutation=(1, 0)] b
    d = reshape[new_sizes=(24,)] c

After::

    d = reshape[new_sizes=(24,)] x

Each rule is a line of the table at the end. Sound when

1. the op returns its operand's elements in their order, by its parameters and types (a reduction of
   no axes keeps the shape, one of single rows changes it); or it takes back a move, and all that
   was written in between is a window of the array before that, too: one element, or a run of them
   along one axis, where shapes differ; where one is out of range, it is dropped or clamped alike;
2. the replacement has the type of the result: shape, dtype, weak type and sharding;
3. `stop_gradient` and `name` are the identity once nothing can differentiate the program (the final
   phase). Before, they stay, except `stop_gradient` of numbers that have no derivative.

Cost: every rule removes an op, or a dependence on one; here XLA's laws let other passes match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.sparse.moved_writes import spread_at_once, spread_before, written_back
from jaxpr_opt.analysis.sparse.turned_windows import written_backwards
from jaxpr_opt.analysis.values.algebra import Law, Laws, Plainer, involution
from jaxpr_opt.analysis.values.copies import (
    counted_once,
    sliced_before_spread,
    transposed_before_spread,
)
from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.writes.reshaped_writes import written_in_shape
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    axes_of,
    dimensions_of,
    is_in_order,
    padding_of,
    permutation_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.passes.laws.simplify import Identity, Simplify


def _is_discrete(op: Op) -> bool:  # (3)
    """Whether it stops a gradient that is none."""
    return op.name == "stop_gradient" and dtypes.is_integral(op.result.dtype)


def first(op: Op) -> Value:
    """The first operand, wherever it has the type of the result (2)."""
    return op.operands[0]


def first_if(holds: Callable[[Op], bool]) -> Law:
    """The first operand, if something holds of the op."""
    return lambda op: first(op) if holds(op) else None


def transposed_at_once(op: Op) -> Plainer | None:
    """The law transpose(transpose(x)) = transpose(x)."""
    inner = op.operands[0].op
    if inner is None or inner.name != "transpose":
        return None
    permutation = tuple(permutation_of(inner)[i] for i in permutation_of(op))  # (1)
    return Plainer(lambda x: lax.transpose(x, permutation), inner.operands)


def keeps_axes(op: Op) -> bool:
    """Whether a permutation changes nothing."""
    permutation = permutation_of(op)
    return permutation == tuple(range(len(permutation)))  # (1)


def of_single_rows(op: Op) -> Plainer | None:
    """A reduction over axes of one element, which has another shape."""
    array, shape = op.operands[0], op.result.shape
    is_reshaped = all(array.shape[axis] == 1 for axis in axes_of(op)) and is_sized(shape)  # (1)
    return Plainer(lambda x: lax.reshape(x, shape), (array,)) if is_reshaped else None


def unpadded(op: Op) -> Value | None:
    """A pad by nothing."""
    return op.operands[0] if all(each == (0, 0, 0) for each in padding_of(op)) else None  # (1)


def overwritten(op: Op) -> Value:
    """An update as large as the array is the result: the index is clamped to 0."""
    return op.operands[1]


def reshaped_twice(op: Op) -> tuple[Value, ...] | None:
    """The law reshape(reshape(x)) = reshape(x), also for a squeeze, and axes of size 1 added."""
    inner = op.operands[0].op
    plain = is_in_order(op)
    return inner.operands if plain and inner is not None and keeps_order(inner) else None  # (1)


def transposed_before(op: Op) -> Plainer | None:
    """The law reshape(x, dimensions) = reshape(transpose(x, dimensions))."""
    if is_in_order(op):
        return None
    order, shape = dimensions_of(op), op.result.shape
    return Plainer(lambda x: lax.reshape(lax.transpose(x, order), shape), op.operands)


def squeezed_back(op: Op) -> Value | None:
    """A squeeze of axes that were added to the operand, one way or another."""
    inner = op.operands[0].op
    if inner is None or not keeps_order(inner):  # (1)
        return None
    return inner.operands[0]


def sliced_at_once(op: Op) -> Plainer | None:
    """The law slice(slice(x)) = slice(x)."""
    inner = op.operands[0].op
    if inner is None or inner.name != "slice":
        return None
    steps = [strides_of(each) for each in (inner, op)]
    if any(step != 1 for each in steps for step in each):  # (1)
        return None
    starts = [a + b for a, b in zip(starts_of(inner), starts_of(op), strict=True)]
    limits = [a + n for a, n in zip(starts, op.result.shape, strict=True)]
    return Plainer(lambda x: lax.slice(x, starts, limits), inner.operands)


MARKERS = frozenset({"name", "stop_gradient"})

LAWS: Laws = {
    "broadcast_in_dim": (first, spread_before, written_in_shape),
    "concatenate": (first,),
    "copy": (first,),
    "dynamic_slice": (first,),
    "dynamic_update_slice": (overwritten,),
    "iota": (counted_once,),
    "name": (first,),
    "pad": (unpadded,),
    "reduce_max": (first, of_single_rows),
    "reduce_min": (first, of_single_rows),
    "reduce_sum": (first, of_single_rows),
    "reshape": (
        first_if(is_in_order),
        transposed_before,
        reshaped_twice,
        spread_at_once,
        written_in_shape,
    ),
    "rev": (involution, written_backwards),
    "slice": (first, sliced_at_once, sliced_before_spread),
    "split": (first,),
    "squeeze": (first, squeezed_back, spread_at_once, written_in_shape),
    "stop_gradient": (first,),
    "transpose": (
        first_if(keeps_axes),
        transposed_at_once,
        written_back,
        transposed_before_spread,
    ),
}


@dataclass(frozen=True)
class RemoveIdleMoves(Simplify):
    """Remove reshapes to the same shape, transposes taken back, slices of everything."""

    name: ClassVar[str] = "remove-idle-moves"
    laws: ClassVar[Laws] = LAWS
    primitives: ClassVar[frozenset[str]] = frozenset(LAWS)

    def find(self, op: Op) -> Iterator[Identity]:
        if op.name not in MARKERS or _is_discrete(op) or phase_of(op) == "final":  # (3)
            yield from super().find(op)
