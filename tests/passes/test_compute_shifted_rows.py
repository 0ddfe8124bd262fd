"""Rows that only move on from step to step are made once."""
# ruff: noqa: E501 - the parameters of a gather

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.passes.rows.compute_shifted_rows import ComputeShiftedRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.graphs import scans
from tests.loops import alone, measured
from tests.prices import FREE

SHIFTED = ComputeShiftedRows()
DEAR = CostModel(FREE).but(place=1e-6, transcendental=1e-6, first_level=1 << 20)
"""Finding a place, and computing a function, takes longer than all else."""


def beside(program):
    """The program, and a gradient of something else: nothing differentiates it any more."""
    return lambda *args: (program(*args), jax.grad(jnp.sin)(0.5))


def history(weights):
    """A sum over all that was written before, by weights."""

    def program(w, x):
        def step(y, t):
            past = jnp.where(jnp.arange(len(x)) < t, weights(w, t, len(x)) * y, 0.0)
            return y.at[t].set(x[t] + jnp.sum(past)), None

        return lax.scan(step, jnp.zeros_like(x), jnp.arange(len(x)))[0]

    return program


def wrapped(w, t, n):
    return w[(t - jnp.arange(n)) % n]


WAYS = {
    "wrapped": wrapped,
    "from the end": lambda w, t, n: w[t - jnp.arange(n)],
    "mirrored": lambda w, t, n: w[jnp.abs(t - jnp.arange(n))],
    "clamped": lambda w, t, n: jnp.take(w, t - jnp.arange(n), mode="clip"),
    "filled": lambda w, t, n: w.at[t - 2 * n + jnp.arange(n)].get(mode="fill", fill_value=2.0),
    "two places a step": lambda w, t, n: w[(2 * t + jnp.arange(n)) % n],
    "every second": lambda w, t, n: w[(2 * t - 2 * jnp.arange(n)) % n],
    "a function": lambda w, t, n: jnp.exp(-w[0] * jnp.abs(t - jnp.arange(n))),
    "of fractional order": lambda w, t, n: jnp.where(
        t > jnp.arange(n), jnp.maximum(t - jnp.arange(n), 1.0) ** w[1], w[2]
    ),
    "of a byte": lambda w, t, n: w[jnp.abs(t - jnp.arange(n)).astype(np.uint8)],
}


@pytest.mark.parametrize("way", WAYS)
def test_histories(way):
    """(1, 2)"""
    with using(DEAR):
        graph = alone(SHIFTED, beside(history(WAYS[way])), "f32[9]", "f32[9]", fires=True)
    assert not {"gather", "exp", "pow"} & inside(graph)


@pytest.mark.parametrize("way", ["wrapped", "mirrored", "a function"])
def test_gradients(way):
    """In both orders, and of a batch."""
    program = history(WAYS[way])
    w, x = jax.random.uniform(jax.random.key(0), (2, 12))

    def loss(f):
        return lambda w, x: jnp.sum(f(w, x) ** 2)

    plain = jax.grad(loss(program), (0, 1))
    with using(DEAR):
        for ours in (optimize(plain), jax.grad(loss(optimize(program)), (0, 1))):
            assert_close(ours(w, x), plain(w, x))
        batch = jnp.stack([w, x]), jnp.stack([x, w])
        assert_close(optimize(jax.vmap(plain))(*batch), jax.vmap(plain)(*batch))


def inside(graph):
    """The names of the ops in loops of which anything is read."""
    ops = [op for scan in scans(graph) for op in scan.body.walk()]
    return {op.name for op in ops if any(value.uses for value in op.results)}


def test_circulant():
    """(1-4) One array, and a window of it in each step."""
    with using(DEAR):
        check_rewrite(
            SHIFTED,
            beside(lambda c, x: lax.map(lambda i: c[(i - jnp.arange(4)) % 4] * x, jnp.arange(5))),
            "f32[4]",
            "f32[4]",
            simplify=True,
            diff="""
              fn (args_0:f32[4], args_1:f32[4]) {
                i:i32[5] = iota
            +   i1:i32[8] = iota
            +   m1:i32[8] = mul i1 -1
            +   a3:i32[8] = add m1 4
            +   r1:i32[8] = rem a3 4
            +   l2:bool[8] = lt r1 0
            +   n1:bool[8] = ne r1 0
            +   a4:bool[8] = and l2 n1
            +   a5:i32[8] = add r1 4
            +   s3:i32[8] = select_n a4 r1 a5
            +   l3:bool[8] = lt s3 0
            +   a6:i32[8] = add s3 4
            +   s4:i32[8] = select_n l3 s3 a6
            +   b1:i32[8,1] = broadcast_in_dim[dims=(0,)] s4
            +   g1:f32[8] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=promise_in_bounds] args_0 b1
                ys:f32[5,4] = scan[5] xs(x=i) {
            -     i:i32[4] = iota
            -     s:i32[4] = sub x i
            -     r:i32[4] = rem s 4
            -     n:bool[4] = ne r 0
            -     l:bool[4] = lt r 0
            -     a:bool[4] = and l n
            -     a1:i32[4] = add r 4
            -     s1:i32[4] = select_n a r a1
            -     l1:bool[4] = lt s1 0
            -     a2:i32[4] = add s1 4
            -     s2:i32[4] = select_n l1 s1 a2
            -     b:i32[4,1] = broadcast_in_dim[dims=(0,)] s2
            -     g:f32[4] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=promise_in_bounds] args_0 b
            +     m1:i32[] = mul x -1
            +     a3:i32[] = add m1 4
            +     d:f32[4] = dynamic_slice g1 a3
            -     m:f32[4] = mul g args_1
            +     m:f32[4] = mul d args_1
                  yield ys(m)
                }
                c:f32[] = cos 0.5
                return ys, c
              }
            """,
        )


