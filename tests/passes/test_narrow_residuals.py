"""A residual that is cheaply made from less is made again by its reader."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.residuals.narrow_residuals import NarrowResiduals
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite
from tests.graphs import scans
from tests.loops import alone, memory, unspecified
from tests.prices import EAGER

NARROW = NarrowResiduals()


def forth_and_back(residuals, transposed):
    """A loop that stacks residuals, and its transpose, which reads them."""

    def program(w, c, xs, ct):
        def step(c, x):
            t = jnp.tanh(c @ w + x)
            return t, residuals(w, c, x, t)

        h, r = lax.scan(step, c, xs)
        return h, lax.scan(lambda g, r: (transposed(g, w, r), None), ct, r, reverse=True)[0]

    return program


TYPES = "f32[3,3]", "f32[3]", "f32[8,3]", "f32[3]"


@pytest.mark.parametrize(("n", "fires"), [(3, False), (15, False), (16, True)])
def test_differences_of_pairs(n, fires):
    """The cost: rows of few numbers are computed number by number."""

    def apart(w, c, x, t):
        points = t.reshape(-1, n)
        return points[:, None] - points

    program = forth_and_back(apart, lambda g, w, r: g + jnp.sum(r, (0, 1))[0])
    size = 9 * n
    types = f"f32[{size},{size}]", f"f32[{size}]", f"f32[8,{size}]", f"f32[{size}]"
    with using(CostModel()):
        alone(NARROW, program, *types, fires=fires)


@pytest.mark.parametrize(("n", "fires"), [(2, False), (15, False), (16, True)])
def test_numbers_that_rows_have_in_common(n, fires):
    """The cost: a number for each row of few is looked up for each of them; of as many, not."""

    def scaled(w, c, x, t):
        return w.reshape(-1, n) * t[:, None]

    size = 16 * 15
    types = f"f32[{size},{n}]", f"f32[{size}]", f"f32[8,{size}]", f"f32[{size}]"

    def stepping(w, c, xs, ct):
        def step(c, x):
            t = jnp.tanh(c + x)
            return t, scaled(w, c, x, t)

        h, r = lax.scan(step, c, xs)
        return h, lax.scan(lambda g, r: (g + jnp.sum(r, 1), None), ct, r, reverse=True)[0]

    with using(CostModel()):
        alone(NARROW, stepping, *types, fires=fires)


def test_mask_before_it_is_spread():
    """(2) Three bytes of mask a step, in place of nine masked weights."""

    def masked(w, c, x, t):
        return jnp.where((t > 0)[:, None], w, 0.0)

    program = forth_and_back(masked, lambda g, w, r: g @ r)
    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        saves_bytes=8 * 33,
        diff="""
          fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
        -   c1:f32[3], ys:f32[8,3,3] = scan[8] carry(c=c) xs(x=xs) {
        +   c1:f32[3], ys1:bool[8,3,1] = scan[8] carry(c=c) xs(x=xs) {
              d:f32[3] = dot_general c w
              a:f32[3] = add d x
              t:f32[3] = tanh a
              g:bool[3] = gt t 0.0
              b:bool[3,1] = broadcast_in_dim[dims=(0,)] g
        -     b1:bool[3,3] = broadcast_in_dim b
        -     b2:f32[3,3] = broadcast_in_dim 0.0
        -     s:f32[3,3] = select_n b1 b2 w
        -     yield carry(t) ys(s)
        +     yield carry(t) ys(b)
            }
        -   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
        +   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x1=ys1) {
        +     b3:bool[3,3] = broadcast_in_dim x1
        +     b2:f32[3,3] = broadcast_in_dim 0.0
        +     s1:f32[3,3] = select_n b3 b2 w
        -     d:f32[3] = dot_general c x
        +     d:f32[3] = dot_general c s1
              yield carry(d)
            }
            return c1, c2
          }
        """,
    )


def test_numbers_made_of_a_mask():
    """One and zero are selected again: XLA would make a select of a product with the mask itself,
    and lose the NaN of 0 * NaN.
    """

    def masked(w, c, x, t):
        return jnp.broadcast_to((t > 0).astype(t.dtype)[:, None], (3, 3))

    program = forth_and_back(masked, lambda g, w, r: jnp.sum(g * r, 1))
    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        saves_bytes=-8 * 3,
        diff="""
          fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
            c1:f32[3], ys:bool[8,3] = scan[8] carry(c=c) xs(x=xs) {
              d:f32[3] = dot_general c w
              a:f32[3] = add d x
              t:f32[3] = tanh a
              g:bool[3] = gt t 0.0
              yield carry(t) ys(g)
            }
        -   b:bool[8,3,1] = broadcast_in_dim[dims=(0, 1)] ys
        -   b1:bool[8,3,3] = broadcast_in_dim b
        -   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=b1) {
        +   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x1=ys) {
        +     b3:f32[3] = broadcast_in_dim 0.0
        +     b4:f32[3] = broadcast_in_dim 1.0
        +     s1:f32[3] = select_n x1 b3 b4
        +     b5:f32[3,1] = broadcast_in_dim[dims=(0,)] s1
        -     b:f32[3,3] = broadcast_in_dim 0.0
        +     b:f32[3,3] = broadcast_in_dim b5
        -     b1:f32[3,3] = broadcast_in_dim 1.0
        -     s:f32[3,3] = select_n x b b1
              b2:f32[1,3] = broadcast_in_dim c
        -     m:f32[3,3] = mul b2 s
        +     m:f32[3,3] = mul b2 b
              r:f32[3] = reduce_sum[axes=(1,)] m
              yield carry(r)
            }
            return c1, c2
          }
        """,
    )


def test_what_is_stacked_already():
    """(2) 1 - t is made again from t, which costs nothing to store: it is stored."""
    program = forth_and_back(lambda w, c, x, t: (t, 1.0 - t), lambda g, w, r: g * r[0] * r[1])
    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        saves_bytes=8 * 12,
        diff="""
          fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
        -   c1:f32[3], ys:f32[8,3], ys1:f32[8,3] = scan[8] carry(c=c) xs(x=xs) {
        +   c1:f32[3], ys:f32[8,3] = scan[8] carry(c=c) xs(x=xs) {
              d:f32[3] = dot_general c w
              a:f32[3] = add d x
              t:f32[3] = tanh a
        -     s:f32[3] = sub 1.0 t
        -     yield carry(t) ys(t, s)
        +     yield carry(t) ys(t)
            }
        -   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys, x1=ys1) {
        +   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
        +     s1:f32[3] = sub 1.0 x
              m:f32[3] = mul c x
        -     m1:f32[3] = mul m x1
        +     m1:f32[3] = mul m s1
              yield carry(m1)
            }
            return c1, c2
          }
        """,
    )


def nests(residuals, transposed):
    """The same in a loop over sequences, each of which starts anew."""

    def program(w, c, xs, ct):
        def sequence(total, xs):
            outer = jnp.cos(total)

            def step(c, x):
                t = jnp.tanh(c @ w + x)
                return t, residuals(outer, c, x, t)

            h, r = lax.scan(step, c, xs)
            return total + h, r

        def back(g, r):
            return lax.scan(lambda g, r: (transposed(g, w, r), None), g, r, reverse=True)[0], None

        h, r = lax.scan(sequence, c, xs)
        return h, lax.scan(back, ct, r, reverse=True)[0]

    return program


NESTED = "f32[3,3]", "f32[3]", "f32[4,8,3]", "f32[3]"


def test_in_nests_of_loops():
    """(1) From a stack of stacks, and from a stream of streams."""
    program = nests(lambda o, c, x, t: (t, (1.0 - t) * x), lambda g, w, r: g * r[0] * r[1])
    check_rewrite(
        NARROW,
        program,
        *NESTED,
        simplify=True,
        saves_bytes=4 * 8 * 12,
        diff="""
          fn (w:f32[3,3], c:f32[3], xs:f32[4,8,3], ct:f32[3]) {
        -   c1:f32[3], ys:f32[4,8,3], ys1:f32[4,8,3] = scan[4] carry(c1=c) xs(x=xs) {
        +   c1:f32[3], ys:f32[4,8,3] = scan[4] carry(c1=c) xs(x=xs) {
        -     c2:f32[3], ys:f32[8,3], ys1:f32[8,3] = scan[8] carry(c=c) xs(x=x) {
        +     c2:f32[3], ys:f32[8,3] = scan[8] carry(c=c) xs(x=x) {
                d:f32[3] = dot_general c w
                a:f32[3] = add d x
                t:f32[3] = tanh a
        -       s:f32[3] = sub 1.0 t
        -       m:f32[3] = mul s x
        -       yield carry(t) ys(t, m)
        +       yield carry(t) ys(t)
              }
              a:f32[3] = add c1 c2
        -     yield carry(a) ys(ys, ys1)
        +     yield carry(a) ys(ys)
            }
        -   c2:f32[3] = scan[4, reverse] carry(c=ct) xs(x=ys, x1=ys1) {
        +   c2:f32[3] = scan[4, reverse] carry(c=ct) xs(x=ys, x1=xs) {
              c1:f32[3] = scan[8, reverse] carry(c=c) xs(x=x, x1=x1) {
        +       s1:f32[3] = sub 1.0 x
        +       m2:f32[3] = mul s1 x1
                m:f32[3] = mul c x
        -       m1:f32[3] = mul m x1
        +       m1:f32[3] = mul m m2
                yield carry(m1)
              }
              yield carry(c1)
            }
            return c1, c2
          }
        """,
    )


def test_deeper_nests():
    """(1)"""

    def program(w, c, xs, ct):
        inner = nests(lambda o, c, x, t: (t, 1.0 - t), lambda g, w, r: g * r[0] * r[1])

        def outer(c, xs):
            h, g = inner(w, c, xs, ct)
            return h, g

        return lax.scan(outer, c, xs)

    alone(NARROW, program, "f32[3,3]", "f32[3]", "f32[2,4,8,3]", "f32[3]", fires=True)


@pytest.mark.parametrize("read_too", [False, True])
def test_a_stack_of_stacks_that_nobody_reads(read_too):
    """(1) Of what has no reader nothing is made again; it is dead code, which others remove."""

    def program(w, c, xs, ct):
        def sequence(c, xs):
            def step(c, x):
                t = jnp.tanh(c @ w + x)
                return t, 1.0 - t

            h, r = lax.scan(step, c, xs)
            return lax.scan(lambda g, r: (g * r, None), h, r)[0] if read_too else h, r

        return lax.scan(sequence, c, xs)[0]

    alone(NARROW, program, *NESTED, fires=False)


def test_what_only_the_outer_step_knows():
    """(2) The loops that read are in another one: they do not see it, and it is not stacked."""
    program = nests(lambda o, c, x, t: o * 2.0, lambda g, w, r: g * r)
    check_refuses(NARROW, program, *NESTED, because="costs no less")


def test_a_stream_of_what_the_outer_step_makes():
    """(2) Its rows would have to be stacked by the outer loop."""

    def program(c, xs, ct):
        def sequence(total, xs):
            made = jnp.cos(xs + total)
            step = lambda c, m: (jnp.sin(c + m), m * 2.0)
            h, r = lax.scan(step, c, made)
            return total + h, r

        def back(g, r):
            return lax.scan(lambda g, r: (g * r, None), g, r, reverse=True)[0], None

        h, r = lax.scan(sequence, c, xs)
        return h, lax.scan(back, ct, r, reverse=True)[0]

    check_refuses(NARROW, program, "f32[3]", "f32[4,8,3]", "f32[3]", because="costs no less")


def test_a_stack_that_the_outer_step_keeps():
    """(2) It is there for the outer step only: the outer loop would have to stack it."""

    def program(w, c, xs, ct):
        def sequence(total, xs):
            def step(c, x):
                t = jnp.tanh(c @ w + x)
                return t, (t, 1.0 - t)

            h, (ts, r) = lax.scan(step, c, xs)
            return total + h + jnp.sum(ts, 0), r

        def back(g, r):
            return lax.scan(lambda g, r: (g * r, None), g, r, reverse=True)[0], None

        h, r = lax.scan(sequence, c, xs)
        return h, lax.scan(back, ct, r, reverse=True)[0]

    check_refuses(NARROW, program, *NESTED, because="costs no less")


def test_what_is_streamed_already():
    """(2) The rows of a stream are there for the reader too."""
    program = forth_and_back(lambda w, c, x, t: x * 2.0 + w[0], lambda g, w, r: g * r)
    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        saves_bytes=8 * 12,
        diff="""
          fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
        -   c1:f32[3], ys:f32[8,3] = scan[8] carry(c=c) xs(x=xs) {
        +   c1:f32[3] = scan[8] carry(c=c) xs(x=xs) {
              d:f32[3] = dot_general c w
              a:f32[3] = add d x
              t:f32[3] = tanh a
        -     m:f32[3] = mul x 2.0
        -     s:f32[1,3] = slice[:1, :] w
        -     s1:f32[3] = squeeze s
        -     a1:f32[3] = add m s1
        -     yield carry(t) ys(a1)
        +     yield carry(t)
            }
        -   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
        +   c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=xs) {
        -     m:f32[3] = mul c x
        +     m:f32[3] = mul x 2.0
        +     s:f32[1,3] = slice[:1, :] w
        +     s1:f32[3] = squeeze s
        +     a2:f32[3] = add m s1
        +     m1:f32[3] = mul c a2
        -     yield carry(m)
        +     yield carry(m1)
            }
            return c1, c2
          }
        """,
    )


def made(w, c, xs, ct, reads_again):
    """What the loop streams is an array of the program's own."""
    ys = jnp.sin(xs)
    program = forth_and_back(lambda w, c, x, t: x * 2.0 + w[0], lambda g, w, r: g * r)
    h, back = program(w, c, ys, ct)
    return h, back, jnp.cos(ys) if reads_again else xs


@pytest.mark.parametrize("reads_again", [False, True])
def test_what_is_streamed_is_gone_when_the_loop_back_runs(reads_again):
    """Kept in memory for the loop back, it would take as much as the residual does."""
    program = functools.partial(made, reads_again=reads_again)
    alone(NARROW, program, *TYPES, fires=reads_again)


def test_places_of_an_iota():
    """(3) The sum that is compared has no product in it."""

    def residuals(w, c, x, t):
        places = lax.iota(jnp.float32, 3)
        return jnp.where((places + x > 1)[:, None], w, places)

    alone(NARROW, forth_and_back(residuals, lambda g, w, r: g @ r), *TYPES, fires=True)


def rows_of(table, tokens, c, ct):
    """A loop that multiplies with rows of a table, which its transpose reads."""

    def step(c, k):
        row = lax.dynamic_slice(table, (k, 0), (1, 32))[0]
        return jnp.sin(c), row

    h, rows = lax.scan(step, c, tokens)
    return h, lax.scan(lambda g, row: (g * row, None), ct, rows, reverse=True)[0]


def test_rows_of_a_table():
    """(2) The table is there for the reader, too: a number for each step tells the row."""
    check_rewrite(
        NARROW,
        rows_of,
        "f32[9,32]",
        "i32[8]",
        "f32[32]",
        "f32[32]",
        simplify=True,
        saves_bytes=8 * 128,
        diff="""
          fn (table:f32[9,32], tokens:i32[8], c:f32[32], ct:f32[32]) {
        -   c1:f32[32], ys:f32[8,32] = scan[8] carry(c=c) xs(x=tokens) {
        +   c1:f32[32] = scan[8] carry(c=c) {
        -     l:bool[] = lt x 0
        -     a:i32[] = add x 9
        -     s:i32[] = select_n l x a
        -     d:f32[1,32] = dynamic_slice table s 0
        -     s1:f32[32] = squeeze d
              s2:f32[32] = sin c
        -     yield carry(s2) ys(s1)
        +     yield carry(s2)
            }
        -   c2:f32[32] = scan[8, reverse] carry(c=ct) xs(x=ys) {
        +   c2:f32[32] = scan[8, reverse] carry(c=ct) xs(tokens1=tokens) {
        +     l:bool[] = lt tokens1 0
        +     a:i32[] = add tokens1 9
        +     s:i32[] = select_n l tokens1 a
        +     d:f32[1,32] = dynamic_slice table s 0
        +     s1:f32[32] = squeeze d
        -     m:f32[32] = mul c x
        +     m:f32[32] = mul c s1
              yield carry(m)
            }
            return c1, c2
          }
        """,
    )


def in_branch(residual, *, otherwise=lambda c: c):
    """Loops whose steps have a branch that makes a residual, and one that reads it."""

    def program(w, xs, ps, c, ct):
        def step(c, given):
            x, p = given
            made = jax.eval_shape(residual, w, x)
            dummy = unspecified(jnp.zeros(made.shape, made.dtype))
            taken = lambda c: (jnp.sin(c), residual(w, x))
            return lax.cond(p, taken, lambda c: (otherwise(c), dummy), c)

        def back(g, given):
            r, p = given
            return lax.cond(p, lambda: g * r, lambda: g), None

        h, rows = lax.scan(step, c, (xs, ps))
        return h, lax.scan(back, ct, (rows, ps), reverse=True)[0]

    return program


IN_BRANCH = "f32[9,32]", "i32[8]", "bool[8]", "f32[32]", "f32[32]"


def test_rows_of_a_table_that_a_branch_reads():
    """(2) The branch that the readers take, too: no step does nothing."""
    check_rewrite(
        NARROW,
        in_branch(lambda table, k: table[k], otherwise=jnp.cos),
        *IN_BRANCH,
        simplify=True,
        saves_bytes=8 * 128,
        diff="""
          fn (w:f32[9,32], xs:i32[8], ps:bool[8], c:f32[32], ct:f32[32]) {
        -   c1:f32[32], ys:f32[8,32] = scan[8] carry(c=c) xs(x=xs, x1=ps) {
        +   c1:f32[32] = scan[8] carry(c=c) xs(x1=ps) {
        -     u:f32[32] = undefined
        -     r:f32[32], r1:f32[32] = cond x1 {
        +     r:f32[32] = cond x1 {
                s:f32[32] = sin c
        -       l:bool[] = lt x 0
        -       a:i32[] = add x 9
        -       s1:i32[] = select_n l x a
        -       d:f32[1,32] = dynamic_slice w s1 0
        -       s2:f32[32] = squeeze d
        -       yield s, s2
        +       yield s
              } else {
                c1:f32[32] = cos c
        -       yield c1, u
        +       yield c1
              }
        -     yield carry(r) ys(r1)
        +     yield carry(r)
            }
        -   c2:f32[32] = scan[8, reverse] carry(c=ct) xs(x=ys, x1=ps) {
        +   c2:f32[32] = scan[8, reverse] carry(c=ct) xs(x1=ps, xs1=xs) {
              r:f32[32] = cond x1 {
        +       l:bool[] = lt xs1 0
        +       a:i32[] = add xs1 9
        +       s1:i32[] = select_n l xs1 a
        +       d:f32[1,32] = dynamic_slice w s1 0
        +       s2:f32[32] = squeeze d
        -       m:f32[32] = mul c x
        +       m:f32[32] = mul c s2
                yield m
              } else {
                yield c
              }
              yield carry(r)
            }
            return c1, c2
          }
        """,
    )


@pytest.mark.parametrize(
    ("residual", "fires"),
    [
        pytest.param(lambda w, x: jnp.floor(w[0] * x), True, id="a product"),
        pytest.param(lambda w, x: jnp.floor(w[0] * x + w[1]), False, id="a product and a sum"),
        pytest.param(lambda w, x: w[0] * x + w[1], True, id="no jump"),
    ],
)
@pytest.mark.parametrize("otherwise", [lambda c: c, jnp.cos])
def test_what_jumps_in_a_branch(residual, fires, otherwise):
    """(3) In a branch as in the step itself."""
    types = "f32[2,32]", "f32[8,32]", "bool[8]", "f32[32]", "f32[32]"
    alone(NARROW, in_branch(residual, otherwise=otherwise), *types, fires=fires)


def gathered(table, tokens, c, ct):
    """The same with gathers of three rows a step."""

    def step(c, k):
        return jnp.sin(c), table.at[k].get(mode="fill")

    h, rows = lax.scan(step, c, tokens)
    back = lambda g, rows: (g * rows.sum(0), None)
    return h, lax.scan(back, ct, rows, reverse=True)[0]


def test_rows_that_are_gathered():
    """(2) In range or not, filled alike."""
    types = "f32[9,32]", "i32[8,3]", "f32[32]", "f32[32]"
    alone(NARROW, gathered, *types, fires=True)


def test_rows_that_a_batch_gathers():
    """Cost: each of a table of its own, so that the place of each number is looked up."""

    def program(tables, tokens, c, ct):
        read = jax.vmap(lambda table, k: table[k])
        h, rows = lax.scan(lambda c, k: (jnp.sin(c), read(tables, k)), c, tokens)
        return h, lax.scan(lambda g, x: (g * x, None), ct, rows, reverse=True)[0]

    types = "f32[4,9,32]", "i32[8,4]", "f32[4,32]", "f32[4,32]"
    alone(NARROW, program, *types, fires=False)


def test_elements_of_a_table():
    """Cost: a number is as quickly loaded as where it is read."""

    def program(table, tokens, c, ct):
        h, rows = lax.scan(lambda c, k: (jnp.sin(c), table[k]), c, tokens)
        return h, lax.scan(lambda g, x: (g * x, None), ct, rows, reverse=True)[0]

    alone(NARROW, program, "f32[9]", "i32[8]", "f32[]", "f32[]", fires=False)


@pytest.mark.parametrize(("rows", "fires"), [(8, True), (9, False)])
def test_a_table_that_is_computed(rows, fires):
    """Cost: it would have to be kept for the reader, in place of rows as large."""
    program = lambda x, *rest: rows_of(jnp.sin(x), *rest)
    types = f"f32[{rows},32]", "i32[8]", "f32[32]", "f32[32]"
    alone(NARROW, program, *types, fires=fires)


def test_a_table_that_the_loop_writes():
    """Cost: all of its versions would be stacked."""

    def program(table, tokens, c, ct):
        def step(carry, k):
            c, table = carry
            row = lax.dynamic_slice(table, (k, 0), (1, 32))[0]
            return (jnp.sin(c), lax.dynamic_update_slice(table, c[None], (k, 0))), row

        h, rows = lax.scan(step, (c, table), tokens)
        return h, lax.scan(lambda g, row: (g * row, None), ct, rows, reverse=True)[0]

    alone(NARROW, program, "f32[9,32]", "i32[8]", "f32[32]", "f32[32]", fires=False)


def ring(
    *,
    row=lambda ring, k, i: ring[(k - i) % 6],
    write=lambda ring, k, c: ring.at[k % 6].set(c),
    back=lambda step, g, _: step(g),
    reverse=True,
    steps=40,
):
    """Each step has a loop that reads rows of a ring, and writes one; a nest of loops back."""

    def program(c, rows, ct):
        def inner(carry, i):
            c, rows, k = carry
            read = row(rows, k, i)
            return (c - 0.1 * read, rows, k), read

        def outer(carry, k):
            (c, rows, _), read = lax.scan(inner, (*carry, k), jnp.arange(6))
            return (c, write(rows, k, c)), (read, k < steps - 3)

        def outer_back(g, given):
            read, p = given
            step = lambda g: lax.scan(lambda g, r: (g * r, None), g, read, reverse=True)[0]
            return back(step, g, p), None

        (c, rows), read = lax.scan(outer, (c, rows), jnp.arange(steps))
        return c, lax.scan(outer_back, ct, read, reverse=reverse)[0]

    return program


RING = "f32[30]", "f32[6,30]", "f32[30]"


@pytest.mark.slow
def test_rows_of_a_buffer_that_the_loop_around_writes_to():
    """(2) The loop around stacks its versions, of which `undo-carried-writes` leaves one."""
    graph = alone(NARROW, ring(), *RING, fires=True)
    first = scans(graph)[0]
    (inner,) = (op for op in first.body.ops if isinstance(op, Scan))
    assert {stack.value.dtype.name for stack in inner.stacks} == {"int32"}
    program, args = ring(), (jnp.arange(30.0) / 9, jnp.ones((6, 30)), jnp.ones(30))
    assert_same(program, optimize(program), args)
    assert memory(optimize(program), *args) < memory(program, *args) / 2


@pytest.mark.parametrize(
    ("program", "types"),
    [
        (ring(write=lambda ring, k, c: (0.9 * ring).at[k % 6].set(c)), RING),
        (ring(back=lambda step, g, p: lax.cond(p, step, lambda g: g, g)), RING),
        (ring(reverse=False), RING),
        (ring(steps=4), RING),
        (ring(), ("f32[30]", "f32[60,30]", "f32[30]")),
    ],
)
def test_rows_of_a_buffer_that_cannot_be_undone_for_less(program, types):
    """(2) It is not only written to, or large, or the loops back do not meet all its versions."""
    alone(NARROW, program, *types, fires=False)


def test_two_readers():
    """(1) Each makes it again for itself."""

    def program(w, c, xs, ct):
        h, r = lax.scan(lambda c, x: (jnp.tanh(c @ w), (c > x).astype(jnp.float32)), c, xs)
        g = lax.scan(lambda g, r: (g * r, None), ct, r, reverse=True)[0]
        return h, lax.scan(lambda g, r: (g + r, None), g, r)[0]

    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        saves_bytes=0,
        diff="""
          fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
            c1:f32[3], ys:bool[8,3] = scan[8] carry(c=c) xs(x=xs) {
              d:f32[3] = dot_general c w
              t:f32[3] = tanh d
              g:bool[3] = gt c x
              yield carry(t) ys(g)
            }
        -   b:f32[8,3] = broadcast_in_dim 0.0
        -   b1:f32[8,3] = broadcast_in_dim 1.0
        -   s:f32[8,3] = select_n ys b b1
            c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
              b:f32[3] = broadcast_in_dim 0.0
              b1:f32[3] = broadcast_in_dim 1.0
              s:f32[3] = select_n x b b1
              m:f32[3] = mul c s
              yield carry(m)
            }
        -   c3:f32[3] = scan[8] carry(c=c2) xs(x=s) {
        +   c3:f32[3] = scan[8] carry(c=c2) xs(x1=ys) {
        +     b2:f32[3] = broadcast_in_dim 0.0
        +     b3:f32[3] = broadcast_in_dim 1.0
        +     s1:f32[3] = select_n x1 b2 b3
        -     a:f32[3] = add c x
        +     a:f32[3] = add c s1
              yield carry(a)
            }
            return c1, c3
          }
        """,
    )


def test_places_put_together():
    """(2) An index of several axes, of the step and of an outer array: the step is kept."""

    def program(table, labels, steps, ct):
        def step(c, i):
            places = jnp.stack([jnp.full_like(labels, i), labels], 1)
            return c, places

        c, rows = lax.scan(step, ct, steps)
        read = lambda g, places: (g * table[places[:, 0], places[:, 1]], None)
        return c, lax.scan(read, ct, rows, reverse=True)[0]

    graph = alone(NARROW, program, "f32[8,5]", "i32[6]", "i32[8]", "f32[6]", fires=True)
    forward = scans(graph)[0]
    assert not forward.stacks


@pytest.mark.parametrize(
    "put_together",
    [
        pytest.param(lambda c, x, t: jnp.concatenate([x, c]), id="concatenated"),
        pytest.param(lambda c, x, t: jnp.stack([x, c]), id="stacked"),
        pytest.param(lambda c, x, t: jnp.pad(x, (2, 9)), id="padded"),
    ],
)
def test_arrays_put_together(put_together):
    """(2) What they are made of is there: streamed, or stacked."""

    def program(w, c, xs, ct):
        def step(c, x):
            t = jnp.tanh(c @ w + x)
            return t, (c, put_together(c, x, t))

        h, r = lax.scan(step, c, xs)
        back = lambda g, r: (g * r[0] + jnp.sum(r[1]), None)
        return h, lax.scan(back, ct, r, reverse=True)[0]

    graph = alone(NARROW, program, *TYPES, fires=True)
    forward = scans(graph)[0]
    assert len(forward.stacks) == 1


def test_put_together_of_what_is_new():
    """Cost: two new stacks are no smaller than one."""

    def program(w, c, xs, ct):
        made = lambda w, c, x, t: jnp.concatenate([jnp.sin(t), jnp.cos(x)])
        transposed = lambda g, w, r: g * r[:3] + r[3:]
        return forth_and_back(made, transposed)(w, c, xs, ct)

    alone(NARROW, program, *TYPES, fires=False)


@pytest.mark.parametrize(
    "residual",
    [
        pytest.param(lambda w, c, x, t: (c @ w) ** 2, id="as large"),
        pytest.param(lambda w, c, x, t: (t * t).astype(jnp.bfloat16), id="smaller"),
        pytest.param(lambda w, c, x, t: t * (c @ w), id="two of them are larger"),
    ],
)
def test_nothing_is_gained(residual):
    """Cost: what it is made from is no smaller."""
    program = forth_and_back(residual, lambda g, w, r: g * r)
    check_refuses(NARROW, program, *TYPES, simplify=True, because="costs no less")


@pytest.mark.parametrize("carried", [True, False])
def test_a_sine_that_is_carried(carried):
    """Cost: it is there, and what is stored XLA computes from the start."""

    def program(c, xs, ct):
        def step(c, x):
            s = jnp.sin(c + x)
            return s if carried else s + c, s * s

        h, r = lax.scan(step, c, xs)
        return h, lax.scan(lambda g, r: (g * r, None), ct, r, reverse=True)[0]

    graph = alone(NARROW, program, *TYPES[1:], fires=carried)
    forward = scans(graph)[0]
    assert [stack.value.op.name for stack in forward.stacks] == ["sin" if carried else "mul"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_xla_computes_once_anyway(dtype):
    """Cost: it computes no function of bfloat16 again for what is made of it."""

    def program(xs, ct):
        def step(c, x):
            t = jnp.tanh(c + x)
            return t, t * t

        h, r = lax.scan(step, ct, xs)
        return h, lax.scan(lambda g, r: (g * r, None), ct, r, reverse=True)[0]

    alone(NARROW, program, f"{dtype}[8,3]", f"{dtype}[3]", fires=dtype == "f32")


def test_what_pays_together():
    """Of what four residuals are made, no smaller than one of them, one stack is left."""

    def four(w, c, x, t):
        return t * t, t + 1.0, 2.0 - t, t * 3.0

    def transposed(g, w, rows):
        return g * rows[0] + rows[1] * rows[2] + rows[3]

    program = forth_and_back(four, transposed)
    graph = alone(NARROW, program, *TYPES, fires=True)
    forward = scans(graph)[0]
    assert [stack.value.op.name for stack in forward.stacks] == ["tanh"]


@pytest.mark.parametrize(
    ("made", "repeated"), [(lambda z: z * z, True), (lambda z: z / jnp.abs(z), False)]
)
def test_complex_numbers(made, repeated):
    """(2) They are quickly multiplied, but divided as slowly as a sine is computed."""

    def program(zs, ct):
        step = lambda c, z: (c * z, (z, made(z)))
        c, (_, ys) = lax.scan(step, ct, zs)
        return c, lax.scan(lambda g, y: (g * y, None), ct, ys, reverse=True)[0]

    alone(NARROW, program, "c64[8,3]", "c64[3]", fires=repeated)


def test_not_made_of_cheap_ops():
    """(2) Condition: cheap ops."""
    program = forth_and_back(lambda w, c, x, t: jnp.cumsum(x), lambda g, w, r: g * r)
    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        diff="""
        fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
          c1:f32[3], ys:f32[8,3] = scan[8] carry(c=c) xs(x=xs) {
            d:f32[3] = dot_general c w
            a:f32[3] = add d x
            t:f32[3] = tanh a
            c1:f32[3] = cumsum[axis=0] x
            yield carry(t) ys(c1)
          }
          c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
            m:f32[3] = mul c x
            yield carry(m)
          }
          return c1, c2
        }
        """,
    )


def test_result_of_the_program_stays():
    """(1) Condition: nothing but loops reads the stack."""

    def program(w, c, xs, ct):
        _, r = lax.scan(lambda c, x: (jnp.tanh(c @ w), (c > x).astype(jnp.float32)), c, xs)
        return r, lax.scan(lambda g, r: (g * r, None), ct, r, reverse=True)[0]

    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        diff="""
        fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
          c1:f32[3], ys:f32[8,3] = scan[8] carry(c=c) xs(x=xs) {
            d:f32[3] = dot_general c w
            t:f32[3] = tanh d
            g:bool[3] = gt c x
            c1:f32[3] = convert_element_type g
            yield carry(t) ys(c1)
          }
          c2:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
            m:f32[3] = mul c x
            yield carry(m)
          }
          return ys, c2
        }
        """,
    )


