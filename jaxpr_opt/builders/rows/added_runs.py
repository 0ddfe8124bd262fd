"""Numbers that are added to an array as runs, each of which is moved to its places as a whole."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.added_runs import AddedRuns, Run
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.slicing import read_run
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.rewriter import Rewriter


def add_runs(found: AddedRuns, rw: Rewriter) -> Value:
    """The array with the numbers of a step added."""
    op, scan = found.op, found.scan
    array, _, update = op.operands
    step = rw.step(scan, before=op)
    code = partial(_added, found)
    return rw.typed(code, op.result.aval, array, update, step, before=op)


def _added(found: AddedRuns, array: jax.Array, numbers: jax.Array, step: jax.Array) -> jax.Array:
    where, number = found.where, partial(dtypes.wrapped, step.dtype)
    firsts, change = [_first(found, run) for run in found.runs], -found.stride * where.shift
    moved = change * max(where.scan.length - 1, 0)
    before = max(0, -min(firsts) - min(0, moved))
    behind = max(0, max(firsts) + max(0, moved) + array.size - numbers.size)
    zeros = [lax.full((n,), 0, array.dtype) for n in (before, behind)]
    turned = lax.rev(numbers, (0,)) if found.stride < 0 else numbers
    # One array for all runs, so that XLA makes it once.
    among = lax.concatenate([zeros[0], turned, zeros[1]], 0)
    for run, first in zip(found.runs, firsts, strict=True):
        start = lax.add(lax.mul(step, number(change)), number(first + before))
        array = lax.add(array, _only(found, run, read_run(among, start, array.size, 0)))
    return array


def _first(found: AddedRuns, run: Run) -> int:
    """Which number of the first step, if those go on, is for the first place of the array. If runs
    go down, the last number of the step is the first.
    """
    own = run.number_at(0) + found.where.first
    return own if run.stride > 0 else found.where.width - 1 - own


def _only(found: AddedRuns, run: Run, moved: jax.Array) -> jax.Array:
    """What is moved to the places of a run, and zeros elsewhere."""
    if run.is_alone(moved.size, found.where.length):
        return moved
    places = lax.iota(np.int32, moved.size)
    first, last = np.int32(run.places[0]), np.int32(run.places[-1])
    of_run = lax.bitwise_and(lax.ge(places, first), lax.le(places, last))
    return lax.select(of_run, moved, lax.full_like(moved, 0))
