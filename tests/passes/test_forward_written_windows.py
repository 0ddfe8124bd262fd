"""What was written to a window, or added to it, is not read back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.masks.sink_select_into_update import SinkSelectIntoUpdate
from jaxpr_opt.passes.writes.forward_written_windows import ForwardWrittenWindows
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone

FORWARD = ForwardWrittenWindows()
TYPES = "f32[8]", "f32[2]", "i32[]"


SCATTERED = lax.ScatterDimensionNumbers((), (0,), (0,))
GATHERED = lax.GatherDimensionNumbers((), (0,), (0,))


def write(b, u, i):
    return lax.dynamic_update_slice(b, u, (i,), allow_negative_indices=False)


def read(b, i, size=2):
    return lax.dynamic_slice(b, (i,), (size,), allow_negative_indices=False)


def test_a_slice():
    """(1) Clamped alike."""

    def program(b, u, i):
        written = write(b, u, i)
        return written, read(written, i) * 2.0

    check_rewrite(
        FORWARD,
        program,
        *TYPES,
        diff="""
            fn (b:f32[8], u:f32[2], i:i32[]) {
              d:f32[8] = dynamic_update_slice b u i
          -   d1:f32[2] = dynamic_slice d i
          -   m:f32[2] = mul d1 2.0
          +   m:f32[2] = mul u 2.0
              return d, m
            }
        """,
    )


def test_a_row_that_may_be_out_of_range():
    """(2) Then it reads as what the gather fills in."""

    def program(b, u, i):
        written = lax.scatter(b, i, u, SCATTERED, mode="drop")
        return written, lax.gather(written, i, GATHERED, (1,), mode="fill", fill_value=7.0)

    check_rewrite(
        FORWARD,
        program,
        "f32[8]",
        "f32[]",
        "i32[1]",
        diff="""
            fn (b:f32[8], u:f32[], i:i32[1]) {
              s:f32[8] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b i u
          -   g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=fill_or_drop, fill_value=7.0] s i
          +   g1:bool[1] = ge i 0
          +   l:bool[1] = le i [7]
          +   a:bool[1] = and g1 l
          +   r:bool[] = reduce_and[axes=(0,)] a
          +   s1:f32[] = select_n r 7.0 u
          -   return s, g
          +   return s, s1
            }
        """,  # noqa: E501
    )


def test_additions():
    """(3) To zeros, or to what is read instead."""

    def program(b, u, i):
        counts = lax.scatter_add(jnp.zeros(8), i, u, SCATTERED, mode="clip")
        sums = lax.scatter_add(b, i, u, SCATTERED, mode="clip")
        of = lambda array: lax.gather(array, i, GATHERED, (1,), mode="clip")
        return of(counts), of(sums), counts, sums

    check_rewrite(
        FORWARD,
        program,
        "f32[8]",
        "f32[]",
        "i32[1]",
        diff="""
            fn (b:f32[8], u:f32[], i:i32[1]) {
              b1:f32[8] = broadcast_in_dim 0.0
              s:f32[8] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b1 i u
              s1:f32[8] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b i u
          -   g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=clip] s i
          +   g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=clip] b i
          -   g1:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=clip] s1 i
          +   a:f32[] = add g u
          -   return g, g1, s, s1
          +   return u, a, s, s1
            }
        """,  # noqa: E501
    )


PLACES = [-99, -8, -1, 0, 3, 6, 7, 8, 99]


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("change", [lax.scatter, lax.scatter_add])
@pytest.mark.parametrize("width", [1, 3])
def test_wherever_the_window_is(mode, change, width):
    """(1), (2) In each row of a batch, in range or not; of one axis, or of two."""

    def program(b, u, i):
        def one(b, u, i):
            written = change(
                b, i[None], u, lax.ScatterDimensionNumbers((0,), (0,), (0,)), mode=mode
            )
            rows = lax.GatherDimensionNumbers((0,), (0,), (0,))
            return lax.gather(
                written, i[None], rows, (1, width), mode=mode, fill_value=7.0
            ), written

        return jax.vmap(one)(b, u, i)

    within = [i for i in PLACES if mode != "promise_in_bounds" or 0 <= i < 8]
    count = len(within)
    b = jnp.arange(count * 8 * 3.0).reshape(count, 8, 3)
    u = jnp.arange(1.0, count * width + 1).reshape(count, width)
    alone(FORWARD, program, b, u, jnp.array(within), fires=True)


def test_a_place_in_range():
    """(2) Nothing is filled in."""
    program = lambda b, u: b.at[3].set(u, mode="drop").at[3].get(mode="fill", fill_value=7.0)
    graph = alone(FORWARD, program, "f32[8]", "f32[]", fires=True)
    assert not any(op.name == "select_n" for op in graph.walk())


def test_indices_too_small_to_be_out_of_range():
    """(2) An int8 reaches no place beyond 200; JAX 0.10 drops whatever it tells to write."""

    def program(b, u, i):
        written = lax.scatter(b, i, u, SCATTERED, mode="drop")
        return lax.gather(written, i, GATHERED, (1,), mode="fill", fill_value=7.0)

    types = "f32[200]", "f32[]", "i8[1]"
    check_refuses(FORWARD, program, *types, because="too small for all rows")


def element(b, u, i):
    return lax.dynamic_update_slice(b, u[None], (i,), allow_negative_indices=False)


def get(b, i):
    return read(b, i, 1)[0]


def test_another_element():
    """(4) What was there, unless it is the one that was written; the written array is dropped."""
    check_rewrite(
        FORWARD,
        lambda b, u, i, j: get(element(b, u, i), j),
        *("f32[8]", "f32[]", "i32[]", "i32[]"),
        diff="""
            fn (b:f32[8], u:f32[], i:i32[], j:i32[]) {
              b1:f32[1] = broadcast_in_dim u
              d:f32[8] = dynamic_update_slice b b1 i
          -   d1:f32[1] = dynamic_slice d j
          +   d1:f32[1] = dynamic_slice b j
          +   r:i32[1] = reshape j
          +   r1:i32[1] = reshape i
          +   c:i32[1] = clamp 0 r 7
          +   c1:i32[1] = clamp 0 r1 7
          +   e:bool[1] = eq c c1
          +   s1:f32[1] = select_n e d1 b1
          -   s:f32[] = squeeze d1
          +   s:f32[] = squeeze s1
              return s
            }
        """,
    )


def test_another_element_of_what_is_selected():
    """(4) The select may then be of the written window."""

    def program(p, b, u, i, j):
        first = element(b, u, i)
        return lax.select_n(p, b, element(first, get(first, j) * 2, j))

    graph = alone(FORWARD, program, "bool[]", "f32[8]", "f32[]", "i32[]", "i32[]", fires=True)
    run_alone((SinkSelectIntoUpdate(),), graph)
    assert not any(op.name == "select_n" and op.result.shape == (8,) for op in graph.walk())


def reads(mode):
    """An element, clamped or filled."""
    if mode == "slice":
        return get
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    return lambda b, i: lax.gather(b, i[None], numbers, (1,), mode=mode, fill_value=7.0)


def changes(mode):
    """A change of an element, clamped or dropped."""
    if mode == "slice":
        return element
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    kind, mode = mode.split()
    change = {"set": lax.scatter, "add": lax.scatter_add}[kind]
    return lambda b, u, i: change(b, i[None], u, numbers, mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("there", ["slice", "fill", "clip"])
@pytest.mark.parametrize("here", ["slice", "set drop", "set clip", "add drop", "add clip"])
def test_any_two_elements(here, there):
    """(4) Of one array, and in each row of a batch: what one of them drops, the other clamps."""
    program = lambda b, u, i, j: reads(there)(changes(here)(b, u, i), j)
    b, u = jnp.arange(8.0) + 0.1, jnp.float32(0.3)
    for i, j in ((3, 3), (3, 4), (8, 7), (-1, 0), (99, 99), (-99, -99)):
        alone(FORWARD, program, b, u, jnp.int32(i), jnp.int32(j), fires=True)
    i, j = (x.ravel() for x in np.meshgrid(PLACES, PLACES))
    rows = jnp.arange(8.0 * i.size).reshape(i.size, 8)
    alone(FORWARD, jax.vmap(program), rows, jnp.arange(0.5, i.size), i, j, fires=True)
    for_all = jax.vmap(program, (0, 0, None, 0))
    for place in (-1, 0, 7, 8):
        alone(FORWARD, for_all, rows, jnp.arange(0.5, i.size), jnp.int32(place), j, fires=True)


def test_rows_of_columns():
    """(4) A window that is whole along other axes; the axes of a batch in another order."""

    def program(b, u, i, j):
        return lax.dynamic_index_in_dim(b.at[:, i].set(u), j, 1, keepdims=False)

    b, u = jnp.arange(24.0).reshape(3, 8), jnp.arange(3.0) - 9
    for i, j in ((3, 3), (3, 4), (7, 99), (99, 7)):
        alone(FORWARD, program, b, u, jnp.int32(i), jnp.int32(j), fires=True)
    batch = jax.vmap(program, (1, 1, 0, 0))
    i, j = jnp.array([1, 2, 7]), jnp.array([1, 3, 99])
    alone(FORWARD, batch, b.reshape(3, 1, 8).repeat(3, 1), u[:, None] * i, i, j, fires=True)


def test_a_row_and_an_element_of_it():
    """(4) Windows of two sizes overlap where neither is at the place of the other."""
    written = lambda b, u, i: b.at[i].set(u)
    program = lambda b, u, i, j: lax.dynamic_slice(written(b, u, i), (i, j), (1, 1))
    alone(FORWARD, program, "f32[4,8]", "f32[8]", "i32[]", "i32[]", fires=False)


def row(mode):
    """Write a row, and read one, at an index that also has a number for the axis it is whole on."""
    written = lax.ScatterDimensionNumbers((0,), (0,), (0, 1))
    numbers = lax.GatherDimensionNumbers((0,), (0,), (0, 1))

    def program(b, u, i, j):
        made = lax.scatter(b, i, u, written, mode=mode)
        return lax.gather(made, j, numbers, (1, 8), mode=mode, fill_value=7.0)

    return program


def test_a_row_that_is_dropped_for_its_other_axis():
    """(4) Its start is 0 or the row is dropped; clamped, it is 0."""
    b, u = jnp.arange(32.0).reshape(4, 8), jnp.arange(8.0) + 0.5
    for places in ([[1, 0], [1, 3]], [[1, 3], [1, 0]], [[1, 3], [2, -1]], [[2, 0], [9, 0]]):
        i, j = np.int32(places)
        alone(FORWARD, row("fill"), b, u, i, j, fires=False)
        alone(FORWARD, row("clip"), b, u, i, j, fires=True)


def test_places_of_two_types():
    """(4) As integers of one type; JAX wraps an int64 around, where it reads."""
    program = lambda b, u, i, j: reads("fill")(changes("set drop")(b, u, i), j)
    b, u = jnp.arange(8, dtype=jnp.float32), jnp.float32(9)
    for i, j in ((3, 3), (3, 4), (8, 255)):
        alone(FORWARD, program, b, u, jnp.int32(i), jnp.uint8(j), fires=True)
        alone(FORWARD, program, b, u, jnp.uint32(i), jnp.int16(j), fires=True)
    with jax.enable_x64(True):
        alone(FORWARD, program, b, u, jnp.int32(3), jnp.int64(2**32 + 3), fires=False)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_places_that_hold_no_last_row(dtype):
    """(4) They are compared as integers that hold the size of the array."""

    def program(b, u, i, j):
        written = lax.dynamic_update_slice(b, u[None], (i,))
        return lax.dynamic_slice(written, (j,), (1,))

    b, u = jnp.arange(300.0), jnp.float32(0.5)
    for i, j in ((100, 100), (100, 127), (127, 43)):
        given = jnp.asarray([i, j]).astype(dtype)
        alone(FORWARD, program, b, u, *given, fires=True)


def other(b, u, i, j):
    """An element of what another may have been written to."""
    return lax.dynamic_index_in_dim(lax.dynamic_update_index_in_dim(b, u, i, 0), j, 0)


def test_few_elements():
    """(4) To compare takes as long as to copy them; so it does with many writes to go around."""
    alone(FORWARD, other, "f32[3]", "f32[]", "i32[]", "i32[]", fires=False)

    def program(b, u, i, j):
        for k in range(4):
            b = element(b, u, i * k)
        return get(b, j)

    alone(FORWARD, program, "f32[12]", "f32[]", "i32[]", "i32[]", fires=False)
    alone(FORWARD, program, "f32[64]", "f32[]", "i32[]", "i32[]", fires=True)


def test_another_key():
    """(4) No key is selected."""
    keys = jax.random.split(jax.random.key(0), 8)
    places = jnp.int32(3), jnp.int32(4)
    check_refuses(FORWARD, other, keys, keys[0], *places, because="are not selected")


def test_indices_too_small_for_a_comparison():
    """(4) JAX 0.10 drops whatever an int8 tells to write in 200 rows."""
    program = lambda b, u, i, j: reads("clip")(changes("set clip")(b, u, i), j)
    graph = import_jaxpr(traced(program, "f32[200]", "f32[]", "i8[]", "i32[]"))
    assert not run_alone((FORWARD,), graph).record(FORWARD.name, FORWARD.cleanup).rewrites


@pytest.mark.parametrize("dtype", ["bool", "i8", "u32", "bf16", "c64"])
def test_dtypes(dtype):
    """The filler is one of the type."""

    def program(b, u, i):
        return b.at[i].set(u).at[i].get(mode="fill")

    alone(FORWARD, program, f"{dtype}[8]", f"{dtype}[]", "i32[]", fires=True)


def test_64_bits():
    with jax.enable_x64(True):
        program = lambda b, u, i: b.at[i].set(u).at[i].get(mode="fill")
        alone(FORWARD, program, "f64[8]", "f64[]", "i64[]", fires=True)


def test_weak_types():
    """What is read is not of weak type, what is written may be."""
    program = lambda b, i: lax.dynamic_slice(
        lax.dynamic_update_slice(b, jnp.full(2, 3.0), (i,)), (i,), (2,)
    )
    alone(FORWARD, program, "f32[8]", "i32[]", fires=True)


def test_nan():
    """What is written to zeros is not added to them; NaN is what it was."""

    def program(u, i):
        return read(write(jnp.zeros(8), u, i), i)

    alone(FORWARD, program, jnp.array([jnp.nan, -jnp.inf]), jnp.int32(3), fires=True)


def test_keys():
    """(2) No number stands for a key."""

    def program(b, u, i):
        return b.at[i].set(u).at[i].get(mode="fill")

    keys = jax.random.split(jax.random.key(0), 8)
    check_refuses(FORWARD, program, keys, keys[0], jnp.int32(3), because="is not a number")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda b, u, i: read(write(b, u, i), i + 1), id="1 another place"),
        pytest.param(lambda b, u, i: read(write(b, u, i), i, 1), id="1 another size"),
        pytest.param(lambda b, u, i: read(write(write(b, u, i), u, 3), i), id="1 written over"),
        pytest.param(lambda b, u, i: write(b, u, i)[i], id="1 normalised for one of them"),
        pytest.param(
            lambda b, u, i: (w := element(b, u[0], i), element(w, u[1], i + 2), get(w, i + 1)),
            id="4 kept for something else",
        ),
        pytest.param(
            lambda b, u, i: get(jnp.where(i > 0, b, element(b, u[0], i)), i), id="4 selected first"
        ),
        pytest.param(
            lambda b, u, i: (
                lax.select_n(i > 0, w := element(b, u[0], i), 2 * b),
                get(w, i + 1),
            ),
            id="4 selected beside another array",
        ),
        pytest.param(
            lambda b, u, i: lax.scatter(
                b.reshape(4, 2), i[None], u, lax.ScatterDimensionNumbers((0,), (0,), (0,))
            ).reshape(8)[i],
            id="4 of another shape",
        ),
        pytest.param(
            lambda b, u, i: b.at[jnp.stack([i, i])].set(u)[jnp.stack([i, i])], id="1 twice"
        ),
        pytest.param(lambda b, u, i: b.at[i].multiply(2.0)[i], id="1 multiplied"),
        pytest.param(lambda b, u, i: read(read(b, i, 4), i), id="1 read of what is read"),
    ],
)
def test_other_reads(program):
    graph = import_jaxpr(traced(program, *TYPES))
    assert not run_alone((FORWARD,), graph).record(FORWARD.name, FORWARD.cleanup).rewrites


def stepping(step):
    """A loop of which each step has a window and a place."""

    def program(c, us, places):
        return lax.scan(lambda c, x: step(c, *x), c, (us, places))

    return program


STEPS = "f32[8]", "f32[3,2]", "i32[3]"


def test_what_ops_make_of_a_window():
    """(5) As what is kept of a gradient that is clipped."""

    def step(c, u, i):
        clipped = jnp.minimum(write(jnp.zeros(8), u, i), u[0])
        return c + clipped, read(clipped, i)

    check_rewrite(
        FORWARD,
        stepping(step),
        *STEPS,
        diff="""
            fn (c:f32[8], us:f32[3,2], places:i32[3]) {
              c1:f32[8], ys:f32[3,2] = scan[3] carry(c=c) xs(x=us, x1=places) {
                b:f32[8] = broadcast_in_dim 0.0
                d:f32[8] = dynamic_update_slice b x x1
                s:f32[1] = slice[:1] x
                s1:f32[] = squeeze s
                m:f32[8] = min d s1
                a:f32[8] = add c m
          -     d1:f32[2] = dynamic_slice m x1
          +     m1:f32[2] = min x s1
          -     yield carry(a) ys(d1)
          +     yield carry(a) ys(m1)
              }
              return c1, ys
            }
        """,
    )


MADE = {
    "of two writes": lambda c, u, i: jnp.sin(write(c, u, i)) * write(jnp.ones(8), u, i),
    "a choice": lambda c, u, i: jnp.where(write(c, u, i) > 0, write(c, u, i), u[1]),
    "of what was added": lambda c, u, i: (
        2 * lax.scatter_add(c, i[None], u, ADDED, mode="clip", unique_indices=True)
    ),
}
ADDED = lax.ScatterDimensionNumbers((0,), (), (0,))
READ = lax.GatherDimensionNumbers((0,), (), (0,))


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_several(name):
    """(5) Wherever the window is."""

    def step(c, u, i):
        made = MADE[name](c, u, i)
        if "added" in name:
            return made, lax.gather(made, i[None], READ, (2,), mode="clip")
        return made, read(made, i)

    for places in ([0, 3, 6], [-9, 7, 99]):
        alone(FORWARD, stepping(step), jnp.arange(8.0), US, jnp.array(places), fires=True)


US = jnp.array([[1.0, -2.0], [3.0, np.inf], [np.nan, 5.0]])
NOT_MADE = {
    "of another window": lambda c, u, i: read(jnp.sin(write(c, u, i)), i + 1),
    "of another array": lambda c, u, i: read(write(c, u, i) * c, i),
    "with numbers along the axis": lambda c, u, i: read(write(c, u, i) * jnp.arange(8.0), i),
    "with a number for each row": lambda c, u, i: lax.dynamic_slice(
        lax.dynamic_update_slice(jnp.outer(c, c[:2]), u[None], (i, 0))
        * lax.broadcast_in_dim(c, (8, 2), (0,)),
        (i, 0),
        (1, 2),
    ),
    "of other elements": lambda c, u, i: read(jnp.cumsum(write(c, u, i)), i),
    "filled": lambda c, u, i: lax.gather(
        jnp.sin(lax.scatter(c, i[None], u, ADDED, mode="drop")),
        i[None],
        READ,
        (2,),
        mode="fill",
        fill_value=7.0,
    ),
    "most of the array": lambda c, u, i: read(
        jnp.sin(write(c[:3], u, i)), i
    ),
}  # fmt: skip


@pytest.mark.parametrize("reads", NOT_MADE.values(), ids=NOT_MADE)
def test_what_is_made_of_more(reads):
    """(5)"""
    alone(FORWARD, stepping(lambda c, u, i: (c + u[0], reads(c, u, i))), *STEPS, fires=False)


def test_what_is_made_of_arrays_from_outside():
    """(5) They are read all the same."""

    def program(c, u, i, xs):
        made = jnp.sin(write(c, u, i))
        return lax.scan(lambda c, x: (c, read(made * x, i)), c, xs)

    alone(FORWARD, program, "f32[8]", "f32[2]", "i32[]", "f32[3]", fires=False)


def test_a_row_of_a_table_of_a_batch():
    """(5) Each table has a factor, and each column."""

    def step(c, u, i):
        made = jnp.maximum(write(c, u[None], i, 0), 0) * u
        return made, read(made, i, 0)

    def write(b, u, *at):
        return lax.dynamic_update_slice(b, u, at)

    def read(b, *at):
        return lax.dynamic_slice(b, at, (1, 2))

    tables, places = jnp.ones((2, 9, 2)), jnp.arange(3)
    batch = jax.vmap(stepping(step), (0, 0, None))
    alone(FORWARD, batch, tables, jnp.stack([US, -US]), places, fires=True)


def test_what_is_made_outside_of_loops():
    """XLA reads it so."""
    made = lambda b, u, i: read(jnp.sin(write(b, u, i)), i)
    alone(FORWARD, made, *TYPES, fires=False)


def rows(start, at, size=2):
    """A step that writes two numbers, reads others, and writes what they make."""

    def program(b, u):
        def step(b, i):
            d = write(b, u, i)
            r = read(d, i + at, size)
            return write(d, r[:1] * 2.0, i + 2), None

        return lax.scan(step, b, jnp.arange(start, start + 4))[0]

    return program


def test_a_window_apart():
    """(6) What was there before the step is read before both writes: XLA need not copy it."""
    check_rewrite(
        FORWARD,
        rows(2, -2),
        "f32[16]",
        "f32[2]",
        diff="""
            fn (b:f32[16], u:f32[2]) {
              i:i32[4] = iota
              a:i32[4] = add 2 i
              c:f32[16] = scan[4] carry(c=b) xs(x=a) {
                d:f32[16] = dynamic_update_slice c u x
                a:i32[] = add x -2
          -     d1:f32[2] = dynamic_slice d a
          +     d1:f32[2] = dynamic_slice c a
                s:f32[1] = slice[:1] d1
                m:f32[1] = mul s 2.0
                a1:i32[] = add x 2
                d2:f32[16] = dynamic_update_slice d m a1
                yield carry(d2)
              }
              return c
            }
        """,
    )


@pytest.mark.parametrize(
    ("start", "at", "size"), [(2, -1, 2), (2, 1, 2), (1, -2, 1), (11, 4, 1), (2, -2, 3)]
)
def test_a_window_that_may_overlap(start, at, size):
    """(6) Some of it is written, or it is moved to where it is in range."""
    alone(FORWARD, rows(start, at, size), "f32[16]", "f32[2]", fires=False)


def test_a_window_apart_of_what_is_kept():
    """(6) The written array is needed as it is: reading the old one would keep both."""

    def program(b, u):
        def step(b, i):
            d = write(b, u, i)
            return d, read(d, i - 2)

        return lax.scan(step, b, jnp.arange(2, 6))

    alone(FORWARD, program, "f32[16]", "f32[2]", fires=False)


def test_a_window_apart_that_is_read_for_its_update():
    """(6) XLA adds to each of two windows in place."""

    def program(b, u):
        def step(b, _):
            for start in (0, 4):
                b = write(b, read(b, start) + u, start)
            return b, None

        return lax.scan(step, b, length=4)[0]

    alone(FORWARD, program, "f32[32]", "f32[2]", fires=False)


@pytest.mark.parametrize(
    ("made", "fires"),
    [
        (lambda r, m: m @ r, False),
        (lambda r, m: r * m[0], True),
        (lambda r, m: r.sum()[None], True),
    ],
)
def test_a_window_apart_that_is_read_in_another_op(made, fires):
    """(6) A product comes between the two writes as it is, and what is fused with one does not."""

    def program(b, u, m):
        def step(b, i):
            d = write(b, u, i)
            return write(d, made(read(d, i - 2), m), i + 2), None

        return lax.scan(step, b, jnp.arange(2, 6))[0]

    alone(FORWARD, program, "f32[32]", "f32[2]", "f32[2,2]", fires=fires)


def test_keys_of_a_window_apart():
    """(6) Nothing is selected: any dtype will do."""

    def program(b, u):
        def step(b, i):
            d = b.at[i].set(u)
            return d.at[i + 2].set(d[i - 2]), None

        return lax.scan(step, b, jnp.arange(2, 6))[0]

    keys = jax.random.split(jax.random.key(0), 64)
    alone(FORWARD, program, keys, keys[0], fires=True)


@pytest.mark.parametrize("fill", [1.0, np.float32(1.0)])
def test_another_type_of_a_window_apart(fill):
    """(6) A weak type may become a strong one when it is written to."""

    def program(us):
        def step(c, u):
            d = lax.dynamic_update_slice(lax.full((64,), fill), u, (2,))
            return c, lax.dynamic_update_slice(d, lax.dynamic_slice(d, (4,), (2,)) * 2.0, (8,))

        return lax.scan(step, 0.0, us)[1]

    alone(FORWARD, program, "f32[3,2]", fires=not isinstance(fill, float))
