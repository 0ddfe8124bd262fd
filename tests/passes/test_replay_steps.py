"""What the transposed loop reads is stored, or computed again from what a step starts with."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.cost.devices import CPU
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.residuals.replay_segments import ReplaySegments
from jaxpr_opt.passes.residuals.replay_steps import ReplaySteps
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.graphs import scans
from tests.loops import alone, keep, unspecified
from tests.prices import EAGER

REPLAY = ReplaySteps()


def gradient(step, *, length=64, **options):
    """Value and gradient of a loop that stops for good."""

    def program(c, bound, ct):
        def loop(c):
            body = lambda c, _: (lax.cond(c[0] < bound, step, keep, c), None)
            return lax.scan(body, c, None, length=length, **options)[0]

        out, pull = jax.vjp(loop, c)
        return out, pull(ct)[0]

    return program


TYPES = ("f32[3]", "f32[]", "f32[3]")


def test_a_step_is_replayed():
    """The carry is stored instead of the cosine, which is computed where it is read."""
    check_rewrite(
        REPLAY,
        gradient(jnp.sin),
        *TYPES,
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[], ct:f32[3]) {
        -   c1:f32[3], ys:i32[64], ys1:f32[64,3] = scan[64] carry(c=c) {
        +   c1:f32[3], ys1:f32[64,3] = scan[64] carry(c=c) {
              s:f32[1] = slice[:1] c
              s1:f32[] = squeeze s
              l:bool[] = lt s1 bound
        -     c1:i32[] = convert_element_type l
        -     r:f32[3], r1:f32[3] = cond l {
        +     r:f32[3] = cond l {
                s:f32[3] = sin c
        -       c1:f32[3] = cos c
        -       yield s, c1
        +       yield s
              } else {
        -       u:f32[3] = undefined
        -       yield c, u
        +       yield c
              }
        -     yield carry(r) ys(c1, r1)
        +     yield carry(r) ys(c)
            }
        -   c2:f32[3] = scan[64, reverse] carry(c=ct) xs(x=ys, x1=ys1) {
        +   c2:f32[3] = scan[64, reverse] carry(c=ct) xs(x1=ys1) {
        -     n:bool[] = ne x 0
        +     s2:f32[1] = slice[:1] x1
        +     s3:f32[] = squeeze s2
        +     l1:bool[] = lt s3 bound
        -     r:f32[3] = cond n {
        +     r:f32[3] = cond l1 {
        +       c3:f32[3] = cos x1
        -       m:f32[3] = mul c x1
        +       m:f32[3] = mul c c3
                yield m
              } else {
                yield c
              }
              yield carry(r)
            }
            return c1, c2
          }
        """,
    )


def test_a_large_residual_is_replayed():
    """A matrix of the step is made again from a vector."""
    step = lambda c: jnp.tanh(jnp.outer(c, c) @ c)
    graph = alone(REPLAY, gradient(step), *TYPES, fires=True)
    forward = scans(graph)[0]
    assert all(len(stack.result.shape) <= 2 for stack in forward.stacks)


def test_the_way_through_a_nest_of_loops():
    """(1) Rows of rows: the carry is sent the same way."""

    def program(c, bound, ct):
        def body(c, _):
            go = c[0] < bound
            return lax.cond(go, jnp.sin, keep, c), jnp.outer(c, c)

        c, rows = lax.scan(body, c, None, length=64)

        def back(a, row):
            return row @ a, None

        outer = lambda a, rows: (lax.scan(back, a, rows, reverse=True)[0], None)
        return c, lax.scan(outer, ct, rows.reshape(8, 8, 3, 3), reverse=True)[0]

    graph = alone(REPLAY, program, *TYPES, fires=True)
    forward = scans(graph)[0]
    assert all(stack.value.owner is forward.body for stack in forward.stacks)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops(length):
    """They store, and give the same."""
    alone(REPLAY, gradient(jnp.sin, length=length), *TYPES, fires=False)


