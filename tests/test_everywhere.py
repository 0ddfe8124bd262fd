"""`everywhere`: what JAX compiles is optimised, whoever compiles it; then all is as it was."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpr_opt import every_program, everywhere, optimize, settings
from jaxpr_opt.bridge import compat_jit, guard

X = jnp.linspace(0.0, 1.0, 16)


@jax.jit
def loss(xs):
    """A loop that writes an element a step."""

    def step(carry, x):
        i, ys = carry
        return (i + 1, ys.at[i].set(jnp.sin(x))), None

    (_, ys), _ = lax.scan(step, (0, jnp.zeros_like(xs)), xs)
    return jnp.sum(ys**2)


slope = jax.jit(jax.grad(loss))


def text(jitted):
    return jitted.lower(X).as_text()


PLAIN = text(slope)
"""It is jitted, and compiled, before any test."""


def has_been_optimized(jitted=slope):
    return text(jitted) != PLAIN


def programs_made(run):
    """The names of the programs that are optimised while something runs."""
    names, optimized = [], every_program.optimized

    def noted(jaxpr, pipeline, name):
        made = optimized(jaxpr, pipeline, name)
        if made is not None:
            names.append(name)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(every_program, "optimized", noted)
        run()
    return names


# ---------------------------------------------------------------- where and when


def test_what_was_jitted_before_is_optimised_in_the_block_only():
    assert not has_been_optimized()
    with everywhere():
        assert has_been_optimized()
        inside = slope(X)
    assert not has_been_optimized()
    assert jnp.allclose(inside, slope(X))


def test_what_was_jitted_in_the_block_is_plain_after_it():
    with everywhere():
        again = jax.jit(jax.grad(loss))
        assert has_been_optimized(again)
    assert not has_been_optimized(again)
    assert jnp.allclose(again(X), slope(X))


def test_the_compiled_program_is_the_one_of_optimize():
    gradient = jax.grad(loss.__wrapped__)
    with everywhere():
        inside = text(jax.jit(gradient))
    assert text(optimize(gradient)) == inside != text(jax.jit(gradient))


def test_jax_is_as_it_was_after_an_error():
    with pytest.raises(KeyError), everywhere():
        raise KeyError
    assert not has_been_optimized()
    assert compat_jit._pjit._run_python_pjit is compat_jit.ways.run
    assert compat_jit._pjit._resolve_and_lower is compat_jit.ways.lower
    assert not any("bind_with_trace" in vars(primitive) for primitive in compat_jit._LOOPS)


def test_a_function_that_raises_raises_the_same():
    @jax.jit
    def wrong(x):
        raise ValueError("of the user's")

    with everywhere(), pytest.raises(ValueError, match="of the user's"):
        wrong(X)


def test_a_block_in_a_block_counts_for_itself():
    with everywhere():
        whole = text(slope)
        with everywhere(passes=[]):
            assert text(slope) != whole
        assert text(slope) == whole


def test_it_is_for_one_thread():
    found = []
    with everywhere():
        thread = threading.Thread(target=lambda: found.append(has_been_optimized()))
        thread.start()
        thread.join()
        assert has_been_optimized()
    assert found == [False]


def test_a_block_that_ends_leaves_that_of_another_thread():
    entered, left = threading.Event(), threading.Event()
    found = []

    def other():
        with everywhere():
            entered.set()
            left.wait(60)
            found.append(has_been_optimized())

    thread = threading.Thread(target=other)
    with everywhere():
        thread.start()
        entered.wait(60)
    left.set()
    thread.join()
    assert found == [True]
    assert not every_program._uses


def test_it_is_a_decorator_too():
    assert everywhere()(has_been_optimized)()


def test_disabled_it_does_nothing():
    with everywhere(), settings.override(disable=True):
        assert not has_been_optimized()


def test_a_name_of_no_pass_is_an_error():
    with pytest.raises(ValueError, match="no-such"), everywhere(skip=["no-such"]):
        pass


# ---------------------------------------------------------------- jitted functions are JAX's own


def test_they_have_what_jitted_functions_have():
    def double(x):
        return 2 * x

    with everywhere():
        jitted = jax.jit(double)
        assert type(jitted) is type(loss)
        assert jitted.__wrapped__ is double
        assert jitted.eval_shape(X) == jax.ShapeDtypeStruct(X.shape, X.dtype)
        assert isinstance(jitted.lower(X), jax.stages.Lowered)
        assert jnp.array_equal(jitted.lower(X).compile()(X), 2 * X)
        jitted.clear_cache()
        assert jnp.array_equal(jitted(X), 2 * X)


def test_cached_calls_are_those_of_jax():
    """None of ours is in the way of the second call."""
    with everywhere(), pytest.MonkeyPatch.context() as patch:
        first = loss(X)
        patch.setattr(compat_jit._pjit, "_run_python_pjit", None)
        again = loss(X)
    assert again == first


def test_static_arguments():
    @partial(jax.jit, static_argnums=0, static_argnames="scale")
    def power(n, x, scale=1):
        return scale * lax.fori_loop(0, n, lambda _, y: y * x, jnp.ones_like(x))

    with everywhere():
        assert jnp.allclose(power(3, X), X**3)
        assert jnp.allclose(power(2, X, scale=5), 5 * X**2)


def test_donated_arguments():
    def run(donated):
        x = jnp.ones(8)
        y = jax.jit(lambda x: lax.fori_loop(0, 2, lambda _, y: y * 2, x), donate_argnums=donated)(x)
        return x.is_deleted(), y

    with everywhere():
        assert run(0)[0]
        assert not run(())[0]
    assert run(0)[0]


def test_a_donated_argument_without_use_is_a_warning_as_in_jax():
    with everywhere(), pytest.warns(UserWarning, match="donated buffers were not usable"):
        jax.jit(lambda x: lax.fori_loop(0, 2, lambda _, s: s * 2, x[0]), donate_argnums=0)(X + 1)


def test_shardings():
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), "d"), PartitionSpec("d"))
    with everywhere():
        jitted = jax.jit(loss.__wrapped__, in_shardings=sharding, keep_unused=True)
        assert jnp.allclose(jitted(X), loss(X))
        made = jax.jit(lambda x: x + 1, out_shardings=sharding)(X)
    assert made.sharding == sharding


def test_random_keys_and_pytrees():
    def draw(key, tree):
        return {"sum": lax.fori_loop(0, 3, lambda i, s: s + tree["w"][i], 0.0), "key": key}

    key = jax.random.key(1)
    with everywhere():
        made = jax.jit(draw)(key, {"w": X})
    assert jnp.allclose(made["sum"], X[:3].sum())
    assert made["key"] == key


# ---------------------------------------------------------------- derivatives and batches


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.jit(jax.grad(f)),
        jax.grad,
        lambda f: jax.grad(f.__wrapped__),
        jax.value_and_grad,
        jax.jacfwd,
        lambda f: jax.jacrev(f.__wrapped__),
        jax.hessian,
        lambda f: lambda x: jax.jvp(f.__wrapped__, (x,), (x,)),
        lambda f: lambda x: jax.vmap(f)(jnp.stack([x, -x])),
        lambda f: lambda x: jax.vmap(jax.grad(f.__wrapped__))(jnp.stack([x, -x])),
        lambda f: lambda x: jax.linearize(f.__wrapped__, x)[1](x),
        lambda f: jax.checkpoint(jax.grad(f)),
    ],
)
def test_transformations_of_functions(transform):
    expected = transform(loss)(X)
    with everywhere():
        found = transform(loss)(X)
    for a, b in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def loops_made(run):
    before = every_program._loop_program.cache_info().misses
    run()
    return every_program._loop_program.cache_info().misses - before


def test_a_loop_that_is_differentiated_op_by_op_is_a_program():
    """`jax.grad` of a function that nobody has jitted: what it stores is for one backward loop."""
    gradient = jax.grad(loss.__wrapped__)
    with everywhere():
        assert loops_made(lambda: gradient(X)) == 1
        assert loops_made(lambda: jax.jit(gradient)(X)) == 0  # it is part of a program
    assert loops_made(lambda: gradient(X)) == 0


def test_a_function_that_looks_at_its_values_is_differentiated_as_ever():
    """It is run op by op, each time: what it depends on may have changed."""
    scale = [1.0]

    def f(x):
        return x * scale[0] if x > 0 else -x

    with everywhere():
        assert jax.grad(f)(2.0) == 1.0
        scale[0] = 3.0
        assert jax.grad(f)(2.0) == 3.0
        assert jax.grad(f)(-2.0) == -1.0


def test_a_branch_that_is_differentiated_op_by_op():
    def f(x):
        return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum()

    expected = jax.grad(f)(X)
    with everywhere():
        assert jnp.allclose(jax.grad(f)(X), expected)


# ---------------------------------------------------------------- what is left alone


def test_what_is_part_of_a_program_is_optimised_with_it():
    def whole(x):
        return loss(x) + loss(-x)

    with everywhere():
        assert programs_made(lambda: jax.jit(whole)(X)) == ["whole"]


def test_a_jaxpr_to_look_at_is_plain():
    """Interpreters of the user's find the primitives they know."""
    with everywhere():
        inside = jax.make_jaxpr(loss)(X), loss.trace(X).jaxpr
    assert str(inside) == str((jax.make_jaxpr(loss)(X), loss.trace(X).jaxpr))


