"""Loops of loops that skip become one loop; those that do more than that stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.steps.collapse_loops import CollapseLoops
from jaxpr_opt.testing import assert_same_bits, check_refuses, check_rewrite
from tests.graphs import scans
from tests.loops import alone, keep, unspecified

CARRIED, UPFRONT = CollapseLoops(), CollapseLoops("upfront")


def nest(*, inner=None, outer=None, seen=lambda c, b: c[0] < b, body=jnp.sin, times=3, **options):
    """``scan[3]{cond(p, scan[4]{cond(q, body, identity)}, identity)}``, parts of it replaced."""
    p, q = outer or seen, inner or seen

    def program(c, bound):
        def step(c, _):
            return lax.cond(q(c, bound), body, keep, c), None

        def level(c, _):
            loop = lambda c: lax.scan(step, c, None, length=4, **options)[0]
            return lax.cond(p(c, bound), loop, keep, c), None

        return lax.scan(level, c, None, length=times)[0]

    return program


def test_a_loop_of_loops_is_one_loop():
    check_rewrite(
        CARRIED,
        nest(),
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
            fn (c:f32[3], bound:f32[]) {
          -   c1:f32[3] = scan[3] carry(c=c) {
          +   c1:f32[3] = scan[12] carry(c=c) {
                s:f32[1] = slice[:1] c
                s1:f32[] = squeeze s
                l:bool[] = lt s1 bound
                r:f32[3] = cond l {
          -       c1:f32[3] = scan[4] carry(c=c) {
          -         s:f32[1] = slice[:1] c
          -         s1:f32[] = squeeze s
          -         l:bool[] = lt s1 bound
          -         r:f32[3] = cond l {
          -           s:f32[3] = sin c
          -           yield s
          -         } else {
          -           yield c
          -         }
          -         yield carry(r)
          -       }
          +       s2:f32[3] = sin c
          -       yield c1
          +       yield s2
                } else {
                  yield c
                }
                yield carry(r)
              }
              return c1
            }
        """,
    )


def test_loops_of_loops_of_loops_are_one_loop():
    def program(c, bound):
        def loop(level):
            def step(c, _):
                body = loop(level - 1) if level else jnp.sin
                return lax.cond(c[0] < bound, body, keep, c), None

            return lambda c: lax.scan(step, c, None, length=2)[0]

        return loop(3)(c)

    graph = alone(CARRIED, program, "f32[3]", "f32[]", fires=True)
    (loop,) = scans(graph)
    assert loop.length == 16


def test_loops_that_run_backwards():
    def program(c, bound, xs):
        def step(c, x):
            return lax.cond(c[0] < bound, lambda: c + x, lambda: c), None

        def level(c, rows):
            loop = lambda: lax.scan(step, c, rows, reverse=True)[0]
            return lax.cond(c[0] < bound, loop, lambda: c), None

        return lax.scan(level, c, xs, reverse=True)[0]

    alone(CARRIED, program, "f32[3]", "f32[]", "f32[3,4,3]", fires=True)


