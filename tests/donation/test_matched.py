"""`donate="matched"`: everything that can become a result is donated, and only that."""

import re
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpr_opt
from jaxpr_opt import settings

matched = jaxpr_opt.optimize(donate="matched")


def make(shape=(8, 8)):
    return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) + 0


def temp_and_alias(lowered):
    memory = lowered.compile().memory_analysis()
    return memory.temp_size_in_bytes, memory.alias_size_in_bytes


def test_arrays_are_donated_one_by_one():
    """A batch that matches nothing stays, without a warning of what was not usable."""

    @matched
    def step(state, batch):
        return {"w": state["w"] - batch["x"].mean(), "seen": state["seen"] + 1}, batch["x"].sum()

    state, batch = {"w": make(), "seen": jnp.int32(0)}, {"x": make((3,))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new, _ = step(state, batch)
    assert state["w"].is_deleted() and state["seen"].is_deleted()
    assert not batch["x"].is_deleted()
    np.testing.assert_array_equal(new["w"], make() - 1)
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        state["w"] + 1


def test_pairs_are_chosen_not_taken_as_they_come():
    """`jax.jit` takes results as they come, and XLA copies what it then still needs."""

    def swap(a, b):
        return jnp.sin(b), jnp.sin(a)

    plain = jax.jit(swap, donate_argnums=(0, 1)).lower(make(), make())
    ours = matched(swap).lower(make(), make())
    assert temp_and_alias(ours)[1] == temp_and_alias(plain)[1] == 2 * make().nbytes
    assert temp_and_alias(ours)[0] <= temp_and_alias(plain)[0] - make().nbytes
    a, b = make(), make() + 1
    first, second = matched(swap)(a, b)
    np.testing.assert_allclose(first, np.sin(make() + 1), rtol=1e-6)
    np.testing.assert_allclose(second, np.sin(make()), rtol=1e-6)


def test_results_keep_their_order():
    """The one that nothing becomes comes first."""

    @matched
    def step(a, b):
        return {"x": a @ a, "y": (b * 2, a.sum())}

    a, b = make(), make() + 1
    made = step(a, b)
    assert b.is_deleted() and not a.is_deleted()
    np.testing.assert_allclose(made["x"], make() @ make())
    np.testing.assert_allclose(made["y"][0], (make() + 1) * 2)
    compiled = step.lower(make(), make()).compile()
    again = compiled(make(), make() + 1)
    assert jax.tree.structure(again) == jax.tree.structure(made)
    np.testing.assert_allclose(again["y"][0], made["y"][0])


@pytest.mark.parametrize("alias", ["the same array", "the same memory"])
def test_an_argument_passed_twice_is_not_donated(alias):
    step = matched(lambda a, b, c: (a + b, a * b, c + 1))
    a, c = make(), make()
    b = a if alias == "the same array" else jax.device_put(a, jax.devices()[0])
    for _ in range(2):
        added, squared, _ = step(a, b, c)
        np.testing.assert_array_equal(added, make() * 2)
        np.testing.assert_array_equal(squared, make() ** 2)
        assert not a.is_deleted() and not b.is_deleted()
        assert c.is_deleted()
        c = make()
    step(a, make(), c)
    assert a.is_deleted()


@pytest.mark.parametrize("mode", ["matched", "auto"])
def test_nothing_is_kept_of_the_first_call(mode):
    step = jaxpr_opt.optimize(lambda x, batch: x + batch.sum(), donate=mode)

    def run():
        batch = make((3,))
        step(make(), batch)
        return weakref.ref(batch)

    assert run()() is None


def test_returned_arguments_are_moved():
    """`jax.jit` would copy it: a state that keeps its parameters frozen has them twice."""
    step = matched(lambda frozen, x: (frozen, x * 2))
    frozen, x = make(), make((3,))
    place = frozen.unsafe_buffer_pointer()
    frozen, x = step(frozen, x)
    assert frozen.unsafe_buffer_pointer() == place


def test_an_argument_that_nothing_reads():
    step = matched(jnp.zeros_like)
    x = make()
    assert not step(x).any()
    assert x.is_deleted()


def test_only_among_the_named():
    step = jaxpr_opt.optimize(lambda a, b: (a + 1, b + 1), donate="matched", donate_argnames="b")
    a, b = make(), make()
    step(a, b)
    assert b.is_deleted() and not a.is_deleted()
    assert [each.path for each in step.donation(a, make()).arguments] == ["b"]


def test_static_and_keyword_arguments():
    step = jaxpr_opt.optimize(
        lambda n, x, *, flag, y: x * n + y if flag else x,
        donate="matched",
        static_argnums=0,
        static_argnames="flag",
    )
    for n, flag in ((2, True), (3, True), (3, False)):
        x = make()
        np.testing.assert_array_equal(
            step(n, x, flag=flag, y=jnp.float32(1)), make() * n + 1 if flag else make()
        )
        assert x.is_deleted()


def test_types_that_need_another_choice():
    """One function, three types: in the last, another argument matches."""

    def step(a, b):
        return a.astype(b.dtype).sum() + b if a.ndim else a + b.sum()

    jitted, plain = matched(step), jax.jit(step)
    square, row, scalar = make(), make((8,)), jnp.float32(2)
    for _ in range(2):
        for a, b in ((square, row), (row, square), (scalar, row), (row, scalar)):
            expected = plain(a, b)
            np.testing.assert_allclose(jitted(a + 0, b + 0), expected)


def test_under_transformations_nothing_is_donated():
    step = matched(lambda x: jnp.sin(x) * 2)
    x = make()
    jax.vmap(step)(x), jax.jit(step)(x), jax.grad(lambda x: step(x).sum())(x)
    assert not x.is_deleted()
    assert step.trace(x).jaxpr.out_avals == jax.jit(jnp.sin).trace(x).jaxpr.out_avals
    assert step.eval_shape(x).shape == x.shape


def test_shardings():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    step = jaxpr_opt.optimize(
        lambda state, x: {"b": state["b"] + x, "a": state["a"] * x},
        donate="matched",
        in_shardings=({"a": rows, "b": None}, None),
        out_shardings={"a": rows, "b": rows},
    )
    state = {"a": make(), "b": make((8,))}
    made = step(state, jnp.float32(2))
    assert made["a"].sharding == rows
    np.testing.assert_array_equal(made["b"], make((8,)) + 2)
    assert state["a"].is_deleted()


def test_it_looks_like_the_function():
    def step(x, *, scale=1.0):
        """Make a step."""
        return x * scale

    jitted = matched(step)
    assert (jitted.__name__, jitted.__doc__) == ("step", "Make a step.")
    assert jitted.__module__ == __name__
    assert repr(jitted) == "<step, donate='matched'>"
    assert isinstance(jitted, jax.stages.Wrapped)
    assert jaxpr_opt.optimize(jitted) is jitted


def test_methods():
    class Model:
        @jaxpr_opt.optimize(donate="matched", static_argnums=0)
        def step(self, x):
            return x + 1

    x = make()
    np.testing.assert_array_equal(Model().step(x), make() + 1)
    assert x.is_deleted()


def test_switched_off_it_is_jit():
    with settings.override(disable=True):
        step = jaxpr_opt.optimize(lambda x: x + 1, donate="matched", donate_argnums=0)
    x = make()
    step(x)
    assert not x.is_deleted()


def test_it_is_told_what_and_why():
    def step(state, batch):
        return state["w"] @ state["w"], state["b"] + batch

    told = matched(step).donation({"w": make(), "b": make((8,))}, jnp.float32(1))
    assert re.fullmatch(r"step: 32 B of 1 argument can be donated", str(told).splitlines()[0])
    assert "state['b'] f32[8] becomes result[1], 32 B" in str(told)
    assert told.to_dict()["bytes"] == 32
    (refused,) = [each for each in told.refused if each.path == "batch"]
    assert refused.reason == "no result is f32[]"


def test_a_wrong_mode_is_one_line():
    with pytest.raises(ValueError, match="expected 'matched', 'auto' or None"):
        jaxpr_opt.optimize(lambda x: x, donate="always")
