"""The examples: optimised in either order they give what they give, and keep what they need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from examples import bounded_while, ragged_rnn
from jaxpr_opt.testing import assert_close


def temp_bytes(fun, *args):
    return fun.lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("order", ["around grad", "inside grad", "inside vmap"])
def test_ragged_batch(order):
    """jax#8239 under `vmap`: no weights, and nothing of steps that no row takes, is stacked."""
    params, xs, lengths = ragged_rnn.arguments(batch=8, time=64, longest=5, features=8, width=32)
    one = jaxpr_opt.optimize(ragged_rnn.last_hidden) if order == "inside vmap" else None

    def batched(params, xs, lengths):
        return jnp.mean(jax.vmap(one, (None, 0, 0))(params, xs, lengths) ** 2)

    ours = {
        "around grad": jaxpr_opt.optimize(jax.grad(ragged_rnn.loss)),
        "inside grad": jax.jit(jax.grad(jaxpr_opt.optimize(ragged_rnn.loss))),
        "inside vmap": jax.jit(jax.grad(batched)),
    }[order]
    plain = jax.jit(jax.grad(ragged_rnn.loss))
    assert_close(ours(params, xs, lengths), plain(params, xs, lengths))
    assert temp_bytes(ours, params, xs, lengths) < temp_bytes(plain, params, xs, lengths) / 4


@pytest.mark.parametrize("loop", [bounded_while.nested_while, bounded_while.single_while])
@pytest.mark.parametrize("inside", [False, True])
def test_bounded_while(loop, inside):
    """jax#8239: what is kept does not grow with the bound as the residuals do."""
    params, x, _ = bounded_while.arguments(width=64)

    def loss(x, steps, bound):
        return bounded_while.loss(params, x, steps, bound=bound, loop=loop)

    def gradient(bound, optimize):
        def fun(x, steps):
            return loss(x, steps, bound)

        if not optimize:
            return jax.jit(jax.grad(fun))
        if inside:
            return jax.jit(jax.grad(jaxpr_opt.optimize(fun)))
        return jaxpr_opt.optimize(jax.grad(fun))

    ours, plain = gradient(64, True), gradient(64, False)
    for steps in (0, 1, 5, 64, 70):
        assert_close(ours(x, jnp.int32(steps)), plain(x, jnp.int32(steps)))
    large = temp_bytes(gradient(1024, True), x, jnp.int32(8))
    assert large < temp_bytes(gradient(1024, False), x, jnp.int32(8)) / 10


def test_a_loop_inside_of_a_shard_map_stops():
    """Its devices agree when: the bound is the same on all of them."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("i")

    def run(w, x, n):
        step = lambda c: (c[0] + 1, jnp.tanh(c[1] @ w))
        body = lambda c, _: (lax.cond(c[0] < n, step, lambda c: c, c), None)
        return lax.scan(body, (jnp.int32(0), x), None, length=16)[0][1]

    sharded = jax.shard_map(run, mesh=mesh, in_specs=(whole, rows, whole), out_specs=rows)
    loss = lambda w, x, n: jnp.sum(sharded(w, x, n))
    args = np.eye(64, dtype=np.float32), np.ones((8, 64), np.float32), np.int32(3)
    ours = jaxpr_opt.optimize(jax.grad(loss))
    assert_close(ours(*args), jax.grad(loss)(*args))
    branches = [
        f.lower(*args).as_text().count("stablehlo.case") for f in (ours, jax.jit(jax.grad(loss)))
    ]
    assert branches[0] < branches[1]
