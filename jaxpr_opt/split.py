"""Split a joint program where its forward and its backward half meet.

::

    (primals, cotangents) -> (outputs, cotangents in)
  =>
    forward:   primals                  -> outputs, residuals
    backward:  (residuals, cotangents)  -> cotangents in

What does not depend on a cotangent is forward; what backward reads of it is a residual.  A
residual that is a primal input or an output of the function is not made twice, and one that
elementwise ops and movement make of less (a broadcast, a mask ``iota < count``) crosses as what it
is made of.  Which values to let cross is a minimum cut in general; today the cut is where AD put
it after the passes have run.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.core import ClosedJaxpr

from jaxpr_opt.analysis.inputs import inputs
from jaxpr_opt.exporter import export
from jaxpr_opt.ir import Constant, Graph, Op, Value, backward_slice, depending_on
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import is_cheap


@dataclass(frozen=True, slots=True)
class Split:
    """`residuals[k]` says where backward's k-th input comes from: `("input", i)`, the i-th primal,
    or
    `("output", j)`, the j-th output of `forward`, which are the function's outputs and then
    further residuals.
    """

    forward: ClosedJaxpr
    backward: ClosedJaxpr
    residuals: tuple[tuple[str, int], ...]


def split(graph: Graph, num_primals: int, num_outputs: int) -> Split:
    """Split a joint graph whose first inputs are the primals and whose first outputs are the
    outputs.
    """
    primals, cotangents = graph.inputs[:num_primals], graph.inputs[num_primals:]
    outputs, gradients = graph.outputs[:num_outputs], graph.outputs[num_outputs:]
    backward_ops = depending_on(cotangents, graph.body.ops)
    backward_ops.pop(graph.body.terminator, None)
    crossing, spread = _crossing(backward_ops, gradients, set(cotangents))
    extra = [v for v in crossing if v not in primals and v not in outputs]
    forward_ops = [op for op in graph.body.ops if op not in backward_ops and not op.is_terminator]
    forward = _graph(graph, primals, forward_ops, [*outputs, *extra])
    backward = _graph(graph, [*crossing, *cotangents], [*spread, *backward_ops], gradients)
    made = [*outputs, *extra]
    where = [
        ("input", primals.index(v)) if v in primals else ("output", made.index(v)) for v in crossing
    ]
    return Split(export(forward), export(backward), tuple(where))


def _crossing(
    backward: dict[Op, None], gradients: tuple[Value, ...], cotangents: set[Value]
) -> tuple[list[Value], list[Op]]:
    """Residual values, and the spreading ops that backward makes again for itself, in order."""
    needed: dict[Value, None] = {}
    spread: dict[Op, None] = {}

    def need(value: Value) -> None:
        if (
            isinstance(value, Constant)
            or value in cotangents
            or (value.op is not None and value.op in backward)
        ):
            return
        ops = backward_slice([value], lambda v: v.op is None or not is_cheap(v.op))
        read = dict.fromkeys(v for op in ops for v in op.operands)
        leaves = [v for v in read if not isinstance(v, Constant) and v.op not in ops]
        if ops and sum(v.nbytes for v in leaves) < value.nbytes:
            spread.update(dict.fromkeys(ops))
            needed.update(dict.fromkeys(v for v in leaves if v.op is None or v.op not in backward))
        else:
            needed[value] = None

    for op in backward:
        for value in inputs(op):
            need(value)
    for value in gradients:
        need(value)
    return list(needed), list(spread)


def _graph(
    graph: Graph,
    inputs: tuple[Value, ...] | list[Value],
    ops: list[Op],
    outputs: list[Value] | tuple[Value, ...],
) -> Graph:
    region = Rewriter(graph).new_region(inputs)
    half = Graph(region, graph.name, None, graph.phase)
    rw = Rewriter(half)
    mapping = dict(zip(inputs, region.params, strict=True))
    rw.clone(_needed(ops, outputs), mapping, region.terminator)
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
