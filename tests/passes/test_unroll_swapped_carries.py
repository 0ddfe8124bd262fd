"""Carries that change places are back in them after some steps, which are taken at once."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.in_place.unroll_swapped_carries import UnrollSwappedCarries
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone, memory
from tests.prices import EAGER

UNROLL = UnrollSwappedCarries()
MODEL = EAGER
"""Programs here are small."""


def write(a, x, i):
    return lax.dynamic_update_slice(a, x[None], (i,), allow_negative_indices=False)


def scanned(step, carries=2, **options):
    """A loop over numbers and places, whose carries are some arrays."""
    return lambda a, x, i: lax.scan(
        lambda c, xi: step(c, *xi), tuple(a * k for k in range(1, carries + 1)), (x, i), **options
    )


def pair(c, x, i):
    """One is written and becomes the other."""
    a, b = c
    return (write(b, x, i), a), x + 1


PLACES = ("f32[64]", "f32[16]", "i32[16]")


def test_a_pair_of_buffers():
    """(1) After two steps each is back."""
    check_rewrite(
        UNROLL,
        scanned(pair),
        *PLACES,
        grad=False,
        diff="""
          fn (a:f32[64], x:f32[16], i:i32[16]) {
            m:f32[64] = mul a 1.0
            m1:f32[64] = mul a 2.0
        +   u:f32[16] = undefined
        -   c:f32[64], c1:f32[64], ys:f32[16] = scan[16] carry(c=m, c1=m1) xs(x=x, x1=i) {
        +   c2:i32[], c:f32[64], c1:f32[64], c3:f32[16] = scan[8] carry(row=0, c=m, c1=m1, rows=u) {
        +     d1:f32[1] = dynamic_slice x row
        +     s:f32[] = squeeze d1
        +     d2:i32[1] = dynamic_slice i row
        +     s1:i32[] = squeeze d2
        -     b:f32[1] = broadcast_in_dim x
        +     b:f32[1] = broadcast_in_dim s
        -     d:f32[64] = dynamic_update_slice c1 b x1
        +     d:f32[64] = dynamic_update_slice c1 b s1
        -     a:f32[] = add x 1.0
        +     a:f32[] = add s 1.0
        +     b1:f32[1] = broadcast_in_dim a
        +     d3:f32[16] = dynamic_update_slice rows b1 row
        +     a1:i32[] = add row 1
        +     d4:f32[1] = dynamic_slice x a1
        +     s2:f32[] = squeeze d4
        +     d5:i32[1] = dynamic_slice i a1
        +     s3:i32[] = squeeze d5
        +     b2:f32[1] = broadcast_in_dim s2
        +     d6:f32[64] = dynamic_update_slice c b2 s3
        +     a2:f32[] = add s2 1.0
        +     b3:f32[1] = broadcast_in_dim a2
        +     d7:f32[16] = dynamic_update_slice d3 b3 a1
        +     a3:i32[] = add a1 1
        -     yield carry(d, c) ys(a)
        +     yield carry(a3, d6, d, d7)
            }
        -   return c, c1, ys
        +   return c, c1, c3
          }
        """,
    )


def rotated(c, x, i):
    """Three time levels."""
    a, b, d = c
    return (b, d, a.at[i].add(x * d[i])), a[i]


def remembered(c, x, i):
    """What a step starts with is dropped two steps later; it makes an array by itself."""
    a, b, d = c
    return (jnp.sort(a), a, b), d[i] + x


def random(c, x, i):
    """Keys are rows, too."""
    a, b = c
    key = jax.random.fold_in(jax.random.key(0), i)
    return (b.at[i].multiply(jax.random.uniform(key)), a), key


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [16, 17, 18])
@pytest.mark.parametrize(
    ("step", "count"),
    [(pair, 2), (rotated, 3), (remembered, 3), (random, 2)],
)
def test_steps_that_are_left_follow(step, count, length, reverse):
    """(1) Carries go round, or are dropped at the end; rows are those of the steps."""
    program = scanned(step, count, reverse=reverse)
    types = "f32[256]", f"f32[{length}]", f"i32[{length}]"
    graph = alone(UNROLL, program, *types, fires=True)
    (loop,) = (op for op in graph.body.ops if op.name == "scan")
    assert loop.length == length // count


@pytest.mark.parametrize(
    ("step", "carries"),
    {
        "(1) one stays": (lambda c, x, i: ((write(c[0], x, i), c[1]), None), 2),
        "(1) one stays and becomes another": (lambda c, x, i: ((write(c[0], x, i), c[0]), None), 2),
        "(1) one becomes two others": (lambda c, x, i: ((jnp.sort(c[0]), c[0], c[0]), None), 3),
        "(1) it is made of all of another": (lambda c, x, i: ((c[1] * x, c[0] * x), None), 2),
    }.values(),
)
def test_what_is_copied_in_any_case(step, carries):
    alone(UNROLL, scanned(step, carries), *PLACES, fires=False)


@pytest.mark.parametrize(
    ("program", "length", "because"),
    [
        (scanned(pair), 15, "are few"),
        (scanned(lambda c, x, i: ((*c[1:], write(c[0], x, i)), x), 5), 16, "at once many"),
        (scanned(lambda c, x, i: ((write(c[1], x, i), c[0]), chain(x))), 16, "many ops"),
        (scanned(pair, unroll=4), 3, None),
    ],
)
def test_what_takes_long_to_compile(program, length, because):
    """(2) What the user asks for is never too much."""
    types = "f32[64]", f"f32[{length}]", f"i32[{length}]"
    if because is None:
        alone(UNROLL, program, *types, fires=False)
    else:
        check_refuses(UNROLL, program, *types, because=because)


def chain(x):
    """Many ops."""
    for _ in range(130):
        x = jnp.sin(x)
    return x


def leapfrog(c, x, i):
    """A wave: all of an array is made of two others."""
    a, b = c
    return (2 * a - b + x * (jnp.roll(a, 1) - a), a), None


def test_steps_that_make_arrays():
    """(3) XLA would fuse two such steps, and compute the first one again for each neighbour."""
    check_refuses(UNROLL, scanned(leapfrog), *PLACES, because="once more in the next one")


@pytest.mark.parametrize(("asked", "count"), [(2, 2), (3, 2), (4, 4), (5, 4)])
def test_as_many_as_the_user_asks_for(asked, count):
    """(2, 3) A multiple of those that bring carries back."""
    graph = alone(UNROLL, scanned(leapfrog, unroll=asked), "f32[8]", "f32[9]", "i32[9]", fires=True)
    (loop,) = (op for op in graph.body.ops if op.name == "scan")
    assert (loop.length, loop.params["unroll"]) == (9 // count, 1)


@pytest.mark.parametrize("unroll", [True, 0, 16, 40])
def test_no_loop_is_left_where_the_user_unrolls_all(unroll):
    alone(UNROLL, scanned(pair, unroll=unroll), *PLACES, fires=False)


def test_while_it_may_be_differentiated():
    """(5) The transpose would carry arrays of zeros for rows that are read."""
    alone(UNROLL, scanned(pair), *PLACES, fires=False, phase="differentiable")


@pytest.mark.parametrize(("size", "fires"), [(100, False), (2000, True)])
def test_small_buffers(size, fires):
    """(4) A copy takes less time than a step."""
    with using(CostModel()):
        alone(UNROLL, scanned(pair), f"f32[{size}]", *PLACES[1:], fires=fires)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["forward", "gradient"])
@pytest.mark.parametrize(("step", "carries"), [(pair, 2), (rotated, 3)], ids=["pair", "three"])
def test_nothing_is_copied(step, carries, transform):
    """A copy takes the room of an array."""

    def loss(a, x, i):
        (a, b, *_), rows = scanned(step, carries)(a, x, i)
        return jnp.sum(a * b) + jnp.sum(rows)

    args = jnp.linspace(0, 1, 5000), jnp.linspace(0, 1, 17), jnp.arange(17) * 3 % 7
    with using(CostModel()):
        plain, ours = transform(loss), optimize(transform(loss))
        assert memory(ours, *args) <= memory(plain, *args) - args[0].nbytes
        assert_close(jax.jit(plain)(*args), ours(*args))
