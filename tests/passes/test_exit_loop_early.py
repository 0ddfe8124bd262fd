"""Loops whose remaining steps do nothing stop; others run on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from examples import phases
from jaxpr_opt import optimize
from jaxpr_opt.analysis.steps.predicates import predicate_root
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.builders.any_row import any_true
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.ir.graph import Cond, Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, assert_same, check_refuses, check_rewrite, traced
from tests.graphs import scans
from tests.loops import alone, compiled, keep, there_and_back
from tests.prices import EAGER, FREE, Eager

EXIT = ExitLoopEarly()


class Whole(Eager):
    """Stacks are small: all of one is made anew, not row by row."""

    __slots__ = ()

    def rows_at_once(self, rows, nbytes):
        return rows


class Blocks(Eager):
    """A step writes two rows as quickly as one."""

    __slots__ = ()

    def rows_at_once(self, rows, nbytes):
        return 2


class Along(Eager):
    """A predicate takes longer than handing it on."""

    __slots__ = ()

    def is_worth_carrying(self, value, ops, times):
        return True


MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


@pytest.fixture
def real_questions():
    """Asking takes as long as it does."""
    with using(CostModel()):
        yield


def stopping(what=lambda p, c: None, *, step=jnp.sin, seen=lambda c, b: c[0] < b, **options):
    """A loop that stops for good and stacks `what`."""

    def program(c, bound):
        def body(c, _):
            p = seen(c, bound)
            return lax.cond(p, step, keep, c), what(p, c)

        return lax.scan(body, c, None, length=5, **options)

    return program


def known(
    what=lambda p, c, x: None, *, test=lambda i, n: i < n, step=lambda c, x: c + x, **options
):
    """A loop whose predicate is known before, and which stacks `what`."""

    def program(c, xs, n):
        def body(c, row):
            i, x = row
            p = test(i, n)
            return lax.cond(p, lambda: step(c, x), lambda: c), what(p, c, x)

        return lax.scan(body, c, (lax.iota(jnp.int32, 5), xs), **options)

    return program


KNOWN = ("f32[3]", "f32[5,3]", "i32[]")
XS = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)


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
        +   s2:i32[] = sub r3 r3
        +   c2:i32[], c3:f32[3] = while carry(c2=s2, c3=c) {
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


def test_rows_of_skipped_steps_are_made_afterwards():
    """(4) They hold the carry, which the loop ended with."""
    check_rewrite(
        EXIT,
        stopping(lambda p, c: c * 2),
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3], ys:f32[5,3] = scan[5] carry(c=c) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 bound
        -     r:f32[3] = cond l {
        -       s:f32[3] = sin c
        -       yield s
        -     } else {
        -       yield c
        -     }
        -     m:f32[3] = mul c 2.0
        -     yield carry(r) ys(m)
        -   }
        +   u:f32[5,3] = undefined
        +   c2:i32[], c3:f32[3], c4:f32[5,3] = while carry(c2=0, c3=c, c4=u) {
        +     l1:bool[] = lt c2 5
        +     s:f32[1] = slice[:1] c3
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 bound
        +     r1:bool[] = reduce_or l
        +     a:bool[] = and l1 r1
        +     yield a
        +   } do {
        +     s:f32[3] = sin c3
        +     m:f32[3] = mul c3 2.0
        +     b:f32[1,3] = broadcast_in_dim m
        +     d:f32[5,3] = dynamic_update_slice c4 b c2 0
        +     a:i32[] = add c2 1
        +     yield carry(a, s, d)
        +   }
        +   m1:f32[3] = mul c3 2.0
        +   c5:i32[], c6:f32[5,3] = while carry(c2=c2, c3=c4) {
        +     l1:bool[] = lt c2 5
        +     yield l1
        +   } do {
        +     b:f32[1,3] = broadcast_in_dim m1
        +     d:f32[5,3] = dynamic_update_slice c3 b c2 0
        +     a:i32[] = add c2 1
        +     yield carry(a, d)
        +   }
        -   return c1, ys
        +   return c3, c6
          }
        """,
    )


def test_few_rows_of_skipped_steps_are_made_all_at_once():
    """(4) All of a small stack is made anew in less time than a loop over rows takes."""
    with using(Whole(FREE)):
        check_rewrite(
            EXIT,
            stopping(lambda p, c: c * 2),
            "f32[3]",
            "f32[]",
            simplify=True,
            diff="""
              fn (c:f32[3], bound:f32[]) {
            -   c1:f32[3], ys:f32[5,3] = scan[5] carry(c=c) {
            -     s:f32[1] = slice[:1] c
            -     s1:f32[] = squeeze s
            -     l:bool[] = lt s1 bound
            -     r:f32[3] = cond l {
            -       s:f32[3] = sin c
            -       yield s
            -     } else {
            -       yield c
            -     }
            -     m:f32[3] = mul c 2.0
            -     yield carry(r) ys(m)
            -   }
            +   u:f32[5,3] = undefined
            +   c2:i32[], c3:f32[3], c4:f32[5,3] = while carry(c2=0, c3=c, c4=u) {
            +     l1:bool[] = lt c2 5
            +     s:f32[1] = slice[:1] c3
            +     s1:f32[] = squeeze s
            +     l:bool[] = lt s1 bound
            +     r1:bool[] = reduce_or l
            +     a:bool[] = and l1 r1
            +     yield a
            +   } do {
            +     s:f32[3] = sin c3
            +     m:f32[3] = mul c3 2.0
            +     b:f32[1,3] = broadcast_in_dim m
            +     d:f32[5,3] = dynamic_update_slice c4 b c2 0
            +     a:i32[] = add c2 1
            +     yield carry(a, s, d)
            +   }
            +   m1:f32[3] = mul c3 2.0
            +   i:i32[5,3] = iota
            +   l1:bool[5,3] = lt i c2
            +   b:f32[5,3] = broadcast_in_dim m1
            +   s2:f32[5,3] = select_n l1 b c4
            -   return c1, ys
            +   return c3, s2
              }
            """,
        )


def test_rows_of_skipped_steps_are_written_in_blocks():
    """(4) In place, as what reads the stack computes no select: the last block begins before its
    rows, and keeps those that ran.
    """
    with using(Blocks(FREE)):
        check_rewrite(
            EXIT,
            stopping(lambda p, c: c * 2),
            "f32[3]",
            "f32[]",
            simplify=True,
            diff="""
              fn (c:f32[3], bound:f32[]) {
            -   c1:f32[3], ys:f32[5,3] = scan[5] carry(c=c) {
            -     s:f32[1] = slice[:1] c
            -     s1:f32[] = squeeze s
            -     l:bool[] = lt s1 bound
            -     r:f32[3] = cond l {
            -       s:f32[3] = sin c
            -       yield s
            -     } else {
            -       yield c
            -     }
            -     m:f32[3] = mul c 2.0
            -     yield carry(r) ys(m)
            -   }
            +   u:f32[5,3] = undefined
            +   c2:i32[], c3:f32[3], c4:f32[5,3] = while carry(c2=0, c3=c, c4=u) {
            +     l1:bool[] = lt c2 5
            +     s:f32[1] = slice[:1] c3
            +     s1:f32[] = squeeze s
            +     l:bool[] = lt s1 bound
            +     r1:bool[] = reduce_or l
            +     a:bool[] = and l1 r1
            +     yield a
            +   } do {
            +     s:f32[3] = sin c3
            +     m:f32[3] = mul c3 2.0
            +     b:f32[1,3] = broadcast_in_dim m
            +     d:f32[5,3] = dynamic_update_slice c4 b c2 0
            +     a:i32[] = add c2 1
            +     yield carry(a, s, d)
            +   }
            +   m1:f32[3] = mul c3 2.0
            +   c5:i32[], c6:f32[5,3] = while carry(c3=c2, c4=c4) {
            +     l1:bool[] = lt c3 5
            +     yield l1
            +   } do {
            +     m2:i32[] = min c3 3
            +     d:f32[2,3] = dynamic_slice c4 m2 0
            +     i:i32[2,3] = iota
            +     a:i32[2,3] = add i m2
            +     l1:bool[2,3] = lt a c2
            +     b:f32[2,3] = broadcast_in_dim m1
            +     s2:f32[2,3] = select_n l1 b d
            +     d1:f32[5,3] = dynamic_update_slice c4 s2 m2 0
            +     a1:i32[] = add c3 2
            +     yield carry(a1, d1)
            +   }
            -   return c1, ys
            +   return c3, c6
              }
            """,
        )


def masked(masks):
    """A loop that adds rows in all steps, which a mask has made zeros."""

    def program(c, xs, n):
        numbers = lax.iota(jnp.int32, 5)
        rows = lax.select(masks(numbers, n), xs, jnp.zeros_like(xs))
        step = lambda c, row: (jnp.where(row[0] < n, c * 2, c) + row[1], None)
        return lax.scan(step, c, (numbers, rows))[0]

    return program


def test_rows_that_are_zeros_where_steps_are_skipped():
    """(14) The mask before the loop says of each row what the step asks."""
    check_rewrite(
        EXIT,
        masked(lambda i, n: i < n),
        "i32[]",
        "i32[5]",
        "i32[]",
        simplify=True,
        diff="""
          fn (c:i32[], xs:i32[5], n:i32[]) {
            i:i32[5] = iota
            l:bool[5] = lt i n
            b:i32[5] = broadcast_in_dim 0
            s:i32[5] = select_n l b xs
        -   c1:i32[] = scan[5] carry(c=c) xs(x=i, x1=s) {
        -     l:bool[] = lt x n
        -     m:i32[] = mul c 2
        -     s:i32[] = select_n l c m
        -     a:i32[] = add s x1
        -     yield carry(a)
        -   }
        +   c2:i32[] = clamp 0 n 5
        +   s1:i32[] = sub c2 c2
        +   c3:i32[], c4:i32[] = while carry(c3=s1, c4=c) {
        +     l1:bool[] = lt c3 c2
        +     yield l1
        +   } do {
        +     d:i32[1] = dynamic_slice s c3
        +     s1:i32[] = squeeze d
        +     m:i32[] = mul c4 2
        +     a1:i32[] = add m s1
        +     a2:i32[] = add c3 1
        +     yield carry(a2, a1)
        +   }
        -   return c1
        +   return c4
          }
        """,
    )


def test_rows_that_another_mask_makes_zeros():
    """(14) They are added after the last step taken, too."""
    for masks in (lambda i, n: i < n + 1, lambda i, n: i > n, lambda i, n: i <= n):
        args = jnp.int32(3), jnp.arange(1, 6), jnp.int32(2)
        graph = alone(EXIT, masked(masks), *args, fires=True)
        assert sum(isinstance(op, While) for op in graph.body.ops) == 2  # adding goes on


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("use", ["outputs", "multiples", "both"])
def test_outputs_that_a_mask_drops_and_the_last_state(use, batch):
    """Both loops of the gradient stop, as rows of cotangents are zeros where steps are skipped."""
    length = jnp.asarray([3, 5, 2]) if batch else 3

    def loss(w, xs):
        seen = jnp.arange(40)[(...,) + (None,) * batch] < length

        def step(h, row):
            p, x = row
            h = jnp.where(p[..., None], jnp.tanh(h @ w + x), h)
            return h, h

        h, hs = lax.scan(step, jnp.zeros(xs.shape[1:]), (seen, xs))
        outs = hs if use == "outputs" else 0.5 - 3 * hs
        outs = jnp.where(seen[..., None], outs, 0.0)
        return (outs**2).sum() + (h.sum() if use == "both" else (h**3).sum())

    shape = (40, 3, 4) if batch else (40, 4)
    args = jnp.ones((4, 4)) / 5, jnp.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
    for gradient in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        graph, _ = observe.optimized(gradient, args, {})
        loops = [op for op in graph.body.ops if isinstance(op, Scan | While)]
        assert loops and all(isinstance(op, While) for op in loops)
        assert_same(gradient, jax.grad(loss), args, grad=False)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("taken", range(6))
