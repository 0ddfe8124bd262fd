"""Integers as functions of the steps of loops: what is said of a value is what it is."""

import os
from dataclasses import dataclass

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.induction import affine, bounds, component, decide
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import assert_same_bits, random_inputs, traced
from tests.graphs import scans
from tests.watch import watch

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "0"))
SLOW = list(hypothesis.HealthCheck)
I32, I64, I8, U8 = np.int32, np.int64, np.int8, np.uint8


# ---------------------------------------------------------------- the values as they are


def grid(form: Affine, shape, steps):
    """The array that an affine form describes, at these steps."""
    total = np.full(shape, form.offset + sum(k * steps[scan] for scan, k in form.steps.items()))
    for axis, stride in enumerate(form.strides):
        total += stride * np.arange(shape[axis]).reshape([-1] + [1] * (len(shape) - axis - 1))
    return total


def values_of(region):
    return [*region.params, *(v for op in region.ops for v in (*op.operands, *op.results))]


@dataclass(frozen=True)
class Facts:
    """All that is said of a value."""

    affine: Affine | None
    components: list[Affine | None]
    bounds: tuple[int, int] | None
    decide: bool | None

    @classmethod
    def of(cls, value):
        form = affine(value)
        numbers = range(value.shape[-1] if value.shape and form is None else 0)
        parts = [component(value, k) for k in numbers]
        return cls(form, parts, bounds(value), decide(value))

    def check(self, got, steps):
        if self.affine is not None:
            np.testing.assert_array_equal(got, grid(self.affine, got.shape, steps))
        for number, part in enumerate(self.components):
            if part is not None:
                wanted = grid(part, got.shape[:-1], steps)
                np.testing.assert_array_equal(got[..., number], wanted)
        if self.bounds is not None and got.size:
            assert self.bounds[0] <= got.min()
            assert got.max() <= self.bounds[1]
        if self.decide is not None:
            assert got.dtype == bool
            assert (got == self.decide).all()


def check_all(graph, *args):
    """Whatever is said of any value of a program holds, in every step; all that is said."""
    facts = {}

    def visit(region, steps, look):
        for value in dict.fromkeys(values_of(region)):
            if value.dtype is not None and np.dtype(value.dtype).kind in "iub":
                if value not in facts:
                    facts[value] = Facts.of(value)
                facts[value].check(np.asarray(look(value), dtype=value.dtype), steps)

    watch(graph, args, visit)
    return list(facts.values())


def told(program, *args):
    """What is said of the outputs, or of the innermost values that they are stacks of; checked."""
    jaxpr = traced(program, *args)
    graph = import_jaxpr(jaxpr)
    check_all(graph, *random_inputs(jaxpr.in_avals))
    return [text(innermost(value)) for value in graph.outputs]


def innermost(value):
    """Inside the loops that stack it: the value of one step."""
    while isinstance(value.op, Scan) and (stack := value.op.stack_of(value)) is not None:
        value = stack.value
    return value


def text(value):
    """`3 + 2 s0 - 1 d1`: step of the outermost loop, index on the second axis."""
    form = affine(value)
    if form is None:
        return None
    depth = {scan: number for number, scan in enumerate(loops_around(value))}
    terms = [(k, f"s{depth[scan]}") for scan, k in form.steps.items()]
    terms = sorted(terms, key=lambda t: t[1])
    terms += [(k, f"d{axis}") for axis, k in enumerate(form.strides) if k]
    words = "".join(f" {'-' if k < 0 else '+'} {abs(k)} {name}" for k, name in terms)
    return f"{form.offset}{words}"


def loops_around(value):
    found, region = [], value.region
    while region is not None:
        op = region.owner
        if isinstance(op, Scan):
            found.append(op)
        region = region.parent
    return reversed(found)


# ---------------------------------------------------------------- counters


