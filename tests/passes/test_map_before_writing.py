"""What is made of zeros with a window in them is made of the window."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.sparse.mapped_windows import reshaped_window
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.sparse.map_before_writing import MapBeforeWriting
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_same_derivatives, check_rewrite
from tests.loops import alone

MAP = MapBeforeWriting()


def in_a_loop(program):
    """What a program of some arrays adds to the first one, in each of two steps."""
    return lambda c, *xs: lax.fori_loop(0, 2, lambda _, c: c + program(*xs), c)


def row(v, i):
    return lax.dynamic_update_slice(jnp.zeros((40, 3)), v[None], (i, 0))


def test_a_row_of_a_transposed_table():
    check_rewrite(
        MAP,
        in_a_loop(lambda v, i: row(v, i).T),
        "f32[3,40]",
        "f32[3]",
        "i32[]",
        diff="""
          fn (c:f32[3,40], xs_0:f32[3], xs_1:i32[]) {
            c1:i32[], c2:f32[3,40] = scan[2] carry(c=0, c1=c) {
              a:i32[] = add c 1
              b:f32[40,3] = broadcast_in_dim 0.0
              b1:f32[1,3] = broadcast_in_dim xs_0
              l:bool[] = lt xs_1 0
              a1:i32[] = add xs_1 40
              s:i32[] = select_n l xs_1 a1
              d:f32[40,3] = dynamic_update_slice b b1 s 0
        -     t:f32[3,40] = transpose d
        +     b2:f32[3,40] = broadcast_in_dim 0.0
        +     t1:f32[3,1] = transpose b1
        +     d1:f32[3,40] = dynamic_update_slice b2 t1 0 s
        -     a2:f32[3,40] = add c1 t
        +     a2:f32[3,40] = add c1 d1
              yield carry(a, a2)
            }
            return c2
          }
        """,
    )


def test_two_rows_at_one_place():
    """They are added up before they are written."""
    check_rewrite(
        MAP,
        in_a_loop(lambda v, u, i: row(v, i) + row(u, i)),
        "f32[40,3]",
        "f32[3]",
        "f32[3]",
        "i32[]",
        diff="""
          fn (c:f32[40,3], xs_0:f32[3], xs_1:f32[3], xs_2:i32[]) {
            c1:i32[], c2:f32[40,3] = scan[2] carry(c=0, c1=c) {
              a:i32[] = add c 1
              b:f32[40,3] = broadcast_in_dim 0.0
              b1:f32[1,3] = broadcast_in_dim xs_0
              l:bool[] = lt xs_2 0
              a1:i32[] = add xs_2 40
              s:i32[] = select_n l xs_2 a1
              d:f32[40,3] = dynamic_update_slice b b1 s 0
              b2:f32[40,3] = broadcast_in_dim 0.0
              b3:f32[1,3] = broadcast_in_dim xs_1
              l1:bool[] = lt xs_2 0
              a2:i32[] = add xs_2 40
              s1:i32[] = select_n l1 xs_2 a2
              d1:f32[40,3] = dynamic_update_slice b2 b3 s1 0
        +     b4:f32[40,3] = broadcast_in_dim 0.0
        +     a5:f32[1,3] = add b1 b3
        +     d2:f32[40,3] = dynamic_update_slice b4 a5 s 0
        -     a3:f32[40,3] = add d d1
        +     a3:f32[40,3] = add c1 d2
        -     a4:f32[40,3] = add c1 a3
        -     yield carry(a, a4)
        +     yield carry(a, a3)
            }
            return c2
          }
        """,
    )


def test_two_rows_at_two_places():
    """(4) They stay where they are."""
    program = in_a_loop(lambda v, u, i, j: row(v, i) + row(u, j))
    alone(MAP, program, "f32[40,3]", "f32[3]", "f32[3]", "i32[]", "i32[]", fires=False)
    wider = in_a_loop(
        lambda v, u, i: row(v, i) + lax.dynamic_update_slice(jnp.zeros((40, 3)), u, (i, 0))
    )
    alone(MAP, wider, "f32[40,3]", "f32[3]", "f32[2,3]", "i32[]", fires=False)


WRITES = {
    "a slice": row,
    "a scatter": lambda v, i: jnp.zeros((40, 3)).at[i].set(v),
    "an addition": lambda v, i: jnp.zeros((40, 3)).at[i].add(v),
    "a number": lambda v, i: jnp.zeros((40, 3)).at[i, 1].set(v[0]),
}
MADE = {
    "transposed": lambda z: z.T,
    "negated": lambda z: -z,
    "converted": lambda z: z.astype("float16").astype("float32"),
    "one after the other": lambda z: -z.T,
    "turned round": lambda z: z[::-1, ::-1],
    "cut off": lambda z: z[3:38],
    "moved": lambda z: lax.pad(z, 0.0, [(-2, 3, 0), (0, 0, 0)]),
    "moved the other way": lambda z: lax.pad(z, 0.0, [(5, -1, 0), (0, 0, 0)]),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_made_of_a_window(write, make):
    """(2) Also of one that is out of range."""
    v = jnp.array([1.5, -2.0, jnp.inf])
    c = jnp.zeros(jax.eval_shape(make, jax.ShapeDtypeStruct((40, 3), "float32")).shape)
    for i in (7, -1, 45):
        graph = alone(
            MAP, in_a_loop(lambda v, i: make(write(v, i))), c, v, jnp.int32(i), fires=True
        )
        (total,) = (op for op in graph.walk() if op.name == "add" and op.result.shape == c.shape)
        assert total.operands[1].op.name in ("dynamic_update_slice", "scatter", "scatter-add")


@pytest.mark.parametrize("shape", [(120,), (10, 4, 3), (4, 10, 3), (20, 6), (40, 1, 3)])
def test_a_row_of_a_reshaped_table(shape):
    """(2) It is clamped before."""
    v, c = jnp.array([1.5, -2.0, 3.0]), jnp.zeros(shape)
    fires = shape != (20, 6)
    for i in (7, 39, 45):
        program = in_a_loop(lambda v, i: row(v, i).reshape(shape))
        alone(MAP, program, c, v, jnp.int32(i), fires=fires)


SHAPES = [
    (6, 4, 5),
    (24, 5),
    (6, 20),
    (120,),
    (2, 3, 4, 5),
    (6, 2, 2, 5),
    (1, 6, 4, 5),
    (6, 4, 1, 5),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_windows_in_a_reshaped_array(shape):
    """(2) Those that are said to be one are, where they are said to be."""
    found = 0
    for new, window in product(SHAPES, product(*[sorted({1, min(2, n), n}) for n in shape])):
        reshaped = reshaped_window(shape, window, new)
        if reshaped is None:
            continue
        sizes, starts = reshaped
        last = [n - size for n, size in zip(shape, window, strict=True)]
        for at in ([0] * len(shape), last, [n // 2 for n in last]):
            array, there = np.zeros(shape), np.zeros(new)
            array[tuple(slice(a, a + n) for a, n in zip(at, window, strict=True))] = 1
            begin = starts([jnp.int32(a) for a in at])
            there[tuple(slice(int(a), int(a) + n) for a, n in zip(begin, sizes, strict=True))] = 1
            assert np.array_equal(array.reshape(new), there)
        found += 1
    assert found >= len(SHAPES)


def test_rows_of_a_part():
    check_rewrite(
        MAP,
        in_a_loop(
            lambda v, i: lax.pad(jnp.zeros((40, 3)).at[i].add(v), 0.0, [(0,) * 3, (1, 4, 0)])
        ),
        "f32[40,8]",
        "f32[2,3]",
        "i32[2]",
        diff="""
          fn (c:f32[40,8], xs_0:f32[2,3], xs_1:i32[2]) {
            c1:i32[], c2:f32[40,8] = scan[2] carry(c=0, c1=c) {
              a:i32[] = add c 1
              b:f32[40,3] = broadcast_in_dim 0.0
              l:bool[2] = lt xs_1 0
              a1:i32[2] = add xs_1 40
              s:i32[2] = select_n l xs_1 a1
              b1:i32[2,1] = broadcast_in_dim[dims=(0,)] s
              s1:f32[40,3] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b b1 xs_0
        -     p:f32[40,8] = pad[padding_config=((0, 0, 0), (1, 4, 0))] s1 0.0
        +     b2:f32[40,8] = broadcast_in_dim 0.0
        +     b3:i32[2,1] = broadcast_in_dim 1
        +     c3:i32[2,2] = concatenate[dimension=1] b1 b3
        +     s2:f32[40,8] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1), mode=fill_or_drop] b2 c3 xs_0
        -     a2:f32[40,8] = add c1 p
        +     a2:f32[40,8] = add c1 s2
              yield carry(a, a2)
            }
            return c2
          }
        """,  # noqa: E501
    )


PUT = {
    "padded": lambda z, k: lax.pad(z, 0.0, [(0, 0, 0), (1, 4, 0)]),
    "at a place": lambda z, k: lax.dynamic_update_slice(jnp.zeros((40, 8)), z, (0, k)),
    "one of many": lambda z, k: lax.dynamic_update_slice(jnp.zeros((5, 40, 3)), z[None], (k, 0, 0)),
    "with an axis more": lambda z, k: z[:, None],
    "in the middle": lambda z, k: lax.pad(z[:, None], 0.0, [(0, 0, 0), (1, 4, 0), (0, 0, 0)]),
}
ROWS = {
    "rows": lambda v, i: jnp.zeros((40, 3)).at[i + jnp.arange(2)].add(v),
    "of a batch": lambda v, i: jax.vmap(jnp.zeros(40).at[i].add, out_axes=1)(v),
}


@pytest.mark.parametrize(("name", "put"), PUT.items(), ids=PUT)
def test_a_window_of_a_window(name, put):
    """(2) Either may be out of range. No place is for an axis along which zeros are added."""
    v, writes = jnp.array([1.5, -2.0, jnp.inf]), WRITES | ROWS
    c = jnp.zeros(jax.eval_shape(put, jax.ShapeDtypeStruct((40, 3), "float32"), 0).shape)
    for kind, (i, k) in zip(writes, [(7, 2), (-1, -9), (45, 9)] * 2, strict=True):
        fires = kind != "a number" or name != "at a place"
        program = in_a_loop(lambda v, i, k, write=writes[kind]: put(write(v, i), k))
        graph = alone(MAP, program, c, v, jnp.int32(i), jnp.int32(k), fires=fires)
        (total,) = (op for op in graph.walk() if op.name == "add" and op.result.shape == c.shape)
        is_written = total.operands[1].op.name in {"dynamic_update_slice", "scatter", "scatter-add"}
        assert is_written or not fires


EDGES = {
    "turned round": lambda z: z[::-1],
    "cut off": lambda z: z[3:38, 1:],
    "moved": lambda z: lax.pad(z, 0.0, [(-2, 3, 0), (1, -1, 0)]),
    "turned and moved": lambda z: lax.pad(z[:, ::-1], 0.0, [(0, -4, 0), (-2, 0, 0)]),
}


@pytest.mark.parametrize("move", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2)])
def test_windows_at_the_edges(move, shape):
    """(2) A part of the window is left, or nothing."""
    v = 1 + jnp.arange(6.0)[: shape[0] * shape[1]].reshape(shape)
    c = jnp.zeros(jax.eval_shape(move, jax.ShapeDtypeStruct((40, 5), "float32")).shape)
    write = lambda v, i, k: lax.dynamic_update_slice(
        jnp.zeros((40, 5)), v, (i, k), allow_negative_indices=False
    )
    for i, k in [(0, 0), (2, 1), (1, 4), (36, 0), (39, 3), (-9, 2), (99, 99)]:
        args = c, v, jnp.int32(i), jnp.int32(k)
        graph = alone(MAP, in_a_loop(lambda v, i, k: move(write(v, i, k))), *args, fires=True)
        names = {op.name for op in graph.walk() if [v.shape for v in op.results] == [c.shape]}
        assert names.isdisjoint({"rev", "slice", "pad"})


@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
@pytest.mark.parametrize(
    "move",
    [*EDGES.values(), lambda z: lax.pad(z, 0.0, [(2, 1, 0), (0, 0, 0)])],
    ids=[*EDGES, "put"],
)
def test_elements_at_the_edges(move, mode):
    """(2) What was dropped stays dropped, where there are more rows, too."""
    c = jnp.zeros(jax.eval_shape(move, jax.ShapeDtypeStruct((40, 5), "float32")).shape)
    write = lambda v, i, k: (
        jnp.zeros((40, 5)).at[i, k].set(v, mode=mode, wrap_negative_indices=False)
    )
    inside = [(0, 0), (2, 1), (1, 4), (39, 3)]
    for i, k in inside if mode == "promise_in_bounds" else [*inside, (-1, 2), (40, 1), (3, 5)]:
        args = c, jnp.float32(3), jnp.int32(i), jnp.int32(k)
        alone(MAP, in_a_loop(lambda v, i, k: move(write(v, i, k))), *args, fires=True)


def test_places_that_hold_the_larger_axis():
    """(2)"""
    at = lambda v, i: lax.dynamic_update_slice(jnp.zeros((40, 3)), v[None], (i, i))
    put = lambda v, i, x: lax.dynamic_update_slice(jnp.zeros((340, 3)), at(v, i), (x, x))
    alone(MAP, in_a_loop(put), "f32[340,3]", "f32[3]", "u8[]", "u8[]", fires=False)


MOVES = {**MADE, **{name: lambda z, put=put: put(z, 2) for name, put in PUT.items()}}


@pytest.mark.parametrize(("name", "move"), MOVES.items(), ids=MOVES)
def test_a_sum_of_windows(name, move):
    """(1) Each is moved by itself, if nothing else reads the sum. (4) It is not rounded."""
    v = jnp.array([1.5, -2.0, 3.0])
    c = jnp.zeros(jax.eval_shape(move, jax.ShapeDtypeStruct((40, 3), "float32")).shape)
    both = lambda v, i: row(v, i) + (row(v, 3) + row(v, i))
    args = c, v, jnp.int32(7)
    graph = alone(MAP, in_a_loop(lambda v, i: move(both(v, i))), *args, fires=name != "converted")
    sums = [op for op in graph.walk() if op.name == "add" and op.result.shape == c.shape]
    assert len(sums) >= 3 or name == "converted"


def test_what_else_reads_a_sum_of_windows():
    """(1)"""

    def program(v, i):
        total = row(v, i) + row(v, 3)
        return -total + jnp.sum(total)

    alone(MAP, in_a_loop(program), "f32[40,3]", "f32[3]", "i32[]", fires=False)


def twice(v, i):
    """Two windows that are added up in one place."""
    return jnp.zeros((40, 3)).at[i + jnp.arange(2) * 0].add(v)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda v, i: row(v, i).at[0].add(1.0).T, id="written twice"),
        pytest.param(lambda v, i: (1 + row(v, i)).T, id="ones"),
        pytest.param(lambda v, i: jnp.sin(row(v, i).T), id="not added"),
        pytest.param(lambda v, i: (row(v, i) * v).T, id="a product"),
        pytest.param(lambda v, i: (row(v, i) / v).T, id="a quotient"),
        pytest.param(lambda v, i: twice(v, i).astype("float16").T, id="sums in one place"),
    ],
)
def test_what_is_left(program):
    """(1) It is no window in zeros, or something else reads it. (3) A product is no cotangent. (4)
    Sums would be rounded before they are added up.
    """
    alone(MAP, in_a_loop(program), "f32[3,40]", "f32[3]", "i32[]", fires=False)


def test_the_sign_of_sums_in_one_place():
    """(4) It may change before."""
    args = jnp.zeros((40, 3)), jnp.arange(3.0), jnp.int32(7)
    alone(MAP, in_a_loop(lambda v, i: -twice(v, i)), *args, fires=True)


def test_outside_of_a_loop():
    alone(MAP, lambda c, v, i: c + row(v, i).T, "f32[3,40]", "f32[3]", "i32[]", fires=False)


TABLES = {
    "a part": (lambda t, i: t.reshape(4, 100, 3)[2][i // 4], (400, 3)),
    "rows of a part": (lambda t, i: t[5:395][i // 2 + jnp.arange(2)].sum(0), (400, 3)),
    "a part twice": (lambda t, i: t[:, 3][i // 4] - t[:, 3][i // 5], (100, 4, 3)),
    "transposed": (lambda t, i: t.T[:, i], (400, 3)),
    "reshaped": (lambda t, i: t.reshape(100, 4, 3)[i // 4, i % 4], (400, 3)),
    "a function": (lambda t, i: jnp.tanh(t)[i], (400, 3)),
    "rounded": (lambda t, i: jnp.sin(t).astype("bfloat16")[i].astype("float32"), (400, 3)),
    "a product": (lambda t, i: (t * jnp.cos(t) / 3)[i], (400, 3)),
}


@pytest.mark.parametrize(("read", "shape"), TABLES.values(), ids=TABLES)
def test_gradients_of_tables(read, shape):
    """(3) No step makes an array as large as the table."""

    def loss(table, ids):
        step = lambda h, i: (jnp.tanh(h + read(table, i)), None)
        return jnp.sum(lax.scan(step, jnp.zeros(3), ids)[0])

    args = jnp.sin(jnp.arange(1200.0)).reshape(shape), jnp.array([3, 399, 3, 17, 0])
    assert_same_derivatives(loss, optimize(loss), args[0], args[1])
    graph, _ = observe.optimized(jax.grad(loss), args, {})
    made = [op for loop in graph.walk() if isinstance(loop, Scan) for op in loop.body.walk()]
    in_place = ("dynamic_update_slice", "optimization_barrier", "scatter-add")
    assert made
    assert not any(v.size >= 1200 and op.name not in in_place for op in made for v in op.results)
