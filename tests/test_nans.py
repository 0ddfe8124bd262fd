"""NaN, infinities and zeros of either sign, in gradients of loops: XLA makes the same of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from tests.loops import memory

QUICKLY = {"xla_backend_optimization_level": 0}  # a third of the time
NAN, INF = np.nan, np.inf

REDUCED = {
    "max": jnp.max,
    "min": lambda y: jnp.min(y) ** 2,
    "abs": lambda y: jnp.sum(jnp.abs(y) * y),
    "relu": lambda y: jnp.sum(jax.nn.relu(y) ** 2),
    "mask": lambda y: jnp.sum((y > 0).astype(y.dtype) * jnp.sin(y)),
    "other mask": lambda y: jnp.sum((1 - (y > 0).astype(y.dtype)) * jnp.sin(y)),
    "where": lambda y: jnp.sum(jnp.where(jnp.isnan(y), 0, y * y)),
    "sort": lambda y: jnp.sort(y) @ jnp.arange(8.0),
    "norm": jnp.linalg.norm,
    "logsumexp": jax.nn.logsumexp,
    "prod": jnp.prod,
    "cumsum": lambda y: jnp.sum(jnp.cumsum(y) ** 2),
    "argmax": lambda y: y[jnp.argmax(y)] ** 2,
    "division": lambda y: jnp.sum(y / jnp.roll(y, 1)),
    "sqrt": lambda y: jnp.sum(jnp.sqrt(y)),
    "clip": lambda y: jnp.sum(jnp.clip(y, -1, 1) * y),
    "pool": lambda y: jnp.sum(jnp.max(y.reshape(2, 4), axis=1) ** 2),
}


def loss(reduced, skips):
    """The sum of what is made of each row, or of the first rows only."""

    def program(w, xs):
        def step(c, row):
            i, x = row
            add = lambda c: c + reduced(x * w)
            return lax.cond(i < 4, add, lambda c: c, c) if skips else add(c), None

        return lax.scan(step, 0.0, (jnp.arange(len(xs)), xs))[0]

    return program


def rows(*special):
    """Numbers, and special ones in one row."""
    x = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    x[2, : len(special)] = special
    return x


SPECIAL = [rows(NAN), rows(INF, -INF), rows(0.0, -0.0, 0.0), rows(*[0.0] * 8),
           rows(NAN, INF, -INF, 0.0, -0.0, 1e30, -1e-30, 1.0)]  # fmt: skip


@pytest.mark.parametrize("skips", [False, True])
def test_gradients(skips):
    names = list(REDUCED)[: 6 if skips else None]
    losses = {name: loss(REDUCED[name], skips) for name in names}
    w = np.linspace(0.5, 2, 8).astype(np.float32)

    def gradients(wrapped=lambda f: f):
        return lambda *args: {
            name: jax.grad(wrapped(f), (0, 1))(*args) for name, f in losses.items()
        }

    orders = gradients(), gradients(optimize), optimize(gradients())
    plain, below, above = (jax.jit(f, compiler_options=QUICKLY) for f in orders)
    for x in SPECIAL:
        want = jax.tree_util.tree_leaves_with_path(plain(w, x))
        for got in (below(w, x), above(w, x)):
            for (path, a), b in zip(want, jax.tree.leaves(got), strict=True):
                where = jax.tree_util.keystr(path)
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=where)


def test_a_mask_keeps_little():
    """What is stored for the gradient of a maximum are truth values."""
    n, width = 64, 32
    gradient = jax.grad(optimize(loss(jnp.max, skips=False)))
    args = np.ones(width, np.float32), np.ones((n, width), np.float32)
    assert memory(gradient, *args) < 2 * n * width


def test_halves_that_are_compiled_on_their_own():
    """A mask that backward makes again is multiplied as if it came from forward."""

    def masked(x, y):
        loop = lambda row: lax.scan(lambda c, x: (c + jnp.max(x), None), 0.0, row)[0]
        return jnp.sum(jnp.broadcast_to((x[:, :1] > 0).astype(x.dtype), x.shape) * y) + loop(y)

    x, y = rows(), rows(NAN)
    backward = [jax.vjp(jax.jit(f), x, y)[1] for f in (masked, optimize(masked))]
    want, got = (jax.jit(each)(jnp.float32(NAN)) for each in backward)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", ["above", "below"])
def test_branches_of_checkpointed_steps(order):
    """A mask that one branch has left to another, of which one is made."""

    def program(w, xs):
        @jax.checkpoint
        def step(c, row):
            i, x = row
            return lax.cond(i < 4, lambda c: c + jnp.max(x * w + c), lambda c: c, c), None

        return lax.scan(step, 0.0, (jnp.arange(6), xs))[0]

    w, x = np.ones(8, np.float32), rows(NAN)
    ours = optimize(jax.grad(program)) if order == "above" else jax.grad(optimize(program))
    want, got = (jax.jit(f)(w, x) for f in (jax.grad(program), ours))
    np.testing.assert_array_equal(got, want)


def kept(w, xs, mask):
    """The state of a step that a mask drops stays as it was."""
    step = lambda c, row: (row[1] * jnp.tanh(c @ w + row[0]) + (1 - row[1]) * c, None)
    return jnp.sum(jnp.sqrt(lax.scan(step, jnp.zeros(4), (xs, mask))[0] - 5))


def counted(w, xs, mask):
    """What a mask drops is no part of the sum."""

    def step(c, row):
        c = jnp.tanh(c @ w + row[0])
        return c, row[1] * jnp.sum(c)

    return jnp.sqrt(jnp.sum(lax.scan(step, jnp.zeros(4), (xs, mask))[1]) - 500)


@pytest.mark.parametrize("program", [kept, counted])
def test_a_loss_that_is_no_number(program):
    """Rows of steps after the last one that a mask lets count are zero; all others are NaN, as they
    all are in plain JAX, where zero times NaN is.
    """
    w, xs, drops = jnp.eye(4) / 2, jnp.linspace(0, 1, 40).reshape(10, 4), jnp.arange(10) % 4 > 0
    drops |= jnp.arange(10) > 6
    loss = lambda w, xs: program(w, xs, (~drops).astype(jnp.float32))
    for gradient in (optimize(jax.grad(loss, (0, 1))), jax.grad(optimize(loss), (0, 1))):
        shared, of_rows = gradient(w, xs)
        assert jnp.all(jnp.isnan(shared))
        assert jnp.all(jnp.isnan(of_rows[:5]))
        assert jnp.all(jnp.isnan(of_rows) | (of_rows == 0))