def counting(step, init=0, length=5, reverse=False, of=lambda i: i):
    """A loop that carries a number and stacks `of` it."""

    def program():
        body = lambda i, _: (step(i), of(i))
        return lax.scan(body, init, None, length=length, reverse=reverse)[1]

    return program


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (counting(lambda i: i + 1), "0 + 1 s0"),
        (counting(lambda i: i + 2, init=1), "1 + 2 s0"),
        (counting(lambda i: 2 + i, init=I32(1)), "1 + 2 s0"),
        (counting(lambda i: i - 1, init=9), "9 - 1 s0"),
        (counting(lambda i: i + 1 + 1 - 3, init=9), "9 - 1 s0"),
        (counting(lambda i: i + 1, reverse=True), "4 - 1 s0"),
        (counting(lambda i: i - 2, init=1, reverse=True), "-7 + 2 s0"),
        (counting(lambda i: i, init=7), "7"),
        (counting(lambda i: i + 1, length=1), "0 + 1 s0"),
        (counting(lambda i: i + 1, length=0), "0 + 1 s0"),
        (counting(lambda i: lax.convert_element_type(i + 1, I32), init=I32(0)), "0 + 1 s0"),
        (counting(lambda i: i + U8(1), init=U8(250)), "250 + 1 s0"),
        (counting(lambda i: i - U8(1), init=U8(5)), "5 - 1 s0"),
        (counting(lambda i: i + U8(1), init=U8(251)), None),  # 256 is 0, after the last step
        (counting(lambda i: i - U8(1), init=U8(4)), None),
        (counting(lambda i: i + U8(255), init=U8(5)), None),  # in fact 5 - s0
        (counting(lambda i: i + I8(1), init=I8(123)), None),
        (counting(lambda i: i - I8(1), init=I8(-124)), None),
        (counting(lambda i: i + 2**30, length=2), None),
        (counting(lambda i: i * 2, init=1), None),
        (counting(lambda i: i * 1), None),
        (counting(lambda i: i + i), None),
        (counting(lambda i: 3 - i), None),
        (counting(lambda i: lax.max(i, 3)), None),
        (counting(lambda i: jnp.where(i < 3, i + 1, i)), None),
        (counting(lambda i: i + 1.0, init=0.0), None),
        (counting(lambda i: i + 1, init=np.zeros(2, int)), None),
        (counting(lambda i: ~i, init=False), None),
    ],
)
def test_counters(program, expected):
    assert told(program) == [expected]


def carried(step, init, streams=None, **options):
    """What is said of the carries of a loop at the start of a step."""

    def program(*outer):
        body = lambda c, x: (step(c, x, *outer), c)
        return lax.scan(body, init, streams, **{"length": 5, **options})[1]

    return program


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (carried(lambda c, x, n: (c[0] + 1, c[1] - 3), (0, 20)), ["0 + 1 s0", "20 - 3 s0"]),
        (carried(lambda c, x, n: (c[1], c[0]), (0, 0)), [None, None]),
        (carried(lambda c, x, n: (c[0] + 1, c[0] + 1), (0, 0)), ["0 + 1 s0", None]),
        (carried(lambda c, x, n: (c[0] + 1, c[0]), (0, -1)), ["0 + 1 s0", None]),
        (carried(lambda c, x, n: (c[0] + n,), (0,)), [None]),
        (carried(lambda c, x, n: (lax.cond(n < 1, lambda: c[0] + 1, lambda: c[0]),), (0,)), [None]),
    ],
)
def test_several_carries(program, expected):
    assert told(program, "i32[]") == expected


def test_a_counter_that_starts_where_nobody_knows():
    assert told(lambda n: counting(lambda i: i + 1, init=n)(), "i32[]") == [None]


def test_counters_after_their_loop():
    def program():
        end = lax.scan(lambda i, _: (i - 2, None), 3, None, length=4, reverse=True)[0]
        return end + 1, lax.scan(lambda i, _: (i + 1, None), end, None, length=0)[0]

    assert told(program) == ["-4", "-5"]


