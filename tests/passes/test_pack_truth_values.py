"""Masks that a step makes are stored as bits of one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.residuals.pack_truth_values import PackTruthValues
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

PACK = PackTruthValues()
MODEL = EAGER


def forward(x, count=2, *, length=4):
    """A loop that stacks as many masks of its carry."""

    def body(c, _):
        masks = tuple(c > bound for bound in np.arange(count, dtype=np.float32))
        return c * 0.5, masks

    return lax.scan(body, x, length=length)


def back(last, masks):
    """A loop that adds up what they leave, from the last step to the first."""

    def body(d, row):
        return d * d + sum(jnp.where(mask, d, 1.0) for mask in row), None

    return lax.scan(body, last, masks, reverse=True)[0]


def test_two_masks():
    """A byte an element holds both; each is read as its bit."""
    check_rewrite(
        PACK,
        lambda x: back(*forward(x)),
        "f32[3]",
        simplify=True,
        saves_bytes=4 * 3,
        diff="""
          fn (x:f32[3]) {
        -   c:f32[3], ys:bool[4,3], ys1:bool[4,3] = scan[4] carry(c=x) {
        +   c:f32[3], ys2:u8[4,3] = scan[4] carry(c=x) {
              g:bool[3] = gt c 0.0
              g1:bool[3] = gt c 1.0
              m:f32[3] = mul c 0.5
        +     c2:u8[3] = convert_element_type g
        +     c3:u8[3] = convert_element_type g1
        +     b1:u8[3] = broadcast_in_dim 1
        +     s2:u8[3] = shift_left c3 b1
        +     o:u8[3] = or c2 s2
        -     yield carry(m) ys(g, g1)
        +     yield carry(m) ys(o)
            }
        -   c1:f32[3] = scan[4, reverse] carry(c=c) xs(x=ys, x1=ys1) {
        +   c1:f32[3] = scan[4, reverse] carry(c=c) xs(x2=ys2) {
        +     b1:u8[3] = broadcast_in_dim 2
        +     a2:u8[3] = and x2 b1
        +     b2:u8[3] = broadcast_in_dim 0
        +     n:bool[3] = ne a2 b2
        +     b3:u8[3] = broadcast_in_dim 1
        +     a3:u8[3] = and x2 b3
        +     n1:bool[3] = ne a3 b2
              m:f32[3] = mul c c
              b:f32[3] = broadcast_in_dim 1.0
        -     s:f32[3] = select_n x b c
        +     s:f32[3] = select_n n1 b c
        -     s1:f32[3] = select_n x1 b c
        +     s1:f32[3] = select_n n b c
              a:f32[3] = add s s1
              a1:f32[3] = add m a
              yield carry(a1)
            }
            return c1
          }
        """,
    )


@pytest.mark.parametrize(("count", "stacks"), [(1, 1), (8, 1), (9, 2), (11, 2), (16, 2)])
def test_eight_in_a_number(count, stacks):
    """(2) One by itself stays a mask."""
    program = lambda x: back(*forward(x, count))
    graph = alone(PACK, program, "f32[3]", fires=count > 1)
    loop = next(op for op in graph.walk() if isinstance(op, Scan))
    assert len(loop.stacks) == stacks


def test_of_two_shapes():
    """(2) Only masks of one shape are packed."""

    def program(x, y):
        def body(c, _):
            a, b = c
            return (a * 0.5, b * 0.5), (a > 0, b > 0)

        def reader(d, row):
            a, b = (e * e + jnp.where(mask, e, 1.0) for mask, e in zip(row, d, strict=True))
            return (a, b), None

        last, masks = lax.scan(body, (x, y), length=4)
        return lax.scan(reader, last, masks, reverse=True)[0]

    alone(PACK, program, "f32[3]", "f32[3]", fires=True)
    alone(PACK, program, "f32[3]", "f32[4]", fires=False)


@pytest.mark.parametrize("dtype", ["i8", "f32"])
def test_other_numbers(dtype):
    """(2) A number is more than a bit."""

    def program(x):
        def body(c, _):
            return c * 0.5, ((c * 3).astype(dtype_of[dtype]), (c * 2).astype(dtype_of[dtype]))

        last, rows = lax.scan(body, x, length=4)
        reader = lambda d, row: (d * row[0] + row[1], None)
        return lax.scan(reader, last, rows, reverse=True)[0]

    dtype_of = {"i8": jnp.int8, "f32": jnp.float32}
    alone(PACK, program, "f32[3]", fires=False)


def test_made_in_a_branch():
    """(2) Steps that take another branch would compute with it, too."""

    def program(x, ps):
        def body(c, p):
            masks = lax.cond(p, lambda: (c > 0, c > 1), lambda: (c < 0, c < 1))
            return c * 0.5, masks

        return back(*lax.scan(body, x, ps))

    alone(PACK, program, "f32[3]", "bool[4]", fires=False)


def test_given_masks():
    """(2) Rows that a loop streams are there already."""

    def program(x, ps, qs):
        def body(c, row):
            return c * 0.5, row

        last, masks = lax.scan(body, x, (ps, qs))
        return back(last, masks)

    alone(PACK, program, "f32[3]", "bool[4,3]", "bool[4,3]", fires=False)


def test_needed_whole():
    """(1)"""

    def program(x):
        last, (p, q) = forward(x)
        return back(last, (p, q)), jnp.sum(q)

    alone(PACK, program, "f32[3]", fires=False)


def test_read_by_several_loops():
    """(1) Each reads the number; a loop that reads one mask gets no more bytes."""

    def program(x):
        last, (p, q) = forward(x)
        return back(last, (p, q)), back(last, (q,))

    alone(PACK, program, "f32[3]", fires=True)


def test_read_in_a_branch():
    """Bits are taken where they are read."""

    def program(x, ps):
        last, masks = forward(x)

        def body(d, row):
            p, (a, b) = row
            taken = lambda: jnp.where(a, d, 0.0) + jnp.where(b, 1.0, 0.0)
            return lax.cond(p, taken, lambda: jnp.where(b, d, 1.0)), None

        return lax.scan(body, last, (ps, masks), reverse=True)[0]

    alone(PACK, program, "f32[3]", "bool[4]", fires=True)


def test_stacked_again():
    """(1) A loop around may stack them again, for one that is around the reader."""

    def program(x):
        def outer(c, _):
            last, masks = forward(c)
            return last, masks

        def outer_back(d, masks):
            return back(d, masks), None

        last, masks = lax.scan(outer, x, length=3)
        return lax.scan(outer_back, last, masks, reverse=True)[0]

    alone(PACK, program, "f32[3]", fires=True)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops(length):
    alone(PACK, lambda x: back(*forward(x, length=length)), "f32[3]", fires=True)


def test_small_masks():
    """They hide behind the time that a step takes anyway."""
    program = lambda x: back(*forward(x))
    with using(MODEL.but(step=1.0)):
        check_refuses(PACK, program, "f32[3]", because="they are small")


def test_a_small_part():
    """Not worth it beside much else that the loop reads."""

    def program(x, wide):
        last, masks = forward(x)

        def body(d, row):
            (a, b), w = row
            return jnp.where(a, d, 0.0) + jnp.where(b, d, 1.0) + jnp.sum(w), None

        return lax.scan(body, last, (masks, wide), reverse=True)[0]

    alone(PACK, program, "f32[3]", "f32[4,2]", fires=True)
    check_refuses(PACK, program, "f32[3]", "f32[4,20]", because="small part of what is read")


def test_masks_that_tell_which_steps_do_nothing():
    """Later passes ask them, not bits, where a loop may stop."""

    def program(x, w, ks):
        def body(c, k):
            p, q = c[:, :1] > k, c[:, 1:2] > k
            return jnp.where(p & q, jnp.tanh(c @ w), c), None

        return jnp.sum(lax.scan(body, x, ks)[0] ** 2)

    wanted = jax.grad(program, (0, 1))
    args = (jnp.ones((64, 32)), jnp.ones((32, 32)) / 32, jnp.linspace(-1.0, 1.0, 16))
    graph = observe.optimized(wanted, args, {})[0]
    assert not any("u8[" in v.exact_type for op in graph.walk() for v in op.results)


def clamped(c, x):
    return jnp.clip(c + x, -1.0, 1.0)


def leaky(c, x):
    c = jax.nn.leaky_relu(c * 0.9 + x)
    return jax.nn.leaky_relu(c - 0.1) + jax.nn.relu(c - 0.5)


def shortest(c, x):
    left = jnp.pad(c[:-1], (1, 0), constant_values=9.0)
    return jnp.minimum(jnp.minimum(left, c), jnp.roll(c, -1)) + x


def bounces(c, x):
    p, v = c
    v = jnp.clip(v + x, -1.0, 1.0)
    p = p + v
    return jnp.clip(p, 0.0, 1.0), jnp.where((p > 0) & (p < 1), v, -v)


def between(c, x):
    low, high = c
    return jnp.minimum(low + x, high), jnp.maximum(low, high - x)


@pytest.mark.parametrize("step", [clamped, leaky, shortest, bounces, between])
def test_gradients_of_clamps(step):
    """Five programs that store a byte an element, or two; the same gradients."""

    def loss(c, xs):
        last = lax.scan(lambda c, x: (step(c, x), None), c, xs)[0]
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(last))

    c = jax.random.normal(jax.random.key(0), (4096,))
    c = (c, jnp.flip(c)) if step in (bounces, between) else c
    xs = jax.random.normal(jax.random.key(1), (512,))
    wanted = jax.grad(loss, (0, 1))
    with using(None):
        plain, made = (jax.jit(f).lower(c, xs).compile() for f in (wanted, optimize(wanted)))
    results = (jax.tree.leaves(f(c, xs)) for f in (plain, made))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    memory = [p.memory_analysis().temp_size_in_bytes for p in (plain, made)]
    assert memory[1] < 0.6 * memory[0]