def test_blocks_of_rows_of_skipped_steps(taken, reverse):
    """(4) However many are left; numbers, too."""
    for what in (lambda p, c: c * 2, lambda p, c: p):
        program = stopping(what, step=lambda c: c + 1, reverse=reverse)
        with using(Blocks(FREE)):
            alone(EXIT, program, jnp.zeros(3), jnp.float32(taken), fires=True)


@pytest.mark.parametrize(
    ("read", "loops"), [(jnp.sin, 1), (lambda rows: rows.T, 2), (lambda rows: rows @ rows.T, 2)]
)
def test_rows_of_skipped_steps_that_a_reader_selects(read, loops):
    """(4) They are selected where no array is made of that; XLA moves no axes of a buffer."""

    def program(c, bound):
        c, rows = stopping(lambda p, c: c * 2)(c, bound)
        return c, read(rows)

    with using(Blocks(FREE)):
        graph = alone(EXIT, program, "f32[3]", "f32[]", fires=True)
    assert sum(isinstance(op, While) for op in graph.body.ops) == loops


def counted(back, length=5, onward=lambda c: c + 1, **options):
    """A loop that counts its steps and hands over what they start with, and a loop back."""

    def program(c, bound):
        def body(carry, _):
            c, k = carry
            p = c[0] < bound
            return (lax.cond(p, onward, keep, c), k + p.astype(jnp.int32)), c

        (c, k), rows = lax.scan(body, (c, jnp.int32(0)), None, length=length)
        step = lambda a, row: (lax.cond(row[0] < k, lambda: back(a, row[1]), lambda: a), None)
        return lax.scan(step, c, (jnp.arange(length), rows), reverse=True, **options)[0]

    return program


@pytest.mark.parametrize("bound", [-9.0, 0.0, 2.0, 99.0, jnp.nan])
def test_rows_that_only_a_loop_that_stops_reads_are_not_made(bound):
    """(7) The loop back stops, too, and starts at the last step taken."""
    program = counted(lambda a, row: a * row - 3)
    graph = alone(EXIT, program, jnp.zeros(3), jnp.float32(bound), fires=True)
    assert not any(op.name == "select_n" for op in graph.body.ops)
    assert sum(isinstance(op, While) for op in graph.body.ops) == 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(0.0, 0.0, 0.0), (1.0, 4.0, 2.0), (9.0, 0.0, 0.0)])
def test_rows_that_loops_of_a_batch_read(bounds, reverse):
    """(7) Rows of the predicate say which steps back are skipped; a product with zero counts. The
    loop back begins where the other one ended, and asks nothing, unless that one came to its rows
    in reverse.
    """

    def program(c, bounds):
        def body(c, _):
            p = c < bounds
            return jnp.where(p, c + 1, c), (c, p)

        c, rows = lax.scan(body, c, None, length=5, reverse=reverse)
        back = lambda a, row: (a + jnp.where(row[1], a, 0.0) * row[0], None)
        onward = lambda a, row: (jnp.where(row[1], a * row[0], a), None)
        return lax.scan(onward if reverse else back, c, rows, reverse=not reverse)[0]

    graph = alone(EXIT, program, jnp.zeros(3), jnp.asarray(bounds), fires=True)
    assert sum(isinstance(op, While) for op in graph.body.ops) == 2
    assert any(op.name == "reduce_max" for op in graph.body.ops) == reverse


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("compares", "filled"), [(False, 0), (True, 1)])
def test_rows_of_two_stacks(compares, filled, turned, reverse):
    """(7) Both are left unspecified, if the loop back stops by one predicate. By its rows of the
    predicate it would not need `x`, by `x` not `y`: then rows of one are made.
    """

    def program(c, bounds):
        def body(c, _):
            p = c < bounds
            return jnp.where(p, c + 1, c), ((c, 2 * c + 1)[:: -1 if turned else 1], p)

        c, rows = lax.scan(body, c, None, length=5, reverse=reverse)

        def back(a, row):
            (x, y), p = row[0][:: -1 if turned else 1], row[1]
            new = a * x + y
            return jnp.where(p, jnp.where(x < bounds, new, a) if compares else new, a), None

        return lax.scan(back, c, rows, reverse=not reverse)[0]

    for bounds in ([0.0, 0.0, 0.0], [1.0, 4.0, 2.0], [9.0, 0.0, 0.0]):
        graph = alone(EXIT, program, jnp.zeros(3), jnp.asarray(bounds), fires=True)
        assert sum(isinstance(op, While) for op in graph.body.ops) == 2 + filled


@pytest.mark.parametrize("rows_of", [jnp.transpose, lambda xs: xs.T[::-1], lambda xs: xs.T[1:]])
def test_rows_are_read_where_they_are(rows_of):
    """A step slices a row of the array, not of a part of it that is copied before the loop."""

    def program(c, xs):
        step = lambda c, x: (jnp.where(c < 4, c + x, c), None)
        return lax.scan(step, c, rows_of(xs))[0]

    xs = jnp.ones((300, 80))
    graph = alone(EXIT, program, jnp.zeros(300), xs, fires=True)
    around = [graph.body.ancestor(user) for user in graph.body.params[1].users]
    assert any(isinstance(op, While) for op in around)


class Every(Eager):
    """It is worth asking after two steps."""

    __slots__ = ()
    asks_the_host = True

    def steps_a_question(self, body, predicate=None):
        return 2


@pytest.mark.parametrize("model", [EAGER, Every(FREE)], ids=["each step", "every second"])
def test_rows_that_loops_in_a_loop_read(model):
    """(7) Step `i, j` reads what step `i, j` has made."""

    def program(cs, bound):
        def there(total, c):
            body = lambda c, _: ((p := c[0] < bound), (jnp.where(p, c + 1, c), (c, p)))[1]
            c, rows = lax.scan(body, c, length=6)
            return total + c, rows

        def back(a, rows):
            step = lambda a, row: (jnp.where(row[1], a * row[0] - 3, a), None)
            return lax.scan(step, a, rows, reverse=True)[0], None

        total, rows = lax.scan(there, jnp.zeros(2), cs)
        return lax.scan(back, total, rows, reverse=True)[0]

    cs = jnp.float32([[0, 0], [1, 5], [9, 1]])
    with using(model):
        graph = alone(EXIT, program, cs, jnp.float32(3), fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == 2


def test_rows_that_a_loop_of_cheap_steps_reads(real_questions):
    """(7) It is not worth asking, and takes all its steps."""
    onward = lambda c: jnp.tanh(jnp.ones((300, 300)) @ c) + 1
    program = counted(lambda a, row: a + row, onward=onward)
    graph = alone(EXIT, program, jnp.zeros(300), jnp.float32(1.5), fires=True)
    loops = [type(op) for op in graph.walk() if isinstance(op, Scan | While)]
    assert loops == [While, While, Scan]


def told(c, bound):
    """As `counted`, but that each step back tells its number."""

    def body(carry, _):
        c, k = carry
        p = jnp.all(c < bound)
        return (lax.cond(p, lambda c: c + 1, keep, c), k + p.astype(jnp.int32)), c

    def back(a, i_and_row):
        i, row = i_and_row
        jax.debug.callback(lambda i: None, i)
        return lax.cond(i < k, lambda: a * row - 3, lambda: a), None

    (c, k), rows = lax.scan(body, (c, jnp.int32(0)), None, length=5)
    return lax.scan(back, c, (jnp.arange(5), rows), reverse=True)[0]


@pytest.mark.parametrize(
    ("program", "loops"),
    [
        (counted(lambda a, row: a * row - 3, unroll=5), 1),
        (told, 1),
        (lambda c, bound: stopping(lambda p, c: c, step=lambda c: c + 1)(c, bound)[1].sum(0), 0),
    ],
)
def test_rows_that_something_else_reads(program, loops):
    """(7) A loop that does not stop, because it is unrolled or has effects, or a sum: they are as
    skipped steps would have made them.
    """
    graph = alone(EXIT, program, jnp.zeros(3), jnp.float32(2), fires=True)
    stopped, filled = (op for op in graph.body.ops if isinstance(op, While))
    assert filled.operands[1] in stopped.results
    assert sum(isinstance(op, Scan) for op in graph.body.ops) == loops


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "what",
    [
        lambda p, c: p,
        lambda p, c: ~p,
        lambda p, c: lax.stop_gradient(p),
        lambda p, c: ~lax.stop_gradient(p),
        lambda p, c: jnp.where(p, 7, 3),
        lambda p, c: p.astype(jnp.float32) * c,
        lambda p, c: jax.random.fold_in(jax.random.key(0), c[0].astype(jnp.int32)),
        lambda p, c: c[0].astype(jnp.bfloat16),
    ],
)
def test_what_is_stacked(what, reverse):
    """(4) The predicate, values made from it or from the carry: rows of skipped steps are right."""
    for bound in (-9.0, 2.0, 99.0, jnp.nan):
        program = stopping(what, step=lambda c: c + 1, reverse=reverse)
        alone(EXIT, program, jnp.zeros(3), jnp.float32(bound), fires=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [-3, 0, 1, 4, 5, 100])
