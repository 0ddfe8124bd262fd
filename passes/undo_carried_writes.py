"""Walk the writes to a carried buffer back in the transposed loop, instead of stacking the buffer
in every step.

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

A step makes versions of the buffer, one by each write; the loop that reads them starts with the
last one of the last step and undoes the writes, last first, so that it meets every version.  What
was overwritten is written back, not computed back, hence exact whatever it is, and wherever the
window: indices that are clamped are clamped alike, rows that are dropped are dropped again.

Sound when

1. a step makes its carry from the one before by writes of windows and by nothing else;
2. every use of a stacked version is as rows of a loop that takes the steps in the opposite order.

Cost: one buffer for each loop that reads, and n windows (with their indices, where those are not
there yet), against n buffers: worth it if smaller by a factor.  A loop that may stop early is left
alone: it would have to walk back steps that it skips.

The barriers are for XLA, which copies the whole buffer in each step if it may read one version
after it has made the next, and computes a write again in everything that is fused with it.  So in
the reverse loop the writes that lead to the last version that is read come before all else, the
other ones after all that reads it; in the forward loop `read-before-overwriting` sees to that.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 4 (recording prevalues).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.constants import is_weak
from jaxpr_opt.analysis.skips import find_skip
from jaxpr_opt.ir import Carry, Constant, Op, Scan, Stack, Stream, Value, depending_on
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter

WORTHWHILE = 2
"""What is stored must shrink by more: each step reads and writes a window more in both loops."""

UPDATE = {"dynamic_update_slice": 1, "scatter": 2}
"""The ops that write windows, and which operand they write; the array is the first."""

RENAMING = frozenset({"convert_element_type", "copy", "copy_p"})
"""The same elements, if the dtype stays: weak types are none of ours."""

DROP = lax.GatherScatterMode.FILL_OR_DROP


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """How a step makes a carry, told backwards."""

    writes: tuple[Op, ...]
    """The last one first."""
    versions: Mapping[Value, int]
    """How many writes come after each version of the buffer."""
    obstacle: str | None
    """What makes a version but is no write; those before it are not known (1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Stacked(Match):
    """A carry, the stacks of its versions, and how many writes come after each."""

    carry: Carry
    history: History
    stacks: Mapping[Stack, int]

    @property
    def readers(self) -> list[Scan]:
        """The loops that read the stacks, if they may be undone."""
        users = dict.fromkeys(op for stack in self.stacks for op in stack.result.users)
        return [op for op in users if isinstance(op, Scan)]


@dataclass(frozen=True)
class UndoCarriedWrites(Pass):
    """Stack what a write to a carried buffer replaces, not the buffer; write it back in reverse."""

    name: ClassVar[str] = "undo-carried-writes"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Stacked]:
        assert isinstance(op, Scan)
        written = {_type(each.result) for each in op.body.walk() if _is_write(each)}
        for carry in op.carries:
            if carry.is_invariant or _type(carry.param) not in written:
                continue
            history = _history(op, carry)
            versions = {s: history.versions.get(_original(s.value)) for s in op.stacks}
            stacks = {s: k for s, k in versions.items() if k is not None and s.result.uses}
            if stacks:
                count = op.length * len(stacks)
                says = f"{count} versions of {_name(carry)} become one, its writes are undone"
                yield Stacked(op, says, carry, history, stacks)

    def refuse(self, match: Stacked) -> str | None:
        if match.history.obstacle is not None:  # (1)
            return match.history.obstacle
        for stack in match.stacks:
            reason = _other_use(match, stack)
            if reason is not None:  # (2)
                return reason
        if any(find_skip(reader) is not None for reader in match.readers):
            return f"the loop that reads {_name(match.carry)} may stop early"
        return _too_large(match)

    def rewrite(self, match: Stacked, rw: Rewriter) -> None:
        scan = match.op
        assert isinstance(scan, Scan)
        rows = {s.value: s.result for s in scan.stacks if s not in match.stacks}
        rows |= {s.param: s.operand for s in scan.streams}
        kept = [_keep(write, rw) for write in match.history.writes]
        new = [v for v in (*kept, *_varying(match)) if v not in rows]
        added = [Stack(v, rw.new_value(rw.stacked_aval(v, scan.length), v.name)) for v in new]
        rows |= {s.value: s.result for s in added}
        rw.set_scan(scan, stacks=[*scan.stacks, *added])
        for reader in match.readers:
            _walk_back(match, reader, kept, rows, rw)
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s not in match.stacks])


def _history(scan: Scan, carry: Carry) -> History:
    """The versions of a carry in a step, from the one that leaves it to the one that enters."""
    writes: list[Op] = []
    version, versions = _original(carry.next), {}
    while version is not carry.param:
        versions[version] = len(writes)
        op = version.op
        if op is None or op.region is not scan.body or not _is_write(op):
            versions[carry.param] = len(writes)
            by = op.name if op is not None else "another value"
            return History((), versions, f"{_name(carry)} is replaced by {by}, not written to")
        writes.append(op)
        version = _original(op.operands[0])
    versions[carry.param] = len(writes)
    return History(tuple(writes), versions, None)


def _original(value: Value) -> Value:
    """What a value is another name of."""
    while (op := value.op) and op.name in RENAMING and op.operands[0].dtype == value.dtype:
        value = op.operands[0]
    return value


