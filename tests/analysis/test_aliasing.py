"""Which arguments can become which results: kinds, choices, and reasons."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpr_opt.analysis.liveness.aliasing import DeviceBuffer, Offer, aliasing
from jaxpr_opt.ir.importer import import_jaxpr

SQUARE = jax.ShapeDtypeStruct((8, 8), "float32")
ROW = jax.ShapeDtypeStruct((8,), "float32")


def found(fun, *args, candidates=None):
    """`{input: (output, kind)}` and `{input: reason}`."""
    graph = import_jaxpr(jax.jit(fun).trace(*args).jaxpr, "final")
    inputs, outputs = (
        tuple(DeviceBuffer(v.shape, v.dtype) for v in values)
        for values in (graph.inputs, graph.outputs)
    )
    given = range(len(inputs)) if candidates is None else candidates
    result = aliasing(graph, Offer(inputs, outputs, frozenset(given)))
    aliases = {a.input: (a.output, str(a.kind)) for a in result.aliases}
    return aliases, {r.input: r.reason for r in result.refused}


KINDS = {
    "updated by arithmetic": (lambda x: x * 2 + 1, "updated"),
    "updated in a slice": (lambda x: x.at[0].set(1.0), "updated"),
    "updated by a loop": (lambda x: lax.fori_loop(0, 3, lambda i, x: x @ x, x), "updated"),
    "updated and reshaped": (lambda x: (x.reshape(64) * 2).reshape(8, 8), "updated"),
    "dead before": (lambda x: jnp.tanh(x @ x), "dead"),
    "never read": (jnp.zeros_like, "dead"),
    "returned": (lambda x: x, "moved"),
    "read later, in another order of things": (lambda x: (x * 2, jnp.sum(x * x)), "late"),
    "read later by the same loop over elements": (
        lambda x: (y := x * 2, jnp.sum((x - y) ** 2)),
        "late",
    ),
    "may be kept by a branch": (
        lambda x: lax.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x, x),
        "updated",
    ),
}


@pytest.mark.parametrize(("fun", "kind"), KINDS.values(), ids=KINDS)
def test_kinds(fun, kind):
    assert found(fun, SQUARE) == ({0: (0, kind)}, {})


REASONS = {
    "another type": (lambda x: x.sum(), "no result is f32[8,8]"),
    "read while it is written": (lambda x: x @ x, "dot_general reads it while it writes"),
    "carried in another place": (
        lambda x: lax.scan(lambda c, _: (c @ x, None), jnp.eye(8), None, length=2)[0],
        "scan reads it while it writes the result",
    ),
    "read with the result": (
        lambda x: (y := jnp.tanh(x @ x), (y @ x).sum()),
        "dot_general reads it when the result is there, which it needs",
    ),
    "read when the result is there": (
        lambda x: (jnp.ones((8, 8)) @ jnp.ones((8, 8)), (x @ x).sum()),
        "dot_general reads it when the result is there",
    ),
    "returned, and wanted for another": (
        lambda x: (x, x),
        None,
    ),
}


@pytest.mark.parametrize(("fun", "reason"), REASONS.values(), ids=REASONS)
def test_reasons(fun, reason):
    aliases, reasons = found(fun, SQUARE)
    if reason is None:
        assert aliases == {0: (0, "moved")}
    else:
        assert not aliases
        assert reason in reasons[0]


def test_the_right_result_is_chosen():
    """As they come, each would be copied to be read later."""
    assert found(lambda x, y: (jnp.sin(y), jnp.sin(x)), SQUARE, SQUARE)[0] == {
        0: (1, "updated"),
        1: (0, "updated"),
    }


def test_as_many_as_can_be_come_first():
    """The first could take either result, the second only the first."""
    aliases, _ = found(lambda x, y: (jnp.sin(x) + y, jnp.sum(y) + jnp.cos(x)), SQUARE, SQUARE)
    assert {i: j for i, (j, _) in aliases.items()} == {0: 1, 1: 0}


def test_state_before_the_rest():
    """Of two that can become a result, the one that comes first among the arguments does."""
    aliases, reasons = found(lambda x, y: x + y, SQUARE, SQUARE)
    assert aliases == {0: (0, "updated")}
    assert reasons == {1: "the result it could become is taken by other arguments"}
    assert found(lambda x, y: x + y, SQUARE, SQUARE, candidates=[1])[0] == {1: (0, "updated")}


def test_many_of_a_type():
    """An optimiser's state, given back in another order."""

    def adam(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g * g
        return v, m, p - m / (jnp.sqrt(v) + 1e-3)

    args = [[SQUARE] * 3] * 4
    aliases, reasons = found(
        lambda *args: jax.tree.transpose(
            jax.tree.structure([0] * 3),
            jax.tree.structure((0, 0, 0)),
            [adam(*each) for each in zip(*args, strict=True)],
        ),
        *args,
    )
    assert {i: j for i, (j, _) in aliases.items()} == dict(
        zip(range(9), [6, 7, 8, 3, 4, 5, 0, 1, 2], strict=True)
    )
    assert set(reasons) == {9, 10, 11}


def test_choices_that_force_others_need_no_search(monkeypatch):
    """The first can only become one result, which leaves the second one, and the third."""

    def nothing(*args, **kwargs):
        raise AssertionError

    def program(p, m, v):
        m = m * 2
        v = v + m
        return v, m, p * v

    monkeypatch.setattr(nx.bipartite, "minimum_weight_full_matching", nothing)
    assert found(program, SQUARE, SQUARE, SQUARE)[0] == {
        0: (2, "updated"), 1: (1, "updated"), 2: (0, "updated")
    }  # fmt: skip


def test_shardings_memories_and_layouts():
    graph = import_jaxpr(jax.jit(lambda x: x + 1).trace(ROW).jaxpr, "final")
    mesh = Mesh(np.array(jax.devices()[:1]), "i")
    split, whole = (NamedSharding(mesh, PartitionSpec(s)) for s in ("i", None))
    plain = DeviceBuffer((8,), jnp.dtype("float32"))

    def reason(source, target):
        result = aliasing(graph, Offer((source,), (target,), frozenset({0})))
        return result.refused[0].reason if result.refused else ""

    def buffer(**known):
        return DeviceBuffer(plain.shape, plain.dtype, **known)

    assert not reason(plain, buffer(sharding=split, memory="device"))
    assert not reason(buffer(sharding=split), buffer(sharding=split))
    if not split.is_equivalent_to(whole, 1):
        assert "sharded" in reason(buffer(sharding=split), buffer(sharding=whole))
    assert "host memory" in reason(buffer(memory="host"), buffer(memory="device"))
    assert "layout" in reason(buffer(layout="rows"), buffer(layout="columns"))
    assert reason(None, plain) == "has no buffer"
    assert reason(DeviceBuffer((0,), plain.dtype), plain) == "has no buffer"
