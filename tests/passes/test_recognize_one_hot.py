"""A mask that is true at one place is an index, if it is true at one place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.windows.recognize_one_hot import RecognizeOneHot
from jaxpr_opt.testing import (
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone

RECOGNIZE = RecognizeOneHot()
N = 8


def loop(step, init, xs):
    """Each row of xs is a step's."""
    return lax.scan(lambda c, x: (step(c, x), None), init, xs)[0]


def places(i, start=0):
    return lax.eq(lax.iota("int32", N) + np.int32(start), i)


def test_a_masked_write():
    """(1) Where the row's number says."""

    def program(xs, b):
        return lax.scan(
            lambda b, ix: (lax.select_n(places(ix[0]), b, lax.broadcast(ix[1], (N,))), None),
            b,
            (lax.iota("int32", 4), xs),
        )[0]

    check_rewrite(
        RECOGNIZE,
        program,
        "f32[4]",
        "f32[8]",
        diff="""
            fn (xs:f32[4], b:f32[8]) {
              i:i32[4] = iota
              c:f32[8] = scan[4] carry(c=b) xs(x=i, x1=xs) {
          -     i:i32[8] = iota
          -     e:bool[8] = eq i x
                b:f32[8] = broadcast_in_dim x1
          -     s:f32[8] = select_n e c b
          +     d:f32[1] = dynamic_slice b x
          +     d1:f32[8] = dynamic_update_slice c d x
          -     yield carry(s)
          +     yield carry(d1)
              }
              return c
            }
        """,
        simplify=True,
    )


def test_its_transpose():
    """(3) What is written is read, and cleared, at the place."""

    def program(ct):
        def step(ct, i):
            zeros, here = jnp.zeros(N), places(i)
            return lax.select_n(here, ct, zeros), lax.select_n(here, zeros, ct).sum()

        return lax.scan(step, ct, lax.iota("int32", 4))

    check_rewrite(
        RECOGNIZE,
        program,
        "f32[8]",
        diff="""
            fn (ct:f32[8]) {
              i:i32[4] = iota
              c:f32[8], ys:f32[4] = scan[4] carry(c=ct) xs(x=i) {
                b:f32[8] = broadcast_in_dim 0.0
          -     i:i32[8] = iota
          -     e:bool[8] = eq i x
          -     s:f32[8] = select_n e c b
          -     s1:f32[8] = select_n e b c
          -     r:f32[] = reduce_sum[axes=(0,)] s1
          +     d:f32[1] = dynamic_slice b x
          +     d1:f32[8] = dynamic_update_slice c d x
          +     d2:f32[1] = dynamic_slice c x
          +     r1:f32[] = reshape d2
          -     yield carry(s) ys(r)
          +     yield carry(d1) ys(r1)
              }
              return c, ys
            }
        """,
        simplify=True,
    )


MASKS = [
    pytest.param(lambda i: lax.ne(lax.iota("int32", N), i), True, id="ne"),
    pytest.param(lambda i: lax.eq(i, lax.iota("int32", N)), False, id="the other way round"),
    pytest.param(lambda i: places(i + 2, start=2), False, id="offset"),
    pytest.param(lambda i: places(i.astype("int8").astype("int32")), False, id="converted"),
]


@pytest.mark.parametrize(("mask", "negated"), MASKS)
def test_masks(mask, negated):
    """(1) Other ways to say it: the rest keeps what it has, NaN or not."""

    def step(b, i):
        cases = (b, lax.iota("float32", N) + i)
        return lax.select_n(mask(i), *(cases[::-1] if negated else cases))

    def program(b):
        return loop(step, b, lax.iota("int32", 4) * 2)

    assert_recognized(program, jnp.array([1.0, jnp.nan, 2.0, 3.0, jnp.inf, 4.0, 5.0, 6.0]))


AXES = [
    pytest.param(0, id="rows"),
    pytest.param(1, id="columns"),
    pytest.param(2, id="layers"),
]


@pytest.mark.parametrize("axis", AXES)
def test_axes(axis):
    """(1) A mask along one axis of several."""
    shape = (4, 5, 6)

    def program(b):
        def step(b, i):
            mask = lax.eq(lax.broadcasted_iota("int32", shape, axis), lax.broadcast(i, shape))
            return lax.select_n(mask, b, b * 2 + 1), jnp.sum(jnp.where(mask, b, 0), axis)

        return lax.scan(step, b, lax.iota("int32", 4))

    assert_recognized(program, jnp.arange(120.0).reshape(shape))


def test_rows_with_places_of_their_own():
    """(1) One number a row: a scatter of one element in each."""

    def program(b, starts):
        def one(b, start):
            def step(b, i):
                j = jnp.clip(start + i, 0, N - 1)
                here = jnp.arange(N) == j
                return jnp.where(here, b[j] + i, b), jnp.sum(jnp.where(here, b, 0))

            return lax.scan(step, b, jnp.arange(4))

        return jax.vmap(one)(b, starts)

    assert_recognized(program, jnp.arange(24.0).reshape(3, N), jnp.array([0, 6, -3]))


