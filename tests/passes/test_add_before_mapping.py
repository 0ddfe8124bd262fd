"""Rows that belong to one row of a table are added up before they are mapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.passes.rows.add_before_mapping import AddBeforeMapping
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone
from tests.passes.test_map_before_reading import norm, normal, read
from tests.prices import EAGER

PASS = AddBeforeMapping()
COLUMNS = (((0,), (0,)), ((), ()))


def add(c, i, x, mode="clip", axis=0):
    """Rows that are added to an array at places of any shape."""
    lead = range(axis, axis + i.ndim - 1)
    window = tuple(a for a in range(x.ndim) if a not in lead)
    return lax.scatter_add(
        c, i, x, lax.ScatterDimensionNumbers(window, (axis,), (axis,)), mode=mode
    )


def test_a_sum():
    """(1, 2, 3) Rows are added up, then multiplied; those at no place stay zero."""
    check_rewrite(
        PASS,
        lambda c, i, g, w: add(c, i, g @ w),
        "f32[400,48]",
        "i32[4000,1]",
        "f32[4000,48]",
        "f32[48,48]",
        simplify=True,
        diff="""
          fn (c:f32[400,48], i:i32[4000,1], g:f32[4000,48], w:f32[48,48]) {
        -   d:f32[4000,48] = dot_general g w
        +   b:f32[400,48] = broadcast_in_dim 0.0
        -   s:f32[400,48] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] c i d
        +   s:f32[400,48] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b i g
        +   d1:f32[400,48] = dot_general s w
        +   b1:bool[400] = broadcast_in_dim False
        +   b2:bool[4000] = broadcast_in_dim True
        +   s1:bool[400] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b1 i b2
        +   b3:bool[400,48] = broadcast_in_dim[dims=(0,)] s1
        +   s2:f32[400,48] = select_n b3 b d1
        +   a:f32[400,48] = add c s2
        -   return s
        +   return a
          }
        """,  # noqa: E501
    )


def test_a_gradient_of_a_matrix():
    """(1, 2, 3) Cotangents are added up, then multiplied with the table."""
    check_rewrite(
        PASS,
        lambda h, i, g: lax.dot_general(read(h, i), g, COLUMNS),
        "f32[400,48]",
        "i32[4000,1]",
        "f32[4000,48]",
        simplify=True,
        diff="""
          fn (h:f32[400,48], i:i32[4000,1], g:f32[4000,48]) {
        -   g1:f32[4000,48] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 48), mode=clip] h i
        +   r:i32[4000] = reshape i
        +   s:i32[1] = slice[:1] r
        +   s1:i32[] = squeeze s
        +   c:i32[] = clamp 0 s1 399
        +   d1:f32[1,48] = dynamic_slice h c 0
        +   b:bool[400] = broadcast_in_dim False
        +   b1:bool[4000] = broadcast_in_dim True
        +   s2:bool[400] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b i b1
        +   b2:bool[400,48] = broadcast_in_dim[dims=(0,)] s2
        +   b3:f32[400,48] = broadcast_in_dim d1
        +   s3:f32[400,48] = select_n b2 b3 h
        +   b4:f32[400,48] = broadcast_in_dim 0.0
        +   s4:f32[400,48] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b4 i g
        -   d:f32[48,48] = dot_general[contract=0x0] g1 g
        +   d:f32[48,48] = dot_general[contract=0x0] s3 s4
            return d
          }
        """,  # noqa: E501
    )


def weights(i):
    """A number for each place."""
    return jnp.cos(jnp.arange(i.size, dtype=np.float32)).reshape(i.shape[:-1])


def model(mode):
    """Bytes that are embedded, normalised and multiplied."""

    def loss(h, s, w, i):
        x = jnp.tanh(norm(read(h, i, mode)) * s)
        return jnp.sum(
            lax.select(jnp.isnan(y := x @ w), jnp.zeros_like(y), jnp.sin(y) * weights(i)[..., None])
        )

    return loss


def graph(h, s, w, i):
    """Messages from one end of edges to the other."""
    for _ in range(2):
        m = jnp.tanh(read(h, i[..., :1]) @ w) * s
        h = h + add(jnp.zeros_like(h), i[..., 1:], m @ w)
    return jnp.sum(jnp.tanh(h / 99.0))


def columns(h, s, w, i):
    return jnp.sum(jnp.sin(jnp.tensordot(w, read((h * s).T, i, axis=1), 1)) * weights(i))


def filled_columns(h, s, w, i):
    x = read((h * s).T, i, "fill", axis=1)
    return jnp.sum(jnp.sin(jnp.tensordot(w, jnp.where(jnp.isnan(x), 0.0, x), 1)) * weights(i))


def both(h, s, w, i):
    """A loss that reads two tables, and multiplies what it reads by itself."""
    x, y = read(h, i), read(h * s, i)
    return jnp.sum((jnp.sin((x * y) @ w) * x + y @ w) * weights(i)[:, None])


GRADIENTS = {
    "clamped": (model("clip"), (4, 512)),
    "filled": (model("fill"), (4, 512)),
    "one axis": (model("fill"), (2048,)),
    "columns": (columns, (2048,)),
    "columns of places": (columns, (4, 512)),
    "filled columns": (filled_columns, (4, 512)),
    "two tables": (both, (2048,)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    """Places out of range among them; in both orders."""
    loss, places = GRADIENTS[name]
    i = np.random.default_rng(0).integers(-9, 80, (*places, 1)).astype(np.int32)
    args = normal(64, 48), normal(48), normal(48, 48), i
    gradient = jax.grad(loss, (0, 1, 2))
    made = alone(PASS, gradient, *args, fires=True)
    products = [op for op in made.walk() if op.name == "dot_general"]
    assert min(max(v.size for v in op.operands) for op in products) <= 65 * 48
    assert_close(gradient(*args), optimize(gradient)(*args))
    assert_close(gradient(*args), jax.grad(optimize(loss), (0, 1, 2))(*args))


def test_messages():
    i = np.random.default_rng(0).integers(0, 64, (2048, 2)).astype(np.int32)
    args = normal(64, 48), normal(48), normal(48, 48) / 9, i
    gradient = jax.grad(graph, (0, 1, 2))
    alone(PASS, graph, *args, fires=True)
    alone(PASS, gradient, *args, fires=True)
    assert_close(graph(*args), optimize(graph)(*args))
    assert_close(gradient(*args), optimize(gradient)(*args))
    assert_close(gradient(*args), jax.grad(optimize(graph), (0, 1, 2))(*args))


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_rows_at_no_place(mode):
    """(5) They are not finite, and no part of a gradient; nor is the gradient of a gradient."""
    i = np.random.default_rng(0).integers(0, 64, (2048, 1)).astype(np.int32)
    h = np.concatenate([normal(64, 48), np.full((8, 48), np.nan, np.float32)])
    s, w = normal(48), normal(48, 48)
    gradient = jax.grad(model(mode), (0, 1, 2))
    expected = gradient(h, s, w, i)
    assert not any(np.isnan(x).any() for x in expected)
    assert_close(expected, optimize(gradient)(h, s, w, i))
    assert_close(expected, jax.grad(optimize(model(mode)), (0, 1, 2))(h, s, w, i))
    again = lambda g: jax.grad(lambda w: sum(jnp.sum(x[:64] ** 2) for x in g(h, s, w, i)))
    assert_close(again(gradient)(w), again(optimize(gradient))(w))
    assert_close(again(gradient)(w), again(jax.grad(optimize(model(mode)), (0, 1, 2)))(w))


@pytest.mark.parametrize(
    ("program", "types"),
    {
        "another place": (  # (1)
            lambda h, i, j, g: add(h, j, (g @ h.T @ h) * read(h, i)),
            ["f32[64,48]", "i32[2048,1]", "i32[2048,1]", "f32[2048,48]"],
        ),
        "tables of other sizes": (  # (1)
            lambda h, k, i, g: lax.dot_general(read(h, i) * read(k, i), g, COLUMNS),
            ["f32[64,48]", "f32[65,48]", "i32[2048,1]", "f32[2048,48]"],
        ),
        "filled and clamped": (  # (1)
            lambda h, i, g: lax.dot_general(read(h, i) * read(h, i, "fill"), g, COLUMNS),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]"],
        ),
        "not linear": (  # (2)
            lambda c, i, g, w: add(c, i, jnp.tanh(g @ w)),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]", "f32[48,48]"],
        ),
        "beside other rows": (  # (2)
            lambda c, i, g, w: add(c, i, (g @ w) * g),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]", "f32[48,48]"],
        ),
        "by other matrices": (  # (2)
            lambda c, i, g, w: add(c, i, jnp.einsum("ij,ijk->ik", g, w)),
            ["f32[64,8]", "i32[2048,1]", "f32[2048,8]", "f32[2048,8,8]"],
        ),
        "places in another order": (  # (2)
            lambda c, i, g, w: add(c, i, jnp.swapaxes(g, 0, 1) @ w),
            ["f32[64,48]", "i32[32,64,1]", "f32[64,32,48]", "f32[48,48]"],
        ),
        "with rows of no table": (  # (3)
            lambda h, i, g, x: jnp.sum(read(h, i)) + lax.dot_general(x, g, COLUMNS),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]", "f32[2048,48]"],
        ),
        "multiplied with rows of a table and others": (  # (3)
            lambda h, i, g, x: lax.dot_general(read(h, i) * x, g, COLUMNS),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]", "f32[2048,48]"],
        ),
        "along another axis": (  # (3)
            lambda h, k, i, x: lax.dot_general(
                read(h, i) * x, read(k, i), (((0,), (1,)), ((), ()))
            ),
            ["f32[64,48]", "f32[64,2048]", "i32[2048,1]", "f32[2048,48]"],
        ),
        "along one axis of the places only": (  # (3)
            lambda h, k, i, x: lax.dot_general(
                read(h, i) * x, read(k, i), (((0, 1), (0, 2)), ((), ()))
            ),
            ["f32[64,48]", "f32[64,32]", "i32[64,32,1]", "f32[64,32,48]"],
        ),
        "mixed": (  # (2)
            lambda h, i, x: add(h, i, x @ read(h, i)),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,2048]"],
        ),
        "a matrix for each row of places": (  # (2)
            lambda c, i, g, w: add(c, i, jnp.einsum("btd,bde->bte", g, w)),
            ["f32[64,48]", "i32[4,512,1]", "f32[4,512,48]", "f32[4,48,48]"],
        ),
        "parts of rows": (  # (1)
            lambda c, i, g, w: add(c, i, (g @ w)[:, :40]),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]", "f32[48,48]"],
        ),
        "summed up in part": (  # (3)
            lambda h, i, g: jnp.einsum("btd,bte->bde", read(h, i), g),
            ["f32[64,48]", "i32[4,512,1]", "f32[4,512,48]"],
        ),
        "as many rows": (
            lambda c, i, g, w: add(c, i, g @ w),
            ["f32[4000,48]", "i32[2048,1]", "f32[2048,48]", "f32[48,48]"],
        ),
        "at no place": (
            lambda c, i, g, w: add(c, i, g @ w),
            ["f32[64,48]", "i32[0,1]", "f32[0,48]", "f32[48,48]"],
        ),
        "arithmetic": (
            lambda c, i, g: add(c, i, g * 2.0),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,48]"],
        ),
    }.values(),
)
def test_what_is_not_found(program, types):
    alone(PASS, program, *types, fires=False)


@pytest.mark.parametrize(
    ("program", "types"),
    {
        "of another table": (
            lambda h, i, x: add(h, 0 * i, x @ (y := read(h, i)) + y),
            ["f32[64,48]", "i32[2048,1]", "f32[2048,2048]"],
        ),
        "beside rows at other places": (  # (2)
            lambda h, k, i, g: add(
                h, i, lax.dot_general(g, read(k, i), (((2,), (3,)), ((0, 1), (1, 0))))
            ),
            ["f32[16,8]", "f32[16,8,8]", "i32[32,32,1]", "f32[32,32,8]"],
        ),
        "the same for all rows": (
            lambda h, i, x: add(h, i, (x @ (y := jnp.broadcast_to(h[0], (128, 128)))) * y),
            ["f32[64,128]", "i32[128,1]", "f32[128,128]"],
        ),
    }.values(),
)
def test_what_is_read_as_a_whole_and_by_rows(program, types):
    """(2) What all rows are multiplied by has no rows that could be added up."""
    with using(EAGER):
        alone(PASS, program, *types, fires=False)


def test_what_one_sum_reads_as_a_whole_and_another_by_rows():
    """(2) One of them is left."""
    program = lambda h, i, g, w: (add(h, i, g @ w), add(h, i, (g * 2.0) @ g.T @ g))
    with using(EAGER):
        types = "f32[64,128]", "i32[128,1]", "f32[128,128]", "f32[128,128]"
        graph = alone(PASS, program, *types, fires=True)
    assert sum(op.name == "scatter-add" for op in graph.walk()) == 2


@pytest.mark.parametrize(
    ("types", "because"),
    {
        "rounded": (  # (4)
            ["bf16[64,48]", "i32[2048,1]", "bf16[2048,48]", "bf16[48,48]"],
            "bfloat16 would be rounded before they are added",
        ),
        "wide": (
            ["f32[1000,8]", "i32[2048,1]", "f32[2048,256]", "f32[256,8]"],
            "the sums take more memory",
        ),
        "few": (["f32[400,4]", "i32[500,1]", "f32[500,4]", "f32[4,4]"], "takes no longer"),
    }.values(),
)
def test_what_is_refused(types, because):
    check_refuses(PASS, lambda c, i, g, w: add(c, i, g @ w), *types, because=because)


def test_places_of_64_bits():
    """(1) XLA may read them as shorter ones."""
    with jax.enable_x64(True):
        types = "f32[64,48]", "i64[2048,1]", "f32[2048,48]", "f32[48,48]"
        alone(PASS, lambda c, i, g, w: add(c, i, g @ w), *types, fires=False)


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_on_devices(axis):
    """(1) A type says on which device the rows are."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    place = NamedSharding(mesh, PartitionSpec(None, axis))
    c = jax.device_put(np.ones((64, 48), np.float32), place)
    g = jax.device_put(np.ones((2048, 48), np.float32), place)
    with jax.set_mesh(mesh):
        alone(
            PASS,
            lambda c, i, g, w: add(c, i, lax.reshape(g @ w, g.shape, out_sharding=place.spec)),
            c,
            "i32[2048,1]",
            g,
            "f32[48,48]",
            fires=axis is None,
        )
