"""What is made of zeros with a window in them is made of the window."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.windows.mapped_windows import reshaped_window
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.windows.map_before_writing import MapBeforeWriting
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
