"""Every law of `LAWS`, on patterns of operands that are made for its primitive, in many dtypes.

Nothing here knows what a law says: it is asked about each op, and what it answers is evaluated.
"""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.values.algebra import LAWS
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, run_alone, traced

DTYPES = (
    *("bool", "int4", "int8", "uint32"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float32", "complex64"),
)
COMPARED = ("eq", "ge", "gt", "le", "lt", "ne")
LOGIC = ("and", "not", "or", "xor")
ARITHMETIC = {name: getattr(lax, name) for name in ("add", "div", "max", "min", "mul", "sub")}
BINARY = {
    **ARITHMETIC,
    **{name: getattr(lax, name) for name in COMPARED},
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}
PAIRS = (1, 2), (1, 0)
UNARY = {
    "neg": lax.neg,
    "not": lax.bitwise_not,
    "integer_pow": lambda x: lax.integer_pow(x, 1),
}
TO = ("bool", "int8", "int32", "uint32", "float32")


def has(name, dtype):
    """Whether a primitive is of a dtype."""
    is_bool, is_complex = dtype == "bool", dtype == "complex64"
    if name in LOGIC:
        return is_bool or jnp.issubdtype(dtype, jnp.integer)
    if name in ("neg", "integer_pow", *ARITHMETIC) and is_bool:
        return name in ("max", "min")
    return not (is_complex and name in (*COMPARED[1:-1], "max", "min", "clamp"))


def special(dtype):
    """Zero, one, the bounds, NaN and infinities, as far as a dtype has them."""
    if dtype == "bool":
        return jnp.array([False, True])
    found = [0, 1, 2, *map(float, dtypes.extremes(dtype) or ())]
    if jnp.issubdtype(dtype, jnp.inexact):
        found += [-0.0, 1.5, np.inf, -np.inf, np.nan]
    return jnp.asarray(np.array(found).astype(jnp.dtype(dtype)))


def atoms(dtype, x, y, p):
    """What an operand may be: an argument, a number, a choice, a truth value as a number."""
    number = lambda n: jnp.full_like(x, n)
    yield from (x, y, number(0), number(1))
    yield from (jnp.where(p, x, number(0)), jnp.where(p, number(0), y))
    yield from (lax.convert_element_type(each, dtype) for each in (p, ~p))


def program(name, dtype):
    """All patterns of operands of a primitive, as one program."""

    def unary(x, y, p):
        fun = UNARY[name]
        return [made for each in atoms(dtype, x, y, p) for made in (fun(each), fun(fun(each)))]

    def binary(x, y, p):
        made = [BINARY[name](*pair) for pair in product(atoms(dtype, x, y, p), repeat=2)]
        number = lambda n: jnp.full_like(x, n)
        chosen = [lax.select(q, number(a), number(b)) for q in (p, x > y) for a, b in PAIRS]
        return made + [BINARY[name](*pair) for pair in product(chosen, repeat=2) if name == "div"]

    def select_n(x, y, p):
        cases = list(atoms(dtype, x, y, p))[:6]
        truths = [p, ~p, jnp.full_like(p, True), lax.convert_element_type(p, np.int8) != 0]
        made = [lax.select_n(q, *pair) for q in truths for pair in product(cases, repeat=2)]
        ints = lax.convert_element_type(p, np.int32)
        return [*made, *(lax.select_n(ints, *pair) for pair in product(cases, repeat=2))]

    def clamp(x, y, p):
        found = list(atoms(dtype, x, y, p))
        small = lax.convert_element_type(p, dtype)
        return [lax.clamp(low, each, high) for low, each, high in product(found, [x, small], found)]

    def convert_element_type(x, y, p):
        to_dtypes = TO if dtype != "complex64" else ("complex64",)
        there = [lax.convert_element_type(v, to) for v in atoms(dtype, x, y, p) for to in to_dtypes]
        return [*there, *(lax.convert_element_type(each, dtype) for each in there)]

    own = {each.__name__: each for each in (select_n, clamp, convert_element_type)}
    return own.get(name) or (unary if name in UNARY else binary)


NAMES = sorted({*UNARY, *BINARY, "select_n", "clamp", "convert_element_type"})


@pytest.mark.parametrize("name", NAMES)
def test_a_law_says_what_is_so(name):
    held = set()
    for dtype in DTYPES:
        if not has(name, dtype):
            continue
        numbers = special(dtype)
        x, y = (jnp.repeat(numbers, numbers.size), jnp.tile(numbers, numbers.size))
        args = (jnp.concatenate([v, v]) for v in (x, y))
        inputs = *args, jnp.arange(2 * x.size) < x.size
        before, after = (import_jaxpr(traced(program(name, dtype), *inputs)) for _ in range(2))
        ops = [op for op in before.walk() if op.name in LAWS and op.result.uses]
        held |= {(op.name, law) for op in ops for law in LAWS[op.name] if law(op) is not None}
        run_alone((Simplify(),), after)
        want, got = (evaluate_exactly(graph, *inputs) for graph in (before, after))
        assert_same_bits(want, got, f"{name} of {dtype}")
    assert {law for of, law in held if of == name} == set(LAWS[name])


def test_every_law_is_tried():
    assert set(LAWS) - {"add_any"} == set(NAMES)
