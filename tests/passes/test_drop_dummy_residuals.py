"""What a branch hands out for another to read is read directly, where that costs nothing."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.drop_dummy_residuals import DropDummyResiduals
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone
from tests.passes.dummies import anything

DROP = DropDummyResiduals()


def test_weight_of_the_taken_branch_is_read_directly():
    """(1, 2) The result is the weight or a dummy: then it is the weight."""

    def program(p, w, c):
        d, r = lax.cond(p, lambda: (c @ w, w), lambda: (c, anything(3, 3)))
        return d, jnp.where(p, r, 0.0)

    check_rewrite(
        DROP,
        program,
        "bool[]",
        "f32[3,3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (p:bool[], w:f32[3,3], c:f32[3]) {
        -   r:f32[3], r1:f32[3,3] = cond p {
        +   r:f32[3] = cond p {
              d:f32[3] = dot_general c w
        -     yield d, w
        +     yield d
            } else {
        -     u:f32[3,3] = undefined
        -     yield c, u
        +     yield c
            }
            b:f32[3,3] = broadcast_in_dim 0.0
        -   s:f32[3,3] = select_n p b r1
        +   s:f32[3,3] = select_n p b w
            return r, s
          }
        """,
    )


def test_cheap_value_is_made_again_before_the_cond():
    """(2) It may run where it did not: it is cheap, and nothing can go wrong."""

    def program(p, w, c):
        d, r = lax.cond(p, lambda: (c @ w, (w * 2.0).T), lambda: (c, anything(3, 3)))
        return d, jnp.where(p, r, 0.0)

    check_rewrite(
        DROP,
        program,
        "bool[]",
        "f32[3,3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (p:bool[], w:f32[3,3], c:f32[3]) {
        +   m:f32[3,3] = mul w 2.0
        +   t:f32[3,3] = transpose m
        -   r:f32[3], r1:f32[3,3] = cond p {
        +   r:f32[3] = cond p {
              d:f32[3] = dot_general c w
        -     m:f32[3,3] = mul w 2.0
        -     t:f32[3,3] = transpose m
        -     yield d, t
        +     yield d
            } else {
        -     u:f32[3,3] = undefined
        -     yield c, u
        +     yield c
            }
            b:f32[3,3] = broadcast_in_dim 0.0
        -   s:f32[3,3] = select_n p b r1
        +   s:f32[3,3] = select_n p b t
            return r, s
          }
        """,
    )


def test_switch_whose_branches_agree():
    """(1) Several branches give the same value, others a dummy."""

    def program(i, w, c):
        d, r = lax.switch(
            i,
            [lambda: (c, anything(3)), lambda: (c * w, w), lambda: (jnp.sin(w), w)],
        )
        return d, jnp.where(i > 0, r, 0.0)

    check_rewrite(
        DROP,
        program,
        "i32[]",
        "f32[3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (i:i32[], w:f32[3], c:f32[3]) {
            c1:i32[] = clamp 0 i 2
        -   r:f32[3], r1:f32[3] = switch c1 case 0 {
        +   r:f32[3] = switch c1 case 0 {
        -     u:f32[3] = undefined
        -     yield c, u
        +     yield c
            } case 1 {
              m:f32[3] = mul c w
        -     yield m, w
        +     yield m
            } case 2 {
              s:f32[3] = sin w
        -     yield s, w
        +     yield s
            }
            g:bool[] = gt i 0
            b:f32[3] = broadcast_in_dim 0.0
        -   s:f32[3] = select_n g b r1
        +   s:f32[3] = select_n g b w
            return r, s
          }
        """,
    )


