"""Integers of a step that are known to fit into one byte, or into two."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from jaxpr_opt.analysis.residuals.cuts import residuals
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Scan, Stack, Value

_NARROW = tuple(map(jnp.dtype, (jnp.uint8, jnp.int8, jnp.uint16, jnp.int16)))


def narrowed(scan: Scan) -> Mapping[Stack, np.dtype]:
    """The stacks of integers that fit into fewer bytes, each with the type that takes these."""
    types = {stack: narrowest(stack.value) for stack in scan.stacks}
    return {
        stack: dtype
        for stack, dtype in types.items()
        # Condition 1 of stack-narrow-integers.
        if dtype is not None and routes(stack.result, nests=True)
    }


def narrow_bytes(value: Value, dtype: np.dtype) -> int:
    """The bytes of as many numbers of another type."""
    return int(value.size * dtype.itemsize)


@remembered
def narrowest(value: Value) -> np.dtype | None:
    """The type of fewest bytes for these integers; None if they have no narrower one."""
    known = bounds(value)
    for dtype in _NARROW if known is not None else ():
        least, most = dtypes.limits(dtype)
        # Condition 2 of stack-narrow-integers.
        if known and least <= known[0] and known[1] <= most:
            return dtype if dtype.itemsize < value.dtype.itemsize else None
    return None


@remembered
def narrow_beside(scan: Scan) -> Mapping[Value, int]:
    """Integers that residuals are made of, with the bytes that a step would store of each."""
    found = [value for _, value in residuals(scan, nests=True)]
    ops = backward_slice(found, lambda v: not scan.body.defines(v))
    made = (v for op in ops for v in op.results if v.region is scan.body)
    few: dict[Value, int] = {}
    for value in made:
        dtype = None if cost_model().is_hidden(value.nbytes) else narrowest(value)
        if dtype is not None:
            few[value] = narrow_bytes(value, dtype)
    return few
