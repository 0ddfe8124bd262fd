"""Rows are reduced in the steps that make them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.rows.reduce_stacked_rows import ReduceStackedRows
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.graphs import scans
from tests.loops import alone, measured
from tests.prices import FREE

REDUCE = ReduceStackedRows()
CHEAP = CostModel(FREE).but(kernel=0.0)
"""Starting an op takes no time."""


MODEL = CHEAP


def stacked(x, reverse=False, length=5):
    """Rows of four by three numbers."""
    step = lambda c, t: (jnp.sin(c) + t, c * jnp.arange(4.0)[:, None])
    return lax.scan(step, x, jnp.arange(length), reverse=reverse)[1]


def test_the_sum_of_the_rows():
    def program(x):
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(c), c), x, length=5)[1], axis=0)

    check_rewrite(
        REDUCE,
        program,
        "f32[8]",
        diff="""
            fn (x:f32[8]) {
          +   b:f32[8] = broadcast_in_dim 0.0
          -   c:f32[8], ys:f32[5,8] = scan[5] carry(c=x) {
          +   c:f32[8], c1:f32[8] = scan[5] carry(c=x, c1=b) {
                s:f32[8] = sin c
          +     r1:f32[1,8] = reshape c
          +     r2:f32[8] = reduce_sum[axes=(0,)] r1
          +     a:f32[8] = add c1 r2
          -     yield carry(s) ys(c)
          +     yield carry(s, a)
              }
          -   r:f32[8] = reduce_sum[axes=(0,)] ys
          -   return r
          +   return c1
            }
        """,
    )


def test_layers_that_are_mixed():
    """What is there before the loop, or can be, is streamed; it is made once."""

    def program(x, weights):
        ys = lax.scan(lambda c, _: (jnp.sin(c), c), x, length=5)[1]
        return jnp.max(ys * (weights + 1)[:, None], axis=0)

    check_rewrite(
        REDUCE,
        program,
        "f32[8]",
        "f32[5]",
        diff="""
            fn (x:f32[8], weights:f32[5]) {
          -   c:f32[8], ys:f32[5,8] = scan[5] carry(c=x) {
          -     s:f32[8] = sin c
          -     yield carry(s) ys(c)
          -   }
              a:f32[5] = add weights 1.0
              b:f32[5,1] = broadcast_in_dim[dims=(0,)] a
          -   m:f32[5,8] = mul ys b
          -   r:f32[8] = reduce_max[axes=(0,)] m
          +   b1:f32[8] = broadcast_in_dim -inf
          +   c1:f32[8], c2:f32[8] = scan[5] carry(c1=x, c2=b1) xs(x1=b) {
          +     s:f32[8] = sin c1
          +     r1:f32[1,8] = reshape c1
          +     r2:f32[1,1] = reshape x1
          +     m1:f32[1,8] = mul r1 r2
          +     r3:f32[8] = reduce_max[axes=(0,)] m1
          +     m2:f32[8] = max c2 r3
          +     yield carry(s, m2)
          +   }
          -   return r
          +   return c2
            }
        """,
    )


def largest(x):
    return jnp.max(stacked(x), axis=0), jnp.min(stacked(x, reverse=True), axis=0)


def whether(x):
    ys = stacked(x)
    return jnp.any(ys > 0.5, axis=0), jnp.all(ys > 0.5, axis=0)


def counted(x):
    """Whole numbers are added in any order."""
    return jnp.sum(stacked(x) > 0, axis=0), jnp.sum(stacked(x) > 0, axis=0, dtype="uint8")


def multiplied(x):
    whole = stacked(jnp.where(jnp.isfinite(x), x, 1.0), length=9).astype(int)
    bits = lambda op, ys: lax.reduce(ys, np.int32(-1 if op is lax.bitwise_and else 0), op, (0,))
    return jnp.prod(whole, axis=0), bits(lax.bitwise_xor, whole), jnp.max(whole, axis=0)


def across(x):
    """Of numbers of a row, too."""
    ys = stacked(x)
    return jnp.max(ys, axis=(0, 2)), jnp.max(ys), jnp.max(jnp.min(ys, axis=2), axis=0)


def turned(x):
    """Rows lie along another axis."""
    return jnp.max(jnp.transpose(stacked(x), (1, 2, 0)), axis=2)


def mapped(x):
    """As `vmap` makes it."""
    return jax.vmap(lambda c: jnp.max(stacked(c) + c, axis=0))(jnp.stack([x, x + 1]))


def weighed(x):
    """Each row with a number of its own, which is made after the loop."""
    return jnp.max(stacked(x) * jnp.arange(5.0)[:, None, None], axis=0)


def weighed_later(x):
    """The same; numbers of the rows lie along another axis."""
    ys = jnp.moveaxis(stacked(x), 0, 2)
    return jnp.max(ys * x[0, 0].astype("bfloat16") * jnp.ones((4, 3, 5)), axis=2)


def of_rows(x):
    """Two stacks of one loop, of which one is repeated."""
    _, (ys, zs) = lax.scan(lambda c, t: (jnp.sin(c), (c, c[:, 0])), x, jnp.arange(5))
    return jnp.max(ys * zs[..., None], axis=0), jnp.min(zs, axis=0)


def read_elsewhere(x):
    """The other one is a result, too."""
    _, (ys, zs) = lax.scan(lambda c, t: (jnp.sin(c), (c, c[:, 0])), x, jnp.arange(5))
    return jnp.max(ys * zs[..., None], axis=0), zs


def parts(x):
    """Rows are picked, compared and selected; what they are compared with is the same for each."""
    ys = stacked(x)[:, jnp.array([3, 0]), 1]
    return jnp.max(jnp.where(ys > x[0, :2], ys, -2.0), axis=0)


def square(x):
    """As many rows as numbers in a row."""
    ys = stacked(x, length=3)[:, 0]
    return jnp.max(ys.T, axis=1)


def of_others(x):
    """With rows of another loop, which are streamed."""
    return jnp.max(stacked(x) * stacked(x + 1), axis=0)


def in_loops(x):
    """A loop in a loop."""
    return lax.scan(lambda c, _: (jnp.max(stacked(c), axis=0), None), x, length=2)[0]


EXACT = [
    largest, whether, counted, multiplied, across, turned, mapped, weighed, weighed_later, of_rows,
    read_elsewhere, parts, square, of_others, in_loops,
]  # fmt: skip
X = [jnp.linspace(-2.0, 3.0, 12).reshape(4, 3), jnp.array([[jnp.nan, jnp.inf, -0.0]] * 4)]


@pytest.mark.parametrize("program", EXACT)
@pytest.mark.parametrize("x", X)
def test_the_same_bits(program, x):
    before, after = (import_jaxpr(traced(program, x), "final") for _ in range(2))
    assert run_alone((REDUCE,), after).record(REDUCE.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, x), evaluate_exactly(after, x))
    stacks = [stack for op in scans(after) for stack in op.stacks]
    assert all(len(stack.result.uses) for stack in stacks)


NARROW = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "int8", "uint8"]


@pytest.mark.parametrize("name", NARROW)
def test_narrow_types(name):
    """(2) Some floats have no infinity that a maximum could begin with."""

    def program(x):
        ys = stacked(x, reverse=True).astype(name)
        return lax.reduce_max(ys, (0,)), lax.reduce_min(ys, (0, 2))

    x = -jnp.linspace(1.0, 3.0, 12).reshape(4, 3)
    alone(REDUCE, program, x, fires=True, phase="final")


def test_a_type_without_zero():
    """(2) XLA computes with its least number as with zero."""

    def program(x):
        step = lambda c, _: (c * 0.5, c.astype("float8_e8m0fnu"))
        return lax.reduce_max(lax.scan(step, x, length=5)[1], (0,))

    alone(REDUCE, program, "f32[4,3]", fires=False, phase="final")


def averaged(x):
    ys = stacked(x)
    return jnp.mean(ys, axis=0), jnp.mean(ys * ys, axis=(0, 1))


def averaged_halves(x):
    """Added up as float32."""
    return jnp.mean(stacked(x).astype("bfloat16"), axis=0)


def complex_numbers(x):
    return jnp.sum(stacked(x) * 1j, axis=0)


def rewards(x):
    """Of an episode: steps that are skipped stack zeros."""

    def step(c, t):
        going = c[0, 0] > -1
        return jnp.where(going, jnp.sin(c) - 0.5, c), jnp.where(going, c, 0.0)

    return jnp.sum(lax.scan(step, x + 3, jnp.arange(5))[1], axis=0)


@pytest.mark.parametrize("program", [averaged, averaged_halves, complex_numbers, rewards])
@pytest.mark.parametrize("x", X)
def test_sums(program, x):
    before, after = (import_jaxpr(traced(program, x), "final") for _ in range(2))
    assert run_alone((REDUCE,), after).record(REDUCE.name, False).rewrites
    assert_close(evaluate_exactly(before, x), evaluate_exactly(after, x))
    assert not any(op.stacks for op in scans(after))


def kept(x):
    ys = stacked(x)
    return ys, jnp.max(ys, axis=0)


def by_row(x):
    return jnp.max(stacked(x), axis=1)


def last(x):
    return jnp.max(stacked(x)[3:], axis=0)


def read_after(x):
    ys = stacked(x)
    return jnp.max(ys, axis=0), lax.scan(lambda c, y: (jnp.sin(c) + y, None), x, ys)[0]


def place(x):
    return jnp.argmax(stacked(x), axis=0)


def halves(x):
    return lax.reduce(stacked(x).astype("float16"), np.float16(0), lax.add, (0,))


def complex_product(x):
    return lax.reduce(stacked(x) * 1j, np.complex64(1), lax.mul, (0,))


def product(x):
    return jnp.prod(stacked(x), axis=0)


def deviation(x):
    """From what all rows make."""
    ys = stacked(x)
    return jnp.max(jnp.abs(ys - jnp.max(ys, axis=0)), axis=0)


def scaled(x):
    """By what the loop leaves."""
    c, ys = lax.scan(lambda c, _: (jnp.sin(c), c), x, length=5)
    return jnp.max(ys * c, axis=0)


def added(x):
    """A sum within a row."""
    return jnp.max(jnp.sum(stacked(x), axis=1), axis=0)


def wide(x):
    """Functions are computed for all rows at once, by several cores."""
    return jnp.max(jnp.exp(stacked(x)), axis=0)


def crossed(x):
    """Rows meet columns."""
    ys = stacked(x, length=3)[:, 0]
    return jnp.max(ys + ys.T, axis=0)


def once(x):
    return jnp.max(stacked(x, length=1), axis=0)


@pytest.mark.parametrize(
    "program",
    [
        kept, by_row, last, read_after, place, halves, product, complex_product, deviation, scaled,
        added, wide, crossed, once,
    ],
)  # fmt: skip
def test_not_looked_at(program):
    """(1) Something else reads rows. (2) The order counts. (3) What else is read is not there.
    (4) Rows are rounded otherwise."""
    graph = import_jaxpr(traced(program, X[0]), "final")
    assert not run_alone((REDUCE,), graph).record(REDUCE.name, False).rewrites


def test_an_effect_stays():
    """(1) Something else reads rows."""

    def program(x):
        ys = stacked(x)
        jax.debug.callback(lambda y: None, ys)
        return jnp.max(ys, axis=0)

    graph = import_jaxpr(traced(program, X[0]), "final")
    assert not run_alone((REDUCE,), graph).record(REDUCE.name, False).rewrites


def skipping(x):
    """A loop that skips whole steps."""
    step = lambda c, t: (jnp.where(c[0, 0] > 0, jnp.sin(c) - 0.1, c), c)
    return jnp.max(lax.scan(step, x, jnp.arange(5))[1], axis=0)


def skipping_ones(x):
    """The same, which stacks ones then."""
    step = lambda c, t: (jnp.where(c[0, 0] > 0, jnp.sin(c) - 0.1, c), jnp.where(c[0, 0] > 0, c, 1))
    return jnp.sum(lax.scan(step, x, jnp.arange(5))[1], axis=0)


def skipping_zeros(x):
    """Zeros, which are not what is added up."""
    step = lambda c, t: (jnp.where(c[0, 0] > 0, jnp.sin(c) - 0.1, c), jnp.where(c[0, 0] > 0, c, 0))
    return jnp.sum(lax.scan(step, x, jnp.arange(5))[1] + 1, axis=0)


def many(x):
    """As many results as rows."""
    ys = stacked(x)
    return [jnp.max(ys * k, axis=0) for k in (1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (skipping, "skips"),
        (skipping_ones, "skips"),
        (skipping_zeros, "skips"),
        (many, "as much memory"),
    ],
)
def test_refused(program, because):
    check_refuses(REDUCE, program, "f32[4,3]", because=because)


def test_weights_of_all_numbers_are_as_large():
    def program(x):
        return jnp.max(stacked(x) * jnp.sin(jnp.arange(60.0)).reshape(5, 4, 3), axis=0)

    check_refuses(REDUCE, program, "f32[4,3]", because="as much memory")


def test_small_rows_stay():
    """Starting an op takes longer than storing them."""
    with using(CostModel()):
        check_refuses(REDUCE, largest, "f32[4,3]", because="as long as storing")


def test_gradients_of_micro_batches():
    """Their mean is carried, not a stack of them."""

    def program(w, xs):
        loss = lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)
        return jnp.mean(lax.map(lambda x: jax.grad(loss)(w, x), xs), axis=0)

    args = np.ones((64, 128), np.float32), np.ones((32, 8, 64), np.float32)
    with using(CostModel()):
        given, used = measured(optimize(program), *args)
    wanted, usual = measured(program, *args)
    assert_close(given, wanted)
    assert used < usual / 8
