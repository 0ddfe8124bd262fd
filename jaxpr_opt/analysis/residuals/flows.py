"""The largest flow through a network, and the minimum cut that it shows (Dinic, 1970).

Written here because importing a library for it takes longer than most programs take to optimise,
and solving with it up to ten times as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

N = TypeVar("N", bound=Hashable)

Edge = tuple[N, N, int | None]
"""From one node to another, and how much may flow; None if there is no bound."""


def behind_the_cut(edges: Iterable[Edge[N]], source: N, sink: N) -> set[N]:
    """The nodes on the side of the sink of the minimum cut, the fewest where there are several.

    From source to sink no path may be without a bound.
    """
    network = _Network(edges)
    first, last = network.numbers[source], network.numbers[sink]
    while first in (distances := network.distances(last)):
        network.fill(first, last, distances)
    return {node for node, number in network.numbers.items() if number in distances}


class _Network:
    """Nodes by number, and what more may flow along each arc: edge by edge one along it, and one
    back.
    """

    def __init__(self, edges: Iterable[Edge[Any]]) -> None:
        self.numbers: dict[Any, int] = {}
        self.arcs: list[list[int]] = []
        """Those that leave a node."""
        self.heads: list[int] = []
        self.room: list[int] = []
        edges = list(edges)
        self.flow = 0
        self.unbounded = 1 + sum(bound or 0 for _, _, bound in edges)
        for tail, head, bound in edges:
            self._arc(tail, head, self.unbounded if bound is None else bound)
            self._arc(head, tail, 0)

    def _arc(self, tail: Any, head: Any, room: int) -> None:
        ends = [self.numbers.setdefault(node, len(self.numbers)) for node in (tail, head)]
        while len(self.arcs) < len(self.numbers):
            self.arcs.append([])
        self.arcs[ends[0]].append(len(self.heads))
        self.heads.append(ends[1])
        self.room.append(room)

    def distances(self, sink: int) -> dict[int, int]:
        """How many arcs with room lead to the sink, for the nodes from which it can be reached."""
        found, nearest = {sink: 0}, [sink]
        for node in nearest:
            for arc in self.arcs[node]:
                before = self.heads[arc]
                if self.room[arc ^ 1] and before not in found:
                    found[before] = found[node] + 1
                    nearest.append(before)
        return found

    def fill(self, source: int, sink: int, distances: dict[int, int]) -> None:
        """Let flow what can along shortest paths."""
        first = [0] * len(self.arcs)
        """The number of the first arc of each node that may still lead anywhere."""
        path, node = list[int](), source
        while True:
            if node == sink:
                self._push(path)
                path, node = [], source
            arcs = self.arcs[node]
            while first[node] < len(arcs) and not self._leads(arcs[first[node]], node, distances):
                first[node] += 1
            if first[node] < len(arcs):
                path.append(arcs[first[node]])
                node = self.heads[path[-1]]
            elif path:
                del distances[node]  # it leads nowhere
                node = self.heads[path.pop() ^ 1]
            else:
                return

    def _leads(self, arc: int, node: int, distances: dict[int, int]) -> bool:
        """Whether an arc has room, and leads closer to the sink."""
        return self.room[arc] > 0 and distances.get(self.heads[arc]) == distances[node] - 1

    def _push(self, path: list[int]) -> None:
        """Let flow along a path what it has room for."""
        flow = min(self.room[arc] for arc in path)
        self.flow += flow
        assert self.flow < self.unbounded, "a path is without a bound"
        for arc in path:
            self.room[arc] -= flow
            self.room[arc ^ 1] += flow
