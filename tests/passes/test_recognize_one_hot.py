"""A mask that is true at one place is an index, if it is true at one place."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.masks.recognize_one_hot import RecognizeOneHot
from jaxpr_opt.testing import (
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone
from tests.prices import EAGER

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


def rows_with_places(size):
    def program(b, starts):
        def one(b, start):
            def step(b, i):
                j = jnp.clip(start + i, 0, size - 1)
                here = jnp.arange(size) == j
                return jnp.where(here, b[j] + i, b), jnp.sum(jnp.where(here, b, 0))

            return lax.scan(step, b, jnp.arange(4))

        return jax.vmap(one)(b, starts)

    return program


def test_rows_with_places_of_their_own():
    """(1) One number a row: a scatter of one element in each."""
    args = jnp.arange(192.0).reshape(3, 64), jnp.array([0, 62, -3])
    assert_recognized(rows_with_places(64), *args)


def test_short_rows_with_places_of_their_own():
    """Cost: a write for each row takes longer than choosing among a few elements."""
    because = "rows at places of their own take longer"
    check_refuses(RECOGNIZE, rows_with_places(8), "f32[3,8]", "i32[3]", because=because)


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
    """(2) Out of range nothing is selected: a write is dropped, a sum is zero."""

    def program(b, k):
        def step(b, i):
            here = places(numbers(i))
            new = lax.select_n(here, b, -2 * b)
            return new, (lax.select_n(here, jnp.zeros(N), b).sum(), jnp.max(here))

        return lax.scan(step, b, jnp.arange(4) + 0 * k)

    assert_recognized(program, jnp.arange(1.0, N + 1), jnp.array(0))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_places_at_the_limits_of_their_type(dtype):
    """(2) None is taken for another, whatever it is counted from."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    at = np.array([least, least + 1, most - 1, most, 0, 1, 2, 100, 127], dtype)

    def program(b, at):
        def step(b, i):
            counted = lax.iota(dtype, 120) + np.array(1, dtype)
            here = lax.eq(counted, i)
            return lax.select_n(here, b, b + 2), lax.select_n(here, jnp.zeros(120), b).sum()

        return lax.scan(step, b, at)

    assert_recognized(program, jnp.arange(1.0, 121.0), at)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_long_places(dtype):
    """(2) None is taken for its lower bits, as by the transpose of a scatter."""
    with jax.enable_x64(True):
        at = np.array([3, 2**32 + 3, np.iinfo(dtype).min, np.iinfo(dtype).max, N + 1, 0], dtype)

        def program(c, x):
            step = lambda c, ix: (c + jnp.where(jnp.arange(1, N + 1) == ix[0], ix[1], 0.0), c)
            return lax.scan(step, c, (at, x))[0] @ jnp.arange(1.0, N + 1)

        c, x = jnp.arange(1.0, N + 1), jnp.arange(1.0, 7)
        for derived in (jax.grad(optimize(program), (0, 1)), optimize(jax.grad(program, (0, 1)))):
            assert_same_bits(derived(c, x), jax.grad(program, (0, 1))(c, x))


def recognized(program, *args):
    """The names of the ops that compute with arrays, if the pass changes the program."""
    graph = import_jaxpr(traced(program, *args))
    run_alone(CLEANUP, graph)
    record = run_alone((RECOGNIZE, *CLEANUP), graph).record(RECOGNIZE.name, False)
    moving = {"dynamic_slice", "scan", "scatter", "yield"}
    names = {op.name for op in graph.walk() if any(v.shape == (N,) for v in op.operands)}
    return names - moving if record.rewrites else None


def here(i):
    return jnp.arange(N) == i


