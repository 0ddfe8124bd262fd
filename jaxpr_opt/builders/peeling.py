"""Split off the first steps of a loop, and do so in all loops that read its residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from jax import lax

from jaxpr_opt.analysis.residuals.replays import Replay, replay
from jaxpr_opt.ir.graph import Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter

Pieces = Mapping[Value, tuple[Value, Value]]
"""Of arrays: the rows that the first steps of a loop read, and those that the others read."""


def without_last(found: Replay, rest: int, rw: Rewriter) -> Replay:
    """Move the last steps of a loop, and of the loops that read its residuals, to loops of their
    own; return what is left of it.
    """
    first, last = in_two(found, found.scan.length - rest, rw)
    left = replay(first)
    assert left is not None, f"nothing reads the residuals of {first} beside {last}"
    return left


def in_two(found: Replay, steps: int, rw: Rewriter) -> tuple[Scan, Scan]:
    """Divide a loop, and each loop that reads its residuals, into its first steps and the rest;
    return the two loops that stack residuals.
    """
    scan, residuals = found.scan, {stack.result for stack in found.stacks}
    first, others, pieces = _in_two(scan, steps, {}, rw)
    for array in pieces.keys() - residuals:
        rw.replace(array, _joined(pieces[array], scan, rw))
    for reader in found.readers:
        read = {array: pieces[array] for array in residuals}
        _read_pieces(reader, scan, scan.length - steps, read, rw)
    rw.erase(scan)
    return first, others


def _read_pieces(reader: Scan, scan: Scan, rest: int, pieces: Pieces, rw: Rewriter) -> None:
    """Make two loops of one that reads residuals, of which there are two pieces."""
    steps = reader.length - rest
    if reader.reverse != scan.reverse:
        steps, pieces = rest, {array: parts[::-1] for array, parts in pieces.items()}
    _, _, made = _in_two(reader, steps, pieces, rw)
    for array, parts in made.items():
        rw.replace(array, _joined(parts, reader, rw))
    rw.erase(reader)


def _in_two(
    scan: Scan, steps: int, pieces: Pieces, rw: Rewriter
) -> tuple[Scan, Scan, dict[Value, tuple[Value, Value]]]:
    """Two loops of the first steps of a loop and of the others, and the pieces that they stack."""
    size, stacks, results = scan.num_carries, scan.stacks, scan.results
    copy = rw.copy_region(scan.body, {})
    first = _part(scan, copy, scan.operands[:size], 0, steps, pieces, rw)
    others = _part(scan, rw.detach_region(scan), first.results[:size], 1, steps, pieces, rw)
    for old, new in zip(results[:size], others.results[:size], strict=True):
        rw.replace(old, new)
    made = zip(first.results[size:], others.results[size:], strict=True)
    return first, others, {s.result: both for s, both in zip(stacks, made, strict=True)}


def _part(
    scan: Scan,
    body: Region,
    inits: Sequence[Value],
    part: int,
    steps: int,
    pieces: Pieces,
    rw: Rewriter,
) -> Scan:
    """The loop of the first steps, or of the others."""
    size, length = scan.num_carries, scan.length - steps if part else steps
    start = 0 if bool(part) == scan.reverse else scan.length - length
    rows = partial(lax.slice_in_dim, start_index=start, limit_index=start + length)
    return rw.new_scan(
        body,
        inits,
        [
            pieces[array][part] if array in pieces else rw.insert(rows, array, before=scan)
            for array in scan.operands[size:]
        ],
        [rw.stacked_aval(value, length) for value in body.outputs[size:]],
        length=length,
        reverse=scan.reverse,
        like=scan,
        before=scan,
    )


def _joined(pieces: tuple[Value, Value], scan: Scan, rw: Rewriter) -> Value:
    """All rows of an array of which the loop stacks two pieces."""
    rows = pieces[::-1] if scan.reverse else pieces
    return rw.insert(lambda *parts: lax.concatenate(parts, 0), *rows, before=scan)
