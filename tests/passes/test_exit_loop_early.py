"""Loops whose remaining steps do nothing stop; others run on."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite, traced
from tests.loops import alone, keep
from tests.prices import EAGER
from tests.stopping import KNOWN, known, stopping

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def test_a_loop_stops_after_the_last_step_taken():
    check_rewrite(
        EXIT,
        stopping(),
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3] = scan[5] carry(c=c) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 bound
        -     r:f32[3] = cond l {
        -       s:f32[3] = sin c
        -       yield s
        -     } else {
        -       yield c
        -     }
        -     yield carry(r)
        -   }
        +   c2:i32[], c3:f32[3] = while carry(c2=0, c3=c) {
        +     l1:bool[] = lt c2 5
        +     s:f32[1] = slice[:1] c3
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 bound
        +     r1:bool[] = reduce_or l
        +     a:bool[] = and l1 r1
        +     yield a
        +   } do {
        +     s:f32[3] = sin c3
        +     a:i32[] = add c2 1
        +     yield carry(a, s)
        +   }
        -   return c1
        +   return c3
          }
        """,
    )


def test_a_loop_that_runs_backwards_starts_at_the_last_step_taken():
    check_rewrite(
        EXIT,
        known(reverse=True),
        *KNOWN,
        simplify=True,
        diff="""
          fn (c:f32[3], xs:f32[5,3], n:i32[]) {
        -   i:i32[5] = iota
        -   c1:f32[3] = scan[5, reverse] carry(c=c) xs(x=i, x1=xs) {
        -     l:bool[] = lt x n
        -     r:f32[3] = cond l {
        -       a:f32[3] = add c x1
        -       yield a
        -     } else {
        -       yield c
        -     }
        -     yield carry(r)
        -   }
        +   c2:i32[] = clamp 0 n 5
        +   s:i32[] = sub c2 1
        +   c3:i32[], c4:f32[3] = while carry(c2=s, c3=c) {
        +     g:bool[] = ge c2 0
        +     yield g
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c2 0
        +     s:f32[3] = squeeze d
        +     a1:f32[3] = add c3 s
        +     s1:i32[] = sub c2 1
        +     yield carry(s1, a1)
        +   }
        -   return c1
        +   return c4
          }
        """,
    )


def test_a_predicate_that_comes_back_to_true():
    """(2) The last step taken ends the loop, the cond stays for those in between."""

    def program(c, mask):
        return lax.scan(lambda c, p: (lax.cond(p, jnp.sin, keep, c), None), c, mask)[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "bool[5]",
        simplify=True,
        diff="""
          fn (c:f32[3], mask:bool[5]) {
        -   c1:f32[3] = scan[5] carry(c=c) xs(x=mask) {
        -     r:f32[3] = cond x {
        -       s:f32[3] = sin c
        -       yield s
        -     } else {
        -       yield c
        -     }
        -     yield carry(r)
        -   }
        +   r1:bool[5,1] = reshape mask
        +   r2:bool[5] = reduce_or[axes=(1,)] r1
        +   i:i32[5] = iota
        +   a:i32[5] = add 1 i
        +   b:i32[5] = broadcast_in_dim 0
        +   s1:i32[5] = select_n r2 b a
        +   r3:i32[] = reduce_max[axes=(0,)] s1
        +   c2:i32[], c3:f32[3] = while carry(c2=0, c3=c) {
        +     l:bool[] = lt c2 r3
        +     yield l
        +   } do {
        +     d:bool[1] = dynamic_slice mask c2
        +     s1:bool[] = squeeze d
        +     r1:f32[3] = cond s1 {
        +       s:f32[3] = sin c3
        +       yield s
        +     } else {
        +       yield c3
        +     }
        +     a:i32[] = add c2 1
        +     yield carry(a, r1)
        +   }
        -   return c1
        +   return c3
          }
        """,
    )


def test_keys_and_complex_numbers_are_carried_read_and_stacked():
    def program(keys, n):
        def body(carry, key):
            i, k, z = carry
            step = lambda: (i + 1, jax.random.fold_in(key, i), z * 1j)
            return lax.cond(i < n, step, lambda: (i, k, z)), k

        init = (jnp.int32(0), jax.random.key(1), jnp.complex64(1))
        return lax.scan(body, init, keys)

    for n in (0, 2, 9):
        keys = jax.random.split(jax.random.key(0), 4)
        alone(EXIT, program, keys, jnp.int32(n), fires=True)


def test_a_predicate_that_may_not_end():
    """(3) A question with a loop in it."""
    seen = lambda c, b: lax.while_loop(lambda x: x < 0, lambda x: x + 1, c[0]) < b
    check_refuses(
        EXIT, stopping(seen=seen), "f32[3]", "f32[]", because="has effects or may not end"
    )


def test_a_step_with_effects():
    """(3) A skipped step must have none, and one that is taken keeps its place."""
    what = lambda p, c: jax.debug.print("{}", p)
    check_refuses(EXIT, stopping(what), "f32[3]", "f32[]", because="a step has effects")


