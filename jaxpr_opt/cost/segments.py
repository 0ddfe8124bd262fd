"""The best lengths of the segments of a loop whose steps are recomputed.

In a loop of n steps, the carries C at the start of each of m segments are stored, and the residuals
R of one segment at a time: ``C m + R n / m`` bytes instead of ``R n``, for computing each step once
more. A segment is such a loop again: with r levels of m segments each, where ``m = (n R / C) ^ (1 /
(r + 1))``, ``(r + 1) C m`` bytes are stored, and each step is computed r times more. In addition
each level holds the rows S that a segment reads and stacks otherwise.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 12.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

from jaxpr_opt.cost.model import CostModel

LOOPS_OF_A_SEGMENT = 4
"""How many loops more are started for a segment that may be skipped: it is one of the loop and of
each that reads it, with a branch and a loop that replays its steps.
"""


@dataclass(frozen=True, slots=True)
class ReplayedSteps:
    """Steps of a loop that may be computed again."""

    count: int
    carried: int
    """Bytes that a step starts with."""
    stacked: int
    """Bytes of its residuals."""
    streamed: int = 0
    """Bytes of what else is read and stacked, row by row, in it and where it is computed again."""

    def segment(self, seconds: float, model: CostModel) -> int | None:
        """The length of segments that costs least, if computing all steps again takes so long; None
        if keeping all residuals costs least.
        """
        best, least = None, model.held(self.count * self.stacked)
        for levels in itertools.count(1):
            length, nbytes = _least(self, levels, model)
            price = model.held(nbytes) + levels * seconds
            if price >= least:
                return best
            best, least = length, price
        raise AssertionError("each level costs seconds")

    def smallest(self, model: CostModel) -> int:
        """The length of segments of one level that keep the fewest bytes at once."""
        return _least(self, 1, model)[0]


@functools.lru_cache(maxsize=4096)
def _least(steps: ReplayedSteps, levels: int, model: CostModel) -> tuple[int, int]:
    """The length of the outer segments of so many levels, and the bytes that are kept at once.

    Segments that are all of one length are preferred: what is left over is a loop of its own.
    """
    count = steps.count
    if levels == 0 or count == 1 or not steps.stacked:
        return count, count * steps.stacked
    row = steps.stacked + steps.streamed
    ideal = (count * row / max(steps.carried, 1)) ** (1 / (levels + 1))
    length = min(max(round(count / ideal), 1), max(count // 2, 1))
    even, any_ = (
        _kept(steps, each, levels, model) for each in (_nearest_divisor(count, length), length)
    )
    return any_ if model.is_noticed(even[1] - any_[1], any_[1]) else even


def _kept(steps: ReplayedSteps, length: int, levels: int, model: CostModel) -> tuple[int, int]:
    """A length of segments, and the bytes that are kept at once."""
    rows = length * steps.streamed if length > 1 else 0
    inside = _least(replace(steps, count=length), levels - 1, model)[1] + rows
    rest = (steps.count % length) * steps.stacked
    return length, steps.count // length * steps.carried + max(inside, rest)


def _nearest_divisor(count: int, length: int) -> int:
    """The proper divisor of a count that is nearest to a length."""
    small = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    proper = {*small, *(count // d for d in small)} - {count} or {1}
    return min(proper, key=lambda each: (abs(math.log(each / length)), each))
