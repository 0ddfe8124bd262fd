"""Which rows enter a sliding window, stay in it and leave it: against a loop over the array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.carried.buffers import Buffer, buffer
from jaxpr_opt.analysis.carried.sliding import Window, sliding
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced
from tests.graphs import scans

ROWS = 12


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("axis", "stride", "low", "size", "length", "unit"),
    [
        (0, 1, 0, 1, 12, 1),
        (0, 1, 2, 3, 5, 1),
        (1, 2, 1, 3, 4, 1),
        (0, 3, 0, 2, 4, 1),
        (0, 2, 0, 2, 6, 1),
        (1, -1, 7, 4, 8, 1),
        (0, -3, 9, 1, 3, 1),
        (0, 1, 4, 4, 1, 1),
        (0, 2, 0, 2, 6, 2),
        (1, 2, 1, 4, 4, 2),
        (0, -2, 8, 4, 5, 2),
        (1, 4, 0, 2, 3, 2),
        (0, -6, 6, 3, 2, 3),
    ],
)
def test_rows_are_where_a_loop_would_find_them(
    axis: int, stride: int, low: int, size: int, length: int, unit: int, reverse: bool
) -> None:
    window = Window(axis, stride, low, size, length, reverse, unit)
    array = np.arange(ROWS * 2.0).reshape((ROWS, 2) if window.axis == 0 else (2, ROWS), order="F")
    rows = np.moveaxis(array, window.axis, 0).copy()  # what the loop below updates

    entering = np.asarray(window.entering_rows(jnp.asarray(array)))
    entering = entering.reshape(window.length, window.entering, *window.block(array.shape))
    held = [np.asarray(row) for row in window.kept_rows(jnp.asarray(array))]
    left = np.zeros_like(entering)

    steps = range(window.length)
    for step in reversed(steps) if window.reverse else steps:
        start = window.stride * step + window.low
        new = list(entering[step])
        inside = [*held, *new] if window.climbs else [*new, *held]
        found = np.reshape(inside, (window.size, 2))
        np.testing.assert_array_equal(found, rows[start : start + window.size])
        inside = [row * 2 + 1 for row in inside]
        rows[start : start + window.size] = np.reshape(inside, (window.size, 2))
        n = window.entering if window.climbs else window.kept
        held = inside[n:] if window.climbs else inside[:n]
        left[step] = inside[:n] if window.climbs else inside[n:]

    stacked = left[:, 0] if window.entering == 1 else left
    result = window.result(jnp.asarray(array), jnp.asarray(stacked), *map(jnp.asarray, held))
    np.testing.assert_array_equal(np.moveaxis(np.asarray(result), window.axis, 0), rows)


def test_the_least_window_that_all_accesses_are_in() -> None:
    def f(ys: jax.Array) -> jax.Array:
        def step(i: jax.Array, ys: jax.Array) -> jax.Array:
            return ys.at[i + 3].set(ys[i] * ys[i + 1])

        return lax.fori_loop(0, 5, step, ys)

    scan, found = _loop(f)
    window = sliding(scan, found.accesses, 0)
    assert window == Window(0, stride=1, low=0, size=4, length=5, reverse=False)
    assert (window.entering, window.kept, window.touched) == (1, 3, 8)
    assert window.incoming == range(3, 8)
    assert window.held == range(5, 8)
    assert window.is_put_together((8,))


@pytest.mark.parametrize("other", [lambda i: 2 * i, lambda i: 7 - i, lambda i: 0 * i])
def test_there_is_none_where_they_do_not_move_alike(other) -> None:
    def f(ys: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 4, lambda i, ys: ys.at[i].set(ys[other(i)]), ys)

    scan, found = _loop(f)
    assert sliding(scan, found.accesses, 0) is None


def _loop(f):
    """The loop of a function, and what it does to the array it carries."""
    graph = import_jaxpr(traced(f, jnp.ones(8)))
    (scan,) = scans(graph)
    (found,) = (b for carry in scan.carries if isinstance(b := buffer(scan, carry), Buffer))
    return scan, found
