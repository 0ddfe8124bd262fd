"""Divide the steps of a loop into pieces, and do so in all loops that read its residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax import lax

from jaxpr_opt.analysis.residuals.phases import Division, KnownInPhase
from jaxpr_opt.analysis.residuals.replays import Replay, replay
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.ir.graph import Op, Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter

RowsOfPieces = Mapping[Value, Sequence[Value]]
"""Of arrays: the rows of each piece; of several rounds, ``[rounds, rows, ...]``."""

Known = Mapping[Scan, Sequence[KnownInPhase]]
"""Of loops: what is known of the values of a step in each piece."""


class _Made(NamedTuple):
    """What the pieces of a loop hand on, and the rows that they stack, by stack and piece."""

    nexts: Sequence[Value]
    stacks: Sequence[Sequence[Value]]
    loops: Sequence[Scan] = ()
    """The loops of the pieces, in order of steps."""


def split_off(found: Replay, steps: int, rw: Rewriter, *, first: bool = False) -> Replay:
    """Move the last steps of a loop (`first`: the first ones), and of the loops that read its
    residuals, to loops of their own; return what is left of it.
    """
    scan = in_two(found, steps if first else found.scan.length - steps, rw)[first]
    left = replay(scan)
    assert left is not None, f"nothing reads the residuals of {scan} beside the steps split off"
    return left


def in_two(found: Replay, steps: int, rw: Rewriter) -> tuple[Scan, Scan]:
    """Divide a loop, and each loop that reads its residuals, into its first steps and the rest;
    return the two loops that stack residuals.
    """
    lengths = (steps, found.scan.length - steps)
    division = Division(lengths[::-1] if found.scan.reverse else lengths)
    first, others = divide(found, division, rw)
    return first, others


def divide(
    found: Replay, division: Division, rw: Rewriter, known: Known | None = None
) -> Sequence[Scan]:
    """Make a loop of each piece of a loop, and of each loop that reads its residuals; return those
    that stack residuals, in order of steps.

    Where it is told what is known of values in each piece, that is put in their place, and a piece
    of one row is no loop.
    """
    loops = (found.scan, *found.readers)
    residuals: dict[Value, Sequence[Value]] = {stack.result: () for stack in found.stacks}
    replaced: dict[Any, Value] = {}
    made: dict[Scan, _Made] = {}
    for scan in loops:
        phases = [_renamed(each, replaced) for each in known[scan]] if known is not None else None
        stacks = [stack.result for stack in scan.stacks]
        in_pieces = _round if division.rounds == 1 else _rounds
        made[scan] = in_pieces(scan, division, residuals, phases, rw)
        replaced |= zip(scan.results, made[scan].nexts, strict=False)
        for array, rows in zip(stacks, made[scan].stacks, strict=True):
            if array in residuals:
                residuals[array] = rows
            else:
                replaced[array] = _joined(array, rows, division, scan, rw)
        for value in scan.results:
            rw.replace(value, replaced.get(value, value))
    for scan in reversed(loops):
        rw.erase(scan)
    return made[found.scan].loops


def _renamed(phase: KnownInPhase, replaced: Mapping[Any, Value]) -> KnownInPhase:
    """What is known, where other values stand for some by now."""
    return {value: replaced.get(known, known) for value, known in phase.items()}


def _joined(
    array: Value, rows: Sequence[Value], division: Division, scan: Scan, rw: Rewriter
) -> Value:
    """All rows of an array of which pieces are stacked."""
    axis = 0 if division.rounds == 1 else 1
    whole = rw.insert(lambda *pieces: lax.concatenate(pieces, axis), *rows, before=scan)
    return rw.reshape(whole, array.shape, before=scan) if axis else whole


def _round(
    scan: Scan,
    division: Division,
    read: RowsOfPieces,
    phases: Sequence[KnownInPhase] | None,
    rw: Rewriter,
) -> _Made:
    """A loop for each piece of one round."""
    size = scan.num_carries
    rows = [read.get(array) or array for array in scan.operands[size:]]
    return _pieces(scan, division, scan.operands[:size], rows, phases, scan, rw)


def _rounds(
    scan: Scan,
    division: Division,
    read: RowsOfPieces,
    phases: Sequence[KnownInPhase] | None,
    rw: Rewriter,
) -> _Made:
    """A loop of rounds around a loop for each piece of one."""
    size, rounds, length = scan.num_carries, division.rounds, division.starts[-1]
    body = rw.new_region([carry.param for carry in scan.carries])
    operands: list[Value] = []
    rows: list[Value | Sequence[Value]] = []
    for array, param in scan.streams:
        whole = (rounds, length, *array.shape[1:])
        pieces = read.get(array) or [rw.reshape(array, whole, before=scan)]
        params = [rw.new_value(rw.row_aval(piece), param.name) for piece in pieces]
        for each in params:
            rw.add_param(body, each)
        operands += pieces
        rows.append(params if array in read else params[0])
    inner = _pieces(scan, division, body.params[:size], rows, phases, body.terminator, rw)
    values = [value for pieces in inner.stacks for value in pieces]
    rw.set_outputs(body, [*inner.nexts, *values])
    outer = rw.new_scan(
        body,
        scan.operands[:size],
        operands,
        [rw.stacked_aval(value, rounds) for value in values],
        length=rounds,
        reverse=scan.reverse,
        like=scan,
        before=scan,
    )
    made, count = outer.results[size:], len(division.lengths)
    stacks = [made[at : at + count] for at in range(0, len(made), count)]
    return _Made(outer.results[:size], stacks, inner.loops)


def _pieces(
    scan: Scan,
    division: Division,
    inits: Sequence[Value],
    rows: Sequence[Value | Sequence[Value]],
    phases: Sequence[KnownInPhase] | None,
    before: Op,
    rw: Rewriter,
) -> _Made:
    """The loops of the pieces, one after the other, with what is known put in place.

    Args:
      scan: The loop that is divided.
      division: Its pieces.
      inits: What the first of them starts with.
      rows: Of each stream, the rows of all pieces, or of each.
      phases: What is known in each piece, if anything.
      before: Where they go.
      rw: What changes the program.
    """
    size, starts, step = scan.num_carries, division.starts, scan.body
    order = range(len(division.lengths))[:: -1 if scan.reverse else 1]
    stacks: list[dict[int, Value]] = [{} for _ in scan.stacks]
    loops: list[Scan] = []
    for number in order:
        length, mapping = division.lengths[number], dict[Value, Value]()
        is_last = number == order[-1]
        body = rw.detach_region(scan) if is_last else rw.copy_region(step, mapping)
        if phases is not None:
            _put(phases[number], step, body, mapping, rw)
        at, to = starts[number], starts[number + 1]
        streams = [
            rw.insert(lambda x, at=at, to=to: lax.slice_in_dim(x, at, to), each, before=before)
            if isinstance(each, Value)
            else each[number]
            for each in rows
        ]
        if length == 1 and phases is not None:
            results = _one_step(body, inits, streams, before, rw)
        else:
            avals = [rw.stacked_aval(value, length) for value in body.outputs[size:]]
            loop = rw.new_scan(
                body,
                inits,
                streams,
                avals,
                length=length,
                reverse=scan.reverse,
                like=scan,
                before=before,
            )
            loops.append(loop)
            results = loop.results
        inits = results[:size]
        for stack, made in zip(stacks, results[size:], strict=True):
            stack[number] = made
    return _Made(inits, [[stack[i] for i in sorted(order)] for stack in stacks], loops)


def _one_step(
    body: Region, inits: Sequence[Value], streams: Sequence[Value], before: Op, rw: Rewriter
) -> Sequence[Value]:
    """The results of a loop of one step, without a loop."""
    size = len(inits)
    rows = [rw.reshape(array, array.shape[1:], before=before) for array in streams]
    outputs = rw.inline(body, [*inits, *rows], before)
    rw.set_outputs(body, ())
    stacked = [rw.reshape(value, (1, *value.shape), before=before) for value in outputs[size:]]
    return [*outputs[:size], *stacked]


def _put(
    known: KnownInPhase, step: Region, body: Region, mapping: Mapping[Value, Value], rw: Rewriter
) -> None:
    """Put what is known of values of a step in their place in a copy of it.

    Branches are left: what is known tells which are taken.
    """
    for value, told in known.items():
        old = mapping.get(value, value)
        at = old.op or body.first
        if value.region is not step or not old.uses:
            continue
        assert at is not None
        if isinstance(told, Splat):
            rw.replace(old, rw.full(told.value, old.aval, before=at))
        elif told.region is step or not step.defines(told):
            rw.replace(old, mapping.get(told, told))
