"""Rows that were just written are read back from the rows alone."""
# ruff: noqa: E501 - the parameters of a scatter

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import CPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.writes import forward_repeated_rows
from jaxpr_opt.passes.writes.forward_repeated_rows import ForwardRepeatedRows
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

FORWARD = ForwardRepeatedRows()
N = 40


MODEL = CostModel(dataclasses.replace(CPU, kernel=0.0))
"""Arrays here are small: starting an op takes no time."""
MARKED = MODEL.but(predicate=1.0)
"""Comparing all pairs of windows takes too long."""


def read_back(at, rows, *, n=N, write="drop", read="promise_in_bounds", column=False):
    """Rows that are written to an array, read back."""
    to = jnp.zeros((n, *rows.shape[1:]), rows.dtype).at
    places = (at, jnp.zeros_like(at)) if column else at
    written = to[places].set(rows, mode=write, wrap_negative_indices=False)
    return written.at[places].get(mode=read, wrap_negative_indices=False)


def test_rows_are_read_back():
    check_rewrite(
        FORWARD,
        read_back,
        "i32[3]",
        "u32[3,2]",
        simplify=True,
        in_range=True,
        diff="""
          fn (at:i32[3], rows:u32[3,2]) {
        -   b:u32[40,2] = broadcast_in_dim 0
            b1:i32[3,1] = broadcast_in_dim[dims=(0,)] at
        -   s:u32[40,2] = scatter[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b b1 rows
        +   b2:i32[3,1,1] = broadcast_in_dim[dims=(0, 2)] b1
        +   b3:i32[1,3,1] = broadcast_in_dim b1
        +   e:bool[3,3,1] = eq b2 b3
        +   r:bool[3,3] = reduce_and[axes=(2,)] e
        +   i:i32[3] = iota
        +   b4:i32[3,3] = broadcast_in_dim i
        +   b5:i32[3,3] = broadcast_in_dim 3
        +   s1:i32[3,3] = select_n r b5 b4
        +   r1:i32[3] = reduce_min[axes=(1,)] s1
        +   b6:u32[3,2] = broadcast_in_dim 0
        +   b7:i32[3,1] = broadcast_in_dim[dims=(0,)] r1
        +   s2:u32[3,2] = scatter[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b6 b7 rows
        -   g:u32[3,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=promise_in_bounds] s b1
        +   g:u32[3,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=promise_in_bounds] s2 b7
            return g
          }
        """,
    )


@pytest.mark.parametrize("at", [[0, 1, 2], [5, 5, 5], [1, 7, 1], [7, 1, 1], [39, 0, 39]])
@pytest.mark.parametrize("dtype", ["uint32", "float32", "int8", "bool"])
@pytest.mark.parametrize("write", ["drop", "clip", "promise_in_bounds"])
def test_places_that_are_the_same(at, dtype, write):
    """(1, 3, 4) The last row that is written to a place stays."""
    rows = jnp.asarray([[0.0, 1.0], [2.0, 0.0], [jnp.nan, 5.0]]).astype(dtype)
    for model in (MODEL, MARKED):
        with using(model):
            program = lambda i, v: read_back(i, v, write=write)
            alone(FORWARD, program, jnp.asarray(at), rows, fires=True)


def test_places_that_are_clamped():
    """(1) As the read's are."""
    rows = jnp.arange(6.0).reshape(3, 2)
    for at in ([39, 40, 50], [-1, 0, -7], [50, 3, 39]):
        program = lambda i, v: read_back(i, v, write="clip")
        alone(FORWARD, program, jnp.asarray(at), rows, fires=True)


def batched(at, rows):
    return jax.vmap(read_back)(at, rows)


def of_two_axes(at, rows):
    """A place of each row of another axis."""
    k = jnp.arange(3)
    z = jnp.zeros((3, N, 2), rows.dtype)
    z = z.at[k, at].set(rows, mode="drop", wrap_negative_indices=False)
    return z.at[k, at].get(mode="promise_in_bounds", wrap_negative_indices=False)


def columns(at, rows):
    z = (
        jnp.zeros((2, N), rows.dtype)
        .at[:, at]
        .set(rows.T, mode="drop", wrap_negative_indices=False)
    )
    return z.at[:, at].get(mode="promise_in_bounds", wrap_negative_indices=False)


@pytest.mark.parametrize(
    ("program", "batch"),
    [(batched, (2,)), (of_two_axes, ()), (columns, ())],
    ids=lambda x: str(x)[:14],
)
def test_other_axes(program, batch):
    rng = np.random.default_rng(0)
    for _ in range(3):
        at = jnp.asarray(rng.integers(0, 4, (*batch, 3)), jnp.int32)
        rows = jnp.asarray(rng.normal(size=(*batch, 3, 2)), jnp.float32)
        alone(FORWARD, program, at, rows, fires=True)


