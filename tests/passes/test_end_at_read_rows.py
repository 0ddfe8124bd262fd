"""Loops end after the last row that is read of what they stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.end_at_read_rows import EndAtReadRows
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

END = EndAtReadRows()
ARGS = ("f32[3]", "f32[6,3]", "i32[]")
XS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)


MODEL = EAGER
"""Programs here are small: asking is free."""


def masked(ys, n):
    return jnp.where(jnp.arange(len(ys))[:, None] < n, ys, 0.0)


def program(of=masked, *, also=lambda h: 0.0, through=lambda h, w: jnp.sin(h * w), **options):
    """What is made of the outputs of a scan, of which rows are read."""

    def loss(w, xs, n):
        step = lambda h, x: ((y := through(h, w) + x), y)
        h, ys = lax.scan(step, jnp.zeros(3), xs, **options)
        return jnp.sum(of(ys, n)) + also(h)

    return loss


def unread(w, xs, n):
    """Only a counter is."""
    step = lambda c, x: ((jnp.sin(c[0] * w) + x, c[1] + 1), c[0])
    return lax.scan(step, (jnp.zeros(3), n), xs)[0][1]


def test_losses_that_a_mask_drops_after_the_loop():
    check_rewrite(
        END,
        program(through=lambda h, w: 2.0 * h),
        *ARGS,
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[6,3], n:i32[]) {
            b:f32[3] = broadcast_in_dim 0.0
        -   c:f32[3], ys:f32[6,3] = scan[6] carry(c=b) xs(x=xs) {
        -     m:f32[3] = mul 2.0 c
        -     a:f32[3] = add m x
        -     yield carry(a) ys(a)
        -   }
            i:i32[6] = iota
            b1:i32[6,1] = broadcast_in_dim[dims=(0,)] i
            l:bool[6,1] = lt b1 n
        +   r1:bool[6] = reduce_or[axes=(1,)] l
        +   a1:i32[6] = add 1 i
        +   b4:i32[6] = broadcast_in_dim 0
        +   s1:i32[6] = select_n r1 b4 a1
        +   r2:i32[] = reduce_max[axes=(0,)] s1
        +   u:f32[6,3] = undefined
        +   c1:i32[], c2:f32[3], c3:f32[6,3] = while carry(c1=0, c2=b, c3=u) {
        +     l1:bool[] = lt c1 r2
        +     yield l1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c1 0
        +     s1:f32[3] = squeeze d
        +     m:f32[3] = mul 2.0 c2
        +     a1:f32[3] = add m s1
        +     b4:f32[1,3] = broadcast_in_dim a1
        +     d1:f32[6,3] = dynamic_update_slice c3 b4 c1 0
        +     a2:i32[] = add c1 1
        +     yield carry(a2, a1, d1)
        +   }
            b2:bool[6,3] = broadcast_in_dim l
            b3:f32[6,3] = broadcast_in_dim 0.0
        -   s:f32[6,3] = select_n b2 b3 ys
        +   s:f32[6,3] = select_n b2 b3 c3
            r:f32[] = reduce_sum[axes=(0, 1)] s
            return r
          }
        """,
    )


WAYS = {
    "rows": masked,
    "what is made of each": lambda ys, n: masked(jnp.log(ys**2).sum(1, keepdims=True), n),
    "products": lambda ys, n: masked(jax.nn.softmax(ys @ jnp.ones((3, 2))), n),
    "one a row": lambda ys, n: jnp.where(jnp.arange(6) < n, ys[:, 1], -1.0),
    "along another axis": lambda ys, n: jnp.where(jnp.arange(6) < n, jnp.cos(ys.T), 1.0),
    "one more at the end": lambda ys, n: jnp.where(jnp.arange(6) >= n, 0.0, ys[:, 0]),
    "with holes": lambda ys, n: jnp.where((jnp.arange(6) % 3 == n)[:, None], ys, 0.0),
    "two masks": lambda ys, n: masked(ys, n) * 2 + masked(jnp.exp(ys), n + 2),
    "both cases": lambda ys, n: jnp.where(
        (jnp.arange(6) < n)[:, None], ys, jnp.where((jnp.arange(6) < 3)[:, None], -ys, 0.0)
    ),
    "a known mask": lambda ys, n: jnp.where(np.arange(6)[:, None] < 4, ys, 0.0),
    "one of the rows": lambda ys, n: ys[n],
    "some rows": lambda ys, n: lax.dynamic_slice(ys, (n, 1), (2, 2)),
    "rows by numbers": lambda ys, n: ys[jnp.array([0, 1, -1]) + n, 1],
    "filled out of range": lambda ys, n: ys.at[n + jnp.arange(3)].get(mode="fill", fill_value=7.0),
    "clipped": lambda ys, n: ys.at[n + jnp.arange(3)].get(mode="clip"),
}


