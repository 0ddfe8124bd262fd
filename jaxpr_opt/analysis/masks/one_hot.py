"""Masks that are true at one place along an axis, and arrays that are one number but for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.float_bounds import is_finite
from jaxpr_opt.analysis.values.induction import affine, bounds
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, broadcast_dimensions_of, permutation_of
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import COMBINING

KEEPING = {
    "add": "add", "add_any": "add", "and": "and", "div": "mul", "max": "max", "min": "min",
    "mul": "mul", "or": "or", "sub": "add",
}  # fmt: skip
"""Ops that leave their first operand as it is if the second is the neutral element of this op."""

ONE_WAY = frozenset({"div", "sub"})
"""Those of them whose operands do not change places."""

REDUCTIONS = {
    name: COMBINING[name] for name in ("reduce_max", "reduce_min", "reduce_or", "reduce_sum")
}
"""Reductions by such an op."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """A mask that is true (or false, if `negated`) where the place along `axis`, counted from
    `offset`, is `number`.
    """

    axis: int
    offset: int
    number: Value
    rows: tuple[int, ...]
    """For each axis of the number, which axis of the mask it is."""
    negated: bool

    def is_in_range(self, places: int) -> bool:
        """Whether the number is always one of so many places."""
        known = bounds(self.number)
        assert known is not None  # of integers something is known
        # Condition 2 of recognize-one-hot.
        return known[0] >= self.offset and known[1] < self.offset + places


@dataclass(frozen=True, slots=True)
class Chosen:
    """An array that is one number but for the place of a mask, where it is as another array, or
    another number.
    """

    mask: OneHot
    here: Any
    elsewhere: Any


def one_hot(predicate: Value) -> OneHot | None:
    """The one place where a mask is true, or false (1)."""
    root, axes = spread(predicate)
    op = root.op
    # Condition 1 of recognize-one-hot.
    if op is None or op.name not in ("eq", "ne"):
        return None
    for places, number in (op.operands, op.operands[::-1]):
        counted = affine(places) if places.shape else None
        source, rows = spread(number)
        # Condition 1 of recognize-one-hot.
        if counted is None or counted.steps or 1 in source.shape:
            continue
        along = [d for d, n in enumerate(places.shape) if counted.strides[d] and n > 1]
        # Condition 1 of recognize-one-hot.
        if len(along) == 1 and counted.strides[along[0]] == 1 and along[0] not in rows:
            rows = tuple(axes[d] for d in rows)
            return OneHot(axes[along[0]], counted.offset, source, rows, op.name == "ne")
    return None


@remembered
def chosen(array: Value) -> Chosen | None:
    """How an array is one number but for one place along an axis; None if it is not."""
    mask = one_hot(array) if array.dtype == bool else None
    if mask is not None:
        return Chosen(mask, not mask.negated, mask.negated)
    rule = None if array.op is None else _RULES.get(array.op.name)
    return rule(array.op) if rule is not None and array.op is not None else None


def selected(op: Op) -> tuple[OneHot, Value, Value] | None:
    """The mask of a select, the array that it takes elsewhere, and that which it takes there."""
    mask = one_hot(op.operands[0]) if len(op.operands) == 3 else None
    if mask is None:
        return None
    kept, new = op.operands[2:0:-1] if mask.negated else op.operands[1:]
    return mask, kept, new


def changed(op: Op) -> tuple[Value, Chosen] | None:
    """The array that an elementwise op changes at one place, and what it combines it with there."""
    if op.name not in KEEPING:
        return None
    for kept, other in (op.operands, op.operands[::-1]):
        at = chosen(other) if kept.shape == other.shape and uniform(kept) is None else None
        # Condition 4 of recognize-one-hot.
        if at is not None and is_neutral(KEEPING[op.name], at.elsewhere, kept):
            return kept, at
        # Condition 4 of recognize-one-hot.
        if op.name in ONE_WAY:
            break
    return None


def reduced(op: Op) -> Chosen | None:
    """The one element along the axis that a reduction reads, if all others change nothing."""
    at = chosen(op.operands[0])
    # Condition 3 of recognize-one-hot.
    if at is None or axes_of(op) != (at.mask.axis,):
        return None
    # Condition 3 of recognize-one-hot.
    return at if is_neutral(REDUCTIONS[op.name], at.elsewhere, op.operands[0]) else None


def is_neutral(combine: str, number: Any, array: Value) -> bool:
    """Whether combining an array with a number changes nothing."""
    if combine in ("and", "or"):
        return array.dtype == bool and bool(number) == (combine == "and")
    neutral = dtypes.neutral(array.dtype, combine)
    return neutral is not None and bool(number == neutral)


def _selected(op: Op) -> Chosen | None:
    found = selected(op)
    number = None if found is None else uniform(found[1])
    return None if found is None or number is None else Chosen(found[0], found[2], number)


def _converted(op: Op) -> Chosen | None:
    found = chosen(op.operands[0]) if dtypes.is_array(op.result.dtype) else None
    if found is None or isinstance(found.here, Value):
        return None
    here, elsewhere = (
        dtypes.converted(np.asarray(number, op.operands[0].dtype), op.result.dtype)[()]
        for number in (found.here, found.elsewhere)
    )
    return replace(found, here=here, elsewhere=elsewhere)


def _moved(op: Op) -> Chosen | None:
    """The same of an op that moves axes."""
    to = AXES_MOVED[op.name](op)
    found = chosen(op.operands[0])
    if found is None or isinstance(found.here, Value):
        return None
    axes = found.mask.axis, *found.mask.rows
    if not to.keys() >= {*axes}:
        return None
    axis, *rows = (to[d] for d in axes)
    return replace(found, mask=replace(found.mask, axis=axis, rows=tuple(rows)))


def _broadcast(op: Op) -> dict[int, int]:
    return dict(enumerate(broadcast_dimensions_of(op)))


def _reshaped(op: Op) -> dict[int, int]:
    """Without axes of one element, or with more of them."""
    values = op.operands[0], op.result
    old, new = ([(n, d) for d, n in enumerate(v.shape) if n != 1] for v in values)
    is_same = [n for n, _ in old] == [n for n, _ in new]
    pairs = zip(old, new, strict=True) if is_same else ()
    return {before: after for (_, before), (_, after) in pairs}


def _transposed(op: Op) -> dict[int, int]:
    return {before: after for after, before in enumerate(permutation_of(op))}


AXES_MOVED: Mapping[str, Callable[[Op], dict[int, int]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "transpose": _transposed,
}
"""Which axes of its result those of its operand are, of ops that move axes."""


def _computed(op: Op) -> Chosen | None:
    for place, operand in enumerate(op.operands):
        found, other = chosen(operand), op.operands[1 - place]
        if found is None or isinstance(found.here, Value):
            continue
        number, made = uniform(other), op.result.dtype
        if number is not None:
            order = slice(None, None, -1 if place else 1)
            with np.errstate(all="ignore"):
                here, elsewhere = (
                    _NUMPY[op.name](*np.asarray([each, number], made)[order])
                    for each in (found.here, found.elsewhere)
                )
            return replace(found, here=here, elsewhere=elsewhere)
        # Condition 4 of recognize-one-hot.
        if op.name in ("mul", "and") and _are(found, 1, 0) and _keeps_zeros(other):
            return replace(found, here=other, elsewhere=made.type(0))
    return None


def _keeps_zeros(factor: Value) -> bool:
    return dtypes.is_integral(factor.dtype) or is_finite(factor)


def _are(found: Chosen, here: int, elsewhere: int) -> bool:
    return bool(found.here == here and found.elsewhere == elsewhere)


_NUMPY: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "mul": np.multiply,
    "sub": np.subtract,
}
_RULES: Mapping[str, Callable[[Op], Chosen | None]] = {
    "convert_element_type": _converted,
    "select_n": _selected,
    **dict.fromkeys(AXES_MOVED.keys() - {"squeeze"}, _moved),
    **dict.fromkeys(_NUMPY, _computed),
}
