"""Operands that are the same along the axes along which windows have places.

A product of a scalar and what is zero but for rows is zero but for rows; so is one with a number
for each array of a batch, or for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.ir.graph import Value


@dataclass(frozen=True, slots=True)
class Shared:
    """What an operand repeats: a scalar, or an array with fewer axes that are longer than one."""

    source: Value
    axes: tuple[int, ...]
    """Which axis of the operand each of these axes is."""


def shared(value: Value) -> Shared:
    """What a value repeats; itself if it repeats nothing."""
    source, axes = spread(value)
    pairs = zip(axes, source.shape, strict=True)
    return Shared(source, tuple(axis for axis, n in pairs if n != 1))


def whole_axes(pieces: Iterable[Piece]) -> Set[int]:
    """The axes along which all windows are as long as the array."""
    return frozenset.intersection(*(frozenset(piece.whole_axes) for piece in pieces))
