"""Parts of a buffer, and of zeros with a window in them, are slices."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.windows.slice_split_arrays import SliceSplitArrays
from jaxpr_opt.testing import assert_same_derivatives, check_rewrite
from tests.loops import alone, memory

SLICE = SliceSplitArrays()


def test_parts_of_a_carry():
    def program(c, xs):
        def step(c, x):
            a, b = lax.split(c, (2, 3))
            return lax.concatenate([a * x, b], 0), None

        return lax.scan(step, c, xs)[0]

    check_rewrite(
        SLICE,
        program,
        "f32[5]",
        "f32[3]",
        diff="""
          fn (c:f32[5], xs:f32[3]) {
            c1:f32[5] = scan[3] carry(c=c) xs(x=xs) {
        -     s:f32[2], s1:f32[3] = split[axis=0] c
        +     s2:f32[2] = slice[:2] c
        +     s3:f32[3] = slice[2:] c
        -     m:f32[2] = mul s x
        +     m:f32[2] = mul s2 x
        -     c1:f32[5] = concatenate[dimension=0] m s1
        +     c1:f32[5] = concatenate[dimension=0] m s3
              yield carry(c1)
            }
            return c1
          }
        """,
    )


def test_parts_of_a_part_of_a_carry():
    """``keys, values = caches[layer]``."""

    def program(caches, xs):
        def step(caches, x):
            parts = [lax.split(caches[layer], (1, 1)) for layer in range(2)]
            return jnp.stack([jnp.concatenate([v * x, k]) for k, v in parts]), None

        return lax.scan(step, caches, xs)[0]

    graph = alone(SLICE, program, "f32[2,2,3]", "f32[3]", fires=True)
    assert not any(op.name == "split" for op in graph.walk())


def cotangents(c, xs, places):
    """What transposing `jnp.stack([a, b])[0, i]` makes."""

    def step(c, ix):
        i, x = ix
        zeros = lax.dynamic_update_slice(jnp.zeros((2, 5)), x[None, None], (0, i))
        parts = [part[0] for part in lax.split(zeros, (1, 1))]
        return (c[0] + parts[0], c[1] + parts[1]), None

    return lax.scan(step, c, (places, xs))[0]


def test_parts_of_a_window_in_zeros():
    both = lambda a, b, xs, places: cotangents((a, b), xs, places)
    alone(SLICE, both, "f32[5]", "f32[5]", "f32[3]", "i32[3]", fires=True)


def test_other_arrays():
    """An array that is new in each step, or made before the loop."""

    def program(c, w, xs):
        def step(c, x):
            a, b = lax.split(c * x, (2, 2))
            d, e = lax.split(w, (1, 3))
            return jnp.concatenate([b, a]) + jnp.sum(d) + jnp.sum(e), None

        return lax.scan(step, c, xs)[0]

    alone(SLICE, program, "f32[4]", "f32[4]", "f32[3]", fires=False)


def test_tables_that_are_stacked_to_be_read():
    """No step of the gradient makes an array as large as a table."""
    a, b, places = jnp.ones((3000, 4)), 2 * jnp.ones((3000, 4)), jnp.arange(9)

    def loss(a, b):
        def step(ab, i):
            v = jnp.stack(ab)[i % 2, 3 * i]
            return (ab[0].at[i].set(jnp.sin(v)), ab[1].at[i].multiply(2.0)), jnp.sum(v)

        return jnp.sum(lax.scan(step, (a, b), places)[1])

    assert_same_derivatives(loss, optimize(loss), a[:30], b[:30])
    for each in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        assert memory(each, a, b) < 3.2 * a.nbytes
