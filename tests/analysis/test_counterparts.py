"""What a loop back has, under the names of the loop that stacks."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.residuals.counterparts import counterparts
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.ir.importer import import_jaxpr
from tests.graphs import scans


def loops(program, *args):
    """The loops of a program, outer ones first."""
    graph = import_jaxpr(jax.make_jaxpr(program)(*args))
    return scans(graph)


def asked(scan, value):
    """Of a value at the end of the way of the first stack."""
    ((way, _),) = routes(scan.stacks[0].result, nests=True)
    return counterparts(scan, way, [value])


def there_and_back(xs, ys):
    total, stacked = lax.scan(lambda c, x: (c + x[0], (c, x[0] * x[1])), 0.0, (xs, ys))
    return lax.scan(lambda c, r: (c + r[0] * r[1] - r[2], c), total, (*stacked, ys), reverse=True)


def test_rows_of_stacks_and_of_streams():
    forth, back = loops(there_and_back, jnp.ones(3), jnp.ones(3))
    first, second, third = (stream.param for stream in back.streams)
    names = asked(forth, third).names
    assert names[first] is forth.stacks[0].value
    assert names[second] is forth.stacks[1].value
    assert names[third] is forth.streams[1].param


def test_what_is_computed_from_them():
    forth, back = loops(there_and_back, jnp.ones(3), jnp.ones(3))
    product = next(op for op in back.body.ops if op.name == "mul")
    assert asked(forth, product.result).ops[-1] is product


def test_what_is_not_known():
    """What the loop back carries, and what is made of it."""
    forth, back = loops(there_and_back, jnp.ones(3), jnp.ones(3))
    carry = back.carries[0]
    assert asked(forth, carry.param) is None
    assert asked(forth, carry.next) is None


def nest_and_back(xs, ys):
    def row(c, x):
        c, stacked = lax.scan(lambda c, y: (c + x * y, c), c, ys)
        return c, (stacked, c)

    total, (stacked, ends) = lax.scan(row, 0.0, xs)

    def row_back(c, r):
        stacked, x, end = r
        return lax.scan(lambda c, s: (c + s[0] * x + s[1] * end, None), c, (stacked, ys))

    return lax.scan(row_back, total, (stacked, xs, ends), reverse=True)


def test_nests():
    """Rows of the outer loop are known, but not what it has once the inner loop has ended."""
    outer, inner, outer_back, inner_back = loops(nest_and_back, jnp.ones(2), jnp.ones(3))
    _, x, end = (stream.param for stream in outer_back.streams)
    names = asked(inner, x).names
    assert names[x] is outer.streams[0].param
    assert names[inner_back.streams[0].param] is inner.stacks[0].value
    assert names[inner_back.streams[1].param] is inner.streams[0].param
    assert asked(inner, end) is None