CHANGES = {
    "add": lambda c, i, x: c + jnp.where(here(i), x, 0.0),
    "add, the other way round": lambda c, i, x: jnp.where(here(i), x, 0.0) + c,
    "sub": lambda c, i, x: c - jnp.where(here(i), x, 0.0),
    "mul": lambda c, i, x: c * jnp.where(here(i), x, 1.0),
    "div": lambda c, i, x: c / jnp.where(here(i), x, 1.0),
    "max": lambda c, i, x: jnp.maximum(c, jnp.where(here(i), x, -jnp.inf)),
    "min": lambda c, i, x: jnp.minimum(c, jnp.where(here(i), x, jnp.inf)),
    "counted": lambda c, i, x: c + jax.nn.one_hot(i, N),
    "scaled": lambda c, i, x: c - 0.5 * jax.nn.one_hot(i, N),
    "erased": lambda c, i, x: c * (1 - jax.nn.one_hot(i, N)),
    "times what is finite": lambda c, i, x: c + jnp.nan_to_num(x) * jax.nn.one_hot(i, N),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_op_of_one_place(name):
    """(4) Values, gradients and tangents, also where there is no such place, and of NaN."""

    def program(c, at, x):
        step = lambda c, ix: (CHANGES[name](c, *ix), c[ix[0]])
        return lax.scan(step, c, (at, x))

    at, x = jnp.array([3, -1, 0, N, 3]), jnp.array([1.5, 2.0, -3.0, 4.0, 0.5])
    c = jnp.arange(1.0, N + 1)
    assert recognized(program, "f32[8]", "i32[5]", "f32[5]") in (set(), {"scatter-add"})
    ours = optimize(program)
    for values in (c, c.at[3].set(jnp.nan), c.at[0].set(-jnp.inf)):
        assert_same_bits(program(values, at, x), ours(values, at, x))
    close = partial(np.testing.assert_allclose, rtol=1e-6)
    derived = lambda f: jax.grad(lambda c, x: sum(v.sum() for v in f(c, at, x)), (0, 1))
    jax.tree.map(close, derived(optimize(program))(c, x), derived(program)(c, x))
    jax.tree.map(close, optimize(derived(program))(c, x), derived(program)(c, x))
    along = lambda f: jax.jvp(lambda c, x: f(c, at, x), (c, x), (c, x))
    jax.tree.map(close, along(optimize(program)), along(program))


def test_numbers_of_rows_that_are_spread():
    """(4) By JAX's ops, along axes of one element."""

    def program(c, at, x):
        def step(c, ix):
            i, x = ix
            return c + x[:, None] * (jnp.arange(64) == i[:, None]).astype(jnp.int32), c[:, 0]

        return lax.scan(step, c, (at, x))

    args = (
        jnp.arange(192).reshape(3, 64),
        jnp.arange(15).reshape(5, 3),
        jnp.arange(15).reshape(5, 3),
    )
    alone(RECOGNIZE, program, *args, fires=True)


INTEGERS = {
    "counted": lambda c, i, x: c + jax.nn.one_hot(i, N, dtype=jnp.int32),
    "times a number": lambda c, i, x: c + x * jax.nn.one_hot(i, N, dtype=jnp.int32),
    "max": lambda c, i, x: jnp.maximum(c, jnp.where(here(i), x, np.iinfo("int32").min)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    """(4) Zero times any of them is zero."""

    def program(c, at, x):
        return lax.scan(lambda c, ix: (INTEGERS[name](c, *ix), None), c, (at, x))[0]

    at, x = jnp.array([3, -1, 0, N, 3]), jnp.array([1, 2, -3, 4, 9])
    assert recognized(program, "i32[8]", "i32[5]", "i32[5]") in (set(), {"scatter-add"})
    assert_same_bits(program(jnp.arange(N), at, x), optimize(program)(jnp.arange(N), at, x))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c, x, one: c + (x + one), id="added"),
        pytest.param(lambda c, x, one: c + (x - one), id="subtracted"),
        pytest.param(lambda c, x, one: c + x * (2 - one), id="not zero elsewhere"),
        pytest.param(lambda c, x, one: c + x * (2 * one), id="not one there"),
    ],
)
def test_integers_that_are_combined_otherwise(change):
    """(4) A mask of zeros and one, times an array, is the array there; nothing else is."""

    def program(c, at, x):
        step = lambda c, ix: (change(c, ix[1], jax.nn.one_hot(ix[0], N, dtype=jnp.int32)), None)
        return lax.scan(step, c, (at, x))[0]

    assert recognized(program, "i32[8]", "i32[5]", "i32[5]") is None


def test_truth_values():
    """(3, 4) Which have been seen, which are left, and whether one has been."""

    def program(seen, left, at):
        def step(state, i):
            seen, left = state
            asked = jnp.any(seen & here(i))
            return (seen | here(i), left & (jnp.arange(N) != i)), asked

        return lax.scan(step, (seen, left), at)

    assert recognized(program, "bool[8]", "bool[8]", "i32[5]") == set()
    args = jnp.arange(N) == 2, jnp.ones(N, bool), jnp.array([3, -1, 2, N, 3])
    assert_same_bits(program(*args), optimize(program)(*args))


