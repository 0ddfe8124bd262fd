"""A carry is stacked once, though the transposed loop reads it before and after each step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Stream
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.passes.residuals.share_shifted_stacks import ShareShiftedStacks
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.graphs import scans
from tests.loops import alone
from tests.prices import EAGER

SHARE = ShareShiftedStacks()


MODEL = EAGER


def forward(step=jnp.sin, *, length=4, reverse=False):
    """A loop over `c1 = step(c)` that stacks both; its last carry, and the stacks."""

    def body(c, _):
        c1 = step(c)
        return c1, (c, c1)

    return lambda x: lax.scan(body, x, length=length, reverse=reverse)


def back(last, stacks, *, reverse=True):
    """A loop that reads both stacks, from the last step to the first."""

    def body(d, row):
        before, after = row
        return d * before + after, None

    return lax.scan(body, last, stacks, reverse=reverse)[0]


def test_before_and_after_each_step():
    """The loop that reads carries the row that it needs one step later."""

    def program(x):
        last, stacks = forward()(x)
        return back(last, stacks)

    check_rewrite(
        SHARE,
        program,
        "f32[3]",
        simplify=True,
        saves_bytes=4 * 3 * 4,
        diff="""
          fn (x:f32[3]) {
        -   c:f32[3], ys:f32[4,3], ys1:f32[4,3] = scan[4] carry(c=x) {
        +   c:f32[3], ys:f32[4,3] = scan[4] carry(c=x) {
              s:f32[3] = sin c
        -     yield carry(s) ys(c, s)
        +     yield carry(s) ys(c)
            }
        -   c1:f32[3] = scan[4, reverse] carry(c=c) xs(x=ys, x1=ys1) {
        +   c1:f32[3], c2:f32[3] = scan[4, reverse] carry(c=c, c2=c) xs(x=ys) {
              m:f32[3] = mul c x
        -     a:f32[3] = add m x1
        +     a:f32[3] = add m c2
        -     yield carry(a)
        +     yield carry(a, x)
            }
            return c1
          }
        """,
    )


def test_of_a_loop_that_runs_back():
    """The loop that reads it runs forward, then."""

    def program(x):
        last, stacks = forward(reverse=True)(x)
        return back(last, stacks, reverse=False)

    check_rewrite(
        SHARE,
        program,
        "f32[3]",
        simplify=True,
        diff="""
          fn (x:f32[3]) {
        -   c:f32[3], ys:f32[4,3], ys1:f32[4,3] = scan[4, reverse] carry(c=x) {
        +   c:f32[3], ys:f32[4,3] = scan[4, reverse] carry(c=x) {
              s:f32[3] = sin c
        -     yield carry(s) ys(c, s)
        +     yield carry(s) ys(c)
            }
        -   c1:f32[3] = scan[4] carry(c=c) xs(x=ys, x1=ys1) {
        +   c1:f32[3], c2:f32[3] = scan[4] carry(c=c, c2=c) xs(x=ys) {
              m:f32[3] = mul c x
        -     a:f32[3] = add m x1
        +     a:f32[3] = add m c2
        -     yield carry(a)
        +     yield carry(a, x)
            }
            return c1
          }
        """,
    )


def test_of_a_carry_that_stays_as_it_is():
    """Its value before and after each step is one stack, which is not shared with itself."""

    def program(x):
        last, rows = lax.scan(lambda c, _: (lax.neg(lax.neg(c)), c), x, length=4)
        return lax.scan(lambda d, row: (d + row, None), last, rows, reverse=True)[0]

    graph = import_jaxpr(traced(program, "f32[3]"))
    journal = run_alone((Simplify(), SHARE), graph)
    assert journal.records["simplify"].rewrites
    assert not journal.records[SHARE.name].rewrites


def test_the_earlier_stack_is_read_elsewhere():
    """The reader gets a stream of it; what else reads it still does."""

    def program(x):
        last, (before, after) = forward()(x)
        return back(last, (after, after)), before

    check_rewrite(
        SHARE,
        program,
        "f32[3]",
        simplify=True,
        diff="""
          fn (x:f32[3]) {
        -   c:f32[3], ys:f32[4,3], ys1:f32[4,3] = scan[4] carry(c=x) {
        +   c:f32[3], ys:f32[4,3] = scan[4] carry(c=x) {
              s:f32[3] = sin c
        -     yield carry(s) ys(c, s)
        +     yield carry(s) ys(c)
            }
        -   c1:f32[3] = scan[4, reverse] carry(c=c) xs(x=ys1) {
        +   c1:f32[3], c2:f32[3] = scan[4, reverse] carry(c=c, c2=c) xs(x=ys) {
        -     m:f32[3] = mul c x
        +     m:f32[3] = mul c c2
        -     a:f32[3] = add m x
        +     a:f32[3] = add m c2
        -     yield carry(a)
        +     yield carry(a, x)
            }
            return c1, ys
          }
        """,
    )


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops(length):
    def program(x):
        last, stacks = forward(length=length)(x)
        return back(last, stacks)

    alone(SHARE, program, "f32[3]", fires=True)


@pytest.mark.parametrize("dtype", ["i32", "bool", "c64"])
def test_of_any_type(dtype):
    def program(x):
        last, (before, after) = forward(lambda c: ~c if c.dtype == bool else c * 3)(x)
        return lax.scan(lambda d, row: (row, d), last, after, reverse=True), before

    alone(SHARE, program, f"{dtype}[3]", fires=True)


def test_random_keys():
    def program(key):
        last, (before, after) = forward(lambda k: jax.random.split(k)[0])(key)
        read = lax.scan(lambda d, k: (d + jax.random.normal(k), None), 0.0, after, reverse=True)[0]
        return read, before, last

    alone(SHARE, program, jax.random.key(0), fires=True)


def test_not_a_number():
    """It is carried like any other row."""
    x = np.array([np.nan, np.inf, -0.0], np.float32)

    def program(x):
        last, stacks = forward()(x)
        return back(last, stacks)

    np.testing.assert_array_equal(jax.jit(program)(x), jax.jit(optimize(program))(x))


def test_needed_whole():
    """(2)"""

    def program(x):
        last, (before, after) = forward()(x)
        return back(last, (before, after)), jnp.sum(after)

    check_refuses(SHARE, program, "f32[3]", because="is needed whole")


def test_read_in_the_same_order():
    """(2) The next step's row is not there yet."""

    def program(x):
        last, stacks = forward()(x)
        return back(last, stacks, reverse=False)

    check_refuses(SHARE, program, "f32[3]", because="in another order than from the last step")


def test_read_by_a_nest_of_loops():
    """(2) A row of the outer loop holds several steps."""

    def program(x):
        last, (before, after) = forward()(x)
        rows = after.reshape(2, 2, 3)
        inner = lambda d, rows: (back(d, (rows, rows)), None)
        return lax.scan(inner, last, rows, reverse=True)[0], before

    check_refuses(SHARE, program, "f32[3]", because="in another order than from the last step")


def test_a_loop_that_skips():
    """(3) What is carried would have to pass the steps that are skipped."""

    def program(x):
        stop = lambda c: lax.cond(jnp.sum(c) > 0, jnp.sin, lambda c: c, c)
        last, stacks = forward(stop)(x)
        return back(last, stacks)

    check_refuses(SHARE, program, "f32[3]", because="steps are skipped")


@pytest.mark.parametrize("where", ["in the step", "after the loop"])
def test_a_loop_that_may_begin_late(where):
    """(3) A mask drops losses of the last steps: the loop back begins with any of the rows."""

    def program(c, xs, length):
        mask = jnp.arange(xs.shape[0]) < length

        def body(c, row):
            x, m = row
            c = c * x
            loss = jnp.sum(c * c)
            return c, jnp.where(m, loss, 0.0) if where == "in the step" else loss

        losses = lax.scan(body, c, (xs, mask))[1]
        return jnp.sum(losses if where == "in the step" else jnp.where(mask, losses, 0.0))

    args = "f32[300]", "f32[6,300]", "i32[]"
    wanted = jax.grad(program, (0, 1))
    check_refuses(SHARE, wanted, *args, because="may begin with any", simplify=True)


def test_read_by_a_loop_that_skips():
    """(3) It could not pass on a row in a step that it skips."""

    def program(x):
        def body(d, row):
            before, after = row
            return lax.cond(before[0] > 0, lambda: d * before + after, lambda: d), None

        last, stacks = forward()(x)
        return lax.scan(body, last, stacks, reverse=True)[0]

    check_refuses(SHARE, program, "f32[3]", because="in another order than from the last step")


def test_rows_of_another_type():
    """(3) Where rows are read as a weak type, a carry of another type cannot stand for them."""

    def program(x):
        last, stacks = forward()(x)
        return back(last, stacks)

    graph = import_jaxpr(traced(program, "f32[3]"), SHARE.phase)
    first, reader = scans(graph)
    rw = Rewriter(graph)
    before, after = reader.streams
    weak = rw.new_value(compat_types.with_weak_type(after.param.aval, True))
    rw.replace(after.param, weak)
    rw.set_scan(reader, streams=[before, Stream(after.operand, weak)])
    (match,) = SHARE.find(first)
    assert SHARE.refuse(match) == "the carry is of another type than the rows"


def test_of_different_carries():
    """(1) Another carry of the same values is not known to be one."""

    def program(x):
        def body(c, _):
            a, b = c
            a1, b1 = jnp.sin(a), jnp.cos(b)
            return (a1, b1), (a, b1)

        (last, _), stacks = lax.scan(body, (x, x), length=4)
        return back(last, stacks)

    alone(SHARE, program, "f32[3]", fires=False)


def test_a_small_part():
    """Carrying a row costs time: not for a fifth of what the loop reads."""

    def program(x, wide):
        last, (before, after) = forward()(x)
        body = lambda d, rows: (d * rows[0] + rows[1] + jnp.sum(rows[2]), None)
        return lax.scan(body, last, (before, after, wide), reverse=True)[0]

    alone(SHARE, program, "f32[3]", "f32[4,3]", fires=True)
    check_refuses(SHARE, program, "f32[3]", "f32[4,9]", because="a small part of what the loop")


def test_small_rows():
    """A carry more takes longer than what it saves."""

    def program(x):
        last, stacks = forward()(x)
        return back(last, stacks)

    with using(CostModel()):
        check_refuses(
            SHARE,
            program,
            "f32[1023]",
            because="it is small, or a small part of what the loop streams",
        )
        alone(SHARE, program, "f32[1024]", fires=True)


@pytest.mark.parametrize("above", [True, False])
def test_a_recurrent_network(above):
    """The gradient keeps the states, and neither them twice nor the derivatives of `tanh`."""
    n, width = 512, 32

    def loss(w, xs):
        step = lambda h, x: (jnp.tanh(h @ w + x), None)
        return jnp.sum(lax.scan(step, jnp.zeros(width), xs)[0])

    gradient = optimize(jax.grad(loss)) if above else jax.grad(optimize(loss))
    w = jax.random.normal(jax.random.key(0), (width, width)) / 8
    xs = jax.random.normal(jax.random.key(1), (n, width))
    compiled = jax.jit(gradient).lower(w, xs).compile()
    states = n * width * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * states
    np.testing.assert_allclose(compiled(w, xs), jax.jit(jax.grad(loss))(w, xs), rtol=1e-5)