def test_how_many_rows_there_are(n, reverse):
    """A bound may be negative, or more than there are rows."""
    for test in (lambda i, n: i < n, lambda i, n: i + 1 <= n, lambda i, n: (i < n) & (i != 2)):
        program = known(lambda p, c, x: (c, p), test=test, reverse=reverse)
        alone(EXIT, program, jnp.zeros(3), jnp.ones((5, 3)), jnp.int32(n), fires=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_counter_that_wraps_around(dtype, reverse):
    """(1) A counter goes on in skipped steps: 300 times 3 in eight bits."""

    def program(c, n):
        def body(carry, _):
            i, c = carry
            return (i + jnp.asarray(3, dtype), lax.cond(i < n, jnp.sin, keep, c)), None

        return lax.scan(body, (jnp.asarray(5, dtype), c), None, length=300, reverse=reverse)[0]

    for n in (0, 50, 100):
        alone(EXIT, program, jnp.ones(3), jnp.asarray(n, dtype), fires=True)


def test_row_numbers_that_wrap_around():
    """``iota`` of 300 in eight bits is below 3 again after 256 rows."""

    def program(c, n):
        body = lambda c, i: (lax.cond(i < n, lambda c: c + 1, keep, c), None)
        return lax.scan(body, c, lax.iota(jnp.uint8, 300))[0]

    alone(EXIT, program, jnp.ones(3), jnp.uint8(3), fires=True)


def test_a_batch_stops_when_every_row_is_done():
    """(1) The predicate is false everywhere."""

    def program(c, bounds):
        body = lambda c, _: (jnp.where(c < bounds, c + 1, c), c)
        return lax.scan(body, c, None, length=5)

    for bounds in ([0.0, 0.0, 0.0], [1.0, 4.0, 2.0], [9.0, 0.0, 0.0]):
        alone(EXIT, program, jnp.zeros(3), jnp.asarray(bounds), fires=True)


def test_a_batch_of_nothing():
    """``all`` of an empty predicate is true: the step is taken, every time."""

    def program(c, h):
        def body(carry, _):
            c, h = carry
            p = c < 1
            return (jnp.where(p, c + 1, c), jnp.where(jnp.all(p), h + 1, h)), None

        return lax.scan(body, (c, h), None, length=5)[0]

    alone(EXIT, program, jnp.zeros(0), jnp.zeros(3), fires=False)


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


def test_stacks_of_weak_type_keep_it():
    program = stopping(lambda p, c: jnp.where(c[1] < 0, 7, 3))
    graph = alone(EXIT, program, "f32[3]", "f32[]", fires=True)
    assert graph.outputs[1].aval.weak_type


def longer(c):
    """What takes most of the time of a step."""
    return jnp.sin(jnp.exp(jnp.cos(jnp.tanh(jnp.sin(jnp.exp(c))))))


def going(step, seen=lambda c, i, n: c[0] < n, **options):
    """A loop that stops for good, or at a known step, while another carry goes on."""

    def program(c, other, n):
        def body(carry, i):
            c, other = carry
            taken = seen(c, i, n)
            return (jnp.where(taken, longer(c), c), step(taken, c, other, i)), None

        return lax.scan(body, (c, other), lax.iota(jnp.int32, 7), **options)[0]

    return program


def test_rows_that_skipped_steps_write():
    """(11) What is known of skipped steps is written by a loop of its own."""

    def program(c, n):
        def body(carry, i):
            c, trace = carry
            go = c[0] < n
            row = jnp.where(go, c[:1], 0.0)
            trace = lax.dynamic_update_slice(trace, row, (i,))
            return (jnp.where(go, jnp.sin(jnp.exp(c)), c), trace), None

        return lax.scan(body, (c, jnp.ones(5)), lax.iota(jnp.int32, 5))[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], n:f32[]) {
            b:f32[5] = broadcast_in_dim 1.0
        -   i:i32[5] = iota
        -   c1:f32[3], c2:f32[5] = scan[5] carry(c=c, c1=b) xs(x=i) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 n
        -     b:f32[1] = broadcast_in_dim 0.0
        -     s2:f32[1] = select_n l b s
        -     d:f32[5] = dynamic_update_slice c1 s2 x
        -     e:f32[3] = exp c
        -     s3:f32[3] = sin e
        -     s4:f32[3] = select_n l c s3
        -     yield carry(s4, d)
        -   }
        +   c3:i32[], c4:f32[3], c5:f32[5] = while carry(c3=0, c4=c, c5=b) {
        +     l1:bool[] = lt c3 5
        +     s:f32[1] = slice[:1] c4
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 n
        +     r:bool[] = reduce_or l
        +     a:bool[] = and l1 r
        +     yield a
        +   } do {
        +     s5:f32[1] = slice[:1] c4
        +     l1:bool[] = lt c3 0
        +     a:i32[] = add c3 5
        +     s6:i32[] = select_n l1 c3 a
        +     d1:f32[5] = dynamic_update_slice c5 s5 s6
        +     e:f32[3] = exp c4
        +     s3:f32[3] = sin e
        +     a1:i32[] = add c3 1
        +     yield carry(a1, s3, d1)
        +   }
        +   c6:i32[], c7:f32[3], c8:f32[5] = while carry(c3=c3, c4=c4, c5=c5) {
        +     l1:bool[] = lt c3 5
        +     yield l1
        +   } do {
        +     l1:bool[] = lt c3 0
        +     a:i32[] = add c3 5
        +     s5:i32[] = select_n l1 c3 a
        +     b:f32[1] = broadcast_in_dim 0.0
        +     d1:f32[5] = dynamic_update_slice c5 b s5
        +     a1:i32[] = add c3 1
        +     yield carry(a1, c4, d1)
        +   }
        -   return c1, c2
        +   return c7, c8
          }
        """,
    )


def test_what_the_first_skipped_step_makes():
    """(12) The others would make the same of the state, and add zero, or NaN, to a sum."""

    def program(c, n):
        def body(carry, _):
            c, total, _ = carry
            alive = c[0] < n
            return (jnp.where(alive, jnp.sin(c), c), total + alive * c, c * 2.0), None

        return lax.scan(body, (c, jnp.zeros(3), c), None, length=5)[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], n:f32[]) {
            b:f32[3] = broadcast_in_dim 0.0
        -   c1:f32[3], c2:f32[3], c3:f32[3] = scan[5] carry(c=c, c1=b, c2=c) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 n
        -     s2:f32[3] = sin c
        -     s3:f32[3] = select_n l c s2
        -     c3:f32[] = convert_element_type l
        -     m:f32[3] = mul c3 c
        -     a:f32[3] = add c1 m
        -     m1:f32[3] = mul c 2.0
        -     yield carry(s3, a, m1)
        -   }
        +   c4:i32[], c5:f32[3], c6:f32[3], c7:f32[3] = while carry(c4=0, c5=c, c6=b, c7=c) {
        +     l1:bool[] = lt c4 5
        +     s:f32[1] = slice[:1] c5
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 n
        +     r:bool[] = reduce_or l
        +     a1:bool[] = and l1 r
        +     yield a1
        +   } do {
        +     s2:f32[3] = sin c5
        +     a1:f32[3] = add c6 c5
        +     m1:f32[3] = mul c5 2.0
        +     a2:i32[] = add c4 1
        +     yield carry(a2, s2, a1, m1)
        +   }
        +   c8:i32[], c9:f32[3], c10:f32[3], c11:f32[3] = while carry(c4=c4, c5=c5, c6=c6, c7=c7) {
        +     l1:bool[] = lt c4 5
        +     yield l1
        +   } do {
        +     m2:f32[3] = mul 0.0 c5
        +     a1:f32[3] = add c6 m2
        +     m3:f32[3] = mul c5 2.0
        +     a2:i32[] = add c4 5
        +     yield carry(a2, c5, a1, m3)
        +   }
        -   return c1, c2, c3
        +   return c9, c10, c11
          }
        """,
    )


def test_factors_in_a_branch(monkeypatch):
    """(13) What a branch computes is not made again after it."""
    weights, state, rates = phases.arguments(256, width=4)
    corrected = jax.vmap(phases.corrected, (None, 0, 0))
    args = weights, jnp.stack([state] * 3), jnp.stack([rates] * 3)
    monkeypatch.setenv("JAXPR_OPT_STRICT", "1")
    optimize(corrected).lower(*args)


BY_NUMBER = lambda c, i, n: i < n


@pytest.mark.parametrize("n", [0.4, 2.0])
@pytest.mark.parametrize("seen", [lambda c, i, n: c[0] < n, BY_NUMBER])
@pytest.mark.parametrize("start", [[0.3, -0.0, 2.0], [0.1, np.inf, np.nan]])
@pytest.mark.parametrize(
    "step",
    [
        lambda taken, c, other, i: other + taken * c,
        lambda taken, c, other, i: other - taken * c,
        lambda taken, c, other, i: (other + taken * c) + c * taken,
        lambda taken, c, other, i: other + jnp.sum(taken * c) + (c @ c) * taken,
        lambda taken, c, other, i: jnp.maximum(other, c),
        lambda taken, c, other, i: jnp.where(c > 0, other, c),
        lambda taken, c, other, i: other.at[1].set(c[0]),
        lambda taken, c, other, i: jnp.where(taken, other + i, c),
        lambda taken, c, other, i: other + c,
        lambda taken, c, other, i: other + jnp.cos(c),
        lambda taken, c, other, i: other + jnp.sin(jnp.where(taken, c, i.astype(c.dtype))),
        lambda taken, c, other, i: c - other,
        lambda taken, c, other, i: other + taken * i.astype(jnp.float32),
        lambda taken, c, other, i: other + taken * (c / (i - 6)),
        lambda taken, c, other, i: other - taken * other,
        lambda taken, c, other, i: jnp.where(other > 0, c, -c),
        lambda taken, c, other, i: jnp.where(other > i, other, i + c),
        lambda taken, c, other, i: other.at[i % 3].set(c[0]),
        lambda taken, c, other, i: other.at[1].add(c[0]),
        lambda taken, c, other, i: other.at[1].multiply(c[0]),
        lambda taken, c, other, i: other.at[1].apply(jnp.sin),
        lambda taken, c, other, i: jnp.roll(other, 1),
        lambda taken, c, other, i: jnp.maximum(other, i + c),
    ],
)
def test_what_goes_on(step, start, seen, n):
    """(11, 12) It is what all steps make, whether it settles or not."""
    alone(EXIT, going(step, seen=seen), jnp.float32(start), jnp.ones(3), jnp.float32(n), fires=True)


def test_a_loop_that_goes_on():
    """(12) What a loop of several results makes again may be something else."""

    def step(taken, c, other, i):
        halve = lambda s: (s[0] + 1.0, s[1] * 0.5)
        return lax.while_loop(lambda s: s[0] < i, halve, (0.0 * i, other))[1]

    args = jnp.float32([0.1]), jnp.ones(3), jnp.float32(2)
    alone(EXIT, going(step), *args, fires=False)


def test_integers_of_what_is_no_number():
    """(12) Zero times infinity, as an integer, is not nothing, nor as a truth value."""
    step = lambda taken, c, other, i: other + (taken * c).astype(bool)
    c = jnp.float32([0.1, jnp.inf, -jnp.inf])
    alone(EXIT, going(step, seen=BY_NUMBER), c, jnp.ones(3, jnp.int32), jnp.float32(2), fires=True)


def test_rows_that_another_loop_makes_for_what_goes_on():
    """(10) All of them are read."""

    def program(c, n):
        rows = lax.scan(lambda c, _: (jnp.sin(c), c), c, None, length=7)[1]

        def body(carry, row):
            c, other = carry
            i, x = row
            return (jnp.where(i < n, longer(c), c), other + x), None

        return lax.scan(body, (c, c), (lax.iota(jnp.int32, 7), rows))[0]

    graph = alone(EXIT, program, jnp.float32([0.3, 0.5, 0.7]), jnp.int32(2), fires=True)
    assert any(isinstance(op, Scan) for op in graph.body.ops)


@pytest.mark.parametrize("n", [-1.0, 0.0, 3.0, 6.0, 9.0])
@pytest.mark.parametrize(
    "step",
    [
        lambda taken, c, other, i: other + i,
        lambda taken, c, other, i: jnp.where(taken, jnp.sin(other) + i, 0.5),
        lambda taken, c, other, i: jnp.where(taken, jnp.sin(other), c),
        lambda taken, c, other, i: other.at[i % 3].set(c[0] * i),
    ],
)
def test_steps_before_those_taken_that_change_something(step, n):
    """(11) A loop in reverse begins with them, and counts as far as they reach."""
    for seen in (BY_NUMBER, lambda c, i, n: (i < n) & (i != 2)):
        program = going(step, seen=seen, reverse=True)
        alone(EXIT, program, jnp.float32([0.3, 0.1, 2.0]), jnp.ones(3), jnp.float32(n), fires=True)


