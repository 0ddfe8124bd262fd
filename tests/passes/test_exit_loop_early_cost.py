"""A loop stops early only where asking takes less time than the steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import explain
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.ir.graph import While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.testing import check_refuses, traced
from tests.graphs import scans
from tests.loops import alone, compiled, keep
from tests.prices import EAGER
from tests.stopping import stopping

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_loop_that_is_known_to_take_its_last_step(last, reverse):
    """There is nothing to gain; the numbers are those of an array that the program captured."""
    kinds = np.asarray([1, 0, 1, 0, last])

    def program(c, xs):
        def body(c, row):
            kind, x = row
            return lax.cond(kind == 1, lambda: c + x, lambda: c), None

        return lax.scan(body, c, (kinds, xs), reverse=reverse)[0]

    graph = alone(EXIT, program, "f32[3]", "f32[5,3]", fires=not last)
    assert any(isinstance(op, While) for op in graph.body.ops) != last


@pytest.mark.parametrize("ahead", [0, -4])
def test_rows_of_a_mask_of_places(ahead):
    """The last row of a triangle is not empty; of one that lies lower, the first rows are."""

    def loss(x):
        def step(t):
            kept = jnp.arange(9) <= t + ahead
            return jnp.sum(jnp.where(kept, jnp.tanh(x * t), 0.0) ** 2)

        return jnp.sum(lax.map(step, jnp.arange(9)))

    alone(EXIT, loss, "f32[9]", fires=False)
    passes = explain(jax.grad(loss), jnp.ones(9)).passes
    assert EXIT.name not in {each.name for each in passes if each.done}


@pytest.mark.parametrize(("n", "fires"), [(8, True), (9, False)])
def test_a_loop_that_is_known_to_skip_few_steps(n, fires):
    """Fewer than one step of eight saves no time that shows."""

    def program(c, xs):
        body = lambda c, row: (lax.cond(row[0] < n - 1, lambda: c + row[1], lambda: c), None)
        return lax.scan(body, c, (np.arange(n), xs))[0]

    args = "f32[3]", f"f32[{n},3]"
    alone(EXIT, program, *args, fires=fires)
    if not fires:
        check_refuses(EXIT, program, *args, because="it skips 1 of its 9 steps only")


def test_a_step_that_is_cheaper_than_the_question(real_questions):
    graph = alone(EXIT, stopping(), "f32[3]", "f32[]", fires=False)
    assert not any(isinstance(op, While) for op in graph.walk())
    alone(EXIT, stopping(), "f32[9000]", "f32[]", fires=True)


@pytest.mark.parametrize("what", [None, lambda c: c])
@pytest.mark.parametrize(
    ("rows", "length"), [(3, 90), (3, 5), (99_999, 90), (3, 9_000), (3, 70_000)]
)
def test_many_steps_of_few_numbers(real_questions, rows, length, what):
    """Asking costs nothing where XLA compiles the loop as one function, nor while it starts the ops
    of a step one by one, as it does beside large arrays.
    """

    def program(c, table, bound):
        def body(c, _):
            step = lambda c: c + table[0]
            return lax.cond(c < bound, step, keep, c), what and what(c)

        return lax.scan(body, c, None, length=length)

    args = jnp.float32(0), jnp.ones(rows), jnp.float32(20)
    # Only whole numbers are added.
    alone(EXIT, program, *args, fires=length >= 90, evaluate=compiled)


def test_steps_that_are_cheaper_than_all_their_predicates(real_questions):
    """A prefix sum by doubling: each element has a predicate of its own, in every step."""

    def program(x, step=jnp.roll):
        places = jnp.arange(x.shape[0])

        def body(x, s):
            return x + jnp.where(places >= s, step(x, s), 0.0), None

        return lax.scan(body, x, 2 ** jnp.arange(4))[0]

    check_refuses(EXIT, program, "f32[2048]", because="take about as long as its steps")
    wide = lambda x: program(x, lambda x, s: jnp.sin(jnp.outer(x, x)).sum(1))
    alone(EXIT, wide, "f32[300]", fires=True)


@pytest.mark.parametrize("copies", [False, True])
def test_cheap_steps_of_which_some_write(real_questions, copies):
    """A branch hands an array on, or writes to it in place: that is no work where XLA does not copy
    what a branch writes to.
    """

    def program(table, xs):
        def body(carry, x):
            table, s = carry
            written = lambda: table.at[x].set(s + 1)
            return (lax.cond(x % 3 == 0, lambda: table, written), s * 0.5 + 1), None

        return lax.scan(body, (table, 0.0), xs)[0]

    with using(CostModel.of_backend("cpu").but(starts_each=copies)):
        alone(EXIT, program, "f32[3000]", "i32[40]", fires=copies)


@pytest.mark.parametrize(("moved", "fires"), [(1, False), (0, True)])
def test_predicate_that_needs_most_of_a_step(real_questions, moved, fires):
    """It would be computed for all steps before the loop, and again in it, where its branch is."""

    def program(board, lines):
        def body(board, line):
            seen = line
            for _ in range(6 * moved):
                seen = line * seen[::-1]
            turn = lambda board: jnp.sin(board) * line[::-1]
            return lax.cond(jnp.any(seen > 1) if moved else line[0] > 1, turn, keep, board), None

        return lax.scan(body, board, lines)[0]

    args = "f32[4096]", "f32[8,4096]"
    if fires:
        alone(EXIT, program, *args, fires=True)
    else:
        check_refuses(EXIT, program, *args, because="take about as long as its steps")


@pytest.mark.parametrize(("width", "is_worth_it"), [(140, False), (3000, True)])
def test_a_step_that_writes_to_a_large_array_in_place(real_questions, width, is_worth_it):
    """It costs the window."""

    def program(bound, table):
        def step(table, i):
            options = {"axis": 0, "allow_negative_indices": False}
            old = lax.dynamic_index_in_dim(table, i, keepdims=False, **options)
            new = jnp.where(i < bound, jnp.sin(old), old)
            return lax.dynamic_update_index_in_dim(table, new, i, **options), None

        return lax.scan(step, table, jnp.arange(500))[0]

    graph = import_jaxpr(traced(program, "i32[]", f"f32[500,{width}]"), "final")
    (loop,) = scans(graph)
    assert cost_model().is_worth_a_question(loop.body) == is_worth_it
    # XLA starts its ops one by one, as the array is large.
    alone(EXIT, program, "i32[]", f"f32[500,{width}]", fires=True)


@pytest.mark.parametrize(("width", "selects"), [(3, True), (99_999, False)])
def test_what_a_loop_of_few_numbers_selects(real_questions, width, selects):
    """XLA would compute it again for the next predicate: a select costs nothing there."""

    def root(x):
        def step(carry, _):
            x, done = carry
            y = jnp.where(done, x, x - (x**3 - 2) / 9)
            return (y, done | (jnp.abs(y[0] - x[0]) < 1e-2)), None

        return lax.scan(step, (x, False), None, length=90)[0][0]

    graph = alone(EXIT, root, jnp.linspace(1.0, 1.5, width), fires=True)
    asked = [uniform(op.operands[0]) is None for op in graph.walk() if op.name == "select_n"]
    assert any(asked) == selects


@pytest.mark.parametrize("needs_more", [False, True])
def test_an_inner_loop_that_makes_the_predicate(needs_more):
    """A step that moves by what the inner loop has found is not worth asking: it would run once for
    the predicate, and once more for what it has found.
    """

    def program(a, x):
        def step(x, _):
            def tried(i, best):
                y = jnp.tanh(a @ x) * 0.5**i
                value = jnp.sum(y**2)
                return jnp.where(value < best[1], y, best[0]), jnp.minimum(value, best[1])

            y, value = lax.fori_loop(0, 8, tried, (x, jnp.float32(jnp.inf)))
            better = y if needs_more else x * 0.9
            return jnp.where(value < jnp.sum(x**2), better, x), None

        return lax.scan(step, x, length=16)[0]

    arrays = 0.1 * np.ones((64, 64), "f"), np.ones(64, "f")
    alone(EXIT, program, *arrays, fires=not needs_more)
