"""What analyses find out is kept until the graph changes, and no longer."""

import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.ir.facts import copied_from, memory, remembered
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.rewriter import Rewriter, copy_graph
from tests.graphs import graph_of, op_of


def program(x, i):
    four, zero = np.uint32(4), np.uint32(0)
    row = lax.dynamic_slice(x, (lax.rem(i, four), zero), (1, 3))
    return lax.scan(lambda c, r: (c + r, c), row[0], x)[0]


@pytest.fixture
def graph():
    return graph_of(program, "f32[8,3]", "u32[]")


def test_an_answer_is_given_again(graph):
    asked = []

    @remembered
    def question(op, number):
        asked.append((op, number))
        return [op, number]

    read, scan = op_of(graph, "dynamic_slice"), op_of(graph, "scan")
    assert question(read, 1) is question(read, 1)
    assert question(read, 2) != question(scan, 2)
    assert asked == [(read, 1), (read, 2), (scan, 2)]


def test_queries_are_told_apart(graph):
    (start, _) = op_of(graph, "dynamic_slice").operands[1:]
    assert bounds(start) != access(op_of(graph, "dynamic_slice"))
    assert bounds(start) == (0, 3)


def test_a_rewrite_invalidates(graph):
    rem = op_of(graph, "rem")
    assert bounds(rem.result) == (0, 3)
    rw = Rewriter(graph)
    rw.set_operand(rem, 1, rw.scalar(6, np.uint32))
    assert bounds(rem.result) == (0, 5)


def test_a_copy_is_known_until_either_changes(graph):
    copies = [copy_graph(graph) for _ in range(2)]
    assert copied_from(op_of(copies[0], "rem")) is op_of(graph, "rem")
    assert copied_from(op_of(graph, "rem")) is None
    changed = Rewriter(copies[0])
    changed.set_operand(op_of(copies[0], "rem"), 1, changed.scalar(6, np.uint32))
    assert copied_from(op_of(copies[0], "rem")) is None
    assert copied_from(op_of(copies[1], "scan").body.terminator).region.owner is op_of(
        graph, "scan"
    )
    changed = Rewriter(graph)
    changed.set_operand(op_of(graph, "rem"), 1, changed.scalar(6, np.uint32))
    assert copied_from(op_of(copies[1], "rem")) is None


EDITS = {
    "erase": lambda rw, op, scan: rw.erase(rw.undefined(op.result.aval, before=op).op),
    "insert": lambda rw, op, scan: rw.insert(lax.neg, op.result, before=scan),
    "move": lambda rw, op, scan: rw.move(op, scan),
    "replace": lambda rw, op, scan: rw.replace(op.result, rw.undefined(op.result.aval, before=op)),
    "set_operand": lambda rw, op, scan: rw.set_operand(op, 0, scan.streams[0].operand),
    "set_scan": lambda rw, op, scan: rw.set_scan(scan, reverse=True),
    "set_outputs": lambda rw, op, scan: rw.set_outputs(scan.body, scan.body.outputs),
    "clone": lambda rw, op, scan: rw.clone([op], {}, scan),
    "add_param": lambda rw, op, scan: rw.add_param(scan.body, rw.new_value(op.result.aval)),
    "detach_region": lambda rw, op, scan: rw.detach_region(scan),
}


@pytest.mark.parametrize("edit", EDITS)
def test_every_edit_does(graph, edit):
    rw, op, scan = Rewriter(graph), op_of(graph, "squeeze"), op_of(graph, "scan")
    assert isinstance(scan, Scan)
    bounds(graph.inputs[1])
    assert graph.facts
    EDITS[edit](rw, op, scan)
    assert not graph.facts


def test_what_is_found_on_the_way_is_kept_as_long(graph):
    rem = op_of(graph, "rem")
    assert memory(rem, "notes") is memory(rem.result, "notes")
    memory(rem, "notes")["found"] = 1
    assert not memory(rem, "others")
    Rewriter(graph).insert(lax.neg, rem.result, before=op_of(graph, "scan"))
    assert not memory(rem, "notes")


def test_what_is_in_no_graph_is_asked_each_time(graph):
    asked = []
    count = remembered(asked.append)
    detached = Rewriter(graph).copy(op_of(graph, "squeeze"), {})
    count(detached)
    count(detached)
    assert asked == [detached, detached]
