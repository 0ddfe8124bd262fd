"""Predicates stacked by a loop that stops for good become a count; others stay."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.passes.steps.count_steps import CountSteps
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone, keep

COUNT = CountSteps()


def stacking(what, *, seen=lambda c, b: c[0] < b, back=None, **options):
    """A loop that skips and stacks `what` of its predicate, and perhaps a loop back over it."""

    def program(c, bound):
        def step(c, _):
            p = seen(c, bound)
            return lax.cond(p, lambda: c + 1, lambda: c), what(p, c)

        c, rows = lax.scan(step, c, None, **{"length": 4, **options})
        if back is None:
            return c, rows
        return lax.scan(back, c, rows, reverse=True)[0]

    return program


def test_the_loop_back_compares_its_row_with_the_count():
    check_rewrite(
        COUNT,
        stacking(lambda p, c: p, back=lambda a, p: (lax.cond(p, jnp.sin, keep, a), None)),
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3], ys:bool[4] = scan[4] carry(c=c) {
        +   c1:f32[3], taken:i32[] = scan[4] carry(c=c, taken=0) {
              s:f32[1] = slice[:1] c
              s1:f32[] = squeeze s
              l:bool[] = lt s1 bound
              r:f32[3] = cond l {
                a:f32[3] = add c 1.0
                yield a
              } else {
                yield c
              }
        +     c3:i32[] = convert_element_type l
        +     a1:i32[] = add taken c3
        -     yield carry(r) ys(l)
        +     yield carry(r, a1)
            }
        +   i:i32[4] = iota
        -   c2:f32[3] = scan[4, reverse] carry(c=c1) xs(x=ys) {
        +   c2:f32[3] = scan[4, reverse] carry(c=c1) xs(row=i) {
        +     l1:bool[] = lt row taken
        -     r:f32[3] = cond x {
        +     r:f32[3] = cond l1 {
                s:f32[3] = sin c
                yield s
              } else {
                yield c
              }
              yield carry(r)
            }
            return c2
          }
        """,
    )


def test_a_stack_read_otherwise_is_a_mask():
    check_rewrite(
        COUNT,
        stacking(lambda p, c: p),
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3], ys:bool[4] = scan[4] carry(c=c) {
        +   c1:f32[3], taken:i32[] = scan[4] carry(c=c, taken=0) {
              s:f32[1] = slice[:1] c
              s1:f32[] = squeeze s
              l:bool[] = lt s1 bound
              r:f32[3] = cond l {
                a:f32[3] = add c 1.0
                yield a
              } else {
                yield c
              }
        +     c2:i32[] = convert_element_type l
        +     a1:i32[] = add taken c2
        -     yield carry(r) ys(l)
        +     yield carry(r, a1)
            }
        +   i:i32[4] = iota
        +   b:i32[4] = broadcast_in_dim taken
        +   l1:bool[4] = lt i b
        -   return c1, ys
        +   return c1, l1
          }
        """,
    )


@pytest.mark.parametrize(
    "what",
    [
        lambda p, c: ~p,
        lambda p, c: p.astype(jnp.int8),
        lambda p, c: p.astype(jnp.uint32),
        lambda p, c: lax.stop_gradient(p),
        lambda p, c: ~lax.stop_gradient(p),
        lambda p, c: p.astype(jnp.int32) == 0,
    ],
)
def test_a_predicate_in_other_clothes(what):
    """(2) One number in every step taken, another in every step skipped, of any type."""
    alone(COUNT, stacking(what), "f32[3]", "f32[]", fires=True)


def test_a_loop_that_asks_whether_it_is_done():
    """The step is taken when the predicate is false."""

    def program(c, bound):
        def step(c, _):
            done = c[0] >= bound
            return lax.cond(done, keep, lambda c: c + 1, c), done

        return lax.scan(step, c, None, length=4)

    alone(COUNT, program, "f32[3]", "f32[]", fires=True)


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length):
    alone(COUNT, stacking(lambda p, c: p, length=length), "f32[3]", "f32[]", fires=True)


def test_a_predicate_that_comes_back():
    """(1) It is known before the loop, and true in any rows."""

    def program(c, mask):
        return lax.scan(lambda c, p: (lax.cond(p, jnp.sin, keep, c), ~p), c, mask)

    check_refuses(COUNT, program, "f32[3]", "bool[4]", because="may become true again")


def test_a_loop_that_runs_backwards():
    """(1) Its predicate is true in the last rows."""
    check_refuses(
        COUNT,
        stacking(lambda p, c: p, reverse=True),
        "f32[3]",
        "f32[]",
        because="the loop runs backwards",
    )


def test_a_predicate_with_a_shape():
    """(1) It may be true for some rows of a batch."""

    def program(c, bound):
        def step(c, _):
            p = lax.lt(c[:1], bound[None])
            return lax.cond(lax.squeeze(p, (0,)), jnp.sin, keep, c), lax.squeeze(p, (0,))

        return lax.scan(step, c, None, length=4)

    check_refuses(COUNT, program, "f32[3]", "f32[]", because="from row to row of a batch")


@pytest.mark.parametrize(
    "what",
    [
        lambda p, c: c[1] < 0,
        lambda p, c: p & (c[1] < 0),
        lambda p, c: p.astype(jnp.float32),
        lambda p, c: p[None],
        lambda p, c: lax.cond(p, lambda: 1, lambda: 0),
        lambda p, c: jnp.where(p, c[0].astype(int), 0),
        lambda p, c: jax.random.key(0),
    ],
)
def test_a_stack_of_something_else(what):
    """(2) Not the predicate, not a truth value, not one a step, or not of the predicate alone."""
    alone(COUNT, stacking(what), "f32[3]", "f32[]", fires=False)


def test_a_loop_that_does_not_skip():
    """(1) A step whose predicate is false changes the carry, too."""

    def program(c, bound):
        step = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, jnp.cos, c), c[0] < bound)
        return lax.scan(step, c, None, length=4)

    alone(COUNT, program, "f32[3]", "f32[]", fires=False)
