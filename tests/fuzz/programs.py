"""Programs that the passes' own tests have few of: "hi" primitives of JAX in loops and conds, and
several devices in step, which exchange values by the name of an axis.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import expm

from fuzz import corpus
from fuzz.lanes import AXIS, LANES
from jaxpr_opt.bridge import compat

Array = Any
Fun = Callable[..., Any]

XS = np.linspace(-2.0, 2.0, 5, dtype=np.float32)
ARGS = (
    jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((3, 4), jnp.float32),
    jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((3,), jnp.bool_),
)  # fmt: skip
"""What the programs below take: a row, rows, a number, and a bool for each row."""


# -- hi primitives --------------------------------------------------------------------------------


def root(x: Array) -> Array:
    """A number that makes a function zero, with the derivative that this implies."""

    def solve(f: Fun, z: Array) -> Array:
        return lax.fori_loop(0, 3, lambda _, z: z - f(z) / (3 * z**2 + 1), z)

    return lax.custom_root(lambda z: z**3 + z - x[0], 0.3, solve, lambda g, y: y / g(1.0))


def solved(x: Array) -> Array:
    """The solution of a linear system, whose derivative is one of the same system."""
    return lax.custom_linear_solve(
        lambda y: y * (x**2 + 1.0), x, lambda _, b: b / (x**2 + 1.0), lambda _, b: b / (x**2 + 1.0)
    )


def steepest(x: Array) -> Array:
    """A custom rule within a custom rule."""

    @jax.custom_vjp
    def f(x: Array) -> Array:
        return jnp.sin(x)

    f.defvjp(
        lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct, -0.5, 0.5) * jnp.interp(x, XS, XS),)
    )
    return f(2 * x)


LIBRARY: dict[str, Fun] = {
    "searchsorted": lambda x: jnp.asarray(XS)[jnp.searchsorted(XS, x)] * x,
    "searchsorted of rows": lambda x: jnp.searchsorted(jnp.sort(x), x, side="right") * x,
    "interp": lambda x: jnp.interp(x, XS, XS**2),
    "digitize": lambda x: jnp.digitize(x, XS) * x,
    "histogram": lambda x: jnp.histogram(x, XS, weights=x)[0],
    "bincount": lambda x: jnp.bincount(jnp.abs(x).astype(jnp.int32), x, length=3),
    "unique": lambda x: jnp.unique(x, size=2, fill_value=0),
    "nonzero": lambda x: x[jnp.nonzero(x > 0, size=2)[0]],
    "where": lambda x: x[jnp.argwhere(x > 0, size=3, fill_value=-1)[:, 0]],
    "choice": lambda x: jax.random.choice(jax.random.key(0), x, (2,), p=jax.nn.softmax(x)),
    "categorical": lambda x: x[jax.random.categorical(jax.random.key(1), x)],
    "permutation": lambda x: jax.random.permutation(jax.random.key(2), x),
    "custom_root": root,
    "custom_linear_solve": solved,
    "custom_vjp": steepest,
    "expm": lambda x: expm(jnp.outer(x[:2], x[:2]), max_squarings=2),
    "top_k": lambda x: lax.top_k(x, 2)[0] * lax.top_k(x, 2)[1],
    "median": jnp.median,
    "logsumexp": lambda x: jax.nn.logsumexp(x) - jax.nn.softmax(x) + jax.nn.relu(x),
    "cumulative_logsumexp": lax.cumlogsumexp,
    "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x),
    "segment_sum": lambda x: jax.ops.segment_sum(x, jnp.abs(x).astype(jnp.int32), 3),
    "map": lambda x: lax.map(jnp.tanh, x),
    "conv": lambda x: jnp.convolve(x, x[:2], mode="same"),
    "clip": lambda x: jnp.clip(x, -0.5, x[0]),
    "nan_to_num": lambda x: jnp.nan_to_num(jnp.log(x)),
}  # fmt: skip
"""Functions of a row."""


def plainly(f: Fun) -> Fun:
    """As it is."""
    return lambda x, xs, n, ps: f(x)


def in_a_loop(f: Fun) -> Fun:
    """In every step of a loop, of what it carries and what it reads."""

    def step(c: Array, row: Array) -> Any:
        y = f(c + row)
        return c * 0.5 + jnp.sum(y).astype(c.dtype), y

    return lambda x, xs, n, ps: lax.scan(step, x, xs)


def where_asked(f: Fun) -> Fun:
    """In those steps of a loop for which a predicate holds."""

    def step(c: Array, each: Any) -> Any:
        p, row = each
        taken = lambda c: c * 0.5 + jnp.sum(f(c)).astype(c.dtype) + row
        return lax.cond(p, taken, lambda c: c, c), c

    return lambda x, xs, n, ps: lax.scan(step, x, (ps, xs))


def until_done(f: Fun) -> Fun:
    """In a `while`, as often as is found out."""

    def body(both: Any) -> Any:
        k, c = both
        return k + 1, c * 0.5 + jnp.sum(f(c)).astype(c.dtype)

    return lambda x, xs, n, ps: lax.while_loop(lambda b: (b[0] < n) & (b[0] < 4), body, (0, x))


def of_a_row(f: Fun) -> Fun:
    """Of a row of an array at an index."""
    return lambda x, xs, n, ps: (f(xs[n]), xs.at[n].set(x + jnp.sum(f(x)).astype(x.dtype)))


def of_a_batch(f: Fun) -> Fun:
    """Of every row; where a predicate holds."""
    each = lambda row, p: lax.cond(p, lambda r: jnp.sum(f(r)).astype(r.dtype), jnp.sum, row)
    return lambda x, xs, n, ps: jax.vmap(each)(xs, ps)


FORMS = (plainly, in_a_loop, where_asked, until_done, of_a_row, of_a_batch)


def gradient(fun: Fun) -> Fun:
    """The gradient of a program by the row and the rows."""

    def loss(x: Array, xs: Array, n: Array, ps: Array) -> Array:
        floats = [y for y in jax.tree.leaves(fun(x, xs, n, ps)) if y.dtype == jnp.float32]
        return sum(jnp.sum(jnp.sin(y)) for y in floats) * jnp.float32(1)

    return jax.grad(loss, (0, 1))


def forward(fun: Fun) -> Fun:
    """The derivative of a program in some direction."""

    def jvp(x: Array, xs: Array, n: Array, ps: Array) -> Any:
        return jax.jvp(lambda x, xs: fun(x, xs, n, ps), (x, xs), (jnp.cos(x), jnp.sin(xs)))

    return jvp


MODES: tuple[Fun, ...] = (
    lambda f: f, lambda f: f, gradient, gradient, forward, lambda f: forward(gradient(f)),
)  # fmt: skip


def from_library(count: int, rng: random.Random) -> Iterator[corpus.Seed]:
    """That many programs of the library, in some form and mode; some as they are lowered."""
    for _ in range(count):
        name, form, mode = rng.choice([*LIBRARY]), rng.choice(FORMS), rng.choice(MODES)
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            jaxpr = jax.make_jaxpr(mode(form(LIBRARY[name])))(*ARGS)
            if rng.random() < 0.5:
                jaxpr = compat.lowered(jaxpr)
            seed = corpus.from_jaxpr(jaxpr, f"{name} {form.__name__}")
            if seed.size < corpus.LARGEST:
                yield seed


# -- several devices ------------------------------------------------------------------------------


def ring(x: Array) -> Array:
    """What the device before has."""
    return lax.ppermute(x, AXIS, [(k, (k + 1) % LANES) for k in range(LANES)])


@jax.custom_vjp
def hidden(x: Array) -> Array:
    """A sum over devices within a custom rule."""
    return lax.psum(x, AXIS)


hidden.defvjp(lambda x: (hidden(x), None), lambda _, ct: (ct,))

EXCHANGES: dict[str, Fun] = {
    "psum": lambda x: lax.psum(jnp.sin(x), AXIS),
    "pmean": lambda x: lax.pmean(x, AXIS) * x,
    "pmax": lambda x: lax.stop_gradient(lax.pmax(lax.stop_gradient(x), AXIS)) - x,
    "pmin": lambda x: x - lax.pmin(lax.stop_gradient(x), AXIS),
    "all_gather": lambda x: lax.all_gather(x, AXIS).sum(0) * x,
    "axis_index": lambda x: x * (lax.axis_index(AXIS) + 1) + x[lax.axis_index(AXIS)],
    "ppermute": lambda x: ring(x) * 0.5 + x,
    "psum_scatter": lambda x: jnp.tile(lax.psum_scatter(x, AXIS, tiled=True), LANES),
    "all_to_all": lambda x: lax.all_to_all(x.reshape(LANES, -1), AXIS, 0, 0).reshape(x.shape),
    "hidden": hidden,
}


def while_any(f: Fun) -> Fun:
    """As long as any device goes on."""

    def go_on(both: Any) -> Any:
        return (both[0] < 4) & (lax.pmax(jnp.sum(both[1]), AXIS) < 3)

    def body(both: Any) -> Any:
        return both[0] + 1, f(both[1]) + 1

    return lambda x, xs, n, ps: lax.while_loop(go_on, body, (0, x))


def if_any(f: Fun) -> Fun:
    """In those steps of a loop that any device takes."""

    def step(c: Array, each: Any) -> Any:
        p, row = each
        some = lax.pmax(p.astype(jnp.int32), AXIS) > 0
        return lax.cond(some, lambda c: f(c) + row, lambda c: c, c), f(c).sum()

    return lambda x, xs, n, ps: lax.scan(step, x, (ps, xs))


def masked(f: Fun) -> Fun:
    """In all steps of a loop; what some of them make is thrown away, other ones on each device."""

    def step(c: Array, each: Any) -> Any:
        t, row = each
        return jnp.where(t < n_of(row), f(c) + row, c), c * 2

    def n_of(row: Array) -> Array:
        return (row[0] > 0).astype(jnp.int32) + 1

    return lambda x, xs, n, ps: lax.scan(step, x, (jnp.arange(3), xs))


def stopping(f: Fun) -> Fun:
    """In a loop whose steps are skipped for good, from another step on on each device."""

    def step(carry: Any, row: Array) -> Any:
        k, c = carry
        new = f(c) + row
        go_on = k < n_max
        return (jnp.where(go_on, k + 1, k), jnp.where(go_on, new, c)), jnp.where(go_on, new, 0)

    n_max = 2
    return lambda x, xs, n, ps: lax.scan(step, (n, x), xs)


EXCHANGING = (in_a_loop, of_a_row, plainly, while_any, if_any, masked, stopping, of_a_batch)


def from_devices(count: int, rng: random.Random) -> Iterator[corpus.Seed]:
    """That many programs that several devices run in step."""
    for _ in range(count):
        name, form, mode = rng.choice([*EXCHANGES]), rng.choice(EXCHANGING), rng.choice(MODES)
        fun = mode(form(EXCHANGES[name]))
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            jaxpr = jax.make_jaxpr(fun, axis_env=[(AXIS, LANES)])(*ARGS)
            origin = f"{name} {form.__name__}, on devices"
            yield corpus.Seed(corpus.import_jaxpr(jaxpr), origin, lanes=True)
