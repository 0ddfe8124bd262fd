"""What programs are estimated to cost: operations, residuals, memory."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.cost.ops import UNKNOWN, WORD, Cost, cost
from jaxpr_opt.insight.liveness import last_uses, peak_bytes
from jaxpr_opt.insight.summary import stacked_bytes
from tests.graphs import graph_of
from tests.programs import XS, X, nested_scan


def flops(fun, *args):
    return cost(graph_of(fun, *args).body).flops


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (lambda x, w: x @ w, ("f32[3,4]", "f32[4,5]"), 2 * 3 * 4 * 5),
        (lambda x: jnp.einsum("bij,bkj->bik", x, x), ("f32[2,3,4]",), 2 * 2 * 3 * 4 * 3),
        (lambda x: jnp.sin(x) + 1, ("f32[5]",), 10),
        (lambda x: x.T.reshape(-1)[:2], ("f32[3,4]",), 0),
        (jnp.sum, ("f32[3,4]",), 12),
        (jax.nn.relu, ("f32[4]",), 4),
        (lambda x: lax.conv(x, x[:, :, :2, :2], (1, 1), "VALID"), ("f32[1,1,4,4]",), 2 * 9 * 4),
        (lambda p, x: lax.cond(p, lambda: x * x * x, lambda: x), ("bool[]", "f32[3]"), 6),
        (jax.checkpoint(jnp.sin), ("f32[3]",), 3),
        (jax.jit(jnp.sin, donate_argnums=0), ("f32[3]",), 3),
        (lambda x: jnp.stack([x, x]), ("f32[3]",), 0),
        (lambda n: jax.random.bits(jax.random.key(n), (5,), "uint16"), ("u32[]",), (2 + 3) * WORD),
        (lambda n: jax.random.split(jax.random.key(n)), ("u32[]",), (2 + 4) * WORD),
        (lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x), ("f32[]",), None),
        (lambda x: jax.pure_callback(jnp.sin, x, x), ("f32[]",), None),
    ],
)
def test_operations_are_counted(fun, args, expected):
    assert flops(fun, *args) == expected


@pytest.mark.parametrize("length", [0, 1, 8, 1000])
def test_a_scan_costs_its_length_times_its_body(length):
    def fun(x):
        return lax.scan(lambda c, _: (c @ c, None), x, None, length=length)[0]

    graph = graph_of(fun, "f32[64,64]")
    scan = next(op for op in graph.walk() if op.name == "scan")
    assert cost(scan) == length * cost(scan.body)
    assert cost(scan).flops == length * 2 * 64**3


costs = st.builds(
    Cost, flops=st.none() | st.integers(0, 9), bytes=st.none() | st.integers(0, 9)
)  # fmt: skip


@given(costs, costs, costs, st.integers(0, 5), st.integers(0, 5))
def test_costs_add_and_multiply(a, b, c, n, m):
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + Cost() == a
    assert n * (a + b) == n * a + n * b and (n * m) * a == n * (m * a)
    assert n * a + m * a == (n + m) * a
    assert a | b == b | a and a | a == a
    assert 2 * a + UNKNOWN == UNKNOWN and Cost() == 0 * UNKNOWN


@pytest.mark.parametrize(
    ("layouts", "in_loop", "turned"),
    [(("NCHW", "OIHW", "NCHW"), True, True), (("NCHW", "OIHW", "NCHW"), False, False),
     (("NHWC", "HWIO", "NHWC"), True, False)],
)  # fmt: skip
def test_convolutions_in_loops_are_fast_with_features_last(layouts, in_loop, turned):
    """And with eight features or more."""

    def fun(x, w):
        step = lambda x, _: (lax.conv_general_dilated(x, w, (1, 1), "SAME", None, None, layouts), 0)
        return lax.scan(step, x, None, 3)[0] if in_loop else step(x, None)[0]

    nchw = layouts[0] == "NCHW"
    graph = graph_of(
        fun, *(("f32[2,8,8,8]", "f32[8,8,3,3]") if nchw else ("f32[2,8,8,8]", "f32[3,3,8,8]"))
    )
    op = next(op for op in graph.walk() if op.name == "conv_general_dilated")
    assert bool(cost(op).turned) == turned and cost(op).products == cost(op).flops
    model = CostModel.of_backend("cpu")
    product = cost(op).flops * model.device.flop
    assert (model.repeated([op]) > 2 * product) == turned


@pytest.mark.parametrize(
    ("read", "made", "few"), [(4, 4, True), (1, 8, True), (8, 4, False), (4, 9, False)]
)
def test_convolutions_of_few_features_in_loops_are_slow(read, made, few):
    """What is multiplied at once is not full."""

    def fun(x, w):
        layouts = ("NHWC", "HWIO", "NHWC")

        def step(c, _):
            y = lax.conv_general_dilated(x * c, w, (1, 1), "SAME", None, None, layouts)
            return c + jnp.sum(y), 0

        return lax.scan(step, 1.0, None, 3)[0]

    graph = graph_of(fun, f"f32[2,8,8,{read}]", f"f32[3,3,{read},{made}]")
    op = next(op for op in graph.walk() if op.name == "conv_general_dilated")
    assert bool(cost(op).turned) == few


def test_costs_take_names_only():
    with pytest.raises(TypeError):
        Cost(1, 2)
    with pytest.raises(AttributeError):
        Cost().flops = 1


def test_residuals_are_stacks_that_another_loop_reads():
    loss = lambda x, xs: lax.scan(lambda c, r: (jnp.tanh(c * r), None), x, xs)[0].sum()
    graph = graph_of(jax.grad(loss), "f32[3]", "f32[8,3]")
    scan = next(op for op in graph.walk() if op.name == "scan")
    assert stacked_bytes(graph) == sum(y.result.nbytes for y in scan.stacks) > 0
    assert stacked_bytes(graph_of(loss, "f32[3]", "f32[8,3]")) == 0


def test_residuals_of_nested_loops_count_once():
    graph = graph_of(nested_scan, X, XS)
    outer = next(op for op in graph.walk() if op.name == "scan")
    assert stacked_bytes(graph) == outer.stacks[0].result.nbytes == 8 * 2 * 3 * 4


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda x: x, 400),
        (jnp.sin, 800),
        (lambda x: jnp.sin(jnp.sin(jnp.sin(x))), 1200),
        (jnp.sum, 404),
        (lambda x: x + jnp.zeros(100), 800),
        (lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=9)[0], 1200),
        (lambda x: lax.scan(lambda c, _: (c * 2, c), x, None, length=9), 4800),
        (lambda x: (x * 2).at[0].set(1.0), 800),
    ],
)
def test_peak_memory(fun, expected):
    """Of 100 floats: the argument stays, an operand lives until its last reader has its result."""
    assert peak_bytes(graph_of(fun, "f32[100]")) == pytest.approx(expected, abs=16)


def test_last_uses_look_into_regions():
    graph = graph_of(lambda x: lax.cond(True, lambda: jnp.sin(x), lambda: x), "f32[3]")
    cond = next(op for op in graph.walk() if op.name == "cond")
    assert last_uses(graph.body)[graph.inputs[0]] is cond


def test_every_device_of_a_mesh_works():
    mesh, spec = jax.make_mesh((1,), ("i",)), jax.sharding.PartitionSpec()
    assert flops(jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec), "f32[3]") == 3
