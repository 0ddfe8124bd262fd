"""Add up windows in a second array, then move them one by one, and clear them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.sparse.scatter_chains import Chain, Link, Piece, Pieces
from jaxpr_opt.builders.sparse.carried_scratch import carried_zeros, enclosing_scans, hand_on
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def through_array(chain: Chain, total: Value, before: Op, rw: Rewriter) -> Value:
    """Add the pieces of a chain that starts at zero to `total`, by way of a second array."""
    links, loops = chain.links, enclosing_scans(before)
    filled = start = carried_zeros(total.aval, loops, rw)
    for number, link in enumerate(links):
        if isinstance(link, Pieces):
            rw.set_operand(link.op, link.op.results.index(link.result), filled)
            filled = link.result
        else:
            following = (each.op for each in links[number:] if isinstance(each, Pieces))
            operands = (filled, link.update, *link.indices)
            filled = rw.insert(link.add, *operands, before=next(following, before))
    moves = [_exposed(link, rw) for link in links]
    total, cleared = _moved(moves, total, filled, before, rw, {})
    hand_on(start, cleared, loops, rw)
    if chain.root is not None and chain.root.op is not None:
        rw.erase_unread(chain.root.op)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """A loop over the windows that a loop touches; `rows` are their indices."""

    scan: Scan
    inner: list[Piece | Moves]
    rows: dict[Value, Value]


def _exposed(link: Link, rw: Rewriter) -> Piece | Moves:
    """Make the indices of a loop known outside of it."""
    if isinstance(link, Piece):
        return link
    scan = link.op
    inner = [_exposed(each, rw) for each in link.inner.links]
    rows: dict[Value, Value] = {}
    for value in (v for each in inner for v in _read_by(each)):
        if value in rows or not scan.body.defines(value):
            continue
        stream = scan.stream_of(value)
        stack = next((s for s in scan.stacks if s.value is value), None)
        if stream is not None:
            rows[value] = stream.operand
        elif stack is not None:
            rows[value] = stack.result
        else:
            rows[value] = rw.new_value(rw.stacked_aval(value, scan.length), value.name)
            rw.set_scan(scan, stacks=[*scan.stacks, Stack(value, rows[value])])
    return Moves(scan, inner, rows)


def _read_by(move: Piece | Moves) -> Sequence[Value]:
    if isinstance(move, Piece):
        return move.indices
    inside = [v for each in move.inner for v in _read_by(each) if v not in move.rows]
    return [*move.rows.values(), *inside]


def _moved(
    moves: Sequence[Piece | Moves],
    total: Value,
    scratch: Value,
    before: Op,
    rw: Rewriter,
    here: dict[Value, Value],
) -> tuple[Value, Value]:
    """Move every window from `scratch` to `total`; `here` is what indices are before `before`."""
    for move in moves:
        if isinstance(move, Piece):
            indices = [here.get(v, v) for v in move.indices]
            take = partial(_take, move)
            total, scratch = rw.insert_many(take, total, scratch, *indices, before=before)
            continue
        rows = list(move.rows)
        body = rw.new_region([total, scratch, *rows])
        inside = {**here, **dict(zip(rows, body.params[2:], strict=True))}
        scan = rw.new_scan(
            body,
            [total, scratch],
            [here.get(v, v) for v in move.rows.values()],
            [],
            length=move.scan.length,
            reverse=move.scan.reverse,
            like=move.scan,
            before=before,
        )
        start, zeros = body.params[:2]
        ends = _moved(move.inner, start, zeros, body.terminator, rw, inside)
        rw.set_outputs(body, ends)
        total, scratch = scan.results
    return total, scratch


def _take(piece: Piece, total: Any, scratch: Any, *indices: Any) -> tuple[Any, Any]:
    """Add a window of `scratch` to `total` and clear it.

    It is cleared with zeros that are computed from the sum, as nothing exceeds infinity: else XLA
    does not know that the sum comes first, and copies `scratch` in every step (jax 0.10 to 0.12).
    """
    old, window = piece.read(total, *indices), piece.read(scratch, *indices)
    total = piece.write(total, lax.add(old, window), *indices)
    moved = piece.read(total, *indices)
    size = lax.real(moved) if jnp.iscomplexobj(moved) else moved
    zero = lax.convert_element_type(lax.gt(size, lax.full_like(size, np.inf)), moved.dtype)
    return total, piece.write(scratch, zero, *indices)
