"""Rows that may just have been written, or added to, are read without the array."""
# ruff: noqa: E501 - the parameters of a scatter

import dataclasses
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import CPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.writes import forward_repeated_rows
from jaxpr_opt.passes.writes.forward_repeated_rows import ForwardRepeatedRows
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone
from tests.loops import alone
from tests.loops import memory as temporary
from tests.sets import crossed

FORWARD = ForwardRepeatedRows()
N = 400


MODEL = CostModel(dataclasses.replace(CPU, kernel=0.0, predicate=1e-15))
"""Arrays here are small: starting an op takes no time, nor does a comparison."""
MARKED = MODEL.but(predicate=1.0)
"""Comparing all pairs of windows takes too long."""


def read_back(at, rows, *, n=N, write="drop", read="promise_in_bounds", column=False):
    """Rows that are written to an array, read back."""
    to = jnp.zeros((n, *rows.shape[1:]), rows.dtype).at
    places = (at, jnp.zeros_like(at)) if column else at
    written = to[places].set(rows, mode=write, wrap_negative_indices=False)
    return written.at[places].get(mode=read, wrap_negative_indices=False)


def stepped(t, i, u, j, *, write="drop", read="promise_in_bounds", add=True):
    """Rows of a table that was moved by a gradient, at other places."""
    to = t.at[i]
    moved = (to.add if add else to.set)(u, mode=write, wrap_negative_indices=False)
    return moved.at[j].get(mode=read, wrap_negative_indices=False)


def test_rows_of_a_table_that_was_added_to():
    check_rewrite(
        FORWARD,
        stepped,
        "f32[400,2]",
        "i32[3]",
        "f32[3,2]",
        "i32[4]",
        simplify=True,
        in_range=True,
        diff="""
          fn (t:f32[400,2], i:i32[3], u:f32[3,2], j:i32[4]) {
        -   b:i32[3,1] = broadcast_in_dim[dims=(0,)] i
        -   s:f32[400,2] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] t b u
            b1:i32[4,1] = broadcast_in_dim[dims=(0,)] j
        -   g:f32[4,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=promise_in_bounds] s b1
        +   g:f32[4,2] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 2), mode=promise_in_bounds] t b1
        +   m:i32[4] = max 0 j
        +   m1:i32[4] = min 399 m
        +   g1:bool[3] = ge i 0
        +   l:bool[3] = le i 399
        +   a:bool[3] = and g1 l
        +   b2:i32[3] = broadcast_in_dim -1
        +   s1:i32[3] = select_n a b2 i
        +   b3:i32[4,1] = broadcast_in_dim[dims=(0,)] m1
        +   b4:i32[1,4] = broadcast_in_dim m1
        +   e:bool[4,4] = eq b3 b4
        +   i1:i32[4] = iota
        +   b5:i32[4,4] = broadcast_in_dim i1
        +   b6:i32[4,4] = broadcast_in_dim 4
        +   s2:i32[4,4] = select_n e b6 b5
        +   r:i32[4] = reduce_min[axes=(1,)] s2
        +   b7:i32[3,1] = broadcast_in_dim[dims=(0,)] s1
        +   e1:bool[3,4] = eq b7 b4
        +   b8:i32[3,4] = broadcast_in_dim i1
        +   b9:i32[3,4] = broadcast_in_dim 4
        +   s3:i32[3,4] = select_n e1 b9 b8
        +   r1:i32[3] = reduce_min[axes=(1,)] s3
        +   r2:f32[4,1,2] = reshape g
        +   r3:f32[3,1,2] = reshape u
        +   b10:i32[3,1] = broadcast_in_dim[dims=(0,)] r1
        +   s4:f32[4,1,2] = scatter-add[update_window_dims=(1, 2), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] r2 b10 r3
        +   b11:i32[4,1] = broadcast_in_dim[dims=(0,)] r
        +   g2:f32[4,1,2] = gather[offset_dims=(1, 2), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 1, 2), mode=promise_in_bounds] s4 b11
        +   r4:f32[4,2] = reshape g2
        -   return g
        +   return r4
          }
        """,
    )