def test_what_a_while_carries_is_not_known():
    program = lambda: lax.while_loop(lambda i: i < 9, lambda i: i + 1, 0) + 1
    assert told(program) == [None]


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (lambda i: 2 * i + 3, "3 + 2 s0"),
        (lambda i: 9 - 1 - i, "8 - 1 s0"),
        (lambda i: -i, "0 - 1 s0"),
        (lambda i: i - i, "0"),
        (lambda i: (i + 1) * (i - i + 2), "2 + 2 s0"),
        (lambda i: i * i, None),
        (lambda i: i * (2**31 - 1), None),  # wraps around
        (lambda i: (i + (2**31 - 4)) - (2**31 - 4), None),
        (lambda i: i // 1, "0 + 1 s0"),
        (lambda i: lax.div(4 * i + 9, 4), "2 + 1 s0"),
        (lambda i: lax.div(4 * i + 2, 2), "1 + 2 s0"),
        (lambda i: lax.div(4 * i - 4, 4), None),  # is rounded to zero
        (lambda i: (4 * i + 3) // 4, "0 + 1 s0"),
        (lambda i: (19 - 4 * i) // 4, "4 - 1 s0"),
        (lambda i: (4 * i - 1) // 4, None),
        (lambda i: i // 2, None),
        (lambda i: i // 5, "0"),
        (lambda i: i // -5, None),
        (lambda i: lax.div(i, i + 1), None),
        (lambda i: i.astype(I8), "0 + 1 s0"),
        (lambda i: (i * 31).astype(I8), "0 + 31 s0"),
        (lambda i: (i * 32).astype(I8), None),
        (lambda i: (i - 1).astype(U8), None),
        (lambda i: i.astype(jnp.float32).astype(I32), None),
        (lambda i: (i < 9).astype(I32), None),
        (lambda i: lax.stop_gradient(jnp.copy(i)), "0 + 1 s0"),
        (lambda i: lax.select_n(i < 0, i, i + 7), "0 + 1 s0"),
        (lambda i: lax.select_n(i - 9 < 0, i, i - 9 + 7), "-2 + 1 s0"),
        (lambda i: lax.select_n(i - 2 < 0, i - 2, i + 5), None),
        (lambda i: lax.select_n(i < 2, i + 0, 0 + i), "0 + 1 s0"),
        (lambda i: lax.select_n(I32(1), i, i + 1, i + 2), "1 + 1 s0"),
        (lambda i: lax.select_n(i, i, i + 1), None),
        (lambda i: jnp.where((i >= 0) & ~(i == 7), i, 5), "0 + 1 s0"),
        (lambda i: jnp.where((i < 0) | (i > 2), i, 5), None),
        (lambda i: jnp.clip(i, 0, 4), "0 + 1 s0"),
        (lambda i: jnp.clip(i, 0, 3), None),
        (lambda i: jnp.clip(i, 7, 9), "7"),
        (lambda i: lax.clamp(0, i, 4), "0 + 1 s0"),
        (lambda i: lax.clamp(1, i, 4), None),
        (lambda i: lax.rem(i, 5), "0 + 1 s0"),
        (lambda i: lax.rem(i, 4), None),
        (lambda i: lax.rem(i - 1, 5), None),
        (lambda i: lax.rem(8 * i + 13, 4), "1"),
        (lambda i: (6 * i + 7) % 3, "1"),
        (lambda i: lax.rem(6 * i - 5, 3), None),  # -2, then 1
        (lambda i: jnp.mod(i, 5), "0 + 1 s0"),
        (lambda i: (i + 1) % 5, None),
        (lambda i: jnp.maximum(i, -1), "0 + 1 s0"),
        (lambda i: jnp.minimum(i, 7 - i), None),
        (lambda i: jnp.minimum(i, 8 - i), "0 + 1 s0"),
        (lambda i: lax.cond(i < 3, lambda: i + 1, lambda: i), None),
        (lambda i: lax.bitwise_and(i, 7), None),
    ],
)
def test_what_is_derived_from_a_counter(of, expected):
    assert told(counting(lambda i: i + 1, of=of)) == [expected]


def test_wider_and_narrower_types():
    with jax.enable_x64(True):
        assert told(counting(lambda i: i + 1, I32(0), of=lambda i: i.astype(I64) * 2**40)) == [
            f"0 + {2**40} s0"
        ]
        big = lambda i: (i.astype(I64) * 2**40).astype(I32)
        assert told(counting(lambda i: i + 1, I32(0), of=big)) == [None]
        assert told(counting(lambda i: i + 2**61, I64(0), length=3)) == [f"0 + {2**61} s0"]
        assert told(counting(lambda i: i + 2**62, I64(0), length=2)) == [None]


# ---------------------------------------------------------------- arrays


def iota(*shape, axis=0, dtype=I32):
    return lax.broadcasted_iota(dtype, shape, axis)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda: jnp.arange(6), "0 + 1 d0"),
        (lambda: iota(3, 4, axis=1), "0 + 1 d1"),
        (lambda: 2 * jnp.arange(3) + 7, "7 + 2 d0"),
        (lambda: lax.iota(U8, 256), "0 + 1 d0"),
        (lambda: lax.iota(U8, 257), None),
        (lambda: lax.iota(jnp.float32, 3), None),
        (lambda: lax.mul(2, jnp.full(3, 4)), "8"),
        (lambda: lax.max(9, jnp.arange(3)), "9"),
        (lambda: lax.min(-9, jnp.arange(3)), "-9"),
        (lambda: lax.rem(5, jnp.full(3, 7)), "5"),
        (lambda: lax.rem(9, jnp.full(3, 7)), "2"),
        (lambda: lax.div(9, jnp.full(3, 7)), "1"),
        (lambda: jnp.arange(12).reshape(3, 4), "0 + 4 d0 + 1 d1"),
        (lambda: jnp.arange(12).reshape(3, 1, 4).reshape(2, 6), "0 + 6 d0 + 1 d1"),
        (lambda: jnp.arange(1).reshape(1, 1), "0"),
        (lambda: jnp.arange(12).reshape(3, 4).T, "0 + 1 d0 + 4 d1"),
        (lambda: jnp.arange(12).reshape(3, 4).T.reshape(12), None),
        (lambda: lax.reshape(jnp.arange(6).reshape(2, 3), (6,), dimensions=(1, 0)), None),
        (lambda: iota(3, 4).reshape(12), None),
        (lambda: iota(6).reshape(2, 3), "0 + 3 d0 + 1 d1"),
        (lambda: lax.rev(jnp.arange(12).reshape(3, 4), (0,)), "8 - 4 d0 + 1 d1"),
        (lambda: lax.slice(jnp.arange(12), (1,), (12,), (5,)), "1 + 5 d0"),
        (lambda: lax.slice(iota(3, 4, axis=1), (0, 2), (3, 3)), "2"),
        (lambda: jnp.broadcast_to(jnp.arange(3)[:, None], (2, 3, 4)), "0 + 1 d1"),
        (lambda: jnp.broadcast_to(jnp.arange(1), (3,)), "0"),
        (lambda: lax.expand_dims(jnp.arange(3), (0, 2)).squeeze(0), "0 + 1 d0"),
        (lambda: jnp.arange(3)[:, None] * 4 + jnp.arange(4), "0 + 4 d0 + 1 d1"),
        (lambda: jnp.where(iota(4) < 9, iota(4), 5), "0 + 1 d0"),
        (lambda: jnp.where(iota(4) < 3, iota(4), 5), None),
        (lambda: jnp.arange(0) + 1, "1 + 1 d0"),
        (lambda: lax.dynamic_slice(iota(5), (I32(1),), (3,)), "1 + 1 d0"),
        (lambda: lax.dynamic_slice(iota(5), (I32(3),), (3,)), None),  # clamped to 2
        (lambda: jnp.concatenate([iota(2), iota(2) + 2]), None),
        (lambda: jnp.concatenate([iota(3)]), "0 + 1 d0"),
        (lambda: jnp.stack([iota(3)]), "0 + 1 d1"),
        (lambda: jnp.stack([iota(3), iota(3)], 1), None),
        (lambda: jnp.stack([iota(3), 9 - iota(3)], 1)[1:, 1], "8 - 1 d0"),
        (lambda: lax.slice(jnp.stack([iota(9), -iota(9)], 1), (1, 1), (9, 2), (2, 1)),
         "-1 - 2 d0"),
        (lambda: jnp.stack([iota(3), 9 - iota(3)])[1], None),
        (lambda: iota(3) + np.array([3, 5, 7], I32), "3 + 3 d0"),
        (lambda: iota(3) + np.array([3, 5, 8], I32), None),
        (lambda: iota(3, 2) + np.array([[5, 4], [7, 6], [9, 8]], I32), "5 + 3 d0 - 1 d1"),
        (lambda: iota(2, 2) + np.array([[5, 4], [7, 7]], I32), None),
        (lambda: jnp.cumsum(jnp.ones(3, int)), None),
        (lambda: jnp.full((2, 2), 3), "3"),
    ],
)  # fmt: skip
def test_arrays(program, expected):
    (found,) = told(program)
    if expected and program().shape == (0,):
        expected = found and "1"  # of no elements anything is true
    assert found == expected


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_rows_that_are_read(reverse, back):
    """Row numbers are rows whichever way the loops run."""

    def program():
        numbers = counting(lambda i: i + 1, reverse=back)()
        read = lambda c, row: (c, (row + 0, row[..., None] + jnp.arange(2)))
        first = lax.scan(read, 0, numbers * 3 + 1, reverse=reverse)[1]
        table = jnp.arange(15).reshape(5, 3)
        second = lax.scan(read, 0, lax.rev(table, (0,)), reverse=reverse)[1]
        return first[0], first[1], second[0]

    row = "13 - 3 s0" if back else "1 + 3 s0"
    assert told(program) == [row, f"{row} + 1 d0", "12 - 3 s0 + 1 d0"]


def test_an_index_read_from_an_array():
    def program():
        order = lax.rev(jnp.arange(5), (0,))
        read = lambda i: lax.dynamic_slice(order, (i,), (1,))[0]
        late = lambda i: lax.dynamic_slice(order, (i + 1,), (1,))[0]
        return (counting(lambda i: i + 1, of=read)(), counting(lambda i: i + 1, of=late)())

    assert told(program) == ["4 - 1 s0", None]


# ---------------------------------------------------------------- nested loops


@pytest.mark.parametrize("reverse", [False, True])
def test_a_position_in_a_table(reverse):
    """``i * m + j``, as it is used, as it is stacked, and as the transposed loops read it."""

    def program():
        def row(i, _):
            cell = lambda j, _: (j + 1, i * 3 + j)
            return i + 1, lax.scan(cell, 0, None, length=3)[1]

        table = lax.scan(row, 0, None, length=4)[1]
        again = lambda c, row: (c, lax.scan(lambda c, k: (c, k + 0), c, row, reverse=reverse)[1])
        return table, lax.scan(again, 0, table, reverse=reverse)[1], table + 0

    assert told(program) == ["0 + 3 s0 + 1 s1", "0 + 3 s0 + 1 s1", "0 + 3 d0 + 1 d1"]


def test_quotients_and_remainders_of_a_position():
    """The row and the cell, however they are computed; of a table that is traversed backwards."""

    def program():
        def row(i, _):
            def cell(j, _):
                k, back = i * 3 + j, 11 - i * 3 - j
                at = k // 3, k % 3, *divmod(k + 3, 3), back // 3, back % 3, k // 6, k // 12
                return j + 1, at

            return i + 1, lax.scan(cell, 0, None, length=3)[1]

        return lax.scan(row, 0, None, length=4)[1]

    row, cell = "0 + 1 s0", "0 + 1 s1"
    wanted = [row, cell, "1 + 1 s0", cell, "3 - 1 s0", "2 - 1 s1", None, "0"]
    assert told(program) == wanted


def test_a_counter_that_an_inner_loop_counts():
    """As in a nest that one loop was split into."""

    def program():
        inner = lambda k, _: lax.scan(lambda k, _: (k + 2, k), k, None, length=3)
        return lax.scan(inner, 1, None, length=4)[1]

    assert told(program) == ["1 + 6 s0 + 2 s1"]


def test_a_counter_that_starts_at_another():
    def program():
        def row(i, _):
            inner = lax.scan(lambda j, _: (j + 1, j), i * 2, None, length=3)
            return i + 1, (inner[0] + 0, inner[1])

        return lax.scan(row, 0, None, length=4)[1]

    assert told(program) == ["3 + 2 s0", "0 + 2 s0 + 1 s1"]


def test_the_rows_of_a_row():
    def program():
        cell = lambda c, x: (c, x + 0)
        row = lambda c, xs: (c, (xs + 0, lax.scan(cell, 0, xs)[1]))
        return lax.scan(row, 0, jnp.arange(12).reshape(3, 4), reverse=True)[1]

    assert told(program) == ["0 + 4 s0 + 1 d0", "0 + 4 s0 + 1 s1"]


def test_what_an_inner_loop_does_with_an_outer_step_is_known_outside():
    def program():
        row = lambda i, _: (i + 1, lax.scan(lambda j, _: (j, i - j), 7, None, length=3)[1] * 2)
        return lax.scan(row, 0, None, length=4)[1]

    assert told(program) == ["-14 + 2 s0"]


# ---------------------------------------------------------------- index vectors


def parts(value):
    return [text_of(component(value, k), value) for k in range(value.shape[-1])]


def text_of(form, value):
    return None if form is None else (form.offset, form.strides, [*form.steps.values()])


@pytest.mark.parametrize("reverse", [False, True])
def test_components_of_an_index_vector(reverse):
    """Made by `stack` or `concatenate`, stacked as a residual, read back, reshaped, converted."""

    def program(n):
        join = lambda i: jnp.concatenate([jnp.stack([i, 9 - i]), n[None], jnp.arange(2) + i])
        vectors = counting(lambda i: i + 1, of=join)()
        back = lambda c, v: (c, (v * 1, lax.reshape(v, (1, 5)).astype(jnp.uint32).astype(I32)))
        return (vectors, *lax.scan(back, 0, vectors, reverse=reverse)[1])

    jaxpr = traced(program, "i32[]")
    graph = import_jaxpr(jaxpr)
    check_all(graph, *random_inputs(jaxpr.in_avals))
    joined = [(0, (), [1]), (9, (), [-1]), None, (0, (), [1]), (1, (), [1])]
    assert parts(innermost(graph.outputs[0])) == joined
    whole = [None if p is None else (p[0], (p[2][0],), []) for p in joined]
    assert parts(graph.outputs[0]) == whole
    assert parts(innermost(graph.outputs[2])) == [p and (p[0], (0,), p[2]) for p in joined]


def test_components_of_an_array_reshaped_in_another_order():
    def program():
        table = jnp.arange(4).reshape(2, 2)
        vectors = jnp.stack([table, 7 - 2 * table], 2)
        return lax.reshape(vectors, (4, 2)), lax.reshape(vectors, (4, 2), dimensions=(1, 0, 2))

    graph = import_jaxpr(traced(program))
    check_all(graph)
    plain, turned = graph.outputs
    assert parts(plain) == [(0, (1,), []), (7, (-2,), [])]
    assert parts(turned) == [None, None]


def test_components_of_a_slice():
    def program():
        vectors = jnp.stack([iota(4), 9 - iota(4)], 1)
        return lax.slice(vectors, (1, 0), (4, 2), (2, 1))

    graph = import_jaxpr(traced(program))
    check_all(graph)
    assert parts(graph.outputs[0]) == [(1, (2,), []), (8, (-2,), [])]


# ---------------------------------------------------------------- ranges and tests


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (lambda i, n: i, (0, 4)),
        (lambda i, n: n, (-(2**31), 2**31 - 1)),
        (lambda i, n: n.astype(U8), (0, 255)),
        (lambda i, n: (n < 3).astype(I32), (0, 1)),
        (lambda i, n: n < 3, (0, 1)),
        (lambda i, n: n.astype(jnp.float32), None),
        (lambda i, n: n.astype(jnp.float32).astype(I8), (-128, 127)),
        (lambda i, n: lax.clamp(0, n, 7), (0, 7)),
        (lambda i, n: lax.clamp(0, n, 7).astype(I8), (0, 7)),
        (lambda i, n: lax.clamp(-1, n, 7).astype(U8), (0, 255)),
        (lambda i, n: jnp.clip(n, 2, i + 4), (2, 8)),
        (lambda i, n: jnp.clip(n, 0, 7) + i, (0, 11)),
        (lambda i, n: jnp.clip(n, 0, 7) - i * 2, (-8, 7)),
        (lambda i, n: jnp.clip(n, -2, 7) * (i - 1), (-7, 21)),
        (lambda i, n: -jnp.clip(n, -2, 7), (-7, 2)),
        (lambda i, n: jnp.clip(n, 0, 7) + (2**31 - 4), (-(2**31), 2**31 - 1)),
        (lambda i, n: lax.rem(jnp.clip(n, 0, 7), 3), (0, 2)),
        (lambda i, n: lax.rem(jnp.clip(n, 0, 7), 30), (0, 7)),
        (lambda i, n: lax.rem(n, 0), (-(2**31), 2**31 - 1)),
        (lambda i, n: lax.rem(n, 5), (-4, 4)),
        (lambda i, n: lax.rem(jnp.clip(n, -2, 1), 5), (-2, 1)),
        (lambda i, n: lax.rem(jnp.clip(n, -9, -1), 5), (-4, 0)),
        (lambda i, n: lax.rem(n, i + 1), (-4, 4)),
        (lambda i, n: n & 5, (0, 5)),
        (lambda i, n: n & i, (0, 4)),
        (lambda i, n: jnp.clip(n, 0, 3) & 6, (0, 3)),
        (lambda i, n: n & -2, (-(2**31), 2**31 - 1)),
        (lambda i, n: lax.sort((jnp.full(3, n), np.arange(3)), num_keys=1)[1], (0, 2)),
        (lambda i, n: lax.sort((np.arange(3), jnp.full(3, n)), num_keys=1)[0], (0, 2)),
        (lambda i, n: lax.sort((np.arange(3), jnp.full(3, n)))[1], (-(2**31), 2**31 - 1)),
        (lambda i, n: lax.top_k(jnp.full((2, 6), n), 3)[1], (0, 5)),
        (lambda i, n: lax.top_k(jnp.full((9, 6), n), 3)[1], (0, 8)),
        (lambda i, n: lax.top_k(jnp.full(6, n), 3)[0], (-(2**31), 2**31 - 1)),
        (lambda i, n: lax.concatenate([jnp.full(2, jnp.clip(n, 0, 7)), np.full(2, 9)], 0), (0, 9)),
        (lambda i, n: lax.concatenate([jnp.full(2, n), np.full(2, 9)], 0), (-(2**31), 2**31 - 1)),
        (lambda i, n: jnp.mod(jnp.clip(n, 0, 99), 5), (0, 4)),
        (lambda i, n: jnp.where(n < 3, jnp.clip(n, 0, 7), i + 5), (0, 9)),
        (lambda i, n: jnp.where(i < 3, n, i), (-(2**31), 2**31 - 1)),
        (lambda i, n: jnp.where(i < 9, i, n), (0, 4)),
        (lambda i, n: lax.select_n(jnp.clip(n, 1, 2), 9, i, i + 7), (0, 11)),
        (lambda i, n: np.array([3, 1, 2]) + i * n * 0, (1, 3)),
        (lambda i, n: lax.dynamic_slice(jnp.clip(n, 0, 7)[None], (i,), (1,))[0], (0, 7)),
        (lambda i, n: lax.argmin(jnp.full(6, n), 0, I32), (0, 5)),
        (lambda i, n: jnp.max(lax.argmax(jnp.full((2, 300), n), 1, I8)).astype(I32), (-128, 127)),
    ],
)
def test_ranges(of, expected):
    program = lambda n: counting(lambda i: i + 1, of=lambda i: of(i, n))()
    jaxpr = traced(program, "i32[]")
    graph = import_jaxpr(jaxpr)
    for n in (-(2**31), -3, 3, 2**31 - 1):
        check_all(graph, I32(n))
    assert bounds(innermost(graph.outputs[0])) == expected


