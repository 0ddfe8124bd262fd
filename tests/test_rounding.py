"""What is computed again may be rounded otherwise: nothing that jumps may see both."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize, settings
from jaxpr_opt.analysis.values.rounding import compares_rounded, is_discontinuous, rounded
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced

STEPS, WIDTH = 64, 512
DRAWN = np.random.default_rng(0).normal(size=(STEPS + 2, WIDTH)).astype(np.float32)
ARGUMENTS = (DRAWN[0], DRAWN[1], DRAWN[2:])


def maximum(a, b, xs):
    """The transposed maximum asks which of these sums it is."""

    def step(c, x):
        y = a * x + b * jnp.flip(x) + c
        return c * 0.5 + 0.1 * jnp.max(y), jnp.sum(y) * 1e-3

    c, sums = lax.scan(step, jnp.float32(0), xs)
    return c + jnp.sum(sums)


def probabilities(a, b, xs):
    def step(c, x):
        y = a * x + b * c
        return c * 0.9 + 0.1 * jnp.cumsum(jax.nn.softmax(y)), jnp.max(y)

    c, largest = lax.scan(step, jnp.zeros(WIDTH), xs)
    return jnp.sum(c**2) + jnp.sum(largest)


def interpolated(a, b, xs):
    """Rows of an image: the place of a number, and how far it is from there."""
    grid = jnp.linspace(-48.0, 48.0, 96)

    def step(image, rows):
        row, angle = rows[0][:128], rows[1]
        t = grid[:, None] * jnp.cos(angle) + grid * jnp.sin(angle) + 64.0
        i = jnp.floor(t).astype(int)
        w = t - i
        low, high = (row[jnp.clip(each, 0, 127)] for each in (i, i + 1))
        return image + (1 - w) * low + w * high, None

    image, _ = lax.scan(step, jnp.zeros((96, 96)), (xs, jnp.linspace(0.0, 3.1, STEPS)))
    return jnp.sum(image**2) + jnp.sum(a + b)


def stopping(a, b, xs):
    """Steps that are skipped after a while, each with a maximum."""

    def step(carry, x):
        c, done = carry
        y = a * x + b * jnp.flip(x) + c
        new = 0.9 * c + 1e-3 * jnp.sum(jnp.where(y == jnp.max(y), y * c, x))
        return (jnp.where(done, c, new), done | (new > 1e6)), None

    return lax.scan(step, (jnp.float32(0.3), False), xs)[0][0]


def close(want, got):
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * float(jnp.max(jnp.abs(one)) + 1e-9))


@pytest.mark.parametrize("program", [maximum, probabilities, interpolated, stopping])
@pytest.mark.parametrize("order", ["above", "below"])
def test_gradients_of_what_jumps(program, order):
    gradient = functools.partial(jax.grad, argnums=(0, 1, 2))
    ours = optimize(gradient(program)) if order == "above" else gradient(optimize(program))
    close(jax.jit(gradient(program))(*ARGUMENTS), jax.jit(ours)(*ARGUMENTS))


def test_layers_that_are_computed_again():
    def layers(a, b, xs):
        c = jnp.zeros(WIDTH)
        for x in xs[:12]:
            y = a * x + b * jnp.tanh(c)
            c = c * 0.9 + 0.1 * jnp.where(y == jnp.max(y), y * y, jnp.sin(y))
        return jnp.sum(c * c)

    gradient = jax.grad(layers, argnums=(0, 1, 2))
    with settings.override(strict=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the budget is not met
        least = jax.jit(optimize(gradient, memory=0.5))
        close(jax.jit(gradient)(*ARGUMENTS), least(*ARGUMENTS))


@pytest.mark.parametrize(
    ("program", "sources"),
    [
        pytest.param(lambda x, y: x > y, 0, id="arguments"),
        pytest.param(lambda x, y: x * y > y, 0, id="one product"),
        pytest.param(lambda x, y: jnp.floor(x + y), 0, id="one sum"),
        pytest.param(lambda x, y: jnp.floor(x * y + y), 1, id="product and sum"),
        pytest.param(lambda x, y: jnp.floor(-(x * y)[::-1] + y), 1, id="moved product"),
        pytest.param(lambda x, y: jnp.abs(jnp.exp(x)) > y, 1, id="function"),
        pytest.param(lambda x, y: jnp.isnan(jnp.exp(x)), 0, id="not a number"),
        pytest.param(lambda x, y: jnp.exp(x) == jnp.max(jnp.sin(y)), 2, id="two functions"),
        pytest.param(lambda x, y: jnp.exp(x).astype(int), 1, id="conversion"),
        pytest.param(lambda x, y: jnp.floor(jnp.floor(jnp.exp(x))), 1, id="a jump before"),
    ],
)
def test_what_may_be_rounded_otherwise(program, sources):
    graph = import_jaxpr(traced(program, "f32[4]", "f32[4]"))
    jumps = [op for op in graph.body.ops if is_discontinuous(op)]
    found = set().union(*(rounded(op.operands, graph.body) for op in jumps))
    assert len(found) == sources
    assert any(map(compares_rounded, jumps)) == (sources == 2)
