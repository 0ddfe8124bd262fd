"""What a checkpoint keeps apart from other ops: nothing, if JAX or XLA would not mix them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Remat
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.open_checkpoints import OpenCheckpoints
from jaxpr_opt.testing import check_rewrite, run_alone

OPEN = OpenCheckpoints()


class Finally(OpenCheckpoints):
    """When nothing differentiates any more."""

    phase = "final"


def checkpoints(program, *args, law=OPEN):
    """How many a program has after the law."""
    graph = import_jaxpr(jax.make_jaxpr(program)(*args), law.phase)
    run_alone((law,), graph)
    return sum(isinstance(op, Remat) for op in graph.walk())


def test_moves_only():
    """(1) There is nothing to recompute."""

    def program(x):
        return jax.checkpoint(lambda x: (jnp.broadcast_to(x, (2, 3)), x.reshape(3, 1)))(x)

    check_rewrite(
        OPEN,
        program,
        "f32[3]",
        diff="""
          fn (x:f32[3]) {
        -   r:f32[2,3], r1:f32[3,1] = remat {
        -     b:f32[2,3] = broadcast_in_dim x
        -     r:f32[3,1] = reshape x
        -     yield b, r
        -   }
        +   b:f32[2,3] = broadcast_in_dim x
        +   r:f32[3,1] = reshape x
        -   return r, r1
        +   return b, r
          }
        """,
    )


def loop(body, xs):
    """A gradient of a loop over checkpointed steps."""
    return jax.grad(lambda xs: lax.scan(body, jnp.ones(3), xs)[0].sum())(xs)


def test_transposed_step():
    """(3) The values were computed first in another loop."""

    def program(xs):
        return loop(lambda c, x: (jax.checkpoint(lambda c, x: jnp.sin(c * x))(c, x), None), xs)

    check_rewrite(
        Finally(),
        program,
        "f32[5,3]",
        diff="""
          fn (xs:f32[5,3]) {
            b:f32[3] = broadcast_in_dim 1.0
            c:f32[3], ys:f32[5,3] = scan[5] carry(c=b) xs(x=xs) {
              m:f32[3] = mul c x
              s:f32[3] = sin m
              yield carry(s) ys(c)
            }
            r:f32[] = reduce_sum[axes=(0,)] c
            b1:f32[3] = broadcast_in_dim 0.0
            b2:f32[3] = broadcast_in_dim 1.0
            c1:f32[3], ys1:f32[5,3] = scan[5, reverse] carry(c=b2) xs(x=ys, x1=xs) {
        -     r:f32[3], r1:f32[3] = remat[differentiated] {
        -       m:f32[3] = mul x x1
        -       c1:f32[3] = cos m
        -       m1:f32[3] = mul c c1
        -       m2:f32[3] = mul x m1
        -       m3:f32[3] = mul m1 x1
        -       yield m3, m2
        -     }
        +     m:f32[3] = mul x x1
        +     c1:f32[3] = cos m
        +     m1:f32[3] = mul c c1
        +     m2:f32[3] = mul x m1
        +     m3:f32[3] = mul m1 x1
        -     yield carry(r) ys(r1)
        +     yield carry(m3) ys(m2)
            }
            return ys1
          }
        """,
    )


def test_before_it_is_differentiated():
    """(1) JAX may still differentiate it, and then it recomputes."""
    program = jax.checkpoint(jnp.sin)
    assert checkpoints(program, jnp.ones(3)) == 1
    assert checkpoints(program, jnp.ones(3), law=Finally()) == 0


def test_straight_code():
    """(2) XLA would take the values from where they were computed first."""

    def program(x):
        return jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()))(x)

    assert checkpoints(program, jnp.ones(3), law=Finally()) == 1


def straight(x):
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(x * x).sum()))(x)


BOUNDED = CostModel().at(0.0, 1.0)


def test_checkpoint_that_the_device_ignores(dividing):
    """(4) Under a budget it is what XLA makes of it."""
    with using(BOUNDED):
        check_rewrite(
            Finally(),
            straight,
            "f32[3]",
            diff="""
                fn (x:f32[3]) {
                  m:f32[3] = mul x x
                  s:f32[3] = sin m
                  r:f32[] = reduce_sum[axes=(0,)] s
              -   r1:f32[3] = remat[differentiated] {
              -     m:f32[3] = mul x x
              -     c:f32[3] = cos m
              -     b:f32[3] = broadcast_in_dim 1.0
              -     m1:f32[3] = mul b c
              -     m2:f32[3] = mul x m1
              -     m3:f32[3] = mul m1 x
              -     a:f32[3] = add_any m2 m3
              -     yield a
              -   }
              +   m4:f32[3] = mul x x
              +   c:f32[3] = cos m4
              +   b:f32[3] = broadcast_in_dim 1.0
              +   m1:f32[3] = mul b c
              +   m2:f32[3] = mul x m1
              +   m3:f32[3] = mul m1 x
              +   a:f32[3] = add_any m2 m3
              -   return r1
              +   return a
                }
            """,
        )


@pytest.mark.parametrize(
    "model", [CostModel(), *CostModel().thrifty(), pytest.param(None, id="differentiable")]
)
def test_without_a_budget_the_device_ignores_nothing(dividing, model):
    """(4) Barriers still order a little; and what is differentiated next is computed again."""
    law = Finally() if model is not None else OPEN
    with using(model or BOUNDED):
        assert checkpoints(straight, jnp.ones(3), law=law) == 1


def test_checkpoint_where_barriers_are_kept(barriers):
    """(4) XLA computes it again."""
    with using(BOUNDED):
        assert checkpoints(straight, jnp.ones(3), law=Finally()) == 1


def trained(x):
    """Steps each of which computes a gradient of two checkpoints."""
    f = lambda x: jax.checkpoint(jnp.sin)(jax.checkpoint(lambda x: jnp.sin(x * x))(x)).sum()
    return lax.scan(lambda x, _: (x - jax.grad(f)(x), None), x, length=3)[0]


def test_beside_what_it_computes_again(dividing):
    """(4) In a step, too."""
    with using(BOUNDED):
        assert checkpoints(trained, jnp.ones(3), law=Finally()) == 0
    assert checkpoints(trained, jnp.ones(3), law=Finally()) > 0


@pytest.mark.parametrize("model", [CostModel(), BOUNDED])
def test_two_in_a_step(dividing, model):
    """(3, 4) The values of both would be computed at the same time; they are not beside those."""

    def body(c, x):
        for _ in range(2):
            c = jax.checkpoint(lambda c: jnp.sin(jnp.sin(c)))(c)
        return c * x, None

    def program(xs):
        return loop(body, xs)

    with using(model):
        assert checkpoints(program, jnp.ones((5, 3)), law=Finally()) == 2


def test_branch_of_a_step():
    """(3) A branch that was computed before is no step."""

    def body(c, x):
        f = jax.checkpoint(lambda c: jnp.sin(jnp.sin(c)))
        return lax.cond(c[0] > 0, lambda c: f(c) * x, lambda c: c, c), None

    def program(xs):
        return loop(body, xs)

    assert checkpoints(program, jnp.ones((5, 3)), law=Finally()) == 1


@pytest.mark.parametrize(("steps", "left"), [(2, 1), (40, 0)])
def test_weights_that_are_sliced(steps, left):
    """(3) XLA would slice them once, before the loop: not if they are larger than the rows."""

    def program(ws, xs):
        body = lambda c, x: (
            jax.checkpoint(lambda c, x: jnp.sin(ws[0] @ jnp.sin(c) + x))(c, x),
            None,
        )
        return jax.grad(lambda xs: lax.scan(body, jnp.ones(8), xs)[0].sum())(xs)

    assert checkpoints(program, jnp.ones((2, 8, 8)), jnp.ones((steps, 8)), law=Finally()) == left


def test_loop_that_stops_early():
    """Passes see into checkpointed steps: the loop there and the loop back stop early."""

    def program(x, n):
        @jax.checkpoint
        def body(x, t):
            return jnp.where(t < n, jnp.sin(x), x), None

        return lax.scan(body, x, jnp.arange(100))[0].sum()

    args = jnp.ones(300), 3
    for function in (program, jax.grad(program)):
        report = jaxpr_opt.explain(function, *args)
        assert "exit-loop-early" in str(report)
        wanted, found = jax.jit(function)(*args), jaxpr_opt.optimize(function)(*args)
        assert jnp.allclose(wanted, found, rtol=1e-6)