def test_rows_that_skipped_steps_stack_alike():
    """(3) Both loops stack zeros in steps that are skipped."""

    def program(c, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, lambda: (c + 1, c), lambda: (c, jnp.zeros(3)))

        def level(c, _):
            loop = lambda: lax.scan(step, c, None, length=2)
            return lax.cond(c[0] < bound, loop, lambda: (c, jnp.zeros((2, 3))))

        return lax.scan(level, c, None, length=3)

    check_rewrite(
        CARRIED,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3], ys:f32[3,2,3] = scan[3] carry(c=c) {
        +   c1:f32[3], ys1:f32[6,3] = scan[6] carry(c=c) {
              s:f32[1] = slice[:1] c
              s1:f32[] = squeeze s
              l:bool[] = lt s1 bound
        -     r:f32[3], r1:f32[2,3] = cond l {
        +     r:f32[3], r2:f32[3] = cond l {
        -       c1:f32[3], ys:f32[2,3] = scan[2] carry(c=c) {
        -         s:f32[1] = slice[:1] c
        -         s1:f32[] = squeeze s
        -         l:bool[] = lt s1 bound
        -         r:f32[3], r1:f32[3] = cond l {
        -           a:f32[3] = add c 1.0
        -           yield a, c
        -         } else {
        -           b:f32[3] = broadcast_in_dim 0.0
        -           yield c, b
        -         }
        -         yield carry(r) ys(r1)
        -       }
        +       a1:f32[3] = add c 1.0
        -       yield c1, ys
        +       yield a1, c
              } else {
        -       b:f32[2,3] = broadcast_in_dim 0.0
        +       b:f32[3] = broadcast_in_dim 0.0
                yield c, b
              }
        -     yield carry(r) ys(r1)
        +     yield carry(r) ys(r2)
            }
        +   r2:f32[3,2,3] = reshape ys1
        -   return c1, ys
        +   return c1, r2
          }
        """,
    )


def test_a_value_stacked_once_per_outer_step():
    """(4) A function of the carries is taken from the first of every four inner steps."""

    def program(c, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, jnp.sin, keep, c), None

        def level(c, _):
            loop = lambda c: lax.scan(step, c, None, length=4)[0]
            return lax.cond(c[0] < bound, loop, keep, c), c * 2

        return lax.scan(level, c, None, length=3)

    check_rewrite(
        CARRIED,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3], ys:f32[3,3] = scan[3] carry(c=c) {
        +   c1:f32[3], ys1:f32[12,3] = scan[12] carry(c=c) {
              s:f32[1] = slice[:1] c
              s1:f32[] = squeeze s
              l:bool[] = lt s1 bound
              r:f32[3] = cond l {
        -       c1:f32[3] = scan[4] carry(c=c) {
        -         s:f32[1] = slice[:1] c
        -         s1:f32[] = squeeze s
        -         l:bool[] = lt s1 bound
        -         r:f32[3] = cond l {
        -           s:f32[3] = sin c
        -           yield s
        -         } else {
        -           yield c
        -         }
        -         yield carry(r)
        -       }
        +       s2:f32[3] = sin c
        -       yield c1
        +       yield s2
              } else {
                yield c
              }
              m:f32[3] = mul c 2.0
              yield carry(r) ys(m)
            }
        +   r1:f32[3,4,3] = reshape ys1
        +   s2:f32[3,1,3] = slice[:, :1, :] r1
        +   s3:f32[3,3] = squeeze s2
        -   return c1, ys
        +   return c1, s3
          }
        """,
    )


def known_before(masks):
    """A nest whose predicates are rows of arrays: the transpose of a nest is one."""

    def program(c, *given):
        outer, inner = masks(*given)

        def step(c, q):
            return lax.cond(q, jnp.sin, keep, c), None

        def level(c, row):
            p, q = row
            return lax.cond(p, lambda c: lax.scan(step, c, q)[0], keep, c), None

        return lax.scan(level, c, (outer, inner))[0]

    return program


def first_rows(n):
    mask = lax.iota(jnp.int32, 12) < n
    inner = lax.reshape(mask, (3, 4))
    return lax.squeeze(lax.slice(inner, (0, 0), (3, 1)), (1,)), inner


