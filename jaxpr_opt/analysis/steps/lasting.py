"""Whether all steps after a skipped step are skipped, though the predicate also reads a counter.

Examples are ``(step == 0) | (error > bound)``, ``(step < 10) | (error > bound)`` and
``errors[step - 1] > bound``.  In a skipped step each is false.  In the next step it is again: the
counter is not 0 after the first step, and not below 10 again; skipped steps keep the error; and a
row that only a taken step writes is still what the array began with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import (
    affine,
    after_first_step,
    decide_after_first_step,
)
from jaxpr_opt.analysis.values.intervals import COMPARED_WITH_ZERO
from jaxpr_opt.analysis.values.truths import implied
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes
from jaxpr_opt.bridge.parameters import has_numbers
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.graph import Cond, Op, Scan, Value

_GROWS = {
    ("lt", False): 1,
    ("le", False): 1,
    ("gt", True): 1,
    ("ge", True): 1,
    ("lt", True): -1,
    ("le", True): -1,
    ("gt", False): -1,
    ("ge", False): -1,
}
"""In which direction the difference of two numbers may go for a comparison to stay as it is."""


def lasts(skip: Skip) -> bool:
    """Whether only skipped steps follow a step that is skipped by a mixed predicate."""
    scan = skip.scan
    # Condition 1 of remember-the-end.
    if scan.reverse:
        return False
    facts: dict[Value, bool | Splat] = {
        value: truth
        for value, truth in implied(skip.predicate, not skip.taken_when).items()
        if _stays(skip, value, truth)
    }
    for op in skip.slice:
        if op.name in COMPARED_WITH_ZERO and op.result not in facts:
            known = decide_after_first_step(op.result, scan)
            if known is not None:
                facts[op.result] = known
        number = _unwritten(skip, op)
        if number is not None:
            facts[op.result] = number
    found = Assumed(scan.body, facts)[skip.predicate]
    # Condition 1 of remember-the-end.
    return isinstance(found, Splat) and bool(found.value) != skip.taken_when


def _stays(skip: Skip, value: Value, truth: bool) -> bool:
    """Whether a truth value of a skipped step is the same in the next one."""
    if _is_kept(skip, value):
        return True
    # Condition 1 of remember-the-end.
    return value.op is not None and keeps_truth(value.op, truth, partial(_slope, skip))


def keeps_truth(op: Op, truth: bool, slope: Callable[[Value], int | None]) -> bool:
    """Whether a comparison with this truth value has it again after numbers have grown by their
    slopes; None is an unknown one.
    """
    grows = _GROWS.get((op.name, truth))
    if grows is None:
        return False
    left, right = map(slope, op.operands)
    return left is not None and right is not None and grows * (left - right) >= 0


def _slope(skip: Skip, value: Value) -> int | None:
    """By how much a value grows from a skipped step to the next."""
    found = affine(value)
    if found is not None:
        return found.steps.get(skip.scan, 0)
    return 0 if _is_kept(skip, value) else None


def _is_kept(skip: Skip, value: Value) -> bool:
    """Whether a value is made of outer ones, and of carries that a skipped step keeps."""
    scan = skip.scan
    ops = backward_slice([value], lambda v: v.region is not scan.body)
    reads = {v for op in ops for v in inputs(op)} | {value}
    kept = {carry.param for carry in skip.kept}
    return all(v in kept for v in reads if v.owner is scan.body)


def _unwritten(skip: Skip, op: Op) -> Splat | None:
    """The number that a carried array began with, if in the next step an op reads rows of it that
    only a step that was taken could have written.
    """
    read = access(op)
    if read is None or read.kind != "read":
        return None
    carry = next((c for c in skip.kept if c.param is read.array), None)
    number = uniform(carry.init) if carry is not None else None
    writes = _writes(carry.next, carry.param) if carry is not None else None
    # Condition 1 of remember-the-end.
    if number is None or writes is None:
        return None
    if not all(_is_ahead(skip.scan, read, each) for each in writes):
        return None
    return Splat(np.asarray(number, read.array.dtype)[()])


def _writes(version: Value, begun: Value) -> list[Access] | None:
    """The writes that make a version of an array of that which a step begins with; None if
    something else does.
    """
    found: list[Access] = []
    pending = [version]
    for each in pending:  # each version once: it may be a case of several selects
        op = each.op
        if each is begun:
            continue
        if isinstance(op, Cond):
            made_of = list(next(o.values for o in op.outcomes if o.result is each))
        elif op is not None and op.name == "select_n":
            made_of = list(op.operands[1:])
        else:
            write = access(op) if op is not None else None
            if write is None or write.kind == "read":
                return None
            found.append(write)
            made_of = [write.array]
        pending += [v for v in dict.fromkeys(made_of) if v not in pending]
    return found


def _is_ahead(scan: Scan, read: Access, write: Access) -> bool:
    """Whether the next step reads rows that no step up to this one writes, this one apart."""
    for axis, (extent, rows) in enumerate(zip(write.window, read.sizes, strict=True)):
        first = extent.start
        start = _start(scan, read, axis)
        if first is None or start is None:
            continue
        _, most = start.range(())
        # Condition 1 of remember-the-end.
        if first.steps.get(scan, 0) < extent.size:
            continue
        # Condition 1 of remember-the-end.
        if most + rows > read.array.shape[axis]:
            continue
        if (start - first).range(())[0] >= 0:  # no write is below 0
            return True
    return False


def _start(scan: Scan, read: Access, axis: int) -> Affine | None:
    """Where the next step reads along an axis."""
    if not has_numbers(read.op):
        if read.op.name != "dynamic_slice":
            return None
        return after_first_step(read.indices[axis], None, scan)
    if indexed_axes(read.op) != (axis,):
        return None
    (index,) = read.indices
    found = after_first_step(index, 0, scan)
    is_one = found is not None and not any(found.strides)
    return Affine(found.offset, (), found.steps) if found is not None and is_one else None
