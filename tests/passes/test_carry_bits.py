"""Arrays of bfloat16 are written, carried and stacked as integers of their bits."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.in_place.carry_bits import CarryBits
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

BITS = CarryBits()


MODEL = EAGER
"""Programs here are small, and about what is done where it helps."""

pytestmark = pytest.mark.usefixtures("dividing")


def write(c, x, i):
    return lax.dynamic_update_slice(c, x, (i, 0), allow_negative_indices=False)


def filled(c, xs, i):
    """Rows are written to an array, and their squares are stacked."""
    return lax.scan(lambda c, ix: (write(c, ix[1][None], ix[0]), ix[1] * ix[1]), c, (i, xs))


def test_rows_that_are_written_and_stacked():
    check_rewrite(BITS, filled, "bf16[5,3]", "bf16[4,3]", "i32[4]", diff="""
          fn (c:bf16[5,3], xs:bf16[4,3], i:i32[4]) {
        +   b1:u16[4,3] = bitcast_convert_type[new_dtype=uint16] xs
        +   b2:u16[5,3] = bitcast_convert_type[new_dtype=uint16] c
        -   c1:bf16[5,3], ys:bf16[4,3] = scan[4] carry(c=c) xs(x=i, x1=xs) {
        +   c2:u16[5,3], ys1:u16[4,3] = scan[4] carry(c2=b2) xs(x=i, x2=b1) {
        +     b1:bf16[3] = bitcast_convert_type[new_dtype=bfloat16] x2
        -     b:bf16[1,3] = broadcast_in_dim x1
        +     b:bf16[1,3] = broadcast_in_dim b1
        -     d:bf16[5,3] = dynamic_update_slice c b x 0
        +     b2:u16[1,3] = bitcast_convert_type[new_dtype=uint16] b
        +     d1:u16[5,3] = dynamic_update_slice c2 b2 x 0
        +     b3:bf16[5,3] = bitcast_convert_type[new_dtype=bfloat16] d1
        -     m:bf16[3] = mul x1 x1
        +     m:bf16[3] = mul b1 b1
        +     b4:u16[3] = bitcast_convert_type[new_dtype=uint16] m
        -     yield carry(d) ys(m)
        +     yield carry(d1) ys(b4)
            }
        +   b3:bf16[5,3] = bitcast_convert_type[new_dtype=bfloat16] c2
        +   b4:bf16[4,3] = bitcast_convert_type[new_dtype=bfloat16] ys1
        -   return c1, ys
        +   return b3, b4
          }
        """,
    )  # fmt: skip


def test_a_sum_with_a_window():
    """(1) It is rounded once, as a scatter of one window rounds it."""

    def step(c, x, i):
        return c.at[i].add(x, mode="drop", wrap_negative_indices=False)

    def program(c, xs, i):
        return lax.scan(lambda c, ix: (step(c, ix[1], ix[0]), None), c, (i, xs))[0]

    graph = alone(BITS, program, "bf16[5,3]", "bf16[4,3]", "i32[4]", fires=True)
    (scan,) = (op for op in graph.walk() if op.name == "scan")
    assert [c.param.dtype for c in scan.carries] == ["uint16"]
    batch = alone(BITS, jax.vmap(program), "bf16[2,5,3]", "bf16[2,4,3]", "i32[2,4]", fires=True)
    assert not any(op.name == "scatter-add" for op in batch.walk())


def test_several_windows_that_are_written():
    def program(c, xs, i):
        return lax.fori_loop(0, 3, lambda t, c: c.at[i + t].set(xs, mode="drop"), c)

    graph = alone(BITS, program, "bf16[5,3]", "bf16[4,3]", "i32[4]", fires=True)
    (written,) = (op for op in graph.walk() if op.name == "scatter")
    assert written.result.dtype == "uint16"


def several(c, xs, i):
    """Several rows are added at once."""
    return lax.fori_loop(0, 3, lambda _, c: c.at[i].add(xs), c)


def test_sums_of_several_windows():
    """(1) Two of them may be one place: their sum is rounded once."""
    check_refuses(BITS, several, "bf16[5,3]", "bf16[4,3]", "i32[4]", because="added up in float32")


def test_a_function_of_both():
    """(2) It is of numbers, not of bits."""

    def step(c, i):
        return c.at[i].apply(jnp.sin), None

    check_refuses(
        BITS,
        lambda c, i: lax.scan(step, c, i)[0],
        "bf16[5,3]",
        "i32[4]",
        because="a function combines the numbers",
    )


def test_while_it_may_be_differentiated():
    """(3) Integers have no derivative."""
    args = "bf16[5,3]", "bf16[4,3]", "i32[4]"
    alone(BITS, filled, *args, fires=False, phase="differentiable")


def in_a_branch(c, xs, p):
    def step(c, x):
        return lax.cond(p[x[0].astype(int)], lambda c: write(c, x[None], 1), lambda c: c, c), None

    return lax.scan(step, c, xs)[0]


def in_a_while(c, x):
    def on(s):
        return jnp.logical_and(s[1] < 3, s[0][0, 0] < 9)

    return lax.while_loop(on, lambda s: (write(s[0], x, s[1]), s[1] + 1), (c, 0))[0]


def nested(c, xs):
    return lax.scan(lambda c, x: (lax.fori_loop(0, 2, lambda i, c: write(c, x, i), c), None), c, xs)


def nested_and_stacked(c, xs):
    """What the inner loop hands on is stacked, and carried."""

    def step(c, x):
        c = lax.fori_loop(0, 2, lambda i, c: write(c, x, i), c)
        return c, c

    return lax.scan(step, c, xs)[1]


def swapped(a, b, x):
    def step(ab, _):
        return (ab[1], write(ab[0], x, 1)), None

    return lax.scan(step, (a, b), None, length=3)[0]


def streamed(c, xs):
    """Rows that a loop stacks, which another one reads in reverse."""
    h, ys = lax.scan(lambda h, x: (h + x, h * x), c, xs)
    return lax.scan(lambda h, y: (h * y, None), h, ys, reverse=True)[0]


def read_elsewhere(c, x):
    """A step also reads other rows, and all of the array."""
    return lax.fori_loop(0, 3, lambda i, c: write(c, x + c[(i + 2) % 5] + c.sum(0), i), c)


@pytest.mark.parametrize(
    ("program", "args", "carried"),
    [
        (in_a_branch, ("bf16[5,3]", "bf16[4,3]", "bool[4]"), 1),
        (in_a_while, ("bf16[5,3]", "bf16[1,3]"), 1),
        (nested, ("bf16[5,3]", "bf16[4,1,3]"), 2),
        (nested_and_stacked, ("bf16[5,3]", "bf16[4,1,3]"), 2),
        (swapped, ("bf16[5,3]", "bf16[5,3]", "bf16[1,3]"), 2),
        (streamed, ("bf16[3]", "bf16[4,3]"), 0),
        (read_elsewhere, ("bf16[5,3]", "bf16[1,3]"), 1),
    ],
)
def test_what_hands_on_such_an_array(program, args, carried):
    graph = alone(BITS, program, *args, fires=True)
    loops = [op for op in graph.walk() if op.name in ("scan", "while")]
    carries = [c for loop in loops for c in loop.carries]
    assert sum(c.param.dtype == "uint16" for c in carries) == carried
    written = [op for op in graph.walk() if op.name == "dynamic_update_slice"]
    assert all(op.result.dtype == "uint16" for op in written)
    rows = [v for loop in loops if loop.name == "scan" for v in loop.streams + loop.stacks]
    assert all(row[0].dtype == "uint16" for row in rows if row[0].dtype != "int32")


@pytest.mark.parametrize("dtype", ["f16[5,3]", "f32[5,3]"])
def test_other_types(dtype):
    """XLA has code for these."""
    args = dtype, dtype.replace("5", "4"), "i32[4]"
    alone(BITS, filled, *args, fires=False)


def test_outside_of_loops():
    alone(BITS, write, "bf16[5,3]", "bf16[1,3]", "i32[]", fires=False)


def test_an_array_that_a_step_computes():
    """It is of float32 when the window is written."""

    def step(c, x):
        return c + write(c.astype("bfloat16"), x, 1).astype("float32"), None

    alone(BITS, lambda c, xs: lax.scan(step, c, xs)[0], "f32[5,3]", "bf16[1,1,3]", fires=False)


def test_where_xla_converts_nothing(monkeypatch):
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", True)
    alone(BITS, filled, "bf16[5,3]", "bf16[4,3]", "i32[4]", fires=False)


@pytest.mark.parametrize(("rows", "fires"), [(2, False), (2000, True)])
def test_a_small_array(rows, fires):
    """Converting it takes no longer than a step does anyway."""

    def program(c, x):
        return lax.fori_loop(0, 3, lambda i, c: write(c, x, i), c)

    with using(CostModel()):
        alone(BITS, program, f"bf16[{rows},3]", "bf16[1,3]", fires=fires)


def test_gradients_and_batches():
    """The whole pipeline, in every order."""

    def loss(w, xs):
        def step(h, x):
            h = jnp.tanh(h * w + x)
            return h, h

        return jnp.sum(lax.scan(step, xs[0], xs)[1].astype(jnp.float32) ** 2)

    w, xs = jnp.full(8, 0.5, "bfloat16"), jnp.ones((50, 8), "bfloat16")
    ours = jaxpr_opt.optimize(loss)
    for plain, other, args in (
        (jax.grad(loss, (0, 1)), jaxpr_opt.optimize(jax.grad(loss, (0, 1))), (w, xs)),
        (jax.grad(loss, (0, 1)), jax.grad(ours, (0, 1)), (w, xs)),
        (jax.vmap(jax.grad(loss)), jax.vmap(jax.grad(ours)), (w[None], xs[None])),
    ):
        expected, result = jax.jit(plain)(*args), jax.jit(other)(*args)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
            assert a.dtype == b.dtype
            assert jnp.allclose(a.astype("float32"), b.astype("float32"), rtol=0.02)
