"""The program of a function as its author wrote it, and as it is compiled.

JAX traces a function once and remembers the result: a second time there is no optimiser at work
to see.  So every trace here happens in a context that JAX's caches are keyed by, with a value that
nobody has used before.

An optimised program is an equation ``optimized`` until it is lowered, when the final phase runs.
Here what that phase makes is put in its place: the whole program can be read without compiling it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt import settings
from jaxpr_opt.boundary.arrays_only import arrays_only
from jaxpr_opt.boundary.gradients import LinearMap, optimized_linear_p
from jaxpr_opt.boundary.program import Program, optimized_p
from jaxpr_opt.bridge import compat_call
from jaxpr_opt.decorator import optimize
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import Pass, PassError
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.frames import name_of
from jaxpr_opt.insight.journal import Journal, collect_journals
from jaxpr_opt.insight.summary import summarize
from jaxpr_opt.ir.graph import Graph, Op, in_words_of_the_source
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter, copy_graph

_fresh: Any = jax.make_user_context(None)


def original(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Graph:
    """The program JAX makes of a function when nothing in it is optimised."""
    with settings.override(disable=True):
        return import_jaxpr(_trace(fun, args, kwargs), "final", name_of(fun))


def optimized(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Graph, list[Journal]]:
    """The program that is compiled for a function, and what every pipeline did on the way.

    A function without any optimised part is optimised as a whole.
    """
    graph, journals = as_it_is(fun, args, kwargs)
    if journals:
        return graph, journals
    fun, args, kwargs = arrays_only(fun, args, kwargs)
    return as_it_is(optimize(fun), args, kwargs)


def as_it_is(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Graph, list[Journal]]:
    """The program that is compiled for a function: its optimised parts are, the others are not."""
    return of_jaxpr(lambda: _trace(fun, args, kwargs), name_of(fun))


def of_jaxpr(trace: Callable[[], ClosedJaxpr], name: str) -> tuple[Graph, list[Journal]]:
    """The program that is compiled for a jaxpr, and what every pipeline did on the way."""
    with (
        collect_journals(summarize) as journals,
        settings.override(check=False),
        in_words_of_the_source(),
    ):
        graph = _imported(trace(), name)
        while programs := [op for op in graph.walk() if _program(op) is not None]:
            for op in programs:
                _expand(op, graph)
    return graph, journals


def improved(graph: Graph, pipeline: Pipeline | None = None) -> tuple[Graph, Journal]:
    """The program that a pipeline, by default the library's, makes of a whole program, and its
    journal; the graph stays.
    """
    failures = list[tuple[str, str]]()
    pipeline = registry.default_pipeline() if pipeline is None else pipeline
    while True:
        journal = Journal("final", failures=failures)
        copy = copy_graph(graph)
        copy.phase = "final"
        try:
            pipeline.apply(copy, journal)
        except PassError as error:
            if settings.current().strict:
                raise
            failures.append((error.name, str(error)))
            pipeline = pipeline.without(error.name)
        else:
            return copy, journal


def reselected(
    fun: Callable[..., Any],
    passes: Sequence[str | Pass[Any]] | None,
    skip: Sequence[str],
) -> Any:
    """The function optimised by these passes, whatever is optimised inside of it."""
    inner, options = compat_call.jit_options(fun) or (fun, {})

    def bare(*args: Any, **kwargs: Any) -> Any:
        with settings.override(disable=True):
            return inner(*args, **kwargs)

    bare.__name__ = name_of(inner)
    bare.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    return optimize(bare, passes=passes, skip=skip, **options)


def _trace(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> ClosedJaxpr:
    fun, args, kwargs = arrays_only(fun, args, kwargs)
    jitted: Any = fun if compat_call.jit_options(fun) is not None else jax.jit(fun)
    with _fresh(object()):
        traced: ClosedJaxpr = jitted.trace(*args, **kwargs).jaxpr
    return traced


def _imported(jaxpr: ClosedJaxpr, name: str = "fn") -> Graph:
    """A graph in which optimised programs are still ops, each to be replaced by its final form."""
    return import_jaxpr(jaxpr, "final", name, keep={optimized_p.name})


def _program(op: Op) -> Program | None:
    """The optimised program an op stands for."""
    if op.primitive is optimized_p:
        return _optimized(**op.params)
    return _linear(**op.params).evaluated() if op.primitive is optimized_linear_p else None


def _optimized(*, program: Program, **_: Any) -> Program:
    return program


def _linear(*, linear: LinearMap) -> LinearMap:
    return linear


def _expand(op: Op, graph: Graph) -> None:
    """Put the final form of an optimised program in place of the op that stands for it."""
    program = _program(op)
    assert program is not None
    final = program.final()
    assert isinstance(final, ClosedJaxpr), "only a checked program is a function"
    inner = _imported(final)
    rw = Rewriter(graph)
    mapping = dict(zip(inner.inputs, op.operands, strict=True))
    rw.clone([each for each in inner.body.ops if not each.is_terminator], mapping, op)
    for old, new in zip(op.results, inner.outputs, strict=True):
        rw.replace(old, mapping.get(new, new))
    rw.erase(op)
