"""Whether elements of an array are computed from their neighbours."""

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.residuals.stencils import meets_neighbours
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced


def shifted(x):
    return jnp.pad(x[1:], (0, 1))


@pytest.mark.parametrize(
    ("program", "meets"),
    [
        (lambda x, y: y * x + shifted(y * x), True),
        (lambda x, y: jnp.roll(x, 1) - 2 * x, True),
        (lambda x, y: y + shifted(x), True),
        (lambda x, y: lax.rev(jnp.sin(x), (0,)) * y, True),
        (lambda x, y: y * x, False),
        (lambda x, y: shifted(jnp.sin(x)), False),
        (lambda x, y: 2 * shifted(x), False),
        (lambda x, y: shifted(x) * y[0], False),
        (lambda x, y: jnp.dot(shifted(x), y), False),
        (lambda x, y: x.reshape(2, 4).reshape(8) * y, False),
        (lambda x, y: jnp.cumsum(x) + shifted(y), False),
    ],
)
def test_reading_beside(program, meets):
    graph = import_jaxpr(traced(program, "f32[8]", "f32[8]"))
    assert meets_neighbours(graph.body.params[:1]) is meets
