"""Only the rows that are read are computed."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.analysis.rows.read_rows import reads_of_rows
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.rows.compute_read_rows import ComputeReadRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone, memory

READ = ComputeReadRows()


@pytest.fixture
def quick_starts():
    with using(CostModel().but(kernel=0.0)):
        yield


def read(x, *starts, sizes):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def test_a_layer_for_one_row():
    """(1) Each op keeps the rows apart."""

    def program(x, w, i):
        return read(jnp.tanh(x @ w), i, 0, sizes=(1, 4))

    check_rewrite(
        READ,
        program,
        "f32[8,3]",
        "f32[3,4]",
        "i32[]",
        diff="""
              fn (x:f32[8,3], w:f32[3,4], i:i32[]) {
            -   d:f32[8,4] = dot_general x w
            -   t:f32[8,4] = tanh d
            -   d1:f32[1,4] = dynamic_slice t i 0
            +   d2:f32[1,3] = dynamic_slice x i 0
            +   d3:f32[1,4] = dot_general d2 w
            +   t1:f32[1,4] = tanh d3
            -   return d1
            +   return t1
              }
        """,
    )


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 6, 16)), (1, (32, 1, 16))])
def test_an_image_or_a_kernel_of_a_convolution(axis, shape):
    """(1)"""

    def program(images, kernels, i):
        made = lax.conv_general_dilated(images, kernels, (1,), "SAME")
        starts = [i if a == axis else jnp.int32(0) for a in range(3)]
        return read(jnp.tanh(made), *starts, sizes=shape)

    graph = alone(READ, program, "f32[32,2,16]", "f32[6,2,3]", "i32[]", fires=True)
    (made,) = (op for op in graph.walk() if op.name == "conv_general_dilated")
    assert made.result.shape == shape


def test_groups_of_a_convolution_are_left():
    """(1)"""

    def program(images, kernels, i):
        made = lax.conv_general_dilated(images, kernels, (1,), "SAME", feature_group_count=2)
        return read(made, i, jnp.int32(0), jnp.int32(0), sizes=(1, 6, 16))

    alone(READ, program, "f32[32,2,16]", "f32[6,1,3]", "i32[]", fires=False)


def test_a_value_that_is_read_twice_is_computed_once():
    """(2) A softmax reads its input and its sum; both need the same rows."""

    def program(x, w, i):
        y = x @ w
        e = jnp.exp(y - lax.broadcast_in_dim(jnp.max(y, 1), (8, 4), (0,)))
        return read(e / lax.broadcast_in_dim(jnp.sum(e, 1), (8, 4), (0,)), i, 0, sizes=(2, 4))

    check_rewrite(
        READ,
        program,
        "f32[8,3]",
        "f32[3,4]",
        "i32[]",
        diff="""
              fn (x:f32[8,3], w:f32[3,4], i:i32[]) {
            -   d:f32[8,4] = dot_general x w
            -   r:f32[8] = reduce_max[axes=(1,)] d
            -   b:f32[8,4] = broadcast_in_dim[dims=(0,)] r
            -   s:f32[8,4] = sub d b
            -   e:f32[8,4] = exp s
            -   r1:f32[8] = reduce_sum[axes=(1,)] e
            -   b1:f32[8,4] = broadcast_in_dim[dims=(0,)] r1
            -   d1:f32[8,4] = div e b1
            -   d2:f32[2,4] = dynamic_slice d1 i 0
            +   d3:f32[2,3] = dynamic_slice x i 0
            +   d4:f32[2,4] = dot_general d3 w
            +   r2:f32[2] = reduce_max[axes=(1,)] d4
            +   b2:f32[2,4] = broadcast_in_dim[dims=(0,)] r2
            +   s1:f32[2,4] = sub d4 b2
            +   e1:f32[2,4] = exp s1
            +   r3:f32[2] = reduce_sum[axes=(1,)] e1
            +   b3:f32[2,4] = broadcast_in_dim[dims=(0,)] r3
            +   d5:f32[2,4] = div e1 b3
            -   return d2
            +   return d5
              }
        """,
    )


def test_a_maximum_of_one_row():
    """(1) An integer for each row."""

    def program(q, s):
        return read(jnp.argmax(q * 2, axis=1), s, sizes=(1,))

    check_rewrite(
        READ,
        program,
        "f32[8,4]",
        "i32[]",
        diff="""
              fn (q:f32[8,4], s:i32[]) {
            -   m:f32[8,4] = mul q 2.0
            -   a:i32[8] = argmax[axes=(1,)] m
            -   d:i32[1] = dynamic_slice a s
            +   d1:f32[1,4] = dynamic_slice q s 0
            +   m1:f32[1,4] = mul d1 2.0
            +   a1:i32[1] = argmax[axes=(1,)] m1
            -   return d
            +   return a1
              }
        """,
    )


def test_a_column_of_a_product():
    """(1) Its rows are columns of the right factor."""

    def program(x, w, i):
        return read(x @ w, 0, i, sizes=(8, 1))

    check_rewrite(
        READ,
        program,
        "f32[8,3]",
        "f32[3,4]",
        "i32[]",
        diff="""
              fn (x:f32[8,3], w:f32[3,4], i:i32[]) {
            -   d:f32[8,4] = dot_general x w
            -   d1:f32[8,1] = dynamic_slice d 0 i
            +   d2:f32[3,1] = dynamic_slice w 0 i
            +   d3:f32[8,1] = dot_general x d2
            -   return d1
            +   return d3
              }
        """,
    )


def test_rows_at_several_places():
    """(1) Rows are picked by a gather, clamped where they are out of range."""

    def program(x, w, ids):
        return jnp.take(x @ w, ids, axis=0, mode="clip")

    check_rewrite(
        READ,
        program,
        "f32[8,3]",
        "f32[3,4]",
        "i32[2]",
        diff="""
              fn (x:f32[8,3], w:f32[3,4], ids:i32[2]) {
            -   d:f32[8,4] = dot_general x w
                b:i32[2,1] = broadcast_in_dim[dims=(0,)] ids
            -   g:f32[2,4] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 4), mode=clip] d b
            +   g1:f32[2,3] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 3), mode=clip] x b
            +   d1:f32[2,4] = dot_general g1 w
            -   return g
            +   return d1
              }
        """,  # noqa: E501
    )


def test_a_batch_with_places_of_their_own():
    """(1) A slice in each row of a batch: the rows of the operands are those of the batch, too."""

    def program(x, w, i):
        return jax.vmap(lambda x, i: read(x @ w, i, 0, sizes=(1, 4)))(x, i)

    check_rewrite(
        READ,
        program,
        "f32[5,8,3]",
        "f32[3,4]",
        "i32[5]",
        diff="""
              fn (x:f32[5,8,3], w:f32[3,4], i:i32[5]) {
            -   d:f32[5,8,4] = dot_general x w
                b:i32[5,1] = broadcast_in_dim[dims=(0,)] i
                b1:i32[5,1] = broadcast_in_dim 0
                c:i32[5,2] = concatenate[dimension=1] b b1
            -   g:f32[5,1,4] = gather[offset_dims=(1, 2), start_index_map=(1, 2), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1, 4), unique_indices, indices_are_sorted, mode=clip] d c
            +   s:i32[5,1] = slice[:, :1] c
            +   g1:f32[5,1,3] = gather[offset_dims=(1, 2), start_index_map=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1, 3), mode=clip] x s
            +   d1:f32[5,1,4] = dot_general g1 w
            -   return g
            +   return d1
              }
        """,  # noqa: E501
    )


def test_a_broadcast_gets_another_shape():
    def program(x, w, i):
        return read(lax.broadcast_in_dim(jnp.max(x, 1), (8, 4), (0,)) + w, i, 0, sizes=(2, 4))

    check_rewrite(
        READ,
        program,
        "f32[8,3]",
        "f32[8,4]",
        "i32[]",
        diff="""
              fn (x:f32[8,3], w:f32[8,4], i:i32[]) {
            -   r:f32[8] = reduce_max[axes=(1,)] x
            -   b:f32[8,4] = broadcast_in_dim[dims=(0,)] r
            -   a:f32[8,4] = add b w
            +   d1:f32[2,3] = dynamic_slice x i 0
            +   r1:f32[2] = reduce_max[axes=(1,)] d1
            +   b1:f32[2,4] = broadcast_in_dim[dims=(0,)] r1
            -   d:f32[2,4] = dynamic_slice a i 0
            +   d:f32[2,4] = dynamic_slice w i 0
            +   a1:f32[2,4] = add b1 d
            -   return d
            +   return a1
              }
        """,
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda x, i: read(lax.cummax(x, 0), i, 0, sizes=(1, 3)),
        lambda x, i: read(jnp.sort(x, 0), i, 0, sizes=(1, 3)),
        lambda x, i: read(jnp.max(x, 1).reshape(2, 4), i, 0, sizes=(1, 4)),
        lambda x, i: read(jnp.max(x, 1)[::-1], i, sizes=(1,)),
    ],
)
def test_rows_that_depend_on_others_are_left(program):
    """(1)"""
    alone(READ, program, "f32[8,3]", "i32[]", fires=False)


@pytest.mark.usefixtures("quick_starts")
def test_rows_that_are_filled():
    """(1) What a maximum makes of what fills a row out of range is not what fills its result."""

    def program(x, ids):
        return jnp.max(x, 1).at[ids].get(mode="fill", fill_value=7)

    alone(READ, program, "f32[80,30]", "i32[2]", fires=True)
    batched = jax.vmap(program)
    alone(READ, batched, "f32[5,80,30]", "i32[5]", fires=True)


def rated(x, w, at, mode="clip"):
    """What pairs of rows make, read at several places."""
    return jnp.tanh(x @ w).at[at[:, 0], at[:, 1]].get(mode=mode)


PLACED = "f32[64,16]", "f32[16,32]", "i32[5,2]"


@pytest.mark.usefixtures("quick_starts")
def test_elements_at_several_places():
    """(1) Each of one row of one factor and one column of the other."""

    def program(x, w, at):
        numbers = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
        return lax.gather(jnp.tanh(x @ w), at, numbers, (1, 1), mode="clip")

    check_rewrite(
        READ,
        program,
        *PLACED,
        simplify=True,
        diff="""
              fn (x:f32[64,16], w:f32[16,32], at:i32[5,2]) {
            -   d:f32[64,32] = dot_general x w
            -   t:f32[64,32] = tanh d
            -   g:f32[5] = gather[collapsed_slice_dims=(0, 1), start_index_map=(0, 1), slice_sizes=(1, 1), mode=clip] t at
            +   s:i32[5,1] = slice[:, :1] at
            +   s1:i32[5] = squeeze s
            +   s2:i32[5,1] = slice[:, 1:] at
            +   s3:i32[5] = squeeze s2
            +   c:i32[5] = clamp 0 s1 63
            +   c1:i32[5] = clamp 0 s3 31
            +   b:i32[5,1] = broadcast_in_dim[dims=(0,)] c
            +   b1:i32[5,1] = broadcast_in_dim 0
            +   c2:i32[5,2] = concatenate[dimension=1] b b1
            +   g1:f32[5,1,16] = gather[offset_dims=(1, 2), start_index_map=(0, 1), slice_sizes=(1, 16), mode=clip] x c2
            +   b2:i32[5,1] = broadcast_in_dim[dims=(0,)] c1
            +   c3:i32[5,2] = concatenate[dimension=1] b1 b2
            +   g2:f32[5,16,1] = gather[offset_dims=(1, 2), start_index_map=(0, 1), slice_sizes=(16, 1), mode=clip] w c3
            +   d1:f32[5,1,1] = dot_general[contract=2x1, batch=0x0] g1 g2
            +   t1:f32[5,1,1] = tanh d1
            +   r:f32[5] = reshape t1
            -   return g
            +   return r
              }
        """,  # noqa: E501
    )


@pytest.mark.usefixtures("quick_starts")
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("index", ["i32", "u32", "i8", "u8"])
def test_elements_of_any_places(mode, index):
    """(1) Out of range, too: what is filled in is filled into the result."""
    program = partial(rated, mode=mode)
    graph = alone(READ, program, *PLACED[:2], f"{index}[5,2]", fires=True)
    assert not any(op.result.shape == (64, 32) for op in graph.walk() if not op.is_terminator)


@pytest.mark.usefixtures("quick_starts")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x, w, at: (x @ w)[at], id="whole rows, of several places each"),
        pytest.param(lambda x, w, at: (x @ w)[:, at[:1]], id="columns"),
        pytest.param(
            lambda x, w, at: jnp.take_along_axis(
                (x @ w).T @ x, at[:1, :1] + x.astype(int)[:32, :1], 1
            ),
            id="one of each row",
        ),
        pytest.param(
            lambda x, w, at: jax.vmap(lambda i: (x @ w)[i[0], i[1]])(at), id="batched slices"
        ),
        pytest.param(
            lambda x, w, at: jnp.diagonal(((x[:, None] - x[::-1]) ** 2).sum(-1)), id="a diagonal"
        ),
        pytest.param(lambda x, w, at: (x @ w @ w.T)[at[:, 0], at[:, 1]], id="of two products"),
        pytest.param(
            lambda x, w, at: jnp.einsum("ki,ij->kij", x, w)[at[:, 0], :, at[:, 1]],
            id="rows between",
        ),
    ],
)
def test_elements_of_several_kinds(program):
    """(1)"""
    alone(READ, program, "f32[64,16]", "f32[16,32]", "i32[5,2]", fires=True)


@pytest.mark.usefixtures("quick_starts")
def test_the_gradient_of_elements():
    """It has no array of zeros; what is filled in has no gradient."""
    x, w = jnp.linspace(-1, 1, 64 * 16).reshape(64, 16), jnp.linspace(1, -1, 512).reshape(16, 32)
    at = jnp.array([[3, 4], [64, 2], [-1, 7], [3, 4], [63, 31]])

    def loss(rated, x, w):
        return jnp.nansum(rated(x, w, at) ** 2)

    fills = partial(rated, mode="fill")
    ours = jax.grad(partial(loss, optimize(fills)), (0, 1))
    assert_close(ours(x, w), jax.grad(partial(loss, fills), (0, 1))(x, w))
    assert "f32[64,32]" not in str(jax.make_jaxpr(ours)(x, w))
    tangents = jnp.cos(x), jnp.sin(w)
    ours, plain = (jax.jvp(partial(loss, f), (x, w), tangents) for f in (optimize(fills), fills))
    assert_close(ours, plain)


@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_read_at_once(at_once):
    """What a row is computed from is in memory: the whole was just computed from it."""

    def program(x, i):
        q, k, v = (lax.sort(x * n, dimension=0) for n in (1.0, 2.0, 3.0))
        made = jnp.tanh(jnp.exp(q @ k.T) @ v)
        noise = 0.0 if at_once else jnp.max(lax.sort(jnp.outer(x[:, 0], x[:, 1])))
        return read(made, i, 0, sizes=(1, 32)) + noise

    alone(READ, program, "f32[64,32]", "i32[]", fires=at_once)


@pytest.mark.parametrize("places", [64, 4096])
def test_how_many_elements(places):
    """Few of them take less time than the whole."""
    alone(READ, rated, "f32[256,64]", "f32[64,256]", f"i32[{places},2]", fires=places == 64)


def test_a_factor_that_all_places_need_is_computed_whole():
    """(1) Each row of `d` is read once: it is no part of what is computed for a place."""
    check_rewrite(
        READ,
        lambda x, c, at: (x @ c @ x.T)[at, at],
        "f32[64,4]",
        "f32[4,4]",
        "i32[64]",
        simplify=True,
        diff="""
          fn (x:f32[64,4], c:f32[4,4], at:i32[64]) {
            d:f32[64,4] = dot_general x c
        -   t:f32[4,64] = transpose x
        -   d1:f32[64,64] = dot_general d t
            l:bool[64] = lt at 0
            a:i32[64] = add at 64
            s:i32[64] = select_n l at a
            b:i32[64,1] = broadcast_in_dim[dims=(0,)] s
            c1:i32[64,2] = concatenate[dimension=1] b b
        -   g:f32[64] = gather[collapsed_slice_dims=(0, 1), start_index_map=(0, 1), slice_sizes=(1, 1), mode=promise_in_bounds] d1 c1
        +   s1:i32[64,1] = slice[:, :1] c1
        +   s2:i32[64] = squeeze s1
        +   s3:i32[64,1] = slice[:, 1:] c1
        +   s4:i32[64] = squeeze s3
        +   c2:i32[64] = clamp 0 s2 63
        +   c3:i32[64] = clamp 0 s4 63
        +   e:bool[64] = eq s2 c2
        +   e1:bool[64] = eq s4 c3
        +   a1:bool[64] = and e e1
        +   b1:i32[64,1] = broadcast_in_dim[dims=(0,)] c3
        +   b2:i32[64,1] = broadcast_in_dim 0
        +   c4:i32[64,2] = concatenate[dimension=1] b1 b2
        +   g1:f32[64,1,4] = gather[offset_dims=(1, 2), start_index_map=(0, 1), slice_sizes=(1, 4), mode=clip] x c4
        +   t1:f32[64,4,1] = transpose[0, 2, 1] g1
        +   b3:i32[64,1] = broadcast_in_dim[dims=(0,)] c2
        +   c5:i32[64,2] = concatenate[dimension=1] b3 b2
        +   g2:f32[64,1,4] = gather[offset_dims=(1, 2), start_index_map=(0, 1), slice_sizes=(1, 4), mode=clip] d c5
        +   d2:f32[64,1,1] = dot_general[contract=2x1, batch=0x0] g2 t1
        +   r:f32[64] = reshape d2
        +   s5:f32[64] = stop_gradient r
        +   s6:f32[64] = select_n a1 s5 r
        -   return g
        +   return s6
          }
        """,  # noqa: E501
    )


@pytest.mark.parametrize("is_diagonal", [False, True])
def test_windows_of_factors(is_diagonal):
    """Elements at places that go on one by one are made of one window of each factor."""
    program = lambda x, w, at: (x @ w)[jnp.arange(8) if is_diagonal else at, jnp.arange(8)]
    graph = import_jaxpr(traced(program, "f32[8,4]", "f32[4,8]", "i32[8]"))
    (made,) = (op.result for op in graph.walk() if op.name == "dot_general")
    (reads,) = reads_of_rows(made)
    assert reads.windows == [(1 if is_diagonal else 8, 128), (1, 128)]


def test_places_in_an_image_are_left():
    """(1) Of a convolution, no element by itself is computed in less time."""

    def program(images, kernels, at):
        made = lax.conv_general_dilated(images, kernels, (1,), "SAME")
        return made[at[:, 0], at[:, 1]]

    alone(READ, program, "f32[32,2,16]", "f32[6,2,3]", "i32[2,2]", fires=False)


def gathered(offset, collapsed, indexed, sizes):
    numbers = lax.GatherDimensionNumbers(offset, collapsed, indexed)
    return lambda x, ids: lax.gather(jnp.max(x, 2), ids, numbers, sizes, mode="clip")


@pytest.mark.parametrize(
    ("program", "index"),
    [
        (gathered((1,), (0,), (0,), (1, 6)), "i32[2,1]"),
        (gathered((0,), (1,), (1,), (8, 1)), "i32[2,1]"),
    ],
)
def test_rows_that_a_gather_picks(program, index):
    """(1)"""
    graph = alone(READ, program, "f32[8,6,3]", index, fires=True)
    assert not any(op.result.shape == (8, 6) for op in graph.walk() if not op.is_terminator)


@pytest.mark.parametrize(
    ("program", "index"),
    [
        (gathered((), (0, 1), (0, 1), (1, 1)), "i32[2,2]"),  # elements, not rows
        (gathered((2,), (0,), (0,), (1, 6)), "i32[2,1,1]"),  # along two axes
        (gathered((0,), (1,), (1,), (8, 1)), "i32[2,1,1]"),
        (gathered((1,), (1,), (1,), (8, 1)), "i32[2,1]"),  # the axis comes first
        (gathered((1,), (0,), (0,), (1, 2)), "i32[2,1]"),  # and only a part of another axis
        (gathered((1, 2), (), (0,), (2, 6)), "i32[2,1]"),  # slices that may overlap
    ],
)
def test_other_gathers_are_left(program, index):
    """(1)"""
    alone(READ, program, "f32[8,6,3]", index, fires=False)


def test_rows_and_columns_of_one_array_are_different_parts():
    """(2)"""

    def program(x, i):
        best = jnp.max(x, 2)
        return read(best + best.T, i, 0, sizes=(1, 8))

    graph = alone(READ, program, "f32[8,8,3]", "i32[]", fires=True)
    assert any(op.name == "reduce_max" and op.result.shape == (8, 8) for op in graph.walk())


def test_a_factor_that_all_rows_need_is_computed_whole():
    """(2)"""

    def program(x, w, i):
        return read(x @ jnp.max(w, 2), i, 0, sizes=(1, 4))

    graph = alone(READ, program, "i32[8,3]", "i32[3,4,5]", "i32[]", fires=True)
    shapes = {op.name: op.result.shape for op in graph.walk() if op.results}
    assert (shapes["dot_general"], shapes["reduce_max"]) == ((1, 4), (3, 4))


def test_an_axis_that_a_broadcast_adds():
    """(1)"""

    def program(x, w, j):
        best = jnp.max(lax.broadcast_in_dim(w, (8, 4, 3), (1, 2)) * x, 2)
        return read(best, j, 0, sizes=(1, 4))

    graph = alone(READ, program, "f32[8,4,3]", "f32[4,3]", "i32[]", fires=True)
    shapes = {op.name: op.result.shape for op in graph.walk() if op.results}
    assert shapes["broadcast_in_dim"] == (1, 4, 3)


def test_a_batch_of_places_in_one_array_is_left():
    """(1) The maximum has no rows of the batch."""

    def program(x, i):
        copies = jnp.broadcast_to(jnp.max(x, 1), (4, 8))
        return jax.vmap(lambda row, j: read(row, j, sizes=(1,)))(copies, i)

    alone(READ, program, "f32[8,3]", "i32[4]", fires=False)


def test_places_whose_types_say_where_they_are():
    """(1) JAX does not know where the rows are then that are read of an operand."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Explicit,))
    numbers = lax.GatherDimensionNumbers((1,), (), (1,), (0,), (0,))

    def program(x, ids):
        return lax.gather(jnp.max(x, 2), ids[:, None], numbers, (1, 1), mode="clip")

    with jax.set_mesh(mesh):
        ids = jax.device_put(jnp.arange(4), NamedSharding(mesh, PartitionSpec("i")))
        graph = import_jaxpr(traced(program, jnp.ones((4, 8, 3)), ids))
    assert not run_alone((READ,), graph).record(READ.name, False).rewrites