def test_interpreters_of_others_see_the_program_as_it_was_written():
    """As in `quax`, whose traces know rules for the primitives of JAX."""
    core = compat_jit._core

    class Looking(core.Trace):
        parent_trace = core.eval_trace
        seen = ()

        def process_primitive(self, primitive, args, params):
            self.seen = (primitive.name, str(params["jaxpr"]))
            with core.set_current_trace(self.parent_trace):
                return primitive.bind(*args, **params)

    trace = Looking()
    with everywhere(), core.set_current_trace(trace):
        loss(X)
    assert trace.seen[0] == "jit"
    assert "optimized" not in trace.seen[1]


def test_functions_of_jax_without_a_loop_are_left_alone():
    with everywhere():
        assert not programs_made(lambda: jnp.where(X > 0, X, 0.0) + X)
        assert programs_made(lambda: jnp.interp(X, X, X))


def test_what_optimize_made_is_left_alone():
    once = optimize(loss, passes=[])
    with everywhere():
        assert not programs_made(lambda: once(X))


def test_programs_with_mutable_arrays_are_left_alone():
    if not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no mutable arrays")

    @jax.jit
    def counted(x):
        ref = jax.new_ref(x)
        ref[...] += 1
        return ref[...]

    with everywhere():
        assert jnp.array_equal(counted(X), X + 1)


