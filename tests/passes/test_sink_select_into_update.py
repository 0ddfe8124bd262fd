"""A select between versions of an array becomes one between what is written, where it may."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from jaxpr_opt import optimize
from jaxpr_opt.analysis.steps.skips import Skip, find_skips
from jaxpr_opt.engine.registry import default_pipeline
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir.graph import Phase
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.masks.sink_select_into_update import SinkSelectIntoUpdate
from jaxpr_opt.passes.residuals.narrow_residuals import NarrowResiduals
from jaxpr_opt.passes.windows.narrow_reads import NarrowReads
from jaxpr_opt.passes.windows.slice_known_windows import SliceKnownWindows
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.graphs import scans
from tests.loops import alone

SINK = SinkSelectIntoUpdate()


class FinalSink(SinkSelectIntoUpdate):
    """Once nobody differentiates any more."""

    phase: ClassVar[Phase] = "final"


FINAL = FinalSink()


def update(b, u, *starts):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_update_slice(b, u, starts, allow_negative_indices=False)


def left_of(program, *args, phase="differentiable"):
    """The graph after the pass, those that tidy up, and those by which masks can be compared."""
    graph = import_jaxpr(traced(program, *args), phase)
    run_alone((SINK, NarrowReads(), NarrowResiduals(), *CLEANUP), graph)
    return graph


def selects(graph):
    """The shapes of what is selected."""
    return [op.result.shape for op in graph.walk() if op.name == "select_n"]


def test_one_predicate_for_all():
    """Where p is false, what is there is written again."""

    def program(p, b, u, i):
        return lax.select_n(p, b, update(b, u, i))

    check_rewrite(
        SINK,
        program,
        "bool[]",
        "f32[8]",
        "f32[2]",
        "i32[]",
        diff="""
            fn (p:bool[], b:f32[8], u:f32[2], i:i32[]) {
          +   d1:f32[2] = dynamic_slice b i
          +   s1:f32[2] = select_n p d1 u
          -   d:f32[8] = dynamic_update_slice b u i
          +   d:f32[8] = dynamic_update_slice b s1 i
          -   s:f32[8] = select_n p b d
          -   return s
          +   return d
            }
        """,
    )


def test_rows_of_a_batch():
    """A place of its own in each row: where p is false, the write is dropped."""

    def program(p, b, u, i):
        rows = jax.vmap(lambda b, u, i: b.at[i].set(u, mode="drop", wrap_negative_indices=False))
        return jnp.where(p[:, None], rows(b, u, i), b)

    check_rewrite(
        SINK,
        program,
        "bool[3]",
        "f32[3,8]",
        "f32[3]",
        "i32[3]",
        diff="""
            fn (p:bool[3], b:f32[3,8], u:f32[3], i:i32[3]) {
          +   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
          +   b4:i32[3,1] = broadcast_in_dim 8
              b1:bool[3,1] = broadcast_in_dim[dims=(0,)] p
          -   b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
          +   s2:i32[3,1] = select_n b1 b4 b2
          -   s:f32[3,8] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b b2 u
          +   s:f32[3,8] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b s2 u
          -   b3:bool[3,8] = broadcast_in_dim b1
          -   s1:f32[3,8] = select_n b3 b s
          -   return s1
          +   return s
            }
        """,  # noqa: E501
        simplify=True,
    )


def test_a_row_of_predicates():
    """(3) The window is a column: the predicate is its own."""

    def program(p, b, u, i):
        return jnp.where(p[:, None], update(b, u, 0, i), b)

    check_rewrite(
        SINK,
        program,
        "bool[3]",
        "f32[3,8]",
        "f32[3,1]",
        "i32[]",
        diff="""
            fn (p:bool[3], b:f32[3,8], u:f32[3,1], i:i32[]) {
              b1:bool[3,1] = broadcast_in_dim[dims=(0,)] p
          -   d:f32[3,8] = dynamic_update_slice b u 0 i
              b2:bool[3,8] = broadcast_in_dim b1
          -   s:f32[3,8] = select_n b2 b d
          +   d1:f32[3,1] = dynamic_slice b 0 i
          +   b3:bool[3,1] = broadcast_in_dim[dims=(0,)] p
          +   s1:f32[3,1] = select_n b3 d1 u
          +   d2:f32[3,8] = dynamic_update_slice b s1 0 i
          -   return s
          +   return d2
            }
        """,
    )


def test_a_predicate_that_varies_along_the_window():
    """(3) It is read as the array is."""

    def program(p, b, u, i):
        return lax.select_n(p, b, update(b, u, i))

    check_rewrite(
        SINK,
        program,
        "bool[8]",
        "f32[8]",
        "f32[2]",
        "i32[]",
        diff="""
            fn (p:bool[8], b:f32[8], u:f32[2], i:i32[]) {
          +   d1:f32[2] = dynamic_slice b i
          +   d2:bool[2] = dynamic_slice p i
          +   s1:f32[2] = select_n d2 d1 u
          -   d:f32[8] = dynamic_update_slice b u i
          +   d:f32[8] = dynamic_update_slice b s1 i
          -   s:f32[8] = select_n p b d
          -   return s
          +   return d
            }
        """,
    )


@pytest.mark.parametrize("shape", ["bool[8,1]", "bool[1,3]"])
def test_a_predicate_of_each_element(shape):
    """(3) A write that is dropped is dropped as a whole: where it is not, what is there is read."""

    def program(p, b, u, i):
        mask = jnp.broadcast_to(p, b.shape)
        return lax.select_n(mask, b, b.at[i].set(u, mode="drop", wrap_negative_indices=False))

    for place in (-1, 0, 7, 8):
        alone(SINK, program, shape, "f32[8,3]", "f32[3]", jnp.int32(place), fires=True)


def test_clamped_rows():
    """(2) A window that is clamped is read where it is written."""

    def program(p, b, u, i):
        rows = jax.vmap(lambda b, u, i: b.at[i].set(u, mode="clip", wrap_negative_indices=False))
        return jnp.where(p[:, None], b, rows(b, u, i))

    check_rewrite(
        SINK,
        program,
        "bool[3]",
        "f32[3,8]",
        "f32[3]",
        "i32[3]",
        diff="""
            fn (p:bool[3], b:f32[3,8], u:f32[3], i:i32[3]) {
              b1:bool[3,1] = broadcast_in_dim[dims=(0,)] p
              b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
          -   s:f32[3,8] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b2 u
              b3:bool[3,8] = broadcast_in_dim b1
          -   s1:f32[3,8] = select_n b3 s b
          +   g:f32[3] = gather[collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1), unique_indices, indices_are_sorted, mode=clip] b b2
          +   s2:f32[3] = select_n p u g
          +   s3:f32[3,8] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b2 s2
          -   return s1
          +   return s3
            }
        """,  # noqa: E501
    )


def test_additions():
    """(2) Where p is false, zero is added."""

    def program(p, b, u, i):
        return jnp.where(p, b.at[i].add(u, mode="clip", wrap_negative_indices=False), b)

    check_rewrite(
        SINK,
        program,
        "bool[]",
        "f32[8]",
        "f32[]",
        "i32[]",
        diff="""
            fn (p:bool[], b:f32[8], u:f32[], i:i32[]) {
              b1:i32[1] = broadcast_in_dim i
          +   s2:f32[] = select_n p 0.0 u
          -   s:f32[8] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b1 u
          +   s:f32[8] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b1 s2
          -   s1:f32[8] = select_n p b s
          -   return s1
          +   return s
            }
        """,  # noqa: E501
    )


def sums_of_zeros(p, i, j, u):
    """A cotangent of a table that is read at two places, of rows that a branch takes."""
    zeros = jnp.zeros((3, 8))
    add = jax.vmap(lambda z, i, u: z.at[i].add(u, mode="clip", wrap_negative_indices=False))
    return jnp.where(p[:, None], add(zeros, i, u) + add(zeros, j, 2 * u), zeros)


def test_sums_of_zeros_with_windows():
    """(1) They are one array with several windows added; two of a row may coincide."""
    check_rewrite(
        SINK,
        sums_of_zeros,
        "bool[3]",
        "i32[3]",
        "i32[3]",
        "f32[3]",
        simplify=True,
        diff="""
            fn (p:bool[3], i:i32[3], j:i32[3], u:f32[3]) {
              b:f32[3,8] = broadcast_in_dim 0.0
          -   b1:bool[3,1] = broadcast_in_dim[dims=(0,)] p
              b2:i32[3,1] = broadcast_in_dim[dims=(0,)] i
          -   s:f32[3,8] = scatter-add[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b2 u
              m:f32[3] = mul 2.0 u
              b3:i32[3,1] = broadcast_in_dim[dims=(0,)] j
          +   b5:f32[3] = broadcast_in_dim 0.0
          +   s3:f32[3] = select_n p b5 u
          -   s1:f32[3,8] = scatter-add[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b3 m
          +   s1:f32[3,8] = scatter-add[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] b b2 s3
          -   a:f32[3,8] = add s s1
          -   b4:bool[3,8] = broadcast_in_dim b1
          -   s2:f32[3,8] = select_n b4 b a
          +   s4:f32[3] = select_n p b5 m
          +   s5:f32[3,8] = scatter-add[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=clip] s1 b3 s4
          -   return s2
          +   return s5
            }
        """,  # noqa: E501
    )
    for i, j in (([1, 9, 3], [1, 2, 3]), ([-1, 0, 7], [0, 0, 7])):
        args = jnp.array([True, False, True]), jnp.array(i), jnp.array(j), jnp.arange(3.0) + 0.1
        alone(SINK, sums_of_zeros, *args, fires=True)


@pytest.mark.parametrize("other", [jnp.ones, jnp.zeros])
def test_sums_with_another_array(other):
    """(1) It is added, too; and what is written into zeros is no addition."""

    def added(p, i, u):
        zeros = jnp.zeros((3, 8))
        made = zeros.at[jnp.arange(3), i].set(u) + zeros.at[jnp.arange(3), i].add(u) * other((3, 8))
        return jnp.where(p[:, None], made, zeros)

    alone(SINK, added, "bool[3]", "i32[3]", "f32[3]", fires=False)


@pytest.mark.parametrize(
    "made",
    [
        lambda u, i: lax.dynamic_update_slice(jnp.zeros(300), u, (i,)),
        lambda u, i: jnp.ones(300).at[i].add(u[0], mode="clip", wrap_negative_indices=False),
    ],
    ids=["written into zeros", "added to ones"],
)
def test_sums_with_what_is_no_window_added_to_zeros(made):
    """(1)"""
    added = lambda p, b, u, i: lax.select_n(p, b, b + made(u, i))
    alone(SINK, added, "bool[]", "f32[300]", "f32[2]", "i32[]", fires=False)


@pytest.mark.parametrize("how", ["add", "multiply", "min", "max"])
@pytest.mark.parametrize("dtype", ["int8", "uint32", "bfloat16", "float32"])
def test_numbers_that_change_nothing(how, dtype):
    """(2) Where p is false, also NaN is multiplied by one, and compared with infinity."""

    def program(p, b, u, i):
        return jnp.where(p[:, None], changed(b, u, i), b)

    @jax.vmap
    def changed(b, u, i):
        return getattr(b.at[i], how)(u, mode="drop")

    numbers = jnp.array([0, 1, 3, 100, jnp.inf, -jnp.inf, jnp.nan, -0.0])
    b = jnp.tile(numbers, (8, 1)).astype(dtype)
    p, i = jnp.arange(8) % 2 == 0, jnp.array([6, 6, 4, 4, -1, 99, 5, 5])
    alone(SINK, program, p, b, b[0, ::-1], i, fires=True)
    alone(SINK, program, ~p, b, b[0, ::-1], i, fires=True)


def test_products_of_complex_numbers():
    """(2) None changes nothing: they are read."""
    program = lambda p, b, u, i: jnp.where(p, b.at[i].multiply(u), b)
    alone(SINK, program, "bool[]", "c64[8]", "c64[]", "i32[]", fires=False)


def test_writes_in_both_cases():
    """(1) Two writes in one case, one in the other, into the same array."""

    def program(p, b, u, i, j):
        return lax.select_n(p, update(b, u, j), update(update(b, u, i), u + 1, j))

    args = "bool[]", "f32[8]", "f32[1]", "i32[]", "i32[]"
    check_rewrite(
        SINK,
        program,
        *args,
        diff="""
            fn (p:bool[], b:f32[8], u:f32[1], i:i32[], j:i32[]) {
          -   d:f32[8] = dynamic_update_slice b u j
          -   d1:f32[8] = dynamic_update_slice b u i
              a:f32[1] = add u 1.0
          +   d3:f32[1] = dynamic_slice b j
          +   s1:f32[1] = select_n p u d3
          -   d2:f32[8] = dynamic_update_slice d1 a j
          +   d2:f32[8] = dynamic_update_slice b s1 j
          -   s:f32[8] = select_n p d d2
          +   d4:f32[1] = dynamic_slice d2 i
          +   s2:f32[1] = select_n p d4 u
          +   d5:f32[8] = dynamic_update_slice d2 s2 i
          +   d6:f32[1] = dynamic_slice d5 j
          +   s3:f32[1] = select_n p d6 a
          +   d7:f32[8] = dynamic_update_slice d5 s3 j
          -   return s
          +   return d7
            }
        """,
    )


def test_selects_on_the_way():
    """(1) What vmap hands to a branch is selected by the same predicate."""

    def program(p, a, b, u, i):
        inside = lax.select_n(p, a, b)
        return lax.select_n(p, b, update(inside, u, i))

    check_rewrite(
        SINK,
        program,
        "bool[]",
        "f32[8]",
        "f32[8]",
        "f32[2]",
        "i32[]",
        diff="""
            fn (p:bool[], a:f32[8], b:f32[8], u:f32[2], i:i32[]) {
              s:f32[8] = select_n p a b
          +   d1:f32[2] = dynamic_slice b i
          +   s2:f32[2] = select_n p d1 u
          -   d:f32[8] = dynamic_update_slice s u i
          +   d:f32[8] = dynamic_update_slice b s2 i
          -   s1:f32[8] = select_n p b d
          -   return s1
          +   return d
            }
        """,
    )


@pytest.mark.parametrize(
    ("program", "args"),
    [
        pytest.param(
            lambda p, a, b, u, i: lax.select_n(p, a, update(b, u, i)),
            ["bool[]", "f32[8]", "f32[8]", "f32[2]", "i32[]"],
            id="another array",
        ),
        pytest.param(
            lambda p, q, a, b, u, i: lax.select_n(p, b, update(lax.select_n(q, a, b), u, i)),
            ["bool[]", "bool[]", "f32[8]", "f32[8]", "f32[2]", "i32[]"],
            id="selected by another predicate",
        ),
        pytest.param(
            lambda p, a, b, u, i: lax.select_n(p, b, update(lax.select_n(p, b, a), u, i)),
            ["bool[]", "f32[8]", "f32[8]", "f32[2]", "i32[]"],
            id="the other case of the same predicate",
        ),
        pytest.param(
            lambda p, b, u, i: lax.select_n(p, lax.iota("float32", 8), update(b, u, i)),
            ["bool[]", "f32[8]", "f32[2]", "i32[]"],
            id="made of nothing",
        ),
        pytest.param(
            lambda p, b, u, i: lax.select_n(p, b, -update(b, u, i)),
            ["bool[]", "f32[8]", "f32[2]", "i32[]"],
            id="not only written",
        ),
        pytest.param(
            lambda p, b, i: lax.select_n(p, b, lax.dynamic_slice(b, (i,), (8,))),
            ["bool[]", "f32[8]", "i32[]"],
            id="read",
        ),
        pytest.param(
            lambda p, a, b, u, i: lax.select_n(p, b, update(b, u, i), a),
            ["i32[]", "f32[8]", "f32[8]", "f32[2]", "i32[]"],
            id="another array in one of three cases",
        ),
    ],
)
def test_other_arrays(program, args):
    """(1) Outside of the windows the cases must be the same."""
    graph = import_jaxpr(traced(program, *args))
    assert not run_alone((SINK,), graph).record(SINK.name, False).rewrites


@pytest.mark.parametrize("p", [-7, 0, 1, 2, 9])
def test_three_cases(p):
    """(2) The first and the last are chosen by numbers that are out of range, too."""

    def program(p, b, u, i):
        return lax.select_n(p, update(b, u, i + 3), b, update(b, -u, i))

    args = np.int32(p), np.arange(8, dtype=np.float32), np.ones(2, np.float32), np.int32(2)
    graph = alone(SINK, program, *args, fires=True)
    assert (8,) not in selects(graph)


def switched(*branches, mode=None):
    """Rows of a batch, each of which writes as its own number says, or not."""
    given = {"mode": mode, "wrap_negative_indices": False}

    def program(k, b, u, i):
        cases = [jax.vmap(lambda *a, f=f: f(*a, given))(b, u, i) for f in branches]
        return lax.select_n(lax.broadcast_in_dim(k, b.shape, (0,)), *cases)

    return program


def here(b, u, i, given):
    return b.at[i].set(u, **given)


def before(b, u, i, given):
    return b.at[i - 1].set(-u, **given)


def nowhere(b, u, i, given):
    return b


def twice(b, u, i, given):
    """The second write stays where both are of one place."""
    return here(before(b, u, jnp.maximum(i, 3), given), u, i + i % 2, given)


@pytest.mark.parametrize(
    ("branches", "mode", "written"),
    [
        ((here, before, here), "drop", 1),
        ((here, before, here), "clip", 1),
        ((here, nowhere, before), "drop", 1),
        ((here, nowhere, before), "clip", 2),
        ((here, twice, nowhere), "drop", 2),
        ((twice, nowhere, lambda b, u, i, g: twice(b, -u, i - 1, g)), "drop", 2),
        ((twice, lambda b, u, i, g: twice(b, -u, i - 1, g), here), "clip", 3),
        ((lambda b, u, i, g: b.at[i].set(u, mode="clip"), before, here), "drop", 2),
        ((lambda b, u, i, g: b.at[i].add(u, **g), before, here), "drop", 2),
        ((lambda b, u, i, g: here(b.at[i].add(u, **g), -u, i, g), before, twice), "drop", 3),
    ],
)
def test_branches_of_a_batch(branches, mode, written):
    """(2) One write of what is chosen for each kind of writes; of each case in their order."""
    types = "i32[5]", "f32[5,16]", "f32[5]", "i32[5]"
    graph = alone(SINK, switched(*branches, mode=mode), *types, fires=True)
    assert sum(op.name.startswith("scatter") for op in graph.walk()) == written


def test_operands_of_a_branch():
    """(1) `vmap` selects what it passes to a branch by whether the branch is taken."""

    def step(b, i, u, n):
        return lax.switch(n, [lambda: b.at[i].set(u), lambda: b, lambda: b.at[i].add(b[i - 1])])

    graph = left_of(jax.vmap(step), "f32[5,64]", "i32[5]", "f32[5]", "i32[5]")
    assert (5, 64) not in selects(graph)


def test_more_than_one_window():
    """(2) Two windows may overlap."""
    program = lambda p, b, u, i: lax.select_n(p, b, b.at[i].set(u))
    graph = import_jaxpr(traced(program, "bool[]", "f32[8]", "f32[2]", "i32[2]"))
    assert not run_alone((SINK,), graph).record(SINK.name, False).rewrites


def test_keys():
    """(2) A gather cannot fill with keys."""

    def program(p, b, u, i):
        return lax.select_n(p, b, b.at[i].set(u, mode="drop"))

    keys = jax.random.split(jax.random.key(0), 8)
    args = jnp.array(True), keys, keys[0], jnp.int32(3)
    check_refuses(SINK, program, *args, because="a window of key<fry> is read")


def test_indices_too_small_to_be_out_of_range():
    """(2) An int8 reaches no place outside of 200: the window is read instead."""

    one = lax.ScatterDimensionNumbers((), (0,), (0,))
    drop = lax.GatherScatterMode.FILL_OR_DROP

    def program(p, b, u, i):
        return lax.select_n(p, b, lax.scatter(b, i, u, one, mode=drop))

    names = {}
    for dtype in ("i8[1]", "i16[1]"):
        graph = left_of(program, "bool[]", "f32[200]", "f32[]", dtype)
        names[dtype] = [op.name for op in graph.walk()]
    assert "gather" in names["i8[1]"]
    assert "gather" not in names["i16[1]"]


def test_a_version_read_elsewhere():
    """(4) It would have to be made as well."""

    def program(p, b, u, i):
        new = update(b, u, i)
        return lax.select_n(p, b, new), new.sum()

    because = "what dynamic_update_slice makes is read elsewhere"
    check_refuses(SINK, program, "bool[]", "f32[8]", "f32[2]", "i32[]", because=because)


WRITES = jax.vmap(lambda b, u, i: b.at[i].set(u, mode="drop", wrap_negative_indices=False))


def batch_step(read=lambda new, h: jnp.tanh(h + new.sum(1)), take=jnp.where):
    """A step of a batch writes, reads all that is there, and counts for the rows `p`."""

    def program(p, b, h, i):
        new = WRITES(b, h, i)
        return jnp.where(p[:, None], new, b), take(p, read(new, h), h)

    return program


BATCH = "bool[3]", "f32[3,3]", "f32[3]", "i32[3]"


def told(new, h):
    jax.debug.callback(lambda _: None, new)
    return h


def turned(new, h):
    return lax.cond(h[0] > 0, lambda: new, lambda: new.T)


def put(mode):
    """Rows that do not count are written out of range."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    places = lambda p: jnp.where(p[:, None], jnp.arange(3)[:, None], 9)
    return lambda p, a, h: lax.scatter(h, places(p), a, numbers, mode=mode)


def test_a_version_read_for_the_rows_that_are_taken():
    """(4) The sum of a row counts where the row is written: it is of the new array."""
    check_rewrite(
        FINAL,
        batch_step(),
        *BATCH,
        diff="""
            fn (p:bool[3], b:f32[3,3], h:f32[3], i:i32[3]) {
              b1:i32[3,1] = broadcast_in_dim[dims=(0,)] i
          -   s:f32[3,3] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b b1 h
          +   b4:i32[3,1] = broadcast_in_dim 3
              b2:bool[3,1] = broadcast_in_dim[dims=(0,)] p
          -   b3:bool[3,3] = broadcast_in_dim b2
          -   s1:f32[3,3] = select_n b3 b s
          +   s3:i32[3,1] = select_n b2 b4 b1
          +   s4:f32[3,3] = scatter[inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b s3 h
          -   r:f32[3] = reduce_sum[axes=(1,)] s
          +   r:f32[3] = reduce_sum[axes=(1,)] s4
              a:f32[3] = add h r
              t:f32[3] = tanh a
              s2:f32[3] = select_n p h t
          -   return s1, s2
          +   return s4, s2
            }
        """,  # noqa: E501
        simplify=True,
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(batch_step(take=lambda p, a, h: jnp.where(p, h, a)), id="other rows count"),
        pytest.param(batch_step(take=lambda p, a, h: jnp.where(p | (h > 0), a, h)), id="more rows"),
        pytest.param(batch_step(take=lambda p, a, h: jnp.where(p[::-1], a, h)), id="reversed"),
        pytest.param(batch_step(take=lambda p, a, h: jnp.where(p, a, a * 2)), id="both cases"),
        pytest.param(batch_step(take=lambda p, a, h: a * p), id="a product with zeros"),
        pytest.param(batch_step(lambda new, h: h + new.sum()), id="of all rows"),
        pytest.param(batch_step(lambda new, h: h + new.sum(0)), id="of columns"),
        pytest.param(batch_step(lambda new, h: h + jnp.cumsum(new, 0)[:, 0]), id="of rows before"),
        pytest.param(batch_step(lambda new, h: new @ new[1]), id="of one row for all"),
        pytest.param(batch_step(lambda new, h: h.at[new.argmax(1)].set(0)), id="places"),
        pytest.param(batch_step(told), id="told to the host"),
        pytest.param(batch_step(lambda new, h: turned(new, h)[:, 0]), id="rows or columns"),
        pytest.param(batch_step(lambda new, h: turned(new, h)[0]), id="columns or rows"),
        pytest.param(
            batch_step(lambda new, h: lax.clamp(0.0, h, new.sum(1)), lambda p, a, h: a), id="limits"
        ),
        pytest.param(
            lambda p, b, h, i: (
                (new := WRITES(b, h, i)),
                jnp.where(p[:, None], new, b),
                jnp.where(p, new.sum(1), h),
            ),
            id="returned",
        ),
    ],
)
def test_a_version_of_which_rows_count_that_are_not_taken(program):
    """(4) What other rows would become is seen."""
    because = "what scatter makes is read elsewhere, too"
    check_refuses(FINAL, program, *BATCH, because=because)


@pytest.mark.parametrize(
    "made",
    [
        lambda p, new, h: lax.cond(new.sum() > 0, lambda: h, lambda: 2 * h),
        lambda p, new, h: jnp.where(p, told(new, h), 2 * h),
        lambda p, new, h: lax.select_n(p, h, jax.pure_callback(np.sin, h, new[:3])),
        lambda p, new, h: lax.select_n(p, h, lax.while_loop(jnp.any, lambda x: x / 2, new)[:3]),
    ],
    ids=["a branch", "a message", "a callback", "whether a loop ends"],
)
def test_what_a_version_decides_whatever_the_predicate(made):
    """(4)"""

    def program(p, b, h, i):
        new = lax.dynamic_update_slice(b, h, (i,))
        return lax.select_n(p, b, new), made(p, new, h)

    args = "bool[]", "f32[300]", "f32[3]", "i32[]"
    check_refuses(FINAL, program, *args, because="is read elsewhere, too")


@pytest.mark.parametrize("mode", ["drop", "clip"])
def test_rows_that_are_dropped(mode):
    """(4) Unless the last row is written instead."""
    alone(FINAL, batch_step(lambda new, h: new.sum(1), put(mode)), *BATCH, fires=mode == "drop")


def test_a_version_that_may_be_differentiated():
    """(4) A cotangent of zero times what the old rows lead to may be NaN."""
    because = "what scatter makes is read elsewhere, too"
    check_refuses(SINK, batch_step(), *BATCH, because=because)


def test_a_predicate_that_depends_on_what_is_read():
    """(4) It is not known when the window is written."""

    def program(b, h, i):
        new = WRITES(b, h, i)
        p = new.sum(1) > 0
        return jnp.where(p[:, None], new, b), jnp.where(p, jnp.tanh(new.sum(1)), h)

    because = "what scatter makes is read elsewhere, too"
    check_refuses(FINAL, program, *BATCH[1:], because=because)


def asked(h):
    """What only the host knows, at the time when it is asked."""
    return io_callback(lambda h: h > 0, jax.ShapeDtypeStruct(h.shape, bool), h, ordered=True)


def chosen_late(ask, take):
    """The predicate is made when the array has been written."""

    def program(b, h, i):
        new = WRITES(b, h, i)
        p = ask(new, h)
        return jnp.where(p[:, None], new, b), take(p, new, h)

    return program


@pytest.mark.parametrize(
    ("ask", "take"),
    [
        (lambda new, h: new.sum(1) > 0, lambda p, new, h: h),
        (lambda new, h: asked(h), lambda p, new, h: jnp.where(p, new.sum(1), h)),
    ],
    ids=["of what is written", "told by the host"],
)
def test_a_predicate_that_cannot_be_known_earlier(ask, take):
    """(4) It would have to move before what it is made of, or before another effect."""
    check_refuses(FINAL, chosen_late(ask, take), *BATCH[1:], because="known only after")


def test_a_predicate_that_need_not_be_known_earlier():
    """(4) Nothing else reads the array."""
    program = chosen_late(lambda new, h: asked(h), lambda p, new, h: h)
    graph = import_jaxpr(traced(program, *BATCH[1:]), "final")
    assert run_alone((FINAL,), graph).record(FINAL.name, False).rewrites


def test_a_version_of_the_other_case():
    """(4) Its rows are those where the select takes its own case."""

    def program(p, b, h, i):
        new, other = WRITES(b, h, i), WRITES(b, -h, i)
        return jnp.where(p[:, None], new, other), jnp.where(p, h, jnp.tanh(new.sum(1)))

    check_refuses(FINAL, program, *BATCH, because="what scatter makes is read elsewhere, too")


def test_versions_in_between():
    """(4) Each read sees what has been written before it, as in layers with one cache."""

    def program(p, b, h, i, j):
        first = WRITES(b, h, i)
        mean = first.mean(1)
        second = WRITES(first, mean, j)
        return jnp.where(p[:, None], second, b), jnp.where(p, second.sum(1), h)

    types = "bool[3]", "f32[3,8]", "f32[3]", "i32[3]", "i32[3]"
    graph = alone(FINAL, program, *types, fires=True)
    assert (3, 8) not in selects(graph)
    check_refuses(SINK, program, *types, because="what scatter makes is read elsewhere, too")


@pytest.mark.parametrize(
    "take",
    [lambda k, h, a: jnp.where(k == 1, a, h), lax.select_n],
    ids=["the same case", "all cases but the first"],
)
def test_one_of_three_cases_that_is_read_elsewhere(take):
    """(4) Which rows count is followed for truth values only."""

    def program(k, b, h, i):
        new = WRITES(b, h, i)
        which = lax.broadcast_in_dim(k, b.shape, (0,))
        return lax.select_n(which, b, new, b), take(k, h, jnp.tanh(new.sum(1)))

    because = "what scatter makes is read elsewhere, too"
    types = "i32[3]", "f32[3,8]", "f32[3]", "i32[3]"
    check_refuses(FINAL, program, *types, because=because)


def test_what_is_read_and_written_to_another_array():
    """(4) There it is dropped for the other rows; not if other rows are dropped there."""

    def program(p, q, b, c, h, i):
        new = WRITES(b, h, i)
        other = WRITES(c, new.sum(1), i)
        return jnp.where(p[:, None], new, b), jnp.where(q[:, None], other, c)

    arrays = "f32[3,8]", "f32[3,8]", "f32[3]", "i32[3]"
    both = lambda p, *args: program(p, p, *args)
    graph = alone(FINAL, both, "bool[3]", *arrays, fires=True)
    assert (3, 8) not in selects(graph)
    graph = alone(FINAL, program, "bool[3]", "bool[3]", *arrays, fires=True)
    assert selects(graph).count((3, 8)) == 1


def test_rows_that_an_and_of_predicates_takes():
    """(4) They are some of the rows that are taken."""
    program = batch_step(take=lambda p, a, h: jnp.where(p & (h > 0), a, h))
    assert selects(left_of(program, *BATCH, phase="final")) == [(3, 1), (3,)]


def stored(reverse):
    """Each version is read once more, by a second loop."""

    def program(p, b, at, xs):
        def step(b, ix):
            new = update(b, ix[1][None], ix[0])
            return lax.select_n(p, b, new), new

        last, versions = lax.scan(step, b, (at, xs))
        total = lambda total, new: (total * 0.5 + new.sum(), None)
        return last, lax.scan(total, 0.0, versions, reverse=reverse)[0]

    return program


VERSIONS = "bool[]", "f32[8]", "i32[6]", "f32[6]"


def test_a_version_that_a_loop_stores():
    """(4) It is written once more, into the new array, of which no version needs to be stored."""
    check_rewrite(
        SINK,
        stored(reverse=True),
        *VERSIONS,
        diff="""
            fn (p:bool[], b:f32[8], at:i32[6], xs:f32[6]) {
              c:f32[8], ys:f32[6,8] = scan[6] carry(c=b) xs(x=at, x1=xs) {
                b:f32[1] = broadcast_in_dim x1
          +     d1:f32[1] = dynamic_slice c x
          +     s1:f32[1] = select_n p d1 b
          -     d:f32[8] = dynamic_update_slice c b x
          +     d:f32[8] = dynamic_update_slice c s1 x
          -     s:f32[8] = select_n p c d
          +     d2:f32[8] = dynamic_update_slice d b x
          -     yield carry(s) ys(d)
          +     yield carry(d) ys(d2)
              }
              c1:f32[] = scan[6, reverse] carry(c=0.0) xs(x=ys) {
                m:f32[] = mul c 0.5
                r:f32[] = reduce_sum[axes=(0,)] x
                c1:f32[] = convert_element_type m
                a:f32[] = add c1 r
                yield carry(a)
              }
              return c, c1
            }
        """,
    )


def test_a_version_that_is_stored_for_something_else():
    """(4) Writes cannot be undone in the order in which they are made."""
    because = "what dynamic_update_slice makes is read elsewhere, too"
    check_refuses(SINK, stored(reverse=False), *VERSIONS, because=because)


def decoding(weights, start, count):
    """Each row attends to what it has written so far, as often as it says."""

    def body(state):
        i, h, cache = state
        cache = cache.at[i].set(h @ weights[0])
        scores = jnp.where(jnp.arange(6) <= i, cache @ (h @ weights[1]), -jnp.inf)
        return i + 1, jnp.tanh(h + jax.nn.softmax(scores) @ cache), cache

    return lax.while_loop(lambda s: s[0] < count, body, (0, start, jnp.zeros((6, 4))))[1]


def masked(weights, start, count):
    """The same in a scan."""

    def body(state, t):
        h, cache = state
        cache = cache.at[t].set(h @ weights[0])
        scores = jnp.where(jnp.arange(6) <= t, cache @ (h @ weights[1]), -jnp.inf)
        new = jnp.tanh(h + jax.nn.softmax(scores) @ cache), cache
        return jax.tree.map(lambda a, b: jnp.where(t < count, a, b), new, state), h.sum()

    (h, _), sums = lax.scan(body, (start, jnp.zeros((6, 4))), jnp.arange(6))
    return h.sum() + jnp.where(jnp.arange(6) < count, sums, 0.0).sum()


def recalled(weights, start, count):
    """What has been seen so far, of which nothing is finite at first."""

    def body(state, t):
        h, seen = state
        seen = seen.at[t].set(jnp.tanh(weights[0, 0] @ h))
        new = h * jax.nn.logsumexp(seen), seen
        return jax.tree.map(lambda a, b: jnp.where(t < count, a, b), new, state), None

    (h, _), _ = lax.scan(body, (start, jnp.full(6, -jnp.inf)), jnp.arange(6))
    return h.sum()


WEIGHTS = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
STARTS = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
COUNTS = np.array([0, 5, 3])


def test_decoding_a_batch():
    """Rows stop one after the other; nothing of the size of the caches is selected."""
    batch = jax.vmap(decoding, (None, 0, 0))
    graph = left_of(batch, WEIGHTS, STARTS, COUNTS, phase="final")
    assert max(np.prod(shape) for shape in selects(graph)) < 3 * 6 * 4
    args = WEIGHTS, STARTS, COUNTS
    ours = optimize(batch, skip=["compile-small-loops"])  # as one function it is rounded otherwise
    assert_same_bits(ours(*args), jax.jit(batch)(*args))
    assert_close(optimize(batch)(*args), jax.jit(batch)(*args))


@pytest.mark.parametrize("inside", [True, False])
def test_a_row_that_is_never_taken(inside):
    """(4) What it would compute of what the array began with is not finite."""
    many = jax.vmap(recalled, (None, 0, 0))
    loss = lambda *args: many(*args).sum()
    plain = jax.jit(jax.grad(loss))(WEIGHTS, STARTS, COUNTS)
    assert np.isfinite(plain).all()
    gradient = jax.jit(jax.grad(optimize(loss))) if inside else optimize(jax.grad(loss))
    assert_close(gradient(WEIGHTS, STARTS, COUNTS), plain)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["batch", "one row"])
