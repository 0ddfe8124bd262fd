"""Numbers that depend on the steps of the loops around an op."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.ir.graph import Op, Value
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
