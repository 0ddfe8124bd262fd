"""Tables of a batch that are written at one place, or not at all, are written as one window."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.batches.write_rows_together import WriteRowsTogether
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

TOGETHER = WriteRowsTogether()


def written(a, u, place, axes=(0,), mode="drop"):
    """One row, or number, written at a place."""
    numbers = lax.ScatterDimensionNumbers(tuple(range(jnp.ndim(u))), axes, axes)
    return lax.scatter(a, jnp.atleast_1d(place), u, numbers, mode=mode)


def accepted(a, u, p, i):
    """Out of range where it is not accepted."""
    return written(a, u, jnp.where(p, i, 8))


def batched(step, axes=(0, 0, 0, None)):
    return jax.vmap(step, in_axes=axes)


TYPES = "f32[3,8]", "f32[3]", "bool[3]", "i32[]"


def test_an_element_of_each_table():
    """(1, 2) Place 8 is out of range."""
    check_rewrite(
        TOGETHER,
        batched(accepted),
        *TYPES,
        simplify=True,
        diff="""
          fn (a:f32[3,8], u:f32[3], p:bool[3], i:i32[]) {
        -   b:i32[3] = broadcast_in_dim 8
        -   b1:i32[3] = broadcast_in_dim i
        -   s:i32[3] = select_n p b b1
        -   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] s
        +   b3:i32[1] = broadcast_in_dim i
        +   g:f32[3] = gather[offset_dims=(0,), collapsed_slice_dims=(1,), start_index_map=(1,), slice_sizes=(3, 1), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=0] a b3
        +   s2:f32[3] = select_n p g u
        -   s1:f32[3,8] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), mode=fill_or_drop] a b2 u
        +   s1:f32[3,8] = scatter[update_window_dims=(0,), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), indices_are_sorted, unique_indices, mode=fill_or_drop] a b3 s2
            return s1
          }
        """,
    )


@pytest.mark.parametrize(
    ("step", "types", "axes"),
    {
        "rows": (accepted, ("f32[3,8,5]", "f32[3,5]", "bool[3]", "i32[]"), (0, 0, 0, None)),
        "the other case": (
            lambda a, u, p, i: written(a, u, jnp.where(p, 9, i)),
            TYPES,
            (0, 0, 0, None),
        ),
        "tables along another axis": (
            accepted,
            ("f32[8,3]", "f32[3]", "bool[3]", "i32[]"),
            (1, 0, 0, None),
        ),
        "two indices": (
            lambda a, u, p, i: written(a, u, jnp.where(p, jnp.stack([i, i]), 8), (0, 1)),
            ("f32[3,8,4]", "f32[3]", "bool[3]", "i32[]"),
            (0, 0, 0, None),
        ),
        "one window of two rows": (
            lambda a, u, p, i: lax.scatter(
                a,
                jnp.where(p, i, 7)[None],
                u,
                lax.ScatterDimensionNumbers((0,), (), (0,)),
                mode="drop",
            ),
            ("f32[3,8]", "f32[3,2]", "bool[3]", "i32[]"),
            (0, 0, 0, None),
        ),
        "integers": (accepted, ("i32[3,8]", "i32[3]", "bool[3]", "i32[]"), (0, 0, 0, None)),
    }.values(),
)
def test_tables_of_every_kind(step, types, axes):
    """(1, 2) Places may be out of range themselves."""
    for place in (0, 5, 8, -1, 40):
        alone(
            TOGETHER,
            lambda *a, place=place: batched(step, axes)(*a[:-1], jnp.int32(place) + 0 * a[-1]),
            *types,
            fires=True,
        )


def test_a_batch_of_batches():
    """(2) The place is the same for all, whether one is written is not."""
    step = batched(batched(accepted), (0, 0, 0, None))
    alone(TOGETHER, step, "f32[2,3,8]", "f32[2,3]", "bool[2,3]", "i32[]", fires=True)


@pytest.mark.parametrize(
    ("step", "axes"),
    {
        "(1) rows are clamped": (
            lambda a, u, p, i: written(a, u, jnp.where(p, i, 8), mode="clip"),
            (0, 0, 0, None),
        ),
        "(1) one adds": (
            lambda a, u, p, i: a.at[jnp.where(p, i, 8)].add(u, mode="drop"),
            (0, 0, 0, None),
        ),
        "(1) each writes two windows": (
            lambda a, u, p, i: lax.scatter(
                a,
                jnp.where(p, jnp.full((2, 1), i), 8),
                jnp.stack([u, u + 1]),
                lax.ScatterDimensionNumbers((), (0,), (0,)),
                mode="drop",
            ),
            (0, 0, 0, None),
        ),
        "(1) a table has no rows": (
            lambda a, u, p, i: written(a[:0], u, jnp.where(p, i, 8)),
            (0, 0, 0, None),
        ),
        "(2) one of three places": (
            lambda a, u, p, i: written(a, u, lax.select_n(p.astype("int32"), 8, i, i + 1)),
            (0, 0, 0, None),
        ),
        "(2) each has a place": (
            lambda a, u, p, i: written(a, u, jnp.where(p, u.astype("int32"), 8)),
            (0, 0, 0, None),
        ),
        "(2) what is not accepted is in range": (
            lambda a, u, p, i: written(a, u, jnp.where(p, i, 7)),
            (0, 0, 0, None),
        ),
        "(2) it is the first place": (
            lambda a, u, p, i: written(a, u, jnp.where(p, i, 0)),
            (0, 0, 0, None),
        ),
        "(2) a component is selected by itself": (
            lambda a, u, p, i: written(
                a.reshape(2, 4), u, jnp.where(jnp.stack([p, ~p]), jnp.stack([i, i]), 8), (0, 1)
            ),
            (0, 0, 0, None),
        ),
        "no batch": (lambda a, u, p, i: written(a[0], u[0], jnp.where(p[0], i, 8)), None),
    }.values(),
)
def test_places_that_differ(step, axes):
    alone(TOGETHER, step if axes is None else batched(step, axes), *TYPES, fires=False)


def test_keys():
    """(3) They are no arrays of numbers."""
    check_refuses(
        TOGETHER,
        batched(accepted),
        jax.random.split(jax.random.key(0), (3, 8)),
        jax.random.split(jax.random.key(1), 3),
        np.array([True, False, True]),
        jnp.int32(2),
        because="is read differently than it is written",
    )


def metropolis(x, us):
    """A step changes one spin, if that is accepted."""

    def step(x, tu):
        t, u = tu
        new = x[t % 8] + u
        return jnp.where(new * new < 0.5, x.at[t % 8].set(new), x), new

    return lax.scan(step, x, (jnp.arange(20), us))


def test_chains_in_any_order():
    """A batch of an optimised loop writes as an optimised batch of loops does."""
    x, us = jnp.linspace(-1, 1, 24).reshape(3, 8), jnp.sin(jnp.arange(60.0)).reshape(3, 20)
    batch = jax.vmap(optimize(metropolis))
    assert str(jax.jit(batch).lower(x, us).as_text()).count("input_batching_dims = [0]") == 0
    assert_close(jax.vmap(metropolis)(x, us), batch(x, us))