def test_rows_are_read_back():
    """(3) Numbers, of which the last stays."""
    alone(FORWARD, read_back, "i32[3]", "u32[3,2]", fires=True)


PLACES = [[0, 1, 2, 3], [5, 5, 5, 5], [1, 7, 399, 1], [-1, 400, 500, 399], [-9, -1, 0, 400]]
MODES = ["clip", "fill", "promise_in_bounds"]


@pytest.mark.parametrize(
    ("add", "read", "write"),
    crossed([True, False], MODES, ["drop", "clip", "promise_in_bounds"]),
)
def test_places_out_of_range(add, read, write):
    """(2) As XLA has them; and the order of what is added to one row, (3)."""
    rng = np.random.default_rng(0)
    t, u = (jnp.asarray(rng.normal(size=(n, 2)), jnp.float32) for n in (N, 4))
    t = t.at[17].set(jnp.nan)  # a row that nothing reads
    program = lambda *args: stepped(*args, write=write, read=read, add=add)
    for model in (MODEL, MARKED):
        with using(model):
            for i, j in [*pairwise([*PLACES, PLACES[0]]), (PLACES[3], PLACES[3])]:
                alone(FORWARD, program, t, jnp.asarray(i), u, jnp.asarray(j), fires=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
@pytest.mark.parametrize("n", [120, N])
def test_types_of_places(dtype, n):
    """(1) A type that holds all places."""
    to = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    there = lax.GatherDimensionNumbers((1,), (0,), (0,))

    def program(t, i, u, j):
        moved = lax.scatter_add(t, i[:, None], u, to, mode="drop")
        return lax.gather(moved, j[:, None], there, (1, 2), mode="fill")

    rng = np.random.default_rng(0)
    t, u = (jnp.asarray(rng.normal(size=(k, 2)), jnp.float32) for k in (n, 4))
    i, j = (jnp.asarray(rng.integers(0, 60, 4), dtype) for _ in range(2))
    fires = n == 120 or dtype not in {"int8", "uint8"}
    alone(FORWARD, program, t, i, u, j, fires=fires)
    alone(FORWARD, program, t, i.astype("int32"), u, j, fires=fires)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "complex64"])
@pytest.mark.parametrize("read", MODES)
def test_types_of_tables(dtype, read):
    rng = np.random.default_rng(0)
    t, u = (jnp.asarray(9 * rng.normal(size=(k, 2))).astype(dtype) for k in (N, 4))
    i, j = jnp.asarray([3, 50, 3, 7]), jnp.asarray([7, 3, 50, 50, 9])
    alone(FORWARD, lambda *args: stepped(*args, read=read), t, i, u, j, fires=True)
    alone(
        FORWARD, lambda i, u, j: stepped(jnp.zeros_like(t), i, u, j, read=read), i, u, j, fires=True
    )


def at_grids(t, i, u, j):
    """Places in arrays of two axes."""
    return stepped(t, i.reshape(2, 2), u.reshape(2, 2, 2), j.reshape(1, 2, 2))


def at_columns(t, i, u, j):
    t = t.T.at[:, i].add(u.T, mode="drop")
    return t.at[:, j].get(mode="fill")


def at_elements(t, i, u, j):
    t = t.at[i, i % 2].add(u[:, 0])
    return t[j, (j + 1) % 2]


def at_no_places(t, i, u, j):
    return stepped(t, i[:0], u[:0], j), stepped(t, i[:1], u[:1], j)


def at_both(t, i, u, j):
    """Two gathers."""
    moved = t.at[i].add(u)
    return moved[i], moved[j]


def twice(t, i, u, j):
    return t.at[i].add(u).at[j].add(u)[i]


SHAPES = [at_grids, at_columns, at_elements, at_no_places, at_both, twice]


