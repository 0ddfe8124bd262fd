"""A batch stops when all its rows have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.builders.steps.any_row import any_true
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_rewrite
from tests.loops import alone, compiled, there_and_back
from tests.prices import EAGER, FREE, Eager

EXIT = ExitLoopEarly()


class Along(Eager):
    """A predicate takes longer than handing it on."""

    __slots__ = ()

    def is_worth_carrying(self, value, ops, times):
        return True


MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def test_a_batch_stops_when_every_row_is_done():
    """(1) The predicate is false everywhere."""

    def program(c, bounds):
        body = lambda c, _: (jnp.where(c < bounds, c + 1, c), c)
        return lax.scan(body, c, None, length=5)

    for bounds in ([0.0, 0.0, 0.0], [1.0, 4.0, 2.0], [9.0, 0.0, 0.0]):
        alone(EXIT, program, jnp.zeros(3), jnp.asarray(bounds), fires=True)


def test_a_batch_of_nothing():
    """``all`` of an empty predicate is true: the step is taken, every time."""

    def program(c, h):
        def body(carry, _):
            c, h = carry
            p = c < 1
            return (jnp.where(p, c + 1, c), jnp.where(jnp.all(p), h + 1, h)), None

        return lax.scan(body, (c, h), None, length=5)[0]

    alone(EXIT, program, jnp.zeros(0), jnp.zeros(3), fires=False)


@pytest.mark.parametrize("size", [1, 31, 64, 65, 127, 1000, 2049])
def test_halves_of_a_predicate_hold_each_of_its_elements(size):
    asked = jax.jit(any_true)
    none = np.zeros(size, bool)
    assert not asked(none)
    for place in {0, size // 3, size // 2, (size - 1) // 2, size - 1}:
        assert asked(np.arange(size) == place)


def test_a_large_batch_is_asked_by_halves():
    """XLA:CPU reduces truth values one by one, but combines arrays of them in vectors."""
    program = masked_walk()
    batch = jnp.linspace(0.0, 2.0, 100)
    graph, _ = observe.optimized(program, (batch,), {})
    (loop,) = (op for op in graph.walk() if isinstance(op, While))
    (asked,) = (op for op in loop.predicate.ops if op.name == "reduce_or")
    assert asked.operands[0].shape == (25,)
    np.testing.assert_array_equal(optimize(program)(batch), jax.jit(program)(batch))


def masked_walk():
    def step(c, _):
        x, on = c
        x = jnp.where(on, x + jnp.tanh(jnp.sin(x)) ** 2, x)
        return (x, on & (x < 2.5)), None

    return lambda x: lax.scan(step, (x, jnp.ones(x.shape, bool)), None, length=64)[0][0]


def leaving(what=lambda p, z: None, **options):
    """Steps until each point has left; `what` is stacked."""

    def program(z, c):
        def step(z, x):
            p = jnp.abs(z) <= 2
            return jnp.where(p, z * z + c + x, z), what(p, z)

        return lax.scan(step, z, jnp.zeros(6), **options)

    return program


def test_the_predicate_of_a_batch_is_handed_on():
    """Each step computes that of the next; the question and the step read it."""
    with using(Along(FREE)):
        check_rewrite(
            EXIT,
            lambda z, c: leaving()(z, c)[0],
            jnp.zeros(3),
            jnp.array([0.1, 1.0, 3.0]),
            diff="""
              fn (z:f32[3], c:f32[3]) {
                b:f32[6] = broadcast_in_dim 0.0
            -   c1:f32[3] = scan[6] carry(c1=z) xs(x=b) {
            -     a:f32[3] = abs c1
            -     l:bool[3] = le a 2.0
            -     m:f32[3] = mul c1 c1
            -     a1:f32[3] = add m c
            -     a2:f32[3] = add a1 x
            -     s:f32[3] = select_n l c1 a2
            -     yield carry(s)
            -   }
            +   s1:i32[] = sub 6 6
            +   a3:f32[3] = abs z
            +   l1:bool[3] = le a3 2.0
            +   c2:i32[], c3:f32[3], c4:bool[3] = while carry(c2=s1, z1=z, c3=l1) {
            +     l1:bool[] = lt c2 6
            +     e:bool[3] = eq c3 True
            +     r:bool[] = reduce_or[axes=(0,)] e
            +     a3:bool[] = and l1 r
            +     yield a3
            +   } do {
            +     d:f32[1] = dynamic_slice b c2
            +     s1:f32[] = squeeze d
            +     a:f32[3] = abs z1
            +     l:bool[3] = le a 2.0
            +     m:f32[3] = mul z1 z1
            +     a1:f32[3] = add m c
            +     a3:f32[3] = add a1 s1
            +     s2:f32[3] = select_n c3 z1 a3
            +     a4:i32[] = add c2 1
            +     a5:f32[3] = abs s2
            +     l1:bool[3] = le a5 2.0
            +     yield carry(a4, s2, l1)
            +   }
            -   return c1
            +   return c3
              }
            """,
        )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "what",
    [
        lambda p, z: (p, z),
        lambda p, z: ~p,
        lambda p, z: p.astype(jnp.float32) * z,
        lambda p, z: jnp.where(p, z, 7),
        lambda p, z: jnp.abs(z) + jnp.any(p),
    ],
)
def test_what_a_batch_stacks_that_hands_on_its_predicate(what, reverse):
    """(4) Rows of skipped steps are made of a predicate that is false."""
    for c in ([0.1, 1.0, 3.0], [9.0, 9.0, 9.0], [0.0, 0.0, 0.0], [jnp.nan, 1.0, 2.0]):
        with using(Along(FREE)):
            program = leaving(what, reverse=reverse)
            alone(EXIT, program, jnp.zeros(3), jnp.array(c), fires=True)


def test_only_a_predicate_that_takes_long_is_handed_on():
    """To compare numbers again takes no longer than moving truth values; an absolute value of
    complex numbers does.
    """

    def carried(program, *args):
        with using(CostModel().but(tested=0.0)):
            (loop,) = (op for op in alone(EXIT, program, *args, fires=True).walk() if is_while(op))
        return [carry.param.dtype for carry in loop.carries].count(np.dtype(bool))

    is_while = lambda op: isinstance(op, While)
    program = lambda z, c: leaving()(z, c)[0]
    c = jnp.linspace(0.1, 3.0, 20_000)
    assert carried(program, jnp.zeros(c.shape), c) == 0
    assert carried(program, jnp.zeros(c.shape, jnp.complex64), c + 0j) == 1


@pytest.mark.parametrize(
    ("step", "every"),
    [
        (lambda x: x + 0.01 * x, None),
        (lambda x: x + 0.01 * jnp.tanh(x), 16),
        (lambda x: x + 0.01 * jnp.log1p(jnp.exp(x) + jnp.sin(x)), 8),
        (lambda x: x + jnp.ones((1000, 1000)) @ x, 1),
    ],
)
def test_elements_of_a_predicate_take_time(step, every, real_questions):
    """Cost: 1.2 to 2.3 times the time of plain JAX, if cheap steps are all asked, and taken."""

    def program(x):
        masked = lambda x, _: (jnp.where(x < 2.5, step(x), x), None)
        return lax.scan(masked, x, None, length=32)[0]

    graph = alone(EXIT, program, jnp.linspace(-3, 3, 1000), fires=every is not None)
    loops = [op for op in graph.walk() if isinstance(op, While)]
    inner = [[op.length for op in loop.body.ops if isinstance(op, Scan)] for loop in loops]
    assert inner == {None: [], 1: [[]]}.get(every, [[every]])


def by_steps(graph):
    """The steps that each loop runs before it asks, 1 if it asks before each."""
    loops = [op for op in graph.walk() if isinstance(op, While)]
    inner = ([op.length for op in loop.body.ops if isinstance(op, Scan)] for loop in loops)
    return [each[0] if each else 1 for each in inner]


@pytest.mark.parametrize(("rows", "length", "every"), [
    (24, 2048, 16), (24, 2000, 16), (24, 30, 15), (24, 2039, None), (24, 4, None), (2, 400, 10),
    (400, 400, 10),
])  # fmt: skip
def test_a_batch_of_cheap_steps_is_asked_after_several(rows, length, every, real_questions):
    """Cost: 1.01 times the time of plain JAX if all are taken."""

    def program(x, bound):
        def step(c, _):
            x, done = c
            y = 0.35 * jnp.tanh(x) + 0.5
            return (jnp.where(done, x, y), done | (jnp.abs(y - x) < bound)), None

        return lax.scan(step, (x, jnp.zeros(x.shape, bool)), None, length=length)[0][0]

    for bound in (1e-3, 9.0, -1.0):
        args = jnp.linspace(-3.0, 3.0, rows), jnp.float32(bound)
        graph = alone(EXIT, program, *args, fires=every is not None, evaluate=compiled)
    assert by_steps(graph) == ([] if every is None else [every])


def test_the_steps_between_two_questions_are_not_asked(real_questions):
    """A part of the predicate would be asked in less time than all of it."""

    def march(t, most):
        def step(t, _):
            far = jnp.sqrt(t * t + 1) - 1.1
            return jnp.where((far > 1e-3) & (t < most), t + far, t), None

        return lax.scan(step, t, None, length=2048)[0]

    args = jnp.linspace(0.5, 3.0, 24), jnp.float32(20)
    graph = observe.optimized(march, args, {})[0]
    assert [isinstance(op, While) for op in graph.walk() if op.regions] == [True, False]


def test_a_loop_inside_of_another_that_asks(real_questions):
    """Its steps are counted anew in each step of the outer one."""

    def program(x, bound):
        def step(c, _):
            x, done, n = c
            y = 0.35 * jnp.tanh(x) + 0.5
            return (jnp.where(done, x, y), done | (jnp.abs(y - x) < bound), n + 1), None

        def solve(x):
            begun = x, jnp.zeros(x.shape, bool), 0
            return lax.scan(step, begun, None, length=2048)[0][0]

        return lax.while_loop(lambda x: jnp.max(x) > 1, solve, x)

    graph = alone(EXIT, program, "f32[24]", "f32[]", fires=True, evaluate=compiled)
    assert sorted(by_steps(graph)) == [1, 16]


@pytest.mark.parametrize("bound", [-1.0, 0.5, 2.5, 99.0])
def test_a_loop_back_runs_the_steps_that_were_counted(bound):
    """(2) Nobody looks at the predicates of all rows."""
    graph = alone(EXIT, there_and_back, jnp.arange(3.0), jnp.float32(bound), fires=True)
    assert [op.name for op in graph.walk() if op.name in ("while", "reduce_max")] == ["while"] * 2


def solved(w, y):
    """Heun's method for a network, with steps that are accepted or not."""

    def step(state, _):
        t, y, width, done = state
        h = jnp.minimum(width, 1 - t)
        slope = lambda y: jnp.tanh(y @ w) @ w.T - 0.1 * y
        a = slope(y)
        b = slope(y + h * a)
        error = lax.stop_gradient(jnp.sqrt(jnp.mean((h * (b - a)) ** 2)))
        is_good = error < 1e-2
        t, y = (jnp.where(is_good, *pair) for pair in ((t + h, t), (y + h * (a + b) / 2, y)))
        width = h * jnp.clip(0.09 / jnp.sqrt(error + 1e-9), 0.2, 5.0)
        new = t, y, width, t >= 1
        return jax.tree.map(lambda x, y: jnp.where(done, x, y), state, new), None

    return jnp.sum(lax.scan(step, (0.0, y, 0.05, False), None, length=256)[0][1] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("above", [False, True])
def test_a_batch_of_solvers_that_reject_steps(above, real_questions):
    """The loop back works in a branch for rows that accept a step. It begins where all are done."""
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.normal(size=s) / 5, jnp.float32) for s in ((32, 64), (8, 16, 32))]
    if above:
        plain = jax.vmap(jax.grad(solved), (None, 0))
        made = optimize(plain)
    else:
        loss = lambda f: lambda w, y: jnp.sum(f(jax.vmap(solved, (None, 0)))(w, y))
        plain, made = jax.grad(loss(lambda f: f)), jax.grad(loss(optimize))
    assert_close(jax.jit(made)(*args), jax.jit(plain)(*args))
    graph, _ = observe.optimized(made, args, {})
    assert not [op for op in graph.walk() if isinstance(op, Scan) and op.length > 32]