def residual(taken, skipped):
    """A loop whose steps stack `taken` or `skipped`, and one that adds all rows up."""

    def program(c, bound):
        def body(c, _):
            go = c[0] < bound
            return lax.cond(go, lambda: (c + 1, taken(c)), lambda: (c, skipped(c)))

        c, rows = lax.scan(body, c, None, length=64)
        total = lax.scan(lambda a, row: (a + row, None), jnp.zeros(rows.shape[1:]), rows)[0]
        return c, total

    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taken", "skipped"),
    [
        (lambda c: jnp.outer(c, c), lambda c: jnp.zeros((3, 3))),
        (lambda c: jnp.outer(c, c), lambda c: jnp.ones((3, 3))),
        (lambda c: jnp.outer(c, c), lambda c: jnp.outer(c, c) * 2),
    ],
)
def test_rows_of_skipped_steps_that_are_read(taken, skipped):
    """(3) Somebody adds them up: a step that is taken does not stand for them."""
    for bound in (0.0, 3.0, 99.0):
        alone(REPLAY, residual(taken, skipped), jnp.zeros(3), jnp.float32(bound), fires=True)


def test_a_batch_of_which_some_rows_are_done():
    """(3) A step that is taken is taken by some rows only."""

    def program(c, bounds):
        def body(c, _):
            p = c < bounds
            return jnp.where(p, c + 1, c), jnp.where(p[:, None], jnp.outer(c, c), 0.0)

        c, rows = lax.scan(body, c, None, length=64)
        return c, lax.scan(lambda a, row: (a + row, None), jnp.zeros((3, 3)), rows)[0]

    with using(EAGER):
        alone(REPLAY, program, jnp.zeros(3), jnp.asarray([0.0, 3.0, 9.0]), fires=True)


def test_a_batch_whose_skipped_steps_are_unspecified():
    """(3) Zeros of rows that are done are read in steps that other rows take."""

    def program(c, bounds):
        def body(c, _):
            p = c < bounds

            def step():
                return jnp.where(p, c + 1, c), jnp.where(p[:, None], jnp.outer(c, c) + 1, 0.0)

            return lax.cond(p.any(), step, lambda: (c, unspecified(jnp.outer(c, c))))

        c, rows = lax.scan(body, c, None, length=64)
        return c, lax.scan(lambda a, row: (a + row, None), jnp.zeros((3, 3)), rows)[0]

    alone(REPLAY, program, jnp.zeros(3), jnp.asarray([63.0, 64.0, 9.0]), fires=True)


def added(rows):
    """The sum of all rows, one after the other."""
    return lax.scan(lambda a, row: (a + row, None), jnp.zeros(rows.shape[1:]), rows)[0]


def stacking(read):
    """A loop that stacks more than it carries."""

    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), jnp.outer(c, c))
        c, rows = lax.scan(body, c, None, length=64)
        return c, read(rows)

    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[1:].sum(0),
        lambda rows: added(rows[:32]),
        lambda rows: lax.scan(
            lambda a, r: (a + r[0] * r[1], None), jnp.zeros((3, 3)), (rows, rows[::-1])
        )[0],
        lambda rows: lax.scan(lambda a, _: (a * 0.5, None), rows, None, length=64)[0],
        lambda rows: lax.scan(lambda a, _: (jnp.zeros((64, 3, 3)), added(a)), rows, None, length=2)[
            1
        ],
        lambda rows: added(lax.reshape(rows, rows.shape, (0, 2, 1))),
        lambda rows: added(rows.reshape(3, 3, 64).reshape(64, 3, 3)),
        lambda rows: added(rows.reshape(1, 192, 3, 1).reshape(64, 3, 3)),
    ],
)
def test_residuals_that_are_read_otherwise(read):
    """(1) Whole, shifted, in part, backwards, as the start of a loop, or in another shape."""
    alone(REPLAY, stacking(read), "f32[3]", "f32[]", fires=False)


def test_residuals_that_are_read_row_by_row():
    """(1) Then they are made again."""
    alone(REPLAY, stacking(added), "f32[3]", "f32[]", fires=True)


def test_a_loop_that_does_not_skip():
    """Nothing is replayed."""

    def program(c):
        c, rows = lax.scan(lambda c, _: (jnp.sin(c), jnp.outer(c, c)), c, None, length=64)
        return c, added(rows)

    alone(REPLAY, program, "f32[3]", fires=False)