def test_select_with_an_unspecified_case():
    """(1) A vmapped cond is a select; what is invariant need not be selected."""

    def program(ps, w, xs):
        def step(c, row):
            p, x = row
            d = jnp.where(p[:, None], c * w + x, c)
            r = lax.select(jnp.broadcast_to(p[:, None], (2, 3)), w, anything(2, 3))
            return d, jnp.where(p[:, None] & (x > 0), r, 0.0)

        return lax.scan(step, xs[0], (ps, xs))

    check_rewrite(
        DROP,
        program,
        "bool[8,2]",
        "f32[2,3]",
        "f32[8,2,3]",
        simplify=True,
        diff="""
          fn (ps:bool[8,2], w:f32[2,3], xs:f32[8,2,3]) {
            s:f32[1,2,3] = slice[:1, :, :] xs
            s1:f32[2,3] = squeeze s
            c:f32[2,3], ys:f32[8,2,3] = scan[8] carry(c=s1) xs(x=ps, x1=xs) {
              b:bool[2,1] = broadcast_in_dim[dims=(0,)] x
              m:f32[2,3] = mul c w
              a:f32[2,3] = add m x1
              b1:bool[2,3] = broadcast_in_dim b
              s:f32[2,3] = select_n b1 c a
        -     u:f32[2,3] = undefined
        -     s1:f32[2,3] = select_n b1 u w
              g:bool[2,3] = gt x1 0.0
              a1:bool[2,3] = and b g
              b2:f32[2,3] = broadcast_in_dim 0.0
        -     s2:f32[2,3] = select_n a1 b2 s1
        +     s2:f32[2,3] = select_n a1 b2 w
              yield carry(s) ys(s2)
            }
            return c, ys
          }
        """,
    )


def test_result_read_under_the_same_predicate():
    """(3) In the other cond's branch it is known which of the two values it is."""

    def program(ps, w, c):
        def step(c, p):
            d, r = lax.cond(p, lambda: (c * w, w), lambda: (c, jnp.sin(c)))
            e = jnp.cumsum(d)
            return r, lax.cond(p, lambda: e * r, lambda: e)

        return lax.scan(step, c, ps)

    check_rewrite(
        DROP,
        program,
        "bool[2]",
        "f32[3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (ps:bool[2], w:f32[3], c:f32[3]) {
            c1:f32[3], ys:f32[2,3] = scan[2] carry(c=c) xs(x=ps) {
              r:f32[3], r1:f32[3] = cond x {
                m:f32[3] = mul c w
                yield m, w
              } else {
                s:f32[3] = sin c
                yield c, s
              }
              c1:f32[3] = cumsum[axis=0] r
              r2:f32[3] = cond x {
        -       m:f32[3] = mul c1 r1
        +       m:f32[3] = mul c1 w
                yield m
              } else {
                yield c1
              }
              yield carry(r1) ys(r2)
            }
            return c1, ys
          }
        """,
    )


@pytest.mark.parametrize("also_read", [True, False])
def test_a_buffer_that_a_branch_updates(also_read):
    """Both versions would be read, and XLA would copy the array for the branch that writes."""

    def program(ps, c):
        def step(c, p):
            d = lax.cond(p, lambda: c.at[0].set(2.0), lambda: c)
            return lax.cond(p, lambda: d.at[1].set(3.0) if also_read else c + 1.0, lambda: d), None

        return lax.scan(step, c, ps)[0]

    alone(DROP, program, "bool[2]", "f32[3]", fires=not also_read)


def test_result_read_under_the_same_predicate_outside_of_loops():
    """It is kept once: under `vmap` all cases would multiply by a weight of their own."""

    def program(i, x, a, b):
        y, r = lax.cond(i, lambda: (x @ a, a), lambda: (x @ b, b))
        return lax.cond(i, lambda: jnp.sin(y) @ r, lambda: jnp.cos(y) @ r)

    types = "bool[]", "f32[3]", "f32[3,3]", "f32[3,3]"
    check_refuses(DROP, program, *types, because="outside of loops b is kept once")


def test_result_read_in_a_loop_that_carries_the_predicate():
    """(3) A loop is no branch."""

    def program(p, w, c, xs):
        def step(c, _):
            d, r = lax.cond(p, lambda: (c * w, w), lambda: (c, c))
            _, looped = lax.scan(lambda q, x: (q, r * x), p, xs)
            return lax.cond(p, lambda: d.sum() * r, lambda: d), looped

        return lax.scan(step, c, length=2)

    types = "f32[3]", "f32[3]", "f32[2,3]"
    for p in (True, False):
        alone(DROP, program, jnp.bool_(p), *types, fires=True)


def test_result_that_is_moved_in_its_branch():
    """(3) It is moved again where it is read, once for a loop that reads it."""

    def program(p, w, c, xs):
        def step(c, _):
            d, r = lax.cond(p, lambda: (c * w[0], w[1]), lambda: (c, w[2]))
            looped = lambda: lax.scan(lambda c, x: (c * r + x, None), d, xs)[0]
            return lax.cond(p, looped, lambda: d * r), None

        return lax.scan(step, c, length=3)[0]

    for p in (True, False):
        graph = alone(DROP, program, jnp.bool_(p), "f32[3,4]", "f32[4]", "f32[2,4]", fires=True)
        (loop,) = [op for op in graph.walk() if op.name == "scan" and op.length == 2]
        assert not any(op.name == "slice" for op in loop.body.walk())


def test_result_that_is_made_in_its_branch():
    """(3) The other cond is outside of it."""

    def program(p, w, c):
        def step(c, _):
            d, r = lax.cond(p, lambda: (c * w, jnp.sin(w)), lambda: (c, c))
            return lax.cond(p, lambda: w * r, lambda: w), d

        return lax.scan(step, c, length=2)

    alone(DROP, program, "bool[]", "f32[3]", "f32[3]", fires=False)


def test_result_read_in_a_branch_that_its_own_cond_has_not():
    """(3) The number is in range of both, so neither clamps it."""

    def program(w, c):
        def step(c, t):
            d, r = lax.switch(t, [lambda: (c * w, w), lambda: (c, w), lambda: (c, c)])
            return lax.switch(t, [lambda k=k: d * r + k for k in range(4)]), None

        return lax.scan(step, c, jnp.arange(3))[0]

    w, c = jnp.arange(3.0), jnp.ones(3)
    assert_close(optimize(program)(w, c), jax.jit(program)(w, c))


def test_a_value_of_another_type():
    """(1) A weak one gives way to the dummy's."""
    alone(DROP, lambda p, w: lax.select_n(p, anything(), w), jnp.bool_(True), 3.0, fires=False)


