"""The graph: uses, order, dominance, walking while it changes, and every edit of the rewriter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Constant, Use, aval_bytes
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.verify import verify
from tests.graphs import LOOP, branch, graph_of, loop, op_of


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


@pytest.mark.parametrize(
    ("array", "scalar"),
    [
        (np.float32([2, 2]), 2),
        (np.float32([-0.0, -0.0]), 0),
        (np.float32([0.0, -0.0]), None),
        (np.complex64([0, complex(0, -0.0)]), None),
        (np.float32([np.nan, np.nan]), None),
        (np.zeros(2, jax.dtypes.float0), None),
        (np.zeros(0, np.float32), None),
    ],
)
def test_the_number_that_all_elements_of_a_constant_are(array, scalar):
    """Zeros of both signs are two numbers, and no number is the element of a `float0`."""
    assert Constant(jax.core.ShapedArray(array.shape, array.dtype), array).scalar == scalar


def test_bytes():
    key = jax.eval_shape(jax.random.key, 0)
    assert aval_bytes(jax.typeof(jnp.zeros((2, 3), jnp.bfloat16))) == 12
    assert aval_bytes(key) > 0 and aval_bytes(object()) == 0


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
