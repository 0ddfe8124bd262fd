"""Which ops may write into an existing buffer, and which need a copy of it first.

A buffer may be overwritten once nothing needs its old contents. XLA decides that before it orders
ops, so every other read must be known to be finished: the write must depend on what it computes. A
read that the write does not depend on costs a copy of the whole array (jax#17845)::

    x = xs[i]; xs = xs.at[i].set(0)            # copied in every step
    x = xs[i]; xs = xs.at[i].set(sin(x))       # in place

An optimization barrier makes the write depend on all that goes through it.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxpr_opt.cost.layouts import is_made_transposed
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Call, Cond, Constant, Op, Remat, Use, Value
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.traits import BARRIER, RESHAPING

VIEWS = RESHAPING | {"bitcast_convert_type", "name", BARRIER}
"""Every result is an operand's buffer, perhaps under another type."""


def takes_over(use: Use, end: Op | None = None) -> bool:
    """Whether an op may write a result into the buffer of an operand.

    A terminator hands it on to its op.  Arguments stay the caller's, and what a loop's step finds
    outside of the loop stays for the next step.  An op that becomes part of a later one, `end`,
    waits for all that one waits for.
    """
    value = buffer_of(use.op.operands[use.position])
    if isinstance(value, Constant) or not _reaches(use.op, value):
        return False
    others = (each for each in uses_of(value) if each != use and each.op is not end)
    return all(_is_done(each.op, end or use.op) for each in others) and _is_owned(value)


def buffer_of(value: Value) -> Value:
    """The value whose buffer this one is a view of; itself if it is no view."""
    while value.op is not None and is_view(value.op):
        value = value.op.operands[value.position]
    return value


def views_of(value: Value) -> Iterator[Value]:
    """A value, and its views."""
    pending = [value]
    for each in pending:
        yield each
        pending += [use.op.results[use.position] for use in each.uses if is_view(use.op)]


def uses_of(value: Value) -> Iterator[Use]:
    """The uses of a buffer, as whatever view."""
    return (use for each in views_of(value) for use in each.uses if not is_view(use.op))


def is_view(op: Op) -> bool:
    """Whether an op's results need no buffers of their own."""
    if op.name == "convert_element_type":  # of the weak type only
        return bool(op.operands[0].dtype == op.result.dtype)
    if op.name == "transpose":
        return is_made_transposed(op)
    return op.name in VIEWS


def _is_owned(value: Value) -> bool:
    """Whether a value is the program's: made by it, a row of a stream, a carry of a loop.

    A call may have what the caller may.
    """
    if value.op is not None:
        return True
    region = value.region
    assert region is not None
    if isinstance(region.owner, Call):
        return takes_over(Use(region.owner, value.position))
    return isinstance(region.owner, Op)


def _reaches(op: Op, value: Value) -> bool:
    """Whether the op runs at most once for each time that the value is made."""
    while op.region is not value.region:
        if not isinstance(op.parent, Cond | Remat):
            return False
        op = op.parent
    return True


def _is_done(reader: Op, writer: Op) -> bool:
    """Whether a read is known to be over when `writer` runs, or not to happen if it does."""
    around = {op.region: op for op in with_parents(writer)}
    inner = next((op for op in with_parents(reader) if op.region in around), None)
    if inner is None:
        return False
    outer = around[inner.region]
    if inner is outer:
        return isinstance(inner, Cond) and inner is not writer  # in another branch
    return _needs(outer, inner)


def _needs(op: Op, earlier: Op) -> bool:
    """Whether an op needs what another one of the same region computes."""
    region = earlier.region
    assert region is not None
    start = region.order(earlier)
    pending, seen = [op], {op}
    while pending:
        each = pending.pop()
        for value in inputs(each):
            maker = value.op
            if maker is earlier:
                return True
            if maker is None or maker in seen or maker.region is not region:
                continue
            if region.order(maker) > start:
                seen.add(maker)
                pending.append(maker)
    return False
