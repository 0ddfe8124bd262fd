"""Programs whose sizes are symbols (`jax.export`): passes decline where they cannot tell."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jaxpr_opt import explain, optimize
from jaxpr_opt.analysis.values.step_numbers import known_numbers
from jaxpr_opt.ir.importer import import_jaxpr


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("JAXPR_OPT_STRICT", "1")


def recurrent(x, w):
    """A network over rows of which there are so many."""

    def step(h, row):
        h = jnp.tanh(h @ w + row)
        return h, h

    h, ys = lax.scan(step, jnp.zeros(x.shape[1:]), x)
    return jnp.sum(ys * h)


def indexed(x, w):
    """Reads and writes of a buffer that is as long as the loop."""

    def step(c, i):
        y = lax.dynamic_index_in_dim(x, i, keepdims=False)
        return jnp.where(i < 3, c.at[i].add(y[0]), c), jnp.where(y > 0, y, w[0])

    c, ys = lax.scan(step, jnp.zeros(x.shape[0]), jnp.arange(x.shape[0]))
    return jnp.sum(c) + jnp.sum(ys)


def stopping(x, w):
    """Loops of a batch that stop."""

    def loop(row):
        step = lambda c, t: (lax.cond(c < 3, lambda c: c + jnp.max(t), lambda c: c, c), None)
        return lax.scan(step, 0.0, row[:, None] * w[0])[0]

    return jnp.sum(jax.vmap(loop)(x))


def weighted(x, w):
    """Sums by weights that move on from step to step, and what is added at their places."""

    def step(c, i):
        places = jnp.abs(i - jnp.arange(w.shape[0]))
        return c.at[places].add(w), jnp.sum(jnp.asarray(w)[places]) * jnp.asarray(x)[i, 0]

    c, ys = lax.scan(step, jnp.zeros_like(w), jnp.arange(x.shape[0]))
    return jnp.sum(c * w) + jnp.sum(ys)


@pytest.mark.parametrize("program", [recurrent, indexed, stopping, weighted])
@pytest.mark.parametrize("shape", ["n, 4", "n, m"])
def test_left_without_a_word(program, shape):
    """Nothing fails, nobody is warned, and the values are those of plain JAX."""
    rows, columns = export.symbolic_shape(shape)
    types = [jax.ShapeDtypeStruct((n, columns), jnp.float32) for n in (rows, columns)]
    orders = optimize(program), optimize(jax.grad(program)), jax.grad(optimize(program))
    value, *gradients = (export.export(jax.jit(each))(*types) for each in orders)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    np.testing.assert_allclose(value.call(x, w), program(x, w), rtol=1e-5)
    for each in gradients:
        np.testing.assert_allclose(each.call(x, w), jax.grad(program)(x, w), rtol=1e-4, atol=1e-5)


def test_a_loop_of_so_many_steps_keeps_no_other_from_being_optimised():
    """What takes a number of steps that is a symbol stays; what is beside it changes."""

    def program(x):
        h = lax.scan(lambda h, row: (jnp.tanh(h + row), None), x[0], x)[0]

        def step(c, _):
            h, n = c
            return (jnp.where(n < 7, jnp.tanh(h), h), jnp.where(n < 7, n + 1, n)), h

        return lax.scan(step, (h, 0), None, length=30)

    x = jax.ShapeDtypeStruct(export.symbolic_shape("n, 4"), jnp.float32)
    assert "exit-loop-early" in str(explain(program, x))
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        export.export(optimize(program))(x).call(rows),
        program(rows),
    )


def test_numbers_of_which_there_are_so_many():
    """They are not known, though those that are added to them are."""
    (n,) = export.symbolic_shape("n")
    jaxpr = jax.make_jaxpr(lambda i: i + 12)(jax.ShapeDtypeStruct((n,), jnp.int32))
    assert known_numbers(import_jaxpr(jaxpr).outputs[0]) is None
