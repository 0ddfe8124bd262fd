"""A batch reads one table, and adds to one."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.windows.share_batched_tables import ShareBatchedTables
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
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


def shared_sum(table, ids, us, **options):
    """Each row of the batch adds to zeros of its own."""
    copies = lax.broadcast(jnp.zeros_like(table), (ids.shape[0],))
    made = jax.vmap(lambda t, i, u: t.at[i].add(u, **options))(copies, ids, us)
    return lax.reduce_sum(made, axes=(0,))


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


def test_a_sum():
    """(2) All rows add to one table of zeros."""
    check_rewrite(
        SHARE,
        lambda t, i, u: shared_sum(t, i, u, mode="drop", wrap_negative_indices=False),
        "f32[5,2]",
        "i32[3]",
        "f32[3,2]",
        simplify=True,
        diff="""
          fn (t:f32[5,2], i:i32[3], u:f32[3,2]) {
        +   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
            b:f32[5,2] = broadcast_in_dim 0.0
        -   b1:f32[3,5,2] = broadcast_in_dim b
        -   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
        -   s:f32[3,5,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b1 b2 u
        -   r:f32[5,2] = reduce_sum[axes=(0,)] s
        +   s1:f32[5,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b b2 u
        -   return r
        +   return s1
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


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("mode", ["clip", "drop"])
def test_sums_give_the_same(dtype, mode):
    """(3) Rows that add to one element add in their order."""
    table = jnp.zeros((5, 2), dtype)
    us = (10.0 ** jnp.arange(12.0) / 3).reshape(6, 2).astype(dtype)
    same(lambda t, i, u: shared_sum(t, i, u, mode=mode), table, IDS["one each"], us)


def same(program, *args):
    before, after = (import_jaxpr(traced(program, *args)) for _ in range(2))
    assert run_alone((SHARE,), after).record(SHARE.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


SEVERAL = "f32[5,2]", "i32[3,4]", "f32[3,4,2]"


def test_two_windows_of_a_row_may_meet():
    """(3) Then each row adds up its own first; it does not matter for integers."""
    check_refuses(SHARE, shared_sum, *SEVERAL, because="windows of a row may overlap")
    integers = import_jaxpr(traced(shared_sum, "i32[5,2]", "i32[3,4]", "i32[3,4,2]"))
    assert run_alone((SHARE,), integers).record(SHARE.name, False).rewrites


def test_windows_of_a_row_are_promised_to_differ():
    """(3) Rows of different columns."""
    promised = lambda t, i, u: shared_sum(t, i, u, unique_indices=True, mode="drop")
    ids = np.array([[4, 1], [0, 4], [4, 2]], np.int32)
    us = (10.0 ** jnp.arange(12.0) / 3).reshape(3, 2, 2)
    same(promised, jnp.zeros((5, 2)), ids, us)


def onto(t, i, u):
    """What is added to is not zero."""
    copies = lax.broadcast(t, (ROWS,))
    return lax.reduce_sum(jax.vmap(lambda t, i, u: t.at[i].add(u))(copies, i, u), axes=(0,))


def read_elsewhere(t, i, u):
    """What the rows add up is a result, too."""
    copies = lax.broadcast(jnp.zeros_like(t), (ROWS,))
    made = jax.vmap(lambda t, i, u: t.at[i].add(u))(copies, i, u)
    return made, lax.reduce_sum(made, axes=(0,))


@pytest.mark.parametrize(
    ("program", "because"), [(onto, "is not zero"), (read_elsewhere, "is read elsewhere")]
)
def test_refused(program, because):
    """(2)"""
    check_refuses(SHARE, program, "f32[5,2]", "i32[3]", "f32[3,2]", because=because)


def other_axis(t, i, u):
    """The sum is over rows of the tables."""
    copies = lax.broadcast(jnp.zeros_like(t), (ROWS,))
    return lax.reduce_sum(jax.vmap(lambda t, i, u: t.at[i].add(u))(copies, i, u), axes=(1,))


def own_tables(t, i, u):
    """Each row of the batch reads what is its own."""
    return jax.vmap(read)(lax.broadcast_in_dim(t[:, 0], (ROWS, 5, 2), (1,)) * u[:, None], i)


def stretched(t, i, u):
    """Each row of the batch has a copy of one row of the table, as often as the table is long."""
    return jax.vmap(read)(lax.broadcast_in_dim(t[:1], (ROWS, 5, 2), (1, 2)), i)


def chosen(t, i, u):
    """A copy is chosen: the axis along which the table is repeated is none of the batch."""
    return lax.broadcast(t, (ROWS,)).at[i].get(mode="clip")


@pytest.mark.parametrize("program", [other_axis, own_tables, stretched, chosen])
def test_not_looked_at(program):
    """(1, 2)"""
    graph = import_jaxpr(traced(program, "f32[5,2]", "i32[3]", "f32[3,2]"))
    assert not run_alone((SHARE,), graph).record(SHARE.name, False).rewrites


def sum_of_two_axes(places, shape):
    """A sum over two batch axes, which are at these places of the index."""
    numbers = lax.ScatterDimensionNumbers((), (2,), (2,), (0, 1), places)

    def program(index):
        update = jnp.broadcast_to(1 / (1 + index[..., 0].astype("float32")), shape)
        made = lax.scatter_add(jnp.zeros((2, 3, 5)), index, update, numbers, mode="drop")
        return lax.reduce_sum(made, axes=(0, 1))

    return program


def test_axes_in_another_order():
    """(3) The index has the rows in another order than the sum."""
    check_refuses(
        SHARE,
        sum_of_two_axes((1, 0), (3, 2)),
        "i32[3,2,1]",
        because="windows of a row may overlap, and the order of the sum would change",
    )
    same(sum_of_two_axes((0, 1), (2, 3)), jnp.array([[[0], [4], [4]], [[0], [4], [9]]]))


def several_sums(table, places, us, **options):
    """Each row of the batch adds windows one after the other, to zeros of its own."""
    made = lax.broadcast(jnp.zeros_like(table), (us[0].shape[0],))
    for at, u in zip(places, us, strict=True):
        made = jax.vmap(lambda t, i, u: t.at[i].add(u, **options))(made, at, u)
    return lax.reduce_sum(made, axes=(0,))


def neighbours(i, steps):
    """Places a known distance apart, in range."""
    return [jnp.clip(i, 1, 3) + step for step in steps]


AT = jnp.array([4, -1, 0, 2, 9, 2, -9], jnp.int32)
US = [(10.0 ** (jnp.arange(14.0) - k) / 3).reshape(7, 2).astype("float32") for k in range(4)]


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("steps", [(0, 1), (0, 1, -1), (1, 0, 0)])
@pytest.mark.parametrize("wide", [False, True])
def test_several_sums(mode, steps, wide):
    """(3) Neighbours, of which no two are one; or, compared, some are. Each element gets the same
    numbers in the same order.
    """
    table = jnp.zeros((5, 2))

    def program(table, i, *us):
        places = [i + step for step in steps] if wide else neighbours(i, steps)
        return several_sums(table, places, us, mode=mode, wrap_negative_indices=False)

    same(program, table, AT, *US[: len(steps)])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("mode", ["clip", "drop"])
def test_places_that_the_program_compares(dtype, mode):
    """(3) Nothing is known of where they are: hashes. Two or three of a row may be one place."""
    places = [AT, AT[::-1], AT.at[1].set(0), jnp.full_like(AT, 2)]
    us = [u.astype(dtype) for u in US]
    us[1] = us[1].at[0, 0].set(jnp.nan) if dtype != "int32" else us[1]
    program = lambda t, *rest: several_sums(t, rest[:4], rest[4:], mode=mode)
    same(program, jnp.zeros((5, 2), dtype), *places, *us)


def test_only_what_may_be_one_place_is_compared():
    """(3) Neighbours in range are not; nor what is dropped where it is wrapped around."""
    zeros, u = "f32[5,2]", "f32[7,2]"
    compared = lambda program, *types: "eq" in alone_text(program, *types)
    how = {"wrap_negative_indices": False}
    near = lambda t, i, u, v, **mode: several_sums(t, neighbours(i, (0, 1)), (u, v), **mode, **how)
    far = lambda t, i, u, v, **mode: several_sums(t, (i, i + 1), (u, v), **mode, **how)
    args = zeros, "i32[7]", u, u
    assert not compared(lambda *a: near(*a, mode="clip"), *args)
    assert not compared(lambda *a: far(*a, mode="drop"), *args)
    assert compared(lambda *a: far(*a, mode="clip"), *args)


@pytest.mark.parametrize(
    "places",
    [
        pytest.param(lambda i, j: (i, j[:7] + 1), id="of two arrays"),
        pytest.param(lambda i, j: (i, i[::-1] + 1), id="of an array and its reverse"),
        pytest.param(lambda i, j: (j[:7], j[1:] + 1), id="of two slices"),
    ],
)
def test_places_of_other_numbers_are_compared(places):
    """(3) They are no known distance apart, though one is more by a number."""
    how = {"mode": "drop", "wrap_negative_indices": False}
    program = lambda t, i, j, u, v: several_sums(t, places(i, j), (u, v), **how)
    args = jnp.zeros((5, 2)), AT, jnp.array([3, 4, -2, 1, 8, 1, 9, 0], jnp.int32), *US[:2]
    same(program, *args)
    assert "eq" in alone_text(program, "f32[5,2]", "i32[7]", "i32[8]", "f32[7,2]", "f32[7,2]")


def alone_text(program, *types):
    graph = import_jaxpr(traced(program, *types))
    assert run_alone((SHARE,), graph).record(SHARE.name, False).rewrites
    return {op.name for op in graph.walk()}


def windows_of_two(t, i, u, v, step, mode="clip"):
    """Windows of two rows: they may overlap in part."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (1,), (0,), (0,))
    zeros = jnp.zeros((7, 5, 2))
    at = jnp.clip(i, 0, 1)
    for place, update in ((at + jnp.asarray(step, i.dtype), u), (at, v)):
        zeros = lax.scatter_add(zeros, place[:, None], update, numbers, mode=mode)
    return lax.reduce_sum(zeros, axes=(0,))


@pytest.mark.parametrize("step", [-2, 1, 2])
def test_windows_that_overlap_in_part(step):
    """(3) They are no single places: how far they are apart must be known."""
    program = lambda t, i, u, v: windows_of_two(t, i, u, v, step)
    types = "f32[5,2]", "i32[7]", "f32[7,2,2]", "f32[7,2,2]"
    if step == 2:
        args = jnp.zeros((5, 2)), AT, *(jnp.stack([u, u * 3], 1) for u in US[:2])
        same(program, *args)
    else:  # -2 may be clamped
        check_refuses(SHARE, program, *types, because="windows of a row may overlap")


def test_places_that_come_back():
    """(3) Of few bits: 255 more is one less, as it is wrapped around."""
    program = lambda t, i, u, v: windows_of_two(t, i, u, v, 255, "drop")
    types = "f32[5,2]", "u8[7]", "f32[7,2,2]", "f32[7,2,2]"
    check_refuses(SHARE, program, *types, because="windows of a row may overlap")


@pytest.mark.parametrize("dtype", ["u8[7]", "i16[7]"])
def test_places_of_few_bits_are_not_compared(dtype):
    """(3) How they are clamped is not known."""

    def program(t, i, u, v):
        numbers = lax.ScatterDimensionNumbers((1,), (1,), (1,), (0,), (0,))
        zeros = jnp.zeros((7, 5, 2))
        for place, update in ((i, u), (i * i, v)):
            zeros = lax.scatter_add(zeros, place[:, None], update, numbers, mode="clip")
        return lax.reduce_sum(zeros, axes=(0,))

    because = "windows of a row may overlap"
    check_refuses(SHARE, program, "f32[5,2]", dtype, "f32[7,2]", "f32[7,2]", because=because)


def test_windows_of_several_forms():
    """(3)"""

    def program(t, i, u, v):
        made = jax.vmap(lambda t, i, u: t.at[i].add(u, mode="clip"))(
            lax.broadcast(jnp.zeros_like(t), (7,)), i, u
        )
        made = jax.vmap(lambda t, i, v: t.at[i, i].add(v, mode="clip"))(made, i, v)
        return lax.reduce_sum(made, axes=(0,))

    check_refuses(
        SHARE,
        program,
        "f32[5,2]",
        "i32[7]",
        "f32[7,2]",
        "f32[7]",
        because="windows of several forms are added",
    )


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
