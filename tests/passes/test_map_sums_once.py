"""A sum of linear maps is the map of a sum."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.reassociating.map_sums_once import MapSumsOnce
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.graphs import scans
from tests.loops import alone

MAP = MapSumsOnce()
FAR = jnp.arange(64) * 2


def summed(term):
    """A loop that adds a term of each row."""

    def program(w, xs):
        start = jnp.zeros_like(
            jax.eval_shape(term, w, jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype))
        )
        return lax.scan(lambda c, x: (c + term(w, x), ()), start, xs)[0]

    return program


def test_a_product_with_outer_weights():
    """(1, 2) What is added up before the loop stays added."""

    def program(w, xs, c):
        return lax.scan(lambda c, x: (c + w @ x, ()), c, xs)[0]

    check_rewrite(
        MAP,
        program,
        "f32[40,40]",
        "f32[8,40]",
        "f32[40]",
        diff="""
              fn (w:f32[40,40], xs:f32[8,40], c:f32[40]) {
            +   b:f32[40] = broadcast_in_dim 0.0
            -   c1:f32[40] = scan[8] carry(c=c) xs(x=xs) {
            +   c1:f32[40] = scan[8] carry(c=b) xs(x=xs) {
            -     d:f32[40] = dot_general w x
            -     a:f32[40] = add c d
            +     a:f32[40] = add c x
                  yield carry(a)
                }
            +   d1:f32[40] = dot_general w c1
            +   a1:f32[40] = add c d1
            -   return c1
            +   return a1
              }
        """,
    )


def test_the_derivative_of_a_softmax_of_a_table():
    """(2) Several ops lead to the term; rows are added up in place of all of it."""

    def program(t, xs, ids):
        p = jnp.exp(t)

        def step(c, row):
            x, i = row
            g = lax.dynamic_update_slice(
                jnp.zeros((64, 64)), x[None], (i, 0), allow_negative_indices=False
            )
            return c + p * (g - g.sum(1, keepdims=True)), ()

        return lax.scan(step, jnp.zeros((64, 64)), (xs, ids))[0]

    check_rewrite(
        MAP,
        program,
        "f32[64,64]",
        "f32[8,64]",
        "i32[8]",
        diff="""
              fn (t:f32[64,64], xs:f32[8,64], ids:i32[8]) {
                e:f32[64,64] = exp t
                b:f32[64,64] = broadcast_in_dim 0.0
            +   b3:f32[64,64] = broadcast_in_dim 0.0
            -   c:f32[64,64] = scan[8] carry(c=b) xs(x=xs, x1=ids) {
            +   c:f32[64,64] = scan[8] carry(c=b3) xs(x=xs, x1=ids) {
                  b:f32[64,64] = broadcast_in_dim 0.0
                  b1:f32[1,64] = broadcast_in_dim x
                  d:f32[64,64] = dynamic_update_slice b b1 x1 0
            -     r:f32[64] = reduce_sum[axes=(1,)] d
            -     b2:f32[64,1] = broadcast_in_dim[dims=(0,)] r
            -     s:f32[64,64] = sub d b2
            -     m:f32[64,64] = mul e s
            -     a:f32[64,64] = add c m
            +     a:f32[64,64] = add c d
                  yield carry(a)
                }
            +   r1:f32[64] = reduce_sum[axes=(1,)] c
            +   b4:f32[64,1] = broadcast_in_dim[dims=(0,)] r1
            +   s1:f32[64,64] = sub c b4
            +   m1:f32[64,64] = mul e s1
            -   return c
            +   return m1
              }
        """,
    )


@pytest.mark.parametrize(
    "step",
    [
        lambda w, c, x: (c + w @ x, c.sum()),  # a step reads the sum
        lambda w, c, x: ((c + w @ x) * x, 0.0),  # it is no mere sum
        lambda w, c, x: (c * x + w @ x, 0.0),
    ],
)
def test_what_steps_do_more_than_add_to_is_left(step):
    """(1)"""

    def program(w, xs):
        return lax.scan(lambda c, x: step(w, c, x), jnp.zeros(64), xs)

    alone(MAP, program, "f32[64,64]", "f32[8,64]", fires=False)


def test_carries_that_change_places_are_left():
    """(1) Each goes on with the sum of the other."""

    def program(w, xs):
        def step(c, x):
            return (c[1] + w @ x, c[0] + w.T @ x), ()

        return lax.scan(step, (jnp.zeros(64), jnp.ones(64)), xs)[0]

    alone(MAP, program, "f32[64,64]", "f32[8,64]", fires=False)


@pytest.mark.parametrize(
    ("term", "stays"),
    [
        (lambda w, x: jnp.sin(w @ x), ["dot_general", "sin"]),
        (lambda w, x: (w * x) @ x, ["dot_general"]),  # x twice
        (lambda w, x: w @ x + w[0], ["dot_general"]),  # affine
        (lambda w, x: (w @ x).at[FAR].get(mode="fill", fill_value=7.0), ["dot_general"]),
        (lambda w, x: jnp.where(x > 0, w @ x, 0), ["dot_general", "select_n"]),
    ],
)
def test_terms_that_are_not_linear_are_left(term, stays):
    """(2)"""
    graph = alone(MAP, summed(term), "f32[64,64]", "f32[8,64]", fires=False)
    (loop,) = scans(graph)
    assert {op.name for op in loop.walk()}.issuperset(stays)


def test_no_step_computes_nothing_new():
    """(3) A product with an infinity would make no number of zeros."""
    program = summed(lambda w, x: w @ x)
    alone(MAP, program, "f32[64,64]", "f32[0,64]", fires=False)


def test_a_sum_of_half_precision_is_no_sum_of_numbers_of_single_precision():
    """(4)"""
    program = summed(lambda w, x: w @ x.astype(jnp.float32))
    graph = import_jaxpr(traced(program, "f32[64,64]", "f16[8,64]"))
    run_alone((MAP,), graph)
    (loop,) = scans(graph)
    assert loop.carries[0].param.dtype == jnp.float32


def test_a_larger_sum_is_refused():
    """A sum over rows is smaller than the rows."""
    check_refuses(
        MAP, summed(lambda w, x: w @ x), "f32[4,4096]", "f32[8,4096]", because="is larger than"
    )


def test_what_costs_nothing_is_refused():
    check_refuses(MAP, summed(lambda w, x: -x), "f32[4,4]", "f32[8,4]", because="no longer than")


def test_nests_hand_their_sums_on():
    """The inner loop's map leaves both loops."""

    def loss(w, xs):
        def inner(d, x):
            return jnp.tanh(d @ w.T + x), None

        def outer(c, row):
            d, _ = lax.scan(inner, c, row)
            return 0.9 * d, d.sum()

        return lax.scan(outer, jnp.zeros((4, 256)), xs)[1].sum()

    w = jnp.cos(jnp.arange(256.0 * 256)).reshape(256, 256) / 256
    xs = jnp.sin(jnp.arange(3 * 5 * 4 * 256.0)).reshape(3, 5, 4, 256)
    wanted = jax.grad(loss)(w, xs)
    assert_close(optimize(jax.grad(loss), reassociate=True)(w, xs), wanted)
    assert_close(jax.grad(optimize(loss, reassociate=True))(w, xs), wanted)
    text = str(jax.make_jaxpr(optimize(jax.grad(loss), reassociate=True))(w, xs))
    assert text.count("f32[256,256] = add") == 1
