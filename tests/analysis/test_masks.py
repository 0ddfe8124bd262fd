"""Masks that are true in their first places only."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.steps.masks import Prefix, first_rows, implies, prefix, steps_mask
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import evaluate_exactly, traced


def rows(n, count=12):
    return lax.iota(jnp.int32, count) < n


VIEWS = {
    "itself": rows,
    "converted": lambda n: rows(n).astype(jnp.float32),
    "asked": lambda n: rows(n).astype(jnp.int32) != 0,
    "two dimensions": lambda n: lax.reshape(rows(n), (3, 4)),
    "three": lambda n: lax.reshape(rows(n), (2, 3, 2)),
    "and back": lambda n: lax.reshape(lax.reshape(rows(n), (3, 4)), (12,)),
    "a column": lambda n: lax.slice(lax.reshape(rows(n), (3, 4)), (0, 1), (3, 2)),
    "squeezed": lambda n: lax.squeeze(
        lax.slice(lax.reshape(rows(n), (3, 4)), (0, 2), (3, 3)), (1,)
    ),
    "every third": lambda n: lax.slice(rows(n), (1,), (12,), (3,)),
    "some of the rows": lambda n: lax.slice(lax.iota(jnp.int32, 12), (2,), (11,), (3,)) < n,
    "of a slice": lambda n: lax.reshape(lax.slice(rows(n), (2,), (12,), (2,)), (5, 1)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_prefix_says_where_it_is_true(name):
    graph = import_jaxpr(traced(VIEWS[name], "i32[]"))
    mask = prefix(graph.outputs[0])
    assert mask is not None
    assert mask.bound is graph.inputs[0]
    for n in (-2, 0, 1, 5, 6, 11, 12, 40):
        (got,) = evaluate_exactly(graph, jnp.int32(n))
        for index in itertools.product(*map(range, got.shape)):
            at = sum(a * i for a, i in zip(mask.coefficients, index, strict=True)) + mask.offset
            assert bool(got[index]) == (at < n), (index, n)


@pytest.mark.parametrize(
    "fun",
    [
        lambda n: lax.iota(jnp.int32, 12) <= n,
        lambda n: lax.iota(jnp.int32, 12) > n,
        lambda n: ~rows(n),
        lambda n: rows(n).astype(jnp.int32) != 1,
        lambda n: lax.rev(rows(n), (0,)),
        lambda n: lax.iota(jnp.float32, 12) < n.astype(jnp.float32),
        lambda n: lax.iota(jnp.int8, 300) < n.astype(jnp.int8),
        lambda n: lax.iota(jnp.uint8, 300) < n.astype(jnp.uint8),
        lambda n: lax.iota(jnp.int32, 12) < jnp.arange(12) * n,
        lambda n: lax.broadcasted_iota(jnp.int32, (3, 4), 0) < n,
        lambda n: lax.reshape(lax.slice(lax.reshape(rows(n), (3, 4)), (0, 0), (3, 2)), (6,)),
        lambda n: lax.transpose(lax.reshape(rows(n), (3, 4)), (1, 0)),
    ],
)
def test_what_is_no_prefix(fun):
    graph = import_jaxpr(traced(fun, "i32[]"))
    assert prefix(graph.outputs[0]) is None


def test_which_masks_imply_which():
    graph = import_jaxpr(traced(lambda n, m: (n, m), "i32[]", "i32[]"))
    n, m = graph.inputs
    assert implies(Prefix(n, (4, 1)), Prefix(n, (4,)))
    assert implies(Prefix(n, (4, 1), 2), Prefix(n, (3,), 1))
    assert not implies(Prefix(n, (4, 1)), Prefix(m, (4,)))
    assert not implies(Prefix(n, (4, 1)), Prefix(n, (5,)))
    assert not implies(Prefix(n, (4, 1)), Prefix(n, (4,), 1))


def skip_of(body, *types):
    graph = import_jaxpr(traced(body, *types))
    (scan,) = (op for op in graph.body.ops if op.name == "scan")
    return find_skip(scan)


def loop(test, array=lambda n: lax.iota(jnp.int32, 12)):
    def program(c, n):
        body = lambda c, row: (lax.cond(test(row, n), jnp.sin, lambda c: c, c), None)
        return lax.scan(body, c, array(n))[0]

    return skip_of(program, "f32[3]", "i32[]")


@pytest.mark.parametrize(
    ("test", "array", "expected"),
    [
        (lambda i, n: i < n, lambda n: lax.iota(jnp.int32, 12), (1,)),
        (lambda p, n: p, rows, (1,)),
        (lambda p, n: p != 0, lambda n: rows(n).astype(jnp.int32), (1,)),
        (lambda p, n: p, lambda n: rows(n)[::3], (3,)),
        (lambda i, n: i < n, lambda n: lax.slice(lax.iota(jnp.int32, 12), (4,), (12,)), (1,)),
        (lambda i, n: i < n, lambda n: lax.iota(jnp.int32, 12)[1::2][1:], (2,)),
        (lambda p, n: p != 1, lambda n: rows(n).astype(jnp.int32), None),
        (lambda p, n: ~p, rows, None),
        (lambda i, n: i <= n, lambda n: lax.iota(jnp.int32, 12), None),
        (lambda i, n: i < n, lambda n: jnp.asarray(np.arange(12, dtype=np.int32)[::-1]), None),
        (lambda i, n: i < n, lambda n: lax.iota(jnp.int32, 12) * n, None),
    ],
)
def test_the_rows_a_loop_takes(test, array, expected):
    skip = loop(test, array)
    found = first_rows(skip)
    assert (found and found.coefficients) == expected
    assert steps_mask(skip) == found or expected is None