@pytest.mark.parametrize("n", [-7, -1, 0, 1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("of", WAYS.values(), ids=WAYS)
def test_how_many_rows_are_read(of, n):
    """(2, 3, 4) Whatever drops or picks rows."""
    alone(END, program(of), XS[0], XS, jnp.int32(n), fires=True)


def test_rows_that_are_no_numbers():
    """Those that are read keep them; those that are not leave none."""
    for number in (jnp.nan, jnp.inf):
        for at in (1, 4):
            xs = XS.at[at].set(number)
            alone(END, program(), XS[0], xs, jnp.int32(3), fires=True)


def counted(w, xs, n):
    """A counter is read, which the steps that are not run advance."""

    def step(c, x):
        h, t = c
        h = jnp.sin(h * w) + x
        return (h, t + 2), h

    (_, t), ys = lax.scan(step, (jnp.zeros(3), 5), xs)
    return masked(ys, n).sum() + t


def summed(w, xs, n, bound=lambda t: t < 4):
    """So are losses, which a mask drops in the step."""

    def step(c, x):
        h, t, loss = c
        h = jnp.sin(h * w) + x
        return (h, t + 1, loss + jnp.where(bound(t), h.sum(), 0.0)), h

    (_, _, loss), ys = lax.scan(step, (jnp.zeros(3), 0, 0.0), xs)
    return masked(ys, n).sum() + loss


def held(w, xs, n):
    """Whether a state is held is known in its step; it is not read."""

    def step(h, t):
        x, i = t
        return (h := jnp.where((i < 3) | (h[0] > 0), jnp.sin(h * w) + x, h)), h

    return masked(lax.scan(step, jnp.zeros(3), (xs, jnp.arange(6)))[1], n).sum()


@pytest.mark.parametrize("loss", [counted, summed, held])
@pytest.mark.parametrize("n", [0, 2, 4, 5, 6])
def test_carries_that_are_read(loss, n):
    """(1) The loop ends after the last step taken, or row read."""
    alone(END, loss, XS[0], XS, jnp.int32(n), fires=True)


def drawn(t):
    """Truth that takes a product."""
    return jnp.dot(jnp.full(3, t, jnp.float32), jnp.ones(3)) < 9.0


def stopped(w, xs, n):
    """The loop itself knows when it is over."""

    def step(c, x):
        h, loss = c
        on = loss < 3.0
        return (jnp.where(on, jnp.sin(h * w) + x, h), jnp.where(on, loss + 1.0, loss)), h

    (_, loss), ys = lax.scan(step, (jnp.zeros(3), 0.0), xs)
    return masked(ys, n).sum() + loss


def printed(h, w):
    jax.debug.print("{}", h)
    return h * w


@pytest.mark.parametrize(
    ("loss", "because"),
    [
        pytest.param(program(also=jnp.sum), "at the end is read", id="(1) the last state"),
        pytest.param(stopped, "known in its steps only", id="(1) it stops by its state"),
        pytest.param(program(through=printed), "has effects", id="(5)"),
        pytest.param(lambda *args: summed(*args, bound=drawn), "may round differently", id="(7)"),
        pytest.param(program(unroll=6), "asks to be unrolled", id="unrolled"),
    ],
)
def test_loops_that_run_to_their_end(loss, because):
    check_refuses(END, loss, *ARGS, because=because)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(program(reverse=True), id="in reverse"),
        pytest.param(program(lambda ys, n: ys), id="(2) all rows are read"),
        pytest.param(program(lambda ys, n: masked(jnp.cumsum(ys, 0), n)), id="(2) joined rows"),
        pytest.param(program(lambda ys, n: masked(ys[::-1], n)), id="(2) reversed rows"),
        pytest.param(program(lambda ys, n: masked(ys, n) + ys[0]), id="(2) another reader"),
        pytest.param(program(lambda ys, n: masked(ys @ ys.T, n)), id="(2) rows times rows"),
        pytest.param(
            program(lambda ys, n: jnp.where(jnp.arange(6)[:, None] < ys[0, 0].astype(int), ys, 0)),
            id="(3) the loop makes the mask",
        ),
        pytest.param(program(lambda ys, n: ys[jnp.argmax(ys[0])]), id="(3) it makes the place"),
        pytest.param(
            program(lambda ys, n: lax.dynamic_slice_in_dim(ys, n.astype("uint32"), 1)),
            id="(4) unsigned",
        ),
        pytest.param(program(lambda ys, n: jnp.where(n < XS, ys, 0.0)), id="a mask of elements"),
        pytest.param(program(lambda ys, n: ys[:, n]), id="(2) a column"),
        pytest.param(
            program(lambda ys, n: lax.dynamic_slice(ys, (0, n), (6, 1))), id="(2) columns"
        ),
        pytest.param(unread, id="no row is read"),
    ],
)
def test_loops_of_which_all_rows_may_be_read(loss):
    alone(END, loss, *ARGS, fires=False)


