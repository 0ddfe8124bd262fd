"""Arguments of floats that may be masks: some of their numbers are zero, or so it seems."""

from __future__ import annotations

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.graph import Graph, Scan, Value
from jaxpr_opt.ir.traits import VIEWING


def may_be_a_mask(array: Value, masked: int) -> bool:
    """Whether floats are those of an argument, moved, and fewer than so many elements that they
    would mask: a number for each of them is rather a weight.
    """
    is_small = array.size < masked and dtypes.is_inexact(array.dtype)
    return is_small and uniform(array) is None and _is_given(array)


def _is_given(array: Value) -> bool:
    """Whether an array is an argument, or rows of one, moved, which a loop may have read and
    stacked.
    """
    while True:
        op = array.op
        owner = array.region.owner if op is None and array.region is not None else op
        if owner is None or isinstance(owner, Graph):
            return True
        if isinstance(owner, Scan) and (stack := owner.stack_of(array)) is not None:
            array = stack.value
        elif isinstance(owner, Scan) and (stream := owner.stream_of(array)) is not None:
            array = stream.operand
        elif op is not None and op.name in VIEWING:
            array = op.operands[0]
        else:
            return False
