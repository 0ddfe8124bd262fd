"""Scalar integers and truth values are computed as XLA computes them; nothing else is."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.graph import Constant
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.fold_constants import FoldConstants
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, run_alone, traced

FOLD = FoldConstants()
I32 = np.int32


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda: lax.add(I32(2**31 - 1), I32(1)), id="wraps"),
        pytest.param(lambda: lax.mul(I32(2**30), I32(4)), id="wraps to zero"),
        pytest.param(lambda: lax.neg(I32(-(2**31))), id="has no opposite"),
        pytest.param(lambda: lax.sub(np.uint8(0), np.uint8(1)), id="unsigned"),
        pytest.param(lambda: lax.lt(I32(2), I32(3)), id="compare"),
        pytest.param(lambda: lax.bitwise_and(np.bool_(True), np.bool_(False)), id="and"),
        pytest.param(lambda: lax.bitwise_not(I32(5)), id="not of an integer"),
        pytest.param(lambda: lax.clamp(I32(0), I32(7), I32(3)), id="clamp"),
        pytest.param(lambda: lax.convert_element_type(I32(300), np.int8), id="truncate"),
        pytest.param(lambda: lax.convert_element_type(np.bool_(True), I32), id="number of a truth"),
        pytest.param(lambda: lax.max(lax.add(I32(1), I32(2)), I32(2)), id="chain"),
        pytest.param(lambda: jnp.asarray(1.5, jnp.float32), id="weak type made strong"),
    ],
)
def test_folded(program):
    """(1) The result is a constant, the one JAX computes."""
    jaxpr = traced(program)
    graph = import_jaxpr(jaxpr)
    run_alone((FOLD,), graph)
    assert isinstance(graph.outputs[0], Constant)
    assert_same_bits(evaluate_exactly(jaxpr), evaluate_exactly(graph))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda: lax.add(np.float32(0.1), np.float32(0.2)), id="floats"),
        pytest.param(lambda: lax.add(np.ones(2, I32), np.ones(2, I32)), id="arrays"),
        pytest.param(lambda: lax.div(I32(1), I32(0)), id="division"),
        pytest.param(lambda: lax.add(1, 2), id="weak type"),
    ],
)
def test_not_folded(program):
    """(1, 2) Conditions: strong integers, scalars, an operation without special cases."""
    graph = import_jaxpr(traced(program))
    run_alone((FOLD,), graph)
    assert not isinstance(graph.outputs[0], Constant)
