"""Recurrences of textbooks, with little for a pass to do: each is to take what plain JAX takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, forward, normal
from bench.everyday.simulations import positive


def levinson(r: Array) -> Array:
    """Levinson and Durbin's; a slice was written element by element with what the step computes."""
    n = len(r) - 1

    def step(k: Array, state: Any) -> Any:
        a, error = state
        last = -(r[k] + jnp.dot(a, jnp.roll(r[:-1][::-1], k))) / error
        a = (a + last * jnp.roll(a[::-1], k)).at[k].set(last)
        return a, error * (1 - last**2)

    return lax.fori_loop(0, n, step, (jnp.zeros(n), r[0]))[0]


def unrolled(x: Array, w: Array) -> Array:
    """Rows of an array in a Python loop; its gradient made three whole arrays for each row."""
    xs = jnp.zeros((24, *x.shape)).at[0].set(x)
    for t in range(1, 24):
        xs = xs.at[t].set(jnp.sin(xs[t - 1] * w + xs[max(0, t - 3)]))
    return xs[-1]


def appended(x: Array, w: Array) -> Array:
    """A history that each step appends to and shortens."""
    h = jnp.stack([x, x * w, x + w, x])
    for _ in range(16):
        h = jnp.concatenate([h[1:], (jnp.sin(h[-1] * w) + h[0])[None]])
    return h


def predicted(r: Array) -> Array:
    """Durbin's, element by element; inner loops read and write arrays of the outer one."""
    n = len(r)

    def step(k: Array, state: Any) -> Any:
        y, z, error, last = state
        term = lambda i, s: s + jnp.where(i < k, r[k - 1 - i] * y[i], 0.0)  # noqa: E731
        error = (1 - last**2) * error
        last = -(r[k] + lax.fori_loop(0, n, term, 0.0)) / error
        updated = lambda i, z: jnp.where(i < k, z.at[i].set(y[i] + last * y[k - 1 - i]), z)  # noqa: E731
        z = lax.fori_loop(0, n, updated, z)
        y = lax.fori_loop(0, n, lambda i, y: jnp.where(i < k, y.at[i].set(z[i]), y), y)
        return y.at[k].set(last), z, error, last

    start = jnp.zeros(n).at[0].set(-r[0])
    return lax.fori_loop(1, n, step, (start, jnp.zeros(n), jnp.float32(1), -r[0]))[0]


def scanned(x: Array) -> Array:
    """Prefix sums by Blelloch's: masks of numbers alone choose elements, in each step some."""
    n = len(x)
    i = jnp.arange(n)

    def up(k: Array, x: Array) -> Array:
        step = 1 << k
        return jnp.where(i % (2 * step) == 2 * step - 1, x + x[jnp.maximum(i - step, 0)], x)

    def down(k: Array, x: Array) -> Array:
        step = n >> (k + 1)
        right, left = i % (2 * step) == 2 * step - 1, i % (2 * step) == step - 1
        added, moved = x + x[jnp.maximum(i - step, 0)], x[jnp.minimum(i + step, n - 1)]
        return jnp.where(right, added, jnp.where(left, moved, x))

    levels = n.bit_length() - 1
    summed = lax.fori_loop(0, levels, up, x)
    return lax.fori_loop(0, levels, down, summed.at[n - 1].set(0.0))


def residuals(x: Array, taps: Array) -> Array:
    """What a model of the last values does not explain, with a moving average."""
    lags = jnp.arange(1, len(taps) + 1)

    def step(error: Array, t: Array) -> Any:
        error = x[t + len(taps)] - jnp.dot(taps, x[t + len(taps) - lags]) + 0.3 * error
        return error, error**2

    return lax.scan(step, jnp.float32(0), jnp.arange(len(x) - len(taps)))[1]


def multiplied(a: Array, b: Array) -> Array:
    """The product of two polynomials, each coefficient times all of the other."""
    places = jnp.arange(len(b))
    step = lambda t, c: c.at[t + places].add(a[t] * b)  # noqa: E731
    return lax.fori_loop(0, len(a), step, jnp.zeros(len(a) + len(b) - 1))


