"""Data movement that moves nothing goes; what means something to differentiation waits."""

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.remove_idle_moves import RemoveIdleMoves
from jaxpr_opt.testing import check_rewrite, run_alone, traced
from tests.loops import alone
from tests.prices import EAGER

REMOVE = RemoveIdleMoves()


def left_of(program, phase):
    """The ops left of a function of one matrix."""
    graph = import_jaxpr(traced(program, "f32[2,3]"), phase)
    run_alone((REMOVE,), graph)
    return [op.name for op in graph.walk() if not op.is_terminator and op.result.uses]


IDLE = [
    pytest.param(lambda x: lax.transpose(lax.transpose(x, (1, 0)), (1, 0)), id="transposed back"),
    pytest.param(lambda x: lax.transpose_p.bind(x, permutation=(0, 1)), id="transposed not at all"),
    pytest.param(lambda x: lax.rev(lax.rev(x, (0,)), (0,)), id="reversed back"),
    pytest.param(lambda x: lax.broadcast_in_dim(x, (2, 3), (0, 1)), id="same shape"),
    pytest.param(lambda x: lax.slice(x, (0, 0), (2, 3)), id="slice of everything"),
    pytest.param(lambda x: lax.dynamic_slice(x, (1, 1), (2, 3)), id="clamped to everything"),
    pytest.param(lambda x: lax.pad(x, 0.0, [(0, 0, 0), (0, 0, 0)]), id="padded by nothing"),
    pytest.param(lambda x: lax.concatenate([x, jnp.zeros((0, 3))], 0), id="with an empty array"),
    pytest.param(lambda x: lax.split(x, (3,), axis=1)[0], id="split into one part"),
    pytest.param(jnp.copy, id="copy"),
    pytest.param(lambda x: lax.squeeze(x[None], (0,)), id="axis added and taken away"),
    pytest.param(lambda x: lax.squeeze(lax.reshape(x, (2, 1, 3)), (1,)), id="reshaped, squeezed"),
    pytest.param(lambda x: lax.reshape(x[:, None], (2, 3)), id="axis added and reshaped away"),
    pytest.param(lambda x: lax.reshape(lax.squeeze(x[None], (0,)), (2, 3)), id="twice"),
]


@pytest.mark.parametrize("program", IDLE)
def test_idle(program):
    """(1) The elements in their order."""
    assert left_of(program, "differentiable") == []


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: lax.transpose(x, (1, 0)), id="transpose"),
        pytest.param(lambda x: lax.rev(x, (0,)), id="reverse"),
        pytest.param(lambda x: lax.pad(x, 0.0, [(1, -1, 0), (0, 0, 0)]), id="shift"),
        pytest.param(lambda x: lax.reshape(x, (3, 2)), id="reshape"),
        pytest.param(lambda x: lax.broadcast_in_dim(x, (2, 3, 1), (0, 1)), id="new axis"),
    ],
)
def test_not_idle(program):
    """(1, 2) The same elements elsewhere, or another shape."""
    assert len(left_of(program, "differentiable")) == 1


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lax.stop_gradient, id="stop_gradient"),
        pytest.param(lambda x: checkpoint_name(x, "x"), id="name"),
    ],
)
def test_markers_go_last(program):
    """(3) As soon as nothing can differentiate the program, and no sooner."""
    assert len(left_of(program, "differentiable")) == 1
    assert left_of(program, "final") == []


def test_a_slice_of_copies():
    """(1) What is the same along an axis is sliced before it is repeated."""
    check_rewrite(
        REMOVE,
        lambda x, y: (
            lax.slice(jnp.broadcast_to(x, (4, 2, 3)), (1, 0, 0), (3, 1, 3), (1, 1, 2))
            + lax.slice(jnp.broadcast_to(y[1:], (4, 2, 3)), (2, 1, 0), (4, 2, 2))
        ),
        "f32[2,3]",
        "f32[2,3]",
        diff="""
          fn (x:f32[2,3], y:f32[2,3]) {
            b:f32[4,2,3] = broadcast_in_dim x
        -   s:f32[2,1,2] = slice[1:3, :1, ::2] b
        +   s3:f32[1,2] = slice[:1, ::2] x
        +   b2:f32[2,1,2] = broadcast_in_dim s3
            s1:f32[1,3] = slice[1:, :] y
            b1:f32[4,2,3] = broadcast_in_dim s1
        -   s2:f32[2,1,2] = slice[2:, 1:, :2] b1
        +   s4:f32[1,2] = slice[1:, :2] y
        +   b3:f32[2,1,2] = broadcast_in_dim s4
        -   a:f32[2,1,2] = add s s2
        +   a:f32[2,1,2] = add b2 b3
            return a
          }
        """,
    )


