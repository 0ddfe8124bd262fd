"""Under JAX's switches an optimised program does what a jitted one does."""

import functools
import traceback

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from test_compositions import W, X, same

from jaxpr_opt import optimize

SWITCHES = {
    "checks": lambda: jax.enable_checks(True),
    "leaks": jax.checking_leaks,
    "log": jax.log_compiles,
    "transfers": lambda: jax.transfer_guard("disallow"),
    "strict types": lambda: jax.numpy_dtype_promotion("strict"),
    "strict ranks": lambda: jax.numpy_rank_promotion("raise"),
    "precision": lambda: jax.default_matmul_precision("highest"),
    "keys": lambda: jax.default_prng_impl("rbg"),
    "key reuse": lambda: jax.debug_key_reuse(True),
    "device": lambda: jax.default_device(jax.devices()[-1]),
    "nans": lambda: jax.debug_nans(True),
    "infs": lambda: jax.debug_infs(True),
    "no jit": jax.disable_jit,
}


def looped(w, x):
    step = lambda h, i: (jnp.where(i < 2, h.at[i].add(w["b"]), h), h[i])
    h, ys = lax.scan(step, x, jnp.arange(3, dtype=jnp.int32))
    return jnp.dot(h, ys)


def mixed(w, x):
    return jnp.sum(x * jnp.arange(3)) + w["b"]


def ranks(w, x):
    return jnp.sum(jnp.outer(x, x) + w["a"])


def reused(w, x):
    key = jax.random.key(0)
    return jnp.sum(x * jax.random.normal(key, (3,)) * jax.random.uniform(key, (3,)))


ERRORS = (TypeError, ValueError, jax.errors.KeyReuseError, jax.errors.JaxRuntimeError)


def outcome(run, *args, errors=ERRORS):
    """What a function returns, or the first line of its error."""
    try:
        return run(*args)
    except errors as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def fresh(f):
    """A function that is in no cache of JAX's yet: not every switch is part of its keys."""
    return functools.partial(f)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_program_does_what_it_does_jitted(name):
    """Values and gradients, or the same error."""

    def outcomes(o):
        with SWITCHES[name]():
            yield outcome(jax.value_and_grad(o(fresh(looped))), W, X)
            for f in (mixed, ranks, reused):
                yield outcome(o(fresh(f)), W, X)

    every, all_got = list(outcomes(jax.jit)), list(outcomes(optimize))
    for expected, got in zip(every, all_got, strict=True):
        if isinstance(expected, str) or isinstance(got, str):
            assert got == expected
        else:
            same(expected, got)


# ---------------------------------------------------------------- numbers that are none


def rooted(x):
    y = 2 * x
    return jnp.sum(jnp.log(y))


@jax.custom_vjp
def doubled(x):
    return 2 * x


def doubled_backwards(x, ct):
    return (jnp.log(x) * ct,)


doubled.defvjp(lambda x: (2 * x, x), doubled_backwards)


def doubles(x):
    return jnp.sum(doubled(x))


BAD = jnp.array([-1.0, 2.0])
SEARCHES = {
    "call": ("rooted", lambda o: o(rooted)(BAD)),
    "untouched": ("", lambda o: o(jnp.log)(BAD)),
    "jit_of": ("rooted", lambda o: jax.jit(lambda x: o(rooted)(x) + 1)(BAD)),
    "of_jit": ("rooted", lambda o: o(lambda x: jax.jit(rooted)(x) + 1)(BAD)),
    "no_arguments": ("rooted", lambda o: o(lambda: rooted(BAD))()),
    "grad": ("rooted", lambda o: jax.grad(o(rooted))(BAD)),
    "vmap": ("rooted", lambda o: jax.vmap(o(rooted))(BAD[None])),
    "backward": ("doubles", lambda o: jax.grad(o(doubles))(BAD)),
    "jit_of_backward": ("doubles", lambda o: jax.jit(jax.grad(o(doubles)))(BAD)),
    "of_backward": ("doubled_backwards", lambda o: o(jax.grad(doubles))(BAD)),
    "infinite_backward": ("", lambda o: jax.grad(o(lambda x: jnp.sum(jnp.sqrt(x))))(0 * BAD)),
    "infinite_forward": ("", lambda o: jax.jvp(o(jnp.sqrt), (0 * BAD,), (BAD,))),
    "in_scan": ("", lambda o: lax.scan(lambda c, x: (c, o(rooted)(x)), 0.0, BAD[None])),
    "fine": ("", lambda o: o(rooted)(3 + BAD)),
}
"""Where the error is said to be, if in a function of ours; what is run."""


def places(error):
    """The functions that an error names, in its traceback or in notes."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return " ".join([*names, *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("without_jit", [False, True], ids=["jit", "disable_jit"])
@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_no_number_is_found_where_it_was_made(name, without_jit):
    """By `jax_debug_nans`; in a backward pass, at the line whose gradient is at fault."""
    place, search = SEARCHES[name]
    with jax.debug_nans(True), jax.debug_infs(True), jax.disable_jit(without_jit):
        expected = outcome(search, jax.jit, errors=FloatingPointError)
        if not isinstance(expected, str):
            same(expected, search(optimize))
            return
        with pytest.raises(FloatingPointError) as found:
            search(optimize)
    assert f"FloatingPointError: {found.value}" == expected
    assert without_jit or place in places(found.value)
