"""Gradients of loops with branches, after all passes on residuals: same bits, no weight stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Remat
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.drop_dummy_residuals import DropDummyResiduals
from jaxpr_opt.passes.push_remat_into_branches import PushRematIntoBranches
from jaxpr_opt.passes.residuals.hoist_invariant_residuals import HoistInvariantResiduals
from jaxpr_opt.passes.residuals.narrow_residuals import NarrowResiduals
from jaxpr_opt.passes.steps.fuse_branches import FuseBranches
from jaxpr_opt.testing import assert_same_bits, assert_same_derivatives, evaluate_exactly, run_alone
from tests.graphs import scans

PASSES = (
    *CLEANUP,
    HoistInvariantResiduals(),
    DropDummyResiduals(),
    NarrowResiduals(),
    FuseBranches(),
    PushRematIntoBranches(),
)

WIDTH = 5
"""A size nothing else has: an array with two such axes is a weight."""

W = jnp.asarray(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)) * 0.4, jnp.float32)
X = jnp.linspace(-1.0, 1.0, WIDTH)


def layer(w, x):
    return jnp.tanh(x @ w + 0.1)


def skipping(w, x, n):
    """One loop that stops early."""

    def step(c, _):
        return lax.cond(c[1] < n, lambda c: (layer(w, c[0]), c[1] + 1), lambda c: c, c), None

    return jnp.sum(lax.scan(step, (x, 0), None, length=4)[0][0])


def nested(w, x, n, checkpointed=False):
    """The program of https://github.com/jax-ml/jax/issues/8239."""

    def level(c, length):
        if length == 1:
            return layer(w, c[0]), c[1] + 1

        def step(c, _):
            return lax.cond(c[1] < n, lambda c: level(c, length // 2), lambda c: c, c), None

        step = jax.checkpoint(step) if checkpointed else step
        return lax.scan(step, c, None, length=2)[0]

    return jnp.sum(level((x, 0), 8)[0])


def checkpointed(w, x, n):
    return nested(w, x, n, checkpointed=True)


def network(w, x, n):
    """A recurrent network on a sequence of `n` steps, its states summed."""

    def step(c, y):
        i, h = c
        h = lax.cond(i < n, lambda: layer(w, h) + y, lambda: h)
        return (i + 1, h), h

    return jnp.sum(lax.scan(step, (0, x), jnp.arange(3.0))[1])


def switching(w, x, n):
    """Three branches, one of which does nothing."""

    def step(c, i):
        branches = [lambda: layer(w, c), lambda: jnp.sin(c @ w) * c, lambda: c]
        return lax.switch((i + n) % 3, branches), None

    return jnp.sum(lax.scan(step, x, jnp.arange(4))[0])


def within_remat(w, x, n):
    return jax.checkpoint(skipping)(w, x, n)


def batch(f):
    """A batch, every row of which stops at its own time."""
    return lambda w, x, n: jnp.sum(
        jax.vmap(f, (None, 0, 0))(w, jnp.stack([x, x * 0.5, -x]), jnp.stack([n, n + 1, n * 0]))
    )


PROGRAMS = {
    "skipping": skipping,
    "nested": nested,
    "checkpointed": checkpointed,
    "network": network,
    "switching": switching,
    "within remat": within_remat,
    "batch skipping": batch(skipping),
    "batch of networks": batch(network),
}


def optimized(program, *args):
    jaxpr = jax.make_jaxpr(program)(*args)
    graph = import_jaxpr(jaxpr)
    run_alone(PASSES, graph)
    return jaxpr, graph


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("n", [0, 2, 9])
def test_gradient(name, n):
    """The same bits, and no array of weights among the stacks."""
    gradient = jax.value_and_grad(PROGRAMS[name], argnums=(0, 1))
    args = W, X, jnp.int32(n)
    jaxpr, graph = optimized(gradient, *args)
    assert_same_bits(evaluate_exactly(jaxpr, *args), evaluate_exactly(graph, *args))
    stacks = [s.result.shape for op in scans(graph) for s in op.stacks]
    assert not [shape for shape in stacks if shape.count(WIDTH) > 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skipping", "network", "batch skipping"])
def test_derivatives_of_the_gradient(name):
    """What comes out may be differentiated once more."""

    def norm(w, x):
        return jnp.sum(jax.grad(PROGRAMS[name])(w, x, jnp.int32(2)) ** 2)

    jaxpr, graph = optimized(norm, W, X)
    before, after = (jax.extend.core.jaxpr_as_fun(each) for each in (jaxpr, export(graph)))
    assert_same_derivatives(before, after, W, X)


def test_checkpointed_steps_are_recomputed_in_their_branch_only():
    """Every remat is inside a branch, and none has a branch at its top."""
    _, graph = optimized(jax.grad(checkpointed), W, X, jnp.int32(2))
    remats = [op for op in graph.walk() if isinstance(op, Remat)]
    assert remats
    assert all(op.parent is not None and op.parent.name == "cond" for op in remats)
