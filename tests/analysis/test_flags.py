"""Which numbers are always zero or one."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.values.flags import is_flag, is_fraction, negated
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced

TYPES = ("bool[4]", "bool[4]", "f32[4]", "i32[]")
HALVES = jnp.full(4, 0.5)


def flagged(program, *types):
    graph = import_jaxpr(traced(program, *types))
    return [is_flag(v) for v in graph.body.outputs]


def f32(p):
    return p.astype(jnp.float32)


def carried(step, begin=jnp.zeros, *, loop=lax.scan):
    """What a loop carries of a number that is `begin(4)` at first, then `step(m, q)`."""

    def program(p, q, x, n):
        if loop is lax.scan:
            body = lambda m, row: (step(m, f32(q)), m)
            return jnp.concatenate(lax.scan(body, begin(4), None, length=3)[1])
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, step(c[1], f32(q))), (0, begin(4))
        )[1]

    return program


def of_two(make):
    return lambda p, q, x, n: make(f32(p), f32(q))


FLAGS = {
    "or": lambda p, q, x, n: jnp.maximum(f32(p), f32(q)),
    "and": lambda p, q, x, n: jnp.minimum(f32(p) * f32(q), f32(q)),
    "not": lambda p, q, x, n: 1 - f32(p),
    "one after the other": of_two(lambda a, b: a + (1 - a) * b),
    "the same, turned": of_two(lambda a, b: b * (1 - a) + a),
    "added, less both": of_two(lambda a, b: a + b - b * a),
    "chosen": lambda p, q, x, n: jnp.where(x > 0, f32(p), 1.0),
    "of a branch": lambda p, q, x, n: lax.cond(n > 0, lambda: f32(p), lambda: f32(q)),
    "integers": lambda p, q, x, n: (p.astype(jnp.int8) | q.astype(jnp.int8)) & 1,
    "other types": lambda p, q, x, n: f32(p).astype(jnp.bfloat16).astype(jnp.uint8) ** 2,
    "moved": lambda p, q, x, n: jnp.concatenate([f32(p)[::-1], f32(q)[:2]]).reshape(2, 3).T,
    "a row": lambda p, q, x, n: f32(p)[n],
    "written": lambda p, q, x, n: f32(p).at[n].set(1.0),
    "a slice": lambda p, q, x, n: lax.dynamic_slice(f32(p), (n,), (2,)),
    "a slice written": lambda p, q, x, n: lax.dynamic_update_slice(f32(p), f32(q)[:2], (n,)),
    "gathered": lambda p, q, x, n: f32(p)[jnp.array([0, 2]) + n],
    "the greatest": lambda p, q, x, n: jnp.max(f32(p)),
    "the least": lambda p, q, x, n: jnp.min(f32(p)),
    "a carry": carried(jnp.maximum),
    "a carry of a while": carried(lambda m, q: m * q, jnp.ones, loop=lax.while_loop),
    "rows": lambda p, q, x, n: lax.scan(lambda c, r: (c, 1 - r), 0, f32(p))[1],
    "checkpointed": lambda p, q, x, n: jax.checkpoint(lambda m: jnp.sin(m) < m)(f32(p)).astype(int),
    "nested": lambda p, q, x, n: lax.scan(
        lambda m, _: (lax.scan(lambda k, _: (k * f32(q), None), m, None, length=2)[0], None),
        f32(p), None, length=3)[0],
}  # fmt: skip

OTHERS = {
    "a number": lambda p, q, x, n: x,
    "a sum": lambda p, q, x, n: f32(p) + f32(q),
    "a difference": lambda p, q, x, n: f32(p) - f32(q),
    "one less a sum": lambda p, q, x, n: 1 - (f32(p) + f32(q)),
    "two less": lambda p, q, x, n: 2 - f32(p),
    "added, less another product": of_two(lambda a, b: a + b - b * b),
    "after another": of_two(lambda a, b: a + (1 - b) * a),
    "less than one": of_two(lambda a, b: a + (2 - a) * b),
    "no power": lambda p, q, x, n: lax.integer_pow(f32(p), -1),
    "of one number": lambda p, q, x, n: jnp.maximum(f32(p), x),
    "chosen": lambda p, q, x, n: jnp.where(p, f32(q), 0.5),
    "of a branch": lambda p, q, x, n: lax.cond(n > 0, lambda: f32(p), lambda: x),
    "a carry that begins otherwise": carried(jnp.maximum, lambda k: jnp.full(k, 0.5)),
    "a carry that becomes otherwise": carried(lambda m, q: m + q),
    "a carry with a sign": carried(jnp.maximum, lambda k: jnp.full(k, -0.0)),
    "a carry of a while": carried(lambda m, q: m * 0.5, loop=lax.while_loop),
    "rows": lambda p, q, x, n: lax.scan(lambda c, r: (c, 1 - r), 0, x)[1],
    "filled": lambda p, q, x, n: f32(p).at[n + jnp.arange(2)].get(mode="fill", fill_value=2.0),
    "the greatest of none": lambda p, q, x, n: jnp.max(f32(p)[:0], initial=-1.0),
    "complex": lambda p, q, x, n: p.astype(jnp.complex64),
    "no zero": lambda p, q, x, n: p.astype(jnp.float8_e8m0fnu),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_numbers_that_are_zero_or_one(name):
    assert flagged(FLAGS[name], *TYPES) == [True]


@pytest.mark.parametrize("name", OTHERS)
def test_other_numbers(name):
    assert flagged(OTHERS[name], *TYPES) == [False]


def test_the_greatest_of_no_elements_is_another_number():
    least = lambda p: lax.reduce_max_p.bind(p.astype(jnp.float32), axes=(0,), out_sharding=None)
    assert flagged(least, "bool[0]") == [False]
    assert flagged(least, "bool[2]") == [True]


def discounted(step, begin=1.0):
    """What a loop carries of a number, and stacks."""

    def program(p, q, x, n):
        body = lambda d, t: (step(d, t, f32(q)[0], x[0]), d)
        return lax.scan(body, begin, jnp.arange(3))[1]

    return program


FRACTIONS = {
    "a discount": discounted(lambda d, t, q, x: d * 0.9),
    "where it is not done": discounted(lambda d, t, q, x: d * jnp.bfloat16(0.9) * (1 - q)),
    "a power of the step": discounted(lambda d, t, q, x: 0.9**t),
    "a root": discounted(lambda d, t, q, x: jnp.sqrt(1 - 0.5 * d)),
    "the least": discounted(lambda d, t, q, x: jnp.minimum(d, jnp.where(x > 0, 0.5, q))),
    "rows": lambda p, q, x, n: 0.9 ** jnp.arange(4),
    "all that is left": lambda p, q, x, n: jnp.cumprod(0.9 * f32(p)),
    "integers": lambda p, q, x, n: p.astype(jnp.int8),
}

NO_FRACTIONS = {
    "it grows": discounted(lambda d, t, q, x: d * 1.1),
    "it begins above one": discounted(lambda d, t, q, x: d * 0.9, 2.0),
    "it is negative": discounted(lambda d, t, q, x: d * -0.9),
    "it begins as a negative zero": discounted(lambda d, t, q, x: d * 0.9, -0.0),
    "it is no number": discounted(lambda d, t, q, x: jnp.minimum(d, x)),
    "a negative power": discounted(lambda d, t, q, x: 0.9 ** (t - 1)),
    "a power of a number": discounted(lambda d, t, q, x: 0.9**x),
    "a sum": discounted(lambda d, t, q, x: d + q),
    "a difference": discounted(lambda d, t, q, x: 0.5 - d),
    "complex": lambda p, q, x, n: f32(p) + 0j,
    "many": lambda p, q, x, n: n,
}


@pytest.mark.parametrize("name", [*FRACTIONS, *NO_FRACTIONS])
def test_numbers_from_zero_to_one(name):
    graph = import_jaxpr(traced((FRACTIONS | NO_FRACTIONS)[name], *TYPES))
    assert is_fraction(graph.body.outputs[0]) == (name in FRACTIONS)


@pytest.mark.parametrize("dtype", ["complex64", "float8_e8m0fnu"])
def test_one_minus_what_has_no_sign_or_no_zero(dtype):
    """No flag that is turned around."""
    graph = import_jaxpr(traced(lambda x: 1 - x, jax.ShapeDtypeStruct((3,), dtype)))
    assert negated(graph.body.outputs[0]) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_powers_are_not_above_one(dtype):
    """However they are rounded: the powers of numbers up to one."""
    bases = 1 - jnp.asarray([0, 2.0**-24, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.5, 1], dtype)
    powers = jax.jit(lambda b, t: b[:, None] ** t)(bases, jnp.arange(20000).astype(dtype))
    assert ((powers >= 0) & (powers <= 1)).all()
