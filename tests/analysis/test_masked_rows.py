"""Rows of streams that a mask made numbers, in steps whose predicate is a row of that mask."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.steps.masked_rows import facts_of
from jaxpr_opt.analysis.steps.predicates import candidates_of
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced
from tests.graphs import scans

T, B, D = 6, 3, 4
NUMBERS = jnp.arange(T)


def known(program, *types):
    """What rows of floats are known to be in steps of the only loop that its predicate skips; first
    of all of its streams.
    """
    graph = import_jaxpr(traced(program, *types))
    (scan,) = scans(graph)
    floats = [s.param for s in scan.streams if s.param.dtype.kind == "f"]
    facts = [facts_of(scan, predicate, truth=False) for predicate in candidates_of(scan)]
    found = [each[p] for each in facts for p in floats if p in each]
    assert all(isinstance(each, Splat) for each in found)
    return [each.value for each in found]


def where(mask, rows, other):
    """`jnp.where`, as it is once constants are folded."""
    shape = jnp.shape(rows) or jnp.shape(other)
    return lax.select(*(jnp.broadcast_to(jnp.asarray(v), shape) for v in (mask, rows, other)))


def loop(seen, rows, told, reverse=False):
    """A loop that takes the steps that it is told to, and adds rows in all of them."""

    def step(c, row):
        told, x = row
        p = seen(told)
        return jnp.where(p if p.ndim == 0 else p[:, None], jnp.sin(c), c) + x, None

    return lax.scan(step, jnp.zeros(rows.shape[1:]), (told, rows), reverse=reverse)[0]


def rows_of_one(xs, mask):
    return loop(lambda p: p, where(mask[:, None], xs, 0.0), mask)


MASKED = {
    "numbers": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS)[:, None], xs, 0.0), NUMBERS
    ),
    "backwards": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS)[:, None], xs, 0.0), NUMBERS, reverse=True
    ),
    "the opposite": lambda xs, n, m: loop(
        lambda t: t < n, where(~(n > NUMBERS)[:, None], jnp.zeros((T, D)), xs), NUMBERS
    ),
    "floats": lambda xs, n, m: loop(lambda m: m > 0.5, where(m[:, None] > 0.5, xs, 0.0), m),
    "truth values": lambda xs, n, m: rows_of_one(xs, m > 0),
    "moved": lambda xs, n, m: loop(
        lambda t: t < n,
        where(n > NUMBERS, jnp.concatenate([xs, xs], 1).T, 0.0)[1:5].T.reshape(T, 2, 2),
        NUMBERS,
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_rows_that_the_same_mask_makes_zeros(name):
    assert known(MASKED[name], f"f32[{T},{D}]", "i32[]", f"f32[{T}]") == [0]


OTHERS = {
    "another bound": lambda xs, n, m: loop(
        lambda t: t < n, where((n + 1 > NUMBERS)[:, None], xs, 0.0), NUMBERS
    ),
    "a row further": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS + 1)[:, None], xs, 0.0), NUMBERS
    ),
    "reversed rows": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS)[:, None], xs, 0.0)[::-1], NUMBERS
    ),
    "another comparison": lambda xs, n, m: loop(
        lambda t: t < n, where((n >= NUMBERS)[:, None], xs, 0.0), NUMBERS
    ),
    "the other case": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS)[:, None], jnp.zeros((T, D)), xs), NUMBERS
    ),
    "another axis": lambda xs, n, m: loop(
        lambda t: t < n, where(n > NUMBERS, xs[:, :1] + m, 0.0), NUMBERS
    ),
    "other floats": lambda xs, n, m: loop(
        lambda m: m > 0.5, where(m[:, None] + 1 > 0.5, xs, 0.0), m
    ),
    "no number": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS)[:, None], xs, 2 * xs), NUMBERS
    ),
    "a product": lambda xs, n, m: loop(
        lambda t: t < n, where((n > NUMBERS)[:, None], xs, 0.0) * xs, NUMBERS
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_which_the_predicate_says_nothing(name):
    """(14) Another row, another mask, another case; or what may be no number."""
    assert known(OTHERS[name], f"f32[{T},{D}]", "i32[]", f"f32[{T}]") == []


def test_rows_that_are_another_number():
    program = lambda xs, n: loop(lambda t: t < n, where((n > NUMBERS)[:, None], xs, 7.0), NUMBERS)
    assert known(program, f"f32[{T},{D}]", "i32[]") == [7]


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_a_batch(axis):
    """A mask of each of the batch, whose rows may lie along another axis."""

    def program(xs, lengths):
        if axis:
            mask = NUMBERS[None] < lengths[:, None]
            rows = where(mask[..., None], xs.transpose(1, 0, 2), 0.0).transpose(1, 0, 2)
        else:
            rows = where((NUMBERS[:, None] < lengths)[..., None], xs, 0.0)
        return loop(lambda t: t < lengths, rows, NUMBERS)

    assert known(program, f"f32[{T},{B},{D}]", f"i32[{B}]") == [0]


def test_rows_of_a_batch_by_other_lengths():
    """(14) The mask of each is that of another one."""

    def program(xs, lengths):
        rows = where((NUMBERS[:, None] < lengths[::-1])[..., None], xs, 0.0)
        return loop(lambda t: t < lengths, rows, NUMBERS)

    assert known(program, f"f32[{T},{B},{D}]", f"i32[{B}]") == []


WAYS = {
    "a sum": (1, lambda rows, seen: where(seen, rows, 0.0) * 2 + where(seen, rows, 0.0) / 3),
    "a sum that is not masked": (0, lambda rows, seen: where(seen, rows, 0.0) + rows),
    "finite factors": (1, lambda rows, seen: where(seen, -3 * rows, 0.0).sum(1)),
    "any factor": (0, lambda rows, seen: where(seen, jnp.log(rows), 0.0)),
    "any divisor": (0, lambda rows, seen: where(seen, rows / rows[:1, :1], 0.0)),
}


@pytest.mark.parametrize("name", WAYS)
def test_zeros_of_cotangents(name):
    """(14) They stay zeros if what multiplies them is finite; sums are zero if all of them is."""
    zeros, way = WAYS[name]

    def loss(w, xs, n):
        def step(c, row):
            t, x = row
            c = jnp.where(t < n, jnp.tanh(c @ w + x), c)
            return c, c

        numbers = lax.iota(jnp.int32, T)
        c, rows = lax.scan(step, jnp.zeros(D), (numbers, xs))
        seen = jnp.broadcast_to((numbers < n)[:, None], rows.shape)
        return way(rows, seen).sum() + c.sum()

    jaxpr = traced(jax.grad(loss), f"f32[{D},{D}]", f"f32[{T},{D}]", "i32[]")
    graph = import_jaxpr(jaxpr)
    (scan,) = (op for op in graph.body.ops if isinstance(op, Scan) and op.reverse)
    facts = [facts_of(scan, predicate, truth=False) for predicate in candidates_of(scan)]
    found = {p for each in facts for p, told in each.items() if told == Splat(0.0)}
    assert len(found) == zeros
