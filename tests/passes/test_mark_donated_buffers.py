"""mark-donated-buffers: what of a caller's arguments results take the place of."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxpr_opt.analysis.liveness.aliasing import DeviceBuffer, Offer
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.running import run_pass
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.ir.verify import verify

ROW, TABLE = (jax.ShapeDtypeStruct(shape, "float32") for shape in [(8,), (8, 8)])


def step(params, gradient):
    return params - 0.1 * gradient


def marked(fun, *args, given=None):
    """The program after the pass, and what it says of arguments that stay the caller's."""
    graph = import_jaxpr(jax.jit(fun).trace(*args).jaxpr, "final")
    inputs, outputs = (
        tuple(DeviceBuffer(v.shape, v.dtype) for v in values)
        for values in (graph.inputs, graph.outputs)
    )
    given = frozenset(range(len(args)) if given is None else given)
    marking = replace(registry.named("mark-donated-buffers"), offer=Offer(inputs, outputs, given))
    journal = Journal("final")
    assert run_pass(marking, graph, journal, debug=True)
    assert not run_pass(marking, graph, journal)
    verify(graph)
    return graph, [each.reason for each in journal.records[marking.name].refusals]


def opening(fun, *args, **options):
    return to_text(marked(fun, *args, **options)[0]).splitlines()[0]


def test_before_and_after():
    graph, refused = marked(step, ROW, ROW)
    assert (
        to_text(graph)
        == """\
fn (params:f32[8] becomes s, gradient:f32[8]) {
  m:f32[8] = mul 0.1 gradient
  s:f32[8] = sub params m
  return s
}"""
    )
    assert refused == ["the result it could become is taken by other arguments"]  # (4)


def test_only_what_the_caller_gives_up():
    """Condition 1."""
    assert opening(step, ROW, ROW, given=[1]) == ("fn (params:f32[8], gradient:f32[8] becomes s) {")
    assert "becomes" not in opening(step, ROW, ROW, given=[])


def test_without_an_offer_there_is_nothing_to_mark():
    """Condition 1."""
    graph = import_jaxpr(jax.jit(step).trace(ROW, ROW).jaxpr, "final")
    (at,) = (op for op in graph.walk() if op.is_terminator)
    assert not list(registry.named("mark-donated-buffers").find(at))


@pytest.mark.parametrize(
    ("fun", "reason"),
    [
        (jnp.sum, "no result is f32[8,8]"),  # (2)
        (lambda x: x @ x, "dot_general reads it while it writes the result"),  # (3)
        (
            lambda x: (y := jnp.tanh(x @ x), (y @ x).sum()),
            "dot_general reads it when the result is there, which it needs",  # (3)
        ),
    ],
)
def test_conditions(fun, reason):
    graph, refused = marked(fun, TABLE)
    assert refused == [reason]
    assert "becomes" not in to_text(graph)


def test_a_result_is_taken_once():
    """Condition 4."""
    assert opening(lambda x, y: (y, y * x), ROW, ROW).count("becomes") == 2
    assert opening(lambda x: (x, x), ROW).count("becomes") == 1


def test_a_mark_holds_until_the_next_edit():
    graph, _ = marked(step, ROW, ROW)
    run_pass(registry.named("eliminate-dead-code"), graph, Journal("final"))
    assert graph.donated is not None
    dead = next(op for op in graph.walk() if op.name == "mul")
    Rewriter(graph).replace(dead.result, graph.inputs[1])
    assert graph.donated is None