def test_gradients_of_decoding(size):
    """No version of a cache is stored: writes are undone, in a loop that may stop early, too."""
    batch = size == "batch"
    many = jax.vmap(masked, (None, 0, 0))
    loss = (lambda *args: many(*args).sum()) if batch else masked
    args = (WEIGHTS, STARTS, COUNTS) if batch else (WEIGHTS, STARTS[1], COUNTS[2])
    plain = jax.jit(jax.grad(loss))(*args)
    assert_close(optimize(jax.grad(loss))(*args), plain)
    assert_close(jax.jit(jax.grad(optimize(loss)))(*args), plain)
    tangents = jax.tree.map(jnp.ones_like, args[0])
    forward = lambda f: jax.jvp(lambda w: f(w, *args[1:]), args[:1], (tangents,))
    assert_close(forward(optimize(loss)), forward(loss))
    graph = import_jaxpr(traced(jax.grad(loss), *args), "final")
    default_pipeline().apply(graph, Journal("final"))
    stacks = [s for op in scans(graph) for s in op.stacks]
    assert not [s for s in stacks if s.value.nbytes >= 6 * 4 * 4 * (3 if batch else 1)]


def test_a_version_in_between_read_elsewhere():
    """(4) Also where it is written once more."""

    def program(p, b, u, i):
        new = update(b, u, i)
        return lax.select_n(p, b, update(new, new[:2], 3))

    because = "what dynamic_update_slice makes is read elsewhere"
    check_refuses(SINK, program, "bool[]", "f32[8]", "f32[2]", "i32[]", because=because)


