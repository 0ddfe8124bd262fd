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
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=0)):
        yield


def products(make, equation="i,j->ij"):
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
            ys1:f32[3,4,5] = scan[3] xs(x=xs, x1=ys) {
              m:f32[2] = mul x x
              a:f32[2] = add x 1.0
              c:f32[4] = concatenate[dimension=0] m a
        +     o:f32[4] = optimization_barrier c
        -     d:f32[4,5] = dot_general[contract=x] c x1
        +     d:f32[4,5] = dot_general[contract=x] o x1
              yield ys(d)
            }
            return ys1
          }
        """,
    )


def test_other_products():
    """Of batches, and where what is summed over has one element."""
    alone(ONCE, products(jnp.square, "bi,bj->bij"), "f32[3,4,2]", "f32[3,4,5]", fires=True)
    alone(ONCE, products(jnp.square, "ki,kj->ij"), "f32[3,1,2]", "f32[3,1,5]", fires=True)


def test_both_factors():
    def program(xs):
        def step(c, x):
            return c, jnp.einsum("i,j->ij", put_together(x), jnp.sin(x) * x)

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
    """XLA computes numbers of `bfloat16` once in any case."""
    types = f"{dtype}[3,2]", f"{dtype}[3,5]"
    alone(ONCE, products(put_together), *types, fires=dtype != "bf16")


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
    alone(ONCE, products(jnp.square, "ki,kj->ij"), "f32[3,2,2]", "f32[3,2,5]", fires=False)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: x, id="a row that is streamed"),
        pytest.param(lambda x: x[::-1], id="moved"),
        pytest.param(jnp.exp, id="a function, which XLA does not repeat"),
    ],
)
def test_factors_that_xla_does_not_repeat(make):
    """(2) They are in memory, or only moved."""
    alone(ONCE, products(make), "f32[3,2]", "f32[3,5]", fires=False)


def test_factors_of_outside():
    """(2) Outside of loops a product is computed once; before the loop a factor is."""
    alone(ONCE, lambda x, y: jnp.outer(x + 1, y), "f32[2]", "f32[5]", fires=False)

    def program(x, ys):
        y = put_together(x)
        return lax.scan(lambda c, row: (c, jnp.einsum("i,j->ij", y, row)), 0, ys)[1]

    alone(ONCE, program, "f32[2]", "f32[3,5]", fires=False)


@pytest.mark.parametrize(("n", "fires"), [(8, False), (64, True)])
def test_the_cost(n, fires):
    """(2) One op more takes longer than computing little again."""
    with using(CostModel()):
        alone(ONCE, products(put_together), f"f32[3,{n}]", f"f32[3,{4 * n}]", fires=fires)


def test_factors_that_are_cheap():
    """(2) The reason is told."""
    with using(CostModel()):
        because = "takes no longer than an op more"
        check_refuses(ONCE, products(put_together), "f32[3,2]", "f32[3,5]", because=because)


@pytest.mark.parametrize(
    ("make", "equation", "batch", "row"),
    [(put_together, "i,j->ji", "", 4), (jnp.square, "bi,bj->bji", "4,", 2)],
)
def test_short_rows(make, equation, batch, row):
    """(3) What is computed for each number of a short last axis is computed once in any case."""
    types = f"f32[3,{batch}2]", f"f32[3,{batch}5]"
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=row - 1, starts_each=False)):
        alone(ONCE, products(make, equation), *types, fires=True)
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=row, starts_each=False)):
        because = "a loop over its few numbers is unrolled"
        check_refuses(ONCE, products(make, equation), *types, because=because)


def test_short_columns():
    """(3) Along the first axis of the product each number is computed for each row."""
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=4, starts_each=False)):
        alone(ONCE, products(put_together), "f32[3,2]", "f32[3,5]", fires=True)


@pytest.mark.parametrize(("rows", "fires"), [(12, True), (13, False)])
def test_short_rows_that_are_few(rows, fires):
    """(3) Where each op is started, a few rows are computed as quickly."""
    with using(CostModel().but(kernel=0.0, cached=0.0, unrolled=4, starts_each=True)):
        alone(ONCE, products(put_together, "i,j->ji"), "f32[3,2]", f"f32[3,{rows}]", fires=fires)
