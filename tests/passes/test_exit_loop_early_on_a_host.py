"""Where the host decides whether a loop goes on, it asks after several steps."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_rewrite
from tests.loops import alone, keep, there_and_back
from tests.prices import FREE, Eager

EXIT = ExitLoopEarly()


class Host(Eager):
    """Two steps take as long as a question."""

    __slots__ = ()

    @property
    def asks_the_host(self):
        return True

    def steps_a_question(self, body, predicate=None):
        return 2


class Along(Host):
    """A predicate takes longer than handing it on."""

    __slots__ = ()

    def is_worth_carrying(self, value, ops, times):
        return True


MODEL = Host(FREE)


def loops(graph):
    """The loops that stop, and the steps that each runs before it asks again, 1 if it has none."""
    found = [op for op in graph.walk() if isinstance(op, While)]
    inner = ([op for op in loop.body.ops if isinstance(op, Scan)] for loop in found)
    return [each[0].length if each else 1 for each in inner]


def masked(what=lambda p, c: None, step=lambda c, x: c + x, **options):
    """A batch whose rows stop at different steps, and which stacks `what`."""

    def program(c, xs, bound):
        def body(c, x):
            p = c < bound
            return jnp.where(p, step(c, x), c), what(p, c)

        return lax.scan(body, c, xs, **options)

    return program


def first(what=lambda p, c, i: None, **options):
    """A loop that takes its first `n` steps, and which counts all of them."""

    def program(c, xs, n):
        def body(state, row):
            (c, k), (i, x) = state, row
            p = i < n
            return (jnp.where(p, c * 2 + x, c), k + 3), what(p, c, i)

        return lax.scan(body, (c, jnp.int32(0)), (jnp.arange(len(xs)), xs), **options)

    return program


def test_a_loop_that_asks_before_two_steps():
    """(9) They stay as they were, in a loop of their own."""
    check_rewrite(
        EXIT,
        masked(lambda p, c: c),
        jnp.zeros(3),
        jnp.ones((4, 3)),
        jnp.float32(2),
        diff="""
          fn (c:f32[3], xs:f32[4,3], bound:f32[]) {
        -   c1:f32[3], ys:f32[4,3] = scan[4] carry(c=c) xs(x=xs) {
        -     l:bool[3] = lt c bound
        -     a:f32[3] = add c x
        -     s:f32[3] = select_n l c a
        -     yield carry(s) ys(c)
        -   }
        +   s1:i32[] = sub 4 4
        +   u:f32[4,3] = undefined
        +   c2:i32[], c3:f32[3], c4:f32[4,3] = while carry(c2=s1, c3=c, c4=u) {
        +     l1:bool[] = lt c2 4
        +     l:bool[3] = lt c3 bound
        +     e:bool[3] = eq l True
        +     r:bool[] = reduce_or[axes=(0,)] e
        +     a1:bool[] = and l1 r
        +     yield a1
        +   } do {
        +     c5:i32[], c6:f32[3], c7:f32[4,3] = scan[2] carry(c2=c2, c3=c3, c4=c4) {
        +       d:f32[1,3] = dynamic_slice xs c2 0
        +       s1:f32[3] = squeeze d
        +       l1:bool[3] = lt c3 bound
        +       a1:f32[3] = add c3 s1
        +       s2:f32[3] = select_n l1 c3 a1
        +       b:f32[1,3] = broadcast_in_dim c3
        +       d1:f32[4,3] = dynamic_update_slice c4 b c2 0
        +       a2:i32[] = add c2 1
        +       yield carry(a2, s2, d1)
        +     }
        +     yield carry(c5, c6, c7)
        +   }
        +   c5:i32[], c6:f32[4,3] = while carry(c2=c2, c4=c4) {
        +     l1:bool[] = lt c2 4
        +     yield l1
        +   } do {
        +     b:f32[1,3] = broadcast_in_dim c3
        +     d:f32[4,3] = dynamic_update_slice c4 b c2 0
        +     a1:i32[] = add c2 1
        +     yield carry(a1, d)
        +   }
        -   return c1, ys
        +   return c3, c6
          }
        """,
    )


@pytest.mark.parametrize("bound", [-9.0, 1.0, 2.5, 99.0, jnp.nan])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("what", [lambda p, c: c, lambda p, c: p, lambda p, c: jnp.where(p, c, 7)])
def test_steps_until_all_rows_are_done(bound, reverse, what):
    """(9) Rows of skipped steps, of a block that has begun and of those after it."""
    program = masked(what, reverse=reverse)
    for prices in (Host(FREE), Along(FREE)):
        with using(prices):
            args = jnp.zeros(3), jnp.ones((6, 3)), jnp.float32(bound)
            assert 2 in loops(alone(EXIT, program, *args, fires=True))


@pytest.mark.parametrize("n", [-3, 0, 1, 2, 3, 5, 6, 100])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("what", [lambda p, c, i: (c, p), lambda p, c, i: jnp.where(p, c, 7)])
def test_steps_that_are_counted_before_the_loop(n, reverse, what):
    """(9) In reverse the loop starts with the block of the last step taken: so does a counter."""
    program = first(what, reverse=reverse)
    graph = alone(EXIT, program, jnp.zeros(3), jnp.ones((6, 3)), jnp.int32(n), fires=True)
    assert 2 in loops(graph)


@pytest.mark.parametrize(("length", "every"), [(2, None), (3, None), (4, 2), (7, None), (9, 3)])
def test_how_many_steps(length, every):
    """(9) Their number divides that of all, and there are two blocks or more."""
    xs = jnp.ones((length, 3))
    graph = alone(EXIT, masked(), jnp.zeros(3), xs, jnp.float32(2), fires=every is not None)
    assert loops(graph) == ([every] if every else [])


def test_a_step_that_asks_by_a_branch():
    """It asks before each step, as the branch did."""

    def program(c, bound):
        step = lambda c, _: (lax.cond(c[0] < bound, lambda c: c + 1, keep, c), None)
        return lax.scan(step, c, None, length=6)[0]

    graph = alone(EXIT, program, jnp.zeros(3), jnp.float32(2), fires=True)
    assert loops(graph) == [1]


@pytest.mark.parametrize("lengths", [(0, 0, 0), (1, 4, 2), (3, 0, 0), (6, 6, 6)])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_that_a_loop_back_reads(lengths, reverse):
    """(7) It runs the same blocks; rows of later ones are not made."""

    def program(c, lengths):
        def body(c, t):
            p = t < lengths
            return jnp.where(p, c + 1, c), (c, p)

        c, rows = lax.scan(body, c, jnp.arange(6), reverse=reverse)
        back = lambda a, row: (jnp.where(row[1], a * row[0], a), None)
        return lax.scan(back, c, rows, reverse=not reverse)[0]

    args = jnp.zeros(3), jnp.asarray(lengths)
    graph = alone(EXIT, program, *args, fires=True)
    assert loops(graph) == [2, 2]


@pytest.mark.parametrize("bound", [-1.0, 0.5, 1.0, 2.5, 99.0])
def test_a_loop_back_runs_the_blocks_that_were_counted(bound):
    """(2) Nobody looks at the predicates of all rows."""
    graph = alone(EXIT, there_and_back, jnp.arange(3.0), jnp.float32(bound), fires=True)
    assert loops(graph) == [2, 2]
    assert not [op for op in graph.walk() if op.name == "reduce_max"]


def test_rows_that_a_loop_reads_one_by_one_of_a_part():
    """(7) Its blocks are others: what skipped steps stack is made."""

    def program(c, n):
        def body(c, t):
            p = t < n
            return jnp.where(p, c + 1, c), (c, p)

        c, (rows, ps) = lax.scan(body, c, jnp.arange(7)[:6])
        back = lambda a, row: (jnp.where(row[1], a * row[0], a), None)
        return lax.scan(back, c, (rows[1:5], ps[1:5]), reverse=True)[0]

    for n in range(7):
        alone(EXIT, program, jnp.zeros(3), jnp.int32(n), fires=True)


@pytest.mark.parametrize("inside", [True, False])
def test_the_gradient_of_a_ragged_batch_on_a_gpu(inside):
    """With the prices of a GPU, by default."""

    def loss(w, xs, lengths):
        def step(h, row):
            t, x = row
            go = (t < lengths)[:, None]
            h = jnp.where(go, jnp.tanh(h @ w + x), h)
            return h, jnp.where(go, h, 0.0)

        h, ys = lax.scan(step, jnp.zeros((4, 8)), (jnp.arange(len(xs)), xs))
        return (h**2).sum() + jnp.sin(ys).sum()

    args = jnp.eye(8) / 2, jnp.ones((512, 4, 8)), jnp.asarray([2, 30, 1, 0])
    with using(CostModel.of_backend("gpu")):
        gradient = jax.grad(optimize(loss)) if inside else optimize(jax.grad(loss))
        graph, _ = observe.optimized(gradient, args, {})
        assert loops(graph)
        assert all(64 <= every <= 256 for every in loops(graph))
        assert_same(gradient, jax.grad(loss), args, grad=False)


@pytest.mark.parametrize("n", [-1, 0, 1, 4, 5, 8])
def test_masked_losses(n):
    """(8, 9) Steps that are run for nothing change the state, which nobody reads."""

    def loss(w, xs, n):
        def step(state, row):
            (h, total), (t, x) = state, row
            h = jnp.tanh(w @ h + x)
            return (h, total + jnp.where(t < n, jnp.sum(h**2), 0.0)), None

        start = jnp.ones(3), 0.0
        return lax.scan(step, start, (jnp.arange(len(xs)), xs))[0][1]

    graph = alone(EXIT, loss, jnp.eye(3) / 2, jnp.ones((8, 3)), jnp.int32(n), fires=True)
    assert loops(graph) == [2]
