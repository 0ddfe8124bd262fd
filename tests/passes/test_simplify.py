"""Laws that hold bit for bit are applied; those that nearly hold are not."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.importer import import_jaxpr
from jaxpr_opt.passes.simplify import Simplify
from jaxpr_opt.testing import assert_same_bits, check_rewrite, evaluate_exactly, run_alone, traced

SIMPLIFY = Simplify()


def left_of(program, *args):
    """The ops left after simplification; the values must be the same bits."""
    jaxpr = traced(program, *args)
    before, after = import_jaxpr(jaxpr), import_jaxpr(jaxpr)
    run_alone((SIMPLIFY,), after)
    inputs = [inputs_of(v.aval) for v in before.inputs]
    assert_same_bits(evaluate_exactly(before, *inputs), evaluate_exactly(after, *inputs))
    return [op.name for op in after.walk() if not op.is_terminator and op.result.uses]


def inputs_of(aval):
    """Every special number of a type."""
    bounds = []
    if aval.dtype.kind == "i":
        bounds = [np.iinfo(aval.dtype).min, np.iinfo(aval.dtype).max]
    special = {
        "b": [True, False],
        "i": [0, 1, -1, *bounds],
        "f": [0.0, -0.0, 1.5, np.inf, -np.inf, np.nan],
        "c": [0.0, 1j, np.inf + 0j, complex(np.nan, 1.0)],
    }[aval.dtype.kind]
    return jnp.asarray(np.resize(np.array(special, aval.dtype), aval.shape))


@pytest.mark.parametrize(
    ("law", "args"),
    [
        pytest.param(lambda x: x * 1.0, ["f32[6]"], id="x*1"),
        pytest.param(lambda x: 1.0 * x, ["f32[6]"], id="1*x"),
        pytest.param(lambda x: x * jnp.ones(6), ["f32[6]"], id="x*ones"),
        pytest.param(lambda x: x + 0.0, ["f32[6]"], id="x+0"),
        pytest.param(lambda x: x - 0.0, ["f32[6]"], id="x-0"),
        pytest.param(lambda x: x / 1.0, ["f32[6]"], id="x/1"),
        pytest.param(lambda x: lax.integer_pow(x, 1), ["f32[6]"], id="x^1"),
        pytest.param(lambda x: lax.neg(lax.neg(x)), ["f32[6]"], id="--x"),
        pytest.param(lambda x: lax.max(x, x), ["f32[6]"], id="max(x, x)"),
        pytest.param(lambda x: x + 0j, ["c64[4]"], id="complex x+0"),
        pytest.param(lambda p: ~~p, ["bool[2]"], id="not not"),
        pytest.param(lambda p: p & True, ["bool[2]"], id="p and true"),
        pytest.param(lambda p: p | p, ["bool[2]"], id="p or p"),
        pytest.param(
            lambda p: lax.ne(p.astype("int32"), np.int32(0)), ["bool[]"], id="int(p) != 0"
        ),
        pytest.param(
            lambda p: lax.eq(p.astype("int32"), np.int32(1)), ["bool[]"], id="int(p) == 1"
        ),
        pytest.param(
            lambda p: lax.gt(p.astype("f4"), np.float32(0)), ["bool[]"], id="float(p) > 0"
        ),
        pytest.param(lambda p: p.astype("int32").astype(bool), ["bool[2]"], id="bool(int(p))"),
        pytest.param(lambda i: i.astype("int16").astype("int8"), ["i8[5]"], id="narrow(wide(i))"),
        pytest.param(lambda p, x: lax.select(p, x, x), ["bool[6]", "f32[6]"], id="p ? x : x"),
        pytest.param(
            lambda x, y: lax.select(jnp.full(6, True), x, y),
            ["f32[6]", "f32[6]"],
            id="true ? x : y",
        ),
        pytest.param(
            lambda p: lax.select(p, jnp.full(2, True), jnp.full(2, False)),
            ["bool[2]"],
            id="p ? T : F",
        ),
    ],
)
def test_law(law, args):
    """Nothing is left but what makes the constants, which nobody reads."""
    assert left_of(law, *args) == []


@pytest.mark.parametrize(
    ("law", "args", "left"),
    [
        pytest.param(lambda x: x * 0.0, ["f32[6]"], ["mul"], id="inf*0 is NaN"),
        pytest.param(lambda x: x - x, ["f32[6]"], ["sub"], id="inf-inf is NaN"),
        pytest.param(lambda x: x / x, ["f32[6]"], ["div"], id="0/0 is NaN"),
        pytest.param(lambda x: lax.eq(x, x), ["f32[6]"], ["eq"], id="NaN is not NaN"),
        pytest.param(lambda x: 0.0 - x, ["f32[6]"], ["sub"], id="0-x is -x"),
        pytest.param(lambda x: 1.0 / x, ["f32[6]"], ["div"], id="1/x is not x"),
        pytest.param(lambda x: lax.mul(x, np.complex64(1)), ["c64[4]"], ["mul"], id="complex x*1"),
        pytest.param(
            lambda x: x.astype("float16").astype("float32"),
            ["f32[6]"],
            ["convert_element_type", "convert_element_type"],
            id="rounded",
        ),
        pytest.param(
            lambda i: i.astype("int8").astype("int32"),
            ["i32[5]"],
            ["convert_element_type", "convert_element_type"],
            id="truncated",
        ),
        pytest.param(
            lambda p: lax.ne(p.astype("f4"), np.float32(0.5)),
            ["bool[]"],
            ["convert_element_type", "ne"],
            id="float(p) != 0.5 is true",
        ),
        pytest.param(
            lambda p: lax.ne(p.astype("int32"), np.int32(1)),
            ["bool[]"],
            ["convert_element_type", "ne"],
            id="int(p) != 1 is not p",
        ),
        pytest.param(lambda x: lax.mul(x, x), ["f32[6]"], ["mul"], id="x*x"),
    ],
)
def test_no_law(law, args, left):
    """(1) Conditions: exact for every number."""
    assert left_of(law, *args) == left


def test_weak_types_are_kept():
    """(2) x * 1 with a strong 1 makes a weak x strong."""

    assert left_of(lambda x: lax.mul(x, np.float32(1)), 3.0) == ["mul"]


def test_scalar_is_not_an_array():
    """(2) The other operand of 0 may have another shape."""
    assert left_of(lambda x: lax.add(x, np.zeros(3, np.float32)), "f32[3]") == []
    assert left_of(lambda x: lax.add(lax.broadcast(x, (3,)), np.zeros(3, np.float32)), "f32[]") == [
        "broadcast_in_dim"
    ]


def test_selects_under_one_predicate():
    """A skipped step of a vmapped loop, twice."""

    def program(p, a, b, c):
        return lax.select(p, lax.select(p, a, b), c), lax.select(p, a, lax.select(p, b, c))

    args = "bool[3]", "f32[3]", "f32[3]", "f32[3]"
    check_rewrite(
        SIMPLIFY,
        program,
        *args,
        diff="""
          fn (p:bool[3], a:f32[3], b:f32[3], c:f32[3]) {
            s:f32[3] = select_n p b a
        -   s1:f32[3] = select_n p c s
        +   s1:f32[3] = select_n p c a
            s2:f32[3] = select_n p c b
        -   s3:f32[3] = select_n p s2 a
        +   s3:f32[3] = select_n p c a
            return s1, s3
          }
        """,
    )


def test_clamps():
    """`lax.switch` clamps its index again each time it is traced."""

    def program(i):
        return lax.clamp(0, lax.clamp(0, i, 2), 2), lax.clamp(0, lax.clamp(0, i, 5), 2)

    check_rewrite(
        SIMPLIFY,
        program,
        "i32[]",
        diff="""
          fn (i:i32[]) {
            c:i32[] = clamp 0 i 2
        -   c1:i32[] = clamp 0 c 2
            c2:i32[] = clamp 0 i 5
            c3:i32[] = clamp 0 c2 2
        -   return c1, c3
        +   return c, c3
          }
        """,
    )
