"""What is the same in all rows of a batch is computed once."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.passes.batches.share_batched_results import ShareBatchedResults
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

SHARE = ShareBatchedResults()
ROWS = 3


def copies(w):
    return lax.broadcast(w, (ROWS,))


def positive(w):
    return w @ w.mT + 9 * jnp.eye(w.shape[-1], dtype=w.dtype)


def test_a_factorization():
    """(1) One matrix is factorized."""
    check_rewrite(
        SHARE,
        lambda w: lax.linalg.cholesky(copies(w), symmetrize_input=False),
        "f32[16,16]",
        simplify=True,
        diff="""
          fn (w:f32[16,16]) {
        +   b5:f32[1,16,16] = broadcast_in_dim w
        +   c1:f32[1,16,16] = cholesky b5
        -   b:f32[3,16,16] = broadcast_in_dim w
        +   b:f32[3,16,16] = broadcast_in_dim c1
        -   c:f32[3,16,16] = cholesky b
            i:i32[16] = iota
            b1:i32[16,16] = broadcast_in_dim[dims=(0,)] i
            b2:i32[16,16] = broadcast_in_dim i
            g:bool[16,16] = ge b1 b2
            b3:bool[3,16,16] = broadcast_in_dim g
            b4:f32[3,16,16] = broadcast_in_dim 0.0
        -   s:f32[3,16,16] = select_n b3 b4 c
        +   s:f32[3,16,16] = select_n b3 b4 b
            return s
          }
        """,
    )


FIRES = {
    "a reduction": lambda w: jnp.sin(copies(w)).sum(1),
    "sums so far": lambda w: jnp.cumsum(copies(w), 2),
    "a sort": lambda w: lax.sort(copies(w), dimension=1),
    "a sort of two": lambda w: lax.sort([copies(w), copies(-w)], dimension=1),
    "a batch last": lambda w: lax.reduce_max(copies(w).transpose(1, 2, 0), (0,)),
    "a batch of batches": lambda w: lax.broadcast(w, (ROWS, 2)).max(2),
    "what is solved": lambda w: lax.linalg.triangular_solve(copies(positive(w)), copies(w)),
    "a factorization of two results": lambda w: lax.linalg.eigh(copies(positive(w)))[1],
    "pivots": lambda w: lax.linalg.lu(copies(positive(w))),
}


@pytest.mark.parametrize("program", FIRES.values(), ids=FIRES)
def test_it_gives_the_same(program):
    """(1) Of every op, along every axis."""
    alone(SHARE, program, "f32[96,96]", fires=True)


STAYS = {
    "rows that differ": lambda w: jnp.cumsum(copies(w) * jnp.arange(3.0)[:, None, None], 1),
    "one operand of two": lambda w: lax.linalg.triangular_solve(
        copies(positive(w)), copies(w) * jnp.arange(3.0)[:, None, None]
    ),
    "rows that are added up": lambda w: copies(w).sum(0),
    "sums along the copies": lambda w: jnp.cumsum(copies(w), 0),
    "elementwise": lambda w: jnp.sin(copies(w)),
}


@pytest.mark.parametrize("program", STAYS.values(), ids=STAYS)
def test_what_stays(program):
    """(1)"""
    alone(SHARE, program, "f32[96,96]", fires=False)


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_on_devices(axis):
    """(2) Each device holds some of the copies."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    where = NamedSharding(mesh, PartitionSpec(axis, None, None))

    def program(w):
        spread = lax.broadcast_in_dim(w, (ROWS, *w.shape), (1, 2), out_sharding=where)
        return jnp.cumsum(spread, 1)

    with jax.set_mesh(mesh):
        alone(SHARE, program, "f32[96,96]", fires=axis is None)


@pytest.mark.parametrize("says", [False, True])
def test_sums_that_say_where_they_are(says):
    """(2)"""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    where = NamedSharding(mesh.abstract_mesh, PartitionSpec(None, None)) if says else None

    def program(w):
        return lax.reduce_sum_p.bind(copies(w), axes=(1,), out_sharding=where)

    with jax.set_mesh(mesh):
        alone(SHARE, program, "f32[96,96]", fires=not says)


def test_small_arrays_stay():
    check_refuses(SHARE, lambda w: copies(w).sum(1), "f32[4,4]", because="takes no longer")


@pytest.mark.parametrize("order", ["optimize(grad)", "grad(optimize)"])
def test_a_system_under_a_condition(order):
    """One matrix is factorized for the batch."""

    def loss(w, xs, ps):
        def row(x, p):
            solve = lambda x: jax.scipy.linalg.cho_solve(
                jax.scipy.linalg.cho_factor(positive(w)), x
            )
            return lax.cond(p, solve, lambda x: x, x)

        return jnp.sum(jax.vmap(row)(xs, ps) ** 2)

    keys = jax.random.split(jax.random.key(0))
    given = (
        jax.random.normal(keys[0], (16, 16)) / 4,
        jax.random.normal(keys[1], (8, 16)),
        jnp.arange(8) % 3 > 0,
    )
    grad = jax.grad(loss)
    ours = optimize(grad) if order == "optimize(grad)" else jax.grad(optimize(loss))
    compiled = jax.jit(ours).lower(*given).compile()
    factorized = [line for line in compiled.as_text().splitlines() if "potrf" in line]
    assert factorized
    assert not any("f32[8,16,16]" in line for line in factorized)
    assert_close(compiled(*given), grad(*given))
