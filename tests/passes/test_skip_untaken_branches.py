"""What few rows of a batch take is computed only where some row does."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.steps.skip_untaken_branches import SkipUntakenBranches
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.prices import FREE

SKIP = SkipUntakenBranches()
CHEAP = CostModel(dataclasses.replace(FREE, unsure=0.0))
"""Asking costs nothing."""


@pytest.fixture(autouse=True)
def asking_is_free():
    with using(CHEAP):
        yield


def chosen(p, taken, other):
    """By one truth value a row."""
    rows = lax.broadcast_in_dim(p, taken.shape, range(p.ndim))
    return lax.select(rows, taken, other)


def test_a_case_that_few_rows_take():
    """(1) And another select by the same truth values; the other case is there anyway."""
    check_rewrite(
        SKIP,
        lambda p, x: (chosen(p, jnp.sin(x), x), chosen(p, jnp.cos(x), x)),
        "bool[3]",
        "f32[3,4]",
        diff="""
            fn (p:bool[3], x:f32[3,4]) {
          -   s:f32[3,4] = sin x
              b:bool[3,4] = broadcast_in_dim[dims=(0,)] p
          -   s1:f32[3,4] = select_n b x s
          -   c:f32[3,4] = cos x
              b1:bool[3,4] = broadcast_in_dim[dims=(0,)] p
          -   s2:f32[3,4] = select_n b1 x c
          +   r:bool[] = reduce_or[axes=(0,)] p
          +   r1:f32[3,4], r2:f32[3,4] = cond r {
          +     s:f32[3,4] = sin x
          +     c:f32[3,4] = cos x
          +     s1:f32[3,4] = select_n b x s
          +     s2:f32[3,4] = select_n b1 x c
          +     yield s1, s2
          +   } else {
          +     yield x, x
          +   }
          -   return s1, s2
          +   return r1, r2
            }
        """,
    )


def test_a_case_that_most_rows_take():
    """(1) The other way round."""
    program = lambda p, x: chosen(p, x, jnp.sin(x) * 2)
    same(program, X)


X = jnp.array([[0.5, jnp.nan], [jnp.inf, -0.0], [3.0, 1e30]])
ROWS = [
    jnp.array(rows)
    for rows in ([False] * 3, [True] * 3, [True, False, False], [False, False, True])
]


def same(program, x):
    """Where no row takes it, all do, one does."""
    for p in ROWS:
        before, after = (import_jaxpr(traced(program, p, x), "final") for _ in range(2))
        assert run_alone((SKIP,), after).record(SKIP.name, False).rewrites
        assert_same_bits(evaluate_exactly(before, p, x), evaluate_exactly(after, p, x))


def guarded(p, x):
    """What the branch reads is selected, too, as JAX does where it differentiates."""
    inner = jnp.exp(chosen(p, x, lax.stop_gradient(x)))
    return chosen(p, inner, x)


def looped(p, x):
    """In a loop, with a loop in the branch."""

    def step(c, _):
        inner = lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), c)
        return chosen(p & (c[:, 0] > 0), inner, c) * 0.5, c

    return lax.scan(step, x, length=3)


def around(p, x):
    """In a loop, by a mask that is made around it."""
    rows = lax.broadcast_in_dim(p, x.shape, (0,))
    return lax.scan(lambda c, _: (lax.select(rows, jnp.sin(c), c) * 0.5, c), x, length=3)


def alone(p, x):
    """As `vmap` makes it."""
    return jax.vmap(lambda p, x: lax.cond(p, lambda x: x @ jnp.ones((2, 2)), lambda x: x, x))(p, x)


@pytest.mark.parametrize("program", [guarded, looped, around, alone])
def test_the_same_bits(program):
    """Whoever takes it: nobody, all, one; NaN and infinities."""
    same(program, X)


def shared(p, x):
    """What the branch computes is a result, too."""
    y = jnp.sin(x)
    return chosen(p, y, x), y


def whole(p, x):
    """Truth values of elements, not of rows."""
    return lax.select(x > 0, jnp.sin(x), x)


def scalar(p, x):
    """One truth value for all."""
    return lax.select(jnp.broadcast_to(p[0], x.shape), jnp.sin(x), x)


def in_a_while(p, x):
    """The loop asks."""
    return lax.while_loop(lambda c: jnp.any(c[:, 0] < 2), lambda c: chosen(p, jnp.exp(c), c + 1), x)


def skipping(p, x):
    """A loop of steps that are skipped."""
    step = lambda c, p: (chosen(p, jnp.sin(c), c), None)
    return lax.scan(step, x, jnp.stack([p, p]))[0]


REFUSED = [
    pytest.param(lambda p, x: chosen(p, jnp.sin(x), jnp.zeros_like(x)), "a constant", id="mask"),
    pytest.param(in_a_while, "some row takes the branch", id="in a while"),
    pytest.param(skipping, "skips whole steps", id="skipping"),
    pytest.param(shared, None, id="read elsewhere"),
    pytest.param(whole, None, id="of elements"),
    pytest.param(scalar, None, id="one for all"),
]


@pytest.mark.parametrize(("program", "because"), REFUSED)
def test_refused(program, because):
    """(1, 3) By the reason that it gives, or not looked at."""
    if because is not None:
        check_refuses(SKIP, program, "bool[3]", "f32[3,2]", because=because)
    graph = import_jaxpr(traced(program, "bool[3]", "f32[3,2]"), "final")
    with using(CostModel(dataclasses.replace(FREE, unsure=1e-9))):
        assert not run_alone((SKIP,), graph).record(SKIP.name, False).rewrites


def test_an_effect_stays_outside():
    """(2) It is not taken into the branch, nor what it reads."""

    def program(p, x):
        y = jnp.sin(x)
        jax.debug.callback(lambda y: None, y)
        return chosen(p, y, x)

    graph = import_jaxpr(traced(program, "bool[3]", "f32[3,2]"), "final")
    with using(CostModel(dataclasses.replace(FREE, unsure=1e-9))):
        assert not run_alone((SKIP,), graph).record(SKIP.name, False).rewrites


def test_rows_that_xla_may_divide():
    """(2) It may let devices exchange what a branch reads."""
    mesh = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    parts = PartitionSpec("x")
    program = lambda p, x: chosen(p, jnp.sin(x), x)
    divided = jax.shard_map(program, mesh=mesh, axis_names={"x"}, in_specs=parts, out_specs=parts)
    check_refuses(SKIP, divided, "bool[4]", "f32[4,2]", because="XLA may divide")


def test_a_case_of_another_type():
    """(1) Its type is weak, that of the select is not."""
    number = lambda x: lax.broadcast(jnp.exp(2.0), x.shape)
    weak = lambda p, x: (chosen(p, jnp.sin(x), y := number(x)), y)
    check_refuses(SKIP, weak, "bool[3]", "f32[3,2]", because="what is selected a")


def test_two_cases_that_take_as_long():
    """Some row takes one of them."""
    program = lambda p, x: chosen(p, jnp.sin(x), jnp.cos(x))
    with using(CostModel(dataclasses.replace(FREE, unsure=2.0))):
        check_refuses(SKIP, program, "bool[3]", "f32[3,9999]", because="as long")


def test_little_is_not_asked_for():
    """Computing it takes less than asking."""
    program = lambda p, x: chosen(p, jnp.sin(x), x)
    graph = import_jaxpr(traced(program, "bool[3]", "f32[3,2]"), "final")
    with using(CostModel()):
        assert not run_alone((SKIP,), graph).record(SKIP.name, False).rewrites


def test_a_batch_of_environments():
    """A reset that few take is one branch of the compiled program."""

    def rollout(state, xs):
        def reset(state):
            return lax.fori_loop(0, 200, lambda i, s: jnp.sin(s) + 0.1, state)

        def step(state, x):
            state = 0.9 * state + x
            return lax.cond(state[0] > 1, reset, lambda s: s, state), state[0]

        return lax.scan(step, state, xs)

    args = jnp.ones((16, 64)), jax.random.normal(jax.random.key(0), (16, 9, 64))
    plain = jax.vmap(rollout)
    with using(CostModel()):
        ours = optimize(plain).lower(*args).compile()
    assert "conditional" in ours.as_text()
    assert_close(ours(*args), jax.jit(plain)(*args))
