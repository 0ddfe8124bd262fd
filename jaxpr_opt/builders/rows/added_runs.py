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
    starts = [_starts(found, run) for run in found.runs]
    before = max(0, -min(map(min, starts)))
    behind = max(0, max(map(max, starts)) + array.size - numbers.size)
    zeros = [lax.full((n,), 0, array.dtype) for n in (before, behind)]
    turned = lax.rev(numbers, (0,)) if found.stride < 0 else numbers
    # One array for all runs, so that XLA makes it once.
    among = lax.concatenate([zeros[0], turned, zeros[1]], 0)
    for run, (first, last) in zip(found.runs, starts, strict=True):
        start = _start(step, first + before, last - first, found.where.scan.length)
        array = lax.add(array, _only(found, run, read_run(among, start, array.size, 0)))
    return array


def _starts(found: AddedRuns, run: Run) -> tuple[int, int]:
    """Which number of a step, if those go on, is for the first place of the array: in the first
    step, and in the last. If runs go down, the last number of the step is the first.
    """
    where, number = found.where, run.number_at(0)
    own = [number - (where.shift * step - where.first) for step in (0, where.scan.length - 1)]
    first, last = own if run.stride > 0 else [where.width - 1 - each for each in own]
    return first, last


def _start(step: jax.Array, first: int, change: int, steps: int) -> jax.Array:
    number = partial(dtypes.wrapped, step.dtype)
    return lax.add(lax.mul(step, number(change // (steps - 1))), number(first))


def _only(found: AddedRuns, run: Run, moved: jax.Array) -> jax.Array:
    """What is moved to the places of a run, and zeros elsewhere."""
    if run.is_alone(moved.size, found.where.length):
        return moved
    places = lax.iota(np.int32, moved.size)
    first, last = np.int32(run.places[0]), np.int32(run.places[-1])
    of_run = lax.bitwise_and(lax.ge(places, first), lax.le(places, last))
    return lax.select(of_run, moved, lax.full_like(moved, 0))
