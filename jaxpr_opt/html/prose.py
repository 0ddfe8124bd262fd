"""Sentences of reports as markup."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from jaxpr_opt.html.markup import Markup, element, together
from jaxpr_opt.printing import short

FACTORS = 3
"""Factors that are written one by one."""
_QUOTED = re.compile(r"`+([^`]+)`+")


def prose(sentence: str) -> Markup:
    """A sentence with what it quotes as code, and long lists of names cut short."""
    parts = _QUOTED.split(short(sentence))
    return together([element("code", part) if i % 2 else part for i, part in enumerate(parts)])


def product(factors: Sequence[int]) -> str:
    """`24 × 3`; of many factors what they come to, `256 in 8 loops`."""
    if len(factors) > FACTORS:
        return f"{math.prod(factors):,} in {len(factors)} loops"
    return " × ".join(f"{factor:,}" for factor in factors)
