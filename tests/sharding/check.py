"""Compare programs on 8 devices with what plain JAX makes of them: `python -m tests.sharding.check
auto`.

Values and gradients are the same, collectives do not come to more, results are divided alike, and
all of it ends: who runs this sets a time-out.
"""

import contextlib
import math
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxpr_opt
from jaxpr_opt import settings
from jaxpr_opt.testing.collectives import traffic
from tests.sharding.programs import KINDS

STEPS = 6
"""What a loop takes at most whose trip count XLA does not know."""


def scalar(fun):
    return lambda *args: jnp.sum(jnp.sin(fun(*args)))


def descent(fun):
    """A step of gradient descent: its results are divided as the arguments are."""

    def step(*args):
        wrt = tuple(i for i, x in enumerate(args) if all(map(is_float, jax.tree.leaves(x))))
        gradients = jax.grad(scalar(fun), wrt)(*args)
        return [
            jax.tree.map(lambda x, g: x - 0.1 * g, args[i], gradient)
            for i, gradient in zip(wrt, gradients, strict=True)
        ]

    return step


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def compiled(fun, args):
    return jax.jit(fun).lower(*args).compile()


def orders(fun, args):
    """Pairs of a plain and an optimised program: values, then gradients both ways."""
    optimize = jaxpr_opt.optimize
    yield "values", compiled(fun, args), compiled(optimize(fun), args)
    plain = compiled(descent(fun), args)
    yield "gradient of optimised", plain, compiled(descent(optimize(fun)), args)
    yield "optimised gradient", plain, compiled(optimize(descent(fun)), args)


def batched_orders(fun, args):
    """Pairs of programs for a batch over an explicit axis: what is optimised is one row's."""
    optimize = jaxpr_opt.optimize
    for order, made in {
        "values": jax.vmap,
        "gradients of rows": lambda f: jax.vmap(descent(f)),
        "gradient of all": lambda f: descent(jax.vmap(f)),
    }.items():
        yield order, compiled(made(fun), args), compiled(made(optimize(fun)), args)


def compare(plain, optimised, args, steps=STEPS):
    """What differs, in words; nothing where all is the same.  Loops whose trip count XLA does not
    know take that many steps.
    """
    least, most = (traffic(each.as_text(), steps) for each in (plain, optimised))
    if most.count > least.count or most.nbytes > least.nbytes:
        yield f"collectives: {most}, plain {least}"
    results = (jax.tree.leaves(each(*args)) for each in (plain, optimised))
    for want, got in zip(*results, strict=True):
        if not divided_alike(got, want):
            yield f"a result is divided as {got.sharding}, plain {want.sharding}"
        for x, y in zip(here(got), here(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


def here(x):
    """What this process has of an array."""
    if x.is_fully_addressable:
        return [np.asarray(x)]
    return [np.asarray(shard.data) for shard in x.addressable_shards]


def divided_alike(got, want):
    """Whether two arrays are divided alike; the first perhaps further, where nothing says how."""
    alike = got.sharding.is_equivalent_to(want.sharding, want.ndim)
    parts = [math.prod(each.sharding.shard_shape(each.shape)) for each in (got, want)]
    return alike or parts[0] < parts[1]


def main(kind, *names):
    """Print what differs, if anything; whether something does."""
    failures = []
    for name, (fun, args) in KINDS[kind]().items():
        if names and name not in names:
            continue
        mesh = jax.tree.leaves(args)[0].sharding.mesh
        is_explicit = kind in {"explicit", "batched"}
        pairs = batched_orders if kind == "batched" else orders
        with jax.set_mesh(mesh) if is_explicit else contextlib.nullcontext():
            for order, plain, optimised in pairs(fun, args):
                say(f"{name}, {order}")
                failures += [f"{name}, {order}: {each}" for each in compare(plain, optimised, args)]
    say("\n".join(failures) or "the same")
    return bool(failures)


def say(line):
    """Print at once: what runs when the time is up is the last line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def join(coordinator, process):
    """Be one of two processes, whose devices reach each other through gloo."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, 2, int(process))


if __name__ == "__main__":
    if "COORDINATOR" in os.environ:
        join(os.environ["COORDINATOR"], os.environ["PROCESS"])
    with settings.override(strict=True, verify=True):
        sys.exit(main(*sys.argv[1:]))
