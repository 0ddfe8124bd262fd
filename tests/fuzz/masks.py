"""Loops over padded sequences, whose steps are multiplied by a mask of floats, and such masks.

Of a mask nothing tells that it is zeros and ones: some of its numbers are weights, or not finite.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fuzz import corpus, programs

Array = Any
Fun = Callable[..., Any]
Step = Callable[[Array, Array, Array, Array], Array]

STEPS, ROWS, SIZE = 4, 2, 3
ASKING = ("ask-about-factors", "begin-at-cotangents", "exit-loop-early")
"""Passes that ask whether factors are zero."""
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)

# -- programs -------------------------------------------------------------------------------------

NEW: dict[str, Fun] = {
    "tanh": lambda h, x, w: jnp.tanh(x + h @ w),
    "plus": lambda h, x, w: h + x,
    "times": lambda h, x, w: h * x,
    "over": lambda h, x, w: x / h,
    "exp": lambda h, x, w: jnp.exp(x) * w[0, 0],
    "log": lambda h, x, w: jnp.log(x) + h,
    "softmax": lambda h, x, w: jax.nn.softmax(h @ w) * x,
    "chosen": lambda h, x, w: jnp.where(x > 0, h, x * w[0]),
    "rows": lambda h, x, w: x,
    "integers": lambda h, x, w: jnp.floor(x).astype(jnp.int32).astype(h.dtype),
}
"""What a step computes."""

USES: dict[str, Step] = {
    "blended": lambda m, new, h, x: m * new + (1 - m) * h,
    "blended back": lambda m, new, h, x: h * (1 - m) + new * m,
    "moved on": lambda m, new, h, x: h + m * (new - h),
    "added": lambda m, new, h, x: h + m * new,
    "subtracted": lambda m, new, h, x: h - new * m,
    "faded": lambda m, new, h, x: h - m * h,
    "greater": lambda m, new, h, x: jnp.maximum(h, m * jnp.abs(new)),
    "twice": lambda m, new, h, x: h + m * (m * new),
    "times": lambda m, new, h, x: h * (m * new + 1),
    "nothing": lambda m, new, h, x: new,
    "asked": lambda m, new, h, x: jnp.where(m > 0, new, h) + m * x,
}
"""What becomes of the state: where the mask is zero, most leave it alone."""

MASKS: dict[str, Fun] = {
    "given": lambda m: m,
    "compared": lambda m: (m > 0.5).astype(m.dtype),
    "product": lambda m: jnp.cumprod(m, axis=0),
    "rest": lambda m: 1 - m,
    "clipped": lambda m: jnp.clip(m, 0, 1),
    "scaled": lambda m: m * 0.5,
    "mean": lambda m: m / jnp.sum(m),
    "halves": lambda m: m.astype(jnp.bfloat16).astype(m.dtype),
    "reversed": lambda m: m[::-1],
    "square": lambda m: m * m,
}
"""What the mask is made of."""

DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "int32")


def padded(rng: random.Random) -> tuple[Fun, tuple[Any, ...], str]:
    """A loop over a batch of padded sequences, what it takes, and what it is called."""
    made = rng.choice([*MASKS, *["given"] * len(MASKS)])
    use, new = rng.choice([*USES, *["blended", "moved on", "added"] * 3]), rng.choice([*NEW])
    each = rng.choice(["rows", "rows", "rows", "step", "element", "axis", "other"])
    sums = rng.choice(["nothing", "nothing", "mean", "product", "weights", "stack"])
    reverse, nested = rng.random() < 0.25, rng.random() < 0.2
    dtype = rng.choice(DTYPES)
    state = dtype if dtype != "int32" and rng.random() < 0.5 else "float32"
    drops = rng.random() < 0.2

    def step(w: Array, c: Array, z: Array) -> Any:
        (h, total), (x, m) = c, z
        wide = m.astype(h.dtype)
        wide = wide[:, None] if each in ("rows", "other") else wide
        after = USES[use](wide, NEW[new](h, x, w), h, x).astype(h.dtype)
        match sums:
            case "mean":
                total += jnp.sum(wide * jnp.mean(after**2, -1, keepdims=True))
            case "product":
                total += jnp.sum(jnp.dot(wide.T, after))
            case "weights":
                total += jnp.sum(wide)
        rows = wide * after if sums == "stack" else None
        return (after, total.astype(h.dtype)), rows

    def program(w: Array, h: Array, xs: Array, m: Array) -> Any:
        m = MASKS[made](m).astype(m.dtype)
        m = m.T if each == "other" else m
        start = h, jnp.zeros((), h.dtype)
        loop = lambda c: lax.scan(lambda c, z: step(w, c, z), c, (xs, m), reverse=reverse)
        if nested:
            (h, total), rows = lax.scan(lambda c, _: loop(c), start, length=2)
        else:
            (h, total), rows = loop(start)
        return (total, rows) if drops else (h, total, rows)

    shapes = {"step": (STEPS,), "axis": (STEPS, ROWS, 1), "element": (STEPS, ROWS, SIZE)}
    shape = shapes.get(each, (ROWS, STEPS) if each == "other" else (STEPS, ROWS))
    types = [((SIZE, SIZE), state), ((ROWS, SIZE), state), ((STEPS, ROWS, SIZE), state)]
    args = tuple(jax.ShapeDtypeStruct(s, jnp.dtype(t)) for s, t in [*types, (shape, dtype)])
    return program, args, f"{made} mask of {dtype}, {each}, {use}, {new}, {sums}"


def gradient(fun: Fun) -> Fun:
    """The gradient of a program by all floats."""

    def loss(*args: Array) -> Array:
        floats = [y.astype(jnp.float32) for y in jax.tree.leaves(fun(*args))]
        return sum(jnp.sum(jnp.sin(y)) for y in floats) * jnp.float32(1)

    def grad(*args: Array) -> Any:
        given = [k for k, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jax.grad(loss, given)(*args)

    return grad


MODES: tuple[Fun, ...] = (lambda f: f, lambda f: f, gradient, gradient, programs.forward)


def from_masks(count: int, rng: random.Random) -> Iterator[corpus.Seed]:
    """That many loops over padded sequences, or their derivatives."""
    for _ in range(count):
        program, args, origin = padded(rng)
        mode = rng.choice(MODES)
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            yield corpus.from_jaxpr(jax.make_jaxpr(mode(program))(*args), origin)


# -- arguments ------------------------------------------------------------------------------------


def numbers(shape: tuple[int, ...], rng: np.random.Generator, is_special: bool) -> Any:
    """Zeros, and ones or weights; some of them are special."""
    axis = int(rng.integers(len(shape))) if shape else None
    match rng.choice(["ends", "ends", "ends", "any", "zeros", "ones"]):
        case "ends" if axis is not None:
            rest = tuple(n for d, n in enumerate(shape) if d != axis)
            counts = np.indices(shape)[axis]
            values = counts < np.expand_dims(rng.integers(shape[axis] + 1, size=rest), axis)
            values = np.flip(values, axis) if rng.random() < 0.2 else values
        case "zeros":
            values = np.zeros(shape)
        case "ones":
            values = np.ones(shape)
        case _:
            values = rng.random(shape) < 0.5
    zero = -0.0 if rng.random() < 0.2 else 0.0
    taken = rng.standard_normal(shape) if rng.random() < 0.3 else 1.0
    values = np.where(values, taken, zero)
    if is_special:
        values = np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, size=shape), values)
    return values
