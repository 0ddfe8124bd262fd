"""A sum over the places of a one-hot array reads or adds rows, unless another is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.passes.masks.read_one_hot_rows import ReadOneHotRows
from jaxpr_opt.testing import (
    assert_same_bits,
    assert_same_derivatives,
    check_refuses,
    check_rewrite,
    traced,
)
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
          +     s:i32[1] = stack[axis=0] x
          +     g:f32[4] = gather[offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 4), mode=fill_or_drop, fill_value=0] w s
          +     i1:bool[4] = is_finite g
          +     n:bool[4] = not i1
          +     c2:i32[4] = convert_element_type n
          +     g1:bool[4] = gt r c2
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


CLUSTERS = jnp.array([4, 0, 5, 5, 1, 7, -2, 3, 2])


def both(ids, other=CLUSTERS):
    """Which of both numbers each row has."""
    return hot(ids)[..., :, None] * hot(other)[..., None, :]


def queue(ids):
    """In the row of each, where its number stands: the how manieth of that number it is, else 0."""
    is_its = jax.nn.one_hot(ids, N, dtype=jnp.int32)
    return jnp.cumsum(is_its, 0) * is_its


def three(ids):
    """Three numbers a row, of which some are the same."""
    return jnp.stack([ids, jnp.roll(ids, 1), ids // 2], 1)


WEIGHTS = jnp.resize(jnp.array([0.5, 1.0, 2.0, 4.0]), (9, 3))
INF, ZERO = np.float32(np.inf), np.float32(0)


def keep(w, ids):
    """A number of each row, of which some are not finite if those of `w` are not."""
    return jnp.resize(w, (9, M))


def diagonal():
    return jnp.arange(N)[:, None] == jnp.arange(N)


SUMS = {
    "a trace": lambda w, ids: jnp.where(diagonal(), w @ w.T, 0).sum(),
    "a diagonal": lambda w, ids: jnp.where(diagonal(), w @ w.T, 0).sum(0),
    "a diagonal of a product with an axis of one element": lambda w, ids: jnp.where(
        diagonal(), lax.dot_general(w[:, None], w, (((2,), (1,)), ((), ()))).reshape(N, N), 0
    ).sum(1),
    "rows that are scaled": lambda w, ids: jnp.where(diagonal(), w[:, :1], 0) @ w,
    "rows added up": lambda w, ids: hot(ids).T @ keep(w, ids),
    "on the left": lambda w, ids: keep(w, ids).T @ hot(ids),
    "of another number": lambda w, ids: (2 * hot(ids)).T @ keep(w, ids),
    "counts": lambda w, ids: hot(ids).sum(0),
    "counts of pairs": lambda w, ids: hot(ids).T @ hot(CLUSTERS),
    "pairs": lambda w, ids: jnp.einsum("ni,nj,n->ij", hot(ids), hot(CLUSTERS), keep(w, ids)[:, 0]),
    "of pairs": lambda w, ids: jnp.einsum("ni,ij,nj->n", hot(ids), w @ w.T, hot(CLUSTERS)),
    "to places": lambda w, ids: jnp.einsum("tec,td->ecd", both(ids), keep(w, ids)),
    "from places": lambda w, ids: jnp.einsum(
        "tec,ecd->td", both(ids) * keep(w, ids)[:, :1, None], w[:, None] * w[None]
    ),
    "of truth values": lambda w, ids: at(ids).T.astype(w.dtype) @ keep(w, ids),
    "chosen": lambda w, ids: jnp.where(at(ids)[:, :, None], keep(w, ids)[:, None], 0).sum(0),
    "the greatest": lambda w, ids: jnp.where(
        at(ids)[:, :, None], keep(w, ids)[:, None], -INF
    ).max(0),
    "the least of one": lambda w, ids: jnp.where(at(ids), keep(w, ids)[:, :1], INF).min(1),
    "any": lambda w, ids: (at(ids) & (keep(w, ids)[:, :1] > 3)).any(0),
    "values of actions": lambda w, ids: ((keep(w, ids) @ w.T) * hot(ids)).sum(1),
    "chosen actions": lambda w, ids: jnp.where(at(ids), keep(w, ids) @ w.T, 0).sum(1),
    "chosen rows": lambda w, ids: jnp.where(keep(w, ids)[:, :1] > 9, hot(ids), 0) @ w,
    "other rows": lambda w, ids: jnp.where(keep(w, ids)[:, :1] > 9, 0, hot(ids)).T @ keep(w, ids),
    "another number": lambda w, ids: jnp.where(at(ids), w[0, 0], ZERO) @ w,
    "one of a batch": lambda w, ids: jax.vmap(jnp.dot)(hot(ids), jnp.stack([w] * 9)),
    "two sums": lambda w, ids: jnp.tensordot(hot(ids[:N], axis=0), w @ w.T, 2),
    "along the other axis": lambda w, ids: hot(ids, axis=0) @ keep(w, ids),
    "one for all": lambda w, ids: jnp.broadcast_to(hot(ids[0]), (3, N)) @ w,
    "a unit matrix": lambda w, ids: jnp.eye(N)[ids] @ w,
    "another diagonal": lambda w, ids: jnp.eye(N + 2, N, 1)[ids] @ w,
    "in steps": lambda w, ids: lax.map(lambda x: x.T @ w[:3], hot(ids.reshape(3, 3))),
    "a factor of each step": lambda w, ids: lax.map(
        lambda x: x @ w, hot(ids) * keep(w, ids)[:, :1]
    ),
    "bags": lambda w, ids: hot(three(ids)).sum(1) @ w,
    "weighed bags": lambda w, ids: jnp.einsum("nk,nkc,cd->nd", WEIGHTS, hot(three(ids)), w),
    "rows added to bags": lambda w, ids: hot(three(ids)).sum(1).T @ keep(w, ids),
    "a place that comes often": lambda w, ids: (
        jnp.broadcast_to(hot(ids)[:, None], (9, 2, N)).sum(1) @ w
    ),
    "to two places": lambda w, ids: jnp.einsum(
        "tkec,td->ecd", both(three(ids), three(CLUSTERS)), keep(w, ids)
    ),
    "from two places": lambda w, ids: jnp.einsum(
        "tec,ecd->td",
        jnp.einsum("tk,tkec->tec", WEIGHTS, both(three(ids), three(CLUSTERS))),
        w[:, None] * w[None],
    ),
    "places in a queue": lambda w, ids: jnp.einsum(
        "tec,td->ecd", jax.nn.one_hot(queue(ids) - 1, 3), keep(w, ids)
    ),
    "of those that come first": lambda w, ids: jnp.einsum(
        "tec,td->ecd",
        hot(ids)[:, :, None]
        * jax.nn.one_hot(jnp.where(queue(ids) <= 2, queue(ids), np.int32(0)) - 1, 3),
        keep(w, ids),
    ),
    "from places in a queue": lambda w, ids: jnp.einsum(
        "tec,ecd->td", jax.nn.one_hot(queue(ids) - 1, N), w[:, None] * jnp.ones((1, N, 1))
    ),
    "a queue from its second place on": lambda w, ids: jnp.einsum(
        "tec,te->c", jax.nn.one_hot(queue(ids), 3), keep(w, ids) @ w.T
    ),
    "one of three queues": lambda w, ids: jnp.einsum(
        "tec,td->ecd",
        jax.nn.one_hot(
            lax.select_n(
                jnp.resize(ids, (9, N)) % 3, jnp.zeros((9, N), int), queue(ids), queue(CLUSTERS)
            )
            - 1,
            3,
        ),
        keep(w, ids),
    ),
    "a queue or the second place": lambda w, ids: jnp.einsum(
        "tec,td->ecd",
        jax.nn.one_hot(jnp.where(queue(ids) > 1, queue(ids), np.int32(2)) - 1, 3),
        keep(w, ids),
    ),
    "two queues": lambda w, ids: jnp.einsum(
        "tkec,td->ecd",
        jax.nn.one_hot(jnp.stack([queue(ids), queue(CLUSTERS)], 1) - 1, 3),
        keep(w, ids),
    ),
    "integers": lambda w, ids: hot(ids).astype(int).T @ jnp.nan_to_num(keep(w, ids)).astype(int),
}  # fmt: skip


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_sums(name, bad):
    """(1, 2, 3) Rows that are read, multiplied, added up or compared, at one place or several."""
    w = jnp.arange(1.0, 25.0).reshape(N, M)
    w = w.at[3, 1].set(jnp.inf).at[1, 0].set(jnp.nan) if bad else w
    alone(READ, SUMS[name], w, jnp.asarray(IDS), fires=True)


def test_rows_that_are_added_up():
    """(1, 3) Where another row is not finite, zero times it is added."""
    check_rewrite(
        READ,
        lambda x, ids: hot(ids, 3).T @ x,
        "f32[4,2]",
        "i32[4]",
        diff="""
          fn (x:f32[4,2], ids:i32[4]) {
            b:i32[4,1] = broadcast_in_dim[dims=(0,)] ids
            i:i32[1,3] = iota[dimension=1]
            e:bool[4,3] = eq b i
            c:f32[4,3] = convert_element_type e
            t:f32[3,4] = transpose c
        -   d:f32[3,2] = dot_general t x
        +   a:f32[4,2] = abs x
        +   r:f32[] = reduce_max[axes=(0, 1)] a
        +   l:bool[] = lt r inf
        +   n:bool[] = not l
        +   b1:f32[3,2] = broadcast_in_dim 0.0
        +   s:i32[4,1] = stack[axis=1] ids
        +   s1:f32[3,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b1 s x
        +   c1:i32[] = convert_element_type n
        +   r1:f32[3,2] = cond n {
        +     i1:bool[4,2] = is_finite x
        +     n:bool[4,2] = not i1
        +     c1:i32[4,2] = convert_element_type n
        +     r:i32[2] = reduce_sum[axes=(0,)] c1
        +     i2:bool[4,2] = is_finite x
        +     n1:bool[4,2] = not i2
        +     c2:i32[4,2] = convert_element_type n1
        +     b1:i32[3,2] = broadcast_in_dim 0
        +     s:i32[4,1] = stack[axis=1] ids
        +     s2:i32[3,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b1 s c2
        +     b2:i32[3,2] = broadcast_in_dim r
        +     g:bool[3,2] = gt b2 s2
        +     b3:f32[3,2] = broadcast_in_dim nan
        +     s3:f32[3,2] = select_n g s1 b3
        +     yield s3
        +   } else {
        +     yield s1
        +   }
        -   return d
        +   return r1
          }
        """,  # noqa: E501
    )


def test_values_of_actions():
    """(1) The product is made at the places only."""
    check_rewrite(
        READ,
        lambda x, w, ids: jnp.where(jnp.arange(3) == ids[:, None], x @ w, ZERO).sum(1),
        "f32[4,2]",
        "f32[2,3]",
        "i32[4]",
        diff="""
          fn (x:f32[4,2], w:f32[2,3], ids:i32[4]) {
            i:i32[3] = iota
            b:i32[4,1] = broadcast_in_dim[dims=(0,)] ids
            b1:i32[1,3] = broadcast_in_dim i
            e:bool[4,3] = eq b1 b
            d:f32[4,3] = dot_general x w
            b2:f32[4,3] = broadcast_in_dim 0.0
            s:f32[4,3] = select_n e b2 d
        +   t:f32[3,2] = transpose w
        +   s1:i32[4,1] = stack[axis=1] ids
        +   g:f32[4,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=fill_or_drop, fill_value=0] t s1
        +   m:f32[4,2] = mul x g
        +   g1:bool[4] = ge ids 0
        +   l:bool[4] = lt ids 3
        +   a:bool[4] = and g1 l
        +   b3:bool[4,2] = broadcast_in_dim[dims=(0,)] a
        +   b4:f32[4,2] = broadcast_in_dim 0.0
        +   s2:f32[4,2] = select_n b3 b4 m
        -   r:f32[4] = reduce_sum[axes=(1,)] s
        +   r:f32[4] = reduce_sum[axes=(1,)] s2
            return r
          }
        """,  # noqa: E501
    )


def equal(one, two):
    """Where the places along two axes are the same."""
    places = [lax.broadcasted_iota(np.int32, (N, N), d) for d in (one, two)]
    return (places[0] == places[1]).astype(np.float32)


def gathered(table, ids, axis, along=0):
    """Rows of a table, along this axis of the result, at places along another."""
    numbers = lax.GatherDimensionNumbers((axis,), (0,), (along,))
    return lax.gather(table, ids[:N, None], numbers, (1, N), mode="clip")


@pytest.mark.parametrize(
    "product",
    [
        pytest.param(lambda w, ids: (1 - hot(ids)) @ w, id="zero, not one"),
        pytest.param(lambda w, ids: hot(ids) @ w[:, :0], id="no numbers"),
        pytest.param(lambda w, ids: (w[:, 0] > 3).astype(w.dtype) @ w, id="another mask"),
        pytest.param(lambda w, ids: jnp.where(at(ids), 1.0, 2.0) @ w, id="two elsewhere"),
        pytest.param(lambda w, ids: jnp.where(at(ids), w[0, 0], 1.0).sum(1), id="ones elsewhere"),
        pytest.param(lambda w, ids: jnp.where(at(ids), 1.0, -9.0).max(1), id="less elsewhere"),
        pytest.param(lambda w, ids: hot(ids) @ w.astype(jnp.complex64), id="complex numbers"),
        pytest.param(lambda w, ids: jnp.eye(N).at[ids].get(mode="fill") @ w, id="filled rows"),
        pytest.param(lambda w, ids: w[ids] @ w.T, id="rows of another matrix"),
        pytest.param(lambda w, ids: equal(0, 0)[ids] @ w, id="rows of ones"),
        pytest.param(lambda w, ids: equal(0, 1)[:, ids].T @ w, id="columns"),
        pytest.param(lambda w, ids: equal(0, 1)[ids, :3] @ w[:3], id="parts of rows"),
        pytest.param(lambda w, ids: gathered(equal(0, 1), ids, 0) @ w, id="rows along columns"),
        pytest.param(lambda w, ids: gathered(equal(0, 1), ids, 1, 1) @ w, id="the first row"),
        pytest.param(lambda w, ids: (1 - hot(three(ids))).sum(1) @ w, id="sums of ones"),
        pytest.param(lambda w, ids: hot(ids)[:, :, None] * w, id="no sum"),
    ],
)
def test_other_products(product):
    """(1, 2, 3) More than one place, other numbers."""
    w = jnp.arange(1.0, 25.0).reshape(N, M)
    alone(READ, product, w, jnp.asarray(IDS), fires=False)


def test_what_takes_as_long_to_look_at():
    """A table that each step trains is looked at in each step."""

    def trained(w, ids):
        def step(w, i):
            return w - 0.1 * jnp.sin(hot(i, 600) @ w), None

        return lax.scan(step, w, ids)[0]

    with using(EAGER.of_backend("cpu")):
        check_refuses(READ, trained, "f32[600,24]", "i32[9]", because="takes as long")


def test_a_product_that_is_differentiated():
    """(4) It stays."""
    alone(READ, CHARACTERS, "f32[6,4]", "i32[3]", phase="differentiable", fires=False)


def test_a_product_that_is_differentiated_again():
    """(4) JAX is about to differentiate what it has differentiated."""
    program = traced(CHARACTERS, "f32[6,4]", "i32[3]")
    journal = resolve([READ]).run(program, "differentiated").journal
    assert not journal.record(READ.name, False).rewrites


@pytest.mark.parametrize("name", ["rows added up", "of pairs", "from places", "chosen", "bags"])
def test_derivatives_of_sums(name):
    """(4) In both orders, and forward."""
    w = jnp.arange(1.0, 25.0).reshape(N, M) / 24
    assert_same_derivatives(
        lambda w: jnp.sin(SUMS[name](w, IDS)).sum(),
        optimize(lambda w: jnp.sin(SUMS[name](w, IDS)).sum()),
        w,
    )
    plain = jax.grad(lambda w: jnp.sin(SUMS[name](w, IDS)).sum())
    np.testing.assert_allclose(optimize(plain)(w), plain(w), rtol=1e-5, atol=1e-6)


def test_zeros_of_a_cotangent():
    """(3) Those that a transposed select makes are symbolic; those of a mask are multiplied."""
    x, w = jnp.ones((N, M)), jnp.arange(1.0, 25.0).reshape(N, M).at[3, 1].set(jnp.inf)
    selected = lambda x: jnp.where(diagonal(), x @ w.T, 0).sum()
    multiplied = lambda x: ((x @ w.T) * diagonal()).sum()
    assert_same_bits(optimize(jax.grad(selected))(x), w)
    assert_same_bits(optimize(jax.grad(multiplied))(x), jax.grad(multiplied)(x))


def test_too_many_to_count(monkeypatch):
    """(5) Numbers that are not finite are counted in 32 bits."""
    monkeypatch.setattr(limits, "COUNTED", N * M)
    check_refuses(
        READ, lambda w, ids: hot(ids) @ w, "f32[6,4]", "i32[9]", because="too many numbers"
    )


@pytest.mark.parametrize("bad", [False, True])
def test_counts_that_would_be_too_large(monkeypatch, bad):
    """(5) Of numbers that are read for all places."""
    monkeypatch.setattr(limits, "COUNTED", 50)
    w = jnp.arange(1.0, 25.0).reshape(N, M)
    w = w.at[3, 1].set(jnp.inf) if bad else w
    for name in ("pairs", "values of actions", "weighed bags"):
        alone(READ, SUMS[name], w, jnp.asarray(IDS), fires=True)


def test_gradients():
    """(4) Once nothing differentiates the product: cotangents that are not finite, too."""
    w = jnp.arange(1.0, 25.0).reshape(N, M) / 24
    for scale in (1.0, jnp.inf):
        loss = lambda w, s=scale: (CHARACTERS(w, IDS)[1].sum(0) * s).sum()
        want = jax.grad(loss)(w)
        for got in (optimize(jax.grad(loss))(w), jax.grad(optimize(loss))(w)):
            np.testing.assert_allclose(want, got, rtol=1e-6)
    tangents = jax.jvp(optimize(CHARACTERS), (w, IDS), (w, np.zeros(IDS.shape, jax.dtypes.float0)))
    plain = jax.jvp(CHARACTERS, (w, IDS), (w, np.zeros(IDS.shape, jax.dtypes.float0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tangents, plain)
