"""Models whose leaves are functions and names, jitted as frameworks do: every report takes them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.cli import main
from jaxpr_opt.testing import assert_growth, assert_residual_bytes, assert_same

LENGTH = 64


class Model(NamedTuple):
    """As a module of Equinox: a pytree of arrays, a function and a name."""

    weights: jax.Array
    activation: object
    name: str


class FilterJit:
    """As `equinox.filter_jit` and `flax.nnx.jit`: no function of `jax.jit`, and like one."""

    def __init__(self, fun):
        functools.update_wrapper(self, fun)

    def __call__(self, model, xs):
        return jax.jit(lambda w, xs: self.__wrapped__(model._replace(weights=w), xs))(
            model.weights, xs
        )

    def lower(self, *_):
        raise NotImplementedError

    trace = eval_shape = clear_cache = lower


def arguments(length=LENGTH):
    return Model(jnp.ones(4), jnp.tanh, "rnn"), jnp.ones((length, 4))


def loss(model, xs):
    """A loop that writes one row a step."""

    def step(carry, x):
        i, ys = carry
        return (i + 1, ys.at[i].set(model.activation(x * model.weights))), None

    return jnp.sum(lax.scan(step, (0, jnp.zeros_like(xs)), xs)[0][1] ** 2)


def _weighted(model, xs):
    """What computes a gradient itself, and returns a model."""
    slope = jax.grad(lambda w: loss(model._replace(weights=w), xs))(model.weights)
    return model._replace(weights=model.weights - slope)


jitted, train_step = FilterJit(loss), FilterJit(lambda m, xs: _weighted(m, xs).weights)
COMMANDS = ["explain", "diff", "residuals", "budget", "lint", "report --html page.html"]


@pytest.mark.parametrize("name", ["loss", "jitted", "train_step"])
def test_commands_take_them(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    target = [f"{__file__}:{name}", "--args-from", f"{__file__}:arguments"]
    grad = [] if name == "train_step" else ["explain --grad"]
    for command in [*COMMANDS, *grad]:
        code = main([*command.split(), *target])
        told = capsys.readouterr()
        assert (code, told.err) in ((0, ""), (1 if command == "lint" else 0, "")), command
        if command == "residuals":
            assert "made at" in told.out or "keeps" in told.out
    assert "stack-carried-updates" in told.out if grad else (tmp_path / "page.html").exists()


def test_assertions_and_functions_take_them():
    model, xs = arguments()
    plain, filtered = (jaxpr_opt.residuals(each, model, xs) for each in (loss, jitted))
    assert plain.bytes == filtered.bytes
    assert_residual_bytes(loss, (model, xs), at_most="64 KiB")
    assert_growth(jitted, arguments, "linear")
    assert_same(loss, jaxpr_opt.optimize(loss), (model, xs))
    with pytest.raises(AssertionError, match="values should be"):
        assert_same(loss, lambda model, xs: 2 * loss(model, xs), (model, xs))
