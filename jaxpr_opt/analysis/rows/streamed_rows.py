"""Ops before a loop that make what it streams, row by row, which a step could do."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.values.rounding import is_stable, may_differ
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import CostModel, cost_model
from jaxpr_opt.cost.reuse import buffer_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, is_sized
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.traits import ELEMENTWISE, VIEWING, is_arithmetic, is_broadcast

_MOVING = VIEWING | {"iota"}
"""XLA makes these where the row is read."""
_STREAMABLE = (ELEMENTWISE - {"name"}) | _MOVING | {"concatenate", "gather", "pad"}
"""Ops that make a row as they make many."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamedRow:
    """How a step gets a row, along an axis, of an array that was made before the loop."""

    value: Value
    axis: int | None
    """None if the array is the same for each row: the step reads all of it."""
    parts: tuple[StreamedRow, ...] | None
    """The rows, or arrays, of which the op that made the array makes the row; None if the row is
    streamed."""
    seconds: float
    """What that takes in all steps, beside what its parts take."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamedRows:
    """An array that loops stream, and nothing else reads."""

    row: StreamedRow
    loops: tuple[Scan, ...]

    @property
    def rows(self) -> list[StreamedRow]:
        """Its row, and all that it is made of, each once."""
        found = {(self.row.value, self.row.axis): self.row}
        pending = [self.row]
        for row in pending:
            new = [p for p in row.parts or () if (p.value, p.axis) not in found]
            found.update({(part.value, part.axis): part for part in new})
            pending += new
        return pending

    @property
    def streamed(self) -> list[StreamedRow]:
        """The rows that are streamed instead."""
        return [row for row in self.rows if row.parts is None and row.axis is not None]

    @property
    def ops(self) -> list[Op]:
        """The ops that a step runs again."""
        return [row.value.op for row in self.rows if row.parts is not None and row.value.op]

    @property
    def added(self) -> int:
        """Bytes that what is streamed instead takes, where it was no array before."""
        return sum(row.value.nbytes for row in self.streamed if is_new(row.value, row.axis))

    def more(self, scan: Scan) -> int:
        """How many more streams a loop has then."""
        there = {stream.operand for stream in scan.streams}
        return len([row for row in self.streamed if row.axis or row.value not in there]) - 1


def streamed_rows(array: Value) -> StreamedRows | None:
    """How the loops that stream an array can make its rows; None if something else reads it, or it
    costs no less.
    """
    loops: dict[Scan, None] = {}
    for op, position in array.uses:
        # Condition 1 of make-streamed-rows.
        is_streamed = isinstance(op, Scan) and position >= op.num_carries
        if not is_streamed or op.region is not array.region:
            return None
        assert isinstance(op, Scan)
        loops[op] = None
    is_known = is_sized(array.shape) and array.shape[0] > 1
    if (
        not loops
        or array.region is None
        or not is_known
        or (array.op is not None and array.op.name == "iota")
    ):
        return None
    rows = _Rows(array, len(loops))
    found = StreamedRows(rows.row(array, 0, 0)[0], tuple(loops))
    # Condition 4 of make-streamed-rows.
    is_same = len(loops) == 1 or all(map(_is_same_in_loops, found.ops))
    is_less = sum(row.seconds for row in found.rows) < rows.streamed(array, 0)
    return found if found.row.parts is not None and is_same and is_less else None


def _is_same_in_loops(op: Op) -> bool:
    """Whether an op gives the same bits in each loop."""
    is_number = dtypes.is_inexact(op.result.dtype)
    return not is_number or (op.region is not None and is_stable(op, op.region))


@dataclass(slots=True)
class _Rows:
    """The rows of all that an array is made of."""

    array: Value
    loops: int
    found: dict[tuple[Value, int | None], StreamedRow] = field(default_factory=dict)

    @property
    def model(self) -> CostModel:
        return cost_model()

    @property
    def region(self) -> Region | None:
        return self.array.region

    def row(self, value: Value, axis: int | None, depth: int) -> tuple[StreamedRow, float]:
        """The cheaper way to a row, and the seconds that it takes, which count once."""
        key = value, axis
        if key in self.found:
            return self.found[key], 0.0
        streamed = StreamedRow(value, axis, None, self.streamed(value, axis))
        made = self._made(value, axis, depth)
        found = made if made and made[1] < streamed.seconds else (streamed, streamed.seconds)
        self.found[key] = found[0]
        return found

    def streamed(self, value: Value, axis: int | None) -> float:
        """Seconds to read each row, and to write the array if that is new."""
        if axis is None:
            again = self.model.passed(value.nbytes, value.nbytes) / 2
            return self.loops * self.array.shape[0] * again
        read = self.model.kept(value.nbytes, self.array.nbytes) / 2
        return read * (self.loops + is_new(value, axis))

    def _made(self, value: Value, axis: int | None, depth: int) -> tuple[StreamedRow, float] | None:
        op = value.op
        if op is None or depth > limits.OPS_OF_A_ROW or not self._is_by_row(op):
            return None
        if axis is None and not is_broadcast(op):
            return None
        axes = (None,) * len(op.operands) if axis is None else axes_of_operands(op, axis)
        if axes is None:
            return None
        pairs = zip(op.operands, axes, strict=True)
        parts = [self.row(v, at, depth + 1) for v, at in pairs]
        if op.name == "gather":  # of what it reads, the rows are made
            parts[0] = StreamedRow(op.operands[0], axes[0], None, 0.0), 0.0
        seconds = self._computed(op)
        row = StreamedRow(value, axis, tuple(part for part, _ in parts), seconds)
        return row, seconds + sum(each for _, each in parts)

    def _is_by_row(self, op: Op) -> bool:
        # Condition 2 of make-streamed-rows.
        if op.name not in _STREAMABLE:
            return False
        if op.region is not self.region or _reads_for_gradient(op):
            return False
        values = (*op.operands, *op.results)
        if any(is_sharded(v) or not dtypes.is_of_bytes(v.dtype) for v in values):
            return False
        # Condition 3 of make-streamed-rows.
        return not may_differ(op)

    def _computed(self, op: Op) -> float:
        """Seconds that an op takes in the steps: functions are not computed by several cores there,
        nor always several numbers at once.
        """
        if op.name in _MOVING:
            return 0.0
        if is_arithmetic(op):
            return self.loops * self.model.elementwise(op.result)
        if op.name in ELEMENTWISE:
            return self.loops * self.model.apart([op])
        return self.loops * self.model.one_by_one(op.result)


def _reads_for_gradient(op: Op) -> bool:
    """Whether the gradient would add to an array in each step, not once for all."""
    is_read = op.name == "gather" and dtypes.is_inexact(op.result.dtype)
    return is_read and is_to_be_differentiated(op)


def is_to_be_differentiated(op: Op) -> bool:
    """Whether JAX may still differentiate an op, which is in no gradient yet."""
    program = program_of(op)
    return program is not None and program.phase != "final" and not program.has_gradient


def is_new(value: Value, axis: int | None) -> bool:
    """Whether an array is in memory only if a loop streams it: it is else computed where it is
    read, or its rows lie along another axis.  A view of an array takes no memory.
    """
    maker = buffer_of(value).op
    return axis is not None and (axis > 0 or (maker is not None and maker.name in _STREAMABLE))


def axes_of_operands(op: Op, axis: int) -> tuple[int | None, ...] | None:
    """Along which axis of each operand lie the rows of which an op makes those along an axis of its
    result: None where it reads all of the operand; None for all if that is not known.
    """
    found = tuple(axis_of_operand(op, i, axis) for i in range(len(op.operands)))
    if op.name in {"broadcast_in_dim", "iota"}:
        return found
    if op.name == "gather":
        return found if found[1] is not None else None
    others = (v for v, at in zip(op.operands, found, strict=True) if at is None)
    # Condition 2 of make-streamed-rows.
    return found if all(_is_repeated(op, v, axis) for v in others) else None


def _is_repeated(op: Op, value: Value, axis: int) -> bool:
    """Whether an op reads the same of an operand for each row: a number, or the only one."""
    is_one = op.name in ELEMENTWISE and value.shape != () and value.shape[axis] == 1
    return value.shape == () or is_one
