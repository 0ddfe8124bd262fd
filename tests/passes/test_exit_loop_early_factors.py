"""Loops stop where skipped steps multiply by zero, if what they multiply is finite (13)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    assert_same_derivatives,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone, compiled
from tests.prices import EAGER, FREE, Eager

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""
ROWS = jnp.array([[0.5, -1.0], [1.0, 2.0], [0.3, 0.2], [-0.7, 0.1], [2.0, -3.0], [0.1, 0.4]])
TABLE = jnp.linspace(0.0, 1.0, 6)
BAD = (jnp.inf, -jnp.inf, jnp.nan, 3e38)


def adding(make, *, until=2.5):
    """What is made of rows is added as long as the sum is small."""

    def program(x, rows):
        def step(c, row):
            x, alive = c
            x = x + alive.astype(x.dtype) * make(row, x)
            return (x, alive & (jnp.sum(jnp.abs(x)) < until)), None

        return lax.scan(step, (x, jnp.bool_(True)), rows)[0][0]

    return program


def test_sums_of_rows_that_count():
    check_rewrite(
        EXIT,
        adding(lambda row, x: row),
        "f32[2]",
        "f32[6,2]",
        diff="""
          fn (x:f32[2], rows:f32[6,2]) {
        -   c:f32[2], c1:bool[] = scan[6] carry(c=x, c1=True) xs(x=rows) {
        -     c2:f32[] = convert_element_type c1
        -     m:f32[2] = mul c2 x
        -     a:f32[2] = add c m
        -     a1:f32[2] = abs a
        -     r:f32[] = reduce_sum[axes=(0,)] a1
        -     l:bool[] = lt r 2.5
        -     a2:bool[] = and c1 l
        -     yield carry(a, a2)
        -   }
        +   s:i32[] = sub 6 6
        +   c3:i32[], c4:bool[], c5:i32[], c6:f32[2], c7:bool[] = while carry(c3=0, c4=False, c5=s, x1=x, c6=True) {
        +     n:bool[] = not c4
        +     yield n
        +   } do {
        +     c7:i32[], c8:f32[2], c9:bool[] = while carry(c4=c5, x1=x1, c5=c6) {
        +       l1:bool[] = lt c4 c3
        +       l2:bool[] = lt c4 6
        +       e:bool[] = eq c5 True
        +       r1:bool[] = reduce_or e
        +       a3:bool[] = and l2 r1
        +       o:bool[] = or l1 a3
        +       yield o
        +     } do {
        +       d:f32[1,2] = dynamic_slice rows c4 0
        +       s:f32[2] = squeeze d
        +       c6:f32[] = convert_element_type c5
        +       m1:f32[2] = mul c6 s
        +       a3:f32[2] = add x1 m1
        +       a4:f32[2] = abs a3
        +       r1:f32[] = reduce_sum[axes=(0,)] a4
        +       l1:bool[] = lt r1 2.5
        +       a5:bool[] = and c5 l1
        +       a6:i32[] = add c4 1
        +       yield carry(a6, a3, a5)
        +     }
        +     a3:f32[6,2] = abs rows
        +     r1:f32[] = reduce_max[axes=(0, 1)] a3
        +     n:f32[] = neg r1
        +     n1:f32[] = neg n
        +     m1:f32[] = max n1 r1
        +     l1:bool[] = lt m1 inf
        +     g:bool[] = ge c7 6
        +     o:bool[] = or l1 g
        +     yield carry(6, o, c7, c8, c9)
        +   }
        -   return c
        +   return c6
          }
        """,  # noqa: E501
    )


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("bad", BAD)
def test_a_row_that_is_not_finite(bad, place):
    """The loop goes on: what is multiplied by zero is no number in a later step."""
    rows = ROWS.at[place, 1].set(bad)
    for make in (lambda row, x: row, lambda row, x: row * row, lambda row, x: jnp.exp(row)):
        alone(EXIT, adding(make), jnp.zeros(2), rows, fires=True)


MAKES = {
    "products": lambda row, x: jnp.tanh(jnp.outer(row, x) @ row),
    "a softmax": lambda row, x: jax.nn.softmax(row * x),
    "a loss": lambda row, x: jax.nn.log_softmax(500 * row) + jax.nn.logsumexp(-500 * row),
    "logarithms": lambda row, x: jnp.log(1.0 + row * row) + jnp.log1p(jnp.square(row)),
    "a norm": lambda row, x: row * lax.rsqrt(jnp.mean(jnp.square(row)) + 1e-3),
    "a quotient": lambda row, x: row / (1.0 + jnp.abs(x)),
    "a power": lambda row, x: 0.9 ** jnp.abs(row) + row**3 + jnp.maximum(x, 0.1) ** -2,
    "a row of a table": lambda row, x: TABLE.at[jnp.clip(row, 0, 5).astype(int)].get(mode="fill"),
    "cases": lambda row, x: jnp.where(row > x, jnp.floor(row), jnp.clip(x, -1.0, 1.0)),
    "scales": lambda row, x: jnp.log(jax.nn.softplus(row) + 1e-3) / jax.nn.softplus(-row),
    "functions": lambda row, x: jax.nn.gelu(row) + jax.nn.sigmoid(x) * jnp.cos(row) + jnp.sin(x),
    "a cosine": lambda row, x: jnp.cos(row),
    "sorted": lambda row, x: jnp.sort(row)[::-1],
    "sums": lambda row, x: jnp.cumsum(row) + jnp.sum(x) - jnp.concatenate([row[:1], -x[1:]]),
}


def steps_taken(graph, *args):
    """How many steps the loop of a graph takes."""
    (loop,) = (op for op in graph.body.ops if isinstance(op, While))
    Rewriter(graph).set_outputs(graph.body, [loop.results[2]])
    return int(evaluate_exactly(graph, *args)[0])


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_what_is_made_of_rows(make):
    for rows, taken in ((ROWS, 1), (ROWS.at[5].set(jnp.inf), 6), (ROWS.at[4, 0].set(jnp.nan), 6)):
        graph = alone(EXIT, adding(make, until=1e-6), jnp.ones(2), rows, fires=True)
        assert steps_taken(graph, jnp.ones(2), rows) == taken


def test_numbers_that_become_too_large():
    """(13) They are finite in the first step, and would not be in a later one."""
    program = adding(lambda row, x: row * 1e30 * row * 1e6, until=1e-6)
    graph = alone(EXIT, program, jnp.ones(2), ROWS, fires=True)
    assert steps_taken(graph, jnp.ones(2), ROWS) == 1
    graph = alone(EXIT, program, jnp.ones(2), ROWS.at[5, 0].set(30.0), fires=True)
    assert steps_taken(graph, jnp.ones(2), ROWS.at[5, 0].set(30.0)) == 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("large", "taken"), [(1.0, 1), (9.9, 6)])
def test_each_format_has_its_own_numbers(dtype, large, taken):
    with jax.enable_x64(True):
        most = float(jnp.finfo(dtype).max)
        rows = jnp.asarray(np.asarray(ROWS, "float64") * most**0.5 * large / 8, dtype)
        program = adding(lambda row, x: row * row, until=1e-6)
        graph = alone(EXIT, program, jnp.ones(2, dtype), rows, fires=True)
        assert steps_taken(graph, jnp.ones(2, dtype), rows) == taken


def going_on(step):
    """What is added is made of a state that goes on, and of which nothing is read; the sum, and
    whether each step counts.
    """

    def program(state, total, rows):
        def body(c, row):
            state, total, alive = c
            state = step(state, row)
            new = total + alive.astype(total.dtype) * jnp.cos(state) * state
            return (state, new, alive & (jnp.sum(jnp.abs(new)) < 0.5)), alive

        (_, total, _), alive = lax.scan(body, (state, total, jnp.bool_(True)), rows)
        return total, alive

    return program


@pytest.mark.parametrize(
    ("step", "finite"),
    [
        (lambda state, row: state + row, True),
        (lambda state, row: jnp.tanh(state * row), True),
        (lambda state, row: state * 1e8 + row, False),
        (lambda state, row: jnp.exp(state) + row, False),
    ],
)
def test_a_state_that_goes_on(step, finite):
    """(13) Its range goes on with it, to the last step."""
    args = jnp.full(2, 0.3), jnp.zeros(2), jnp.tile(ROWS, (4, 1))[:20]
    count = int(jnp.sum(going_on(step)(*args)[1]))
    graph = alone(EXIT, lambda *args: going_on(step)(*args)[0], *args, fires=True)
    assert count < 20
    assert steps_taken(graph, *args) == (count if finite else 20)


def test_a_number_that_is_added():
    """(13) It is finite, so nothing is to be asked."""

    def program(state, rows):
        def step(c, row):
            state, total, alive = c
            total = total + alive.astype(row.dtype) * 10.0
            return (jnp.sin(state * row), total, alive & (total < 25.0)), None

        return lax.scan(step, (state, jnp.float32(0), jnp.bool_(True)), rows)[0][1]

    graph = alone(EXIT, program, jnp.ones(2), ROWS, fires=True)
    (loop,) = (op for op in graph.walk() if isinstance(op, While))
    assert [c.param.shape for c in loop.carries] == [(), (2,), (), ()]


def test_numbers_of_steps():
    """(13) A counter is a state that goes on."""

    def program(x):
        def step(c, _):
            i, x, alive = c
            x = x + alive.astype(x.dtype) * jnp.sin(0.1 * i)
            return (i + 1, x, alive & (x < 0.5)), None

        return lax.scan(step, (jnp.float32(0), x, jnp.bool_(True)), None, length=30)[0][1]

    graph = alone(EXIT, program, jnp.float32(0.0), fires=True)
    assert steps_taken(graph, jnp.float32(0.0)) == 4


def test_only_rows_of_the_state_are_read():
    """(13) A mask of numbers keeps the state, and nothing reads it after the loop."""

    def program(h, rows, length):
        def step(h, row):
            x, is_taken = row
            m = is_taken.astype(x.dtype)
            h = m * jnp.tanh(h * x) + (1 - m) * h
            return h, h

        return lax.scan(step, h, (rows, jnp.arange(6) < length))[1]

    for rows in (ROWS, ROWS.at[4].set(jnp.inf), ROWS.at[5].set(jnp.nan)):
        alone(EXIT, program, jnp.ones(2), rows, jnp.int32(3), fires=True)


@pytest.mark.parametrize(("gamma", "taken"), [(0.9, 4), (1.0, 4), (1e38, 8), (jnp.nan, 8)])
def test_rows_that_an_argument_discounts(gamma, taken):
    """(4, 13) They are zeros in skipped steps if the discount stays finite to the end."""

    def program(x, gamma):
        def step(c, _):
            x, alive, discount = c
            x = jnp.where(alive, x + 0.5, x)
            row = alive.astype(x.dtype) * discount * x
            return (x, alive & (x < 2.0), discount * gamma), row

        return lax.scan(step, (x, jnp.bool_(True), jnp.float32(1)), None, length=8)[1]

    args = jnp.float32(0), jnp.float32(gamma)
    graph = alone(EXIT, program, *args, fires=True)
    assert steps_taken(graph, *args) == taken


def padded(x, weights, rows, lengths):
    """A batch of sequences, padded to the longest, whose mask is a factor."""
    mask = (jnp.arange(rows.shape[0])[:, None] < lengths).astype(x.dtype)

    def step(x, z):
        row, m = z
        new = jnp.tanh(row + x @ weights)
        x = m[:, None] * new + (1 - m[:, None]) * x
        return x, x

    return lax.scan(step, x, (rows, mask))


@pytest.mark.parametrize("lengths", [[2, 3], [6, 1], [0, 0]])
@pytest.mark.parametrize("bad", [0.0, jnp.inf])
def test_a_batch_that_is_padded(lengths, bad):
    args = jnp.ones((2, 2)), jnp.eye(2), jnp.tile(ROWS[:, None], (1, 2, 1)), jnp.array(lengths)
    args = args[0], args[1], args[2].at[5, 0, 0].set(bad), args[3]
    found, _ = observe.optimized(padded, args, {})
    assert not any(isinstance(op, Scan) for op in found.walk())
    want = evaluate_exactly(traced(padded, *args), *args)
    assert_same_bits(evaluate_exactly(found, *args), want)


def in_reverse(make):
    """A loop over rows from the last to the first, whose mask is a factor."""

    def program(x, rows, mask):
        def step(x, z):
            row, m = z[0], z[1].astype(x.dtype)
            return m * make(row, x) + (1 - m) * x, None

        return lax.scan(step, x, (rows, mask), reverse=True)[0]

    return program


def first_row(graph, *args):
    """The row with which the loop of a graph begins, in reverse."""
    loop = next(op for op in reversed(list(graph.body.ops)) if isinstance(op, While))
    Rewriter(graph).set_outputs(graph.body, [loop.operands[0]])
    return int(evaluate_exactly(graph, *args)[0])


@pytest.mark.parametrize(
    ("place", "bad", "first"),
    [(0, jnp.inf, 5), (1, jnp.nan, 5), (5, -jnp.inf, 5), (4, 3e38, 5), (5, 1.0, 2)],
)
def test_steps_before_the_first_one_taken(place, bad, first):
    """(13) Before the loop it is told whether their factors are finite."""
    mask, rows = jnp.array([True, False, True, False, False, False]), ROWS.at[place, 1].set(bad)
    for make in (lambda row, x: row * x, lambda row, x: jnp.exp(row) + x):
        program = in_reverse(make)
        for x in (jnp.ones(2), jnp.array([bad, 1.0])):
            graph = alone(EXIT, program, x, rows, mask, fires=True)
            assert first_row(graph, x, rows, mask) == first
    alone(EXIT, in_reverse(lambda row, x: row * x), jnp.ones(2), rows, mask & False, fires=True)


@pytest.mark.parametrize(("x", "first"), [(0.5, 2), (jnp.inf, 39), (3e38, 39), (jnp.nan, 39)])
def test_factors_of_the_state_before_the_first_step_taken(x, first):
    """(13) They are the same in all steps before it."""
    program = in_reverse(lambda row, x: jnp.sort(x) * 2.0)
    args = jnp.full(2, x), jnp.ones((40, 2)), jnp.arange(40) < 3
    graph = alone(EXIT, program, *args, fires=True)
    assert first_row(graph, *args) == first


@pytest.mark.parametrize(("bad", "first"), [(1.0, 2), (jnp.inf, 39)])
def test_factors_of_rows_to_which_zeros_are_added(bad, first):
    """(13) They are not the same in all skipped steps, though a carry is all that is read."""
    program = lambda rows, mask: in_reverse(lambda row, x: jnp.exp(row + x))(
        jnp.zeros(2), rows, mask
    )
    args = jnp.ones((40, 2)).at[20, 1].set(bad), jnp.arange(40) < 3
    graph = alone(EXIT, program, *args, fires=True)
    assert first_row(graph, *args) == first


def test_counters_in_reverse():
    """(13) They count from the last row."""

    def program(x, mask):
        def step(c, m):
            i, x = c
            return (i + 1, x + m.astype(x.dtype) * jnp.sin(0.1 * i) * x), None

        return lax.scan(step, (jnp.int32(0), x), mask, reverse=True)[0]

    for m in (jnp.arange(30) < 4, jnp.arange(30) < 0):
        alone(EXIT, program, jnp.ones(2), m, fires=True)


@pytest.mark.parametrize("summed", ["state", "losses"])
def test_both_loops_of_a_gradient(summed):
    """The loop back begins with the last row that counts, the loop forward makes no more."""

    def loss(weights, x, rows, lengths):
        if summed == "state":
            return jnp.sum(padded(x, weights, rows, lengths)[0] ** 2)
        mask = (jnp.arange(rows.shape[0])[:, None] < lengths).astype(x.dtype)

        def step(c, z):
            x, total = c
            row, m = z
            x = jnp.tanh(row + x @ weights)
            return (x, total + jnp.sum(m * jnp.sum(jnp.exp(x), axis=1))), None

        total = lax.scan(step, (x, 0.0), (rows, mask))[0][1]
        return total / jnp.sum(mask)

    rows = jnp.tile(ROWS[:, None], (1, 2, 1))
    args = 0.5 * jnp.eye(2), jnp.ones((2, 2)), rows, jnp.array([2, 4])
    assert_same_derivatives(loss, optimize(loss), *args[:3], *args[3:])
    graph, _ = observe.optimized(jax.grad(loss), args, {})
    loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
    assert not any(isinstance(op, Scan) for op in loops)
    assert_close(evaluate_exactly(graph, *args), [jax.grad(loss)(*args)])


@pytest.mark.parametrize("bad", [0.0, 1e38])
def test_rows_that_another_loop_makes(bad):
    """(10) It makes all of them: this loop may go on to its end."""

    def program(x, rows, mask):
        made = lax.scan(lambda c, row: (c + 1, row * c), jnp.float32(1), rows)[1]
        step = lambda x, z: (x + z[1].astype(x.dtype) * z[0], None)
        return lax.scan(step, x, (made, mask))[0]

    mask = jnp.arange(6) == 2
    graph = alone(EXIT, program, jnp.zeros(2), ROWS.at[5, 0].set(bad), mask, fires=True)
    assert [type(op) for op in graph.body.ops if isinstance(op, Scan | While)] == [Scan, While]


# ---------------------------------------------------------------- factors of what is kept


def refining(make, length=40):
    """What is made of the state is added until it is small."""

    def program(x, w):
        def step(c, _):
            x, alive = c
            change = make(x, w)
            x = x + alive.astype(x.dtype) * change
            return (x, alive & (jnp.sum(jnp.abs(change)) > 0.1)), None

        return lax.scan(step, (x, jnp.bool_(True)), None, length=length)[0][0]

    return program


def test_factors_that_are_the_same_in_all_skipped_steps():
    """(13) They are computed once, of the carries that are kept."""
    check_rewrite(
        EXIT,
        refining(lambda x, w: jnp.sort(w * x)),
        "f32[2]",
        "f32[2]",
        diff="""
          fn (x:f32[2], w:f32[2]) {
        -   c:f32[2], c1:bool[] = scan[40] carry(c=x, c1=True) {
        -     m:f32[2] = mul w c
        -     s:f32[2] = sort[dimension=0] m
        -     c2:f32[] = convert_element_type c1
        -     m1:f32[2] = mul c2 s
        -     a:f32[2] = add c m1
        -     a1:f32[2] = abs s
        -     r:f32[] = reduce_sum[axes=(0,)] a1
        -     g:bool[] = gt r 0.1
        -     a2:bool[] = and c1 g
        -     yield carry(a, a2)
        -   }
        +   s1:i32[] = sub 40 40
        +   c3:i32[], c4:bool[], c5:i32[], c6:f32[2], c7:bool[] = while carry(c3=0, c4=False, c5=s1, x1=x, c6=True) {
        +     n:bool[] = not c4
        +     yield n
        +   } do {
        +     c7:i32[], c8:f32[2], c9:bool[] = while carry(c4=c5, x1=x1, c5=c6) {
        +       l:bool[] = lt c4 c3
        +       l1:bool[] = lt c4 40
        +       e:bool[] = eq c5 True
        +       r1:bool[] = reduce_or e
        +       a3:bool[] = and l1 r1
        +       o:bool[] = or l a3
        +       yield o
        +     } do {
        +       m2:f32[2] = mul w x1
        +       s1:f32[2] = sort[dimension=0] m2
        +       c6:f32[] = convert_element_type c5
        +       m3:f32[2] = mul c6 s1
        +       a3:f32[2] = add x1 m3
        +       a4:f32[2] = abs s1
        +       r1:f32[] = reduce_sum[axes=(0,)] a4
        +       g1:bool[] = gt r1 0.1
        +       a5:bool[] = and c5 g1
        +       a6:i32[] = add c4 1
        +       yield carry(a6, a3, a5)
        +     }
        +     m2:f32[2] = mul w c8
        +     s1:f32[2] = sort[dimension=0] m2
        +     a3:f32[2] = abs s1
        +     l:bool[2] = le a3 8.5070587e+37
        +     r1:bool[] = reduce_and[axes=(0,)] l
        +     g1:bool[] = ge c7 40
        +     o:bool[] = or r1 g1
        +     yield carry(40, o, c7, c8, c9)
        +   }
        -   return c
        +   return c6
          }
        """,  # noqa: E501
    )


CHANGES = {
    "normalised": lambda x, w: w * x / jnp.sqrt(jnp.sum(jnp.square(w * x))) - x,
    "sorted": lambda x, w: 0.5 * (jnp.sort(w) - x),
    "a loop": lambda x, w: lax.fori_loop(0, 3, lambda i, z: 0.5 * (z + w), x) - x,
    "a branch": lambda x, w: lax.cond(x[0] > 0.1, lambda: 0.5 * (w - x), lambda: w),
    "random": lambda x, w: 0.5 * (w + jax.random.normal(jax.random.key(1), (2,)) - x),
    "integers": lambda x, w: (w - x).astype(int).astype(x.dtype),
}


@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_what_is_made_of_the_state(make):
    args = jnp.full(2, 0.5), jnp.array([2.0, 1.0])
    graph = alone(EXIT, refining(make), *args, fires=True)
    assert steps_taken(graph, *args) < 20


@pytest.mark.parametrize(("last", "taken"), [(5.0, 3), (jnp.inf, 9), (jnp.nan, 9), (3e38, 9)])
def test_a_factor_that_is_not_finite_in_skipped_steps_only(last, taken):
    """(13) The loop goes on: they multiply it by zero."""

    def program(x, last):
        def step(c, _):
            x, alive = c
            x = x + alive.astype(x.dtype) * jnp.where(x == 3.0, last, 1.0)
            return (x, alive & (x < 3.0)), None

        return lax.scan(step, (x, jnp.bool_(True)), None, length=9)[0][0]

    args = jnp.float32(0), jnp.float32(last)
    graph = alone(EXIT, program, *args, fires=True)
    assert steps_taken(graph, *args) == taken


def test_a_loop_of_few_steps_of_the_same_factors():
    """(13) Computing them once more would be seen."""
    with using(CostModel()):
        for length, fires in ((3, False), (200, True)):
            program = refining(lambda x, w: jnp.tanh(w @ x), length)
            alone(EXIT, program, "f32[128]", "f32[128,128]", fires=fires)


def test_both_loops_of_the_gradient_of_a_power_iteration():
    program = refining(CHANGES["normalised"])
    args = jnp.full(2, 0.5), jnp.array([2.0, 1.0])
    loss = lambda x, w: jnp.sum(program(x, w))
    graph, _ = observe.optimized(jax.grad(loss, argnums=1), args, {})
    assert not any(isinstance(op, Scan) for op in graph.walk())
    assert_close(evaluate_exactly(graph, *args), [jax.grad(loss, argnums=1)(*args)])


# ---------------------------------------------------------------- what is not asked


@pytest.mark.parametrize(
    ("make", "because"),
    [
        (lambda row, x: lax.erf_inv(row), "it is not known how large"),
        (lambda row, x: lax.while_loop(lambda z: z[0] > 9.0, jnp.sin, row), "not known how large"),
    ],
)
def test_what_may_be_of_any_size(make, because):
    check_refuses(EXIT, adding(make), "f32[2]", "f32[6,2]", because=because)


def test_a_number_that_is_not_finite():
    def program(x, y, rows):
        def step(c, row):
            x, y, alive = c
            m = alive.astype(x.dtype)
            x = x + m * row
            return (x, y + m * jnp.inf, alive & (jnp.sum(x) < 2.0)), None

        return lax.scan(step, (x, y, jnp.bool_(True)), rows)[0][:2]

    check_refuses(EXIT, program, "f32[2]", "f32[]", "f32[6,2]", because="what is not finite")


def test_too_much_that_is_computed(monkeypatch):
    monkeypatch.setattr(limits, "OPS_OF_A_RANGE", 3)
    check_refuses(
        EXIT, adding(MAKES["a norm"]), "f32[2]", "f32[6,2]", because="too much is computed"
    )


def test_complex_numbers_have_no_order():
    program = adding(lambda row, x: row * row)
    alone(EXIT, program, "c64[2]", "c64[6,2]", fires=False)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int4"])
def test_formats_of_few_bits(dtype):
    program = adding(lambda row, x: row.astype(x.dtype) * x)
    rows = jax.ShapeDtypeStruct((6, 2), dtype)
    check_refuses(EXIT, program, "f32[2]", rows, because="it is not known how large")


def test_devices_that_differ():
    """(13) Each would tell by its own numbers."""
    mesh = AbstractMesh((2,), ("i",), axis_types=(AxisType.Auto,))
    parts = {"in_specs": (PartitionSpec(),) * 2, "out_specs": PartitionSpec()}
    each = jax.shard_map(adding(lambda row, x: row), mesh=mesh, check_vma=False, **parts)
    check_refuses(EXIT, each, "f32[2]", "f32[6,2]", because="devices may differ")


def test_devices_that_have_parts():
    """(13) Telling the ranges of arrays that XLA divides is communication."""
    graph = import_jaxpr(traced(adding(lambda row, x: row), "f32[2]", "f32[6,2]"), "final")
    graph.divided = True
    (refusal,) = run_alone((EXIT,), graph).record(EXIT.name, False).refusals
    assert "devices may differ" in refusal.reason


def table_of(rows):
    """What is added to the state of 256 steps is made of a table of so many rows."""

    def program(x, each, table):
        return adding(lambda row, x: jnp.tanh(x @ table[:128]) + row)(x, each)

    return program, ("f32[128,128]", "f32[256,128]", f"f32[{rows},128]")


def test_what_takes_as_long_as_the_steps():
    with using(CostModel()):
        program, types = table_of(128)
        alone(EXIT, program, *types, fires=True)
        program, types = table_of(9_999_999)
        check_refuses(EXIT, program, *types, because="about as long as")


class Slow(Eager):
    """Telling how large factors are takes as long as twenty steps."""

    __slots__ = ()

    def steps_for_ranges(self, scan, arrays):
        return 40


@pytest.mark.parametrize(("until", "taken"), [(1e-6, 1), (40.0, 48)])
def test_few_steps_that_are_left(until, taken):
    """(13) They take no longer than telling how large their factors are, so they are run."""
    program = adding(lambda row, x: jnp.square(row), until=until)
    rows, state = jnp.tile(ROWS, (8, 1)), jnp.zeros(2)
    with using(Slow(FREE)):
        graph = alone(EXIT, program, state, rows, fires=True)
    assert steps_taken(graph, state, rows) == taken
    assert jnp.sum(program(state, rows)) < jnp.sum(jnp.square(rows))  # it ends early


# ---------------------------------------------------------------- how the last step is found


@pytest.mark.parametrize("length", [256, 257])
@pytest.mark.parametrize("taken", [(), (0,), (1, 3), (255,)])
def test_a_long_mask_is_asked_from_its_end(length, taken):
    """An array of the numbers of all its rows would be larger than the mask."""

    def program(c, mask):
        step = lambda c, p: (jnp.where(p, c + 1, c), None)
        return lax.scan(step, c, mask)[0]

    mask = jnp.zeros(length, bool).at[jnp.array(taken, int)].set(True)
    graph = alone(EXIT, program, jnp.ones(3), mask, fires=True, evaluate=compiled)
    assert len([op for op in graph.walk() if isinstance(op, While)]) == length - 255
