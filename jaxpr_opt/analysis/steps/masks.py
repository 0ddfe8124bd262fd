"""Masks that are true in a prefix only: `mask[i, j, ...] = a*i + b*j + ... + offset < bound`.

The predicates of a loop that stops for good are such a mask, and so are their reshapes and strided
slices. `implies(q, p)` proves that wherever `q` is true, so is `p`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.flags import compared_with_zero
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import dimensions_of, starts_of, strides_of
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Constant, Op, Scan, Value


@dataclass(frozen=True, slots=True)
class Prefix:
    """`sum(coefficient * index) + offset < bound`, one non-negative coefficient a dimension."""

    bound: Value
    coefficients: tuple[int, ...]
    offset: int = 0


def prefix(mask: Value) -> Prefix | None:
    """A mask as a prefix, through moves that keep it one; None if it is not known to be."""
    op = mask.op
    rule = _RULES.get(op.name) if op is not None else None
    return rule(op) if rule is not None and op is not None else None


def implies(q: Prefix, p: Prefix) -> bool:
    """Whether `q` true at an index makes `p` true there. `p` may lack trailing axes of `q`."""
    padded = (*p.coefficients, *(0,) * (len(q.coefficients) - len(p.coefficients)))
    return (
        q.bound is p.bound
        and q.offset >= p.offset
        and all(b >= a for a, b in zip(padded, q.coefficients, strict=True))
    )


def tested_value(predicate: Value) -> Value | None:
    """The value that a predicate converts, or compares with 0; None if it does neither."""
    tested: Value | None = predicate
    while tested is not None and (op := tested.op) is not None:
        if op.name not in ("convert_element_type", "ne"):
            break
        tested = compared_with_zero(tested) if op.name == "ne" else op.operands[0]
    return tested


def steps_mask(skip: Skip, names: Mapping[Value, Value] | None = None) -> Prefix | None:
    """The predicate of a scan as a mask of its first rows: `row < bound`. `names` says what masks
    and bounds are called elsewhere.
    """
    predicate, scan, known = tested_value(skip.predicate), skip.scan, names or {}
    if predicate is None:
        return None
    op, stream = predicate.op, scan.stream_of(predicate)
    if stream is not None:
        mask = prefix(known.get(stream.operand, stream.operand))
        return replace(mask, bound=known.get(mask.bound, mask.bound)) if mask else None
    if op is None or op.name != "lt" or (row := scan.stream_of(op.operands[0])) is None:
        return None
    bound = op.operands[1]
    return None if scan.body.defines(bound) else _rows_below(row.operand, known.get(bound, bound))


def takes_as_many(skip: Skip, other: Skip) -> bool:
    """Whether a scan takes exactly the steps that another one, which stops for good, has taken and
    counted.
    """
    mask = first_rows(skip)
    counter = _counter(mask, skip.scan.length, other)
    # Condition 4 of undo-carried-writes.
    return counter is not None and _is_zero(counter.init) and mask is not None and not mask.offset


def takes_no_more(skip: Skip, other: Skip, names: Mapping[Value, Value] | None = None) -> bool:
    """Whether a scan takes no steps but those that another one, which stops for good, has taken:
    that may go on counting where loops before it have counted as many steps as they have, at most.
    `names` says what arrays beside the one are beside the other.
    """
    mask = first_rows(skip, names)
    counter = _counter(mask, skip.scan.length, other)
    if mask is None or counter is None:
        return False
    most = _most(counter.init)
    # Condition 2 of isolate-skipped-steps.
    return most is not None and most <= mask.offset


def _counter(mask: Prefix | None, length: int, other: Skip) -> Carry | None:
    """The carry of a stopping scan that counts the steps taken, if another scan of the same length
    compares its step numbers with that count.
    """
    scan = other.scan
    if mask is None or mask.coefficients != (1,) or scan.length != length:
        return None
    # Condition 4 of undo-carried-writes.
    if other.kind != "carried" or other.predicate.shape or scan.reverse:
        return None
    counter = next((c for c in scan.carries if c.result is mask.bound), None)
    return counter if counter is not None and _counts(counter, other) else None


@remembered
def _most(count: Value) -> int | None:
    """What a count of the steps of loops, one after the other, is at most; None if it is none."""
    if _is_zero(count):
        return 0
    scan = count.op
    if not isinstance(scan, Scan):
        return None
    counter = next((c for c in scan.carries if c.result is count), None)
    if counter is None or not _adds_one_at_most(counter):
        return None
    before = _most(counter.init)
    return None if before is None else before + scan.length


def _adds_one_at_most(counter: Carry) -> bool:
    """Whether a step adds a truth value to what it carries."""
    op = counter.next.op
    if op is None or op.name != "add" or counter.param not in op.operands:
        return False
    made = [v.op for v in op.operands if v is not counter.param]
    return [m.operands[0].dtype for m in made if m and m.name == "convert_element_type"] == [bool]


def _counts(counter: Carry, skip: Skip) -> bool:
    """Whether a step that is taken adds one to a carry, and one that is skipped adds nothing."""
    op, body = counter.next.op, skip.scan.body
    if op is None or op.name != "add" or counter.param not in op.operands:
        return False
    (added,) = [v for v in op.operands if v is not counter.param] or [counter.param]
    taken = Assumed(body, {skip.predicate: skip.taken_when})
    ways = taken[added], skip.skipped[added]
    # Condition 4 of undo-carried-writes.
    return [each.value for each in ways if isinstance(each, Splat)] == [1, 0]


def first_rows(skip: Skip, names: Mapping[Value, Value] | None = None) -> Prefix | None:
    """The mask of a scan that takes exactly its first rows: it says how many."""
    mask = steps_mask(skip, names) if skip.taken_when and skip.predicate.shape == () else None
    return (
        mask
        if mask is not None and len(mask.coefficients) == 1 and mask.coefficients[0] > 0
        else None
    )


def is_told(skip: Skip) -> bool:
    """Whether the number of a step, or one row of a stream, says whether the step is taken."""
    mask = first_rows(skip)
    is_numbered = mask is not None and mask.coefficients == (1,)
    is_row = skip.predicate.shape == () and skip.scan.stream_of(skip.predicate) is not None
    return is_numbered or is_row


def is_row_numbers(value: Value) -> bool:
    """Whether a 1-d value is `iota`: row `i` holds `i`, which its dtype can hold."""
    op = value.op
    if (
        op is None
        or op.name != "iota"
        or len(value.shape) != 1
        or not dtypes.is_integer(value.dtype)
    ):
        return False
    return dtypes.holds(value.dtype, value.shape[0] - 1)


def _is_zero(value: Value) -> bool:
    return isinstance(value, Constant) and bool(value.scalar == 0)


def _less_than(op: Op) -> Prefix | None:
    rows, bound = op.operands
    if bound.op is not None and bound.op.name == "broadcast_in_dim":
        bound = bound.op.operands[0]
    return _rows_below(rows, bound) if bound.shape == () else None


def _rows_below(rows: Value, bound: Value) -> Prefix | None:
    """The mask of the row numbers, or of some of them, that are below a bound."""
    if is_row_numbers(rows):
        return Prefix(bound, (1,))
    op = rows.op
    inner = _rows_below(op.operands[0], bound) if op is not None and op.name == "slice" else None
    return None if op is None or inner is None else _sliced(inner, op)


def _same(op: Op) -> Prefix | None:
    return prefix(op.operands[0])


def _nonzero(op: Op) -> Prefix | None:
    return prefix(op.operands[0]) if _is_zero(op.operands[1]) else None


def _reshape(op: Op) -> Prefix | None:
    inner, old, new = prefix(op.operands[0]), op.operands[0].shape, op.result.shape
    if inner is None or 0 in old:
        return None
    # Row-major merging of the old dimensions, then splitting into the new ones.
    merged = [(size, a) for size, a in zip(old, inner.coefficients, strict=True) if size != 1]
    for (_, outer), (size, a) in pairwise(merged):
        if outer != size * a:
            return None
    step = merged[-1][1] if merged else 0
    strides = [math.prod(new[d + 1 :]) for d in range(len(new))]
    return Prefix(inner.bound, tuple(step * stride for stride in strides), inner.offset)


def _slice(op: Op) -> Prefix | None:
    inner = prefix(op.operands[0])
    return None if inner is None else _sliced(inner, op)


def _sliced(inner: Prefix, op: Op) -> Prefix:
    """What a slice of a mask is, or of what the mask compares."""
    starts, strides = starts_of(op), strides_of(op)
    offset = sum(a * start for a, start in zip(inner.coefficients, starts, strict=True))
    coefficients = tuple(a * stride for a, stride in zip(inner.coefficients, strides, strict=True))
    return Prefix(inner.bound, coefficients, inner.offset + offset)


def _squeeze(op: Op) -> Prefix | None:
    inner, dropped = prefix(op.operands[0]), set(dimensions_of(op))
    if inner is None:
        return None
    return Prefix(
        inner.bound,
        tuple(a for d, a in enumerate(inner.coefficients) if d not in dropped),
        inner.offset,
    )


_RULES: dict[str, Callable[[Op], Prefix | None]] = {
    "convert_element_type": _same,
    "copy": _same,
    "lt": _less_than,
    "ne": _nonzero,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _squeeze,
}
