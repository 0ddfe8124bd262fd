"""Rows that are written into zeros are multiplied, not the zeros with them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.windows.multiply_written_rows import MultiplyWrittenRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

MULTIPLY = MultiplyWrittenRows()
ROWS, SIZE = 64, 16


def looped(step):
    """The gradient of a loop whose step reads a part of what it computes."""

    def loss(c, w, ids):
        return jnp.sum(lax.scan(lambda c, i: (step(c, w, i), None), c, ids)[0] ** 2)

    return jax.grad(loss, (0, 1))


def row(x, i):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_slice(x, (i, 0), (1, x.shape[1]), allow_negative_indices=False)


def column(x, i):
    return lax.dynamic_slice(x, (0, i), (x.shape[0], 1), allow_negative_indices=False)


STEPS = {
    "a row": lambda c, w, i: c + row(jnp.tanh(c) @ w, i),
    "a row, as the second factor": lambda c, w, i: (
        c + column(lax.dot_general(w, jnp.tanh(c), (((0,), (1,)), ((), ()))), i).T
    ),
    "a column": lambda c, w, i: c + column(jnp.tanh(c) @ w, i),
    "rows of a batch": lambda c, w, i: (
        c
        + lax.dynamic_slice(
            jnp.einsum("bri,ij->brj", jnp.sin(c).reshape(4, -1, SIZE), w),
            (0, i, 0),
            (4, 1, SIZE),
            allow_negative_indices=False,
        ).sum(0)
    ),
    "of a batch of matrices": lambda c, w, i: (
        c
        + lax.dynamic_slice(
            jnp.einsum("bri,bij->brj", jnp.sin(c).reshape(16, -1, SIZE), jnp.stack([w] * 16)),
            (i, 0, 0),
            (1, 4, SIZE),
            allow_negative_indices=False,
        ).sum((0, 1))
    ),
}
TYPES = f"f32[{ROWS},{SIZE}]", f"f32[{SIZE},{SIZE}]", "i32[5]"


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_values(step):
    """(1, 2, 3) Wherever the window is: in range, or clamped."""
    alone(MULTIPLY, looped(step), *TYPES, fires=True)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_whole_pipeline(step):
    """Both orders give what JAX gives."""
    keys = jax.random.split(jax.random.key(0))
    given = (
        jax.random.normal(keys[0], (ROWS, SIZE)),
        jax.random.normal(keys[1], (SIZE, SIZE)) / SIZE,
        jnp.array([0, 3, -2, 99, 15]),
    )
    want = looped(step)(*given)
    assert_close(optimize(looped(step))(*given), want)


def written(c, i):
    return lax.dynamic_update_slice(jnp.zeros_like(c), c[:1], (i, jnp.int32(0)))


def test_text():
    """(1, 2) The window is multiplied; where it is summed over, the other factor is read at it."""

    def loss(c, w, ids):
        step = lambda c, i: (row(c @ w, i) + c, None)
        return lax.scan(step, c, ids)[0]

    def back(c, w, ids, ct):
        return jax.vjp(lambda w: loss(c, w, ids), w)[1](ct)[0]

    check_rewrite(
        MULTIPLY,
        back,
        *TYPES,
        TYPES[0],
        simplify=True,
        diff="""
          fn (c:f32[64,16], w:f32[16,16], ids:i32[5], ct:f32[64,16]) {
            c1:f32[64,16], ys:f32[5,64,16] = scan[5] carry(c=c) xs(x=ids) {
              d:f32[64,16] = dot_general c w
              d1:f32[1,16] = dynamic_slice d x 0
              a:f32[64,16] = add d1 c
              yield carry(a) ys(c)
            }
            b:f32[16,16] = broadcast_in_dim 0.0
            c2:f32[16,16], c3:f32[64,16] = scan[5, reverse] carry(c=b, c1=ct) xs(x=ys, x1=ids) {
              r:f32[16] = reduce_sum[axes=(0,)] c1
              r1:f32[1,16] = reshape r
        +     d3:f32[1,16] = dynamic_slice x x1 0
        +     d4:f32[16,16] = dot_general[contract=0x0] r1 d3
        +     t1:f32[16,16] = transpose d4
        +     a2:f32[16,16] = add_any c t1
        +     d5:f32[1,16] = dot_general[contract=1x1] r1 w
              b:f32[64,16] = broadcast_in_dim 0.0
        -     d:f32[64,16] = dynamic_update_slice b r1 x1 0
        +     d:f32[64,16] = dynamic_update_slice b d5 x1 0
        -     d1:f32[16,16] = dot_general[contract=0x0] d x
        -     t:f32[16,16] = transpose d1
        -     a:f32[16,16] = add_any c t
        -     d2:f32[64,16] = dot_general[contract=1x1] d w
        -     a1:f32[64,16] = add_any c1 d2
        +     a1:f32[64,16] = add_any c1 d
        -     yield carry(a, a1)
        +     yield carry(a2, a1)
            }
            return c2
          }
        """,
    )


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda c, w, i: c + written(c, i) @ w, "zero times it is no zero"),
        (lambda c, w, i: lax.dynamic_update_slice(c, c[:60], (i, 0)) @ w, None),
        (lambda c, w, i: lax.dynamic_update_slice(jnp.zeros_like(c), c[:60], (i, 0)) @ w, "most"),
    ],
)
def test_what_is_refused(program, because):
    """(1, 3) Zeros of a forward loop are multiplied: times infinity they are no zeros."""
    forward = lambda c, w, ids: lax.scan(lambda c, i: (program(c, w, i), None), c, ids)[0]
    if because is None:
        alone(MULTIPLY, forward, *TYPES, fires=False)
    else:
        check_refuses(MULTIPLY, forward, *TYPES, because=because)


def test_a_row_that_is_overwritten():
    """(1) Its cotangent is zero, and that of all others is not."""

    def step(c, w, i):
        nothing = jnp.zeros((1, SIZE))
        return lax.dynamic_update_slice(
            jnp.tanh(c) @ w, nothing, (i, 0), allow_negative_indices=False
        )

    alone(MULTIPLY, looped(step), *TYPES, fires=False)


def test_no_whole_product_is_left():
    """Forward and back, each step multiplies one row."""
    back = jax.make_jaxpr(optimize(looped(STEPS["a row"])))(
        jnp.ones((ROWS, SIZE)), jnp.ones((SIZE, SIZE)), jnp.arange(5)
    )
    assert "dot_general" in str(back)
    products = [line for line in str(back).splitlines() if "= dot_general" in line]
    assert products
    assert not any(f"f32[{ROWS},{SIZE}] = dot_general" in line for line in products)