def test_rows_of_a_table_backwards():
    """(1, 2) Rows of several numbers, which move the other way; a number that varies elsewhere."""

    def program(table, scale):
        def step(t):
            near = jnp.clip(jnp.arange(6) - t, -2, 2) + 2
            return table[near] * jnp.exp(scale)[None]

        return lax.map(step, jnp.arange(7), batch_size=None)

    table, scale = jnp.arange(15.0).reshape(5, 3), jnp.arange(3.0)
    with using(DEAR):
        graph = alone(SHIFTED, beside(program), table, scale, fires=True)
    assert "f32[12,3] = gather" in to_text(graph)


LOOPS = {
    "the places come from data": lambda w: lax.map(lambda s: w[(s - jnp.arange(4)) % 4], PLACES),
    "two speeds": lambda w: lax.map(
        lambda t: jnp.exp(w[0] * (t - jnp.arange(4)) * (2 * t - jnp.arange(4))), jnp.arange(5)
    ),
    "of another number in each step": lambda w: lax.map(
        lambda x: jnp.exp(x[1] * (x[0] - jnp.arange(4))), (jnp.arange(4), w)
    ),
    "of another number in each row": lambda w: lax.map(
        lambda t: jnp.exp(w * (t - jnp.arange(4))), jnp.arange(5)
    ),
    "of a table that changes": lambda w: lax.scan(
        lambda w, t: (w[(t - jnp.arange(4)) % 4] * 0.5, None), w, jnp.arange(5)
    )[0],
    "no step": lambda w: lax.scan(
        lambda t, _: (t + 1, w[(t - jnp.arange(4)) % 4]), 0, None, length=0
    )[1],
    "a third of a place": lambda w: lax.map(
        lambda t: w[(t - 3 * jnp.arange(4)) % 4], jnp.arange(5)
    ),
}
PLACES = np.array([3, 1, 0, 2, 2], np.int32)


@pytest.mark.parametrize("why", LOOPS)
def test_rows_that_do_not_move_on(why):
    """(1, 2, 4)"""
    with using(DEAR):
        alone(SHIFTED, beside(LOOPS[why]), "f32[4]", fires=False)


def test_a_jump_stays_in_the_step():
    """(3) It would see other bits than the step's own `exp`."""

    def program(w):
        def step(t):
            return jnp.exp(-jnp.floor(jnp.exp(w[0] * (t - jnp.arange(4)))))

        return lax.map(step, jnp.arange(5))

    with using(DEAR):
        graph = alone(SHIFTED, beside(program), jnp.ones(1), fires=True)
    assert not {"exp", "floor"} <= {op.name for op in graph.body.ops}


def test_it_waits_for_the_gradient():
    """The cotangents of a table are added up in the order of the steps."""
    with using(DEAR):
        check_refuses(
            SHIFTED,
            lambda c: lax.map(lambda i: c[(i - jnp.arange(4)) % 4], jnp.arange(5)),
            "f32[4]",
            because="the cotangents of what the rows are made of would be added up in another order",
        )


@pytest.mark.parametrize(("n", "steps"), [(4, 4), (16, 40_000)])
def test_it_gains_nothing(n, steps):
    """Few places to find; an array that is much longer than what a step makes."""
    with using(CostModel.of_backend("cpu")):
        check_refuses(
            SHIFTED,
            beside(
                lambda c: lax.map(lambda i: jnp.sum(c[(i - jnp.arange(n)) % n]), jnp.arange(steps))
            ),
            f"f32[{n}]",
            because="making the rows in each step takes no longer, or less memory",
        )


def test_less_memory_and_no_gathers():
    """The gradient of a history stores no weights, and looks none up in its steps."""
    w, x = jnp.ones(512) / 512, jnp.ones(512)
    plain = jax.grad(lambda w, x: jnp.sum(history(wrapped)(w, x)), (0, 1))
    _, temp = measured(optimize(plain), w, x)
    _, temp_before = measured(plain, w, x)
    assert temp < temp_before / 20
