"""What is traced for a target."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.lint.modes import traceable
from jaxpr_opt.lint.options import Options, Spec
from jaxpr_opt.lint.target import Target
from jaxpr_opt.reports import observe

W = jax.ShapeDtypeStruct((3, 3), "float32")
X = jax.ShapeDtypeStruct((3,), "float32")


def out_types(fun, arguments, mode="gradient", argnums=0):
    fun, (args, kwargs) = traceable(fun, arguments, mode, argnums)
    graph, _ = observe.as_it_is(fun, args, kwargs)
    return [str(value.aval) for value in graph.outputs]


def test_the_gradient_has_the_value_and_the_cotangents_of_what_was_asked_for():
    loss = lambda w, x: (w @ x).sum()
    assert out_types(loss, ((W, X), {})) == ["float32[]", "float32[3,3]"]
    assert out_types(loss, ((W, X), {}), argnums=(1, 0)) == [
        "float32[]",
        "float32[3]",
        "float32[3,3]",
    ]


def test_of_a_tuple_that_begins_with_a_scalar_that_is_differentiated():
    loss = lambda w, x: (jnp.sum(w @ x), {"largest": jnp.argmax(x)})
    assert out_types(loss, ((W, X), {})) == ["float32[]", "int32[]", "float32[3,3]"]


def test_of_other_outputs_the_sum_is_differentiated():
    layer = lambda w, x: (w @ x, jnp.argmax(x))
    assert out_types(layer, ((W, X), {})) == ["float32[3]", "int32[]", "float32[3,3]"]


def test_integers_among_the_parameters_have_no_gradient():
    params = {"w": W, "count": jax.ShapeDtypeStruct((), "int32")}
    loss = lambda params, x: (params["w"] @ x).sum()
    assert out_types(loss, ((params, X), {})) == ["float32[]", "float32[3,3]"]


def test_static_arguments_of_a_jitted_function_stay_static():
    @functools.partial(jax.jit, static_argnames="power")
    def loss(w, power):
        assert isinstance(power, int)
        return jnp.sum(w) ** power

    assert out_types(loss, ((W, 2), {})) == ["float32[]", "float32[3,3]"]
    assert out_types(loss, ((W,), {"power": 2})) == ["float32[]", "float32[3,3]"]


@pytest.mark.parametrize("mode", ["as-is", "gradient"])
def test_what_cannot_be_traced_is_taken_as_it_is(mode):
    def loss(model, x, axis_name):
        assert axis_name == "batch"
        return model["activation"](model["w"] @ x).sum()

    model = {"w": W, "activation": jnp.tanh}
    types = out_types(loss, ((model, X, "batch"), {}), mode)
    assert types == ["float32[]", "float32[3,3]"][: 1 if mode == "as-is" else 2]


def test_results_that_cannot_be_traced_are_left_out():
    step = lambda model, x: ({"w": model["w"] @ x, "activation": jnp.tanh}, "done")
    model = {"w": W, "activation": jnp.tanh}
    assert out_types(step, ((model, X), {}), "as-is") == ["float32[3]"]


def test_positions_of_arguments_that_are_not_there():
    with pytest.raises(ValueError, match="argnums 0, 2: there are 2 positional arguments"):
        traceable(jnp.add, ((X, X), {}), "gradient", (0, 2))


# -- a loss is looked at as one -------------------------------------------------------------------


def mode_of(fun, *args, **spec):
    target = Target(name="t", function=fun, given=args, spec=Spec(**spec))
    return target.subject(Options()).mode


def norm(w, x):
    return jnp.sum(jnp.sin(w @ x))


def stops(w):
    return lax.while_loop(lambda c: c < 3.0, lambda c: c * 2.0, w.sum())


LOSSES = [norm, jax.jit(norm), jaxpr_opt.optimize(norm), lambda w, x: (norm(w, x), {"x": x})]
OTHERS = [
    lambda w, x: w @ x,
    lambda w, x: (w @ x).argmax(),
    lambda w, x: (norm(w, x), x, w),
    lambda w, x: {"norm": norm(w, x)},
    jax.value_and_grad(norm),  # computes a gradient itself
    lambda w, x: stops(w),  # has no gradient
]


@pytest.mark.parametrize("fun", LOSSES)
def test_a_function_that_returns_a_float_is_looked_at_as_a_loss(fun):
    assert mode_of(fun, W, X) == "gradient"
    assert mode_of(fun, W, X, mode="as-is") == "as-is"


@pytest.mark.parametrize("fun", OTHERS)
def test_other_functions_are_looked_at_as_they_are(fun):
    assert mode_of(fun, W, X) == "as-is"


def test_a_loss_is_differentiated_by_the_first_argument_that_holds_floats():
    key = jax.ShapeDtypeStruct((), "int32")
    loss = lambda key, params, x: norm(params["w"], x) + key
    given = key, {"w": W, "activation": jnp.tanh}, X
    about = Target(name="t", function=loss, given=lambda: given).subject(Options())
    assert [str(v.aval) for v in about.graph.outputs] == ["float32[]", "float32[3,3]"]