def test_rows_that_steps_before_those_taken_make_of_what_changes():
    """(4) Someone reads them."""
    because = "from one skipped step to the"
    program = discounted(start=1.0, otherwise=0.0, what=lambda c, x: jnp.sin(c) * x)
    check_refuses(EXIT, program, *RETURNS, because=because)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "stopping"), [(jnp.zeros_like, 3), (lambda v: 0.5 * v, 3), (jnp.sin, 2)]
)
def test_a_state_that_changes_at_the_end(real_questions, ended, stopping):
    """(7, 11) Its cotangent, which begins with the loss of it, is gone after one step back, or goes
    on, and may need rows of skipped steps: then the loop that makes them does not stop.
    """

    def loss(w, x, n):
        def step(carry, t):
            x, v = carry
            v = jnp.where(t < n, v + jnp.tanh(w @ x), ended(v))
            return (jnp.where(t < n, x + v, x), v), None

        x, v = lax.scan(step, (x, jnp.zeros(64)), jnp.arange(40))[0]
        return jnp.sum(x) + jnp.sum(v)

    w = jnp.asarray(np.random.default_rng(1).normal(size=(64, 64)) / 9, jnp.float32)
    gradient = jax.grad(loss, (0, 1))
    graph, _ = observe.optimized(gradient, (w, jnp.ones(64), jnp.int32(7)), {})
    assert sum(isinstance(op, While) for op in graph.body.ops) == stopping
    for n in (0, 7, 39, 40, 60):
        args = w, jnp.ones(64), jnp.int32(n)
        assert_close(jax.jit(gradient)(*args), jax.jit(optimize(gradient))(*args))


@pytest.mark.parametrize(
    "program",
    [
        going(lambda taken, c, other, i: other + i, seen=lambda c, i, n: c[0] + i < n),
        going(
            lambda taken, c, other, i: jnp.where(taken, other, jnp.sin(other + c)),
            seen=lambda c, i, n: jnp.arange(3) + i < 4,
        ),
    ],
)
def test_steps_that_change_something_before_others(program):
    """(11) Nobody knows which step is the last one taken, or numbers of elements say what a step
    does.
    """
    alone(EXIT, program, "f32[3]", "f32[3]", "f32[]", fires=False)


def test_branches_that_go_on():
    """(11) What a branch computes counts: a second loop that does all of it saves nothing."""

    def program(keys, w):
        def body(c, key):
            place = jnp.where(key < 0, key + 8, key)
            made = lambda: c.at[place].set(jnp.sum(jnp.tanh(w @ w) @ w))
            return lax.cond(c[place] > 0, lambda: c, made), None

        return lax.scan(body, jnp.zeros(8), keys)[0]

    with using(CostModel()):
        alone(EXIT, program, "i32[300]", "f32[64,64]", fires=False)


def test_a_predicate_of_what_goes_on():
    """(11) It may be true again."""

    def program(c, other):
        def body(carry, _):
            c, other = carry
            return (jnp.where(other[0] < 0.5, longer(c), c), jnp.sin(3.0 * other)), None

        return lax.scan(body, (c, other), None, length=7)[0]

    alone(EXIT, program, "f32[3]", "f32[3]", fires=False)


def test_a_step_that_mostly_goes_on(real_questions):
    """(11) What skipped steps compute takes most of the time of a step."""

    def program(c, other, bound):
        def body(s, _):
            c, other = s
            return (lax.cond(c[0] < bound, jnp.sin, keep, c), jnp.sin(jnp.exp(other))), None

        return lax.scan(body, (c, other), None, length=5)[0]

    alone(EXIT, program, "f32[300]", "f32[300]", "f32[]", fires=False)


def test_rows_of_what_goes_on():
    """(4) They differ from step to step."""

    def program(c, n):
        def body(s, i):
            c, other = s
            return (jnp.where(c[0] < n, longer(c), c), other + i), other

        return lax.scan(body, (c, jnp.ones(3)), lax.iota(jnp.float32, 7))

    check_refuses(EXIT, program, "f32[3]", "f32[]", because="from one skipped step to the")


def test_a_predicate_of_carries_and_rows():
    """(2) It may come back to true, and nobody knows when."""

    def program(c, xs, bound):
        body = lambda c, x: (lax.cond(c[0] < x[0], jnp.sin, keep, c), None)
        return lax.scan(body, c, xs)[0]

    check_refuses(
        EXIT, program, "f32[3]", "f32[5,3]", "f32[]", because="mixes carries with streams"
    )


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


def test_rows_that_differ_from_one_skipped_step_to_the_next():
    """(4) The row of a stream is stacked."""
    check_refuses(
        EXIT, known(lambda p, c, x: x * 2), *KNOWN, because="from one skipped step to the"
    )


def test_a_counter_that_is_stacked():
    """(4) Skipped steps count on."""

    def program(c, n):
        def body(carry, _):
            i, c = carry
            return (i + 1, lax.cond(i < n, jnp.sin, keep, c)), 2 * i

        return lax.scan(body, (0, c), None, length=5)

    check_refuses(EXIT, program, "f32[4]", "i32[]", because="from one skipped step to the")


@pytest.mark.parametrize(
    "what",
    [
        lambda p, c: lax.while_loop(lambda x: x < 0, lambda x: x + 1, c[0]),
        lambda p, c: lax.cond(p, jnp.sin, lambda c: lax.linalg.lu(jnp.outer(c, c))[0][0], c),
        lambda p, c: lax.linalg.lu(jnp.outer(c, c))[0],
    ],
)
def test_rows_that_a_skipped_step_computes(what):
    """(4) By a loop, which may not end, or by what may not run elsewhere, in a branch, too."""
    check_refuses(EXIT, stopping(what), "f32[3]", "f32[]", because="a skipped step computes anew")


def test_a_row_that_a_skipped_step_computes_of_what_it_keeps():
    """(4) A step that is taken computes it of a row of a stream."""

    def program(c, xs, bound):
        def body(c, x):
            c = jnp.where(c[0] < bound, c + x, c)
            return c, jnp.floor(c[0])

        return lax.scan(body, c, xs)

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[5,3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], xs:f32[5,3], bound:f32[]) {
        -   c1:f32[3], ys:f32[5] = scan[5] carry(c=c) xs(x=xs) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 bound
        -     a:f32[3] = add c x
        -     s2:f32[3] = select_n l c a
        -     s3:f32[1] = slice[:1] s2
        -     s4:f32[] = squeeze s3
        -     f:f32[] = floor s4
        -     yield carry(s2) ys(f)
        -   }
        +   u:f32[5] = undefined
        +   c2:i32[], c3:f32[3], c4:f32[5] = while carry(c2=0, c3=c, c4=u) {
        +     l1:bool[] = lt c2 5
        +     s:f32[1] = slice[:1] c3
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 bound
        +     r:bool[] = reduce_or l
        +     a1:bool[] = and l1 r
        +     yield a1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c2 0
        +     s5:f32[3] = squeeze d
        +     a1:f32[3] = add c3 s5
        +     s6:f32[1] = slice[:1] a1
        +     s7:f32[] = squeeze s6
        +     f1:f32[] = floor s7
        +     b:f32[1] = broadcast_in_dim f1
        +     d1:f32[5] = dynamic_update_slice c4 b c2
        +     a2:i32[] = add c2 1
        +     yield carry(a2, a1, d1)
        +   }
        +   s5:f32[1] = slice[:1] c3
        +   s6:f32[] = squeeze s5
        +   f1:f32[] = floor s6
        +   c5:i32[], c6:f32[5] = while carry(c2=c2, c3=c4) {
        +     l1:bool[] = lt c2 5
        +     yield l1
        +   } do {
        +     b:f32[1] = broadcast_in_dim f1
        +     d:f32[5] = dynamic_update_slice c3 b c2
        +     a1:i32[] = add c2 1
        +     yield carry(a1, d)
        +   }
        -   return c1, ys
        +   return c3, c6
          }
        """,
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("taken", "what"),
    [
        (lambda p: p, lambda p, c: jnp.concatenate([p, c > 0])),
        (lambda p: ~p, lambda p, c: jnp.concatenate([p, c > 0])),
        (lambda p: p, lambda p, c: lax.sort(jnp.stack([p, c > 0]), dimension=0)),
        (
            lambda p: p,
            lambda p, c: lax.cond(
                c[0] > 0, lambda: jnp.concatenate([p, c > 0]), lambda: jnp.concatenate([c > 0, p])
            ),
        ),
    ],
    ids=["beside a mask", "of its opposite", "sorted", "in a branch"],
)
def test_a_row_that_a_skipped_step_computes_of_its_predicate(taken, what, reverse):
    """(4) Only the loop reads that of a step that is taken: after the loop, it is false."""

    def program(c, ps):
        def body(c, p):
            return jnp.where(taken(p), jnp.sin(c), c), what(p, c)

        return lax.scan(body, c, ps, reverse=reverse)

    masks = np.arange(6)[:, None] < np.array([2, 1, 3])
    alone(EXIT, program, "f32[3]", masks == taken(np.bool_(True)), fires=True)


def test_a_row_that_a_skipped_step_computes_in_a_branch():
    """(4) The branch that it takes runs once."""
    what = lambda p, c: lax.cond(p, jnp.sin, jnp.cos, c)
    check_rewrite(
        EXIT,
        stopping(what),
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3], ys:f32[5,3] = scan[5] carry(c=c) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 bound
        -     r:f32[3] = cond l {
        -       s:f32[3] = sin c
        -       yield s
        -     } else {
        -       yield c
        -     }
        -     r1:f32[3] = cond l {
        -       s:f32[3] = sin c
        -       yield s
        -     } else {
        -       c1:f32[3] = cos c
        -       yield c1
        -     }
        -     yield carry(r) ys(r1)
        -   }
        +   u:f32[5,3] = undefined
        +   c2:i32[], c3:f32[3], c4:f32[5,3] = while carry(c2=0, c3=c, c4=u) {
        +     l1:bool[] = lt c2 5
        +     s:f32[1] = slice[:1] c3
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 bound
        +     r2:bool[] = reduce_or l
        +     a:bool[] = and l1 r2
        +     yield a
        +   } do {
        +     s2:f32[1] = slice[:1] c3
        +     s3:f32[] = squeeze s2
        +     l1:bool[] = lt s3 bound
        +     s:f32[3] = sin c3
        +     r1:f32[3] = cond l1 {
        +       yield s
        +     } else {
        +       c1:f32[3] = cos c3
        +       yield c1
        +     }
        +     b:f32[1,3] = broadcast_in_dim r1
        +     d:f32[5,3] = dynamic_update_slice c4 b c2 0
        +     a:i32[] = add c2 1
        +     yield carry(a, s, d)
        +   }
        +   c5:f32[3] = cos c3
        +   c6:i32[], c7:f32[5,3] = while carry(c2=c2, c3=c4) {
        +     l1:bool[] = lt c2 5
        +     yield l1
        +   } do {
        +     b:f32[1,3] = broadcast_in_dim c5
        +     d:f32[5,3] = dynamic_update_slice c3 b c2 0
        +     a:i32[] = add c2 1
        +     yield carry(a, d)
        +   }
        -   return c1, ys
        +   return c3, c7
          }
        """,
    )


