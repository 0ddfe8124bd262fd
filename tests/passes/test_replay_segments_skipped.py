"""Loops that may stop early are replayed in segments, each of which is a branch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.ir.graph import Cond, Scan
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.passes.residuals.replay_segments import ReplaySegments
from jaxpr_opt.passes.residuals.replay_steps import ReplaySteps
from tests.loops import alone

SEGMENTS = ReplaySegments()
TYPES = "f32[4096]", "f32[]", "f32[4096]"


def until(p, new=lambda c, w: jnp.sin(jnp.exp(c * w) + c), *, length=256, **options):
    """A loop that goes on as long as `p` holds of its carry, and its gradient."""

    def program(c, bound, w):
        def body(c, x):
            return jnp.where(p(c, x, bound), new(c, w), c), None

        run = lambda c: lax.scan(body, c, jnp.arange(length), **options)[0]
        out, pull = jax.vjp(run, c)
        return out, pull(jnp.cos(out))

    return program


def small(c, x, bound):
    return c[0] < bound


def loops(graph):
    """How long loops are, and whether a branch is all they do."""
    return [
        (op.length, any(isinstance(each, Cond) for each in op.body.ops))
        for op in graph.walk()
        if isinstance(op, Scan)
    ]


def test_segments_are_branches():
    """The first three steps store. The others are 23 segments, which store what they start with: a
    segment whose first step is not taken does nothing, forward and back.
    """
    graph = alone(SEGMENTS, until(small), *TYPES, fires=True)
    steps, segment, segments = (3, False), (11, False), (23, True)
    assert loops(graph) == [steps, segments, segment, segments, segment, segment, steps]
    text = to_text(graph)
    assert "f32[23,4096]" in text
    assert "[253,4096]" not in text


def test_a_loop_back_with_numbers_of_its_own():
    """(5) The first steps that store, and the others, compare rows of some of the row numbers."""

    def program(c, bound, w):
        def step(c, _):
            made = jnp.exp(c * w)
            return jnp.where(c[0] < bound, jnp.sin(made + c), c), made

        def back(a, row):
            number, made = row
            return jnp.where(number < 200, a * made, a), None

        out, rows = lax.scan(step, c, None, length=251)
        numbers = lax.slice(lax.iota(jnp.int32, 512), (3,), (254,))
        return lax.scan(back, out, (numbers, rows), reverse=True)[0]

    graph = alone(SEGMENTS, program, *TYPES, fires=True)
    first, others = (11, False), (15, True)
    assert loops(graph)[:2] == [first, others]


@pytest.mark.slow
def test_single_steps_are_not_replayed():
    """`replay-steps` leaves such a loop to the segments."""
    alone(ReplaySteps(), until(small), *TYPES, fires=False)


@pytest.mark.slow
def test_a_loop_in_reverse():
    """(4) Segments would start with their last row."""
    alone(SEGMENTS, until(small, reverse=True), *TYPES, fires=False)


@pytest.mark.slow
def test_a_predicate_that_may_become_true_again():
    """(4) The first step says nothing of the others."""
    alone(SEGMENTS, until(lambda c, x, bound: x % 3 == 0), *TYPES, fires=False)


@pytest.mark.slow
def test_what_skipped_steps_change():
    """(6) A counter counts in skipped steps, too."""

    def program(c, bound, w):
        def body(state, _):
            c, i = state
            return (jnp.where(c[0] < bound, jnp.sin(jnp.exp(c * w) + c), c), i + 1), None

        (out, i), pull = jax.vjp(lambda c: lax.scan(body, (c, 0), None, length=256)[0], c)
        return out, i, pull((jnp.cos(out), np.zeros((), jax.dtypes.float0)))

    alone(SEGMENTS, program, *TYPES, fires=False)


@pytest.mark.slow
def test_rows_of_skipped_steps():
    """(6) What the loop stacks beside residuals is to be known of a skipped segment."""

    def program(c, bound, w):
        def body(c, _):
            d = jnp.where(c[0] < bound, jnp.sin(jnp.exp(c * w) + c), c)
            return d, d[:8] * 2

        (out, rows), pull = jax.vjp(lambda c: lax.scan(body, c, None, length=256), c)
        return out, rows, pull((jnp.cos(out), rows))

    alone(SEGMENTS, program, *TYPES, fires=False)


def test_short_loops():
    """Few rows are filled in less time than loops take."""
    alone(SEGMENTS, until(small, length=8), *TYPES, fires=False)


def random_loop(seed):
    """A loop with an inner state, weights and rows, of which some are read; how it ends differs."""
    rng = np.random.RandomState(seed)
    length, width = int(rng.choice([37, 64, 100, 211])), int(rng.choice([64, 257, 1024]))
    kind, masked = int(rng.randint(4)), bool(rng.randint(2))

    def loss(c, w, xs, bound):
        def step(state, x):
            c, s, n = state
            new = jnp.sin(c * w + x) + 0.1 * jnp.exp(-c * c)
            return new, s + jnp.sum(new * w), n + 1

        def body(state, x):
            c, s, n = state
            ends = (s < bound, n < bound, jnp.max(c) < bound, (s < bound) & (n < 50))[kind]
            if masked:
                new = jax.tree.map(lambda a, b: jnp.where(ends, a, b), step(state, x), state)
            else:
                new = lax.cond(ends, step, lambda state, x: state, state, x)
            return new, None

        (c, s, _n), _ = lax.scan(body, (c, jnp.float32(0), jnp.float32(0)), xs, length=length)
        return jnp.sum(c * c) + s

    args = [jnp.asarray(a, jnp.float32) for a in (rng.randn(width), rng.rand(width))]
    xs = jnp.asarray(rng.randn(length, width), jnp.float32)
    bound = jnp.float32(rng.choice([-1.0, 0.0, 3.0, 17.0, 1e9]))
    return loss, (*args, xs, bound)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_loops(seed):
    """Both orders give the gradients of plain JAX."""
    loss, args = random_loop(seed)
    with np.errstate(all="ignore"):
        want = jax.jit(jax.grad(loss, (0, 1, 2)))(*args)
        for grad in (
            jax.jit(jax.grad(jaxpr_opt.optimize(loss), (0, 1, 2))),
            jaxpr_opt.optimize(jax.grad(loss, (0, 1, 2))),
        ):
            for a, b in zip(want, grad(*args), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