def test_an_op_of_one_place_as_text():
    def program(c, xs):
        step = lambda c, ix: lax.mul(
            c, lax.select_n(places(ix[0]), np.ones(N, "f"), jnp.full(N, ix[1]))
        )
        return loop(step, c, (lax.iota("int32", 4), xs))

    check_rewrite(
        RECOGNIZE,
        program,
        "f32[8]",
        "f32[4]",
        diff="""
            fn (c:f32[8], xs:f32[4]) {
              i:i32[4] = iota
              c1:f32[8] = scan[4] carry(c=c) xs(x=i, x1=xs) {
          -     i:i32[8] = iota
          -     e:bool[8] = eq i x
                b:f32[8] = broadcast_in_dim x1
          -     s:f32[8] = select_n e const:f32[8] b
          -     m:f32[8] = mul c s
          +     d:f32[1] = dynamic_slice b x
          +     d1:f32[1] = dynamic_slice c x
          +     m1:f32[1] = mul d1 d
          +     d2:f32[8] = dynamic_update_slice c m1 x
          -     yield carry(m)
          +     yield carry(d2)
              }
              return c1
            }
        """,
        simplify=True,
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c, i, x: c + x * jax.nn.one_hot(i, N), id="times what may be infinite"),
        pytest.param(lambda c, i, x: jnp.where(here(i), x, 0.0) - c, id="subtracted from"),
        pytest.param(lambda c, i, x: jnp.where(here(i), x, 1.0) / c, id="divided by"),
        pytest.param(lambda c, i, x: c + jnp.where(here(i), x, 1.0), id="one is added elsewhere"),
        pytest.param(lambda c, i, x: c * jnp.where(here(i), x, 0.0), id="zero elsewhere"),
        pytest.param(lambda c, i, x: jnp.maximum(c, jnp.where(here(i), x, 0.0)), id="max with 0"),
        pytest.param(lambda c, i, x: c**2 + jnp.where(c > i, x, 0.0), id="another mask"),
    ],
)
def test_ops_of_more_places(change):
    """(4) What is not the neutral element changes the other elements, too."""

    def program(c, at, x):
        return lax.scan(lambda c, ix: (change(c, *ix), None), c, (at, x))[0]

    assert recognized(program, "f32[8]", "i32[5]", "f32[5]") is None


def test_all_of_what_an_op_changes_is_read():
    """Cost: no write in place is to be had, and XLA makes the row on the way."""

    def program(c, at):
        step = lambda c, i: (jnp.tanh(c + jax.nn.one_hot(i, N)), None)
        return lax.scan(step, c, at)[0]

    because = "the whole array is read, not the row alone"
    check_refuses(RECOGNIZE, program, "f32[8]", "i32[4]", because=because)


