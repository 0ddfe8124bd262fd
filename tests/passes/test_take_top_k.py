"""What is read at one end of a sorted array is selected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import CPU, GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.rows.take_top_k import TakeTopK
from jaxpr_opt.testing import assert_close, assert_same_bits, check_refuses, check_rewrite
from tests.loops import alone

TAKE = TakeTopK()
N, FEW = 100, 5


def test_the_least():
    """(2) The places of the least numbers; those of NaN are last."""
    check_rewrite(
        TAKE,
        lambda x: jnp.argsort(x)[:FEW],
        "f32[100]",
        simplify=True,
        diff="""
          fn (x:f32[100]) {
        -   i:i32[100] = iota
        -   s:f32[100], s1:i32[100] = sort[dimension=0] x i
        -   s2:i32[5] = slice[:5] s1
        +   e:bool[100] = eq x 0.0
        +   b:f32[100] = broadcast_in_dim 0.0
        +   s3:f32[100] = select_n e x b
        +   n:f32[100] = neg s3
        +   b1:i32[100] = bitcast_convert_type[new_dtype=int32] n
        +   n1:bool[100] = ne n n
        +   b2:i32[100] = broadcast_in_dim -1
        +   s4:i32[100] = select_n n1 b1 b2
        +   b3:f32[100] = bitcast_convert_type[new_dtype=float32] s4
        +   t:f32[5], t1:i32[5] = top_k[k=5, axis=0] b3
        -   return s2
        +   return t1
          }
        """,
    )


def test_the_greatest():
    """(2) The places of the greatest numbers, in the order of the sort."""
    check_rewrite(
        TAKE,
        lambda x: jnp.argsort(x)[-FEW:],
        "f32[100]",
        simplify=True,
        diff="""
          fn (x:f32[100]) {
        -   i:i32[100] = iota
        -   s:f32[100], s1:i32[100] = sort[dimension=0] x i
        -   s2:i32[5] = slice[95:] s1
        +   e:bool[100] = eq x 0.0
        +   b:f32[100] = broadcast_in_dim 0.0
        +   s3:f32[100] = select_n e x b
        +   b1:i32[100] = bitcast_convert_type[new_dtype=int32] s3
        +   n:bool[100] = ne s3 s3
        +   b2:i32[100] = broadcast_in_dim 2147483647
        +   s4:i32[100] = select_n n b1 b2
        +   b3:f32[100] = bitcast_convert_type[new_dtype=float32] s4
        +   r:f32[100] = rev[dimensions=(0,)] b3
        +   t:f32[5], t1:i32[5] = top_k[k=5, axis=0] r
        +   s5:i32[5] = sub 99 t1
        +   r1:i32[5] = rev[dimensions=(0,)] s5
        -   return s2
        +   return r1
          }
        """,
    )


READS = {
    "the least": lambda x: jnp.sort(x)[:FEW],
    "some of the least": lambda x: jnp.sort(x)[2:4],
    "the greatest": lambda x: jnp.sort(x)[::-1][:FEW],
    "places of the greatest": lambda x: jnp.argsort(x)[-FEW:],
    "places of the greatest in reverse": lambda x: jnp.argsort(x)[::-1][:FEW],
    "descending": lambda x: jnp.argsort(x, descending=True)[:FEW],
    "two arrays": lambda x: [each[:FEW] for each in lax.sort((x, jnp.sin(x)), num_keys=1)],
    "one number for all": lambda x: lax.sort((x, jnp.full(N, 2.0)), num_keys=1)[1][:FEW],
    "the first number for all": lambda x: lax.sort(
        (x, lax.broadcast_in_dim(lax.iota("int32", 1), (N,), (0,))), num_keys=1
    )[1][:FEW],
    "a batch": jax.vmap(lambda x: jnp.argsort(x)[:FEW], in_axes=1, out_axes=1),
}


def numbers(name):
    """Equal numbers, zeros of both signs, infinities, NaN of both signs."""
    rng = np.random.default_rng(0)
    x = rng.choice(np.float32([-1, -0.0, 0.0, 1, 2, np.inf, -np.inf, np.nan, -np.nan]), (N, 3))
    return x if name == "a batch" else x[:, 0]


@pytest.mark.parametrize("name", READS)
def test_bits(name):
    """(1) What is equal keeps its order, NaN is last."""
    x = numbers(name)
    alone(TAKE, READS[name], x, fires=True)
    assert_same_bits(optimize(READS[name])(x), jax.jit(READS[name])(x))


def test_few_numbers_among_nan():
    """(1) NaN follow infinity."""
    x = np.full(N, np.nan, np.float32)
    x[50], x[70] = np.inf, -1
    alone(TAKE, lambda x: jnp.argsort(x)[:FEW], x, fires=True)
    alone(TAKE, lambda x: jnp.sort(-x)[-FEW:], x, fires=True)


def test_gradients():
    """The gradient is that of what is selected."""

    def loss(x):
        return (jnp.sort(x)[-FEW:] * jnp.arange(1.0, FEW + 1)).sum()

    x = np.random.default_rng(1).normal(size=N).astype(np.float32)
    expected = jax.grad(loss)(x)
    assert_close(jax.grad(optimize(loss))(x), expected)
    assert_close(optimize(jax.grad(loss))(x), expected)


@pytest.mark.parametrize(
    ("program", "shapes", "because"),
    [
        (lambda x: jnp.sort(x)[:40], ["f32[100]"], "most of what is sorted is read"),
        (lambda x: jnp.sort(x)[:2], ["f32[16]"], "sorting takes no longer"),
    ],
)
def test_what_is_refused(program, shapes, because):
    check_refuses(TAKE, program, *shapes, because=because)


def test_a_device_that_sorts():
    with using(CostModel(GPU)):
        check_refuses(TAKE, lambda x: jnp.sort(x)[:2], "f32[4096]", because="takes no longer")


@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (lambda x: jnp.sort(x)[:FEW], ["i32[100]"]),  # (1)
        (lambda x: lax.sort((x, x), num_keys=2)[0][:FEW], ["f32[100]"]),  # (1)
        (lambda x: ((s := jnp.sort(x))[:FEW], s.sum()), ["f32[100]"]),  # (2)
        (lambda x: jnp.sort(x)[:FEW:2], ["f32[100]"]),  # (2)
        (lambda x: lax.rev(lax.sort(x, dimension=0), (1,))[:FEW], ["f32[100,3]"]),  # (2)
    ],
)
def test_what_is_not_found(program, shapes):
    alone(TAKE, program, *shapes, fires=False)


def test_selected_values():
    """(3) XLA selects if something reads the places."""
    x = numbers("a batch").T
    with using(CostModel(CPU).but(sorts_for_values=True)):
        alone(TAKE, lambda x: lax.top_k(x, FEW)[0], x, fires=True)
        alone(TAKE, lambda x: lax.top_k(x, FEW), x, fires=False)
        alone(TAKE, lambda x: lax.top_k(x, FEW)[1], x, fires=False)
    with using(CostModel(CPU).but(sorts_for_values=False)):
        alone(TAKE, lambda x: lax.top_k(x, FEW)[0], x, fires=False)
