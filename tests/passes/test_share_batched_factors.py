"""A batch is multiplied by one matrix."""
# ruff: noqa: E501 - the parameters of a convolution

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.batches.share_batched_factors import ShareBatchedFactors
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone

SHARE = ShareBatchedFactors()
ROWS, DEEP, WIDE = 3, 256, 64


def copies(w):
    return lax.broadcast(w, (ROWS,))


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


def heads(k):
    """Each head of keys, for several heads of queries."""
    return jnp.repeat(k, 4, axis=1)


def test_heads_that_share_keys():
    """(1) Four rows of the batch have the same factor."""
    check_rewrite(
        SHARE,
        lambda q, k: jnp.einsum("hd,shd->hs", q, heads(k)),
        "f32[8,64]",
        "f32[512,2,64]",
        simplify=True,
        diff="""
            fn (q:f32[8,64], k:f32[512,2,64]) {
          -   b:f32[512,2,4,64] = broadcast_in_dim[dims=(0, 1, 3)] k
          -   r:f32[512,8,64] = reshape b
          -   d:f32[8,512] = dot_general[contract=1x2, batch=0x1] q r
          +   r1:f32[2,4,64] = reshape q
          +   d1:f32[2,4,512] = dot_general[contract=2x2, batch=0x1] r1 k
          +   r2:f32[8,512] = reshape d1
          -   return d
          +   return r2
            }
        """,
    )


SHARED = {
    "of other axes": lambda q, k: jnp.einsum("hd,hds->hs", q, heads(k).transpose(1, 2, 0)),
    "changed": lambda q, k: jnp.einsum("hd,shd->hs", q, jnp.sin(heads(k))),
    "the factor first": lambda q, k: jnp.einsum("shd,hd->sh", heads(k), q),
    "of two batches": lambda q, k: jnp.einsum(
        "bhd,bshd->bhs", jnp.stack([q, -q]), jnp.repeat(jnp.stack([k, 2 * k]), 4, axis=2)
    ),
}


@pytest.mark.parametrize("program", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "c64"])
def test_heads_give_the_same(program, dtype):
    """(1) However the factors lie."""
    alone(SHARE, program, f"{dtype}[8,64]", f"{dtype}[512,2,64]", fires=True)


def test_heads_in_turn_stay():
    """(1) Where each head of queries has the keys of the next head, none are next to each other."""
    program = lambda q, k: jnp.einsum("hd,shd->hs", q, jnp.tile(k, (1, 4, 1)))
    alone(SHARE, program, "f32[8,64]", "f32[512,2,64]", fires=False)


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
    "summed up": lambda x, w: lax.reduce_sum(
        jax.vmap(jnp.matmul)(jnp.stack([x, -x], 1), copies(w)), axes=(0,)
    ),
}


@pytest.mark.parametrize("program", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "c64"])
def test_products_give_the_same(program, dtype):
    """(1) However the factors lie, of every kind of number."""
    graph = alone(SHARE, program, f"{dtype}[3,{DEEP}]", f"{dtype}[{DEEP},{WIDE}]", fires=True)
    assert graph is not None


def test_a_matrix_for_each_row():
    """(1) Rows of some are chosen: they are not the same."""
    chosen = lambda p, x, w: jax.vmap(jnp.dot)(x, jnp.where(p[:, None, None], copies(w), 1))
    alone(SHARE, chosen, "bool[3]", f"f32[3,{DEEP}]", f"f32[{DEEP},{WIDE}]", fires=False)


def test_bits_of_products():
    """(2) A GPU multiplies matrices of float32 with fewer bits than numbers."""
    with using(CostModel(GPU)):
        check_refuses(
            SHARE,
            lambda x, w: jax.vmap(jnp.dot)(x, copies(w)),
            f"f32[3,{64 * DEEP}]",
            f"f32[{64 * DEEP}]",
            because="fewer bits",
        )
    assert CostModel(GPU).device.truncates


