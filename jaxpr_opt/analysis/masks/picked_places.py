"""Arrays that are zero but for one place along some axes, and products and sums of them.

``jax.nn.one_hot(ids, n)`` is one such array. So are what it is multiplied by, what is chosen by it,
and a product of two, each along an axis of its own: ``dispatch[t, e, c]`` of a mixture of experts
is not zero where `e` is the expert of token `t`, and `c` the place that the token has there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxpr_opt.analysis.masks.one_hot import AXES_MOVED, Chosen, OneHot, chosen
from jaxpr_opt.analysis.masks.picked_arrays import Factor, Picked, Place, Source
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.float_bounds import is_finite
from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.analysis.values.linearity import is_transposed
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.analysis.windows.coinciding import CLAMPS
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    axes_of,
    mode_of,
    numbers_of,
    slice_sizes_of,
)
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Region, Scan, Value


@remembered
def picked(array: Value) -> Picked | None:
    """How an array is one number but for one place along some axes; None if it is not."""
    if array.op is not None:
        rule = PICKING.get(array.op.name)
        found = None if rule is None else rule(array.op)
        return found or _chosen(chosen(array), array)
    loop = array.owner.owner if isinstance(array.owner, Region) else None
    stream = loop.stream_of(array) if isinstance(loop, Scan) else None
    if not isinstance(loop, Scan) or stream is None:
        return None
    return _streamed(picked(stream.operand), loop)


def product_of_factors(op: Op) -> tuple[Picked | None, tuple[int, ...]]:
    """What a product multiplies before it sums up, and its shape."""
    maps, shape = axes_multiplied(op)
    return _product(op, maps), shape


def axes_multiplied(op: Op) -> tuple[list[dict[int, int]], tuple[int, ...]]:
    """The axes that those of the factors of a product are before it sums up, and their shape."""
    numbers = list(zip(*numbers_of(op), strict=True))
    first, kept = len(numbers[0][1]), len(op.result.shape)
    maps: list[dict[int, int]] = []
    for factor, (contracted, batch) in zip(op.operands, numbers, strict=True):
        free = [d for d in range(len(factor.shape)) if d not in (*contracted, *batch)]
        to = {d: at for at, d in enumerate(batch)}
        to |= {d: first + at for at, d in enumerate(free)}
        maps.append(to | {d: kept + at for at, d in enumerate(contracted)})
        first += len(free)
    return maps, (*op.result.shape, *(op.operands[0].shape[d] for d in numbers[0][0]))


def _product(op: Op, maps: Sequence[Mapping[int, int]]) -> Picked | None:
    """The product of two arrays with their axes moved, if one of them is picked."""
    left, right = op.operands
    sides = [picked(v) for v in op.operands]
    moved = [
        None if side is None or side.elsewhere != 0 else side.moved(to)
        for side, to in zip(sides, maps, strict=True)
    ]
    one, two = moved
    if one is not None and two is not None and (both := merged(one, two)) is not None:
        return both
    for side, own, other, to in ((one, left, right, maps[1]), (two, right, left, maps[0])):
        if side is not None:
            leaks = may_be_infinite(other) and not _is_cotangent(own, op)
            return times(side, other, to, leaks=leaks)
    return None


def _is_cotangent(array: Value, product: Op) -> bool:
    """Whether an array is a cotangent in a transposed product, and its zeros those of a select."""
    made = array.op
    while made is not None and made.name in AXES_MOVED:
        made = made.operands[0].op
    # Condition 3 of read-one-hot-rows.
    is_selected = made is not None and made.name == "select_n" and is_transposed(made)
    return is_selected and is_transposed(product)


def merged(one: Picked, two: Picked) -> Picked | None:
    """What is picked by both, along other axes, each of which leaves the places of the other be; or
    at the same place.
    """
    places = {p.axis: p for p in (*one.places, *two.places)}
    for each in (one, two):
        others = places.keys() - each.axes
        same = all(places[p.axis] == p for p in each.places)
        # Condition 1 of read-one-hot-rows.
        if not same or any(others & {*p.number.axes} for p in each.places):
            return None
    if one.inner and two.inner:
        return None
    outside = one.inner_axes | two.inner_axes
    factors = tuple(
        replace(f, outside=f.outside if each.inner else outside)
        for each in (one, two)
        for f in each.factors
    )
    number, inner = one.number * two.number, one.inner or two.inner
    return Picked(tuple(places.values()), factors, number, inner=inner)


def times(
    side: Picked, other: Value, to: Mapping[int, int], *, leaks: bool, negated: bool = False
) -> Picked:
    """What is picked, multiplied by an array."""
    number = uniform(other)
    if number is not None and np.isfinite(number) and not negated:
        return replace(side, number=side.number * number)
    factor = replace(_factor(other, to, leaks, negated), outside=side.inner_axes)
    return replace(side, factors=(*side.factors, factor))


def _factor(array: Value, to: Mapping[int, int], leaks: bool, negated: bool = False) -> Factor:
    root, axes = _laid(array)
    return Factor(Source(root, tuple(to[d] for d in axes)), leaks, negated)


def _laid(array: Value) -> tuple[Value, tuple[int, ...]]:
    """The array that a value is a broadcast of, or has the axes of in another order or without such
    of one element; and its axes that are longer.
    """
    root, axes = spread(array)
    long = tuple(d for d, n in enumerate(root.shape) if n != 1)
    if root.op is not None and root.op.name in _RELAID:
        below, its = _laid(root.op.operands[0])
        to = AXES_MOVED[root.op.name](root.op)
        if to.keys() >= {*its}:
            return below, tuple(axes[to[d]] for d in its)
    return root, tuple(axes[d] for d in long)


def may_be_infinite(array: Value) -> bool:
    """Whether zero times a number of an array may be NaN."""
    return not (dtypes.is_integral(array.dtype) or array.dtype == bool or is_finite(array))


def _chosen(found: Chosen | None, array: Value) -> Picked | None:
    """What is chosen by a mask along one axis."""
    if found is None:
        return None
    mask = found.mask
    here = uniform(found.here) if isinstance(found.here, Value) else found.here
    place = Place(mask.axis, Source(mask.number, mask.rows), mask.offset)
    places = (*_where_in_range(mask, array.shape[mask.axis]), place)
    alone = Picked(places, (), 1 if here is None else here, found.elsewhere)
    if here is not None:
        return alone
    same = dict(enumerate(range(len(array.shape))))
    return replace(alone, factors=(_factor(found.here, same, leaks=False),))


def _where_in_range(mask: OneHot, size: int) -> tuple[Place, ...]:
    """The places along other axes at which alone the number of a mask is one of so many places."""
    found = _but_at(mask.number)
    # Condition 1 of read-one-hot-rows.
    if found is None or 0 <= found[1] - mask.offset < size:
        return ()
    return tuple(
        replace(p, axis=mask.rows[p.axis], number=p.number.moved(dict(enumerate(mask.rows))))
        for p in found[0]
    )


def _but_at(number: Value) -> tuple[tuple[Place, ...], int] | None:
    """The places but at which an array of integers is always the same one, and that."""
    if not dtypes.is_integer(number.dtype):
        return None
    found = picked(number)
    if found is not None and not found.inner and not _is_chained(found):
        return found.places, int(found.elsewhere)
    op = number.op
    if op is None or op.name not in (*_SHIFTING, "select_n"):
        return None
    sides = op.operands[1:] if op.name == "select_n" else op.operands
    numbers = [uniform(v) for v in sides]
    # Condition 1 of read-one-hot-rows.
    if len(sides) != 2 or sum(each is None for each in numbers) != 1:
        return None
    known = int(next(each for each in numbers if each is not None))
    inside = _but_at(sides[numbers.index(None)])
    if inside is None or (op.name == "sub" and numbers[1] is None):
        return None
    places, elsewhere = inside
    if op.name == "select_n":
        # Condition 1 of read-one-hot-rows.
        return (places, elsewhere) if elsewhere == known else None
    shifted = _SHIFTING[op.name](elsewhere, known)
    return (places, shifted) if dtypes.holds(number.dtype, shifted) else None


def _is_chained(found: Picked) -> bool:
    return any(found.axes & {*p.number.axes} for p in found.places)


def _streamed(stacked: Picked | None, loop: Scan) -> Picked | None:
    """A row of what is picked, in each step of a loop."""
    # Condition 1 of read-one-hot-rows.
    if stacked is None or 0 in stacked.axes or any(s.loop is not None for s in stacked.sources):
        return None

    def row(source: Source) -> Source:
        axes = tuple(d - (d > 0) for d in source.axes if d)
        if len(axes) == len(source.axes):
            return Source(source.value, axes)
        long = [d for d, n in enumerate(source.value.shape) if n != 1]
        return Source(source.value, axes, loop, long[source.axes.index(0)])

    places = (replace(p, axis=p.axis - 1, number=row(p.number)) for p in stacked.places)
    factors = (replace(f, source=row(f.source)) for f in stacked.factors)
    return replace(stacked, places=tuple(places), factors=tuple(factors))


def _multiplied(op: Op) -> Picked | None:
    same = [dict(enumerate(range(len(v.shape)))) for v in op.operands]
    return _product(op, same)


def _products(op: Op) -> Picked | None:
    """Of a product that sums up along no axis of places."""
    found, shape = product_of_factors(op)
    if found is None or any(v.dtype != op.result.dtype for v in op.operands):
        return None
    kept = len(op.result.shape)
    return found.summed(dict(enumerate(shape[kept:], kept)))


def _sum(op: Op) -> Picked | None:
    (array,) = op.operands
    found = picked(array)
    if found is None or array.dtype != op.result.dtype:
        return None
    return found.summed({d: array.shape[d] for d in sorted(axes_of(op))})


def _selected(op: Op) -> Picked | None:
    """Zero where truth values say so, else what is picked."""
    if len(op.operands) != 3:
        return None
    which, *cases = op.operands
    zeros = [uniform(case) == 0 for case in cases]
    if which.dtype != bool or sum(zeros) != 1:
        return None
    case = cases[zeros.index(False)]
    same = dict(enumerate(range(len(case.shape))))
    found, by = picked(case), picked(which) if zeros[0] else None
    # Condition 3 of read-one-hot-rows.
    if found is not None and found.elsewhere == 0 and not any(f.leaks for f in found.factors):
        whole = {d: d for d in same} if which.shape == case.shape else {}
        return times(found, which, whole, leaks=False, negated=zeros[1])
    if by is None or by.elsewhere != 0:
        return None
    return times(by, case, same, leaks=False)


def _converted(op: Op) -> Picked | None:
    """Of truth values, or of numbers that no factor multiplies."""
    (array,), dtype = op.operands, op.result.dtype
    found = picked(array) if dtypes.is_array(dtype) else None
    # Condition 1 of read-one-hot-rows.
    if found is None or (found.factors and array.dtype != bool):
        return None
    number, elsewhere = (
        dtypes.converted(np.asarray(each, array.dtype), dtype)[()]
        for each in (found.number, found.elsewhere)
    )
    return replace(found, number=number, elsewhere=elsewhere)


def _moved(op: Op) -> Picked | None:
    found = picked(op.operands[0])
    return None if found is None else found.moved(AXES_MOVED[op.name](op))


def _unit_rows(op: Op) -> Picked | None:
    """Rows of a unit matrix, ``jnp.eye(n)[ids]``."""
    table, ids = op.operands
    numbers, rows = numbers_of(op), len(ids.shape) - 1
    is_row = numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
    is_last = numbers.offset_dims == (rows,) and slice_sizes_of(op) == (1, table.shape[-1])
    offset = _diagonal(table)
    # Condition 1 of read-one-hot-rows.
    if offset is None or not (is_row and is_last and mode_of(op) in CLAMPS):
        return None
    axes = tuple(d for d in range(rows) if ids.shape[d] != 1)
    return Picked((Place(rows, Source(ids, axes), offset, table.shape[0] - 1),))


def _diagonal(table: Value) -> int | None:
    """Which diagonal of a matrix is one, and all else zero: ``table[i, i - d]``."""
    while table.op is not None and table.op.name == "convert_element_type":
        (table,) = table.op.operands
    if table.op is None or table.op.name != "eq" or len(table.shape) != 2:
        return None
    offsets = {}
    for each in map(affine, table.op.operands):
        if each is not None and not each.steps:
            offsets[each.strides] = each.offset
    # Condition 1 of read-one-hot-rows.
    return offsets[0, 1] - offsets[1, 0] if offsets.keys() == {(1, 0), (0, 1)} else None


_RELAID = AXES_MOVED.keys() - {"broadcast_in_dim"}

_SHIFTING: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
}

PICKING: Mapping[str, Callable[[Op], Picked | None]] = {
    "and": _multiplied,
    "convert_element_type": _converted,
    "dot_general": _products,
    "gather": _unit_rows,
    "mul": _multiplied,
    "reduce_sum": _sum,
    "select_n": _selected,
    **dict.fromkeys(AXES_MOVED, _moved),
}
"""Ops that make such an array of another."""
