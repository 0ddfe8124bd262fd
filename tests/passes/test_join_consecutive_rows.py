"""Rows at consecutive places are one window."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.windows.join_consecutive_rows import JoinConsecutiveRows
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite
from tests.loops import alone, memory

JOIN = JoinConsecutiveRows()


def test_lags_and_overlapping_sums():
    """(1-3) Read from the last to the first, and added in order."""

    def program(xs, ys):
        def step(t, y):
            row = xs[t + 4 - jnp.arange(4)]
            return y.at[t + jnp.arange(4)].add(row)

        return lax.fori_loop(0, 5, step, ys)

    check_rewrite(
        JOIN,
        program,
        "f32[9]",
        "f32[8]",
        simplify=True,
        diff="""
          fn (xs:f32[9], ys:f32[8]) {
            c:i32[], c1:f32[8] = scan[5] carry(c=0, c1=ys) {
              a:i32[] = add c 1
              a1:i32[] = add c 4
              i:i32[4] = iota
              c2:i32[] = convert_element_type a1
              s:i32[4] = sub c2 i
        -     b:i32[4,1] = broadcast_in_dim[dims=(0,)] s
        -     g:f32[4] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=promise_in_bounds] xs b
        +     s2:i32[1] = slice[3:] s
        +     r:i32[] = reshape s2
        +     d:f32[4] = dynamic_slice xs r
        +     r1:f32[4] = rev[dimensions=(0,)] d
              c3:i32[] = convert_element_type c
              a2:i32[4] = add c3 i
        -     b1:i32[4,1] = broadcast_in_dim[dims=(0,)] a2
        +     s3:i32[1] = slice[:1] a2
        -     s1:f32[8] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] c1 b1 g
        +     s1:f32[8] = scatter-add[update_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c1 s3 r1
              yield carry(a, s1)
            }
            return c1
          }
        """,
    )


R = np.arange(3)


def rows(read):
    """A loop over what a step reads of an array, or makes of it."""
    return lambda x: lax.fori_loop(0, 4, lambda t, x: read(x, t), x)


def windows(x, sizes):
    """A window for each of some starts."""
    return jax.vmap(lambda i, j: lax.dynamic_slice(x, (i, j), sizes))


FOUND = {
    "a patch": lambda x, t: x + jnp.sum(x[t + R[:, None], 1 + R]),
    "a patch turned around": lambda x, t: x + jnp.sum(x[t + R[:, None], 3 - R]),
    "a patch that is transposed": lambda x, t: x.at[t + R, 1 + R[:, None]].set(x[R[:, None], R]),
    "whole rows": lambda x, t: x.at[t + R].set(x[3 + R]),
    "whole columns": lambda x, t: x.at[:, t + R].add(x[:, R]),
    "a part of a row": lambda x, t: x.at[t, 1 + R].set(t * 1.0),
    "rows of a batch": lambda x, t: jax.vmap(lambda row: row.at[t + R].add(row[3 - R]))(x),
    "an index from the end": lambda x, t: x.at[-1 - R].add(x[t]),
    "windows of a row": lambda x, t: x + jnp.sum(windows(x, (1, 6))(t + R, 0 * R) ** 2),
    "windows of part of a row": lambda x, t: x * jnp.sum(windows(x, (1, 3))(t + R, 2 + 0 * R)),
    "windows of a column": lambda x, t: x * jnp.sum(windows(x, (6, 1))(0 * R, t + R)),
    "an axis of length one": lambda x, t: x.at[t + R[None], 1].set(x[R[None], 0]),
}


@pytest.mark.parametrize("case", FOUND)
def test_windows(case):
    graph = alone(JOIN, rows(FOUND[case]), "f32[6,6]", fires=True)
    several = [op for op in graph.walk() if op.name in JOIN.primitives and op.operands[1].size > 2]
    assert not several


@pytest.mark.parametrize("kind", ["i32[7]", "u8[7]", "bool[7]", "c64[7]", "bf16[7]"])
def test_types(kind):
    alone(JOIN, lambda x: x.at[1 + R].set(x[5 - R]), kind, fires=True)


NONE = {
    "along a diagonal": lambda x, t: x + jnp.sum(x[R, R]),  # (1)
    "at every other place": lambda x, t: x + jnp.sum(x[2 * R]),  # (1)
    "twice at one place": lambda x, t: x.at[R[:, None] * 0 + R].add(x[0]),  # (1)
    "moved twice along one axis": lambda x, t: x + jnp.sum(x[R[:, None] + R]),  # (1)
    "where the data say": lambda x, t: x + jnp.sum(x[R + x[0, 0].astype(int)]),  # (1)
    "out of range in the last step": lambda x, t: x.at[t + 1 + R].add(1.0),  # (2)
    "out of range in the first": lambda x, t: x.at[t + R - 1].get(mode="clip").sum() + x,  # (2)
    "overlapping": lambda x, t: x + jnp.sum(overlapping(x)),  # (3)
    "rows of a batch, each elsewhere": lambda x, t: x + elsewhere(x),  # (4)
    "by a function": lambda x, t: x.at[t + R].apply(jnp.sin),  # (4)
}


def overlapping(x):
    numbers = lax.GatherDimensionNumbers((1, 2), (), (0,))
    return lax.gather(x, R[:, None], numbers, (2, 6))


def elsewhere(x):
    return jax.vmap(lambda row, k: row[k + R].sum())(x, jnp.arange(6) % 3)[:, None]


@pytest.mark.parametrize("case", NONE)
def test_what_is_no_window(case):
    alone(JOIN, rows(NONE[case]), "f32[6,6]", fires=False)


def test_what_is_added_where_it_is_computed_stays():
    """Cost: `tanh` of one element at a time."""

    def program(xs, ys):
        step = lambda t, y: y.at[t + R].add(jnp.tanh(xs[t]))
        return lax.fori_loop(0, 5, step, ys)

    check_refuses(JOIN, program, "f32[5,3]", "f32[8]", because="element by element")
    with using(CostModel.of_backend("gpu")):
        alone(JOIN, program, "f32[5,3]", "f32[8]", fires=True)


def moving_average(xs, taps):
    """A recursive filter: each sample is made of the last ones."""
    lags, n = jnp.arange(1, len(taps) + 1), len(xs)
    step = lambda t, ys: ys.at[t + 8].set(xs[t] + jnp.dot(taps, ys[t + 8 - lags]))
    return jnp.sum(lax.fori_loop(0, n, step, jnp.zeros(n + 8)) ** 2)


@pytest.mark.parametrize("order", ["grad(optimize)", "optimize(grad)"])
def test_no_indices_are_stored_for_a_gradient(order):
    """The windows are, and the gradient adds to windows."""
    args = np.ones(200, np.float32), np.full(8, 0.1, np.float32)
    plain = jax.jit(jax.grad(moving_average, (0, 1)))
    if order == "optimize(grad)":
        ours = optimize(jax.grad(moving_average, (0, 1)))
    else:
        ours = jax.jit(jax.grad(optimize(moving_average), (0, 1)))
    assert_same(plain, ours, args, grad=False)
    assert memory(ours, *args) < 0.6 * memory(plain, *args)
