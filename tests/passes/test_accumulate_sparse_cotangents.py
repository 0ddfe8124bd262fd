"""Pieces of cotangents are added where they belong, in the order in which they were."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.sparse.accumulate_sparse_cotangents import AccumulateSparseCotangents
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import (
    assert_close,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.graphs import scans
from tests.loops import alone, looped
from tests.prices import EAGER, AddedElsewhere

DIRECT = AccumulateSparseCotangents()
ALWAYS = AddedElsewhere()


MODEL = CostModel().but(starts_each=False)
"""Programs here are small: XLA compiles a loop of theirs as one function."""


def dense(like, u, i):
    """Zeros with a piece at `i` of the first axis."""
    return lax.dynamic_update_slice(jnp.zeros_like(like), u, (i,) + (0,) * (like.ndim - 1))


def rest(u, start):
    """Zeros with a piece at `start`, as the transpose of a static slice makes them."""
    return lax.pad(u, jnp.zeros((), u.dtype), [(start, 8 - start - u.shape[0], 0), (0, 0, 0)])


TYPES = ("f32[8,2]", "f32[5,1,2]", "i32[5]")


def test_a_row_read_in_a_loop():
    """What the transpose of ``x[i]`` adds."""
    check_rewrite(
        DIRECT,
        looped(lambda c, u, i: c + lax.dynamic_update_slice(jnp.zeros(8), u, (i,))),
        "f32[8]",
        "f32[5,1]",
        "i32[5]",
        diff="""
          fn (c:f32[8], us:f32[5,1], idx:i32[5]) {
            c1:f32[8] = scan[5] carry(c=c) xs(x=us, x1=idx) {
        -     b:f32[8] = broadcast_in_dim 0.0
              l:bool[] = lt x1 0
              a:i32[] = add x1 8
              s:i32[] = select_n l x1 a
        +     d1:f32[1] = dynamic_slice c s
        +     a2:f32[1] = add d1 x
        -     d:f32[8] = dynamic_update_slice b x s
        +     d:f32[8] = dynamic_update_slice c a2 s
        -     a1:f32[8] = add c d
        -     yield carry(a1)
        +     yield carry(d)
            }
            return c1
          }
        """,
    )


def test_a_static_slice_read_in_a_loop():
    """Padding says where."""
    check_rewrite(
        DIRECT,
        looped(lambda c, u, i: lax.pad(u, 0.0, [(3, 4, 0)]) + c),
        "f32[8]",
        "f32[5,1]",
        "i32[5]",
        diff="""
          fn (c:f32[8], us:f32[5,1], idx:i32[5]) {
            c1:f32[8] = scan[5] carry(c=c) xs(x=us, x1=idx) {
        -     p:f32[8] = pad[padding_config=((3, 4, 0),)] x 0.0
        -     a:f32[8] = add p c
        +     d:f32[1] = dynamic_slice c 3
        +     a1:f32[1] = add d x
        +     d1:f32[8] = dynamic_update_slice c a1 3
        -     yield carry(a)
        +     yield carry(d1)
            }
            return c1
          }
        """,
    )


def at(**flags):
    """Pieces as a `scatter` or `scatter-add` of a row a batch."""

    def step(c, u, i):
        def put(u, i):
            return jnp.zeros(8).at[i].add(u, **flags)

        return c + jax.vmap(put)(u, i)

    return step


PIECES = [
    pytest.param(looped(lambda c, u, i: c + dense(c, u, i)), TYPES, id="slice"),
    pytest.param(looped(lambda c, u, i: dense(c, u, i) + c), TYPES, id="other order"),
    pytest.param(
        looped(lambda c, u, i: c + jnp.concatenate([jnp.zeros((3, 2)), u, jnp.zeros((4, 2))])),
        TYPES,
        id="concatenate",
    ),
    pytest.param(
        looped(lambda c, u, i: c + jnp.zeros_like(c).at[i].set(u[0], mode="drop")),
        TYPES,
        id="scatter",
    ),
    pytest.param(
        looped(lambda c, u, i: c + jnp.zeros_like(c).at[jnp.stack([i, i])].set(u)),
        TYPES,
        id="written twice",
    ),
    pytest.param(
        looped(lambda c, u, i: c + jnp.zeros_like(c).at[i * 3].add(u[0], mode="drop")),
        TYPES,
        id="scatter-add, dropped",
    ),
    pytest.param(
        looped(lambda c, u, i: c + jax.vmap(dense, (0, 0, 0))(c, u, i)),
        ("f32[3,8]", "f32[5,3,2]", "i32[5,3]"),
        id="batch of slices",
    ),
    pytest.param(
        looped(at(mode="clip")), ("f32[3,8]", "f32[5,3]", "i32[5,3]"), id="batch of additions"
    ),
    pytest.param(
        looped(
            lambda c, u, i: c + jnp.zeros(8).at[jnp.stack([i, i + 4])].add(u, unique_indices=True)
        ),
        ("f32[8]", "f32[5,2]", "i32[5]"),
        id="unique",
    ),
    pytest.param(
        looped(lambda c, u, i: (c + dense(c, u, i)) + dense(c, u * 2, i + 1)), TYPES, id="two"
    ),
    pytest.param(
        looped(lambda c, u, i: c + (rest(u, 1) + rest(u, 4))),
        TYPES,
        id="two that are disjoint",
    ),
    pytest.param(
        looped(lambda c, u, i: c + dense(c, u, i)),
        ("i32[8,2]", "i32[5,1,2]", "i32[5]"),
        id="integers",
    ),
    pytest.param(
        looped(lambda c, u, i: c + (dense(c, u, i) + dense(c, u * 3, 7 - i))),
        ("i32[8,2]", "i32[5,1,2]", "i32[5]"),
        id="integers that overlap",
    ),
    pytest.param(
        looped(lambda c, u, i: c + dense(c, u, i)),
        ("c64[8,2]", "c64[5,1,2]", "i32[5]"),
        id="complex",
    ),
    pytest.param(
        looped(lambda c, u, i: c + dense(c, u, i)),
        ("bf16[8,2]", "bf16[5,1,2]", "i32[5]"),
        id="bf16",
    ),
]


@pytest.mark.parametrize(("program", "types"), PIECES)
def test_in_place(program, types):
    """No op of the body makes an array of the accumulator's size but a write."""
    graph = alone(DIRECT, program, *types, fires=True)
    loop = scans(graph)[0]
    whole = [op.name for op in loop.body.walk() if op.results and _is_whole(op, loop)]
    assert set(whole) <= {"dynamic_update_slice", "scatter", "scatter-add"}