def test_stack_that_is_a_carry_of_another_loop_stays():
    """(1) Condition: it is streamed, row i in step i."""

    def program(w, c, xs, ct):
        h, r = lax.scan(lambda c, x: (jnp.tanh(c @ w), (c > x).astype(jnp.float32)), c, xs)
        return h, lax.scan(lambda g, _: (g * 0.5, None), r, None, length=3)[0], ct

    check_rewrite(
        NARROW,
        program,
        *TYPES,
        simplify=True,
        diff="""
        fn (w:f32[3,3], c:f32[3], xs:f32[8,3], ct:f32[3]) {
          c1:f32[3], ys:f32[8,3] = scan[8] carry(c=c) xs(x=xs) {
            d:f32[3] = dot_general c w
            t:f32[3] = tanh d
            g:bool[3] = gt c x
            c1:f32[3] = convert_element_type g
            yield carry(t) ys(c1)
          }
          c2:f32[8,3] = scan[3] carry(c=ys) {
            m:f32[8,3] = mul c 0.5
            yield carry(m)
          }
          return c1, c2, ct
        }
        """,
    )


def attending(weigh, transposed, write=lax.dynamic_update_slice, **options):
    """A loop that writes rows into a cache and attends to it, and its transpose."""

    def program(cache, xs, ct):
        def step(cache, inputs):
            i, x = inputs
            cache = write(cache, x[None], (i, 0), allow_negative_indices=False)
            return cache, (cache, weigh(cache, x))

        back = lambda g, rows: (transposed(g, *rows), None)
        cache, rows = lax.scan(step, cache, (jnp.arange(len(xs)), xs))
        return cache, lax.scan(back, ct, rows, reverse=not options)[0]

    return program


