"""Between which numbers floats are, whatever the arguments of the program are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.values.float_bounds import bounds
from jaxpr_opt.analysis.values.float_rules import RULES
from jaxpr_opt.ir.importer import import_jaxpr

ODD = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 2e-38, 1e-3, -7.5, 3e38, -3e38, np.inf, -np.inf, np.nan],
    np.float32,
)
X, Y = (a.ravel() for a in np.meshgrid(ODD, ODD))
KEY = jax.random.key(0)


def of(program, *args):
    (value,) = import_jaxpr(jax.make_jaxpr(program)(*args)).body.outputs
    return bounds(value)


def check(program, *args):
    """The bounds, of which no element is beyond, also of odd arguments."""
    found = of(program, *args)
    with np.errstate(invalid="ignore"):
        values = np.asarray(jax.jit(program)(*args)).astype(np.float64)
    assert found.nan or not np.isnan(values).any()
    numbers = values[~np.isnan(values)]
    assert ((found.low <= numbers) & (numbers <= found.high)).all()
    return found


def softplus(x):
    """As JAX computes it."""
    return jnp.where(jnp.isnan(x), x, jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-abs(x))))


FINITE = {
    "Adagrad of optax": lambda k, x, y: jnp.where(x > 0, lax.rsqrt(x + 1e-7), 0.0),
    "a quotient": lambda k, x, y: jnp.where(x > 1e-3, 1 / x, 0.0),
    "both sides": lambda k, x, y: jnp.where((x > 1e-3) & (x < 1e3), jnp.log(x) / x, 0.0),
    "not, and no NaN": lambda k, x, y: jnp.where(jnp.isnan(x) | (abs(x) > 9.0), 0.0, x * x),
    "by another": lambda k, x, y: jnp.where(x > jax.random.uniform(k, x.shape) + 1, 1 / x, 0.0),
    "an absolute value": lambda k, x, y: jnp.where(abs(x) < 1e9, x * x, 0.0),
    "equal": lambda k, x, y: jnp.where(x == 3.0, x * x, 0.0),
    "finite": lambda k, x, y: jnp.where(jnp.isfinite(x), x, 0.0),
    "all finite": lambda k, x, y: jnp.where(jnp.isfinite(x).all(), x, 0.0),
    "no NaN": lambda k, x, y: jnp.nan_to_num(x),
    "a function of that": lambda k, x, y: jnp.tanh(jnp.nan_to_num(x)) * 2,
    "normal": lambda k, x, y: jax.random.normal(k, (400,)),
    "normal, 16 bits": lambda k, x, y: jax.random.normal(k, (400,), jnp.float16),
    "uniform": lambda k, x, y: jax.random.uniform(k, (400,), minval=-2.0, maxval=3.0),
    "exponential": lambda k, x, y: jax.random.exponential(k, (400,)),
    "Gumbel": lambda k, x, y: jax.random.gumbel(k, (400,)),
    "Laplace": lambda k, x, y: jax.random.laplace(k, (400,)),
    "a positive scale": lambda k, x, y: jnp.log(softplus(jax.random.normal(k, (400,)))),
    "dropout": lambda k, x, y: jax.random.bernoulli(k, 0.3, (400,)) / 0.3,
    "one-hot": lambda k, x, y: jax.nn.one_hot(jnp.arange(4) % 3, 4) * 3,
    "sums": lambda k, x, y: jax.random.uniform(k, (4, 5)).sum(1) @ jnp.ones((4, 3)),
    "in a loop": lambda k, x, y: lax.scan(
        lambda c, row: (c, jnp.exp(row)), 0.0, jax.random.uniform(k, (9, 4))
    )[1],
}  # fmt: skip


@pytest.mark.parametrize("name", FINITE)
def test_finite_numbers(name):
    if name == "in a loop":  # a row of its stack, where a step makes it
        graph = import_jaxpr(jax.make_jaxpr(FINITE[name])(KEY, X, Y))
        (op,) = (op for op in graph.walk() if op.name == "exp")
        assert bounds(op.result).is_finite
        return
    found = check(FINITE[name], KEY, X, Y)
    assert found.is_finite


OTHERS = {
    "an argument": lambda k, x, y: x,
    "the place is another": lambda k, x, y: jnp.where(x > 1e-3, 1 / x[::-1], 0.0),
    "a mask of other elements": lambda k, x, y: jnp.where((x > 1e-3)[::-1], 1 / x, 0.0),
    "zero is not excluded": lambda k, x, y: jnp.where(x >= 0, 1 / x, 0.0),
    "too small to divide by": lambda k, x, y: jnp.where(x > 0, 1 / x, 0.0),
    "the other case": lambda k, x, y: jnp.where(x > 1e-3, 0.0, lax.rsqrt(-x + 1)),
    "or": lambda k, x, y: jnp.where((x > 1e-3) | (y > 0), 1 / x, 0.0),
    "not less may be NaN": lambda k, x, y: jnp.where(x < 1e-3, 0.0, jnp.tanh(x)),
    "less than a NaN": lambda k, x, y: jnp.where(x < y, 0.0, jnp.tanh(x)),
    "not equal": lambda k, x, y: jnp.where(x != 3.0, x * x, 0.0),
    "where it is NaN": lambda k, x, y: jnp.where(jnp.isnan(x), jnp.nan, 1.0),
    "where another is NaN": lambda k, x, y: jnp.where(x != jnp.tanh(y), x, 1.0),
    "NaN stays in a range": lambda k, x, y: jnp.clip(x, -1, 1),
    "a wave of infinity": lambda k, x, y: jnp.where(x > -jnp.inf, jnp.sin(x), 0.0),
    "infinity less itself": lambda k, x, y: jnp.where(x > 0, x - x, 0.0),
    "infinity times zero": lambda k, x, y: jnp.where(x > 0, x * 0.0, 0.0),
    "too large": lambda k, x, y: jnp.where(abs(x) < 1e30, x * x, 0.0),
    "too large for 16 bits": lambda k, x, y: jnp.where(abs(x) < 1e6, x, 0).astype(jnp.float16),
    "the logarithm of zero": lambda k, x, y: jnp.log(jax.random.uniform(k, (400,))),
    "other bits": lambda k, x, y: lax.bitcast_convert_type(
        jax.random.bits(k, (400,)) | np.uint32(0x3F800000), jnp.float32
    ),
    "of nothing": lambda k, x, y: jax.random.uniform(k, (3, 0)).max(1, initial=-jnp.inf),
    "outside of an array": lambda k, x, y: jnp.ones(3).at[jnp.arange(5)].get(mode="fill"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_numbers_that_may_not_be_finite(name):
    assert not check(OTHERS[name], KEY, X, Y).is_finite


UNARY = {
    "abs": abs, "atan": jnp.arctan, "ceil": jnp.ceil, "cos": jnp.cos, "erf": lax.erf,
    "erf_inv": lax.erf_inv, "erfc": lax.erfc, "exp": jnp.exp,
    "exp2": jnp.exp2, "expm1": jnp.expm1, "floor": jnp.floor, "integer_pow": lambda x: x**3,
    "log": jnp.log, "log1p": jnp.log1p, "logistic": jax.nn.sigmoid, "neg": lambda x: -x,
    "round": jnp.round, "rsqrt": lax.rsqrt, "sign": jnp.sign, "sin": jnp.sin, "sqrt": jnp.sqrt,
    "square": lax.square, "tanh": jnp.tanh,
}  # fmt: skip
UNARY["convert_element_type"] = lambda x: x.astype(jnp.float16)
BINARY = {
    "add": lambda x, y: x + y, "div": lambda x, y: x / y, "max": jnp.maximum, "min": jnp.minimum,
    "mul": lambda x, y: x * y, "sub": lambda x, y: x - y,
    "clamp": lambda x, y: lax.clamp(jnp.float32(-0.5), x, jnp.float32(0.25)) * y,
}  # fmt: skip
ENDS = [(-2.0, 3.0), (0.25, 0.75), (-9.0, -1e-3), (0.0, 1e30), (1e-30, 1e-20), (-0.9, 0.0)]


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_results_of_numbers_between_two(name):
    assert name in RULES
    rng = np.random.default_rng(0)
    for low, high in ENDS:
        u = rng.uniform(size=(2, 200))
        x, y = np.concatenate([low + (high - low) * u, np.full((2, 1), low), np.full((2, 1), high)],
                              axis=1, dtype=np.float32)  # fmt: skip

        def within(v, f, low=low, high=high):
            return jnp.where((v >= low) & (v <= high), f(v), 0.0)

        if name in UNARY:
            check(lambda v: within(v, UNARY[name]), x)
        else:
            check(lambda v, w: within(v, lambda v: within(w, lambda w: BINARY[name](v, w))), x, y)