def _is_whole(op, loop):
    return op.result.shape == loop.carries[0].param.shape


def test_double_precision():
    """Static starts are of a type of their own."""
    with jax.enable_x64(True):
        program = looped(lambda c, u, i: c + dense(c, u, i) + rest(u, 1))
        alone(DIRECT, program, "f64[8,2]", "f64[5,1,2]", "i64[5]", fires=True)


def test_in_a_while():
    def program(c, u, n):
        return lax.fori_loop(0, n, lambda i, c: c + dense(c, u, i), c)

    alone(DIRECT, program, "f32[8,2]", "f32[1,2]", "i32[]", fires=True)


def test_a_piece_that_is_added_twice():
    """What the transpose of ``x[i] @ x[i]`` adds: both sums are in place."""

    def step(c, u, i):
        piece = lax.dynamic_update_slice(jnp.zeros(8), u, (i,))
        return (c + piece) + piece

    check_rewrite(
        DIRECT,
        looped(step),
        "f32[8]",
        "f32[5,1]",
        "i32[5]",
        diff="""
          fn (c:f32[8], us:f32[5,1], idx:i32[5]) {
            c1:f32[8] = scan[5] carry(c=c) xs(x=us, x1=idx) {
        -     b:f32[8] = broadcast_in_dim 0.0
              l:bool[] = lt x1 0
              a:i32[] = add x1 8
              s:i32[] = select_n l x1 a
        +     d1:f32[1] = dynamic_slice c s
        +     a3:f32[1] = add d1 x
        -     d:f32[8] = dynamic_update_slice b x s
        +     d:f32[8] = dynamic_update_slice c a3 s
        -     a1:f32[8] = add c d
        -     a2:f32[8] = add a1 d
        +     d2:f32[1] = dynamic_slice d s
        +     a4:f32[1] = add d2 x
        +     d3:f32[8] = dynamic_update_slice d a4 s
        -     yield carry(a2)
        +     yield carry(d3)
            }
            return c1
          }
        """,
    )


def test_a_piece_that_is_added_in_two_loops():
    """(1) One sum is of another step."""

    def step(c, u, i):
        piece = dense(c, u, i)
        return lax.fori_loop(0, 2, lambda _, c: c + piece, c + piece)

    check_refuses(DIRECT, looped(step), *TYPES, because="is read elsewhere")


def twice(c, u, i):
    piece = dense(c, u, i)
    return c + piece, jnp.sum(piece)


def seen(c, u, i):
    return c + dense(c, u, i), c


def with_rows(step):
    def program(c, us, idx):
        return lax.scan(lambda c, x: step(c, *x), c, (us, idx))

    return program


def test_the_piece_is_read_elsewhere():
    """(1)"""
    check_refuses(DIRECT, with_rows(twice), *TYPES, because="is read elsewhere")


def test_the_accumulator_is_read_afterwards():
    """It would be copied before the write."""
    check_refuses(DIRECT, with_rows(seen), *TYPES, because="is read afterwards")


@pytest.mark.parametrize("starts_each", [False, True])
@pytest.mark.parametrize(("rows", "windows"), [(7, 1), (7, 5), (8, 5), (9000, 5)])
def test_windows_of_a_tiny_array(starts_each, rows, windows):
    """Where each is an op that is started by itself, they take longer than one sum (JAX 0.10: a
    cascade of filters, five times plain JAX's time).
    """

    def step(c, u, i):
        for k in range(1, windows + 1):
            c = c + dense(c, u * k, 5 * i + k)
        return c

    types = f"i32[{rows},2]", "i32[3,1,2]", "i32[3]"
    with using(CostModel().but(starts_each=starts_each)):
        fires = (rows, windows) != (7, 5) or not starts_each
        alone(DIRECT, looped(step), *types, fires=fires)


@pytest.mark.parametrize(("points", "fires"), [(1, True), (2, True), (3, False)])
def test_pieces_that_are_as_large_as_the_array(points, fires):
    """XLA makes one sum of the transpose of a stencil, however many of its points are written."""

    def program(c):
        def step(c, _):
            for at in range(points):
                c = c + lax.pad(jnp.sin(c[:4]), 0.0, [(at, 4 - at, 0)])
            return c, None

        return lax.scan(step, c, None, length=3)[0]

    alone(DIRECT, program, "f32[8]", fires=fires)