CACHE = "f32[24,2]", "f32[24,2]", "f32[2]"
softmax = lambda cache, x: (e := jnp.exp(cache @ x)) / e.sum()
weighed = lambda g, cache, row: (row * (cache @ g)) @ cache


def test_rows_as_long_as_a_cache_that_is_written():
    """(2) The readers have the cache: they multiply with it again, and sums are stored."""
    check_rewrite(
        NARROW,
        attending(softmax, weighed),
        *CACHE,
        simplify=True,
        saves_bytes=24 * (96 - 4),
        diff="""
          fn (cache:f32[24,2], xs:f32[24,2], ct:f32[2]) {
            i:i32[24] = iota
        -   c:f32[24,2], ys:f32[24,24,2], ys1:f32[24,24] = scan[24] carry(c=cache) xs(x=i, x1=xs) {
        +   c:f32[24,2], ys:f32[24,24,2], ys2:f32[24] = scan[24] carry(c=cache) xs(x=i, x1=xs) {
              b:f32[1,2] = broadcast_in_dim x1
              d:f32[24,2] = dynamic_update_slice c b x 0
              d1:f32[24] = dot_general d x1
              e:f32[24] = exp d1
              r:f32[] = reduce_sum[axes=(0,)] e
        -     d2:f32[24] = div e r
        -     yield carry(d) ys(d, d2)
        +     yield carry(d) ys(d, r)
            }
        -   c1:f32[2] = scan[24, reverse] carry(c=ct) xs(x=ys, x1=ys1) {
        +   c1:f32[2] = scan[24, reverse] carry(c=ct) xs(x=ys, x2=ys2, xs1=xs) {
        +     d3:f32[24] = dot_general x xs1
        +     e1:f32[24] = exp d3
        +     d4:f32[24] = div e1 x2
              d:f32[24] = dot_general x c
        -     m:f32[24] = mul x1 d
        +     m:f32[24] = mul d4 d
              d1:f32[2] = dot_general m x
              yield carry(d1)
            }
            return c, c1
          }
        """,
    )


