"""What is streamed is made in the step that reads it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.devices import is_quick_if_small
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.rows.make_streamed_rows import MakeStreamedRows
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

MAKE = MakeStreamedRows()
CHEAP = CostModel(FREE).but(kernel=0.0, arithmetic=1e-12)
"""Starting an op takes no time, computing next to none."""


MODEL = CHEAP


def summed(*streams, reverse=False, start=0.0):
    """A sum of what is streamed, which is also stacked."""

    def step(c, rows):
        c = jnp.tanh(c) + sum(jnp.sum(row) for row in rows)
        return c, c

    return lax.scan(step, start, streams, reverse=reverse)


@pytest.mark.skipif(is_quick_if_small(), reason="not before JAX differentiates")
def test_outer_products():
    def program(x, b):
        u = lax.broadcast_in_dim(x, (5, 4, 3), (0, 1)) * lax.broadcast_in_dim(b, (5, 4, 3), (0, 2))
        return lax.scan(lambda h, u: (h * 0.5 + u, h), jnp.zeros((4, 3)), u)

    check_rewrite(
        MAKE,
        program,
        "f32[5,4]",
        "f32[5,3]",
        diff="""
            fn (x:f32[5,4], b:f32[5,3]) {
              b1:f32[5,4,3] = broadcast_in_dim[dims=(0, 1)] x
              b2:f32[5,4,3] = broadcast_in_dim[dims=(0, 2)] b
              m:f32[5,4,3] = mul b1 b2
              b3:f32[4,3] = broadcast_in_dim 0.0
          -   c:f32[4,3], ys:f32[5,4,3] = scan[5] carry(c=b3) xs(x=m) {
          +   c:f32[4,3], ys:f32[5,4,3] = scan[5] carry(c=b3) xs(x1=x, b4=b) {
          +     r:f32[1,4] = reshape x1
          +     b5:f32[1,4,3] = broadcast_in_dim[dims=(0, 1)] r
          +     r1:f32[1,3] = reshape b4
          +     b6:f32[1,4,3] = broadcast_in_dim[dims=(0, 2)] r1
          +     m1:f32[1,4,3] = mul b5 b6
          +     r2:f32[4,3] = reshape m1
                m:f32[4,3] = mul c 0.5
          -     a:f32[4,3] = add m x
          +     a:f32[4,3] = add m r2
                yield carry(a) ys(c)
              }
              return c, ys
            }
        """,
    )


def spread(x, b):
    return summed(x[:, :, None] * b[:, None, :])


def backwards(x, b):
    """A loop that runs backwards."""
    return summed(x[:, :, None] + b[:, None, :], reverse=True)


def scaled(x, b):
    """An argument times a number for each step."""
    return summed(jnp.sqrt(0.5) * jnp.exp(b[:, :1]) * x)


def normed(x, b):
    """With what is the same for each row."""
    return summed((x - x[0]) / (1.5 + jnp.abs(x[1])), b * b[2, 0])


def one_hot(x, b):
    ids = jnp.clip(x[:, 0], 0, 6).astype(int)
    return summed(jax.nn.one_hot(ids, 7))


def causal(x, b):
    """A mask made of the numbers of rows and columns, and of a length."""
    length = jnp.clip(x[0, 0], 0, 5).astype(int)
    mask = jnp.tril(jnp.ones((5, 5), bool)) & (jnp.arange(5) < length)
    return summed(jnp.where(mask, 0.0, -10.0))


def joined(x, b):
    """Beside each other, and padded."""
    rows = jnp.concatenate([x, jnp.broadcast_to(b[0], (5, 3)), b * 2], axis=1)
    return summed(jnp.pad(rows, ((0, 0), (1, 2)), constant_values=1.5))


def looked_up(x, b):
    """Whole numbers of a table, at a place of each row."""
    table = jnp.arange(40).reshape(10, 4) * 3
    return summed(table[jnp.clip(x[:, 0], 0, 9).astype(int)] * 1.0)


def turned(x, b):
    """Rows lie along another axis first."""
    return summed(jnp.swapaxes(x.T[:, :, None] * b[None], 0, 1))


def reshaped(x, b):
    return summed((x[:, :, None] * b[:, None, :]).reshape(5, 2, 6)[:, :, ::-1][:, 1:])


def mapped(x, b):
    """As `vmap` makes it."""
    outer = lambda x, b: summed(x[:, :, None, None] * b[:, None, :, None] * x[:, None, None])
    return jax.vmap(outer)(jnp.stack([x, x + 1]), jnp.stack([b, b * 2]))


def shared(x, b):
    """By two loops; a product is rounded once wherever it is."""
    u = x[:, :, None] * b[:, None, :]
    c, _ = summed(u)
    return summed(u, reverse=True, start=c)


def twice(x, b):
    """Two streams of one array, and one that is there already."""
    u = x[:, :, None] * b[:, None, :]
    return summed(u, x, u)


def nested(x, b):
    """The rows of rows, in a loop of the loop."""

    def step(c, row):
        return summed(row, start=c)

    return lax.scan(step, 0.0, x[:, :, None, None] * b[:, None, :, None] * jnp.ones(2))


PROGRAMS = [
    spread, backwards, scaled, normed, one_hot, causal, joined, looked_up, turned, reshaped, mapped,
    shared, twice, nested,
]  # fmt: skip
X = [
    (jnp.linspace(-2.0, 3.0, 20).reshape(5, 4), jnp.linspace(3.0, -1.0, 15).reshape(5, 3)),
    (jnp.array([[jnp.nan, jnp.inf, -0.0, 1.0]] * 5), jnp.array([[0.0, -jnp.inf, 1.0]] * 5)),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("args", X)
@pytest.mark.parametrize("phase", ["differentiable", "final"])
def test_the_same_bits(program, args, phase):
    before, after = (import_jaxpr(traced(program, *args), phase) for _ in range(2))
    ran = run_alone((MAKE,), after).record(MAKE.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))
    assert bool(ran) == (phase == "final" or not is_quick_if_small())


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_derivatives(program):
    """In both orders, and forward."""
    loss = lambda x, b: sum(jnp.sum(each) for each in jax.tree.leaves(program(x, b)))
    x, b = X[0]
    b = b + 0.1
    with using(CostModel(FREE).but(kernel=0.0)):
        plain = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, b)
        assert_close(jax.value_and_grad(optimize(loss), (0, 1))(x, b), plain)
        assert_close(optimize(jax.value_and_grad(loss, (0, 1)))(x, b), plain)
        tangents = jnp.ones_like(x), jnp.cos(b)
        forward = lambda f: jax.jit(lambda x, b: jax.jvp(f, (x, b), tangents))(x, b)
        assert_close(forward(optimize(loss)), forward(loss))
        rows = jnp.stack([x, x / 2]), jnp.stack([b, b * 3])
        of_rows = lambda f: jax.jit(jax.vmap(jax.grad(f, (0, 1))))(*rows)
        assert_close(of_rows(optimize(loss)), of_rows(loss))


def also_read(x, b):
    """(1) Something else reads it."""
    u = x[:, :, None] * b[:, None, :]
    return summed(u), u[0]


def also_captured(x, b):
    """(1) A step reads all of it."""
    u = x * 2 + 1
    return lax.scan(lambda c, r: (c + jnp.sum(r) * jnp.max(u), c), 0.0, u)


def carried(x, b):
    """(1) It starts a loop."""
    u = x * 2 + 1
    return lax.scan(lambda c, r: (c * 0.5 + r, None), u, u)


def from_outside(x, b):
    """(1) A loop around reads it in each of its steps."""
    u = x[:, :, None] * b[:, None, :]
    return lax.scan(lambda c, _: (summed(u, start=c)[0], None), 0.0, length=3)


def cumulative(x, b):
    """(2) A row depends on those before."""
    return summed(jnp.cumsum(x, axis=0))


def mixed(x, b):
    """(2) A row depends on two."""
    return summed(lax.rev(lax.optimization_barrier(x), (0,)))


def shifted(x, b):
    """(2) Rows are put behind each other."""
    return summed(jnp.concatenate([x[1:], x[:1] * 2]))


def merged(x, b):
    """(2) A row is part of one."""
    return summed((x[:, :, None] * b[:, None, :]).reshape(20, 3))


def multiplied(x, b):
    """(2) Products are rounded otherwise by row."""
    return summed(x @ jnp.ones((4, 9)))


def multiplied_by_row(x, b):
    return summed(lax.batch_matmul(x[:, :, None], b[:, None, :]))


def jumping(x, b):
    """(3) It would jump elsewhere if it were rounded otherwise."""
    return summed(jnp.floor(jnp.exp(x)[:, :, None] * b[:, None, :] + 1))


def drawn(x, b):
    """Random numbers of one key."""
    return summed(jax.random.normal(jax.random.PRNGKey(0), (5, 4)))


def rounded_twice(x, b):
    """(4) Two loops would round it."""
    u = x[:, :, None] * b[:, None, :] + x[0, 0] * b[:, None, :]
    c, _ = summed(u)
    return summed(u, reverse=True, start=c)


def one_step(x, b):
    return summed(x[:1, :, None] * b[:1, None, :])


def given(x, b):
    return summed(x, b)


def viewed(x, b):
    """A view of an argument takes no memory."""
    return summed(x.reshape(5, 2, 2))


REFUSED = [
    also_read, also_captured, carried, from_outside, cumulative, mixed, shifted, merged, multiplied,
    multiplied_by_row, drawn, rounded_twice, one_step, given, viewed,
]  # fmt: skip


@pytest.mark.parametrize("program", REFUSED)
def test_not_looked_at(program):
    graph = import_jaxpr(traced(program, *X[0]), "final")
    assert not run_alone((MAKE,), graph).record(MAKE.name, False).rewrites


def test_a_jump_stays():
    """(3) What jumps is streamed, what is made of it is not."""
    graph = import_jaxpr(traced(jumping, *X[0]), "final")
    run_alone((MAKE,), graph)
    (scan,) = scans(graph)
    assert not any(op.name == "floor" for op in scan.body.walk())


def test_a_table_that_is_differentiated_is_read_before():
    """Its gradient would be added to in each step."""
    program = lambda x, t: summed(t[jnp.clip(x[:, 0], 0, 9).astype(int)])
    for phase, fires in (("differentiable", False), ("final", True)):
        graph = import_jaxpr(traced(program, X[0][0], "f32[10,4]"), phase)
        assert bool(run_alone((MAKE,), graph).record(MAKE.name, False).rewrites) == fires


def test_functions_stay_before_the_loop():
    """One core would compute them."""
    with using(CostModel()):
        step = lambda c, r: (c + r, None)
        program = lambda t, x: lax.scan(step, x, jnp.exp(t[:, None] * x))[0]
        for length, fires in ((100, False), (10_000, True)):
            graph = import_jaxpr(traced(program, f"f32[{length}]", "f32[1024]"), "final")
            assert bool(run_alone((MAKE,), graph).record(MAKE.name, False).rewrites) == fires


def test_what_it_is_made_of_takes_as_much():
    program = lambda x, y: summed(jnp.exp(x)[:, :, None] * jnp.exp(y)[:, None])
    check_refuses(MAKE, program, "f32[5,3]", "f32[5,3]", because="takes as much memory")


def test_short_rows_stay():
    with using(CostModel()):
        graph = import_jaxpr(traced(spread, *X[0]), "final")
        assert not run_alone((MAKE,), graph).record(MAKE.name, False).rewrites


def test_many_streams():
    """More streams take more time than a row."""
    program = lambda x, *ys: summed(sum((x * y[:, None] for y in ys), start=x))
    with using(CostModel().but(kernel=5e-8, arithmetic=1e-13)):
        args = "f32[5,250]", *["f32[5]"] * 6
        check_refuses(MAKE, program, *args, because="as long as reading its rows")


def test_a_selective_scan():
    """The inputs of a state space model are made in the step."""

    def program(dt, b, c, x):
        inputs = dt[:, :, None] * b[:, None, :] * x[:, :, None]

        def step(h, row):
            h = 0.9 * h + row[0]
            return h, jnp.sum(h * row[1], -1)

        return lax.scan(step, jnp.zeros((64, 16)), (inputs, c))[1]

    rng = np.random.default_rng(0)
    args = [rng.normal(size=(128, n)).astype(np.float32) for n in (64, 16, 16, 64)]
    with using(CostModel()):
        given, used = measured(optimize(program), *args)
    wanted, usual = measured(program, *args)
    assert_close(given, wanted)
    assert used < usual / 8