def test_only_when_nothing_differentiates_any_more():
    """(5) A while loop has no transpose."""
    jaxpr = traced(stopping(), "f32[3]", "f32[]")
    assert not resolve([EXIT]).run(jaxpr, "differentiable").changed
    assert resolve([EXIT]).run(jaxpr, "final").changed


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_loop_that_is_known_to_take_its_last_step(last, reverse):
    """There is nothing to gain; the numbers are those of an array that the program captured."""
    kinds = np.asarray([1, 0, 1, 0, last])

    def program(c, xs):
        def body(c, row):
            kind, x = row
            return lax.cond(kind == 1, lambda: c + x, lambda: c), None

        return lax.scan(body, c, (kinds, xs), reverse=reverse)[0]

    graph = alone(EXIT, program, "f32[3]", "f32[5,3]", fires=not last)
    assert any(isinstance(op, While) for op in graph.body.ops) != last


@pytest.mark.parametrize(("n", "fires"), [(8, True), (9, False)])
def test_a_loop_that_is_known_to_skip_few_steps(n, fires):
    """Fewer than one step of eight saves no time that shows."""

    def program(c, xs):
        body = lambda c, row: (lax.cond(row[0] < n - 1, lambda: c + row[1], lambda: c), None)
        return lax.scan(body, c, (np.arange(n), xs))[0]

    args = "f32[3]", f"f32[{n},3]"
    alone(EXIT, program, *args, fires=fires)
    if not fires:
        check_refuses(EXIT, program, *args, because="it skips 1 of its 9 steps only")


