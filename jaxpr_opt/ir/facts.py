"""A cache of analysis results on a graph, until the graph changes.

`find`, `refuse`, the next pass and other analyses ask an analysis the same question again and
again. `remembered` caches the answers on the graph. The rewriter, which alone changes a graph,
drops all of them at every edit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from jaxpr_opt.ir.graph import Graph, Op, Value
from jaxpr_opt.ir.nesting import program_around

About = TypeVar("About", bound=Op | Value)
P = ParamSpec("P")
Answer = TypeVar("Answer")


def remembered(
    query: Callable[Concatenate[About, P], Answer],
) -> Callable[Concatenate[About, P], Answer]:
    """A query about an op or a value that is answered once for each state of its graph.

    Answers are shared: nobody may change one.  A query about what is in no graph is answered each
    time.  A query may ask itself about what a value is made of, through thousands of ops: if too
    many questions wait for an answer, that one is found first, and they are asked again.
    """
    waiting = threading.local()

    @functools.wraps(query)
    def ask(about: About, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        graph = program_around(about.region)
        if graph is None:
            return query(about, *args, **kwargs)
        key = (query, about, *args, *kwargs.items())
        facts: dict[Any, Answer] = graph.facts
        if key in facts:
            return facts[key]
        again, depth = functools.partial(ask, about, *args, **kwargs), getattr(waiting, "depth", 0)
        if depth == _DEPTH:
            raise _DeeperError(again)
        waiting.depth = depth + 1
        try:
            facts[key] = query(about, *args, **kwargs)
        except _DeeperError as deeper:
            if depth or deeper.again.func is not ask:
                raise
            _answer([again, deeper.again])
        finally:
            waiting.depth = depth
        return facts[key]

    return ask


_DEPTH = 32
"""How often a query asks itself inside of itself, on a stack of a thousand frames."""


class _DeeperError(Exception):
    """What is to be answered before what it is asked for."""

    def __init__(self, again: functools.partial[Any]) -> None:
        self.again = again


def _answer(pending: list[functools.partial[Any]]) -> None:
    """Answer the last question, and then those that waited for it."""
    while pending:
        try:
            pending[-1]()
        except _DeeperError as deeper:
            if deeper.again.func is not pending[-1].func:
                raise
            pending.append(deeper.again)
        else:
            pending.pop()


def memory(about: Op | Value, of: Hashable) -> dict[Any, Any]:
    """A dictionary that lives as long as the answers, for facts found beside them."""
    graph = program_around(about.region)
    return {} if graph is None else graph.facts.setdefault(of, {})


_COPIED, _ORIGINAL = "copied", "original"


def note_copy(copy: Graph, graph: Graph) -> None:
    """Remember that one graph is a copy of another, until one of them changes."""
    copy.facts[_ORIGINAL] = graph, graph.facts.setdefault(_COPIED, object())


def copied_from(op: Op) -> Op | None:
    """The op that this one is a copy of; None if its graph is no copy, or one of the two has
    changed.
    """
    copy = program_around(op.region)
    graph, state = (None, None) if copy is None else copy.facts.get(_ORIGINAL, (None, None))
    if copy is None or graph is None or graph.facts.get(_COPIED) is not state:
        return None
    pairs: Iterable[tuple[Op, Op]] = zip(copy.walk(), graph.walk(), strict=True)
    return next(original for each, original in pairs if each is op)
