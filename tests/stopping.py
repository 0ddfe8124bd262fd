"""Loops that stop, and models with which they do: what the tests of exit-loop-early share."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.loops import keep


def stopping(what=lambda p, c: None, *, step=jnp.sin, seen=lambda c, b: c[0] < b, **options):
    """A loop that stops for good and stacks `what`."""

    def program(c, bound):
        def body(c, _):
            p = seen(c, bound)
            return lax.cond(p, step, keep, c), what(p, c)

        return lax.scan(body, c, None, length=5, **options)

    return program


def known(
    what=lambda p, c, x: None, *, test=lambda i, n: i < n, step=lambda c, x: c + x, **options
):
    """A loop whose predicate is known before, and which stacks `what`."""

    def program(c, xs, n):
        def body(c, row):
            i, x = row
            p = test(i, n)
            return lax.cond(p, lambda: step(c, x), lambda: c), what(p, c, x)

        return lax.scan(body, c, (lax.iota(jnp.int32, 5), xs), **options)

    return program


KNOWN = ("f32[3]", "f32[5,3]", "i32[]")
XS = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)


def masked(masks):
    """A loop that adds rows in all steps, which a mask has made zeros."""

    def program(c, xs, n):
        numbers = lax.iota(jnp.int32, 5)
        rows = lax.select(masks(numbers, n), xs, jnp.zeros_like(xs))
        step = lambda c, row: (jnp.where(row[0] < n, c * 2, c) + row[1], None)
        return lax.scan(step, c, (numbers, rows))[0]

    return program


def counted(back, length=5, onward=lambda c: c + 1, **options):
    """A loop that counts its steps and hands over what they start with, and a loop back."""

    def program(c, bound):
        def body(carry, _):
            c, k = carry
            p = c[0] < bound
            return (lax.cond(p, onward, keep, c), k + p.astype(jnp.int32)), c

        (c, k), rows = lax.scan(body, (c, jnp.int32(0)), None, length=length)
        step = lambda a, row: (lax.cond(row[0] < k, lambda: back(a, row[1]), lambda: a), None)
        return lax.scan(step, c, (jnp.arange(length), rows), reverse=True, **options)[0]

    return program


def summed(of_row):
    """The gradient of rows of which a masked sum is used: a loop back carries nothing."""

    def loss(xs, w, n):
        def step(total, row):
            i, x = row
            return total + of_row(x, w, i < n), None

        return jnp.sin(lax.scan(step, jnp.zeros(3), (lax.iota(jnp.int32, 5), xs))[0].sum())

    return jax.grad(loss)


def discounted(
    seen=lambda i, n: i < n, start=0.0, otherwise=0.0, what=lambda c, y: None, *, reverse=True
):
    """Returns, from the last step to the first, of an episode that ends early."""

    def program(xs, n):
        def body(c, row):
            i, x = row
            c = jnp.where(seen(i, n), jnp.sin(c) + x, otherwise)
            return c, what(c, x)

        rows = lax.iota(jnp.int32, 5), xs
        return lax.scan(body, jnp.full(3, start, jnp.float32), rows, reverse=reverse)

    return program


RETURNS = ("f32[5,3]", "i32[]")
