"""Laws that hold bit for bit are applied; those that nearly hold are not."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.passes.laws.merge_common_subexpressions import MergeCommonSubexpressions
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.testing import assert_same_bits, check_rewrite, evaluate_exactly, run_alone, traced
from tests.loops import alone

SIMPLIFY = Simplify()
ZERO, ONE = np.int32(0), np.int32(1)


def left_of(program, *args, others=()):
    """The ops left after simplification; the values must be the same bits."""
    jaxpr = traced(program, *args)
    before, after = import_jaxpr(jaxpr), import_jaxpr(jaxpr)
    run_alone((SIMPLIFY, *others), after)
    inputs = [inputs_of(v.aval) for v in before.inputs]
    assert_same_bits(evaluate_exactly(before, *inputs), evaluate_exactly(after, *inputs))
    ops = (op for op in after.walk() if not op.is_terminator)
    return [op.name for op in ops if any(v.uses for v in op.results)]


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
        pytest.param(
            lambda x: x + lax.pad(np.zeros(2, np.float32), np.float32(0), [(1, 3, 0)]),
            ["f32[6]"],
            id="x+padded 0",
        ),
        pytest.param(lambda x: x - 0.0, ["f32[6]"], id="x-0"),
        pytest.param(lambda x: x / 1.0, ["f32[6]"], id="x/1"),
        pytest.param(lambda x: lax.integer_pow(x, 1), ["f32[6]"], id="x^1"),
        pytest.param(lambda x: lax.neg(lax.neg(x)), ["f32[6]"], id="--x"),
        pytest.param(lambda x: lax.max(x, x), ["f32[6]"], id="max(x, x)"),
        pytest.param(lambda x: x + 0j, ["c64[4]"], id="complex x+0"),
        pytest.param(
            lambda p: lax.select(p, np.full(2, 3), np.full(2, 3)), ["bool[2]"], id="p ? 3 : 3"
        ),
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
        pytest.param(lambda p: lax.select_n(p, p, p), ["bool[6]"], id="p ? p : p"),
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
        pytest.param(
            lambda x, y, z: lax.select_n(jnp.full(6, 2), x, y, z), ["f32[6]"] * 3, id="the last"
        ),
    ],
)
def test_law(law, args):
    """Nothing is left but what makes the constants, which nobody reads."""
    assert left_of(law, *args) == []


def number(p, dtype="float32"):
    return lax.convert_element_type(p, dtype)


ZEROS, ONES = np.zeros(4, np.float32), np.ones(4, np.float32)


def one_after_the_other(p, q):
    return number(p) + number(q) * (1 - number(p))


def added_less_both(a, b):
    return a + b - b * a


@pytest.mark.parametrize(
    ("law", "left"),
    [
        pytest.param(lambda p, q: number(p) > 0.5, [], id="p > 1/2"),
        pytest.param(
            lambda p, q: lax.le(np.full(4, 0.3, np.float32), number(p)), [], id="0.3 <= p"
        ),
        pytest.param(lambda p, q: number(p) <= 0.9, ["not"], id="p <= 0.9"),
        pytest.param(lambda p, q: number(p) < np.inf, None, id="p < inf"),
        pytest.param(lambda p, q: jnp.maximum(number(p), number(q)) > 0, ["or"], id="max"),
        pytest.param(
            lambda p, q: number(p, "int8") | number(q, "int8") == 0, ["or", "not"], id="or"
        ),
        pytest.param(lambda p, q: number(p) * number(q, "float32") == 1, ["and"], id="p * q"),
        pytest.param(lambda p, q: jnp.minimum(number(p), number(q)) >= 1, ["and"], id="min"),
        pytest.param(
            lambda p, q: number(p, "int8") & number(q, "int8") != 1, ["and", "not"], id="and"
        ),
        pytest.param(lambda p, q: 1 - number(p) == 0, [], id="1 - p == 0"),
        pytest.param(lambda p, q: added_less_both(number(p), number(q)) > 0, ["or"], id="p+q-pq"),
        pytest.param(
            lambda p, q: lax.select(p, number(q), number(p)) > 0, ["select_n"], id="p ? q : p"
        ),
        pytest.param(lambda p, q: number(p)[:, None] == 0, ["not", "broadcast_in_dim"], id="row"),
        pytest.param(lambda p, q: lax.select(p, ONES, ZEROS) > 0.5, [], id="p ? 1 : 0"),
        pytest.param(
            lambda p, q: 1 - lax.select(p, ONES, ZEROS) > 0.5, ["not"], id="1 - (p ? 1 : 0)"
        ),
        pytest.param(
            lambda p, q: lax.select(jnp.any(p), ONES, ZEROS) > 0.5,
            ["reduce_or", "broadcast_in_dim", "ne", "ne", "select_n"],
            id="one truth value for all",
        ),
        pytest.param(lambda p, q: jnp.max(number(p)) > 0, ["reduce_or"], id="any"),
        pytest.param(lambda p, q: jnp.min(number(p)) > 0, ["reduce_and"], id="all"),
        pytest.param(lambda p, q: number(number(p), "bfloat16") > 0, [], id="bf16"),
        pytest.param(lambda p, q: number(p) + number(q) > 0.5, None, id="a sum"),
        pytest.param(lambda p, q: jnp.maximum(number(p), 0.5) > 0, None, id="max with a half"),
        pytest.param(lambda p, q: 2 - number(p) > 0, None, id="2 - p"),
    ],
)
def test_questions_to_zeros_and_ones_are_logic(law, left):
    """None: it stays a comparison."""
    others = MergeCommonSubexpressions(), EliminateDeadCode()
    ops = left_of(law, "bool[4]", "bool[4]", others=others)
    assert ops == left if left is not None else ops[-1] in ("gt", "lt")


@pytest.mark.parametrize(
    ("law", "args", "left"),
    [
        pytest.param(lambda x: x * 0.0, ["f32[6]"], ["mul"], id="inf*0 is NaN"),
        pytest.param(
            lambda x: x + lax.pad(np.zeros(2, np.float32), np.float32(1), [(1, 3, 0)]),
            ["f32[6]"],
            ["pad", "add"],
            id="x+0 padded by 1",
        ),
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
            lambda p: lax.eq(p.astype("int32"), np.int32(2)),
            ["bool[]"],
            ["convert_element_type", "eq"],
            id="int(p) == 2 is false",
        ),
        pytest.param(
            lambda p: lax.le(p.astype("int32"), np.int32(1)),
            ["bool[]"],
            ["convert_element_type", "le"],
            id="int(p) <= 1 is true",
        ),
        pytest.param(
            lambda i: lax.clamp(np.int32(0), i, np.int32(7)),
            ["i32[]"],
            ["clamp"],
            id="any number clamped",
        ),
        pytest.param(lax.max, ["f32[6]"] * 2, ["max"], id="max(x, y)"),
        pytest.param(lambda x: x**2, ["f32[6]"], ["integer_pow"], id="x^2"),
        pytest.param(lambda x: -lax.floor(x), ["f32[6]"], ["floor", "neg"], id="-floor(x)"),
        pytest.param(
            lambda x: lax.select_n(np.full(6, 5), x, x, 1 - x),
            ["f32[6]"],
            ["sub", "select_n"],
            id="out of range",
        ),
        pytest.param(
            lambda i, j: lax.select_n(lax.clamp(np.int32(0), i, np.int32(2)), ZERO, ONE, j),
            ["i32[]"] * 2,
            ["clamp", "select_n"],
            id="one of three",
        ),
        pytest.param(
            lambda p, q: lax.select(p, q, np.False_), ["bool[]"] * 2, ["select_n"], id="p ? q : F"
        ),
        pytest.param(
            lambda p, q: lax.select(p, np.True_, q), ["bool[]"] * 2, ["select_n"], id="p ? T : q"
        ),
        pytest.param(
            lambda p: lax.select(p, np.float32(0.0), np.float32(-0.0)),
            ["bool[]"],
            ["select_n"],
            id="p ? 0 : -0",
        ),
        pytest.param(lax.select, ["bool[5]", *["i32[5]"] * 2], ["select_n"], id="p ? i : j"),
        pytest.param(
            lambda p: lax.eq(-p.astype("int32"), ONE),
            ["bool[]"],
            ["convert_element_type", "neg", "eq"],
            id="-int(p) == 1 is false",
        ),
        pytest.param(
            lambda p, i, j: lax.eq(lax.select(p, i, j), ONE),
            ["bool[]", *["i32[]"] * 2],
            ["select_n", "eq"],
            id="a number that p selects",
        ),
        pytest.param(
            lambda p, x: lax.select(p, x, p.astype("f4")),
            ["bool[6]", "f32[6]"],
            ["convert_element_type", "select_n"],
            id="p ? x : float(p)",
        ),
        pytest.param(
            lambda p, q, x, y: lax.select(p, lax.select(q, x, y), y),
            [*["bool[6]"] * 2, *["f32[6]"] * 2],
            ["select_n"] * 2,
            id="p ? (q ? x : y) : y",
        ),
        pytest.param(
            lambda p: lax.clamp(ZERO, -p.astype("int32"), ONE),
            ["bool[]"],
            ["convert_element_type", "neg", "clamp"],
            id="below the limits",
        ),
        pytest.param(
            lambda p, x: lax.select_n(p, x, 0 * x) + lax.select_n(p, x, 0 * x),
            ["bool[6]", "f32[6]"],
            ["mul", "select_n", "mul", "select_n", "add"],
            id="(p ? a : 0) + (p ? b : 0)",
        ),
        pytest.param(
            lambda p, q, x: (
                lax.select_n(p, x, np.zeros(6, np.float32))
                + lax.select_n(q, np.zeros(6, np.float32), x)
            ),
            ["bool[6]", "bool[6]", "f32[6]"],
            ["select_n", "select_n", "add"],
            id="(p ? a : 0) + (q ? 0 : b)",
        ),
        pytest.param(
            lambda p, x: lax.select_n(p.astype("int32"), x, -x, 2 * x),
            ["bool[]", "f32[6]"],
            ["convert_element_type", "neg", "mul", "select_n"],
            id="one of three",
        ),
        pytest.param(lambda x: lax.mul(x, x), ["f32[6]"], ["mul"], id="x*x"),
        pytest.param(
            lambda x: lax.select_n(lax.ne(x, np.zeros(6, np.float32)), x, x),
            ["f32[6]"],
            ["ne", "select_n"],
            id="x is asked whether it is zero",
        ),
    ],
)
def test_no_law(law, args, left):
    """(1) Conditions: exact for every number."""
    assert left_of(law, *args) == left


@pytest.mark.parametrize(
    "turned",
    [
        pytest.param(lambda p: lax.eq(p.astype("int32"), np.int32(0)), id="int(p) == 0"),
        pytest.param(lambda p: lax.ne(p.astype("int32"), np.int32(1)), id="int(p) != 1"),
        pytest.param(lambda p: lax.lt(p.astype("int32"), np.int32(1)), id="int(p) < 1"),
        pytest.param(lambda p: lax.le(p.astype("f4"), np.float32(0)), id="float(p) <= 0"),
        pytest.param(lambda p: lax.eq(p, False), id="p == false"),
    ],
)
def test_turned_round(turned):
    """What JAX asks of the number of a branch, of the predicate."""
    assert left_of(turned, "bool[]") == ["not"]


def test_spread_numbers():
    """The mask of a vmapped switch of two branches: clamped, and compared with their numbers."""

    def program(p, x, y):
        number = lax.broadcast_in_dim(p.astype("int32"), (2, 3), (0,))
        number = lax.clamp(np.int32(0), number, np.int32(1))
        first, second = lax.eq(number, np.int32(0)), lax.eq(number, np.int32(1))
        return lax.select_n(first, x, y), lax.select_n(second, x, y), lax.select_n(number, x, y)

    check_rewrite(
        SIMPLIFY,
        program,
        "bool[2]",
        "f32[2,3]",
        "f32[2,3]",
        diff="""
            fn (p:bool[2], x:f32[2,3], y:f32[2,3]) {
              c:i32[2] = convert_element_type p
              b:i32[2,3] = broadcast_in_dim[dims=(0,)] c
          -   c1:i32[2,3] = clamp 0 b 1
          -   e:bool[2,3] = eq c1 0
          -   e1:bool[2,3] = eq c1 1
          +   n:bool[2] = not p
          +   b1:bool[2,3] = broadcast_in_dim[dims=(0,)] n
          +   b2:bool[2,3] = broadcast_in_dim[dims=(0,)] p
          +   b3:bool[2,3] = broadcast_in_dim[dims=(0,)] p
          -   s:f32[2,3] = select_n e x y
          +   s:f32[2,3] = select_n b3 y x
          -   s1:f32[2,3] = select_n e1 x y
          +   s1:f32[2,3] = select_n b2 x y
          +   b4:bool[2,3] = broadcast_in_dim[dims=(0,)] p
          -   s2:f32[2,3] = select_n c1 x y
          +   s2:f32[2,3] = select_n b4 x y
              return s, s1, s2
            }
        """,
    )


def test_numbers_of_branches():
    """What a vmapped switch passes to a branch is selected by whether the number is that of the
    branch, and where the branch counts, it is.
    """

    def program(n, x, y, z):
        number = lax.broadcast_in_dim(lax.clamp(np.int32(0), n, np.int32(2)), (2, 3), (0,))
        ours = lax.broadcast_in_dim(lax.eq(lax.clamp(np.int32(0), n, np.int32(2)), 2), (2, 3), (0,))
        return lax.select_n(number, x, lax.select_n(ours, y, x), lax.select_n(ours, x, z))

    graph = import_jaxpr(traced(program, "i32[2]", *["f32[2,3]"] * 3))
    run_alone((MergeCommonSubexpressions(), SIMPLIFY), graph)
    run_alone((EliminateDeadCode(),), graph)
    assert [op.name for op in graph.walk()].count("select_n") == 1
    for n in ([0, 1], [2, 2], [1, -5], [7, 2]):
        args = jnp.array(n), *(jnp.arange(6.0).reshape(2, 3) + k for k in (0, 10, 20))
        assert_same_bits(program(*args), evaluate_exactly(graph, *args)[0])


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(
            lambda n, m: lax.eq(n[:, None] + np.zeros((3, 3), int), 1), id="other numbers"
        ),
        pytest.param(
            lambda n, m: lax.broadcast_in_dim(lax.eq(m, 1), (3, 3), (1,)), id="other axis"
        ),
        pytest.param(
            lambda n, m: lax.broadcast_in_dim(lax.lt(m, 1), (3, 3), (0,)), id="other test"
        ),
        pytest.param(lambda n, m: lax.broadcast_in_dim(lax.eq(n, 1), (3, 3), (0,)), id="unclamped"),
    ],
)
def test_numbers_that_do_not_tell(inner):
    def program(n, x, y):
        m = lax.clamp(np.int32(0), n, np.int32(1))
        number = lax.broadcast_in_dim(m, (3, 3), (0,))
        return lax.select_n(number, x, lax.select_n(inner(n, m), x, y))

    assert left_of(program, "i32[3]", *["f32[3,3]"] * 2).count("select_n") == 2


def test_numbers_out_of_range():
    """Nobody says what XLA selects by them."""

    def program(n, x, y):
        number = lax.broadcast_in_dim(n, (3, 3), (0,))
        ours = lax.broadcast_in_dim(lax.eq(n, 0), (3, 3), (0,))
        return lax.select_n(number, lax.select_n(ours, x, y), x, y)

    assert left_of(program, "i32[3]", *["f32[3,3]"] * 2).count("select_n") == 2


def test_selects_of_more_cases_by_one_number():
    """The last case is also that of larger numbers."""

    def program(n, x, y):
        outer = lax.select_n(n, x, y, lax.select_n(n, y, x))
        inner = lax.select_n(n, x, lax.select_n(n, x, y, 2 * x, 2 * y))
        return outer, inner

    assert left_of(program, "i32[3]", *["f32[3]"] * 2).count("select_n") == 4


def test_parts_of_a_sum():
    """Each is zero where the other is not: a cotangent, put together again."""

    def program(p, a, b):
        zeros = jnp.zeros(3)
        when, unless = lax.select_n(p, zeros, a), lax.select_n(p, b, zeros)
        return when + unless, unless + when

    check_rewrite(
        SIMPLIFY,
        program,
        "bool[3]",
        "f32[3]",
        "f32[3]",
        diff="""
            fn (p:bool[3], a:f32[3], b:f32[3]) {
              b1:f32[3] = broadcast_in_dim 0.0
              s:f32[3] = select_n p b1 a
              s1:f32[3] = select_n p b b1
          -   a1:f32[3] = add s s1
          -   a2:f32[3] = add s1 s
          +   s2:f32[3] = select_n p b a
          +   s3:f32[3] = select_n p b a
          -   return a1, a2
          +   return s2, s3
            }
        """,
    )


@pytest.mark.parametrize("zeros", [(1, 3), (0, 2), (0,), (1,), (2,), (3,), ()])
def test_parts_that_are_not_of_one_array(zeros):
    """(1) Two that are not zero for one predicate are added."""

    def program(p, *xs):
        a, b, c, d = (np.zeros(6, np.float32) if i in zeros else x for i, x in enumerate(xs))
        return lax.select_n(p, a, b) + lax.select_n(p, c, d)

    assert left_of(program, "bool[6]", *["f32[6]"] * 4) == ["select_n", "select_n", "add"]


def test_parts_of_different_shapes():
    """(2) A scalar is added to every element."""

    def program(p, a, b):
        return lax.add_p.bind(lax.select_n(p, a, jnp.zeros(3)), lax.select_n(p, np.float32(0), b))

    assert left_of(program, "bool[]", "f32[3]", "f32[]")[-1] == "add"


def quotient(above, below, dtype="float32", *, other=jnp.greater):
    """A choice of two numbers, divided by a choice of two others."""

    def program(p, x):
        q = other(x, np.asarray(0, x.dtype))
        a, b, c, d = (jnp.full(6, number, dtype) for number in (*above, *below))
        return lax.select(p, a, b) / lax.select(q, c, d)

    return program


@pytest.mark.parametrize(
    ("above", "below", "selects"),
    [((1, 0), (2, 1), 2), ((1, 0), (1, 1), 1), ((3, 1), (0.5, 4), 3), ((0, 0), (2, 4), 1)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_choices_that_are_divided(above, below, selects, dtype):
    """The gradient of a maximum is one, a half or zero: no division is left."""
    left = left_of(quotient(above, below, dtype), "bool[6]", "f32[6]")
    assert "div" not in left
    assert left.count("select_n") <= selects


def test_gradient_of_a_maximum():
    """Divisions of numbers that masks choose are choices between three numbers."""

    def program(p, q):
        one, none, two = (lax.full((3,), number, np.float32) for number in (1, 0, 2))
        return lax.select(p, one, none) / lax.select(q, two, one)

    check_rewrite(
        SIMPLIFY,
        program,
        "bool[3]",
        "bool[3]",
        diff="""
            fn (p:bool[3], q:bool[3]) {
              b:f32[3] = broadcast_in_dim 1.0
              b1:f32[3] = broadcast_in_dim 0.0
              b2:f32[3] = broadcast_in_dim 2.0
              s:f32[3] = select_n p b1 b
              s1:f32[3] = select_n q b b2
          -   d:f32[3] = div s s1
          +   b3:f32[3] = broadcast_in_dim 0.0
          +   b4:f32[3] = broadcast_in_dim 0.0
          +   b5:f32[3] = broadcast_in_dim 1.0
          +   b6:f32[3] = broadcast_in_dim 0.5
          +   s2:f32[3] = select_n q b5 b6
          +   s3:f32[3] = select_n p b3 s2
          -   return d
          +   return s3
            }
        """,
    )


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ((1, 0), (3, 1)),
        ((1, 0), (0, 1)),
        ((1, -1), (2, 1)),
        ((1, -0.0), (2, 1)),
        ((1, 0), (-2, 1)),
        ((np.inf, 0), (2, 1)),
        ((1, 0), (np.inf, 1)),
        ((np.nan, 0), (2, 1)),
        ((1e-45, 0), (2, 1)),
    ],
)
def test_choices_whose_quotients_are_not_exact(above, below):
    """(1) XLA divides as it does."""
    left = left_of(quotient(above, below), "bool[6]", "f32[6]")
    assert left[-1] == "div"


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_choices_of_other_numbers_that_are_divided(dtype):
    """(1)"""
    program = lambda p, x: lax.div(
        lax.select(p, jnp.full(6, 4, dtype), jnp.zeros(6, dtype)),
        lax.select(x > 0, jnp.full(6, 2, dtype), jnp.ones(6, dtype)),
    )
    assert left_of(program, "bool[6]", "f32[6]")[-1] == "div"


def test_choices_of_numbers_that_are_not_known():
    """(1) One of the four is an argument."""
    ones = np.ones(6, np.float32)
    program = lambda p, x: lax.select(p, ones, x) / lax.select(x > 0, 2 * ones, ones)
    assert left_of(program, "bool[6]", "f32[6]")[-1] == "div"
    program = lambda p, x: lax.select(p, ones, 0 * ones) / x
    assert left_of(program, "bool[6]", "f32[6]")[-1] == "div"


def test_choices_by_an_integer_that_are_divided():
    """(1) There are three cases."""
    ones = np.ones(6, np.float32)
    cases = 2 * ones, ones, 4 * ones
    program = lambda p, i: lax.select(p, ones, 0 * ones) / lax.select_n(jnp.clip(i, 0, 2), *cases)
    assert left_of(program, "bool[6]", "i32[6]")[-1] == "div"


def test_choices_for_all_elements_that_are_divided():
    """(2) A scalar chooses for all elements: it would have to be repeated."""
    ones = np.ones(6, np.float32)

    def program(p, x):
        above = lax.select_n(jnp.any(p), 0 * ones, ones)
        return above / lax.select(x > 0, 2 * ones, ones)

    assert left_of(program, "bool[6]", "f32[6]")[-1] == "div"


def test_axes_of_one_element():
    """(2) They are spread by any op of two operands."""

    def compared(p):
        number = lax.broadcast_in_dim(p.astype("int32"), (1,), ())
        return lax.ne(number, np.zeros(3, np.int32))

    def added(p, a, b):
        return lax.add(lax.select_n(p, a, jnp.zeros(1)), lax.select_n(p, jnp.zeros(3), b))

    assert left_of(compared, "bool[]")[-1] == "ne"
    assert left_of(added, "bool[]", "f32[1]", "f32[3]")[-1] == "add"


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


def test_an_index_that_is_never_negative():
    """(3) A counter, and one more: JAX asks of each whether it counts from the end."""

    def program(xs):
        return lax.fori_loop(1, 5, lambda i, total: total + xs[i - 1] * xs[i], 0.0)

    check_rewrite(
        SIMPLIFY,
        program,
        "f32[5]",
        diff="""
          fn (xs:f32[5]) {
            c:i32[], c1:f32[] = scan[4] carry(c=1, c1=0.0) {
              a:i32[] = add c 1
              s:i32[] = sub c 1
              l:bool[] = lt s 0
              c2:i32[] = convert_element_type s
              a1:i32[] = add c2 5
        -     s1:i32[] = select_n l s a1
        +     c5:i32[] = convert_element_type s
        -     d:f32[1] = dynamic_slice xs s1
        +     d:f32[1] = dynamic_slice xs c5
              s2:f32[] = squeeze d
              l1:bool[] = lt c 0
              c3:i32[] = convert_element_type c
              a2:i32[] = add c3 5
        -     s3:i32[] = select_n l1 c a2
        +     c6:i32[] = convert_element_type c
        -     d1:f32[1] = dynamic_slice xs s3
        +     d1:f32[1] = dynamic_slice xs c6
              s4:f32[] = squeeze d1
              m:f32[] = mul s2 s4
              c4:f32[] = convert_element_type c1
              a3:f32[] = add c4 m
              yield carry(a, a3)
            }
            return c1
          }
        """,
    )


def steps(index, *, first=0, dtype="int32"):
    """Select in each of four steps, by the sign of what is made of a counter and of data."""

    def program(xs, data):
        def step(carry, at):
            i, xs = carry
            return (i + np.asarray(1, dtype), lax.select_n(index(i, at) < 0, xs, -xs)), None

        return lax.scan(step, (np.asarray(first, dtype), xs), data)[0][1]

    return program


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(steps(lambda i, at: at), id="from the data"),
        pytest.param(steps(lambda i, at: i, first=-1), id="negative at first"),
        pytest.param(steps(lambda i, at: i - 1), id="one before"),
        pytest.param(steps(lambda i, at: 2 - i), id="negative at last"),
        pytest.param(steps(lambda i, at: i, first=125, dtype="int8"), id="wraps around"),
        pytest.param(steps(lambda i, at: i + np.int8(125), dtype="int8"), id="wraps, added"),
    ],
)
def test_a_sign_that_is_not_the_same_in_all_steps_is_asked_for(program):
    """(3)"""
    assert "select_n" in left_of(program, "f32[6]", "i32[4]")


def test_the_sign_of_what_a_while_counts_is_asked_for():
    """(3) It may take any number of steps."""

    def program(xs, n):
        return lax.while_loop(
            lambda c: c[0] < n,
            lambda c: (c[0] + 1, lax.select_n(c[0] < 0, c[1], -c[1])),
            (n - 2, xs),
        )[1]

    assert "select_n" in left_of(program, "f32[6]", "i32[]")


def test_known_ranges():
    """(3) Of whole masks; and where no step is taken."""

    def program(xs, x):
        inside = jnp.where(lax.iota("int32", 6) < 6, xs, 0.0)
        return inside, lax.scan(lambda c, i: (jnp.where(i < 0, c, -c), None), x, jnp.arange(0))[0]

    assert "select_n" not in left_of(program, "f32[6]", "f32[]")


@pytest.mark.parametrize(
    ("dtype", "fires"), [("uint8", True), ("int8", False), ("int16", True), ("bool", False)]
)
def test_conversions_of_known_ranges(dtype, fires):
    """(3) The numbers of 200 steps fit into eight bits without a sign."""

    def program(xs):
        def step(i, x):
            return i + 1, x * i.astype(dtype).astype("int32")

        return lax.scan(step, np.int32(0), xs)[1]

    ops = left_of(program, "f32[200]", others=(EliminateDeadCode(),))
    assert (ops.count("convert_element_type") < 3) is fires


def test_truth_values_as_numbers_without_zero():
    """A false one is no number there, and so not less than one, nor zero."""

    def program(p):
        number = p.astype(jnp.float8_e8m0fnu)
        return number < jnp.ones(3, number.dtype), number.astype("float32") != 0

    assert {"lt", "ne"} <= {*left_of(program, "bool[3]")}


def test_arrays_that_are_only_made_strong():
    """(2) Writes to `jnp.full(n, 0.5)`, whose type is weak, make it strong, and weak again. What
    the program returns is as weak as before.
    """

    def program(v):
        write = lambda i, x: jnp.where(v > x[i], x.at[i].set(v), x)
        return lax.fori_loop(0, 3, write, jnp.full(5, 0.5))

    left_of(program, "f32[]")
    jaxpr = traced(program, "f32[]")
    graph = import_jaxpr(jaxpr)
    run_alone((SIMPLIFY,), graph)
    assert not any(is_noop_cast(op) and op.result.shape for op in graph.walk())
    assert export(graph).out_avals[0].weak_type is jaxpr.out_avals[0].weak_type is True


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_a_difference_of_the_same(dtype):
    """(3) Of integers it is zero; of floats it may be NaN."""
    alone(SIMPLIFY, lambda x: x - x, jnp.arange(3).astype(dtype), fires=True)
    alone(SIMPLIFY, lambda x: x - x, "f32[3]", fires=False)
