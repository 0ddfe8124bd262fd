"""Whether any element of a predicate is true."""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.cost.model import cost_model


def any_row(p: jax.Array, when: bool) -> jax.Array:
    """Whether a predicate is `when` in any row."""
    rows = p if when else lax.bitwise_not(p)
    return lax.reduce_or(rows, range(rows.ndim)) if rows.ndim else rows


def any_true(p: jax.Array) -> jax.Array:
    """Whether any element is true.

    XLA:CPU reduces truth values one by one, and combines two arrays of them in vectors.  So halves
    are combined first; they overlap where the number is odd.
    """
    for _ in range(cost_model().halvings(p.size)):
        p = lax.reshape(p, (p.size,))
        half = (p.size + 1) // 2
        p = lax.bitwise_or(lax.slice(p, (0,), (half,)), lax.slice(p, (p.size - half,), (p.size,)))
    return lax.reduce_or(p, range(p.ndim))
