"""Carry a buffer backwards through a loop that reads its versions, undoing the writes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.versions import Versions
from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.analysis.windows.window_primitives import places, replaced, written
from jaxpr_opt.builders.skipped_steps import is_taken
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stream, Value, depending_on
from jaxpr_opt.ir.rewriter import Rewriter


def walk_back(
    versions: Versions,
    reader: Scan,
    kept: Sequence[Value],
    here: Mapping[Value, Value],
    rw: Rewriter,
) -> None:
    """Carry the buffer through a loop that reads its versions, undoing the writes; `kept` is what
    they replaced, `here` the rows of what is stacked.
    """
    writes, aval, end = versions.writes, versions.carry.result.aval, reader.body.terminator
    start = reader.body.first or end
    taken = _taken(versions, reader, start, rw)

    def undo(number: int, version: Value, before: Op) -> Value:
        write = writes[number]
        operands = [version, *(here.get(v, v) for v in (kept[number], *places(write)))]
        return rw.typed(partial(_undone, write), aval, *operands, *taken, before=before)

    undone = {stack.result: stack for stack in versions.stacks}
    read = {s: undone[s.operand] for s in reader.streams if s.operand in undone}
    last = max(versions.stacks[stack] for stack in read.values())
    met = [rw.new_value(aval, versions.carry.param.name)]
    for number in range(last):
        met.append(undo(number, met[-1], start))
    if last > 0:
        met[last] = rw.typed(lax.optimization_barrier, aval, met[last], before=start)
    for stream, stack in read.items():
        made = versions.views[stack]
        like = made[0].operands[0] if made else stream.param
        renamed = {**here, like: _as_weak(met[versions.stacks[stack]], like, start, rw)}
        rw.clone(made, renamed, start)
        rw.replace(stream.param, renamed[made[-1].result if made else like])
    version = met[last]
    if last < len(writes):
        version = _after_readers(version, reader, rw)
    for number in range(last, len(writes)):
        version = undo(number, version, end)
    back = Carry(versions.carry.result, met[0], version, rw.new_value(aval))
    streams = [s for s in reader.streams if s not in read]
    rw.set_scan(reader, carries=[*reader.carries, back], streams=streams)


def _undone(write: Op, array: jax.Array, value: jax.Array, *at: jax.Array) -> jax.Array:
    """The array with a value in the window that an op writes; in a step that is skipped, as a last
    operand may say, with what is there.
    """
    at, taken = (at[:-1], at[-1:]) if len(at) > len(places(write)) else (at, ())
    for each in taken:
        value = lax.select_n(each, replaced(write, array, *at), value)
    return written(write, array, value, *at)


def _taken(versions: Versions, reader: Scan, before: Op, rw: Rewriter) -> Sequence[Value]:
    """Whether a loop that may stop early takes a step; nothing for other loops."""
    skip = versions.guard(reader)
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


def stream(reader: Scan, rows: Value, rw: Rewriter) -> Value:
    """The row of an array in a step of a loop."""
    present = next((s for s in reader.streams if s.operand is rows), None)
    if present is None:
        present = Stream(rows, rw.new_value(rw.row_aval(rows), rows.name))
        rw.set_scan(reader, streams=[*reader.streams, present])
    return present.param


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