SLIDING = "f32[24,2]", "f32[99,2]", "f32[2]"
WIDE = "f32[24,24]", "f32[24,24]", "f32[24]"
MATRIX = jnp.linspace(-1.0, 1.0, 48).reshape(24, 2)


def decay(cache, row, _, **options):
    """Makes a cache from another without writing to it."""
    return cache * 0.5 + row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "types"),
    [
        pytest.param(attending(softmax, weighed, decay), CACHE, id="of what is not restored"),
        pytest.param(attending(softmax, weighed, reverse=False), CACHE, id="nor in this order"),
        pytest.param(attending(lambda _, x: jnp.exp(MATRIX @ x), weighed), CACHE, id="of a weight"),
        pytest.param(attending(softmax, weighed), WIDE, id="short rows"),
        pytest.param(attending(softmax, weighed), SLIDING, id="a window of few rows"),
        pytest.param(
            attending(softmax, lambda g, cache, row: g + cache[0] * row[0]),
            CACHE,
            id="more work than is done",
        ),
        pytest.param(
            attending(lambda cache, x: jnp.exp(cache[3]), weighed), WIDE, id="a part of the cache"
        ),
        pytest.param(
            attending(lambda cache, x: jnp.sort(cache @ x), weighed), CACHE, id="longer than linear"
        ),
    ],
)
def test_products_that_are_not_repeated(program, types):
    """Cost: they are as much work as a step, or save too little."""
    alone(NARROW, program, *types, fires=False)


