"""Where only windows of an array are read, the windows are computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.analysis.windows.boxes import Box, Boxes
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.windows.take_arrays_apart import TakeArraysApart
from jaxpr_opt.testing import (
    assert_same_derivatives,
    check_refuses,
    check_rewrite,
    run_alone,
    traced,
)
from tests.loops import alone
from tests.prices import EAGER

APART = TakeArraysApart()
N, D = 4, 5


def trajectory(x, w):
    xs = jnp.zeros((N, D)).at[0].set(x)
    for t in range(1, N):
        xs = xs.at[t].set(jnp.sin(xs[t - 1] * w + x))
    return jnp.sum(xs**2)


def test_rows_that_are_written_and_read():
    def program(x):
        x1 = lax.dynamic_update_slice(jnp.zeros((9, 4)), jnp.sin(x)[None], (1, 0))
        x2 = lax.dynamic_update_slice(x1, jnp.cos(x1[1])[None], (2, 0))
        return x2[2] + x2[1]

    check_rewrite(
        APART,
        program,
        "f32[4]",
        diff="""
            fn (x:f32[4]) {
          -   b:f32[9,4] = broadcast_in_dim 0.0
              s:f32[4] = sin x
              b1:f32[1,4] = broadcast_in_dim s
          -   d:f32[9,4] = dynamic_update_slice b b1 1 0
          -   s1:f32[1,4] = slice[1:2, :] d
          +   r:f32[4] = reshape b1
          +   r1:f32[1,4] = reshape r
          -   s2:f32[4] = squeeze s1
          +   s2:f32[4] = squeeze r1
              c:f32[4] = cos s2
              b2:f32[1,4] = broadcast_in_dim c
          -   d1:f32[9,4] = dynamic_update_slice d b2 2 0
          -   s3:f32[1,4] = slice[2:3, :] d1
          +   r2:f32[4] = reshape b2
          +   r3:f32[1,4] = reshape r2
          -   s4:f32[4] = squeeze s3
          +   s4:f32[4] = squeeze r3
          -   s5:f32[1,4] = slice[1:2, :] d1
          +   r4:f32[1,4] = reshape r
          -   s6:f32[4] = squeeze s5
          +   s6:f32[4] = squeeze r4
              a:f32[4] = add s4 s6
              return a
            }
        """,
    )


def growing(x, w):
    h = jnp.stack([x, w])
    for t in range(1, N):
        h = jnp.concatenate([h, jnp.sin(h[-1] * w + h[max(0, t - 3)])[None]])
    return jnp.sum(h[-1])


def shifted(x, w):
    h = jnp.stack([x, x * w, x + w, x])
    for _ in range(N):
        h = jnp.concatenate([h[1:], (jnp.sin(h[-1] * w) + h[0])[None]])
    return jnp.sum(h[-2:] ** 2)


def columns(x, w):
    s = jnp.stack([x, w, x * w], 1)
    for _ in range(N):
        a, b, c = s[:, 0], s[:, 1], s[:, 2]
        s = s.at[:, 0].add(0.1 * b).at[:, 1].add(-jnp.sin(a) * c).at[:, -1].set(c + 0.1 * a)
    return jnp.sum(s[:, 0] * s[:, 1])


def edits(x, w):
    d = jnp.zeros((3, 3, D))
    for i in range(1, 3):
        for j in range(1, 3):
            best = jnp.maximum(d[i - 1, j - 1], jnp.maximum(d[i - 1, j], d[i, j - 1]))
            d = d.at[i, j].set(x * (i - j) * w + jnp.tanh(best))
    return jnp.sum(d[-1, -1])


def blocks(x, w):
    """Windows that are in part in each other."""
    a = jnp.zeros((8, D)).at[1:4].set(jnp.outer(jnp.arange(3.0), x))
    a = a.at[3:6].add(jnp.outer(jnp.arange(3.0) + 1, w))
    return jnp.sum(jnp.sin(a[2:5]) * a[4:7]) + jnp.sum(a[0])


def turned(x, w):
    a = jnp.zeros((N, D)).at[2].set(x).T * 2.0
    return jnp.sum(
        a[:, 2] * w + jnp.pad(a, ((1, 1), (0, 2)))[1:-1, 2] + a.reshape(D, 1, N)[:, 0, 3]
    )


PROGRAMS = [trajectory, growing, shifted, columns, edits, blocks, turned]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program):
    x, w = jnp.linspace(0.1, 1.0, D), jnp.linspace(-1.0, 1.0, D)
    rows = jnp.stack([x, w]), jnp.stack([w, x])
    np.testing.assert_allclose(
        optimize(jax.vmap(program))(*rows), jax.vmap(program)(*rows), rtol=1e-5
    )
    alone(APART, jax.grad(program, (0, 1)), x, w, fires=program is not blocks)


@pytest.mark.parametrize("program", [trajectory, columns])
def test_derivatives(program):
    x, w = jnp.linspace(0.1, 1.0, D), jnp.linspace(-1.0, 1.0, D)
    assert_same_derivatives(program, optimize(program), x, w)


@pytest.mark.parametrize("program", [growing, columns, edits])
def test_no_whole_array_is_left_in_a_gradient(program):
    x = jnp.linspace(0.1, 1.0, D)
    graph = alone(APART, jax.grad(program), x, x, fires=True)
    assert not any(op.name in ("scatter", "scatter-add", "pad", "gather") for op in graph.walk())


@pytest.mark.parametrize("number", [jnp.inf, -0.0])
@pytest.mark.parametrize("program", [trajectory, columns])
def test_numbers_that_are_not_finite(program, number):
    x, w = jnp.linspace(0.1, 1.0, D).at[2].set(number), jnp.linspace(-1.0, 1.0, D)
    got, expected = (f(jax.grad(program, (0, 1)))(x, w) for f in (optimize, jax.jit))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "bfloat16", "complex64"])
def test_dtypes(dtype):
    def program(x):
        a = jnp.zeros((N, 3), dtype)
        for t in range(1, N):
            a = a.at[t].set(jnp.where(t % 2 == 0, x, a[t - 1]))
        return a[-1], a[2]

    x = jnp.array([0, 1, 1]).astype(dtype)
    graph = alone(APART, program, x, fires=True)
    assert "scatter" not in {op.name for op in graph.walk()}


def test_versions_that_one_op_makes():
    def program(x):
        rows = jnp.unstack(jnp.stack([x, 2 * x], 1))
        return jnp.stack(rows[::-1]).at[1].add(rows[2])[1]

    with using(EAGER):
        alone(APART, program, jnp.arange(3.0), fires=True)


def test_keys():
    def program(keys):
        other = keys.at[1].set(keys[2])
        return jax.random.bits(other[1]), jax.random.bits(other[0])

    alone(APART, program, jax.random.split(jax.random.key(0), 4), fires=True)


def test_a_type_that_is_not_weak():
    """A weak number that is written takes the type of the array."""

    def program(x):
        a = jnp.zeros((4,), "float32") + x
        return a.at[1].set(2.0)[1] * jnp.float16(3)

    graph = alone(APART, program, jnp.ones(4), fires=True)
    assert graph.outputs[0].dtype == np.float32


def test_a_place_that_the_data_say():
    """(1)"""

    def program(x, i):
        return jnp.zeros((9, 4)).at[i].set(jnp.sin(x))[2]

    alone(APART, program, jnp.ones(4), jnp.int32(2), fires=False)
    alone(APART, lambda x, i: jnp.zeros((9, 4)).at[2].set(x)[i], jnp.ones(4), 2, fires=False)


def test_arrays_whose_size_no_number_says():
    """(1) Nor is known then which windows are in each other."""
    (n,) = export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct((n + 2,), "float32")
    graph = import_jaxpr(traced(lambda x: jnp.stack([x, 2 * x]).at[0].set(x)[1], x))
    with using(EAGER):
        assert not run_alone((APART,), graph).record(APART.name, False).rewrites


def test_a_place_out_of_range():
    """(1) What is dropped is not written."""
    alone(APART, lambda x: jnp.zeros((9, 4)).at[9].set(x)[8], jnp.ones(4), fires=False)


def test_an_array_that_is_needed_as_a_whole():
    """(2) Also in a loop."""

    def program(x):
        a = jnp.zeros((9, 4)).at[2].set(x)
        return jnp.sin(a)[2], jnp.sum(a)

    def in_a_loop(x):
        a = jnp.zeros((9, 4)).at[2].set(x)
        return a[2], lax.fori_loop(0, 3, lambda _, c: c + a[2], x)

    alone(APART, program, jnp.ones(4), fires=False)
    alone(APART, in_a_loop, jnp.ones(4), fires=False)


def test_an_op_that_is_not_elementwise():
    """(3)"""
    alone(
        APART, lambda x: jnp.cumsum(jnp.zeros((9, 4)).at[2].set(x), 0)[3], jnp.ones(4), fires=False
    )
    alone(APART, lambda x: jnp.zeros((9, 4)).at[2].set(x)[::-1][6], jnp.ones(4), fires=False)
    alone(APART, lambda x: lax.pad(jnp.sin(x), 0.0, ((2, -1, 0),))[2:4], jnp.ones(4), fires=False)
    outer = lambda x: jnp.pad(x[:, None] * x, ((1, 1), (0, 0)))[2]
    graph = alone(APART, outer, jnp.arange(4.0), fires=True)
    assert any(op.name == "mul" and op.result.shape == (4, 4) for op in graph.walk())


def test_a_number_that_is_added_to_zeros():
    """(5) It is no zero itself."""
    alone(APART, lambda x: (jnp.zeros((9, 4)).at[2].set(x) + 3.0)[1:3], jnp.ones(4), fires=True)


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_that_types_divide(axis):
    """(3) `split` divides what another axis divides over devices, and nobody else says so."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    rows = NamedSharding(mesh, PartitionSpec(axis))
    with jax.set_mesh(mesh), using(EAGER):
        x = jax.ShapeDtypeStruct((4, 3), "float32", sharding=rows)
        program = traced(lambda x: jnp.split(jnp.pad(x, ((0, 0), (1, 2))), 3, axis=1)[1], x)
        record = run_alone((APART,), import_jaxpr(program)).record(APART.name, False)
    assert bool(record.rewrites) == (axis is None)


