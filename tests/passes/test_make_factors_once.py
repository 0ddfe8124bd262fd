"""A factor of an outer product is made once, not for each element of the product."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir import devices
from jaxpr_opt.passes.codegen import make_factors_once
from jaxpr_opt.passes.codegen.make_factors_once import MakeFactorsOnce
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone

ONCE = MakeFactorsOnce()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Programs here are small; and text is that of versions that keep barriers."""
    monkeypatch.setattr(make_factors_once, "fence", lambda: "barrier")
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=0, row=0)):
        yield


def products(make, equation="i,j->ji"):
    """A loop of which each step multiplies what it makes of a row by another row."""

    def program(xs, ys):
        def step(c, row):
            x, y = row
            return c, jnp.einsum(equation, make(x), y)

        return lax.scan(step, 0, (xs, ys))[1]

    return program


def put_together(x):
    return jnp.concatenate([x * x, x + 1])


def test_parts_that_are_put_together():
    check_rewrite(
        ONCE,
        products(put_together),
        "f32[3,2]",
        "f32[3,5]",
        diff="""
          fn (xs:f32[3,2], ys:f32[3,5]) {
            ys1:f32[3,5,4] = scan[3] xs(x=xs, x1=ys) {
              m:f32[2] = mul x x
              a:f32[2] = add x 1.0
              c:f32[4] = concatenate[dimension=0] m a
        +     o:f32[4] = optimization_barrier c
        -     d:f32[5,4] = dot_general[contract=x] x1 c
        +     d:f32[5,4] = dot_general[contract=x] x1 o
              yield ys(d)
            }
            return ys1
          }
        """,
    )


def paired(x):
    """Rows of a batch, put together."""
    return jnp.concatenate([x * x, x + 1], axis=-1)


def test_other_products():
    """Of batches, and where what is summed over has one element."""
    alone(ONCE, products(paired, "bi,bj->bji"), "f32[3,4,2]", "f32[3,4,5]", fires=True)
    alone(ONCE, products(paired, "ki,kj->ji"), "f32[3,1,2]", "f32[3,1,5]", fires=True)


def test_a_product_that_is_transposed():
    """JAX's gradients of ``x @ w`` are."""

    def program(xs, ys):
        def step(c, row):
            x, y = row
            return c, jnp.einsum("i,j->ij", put_together(x), y).T

        return lax.scan(step, 0, (xs, ys))[1]

    alone(ONCE, program, "f32[3,2]", "f32[3,5]", fires=True)


@pytest.mark.parametrize(
    ("make", "shape", "fires"),
    [
        pytest.param(lambda x: x.reshape(-1), "4,8", True, id="eight numbers: places are shifts"),
        pytest.param(lambda x: x.reshape(-1), "2,2,6", True, id="two rows of rows"),
        pytest.param(lambda x: x.reshape(-1), "4,6", False, id="places are quotients"),
        pytest.param(lambda x: x.reshape(-1), "8,1", False, id="one axis"),
        pytest.param(lambda x: x.reshape(2, -1)[0], "3,2,6", False, id="part of an axis"),
        pytest.param(lambda x: x[::2].reshape(-1), "6,5", True, id="every other row"),
        pytest.param(lambda x: x[1:].reshape(-1), "6,5", False, id="whole rows"),
        pytest.param(lambda x: x[:, 1:].reshape(-1), "5,6", True, id="a part of each row"),
        pytest.param(lambda x: x.T.reshape(-1), "5,6", True, id="columns"),
        pytest.param(lambda x: x[::-1].reshape(-1), "5,6", True, id="backwards"),
        pytest.param(lambda x: lax.dynamic_slice(x, (x[0, 0].astype(int), 0), (2, 5)).reshape(-1),
                     "5,5", False, id="a window of whole rows"),
        pytest.param(lambda x: lax.dynamic_slice(x, (x[0, 0].astype(int), 0), (2, 3)).reshape(-1),
                     "5,5", True, id="a window of parts of rows"),
        pytest.param(lambda x: jnp.pad(x, (0, 2)), "6", True, id="filled behind"),
        pytest.param(lambda x: jnp.pad(x, (2, 0)), "6", False, id="filled before"),
        pytest.param(lambda x: jnp.append(x, 1.0), "6", False, id="one number more"),
    ],
)  # fmt: skip
def test_places(make, shape, fires):
    """(2) Numbers that lie beside each other are computed together, if that is seen."""
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=0, row=0, shifts=True)):
        alone(ONCE, products(make), f"f32[3,{shape}]", "f32[3,5]", fires=fires)


@pytest.mark.parametrize("shifts", [True, False])
def test_places_that_are_shifts(shifts):
    """(2) Where these are not seen through."""
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=0, shifts=shifts)):
        alone(ONCE, products(jnp.ravel), "f32[3,4,8]", "f32[3,5]", fires=shifts)