def test_a_small_part_of_what_is_stacked():
    """Cost: making it again takes time in each step.  What is streamed anyway does not count."""

    def program(wide, row, ct, stacked):
        def step(c, x):
            t = jnp.tanh(c + x[:3])
            return t, (t, 1.0 - t, jnp.exp(x) if stacked else None)

        h, r = lax.scan(step, row, wide)
        r = r if stacked else (*r[:2], wide)
        back = lambda g, r: (g * r[0] * r[1] + jnp.sum(r[2]), None)
        return h, lax.scan(back, ct, r, reverse=True)[0]

    some, all_ = (functools.partial(program, stacked=stacked) for stacked in (False, True))
    types = "f32[3]", "f32[3]"
    alone(NARROW, all_, "f32[8,9]", *types, fires=True)
    alone(NARROW, some, "f32[8,99]", *types, fires=True)
    check_refuses(NARROW, all_, "f32[8,99]", *types, because="a small part of what the loop stacks")


def test_a_mask_is_stored_before_it_is_repeated():
    """Cost: XLA would compute what it is made of for each channel."""

    def program(w, c, xs, ct):
        def step(c, x):
            mask = jnp.broadcast_to((x[:, None] > x[None, :])[:, :, None], w.shape)
            return jnp.tanh(jnp.where(mask, w, c)), mask

        h, r = lax.scan(step, c, xs)
        return h, lax.scan(lambda g, r: (jnp.where(r, g * w, g), None), ct, r, reverse=True)[0]

    cube = "f32[16,16,8]"
    graph = alone(NARROW, program, cube, cube, "f32[8,16]", cube, fires=True)
    forward = scans(graph)[0]
    kept = [stack.result.size for stack in forward.stacks if stack.result.uses]
    assert kept == [8 * 16 * 16]


