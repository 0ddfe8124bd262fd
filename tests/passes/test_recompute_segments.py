"""What straight-line code makes early and reads late is dropped, and computed again by segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec

from jaxpr_opt.analysis.liveness.across_peak import turn
from jaxpr_opt.analysis.liveness.rematerialization import droppings
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.insight.liveness import peak_bytes
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Remat
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.memory import recomputing
from jaxpr_opt.memory.recomputing import again, recompute
from jaxpr_opt.passes.residuals.recompute_segments import RecomputeSegments
from jaxpr_opt.testing import check_rewrite, evaluate_exactly, run_alone, traced

RECOMPUTE = RecomputeSegments()
X = "f32[64,8]"


MODEL = cost_model().at(1.0)
"""Memory is worth more than any time."""


def layers(count, f=jnp.tanh, width=8):
    """The gradient of so many layers, written one after the other."""

    def loss(x, *ws):
        for w in ws:
            x = f(x @ w)
        return jnp.sum(x)

    weights = (f"f32[{width},{width}]",) * count
    return jax.grad(loss, range(1, 1 + count)), (f"f32[{8 * width},{width}]", *weights)


def both(program, types, byte=1.0, phase="final", divided=False):
    """A program as it was, and as the pass leaves it where a byte is worth so many seconds."""
    jaxpr = traced(program, *types)
    before, after = import_jaxpr(jaxpr, phase), import_jaxpr(jaxpr, phase)
    after.divided = divided
    with using(cost_model().at(byte)):
        run_alone((RECOMPUTE,), after)
    return before, after


def count(graph, name):
    return sum(op.name == name for op in graph.walk())


def arguments(graph):
    keys = jax.random.split(jax.random.key(0), len(graph.inputs))
    return [jax.random.normal(k, v.shape) for k, v in zip(keys, graph.inputs, strict=True)]


def assert_same_values(before, after):
    given = arguments(before)
    wanted, found = (evaluate_exactly(graph, *given) for graph in (before, after))
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("barriers")
def test_a_layer_is_computed_again():
    """Two of the layers, from what there is; slopes with them."""
    program, types = layers(4, jnp.sin)
    check_rewrite(
        RECOMPUTE,
        program,
        *types,
        diff="""
          fn (x:f32[64,8], ws_0:f32[8,8], ws_1:f32[8,8], ws_2:f32[8,8], ws_3:f32[8,8]) {
            d:f32[64,8] = dot_general x ws_0
            s:f32[64,8] = sin d
            c:f32[64,8] = cos d
            d1:f32[64,8] = dot_general s ws_1
            s1:f32[64,8] = sin d1
            c1:f32[64,8] = cos d1
            d2:f32[64,8] = dot_general s1 ws_2
            s2:f32[64,8] = sin d2
            c2:f32[64,8] = cos d2
            d3:f32[64,8] = dot_general s2 ws_3
            s3:f32[64,8] = sin d3
            c3:f32[64,8] = cos d3
            r:f32[] = reduce_sum[axes=(0, 1)] s3
            b:f32[64,8] = broadcast_in_dim 1.0
            m:f32[64,8] = mul b c3
            d4:f32[8,8] = dot_general[contract=0x0] m s2
            t:f32[8,8] = transpose d4
            d5:f32[64,8] = dot_general[contract=1x1] m ws_3
        +   o:f32[64,8], o1:f32[64,8] = optimization_barrier d1 d5
        +   s4:f32[64,8] = sin o
        +   d11:f32[64,8] = dot_general s4 ws_2
        +   c4:f32[64,8] = cos d11
        -   m1:f32[64,8] = mul d5 c2
        +   m1:f32[64,8] = mul o1 c4
        -   d6:f32[8,8] = dot_general[contract=0x0] m1 s1
        +   d6:f32[8,8] = dot_general[contract=0x0] m1 s4
            t1:f32[8,8] = transpose d6
            d7:f32[64,8] = dot_general[contract=1x1] m1 ws_2
            m2:f32[64,8] = mul d7 c1
        +   x1:f32[64,8], ws_0_1:f32[8,8], o2:f32[64,8] = optimization_barrier x ws_0 m2
        +   d12:f32[64,8] = dot_general x1 ws_0_1
        +   s5:f32[64,8] = sin d12
        -   d8:f32[8,8] = dot_general[contract=0x0] m2 s
        +   d8:f32[8,8] = dot_general[contract=0x0] o2 s5
            t2:f32[8,8] = transpose d8
        -   d9:f32[64,8] = dot_general[contract=1x1] m2 ws_1
        +   d9:f32[64,8] = dot_general[contract=1x1] o2 ws_1
        +   c5:f32[64,8] = cos d12
        -   m3:f32[64,8] = mul d9 c
        +   m3:f32[64,8] = mul d9 c5
        -   d10:f32[8,8] = dot_general[contract=0x0] m3 x
        +   d10:f32[8,8] = dot_general[contract=0x0] m3 x1
            t3:f32[8,8] = transpose d10
            return t3, t2, t1, t
          }
        """,
    )


@pytest.mark.usefixtures("barriers")
def test_what_is_narrow_is_made_before_more_is_computed_again():
    """Half of a cotangent waits for the gradient of what a layer skips: not the whole."""

    def loss(x, *ws):
        skipped = []
        for w in ws:
            x = jnp.sin(x @ w)
            skipped.append(x)
        for y in reversed(skipped[:-1]):
            x = jnp.sin(jnp.concatenate([x, y], 1) @ jnp.concatenate([ws[0], ws[1]], 0))
        return jnp.sum(x)

    program, types = jax.grad(loss, range(1, 7)), ("f32[64,8]", *("f32[8,8]",) * 6)
    before, after = both(program, types)
    fences = [op for op in after.walk() if op.name == "optimization_barrier"]
    waits = {v.op.name for op in fences for v in op.operands if v.op is not None}
    assert len(fences) > 1 and waits & {"split", "slice"}, waits
    assert_same_values(before, after)


@pytest.mark.usefixtures("barriers")
def test_a_segment_at_a_time():
    """Of 24 layers a few are kept, and what is between them is not there at once."""
    before, after = both(*layers(24))
    assert count(before, "tanh") == 24
    assert 36 < count(after, "tanh") < 72
    assert count(after, "optimization_barrier") > 3
    assert peak_bytes(after) < 0.5 * peak_bytes(before)
    assert_same_values(before, after)


def skipping(count, dtype=jnp.float32):
    """The gradient of layers with skip connections, of weights that are rounded first."""

    def loss(x, *ws):
        made, x = [w.astype(dtype) for w in ws], x.astype(dtype)
        for up, down in zip(made[::2], made[1::2], strict=True):
            x = x + jax.nn.gelu(x @ up) @ down
        return jnp.mean(x.astype(jnp.float32) ** 2)

    types = "f32[512,64]", *("f32[64,128]", "f32[128,64]") * count
    return jax.grad(loss, range(1, 1 + 2 * count)), types


def temporary(program, types):
    """Bytes of the least that there is: predicted, and compiled."""
    _, after = both(program, types)
    jitted = jax.jit(jaxpr_as_fun(export(after)))
    known = jitted.lower(*arguments(after)).compile().memory_analysis()
    return after, (temporary_bytes(after), known.temp_size_in_bytes)


def test_a_segment_is_divided_again(monkeypatch):
    """What a part starts from is computed once more, and what is in the part itself twice more."""
    program, types = skipping(10)
    after, divided = temporary(program, types)
    monkeypatch.setattr(limits, "PARTS_OF_A_SEGMENT", ())
    once, undivided = temporary(program, types)
    assert count(once, "tanh") <= 20 < count(after, "tanh") <= 30
    assert all(a < 0.85 * b for a, b in zip(divided, undivided, strict=True)), (divided, undivided)


def test_what_a_layer_that_stores_all_starts_from_is_stored(monkeypatch):
    """Else the layer before it would be computed again while its arrays are still there."""

    def loss(x, *ws):
        for up, down, gate in zip(ws[::3], ws[1::3], ws[2::3], strict=True):
            parts = jax.nn.softmax(x @ gate)
            inner = jax.nn.silu(jnp.einsum("td,edh->eth", x, up))
            x = x + jnp.einsum("eth,ehd,te->td", inner, down, parts)
        return jnp.mean(x**2)

    layer = "f32[4,64,128]", "f32[4,128,64]", "f32[64,4]"
    jaxpr = traced(jax.grad(loss, range(1, 13)), "f32[1024,64]", *layer * 4)

    def sizes():
        for each in droppings(import_jaxpr(jaxpr, "final").body.terminator):
            graph = import_jaxpr(jaxpr, "final")
            found = each.at(graph.body.terminator)
            recompute(found.turn, again(found), Rewriter(graph))
            yield temporary_bytes(graph)

    stored = [*sizes()]
    monkeypatch.setattr(recomputing, "_last_early", lambda turn: {})
    ratios = [a / b for a, b in zip(stored, sizes(), strict=True)]
    assert min(ratios) < 0.85 and max(ratios) < 1.02, ratios


@pytest.mark.parametrize("skips", [False, True])
def test_values_of_segments_that_are_divided_again(skips):
    """Each reader has what it had, also of what passes several parts; so do derivatives."""

    def loss(x, *ws):
        early = []
        for w in ws:
            y = jnp.sin(jnp.tanh(x @ w))
            early.append(y * jnp.exp(-y))
            x = x + y + (jnp.roll(early[-3], 1) if skips and len(early) % 3 == 0 else 0.0)
        return jnp.sum(x) + sum(jnp.sum(y) for y in early[::5])

    program, types = jax.grad(loss, range(1, 31)), (X, *("f32[8,8]",) * 30)
    before, after = both(program, types)
    assert any(part.inner for each in droppings(before.body.terminator) for part in each.segments)
    assert count(after, "tanh") > 2 * count(before, "tanh")
    assert_same_values(before, after)
    given = arguments(before)
    repeated = jaxpr_as_fun(export(both(program, types, phase="differentiable")[1]))
    found = jax.jvp(repeated, given, given)
    wanted = jax.jvp(jaxpr_as_fun(traced(program, *types)), given, given)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-4)


@pytest.mark.usefixtures("barriers")
def test_a_layer_is_computed_again_where_it_is_read_in_memory():
    """Comparisons that stand right behind the peak are computed inside of what reads them."""

    def program(x, *weights):
        kept = []
        for w in weights:
            x = jnp.tanh(x @ w)
            kept.append(x)
        x = jnp.sort(x) * jnp.sort(jnp.sin(x))
        total = jnp.sum(x)
        masks = [each * total > 0.0 for each in kept]
        for w, each, mask in zip(weights[::-1], kept[::-1], masks[::-1], strict=True):
            x = jnp.where(mask, x, 0.0) * each @ w
        return x

    before, after = both(program, ["f32[64,8]"] + ["f32[8,8]"] * 24)
    found = turn(before.body)
    for op in found.ops[found.at :]:
        if op.name == "gt":
            assert found.ops[found.place[op] + 1].name == "select_n"
    assert count(after, "optimization_barrier") > 3
    assert_same_values(before, after)


def test_no_price_no_change():
    before, after = both(*layers(8), byte=0.0)
    assert count(after, "optimization_barrier") == 0
    assert peak_bytes(before) == peak_bytes(after)


def test_a_higher_price_takes_no_more_memory():
    """From what is quickly made again of what is there, to whole layers."""
    program, types = layers(16, lambda x: jnp.tanh(jnp.tanh(x)), width=512)
    found = [both(program, types, byte=10.0**power)[1] for power in range(-12, -6)]
    peaks = [temporary_bytes(graph) for graph in found]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) > 2, peaks
    products = [count(graph, "dot_general") for graph in found]
    assert products == sorted(products) and len(set(products)) > 1, products


@pytest.mark.usefixtures("dividing")
def test_what_waits_where_barriers_are_dropped():
    """Arrays are chosen by bits of what comes first; derivatives go through."""
    program, types = layers(6)
    before, after = both(program, types)
    assert count(after, "population_count") == count(after, "optimization_barrier") > 0
    assert_same_values(before, after)
    given = arguments(before)
    plain = jaxpr_as_fun(traced(program, *types))
    repeated = jaxpr_as_fun(export(both(program, types, phase="differentiable")[1]))
    wanted, found = (jax.jvp(each, given, given)[1] for each in (plain, repeated))
    np.testing.assert_allclose(wanted, found, rtol=1e-5)


def test_compiled_memory():
    """XLA neither merges what is computed again nor computes it early, on any version."""
    graphs = both(*layers(16, width=64))
    programs = [jax.jit(jaxpr_as_fun(export(graph))) for graph in graphs]
    given = arguments(graphs[0])
    plain, repeated = (
        each.lower(*given).compile().memory_analysis().temp_size_in_bytes for each in programs
    )
    assert repeated < 0.55 * plain, (repeated, plain)


@pytest.mark.usefixtures("barriers")
def test_skips_cross_segments():
    """What the way up of a U-Net reads of the way down is kept between."""

    def loss(x, *ws):
        skips = []
        for w in ws[:4]:
            x = jnp.tanh(jnp.tanh(x @ w) @ w)
            skips.append(x)
        for w in ws[4:]:
            x = jnp.tanh(jnp.tanh((x + skips.pop()) @ w) @ w)
        return jnp.sum(x)

    before, after = both(jax.grad(loss, range(1, 9)), (X, *("f32[8,8]",) * 8))
    assert peak_bytes(after) < peak_bytes(before)
    assert_same_values(before, after)


def test_random_numbers_come_out_the_same():
    """(1) Keys are data: where memory is dear enough not even the mask of a dropout is kept."""

    def loss(x, *ws):
        key = jax.random.key(0)
        for i, w in enumerate(ws):
            kept = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, x.shape)
            x = jnp.where(kept, jnp.tanh(x @ w), 0.0)
        return jnp.sum(x)

    before, after = both(jax.grad(loss, range(1, 9)), (X, *("f32[8,8]",) * 8))
    assert count(after, "random_bits") > count(before, "random_bits") > 0
    assert peak_bytes(after) < 0.7 * peak_bytes(before)
    assert_same_values(before, after)


@pytest.mark.usefixtures("barriers")
def test_custom_derivatives_are_called_again():
    """(1) An op that JAX may still look into is repeated as it is."""
    before, after = both(*layers(8, jax.nn.relu), phase="differentiable")
    assert count(after, "custom_jvp_call") > count(before, "custom_jvp_call")


def test_effects_are_not_repeated():
    """(1) The host is called as often as before, and what it gives is kept."""

    def f(x):
        factor = io_callback(np.sum, jax.ShapeDtypeStruct((), x.dtype), lax.stop_gradient(x))
        return jnp.tanh(x * factor)

    before, after = both(*layers(8, f))
    assert count(after, "optimization_barrier") > 0
    assert count(after, "tanh") > count(before, "tanh")
    assert count(after, "io_callback") == count(before, "io_callback") > 0


def test_collectives_are_not_repeated():
    """(1) No device waits for another more often than before."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    here, everywhere = PartitionSpec("i"), PartitionSpec()

    def loss(x, ws):
        for w in ws:
            x = lax.psum(jnp.tanh(x @ w), "i")
        return x.sum()

    program = jax.shard_map(
        jax.grad(loss, 1),
        mesh=mesh,
        in_specs=(here, everywhere),
        out_specs=everywhere,
        check_vma=False,
    )
    before, after = both(lambda x, *ws: program(x, ws), layers(8)[1])
    assert count(after, "optimization_barrier") > 0
    assert count(after, "tanh") > count(before, "tanh")
    sums = [count(graph, "psum") + count(graph, "psum_invariant") for graph in (before, after)]
    assert sums[0] == sums[1] > 0


