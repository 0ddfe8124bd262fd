"""Carry what is made of the rows of a carry, where a step changes few of them.

Before::

    m = scan[100] carry(m=m0) xs(x=xs) {
      h = tanh (dot_general m w)         # of all rows
      i, r = f h x
      n = dynamic_update_slice m r i 0   # of which one changes
      yield carry(n)
    }

After::

    h0 = tanh (dot_general m0 w)
    m, _ = scan[100] carry(m=m0, h=h0) xs(x=xs) {
      i, r = f h x
      n = dynamic_update_slice m r i 0
      s = tanh (dot_general (dynamic_slice n i 0) w)
      k = dynamic_update_slice h s i 0
      yield carry(n, k)
    }

Keys and values of all words so far, the encoded frames of a window, the normalised slots of a
memory, what is estimated for each arm of a bandit: made of all rows in each step, though one has
changed. Sound, up to rounding, when

1. a step leaves the other rows of the carry as they are: it writes windows to what it was given, or
   selects whether to, or shifts all rows and puts others at one end. The windows are read of what
   it hands on, so that rows that are dropped, clamped, added to or left alone are what they are;
   if all that is written is in range, they are what is written;
2. each row of what is made depends on one row of the carry, or of several that change alike; it may
   be looked up in a table;
3. and on nothing else that changes from step to step; where rows move, on nothing else that differs
   from row to row.

What the ops read may be the carry as the step takes it, or as it hands it on.

Cost: a row instead of all; what is made is carried, and a row of it is written. It fires if that
takes less time than to make all rows again, and in no loop that skips whole steps.
Source: key-value caches of decoders; strength reduction of loops (finite differencing, Paige and
Koenig, 1982).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.mapped_carries import MappedCarries, mapped_carries
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.values.handed_on import seconds_saved
from jaxpr_opt.builders.carried.mapped_carries import carry_mapped
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class Mapped(Match):
    """Ops that make rows of the rows of carries."""

    op: Scan
    found: MappedCarries


@dataclass(frozen=True)
class CarryMappedRows(Pass[Mapped]):
    """What each step makes of all rows of a carry -> a carry."""

    name: ClassVar[str] = "carry-mapped-rows"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    after: ClassVar[tuple[After, ...]] = (
        After("compute-read-rows", "of rows of which few are read, no others are made"),
    )

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Scan) -> Iterator[Mapped]:
        for found in mapped_carries(op) if is_sized((op.length,)) else ():  # (1, 2, 3)
            names = ", ".join(dict.fromkeys(each.name for each in found.ops))
            says = f"{names}: of the rows that a step changes, not of all {found.held}"
            yield Mapped(op, says, found, about=found.read[0])

    def refuse(self, match: Mapped) -> str | None:
        scan, found, model = match.op, match.found, cost_model()
        if model.is_most(found.changed, found.held):
            return "a step changes most rows"
        if all(map(is_arithmetic, found.ops)):
            return "it is made where it is read, at no cost"
        again, part = seconds_saved(found.ops), found.changed / found.held
        moves = found.shift is not None
        if not model.is_worth_mapping_once(found.read, found.needed, again, part, moves=moves):
            return "carrying it takes as long as making it again"
        if model.is_most(1, scan.length):
            return "the loop takes a step or two"
        if find_skip(scan) is not None:
            return "the loop skips whole steps"
        return None

    def rewrite(self, match: Mapped, rw: Rewriter) -> None:
        carry_mapped(match.found, rw)
