"""Windows of a sum are put side by side, not each into zeros."""
# ruff: noqa: E501 - eight arguments

import operator
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import explain, optimize
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.passes.codegen.concatenate_padded_windows import ConcatenatePaddedWindows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

CONCATENATE = ConcatenatePaddedWindows()


def put(window, start, length, axis=0):
    """A window in zeros along an axis."""
    config = [(0, 0, 0)] * window.ndim
    config[axis] = (start, length - start - window.shape[axis], 0)
    return lax.pad(window, jnp.zeros((), window.dtype), config)


def total(terms):
    return reduce(operator.add, terms)


def tiled(*windows):
    """The sum of windows that follow one another, the last first, as a transpose adds them up."""
    ends = np.cumsum([len(window) for window in windows])
    return total(
        put(w, int(ends[-1] - end), int(ends[-1])) for w, end in zip(windows, ends, strict=True)
    )


ROWS = ["f32[1,64]"] * 8


def test_windows_side_by_side():
    def program(a, b, c, d, e, f, g, h):
        return tiled(a, b, c, d, e, f, g, h)

    check_rewrite(
        CONCATENATE,
        program,
        *ROWS,
        diff="""
          fn (a:f32[1,64], b:f32[1,64], c:f32[1,64], d:f32[1,64], e:f32[1,64], f:f32[1,64], g:f32[1,64], h:f32[1,64]) {
        -   p:f32[8,64] = pad[padding_config=((7, 0, 0), (0, 0, 0))] a 0.0
        -   p1:f32[8,64] = pad[padding_config=((6, 1, 0), (0, 0, 0))] b 0.0
        -   a1:f32[8,64] = add p p1
        -   p2:f32[8,64] = pad[padding_config=((5, 2, 0), (0, 0, 0))] c 0.0
        -   a2:f32[8,64] = add a1 p2
        -   p3:f32[8,64] = pad[padding_config=((4, 3, 0), (0, 0, 0))] d 0.0
        -   a3:f32[8,64] = add a2 p3
        -   p4:f32[8,64] = pad[padding_config=((3, 4, 0), (0, 0, 0))] e 0.0
        -   a4:f32[8,64] = add a3 p4
        -   p5:f32[8,64] = pad[padding_config=((2, 5, 0), (0, 0, 0))] f 0.0
        -   a5:f32[8,64] = add a4 p5
        -   p6:f32[8,64] = pad[padding_config=((1, 6, 0), (0, 0, 0))] g 0.0
        -   a6:f32[8,64] = add a5 p6
        -   p7:f32[8,64] = pad[padding_config=((0, 7, 0), (0, 0, 0))] h 0.0
        -   a7:f32[8,64] = add a6 p7
        +   c1:f32[8,64] = concatenate[dimension=0] h g f e d c b a
        -   return a7
        +   return c1
          }
        """,
    )


def test_another_term():
    """What is not zero elsewhere is cut where the windows are; the order of the sum stays."""

    def program(d, *windows):
        return (d + put(windows[0], 3, 8)) + tiled(*windows)

    alone(CONCATENATE, program, "f32[8,64]", *ROWS, fires=True)


def test_a_row_added_to_all():
    """A term of one row is no array to be cut."""
    alone(CONCATENATE, lambda d, *w: (d + w[0]) + tiled(*w), "f32[8,64]", *ROWS, fires=False)
    alone(CONCATENATE, lambda d, *w: d + tiled(*w), "f32[1,64]", *ROWS, fires=False)


def test_few_rows_of_many():
    """They are written to zeros, or added to what is there."""

    def program(*windows):
        return total(put(each, 7 * at, 80) for at, each in enumerate(windows))

    graph = alone(CONCATENATE, program, *["f32[2,64]"] * 8, fires=True)
    text = to_text(graph)
    assert text.count("= dynamic_update_slice") == 8
    assert "pad[" not in text


def test_few_rows_of_an_array():
    def program(d, *windows):
        return sum((put(each, 7 * at, 80) for at, each in enumerate(windows)), d)

    alone(CONCATENATE, program, "f32[80,64]", *["f32[2,64]"] * 8, fires=True)


@pytest.mark.parametrize("shift", [0, 40])
def test_gaps_and_overlaps(shift):
    """(2) Of a part in two windows the sum is as it was; where there is none, it is zero."""

    def program(*windows):
        starts = [0, 1, 3, 6, 6, 11, 14, 20, 21, 22, 23, 24]
        a, b, c, d, *rest = [put(w, n, 26 + shift) for w, n in zip(windows, starts, strict=True)]
        return ((a + b) + (c + d)) + total(rest)

    alone(CONCATENATE, program, *["f32[2,64]"] * 12, fires=True)


