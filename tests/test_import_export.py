"""A program that no pass touched comes back as it was, whatever primitives it is made of."""

import importlib
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun

from jaxpr_opt import frames, optimize
from jaxpr_opt.analysis.values.constants import strong
from jaxpr_opt.bridge import compat, compat_source
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Call, Cond, Op, Remat, Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, random_inputs
from tests import programs
from tests.programs import PROGRAMS, XS, X


def round_trip(fun, *args, phase="differentiable"):
    before = jax.make_jaxpr(fun)(*args)
    graph = import_jaxpr(before, phase)
    verify(graph, types=True)
    return before, graph, export(graph)


def hlo(jaxpr, args):
    """The instructions of the compiled program, without names, metadata and order of printing."""
    text = jax.jit(jaxpr_as_fun(jaxpr)).lower(*args).compile().as_text().partition("\n")[2]
    text = re.sub(r", metadata=\{[^{}]*\}", "", text)
    text = re.sub(r"[\w.-]+: (?=[a-z0-9]+\[|\()", "", text)  # names of parameters
    lines = re.sub(r"%[\w.-]+", "%", text).splitlines()
    return sorted(line for line in lines if " = " in line or line.endswith("{"))


SIMPLER = {
    "remat": "a literal operand becomes part of the body, where XLA folds it",
    "gradient_of_loops": "the stacked index of a branch is read as a bool and converted back",
}
"""Programs whose HLO differs by a few scalar instructions, and why."""


@pytest.mark.parametrize("phase", ["differentiable", "final"])
@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_comes_back_as_it_was(fun, args, phase):
    before, _, after = round_trip(fun, *args, phase=phase)
    compat.check_jaxpr(after)
    assert [*map(repr, after.in_avals)] == [*map(repr, before.in_avals)]
    assert [*map(repr, after.out_avals)] == [*map(repr, before.out_avals)]
    assert after.effects == before.effects
    ours, theirs = hlo(after, args), hlo(before, args)
    assert ours == theirs or (fun.__name__ in SIMPLER and abs(len(ours) - len(theirs)) <= 3)


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_exact_evaluation_agrees_with_jax(fun, args):
    before, graph, _ = round_trip(fun, *args)
    wanted = jax.tree.leaves(fun(*args))
    for program in (graph, before):
        for a, b in zip(wanted, evaluate_exactly(program, *args), strict=True):
            if jnp.result_type(a) != jax.dtypes.float0:
                wide = [np.asarray(each, np.complex64) for each in (a, b)]
                np.testing.assert_allclose(*wide, rtol=2e-2, atol=1e-5)


def kinds(fun, *args):
    """The classes of the structured ops of a program, outermost first."""
    _, graph, _ = round_trip(fun, *args)
    return [type(op) for op in graph.walk() if type(op) is not Op]


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (programs.nested_scan, (X, XS), [Scan, Scan]),
        (programs.while_loop, (X,), [While]),
        (programs.while_with_a_batched_predicate, (X,), [While]),
        (programs.while_with_a_predicate_in_two_batches, (X,), [While]),
        (programs.cond, (X,), [Cond]),
        (programs.switch, (X, 1), [Cond]),
        (programs.remat_untouched, (X,), [Remat]),
        (programs.trivial_jit, (X,), []),
        (programs.jit_that_donates, (X,), [Call]),
        (programs.jit_with_shardings, (X,), [Call]),
        (programs.shard_map, (X,), [Call, Scan]),
        (programs.custom_jvp, (X,), []),
        (programs.pallas_call, (X,), []),
    ],
)
def test_what_becomes_structured(fun, args, expected):
    assert kinds(fun, *args) == expected


def test_a_while_with_a_batched_predicate_says_what_it_does():
    """It runs while any row does, and rows that have finished keep what they have."""
    _, graph, _ = round_trip(programs.while_with_a_batched_predicate, X)
    (loop,) = (op for op in graph.walk() if isinstance(op, While))
    assert [op.name for op in loop.predicate.ops] == ["lt", "reduce_or", "yield"]
    assert [op.name for op in loop.body.ops] == ["add", "lt", "select_n", "yield"]


def test_a_while_with_a_batched_predicate_and_effects_is_opaque():
    """Its predicate would be computed twice."""

    def program(x):
        def running(c):
            jax.debug.callback(lambda _: None, c)
            return c < 3

        return jax.vmap(lambda a: lax.while_loop(running, lambda c: c + a, a))(jnp.abs(x) + 1)

    assert kinds(program, X) == []