def test_a_write_outside_of_the_loop():
    """It would be done in every step."""

    def program(ps, b, u, i):
        new = update(b, u, i)
        return lax.scan(lambda c, p: (c + lax.select_n(p, b, new), None), b, ps)

    graph = import_jaxpr(traced(program, "bool[4]", "f32[8]", "f32[2]", "i32[]"))
    assert not run_alone((SINK,), graph).record(SINK.name, False).rewrites


def test_most_of_the_array():
    """Reading five of eight elements is no gain."""
    program = lambda p, b, u, i: lax.select_n(p, b, update(b, u, i))
    args = "bool[]", "f32[8]", "f32[5]", "i32[]"
    check_refuses(SINK, program, *args, because="the windows are most of the array")


def test_most_of_the_array_of_each_case():
    """Each case that writes would be an array: three windows of four elements are half of three."""

    def program(p, b, u, i):
        return lax.select_n(p, b, *(update(b, f(u), i) for f in (jnp.sin, jnp.cos, jnp.tanh)))

    args = "i32[]", "f32[8]", "f32[4]", "i32[]"
    graph = import_jaxpr(traced(program, *args))
    assert run_alone((SINK,), graph).record(SINK.name, False).rewrites
    args = "i32[]", "f32[8]", "f32[5]", "i32[]"
    check_refuses(SINK, program, *args, because="the windows are most of the array")


