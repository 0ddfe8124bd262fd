"""The data that devices exchange in a compiled program: collectives, their bytes, how often they
run.

::

    text = jax.jit(step, in_shardings=...).lower(*args).compile().as_text()
    for each in collectives(text):
        print(each)                      # all-gather: 50 times 262144 bytes
    assert traffic(text).nbytes <= 1 << 20

XLA writes the collectives of auto mode when it partitions a program, so only the compiled HLO has
them all.  How often one runs is the product of the trip counts of the loops around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
    "ragged-all-to-all", "reduce-scatter", "recv", "send",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program."""

    kind: str
    """As HLO calls it: `all-gather`, `all-reduce`, ..."""
    nbytes: int
    """Bytes of its result on one device."""
    steps: int
    """How often it runs."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.steps} times {self.nbytes} bytes"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all collectives of a program come to."""

    count: int
    """How many run."""
    nbytes: int
    """What each device receives in them."""


def traffic(hlo: str, unknown_steps: int = 1) -> Traffic:
    """How many collectives a compiled program runs, and the bytes they make; see `collectives`."""
    found = collectives(hlo, unknown_steps)
    return Traffic(sum(c.steps for c in found), sum(c.steps * c.nbytes for c in found))


def collectives(hlo: str, unknown_steps: int = 1) -> list[Collective]:
    """The collectives of a compiled program, given as its HLO text.

    Args:
      hlo: `jax.stages.Compiled.as_text()`.
      unknown_steps: how many steps a loop takes whose trip count XLA does not know.

    Returns:
      One entry for each collective and each way to it; every branch of a conditional counts.
    """
    computations = dict(_computations(hlo))
    entry = next((name for name in computations if name.startswith("ENTRY ")), None)
    if entry is None:
        raise ValueError("collectives: hlo has no ENTRY computation: expected a compiled program")
    return list(_walk(entry, 1, computations, unknown_steps))


_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_OP = re.compile(r"^ +(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"\b(?:body|condition|to_apply|calls|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")


def _computations(hlo: str) -> Iterator[tuple[str, list[str]]]:
    """The lines of each computation; the name of the entry begins with `ENTRY `."""
    lines: list[str] = []
    for line in hlo.splitlines():
        header = _HEADER.match(line)
        if header:
            lines = []
            yield (header[1] or "") + header[2], lines
        else:
            lines.append(line)


def _walk(
    name: str, steps: int, computations: dict[str, list[str]], unknown_steps: int
) -> Iterator[Collective]:
    for line in computations.get(name, ()):
        op = _OP.match(line)
        if op is None:
            continue
        kind = op[2].removesuffix("-start")
        if kind in KINDS:
            yield Collective(kind, _nbytes(op[1]), steps)
        trips = _TRIPS.search(line)
        inside = unknown_steps if op[2] == "while" else 1
        for called in _CALLED.finditer(line):
            for each in re.findall(r"[\w.\-]+", called[1]):
                times = steps * (int(trips[1]) if trips else inside)
                yield from _walk(each, times, computations, unknown_steps)


def _nbytes(result: str) -> int:
    """Bytes of a result type, `f32[8,2]{1,0}` or a tuple of such; of `pred`, a byte an element."""
    return sum(
        math.ceil(math.prod(map(int, shape.split(",") if shape else ())) * int(bits or 8) / 8)
        for kind, bits, shape in _ARRAY.findall(result)
        if kind != "token"
    )
