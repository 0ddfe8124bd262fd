"""What few rows of a batch take is computed only where some row does."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Cond
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
from tests import loops
from tests.prices import FREE

SKIP = SkipUntakenBranches()
CHEAP = CostModel(dataclasses.replace(FREE, unsure=0.0))
"""Asking costs nothing."""
KNOWN = CostModel(dataclasses.replace(FREE, line=64))
"""Nor does a branch, where the steps that take it are known; numbers stay in registers."""


MODEL = CHEAP


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


def every(case, other=lambda c, t: c, steps=7, when=lambda t: t % 3 == 1):
    """A step that takes one case now and then."""

    def program(x):
        def step(c, t):
            return jnp.where(when(t), case(c, t), other(c, t)) * 0.5, c

        return lax.scan(step, x, jnp.arange(steps))

    return program


def test_what_a_step_selects_every_third_time():
    """(1) It is known of the steps that a branch saves; both cases move."""
    with using(KNOWN):
        check_rewrite(
            SKIP,
            every(lambda c, t: jnp.sin(c), lambda c, t: jnp.cos(c)),
            "f32[32]",
            simplify=True,
            diff="""
            fn (x:f32[32]) {
              i:i32[7] = iota
              c:f32[32], ys:f32[7,32] = scan[7] carry(c=x) xs(x=i) {
                r:i32[] = rem x 3
                e:bool[] = eq r 1
          -     s:f32[32] = sin c
          -     c1:f32[32] = cos c
          -     s1:f32[32] = select_n e c1 s
          +     r1:f32[32] = cond e {
          +       s:f32[32] = sin c
          +       yield s
          +     } else {
          +       c1:f32[32] = cos c
          +       yield c1
          +     }
          -     m:f32[32] = mul s1 0.5
          +     m:f32[32] = mul r1 0.5
                yield carry(m) ys(c)
              }
              return c, ys
            }
        """,
        )


def test_a_row_of_what_a_step_has_written_is_read_outside():
    """As one of the carried array."""

    def step(rows, x):
        t, row = x
        rows = lax.dynamic_update_slice(rows, row, (t, 0))
        old = lax.sin(lax.dynamic_slice(rows, (t - 1, 0), (1, 32)))
        row = lax.select(lax.rem(t, 3) == 1, lax.sin(old), row)
        return lax.dynamic_update_slice(rows, row, (t, 0)), None

    def program(rows, new):
        return lax.scan(step, rows, (jnp.arange(7), new))[0]

    with using(KNOWN):
        graph = loops.alone(SKIP, program, "f32[7,32]", "f32[7,1,32]", fires=True)
    reads = [op for op in graph.walk() if op.name == "dynamic_slice"]
    assert [op.parent.name for op in reads] == ["scan"]


def test_a_row_of_a_carried_array_is_read_outside():
    """In a branch it would keep XLA from writing to the array in place."""

    def step(rows, x):
        t, row = x
        row = lax.select(lax.rem(t, 3) == 1, lax.sin(lax.dynamic_slice(rows, (t, 0), (1, 32))), row)
        return lax.dynamic_update_slice(rows, row, (t, 0)), None

    with using(KNOWN):
        check_rewrite(
            SKIP,
            lambda rows, new: lax.scan(step, rows, (jnp.arange(7), new))[0],
            "f32[7,32]",
            "f32[7,1,32]",
            simplify=True,
            diff="""
            fn (rows:f32[7,32], new:f32[7,1,32]) {
              i:i32[7] = iota
              c:f32[7,32] = scan[7] carry(c=rows) xs(x=i, x1=new) {
                r:i32[] = rem x 3
                e:bool[] = eq r 1
                d:f32[1,32] = dynamic_slice c x 0
          -     s:f32[1,32] = sin d
          -     s1:f32[1,32] = select_n e x1 s
          +     r1:f32[1,32] = cond e {
          +       s:f32[1,32] = sin d
          +       yield s
          +     } else {
          +       yield x1
          +     }
          -     d1:f32[7,32] = dynamic_update_slice c s1 x 0
          +     d1:f32[7,32] = dynamic_update_slice c r1 x 0
                yield carry(d1)
              }
              return c
            }
        """,
        )


def counted(x):
    """A counter that starts again, what is always selected is a constant, and so is a number."""

    def step(state, _):
        c, k, last = state
        now = k == 2
        found = jnp.where(now, jnp.sum(jnp.exp(c)), -1.0)
        c = jnp.where(now, jnp.zeros(c.shape), jnp.sin(c) + last)
        return (c, jnp.where(now, 0, k + 1), found), c

    return lax.scan(step, (x, 0, 0.0), length=8)


def both(x):
    """What a branch reads is made in it again, where XLA would have made it there."""

    def step(c, t):
        d = c[:, None] + c * 2
        p = t % 2 == 0
        new = jnp.where(p, jnp.sum(jnp.exp(d), 1), c)
        return new * jnp.max(d, 1), jnp.where(p, jnp.tanh(d), d)

    return lax.scan(step, x, jnp.arange(5))


def within(x):
    """A loop in a case, and a select that another case reads."""

    def step(c, t):
        p = t == 3
        inner = jnp.where(p, lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), c), c)
        return jnp.where(p, jnp.exp(inner), c) * 0.5, t

    return lax.scan(step, x, jnp.arange(5))


KNOWN_STEPS = [
    every(lambda c, t: jnp.exp(c) * t),
    every(lambda c, t: jnp.exp(c), lambda c, t: jnp.zeros(c.shape)),
    every(lambda c, t: jnp.ones(c.shape), lambda c, t: jnp.exp(c)),
    counted,
    both,
    within,
]


@pytest.mark.parametrize("program", KNOWN_STEPS)
@pytest.mark.parametrize(
    "x", [jnp.linspace(-9.0, 9.0, 20), jnp.array([jnp.nan, jnp.inf, -0.0, 1e30] * 5)]
)
def test_the_same_bits_of_known_steps(program, x):
    """(1) Of steps that take the one case, and of those that take the other."""
    before, after = (import_jaxpr(traced(program, x), "final") for _ in range(2))
    with using(KNOWN):
        assert run_alone((SKIP,), after).record(SKIP.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, x), evaluate_exactly(after, x))


def test_a_number_stays_outside():
    """A counter is no result of the branch."""
    graph = import_jaxpr(traced(counted, "f32[64]"), "final")
    with using(KNOWN):
        run_alone((SKIP,), graph)
    (cond,) = (op for op in graph.walk() if isinstance(op, Cond))
    assert all(result.dtype == jnp.float32 for result in cond.results)


def weak_in_known_steps(case):
    number = lambda c: lax.broadcast(jnp.exp(2.0), c.shape)

    def program(x):
        def step(c, t):
            cases = (number(c), jnp.sin(c))
            cases = cases if case else cases[::-1]
            which = jnp.broadcast_to(t % 2 == 0, c.shape)
            return lax.select(which, *cases), None

        return lax.scan(step, x, jnp.arange(4))[0]

    return program


@pytest.mark.parametrize("case", [0, 1])
def test_a_case_of_another_type_in_known_steps(case):
    """(1) Of either case."""
    with using(KNOWN):
        check_refuses(SKIP, weak_in_known_steps(case), "f32[32]", because="what is selected a")


def small(x):
    """A few numbers: asking takes longer."""
    return every(lambda c, t: jnp.sin(c))(x)[0]


def always(x):
    """Most steps take the case that costs."""
    return every(lambda c, t: jnp.sin(c), when=lambda t: t != 3, steps=999)(x)[0]


def told(x):
    """Only the data say which steps take it."""

    def step(c, t):
        return jnp.where(c[0] > t, jnp.sin(c), c) * 0.5, None

    return lax.scan(step, x, jnp.arange(9))[0]


@pytest.mark.parametrize(("program", "size"), [(small, 4), (always, 999), (told, 999)])
def test_a_branch_that_is_not_worth_it(program, size):
    graph = import_jaxpr(traced(program, f"f32[{size}]"), "final")
    with using(CostModel()):
        assert not run_alone((SKIP,), graph).record(SKIP.name, False).rewrites


def test_a_branch_that_is_worth_it():
    graph = import_jaxpr(traced(every(lambda c, t: jnp.exp(jnp.sin(c))), "f32[4096]"), "final")
    with using(CostModel()):
        assert run_alone((SKIP,), graph).record(SKIP.name, False).rewrites


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


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_that_types_divide(axis):
    """(2) Devices would ask each other."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    rows = NamedSharding(mesh, PartitionSpec(axis))
    types = [jax.ShapeDtypeStruct(s, d, sharding=rows) for s, d in (((4,), "bool"), ((4, 2), "f4"))]
    with jax.set_mesh(mesh):
        program = jax.make_jaxpr(lambda p, x: chosen(p, jnp.sin(x), x))(*types)
        record = run_alone((SKIP,), import_jaxpr(program, "final")).record(SKIP.name, False)
    assert bool(record.rewrites) == (axis is None)


def test_a_case_of_another_type():
    """(1) Its type is weak, that of the select is not."""
    number = lambda x: lax.broadcast(jnp.exp(2.0), x.shape)
    weak = lambda p, x: (chosen(p, jnp.sin(x), y := number(x)), y)
    check_refuses(SKIP, weak, "bool[3]", "f32[3,2]", because="what is selected a")


def test_two_cases_that_take_as_long():
    """Some row takes one of them."""
    program = lambda p, x: chosen(p, jnp.sin(x), jnp.cos(x))
    with using(CostModel(dataclasses.replace(FREE, unsure=2.0))):
        check_refuses(
            SKIP, program, "bool[3]", "f32[3,9999]", because="the other case takes as long"
        )


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