def decayed(x: Array) -> Array:
    """An array that decays, and into which each step writes: the same."""
    step = lambda k, h: (0.99 * h + 0.01 * jnp.roll(h, 1)).at[k].set(x[k])  # noqa: E731
    return lax.fori_loop(0, len(x), step, jnp.zeros_like(x))


def interpolated(y: Array) -> Array:
    """Neville's; each step became a branch though a mask is true somewhere in all of them."""
    n = len(y)
    x, i = jnp.linspace(0, 1, n), jnp.arange(n)

    def step(k: Array, p: Array) -> Array:
        there = x[jnp.clip(i + k, 0, n - 1)]
        new = (0.3 - there) * p + (x - 0.3) * jnp.roll(p, -1)
        return jnp.where(i + k < n, new / jnp.where(x == there, 1, x - there), p)

    return lax.fori_loop(1, n, step, y)[0]


def adagrad(table: Array, ids: Array, targets: Array, weights: Array) -> Array:
    """A small table; update-states read, tested and wrote its rows one by one."""

    def loss(table: Array, i: Array, y: Array) -> Array:
        return jnp.sum((jnp.tanh(table[i[0]] * table[i[1]]) @ weights - y) ** 2)

    def step(state: Any, given: Any) -> Any:
        table, squares = state
        g = jax.grad(loss)(table, *given)
        squares = squares + g * g
        return (table - 0.1 * g / (jnp.sqrt(squares) + 1e-6), squares), None

    return lax.scan(step, (table, jnp.zeros_like(table)), (ids, targets))[0][0]


def chebyshev(c: Array, x: Array) -> Array:
    """Clenshaw's."""

    def step(state: Any, each: Array) -> Any:
        one, two = state
        return (2 * x * one - two + each, one), None

    (one, two), _ = lax.scan(step, (jnp.zeros_like(x), jnp.zeros_like(x)), c[:0:-1])
    return x * one - two + c[0]


def filtered(x: Array, b: Array, a: Array) -> Array:
    """With an infinite response."""

    def step(z: Array, x: Array) -> Any:
        y = b[0] * x + z[0]
        return jnp.concatenate([z[1:], jnp.zeros(1)]) + b[1:] * x - 0.1 * a[1:] * y, y

    return lax.scan(step, jnp.zeros(len(b) - 1), x)[1]


def factored(a: Array) -> Array:
    """Cholesky's, column by column."""
    rows = jnp.arange(len(a))

    def step(j: Array, lower: Array) -> Array:
        column = a[:, j] - lower @ lower[j]
        return lower.at[:, j].set(jnp.where(rows >= j, column / jnp.sqrt(column[j]), 0.0))

    return lax.fori_loop(0, len(a), step, jnp.zeros_like(a))


def eliminated(a: Array, b: Array) -> Array:
    """Gauss and Jordan's."""

    def step(k: Array, m: Array) -> Array:
        row = m[k] / m[k, k]
        return (m - m[:, k][:, None] * row).at[k].set(row)

    return lax.fori_loop(0, len(b), step, jnp.concatenate([a, b[:, None]], 1))[:, -1]


def tridiagonalised(a: Array, v: Array) -> Any:
    """Lanczos', all vectors kept."""
    m = 12

    def step(k: Array, state: Any) -> Any:
        vs, diagonal, beside = state
        w = a @ vs[k]
        x = w @ vs[k]
        w = w - x * vs[k] - jnp.where(k > 0, beside[k - 1], 0.0) * vs[k - 1]
        w = w - vs.T @ (vs @ w)
        size = jnp.linalg.norm(w) + 1e-6
        return vs.at[k + 1].set(w / size), diagonal.at[k].set(x), beside.at[k].set(size)

    vs = jnp.zeros((m + 1, len(v))).at[0].set(v / jnp.linalg.norm(v))
    return lax.fori_loop(0, m, step, (vs, jnp.zeros(m), jnp.zeros(m)))[1:]


