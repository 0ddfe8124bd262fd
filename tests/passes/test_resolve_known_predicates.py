"""Inside a branch the predicate is known; outside, and in the other branch, it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.laws.fold_constants import FoldConstants
from jaxpr_opt.passes.laws.resolve_known_predicates import ResolveKnownPredicates
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.testing import (
    assert_same_bits,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)

RESOLVE = ResolveKnownPredicates()


def test_cond_within_a_cond_on_the_same_predicate():
    """(1) The inner one takes the same branch."""

    def program(p, x):
        def inner():
            return lax.cond(p, lambda: jnp.sin(x), lambda: jnp.cos(x))

        return lax.cond(p, lambda: inner() * 2.0, lambda: inner() + 1.0)

    check_rewrite(
        RESOLVE,
        program,
        "bool[]",
        "f32[3]",
        diff="""
          fn (p:bool[], x:f32[3]) {
            c:i32[] = convert_element_type p
            r:f32[3] = cond p {
        -     c:i32[] = convert_element_type p
        +     c:i32[] = convert_element_type True
        -     r:f32[3] = cond p {
        -       s:f32[3] = sin x
        -       yield s
        -     } else {
        -       c:f32[3] = cos x
        -       yield c
        -     }
        +     s:f32[3] = sin x
        -     m:f32[3] = mul r 2.0
        +     m:f32[3] = mul s 2.0
              yield m
            } else {
        -     c:i32[] = convert_element_type p
        +     c:i32[] = convert_element_type False
        -     r:f32[3] = cond p {
        -       s:f32[3] = sin x
        -       yield s
        -     } else {
        -       c:f32[3] = cos x
        -       yield c
        -     }
        +     c1:f32[3] = cos x
        -     a:f32[3] = add r 1.0
        +     a:f32[3] = add c1 1.0
              yield a
            }
            return r
          }
        """,
    )


def test_negation_conjunction_and_disjunction():
    """(1) What is known of `p and q`, `p or q` and `not p` is known of p and q."""

    def program(p, q, x):
        def read(y):
            return jnp.where(p, y, 0.0) + jnp.where(q, y, 1.0) + jnp.where(~p, y, 2.0)

        both = lax.cond(p & q, lambda: read(x), lambda: read(x * 2.0))
        neither = lax.cond(p | q, lambda: read(x * 3.0), lambda: read(x * 4.0))
        return both, neither

    check_rewrite(
        RESOLVE,
        program,
        "bool[]",
        "bool[]",
        "f32[]",
        diff="""
          fn (p:bool[], q:bool[], x:f32[]) {
            a:bool[] = and p q
            c:i32[] = convert_element_type a
            r:f32[] = cond a {
              c:f32[] = convert_element_type 0.0
        -     s:f32[] = select_n p c x
        +     s:f32[] = select_n True c x
              c1:f32[] = convert_element_type 1.0
        -     s1:f32[] = select_n q c1 x
        +     s1:f32[] = select_n True c1 x
              a:f32[] = add s s1
        -     n:bool[] = not p
        +     n:bool[] = not True
              c2:f32[] = convert_element_type 2.0
        -     s2:f32[] = select_n n c2 x
        +     s2:f32[] = select_n False c2 x
              a1:f32[] = add a s2
              yield a1
            } else {
              m:f32[] = mul x 2.0
              c:f32[] = convert_element_type 0.0
              s:f32[] = select_n p c m
              c1:f32[] = convert_element_type 1.0
              s1:f32[] = select_n q c1 m
              a:f32[] = add s s1
              n:bool[] = not p
              c2:f32[] = convert_element_type 2.0
              s2:f32[] = select_n n c2 m
              a1:f32[] = add a s2
              yield a1
            }
            o:bool[] = or p q
            c1:i32[] = convert_element_type o
            r1:f32[] = cond o {
              m:f32[] = mul x 3.0
              c:f32[] = convert_element_type 0.0
              s:f32[] = select_n p c m
              c1:f32[] = convert_element_type 1.0
              s1:f32[] = select_n q c1 m
              a:f32[] = add s s1
              n:bool[] = not p
              c2:f32[] = convert_element_type 2.0
              s2:f32[] = select_n n c2 m
              a1:f32[] = add a s2
              yield a1
            } else {
              m:f32[] = mul x 4.0
              c:f32[] = convert_element_type 0.0
        -     s:f32[] = select_n p c m
        +     s:f32[] = select_n False c m
              c1:f32[] = convert_element_type 1.0
        -     s1:f32[] = select_n q c1 m
        +     s1:f32[] = select_n False c1 m
              a:f32[] = add s s1
        -     n:bool[] = not p
        +     n:bool[] = not False
              c2:f32[] = convert_element_type 2.0
        -     s2:f32[] = select_n n c2 m
        +     s2:f32[] = select_n True c2 m
              a1:f32[] = add a s2
              yield a1
            }
            return r, r1
          }
        """,
    )


def test_the_number_of_a_predicate():
    """(1) It is that of the branch."""

    def program(p, x):
        strong = lax.convert_element_type(p, jnp.int32)
        return lax.cond(~p, lambda: x * strong, lambda: x * strong * 2)

    graph = import_jaxpr(traced(program, "bool[]", "i32[]"))
    run_alone((RESOLVE,), graph)
    products = [op for op in graph.walk() if op.name == "mul" and op.parent is not None]
    assert [int(op.operands[1].value) for op in products] == [1, 2, 0]


def test_the_weak_number_of_a_predicate():
    """(1) No constant is of weak type."""

    def program(p, x):
        weak = p + 0
        return lax.cond(p, lambda: x * weak, lambda: x)

    graph = import_jaxpr(traced(program, "bool[]", "i32[]"))
    run_alone((Simplify(),), graph)
    assert not run_alone((RESOLVE,), graph).record(RESOLVE.name, RESOLVE.cleanup).rewrites


@pytest.mark.parametrize("number", [-1, 2, 7])
def test_a_number_of_no_branch(number):
    """(2) The last one is taken."""
    jaxpr = traced(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), "i32[]", "f32[]")
    graph = import_jaxpr(jaxpr)
    (cond,) = (op for op in graph.walk() if isinstance(op, Cond))
    rw = Rewriter(graph)
    rw.set_operand(cond, 0, rw.constant(np.int32(number), cond.selector.aval))
    args = np.int32(0), np.float32(0.5)
    before = evaluate_exactly(export(graph), *args)
    run_alone((RESOLVE,), graph)
    assert "tan" in [op.name for op in graph.walk()]
    assert_same_bits(before, evaluate_exactly(graph, *args))


def test_index_of_a_switch():
    """(2) Known in all branches but the last, which is taken for every other index too."""

    def program(i, x):
        k = lax.clamp(0, i, 2)
        return lax.switch(k, [lambda: x * k, lambda: x + k, lambda: x - k])

    graph = import_jaxpr(traced(program, "i32[]", "f32[3]"))
    run_alone((Simplify(), RESOLVE), graph)
    switch = next(op for op in graph.walk() if isinstance(op, Cond))
    read = [branch.first.operands[0] for branch in switch.branches]
    assert [getattr(v, "scalar", None) for v in read] == [0, 1, None]


def test_result_that_does_not_depend_on_the_branch():
    """(3) The same constant in every branch."""

    def program(i, x, w):
        two = np.float32(2)
        branches = [lambda: (x * w, two), lambda: (x + w, two), lambda: (x - w, two)]
        y, v = lax.switch(i, branches)
        return y, v * w

    check_rewrite(
        RESOLVE,
        program,
        "i32[]",
        "f32[3]",
        "f32[3]",
        diff="""
          fn (i:i32[], x:f32[3], w:f32[3]) {
            c:i32[] = clamp 0 i 2
            r:f32[3], r1:f32[] = switch c case 0 {
              m:f32[3] = mul x w
              yield m, 2.0
            } case 1 {
              a:f32[3] = add x w
              yield a, 2.0
            } case 2 {
              s:f32[3] = sub x w
              yield s, 2.0
            }
        -   m:f32[3] = mul r1 w
        +   m:f32[3] = mul 2.0 w
            return r, m
          }
        """,
    )


def test_constant_predicate():
    """The branch taken, effects and all, in place of the cond."""

    def program(x):
        def taken():
            jax.debug.callback(lambda _: None, x)
            return jnp.sin(x)

        return lax.cond(np.bool_(True), taken, lambda: jnp.cos(x)) * 2.0

    graph = import_jaxpr(traced(program, "f32[]"))
    run_alone((FoldConstants(), RESOLVE), graph)
    assert [op.name for op in graph.walk()] == ["debug_callback", "sin", "mul", "yield"]


@pytest.mark.parametrize(
    "joint",
    [
        pytest.param(lambda p, q: p | q, id="a disjunction that holds"),
        pytest.param(lambda p, q: ~(p & q), id="a conjunction that does not"),
        pytest.param(lambda p, q: p ^ q, id="another function of both"),
    ],
)
def test_what_is_not_known(joint):
    """(1) Either of the two may be the cause."""

    def program(p, q, x):
        def read():
            return jnp.where(p, x, 0.0) + jnp.where(q, x, 1.0)

        return lax.cond(joint(p, q), read, lambda: x)

    check_unchanged(program, "bool[]", "bool[]", "f32[]")


def test_predicate_outside_its_branches_is_unknown():
    """(1) Condition: the read is inside."""

    def program(i, x):
        k = lax.clamp(0, i, 2)
        y = lax.switch(k, [lambda: x, lambda: x * 2.0, lambda: x * 3.0])
        return y * k

    check_unchanged(program, "i32[]", "f32[]")


def test_results_of_different_values_stay():
    """(3) Condition: one value, defined outside."""

    def program(i, x, w):
        return lax.switch(i, [lambda: w, lambda: x, lambda: jnp.sin(w)])

    check_unchanged(program, "i32[]", "f32[3]", "f32[3]")


def check_unchanged(program, *args):
    """The pass finds nothing to do."""
    journal = run_alone((RESOLVE,), import_jaxpr(traced(program, *args)))
    assert not any(record.rewrites for record in journal.records.values())


def test_a_scan_of_no_steps():
    """Its carries are what they were; its stacks have no rows."""
    check_rewrite(
        RESOLVE,
        lambda c, xs: lax.scan(lambda c, x: (c + x, c > x), c, xs),
        "f32[3]",
        "f32[0,3]",
        diff="""
          fn (c:f32[3], xs:f32[0,3]) {
        -   c1:f32[3], ys:bool[0,3] = scan[0] carry(c=c) xs(x=xs) {
        -     a:f32[3] = add c x
        -     g:bool[3] = gt c x
        -     yield carry(a) ys(g)
        -   }
        +   u:bool[0,3] = undefined
        -   return c1, ys
        +   return c, u
          }
        """,
    )
