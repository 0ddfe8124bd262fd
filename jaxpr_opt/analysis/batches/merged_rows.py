"""Products along an axis that is merged of several, of which one repeats rows, or is summed up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.batches.repeated_parts import (
    axes_within,
    has_known_rows,
    is_reshaping,
    joined_parts,
    sizes_repeated,
)
from jaxpr_opt.analysis.batches.summed_parts import only_sum
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.graph import Op

Sizes = Sequence[tuple[int, bool]]
"""The sizes of axes in order, and whether all is the same along each, or summed up."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedRows:
    """A product of a factor with such an axis."""

    product: Op
    position: int
    """Of the factor."""
    axis: int
    sizes: tuple[int, ...]
    """Of the axes of which that is merged."""
    share: float
    """The part of the factor that repeats rows."""
    times: int
    """How often."""
    is_sum: bool = False
    """Whether the result is summed up, not the factor repeated."""

    @property
    def partner(self) -> int | None:
        """The axis of the other factor with which it is multiplied in pairs."""
        pairs, mine = numbers_of(self.product)[0], self.position
        return dict(zip(pairs[mine], pairs[1 - mine], strict=True)).get(self.axis)

    @property
    def multiplied(self) -> float:
        """The part of all multiplications that is left if rows are not repeated."""
        return 1 - self.share + self.share / self.times

    @property
    def results(self) -> list[int]:
        """How many bytes each product makes."""
        whole = self.product.result.nbytes
        few = whole if self.partner is not None else whole // self.times
        return [few] if self.share == 1 else [few, whole]

    @property
    def is_added(self) -> bool:
        """Whether the product becomes the sum of several."""
        return self.share < 1

    @property
    def summed(self) -> int:
        """How many bytes are summed up first."""
        position = self.position if self.is_sum else 1 - self.position
        is_first = self.is_sum or self.partner is not None
        return int(self.product.operands[position].nbytes) if is_first else 0

    @property
    def unmade(self) -> int:
        """Bytes that are no longer made."""
        return self.product.result.nbytes - self.results[0] if self.is_sum else 0


def merged_rows(product: Op) -> MergedRows | None:
    """An axis of a factor that is merged of some that repeat rows and others; None if none is."""
    if not has_known_rows(product):
        return None
    return next(_repeated(product), None) or next(_summed(product), None)


def _repeated(product: Op) -> Iterator[MergedRows]:
    for position, factor in enumerate(product.operands):
        batch = numbers_of(product)[1][position]
        axes = [axis for axis in range(len(factor.shape)) if axis not in batch]
        for joined in axes:
            for value, shape in joined_parts(factor, joined):
                made = source_through(value, is_reshaping).op
                sizes = (None if made is None else sizes_repeated(made)) or ()
                for axis in axes:
                    # Condition 1 of multiply-repeated-rows.
                    found = None if axis == joined else _merged(shape, axis, sizes)
                    if found is not None:
                        share = shape[joined] / factor.shape[joined]
                        yield MergedRows(product, position, axis, found[0], share, found[1])


def _summed(product: Op) -> Iterator[MergedRows]:
    """The same of a result that is read as a sum along one of the axes only."""
    shape, sizes = product.result.shape, only_sum(product.result) or ()
    for axis in range(len(shape)):
        found = _merged(shape, axis, sizes)
        for position in range(2) if found is not None else ():
            own, other = (axis_of_operand(product, p, axis) for p in (position, 1 - position))
            # Condition 3 of multiply-repeated-rows.
            if own is not None and other is None and found is not None:
                yield MergedRows(product, position, own, found[0], 1.0, found[1], is_sum=True)


def _merged(shape: Sequence[int], axis: int, sizes: Sizes) -> tuple[tuple[int, ...], int] | None:
    """Of which sizes an axis of a shape is merged, if not all of them are marked alike; and the
    product of those that are.
    """
    found = axes_within(shape, axis, sizes) or ()
    times = prod(n for n, is_marked in found if is_marked)
    return None if times in {1, shape[axis]} else (tuple(n for n, _ in found), times)