def test_a_transpose_of_copies():
    """(1) What is repeated is transposed before, also where axes are merged in between."""
    check_rewrite(
        REMOVE,
        lambda x: jnp.repeat(x, 4, axis=1).transpose(1, 2, 0),
        "f32[2,3,5]",
        diff="""
            fn (x:f32[2,3,5]) {
              b:f32[2,3,4,5] = broadcast_in_dim[dims=(0, 1, 3)] x
              r:f32[2,12,5] = reshape b
          -   t:f32[12,5,2] = transpose[1, 2, 0] r
          +   t1:f32[3,5,2] = transpose[1, 2, 0] x
          +   b1:f32[3,4,5,2] = broadcast_in_dim[dims=(0, 2, 3)] t1
          +   r1:f32[12,5,2] = reshape b1
          -   return t
          +   return r1
            }
        """,
    )


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 12, 5), (1, 2, 0)),
        ((24, 5), (1, 0)),
        ((2, 3, 20), (2, 0, 1)),
        ((1, 24, 1, 5), (3, 2, 1, 0)),
    ],
)
def test_transposes_of_merged_copies(shape, order):
    """(1) However they are merged."""
    program = lambda x: (
        jnp.broadcast_to(x[:, :, None], (2, 3, 4, 5)).reshape(shape).transpose(order)
    )
    alone(REMOVE, program, "f32[2,3,5]", fires=True)


def test_a_transpose_of_split_copies_stays():
    """(1) No axis is merged of whole ones."""
    program = lambda x: jnp.broadcast_to(x, (4, 6)).reshape(8, 3).T
    alone(REMOVE, program, "f32[6]", fires=False)


def test_numbers_of_one_axis():
    """(1) They are counted once, and repeated."""
    check_rewrite(
        REMOVE,
        lambda x: x + lax.broadcasted_iota("int32", (2, 1, 3), 2),
        "i32[2,1,3]",
        diff="""
          fn (x:i32[2,1,3]) {
        -   i:i32[2,1,3] = iota[dimension=2]
        +   i1:i32[3] = iota
        +   b:i32[2,1,3] = broadcast_in_dim i1
        -   a:i32[2,1,3] = add x i
        +   a:i32[2,1,3] = add x b
            return a
          }
        """,
    )


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1,)])
def test_numbers_of_one_long_axis_stay(shape):
    """(1) They are counted once."""
    program = lambda x: x + lax.broadcasted_iota("int32", shape, len(shape) - 1)
    alone(REMOVE, program, jnp.ones(shape, int), fires=False)


def test_copies_of_symbolic_shape_stay():
    """(1) What is merged is not known; nor how many numbers are counted."""
    (n,) = export.symbolic_shape("n")

    def program(x):
        merged = jnp.broadcast_to(x[:, None, None], (*x.shape, 2, 3)).reshape(-1, 3)
        counted = lax.broadcasted_iota("int32", (3, *x.shape), 1)
        return jnp.broadcast_to(x, (3, *x.shape)).T, merged.T, counted

    given = jax.ShapeDtypeStruct((n,), "float32")
    graph = import_jaxpr(jax.make_jaxpr(program)(given), "differentiable")
    names = [op.name for op in graph.walk()]
    run_alone((REMOVE,), graph)
    assert [op.name for op in graph.walk()] == names


def test_a_split_into_parts_stays():
    """(1) No part is the whole."""
    alone(REMOVE, lambda x: lax.split(x, (1, 2), axis=1), "f32[2,3]", fires=False)