def test_while_it_may_be_differentiated():
    """(6) JAX does not transpose a loop whose end is not known."""
    alone(END, program(), *ARGS, fires=False, phase="differentiable")


def test_a_step_that_is_cheaper_than_the_question():
    with using(CostModel()):
        check_refuses(END, program(), *ARGS, because="no longer than asking")


def test_masks_that_take_as_long_as_the_steps():
    """Each element of them is a number of its own."""

    def loss(w, xs, mask):
        ys = lax.scan(lambda h, x: (jnp.sin(h + x) * w,) * 2, w, xs)[1]
        return jnp.where(mask, ys, 0.0).sum()

    with using(CostModel()):
        args = "f32[3000]", "f32[6,3000]", "bool[6,3000]"
        check_refuses(END, loss, *args, because="about as long as its steps")


def recurrent(w, h, x):
    h = jnp.tanh(w @ h + x)
    return h, h


def in_the_loss(w, xs, n):
    """Logits of all outputs, and a loss in which padding does not count."""
    hs = lax.scan(lambda h, x: recurrent(w, h, x), jnp.zeros(64), xs)[1]
    logs = jax.nn.log_softmax(hs @ w)[:, 0]
    return jnp.mean(logs, where=jnp.arange(len(xs)) < n)


def in_a_buffer(w, xs, n):
    """Outputs that the loop writes into an array."""

    def step(t, c):
        h, hs = c
        h, _ = recurrent(w, h, xs[t])
        return h, hs.at[t].set(h)

    hs = lax.fori_loop(0, len(xs), step, (jnp.zeros(64), jnp.zeros_like(xs)))[1]
    return jnp.sum(jnp.where(jnp.arange(len(xs))[:, None] < n, hs * jnp.log(hs**2 + 1), 0.0))


def of_a_filter(w, xs, n):
    """The likelihood of the steps that were observed."""

    def step(h, x):
        e = x - w @ h
        return h + 0.1 * e, -jnp.sum(e**2)

    return jnp.sum(jnp.where(jnp.arange(len(xs)) < n, lax.scan(step, xs[0], xs)[1], 0.0))


def of_last_words(w, xs, n):
    """The output of each text's last word."""
    step = lambda h, x: ((h := jnp.tanh(h @ w + x)), h)
    hs = lax.scan(step, jnp.zeros((2, 64)), jnp.stack([xs, -xs], 1))[1]
    return jnp.take_along_axis(hs, jnp.stack([n, n + 1])[None, :, None] - 1, 0).sum()


