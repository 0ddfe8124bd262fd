"""What is predicted of programs, beside what XLA says: bytes, and which of two is faster."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bench.limits import temporary_bytes
from bench.predictions import predict
from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import CPU
from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.insight.prediction import predicted_seconds
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import traced

XS = jnp.ones((512, 64))


def chain(xs):
    return lax.scan(lambda c, x: (jnp.tanh(c * x), None), jnp.ones(64), xs)[0].sum()


def looked_up(xs):
    """Row by row, at indices: the cotangent of each row is an array of zeros with it in it."""
    return lax.fori_loop(0, 512, lambda i, c: c + jnp.sin(xs[i]), jnp.zeros(64)).sum()


def is_off(graph, function):
    """Whether predicted memory is more than a quarter off, and a kilobyte."""
    return predict("", graph)._replace(temp_bytes=temporary_bytes(function, XS)).is_off


@pytest.mark.parametrize("loss", [chain, looked_up])
def test_temporary_memory_of_what_is_optimised(loss):
    gradient = jax.grad(loss)
    assert not is_off(observe.optimized(gradient, (XS,), {})[0], optimize(gradient))


def test_temporary_memory_of_a_plain_loop():
    gradient = jax.grad(chain)
    assert not is_off(observe.original(gradient, (XS,), {}), gradient)


def test_what_is_written_in_place_is_faster():
    gradient = jax.grad(looked_up)
    plain = predict("", observe.original(gradient, (XS,), {}))
    ours = predict("", observe.optimized(gradient, (XS,), {})[0])
    assert ours.model_seconds < plain.model_seconds


def seconds(function, *types, model=CostModel()):  # noqa: B008 - frozen
    return predicted_seconds(import_jaxpr(traced(function, *types)), model)


def test_a_while_takes_nobody_knows_how_long():
    assert seconds(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x), "f32[]") is None


def test_what_is_fused_is_not_moved():
    one, two = (seconds(lambda x, f=f: f(x * 2), "f32[9000]") for f in (jnp.sin, jnp.abs))
    alone = seconds(lambda x: x * 2, "f32[9000]")
    assert two == pytest.approx(alone + 9000 * CPU.arithmetic)
    assert one == pytest.approx(alone + 9000 * CPU.transcendental)


def test_a_step_takes_its_time():
    loop = lambda x, n: lax.scan(lambda c, _: (c, None), x, None, length=n)[0]
    short, long = (seconds(lambda x, n=n: loop(x, n), "f32[3]") for n in (10, 30))
    assert long - short == pytest.approx(20 * CPU.fused_step)


def test_what_a_step_passes_on_stays_near():
    """However many steps there are: the tenth part of them takes a tenth of the time."""
    loop = lambda x, n: lax.scan(lambda c, _: (c * 0.5, None), x, None, length=n)[0]
    few, many = (seconds(lambda x, n=n: loop(x, n), "f32[3000]") for n in (1000, 10_000))
    assert many == pytest.approx(10 * few, rel=0.02)


def test_stacks_that_do_not_fit_the_cache_take_longer():
    loop = lambda x, n: lax.scan(lambda c, _: (c * 0.5, c), x, None, length=n)
    few, many = (seconds(lambda x, n=n: loop(x, n), "f32[3000]") for n in (300, 30_000))
    assert many > 300 * few
