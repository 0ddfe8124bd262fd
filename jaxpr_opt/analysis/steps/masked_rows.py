"""Streams whose rows are zeros in skipped steps, because a mask outside of the loop made them so.

::

    h_n, hs = scan[n] carry(h=h_0) xs(t=iota) { p = lt t length; h1 = where p step(h) h; ... }
    out = sum(where(iota < length, hs, 0))

The transposed loop skips by ``lt t length``, and adds rows of ``where(iota < length, ct, 0)`` to
the cotangent of the state.  Row `t` of the mask is computed by the same ops as the predicate of
step `t`, so what a skipped step adds is zero.  Ops on the way may move axes and repeat elements, if
they keep rows apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.steps.assume import is_finite
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.constants import identity, uniform
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, LAYING, REARRANGING, VIEWING

_MIRRORED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}
"""Comparisons of the same numbers the other way round."""
_SUMS = frozenset({"add", "add_any", "sub"})
_LINEAR = {
    **dict.fromkeys(("convert_element_type", "div", "neg", "reduce_sum"), 1),
    **dict.fromkeys(("mul", *_SUMS), 2),
}
"""Ops that make zeros of zeros, with how many operands these may be one of; of sums, all."""
_Chosen = tuple[Value, int, tuple[Any, Any]]
"""A mask, the axis of its rows, and what all numbers of a row are where it is false, or true."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What rows of a stream are, by a mask of as many rows."""

    param: Value
    mask: Value
    axis: int
    """What the rows of the mask are along."""
    cases: tuple[Any, Any]
    """What all numbers of a row are where the mask's row is false, or true; None if unknown."""


def facts_of(scan: Scan, predicate: Value, truth: bool) -> Mapping[Value, bool | Splat]:
    """What is known of values of a step whose predicate is `truth`, for each row of a batch: the
    predicate, and rows of streams.
    """
    facts: dict[Value, bool | Splat] = {}
    for each in _masks(scan):
        way = agrees(predicate, each.mask, each.axis, scan)
        # Condition 14 of exit-loop-early.
        number = None if way is None else each.cases[truth == way]
        if number is not None:
            facts[each.param] = Splat(np.asarray(number, each.param.dtype)[()])
    return facts | {predicate: truth}


def agrees(predicate: Value, mask: Value, axis: int, scan: Scan) -> bool | None:
    """Whether all that is in a row of a mask is in the predicate of that step (True), or the
    opposite of it is (False); None if neither is known.
    """
    same, at = True, axis
    while (op := mask.op) is not None and (op.name in LAYING or op.name == "not"):
        found = axis_of_operand(op, 0, at)
        if found is None:
            return None
        mask, at, same = op.operands[0], found, same != (op.name == "not")
    while (op := predicate.op) is not None and (op.name in LAYING or op.name == "not"):
        predicate, same = op.operands[0], same != (op.name == "not")
    return same if _is_row(predicate, mask, at, scan) else None


@remembered
def _masks(scan: Scan) -> tuple[_Mask, ...]:
    """The masks by which rows of streams are numbers, not too many; last those streamed as such."""
    linear, truths = carries_cotangents(scan), [s for s in scan.streams if s.param.dtype == bool]
    numbers = (s for s in scan.streams if s.param.dtype != bool)
    made = (_Mask(s.param, *each) for s in numbers for each in _selects(s.operand, 0, linear))
    told = (_Mask(s.param, s.operand, 0, (False, True)) for s in truths)
    return tuple(islice(chain(made, told), limits.MASKS_OF_A_LOOP))


@remembered
def _selects(array: Value, axis: int | None, linear: bool) -> tuple[_Chosen, ...]:
    """The masks by which a select makes rows of an array numbers, that are then moved; of
    cotangents, zeros, whose sign does not matter. Not too many.
    """
    op = array.op
    if op is None or axis is None:
        return ()
    if op.name == "select_n" and op.operands[0].dtype == bool:
        mask, *cases = op.operands
        at, numbers = axis_of_operand(op, 0, axis), (uniform(cases[0]), uniform(cases[1]))
        return () if at is None or numbers == (None, None) else ((mask, at, numbers),)
    if op.name in VIEWING or op.name in REARRANGING:
        return _selects(op.operands[0], axis_of_operand(op, 0, axis), linear)
    if not linear:
        return ()
    found = [
        tuple(zeros_of(operand, axis_of_operand(op, place, axis)))
        for place, operand in enumerate(op.operands[: _LINEAR.get(op.name, 0)])
        if _stays_zero(op, place)
    ]
    together = op.name in _SUMS
    every = dict.fromkeys(found[0] if together else chain(*found))
    kept = (each for each in every if not together or all(each in others for others in found))
    return tuple(islice(kept, limits.MASKS_OF_A_LOOP))