def test_ranges_of_rows_and_stacks():
    def program(n):
        numbers = lax.clamp(0, n, 7)
        rows = lax.scan(lambda c, x: (c, (x, x + 1)), 0, numbers)[1]
        return (rows[1] * 2, np.array([4, 9, 2], np.int32), np.zeros(0, np.int32))

    graph = import_jaxpr(traced(program, "i32[3]"))
    check_all(graph, jnp.array([-9, 3, 9]))
    assert [bounds(v) for v in graph.outputs[:2]] == [(2, 16), (2, 9)]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (lambda i, n: i < 5, True),
        (lambda i, n: i < 4, None),
        (lambda i, n: i < 0, False),
        (lambda i, n: i <= 4, True),
        (lambda i, n: i <= -1, False),
        (lambda i, n: i > -1, True),
        (lambda i, n: i > 4, False),
        (lambda i, n: i >= 0, True),
        (lambda i, n: i >= 5, False),
        (lambda i, n: i == 5, False),
        (lambda i, n: i == i + 0, True),
        (lambda i, n: i != -1, True),
        (lambda i, n: i + 0 != i, False),
        (lambda i, n: i == 3, None),
        (lambda i, n: i + 1 > i, True),
        (lambda i, n: n + 1 > n, None),  # not of the greatest
        (lambda i, n: i < n, None),
        (lambda i, n: jnp.clip(n, 5, 9) > i, True),
        (lambda i, n: jnp.clip(n, 0, 9) == 10, False),
        (lambda i, n: iota(3) + i < 7, True),
        (lambda i, n: iota(4) + i < 7, None),
        (lambda i, n: jnp.broadcast_to(i < 5, (2, 3)), True),
        (lambda i, n: ~(i < 5), False),
        (lambda i, n: (i < 5) & (i >= 0), True),
        (lambda i, n: (n < 5) & (i < 0), False),
        (lambda i, n: (n < 5) | (i >= 0), True),
        (lambda i, n: (n < 5) & (i >= 0), None),
        (lambda i, n: (i < 5) ^ (i < 9), False),
        (lambda i, n: (i < 5) != (i < 0), True),
        (lambda i, n: (i < 5) == (n < 0), None),
        (lambda i, n: i * 0.5 < 9, None),
        (lambda i, n: i != i * 2.0, None),
        (lambda i, n: (i + 1).astype(bool), None),
        (lambda i, n: (i - i).astype(bool), False),
        (lambda i, n: i, None),
    ],
)
def test_tests(test, expected):
    program = lambda n: counting(lambda i: i + 1, of=lambda i: test(i, n))()
    graph = import_jaxpr(traced(program, "i32[]"))
    for n in (-(2**31), 0, 3, 2**31 - 1):
        check_all(graph, I32(n))
    assert decide(innermost(graph.outputs[0])) is expected