@pytest.mark.parametrize("turns", [True, False])
def test_an_array_that_is_turned(turns):
    """(2) Where parts of one array are found by a jump, too."""
    with using(CostModel().but(kernel=0.0, cached=0.0, row=0, mixes_by_places=turns)):
        alone(ONCE, products(lambda x: jnp.roll(x, 2)), "f32[3,6]", "f32[3,5]", fires=turns)


def test_both_factors():
    """(3) One is along the last axis."""

    def program(xs):
        def step(c, x):
            return c, jnp.einsum("i,j->ij", jnp.sin(x) * x, put_together(x))

        return lax.scan(step, 0, xs)[1]

    alone(ONCE, program, "f32[3,2]", fires=True)


def test_the_gradient_of_a_recurrent_network():
    """All readers read the fenced factor."""

    def loss(w, xs):
        def step(h, x):
            a, b = jnp.split(jnp.concatenate([x, h]) @ w, 2)
            return jnp.tanh(a) * b, None

        return jnp.sum(lax.scan(step, jnp.zeros(4), xs)[0])

    alone(ONCE, jax.grad(loss), "f32[8,8]", "f32[3,4]", fires=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i32", "c64"])
def test_types(dtype):
    """Of any numbers."""
    alone(ONCE, products(put_together), f"{dtype}[3,2]", f"{dtype}[3,5]", fires=True)


def test_a_fence_that_divides(monkeypatch):
    """Where XLA drops barriers."""
    monkeypatch.setattr(make_factors_once, "fence", lambda: "division")
    alone(ONCE, products(put_together), "f32[3,2]", "f32[3,5]", fires=True)


def test_no_fence(monkeypatch):
    """On a device where XLA drops barriers, and repeats divisions."""
    monkeypatch.setattr(make_factors_once, "fence", lambda: None)
    because = "nothing keeps XLA from"
    check_refuses(ONCE, products(put_together), "f32[3,2]", "f32[3,5]", because=because)
    assert devices.fence() is not None


def test_products_that_sum():
    """(1) A library computes them."""
    alone(ONCE, products(paired, "ki,kj->ji"), "f32[3,2,2]", "f32[3,2,5]", fires=False)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: x, id="a row that is streamed"),
        pytest.param(lambda x: x[::-1], id="moved"),
        pytest.param(jnp.square, id="computed, several numbers at once"),
        pytest.param(jnp.exp, id="a function, which XLA does not repeat"),
    ],
)
def test_factors_that_xla_does_not_repeat(make):
    """(2) They are in memory, or computed as quickly."""
    alone(ONCE, products(make), "f32[3,2]", "f32[3,5]", fires=False)


def test_factors_of_outside():
    """(2) Outside of loops a product is computed once; before the loop a factor is."""
    alone(ONCE, lambda x, y: jnp.outer(y, put_together(x)), "f32[2]", "f32[5]", fires=False)

    def program(x, ys):
        y = put_together(x)
        return lax.scan(lambda c, row: (c, jnp.einsum("i,j->ji", y, row)), 0, ys)[1]

    alone(ONCE, program, "f32[2]", "f32[3,5]", fires=False)


@pytest.mark.parametrize(("n", "fires"), [(8, False), (16, True)])
def test_the_cost(n, fires):
    """(2) One op more takes longer than computing little again."""
    with using(CostModel().but(row=0)):
        alone(ONCE, products(put_together), f"f32[3,{n}]", f"f32[3,{n}]", fires=fires)


def test_factors_that_are_cheap():
    """(2) The reason is told."""
    with using(CostModel().but(row=0)):
        because = "takes no longer than an op more"
        check_refuses(ONCE, products(put_together), "f32[3,2]", "f32[3,5]", because=because)


def test_factors_along_another_axis():
    """(3) A row is multiplied by one number of the factor."""
    because = "a row of the product is multiplied by one number of it"
    types = "f32[3,2]", "f32[3,5]"
    check_refuses(ONCE, products(put_together, "i,j->ij"), *types, because=because)


@pytest.mark.parametrize(
    ("make", "shape", "figure"),
    [(put_together, "2", "row"), (jnp.ravel, "2,2", "unrolled")],
)
def test_short_rows(make, shape, figure):
    """(3) What is computed for each number of a short last axis is computed once in any case."""
    types = f"f32[3,{shape}]", "f32[3,5]"
    figures = {"kernel": 0.0, "cached": 0.0, "starts_each": False, "shifts": True}
    with using(CostModel().but(**figures, **{figure: 3})):
        alone(ONCE, products(make), *types, fires=True)
    with using(CostModel().but(**figures, **{figure: 4})):
        because = "a loop over its few numbers is unrolled"
        check_refuses(ONCE, products(make), *types, because=because)


def test_short_rows_of_parts():
    """(3) Where each op is started, these are no few."""
    with using(CostModel().but(kernel=0.0, cached=0.0, row=4, starts_each=True)):
        alone(ONCE, products(put_together), "f32[3,2]", "f32[3,5]", fires=True)