def zeros_of(array: Value, axis: int | None) -> Iterator[_Chosen]:
    """The masks by which rows of cotangents are zeros."""
    for mask, at, (no, yes) in _selects(array, axis, True):
        zeros = 0 if no == 0 else None, 0 if yes == 0 else None
        if zeros != (None, None):
            yield mask, at, zeros


def _stays_zero(op: Op, place: int) -> bool:
    """Whether an op makes zeros of zeros, whatever else it reads: a factor is finite, a divisor is
    not zero.
    """
    # Condition 14 of exit-loop-early.
    if op.name not in ("mul", "div"):
        return True
    other = op.operands[1 - place]
    number = uniform(other)
    if op.name == "div" and (number is None or number == 0):
        return False
    return is_finite(other if number is None else Splat(number))


def _is_row(inner: Value, outer: Value, axis: int | None, scan: Scan, depth: int = 0) -> bool:
    """Whether a value of each step is the row of an array, along an axis, of that number, or all of
    one that is the same in each step; apart from axes of one element.
    """
    while (found := _reshaped(outer, axis)) is not None:
        outer, axis = found
    while (found := _reshaped(inner, None)) is not None:
        inner, _ = found
    if inner.dtype != outer.dtype or depth > limits.LEVELS_OF_A_PREDICATE:
        return False
    number = uniform(inner)
    if number is not None:
        return bool(uniform(outer) == number)
    if axis is None and not scan.body.defines(inner):
        return identity(inner) == identity(outer)
    if _many(inner.shape) != _many(outer.shape, axis):
        return False
    stream, op, made = scan.stream_of(inner), outer.op, inner.op
    if stream is not None:
        return axis == 0 and _is_stream(stream.operand, outer, depth)
    if op is None:
        return False
    if op.name == "broadcast_in_dim":
        return _is_row_of_broadcast(inner, op, axis, scan, depth)
    pairs = _computed_alike(made, op) if made is not None else None
    return pairs is not None and all(
        _is_row(mine, other, axis if other.shape else None, scan, depth + 1)
        for mine, other in pairs
    )


def _computed_alike(one: Op, other: Op) -> list[tuple[Value, Value]] | None:
    """The operands of two ops that compute each element alike, beside each other; None if these are
    others.
    """
    operands = other.operands
    if one.name != other.name:
        operands = operands[::-1] if _MIRRORED.get(one.name) == other.name else ()
    if one.name not in ELEMENTWISE or one.params != other.params or not operands:
        return None
    return [*zip(one.operands, operands, strict=True)]


def _reshaped(value: Value, axis: int | None) -> tuple[Value, int | None] | None:
    """What a value is but for axes of one element, with the axis there."""
    op = value.op
    if op is None or op.name not in LAYING or _many(op.operands[0].shape) != _many(value.shape):
        return None
    at = axis if axis is None else axis_of_operand(op, 0, axis)
    return None if (at is None) != (axis is None) else (op.operands[0], at)


def _many(shape: Sequence[int], axis: int | None = None) -> tuple[int, ...]:
    """The sizes of axes of several elements, of all but one."""
    return tuple(n for a, n in enumerate(shape) if n != 1 and a != axis)


def _is_stream(streamed: Value, outer: Value, depth: int) -> bool:
    """Whether an array is the same as one that a loop streams: of two of which one is stacked, what
    is stacked is the row of the other.
    """
    if identity(streamed) == identity(outer):
        return True
    for one, other in ((streamed, outer), (outer, streamed)):
        scan = one.op
        if isinstance(scan, Scan) and (stack := scan.stack_of(one)) is not None:
            return _is_row(stack.value, other, 0, scan, depth + 1)
    return _are_numbers(streamed, outer)


def _are_numbers(array: Value, other: Value) -> bool:
    """Whether both number the same elements in the same way."""
    one, two = array.op, other.op
    if one is None or two is None or not one.name == two.name == "iota":
        return False
    return bool(one.params == two.params)


def _is_row_of_broadcast(inner: Value, op: Op, axis: int | None, scan: Scan, depth: int) -> bool:
    """The same of an array whose elements are repeated: within a row as in the step's value."""
    repeated, made = _repeated(op, axis), inner.op
    if made is not None and made.name == "broadcast_in_dim" and scan.body.defines(inner):
        if _repeated(made, None) != repeated:
            return False
        inner = made.operands[0]
    elif any(repeated):
        return False
    at = None if axis is None else axis_of_operand(op, 0, axis)
    return _is_row(inner, op.operands[0], at, scan, depth + 1)


def _repeated(op: Op, axis: int | None) -> list[bool]:
    """Along which axes of several elements, but one, elements are repeated."""
    source, dims = op.operands[0].shape, list(broadcast_dimensions_of(op))
    return [
        d not in dims or source[dims.index(d)] == 1
        for d, n in enumerate(op.result.shape)
        if n != 1 and d != axis
    ]