@pytest.mark.parametrize(
    ("made", "fires"),
    [
        (lambda b: (b - 1.0) * (b + 1.0), True),
        (lambda b: (b[1:] - 1.0) * (b[:-1] + 1.0), False),
    ],
)
def test_neighbours_of_neighbours(made, fires):
    """Cost: XLA computes each as often as it is read, and not several at once."""

    def loss(c, xs):
        def step(c, x):
            return c * 0.9 + jnp.sum(made(made(made(c - x)))), None

        return jnp.sum(lax.scan(step, c, xs)[0])

    alone(NARROW, jax.grad(loss), "f32[4000]", "f32[8,4000]", fires=fires)


@pytest.mark.parametrize(("by", "fires"), [(1.0, True), (0.3, False)])
def test_remainders(by, fires):
    """Cost: they take longer than loading, unless it is the fraction of a number."""

    def loss(c, xs):
        return jnp.sum(lax.scan(lambda c, x: (c * lax.rem(x, by) + x, None), c, xs)[0])

    graph = alone(NARROW, jax.grad(loss), "f32[64]", "f32[9,64]", fires=fires)
    assert len(scans(graph)[0].stacks) == (not fires)


@pytest.mark.parametrize("fires", [True, False])
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda x: x[::-1], id="backwards"),
        pytest.param(lambda x: x.T, id="transposed"),
        pytest.param(lambda x: jnp.repeat(x[:, ::2], 2, 1), id="with strides"),
    ],
)
def test_rows_in_another_order(read, fires):
    """Cost: where all that is combined with them is computed number by number, they are stored."""

    def loss(c, xs):
        return jnp.sum(lax.scan(lambda c, x: (c * read(x) + c, None), c, xs)[0])

    with using(CostModel().but(mixes_by_places=not fires)):
        graph = alone(NARROW, jax.grad(loss), "f32[4,8,8]", "f32[9,8,8]", fires=fires)
    assert len(scans(graph)[0].stacks) == (not fires)


