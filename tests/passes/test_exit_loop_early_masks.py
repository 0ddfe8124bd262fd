"""A skipped step may change what a mask drops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER
from tests.stopping import KNOWN, RETURNS, discounted

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def masked_loss(
    what=lambda h, total: total, *, seen=lambda i, n, h: i < n, stacked=None, **options
):
    """The state of a network goes on, its loss is counted in the first steps only."""

    def program(h, xs, n):
        def body(carry, row):
            (h, total), (i, x) = carry, row
            h = jnp.sin(h) * x
            loss = jnp.where(seen(i, n, h), h, 0.0)
            return (h, total + loss), stacked and stacked(h, loss)

        rows = lax.iota(jnp.int32, 5), xs
        carry, ys = lax.scan(body, (h, jnp.zeros(3)), rows, **options)
        return what(*carry), ys

    return program


def test_a_state_of_which_nothing_is_read_after_the_last_step_taken():
    """(8) The mask drops the loss of a step, not its state."""
    check_rewrite(
        EXIT,
        masked_loss(),
        *KNOWN,
        simplify=True,
        diff="""
          fn (h:f32[3], xs:f32[5,3], n:i32[]) {
        -   i:i32[5] = iota
            b:f32[3] = broadcast_in_dim 0.0
        -   c:f32[3], c1:f32[3] = scan[5] carry(c=h, c1=b) xs(x=i, x1=xs) {
        -     s:f32[3] = sin c
        -     m:f32[3] = mul s x1
        -     l:bool[] = lt x n
        -     b:f32[3] = broadcast_in_dim 0.0
        -     s1:f32[3] = select_n l b m
        -     a:f32[3] = add c1 s1
        -     yield carry(m, a)
        -   }
        +   c2:i32[] = clamp 0 n 5
        +   c3:i32[], c4:f32[3], c5:f32[3] = while carry(c3=0, h1=h, c4=b) {
        +     l1:bool[] = lt c3 c2
        +     yield l1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c3 0
        +     s2:f32[3] = squeeze d
        +     s:f32[3] = sin h1
        +     m1:f32[3] = mul s s2
        +     a1:f32[3] = add c4 m1
        +     a2:i32[] = add c3 1
        +     yield carry(a2, m1, a1)
        +   }
        -   return c1
        +   return c5
          }
        """,
    )


def test_a_number_that_a_loop_begins_with_until_the_first_step_taken():
    """(8) Before the first step taken, in reverse, the carry is what it began with."""
    check_rewrite(
        EXIT,
        discounted(),
        *RETURNS,
        simplify=True,
        diff="""
          fn (xs:f32[5,3], n:i32[]) {
        -   i:i32[5] = iota
            b:f32[3] = broadcast_in_dim 0.0
        -   c:f32[3] = scan[5, reverse] carry(c=b) xs(x=i, x1=xs) {
        -     l:bool[] = lt x n
        -     s:f32[3] = sin c
        -     a:f32[3] = add s x1
        -     b:f32[3] = broadcast_in_dim 0.0
        -     s1:f32[3] = select_n l b a
        -     yield carry(s1)
        -   }
        +   c1:i32[] = clamp 0 n 5
        +   s2:i32[] = sub c1 1
        +   c2:i32[], c3:f32[3] = while carry(c1=s2, c2=b) {
        +     g:bool[] = ge c1 0
        +     yield g
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c1 0
        +     s2:f32[3] = squeeze d
        +     s:f32[3] = sin c2
        +     a1:f32[3] = add s s2
        +     s3:i32[] = sub c1 1
        +     yield carry(s3, a1)
        +   }
        -   return c
        +   return c3
          }
        """,
    )


@pytest.mark.parametrize("n", [-3, 0, 1, 4, 5, 100])
@pytest.mark.parametrize("holes", [False, True])
def test_how_many_steps_count(n, holes):
    """(2, 4, 8) Steps between that are not taken are run; rows of the others are made anew."""
    seen = (lambda i, n, *h: (i < n) & (i != 1)) if holes else (lambda i, n, *h: i < n)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    alone(EXIT, masked_loss(seen=seen), xs[0], xs, jnp.int32(n), fires=True)
    alone(EXIT, masked_loss(seen=seen, stacked=lambda h, y: y), xs[0], xs, jnp.int32(n), fires=True)
    alone(EXIT, discounted(seen), xs, jnp.int32(n), fires=True)
    alone(EXIT, discounted(seen, what=lambda c, x: c), xs, jnp.int32(n), fires=True)
    alone(EXIT, discounted(seen, start=2.0, otherwise=2.0), xs, jnp.int32(n), fires=True)


@pytest.mark.parametrize(("zero", "loops"), [(0j, 1), (complex(0.0, -0.0), 2)])
def test_zeros_of_complex_numbers(zero, loops):
    """(8, 11) A skipped step leaves the zero with which the carry begins, signs and all, or a loop
    of its own makes another of it.
    """

    def program(xs, n):
        step = lambda c, row: (jnp.where(row[0] < n, c + row[1], jnp.full(3, zero, c.dtype)), None)
        rows = jnp.arange(5), xs
        return lax.scan(step, jnp.zeros(3, jnp.complex64), rows, reverse=True)[0]

    graph = alone(EXIT, program, jnp.ones((5, 3), jnp.complex64), jnp.int32(3), fires=True)
    assert sum(isinstance(op, While) for op in graph.body.ops) == loops


def test_a_carry_that_begins_as_a_weak_type():
    """What it ends as is of the type that a step makes."""

    def program(xs, n):
        step = lambda c, row: (jnp.where(row[0] < n, c + row[1], 0.0), None)
        return lax.scan(step, jnp.full(3, 0.0), (lax.iota(jnp.int32, 5), xs), reverse=True)

    alone(EXIT, program, *RETURNS, fires=True)


@pytest.mark.parametrize(
    "program",
    [
        masked_loss(seen=lambda i, n, h: h < 0.5),
        masked_loss(reverse=True),
        lambda h, xs, n: until(h, xs),
        masked_loss(seen=lambda i, n, h: jnp.arange(3) + i < 6),
    ],
)
def test_a_state_that_matters(program):
    """(8) It makes the predicate; the loop is in reverse; numbers of elements say what counts."""
    alone(EXIT, program, *KNOWN, fires=False)


def until(h, xs):
    """The loss counts while the state that goes on is small: it may be small again."""

    def body(carry, _):
        h, total = carry
        return (jnp.sin(3.0 * h), total + jnp.where(h[0] < 0.5, h, 0.0)), None

    return lax.scan(body, (h, jnp.zeros(3)), None, length=5)[0][1]


@pytest.mark.parametrize(("start", "otherwise"), [(1.0, 0.0), (0.0, 1.0), (0.0, -0.0), (-0.0, 0.0)])
def test_a_number_that_a_skipped_step_changes(start, otherwise):
    """(8, 11) A loop of its own makes it; the sign of zero counts where nothing was transposed."""
    program = discounted(start=start, otherwise=otherwise)
    for n in (0, 3, 5):
        graph = alone(EXIT, program, jnp.ones((5, 3)), jnp.int32(n), fires=True)
        assert sum(isinstance(op, While) for op in graph.body.ops) == 2


def test_rows_of_a_state_that_goes_on():
    """(4) Someone reads them."""
    program = masked_loss(stacked=lambda h, loss: h)
    check_refuses(EXIT, program, *KNOWN, because="from one skipped step to the")


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("differentiated", [jax.grad, jax.value_and_grad])
def test_both_loops_of_the_gradient_of_masked_losses(real_questions, batched, differentiated):
    """(7, 8, 10) The forward loop leaves out rows that the loop back, which begins later, does not
    read; without the loss it does not say itself which steps count.
    """

    def loss(w, xs, length):
        def step(carry, row):
            (h, total), (x, t) = carry, row
            h = jnp.tanh(w @ h + x)
            return (h, total + jnp.where(t < length, jnp.sum(h**2), 0.0)), None

        return lax.scan(step, (jnp.zeros(64), 0.0), (xs, jnp.arange(len(xs))))[0][1]

    def total(w, xs, lengths):
        return jax.vmap(loss, (None, 0, 0))(w, xs, lengths).sum()

    xs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40, 64)), jnp.float32)
    f, args = (total, (xs, jnp.asarray([2, 9, 1]))) if batched else (loss, (xs[0], jnp.int32(7)))
    args = jnp.eye(64) / 2, *args
    graph, _ = observe.optimized(optimize(differentiated(f)), args, {})
    loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
    assert [type(op) for op in loops] == [While, While]
    for gradient in (optimize(jax.grad(f)), jax.grad(optimize(f))):
        assert_same(gradient, jax.grad(f), args, grad=False)


@pytest.mark.slow
@pytest.mark.parametrize("summed", [jnp.add, jnp.subtract])
def test_losses_of_a_batch_that_the_step_sums_up(real_questions, summed):
    """(1, 7) A sum of masked losses is zero; the loop back counts the steps that the mask counts,
    with numbers of another type.
    """

    def loss(w, xs, lengths):
        def step(t, carry):
            h, total = carry
            total = summed(total, jnp.where(t < lengths, (h**2).sum(1), 0.0).sum())
            return jnp.where((t < lengths)[:, None], jnp.tanh(h @ w + xs[:, t]), h), total

        return lax.fori_loop(0, xs.shape[1], step, (jnp.zeros((3, 64)), 0.0))[1]

    xs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40, 64)), jnp.float32)
    for lengths in ([2, 9, 1], [40, 1, 50], [0, 0, 0]):
        args = jnp.eye(64) / 2, xs, jnp.asarray(lengths)
        graph, _ = observe.optimized(optimize(jax.grad(loss)), args, {})
        loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
        assert [type(op) for op in loops] == [While, While]
        assert_same(optimize(jax.grad(loss)), jax.grad(loss), args, grad=False)
