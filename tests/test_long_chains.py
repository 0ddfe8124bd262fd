"""Chains of many ops, one made of the other: no analysis asks itself once for each of them, inside
of itself, until Python's stack is full.

In strict mode, as here, an error is raised that else would be a warning.
"""

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize, settings
from jaxpr_opt.cost.work import works
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import assert_close


@contextmanager
def small_stack(frames):
    """So many frames for JAX and this library, of the thousand that Python has."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def chained(kind, x, t, ops=110):
    """More ops than the stack of these tests has frames left."""
    value = x
    for k in range(ops):
        value = kind(value, t, k)
    return value.reshape(x.shape).astype(x.dtype)


FLOATS = {
    "sums": lambda x, t, k: (x + 1.0, x - t * 0.5, 2.0 - x)[k % 3],
    "products": lambda x, t, k: (x * 0.5, -x, x / 3.0)[k % 3],
    "shapes": lambda x, t, k: (x.reshape(2, 4), x.T, x[None], x[0], x.reshape(8))[k % 5],
    "rolls": lambda x, t, k: jnp.roll(x, 1),
    "shifts": lambda x, t, k: jnp.concatenate([x[1:], x[:1] + t]),
    "paddings": lambda x, t, k: lax.pad(x, 0.0, [(1, -1, 0)]),
    "conversions": lambda x, t, k: x.astype(jnp.float16 if k % 2 else jnp.float32),
    "extremes": lambda x, t, k: (lax.max(x, 0.1), lax.min(x, 0.9))[k % 2],
    "selects": lambda x, t, k: jnp.where(t > k, x, (x * 2.0, 0.0)[k % 2]),
    "windows": lambda x, t, k: lax.dynamic_update_slice(x, lax.dynamic_slice(x, [t], [1]), [t]),
    "elements": lambda x, t, k: (x.at[t].add(1.0), x.at[t].set(x[t] + 1.0))[k % 2],
    "gathers": lambda x, t, k: x[(jnp.arange(8) + t) % 8],
    "branches": lambda x, t, k: lax.cond(t > k, lambda: x * 2.0, lambda: x),
    "reductions": lambda x, t, k: jnp.sum(jnp.broadcast_to(x, (2, 8)), 0),
    "barriers": lambda x, t, k: lax.optimization_barrier(x),
}

TRUTHS = {
    "and": lambda p, t, k: p & (t < k),
    "or": lambda p, t, k: p | (t > k),
    "not": lambda p, t, k: ~p,
    "comparisons": lambda p, t, k: p.astype(int) != 0,
    "selects": lambda p, t, k: jnp.where(t < k, p, False),
}

INTEGERS = {
    "sums": lambda i, t, k: (i + 1, i - t)[k % 2],
    "products": lambda i, t, k: (i * 2, -i)[k % 2],
    "remainders": lambda i, t, k: (lax.rem(i, 8), jnp.maximum(i, k))[k % 2],
    "selects": lambda i, t, k: jnp.where(i < 0, i + 8, i),
}


def loss_of(kind):
    def loss(x):
        last, rows = lax.scan(lambda c, t: (chained(kind, c, t), c), x, jnp.arange(8))
        return jnp.sum(last) + jnp.sum(chained(kind, rows[3], 3, ops=10))

    return loss


@pytest.mark.parametrize("kind", FLOATS.values(), ids=FLOATS)
def test_values(kind):
    with small_stack(240):
        optimize(loss_of(kind)).lower(jnp.ones(8))


@pytest.mark.parametrize("kind", ["shapes", "paddings", "selects", "windows", "branches"])
def test_gradients(kind):
    with small_stack(240):
        optimize(jax.grad(loss_of(FLOATS[kind]))).lower(jnp.ones(8))


@pytest.mark.parametrize("kind", TRUTHS.values(), ids=TRUTHS)
def test_truth_values(kind):
    """Which steps are taken, and whether a loop goes on."""

    def masked(x):
        step = lambda c, t: (jnp.where(chained(kind, t < 3, t), jnp.sin(c), c), None)
        return lax.scan(step, x, jnp.arange(8))[0]

    goes_on = lambda c: chained(kind, c[0] < 3, c[0])
    ended = lambda x: lax.while_loop(goes_on, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]
    with small_stack(240):
        optimize(lambda x: ended(masked(x))).lower(jnp.ones(8))


@pytest.mark.parametrize("kind", INTEGERS.values(), ids=INTEGERS)
def test_indices(kind):
    """Whose ways are followed for 48 ops, with some frames for each."""

    def step(c, t):
        return c.at[chained(kind, t, t, ops=450)].set(jnp.sin(c[t])), None

    with small_stack(480):
        optimize(lambda x: lax.scan(step, x, jnp.arange(8))[0]).lower(jnp.ones(8))


def test_sums_of_windows():
    def f(x):
        total = jnp.zeros(9)
        for k in range(200):
            total = total + jnp.zeros(9).at[x.astype(int) + k].add(x)
        return total

    graph = import_jaxpr(jax.make_jaxpr(f)(jnp.ones(3)))
    with small_stack(150):
        assert len(works(graph)) > 200


def nested(wrap, levels):
    """A function that calls another one, and so on, each wrapped."""
    fun = jnp.sin
    for level in range(levels):
        fun = wrap(lambda x, level=level, inner=fun: inner(x) + level)
    return fun


def in_a_thread(fun):
    """What it returns or raises where nothing else is on the stack."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fun).result()


def test_functions_that_call_each_other():
    """Each level takes 13 frames of the stack, of which `jax.jit` takes 6."""
    x = jnp.ones(3)
    assert_close(in_a_thread(lambda: nested(optimize, 50)(x)), nested(jax.jit, 50)(x))
    grad = lambda wrap, levels: jax.grad(lambda x: jnp.sum(nested(wrap, levels)(x)))(x)
    assert_close(in_a_thread(lambda: grad(optimize, 32)), grad(jax.jit, 32))


@pytest.mark.filterwarnings("ignore:.*left unchanged. RecursionError")
def test_functions_that_call_each_other_too_deep():
    """Each of them tries once, and not all that it calls once more."""
    with settings.override(strict=False), pytest.raises(RecursionError):
        in_a_thread(lambda: jax.vmap(nested(optimize, 500))(jnp.ones(3)))