def _is_write(op: Op) -> bool:
    if op.name not in UPDATE or op.params.get("update_jaxpr") is not None:
        return False
    sharding = getattr(op.result.aval, "sharding", None)
    return sharding is None or all(part is None for part in sharding.spec)


def _indices(write: Op) -> list[Value]:
    """The operands that say where."""
    return [v for at, v in enumerate(write.operands) if at not in {0, UPDATE[write.name]}]


def _varying(match: Stacked) -> list[Value]:
    """The indices that are computed in a step, each once."""
    assert isinstance(match.op, Scan)
    found = dict.fromkeys(v for write in match.history.writes for v in _indices(write))
    return [v for v in found if not isinstance(v, Constant) and match.op.body.defines(v)]


def _other_use(match: Stacked, stack: Stack) -> str | None:
    """A use of a stack that is not row by row, from the last row to the first of those written."""
    assert isinstance(match.op, Scan)
    name = _name(match.carry)
    for op, position in stack.result.uses:
        if not isinstance(op, Scan) or position < op.num_carries:
            return f"the stack of {name} is read by {op.name} too"
        if op.reverse == match.op.reverse:
            return f"the stack of {name} is read in the order in which it is written"
    return None


def _too_large(match: Stacked) -> str | None:
    """Why nothing would be gained."""
    scan = match.op
    assert isinstance(scan, Scan)
    there = {s.value for s in scan.stacks if s not in match.stacks} | {*scan.body.params}
    there -= {c.param for c in scan.carries}
    windows = sum(w.operands[UPDATE[w.name]].nbytes for w in match.history.writes)
    indices = sum(v.nbytes for v in _varying(match) if v not in there)
    old = sum(s.result.nbytes for s in match.stacks)
    new = len(match.readers) * match.carry.result.nbytes + scan.length * (windows + indices)
    if old < WORTHWHILE * new:
        return f"{old:,} bytes are stacked; the buffer and what is overwritten take {new:,}"
    return None


def _keep(write: Op, rw: Rewriter) -> Value:
    """What a write replaces."""
    return rw.insert(partial(_read, write), write.operands[0], *_indices(write), before=write)


def _walk_back(
    match: Stacked, reader: Scan, kept: Sequence[Value], rows: Mapping[Value, Value], rw: Rewriter
) -> None:
    """Carry the buffer through a loop that reads its versions, undoing the writes."""
    here = {v: _stream(reader, rows[v], rw) for v in (*kept, *_varying(match))}
    writes, aval, end = match.history.writes, match.carry.result.aval, reader.body.terminator
    start = reader.body.first or end

    def undo(number: int, version: Value, before: Op) -> Value:
        write = writes[number]
        operands = [version, here[kept[number]], *(here.get(v, v) for v in _indices(write))]
        return rw.typed(partial(_write, write), aval, *operands, before=before)

    undone = {stack.result: count for stack, count in match.stacks.items()}
    last = max(undone[s.operand] for s in reader.streams if s.operand in undone)
    versions = [rw.new_value(aval, match.carry.param.name)]
    for number in range(last):
        versions.append(undo(number, versions[-1], start))
    if last > 0:
        versions[last] = rw.typed(lax.optimization_barrier, aval, versions[last], before=start)
    for stream in reader.streams:
        if stream.operand in undone:
            version = versions[undone[stream.operand]]
            rw.replace(stream.param, _as_weak(version, stream.param, start, rw))
    version = versions[last]
    if last < len(writes):
        version = _after_readers(version, reader, rw)
    for number in range(last, len(writes)):
        version = undo(number, version, end)
    back = Carry(match.carry.result, versions[0], version, rw.new_value(aval))
    streams = [s for s in reader.streams if s.operand not in undone]
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


def _read(write: Op, array: jax.Array, *indices: jax.Array) -> jax.Array:
    """What a write replaces, with the shape of what it writes.

    Of rows that the write drops anything is read: they are dropped again when written back.
    """
    shape = write.operands[UPDATE[write.name]].shape
    if write.name == "dynamic_update_slice":  # negative indices have been wrapped around already
        return lax.dynamic_slice(array, indices, shape, allow_negative_indices=False)
    (index,), numbers = indices, write.params["dimension_numbers"]
    missing = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(shape[d] for d in numbers.update_window_dims)
    mirrored = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return lax.gather(
        array,
        index,
        dimension_numbers=mirrored,
        slice_sizes=[1 if axis in missing else next(window) for axis in range(array.ndim)],
        unique_indices=write.params["unique_indices"],
        indices_are_sorted=write.params["indices_are_sorted"],
        mode="clip" if write.params["mode"] == DROP else write.params["mode"],
    )


def _write(write: Op, array: jax.Array, value: jax.Array, *indices: jax.Array) -> jax.Array:
    """What the same write makes of another array and another value."""
    assert write.primitive is not None
    operands = [array, *indices]
    operands.insert(UPDATE[write.name], value)
    result: jax.Array = write.primitive.bind(*operands, **write.params)
    return result


def _type(value: Value) -> tuple[Hashable, ...]:
    return value.shape, value.dtype


def _name(carry: Carry) -> str:
    return carry.param.name or f"the carry {carry.param.aval.str_short()}"
