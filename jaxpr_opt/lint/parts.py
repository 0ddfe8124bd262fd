"""The parts of a target's figures, under names that stay the same when lines move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.saved import inside, kept
from jaxpr_opt.insight.timeline import timeline
from jaxpr_opt.ir.graph import Graph, Value
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.reports.residual_rows import key

MOST = 100
"""Parts of a figure that are written down, the largest first."""


class Name(NamedTuple):
    """What tells a part from others, in this version of a program and in the next."""

    value: str
    file: str
    function: str


@dataclass(frozen=True, slots=True)
class Part:
    """The values of one name, on one line."""

    value: str
    frame: Frame | None
    shape: str
    bytes: int

    def name(self, root: Path) -> Name:
        file, _, function = self.frame or ("", 0, "")
        return Name(self.value, file and relative(file, root), function)

    def to_dict(self, root: Path) -> dict[str, Any]:
        return {
            **self.name(root)._asdict(),
            "line": None if self.frame is None else self.frame[1],
            "shape": self.shape,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run said of a target."""

    source: str = ""
    """The file it is from."""
    root: Path = field(default_factory=Path)
    parts: Mapping[str, Mapping[Name, int]] = field(default_factory=dict)
    """Bytes of the parts of each figure; none where the run did not write them."""

    def grown_most(self, figure: str, graph: Graph) -> tuple[Part, int] | None:
        """The part of a figure that has grown most, and by how many bytes; None if unknown."""
        before = self.parts.get(figure)
        if not before:
            return None
        now = parts(graph)[figure]
        amounts = dict[Name, int]()
        for part in now:
            name = part.name(self.root)
            amounts[name] = amounts.get(name, 0) + part.bytes
        more = {name: nbytes - before.get(name, 0) for name, nbytes in amounts.items()}
        most = max(now, key=lambda part: (more[part.name(self.root)], part.bytes), default=None)
        if most is None or more[most.name(self.root)] <= 0:
            return None
        return most, more[most.name(self.root)]


def parts(graph: Graph) -> dict[str, list[Part]]:
    """The parts of each figure that can grow, the largest first."""
    return {figure: _parts(values(graph)) for figure, values in _VALUES.items()}


def _parts(values: Iterable[tuple[Value, int]]) -> list[Part]:
    found: dict[Any, int] = {}
    for value, nbytes in values:
        which = key(value)
        found[which] = found.get(which, 0) + nbytes
    made = [Part(which.name, which.frame, which.shape, n) for which, n in found.items()]
    return sorted(made, key=lambda part: -part.bytes)[:MOST]


def _kept(graph: Graph) -> Iterable[tuple[Value, int]]:
    return ((each.made, each.nbytes) for each in kept(graph))


def _live_at_the_peak(graph: Graph) -> Iterable[tuple[Value, int]]:
    return ((_innermost(each.value), each.bytes) for each in timeline(graph).peak.largest)


def _innermost(value: Value) -> Value:
    """Of what a loop or a branch gives, the value that its step or the branch has made."""
    while (inner := inside(value)) is not None:
        value = inner
    return value


_VALUES: Mapping[str, Callable[[Graph], Iterable[tuple[Value, int]]]] = {
    "residual_bytes": _kept,
    "peak_bytes": _live_at_the_peak,
}