def test_expensive_residual_stays():
    """(2) A matrix product is not computed twice to save a select."""

    def program(p, w, c):
        d, r = lax.cond(p, lambda: (c @ w, jnp.sin(c @ w)), lambda: (c, anything(3)))
        return d, jnp.where(p, r, 0.0)

    check_refuses(
        DROP, program, "bool[]", "f32[3,3]", "f32[3]", because="sin needs dot_general, which costs"
    )


def test_residual_that_may_be_rounded_otherwise_stays():
    """(2) Whole numbers below others, which are not below the same if XLA rounds them otherwise."""

    def program(p, x, y):
        c = x * y + x
        d, r = lax.cond(p, lambda: (c, jnp.floor(x * y + x)), lambda: (c, anything(3)))
        return d, jnp.where(p, r, 0.0)

    check_refuses(
        DROP,
        program,
        "bool[]",
        "f32[3]",
        "f32[3]",
        because="floor needs floor, which costs more to compute again",
    )


def test_residual_that_changes_from_step_to_step_stays_unspecified():
    """Cost: a step that skips should write nothing."""

    def program(ps, c):
        def step(c, p):
            d, r = lax.cond(p, lambda: (jnp.sin(c), c), lambda: (c, anything(3)))
            return d, jnp.where(p, r, 0.0)

        return lax.scan(step, c, ps)

    check_refuses(DROP, program, "bool[8]", "f32[3]", because="changes from step to step with")


