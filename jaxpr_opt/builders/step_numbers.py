"""Numbers that depend on the steps of the loops around an op."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.step_numbers import Numbers, numbers_at
from jaxpr_opt.builders.residual_transfer import streamed
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def number_of(affine: Affine, rw: Rewriter, *, before: Op) -> Value:
    """The value, an int32, of an affine function of the steps of the loops around an op."""
    terms = [(rw.step(scan, before=before), k) for scan, k in affine.steps.items()]

    def total(*steps: jax.Array) -> jax.Array:
        value: Any = np.int32(affine.offset)
        for step, (_, factor) in zip(steps, terms, strict=True):
            value = lax.add(lax.mul(step, np.int32(factor)), value)
        return jnp.asarray(value)

    return rw.insert(total, *(step for step, _ in terms), before=before)


def numbered(numbers: Numbers, scan: Scan, rw: Rewriter) -> Value:
    """The row of some int32s that a loop streams, one for each step."""
    for stream in scan.streams:
        known = numbers_at(stream.param, scan) if stream.param.dtype == np.int32 else None
        if known is not None and np.array_equal(known, numbers):
            return stream.param
    return streamed(_table(numbers, rw, before=scan), scan, rw)


def _table(numbers: Numbers, rw: Rewriter, *, before: Op) -> Value:
    """Some int32s: by arithmetic, if they rise by one every so many steps, up to a last one."""
    rises = np.flatnonzero(np.diff(numbers) == 1) + 1
    every = int(rises[1] - rises[0]) if len(rises) > 1 else len(numbers)
    first = every * (int(numbers[0]) + 1) - int(rises[0]) if len(rises) else 0
    last = int(numbers.max())

    groups = (np.arange(len(numbers)) + first) // every
    if first < 0 or not np.array_equal(np.minimum(groups, last), numbers):
        return rw.array(numbers)

    def made() -> jax.Array:
        step = lax.iota(np.int32, len(numbers))
        group = lax.div(lax.add(step, np.int32(first)), np.int32(every))
        return lax.min(group, np.int32(last)) if groups[-1] > last else group

    return rw.insert(made, before=before)
