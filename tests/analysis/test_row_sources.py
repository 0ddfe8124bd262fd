"""Which rows of which arrays an array consists of."""

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.carried.row_sources import pieces
from tests.graphs import graph_of


def padded(*config):
    return lambda x, y: lax.pad(x, 0.0, [*config, (0, 0, 0)])


def turned(x, y):
    """A row is written, the last axis first."""
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,), (2,), (0,))
    return lax.scatter(x, jnp.int32([[1], [1]]), y[0].T, numbers, mode="clip")


FOUND = {
    "rows before": (padded((2, 0, 0), (0, 0, 0)), "0.0[0:2] x[0:5]"),
    "rows between": (padded((0, 0, 1), (0, 0, 0)), "pad[0:9]"),
    "columns, too": (padded((2, 0, 0), (1, 0, 0)), "pad[0:7]"),
    "parts of rows": (lambda x, y: x[1:3, :2], "slice[0:2]"),
    "whole rows": (lambda x, y: jnp.concatenate([x[1:3], y]), "x[1:3] y[0:2]"),
    "a row, written": (
        lambda x, y: x.at[1].set(jnp.concatenate([y[0, :1], y[1, 1:]])),
        "x[0:1] concatenate[0:1] x[2:5]",
    ),
    "a row, turned": (turned, "x[0:1] scatter[1:2] x[2:5]"),
}


@pytest.mark.parametrize(("program", "expected"), FOUND.values(), ids=FOUND)
def test_rows_of_arrays(program, expected):
    graph = graph_of(program, "f32[5,3,2]", "f32[2,3,2]")
    names = dict(zip(graph.inputs, "xy", strict=True))
    found = []
    for array, start, size in pieces(graph.body.outputs[0], 0):
        name = names.get(array) or (array.op.name if array.op else array.scalar)
        found.append(f"{name}[{start}:{start + size}]")
    assert " ".join(found) == expected
