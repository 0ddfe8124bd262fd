"""What a gradient keeps, found in its program, is what JAX's `vjp` returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from examples import bounded_while
from jaxpr_opt.insight.saved import saved
from jaxpr_opt.reports import observe

W, X, XS = np.eye(3, dtype=np.float32), np.ones(3, np.float32), np.ones((5, 3), np.float32)
CAPTURED = np.arange(3, dtype=np.float32)


def kept_by(fun, *args):
    return saved(observe.original(fun, args, {}))


def shapes(facts):
    return sorted(f.value.shape for f in facts)


def straight_line(w, x):
    return jnp.sin(w @ jnp.sin(x)).sum()


def captured(w, x):
    return (w @ x * CAPTURED).sum()


def loop(w, x):
    return lax.scan(lambda c, _: (jnp.sin(w @ c), None), x, None, length=4)[0].sum()


def nested_loop(w, x):
    return lax.scan(lambda c, _: (c * loop(w, c), None), x, None, length=2)[0].sum()


def branches_in_a_loop(w, x):
    body = lambda c, i: (lax.cond(i < 2, lambda c: jnp.sin(w @ c), lambda c: c, c), None)
    return lax.scan(body, x, jnp.arange(4))[0].sum()


def checkpointed_step(w, x):
    step = jax.checkpoint(lambda c, _: (jnp.sin(jnp.sin(w @ c)), None))
    return lax.scan(step, x, None, length=4)[0].sum()


def named_in_a_checkpoint(w, x):
    policy = jax.checkpoint_policies.save_only_these_names("hidden")

    def block(w, x):
        return jnp.sin(checkpoint_name(w @ jnp.exp(x), "hidden"))

    return jax.checkpoint(block, policy=policy)(w, x).sum()


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), (jnp.exp(x),)), lambda res, ct: (res[0] * ct,))


def custom(w, x):
    return clipped(w @ x).sum()


def custom_in_a_loop(w, x):
    return lax.scan(lambda c, _: (clipped(w @ c), None), x, None, length=4)[0].sum()


def jit_kept_as_a_call(w, x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    kept = jax.jit(lambda w, x: jnp.sin(w @ x), in_shardings=whole, out_shardings=whole)
    return kept(w, kept(w, x)).sum()


PROGRAMS = [
    straight_line, captured, loop, nested_loop, branches_in_a_loop, checkpointed_step,
    named_in_a_checkpoint, custom, custom_in_a_loop, jit_kept_as_a_call,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_what_vjp_returns(program):
    """Of both arguments: what `jax.vjp` returns is what its pullback reads."""
    gradient = kept_by(jax.value_and_grad(program, argnums=(0, 1)), W, X)
    forward = observe.original(lambda w, x: jax.vjp(program, w, x)[1], (W, X), {})
    returned = {id(getattr(v, "value", v)): v for v in forward.outputs if v.shape}
    assert sum(f.nbytes for f in gradient if f.value.shape) == sum(
        v.nbytes for v in returned.values()
    )
    assert shapes(f for f in gradient if f.value.shape) == sorted(
        v.shape for v in returned.values()
    )


def test_a_stack_is_traced_to_the_step_that_made_it():
    """Two loops, one in the other: bytes times both trip counts, and the op of the inner step."""
    facts = kept_by(jax.grad(nested_loop), W, X)
    (cosine,) = (f for f in facts if f.made.label == "cos")
    assert (cosine.lengths, cosine.nbytes, cosine.kind) == ((2, 4), 2 * 4 * 12, "intermediate")
    assert [op.name for op in cosine.needed_by] == ["mul"]
    assert cosine.made.shape == (3,)


def test_what_a_loop_writes_into_an_empty_buffer_is_traced_like_a_stack():
    """A loop that stops early has no stacks: it carries what would have been one."""

    args = bounded_while.arguments(width=128)
    graph = observe.optimized(bounded_while.gradient, args, {})[0]
    made = [fact.made for fact in saved(graph) if fact.value.shape == (8, 1, 128)]
    assert "while" in [op.name for op in graph.walk()]
    assert {value.shape for value in made} == {(1, 128)}
    assert "dynamic_update_slice" not in {value.label for value in made}


def test_arguments_and_captured_arrays_are_told_from_what_is_computed():
    facts = kept_by(jax.grad(captured), W, X)
    assert {f.kind: f.value.shape for f in facts} == {"argument": (3,), "constant": (3,)}


def test_what_a_checkpoint_makes_again_is_not_kept():
    """Its input is; and a name that its policy saves."""
    facts = kept_by(jax.grad(checkpointed_step), W, X)
    assert shapes(facts) == [(3, 3), (4, 3)]
    assert {op.name for f in facts for op in f.needed_by} == {"dot_general"}
    named = kept_by(jax.grad(named_in_a_checkpoint), W, X)
    assert {f.made.label for f in named} == {"name", "x"}


def test_the_gradient_inside_of_a_training_loop_keeps_as_much_as_outside():
    """It is kept for one step of the training loop: its trip count does not multiply."""

    def train(w, xs):
        return lax.scan(lambda w, x: (w - jax.grad(loop)(w, x), None), w, xs)[0]

    inside, outside = kept_by(train, W, XS), kept_by(jax.grad(loop), W, X)
    assert shapes(inside) == shapes(outside)
    assert [f.lengths for f in inside] == [f.lengths for f in outside]
    assert [f.kind for f in inside] == [f.kind for f in outside]


def test_a_gradient_of_a_gradient_keeps_what_the_first_has_computed():
    def inner(x):
        return jax.grad(lambda x: jnp.sin(x * x).sum())(x).sum()

    once, twice = kept_by(inner, X), kept_by(jax.grad(inner), X)
    assert sum(f.nbytes for f in twice) > sum(f.nbytes for f in once) > 0


def test_a_program_without_a_gradient_keeps_nothing():
    assert kept_by(loop, W, X) == ()


def test_a_shard_map_keeps_what_its_parts_do():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("i")
    sharded = jax.shard_map(
        lambda w, x: jnp.sin(x @ w), mesh=mesh, in_specs=(whole, rows), out_specs=rows
    )
    facts = kept_by(jax.grad(lambda w, xs: sharded(w, xs).sum()), W, XS)
    (cosine,) = (f for f in facts if f.made.label == "cos")
    assert cosine.nbytes == XS.nbytes
    assert [op.name for op in cosine.needed_by] == ["mul"]