def assert_recognized(program, *args):
    """No select and no sum of whole arrays is left, and the values are the same bits."""
    before, after = (import_jaxpr(traced(program, *args)) for _ in range(2))
    run_alone((RECOGNIZE, *CLEANUP), after)
    names = {op.name for op in after.walk() if op.name != "select_n" or op.result.shape}
    assert "reduce_sum" not in names
    assert all(len(op.result.shape) < 2 for op in after.walk() if op.name == "select_n")
    assert "dynamic_update_slice" in names or "scatter" in names
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(lambda i: i + 5, id="past the end"),
        pytest.param(lambda i: i - 1, id="before the start"),
        pytest.param(lambda i: i * i % 11, id="unknown"),
    ],
)
def test_a_place_that_may_be_none(numbers):
    """(2) Out of range nothing is selected."""

    def program(b, k):
        return loop(lambda b, i: lax.select_n(places(numbers(i)), b, -b), b, jnp.arange(4) + 0 * k)

    check_refuses(RECOGNIZE, program, "f32[8]", "i32[]", because="may be out of range")


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(lambda i: lax.lt(lax.iota("int32", N), i), id="many places"),
        pytest.param(lambda i: lax.eq(lax.iota("int32", N) * 2, i), id="every other place"),
        pytest.param(
            lambda i: lax.eq(lax.iota("int32", N), lax.iota("int32", N) % 3 + i),
            id="not one number",
        ),
        pytest.param(lambda i: lax.eq(lax.rev(lax.iota("int32", N), (0,)), i), id="backwards"),
        pytest.param(lambda i: lax.eq(lax.iota("int32", N) + i, np.int32(4)), id="that move"),
        pytest.param(lambda i: lax.eq(lax.iota("float32", N), i.astype("float32")), id="floats"),
    ],
)
def test_other_masks(mask):
    """(1) Comparisons that are not of a place with a number."""
    untouched(lambda b: loop(lambda b, i: lax.select_n(mask(i), b, -b), b, lax.iota("int32", 4)))


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(
            lambda i: (
                lax.broadcasted_iota("int32", (4, 2), 0) + lax.broadcasted_iota("int32", (4, 2), 1)
                == i
            ),
            id="along the diagonal",
        ),
        pytest.param(
            lambda i: lax.broadcast_in_dim(
                lax.broadcasted_iota("int32", (4, 1), 0) == i.reshape(1), (4, 2), (0, 1)
            ),
            id="a list of one number",
        ),
    ],
)
def test_masks_of_two_axes(mask):
    """(1) More places than one, and no number a row."""

    def program(b):
        step = lambda b, i: lax.select_n(mask(i), b, -b)
        return loop(step, b.reshape(4, 2), lax.iota("int32", 4))

    untouched(program)


def test_a_mask_from_the_data():
    """(1) It may be true at several places, or nowhere."""
    step = lambda b, mask: lax.select_n(mask, b, -b)
    untouched(lambda b: loop(step, b, jnp.broadcast_to(b > 0, (4, N))))


def test_a_sum_of_what_is_never_dropped():
    """(3) It is in range at every step; written, or added to zeros."""

    def program(b):
        def step(b, i):
            one, two = (jnp.zeros(N).at[i] for _ in range(2))
            return b + one.set(b[0], mode="drop").sum() * two.add(b[1], mode="drop").sum(), None

        return lax.scan(step, b, lax.iota("int32", 4))[0]

    graph = alone(RECOGNIZE, program, "f32[8]", fires=True)
    assert not any(op.name == "reduce_sum" for op in graph.walk())


def test_a_sum_of_what_may_be_dropped():
    """(3) Out of range it is of zeros alone."""

    def program(b):
        return loop(lambda b, i: b + jnp.zeros(N).at[i * i].set(b[0]).sum(), b, jnp.arange(4))

    untouched(program)


def test_other_sums():
    """(3) Of more than one element, or along another axis."""

    def program(b):
        def step(b, i):
            row = lax.dynamic_update_slice(jnp.zeros((N, N)), b[None] * i, (i, 0))
            two = lax.dynamic_update_slice(jnp.zeros((N, N)), jnp.stack([b, b]), (i, 0))
            ones = lax.dynamic_update_slice(jnp.ones((N, N)), b[None], (i, 0))
            return row.sum(1) + row.sum() + two.sum(0) + ones.sum(0) + jnp.sin(row).sum(0)

        return loop(step, b, lax.iota("int32", 4))

    untouched(program)


def test_outside_of_loops():
    """One array is made, whichever way."""
    untouched(lambda b: lax.select_n(places(3), b, -b))


def untouched(program):
    graph = import_jaxpr(traced(program, "f32[8]"))
    record = run_alone((RECOGNIZE,), graph).record(RECOGNIZE.name, False)
    assert not record.rewrites


@pytest.mark.parametrize(
    ("use", "because"),
    [
        (
            lambda s, b, i: lax.select_n(lax.gt(b, i * 1.0), s, b),
            "the whole array is read, not the row alone",
        ),
        (lambda s, b, i: jnp.sin(s) * b, "the whole array is read, not the row alone"),
        (lambda s, b, i: b + s, None),
        (lambda s, b, i: lax.select_n(b[0] > 1.0, s, b), None),
        (lambda s, b, i: b + s.sum(), None),
    ],
)
def test_one_row_among_numbers(use, because):
    """Cost: where an elementwise op computes with all of it, XLA makes the row on the way."""

    def program(b):
        def step(b, i):
            return use(lax.select_n(places(i), jnp.zeros(N), b), b, i)

        return loop(step, b, lax.iota("int32", N))

    if because is None:
        graph = import_jaxpr(traced(program, "f32[8]"))
        assert run_alone((RECOGNIZE,), graph).record(RECOGNIZE.name, False).rewrites
    else:
        check_refuses(RECOGNIZE, program, "f32[8]", because=because)