def test_operands_in_common_are_looked_at_once():
    """Trees of 2^40 leaves."""

    def program(n):
        p, q = n, n < 3
        for _ in range(40):
            p, q = p * p, q & q
        return p, q, lax.select_n(q, p, p)

    graph = import_jaxpr(traced(program, "i32[]"))
    for value in graph.outputs:
        assert affine(value) is None
        assert bounds(value) == ((0, 1) if value.dtype == bool else (-(2**31), 2**31 - 1))
        assert decide(value) is None


# ---------------------------------------------------------------- random programs

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, -1, -2, -5, 7, 100, 127])
PLACES = st.integers(0, 99)
TYPES = (I32, I8, U8)


def alike(a, b):
    """`b` with the type and the shape of `a`, or both as scalars."""
    b = lax.convert_element_type(b, a.dtype)
    if a.shape == b.shape:
        return a, b
    if b.shape:
        return scalar(a), scalar(b)
    return a, lax.broadcast(b, a.shape)


def scalar(x, at=0):
    """An element, chosen by a number."""
    if 0 in x.shape:
        return lax.convert_element_type(at, x.dtype)
    return lax.index_in_dim(x.reshape(-1), at % x.size, keepdims=False)


def vector(x):
    return x.reshape(-1) if x.shape else x + lax.iota(x.dtype, 4)