@pytest.mark.parametrize(
    ("fun", "name"),
    [(programs.custom_jvp, "custom_jvp_call"), (programs.custom_vjp, "custom_vjp_call")],
)
def test_custom_derivatives_are_kept_until_the_final_phase(fun, name):
    for phase, kept in (("differentiable", True), ("final", False)):
        _, graph, _ = round_trip(fun, X, phase=phase)
        assert any(op.name == name for op in graph.walk()) == kept
    _, _, after = round_trip(fun, X)
    ours = jax.grad(lambda x: jnp.sum(jaxpr_as_fun(after)(x)[0]))(X)
    assert_same_bits(ours, jax.grad(lambda x: fun(x).sum())(X))


def test_effects_keep_their_order():
    def fun(x, say):
        io_callback(partial(say, "first"), None, ordered=True)

        def step(c, i):
            io_callback(partial(say, "step"), None, i, ordered=True)
            return c + 1, None

        y, _ = lax.scan(step, x, jnp.arange(2))
        lax.cond(y > 1, lambda: io_callback(partial(say, "yes"), None, ordered=True), lambda: None)
        io_callback(partial(say, "last"), None, ordered=True)
        return y

    heard = []
    before, graph, after = round_trip(
        lambda x: fun(x, lambda *words: heard.append(tuple(map(str, words)))), 0
    )
    expected = [("first",), ("step", "0"), ("step", "1"), ("yes",), ("last",)]
    for run in (jaxpr_as_fun(before), jaxpr_as_fun(after), partial(evaluate_exactly, graph)):
        heard.clear()
        jax.block_until_ready(run(jnp.asarray(0)))
        jax.effects_barrier()
        assert heard == expected
    assert len(graph.outputs[0].op.effects) == 1, "the loop has the effect of its body"


def test_debug_print_survives(capsys):
    def fun(x):
        jax.debug.print("x is {}", x)
        return lax.scan(lambda c, _: (c + 1, jax.debug.print("c is {}", c)), x, None, length=2)[0]

    _, _, after = round_trip(fun, 1)
    jax.block_until_ready(jaxpr_as_fun(after)(jnp.asarray(1)))
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["c is 1", "c is 2", "x is 1"]


def test_names_and_source_lines_survive():
    before, graph, after = round_trip(programs.named, X)
    lowered = jax.jit(jaxpr_as_fun(after)).lower(X).as_text(debug_info=True)
    assert "attention/sin" in lowered
    assert compat.debug_info(after).arg_names == compat.debug_info(before).arg_names
    sin = next(op for op in graph.walk() if op.name == "sin")
    file, line, function = compat_source.user_frame(sin.source.info)
    assert file == programs.__file__ and function == "named"
    assert "jnp.sin(x)" in Path(file).read_text().splitlines()[line - 1]
    assert compat_source.user_frame(after.eqns[0].source_info) == (file, line, function)


def test_a_line_of_a_library_is_told_as_the_line_that_calls_it(tmp_path, monkeypatch):
    (tmp_path / "a_layer.py").write_text("import jax.numpy as jnp\ndef f(x): return jnp.sin(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    layer = importlib.import_module("a_layer")
    for installed, expected in [(False, layer.__file__), (True, __file__)]:
        monkeypatch.setattr(frames, "_INSTALLED", (str(tmp_path),) if installed else ())
        _forget_frames()
        _, graph, _ = round_trip(lambda x: layer.f(x), X)  # noqa: PLW0108
        assert compat_source.user_frame(next(graph.walk()).source.info)[0] == expected
    _forget_frames()


def _forget_frames():
    frames.is_installed.cache_clear()
    compat_source._user_frame.cache_clear()


def test_the_name_of_an_inlined_function_goes_in_front():
    @jax.jit
    def inner(a):
        return jnp.sin(a)

    def outer(x):
        with jax.named_scope("outer"):
            return inner(x)

    _, _, after = round_trip(outer, X)
    (eqn,) = after.eqns
    assert eqn.primitive.name == "sin" and "outer" in str(eqn.source_info.name_stack)


def test_double_precision():
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 3, dtype=jnp.float64)
        assert x.dtype == jnp.float64
        fun = lambda a: lax.scan(lambda c, _: (c * 1.1, jnp.sin(c)), a, None, length=3)
        before, graph, after = round_trip(fun, x)
        assert_same_bits(jaxpr_as_fun(before)(x), jaxpr_as_fun(after)(x))
        assert_same_bits(evaluate_exactly(graph, x), evaluate_exactly(before, x))


