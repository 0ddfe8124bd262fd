"""Amounts of memory as people write them: `64 MiB`, `1.5 GB`, `4096`."""

from __future__ import annotations

import math
import re
from typing import Any

_UNITS = {
    "": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate(["", "k", "M", "G", "T"])},
    **{f"{letter}iB": 1024**power for power, letter in enumerate(["K", "M", "G", "T"], start=1)},
}
_BY_LETTERS = {unit.lower(): size for unit, size in _UNITS.items()}
_WRITTEN = re.compile(r"(?P<number>\d+(\.\d+)?|\.\d+)\s*(?P<unit>[A-Za-z]*)")


def parse_bytes(written: Any, what: str = "the size") -> int:
    """`'64 MiB'`, `'1.5 GB'`, `'4096'` or 4096 as bytes; kB is 1000 of them, KiB is 1024.

    Raises:
      ValueError: it is something else; the message calls it `what`.
    """
    if isinstance(written, int | float) and not isinstance(written, bool):
        if written >= 0 and math.isfinite(written):
            return int(written)
    elif isinstance(written, str) and (match := _WRITTEN.fullmatch(written.strip())) is not None:
        size = _BY_LETTERS.get(match["unit"].lower())
        if size is not None:
            return int(float(match["number"]) * size)
    raise ValueError(f"{what} is {written!r}: expected bytes, as 65536, '64 MiB' or '1.5 GB'")