def test_a_row_that_the_loop_streams_is_read_directly():
    """Cost: it is in an array, and is not stacked."""

    def program(ps, xs):
        def step(c, px):
            p, x = px
            c, r = lax.cond(p, lambda: (jnp.sin(c * x), x), lambda: (c, anything(3)))
            return c, jnp.where(p, r, 0.0)

        return lax.scan(step, jnp.zeros(3), (ps, xs))

    check_rewrite(
        DROP,
        program,
        "bool[8]",
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (ps:bool[8], xs:f32[8,3]) {
            b:f32[3] = broadcast_in_dim 0.0
            c:f32[3], ys:f32[8,3] = scan[8] carry(c=b) xs(x=ps, x1=xs) {
        -     r:f32[3], r1:f32[3] = cond x {
        +     r:f32[3] = cond x {
                m:f32[3] = mul c x1
                s:f32[3] = sin m
        -       yield s, x1
        +       yield s
              } else {
        -       u:f32[3] = undefined
        -       yield c, u
        +       yield c
              }
              b:f32[3] = broadcast_in_dim 0.0
        -     s:f32[3] = select_n x b r1
        +     s:f32[3] = select_n x b x1
              yield carry(r) ys(s)
            }
            return c, ys
          }
        """,
    )


def test_a_version_that_a_loop_stores_is_read_directly():
    """The loop back undoes the write, and stores no version; a changed version stays."""

    def program(xs, ps, view):
        def step(c, xpi):
            x, p, i = xpi
            c = lax.dynamic_update_slice(c, x[None], (i,))
            y, r = lax.cond(p, lambda: (c.sum(), view(c)), lambda: (x, anything(8)))
            return c, (y, r)

        c, (ys, rows) = lax.scan(step, jnp.zeros(8), (xs, ps, jnp.arange(8)))
        back = lambda a, row: (jnp.sin(a + row[1].max()) * row[0], None)
        return c, lax.scan(back, 0.0, (ys, rows), reverse=True)[0]

    for view, results in ((lambda c: c, 1), (lambda c: c[::-1], 1), (jnp.sin, 2)):
        graph = import_jaxpr(traced(lambda *xs, v=view: program(*xs, v), "f32[8]", "bool[8]"))
        run_alone((DROP, EliminateDeadCode()), graph)
        (cond,) = (op for op in graph.walk() if isinstance(op, Cond))
        assert len(cond.results) == results


def test_two_real_values_stay():
    """(1) Condition: the branches that are real agree."""

    def program(i, v, w):
        r = lax.switch(i, [lambda: anything(3), lambda: v, lambda: w])
        return jnp.where(i > 0, r, 0.0)

    check_rewrite(
        DROP,
        program,
        "i32[]",
        "f32[3]",
        "f32[3]",
        simplify=True,
        diff="""
        fn (i:i32[], v:f32[3], w:f32[3]) {
          c:i32[] = clamp 0 i 2
          r:f32[3] = switch c case 0 {
            u:f32[3] = undefined
            yield u
          } case 1 {
            yield v
          } case 2 {
            yield w
          }
          g:bool[] = gt i 0
          b:f32[3] = broadcast_in_dim 0.0
          s:f32[3] = select_n g b r
          return s
        }
        """,
    )


def test_effects_stay_in_their_branch():
    """(2) Not cheap is whatever is unknown."""

    def program(p, w):
        r = lax.cond(p, lambda: lax.optimization_barrier(w), lambda: anything(3))
        return jnp.where(p, r, 0.0)

    check_refuses(
        DROP, program, "bool[]", "f32[3]", because="optimization_barrier needs optimization_barrier"
    )


@pytest.mark.parametrize("length", [9, 20])
def test_long_chains_stay(length):
    """(2) Condition: few ops."""

    def chain(x):
        for _ in range(length):
            x = jnp.sin(x)
        return x

    def program(p, w):
        r = lax.cond(p, lambda: chain(w), lambda: anything(3))
        return jnp.where(p, r, 0.0)

    check_refuses(DROP, program, "bool[]", "f32[3]", because="needs sin, which costs more")


def test_any_number_of_broadcasts_is_made_again():
    """(2) As nested loops stack a weight: each level spreads it out once more."""

    def spread(x):
        for n in range(10):
            x = jnp.broadcast_to(x, (1,) * (n + 1) + (2,))
        return x

    def program(p, w):
        r = lax.cond(p, lambda: spread(w), lambda: anything(*(1,) * 10, 2))
        return jnp.where(p, r, 0.0)

    check_rewrite(
        DROP,
        program,
        "bool[]",
        "f32[2]",
        simplify=True,
        diff="""
          fn (p:bool[], w:f32[2]) {
        -   r:f32[1,1,1,1,1,1,1,1,1,1,2] = cond p {
        -     b:f32[1,2] = broadcast_in_dim w
        -     b1:f32[1,1,2] = broadcast_in_dim b
        -     b2:f32[1,1,1,2] = broadcast_in_dim b1
        -     b3:f32[1,1,1,1,2] = broadcast_in_dim b2
        -     b4:f32[1,1,1,1,1,2] = broadcast_in_dim b3
        -     b5:f32[1,1,1,1,1,1,2] = broadcast_in_dim b4
        -     b6:f32[1,1,1,1,1,1,1,2] = broadcast_in_dim b5
        -     b7:f32[1,1,1,1,1,1,1,1,2] = broadcast_in_dim b6
        -     b8:f32[1,1,1,1,1,1,1,1,1,2] = broadcast_in_dim b7
        -     b9:f32[1,1,1,1,1,1,1,1,1,1,2] = broadcast_in_dim b8
        -     yield b9
        -   } else {
        -     u:f32[1,1,1,1,1,1,1,1,1,1,2] = undefined
        -     yield u
        -   }
        +   b:f32[1,2] = broadcast_in_dim w
        +   b1:f32[1,1,2] = broadcast_in_dim b
        +   b2:f32[1,1,1,2] = broadcast_in_dim b1
        +   b3:f32[1,1,1,1,2] = broadcast_in_dim b2
        +   b4:f32[1,1,1,1,1,2] = broadcast_in_dim b3
        +   b5:f32[1,1,1,1,1,1,2] = broadcast_in_dim b4
        +   b6:f32[1,1,1,1,1,1,1,2] = broadcast_in_dim b5
        +   b7:f32[1,1,1,1,1,1,1,1,2] = broadcast_in_dim b6
        +   b8:f32[1,1,1,1,1,1,1,1,1,2] = broadcast_in_dim b7
        +   b9:f32[1,1,1,1,1,1,1,1,1,1,2] = broadcast_in_dim b8
        -   b:f32[1,1,1,1,1,1,1,1,1,1,2] = broadcast_in_dim 0.0
        +   b10:f32[1,1,1,1,1,1,1,1,1,1,2] = broadcast_in_dim 0.0
        -   s:f32[1,1,1,1,1,1,1,1,1,1,2] = select_n p b r
        +   s:f32[1,1,1,1,1,1,1,1,1,1,2] = select_n p b10 b9
            return s
          }
        """,
    )


def test_an_index_that_changes_is_read_directly():
    """A few bytes more are stacked, and it is known what is written in each step."""

    def gradient(b, xs):
        def step(b, ix):
            i, x = ix
            write = lambda: b.at[7 - i].set(jnp.sin(x))
            return lax.cond(x > 0, write, lambda: b), None

        return jax.grad(lambda b, xs: lax.scan(step, b, (jnp.arange(8), xs))[0].sum(), 1)(b, xs)

    graph = import_jaxpr(traced(gradient, "f32[8]", "f32[8]"))
    run_alone((DROP, EliminateDeadCode()), graph)
    (forward, *_) = (op for op in graph.walk() if isinstance(op, Cond))
    assert all(v.dtype.kind == "f" for v in forward.results)