def test_a_step_that_may_not_end():
    """(2) It is not run again where it may not have run."""

    def taken(c):
        return lax.while_loop(lambda x: x.sum() < 0, lambda x: x + 1, c) * jnp.ones((64, 1))

    program = residual(taken, lambda c: jnp.zeros((64, 3)))
    check_refuses(REPLAY, program, "f32[3]", "f32[]", because="replaying it would repeat")


def test_storing_more_than_before():
    """The loop does not skip, and its carry is larger than what it hands over."""

    def program(c, ct):
        c, rows = lax.scan(lambda c, _: (jnp.sin(c), jnp.cos(c).sum()), c, None, length=64)
        return c, lax.scan(lambda a, row: (a * row, None), ct, rows, reverse=True)[0]

    alone(REPLAY, program, "f32[300]", "f32[]", fires=False)


def test_a_step_that_is_dear_is_not_replayed():
    """Few rows of a small result of much work are stored."""

    def step(c):
        for _ in range(4):
            c = jnp.tanh(jnp.full((64, 64), 0.01) @ c)
        return c

    def program(c, bound, ct):
        def body(c, _):
            return lax.cond(c[0] < bound, lambda: (step(c), jnp.cos(step(c))), lambda: (c, c))

        c, rows = lax.scan(body, c, None, length=4)
        return c, lax.scan(lambda a, row: (a * row, None), ct, rows, reverse=True)[0]

    alone(REPLAY, program, "f32[64]", "f32[]", "f32[64]", fires=False)


@pytest.mark.parametrize(("draws", "fires"), [(False, True), (True, False)])
def test_a_step_that_draws_random_numbers(draws, fires):
    """Drawing takes many times as long as the step back, to which nothing of it is transposed."""

    def program(c, xs, bound, ct):
        def body(c, row):
            i, x = row
            key = jax.random.fold_in(jax.random.key(0), i)
            z = jax.random.normal(key, (512,)) if draws else x
            return lax.cond(c[0] < bound, lambda: jnp.sin(c + z) * jnp.exp(-c), lambda: c), None

        rows = jnp.arange(64), xs
        out, pull = jax.vjp(lambda c: lax.scan(body, c, rows)[0], c)
        return out, pull(ct)[0]

    types = ("f32[512]", "f32[64,512]", "f32[]", "f32[512]")
    alone(REPLAY, program, *types, fires=fires)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "by"), [(64, None), (4096, ReplaySegments())])
def test_steps_too_cheap_to_stop_for(width, by):
    """Skipped steps are selected away, so all of them are computed: replayed, all would be twice.
    Where steps are dearer the loops stop, and segments of them are replayed.
    """

    def program(c, bound, ct):
        body = lambda c, _: (jnp.where(c[0] < bound, jnp.sin(jnp.sin(c)), c), None)
        out, pull = jax.vjp(lambda c: lax.scan(body, c, None, length=64)[0], c)
        return out, pull(ct)[0]

    for each in (REPLAY, ReplaySegments()):
        alone(each, program, f"f32[{width}]", "f32[]", f"f32[{width}]", fires=each == by)


def leaving(c, xs, ct):
    """Gradient of paths that end where they leave a region: when depends on what is rounded."""

    def body(state, x):
        c, out = state
        new = jnp.exp(0.1 * x) * c
        out = out | (new > 1)
        return (jnp.where(out, c, new), out), None

    start = jnp.zeros(c.shape, bool)
    last, pull = jax.vjp(lambda c: lax.scan(body, (c, start), xs)[0][0], c)
    return last, pull(ct)[0]


def test_predicates_that_may_be_rounded_otherwise():
    """(4) They are stored: no step that is transposed compares again."""
    with using(EAGER):
        graph = alone(REPLAY, leaving, "f32[64]", "f32[64,64]", "f32[64]", fires=True)
    forward, back = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [s.value.op.name for s in forward.stacks if s.value.dtype == bool] == ["or"]
    names = {op.name for op in back.walk()}
    assert "exp" in names and "gt" not in names


def largest(c):
    """The gradient of a maximum asks which of these sums it is."""
    y = c * 0.5 + c * jnp.flip(c)
    return jnp.sin(c) + 0.1 * jnp.max(y)


