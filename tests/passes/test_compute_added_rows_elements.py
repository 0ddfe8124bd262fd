"""What is made of zeros but for elements is computed from the elements (`compute-added-rows`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.analysis.rows.added_points import added_points
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.rows.compute_added_rows import ComputeAddedRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, traced
from tests.loops import alone

ADDED = ComputeAddedRows()
TYPES = "f32[64,16]", "f32[16,32]", "i32[5,2]"


@pytest.fixture(autouse=True)
def quick_starts():
    """Programs here are small."""
    with using(CostModel().but(kernel=0.0)):
        yield


def gradient(read):
    """Of elements of a product that are read at several places."""
    return jax.grad(lambda x, w, at: jnp.nansum(read(x, w, at) ** 2), (0, 1))


def added(u, at, shape=(64, 32)):
    numbers = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
    return lax.scatter_add(jnp.zeros(shape), at, u, numbers, mode="clip")


def test_text():
    """(2) Each element adds to one sum."""
    check_rewrite(
        ADDED,
        lambda u, at: jnp.sum(added(u, at), 1),
        "f32[5]",
        "i32[5,2]",
        simplify=True,
        diff="""
          fn (u:f32[5], at:i32[5,2]) {
        -   b:f32[64,32] = broadcast_in_dim 0.0
        -   s:f32[64,32] = scatter-add[inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1), mode=clip] b at u
        -   r:f32[64] = reduce_sum[axes=(1,)] s
        +   s1:i32[5,1] = slice[:, :1] at
        +   s2:i32[5] = squeeze s1
        +   c:i32[5] = clamp 0 s2 63
        +   b1:i32[5,1] = broadcast_in_dim[dims=(0,)] c
        +   b2:f32[64] = broadcast_in_dim 0.0
        +   s3:f32[64] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b2 b1 u
        -   return r
        +   return s3
          }
        """,  # noqa: E501
    )


READS = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
READ = {
    "elements": lambda x, w, at: jnp.tanh(x @ w)[at[:, 0], at[:, 1]],
    "clamped": lambda x, w, at: (x @ w).at[at[:, 0], at[:, 1]].get(mode="clip"),
    "filled": lambda x, w, at: (x @ w).at[at[:, 0], at[:, 1]].get(mode="fill"),
    "scaled": lambda x, w, at: (x @ w / (1 + x[:, :1] ** 2))[at[:, 0], at[:, 1]],
    "of rows of a batch": lambda x, w, at: jnp.take_along_axis(
        x[:5] @ jnp.concatenate([w] * 64, 1), at[:, :1], 1
    ),
    "batched slices": lambda x, w, at: jax.vmap(lambda i: (x @ w)[i[0], i[1]])(at),
    "of two products": lambda x, w, at: (x @ w @ w.T)[at[:2, 0], at[:2, 1]],
    "distances": lambda x, w, at: ((x[:, None] - w.T) ** 2).sum(-1)[at[:, 0], at[:, 1]],
    "rows between": lambda x, w, at: jnp.einsum("ki,ij->kij", x, w)[at[:, 0], :, at[:, 1]],
    "a biased product": lambda x, w, at: (x @ w + w[0])[at[:, 0], at[:, 1]],
}


@pytest.mark.parametrize("name", READ)
def test_gradients_of_reads(name):
    """(1, 2, 3) Wherever the elements are."""
    alone(ADDED, gradient(READ[name]), *TYPES, fires=True)


@pytest.mark.parametrize("name", READ)
def test_the_whole_pipeline(name):
    """No array of all pairs is left, and both orders give what JAX gives."""
    x, w = np.linspace(-1, 1, 64 * 16).reshape(64, 16), np.linspace(1, -1, 512).reshape(16, 32)
    at = jnp.array([[3, 4], [64, 2], [-1, 7], [3, 4], [63, 31]])
    given = x.astype(np.float32), w.astype(np.float32), at
    want = gradient(READ[name])(*given)
    assert_close(optimize(gradient(READ[name]))(*given), want)
    assert_close(gradient(optimize(READ[name]))(*given), want)


@pytest.mark.parametrize("dtype", ["i8", "u8", "u32", "i32"])
def test_places_of_other_types(dtype):
    """(1)"""
    alone(ADDED, gradient(READ["filled"]), *TYPES[:2], f"{dtype}[5,2]", fires=True)


@pytest.mark.parametrize(("dtype", "fires"), [("bf16", True), ("f16", False), ("c64", True)])
def test_numbers_of_other_types(dtype, fires):
    """(3) Terms that are multiplied one by one may overflow where their sum does not."""

    def transposed(u, at, w):
        made = lambda x: lax.gather(x @ w, at, READS, (1, 1), mode="clip")
        return jax.linear_transpose(made, jax.ShapeDtypeStruct((64, 16), u.dtype))(u)[0]

    alone(ADDED, transposed, f"{dtype}[5]", "i32[5,2]", f"{dtype}[16,32]", fires=fires)


def read_as_a_whole(u, at, w):
    c = added(u, at)
    return c, c.sum(0)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda u, at, w: added(u, at) @ w, id="a product of the forward pass"),
        pytest.param(lambda u, at, w: jnp.exp(added(u, at)).sum(0), id="not linear"),
        pytest.param(lambda u, at, w: jnp.sort(added(u, at), 0).sum(0), id="rows that meet"),
        pytest.param(read_as_a_whole, id="all of it is read"),
        pytest.param(lambda u, at, w: jnp.cumsum(added(u, at), 0).sum(1), id="sums so far"),
        pytest.param(lambda u, at, w: lax.rev(added(u, at), (1,)).sum(0), id="turned round"),
        pytest.param(lambda u, at, w: added(u[:0], at[:0], (0, 32)).sum(1), id="of no elements"),
        pytest.param(
            lambda u, at, w: added(u, at).at[at[:, 0]].add(w[:5, :1]).sum(0), id="rows, too"
        ),
    ],
)
def test_what_needs_more(program):
    """(1, 2, 3)"""
    alone(ADDED, program, "f32[5]", "i32[5,2]", "f32[32,16]", fires=False)


def test_what_overwrites():
    """(1) Of two elements that are written to one place, one counts."""

    def program(u, at):
        return jnp.zeros((64, 32)).at[at[:, 0], at[:, 1]].set(u).sum(0)

    alone(ADDED, program, "f32[5]", "i32[5,2]", fires=False)


def test_sums_over_all_elements():
    """(2) One number, of all that is added."""
    alone(ADDED, lambda u, at: added(u, at).sum(), "f32[5]", "i32[5,2]", fires=True)
    alone(ADDED, lambda u, at: added(u, at).sum(1), "f32[5]", "i32[5,2]", fires=True)


def test_elements_that_are_added_twice():
    """(1) One after the other, the second where the first may have been."""

    def program(u, at):
        numbers = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
        c = lax.scatter_add(added(u, at), at[:4], u[:4] * 2, numbers, mode="fill")
        return jnp.sum(c, 1)

    graph = alone(ADDED, program, "f32[5]", "i32[5,2]", fires=True)
    assert any(op.name == "concatenate" and op.result.shape == (9, 1, 1) for op in graph.walk())


def test_elements_in_other_numbers():
    """(1) The array is no zeros."""
    numbers = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))

    def program(u, at, w):
        return lax.scatter_add(w, at, u, numbers).sum(1)

    def looped(u, at):
        step = lambda c, row: (c.at[row[1][0], row[1][1]].add(row[0]), None)
        return lax.scan(step, added(u, at), (u, at))[0].sum(1)

    alone(ADDED, program, "f32[5]", "i32[5,2]", "f32[32,16]", fires=False)
    alone(ADDED, looped, "f32[5]", "i32[5,2]", fires=False)


def test_windows_of_an_image_are_left():
    """(2) Of a convolution."""

    def read(images, kernels, at):
        made = lax.conv_general_dilated(images, kernels, (1,), "SAME")
        return made[at[:, 0], at[:, 1]]

    alone(ADDED, gradient(read), "f32[32,2,16]", "f32[6,2,3]", "i32[2,2]", fires=False)


def test_many_elements_are_left_to_the_zeros():
    """No firing without gain."""
    program = gradient(READ["clamped"])
    check_refuses(ADDED, program, *TYPES[:2], "i32[512,2]", because="as long as")
    alone(ADDED, program, *TYPES[:2], "i32[2000,2]", fires=False)  # they are most of each product


@pytest.mark.parametrize("is_diagonal", [False, True])
def test_windows_of_factors_and_results(is_diagonal):
    """Elements at places that go on one by one add one window of each factor to one of a result."""
    read = lambda x, w, at: (x @ w)[jnp.arange(8) if is_diagonal else at, jnp.arange(8)]
    program = traced(gradient(read), "f32[8,4]", "f32[4,8]", "i32[8]")
    graph = import_jaxpr(program)
    (array,) = (op.result for op in graph.walk() if op.name == "scatter-add")
    counts = sorted(count for count, _ in added_points(array).windows)
    assert counts == ([1, 1, 1, 1] if is_diagonal else [1, 1, 8, 8])


def test_a_product_to_which_all_elements_add_is_computed_whole():
    """(2) Each of 256 elements adds a row to `d`, which has 256: what is made of `d` stays."""
    loss = lambda x, c, at: jnp.sum((x @ c @ x.T)[at, at])
    shapes = "f32[256,16]", "f32[16,16]", "i32[256]"
    graph = alone(ADDED, jax.grad(loss, (0, 1)), *shapes, fires=True)
    products = [op.result.shape for op in graph.walk() if op.name == "dot_general"]
    assert {(16, 16), (256, 16)} < {*products}


def test_elements_on_devices():
    """(2) Where they are is known to one device only."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = NamedSharding(mesh, PartitionSpec("x", None))
        x = jax.ShapeDtypeStruct((64, 16), "float32", sharding=rows)
        read = lambda x, w, at: (
            (x @ w).at[at[:, 0], at[:, 1]].get(mode="clip", out_sharding=PartitionSpec(None))
        )
        alone(ADDED, gradient(read), x, *TYPES[1:], fires=False)
