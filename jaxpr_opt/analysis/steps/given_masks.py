"""Floats that may be masks: few, of arguments or truth values, some of which may be zero."""

from __future__ import annotations

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.flags import is_flag
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.dataflow import other_side, source_through
from jaxpr_opt.ir.graph import Graph, Value
from jaxpr_opt.ir.traits import VIEWING


def may_be_a_mask(array: Value, masked: int) -> bool:
    """Whether floats are those of an argument, moved, or zeros and ones, and fewer than so many
    elements that they would mask: a number for each of them is rather a weight.
    """
    is_small = array.size < masked and dtypes.is_inexact(array.dtype)
    return is_small and uniform(array) is None and (_is_given(array) or is_flag(array))


def _is_given(array: Value) -> bool:
    """Whether an array is an argument, or rows of one, moved, which a loop may have read and
    stacked.
    """
    source: Value | None = array
    while source is not None:
        array = source_through(source, lambda op: op.name in VIEWING)
        source = other_side(array)
    return array.op is None and (array.region is None or isinstance(array.region.owner, Graph))
