"""A stack of which the last row is read is that row, carried."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from jaxpr_opt import optimize
from jaxpr_opt.passes.carried.carry_last_rows import CarryLastRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone, memory

CARRY = CarryLastRows()
TYPES = ("f32[40]", "f32[8,40]")


def scanned(step, read, **options):
    """What is read of the rows that a loop stacks."""
    return lambda h, xs, *more: read(lax.scan(lambda h, x: step(h, x, *more), h, xs, **options)[1])


def test_the_state_of_the_last_step():
    """(1, 2) It is carried already."""
    check_rewrite(
        CARRY,
        scanned(lambda h, x: (jnp.sin(h + x),) * 2, lambda hs: hs[-1]),
        *TYPES,
        diff="""
              fn (h:f32[40], xs:f32[8,40]) {
            -   c:f32[40], ys:f32[8,40] = scan[8] carry(c=h) xs(x=xs) {
            +   c:f32[40] = scan[8] carry(c=h) xs(x=xs) {
                  a:f32[40] = add c x
                  s:f32[40] = sin a
            -     yield carry(s) ys(s)
            +     yield carry(s)
                }
            -   s:f32[1,40] = slice[7:, :] ys
            +   r:f32[1,40] = reshape c
            -   s1:f32[40] = squeeze s
            +   s1:f32[40] = squeeze r
                return s1
              }
        """,
    )


def test_an_output_is_computed_once():
    """(2) From the last state, and the last row of a stream: the first, if the loop runs back."""

    def step(h, x, w):
        h = jnp.sin(h + x)
        return h, w @ h + x[:30]

    check_rewrite(
        CARRY,
        scanned(step, lambda ys: ys[0], reverse=True),
        *TYPES,
        "f32[30,40]",
        diff="""
              fn (h:f32[40], xs:f32[8,40], more_0:f32[30,40]) {
            -   c:f32[40], ys:f32[8,30] = scan[8, reverse] carry(c=h) xs(x=xs) {
            +   c:f32[40] = scan[8, reverse] carry(c=h) xs(x=xs) {
                  a:f32[40] = add c x
                  s:f32[40] = sin a
                  d:f32[30] = dot_general more_0 s
                  s1:f32[30] = slice[:30] x
                  a1:f32[30] = add d s1
            -     yield carry(s) ys(a1)
            +     yield carry(s)
                }
            -   s:f32[1,30] = slice[:1, :] ys
            +   s2:f32[1,40] = slice[:1, :] xs
            +   s3:f32[40] = squeeze s2
            +   d1:f32[30] = dot_general more_0 c
            +   s4:f32[30] = slice[:30] s3
            +   a2:f32[30] = add d1 s4
            +   r:f32[1,30] = reshape a2
            -   s1:f32[30] = squeeze s
            +   s1:f32[30] = squeeze r
                return s1
              }
        """,
    )


def test_what_comes_of_the_state_before_is_carried():
    """(2) Only a part of the row is read."""
    check_rewrite(
        CARRY,
        scanned(lambda h, x: (jnp.sin(h + x), jnp.cos(h)), lambda ys: ys[-1, 3:5]),
        *TYPES,
        diff="""
              fn (h:f32[40], xs:f32[8,40]) {
            +   u:f32[40] = undefined
            -   c:f32[40], ys:f32[8,40] = scan[8] carry(c=h) xs(x=xs) {
            +   c:f32[40], c2:f32[40] = scan[8] carry(c=h, c2=u) xs(x=xs) {
                  a:f32[40] = add c x
                  s:f32[40] = sin a
                  c1:f32[40] = cos c
            -     yield carry(s) ys(c1)
            +     yield carry(s, c1)
                }
            +   r:f32[1,40] = reshape c2
            -   s:f32[1,2] = slice[7:, 3:5] ys
            +   s:f32[1,2] = slice[:, 3:5] r
                s1:f32[2] = squeeze s
                return s1
              }
        """,
    )


def test_a_carry_that_no_step_reads():
    """(2)"""

    def program(h, xs, w):
        def step(c, x):
            h = jnp.sin(c[0] + x)
            return (h, jnp.tanh(w @ h)), ()

        return lax.scan(step, (h, jnp.zeros(100)), xs)[0]

    check_rewrite(
        CARRY,
        program,
        *TYPES,
        "f32[100,40]",
        diff="""
              fn (h:f32[40], xs:f32[8,40], w:f32[100,40]) {
                b:f32[100] = broadcast_in_dim 0.0
            -   c:f32[40], c1:f32[100] = scan[8] carry(c=h, c1=b) xs(x=xs) {
            +   c:f32[40] = scan[8] carry(c=h) xs(x=xs) {
                  a:f32[40] = add c x
                  s:f32[40] = sin a
                  d:f32[100] = dot_general w s
                  t:f32[100] = tanh d
            -     yield carry(s, t)
            +     yield carry(s)
                }
            +   d1:f32[100] = dot_general w c
            +   t1:f32[100] = tanh d1
            -   return c, c1
            +   return c, t1
              }
        """,
    )


def test_zeros_but_for_the_row_of_the_first_step():
    """(4) The loop starts with the row."""

    def program(ct, row):
        cts = jnp.zeros((8, 40)).at[0].set(row)
        return lax.scan(lambda c, x: (jnp.sin(c + x), ()), ct, cts)[0]

    check_rewrite(
        CARRY,
        program,
        "f32[40]",
        "f32[40]",
        simplify=True,
        diff="""
              fn (ct:f32[40], row:f32[40]) {
                b:f32[8,40] = broadcast_in_dim 0.0
                r:f32[1,40] = reshape row
                d:f32[8,40] = dynamic_update_slice b r 0 0
            +   s1:f32[1,40] = slice[:1, :] d
            +   s2:f32[40] = squeeze s1
            +   a1:f32[40] = add ct s2
            -   c:f32[40] = scan[8] carry(c=ct) xs(x=d) {
            +   c:f32[40] = scan[8] carry(c=a1) {
            -     a:f32[40] = add c x
            -     s:f32[40] = sin a
            +     s:f32[40] = sin c
                  yield carry(s)
                }
                return c
              }
        """,
    )


def network(outputs):
    """A recurrent network of which `outputs` reads rows."""

    def loss(weights, xs):
        w, out = weights

        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, jnp.tanh(h @ out)

        return (outputs(lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]) ** 2).sum()

    return loss


def by_hand(weights, xs):
    w, out = weights
    h, _ = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros(xs.shape[1:]), xs)
    return (jnp.tanh(h @ out) ** 2).sum()


@pytest.mark.parametrize(
    "outputs", [lambda ys: ys[-1], lambda ys: jnp.swapaxes(ys, 0, 1)[:, -1]], ids=["steps", "batch"]
)
def test_a_network_of_which_the_last_output_counts(outputs):
    """(1, 2, 4) Forward, its gradient in either order, and a batch take the memory of by hand."""
    loss = network(outputs)
    weights = jnp.eye(16) / 2, jnp.ones((16, 64)) / 16
    xs = jnp.cos(jnp.arange(64 * 2 * 16.0)).reshape(64, 2, 16)
    assert_close(optimize(loss)(weights, xs), loss(weights, xs))
    assert memory(optimize(loss), weights, xs) <= memory(by_hand, weights, xs)
    wanted, most = jax.grad(loss)(weights, xs), memory(jax.grad(by_hand), weights, xs)
    for gradient in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        assert_close(jax.jit(gradient)(weights, xs), wanted)
        assert memory(gradient, weights, xs) <= most


@pytest.mark.parametrize(
    "read",
    [
        lambda ys: ys[-2],
        lambda ys: ys[0],
        lambda ys: ys[-1] + ys[3],
        lambda ys: ys[-2:],
        lambda ys: ys[::7],
        lambda ys: (ys[-1], ys),
    ],
)
def test_other_rows_are_stacked(read):
    """(1)"""
    program = scanned(lambda h, x: (jnp.sin(h + x),) * 2, read)
    alone(CARRY, program, *TYPES, fires=False)


def test_a_step_that_does_not_run_has_no_last_row():
    """(3)"""

    def program(h, xs, w):
        def step(c, x):
            h = jnp.sin(c[0] + x)
            return (h, jnp.tanh(w @ h)), ()

        return lax.scan(step, (h, jnp.ones(100)), xs)[0]

    alone(CARRY, program, "f32[40]", "f32[0,40]", "f32[100,40]", fires=False)


def test_effects_stay_in_the_loop():
    """(2) What they give is carried."""

    def step(h, x):
        h = jnp.sin(h + x)
        tell = lambda h: h
        return h, jax.pure_callback(tell, jax.ShapeDtypeStruct((40,), "float32"), h)

    program = scanned(step, lambda ys: ys[-1])
    h, xs = jnp.zeros(40), jnp.ones((8, 40))
    assert_close(optimize(program, passes=["carry-last-rows"])(h, xs), program(h, xs))


@pytest.mark.parametrize(
    "step",
    [
        lambda c, x: (jnp.sin(c + x), x.sum()),  # the row is read elsewhere
        lambda c, x: (jnp.sin(c + x) + c, 0.0),  # and so is the carry
        lambda c, x: (c * x, 0.0),
        lambda c, x: (lax.cond(c[0] > 0, lambda c: c + x, jnp.sin, c), 0.0),
        lambda c, x: (c + jnp.cos(x), 0.0),
        lambda c, x: (c + 2 * x, 0.0),  # no loop of cotangents: an infinite factor is possible
    ],
)
def test_rows_of_zeros_that_count_are_streamed(step):
    """(4)"""

    def program(ct, row):
        return lax.scan(step, ct, jnp.zeros((8, 40)).at[0].set(row))

    alone(CARRY, program, "f32[40]", "f32[40]", fires=False)


def with_rule(backward):
    """The gradient of a loop whose outputs have a derivative of their own; the last one counts."""

    @jax.custom_vjp
    def output(h):
        return 2 * h

    output.defvjp(lambda h: (2 * h, h), backward)

    def loss(h0, xs):
        def step(h, x):
            h = jnp.sin(h + x)
            return h, output(h)

        return (lax.scan(step, h0, xs)[1][-1] ** 2).sum()

    return jax.grad(loss)


def test_a_derivative_that_is_not_linear_is_taken_in_each_step():
    """(4) It makes something of zeros."""
    gradient = with_rule(lambda h, ct: (jnp.cos(ct) * h,))
    h0, xs = jnp.ones(40), jnp.cos(jnp.arange(320.0)).reshape(8, 40)
    assert_close(optimize(gradient)(h0, xs), gradient(h0, xs))


def test_a_derivative_with_effects_is_taken_in_each_step():
    """(4)"""
    told = []

    def backward(h, ct):
        kind = jax.ShapeDtypeStruct(h.shape, h.dtype)
        return (ct * io_callback(lambda h: told.append(1) or np.asarray(h), kind, h),)

    gradient = with_rule(backward)
    h0, xs = jnp.ones(40), jnp.ones((8, 40))
    wanted = jax.jit(gradient)(h0, xs)
    jax.effects_barrier()
    assert len(told) == 8
    assert_close(optimize(gradient)(h0, xs), wanted)
    jax.effects_barrier()
    assert len(told) == 16


@pytest.mark.parametrize("place", [1, 7])
def test_another_row_is_streamed(place):
    """(4)"""

    def program(ct, row):
        cts = jnp.zeros((8, 40)).at[place].set(row)
        return lax.scan(lambda c, x: (jnp.sin(c + x), ()), ct, cts)[0]

    alone(CARRY, program, "f32[40]", "f32[40]", fires=False)


def test_rows_beside_others_than_zeros_are_streamed():
    """(4)"""

    def program(ct, row):
        cts = jnp.ones((8, 40)).at[0].set(row)
        return lax.scan(lambda c, x: (jnp.sin(c + x), ()), ct, cts)[0]

    alone(CARRY, program, "f32[40]", "f32[40]", fires=False)


def test_a_few_numbers_are_stacked():
    program = scanned(lambda h, x: (jnp.sin(h + x), h.sum()), lambda ys: ys[-1])
    check_refuses(CARRY, program, *TYPES, because="scan is small")


def test_keys_are_carried():
    def program(key):
        def step(key, _):
            key, used = jax.random.split(key)
            return key, (used, jax.random.normal(used, (20,)))

        used, drawn = lax.scan(step, key, None, length=5)[1]
        return jax.random.key_data(used[-1]), drawn[-1]

    key = jax.random.key(3)
    assert_close(optimize(program)(key), program(key))
