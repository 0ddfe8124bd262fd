"""What goes on in skipped steps: counters, and what the first skipped step makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from examples import phases
from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone, keep
from tests.prices import EAGER
from tests.stopping import RETURNS, discounted

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def longer(c):
    """What takes most of the time of a step."""
    return jnp.sin(jnp.exp(jnp.cos(jnp.tanh(jnp.sin(jnp.exp(c))))))


def going(step, seen=lambda c, i, n: c[0] < n, **options):
    """A loop that stops for good, or at a known step, while another carry goes on."""

    def program(c, other, n):
        def body(carry, i):
            c, other = carry
            taken = seen(c, i, n)
            return (jnp.where(taken, longer(c), c), step(taken, c, other, i)), None

        return lax.scan(body, (c, other), lax.iota(jnp.int32, 7), **options)[0]

    return program


def test_rows_that_skipped_steps_write():
    """(11) What is known of skipped steps is written by a loop of its own."""

    def program(c, n):
        def body(carry, i):
            c, trace = carry
            go = c[0] < n
            row = jnp.where(go, c[:1], 0.0)
            trace = lax.dynamic_update_slice(trace, row, (i,))
            return (jnp.where(go, jnp.sin(jnp.exp(c)), c), trace), None

        return lax.scan(body, (c, jnp.ones(5)), lax.iota(jnp.int32, 5))[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], n:f32[]) {
            b:f32[5] = broadcast_in_dim 1.0
        -   i:i32[5] = iota
        -   c1:f32[3], c2:f32[5] = scan[5] carry(c=c, c1=b) xs(x=i) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 n
        -     b:f32[1] = broadcast_in_dim 0.0
        -     s2:f32[1] = select_n l b s
        -     d:f32[5] = dynamic_update_slice c1 s2 x
        -     e:f32[3] = exp c
        -     s3:f32[3] = sin e
        -     s4:f32[3] = select_n l c s3
        -     yield carry(s4, d)
        -   }
        +   c3:i32[], c4:f32[3], c5:f32[5] = while carry(c3=0, c4=c, c5=b) {
        +     l1:bool[] = lt c3 5
        +     s:f32[1] = slice[:1] c4
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 n
        +     r:bool[] = reduce_or l
        +     a:bool[] = and l1 r
        +     yield a
        +   } do {
        +     s5:f32[1] = slice[:1] c4
        +     l1:bool[] = lt c3 0
        +     a:i32[] = add c3 5
        +     s6:i32[] = select_n l1 c3 a
        +     d1:f32[5] = dynamic_update_slice c5 s5 s6
        +     e:f32[3] = exp c4
        +     s3:f32[3] = sin e
        +     a1:i32[] = add c3 1
        +     yield carry(a1, s3, d1)
        +   }
        +   c6:i32[], c7:f32[3], c8:f32[5] = while carry(c3=c3, c4=c4, c5=c5) {
        +     l1:bool[] = lt c3 5
        +     yield l1
        +   } do {
        +     l1:bool[] = lt c3 0
        +     a:i32[] = add c3 5
        +     s5:i32[] = select_n l1 c3 a
        +     b:f32[1] = broadcast_in_dim 0.0
        +     d1:f32[5] = dynamic_update_slice c5 b s5
        +     a1:i32[] = add c3 1
        +     yield carry(a1, c4, d1)
        +   }
        -   return c1, c2
        +   return c7, c8
          }
        """,
    )


