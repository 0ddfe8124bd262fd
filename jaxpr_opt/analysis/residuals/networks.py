"""Choose the values to store, so that others can be computed from them at the least price.

A minimum cut of a flow network. An edge from the source to an op has the price of repeating the op;
an edge from an op to its result has the price of storing the result; an edge from an operand to its
op has no bound, because what is repeated needs it. The values that are needed lead to the sink. An
op on the side of the sink is repeated, and a value that crosses to that side is stored.

What costs nothing to store may be taken as given before the cut. Any choice may store it, too, at
no price, and then repeats no more than before; so one of the best choices stores all such values,
and the cut of the rest finds it.

Source: AOTAutograd's min-cut partitioner, https://dev-discuss.pytorch.org/t/467; Moses et al.,
"Scalable Automatic Differentiation of Multiple Parallel Paradigms through Compiler Augmentation"
(SC 2022), which caches a minimum cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

V = TypeVar("V", bound=Hashable)
N = TypeVar("N", bound=Hashable)

_SOURCE, _SINK = "source", "sink"


def price(seconds: float) -> int:
    """A price for a network, where it is an integer."""
    return round(seconds * 1e15)


def cheapest_leaves(
    needed: Iterable[V],
    maker: Callable[[V], N | None],
    operands: Callable[[N], Iterable[V]],
    store: Callable[[V], int | None],
    repeat: Callable[[N], int | None],
    stay: Callable[[N], int] | None = None,
) -> set[V]:
    """The values to store, so that the needed ones can be computed from them, at the least price.
    Where two choices cost the same, less is repeated.

    Args:
      needed: Values that are wanted, which may be stored themselves.
      maker: The op that computes a value; None if it can only be stored.
      operands: The values that an op reads.
      store: The price of storing a value; None if that is impossible.
      repeat: The price of computing an op again; None if that is impossible.
      stay: The price of an op that is not repeated, as what it makes is stored; by default none.
    """
    values = dict.fromkeys(needed)
    edges: list[tuple[Hashable, Hashable, dict[str, int]]] = [(v, _SINK, {}) for v in values]
    again: dict[N, int | None] = {}
    pending = list(values)
    while pending:
        value = pending.pop()
        op = maker(value)
        edges.append((_SOURCE if op is None else op, value, _bound(store(value))))
        if op is None or op in again:
            continue
        again[op] = most = repeat(op)
        edges.append((_SOURCE, op, _bound(most)))
        if stay is not None:
            edges.append((op, _SINK, _bound(stay(op))))
        read = {} if most is None else dict.fromkeys(operands(op))
        pending.extend(v for v in read if v not in values)
        values.update(read)
        edges.extend((v, op, {}) for v in read)
    if all(most is None for most in again.values()):
        return set(values)
    import networkx as nx  # 0.1 s, and most programs have nothing to cut

    network = nx.DiGraph()
    network.add_edges_from(edges)
    solve = nx.algorithms.flow.boykov_kolmogorov  # half the time of the default
    _, (_, behind) = nx.minimum_cut(network, _SOURCE, _SINK, flow_func=solve)
    return {value for value in values if value in behind and maker(value) not in behind}


def _bound(most: int | None) -> dict[str, int]:
    """The attribute of an edge; without it the edge has no bound."""
    return {} if most is None else {"capacity": most}