def test_programs_live_as_long_as_their_functions():
    def made():
        large = jnp.arange(1024.0)
        jitted = jax.jit(lambda x: lax.fori_loop(0, 2, lambda i, y: y + large[i], x))
        jitted(X)
        return weakref.ref(jitted), weakref.ref(large)

    with everywhere():
        references = made()
    gc.collect()
    assert [each() for each in references] == [None, None]


def test_on_a_jax_without_the_way_in_nothing_is_optimised(monkeypatch):
    monkeypatch.setattr(compat_jit.ways, "run", None)
    monkeypatch.setattr(guard, "_state", guard._State())
    with settings.override(strict=False):
        with pytest.warns(match="jit does not say where it compiles"):
            assert not everywhere()(has_been_optimized)()
        assert not everywhere()(has_been_optimized)()  # it is said once


# ---------------------------------------------------------------- the environment

SCRIPT = """
import threading
import jax, jax.numpy as jnp
from jax import jit, lax
def loss(xs):
    return (lax.fori_loop(0, 8, lambda i, ys: ys.at[i].set(jnp.sin(xs[i])), xs) ** 2).sum()
slope = jit(jax.grad(loss))
plain = slope.lower(jnp.ones(8)).as_text()
import jaxpr_opt
def show():
    print(slope.lower(jnp.ones(8)).as_text() == plain, slope(jnp.zeros(8))[0])
show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""

TESTS = """
import sys
def test_it():
    assert sys.modules["jaxpr_opt.every_program"]._uses == 1
"""


def python(*args, **variables):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    run = subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, check=False
    )
    return run.stdout + run.stderr


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_switches_the_process(value):
    """All threads, from the import on, with what was jitted before it."""
    lines = python("-c", SCRIPT, JAXPR_OPT_EVERYWHERE=value).splitlines()
    assert lines == [f"{value == '0'} 0.0"] * 2


def test_under_pytest_nobody_has_to_import_it(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(TESTS)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(path)]
    said = python(*command, JAXPR_OPT_EVERYWHERE="1")
    assert "1 passed" in said, said
    assert "1 failed" in python(*command)
