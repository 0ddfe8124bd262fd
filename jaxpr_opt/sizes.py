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


class Size(int):
    """Bytes that remember how they were written."""

    written: str = ""

    def __str__(self) -> str:
        return self.written or str(int(self))

    @property
    def is_binary(self) -> bool:
        """Whether it was written in KiB, MiB, GiB or TiB."""
        return "i" in self.written.lower()


def bytes_text(value: float) -> str:
    """`96 B`, `4.2 MB`; decimal units."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{_digits(value / limit)} {unit}"
    return f"{value:.0f} B"


def binary_text(value: float) -> str:
    """`96 B`, `4 MiB`: powers of 1024."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{_digits(value / 1024**power)} {unit}"
    return f"{value:.0f} B"


def _digits(number: float) -> str:
    """`4.2`, `350`: three digits, or all before the point."""
    return f"{number:.0f}" if abs(number) >= 99.95 else f"{number:.3g}"


def binary_text_above(nbytes: int) -> str:
    """`1.59 MiB`: a size of few digits that is no less than so many bytes."""
    units = (3, "GiB"), (2, "MiB"), (1, "KiB")
    power, unit = next(((p, u) for p, u in units if nbytes >= 1024**p), (0, "B"))
    number = nbytes / 1024**power
    scale = 100 if number < 10 else 10 if number < 100 else 1
    return f"{math.ceil(scale * number) / scale:g} {unit}" if power else f"{nbytes} B"


def parse_bytes(written: Any, what: str = "the size") -> Size:
    """`'64 MiB'`, `'1.5 GB'`, `'4096'` or 4096 as bytes; kB is 1000 of them, KiB is 1024.

    Raises:
      ValueError: it is something else; the message calls it `what`.
    """
    if isinstance(written, int | float) and not isinstance(written, bool):
        if written >= 0 and math.isfinite(written):
            return Size(written)
    elif isinstance(written, str) and (match := _WRITTEN.fullmatch(written.strip())) is not None:
        size = _BY_LETTERS.get(match["unit"].lower())
        if size is not None:
            made = Size(float(match["number"]) * size)
            made.written = written.strip() if match["unit"] else ""
            return made
    raise ValueError(f"{what} is {written!r}: expected bytes, as 65536, '64 MiB' or '1.5 GB'")