def test_read_more_often_than_made():
    """Cost: what is made once before a loop would be made again in each of its steps."""

    def program(c, xs):
        made = lax.scan(lambda c, x: (c, x * 2.0), None, xs)[1]

        def outer(c, _):
            return lax.scan(lambda c, m: (jnp.sin(c * m), None), c, made)[0], None

        return lax.scan(outer, c, length=5)[0]

    def once(c, xs):
        kept = lax.scan(lambda c, x: (c, (x * 2.0, x)), None, xs)[1]
        return lax.scan(lambda c, m: (jnp.sin(c * m[0]) + m[1], None), c, kept)[0]

    alone(NARROW, once, "f32[3]", "f32[8,3]", fires=True)
    check_refuses(NARROW, program, "f32[3]", "f32[8,3]", because="a loop around their reader")


FAR = CostModel().but(cache=0, kernel=0.0, starts_each=True)
"""All that a loop stacks leaves the cache, and an op takes no time to start."""


@pytest.mark.parametrize(("prices", "fires"), [(FAR, True), (CostModel(), False)])
def test_a_function_is_made_again_where_memory_is_far(prices, fires):
    """Cost: a number that is stored takes longer than `exp`, beyond the cache only."""

    def loss(c, xs):
        return jnp.sum(lax.scan(lambda c, x: (c + jnp.exp(c * x), None), c, xs)[0])

    with using(prices):
        graph = alone(NARROW, jax.grad(loss, (0, 1)), "f32[64]", "f32[9,64]", fires=fires)
    back = next(op for op in scans(graph) if op.reverse)
    assert any(op.name == "exp" for op in back.body.ops) == fires


