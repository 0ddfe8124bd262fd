"""The cheapest cut is the cheapest: no other set of stored values costs less."""

from itertools import chain, combinations

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.residuals.cuts import cheapest, residuals
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced
from tests.graphs import scans


def stacked(step):
    """The graph of a loop that stacks what `step` gives, and of one that reads all of it."""

    def program(c, xs):
        c, rows = lax.scan(lambda c, x: (jnp.tanh(c + x), step(c, x)), c, xs)
        return lax.scan(lambda c, row: (c + sum(map(jnp.sum, row)), None), c, rows, reverse=True)[0]

    graph = import_jaxpr(traced(program, "f32[3]", "f32[4,3]"))
    return scans(graph)[0]


def spread(c, x):
    """Matrices of a sum, and of its parts."""
    a = c + x
    return jnp.outer(a, a), jnp.outer(a, c) * 2.0, a


def narrow(c, x):
    """Masks, and sums of rows."""
    a = jnp.exp(c * x)
    return jnp.where(a > 1.0, a, 0.0), a.sum(), (a / a.sum()).astype(jnp.float16)


def branched(c, x):
    """Both ends of a diamond."""
    a = c * x
    return (a + 1.0) * (a - 1.0), a + 1.0


@pytest.mark.parametrize("step", [spread, narrow, branched])
@pytest.mark.parametrize("unit", [1, 2, 8])
@pytest.mark.parametrize("never", [None, "exp", "mul"])
def test_no_other_cut_costs_less(step, unit, never):
    scan = stacked(step)
    found = residuals(scan)
    wanted = [value for _, value in found]
    free = {stream.param for stream in scan.streams}

    def store(value):
        return 0 if value in free else unit * value.nbytes

    def repeat(op):
        return None if op.name == never else sum(v.nbytes for v in op.results)

    def price(kept):
        ops = backward_slice(wanted, lambda v: v in kept or not scan.body.defines(v))
        read = {v for op in ops for v in op.operands if v.op not in ops and scan.body.defines(v)}
        prices = [repeat(op) for op in ops]
        if None in prices:
            return float("inf")
        return sum(prices) + sum(map(store, read | (kept & set(wanted))))

    values = [op.result for op in scan.body.ops if not op.is_terminator]
    subsets = chain.from_iterable(combinations(values, n) for n in range(len(values) + 1))
    best = min(price(set(kept)) for kept in subsets)
    cut = cheapest(scan, found, store, repeat)
    gone = {value for _, value in cut.residuals} if cut is not None else set()
    kept = {*(cut.stored if cut is not None else ()), *(v for v in wanted if v not in gone)}
    assert price(kept) == best
