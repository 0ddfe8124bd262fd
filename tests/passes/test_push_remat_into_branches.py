"""Only the branch taken is recomputed; a remat with other work in it stays around it."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.ir.graph import Cond, Remat
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.push_remat_into_branches import PushRematIntoBranches
from jaxpr_opt.passes.steps.fuse_branches import FuseBranches
from jaxpr_opt.testing import (
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
)

PUSH = PushRematIntoBranches()


class Finally(PushRematIntoBranches):
    """(4) When nothing differentiates any more."""

    phase = "final"


def test_cond_of_remats():
    """(3) The predicate is made outside; the branch that does nothing has nothing to recompute."""

    def program(n, x):
        @jax.checkpoint
        def step(n, x):
            y = x * 2.0
            z = lax.cond(n < 3, lambda: jnp.sin(y @ y), lambda: x)
            return z + 1.0

        return step(n, x)

    check_rewrite(
        Finally(),
        program,
        "i32[]",
        "f32[3,3]",
        diff="""
          fn (n:i32[], x:f32[3,3]) {
        -   r:f32[3,3] = remat {
        -     m:f32[3,3] = mul x 2.0
        -     l:bool[] = lt n 3
        -     c:i32[] = convert_element_type l
        -     r:f32[3,3] = cond l {
        -       d:f32[3,3] = dot_general m m
        -       s:f32[3,3] = sin d
        -       yield s
        -     } else {
        -       yield x
        -     }
        -     a:f32[3,3] = add r 1.0
        -     yield a
        -   }
        +   l:bool[] = lt n 3
        +   r1:f32[3,3] = cond l {
        +     r1:f32[3,3] = remat {
        +       m1:f32[3,3] = mul x 2.0
        +       l1:bool[] = lt n 3
        +       c1:i32[] = convert_element_type l1
        +       d:f32[3,3] = dot_general m1 m1
        +       s:f32[3,3] = sin d
        +       a1:f32[3,3] = add s 1.0
        +       yield a1
        +     }
        +     yield r1
        +   } else {
        +     r1:f32[3,3] = remat {
        +       m:f32[3,3] = mul x 2.0
        +       l1:bool[] = lt n 3
        +       c:i32[] = convert_element_type l1
        +       a1:f32[3,3] = add x 1.0
        +       yield a1
        +     }
        +     yield r1
        +   }
        -   return r
        +   return r1
          }
        """,
    )


def test_gradient_of_a_checkpointed_switch():
    """Each branch and its transpose, and nothing else."""

    def program(i, x):
        def branchy(x):
            return lax.switch(i, [lambda: jnp.sin(x), lambda: x, lambda: x * x])

        return jax.grad(lambda x: jnp.sum(jax.checkpoint(branchy)(x)))(x)

    found = jax.make_jaxpr(program)(1, jnp.ones(3))
    check_unchanged_values(found)


def test_work_beside_the_cond():
    """(1) A product recomputed in any case is not repeated in the program for each branch."""

    def program(p, x):
        @jax.checkpoint
        def step(x):
            y = x @ x
            return lax.cond(p, lambda: jnp.sin(y), lambda: y)

        return step(x)

    check_refuses(PUSH, program, "bool[]", "f32[3,3]", because="dot_general is recomputed")


def test_predicate_that_is_computed():
    """(1, 3) Nor is a predicate that costs something to make."""

    def program(x):
        @jax.checkpoint
        def step(x):
            return lax.cond(jnp.sum(x) > 0, lambda: jnp.sin(x), lambda: x)

        return step(x)

    check_refuses(PUSH, program, "f32[3]", because="reduce_sum is recomputed whichever")


def test_two_conds():
    """(1) One cond only, to begin with: two on one predicate fuse, two on two stay."""

    def program(p, q, x):
        @jax.checkpoint
        def step(x):
            y = lax.cond(p, lambda: jnp.sin(x), lambda: x)
            return lax.cond(q, lambda: jnp.sin(y), lambda: y)

        return step(x)

    check_rewrite(
        Finally(),
        program,
        "bool[]",
        "bool[]",
        "f32[3]",
        diff="""
        fn (p:bool[], q:bool[], x:f32[3]) {
          r:f32[3] = remat {
            c:i32[] = convert_element_type p
            r:f32[3] = cond p {
              s:f32[3] = sin x
              yield s
            } else {
              yield x
            }
            c1:i32[] = convert_element_type q
            r1:f32[3] = cond q {
              s:f32[3] = sin r
              yield s
            } else {
              yield r
            }
            yield r1
          }
          return r
        }
        """,
    )


def test_effects():
    """(2) They happen where, and as often as, they did."""

    def program(p, x):
        @jax.checkpoint
        def step(x):
            return lax.cond(p, lambda: lax.optimization_barrier(x), lambda: x)

        return step(x)

    check_refuses(PUSH, program, "bool[]", "f32[3]", because="a branch has effects")


def test_too_many_ops():
    """(1) Condition: few ops."""

    def program(p, x):
        @jax.checkpoint
        def step(x):
            y = lax.cond(p, lambda: x @ x, lambda: x)
            for _ in range(39):
                y = jnp.sin(y)
            return y

        return step(x)

    check_refuses(PUSH, program, "bool[]", "f32[3,3]", because="ops beside the cond")


def test_before_it_is_differentiated():
    """(4) JAX would make straight code of the branch: a mask, and its product with a cotangent."""

    def program(p, x):
        step = jax.checkpoint(lambda x: lax.cond(p, lambda: jnp.max(x), lambda: x[0]))
        return step(x)

    check_refuses(PUSH, program, "bool[]", "f32[3]", because="has not differentiated it yet")


def check_unchanged_values(jaxpr):
    """Every value of the optimised gradient is the same, and no remat is around a cond any more."""
    graph = import_jaxpr(jaxpr)
    run_alone((*CLEANUP, FuseBranches(), PUSH), graph)
    for i in range(3):
        wanted = evaluate_exactly(jaxpr, jnp.int32(i), jnp.arange(3.0))
        assert_same_bits(wanted, evaluate_exactly(graph, jnp.int32(i), jnp.arange(3.0)))
    remats = [op for op in graph.walk() if isinstance(op, Remat)]
    assert remats
    assert not any(isinstance(op, Cond) for remat in remats for op in remat.body.ops)