def flip(x):
    return lax.rev(x, (0,)) if x.shape else -x


OPS = {
    "number": lambda a, b, k: a.dtype.type(k % 128),
    "add": lambda a, b, k: lax.add(*alike(a, b)),
    "sub": lambda a, b, k: lax.sub(*alike(a, b)),
    "add number": lambda a, b, k: a + a.dtype.type(k % 128),
    "from number": lambda a, b, k: a.dtype.type(k % 128) - a,
    "mul": lambda a, b, k: lax.mul(*alike(a, b)),
    "times number": lambda a, b, k: a * a.dtype.type(k % 8),
    "max": lambda a, b, k: lax.max(*alike(a, b)),
    "min": lambda a, b, k: lax.min(*alike(a, b)),
    "neg": lambda a, b, k: -a,
    "clamp": lambda a, b, k: lax.clamp(a.dtype.type(0), a, a.dtype.type(abs(k))),
    "rem": lambda a, b, k: lax.rem(a, a.dtype.type(abs(k))),
    "mod": lambda a, b, k: jnp.mod(a, a.dtype.type(abs(k) or 1)),
    "select": lambda a, b, k: jnp.where((a < k % 9) & (a != 5), *alike(a, b)),
    "normal": lambda a, b, k: jnp.where(a < 0, a + a.dtype.type(abs(k)), a),
    "type": lambda a, b, k: lax.convert_element_type(a, TYPES[k % 3]),
    "vector": lambda a, b, k: vector(a),
    "table": lambda a, b, k: jnp.broadcast_to(vector(a)[:, None], (vector(a).size, 2)),
    "square": lambda a, b, k: vector(a).reshape(2, -1) if vector(a).size % 2 == 0 else a,
    "turn": lambda a, b, k: lax.transpose(a, range(a.ndim)[::-1]),
    "flip": lambda a, b, k: flip(a),
    "every": lambda a, b, k: vector(a)[k % 3 :: k % 2 + 1],
    "element": lambda a, b, k: scalar(a, k),
    "read": lambda a, b, k: lax.dynamic_slice(vector(a), (scalar(b),), (min(vector(a).size, 2),)),
    "join": lambda a, b, k: jnp.stack([scalar(a), scalar(b).astype(a.dtype)]),
}
PICKS = st.tuples(st.sampled_from(sorted(OPS)), PLACES, PLACES, NUMBERS)


