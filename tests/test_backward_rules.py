"""Backward rules of the user's (`jax.custom_vjp`), which need not be linear in the cotangents."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.values.linearity import is_linear
from jaxpr_opt.boundary.gradients import LinearMap, halves
from jaxpr_opt.boundary.program import Program, memoised
from jaxpr_opt.bridge import compat_ad, compat_types
from jaxpr_opt.engine.registry import default_pipeline
from jaxpr_opt.ir.importer import import_jaxpr
from tests.sets import crossed

X = jnp.arange(1.0, 5.0)

RULES = {
    "clipped": lambda g: jnp.clip(g, -0.1, 0.1),
    "affine": lambda g: g + 1,
    "constant": lambda _: jnp.float32(2),
    "squared": lambda g: g * g,
    "switched": lambda g: jnp.where(g > 0.5, g, 0),
    "branched": lambda g: lax.cond(g > 0.5, lambda g: g, lambda g: 0 * g, g),
    "scaled": lambda g: 3 * g,
}
NOT_LINEAR = [name for name in RULES if name != "scaled"]


def with_rule(name):
    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (x, None), lambda _, g: (RULES[name](g),))

    def fun(x):
        """Several results; what a step stores is the same in every step."""

        def step(carry, i):
            c, ys = carry
            scale = jnp.sin(2 * x)
            return (identity(c) * x[i] * scale.sum(), ys.at[i].set(jnp.sin(c))), c * scale

        (c, ys), zs = lax.scan(step, (x[0], jnp.zeros_like(x)), jnp.arange(4))
        return c, ys, zs

    return fun


@pytest.mark.parametrize(("name", "used"), crossed(RULES, [[0], [1], [0, 2]]), ids=str)
def test_gradients_of_some_of_the_results(name, used):
    """What the rule makes of the cotangents that are there, and not the derivative of that."""

    def loss(fun):
        return lambda x: sum(jnp.sum(jnp.sin(fun(x)[i])) for i in used)

    fun = with_rule(name)
    expected = jax.jit(jax.grad(loss(fun)))(X)
    for made in (jax.grad(loss(optimize(fun))), jax.grad(jax.checkpoint(loss(optimize(fun))))):
        np.testing.assert_allclose(jax.jit(made)(X), expected, rtol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_only_a_linear_rule_is_optimised_for_all_cotangents(name):
    """Nothing is lost where the rule is linear."""
    program = Program(jax.make_jaxpr(with_rule(name))(X), default_pipeline(), name)
    tangent = halves(program, (True,), True).tangent
    assert isinstance(tangent, LinearMap) == (name not in NOT_LINEAR)


def test_loops_of_equinox_are_linear():
    """Their rule runs loops of its own, and selects by `select_if_vmap`."""
    internal = pytest.importorskip("equinox.internal", reason="equinox is not installed")

    def fun(x):
        loop = functools.partial(internal.while_loop, max_steps=8, kind="checkpointed")
        _, y = loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))
        return y, 2 * x

    closed = jax.make_jaxpr(fun)(X)
    plain = compat_ad.linearize(closed, (True,), is_vjp=True)
    fixed = len(plain.residuals)
    moving = [i >= fixed for i in range(len(plain.tangent.in_avals))]
    back, _ = compat_ad.transpose(plain.tangent, tuple(moving), (True, True))
    graph = import_jaxpr(back)
    assert compat_ad.has_backward_rules(plain.tangent)
    assert is_linear(graph, graph.inputs[fixed:])


LINEAR = {
    "a sum": lambda a, b, c: a + b,
    "zero": lambda a, b, c: jnp.zeros_like(a),
    "a product with what is fixed": lambda a, b, c: a * jnp.sin(c) - b / c,
    "a matrix product": lambda a, b, c: jnp.outer(c, c) @ a,
    "a choice by what is fixed": lambda a, b, c: jnp.where(c > 0, a, -b),
    "rows": lambda a, b, c: a.at[1].add(b[0]).at[2].set(b[1])[jnp.arange(2)],
    "rows, or zero": lambda a, b, c: a.at[c.astype(int)].get(mode="fill", fill_value=0.0),
    "a loop": lambda a, b, c: lax.scan(lambda s, x: (s * x[1] + x[0], s), 0.0, (a, c)),
    "a number of steps that is fixed": lambda a, b, c: lax.while_loop(
        lambda s: s[0] < c[0], lambda s: (s[0] + 1, s[1] + a), (0, b)
    )[1],
    "a branch": lambda a, b, c: lax.cond(c[0] > 0, lambda a: a, lambda a: 2 * a, a),
    "a call": lambda a, b, c: jax.checkpoint(lambda a: a * jnp.cos(c))(a),
}
OTHERS = {
    "rows, or another number": lambda a, b, c: a.at[c.astype(int)].get(mode="fill", fill_value=1.0),
    "an offset": lambda a, b, c: a + 1,
    "what is fixed": lambda a, b, c: c,
    "a product": lambda a, b, c: a * b,
    "a quotient": lambda a, b, c: c / a,
    "a maximum": lambda a, b, c: jnp.maximum(a, b),
    "an index": lambda a, b, c: c[a[0].astype(int)],
    "a choice": lambda a, b, c: jnp.where(a > 0, a, b),
    "a branch it decides": lambda a, b, c: lax.cond(a[0] > 0, lambda: b, lambda: 2 * b),
    "branches of two kinds": lambda a, b, c: lax.cond(c[0] > 0, lambda: a, lambda: c),
    "a product after a step": lambda a, b, c: lax.scan(lambda s, x: (s * x, s), 1.0, a),
    "an offset after two steps": lambda a, b, c: lax.fori_loop(
        0, 3, lambda _, s: (s[1], s[2], c), (a, b, b)
    ),
    "a number of steps": lambda a, b, c: lax.while_loop(lambda s: s[0] < 1, lambda s: s + a, a),
}


@pytest.mark.parametrize("name", [*LINEAR, *OTHERS])
def test_linearity(name):
    graph = import_jaxpr(jax.make_jaxpr((LINEAR | OTHERS)[name])(X, X, X))
    assert is_linear(graph, graph.inputs[:2]) == (name in LINEAR)


def test_names_of_what_has_a_rule():
    """An inner program that other passes optimise may have one, unseen."""
    inner = optimize(with_rule("clipped"), passes=[])

    def outer(x):
        c, ys, zs = inner(x)
        return c, ys * jnp.sin(x), zs

    expected = jax.grad(lambda x: outer(x)[0])(X)
    found = jax.grad(lambda x: optimize(outer)(x)[0])(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert compat_types.aval_of(found).shape == X.shape


def test_a_memo_knows_arguments_that_are_given_by_name():
    """Two answers to one question are kept apart, however its arguments are given."""

    class Doubled:
        def __init__(self) -> None:
            self._memo: dict[object, object] = {}

        @memoised
        def of(self, x: int) -> int:
            return 2 * x

    doubled = Doubled()
    assert (doubled.of(x=1), doubled.of(x=2), doubled.of(3)) == (2, 4, 6)
