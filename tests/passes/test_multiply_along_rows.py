"""A product reads its larger factor row by row, not across its rows."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.codegen.multiply_along_rows import MultiplyAlongRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

ALONG = MultiplyAlongRows()


@pytest.fixture(autouse=True)
def quick():
    """Programs here are small."""
    with using(CostModel().but(kernel=0.0, cached=0.0, first_level=0)):
        yield


def product(*numbers):
    """A product by its dimension numbers: terms of both factors, and batches."""
    return lambda a, b: lax.dot_general(a, b, numbers)


ACROSS = product(((0,), (0,)), ((), ()))
"""Both factors are summed along their columns."""


def test_a_vector():
    check_rewrite(
        ALONG,
        lambda a, v: a.T @ v,
        "f32[4,6]",
        "f32[4]",
        diff="""
          fn (a:f32[4,6], v:f32[4]) {
            t:f32[6,4] = transpose a
        -   d:f32[6] = dot_general t v
        +   d:f32[6] = dot_general[contract=0x0] a v
            return d
          }
        """,
    )


def test_matrices():
    check_rewrite(
        ALONG,
        ACROSS,
        "f32[4,6]",
        "f32[4,2]",
        diff="""
          fn (a:f32[4,6], b:f32[4,2]) {
        -   d:f32[6,2] = dot_general[contract=0x0] a b
        +   d1:f32[2,6] = dot_general[contract=0x0] b a
        +   o:f32[2,6] = optimization_barrier d1
        +   t:f32[6,2] = transpose o
        -   return d
        +   return t
          }
        """,
    )


def test_a_gradient():
    """JAX transposes a product, of which XLA makes one of the factors in the other order."""
    check_rewrite(
        ALONG,
        jax.grad(lambda w, x: jnp.sum(x @ w)),
        "f32[6,2]",
        "f32[4,6]",
        simplify=True,
        diff="""
          fn (w:f32[6,2], x:f32[4,6]) {
            b:f32[4,2] = broadcast_in_dim 1.0
            d:f32[2,6] = dot_general[contract=0x0] b x
        +   o:f32[2,6] = optimization_barrier d
        -   t:f32[6,2] = transpose d
        +   t:f32[6,2] = transpose o
            return t
          }
        """,
    )


@pytest.mark.parametrize(
    ("program", "types"),
    [
        pytest.param(lambda a, v: v @ a.T, ["4,6", "6"], id="from the left"),
        pytest.param(lambda a, v: a.T @ v[:, None], ["4,6", "4"], id="of one column"),
        pytest.param(lambda a, v: jnp.einsum("kji,j->ki", a.swapaxes(1, 2), v),
                     ["3,6,4", "4"], id="rows of rows"),
        pytest.param(lambda a, v: jnp.tensordot(a.transpose(2, 1, 0), v, 2),
                     ["3,4,6", "4,3"], id="sums along two axes"),
        pytest.param(lambda a, b: a.T @ b, ["4,6", "4,2"], id="a transpose"),
        pytest.param(lambda a, b: lax.dot_general(a.T, b, (((1,), (1,)), ((), ()))),
                     ["4,6", "2,4"], id="rows of the other factor"),
        pytest.param(product(((1,), (1,)), ((0,), (0,))), ["3,4,6", "3,4,2"], id="a batch"),
        pytest.param(product(((0,), (0,)), ((), ())), ["4,6", "4,2,1"], id="more axes"),
    ],
)  # fmt: skip
def test_other_products(program, types):
    alone(ALONG, program, *(f"f32[{shape}]" for shape in types), fires=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i32", "c64"])
def test_types(dtype):
    """Of any numbers by a vector; complex matrices take longer."""
    alone(ALONG, lambda a, v: a.T @ v, f"{dtype}[4,6]", f"{dtype}[4]", fires=True)
    alone(ALONG, ACROSS, f"{dtype}[4,6]", f"{dtype}[4,2]", fires=dtype != "c64")


def test_what_a_product_says_of_its_factors():
    """The precision of each, and the type of the sum."""

    def program(a, b):
        precision = lax.Precision.HIGHEST, lax.Precision.DEFAULT
        numbers = ((0,), (0,)), ((), ())
        return lax.dot_general(a, b, numbers, precision, jnp.float32)

    graph = alone(ALONG, program, "bf16[4,6]", "bf16[4,2]", fires=True)
    (made,) = [op for op in graph.walk() if op.name == "dot_general"]
    assert made.params["precision"] == (lax.Precision.DEFAULT, lax.Precision.HIGHEST)


def lasso(a, b):
    """Steps of a gradient, by vectors."""

    def step(_, x):
        z = x - 0.01 * (a.T @ (a @ x - b))
        return jnp.sign(z) * jnp.maximum(jnp.abs(z) - 0.001, 0)

    return jnp.sum(lax.fori_loop(0, 3, step, jnp.ones(a.shape[1])) ** 2)


def iteration(a, b):
    """Of a subspace, by matrices."""
    return jnp.sum(lax.fori_loop(0, 3, lambda _, q: a.T @ (a @ q) * 0.1, b) ** 2)


@pytest.mark.parametrize(("program", "shape"), [(lasso, (4,)), (iteration, (6, 2))])
def test_loops(program, shape):
    """Values, gradients and forward mode; and batches, whose vectors are a matrix."""
    a = jax.random.normal(jax.random.key(0), (4, 6))
    b = jax.random.normal(jax.random.key(1), shape)
    alone(ALONG, program, a, b, fires=True)
    made = optimize(program)
    assert_close(made(a, b), program(a, b))
    assert_close(jax.grad(made, (0, 1))(a, b), jax.grad(program, (0, 1))(a, b))
    assert_close(jax.jvp(made, (a, b), (a, b)), jax.jvp(program, (a, b), (a, b)))
    batch = a, jnp.stack([b, -b, 2 * b])
    assert_close(jax.vmap(made, (None, 0))(*batch), jax.vmap(program, (None, 0))(*batch))


@pytest.mark.parametrize(
    ("program", "types"),
    [
        pytest.param(lambda a, b: (a.T, b), ["4,6", "4"], id="no product"),
        pytest.param(ACROSS, ["4,6", "4"], id="a vector by a matrix as it lies"),
        pytest.param(product(((1,), (0,)), ((), ())), ["6,4", "4,2"], id="row by row"),
        pytest.param(product(((1,), (1,)), ((), ())), ["6,4", "2,4"], id="rows by rows"),
        pytest.param(lambda a, b: ACROSS(b, a), ["4,6", "4,2"], id="the larger one second"),
        pytest.param(lambda a, b: ACROSS(a, b).T, ["4,6", "4,2"], id="XLA swaps them"),
        pytest.param(product(((), ()), ((), ())), ["4,6", "2"], id="a product that sums nothing"),
        pytest.param(lambda v, w: v @ w, ["4", "4"], id="of vectors"),
        pytest.param(lambda a, v: jax.vmap(jnp.dot)(a.swapaxes(1, 2), v), ["3,4,6", "3,4"],
                     id="vectors in a batch"),
        pytest.param(product(((0, 1), (0, 1)), ((), ())), ["2,3,6", "2,3,2"],
                     id="copied first: several axes"),
    ],
)  # fmt: skip
def test_other_programs(program, types):
    alone(ALONG, program, *(f"f32[{shape}]" for shape in types), fires=False)


@pytest.mark.parametrize(
    ("read", "fires"), [(lambda t, b: t * 2, False), (lambda t, b: t @ b, True)]
)
def test_a_transpose_that_is_read(read, fires):
    """It is an array then, but where a matrix is multiplied by it."""

    def program(a, b):
        t = a.T
        return t @ b[0], read(t, b)

    alone(ALONG, program, "f32[4,6]", "f32[4,4]", fires=fires)


def test_a_transpose_outside_of_the_loop():
    """A vector needs no transpose at all; by matrices its rows are read."""

    def program(a, v):
        t = a.T
        return lax.scan(lambda c, x: (c, t @ x), 0, v)[1]

    alone(ALONG, program, "f32[4,6]", "f32[3,4]", fires=True)
    alone(ALONG, program, "f32[4,6]", "f32[3,4,2]", fires=False)


def test_axes_that_would_change_places():
    """(1)"""

    def program(a, v):
        return jnp.einsum("jik,k->ji", a.transpose(1, 0, 2), v)

    alone(ALONG, program, "f32[3,6,4]", "f32[4]", fires=False)


@pytest.mark.parametrize("shape", ["f32[4]", "f32[4,2]"])
def test_devices_that_hold_parts(shape):
    """(2)"""
    mesh = jax.make_mesh((1,), ("x",), (AxisType.Explicit,))

    def program(a, b):
        return lax.dot_general(a, b, (((0,), (0,)), ((), ())), out_sharding=P())

    with jax.set_mesh(mesh):
        alone(ALONG, program, "f32[4,6]", shape, fires=False)


def test_small_factors():
    """Starting an op takes longer."""
    because = "takes no longer"
    with using(CostModel()):
        check_refuses(ALONG, lambda a, v: a.T @ v, "f32[16,16]", "f32[16]", because=because)
        alone(ALONG, lambda a, v: a.T @ v, "f32[24,24]", "f32[24]", fires=True)
        check_refuses(ALONG, ACROSS, "f32[64,64]", "f32[64,2]", because=because)
        alone(ALONG, ACROSS, "f32[128,128]", "f32[128,2]", fires=True)
        check_refuses(ALONG, ACROSS, "f32[128,128]", "f32[128,100]", because=because)


def test_devices_that_read_as_quickly_across():
    with using(CostModel().but(across=0.0)):
        because = "takes no longer"
        check_refuses(ALONG, lambda a, v: a.T @ v, "f32[4,6]", "f32[4]", because=because)
        check_refuses(ALONG, ACROSS, "f32[4,6]", "f32[4,2]", because=because)


def test_results_that_are_written_again():
    """Writing a result again takes longer where it is larger than the factor."""
    with using(CostModel().but(kernel=0.0, first_level=0)):
        check_refuses(ALONG, ACROSS, "f32[2,90]", "f32[2,64]", because="takes no longer")
        alone(ALONG, ACROSS, "f32[90,90]", "f32[90,4]", fires=True)
