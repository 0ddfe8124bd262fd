"""Sums over a batch are made in the steps of a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.passes.batches.sum_in_steps import SumInSteps
from jaxpr_opt.testing import assert_close, check_rewrite
from tests.loops import alone

SUM = SumInSteps()
ROWS, DEEP, WIDE = 3, 64, 96


def outer(x, y):
    return lax.dot_general(x, y, (((), ()), ((0,), (0,))))


def summed(x, axis=0):
    return lax.reduce_sum(x, axes=(axis,))


def where(p, z):
    return jnp.where(p[:, None, None], z, jnp.zeros_like(z))


def carried(xs, ys, start=0, extra=None):
    """What a loop adds up for each row of a batch."""

    def step(total, xy):
        total = total + outer(*xy)
        return (total if extra is None else total + extra), None

    begin = jnp.full((ROWS, DEEP, ys.shape[-1]), start, xs.dtype)
    return lax.scan(step, begin, (xs, ys))[0]


def stacked(xs, ys):
    """What a loop stacks for each row of a batch."""
    return lax.scan(lambda c, xy: (c, outer(*xy)), None, (xs, ys))[1]


GIVEN = "bool[3]", f"f32[4,3,{DEEP}]", f"f32[4,3,{WIDE}]"


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_that_types_divide(axis):
    """(5) Each step would sum up what devices have."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    rows = NamedSharding(mesh, PartitionSpec(None, axis))
    x, y = (jax.device_put(jnp.ones((4, ROWS, n)), rows) for n in (DEEP, WIDE))
    with jax.set_mesh(mesh):
        alone(SUM, lambda x, y: summed(stacked(x, y), 1), x, y, fires=axis is None)


def test_a_carry():
    """(1, 3) The mask is applied to what is added."""
    check_rewrite(
        SUM,
        lambda p, x, y: summed(where(p, carried(x, y))),
        *GIVEN,
        simplify=True,
        diff="""
          fn (p:bool[3], x:f32[4,3,64], y:f32[4,3,96]) {
        -   b:f32[3,64,96] = broadcast_in_dim 0.0
        +   b3:f32[64,96] = broadcast_in_dim 0.0
        -   c:f32[3,64,96] = scan[4] carry(c=b) xs(x=x, x1=y) {
        +   c1:f32[64,96] = scan[4] carry(c1=b3) xs(x=x, x1=y) {
              d:f32[3,64,96] = dot_general[contract=x, batch=0x0] x x1
        -     a:f32[3,64,96] = add c d
        +     b3:bool[3,64,96] = broadcast_in_dim[dims=(0,)] p
        +     b:f32[3,64,96] = broadcast_in_dim 0.0
        +     s1:f32[3,64,96] = select_n b3 b d
        +     r1:f32[64,96] = reduce_sum[axes=(0,)] s1
        +     a1:f32[64,96] = add c1 r1
        -     yield carry(a)
        +     yield carry(a1)
            }
        -   b1:bool[3,1,1] = broadcast_in_dim[dims=(0,)] p
        -   b2:bool[3,64,96] = broadcast_in_dim b1
        -   s:f32[3,64,96] = select_n b2 b c
        -   r:f32[64,96] = reduce_sum[axes=(0,)] s
        -   return r
        +   return c1
          }
        """,
    )


def test_a_stack():
    """(2) Rows of each step."""
    check_rewrite(
        SUM,
        lambda p, x, y: summed(stacked(x, y), 1),
        *GIVEN,
        simplify=True,
        diff="""
          fn (p:bool[3], x:f32[4,3,64], y:f32[4,3,96]) {
        -   ys:f32[4,3,64,96] = scan[4] xs(x=x, x1=y) {
        +   ys1:f32[4,64,96] = scan[4] xs(x=x, x1=y) {
              d:f32[3,64,96] = dot_general[contract=x, batch=0x0] x x1
        +     r1:f32[64,96] = reduce_sum[axes=(0,)] d
        -     yield ys(d)
        +     yield ys(r1)
            }
        -   r:f32[4,64,96] = reduce_sum[axes=(1,)] ys
        -   return r
        +   return ys1
          }
        """,
    )


FIRES = {
    "a carry": lambda p, x, y: summed(carried(x, y)),
    "a carry under a mask": lambda p, x, y: summed(where(p, carried(x, y))),
    "a carry of two terms": lambda p, x, y: summed(carried(x, y, extra=outer(x[0], y[1]))),
    "a carry that begins at one": lambda p, x, y: summed(where(p, carried(x, y, 1))),
    "a carry, transposed": lambda p, x, y: summed(carried(x, y).transpose(2, 1, 0), 2),
    "a carry beside a product": lambda p, x, y: summed(carried(x, y) + outer(x[0], y[0])),
    "two carries": lambda p, x, y: summed(carried(x, y) + where(p, carried(x * x, y))),
    "a stack": lambda p, x, y: summed(stacked(x, y), 1),
    "a stack under a mask": lambda p, x, y: summed(
        jnp.where(p[:, None, None], stacked(x, y), jnp.zeros_like(x[0, 0, 0])), 1
    ),
}


