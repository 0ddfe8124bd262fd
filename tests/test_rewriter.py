"""Every edit of the rewriter: what it records, and that the graph stays a program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import (
    Carry,
    Outcome,
    Region,
    Scan,
    Stack,
)
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, random_inputs, traced
from tests.graphs import LOOP, branch, graph_of, loop, op_of


def computes_the_same(graph, fun, *args):
    verify(graph, types=True)
    jaxpr = traced(fun, *args)
    for seed in range(2):
        given = random_inputs(jaxpr.in_avals, seed)
        assert_same_bits(evaluate_exactly(jaxpr, *given), evaluate_exactly(graph, *given))


def test_every_edit_is_recorded_with_its_source():
    graph = graph_of(lambda x: jnp.sin(x) * 2, "f32[3]")
    rw = Rewriter(graph)
    sin = op_of(graph, "sin")
    rw.replace(sin.result, sin.operands[0])
    rw.erase(sin)
    actions = [(edit.action, edit.op) for edit in rw.edits]
    assert actions == [("modify", "mul"), ("replace", "sin"), ("erase", "sin")]
    assert all(edit.frame[0] == __file__ for edit in rw.edits)


def test_nothing_done_is_nothing_recorded():
    graph = graph_of(jnp.sin, "f32[3]")
    rw = Rewriter(graph)
    (x,) = graph.inputs
    rw.replace(x, x)
    rw.set_operand(op_of(graph, "sin"), 0, x)
    assert rw.edits == []


def test_an_op_in_use_cannot_be_erased():
    graph = graph_of(lambda x: jnp.sin(x) * 2, "f32[3]")
    with pytest.raises(AssertionError, match="still in use"):
        Rewriter(graph).erase(op_of(graph, "sin"))


def test_replace_only_where_asked():
    graph = graph_of(lambda x: (jnp.sin(x), jnp.cos(x)), "f32[3]")
    rw, (x,) = Rewriter(graph), graph.inputs
    sin, cos = op_of(graph, "sin"), op_of(graph, "cos")
    doubled = rw.insert(lambda a: a * 2, x, before=sin)
    rw.replace(x, doubled, where=lambda use: use.op is cos)
    assert sin.operands == (x,) and cos.operands == (doubled,)
    verify(graph)


def test_inserted_code_is_traced():
    graph = graph_of(lambda x, y: x - y, "f32[3]", "f32[3]")
    rw, sub = Rewriter(graph), op_of(graph, "sub")
    x, y = sub.operands
    total, product = rw.insert_many(lambda a, b: (a + b, a * b), x, y, before=sub)
    rw.set_outputs(graph.body, [total, product])
    rw.erase(sub)
    computes_the_same(graph, lambda x, y: (x + y, x * y), "f32[3]", "f32[3]")
    assert op_of(graph, "add").source is sub.source


def test_hoisting_is_moving():
    graph = graph_of(loop, *LOOP)
    scan, sin = op_of(graph, "scan"), op_of(graph, "sin")
    Rewriter(graph).move(sin, before=scan)
    assert sin.region is graph.body and scan.body.captures() == [sin.result]
    computes_the_same(graph, loop, *LOOP)


def test_a_scan_loses_a_stack():
    graph = graph_of(lambda w, xs: jax.tree.leaves(loop(w, xs))[::2], *LOOP)
    scan = op_of(graph, "scan")
    Rewriter(graph).set_scan(scan, stacks=scan.stacks[1:])
    assert len(scan.results) == 2 and "ys(c1)" in to_text(graph)
    computes_the_same(graph, lambda w, xs: jax.tree.leaves(loop(w, xs))[::2], *LOOP)


def test_a_scan_gains_a_carry_and_a_stack():
    graph = graph_of(lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=3), "f32[]")
    rw, scan = Rewriter(graph), op_of(graph, "scan")
    (old,) = scan.carries
    aval = old.param.aval
    param, result, rows = rw.new_value(aval), rw.new_value(aval), rw.new_value(None, "rows")
    after = rw.insert(lambda a: jnp.broadcast_to(a, (3,)), graph.inputs[0], before=scan)
    rows.aval = after.aval
    carry = Carry(old.init, param, old.param, result)
    rw.set_scan(scan, carries=[old, carry], stacks=[Stack(old.next, rows)])
    rw.set_outputs(graph.body, [*(c.result for c in scan.carries), rows])
    rw.erase(after.op)

    def expected(x):
        step = lambda c, _: ((c[0] * 2, c[0]), c[0] * 2)
        (last, before), rows = lax.scan(step, (x, x), None, length=3)
        return last, before, rows

    computes_the_same(graph, expected, "f32[]")


def test_a_while_loses_a_carry():
    def fun(x):
        return lax.while_loop(lambda c: c[1] < 4.0, lambda c: (c[0] * 2, c[1] + 1), (x, x))[1]

    graph = graph_of(fun, "f32[]")
    rw, loop_op = Rewriter(graph), op_of(graph, "while")
    doubled = op_of(graph, "mul")
    rw.replace(doubled.result, loop_op.body.params[1])
    rw.erase(doubled)
    rw.set_while(loop_op, loop_op.carries[1:], [1])
    assert len(loop_op.results) == 1
    computes_the_same(graph, fun, "f32[]")


def test_a_cond_loses_and_gains_results():
    graph = graph_of(lambda p, x: branch(p, x)[0], "bool[]", "f32[3]")
    rw, cond = Rewriter(graph), op_of(graph, "cond")
    rw.set_cond(cond, cond.outcomes[:1])
    assert len(cond.results) == 1
    computes_the_same(graph, lambda p, x: branch(p, x)[0], "bool[]", "f32[3]")
    new = rw.new_value(graph.inputs[1].aval)
    rw.set_cond(cond, [*cond.outcomes, Outcome(new, (graph.inputs[1],) * 2)])
    rw.set_outputs(graph.body, [new])
    computes_the_same(graph, lambda p, x: x, "bool[]", "f32[3]")


def test_a_dropped_result_must_be_unused():
    graph = graph_of(branch, "bool[]", "f32[3]")
    cond = op_of(graph, "cond")
    with pytest.raises(AssertionError, match="still in use"):
        Rewriter(graph).set_cond(cond, cond.outcomes[:1])


def test_copies_share_nothing():
    graph = graph_of(loop, *LOOP)
    rw, scan = Rewriter(graph), op_of(graph, "scan")
    mapping = rw.clone([scan], {}, before=graph.body.terminator)
    copy = mapping[scan.results[0]].op
    assert isinstance(copy, Scan) and copy is not scan and copy.body is not scan.body
    assert copy.body.captures() == scan.body.captures()
    rw.set_outputs(graph.body, copy.results)
    rw.erase(scan)
    computes_the_same(graph, lambda *a: jax.tree.leaves(loop(*a)), *LOOP)


def test_a_branch_can_be_inlined():
    graph = graph_of(lambda x: branch(True, x), "f32[3]")
    rw, cond = Rewriter(graph), op_of(graph, "cond")
    outputs = rw.inline(cond.branches[1], (), before=cond)
    for result, value in zip(cond.results, outputs, strict=True):
        rw.replace(result, value)
    rw.erase(cond)
    computes_the_same(graph, lambda x: (jnp.sin(x), jnp.exp(x)), "f32[3]")


def test_new_loops_and_branches():
    graph = graph_of(lambda p, x, xs: (lax.scan(lambda c, r: (c + r, c), x, xs),
                                       lax.cond(p, lambda: x, lambda: -x)),
                     "bool[]", "f32[3]", "f32[8,3]")  # fmt: skip
    rw = Rewriter(graph)
    scan, cond, last = op_of(graph, "scan"), op_of(graph, "cond"), graph.body.terminator
    body = rw.copy_region(scan.body, {})
    made = rw.new_scan(body, [scan.operands[0]], [scan.operands[1]], [scan.results[1].aval],
                       length=8, reverse=True, like=scan, before=last)  # fmt: skip
    branches = [rw.copy_region(each, {}) for each in reversed(cond.branches)]
    chosen = rw.new_cond(cond.selector, branches, like=cond, before=last)
    rw.set_outputs(graph.body, [*made.results, *chosen.results])

    def expected(p, x, xs):
        carry, rows = lax.scan(lambda c, r: (c + r, c), x, xs, reverse=True)
        return carry, rows, lax.cond(p, lambda: -x, lambda: x)

    computes_the_same(graph, expected, "bool[]", "f32[3]", "f32[8,3]")


@pytest.mark.parametrize(("shape", "streams"), [((8,), 1), ((8, 1), 2), ((8, 2), 2)])
def test_the_number_of_a_step_is_a_stream_of_numbers(shape, streams):
    """Also where rows of an iota are read that are arrays."""
    axis = len(shape) - 1
    graph = graph_of(lambda: lax.scan(lambda c, r: (c + r.sum(), None), jnp.int32(0),
                                      lax.broadcasted_iota(jnp.int32, shape, axis)))  # fmt: skip
    rw, scan = Rewriter(graph), op_of(graph, "scan")
    number = rw.step(scan, before=scan.body.terminator)
    assert number.shape == ()
    assert len(scan.streams) == streams
    rw.set_outputs(scan.body, [number])
    assert int(evaluate_exactly(graph)[0]) == 7


def test_an_empty_region_has_no_terminator():
    with pytest.raises(AssertionError, match="without a terminator"):
        _ = Region().terminator


def test_export_is_the_inverse_of_import_after_edits():
    graph = graph_of(loop, *LOOP)
    again = import_jaxpr(export(graph))
    assert to_text(again) == to_text(graph)


@pytest.mark.parametrize("argument", ["f32[6,4]", jax.ShapeDtypeStruct((6, 4), "int8")])
@pytest.mark.parametrize("weak", [False, True])
def test_a_reshape_is_what_tracing_makes(argument, weak):
    """The same op, of the same type, from the same place."""
    graph = graph_of(lambda x: jnp.sin(x) if x.dtype == jnp.float32 else -x, argument)
    (x,), end = graph.inputs, graph.body.terminator
    x.aval = x.aval.update(weak_type=weak)
    rw = Rewriter(graph)
    made = rw.reshape(x, (2, 3, 4), before=end)
    traced_too = rw.insert(lambda x: lax.reshape(x, (2, 3, 4)), x, before=end)
    assert made.aval == traced_too.aval
    assert made.aval.weak_type == traced_too.aval.weak_type == weak
    assert made.op.params == traced_too.op.params
    assert made.op.primitive is traced_too.op.primitive
    assert (made.op.source, len(rw.edits)) == (traced_too.op.source, 2)


def test_a_long_chain_that_nothing_reads_is_erased():
    def program(x):
        y = x
        for _ in range(3000):
            y = y + 1.0
        return x, y

    graph = import_jaxpr(traced(program, "f32[]"))
    rw = Rewriter(graph)
    last = graph.body.outputs[1].op
    rw.set_outputs(graph.body, graph.body.outputs[:1])
    rw.erase_unread(last)
    assert [op for op in graph.body.ops if not op.is_terminator] == []
