"""A sum with what only one branch makes is made in that branch."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.passes import DEFAULT
from jaxpr_opt.passes.sparse.add_in_branches import AddInBranches
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone

ADD = AddInBranches()
TYPES = "f32[50,50]", "f32[3]"


def looped(step):
    """A loop that carries an array and gets numbers."""
    return lambda c, xs: lax.scan(lambda c, x: (step(c, x), None), c, xs)[0]


def made(c, x):
    """What a branch makes, or zeros."""
    return lax.cond(x > 0, lambda: jnp.sin(x) + jnp.ones_like(c), lambda: jnp.zeros_like(c))


def test_a_sum_with_what_one_branch_makes():
    """(1) The other hands on what it is added to, which is made before the cond (2)."""
    check_rewrite(
        ADD,
        looped(lambda c, x: lax.add(made(c, x), lax.mul(c, x))),
        *TYPES,
        diff="""
            fn (c:f32[50,50], xs:f32[3]) {
              c1:f32[50,50] = scan[3] carry(c=c) xs(x=xs) {
                g:bool[] = gt x 0.0
                c1:i32[] = convert_element_type g
          -     r:f32[50,50] = cond g {
          -       s:f32[] = sin x
          -       b:f32[50,50] = broadcast_in_dim 1.0
          -       a:f32[50,50] = add s b
          -       yield a
          -     } else {
          -       b:f32[50,50] = broadcast_in_dim 0.0
          -       yield b
          -     }
                m:f32[50,50] = mul c x
          -     a:f32[50,50] = add r m
          +     r1:f32[50,50] = cond g {
          +       s:f32[] = sin x
          +       b:f32[50,50] = broadcast_in_dim 1.0
          +       a:f32[50,50] = add s b
          +       a1:f32[50,50] = add a m
          +       yield a1
          +     } else {
          +       b:f32[50,50] = broadcast_in_dim 0.0
          +       yield m
          +     }
          -     yield carry(a)
          +     yield carry(r1)
              }
              return c1
            }
        """,
    )


def of_the_cond(c, x):
    """A sum of two results of one cond, of which one is changed."""
    term, other = lax.cond(x > 0, lambda: (c * x, c), lambda: (jnp.zeros_like(c), c * 3))
    return term + other * 2


def of_one_cond(c, x):
    """A sum of two results of one cond."""
    return lax.add(*lax.cond(x > 0, lambda: (c * x, c), lambda: (jnp.zeros_like(c), c * 3)))


def copied(c, x):
    """What is added to is read after the sum."""
    return jnp.sin(c + made(c, x)) * c


REFUSED = [
    pytest.param(
        lambda c, x: c + (r := made(c, x)) + r, "cond is read elsewhere", id="read elsewhere"
    ),
    pytest.param(of_one_cond, "depends on the cond", id="of one cond"),
    pytest.param(copied, "XLA would copy it", id="copied"),
    pytest.param(of_the_cond, "depends on the cond", id="of the cond"),
    pytest.param(
        lambda c, x: c + lax.cond(x > 0, lambda: c * x, lambda: c * 2), None, id="no zeros"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("step", "because"), REFUSED)
def test_refused(step, because):
    """(1, 2) By the reason that it gives, or not looked at."""
    if because is not None:
        check_refuses(ADD, looped(step), *TYPES, because=because)
    graph = import_jaxpr(traced(looped(step), *TYPES))
    assert not run_alone((ADD,), graph).record(ADD.name, False).rewrites


PIECES = {
    "a row of several": lambda c, x: lax.switch(
        x.astype(int), [lambda k=k: jnp.zeros_like(c).at[k].set(x * k) for k in range(3)]
    ),
    "a row, or all": lambda c, x: lax.cond(
        x > 0, lambda: jnp.zeros_like(c).at[3].add(x), lambda: c * x
    ),
    "padded": lambda c, x: lax.cond(
        x > 0,
        lambda: jnp.pad(c[:2], ((4, 44), (0, 0))),
        lambda: jnp.pad(c[:3], ((0, 47), (0, 0))),
    ),
}


@pytest.mark.parametrize("made", PIECES)
def test_pieces(made):
    """(1) Rows among zeros are added in the branch, too."""
    step = lambda c, x: c + PIECES[made](c, x)
    c, xs = jnp.linspace(-1.0, 1.0, 2500).reshape(50, 50), jnp.array([1.0, -2.0, 2.0])
    graph = alone(ADD, looped(step), c, xs, fires=True)
    assert not any(op.name in SUMS for loop in graph.body.ops for r in loop.regions for op in r.ops)


def test_small_arrays_stay():
    """A step does not notice them."""
    check_refuses(
        ADD, looped(lambda c, x: c + made(c, x)), "f32[8]", "f32[3]", because="f32[8] is small"
    )


def test_a_sum_of_another_type_stays():
    """(2) What it is added to is of a weak type."""
    weak = lambda c, x: lax.add(lax.broadcast(jnp.exp(2.0), c.shape), made(c, x))
    check_refuses(ADD, looped(weak), *TYPES, because="what it is added to")


def test_an_effect_stays_behind_the_cond():
    """(3) What the sum needs cannot move over a barrier."""
    step = lambda c, x: lax.add(made(c, x), lax.optimization_barrier(c * x))
    check_refuses(ADD, looped(step), *TYPES, because="optimization_barrier stays behind the cond")


def test_outside_of_loops():
    """One sum is no matter."""
    graph = import_jaxpr(traced(lambda c, x: c + made(c, x), "f32[50,50]", "f32[]"))
    assert not run_alone((ADD,), graph).record(ADD.name, False).rewrites


@pytest.mark.parametrize("dtype", ["float32", "int32", "complex64", "bfloat16"])
def test_the_same_bits(dtype):
    """Whichever branch is taken, for a NaN, too."""
    c = jnp.arange(2500).reshape(50, 50).astype(dtype)
    xs = jnp.array([1, 0, -1, jnp.nan, jnp.inf])

    def step(c, x):
        with_x = lambda: c * x.astype(dtype)
        return c + lax.switch(
            jnp.int32(x), [with_x, lambda: jnp.zeros_like(c), lambda: -jnp.zeros_like(c)]
        )

    before, after = (import_jaxpr(traced(looped(step), c, xs)) for _ in range(2))
    assert run_alone((ADD,), after).record(ADD.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, c, xs), evaluate_exactly(after, c, xs))


def expert(weights, xs, which):
    """A step of one of three experts, of which the last is two in one."""

    def step(h, x):
        x, e = x
        a, b, c = weights
        both = lambda h: lax.cond(x[0] > 0, lambda: jnp.tanh(c @ h), lambda: jnp.sin(a @ h))
        experts = [lambda h: jnp.tanh(a @ h), lambda h: b @ h, both]
        return 0.5 * h + lax.switch(e, experts, h) + x, None

    return jnp.sum(lax.scan(step, xs[0], (xs, which))[0] ** 2)


def lookups(table, ids, xs):
    """A row of a table under a condition, in a table that is read by all steps, too."""

    def step(h, x):
        i, x = x
        row = lax.cond(x > 0, lambda: jnp.tanh(h + table[i]), lambda: 0.9 * h)
        return row + x, None

    return jnp.sum(lax.scan(step, table[0], (ids, xs))[0] ** 2)


PROGRAMS = {
    "experts": (
        expert,
        lambda key: (
            tuple(jax.random.normal(key, (3, 40, 40)) * 0.1),
            jax.random.normal(key, (9, 40)),
            jnp.arange(9) % 4,
        ),
    ),
    "lookups": (
        lookups,
        lambda key: (
            jax.random.normal(key, (500, 8)),
            jnp.array([1, -1, 499, 600, -700, 1, 1, 3, 3]),
            jax.random.normal(key, (9,)),
        ),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("order", ["around grad", "inside grad"])
def test_gradients(name, order):
    """No branch makes zeros as large as weights or tables."""
    program, arguments = PROGRAMS[name]
    args = arguments(jax.random.key(0))
    plain = jax.grad(program)
    ours = optimize(plain) if order == "around grad" else jax.grad(optimize(program))
    assert_close(ours(*args), plain(*args))
    graph = import_jaxpr(optimized(ours, *args), "final")
    size = jax.tree.leaves(args[0])[0].size
    branches = [branch for op in graph.walk() if isinstance(op, Cond) for branch in op.branches]
    values = (v for branch in branches for op in branch.ops for v in op.results)
    assert branches and not any(v.size == size and uniform(v) == 0 for v in values)


def optimized(function, *args):
    """What is compiled."""
    return Pipeline(DEFAULT).run(jax.make_jaxpr(function)(*args), "final").jaxpr
