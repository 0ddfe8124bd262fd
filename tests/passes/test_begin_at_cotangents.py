"""Transposed loops begin at the last row of their cotangents that is not zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.begin_at_cotangents import BeginAtCotangents
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, assert_same, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER, FREE, Eager

BEGIN = BeginAtCotangents()
ARGS = ("f32[3]", "f32[6,3]", "i32[]")
XS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)


MODEL = EAGER
"""Programs here are small: asking is free."""


def masked(ys, n):
    return jnp.where(jnp.arange(len(ys))[:, None] < n, ys, 0.0)


def gradient(
    of=masked, *, wrt=0, also=lambda h: 0.0, through=lambda h, w: jnp.sin(h * w), **options
):
    """The gradient of what is made of the outputs of a scan."""

    def loss(w, xs, n):
        step = lambda h, x: ((y := through(h, w) + x), y)
        h, ys = lax.scan(step, jnp.zeros(3), xs, **options)
        return of(ys, n).sum() + also(h)

    return jax.grad(loss, wrt)


def test_losses_that_a_mask_drops_after_the_loop():
    check_rewrite(
        BEGIN,
        gradient(wrt=1, through=lambda h, w: 2.0 * h),
        *ARGS,
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[6,3], n:i32[]) {
            i:i32[6] = iota
            b:i32[6,1] = broadcast_in_dim[dims=(0,)] i
            l:bool[6,1] = lt b n
            b1:bool[6,3] = broadcast_in_dim l
            b2:f32[6,3] = broadcast_in_dim 1.0
            b3:f32[6,3] = broadcast_in_dim 0.0
            s:f32[6,3] = select_n b1 b3 b2
            b4:f32[3] = broadcast_in_dim 0.0
        -   c:f32[3], ys:f32[6,3] = scan[6, reverse] carry(c=b4) xs(x=s) {
        -     a:f32[3] = add_any c x
        -     m:f32[3] = mul 2.0 a
        -     yield carry(m) ys(a)
        -   }
        +   r:bool[6] = reduce_or[axes=(1,)] b1
        +   r1:bool[6] = reduce_and[axes=(1,)] b1
        +   o:bool[6] = or r r1
        +   r2:bool[6,1] = reshape o
        +   r3:bool[6] = reduce_or[axes=(1,)] r2
        +   a1:i32[6] = add 1 i
        +   b5:i32[6] = broadcast_in_dim 0
        +   s1:i32[6] = select_n r3 b5 a1
        +   r4:i32[] = reduce_max[axes=(0,)] s1
        +   s2:i32[] = sub r4 1
        +   c1:i32[], c2:f32[3], c3:f32[6,3] = while carry(c1=s2, c2=b4, c3=b3) {
        +     g:bool[] = ge c1 0
        +     yield g
        +   } do {
        +     d:f32[1,3] = dynamic_slice s c1 0
        +     s1:f32[3] = squeeze d
        +     a1:f32[3] = add_any c2 s1
        +     m1:f32[3] = mul 2.0 a1
        +     b5:f32[1,3] = broadcast_in_dim a1
        +     d1:f32[6,3] = dynamic_update_slice c3 b5 c1 0
        +     s2:i32[] = sub c1 1
        +     yield carry(s2, m1, d1)
        +   }
        -   return ys
        +   return c3
          }
        """,
    )


class Searching(Eager):
    """Testing all rows takes long."""

    def is_worth_questions(self, body, predicate, twice=()):
        return False


SEARCHING = Searching(FREE)


def test_rows_are_tested_one_by_one():
    """From the last one, until one is not zero."""
    with using(SEARCHING):
        check_rewrite(
            BEGIN,
            gradient(wrt=1, through=lambda h, w: 2.0 * h),
            *ARGS,
            simplify=True,
            diff="""
                fn (w:f32[3], xs:f32[6,3], n:i32[]) {
                  i:i32[6] = iota
                  b:i32[6,1] = broadcast_in_dim[dims=(0,)] i
                  l:bool[6,1] = lt b n
                  b1:bool[6,3] = broadcast_in_dim l
                  b2:f32[6,3] = broadcast_in_dim 1.0
                  b3:f32[6,3] = broadcast_in_dim 0.0
                  s:f32[6,3] = select_n b1 b3 b2
                  b4:f32[3] = broadcast_in_dim 0.0
              -   c:f32[3], ys:f32[6,3] = scan[6, reverse] carry(c=b4) xs(x=s) {
              -     a:f32[3] = add_any c x
              -     m:f32[3] = mul 2.0 a
              -     yield carry(m) ys(a)
              -   }
              +   c1:i32[] = while carry(c1=6) {
              +     s1:i32[] = sub c1 1
              +     d:f32[1,3] = dynamic_slice s s1 0
              +     b5:f32[1,3] = broadcast_in_dim 0.0
              +     n1:bool[1,3] = ne d b5
              +     s2:bool[3] = squeeze n1
              +     r:bool[] = reduce_or[axes=(0,)] s2
              +     r1:bool[] = reduce_and[axes=(0,)] s2
              +     o:bool[] = or r r1
              +     g:bool[] = gt c1 0
              +     r2:bool[] = reduce_or o
              +     n2:bool[] = not r2
              +     a1:bool[] = and g n2
              +     yield a1
              +   } do {
              +     s1:i32[] = sub c1 1
              +     yield carry(s1)
              +   }
              +   s1:i32[] = sub c1 1
              +   c2:i32[], c3:f32[3], c4:f32[6,3] = while carry(c1=s1, c2=b4, c3=b3) {
              +     g:bool[] = ge c1 0
              +     yield g
              +   } do {
              +     d:f32[1,3] = dynamic_slice s c1 0
              +     s1:f32[3] = squeeze d
              +     a1:f32[3] = add_any c2 s1
              +     m1:f32[3] = mul 2.0 a1
              +     b5:f32[1,3] = broadcast_in_dim a1
              +     d1:f32[6,3] = dynamic_update_slice c3 b5 c1 0
              +     s2:i32[] = sub c1 1
              +     yield carry(s2, m1, d1)
              +   }
              -   return ys
              +   return c4
                }
            """,
        )


