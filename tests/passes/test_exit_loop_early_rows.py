"""What a loop stacks where it has stopped: the rows of skipped steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite
from tests.loops import alone, keep
from tests.prices import EAGER, FREE, Eager
from tests.stopping import KNOWN, counted, known, masked, stopping

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


MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


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
            +   i:i32[5] = iota
            +   b:i32[5,3] = broadcast_in_dim[dims=(0,)] i
            +   l1:bool[5,3] = lt b c2
            +   b1:f32[5,3] = broadcast_in_dim m1
            +   s2:f32[5,3] = select_n l1 b1 c4
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
            +     i:i32[2] = iota
            +     b:i32[2,3] = broadcast_in_dim[dims=(0,)] i
            +     a:i32[2,3] = add b m2
            +     l1:bool[2,3] = lt a c2
            +     b1:f32[2,3] = broadcast_in_dim m1
            +     s2:f32[2,3] = select_n l1 b1 d
            +     d1:f32[5,3] = dynamic_update_slice c4 s2 m2 0
            +     a1:i32[] = add c3 2
            +     yield carry(a1, d1)
            +   }
            -   return c1, ys
            +   return c3, c6
              }
            """,
        )


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
        +   c3:i32[], c4:i32[] = while carry(c3=0, c4=c) {
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


def test_stacks_of_weak_type_keep_it():
    program = stopping(lambda p, c: jnp.where(c[1] < 0, 7, 3))
    graph = alone(EXIT, program, "f32[3]", "f32[]", fires=True)
    assert graph.outputs[1].aval.weak_type


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
