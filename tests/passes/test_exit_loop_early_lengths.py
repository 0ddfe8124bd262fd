"""A batch stops after its longest row, and a step that is run is taken."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.steps.predicates import predicate_root
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.ir.graph import Cond, Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_rewrite, traced
from tests.graphs import scans
from tests.loops import alone
from tests.prices import EAGER
from tests.stopping import XS, summed

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def of_lengths(any_of, *, rows=lambda i, n: i, **options):
    """A batch of which each row is as long as it says; a step is a branch."""

    def program(c, xs, n):
        def body(c, row):
            i, x = row
            return lax.cond(any_of(i, n), lambda: c + x, lambda: c), None

        return lax.scan(body, c, (rows(lax.iota(jnp.int32, 5), n), xs), **options)[0]

    return program


def test_a_step_of_the_longest_row_of_a_batch():
    """(2) Where no row is taken, none of those behind it is: the branch goes."""
    check_rewrite(
        EXIT,
        of_lengths(lambda i, n: jnp.any(i < n)),
        "f32[3]",
        "f32[5,3]",
        "i32[2]",
        simplify=True,
        diff="""
          fn (c:f32[3], xs:f32[5,3], n:i32[2]) {
        -   i:i32[5] = iota
        -   c1:f32[3] = scan[5] carry(c=c) xs(x=i, x1=xs) {
        -     l:bool[2] = lt x n
        -     r:bool[] = reduce_or[axes=(0,)] l
        -     r1:f32[3] = cond r {
        -       a:f32[3] = add c x1
        -       yield a
        -     } else {
        -       yield c
        -     }
        -     yield carry(r1)
        -   }
        +   r2:i32[] = reduce_max[axes=(0,)] n
        +   c2:i32[] = clamp 0 r2 5
        +   c3:i32[], c4:f32[3] = while carry(c3=0, c4=c) {
        +     l1:bool[] = lt c3 c2
        +     yield l1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c3 0
        +     s:f32[3] = squeeze d
        +     a1:f32[3] = add c4 s
        +     a2:i32[] = add c3 1
        +     yield carry(a2, a1)
        +   }
        -   return c1
        +   return c4
          }
        """,
    )


BOUNDS = {
    "below": (lambda i, n: jnp.any(i < n), True),
    "above": (lambda i, n: jnp.any(n[:, None] > jnp.full((2, 3), i)), True),
    "every second": (lambda i, n: jnp.any(2 * i + 1 < n), True),
    "not all at the end": (lambda i, n: ~jnp.all(i >= n), True),
    "not below": (lambda i, n: jnp.any(i > n), False),
    "each from another row": (lambda i, n: jnp.any(i + jnp.arange(2) < n), False),
    "from before the first": (lambda i, n: jnp.any(i - 1 < n), False),
    "moving": (lambda i, n: jnp.any(i < n + i // 2), False),
    "of floats": (lambda i, n: jnp.any(i.astype(float) < n), False),
    "of nothing": (lambda i, n: jnp.any(jnp.full((0, 1), i) < n[:1]), False),
    "not of steps": (lambda i, n: jnp.any((n > 1) | (i < 0)), False),
}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("lengths", [(1, 3), (-4, -1), (9, 0)])
def test_how_many_steps_the_longest_row_takes(name, lengths):
    """(2) It is found without a comparison for each row and step."""
    any_of, is_found = BOUNDS[name]
    graph = alone(EXIT, of_lengths(any_of), jnp.ones(3), XS, jnp.int32(lengths), fires=True)
    assert any(op.name == "reduce_max" and op.operands[0].size == 2 for op in graph.walk()) == (
        is_found
    )


@pytest.mark.parametrize("outer", [0, 3])
def test_the_longest_row_in_a_step_of_another_loop(outer):
    """(2) A number that the other loop moves on is none of the loop's own."""

    def program(c, xs, n):
        def around(c, t):
            inner = of_lengths(lambda i, n: jnp.any(i + outer * t < n))
            return inner(c, xs, n), None

        return lax.scan(around, c, lax.iota(jnp.int32, 2))[0]

    graph = alone(EXIT, program, jnp.ones(3), XS, jnp.int32([4, 6]), fires=True)
    assert any(op.name == "reduce_max" and op.operands[0].size == 2 for op in graph.walk()) == (
        not outer
    )


@pytest.mark.parametrize(
    ("of_row", "stops"),
    [
        (lambda x, w, p: jnp.where(p, jnp.tanh(x * w), 0.0), True),
        (lambda x, w, p: jnp.tanh(x * w) * p, True),
        (lambda x, w, p: jnp.where(p, jnp.tanh(x * w), jnp.cos(x)), False),
    ],
    ids=["selected", "multiplied", "another row"],
)
def test_gradients_of_rows_that_a_mask_drops(of_row, stops):
    """(7) What is linear in what a mask makes zero is zero."""
    args = XS, jnp.float32([1.0, 2.0, 3.0]), jnp.int32(2)
    graph, _ = observe.optimized(summed(of_row), args, {})
    assert any(isinstance(op, While) for op in graph.walk()) == stops
    assert_same(optimize(summed(of_row)), summed(of_row), args, grad=False)


