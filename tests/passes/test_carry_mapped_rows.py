"""What is made of all rows of a carry is carried, where a step changes few of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jaxpr_opt import explain, optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.carried.carry_mapped_rows import CarryMappedRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone
from tests.graphs import scans
from tests.loops import alone, memory

CARRY = CarryMappedRows()


@pytest.fixture(autouse=True)
def free_starts(request):
    """Programs here are small."""
    as_it_is = "as_it_is" in request.fixturenames
    with using(CostModel() if as_it_is else CostModel().but(noticed=0.0, kernel=0.0)):
        yield


@pytest.fixture
def as_it_is():
    """The pass as users have it."""


def put(table, row, i):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_update_slice(table, row[None], (i, 0), allow_negative_indices=False)


def layer(table, w):
    return jnp.tanh(table @ w)


def slots(table, w, places, mapped=layer, put=put):
    """A step reads what it makes of all rows, and writes a row."""

    def step(table, i):
        read = jnp.max(mapped(table, w), axis=0)
        return put(table, read[: table.shape[1]], i), jnp.sum(read)

    return lax.scan(step, table, places)


def test_a_layer_of_slots():
    """(1) What is written is the row."""
    check_rewrite(
        CARRY,
        slots,
        "f32[8,3]",
        "f32[3,4]",
        "i32[5]",
        diff="""
          fn (table:f32[8,3], w:f32[3,4], places:i32[5]) {
        +   d2:f32[8,4] = dot_general table w
        +   t1:f32[8,4] = tanh d2
        -   c:f32[8,3], ys:f32[5] = scan[5] carry(c=table) xs(x=places) {
        +   c:f32[8,3], c1:f32[8,4], ys:f32[5] = scan[5] carry(c=table, c1=t1) xs(x=places) {
        -     d:f32[8,4] = dot_general c w
        -     t:f32[8,4] = tanh d
        -     r:f32[4] = reduce_max[axes=(0,)] t
        +     r:f32[4] = reduce_max[axes=(0,)] c1
              s:f32[3] = slice[:3] r
              b:f32[1,3] = broadcast_in_dim s
              d1:f32[8,3] = dynamic_update_slice c b x 0
              r1:f32[] = reduce_sum[axes=(0,)] r
        +     d2:f32[1,4] = dot_general b w
        +     t1:f32[1,4] = tanh d2
        +     d3:f32[8,4] = dynamic_update_slice c1 t1 x 0
        -     yield carry(d1) ys(r1)
        +     yield carry(d1, d3) ys(r1)
            }
            return c, ys
          }
        """,
    )


def test_rows_that_are_looked_up():
    """(2) A decoder without a cache computes keys of all words so far, in each step."""

    def program(words, table, w, places):
        def step(words, i):
            keys = jnp.tanh(table[words] @ w)
            word = jnp.argmax(jnp.max(keys, axis=0)).astype(words.dtype)
            return words.at[i].set(word), jnp.sum(keys)

        return lax.scan(step, words, places)

    types = "i32[12]", "f32[20,8]", "f32[8,16]", "i32[5]"
    graph = alone(CARRY, program, *types, fires=True)
    (scan,) = scans(graph)
    (looked_up,) = (op for op in scan.body.ops if op.name == "gather")
    assert looked_up.result.shape == (1, 8)


def test_frames_that_are_dropped_at_one_end():
    """(1) Rows move, and one enters; the step reads them as it hands them on."""

    def program(frames, w, xs):
        def step(frames, x):
            frames = lax.concatenate([frames[1:], x[None]], 0)
            return frames, jnp.sum(layer(frames, w))

        return lax.scan(step, frames, xs)

    check_rewrite(
        CARRY,
        program,
        "f32[8,3]",
        "f32[3,4]",
        "f32[5,3]",
        diff="""
          fn (frames:f32[8,3], w:f32[3,4], xs:f32[5,3]) {
        +   d1:f32[8,4] = dot_general frames w
        +   t1:f32[8,4] = tanh d1
        -   c:f32[8,3], ys:f32[5] = scan[5] carry(c=frames) xs(x=xs) {
        +   c:f32[8,3], c2:f32[8,4], ys:f32[5] = scan[5] carry(c=frames, c2=t1) xs(x=xs) {
              s:f32[7,3] = slice[1:, :] c
              b:f32[1,3] = broadcast_in_dim x
              c1:f32[8,3] = concatenate[dimension=0] s b
        -     d:f32[8,4] = dot_general c1 w
        -     t:f32[8,4] = tanh d
        +     s1:f32[1,3] = slice[7:, :] c1
        +     d1:f32[1,4] = dot_general s1 w
        +     t1:f32[1,4] = tanh d1
        +     s2:f32[7,4] = slice[1:, :] c2
        +     c3:f32[8,4] = concatenate[dimension=0] s2 t1
        -     r:f32[] = reduce_sum[axes=(0, 1)] t
        +     r:f32[] = reduce_sum[axes=(0, 1)] c3
        -     yield carry(c1) ys(r)
        +     yield carry(c1, c3) ys(r)
            }
            return c, ys
          }
        """,
    )


def added(table, w, places):
    """A row that is added to is read of what the step hands on."""
    return slots(table, w, places, put=lambda t, row, i: t.at[i].add(row))


def scattered(table, w, places):
    """Rows out of range are dropped."""
    return slots(table, w, places, put=lambda t, row, i: t.at[i].set(row, mode="drop"))


def clipped(table, w, places):
    return slots(table, w, places, put=lambda t, row, i: t.at[i].multiply(row, mode="clip"))


def least(table, w, places):
    """Of a place that is always in range, the row is what is written."""
    written = lambda t, row, i: t.at[jnp.argmin(t[:, 0])].set(row + i)
    return slots(table, w, places, put=written)


def perhaps_before(table, w, places):
    """(1) A place that may be out of range on one side."""
    written = lambda t, row, i: t.at[lax.clamp(-5, i, 5)].set(row, mode="drop")
    return slots(table, w, places, put=written)


def perhaps_behind(table, w, places):
    written = lambda t, row, i: t.at[lax.clamp(0, i, 20)].set(row, mode="drop")
    return slots(table, w, places, put=written)


def least_added(table, w, places):
    written = lambda t, row, i: t.at[jnp.argmin(t[:, 0])].add(row + i)
    return slots(table, w, places, put=written)


def elements(table, w, places):
    return slots(table, w, places, put=lambda t, row, i: t.at[i, 1].set(row[0], mode="drop"))


def columns(table, w, places):
    """(2) Columns stay apart."""
    mapped = lambda t, w: jnp.tanh(jnp.tile(w.T, 3)[:, :8] @ t).T
    column = lambda t, row, i: t.at[:, i].set(jnp.tile(row, 3)[:8], mode="drop")
    return slots(table, w, places, mapped=mapped, put=column)


def perhaps(table, w, places):
    """(1) A step selects whether to write."""

    def step(state, i):
        table, t = state
        row = jnp.max(layer(table, w), axis=0)[:3] + t
        return (lax.select_n(row[0] > 0.5, table, put(table, row, i)), jnp.sin(t + row[1])), t

    return lax.scan(step, (table, 0.0), places)


def twice(table, w, places):
    """(1) It writes two rows, perhaps one."""
    return slots(table, w, places, put=lambda t, row, i: put(put(t, row, i), -row, i + 1))


def each_its_own(table, w, places):
    """(3) What else the ops read has rows of its own, is repeated for all, or made in the step."""

    def mapped(t, w):
        bias = jnp.broadcast_to(jnp.sin(w[0, :3]), t.shape)
        return jnp.tanh((t + jnp.arange(8.0)[:, None] * bias) @ w)

    return slots(table, w, places, mapped=mapped)


def normalised(table, w, places):
    """(2) Ops that reduce, repeat and reshape rows keep them apart."""

    def mapped(t, w):
        y = (t @ w).reshape(8, 2, 2)
        e = jnp.exp(y - jnp.max(y, -1, keepdims=True))
        return (e / jnp.sum(e, -1, keepdims=True)).reshape(8, 4)

    return slots(table, w, places, mapped=mapped)


def read_before_the_product(table, w, places):
    """What is made at no cost, and read by the rest of the step, too, is made again."""

    def step(table, i):
        bent = lax.max(table, 0.5)
        read = jnp.max(jnp.tanh(bent @ w), 0)
        return put(table, read[:3], i), jnp.sum(read) + jnp.sum(bent)

    return lax.scan(step, table, places)


def two_carries(table, w, places):
    """(2) Rows of two carries that change alike are read together."""

    def step(state, i):
        inverses, sums = state
        read = jnp.tanh(jnp.einsum("aij,aj->ai", inverses, sums))
        best = jnp.max(read, 0)
        return (inverses.at[i].add(jnp.outer(best, best)), sums.at[i].add(best)), jnp.sum(read)

    start = jnp.broadcast_to(w[:, :3], (8, 3, 3)) * table[:, :, None]
    return lax.scan(step, (start, table), places)


def at_two_places(table, w, places):
    """(1) Rows of two carries change apart."""

    def step(state, i):
        left, right = state
        read = jnp.max(jnp.tanh((left * right) @ w), 0)[:3]
        j = jnp.argmax(right[:, 0])
        return (put(left, read, i), right.at[j].set(read + 1)), jnp.sum(read)

    return lax.scan(step, (table, jnp.sin(table)), places)


def entering_first(table, w, places):
    """(1) Rows enter at the start."""

    def step(table, i):
        read = layer(table, w)
        new = jnp.max(read, 0)[:3] + i
        return lax.concatenate([new[None], -new[None], table[:-2]], 0), jnp.sum(read)

    return lax.scan(step, table, places)


def repeated_for_frames(table, w, places):
    """(3) Rows that move may be added to what is the same for all."""

    def step(table, i):
        read = jnp.tanh((table + jnp.broadcast_to(jnp.sin(w[:, 0]), (8, 3))) @ w)
        return lax.concatenate([table[1:], jnp.max(read, 0)[None, :3] + i], 0), jnp.sum(read)

    return lax.scan(step, table, places)


def in_a_batch_of_one(table, w, places):
    return jax.vmap(lambda table: scattered(table, w, places))(table[None])


def convolved(table, w, places):
    """Each row is an image of one line and one feature."""

    def mapped(table, w):
        images = lax.conv_general_dilated(table[:, None], w[:, None, :], (1,), "SAME")
        return jnp.tanh(images).max(2)

    return slots(table, w, places, mapped=mapped)


PROGRAMS = [
    in_a_batch_of_one,
    perhaps_before, perhaps_behind, least_added, added, scattered, clipped, least, elements,
    columns, perhaps, twice, each_its_own, normalised, read_before_the_product, two_carries,
    at_two_places, entering_first, repeated_for_frames, convolved,
]  # fmt: skip


SPECS = "f32[8,3]", "f32[3,4]", "i32[5]"


@pytest.mark.parametrize("bounds", [(-5, 5), (0, 20), None])
def test_rows_that_are_dropped(bounds):
    """(1) What is written is not what the step hands on, where that is out of range."""

    def written(t, row, i):
        i = i if bounds is None else lax.clamp(bounds[0], i, bounds[1])
        numbers = lax.ScatterDimensionNumbers((0,), (0,), (0,))
        return lax.scatter(t, i[None], row, numbers, mode="drop")

    program = lambda table, w, places: slots(table, w, places, put=written)
    places = np.array([9, -3, 2, -1, 12, 7, 20, -8], np.int32)
    alone(CARRY, program, *SPECS[:2], places, fires=True)


def test_carries_that_are_read_apart():
    """Of each the rows are made that change, not those of the other."""

    def program(left, right, w, places):
        def step(state, i):
            left, right = state
            read, other = (jnp.max(layer(t, w), axis=0) for t in state)
            return (put(left, read[:3], i), put(right, other[:3], i + 1)), jnp.sum(read + other)

        return lax.scan(step, (left, right), places)

    (loop,) = scans(alone(CARRY, program, SPECS[0], *SPECS, fires=True))
    assert [op.result.shape for op in loop.body.ops if op.name == "tanh"] == [(1, 4)] * 2


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_step_makes_the_rows_that_change(program):
    (loop,) = scans(alone(CARRY, program, *SPECS, fires=True))
    made = [
        op for op in loop.body.ops if op.name in ("conv_general_dilated", "dot_general", "tanh")
    ]
    assert max(op.result.size for op in made) <= 9  # of all rows: 12 or more


def test_what_changes_more_is_left_alone():
    """(1) All rows change, or most; what they are is not known."""

    def decayed(table, w, places):
        return slots(table, w, places, put=lambda t, row, i: put(0.9 * t, row, i))

    def reset(table, w, places):
        return slots(
            table, w, places, put=lambda t, row, i: lax.select_n(i > 3, put(t, row, i), 0 * t)
        )

    def several(table, w, places):
        return slots(table, w, places, put=lambda t, row, i: t.at[jnp.stack([i, i + 2])].set(row))

    def most(table, w, places):
        written = lambda t, row, i: lax.dynamic_update_slice(t, jnp.tile(row, (6, 1)), (i, 0))
        return slots(table, w, places, put=written)

    def batch(table, w, places):
        """Each row of a batch writes at a place of its own."""
        one = lambda t, i: slots(t, w, i, put=lambda t, row, i: t.at[i].set(row))
        return jax.vmap(one)(jnp.stack([table, -table]), jnp.stack([places, places + 1]))

    def swapped(table, w, places):
        def step(state, i):
            left, right = state
            read = jnp.max(layer(left, w), axis=0)
            return (right, left), jnp.sum(read) + i

        return lax.scan(step, (table, jnp.sin(table)), places)

    for program in (decayed, reset, several, batch, swapped):
        alone(CARRY, program, *SPECS, fires=False)
    check_refuses(CARRY, most, *SPECS, because="a step changes most rows")


def test_what_is_made_of_more_is_left_alone():
    """(2, 3) Rows are mixed, or read together with what changes."""

    def mixed(table, w, places):
        return slots(table, w, places, mapped=lambda t, w: jnp.tanh(jnp.cumsum(t, 0) @ w))

    def with_step(table, w, places):
        def step(table, i):
            read = jnp.max(jnp.tanh(table * i) @ w, axis=0)
            return put(table, read[:3], i), jnp.sum(read)

        return lax.scan(step, table, places)

    def other_rows(table, w, places):
        """Rows that move, and others that do not."""

        def step(table, i):
            read = jnp.tanh((table + jnp.arange(8.0)[:, None]) @ w)
            return lax.concatenate([table[1:], read[:1, :3] + i], 0), jnp.sum(read)

        return lax.scan(step, table, places)

    def numbered(table, w, places):
        return moving(table, w, places, lax.broadcasted_iota(jnp.float32, (8, 3), 0))

    def given(table, w, places):
        return moving(table, w, places, table)

    def moving(table, w, places, rows):
        def step(table, i):
            read = jnp.tanh((table + rows) @ w)
            return lax.concatenate([table[1:], read[:1, :3] + i], 0), jnp.sum(read)

        return lax.scan(step, table, places)

    for program in (mixed, with_step, other_rows, numbered, given):
        alone(CARRY, program, *SPECS, fires=False)


def test_a_loop_of_symbolic_length_is_left_alone():
    (n,) = export.symbolic_shape("n")
    types = [jax.ShapeDtypeStruct(t, "float32") for t in ((8, 3), (3, 4))]
    places = jax.ShapeDtypeStruct((n + 5,), "int32")
    graph = import_jaxpr(jax.make_jaxpr(slots)(*types, places))
    assert not run_alone((CARRY,), graph).record(CARRY.name, CARRY.cleanup).rewrites


def test_what_costs_nothing_is_left_alone():
    def scaled(table, w, places):
        return slots(table, w, places, mapped=lambda t, w: (t * w[0, :3] + 1) * t)

    check_refuses(CARRY, scaled, *SPECS, because="at no cost")


def test_a_loop_that_skips_steps_is_left_alone():
    def program(table, w, places, n):
        def step(state, i):
            table, t = state
            new = put(table, jnp.max(layer(table, w), axis=0)[:3], i)
            return (lax.select_n(t < n, table, new), t + 1), None

        return lax.scan(step, (table, 0), places)

    check_refuses(CARRY, program, *SPECS, "i32[]", because="skips whole steps")


def decoded(weights, first):
    """Keys and values of all words so far, made in each step."""
    table, keys, values = weights
    size = table.shape[1]

    def step(state, t):
        word, seen, loss = state
        seen = seen.at[t].set(table[word])
        score = jnp.where(jnp.arange(64) <= t, (seen @ keys) @ table[word], -jnp.inf)
        out = table @ (jax.nn.softmax(score) @ (seen @ values))
        word = jnp.argmax(out)
        return (word, seen, loss + jax.nn.log_softmax(out)[word]), None

    return lax.scan(step, (first, jnp.zeros((64, size)), 0.0), jnp.arange(64))[0][2]


@pytest.mark.slow
def test_the_gradient_of_a_decoder(as_it_is):
    """Both orders, and less memory."""
    rng = np.random.default_rng(0)
    weights = tuple(
        jnp.array(0.2 * rng.normal(size=s), jnp.float32) for s in ((32, 48), (48, 48), (48, 48))
    )
    assert "carry-mapped-rows" in str(explain(decoded, weights, 3))
    for made in (optimize(jax.grad(decoded)), jax.grad(optimize(decoded))):
        assert_close(made(weights, 3), jax.grad(decoded)(weights, 3))
        assert memory(made, weights, 3) < 0.5 * memory(jax.grad(decoded), weights, 3)
