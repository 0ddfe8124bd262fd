"""What an op makes is within the range that is told of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.values.ranges import fits, ranged
from tests.graphs import graph_of

MATRIX = "f32[3,4]"
OPS = {
    "abs": (jnp.abs, 1),
    "add": (lax.add, 2),
    "ceil": (lax.ceil, 1),
    "clamp": (lax.clamp, 3),
    "concatenate": (lambda a, b: lax.concatenate([a, b], 0), 2),
    "cos": (lax.cos, 1),
    "cummax": (lax.cummax, 1),
    "cumsum": (lax.cumsum, 1),
    "div": (lax.div, 2),
    "dot_general": (lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((), ()))), 2),
    "erf": (lax.erf, 1),
    "erfc": (lax.erfc, 1),
    "exp": (lax.exp, 1),
    "exp2": (lax.exp2, 1),
    "expm1": (lax.expm1, 1),
    "floor": (lax.floor, 1),
    "integer_pow": (lambda a: lax.integer_pow(a, 3), 1),
    "log": (lax.log, 1),
    "log1p": (lax.log1p, 1),
    "logistic": (lax.logistic, 1),
    "max": (lax.max, 2),
    "min": (lax.min, 2),
    "mul": (lax.mul, 2),
    "neg": (lax.neg, 1),
    "pad": (lambda a, b: lax.pad(a, b[0, 0], [(1, 1, 0), (0, 0, 1)]), 2),
    "pow": (lax.pow, 2),
    "reduce_max": (lambda a: jnp.max(a, axis=0), 1),
    "reduce_sum": (lambda a: jnp.sum(a, axis=1), 1),
    "rev": (lambda a: lax.rev(a, (0,)), 1),
    "round": (lax.round, 1),
    "rsqrt": (lax.rsqrt, 1),
    "select_n": (lambda a, b: lax.select_n(jnp.arange(12).reshape(3, 4) % 2 > 0, a, b), 2),
    "sign": (lax.sign, 1),
    "sin": (lax.sin, 1),
    "sqrt": (lax.sqrt, 1),
    "square": (lax.square, 1),
    "sort": (lambda a, b: lax.sort([a, b])[1], 2),
    "stack": (lambda a, b: jnp.stack([a, b]), 2),
    "sub": (lax.sub, 2),
    "tanh": (lax.tanh, 1),
}
POWERS = {f"x ** {n}": (lambda a, n=n: lax.integer_pow(a, n), 1) for n in (2, -1, -2, -3)}
ENDS = [(-3.0, 2.0), (0.5, 2.0), (-2.0, -0.5), (0.0, 1.0), (-1.0, 0.0), (-1e30, 1e25), (7.0, 7.0)]


def last_op(fun, *args):
    """What makes the result of a function."""
    return [op for op in graph_of(fun, *args).body.ops if not op.is_terminator][-1]


@pytest.mark.parametrize("name", [*OPS, *POWERS])
def test_results_are_in_range(name):
    """If a range is known at all, and is of finite numbers."""
    fun, arity = (OPS | POWERS)[name]
    op = last_op(fun, *[MATRIX] * arity)
    rng, known = np.random.default_rng(0), 0
    rule = jax.jit(lambda *a: (made := ranged(op, *a), fits(op, made)))
    for ends in zip(*(ENDS[i:] + ENDS[:i] for i in range(arity)), strict=True):
        arrays = [rng.uniform(*end, (3, 4)).astype("float32") for end in ends]
        for array, end in zip(arrays, ends, strict=True):
            array.flat[:2] = end
        truth = [(0.0, 1.0)] * (op.name == "select_n")
        (low, high), fit = rule(*(tuple(map(jnp.float32, end)) for end in (*truth, *ends)))
        results = np.asarray(fun(*arrays))
        if fit:
            known += 1
            assert np.all(np.isfinite(results)), (ends, results)
            assert low <= results.min(), (ends, low)
            assert results.max() <= high, (ends, high)
    assert known


@pytest.mark.parametrize("name", sorted({"sqrt", "log", "log1p", "rsqrt", "div", "pow"}))
def test_what_may_be_no_number(name):
    fun, arity = OPS[name]
    op = last_op(fun, *[MATRIX] * arity)
    ends = [tuple(map(jnp.float32, (-2.0, 3.0)))] * arity
    assert not fits(op, ranged(op, *ends))


@pytest.mark.parametrize("name", [*OPS, *POWERS])
def test_nothing_is_known_of_what_is_no_number(name):
    fun, arity = (OPS | POWERS)[name]
    op = last_op(fun, *[MATRIX] * arity)
    nothing = (jnp.float32(jnp.nan), jnp.float32(jnp.nan))
    truth = [(jnp.float32(0), jnp.float32(1))] * (op.name == "select_n")
    assert not fits(op, ranged(op, *truth, *[nothing] * arity))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_integers_that_wrap_around(dtype):
    with jax.enable_x64(True):
        low, high = (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        for fun, ends in (
            (lambda a: a - jnp.ones_like(a), (low, 3)),
            (lambda a: a + jnp.ones_like(a), (0, high)),
            (lambda a: a * a, (0, high // 2)),
        ):
            op = last_op(fun, jax.ShapeDtypeStruct((3,), dtype))
            one = (jnp.float32(1), jnp.float32(1))
            operands = [tuple(map(jnp.float32, ends)), *[one] * (op.name != "mul")]
            operands += operands[:1] * (op.name == "mul")
            assert not fits(op, ranged(op, *operands))


@pytest.mark.parametrize(("high", "least"), [(5.0, 1.0), (jnp.inf, -3.0), (jnp.nan, -3.0)])
def test_another_number_in_place_of_nan(high, least):
    """``where(isnan(x), z, y)``: what is finite is never NaN. No other comparison says so."""
    graph = graph_of(lambda x, y, z: jnp.where(jnp.isnan(x), z, y), *["f32[3]"] * 3)
    test, choice = (op for op in graph.body.ops if not op.is_terminator)
    ends = [tuple(map(jnp.float32, end)) for end in ((-9.0, high), (1.0, 2.0), (-3.0, -2.0))]
    truth = ranged(test, ends[0], ends[0])
    assert fits(test, truth)
    assert ranged(choice, truth, *ends[1:])[0] == least
    other = last_op(lambda x, y: x != y, *["f32[3]"] * 2)
    assert ranged(other, ends[1], ends[1]) == (0, 1)


@pytest.mark.parametrize(("name", "most"), [("dot_general", 12), ("mul", 30), ("sub", 40)])
def test_few_ops_tell(name, most):
    """XLA compiles them for each op of a step."""
    op = last_op(OPS[name][0], MATRIX, MATRIX)
    ends = [tuple(map(jnp.float32, (-2.0, 3.0)))] * 2
    assert len(jax.make_jaxpr(lambda *a: ranged(op, *a))(*ends).eqns) <= most


@pytest.mark.parametrize("terms", [1, 2, 3, 7, 64, 1000])
def test_sums_however_they_are_rounded(terms):
    """Exact sums, and each term rounded in one direction, are in range; so are ends themselves."""
    products = last_op(jnp.dot, *[f"f32[{terms}]"] * 2)
    sums = last_op(jnp.sum, f"f32[{terms}]")
    rng, off = np.random.default_rng(0), (1 + 2.0**-24) ** terms
    for low, width in np.float32(rng.uniform(-3, 3, (40, 2)) * [1, 0.1]):
        ends = low, low + abs(width)
        given = tuple(map(jnp.float32, ends))
        exact = terms * np.float64(given)
        least, most = map(float, ranged(sums, given))
        assert least <= min(exact[0] / off, exact[0] * off)
        assert most >= max(exact[1] / off, exact[1] * off)
        greatest = terms * max(np.float64(given) ** 2) * off
        assert float(ranged(products, given, given)[1]) >= greatest


def test_sums_of_what_is_not_below_zero():
    """They are not below it either, however they are rounded."""
    for fun, arity in ((lax.add, 2), (jnp.sum, 1)):
        op = last_op(fun, *["f32[400]"] * arity)
        ends = [tuple(map(jnp.float32, (0.0, 1e9)))] * arity
        assert ranged(op, *ends)[0] == 0


@pytest.mark.parametrize(("low", "high", "known"), [(0, 5, True), (-1, 5, False), (0, 6, False)])
def test_rows_of_a_table_that_may_be_out_of_range(low, high, known):
    """Then a gather gives no number."""
    fun = lambda table, i: table.at[i].get(mode="fill", wrap_negative_indices=False)
    op = last_op(fun, "f32[6]", "i32[3]")
    ends = [tuple(map(jnp.float32, end)) for end in ((1.0, 2.0), (low, high))]
    assert bool(fits(op, ranged(op, *ends))) == known


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_rounded_to_zero_or_to_one(dtype):
    """A logarithm of what may be flushed to zero is not finite, nor a quotient."""
    one, half = ((jnp.float32(1),) * 2, (jnp.float32(0.5),) * 2)
    small = (jnp.float32(float(jnp.finfo(dtype).tiny)),) * 2
    product = last_op(lax.mul, jax.ShapeDtypeStruct((2,), dtype), jax.ShapeDtypeStruct((2,), dtype))
    low, high = ranged(product, small, half)
    assert low == 0
    log, log1p = (last_op(f, jax.ShapeDtypeStruct((2,), dtype)) for f in (lax.log, lax.log1p))
    assert not fits(log, ranged(log, (low, high)))
    low, high = ranged(product, tuple(-(1 - x / 2048) for x in one), one)
    assert not fits(log1p, ranged(log1p, (low, high)))
    assert fits(log1p, ranged(log1p, half))
