"""Arrays that a program captures: passes know the numbers of small ones of integers, and so which
branch each step takes, or that an index is in range; all others are arguments.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import Pipeline, optimize, settings
from jaxpr_opt.boundary import rules
from jaxpr_opt.bridge import compat_ad
from jaxpr_opt.cost import limits
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.passes.laws.simplify import Simplify
from tests.loops import memory

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


@pytest.mark.parametrize("kinds", EITHER.values(), ids=EITHER)
def test_the_gradient_knows_the_steps_that_take_a_branch(kinds):
    f = layers(kinds())
    unknown = jax.grad(optimize(asked), argnums=1)
    for known in (jax.grad(optimize(f)), optimize(jax.grad(f))):
        assert memory(known, W, X) + 6 * X.nbytes < memory(unknown, KINDS, W, X)
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


def with_rule(kind):
    """The sine, with a rule for its derivative that captures an array of its own."""
    scale = jnp.linspace(1.0, 2.0, X.size)
    f = getattr(jax, f"custom_{kind}")(jnp.sin)
    if kind == "jvp":
        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * scale))
    else:
        f.defvjp(lambda x: (jnp.sin(x), x * scale), lambda res, ct: (ct * res,))
    return f


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_rule_may_capture_arrays_too(kind):
    """Which are constants of what JAX makes of the program, beside the known ones."""
    sine, gains = with_rule(kind), np.array([1, 3, 2])

    def f(x):
        step = lambda c, gain: (jnp.where(gain > 1, sine(c), c) * gain, None)
        return jnp.sum(lax.scan(step, x, jnp.asarray(gains))[0])

    ways = {
        "gradient": lambda f: jax.grad(f)(X),
        "batch": lambda f: jax.vmap(jax.grad(f))(jnp.stack([X, -X])),
        "recomputed": lambda f: jax.grad(lambda x: jax.checkpoint(f)(jnp.sin(x)))(X),
    }
    if kind == "jvp":
        ways["linear"] = lambda f: jax.linearize(f, X)[1](X)
    with settings.override(strict=True):
        for way in ways.values():
            np.testing.assert_allclose(way(optimize(f)), way(f), rtol=1e-5)


def test_which_arrays_are_known():
    """None that is large, no keys, no floats, no tracers."""
    table, place, key = jnp.arange(3), np.arange(3, dtype=np.uint8), jax.random.key(0)
    mask, factor = np.array([True, False, True]), np.arange(3.0, dtype=np.float32)
    many = np.zeros(limits.STEPS_KNOWN + 1, np.int16)

    def f(x):
        drawn = jax.random.normal(key, (3,))
        return x[table] + x[place] * jnp.asarray(mask) + drawn * factor + jnp.asarray(many)[:3]

    jaxpr = jax.make_jaxpr(f)(jnp.ones(3))
    left, hoisted = compat_ad.hoist_unknown(jaxpr, rules._is_known)
    kinds = lambda arrays: sorted(str(array.dtype) for array in arrays)
    assert kinds(hoisted) == ["float32", "int16", "key<fry>"]
    assert kinds([*left.consts, *hoisted]) == kinds(jaxpr.consts)
    made = jax.core.eval_jaxpr(getattr(left, "jaxpr", left), left.consts, *hoisted, jnp.ones(3))
    np.testing.assert_array_equal(made[0], f(jnp.ones(3)))
    seen = []
    jax.jit(lambda x: (seen.append(rules._is_known(x)), x)[1])(jnp.arange(3))
    assert seen == [False]


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
