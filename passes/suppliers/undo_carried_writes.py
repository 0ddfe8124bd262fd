"""Undo the writes to a carried buffer in the transposed loop, instead of stacking the buffer in
every step.

Before::

    c_n, r = scan[n] carry(c=c_0) xs(i=is) {
      y = f(c)
      d = dynamic_update_slice c y i
      yield carry(d) ys(c)
    }
    a_n = scan[n, reverse] carry(a=a_0) xs(v=r, i=is) { b = ..v..; yield carry(b) }

After::

    c_n, o = scan[n] carry(c=c_0) xs(i=is) {
      y = f(c)
      o = dynamic_slice c i
      d = dynamic_update_slice c y i
      yield carry(d) ys(o)
    }
    a_n = scan[n, reverse] carry(a=a_0, d=c_n) xs(o=o, i=is) {
      v = optimization_barrier (dynamic_update_slice d o i)
      b = ..v..
      yield carry(b, v)
    }

Each write in a step makes a version of the buffer. The reading loop starts with the last version of
the last step and undoes the writes, last first, so it meets every version. The overwritten value is
written back, not computed back, so the version is exact whatever the window: indices that are
clamped are clamped alike, rows that are dropped are dropped again. Where no other step writes, the
overwritten value is what entered the loop: if that is one number, as in an array of zeros, it is
neither read nor stacked.

Sound when

1. a step makes its carry from the one before by writes of windows and by nothing else;
2. every use of a stacked version is as rows of a loop that takes the steps in the opposite order;
3. the stack holds a version, or a view of one that can be remade from it (the transpose in ``q @
   keys.T``, a rounded cache, the pages in a table): by data movement, basic arithmetic and gathers
   that read nothing else of the step.

Cost: one buffer for each reading loop and n windows (with their indices, if those are not stored
yet) replace n buffers; it fires if that is smaller by a factor. A loop that may stop early is left
unchanged: it would have to undo steps that it skips.

XLA copies the whole buffer in each step if it may read one version after it has made the next, and
repeats a write in every fusion that reads its result. Barriers prevent both. In the reverse loop,
the writes that lead to the last version that is read come before all else, the other writes after
all reads; in the forward loop `read-before-overwriting` adds the barriers.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 4 (recording prevalues).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.versions import Versions, stacked_versions
from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.analysis.windows.window_primitives import UPDATE, places, replaced, written
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Stream, Value, depending_on
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Stacked(Match):
    """Versions of a carry that are stacked."""

    versions: Versions


@dataclass(frozen=True)
class UndoCarriedWrites(Pass):
    """Stack what a write to a carried buffer replaces, not the buffer; write it back in reverse."""

    name: ClassVar[str] = "undo-carried-writes"
    after: ClassVar[tuple[After, ...]] = (
        After("narrow-residuals", "a stacked version of a buffer costs nothing to recompute from"),
    )
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Stacked]:
        assert isinstance(op, Scan)
        for each in stacked_versions(op):  # (3)
            count = op.length * len(each.stacks)
            says = (
                f"only the last of {count} versions of {each.name} is stored, and writes are undone"
            )
            yield Stacked(op, says, each)

    def refuse(self, match: Stacked) -> str | None:
        return match.versions.why_not_undone()  # (1), (2)

    def rewrite(self, match: Stacked, rw: Rewriter) -> None:
        scan, versions = match.versions.scan, match.versions
        rows = {s.value: s.result for s in scan.stacks if s not in versions.stacks}
        rows |= {s.param: s.operand for s in scan.streams}
        varying, readers = versions.varying, versions.readers
        kept = [_keep(write, versions, rw) for write in versions.writes]
        made = [v for v in (*kept, *varying) if scan.body.defines(v)]
        new = [v for v in made if v not in rows]
        added = [Stack(v, rw.new_value(rw.stacked_aval(v, scan.length), v.name)) for v in new]
        rows |= {s.value: s.result for s in added}
        rw.set_scan(scan, stacks=[*scan.stacks, *added])
        for reader in readers:
            here = {v: _stream(reader, rows[v], rw) for v in made}
            _walk_back(versions, reader, kept, here, rw)
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s not in versions.stacks])


def _keep(write: Op, versions: Versions, rw: Rewriter) -> Value:
    """What a write replaces, read before it if it is not known."""
    position, number = UPDATE[write.name], versions.replaced
    if number is not None:
        shape, dtype = write.operands[position].shape, write.operands[0].dtype
        return rw.insert(lambda: lax.full(shape, number, dtype), before=versions.scan)
    return rw.insert(partial(replaced, write), write.operands[0], *places(write), before=write)


def _walk_back(
    versions: Versions,
    reader: Scan,
    kept: Sequence[Value],
    here: Mapping[Value, Value],
    rw: Rewriter,
) -> None:
    """Carry the buffer through a loop that reads its versions, undoing the writes."""
    writes, aval, end = versions.writes, versions.carry.result.aval, reader.body.terminator
    start = reader.body.first or end

    def undo(number: int, version: Value, before: Op) -> Value:
        write = writes[number]
        operands = [version, *(here.get(v, v) for v in (kept[number], *places(write)))]
        return rw.typed(partial(written, write), aval, *operands, before=before)

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
        renamed = {like: _as_weak(met[versions.stacks[stack]], like, start, rw)}
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


def _as_weak(version: Value, like: Value, before: Op, rw: Rewriter) -> Value:
    """A version under the name that was stacked: with the weak type of that, or without."""
    if is_weak(version) == is_weak(like):
        return version
    strong = partial(lax.convert_element_type, new_dtype=like.dtype)
    return rw.typed(strong, like.aval, version, before=before)


def _stream(reader: Scan, rows: Value, rw: Rewriter) -> Value:
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
