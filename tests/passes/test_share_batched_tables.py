"""A batch reads one table."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.batches.share_batched_tables import ShareBatchedTables
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)

SHARE = ShareBatchedTables()
ROWS = 3


def read(table, i, **options):
    return table.at[i].get(**options)


def shared_read(table, ids, **options):
    """Each row of the batch has a copy of the table."""
    copies = lax.broadcast(table, (ids.shape[0],))
    return jax.vmap(lambda t, i: read(t, i, **options))(copies, ids)


def test_a_read():
    """(1) The table is read by all rows."""
    check_rewrite(
        SHARE,
        lambda t, i: shared_read(t, i, mode="clip", wrap_negative_indices=False),
        "f32[5,2]",
        "i32[3]",
        diff="""
          fn (t:f32[5,2], i:i32[3]) {
            b:f32[3,5,2] = broadcast_in_dim t
            b1:i32[3,1] = broadcast_in_dim[dims=(0,)] i
            b2:i32[3,1] = broadcast_in_dim 0
            c:i32[3,2] = concatenate[dimension=1] b1 b2
        -   g:f32[3,1,2] = gather[offset_dims=(1, 2), start_index_map=(1, 2), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1, 2), unique_indices, indices_are_sorted, mode=clip] b c
        +   g:f32[3,1,2] = gather[offset_dims=(1, 2), start_index_map=(0, 1), slice_sizes=(1, 2), mode=clip] t c
            s:f32[3,2] = squeeze g
            return s
          }
        """,
    )


IDS = {
    "one each": np.array([4, 4, -1, 7, -9, 4], np.int32),
    "several each": np.array([[4, 1], [0, 2], [4, -2], [9, 3], [1, 0], [4, 2]], np.int32),
}
MODES = [{"mode": "clip"}, {"mode": "drop"}, {"mode": "fill", "fill_value": 7}, {}]


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("options", MODES, ids=str)
def test_reads_give_the_same(ids, options):
    """In range or not, also of a table that is repeated along another axis, and NaN."""
    table = jnp.arange(10.0).reshape(5, 2).at[1, 1].set(jnp.nan)
    two = lambda t, i: jax.vmap(lambda t: shared_read(t, i, **options))(jnp.stack([t, -t]))
    for program in (lambda t, i: shared_read(t, i, **options), two):
        same(program, table, ids)


def same(program, *args):
    before, after = (import_jaxpr(traced(program, *args)) for _ in range(2))
    assert run_alone((SHARE,), after).record(SHARE.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


def own_tables(t, i, u):
    """Each row of the batch reads what is its own."""
    return jax.vmap(read)(lax.broadcast_in_dim(t[:, 0], (ROWS, 5, 2), (1,)) * u[:, None], i)


def stretched(t, i, u):
    """Each row of the batch has a copy of one row of the table, as often as the table is long."""
    return jax.vmap(read)(lax.broadcast_in_dim(t[:1], (ROWS, 5, 2), (1, 2)), i)


def chosen(t, i, u):
    """A copy is chosen: the axis along which the table is repeated is none of the batch."""
    return lax.broadcast(t, (ROWS,)).at[i].get(mode="clip")


@pytest.mark.parametrize("program", [own_tables, stretched, chosen])
def test_not_looked_at(program):
    """(1)"""
    graph = import_jaxpr(traced(program, "f32[5,2]", "i32[3]", "f32[3,2]"))
    assert not run_alone((SHARE,), graph).record(SHARE.name, False).rewrites


def one_lookup(table, ids, h, i, p):
    return lax.cond(p, lambda: jnp.tanh(h + table[i]), lambda: 0.9 * h)


def several_lookups(table, ids, h, i, p):
    """Whatever places are read."""
    return lax.cond(p, lambda: jnp.tanh(h + table[i] * table[ids[0]]), lambda: h)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["around grad", "inside grad", "inside vmap"])
@pytest.mark.parametrize(
    ("look_up", "below", "tables"), [(one_lookup, 99, 3), (several_lookups, 5, 4)]
)
def test_a_batch_of_lookups_under_a_condition(look_up, below, tables, order):
    """No table for each row of the batch."""

    def one(table, ids, ps):
        step = lambda h, s: (look_up(table, ids, h, *s), None)
        return lax.scan(step, jnp.zeros(4), (ids, ps))[0]

    def loss(one, table, ids, ps):
        return jnp.sum(jax.vmap(one, (None, 0, 0))(table, ids, ps) ** 2)

    keys = jax.random.split(jax.random.key(0), 3)
    args = (
        jax.random.normal(keys[0], (999, 4)),
        jax.random.randint(keys[1], (8, 6), -1, below),
        jax.random.bernoulli(keys[2], 0.5, (8, 6)),
    )
    plain = jax.grad(lambda *args: loss(one, *args))
    ours = {
        "around grad": optimize(plain),
        "inside grad": jax.grad(optimize(lambda *args: loss(one, *args))),
        "inside vmap": jax.grad(lambda *args: loss(optimize(one), *args)),
    }[order]
    compiled = jax.jit(ours).lower(*args).compile()
    assert_close(compiled(*args), jax.jit(plain)(*args))
    assert compiled.memory_analysis().temp_size_in_bytes < tables * args[0].nbytes


def test_places_whose_types_say_where_they_are():
    """(2) JAX does not know where the rows are then that are read of one table."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Explicit,))
    numbers = lax.GatherDimensionNumbers((1,), (), (1,), (0,), (0,))

    def program(table, ids):
        copies = lax.broadcast(table, (4,))
        return lax.gather(copies, ids[:, None], numbers, (1, 1), mode="clip")

    with jax.set_mesh(mesh):
        ids = jax.device_put(jnp.arange(4), NamedSharding(mesh, PartitionSpec("i")))
        graph = import_jaxpr(traced(program, jnp.ones(8), ids))
    assert not run_alone((SHARE,), graph).record(SHARE.name, False).rewrites
