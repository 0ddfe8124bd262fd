"""A JAX that is not as we know it: programs run as JAX runs them, and one warning says so.

Each fake is a change of JAX's internals as they happen.  What JAX itself still needs is changed as
our modules see it only.
"""

import ast
import functools
import re
import sys
import types
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

import jaxpr_opt
from jaxpr_opt import explain, optimize, settings
from jaxpr_opt.boundary import trial
from jaxpr_opt.bridge import (
    compat,
    compat_ad,
    compat_call,
    compat_lowering,
    compat_rules,
    compat_source,
    compat_types,
    guard,
    parameters,
)
from jaxpr_opt.donation import calling
from jaxpr_opt.engine.interface import PassError
from tests import fake_jax
from tests.fake_jax import ad, batching, core, mlir, pe

X = jnp.array([0.5, -1.0, 2.0, 1.5])


@pytest.fixture(autouse=True)
def _lenient(monkeypatch):
    """As users run it, in a process in which nothing has failed yet."""
    monkeypatch.setattr(guard, "_state", guard._State())
    with settings.override(strict=False, verify=False):
        yield


def program(x):
    """A loop with a branch and an invariant, and writes by the piece: several passes change it."""

    def step(carry, row):
        scale = jnp.sin(x[0])
        carry = lax.cond(row > 0, lambda c: c * row * scale, lambda c: c, carry)
        return carry, jnp.cos(carry) * scale

    carry, rows = lax.scan(step, x[1], x)
    rows = rows.at[1].add(carry)
    return jnp.sum(rows * rows)


def fresh(fun):
    """The same function anew: JAX remembers those it has traced."""

    def again(x):
        return fun(x)

    return again


def orders(wrap, fun):
    """`fun` transformed in every order, `wrap` being `optimize` or nothing."""
    return {
        "value": wrap(fun),
        "grad of optimize": jax.grad(wrap(fun)),
        "optimize of grad": wrap(jax.grad(fun)),
        "vmap": lambda x: jax.vmap(wrap(fun))(jnp.stack([x, 2 * x])),
        "jvp": lambda x: jax.jvp(wrap(fun), (x,), (x,)),
        "checkpoint": jax.grad(jax.checkpoint(wrap(fun))),
    }


def all_orders(wrap, fun, x=X):
    """What comes out in every order, all compiled as one."""
    return jax.jit(lambda x: {k: f(x) for k, f in orders(wrap, fun).items()})(x)


@functools.cache
def plain(fun):
    return all_orders(lambda f: f, fun)


