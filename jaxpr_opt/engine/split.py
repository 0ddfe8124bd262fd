"""Split a joint program where its forward and its backward half meet.

::

    (primals, cotangents) -> (outputs, cotangents in)
  =>
    forward:   primals                  -> outputs, residuals
    backward:  (residuals, cotangents)  -> cotangents in

What does not depend on a cotangent is forward; what backward reads of it is a residual. A residual
that is a primal input or an output of the function is not stored twice. One that elementwise ops
and data movement make of a smaller value (a broadcast, a mask ``iota < count``) crosses as that
value. In general a minimum cut decides what crosses; today the cut is where AD put it after the
passes have run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr

from jaxpr_opt.analysis.values.origins import Origins, is_origin
from jaxpr_opt.builders.fences import from_memory
from jaxpr_opt.ir.dataflow import backward_slice, depending_on, inputs
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Constant, Graph, Op, Value
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class Split:
    """The two halves.  `residuals[k]` says where backward's k-th input comes from: `("input", i)`,
    the i-th primal, or `("output", j)`, the j-th output of `forward`.  These are the function's
    outputs, then further residuals.
    """

    forward: ClosedJaxpr
    backward: ClosedJaxpr
    residuals: tuple[tuple[str, int], ...]


def join(halves: Split, num_outputs: int, pipeline: Any = None) -> Graph:
    """Join two halves into one program, imported for `pipeline`: the second half reads what the
    first returns.
    """
    graph = import_jaxpr(halves.forward, pipeline=pipeline)
    back = import_jaxpr(halves.backward, pipeline=pipeline)
    rw = Rewriter(graph)
    made = {"input": graph.inputs, "output": graph.outputs}
    residuals = [made[kind][i] for kind, i in halves.residuals]
    cotangents = [rw.new_value(v.aval, v.name) for v in back.inputs[len(residuals) :]]
    rw.set_inputs(graph, [*graph.inputs, *cotangents])
    gradients = rw.inline(back.body, [*residuals, *cotangents], graph.body.terminator)
    rw.set_outputs(graph.body, [*graph.outputs[:num_outputs], *gradients])
    graph.cotangents = tuple(cotangents)
    return graph


def split(graph: Graph, num_primals: int, num_outputs: int) -> Split:
    """Split a joint graph whose first inputs are the primals and whose first outputs are the
    outputs.
    """
    primals, cotangents = graph.inputs[:num_primals], graph.inputs[num_primals:]
    outputs, gradients = graph.outputs[:num_outputs], graph.outputs[num_outputs:]
    backward_ops = depending_on(cotangents, graph.body.ops)
    backward_ops.pop(graph.body.terminator, None)
    crossing, spread = _crossing(backward_ops, gradients, set(cotangents))
    there = {*primals, *outputs}
    made = [*outputs, *(v for v in crossing if v not in there)]
    forward_ops = [op for op in graph.body.ops if op not in backward_ops and not op.is_terminator]
    forward = _graph(graph, primals, forward_ops, made)
    backward = _graph(graph, [*crossing, *cotangents], backward_ops, gradients, spread)
    places = _places("output", made) | _places("input", primals)
    return Split(export(forward), export(backward), tuple(places[v] for v in crossing))


def _places(kind: str, values: Sequence[Value]) -> dict[Value, tuple[str, int]]:
    """Where each value is first found."""
    return {v: (kind, i) for i, v in reversed(list(enumerate(values)))}


def _crossing(
    backward: Collection[Op], gradients: Sequence[Value], cotangents: Set[Value]
) -> tuple[list[Value], list[Op]]:
    """Residual values, and the spreading ops that backward makes again for itself, in order."""
    read = dict.fromkeys([*(v for op in backward for v in inputs(op)), *gradients])
    wanted = [
        v
        for v in read
        if not isinstance(v, Constant) and v not in cotangents and v.op not in backward
    ]
    origins = Origins(wanted)
    spread = [v for v in wanted if origins.are_smaller(v)]
    again = dict.fromkeys(backward_slice(spread, is_origin))
    stored = dict.fromkeys([*wanted, *origins.of(spread)])
    return [v for v in stored if v.op not in again], list(again)


def _graph(
    graph: Graph,
    inputs: tuple[Value, ...] | list[Value],
    ops: Iterable[Op],
    outputs: list[Value] | tuple[Value, ...],
    spread: Sequence[Op] = (),
) -> Graph:
    """A half of a graph; what `spread` makes it reads as if it was among its inputs."""
    region = Rewriter(graph).new_region(inputs)
    half = Graph(region, graph.name, None, graph.phase)
    rw = Rewriter(half)
    mapping = dict(zip(inputs, region.params, strict=True))
    needed, again = _needed([*spread, *ops], outputs), set(spread)
    rw.clone((op for op in needed if op in again), mapping, region.terminator)
    for value in (v for op in needed if op in again for v in op.results):
        mapping[value] = from_memory(mapping[value], rw)
    rw.clone((op for op in needed if op not in again), mapping, region.terminator)
    rw.set_outputs(region, [mapping.get(v, v) for v in outputs])
    return half


def _needed(ops: list[Op], outputs: list[Value] | tuple[Value, ...]) -> list[Op]:
    """The ops that contribute to `outputs` or have effects."""
    live: set[Value] = set(outputs)
    kept: list[Op] = []
    for op in reversed(ops):
        if op.effects or not live.isdisjoint(op.results):
            kept.append(op)
            live.update(inputs(op))
    return kept[::-1]
