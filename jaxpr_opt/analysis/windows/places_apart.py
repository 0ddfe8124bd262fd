"""Windows at places that the data decide, a known distance apart: ``x[i]`` and ``x[i + 1]``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.windows.coinciding import CLAMPS, DROPS
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes, window_sizes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import dimension_of, mode_of, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import LAYING

_VIEWS = LAYING | {"slice"}


def are_alike(a: Op, b: Op) -> bool:
    """Whether two scatters add windows of one form, at as many places."""
    shapes = [[v.aval.shape for v in op.operands[1:]] for op in (a, b)]
    types = [[v.dtype for v in op.operands[1:]] for op in (a, b)]
    forms = [(numbers_of(op), mode_of(op)) for op in (a, b)]
    return shapes[0] == shapes[1] and types[0] == types[1] and forms[0] == forms[1]


def may_coincide(scatters: Sequence[Op]) -> list[tuple[int, int]]:
    """The pairs of scatters of one form, each of one window a row, that may touch one element of a
    row.
    """
    numbered = combinations(enumerate(scatters), 2)
    return [(i, j) for (i, a), (j, b) in numbered if not _apart(a, b)]


def are_single_places(scatter: Op) -> bool:
    """Whether two windows of a form coincide or are disjoint, and coincide if their indices, once
    clamped, are the same.
    """
    array, index, _ = scatter.operands
    sizes = window_sizes(scatter)
    known = mode_of(scatter) in {DROPS, *CLAMPS} and index.dtype == np.int32
    # Condition 3 of share-batched-tables.
    return known and all(sizes[axis] in (1, array.shape[axis]) for axis in indexed_axes(scatter))


def _apart(a: Op, b: Op) -> bool:
    """Whether two windows differ by a known distance along an axis, which is not less than their
    size.
    """
    first, second, sizes = a.operands[1], b.operands[1], window_sizes(a)
    for number, axis in enumerate(indexed_axes(a)):
        there, here = _component(first, number), _component(second, number)
        if there is None or here is None:
            continue
        distance = _distance(there, here)
        # Condition 3 of share-batched-tables.
        if distance is None or abs(distance) < sizes[axis]:
            continue
        last = a.operands[0].shape[axis] - sizes[axis]
        # Condition 3 of share-batched-tables.
        if mode_of(a) != lax.GatherScatterMode.CLIP or all(
            _is_within(each, last) for each in (there, here)
        ):
            return True
    return False


def _component(index: Value, number: int) -> Value | None:
    """The index along one axis: the operand of a concatenation."""
    op, last = index.op, len(index.shape) - 1
    if op is None or op.name != "concatenate" or dimension_of(op) != last:
        return index if index.shape[last] == 1 else None
    for operand in op.operands:
        if number < operand.shape[last]:
            return operand if operand.shape[last] == 1 else None
        number -= operand.shape[last]
    return None


def _distance(a: Value, b: Value) -> int | None:
    """How much more one number is than another, if that is known, or is so once it is wrapped
    around, and then out of range.
    """
    (root, views, more), (other, others, less) = _origin(a), _origin(b)
    # Condition 3 of share-batched-tables.
    is_wrapped_out_of_range = a.dtype == b.dtype == np.int32
    # Condition 3 of share-batched-tables.
    if not is_wrapped_out_of_range or views != others or not same_expression(root, other, {}):
        return None
    return more - less if dtypes.holds(a.dtype, more - less) else None


def _origin(value: Value) -> tuple[Value, list[object], int]:
    """The number from which another is made by views and by adding a constant; the views; the
    constant.
    """
    views: list[object] = []
    total = 0
    for _ in range(limits.TERMS_OF_A_SUM):
        op = value.op
        if op is not None and op.name in _VIEWS:
            views.append((op.name, op.params, op.result.shape))
            value = op.operands[0]
        elif op is not None and op.name == "add" and uniform(op.operands[1]) is not None:
            total += int(uniform(op.operands[1]))
            value = op.operands[0]
        elif op is not None and op.name == "add" and uniform(op.operands[0]) is not None:
            total += int(uniform(op.operands[0]))
            value = op.operands[1]
        else:
            break
    return value, views, total


def _is_within(value: Value, last: int) -> bool:
    """Whether a place is never clamped."""
    found = bounds(value)
    return found is not None and found[0] >= 0 and found[1] <= last
