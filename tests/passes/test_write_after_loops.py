"""Windows that a loop writes into each row of an array are written after the loop."""

# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.writes.write_after_loops import WriteAfterLoops
from jaxpr_opt.testing import check_refuses, check_rewrite
from jaxpr_opt.testing.agreement import assert_close
from tests.loops import alone, measured, memory

AFTER = WriteAfterLoops()
TYPES = "f32[3,8,2]", "f32[3,2]", "i32[5]"
"""The rows, what is written, and where: in each of 5 steps."""


def put(row, v, i):
    at = i, jnp.int32(0)
    return lax.dynamic_update_slice(row, v[None], at, allow_negative_indices=False)


def put_at(row, v, *at):
    return row.at[at].set(v, wrap_negative_indices=False)


def rows_written(write, read=jnp.sum, **options):
    """A loop whose steps write to each row of an array and read the rows."""

    def program(rows, values, at):
        def step(rows, i):
            def each(total, row_and_value):
                row, value = row_and_value
                row = write(row, value * total, i)
                return total + read(row), row

            total, rows = lax.scan(each, 1.0, (rows, values), **options)
            return rows, total

        return lax.scan(step, rows, at)

    return program


def test_a_row_is_written_where_an_outer_step_says():
    check_rewrite(
        AFTER,
        rows_written(put),
        *TYPES,
        simplify=True,
        diff="""
            fn (rows:f32[3,8,2], values:f32[3,2], at:i32[5]) {
              c:f32[3,8,2], ys:f32[5] = scan[5] carry(c=rows) xs(x=at) {
          -     c1:f32[], ys:f32[3,8,2] = scan[3] carry(c=1.0) xs(x1=c, x2=values) {
          +     c1:f32[], ys1:f32[3,1,2] = scan[3] carry(c=1.0) xs(x1=c, x2=values) {
                  c1:f32[] = convert_element_type c
                  m:f32[2] = mul x2 c1
                  b:f32[1,2] = broadcast_in_dim m
                  d:f32[8,2] = dynamic_update_slice x1 b x 0
                  r:f32[] = reduce_sum[axes=(0, 1)] d
                  a:f32[] = add c1 r
          -       yield carry(a) ys(d)
          +       yield carry(a) ys(b)
                }
          +     d1:f32[3,8,2] = dynamic_update_slice c ys1 0 x 0
          -     yield carry(ys) ys(c1)
          +     yield carry(d1) ys(c1)
              }
              return c, ys
            }
        """,
    )


