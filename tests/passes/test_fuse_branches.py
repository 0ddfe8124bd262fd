"""Two conds on one predicate become one, unless something between them needs them apart."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.passes.steps.fuse_branches import FuseBranches
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.passes.dummies import anything

FUSE = FuseBranches()


def test_residual_never_leaves_its_branch():
    """(2) What the second reads of the first is what the same branch made."""

    def program(p, x, w):
        r = lax.cond(p, lambda: jnp.sin(x @ w), lambda: anything(3))
        y = x * 2.0
        return lax.cond(p, lambda: r * y, lambda: y)

    check_rewrite(
        FUSE,
        program,
        "bool[]",
        "f32[3]",
        "f32[3,3]",
        simplify=True,
        diff="""
          fn (p:bool[], x:f32[3], w:f32[3,3]) {
        -   r:f32[3] = cond p {
        -     d:f32[3] = dot_general x w
        -     s:f32[3] = sin d
        -     yield s
        -   } else {
        -     u:f32[3] = undefined
        -     yield u
        -   }
            m:f32[3] = mul x 2.0
            r1:f32[3] = cond p {
        +     d:f32[3] = dot_general x w
        +     s:f32[3] = sin d
        -     m1:f32[3] = mul r m
        +     m1:f32[3] = mul s m
              yield m1
            } else {
              yield m
            }
            return r1
          }
        """,
    )


def test_result_that_others_read_stays_a_result():
    """The first's results are results of the cond that is left."""

    def program(p, x):
        h, r = lax.cond(p, lambda: (jnp.sin(x), jnp.cos(x)), lambda: (x, x * 2.0))
        g = lax.cond(p, lambda: r * 3.0, lambda: r)
        return h, g, r

    check_rewrite(
        FUSE,
        program,
        "bool[]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (p:bool[], x:f32[3]) {
        -   r:f32[3], r1:f32[3] = cond p {
        +   r:f32[3], r1:f32[3], r3:f32[3] = cond p {
              s:f32[3] = sin x
              c:f32[3] = cos x
        +     m1:f32[3] = mul c 3.0
        -     yield s, c
        +     yield s, c, m1
            } else {
              m:f32[3] = mul x 2.0
        -     yield x, m
        +     yield x, m, m
            }
        -   r2:f32[3] = cond p {
        -     m:f32[3] = mul r1 3.0
        -     yield m
        -   } else {
        -     yield r1
        -   }
        -   return r, r2, r1
        +   return r, r3, r1
          }
        """,
    )


def test_switches_and_three_in_a_row():
    """Any number of branches, any number of conds."""

    def program(i, x):
        k = lax.clamp(0, i, 2)
        a = lax.switch(k, [lambda: x, lambda: jnp.sin(x), lambda: jnp.cos(x)])
        b = lax.switch(k, [lambda: a, lambda: a * 2.0, lambda: x])
        return lax.switch(k, [lambda: b, lambda: a * b, lambda: b + 1.0])

    check_rewrite(
        FUSE,
        program,
        "i32[]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (i:i32[], x:f32[3]) {
            c:i32[] = clamp 0 i 2
            r:f32[3] = switch c case 0 {
              yield x
            } case 1 {
              s:f32[3] = sin x
        +     m1:f32[3] = mul s 2.0
        +     m2:f32[3] = mul s m1
        -     yield s
        +     yield m2
            } case 2 {
        -     c:f32[3] = cos x
        +     a1:f32[3] = add x 1.0
        -     yield c
        +     yield a1
            }
        -   r1:f32[3] = switch c case 0 {
        -     yield r
        -   } case 1 {
        -     m:f32[3] = mul r 2.0
        -     yield m
        -   } case 2 {
        -     yield x
        -   }
        -   r2:f32[3] = switch c case 0 {
        -     yield r1
        -   } case 1 {
        -     m:f32[3] = mul r r1
        -     yield m
        -   } case 2 {
        -     a:f32[3] = add r1 1.0
        -     yield a
        -   }
        -   return r2
        +   return r
          }
        """,
    )


def test_op_between_them_reads_the_first():
    """(2) A loss is computed from the one and its cotangent read by the other."""

    def program(p, x):
        h, r = lax.cond(p, lambda: (jnp.sin(x), jnp.cos(x)), lambda: (x, x))
        loss = jnp.sum(h * h)
        return loss, lax.cond(p, lambda: loss * r, lambda: r)

    check_refuses(
        FUSE,
        program,
        "bool[]",
        "f32[3]",
        simplify=True,
        because="which is made from the first",
    )


@pytest.mark.parametrize("early", [True, False])
def test_effects_keep_their_order(early):
    """(1) A print between the two, or in one of them."""

    def program(p, x):
        def shown():
            jax.debug.callback(lambda _: None, x[0])
            return jnp.sin(x)

        first, last = (shown, lambda: r * 2.0) if early else (lambda: jnp.sin(x), shown)
        r = lax.cond(p, first, lambda: x)
        return lax.cond(p, last, lambda: r)

    check_refuses(FUSE, program, "bool[]", "f32[3]", because="a branch has effects")


def test_barrier_between_them():
    """(2) What the second needs cannot move before the first."""

    def program(p, x):
        r = lax.cond(p, lambda: jnp.sin(x), lambda: x)
        y = lax.optimization_barrier(x)
        return lax.cond(p, lambda: r * y, lambda: r)

    check_refuses(FUSE, program, "bool[]", "f32[3]", because="optimization_barrier stays between")


def test_other_predicate():
    """Two conds on two predicates are none of its business."""

    def program(p, q, x):
        r = lax.cond(p, lambda: jnp.sin(x), lambda: x)
        return lax.cond(q, lambda: r * 2.0, lambda: r)

    check_rewrite(
        FUSE,
        program,
        "bool[]",
        "bool[]",
        "f32[3]",
        simplify=True,
        diff="""
        fn (p:bool[], q:bool[], x:f32[3]) {
          r:f32[3] = cond p {
            s:f32[3] = sin x
            yield s
          } else {
            yield x
          }
          r1:f32[3] = cond q {
            m:f32[3] = mul r 2.0
            yield m
          } else {
            yield r
          }
          return r1
        }
        """,
    )


def test_the_halves_of_a_program_that_is_split_stay_apart():
    """(3) The backward cond runs at the place of the forward one only if nothing is split."""

    def branch(x):
        return lax.cond(x[0] > 0, lambda x: jnp.sin(x) * x, jnp.cos, x)

    x, ct = jnp.arange(1.0, 4.0), jnp.ones(3)
    expected, pull = jax.vjp(branch, x)
    got, pulled = jax.vjp(jaxpr_opt.optimize(branch), x)
    assert jnp.array_equal(got, expected)
    assert jnp.allclose(pulled(ct)[0], pull(ct)[0])


def test_conds_of_more_branches_on_one_number():
    """(4) Its range makes the clamps of both one value, which takes branches of one number."""
    branches = [jnp.sin, jnp.cos, lambda x: 2 * x, lambda x: x - 1]

    def program(x):
        def step(c, t):
            b = lax.switch(t, branches, c)
            return lax.switch(t, branches[:3], b) + b, b

        return lax.scan(step, x, jnp.arange(3))

    x = jnp.arange(1.0, 4.0)
    assert_close(jaxpr_opt.optimize(program)(x), jax.jit(program)(x))