def windows(at, rows):
    """Some overlap in part."""
    numbers = lax.ScatterDimensionNumbers((1,), (), (0,))
    z = lax.scatter(jnp.zeros(N), at[:, None], rows, numbers, mode="drop")
    there = lax.GatherDimensionNumbers((1,), (), (0,))
    return lax.gather(z, at[:, None], there, (2,), mode="promise_in_bounds")


def kept(at, rows):
    """The array is a result, too."""
    written = jnp.zeros((N, 2)).at[at].set(rows, mode="drop", wrap_negative_indices=False)
    return written, written.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        pytest.param(lambda i, v: read_back(i, v, read="fill"), "clamped or filled", id="(2)"),
        pytest.param(windows, "overlap in part", id="(3)"),
        pytest.param(kept, "is read elsewhere", id="read elsewhere"),
        pytest.param(lambda i, v: read_back(i, v, n=3), "takes as long as", id="few rows"),
    ],
)
def test_rows_that_are_read_from_the_array(program, because):
    check_refuses(FORWARD, program, "i32[3]", "f32[3,2]", because=because)


def test_an_array_that_is_filled_fast():
    with using(CostModel()):
        check_refuses(
            FORWARD,
            read_back,
            "i32[3]",
            "f32[3,2]",
            because="scatter is filled as fast as the ops for rows are started",
        )


def test_where_the_order_of_writes_is_not_known(monkeypatch):
    """(4) On a GPU threads write."""
    monkeypatch.setattr(forward_repeated_rows, "writes_in_order", lambda: False)
    check_refuses(
        FORWARD,
        read_back,
        "i32[3]",
        "f32[3,2]",
        because="it is not known which of equal places is written last",
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            lambda i, v: (
                jnp.zeros((N, 2)).at[i].set(v, mode="drop").at[i + 1].get(mode="promise_in_bounds")
            ),
            id="(1) other places",
        ),
        pytest.param(
            lambda i, v: (
                jnp.zeros((N, 2)).at[i].add(v, mode="drop").at[i].get(mode="promise_in_bounds")
            ),
            id="(1) a sum",
        ),
        pytest.param(
            lambda i, v: (
                jnp.zeros((N, 2)).at[i].set(v, mode="drop").at[i, :1].get(mode="promise_in_bounds")
            ),
            id="(1) a part",
        ),
    ],
)
def test_other_reads(program):
    alone(FORWARD, program, "i32[3]", "f32[3,2]", fires=False)


# -- programs


def memory(p, places):
    """Rows of a memory are read, mapped and written back."""

    def step(mem, at):
        rows = jnp.tanh(mem[at] @ p["w"])
        return mem.at[at].set(rows), jnp.sum(rows**2)

    return jnp.mean(lax.scan(step, p["m"], places)[1])


def table(p, places):
    """A table of two axes."""

    def step(mem, at):
        rows = jnp.sin(mem[at, at % 4])
        return mem.at[at, at % 4].set(rows), jnp.sum(rows)

    return jnp.mean(lax.scan(step, p["m"].reshape(-1, 4, 2), places)[1])


def slots(p, places):
    """Slots of which some are past the end."""

    def step(mem, at):
        mem = mem.at[at + 1990].set(mem[at] * p["w"][0, 0], mode="drop")
        return mem, jnp.sum(mem[:5])

    return jnp.mean(lax.scan(step, p["m"][:, 0], places)[1])


@pytest.mark.slow
@pytest.mark.parametrize("f", [memory, table, slots])
@pytest.mark.parametrize("back", [lambda f: jax.grad(optimize(f)), lambda f: optimize(jax.grad(f))])
@pytest.mark.parametrize("vmapped", [False, True])
def test_memories(f, back, vmapped):
    """No step fills an array of numbers; places repeat within a step."""
    rng = np.random.default_rng(0)
    p = {"w": jnp.eye(2) / 2, "m": jnp.asarray(rng.normal(size=(2000, 2)), jnp.float32)}
    places = jnp.asarray(rng.integers(0, 12, (9, 4)), jnp.int32)
    made, expected, args = back(f), jax.grad(f), (p, places)
    if vmapped:
        made, expected = (jax.vmap(each, (None, 0)) for each in (made, expected))
        args = p, jnp.stack([places, places[::-1]])
    assert_close(jax.jit(made)(*args), jax.jit(expected)(*args))
    graph, _ = observe.optimized(made, args, {})
    filled = (op.result for op in graph.walk() if op.name == "scatter")
    assert not [v for v in filled if v.dtype == np.uint32 and v.size >= 2000]
