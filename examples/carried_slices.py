"""Arrays that a loop reads and writes a piece at a time, each program beside its form by hand.

The work of such a loop is linear in its length. In the gradient plain JAX copies, clears, adds or
stores whole arrays in every step (jax#15906, jax#10197). By hand, what is read becomes a stream of
the scan, what is written a stack, and what is read back a step or two later a carry.

    cd examples; jaxpr-opt diff carried_slices.py:gradient --args-from carried_slices.py:arguments
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Scan = Callable[..., Any]
"""`lax.scan`, or one that takes its place."""


def seed(xs: jax.Array, scan: Scan = lax.scan) -> jax.Array:
    """Read an element and write one, at a counter that is carried too."""

    def step(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        i, state, ys = carry
        state = jnp.sin(state + xs[i])
        return (i + 1, state, ys.at[i].set(state)), None

    init = 0, jnp.zeros(()), jnp.zeros_like(xs)
    (_, _, ys), _ = scan(step, init, None, length=xs.size)
    return jnp.sum(ys**2)


def masked(xs: jax.Array) -> jax.Array:
    """The same, its write spelled as a `where` over the whole array."""
    places = jnp.arange(xs.size)

    def step(carry: tuple[Any, Any], i: jax.Array) -> tuple[tuple[Any, Any], None]:
        state, ys = carry
        state = jnp.sin(state + xs[i])
        return (state, jnp.where(places == i, state, ys)), None

    (_, ys), _ = lax.scan(step, (jnp.zeros(()), jnp.zeros_like(xs)), places)
    return jnp.sum(ys**2)


def seed_by_hand(xs: jax.Array) -> jax.Array:
    """A stream in, a stack out."""

    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.sin(state + x)
        return state, state

    return jnp.sum(lax.scan(step, jnp.zeros(()), xs)[1] ** 2)


def guarded(xs: jax.Array, stop: jax.Array) -> jax.Array:
    """Write, then decide between the new array and the old one."""

    def step(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        i, state, ys = carry
        state = jnp.sin(state + xs[i])
        return (i + 1, state, jnp.where(i < stop, ys.at[i].set(state), ys)), None

    init = 0, jnp.zeros(()), jnp.zeros_like(xs)
    (_, _, ys), _ = lax.scan(step, init, None, length=xs.size)
    return jnp.sum(ys**2)


def guarded_by_hand(xs: jax.Array, stop: jax.Array) -> jax.Array:
    """The decision is about an element; one row, or a batch that is scanned by columns."""

    def step(state: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, x = inputs
        state = jnp.sin(state + x)
        return state, jnp.where(i < stop, state, 0)

    columns = jnp.moveaxis(xs, -1, 0)
    init = jnp.zeros(xs.shape[:-1])
    return jnp.sum(lax.scan(step, init, (jnp.arange(xs.shape[-1]), columns))[1] ** 2)


def ragged(xs: jax.Array, stops: jax.Array) -> jax.Array:
    """A batch of rows, each written up to a length of its own."""
    return jnp.sum(jax.vmap(guarded)(xs, stops))


def dotted(xs: jax.Array) -> jax.Array:
    """The array that is being filled is read whole in every step: quadratic work as written."""

    def step(carry: tuple[Any, Any], i: jax.Array) -> tuple[tuple[Any, Any], None]:
        ys, total = carry
        product = jnp.dot(ys, xs)
        return (ys.at[i].set(jnp.sin(xs[i] + 0.01 * product)), total + product), None

    init = jnp.zeros_like(xs), jnp.zeros(())
    (ys, total), _ = lax.scan(step, init, jnp.arange(xs.size))
    return jnp.sum(ys**2) + total


@jax.custom_vjp
def dotted_by_hand(xs: jax.Array) -> jax.Array:
    """The gradient keeps the final array only, and walks its writes back."""
    return _dotted_forward(xs)[0]


def _dotted_forward(xs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def step(ys: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, x = inputs
        product = jnp.dot(ys, xs)
        return ys.at[i].set(jnp.sin(x + 0.01 * product)), product

    ys, products = lax.scan(step, jnp.zeros_like(xs), (jnp.arange(xs.size), xs))
    return jnp.sum(ys**2) + jnp.sum(products), (xs, ys, products)


def _dotted_backward(residuals: tuple[jax.Array, ...], ct: jax.Array) -> tuple[jax.Array]:
    xs, ys, products = residuals

    def step(carry: tuple[Any, Any, Any], inputs: tuple[Any, Any]) -> tuple[Any, jax.Array]:
        ys, ct_ys, ct_xs = carry
        i, argument = inputs
        ct_x = ct_ys[i] * jnp.cos(argument)
        ys, ct_ys = ys.at[i].set(0), ct_ys.at[i].set(0)
        ct_product = ct + 0.01 * ct_x
        return (ys, ct_ys + ct_product * xs, ct_xs + ct_product * ys), ct_x

    init = ys, 2 * ct * ys, jnp.zeros_like(xs)
    inputs = jnp.arange(xs.size), xs + 0.01 * products
    (_, _, ct_xs), direct = lax.scan(step, init, inputs, reverse=True)
    return (ct_xs + direct,)


dotted_by_hand.defvjp(_dotted_forward, _dotted_backward)


def recurrence(xs: jax.Array) -> jax.Array:
    """An array that is read back one and two places behind where it is written."""

    def body(i: jax.Array, ys: jax.Array) -> jax.Array:
        return ys.at[i].set(jnp.sin(ys[i - 1]) * xs[i] + 0.5 * ys[i - 2])

    return jnp.sum(lax.fori_loop(2, xs.size, body, jnp.zeros_like(xs).at[:2].set(xs[:2])) ** 2)


def recurrence_by_hand(xs: jax.Array) -> jax.Array:
    """The two elements that are read back are carried."""

    def step(last: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
        y = jnp.sin(last[1]) * x + 0.5 * last[0]
        return (last[1], y), y

    _, ys = lax.scan(step, (xs[0], xs[1]), xs[2:])
    return jnp.sum(xs[:2] ** 2) + jnp.sum(ys**2)


def nested_elements(xs: jax.Array) -> jax.Array:
    """Two loops over rows and columns, reading `xs[i, j]`."""

    def row(state: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        def element(state: jax.Array, j: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(state + xs[i, j]), None

        return lax.scan(element, state, jnp.arange(xs.shape[1]))[0], None

    return lax.scan(row, jnp.zeros(()), jnp.arange(xs.shape[0]))[0]


def nested_flat(xs: jax.Array) -> jax.Array:
    """Two loops over one vector, reading `flat[i * columns + j]`."""
    (rows, columns), flat = xs.shape, xs.reshape(-1)

    def row(i: jax.Array, state: jax.Array) -> jax.Array:
        def element(j: jax.Array, state: jax.Array) -> jax.Array:
            return jnp.tanh(state + flat[i * columns + j])

        return lax.fori_loop(0, columns, element, state)

    return lax.fori_loop(0, rows, row, jnp.zeros(()))


def nested_rows(xs: jax.Array) -> jax.Array:
    """The outer loop reads a row and the inner one its elements, both at carried counters."""

    def row(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        i, state = carry
        values = xs[i]

        def element(j: jax.Array, state: jax.Array) -> jax.Array:
            return jnp.tanh(state + values[j])

        return (i + 1, lax.fori_loop(0, xs.shape[1], element, state)), None

    return lax.scan(row, (0, jnp.zeros(())), None, length=xs.shape[0])[0][1]


def nested_by_hand(xs: jax.Array) -> jax.Array:
    """Rows are a stream, and elements a stream of each row."""

    def element(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(state + x), None

    def row(state: jax.Array, values: jax.Array) -> tuple[jax.Array, None]:
        return lax.scan(element, state, values)[0], None

    return lax.scan(row, jnp.zeros(()), xs)[0]


def nested_in_one(xs: jax.Array) -> jax.Array:
    """One loop over all elements."""
    return nested_by_hand(xs.reshape(1, -1))


def gradient(xs: jax.Array) -> jax.Array:
    """The gradient of the simplest of them."""
    return jax.grad(seed)(xs)


def arguments(size: int = 1000) -> tuple[jax.Array]:
    """What `gradient` is called with."""
    return (jax.random.normal(jax.random.key(0), (size,)),)


def guarded_arguments(size: int) -> tuple[jax.Array, jax.Array]:
    """What `guarded` is called with: three quarters are written."""
    return *arguments(size), jnp.int32(size * 3 // 4)


def ragged_arguments(size: int, batch: int = 8) -> tuple[jax.Array, jax.Array]:
    """Rows of `size` elements, written between a quarter and all of them."""
    xs = jax.random.normal(jax.random.key(0), (batch, size))
    return xs, jnp.linspace(size // 4, size, batch, dtype=jnp.int32)


def many_rows(rows: int, columns: int = 32) -> tuple[jax.Array]:
    """What the nested loops are called with."""
    return (jax.random.normal(jax.random.key(0), (rows, columns)),)


def long_rows(columns: int) -> tuple[jax.Array]:
    """The same, a few rows and many columns."""
    return many_rows(16, columns)