def test_a_comparison_with_the_maximum():
    """(5) It is stored: a sum that was the largest may be none of those that are made again."""
    with using(EAGER):
        graph = alone(REPLAY, gradient(largest), "f32[64]", "f32[]", "f32[64]", fires=True)
    _, back = (op for op in graph.body.ops if isinstance(op, Scan))
    names = {op.name for op in back.walk()}
    assert "cos" in names and not names & {"eq", "reduce_max"}


@pytest.mark.parametrize(
    ("bound", "fires"),
    [
        pytest.param(jnp.max, False, id="its own maximum"),
        pytest.param(lambda y: jnp.float32(1), True, id="a number"),
    ],
)
def test_rows_that_the_loop_back_compares(bound, fires):
    """(5) Both stay stored."""

    def program(c, limit, ct):
        def body(c, _):
            def step():
                y = c * 0.5 + c * jnp.flip(c)
                return jnp.sin(y), (y, bound(y), True)

            def skip():
                return c, (unspecified(c), unspecified(c[0]), False)

            return lax.cond(c[0] < limit, step, skip)

        def back(g, row):
            y, most, taken = row
            return lax.cond(taken, lambda: jnp.where(y == most, g, 0.0), lambda: g), None

        out, rows = lax.scan(body, c, None, length=64)
        return out, lax.scan(back, ct, rows, reverse=True)[0]

    with using(EAGER):
        alone(REPLAY, program, "f32[64]", "f32[]", "f32[64]", fires=fires)


def moving(function, move, *, until):
    """Gradient of steps whose elements are computed from others."""

    def program(c, bound, ct):
        def body(c, t):
            return jnp.where(until(c, t) < bound, move(function(c)), c), None

        out, pull = jax.vjp(lambda c: lax.scan(body, c, jnp.arange(64))[0], c)
        return out, pull(ct)[0]

    return program


def known(c, t):
    """Whether a step is taken is known before the loop."""
    return t


def found(c, t):
    """Whether a step is taken depends on what earlier ones computed."""
    return c[0].astype(jnp.int32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "move", "until", "by"),
    [
        (jnp.sin, lambda x: jnp.roll(x, 1) + x, known, None),
        (jnp.exp, lambda x: jnp.pad(x[1:], (0, 1)) + x, known, None),
        (jnp.sin, lambda x: jnp.roll(x, 1) + x, found, ReplaySegments()),
        (jnp.sin, lambda x: 2 * x, known, REPLAY),
        (lambda x: x * x, lambda x: jnp.roll(x, 1) + x, known, REPLAY),
    ],
)
def test_what_is_read_beside_itself(function, move, until, by):
    """XLA would compute a function once for each place, in steps that most loops take."""
    program = moving(lambda c: function(c) * function(2 * c), move, until=until)
    with using(EAGER):
        for each in (REPLAY, ReplaySegments()):
            alone(each, program, "f32[512]", "i32[]", "f32[512]", fires=each == by)


def in_a_batch(until):
    """Gradient of steps, each of which some rows of a batch take."""

    def program(c, bounds, ct):
        def body(c, t):
            taken = until(c, t) < bounds
            new = jnp.tanh(jnp.tanh(c @ jnp.full((64, 64), 0.1)) @ jnp.full((64, 64), 0.1))
            return jnp.where(taken[:, None], jnp.sin(new * c), c), None

        out, pull = jax.vjp(lambda c: lax.scan(body, c, jnp.arange(256))[0], c)
        return out, pull(ct)[0]

    return program


BATCH = "f32[4,64]", "i32[4]", "f32[4,64]"
KNOWN = lambda c, t: jnp.full(4, t)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("until", "fires"), [(KNOWN, False), (lambda c, t: c[:, 0].astype(jnp.int32), True)]
)
def test_steps_that_are_known_beforehand(until, fires):
    """Nobody fills rows after the last step, so a step stores if that takes no longer."""
    alone(REPLAY, in_a_batch(until), *BATCH, fires=fires)


