"""Which inputs of a program may become which of its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxpr_opt.ir.graph import Op


class Kind(IntEnum):
    """How well an argument and a result of one type go together."""

    NONE = 0
    """Something reads the argument when the result is there, or makes the result while it still
    reads (a product of matrices): XLA would copy it, and save nothing."""
    LATE = 1
    """The result is made of the argument, as of `UPDATED`, but something else reads the argument
    later, in the order of the program: XLA may have to copy it, or run that first."""
    DEAD = 2
    """Nothing reads the argument once the result is made."""
    UPDATED = 3
    """The result is made of the argument element by element, slice by slice or step by step, and
    nothing reads the argument later."""
    MOVED = 4
    """The result is the argument, returned as it is.  Without donation it is copied."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Alias:
    """An argument that can become a result, both by position."""

    input: int
    output: int
    nbytes: int
    """On each device."""
    kind: Kind


@dataclass(frozen=True, slots=True)
class Refusal:
    """An argument that cannot become a result, and why; `op` is what is in the way."""

    input: int
    reason: str
    op: Op | None = None


@dataclass(frozen=True, slots=True)
class Aliasing:
    """What can be donated: every candidate is in exactly one of the two, in order."""

    aliases: tuple[Alias, ...]
    refused: tuple[Refusal, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of results that need no buffer of their own, on each device."""
        return sum(alias.nbytes for alias in self.aliases)