def loops(body):
    """Length, whether reversed, where the counter starts and what is added, what is in it."""
    return st.tuples(
        st.integers(0, 4), st.booleans(), PLACES, NUMBERS, st.lists(body, min_size=1, max_size=4)
    )


PLANS = st.lists(PICKS | loops(PICKS | loops(PICKS)), min_size=1, max_size=6)


def follow(plan, pool):
    """All that a plan makes of some values, after them."""
    pool = list(pool)
    for each in plan:
        if len(each) == 4:
            name, a, b, number = each
            made = OPS[name](pool[-1 - a % min(3, len(pool))], pool[b % len(pool)], number)
            pool.append(jnp.asarray(made))
        else:
            pool += repeat(pool, *each)
    return pool


def repeat(pool, length, reverse, start, step, plan):
    """The counter after a loop and what it stacks; it reads the last array that there is."""
    stream = next((x for x in reversed(pool) if x.shape), None)

    def body(counter, row):
        inner = follow(plan, [*pool, *([] if row is None else [row]), counter])
        rows = [x for x in inner[len(pool) :] if x.ndim < 2][-2:]
        return counter + counter.dtype.type(step % 128), rows

    init = scalar(pool[start % len(pool)])
    if stream is not None:
        length = stream.shape[0]
    end, stacks = lax.scan(body, init, stream, length=length, reverse=reverse)
    return [end, *stacks]