def test_what_the_first_skipped_step_makes():
    """(12) The others would make the same of the state, and add zero, or NaN, to a sum."""

    def program(c, n):
        def body(carry, _):
            c, total, _ = carry
            alive = c[0] < n
            return (jnp.where(alive, jnp.sin(c), c), total + alive * c, c * 2.0), None

        return lax.scan(body, (c, jnp.zeros(3), c), None, length=5)[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], n:f32[]) {
            b:f32[3] = broadcast_in_dim 0.0
        -   c1:f32[3], c2:f32[3], c3:f32[3] = scan[5] carry(c=c, c1=b, c2=c) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 n
        -     s2:f32[3] = sin c
        -     s3:f32[3] = select_n l c s2
        -     c3:f32[] = convert_element_type l
        -     m:f32[3] = mul c3 c
        -     a:f32[3] = add c1 m
        -     m1:f32[3] = mul c 2.0
        -     yield carry(s3, a, m1)
        -   }
        +   c4:i32[], c5:f32[3], c6:f32[3], c7:f32[3] = while carry(c4=0, c5=c, c6=b, c7=c) {
        +     l1:bool[] = lt c4 5
        +     s:f32[1] = slice[:1] c5
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 n
        +     r:bool[] = reduce_or l
        +     a1:bool[] = and l1 r
        +     yield a1
        +   } do {
        +     s2:f32[3] = sin c5
        +     a1:f32[3] = add c6 c5
        +     m1:f32[3] = mul c5 2.0
        +     a2:i32[] = add c4 1
        +     yield carry(a2, s2, a1, m1)
        +   }
        +   c8:i32[], c9:f32[3], c10:f32[3], c11:f32[3] = while carry(c4=c4, c5=c5, c6=c6, c7=c7) {
        +     l1:bool[] = lt c4 5
        +     yield l1
        +   } do {
        +     m2:f32[3] = mul 0.0 c5
        +     a1:f32[3] = add c6 m2
        +     m3:f32[3] = mul c5 2.0
        +     a2:i32[] = add c4 5
        +     yield carry(a2, c5, a1, m3)
        +   }
        -   return c1, c2, c3
        +   return c9, c10, c11
          }
        """,
    )


def test_factors_in_a_branch(monkeypatch):
    """(13) What a branch computes is not made again after it."""
    weights, state, rates = phases.arguments(256, width=4)
    corrected = jax.vmap(phases.corrected, (None, 0, 0))
    args = weights, jnp.stack([state] * 3), jnp.stack([rates] * 3)
    monkeypatch.setenv("JAXPR_OPT_STRICT", "1")
    optimize(corrected).lower(*args)


def test_what_goes_on_with_the_result_of_a_loop_that_stops_with_it():
    """(7) That result is another one by then: the loops do not stop together."""

    def program(h, asked, g):
        def step(c, p):
            e = jnp.exp(c)
            return jnp.where(p, e, c), e

        last, rows = lax.scan(step, h, asked, reverse=True)
        back = lambda _, row: (lax.cond(row[1], lambda: row[0], lambda: last), None)
        return lax.scan(back, g, (rows, asked), reverse=True)[0]

    with using(EAGER):
        alone(EXIT, program, "f32[3]", "bool[4]", "f32[3]", fires=True)


BY_NUMBER = lambda c, i, n: i < n


@pytest.mark.parametrize("n", [0.4, 2.0])
@pytest.mark.parametrize("seen", [lambda c, i, n: c[0] < n, BY_NUMBER])
@pytest.mark.parametrize("start", [[0.3, -0.0, 2.0], [0.1, np.inf, np.nan]])
@pytest.mark.parametrize(
    "step",
    [
        lambda taken, c, other, i: other + taken * c,
        lambda taken, c, other, i: other - taken * c,
        lambda taken, c, other, i: (other + taken * c) + c * taken,
        lambda taken, c, other, i: other + jnp.sum(taken * c) + (c @ c) * taken,
        lambda taken, c, other, i: jnp.maximum(other, c),
        lambda taken, c, other, i: jnp.where(c > 0, other, c),
        lambda taken, c, other, i: other.at[1].set(c[0]),
        lambda taken, c, other, i: jnp.where(taken, other + i, c),
        lambda taken, c, other, i: other + c,
        lambda taken, c, other, i: other + jnp.cos(c),
        lambda taken, c, other, i: other + jnp.sin(jnp.where(taken, c, i.astype(c.dtype))),
        lambda taken, c, other, i: c - other,
        lambda taken, c, other, i: other + taken * i.astype(jnp.float32),
        lambda taken, c, other, i: other + taken * (c / (i - 6)),
        lambda taken, c, other, i: other - taken * other,
        lambda taken, c, other, i: jnp.where(other > 0, c, -c),
        lambda taken, c, other, i: jnp.where(other > i, other, i + c),
        lambda taken, c, other, i: other.at[i % 3].set(c[0]),
        lambda taken, c, other, i: other.at[1].add(c[0]),
        lambda taken, c, other, i: other.at[1].multiply(c[0]),
        lambda taken, c, other, i: other.at[1].apply(jnp.sin),
        lambda taken, c, other, i: jnp.roll(other, 1),
        lambda taken, c, other, i: jnp.maximum(other, i + c),
    ],
)
def test_what_goes_on(step, start, seen, n):
    """(11, 12) It is what all steps make, whether it settles or not."""
    alone(EXIT, going(step, seen=seen), jnp.float32(start), jnp.ones(3), jnp.float32(n), fires=True)


def test_a_loop_that_goes_on():
    """(12) What a loop of several results makes again may be something else."""

    def step(taken, c, other, i):
        halve = lambda s: (s[0] + 1.0, s[1] * 0.5)
        return lax.while_loop(lambda s: s[0] < i, halve, (0.0 * i, other))[1]

    args = jnp.float32([0.1]), jnp.ones(3), jnp.float32(2)
    alone(EXIT, going(step), *args, fires=False)


def test_integers_of_what_is_no_number():
    """(12) Zero times infinity, as an integer, is not nothing, nor as a truth value."""
    step = lambda taken, c, other, i: other + (taken * c).astype(bool)
    c = jnp.float32([0.1, jnp.inf, -jnp.inf])
    alone(EXIT, going(step, seen=BY_NUMBER), c, jnp.ones(3, jnp.int32), jnp.float32(2), fires=True)


def test_rows_that_another_loop_makes_for_what_goes_on():
    """(10) All of them are read."""

    def program(c, n):
        rows = lax.scan(lambda c, _: (jnp.sin(c), c), c, None, length=7)[1]

        def body(carry, row):
            c, other = carry
            i, x = row
            return (jnp.where(i < n, longer(c), c), other + x), None

        return lax.scan(body, (c, c), (lax.iota(jnp.int32, 7), rows))[0]

    graph = alone(EXIT, program, jnp.float32([0.3, 0.5, 0.7]), jnp.int32(2), fires=True)
    assert any(isinstance(op, Scan) for op in graph.body.ops)


@pytest.mark.parametrize("n", [-1.0, 0.0, 3.0, 6.0, 9.0])
@pytest.mark.parametrize(
    "step",
    [
        lambda taken, c, other, i: other + i,
        lambda taken, c, other, i: jnp.where(taken, jnp.sin(other) + i, 0.5),
        lambda taken, c, other, i: jnp.where(taken, jnp.sin(other), c),
        lambda taken, c, other, i: other.at[i % 3].set(c[0] * i),
    ],
)
def test_steps_before_those_taken_that_change_something(step, n):
    """(11) A loop in reverse begins with them, and counts as far as they reach."""
    for seen in (BY_NUMBER, lambda c, i, n: (i < n) & (i != 2)):
        program = going(step, seen=seen, reverse=True)
        alone(EXIT, program, jnp.float32([0.3, 0.1, 2.0]), jnp.ones(3), jnp.float32(n), fires=True)


def test_rows_that_steps_before_those_taken_make_of_what_changes():
    """(4) Someone reads them."""
    because = "from one skipped step to the"
    program = discounted(start=1.0, otherwise=0.0, what=lambda c, x: jnp.sin(c) * x)
    check_refuses(EXIT, program, *RETURNS, because=because)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "stopping"), [(jnp.zeros_like, 3), (lambda v: 0.5 * v, 3), (jnp.sin, 2)]
)
def test_a_state_that_changes_at_the_end(real_questions, ended, stopping):
    """(7, 11) Its cotangent, which begins with the loss of it, is gone after one step back, or goes
    on, and may need rows of skipped steps: then the loop that makes them does not stop.
    """

    def loss(w, x, n):
        def step(carry, t):
            x, v = carry
            v = jnp.where(t < n, v + jnp.tanh(w @ x), ended(v))
            return (jnp.where(t < n, x + v, x), v), None

        x, v = lax.scan(step, (x, jnp.zeros(64)), jnp.arange(40))[0]
        return jnp.sum(x) + jnp.sum(v)

    w = jnp.asarray(np.random.default_rng(1).normal(size=(64, 64)) / 9, jnp.float32)
    gradient = jax.grad(loss, (0, 1))
    graph, _ = observe.optimized(gradient, (w, jnp.ones(64), jnp.int32(7)), {})
    assert sum(isinstance(op, While) for op in graph.body.ops) == stopping
    for n in (0, 7, 39, 40, 60):
        args = w, jnp.ones(64), jnp.int32(n)
        assert_close(jax.jit(gradient)(*args), jax.jit(optimize(gradient))(*args))


@pytest.mark.parametrize(
    "program",
    [
        going(lambda taken, c, other, i: other + i, seen=lambda c, i, n: c[0] + i < n),
        going(
            lambda taken, c, other, i: jnp.where(taken, other, jnp.sin(other + c)),
            seen=lambda c, i, n: jnp.arange(3) + i < 4,
        ),
    ],
)
def test_steps_that_change_something_before_others(program):
    """(11) Nobody knows which step is the last one taken, or numbers of elements say what a step
    does.
    """
    alone(EXIT, program, "f32[3]", "f32[3]", "f32[]", fires=False)


def test_branches_that_go_on():
    """(11) What a branch computes counts: a second loop that does all of it saves nothing."""

    def program(keys, w):
        def body(c, key):
            place = jnp.where(key < 0, key + 8, key)
            made = lambda: c.at[place].set(jnp.sum(jnp.tanh(w @ w) @ w))
            return lax.cond(c[place] > 0, lambda: c, made), None

        return lax.scan(body, jnp.zeros(8), keys)[0]

    with using(CostModel()):
        alone(EXIT, program, "i32[300]", "f32[64,64]", fires=False)


def test_a_predicate_of_what_goes_on():
    """(11) It may be true again."""

    def program(c, other):
        def body(carry, _):
            c, other = carry
            return (jnp.where(other[0] < 0.5, longer(c), c), jnp.sin(3.0 * other)), None

        return lax.scan(body, (c, other), None, length=7)[0]

    alone(EXIT, program, "f32[3]", "f32[3]", fires=False)


def test_a_step_that_mostly_goes_on(real_questions):
    """(11) What skipped steps compute takes most of the time of a step."""

    def program(c, other, bound):
        def body(s, _):
            c, other = s
            return (lax.cond(c[0] < bound, jnp.sin, keep, c), jnp.sin(jnp.exp(other))), None

        return lax.scan(body, (c, other), None, length=5)[0]

    alone(EXIT, program, "f32[300]", "f32[300]", "f32[]", fires=False)


def test_rows_of_what_goes_on():
    """(4) They differ from step to step."""

    def program(c, n):
        def body(s, i):
            c, other = s
            return (jnp.where(c[0] < n, longer(c), c), other + i), other

        return lax.scan(body, (c, jnp.ones(3)), lax.iota(jnp.float32, 7))

    check_refuses(EXIT, program, "f32[3]", "f32[]", because="from one skipped step to the")


def test_a_predicate_of_carries_and_rows():
    """(2) It may come back to true, and nobody knows when."""

    def program(c, xs, bound):
        body = lambda c, x: (lax.cond(c[0] < x[0], jnp.sin, keep, c), None)
        return lax.scan(body, c, xs)[0]

    check_refuses(
        EXIT, program, "f32[3]", "f32[5,3]", "f32[]", because="mixes carries with streams"
    )
