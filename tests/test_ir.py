"""The graph: uses, order, dominance, walking while it changes, and every edit of the rewriter."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.exporter import export
from jaxpr_opt.importer import import_jaxpr
from jaxpr_opt.ir import (
    Carry,
    Constant,
    Outcome,
    Region,
    Scan,
    Stack,
    Use,
    aval_bytes,
    backward_slice,
    dominates,
)
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, random_inputs, traced
from jaxpr_opt.text import to_text
from jaxpr_opt.verify import verify


def graph_of(fun, *args):
    return import_jaxpr(traced(fun, *args))


def op_of(graph, name):
    return next(op for op in graph.walk() if op.name == name)


def loop(w, xs):
    def step(c, x):
        s = jnp.sin(w)
        return c + x * s, (s, jnp.cos(c))

    return lax.scan(step, jnp.zeros(3), xs)


LOOP = ("f32[3]", "f32[8,3]")


def branch(p, x):
    return lax.cond(p, lambda: (jnp.sin(x), jnp.exp(x)), lambda: (jnp.cos(x), x))


def computes_the_same(graph, fun, *args):
    verify(graph, types=True)
    jaxpr = traced(fun, *args)
    for seed in range(2):
        given = random_inputs(jaxpr.in_avals, seed)
        assert_same_bits(evaluate_exactly(jaxpr, *given), evaluate_exactly(graph, *given))


# -- reading -------------------------------------------------------------------------------------------


def test_every_operand_is_a_use():
    graph = graph_of(lambda x: (x * x, jnp.sin(x)), "f32[3]")
    mul, sin = list(graph.body.ops)[:2]
    (x,) = graph.inputs
    assert list(x.uses) == [Use(mul, 0), Use(mul, 1), Use(sin, 0)]
    assert x.users == [mul, sin]
    assert list(mul.result.uses) == [Use(graph.body.terminator, 0)], "outputs are uses"


def test_values_know_where_they_come_from():
    graph = graph_of(loop, *LOOP)
    scan = op_of(graph, "scan")
    sin = op_of(graph, "sin")
    assert sin.region is scan.body and sin.parent is scan and scan.parent is None
    assert scan.body.parent is graph.body and graph.body.parent is None
    assert scan.body.params[0].op is None and scan.body.params[0].region is scan.body
    assert scan.body.defines(sin.result) and not scan.body.defines(graph.inputs[0])
    assert graph.body.contains(scan.body) and not scan.body.contains(graph.body)


def test_regions_capture_outer_values():
    graph = graph_of(loop, *LOOP)
    assert op_of(graph, "scan").body.captures() == [graph.inputs[0]]
    assert graph.body.captures() == []


def test_a_scan_has_roles():
    scan = op_of(graph_of(loop, *LOOP), "scan")
    assert (scan.length, scan.reverse) == (8, False)
    (carry,), (stream,), (sines, cosines) = scan.carries, scan.streams, scan.stacks
    assert carry.next.op.name == "add" and not carry.is_invariant
    assert [carry.param.shape, stream.param.shape] == [(3,), (3,)]
    assert sines.value.op.name == "sin" and cosines.result is scan.results[2]
    assert scan.carry_of(carry.param) == carry and scan.carry_of(stream.param) is None
    assert scan.stream_of(stream.param) == stream and scan.stack_of(sines.result) == sines


def test_an_invariant_carry():
    graph = graph_of(loop, *LOOP)
    scan = op_of(graph, "scan")
    Rewriter(graph).set_operand(scan.body.terminator, 0, scan.body.params[0])
    assert scan.carries[0].is_invariant


def test_a_cond_has_outcomes():
    cond = op_of(graph_of(branch, "bool[]", "f32[3]"), "cond")
    names = [[v.op.name if v.op else "" for v in o.values] for o in cond.outcomes]
    assert names == [["cos", "sin"], ["", "exp"]]


def test_dominance():
    graph = graph_of(loop, *LOOP)
    scan, sin, mul = op_of(graph, "scan"), op_of(graph, "sin"), op_of(graph, "mul")
    zeros = op_of(graph, "broadcast_in_dim")
    assert dominates(sin.result, mul) and not dominates(mul.result, sin)
    assert not dominates(sin.result, sin), "an op does not dominate itself"
    assert dominates(zeros.result, sin), "outer values are seen"
    assert not dominates(sin.result, graph.body.terminator), "inner values are not"
    assert not dominates(scan.results[0], sin), "nor what comes later outside"
    assert dominates(Constant(graph.inputs[0].aval, 1.0), zeros)


def test_an_isolated_region_sees_nothing_outside():
    graph = graph_of(lambda x: jax.jit(jnp.sin, donate_argnums=0)(x * 2), "f32[3]")
    mul, sin = op_of(graph, "mul"), op_of(graph, "sin")
    assert not dominates(mul.result, sin)
    assert sin.region.parent is None


def test_slices_are_in_program_order():
    def fun(x):
        a = jnp.sin(x)
        b = lax.cond(x[0] > 0, lambda: a * 2, lambda: x)
        return jnp.exp(b), jnp.tan(x)

    graph = graph_of(fun, "f32[3]")
    found = backward_slice([graph.outputs[0]], lambda v: v in graph.inputs)
    assert [op.name for op in found if op.name in ("sin", "cond", "exp", "tan")] == [
        "sin", "cond", "exp",
    ]  # fmt: skip
    assert backward_slice([graph.outputs[0]], lambda v: v is graph.outputs[0]) == []


def test_scalars_are_recognised():
    graph = graph_of(lambda x: (x * 2, x + jnp.arange(3), x * jnp.ones(3)), "f32[3]")
    mul = op_of(graph, "mul")
    assert mul.operands[1].scalar == 2 and op_of(graph, "iota") is not None


def test_bytes():
    key = jax.eval_shape(jax.random.key, 0)
    assert aval_bytes(jax.typeof(jnp.zeros((2, 3), jnp.bfloat16))) == 12
    assert aval_bytes(key) > 0 and aval_bytes(object()) == 0


# -- walking while editing -----------------------------------------------------------------------------


def test_ops_may_be_erased_and_inserted_while_they_are_visited():
    graph = graph_of(lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x)), "f32[3]")
    rw = Rewriter(graph)
    seen = []
    for op in graph.body.ops:
        seen.append(op.name)
        if op.name in ("sin", "cos"):
            new = rw.insert(jnp.exp, op.operands[0], before=op)
            rw.replace(op.result, new)
            rw.erase(op)
    assert seen == ["sin", "cos", "tan", "yield"]
    assert [op.name for op in graph.body.ops] == ["exp", "exp", "tan", "yield"]
    verify(graph)


def test_order_follows_insertions():
    graph = graph_of(lambda x: jnp.sin(x) + jnp.cos(x), "f32[3]")
    sin, cos, add = list(graph.body.ops)[:3]
    assert graph.body.order(sin) < graph.body.order(cos)
    Rewriter(graph).move(sin, before=add)
    assert graph.body.order(cos) < graph.body.order(sin) < graph.body.order(add)


# -- writing -------------------------------------------------------------------------------------------


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
    graph = graph_of(lambda x: jnp.sin(x), "f32[3]")
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
    total, product = rw.insert(lambda a, b: (a + b, a * b), x, y, before=sub)
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
    graph = graph_of(lambda w, xs: (lambda c, ys: (c, ys[1]))(*loop(w, xs)), *LOOP)
    scan = op_of(graph, "scan")
    Rewriter(graph).set_scan(scan, stacks=scan.stacks[1:])
    assert len(scan.results) == 2 and "ys(c1)" in to_text(graph)
    computes_the_same(graph, lambda w, xs: (loop(w, xs)[0], loop(w, xs)[1][1]), *LOOP)


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


def test_an_empty_region_has_no_terminator():
    with pytest.raises(AssertionError, match="without a terminator"):
        _ = Region().terminator


def test_export_is_the_inverse_of_import_after_edits():
    graph = graph_of(loop, *LOOP)
    again = import_jaxpr(export(graph))
    assert to_text(again) == to_text(graph)
