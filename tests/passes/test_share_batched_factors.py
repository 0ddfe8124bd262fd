"""A batch is multiplied by one matrix, and adds up one gradient of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.windows.share_batched_factors import ShareBatchedFactors
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

SHARE = ShareBatchedFactors()
ROWS, DEEP, WIDE = 3, 256, 64


def copies(w):
    return lax.broadcast(w, (ROWS,))


def outer(x, y, **options):
    """A product for each row of a batch."""
    return lax.dot_general(x, y, (((), ()), ((0,), (0,))), **options)


def summed(x, axis=0):
    """As JAX sums up cotangents: `jnp.sum` sums bfloat16 as float32."""
    return lax.reduce_sum(x, axes=(axis,))


def test_a_product():
    """(1) All rows are multiplied by the one matrix."""
    check_rewrite(
        SHARE,
        lambda x, w: jax.vmap(jnp.dot)(x, copies(w)),
        f"f32[3,{DEEP}]",
        f"f32[{DEEP},{WIDE}]",
        simplify=True,
        diff="""
          fn (x:f32[3,256], w:f32[256,64]) {
        -   b:f32[3,256,64] = broadcast_in_dim w
        -   d:f32[3,64] = dot_general[contract=1x1, batch=0x0] x b
        +   d:f32[3,64] = dot_general x w
            return d
          }
        """,
    )


def test_a_matrix_times_vectors():
    """(1) The vectors come first, and the batch with them: nothing is transposed."""
    check_rewrite(
        SHARE,
        lambda x, w: jax.vmap(lambda x, w: w.T @ x)(x, copies(w)),
        f"f32[3,{DEEP}]",
        f"f32[{DEEP},{WIDE}]",
        diff="""
          fn (x:f32[3,256], w:f32[256,64]) {
            b:f32[3,256,64] = broadcast_in_dim w
            t:f32[3,64,256] = transpose[0, 2, 1] b
        +   s:f32[1,64,256] = slice[:1, :, :] t
        +   s1:f32[64,256] = squeeze s
        -   d:f32[3,64] = dot_general[contract=2x1, batch=0x0] t x
        +   d:f32[3,64] = dot_general[contract=1x1] x s1
            return d
          }
        """,
    )


def test_a_sum():
    """(2) What a mask keeps of the rows is summed up by the product."""
    check_rewrite(
        SHARE,
        lambda p, x, y: summed(where(p, outer(x, y)).transpose(0, 2, 1)),
        "bool[3]",
        f"f32[3,{DEEP}]",
        f"f32[3,{WIDE}]",
        simplify=True,
        diff="""
          fn (p:bool[3], x:f32[3,256], y:f32[3,64]) {
        -   d:f32[3,256,64] = dot_general[contract=x, batch=0x0] x y
        -   b:bool[3,1,1] = broadcast_in_dim[dims=(0,)] p
        -   b1:f32[3,256,64] = broadcast_in_dim 0.0
        -   b2:bool[3,256,64] = broadcast_in_dim b
        -   s:f32[3,256,64] = select_n b2 b1 d
        -   t:f32[3,64,256] = transpose[0, 2, 1] s
        -   r:f32[64,256] = reduce_sum[axes=(0,)] t
        +   b3:bool[3,256] = broadcast_in_dim[dims=(0,)] p
        +   b4:f32[3,256] = broadcast_in_dim 0.0
        +   s1:f32[3,256] = select_n b3 b4 x
        +   b5:bool[3,64] = broadcast_in_dim[dims=(0,)] p
        +   b6:f32[3,64] = broadcast_in_dim 0.0
        +   s2:f32[3,64] = select_n b5 b6 y
        +   d1:f32[256,64] = dot_general[contract=0x0] s1 s2
        +   b7:f32[1,256,64] = broadcast_in_dim d1
        +   t1:f32[1,64,256] = transpose[0, 2, 1] b7
        +   s3:f32[64,256] = squeeze t1
        -   return r
        +   return s3
          }
        """,
    )


PRODUCTS = {
    "the matrix first": lambda x, w: jax.vmap(lambda x, w: w.T @ x)(x, copies(w)),
    "rows of rows": lambda x, w: jax.vmap(jnp.matmul)(jnp.stack([x, -x], 1), copies(w)),
    "rows of rows, the matrix first": lambda x, w: jax.vmap(lambda x, w: w.T @ x.T)(
        jnp.stack([x, -x], 1), copies(w)
    ),
    "a batch along the last axis": lambda x, w: jax.vmap(jnp.dot, in_axes=(1, 0), out_axes=1)(
        x.T, copies(w)
    ),
    "a batch in a batch": lambda x, w: jax.vmap(jax.vmap(jnp.dot))(
        jnp.stack([x, 2 * x]), jnp.stack([copies(w), copies(-w)])
    ),
    "a batch of batches": lambda x, w: jax.vmap(jax.vmap(jnp.dot, (0, None)), (0, 0))(
        jnp.stack([x, -x, x * x]), copies(w)
    ),
    "what is computed of copies": lambda x, w: jax.vmap(lambda x, w: x @ jnp.exp(w))(x, copies(w)),
    "transposed copies": lambda x, w: jax.vmap(lambda x, w: x @ w)(x, copies(w.T).mT),
    "a product of copies": lambda x, w: jax.vmap(lambda x, w: x @ (w @ w.T))(x, copies(w)),
    "summed up": lambda x, w: summed(jax.vmap(jnp.matmul)(jnp.stack([x, -x], 1), copies(w))),
}


@pytest.mark.parametrize("program", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "c64"])
def test_products_give_the_same(program, dtype):
    """(1) However the factors lie, of every kind of number."""
    graph = alone(SHARE, program, f"{dtype}[3,{DEEP}]", f"{dtype}[{DEEP},{WIDE}]", fires=True)
    assert graph is not None


def rows(x):
    """A matrix for each row of a batch."""
    return jnp.stack([x, -x], 1)


def pairs(x, y):
    """Outer products of a batch of batches."""
    factors = jnp.stack([x, -x]), jnp.stack([y, y + 1])
    return lax.dot_general(*factors, (((), ()), ((0, 1), (0, 1))))


def where(p, z, other=0):
    """Some rows, and otherwise zeros."""
    return jnp.where(p[..., None, None], z, jnp.full_like(z, other))


def padded(z, before, after):
    """Each matrix, between rows of zeros."""
    return lax.pad(z, np.zeros((), z.dtype), [(0, 0, 0), (before, after, 0), (0, 0, 0)])


def where_last(p, z):
    return jnp.where(p, z, jnp.zeros_like(z))


def where_not(p, z):
    return jnp.where(p[..., None, None], jnp.zeros_like(z), z)


SUMS = {
    "outer products": lambda p, x, y: summed(outer(x, y)),
    "of matrices": lambda p, x, y: summed(jax.vmap(lambda a, b: a.T @ b)(rows(x), rows(y))),
    "where a mask is true": lambda p, x, y: summed(where(p, outer(x, y))),
    "where a mask is false": lambda p, x, y: summed(where_not(p, outer(x, y))),
    "under two masks, transposed between": lambda p, x, y: summed(
        where_last(p[::-1], where(p, outer(x, y)).transpose(2, 1, 0)), 2
    ),
    "beside other rows": lambda p, x, y: summed(where(p, outer(x, y), 1)),
    "added, in parts of zeros": lambda p, x, y: summed(
        where(p, padded(outer(x, y), 0, DEEP)) + where(~p, padded(outer(x + 1, y), DEEP, 0))
    ),
    "as rows of rows, negated": lambda p, x, y: summed(-outer(x, y).reshape(3, 8, -1, 2)),
    "of three cases": lambda p, x, y: summed(
        lax.select_n(
            jnp.broadcast_to(jnp.array([2, 0, 1])[:, None, None], (3, DEEP, WIDE)),
            outer(x, y),
            jnp.zeros((3, DEEP, WIDE), x.dtype),
            outer(y, x).mT,
        )
    ),
    "of cases out of range": lambda p, x, y: summed(
        lax.select_n(
            jnp.broadcast_to(jnp.array([4, 1, -2])[:, None, None], (3, DEEP, WIDE)),
            outer(x, y),
            jnp.zeros((3, DEEP, WIDE), x.dtype),
            outer(y, x).mT,
        )
    ),
    "over one of two batches": lambda p, x, y: summed(pairs(x, y).transpose(3, 1, 0, 2), 1),
    "under a mask of both batches": lambda p, x, y: summed(where(jnp.stack([p, ~p]), pairs(x, y))),
    "under a mask of the other batch": lambda p, x, y: summed(
        where(jnp.array([[True], [False]]), pairs(x, y))
    ),
}


@pytest.mark.parametrize("program", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "c64"])
def test_sums_give_the_same(program, dtype):
    """(2) However rows are chosen and moved, of every kind of number."""
    alone(SHARE, program, "bool[3]", f"{dtype}[3,{DEEP}]", f"{dtype}[3,{WIDE}]", fires=True)


def test_rows_that_are_not_chosen_are_zero():
    """(2) Whatever they are: not a number, or infinite."""
    x, y = jnp.ones((ROWS, DEEP)), jnp.ones((ROWS, WIDE))
    for program, p in (
        (SUMS["where a mask is true"], True),
        (SUMS["where a mask is false"], False),
    ):
        chosen = jnp.array([p, not p, p])
        for bad in (jnp.nan, jnp.inf):
            given = chosen, x.at[1].set(bad), y.at[1].set(-bad)
            graph = alone(SHARE, program, *given, fires=True)
            assert graph is not None


def twice(z):
    return summed(z) + z[0]


REFUSED = {
    "a mask of elements": lambda p, x, y: summed(jnp.where(y[:, None] > 0, outer(x, y), 0)),
    "rows between ones": lambda p, x, y: summed(
        lax.pad(outer(x, y), np.ones((), x.dtype), [(0, 0, 0), (1, 0, 0), (0, 0, 0)])
    ),
    "a product and a number": lambda p, x, y: summed(outer(x, y) + 2),
    "a sum of rows": lambda p, x, y: summed(outer(x, y), 1),
    "a product that is read elsewhere": lambda p, x, y: twice(outer(x, y)),
    "a matrix for each row": lambda p, x, y: jax.vmap(jnp.dot)(x, where(p, outer(x, y), 1)),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_what_is_not_found(program):
    """(1, 2) Neither a shared factor, nor a sum of products."""
    alone(SHARE, program, "bool[3]", f"f32[3,{DEEP}]", f"f32[3,{WIDE}]", fires=False)


def test_half_precision():
    """(4) A product of float16 may overflow where a sum does not."""
    check_refuses(
        SHARE,
        lambda x, y: summed(outer(x, y)),
        f"f16[3,{DEEP}]",
        f"f16[3,{WIDE}]",
        because="products of float16 may overflow",
    )


def test_bits_of_products():
    """(3) A GPU multiplies matrices of float32 with fewer bits than numbers."""
    shapes = f"f32[3,{64 * DEEP}]", f"f32[3,{64 * WIDE}]"

    def gradient(precision):
        return lambda x, y: summed(outer(x, y, precision=precision))

    with using(CostModel(GPU)):
        check_refuses(SHARE, gradient(None), *shapes, because="fewer bits")
        check_refuses(SHARE, gradient("high"), *shapes, because="fewer bits")
        check_refuses(
            SHARE,
            lambda x, w: jax.vmap(jnp.dot)(x, copies(w)),
            f"f32[3,{64 * DEEP}]",
            f"f32[{64 * DEEP}]",
            because="fewer bits",
        )
    assert CostModel(GPU).device.truncates


def test_no_rows():
    """(1, 2) A batch without rows, or a factor without elements, has no copies to save."""
    for rows, deep in ((0, DEEP), (ROWS, 0)):
        alone(
            SHARE,
            lambda x, w, y, rows=rows: (
                summed(outer(x, y)) + jax.vmap(jnp.dot)(x, lax.broadcast(w, (rows,))).sum()
            ),
            f"f32[{rows},{deep}]",
            f"f32[{deep},{WIDE}]",
            f"f32[{rows},{WIDE}]",
            fires=False,
        )


def test_small_products_stay():
    """Starting a product of matrices takes longer than reading a few small copies."""
    for program in (PRODUCTS["the matrix first"], lambda x, w: jnp.sum(outer(x, w[:3]), 0)):
        alone(SHARE, program, "f32[3,4]", "f32[4,4]", fires=False)


def test_wider_sums():
    """(2) A product of bfloat16 that is summed up as float32 is not rounded before."""

    def program(x, y):
        return summed(outer(x, y).astype(jnp.float32))

    keys = jax.random.split(jax.random.key(0))
    x, y = (
        jax.random.normal(key, (64, n), jnp.bfloat16)
        for key, n in zip(keys, (DEEP, WIDE), strict=True)
    )
    want = np.einsum("bi,bj->ij", *(np.asarray(v, np.float64) for v in (x, y)))
    errors = [np.abs(each(x, y) - want).max() for each in (program, optimize(program))]
    assert 1000 * errors[1] < errors[0]


def test_experts():
    """A token goes through one network of several: no matrix of all tokens is left."""

    def loss(ws, xs, ids):
        def one(x, i):
            return lax.switch(i, [lambda x, e=e: jnp.tanh(x @ ws[e]) for e in range(3)], x)

        return jnp.mean(jax.vmap(one)(xs, ids) ** 2)

    keys = jax.random.split(jax.random.key(0))
    given = (
        jax.random.normal(keys[0], (3, DEEP, WIDE)) / DEEP**0.5,
        jax.random.normal(keys[1], (16, DEEP)),
        jnp.arange(16) % 4 - 1,
    )
    grad = jax.grad(loss)
    ours = jax.jit(optimize(grad)).lower(*given).compile()
    assert f"f32[16,{DEEP},{WIDE}]" not in ours.as_text()
    assert f"f32[16,3,{DEEP},{WIDE}]" not in ours.as_text()
    assert_close(ours(*given), grad(*given))


@pytest.mark.parametrize(("wide", "deep"), [(1, 1), (2, 3), (16, 1)])
def test_narrow_products_stay(wide, deep):
    """Choosing rows of the factors takes as long as multiplying them."""
    program = SUMS["where a mask is true"]
    alone(SHARE, program, "bool[4096]", f"f32[4096,{wide}]", f"f32[4096,{deep}]", fires=False)


@pytest.mark.parametrize("order", ["optimize(grad)", "grad(optimize)"])
def test_a_network_under_a_condition(order):
    """A ragged batch of a recurrent network: no array of all rows and all weights is left."""

    def loss(w, xs, lengths):
        def row(x, length):
            def step(h, t):
                return lax.cond(t < length, lambda h: jnp.tanh(h @ w + x), lambda h: h, h), None

            return lax.scan(step, jnp.zeros_like(x), jnp.arange(5))[0]

        return jnp.sum(jax.vmap(row)(xs, lengths) ** 2)

    keys = jax.random.split(jax.random.key(0))
    given = (
        jax.random.normal(keys[0], (DEEP, DEEP)) / DEEP**0.5,
        jax.random.normal(keys[1], (8, DEEP)),
        np.array([0, 1, 2, 3, 4, 5, 9, -1]),
    )
    grad = jax.grad(loss)
    ours = optimize(grad) if order == "optimize(grad)" else jax.grad(optimize(loss))
    text = jax.jit(ours).lower(*given).compile().as_text()
    assert f"f32[8,{DEEP},{DEEP}]" not in text
    assert_close(ours(*given), grad(*given))
