"""Rows that count no more, as rewards are discounted by zero."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def test_rows_that_only_masks_of_rewards_need():
    """A loop stacks whether it is done, not what that is made of: it stops when that stays so."""

    def total(x):
        def step(s, _):
            x, done, total = s
            x = x * jnp.cos(x)
            done = done | (x < 0.5)
            return (x, done, total + jnp.where(done, 0.0, jnp.sin(x))), None

        return lax.scan(step, (x, jnp.zeros(3, bool), jnp.zeros(3)), None, length=6)[0][2].sum()

    graph = observe.optimized(jax.grad(total), (jnp.float32([0.9, 0.7, 1.0]),), {})[0]
    assert len([op for op in graph.walk() if isinstance(op, While)]) == 2


def rollout(row, *, factor=0.9, done=lambda done, new: done | (new.sum() > 2)):
    """A loop whose state stops, and a discount goes on; it stacks `row` of these."""

    def program(s, x):
        def body(c, t):
            s, stopped, d = c
            new = jnp.sin(s) + x
            kept = jnp.where(stopped, s, new)
            left = 1.0 - stopped.astype(jnp.float32)
            return (kept, done(stopped, new), d * factor), row(left, d, t, new)

        return lax.scan(body, (s, jnp.bool_(False), 1.0), jnp.arange(6))[1]

    return program


DISCOUNTED = {
    "carried": lambda left, d, t, new: left * d * jnp.sum(new**2),
    "a power": lambda left, d, t, new: left * 0.9**t * jnp.sum(new**2),
    "of a step": lambda left, d, t, new: left * (1 - d) * new,
    "last": lambda left, d, t, new: jnp.sum(new**2) * (d * left),
    "integers": lambda left, d, t, new: left.astype(jnp.int32) * t,
}


@pytest.mark.parametrize("name", DISCOUNTED)
def test_discounts_of_steps_that_count_no_more(name):
    """(4) Zero times a number from zero to one is zero, however it goes on."""
    graph = alone(EXIT, rollout(DISCOUNTED[name]), "f32[3]", "f32[3]", fires=True)
    assert not any(isinstance(op, Scan) for op in graph.body.ops)


def test_a_rollout():
    """(4) Rows of skipped steps are made of what they keep, without what goes on."""
    check_rewrite(
        EXIT,
        rollout(DISCOUNTED["carried"]),
        "f32[3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (s:f32[3], x:f32[3]) {
        -   c:f32[3], c1:bool[], c2:f32[], ys:f32[6] = scan[6] carry(c=s, c1=False, c2=1.0) {
        -     s:f32[3] = sin c
        -     a:f32[3] = add s x
        -     s1:f32[3] = select_n c1 a c
        -     c3:f32[] = convert_element_type c1
        -     s2:f32[] = sub 1.0 c3
        -     r:f32[] = reduce_sum[axes=(0,)] a
        -     g:bool[] = gt r 2.0
        -     o:bool[] = or c1 g
        -     m:f32[] = mul c2 0.9
        -     c4:f32[] = convert_element_type c2
        -     m1:f32[] = mul s2 c4
        -     i:f32[3] = integer_pow[y=2] a
        -     r1:f32[] = reduce_sum[axes=(0,)] i
        -     m2:f32[] = mul m1 r1
        -     yield carry(s1, o, m) ys(m2)
        -   }
        +   u:f32[6] = undefined
        +   c5:i32[], c6:f32[3], c7:bool[], c8:f32[], c9:f32[6] = while carry(c5=0, s3=s, c6=False, c7=1.0, c8=u) {
        +     l:bool[] = lt c5 6
        +     n:bool[] = not c6
        +     r2:bool[] = reduce_or n
        +     a1:bool[] = and l r2
        +     yield a1
        +   } do {
        +     s:f32[3] = sin s3
        +     a:f32[3] = add s x
        +     r:f32[] = reduce_sum[axes=(0,)] a
        +     g:bool[] = gt r 2.0
        +     m:f32[] = mul c7 0.9
        +     c4:f32[] = convert_element_type c7
        +     i:f32[3] = integer_pow[y=2] a
        +     r1:f32[] = reduce_sum[axes=(0,)] i
        +     m3:f32[] = mul c4 r1
        +     b:f32[1] = broadcast_in_dim m3
        +     d:f32[6] = dynamic_update_slice c8 b c5
        +     a1:i32[] = add c5 1
        +     yield carry(a1, a, g, m, d)
        +   }
        +   s3:f32[3] = sin c6
        +   a1:f32[3] = add s3 x
        +   i1:f32[3] = integer_pow[y=2] a1
        +   r2:f32[] = reduce_sum[axes=(0,)] i1
        +   m3:f32[] = mul 0.0 r2
        +   c10:i32[], c11:f32[6] = while carry(c5=c5, c6=c9) {
        +     l:bool[] = lt c5 6
        +     yield l
        +   } do {
        +     b:f32[1] = broadcast_in_dim m3
        +     d:f32[6] = dynamic_update_slice c6 b c5
        +     a1:i32[] = add c5 1
        +     yield carry(a1, d)
        +   }
        -   return ys
        +   return c11
          }
        """,  # noqa: E501
    )


@pytest.mark.parametrize("state", [0.5, 3e38, jnp.inf, jnp.nan])
@pytest.mark.parametrize(
    ("row", "factor"),
    [
        pytest.param(DISCOUNTED["carried"], 1.1, id="it grows"),
        pytest.param(DISCOUNTED["carried"], 1e30, id="it grows until it is infinite"),
        pytest.param(lambda left, d, t, new: left * new * d, 0.9, id="the state is multiplied"),
    ],
)
def test_rows_that_are_zero_times_what_may_be_no_number(row, factor, state):
    """(4, 13) The loop tells whether it is one."""
    args = jnp.full(3, state), jnp.full(3, 0.3)
    alone(EXIT, rollout(row, factor=factor), *args, fires=True)