def traced_back(w: Array, states: Array) -> Array:
    """Temporal differences, with traces of where they come from."""

    def step(given: Any, s: Array) -> Any:
        w, traces = given
        delta = jnp.sin(1.0 * s) + 0.9 * w[(s * 7 + 1) % len(w)] - w[s]
        traces = (0.72 * traces).at[s].add(1.0)
        return (w + 0.1 * delta * traces, traces), None

    return lax.scan(step, (w, jnp.zeros_like(w)), states)[0][0]


def leapfrog(q: Array, p: Array) -> Any:
    """Springs in a row."""
    force = jax.grad(lambda q: jnp.sum(q**4) / 4 + jnp.sum((q[1:] - q[:-1]) ** 2) / 2)

    def step(_: int, state: Any) -> Any:
        q, p = state
        p = p - 0.005 * force(q)
        q = q + 0.01 * p
        return q, p - 0.005 * force(q)

    return lax.fori_loop(0, 100, step, (q, p))


def automaton(table: Array, text: Array) -> Array:
    """Its states."""
    return lax.scan(lambda s, c: (table[s, c], table[s, c]), 0, text)[1]


def relaxed(b: Array, a: Array) -> Array:
    """Gauss and Seidel's: sweeps that write an element and read all of them."""

    def step(i: Array, x: Array) -> Array:
        return x.at[i].add((b[i] - a[i] @ x) / a[i, i])

    def sweep(_: Array, x: Array) -> Array:
        return lax.fori_loop(0, len(b), step, x)

    return lax.fori_loop(0, 12, sweep, jnp.zeros_like(b))


def cascaded(x: Array, coefficients: Array) -> Array:
    """Filters of second order, one after the other: each keeps two numbers."""

    def sample(z: Array, x: Array) -> Any:
        def stage(k: Array, carry: Any) -> Any:
            x, z = carry
            b0, b1, b2, a1, a2 = coefficients[k]
            y = b0 * x + z[k, 0]
            z = z.at[k, 0].set(b1 * x - a1 * y + z[k, 1])
            return y, z.at[k, 1].set(b2 * x - a2 * y)

        y, z = lax.fori_loop(0, len(coefficients), stage, (x, z))
        return z, y

    return lax.scan(sample, jnp.zeros((len(coefficients), 2)), x)[1]


PROGRAMS: dict[str, Entry] = {
    "Durbin, by elements": entry(predicted, np.float32(0.9) ** np.arange(1, 201, dtype=np.float32)),
    "moving average": entry(residuals, normal(800), 0.1 * normal(12)),
    "polynomials": entry(multiplied, normal(300), normal(40)),
    "prefix sums by halves": entry(scanned, normal(512)),
    "Levinson-Durbin": entry(levinson, np.float32(0.9) ** np.arange(201, dtype=np.float32)),
    "rows, unrolled": entry(unrolled, normal(1000), 0.1 * normal(1000, seed=1)),
    "appended": entry(appended, normal(1000), 0.1 * normal(1000, seed=1)),
    "decayed": entry(decayed, normal(400)),
    "interpolated": entry(interpolated, normal(20)),
    "adagrad": forward(
        adagrad, normal(200, 8), below(200, 50, 2, 8), normal(50, 8, seed=1), normal(8, seed=2)
    ),
    "Chebyshev": entry(chebyshev, normal(30), normal(200, seed=1)),
    "filtered": entry(filtered, normal(300), normal(5), normal(5, seed=1)),
    "factored": entry(factored, positive(24)),
    "eliminated": entry(eliminated, positive(20), normal(20)),
    "tridiagonalised": entry(tridiagonalised, positive(40), normal(40)),
    "traced back": entry(traced_back, normal(100), below(100, 60)),
    "leapfrog": entry(leapfrog, normal(20), normal(20, seed=1)),
    "relaxed": entry(relaxed, normal(40), positive(40)),
    "cascaded": entry(cascaded, normal(200), 0.1 * normal(6, 5)),
    "automaton": forward(automaton, below(5, 12, 5), below(5, 300)),
}
