"""Loops that ask to be unrolled keep that where nothing is copied for it."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bench.limits import is_larger, temporary_bytes
from jaxpr_opt import optimize
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import assert_same, traced


def stacked(x, length, unroll):
    step = lambda c, _: ((d := jnp.sin(c)), d)
    return lax.scan(step, x, None, length=length, unroll=unroll)


def written(x, length, unroll):
    step = lambda c, _: (c.at[0].add(1.0), None)
    return lax.scan(step, x, None, length=length, unroll=unroll)


def exported(program, length, unroll):
    graph = import_jaxpr(traced(lambda x: program(x, length, unroll), "f32[3]"), "final")
    (eqn,) = (e for e in export(graph).eqns if e.primitive.name == "scan")
    return eqn.params["unroll"]


@pytest.mark.parametrize(
    ("length", "unroll", "as_one"),
    [
        pytest.param(8, 1, 1, id="as it is"),
        pytest.param(8, 4, 4, id="a divisor"),
        pytest.param(9, 4, 3, id="a divisor near it"),
        pytest.param(7, 4, 1, id="there is none"),
        pytest.param(7, 7, 7, id="all"),
        pytest.param(7, True, 7, id="all, by name"),
        pytest.param(7, 9, 7, id="more than all"),
        pytest.param(7, 0, 7, id="all, as JAX counts"),
    ],
)
def test_no_steps_are_left(length, unroll, as_one):
    """JAX would copy all rows to append those of the steps that are left."""
    assert exported(stacked, length, unroll) == as_one


@pytest.mark.parametrize(("unroll", "as_one"), [(1, 1), (2, 1), (8, 8)])
def test_steps_that_write_in_place_run_one_by_one(unroll, as_one):
    """XLA copies what one of several steps writes and the next one reads."""
    assert exported(written, 8, unroll) == as_one


def smoothed(x, unroll):
    """An array whose step reads what the step before wrote."""

    def step(c, i):
        return c.at[i].set(jnp.tanh(c[i - 1] + c[i + 1])), None

    return lax.scan(step, x, jnp.arange(1, 399), unroll=unroll)[0]


def kept(x, unroll):
    """A buffer that becomes the stack of its rows, of a length that 4 does not divide."""

    def step(c, i):
        y, rows = c
        y = jnp.sin(y) + 0.5
        return (y, rows.at[i].set(y)), None

    start = x[:8], jnp.zeros((399, 8))
    return lax.scan(step, start, jnp.arange(399), unroll=unroll)[0][1]


def early(x, unroll):
    """A loop that stops after few steps."""
    step = lambda c, t: (jnp.where(t < 5, jnp.sin(c) * 0.9, c), None)
    return lax.scan(step, x, jnp.arange(400), unroll=unroll)[0]


@pytest.mark.parametrize("program", [smoothed, kept, early])
@pytest.mark.parametrize("unroll", [4, 7])
def test_it_takes_no_more_memory_than_in_plain_jax(program, unroll):
    x = jnp.linspace(0.0, 1.0, 400)
    plain = functools.partial(program, unroll=unroll)
    ours = optimize(plain)
    assert_same(plain, ours, (x,))
    assert not is_larger(temporary_bytes(ours, x), temporary_bytes(jax.jit(plain), x))


def test_a_program_that_stays_unrolls_as_it_asks():
    """Nothing is rewritten, so nothing is rolled up."""
    ours = jax.make_jaxpr(optimize(lambda x: stacked(x, 9, 4)))(jnp.ones(3))
    assert "unroll=4" in str(ours)
