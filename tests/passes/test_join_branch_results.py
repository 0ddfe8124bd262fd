"""Results of different branches are stacked as one."""

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.passes.residuals.join_branch_results import JoinBranchResults
from jaxpr_opt.testing import check_rewrite
from tests.loops import alone, unspecified

JOIN = JoinBranchResults()


def apart(c, ps, ask=lambda p: p):
    """Two results, each of one branch."""

    def body(c, p):
        def one():
            e = jnp.exp(-c)
            return c * e, e, unspecified(c)

        def other():
            s = jnp.sin(c)
            return s * 0.5, unspecified(c), s

        d, e, s = lax.cond(p, one, other)
        return d, (e, s)

    def reader(d, row):
        p, (e, s) = row
        return lax.cond(ask(p), lambda: d * e, lambda: d - s), None

    last, rows = lax.scan(body, c, ps)
    return lax.scan(reader, last, (ps, rows), reverse=True)[0]


def test_one_result_for_both_branches():
    check_rewrite(
        JOIN,
        apart,
        "f32[3]",
        "bool[4]",
        saves_bytes=4 * 3 * 4,
        diff="""
            fn (c:f32[3], ps:bool[4]) {
          -   c1:f32[3], ys:f32[4,3], ys1:f32[4,3] = scan[4] carry(c=c) xs(x=ps) {
          +   c1:f32[3], ys:f32[4,3] = scan[4] carry(c=c) xs(x=ps) {
                c1:i32[] = convert_element_type x
          -     r:f32[3], r1:f32[3], r2:f32[3] = cond x {
          +     r:f32[3], r1:f32[3] = cond x {
                  n:f32[3] = neg c
                  e:f32[3] = exp n
                  m:f32[3] = mul c e
                  u:f32[] = undefined
                  u1:f32[3] = undefined
          -       yield m, e, u1
          +       yield m, e
                } else {
                  s:f32[3] = sin c
                  m:f32[3] = mul s 0.5
                  u:f32[] = undefined
                  u1:f32[3] = undefined
          -       yield m, u1, s
          +       yield m, s
                }
          -     yield carry(r) ys(r1, r2)
          +     yield carry(r) ys(r1)
              }
          -   c2:f32[3] = scan[4, reverse] carry(c=c1) xs(x=ps, x1=ys, x2=ys1) {
          +   c2:f32[3] = scan[4, reverse] carry(c=c1) xs(x=ps, x1=ys, x2=ys) {
                c1:i32[] = convert_element_type x
                r:f32[3] = cond x {
                  m:f32[3] = mul c x1
                  yield m
                } else {
                  s:f32[3] = sub c x2
                  yield s
                }
                yield carry(r)
              }
              return c2
            }
        """,
    )


def test_results_of_one_branch():
    """(1) Both are specified there."""

    def program(c, ps):
        def body(c, p):
            one = lambda: (c * 2, jnp.exp(-c), jnp.cos(c))
            other = lambda: (jnp.sin(c), unspecified(c), unspecified(c))
            d, e, s = lax.cond(p, one, other)
            return d, (e, s)

        return lax.scan(body, c, ps)

    alone(JOIN, program, "f32[3]", "bool[4]", fires=False)


def test_results_of_two_types():
    """(2)"""

    def program(c, ps):
        def body(c, p):
            one = lambda: (c * 2, jnp.exp(-c), unspecified(c[:2]))
            other = lambda: (jnp.sin(c), unspecified(c), jnp.cos(c[:2]))
            d, e, s = lax.cond(p, one, other)
            return d, (e, s)

        return lax.scan(body, c, ps)

    alone(JOIN, program, "f32[3]", "bool[4]", fires=False)


def test_the_same_value_first():
    """What two branches give alike is one result, though another one would do."""

    def program(c, ps):
        def body(c, p):
            e = jnp.exp(c)
            one = lambda: (c * 2, e, unspecified(c), unspecified(c))
            other = lambda: (jnp.sin(c), unspecified(c), jnp.cos(c), e)
            d, *rows = lax.cond(p, one, other)
            return d, rows

        def reader(d, row):
            p, (a, s, b) = row
            return lax.cond(p, lambda: d * a, lambda: d - s + b), None

        last, rows = lax.scan(body, c, ps)
        return lax.scan(reader, last, (ps, rows), reverse=True)[0]

    graph = alone(JOIN, program, "f32[3]", "bool[4]", fires=True)
    cond = next(op for op in graph.walk() if isinstance(op, Cond))
    left = [o for o in cond.outcomes if o.values[0] is o.values[1]]
    assert len(left) == 1 and len(cond.outcomes) == 3


def test_read_by_nobody_else():
    """Two stacks of one result are one stack, for whatever reads them."""

    def program(c, ps):
        def body(c, p):
            one = lambda: (c * 2, jnp.exp(-c), unspecified(c))
            other = lambda: (jnp.sin(c), unspecified(c), jnp.cos(c))
            d, e, s = lax.cond(p, one, other)
            return d, (e, s)

        last, (es, ss) = lax.scan(body, c, ps)
        return last, jnp.where(ps[:, None], es, ss)

    alone(JOIN, program, "f32[3]", "bool[4]", fires=True)
