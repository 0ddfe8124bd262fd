"""Arrays that each step makes of its number and of places, so that they move on by some places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.rows.streamed_rows import axes_of_operands
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.analysis.values.rounding import may_differ
from jaxpr_opt.analysis.values.step_numbers import Numbers, computed, known_numbers
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import dimension_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value, is_sized
from jaxpr_opt.ir.traits import ELEMENTWISE, LAYING, VIEWING, is_transcendental

_MADE = (ELEMENTWISE - {"name"}) | LAYING | {"gather", "iota", "transpose"}
"""Ops that make each row of a result of one row of their operands."""


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedRow:
    """An array of a step whose row `p` is, at every step, row ``p + shift * step`` of one array."""

    value: Value
    axis: int | None
    """That of its rows; None if it is the same for each row and at each step."""
    shift: int | None
    """By how many places it moves on in a step; None if it is the same in all."""
    numbers: Affine | None
    """What it is, if those are numbers."""
    parts: tuple[ShiftedRow, ...]
    """What its op makes it of."""


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedRows:
    """Such an array, and the loop whose steps make it."""

    scan: Scan
    row: ShiftedRow

    @property
    def value(self) -> Value:
        return self.row.value

    @property
    def axis(self) -> int:
        assert self.row.axis is not None
        return self.row.axis

    @property
    def shift(self) -> int:
        """By how many places it moves on in a step."""
        assert self.row.shift is not None
        return self.row.shift

    @property
    def width(self) -> int:
        """How many rows a step has."""
        return self.value.shape[self.axis]

    @property
    def length(self) -> int:
        """How many rows all steps have."""
        return self.width + abs(self._moved)

    @property
    def first(self) -> int:
        """The least place of a row: that of the first or of the last step."""
        return min(0, self._moved)

    @property
    def _moved(self) -> int:
        """By how many places it has moved on in the last step."""
        return self.shift * max(self.scan.length - 1, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of all steps."""
        return self.value.nbytes // self.width * self.length

    @property
    def rows(self) -> list[ShiftedRow]:
        """All that it is made of, each once, and itself last."""
        order: dict[ShiftedRow, None] = {}
        pending = [(self.row, False)]
        while pending:
            row, is_ready = pending.pop()
            if is_ready:
                order[row] = None
            elif row not in order:
                pending += [(row, True), *((part, False) for part in reversed(row.parts))]
        return list(order)

    @property
    def ops(self) -> list[Op]:
        """The ops that only make it."""
        of = {row.value.op for row in self.rows if row.parts and row.value.op}
        made: dict[Op, None] = {}
        for op in reversed([op for op in self.scan.body.ops if op in of]):
            if op is self.value.op or all(user in made for user, _ in op.result.uses):
                made[op] = None
        return list(made)

    def numbers(self) -> Numbers | None:
        """The rows of all steps, if they are whole numbers that are known."""
        if self.length > limits.STEPS_KNOWN:
            return None
        found: dict[ShiftedRow, Numbers | None] = {}
        for row in self.rows:
            found[row] = self._numbers(row, [found[part] for part in row.parts])
        return found[self.row]

    def _numbers(self, row: ShiftedRow, parts: list[Numbers | None]) -> Numbers | None:
        value, numbers = row.value, row.numbers
        if row.axis is None:
            known = known_numbers(value) if value.size == 1 else None
            return np.full(self.length, known[0]) if known is not None else None
        if value.size != self.width or value.op is None:
            return None
        if numbers is not None:
            places = np.arange(self.first, self.first + self.length)
            return (numbers.offset + numbers.strides[row.axis] * places).astype(value.dtype)
        return parts[0] if value.op.name in LAYING else computed(value.op, parts)


def shifted_rows(scan: Scan) -> Iterator[ShiftedRows]:
    """The arrays of a loop's step that take functions or reads of an array to make, and move on."""
    found: dict[Value, ShiftedRows] = {}
    for op in scan.body.ops:
        if op.name == "gather" or is_transcendental(op):
            row = _last(op.result, scan)
            if row is not None and row.value.uses:
                found[row.value] = row
    yield from found.values()


def _last(value: Value, scan: Scan) -> ShiftedRows | None:
    """Such an array, or what is made of it alone and is still such an array."""
    found = None
    while (made := shifted(value, scan)) is not None:
        found, users = made, {user for user, _ in value.uses}
        user = users.pop() if len(users) == 1 else None
        if user is None or user.region is not scan.body or len(user.results) != 1:
            break
        value = user.result
    return found


@remembered
def shifted(value: Value, scan: Scan) -> ShiftedRows | None:
    """How an array of a loop's step moves on; None if it does not."""
    # Condition 4 of compute-shifted-rows.
    if not is_sized((*value.shape, scan.length)):
        return None
    for axis, n in enumerate(value.shape):
        row = _row(value, scan, axis) if n > 1 else None
        if row is not None and row.shift is not None:
            return ShiftedRows(scan, row)
    return None


@remembered
def _row(value: Value, scan: Scan, axis: int | None) -> ShiftedRow | None:
    """How rows along an axis move on, or do not; no axis: how all of it stays the same."""
    if not scan.body.defines(value):
        # Condition 2 of compute-shifted-rows.
        return None if axis is not None else ShiftedRow(value, None, None, None, ())
    if axis is not None and (numbers := _counted(value, scan, axis)) is not None:
        shift = numbers.steps[scan] // numbers.strides[axis]
        return ShiftedRow(value, axis, shift, numbers, ())
    op = value.op
    if op is None or op.region is not scan.body or not _is_made(op, axis):
        return None
    if op.name == "iota":
        is_same = dimension_of(op) != axis
        return ShiftedRow(value, axis, None, None, ()) if is_same else None
    axes = (None,) * len(op.operands) if axis is None else axes_of_operands(op, axis)
    if axes is None:
        return None
    parts: list[ShiftedRow] = []
    for operand, at in zip(op.operands, axes, strict=True):
        part = _row(operand, scan, at)
        if part is None:
            return None
        parts.append(part)
    shifts = {part.shift for part in parts} - {None}
    # Condition 1 of compute-shifted-rows.
    if len(shifts) > 1:
        return None
    return ShiftedRow(value, axis, next(iter(shifts), None), None, tuple(parts))


def _is_made(op: Op, axis: int | None) -> bool:
    if op.name not in _MADE and not (axis is None and op.name in VIEWING):
        return False
    values = (*op.operands, *op.results)
    if any(is_sharded(v) or not dtypes.is_of_bytes(v.dtype) for v in values):
        return False
    # Condition 3 of compute-shifted-rows.
    return not may_differ(op)


def _counted(value: Value, scan: Scan, axis: int) -> Affine | None:
    """Numbers that change from place to place along one axis, and from step to step."""
    found = affine(value) if dtypes.is_integer(value.dtype) else None
    if found is None or [*found.steps] != [scan]:
        return None
    stride, step = found.strides[axis], found.steps[scan]
    if stride == 0 or step % stride or any(k for d, k in enumerate(found.strides) if d != axis):
        return None
    return found