def test_other_readers_need_the_whole():
    """(2)"""

    def program(q, s):
        best = jnp.max(q, axis=1)
        return read(best, s, sizes=(1,)), -best

    alone(READ, program, "f32[8,4]", "i32[]", fires=False)


def test_a_loop_computes_the_rows_that_it_reads():
    """(2, 3) The row of a step, and after the loop the row that it has found."""

    def program(x, i):
        d = jnp.exp(x @ x.T)
        step = lambda i, _: (jnp.argmax(read(d, i, 0, sizes=(1, 512))[0]), ())
        i = lax.scan(step, i, None, length=3)[0]
        return read(d, i, 0, sizes=(1, 512))

    check_rewrite(
        READ,
        program,
        "f32[512,3]",
        "i32[]",
        diff="""
          fn (x:f32[512,3], i:i32[]) {
            t:f32[3,512] = transpose x
        -   d:f32[512,512] = dot_general x t
        -   e:f32[512,512] = exp d
            c:i32[] = scan[3] carry(c=i) {
        -     d:f32[1,512] = dynamic_slice e c 0
        +     d2:f32[1,3] = dynamic_slice x c 0
        +     d3:f32[1,512] = dot_general d2 t
        +     e1:f32[1,512] = exp d3
        -     s:f32[512] = squeeze d
        +     s:f32[512] = squeeze e1
              a:i32[] = argmax[axes=(0,)] s
              yield carry(a)
            }
        -   d1:f32[1,512] = dynamic_slice e c 0
        +   d2:f32[1,3] = dynamic_slice x c 0
        +   d3:f32[1,512] = dot_general d2 t
        +   e1:f32[1,512] = exp d3
        -   return d1
        +   return e1
          }
        """,
    )