@pytest.mark.parametrize("program", FIRES.values(), ids=FIRES)
@pytest.mark.parametrize("dtype", ["f32", "c64"])
def test_it_gives_the_same(program, dtype):
    """(1 to 4) However rows are chosen and moved."""
    _, x, y = GIVEN
    alone(SUM, program, "bool[3]", x.replace("f32", dtype), y.replace("f32", dtype), fires=True)


def test_rows_that_are_not_chosen_are_zero():
    """(3) Whatever the loop makes of them."""
    x, y = jnp.ones((4, ROWS, DEEP)), jnp.ones((4, ROWS, WIDE))
    given = jnp.array([True, False, True]), x.at[:, 1].set(jnp.nan), y.at[:, 1].set(jnp.inf)
    alone(SUM, FIRES["a carry under a mask"], *given, fires=True)


def read_in_a_step(p, x, y):
    def step(total, xy):
        return total + outer(*xy) * jnp.tanh(total), None

    return summed(lax.scan(step, jnp.ones((ROWS, DEEP, WIDE)), (x, y))[0])


def of_steps(p, x, y):
    """Which steps count."""
    made = stacked(x, y)
    chosen = jnp.where(jnp.arange(4)[:, None, None, None] < 2, made, jnp.zeros_like(made))
    return summed(chosen, 1)


def known_after(p, x, y):
    """The loop says which rows count."""

    def step(carry, xy):
        total, most = carry
        return (total + outer(*xy), jnp.maximum(most, xy[0][:, 0])), None

    total, most = lax.scan(step, (jnp.zeros((ROWS, DEEP, WIDE)), x[0, :, 0]), (x, y))[0]
    return summed(where(most > 0, total))


def read_elsewhere(p, x, y):
    total = carried(x, y)
    return summed(total), total


STAYS = {
    "read elsewhere": read_elsewhere,
    "a number is added": lambda p, x, y: summed(carried(x, y, extra=2)),
    "read in a step": read_in_a_step,
    "a sum over steps": lambda p, x, y: summed(stacked(x, y)),
    "steps are chosen": of_steps,
    "the loop says which rows count": known_after,
}


@pytest.mark.parametrize("program", STAYS.values(), ids=STAYS)
def test_what_stays(program):
    """(1 to 4)"""
    alone(SUM, program, *GIVEN, fires=False)


@pytest.mark.parametrize(
    ("dtype", "wider"), [("bfloat16", None), ("float16", "float32"), ("float32", "float64")]
)
def test_sums_of_fewer_bits_stay(dtype, wider):
    """(4) A step would round the sum, or the loop sum up what is not wide enough."""

    def program(x, y):
        total = carried(x.astype(dtype), y.astype(dtype))
        return summed(total.astype(wider) if wider else total)

    with jax.enable_x64(True):
        alone(SUM, program, f"f32[4,3,{DEEP}]", f"f32[4,3,{8 * WIDE}]", fires=False)


def test_small_sums_stay():
    """A sum in each step takes longer to start than it saves."""
    step = lambda c, x: (c + jnp.sin(x), None)
    alone(
        SUM,
        lambda x: summed(lax.scan(step, jnp.zeros((3, 8)), x)[0]),
        "f32[4,3,8]",
        fires=False,
    )


def recurrent(w, xs):
    def step(h, x):
        return jnp.tanh(h @ w["h"][0] + w["table"][x]), None

    return jnp.sum(lax.scan(step, jnp.zeros(DEEP), xs)[0] ** 2)


def deep(w, xs):
    layer = lambda x, w: (x + jnp.tanh(x @ w), None)
    return jnp.sum(lax.scan(layer, w["table"][xs].mean(0), w["h"])[0] ** 2)


@pytest.mark.parametrize("loss", [recurrent, deep])
def test_the_mean_of_gradients(loss):
    """`vmap(grad(loss))`, then the mean: no row has a gradient of its own."""
    keys = jax.random.split(jax.random.key(0), 3)
    given = (
        {
            "h": jax.random.normal(keys[0], (3, DEEP, DEEP)) / 8,
            "table": jax.random.normal(keys[1], (100, DEEP)),
        },
        jax.random.randint(keys[2], (31, 5), -9, 120),
    )

    def program(w, xs):
        rows = jax.vmap(jax.grad(loss), (None, 0))(w, xs)
        return jax.tree.map(lambda g: g.mean(0), rows)

    compiled = jax.jit(optimize(program)).lower(*given).compile()
    for whole in (f"31,{DEEP},{DEEP}", f"31,100,{DEEP}", f"3,31,{DEEP},{DEEP}"):
        assert f"f32[{whole}]" not in compiled.as_text()
    assert_close(compiled(*given), program(*given))
    assert np.isfinite(compiled(*given)["h"]).all()


def test_a_batch_of_none():
    def program(xs, ys):
        step = lambda c, row: (c + jax.vmap(jnp.outer)(*row), None)
        return jnp.sum(lax.scan(step, jnp.zeros((0, 64, 96)), (xs, ys))[0], 0)

    alone(SUM, program, "f32[4,0,64]", "f32[4,0,96]", fires=False)