@pytest.mark.parametrize("f", [in_the_loss, in_a_buffer, of_a_filter, of_last_words])
def test_padded_sequences(f):
    args = jnp.eye(64) / 2, jnp.asarray(np.random.default_rng(1).normal(size=(40, 64)), jnp.float32)
    with using(CostModel()):
        for n in (1, 9, 39):
            assert_same(optimize(f), f, (*args, jnp.int32(n)), grad=False)
        graph, _ = observe.optimized(f, (*args, jnp.int32(9)), {})
    assert [type(op) for op in graph.walk() if isinstance(op, Scan | While)] == [While]


def loops(graph):
    return [type(op) for op in graph.walk() if isinstance(op, Scan | While)]


def gradient(of, wrt=(0, 1), through=lambda h, w: jnp.sin(h * w), **options):
    """The gradient of what is made of outputs, and of none but these."""

    def loss(w, xs, n):
        step = lambda h, x: ((y := through(h, w) + x), (y, 0.5 * y))
        return jnp.sum(of(*lax.scan(step, jnp.zeros(3), xs, **options)[1], n))

    return jax.grad(loss, wrt)


BACK = {
    "rows": lambda ys, zs, n: masked(ys, n) ** 2,
    "by another number": lambda ys, zs, n: masked(ys, n) * 2 + masked(zs, n + 2) ** 2,
    "one row": lambda ys, zs, n: ys[n] ** 2,
    "some rows": lambda ys, zs, n: lax.dynamic_slice(ys, (n, 1), (2, 2)) ** 2,
    "rows by numbers": lambda ys, zs, n: ys[jnp.array([0, 1, -1]) + n, 1] ** 2,
    "filled out of range": lambda ys, zs, n: jnp.sin(
        ys.at[n + jnp.arange(3)].get(mode="fill", fill_value=7.0)
    ),
    "one row and a mask": lambda ys, zs, n: masked(ys, 2).sum() ** 2 + ys[n] ** 2,
    "negative": lambda ys, zs, n: -(masked(ys, n) ** 2),
}


@pytest.mark.parametrize("n", [-7, 0, 1, 3, 6, 100])
@pytest.mark.parametrize("of", BACK.values(), ids=BACK)
def test_rows_that_a_loop_back_reads(of, n):
    """(8, 9, 10) It begins with the last row that the other loop has made."""
    graph = alone(END, gradient(of), XS[0], XS, jnp.int32(n), fires=True)
    assert loops(graph) == [While, While]


def floats(ys, n):
    """Which rows a mask of floats leaves is not looked for before the loop."""
    return ys * jnp.where(jnp.arange(6.0) < n, 1.0, 0.0)[:, None]


def outputs(w, xs):
    return lax.scan(lambda h, x: (jnp.sin(h * w) + x,) * 2, jnp.zeros(3), xs)[1]


def zeroed(xs, n):
    return jnp.where(jnp.arange(len(xs))[:, None] < n, xs, jnp.zeros_like(xs))


def of_products(ys, cotangents, like, **options):
    """A loop back of products, which reads nothing but what was multiplied."""
    made = lambda h: lax.scan(lambda h, y: (h * y,) * 2, h, ys, **options)[1]
    return jax.linear_transpose(made, jnp.ones(like))(cotangents)


def in_a_branch(w, xs, n):
    ys, cotangents = outputs(w, xs), zeroed(xs, n)
    return lax.cond(n > 2, lambda: of_products(ys, cotangents, 3), lambda: (w,))


@pytest.mark.parametrize("n", [1, 4])
def test_a_loop_back_in_a_branch(n):
    """It may be anywhere."""
    alone(END, in_a_branch, XS[0], XS, jnp.int32(n), fires=True)


def forward(w, xs, n):
    """A loop that JAX did not make: zeros have a sign."""
    step = lambda g, x: (jnp.where(x[0] == 0, g, x[1]), x[0])
    return lax.scan(step, jnp.zeros(3), (-zeroed(xs, n), outputs(w, xs)), reverse=True)


