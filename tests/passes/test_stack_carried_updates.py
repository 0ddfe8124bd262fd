"""Rows of a carried buffer are streamed in, carried a few steps, and stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.sparse.accumulate_sparse_cotangents import AccumulateSparseCotangents
from jaxpr_opt.passes.stack_carried_updates import StackCarriedUpdates
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.graphs import scans
from tests.loops import alone, memory

STACK = StackCarriedUpdates(even_in_place=True)


def loop(step, buffer, *, start=0, length=None, stride=1, reverse=False):
    """A scan of ``buffer = step(buffer, i)``, where `i` counts from `start` by `stride`."""
    count = buffer.shape[0] if length is None else length
    numbers = start + stride * jnp.arange(count)
    return lax.scan(lambda b, i: (step(b, i), None), buffer, numbers, reverse=reverse)[0]


def put(buffer, row, i):
    return lax.dynamic_update_index_in_dim(buffer, row, i, 0, allow_negative_indices=False)


def get(buffer, i):
    return lax.dynamic_index_in_dim(buffer, i, 0, keepdims=False, allow_negative_indices=False)


def test_old_value_streams_in():
    """A buffer that is read and overwritten at `i`."""

    def program(ys):
        return loop(lambda b, i: put(b, jnp.sin(get(b, i)), i), ys)

    check_rewrite(
        STACK,
        program,
        "f32[8]",
        simplify=True,
        diff="""
          fn (ys:f32[8]) {
        -   i:i32[8] = iota
        -   c:f32[8] = scan[8] carry(c=ys) xs(x=i) {
        +   ys1:f32[8] = scan[8] xs(x1=ys) {
        -     d:f32[1] = dynamic_slice c x
        -     s:f32[] = squeeze d
        -     s1:f32[] = sin s
        +     s1:f32[] = sin x1
        -     b:f32[1] = broadcast_in_dim s1
        -     d1:f32[8] = dynamic_update_slice c b x
        -     yield carry(d1)
        +     yield ys(s1)
            }
        -   return c
        +   return ys1
          }
        """,
    )


def test_recurrence_on_its_own_buffer():
    """``ys[i - 1]`` is a small carry."""

    def program(ys, xs):
        return loop(lambda b, i: put(b, get(b, i - 1) * get(xs, i), i), ys, start=1, length=7)

    check_rewrite(
        STACK,
        program,
        "f32[8,3]",
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (ys:f32[8,3], xs:f32[8,3]) {
            i:i32[7] = iota
            a:i32[7] = add 1 i
        +   s3:f32[1,3] = slice[:1, :] ys
        +   s4:f32[3] = squeeze s3
        -   c:f32[8,3] = scan[7] carry(c=ys) xs(x=a) {
        +   c1:f32[3], ys1:f32[7,3] = scan[7] carry(c1=s4) xs(x=a) {
        -     s:i32[] = sub x 1
        -     d:f32[1,3] = dynamic_slice c s 0
        -     s1:f32[3] = squeeze d
              d1:f32[1,3] = dynamic_slice xs x 0
              s2:f32[3] = squeeze d1
        -     m:f32[3] = mul s1 s2
        +     m:f32[3] = mul c1 s2
        -     b:f32[1,3] = broadcast_in_dim m
        -     d2:f32[8,3] = dynamic_update_slice c b x 0
        -     yield carry(d2)
        +     yield carry(m) ys(c1)
            }
        +   s5:f32[1,3] = stack[axis=0] c1
        +   c2:f32[8,3] = concatenate[dimension=0] ys1 s5
        -   return c
        +   return c2
          }
        """,
    )