@pytest.mark.parametrize("make", [jnp.sin, lambda b: jnp.where(b[0] > 0, b, b[::-1])])
def test_a_small_array_that_is_computed_anew(make):
    """A game's board, turned and then moved (pgx's 2048): selecting costs nothing beside that."""
    program = lambda p, b, u, i: lax.select_n(p, made := make(b), update(made, u, i))
    args = "bool[]", "f32[64]", "f32[1]", "i32[]"
    check_refuses(SINK, program, *args, because="the array is small, and selected while it is made")
    carried = lambda p, b, u, i: lax.select_n(p, b, update(b, u, i))
    large = "bool[]", "f32[100000]", "f32[1]", "i32[]"
    for each, arguments in ((carried, args), (program, large)):
        graph = import_jaxpr(traced(each, *arguments), "final")
        assert run_alone((SINK,), graph).record(SINK.name, False).rewrites


def batched_cond(x, start, places):
    """Rows start at steps of their own; the places are the step, or given."""

    def one(x, start, places):
        def step(b, ij):
            i, j = ij
            return lax.cond(i < start, lambda b: b.at[j].set(x * i), lambda b: b, b), None

        return lax.scan(step, jnp.zeros(16), (jnp.arange(16), places))[0]

    return jax.vmap(one)(x, start, places)