def test_masks_that_imply_each_other():
    """(2b) The inner mask, ``4 i + j < n``, implies the outer one, ``4 i < n``."""
    check_rewrite(
        UPFRONT,
        known_before(first_rows),
        "f32[3]",
        "i32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], given_0:i32[]) {
            i:i32[12] = iota
            l:bool[12] = lt i given_0
        -   r:bool[3,4] = reshape l
        -   s:bool[3,1] = slice[:, :1] r
        -   s1:bool[3] = squeeze s
        -   c1:f32[3] = scan[3] carry(c=c) xs(x=s1, x1=r) {
        +   c1:f32[3] = scan[12] carry(c=c) xs(x=l) {
              r:f32[3] = cond x {
        -       c1:f32[3] = scan[4] carry(c=c) xs(x=x1) {
        -         r:f32[3] = cond x {
        -           s:f32[3] = sin c
        -           yield s
        -         } else {
        -           yield c
        -         }
        -         yield carry(r)
        -       }
        +       s2:f32[3] = sin c
        -       yield c1
        +       yield s2
              } else {
                yield c
              }
              yield carry(r)
            }
            return c1
          }
        """,
    )


def test_masks_of_which_nothing_is_known():
    """(2b) Both must be true: they are joined."""
    check_rewrite(
        UPFRONT,
        known_before(lambda p, q: (p, q)),
        "f32[3]",
        "bool[3]",
        "bool[3,4]",
        diff="""
          fn (c:f32[3], given_0:bool[3], given_1:bool[3,4]) {
        +   r1:bool[12] = reshape given_1
        +   b:bool[3,4] = broadcast_in_dim[dims=(0,)] given_0
        +   r2:bool[12] = reshape b
        -   c1:f32[3] = scan[3] carry(c=c) xs(x=given_0, x1=given_1) {
        +   c1:f32[3] = scan[12] carry(c=c) xs(x=r1, outer=r2) {
        +     a:bool[] = and outer x
        -     c1:i32[] = convert_element_type x
        +     c1:i32[] = convert_element_type a
        -     r:f32[3] = cond x {
        +     r:f32[3] = cond a {
        -       c1:f32[3] = scan[4] carry(c=c) xs(x=x1) {
        -         c1:i32[] = convert_element_type x
        -         r:f32[3] = cond x {
        -           s:f32[3] = sin c
        -           yield s
        -         } else {
        -           yield c
        -         }
        -         yield carry(r)
        -       }
        +       s1:f32[3] = sin c
        -       yield c1
        +       yield s1
              } else {
                yield c
              }
              yield carry(r)
            }
            return c1
          }
        """,
    )


def test_a_mask_that_is_not_one_is_joined():
    """(2b) ``row != 1`` is true where the mask ``row`` is false: it implies nothing."""

    def program(c, n):
        outer, inner = first_rows(n)

        def step(c, q):
            return lax.cond(q != 1, jnp.sin, keep, c), None

        def level(c, row):
            p, q = row
            return lax.cond(p, lambda c: lax.scan(step, c, q)[0], keep, c), None

        return lax.scan(level, c, (outer, inner.astype(jnp.int32)))[0]

    alone(UPFRONT, program, "f32[3]", jnp.int32(5), fires=True)
    alone(UPFRONT, program, "f32[3]", "i32[]", fires=True)


def test_predicates_with_much_in_common_are_compared_once():
    """Forty squarings: as an expression, a tree of 2^40 leaves."""

    def seen(c, bound):
        y = c[0]
        for _ in range(40):
            y = y * y
        return y < bound

    alone(CARRIED, nest(seen=seen), "f32[3]", "f32[]", fires=True)


@pytest.mark.parametrize(
    ("other", "because"),
    [
        (lambda c, b: c[1] < b, "the inner predicate is not proved false"),
        (lambda c, b: c[0] <= b, "the inner predicate is not proved false"),
        (lambda c, b: c[0] < b + 1, "the inner predicate is not proved false"),
        (lambda c, b: ~(c[0] < b), "the inner predicate is not proved false"),
    ],
)
def test_another_predicate(other, because):
    """(2) The outer predicate false does not make the inner one false."""
    check_refuses(CARRIED, nest(inner=other), "f32[3]", "f32[]", because=because, simplify=True)


def test_masks_of_which_one_implies_nothing():
    """(2b) The inner mask, ``4 i + j < n``, does not imply the outer one, ``4 i < m`` or any."""
    unknown = known_before(lambda n, p: (p, first_rows(n)[1]))
    alone(UPFRONT, unknown, "f32[3]", jnp.int32(9), jnp.array([True, False, True]), fires=True)
    masks = lambda n, m: (first_rows(m)[0], first_rows(n)[1])
    for n, m in ((9, 3), (3, 9)):
        alone(UPFRONT, known_before(masks), "f32[3]", jnp.int32(n), jnp.int32(m), fires=True)


def by(p, q, *, inner_is_done=False, outer_is_done=False):
    """A nest whose predicates are what `p` and `q` make of its carry and of rows of an array."""

    def chosen(done, which, taken, c):
        return lax.cond(which, keep, taken, c) if done else lax.cond(which, taken, keep, c)

    def program(c, outer, inner):
        def step(c, row):
            return chosen(inner_is_done, q(c, row), jnp.sin, c), None

        def level(c, rows):
            loop = lambda c: lax.scan(step, c, rows[1])[0]
            return chosen(outer_is_done, p(c, rows[0]), loop, c), None

        return lax.scan(level, c, (outer, inner))[0]

    return program


LOW, LISTED = (lambda c, _: c[0] < 1), (lambda _, row: row)


@pytest.mark.parametrize(
    ("each", "program"),
    [
        pytest.param(CARRIED, by(LOW, lambda c, row: (c[0] < 1) ^ row), id="mixed"),
        pytest.param(CARRIED, by(LOW, LISTED), id="known before"),
        pytest.param(UPFRONT, by(LISTED, LOW), id="not known before"),
        pytest.param(CARRIED, by(LOW, lambda c, _: c[0] >= 1, inner_is_done=True), id="done"),
        pytest.param(UPFRONT, by(LISTED, LISTED, inner_is_done=True), id="inner done"),
        pytest.param(UPFRONT, by(LISTED, LISTED, outer_is_done=True), id="outer done"),
    ],
)
def test_predicates_of_two_kinds(each, program):
    """(2) One is carried and one known before, or one is true when a step is skipped."""
    because = "the inner predicate is not proved false"
    check_refuses(each, program, "f32[3]", "bool[3]", "bool[3,4]", because=because)


def test_a_mask_of_rows_of_a_batch():
    """(2) It cannot be joined with that of the outer loop."""

    def program(c, outer, inner):
        step = lambda c, q: (jnp.where(q, jnp.sin(c), c), None)
        level = lambda c, x: (lax.cond(x[0], lambda: lax.scan(step, c, x[1])[0], lambda: c), None)
        return lax.scan(level, c, (outer, inner))[0]

    because = "the inner predicate is not proved false"
    check_refuses(UPFRONT, program, "f32[3]", "bool[3]", "bool[3,4,3]", because=because)


def test_an_inner_loop_that_counts():
    """(2) Its steps are counted whether or not they are taken, those of an outer step that is not
    taken are not.
    """

    def program(c, bound):
        def step(carry, _):
            c, k = carry
            return (lax.cond(c[0] < bound, jnp.sin, keep, c), k + 1), None

        def level(carry, _):
            loop = lambda carry: lax.scan(step, carry, None, length=4)[0]
            return lax.cond(carry[0][0] < bound, loop, keep, carry), None

        return lax.scan(level, (c, 0), None, length=3)[0]

    check_refuses(
        CARRIED, program, "f32[3]", "f32[]", because="the inner predicate is not proved false"
    )


def test_a_predicate_of_one_row():
    """(2) A predicate with a shape may differ from row to row."""
    row = lambda c, b: lax.squeeze(lax.lt(c[:1], b[None]), (0,))
    check_refuses(
        CARRIED, nest(seen=row), "f32[3]", "f32[]", because="from row to row", simplify=True
    )


def test_a_sum_that_starts_anew():
    """(1) One loop would add up in another order."""

    def program(c, total, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, lambda: (c[0] + 1, c[1] + c[0]), lambda: c), None

        def level(carry, _):
            c, total = carry
            loop = lambda: lax.scan(step, (c, jnp.float32(0)), None, length=4)[0]
            new, part = lax.cond(c < bound, loop, lambda: (c, jnp.float32(0)))
            return (new, total + part), None

        return lax.scan(level, (c, total), None, length=3)[0]

    check_refuses(
        CARRIED, program, "f32[]", "f32[]", "f32[]", because="does not continue in the next"
    )


def test_a_carry_that_starts_anew():
    """(1) The inner loop starts from another value than the outer carry."""

    def program(c, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, jnp.sin, keep, c), None

        def level(c, _):
            loop = lambda c: lax.scan(step, c * 2, None, length=4)[0]
            return lax.cond(c[0] < bound, loop, keep, c), None

        return lax.scan(level, c, None, length=3)[0]

    check_refuses(CARRIED, program, "f32[3]", "f32[]", because="starts anew in every outer step")


def flagged(start, *, go=True):
    """A nest that carries whether to go on; the inner loop starts from what `start` makes of it."""

    def program(c, n, bound):
        def step(carry, _):
            c, n, go = carry
            taken = lambda: (jnp.sin(c), n + 1.0, c[0] < bound)
            return lax.cond(go, taken, lambda: carry), None

        def level(carry, _):
            loop = lambda: lax.scan(step, start(*carry), None, length=4)[0]
            return lax.cond(carry[2], loop, lambda: carry), None

        return lax.scan(level, (c, n, jnp.bool_(go)), None, length=3)[0]

    return program


TRUE, FALSE = np.True_, np.False_


@pytest.mark.parametrize("start", [lambda c, n, go: (c, n, go), lambda c, n, go: (c, n, TRUE)])
def test_an_inner_loop_that_goes_on(start):
    """(1) It starts where the outer step does, or from what is known there: the step is taken."""
    alone(CARRIED, flagged(start), "f32[3]", "f32[]", "f32[]", fires=True)


@pytest.mark.parametrize(
    "start",
    [
        lambda c, n, go: (c, n, FALSE),
        lambda c, n, go: (c, n, c[0] > 0),
        lambda c, n, go: (c, np.float32(0), go),
    ],
)
def test_an_inner_loop_that_starts_from_something_else(start):
    """(1) From another number, from one that is not known, or from a number where the outer loop
    has none.
    """
    because = "starts anew in every outer step"
    check_refuses(CARRIED, flagged(start), "f32[3]", "f32[]", "f32[]", because=because)


def around(change, more=None):
    """A nest whose outer loop has one more carry, which a step changes."""

    def program(c, k, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, jnp.sin, keep, c), None

        def level(carry, _):
            c, k = carry
            loop = lambda: (lax.scan(step, c, None, length=4)[0], change(k))
            return lax.cond(c[0] < bound, loop, lambda: (c, k)), more(c) if more else None

        return lax.scan(level, (c, k), None, length=3)

    return program


def test_an_outer_step_that_does_more():
    """(1) It also counts, in floating point."""
    check_refuses(
        CARRIED, around(lambda k: k + 1), "f32[3]", "f32[]", "f32[]", because="changes more than"
    )


def test_an_outer_carry_that_never_changes():
    """(1) It would have no part in the inner loop."""
    check_refuses(
        CARRIED,
        around(lambda k: k + 0.0),
        "f32[3]",
        "f32[]",
        "f32[]",
        because="an outer carry never changes",
    )


def test_an_inner_step_that_reads_the_outer_one():
    """(1) `s` is made once per outer step."""

    def program(c, bound):
        def level(c, _):
            s = jnp.sin(c)

            def step(c, _):
                return lax.cond(c[0] < bound, lambda: c + s, lambda: c), None

            loop = lambda c: lax.scan(step, c, None, length=4)[0]
            return lax.cond(c[0] < bound, loop, keep, c), None

        return lax.scan(level, c, None, length=3)[0]

    check_refuses(CARRIED, program, "f32[3]", "f32[]", because="of the outer step")


def test_an_array_that_every_outer_step_reads():
    """(1) Rows 0 to 3 are read three times: it is no array of twelve rows."""

    def program(c, bound, xs):
        def step(c, x):
            return lax.cond(c[0] < bound, lambda: c + x, lambda: c), None

        def level(c, _):
            loop = lambda c: lax.scan(step, c, xs)[0]
            return lax.cond(c[0] < bound, loop, keep, c), None

        return lax.scan(level, c, None, length=3)[0]

    check_refuses(
        CARRIED, program, "f32[3]", "f32[]", "f32[4,3]", because="does not read row by row"
    )


def test_rows_that_skipped_steps_stack_differently():
    """(3) Zeros in the inner loop, ones in the outer."""

    def program(c, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, lambda: (c + 1, c), lambda: (c, jnp.zeros(3)))

        def level(c, _):
            loop = lambda: lax.scan(step, c, None, length=2)
            return lax.cond(c[0] < bound, loop, lambda: (c, jnp.ones((2, 3))))

        return lax.scan(level, c, None, length=3)

    check_refuses(CARRIED, program, "f32[3]", "f32[]", because="of skipped steps differ")


def stacking(inner, outer):
    """A nest that stacks what it carries; skipped steps of both loops stack something else."""

    def program(c, bound):
        def step(c, _):
            return lax.cond(c[0, 0] < bound, lambda: (c + 1, c[0]), lambda: (c, inner(c)))

        def level(c, _):
            loop = lambda: lax.scan(step, c, None, length=2)
            return lax.cond(c[0, 0] < bound, loop, lambda: (c, outer(c)))

        return lax.scan(level, c, None, length=3)

    return program


def first(c):
    return c[0]


def zeros(c):
    return jnp.zeros_like(c)


def test_rows_of_an_outer_step_that_are_unspecified():
    """(3) They may be anything."""
    program = stacking(first, unspecified)
    graph = alone(CARRIED, program, jnp.ones((2, 3)), jnp.float32(9), fires=True)
    (loop,) = scans(graph)
    assert loop.length == 6


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (first, zeros),
        (lambda c: jnp.zeros(3), keep),
        (lambda c: jnp.zeros(3), jnp.sin),
    ],
)
def test_rows_of_skipped_steps_that_are_no_number(inner, outer):
    """(3) In one of the loops they are what is carried, or made of it."""
    because = "of skipped steps differ"
    check_refuses(CARRIED, stacking(inner, outer), "f32[2,3]", "f32[]", because=because)


@pytest.mark.parametrize(
    "stacked",
    [
        lambda c, row: 2 * row,
        lambda c, _: lax.scan(lambda c, _: (jnp.sin(c), None), c, None, length=2)[0],
        lambda c, _: lax.linalg.lu(jnp.outer(c, c))[0],
    ],
    ids=["a row", "of a loop", "of a factorisation"],
)
def test_stacked_once_per_outer_step(stacked):
    """(4) It is made of more than carries, or by what would run in every inner step."""

    def program(c, bound, xs):
        def level(c, row):
            step = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
            loop = lambda c: lax.scan(step, c, None, length=4)[0]
            return lax.cond(c[0] < bound, loop, keep, c), stacked(c, row)

        return lax.scan(level, c, xs)

    because = "stacked once per outer step"
    check_refuses(CARRIED, program, "f32[3]", "f32[]", "f32[3,3]", because=because)


def test_what_an_outer_step_ends_with_is_stacked():
    """(4) It is no function of what the step starts with."""

    def program(c, bound):
        def step(c, _):
            return lax.cond(c[0] < bound, jnp.sin, keep, c), None

        def level(c, _):
            loop = lambda c: lax.scan(step, c, None, length=4)[0]
            new = lax.cond(c[0] < bound, loop, keep, c)
            return new, new

        return lax.scan(level, c, None, length=3)

    check_refuses(CARRIED, program, "f32[3]", "f32[]", because="stacked once per outer step")


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (nest(unroll=2), "asks to be unrolled"),
        (nest(reverse=True), "opposite directions"),
        (nest(body=lambda c: (jax.debug.print("{}", c[0]), c + 1)[1]), "does more than running"),
    ],
)
def test_loops_that_are_not_alike(program, because):
    """(5) Unrolled on request, in opposite directions, with effects."""
    check_refuses(CARRIED, program, "f32[3]", "f32[]", because=because)


def test_more_steps_than_an_int32_counts():
    """(5)"""
    program = nest(seen=lambda c, b: c[0] < b, body=lambda c: c + 1, times=2**30)
    c, bound = jnp.zeros(3), jnp.float32(5)
    assert_same_bits(optimize(program)(c, bound), c + 5)
    check_refuses(CARRIED, program, c, bound, because="more steps than JAX counts")


def test_an_outer_loop_of_no_steps():
    """As many as the merged loop."""

    def program(c, bound, xs):
        def level(c, x):
            step = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
            loop = lambda c: lax.scan(step, c, None, length=4)[0]
            return lax.cond(c[0] < bound, loop, keep, c), jnp.cos(c)

        return lax.scan(level, c, xs)

    alone(CARRIED, program, "f32[3]", "f32[]", "f32[0]", fires=True)


def test_an_inner_loop_of_no_steps():
    """(5) There is nothing to merge."""

    def program(c, bound):
        def level(c, _):
            step = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
            loop = lambda c: lax.scan(step, c, None, length=0)[0]
            return lax.cond(c[0] < bound, loop, keep, c), None

        return lax.scan(level, c, None, length=3)[0]

    check_refuses(CARRIED, program, "f32[3]", "f32[]", because="the inner loop is empty")


def test_a_predicate_that_is_stacked_is_that_of_both_loops():
    """(2b, 3) In steps that the outer loop skips it is false, whatever the inner loop's says."""

    def program(x, taken, numbers):
        def inner(b, k):
            p = k < 3
            return lax.cond(p, lambda: b * 2, lambda: b), p

        def outer(c, row):
            p, ks = row
            skipped = lambda: (c, jnp.zeros(4, bool))
            return lax.cond(p, lambda: lax.scan(inner, c, ks), skipped)

        return lax.scan(outer, x, (taken, numbers))

    taken, numbers = np.array([True, False, True]), np.arange(12, dtype=np.int32).reshape(3, 4)
    alone(UPFRONT, program, np.ones(3, np.float32), taken, numbers % 5, fires=True)
