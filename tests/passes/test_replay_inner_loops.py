"""A loop that may stop early, in the step of another, is run again where it is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.graph import Cond, Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.residuals.replay_inner_loops import ReplayInnerLoops
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone, measured, unspecified
from tests.prices import EAGER

INNER = ReplayInnerLoops()
STEPS, BOUND = 3, 8
TYPES = ("f32[16]", "f32[]", "f32[3,16]")


def gradient(taken, *, read=None, given=None, told=lambda c, limit: c[0] < limit):
    """Steps with a loop in each, and a loop back: `taken` gives the next number and what is
    stored; `read` makes what is stored of all rows, `given` what the inner loop starts with.
    """
    read = read or (lambda rows: rows)
    given = given or (lambda c, x: c + x)

    def program(c, limit, xs):
        def step(c, x):
            def inner(d, _):
                skipped = lambda d: (d, jnp.zeros_like(taken(d)[1]))
                return lax.cond(told(d, limit), taken, skipped, d)

            d, rows = lax.scan(inner, given(c, x), None, length=BOUND)
            return d, read(rows)

        c, rows = lax.scan(step, c, xs)

        def back(a, rows):
            return lax.scan(lambda a, row: (a * row, None), a, rows, reverse=True)

        return c, lax.scan(lambda a, r: (back(a, r)[0], None), jnp.ones(16), rows, reverse=True)[0]

    return program


def again(*args):
    """The graph after the pass, where any loop is worth running again."""
    with using(EAGER):
        return alone(*args, fires=True)


def sine(d):
    return jnp.sin(d), jnp.cos(d)


def test_an_inner_loop_runs_again():
    """What it starts with is stored, and which of its steps have been taken."""
    with using(EAGER):
        check_rewrite(
            INNER,
            gradient(sine),
            *TYPES,
            simplify=True,
            diff="""
          fn (c:f32[16], limit:f32[], xs:f32[3,16]) {
        -   c1:f32[16], ys:f32[3,8,16] = scan[3] carry(c=c) xs(x=xs) {
        +   c1:f32[16], ys1:f32[3,16], ys2:bool[3,8] = scan[3] carry(c=c) xs(x=xs) {
              a:f32[16] = add c x
        -     c1:f32[16], ys:f32[8,16] = scan[8] carry(c=a) {
        +     c1:f32[16], ys1:bool[8] = scan[8] carry(c=a) {
                s:f32[1] = slice[:1] c
                s1:f32[] = squeeze s
                l:bool[] = lt s1 limit
        -       r:f32[16], r1:f32[16] = cond l {
        +       r:f32[16] = cond l {
                  s:f32[16] = sin c
        -         c1:f32[16] = cos c
        -         yield s, c1
        +         yield s
                } else {
        -         b:f32[16] = broadcast_in_dim 0.0
        -         yield c, b
        +         yield c
                }
        -       yield carry(r) ys(r1)
        +       yield carry(r) ys(l)
              }
        -     yield carry(c1) ys(ys)
        +     yield carry(c1) ys(a, ys1)
            }
            b:f32[16] = broadcast_in_dim 1.0
        -   c2:f32[16] = scan[3, reverse] carry(c=b) xs(x=ys) {
        +   c2:f32[16] = scan[3, reverse] carry(c=b) xs(x1=ys1, x2=ys2) {
        +     c3:f32[16], ys1:f32[8,16] = scan[8] carry(c3=x1) xs(x1=x2) {
        +       r2:f32[16], r3:f32[16] = cond x1 {
        +         s2:f32[16] = sin c3
        +         c4:f32[16] = cos c3
        +         yield s2, c4
        +       } else {
        +         b:f32[16] = broadcast_in_dim 0.0
        +         yield c3, b
        +       }
        +       yield carry(r2) ys(r3)
        +     }
        -     c1:f32[16] = scan[8, reverse] carry(c=c) xs(x=x) {
        +     c1:f32[16] = scan[8, reverse] carry(c=c) xs(x=ys1) {
                m:f32[16] = mul c x
                yield carry(m)
              }
              yield carry(c1)
            }
            return c1, c2
          }
        """,
        )


def test_it_is_told_which_steps_to_take():
    """(3) It does not compare again what may be rounded otherwise."""
    graph = again(INNER, gradient(sine, told=lambda c, u: jnp.exp(c[0]) < u), *TYPES)
    back = next(op for op in graph.body.ops if isinstance(op, Scan) and op.reverse)
    copy = next(op for op in back.body.ops if isinstance(op, Scan) and not op.reverse)
    (branch,) = (op for op in copy.body.ops if isinstance(op, Cond))
    assert copy.stream_of(branch.selector) is not None


def test_truth_values_stay():
    """(3) So does what says which elements are transposed, where a step is taken."""

    def program(c, limit, xs):
        def step(c, x):
            def inner(d, _):
                told = d[0] < limit
                d, row = lax.cond(told, sine, lambda d: (d, d), d)
                return d, (row, told & (jnp.exp(d) < 2))

            return lax.scan(inner, c + x, None, length=BOUND)

        c, rows = lax.scan(step, c, xs)

        def back(a, row):
            return jnp.where(row[1], a * row[0], a), None

        outer = lambda a, rows: lax.scan(back, a, rows, reverse=True)
        return c, lax.scan(outer, jnp.ones(16), rows, reverse=True)[0]

    forward, _ = (op for op in again(INNER, program, *TYPES).body.ops if isinstance(op, Scan))
    masks = [s.result.shape for s in forward.stacks if s.result.dtype == bool]
    assert sorted(masks) == [(STEPS, BOUND), (STEPS, BOUND, 16)]


def test_comparisons_of_rows_stay():
    """(3) What they say may depend on how a row is rounded."""
    graph = again(INNER, gradient(sine, read=lambda r: r * (jnp.sin(r) < 0.5)), *TYPES)
    back = next(op for op in graph.body.ops if isinstance(op, Scan) and op.reverse)
    assert "lt" not in {op.name for op in back.body.ops}


@pytest.mark.parametrize(
    "read",
    [
        lambda rows: rows[::-1],
        lambda rows: jnp.concatenate([rows[1:], rows[:1]]),
        lambda rows: rows.reshape(BOUND, 16),
    ],
)
def test_the_rows_are_read_in_some_way(read):
    """Rows of the outer step may be used in any way."""
    again(INNER, gradient(sine, read=read), *TYPES)


def test_steps_that_are_read_otherwise():
    """(1) The rows of all steps are summed."""

    def program(c, limit, xs):
        def step(c, x):
            inner = lambda d, _: lax.cond(d[0] < limit, sine, lambda d: (d, d), d)
            return lax.scan(inner, c + x, None, length=BOUND)

        c, rows = lax.scan(step, c, xs)
        return c, rows.sum()

    alone(INNER, program, *TYPES, fires=False)


def test_a_loop_that_skips_around_it():
    """Rows of skipped steps are unspecified: any will do."""

    def program(c, limit, xs):
        def step(c, x):
            inner = lambda d, _: lax.cond(d[0] < limit, sine, lambda d: (d, d), d)
            d, rows = lax.scan(inner, c + x, None, length=BOUND)
            goes = c[1] < limit
            return jnp.where(goes, d, c), jnp.where(goes, rows, unspecified(rows))

        c, rows = lax.scan(step, c, xs)
        back = lambda a, rows: lax.scan(lambda a, row: (a * row, None), a, rows, reverse=True)
        outer = lambda a, rows: (jnp.where(rows[0, 0] > 2, a, back(a, rows)[0]), None)
        return c, lax.scan(outer, c, rows, reverse=True)[0]

    graph = import_jaxpr(traced(program, *TYPES))
    with using(EAGER):
        record = run_alone((INNER,), graph).record(INNER.name, False)
    assert record.rewrites
    forward = next(op for op in graph.body.ops if isinstance(op, Scan))
    assert not any(len(s.result.shape) == 3 for s in forward.stacks)


def test_what_may_not_end():
    """(2) It is not run again."""

    def taken(d):
        return jnp.sin(d), lax.while_loop(lambda x: x.sum() < 0, lambda x: x + 1, d)

    with using(EAGER):
        check_refuses(INNER, gradient(taken), *TYPES, because="replaying it would repeat")


def test_other_loops_are_not_run_again():
    """(3) What another loop gives is stored: it might stop elsewhere."""
    find = lambda c, x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, c) + x
    graph = again(INNER, gradient(sine, given=find), *TYPES)
    back = next(op for op in graph.body.ops if isinstance(op, Scan) and op.reverse)
    assert "while" not in {op.name for op in back.walk()}


def test_a_loop_that_knows_its_steps():
    """It takes most of them."""

    def program(c, n, xs):
        def step(c, x):
            inner = lambda d, i: lax.cond(i < n, sine, lambda d: (d, d), d)
            return lax.scan(inner, c + x, jnp.arange(BOUND))

        c, rows = lax.scan(step, c, xs)
        back = lambda a, rows: lax.scan(lambda a, row: (a * row, None), a, rows, reverse=True)
        return c, lax.scan(back, c, rows, reverse=True)[0]

    alone(INNER, program, "f32[16]", "i32[]", TYPES[2], fires=False)


def test_a_few_small_rows():
    """They are stored."""
    types = ("f32[4]", "f32[]", "f32[8,4]")

    def program(c, limit, xs):
        def step(c, x):
            inner = lambda d, _: lax.cond(d[0] < limit, sine, lambda d: (d, d), d)
            return lax.scan(inner, c + x, None, length=4)

        c, rows = lax.scan(step, c, xs)
        back = lambda a, rows: lax.scan(lambda a, row: (a * row, None), a, rows, reverse=True)
        return c, lax.scan(back, c, rows, reverse=True)[0]

    check_refuses(INNER, program, *types, because="takes no longer than running one again")


@pytest.mark.parametrize("first", [slice(0, 1), slice(None)])
def test_steps_that_are_not_stopped(first):
    """Steps so cheap that all are taken would all be taken twice: XLA tests one number while it
    starts a step's ops, and each number of a batch by itself.
    """

    def program(c, limit, xs):
        def step(c, x):
            def inner(d, _):
                new = jnp.where((d < limit)[first], jnp.sin(jnp.sin(d)), d)
                return new, jnp.cos(d)

            return lax.scan(inner, c + x, None, length=512)

        c, rows = lax.scan(step, c, xs)
        back = lambda a, rows: lax.scan(lambda a, row: (a * row, None), a, rows, reverse=True)
        return c, lax.scan(back, c, rows, reverse=True)[0]

    types = "f32[64]", "f32[]", "f32[3,64]"
    if first.stop:
        alone(INNER, program, *types, fires=True)
    else:
        check_refuses(INNER, program, *types, because="takes no longer than running one again")


def solved(theta, y, *, bound=100, epochs=None):
    """Euler's method, with a solver in each step; epochs of it, maybe."""

    def euler(theta):
        def step(y, _):
            def newton(s, _):
                z, done = s

                def go(z):
                    r = z - y + 0.1 * theta * z**3
                    return z - r / (1 + 0.3 * theta * z**2), jnp.max(jnp.abs(r)) < 1e-3

                return lax.cond(done, lambda z: (z, True), go, z), None

            return lax.scan(newton, (y, False), None, length=bound)[0][0], None

        return lax.scan(step, y, None, length=4)[0]

    if epochs is None:
        return jnp.sum(jnp.sin(euler(theta)))
    epoch = lambda theta, _: (theta + 0.01 * jnp.tanh(euler(theta)), None)
    return jnp.sum(jnp.sin(lax.scan(epoch, theta, None, length=epochs)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.parametrize("order", ["around grad", "inside grad", "vmap"])
def test_a_solver_in_each_step(order, epochs):
    """The same gradient, and no rows for each step up to the bound."""
    rng = np.random.default_rng(0)
    theta, y = (jnp.asarray(rng.uniform(0.5, 1.5, 512), jnp.float32) for _ in range(2))
    loss = lambda theta, y: solved(theta, y, epochs=epochs)
    plain = jax.grad(loss)
    ours = (
        jax.grad(jaxpr_opt.optimize(loss)) if order == "inside grad" else jaxpr_opt.optimize(plain)
    )
    args = (theta, y)
    if order == "vmap":
        args = (jnp.stack([theta, theta * 1.1]), y)
        plain, ours = jax.vmap(plain, (0, None)), jax.vmap(ours, (0, None))
    (given, used), (wanted, usual) = (measured(f, *args) for f in (ours, plain))
    assert_close(given, wanted)
    assert used < 6 * 100 * args[0].nbytes < usual


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_short_bounds(bound):
    theta = jnp.linspace(0.5, 1.5, 512)
    loss = lambda theta: solved(theta, theta, bound=bound, epochs=2)
    assert_close(jaxpr_opt.optimize(jax.grad(loss))(theta), jax.jit(jax.grad(loss))(theta))
