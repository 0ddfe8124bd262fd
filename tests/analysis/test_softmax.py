"""Differences from the greatest of a row are told from others."""

import jax
import jax.numpy as jnp
import pytest

from jaxpr_opt.analysis.values.softmax import has_the_greatest, is_from_the_greatest
from tests.graphs import graph_of


def told(fun):
    """What is told of differences and sums, in a square matrix: shapes tell nothing."""
    ops = [*graph_of(fun, "f32[5,5]").walk()]
    differences = [is_from_the_greatest(op) for op in ops if op.name == "sub"]
    return differences, [has_the_greatest(op) for op in ops if op.name == "reduce_sum"]


@pytest.mark.parametrize(
    ("fun", "differences", "sums"),
    [
        (jax.nn.softmax, [True], [True]),
        (lambda x: jax.nn.softmax(x, axis=0), [True], [True]),
        (jax.nn.log_softmax, [True, False], [True]),
        (lambda x: jax.nn.logsumexp(x, axis=-1), [True], [True]),
        (jax.nn.logsumexp, [True], [True]),
        (lambda x: x - jnp.max(x, 1), [False], []),
        (lambda x: x - jnp.max(x, 1)[None, :], [False], []),
        (lambda x: x - jnp.max(x + 1, 1)[:, None], [False], []),
        (lambda x: x - jnp.min(x, 1)[:, None], [False], []),
        (lambda x: x - jnp.maximum(jnp.max(x, 1), 2.0)[:, None], [False], []),
        (lambda x: jnp.sum(jnp.exp(x - jnp.max(x, 1)[:, None]), 0), [True], [False]),
        (lambda x: jnp.sum(jnp.exp(x - jnp.max(x)), 1), [True], [False]),
        (lambda x: jnp.sum(jnp.exp(x - jnp.max(x, 1)[:, None])), [True], [True]),
    ],
)
def test_which_differences_are_from_the_greatest(fun, differences, sums):
    assert told(fun) == (differences, sums)
