"""What branches give the loop back is looked at value by value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.passes.residuals.split_branch_results import SplitBranchResults
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone, unspecified
from tests.prices import EAGER

SPLIT = SplitBranchResults()
MODEL = EAGER
TYPES = "f32[3]", "bool[4]", "f32[3]"


def forward(c, ps, w):
    """A loop of which a branch hands on an outer value, the other one one of its own."""

    def body(c, p):
        def other():
            s = jnp.sin(c)
            return s * 0.5, s

        return lax.cond(p, lambda: (c * w, w), other)

    return lax.scan(body, c, ps)


def back(last, ps, rows, ask=lambda p: p, other=lambda d, q: d - q):
    def body(d, row):
        p, q = row
        return lax.cond(ask(p), lambda: d * q, lambda: other(d, q)), None

    return lax.scan(body, last, (ps, rows), reverse=True)[0]


def test_a_result_for_each_branch():
    """The outer value is a result of its own."""

    def program(c, ps, w):
        last, rows = forward(c, ps, w)
        return back(last, ps, rows)

    check_rewrite(
        SPLIT,
        program,
        *TYPES,
        diff="""
            fn (c:f32[3], ps:bool[4], w:f32[3]) {
          -   c1:f32[3], ys:f32[4,3] = scan[4] carry(c=c) xs(x=ps) {
          +   c1:f32[3], ys:f32[4,3], w1:f32[4,3] = scan[4] carry(c=c) xs(x=ps) {
                c1:i32[] = convert_element_type x
          -     r:f32[3], r1:f32[3] = cond x {
          +     r:f32[3], r1:f32[3], w1:f32[3] = cond x {
                  m:f32[3] = mul c w
          +       u:f32[3] = undefined
          -       yield m, w
          +       yield m, u, w
                } else {
                  s:f32[3] = sin c
                  m:f32[3] = mul s 0.5
          +       u:f32[3] = undefined
          -       yield m, s
          +       yield m, s, u
                }
          -     yield carry(r) ys(r1)
          +     yield carry(r) ys(r1, w1)
              }
          -   c2:f32[3] = scan[4, reverse] carry(c=c1) xs(x=ps, x1=ys) {
          +   c2:f32[3] = scan[4, reverse] carry(c=c1) xs(x=ps, x1=ys, w1=w1) {
                c1:i32[] = convert_element_type x
                r:f32[3] = cond x {
          -       m:f32[3] = mul c x1
          +       m:f32[3] = mul c w1
                  yield m
                } else {
                  s:f32[3] = sub c x1
                  yield s
                }
                yield carry(r)
              }
              return c2
            }
        """,
    )


def test_of_a_switch():
    """(2) By an integer; a branch that gives nothing is asked nothing."""

    def program(c, ks, w):
        def body(c, k):
            cases = (
                lambda: (c * w, w),
                lambda: (c * 0.5, jnp.sin(c)),
                lambda: (c, unspecified(c)),
            )
            return lax.switch(k, cases)

        def reader(d, row):
            k, q = row
            return lax.switch(k, (lambda: d * q, lambda: d - q, lambda: d)), None

        last, rows = lax.scan(body, c, ks)
        return lax.scan(reader, last, (ks, rows), reverse=True)[0]

    alone(SPLIT, program, "f32[3]", np.array([0, 2, 1, 5], np.int32), "f32[3]", fires=True)


@pytest.mark.parametrize("dtype", ["int32", "int8"])
def test_a_predicate_that_is_stacked_as_a_number(dtype):
    """(2) As JAX does."""

    def program(c, w):
        def body(c, _):
            p = c[0] > 0
            d, q = lax.cond(p, lambda: (c * w, w), lambda: (c * 0.5, jnp.sin(c)))
            return d, (p.astype(dtype), q)

        last, (ps, rows) = lax.scan(body, c, length=4)
        return back(last, ps, rows, lambda p: p != 0)

    alone(SPLIT, program, "f32[3]", "f32[3]", fires=True)


@pytest.mark.parametrize(
    "ask", [lambda p: ~p, lambda p: p.astype(jnp.int32) == 0, lambda p: p | True]
)
def test_another_predicate(ask):
    """(2) The branch of the other number, or any."""

    def program(c, ps, w):
        last, rows = forward(c, ps, w)
        return back(last, ps, rows, ask)

    alone(SPLIT, program, *TYPES, fires=False)


def test_a_number_that_lost_bits():
    """(2) 256 is true, but not as a byte."""

    def program(c, ks, w):
        def body(c, k):
            return lax.cond(k != 0, lambda: (c * w, w), lambda: (c * 0.5, jnp.sin(c)))

        last, rows = lax.scan(body, c, ks)
        return back(last, ks, rows, lambda k: k.astype(jnp.int8) != 0)

    alone(SPLIT, program, "f32[3]", np.array([0, 1, 256, 7], np.int32), "f32[3]", fires=False)


def test_predicates_of_other_steps():
    """(2) Row by row, but those of another array."""

    def program(c, ps, w):
        last, rows = forward(c, ps, w)
        return back(last, ps[::-1], rows)

    alone(SPLIT, program, *TYPES, fires=False)


def test_as_many_branches():
    """(2) Two conds on one number may have other branches."""

    def program(c, ks, w):
        def body(c, k):
            cases = lambda: (c * w, w), lambda: (c * 0.5, jnp.sin(c)), lambda: (c, c)
            return lax.switch(k, cases)

        def reader(d, row):
            k, q = row
            return lax.switch(k, (lambda: d * q, lambda: d - q, lambda: d, lambda: d + q)), None

        last, rows = lax.scan(body, c, ks)
        return lax.scan(reader, last, (ks, rows), reverse=True)[0]

    alone(SPLIT, program, "f32[3]", np.array([0, 2, 1, 5], np.int32), "f32[3]", fires=False)


def test_two_branches_for_three():
    """(2) Whether a number is zero tells two of three branches apart."""

    def program(c, ks, w):
        def body(c, k):
            j = jnp.clip(k, 0, 2)
            cases = lambda: (c * w, w), lambda: (c * 0.5, jnp.sin(c)), lambda: (c, c)
            d, q = lax.switch(j, cases)
            return d, (j, q)

        last, (js, rows) = lax.scan(body, c, ks)
        return back(last, js, rows, lambda j: j != 0)

    graph = import_jaxpr(traced(program, "f32[3]", "i32[4]", "f32[3]"))
    journal = run_alone((Simplify(), SPLIT), graph)
    assert journal.records["simplify"].rewrites
    assert SPLIT.name not in journal.records or not journal.records[SPLIT.name].rewrites


def test_read_by_a_nest_of_loops():
    """(2) Steps of a nest are not paired with those of one loop."""

    def program(c, ps, w):
        last, rows = forward(c, ps, w)
        inner = lambda d, each: (back(d, *each), None)
        split = ps.reshape(2, 2), rows.reshape(2, 2, 3)
        return lax.scan(inner, last, split, reverse=True)[0]

    alone(SPLIT, program, *TYPES, fires=False)


def test_read_outside_of_branches():
    """(2)"""

    def program(c, ps, w):
        last, rows = forward(c, ps, w)

        def body(d, row):
            p, q = row
            return lax.cond(p, lambda: d * q, lambda: d - q) + q, None

        return lax.scan(body, last, (ps, rows), reverse=True)[0]

    alone(SPLIT, program, *TYPES, fires=False)


def test_needed_whole():
    """(1)"""

    def program(c, ps, w):
        last, rows = forward(c, ps, w)
        return back(last, ps, rows), jnp.sum(rows)

    alone(SPLIT, program, *TYPES, fires=False)


def test_read_in_the_step():
    """(1) The step reads whichever it is."""

    def program(c, ps, w):
        def body(c, p):
            d, q = lax.cond(p, lambda: (c * w, w), lambda: (c * 0.5, jnp.sin(c)))
            return d + q, q

        last, rows = lax.scan(body, c, ps)
        return back(last, ps, rows)

    alone(SPLIT, program, *TYPES, fires=False)


def test_stacked_again():
    """(1) A loop around may stack them again, for one that is around the reader."""

    def program(c, ps, w):
        def outer(c, ps):
            return forward(c, ps, w)

        def outer_back(d, row):
            return back(d, *row), None

        last, rows = lax.scan(outer, c, ps)
        return lax.scan(outer_back, last, (ps, rows), reverse=True)[0]

    alone(SPLIT, program, "f32[3]", "bool[2,4]", "f32[3]", fires=True)


def test_a_question_that_changes_nothing():
    """(2) A select between a number and itself is that number."""

    def program(c, ks, w):
        def body(c, k):
            return lax.switch(
                k, (lambda: (c * w, w), lambda: (c * 0.5, jnp.sin(c)), lambda: (c, c))
            )

        def reader(d, row):
            k, q = row
            k = lax.select_n(k != 1, k, k)
            return lax.switch(k, (lambda: d * q, lambda: d - q, lambda: d)), None

        last, rows = lax.scan(body, c, ks)
        return lax.scan(reader, last, (ks, rows), reverse=True)[0]

    alone(SPLIT, program, "f32[3]", np.array([0, 2, 1, 5], np.int32), "f32[3]", fires=True)


def test_all_must_be_stored():
    """Nothing is gained where each branch gives what takes long to compute."""

    def program(c, ps):
        def body(c, p):
            return lax.cond(p, lambda: (c * 2, jnp.cos(c)), lambda: (c * 0.5, jnp.sin(c)))

        last, rows = lax.scan(body, c, ps)
        return back(last, ps, rows)

    check_refuses(SPLIT, program, "f32[3]", "bool[4]", because="all that branches give must be")


def chosen(c, x, w, v):
    return lax.cond(x > 0, lambda: jnp.sin(c * w), lambda: jnp.exp(-c * c) * w)


def two_layers(c, x, w, v):
    one = lambda: jnp.tanh(jnp.exp(-c * c * w) * v)
    return lax.cond(x > 0, one, lambda: jnp.cos(jnp.sin(c * v) * w) * jnp.sin(c * v))


def three(c, x, w, v):
    which = (x > 0).astype(jnp.int32) + (x > 1)
    cases = lambda: jnp.sin(c * w) * x, lambda: c + x, lambda: jnp.tanh(c) * w + x
    return lax.switch(which, cases)


def gated(c, x, w, v):
    return lax.cond(x > 0, lambda: c * jax.nn.sigmoid(c * w), lambda: jnp.tanh(c) * v)


def experts(c, x, w, v):
    which = (x > 0).astype(jnp.int32) + (x > 1)
    cases = lambda: jnp.tanh(c) * w, lambda: jax.nn.relu(c * v) * c, lambda: jnp.sin(c) * v
    return lax.switch(which, cases)


@pytest.mark.parametrize("step", [chosen, two_layers, three, gated, experts])
def test_gradients_of_branches(step):
    """Five programs whose branches need other values; the same gradients, in no more memory. JAX
    0.12 hands on fewer outer values.
    """

    def loss(c, xs, w, v):
        last = lax.scan(lambda c, x: (step(c, x, w, v), None), c, xs)[0]
        return jnp.sum(last**2)

    c, w, v = (jax.random.normal(jax.random.key(k), (2048,)) for k in range(3))
    xs = jax.random.normal(jax.random.key(4), (128,))
    wanted, args = jax.grad(loss, (0, 1, 2, 3)), (c, xs, w, v)
    with using(CostModel()):
        skip = ["split-branch-results"]
        programs = (wanted, optimize(wanted), optimize(wanted, skip=skip))
        plain, made, without = (jax.jit(f).lower(*args).compile() for f in programs)
    for one, other in zip(plain(*args), made(*args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    memory = [p.memory_analysis().temp_size_in_bytes for p in (plain, made, without)]
    assert memory[1] <= min(memory[0], memory[2])
