"""Elements taken out of rows and put into others by shifting, in a loop and in its gradient.

Each step touches a window of a fixed size (jax#17845), yet XLA copies the whole array where a step
reads from it what it then overwrites, and the gradient (jax#17640) clears and adds whole arrays.

    cd examples; jaxpr-opt diff shifted_rows.py:gradient --args-from shifted_rows.py:arguments
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SHIFT = 16
"""How many elements are shifted; rows have room for twice as many."""

Move = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""From which row and place to which row and place, one of each per step."""


def take(values: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take elements out one after the other, closing the gap each leaves."""

    def step(values: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        taken = values[i]
        tail = lax.dynamic_slice(values, (i + 1,), (SHIFT,))
        return lax.dynamic_update_slice(values, tail, (i,)), taken

    return lax.scan(step, values, places)


def take_by_hand(values: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One window is read, by the step before: a buffer that is read last is not copied."""

    def window(values: jax.Array, i: jax.Array) -> jax.Array:
        return lax.dynamic_slice(values, (i,), (SHIFT + 1,))

    def step(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[Any, jax.Array]:
        values, around = carry
        i, following = inputs
        values = lax.dynamic_update_slice(values, around[1:], (i,))
        return (values, window(values, following)), around[0]

    init = values, window(values, places[0])
    (values, _), taken = lax.scan(step, init, (places, jnp.roll(places, -1)))
    return values, taken


def moves(scale: jax.Array, rows: jax.Array, move: Move) -> jax.Array:
    """Move elements between rows, scaled on the way; mean square of what is there at the end."""

    def step(rows: jax.Array, move: Move) -> tuple[jax.Array, None]:
        source, i, target, j = move
        taken = rows[source, i]
        tail = lax.dynamic_slice(rows, (source, i + 1), (1, SHIFT))
        rows = lax.dynamic_update_slice(rows, tail, (source, i))
        tail = lax.dynamic_slice(rows, (target, j), (1, SHIFT))
        rows = lax.dynamic_update_slice(rows, tail, (target, j + 1))
        return rows.at[target, j].set(jnp.sin(scale * taken)), None

    return jnp.mean(lax.scan(step, rows, move)[0] ** 2)


@jax.custom_vjp
def moves_by_hand(scale: jax.Array, rows: jax.Array, move: Move) -> jax.Array:
    """A window is read and written at each end of a move, and the gradient undoes the shifts."""
    return _moves_forward(scale, rows, move)[0]


def _read(rows: jax.Array, row: jax.Array, i: jax.Array) -> jax.Array:
    return lax.dynamic_slice(rows, (row, i), (1, SHIFT + 1))[0]


def _write(rows: jax.Array, row: jax.Array, i: jax.Array, *pieces: jax.Array) -> jax.Array:
    window = jnp.concatenate([jnp.atleast_1d(piece) for piece in pieces])
    return lax.dynamic_update_slice(rows, window[None], (row, i))


def _moves_forward(
    scale: jax.Array, rows: jax.Array, move: Move
) -> tuple[jax.Array, tuple[Any, ...]]:
    source, i, _, _ = move

    def step(carry: tuple[Any, Any], inputs: tuple[Any, ...]) -> tuple[Any, jax.Array]:
        rows, around = carry
        (source, i, target, j), following = inputs
        taken = around[0]
        rows = _write(rows, source, i, around[1:])
        rows = _write(rows, target, j, jnp.sin(scale * taken), _read(rows, target, j)[:-1])
        return (rows, _read(rows, *following)), taken

    following = jnp.roll(source, -1), jnp.roll(i, -1)
    init = rows, _read(rows, source[0], i[0])
    (rows, _), taken = lax.scan(step, init, (move, following))
    return jnp.mean(rows**2), (scale, rows, move, taken)


def _moves_backward(residuals: tuple[Any, ...], ct: jax.Array) -> tuple[Any, Any, None]:
    scale, rows, move, taken = residuals
    _, _, target, j = move

    def step(carry: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, None]:
        ct_scale, ct_rows, around = carry
        (source, i, target, j), before, taken = inputs
        ct_product = around[0] * jnp.cos(scale * taken)
        ct_rows = _write(ct_rows, target, j, around[1:], jnp.zeros(1))
        shifted = _read(ct_rows, source, i)
        ct_rows = _write(
            ct_rows, source, i, scale * ct_product, shifted[:-2], shifted[-2] + shifted[-1]
        )
        return (ct_scale + ct_product * taken, ct_rows, _read(ct_rows, *before)), None

    ct_rows = 2 * ct * rows / rows.size
    init = jnp.zeros_like(scale), ct_rows, _read(ct_rows, target[-1], j[-1])
    inputs = move, (jnp.roll(target, 1), jnp.roll(j, 1)), taken
    (ct_scale, ct_rows, _), _ = lax.scan(step, init, inputs, reverse=True)
    return ct_scale, ct_rows, None


moves_by_hand.defvjp(_moves_forward, _moves_backward)


def gradient(scale: jax.Array, rows: jax.Array, move: Move) -> Any:
    """The gradient with respect to the scale and the rows."""
    return jax.grad(moves, argnums=(0, 1))(scale, rows, move)


def arguments(size: int = 256) -> tuple[jax.Array, jax.Array, Move]:
    """What `gradient` is called with: as many moves as rows."""
    keys = jax.random.split(jax.random.key(0), 5)
    rows = jax.random.normal(keys[0], (size, 2 * SHIFT))
    source, target = (jax.random.randint(key, (size,), 0, size) for key in keys[1:3])
    i, j = (jax.random.randint(key, (size,), 0, SHIFT) for key in keys[3:])
    return jnp.float32(1.1), rows, (source, i, target, j)


def take_arguments(size: int) -> tuple[jax.Array, jax.Array]:
    """What `take` is called with: half of the elements are taken."""
    values = jax.random.normal(jax.random.key(0), (size,))
    return values, jax.random.randint(jax.random.key(1), (size // 2,), 0, size - SHIFT - 1)
