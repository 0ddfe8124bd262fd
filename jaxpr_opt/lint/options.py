"""The numbers rules go by, and their defaults: a program that is well written stays silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["as-is", "gradient", "train-step"]
"""What is looked at: the function; its gradient; the function, as one that returns the next version
of what it is given, which its caller gives up.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """From which size on something is worth a finding."""

    min_bytes: int = 2**20
    """Nothing smaller is reported."""
    min_share: float = 0.1
    """Nor what is smaller than this share of the program's inputs."""