NOISE = {
    "normal": lambda k, x: jax.random.normal(k, x.shape),
    "Gumbel, bounded": lambda k, x: jnp.tanh(jax.random.gumbel(k, x.shape)),
    "guarded": lambda k, x: jnp.where(jnp.abs(x) < 9, x * x, 1.0),
    "normal, and what is asked": lambda k, x: jax.random.normal(k, x.shape) - 0.1 * jnp.tanh(x),
}


@pytest.mark.parametrize("name", NOISE)
def test_steps_of_noise_by_arithmetic(name):
    """(4, 13) Zero times a number that is finite whatever the arguments are is zero."""

    def program(x, key, n):
        def step(carry, t):
            x, key = carry
            key, now = jax.random.split(key)
            return (x + (t < n) * NOISE[name](now, x), key), None

        return lax.scan(step, (x, key), jnp.arange(40))[0][0]

    args = jnp.linspace(-1.0, 1.0, 300), jax.random.key(0), jnp.int32(5)
    graph = alone(EXIT, program, *args, fires=True)
    assert not any(isinstance(op, Scan) for op in graph.body.ops)
    asks = [op for op in graph.walk() if op.name == "reduce_max" and op.result.shape == ()]
    assert bool(asks) == ("asked" in name)
    alone(EXIT, program, jnp.full(300, jnp.inf), *args[1:], fires=True)


def test_rows_that_go_on():
    """(4) What a skipped step stacks is no product, and differs."""
    program = rollout(lambda left, d, t, new: left + d, factor=0.9)
    check_refuses(EXIT, program, "f32[3]", "f32[3]", because="from one skipped step to the next")


def test_a_discount_that_ends():
    """(1) A number from zero to one that is not positive is zero, and stays so."""

    def program(s, x):
        def body(c, _):
            s, d = c
            new = jnp.sin(s) + x
            return (jnp.where(d > 0, new, s), d * 0.9 * (new.sum() < 2)), d * jnp.sum(new**2)

        return lax.scan(body, (s, 1.0), None, length=6)

    graph = alone(EXIT, program, "f32[3]", "f32[3]", fires=True)
    assert not any(isinstance(op, Scan) for op in graph.body.ops)


def gradient_of(row, read=lambda rows: rows.sum()):
    return jax.grad(lambda s, x: read(rollout(row)(s, x)), argnums=(0, 1))


@pytest.mark.parametrize("name", ["carried", "a power", "of a step", "last"])
def test_the_loop_back_of_discounts(name):
    """(7) It begins at the last step taken: the rows of others leave its carries as they begin."""
    args = jnp.asarray([0.1, 0.2, 0.3]), jnp.asarray([0.2, 0.4, 0.1])
    gradient = gradient_of(DISCOUNTED[name])
    graph, _ = observe.optimized(optimize(gradient), args, {})
    loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
    assert [type(op) for op in loops] == [While, While]
    for done in (0.1, 1.0, 9.0):
        assert_same(optimize(gradient), gradient, (args[0], args[1] * done), grad=False)


def test_a_loop_back_that_reads_more():
    """(7) Not if another cotangent comes in at steps that are skipped."""

    def row(left, d, t, new):
        return left * d * jnp.sum(new**2) + jnp.sum(new)

    args = jnp.asarray([0.1, 0.2, 0.3]), jnp.asarray([0.2, 0.4, 0.1])
    gradient = gradient_of(row)
    graph, _ = observe.optimized(optimize(gradient), args, {})
    assert any(isinstance(op, Scan) and op.reverse for op in graph.walk())
    assert_same(optimize(gradient), gradient, args, grad=False)


def nested_counts(rows, of_step=lambda n: n):
    """Each step of a loop runs another one until its number is small; a step back reads what that
    has stacked, in as many of its steps as were counted.
    """

    def forward(y, x):
        def halve(state, _):
            z, n = state
            go = jnp.abs(z) > 1
            return (jnp.where(go, z / 2, z), n + go), jnp.exp(z)

        (y, n), stacked = lax.scan(halve, (y + x, jnp.int32(0)), None, length=6)
        return y, (stacked, of_step(n))

    def program(y, xs):
        y, (stacked, counts) = lax.scan(forward, y, xs)

        def step(a, given):
            rows, n = given
            masks = n if n.shape else jnp.arange(6) < n
            one = lambda a, of: (jnp.where(of[0], a / of[1], a), None)
            return lax.scan(one, a, (masks, rows), reverse=True)

        return y, lax.scan(step, y, (stacked, rows(counts)), reverse=True)[0]

    return program


@pytest.mark.parametrize(
    ("rows", "loops"), [(lambda c: c, 2), (lambda c: c + 1, 3), (lambda c: c[::-1], 3)]
)
def test_steps_that_are_counted_in_a_nest(rows, loops):
    """(7) The loop back reads the rows of as many steps as were taken, and no more, of the same
    step of the loop around. Otherwise a loop fills them in.
    """
    args = jnp.float32(30.0), jnp.array([0.5, -9.0, 100.0])
    graph = alone(EXIT, nested_counts(rows), *args, fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == loops


def test_masks_that_are_stacked_in_a_nest():
    """(7) So do the rows of a mask that is made of the count."""
    program = nested_counts(lambda c: c, lambda n: jnp.arange(6) < n)
    args = jnp.float32(30.0), jnp.array([0.5, -9.0, 100.0])
    graph = alone(EXIT, program, *args, fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == 2
