"""The examples: optimised in either order they give what they give, and keep what they need."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from examples import beam_search, bounded_while, demo, ragged_rnn
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


@functools.cache
def bounded_gradient(loop, bound, order="plain"):
    """The gradient of a loop of at most `bound` steps, compiled: a function of `x` and `steps`."""
    params, x, steps = bounded_while.arguments(width=32)

    def loss(x, steps):
        return bounded_while.loss(params, x, steps, bound=bound, loop=loop)

    gradient = {
        "plain": lambda: jax.jit(jax.grad(loss)),
        "around grad": lambda: jaxpr_opt.optimize(jax.grad(loss)),
        "inside grad": lambda: jax.jit(jax.grad(jaxpr_opt.optimize(loss))),
    }[order]()
    return gradient.lower(x, steps).compile()


@pytest.mark.parametrize("loop", [bounded_while.nested_while, bounded_while.single_while])
@pytest.mark.parametrize("order", ["around grad", "inside grad"])
def test_bounded_while(loop, order):
    """jax#8239: what is kept does not grow with the bound as the residuals do."""
    _, x, _ = bounded_while.arguments(width=32)
    plain, ours = bounded_gradient(loop, 16), bounded_gradient(loop, 16, order)
    for steps in (0, 1, 5, 16, 20):
        assert_close(ours(x, jnp.int32(steps)), plain(x, jnp.int32(steps)))
    deep = bounded_gradient(loop, 1024, order)
    assert_close(deep(x, jnp.int32(9)), plain(x, jnp.int32(9)))
    kept, residuals = deep.memory_analysis(), bounded_gradient(loop, 256).memory_analysis()
    assert kept.temp_size_in_bytes < residuals.temp_size_in_bytes / 5  # at a quarter of the bound


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


def test_the_demo_fits_80_columns_and_tells_costs_once(monkeypatch, capsys):
    """It shows the jaxpr, what was done and where, and the costs before and after."""
    for variable in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(demo, "BOUNDS", [2])
    monkeypatch.setattr(bounded_while.arguments, "__defaults__", (8, 1, 2))
    demo.main()
    out = capsys.readouterr().out
    assert not [line for line in out.splitlines() if len(line) > 80 or line != line.rstrip()]
    for told in ("-     ", "+     ", "collapse-loops", "examples/bounded_while.py:", "FLOPs "):
        assert told in out
    for cost in ("kept for the gradient  ", "time, bound 2  ", "trace and compile, bound 2  "):
        assert out.count(f"\n{cost}") == 1


def test_beam_search():
    """The gradient of a search of unknown length is that of one with a bound, in less memory."""
    arguments = beam_search.arguments(width=8)
    ours = jax.jit(jax.value_and_grad(jaxpr_opt.optimize(beam_search.loss)))
    by_hand = jax.jit(jax.value_and_grad(functools.partial(beam_search.loss_by_hand, most=64)))
    assert_close(ours(*arguments), by_hand(*arguments))
    assert temp_bytes(ours, *arguments) < temp_bytes(by_hand, *arguments) / 2


def test_a_model_is_trained_through_its_beam_search():
    losses = [value for _, value in beam_search.train(101)]
    assert losses[-1] < 0.75 * losses[0]