def test_names_of_integers_stay():
    """(3) What is to be stored is told by them."""
    graph = import_jaxpr(traced(lambda i: checkpoint_name(i, "i"), "i32[3]"))
    run_alone((REMOVE,), graph)
    assert "name" in [op.name for op in graph.walk() if not op.is_terminator and op.result.uses]


def test_a_reshape_in_another_order():
    """(1) It is a transpose and a reshape, each of which may be taken back."""
    check_rewrite(
        REMOVE,
        lambda x: lax.reshape(lax.reshape(x, (12,), dimensions=(1, 0, 2)), (3, 2, 2)),
        "f32[2,3,2]",
        diff="""
          fn (x:f32[2,3,2]) {
        +   t:f32[3,2,2] = transpose[1, 0, 2] x
        -   r:f32[12] = reshape[dimensions=(1, 0, 2)] x
        +   r:f32[12] = reshape t
        -   r1:f32[3,2,2] = reshape r
        -   return r1
        +   return t
          }
        """,
    )


@pytest.mark.parametrize(("dtype", "left"), [("i32[3]", 0), ("bool[3]", 0), ("f32[3]", 1)])
def test_numbers_without_a_derivative(dtype, left):
    """(3) Nothing is stopped that would flow."""
    graph = import_jaxpr(traced(lax.stop_gradient, dtype))
    run_alone((REMOVE,), graph)
    assert len([op for op in graph.walk() if op.name == "stop_gradient" and op.result.uses]) == left


@pytest.mark.parametrize(
    "program",
    [
        lambda x: lax.squeeze(lax.reshape(x, (3, 1, 2)), (1,)),
        lambda x: lax.reshape(lax.broadcast_in_dim(x, (2, 2, 3), (1, 2)), (4, 3)),
        lambda x: lax.squeeze(lax.slice(x, (0, 0), (1, 3)), (0,)),
        lambda x: lax.slice(lax.slice(x, (0, 0), (2, 3), (1, 2)), (0, 1), (2, 2)),
        lambda x: lax.slice(lax.slice(x, (0, 0), (1, 3)), (0, 0), (1, 3), (1, 2)),
        lambda x: lax.transpose(jnp.sin(x), (1, 0)),
        lambda x: lax.rev(lax.rev(x, (0,)), (1,)),
    ],
)
def test_other_elements_or_another_order(program):
    """(1) Two ops that leave something behind them."""
    assert len(left_of(program, "differentiable")) == 2


def test_a_slice_of_a_slice_is_one():
    def program(x):
        return lax.slice(lax.slice(x, (1, 0), (5, 3)), (1, 1), (3, 2))

    check_rewrite(
        REMOVE,
        program,
        "f32[6,3]",
        diff="""
            fn (x:f32[6,3]) {
              s:f32[4,3] = slice[1:5, :] x
          -   s1:f32[2,1] = slice[1:3, 1:2] s
          +   s1:f32[2,1] = slice[2:4, 1:2] x
              return s1
            }
        """,
    )


@pytest.mark.parametrize(
    ("program", "types"),
    [
        (lambda x: lax.transpose(lax.transpose(x, (1, 2, 0)), (1, 2, 0)), ["f32[2,2,2]"]),
        (lambda x: lax.squeeze(lax.reshape(x, (2, 1, 2), (1, 0)), (1,)), ["f32[2,2]"]),
        (
            lambda x, y: lax.squeeze(lax.dot_general(x, y, (((), ()),) * 2), (1,)),
            ["f32[3]", "f32[1]"],
        ),
        (lambda x: lax.squeeze(x, (0,)), ["f32[1,3]"]),
        (lambda x: lax.reduce_max(x, (0,)), ["f32[1,3]"]),
    ],
)
def test_the_same_type_is_not_the_same(program, types):
    """(1) Nothing goes."""
    jaxpr = traced(program, *types)
    graph = import_jaxpr(jaxpr)
    run_alone((REMOVE,), graph)
    assert len([*graph.walk()]) == len(jaxpr.eqns) + 1