def test_the_context_of_an_equation_survives():
    def fun(x):
        with set_xla_metadata(colour="blue"):
            y = jnp.sin(x)
        return y + 1

    _, _, after = round_trip(fun, X)
    assert [eqn.ctx.xla_metadata for eqn in after.eqns] == [{"colour": "blue"}, None]
    assert 'colour="blue"' in jax.jit(jaxpr_as_fun(after)).lower(X).compile().as_text()


@pytest.mark.parametrize("phase", ["differentiable", "final"])
def test_a_choice_between_platforms_stays_one(phase):
    """Of its branches XLA compiles one, as the others may not be known on its platform."""
    fun = lambda x: lax.platform_dependent(x, tpu=jnp.cos, default=jnp.sin) + 1
    before, _, after = round_trip(fun, X, phase=phase)
    assert hlo(before, (X,)) == hlo(after, (X,))
    (chosen,) = (eqn.params for eqn in after.eqns if "branches" in eqn.params)
    assert chosen["branches_platforms"] == (("tpu",), None)


def test_a_choice_for_kernels_is_made():
    """XLA never takes a branch for what compiles Pallas kernels, as `jnp.diag` has one."""
    fun = lambda x: lax.platform_dependent(x, mosaic=jnp.cos, default=jnp.sin) + 1
    before, _, after = round_trip(fun, X)
    assert hlo(before, (X,)) == hlo(after, (X,))
    assert not any("branches" in eqn.params for eqn in after.eqns)


def test_random_arguments_have_the_types_they_are_asked_for():
    jaxpr = jax.make_jaxpr(lambda *xs: xs)(X, 1, True, jax.random.key(0), X.astype("bfloat16"))
    for special in ((), (jnp.nan,)):
        drawn = random_inputs(jaxpr.in_avals, special=special)
        assert [(x.shape, x.dtype) for x in drawn] == [(v.shape, v.dtype) for v in jaxpr.in_avals]
    assert not jnp.isfinite(random_inputs([jax.typeof(XS)], special=(jnp.nan,))[0]).all()


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32"])
def test_random_indices_are_in_and_out_of_range(dtype):
    types = [jax.ShapeDtypeStruct((900, 1), dtype), jax.ShapeDtypeStruct((5,), "float32")]
    (drawn, _), limits = random_inputs(types, places=True), jnp.iinfo(dtype)
    lowest = max(-6, limits.min)
    assert {*range(lowest, 7), limits.min, limits.max} <= set(drawn.ravel().tolist())
    assert set(random_inputs(types)[0].ravel().tolist()) == {0, 1, 2, 3}


def test_weak_types_survive_what_stands_for_them():
    """A strong number takes the place of a weak one in a step, a branch and a result."""

    def program(p):
        double = lambda c: lax.cond(p, lambda c: c * 2.0, lambda c: c, c)
        c, ys = lax.scan(lambda c, _: (double(c), c * 2.0), 1.0, length=3)
        return c, ys, c * 2.0

    jaxpr = jax.make_jaxpr(program)(True)
    graph = import_jaxpr(jaxpr, "differentiable")
    for op in [each for each in graph.walk() if each.name == "mul"]:
        rw = Rewriter(graph, op)
        made = rw.insert(lambda x: lax.mul(strong(x), np.float32(2)), op.operands[0], before=op)
        rw.replace(op.result, made)
    exported = export(graph, jaxpr.out_avals)
    compat.check_jaxpr(exported)
    assert [each.weak_type for each in exported.out_avals] == [True, True, True]


