"""Temporary buffers live in the rooms of results that are written later."""

import jax
import jax.numpy as jnp
import pytest

from jaxpr_opt import optimize
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.memory.planner import collect_plans

X = jnp.ones((64, 64))
ROWS = jnp.ones((8, 64))
KB = 1024


def compiled(program, *args, donated=()):
    """Temporary bytes of a program as XLA compiles it."""
    jitted = jax.jit(program, donate_argnums=donated)
    return jitted.lower(*args).compile().memory_analysis().temp_size_in_bytes


def estimated(program, *args, donated=()):
    """The same as predicted."""
    graph = import_jaxpr(jax.make_jaxpr(program)(*args), "final")
    graph.given_up = frozenset(donated)
    return temporary_bytes(graph)


def step(w, v, x):
    """A step of gradient descent with momentum."""
    g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    v = 0.9 * v + g
    return w - 0.1 * v, v


def products(count):
    """So many products, each of the one before; the last is the result."""

    def program(x, y):
        for _ in range(count):
            x = x @ y
        return x

    return program


def early_and_late(x):
    """One result is written first, and one last."""
    first, y = x @ x, jnp.sin(x) @ x
    return first, (y @ x) @ x


def larger(x, wide, high):
    """A product that is larger than the result."""
    return ((x @ wide) @ high) @ x


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (products(1), (X, X)),
        (products(2), (X, X)),
        (products(3), (X, X)),
        (products(4), (X, X)),
        (early_and_late, (X,)),
        (larger, (X, jnp.ones((64, 256)), jnp.ones((256, 64)))),
        (step, (X, X, ROWS)),
    ],
)
def test_the_estimate_is_what_is_compiled(program, args):
    assert estimated(program, *args) == pytest.approx(compiled(program, *args), abs=KB)


def test_a_donated_argument_leaves_no_room():
    """The gradient needs a buffer of its own if the results are written over arguments."""
    free, donating = (estimated(step, X, X, ROWS, donated=each) for each in ((), (0, 1)))
    assert free < X.nbytes <= donating
    assert donating == pytest.approx(compiled(step, X, X, ROWS, donated=(0, 1)), abs=KB)


@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_the_planner_knows_what_is_donated(donated):
    """A donated argument of the whole program is one of what is planned."""
    made = optimize(step, memory="minimal", donate_argnums=donated)
    with collect_plans() as plans:
        made.lower(X, X, ROWS)
    (plan,) = plans
    assert plan.frontier[0].nbytes == estimated(step, X, X, ROWS, donated=donated)


def test_a_budget_that_is_met_does_not_warn(recwarn):
    """The gradient lives in the room of a result."""
    optimize(step, memory="8 KiB").lower(X, X, ROWS)
    assert not recwarn.list
