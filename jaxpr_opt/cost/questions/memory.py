"""Questions about memory: the worth of a byte, and whether to store or to compute again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Self

from jaxpr_opt.cost.prices import Prices, number


@dataclass(frozen=True, slots=True)
class MemoryQuestions(Prices):
    """What a byte of memory is worth, and what is stored, not computed again."""

    part: float | None = None
    """Of what straight-line code holds at its peak, the part that it is to hold: 0 for as little as
    there is; None for as much as its bytes are worth."""
    slack: float = inf
    """The part of a step's seconds that may be given for less memory, at most."""

    def thrifty(self) -> tuple[Self, ...]:
        """The same where a byte is worth a little and hardly any time may be lost: what is tried
        without a budget, the dearest byte first.
        """
        prices = (self.device.worth, self.device.worth / 4) if self.device.worth else ()
        return tuple(replace(self, byte=each, part=1.0, slack=self.device.slack) for each in prices)

    @property
    def is_traded(self) -> bool:
        """Whether memory has a price."""
        return self.byte > 0 or self.part is not None

    @property
    def is_bounded(self) -> bool:
        """Whether somebody has given a memory budget."""
        return self.is_traded and self.slack == inf

    @property
    def has_price(self) -> bool:
        """Whether a byte of memory is worth time, however much."""
        return self.byte > 0 and self.slack == inf

    @property
    def keeps_all(self) -> bool:
        """Whether straight-line code is to hold all that it holds now."""
        return self.part is not None and self.part >= 1

    def is_spared(self, stacked: float) -> bool:
        """Whether so many bytes of a loop's stacks are worth a little of its time."""
        return self.device.worth > 0 and stacked >= self.device.spared

    def is_spared_enough(self, nbytes: float, before: float) -> bool:
        """Whether a program that takes so many bytes, not as many as before, may be a little
        slower.
        """
        return nbytes <= self.device.spares * number(before)

    def is_slack(self, seconds: float, whole: float) -> bool:
        """Whether a step of so many seconds may take so many more for less memory."""
        return seconds <= self.slack * whole

    def is_worth_replaying(self, again: float, back: float) -> bool:
        """Whether a step may be computed again for its step back: if that takes many times as long,
        as of random numbers, nothing else of the gradient hides it.  What is not known may be.
        """
        return again == inf or again <= self.doubtful(back)
