"""Dynamic programming: a table filled row by row and cell by cell, and a gradient through it.

The table is the carry of two nested loops, and each cell is computed from three cells beside it. In
the gradient of the soft alignment plain JAX adds whole tables once per cell. By hand only a row is
carried, and the cell to the left.

    cd examples; jaxpr-opt diff alignment.py:gradient --args-from alignment.py:arguments
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Border = tuple[jax.Array, jax.Array]
"""The first row and the first column."""

Cell = Callable[[Any, Any, Any, Any], jax.Array]
"""The value of a cell from its cost and the cells above, to the left, and above the left one."""

Fill = Callable[[jax.Array, Border, Cell], jax.Array]

FAR = 1e6


def table(costs: jax.Array, border: Border, cell: Cell) -> jax.Array:
    """Fill a table of one row and column more than `costs`; its last cell."""
    rows, columns = costs.shape
    first_row, first_column = border
    init = jnp.zeros((rows + 1, columns + 1), costs.dtype)
    init = init.at[0].set(first_row).at[:, 0].set(first_column)

    def row(i: jax.Array, table: jax.Array) -> jax.Array:
        def column(j: jax.Array, table: jax.Array) -> jax.Array:
            beside = table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]
            return table.at[i, j].set(cell(costs[i - 1, j - 1], *beside))

        return lax.fori_loop(1, columns + 1, column, table)

    return lax.fori_loop(1, rows + 1, row, init)[rows, columns]


def table_in_one_loop(costs: jax.Array, border: Border, cell: Cell) -> jax.Array:
    """The same in one loop over all cells."""
    rows, columns = costs.shape
    first_row, first_column = border
    init = jnp.zeros((rows + 1, columns + 1), costs.dtype)
    init = init.at[0].set(first_row).at[:, 0].set(first_column)

    def each(k: jax.Array, table: jax.Array) -> jax.Array:
        i, j = jnp.divmod(k, columns)
        beside = table[i, j + 1], table[i + 1, j], table[i, j]
        return table.at[i + 1, j + 1].set(cell(costs[i, j], *beside))

    return lax.fori_loop(0, rows * columns, each, init)[rows, columns]


def table_by_hand(costs: jax.Array, border: Border, cell: Cell) -> jax.Array:
    """The same, by an author who keeps what the next cells need."""
    first_row, first_column = border

    def row(above: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        row_costs, first = inputs

        def column(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[Any, jax.Array]:
            left, diagonal = carry
            cost, up = inputs
            value = cell(cost, up, left, diagonal)
            return (value, up), value

        _, values = lax.scan(column, (first, above[0]), (row_costs, above[1:]))
        return jnp.concatenate([first[None], values]), None

    return lax.scan(row, first_row, (costs, first_column[1:]))[0][-1]


def row_by_hand(costs: jax.Array, border: Border, cell: Cell) -> jax.Array:
    """The same in one row that is updated in place: where there is no gradient."""
    first_row, first_column = border
    rows, columns = costs.shape

    def row(i: jax.Array, values: jax.Array) -> jax.Array:
        def column(j: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            values, left, diagonal = carry
            up = values[j]
            value = cell(costs[i, j], up, left, diagonal)
            return values.at[j].set(value), value, up

        corner = jnp.where(i == 0, first_row[0], first_column[i])
        return lax.fori_loop(0, columns, column, (values, first_column[i + 1], corner))[0]

    return lax.fori_loop(0, rows, row, first_row[1:])[-1]


def edit_cell(differ: jax.Array, up: jax.Array, left: jax.Array, diagonal: jax.Array) -> jax.Array:
    """Delete, insert, or replace where the letters differ."""
    return jnp.minimum(jnp.minimum(up, left) + 1, diagonal + differ)


def soft_cell(cost: jax.Array, up: jax.Array, left: jax.Array, diagonal: jax.Array) -> jax.Array:
    """Soft dynamic time warping."""
    return cost - jax.nn.logsumexp(-jnp.stack([up, left, diagonal]))


def edit_distance(source: jax.Array, target: jax.Array, fill: Fill = table) -> jax.Array:
    """How many letters to change."""
    differ = (source[:, None] != target).astype(jnp.int32)
    border = jnp.arange(target.size + 1), jnp.arange(source.size + 1)
    return fill(differ, border, edit_cell)


def soft_alignment(source: jax.Array, target: jax.Array, fill: Fill = table) -> jax.Array:
    """The cost of aligning two series softly."""
    costs = (source[:, None] - target) ** 2
    first_row = jnp.full(target.size + 1, FAR).at[0].set(0)
    first_column = jnp.full(source.size + 1, FAR).at[0].set(0)
    return fill(costs, (first_row, first_column), soft_cell)


def edit_distance_by_hand(source: jax.Array, target: jax.Array) -> jax.Array:
    """One row in place."""
    return edit_distance(source, target, row_by_hand)


def edit_distance_stacked(source: jax.Array, target: jax.Array) -> jax.Array:
    """Each row is a stack, and the stream of the next."""
    return edit_distance(source, target, table_by_hand)


def soft_alignment_in_one_loop(source: jax.Array, target: jax.Array) -> jax.Array:
    """Cell by cell, ``i, j = divmod(k, columns)``."""
    return soft_alignment(source, target, table_in_one_loop)


def soft_alignment_by_hand(source: jax.Array, target: jax.Array) -> jax.Array:
    """Each row is a stack, and the stream of the next."""
    return soft_alignment(source, target, table_by_hand)


def gradient(source: jax.Array, target: jax.Array) -> jax.Array:
    """The gradient of the soft alignment with respect to the first series."""
    return jax.grad(soft_alignment)(source, target)


def arguments(rows: int = 64, columns: int = 16) -> tuple[jax.Array, jax.Array]:
    """Two series to align."""
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (rows,)), jax.random.normal(keys[1], (columns,))


def words(rows: int, columns: int = 64) -> tuple[jax.Array, jax.Array]:
    """Two words to compare."""
    keys = jax.random.split(jax.random.key(0))
    return jax.random.randint(keys[0], (rows,), 0, 4), jax.random.randint(keys[1], (columns,), 0, 4)
