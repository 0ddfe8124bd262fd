"""Integers that are known to be small are stored in a byte or two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.residuals.stack_narrow_integers import StackNarrowIntegers
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

NARROW = StackNarrowIntegers()
MODEL = EAGER


def forward(x, place, *, length=4):
    """A loop that stacks a place for each element of its carry."""

    def body(c, _):
        return c * 0.5, place(c)

    return lax.scan(body, x, length=length)


def back(last, places):
    """A loop that computes with them, from the last step to the first."""

    def body(d, place):
        return d * place.astype(d.dtype) + d, None

    return lax.scan(body, last, places, reverse=True)[0]


def between(low, high, dtype="int32"):
    return lambda c: lax.clamp(
        np.asarray(low, dtype), lax.convert_element_type(c, dtype), np.asarray(high, dtype)
    )


def test_places_in_a_table():
    """Four bytes are one."""
    check_rewrite(
        NARROW,
        lambda x: back(*forward(x, between(0, 63))),
        "f32[3]",
        saves_bytes=4 * 3 * 3,
        diff="""
          fn (x:f32[3]) {
        -   c:f32[3], ys:i32[4,3] = scan[4] carry(c=x) {
        +   c:f32[3], ys1:u8[4,3] = scan[4] carry(c=x) {
              m:f32[3] = mul c 0.5
              c1:i32[3] = convert_element_type c
              c2:i32[3] = clamp 0 c1 63
        +     c3:u8[3] = convert_element_type c2
        -     yield carry(m) ys(c2)
        +     yield carry(m) ys(c3)
            }
        -   c1:f32[3] = scan[4, reverse] carry(c=c) xs(x=ys) {
        +   c1:f32[3] = scan[4, reverse] carry(c=c) xs(x1=ys1) {
        +     c3:i32[3] = convert_element_type x1
        -     c1:f32[3] = convert_element_type x
        +     c1:f32[3] = convert_element_type c3
              m:f32[3] = mul c c1
              a:f32[3] = add m c
              yield carry(a)
            }
            return c1
          }
        """,
    )


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 255, "uint8"),
        (-1, 127, "int8"),
        (-128, 0, "int8"),
        (0, 256, "uint16"),
        (-1, 128, "int16"),
        (-129, 0, "int16"),
        (0, 65535, "uint16"),
        (-32768, 32767, "int16"),
        (0, 65536, "int32"),
        (-1, 32768, "int32"),
        (-32769, 0, "int32"),
    ],
)
def test_the_narrowest_type(low, high, dtype):
    """(2)"""
    program = lambda x: back(*forward(x, between(low, high)))
    graph = alone(NARROW, program, np.array([1e9, -1e9, 3], np.float32), fires=dtype != "int32")
    loop = next(op for op in graph.walk() if isinstance(op, Scan))
    assert loop.stacks[0].value.dtype == dtype


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_narrow_already(dtype):
    """(2)"""
    place = lambda c: between(0, 1, "int8")(c).astype(dtype)
    alone(NARROW, lambda x: back(*forward(x, place)), "f32[3]", fires=False)


def test_two_bytes_in_one():
    """(2)"""
    alone(NARROW, lambda x: back(*forward(x, between(0, 9, "int16"))), "f32[3]", fires=True)


def test_other_numbers():
    """(2) A range of numbers with fractions does not say that they are integers."""
    place = lambda c: jnp.clip(c, 0.0, 3.0)
    alone(NARROW, lambda x: back(*forward(x, place)), "f32[3]", fires=False)


def test_any_numbers():
    """(2) Nothing is known of them."""
    place = lambda c: c.astype(jnp.int32)
    alone(NARROW, lambda x: back(*forward(x, place)), "f32[3]", fires=False)


def test_needed_whole():
    """(1)"""

    def program(x):
        last, places = forward(x, between(0, 63))
        return back(last, places), jnp.sum(places)

    alone(NARROW, program, "f32[3]", fires=False)


def test_stacked_again():
    """(1) A loop around may stack them again, for one that is around the reader."""

    def program(x):
        outer = lambda c, _: forward(c, between(0, 63))
        last, places = lax.scan(outer, x, length=3)
        return lax.scan(lambda d, rows: (back(d, rows), None), last, places, reverse=True)[0]

    alone(NARROW, program, "f32[3]", fires=True)


def test_several_stacks():
    """One match: together they are worth it, or not."""

    def program(x):
        def body(c, _):
            return c * 0.5, (between(0, 63)(c), between(-9, 300)(c))

        def reader(d, row):
            return d * row[0] + row[1], None

        last, places = lax.scan(body, x, length=4)
        return lax.scan(reader, last, places, reverse=True)[0]

    graph = alone(NARROW, program, "f32[3]", fires=True)
    loop = next(op for op in graph.walk() if isinstance(op, Scan))
    assert [stack.value.dtype.name for stack in loop.stacks] == ["uint8", "int16"]


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops(length):
    program = lambda x: back(*forward(x, between(0, 63), length=length))
    alone(NARROW, program, "f32[3]", fires=True)


def test_small_rows():
    """They hide behind the time that a step takes anyway."""
    program = lambda x: back(*forward(x, between(0, 63)))
    with using(MODEL.but(step=1.0)):
        check_refuses(NARROW, program, "f32[3]", because="they are small")


def test_a_small_part():
    """Not worth it beside much else that the loop reads."""

    def program(x, wide):
        last, places = forward(x, between(0, 63))
        body = lambda d, row: (d * row[0] + jnp.sum(row[1]), None)
        return lax.scan(body, last, (places, wide), reverse=True)[0]

    alone(NARROW, program, "f32[3]", "f32[4,3]", fires=True)
    check_refuses(NARROW, program, "f32[3]", "f32[4,40]", because="small part of what is read")


KNOTS = jnp.linspace(-3.0, 3.0, 64)
CODES = jax.random.normal(jax.random.key(5), (32, 8))


def searched(c, x, table):
    return c + 0.1 * x * table[jnp.clip(jnp.searchsorted(KNOTS, c) - 1, 0, 62)] * c


def of_a_grid(c, x, table):
    return jnp.tanh(c + x * table[jnp.clip(jnp.floor(c * 8 + 32).astype(jnp.int32), 0, 63)])


def ordered(c, x, table):
    return c[jnp.argsort(c)] * 0.9 + x


def coded(c, x, table):
    places = jnp.argmin(((c.reshape(-1, 1, 8) - CODES) ** 2).sum(-1), 1)
    return c + 0.1 * x * table[places].repeat(8) * c


def counted(c, x, table):
    wins = (c > 0).astype(jnp.int32) + (c > 1).astype(jnp.int32) + (c > 2)
    return c * (1 + 0.01 * wins) * x


@pytest.mark.parametrize("step", [searched, of_a_grid, ordered, coded, counted])
def test_gradients_of_places(step):
    """Five programs that store places; the same gradients."""

    def loss(c, xs, table):
        last = lax.scan(lambda c, x: (step(c, x, table), None), c, xs)[0]
        return jnp.sum(last**2)

    c = jax.random.normal(jax.random.key(0), (2048,))
    xs = 0.5 + 0.1 * jax.random.normal(jax.random.key(1), (256,))
    wanted, args = jax.grad(loss, (0, 1, 2)), (c, xs, jnp.linspace(-1.0, 1.0, 64))
    skip = ["stack-narrow-integers"]
    with using(CostModel()):
        programs = (wanted, optimize(wanted), optimize(wanted, skip=skip))
        plain, made, without = (jax.jit(f).lower(*args).compile() for f in programs)
    for one, other in zip(plain(*args), made(*args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    memory = [p.memory_analysis().temp_size_in_bytes for p in (plain, made, without)]
    assert memory[1] < 0.9 * memory[0]
    assert memory[1] <= memory[2]
