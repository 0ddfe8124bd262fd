"""Whether two values meet in an op that jumps: through loops, branches and calls."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.values.compared import are_compared
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced


@jax.custom_jvp
def custom(x, y):
    return x * y


custom.defjvp(lambda primals, tangents: (custom(*primals), tangents[0]))


def looped(step):
    return lambda x, y: lax.scan(step, (x, y), None, length=3)[0]


MEET = {
    "at once": lambda x, y: x < y,
    "after sums": lambda x, y: jnp.floor(3 * x + y),
    "in a step": looped(lambda c, _: ((c[0], jnp.sign(c[0] + c[1])), ())),
    "in the next step": looped(lambda c, _: ((c[1], jnp.sign(c[0])), ())),
    "in rows": lambda x, y: lax.map(lambda r: r > x, jnp.stack([y, y])),
    "in the stack": lambda x, y: lax.map(lambda r: r + x, jnp.arange(3.0)) > y,
    "in a branch": lambda x, y: lax.cond(True, lambda: x > y, lambda: True),
    "after a branch": lambda x, y: lax.cond(True, lambda: x, lambda: 0.0) > y,
    "in a predicate": lambda x, y: lax.while_loop(lambda c: c < y, lambda c: 2 * c, x),
    "after a while": lambda x, y: lax.while_loop(lambda c: c < 3, lambda c: 2 * c, x) > y,
    "after a checkpoint": lambda x, y: jax.checkpoint(lambda x: jnp.sin(x) + y)(x) > 0,
    "in a call": custom,
}

APART = {
    "sums": lambda x, y: x - y,
    "each by itself": lambda x, y: (x > 0) & (y > 0),
    "where the other is": lambda x, y: jnp.where(x > 0, y, 0.0),
    "in other carries": looped(lambda c, _: ((jnp.sign(c[0]), jnp.floor(c[1])), ())),
    "an integer": lambda x, y: y > jnp.argmax(jnp.stack([x, 2 * x])).astype(float),
}


def compared(program):
    graph = import_jaxpr(traced(program, "f32[]", "f32[]"))
    return are_compared(graph.inputs)


@pytest.mark.parametrize("case", MEET)
def test_values_that_meet(case):
    assert compared(MEET[case])


@pytest.mark.parametrize("case", APART)
def test_values_that_do_not(case):
    assert not compared(APART[case])


def test_one_value_meets_no_other():
    graph = import_jaxpr(traced(lambda x: x > 2 * x, "f32[]"))
    assert not are_compared(graph.inputs)