def assert_plain_with_warnings(fun, count):
    """In every order the result is plain JAX's; `count` warnings in all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = all_orders(optimize, fresh(fun))
    assert [str(w.message) for w in caught if "jaxpr_opt" in str(w.message)][count:] == []
    assert len(caught) == count, [str(w.message) for w in caught]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), got, plain(fun))


# ---------------------------------------------------------------- symbols gone, signatures changed


def without(module, *gone, **changed):
    """A module of JAX in which some names are others, or none."""
    made = types.ModuleType(module.__name__)
    made.__dict__.update({k: v for k, v in vars(module).items() if k not in gone} | changed)
    return made


def other_signature(*args, a_new_argument):
    raise AssertionError("called without its new argument")


def other_results(fun):
    return lambda *args, **kwargs: (*fun(*args, **kwargs), "a new result")


def gone(_what):
    def missing(*args, **kwargs):
        raise AttributeError(f"'Primitive' object has no attribute {_what!r}")

    return missing


SYMBOLS = {
    "linearize_jaxpr is gone": (compat_ad, "_ad", without(ad, "linearize_jaxpr")),
    "jvp_jaxpr takes an argument more": (
        compat_ad, "_ad", without(ad, jvp_jaxpr=other_signature)),
    "backward_pass3 is gone": (compat_ad, "_ad", without(ad, "backward_pass3")),
    "ValAccum is gone": (compat_ad, "_ad", without(ad, "ValAccum")),
    "batch_jaxpr_axes is gone": (compat_ad, "_batching", without(batching, "batch_jaxpr_axes")),
    "jaxpr_subcomp takes an argument more": (
        compat_lowering, "_mlir", without(mlir, jaxpr_subcomp=other_signature)),
    "trace_to_jaxpr_dynamic takes an argument more": (
        compat, "_pe", without(pe, trace_to_jaxpr_dynamic=other_signature)),
    "trace_to_jaxpr_dynamic gives a result more": (
        compat, "_pe",
        without(pe, trace_to_jaxpr_dynamic=other_results(pe.trace_to_jaxpr_dynamic))),
    "dce_jaxpr gives a result more": (
        compat_ad, "_pe", without(pe, dce_jaxpr=other_results(pe.dce_jaxpr))),
    "closed_call_partial_eval_custom_rule is gone": (
        compat_rules, "_pe", without(pe, "closed_call_partial_eval_custom_rule")),
    "DebugInfo takes other arguments": (
        compat, "_core", without(core, DebugInfo=other_signature)),
    "get_bind_params is gone": (compat, "bind", gone("get_bind_params")),
    "name stacks are gone": (compat_source, "transposes", gone("name_stack")),
    "to_ct_aval is gone": (compat_ad, "cotangent_avals", gone("to_ct_aval")),
    "typeof is gone": (compat_rules, "_core", without(core, "typeof")),
    "ShapedArray is gone, which passes ask about": (
        compat_types, "_core", without(core, "ShapedArray")),
    "ShapedArray is a function": (
        compat_types, "_core", without(core, ShapedArray=other_signature)),
    "trace_context is gone": (compat_ad, "_config", without(compat_ad._config, "trace_context")),
}  # fmt: skip


SOME = ("linearize_jaxpr is gone", "jaxpr_subcomp takes an argument more", "typeof is gone")


@pytest.fixture(params=SYMBOLS)
def _changed(request, monkeypatch):
    monkeypatch.setattr(*SYMBOLS[request.param])


@pytest.mark.usefixtures("_changed")
def test_a_symbol_that_changed():
    assert_plain_with_warnings(program, 1)


def test_a_change_that_programs_meet_one_after_the_other_is_said_once(monkeypatch):
    monkeypatch.setattr(compat_ad, "_ad", without(ad, "linearize_jaxpr", "jvp_jaxpr"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for transform in (jax.grad, jax.jacfwd, lambda f: f):
            f = optimize(fresh(program))
            assert jnp.allclose(transform(f)(X), transform(program)(X), rtol=1e-5)
    assert len(caught) == 1
    assert f"does not work with jax {jax.__version__}" in str(caught[0].message)
    assert "no attribute" in str(caught[0].message)
    assert "optimized" not in str(jax.make_jaxpr(optimize(fresh(program)))(X))


@pytest.mark.parametrize("_changed", SOME, indirect=True)
def test_in_strict_mode_it_raises(_changed):
    with settings.override(strict=True), pytest.raises((AttributeError, TypeError, ValueError)):
        all_orders(optimize, fresh(program))


# ---------------------------------------------------------------- primitives that changed

PRIMITIVES = {
    "a scan's length is called steps": (primitives.scan_p, fake_jax.renamed("length", "steps")),
    "a scan's body has another name": (primitives.scan_p, fake_jax.renamed("jaxpr", "body")),
    "a scan has a new parameter": (primitives.scan_p, fake_jax.added("speculative", True)),
    "a cond's branches have another name": (
        primitives.cond_p, fake_jax.renamed("branches", "arms")),
    "a scatter's dimension numbers have another name": (
        primitives.scatter_add_p, fake_jax.renamed("dimension_numbers", "layout")),
    "a scatter has a new parameter": (primitives.scatter_add_p, fake_jax.added("atomic", "yes")),
    "a slice's strides have another name": (
        primitives.slice_p, fake_jax.renamed("strides", "steps")),
    "a reduction's axes have another name": (
        primitives.reduce_sum_p, fake_jax.renamed("axes", "dims")),
    "a broadcast's dimensions have another name": (
        primitives.broadcast_in_dim_p, fake_jax.renamed("broadcast_dimensions", "dims")),
}  # fmt: skip


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_whose_parameters_changed(monkeypatch, name):
    plain(program)
    fake_jax.change(monkeypatch, *PRIMITIVES[name])
    assert_plain_with_warnings(program, 1)


def test_what_is_unknown_is_named(monkeypatch):
    fake_jax.change(monkeypatch, primitives.scan_p, fake_jax.renamed("length", "steps"))
    with pytest.warns(
        UserWarning, match=r"scan has no parameter 'length'; its ops are left unchanged"
    ):
        optimize(fresh(program))(X)
    with settings.override(strict=True), pytest.raises(guard.UnknownJaxError, match="'length'"):
        optimize(fresh(program))(X)


def test_the_rest_of_the_program_is_optimised(monkeypatch):
    """An unknown op is not looked through; a known one beside it still is."""
    fake_jax.change(monkeypatch, primitives.cond_p, fake_jax.renamed("branches", "arms"))
    with pytest.warns(UserWarning, match="cond has no parameter 'branches'"):
        text = str(explain(jax.grad(two_loops), X))
    assert re.search(r"pass(es)? changed the program", text), text


def two_loops(x):
    """One with a branch; in the other `sin(x)` is the same in every step."""
    skipped, _ = lax.scan(
        lambda c, row: (lax.cond(row > 0, jnp.sin, jnp.cos, c), None), x[0], x)  # fmt: skip
    summed, _ = lax.scan(lambda c, row: (c * jnp.sin(x).sum() + row, None), x[0], x)
    return skipped + summed


def test_a_new_parameter_that_is_off_says_nothing(monkeypatch):
    fake_jax.change(monkeypatch, primitives.scan_p, fake_jax.added("speculative", None))
    assert_plain_with_warnings(program, 0)


# ---------------------------------------------------------------- kinds nobody has heard of


def test_a_primitive_with_regions(monkeypatch):
    same = (lambda params: params,) * 2
    fake_jax.change(monkeypatch, primitives.scan_p, same, name="loop_of_tomorrow")
    assert_plain_with_warnings(program, 0)


def test_an_effect(monkeypatch):
    fake_jax.allow(monkeypatch, fake_jax.Tomorrow)
    tick = fake_jax.identity("tick", effect={fake_jax.Tomorrow()})
    assert_plain_with_warnings(lambda x: program(x) + tick.bind(x[0]), 0)


def test_a_type_of_values():
    box = fake_jax.identity("box", lambda _: fake_jax.Box())
    unbox = fake_jax.identity("unbox", lambda _: core.ShapedArray((), jnp.float32))
    assert_plain_with_warnings(lambda x: program(x) + unbox.bind(box.bind(np.float32(2))), 0)


# ---------------------------------------------------------------- versions


def test_a_newer_jax_on_which_everything_works_is_optimised_for(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 99, 0))
    assert_plain_with_warnings(program, 0)
    assert "optimized" in str(jax.make_jaxpr(optimize(fresh(program)))(X))


@pytest.mark.parametrize("_changed", SOME, indirect=True)
def test_a_newer_jax_on_which_something_does_not_work_is_left_alone(monkeypatch, _changed):
    monkeypatch.setattr(jax, "__version_info__", (0, 99, 0))
    with pytest.warns(UserWarning, match="does not work with jax") as caught:
        f = optimize(fresh(program))
    assert len(caught) == 1
    assert "optimized" not in str(jax.make_jaxpr(f)(X))


def test_an_engine_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxpr_opt.boundary.rules", None)
    with pytest.warns(UserWarning, match="does not work with jax.*boundary.rules"):
        f = optimize(fresh(program))
    assert jnp.allclose(jax.grad(f)(X), jax.grad(program)(X))
    guard._state.works = None
    with settings.override(strict=True), pytest.raises(ImportError):
        optimize(fresh(program))


def test_the_trial_works_here():
    with settings.override(strict=True):
        trial.run()


# ---------------------------------------------------------------- what is not ours


def backward_raises(_, ct):
    raise RuntimeError("mine")


def backward_of_another_shape(_, ct):
    return (jnp.zeros(7),)


@jax.custom_jvp
def forward_raises(x):
    return jnp.sin(x)


@forward_raises.defjvp
def _forward_raises(primals, tangents):
    raise RuntimeError("mine")


def with_backward(rule):
    fun = jax.custom_vjp(jnp.sin)
    fun.defvjp(lambda x: (jnp.sin(x), None), rule)
    return lambda x: jnp.sum(fun(x))


def raising(x):
    raise RuntimeError("mine")


def printing(x):
    jax.debug.print("{}", x)
    return x * 2


USERS = {
    "traced": (raising, lambda f: f),
    "a bool of a tracer": (lambda x: x if x[0] > 0 else -x, lambda f: f),
    "shapes": (lambda x: x + jnp.ones(7), lambda f: f),
    "a custom backward": (with_backward(backward_raises), jax.grad),
    "the shape of a custom backward": (with_backward(backward_of_another_shape), jax.grad),
    "a custom forward": (lambda x: jnp.sum(forward_raises(x)), jax.grad),
    "forward mode of a custom backward": (with_backward(backward_raises), jax.jacfwd),
    "a while loop with effects": (
        lambda x: lax.while_loop(lambda c: c < 9, printing, x[2]), jax.grad),
    "no floats": (lambda x: jnp.sum(x).astype(int), jax.grad),
}  # fmt: skip


@pytest.mark.parametrize("kind", USERS)
@pytest.mark.parametrize("inside", [True, False], ids=["optimize of", "of optimize"])
def test_errors_of_the_user_pass_as_they_are(kind, inside):
    fun, transform = USERS[kind]
    f = optimize(transform(fun)) if inside else transform(optimize(fun))
    with pytest.raises(Exception) as expected:  # noqa: PT011  whatever JAX says
        jax.jit(transform(fun))(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(expected.type) as got:
            f(X)
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_a_failure_on_one_program_leaves_that_program_only(monkeypatch):
    """The engine works, so it stays on; the same failure is said once."""
    batch = compat_ad.batch

    def failing(jaxpr, *args, **first):
        if any(eqn.primitive.name == "tan" for eqn in jaxpr.eqns):
            raise KeyError("odd")
        return batch(jaxpr, *args, **first)

    monkeypatch.setattr(compat_ad, "batch", failing)
    xs = jnp.stack([X, 2 * X])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            np.testing.assert_allclose(jax.vmap(optimize(fresh(jnp.tan)))(xs), jnp.tan(xs))
    assert [str(w.message) for w in caught] == [
        "jaxpr_opt: a program was left unchanged: KeyError: 'odd'"
    ]
    assert "optimized" in str(jax.make_jaxpr(jax.vmap(optimize(fresh(jnp.sin))))(xs))


def test_jax_is_blamed_for_what_is_raised_where_it_is_asked():
    """Under errors of ours, and whatever JAX has added of where an operation comes from."""
    with pytest.raises(AttributeError) as raised:
        compat.open_jaxpr(None)
    error = raised.value
    error.__cause__ = RuntimeError("where it comes from")
    failure = PassError("some-pass", (), error)
    failure.__cause__ = error
    assert guard._of_jax(error) is error
    assert guard._of_jax(failure) is error
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("ours")
    assert guard._of_jax(raised.value) is None


INSIDE = re.compile(r"(compat\w*|importer|exporter|parameters)\.py")


def test_jax_names_parameters_in_one_place():
    """Elsewhere they are asked for by functions of `jaxpr_opt.bridge.parameters`."""
    root = Path(jaxpr_opt.__file__).parent
    found = [
        f"{path.relative_to(root)}: {ast.unparse(node)}"
        for path in sorted([*root.rglob("*.py"), *(root / "passes").rglob("*.py")])
        if not INSIDE.fullmatch(path.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Subscript)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        if getattr(node.value, "attr", getattr(node.value, "id", "")) == "params"
    ]
    assert found == []


def test_the_table_of_parameters_is_that_of_this_jax():
    """No equation of a program that uses everything is unknown."""
    jaxpr = jax.make_jaxpr(jax.grad(program))(X)
    assert parameters.unknown("scan", {}) == "scan has no parameter 'jaxpr'"
    seen = []

    def visit(jaxpr):
        for eqn in compat.open_jaxpr(jaxpr).eqns:
            seen.append(eqn.primitive.name)
            assert parameters.unknown(eqn.primitive.name, eqn.params) is None
            for inner in compat.inner_jaxprs(eqn.params):
                visit(inner)

    visit(jaxpr)
    assert {"scan", "cond", "slice", "squeeze", "reduce_sum"} < set(seen)


# ---------------------------------------------------------------- decoration and calls

CALLS = {
    "_jit_info is gone": (compat_call, "jit_options", gone("_jit_info")),
    "debug_info takes other arguments": (compat_call, "leaf_names", other_signature),
    "names cannot be set": (compat_call, "describe", gone("__fun_debug_info__")),
    "types are asked for elsewhere": (compat_call, "is_array", gone("shaped_abstractify")),
    "alias analysis fails": (calling, "import_jaxpr", gone("eqns")),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_change_that_decoration_or_calls_meet(monkeypatch, name):
    monkeypatch.setattr(*CALLS[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for options in ({}, {"donate": "matched"}, {"static_argnames": "flag"}):
            f = optimize(lambda x, flag=True: jnp.sin(x) if flag else x, **options)
            np.testing.assert_allclose(f(X + 0), jnp.sin(X))
        np.testing.assert_allclose(optimize(jax.jit(fresh(jnp.sin)))(X), jnp.sin(X))
    assert len(caught) == 1, [str(w.message) for w in caught]


def test_a_function_of_the_user_that_raises_is_traced_once():
    calls = []

    def raising(x):
        calls.append(x)
        raise RuntimeError("mine")

    for options in ({}, {"donate": "matched"}):
        calls.clear()
        with pytest.raises(RuntimeError, match="mine"):
            optimize(fresh(raising), **options)(X)
        assert len(calls) == 1


def test_an_error_that_the_user_is_to_see_is_no_failure():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="cannot use"):
            optimize(fresh(jnp.sum), donate_argnums=0)(X)


# ---------------------------------------------------------------- where it is tried

EXPLICIT = (jax.sharding.AxisType.Explicit,)
PLACES = {
    "jit": jax.jit,
    "vmap": partial(jax.vmap, axis_name="rows"),
    "grad": jax.grad,
    "a loop": lambda f: lambda x: lax.scan(lambda c, row: (c, f(row)), 0, X)[1],
    "a mesh": lambda f: lambda x: _under(jax.set_mesh(jax.make_mesh((1,), "x", EXPLICIT)), f, x),
    "double precision": lambda f: lambda x: _under(jax.enable_x64(True), f, x),
    "no transfers": lambda f: lambda x: _under(jax.transfer_guard("disallow"), f, x),
}


def _under(context, fun, x):
    with context:
        return fun(x)


@pytest.mark.parametrize("place", PLACES)
def test_the_trial_works_wherever_something_fails(place):
    """A failure inside a transformation says nothing of JAX."""

    def failing(x):
        with settings.override(strict=True):
            trial.run()
        return x

    PLACES[place](failing)(X if place == "vmap" else X[0])