BATCHES = [None, 0, (None, 0, 0, 0), (0, None, 0, None), (0, None, None, None)]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "axes"), crossed(SHAPES, BATCHES))
def test_windows_and_batches(program, axes):
    rng = np.random.default_rng(0)
    lead = lambda k: (3,) if axes == 0 or (axes and axes[k] == 0) else ()
    t, u = (
        jnp.asarray(rng.normal(size=(*lead(k), n, 2)), jnp.float32) for k, n in ((0, N), (2, 4))
    )
    i, j = (jnp.asarray(rng.integers(0, 9, (*lead(k), 4)), jnp.int32) for k in (1, 3))
    mapped = program if axes is None else jax.vmap(program, axes)
    args = t, i, u, j
    with using(MODEL):
        loss = lambda *args: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(mapped(*args)))
        assert_close(jax.jit(optimize(mapped))(*args), jax.jit(mapped)(*args))
        for made in (jax.grad(optimize(loss), (0, 2)), optimize(jax.grad(loss, (0, 2)))):
            assert_close(jax.jit(made)(*args), jax.jit(jax.grad(loss, (0, 2)))(*args))
        tangents = jnp.cos(t), jnp.cos(u)
        forward = lambda f: jax.jvp(lambda t, u: f(t, i, u, j), (t, u), tangents)
        assert_close(forward(optimize(mapped)), forward(mapped))
    alone(FORWARD, mapped, *args, fires=True)


@pytest.mark.parametrize(
    ("at", "dtype", "write"),
    crossed(
        [[0, 1, 2], [5, 5, 5], [1, 7, 1], [7, 1, 1], [399, 0, 399]],
        ["uint32", "float32", "int8", "bool"],
        ["drop", "clip", "promise_in_bounds"],
    ),
)
def test_places_that_are_the_same(at, dtype, write):
    """(3) The last row that is written to a place stays."""
    rows = jnp.asarray([[0.0, 1.0], [2.0, 0.0], [jnp.nan, 5.0]]).astype(dtype)
    for model in (MODEL, MARKED):
        with using(model):
            program = lambda i, v: read_back(i, v, write=write)
            alone(FORWARD, program, jnp.asarray(at), rows, fires=True)


def test_places_that_are_clamped():
    """(2) As the read's are."""
    rows = jnp.arange(6.0).reshape(3, 2)
    for at in ([399, 400, 500], [-1, 0, -7], [500, 3, 399]):
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
    """(3) On a GPU threads write."""
    monkeypatch.setattr(forward_repeated_rows, "writes_in_order", lambda: False)
    check_refuses(
        FORWARD,
        read_back,
        "i32[3]",
        "f32[3,2]",
        because="it is not known which of equal places is written last",
    )


def test_what_may_be_written_in_any_order(monkeypatch):
    """(3) What is added, and rows at places that are no two the same."""
    monkeypatch.setattr(forward_repeated_rows, "writes_in_order", lambda: False)

    def once(t, i, u, j):
        return t.at[i].set(u, mode="drop", unique_indices=True)[j]

    args = jnp.ones((N, 2)), jnp.arange(3), jnp.ones((3, 2)), jnp.arange(4)
    for program in (stepped, once):
        alone(FORWARD, program, *args, fires=True)


def in_a_loop(t, i, u, j):
    """Each step would compare the places."""
    moved = t.at[i].add(u)
    return lax.map(lambda k: moved[k[None]], j)


def in_place(t, i, u, j):
    """Of a product that nothing else reads."""
    return (t @ jnp.ones((2, 2))).at[i].add(u)[j]


def many(t, i, u, j):
    moved = t.at[i].add(u)
    return [moved[j + k] for k in range(9)]


@pytest.mark.parametrize(
    ("program", "because"),
    [
        pytest.param(in_a_loop, "is read in a loop", id="loop"),
        pytest.param(in_place, "is written in place", id="in place"),
        pytest.param(many, "at many places", id="many"),
    ],
)
def test_rows_of_arrays_that_are_made_anyway(program, because):
    check_refuses(FORWARD, program, "f32[400,2]", "i32[3]", "f32[3,2]", "i32[4]", because=because)


