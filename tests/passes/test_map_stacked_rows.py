"""What is read of each row of a stack is made in the loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.rows.map_stacked_rows import MapStackedRows
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
from tests.loops import measured
from tests.prices import FREE

MAP = MapStackedRows()
CHEAP = CostModel(FREE).but(kernel=0.0)
"""Starting an op takes no time."""


MODEL = CHEAP


def stacked(x, reverse=False, length=5):
    """Rows of four by three numbers."""
    step = lambda c, t: (jnp.sin(c) + t, c * jnp.arange(4.0)[:, None])
    return lax.scan(step, x, jnp.arange(length), reverse=reverse)[1]


def test_the_largest_number_of_each_row():
    def program(x):
        ys = lax.scan(lambda c, _: (jnp.sin(c), c), x, length=5)[1]
        return jnp.max(ys, axis=1)

    check_rewrite(
        MAP,
        program,
        "f32[8]",
        diff="""
            fn (x:f32[8]) {
          -   c:f32[8], ys:f32[5,8] = scan[5] carry(c=x) {
          +   c:f32[8], ys1:f32[5] = scan[5] carry(c=x) {
                s:f32[8] = sin c
          +     r1:f32[1,8] = reshape c
          +     r2:f32[1] = reduce_max[axes=(1,)] r1
          +     r3:f32[] = reshape r2
          -     yield carry(s) ys(c)
          +     yield carry(s) ys(r3)
              }
          -   r:f32[5] = reduce_max[axes=(1,)] ys
          -   return r
          +   return ys1
            }
        """,
    )


def column(x):
    return stacked(x)[:, 2]


def picked(x):
    """At places that are made after the loop."""
    return stacked(x, reverse=True)[:, jnp.array([3, 0]), 1]


def best(x):
    return jnp.argmax(stacked(x), axis=1), jnp.any(stacked(x) > 0.5, axis=(1, 2))


def compared(x):
    """With what is the same for each row."""
    return jnp.max(jnp.abs(stacked(x) * jnp.arange(3.0)) - 0.5, axis=2)


def spread(x):
    """With rows that are all the same."""
    largest = jnp.maximum(stacked(x), x + jnp.float32(1))
    return jnp.max(jnp.where(x > 0, largest, -2.0), axis=(1, 2))


def twice(x):
    """Two readers of one stack."""
    ys = stacked(x)
    return ys[:, 0], jnp.min(ys, axis=1)


def turned(x):
    """Its rows lie along another axis then."""
    return jnp.max(jnp.transpose(stacked(x), (1, 2, 0)), axis=1)


def counted(x):
    """Whole numbers are added in any order."""
    return jnp.sum(stacked(x) > 0, axis=(1, 2))


def mapped(x):
    """As `vmap` makes it."""
    return jax.vmap(lambda c: stacked(c)[:, 1, :2], out_axes=1)(jnp.stack([x, x + 1]))


def flat(x):
    return stacked(x).reshape(5, 12)[:, 5:8]


def narrow(x):
    return stacked(x).astype(jnp.float16)[:, 0]


def keys(x):
    """A key is a row, too."""
    step = lambda k, _: (jax.random.split(k, 1)[0], jax.random.split(k, 3))
    found = lax.scan(step, jax.random.key(jnp.isfinite(x[0, 0]).astype(int)), length=5)[1]
    return jax.random.key_data(found[:, 1])


PROGRAMS = [
    column, picked, best, compared, spread, twice, turned, counted, mapped, flat, narrow, keys,
]  # fmt: skip
X = [jnp.linspace(-2.0, 3.0, 12).reshape(4, 3), jnp.array([[jnp.nan, jnp.inf, -0.0]] * 4)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("x", X)
def test_the_same_bits(program, x):
    before, after = (import_jaxpr(traced(program, x), "final") for _ in range(2))
    assert run_alone((MAP,), after).record(MAP.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, x), evaluate_exactly(after, x))
    stacks = [stack for op in scans(after) for stack in op.stacks]
    assert all(len(stack.result.uses) for stack in stacks)


def added(x):
    return jnp.sum(stacked(x), axis=(1, 2))


def kept(x):
    ys = stacked(x)
    return ys, jnp.max(ys, axis=1)


def last(x):
    return jnp.max(stacked(x)[3:], axis=1)


def across(x):
    """Of all rows."""
    return jnp.max(stacked(x), axis=0)


def weighed(x):
    """Each row with a number of its own."""
    return jnp.max(stacked(x) * jnp.arange(5.0)[:, None, None], axis=1)


def masked(x):
    """A mask of rows."""
    return jnp.max(jnp.where((jnp.arange(5.0) > x[0, 0])[:, None, None], stacked(x), 0.0), axis=1)


def masked_late(x):
    """A mask of what the loop leaves."""
    c, ys = lax.scan(lambda c, _: (jnp.sin(c), c), x, length=5)
    return jnp.max(jnp.where(c > 0.5, ys, 0.0), axis=1)


def scaled(x):
    """By what the loop leaves."""
    c, ys = lax.scan(lambda c, _: (jnp.sin(c), c), x, length=5)
    return jnp.max(ys * c[0, 0], axis=1)


def of_others(x):
    """Rows of another loop, and what is computed of them."""
    ys, zs = stacked(x[:1]), stacked(x[1:2])
    return jnp.max(ys * jnp.tanh(zs), axis=1)


def labelled(x):
    """A place for each row, which is the same for all."""
    places = jnp.broadcast_to(x[0, 0].astype(int) % 4, (5, 1, 1))
    return jnp.take_along_axis(stacked(x), places, axis=1)


def placed(x):
    """The same, as an op reads it: the places are of another shape than what is there."""
    dims = lax.GatherDimensionNumbers((1,), (1,), (1,), (0,), (0,))
    places = lax.broadcast_in_dim(x[0, 0].astype(int) % 4, (5, 1), ())
    return lax.gather(stacked(x), places, dims, (1, 1, 3), mode="clip")


def sorted_rows(x):
    return jnp.sort(stacked(x), axis=1)[:, 0]


def wide(x):
    """Functions are computed for all rows at once, by several cores."""
    return jnp.max(jnp.exp(stacked(x)), axis=1)


@pytest.mark.parametrize(
    "program",
    [
        added,
        kept,
        last,
        across,
        weighed,
        masked,
        masked_late,
        scaled,
        of_others,
        labelled,
        placed,
        sorted_rows,
        wide,
    ],
)
def test_not_looked_at(program):
    """(1) Not all is read by row. (2) Sums. (3) What else is read is not there, or has rows."""
    graph = import_jaxpr(traced(program, X[0]), "final")
    assert not run_alone((MAP,), graph).record(MAP.name, False).rewrites


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        pytest.param(lambda z: z, "f32[5,4,3]", id="as it is"),
        pytest.param(lambda z: z.reshape(5, 4, 3), "f32[60]", id="reshaped"),
        pytest.param(lambda z: jnp.flip(z, 0), "f32[5,4,3]", id="turned round"),
        pytest.param(lambda z: lax.cumsum(z, 0), "f32[5,4,3]", id="of rows before"),
    ],
)
def test_rows_of_an_argument(rows, shape):
    """(3) Each row with one of its own."""
    program = lambda x, z: jnp.max(stacked(x) * rows(z), axis=1)
    graph = import_jaxpr(traced(program, X[0], shape), "final")
    assert not run_alone((MAP,), graph).record(MAP.name, False).rewrites


def skipping(x):
    """A loop that skips whole steps."""
    step = lambda c, t: (jnp.where(c[0, 0] > 0, jnp.sin(c) - 0.1, c), c)
    return jnp.max(lax.scan(step, x, jnp.arange(5))[1], axis=1)


def most(x):
    return stacked(x)[:, :3]


@pytest.mark.parametrize(("program", "because"), [(skipping, "skips"), (most, "most of each row")])
def test_refused(program, because):
    check_refuses(MAP, program, "f32[4,3]", because=because)


def test_small_rows_stay():
    """Starting an op takes longer than storing them."""
    with using(CostModel()):
        check_refuses(MAP, column, "f32[4,3]", because="as long as storing")


def test_an_effect_stays():
    def program(x):
        ys = stacked(x)
        jax.debug.callback(lambda y: None, ys)
        return ys[:, 0]

    graph = import_jaxpr(traced(program, X[0]), "final")
    assert not run_alone((MAP,), graph).record(MAP.name, False).rewrites


def test_a_compartment_of_an_epidemic():
    """What is returned of the states is stacked only."""

    def program(rates, y):
        def step(y, _):
            flow = 0.1 * rates[:, None] * y
            y = y - flow + jnp.roll(flow, 1, axis=0)
            return y, y

        return jnp.max(lax.scan(step, y, length=64)[1][:, 2], axis=1)

    args = np.float32([0.3, 0.2, 0.1, 0.0]), np.ones((4, 512), np.float32)
    with using(CostModel()):
        given, used = measured(optimize(program), *args)
    wanted, usual = measured(program, *args)
    assert_close(given, wanted)
    assert used < usual / 8
