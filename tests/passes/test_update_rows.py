"""A step of gradient descent updates the rows of a table that it has read."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.in_place.update_rows import UpdateRows
from jaxpr_opt.testing import (
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone

UPDATE = UpdateRows()
DEAR = CostModel.of_backend("cpu")


MODEL = DEAR.but(kernel=0.0)
"""Programs here are small, and about what is done where it helps."""
MARKED = MODEL.but(predicate=1.0)
"""Comparing all pairs of windows takes too long."""


@pytest.mark.parametrize(("rows", "fires"), [(100, False), (4000, True)])
def test_small_tables_where_loops_are_one_function(rows, fires, monkeypatch):
    """Starting the ops for rows takes longer than adding to all elements."""
    types = f"f32[{rows},2]", *TYPES[1:]
    for quick in (True, False):
        monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", not quick)
        with using(DEAR):
            alone(UPDATE, descent(fixed), *types, fires=fires or not quick)


IDS = np.array([[4, 4, -1], [7, -99, 4], [120, 120, 130], [0, 1, 2]], np.int32)
TYPES = "f32[128,2]", "i32[4,3]", "f32[4,3,2]", "f32[4]"


def descent(step, **options):
    """A loop that carries a table and has a sparse gradient in each step."""

    def program(table, ids, us, rates):
        def one(table, x):
            i, u, rate = x
            return step(table, jnp.zeros_like(table).at[i].add(u, **options), rate), None

        return lax.scan(one, table, (ids, us, rates))[0]

    return program


def fixed(table, gradient, rate):
    return table - 0.1 * gradient


def scheduled(table, gradient, rate):
    return table - rate * gradient


def test_a_fixed_rate():
    """(1, 3) Rows that are alike have one slot, and are written the same."""
    check_rewrite(
        UPDATE,
        descent(fixed, mode="promise_in_bounds", wrap_negative_indices=False),
        *TYPES,
        diff="""
            fn (table:f32[128,2], ids:i32[4,3], us:f32[4,3,2], rates:f32[4]) {
              c:f32[128,2] = scan[4] carry(c=table) xs(x=ids, x1=us, x2=rates) {
                b:f32[128,2] = broadcast_in_dim 0.0
                b1:i32[3,1] = broadcast_in_dim[dims=(0,)] x
                s:f32[128,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b b1 x1
                m:f32[128,2] = mul 0.1 s
          -     s1:f32[128,2] = sub c m
          +     b2:i32[3,1,1] = broadcast_in_dim[dims=(0, 2)] b1
          +     b3:i32[1,3,1] = broadcast_in_dim b1
          +     e:bool[3,3,1] = eq b2 b3
          +     r:bool[3,3] = reduce_and[axes=(2,)] e
          +     i:i32[3,3] = iota[dimension=1]
          +     b4:i32[3,3] = broadcast_in_dim 3
          +     s2:i32[3,3] = select_n r b4 i
          +     r1:i32[3] = reduce_min[axes=(1,)] s2
          +     b5:f32[3,2] = broadcast_in_dim 0.0
          +     b6:i32[3,1] = broadcast_in_dim[dims=(0,)] r1
          +     s3:f32[3,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b5 b6 x1
          +     b7:i32[3,1] = broadcast_in_dim[dims=(0,)] r1
          +     g:f32[3,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=promise_in_bounds] s3 b7
          +     g1:f32[3,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=promise_in_bounds] c b1
          +     m1:f32[3,2] = mul 0.1 g
          +     s4:f32[3,2] = sub g1 m1
          +     s5:f32[128,2] = scatter[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] c b1 s4
          -     yield carry(s1)
          +     yield carry(s5)
              }
              return c
            }
        """,
    )


def arguments(dtype="float32"):
    us = (10.0 ** jnp.arange(24.0) / 3e9).reshape(4, 3, 2).astype(dtype)
    return jnp.arange(256).reshape(128, 2).astype(dtype), IDS, us, jnp.ones(4, dtype)


def same(program, *args, fires=True):
    before, after = (import_jaxpr(traced(program, *args), "final") for _ in range(2))
    assert bool(run_alone((UPDATE,), after).record(UPDATE.name, False).rewrites) == fires
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("unwrapped", [True, False])
def test_the_same_bits(dtype, mode, unwrapped):
    """(3) Rows that are the same, also as they are clamped, and rows that are dropped."""
    program = descent(fixed, mode=mode, wrap_negative_indices=not unwrapped)
    for model in (MODEL, MARKED):
        with using(model):
            same(program, *arguments(dtype))


def test_many_windows_are_marked():
    """(3) Each writes its number where it is, and reads whose is there."""
    types = "f32[4096,2]", "i32[4,64]", "f32[4,64,2]", "f32[4]"
    graph = import_jaxpr(traced(descent(fixed), *types), "final")
    run_alone((UPDATE,), graph)
    made = [v for op in graph.body.walk() for v in op.results if v.size >= 4096]
    marks = {"i16[4096]", "f32[4096,2]"}  # the gradient of zeros is no longer read
    assert {v.exact_type for v in made} == marks


STEPS = {
    "scheduled": scheduled,
    "added": lambda p, g, rate: -rate * g + p,
    "divided": lambda p, g, rate: p - g / (rate * 3),
    "clipped": lambda p, g, rate: p - rate * jnp.minimum(jnp.maximum(g, -1), 1),
    "its signs": lambda p, g, rate: p - jnp.sign(g) * rate,
    "where it is large": lambda p, g, rate: p - (jnp.abs(g) > 2).astype("float32") / rate,
    "converted": lambda p, g, rate: p + (-g.astype("float16") * 0.5).astype("float32"),
}


@pytest.mark.parametrize("rate", [0.5, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_rates_that_make_nan_of_zeros(step, rate):
    """(2) All of the table is NaN then."""
    table, ids, us, rates = arguments()
    same(descent(step), table, ids, us, rates.at[2].set(rate))


def test_windows_that_never_meet():
    """(4) Slices of a vector."""

    def slices(vector, xs):
        def one(vector, x):
            loss = lambda v: jnp.sum(jnp.sin(v[:3] * x)) + jnp.sum(v[3:9] ** 2)
            return vector - 0.1 * jax.grad(loss)(vector), None

        return lax.scan(one, vector, xs)[0]

    same(slices, jnp.arange(999.0), jnp.arange(3.0))


CHOSEN = {
    "if it is finite": lambda p, g, r: jnp.where(jnp.isfinite(r), p - r * g, p),
    "or else": lambda p, g, r: jnp.where(r > 0, p, 0.5 * g + p),
    "twice": lambda p, g, r: jnp.where(r < 1, jnp.where(r > 0, p - r * g, p), p),
    "or a number": lambda p, g, r: jnp.where(r > 0.2, p - r * g, 7.0),
    "of the gradient": lambda p, g, r: jnp.where(g.max() < 3, p - r * g, p),
    "clipped by its norm": lambda p, g, r: p - g * jnp.minimum(r, 1 / jnp.sqrt((g * g).sum())),
    "of all rows": lambda p, g, r: jnp.where(jnp.all(jnp.isfinite(g)), p - 0.1 * g, p),
}


@pytest.mark.parametrize("rate", [0.5, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("step", CHOSEN.values(), ids=CHOSEN)
def test_a_step_that_may_be_left_out(step, rate):
    """(1) A scalar chooses the sum or the table; what else reads the gradient reduces it."""
    table, ids, us, rates = arguments()
    same(descent(step), table, ids, us, rates.at[2].set(rate))
    once = lambda p, i, u, r: step(p, jnp.zeros_like(p).at[i].add(u), r)
    same(once, jnp.ones((3000, 2)), ids[0], us[0].at[0, 1].set(rate), np.float32(rate))


REFUSED = [
    pytest.param(lambda p, g, r: p - 0.1 * g + g, "is read elsewhere", id="read elsewhere"),
    pytest.param(
        lambda p, g, r: jnp.where(p > 0, p - 0.1 * g, p), "XLA would copy it", id="by element"
    ),
    pytest.param(lambda p, g, r: (p - 0.1 * g) * p, "XLA would copy it", id="copied"),
    pytest.param(lambda p, g, r: p * 0.9 - 0.1 * g, "is new in each step", id="weight decay"),
    pytest.param(lambda p, g, r: 0.1 * g - p, None, id="subtracted from"),
    pytest.param(lambda p, g, r: p - 0.1 * (g + 1), None, id="not zero"),
    pytest.param(lambda p, g, r: p - jnp.maximum(g, 0.5), None, id="not below"),
    pytest.param(lambda p, g, r: p - jnp.maximum(g, r), None, id="not below what is unknown"),
    pytest.param(lambda p, g, r: p - (g > -1).astype("float32"), None, id="where it is zero"),
    pytest.param(lambda p, g, r: p - 1 / (r * g), None, id="divided by"),
    pytest.param(lambda p, g, r: p - np.inf * g, None, id="infinite"),
    pytest.param(lambda p, g, r: p - g / 0.0, None, id="divided by zero"),
    pytest.param(lambda p, g, r: p - g * g, None, id="squared"),
    pytest.param(lambda p, g, r: p - jnp.exp(p) * g, None, id="no scalar"),
    pytest.param(lambda p, g, r: p - g * jnp.exp(p), None, id="by no scalar"),
]


@pytest.mark.parametrize(("step", "because"), REFUSED)
def test_refused(step, because):
    """(1, 2) By the reason that it gives, or not looked at."""
    if because is not None:
        check_refuses(UPDATE, descent(step), *TYPES, because=because)
    graph = import_jaxpr(traced(descent(step), *TYPES), "final")
    assert not run_alone((UPDATE,), graph).record(UPDATE.name, False).rewrites


@pytest.mark.parametrize("step", [fixed, scheduled])
@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_of_tables(step, mode, shared):
    """(3) Each has rows of its own, which may be alike within a table and in several."""
    table, ids, us, rates = arguments()
    ids = np.clip(ids, 0, 127) if mode == "promise_in_bounds" else ids
    tables, many = jnp.stack([table, 2 * table]), np.stack([ids, ids[::-1]])
    axes = (0, 0, None if shared else 0, None)
    program = descent(step, mode=mode, wrap_negative_indices=False)
    given = us if shared else jnp.stack([us, 3 * us])
    for model in (MODEL, MARKED):
        with using(model):
            same(jax.vmap(program, axes), tables, many, given, rates)
    twice = jax.vmap(jax.vmap(program, axes), (None, 0, None, None))
    same(twice, tables, np.stack([many, many + 1]), given, rates)


@pytest.mark.parametrize("step", [scheduled, CHOSEN["if it is finite"], CHOSEN["or else"]])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rate", [0.5, np.inf, np.nan])
def test_a_batch_of_rates(step, shared, rate):
    """(1, 2) One rate for each table: not finite, it makes NaN of that table alone."""
    table, ids, us, rates = arguments()
    tables, two = jnp.stack([table, 2 * table]), jnp.stack([rates, rates.at[2].set(rate)])
    axes, many = (0, None if shared else 0, 0, 0), ids if shared else np.stack([ids, ids[::-1]])
    for out in (0, 1):
        same(jax.vmap(descent(step), axes, out), tables, many, jnp.stack([us, 3 * us]), two)


RATES = np.array([0.5, 0.25, 2.0], np.float32)
BY_COLUMN = {
    "in a row": lambda p, g, r: p - r * RATES * g,
    "in each step": lambda p, g, r: p - (r * RATES)[None] * g,
    "divided": lambda p, g, r: p - r * (g / RATES),
    "chosen": lambda p, g, r: jnp.where((r < RATES)[None], p - 0.1 * g, p),
}


@pytest.mark.parametrize("rate", [0.5, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("step", BY_COLUMN.values(), ids=BY_COLUMN)
def test_a_rate_for_each_column(step, rate):
    """(1, 2) One that is not finite makes NaN of its column."""
    _, ids, us, rates = arguments()
    table, us = jnp.ones((128, 3)), jnp.concatenate([us, us[..., :1]], -1)
    same(descent(step), table, ids, us, rates.at[2].set(rate))
    same(reading(step), table, ids[:, 0], rates.at[2].set(rate))


def reading(step):
    """A loop whose step reads one row of a table."""

    def program(table, ids, rates):
        def one(table, x):
            i, rate = x
            gradient = jax.grad(lambda t: jnp.sum(jnp.sin(t[i])))(table)
            return step(table, gradient, rate), None

        return lax.scan(one, table, (ids, rates))[0]

    return program


def test_rates_in_a_column():
    """(1) Where each row has a rate, one that is not finite makes NaN of a row that is zero."""
    column = lambda p, g, r: p - (r * jnp.arange(128.0))[:, None] * g
    alone(UPDATE, descent(column), *TYPES, fires=False)
    alone(UPDATE, reading(column), TYPES[0], "i32[4]", TYPES[3], fires=False)
    by_row = lambda p, g, r: jnp.where(jnp.arange(128)[:, None] > r, p - 0.1 * g, p)
    alone(UPDATE, descent(by_row), *TYPES, fires=False)


def test_a_large_batch():
    """Places are compared within a table only."""
    program = jax.vmap(descent(fixed), (0, 0, 0, None))
    alone(UPDATE, program, "f32[64,512,2]", "i32[64,4,8]", "f32[64,4,8,2]", "f32[4]", fires=True)
    alone(UPDATE, descent(fixed), "f32[512,2]", "i32[4,99]", "f32[4,99,2]", "f32[4]", fires=False)


def test_windows_may_meet():
    """(3, 4) Two rows wide, or of two ops."""
    rows = lax.ScatterDimensionNumbers((1,), (), (0,))
    wide = lambda t, i, u: lax.scatter_add(jnp.zeros_like(t), i[:, None], u, rows)

    def program(add):
        def one(table, x):
            return table - 0.1 * add(table, *x), None

        return lambda t, *xs: lax.scan(one, t, xs)[0]

    types = "f32[999]", "i32[4,3]", "f32[4,3,2]"
    check_refuses(UPDATE, program(wide), *types, because="may overlap in part")

    def twice(t, i, u):
        return jnp.zeros_like(t).at[i[0]].add(u[0, 0]) + jnp.zeros_like(t).at[i[1]].add(u[1, 0])

    check_refuses(UPDATE, program(twice), *types, because="of two ops may overlap")


def test_a_gradient_for_all_of_a_batch():
    """(1) It has an axis of one element, as what `vmap` does not batch: JAX repeats it."""

    def program(tables, ids, us):
        def step(tables, x):
            g = jnp.zeros((1, 128, 2)).at[0, x[0]].add(x[1])
            return lax.sub(tables, 0.1 * g), None

        return lax.scan(step, tables, (ids, us))[0]

    alone(UPDATE, program, "f32[3,128,2]", "i32[4,3]", "f32[4,3,2]", fires=False)
    alone(UPDATE, program, "f32[1,128,2]", "i32[4,3]", "f32[4,3,2]", fires=True)


def test_a_rate_on_a_device():
    """(2) It is a constant of which the value is not looked at."""
    rate = jnp.float32(0.1)
    same(descent(lambda p, g, _: p - rate * g), *arguments())


@pytest.mark.parametrize("mode", ["clip", "drop"])
def test_windows_that_are_whole_along_an_axis(mode):
    """(3) Wherever they are said to start along that: it is clamped, or they are dropped."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))

    def program(table, ids, us):
        def one(table, x):
            zeros = jnp.zeros_like(table)
            g = lax.scatter_add(zeros, x[0], x[1][:, None], numbers, mode=mode)
            return table - 0.1 * g, None

        return lax.scan(one, table, (ids, us))[0]

    table, ids, us, _ = arguments()
    for model in (MODEL, MARKED):
        with using(model):
            same(program, table, jnp.stack([ids, ids % 3 - 1], axis=-1), us)


def test_small_indices():
    """(3) The last row is out of the range of their type."""
    _, ids, us, rates = arguments()
    program = descent(fixed, mode="clip", wrap_negative_indices=False)
    for model in (MODEL, MARKED):
        with using(model):
            same(program, jnp.ones((300, 2)), ids.astype(np.int8), us, rates)


def test_most_of_an_array():
    """Rows as large as the table gain nothing."""
    check_refuses(UPDATE, descent(fixed), "f32[4,2]", *TYPES[1:], because="as large as")


def once(table, ids, us, rate):
    """A step outside of a loop."""
    return table - rate * jnp.zeros_like(table).at[ids].add(us)


ONCE = "f32[3000,2]", "i32[3]", "f32[3,2]", "f32[]"


@pytest.mark.parametrize("rate", [0.5, np.inf, np.nan])
@pytest.mark.parametrize("known", [True, False])
def test_an_argument(known, rate):
    """(1, 2) XLA writes into it, or into a copy, which it makes anyway."""
    args = jnp.ones((3000, 2)), IDS[0], jnp.ones((3, 2)), np.float32(rate)
    program = (lambda t, i, u, _: once(t, i, u, 0.5)) if known else once
    before, after = (import_jaxpr(traced(program, *args), "final") for _ in range(2))
    assert run_alone((UPDATE,), after).record(UPDATE.name, False).rewrites
    assert any(op.name == "scatter" for op in after.body.ops)
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda t, i, u, r: once(jnp.sin(t), i, u, r), "no argument"),
        (lambda t, i, u, r: (once(t, i, u, r), t), "read afterwards"),
        (lambda t, i, u, r: lax.cond(r > 0, once, lambda t, *_: t, t, i, u, r), "no argument"),
        (lambda t, i, u, r: t - r * lax.pad(u, 0.0, [(9, 2988, 0), (0, 0, 0)]), "as it makes"),
        (lambda t, i, u, r: once(t[:90], i, u, r), "no argument"),
    ],
    ids=["made", "read", "branch", "pad", "part"],
)
def test_what_is_no_argument_only(program, because):
    """(1) Outside of loops."""
    check_refuses(UPDATE, program, *ONCE, because=because)


