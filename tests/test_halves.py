"""What the forward half of a gradient hands to the backward half, where no pass has a say."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.testing import assert_close

U = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)


def repeated(step):
    return lambda u, v: lax.fori_loop(0, 3, lambda _, state: step(*state), (u, v))


def inner(u, v):
    """A place of two numbers."""
    return u + v, v.at[1:-1, 1:-1].add(jnp.sin(u[1:-1, 1:-1]))


def two_places(u, v):
    """Of which one number is the same."""
    return u.at[1:-1, 2:].multiply(2.0), v.at[1:-1, 1:-1].add(u[:-2, :-2])


def ramp(u, v):
    """Numbers that are counted."""
    return u * jnp.arange(8.0), v * (1 + jnp.arange(8.0))[:, None]


def sizes(jaxpr):
    """How many numbers each value has that an equation of a program makes."""
    return [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]


PROGRAMS = [repeated(inner), repeated(two_places), repeated(ramp)]


@pytest.mark.parametrize("program", PROGRAMS, ids=["inner", "two places", "ramp"])
def test_constants_are_made_where_they_are_read(program):
    """XLA takes a place that is an argument for any: a wave equation took seven times as long."""
    loss = lambda program: lambda u, v: sum(map(jnp.sum, program(u, v)))
    ours = jax.grad(loss(optimize(program)), (0, 1))
    assert_close(jax.jit(ours)(U, U), jax.jit(jax.grad(loss(program), (0, 1)))(U, U))
    assert not {2, 8} & set(sizes(jax.make_jaxpr(ours)(U, U)))


def test_what_is_dear_to_make_is_handed_on():
    """Of no input either."""
    program = lambda u: jnp.sum(u * jnp.sin(jnp.arange(8.0)))
    assert 8 in sizes(jax.make_jaxpr(jax.grad(optimize(program)))(U))
    assert_close(jax.grad(optimize(program))(U), jax.grad(program)(U))
