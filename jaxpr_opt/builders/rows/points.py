"""What ops make of one element of an array along some axes, for several places at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import jax

from jaxpr_opt.analysis.rows.read_rows import AxesOfPart
from jaxpr_opt.bridge.parameters import of_shape
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value

Places = Mapping[int, jax.Array]
"""Places along axes of an array."""


class OpsOnPoints(Protocol):
    """Ops, and which part of each operand they need for one place."""

    @property
    def ops(self) -> dict[Op, tuple[AxesOfPart, ...]]:
        """In program order; for each operand the axes along which one element is needed, with those
        of the array that the places are in.
        """

    def shape(self, value: Value, part: AxesOfPart) -> tuple[int, ...]:
        """The shape of a part of a value."""


def evaluate_at(
    at: Places,
    found: OpsOnPoints,
    ops: Iterable[Op],
    results: Mapping[Value, AxesOfPart],
    given: Mapping[Value, jax.Array],
    made: Mapping[Value, jax.Array],
) -> dict[Value, jax.Array]:
    """What ops make for one place, of arrays that are given as a whole and of what is made."""
    known = dict(made)
    for op in ops:
        operands = [
            known[v] if v in known else _part(given[v], part, found.shape(v, part), at)
            for v, part in zip(op.operands, found.ops[op], strict=True)
        ]
        shape = found.shape(op.result, results[op.result])
        known[op.result] = bound(op, *operands, params=of_shape(op, shape))
    return known


def _part(array: jax.Array, part: AxesOfPart, shape: Sequence[int], at: Places) -> jax.Array:
    if not part:
        return array
    starts = [at[part[axis]] if axis in part else 0 for axis in range(array.ndim)]
    return read_window(array, starts, shape)
