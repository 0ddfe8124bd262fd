"""A budget of temporary memory: `'2 GiB'`, a fraction of what the program takes, or the least."""

from __future__ import annotations

import contextlib
import numbers
from dataclasses import dataclass
from typing import Any

from jaxpr_opt.sizes import parse_bytes

MINIMAL = "minimal"

CLOSE = 1.02
"""How much more than a part of what a program takes is taken for that part: both are estimates."""

LEAST = 1024
"""Bytes that a part of a program may always take: XLA aligns each buffer, so no estimate of so
little is right.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """A bound of temporary memory on each device; the least there is if neither is given."""

    nbytes: int | None = None
    """Bytes."""
    part: float | None = None
    """Of what the program takes without a budget."""
    written: str = MINIMAL

    def limit(self, without: int) -> int:
        """Bytes, for a program that takes so many without a budget."""
        if self.nbytes is not None:
            return self.nbytes
        return 0 if self.part is None else max(int(CLOSE * self.part * without), LEAST)

    def __str__(self) -> str:
        return self.written


def parse_budget(given: Any, what: str = "memory") -> Budget:
    """A budget as people write it; a number of at most 1.0 with a point is a part of the whole.

    Raises:
      ValueError: it is something else; the message calls it `what`.
    """
    if given == MINIMAL:
        return Budget()
    part = _part(given)
    if part is not None and 0 < part <= 1:
        return Budget(part=part, written=str(given))
    if part is None and not isinstance(given, bool):
        with contextlib.suppress(ValueError):
            size = parse_bytes(int(given) if isinstance(given, numbers.Integral) else given)
            if size > 0:
                return Budget(nbytes=int(size), written=str(given))
    raise ValueError(
        f"{what}={given!r}: expected bytes, as 65536 or '2 GiB', a part of what the program takes, "
        f"as 0.25, or {MINIMAL!r}"
    )


def _part(given: Any) -> float | None:
    """A number that is written with a point, or is no number of bytes; None if it is another."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            return None if given.strip().isdigit() else float(given)
        return None
    is_real = isinstance(given, numbers.Real) and not isinstance(given, numbers.Integral)
    return float(given) if is_real else None
