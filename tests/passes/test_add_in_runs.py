"""Numbers at places that move on from step to step are added as runs."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import explain, optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.rows.add_in_runs import AddInRuns
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import FREE

RUNS = AddInRuns()
DEAR = CostModel(FREE).but(place=1e-6)
"""Finding a place takes longer than all else."""


def added(places, steps=7, **how):
    """Numbers that are added at the places of each step."""

    def program(w, xs):
        def step(t, w):
            where = places(t, jnp.arange(len(xs)), len(w))
            return w.at[where].add(xs * t, **how)

        return lax.fori_loop(0, steps, step, w)

    return program


WAYS = {
    "from the end": (lambda t, p, n: t - p, {}),
    "wrapped": (lambda t, p, n: (t + p) % n, {}),
    "wrapped twice": (lambda t, p, n: (2 * t - p) % n, {}),
    "dropped": (lambda t, p, n: jnp.where(t - p < 0, n, t - p), {"mode": "drop"}),
    "dropped behind the end": (lambda t, p, n: t + p + 3, {"mode": "drop"}),
    "in part of an array": (lambda t, p, n: jnp.where(t - p > 0, t - p, t - p + 5), {}),
    "not clamped": (lambda t, p, n: (t + p) % n, {"mode": "clip"}),
    "in a byte": (lambda t, p, n: ((t + p) % n).astype(np.uint8), {"mode": "promise_in_bounds"}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_places(way, dtype):
    """(3, 4)"""
    places, how = WAYS[way]
    with using(DEAR):
        alone(RUNS, added(places, **how), f"{dtype}[9]", f"{dtype}[5]", fires=True)


def test_places_that_are_made_of_others_many_times():
    """Each is computed once: 40 ops that read the last one twice."""

    def doubled(t, p, n):
        u = t - p
        for _ in range(40):
            u = jnp.maximum(u, u) + 0 * u
        return u % n

    with using(DEAR):
        alone(RUNS, added(doubled), "f32[9]", "f32[5]", fires=True)


def test_more_numbers_than_places():
    """(4) Some places get two numbers in a step: in the order of the numbers."""
    with using(DEAR):
        alone(RUNS, added(lambda t, p, n: (t - p) % n, steps=4), "f32[5]", "f32[7]", fires=True)


def test_wrapped():
    """(1-4)"""
    with using(DEAR):
        check_rewrite(
            RUNS,
            added(lambda t, p, n: (t - p) % n, steps=4),
            "f32[4]",
            "f32[4]",
            simplify=True,
            grad=False,
            diff="""
              fn (w:f32[4], xs:f32[4]) {
            +   i:i32[4] = iota
            -   c:i32[], c1:f32[4] = scan[4] carry(c=0, c1=w) {
            +   c:i32[], c1:f32[4] = scan[4] carry(c=0, c1=w) xs(step=i) {
                  a:i32[] = add c 1
            -     i:i32[4] = iota
            -     c2:i32[] = convert_element_type c
            -     s:i32[4] = sub c2 i
            -     r:i32[4] = rem s 4
            -     n:bool[4] = ne r 0
            -     l:bool[4] = lt r 0
            -     a1:bool[4] = and l n
            -     a2:i32[4] = add r 4
            -     s1:i32[4] = select_n a1 r a2
                  c3:f32[] = convert_element_type c
                  m:f32[4] = mul xs c3
            -     l1:bool[4] = lt s1 0
            -     a3:i32[4] = add s1 4
            -     s2:i32[4] = select_n l1 s1 a3
            -     b:i32[4,1] = broadcast_in_dim[dims=(0,)] s2
            -     s3:f32[4] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] c1 b m
            +     b1:f32[4] = broadcast_in_dim 0.0
            +     b2:f32[3] = broadcast_in_dim 0.0
            +     r1:f32[4] = rev[dimensions=(0,)] m
            +     c4:f32[11] = concatenate[dimension=0] b1 r1 b2
            +     m1:i32[] = mul step -1
            +     a4:i32[] = add m1 7
            +     d:f32[4] = dynamic_slice c4 a4
            +     a5:f32[4] = add c1 d
            +     a6:i32[] = add m1 3
            +     d1:f32[4] = dynamic_slice c4 a6
            +     a7:f32[4] = add a5 d1
            -     yield carry(a, s3)
            +     yield carry(a, a7)
                }
                return c1
              }
            """,
        )


LOOPS = {
    "clamped": added(lambda t, p, n: t + p + 3, mode="clip"),
    "mirrored": added(lambda t, p, n: jnp.abs(t - p)),
    "every second": added(lambda t, p, n: t - 2 * p + 2 * n, mode="drop"),
    "from data": added(lambda t, p, n: (jnp.array([3, 1, 2, 0, 0])[p] + t) % n),
    "many jumps": added(lambda t, p, n: (t - p) % 2),
    "the same place": added(lambda t, p, n: jnp.where(t - p < 0, 0, t - p)),
}


@pytest.mark.parametrize("why", LOOPS)
def test_other_places(why):
    """(3, 4)"""
    with using(DEAR):
        alone(RUNS, LOOPS[why], "f32[9]", "f32[5]", fires=False)


def test_outside_of_a_loop_and_in_a_branch():
    """(1)"""

    def program(w, x):
        def step(w, t):
            where = (t - jnp.arange(3)) % 5
            return lax.cond(x[0] > 0, lambda w: w.at[where].add(x), lambda w: w, w), None

        return lax.scan(step, w.at[jnp.array([3, 4, 0])].add(x), jnp.arange(4))[0]

    with using(DEAR):
        alone(RUNS, program, "f32[5]", "f32[3]", fires=False)


def test_rows():
    """(2)"""

    def program(w, x):
        def step(w, t):
            return w.at[(t - jnp.arange(3)) % 5].add(x), None

        return lax.scan(step, w, jnp.arange(4))[0]

    with using(DEAR):
        alone(RUNS, program, "f32[5,2]", "f32[3,2]", fires=False)


def test_it_gains_nothing():
    with using(CostModel.of_backend("cpu")):
        check_refuses(
            RUNS,
            added(lambda t, p, n: (t - p) % n),
            "f32[4]",
            "f32[4]",
            because="adding whole arrays takes no less time",
        )


def test_gradient_of_a_history():
    """The places were stacked by the forward loop, as small integers, or are computed again."""
    n = 512

    def loss(w, x):
        def step(y, t):
            past = jnp.where(jnp.arange(n) < t, w[(t - jnp.arange(n)) % n] * y, 0.0)
            return y.at[t].set(x[t] + jnp.sum(past)), None

        return jnp.sum(lax.scan(step, jnp.zeros(n), jnp.arange(n))[0] ** 2)

    w, x = jax.random.normal(jax.random.key(0), (2, n)) / n
    plain = jax.grad(loss, (0, 1))
    with using(CostModel.of_backend("cpu")):
        assert_close(optimize(plain)(w, x), plain(w, x))
        assert "add-in-runs" in str(explain(plain, w, x).in_full())
