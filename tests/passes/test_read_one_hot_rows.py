"""A product with an array that is one in one place is a row, unless another row is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.passes.windows.read_one_hot_rows import ReadOneHotRows
from jaxpr_opt.testing import assert_same_bits, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

READ = ReadOneHotRows()
N, M = 6, 4


@pytest.fixture(autouse=True)
def _eager():
    with using(EAGER):
        yield


def over(step):
    """A loop over places."""

    def program(w, ids):
        return lax.scan(lambda h, i: (step(h, i, w), h), jnp.zeros(M), ids)

    return program


CHARACTERS = over(lambda h, i, w: jnp.tanh(h + (jnp.arange(N) == i).astype(w.dtype) @ w))


def test_a_network_over_characters():
    """(1, 2) The table is looked at once, before the loop."""
    check_rewrite(
        READ,
        CHARACTERS,
        "f32[6,4]",
        "i32[3]",
        diff="""
            fn (w:f32[6,4], ids:i32[3]) {
              b:f32[4] = broadcast_in_dim 0.0
          +   i1:bool[6,4] = is_finite w
          +   n:bool[6,4] = not i1
          +   c2:i32[6,4] = convert_element_type n
          +   r:i32[4] = reduce_sum[axes=(0,)] c2
              c:f32[4], ys:f32[3,4] = scan[3] carry(c=b) xs(x=ids) {
                i:i32[6] = iota
                e:bool[6] = eq i x
                c1:f32[6] = convert_element_type e
          -     d:f32[4] = dot_general c1 w
          +     r1:i32[1] = reshape x
          +     g:f32[4] = gather[offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 4), mode=fill_or_drop, fill_value=0] w r1
          +     i1:bool[4] = is_finite g
          +     n:bool[4] = not i1
          +     c2:i32[4] = convert_element_type n
          +     s:i32[4] = sub r c2
          +     g1:bool[4] = gt s 0
          +     b1:f32[4] = broadcast_in_dim nan
          +     s1:f32[4] = select_n g1 g b1
          -     a:f32[4] = add c d
          +     a:f32[4] = add c s1
                t:f32[4] = tanh a
                yield carry(t) ys(c)
              }
              return c, ys
            }
        """,  # noqa: E501
    )


TABLES = {
    "numbers": {},
    "one infinite number": {(2, 1): np.inf},
    "one of each column": {(0, 0): np.nan, (3, 1): -np.inf, (5, 2): np.inf},
    "two of a column": {(2, 1): np.inf, (3, 1): np.inf},
    "NaN and infinity in a row": {(4, 0): np.nan, (4, 3): np.inf},
}
IDS = np.array([2, 0, 3, 5, 4, 2, -1, 6, 100], np.int32)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
def test_tables_that_are_not_finite(name, dtype):
    """(2) Zero times a number that is not finite is NaN, also of places out of range."""
    table = np.arange(1.0, 25.0).reshape(N, M)
    for place, number in TABLES[name].items():
        table[place] = number if dtype != "int32" else 7
    w = jnp.asarray(table, dtype)
    rows = over(lambda h, i, w: (jax.nn.one_hot(i, N, dtype=w.dtype) @ w).astype(h.dtype))
    alone(READ, rows, w, jnp.asarray(IDS), fires=True)
    assert_same_bits(rows(w, IDS), optimize(rows)(w, IDS))


def hot(i, n=N, axis=-1):
    return jax.nn.one_hot(i, n, axis=axis)


def at(ids):
    return jnp.arange(N) == ids[:, None]


PRODUCTS = {
    "a vector": lambda w, ids: hot(ids[0]) @ w,
    "rows": lambda w, ids: hot(ids) @ w,
    "on the right": lambda w, ids: w.T @ hot(ids, axis=0),
    "two axes": lambda w, ids: hot(ids.reshape(3, 3)) @ w,
    "turned": lambda w, ids: jnp.einsum("vab,vm->bam", hot(ids.reshape(3, 3), axis=0), w),
    "more of the table": lambda w, ids: jnp.tensordot(hot(ids), jnp.stack([w, 2 * w], 2), 1),
    "counted from two": lambda w, ids: (jnp.arange(N) + 2 == ids[:, None]).astype(w.dtype) @ w,
    "of truth values": lambda w, ids: jnp.where(at(ids), 1.0, 0.0) @ w,
    "axes of one element": lambda w, ids: hot(ids[0]).reshape(1, 1, N) @ w,
    "small numbers": lambda w, ids: hot(ids.astype(jnp.int8)) @ w,
    "large numbers": lambda w, ids: hot(ids.astype(jnp.uint32)) @ w,
    "streamed": lambda w, ids: lax.map(lambda x: x @ w, hot(ids)),
    "streamed rows": lambda w, ids: lax.map(lambda x: x @ w, hot(ids.reshape(3, 3))),
    "streamed along another axis": lambda w, ids: lax.map(
        lambda x: x @ w, jnp.moveaxis(hot(ids.reshape(3, 3)), 1, 0)
    ),
    "a table of each step": lambda w, ids: lax.scan(
        lambda w, i: (w + 1, hot(jnp.stack([i, i + 1])) @ w), w, ids
    ),
    "in two loops": lambda w, ids: lax.map(
        lambda row: lax.map(lambda i: hot(i) @ (2 * w), row), ids.reshape(3, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, bad):
    """(1) Along any axis, with a place for each row, also of what a loop streams."""
    w = jnp.arange(1.0, 25.0).reshape(N, M)
    w = w.at[3, 1].set(jnp.inf) if bad else w
    alone(READ, PRODUCTS[name], w, jnp.asarray(IDS), fires=True)


@pytest.mark.parametrize(
    "product",
    [
        pytest.param(lambda w, ids: (2 * hot(ids)) @ w, id="two, not one"),
        pytest.param(lambda w, ids: (1 - hot(ids)) @ w, id="zero, not one"),
        pytest.param(lambda w, ids: hot(ids).T @ hot(ids) @ w[:, :0], id="no numbers"),
        pytest.param(lambda w, ids: hot(ids, axis=0) @ jnp.ones((9, 2)), id="along the other axis"),
        pytest.param(lambda w, ids: (w[:, 0] > 3).astype(w.dtype) @ w, id="another mask"),
        pytest.param(lambda w, ids: jax.vmap(jnp.dot)(hot(ids), jnp.stack([w] * 9)), id="batch"),
        pytest.param(lambda w, ids: jnp.tensordot(hot(ids[:N], axis=0), w @ w.T, 2), id="two sums"),
        pytest.param(lambda w, ids: jnp.where(at(ids), w[0, 0], 0.0) @ w, id="another number"),
        pytest.param(lambda w, ids: jnp.where(at(ids), 1.0, 2.0) @ w, id="two elsewhere"),
        pytest.param(lambda w, ids: jnp.broadcast_to(hot(ids[0]), (3, N)) @ w, id="one for all"),
        pytest.param(lambda w, ids: hot(ids) @ w.astype(jnp.complex64), id="complex numbers"),
    ],
)  # fmt: skip
def test_other_products(product):
    """(1, 2) More than one place, other numbers, batch axes."""
    w = jnp.arange(1.0, 25.0).reshape(N, M)
    alone(READ, product, w, jnp.asarray(IDS), fires=False)


def test_what_takes_as_long_to_look_at():
    """A table that each step trains is looked at in each step."""

    def trained(w, ids):
        def step(w, i):
            return w - 0.1 * jnp.sin(hot(i, 600) @ w), None

        return lax.scan(step, w, ids)[0]

    with using(EAGER.of_backend("cpu")):
        check_refuses(
            READ, trained, "f32[600,24]", "i32[9]", because="takes as long as the product"
        )


def test_a_product_that_is_differentiated():
    """(3) It stays."""
    alone(READ, CHARACTERS, "f32[6,4]", "i32[3]", phase="differentiable", fires=False)


def test_gradients():
    """(3) Once nothing differentiates the product: cotangents that are not finite, too."""
    w = jnp.arange(1.0, 25.0).reshape(N, M) / 24
    for scale in (1.0, jnp.inf):
        loss = lambda w, s=scale: (CHARACTERS(w, IDS)[1].sum(0) * s).sum()
        want = jax.grad(loss)(w)
        for got in (optimize(jax.grad(loss))(w), jax.grad(optimize(loss))(w)):
            np.testing.assert_allclose(want, got, rtol=1e-6)
    tangents = jax.jvp(optimize(CHARACTERS), (w, IDS), (w, np.zeros(IDS.shape, jax.dtypes.float0)))
    plain = jax.jvp(CHARACTERS, (w, IDS), (w, np.zeros(IDS.shape, jax.dtypes.float0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tangents, plain)
