"""Let a loop carry a shift register as a ring: rows stay where they are, and the start moves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.carried.rings import Ring, Version, ring
from jaxpr_opt.analysis.carried.row_sources import SourceRows
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.windows.window_primitives import component_of
from jaxpr_opt.bridge.parameters import has_numbers, mode_of, starts_of, unsorted
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.builders.sparse.summed_windows import one_by_one
from jaxpr_opt.builders.step_numbers import number_of
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def turn(found: Ring, rw: Rewriter) -> None:
    """Turn a carry into a ring: its versions in a step, their reads, and the result."""
    added = _with_terms_added(found, rw)
    if not isinstance(added, Ring):
        return  # so many rows are added that few stay as they are
    found = added
    scan, carry = found.scan, found.carry
    made: dict[Value, Value] = {carry.param: carry.param}
    for version in found.needed:
        assert version.made_of is not None and version.value.op is not None
        array = _version(version, made, found, rw)
        array.name = array.name or version.value.name
        made[version.value] = array
    for part in found.taken:
        assert part.value.op is not None
        rows = _rows(part.source, made, found, rw, before=part.value.op)
        rw.replace(part.value, rows)
    for op in found.reads:
        version = found.versions[op.operands[0]]
        rw.replace(op.result, _again(op, made[version.value], version.start, found, rw))
    rw.set_operand(scan.body.terminator, scan.carries.index(carry), made[carry.next])
    _turn_back(found, rw)


def _with_terms_added(found: Ring, rw: Rewriter) -> Ring | str | None:
    """The ring when what is added to its versions is added row by row."""
    sums = [(each.value, each.terms, each.made_of) for each in found.needed if each.terms]
    made: dict[Value | None, Value] = {}
    for value, terms, array in sums:
        assert value.op is not None and array is not None
        made[value] = one_by_one(terms, made.get(array, array), value.op, rw)
        rw.replace(value, made[value])
    if not sums:
        return found
    carry = next(c for c in found.scan.carries if c.param is found.carry.param)
    return ring(found.scan, carry)


def _version(version: Version, made: dict[Value, Value], found: Ring, rw: Rewriter) -> Value:
    """The ring that stands for a version."""
    assert version.made_of is not None
    array, op = made[version.made_of], version.value.op
    assert op is not None
    if version.op is not None:
        return _again(op, array, version.start, found, rw)
    sources = [_rows(rows.source, made, found, rw, before=op) for rows in version.rows]
    for rows, source in zip(version.rows, sources, strict=True):
        start = version.start + rows.start
        array = _write(array, start, source, version.value, found, rw, before=op)
    return array


def _rows(
    piece: SourceRows, made: dict[Value, Value], found: Ring, rw: Rewriter, *, before: Op
) -> Value:
    """Rows that are written, as they were before anything is."""
    version = found.versions.get(piece.array)
    if version is not None:
        start = version.start + piece.start
        return _read(made[piece.array], start, piece.size, found, rw, before=before)

    shape = list(found.carry.param.shape)
    shape[found.axis] = piece.size

    def cut(array: jax.Array) -> jax.Array:
        if array.ndim == len(shape):
            return lax.slice_in_dim(array, piece.start, piece.start + piece.size, axis=found.axis)
        return lax.reshape(array, shape) if array.shape else lax.broadcast(array, shape)

    return rw.insert(cut, piece.array, before=before)


def _place(start: int, found: Ring, rw: Rewriter, *, before: Op) -> Value:
    """Where in the ring the row is, in a step, that was at `start` before the first one."""
    scan, steps, held = found.scan, found.scan.length, found.held
    taken = Affine(0, (), {scan: 1})
    if scan.reverse:
        taken = Affine(steps - 1) - taken
    turns = -(-steps * abs(found.moved) // held) if found.moved < 0 else 0
    number = number_of(taken * found.moved + Affine(start % held + turns * held), rw, before=before)
    return rw.insert(lambda n: lax.rem(n, np.int32(held)), number, before=before)


def _is_whole(start: int, size: int, found: Ring) -> bool:
    """Whether rows are one window in every step, as none of them are past the end of the ring."""
    return all(n % size == 0 for n in (start, found.moved, found.held))


def _read(array: Value, start: int, size: int, found: Ring, rw: Rewriter, *, before: Op) -> Value:
    """Rows of a ring."""

    def read(array: jax.Array, place: jax.Array) -> jax.Array:
        if _is_whole(start, size, found):
            shape = [size if d == found.axis else n for d, n in enumerate(array.shape)]
            return read_window(array, _starts(place, found), shape)
        return array.at[_around(place, size, found)].get(mode="promise_in_bounds")

    return rw.insert(read, array, _place(start, found, rw, before=before), before=before)


def _write(
    array: Value, start: int, rows: Value, like: Value, found: Ring, rw: Rewriter, *, before: Op
) -> Value:
    """A ring with rows written, of the type of a version."""
    size = rows.shape[found.axis]

    def write(array: jax.Array, rows: jax.Array, place: jax.Array) -> jax.Array:
        if _is_whole(start, size, found):
            return write_window(array, rows, _starts(place, found))
        at = array.at[_around(place, size, found)]
        return at.set(rows, mode="promise_in_bounds", unique_indices=True)

    place = _place(start, found, rw, before=before)
    return rw.typed(write, like.aval, array, rows, place, before=before)


def _starts(place: jax.Array, found: Ring) -> list[Any]:
    """Where a window of rows starts on each axis."""
    return [place if d == found.axis else 0 for d in range(len(found.carry.param.shape))]


def _around(place: jax.Array, size: int, found: Ring) -> tuple[Any, ...]:
    """An index of rows one after the other."""
    rows = lax.rem(lax.add(place, lax.iota(np.int32, size)), np.int32(found.held))
    return (*(slice(None) for _ in range(found.axis)), rows)


def _again(op: Op, array: Value, start: int, found: Ring, rw: Rewriter) -> Value:
    """What an op reads, writes or adds in rows from the data, in the ring."""
    if op.name == "slice":
        at: list[Any] = list(starts_of(op))
        place = _place(start + at[found.axis], found, rw, before=op)

        def cut(array: jax.Array, place: jax.Array) -> jax.Array:
            at[found.axis] = place
            return read_window(array, at, op.result.shape)

        return rw.typed(cut, op.result.aval, array, place, before=op)
    first = _place(start, found, rw, before=op)
    where, component = component_of(op, found.axis)

    def again(array: jax.Array, first: jax.Array, *others: jax.Array) -> jax.Array:
        operands = list(others)
        operands[where - 1] = _moved(op, others[where - 1], component, first, found)
        primitive = op.primitive
        assert primitive is not None
        params = unsorted(op) if has_numbers(op) else op.params
        made: jax.Array = primitive.bind(array, *operands, **params)
        return made

    return rw.typed(again, op.result.aval, array, first, *op.operands[1:], before=op)


def _moved(
    op: Op, index: jax.Array, component: int | None, first: jax.Array, found: Ring
) -> jax.Array:
    """An index of rows of a register as one of rows of the ring."""
    held, dtype = found.held, index.dtype
    last = np.asarray(held - 1, dtype)
    known = lax.clamp(np.asarray(0, dtype), index, last)
    place = lax.rem(lax.add(known.astype(np.int32), first), np.int32(held)).astype(dtype)
    mode = mode_of(op)
    drops = mode is not None and lax.GatherScatterMode.from_any(mode) != lax.GatherScatterMode.CLIP
    if drops and not _is_clamped_gather(op):
        place = jnp.where(known == index, place, index)
    if component is None or index.shape[-1] == 1:
        return place
    is_row = lax.broadcasted_iota(np.int32, index.shape, index.ndim - 1) == component
    return jnp.where(is_row, place, index)


def _is_clamped_gather(op: Op) -> bool:
    """Whether XLA clamps what a program promised to be in range."""
    mode = lax.GatherScatterMode.from_any(mode_of(op))
    return op.name == "gather" and mode == lax.GatherScatterMode.PROMISE_IN_BOUNDS


def _turn_back(found: Ring, rw: Rewriter) -> None:
    """Put the rows of the result into their order."""
    scan, result = found.scan, found.carry.result
    first, uses = scan.length * found.moved % found.held, set(result.uses)
    if not first or not uses:
        return
    assert scan.next is not None

    def turned(array: jax.Array) -> jax.Array:
        behind = lax.slice_in_dim(array, first, None, axis=found.axis)
        before = lax.slice_in_dim(array, 0, first, axis=found.axis)
        return lax.concatenate([behind, before], found.axis)

    whole = rw.typed(turned, result.aval, result, before=scan.next)
    rw.replace(result, whole, where=lambda use: use in uses)