@pytest.mark.parametrize("outer", [lambda f: f, jax.checkpoint], ids=["once", "twice"])
def test_a_checkpoint_around_a_loop(outer):
    """JAX says that it has transposed the checkpoint, not the loop in it."""

    def state(w, xs, n):
        def step(c, row):
            i, x = row
            return jnp.where((i < n)[:, None], jnp.tanh(c @ w + x), c), None

        return lax.scan(step, jnp.zeros((2, 3)), (lax.iota(jnp.int32, 5), xs))[0]

    gradient = jax.grad(lambda *args: jnp.sum(outer(jax.checkpoint(state))(*args) ** 2))
    args = jnp.eye(3), XS, jnp.int32([1, 2])
    before = import_jaxpr(traced(gradient, *args), "final")
    loops = [op for op in before.walk() if isinstance(op, Scan)]
    assert {(op.reverse, op.source.transposed) for op in loops} == {(False, False), (True, True)}
    graph, _ = observe.optimized(gradient, args, {})
    assert not scans(graph)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_what_stays_is_compared_with_what_it_was(dtype):
    """Only a NaN differs from itself."""

    def program(x):
        def body(_, s):
            x, changed = s
            new = jnp.where(changed, jnp.maximum(x, jnp.roll(x, 1)), x)
            return new, (new != x).any()

        return lax.fori_loop(0, 9, body, (x, True))[0]

    alone(EXIT, program, jnp.arange(5).astype(dtype), fires=dtype == "int32")


def asks_in_steps(graph):
    """Whether a branch depends on the data."""
    asked = [predicate_root(op.selector) for op in graph.walk() if isinstance(op, Cond)]
    return any(uniform(each) is None for each in asked)


FIRST = {
    "below": lambda i, n: jnp.any(i < n),
    "above": lambda i, n: jnp.any(n > i),
    "not all at the end": lambda i, n: ~jnp.all(i >= n),
    "below two bounds": lambda i, n: jnp.any((i < n) & (2 * i <= 6)),
    "all": lambda i, n: jnp.all(i < n),
}
LATER = {
    "behind": lambda i, n: jnp.any(i > n),
    "at one place": lambda i, n: jnp.any(i == n),
    "in the second half": lambda i, n: jnp.any((i < n) & (i >= 2)),
    "either": lambda i, n: jnp.any(i < n) | (i > 3),
    "wrapped": lambda i, n: jnp.any(100 * lax.convert_element_type(i, jnp.int8) < n.astype("int8")),
    "bits": lambda i, n: jnp.any(lax.reduce_or(i[None] ^ jnp.int32([5]), (0,)) < n),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", [*FIRST, *LATER])
@pytest.mark.parametrize("lengths", [(1, 3), (0, 2), (5, 0), (0, 0)])
def test_which_steps_are_run(name, reverse, lengths):
    """(2) A step in between may be skipped if rows that are not taken come before rows that are."""
    program = of_lengths((FIRST | LATER)[name], reverse=reverse)
    graph = alone(EXIT, program, jnp.ones(3), XS, jnp.int32(lengths), fires=True)
    assert asks_in_steps(graph) == (name in LATER)


MASKS = {
    "below": (lambda i, n: i[:, None] < n, True),
    "counted": (lambda i, n: jnp.broadcast_to(n, (5, 2)) >= 1 + i[:, None], True),
    "joined": (lambda i, n: (i[:, None] < n) & (i < 3)[:, None], True),
    "of a table": (lambda i, n: jnp.any((i[:, None, None] < n) & (n[:, None] > 0), 2), True),
    "behind": (lambda i, n: i[:, None] >= n, False),
    "any row": (lambda i, n: jnp.broadcast_to(jnp.any(i[:, None] > n, 1)[:, None], (5, 2)), False),
    "of data": (lambda i, n: jnp.sin(i)[:, None] < n, False),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("lengths", [(1, 3), (0, 2), (5, 0), (0, 0)])
def test_which_rows_of_a_mask_are_run(name, reverse, lengths):
    """(2) The same of masks that are made before the loop."""
    mask, is_first = MASKS[name]
    program = of_lengths(lambda row, n: jnp.any(row), rows=mask, reverse=reverse)
    graph = alone(EXIT, program, jnp.ones(3), XS, jnp.int32(lengths), fires=True)
    assert asks_in_steps(graph) != is_first


@pytest.mark.parametrize("lengths", [(1, 3, 0), (0, 0, 0), (5, 1, 2)])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_batch_of_which_a_step_asks_whether_any_row_is_taken(reverse, lengths):
    """(2) Where any row is taken is known; which one is not."""

    def program(c, xs, n):
        def body(c, row):
            i, x = row
            p = i < n
            some = jnp.where(p, c + x, c)
            return jnp.where(jnp.all(~p), c, some), None

        return lax.scan(body, c, (lax.iota(jnp.int32, 5), xs), reverse=reverse)[0]

    graph = alone(EXIT, program, jnp.ones(3), XS, jnp.int32(lengths), fires=True)
    asked = [op for op in graph.walk() if op.name == "reduce_and"]
    assert not any(op.result.uses for op in asked)
