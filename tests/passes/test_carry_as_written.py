"""A buffer that a step moves to write to it, and moves back, is carried as it is written."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.carried.carry_as_written import CarryAsWritten
from jaxpr_opt.testing import assert_close, assert_same_derivatives, check_refuses, check_rewrite
from tests.loops import alone, memory

CARRY = CarryAsWritten()


def write(array, value, *starts):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_update_slice(array, value, starts, allow_negative_indices=False)


def stepping(step):
    def program(c, places, xs):
        return lax.scan(lambda c, ix: step(c, *ix), c, (places, xs))

    return program


def test_rows_in_a_row():
    """(1) Three elements of all rows, wherever a row ends."""
    check_rewrite(
        CARRY,
        stepping(lambda c, i, x: (write(c.reshape(-1), x, i).reshape(6, 4), x)),
        "f32[6,4]",
        "i32[3]",
        "f32[3,3]",
        diff="""
          fn (c:f32[6,4], places:i32[3], xs:f32[3,3]) {
        +   r2:f32[24] = reshape c
        -   c1:f32[6,4] = scan[3] carry(c=c) xs(x=places, x1=xs) {
        +   c2:f32[24] = scan[3] carry(c2=r2) xs(x=places, x1=xs) {
        -     r:f32[24] = reshape c
        -     d:f32[24] = dynamic_update_slice r x1 x
        +     d:f32[24] = dynamic_update_slice c2 x1 x
              r1:f32[6,4] = reshape d
        -     yield carry(r1)
        +     yield carry(d)
            }
        +   r3:f32[6,4] = reshape c2
        -   return c1, xs
        +   return r3, xs
          }
        """,
    )


def reshaped(c, i, x):
    flat = c.reshape(-1)
    return write(flat, x + flat[i], i).reshape(6, 4), jnp.sum(c[:, 1])


def transposed(c, i, x):
    t = c.T
    return write(write(t, x[None], 1, i), 2 * x[None], 0, i - 2).T, jnp.sum(x)


def turned(c, i, x):
    back = c[::-1]
    return write(write(back, x[:, None], i, 1), x[:, None], 2, i)[::-1], back[0]


def as_a_batch_of_one(c, i, x):
    return write(c[None], x[None, None], 0, i, 0)[0], jnp.sum(c)


MOVED = [reshaped, transposed, turned, as_a_batch_of_one]


@pytest.mark.parametrize("step", MOVED)
def test_values(step):
    """(1, 2) In a scan and in a while; nothing is moved in the step any more."""
    c, xs = jnp.sin(jnp.arange(24.0)).reshape(6, 4), jnp.cos(jnp.arange(12.0)).reshape(4, 3)
    places = jnp.array([0, 2, -1, 9])
    program = stepping(step)
    alone(CARRY, program, c, places, xs, fires=True)
    loss = lambda c, xs: sum(map(jnp.sum, program(c, places, jnp.sin(xs))))
    assert_same_derivatives(loss, optimize(loss), c, xs)

    def looped(c, n):
        body = lambda ic: (ic[0] + 1, step(ic[1], places[ic[0]], xs[ic[0]])[0])
        return lax.while_loop(lambda ic: ic[0] < n, body, (0, c))[1]

    alone(CARRY, looped, c, jnp.int32(3), fires=True)
    batch = jnp.stack([c, 2 * c])
    assert_close(
        jax.vmap(program, (0, None, None))(batch, places, xs),
        optimize(jax.vmap(program, (0, None, None)))(batch, places, xs),
    )


REFUSED = {
    "it is read as it was": (
        lambda c, i, x: (write(c.T, x[None], 1, i).T, jnp.sum(jnp.sin(c), 0)),
        "sin reads it as it was",
    ),
}


@pytest.mark.parametrize(("step", "because"), REFUSED.values(), ids=REFUSED)
def test_refused(step, because):
    """(2)"""
    check_refuses(CARRY, stepping(step), "f32[6,4]", "i32[3]", "f32[3,3]", because=because)


def test_a_predicate_that_reads_it():
    step = lambda c: write(c.reshape(-1), jnp.ones(3), c[0, 0].astype(int)).reshape(6, 4)
    program = lambda c: lax.while_loop(lambda c: jnp.sum(c) < 20, step, c)
    check_refuses(CARRY, program, "f32[6,4]", because="the predicate reads it as it was")


NOT_FOUND = {
    "it is not moved back": lambda c, i, x: (write(c.reshape(-1), x, i).reshape(4, 6).T, x),
    "nothing is written": lambda c, i, x: (c.reshape(-1).reshape(6, 4), x),
    "another array is written": lambda c, i, x: (
        write(jnp.zeros(24), x, i).reshape(6, 4), c.reshape(-1)[:3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", NOT_FOUND.values(), ids=NOT_FOUND)
def test_not_found(step):
    """(1)"""
    alone(CARRY, stepping(step), "f32[6,4]", "i32[3]", "f32[3,3]", fires=False)


def test_the_buffer_stays_in_place():
    c, places, xs = jnp.ones((4000, 4)), jnp.arange(20), jnp.ones((20, 3))

    def step(c, i, x):
        flat = c.reshape(-1)
        old = lax.dynamic_slice(flat, (3 * i,), (3,))
        return write(flat, x + old, 3 * i).reshape(c.shape), old

    program = stepping(step)
    assert memory(optimize(program), c, places, xs) < 0.2 * c.nbytes
