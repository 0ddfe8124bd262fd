"""Powers of a size: which one amounts grow with, and limits on growth as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

TOLERANCE = 0.1
"""Exponents that differ by less are the same."""

WORDS = {
    "constant": "O(1)", "logarithmic": "O(log n)", "linear": "O(n)", "linearithmic": "O(n log n)",
    "quadratic": "O(n^2)", "cubic": "O(n^3)",
}  # fmt: skip
"""Limits by their names."""

_LIMIT = re.compile(
    r"O\((?:1|log (?P<of_log>\w+)"
    r"|(?P<of_power>[^\W\d]\w*)(?:(?:\^|\*\*)(?P<power>\d+(?:\.\d+)?))?(?: log (?P<in_log>\w+))?)\)"
)


def exponent(sizes: Sequence[float], amounts: Sequence[float]) -> float:
    """The power of the size that amounts grow with; 0 where they do not grow.

    Of three sizes or more, the last three are put through ``a * size**p + b``: what does not depend
    on the size has no part in `p`.  A logarithm has a `p` of about 0.
    """
    steps = [later - earlier for earlier, later in pairwise(amounts)][-2:]
    if steps[-1] <= 0:
        return 0.0
    if len(steps) == 2 and steps[0] > 0:
        first, middle, last = (size / sizes[-3] for size in sizes[-3:])
        wanted = steps[1] / steps[0]
        return _increasing(lambda p: (last**p - middle**p) / (middle**p - first**p), wanted)
    if amounts[-2] <= 0:
        return 0.0
    return math.log(amounts[-1] / amounts[-2]) / math.log(sizes[-1] / sizes[-2])


def _increasing(function: Callable[[float], float], wanted: float) -> float:
    """Where an increasing function is `wanted`, between 0 and 16."""
    low, high = 1e-6, 16.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return round(low, 6)


class Limit(NamedTuple):
    """How fast something may grow: as ``size**power * log(size)**logs``."""

    text: str
    """As it was written."""
    power: float
    logs: int = 0

    def allows(self, sizes: Sequence[int], amounts: Sequence[float]) -> bool:
        """Whether amounts at some sizes grow no faster.

        Powers do not tell a logarithm from a constant: that it grows does.
        """
        allowed = [size**self.power * math.log(size) ** self.logs for size in sizes]
        if exponent(sizes, amounts) > exponent(sizes, allowed) + TOLERANCE:
            return False
        return self.power > 0 or amounts[-1] * allowed[0] <= 1.1 * amounts[0] * allowed[-1]


def parse_limit(text: str, name: str = "") -> Limit:
    """A limit as people write it: `O(1)`, `O(T)`, `O(T log T)`, `O(T^2)`, `linear`.

    Args:
      text: the limit.
      name: of the size, if it has one; `n` is always right.

    Raises:
      ValueError: it is not a limit, or of another size; one line.
    """
    written = WORDS.get(text.strip().lower(), text)
    spaced = " ".join(written.replace("²", "^2").replace("³", "^3").replace("*log", " log").split())
    match = _LIMIT.fullmatch(spaced)
    if match is None:
        raise ValueError(
            f"growth is {text!r}: expected O(1), O(log n), O(n), O(n log n), O(n^2), or one of"
            f" {', '.join(WORDS)}"
        )
    sizes = {match[group] for group in ("of_log", "of_power", "in_log")} - {None}
    if len(sizes) > 1 or (name and sizes - {name, "n"}):
        wanted = f"the size is called {name}" if name else "expected one size"
        raise ValueError(f"growth is {text!r}: {wanted}")
    power = float(match["power"] or 1) if match["of_power"] else 0.0
    return Limit(text, power, int(bool(match["of_log"] or match["in_log"])))


def order_text(power: float, name: str = "n") -> str:
    """`O(1)`, `O(T)`, `O(T^2)`, `O(T^1.63)`."""
    if abs(power - round(power)) <= TOLERANCE / 2:
        power = round(power)
    if power == 0:
        return "O(1)"
    return f"O({name})" if power == 1 else f"O({name}^{power:.3g})"
