"""A row of a stack that the data pick is carried."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.carried.carry_picked_rows import CarryPickedRows
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import memory

CARRY = CarryPickedRows()
FILL = {"mode": "fill", "fill_value": 7.0}


def stacked(h, xs, reverse=False):
    """Six rows of four by eight numbers."""
    return lax.scan(lambda h, x: (jnp.sin(h + x),) * 2, h, xs, reverse=reverse)[1]


def test_one_place():
    check_rewrite(
        CARRY,
        lambda h, xs, i: lax.dynamic_slice(stacked(h, xs), (i, 0), (1, 20)),
        "f32[20]",
        "f32[6,20]",
        "i32[]",
        diff="""
            fn (h:f32[20], xs:f32[6,20], i:i32[]) {
          -   c:f32[20], ys:f32[6,20] = scan[6] carry(c=h) xs(x=xs) {
          -     a:f32[20] = add c x
          -     s:f32[20] = sin a
          -     yield carry(s) ys(s)
          -   }
              l:bool[] = lt i 0
              a:i32[] = add i 6
              s:i32[] = select_n l i a
          +   c1:i32[] = clamp 0 s 5
          +   r:i32[1] = reshape c1
          +   b:f32[20] = broadcast_in_dim 0.0
          +   i1:i32[6] = iota
          +   c2:f32[20], c3:f32[20] = scan[6] carry(c1=h, c2=b) xs(x1=xs, step=i1) {
          +     a:f32[20] = add c1 x1
          +     s:f32[20] = sin a
          +     e:bool[1] = eq r step
          +     b:bool[20] = broadcast_in_dim e
          +     s1:f32[20] = select_n b c2 s
          +     yield carry(s, s1)
          +   }
          +   r1:f32[1,20] = reshape c3
          -   d:f32[1,20] = dynamic_slice ys s 0
          +   d:f32[1,20] = dynamic_slice r1 0 0
              return d
            }
        """,
    )


def at_each_length(h, xs, n):
    """One for each row of a batch."""
    return stacked(h, xs)[n - 1, jnp.arange(4)]


def along(h, xs, n):
    """The stack is transposed first."""
    ys = jnp.swapaxes(stacked(h, xs), 0, 1)
    return jnp.take_along_axis(ys, (n - 1)[:, None, None], axis=1)


def filled(h, xs, n):
    """Places out of range are filled in."""
    return stacked(h, xs).at[n * 3 - 6, jnp.arange(4)].get(**FILL)


def clipped(h, xs, n):
    return stacked(h, xs, reverse=True).at[n * 3 - 6, jnp.arange(4)].get(mode="clip")


def across(h, xs, n):
    """Along the other axis of a row, and one element of what is left."""
    return stacked(h, xs)[jnp.repeat(n, 2), 2, jnp.arange(8)]


def mapped(h, xs, n):
    """As `vmap` makes it, with places of another type."""
    one = lambda h, xs, n: lax.dynamic_index_in_dim(stacked(h, xs), n, keepdims=False)
    return jax.vmap(one, (0, 1, 0))(h, xs, n.astype(jnp.uint8))


def mapped_places(h, xs, n):
    return jax.vmap(lambda h, xs, n: stacked(h, xs)[n - 1, 3], (0, 1, 0))(h, xs, n)


def single(h, xs, n):
    """One place for all rows, and a part of that row."""
    return stacked(h, xs)[n[1], 1:3]


def diagonal(h, xs, n):
    """One number says where the slice starts along two axes."""
    start = n[0], n[0], 0
    return lax.dynamic_slice(stacked(h, xs), start, (1, 2, 8), allow_negative_indices=False)


def several(h, xs, n):
    """Two readers."""
    ys = stacked(h, xs)
    return ys[n[0]] + ys[jnp.minimum(n[1], 3) - 1], ys[n - 1, jnp.arange(4)]


def integers(h, xs, n):
    step = lambda c, x: (c + 1, jnp.clip(c + x[0], -5, 5).astype(int))
    return lax.scan(step, h, xs)[1][n[2]]


PROGRAMS = [
    at_each_length, along, filled, clipped, across, mapped, mapped_places, single, diagonal,
    several, integers,
]  # fmt: skip
H, XS = jnp.linspace(-2.0, 3.0, 32).reshape(4, 8), jnp.cos(jnp.arange(192.0)).reshape(6, 4, 8)
PLACES = [jnp.array([1, 6, 3, 4]), jnp.array([0, 7, -2, 100])]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("n", PLACES)
@pytest.mark.parametrize("bad", [False, True])
def test_the_same_bits(program, n, bad):
    xs = XS.at[2].set(jnp.nan).at[4].set(jnp.inf) if bad else XS
    before, after = (import_jaxpr(traced(program, H, xs, n)) for _ in range(2))
    ran = run_alone((CARRY,), after).record(CARRY.name, False).rewrites
    assert_same_bits(evaluate_exactly(before, H, xs, n), evaluate_exactly(after, H, xs, n))
    assert ran


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS[:-1])
def test_derivatives(program):
    """In both orders, of a batch, and forward."""
    loss = lambda h, xs, n: sum(jnp.sum(y**2) for y in jax.tree.leaves(program(h, xs, n)))
    gradient = lambda f: jax.value_and_grad(f, (0, 1))
    forward = lambda f: lambda h, xs, n: jax.jvp(lambda *x: f(*x, n), (h, xs), (xs[0], xs))
    of_rows = lambda f: jax.vmap(gradient(f), (0, 0, None))
    rows = jnp.stack([H, H / 2]), jnp.stack([XS, XS + 1])
    for made, plain, args in [
        (jax.jit(gradient(optimize(loss))), jax.jit(gradient(loss)), (H, XS)),
        (optimize(gradient(loss)), jax.jit(gradient(loss)), (H, XS)),
        (jax.jit(forward(optimize(loss))), jax.jit(forward(loss)), (H, XS)),
        (jax.jit(of_rows(optimize(loss))), jax.jit(of_rows(loss)), rows),
    ]:
        for n in PLACES:
            assert_close(made(*args, n), plain(*args, n))


def also_summed(h, xs, n):
    """(1) Another reader."""
    ys = stacked(h, xs)
    return ys[n[0]], ys.sum()


def returned(h, xs, n):
    """(1) It is returned."""
    ys = stacked(h, xs)
    return ys, ys[n[0]]


def two_rows(h, xs, n):
    """(1) Two rows beside each other."""
    return lax.dynamic_slice_in_dim(stacked(h, xs), n[0], 2)


def two_rows_of_each(h, xs, n):
    """(1) The same of each row of a batch."""
    read = lambda ys, i: lax.dynamic_slice_in_dim(ys, i, 2)
    return jax.vmap(read, (1, 0))(stacked(h, xs), n)


def columns(h, xs, n):
    """(1) All rows are read."""
    return stacked(h, xs)[:, n[0]]


def found_in_the_loop(h, xs, n):
    """(2) The loop tells which row."""
    ys = stacked(h, xs)
    return ys[jnp.argmax(ys[n[0], 0])]


def found_by_the_state(h, xs, n):
    """(2)"""
    c, ys = lax.scan(lambda h, x: (jnp.sin(h + x),) * 2, h, xs)
    return ys[jnp.argmax(c) % 6]


def several_places(h, xs, n):
    """(3) Rows of the whole batch."""
    return stacked(h, xs)[n]


def places_and_rows(h, xs, n):
    """(3) Rows of the batch may be the same."""
    return stacked(h, xs)[n - 1, n // 2]


def few_of_the_batch(h, xs, n):
    """(3) Not all rows of the batch are read."""
    return stacked(h, xs)[n[:3], jnp.arange(3)]


def by_few_bits(h, xs, n):
    """By a number of less than a byte."""
    return lax.dynamic_index_in_dim(stacked(h, xs), n[0].astype(jnp.int4))


def turned_for_nobody(h, xs, n):
    """(1) A reader that nothing reads."""
    ys = stacked(h, xs)
    lax.transpose(ys, (1, 0, 2))
    return ys[n[0]]


def windows_of_the_batch(h, xs, n):
    """(3) A row of the batch and the next one, at one place."""
    ys = stacked(h, xs)
    return jax.vmap(lambda i, k: lax.dynamic_slice(ys, (k, i, 0), (1, 2, 8)))(jnp.arange(4), n)


def in_another_order(h, xs, n):
    """(3)"""
    return stacked(h, xs)[n - 1, jnp.arange(4)[::-1]]


REFUSED = [
    also_summed, returned, two_rows, two_rows_of_each, columns, found_in_the_loop,
    found_by_the_state, several_places, places_and_rows, few_of_the_batch,
    windows_of_the_batch, by_few_bits, turned_for_nobody, in_another_order,
]  # fmt: skip


@pytest.mark.parametrize("program", REFUSED)
def test_not_looked_at(program):
    graph = import_jaxpr(traced(program, H, XS, PLACES[0]))
    assert not run_alone((CARRY,), graph).record(CARRY.name, False).rewrites


def small(h, xs, n):
    return lax.scan(lambda h, x: (jnp.sin(h + x), h[0, 0]), h, xs)[1][n[0]]


def few_steps(h, xs, n):
    ys = stacked(h, xs[:3])
    return ys[n[0]] + ys[n[1]]


def skipping(h, xs, n):
    step = lambda c, x: (jnp.where(c[0, 0] > 0, jnp.sin(c) - 0.1, c), c)
    return lax.scan(step, h, xs)[1][n[0]]


@pytest.mark.parametrize(
    ("program", "because"),
    [(small, "is small"), (few_steps, "most of its rows"), (skipping, "skips whole steps")],
)
def test_refused(program, because):
    check_refuses(CARRY, program, H, XS, PLACES[0], because=because)


def test_the_last_word_of_each_sentence():
    """The gradient carries a row back, too."""
    w = np.eye(16, dtype=np.float32) / 2

    def loss(w, xs, lengths):
        step = lambda h, x: (jnp.tanh(h @ w + x),) * 2
        ys = lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]
        return jnp.sum(ys[lengths - 1, jnp.arange(len(lengths))] ** 2)

    args = w, np.ones((100, 8, 16), np.float32), np.arange(8, dtype=np.int32) * 9 + 1
    assert memory(optimize(loss), *args) < memory(jax.jit(loss), *args) / 8
    gradient = jax.jit(jax.grad(optimize(loss)))
    assert memory(gradient, *args) < 0.7 * memory(jax.jit(jax.grad(loss)), *args)
