"""Which case a select takes, given the case that a select around it takes.

`vmap` of a `cond` selects the operands of each branch by ``index == branch``, and the results by
``index``.
"""

from __future__ import annotations

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of
from jaxpr_opt.ir.graph import Op, Value


def spread(array: Value) -> tuple[Value, tuple[int, ...]]:
    """The array that a value is a broadcast of, and the axis of the value that each axis of the
    array is.
    """
    axes = tuple(range(len(array.shape)))
    while array.op is not None:
        dims = _spread_dims(array.op)
        if dims is None:
            break
        axes, array = tuple(axes[d] for d in dims), array.op.operands[0]
    return array, axes


def _spread_dims(op: Op) -> tuple[int, ...] | None:
    """Which axis of its result each axis of its operand is, if an op only repeats its elements."""
    if op.name == "broadcast_in_dim":
        return broadcast_dimensions_of(op)
    if op.name != "reshape":
        return None
    shape = op.result.shape
    dims = tuple(d for d, n in enumerate(shape) if n != 1)
    return dims if tuple(shape[d] for d in dims) == op.operands[0].shape else None


def case_within(select: Op, which: Value, case: int, count: int) -> int | None:
    """The case that a select takes wherever `which` says one of the `count` cases of another; None
    if that is not known.
    """
    own, alike = select.operands[0], len(select.operands) - 1 == count
    (root, axes), (other, others) = spread(own), spread(which)
    # Condition 1 of sink-select-into-update.
    if axes != others:
        return None
    if root is other:
        # Condition 1 of sink-select-into-update.
        return case if alike else None
    test = root.op
    # Condition 1 of sink-select-into-update.
    if test is None or test.name != "eq" or test.operands[0] is not other:
        return None
    number, known = uniform(test.operands[1]), bounds(other)
    # Condition 1 of sink-select-into-update.
    in_range = known is not None and known[0] >= 0 and known[1] < count
    return int(number == case) if in_range and number is not None else None
