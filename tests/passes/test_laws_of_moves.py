"""Every law of `remove-idle-moves`, on all pairs of moves of arrays of several shapes.

Nothing here knows what a law says: moves follow moves, and what a law answers is evaluated.
"""

from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.remove_idle_moves import LAWS, RemoveIdleMoves
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, run_alone, traced

SHAPES = [(), (2, 3), (1, 2, 1), (0, 2)]
RESHAPED = [(), (1,), (6,), (2, 3), (2, 1, 3), (1, 2, 1), (2,), (2, 0)]
MARKERS = ("name", "stop_gradient")


def moves(x):
    """What may become of an array."""
    axes, starts = range(x.ndim), [np.int32(1)] * x.ndim
    yield from (lax.reshape(x, shape) for shape in RESHAPED if prod(shape) == x.size)
    yield from (lax.transpose(x, order) for order in permutations(axes) if x.ndim < 4)
    yield lax.reshape(x, (x.size,), dimensions=tuple(reversed(axes)))
    ones = [axis for axis in axes if x.shape[axis] == 1]
    yield from (lax.squeeze(x, some) for some in ([], ones, ones[:1], ones[1:]))
    yield from (lax.expand_dims(x, [axis]) for axis in (0, x.ndim))
    yield from (
        lax.broadcast_in_dim(x, (2, *x.shape), [axis + 1 for axis in axes]),
        lax.copy_p.bind(x),
        lax.transpose_p.bind(x, permutation=tuple(axes)),
    )
    yield lax.broadcast_in_dim(x, (*x.shape, 2), list(axes))
    yield from (
        lax.reduce_sum_p.bind(x, axes=(), out_sharding=None),
        lax.reduce_max_p.bind(x, axes=(), out_sharding=None),
    )
    yield from (lax.rev(x, some) for some in ([], [*axes], [*axes][:1], [*axes][1:]))
    if x.ndim:
        yield lax.slice(x, [0] * x.ndim, x.shape)
        yield lax.slice(x, [0] * x.ndim, x.shape, [2] * x.ndim)
        yield from (lax.concatenate(parts, 0) for parts in ([x, x[:0]], [x[:0], x]))
        yield lax.dynamic_slice(x, starts, x.shape)
        yield lax.split(x, [x.shape[0]])[0]
    yield from (lax.pad(x, np.float32(0), [(low, 0, 0)] * x.ndim) for low in (0, 1))
    yield lax.dynamic_update_slice(x, lax.neg(x), starts)


def written_between(x):
    """Windows that are written between two transpositions."""
    orders = [*permutations(range(x.ndim))] if x.ndim > 1 else []
    for there, back in product(orders, repeat=2):
        turned = lax.transpose(x, there)
        written = lax.dynamic_update_slice(turned, -turned[:1], [np.int32(1)] * x.ndim)
        yield lax.transpose(written, back)


def written_and_spread(x):
    """A window in zeros, repeated and added to others."""
    if x.ndim:
        zeros = np.zeros((12, *x.shape), x.dtype)
        written = lax.dynamic_update_slice(zeros, -x[None], [np.int32(1)] * zeros.ndim)
        step = lambda _, c: c + lax.broadcast(written, (2,))
        yield lax.fori_loop(0, 2, step, lax.broadcast(zeros, (2,)))


def written_and_moved_back(x):
    """Elements that a loop writes to what it carries, while that is moved."""
    if not (x.ndim and x.size):
        return
    every = [*range(x.ndim)]
    pairs = [
        (lambda c: lax.reshape(c, (x.size,)), lambda c: lax.reshape(c, x.shape)),
        (lambda c: lax.expand_dims(c, [0]), lambda c: lax.squeeze(c, [0])),
        (lambda c: lax.rev(c, every), lambda c: lax.rev(c, every)),
    ]
    if x.shape[0] == 1:
        spread = lambda c: lax.broadcast_in_dim(c, x.shape, every[1:])
        pairs.append((lambda c: lax.squeeze(c, [0]), spread))
    for away, back in pairs:

        def step(i, c, away=away, back=back):
            moved = away(c)
            element = lax.full((1,) * moved.ndim, 7, c.dtype)
            return back(lax.dynamic_update_slice(moved, element, [i] * moved.ndim))

        yield lax.fori_loop(0, 2, step, x)


def counted(x):
    """Numbers of rows along each axis."""
    yield from (lax.broadcasted_iota(x.dtype, x.shape, axis) for axis in range(x.ndim))


def reduced(x):
    """Over axes of single rows, and over others."""
    ones = tuple(axis for axis, n in enumerate(x.shape) if n == 1)
    for axes in {ones, ones[:1], tuple(range(x.ndim))} if x.size else ():
        yield from (
            lax.reduce_sum_p.bind(x, axes=axes, out_sharding=None),
            lax.reduce_max_p.bind(x, axes=axes, out_sharding=None),
            lax.reduce_min_p.bind(x, axes=axes, out_sharding=None),
        )


def program(x):
    once = [twice for once in moves(x) for twice in moves(once)]
    written = *written_between(x), *written_and_spread(x), *written_and_moved_back(x)
    return [*once, *written, *counted(x), *reduced(x)]


@pytest.mark.slow
def test_a_law_says_what_is_so():
    held = set()
    for shape in SHAPES:
        x = np.arange(1, prod(shape) + 1, dtype=np.float32).reshape(shape)
        before, after = (import_jaxpr(traced(program, x)) for _ in range(2))
        ops = [op for op in before.walk() if op.name in LAWS and op.result.uses]
        held |= {(op.name, law) for op in ops for law in LAWS[op.name] if law(op) is not None}
        run_alone((RemoveIdleMoves(),), after)
        assert_same_bits(evaluate_exactly(before, x), evaluate_exactly(after, x), f"of {shape}")
    every = {(name, law) for name, laws in LAWS.items() for law in laws if name not in MARKERS}
    assert every == held
