"""Programs to lint: a gradient that keeps a row a step, and things that go wrong."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax

import jaxpr_opt

STEPS, WIDTH = 64, 8
KEPT = 2 * STEPS * WIDTH * 4
"""What the gradient of `loss` keeps: `cos` and the carry, in each step."""


def loss(w, xs):
    def step(carry, x):
        h = jnp.sin(w @ carry + x)
        return h, h.sum()

    return lax.scan(step, jnp.zeros(WIDTH), xs)[1].sum()


def arguments(steps=STEPS):
    return jnp.zeros((WIDTH, WIDTH)), jnp.ones((steps, WIDTH))


@jaxpr_opt.lint_target(args=arguments, mode="gradient", name="marked", max_residual_bytes=1)
@jaxpr_opt.optimize
def above(w, xs):
    return loss(w, xs)


@jax.jit
@jaxpr_opt.lint_target(args=("f32[8,8]", "f32[4,8]"))
def below(w, xs):
    return loss(w, xs)


@jaxpr_opt.optimize
def unmarked(w, xs):
    return loss(w, xs)


anything = mock.call  # says of every attribute that it has it, `__wrapped__` too


def boom(x):
    raise ValueError("no | good *at* <all>")
