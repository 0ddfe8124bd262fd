"""Whether XLA copies a carried array in every step: each case was timed at 4 kB and at 1 MB."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.carried.buffers import Buffer, buffer, copied_by
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced
from tests.loops import memory


def window(a, i):
    return lax.dynamic_slice(a, (i,), (3,))


def put(a, value, i):
    return lax.dynamic_update_slice(a, jnp.atleast_1d(value), (i,))


def total_of_what_is_cleared(a, s, i):
    return put(a, jnp.zeros(3), i), s + window(a, i).sum()


def kept_beside_what_it_becomes(a, s, i):
    read = a[i]
    return a.at[i].set(jnp.sin(read)), read


def read_beside_an_addition(a, s, i):
    return a.at[i].add(s), s + a[i + 1]


def swapped(a, s, i):
    return a.at[i].set(a[i + 1]).at[i + 1].set(a[i]), s


def renamed_in_between(a, s, i):
    return put(a, 0.0, i), jnp.squeeze(window(a, i)[:1])


def read_for_the_write(a, s, i):
    return put(a, jnp.tanh(window(a, i + 1)), i), s


def computed_before_the_write(a, s, i):
    new = jnp.sin(a[i] + s)
    return a.at[i + 1].set(new), new


def divided_by_one_number(a, s, i):
    """Which XLA makes a product with the reciprocal, and so cheap."""
    new = window(a, i) / s
    return put(a, new, i + 1), new.sum()


def best_of_two(a, s, i):
    found = jnp.stack([a[i], a[i + 1]])
    return put(a, found.max(), i), found.min()


def best_of_a_padded_window(a, s, i):
    found = jnp.pad(window(a, i), (1, 0))
    return put(a, found.max(), i), found.min()


def best_of_two_windows(a, s, i):
    found = jnp.concatenate([window(a, i), window(a, i + 2)])
    return put(a, found.max(), i), found.min()


def totalled(a, s, i):
    total = window(a, i).sum()
    return put(a, total, i), total


def renamed_before_the_write(a, s, i):
    read = window(a, i)
    return put(jnp.array(a, copy=True), read + s, i), read.sum()


def divided_by_many(a, s, i):
    new = window(a, i) / (window(a, i + 1) + s)
    return put(a, new, i + 1), new.sum()


def computed_at_some_cost(a, s, i):
    new = jnp.tanh(a[i] + s)
    return a.at[i + 1].set(new), new


def read_and_carried(a, s, i):
    new = a[i]
    return a.at[i + 1].set(new), new


def difference_that_is_kept(a, s, i):
    """XLA makes the difference again for the output, though a product needs it beside its row."""
    apart, row = window(a, i) - window(a, i + 3), window(a, 0)
    return put(a, (apart @ row) * row, i), s, apart


def read_after_the_write(a, s, i):
    a = a.at[i].set(s)
    return a, a[i + 1]


def only_written(a, s, i):
    return a.at[i].add(s), s + 1.0


COPIED = [
    total_of_what_is_cleared, kept_beside_what_it_becomes, read_beside_an_addition, swapped,
    renamed_in_between, renamed_before_the_write, computed_before_the_write, read_and_carried,
    difference_that_is_kept, divided_by_one_number, best_of_two, best_of_a_padded_window,
    best_of_two_windows,
]  # fmt: skip
IN_PLACE = [
    read_for_the_write, computed_at_some_cost, divided_by_many, totalled, read_after_the_write,
    only_written,
]  # fmt: skip


def found(step):
    def loop(a, s, places):
        def once(carry, i):
            a, s, *kept = step(*carry, i)
            return (a, s), kept

        return lax.scan(once, (a, s), places)

    (scan,) = [
        op
        for op in import_jaxpr(traced(loop, "f32[9]", "f32[]", "i32[4]")).walk()
        if isinstance(op, Scan)
    ]
    known = buffer(scan, scan.carries[0])
    assert isinstance(known, Buffer), known
    return known


@pytest.mark.parametrize("step", COPIED)
def test_a_read_that_is_needed_after_the_write_makes_a_copy(step):
    write = copied_by(found(step))
    assert write is not None
    assert write.operands[0].shape == (9,)


@pytest.mark.parametrize("step", IN_PLACE)
def test_a_read_for_the_write_alone_does_not(step):
    assert copied_by(found(step)) is None


@pytest.mark.parametrize(
    ("of", "copied"),
    [
        (lambda w: (w * w).sum(), False),
        (lambda w: w.max(), False),
        (lambda w: w @ w, False),
        (lambda w: w[0], True),
        (lambda w: w.sum() + w[0], True),
        (lambda w: (w.reshape(3, 1) @ w.reshape(1, 3))[0, 0], True),
    ],
)
def test_a_large_window_is_made_once_for_its_reductions(of, copied):
    def step(a, s, i):
        read = window(a, i)
        return put(a, read * 2, i + 1), of(read)

    assert copied_by(found(step)) is not None
    with using(CostModel().but(reread=12)):
        assert (copied_by(found(step)) is not None) == copied
        assert copied_by(found(total_of_what_is_cleared)) is not None  # nothing else waits for it


def test_a_way_is_walked_once_however_many_lead_to_it():
    """Each of these values is read twice for the next: 2^64 ways from the read to the write."""

    def step(a, s, i):
        row = a[i]
        for _ in range(64):
            row = row + row * s
        return a.at[i].set(row), s

    assert copied_by(found(step)) is None


def test_columns_divided_by_a_number_in_a_batch():
    """XLA reads the buffer again wherever the product with a reciprocal is used: two buffers, where
    plain JAX takes one, if that is not known.
    """

    def factor(a):
        numbers = jnp.arange(64)

        def column(k, a):
            pivot = jnp.sqrt(a[k, k])
            scaled = jnp.where(numbers >= k, a[:, k] / pivot, 0.0)
            rest = jnp.where(numbers > k, scaled, 0.0)
            return a.at[:, k].set(scaled) - rest[:, None] * rest[None, :]

        return lax.fori_loop(0, 64, column, a)

    a = jnp.broadcast_to(2 * jnp.eye(64), (3, 64, 64))
    assert memory(optimize(jax.vmap(factor)), a) < a.nbytes / 4