@pytest.mark.slow
def test_memory_that_has_a_price():
    """Where memory is short, steps are replayed all the same."""
    with using(cost_model().at(1e-9)):
        alone(REPLAY, in_a_batch(KNOWN), *BATCH, fires=True)


ROW = CostModel(dataclasses.replace(CPU, step=0.0, cached=1e-9, memory=2e-9, flop=0.0))
"""Storing four rows of the residuals below takes about as long as computing one again."""


def stopping(*, reverse=False, streams=0, stacks=False):
    """Gradient of a loop that stops for good, whose steps hand over a matrix."""

    def program(c, bound, w, ct):
        def step(c):
            return jnp.tanh(jnp.tanh(w * jnp.outer(c, c)) @ c).at[0].set(c[0] + 1)

        def body(c, x):
            rows = jnp.outer(c, c) if stacks else None
            return lax.cond(c[0] < bound, lambda c: step(c + x.sum()), keep, c), rows

        def run(c, w):
            return lax.scan(body, c, jnp.tile(c, (16, streams)), reverse=reverse)

        (_, rows), pull, _ = jax.vjp(lambda *a: (run(*a), 0), c, w, has_aux=True)
        return rows, pull((ct, jax.tree.map(jnp.ones_like, rows)))

    return program


ARGUMENTS = (jnp.linspace(-1, 1, 8), jnp.float32(0.5), jnp.linspace(0.1, 1, 8), jnp.ones(8))


def lengths(graph):
    """Those of the loops of a program, in order."""
    return [op.length for op in graph.body.ops if isinstance(op, Scan)]


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"streams": 1}])
@pytest.mark.parametrize("steps", [0, 2, 9, 16])
def test_the_first_steps_store(steps, options):
    """No step is replayed until more are taken; rows of streams are divided."""
    c, _, *others = ARGUMENTS
    with using(ROW):
        program, bound = stopping(**options), jnp.float32(steps - 1)
        graph = alone(REPLAY, program, c, bound, *others, fires=True)
    first, rest, *back = (op for op in graph.body.ops if isinstance(op, Scan))
    assert 1 < first.length < 9 and first.length + rest.length == 16
    assert [loop.length for loop in back] == [rest.length, first.length]
    stored, kept = (max(s.value.nbytes for s in loop.stacks) for loop in (first, rest))
    assert stored == 256 and kept < 256


@pytest.mark.parametrize("options", [{"streams": 64}, {"stacks": True}])
def test_rows_that_would_be_copied(options):
    """To divide what a loop reads, or join what two stack, takes longer than what it saves."""
    with using(ROW):
        graph = alone(REPLAY, stopping(**options), *ARGUMENTS, fires=True)
    assert lengths(graph) == [16, 16]


def test_loops_that_take_longer_than_what_they_save():
    with using(ROW.but(step=1e-6)):
        graph = alone(REPLAY, stopping(), *ARGUMENTS, fires=True)
    assert lengths(graph) == [16, 16]


def test_rows_that_may_be_divided_over_devices():
    """To take the first of them may have to ask other devices."""
    graph = import_jaxpr(traced(stopping(), *ARGUMENTS))
    graph.divided = True
    with using(ROW):
        run_alone((REPLAY,), graph)
    assert lengths(graph) == [16, 16]


@pytest.mark.parametrize(("memory", "loops"), [(1e-9, 4), (0.25e-9, 2)])
def test_a_loop_is_split_once(memory, loops):
    """The first steps go on storing; so do all, if that takes no longer than a replay."""
    graph = import_jaxpr(traced(stopping(), *ARGUMENTS))
    with using(ROW.but(memory=memory)):
        run_alone((REPLAY,), graph)
    assert len(lengths(graph)) == loops
    (forward, *_) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert max(s.value.nbytes for s in forward.stacks) == 256


def test_cheap_steps_that_test_many_numbers():
    """Cost: all of them would be replayed, 1.6 times the time of plain JAX."""

    def program(x):
        masked = lambda x, _: (jnp.where(x < 2.5, x + 0.1 * jnp.tanh(x), x), None)
        return jnp.sum(lax.scan(masked, x, None, length=64)[0])

    because = "steps are too cheap to skip"
    check_refuses(REPLAY, jax.grad(program), "f32[16384]", because=because)