def test_windows_along_two_axes():
    """They are cut along the axis of which they are the smaller part, then along the other."""

    def program(*windows):
        return total(put(put(w, 0, 66, 1), at, 10) for at, w in enumerate(windows))

    alone(CONCATENATE, program, *["f32[1,64]"] * 10, fires=True)


@pytest.mark.parametrize("shape", [(64, 1), (4, 16)])
def test_columns(shape):
    """XLA moves them number by number: it takes more of them."""

    def program(*windows):
        return total(put(w, n * at, 24 * n, 1) for at, w in enumerate(windows))

    n = shape[1]
    alone(CONCATENATE, program, *[f"f32[{shape[0]},{n}]"] * 24, fires=True)
    alone(CONCATENATE, lambda *w: tiled_columns(w, 9), *["f32[512,1]"] * 9, fires=False)


def tiled_columns(windows, length):
    return total(put(w, at, length, 1) for at, w in enumerate(windows))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint32", "complex64"])
def test_types(dtype):
    alone(CONCATENATE, tiled, *[np.ones((1, 256), dtype)] * 8, fires=True)


def test_what_is_no_number_elsewhere():
    """A window with infinities and NaNs is put where it was."""
    windows = [np.full((1, 64), x, "f") for x in (np.inf, np.nan, -np.inf, -0.0, 1, 2, 3, 4)]
    alone(CONCATENATE, tiled, *windows, fires=True)


@pytest.mark.parametrize("filler", [1.0, np.nan])
def test_what_is_not_zero_elsewhere(filler):
    """(1)"""

    def program(*windows):
        return total(
            lax.pad(w, filler, [(at, 7 - at, 0), (0, 0, 0)]) for at, w in enumerate(windows)
        )

    alone(CONCATENATE, program, *ROWS, fires=False)


def test_zeros_inside_a_window():
    """(1)"""

    def program(*windows):
        return total(lax.pad(w, 0.0, [(at, 7 - at, 1), (0, 0, 0)]) for at, w in enumerate(windows))

    alone(CONCATENATE, program, *["f32[2,64]"] * 8, fires=False)


def test_a_term_that_is_needed():
    """(1) The others are put side by side all the same."""

    def program(*windows):
        first = put(windows[0], 3, 8)
        return first + tiled(*windows), first

    graph = alone(CONCATENATE, program, *ROWS, fires=True)
    assert to_text(graph).count("= pad[") == 1


@pytest.mark.parametrize(("count", "size"), [(4, 1), (9, 20), (24, 16)])
def test_few_windows_or_most_of_an_array(count, size):
    """XLA computes the terms of few windows together; a stencil has as many at most places."""

    def program(*windows):
        return total(put(w, at, count + size - 1) for at, w in enumerate(windows))

    check_refuses(
        CONCATENATE,
        program,
        *[f"f32[{size},64]"] * count,
        because="the windows are few, or most of the array",
    )


@pytest.mark.parametrize(("count", "form"), [(8, "concatenate"), (12, "dynamic_update_slice")])
def test_windows_that_are_computed(count, form):
    """XLA computes up to eight while it puts them together, and any one where it writes it."""

    def program(*windows):
        return tiled(*map(jnp.tanh, windows))

    graph = alone(CONCATENATE, program, *["f32[1,64]"] * count, fires=True)
    assert form in to_text(graph)


def test_columns_that_are_computed():
    check_refuses(
        CONCATENATE,
        lambda *windows: tiled_columns([jnp.tanh(w) for w in windows], 24),
        *["f32[64,1]"] * 24,
        because="XLA would keep the windows beside the array",
    )


def test_no_numbers():
    alone(CONCATENATE, tiled, *["f32[1,0]"] * 8, fires=False)


def unrolled(x, w):
    """A Python loop over rows and columns."""
    h = jnp.zeros(64)
    for t in range(len(x)):
        h = jnp.tanh(h + x[t] * w[:2, t].sum())
    return h.sum()


def test_a_python_loop():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(12, 64)).astype("f"), rng.normal(size=(5, 12)).astype("f")
    plain = jax.grad(unrolled, (0, 1))
    for made in (optimize(plain), jax.grad(optimize(unrolled), (0, 1))):
        assert_close(made(x, w), plain(x, w))
    assert CONCATENATE.name in str(explain(plain, x, w))


def test_a_vector_of_parameters():
    """Weights and biases cut out of one vector."""
    sizes = [64, 8] * 5

    def loss(v):
        h, end = jnp.ones(8), 0
        for n in sizes:
            p, end = v[end : end + n], end + n
            h = jnp.tanh(p.reshape(8, 8) @ h) if n == 64 else h + p
        return h.sum()

    v = np.random.default_rng(0).normal(size=sum(sizes)).astype("f")
    text = jax.jit(optimize(jax.grad(loss))).lower(v).as_text()
    assert "stablehlo.pad" not in text
    assert_close(optimize(jax.grad(loss))(v), jax.grad(loss)(v))
