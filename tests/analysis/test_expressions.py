"""Whether two values are computed alike."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.ir.importer import import_jaxpr

NAN = float("nan")
KEY = jax.random.key(0)


def draw(x):
    """A test of a random number."""
    return jax.random.uniform(KEY) < x


def alike(first, second, renamed=True):
    """Whether ``second(y)`` is ``first(x)`` with `y` for `x`."""
    graph = import_jaxpr(jax.make_jaxpr(lambda x, y: (first(x), second(y)))(1.0, 2.0))
    x, y = graph.inputs
    return same_expression(*graph.outputs, {x: y} if renamed else {})


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (lambda x: jnp.sin(x) < 1, lambda y: jnp.sin(y) < 1, True),
        (lambda x: x, lambda y: y, True),
        (lambda x: x < 0.0, lambda y: y < -0.0, False),
        (lambda x: x < NAN, lambda y: y < NAN, True),
        (lambda x: x < 1, lambda y: y < 2, False),
        (lambda x: x < 1, lambda y: lax.gt(1.0, y), False),
        (jnp.sin, jnp.cos, False),
        (lambda x: x**2, lambda y: y**3, False),
        (lambda x: x.astype(int), lambda y: y.astype(jnp.int8), False),
        (draw, draw, True),
        (lambda x: lax.while_loop(lambda c: c < 0, lambda c: c + 1, x),
         lambda y: lax.while_loop(lambda c: c < 0, lambda c: c + 1, y), False),
    ],
)  # fmt: skip
def test_the_same_ops_on_the_same_leaves(first, second, expected):
    assert alike(first, second) == expected


def test_different_leaves():
    assert not alike(jnp.sin, jnp.sin, renamed=False)


def test_another_context():
    """Computed under other instructions, it may round differently."""

    def there(y):
        with set_xla_metadata(where="there"):
            return jnp.sin(y)

    assert not alike(jnp.sin, there)


def test_operands_in_common_are_compared_once():
    """A tree of 2^60 leaves."""

    def tower(x):
        for _ in range(60):
            x = x * x
        return x

    assert alike(tower, tower)
    assert not alike(tower, lambda y: tower(y) + 1)