def test_a_loop_that_is_unrolled_asks_after_as_many_steps():
    """(9) What it runs together is what it ran together before."""

    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
        return lax.scan(body, c, None, length=8, unroll=2)[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3] = scan[8, unroll=2] carry(c=c) {
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
        +     l1:bool[] = lt c2 8
        +     s:f32[1] = slice[:1] c3
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 bound
        +     r1:bool[] = reduce_or l
        +     a:bool[] = and l1 r1
        +     yield a
        +   } do {
        +     c4:i32[], c5:f32[3] = scan[2, unroll=2] carry(c2=c2, c3=c3) {
        +       s2:f32[1] = slice[:1] c3
        +       s3:f32[] = squeeze s2
        +       l1:bool[] = lt s3 bound
        +       r1:f32[3] = cond l1 {
        +         s2:f32[3] = sin c3
        +         yield s2
        +       } else {
        +         yield c3
        +       }
        +       a:i32[] = add c2 1
        +       yield carry(a, r1)
        +     }
        +     yield carry(c4, c5)
        +   }
        -   return c1
        +   return c3
          }
        """,
    )


@pytest.mark.parametrize(
    ("length", "unroll", "block"),
    [
        (8, 4, 4),
        (8, 3, 2),
        (12, 5, 4),
        (6, 3, 3),
        (12, 9, 6),
        (7, 3, 1),
        (6, 6, None),
        (6, 8, None),
    ],
)
def test_steps_that_are_unrolled(length, unroll, block):
    """(9) Their number divides that of all."""

    def program(c, bound, reverse=False):
        body = lambda c, _: (lax.cond(c[0] < bound, lambda c: c + 1, keep, c), None)
        return lax.scan(body, c, None, length=length, reverse=reverse, unroll=unroll)[0]

    for bound in (-1.0, 1.5, 4.0, 99.0):
        for reverse in (False, True):
            args = partial(program, reverse=reverse), jnp.zeros(3), jnp.float32(bound)
            graph = alone(EXIT, *args, fires=block is not None)
    blocks = [(op.length, unroll_of(op)) for op in scans(graph)]
    assert blocks == {None: [(length, unroll)], 1: []}.get(block, [(block, block)])


def test_an_unrolled_loop_that_writes_rows_runs_step_by_step():
    """What several steps write in place would be copied between them."""

    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), c)
        return lax.scan(body, c, None, length=8, unroll=2)

    graph = alone(EXIT, program, "f32[3]", "f32[]", fires=True)
    assert not any(isinstance(op, Scan) for op in graph.walk())


def test_loops_of_which_one_is_unrolled():
    """(9) The loop back asks before as many steps as the one whose rows it reads."""
    program = counted(lambda a, row: a * row - 3, length=8, unroll=2)
    graph = alone(EXIT, program, jnp.zeros(3), jnp.float32(2), fires=True)
    assert [type(op) for op in graph.walk() if isinstance(op, Scan | While)] == [While, While]


@pytest.mark.parametrize(
    ("options", "because"), [({"unroll": 5}, "asks to be unrolled"), ({"length": 1}, "1 steps")]
)
def test_loops_that_are_meant_to_run(options, because):
    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
        return lax.scan(body, c, None, **{"length": 5, **options})[0]

    check_refuses(EXIT, program, "f32[3]", "f32[]", because=because)


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


def test_a_step_that_is_cheaper_than_the_question(real_questions):
    graph = alone(EXIT, stopping(), "f32[3]", "f32[]", fires=False)
    assert not any(isinstance(op, While) for op in graph.walk())
    alone(EXIT, stopping(), "f32[9000]", "f32[]", fires=True)


@pytest.mark.parametrize("what", [None, lambda c: c])
@pytest.mark.parametrize(
    ("rows", "length"), [(3, 90), (3, 5), (99_999, 90), (3, 9_000), (3, 70_000)]
)
def test_many_steps_of_few_numbers(real_questions, rows, length, what):
    """Asking costs nothing where XLA compiles the loop as one function, nor while it starts the ops
    of a step one by one, as it does beside large arrays.
    """

    def program(c, table, bound):
        def body(c, _):
            step = lambda c: c + table[0]
            return lax.cond(c < bound, step, keep, c), what and what(c)

        return lax.scan(body, c, None, length=length)

    args = jnp.float32(0), jnp.ones(rows), jnp.float32(20)
    # Only whole numbers are added.
    alone(EXIT, program, *args, fires=length >= 90, evaluate=compiled)


def test_steps_that_are_cheaper_than_all_their_predicates(real_questions):
    """A prefix sum by doubling: each element has a predicate of its own, in every step."""

    def program(x, step=jnp.roll):
        places = jnp.arange(x.shape[0])

        def body(x, s):
            return x + jnp.where(places >= s, step(x, s), 0.0), None

        return lax.scan(body, x, 2 ** jnp.arange(4))[0]

    check_refuses(EXIT, program, "f32[2048]", because="take about as long as its steps")
    wide = lambda x: program(x, lambda x, s: jnp.sin(jnp.outer(x, x)).sum(1))
    alone(EXIT, wide, "f32[300]", fires=True)


@pytest.mark.parametrize("copies", [False, True])
def test_cheap_steps_of_which_some_write(real_questions, copies):
    """A branch hands an array on, or writes to it in place: that is no work where XLA does not copy
    what a branch writes to.
    """

    def program(table, xs):
        def body(carry, x):
            table, s = carry
            written = lambda: table.at[x].set(s + 1)
            return (lax.cond(x % 3 == 0, lambda: table, written), s * 0.5 + 1), None

        return lax.scan(body, (table, 0.0), xs)[0]

    with using(CostModel.of_backend("cpu").but(starts_each=copies)):
        alone(EXIT, program, "f32[3000]", "i32[40]", fires=copies)


@pytest.mark.parametrize(("moved", "fires"), [(1, False), (0, True)])
def test_predicate_that_needs_most_of_a_step(real_questions, moved, fires):
    """It would be computed for all steps before the loop, and again in it, where its branch is."""

    def program(board, lines):
        def body(board, line):
            seen = line
            for _ in range(6 * moved):
                seen = line * seen[::-1]
            turn = lambda board: jnp.sin(board) * line[::-1]
            return lax.cond(jnp.any(seen > 1) if moved else line[0] > 1, turn, keep, board), None

        return lax.scan(body, board, lines)[0]

    args = "f32[4096]", "f32[8,4096]"
    if fires:
        alone(EXIT, program, *args, fires=True)
    else:
        check_refuses(EXIT, program, *args, because="take about as long as its steps")


@pytest.mark.parametrize(("width", "is_worth_it"), [(140, False), (3000, True)])
def test_a_step_that_writes_to_a_large_array_in_place(real_questions, width, is_worth_it):
    """It costs the window."""

    def program(bound, table):
        def step(table, i):
            options = {"axis": 0, "allow_negative_indices": False}
            old = lax.dynamic_index_in_dim(table, i, keepdims=False, **options)
            new = jnp.where(i < bound, jnp.sin(old), old)
            return lax.dynamic_update_index_in_dim(table, new, i, **options), None

        return lax.scan(step, table, jnp.arange(500))[0]

    graph = import_jaxpr(traced(program, "i32[]", f"f32[500,{width}]"), "final")
    (loop,) = scans(graph)
    assert cost_model().is_worth_a_question(loop.body) == is_worth_it
    # XLA starts its ops one by one, as the array is large.
    alone(EXIT, program, "i32[]", f"f32[500,{width}]", fires=True)


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


@pytest.mark.parametrize(("width", "selects"), [(3, True), (99_999, False)])
def test_what_a_loop_of_few_numbers_selects(real_questions, width, selects):
    """XLA would compute it again for the next predicate: a select costs nothing there."""

    def root(x):
        def step(carry, _):
            x, done = carry
            y = jnp.where(done, x, x - (x**3 - 2) / 9)
            return (y, done | (jnp.abs(y[0] - x[0]) < 1e-2)), None

        return lax.scan(step, (x, False), None, length=90)[0][0]

    graph = alone(EXIT, root, jnp.linspace(1.0, 1.5, width), fires=True)
    asked = [uniform(op.operands[0]) is None for op in graph.walk() if op.name == "select_n"]
    assert any(asked) == selects


# ---------------------------------------------------------------- steps that are run are taken


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
        +   s:i32[] = sub c2 c2
        +   c3:i32[], c4:f32[3] = while carry(c3=s, c4=c) {
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


def test_rows_that_only_masks_of_rewards_need():
    """A loop stacks whether it is done, not what that is made of: it stops when that stays so."""

    def total(x):
        def step(s, _):
            x, done, total = s
            x = x * jnp.cos(x)
            done = done | (x < 0.5)
            return (x, done, total + jnp.where(done, 0.0, jnp.sin(x))), None

        return lax.scan(step, (x, jnp.zeros(3, bool), jnp.zeros(3)), None, length=6)[0][2].sum()

    graph = observe.optimized(jax.grad(total), (jnp.float32([0.9, 0.7, 1.0]),), {})[0]
    assert len([op for op in graph.walk() if isinstance(op, While)]) == 2


def summed(of_row):
    """The gradient of rows of which a masked sum is used: a loop back carries nothing."""

    def loss(xs, w, n):
        def step(total, row):
            i, x = row
            return total + of_row(x, w, i < n), None

        return jnp.sin(lax.scan(step, jnp.zeros(3), (lax.iota(jnp.int32, 5), xs))[0].sum())

    return jax.grad(loss)


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


# ---------------------------------------------------------------- masks that drop a part of a step


def masked_loss(
    what=lambda h, total: total, *, seen=lambda i, n, h: i < n, stacked=None, **options
):
    """The state of a network goes on, its loss is counted in the first steps only."""

    def program(h, xs, n):
        def body(carry, row):
            (h, total), (i, x) = carry, row
            h = jnp.sin(h) * x
            loss = jnp.where(seen(i, n, h), h, 0.0)
            return (h, total + loss), stacked and stacked(h, loss)

        rows = lax.iota(jnp.int32, 5), xs
        carry, ys = lax.scan(body, (h, jnp.zeros(3)), rows, **options)
        return what(*carry), ys

    return program


def test_a_state_of_which_nothing_is_read_after_the_last_step_taken():
    """(8) The mask drops the loss of a step, not its state."""
    check_rewrite(
        EXIT,
        masked_loss(),
        *KNOWN,
        simplify=True,
        diff="""
          fn (h:f32[3], xs:f32[5,3], n:i32[]) {
        -   i:i32[5] = iota
            b:f32[3] = broadcast_in_dim 0.0
        -   c:f32[3], c1:f32[3] = scan[5] carry(c=h, c1=b) xs(x=i, x1=xs) {
        -     s:f32[3] = sin c
        -     m:f32[3] = mul s x1
        -     l:bool[] = lt x n
        -     b:f32[3] = broadcast_in_dim 0.0
        -     s1:f32[3] = select_n l b m
        -     a:f32[3] = add c1 s1
        -     yield carry(m, a)
        -   }
        +   c2:i32[] = clamp 0 n 5
        +   s2:i32[] = sub c2 c2
        +   c3:i32[], c4:f32[3], c5:f32[3] = while carry(c3=s2, h1=h, c4=b) {
        +     l1:bool[] = lt c3 c2
        +     yield l1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c3 0
        +     s2:f32[3] = squeeze d
        +     s:f32[3] = sin h1
        +     m1:f32[3] = mul s s2
        +     a1:f32[3] = add c4 m1
        +     a2:i32[] = add c3 1
        +     yield carry(a2, m1, a1)
        +   }
        -   return c1
        +   return c5
          }
        """,
    )


def discounted(
    seen=lambda i, n: i < n, start=0.0, otherwise=0.0, what=lambda c, y: None, *, reverse=True
):
    """Returns, from the last step to the first, of an episode that ends early."""

    def program(xs, n):
        def body(c, row):
            i, x = row
            c = jnp.where(seen(i, n), jnp.sin(c) + x, otherwise)
            return c, what(c, x)

        rows = lax.iota(jnp.int32, 5), xs
        return lax.scan(body, jnp.full(3, start, jnp.float32), rows, reverse=reverse)

    return program


RETURNS = ("f32[5,3]", "i32[]")


def test_a_number_that_a_loop_begins_with_until_the_first_step_taken():
    """(8) Before the first step taken, in reverse, the carry is what it began with."""
    check_rewrite(
        EXIT,
        discounted(),
        *RETURNS,
        simplify=True,
        diff="""
          fn (xs:f32[5,3], n:i32[]) {
        -   i:i32[5] = iota
            b:f32[3] = broadcast_in_dim 0.0
        -   c:f32[3] = scan[5, reverse] carry(c=b) xs(x=i, x1=xs) {
        -     l:bool[] = lt x n
        -     s:f32[3] = sin c
        -     a:f32[3] = add s x1
        -     b:f32[3] = broadcast_in_dim 0.0
        -     s1:f32[3] = select_n l b a
        -     yield carry(s1)
        -   }
        +   c1:i32[] = clamp 0 n 5
        +   s2:i32[] = sub c1 1
        +   c2:i32[], c3:f32[3] = while carry(c1=s2, c2=b) {
        +     g:bool[] = ge c1 0
        +     yield g
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c1 0
        +     s2:f32[3] = squeeze d
        +     s:f32[3] = sin c2
        +     a1:f32[3] = add s s2
        +     s3:i32[] = sub c1 1
        +     yield carry(s3, a1)
        +   }
        -   return c
        +   return c3
          }
        """,
    )


@pytest.mark.parametrize("n", [-3, 0, 1, 4, 5, 100])
@pytest.mark.parametrize("holes", [False, True])
def test_how_many_steps_count(n, holes):
    """(2, 4, 8) Steps between that are not taken are run; rows of the others are made anew."""
    seen = (lambda i, n, *h: (i < n) & (i != 1)) if holes else (lambda i, n, *h: i < n)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    alone(EXIT, masked_loss(seen=seen), xs[0], xs, jnp.int32(n), fires=True)
    alone(EXIT, masked_loss(seen=seen, stacked=lambda h, y: y), xs[0], xs, jnp.int32(n), fires=True)
    alone(EXIT, discounted(seen), xs, jnp.int32(n), fires=True)
    alone(EXIT, discounted(seen, what=lambda c, x: c), xs, jnp.int32(n), fires=True)
    alone(EXIT, discounted(seen, start=2.0, otherwise=2.0), xs, jnp.int32(n), fires=True)


@pytest.mark.parametrize(("zero", "loops"), [(0j, 1), (complex(0.0, -0.0), 2)])
def test_zeros_of_complex_numbers(zero, loops):
    """(8, 11) A skipped step leaves the zero with which the carry begins, signs and all, or a loop
    of its own makes another of it.
    """

    def program(xs, n):
        step = lambda c, row: (jnp.where(row[0] < n, c + row[1], jnp.full(3, zero, c.dtype)), None)
        rows = jnp.arange(5), xs
        return lax.scan(step, jnp.zeros(3, jnp.complex64), rows, reverse=True)[0]

    graph = alone(EXIT, program, jnp.ones((5, 3), jnp.complex64), jnp.int32(3), fires=True)
    assert sum(isinstance(op, While) for op in graph.body.ops) == loops


def test_a_carry_that_begins_as_a_weak_type():
    """What it ends as is of the type that a step makes."""

    def program(xs, n):
        step = lambda c, row: (jnp.where(row[0] < n, c + row[1], 0.0), None)
        return lax.scan(step, jnp.full(3, 0.0), (lax.iota(jnp.int32, 5), xs), reverse=True)

    alone(EXIT, program, *RETURNS, fires=True)


@pytest.mark.parametrize(
    "program",
    [
        masked_loss(seen=lambda i, n, h: h < 0.5),
        masked_loss(reverse=True),
        lambda h, xs, n: until(h, xs),
        masked_loss(seen=lambda i, n, h: jnp.arange(3) + i < 6),
    ],
)
def test_a_state_that_matters(program):
    """(8) It makes the predicate; the loop is in reverse; numbers of elements say what counts."""
    alone(EXIT, program, *KNOWN, fires=False)


def until(h, xs):
    """The loss counts while the state that goes on is small: it may be small again."""

    def body(carry, _):
        h, total = carry
        return (jnp.sin(3.0 * h), total + jnp.where(h[0] < 0.5, h, 0.0)), None

    return lax.scan(body, (h, jnp.zeros(3)), None, length=5)[0][1]


@pytest.mark.parametrize(("start", "otherwise"), [(1.0, 0.0), (0.0, 1.0), (0.0, -0.0), (-0.0, 0.0)])
def test_a_number_that_a_skipped_step_changes(start, otherwise):
    """(8, 11) A loop of its own makes it; the sign of zero counts where nothing was transposed."""
    program = discounted(start=start, otherwise=otherwise)
    for n in (0, 3, 5):
        graph = alone(EXIT, program, jnp.ones((5, 3)), jnp.int32(n), fires=True)
        assert sum(isinstance(op, While) for op in graph.body.ops) == 2


def test_rows_of_a_state_that_goes_on():
    """(4) Someone reads them."""
    program = masked_loss(stacked=lambda h, loss: h)
    check_refuses(EXIT, program, *KNOWN, because="from one skipped step to the")


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("differentiated", [jax.grad, jax.value_and_grad])
def test_both_loops_of_the_gradient_of_masked_losses(real_questions, batched, differentiated):
    """(7, 8, 10) The forward loop leaves out rows that the loop back, which begins later, does not
    read; without the loss it does not say itself which steps count.
    """

    def loss(w, xs, length):
        def step(carry, row):
            (h, total), (x, t) = carry, row
            h = jnp.tanh(w @ h + x)
            return (h, total + jnp.where(t < length, jnp.sum(h**2), 0.0)), None

        return lax.scan(step, (jnp.zeros(64), 0.0), (xs, jnp.arange(len(xs))))[0][1]

    def total(w, xs, lengths):
        return jax.vmap(loss, (None, 0, 0))(w, xs, lengths).sum()

    xs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40, 64)), jnp.float32)
    f, args = (total, (xs, jnp.asarray([2, 9, 1]))) if batched else (loss, (xs[0], jnp.int32(7)))
    args = jnp.eye(64) / 2, *args
    graph, _ = observe.optimized(optimize(differentiated(f)), args, {})
    loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
    assert [type(op) for op in loops] == [While, While]
    for gradient in (optimize(jax.grad(f)), jax.grad(optimize(f))):
        assert_same(gradient, jax.grad(f), args, grad=False)


@pytest.mark.slow
@pytest.mark.parametrize("summed", [jnp.add, jnp.subtract])
def test_losses_of_a_batch_that_the_step_sums_up(real_questions, summed):
    """(1, 7) A sum of masked losses is zero; the loop back counts the steps that the mask counts,
    with numbers of another type.
    """

    def loss(w, xs, lengths):
        def step(t, carry):
            h, total = carry
            total = summed(total, jnp.where(t < lengths, (h**2).sum(1), 0.0).sum())
            return jnp.where((t < lengths)[:, None], jnp.tanh(h @ w + xs[:, t]), h), total

        return lax.fori_loop(0, xs.shape[1], step, (jnp.zeros((3, 64)), 0.0))[1]

    xs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40, 64)), jnp.float32)
    for lengths in ([2, 9, 1], [40, 1, 50], [0, 0, 0]):
        args = jnp.eye(64) / 2, xs, jnp.asarray(lengths)
        graph, _ = observe.optimized(optimize(jax.grad(loss)), args, {})
        loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
        assert [type(op) for op in loops] == [While, While]
        assert_same(optimize(jax.grad(loss)), jax.grad(loss), args, grad=False)


# ---------------------------------------------------------------- loops that only make rows


def added(total, row):
    return total + row[0] * row[1], None


def fed(
    what=lambda g, h, ys: g,
    *,
    seen=lambda i, y, n: i < n,
    made=lambda h, x, n: jnp.sin(h) * x,
    start=lambda h: jnp.ones(3),
    **options,
):
    """A loop makes rows, another one reads the first of them, from the last to the first."""

    def program(h, xs, n):
        step = lambda h, x: ((y := made(h, x, n)), y)
        h, ys = lax.scan(step, h, xs, **options)
        back = lambda g, row: (jnp.where(seen(*row, n), g * row[1] + 1.0, g), None)
        g = lax.scan(back, start(h), (lax.iota(jnp.int32, 5), ys), reverse=True)[0]
        return what(g, h, ys)

    return program


def fed_again(h, xs, n):
    """The same rows are read in each step of another loop."""
    ys = lax.scan(lambda h, x: ((y := jnp.sin(h) * x), y), h, xs)[1]
    back = lambda g, row: (jnp.where(row[0] < n, g * row[1] + 1.0, g), None)
    rows = lax.iota(jnp.int32, 5), ys
    return lax.fori_loop(0, 3, lambda _, g: lax.scan(back, g, rows, reverse=True)[0], h)


def fed_until(h, xs, n):
    """How many rows are read is known when they are."""
    ys = lax.scan(lambda h, x: ((y := jnp.sin(h) * x), y), h, xs)[1]
    step = lambda g, y: (jnp.where(g[0] < n, g * y + 1.0, g), None)
    return lax.scan(step, h, ys)[0]


def fed_by_all(h, xs, n):
    """Devices make rows together, and read as many of them as each likes."""
    program = fed(made=lambda h, x, n: jnp.sin(lax.pmean(h, "i")) * x)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec()
    run = jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return run(h, xs, n)


def test_a_loop_that_makes_rows_for_a_loop_that_begins_late():
    """(10) It makes as many as that one reads."""
    check_rewrite(
        EXIT,
        fed(),
        *KNOWN,
        simplify=True,
        diff="""
          fn (h:f32[3], xs:f32[5,3], n:i32[]) {
        -   c:f32[3], ys:f32[5,3] = scan[5] carry(c=h) xs(x=xs) {
        -     s:f32[3] = sin c
        -     m:f32[3] = mul s x
        -     yield carry(m) ys(m)
        -   }
            b:f32[3] = broadcast_in_dim 1.0
        -   i:i32[5] = iota
        -   c1:f32[3] = scan[5, reverse] carry(c=b) xs(x=i, x1=ys) {
        -     l:bool[] = lt x n
        -     m:f32[3] = mul c x1
        -     a:f32[3] = add m 1.0
        -     s:f32[3] = select_n l c a
        -     yield carry(s)
        -   }
        +   c2:i32[] = clamp 0 n 5
        +   s1:i32[] = sub c2 c2
        +   u:f32[5,3] = undefined
        +   c3:i32[], c4:f32[3], c5:f32[5,3] = while carry(c3=s1, h1=h, c4=u) {
        +     l1:bool[] = lt c3 c2
        +     yield l1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c3 0
        +     s1:f32[3] = squeeze d
        +     s:f32[3] = sin h1
        +     m1:f32[3] = mul s s1
        +     b1:f32[1,3] = broadcast_in_dim m1
        +     d1:f32[5,3] = dynamic_update_slice c4 b1 c3 0
        +     a1:i32[] = add c3 1
        +     yield carry(a1, m1, d1)
        +   }
        +   s2:i32[] = sub c2 1
        +   c6:i32[], c7:f32[3] = while carry(c2=s2, c3=b) {
        +     g:bool[] = ge c2 0
        +     yield g
        +   } do {
        +     d:f32[1,3] = dynamic_slice c5 c2 0
        +     s1:f32[3] = squeeze d
        +     m1:f32[3] = mul c3 s1
        +     a1:f32[3] = add m1 1.0
        +     s2:i32[] = sub c2 1
        +     yield carry(s2, a1)
        +   }
        -   return c1
        +   return c7
          }
        """,
    )


@pytest.mark.parametrize("n", [-3, 0, 1, 4, 5, 100])
def test_how_many_rows_are_made(n):
    """(10) Rows between that are not read are made, too."""
    for seen in (lambda i, y, n: i < n, lambda i, y, n: (i < n) & (i != 1)):
        graph = alone(EXIT, fed(seen=seen), XS[0], XS, jnp.int32(n), fires=True)
        assert sum(isinstance(op, While) for op in graph.body.ops) == 2


def test_rows_that_are_made_behind_a_barrier():
    """(10) It has no effects."""
    made = lambda h, x, n: lax.optimization_barrier(jnp.sin(h) * x)
    graph = alone(EXIT, fed(made=made), XS[0], XS, jnp.int32(3), fires=True)
    assert sum(isinstance(op, While) for op in graph.body.ops) == 2


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(fed(lambda g, h, ys: (g, h)), id="its state is read"),
        pytest.param(fed(lambda g, h, ys: (g, ys.sum())), id="its rows are read elsewhere"),
        pytest.param(
            fed(lambda g, h, ys: (g, lax.scan(added, g, (lax.iota(jnp.float32, 5), ys))[0])),
            id="another loop reads all of its rows",
        ),
        pytest.param(fed(start=lambda h: h), id="another loop begins with its state"),
        pytest.param(fed_again, id="another loop reads its rows again and again"),
        pytest.param(fed_until, id="another loop ends by what it makes of them"),
        pytest.param(fed_by_all, id="it communicates"),
        pytest.param(fed(seen=lambda i, y, n: y > 0.5), id="its rows say which are read"),
        pytest.param(fed(reverse=True), id="it runs in reverse"),
        pytest.param(
            fed(made=lambda h, x, n: (jax.debug.print("{}", x), jnp.sin(h) * x)[1]),
            id="it has effects",
        ),
    ],
)
def test_loops_that_make_all_rows(program):
    """(10)"""
    graph = alone(EXIT, program, *KNOWN, fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == 1


def test_a_loop_that_makes_rows_in_no_time(real_questions):
    """(10) It takes longer to ask than to make them."""

    def program(h, xs, n, w):
        ys = lax.scan(lambda h, x: ((y := h * x), y), h, xs)[1]
        back = lambda g, row: (jnp.where(row[0] < n, jnp.tanh(w @ g) + row[1][0], g), None)
        return lax.scan(back, w[0], (lax.iota(jnp.int32, 5), ys), reverse=True)[0]

    graph = alone(EXIT, program, *KNOWN, "f32[300,300]", fires=True)
    assert [type(op) for op in graph.walk() if isinstance(op, Scan | While)] == [Scan, While]


# ---------------------------------------------------------------- asking a batch


@pytest.mark.parametrize("size", [1, 31, 64, 65, 127, 1000, 2049])
def test_halves_of_a_predicate_hold_each_of_its_elements(size):
    asked = jax.jit(any_true)
    none = np.zeros(size, bool)
    assert not asked(none)
    for place in {0, size // 3, size // 2, (size - 1) // 2, size - 1}:
        assert asked(np.arange(size) == place)


def test_a_large_batch_is_asked_by_halves():
    """XLA:CPU reduces truth values one by one, but combines arrays of them in vectors."""
    program = masked_walk()
    batch = jnp.linspace(0.0, 2.0, 100)
    graph, _ = observe.optimized(program, (batch,), {})
    (loop,) = (op for op in graph.walk() if isinstance(op, While))
    (asked,) = (op for op in loop.predicate.ops if op.name == "reduce_or")
    assert asked.operands[0].shape == (50,)
    np.testing.assert_array_equal(optimize(program)(batch), jax.jit(program)(batch))


def masked_walk():
    def step(c, _):
        x, on = c
        x = jnp.where(on, x + jnp.tanh(jnp.sin(x)) ** 2, x)
        return (x, on & (x < 2.5)), None

    return lambda x: lax.scan(step, (x, jnp.ones(x.shape, bool)), None, length=64)[0][0]


def leaving(what=lambda p, z: None, **options):
    """Steps until each point has left; `what` is stacked."""

    def program(z, c):
        def step(z, x):
            p = jnp.abs(z) <= 2
            return jnp.where(p, z * z + c + x, z), what(p, z)

        return lax.scan(step, z, jnp.zeros(6), **options)

    return program


def test_the_predicate_of_a_batch_is_handed_on():
    """Each step computes that of the next; the question and the step read it."""
    with using(Along(FREE)):
        check_rewrite(
            EXIT,
            lambda z, c: leaving()(z, c)[0],
            jnp.zeros(3),
            jnp.array([0.1, 1.0, 3.0]),
            diff="""
              fn (z:f32[3], c:f32[3]) {
                b:f32[6] = broadcast_in_dim 0.0
            -   c1:f32[3] = scan[6] carry(c1=z) xs(x=b) {
            -     a:f32[3] = abs c1
            -     l:bool[3] = le a 2.0
            -     m:f32[3] = mul c1 c1
            -     a1:f32[3] = add m c
            -     a2:f32[3] = add a1 x
            -     s:f32[3] = select_n l c1 a2
            -     yield carry(s)
            -   }
            +   s1:i32[] = sub 6 6
            +   a3:f32[3] = abs z
            +   l1:bool[3] = le a3 2.0
            +   c2:i32[], c3:f32[3], c4:bool[3] = while carry(c2=s1, z1=z, c3=l1) {
            +     l1:bool[] = lt c2 6
            +     e:bool[3] = eq c3 True
            +     r:bool[] = reduce_or[axes=(0,)] e
            +     a3:bool[] = and l1 r
            +     yield a3
            +   } do {
            +     d:f32[1] = dynamic_slice b c2
            +     s1:f32[] = squeeze d
            +     a:f32[3] = abs z1
            +     l:bool[3] = le a 2.0
            +     m:f32[3] = mul z1 z1
            +     a1:f32[3] = add m c
            +     a3:f32[3] = add a1 s1
            +     s2:f32[3] = select_n c3 z1 a3
            +     a4:i32[] = add c2 1
            +     a5:f32[3] = abs s2
            +     l1:bool[3] = le a5 2.0
            +     yield carry(a4, s2, l1)
            +   }
            -   return c1
            +   return c3
              }
            """,
        )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "what",
    [
        lambda p, z: (p, z),
        lambda p, z: ~p,
        lambda p, z: p.astype(jnp.float32) * z,
        lambda p, z: jnp.where(p, z, 7),
        lambda p, z: jnp.abs(z) + jnp.any(p),
    ],
)
def test_what_a_batch_stacks_that_hands_on_its_predicate(what, reverse):
    """(4) Rows of skipped steps are made of a predicate that is false."""
    for c in ([0.1, 1.0, 3.0], [9.0, 9.0, 9.0], [0.0, 0.0, 0.0], [jnp.nan, 1.0, 2.0]):
        with using(Along(FREE)):
            program = leaving(what, reverse=reverse)
            alone(EXIT, program, jnp.zeros(3), jnp.array(c), fires=True)


def test_only_a_predicate_that_takes_long_is_handed_on():
    """To compare numbers again takes no longer than moving truth values; an absolute value of
    complex numbers does.
    """

    def carried(program, *args):
        with using(CostModel().but(tested=0.0)):
            (loop,) = (op for op in alone(EXIT, program, *args, fires=True).walk() if is_while(op))
        return [carry.param.dtype for carry in loop.carries].count(np.dtype(bool))

    is_while = lambda op: isinstance(op, While)
    program = lambda z, c: leaving()(z, c)[0]
    c = jnp.linspace(0.1, 3.0, 20_000)
    assert carried(program, jnp.zeros(c.shape), c) == 0
    assert carried(program, jnp.zeros(c.shape, jnp.complex64), c + 0j) == 1


@pytest.mark.parametrize(
    ("step", "every"),
    [
        (lambda x: x + 0.01 * x, None),
        (lambda x: x + 0.01 * jnp.tanh(x), 16),
        (lambda x: x + 0.01 * jnp.log1p(jnp.exp(x) + jnp.sin(x)), 8),
        (lambda x: x + jnp.ones((1000, 1000)) @ x, 1),
    ],
)
def test_elements_of_a_predicate_take_time(step, every, real_questions):
    """Cost: 1.2 to 2.3 times the time of plain JAX, if cheap steps are all asked, and taken."""

    def program(x):
        masked = lambda x, _: (jnp.where(x < 2.5, step(x), x), None)
        return lax.scan(masked, x, None, length=32)[0]

    graph = alone(EXIT, program, jnp.linspace(-3, 3, 1000), fires=every is not None)
    loops = [op for op in graph.walk() if isinstance(op, While)]
    inner = [[op.length for op in loop.body.ops if isinstance(op, Scan)] for loop in loops]
    assert inner == {None: [], 1: [[]]}.get(every, [[every]])


@pytest.mark.parametrize("bound", [-1.0, 0.5, 2.5, 99.0])
def test_a_loop_back_runs_the_steps_that_were_counted(bound):
    """(2) Nobody looks at the predicates of all rows."""
    graph = alone(EXIT, there_and_back, jnp.arange(3.0), jnp.float32(bound), fires=True)
    assert [op.name for op in graph.walk() if op.name in ("while", "reduce_max")] == ["while"] * 2


def rollout(row, *, factor=0.9, done=lambda done, new: done | (new.sum() > 2)):
    """A loop whose state stops, and a discount goes on; it stacks `row` of these."""

    def program(s, x):
        def body(c, t):
            s, stopped, d = c
            new = jnp.sin(s) + x
            kept = jnp.where(stopped, s, new)
            left = 1.0 - stopped.astype(jnp.float32)
            return (kept, done(stopped, new), d * factor), row(left, d, t, new)

        return lax.scan(body, (s, jnp.bool_(False), 1.0), jnp.arange(6))[1]

    return program


DISCOUNTED = {
    "carried": lambda left, d, t, new: left * d * jnp.sum(new**2),
    "a power": lambda left, d, t, new: left * 0.9**t * jnp.sum(new**2),
    "of a step": lambda left, d, t, new: left * (1 - d) * new,
    "last": lambda left, d, t, new: jnp.sum(new**2) * (d * left),
    "integers": lambda left, d, t, new: left.astype(jnp.int32) * t,
}


@pytest.mark.parametrize("name", DISCOUNTED)
def test_discounts_of_steps_that_count_no_more(name):
    """(4) Zero times a number from zero to one is zero, however it goes on."""
    graph = alone(EXIT, rollout(DISCOUNTED[name]), "f32[3]", "f32[3]", fires=True)
    assert not any(isinstance(op, Scan) for op in graph.body.ops)


def test_a_rollout():
    """(4) Rows of skipped steps are made of what they keep, without what goes on."""
    check_rewrite(
        EXIT,
        rollout(DISCOUNTED["carried"]),
        "f32[3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (s:f32[3], x:f32[3]) {
        -   c:f32[3], c1:bool[], c2:f32[], ys:f32[6] = scan[6] carry(c=s, c1=False, c2=1.0) {
        -     s:f32[3] = sin c
        -     a:f32[3] = add s x
        -     s1:f32[3] = select_n c1 a c
        -     c3:f32[] = convert_element_type c1
        -     s2:f32[] = sub 1.0 c3
        -     r:f32[] = reduce_sum[axes=(0,)] a
        -     g:bool[] = gt r 2.0
        -     o:bool[] = or c1 g
        -     m:f32[] = mul c2 0.9
        -     c4:f32[] = convert_element_type c2
        -     m1:f32[] = mul s2 c4
        -     i:f32[3] = integer_pow[y=2] a
        -     r1:f32[] = reduce_sum[axes=(0,)] i
        -     m2:f32[] = mul m1 r1
        -     yield carry(s1, o, m) ys(m2)
        -   }
        +   u:f32[6] = undefined
        +   c5:i32[], c6:f32[3], c7:bool[], c8:f32[], c9:f32[6] = while carry(c5=0, s3=s, c6=False, c7=1.0, c8=u) {
        +     l:bool[] = lt c5 6
        +     n:bool[] = not c6
        +     r2:bool[] = reduce_or n
        +     a1:bool[] = and l r2
        +     yield a1
        +   } do {
        +     s:f32[3] = sin s3
        +     a:f32[3] = add s x
        +     r:f32[] = reduce_sum[axes=(0,)] a
        +     g:bool[] = gt r 2.0
        +     m:f32[] = mul c7 0.9
        +     c4:f32[] = convert_element_type c7
        +     i:f32[3] = integer_pow[y=2] a
        +     r1:f32[] = reduce_sum[axes=(0,)] i
        +     m3:f32[] = mul c4 r1
        +     b:f32[1] = broadcast_in_dim m3
        +     d:f32[6] = dynamic_update_slice c8 b c5
        +     a1:i32[] = add c5 1
        +     yield carry(a1, a, g, m, d)
        +   }
        +   s3:f32[3] = sin c6
        +   a1:f32[3] = add s3 x
        +   i1:f32[3] = integer_pow[y=2] a1
        +   r2:f32[] = reduce_sum[axes=(0,)] i1
        +   m3:f32[] = mul 0.0 r2
        +   c10:i32[], c11:f32[6] = while carry(c5=c5, c6=c9) {
        +     l:bool[] = lt c5 6
        +     yield l
        +   } do {
        +     b:f32[1] = broadcast_in_dim m3
        +     d:f32[6] = dynamic_update_slice c6 b c5
        +     a1:i32[] = add c5 1
        +     yield carry(a1, d)
        +   }
        -   return ys
        +   return c11
          }
        """,  # noqa: E501
    )


