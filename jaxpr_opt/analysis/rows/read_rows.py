"""Ops that need to compute only some rows, because no others of what they lead to are read.

From the read backwards, an op needs to compute a part of its result if all its readers need the
same part; which part of its operands it then needs, `row_axes` says.  An array may be read at
several places, also in loops after it was made: then an op is computed for each of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.analysis.rows.selections import Selection, selection
from jaxpr_opt.analysis.windows.consecutive import axes_of_runs
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.by_element import by_element
from jaxpr_opt.ir.dataflow import Makers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Cond, Op, Remat, Scan, Value
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.traits import CUMULATIVE, ELEMENTWISE, REDUCING

_PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
_KEEPS_ROWS = frozenset({
    "broadcast_in_dim", "concatenate", "reshape", "rev", "sort", "squeeze", "transpose",
})  # fmt: skip
_BY_ROWS = (ELEMENTWISE - {"name"}) | REDUCING | CUMULATIVE | _KEEPS_ROWS | _PRODUCTS
"""Ops that compute fewer rows as they compute all, with the same parameters but for the shape of
the result.
"""


def makes_rows(op: Op) -> bool:
    """Whether an op computes fewer rows as it computes all: `same_op` makes it again for them."""
    return op.name in _BY_ROWS or by_element(op) is not None


def makes_or_reads_rows(op: Op) -> bool:
    """The same, or an op that reads a row for each row of its places."""
    return makes_rows(op) or op.name == "gather"


def makes_most(op: Op, part: float) -> bool:
    """Whether such a part, of all places together, is most of what an op makes, and XLA does not
    make it where it is read.
    """
    return cost_model().is_most(part, 1) and not cost_model().is_made_where_read(op)


AxesOfPart = dict[int, int]
"""Of an array, the axes along which the parts lie, each with that axis of what the selection reads;
no axes: all of the array."""


def windows_touched(
    value: Value, part: AxesOfPart, shape: Sequence[int], times: int, runs: Container[int]
) -> tuple[int, int]:
    """How many windows a part of a value, of this shape, is, at so many places, and how many bytes:
    what lies behind the last axis of the part lies together, and all of it if the places go on one
    by one along its axes.
    """
    beside = prod(value.shape[max(part) + 1 :]) if part else value.size
    nbytes = times * prod(shape) * value.dtype.itemsize
    if all(axis in runs for axis in part.values()):
        return 1, nbytes
    return nbytes // max(beside * value.dtype.itemsize, 1), nbytes


@dataclass(frozen=True, slots=True, eq=False)
class ReadRows:
    """Ops that need to compute some rows only, as a selection reads no others."""

    selection: Selection
    ops: dict[Op, tuple[AxesOfPart, ...]]
    """In program order; for each, the part of each operand that it needs."""
    needed: dict[Value, AxesOfPart]
    """The part of the result of each."""

    @property
    def steps(self) -> int:
        """In how many steps of loops it is read."""
        return prod(loop.length for loop in _around(self.selection) if isinstance(loop, Scan))

    @property
    def runs(self) -> int:
        """At how many places it is read, in all steps."""
        return self.steps * (self.selection.points or 1)

    @property
    def read(self) -> int:
        """How many bytes are read, in all runs."""
        return self.steps * int(self.selection.op.result.nbytes)

    @property
    def parts(self) -> dict[Op, float]:
        """The part of the result of each op that is computed in one run."""
        made = {op: self._nbytes(op.result, self.needed[op.result]) for op in self.ops}
        return {op: nbytes / max(op.result.nbytes, 1) for op, nbytes in made.items()}

    @property
    def factors(self) -> dict[Value, AxesOfPart]:
        """What the rows are computed from, and the part of it that they need."""
        pairs = chain.from_iterable(zip(op.operands, p, strict=True) for op, p in self.ops.items())
        return {value: part for value, part in pairs if value.op not in self.ops}

    @property
    def windows(self) -> list[tuple[int, int]]:
        """How many windows are read of each factor, if elements are read at several places, and how
        many bytes of it.
        """
        parts = [(value, part) for value, part in self.factors.items() if part]
        times, at = self.runs, axes_of_runs(self.selection.op)
        return [windows_touched(v, part, self.shape(v, part), times, at) for v, part in parts]

    @property
    def products_of_rows(self) -> set[Op]:
        """The products of which one factor is the same for all that is read."""
        return {op for op, parts in self.ops.items() if op.name in _PRODUCTS and {} in parts}

    def shape(self, value: Value, part: AxesOfPart) -> tuple[int, ...]:
        """The shape of a part of an array."""
        sizes = self.selection.sizes
        return tuple(sizes.get(part.get(axis, -1), n) for axis, n in enumerate(value.shape))

    def copied(self) -> Iterator[tuple[Value, int, int]]:
        """The factors of products of which a part is copied, as they are made whole; with how many
        bytes that is in all runs, and how many bytes less the product makes.
        """
        for op, parts in self.ops.items():
            if op.name not in _PRODUCTS:
                continue
            made = self._nbytes(op.result, self.needed[op.result])
            for factor, part in zip(op.operands, parts, strict=True):
                if part and factor.op not in self.ops:
                    copied = self.runs * self._nbytes(factor, part)
                    yield factor, copied, op.result.nbytes - self.runs * made

    def _nbytes(self, value: Value, part: AxesOfPart) -> int:
        return int(prod(self.shape(value, part)) * value.nbytes // max(value.size, 1))


def reads_of_rows(array: Value) -> tuple[ReadRows, ...]:
    """The reads of an array, if all read some rows of it, with the ops that lead to it and need to
    compute only some rows for each; and the reads of what these ops make. None if there are no such
    ops.
    """
    whole = set[Op]()
    while True:
        ops, reads = _read_by_rows(array, whole)
        if not ops:
            return ()
        found = [_read_rows(each, ops) for each in reads]
        lost = {op for _, reached in found for op in reached}
        lost |= {op for each, _ in found for op in _needed_in_most(each)}
        if not lost:
            return tuple(each for each, _ in found)
        whole |= lost


def _read_by_rows(array: Value, whole: Container[Op]) -> tuple[set[Op], list[Selection]]:
    """The ops that lead to an array, but for some, whose results are read by each other and by
    selections only; and these.
    """
    ops, reads = set[Op](), list[Selection]()
    pending = Makers(array.region)
    pending.add(array)
    for op in pending:
        found = [selection(user) for user in op.result.users if user not in ops]
        rows = [each for each in found if each is not None and each.array is op.result]
        is_many = len(reads) + len(rows) > limits.READS_OF_ROWS or len(ops) == limits.OPS_OF_ROWS
        if op in whole or not makes_or_reads_rows(op) or is_many:
            continue
        # Conditions 2, 3 of compute-read-rows.
        if len(rows) < len(found) or not all(map(_is_counted, rows)):
            continue
        ops.add(op)
        reads += rows
        for value in op.operands:
            pending.add(value)
    return ops, reads


def _needed_in_most(reads: ReadRows) -> Iterator[Op]:
    """The ops of which elements at several places need most of what they make, all together."""
    runs = reads.runs if reads.selection.points else 0
    return (op for op, part in reads.parts.items() if makes_most(op, runs * part))


def _is_counted(reads: Selection) -> bool:
    """Whether it is known how often an array is read: in loops of known length, or in branches."""
    return all(isinstance(op, Scan | Cond | Remat) for op in _around(reads))


def _around(reads: Selection) -> Iterator[Op]:
    """The ops around a read that are after what makes the array."""
    return (op for op in with_parents(reads.op.parent) if _is_after(op, reads.array))


def _is_after(op: Op, array: Value) -> bool:
    return not any(region.defines(array) for region in op.regions)


def _read_rows(selection: Selection, ops: Container[Op]) -> tuple[ReadRows, list[Op]]:
    """The ops, of these, that lead to what a selection reads and need to compute only some rows of
    it; and those that need to compute all.
    """
    array, found, lost = selection.array, dict[Op, tuple[AxesOfPart, ...]](), list[Op]()
    needed = {array: {axis: axis for axis in (*selection.sizes, *selection.batch)}}
    conflicts: set[Value] = set()
    pending = Makers(array.region)
    pending.add(array)
    for op in pending:
        result = op.result
        if op not in ops:
            continue
        # Conditions 1, 2 of compute-read-rows.
        is_alike = bool(needed[result]) and result not in conflicts
        parts = _parts(op, needed[result], selection) if is_alike else None
        if parts is None:
            lost.append(op)
            continue
        found[op] = parts
        for value, part in zip(op.operands, parts, strict=True):
            if needed.setdefault(value, part) != part:
                conflicts.add(value)
            pending.add(value)
    of_results = {op.result: needed[op.result] for op in found}
    return ReadRows(selection, dict(reversed(found.items())), of_results), lost


def _parts(op: Op, part: AxesOfPart, selection: Selection) -> tuple[AxesOfPart, ...] | None:
    """Which part of each operand the part of a result depends on; None if that is not known."""
    if any(map(is_sharded, (op.result, *op.operands))):
        return None
    if selection.points and op.name == "conv_general_dilated":
        return None
    found = []
    for position, value in enumerate(op.operands):
        axes = ((axis, row_axis(op, position, axis)) for axis in range(len(value.shape)))
        rows = {axis: part[to] for axis, to in axes if to is not None and to in part}
        if not any(at in selection.sizes for at in rows.values()):
            rows = {}
        # Condition 1 of compute-read-rows.
        elif tuple(at for at in rows.values() if at in selection.batch) != selection.batch:
            return None  # its rows are not those of the batch, or in another order
        found.append(rows)
    reached = {at for rows in found for at in rows.values()}
    # Condition 1 of compute-read-rows.
    is_known = op.name == "broadcast_in_dim" or reached == set(part.values())
    return tuple(found) if is_known else None