REDUCTIONS = {
    "sum": lambda b, i: jnp.sum(jnp.where(here(i), b, 0.0)),
    "max": lambda b, i: jnp.max(jnp.where(here(i), b, -jnp.inf)),
    "min": lambda b, i: jnp.min(jnp.where(here(i), b, jnp.inf)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_other_reductions(name):
    """(3) Of one element, and of the neutral element."""

    def program(b, at):
        return lax.scan(lambda c, i: (c, REDUCTIONS[name](b, i)), 0, at)[1]

    assert recognized(program, "f32[8]", "i32[4]") == set()
    b = jnp.arange(1.0, N + 1).at[3].set(jnp.nan)
    assert_same_bits(*(f(b, jnp.array([0, -1, 3, N])) for f in (program, optimize(program))))


@pytest.mark.parametrize("axes", [1, (0, 1)])
def test_reductions_along_other_axes(axes):
    """(3) Of more than the row's one element."""

    def program(b, at):
        step = lambda c, i: (c, jnp.sum(jnp.where(places(i)[:, None], b, 0.0), axes))
        return lax.scan(step, 0, at)[1]

    b, at = jnp.arange(16.0).reshape(N, 2), jnp.array([3, -1])
    assert_same_bits(program(b, at), optimize(program)(b, at))


@pytest.mark.parametrize(
    "reduction",
    [
        pytest.param(lambda b, i: jnp.sum(jnp.where(here(i), b, 1.0)), id="a sum of ones"),
        pytest.param(lambda b, i: jnp.max(jnp.where(here(i), b, 0.0)), id="a maximum of zeros"),
        pytest.param(lambda b, i: jnp.prod(jnp.where(here(i), b, 1.0)), id="a product"),
    ],
)
def test_reductions_of_more(reduction):
    """(3) Of what is not neutral, or by another op: XLA reduces what it selects on the way."""
    program = lambda b: lax.scan(lambda c, i: (c, reduction(b, i)), 0, lax.iota("int32", 4))[1]
    assert recognized(program, "f32[8]") is None


def test_a_captured_iota():
    """(1) Of thousands of numbers, made outside of the program."""
    iota = jnp.arange(5000)

    def program(b, at):
        return loop(lambda b, i: jnp.where(iota == i, -b, b), b, at)

    graph = alone(RECOGNIZE, program, "f32[5000]", "i32[4]", fires=True)
    assert not any(op.name == "select_n" for op in graph.walk())


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
                lax.broadcasted_iota("int32", (4, 1), 0) == i.reshape(1) + 0, (4, 2), (0, 1)
            ),
            id="a list of one number that is computed",
        ),
    ],
)
def test_masks_of_two_axes(mask):
    """(1) More places than one, and no number a row."""

    def program(b):
        step = lambda b, i: lax.select_n(mask(i), b, -b)
        return loop(step, b.reshape(4, 2), lax.iota("int32", 4))

    untouched(program)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            lambda i: lax.broadcast_in_dim(i.reshape(1) + 0, (64, 2), (1,)), id="one for a row"
        ),
        pytest.param(
            lambda i: lax.broadcast_in_dim(lax.iota("int32", 64) % 3 + i, (64, 2), (0,)),
            id="one for each place",
        ),
    ],
)
def test_numbers_that_are_no_number_of_a_row(number):
    """(1) Along another axis than a batch has, or along that of the mask."""

    def program(b):
        def step(b, i):
            mask = lax.eq(lax.broadcasted_iota("int32", (64, 2), 0), number(i))
            return lax.select_n(mask, b, -b)

        return loop(step, b, lax.iota("int32", 4))

    with using(EAGER):
        alone(RECOGNIZE, program, "f32[64,2]", fires=False)


def test_a_list_of_one_number():
    """(1) It is the number."""

    def program(b):
        def step(b, i):
            number = lax.broadcast_in_dim(i.reshape(1), (64, 2), (1,))
            return lax.select_n(lax.eq(lax.broadcasted_iota("int32", (64, 2), 0), number), b, -b)

        return loop(step, b, lax.iota("int32", 4))

    with using(EAGER):
        alone(RECOGNIZE, program, "f32[64,2]", fires=True)


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


def test_a_sum_of_what_is_clamped():
    """(3) It is written at the nearest place, wherever it is to be."""

    def program(b, at):
        def step(b, i):
            return b + lax.dynamic_update_slice(jnp.zeros(N), b[:1], (i,)).sum()

        return loop(step, b, at)

    graph = alone(RECOGNIZE, program, "f32[8]", jnp.array([3, -2, 11]), fires=True)
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
        (lambda s, b, i: b + jnp.prod(s), "the whole array is read, not the row alone"),
        (lambda s, b, i: b + s @ b, "the whole array is read, not the row alone"),
        (lambda s, b, i: b + s, None),
        (lambda s, b, i: lax.select_n(b[0] > 1.0, s, b), None),
        (lambda s, b, i: b + s.sum(), None),
    ],
)
def test_one_row_among_numbers(use, because):
    """Cost: where an op computes with all of it, XLA makes the row on the way."""

    def program(b):
        def step(b, i):
            return use(lax.select_n(places(i), jnp.zeros(N), b), b, i)

        return loop(step, b, lax.iota("int32", N))

    if because is None:
        graph = import_jaxpr(traced(program, "f32[8]"))
        assert run_alone((RECOGNIZE,), graph).record(RECOGNIZE.name, False).rewrites
    else:
        check_refuses(RECOGNIZE, program, "f32[8]", because=because)


def test_a_number_that_an_op_of_several_results_makes():
    """A loop may carry more than the index."""

    def program(b, xs):
        start = jnp.int32(0), b[0]
        i, last = lax.fori_loop(0, 3, lambda n, c: (c[0] + n, c[1] * xs[n]), start)
        return lax.fori_loop(0, 2, lambda _, b: jnp.where(jnp.arange(N) == i, last, b), b)

    alone(RECOGNIZE, program, "f32[8]", "f32[8]", fires=True)
