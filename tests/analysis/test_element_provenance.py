"""Where single elements come from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.scalars.element_provenance import element
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr


def written(x, y, i):
    """An array in which something is written over."""
    return lax.dynamic_update_slice(x, y, (i,))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x[2:4],
        lambda x, y: lax.slice(x, (0,), (5,), (2,)),
        lambda x, y: jnp.concatenate([y, x, x[1:2]]),
        lambda x, y: jnp.stack([x[1], x[3], y[0]]),
        lambda x, y: written(x, y, 2),
        lambda x, y: written(written(x, y, 0), x[4:], 1),
        lambda x, y: written(x, y, 17),
        lambda x, y: written(x, y, -17),
        lambda x, y: lax.dynamic_slice(x, (9,), (2,)),
        lambda x, y: jnp.full(3, x[2]),
        lambda x, y: lax.split(x, (1, 3, 1))[1],
        lambda x, y: jnp.stack(list(x)[::-1]),
        lambda x, y: x.reshape(5, 1, 1)[:, 0, 0],
        lambda x, y: jnp.expand_dims(x[3], (0, 1)).reshape(1),
    ],
)
def test_elements_that_are_known(program):
    """Each is what the program makes it."""
    x, y = np.arange(5.0), np.arange(2.0) + 10
    graph = import_jaxpr(jax.make_jaxpr(program)(x, y))
    given = dict(zip(graph.inputs, (x, y), strict=True))
    for index, expected in enumerate(program(jnp.asarray(x), jnp.asarray(y))):
        source, place = element(graph.outputs[0], index, graph.body)
        assert given[source][place] == expected


@pytest.mark.parametrize(
    "program",
    [
        lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
        lambda x, i: lax.dynamic_update_slice(x, x[:2], (i,)),
        lambda x, i: x[::-1],
        lambda x, i: lax.reshape(x.reshape(2, 2), (4,), (1, 0)),
        lambda x, i: x * 2,
        lambda x, i: jnp.broadcast_to(x, (1, 4)),
    ],
)
def test_elements_that_are_not(program):
    """Where they come from depends on data, or is nowhere."""
    graph = import_jaxpr(jax.make_jaxpr(program)(np.arange(4.0), 1))
    (out,) = graph.outputs
    assert element(out, 0, graph.body) == (out, 0)


def test_other_regions():
    """What is made outside is looked at no further."""

    def program(x):
        flat = x.reshape(4)
        return lax.scan(lambda c, _: (c + lax.squeeze(flat[1:2], (0,)), None), 0.0, length=3)[0]

    graph = import_jaxpr(jax.make_jaxpr(program)(np.ones((2, 2))))
    (scan,) = (op for op in graph.body.ops if isinstance(op, Scan))
    (read,) = (op for op in scan.body.ops if op.name == "squeeze")
    source, place = element(read.result, 0, scan.body)
    assert place == 1
    assert source.shape == (4,)