def test_a_row_that_is_moved_on_as_it_is():
    """What is written is what was read, with no op between them."""

    def program(ys):
        def step(b, i):
            row = lax.dynamic_slice(b, (i - 1, 0), (1, 3), allow_negative_indices=False)
            return lax.dynamic_update_slice(b, row, (i, 0), allow_negative_indices=False)

        return loop(step, ys, start=1, length=7)

    check_rewrite(
        STACK,
        program,
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (ys:f32[8,3]) {
        -   i:i32[7] = iota
        -   a:i32[7] = add 1 i
        +   s1:f32[1,3] = slice[:1, :] ys
        +   s2:f32[3] = squeeze s1
        -   c:f32[8,3] = scan[7] carry(c=ys) xs(x=a) {
        +   c1:f32[3], ys1:f32[7,3] = scan[7] carry(c1=s2) {
        -     s:i32[] = sub x 1
        -     d:f32[1,3] = dynamic_slice c s 0
        -     d1:f32[8,3] = dynamic_update_slice c d x 0
        -     yield carry(d1)
        +     yield carry(c1) ys(c1)
            }
        +   s3:f32[1,3] = stack[axis=0] c1
        +   c2:f32[8,3] = concatenate[dimension=0] ys1 s3
        -   return c
        +   return c2
          }
        """,
    )


def test_cotangent_buffer():
    """As JAX transposes ``ys.at[i].set(f(xs[i]))``: read and cleared at `i`, accumulated at `i`."""

    def program(ct):
        def step(carry, i):
            ys, xs = carry
            g = get(ys, i)
            return (put(ys, 0.0, i), put(xs, get(xs, i) + 2.0 * g, i)), None

        return lax.scan(step, (ct, jnp.zeros(8)), jnp.arange(8), reverse=True)[0][1]

    check_rewrite(
        STACK,
        program,
        "f32[8]",
        simplify=True,
        diff="""
          fn (ct:f32[8]) {
        -   b:f32[8] = broadcast_in_dim 0.0
        -   i:i32[8] = iota
        -   c:f32[8], c1:f32[8] = scan[8, reverse] carry(c=ct, c1=b) xs(x=i) {
        +   ys:f32[8] = scan[8, reverse] xs(x1=ct) {
        -     d:f32[1] = dynamic_slice c x
        -     s:f32[] = squeeze d
        -     b:f32[1] = broadcast_in_dim 0.0
        -     d1:f32[8] = dynamic_update_slice c b x
        -     d2:f32[1] = dynamic_slice c1 x
        -     s1:f32[] = squeeze d2
        -     m:f32[] = mul 2.0 s
        +     m:f32[] = mul 2.0 x1
        -     a:f32[] = add s1 m
        -     b1:f32[1] = broadcast_in_dim a
        -     d3:f32[8] = dynamic_update_slice c1 b1 x
        -     yield carry(d1, d3)
        +     yield ys(m)
            }
        -   return c1
        +   return ys
          }
        """,
    )


def read(buffer, i, size):
    return lax.dynamic_slice(buffer, (i,), (size,), allow_negative_indices=False)


def block(buffer, rows, i):
    return lax.dynamic_update_slice(buffer, rows, (i,), allow_negative_indices=False)


def smooth(offsets, where=0):
    """Write at ``i + where`` the mean of what is read around `i`."""
    return lambda b, i: put(b, sum(get(b, i + k) for k in offsets) / len(offsets), i + where)


VARIANTS = {
    "two back": lambda b: loop(smooth([-1, -2]), b, start=2, length=10),
    "ahead: not written yet": lambda b: loop(smooth([0, 1, 2]), b, length=10),
    "behind and ahead": lambda b: loop(smooth([-2, 0, 3], where=1), b, start=2, length=7),
    "downwards": lambda b: loop(smooth([1, 2]), b, start=9, stride=-1, length=10),
    "reversed scan": lambda b: loop(smooth([1, 2]), b, length=10, reverse=True),
    "reversed and downwards": lambda b: loop(
        smooth([-1]), b, start=11, stride=-1, length=11, reverse=True
    ),
    "every second row": lambda b: loop(smooth([0, 1]), b, stride=2, length=6),
    "every second row, with a memory": lambda b: loop(
        smooth([-2, -1, 0]), b, start=2, stride=2, length=5
    ),
    "every third row, downwards": lambda b: loop(smooth([0]), b, start=10, stride=-3, length=4),
    "gaps": lambda b: loop(smooth([0, 1]), b, start=1, stride=4, length=3),
    "part of it": lambda b: loop(smooth([0, -1]), b, start=3, length=4),
    "written twice in a step": lambda b: loop(
        lambda b, i: put(put(b, get(b, i) + 1, i), get(b, i) * 2, i), b
    ),
    "a write that is dropped": lambda b: loop(lambda b, i: put(b, get(put(b, 1.0, i), i), i), b),
    "two rows at once": lambda b: loop(
        lambda b, i: lax.dynamic_update_slice(b, 2 * lax.dynamic_slice(b, (i,), (2,)), (i,)),
        b,
        length=11,
    ),
    "blocks": lambda b: loop(
        lambda b, i: block(b, get(b, 3 * i) + read(b, 3 * i, 3), 3 * i), b, length=4
    ),
    "blocks of two": lambda b: loop(
        lambda b, i: block(b, 2 * read(b, i, 2), i), b, stride=2, length=6
    ),
    "blocks that stay for a step": lambda b: loop(
        lambda b, i: block(b, read(b, i, 2) + read(b, i + 2, 2), i + 2), b, stride=2, length=5
    ),
    "blocks with gaps, downwards": lambda b: loop(
        lambda b, i: block(b, read(b, i, 2) + 1, i), b, start=8, stride=-4, length=3
    ),
    "added to": lambda b: loop(lambda b, i: b.at[i].add(3.0), b),
    "set, with the index checked": lambda b: loop(lambda b, i: b.at[i].set(b[i] * i), b),
    "read under a condition": lambda b: loop(
        lambda b, i: put(b, lax.cond(i > 3, lambda: get(b, i), lambda: 0.0), i), b
    ),
    "read in an inner loop": lambda b: loop(
        lambda b, i: put(b, lax.fori_loop(0, 3, lambda _, c: c + get(b, i), 0.0), i), b
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant):
    """(1, 2, 3) The same bits, and no buffer is carried."""
    graph = alone(STACK, VARIANTS[variant], "f32[12]", fires=True)
    (scan,) = [op for op in graph.body.ops if op.name == "scan"]
    assert all(carry.param.shape in {(), (2,)} for carry in scan.carries)


def test_a_block_is_one_value():
    """(2) Of 128 rows that are read and written together none is told apart."""

    def program(xs):
        def step(ys, i):
            row = jnp.sin(read(ys, 128 * i, 128) + read(xs, 128 * i, 128))
            return block(ys, row, 128 * i), row[3]

        return lax.scan(step, jnp.zeros(512), jnp.arange(4))

    graph = alone(STACK, program, "f32[512]", fires=True)
    (scan,) = [op for op in graph.body.ops if op.name == "scan"]
    assert [stack.value.shape for stack in scan.stacks] == [(), (128,)]
    assert sum(1 for _ in scan.body.walk()) < 24


def test_blocks_of_columns_in_a_batch():
    """(2) The rows of a block may be along any axis."""

    def program(b):
        return jax.vmap(VARIANTS["blocks that stay for a step"], 1, 1)(b)

    alone(STACK, program, "f32[12,3]", fires=True)
    alone(STACK, jax.vmap(VARIANTS["blocks of two"]), "f32[3,12]", fires=True)


ROWS = "f32[6,3]", "f32[6,2,3]", "i32[6,3]", "bool[6]", "c64[6,2]", "bf16[6]", "u8[6]"


@pytest.mark.parametrize("kind", ROWS)
def test_types(kind):
    def program(b):
        return loop(lambda b, i: put(b, get(b, i - 1) ^ get(b, i), i), b, start=1, length=5)

    def arithmetic(b):
        return loop(lambda b, i: put(b, get(b, i - 1) * get(b, i), i), b, start=1, length=5)

    alone(STACK, program if kind[0] in "bu" and "bf" not in kind else arithmetic, kind, fires=True)


def test_doubles():
    with jax.enable_x64(True):

        def program(b):
            return loop(lambda b, i: b.at[i].set(b[i] * b[i - 1]), b, start=1, length=5)

        alone(STACK, program, "f64[6]", fires=True)


def test_weak_types_stay():
    def program(x):
        buffer = lax.full_like(x, 2.0, shape=(6,))
        assert buffer.weak_type
        return loop(lambda b, i: put(b, get(b, i) + 1.0, i), buffer)

    alone(STACK, program, jnp.asarray(1.0), fires=True)


def test_columns():
    """(2) Along the second axis; the first is touched at constant places."""

    def program(b):
        def step(b, j):
            old = lax.dynamic_slice(b, (0, j), (2, 1))
            return lax.dynamic_update_slice(b, old[:1] + old[1:], (1, j)), None

        return lax.scan(step, b, jnp.arange(5))[0]

    alone(STACK, program, "f32[2,5]", fires=True)


def test_rows_at_constants_are_told_apart():
    """(2) As the two rows of a table that one of them is filled from."""

    def program(b):
        def step(b, j):
            old = lax.dynamic_slice(b, (0, j), (1, 1)) + lax.dynamic_slice(b, (1, j - 1), (1, 1))
            return lax.dynamic_update_slice(b, old, (1, j)), None

        return lax.scan(step, b, 1 + jnp.arange(4))[0]

    graph = alone(STACK, program, "f32[2,5]", fires=True)
    (scan,) = [op for op in graph.body.ops if op.name == "scan"]
    assert sorted(carry.param.shape for carry in scan.carries) == [(), (5,)]


def test_a_batch_with_one_index():
    """(1) A scatter of one window of all rows of a batch."""

    def program(b):
        return jax.vmap(lambda b: loop(lambda b, i: b.at[i].set(b[i] + 1), b))(b)

    alone(STACK, program, "f32[4,6]", fires=True)


REFUSED = {
    "reads all of": lambda b: loop(lambda b, i: put(b, jnp.sum(b), i), b),
    "replaced as a whole": lambda b: loop(lambda b, i: jnp.full(8, get(put(b, 1.0, i), i)), b),
    "leaves cond whole": lambda b: loop(
        lambda b, i: lax.cond(get(b, i) > 0, lambda: put(b, 1.0, i), lambda: b), b
    ),
    "is written inside of cond": lambda b: loop(
        lambda b, i: put(
            b, lax.cond(get(b, i) > 0, lambda: get(put(b, 2.0, i), i), lambda: 1.0), i
        ),
        b,
    ),
    "dynamic_update_slice reads all of": lambda b: loop(
        lambda b, i: put(b, get(lax.dynamic_update_slice(jnp.ones(9), b, (0,)), i), i), b
    ),
    "is not known": lambda b: loop(lambda b, i: put(b, get(b, i * i), i), b),
    "is not known from the step, or may be out of range": lambda b: loop(
        lambda b, i: put(b, get(b, i - 1), i), b
    ),
    "move by different numbers of rows a step": lambda b: loop(
        lambda b, i: put(b, get(b, 7 - i), i), b
    ),
    "updates the buffer in place": lambda b: loop(lambda b, i: put(b, 1.0, i), b),
    "move along 0 axes": lambda b: loop(smooth([0, -1]), b, start=3, length=1),
    "has no steps": lambda b: loop(lambda b, i: put(b, get(b, i) + 1, i), b, length=0),
    "each step would split and join": lambda b: loop(
        lambda b, i: put(b, jnp.sum(read(b, 16 * i, 16)), 16 * i + 3), jnp.tile(b, 4), length=2
    ),
    "rows of": lambda b: loop(
        lambda b, i: put(b, get(b, i + limits.ROWS_CARRIED + 1), i), jnp.tile(b, 3), length=8
    ),
}


@pytest.mark.parametrize("because", REFUSED)
def test_refusals(because):
    """(1, 2, 3) What is no window, does not slide, or may be out of range."""
    check_refuses(STACK, REFUSED[because], "f32[8]", because=because)


def test_windows_without_elements_stay():
    """(3) There are no rows to join."""

    def program(c):
        def step(c, i):
            none = lax.dynamic_slice(c, (i,), (0,))
            return lax.dynamic_update_slice(c, 2 * none, (i,)).at[i].set(c[i] * 2), none

        return lax.scan(step, c, jnp.arange(6))[0]

    check_refuses(STACK, program, "f32[12]", because="uses no elements of")
    jax.grad(lambda c: jnp.sum(optimize(program)(c)))(jnp.arange(12.0))


def test_diagonals_stay():
    """(2) Along one axis."""

    def program(b):
        return lax.fori_loop(0, 5, lambda i, b: b.at[i, i].set(b[i, i] * 2), b)

    check_refuses(STACK, program, "f32[5,5]", because="move along 2 axes")


def test_narrow_columns_stay():
    """Cost: a row is moved for one of its elements."""

    def program(b):
        return lax.fori_loop(0, 5, lambda i, b: b.at[i, 3].set(b[i, 3] * 2), b)

    check_refuses(STACK, program, "f32[5,100]", because="much larger than the part that is read")


def test_keys_stay():
    """Their elements are no numbers."""

    def program(keys):
        def step(b, i):
            return put(b, jax.random.fold_in(get(b, i), i), i)

        return loop(step, jax.random.wrap_key_data(keys))

    check_refuses(STACK, program, "u32[4,2]", because="are smaller than a byte, or no numbers")


@pytest.mark.parametrize("dtype", ["int2", "uint4", "float4_e2m1fn"])
def test_packed_numbers_stay(dtype):
    """XLA may abort where it has to concatenate rows of them."""

    def program(xs):
        step = lambda b, i: put(b, jnp.minimum(get(b, i), xs.astype(dtype)[i]), i)
        return loop(step, xs.astype(dtype))

    check_refuses(STACK, program, "f32[4]", because="smaller than a byte")


def test_an_index_written_twice_has_the_last_value():
    """The first write's gradient is zero."""

    def program(xs):
        def step(b, x):
            return b.at[0].set(x), None

        return lax.scan(step, jnp.zeros(3), xs)[0]

    gradient = jax.grad(lambda xs: program(xs)[0])
    alone(STACK, gradient, "f32[4]", fires=False)


def test_wide_rows_that_are_added_to_stay():
    """Cost: XLA does it in place."""

    def program(xs):
        return loop(lambda b, i: put(b, get(b, i) + get(xs, i), i), jnp.zeros((4, 300)))

    check_refuses(STACK, program, "f32[4,300]", because="XLA adds to the rows")


def test_wide_rows_of_any_start_that_are_added_to_stay():
    """Cost: what is read of a row is for its write only."""

    def program(xs, b):
        return loop(lambda b, i: put(b, get(b, i) + get(xs, i), i), b)

    check_refuses(STACK, program, "f32[4,300]", "f32[4,300]", because="XLA adds to the rows")


def test_wide_rows_that_are_read_for_something_else_are_streamed():
    def program(xs, b):
        def step(b, i):
            return put(b, get(b, i) + get(xs, i), i), jnp.sum(get(b, i))

        return lax.scan(step, b, jnp.arange(4))

    alone(STACK, program, "f32[4,300]", "f32[4,300]", fires=True)


def recurrent(ys):
    """Of a window of two rows one is kept, so the rows that are stacked are not all."""
    return loop(lambda b, i: put(b, jnp.sin(get(b, i - 1)), i), ys, start=1, length=7)


def doubled(ys):
    """Windows of two rows, of which one is kept."""

    def step(b, i):
        window = lax.dynamic_slice(b, (i,), (2,), allow_negative_indices=False)
        return lax.dynamic_update_slice(b, window * 2.0, (i,), allow_negative_indices=False)

    return loop(step, ys, length=7)


BETTER_LEFT = {
    "whole": recurrent,
    "a row that has left": lambda ys: recurrent(ys)[3],
    "a row that has left, and one that has not": lambda ys: recurrent(ys)[6:],
    "rows from the data": lambda ys: recurrent(ys)[jnp.argmax(ys)],
    "columns": lambda ys: jax.vmap(recurrent, 1, 1)(ys[:, None]),
    "downwards": lambda ys: loop(lambda b, i: put(b, get(b, 7 - i) + 1.0, 7 - i), ys),
    "every second row": lambda ys: loop(
        lambda b, i: put(b, get(b, 2 * i) + 1.0, 2 * i), ys, length=4
    ),
    "a part": lambda ys: loop(lambda b, i: put(b, get(b, i) + 1.0, i), ys, length=5),
}


@pytest.mark.parametrize("wanted", BETTER_LEFT)
def test_what_xla_updates_in_place_and_would_have_to_put_together_stays(wanted):
    """Cost: a second buffer."""
    because = "XLA already updates the buffer in place; stacked rows"
    check_refuses(StackCarriedUpdates(), BETTER_LEFT[wanted], "f32[8]", because=because)


def test_windows_of_small_buffers_stay():
    """Cost: a row that is carried is an op, and XLA copies the buffer in no more time."""

    def last_eight(xs):
        def step(b, i):
            window = lax.dynamic_slice(b, (i,), (8,), allow_negative_indices=False)
            return put(b, jnp.sin(window.sum() + get(xs, i)), i + 8)

        return jnp.sum(loop(step, jnp.zeros(len(xs) + 8), length=len(xs)))

    because = "XLA copies the buffer as fast as"
    check_refuses(StackCarriedUpdates(), jax.grad(last_eight), "f32[40]", because=because)
    large = "XLA already updates the buffer in place"
    check_refuses(StackCarriedUpdates(), jax.grad(last_eight), "f32[4000]", because=large)
    twice = jax.grad(lambda ys: jnp.sum(doubled(ys)))
    check_refuses(StackCarriedUpdates(), twice, "f32[8]", because=because)


def test_what_another_loop_has_left_stays():
    """Cost: rows streamed in would be a second buffer, though only the last row is wanted."""

    def program(ys):
        filled = loop(lambda b, i: put(b, jnp.sin(i * 1.0), i), ys)
        return recurrent(put(filled, 1.0, 0))[7]

    because = "XLA already updates the buffer in place; streamed rows"
    check_refuses(StackCarriedUpdates(), program, "f32[8]", because=because)


def test_an_array_that_an_outer_loop_carries_stays_in_place():
    """Its rows would be streamed from a copy, in each step of the outer loop."""

    def program(ys):
        inner = lambda b: loop(lambda b, i: put(b, jnp.sin(get(b, i)), i), b)
        return lax.fori_loop(0, 3, lambda _, b: inner(b), ys)

    because = "XLA already updates the buffer in place; streamed rows"
    check_refuses(StackCarriedUpdates(), program, "f32[8]", because=because)


@pytest.mark.parametrize("size", [4, 1024])
def test_what_a_fence_saves_the_copy_of_stays(size):
    """Cost: taken apart and joined in each step of the outer loop, five times the time (0.10)."""

    def program(zs):
        def stage(c, i):
            y, zs = c
            z = get(zs, i)
            return (y + z, put(zs, y - z, i)), None

        def sample(zs, x):
            y, zs = lax.scan(stage, (jnp.full(size, x), zs), jnp.arange(6))[0]
            return zs, y[0]

        return lax.scan(sample, zs, jnp.arange(8.0))

    because = "XLA already updates the buffer in place; streamed rows would be copied"
    check_refuses(StackCarriedUpdates(), program, jnp.ones((6, size)), because=because)


def test_what_is_read_and_used_again_stays():
    """Cost: a fence orders the read before the write; two arrays, 1.2 to 1.5 times the time."""
    because = "XLA already updates the buffer in place; stacked rows would be copied into it"
    check_refuses(StackCarriedUpdates(), shared, "f32[8]", because=because)


def test_rows_of_which_a_part_is_written_stay():
    """Cost: the rest of the row is moved; five times the time on JAX 0.10, where that is padded."""

    def program(ys):
        def step(b, i):
            new = jnp.exp(get(b, i - 1)[1:])
            return lax.dynamic_update_slice(b, new[None], (i, 1), allow_negative_indices=False)

        return loop(step, ys, start=1, length=7)[7]

    because = "XLA already updates the buffer in place; streaming would move"
    check_refuses(StackCarriedUpdates(), program, "f32[8,4]", because=because)


def next_row(together, wanted):
    """A row of a table of the row above, and of what is to the left; in place."""

    def at(b, i, j):
        return lax.dynamic_slice(b, (i, j), (1, 1), allow_negative_indices=False)

    def step(b, j):
        cell = at(b, 0, j) + jnp.sin(at(b, 1, j - 1))
        return lax.dynamic_update_slice(b, cell, (1, j), allow_negative_indices=False)

    return lambda x, y: wanted(loop(step, together(x, y), start=1, length=3))


def rows(x, y):
    return lax.concatenate([x[None], y[None]], 0)


def test_rows_that_are_put_together_for_a_loop_are_told_apart():
    """Cost: nothing is moved."""
    check_rewrite(
        StackCarriedUpdates(),
        next_row(rows, lambda b: b[1]),
        "f32[4]",
        "f32[4]",
        simplify=True,
        diff="""
          fn (x:f32[4], y:f32[4]) {
            b:f32[1,4] = broadcast_in_dim x
            b1:f32[1,4] = broadcast_in_dim y
            c:f32[2,4] = concatenate[dimension=0] b b1
            i:i32[3] = iota
            a:i32[3] = add 1 i
        -   c1:f32[2,4] = scan[3] carry(c=c) xs(x=a) {
        -     d:f32[1,1] = dynamic_slice c 0 x
        -     s:i32[] = sub x 1
        -     d1:f32[1,1] = dynamic_slice c 1 s
        -     s1:f32[1,1] = sin d1
        -     a:f32[1,1] = add d s1
        -     d2:f32[2,4] = dynamic_update_slice c a 1 x
        -     yield carry(d2)
        -   }
        +   s2:f32[1,4] = slice[:1, :] c
        +   s3:f32[4] = squeeze s2
        -   s:f32[1,4] = slice[1:, :] c1
        +   s:f32[1,4] = slice[1:, :] c
            s1:f32[4] = squeeze s
        +   c2:f32[4], c3:f32[4] = scan[3] carry(c2=s3, c3=s1) xs(x1=a) {
        +     d3:f32[1] = dynamic_slice c2 x1
        +     b2:f32[1,1] = broadcast_in_dim d3
        +     s:i32[] = sub x1 1
        +     d4:f32[1] = dynamic_slice c3 s
        +     b3:f32[1,1] = broadcast_in_dim d4
        +     s2:f32[1,1] = sin b3
        +     a1:f32[1,1] = add b2 s2
        +     s3:f32[1] = squeeze a1
        +     d5:f32[4] = dynamic_update_slice c3 s3 x1
        +     yield carry(c2, d5)
        +   }
        +   s4:f32[2,4] = stack[axis=0] c2 c3
        +   s5:f32[1,4] = slice[1:, :] s4
        +   s6:f32[4] = squeeze s5
        -   return s1
        +   return s6
          }
        """,
    )


IN_ONE = {
    "what comes in one": next_row(lambda x, y: jnp.sort(rows(x, y)), lambda b: b[1]),
    "two rows in one": next_row(
        lambda x, y: lax.concatenate([rows(x, y), x[None]], 0), lambda b: b[1]
    ),
    "columns": next_row(lambda x, y: lax.concatenate([rows(x, y)[:, :2]] * 2, 1), lambda b: b[1]),
    "what is wanted whole": next_row(rows, jnp.sort),
    "what is wanted in columns": next_row(rows, lambda b: b[:, 1]),
}


@pytest.mark.parametrize("program", IN_ONE.values(), ids=IN_ONE)
def test_rows_that_come_or_go_in_one_stay(program):
    """Cost: they would be moved."""
    because = "XLA already updates the buffer in place"
    check_refuses(StackCarriedUpdates(), program, "f32[4]", "f32[4]", because=because)


def linear(ys):
    """Sums so far, in place; so is their cotangent, and no row is kept for it."""
    sums = loop(lambda b, i: put(b, get(b, i) + get(b, i - 1), i), ys, start=1, length=ys.size - 1)
    return jnp.sum(sums)


def shared(ys, read=get):
    """What is read is written, and added up: XLA copies the buffer, unless a fence is between."""

    def step(carry, i):
        b, total = carry
        y = read(b, i - 1)
        return (put(b, jnp.sin(y), i), total + y), None

    return lax.scan(step, (ys, 0.0), jnp.arange(1, 8))[0]


def echo(ys):
    """What is written is a result, too."""

    def step(b, i):
        y = get(b, i)
        return put(b, jnp.sin(y), i), (y, jnp.sin(y))

    return lax.scan(step, ys, jnp.arange(8))


def chosen(b, i):
    """A read that no fence orders before a write, and one that a fence could."""
    return get(b, i) + lax.cond(i > 3, get, lambda b, i: 1.0, b, i)


BETTER_STACKED = {
    "the last row": lambda ys: recurrent(ys)[7],
    "nothing": lambda ys: (recurrent(ys), ys)[1],
    "the stack is the array": lambda ys: loop(lambda b, i: put(b, get(b, i) + 1.0, i), ys),
    "XLA copies": lambda ys: shared(ys, chosen),
    "what is stacked anyway": echo,
    "a gradient": jax.grad(lambda ys: jnp.sum(recurrent(ys))),
}


@pytest.mark.parametrize("wanted", BETTER_STACKED)
def test_what_gains_is_stacked(wanted):
    """Cost: no buffer any more, no second one, no copies, no cotangents of the whole."""
    alone(StackCarriedUpdates(), BETTER_STACKED[wanted], "f32[8]", fires=True)


def test_a_gradient_of_what_was_left_in_place():
    """Alone the program is left in place; with its transpose, seen as one program, it is not."""

    def loss(xs):
        def body(i, ys):
            return ys.at[i].set(jnp.sin(ys[i - 1]) * xs[i])

        return jnp.sum(lax.fori_loop(1, xs.size, body, xs) ** 2)

    xs = jnp.ones(4096)
    plain = memory(jax.grad(loss), xs)
    assert memory(optimize(jax.grad(loss)), xs) < 0.55 * plain
    assert memory(jax.grad(optimize(loss)), xs) < 0.65 * plain


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 100])
def test_a_gradient_in_place_gains_where_the_buffer_is_small(size):
    """Cost: a second buffer that counts, and no fewer steps."""
    alone(
        StackCarriedUpdates(),
        jax.vmap(jax.grad(linear)),
        f"f32[3,{size}]",
        fires=CostModel().is_quick(3 * size * 4),
    )


def test_a_small_gradient_in_place_takes_no_second_buffer_in_a_batch():
    """Prefix sums: 24 kB before, plain JAX 9 kB."""

    def loss(xs):
        put = lambda i, ys: ys.at[i].add(ys[i - 1])
        return jnp.sum(jnp.sin(lax.fori_loop(1, xs.size, put, xs)))

    rows = jnp.ones((3, 1000))
    plain = memory(jax.vmap(jax.grad(loss)), rows)
    assert memory(jax.vmap(jax.grad(optimize(loss))), rows) <= plain


def test_a_gradient_takes_no_second_buffer():
    """As much as plain JAX, and no more: 148 kB before."""
    gradient = jax.vmap(jax.grad(linear))
    ys = jnp.ones((3, 4096))
    assert memory(optimize(gradient), ys) <= memory(gradient, ys)
    assert memory(jax.vmap(jax.grad(optimize(linear))), ys) <= memory(gradient, ys)


def test_numbers_do_not_enter_as_rows_for_what_is_written_elsewhere():
    """Of the buffer only the first row is anything but zero, and it never enters the window."""

    def program(x):
        b = put(jnp.zeros(8), x, 0)
        return loop(
            lambda b, i: put(b, get(b, i) + jnp.sin(get(b, i - 1)), i), b, start=1, length=7
        )

    check_rewrite(
        STACK,
        program,
        "f32[]",
        simplify=True,
        diff="""
          fn (x:f32[]) {
            b:f32[8] = broadcast_in_dim 0.0
            b1:f32[1] = broadcast_in_dim x
            d:f32[8] = dynamic_update_slice b b1 0
        -   i:i32[7] = iota
        -   a:i32[7] = add 1 i
        +   s4:f32[1] = slice[:1] d
        +   s5:f32[] = squeeze s4
        -   c:f32[8] = scan[7] carry(c=d) xs(x=a) {
        +   c1:f32[], ys:f32[7] = scan[7] carry(c1=s5) {
        -     d:f32[1] = dynamic_slice c x
        -     s:f32[] = squeeze d
        -     s1:i32[] = sub x 1
        -     d1:f32[1] = dynamic_slice c s1
        -     s2:f32[] = squeeze d1
        -     s3:f32[] = sin s2
        +     s3:f32[] = sin c1
        -     a:f32[] = add s s3
        -     b:f32[1] = broadcast_in_dim a
        -     d2:f32[8] = dynamic_update_slice c b x
        -     yield carry(d2)
        +     yield carry(s3) ys(c1)
            }
        +   s6:f32[1] = stack[axis=0] c1
        +   c2:f32[8] = concatenate[dimension=0] ys s6
        -   return c
        +   return c2
          }
        """,
    )


WRITTEN = {
    "a row that enters": lambda b, x: put(b, x, 3),
    "a row that is not known": lambda b, x: put(b, x, jnp.argmax(x)),
    "a row that enters, below another": lambda b, x: put(put(b, x, 3), x, 0),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_rows_that_are_written_before_the_loop_enter(written):
    def program(x):
        b = WRITTEN[written](jnp.zeros(8), x)
        return loop(
            lambda b, i: put(b, get(b, i) + jnp.sin(get(b, i - 1)), i), b, start=1, length=7
        )

    graph = alone(STACK, program, "f32[]", fires=True)
    (scan,) = scans(graph)
    assert any(stream.param.dtype == jnp.float32 for stream in scan.streams)


def test_a_batch_of_buffers_of_which_one_row_is_written():
    """Each row of the batch begins with the same numbers."""

    def program(x):
        def one(x):
            b = put(jnp.zeros(8), 1.0, 0)
            step = lambda b, i: put(b, get(b, i) + x * get(b, i - 1), i)
            return loop(step, b, start=1, length=7)[7]

        return jax.vmap(one)(x)

    graph = alone(STACK, program, "f32[3]", fires=True)
    (scan,) = scans(graph)
    assert all(stream.param.dtype != jnp.float32 for stream in scan.streams)


def read_at_one_end(x, row):
    """The cotangent starts as zeros beside what is added to the row that is read."""
    step = lambda b, i: put(b, x[i] * get(b, i + 1), i)
    return row(loop(step, jnp.ones((9, 3)), start=0, length=8, reverse=True))


ENDS = {
    "one row": lambda b: b[0],
    "two reads": lambda b: b[0] * jnp.sin(b[:1]),
}


@pytest.mark.parametrize("row", ENDS)
def test_cotangents_that_start_as_zeros_are_not_streamed(row):
    gradient = jax.grad(lambda x: jnp.sum(read_at_one_end(x, ENDS[row])))
    assert streams_rows(gradient) == (False, True)


def test_cotangents_of_other_rows_are_streamed():
    """Of a part of the rows that enter, and of rows between which there are zeros."""
    for row in (lambda b: b[3], lambda b: b[::2], lambda b: b[0] * b[5]):
        gradient = jax.grad(lambda x, row=row: jnp.sum(read_at_one_end(x, row)))
        assert streams_rows(gradient) == (True, True)


def streams_rows(gradient):
    """Whether the loop back has streams of rows, and whether it is one without the buffer."""
    graph = import_jaxpr(traced(gradient, "f32[8]"))
    run_alone((*CLEANUP, AccumulateSparseCotangents(), STACK), graph)
    *_, back = scans(graph)
    of_rows = [
        s for s in back.streams if s.param.shape == (3,) and not isinstance(s.operand.op, Scan)
    ]
    return bool(of_rows), all(c.param.shape != (9, 3) for c in back.carries)


def test_a_batch_that_types_divide():
    """Rows that leave are zeros or batched; JAX batches no `stack` of both over such an axis."""

    def program(x, factors):
        def sample(z, x):
            def stage(k, carry):
                y = factors[k] * carry[0] + carry[1][k, 0]
                z = carry[1].at[k, 0].set(carry[0] - y + carry[1][k, 1])
                return y, z.at[k, 1].set(carry[0] * y)

            y, z = lax.fori_loop(0, 6, stage, (x, z))
            return z, y

        return jnp.sum(lax.scan(sample, jnp.zeros((6, 2)), x)[1])

    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        xs, factors = jax.device_put(jnp.ones((4, 9)), over), jnp.linspace(0.1, 0.6, 6)
        fs = (jax.jit(jax.vmap(jax.grad(f), (0, None))) for f in (program, optimize(program)))
        plain, ours = (f(xs, factors) for f in fs)
    np.testing.assert_allclose(ours, plain, rtol=1e-5)
