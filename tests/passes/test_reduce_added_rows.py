"""A reduction of zeros with some rows in them is the reduction of the rows."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.sparse.reduce_added_rows import ReduceAddedRows
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone

REDUCE, SUM = ReduceAddedRows(), ReduceAddedRows("all")
TYPES = "f32[64,2]", "i32[3]", "f32[3,2]"


@pytest.fixture(autouse=True)
def cheap():
    """Programs here are small, and about what is done where it helps."""
    with using(CostModel.of_backend("cpu").but(kernel=0.0)):
        yield


def reduced(by, **options):
    """A reduction of a gradient that is zero but for rows."""
    return lambda table, ids, us: by(jnp.zeros_like(table).at[ids].add(us, **options))


def finite(g):
    return jnp.all(jnp.isfinite(g))


def test_whether_a_gradient_is_finite():
    """(1, 2)"""
    check_rewrite(
        REDUCE,
        reduced(finite, mode="promise_in_bounds", wrap_negative_indices=False),
        "f32[64,2]",
        "i32[1]",
        "f32[1,2]",
        diff="""
              fn (table:f32[64,2], ids:i32[1], us:f32[1,2]) {
                b:f32[64,2] = broadcast_in_dim 0.0
                b1:i32[1,1] = broadcast_in_dim[dims=(0,)] ids
                s:f32[64,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b b1 us
                i:bool[64,2] = is_finite s
            +   i1:bool[] = is_finite 0.0
            +   b2:i32[1,1,1] = broadcast_in_dim[dims=(0, 2)] b1
            +   b3:i32[1,1,1] = broadcast_in_dim b1
            +   e:bool[1,1,1] = eq b2 b3
            +   r1:bool[1,1] = reduce_and[axes=(2,)] e
            +   i2:i32[1,1] = iota[dimension=1]
            +   b4:i32[1,1] = broadcast_in_dim 1
            +   s1:i32[1,1] = select_n r1 b4 i2
            +   r2:i32[1] = reduce_min[axes=(1,)] s1
            +   i3:i32[1] = iota
            +   e1:bool[1] = eq r2 i3
            +   b5:i32[1,1] = broadcast_in_dim 2147483647
            +   b6:bool[1,1] = broadcast_in_dim[dims=(0,)] e1
            +   s2:i32[1,1] = select_n b6 b5 b1
            +   s3:i32[1] = slice[:] r2
            +   b7:f32[1,2] = broadcast_in_dim 0.0
            +   b8:i32[1,1] = broadcast_in_dim[dims=(0,)] s3
            +   s4:f32[1,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b7 b8 us
            +   i4:bool[1,2] = is_finite s4
            +   g:bool[1,1] = ge s2 0
            +   b9:i32[1,1] = broadcast_in_dim [63]
            +   l:bool[1,1] = le s2 b9
            +   a:bool[1,1] = and g l
            +   r3:bool[1] = reduce_and[axes=(1,)] a
            +   r4:bool[1,1] = reshape r3
            +   b10:bool[1,2] = broadcast_in_dim r4
            +   b11:bool[1,2] = broadcast_in_dim i1
            +   s5:bool[1,2] = select_n b10 b11 i4
            -   r:bool[] = reduce_and[axes=(0, 1)] i
            +   r:bool[] = reduce_and[axes=(0, 1)] s5
            +   a1:bool[] = and i1 r
            -   return r
            +   return a1
              }
        """,
    )


BY = {
    "greatest": jnp.max,
    "least": lambda g: jnp.min(1 - g),
    "largest": lambda g: jnp.max(jnp.abs(g)),
    "finite": finite,
    "is any NaN": lambda g: jnp.any(jnp.isnan(g)),
    "how many": lambda g: jnp.sum(g > 1),
    "how many are not": lambda g: jnp.count_nonzero(g == 0),
    "converted": lambda g: jnp.max((3 * g).astype("bfloat16")),
    "divided by zero": lambda g: jnp.max(1 / g),
    "of two ways": lambda g: jnp.max(jnp.where(g > 0, g, -2 * g) * jnp.sin(g)),
}
IDS = [[4, 4, 9], [-1, 63, 64], [0, 1, -65], [200, 300, -300]]
US = (10.0 ** jnp.arange(6.0) / 300 * jnp.array([1, -1, 1, 1, -1, 1])).reshape(3, 2)


def same(program, *args, by=REDUCE, fires=True):
    before, after = (import_jaxpr(traced(program, *args), "final") for _ in range(2))
    assert bool(run_alone((by,), after).record(by.name, False).rewrites) == fires
    agree = assert_close if by.reassociates else assert_same_bits
    agree(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


@pytest.mark.parametrize("number", [1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("by", BY.values(), ids=BY)
def test_the_same_bits(by, number):
    """(1, 2, 4) Rows that are the same, that are clamped, or dropped."""
    us = US.at[1, 0].set(number)
    for ids in IDS:
        for options in ({"mode": "clip"}, {"mode": "drop", "wrap_negative_indices": False}):
            same(reduced(by, **options), jnp.ones((64, 2)), jnp.array(ids), us)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "bfloat16"])
@pytest.mark.parametrize("by", [jnp.max, jnp.min, lambda g: jnp.sum(g, dtype=g.dtype)])
def test_types(by, dtype):
    """(4) Sums of integers wrap around."""
    args = jnp.ones((64, 2), dtype), jnp.array([4, 4, 9]), jnp.full((3, 2), 101).astype(dtype)
    is_rounded = by not in (jnp.max, jnp.min) and "float" in dtype
    same(reduced(by), *args, fires=not is_rounded)


def test_of_a_loop_and_of_two_ops():
    """(1) A step of a loop; rows that two ops add to."""

    def program(table, ids, us):
        def step(most, x):
            g = jnp.zeros_like(table).at[x[0]].add(x[1])
            return jnp.maximum(most, jnp.max(g)), None

        return lax.scan(step, -jnp.inf, (ids, us))[0]

    same(program, jnp.ones((64, 2)), jnp.array(IDS), jnp.stack([US, -US, 2 * US, US]))

    def apart(table, ids, us):
        ends = jnp.zeros_like(table).at[60].add(us[0]).at[3].add(us[1])
        return jnp.max(ends)

    same(apart, jnp.ones((64, 2)), jnp.array(IDS[0]), US)


def test_the_numbers_on_the_way():
    """(2) A scalar that makes NaN of zeros does so."""
    for rate in (2.0, np.inf, np.nan):
        for by, reduce in ((REDUCE, jnp.max), (SUM, jnp.sum)):
            program = lambda t, i, u, r: reduce(r * jnp.zeros_like(t).at[i].add(u))  # noqa: B023
            same(program, jnp.ones((64, 2)), jnp.array(IDS[0]), US, np.float32(rate), by=by)


@pytest.mark.parametrize("ids", IDS)
def test_a_norm(ids):
    """(4) Each row counts once, and only under `reassociate=True`."""
    norm = lambda g: jnp.sqrt(jnp.sum(g**2) + jnp.sum(g + 1))
    args = jnp.ones((64, 2)), jnp.array(ids), US
    for mode in ("clip", "drop"):
        same(reduced(norm, mode=mode), *args, by=SUM)
    same(reduced(norm), *args, fires=False)


def of_rows(t, i, u):
    return jnp.zeros_like(t).at[i].add(u)


def in_a_loop(t, i, u):
    most = jnp.abs(of_rows(t, i, u))
    return lax.scan(lambda c, x: (c + jnp.max(x * most), None), 0.0, u[:, 0])[0]


REFUSED = [
    pytest.param(lambda t, i, u: jnp.max(of_rows(t, i, u), axis=0), None, id="rows"),
    pytest.param(in_a_loop, None, id="made in part outside of the loop"),
    pytest.param(
        lambda t, i, u: jnp.max(lax.pad(u, 0.0, [(9, 52, 0), (0, 0, 0)])), "as it makes", id="pad"
    ),
    pytest.param(lambda t, i, u: jnp.argmax(of_rows(t, i, u)), None, id="where"),
    pytest.param(lambda t, i, u: jnp.max(t.at[i].add(u)), None, id="not zero"),
    pytest.param(lambda t, i, u: jnp.max(t + of_rows(t, i, u)), None, id="with an array"),
    pytest.param(lambda t, i, u: jnp.max(jnp.cumsum(of_rows(t, i, u))), None, id="not elementwise"),
    pytest.param(
        lambda t, i, u: jnp.max(jnp.zeros_like(t).at[i[:2]].add(u[:2]).at[i[2]].add(u[2])),
        "of two ops may overlap",
        id="of two ops",
    ),
    pytest.param(
        lambda t, i, u: jnp.max(of_rows(t[:3], i, u)), "may be all of", id="of all"
    ),  # (3)
    pytest.param(lambda t, i, u: jnp.max(of_rows(t[:4], i, u)), "as large as", id="of most"),
]


@pytest.mark.parametrize(("program", "because"), REFUSED)
def test_refused(program, because):
    """(1, 2, 3, 4) By the reason that it gives, or not looked at."""
    if because is None:
        alone(REDUCE, program, *TYPES, fires=False)
    else:
        check_refuses(REDUCE, program, *TYPES, because=because)


def test_windows_may_overlap_in_part():
    """(1) Two rows wide."""
    rows = lax.ScatterDimensionNumbers((1,), (), (0,))
    wide = lambda t, i, u: jnp.max(lax.scatter_add(jnp.zeros_like(t), i[:, None], u, rows))
    check_refuses(REDUCE, wide, "f32[999]", "i32[3]", "f32[3,2]", because="overlap in part")


def test_small_arrays_are_reduced():
    """Cost: starting the ops for rows takes longer."""
    with using(CostModel.of_backend("cpu")):
        alone(REDUCE, reduced(jnp.max), *TYPES, fires=False)
        alone(REDUCE, reduced(jnp.max), "f32[9000,2]", *TYPES[1:], fires=True)


def test_no_rows():
    rows = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    program = lambda table, ids, us: jnp.max(lax.scatter_add(jnp.zeros_like(table), ids, us, rows))
    alone(REDUCE, program, TYPES[0], "i32[0,1]", "f32[0,2]", fires=True)


def test_a_step_of_training():
    """No gradient as large as the table is made, to clip it, or to see whether it is finite."""
    table = jnp.ones((40_000, 4))

    def clipped(table, i, y):
        g = jax.grad(lambda table: (jnp.tanh(table[i]).sum() - y) ** 2)(table)
        return table - 0.1 * g * jnp.minimum(1.0, 1 / jnp.sqrt(jnp.sum(g**2)))

    def checked(table, i, y):
        g = jax.grad(lambda table: (jnp.tanh(table[i]).sum() - y) ** 2)(table)
        return jnp.where(finite(g), table - 0.1 * g, table)

    for train, reassociates in ((clipped, True), (checked, False)):
        for y in (2.0, np.inf):
            args = table, jnp.array(IDS[0]), jnp.float32(y)
            ours = optimize(jax.jit(train, donate_argnums=0), reassociate=reassociates)
            memory = ours.lower(*args).compile().memory_analysis()
            assert memory.temp_size_in_bytes < table.nbytes / 100
            assert_close(ours(table.copy(), *args[1:]), jax.jit(train)(*args))