OUTPUTS = {
    "masked": masked,
    "masked by numbers": lambda ys, n: ys * (jnp.arange(len(ys)) < n)[:, None].astype(ys.dtype),
    "with holes": lambda ys, n: jnp.where((jnp.arange(len(ys)) % n == 1)[:, None], ys, 0.0),
    "one row": lambda ys, n: ys[n - 1],
    "rows": lambda ys, n: ys[jnp.array([0, 1]) * n],
    "made of masked ones": lambda ys, n: jnp.sin(masked(ys, n)) @ jnp.ones((3, 2)),
}


@pytest.mark.parametrize("n", [1, 2, 5, 6, 100])
@pytest.mark.parametrize("of", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("wrt", [0, 1])
@pytest.mark.parametrize("prices", [EAGER, SEARCHING], ids=["at once", "one by one"])
def test_how_many_rows_are_not_zero(of, n, wrt, prices):
    """(2, 4) Whatever is differentiated: what each step adds, or what it stacks."""
    with using(prices):
        alone(BEGIN, gradient(of, wrt=wrt), XS[0], XS, jnp.int32(n), fires=True)


@pytest.mark.parametrize("prices", [EAGER, SEARCHING], ids=["at once", "one by one"])
def test_rows_that_are_no_numbers(prices):
    """They are not zero."""
    for number in (jnp.nan, jnp.inf, -jnp.inf, -1e-45):
        of = lambda ys, n, number=number: masked(ys * number, n)
        with using(prices):
            alone(BEGIN, gradient(of), XS[0], XS, jnp.int32(3), fires=True)


@pytest.mark.parametrize("prices", [EAGER, SEARCHING], ids=["at once", "one by one"])
def test_two_arrays_of_cotangents(prices):
    """Rows of both are zero."""

    def loss(w, xs, n, m):
        def step(h, x):
            y = jnp.sin(h * w) + x
            return y, (y, jnp.cos(y))

        _, (ys, zs) = lax.scan(step, jnp.zeros(3), xs)
        return (masked(ys, n) ** 2).sum() + zs[m].sum()

    for n, m in ((1, 4), (5, 0), (0, 0), (6, 5)):
        args = XS[0], XS, jnp.int32(n), jnp.int32(m)
        with using(prices):
            alone(BEGIN, jax.grad(loss), *args, fires=True)


@pytest.mark.parametrize("mask", [[1, 1, 0, 1, 0, 0], [0] * 6, [1] * 6, [1, -2, 0, 0, 0, jnp.nan]])
@pytest.mark.parametrize("prices", [EAGER, SEARCHING], ids=["at once", "one by one"])
def test_a_mask_of_floats(prices, mask):
    """An argument of fewer numbers than the rows may be one."""
    with using(prices):
        program = gradient(lambda ys, m: (ys**2).sum(axis=1) * m)
        alone(BEGIN, program, XS[0], XS, jnp.array(mask, jnp.float32), fires=True)


def by_hand(ct, ys, n):
    """The transposed loop, but JAX did not make it."""
    back = lambda g, row: (g * row[1] + row[0], None)
    return lax.scan(back, jnp.zeros(3), (masked(ct, n), ys), reverse=True)[0]


@pytest.mark.parametrize(
    ("program", "args"),
    [
        pytest.param(by_hand, ("f32[6,3]", "f32[6,3]", "i32[]"), id="(1) not transposed"),
        pytest.param(gradient(reverse=True), ARGS, id="(1) not in reverse"),
        pytest.param(gradient(also=jnp.sum), ARGS, id="(2) it begins with ones"),
        pytest.param(
            gradient(lambda ys, n: jnp.concatenate([masked(ys, n), jnp.cos(ys)])),
            ARGS,
            id="(2) other rows",
        ),
        pytest.param(gradient(lambda ys, n: ys**2), ARGS, id="no row is said to be zero"),
        pytest.param(
            gradient(lambda ys, n: jnp.where(ys > 0, ys, 0.0)), ARGS, id="a mask of elements"
        ),
        pytest.param(
            gradient(lambda ys, m: ys * m), ("f32[3]", "f32[6,3]", "f32[6,3]"), id="weights"
        ),
        pytest.param(
            gradient(lambda ys, m: ys.sum(axis=1) * jax.nn.softmax(m)),
            ("f32[3]", "f32[6,3]", "f32[6]"),
            id="what the program computes",
        ),
    ],
)
def test_loops_that_run_from_the_start(program, args):
    alone(BEGIN, program, *args, fires=False)


@jax.custom_vjp
def told(y):
    return y


def told_back(_, ct):
    jax.debug.print("{}", ct)
    return (ct,)


told.defvjp(lambda y: (y, None), told_back)


def test_a_step_with_effects():
    """(3) It prints."""

    def loss(w, xs, n):
        step = lambda h, x: ((y := told(jnp.sin(h * w) + x)), y)
        return masked(lax.scan(step, jnp.zeros(3), xs)[1], n).sum()

    check_refuses(BEGIN, jax.grad(loss), *ARGS, because="a step has effects")


def test_a_barrier_has_no_effects():
    """(3) Its transpose is one."""

    def loss(w, xs, n):
        step = lambda h, x: ((y := lax.optimization_barrier(jnp.sin(h * w) + x)), y)
        return masked(lax.scan(step, jnp.zeros(3), xs)[1], n).sum()

    alone(BEGIN, jax.grad(loss), *ARGS, fires=True)


@pytest.mark.parametrize(
    ("options", "because"), [({"unroll": 6}, "asks to be unrolled"), ({"length": 1}, "1 steps")]
)
def test_loops_that_are_meant_to_run(options, because):
    args = ARGS if "unroll" in options else ("f32[3]", "f32[1,3]", "i32[]")
    check_refuses(BEGIN, gradient(**options), *args, because=because)


def test_while_it_may_be_differentiated():
    """(5) JAX does not transpose a loop whose end is not known."""
    alone(BEGIN, gradient(), *ARGS, fires=False, phase="differentiable")


def test_a_step_that_is_cheaper_than_the_question():
    with using(CostModel()):
        alone(BEGIN, gradient(), *ARGS, fires=False)


def test_a_row_takes_as_long_to_test_as_a_step():
    """A step that only adds up rows."""

    def loss(h, xs, n):
        return masked(lax.scan(lambda h, x: ((y := h + x), y), h, xs)[1], n).sum()

    with using(CostModel()):
        args = "f32[3000]", "f32[6,3000]", "i32[]"
        check_refuses(BEGIN, jax.grad(loss), *args, because="as long as a step")


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_the_loss_of_padded_sequences(inside, batched):
    """An embedded text, its logits, and a loss in which padding does not count."""

    def loss(w, table, text):
        def step(h, x):
            h = jnp.tanh(w @ h + x)
            return h, h

        hs = lax.scan(step, jnp.zeros(64), table[text[:-1]])[1]
        logs = jax.nn.log_softmax(hs @ table.T)
        each = -jnp.take_along_axis(logs, text[1:, None], 1)[:, 0]
        mask = (text[1:] != 0).astype(jnp.float32)
        return jnp.sum(each * mask) / mask.sum()

    def total(w, table, texts):
        return jax.vmap(loss, (None, None, 0))(w, table, texts).sum()

    rng = np.random.default_rng(1)
    text = rng.integers(1, 9, (3, 40)) * (np.arange(40) < [[7], [9], [12]])
    args = jnp.eye(64) / 2, jnp.asarray(rng.normal(size=(9, 64)), jnp.float32), jnp.asarray(text)
    f, args = (total, args) if batched else (loss, (*args[:2], args[2][0]))
    with using(CostModel()):
        back = jax.grad(optimize(f)) if inside else optimize(jax.grad(f))
        graph, _ = observe.optimized(back, args, {})
        loops = [type(op) for op in graph.walk() if isinstance(op, Scan | While)]
        assert loops == [Scan, While]
        assert_same(back, jax.grad(f), args, grad=False)


def test_a_rule_that_reads_out_of_range():
    """(2) Of rows of zeros it makes another number."""
    double = jax.custom_vjp(lambda h: 2 * h)
    read = lambda ct: ct + ct.at[jnp.array([0, 1, 9])].get(mode="fill", fill_value=3.0)
    double.defvjp(lambda h: (2 * h, None), lambda _, ct: (read(ct),))

    def loss(h, n):
        ys = lax.scan(lambda h, _: (double(h),) * 2, h, None, length=6)[1]
        return masked(ys, n).sum()

    expected = jax.grad(loss)(XS[0], 2)
    for made in (jax.grad(optimize(loss)), optimize(jax.grad(loss))):
        assert_close(made(XS[0], 2), expected)
