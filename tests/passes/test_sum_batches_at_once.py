"""What is summed up over a batch is made at once."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.batches.sum_batches_at_once import SumBatchesAtOnce
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

SUM = SumBatchesAtOnce()
ROWS, DEEP, WIDE = 3, 256, 64


def outer(x, y, **options):
    """A product for each row of a batch."""
    return lax.dot_general(x, y, (((), ()), ((0,), (0,))), **options)


def summed(x, axis=0):
    """As JAX sums up cotangents: `jnp.sum` sums bfloat16 as float32."""
    return lax.reduce_sum(x, axes=(axis,))


def test_a_sum():
    """(1) What a mask keeps of the rows is summed up by the product."""
    check_rewrite(
        SUM,
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
        +   t1:f32[64,256] = transpose d1
        -   return r
        +   return t1
          }
        """,
    )


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
    """(1) However rows are chosen and moved, of every kind of number."""
    alone(SUM, program, "bool[3]", f"{dtype}[3,{DEEP}]", f"{dtype}[3,{WIDE}]", fires=True)


def test_rows_that_are_not_chosen_are_zero():
    """(1) Whatever they are: not a number, or infinite."""
    x, y = jnp.ones((ROWS, DEEP)), jnp.ones((ROWS, WIDE))
    for program, p in (
        (SUMS["where a mask is true"], True),
        (SUMS["where a mask is false"], False),
    ):
        chosen = jnp.array([p, not p, p])
        for bad in (jnp.nan, jnp.inf):
            given = chosen, x.at[1].set(bad), y.at[1].set(-bad)
            graph = alone(SUM, program, *given, fires=True)
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
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_what_is_not_found(program):
    """(1) No sum of products, row by row."""
    alone(SUM, program, "bool[3]", f"f32[3,{DEEP}]", f"f32[3,{WIDE}]", fires=False)


def test_half_precision():
    """(4) A product of float16 may overflow where a sum does not."""
    check_refuses(
        SUM,
        lambda x, y: summed(outer(x, y)),
        f"f16[3,{DEEP}]",
        f"f16[3,{WIDE}]",
        because="products of float16 may overflow",
    )


def test_wider_sums():
    """(1) A product of bfloat16 that is summed up as float32 is not rounded before."""

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
    alone(SUM, program, "bool[4096]", f"f32[4096,{wide}]", f"f32[4096,{deep}]", fires=False)


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