def of_a_reversed_loop(w, xs, n):
    """The transpose of a loop in reverse ends with rows of zeros, and still changes cotangents."""
    return of_products(outputs(w, xs), zeroed(xs, n), 3, reverse=True)


def of_columns(w, xs, n):
    return of_products(outputs(w, xs).T, zeroed(xs.T, n), 6)


def of_sums(w, xs, n):
    """Other rows of cotangents are not zeros."""
    return of_products(outputs(w, xs), zeroed(xs, n) + 3.0 * xs, 3)


def of_a_state(w, xs, n):
    """What the loop back begins with, and adds to."""
    ys = outputs(w, xs)
    step = lambda c, x: ((c[0], c[1] * x + c[0].sum(0)), c[1])
    made = lambda h, k: lax.scan(step, (h, k), xs)
    return jax.linear_transpose(made, ys, w)(((ys, jnp.zeros(3)), zeroed(xs, n)))


def carried(w, xs, n):
    """Cotangents that do not begin as zeros."""

    def loss(w):
        step = lambda h, x: ((y := jnp.sin(h * w) + x), y)
        h, ys = lax.scan(step, jnp.zeros(3), xs)
        return masked(ys, n).sum() + h.sum()

    return jax.grad(loss)(w)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(forward, id="(8) no transpose"),
        pytest.param(of_a_reversed_loop, id="(8) it runs forward"),
        pytest.param(of_columns, id="(8) steps read columns"),
        pytest.param(of_a_state, id="(8) steps read none"),
        pytest.param(carried, id="(9) it begins with others"),
        pytest.param(
            gradient(lambda ys, zs, n: masked(ys, n).sum() + zs.sum()), id="(9) other cotangents"
        ),
        pytest.param(of_sums, id="(10) a sum with others"),
        pytest.param(gradient(lambda ys, zs, n: floats(ys, n)), id="(10) a mask of floats"),
        pytest.param(
            gradient(lambda ys, zs, n: jnp.where(XS.sum(1)[:, None] < n, ys, 0.0)),
            id="(10) numbers",
        ),
        pytest.param(
            gradient(lambda ys, zs, n: masked(jnp.exp(ys), n)), id="(10) factors may be infinite"
        ),
        pytest.param(
            gradient(lambda ys, zs, n: ys[jnp.argmax(lax.stop_gradient(zs[0]))]),
            id="(10) a place that the loop makes",
        ),
    ],
)
def test_loops_back_that_may_read_all_rows(program):
    alone(END, program, *ARGS, fires=False)


def test_a_loop_back_that_runs_several_steps_at_once():
    """(11) It stacks no rows, so that its steps are unrolled; the other one does."""
    program = gradient(BACK["rows"], wrt=0, unroll=2)
    check_refuses(END, program, *ARGS, because="the loop back asks to be unrolled")


def pooled(w, xs, n):
    """A mean of the outputs that are no padding."""
    hs = lax.scan(lambda h, x: recurrent(w, h, x), jnp.zeros(64), xs)[1]
    return jnp.tanh(jnp.where(jnp.arange(len(xs))[:, None] < n, hs, 0.0).sum(0) / n).sum()


def last(w, xs, n):
    """The last output that is none."""
    return jnp.sum(lax.scan(lambda h, x: recurrent(w, h, x), jnp.zeros(64), xs)[1][n - 1] ** 2)


@pytest.mark.parametrize("wrt", [0, (0, 1)])
@pytest.mark.parametrize("f", [pooled, last])
def test_gradients_of_padded_sequences(f, wrt):
    args = jnp.eye(64) / 2, jnp.asarray(np.random.default_rng(1).normal(size=(40, 64)), jnp.float32)
    with using(CostModel()):
        for n in (1, 9, 39):
            program = optimize(jax.grad(f, wrt))
            assert_same(program, jax.grad(f, wrt), (*args, jnp.int32(n)), grad=False)
        graph, _ = observe.optimized(jax.grad(f, wrt), (*args, jnp.int32(9)), {})
    assert loops(graph) == [While, While]
