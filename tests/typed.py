"""What type checkers know of `optimize`; `make lint` has mypy and pyright check this file."""

from __future__ import annotations

from typing import assert_type

import jax

import jaxpr_opt
from jaxpr_opt import Optimized

ARRAY = jax.ShapeDtypeStruct((3,), "float32")


def scaled(x: jax.Array, by: float = 2.0) -> jax.Array:
    return x * by


@jaxpr_opt.optimize
def bare(x: jax.Array, *, by: float) -> dict[str, jax.Array]:
    return {"x": x * by}


@jaxpr_opt.optimize(skip=["pack-scalars"], static_argnums=1)
def called(x: jax.Array, n: int) -> jax.Array:
    return x * n


class Model:
    @jaxpr_opt.optimize
    def loss(self, x: jax.Array) -> jax.Array:
        return x.sum()


def signatures_are_kept(x: jax.Array) -> None:
    made = jaxpr_opt.optimize(scaled)
    assert_type(made(x), jax.Array)
    assert_type(made(x, by=3.0), jax.Array)
    assert_type(bare(x, by=2.0), dict[str, jax.Array])
    assert_type(called(x, 3), jax.Array)
    assert_type(Model().loss(x), jax.Array)
    assert_type(jaxpr_opt.optimize(scaled, donate="matched")(x), jax.Array)


def wrong_calls_are_noticed(x: jax.Array) -> None:
    jaxpr_opt.optimize(scaled)(x, "twice")  # type: ignore[arg-type]
    bare(x)  # type: ignore[call-arg]
    called(x, 3, 4)  # type: ignore[call-arg]
    Model().loss(x, x)  # type: ignore[call-arg]
    jaxpr_opt.optimize(3)  # type: ignore[call-overload]
    jaxpr_opt.optimize(scaled, donate="all")  # type: ignore[call-overload]


def stages_are_there(x: jax.Array) -> None:
    assert_type(called.lower(x, 3), jax.stages.Lowered)
    assert_type(called.trace(x, 3), jax.stages.Traced)
    called.eval_shape(ARRAY, 3)
    assert_type(called.__wrapped__(x, 3), jax.Array)


def it_is_a_function(fun: Optimized[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return jax.vmap(fun)(jax.jit(fun)(x))