@pytest.mark.parametrize(
    ("size", "more", "figures", "fires"),
    [
        pytest.param(100, 0, {}, False, id="small"),
        pytest.param(10_000, 0, {}, True, id="large"),
        pytest.param(1_000, 0, {}, False, id="as long as starting all ops otherwise"),
        pytest.param(1_000, 12, {}, True, id="its ops are not started in a row anyway"),
        pytest.param(100, 0, {"few_kernels": 0}, True, id="no device starts ops in a row"),
    ],
)
def test_one_more_op_of_a_step(size, more, figures, fires):
    """Cost: of 9 ops XLA starts none in a row; a loop that scatters is not one function."""
    order = jnp.arange(size)[::-1] % 7

    def step(c, y):
        first = jnp.zeros(size).at[order].add(jnp.cos(c))[:1]
        return c + lax.pad(first, 0.0, [(0, size - 1, 0)]), [jnp.sum(y**n) for n in range(more)]

    with using(CostModel().but(**figures)):
        program = lambda c, ys: lax.scan(step, c, ys)
        alone(DIRECT, program, f"f32[{size}]", "f32[4,9]", fires=fires)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda c, u, i: c + lax.dynamic_update_slice(c * 0, u, (i, 0)), id="unknown"),
        pytest.param(
            lambda c, u, i: c + lax.dynamic_update_slice(jnp.ones_like(c), u, (i, 0)), id="one"
        ),
        pytest.param(lambda c, u, i: c + lax.pad(u, 1.0, [(3, 4, 0), (0, 0, 0)]), id="pad"),
        pytest.param(lambda c, u, i: c + lax.pad(u, 0.0, [(8, -1, 0), (0, 0, 0)]), id="cut off"),
        pytest.param(
            lambda c, u, i: c + lax.pad(jnp.tile(u, (3, 1)), 0.0, [(1, 0, 2), (0, 0, 0)]),
            id="interior",
        ),
        pytest.param(
            lambda c, u, i: c + jnp.concatenate([u, jnp.zeros((6, 2)), u]), id="concatenate two"
        ),
        pytest.param(
            lambda c, u, i: c + lax.pad(jnp.tile(u, (2, 1)), 0.0, [(-1, 7, 0), (0, 0, 0)]),
            id="cut off",
        ),
    ],
)
def test_not_a_piece_in_zeros(step):
    """(1) Something else than zeros around, or between."""
    alone(DIRECT, looped(step), *TYPES, fires=False)


def add_at(array, u, i, j):
    """What is at `j`, and a piece, written to `i`."""
    return lax.dynamic_update_slice(array, lax.dynamic_slice(array, (j, 0), u.shape) + u, (i, 0))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda c, u, i: c + add_at(c * 0, u, i, i), id="to something else"),
        pytest.param(lambda c, u, i: c + add_at(dense(c, u, i), u, i, i + 1), id="elsewhere"),
    ],
)
def test_not_added_to_zeros(step):
    """(1) A piece added to what is no sum of pieces; or what is read in one place, in another."""
    alone(ALWAYS, looped(step), *TYPES, fires=False)


def test_an_inner_loop_that_starts_elsewhere():
    """(1) Its carries change places: one of them is not zero."""

    def program(c, us, idx):
        def outer(c, u):
            def inner(both, i):
                return (add_at(both[1], u, i, i), both[0]), None

            return c + lax.scan(inner, (jnp.zeros_like(c), c), idx)[0][0], None

        return lax.scan(outer, c, us)[0]

    alone(ALWAYS, program, *TYPES, fires=False)


def test_two_pieces_whose_windows_repeat():
    """(2) Each is a sum of its own."""

    def step(c, u, i):
        return c + (jnp.zeros(8).at[i].add(u) + jnp.zeros(8).at[i + 1].add(u))

    alone(ALWAYS, looped(step), "f32[8]", "f32[5,2]", "i32[5,2]", fires=False)


def test_one_of_two_pieces_whose_windows_repeat():
    """(2) The sum can begin with it."""

    def step(c, u, i):
        return c + (jnp.zeros(8).at[i].add(u) + lax.dynamic_update_slice(jnp.zeros(8), u, (i[0],)))

    alone(ALWAYS, looped(step), "f32[8]", "f32[5,2]", "i32[5,2]", fires=True)


WIDE = ("f32[8,2]", "f32[5,2,2]", "i32[5]")


def test_pieces_that_may_overlap():
    """(2) Both might be in one element."""

    def step(c, u, i):
        return c + (dense(c, u, i) + dense(c, u, i + 1))

    check_refuses(DIRECT, looped(step), *WIDE, because="is small beside its 2 windows")

    def program(c, u, n):
        return lax.fori_loop(0, n, lambda i, c: step(c, u, i), c)

    check_refuses(DIRECT, program, "f32[8,2]", "f32[2,2]", "i32[]", because="windows may overlap")


@pytest.mark.parametrize("rows", [1, 2])
def test_pieces_that_meet_in_one_step(rows):
    """(2) They come towards each other: 2 i is 6 - i where i is 2.  Single places are compared."""

    def program(c, us):
        step = lambda c, x: (c + (dense(c, x[0], 2 * x[1]) + dense(c, x[0], 6 - x[1])), None)
        return lax.scan(step, c, (us, jnp.arange(4)))[0]

    types = "f32[8,2]", f"f32[4,{rows},2]"
    if rows == 1:
        alone(DIRECT, program, *types, fires=True)
    else:
        check_refuses(DIRECT, program, *types, because="is small beside its 2 windows")