@pytest.mark.parametrize("state", [0.5, 3e38, jnp.inf, jnp.nan])
@pytest.mark.parametrize(
    ("row", "factor"),
    [
        pytest.param(DISCOUNTED["carried"], 1.1, id="it grows"),
        pytest.param(DISCOUNTED["carried"], 1e30, id="it grows until it is infinite"),
        pytest.param(lambda left, d, t, new: left * new * d, 0.9, id="the state is multiplied"),
    ],
)
def test_rows_that_are_zero_times_what_may_be_no_number(row, factor, state):
    """(4, 13) The loop tells whether it is one."""
    args = jnp.full(3, state), jnp.full(3, 0.3)
    alone(EXIT, rollout(row, factor=factor), *args, fires=True)


NOISE = {
    "normal": lambda k, x: jax.random.normal(k, x.shape),
    "Gumbel, bounded": lambda k, x: jnp.tanh(jax.random.gumbel(k, x.shape)),
    "guarded": lambda k, x: jnp.where(jnp.abs(x) < 9, x * x, 1.0),
    "normal, and what is asked": lambda k, x: jax.random.normal(k, x.shape) - 0.1 * jnp.tanh(x),
}


@pytest.mark.parametrize("name", NOISE)
def test_steps_of_noise_by_arithmetic(name):
    """(4, 13) Zero times a number that is finite whatever the arguments are is zero."""

    def program(x, key, n):
        def step(carry, t):
            x, key = carry
            key, now = jax.random.split(key)
            return (x + (t < n) * NOISE[name](now, x), key), None

        return lax.scan(step, (x, key), jnp.arange(40))[0][0]

    args = jnp.linspace(-1.0, 1.0, 300), jax.random.key(0), jnp.int32(5)
    graph = alone(EXIT, program, *args, fires=True)
    assert not any(isinstance(op, Scan) for op in graph.body.ops)
    asks = [op for op in graph.walk() if op.name == "reduce_max" and op.result.shape == ()]
    assert bool(asks) == ("asked" in name)
    alone(EXIT, program, jnp.full(300, jnp.inf), *args[1:], fires=True)


