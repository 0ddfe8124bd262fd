"""What a predicate computes is handed on to the step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.steps.rotate_loops import RotateLoops
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

ROTATE = RotateLoops()


@pytest.fixture(autouse=True)
def free_carries(request):
    """Programs here are small."""
    with using(
        CostModel()
        if "as_it_is" in request.fixturenames
        else CostModel().but(noticed=0.0, kernel=0.0)
    ):
        yield


@pytest.fixture
def as_it_is():
    """The pass as users have it."""


def converging(step):
    """`x = step(x)` until it changes little."""

    def program(x, *rest):
        return lax.while_loop(
            lambda x: jnp.max(jnp.abs(step(x, *rest) - x)) > 1e-3, lambda x: step(x, *rest), x
        )

    return program


def test_a_fixpoint():
    """(1) The next carry is what the predicate computed."""
    check_rewrite(
        ROTATE,
        converging(lambda x: jnp.sin(x) * 0.5),
        "f32[3]",
        grad=False,
        diff="""
          fn (x:f32[3]) {
        +   s2:f32[3] = sin x
        +   m1:f32[3] = mul s2 0.5
        -   c:f32[3] = while carry(c=x) {
        +   c:f32[3], c1:f32[3] = while carry(c=x, c1=m1) {
        -     s:f32[3] = sin c
        -     m:f32[3] = mul s 0.5
        -     s1:f32[3] = sub m c
        +     s1:f32[3] = sub c1 c
              a:f32[3] = abs s1
              r:f32[] = reduce_max[axes=(0,)] a
              g:bool[] = gt r 0.001
              yield g
            } do {
        -     s:f32[3] = sin c
        +     s:f32[3] = sin c1
              m:f32[3] = mul s 0.5
        -     yield carry(m)
        +     yield carry(c1, m)
            }
            return c
          }
        """,
    )


def descends(x, a):
    def slope(x):
        return a @ jnp.tanh(x @ a)

    return lax.while_loop(
        lambda s: (jnp.sum(slope(s[0]) ** 2) > 1e-2) & (s[1] < 9),
        lambda s: (s[0] - 0.1 * slope(s[0]), s[1] + 1),
        (x, 0),
    )


def test_a_descent_until_the_slope_is_small():
    check_rewrite(
        ROTATE,
        descends,
        "f32[3]",
        "f32[3,3]",
        grad=False,
        diff="""
          fn (x:f32[3], a:f32[3,3]) {
        +   d2:f32[3] = dot_general x a
        +   t1:f32[3] = tanh d2
        +   d3:f32[3] = dot_general a t1
        -   c:f32[3], c1:i32[] = while carry(c=x, c1=0) {
        +   c:f32[3], c1:i32[], c3:f32[3] = while carry(c=x, c1=0, c3=d3) {
        -     d:f32[3] = dot_general c a
        -     t:f32[3] = tanh d
        -     d1:f32[3] = dot_general a t
        -     i:f32[3] = integer_pow[y=2] d1
        +     i:f32[3] = integer_pow[y=2] c3
              r:f32[] = reduce_sum[axes=(0,)] i
              g:bool[] = gt r 0.01
              l:bool[] = lt c1 9
              c2:bool[] = convert_element_type l
              a1:bool[] = and g c2
              yield a1
            } do {
        -     d:f32[3] = dot_general c a
        -     t:f32[3] = tanh d
        -     d1:f32[3] = dot_general a t
        -     m:f32[3] = mul 0.1 d1
        +     m:f32[3] = mul 0.1 c3
              s:f32[3] = sub c m
              a1:i32[] = add c1 1
        +     d2:f32[3] = dot_general s a
        +     t1:f32[3] = tanh d2
        +     d3:f32[3] = dot_general a t1
        -     yield carry(s, a1)
        +     yield carry(s, a1, d3)
            }
            return c, c1
          }
        """,
    )


def test_a_batch_that_runs_while_any_row_does():
    """JAX asks each row twice."""

    def halves(x):
        return lax.while_loop(lambda x: jnp.sin(x) > 0.5, lambda x: x * 0.5, x)

    check_rewrite(
        ROTATE,
        jax.vmap(halves),
        "f32[4]",
        grad=False,
        diff="""
          fn (x:f32[4]) {
        +   s2:f32[4] = sin x
        +   g1:bool[4] = gt s2 0.5
        -   c:f32[4] = while carry(c=x) {
        +   c:f32[4], c1:bool[4] = while carry(c=x, c1=g1) {
        -     s:f32[4] = sin c
        -     g:bool[4] = gt s 0.5
        -     r:bool[] = reduce_or[axes=(0,)] g
        +     r:bool[] = reduce_or[axes=(0,)] c1
              yield r
            } do {
              m:f32[4] = mul c 0.5
        +     s2:f32[4] = select_n c1 c m
        -     s:f32[4] = sin c
        +     s:f32[4] = sin s2
              g:bool[4] = gt s 0.5
        -     s1:f32[4] = select_n g c m
        -     yield carry(s1)
        +     yield carry(s2, g)
            }
            return c
          }
        """,
    )


def test_a_predicate_that_reads_more_of_it_than_the_step():
    """The step computes the answer, too: `sin` would run twice."""
    check_rewrite(
        ROTATE,
        lambda x: lax.while_loop(
            lambda x: jnp.sum(jnp.tan(jnp.sin(x)) - jnp.sin(x)) > 0.5,
            lambda x: jnp.tan(jnp.sin(x)),
            x,
        ),
        "f32[3]",
        grad=False,
        diff="""
          fn (x:f32[3]) {
        +   s3:f32[3] = sin x
        +   t1:f32[3] = tan s3
        +   s4:f32[3] = sin x
        +   s5:f32[3] = sub t1 s4
        +   r1:f32[] = reduce_sum[axes=(0,)] s5
        +   g1:bool[] = gt r1 0.5
        -   c:f32[3] = while carry(c=x) {
        +   c:f32[3], c1:f32[3], c2:bool[] = while carry(c=x, c1=t1, c2=g1) {
        -     s:f32[3] = sin c
        -     t:f32[3] = tan s
        -     s1:f32[3] = sin c
        -     s2:f32[3] = sub t s1
        -     r:f32[] = reduce_sum[axes=(0,)] s2
        -     g:bool[] = gt r 0.5
        -     yield g
        +     yield c2
            } do {
        -     s:f32[3] = sin c
        +     s:f32[3] = sin c1
              t:f32[3] = tan s
        +     s3:f32[3] = sin c1
        +     s4:f32[3] = sub t s3
        +     r1:f32[] = reduce_sum[axes=(0,)] s4
        +     g1:bool[] = gt r1 0.5
        -     yield carry(t)
        +     yield carry(c1, t, g1)
            }
            return c
          }
        """,
    )


def test_what_is_read_of_it_by_arithmetic_only():
    """A broadcast is made again of what it is made of."""

    def program(x, y):
        def wide(x):
            return jnp.sin(x)[:, None] * jnp.ones(4)

        return lax.while_loop(
            lambda s: jnp.sum(wide(s[0])) > 2.0, lambda s: (s[0] * 0.5, s[1] + wide(s[0])), (x, y)
        )

    check_rewrite(
        ROTATE,
        program,
        "f32[3]",
        "f32[3,4]",
        grad=False,
        diff="""
          fn (x:f32[3], y:f32[3,4]) {
        +   s1:f32[3] = sin x
        -   c:f32[3], c1:f32[3,4] = while carry(c=x, c1=y) {
        +   c:f32[3], c1:f32[3,4], c2:f32[3] = while carry(c=x, c1=y, c2=s1) {
        -     s:f32[3] = sin c
        -     b:f32[3,1] = broadcast_in_dim[dims=(0,)] s
        +     b:f32[3,1] = broadcast_in_dim[dims=(0,)] c2
              b1:f32[4] = broadcast_in_dim 1.0
              b2:f32[1,4] = broadcast_in_dim b1
              m:f32[3,4] = mul b b2
              r:f32[] = reduce_sum[axes=(0, 1)] m
              g:bool[] = gt r 2.0
              yield g
            } do {
              m:f32[3] = mul c 0.5
        -     s:f32[3] = sin c
        -     b:f32[3,1] = broadcast_in_dim[dims=(0,)] s
        +     b:f32[3,1] = broadcast_in_dim[dims=(0,)] c2
              b1:f32[4] = broadcast_in_dim 1.0
              b2:f32[1,4] = broadcast_in_dim b1
              m1:f32[3,4] = mul b b2
              a:f32[3,4] = add c1 m1
        +     s1:f32[3] = sin m
        -     yield carry(m, a)
        +     yield carry(m, a, s1)
            }
            return c, c1
          }
        """,
    )


def test_a_step_that_computes_something_else():
    """(1)"""

    def program(x):
        return lax.while_loop(lambda x: jnp.sum(jnp.sin(x)) > 2.0, lambda x: jnp.cos(x) * x, x)

    alone(ROTATE, program, jnp.ones(4), fires=False)


def test_a_function_of_other_carries():
    """(1)"""

    def program(x, y):
        return lax.while_loop(
            lambda s: jnp.sum(jnp.sin(s[0])) > 2.0, lambda s: (s[0] * 0.5, jnp.sin(s[1])), (x, y)
        )

    alone(ROTATE, program, jnp.ones(4), jnp.ones(4), fires=False)


def test_an_effect():
    """(2)"""

    def program(x):
        def goes(x):
            y = jnp.sin(x)
            jax.debug.print("{}", y[0])
            return jnp.sum(y) > 2.0

        return lax.while_loop(goes, lambda x: 0.5 * jnp.sin(x), x)

    check_refuses(ROTATE, program, "f32[4]", because="the predicate has effects")


def test_while_it_may_be_differentiated():
    """(3) What is carried would be stored in each step."""
    program = lambda x: lax.while_loop(
        lambda x: jnp.sum(jnp.sin(x)) > 2.0, lambda x: 0.5 * jnp.sin(x), x
    )
    alone(ROTATE, program, jnp.ones(4), fires=True)
    alone(ROTATE, program, jnp.ones(4), fires=False, phase="differentiable")


def test_a_predicate_that_costs_nothing(as_it_is):
    check_refuses(ROTATE, converging(jnp.sin), "f32[4]", because="takes as long as computing it")


@pytest.mark.parametrize("batched", [False, True])
def test_loops_of_no_step_and_of_many(as_it_is, batched):
    """The predicate is asked once before the loop, where carries may be no numbers."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(64, 64)) / 16, jnp.float32)
    program = converging(lambda x: jnp.tanh(a @ x + 0.1))
    x = jnp.ones((5, 64)) * jnp.array([0.0, 1.0, jnp.nan, jnp.inf, 1e-4])[:, None]
    if batched:
        program = jax.vmap(program)
    f = jaxpr_opt.optimize(program)
    assert "not again by the step" in str(jaxpr_opt.explain(f, x if batched else x[0]))
    for each in [x] if batched else x:
        assert_close(f(each), jax.jit(program)(each))


def test_orders_of_transformations(as_it_is):
    a = jnp.asarray(np.random.default_rng(0).normal(size=(32, 32)) / 16, jnp.float32)
    program = converging(lambda x, a: jnp.tanh(a @ x + 0.1))
    f = jaxpr_opt.optimize(program)
    x = jnp.linspace(0, 1, 32)
    direction = (jnp.ones(32), a)
    assert_close(jax.jvp(f, (x, a), direction), jax.jvp(program, (x, a), direction))
    rows = jnp.stack([x, x * 2])
    batch = jax.vmap(f, (0, None)), jax.vmap(program, (0, None))
    assert_close(batch[0](rows, a), batch[1](rows, a))
    assert_close(jax.jvp(batch[0], (rows, a), (rows, a)), jax.jvp(batch[1], (rows, a), (rows, a)))


def force(x):
    return jnp.sin(x) * jnp.exp(x)


def leapfrog(x, v):
    def step(c, _):
        x, v = c
        u = v + force(x)
        x = x + u
        return (x, u + force(x)), None

    return lax.scan(step, (x, v), None, length=5)[0]


def test_forces_before_and_after_a_move():
    """(4) A step computes the second ones only."""
    check_rewrite(
        ROTATE,
        leapfrog,
        "f32[3]",
        "f32[3]",
        grad=False,
        diff="""
          fn (x:f32[3], v:f32[3]) {
        +   s2:f32[3] = sin x
        +   e2:f32[3] = exp x
        +   m2:f32[3] = mul s2 e2
        -   c:f32[3], c1:f32[3] = scan[5] carry(c=x, c1=v) {
        +   c:f32[3], c1:f32[3], c2:f32[3] = scan[5] carry(c=x, c1=v, c2=m2) {
        -     s:f32[3] = sin c
        -     e:f32[3] = exp c
        -     m:f32[3] = mul s e
        -     a:f32[3] = add c1 m
        +     a:f32[3] = add c1 c2
              a1:f32[3] = add c a
              s1:f32[3] = sin a1
              e1:f32[3] = exp a1
              m1:f32[3] = mul s1 e1
              a2:f32[3] = add a m1
        -     yield carry(a1, a2)
        +     yield carry(a1, a2, m1)
            }
            return c, c1
          }
        """,
    )


def chosen(is_chosen, density=lambda x: jnp.sum(jnp.cos(x) * jnp.exp(x))):
    """A random walk whose steps may be refused."""

    def program(x, moves):
        def step(c, move):
            x, n = c
            y = x + move
            old = density(x)
            better = is_chosen(density(y) - old, move)
            return (jnp.where(better, y, x), n + 1), old

        return lax.scan(step, (x, 0), moves)

    return program


MOVES = jnp.sin(jnp.arange(24.0)).reshape(8, 3)


def test_a_step_that_may_be_refused():
    """(4) The density of the state is that of the proposal, or the one before."""
    graph = alone(ROTATE, chosen(lambda d, _: d > 0), jnp.ones(3), MOVES, fires=True)
    (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [op.name for op in loop.body.ops].count("exp") == 1
    assert len(loop.carries) == 3


DIFFERENT = {
    "each element by itself": chosen(lambda d, move: move + d > 0),
    "a stream": lambda x, rows: lax.scan(
        lambda x, row: (y := x + row, (f := force(row)) * force(y) - f * force(x)), x, rows
    )[1],
    "what a stream makes": lambda x, rows: lax.scan(
        lambda x, row: (row, force(x * row) + force(row)), x, rows
    )[1],
    "another place": lambda x, rows: lax.scan(
        lambda x, row: (x + row, force(x) + force(x - row)), x, rows
    )[1],
    "what stays": lambda x, rows: lax.scan(lambda y, row: (y + row, force(x) + y), x, rows)[1],
}


@pytest.mark.parametrize("name", [n for n in DIFFERENT if n != "a stream"])
def test_a_step_that_computes_nothing_again(name):
    """(4)"""
    alone(ROTATE, DIFFERENT[name], jnp.ones(3), MOVES, fires=False)


def test_a_row_of_a_stream_is_another_one_in_the_next_step():
    """(4) Its force is computed in each step, that of the state is not."""
    graph = alone(ROTATE, DIFFERENT["a stream"], jnp.ones(3), MOVES, fires=True)
    (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [op.name for op in loop.body.ops].count("exp") == 2


def test_what_steps_before_that_have_computed():
    """(4) The force of two steps ago is that of the step before, in the step before."""

    def program(x, rows):
        def step(c, row):
            x, y = c
            z = x + row
            return (z, x), force(z) + 2 * force(x) + 3 * force(y)

        return lax.scan(step, (x, 2 * x), rows)[1]

    graph = alone(ROTATE, program, jnp.ones(3), MOVES, fires=True)
    (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [op.name for op in loop.body.ops].count("exp") == 1


def test_a_while_whose_steps_compute_again():
    def program(x, v):
        def step(c):
            x, v = c
            u = v + force(x)
            y = x + u
            return y, u + force(y)

        return lax.while_loop(lambda c: jnp.max(c[0]) < 9.0, step, (x, v))

    for start in (0.1, 9.0):
        alone(ROTATE, program, jnp.full(3, start, jnp.float32), jnp.ones(3), fires=True)


def test_a_loop_of_one_step():
    program = lambda x, rows: lax.scan(
        lambda x, row: (y := x + row, force(y) + force(x)), x, rows[:1]
    )
    check_refuses(ROTATE, program, "f32[3]", "f32[8,3]", because="no step comes before another")


def test_a_leapfrog_as_it_is(as_it_is):
    """Small steps, whose forces take as long to carry."""
    check_refuses(ROTATE, leapfrog, "f32[3]", "f32[3]", because="carrying it takes as long")
