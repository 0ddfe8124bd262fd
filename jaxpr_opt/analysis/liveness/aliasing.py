"""Which argument of a program may take the memory of which result, and why others may not.

With one argument and one result of a type there is nothing to choose. With many the choice matters:
an argument paired with the wrong result is copied first, to be read later. A maximum-weight
matching chooses the pairs. All pairs of an argument have its size, so types do not compete, and
each is matched by itself: most bytes first, best kinds (`Kind`) next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpr_opt.analysis.liveness.lifetimes import Lifetimes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.aliases import Alias, Aliasing, Kind, Refusal
from jaxpr_opt.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """What an argument or a result takes on each device; None is unknown, and fits everything."""

    shape: tuple[int, ...]
    """Of the part that one device holds."""
    dtype: Any
    sharding: Any = None
    memory: str | None = None
    layout: Any = None

    @property
    def nbytes(self) -> int:
        return dtypes.nbytes(self.shape, self.dtype)

    @property
    def type(self) -> tuple[tuple[int, ...], Any]:
        return self.shape, self.dtype

    def __str__(self) -> str:
        return dtypes.array_text(self)

    def differs(self, other: DeviceBuffer) -> str:
        """The reasons why two buffers of one type cannot be one; empty if there are none."""
        # Condition 2 of mark-donated-buffers.
        if None not in (self.memory, other.memory) and self.memory != other.memory:
            return f"is in {self.memory} memory, the result in {other.memory} memory"
        # Condition 2 of mark-donated-buffers.
        if None not in (self.layout, other.layout) and self.layout != other.layout:
            return "has another layout than the result"
        if self.sharding is None or other.sharding is None:
            return ""
        same = self.sharding.is_equivalent_to(other.sharding, len(self.shape))
        # Condition 2 of mark-donated-buffers.
        return "" if same else "is sharded differently from the result"


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a caller gives up, and what would have to fit."""

    inputs: tuple[DeviceBuffer | None, ...]
    """What each input takes; None for what has no buffer (a token, a reference)."""
    outputs: tuple[DeviceBuffer | None, ...]
    given: frozenset[int]
    """The inputs that are given up, by position."""


def aliasing(graph: Graph, offer: Offer) -> Aliasing:
    """The best pairs of results and what is offered for them."""
    inputs, outputs = offer.inputs, offer.outputs
    lifetimes = Lifetimes(graph)

    def kind(i: int, j: int) -> Kind:
        source, target = inputs[i], outputs[j]
        if source is None or target is None or source.differs(target):
            return Kind.NONE
        return lifetimes.kind(i, j)

    aliases: list[Alias] = []
    refused: list[Refusal] = []
    for rows, columns in _by_type(inputs, outputs, sorted(offer.given)):
        pairs = matching(rows, columns, kind)
        aliases += [Alias(i, j, _nbytes(inputs[i]), kind(i, j)) for i, j in pairs]
        for i in set(rows) - {i for i, _ in pairs}:
            fitting = sum(kind(i, j) > Kind.NONE for j in columns)
            refused.append(_refusal(lifetimes, inputs[i], outputs, i, columns, fitting))
    return Aliasing(
        tuple(sorted(aliases, key=lambda each: each.input)),
        tuple(sorted(refused, key=lambda each: each.input)),
    )


def _by_type(
    inputs: Sequence[DeviceBuffer | None],
    outputs: Sequence[DeviceBuffer | None],
    asked: Iterable[int],
) -> Iterable[tuple[list[int], list[int]]]:
    """The inputs of each type with the outputs that have it too."""
    groups: dict[Any, tuple[list[int], list[int]]] = {}
    for i in asked:
        groups.setdefault(_type(inputs[i]), ([], []))[0].append(i)
    for j, buffer in enumerate(outputs):
        if _nbytes(buffer) and _type(buffer) in groups:
            groups[_type(buffer)][1].append(j)
    return groups.values()


def _type(buffer: DeviceBuffer | None) -> Any:
    return buffer.type if buffer is not None and buffer.nbytes else None


def _nbytes(buffer: DeviceBuffer | None) -> int:
    return 0 if buffer is None else buffer.nbytes


def _refusal(
    lifetimes: Lifetimes,
    source: DeviceBuffer | None,
    outputs: Sequence[DeviceBuffer | None],
    i: int,
    same: Sequence[int],
    fitting: int,
) -> Refusal:
    """Why a candidate was not matched: from the outputs of its type, and how many of them fit."""
    if source is None or not source.nbytes:
        return Refusal(i, "has no buffer")
    if not same:
        return Refusal(i, f"no result is {source}")
    if fitting:
        which = (
            "result it could become is"
            if fitting == 1
            else f"{fitting} results it could become are"
        )
        return Refusal(i, f"the {which} taken by other arguments")
    differences = [target and source.differs(target) for target in map(outputs.__getitem__, same)]
    if all(differences):
        return Refusal(i, str(differences[0]))
    return Refusal(i, *lifetimes.obstacle(i, same[differences.index("")]))


def matching(
    rows: Sequence[int], columns: Sequence[int], kind: Callable[[int, int], Kind]
) -> list[tuple[int, int]]:
    """The pairs of a maximum-weight matching: as many as can be, of the best kinds, in order.

    Where all else is equal the first inputs are taken, and the first goes with the first: that is
    how programs are written (the state, then the rest), and what JAX does.
    """
    straight = list(zip(rows, columns, strict=False))
    if all(kind(i, j) >= Kind.UPDATED for i, j in straight):
        return straight  # nothing can be better, and few programs need more
    forced = _forced(rows[: len(columns)], columns, kind)
    if len(forced) == len(straight):
        return forced  # nothing can be better here either
    import networkx as nx  # 0.2 s, and seldom needed

    graph = nx.Graph()
    enough = 32 * len(rows)  # one pair more outweighs whatever kinds the others are
    for row, i in enumerate(rows):
        for column, j in enumerate(columns):
            fit = kind(i, j)
            tie = 2 * (row < len(columns)) + (row == column)
            weight = enough + 4 * fit + tie if fit else 0
            graph.add_edge(("in", i), ("out", j), weight=-weight)
    found = nx.bipartite.minimum_weight_full_matching(graph, [("in", i) for i in rows])
    pairs = [(i, found["in", i][1]) for i in rows if ("in", i) in found]
    return [(i, j) for i, j in pairs if kind(i, j)]


def _forced(
    rows: Sequence[int], columns: Sequence[int], kind: Callable[[int, int], Kind]
) -> list[tuple[int, int]]:
    """Pairs that need no search: an input that can only become one output in place becomes it, and
    so on with those that are left (Karp and Sipser, 1981).
    """
    targets = {i: {j for j in columns if kind(i, j) >= Kind.UPDATED} for i in rows}
    sources: dict[int, list[int]] = {j: [] for j in columns}
    for i, found in targets.items():
        for j in found:
            sources[j].append(i)
    pairs = []
    pending = [i for i in rows if len(targets[i]) == 1]
    while pending:
        i = pending.pop()
        if targets[i]:
            (j,) = targets[i]
            pairs.append((i, j))
            for other in sources[j]:
                targets[other].discard(j)
                if len(targets[other]) == 1:
                    pending.append(other)
    return sorted(pairs)