def test_overwriting_everything():
    """The update is the result, wherever it is written."""

    def program(x, y, i):
        return lax.dynamic_update_slice(x, y, (i, i))

    check_rewrite(
        REMOVE,
        program,
        "f32[2,3]",
        "f32[2,3]",
        "i32[]",
        diff="""
          fn (x:f32[2,3], y:f32[2,3], i:i32[]) {
            l:bool[] = lt i 0
            a:i32[] = add i 2
            s:i32[] = select_n l i a
            l1:bool[] = lt i 0
            a1:i32[] = add i 3
            s1:i32[] = select_n l1 i a1
        -   d:f32[2,3] = dynamic_update_slice x y s s1
        -   return d
        +   return y
          }
        """,
    )


def test_reshapes():
    """A reshape reads what the one before it reads."""

    def program(x):
        return lax.reshape(lax.reshape(lax.reshape(x, (3, 2)), (6,)), (2, 3))

    check_rewrite(
        REMOVE,
        program,
        "f32[2,3]",
        diff="""
          fn (x:f32[2,3]) {
            r:f32[3,2] = reshape x
        -   r1:f32[6] = reshape r
        +   r1:f32[6] = reshape x
        -   r2:f32[2,3] = reshape r1
        -   return r2
        +   return x
          }
        """,
    )


def test_spread_at_once():
    """What is spread out, and gets or loses an axis of size 1, is spread out into that shape."""

    def program(p, x):
        mask = lax.broadcast_in_dim(p, (2, 1, 3), (0,))
        return lax.select(lax.reshape(mask, (2, 3)), x, x + 1)

    check_rewrite(
        REMOVE,
        program,
        "bool[2]",
        "f32[2,3]",
        diff="""
          fn (p:bool[2], x:f32[2,3]) {
            b:bool[2,1,3] = broadcast_in_dim[dims=(0,)] p
        -   r:bool[2,3] = reshape b
        +   b1:bool[2,3] = broadcast_in_dim[dims=(0,)] p
            a:f32[2,3] = add x 1.0
        -   s:f32[2,3] = select_n r a x
        +   s:f32[2,3] = select_n b1 a x
            return s
          }
        """,
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: lax.reshape(lax.broadcast(x, (4,)), (8, 3)), id="axes joined"),
        pytest.param(lambda x: lax.reshape(lax.broadcast(x, (3,)), (3, 3, 2)), id="other rows"),
        pytest.param(
            lambda x: lax.reshape(lax.broadcast(x, (4,)), (4, 2, 1, 3), dimensions=(0, 2, 1)),
            id="another order",
        ),
        pytest.param(
            lambda x: lax.reshape(lax.broadcast_in_dim(x[:1], (4, 1, 3), (1, 2)), (4, 3)),
            id="an axis of the operand goes",
        ),
    ],
)
def test_not_spread_at_once(program):
    """(1) The reshape does more than add or drop axes of size 1 that the broadcast has made."""
    assert left_of(program, "differentiable")[-1] == "reshape"


def test_transposed_twice():
    """(1) Where two transpositions put each axis, one does."""
    program = lambda x: lax.transpose(lax.transpose(x, (1, 2, 0)), (0, 2, 1))
    graph = alone(REMOVE, program, "f32[2,3,4]", fires=True)
    (result,) = graph.body.terminator.operands
    assert [v.op for v in result.op.operands] == [None]


def written(order, back):
    """A window is written while an array is transposed."""
    write = lambda x, v, *at: lax.dynamic_update_slice(x, lax.transpose(v, order), at)
    return lambda x, v, i, j: lax.transpose(write(lax.transpose(x, order), v, 0, i, j), back)


def test_written_while_transposed():
    """(1) The window is transposed, not the array."""
    types = "f32[5,6,4]", "f32[2,3,1]", "i32[]", "i32[]"
    graph = alone(REMOVE, written((2, 0, 1), (1, 2, 0)), *types, fires=True)
    (result,) = graph.body.terminator.operands
    assert result.op.name == "dynamic_update_slice"
    assert result.op.operands[0].op is None