def test_only_pointwise_ops_are_repeated_where_arrays_may_be_divided():
    """(1) XLA would let devices communicate once more in a product."""
    before, after = both(*layers(8, jnp.cos), divided=True)
    assert count(after, "cos") > count(before, "cos")
    assert count(after, "dot_general") == count(before, "dot_general")


@pytest.mark.usefixtures("barriers")
def test_comparisons_of_what_may_be_rounded_otherwise_are_not_repeated():
    """(1) The largest of some numbers may not be among them where they are computed again."""
    largest = lambda y: jnp.where(y == jnp.max(y), y * y, jnp.sin(y))
    before, after = both(*layers(8, largest))
    assert count(after, "sin") + count(after, "cos") > count(before, "sin") + count(before, "cos")
    assert count(after, "eq") == count(before, "eq")


@pytest.mark.usefixtures("barriers")
def test_a_program_with_such_barriers_is_left():
    """(4) Whoever has put one there has decided what is computed again."""
    _, after = both(*layers(8))
    repeated = import_jaxpr(export(after), "final")
    (match,) = RECOMPUTE.find(repeated.body.terminator)
    assert RECOMPUTE.refuse(match) == "an optimization_barrier already fixes the order"


def test_a_checkpoint_of_the_user_stays():
    """What it computes again it does, from what is kept for it or made again."""
    before, after = both(*layers(8, jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x)))))
    remats = [sum(isinstance(op, Remat) for op in graph.walk()) for graph in (before, after)]
    assert remats[0] > 0
    assert_same_values(before, after)


def test_the_body_of_a_loop():
    """A gradient that each step takes."""
    gradient, types = layers(8)

    def program(x, *ws):
        def step(ws, _):
            return [w - g for w, g in zip(ws, gradient(x, *ws), strict=True)], None

        return lax.scan(step, list(ws), None, length=3)[0]

    before, after = both(program, types)
    assert peak_bytes(after) < peak_bytes(before)
    assert_same_values(before, after)
