"""Loops that choose by the number of their step become loops for what they choose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.steps.split_phases import SplitPhases
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.graphs import lengths, scans
from tests.loops import alone

SPLIT = SplitPhases()


class Dividing(CostModel):
    """Any step that computes or stores less is worth a loop."""

    __slots__ = ()

    def is_visible(self, part, whole):
        return part > 0

    def is_worth_loops(self, more, seconds):
        return True

    def is_worth_starts(self, inner, seconds):
        return True


@pytest.fixture(autouse=True)
def _dividing():
    with using(Dividing()):
        yield


def sines(which):
    """Value and gradient of a loop that takes a sine in some of its steps."""

    def program(c):
        step = lambda c, t: (lax.cond(which(t), lambda: jnp.sin(c), lambda: 2.0 * c), None)
        out, pull = jax.vjp(lambda c: lax.scan(step, c, jnp.arange(16))[0], c)
        return out, pull(jnp.ones_like(out))

    return program


def gradient(step, *, length=16, **options):
    """Value and gradient of a loop whose steps read a weight and the number of the step."""

    def program(c, w):
        run = lambda c, w: lax.scan(lambda c, t: step(c, w, t), c, jnp.arange(length), **options)
        out, pull = jax.vjp(run, c, w)
        return out, pull(jax.tree.map(jnp.ones_like, out))

    return program


def branches(which):
    """A step that takes a branch by its number."""

    def step(c, w, t):
        return lax.cond(which(t), lambda: jnp.sin(c * w), lambda: c * w), None

    return step


def cases(which):
    """A step that chooses a case by its number."""

    def step(c, w, t):
        return jnp.where(which(t), jnp.sin(c * w), c * w), None

    return step


def unknown(graph):
    """How many choices between branches or cases are left."""
    chosen = (
        op.operands[0] for op in graph.walk() if isinstance(op, Cond) or op.name == "select_n"
    )
    return sum(uniform(value) is None for value in chosen)


def test_first_steps_take_another_branch():
    """(1, 2)"""
    check_rewrite(
        SPLIT,
        sines(lambda t: t < 10),
        "f32[4]",
        simplify=True,
        diff="""
        fn (c:f32[4]) {
      -   i:i32[16] = iota
      -   c1:f32[4], ys:i32[16], ys1:f32[16,4] = scan[16] carry(c=c) xs(x=i) {
      +   c1:f32[4], ys2:f32[10,4] = scan[10] carry(c=c) {
      -     l:bool[] = lt x 10
      -     c1:i32[] = convert_element_type l
      -     r:f32[4], r1:f32[4] = cond l {
      -       s:f32[4] = sin c
      -       c1:f32[4] = cos c
      -       yield s, c1
      -     } else {
      -       m:f32[4] = mul 2.0 c
      -       u:f32[4] = undefined
      -       yield m, u
      -     }
      +     s:f32[4] = sin c
      +     c1:f32[4] = cos c
      -     yield carry(r) ys(c1, r1)
      +     yield carry(s) ys(c1)
          }
      +   c3:f32[4] = scan[6] carry(c3=c1) {
      +     m1:f32[4] = mul 2.0 c3
      +     yield carry(m1)
      +   }
          b:f32[4] = broadcast_in_dim 1.0
      -   c2:f32[4] = scan[16, reverse] carry(c=b) xs(x=ys, x1=ys1) {
      +   c2:f32[4] = scan[6, reverse] carry(c=b) {
      -     n:bool[] = ne x 0
      -     r:f32[4] = cond n {
      -       m:f32[4] = mul c x1
      -       yield m
      -     } else {
      -       m:f32[4] = mul 2.0 c
      -       yield m
      -     }
      +     m:f32[4] = mul 2.0 c
      -     yield carry(r)
      +     yield carry(m)
          }
      +   c4:f32[4] = scan[10, reverse] carry(c3=c2) xs(x2=ys2) {
      +     m1:f32[4] = mul c3 x2
      +     yield carry(m1)
      +   }
      -   return c1, c2
      +   return c3, c4
        }
        """,
    )


def test_choices_that_come_round():
    """(1, 2)"""
    check_rewrite(
        SPLIT,
        sines(lambda t: t % 4 == 3),
        "f32[4]",
        simplify=True,
        diff="""
        fn (c:f32[4]) {
      -   i:i32[16] = iota
      -   c1:f32[4], ys:i32[16], ys1:f32[16,4] = scan[16] carry(c=c) xs(x=i) {
      +   c1:f32[4], ys2:f32[4,1,4] = scan[4] carry(c=c) {
      -     r:i32[] = rem x 4
      -     e:bool[] = eq r 3
      -     c1:i32[] = convert_element_type e
      -     r1:f32[4], r2:f32[4] = cond e {
      -       s:f32[4] = sin c
      -       c1:f32[4] = cos c
      -       yield s, c1
      -     } else {
      -       m:f32[4] = mul 2.0 c
      -       u:f32[4] = undefined
      -       yield m, u
      -     }
      +     c3:f32[4] = scan[3] carry(c3=c) {
      +       m1:f32[4] = mul 2.0 c3
      +       yield carry(m1)
      +     }
      +     s1:f32[4] = sin c3
      +     c4:f32[4] = cos c3
      +     r3:f32[1,4] = reshape c4
      -     yield carry(r1) ys(c1, r2)
      +     yield carry(s1) ys(r3)
          }
          b:f32[4] = broadcast_in_dim 1.0
      -   c2:f32[4] = scan[16, reverse] carry(c=b) xs(x=ys, x1=ys1) {
      +   c2:f32[4] = scan[4, reverse] carry(c=b) xs(x2=ys2) {
      -     n:bool[] = ne x 0
      -     r:f32[4] = cond n {
      -       m:f32[4] = mul c x1
      -       yield m
      -     } else {
      -       m:f32[4] = mul 2.0 c
      -       yield m
      -     }
      +     r3:f32[4] = reshape x2
      +     m1:f32[4] = mul c r3
      +     c3:f32[4] = scan[3, reverse] carry(c3=m1) {
      +       m1:f32[4] = mul 2.0 c3
      +       yield carry(m1)
      +     }
      -     yield carry(r)
      +     yield carry(c3)
          }
          return c1, c2
        }
        """,
    )


@pytest.mark.parametrize("kind", [branches, cases])
@pytest.mark.parametrize(
    ("which", "length", "sizes"),
    [
        (lambda t: t < 9, 16, [9, 7, 7, 9]),
        (lambda t: (t > 3) & (t < 9), 16, [4, 5, 7, 7, 5, 4]),
        (lambda t: t % 2 == 0, 16, [8, 8]),
        (lambda t: t % 3 == 0, 18, [6, 2, 6, 2]),
        (lambda t: t % 5 == 0, 22, [4, 4, 2, 2, 4, 4]),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_steps_are_the_same(kind, which, length, sizes, reverse):
    """(2) Phases, rounds and what is left of them, of numbers of all kinds."""
    program = gradient(kind(which), length=length, reverse=reverse)
    graph = alone(SPLIT, program, "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == (
        sizes[len(sizes) // 2 :] + sizes[: len(sizes) // 2] if reverse else sizes
    )
    run_alone(CLEANUP, graph)
    assert bool(unknown(graph)) == (length == 22), "all but those after the last round are known"


def names(op):
    """The ops of a loop's step."""
    return {each.name for each in op.body.walk()}


def test_a_case_that_is_not_chosen_is_not_differentiated():
    """(3) Its cotangent is zero, and so is the product with its slope."""
    program = gradient(cases(lambda t: t < 10))
    graph = alone(SPLIT, program, "f32[4]", "f32[4]", fires=True)
    run_alone(CLEANUP, graph)
    first, others = [op for op in scans(graph) if not op.reverse]
    assert {"sin", "cos"} <= names(first)
    assert {"sin", "cos"}.isdisjoint(names(others))


def test_slopes_that_are_infinite():
    """(3) What is not chosen leaves a zero, where plain JAX multiplies it by an infinite slope."""

    def loss(c, w):
        def step(c, t):
            return jnp.where(t < 10, jnp.sqrt(c) * w, c * w), None

        return jnp.sum(lax.scan(step, c, jnp.arange(16))[0])

    c, w = jnp.ones(4), jnp.zeros(4)
    assert np.isnan(jax.grad(loss)(c, w)).all()
    want = jax.grad(loss)(c, w + 1)
    assert_close(jax.grad(jaxpr_opt.optimize(loss))(c, w + 1), want)


def test_zeros_that_are_no_cotangents():
    """(3) In a step back, too, zero times what is infinite is no number."""

    @jax.custom_vjp
    def twice(c, w, t):
        return 2.0 * c

    def forward(c, w, t):
        return 2.0 * c, (c, w, t)

    def backward(kept, ct):
        c, w, t = kept
        return ct / (1.0 + jnp.square(jnp.where(t < 10, c, 0.0) * w)), None, None

    twice.defvjp(forward, backward)

    def program(c, w):
        run = lambda c: lax.scan(lambda c, t: (twice(c, w, t), None), c, jnp.arange(16))[0]
        out, pull = jax.vjp(run, c)
        return out, pull(jnp.ones_like(out))

    graph = alone(SPLIT, program, jnp.ones(4), jnp.full(4, jnp.inf), fires=True)
    assert lengths(graph) == [10, 6, 6, 10]


def test_what_is_stacked_is_joined():
    """Rows of results, read and written by all pieces; keys and counters are handed on."""

    def program(c, bits, xs):
        def run(c, xs):
            def step(carry, each):
                c, key, count = carry
                t, x = each
                key, now = jax.random.split(key)
                noise = jax.random.uniform(now, c.shape)
                many = lambda: jnp.sin(c) * jnp.exp(c * noise) * jnp.tanh(jnp.cos(c)) * jnp.sinh(c)
                c = lax.cond(t % 4 == 1, many, lambda: c * x)
                return (c, key, count + 1), (c, count, jax.random.key_data(now))

            begin = (c, jax.random.wrap_key_data(bits), 0)
            (c, key, count), ys = lax.scan(step, begin, (jnp.arange(18), xs))
            return c, ys[0], (jax.random.key_data(key), count, ys[1:])

        c, ys, rest = run(c, xs)
        pull = jax.vjp(lambda c, xs: run(c, xs)[:2], c, xs)[1]
        return c, ys, rest, pull((c, ys))

    graph = alone(SPLIT, program, "f32[64]", "u32[2]", "f32[18,64]", fires=True)
    assert lengths(graph).count(4) == 2, "rounds of four steps, forward and back"


def test_readers_of_other_results():
    """What a reader is known to be is what stands for it by then."""

    def program(c, w):
        step = lambda c, t: lax.cond(t < 10, lambda: (c * w, jnp.sin(c)), lambda: (c + w, c))
        last, rows = lax.scan(step, c, jnp.arange(16))
        back = lambda a, row: (a + lax.cond(row[1] < 10, lambda: row[0] * a, lambda: last), None)
        return lax.scan(back, c, (rows, jnp.arange(16)), reverse=True)[0]

    graph = alone(SPLIT, program, "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == [10, 6, 6, 10]


def test_residuals_that_are_read_in_another_way():
    """(1) A residual that is a result, too, is joined; if all are, nothing is handed over."""

    def program(c, w):
        step = lambda c, t: (lax.cond(t < 10, lambda: jnp.sin(c * w), lambda: c * w), c)
        out, cs = lax.scan(step, c, jnp.arange(16))
        back = lambda a, row: (a * row, None)
        return cs, lax.scan(back, out, cs, reverse=True)[0]

    alone(SPLIT, program, "f32[4]", "f32[4]", fires=False)


def test_choices_by_data():
    """(2)"""

    def program(c, w, ts):
        run = lambda c: lax.scan(lambda c, t: branches(lambda t: t < 10)(c, w, t), c, ts)[0]
        out, pull = jax.vjp(run, c)
        return out, pull(out)

    alone(SPLIT, program, "f32[4]", "f32[4]", "i32[16]", fires=False)
    schedule = lambda c, w: program(c, w, np.arange(16, dtype=np.int32)[::-1])
    alone(SPLIT, schedule, "f32[4]", "f32[4]", fires=True)
    alone(SPLIT, gradient(branches(lambda t: t * t % 7 < 3)), "f32[4]", "f32[4]", fires=False)


def test_choices_that_change_within_a_phase():
    """(2) They stay."""

    def step(c, w, t):
        c = lax.cond(t < 10, lambda: jnp.sin(c * w), lambda: c * w)
        return jnp.where(t * t % 7 < 3, jnp.cos(c), c), None

    graph = alone(SPLIT, gradient(step), "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == [10, 6, 6, 10]
    run_alone(CLEANUP, graph)
    assert unknown(graph)


def test_unrolled_loops():
    """(4)"""
    check_refuses(
        SPLIT,
        gradient(branches(lambda t: t < 10), unroll=2),
        "f32[4]",
        "f32[4]",
        because="the scan asks to be unrolled",
    )


def test_loops_that_may_stop_early():
    """They are left to the passes for these."""

    def step(c, w, t):
        c = jnp.where(jnp.all(c < 3), jnp.where(t < 10, jnp.sin(c * w), c * w) + 1, c)
        return c, None

    check_refuses(SPLIT, gradient(step), "f32[4]", "f32[4]", because="the loop may stop early")


def test_prices():
    """A loop more is worth it where a step saves something, and the loop takes some steps."""
    small, large = ("f32[4]", "f32[4]"), ("f32[512,512]", "f32[512,512]")
    with using(CostModel()):
        alone(SPLIT, gradient(branches(lambda t: t < 10)), *small, fires=False)
        graph = import_jaxpr(traced(gradient(branches(lambda t: t < 10)), *large))
        assert run_alone((SPLIT,), graph).record(SPLIT.name, False).rewrites
    alone(SPLIT, gradient(branches(lambda t: t < 6), length=12), *small, fires=False)
    alone(SPLIT, gradient(lambda c, w, t: (c * w, None)), *small, fires=False)


@pytest.mark.parametrize("order", ["inside", "outside"])
def test_as_users_write_it(order):
    """Warm-up, a dictionary, a batch, and second derivatives."""

    def loss(w, x):
        def step(state, _):
            t, x = state["t"], state["x"]
            x = lax.cond(t < 30, lambda: jnp.sin(x @ w), lambda: x + 0.1 * jnp.tanh(x @ w))
            return {"t": t + 1, "x": x}, jnp.where(t % 10 == 9, jnp.sum(jnp.cos(x) ** 2), 0.0)

        return jnp.sum(lax.scan(step, {"t": 0, "x": x}, None, length=60)[1])

    w, x = jax.random.normal(jax.random.key(0), (8, 8)), jnp.ones((3, 5, 8))
    with using(CostModel()):
        want = jax.vmap(jax.grad(loss), (None, 0))(w, x)
        made = (
            jax.grad(jaxpr_opt.optimize(loss))
            if order == "inside"
            else (jaxpr_opt.optimize(jax.grad(loss)))
        )
        assert_close(jax.vmap(made, (None, 0))(w, x), want)
        forward = lambda f: jax.jvp(lambda w: f(w, x[0]), (w,), (w,))
        assert_close(forward(made), forward(jax.grad(loss)))