BATCH = 4096


def greedy(compare, *, rows=BATCH):
    """Choose rows of a matrix of pairs, one a step, by what is made of two of them."""

    def program(x, i, j):
        d = jnp.exp(jnp.cos(x))
        row = lambda i: read(d, i, 0, sizes=(1, x.shape[1]))

        def step(carry, t):
            i, j, total = carry
            a, b = row(i), row(j)
            return (j + 1, jnp.argmax(a[0]), total + compare(a, b)), ()

        return lax.scan(step, (i, j, jnp.zeros((1, x.shape[1]))), jnp.arange(rows // 1024))[0]

    return program


PAIRS = f"f32[{BATCH},8]", "i32[]", "i32[]"


@pytest.mark.parametrize(
    "meet",
    [
        lambda a, b: a - b,
        lambda a, b: jnp.where(a > 0.5, b, 0.0),
        lambda a, b: jnp.where(jnp.max(a) > 0.5, 1.0, 0.0) * (b > 0.5),
    ],
)
def test_rows_that_are_read_at_several_places(meet):
    """(4) Nothing jumps where two of them meet."""
    alone(READ, greedy(meet), *PAIRS, fires=True)


@pytest.mark.parametrize(
    "meet",
    [
        lambda a, b: jnp.sign(a - b),
        lambda a, b: jnp.where(a == b, 1.0, 0.0),
        lambda a, b: jnp.where(a + b > 0.5, 1.0, 0.0),
    ],
)
def test_rows_that_are_compared_are_read(meet):
    """(4) One would be compared with the other, rounded otherwise."""
    because = "rows of exp that are read at two places are compared"
    check_refuses(READ, greedy(meet), *PAIRS, because=because)


def test_a_loop_that_reads_most_rows():
    because = "what is read is most of exp"
    check_refuses(READ, greedy(jnp.subtract, rows=1024 * BATCH), *PAIRS, because=because)


def test_many_steps_take_as_long_as_all_rows():
    """Each starts ops of its own."""

    def program(x, i):
        d = jnp.exp(x)
        step = lambda i, _: (jnp.argmax(read(d, i, 0, sizes=(1, 2))[0]), ())
        return lax.scan(step, i, None, length=64)[0]

    because = "computing the rows takes as long as computing all of exp"
    check_refuses(READ, program, "f32[512,2]", "i32[]", because=because)


def test_what_the_rows_are_computed_from_is_large():
    """What a table is computed from would be there as long as the table is now."""

    def program(x, w, i):
        table = jnp.max(lax.sort(x * w, dimension=0), 1)
        step = lambda i, _: (jnp.int32(read(table, i, 0, sizes=(1, 2))[0, 0]), ())
        return lax.scan(step, i, None, length=4)[0]

    because = "what it is computed from takes more memory than reduce_max"
    check_refuses(READ, program, "f32[4096,8,2]", "f32[8,1]", "i32[]", because=because)


def test_a_loop_of_unknown_length_is_left():
    """(3)"""

    def program(x, i):
        d = jnp.exp(jnp.cos(x))
        step = lambda i: jnp.argmax(read(d, i, 0, sizes=(1, 8))[0])
        return lax.while_loop(lambda i: i > 3, step, i)

    alone(READ, program, f"f32[{BATCH},8]", "i32[]", fires=False)


def test_a_row_that_only_a_branch_reads():
    """(3) It is computed there."""

    def program(p, x, w, i):
        table = jnp.tanh(x @ w)
        return lax.cond(p, lambda: read(table, i, 0, sizes=(1, 4)), lambda: jnp.zeros((1, 4)))

    graph = alone(READ, program, "bool[]", "f32[64,3]", "f32[3,4]", "i32[]", fires=True)
    assert not any(op.name == "tanh" for op in graph.body.ops)


@pytest.mark.parametrize("reads", ["once", "elsewhere", "in a loop"])
def test_rows_that_were_scattered_to_zeros(reads):
    """Three gradients of a table are no tables if the table that they move is read by rows."""

    def program(table, at, g, j):
        moved, given = jnp.zeros_like(table), []
        for k in range(3):
            given.append(jnp.zeros_like(table).at[at + k].add(g))
            moved = 0.9 * moved + given[-1]
        new, rest = table - 0.1 * moved, jnp.max(table @ table.T) * table
        if reads == "in a loop":
            return lax.map(lambda k: new[k[None]], j), rest
        return new[j], rest, *(given if reads == "elsewhere" else [])

    types = "f32[400,2]", "i32[3]", "f32[3,2]", "i32[4]"
    if reads == "once":
        alone(READ, program, *types, fires=True)
    else:
        check_refuses(READ, program, *types, because="takes more memory than sub")


def test_rows_and_columns_of_a_product():
    """(2) The products are those of each read; both need all of the other factor."""

    def program(x, i):
        gram = x @ x.T
        step = lambda i, _: (jnp.argmax(read(gram, 0, i, sizes=(2048, 1))[:, 0]), ())
        i = lax.scan(step, i, None, length=2)[0]
        return read(gram, i, 0, sizes=(1, 2048))

    graph = alone(READ, program, "i32[2048,8]", "i32[]", fires=True)
    assert not any(v.shape == (2048, 2048) for op in graph.walk() for v in op.results)


def test_most_of_an_array_is_computed_as_a_whole():
    check_refuses(
        READ,
        lambda q, s: read(jnp.max(q, axis=1), s, sizes=(7,)),
        "f32[8,4]",
        "i32[]",
        because="what is read is most of reduce_max",
    )


def test_half_of_the_columns():
    """A copy of half of the weights takes more memory and time than a vector times all of them."""
    columns = lambda x, w: lax.slice(x @ w, (0, 0), (x.shape[0], 32))
    check_refuses(READ, columns, "f32[1,64]", "f32[64,96]", because="a part of w would be copied")
    alone(READ, columns, "f32[64,64]", "f32[64,96]", fires=True)
    one = lambda x, w: lax.slice(x @ w, (0, 7), (1, 8))
    alone(READ, one, "f32[1,64]", "f32[64,32]", fires=True)


@pytest.mark.parametrize("dtype", ["f32", "i32", "bf16", "c64"])
def test_a_sum_of_one_row(dtype):
    """(1) It may be added up in another order."""
    graph = alone(
        READ, lambda x, i: read(x.sum(1), i, sizes=(1,)), f"{dtype}[8,4]", "i32[]", fires=True
    )
    assert not any(op.result.shape == (8,) for op in graph.walk() if not op.is_terminator)


def test_a_sampler_computes_one_row_of_its_head():
    """The logits of all positions are never made."""
    x, w = jnp.cos(jnp.arange(64.0 * 32)).reshape(64, 32), jnp.ones((32, 256))

    def sample(x, w):
        def step(token, t):
            logits = jnp.tanh(x + token) @ w
            return 0.1 * logits[t].max(), None

        return lax.scan(step, 0.0, jnp.arange(63))[0]

    ours = optimize(sample)
    assert_close(ours(x, w), sample(x, w))
    assert memory(ours, x, w) < memory(jax.jit(sample), x, w) / 8
    gradient = jax.jit(jax.grad(ours, 1))
    assert_close(gradient(x, w), jax.grad(sample, 1)(x, w))


def test_a_greedy_choice_computes_a_row_a_step():
    """Nothing is made of all pairs, and the gradient makes no zeros for them."""
    x = jnp.cos(jnp.arange(512.0 * 4)).reshape(512, 4)

    def choose(x):
        pairs = jnp.sum((x[:, None] - x[None]) ** 2, -1)

        def step(carry, _):
            nearest, i = carry
            nearest = jnp.minimum(nearest, pairs[i])
            return (nearest, jnp.argmax(nearest)), None

        return jnp.sum(lax.scan(step, (jnp.full(512, jnp.inf), 0), None, length=8)[0][0])

    ours = optimize(choose)
    assert_close(ours(x), choose(x))
    assert memory(ours, x) < memory(jax.jit(choose), x) / 8
    gradient = jax.jit(jax.grad(ours))
    assert_close(gradient(x), jax.grad(choose)(x))
    assert memory(gradient, x) < memory(jax.jit(jax.grad(choose)), x) / 8


def test_rows_without_elements():
    program = lambda x, w: jnp.tanh(x @ w)[3:5]
    alone(READ, program, "f32[60,16]", "f32[16,0]", fires=False)
