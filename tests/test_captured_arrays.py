"""Arrays that a program captures: passes know the numbers of small ones of integers, and so which
branch each step takes, or that an index is in range; all others are arguments.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import Pipeline, optimize
from jaxpr_opt.bridge import compat_ad, dtypes
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.passes.laws.simplify import Simplify

KINDS = np.array([0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0], np.int32)
W = 0.1 * jnp.arange(12.0)[:, None] * jnp.ones((12, 1024))
X = jnp.linspace(-1.0, 1.0, 1024)
EITHER = {"numpy": lambda: KINDS, "jax": lambda: jnp.asarray(KINDS)}


def layers(kinds):
    """Two of twelve layers are of another kind, which leaves something for the gradient."""

    def layer(x, given):
        w, kind = given
        return lax.cond(kind == 1, lambda: jnp.sin(jnp.exp(x * w)) * x, lambda: x + w), None

    return lambda w, x: jnp.sum(lax.scan(layer, x, (w, jnp.asarray(kinds)))[0])


def asked(kinds, w, x):
    """The same of an argument, whose numbers nobody knows."""
    return layers(kinds)(w, x)


def temporary(program, *args):
    return jax.jit(program).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("kinds", EITHER.values(), ids=EITHER)
def test_the_gradient_knows_the_steps_that_take_a_branch(kinds):
    f = layers(kinds())
    unknown = jax.grad(optimize(asked), argnums=1)
    for known in (jax.grad(optimize(f)), optimize(jax.grad(f))):
        assert temporary(known, W, X) + 6 * X.nbytes < temporary(unknown, KINDS, W, X)
        np.testing.assert_allclose(known(W, X), jax.grad(f)(W, X), rtol=1e-6)


def test_transformations():
    f = layers(KINDS)
    g = optimize(f)
    rows = jnp.stack([X, 2 * X, -X])
    tangents = (jnp.ones_like(W), X)
    ways = {
        "value": lambda f: f(W, X),
        "jit": lambda f: jax.jit(f)(W, X),
        "forward": lambda f: jax.jvp(f, (W, X), tangents),
        "linear": lambda f: jax.linearize(f, W, X)[1](*tangents),
        "batch": lambda f: jax.vmap(f, (None, 0))(W, rows),
        "gradients": lambda f: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(W, rows),
        "recomputed": lambda f: jax.grad(jax.checkpoint(f), (0, 1))(W, X),
        "known in part": lambda f: jax.grad(lambda x: f(W, x))(X),
        "second": lambda f: jax.jvp(lambda x: jax.grad(f, 1)(W, x), (X,), (X,)),
        "again": lambda f: optimize(jax.grad(lambda x: f(W, jnp.sin(x))))(X),
    }
    for way in ways.values():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), way(g), way(f))


def test_which_arrays_are_known():
    """None that is large, none on devices of other processes, no keys, no floats, no tracers."""
    table, place, key = jnp.arange(3), np.arange(3, dtype=np.uint8), jax.random.key(0)
    mask, factor = np.array([True, False, True]), np.arange(3.0, dtype=np.float32)

    def f(x):
        drawn = jax.random.normal(key, (3,))
        return x[table] + x[place] * jnp.asarray(mask) + drawn * factor

    jaxpr = jax.make_jaxpr(f)(jnp.ones(3))
    is_known = lambda constant: dtypes.is_integral(constant.dtype)
    left, hoisted = compat_ad.hoist_unknown(jaxpr, is_known)
    kinds = lambda arrays: sorted(str(array.dtype) for array in arrays)
    assert kinds(hoisted) == ["float32", "key<fry>"]
    assert kinds([*left.consts, *hoisted]) == kinds(jaxpr.consts)
    assert all(map(is_known, left.consts))
    made = jax.core.eval_jaxpr(getattr(left, "jaxpr", left), left.consts, *hoisted, jnp.ones(3))
    np.testing.assert_array_equal(made[0], f(jnp.ones(3)))


def test_a_table_that_is_traced_is_an_argument():
    f = lambda kinds, x: optimize(layers(kinds))(W, x)
    found = jax.jit(jax.grad(f, 1))(jnp.asarray(KINDS), X)
    np.testing.assert_allclose(found, jax.grad(lambda x: layers(KINDS)(W, x))(X), rtol=1e-6)


@pytest.mark.parametrize("places", [np.array([4, 1, 3]), jnp.array([4, 1, 3])], ids=EITHER)
def test_an_index_is_known_to_be_in_range(places):
    """So nobody asks whether it is negative."""
    jaxpr = jax.make_jaxpr(lambda x: x.at[places].add(x[:3]))(X)
    assert "select_n" in str(jaxpr)
    made = Pipeline(((Simplify(), EliminateDeadCode()),)).run(jaxpr, keeps_cleanup=True)
    assert "select_n" not in str(made.jaxpr)
