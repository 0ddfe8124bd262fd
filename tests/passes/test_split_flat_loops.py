"""One loop over all cells of a table becomes a loop over rows of a loop over cells."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.steps.split_flat_loops import SplitFlatLoops
from jaxpr_opt.testing import check_refuses, check_rewrite, traced
from tests.graphs import scans
from tests.loops import alone, memory

SPLIT = SplitFlatLoops(all_rings=True)
N, M = 4, 6


def alignment(scores, place=lambda k: (k // M, k % M), combine=jnp.logaddexp):
    """A table each cell of which is made of the cells above it and to the left."""

    def cell(k, table):
        i, j = place(k)
        best = combine(table[i, j + 1], table[i + 1, j])
        return table.at[i + 1, j + 1].set(combine(best, table[i, j] + scores[i, j]))

    return lax.fori_loop(0, N * M, cell, jnp.zeros((N + 1, M + 1)))[N, M]


def test_a_stream_and_a_stack():
    """(1)"""

    def program(buffer, xs):
        def step(buffer, here):
            k, x = here
            i = lax.rem(k, 3)
            old = lax.dynamic_slice(buffer, (i,), (1,))[0]
            return lax.dynamic_update_slice(buffer, (x + old)[None], (i,)), jnp.sin(old)

        return lax.scan(step, buffer, (jnp.arange(12), xs))

    check_rewrite(
        SPLIT,
        program,
        "f32[3]",
        "f32[12]",
        diff="""
          fn (buffer:f32[3], xs:f32[12]) {
            i:i32[12] = iota
        +   r1:i32[4,3] = reshape i
        +   r2:f32[4,3] = reshape xs
        -   c:f32[3], ys:f32[12] = scan[12] carry(c=buffer) xs(x=i, x1=xs) {
        +   c:f32[3], ys1:f32[4,3] = scan[4] carry(c=buffer) xs(x2=r1, x3=r2) {
        -     r:i32[] = rem x 3
        -     l:bool[] = lt r 0
        -     a:i32[] = add r 3
        -     s:i32[] = select_n l r a
        -     d:f32[1] = dynamic_slice c s
        -     s1:f32[] = squeeze d
        -     a1:f32[] = add x1 s1
        -     b:f32[1] = broadcast_in_dim a1
        -     l1:bool[] = lt r 0
        -     a2:i32[] = add r 3
        -     s2:i32[] = select_n l1 r a2
        -     d1:f32[3] = dynamic_update_slice c b s2
        -     s3:f32[] = sin s1
        +     c1:f32[3], ys1:f32[3] = scan[3] carry(c1=c) xs(x2=x2, x3=x3) {
        +       r1:i32[] = rem x2 3
        +       l2:bool[] = lt r1 0
        +       a3:i32[] = add r1 3
        +       s4:i32[] = select_n l2 r1 a3
        +       d2:f32[1] = dynamic_slice c1 s4
        +       s5:f32[] = squeeze d2
        +       a4:f32[] = add x3 s5
        +       b1:f32[1] = broadcast_in_dim a4
        +       l3:bool[] = lt r1 0
        +       a5:i32[] = add r1 3
        +       s6:i32[] = select_n l3 r1 a5
        +       d3:f32[3] = dynamic_update_slice c1 b1 s6
        +       s7:f32[] = sin s5
        +       yield carry(d3) ys(s7)
        +     }
        -     yield carry(d1) ys(s3)
        +     yield carry(c1) ys(ys1)
            }
        +   r3:f32[12] = reshape ys1
        -   return c, ys
        +   return c, r3
          }
        """,
    )


PLACES = {
    "quotient and remainder": lambda k: (k // M, k % M),
    "divmod": lambda k: divmod(k, M),
    "unravelled": lambda k: jnp.unravel_index(k, (N, M)),
    "lax": lambda k: (lax.div(k, M), lax.rem(k, M)),
    "subtracted": lambda k: (k // M, k - k // M * M),
    "backwards": lambda k: (N - 1 - k // M, M - 1 - k % M),
    "by columns": lambda k: (k % N, k // N),
    "the last cell first": lambda k: ((N * M - 1 - k) // M, (N * M - 1 - k) % M),
}


def lengths(program, *types):
    """Of the loops of an optimised gradient."""
    fast = jaxpr_opt.optimize(jax.grad(program))
    graph = import_jaxpr(traced(fast, *types))
    return {op.length for op in scans(graph)}


@pytest.mark.slow
@pytest.mark.parametrize("case", PLACES)
def test_the_gradient_of_a_table(case):
    """All cells are read and written by row and cell."""
    assert N * M not in lengths(lambda s: alignment(s, PLACES[case]), "f32[4,6]")


def test_three_indices():
    """(1) The loop over rows of planes is split again."""

    def program(x):
        def cell(k, table):
            h, i, j = k // 12, k // 4 % 3, k % 4
            at = table[h, i + 1, j + 1] + table[h + 1, i, j + 1] * table[h + 1, i + 1, j]
            return table.at[h + 1, i + 1, j + 1].set(jnp.sin(at) + x[h, i, j])

        return lax.fori_loop(0, 24, cell, jnp.ones((3, 4, 5))).sum()

    assert lengths(program, "f32[2,3,4]") == {2, 3, 4}


def update(buffer, k, x):
    """What makes XLA copy the buffer: what is read is needed after the write, too."""
    old = buffer[k]
    return buffer.at[k].set(x) + 0 * old if x.shape else (buffer.at[k].set(x * old), old)


def loop(index, length=12, size=3, **options):
    def program(xs):
        def step(buffer, here):
            k, x = here
            return update(buffer, index(k), x)

        return lax.scan(step, jnp.ones(size, xs.dtype), (jnp.arange(length), xs), **options)

    return program


@pytest.mark.parametrize("kind", ["f32", "i32", "c64", "bf16"])
@pytest.mark.parametrize("reverse", [False, True])
def test_same_bits(reverse, kind):
    alone(SPLIT, loop(lambda k: k % 3, reverse=reverse), f"{kind}[12]", fires=True)


def test_counters_of_doubles():
    with jax.enable_x64(True):
        alone(SPLIT, loop(lambda k: k % 3), "f64[12]", fires=True)


def test_a_batch():
    alone(SPLIT, jax.vmap(loop(lambda k: k % 3)), "f32[2,12]", fires=True)


def test_keys():
    """A stream and a stack of random keys."""

    def program(keys, xs):
        def step(buffer, here):
            k, key, x = here
            old = buffer[k % 3]
            return buffer.at[k % 3].set(x * old), (jax.random.split(key)[0], old)

        out, (keys, old) = lax.scan(step, jnp.ones(3), (jnp.arange(12), keys, xs))
        return out, jax.random.key_data(keys), old

    keys = jax.random.split(jax.random.key(0), 12)
    alone(SPLIT, program, keys, jnp.arange(12.0), fires=True)


STAYS = {
    "(1) asks to be unrolled": (loop(lambda k: k % 3, unroll=2), "asks to be unrolled"),
    "part of a row is left": (loop(lambda k: k % 5, size=5), None),
    "a row of each group of steps": (loop(lambda k: k // 3, size=4), "would stay"),
    "the index is out of range": (loop(lambda k: k % 3 + 1), "would be unknown"),
    "the index is from the data": (
        lambda xs: loop(lambda k: (k + xs[0].astype(int)) % 3)(xs),
        None,
    ),
    "the remainder wraps around": (loop(lambda k: (k + 1) % 3), "would be unknown"),
    "only a number is computed": (
        lambda xs: lax.scan(lambda c, k: (c + xs[k] * (k % 3), None), 0.0, jnp.arange(12))[0],
        "no buffer",
    ),
    "as many cells as steps": (loop(lambda k: k % 12, size=12), None),
}


@pytest.mark.parametrize("case", STAYS)
def test_stays(case):
    program, because = STAYS[case]
    if because is None:
        alone(SPLIT, program, "f32[12]", fires=False)
    else:
        check_refuses(SPLIT, program, "f32[12]", because=because)


def test_a_buffer_that_is_updated_in_place():
    """Cost: a nest gains nothing, unless the loop is differentiated."""

    def program(xs):
        return lax.fori_loop(0, 12, lambda k, b: b.at[k % 3].set(xs[k]), jnp.ones(3))

    check_refuses(SPLIT, program, "f32[12]", because="already updates the buffer in place")


@pytest.mark.parametrize(
    ("size", "stacked", "fires"), [(16, 1, False), (1024, 1, True), (1024, 1024, False)]
)
def test_a_ring_has_to_be_large(size, stacked, fires):
    """Cost: another loop, which starts every few steps, and what is stacked in both."""

    def program(xs):
        def step(ring, here):
            k, x = here
            old = ring[k % 2]
            return ring.at[k % 2].set(jnp.tanh(x + old)), old[:stacked]

        return lax.scan(step, jnp.zeros((2, size)), (jnp.arange(12), xs))

    alone(SplitFlatLoops(), program, jnp.arange(12.0), fires=fires, phase="final")
    if not fires:
        batch, xs = jax.vmap(program), jnp.ones((3, 12))
        assert memory(jaxpr_opt.optimize(batch), xs) <= memory(batch, xs)


@pytest.mark.parametrize("each", [lambda f: f, jax.vmap])
def test_a_ring_of_which_there_is_a_gradient(each):
    """Cost: its writes are undone, and that stores less than two loops."""

    def loss(xs):
        def step(ring, here):
            k, x = here
            ring = ring.at[k % 3].set(jnp.tanh(x * ring[k % 3]))
            return ring, ring[k % 3].sum()

        return lax.scan(step, jnp.ones((3, 1024)), (jnp.arange(60), xs))[1].sum()

    xs = jnp.arange(120.0).reshape(2, 60)
    xs = xs if each is jax.vmap else xs[0]
    because = "writes to a ring are undone for less"
    check_refuses(SplitFlatLoops(), each(jax.grad(loss)), xs, because=because)
    plain = memory(each(jax.grad(loss)), xs)
    assert memory(each(jax.grad(jaxpr_opt.optimize(loss))), xs) < plain
    assert memory(jaxpr_opt.optimize(each(jax.grad(loss))), xs) < plain


def test_gradients():
    """In either order, and forward-mode, as in JAX."""
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(N, M)).astype("f"))
    want = jax.grad(alignment)(scores)
    fast = jaxpr_opt.optimize(alignment)
    np.testing.assert_allclose(jax.grad(fast)(scores), want, rtol=1e-5)
    np.testing.assert_allclose(jaxpr_opt.optimize(jax.grad(alignment))(scores), want, rtol=1e-5)
    tangents = jax.jvp(fast, (scores,), (scores,)), jax.jvp(alignment, (scores,), (scores,))
    for found, wanted in zip(*tangents, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
