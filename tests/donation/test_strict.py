"""`donate_argnums` as of `jax.jit`, but what is not usable is an error that names it."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import jaxpr_opt

X = jax.ShapeDtypeStruct((4,), "float32")


def step(state, batch):
    return {"w": state["w"] * batch["x"].sum(), "n": state["n"] + 1}


ARGUMENTS = {"w": jnp.ones(4), "n": 0}, {"x": jnp.ones(3)}


def test_usable_donation_is_that_of_jit():
    f = jaxpr_opt.optimize(step, donate_argnums=0)
    assert type(f) is type(jax.jit(step))
    state = {"w": jnp.ones(4), "n": 0}
    f(state, ARGUMENTS[1])
    assert state["w"].is_deleted()


@pytest.mark.parametrize("options", [{"donate_argnums": (0, 1)}, {"donate_argnames": "batch"}])
@pytest.mark.parametrize("by_name", [False, True])
def test_unusable_donation_names_the_array(options, by_name):
    f = jaxpr_opt.optimize(step, **options)
    with pytest.raises(ValueError, match=r"batch\['x'\] f32\[3\] \(12 B\): no result is"):
        f(ARGUMENTS[0], batch=ARGUMENTS[1]) if by_name else f(*ARGUMENTS)


def test_more_than_there_are_results():
    f = jaxpr_opt.optimize(lambda a, b: a + b, donate_argnums=(0, 1))
    with pytest.raises(ValueError, match=r"b f32\[4\].*: more arguments than results"):
        f.lower(X, X)


def test_what_jax_leaves_in_silence():
    """As many elements of another size: JAX says nothing, and XLA does nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        narrowed = jax.jit(lambda x: x.astype("bfloat16"), donate_argnums=0).lower(X)
    assert not narrowed.compile().memory_analysis().alias_size_in_bytes
    with pytest.raises(ValueError, match=r"no result is f32\[4\]"):
        jaxpr_opt.optimize(lambda x: x.astype("bfloat16"), donate_argnums=0).lower(X)
    turned = jaxpr_opt.optimize(lambda x: x.astype("int32").reshape(2, 2), donate_argnums=0)
    assert turned.lower(X).compile().memory_analysis().alias_size_in_bytes == 16


def test_options_of_a_jitted_function_are_jaxs():
    """Only what is said to `optimize` is checked: wrapping what runs must not stop it."""
    f = jaxpr_opt.optimize(jax.jit(lambda x: x.sum(), donate_argnums=0))
    with pytest.warns(UserWarning, match="not usable"):
        f(jnp.ones(4))


def test_static_arguments_do_not_shift_names():
    f = jaxpr_opt.optimize(lambda n, x, y: x.sum() * n, static_argnums=0, donate_argnums=2)
    with pytest.raises(ValueError, match=r" y f32\[4\]"):
        f.lower(2, X, X)