def test_single_places_that_may_be_one():
    """(2) Whether they are or not, and out of range: in the order of the sum."""

    def step(c, u, i):
        return c + (dense(c, u, i) + (dense(c, 3 * u, i // 2) + dense(c, 5 * u, i % 3)))

    c, us = jnp.arange(64.0).reshape(32, 2) + 0.1, jnp.array([1e8, 1, 1e-3, 0.3, 7])
    us = us[:, None, None] * jnp.ones((1, 2))
    for idx in ([0, 1, 2, 3, 4], [31, 32, 99, -1, -99]):
        alone(DIRECT, looped(step), c, us, jnp.array(idx), fires=True)


def test_places_that_are_most_of_the_array():
    """(2) Then their sum is added."""
    step = lambda c, u, i: c + (dense(c, u, i) + dense(c, u, i + 1))
    types, because = ("f32[3,2]", "f32[5,1,2]", "i32[5]"), "the windows are most of it"
    check_refuses(DIRECT, looped(step), *types, because=because)


def test_a_sum_with_a_written_array():
    """XLA fuses the sum with no write."""

    def step(c, u, i):
        return dense(c, u, i) + lax.dynamic_update_slice(jnp.sin(c), u, (i + 1, 0))

    alone(DIRECT, looped(step), *TYPES, fires=True)


def test_windows_that_may_repeat():
    """(2) Of a scatter-add that does not say that its indices are unique."""
    program = looped(lambda c, u, i: c + jnp.zeros(8).at[i].add(u))
    check_refuses(DIRECT, program, "f32[8]", "f32[5,2]", "i32[5,2]", because="windows may repeat")


def windows_of_two(starts):
    """Two numbers are added from each of some places on."""
    numbers = lax.ScatterDimensionNumbers((1,), (), (0,))
    drop = lax.GatherScatterMode.FILL_OR_DROP
    add = partial(lax.scatter_add, dimension_numbers=numbers, mode=drop)
    return lambda c, u, i: c + add(jnp.zeros_like(c), jnp.asarray(starts)[:, None], u)


def at_places(*places):
    """Numbers are added, where two places say so."""

    def step(c, u, i):
        where = [jnp.broadcast_to(each, u.shape) for each in (*places, i)]
        numbers = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
        index, drop = jnp.stack(where, -1), lax.GatherScatterMode.FILL_OR_DROP
        return c + lax.scatter_add(jnp.zeros_like(c), index, u, numbers, mode=drop)

    return step


EACH, ROWS, COLUMNS = (lax.iota("int32", n) for n in (4, 2, 2))
PAIRS = ("f32[8,16]", "f32[5,2,2]", "i32[5,2,2]")


@pytest.mark.parametrize(
    ("step", "types", "fires"),
    [
        (at_places(EACH), ("f32[8,16]", "f32[5,4]", "i32[5,4]"), True),
        (at_places(7 - EACH), ("f32[8,16]", "f32[5,4]", "i32[5,4]"), True),
        (at_places(EACH[:, None]), ("f32[8,16]", "f32[5,4,1]", "i32[5,4,1]"), True),
        (at_places(EACH[:, None]), ("f32[8,16]", "f32[5,4,3]", "i32[5,4,3]"), False),
        (at_places(EACH // 2), ("f32[8,16]", "f32[5,4]", "i32[5,4]"), False),
        (at_places(ROWS[:, None] + COLUMNS), PAIRS, False),
        (windows_of_two(2 * EACH), ("f32[16]", "f32[5,4,2]", "i32[5]"), True),
        (windows_of_two(EACH), ("f32[16]", "f32[5,4,2]", "i32[5]"), False),
    ],
    ids=["rows", "back", "one column", "columns", "twice", "diagonals", "apart", "overlapping"],
)
def test_windows_that_are_numbered(step, types, fires):
    """(2) Each has a place of its own, if places along an axis are apart, whatever others are."""
    alone(DIRECT, looped(step), *types, fires=fires)


def test_another_type():
    """(3) A weak type gives way to that of the piece, and so would the accumulator's."""

    def program(us):
        step = lambda c, u: (c, lax.add(c, dense(us[0], u, 1)))
        return lax.scan(step, lax.full((8,), 2.0), us[:, :1])[1]

    check_refuses(DIRECT, program, "f32[5,8]", because="the accumulator a ~f32[8]")


def test_another_shape():
    """(3) The accumulator is one row, which is added to each."""

    def program(c, us):
        return lax.scan(lambda c, u: (c, lax.add(c, dense(jnp.ones((2, 8)), u, 1))), c, us)[1]

    because = "the accumulator a f32[1,8]"
    check_refuses(DIRECT, program, "f32[1,8]", "f32[5,1,1]", because=because)


def test_a_piece_for_all_rows():
    """(3) It has an axis of one element, as what `vmap` does not batch: JAX repeats it."""

    def step(c, u, i):
        return lax.add(c, lax.dynamic_update_slice(jnp.zeros((1, 8)), u, (0, i)))

    because = "the sum is a f32[3,8]"
    check_refuses(DIRECT, looped(step), "f32[3,8]", "f32[5,1,1]", "i32[5]", because=because)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_one_gradient_for_a_batch_of_tables(factor):
    """(3) In the whole pipeline."""

    def program(table, us, ids):
        step = lambda c, u, i: c + factor * jnp.zeros_like(c).at[i].add(u)
        return looped(step)(table, us, ids)

    batch = jax.vmap(program, (0, None, None))
    args = jnp.zeros((3, 900, 2)), jnp.ones((5, 2)), jnp.arange(5)
    assert_close(batch(*args), optimize(batch)(*args))


def test_no_loop():
    """XLA fuses the sum with what makes its operands."""
    program = lambda c, u, i: c + dense(c, u, i)
    alone(DIRECT, program, "f32[8,2]", "f32[1,2]", "i32[]", fires=False)


def test_not_a_buffer():
    """The sum is part of what makes a new array anyway."""
    program = looped(lambda c, u, i: jnp.sin(c) + dense(c, u, i))
    check_refuses(DIRECT, program, *TYPES, because="new in each step")


def test_a_buffer_of_another_loop():
    """Each step of the inner one would copy it."""

    def program(c, us, idx):
        def outer(c, u):
            inner = lambda s, i: (s + jnp.max(c + dense(c, u, i)), None)
            return jnp.full_like(c, jnp.sum(u)), lax.scan(inner, 0.0, idx)[0]

        return lax.scan(outer, c, us)

    check_refuses(DIRECT, program, *TYPES, because="new in each step")


# ---------------------------------------------------------------- added up elsewhere


def rows(table, toks):
    """A recurrence over rows of a table."""
    step = lambda h, t: (jnp.tanh(h + table[t]), None)
    return lax.scan(step, jnp.zeros(table.shape[1:]), toks)[0]


def nested(table, toks):
    """The same, in a loop over sequences."""
    step = lambda h, ts: (jnp.tanh(h * rows(table, ts)), None)
    return jnp.sum(lax.scan(step, jnp.ones(table.shape[1:]), toks)[0])


def deep(table, toks):
    """And twice over these."""
    step = lambda h, ts: (h + nested(table, ts), None)
    return lax.scan(step, 0.0, jnp.stack([toks, toks + 1]))[0]


def many(table, toks):
    """A batch reads several rows at once."""
    batch = jnp.stack([toks, toks + 1, toks])
    return jnp.sum(jax.vmap(nested, (None, 0))(table, batch))


def pair(table, toks):
    """Two rows a step, which may be one."""
    step = lambda h, ts: (jnp.tanh(h + table[ts[0]] * table[ts[1]]), None)
    return jnp.sum(lax.scan(step, jnp.zeros(2), toks)[0])


def tail(table, toks):
    """An inner loop, a row from the data, and a row that is always the same."""
    step = lambda h, ts: (jnp.tanh(h + rows(table, ts) * table[ts[0]] - table[3]), None)
    return jnp.sum(lax.scan(step, jnp.zeros(2), toks)[0])


TOKENS = np.array([[0, 3, 3], [5, 5, 5], [-1, 2, 9], [3, 0, -9]], np.int32)
"""Repeated, negative, out of range."""


@pytest.fixture
def slots():
    """Rows of two numbers have slots, too."""
    with using(EAGER):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("loss", [nested, deep, many, pair, tail])
def test_a_table(loss):
    """(2) Pieces of one step are added up first: the same bits."""
    table = jnp.asarray(np.random.default_rng(0).standard_normal((7, 2)), jnp.float32)
    for special in (None, np.inf, np.nan):
        given = table if special is None else table.at[3, 1].set(special)
        alone(ALWAYS, jax.grad(loss), given, TOKENS, fires=True)


def elements(table, toks):
    """Columns of a table of two axes of rows."""

    def loss(table, toks):
        def inner(h, t):
            row = lax.dynamic_slice(table, (t, 0, 1), (1, 2, 1)).reshape(2)
            return jnp.tanh(h + row), None

        step = lambda h, ts: (lax.scan(inner, h, ts * 2 - 1)[0], None)
        return jnp.sum(lax.scan(step, jnp.ones(2), toks)[0])

    return loss(jnp.stack([table, 2 * table], axis=2), toks)


@pytest.mark.parametrize("loss", [nested, deep, elements])
def test_a_table_and_slots(slots, loss):
    """(2) Steps that come to the same row share a slot, those out of range that of the last row."""
    table = jnp.asarray(np.random.default_rng(0).standard_normal((7, 2)), jnp.float32)
    for special in (None, np.inf, np.nan):
        given = table if special is None else table.at[3, 1].set(special)
        graph = alone(ALWAYS, jax.grad(loss), given, TOKENS, fires=True)
        assert any(
            v.dtype == np.int32 and op.name == "dynamic_update_slice"
            for op in graph.walk()
            for v in op.results
        )


def test_slots_in_double_precision(slots):
    with jax.enable_x64(True):
        table = jnp.asarray(np.random.default_rng(0).standard_normal((7, 2)))
        alone(ALWAYS, jax.grad(nested), table, TOKENS.astype(np.int64), fires=True)


def test_each_step_adds_to_a_slot():
    """A row of four numbers; where it belongs is known before the inner loop runs."""

    def program(c, us, idx):
        def outer(c, x):
            def inner(t, x):
                u, i = x
                return lax.dynamic_update_slice(
                    t, lax.dynamic_slice(t, (i, 0), (1, 4)) + u, (i, 0)
                ), None

            return c + lax.scan(inner, jnp.zeros((8, 4)), x)[0], None

        return lax.scan(outer, c, (us, idx))[0]

    check_rewrite(
        ALWAYS,
        program,
        "f32[8,4]",
        "f32[5,3,1,4]",
        "i32[5,3]",
        simplify=True,
        diff="""
          fn (c:f32[8,4], us:f32[5,3,1,4], idx:i32[5,3]) {
        +   b1:i32[8] = broadcast_in_dim 0
        -   c1:f32[8,4] = scan[5] carry(c=c) xs(x=us, x1=idx) {
        +   c1:f32[8,4], scratch:i32[8] = scan[5] carry(c=c, scratch=b1) xs(x=us, x1=idx) {
        -     b:f32[8,4] = broadcast_in_dim 0.0
        +     l1:bool[3] = lt x1 0
        +     a2:i32[3] = add x1 8
        +     s1:i32[3] = select_n l1 x1 a2
        +     i:i32[3] = iota
        +     c2:i32[8] = scan[3] carry(c2=scratch) xs(x2=i, x3=s1) {
        +       r:i32[1] = reshape x2
        +       d2:i32[8] = dynamic_update_slice c2 r x3
        +       yield carry(d2)
        +     }
        +     b1:f32[3,1,4] = broadcast_in_dim 0.0
        +     c3:f32[3,1,4] = scan[3] carry(sums=b1) xs(x2=x, x3=x1) {
        +       l:bool[] = lt x3 0
        +       a:i32[] = add x3 8
        +       s:i32[] = select_n l x3 a
        +       d2:i32[1] = dynamic_slice c2 s
        +       r:i32[] = reshape d2
        +       d3:f32[1,1,4] = dynamic_slice sums r 0 0
        +       b1:f32[1,1,4] = broadcast_in_dim x2
        +       a2:f32[1,1,4] = add d3 b1
        +       d4:f32[3,1,4] = dynamic_update_slice sums a2 r 0 0
        +       yield carry(d4)
        +     }
        -     c1:f32[8,4] = scan[3] carry(c=b) xs(x=x, x1=x1) {
        +     c1:f32[8,4] = scan[3] carry(c=c) xs(x=c3, x1=s1) {
        -       l:bool[] = lt x1 0
        -       a:i32[] = add x1 8
        -       s:i32[] = select_n l x1 a
        -       d:f32[1,4] = dynamic_slice c s 0
        +       d:f32[1,4] = dynamic_slice c x1 0
                a1:f32[1,4] = add d x
        -       d1:f32[8,4] = dynamic_update_slice c a1 s 0
        +       d1:f32[8,4] = dynamic_update_slice c a1 x1 0
                yield carry(d1)
              }
        -     a:f32[8,4] = add c c1
        -     yield carry(a)
        +     yield carry(c1, c2)
            }
            return c1
          }
        """,
    )


def test_where_it_belongs_is_found_by_the_loop(slots):
    """Then a second array is carried: what is added may come to any window."""

    def program(c, us, idx):
        def outer(c, x):
            def inner(carry, x):
                t, j = carry
                u, i = x
                t = lax.dynamic_update_slice(t, lax.dynamic_slice(t, (j, 0), (1, 4)) + u, (j, 0))
                return (t, (j + i) % 8), None

            return c + lax.scan(inner, (jnp.zeros((8, 4)), 0), x)[0][0], None

        return lax.scan(outer, c, (us, idx))[0]

    graph = alone(ALWAYS, program, "f32[8,4]", "f32[5,3,1,4]", "i32[5,3]", fires=True)
    (outer,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [c.param.shape for c in outer.carries] == [(8, 4), (8, 4)]


@pytest.mark.parametrize("seen", [lambda t, i: t[0], lambda t, i: jnp.sum(t * i), lambda t, i: t])
def test_sums_that_are_seen_on_the_way(seen):
    """Somebody reads what has been added up so far: that is in no slot."""

    def program(c, us, idx):
        def outer(c, x):
            def inner(t, x):
                u, i = x
                old = lax.dynamic_slice(t, (i, 0), (1, 4))
                return lax.dynamic_update_slice(t, old + u, (i, 0)), seen(t, i)

            t, ys = lax.scan(inner, jnp.zeros((8, 4)), x)
            return c + t, ys

        return lax.scan(outer, c, (us, idx))

    graph = alone(ALWAYS, program, "f32[8,4]", "f32[5,3,1,4]", "i32[5,3]", fires=True)
    (outer,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [c.param.shape for c in outer.carries] == [(8, 4), (8, 4)]


def test_windows_of_several_places(slots):
    """Two rows may overlap in one of them: no slot is theirs alone."""

    def program(c, us, idx):
        def outer(c, x):
            def inner(t, x):
                u, i = x
                return lax.dynamic_update_slice(
                    t, lax.dynamic_slice(t, (i, 0), (2, 4)) + u, (i, 0)
                ), None

            return c + lax.scan(inner, jnp.zeros((8, 4)), x)[0], None

        return lax.scan(outer, c, (us, idx))[0]

    graph = alone(ALWAYS, program, "f32[8,4]", "f32[5,3,2,4]", "i32[5,3]", fires=True)
    (outer,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [c.param.shape for c in outer.carries] == [(8, 4), (8, 4)]


def test_the_array_is_cleared():
    """Each of its windows, after it was added to the other; else XLA would copy the array."""

    def program(c, us, idx):
        def outer(c, x):
            def inner(t, x):
                u, i = x
                return lax.dynamic_update_slice(t, lax.dynamic_slice(t, (i,), (1,)) + u, (i,)), None

            return c + lax.scan(inner, jnp.zeros(8), x)[0], None

        return lax.scan(outer, c, (us, idx))[0]

    check_rewrite(
        ALWAYS,
        program,
        "f32[8]",
        "f32[5,3,1]",
        "i32[5,3]",
        diff="""
          fn (c:f32[8], us:f32[5,3,1], idx:i32[5,3]) {
        +   b:f32[8] = broadcast_in_dim 0.0
        -   c1:f32[8] = scan[5] carry(c=c) xs(x=us, x1=idx) {
        +   c1:f32[8], scratch:f32[8] = scan[5] carry(c=c, scratch=b) xs(x=us, x1=idx) {
        -     b:f32[8] = broadcast_in_dim 0.0
        -     c1:f32[8] = scan[3] carry(c=b) xs(x=x, x1=x1) {
        +     c1:f32[8], ys:i32[3] = scan[3] carry(c=scratch) xs(x=x, x1=x1) {
                l:bool[] = lt x1 0
                a:i32[] = add x1 8
                s:i32[] = select_n l x1 a
                d:f32[1] = dynamic_slice c s
                a1:f32[1] = add d x
                l1:bool[] = lt x1 0
                a2:i32[] = add x1 8
                s1:i32[] = select_n l1 x1 a2
                d1:f32[8] = dynamic_update_slice c a1 s1
        -       yield carry(d1)
        +       yield carry(d1) ys(s1)
              }
        -     a:f32[8] = add c c1
        +     c2:f32[8], c3:f32[8] = scan[3] carry(c2=c, c3=c1) xs(x2=ys) {
        +       d2:f32[1] = dynamic_slice c2 x2
        +       d3:f32[1] = dynamic_slice c3 x2
        +       a3:f32[1] = add d2 d3
        +       d4:f32[8] = dynamic_update_slice c2 a3 x2
        +       d5:f32[1] = dynamic_slice d4 x2
        +       b1:f32[1] = broadcast_in_dim inf
        +       g:bool[1] = gt d5 b1
        +       c4:f32[1] = convert_element_type g
        +       d6:f32[8] = dynamic_update_slice c3 c4 x2
        +       yield carry(d4, d6)
        +     }
        -     yield carry(a)
        +     yield carry(c2, c3)
            }
            return c1
          }
        """,
    )


def reasons(each, program, *args):
    """Why a sum stays, where others of the program need not."""
    graph = import_jaxpr(traced(program, *args), each.phase)
    return {r.reason for r in run_alone((each,), graph).record(each.name, each.cleanup).refusals}


def test_a_small_table_stays():
    """A dense sum is faster than a loop over the windows."""
    (why,) = reasons(DIRECT, jax.grad(nested), "f32[7,2]", "i32[4,3]")
    assert why == "the array of 56 B is small beside its 3 windows"


def test_a_table_read_row_by_row():
    """Its rows can be streamed, and their cotangents stacked."""

    def loss(table, h):
        step = lambda h, _: (rows(table, jnp.arange(7)) + h, None)
        return jnp.sum(lax.scan(step, h, None, length=4)[0])

    (why,) = reasons(ALWAYS, jax.grad(loss), "f32[7,2]", "f32[2]")
    assert why == "each step of the inner loop has a window of its own"


@pytest.fixture
def wide_rows():
    """Rows of two numbers are too wide to be stacked."""
    with using(CostModel().but(kernel=0.0)):
        yield


def layers(table, hs, places=lambda i: i):
    """A loop over the rows of a table in a loop, in this order."""

    def outer(total, h):
        def inner(h, i):
            return jnp.sin(h * lax.dynamic_index_in_dim(table, i, keepdims=False)), None

        h, _ = lax.scan(inner, h, places(jnp.arange(table.shape[0])))
        return total + jnp.sum(h), None

    return lax.scan(outer, 0.0, hs)[0]


@pytest.mark.parametrize("places", [lambda i: i, lambda i: i[::-1], lambda i: 2 * i[:3]])
def test_wide_rows_are_added_to_the_accumulator(wide_rows, places):
    """(2) Each step of the inner loop has a row of its own: nothing is added up before."""
    program = jax.grad(partial(layers, places=places))
    graph = alone(DIRECT, program, "f32[6,2]", "f32[4,2]", fires=True)
    (outer,) = (op for op in graph.body.ops if op.name == "scan" and op.reverse)
    assert not any(op.name == "add_any" and op.result.shape == (6, 2) for op in outer.body.ops)


@pytest.mark.parametrize("places", [lambda i: i // 2, jnp.zeros_like, lambda i: i * i % 5])
def test_wide_rows_that_come_again(wide_rows, places):
    """(2) What they add up to first is another sum."""
    program = jax.grad(partial(layers, places=places))
    graph = alone(DIRECT, program, "f32[6,2]", "f32[4,2]", fires=True)
    assert any(op.name == "add_any" and op.result.shape == (6, 2) for op in graph.walk())


@pytest.mark.parametrize("within", [True, False])
def test_wide_rows_and_another_piece(wide_rows, within):
    """(2) Each step has a second piece; or there is one beside those of the loop."""

    def program(c, us):
        def outer(c, us):
            def inner(t, x):
                t = t + dense(t, x[0][None], x[1])
                return add_at(t, x[0][None], x[1], x[1]) if within else t, None

            t, _ = lax.scan(inner, jnp.zeros((4, 2)), (us, jnp.arange(4)))
            return c + (t if within else add_at(t, us[:1], 0, 0)), None

        return lax.scan(outer, c, us)[0]

    alone(DIRECT, program, "f32[4,2]", "f32[3,4,2]", fires=True)  # in the inner loop
    why = reasons(DIRECT, program, "f32[4,2]", "f32[3,4,2]")
    assert "each step of the inner loop has a window of its own" in why


def test_wide_rows_of_an_accumulator_made_later(wide_rows):
    """(2) It is not there yet when the inner loop runs."""

    def program(c, us):
        def outer(c, us):
            def inner(t, x):
                u, i = x
                return t + dense(t, u[None], i), u

            t, ys = lax.scan(inner, jnp.zeros((4, 2)), (us, jnp.arange(4)))
            c = lax.dynamic_update_slice(c, ys[:1], (0, 0))
            return c + t, None

        return lax.scan(outer, c, us)[0]

    why = reasons(DIRECT, program, "f32[4,2]", "f32[3,4,2]")
    assert "each step of the inner loop has a window of its own" in why


@pytest.mark.parametrize("and_a_piece", [False, True])
def test_an_inner_loop_before_the_outer_one(slots, and_a_piece):
    """(4) It cannot add to what the outer loop carries; nor can it mark windows there."""

    def program(c, us, idx):
        def inner(t, x):
            u, i = x
            row = lax.dynamic_slice(t, (i, 0), (1, 2)) + u
            return lax.dynamic_update_slice(t, row, (i, 0)), None

        pieces = lax.scan(inner, jnp.zeros((8, 2)), (us, idx))[0]
        if and_a_piece:
            pieces += dense(c, us[0], idx[0])
        return lax.scan(lambda c, _: (c + pieces, None), c, None, length=4)[0]

    check_refuses(ALWAYS, program, *TYPES, because="before the loop")


def test_an_inner_loop_with_effects():
    """A loop over its windows would have them too."""

    def program(c, us, idx):
        def outer(c, x):
            def inner(t, x):
                u, i = x
                jax.debug.print("{}", i)
                return t.at[i].add(u), None

            return c + lax.scan(inner, jnp.zeros(8), x)[0], None

        return lax.scan(outer, c, (us, idx))[0]

    check_refuses(
        ALWAYS, program, "f32[8]", "f32[5,3]", "i32[5,3]", because="the inner loop has effects"
    )


def test_a_loop_whose_sums_are_read_begins_at_zero():
    """(1) It adds each piece to a window of its own, but not to the accumulator itself."""

    def program(c, us):
        def outer(c, us):
            def inner(t, x):
                u, i = x
                piece = lax.dynamic_update_slice(jnp.zeros((4, 4096)), u, (i, 0))
                return t + piece, jnp.max(t)

            t, seen = lax.scan(inner, jnp.zeros((4, 4096)), (us, jnp.arange(4)))
            return c + t, seen

        return lax.scan(outer, c, us)

    alone(ALWAYS, program, "f32[4,4096]", "f32[2,4,1,4096]", fires=False)


def read_often(table, ids):
    """Some rows of a table, read one after the other."""
    h = jnp.zeros(table.shape[1])
    for i in range(3):
        h = jnp.tanh(h + table[ids[i]])
    return jnp.sum(h)


def test_rows_that_a_batch_reads_without_a_loop():
    """One array is made of which windows are added to, not one for each read."""
    table, ids = jnp.sin(jnp.arange(1600.0)).reshape(400, 4), jnp.array([[3, 3, 399], [0, 7, 7]])
    each = jax.vmap(jax.grad(read_often), in_axes=(None, 0))
    graph, _ = observe.optimized(each, (table, ids), {})
    wide = [op.name for op in graph.walk() if op.results and op.result.shape == (2, 400, 4)]
    assert not {"add", "add_any"} & {*wide}
    assert wide.count("broadcast_in_dim") == 1
    assert_close(evaluate_exactly(graph, table, ids), [each(table, ids)])


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda z, v, i: (z.at[i].set(v), jnp.sin(z)), id="one is none"),
        pytest.param(lambda z, v, i: (z.at[0].set(v), z.at[1].set(v)), id="places are known"),
    ],
)
def test_sums_without_a_loop(read):
    """One dense sum is as fast, where XLA makes no array for it."""

    def program(v, i):
        return sum(read(jnp.zeros((400, 4)), v, i))

    graph = run_alone((DIRECT,), import_jaxpr(traced(program, "f32[4]", "i32[]"), "final"))
    assert not graph.record(DIRECT.name, False).rewrites


@pytest.mark.parametrize("rows", [1, 2])
def test_a_window_of_a_window_waits(rows):
    """A part of the table is not added while the row in it may be (`map-before-writing`)."""

    def program(c, v, i):
        row = lambda k: lax.dynamic_update_slice(jnp.zeros((40, 3)), v, (i + k, 0))
        part = row(0) + row(1) if rows == 2 else row(0)
        return c + lax.pad(part[None], 0.0, [(1, 2, 0), (0, 0, 0), (0, 0, 0)])

    loop = lambda c, v, i: lax.fori_loop(0, 2, lambda _, c: program(c, v, i), c)
    types = "f32[4,40,3]", "f32[1,3]", "i32[]"
    check_refuses(DIRECT, loop, *types, because="another rewrite adds to a part")