@pytest.mark.parametrize(("axis", "says"), [(None, False), (None, True), ("x", False)])
def test_rows_on_devices(axis, says):
    """(3) A product says where its rows are, as those of a transposed one do since JAX 0.12."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    where = NamedSharding(mesh, PartitionSpec(None, axis, None))
    x = jax.device_put(jnp.ones((ROWS, 2, DEEP)), where)
    numbers = (((2,), (1,)), ((0,), (0,)))

    def program(x, w):
        return lax.dot_general(x, copies(w), numbers, out_sharding=where if says else None)

    with jax.set_mesh(mesh):
        alone(SHARE, program, x, f"f32[{DEEP},{WIDE}]", fires=axis is None and not says)


def test_no_rows():
    """(1) A batch without rows, or a factor without elements, has no copies to save."""
    for rows, deep in ((0, DEEP), (ROWS, 0)):
        alone(
            SHARE,
            lambda x, w, rows=rows: jax.vmap(jnp.dot)(x, lax.broadcast(w, (rows,))).sum(),
            f"f32[{rows},{deep}]",
            f"f32[{deep},{WIDE}]",
            fires=False,
        )


def test_small_products_stay():
    """Starting a product of matrices takes longer than reading a few small copies."""
    alone(SHARE, PRODUCTS["the matrix first"], "f32[3,4]", "f32[4,4]", fires=False)


def test_a_matrix_times_matrices():
    """The factor with the batch comes first, and two axes of the result change places."""

    def program(x, w):
        return jax.vmap(lambda x, w: w.T @ x)(x, copies(w))

    args = f"f32[3,{DEEP},5]", f"f32[{DEEP},{WIDE}]"
    graph = alone(SHARE, program, *args, fires=True)
    (product,) = (op for op in graph.walk() if op.name == "dot_general")
    assert product.operands[0].shape == (3, DEEP, 5)
    assert product.result.shape == (3, 5, WIDE)


@pytest.mark.parametrize(
    ("program", "x", "w"),
    [
        (lambda x, w: copies(x) @ w, f"f32[5,{DEEP}]", f"f32[3,{DEEP},{WIDE}]"),
        (lambda x, w: copies(x) @ w.mT, f"f32[5,{DEEP}]", f"f32[3,{4 * DEEP},{DEEP}]"),
        (lambda x, w: w.mT @ copies(x), f"f32[5,{4 * DEEP}]", f"f32[3,5,{DEEP}]"),
    ],
)
def test_few_rows_times_a_matrix_for_each_row_of_the_batch(program, x, w):
    """The matrices would be read across their rows, the result be moved, or written for longer."""
    check_refuses(SHARE, program, x, w, because="no longer than a product of matrices")


def convolved(x, w, groups=1, **options):
    """A convolution of one picture, channels last."""
    numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
    return lax.conv_general_dilated(x[None], w, (1, 1), "SAME", **numbers, **options)[0]


def test_a_convolution():
    """(1) The rows of the batch, which are groups of features, are rows again."""
    check_rewrite(
        SHARE,
        lambda x, w: jax.vmap(convolved)(x, copies(w)),
        "f32[3,5,4,2]",
        "f32[3,3,2,6]",
        simplify=True,
        diff="""
          fn (x:f32[3,5,4,2], w:f32[3,3,2,6]) {
        -   t:f32[5,4,3,2] = transpose[1, 2, 0, 3] x
        -   r:f32[1,5,4,6] = reshape t
        -   b:f32[3,3,2,3,6] = broadcast_in_dim[dims=(0, 1, 2, 4)] w
        -   r1:f32[3,3,2,18] = reshape b
        -   c:f32[1,5,4,18] = conv_general_dilated[dims=0312,3201,0312, padding=((1, 1), (1, 1)), feature_group_count=3] r r1
        -   r2:f32[1,5,4,3,6] = reshape c
        -   t1:f32[3,1,5,4,6] = transpose[3, 0, 1, 2, 4] r2
        -   s:f32[3,5,4,6] = squeeze t1
        +   c1:f32[3,5,4,6] = conv_general_dilated[dims=0312,3201,0312, padding=((1, 1), (1, 1))] x w
        -   return s
        +   return c1
          }
        """,
    )


def backwards(x, w):
    """What the cotangent of a picture is, by the kernel reversed."""
    return jax.vjp(lambda x: convolved(x, w), x)[1](jnp.concatenate([x, x, x], 2))[0]


def with_steps(x, w):
    """Channels first, every second row, with holes in the kernel, and other padding."""
    x, w = x[None].transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    return lax.conv_general_dilated(x, w, (2, 1), [(1, 0), (0, 2)], (1, 2), (2, 1))


KERNELS = {
    "of two dimensions": convolved,
    "backwards": backwards,
    "with steps": with_steps,
    "of what is computed of copies": lambda x, w: convolved(x, jnp.sin(w[::-1])),
    "in a batch of its own": lambda x, w: jax.vmap(convolved, (0, None))(jnp.stack([x, -x]), w),
}


@pytest.mark.parametrize("program", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_convolutions_give_the_same(program, dtype):
    """(1) Whatever the order of their axes, and whatever is made of the kernel before."""
    batch = lambda x, w: jax.vmap(program)(x, copies(w))
    alone(SHARE, batch, f"{dtype}[3,5,4,2]", f"{dtype}[3,3,2,6]", fires=True)


NO_COPIES = {
    "a kernel for each row": lambda x, w, p: jax.vmap(convolved)(
        x, jnp.where(p[:, None, None, None, None], copies(w), 1)
    ),
    "groups of channels": lambda x, w, p: jax.vmap(lambda x, w: convolved(x, w[:, :, :1], 2))(
        x, copies(w)
    ),
    "no groups": lambda x, w, p: convolved(x[0], w),
}


@pytest.mark.parametrize("program", NO_COPIES.values(), ids=NO_COPIES)
def test_convolutions_that_stay(program):
    """(1) Each group needs a copy, the same one."""
    alone(SHARE, program, "f32[3,5,4,2]", "f32[3,3,2,6]", "bool[3]", fires=False)
