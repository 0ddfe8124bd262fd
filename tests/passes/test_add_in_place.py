"""What is read, added to and written is added to by one op."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.in_place.add_in_place import AddInPlace
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone, looped

ADD = AddInPlace()


def read(c, u, i):
    return lax.dynamic_slice(c, (i,), u.shape, allow_negative_indices=False)


def write(c, u, i):
    return lax.dynamic_update_slice(c, u, (i,), allow_negative_indices=False)


@jax.vmap
def raised(c, u, i):
    return write(c, read(c, u, i) + u, i)


def scattered(c, u, i, *, mode="drop", unique=True):
    """Two elements, at places that are known to differ or not."""
    places = jnp.stack([i, i + 9])
    old = c.at[places].get(mode="fill" if mode == "drop" else mode, fill_value=0)
    return c.at[places].set(old + u, mode=mode, unique_indices=unique)


BATCHES = "f32[3,8]", "f32[5,3,2]", "i32[5,3]"
TYPES = "f32[8]", "f32[5,2]", "i32[5]"


def test_a_batch_of_slices():
    """At one place in all rows."""

    def step(c, u, i):
        return jax.vmap(lambda c, u: write(c, read(c, u, i) + u, i))(c, u)

    check_rewrite(
        ADD,
        looped(step),
        "f32[3,8]",
        "f32[5,3,2]",
        "i32[5]",
        simplify=True,
        diff="""
          fn (c:f32[3,8], us:f32[5,3,2], idx:i32[5]) {
            c1:f32[3,8] = scan[5] carry(c=c) xs(x=us, x1=idx) {
              b:i32[1] = broadcast_in_dim x1
        -     g:f32[3,2] = gather[offset_dims=(0, 1), start_index_map=(1,), slice_sizes=(3, 2), unique_indices, indices_are_sorted, mode=clip] c b
        -     a:f32[3,2] = add g x
        -     s:f32[3,8] = scatter[update_window_dims=(0, 1), scatter_dims_to_operand_dims=(1,), indices_are_sorted, unique_indices, mode=clip] c b a
        +     s1:f32[3,8] = scatter-add[update_window_dims=(0, 1), scatter_dims_to_operand_dims=(1,), indices_are_sorted, unique_indices, mode=clip] c b x
        -     yield carry(s)
        +     yield carry(s1)
            }
            return c1
          }
        """,
    )


ADDED = {
    "each row at a place of its own": looped(raised),
    "in the other order": looped(jax.vmap(lambda c, u, i: write(c, u + read(c, u, i), i))),
    "twice": looped(lambda c, u, i: raised(raised(c, u, i), u * u, i + 1)),
    "in a while": lambda c, us, idx: lax.while_loop(
        lambda s: s[0] < 5, lambda s: (s[0] + 1, raised(s[1], us[s[0]], idx[s[0]])), (0, c)
    )[1],
}


@pytest.mark.parametrize("program", ADDED)
@pytest.mark.parametrize("dtype", ["f32", "i32", "bf16", "c64"])
def test_of_any_numbers(program, dtype):
    types = [each.replace("f32", dtype) for each in BATCHES]
    graph = alone(ADD, ADDED[program], *types, fires=True)
    assert "scatter-add" in [op.name for op in graph.walk()]


def test_places_that_differ():
    """(1, 2) Out of range nothing is added."""
    alone(ADD, looped(scattered), *TYPES, fires=True)


@pytest.mark.parametrize(("mode", "unique"), [("drop", False), ("clip", True)])
def test_places_that_may_be_the_same(mode, unique):
    """(2) What is written last stays; places that differ may be the same when they are clamped."""
    step = lambda c, u, i: scattered(c, u, i, mode=mode, unique=unique)
    check_refuses(ADD, looped(step), *TYPES, because="may be the same")


OTHERS = {
    "another place": jax.vmap(lambda c, u, i: write(c, read(c, u, i + 1) + u, i)),
    "another version": jax.vmap(lambda c, u, i: write(c * 2, read(c, u, i) + u, i)),
    "another window": jax.vmap(lambda c, u, i: write(c, read(c, u[:1], i) + u, i)),
    "clamped, and dropped": lambda c, u, i: c.at[i, 0].set(
        c.at[i, 0].get(mode="clip") + u[0, 0], mode="drop"
    ),
    "a product": jax.vmap(lambda c, u, i: write(c, read(c, u, i) * u, i)),
    "a slice, which XLA updates": lambda c, u, i: c.at[0].set(
        write(c[0], read(c[0], u[0], i[0]) + u[0], i[0])
    ),
}


@pytest.mark.parametrize("step", OTHERS)
def test_what_is_no_addition(step):
    """(1) Of what is overwritten."""
    alone(ADD, looped(OTHERS[step]), *BATCHES, fires=False)


def test_no_loop():
    alone(ADD, raised, "f32[3,8]", "f32[3,2]", "i32[3]", fires=False)


@pytest.mark.parametrize("wanted", ["what is read", "the sum"])
def test_what_is_wanted_otherwise(wanted):
    """Cost: it is computed anyway."""

    def step(c, u, i):
        old = read(c, u, i)
        return write(c, old + u, i), old if wanted == "what is read" else old + u

    def program(c, us, idx):
        def both(c, x):
            new, rest = jax.vmap(step)(c, *x)
            return new, rest

        return lax.scan(both, c, (us, idx))

    check_refuses(ADD, program, *BATCHES, because="is read elsewhere", simplify=True)


def test_the_gradient_of_a_batch():
    """It is batched when it has been optimised, and nothing else is left to do."""

    def loss(xs, idx):
        def step(total, i):
            return total + xs[i[0]] * xs[i[1]], None

        return lax.scan(step, 0.0, idx)[0]

    args = jnp.ones((3, 64)), jnp.zeros((3, 5, 2), int)
    gradient = jax.vmap(jax.grad(optimize(loss)))
    assert jnp.array_equal(gradient(*args), jax.vmap(jax.grad(loss))(*args))
    lowered = jax.jit(gradient).lower(*args).as_text()
    assert lowered.count('"stablehlo.gather"(') == 2  # of the forward loop


def test_a_sum_with_what_is_made_of_nothing():
    """(1) It reads no window."""

    def step(c, u, i):
        return c.at[jnp.stack([i, i + 9])].set(lax.iota("float32", 2) + u, mode="drop")

    alone(ADD, looped(step), *TYPES, fires=False)