def test_written_while_transposed_at_negative_starts():
    """(1) A start that is still negative is clamped, and not one from the end."""

    def program(x, v, i):
        return lax.dynamic_update_slice(x.T, v, (i, 0), allow_negative_indices=False).T

    diff = """
          fn (x:f32[2,3], v:f32[1,2], i:i32[]) {
            t:f32[3,2] = transpose x
            d:f32[3,2] = dynamic_update_slice t v i 0
        -   t1:f32[2,3] = transpose d
        +   t2:f32[2,1] = transpose v
        +   d1:f32[2,3] = dynamic_update_slice x t2 0 i
        -   return t1
        +   return d1
          }
        """
    for start in (-7, -1, 0, 2, 5):
        check_rewrite(REMOVE, program, jnp.ones((2, 3)), jnp.zeros((1, 2)), start, diff=diff)


SCATTERS = {
    "rows": lambda a, v, i: a.at[i].set(v[:2]),
    "elements": lambda a, v, i: a.at[i, 1, i].set(v[:2, 0, 0]),
    "columns": lambda a, v, i: a.at[:, i, 2:4].set(v[:, :2, 2:4]),
    "added": lambda a, v, i: a.at[1:3, :, i].add(v[1:3, :, :2]),
    "dropped": lambda a, v, i: a.at[i].set(v[:2], mode="drop"),
    "clamped": lambda a, v, i: a.at[:, i].add(v[:, :2], mode="clip"),
    "in one place each": lambda a, v, i: a.at[i, :, i].set(v[:2, :, 0], unique_indices=True),
    "of a batch": lambda a, v, i: jax.vmap(lambda x, u, k: x.at[k].set(u))(
        a, v[:, 0], jnp.arange(a.shape[0]) - 1
    ),
    "of a batch along another axis": lambda a, v, i: jax.vmap(
        lambda x, u, k: x.at[k, 1].add(u), (1, 0, 0), 1
    )(a, v[0, :, 0], i[0] + jnp.arange(a.shape[1])),
    "of two batches": lambda a, v, i: jax.vmap(
        jax.vmap(lambda x, u, k: x.at[k].set(u), (0, 0, None)), (2, 1, 0), 2
    )(a, v[:, 0], i[1] + jnp.arange(a.shape[2])),
}


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("write", SCATTERS.values(), ids=SCATTERS)
def test_scattered_while_transposed(write, order):
    """(1) What is written is transposed, not the array."""
    back = [order.index(axis) for axis in range(3)]

    def program(x, v, i):
        return lax.transpose(write(lax.transpose(x, order), lax.transpose(v, order), i), back)

    x, v = jnp.arange(120.0).reshape(4, 5, 6), -jnp.arange(120.0).reshape(4, 5, 6)
    for i in ([1, 1], [-1, 9]):
        graph = alone(REMOVE, program, x, v, jnp.array(i), fires=True)
        (result,) = graph.body.terminator.operands
        assert result.op.name in ("scatter", "scatter-add")
        assert result.op.operands[0].op is None


def stepping(program):
    """What a loop makes of its carry in two steps."""
    return lambda c, *xs: lax.fori_loop(0, 2, lambda _, c: program(c, *xs), c)


TAKEN_BACK = {
    "all rows in one": ((6, 4), lambda c: c.reshape(-1), lambda z: z.reshape(6, 4)),
    "rows of one": ((24,), lambda c: c.reshape(2, 3, 4), lambda z: z.reshape(24)),
    "two axes in one": ((2, 3, 4), lambda c: c.reshape(6, 4), lambda z: z.reshape(2, 3, 4)),
    "an axis more": ((24,), lambda c: c.reshape(24, 1), lambda z: z.reshape(24)),
    "an axis less": ((24, 1), lambda c: c.reshape(24), lambda z: z.reshape(24, 1)),
    "turned round": ((6, 4), lambda c: c[::-1, ::-1], lambda z: z[::-1, ::-1]),
}
ELEMENT = {
    "a slice": lambda z, v, at, _: lax.dynamic_update_slice(
        z, jnp.full((1,) * z.ndim, v), at, allow_negative_indices=False
    ),
    "set": lambda z, v, at, mode: z.at[at].set(v, mode=mode, wrap_negative_indices=False),
    "added": lambda z, v, at, mode: z.at[at].add(v, mode=mode, wrap_negative_indices=False),
}


