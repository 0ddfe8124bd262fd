"""How often an element is computed that a fusion reads at several places."""

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.residuals.shifted_reads import times_read
from tests.graphs import graph_of, scans


def differences(a):
    return a[1:] - a[:-1]


def stencil(a):
    return jnp.roll(a, 1) + a - jnp.roll(a, -1)


def halves(a):
    return a[: len(a) // 2] * a[len(a) // 2 :]


def aligned(a):
    return a[1:] * a[1:] - 3 * a[1:]


def strided(a):
    return a[::2] - a[1::2]


def backwards(a):
    return a + a[::-1]


def transposed(a):
    b = a.reshape(8, 8)
    return (b + b.T).reshape(64)


@pytest.mark.parametrize(
    ("shifted", "times"),
    [
        (differences, [2, 4, 8]),
        (stencil, [3, 9, 27]),
        (halves, [1, 1, 1]),
        (aligned, [1, 1, 1]),
        (strided, [1, 1, 1]),
        (backwards, [2, 4, 8]),
        (transposed, [2, 4, 8]),
    ],
)
def test_neighbours_of_neighbours(shifted, times):
    """The last level first."""

    def step(c, a):
        for _ in times:
            a = shifted(-a)
        return c, a

    def program(xs):
        rows = lax.scan(step, 0.0, xs)[1]
        return lax.scan(lambda c, row: (c + jnp.sin(row).sum(), None), 0.0, rows)[0]

    scan = scans(graph_of(program, "f32[5,64]"))[0]
    found = times_read(scan)
    levels = [op.result for op in scan.body.ops if op.name == "neg"]
    assert [round(found.get(value, 1)) for value in reversed(levels)] == times


def test_a_residual_that_is_read_shifted_in_another():
    """Each of both is computed where it is read: the second reads two elements of the first."""

    def program(xs):
        def step(c, a):
            b = -a
            return c, (b, b[1:] - b[:-1])

        rows = lax.scan(step, 0.0, xs)[1]
        return lax.scan(lambda c, r: (c + r[0].sum() * r[1].sum(), None), 0.0, rows)[0]

    scan = scans(graph_of(program, "f32[5,64]"))[0]
    (negative,) = (op.result for op in scan.body.ops if op.name == "neg")
    assert round(times_read(scan)[negative]) == 2


def test_a_reader_that_reads_neighbours():
    """It computes again what it reads, as often as it reads it."""

    def program(xs):
        rows = lax.scan(lambda c, a: (c, -a), 0.0, xs)[1]
        return lax.scan(lambda c, a: (c + jnp.sin(a[1:] * a[:-1]).sum(), None), 0.0, rows)[0]

    scan = scans(graph_of(program, "f32[5,64]"))[0]
    (negative,) = (op.result for op in scan.body.ops if op.name == "neg")
    assert round(times_read(scan)[negative]) == 2
