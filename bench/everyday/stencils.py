"""Grids whose points are computed of their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from bench.everyday.entry import Entry, entry, forward, normal

GRID = normal(48, 48)


def repeated(step: Callable[[Any], Any], steps: int = 50) -> Callable[[Any], Any]:
    """A step, as often as that."""
    return lambda x: lax.fori_loop(0, steps, lambda _, x: step(x), x)


def laplacian(u: Array) -> Array:
    """Of the inner points of a grid."""
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return around - 4 * u[1:-1, 1:-1]


def padded_heat(u: Array) -> Array:
    """accumulate-sparse-cotangents wrote each point of its transpose by itself."""

    def step(u: Array, _: None) -> tuple[Array, None]:
        return u + 0.1 * jnp.pad(laplacian(u), 1), None

    return lax.scan(step, u, None, 50)[0]


def wave(state: tuple[Array, Array]) -> tuple[Array, Array]:
    """read-before-overwriting divided most of the array."""
    u, v = state
    v = v.at[1:-1, 1:-1].add(0.1 * laplacian(u))
    return u + 0.1 * v, v


def heat_with_ends(u: Array) -> Array:
    """The same, and 1.6 times the time."""
    inner = u.at[1:-1].add(0.25 * (u[:-2] + u[2:] - 2 * u[1:-1]))
    return inner.at[0].set(u[1]).at[-1].set(u[-2])


def shallow_water(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """The same."""
    h, u, v = state
    u = u.at[1:].add(-0.1 * (h[1:] - h[:-1]))
    v = v.at[:, 1:].add(-0.1 * (h[:, 1:] - h[:, :-1]))
    h = h.at[:-1].add(-0.1 * (u[1:] - u[:-1]))
    return h.at[:, :-1].add(-0.1 * (v[:, 1:] - v[:, :-1])), u, v


def heat_in_a_medium(u: Array, conductivity: Array) -> Array:
    """hoist-invariant-residuals kept a slice for the whole loop."""

    def step(u: Array) -> Array:
        return u.at[1:-1, 1:-1].add(conductivity[1:-1, 1:-1] * laplacian(u))

    return repeated(step)(u)


def life(cells: Array) -> Array:
    """Conway's game, on a torus."""

    def step(cells: Array) -> Array:
        around = sum(
            jnp.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j
        )
        return ((around == 3) | ((around == 2) & (cells == 1))).astype(cells.dtype)

    return repeated(step)(cells)


def advected(u: Array) -> Array:
    """An upwind scheme by rolls, all of whose states are kept."""

    def step(u: Array, _: None) -> tuple[Array, Array]:
        u = u - 0.1 * u * (u - jnp.roll(u, 1))
        return u, u

    return lax.scan(step, u, None, 50)[1]


def solved_by_lines(state: tuple[Array, Array, Array, Array]) -> Array:
    """A tridiagonal system in arrays: Thomas' algorithm as it is in the books."""
    a, b, c, d = state
    n = len(b)

    def forward(i: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        c, d = state
        m = 1 / (b[i] - a[i] * c[i - 1])
        return c.at[i].multiply(m), d.at[i].set((d[i] - a[i] * d[i - 1]) * m)

    def backward(k: int, x: Array) -> Array:
        i = n - 2 - k
        return x.at[i].add(-c[i] * x[i + 1])

    c, d = c.at[0].divide(b[0]), d.at[0].divide(b[0])
    c, d = lax.fori_loop(1, n, forward, (c, d))
    return lax.fori_loop(0, n - 1, backward, d)


def solved_in_arrays(a: Array, b: Array, c: Array, d: Array) -> Array:
    """The same into arrays that start as zeros."""
    n = len(b)

    def forward(i: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        c1, d1 = state
        m = b[i] - a[i] * c1[i - 1]
        return c1.at[i].set(c[i] / m), d1.at[i].set((d[i] - a[i] * d1[i - 1]) / m)

    def backward(k: int, x: Array) -> Array:
        i = n - 2 - k
        return x.at[i].set(d1[i] - c1[i] * x[i + 1])

    zeros = jnp.zeros(n)
    start = zeros.at[0].set(c[0] / b[0]), zeros.at[0].set(d[0] / b[0])
    c1, d1 = lax.fori_loop(1, n, forward, start)
    return lax.fori_loop(0, n - 1, backward, zeros.at[n - 1].set(d1[n - 1]))


def diagonals(n: int) -> tuple[Any, ...]:
    """Of a system that is well conditioned."""
    return normal(n), 10 + normal(n, seed=1), normal(n, seed=2), normal(n, seed=3)


PROGRAMS: dict[str, Entry] = {
    "padded heat": entry(padded_heat, GRID),
    "waves": entry(repeated(wave), (GRID, GRID)),
    "heat with ends": entry(repeated(heat_with_ends), normal(1000)),
    "shallow water": entry(repeated(shallow_water), (GRID, GRID, GRID)),
    "heat in a medium": entry(heat_in_a_medium, GRID, GRID),
    "life": forward(life, (GRID > 0).astype("int32")),
    "advected": entry(advected, normal(1000)),
    "tridiagonal": entry(solved_by_lines, diagonals(1000)),
    "tridiagonal, in arrays": entry(solved_in_arrays, *diagonals(1000)),
}