def test_a_barrier_has_no_effects():
    """(3) Other passes leave one between a read and a write, as `undo-carried-writes` does."""

    def program(c, bound):
        def body(c, _):
            new, old = lax.optimization_barrier((jnp.sin(c), c))
            return jnp.where(c[0] < bound, new, old), None

        return lax.scan(body, c, None, length=5)

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3] = scan[5] carry(c=c) {
        -     s:f32[3] = sin c
        -     o:f32[3], o1:f32[3] = optimization_barrier s c
        -     s1:f32[1] = slice[:1] c
        -     s2:f32[] = squeeze s1
        -     l:bool[] = lt s2 bound
        -     s3:f32[3] = select_n l o1 o
        -     yield carry(s3)
        -   }
        +   c2:i32[], c3:f32[3] = while carry(c2=0, c3=c) {
        +     l1:bool[] = lt c2 5
        +     s1:f32[1] = slice[:1] c3
        +     s2:f32[] = squeeze s1
        +     l:bool[] = lt s2 bound
        +     r:bool[] = reduce_or l
        +     a:bool[] = and l1 r
        +     yield a
        +   } do {
        +     s:f32[3] = sin c3
        +     o:f32[3], o1:f32[3] = optimization_barrier s c3
        +     a:i32[] = add c2 1
        +     yield carry(a, o)
        +   }
        -   return c1
        +   return c3
          }
        """,
    )


def test_only_when_nothing_differentiates_any_more():
    """(5) A while loop has no transpose."""
    jaxpr = traced(stopping(), "f32[3]", "f32[]")
    assert not resolve([EXIT]).run(jaxpr, "differentiable").changed
    assert resolve([EXIT]).run(jaxpr, "final").changed


def test_a_step_that_communicates():
    """Every device must take part in it."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec()

    def program(c, bound):
        inner = stopping(step=lambda c: lax.pmean(c, "i"))
        run = jax.shard_map(
            lambda c, b: inner(c, b)[0],
            mesh=mesh,
            in_specs=(spec, spec),
            out_specs=spec,
            check_vma=False,
        )
        return run(c, bound)

    check_refuses(EXIT, program, "f32[3]", "f32[]", because="a step has collectives")


def test_a_step_that_communicates_where_all_devices_stop_together():
    """(3) The bound is the same on every device, which JAX's types know."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = PartitionSpec(), PartitionSpec("i")

    def program(c, bound):
        step = lambda c: (c[0] + 1, c[1] * lax.psum(jnp.sum(c[1]), "i"))
        seen = lambda c, b: c[0] < b
        inner = stopping(step=step, seen=seen)
        run = jax.shard_map(
            lambda i, x, b: inner((i, x), b)[0],
            mesh=mesh,
            in_specs=(whole, rows, whole),
            out_specs=(whole, rows),
        )
        return run(jnp.int32(0), c, bound)

    graph = alone(EXIT, program, "f32[3]", "i32[]", fires=True)
    assert any(isinstance(op, While) for op in graph.walk())


def test_predicates_of_whole_rows():
    """(6) Whether all of them hold is asked of many rows as of one."""

    def program(c, xs):
        body = lambda c, x: (lax.cond(jnp.all(x < 1.0), jnp.sin, keep, c), None)
        return lax.scan(body, c, xs)[0]

    alone(EXIT, program, "f32[3]", "f32[5,3]", fires=True)


def test_predicates_that_may_round_differently_all_at_once():
    """(6) A sum over a row is not computed for all rows together."""

    def program(c, xs):
        body = lambda c, x: (lax.cond(jnp.sum(x) < 1.0, jnp.sin, keep, c), None)
        return lax.scan(body, c, xs)[0]

    check_refuses(EXIT, program, "f32[3]", "f32[5,3]", because="round differently")


def test_predicates_that_compare_a_sum_of_products():
    """(6) One instruction may multiply and add, and round once; elsewhere two may do it."""

    def program(c, xs, ys, n):
        taken = lambda x, y, t: x * y + t < 1.0
        body = lambda c, x: (lax.cond(taken(*x), jnp.sin, keep, c), None)
        return lax.scan(body, c, (xs, ys, n))[0]

    rows = "f32[5]"
    check_refuses(EXIT, program, "f32[3]", rows, rows, rows, because="round differently")


def test_while_it_may_be_differentiated():
    """(5) JAX does not transpose a loop whose end is not known."""
    alone(EXIT, stopping(), "f32[3]", "f32[]", fires=False, phase="differentiable")


@pytest.mark.parametrize("inside", [True, False])
def test_both_loops_of_a_gradient_stop(inside):
    """A batch of sequences, each of which writes zeros once it has ended."""

    def loss(w, xs, lengths):
        def one(x, length):
            def step(t, state):
                h, ys = state
                h = jnp.where(t < length, jnp.tanh(w @ h + x[t]), h)
                return h, ys.at[t].set(jnp.where(t < length, h, 0.0))

            return lax.fori_loop(0, len(x), step, (jnp.zeros(4), jnp.zeros_like(x)))[1]

        return (jax.vmap(one)(xs, lengths) ** 2).sum()

    args = jnp.eye(4) / 2, jnp.ones((3, 6, 4)), jnp.asarray([2, 3, 1])
    gradient = jax.grad(optimize(loss)) if inside else optimize(jax.grad(loss))
    graph, _ = observe.optimized(gradient, args, {})
    loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
    assert len(loops) > 1
    assert all(isinstance(op, While) for op in loops)
    assert_same(gradient, jax.grad(loss), args, grad=False)
