"""Carry a buffer backwards through loops that read its versions, undoing the writes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.versions import Versions
from jaxpr_opt.analysis.residuals.walks import Walk
from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.analysis.windows.window_primitives import places, replaced, written
from jaxpr_opt.builders.residual_transfer import counterpart
from jaxpr_opt.builders.steps.skipped_steps import is_taken
from jaxpr_opt.ir.dataflow import depending_on
from jaxpr_opt.ir.graph import Carry, Constant, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def walk_back(versions: Versions, walk: Walk, kept: Sequence[Value], rw: Rewriter) -> None:
    """Carry the buffer through the loops that read its versions, undoing the writes; `kept` is what
    they replaced.
    """
    numbers = [v for v in (*kept, *versions.numbers) if not isinstance(v, Constant)]
    here = {v: counterpart(v, walk.pairs, rw) for v in numbers}
    outermost, aval = walk.carries[-1], versions.carry.result.aval
    last = counterpart(outermost.result, walk.pairs[len(walk.carries) :], rw)
    met = [rw.new_value(aval, c.param.name) for c in walk.carries]
    inits = [*met[1:], last]
    left = _undo_in_step(versions, walk, met[0], kept, here, rw)
    for (_, reader), init, param in zip(walk.pairs, inits, met, strict=False):
        back = Carry(init, param, left, rw.new_value(aval))
        rw.set_scan(reader, carries=[*reader.carries, back])
        left = back.result


def _undo_in_step(
    versions: Versions,
    walk: Walk,
    entered: Value,
    kept: Sequence[Value],
    here: Mapping[Value, Value],
    rw: Rewriter,
) -> Value:
    """Read the versions of a step off the one that its last write left, undoing the writes; the one
    before the first write.
    """
    writes, aval, reader = versions.writes, entered.aval, walk.reader
    end = reader.body.terminator
    start = reader.body.first or end
    taken = _taken(versions, walk, start, rw)

    def undo(number: int, version: Value, before: Op) -> Value:
        write = writes[number]
        operands = [version, *(here.get(v, v) for v in (kept[number], *places(write)))]
        return rw.typed(partial(_undone, write), aval, *operands, *taken, before=before)

    last = max(versions.stacks[stack] for stack in walk.rows.values())
    met = [entered]
    for number in range(last):
        met.append(undo(number, met[-1], start))
    if last > 0:
        met[last] = rw.typed(lax.optimization_barrier, aval, met[last], before=start)
    for row, stack in walk.rows.items():
        made = versions.views[stack]
        like = made[0].operands[0] if made else row
        renamed = {**here, like: _as_weak(met[versions.stacks[stack]], like, start, rw)}
        rw.clone(made, renamed, start)
        rw.replace(row, renamed[made[-1].result if made else like])
    version = met[last]
    if last < len(writes):
        version = _after_readers(version, reader, rw)
    for number in range(last, len(writes)):
        version = undo(number, version, end)
    return version


def _undone(write: Op, array: jax.Array, value: jax.Array, *at: jax.Array) -> jax.Array:
    """The array with a value in the window that an op writes; in a step that is skipped, as a last
    operand may say, with what is there.
    """
    at, taken = (at[:-1], at[-1:]) if len(at) > len(places(write)) else (at, ())
    for each in taken:
        value = lax.select_n(each, replaced(write, array, *at), value)
    return written(write, array, value, *at)


def _taken(versions: Versions, walk: Walk, before: Op, rw: Rewriter) -> Sequence[Value]:
    """Whether a loop that may stop early takes a step; nothing for other loops."""
    skip = versions.guard(walk)
    if skip is None:
        return ()
    made: dict[Value, Value] = {}
    rw.clone(skip.slice, made, before)
    predicate = made.get(skip.predicate, skip.predicate)
    rw.replace(skip.predicate, predicate)
    return (rw.insert(partial(is_taken, skip), predicate, before=before),)


def _as_weak(version: Value, like: Value, before: Op, rw: Rewriter) -> Value:
    """A version under the name that was stacked: with the weak type of that, or without."""
    if is_weak(version) == is_weak(like):
        return version
    strong = partial(lax.convert_element_type, new_dtype=like.dtype)
    return rw.typed(strong, like.aval, version, before=before)


def _after_readers(version: Value, scan: Scan, rw: Rewriter) -> Value:
    """A version in a step of a loop, once all that the step makes of it has been made."""
    outputs, end = list(scan.body.outputs), scan.body.terminator
    made = depending_on([version], scan.body.ops)
    late = [at for at, v in enumerate(outputs) if v.op is not None and v.op in made]
    version, *waited = rw.insert_many(_in_order, version, *(outputs[at] for at in late), before=end)
    for at, value in zip(late, waited, strict=True):
        outputs[at] = value
    rw.set_outputs(scan.body, outputs)
    return version


def _in_order(*values: jax.Array) -> Sequence[jax.Array]:
    """The values, of which none is used before all are computed."""
    barred: Sequence[jax.Array] = lax.optimization_barrier(values)
    return barred