def test_rows_that_go_on():
    """(4) What a skipped step stacks is no product, and differs."""
    program = rollout(lambda left, d, t, new: left + d, factor=0.9)
    check_refuses(EXIT, program, "f32[3]", "f32[3]", because="from one skipped step to the next")


def test_a_discount_that_ends():
    """(1) A number from zero to one that is not positive is zero, and stays so."""

    def program(s, x):
        def body(c, _):
            s, d = c
            new = jnp.sin(s) + x
            return (jnp.where(d > 0, new, s), d * 0.9 * (new.sum() < 2)), d * jnp.sum(new**2)

        return lax.scan(body, (s, 1.0), None, length=6)

    graph = alone(EXIT, program, "f32[3]", "f32[3]", fires=True)
    assert not any(isinstance(op, Scan) for op in graph.body.ops)


def gradient_of(row, read=lambda rows: rows.sum()):
    return jax.grad(lambda s, x: read(rollout(row)(s, x)), argnums=(0, 1))


@pytest.mark.parametrize("name", ["carried", "a power", "of a step", "last"])
def test_the_loop_back_of_discounts(name):
    """(7) It begins at the last step taken: the rows of others leave its carries as they begin."""
    args = jnp.asarray([0.1, 0.2, 0.3]), jnp.asarray([0.2, 0.4, 0.1])
    gradient = gradient_of(DISCOUNTED[name])
    graph, _ = observe.optimized(optimize(gradient), args, {})
    loops = [op for op in graph.walk() if isinstance(op, Scan | While)]
    assert [type(op) for op in loops] == [While, While]
    for done in (0.1, 1.0, 9.0):
        assert_same(optimize(gradient), gradient, (args[0], args[1] * done), grad=False)


def test_a_loop_back_that_reads_more():
    """(7) Not if another cotangent comes in at steps that are skipped."""

    def row(left, d, t, new):
        return left * d * jnp.sum(new**2) + jnp.sum(new)

    args = jnp.asarray([0.1, 0.2, 0.3]), jnp.asarray([0.2, 0.4, 0.1])
    gradient = gradient_of(row)
    graph, _ = observe.optimized(optimize(gradient), args, {})
    assert any(isinstance(op, Scan) and op.reverse for op in graph.walk())
    assert_same(optimize(gradient), gradient, args, grad=False)


def nested_counts(rows, of_step=lambda n: n):
    """Each step of a loop runs another one until its number is small; a step back reads what that
    has stacked, in as many of its steps as were counted.
    """

    def forward(y, x):
        def halve(state, _):
            z, n = state
            go = jnp.abs(z) > 1
            return (jnp.where(go, z / 2, z), n + go), jnp.exp(z)

        (y, n), stacked = lax.scan(halve, (y + x, jnp.int32(0)), None, length=6)
        return y, (stacked, of_step(n))

    def program(y, xs):
        y, (stacked, counts) = lax.scan(forward, y, xs)

        def step(a, given):
            rows, n = given
            masks = n if n.shape else jnp.arange(6) < n
            one = lambda a, of: (jnp.where(of[0], a / of[1], a), None)
            return lax.scan(one, a, (masks, rows), reverse=True)

        return y, lax.scan(step, y, (stacked, rows(counts)), reverse=True)[0]

    return program


@pytest.mark.parametrize(
    ("rows", "loops"), [(lambda c: c, 2), (lambda c: c + 1, 3), (lambda c: c[::-1], 3)]
)
def test_steps_that_are_counted_in_a_nest(rows, loops):
    """(7) The loop back reads the rows of as many steps as were taken, and no more, of the same
    step of the loop around. Otherwise a loop fills them in.
    """
    args = jnp.float32(30.0), jnp.array([0.5, -9.0, 100.0])
    graph = alone(EXIT, nested_counts(rows), *args, fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == loops


def test_masks_that_are_stacked_in_a_nest():
    """(7) So do the rows of a mask that is made of the count."""
    program = nested_counts(lambda c: c, lambda n: jnp.arange(6) < n)
    args = jnp.float32(30.0), jnp.array([0.5, -9.0, 100.0])
    graph = alone(EXIT, program, *args, fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == 2