@pytest.mark.parametrize(("rows", "fires"), [(2000, False), (8000, True)])
def test_small_arguments(rows, fires):
    """Cost: half of what a sum moves is what it takes to copy the array."""
    with using(DEAR):
        alone(UPDATE, once, f"f32[{rows},2]", *ONCE[1:], fires=fires)


def test_a_donated_table():
    """Nothing as large as the table is made."""
    table, rate = jnp.ones((40_000, 4)), jnp.float32(0.1)

    def train(table, i, y, rate):
        loss = lambda table: (jnp.tanh(table[i]).sum() - y) ** 2
        value, gradient = jax.value_and_grad(loss)(table)
        return table - rate * gradient, value

    args = table, IDS[0], jnp.float32(2.0), rate
    ours = optimize(jax.jit(train, donate_argnums=0))
    memory = ours.lower(*args).compile().memory_analysis()
    assert memory.temp_size_in_bytes < table.nbytes / 100
    want = jax.jit(train)(*args)
    assert_same_bits(ours(*args), want)


def test_training_a_table():
    """What is compiled holds no gradient as large as the table."""

    def train(table, ids, ys, rate):
        def step(table, x):
            i, y = x
            loss = lambda table: (jnp.tanh(table[i]).sum() - y) ** 2
            value, gradient = jax.value_and_grad(loss)(table)
            return table - rate * gradient, value

        return lax.scan(step, table, (ids, ys))

    args = jnp.ones((4096, 4)), IDS, jnp.arange(4.0), jnp.float32(0.1)
    ours = optimize(train).lower(*args).compile()
    assert_same_bits(ours(*args), jax.jit(train)(*args))
    assert ours.memory_analysis().temp_size_in_bytes < args[0].nbytes / 4
