"""The chain at two buffers, and the state kept once."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from examples import donation


def test_the_chain_takes_two_buffers():
    x = jnp.ones((8, 16, 16, 1))
    matched = jaxpr_opt.optimize(donation.chain, donate="matched")
    assert donation.buffers(jax.jit(donation.chain), x) == pytest.approx(4, abs=0.1)
    assert donation.buffers(matched, x) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("mode", ["matched", "auto"])
def test_a_loop_over_the_chain_reuses_its_buffer(mode):
    chain = jaxpr_opt.optimize(donation.chain, donate=mode)

    def run():
        x = jnp.ones((8, 16, 16, 1))
        place = x.unsafe_buffer_pointer()
        for _ in range(3):
            x = chain(x)
        return place == x.unsafe_buffer_pointer(), x

    reused, x = run()
    plain = functools.reduce(lambda x, _: jax.jit(donation.chain)(x), range(3), jnp.ones(x.shape))
    assert reused
    assert jnp.array_equal(x, plain)


@pytest.mark.parametrize(("mode", "copies"), [(None, 2), ("matched", 1), ("auto", 1)])
def test_the_state_is_kept_once(mode, copies):
    step = jaxpr_opt.optimize(donation.step, donate=mode)
    assert donation.copies(step) == pytest.approx(copies, abs=0.01)


def test_all_of_the_state_is_written_in_place():
    """To the byte; besides there are gradients only, no copies."""
    args = donation.arguments(width=32)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(args[:2]))
    ours = jaxpr_opt.optimize(donation.step, donate="matched").lower(*args).compile()
    memory = ours.memory_analysis()
    assert memory.alias_size_in_bytes == size
    assert memory.temp_size_in_bytes <= size / 3


def test_steps_in_one_program():
    """Inside of `jit` XLA updates the state in place; what is left is the copy it starts from."""

    def train(params, state, batch):
        def body(carry, _):
            return donation.step(*carry, batch), None

        return lax.scan(body, (params, state), None, length=4)[0]

    args = donation.arguments(width=32)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(args[:2]))
    plain, ours = (
        f.lower(*args).compile().memory_analysis()
        for f in (jax.jit(train), jaxpr_opt.optimize(train, donate="matched"))
    )
    assert ours.alias_size_in_bytes == size
    assert ours.temp_size_in_bytes <= plain.temp_size_in_bytes