@pytest.mark.parametrize(("depth", "fires"), [(4, True), (1024, False)])
def test_a_narrow_product_is_made_again_where_memory_is_far(depth, fires):
    """Cost: not one that adds up many numbers."""

    def loss(c, xs, w):
        return jnp.sum(lax.scan(lambda c, x: (c * jnp.tanh(x @ w), None), c, xs)[0])

    types = "f32[8,64]", f"f32[5,8,{depth}]", f"f32[{depth},64]"
    with using(FAR):
        graph = alone(NARROW, jax.grad(loss), *types, fires=fires)
    assert len(scans(graph)[0].stacks) == (not fires)


@pytest.mark.parametrize(("device", "stacked"), [("gpu", 1), ("cpu", 2)])
def test_a_carry_is_stacked_for_two_functions_of_it(device, stacked):
    """Cost: where rows are copied into stacks, one of them takes less time than two, if it is new,
    too.
    """

    def loss(c):
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(c) + jnp.exp(0.1 * c), None), c, length=9)[0])

    with using(CostModel.of_backend(device).but(cache=0)):
        graph = alone(NARROW, jax.grad(loss), "f32[64]", fires=device == "gpu")
    forth = next(op for op in scans(graph) if not op.reverse)
    assert len(forth.stacks) == stacked


def test_in_a_loop_of_no_steps():
    """Nothing is divided by how often it runs: the prices are those of one run."""

    def masked(w, c, x, t):
        return jnp.where((t > 0)[:, None], w, 0.0)

    gradient = forth_and_back(masked, lambda g, w, r: g @ r)

    def never(w, c, xs, ct):
        return lax.scan(lambda c, _: (sum(gradient(w, c, xs, ct)), None), c, length=0)[0]

    alone(NARROW, never, *TYPES, fires=True)


def stacking(made):
    """A loop that stacks what `made` makes of its input, and its transpose."""
    return forth_and_back(lambda w, c, x, t: made(x), lambda g, w, r: g + r)


def by_a_loop(x):
    return lax.scan(lambda a, v: (jnp.sin(a * v), None), x, x)[0]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lax.optimization_barrier, id="a barrier"),
        pytest.param(jax.checkpoint(lambda x: jnp.sin(x) * x), id="a checkpoint"),
        pytest.param(by_a_loop, id="a loop"),
    ],
)
def test_what_is_not_repeated_where_memory_is_far(made):
    """(2) What keeps a boundary, and loops, which only a budget lets repeat."""
    with using(FAR):
        alone(NARROW, stacking(jnp.tanh), *TYPES, fires=True)
        alone(NARROW, stacking(made), *TYPES, fires=False)


def test_a_loop_is_repeated_for_a_budget():
    """(2) A byte of its result is worth more than its steps."""
    with using(CostModel().at(1.0)):
        alone(NARROW, stacking(by_a_loop), *TYPES, fires=True)


def behind_a_barrier(cache, x):
    return lax.optimization_barrier(jnp.exp(cache @ x))


def row_by_row(cache, x):
    return lax.map(lambda row: jnp.exp(row @ x), cache)


@pytest.mark.parametrize("weigh", [behind_a_barrier, row_by_row])
def test_rows_of_a_cache_that_are_not_repeated(weigh):
    """(2) A barrier keeps a boundary, and a loop is no first-order op."""
    alone(NARROW, attending(weigh, weighed), *CACHE, fires=False)


def mask_of(c, x):
    """What is worth storing in place of a number."""
    return (c > x).astype(jnp.float32)


def masks(w, c, xs):
    return lax.scan(lambda c, x: (jnp.tanh(c @ w), mask_of(c, x)), c, xs)[1]


def rows_multiplied(g, rows):
    return lax.scan(lambda g, row: (g * row, None), g, rows)[0]


def carried_at_first(w, c, xs, ct):
    """The first step of a loop reads the rows, the others read another array."""
    step = lambda s, _: ((rows_multiplied(*s), xs), None)
    return lax.scan(step, (ct, masks(w, c, xs)), length=3)[0][0]


def in_another_order(w, c, xs, ct):
    blocks = lax.reshape(masks(w, c, xs), (2, 4, 3), dimensions=(1, 0))
    return lax.scan(lambda g, rows: (rows_multiplied(g, rows), None), ct, blocks)[0]


def row_of_one_step(w, c, xs, ct):
    return ct * lax.reshape(masks(w, c, xs[:1]), (3,))


@pytest.mark.parametrize("program", [carried_at_first, in_another_order, row_of_one_step])
def test_rows_that_are_not_read_one_by_one(program):
    """(1) Rows of an array that a loop carries, or that is transposed; the only row."""
    plain = lambda w, c, xs, ct: rows_multiplied(ct, masks(w, c, xs))
    alone(NARROW, plain, *TYPES, fires=True)
    alone(NARROW, program, *TYPES, fires=False)


def test_a_value_that_is_stored_of_taken_steps_only():
    """(2) What is made of it in all steps is not made of what skipped steps leave unspecified."""

    def program(c, xs):
        def body(c, x):
            m, p = c * x, x > 0
            rows = (
                lax.cond(p, lambda: m, lambda: unspecified(m)),
                jnp.broadcast_to(m[:, None], (4, 2)),
            )
            return lax.cond(p, lambda: jnp.sin(m), lambda: c), rows

        def back(a, row):
            x, r, y = row
            return lax.cond(x > 0, lambda: a * r, lambda: a) + y[:, 0] * y[:, 1], None

        c, rows = lax.scan(body, c, xs)
        return lax.scan(back, c, (xs, *rows), reverse=True)[0]

    with using(EAGER):
        alone(NARROW, program, "f32[4]", "f32[6]", fires=True)


def test_a_value_in_a_branch_that_is_repeated_as_a_whole():
    """(2) What other ops read of it is stored: it is known in the branch only."""

    def loss(x, xs):
        def step(c, r):
            y = jnp.tanh(c + r)
            most = lambda: (jnp.ptp(jnp.maximum(y / (1.0 + r * r), y)) * y, y)
            return lax.cond(jnp.max(y) > 0.3, most, lambda: (c * 0.5, y))

        c, ys = lax.scan(step, x, xs)
        return jnp.sum(c**2) + jnp.sum(jnp.sin(ys))

    x, xs = jnp.linspace(0.1, 1, 4), jnp.sin(jnp.arange(64.0)).reshape(16, 4)
    gradient = jax.grad(loss, (0, 1))
    with using(EAGER):
        assert_same(gradient, optimize(gradient, memory="minimal"), (x, xs), grad=False)