def test_bits_of_products():
    """(3) A GPU multiplies matrices of float32 with fewer bits than numbers."""
    shapes = f"f32[3,{64 * DEEP}]", f"f32[3,{64 * WIDE}]"
    with using(CostModel(GPU)):
        for precision in (None, "high"):
            program = lambda x, y, precision=precision: summed(outer(x, y, precision=precision))
            check_refuses(SUM, program, *shapes, because="fewer bits")


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_that_types_divide(axis):
    """(5) Products of fewer axes would be on other devices."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    rows = NamedSharding(mesh, PartitionSpec(axis))
    x, y = (jax.device_put(jnp.ones((ROWS, n)), rows) for n in (DEEP, WIDE))
    with jax.set_mesh(mesh):
        alone(SUM, lambda x, y: summed(outer(x, y)), x, y, fires=axis is None)


def test_no_rows():
    """(1) A batch without rows, or products without elements, have nothing to save."""
    for rows, deep in ((0, DEEP), (ROWS, 0)):
        shapes = f"f32[{rows},{deep}]", f"f32[{rows},{WIDE}]"
        alone(SUM, lambda x, y: summed(outer(x, y)), *shapes, fires=False)


def test_a_product_of_an_outer_region():
    """(1) Each step would make it again."""

    def program(x, y):
        made = outer(x, y)
        return lax.scan(lambda c, _: (c + summed(made), None), jnp.zeros((DEEP, WIDE)), None, 4)[0]

    alone(SUM, program, f"f32[3,{DEEP}]", f"f32[3,{WIDE}]", fires=False)


def added(table, i, u, **options):
    """Each row of the batch adds to zeros of its own."""
    copies = lax.broadcast(jnp.zeros_like(table), (i.shape[0],))
    return jax.vmap(lambda t, i, u: t.at[i].add(u, **options))(copies, i, u)


def test_a_scatter():
    """(2) All rows add to one table of zeros."""
    check_rewrite(
        SUM,
        lambda t, i, u: summed(added(t, i, u, mode="drop", wrap_negative_indices=False)),
        "f32[5,2]",
        "i32[3]",
        "f32[3,2]",
        simplify=True,
        diff="""
          fn (t:f32[5,2], i:i32[3], u:f32[3,2]) {
        +   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
            b:f32[5,2] = broadcast_in_dim 0.0
        -   b1:f32[3,5,2] = broadcast_in_dim b
        -   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
        -   s:f32[3,5,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b1 b2 u
        -   r:f32[5,2] = reduce_sum[axes=(0,)] s
        +   s1:f32[5,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b b2 u
        -   return r
        +   return s1
          }
        """,
    )


def written(t, i, u, before=0):
    """Each row of the batch writes one row into an array of its own."""
    arrays = jnp.full((i.shape[0], *t.shape), before, t.dtype)
    return jax.vmap(lambda t, i, u: lax.dynamic_update_slice(t, u, (i, 0)))(arrays, i, u[:, :1])


SCATTERS = {
    "added": lambda t, i, u: summed(added(t, i, u)),
    "added, or dropped": lambda t, i, u: summed(added(t, i, u, mode="drop")),
    "added, clamped": lambda t, i, u: summed(added(t, i, u, mode="clip")),
    "written": lambda t, i, u: summed(written(t, i[:, 0], u)),
    "under a mask": lambda t, i, u: summed(where(u[:, 0, 0].real > 0, added(t, i, u))),
    "transposed, negated": lambda t, i, u: summed(-added(t, i, u).transpose(1, 2, 0), 2),
    "to what is summed up, too": lambda t, i, u: summed(
        jax.vmap(lambda i, u: t.at[i].add(u))(i, u)
    ),
    "added to products": lambda t, i, u: summed(
        added(t, i, u) + outer(i[:, :1] + t[:, 0], u[:, 0])
    ),
    "one after the other": lambda t, i, u: summed(added(t, i, u) + added(t, i[::-1] + 1, 2 * u)),
    "over one of two batches": lambda t, i, u: summed(
        jax.vmap(added, (None, 0, 0))(t, jnp.stack([i, i + 1]), jnp.stack([u, u * u])), 1
    ),
}


@pytest.mark.parametrize("program", SCATTERS.values(), ids=SCATTERS)
@pytest.mark.parametrize("dtype", ["f32", "i32", "c64"])
def test_scatters_give_the_same(program, dtype):
    """(1, 2) Whatever places: in range or not, and some of a row twice."""
    keys = jax.random.split(jax.random.key(0))
    types = {"f32": "float32", "i32": "int32", "c64": "complex64"}
    given = (
        jnp.arange(10).reshape(5, 2).astype(types[dtype]),
        jax.random.randint(keys[0], (3, 4), -7, 8),
        (9 * jax.random.normal(keys[1], (3, 4, 2))).astype(types[dtype]),
    )
    alone(SUM, program, *given, fires=True)


def convolve(x, w, groups=1):
    numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", **numbers)


def kernels(x, y):
    """A gradient of a kernel for each picture."""
    zeros = jnp.zeros((3, 3, x.shape[-1], y.shape[-1]), x.dtype)
    return jax.vmap(lambda x, y: jax.vjp(lambda w: convolve(x[None], w)[0], zeros)[1](y)[0])(x, y)


def kernels_of_copies(x, y):
    """The same, differentiated after `vmap`."""
    zeros = jnp.zeros((x.shape[0], 3, 3, x.shape[-1], y.shape[-1]), x.dtype)
    return jax.vjp(lambda w: jax.vmap(convolve)(x[:, None], w)[:, 0], zeros)[1](y)[0]


def some(p, z):
    return jnp.where(p[:, None, None, None, None], z, jnp.zeros_like(z))


CONVOLUTIONS = {
    "of each row": lambda p, x, y: summed(kernels(x, y)),
    "of each row, under a mask": lambda p, x, y: summed(some(p, kernels(x, y))),
    "of copies": lambda p, x, y: summed(kernels_of_copies(x, y)),
    "of copies, under a mask": lambda p, x, y: summed(some(p, kernels_of_copies(x, y))),
}


@pytest.mark.parametrize("program", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_convolutions_give_the_same(program, dtype):
    """(1) Groups of features, or of the batch."""
    alone(SUM, program, "bool[4]", f"{dtype}[4,5,4,2]", f"{dtype}[4,5,4,3]", fires=True)


@pytest.mark.parametrize("name", ["of each row, under a mask", "of copies, under a mask"])
def test_pictures_that_are_not_chosen(name):
    """(1) Whatever is in them; XLA itself multiplies other groups by zero."""
    x, y, p = jnp.ones((4, 5, 4, 2)), jnp.ones((4, 5, 4, 3)), jnp.arange(4) != 1
    ours = jax.jit(optimize(CONVOLUTIONS[name]))
    bad = ours(p, x.at[1].set(jnp.nan), y.at[1].set(jnp.inf))
    assert_close(bad, CONVOLUTIONS[name](p, x, y))


def test_groups_of_which_another_shape_is_made_stay():
    """(1) Their axis is there, and more axes."""

    def program(x, w):
        return summed(convolve(x, w, 4).reshape(1, 5, 4, 4, 3, 1), 3)

    alone(SUM, program, "f32[1,5,4,8]", "f32[3,3,2,12]", fires=False)


def test_other_groups_stay():
    """(1) Half of the batch is summed up, or the features of what is made are divided."""
    halves = lambda p, x, y: summed(kernels(x, y).reshape(2, 2, 3, 3, 2, 3))
    channels = lambda p, x, y: summed(kernels(x, y), 4)
    for program in (halves, channels):
        alone(SUM, program, "bool[4]", "f32[4,5,4,2]", "f32[4,5,4,3]", fires=False)


NO_SCATTERS = {
    "a sum of rows": lambda t, i, u: summed(added(t, i, u), 1),
    "a scatter that is read elsewhere": lambda t, i, u: twice(added(t, i, u)),
    "written, though not into zeros": lambda t, i, u: summed(written(t, i[:, 0], u, 1)),
    "windows of a row that are written, of which one may be kept": lambda t, i, u: summed(
        jax.vmap(lambda i, u: jnp.zeros((5, 2)).at[i].set(u))(i, u)
    ),
}


@pytest.mark.parametrize("program", NO_SCATTERS.values(), ids=NO_SCATTERS)
def test_scatters_that_stay(program):
    """(1, 2)"""
    alone(SUM, program, "f32[5,2]", "i32[3,4]", "f32[3,4,2]", fires=False)


def test_rows_of_few_bits():
    """(4) They are rounded at each addition: one for each row of the batch, no more."""
    check_refuses(
        SUM,
        SCATTERS["added"],
        "bf16[5,2]",
        "i32[3,4]",
        "bf16[3,4,2]",
        because="windows of a row may be one, and bfloat16 has few bits",
    )
    alone(SUM, SCATTERS["added"], "bf16[5,2]", "i32[3,1]", "bf16[3,1,2]", fires=True)
