"""No program takes over 2% more temporary memory than in plain JAX; XLA says how much it takes.

The programs are as users write them. `python -m bench corpus` looks at more, and at all uses.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from bench.corpus import of_examples
from bench.everyday import PROGRAMS
from bench.everyday.entry import summed
from bench.limits import is_larger, temporary_bytes
from examples import rollouts
from jaxpr_opt import optimize
from tests.sets import some

FORWARD = [
    "waves", "heat with ends", "shallow water", "heat in a medium", "sampling", "beam search",
    "spanning tree", "recurrent", "warped", "games", "bubble sort", "tridiagonal, in arrays",
    "guarded steps", "heaped", "Levinson-Durbin", "adagrad", "Durbin, by elements", "relaxed edges",
]  # fmt: skip

DIFFERENTIATED = [
    "waves", "padded heat", "skipped layers", "early exit", "recurrent", "hidden states", "warped",
    "particles", "delayed", "ended", "pondered", "saved", "charted",
    "Levinson-Durbin", "interpolated", "reservoir", "calculator",
    "moving average", "aligned", "attended until the end", "relaxed", "cascaded", "scanned layers",
    "settled", "recalled", "learned", "translated", "neighbours",
]  # fmt: skip
"""With respect to their first argument."""


def assert_not_larger(ours, plain, *args):
    """No more temporary bytes than plain JAX takes."""
    limit, taken = temporary_bytes(plain, *args), temporary_bytes(ours, *args)
    assert not is_larger(taken, limit), f"{taken:,} bytes, plain JAX {limit:,}"


@pytest.mark.parametrize("name", some(FORWARD))
def test_forward(name):
    program, args, _ = PROGRAMS[name]
    assert_not_larger(optimize(program), jax.jit(program), *args)


@pytest.mark.parametrize("name", ["embeddings, some steps", "embeddings, trained"])
def test_tables_that_steps_read_and_write(name):
    """No loop is made to end with what the indices say."""
    program, args, _ = dict(of_examples())[name]()
    assert_not_larger(optimize(program), jax.jit(program), *args)


@pytest.mark.parametrize("name", some(DIFFERENTIATED))
def test_gradients_in_either_order(name):
    program, args, _ = PROGRAMS[name]
    loss = summed(program)
    plain = jax.jit(jax.grad(loss))
    assert_not_larger(optimize(jax.grad(loss)), plain, *args)
    assert_not_larger(jax.jit(jax.grad(optimize(loss))), plain, *args)


@pytest.mark.parametrize("name", ["bubble sort", "tridiagonal, in arrays"])
def test_batches_in_either_order(name):
    """Rows lie along the second axis."""
    program, args, _ = PROGRAMS[name]
    axes = (*(None for _ in args[1:]), 0)
    rows = (*args[:-1], jnp.broadcast_to(args[-1], (3, *jnp.shape(args[-1]))))
    plain = jax.jit(jax.vmap(program, axes))
    assert_not_larger(optimize(jax.vmap(program, axes)), plain, *rows)
    assert_not_larger(jax.jit(jax.vmap(optimize(program), axes)), plain, *rows)


def test_rows_of_steps_that_nobody_takes():
    """They are zeros, spread out twice under `vmap`: the buffer starts with them."""
    policy, *rows = rollouts.arguments(128)
    rows = [jnp.broadcast_to(x, (3, *jnp.shape(x))) for x in rows]
    program = jax.vmap(rollouts.trajectories_by_hand, (None, 0, 0, 0))
    assert_not_larger(optimize(program), jax.jit(program), policy, *rows)


@pytest.mark.parametrize("name", ["running mean", "normalised", "automaton", "recurrent"])
def test_batches_along_the_second_axis(name):
    """Of arguments and results, as of arrays with time first: they stay where they are."""
    program, args, _ = PROGRAMS[name]
    spread = lambda x: jnp.repeat(jnp.expand_dims(x, min(1, x.ndim)), 3, min(1, x.ndim))
    rows = jax.tree.map(spread, args)
    axes = jax.tree.map(lambda x: min(1, x.ndim), args)
    to = jax.tree.map(lambda x: min(1, x.ndim), jax.eval_shape(program, *args))
    plain = jax.jit(jax.vmap(program, axes, to))
    assert_not_larger(jax.jit(jax.vmap(optimize(program), axes, to)), plain, *rows)


PRODUCTS = [
    "embeddings, nested, by hand", "parameters by layer, by hand",
    "running mean", "reservoir", "checkpointed layers",
]  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_a_hessian(name):
    """The gradient itself is not computed; the backward half would return it, too. A constant
    vector is known in both halves.
    """
    program, (x, *rest), _ = PROGRAMS[name] if name in PROGRAMS else dict(of_examples())[name]()
    loss, ones = summed(program), jax.tree.map(jnp.ones_like, x)

    def product(loss, x, v):
        return jax.jvp(lambda x: jax.grad(loss)(x, *rest), (x,), (v,))[1]

    plain = jax.jit(partial(product, loss))
    assert_not_larger(jax.jit(partial(product, optimize(loss))), plain, x, ones)
    known = jax.jit(lambda x: product(loss, x, jax.tree.map(jnp.ones_like, x)))
    ours = jax.jit(lambda x: product(optimize(loss), x, jax.tree.map(jnp.ones_like, x)))
    assert_not_larger(ours, known, x)
