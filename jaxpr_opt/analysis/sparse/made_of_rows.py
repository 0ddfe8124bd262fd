"""The results of elementwise ops on an array that is zero but for rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jaxpr_opt.analysis.sparse.scatter_chains import Piece, summed_pieces
from jaxpr_opt.analysis.values.constants import scalar_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, is_pure


@dataclass(frozen=True, slots=True, eq=False)
class MadeOfRows:
    """`result`, each element of which `ops` compute from one of `dense`, and from scalars."""

    result: Value
    dense: Value
    """The sum of the pieces: zero but for rows."""
    pieces: tuple[Piece, ...]
    ops: tuple[Op, ...]
    """In order."""
    scalars: dict[Value, Value]
    """Operands that repeat a scalar, with the scalar."""

    @property
    def operands(self) -> list[Value]:
        """The values that rows are made of: the scalars, then the update and the places of each
        piece.
        """
        given = (v for piece in self.pieces for v in (piece.update, *piece.indices))
        return [*self.scalars.values(), *given]

    def split(self, given: Sequence[Any]) -> tuple[list[Any], list[tuple[Piece, Any, list[Any]]]]:
        """The scalars, and each piece with its update and its places, of values of `operands`."""
        rest = iter(given)
        scalars = list(islice(rest, len(self.scalars)))
        return scalars, list(self._pieces(rest))

    def _pieces(self, rest: Iterator[Any]) -> Iterator[tuple[Piece, Any, list[Any]]]:
        for piece in self.pieces:
            yield piece, next(rest), list(islice(rest, len(piece.indices)))


def made_of_rows(value: Value) -> MadeOfRows | None:
    """How an array is computed from one that is zero but for rows; None if it is not."""
    region, ops = value.region, dict[Op, None]()
    scalars: dict[Value, Value] = {}
    found: dict[Value, tuple[Piece, ...]] = {}
    pending = [value]
    while pending:
        each = pending.pop()
        op = each.op
        if each in scalars or each in found or (op is not None and op in ops):
            continue
        if (scalar := scalar_of(each)) is not None:
            scalars[each] = scalar
        # Condition 1 of reduce-added-rows.
        elif pieces := summed_pieces(each):
            found[each] = pieces
        # Condition 2 of reduce-added-rows.
        elif op is None or op.region is not region or not _is_elementwise(op):
            return None
        else:
            ops[op] = None
            pending.extend(op.operands)
        if len(ops) > limits.OPS_OF_A_ROW:
            return None
    if region is None or len(found) != 1:
        return None
    ((dense, pieces),) = found.items()
    return MadeOfRows(value, dense, pieces, tuple(sorted(ops, key=region.order)), scalars)


def _is_elementwise(op: Op) -> bool:
    return op.name in ELEMENTWISE and is_pure(op)
