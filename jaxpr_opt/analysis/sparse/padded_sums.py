"""Sums of windows in zeros, at known places."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.masks.parts import summands
from jaxpr_opt.analysis.sparse.scatter_chains import Piece, added
from jaxpr_opt.analysis.windows.boxes import Box
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.traits import ARRANGING, SUMS

Cut = tuple[int, int]
"""From one place on an axis to another."""


@dataclass(frozen=True, slots=True, eq=False)
class PaddedSum:
    """A sum, some terms of which are zero but for a window."""

    sums: tuple[Op, ...]
    """The additions, last to first."""
    pieces: dict[Value, Piece]
    """What these terms are."""
    dense: tuple[Value, ...]
    """The other terms."""
    axis: int
    """The axis along which the windows are the smallest part of the array, all in all."""

    @property
    def terms(self) -> tuple[Value, ...]:
        return (*self.pieces, *self.dense)

    @property
    def share(self) -> float:
        """The part of that axis that windows are, on average."""
        length = sum(end - start for start, end in self._sides())
        return length / (len(self.pieces) * self.sums[0].result.shape[self.axis])

    @property
    def run(self) -> float:
        """Bytes of a window that lie side by side, on average."""
        result, axis = self.sums[0].result, self.axis
        return self.share * result.nbytes / prod(result.shape[:axis])

    @property
    def covered(self) -> int:
        """How long the parts of the axis are in which there is a window."""
        return sum(end - start for start, end in self.touched())

    @property
    def is_computed(self) -> bool:
        """Whether what is put somewhere is not there yet: XLA computes it where it writes it."""
        return bool(self.dense) or any(_is_computed(piece.update) for piece in self.pieces.values())

    def cuts(self) -> list[Cut]:
        """The parts of the axis in which the same windows lie."""
        return list(itertools.pairwise(sorted(self._ends())))

    def touched(self) -> list[Cut]:
        """Those in which there is a window."""
        ends = self._ends()
        windows = itertools.accumulate(ends[place] for place in sorted(ends))
        # Condition 2 of concatenate-padded-windows.
        return [cut for cut, count in zip(self.cuts(), windows, strict=False) if count > 0]

    def _ends(self) -> dict[int, int]:
        """Where windows begin and end, and the array does, with how many more there are behind."""
        more = dict.fromkeys((0, self.sums[0].result.shape[self.axis]), 0)
        for start, end in self._sides():
            more[start] = more.get(start, 0) + 1
            more[end] = more.get(end, 0) - 1
        return more

    def _sides(self) -> Iterator[Cut]:
        for box in map(window, self.pieces.values()):
            yield box.starts[self.axis], box.ends[self.axis]


def padded_sum(op: Op) -> PaddedSum | None:
    """The sum that an op computes, if several of its terms are windows in zeros, of which nothing
    else is made; None if it is a term of another sum.
    """
    result = op.result
    users = [use.op for use in result.uses]
    is_term = len(users) == 1 and users[0].name in SUMS and users[0].region is op.region
    if is_term or not is_sized(result.shape) or is_sharded(result):
        return None
    if not result.shape or not result.size:
        return None
    sums, terms = summands(op, most=limits.WINDOWS_TAKEN_APART)
    if any(term.shape != result.shape for term in terms):
        return None  # spread out over rows
    pieces = {term: piece for term in terms if (piece := _piece(term)) is not None}
    if len(pieces) < 2:
        return None
    dense = dict.fromkeys(term for term in terms if term not in pieces)
    return PaddedSum(sums, pieces, tuple(dense), _axis(pieces.values(), result.shape))


def _axis(pieces: Iterable[Piece], shape: tuple[int, ...]) -> int:
    lengths = [sum(sizes) for sizes in zip(*(piece.update.shape for piece in pieces), strict=True)]
    return min(range(len(shape)), key=lambda axis: lengths[axis] / shape[axis])


def window(piece: Piece) -> Box:
    """Where the numbers are."""
    return Box(piece.starts, piece.update.shape)


def _is_computed(update: Value) -> bool:
    made = source_through(update, lambda op: op.name in ARRANGING)
    return made.op is not None and is_fused(made.op)


def _piece(term: Value) -> Piece | None:
    if term.op is None or term.op.name not in {"concatenate", "pad"} or len(term.uses) != 1:
        return None
    chain = added(term)
    if not chain.starts_at_zero or len(chain.links) != 1:
        return None
    (link,) = chain.links
    # Condition 1 of concatenate-padded-windows.
    return link if isinstance(link, Piece) and link.starts else None