@pytest.mark.parametrize(("kind", "mode"), [("a slice", None), ("set", "drop"), ("added", "clip")])
@pytest.mark.parametrize("name", TAKEN_BACK)
def test_an_element_of_a_moved_array(name, kind, mode):
    """(1) It is written to the array, also out of range, on both sides of each axis."""
    shape, away, back = TAKEN_BACK[name]
    c = jnp.arange(24.0).reshape(shape)
    sizes = away(c).shape
    program = stepping(lambda c, v, *at: back(ELEMENT[kind](away(c), v, at, mode)))
    places = [[0] * len(sizes), [n - 1 for n in sizes], [n // 2 for n in sizes]]
    places += [
        [at if d == axis else 0 for d in range(len(sizes))]
        for axis, n in enumerate(sizes)
        for at in (-1, -n, n, 2 * n)
    ]
    fires = name != "an axis more" or kind == "a slice"
    for at in places:
        given = [jnp.int32(i) for i in at]
        graph = alone(REMOVE, program, c, jnp.float32(7), *given, fires=fires)
        (loop,) = (op for op in graph.walk() if isinstance(op, Scan))
        names = {carry.next.op.name for carry in loop.carries}
        moves = {"reshape", "rev"}.intersection(names)
        assert not moves or not fires


def test_rows_of_a_moved_array():
    """(1) A run of rows along one axis; not one that begins wherever it may."""
    rows = lambda c, v, i: lax.dynamic_update_slice(c.reshape(24, 2), v, (i, 0)).reshape(c.shape)
    whole = lambda c, v, i: lax.dynamic_update_slice(c.reshape(6, 8), v, (i, 0)).reshape(c.shape)
    alone(REMOVE, stepping(whole), "f32[6,4,2]", "f32[2,8]", "i32[]", fires=True)
    alone(REMOVE, stepping(rows), "f32[6,4,2]", "f32[3,2]", "i32[]", fires=False)


def test_small_integers_that_say_where():
    """(1) A place in all rows may be too large for them."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    put = lambda c, v, i: lax.scatter(c.reshape(-1), i[None], v, numbers).reshape(c.shape)
    alone(REMOVE, stepping(put), "f32[60,4]", "f32[]", "i8[]", fires=False)
    alone(REMOVE, stepping(put), "f32[6,4]", "f32[]", "i8[]", fires=True)
    sliced = lambda c, v, i: lax.dynamic_update_slice(c.reshape(-1), v, (i,)).reshape(c.shape)
    alone(REMOVE, stepping(sliced), "f32[30,4]", "f32[1]", "u8[]", fires=True)


def test_a_write_that_is_not_in_a_loop():
    write = lambda c, v, i: c.reshape(-1).at[i].set(v).reshape(c.shape)
    alone(REMOVE, write, "f32[6,4]", "f32[]", "i32[]", fires=False)


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.max, jnp.min])
def test_a_reduction_of_single_rows(reduce):
    """(1) It gives them another shape."""
    graph = alone(REMOVE, lambda x: reduce(x, (0, 2)), "f32[1,3,1]", fires=True)
    assert [op.name for op in graph.body.ops if not op.is_terminator] == ["reshape"]
    alone(REMOVE, lambda x: reduce(x, (0, 1)), "f32[1,3,1]", fires=False)


def test_combined_while_transposed():
    """(1) Other scatters are left as they are."""
    program = lambda x, i: x.T.at[i].apply(jnp.sin).T
    graph = alone(REMOVE, program, "f32[2,3]", "i32[2]", fires=False)
    assert graph.body.terminator.operands[0].op.name == "transpose"


def test_written_while_transposed_otherwise():
    """(1) Another transposition back is another array."""
    types = "f32[4,4,4]", "f32[2,3,1]", "i32[]", "i32[]"
    graph = alone(REMOVE, written((2, 0, 1), (2, 0, 1)), *types, fires=False)
    (result,) = graph.body.terminator.operands
    assert result.op.name == "transpose"


def test_an_argument_that_is_written_to_and_transposed():
    """(1) Nothing transposed it before."""
    write = lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)).T
    alone(REMOVE, write, "f32[2,3]", "f32[1,1]", "i32[]", fires=False)


WRITES = {
    **SCATTERS,
    "a number": lambda z, v, i: z.at[i[0], 1, i[1]].add(v[0, 0, 0]),
    "a slice": lambda z, v, i: lax.dynamic_update_slice(z, v[:2, :2], (i[0], 1, i[1])),
    "padded": lambda z, v, i: lax.pad(v[:2, :2], 0.0, [(1, 1, 0), (3, 0, 0), (0, 0, 0)]),
}


def in_a_loop(program):
    """What a program of some arrays adds to the first one, in each of two steps."""
    return lambda c, *xs: lax.fori_loop(0, 2, lambda _, c: program(c, *xs), c)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_spread_before_it_is_written(write):
    """(1) A window in zeros is repeated, not the array."""

    def program(c, v, i):
        return c + lax.broadcast(write(jnp.zeros(v.shape), v, i), c.shape[: c.ndim - 3])

    c, v = jnp.arange(720.0).reshape(3, 2, 4, 5, 6), 1 + jnp.arange(120.0).reshape(4, 5, 6)
    with using(EAGER):
        for i in ([1, 1], [-1, 9]):
            graph = alone(REMOVE, in_a_loop(program), c, v, jnp.array(i), fires=True)
            wide = [op.name for op in graph.walk() if op.results and op.results[0].shape == c.shape]
            assert "broadcast_in_dim" not in wide[wide.index("add") - 1 : wide.index("add")]


def put(array, i):
    return array.at[i].set(7.0)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda c, x, i: c + lax.broadcast(put(x, i), (3,)), id="not zeros"),
        pytest.param(lambda c, x, i: lax.broadcast(put(0 * c[0], i), (3,)), id="nothing added"),
        pytest.param(
            lambda c, x, i: (c.T + lax.broadcast_in_dim(put(jnp.zeros(40), i), (40, 3), (0,))).T,
            id="last axis",
        ),
        pytest.param(
            lambda c, x, i: (
                c + lax.broadcast_in_dim(put(jnp.zeros((1, 40)), (0, i)), (3, 40), (0, 1))
            ),
            id="no new axis",
        ),
        pytest.param(
            lambda c, x, i: c + lax.broadcast(lax.pad(x[:2], 1.0, [(1, 37, 0)]), (3,)), id="ones"
        ),
        pytest.param(
            lambda c, x, i: c + lax.broadcast(jnp.zeros(40).at[i].apply(jnp.cos), (3,)),
            id="applied",
        ),
        pytest.param(
            lambda c, x, i: c + lax.broadcast(jnp.zeros(40).at[i + jnp.arange(20)].add(1.0), (3,)),
            id="many windows",
        ),
    ],
)
def test_spread_as_it_is_written(program):
    """(1) What is not zero elsewhere, or goes elsewhere than into a sum, is left; so is what is
    most of the array.
    """
    alone(REMOVE, in_a_loop(program), "f32[3,40]", "f32[40]", "i32[]", fires=False)


def test_spread_before_the_loop():
    """There the whole array is as fast."""
    program = lambda c, i: c + lax.broadcast(put(jnp.zeros(40), i), (3,))
    alone(REMOVE, program, "f32[3,40]", "i32[]", fires=False)
    alone(REMOVE, in_a_loop(program), "f32[3,40]", "i32[]", fires=True)


def test_a_reshape_that_divides_an_array_over_devices():
    """(1) What is made of it is divided as well."""

    def program(x):
        divided = lax.reshape(x, (2, 4), out_sharding=PartitionSpec("i", None))
        return lax.reshape(divided, (2, 1, 4))

    kind = (jax.sharding.AxisType.Explicit,)
    with jax.set_mesh(jax.make_mesh((1,), ("i",), axis_types=kind)):
        alone(REMOVE, program, jnp.arange(8.0), fires=False)