@pytest.mark.parametrize("axis", [0, 2])
def test_rows_that_devices_hold_parts_of(axis):
    """Tables, or columns: what is read would be divided in another way."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    parts = [None, None, None]
    parts[axis] = "x"
    args = [jnp.ones((2, N, 2)), jnp.ones((2, 3), int), jnp.ones((2, 3, 2)), jnp.ones((2, 4), int)]
    args = [
        jax.device_put(arg, NamedSharding(mesh, PartitionSpec(*parts[: arg.ndim]))) for arg in args
    ]
    with jax.set_mesh(mesh):
        program = jax.vmap(stepped, spmd_axis_name="x" if axis == 0 else None)
        check_refuses(FORWARD, program, *args, because="divided over devices")


def test_a_symbolic_shape():
    """(1) How many rows there are is not known."""
    (n,) = export.symbolic_shape("n")
    types = [((n, 2), "float32"), ((3,), "int32"), ((3, 2), "float32"), ((4,), "int32")]
    given = [jax.ShapeDtypeStruct(*each) for each in types]
    graph = import_jaxpr(jax.make_jaxpr(stepped)(*given), FORWARD.phase)
    assert not run_alone((FORWARD,), graph).record(FORWARD.name, FORWARD.cleanup).rewrites


@pytest.mark.parametrize(("n", "fires"), [(46_340, True), (46_341, False)])
def test_more_places_than_an_integer_counts(n, fires):
    """(1) The number of a place has 32 bits."""

    def program(t, i, u, j):
        return t.at[i, i].add(u, mode="drop").at[j, j].get(mode="fill")

    types = [((n, n), "int8"), ((3,), "int32"), ((3,), "int8"), ((4,), "int32")]
    given = [jax.ShapeDtypeStruct(*each) for each in types]
    graph = import_jaxpr(jax.make_jaxpr(program)(*given), FORWARD.phase)
    assert (
        bool(run_alone((FORWARD,), graph).record(FORWARD.name, FORWARD.cleanup).rewrites) == fires
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(windows, id="(1) windows that overlap in part"),
        pytest.param(
            lambda i, v: jnp.zeros((N, 2)).at[i].add(v, mode="drop")[i, :1], id="(1) a part"
        ),
        pytest.param(
            lambda i, v: lax.scatter_mul(
                jnp.zeros((N, 2)),
                i[:, None],
                v,
                lax.ScatterDimensionNumbers((1,), (0,), (0,)),
                mode="drop",
            )[i],
            id="(1) a product",
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


def lost(p, places):
    """What a table of words makes of them."""
    return jnp.mean(jnp.tanh(p["m"][places] @ p["w"]) ** 2)


def tuned(p, places):
    """Inner steps of descent, then a test at other places."""
    for _ in range(3):
        given = jax.grad(lost)(p, places[:4])
        p = jax.tree.map(lambda a, b: a - 0.3 * b, p, given)
    return lost(p, places[4:])


def adagrad(p, places):
    """A state for each row."""
    state = jnp.zeros_like(p["m"])
    for at in places[:3]:
        given = jax.grad(lost)(p, at)["m"]
        state = state + given * given
        p = {**p, "m": p["m"] - 0.3 * given / jnp.sqrt(state + 1e-6)}
    return lost(p, places[4:])


def pushed(p, places):
    """Along edges of a graph."""
    rank = p["m"]
    for at, to in zip(places[:3], places[3:], strict=False):
        given = rank[at]
        rank = rank.at[at].set(0.2 * given).at[to].add(0.8 * given @ p["w"])
    return jnp.sum(rank[places[6:]] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("f", [tuned, adagrad, pushed])
@pytest.mark.parametrize("vmapped", [False, True])
def test_no_table_is_made(f, vmapped):
    """Forward, and back of the optimised program but for one gradient."""
    rng = np.random.default_rng(0)
    n = 20000
    p = {"w": jnp.eye(4) / 2, "m": jnp.asarray(rng.normal(size=(n, 4)), jnp.float32)}
    places = jnp.asarray(rng.integers(0, 30, (9, 4)), jnp.int32)
    args, mapped = (p, places), lambda f: f
    if vmapped:
        args, mapped = (p, jnp.stack([places, places[::-1]])), lambda f: jax.vmap(f, (None, 0))
    for one, other in ((optimize(f), f), (jax.grad(optimize(f)), jax.grad(f))):
        assert_close(jax.jit(mapped(one))(*args), jax.jit(mapped(other))(*args))
    assert temporary(mapped(optimize(f)), *args) < temporary(mapped(f), *args) / 10