def test_results_that_are_of_no_mesh():
    """What an optimised program counts, not computes, is not typed by the mesh of its arguments."""

    def program(x, bound):
        def step(c, _):
            p = c[0, 0] < bound
            return lax.cond(p, jnp.sin, lambda c: c, c), p

        return lax.scan(step, x, length=4)

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    put = lambda x: jax.device_put(x, jax.NamedSharding(mesh, jax.P()))
    x, bound = put(jnp.ones((64, 64))), put(jnp.float32(0.5))
    same = jax.tree.map(jnp.array_equal, jax.jit(optimize(program))(x, bound), program(x, bound))
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("kind", jax.sharding.AxisType)
def test_results_of_a_mesh_that_is_not_of_the_context(kind):
    """A program that computes under a mesh of its own has results of that mesh."""
    of_type = lambda each: jax.sharding.AbstractMesh((1,), ("i",), axis_types=(each,))

    def program(x):
        with jax.sharding.use_abstract_mesh(of_type(kind)):
            step = lambda c, t: (jnp.where(t < 2, jnp.sin(c), c), c)
            return lax.scan(step, jnp.ones(4), jnp.arange(3))

    for around in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
        with jax.sharding.use_abstract_mesh(of_type(around)):
            ours, plain = (jax.make_jaxpr(f)(1.0).out_avals for f in (optimize(program), program))
        assert ours == plain


@pytest.mark.parametrize("transform", [lambda f: f, jax.jacrev, jax.jacfwd, jax.vmap])
def test_results_that_come_to_be_of_a_mesh(transform):
    """A branch that is never taken gives a cond a result of no mesh; JAX takes either type."""

    def program(x):
        def step(c, _):
            known = lax.cond(True, lambda: c * 2, lambda: jnp.zeros(c.shape))
            return jnp.sin(c), (known, jnp.cos(x))

        return lax.scan(step, x, length=4)[1]

    def carried(f, x):
        return lax.scan(lambda c, _: (f(x + c)[0][0], None), jnp.zeros(x.shape), length=2)[0]

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.ones((3, 3)), jax.NamedSharding(mesh, jax.P()))
    types = [jax.make_jaxpr(f)(x).out_avals for f in (optimize(program), program)]
    assert types[0] != types[1]
    plain, ours = (jax.jit(transform(partial(carried, f)))(x) for f in (program, optimize(program)))
    np.testing.assert_allclose(plain, ours, rtol=1e-6)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jacrev, jax.vmap])
def test_numbers_that_a_loop_stacks_are_of_no_mesh(transform):
    """Made outside of the loop they are of the mesh there is, which divides nothing of them."""

    def program(x):
        step = lambda c, _: (lax.cond(c.sum() < 0.5, jnp.sin, lambda c: c, c), 2.0)
        return lax.scan(step, x, length=3)

    def carried(f, x):
        return lax.scan(lambda c, _: (f(c)[1], None), jnp.zeros(3), length=2)[0] * f(x)[0]

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jnp.ones((3, 3))
        types = [jax.make_jaxpr(f)(x).out_avals for f in (optimize(program), program)]
        fs = (program, optimize(program))
        plain, ours = (jax.jit(transform(partial(carried, f)))(x) for f in fs)
    assert types[0] != types[1]
    np.testing.assert_allclose(plain, ours, rtol=1e-6)


def test_a_constant_that_is_written_into_an_array_on_a_mesh():
    """JAX wants both on one mesh."""
    kind = (jax.sharding.AxisType.Explicit,)
    with jax.set_mesh(jax.make_mesh((1,), ("i",), axis_types=kind)):
        write = lambda x, u: lax.dynamic_update_slice(x, u, (2,))
        graph = import_jaxpr(jax.make_jaxpr(write)(jnp.zeros(16), jnp.ones(1)))
        (op,) = (op for op in graph.walk() if op.name == "dynamic_update_slice")
        rw = Rewriter(graph)
        rw.set_operand(op, 1, rw.constant(np.ones(1, np.float32), op.operands[1].aval))
        assert jax.jit(jaxpr_as_fun(export(graph)))(jnp.zeros(16), jnp.zeros(1))[0][2] == 1


@pytest.mark.parametrize("axis", [None, "i"])
def test_a_conversion_that_says_how_its_operand_is_divided(axis):
    """It says so of an array of its rank, and passes convert windows of it."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis, None))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((3, 2)), rows)
        jaxpr = jax.make_jaxpr(lambda x: (x > 0).astype("float32", device=rows))(x)
        graph = import_jaxpr(jaxpr)
    (op,) = (op for op in graph.walk() if op.name == "convert_element_type")
    assert jaxpr.eqns[-1].params["sharding"] is not None and op.params["sharding"] is None
    assert export(graph).out_avals == jaxpr.out_avals
