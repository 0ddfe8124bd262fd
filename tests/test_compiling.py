"""Options of XLA that a device is faster with hold for whole programs, and for no part of one."""

import jax
import jax.numpy as jnp
import pytest

from jaxpr_opt import everywhere, optimize
from jaxpr_opt.boundary.compiling import compiler_options
from jaxpr_opt.bridge.compat_devices import takes_option
from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import cost_model, using

X = jnp.arange(3.0)


@pytest.fixture
def dumped(tmp_path):
    """Called with a function of no arguments: whether what XLA compiles in it has our option."""
    own = tmp_path / "own"
    with using(cost_model().but(options=(("xla_dump_to", str(own)),))):
        compiler_options()  # which compiles something

        def has_option(call):
            before = len([*own.iterdir()])
            call()
            return len([*own.iterdir()]) > before

        yield has_option


def fresh():
    """A function that nothing has compiled yet."""
    return lambda x: jnp.sin(x) * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: optimize(fresh())(X),
        lambda: optimize(fresh()).lower(X).compile(),
        lambda: optimize(fresh()).trace(X).lower().compile(),
        lambda: optimize(jax.grad(fresh()))(1.0),
        lambda: optimize(lambda x, name: getattr(jnp, name)(x))(X, "sin"),
        lambda: optimize(fresh(), donate="matched")(X + 1),
    ],
)
def test_a_program_has_them(dumped, call):
    assert dumped(call)


@pytest.mark.parametrize(
    "call",
    [
        lambda: jax.jit(optimize(fresh()))(X),
        lambda: jax.jit(jax.grad(optimize(fresh())))(1.0),
        lambda: jax.vmap(optimize(fresh()))(X),
        lambda: jax.grad(optimize(fresh()))(1.0),
        lambda: jax.linearize(optimize(fresh()), 1.0)[1](1.0),
        lambda: jax.hessian(optimize(fresh(), donate="matched"))(1.0),
    ],
)
def test_a_part_of_one_has_none(dumped, call):
    """JAX refuses options there."""
    assert not dumped(call)


def test_everywhere(dumped):
    plain = jax.jit(fresh())
    assert not dumped(lambda: plain(X))
    with everywhere():
        assert dumped(lambda: plain(X))
        assert dumped(lambda: jax.jit(jax.grad(fresh()))(1.0))
        assert not dumped(lambda: plain(X))


def test_those_of_the_user_go_before(dumped, tmp_path):
    other = {"compiler_options": {"xla_dump_to": str(tmp_path / "other")}}
    assert not dumped(lambda: optimize(fresh(), **other)(X))
    assert (tmp_path / "other").exists()


def test_what_xla_does_not_know_is_left_out():
    with using(cost_model().but(options=(("xla_no_such_option", 1), *GPU.options))):
        assert compiler_options() == dict(GPU.options)
        assert optimize(fresh())(X).shape == (3,)


def test_xla_flags_go_before(monkeypatch):
    takes_option.cache_clear()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_graph_min_graph_size=5")
    with using(cost_model().but(options=GPU.options)):
        assert compiler_options() == {}
    takes_option.cache_clear()


def test_a_cpu_has_none():
    assert compiler_options() == {}
