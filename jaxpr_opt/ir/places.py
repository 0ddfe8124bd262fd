"""Where in the user's source an op comes from, and how large its value is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxpr_opt.bridge import compat_source
from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.nesting import with_parents


@dataclass(frozen=True, slots=True)
class Size:
    """What a value is, and how often it is made."""

    shape: str
    """As `f32[30000]`."""
    nbytes: int
    """Of one."""
    lengths: tuple[int | None, ...] = ()
    """Of the loops around, outermost first; None for a `while`."""

    @property
    def total(self) -> int:
        """Bytes of all steps, at least: a `while` may take one only."""
        return math.prod(n for n in self.lengths if n is not None) * self.nbytes


def size_of(value: Value) -> Size:
    """The size of a value, which is made in every step of the loops around it."""
    return Size(type_text(value.aval), value.nbytes, lengths_around(value.region))


def lengths_around(region: Region | None) -> tuple[int | None, ...]:
    """How many steps each loop around a region takes, as in `Size.lengths`."""
    around = None if region is None else region.owner
    if not isinstance(around, Op):
        return ()
    own = around.length if isinstance(around, Scan) else None
    return (*lengths_around(around.region), *([own] if isinstance(around, Scan | While) else []))


def user_frame(op: Op) -> Frame | None:
    """The user's line that an op comes from, or else that of the op around it."""
    frames = (compat_source.user_frame(around.source.info) for around in with_parents(op))
    return next((frame for frame in frames if frame is not None), None)
