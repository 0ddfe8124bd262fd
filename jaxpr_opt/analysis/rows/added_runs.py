"""Numbers that are added at places of which those of each step are those before, moved on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jax.lax import GatherScatterMode

from jaxpr_opt.analysis.rows.shifted_rows import ShiftedRows, shifted
from jaxpr_opt.analysis.values.step_numbers import Numbers
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import mode_of, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import stacked_row
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Scan, Value, is_sized


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive numbers, of those of all steps, that are added at consecutive places."""

    first: int
    """Which of all is its first one."""
    count: int
    place: int
    """Where in the array the first is added."""
    stride: int
    """1 if places go up, -1 if they go down."""

    def number_at(self, place: int) -> int:
        """Which number is added at a place, were the run so long."""
        return self.first + self.stride * (place - self.place)

    @property
    def places(self) -> range:
        """The places of the run."""
        last = self.place + self.stride * (self.count - 1)
        return range(min(self.place, last), max(self.place, last) + 1)

    def is_alone(self, n: int, numbers: int) -> bool:
        """Whether of so many numbers no other would be added to an array of so many places, were
        the run as long as that.
        """
        low, high = sorted((self.number_at(0), self.number_at(n - 1)))
        return max(low, 0) >= self.first and min(high, numbers - 1) < self.first + self.count


@dataclass(frozen=True, slots=True, eq=False)
class AddedRuns:
    """A scatter in a loop's step that adds numbers at such places."""

    op: Op
    scan: Scan
    where: ShiftedRows
    runs: tuple[Run, ...]
    """All go the same way."""

    @property
    def stride(self) -> int:
        return self.runs[0].stride


def added_runs(op: Op) -> AddedRuns | None:
    """The runs in which a scatter of a step adds numbers; None if there are none, or many."""
    scan = op.region.owner if op.region is not None else None
    array, indices, numbers = op.operands
    # Condition 1 of add-in-runs.
    if not isinstance(scan, Scan):
        return None
    # Condition 2 of add-in-runs.
    if len(numbers.shape) != 1 or numbers_of(op).update_window_dims:
        return None
    if not is_sized(array.shape) or len(array.shape) != 1 or is_sharded(array):
        return None
    where = _shifted(indices, scan)
    places = where.numbers() if where is not None else None
    if where is None or places is None:
        return None
    runs = _runs(places, array.size, is_clamped=mode_of(op) == GatherScatterMode.CLIP)
    return AddedRuns(op, scan, where, runs) if runs else None


def _shifted(indices: Value, scan: Scan) -> ShiftedRows | None:
    """How indices move on, in this loop or in that which has stacked them, as narrower ones too."""
    op = indices.op
    read = op.operands[0] if op is not None and op.name == "convert_element_type" else indices
    stacked = stacked_row(read) if dtypes.is_integer(read.dtype) else None
    return shifted(indices, scan) if stacked is None else shifted(*stacked)


def _runs(places: Numbers, n: int, *, is_clamped: bool) -> tuple[Run, ...] | None:
    """Of the places of all numbers, in an array of so many; None if there are too many."""
    places = places.astype(np.int64)
    there = (places >= 0) & (places < n)
    # Condition 3 of add-in-runs.
    if is_clamped and not there.all():
        return None
    change = np.diff(places)
    stride = 1 if np.sum(change == 1) >= np.sum(change == -1) else -1
    ends = 1 + np.flatnonzero((change != stride) | (there[1:] != there[:-1]))
    firsts = [0, *ends.tolist()]
    # Condition 4 of add-in-runs.
    if np.sum(there[firsts]) > limits.RUNS:
        return None
    pairs = zip(firsts, [*firsts[1:], len(places)], strict=True)
    return tuple(Run(a, b - a, int(places[a]), stride) for a, b in pairs if there[a])