def test_whatever_is_said_of_random_programs_is_so():
    said = []

    @hypothesis.settings(max_examples=EXAMPLES or 25, suppress_health_check=SLOW)
    @given(PLANS, st.sampled_from([-7, 0, 3, 2**31 - 1]))
    def search(plan, n):
        program = lambda n: follow(plan, [jnp.int32(0), n, jnp.int8(1), jnp.int32(2)])
        said.extend(check_all(import_jaxpr(traced(program, "i32[]")), I32(n)))

    search()
    assert sum(f.affine is not None and bool(f.affine.steps) for f in said) > 100
    assert sum(f.affine is None and any(f.components) for f in said) > 10
    assert sum(f.affine is None and f.bounds is not None for f in said) > 100
    assert sum(f.decide is not None for f in said) > 10


def test_a_slice_of_a_scalar():
    """Rows of a list are scalars, and what is read of them is a slice."""
    assert told(lambda i: lax.slice(i, (), ()), "i32[]") == [None]


@pytest.mark.parametrize("rest", [0, 1])
def test_what_asks_for_another_remainder(rest):
    """`sign(x) != sign(n) and x % n != 0` is never true of numbers without a sign; with another
    remainder it is, at zero.
    """

    def program(b, xs):
        def step(c, row):
            i, x = row
            three = jnp.int32(3)
            asks = (lax.sign(i) != lax.sign(three)) & (lax.rem(i, three) != rest)
            return lax.dynamic_update_index_in_dim(c, x, jnp.where(asks, 1, i), 0), None

        return lax.scan(step, b, (jnp.arange(8), xs))[0]

    args = jnp.zeros(8), jnp.arange(1.0, 9.0)
    np.testing.assert_array_equal(optimize(program)(*args), jax.jit(program)(*args))
    (loop,) = scans(import_jaxpr(traced(program, *args)))
    (asked,) = (op for op in loop.body.ops if op.name == "and")
    assert decide(asked.result) == (None if rest else False)


@pytest.mark.parametrize("first", [0, 2**63 + 1, 2**64 - 9])
def test_numbers_that_no_index_is(first):
    """NumPy does not add those of 64 bits to others."""
    numbers = np.array([first, first + 4, first + 8], np.uint64)

    def program(x):
        def step(c, _):
            c = (c[0] + jnp.where(numbers > x, x, numbers), c[1] + jnp.uint64(1))
            return c, lax.cond(c[1] % 2 == 0, lambda: c[1], lambda: x)

        return lax.scan(step, (numbers, jnp.uint64(first)), None, length=6)

    with jax.enable_x64(True):
        x = jnp.uint64(2**63 + 4)
        assert_same_bits(optimize(program)(x), jax.jit(program)(x))