WRITES = {
    "a slice": put,
    "a scatter": put_at,
    "added": lambda row, v, i: row.at[i].add(v, wrap_negative_indices=False),
    "an element": lambda row, v, i: put_at(row, v[0], i, 1),
    "two windows": lambda row, v, i: put(put_at(row, v, i), 2 * v, i),
    "one known place": lambda row, v, i: put_at(row, v, 3),
    "the same for all rows": lambda row, v, i: put_at(row, 7.0, i),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("reverse", [False, True])
def test_writes(write, reverse):
    """(1) Windows are written or added, whichever way the loop runs; out of range, too."""
    alone(AFTER, rows_written(write, reverse=reverse), *TYPES, fires=True)


@pytest.mark.parametrize(("rows", "steps"), [(0, 5), (1, 5), (3, 0)])
def test_short_loops(rows, steps):
    types = f"f32[{rows},8,2]", f"f32[{rows},2]", f"i32[{steps}]"
    alone(AFTER, rows_written(put), *types, fires=True)


@pytest.mark.parametrize("dtype", ["i8", "bf16", "c64", "bool"])
def test_dtypes(dtype):
    def write(row, v, i):
        return put_at(row, v.astype(row.dtype), i)

    program = rows_written(write, lambda row: jnp.sum(row.real.astype(jnp.float32)))
    alone(AFTER, program, f"{dtype}[3,8,2]", *TYPES[1:], fires=True)


def test_nan():
    """What is written is what the loop would write."""
    rows = jnp.full((3, 8, 2), jnp.nan, jnp.float32).at[:, 0].set(jnp.inf)
    program = rows_written(put, lambda row: row[0, 0])
    alone(AFTER, program, rows, jnp.ones((3, 2)), jnp.array([0, 3, 99, -4, 7]), fires=True)


def at_a_place_of_each_row(write):
    """(2) As each layer of `flax.linen.scan` has an index of its own."""

    def program(rows, values, at):
        def step(rows, i):
            def each(_, inputs):
                row, value, k = inputs
                return None, write(row, value, k + i)

            return lax.scan(each, None, (rows, values, jnp.array([-2, 0, 3])))[1], None

        return lax.scan(step, rows, at)

    return program


def at_a_place_from_the_data(row, v, i):
    return put(row, jnp.sum(row) * v, jnp.int32(4 * v[0]))


@pytest.mark.parametrize(
    "program",
    [
        *(pytest.param(at_a_place_of_each_row(WRITES[name]), id=name) for name in WRITES),
        pytest.param(rows_written(at_a_place_from_the_data), id="from the data"),
    ],
)
@pytest.mark.parametrize("places", ["i32[5]", jnp.array([0, 7, 99, -4, 1])], ids=["", "far"])
def test_places_of_rows(program, places):
    """(2) Clamped, or dropped, each by itself."""
    alone(AFTER, program, *TYPES[:2], places, fires=True)


def test_an_index_of_each_row():
    check_rewrite(
        AFTER,
        at_a_place_of_each_row(put_at),
        *TYPES,
        simplify=True,
        diff="""
            fn (rows:f32[3,8,2], values:f32[3,2], at:i32[5]) {
              c:f32[3,8,2] = scan[5] carry(c=rows) xs(x=at) {
          -     ys:f32[3,8,2] = scan[3] xs(x1=c, x2=values, x3=[-2, 0, 3]) {
          +     ys1:i32[3,1] = scan[3] xs(x3=[-2, 0, 3]) {
                  a:i32[] = add x3 x
                  b:i32[1] = broadcast_in_dim a
          -       s:f32[8,2] = scatter[update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] x1 b x2
          -       yield ys(s)
          +       yield ys(b)
                }
          +     s1:f32[3,8,2] = scatter[update_window_dims=(1,), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c ys1 values
          -     yield carry(ys)
          +     yield carry(s1)
              }
              return c
            }
        """,
    )


def zeros_written(write, zero=0.0, outcome=lambda total, rows: total + rows):
    """A loop that adds up rows of zeros, each with a window in it."""

    def program(total, values, places):
        def step(total, i):
            each = lambda _, row: (None, write(jnp.full_like(total[0], zero), row[0], row[1] + i))
            return outcome(total, lax.scan(each, None, (values, places))[1]), None

        return lax.scan(step, total, jnp.arange(-1, 4))[0]

    return program


ZEROS = "f32[3,8,2]", "f32[3,2]", "i32[3]"


def test_zeros_with_a_window_in_them():
    check_rewrite(
        AFTER,
        zeros_written(put),
        *ZEROS,
        simplify=True,
        diff="""
            fn (total:f32[3,8,2], values:f32[3,2], places:i32[3]) {
              i:i32[5] = iota
              a:i32[5] = add -1 i
              c:f32[3,8,2] = scan[5] carry(c=total) xs(x=a) {
          -     ys:f32[3,8,2] = scan[3] xs(x1=values, x2=places) {
          +     ys1:i32[3], ys2:f32[3,1,2] = scan[3] xs(x1=values, x2=places) {
          -       b:f32[8,2] = broadcast_in_dim 0.0
                  a:i32[] = add x2 x
                  b1:f32[1,2] = broadcast_in_dim x1
          -       d:f32[8,2] = dynamic_update_slice b b1 a 0
          -       yield ys(d)
          +       yield ys(a, b1)
                }
          +     b2:f32[3,8,2] = broadcast_in_dim 0.0
          +     b3:i32[3,1] = broadcast_in_dim[dims=(0,)] ys1
          +     b4:i32[3,1] = broadcast_in_dim 0
          +     c1:i32[3,2] = concatenate[dimension=1] b3 b4
          +     s:f32[3,8,2] = scatter[update_window_dims=(1, 2), scatter_dims_to_operand_dims=(1, 2), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b2 c1 ys2
          -     a:f32[3,8,2] = add c ys
          +     a:f32[3,8,2] = add c s
                yield carry(a)
              }
              return c
            }
        """,
    )


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_writes_to_zeros(write, zero):
    """(1) Of either sign; each row at a place of its own, out of range, too."""
    args = jnp.ones((3, 8, 2)), jnp.ones((3, 2)), jnp.array([0, 7, 99])
    alone(AFTER, zeros_written(write, zero), *args, fires=True)


@pytest.mark.parametrize("dtype", ["i8", "bf16", "c64"])
def test_zeros_of_dtypes(dtype):
    alone(AFTER, zeros_written(put), *(f"{dtype}{t[3:]}" for t in ZEROS[:2]), ZEROS[2], fires=True)


def test_another_number_than_zero():
    """(1) Nothing would add its windows in place."""
    alone(AFTER, zeros_written(put, 1.0), *ZEROS, fires=False)


@pytest.mark.parametrize(
    "outcome", [lambda total, rows: rows, lambda total, rows: total + rows * rows]
)
def test_zeros_that_are_not_only_added(outcome):
    because = "is not only added to others"
    check_refuses(AFTER, zeros_written(put, outcome=outcome), *ZEROS, because=because)


def quantised(tables, xs):
    """Each step looks up a row of the table of each stage."""

    def step(h, x):
        def stage(rest, table):
            k = jnp.argmin(jnp.sum(lax.stop_gradient((table - rest) ** 2), axis=1))
            return rest - jnp.tanh(table[k]), k

        h, _ = lax.scan(stage, jnp.sin(h) + x, tables)
        return h, jnp.sum(h**2)

    return jnp.sum(lax.scan(step, jnp.zeros(xs.shape[1]), xs)[1])


def switched(tables, xs):
    """The same; a stage may be left out."""

    def step(h, x):
        def stage(rest, row):
            table, on = row
            look = lambda rest: rest - jnp.tanh(table[jnp.argmax(table @ lax.stop_gradient(rest))])
            return lax.cond(on, look, lambda rest: rest, rest), None

        h, _ = lax.scan(stage, jnp.sin(h) + x, (tables, jnp.array([True, False, True])))
        return h, jnp.sum(h**2)

    return jnp.sum(lax.scan(step, jnp.zeros(xs.shape[1]), xs)[1])


def routed(tables, xs):
    """Each layer multiplies by the matrix of the expert that it chooses."""

    def step(h, x):
        def layer(h, experts):
            k = jnp.argmax(experts[:, 0] @ lax.stop_gradient(h))
            return h + jnp.tanh(experts[k] @ h), None

        h, _ = lax.scan(layer, h + x, tables.reshape(3, -1, 16, 16))
        return jnp.sin(h), jnp.sum(h)

    return jnp.sum(lax.scan(step, jnp.zeros(16), xs)[1])


PARTS = {quantised: 0.6, switched: 0.6, routed: 1.01}
"""Of the memory of plain JAX: between the stack of windows and the sum lies a reshape of tables that
are reshaped before the loop over them, which nothing moves before the writes."""


@pytest.mark.slow
@pytest.mark.parametrize("loss", [quantised, switched, routed])
@pytest.mark.parametrize("batch", [False, True])
def test_gradients_of_tables_of_layers(loss, batch):
    """No step fills a cotangent of all tables, or of one; `vmap` may lay them out otherwise."""
    keys = jax.random.split(jax.random.key(0))
    rows = 64 if loss is not routed else 1024
    tables = jax.random.normal(keys[0], (3, rows, 16)) / (1 if loss is not routed else 8)
    xs = jax.random.normal(keys[1], (6, 16))
    gradient, inside = jax.grad(loss), jax.grad(optimize(loss))
    if batch:
        xs = jnp.stack([xs, 2 * xs])
        gradient, inside = (jax.vmap(f, (None, 0)) for f in (gradient, inside))
    wanted, usual = measured(gradient, tables, xs)
    for ours in (optimize(gradient), inside):
        given, used = measured(ours, tables, xs)
        assert_close(wanted, given)
        assert batch or used < PARTS[loss] * usual


def test_the_windows_are_most_of_a_row():
    def write(row, v, i):
        return put(row, row[0] * v, i).at[:6].set(row[2:] * v)

    check_refuses(AFTER, rows_written(write), *TYPES, because="most of a row")


def once(rows, values, at):
    """Outside of a loop the array has to be copied, too."""
    return lax.scan(lambda _, x: (None, put(*x, at[0])), None, (rows, values))[1]


def of_another_array(rows, values, at):
    """(1) What is written to is no row of a stream."""

    def step(rows, i):
        each = lambda _, v: (None, put(rows[0], v, i))
        return lax.scan(each, None, values)[1], None

    return lax.scan(step, rows, at)


def changed_first(rows, values, at):
    """(1) Nor is what is made of one."""
    return rows_written(lambda row, v, i: put(2 * row, v, i))(rows, values, at)


@pytest.mark.parametrize("program", [once, of_another_array, changed_first])
def test_not_found(program):
    alone(AFTER, program, *TYPES, fires=False)


LAYERS, TOKENS, WIDTH = 3, 48, 16


def decoded(params, xs):
    """Caches of all layers are a stream and a stack of the loop over the layers."""

    def step(caches, inputs):
        x, t = inputs

        def layer(x, inputs):
            (q, k, v), keys, values = inputs
            keys, values = keys.at[t].set(x @ k), values.at[t].set(x @ v)
            scores = jnp.where(jnp.arange(TOKENS) <= t, keys @ (x @ q), -1e9)
            return x + jax.nn.softmax(scores) @ values, (keys, values)

        x, caches = lax.scan(layer, x, (params, *caches))
        return caches, x

    empty = jnp.zeros((LAYERS, TOKENS, WIDTH))
    return lax.scan(step, (empty, empty), (xs, jnp.arange(TOKENS)))[1]


def decoder():
    keys = jax.random.split(jax.random.key(0), 4)
    square = lambda key: 0.2 * jax.random.normal(key, (LAYERS, WIDTH, WIDTH))
    return tuple(map(square, keys[:3])), jax.random.normal(keys[3], (TOKENS, WIDTH))


def test_decoding_writes_to_the_caches_of_all_layers():
    params, xs = decoder()
    assert_close(jax.jit(decoded)(params, xs), optimize(decoded)(params, xs))
    assert memory(optimize(decoded), params, xs) < 0.7 * memory(decoded, params, xs)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_its_gradient_stores_no_versions_of_the_caches(batch):
    params, xs = decoder()
    gradient = jax.grad(lambda params, xs: jnp.sum(jnp.sin(decoded(params, xs))))
    inside = jax.grad(optimize(lambda params, xs: jnp.sum(jnp.sin(decoded(params, xs)))))
    if batch:
        xs = jnp.stack([xs, 2 * xs])
        gradient, inside = (jax.vmap(f, (None, 0)) for f in (gradient, inside))
    wanted, usual = measured(gradient, params, xs)
    for ours in (optimize(gradient), inside):
        given, used = measured(ours, params, xs)
        assert_close(wanted, given)
        assert used < 0.2 * usual