def test_windows_that_are_empty():
    """Nothing is put into an array, or read of it."""

    def program(x, none):
        a = jnp.concatenate([jnp.pad(none, (2, 3)), none, x])
        a = lax.dynamic_update_slice(a, none, (2,))
        return a[1], a[6]

    alone(APART, program, jnp.ones(4), jnp.ones(0), fires=True)
    alone(APART, lambda x: jnp.zeros(9).at[2].set(x)[3:3], jnp.float32(1), fires=False)


def crossing(x, w):
    """A corner of what is read is written."""
    a = (jnp.zeros((40, 50)) + x[0]).at[1:3, 1:3].set(w[:2])
    return a[0:2, 0:2], a[2:4, 2]


def test_windows_that_cross_what_is_written():
    """(4, 5) The rest of what is read is as it was."""
    alone(APART, crossing, jnp.ones(2), jnp.array([2.0, 3.0]), fires=True)


def test_windows_that_are_too_many():
    def program(x):
        a = jnp.zeros(12)
        for k in range(6):
            a = a.at[k : k + 6].add(x[k : k + 6] * a[k + 1])
        return a[3], a[7]

    check_refuses(APART, program, "f32[12]", because="the windows are 56 B, the arrays 144 B")


def test_windows_along_one_axis_are_divided():
    boxes = Boxes()
    boxes.add([Box((2, 0), (4, 3)), Box((3, 0), (1, 3)), Box((5, 0), (3, 3))])
    rows = [(each.starts[0], each.sizes[0]) for each in boxes.covering(Box((2, 0), (6, 3)))]
    assert rows == [(2, 1), (3, 1), (4, 1), (5, 1), (6, 2)]


def test_windows_that_cross_are_put_together():
    boxes = Boxes()
    boxes.add([Box((2, 0), (1, 4)), Box((0, 1), (4, 1)), Box((3, 3), (1, 1))])
    assert list(boxes) == [Box((0, 0), (4, 4))]
