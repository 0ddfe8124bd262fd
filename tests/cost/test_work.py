"""What programs do over a whole run: the parts of an array that they touch."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.cost.work import works
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import traced
from tests.generate import BUFFERS, RECIPES, arguments

N = 1000


def work(fun, *args):
    """The work of a program, and of one iteration of its whiles."""
    found = works(import_jaxpr(traced(fun, *args), "final"))
    whole = sum(each.amount for each in found if each.loop is None)
    return whole, sum(each.amount for each in found if each.loop is not None)


def per_step(step, length=10_000):
    """The work of a step of a loop that carries `f32[N]`, entering the loop shared by all."""

    def program(xs, x):
        return lax.scan(lambda c, i: step(c, i, x), jnp.zeros(N) + xs[0], jnp.arange(length))

    return work(program, f"f32[{N}]", "f32[]")[0] // length


def added(i, x):
    """Zeros, and `x` at two places."""
    return jnp.zeros(N).at[jnp.array([i, i + 1])].add(x)


def test_elementwise_ops_read_write_and_compute():
    assert work(lambda x: x * x, "f32[8]") == (3 * 32 + 8, 0)


@pytest.mark.parametrize(
    "step",
    [
        lambda c, i, x: (c.at[i].set(x), None),
        lambda c, i, x: (c, c[i]),
        lambda c, i, x: (c.at[i].add(x), None),
        lambda c, i, x: (c + jnp.zeros(N).at[i].set(x), None),
        lambda c, i, x: (jnp.zeros(N).at[i].add(x) + c, None),
        lambda c, i, x: (c + (added(i + 3, x) + added(i, x)), None),
        lambda c, i, x: (lax.cond(x > 0, lambda: c.at[i].set(x), lambda: c), None),
        lambda c, i, x: (jnp.where(x > 0, c.at[i].set(x), c), None),
        lambda c, i, x: (jnp.where(c[i] > 0, c, c.at[i].set(jnp.sin(c[0]))), None),
        lambda c, i, x: (c, c[i] + jnp.cumsum(jnp.full(N, x))[3]),
        lambda c, i, x: (jax.checkpoint(lambda c: c.at[i].set(x))(c), None),
        lambda c, i, x: lax.scan(lambda c, j: (c.at[j].set(x), None), c, jnp.arange(2)),
    ],
)
def test_a_window_costs_the_window(step):
    assert per_step(step) < N / 2


@pytest.mark.parametrize(
    "step",
    [
        lambda c, i, x: (c + x, None),
        lambda c, i, x: (c.at[i].set(0), c[i]),
        lambda c, i, x: (jnp.where(x > 0, c.at[i].set(x), c), c[i] > 0),
        lambda c, i, x: (jnp.where(c > x, c.at[i].set(x), c), None),
        lambda c, i, x: (c + jnp.zeros(N).at[3].set(x), None),
        lambda c, i, x: (c + (jnp.zeros(N).at[i].add(x) + jnp.zeros(N).at[i + 1].add(x)), None),
        lambda c, i, x: (c - added(i, x), None),
        lambda c, i, x: (c, c),
        lambda c, i, x: (lax.cond(x > 0, lambda: c.at[i].set(x), lambda: c), c),
        lambda c, i, x: lax.scan(lambda d, j: (d.at[j].set(x), c[i]), c, jnp.arange(2)),
        lambda c, i, x: (
            c.at[i].set(lax.fori_loop(0, 2, lambda j, d: d.at[j].set(x), jnp.zeros(N))[i]),
            None,
        ),
    ],
)
def test_a_copy_costs_the_array(step):
    assert per_step(step) > 2 * N


def test_carries_that_change_places_are_copied():
    def swapped(xs, ys):
        return lax.scan(lambda c, _: ((c[1], c[0]), None), (xs + 1, ys + 1), None, length=100)[0]

    assert work(swapped, "f32[8]", "f32[8]")[0] > 100 * 2 * 32


def test_of_a_while_one_iteration_is_reported():
    def program(xs):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, xs * 2)

    whole, iteration = work(program, "f32[8]")
    assert whole == 2 * 32 + 4 + 8
    assert iteration >= 2 * 32 + 8


def test_of_branches_the_dearest_counts():
    def either(one, other):
        return work(lambda p, x: lax.cond(p, one, other, x), "bool[]", "f32[8]")

    cheap, dear = (lambda x: x + 1), (lambda x: jnp.sin(x) + 1)
    assert either(cheap, dear) == either(dear, cheap) == either(dear, dear)
    assert either(cheap, cheap) < either(cheap, dear)


def test_custom_derivatives_are_looked_into():
    assert work(jax.nn.relu, "f32[8]")[0] >= 64


@hypothesis.settings(max_examples=10)
@hypothesis.given(RECIPES | BUFFERS, st.booleans())
def test_generated_programs(recipe, is_optimized):
    """Of whatever shape a program is, its work is told: ops that do something, and no others."""
    fun = jaxpr_opt.optimize(recipe) if is_optimized else recipe
    graph, _ = observe.as_it_is(fun, arguments(2, 0.7), {})
    found = works(graph)
    assert found
    assert all(each.amount > 0 for each in found)