def batched_while(x, start, stop):
    def one(x, start, stop):
        def step(carry):
            i, b = carry
            return i + 1, b.at[i].set(jnp.sin(x * i)).at[2 * i].add(x)

        return lax.while_loop(lambda carry: carry[0] < stop, step, (start, jnp.zeros(16)))[1]

    return jax.vmap(one)(x, start, stop)


X = jnp.array([0.5, -1.0, 2.0])
START, STOP = jnp.array([0, 3, -2]), jnp.array([9, 3, 20])
PLACES = jnp.arange(48).reshape(3, 16) * 7 % 40 - 20
LOOPS = [
    pytest.param(batched_cond, (X, STOP, PLACES), id="cond"),
    pytest.param(batched_while, (X, START, STOP), id="while"),
    pytest.param(jax.grad(lambda *a: (batched_cond(*a) ** 2).sum()), (X, STOP, PLACES), id="grad"),
    pytest.param(
        lambda x, *a: jax.jvp(lambda x: batched_while(x, *a), (x,), (x,)),
        (X, START, STOP),
        id="jvp",
    ),
    pytest.param(
        jax.vmap(batched_cond, (0, None, None)), (X[:, None] * X, STOP, PLACES), id="vmap"
    ),
]


@pytest.mark.parametrize(("program", "args"), LOOPS)
def test_batched_loops(program, args):
    """No step selects between whole arrays, and the values are the same bits."""
    before, after = (
        import_jaxpr(traced(program, *args), "final"),
        left_of(program, *args, phase="final"),
    )
    assert any(16 in shape for shape in selects(before))
    assert not any(16 in shape for shape in selects(after))
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


def test_repeated_places():
    """Of an element written twice the last write counts, and only it has a derivative."""
    places = jnp.full((3, 16), 5)
    check = lambda *args: (batched_cond(*args) ** 2).sum()
    gradient = jax.jit(optimize(jax.grad(check)))(X, STOP, places)
    np.testing.assert_allclose(gradient, jax.grad(check)(X, STOP, places), rtol=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_skipped_steps_are_still_seen(known):
    """A step that writes what is there does nothing, and a step that writes out of range."""

    def program(x, stop, places):
        def one(x, stop, places):
            def step(carry, ij):
                i, j = ij
                write = lambda k, b: (k + x, b.at[i if known else j].set(x * i))
                return lax.cond(carry[0] < stop, write, lambda k, b: (k, b), *carry), None

            return lax.scan(step, (x, jnp.zeros(16)), (jnp.arange(16), places))[0]

        return jax.vmap(one)(x, stop, places)

    graph = import_jaxpr(traced(program, X, X, PLACES), "final")
    run_alone((SINK, SliceKnownWindows(), *CLEANUP), graph)
    (scan,) = scans(graph)
    assert [skip.kind for skip in find_skips(scan) if isinstance(skip, Skip)] == ["carried"]
