"""An inner loop carries the rows that it touches."""

from math import prod

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.carried import narrow_carried_arrays
from jaxpr_opt.passes.carried.narrow_carried_arrays import NarrowCarriedArrays
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone, memory

NARROW = NarrowCarriedArrays(even_in_place=True)


def nested(step, array, *, rows=None, columns=None, first=0):
    """Two scans of ``array = step(array, i, j)``."""
    n = array.shape[0] if rows is None else rows
    m = array.shape[1] if columns is None else columns

    def outer(array, i):
        return lax.scan(lambda a, j: (step(a, i, j), None), array, jnp.arange(m))[0], None

    return lax.scan(outer, array, first + jnp.arange(n))[0]


def put(array, x, i, j):
    return lax.dynamic_update_slice(
        array, jnp.reshape(x, (1, 1)), (i, j), allow_negative_indices=False
    )


def get(array, i, j):
    window = lax.dynamic_slice(array, (i, j), (1, 1), allow_negative_indices=False)
    return jnp.reshape(window, ())


def pair(array, i, j):
    return lax.dynamic_slice(array, (i, j), (2, 1)) * 2


def numbered(array, numbers):
    """Two scans that write elements of the rows with these numbers."""

    def outer(array, i):
        return lax.scan(lambda a, j: (put(a, get(a, i[0], j) * 2, i[0], j), None), array,
                        jnp.arange(4))[0], None  # fmt: skip

    return lax.scan(outer, array, numbers)[0]


def test_one_row():
    """Each element is read and written in its turn."""

    def program(a):
        return nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a)

    check_rewrite(
        NARROW,
        program,
        "f32[8,4]",
        simplify=True,
        diff="""
          fn (a:f32[8,4]) {
            i:i32[8] = iota
            c:f32[8,4] = scan[8] carry(c=a) xs(x=i) {
              i:i32[4] = iota
        +     d2:f32[1,4] = dynamic_slice c x 0
        -     c1:f32[8,4] = scan[4] carry(c=c) xs(x1=i) {
        +     c2:f32[1,4] = scan[4] carry(c2=d2) xs(x1=i) {
        -       d:f32[1,1] = dynamic_slice c x x1
        +       d:f32[1,1] = dynamic_slice c2 0 x1
                r:f32[] = reshape d
                m:f32[] = mul r 2.0
                r1:f32[1,1] = reshape m
        -       d1:f32[8,4] = dynamic_update_slice c r1 x x1
        +       d2:f32[1,4] = dynamic_update_slice c2 r1 0 x1
        -       yield carry(d1)
        +       yield carry(d2)
              }
        +     d3:f32[8,4] = dynamic_update_slice c c2 x 0
        -     yield carry(c1)
        +     yield carry(d3)
            }
            return c
          }
        """,
    )


VARIANTS = {
    "the row before": lambda a: nested(
        lambda a, i, j: put(a, get(a, i - 1, j) + get(a, i, j), i, j), a, rows=7, first=1
    ),
    "a table": lambda a: nested(
        lambda a, i, j: put(a, get(a, i - 1, j) * get(a, i, j - 1), i, j), a, rows=7, first=1
    ),
    "a data-dependent column": lambda a: nested(
        lambda a, i, j: put(a, get(a, i, (j * j) % 3) + 1, i, j), a
    ),
    "columns": lambda a: nested(
        lambda a, i, j: put(a, get(a, j, i) + 1, j, i), a, rows=4, columns=8
    ),
    "set, with the index checked": lambda a: nested(lambda a, i, j: a.at[i, j].set(a[i, j] + 1), a),
    "added to": lambda a: nested(lambda a, i, j: a.at[i, j].add(1.0), a),
    "windows of two rows": lambda a: nested(
        lambda a, i, j: lax.dynamic_update_slice(a, pair(a, i, j), (i + 1, j)), a, rows=6
    ),
    "rows numbered by an array of one column": lambda a: numbered(
        a, lax.broadcasted_iota(jnp.int32, (8, 1), 0)
    ),
    "read whole after the loop": lambda a: jnp.sum(
        nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a) * a
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant):
    """(1, 2) The same bits; the inner loop carries no array of the outer one's size."""
    graph = alone(NARROW, VARIANTS[variant], "f32[8,4]", fires=True)
    inner = [op for op in graph.walk() if op.name == "scan" and op.parent is not None]
    assert inner and all(carry.param.shape != (8, 4) for op in inner for carry in op.carries)


def test_places_that_are_known():
    """(3) Slices need no checks."""
    graph = alone(NARROW, VARIANTS["set, with the index checked"], "f32[8,4]", fires=True)
    inner = next(op for op in graph.walk() if op.name == "scan" and op.parent is not None)
    assert not any(op.name in ("gather", "scatter") for op in inner.body.ops)


ANYWHERE = {
    "set": lambda a, to: nested(lambda a, i, j: a.at[i, to[j]].set(a[i, j] + 1), a),
    "set, or clamped": lambda a, to: nested(
        lambda a, i, j: a.at[i, to[j]].set(a[i, j] + 1, mode="clip"), a
    ),
    "added to": lambda a, to: nested(lambda a, i, j: a.at[i, to[j]].add(a[i, j]), a),
    "multiplied": lambda a, to: nested(lambda a, i, j: put(a, get(a, i, to[j]) * 2, i, j), a),
    "filled": lambda a, to: nested(
        lambda a, i, j: put(a, a.at[i, to[j]].get(mode="fill", fill_value=7.0), i, j), a
    ),
    "the column first": lambda a, to: nested(
        lambda a, i, j: a.at[to[j], i].set(a[j, i] + 1), a.T, rows=8, columns=4
    ),
}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("case", ANYWHERE)
def test_places_from_the_data(case, batched):
    """(3) Out of range, where one is filled and another dropped; in each row of a batch another."""
    a, to = jnp.arange(32.0).reshape(8, 4), jnp.array([3, 9, -1, 0])
    program = ANYWHERE[case]
    if batched:
        program, a, to = (
            jax.vmap(program),
            jnp.stack([a, -a, a + 1]),
            jnp.stack([to, -to, to[::-1]]),
        )
    alone(NARROW, program, a, to, fires=True)


def flat(step, a, *, rows=8, columns=4):
    """`nested` on the elements of an array, one after the other."""
    return nested(step, a.reshape(-1), rows=rows, columns=columns)


def at(a, k, x):
    return lax.dynamic_update_slice(a, jnp.reshape(x, 1), (k,), allow_negative_indices=False)


BOTH = {
    "element by element": lambda a: flat(
        lambda a, i, j: at(a, i * 4 + j, a[i * 4 + j] * 2), a
    ),
    "neighbours": lambda a: flat(
        lambda a, i, j: at(a, i * 4 + j + 1, a[i * 4 + j] + a[i * 4 + j + 2]), a, columns=2
    ),
    "backwards": lambda a: flat(
        lambda a, i, j: a.at[31 - i * 4 - j].add(a[31 - i * 4 - j] * 2), a
    ),
    "with a gap": lambda a: flat(
        lambda a, i, j: a.at[i * 4 + j * 2].set(a[i * 4 + j * 2 + 1]), a, columns=2
    ),
    "blocks that overlap": lambda a: flat(
        lambda a, i, j: at(a, i + j, a[i + j] * 2), a, rows=29
    ),
    "windows": lambda a: flat(
        lambda a, i, j: lax.dynamic_update_slice(
            a, lax.dynamic_slice(a, (i * 4 + j,), (2,)) * 2, (i * 4 + j,)
        ),
        a,
        columns=3,
    ),
    "unsigned": lambda a: flat(
        lambda a, i, j: at(a, (i * 4 + j).astype(jnp.uint8), a[i * 4 + j] * 2), a
    ),
    "rows of a matrix": lambda a: nested(
        lambda a, i, j: a.at[i * 2 + j].add(1.0), a, rows=4, columns=2
    ),
    "a column from the data": lambda a: nested(
        lambda a, i, j: a.at[i * 2 + j, a[0, 0].astype(int)].add(1.0, mode="drop"),
        a, rows=4, columns=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("case", BOTH)
def test_rows_that_both_loops_move_along(case, batched):
    """(2) The outer loop says where the block is, the inner one where in it."""
    program, a = BOTH[case], jnp.arange(32.0).reshape(8, 4)
    if batched:
        program, a = jax.vmap(program), jnp.stack([a, -a, a + 1])
    graph = alone(NARROW, program, a, fires=case != "a column from the data")
    inner = [op for op in graph.walk() if op.name == "scan" and op.parent is not None]
    sizes = {prod(carry.param.shape) for op in inner for carry in op.carries}
    assert case == "a column from the data" or max(sizes) <= a.size // 2


def test_three_loops():
    """(2) Each hands the next one its block: the gradient of `xs` adds an element a step."""

    def total(xs):
        def outer(c, i):
            def middle(c, j):
                def inner(c, k):
                    return jnp.tanh(c + xs[(i * 8 + j) * 8 + k]), None

                return lax.scan(inner, c, jnp.arange(8))[0], None

            return lax.scan(middle, c, jnp.arange(8))[0], None

        return lax.scan(outer, 0.0, jnp.arange(8))[0]

    xs = jnp.linspace(-1.0, 1.0, 512)
    for gradient in (optimize(jax.grad(total)), jax.grad(optimize(total))):
        assert memory(gradient, xs) < 1.25 * memory(jax.grad(by_rows), xs.reshape(8, 8, 8))
        assert (gradient(xs) == jax.grad(total)(xs)).all()


def by_rows(xs):
    """The same, by hand."""

    def loops(c, x):
        return (lax.scan(loops, c, x)[0] if x.ndim else jnp.tanh(c + x)), None

    return loops(0.0, xs)[0]


def test_the_inner_loop_takes_no_step():
    alone(
        NARROW,
        lambda a: nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a, columns=0),
        "f32[8,4]",
        fires=False,
    )


STAY = {
    "read whole": lambda a: nested(lambda a, i, j: put(a, jnp.sum(a), i, j), a),
    "moves along both": lambda a: nested(
        lambda a, i, j: put(a, get(a, j, j) + 1, i, j), a, columns=4
    ),
    "out of range": lambda a: nested(lambda a, i, j: put(a, get(a, i + 1, j) + 1, i, j), a),
    "most of the rows": lambda a: nested(
        lambda a, i, j: put(a, get(a, i + 4, j) + 1, i, j), a, rows=4
    ),
    "rows that part": lambda a: nested(
        lambda a, i, j: put(a, get(a, 2 * i, j) + 1, i, j), a, rows=4
    ),
    "far apart": lambda a: nested(
        lambda a, i, j: put(a, get(a, 2 * j + i, 0) + 1, 2 * j + i, 0), a, rows=2
    ),
    "always the same row": lambda a: nested(lambda a, i, j: put(a, get(a, 3, j) + 1, 3, j), a),
    "copied": lambda a: nested(lambda a, i, j: jnp.copy(a), a),
    "replaced": lambda a: nested(lambda a, i, j: jnp.full_like(a, get(a, i, j).sum()), a),
    "written into another": lambda a: nested(
        lambda a, i, j: put(a, lax.dynamic_update_slice(jnp.ones((9, 4)), a, (j, 0))[0, 0], i, j), a
    ),
    "written in a branch": lambda a: nested(
        lambda a, i, j: put(
            a, lax.cond(j > 1, lambda: get(put(a, 9.0, i, j), i, j), lambda: get(a, i, j)), i, j
        ),
        a,
    ),
    "data-dependent": lambda a: nested(lambda a, i, j: put(a, get(a, i * i % 7, j) + 1, i, j), a),
}


@pytest.mark.parametrize("case", STAY)
def test_others_stay(case):
    """(1, 2) What is no window of few rows."""
    alone(NARROW, STAY[case], "f32[8,4]", fires=False)


def test_long_rows_stay():
    """Cost: a row of a hundred elements, two of which are touched."""
    check_refuses(
        NARROW,
        lambda a: nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a, columns=2),
        "f32[8,100]",
        because="much larger than the part that the loop reads and writes",
    )


def table(a):
    """Each element from those above and to the left."""

    def step(a, i, j):
        return put(a, get(a, i - 1, j) + get(a, i, j - 1), i, j)

    def outer(a, i):
        return lax.scan(lambda a, j: (step(a, i, j), None), a, jnp.arange(1, 4))[0], None

    return lax.scan(outer, a, jnp.arange(1, 8))[0]


BETTER_LEFT = {
    "whole": table,
    "a row that has been left": lambda a: table(a)[3],
    "two rows": lambda a: table(a)[6:],
    "rows from the data": lambda a: table(a)[jnp.argmax(a[0])],
    "what another loop has left": lambda a: table(
        lax.scan(lambda a, i: (a.at[i].set(i * 1.0), None), a, jnp.arange(8))[0]
    )[7, 3],
    "one row": lambda a: nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a)[7],
    "a gradient in each step": lambda a: nested(
        lambda a, i, j: put(a, sum(jax.value_and_grad(jnp.sin)(get(a, i, j))), i, j), a
    ),
}


@pytest.mark.parametrize("wanted", BETTER_LEFT)
def test_what_xla_updates_in_place_and_has_to_be_there_stays(wanted):
    """Cost: rows copied out and back, and no less memory."""
    because = "XLA already updates the array in place"
    check_refuses(NarrowCarriedArrays(), BETTER_LEFT[wanted], "f32[8,4]", because=because)


def row_of_zeros(xs, i):
    step = lambda a, j: (put(a, get(a, i, j) + xs[i, j], i, j), None)
    return lax.scan(step, jnp.zeros((8, 4)), jnp.arange(4))[0]


def copied(a):
    """What is read is written, and added up."""

    def inner(carry, ij):
        a, total = carry
        x = get(a, *ij)
        return (put(a, jnp.sin(x), *ij), total + x), None

    def outer(carry, i):
        return lax.scan(inner, carry, (jnp.full(4, i), jnp.arange(4)))[0], None

    return lax.scan(outer, (a, 0.0), jnp.arange(8))[0]


BETTER_NARROW = {
    "the last row": lambda a: table(a)[7],
    "its last element": lambda a: table(a)[7, 3],
    "XLA copies": copied,
    "read where XLA's order is not known": lambda a: nested(
        lambda a, i, j: put(a, lax.cond(j > 1, lambda: get(a, i, j), lambda: 0.0), i, j), a
    ),
    "a gradient": jax.grad(lambda a: jnp.sum(table(a))),
    "zeros that are made in each step": lambda xs: lax.scan(
        lambda c, i: (c, row_of_zeros(xs, i)), None, jnp.arange(8)
    )[1],
}


@pytest.mark.parametrize("wanted", BETTER_NARROW)
def test_what_gains_is_narrowed(wanted):
    """Cost: no table any more, no copies, no zeros."""
    alone(NarrowCarriedArrays(), BETTER_NARROW[wanted], "f32[8,4]", fires=True)


def corner(x, whole):
    a = jnp.full((128, 128), 2.0).at[0, 0].set(x)
    filled = nested(
        lambda a, i, j: put(a, get(a, i - 1, j) + get(a, i, j), i, j), a, rows=127, first=1
    )
    return filled if whole else filled[-1, -1]


def test_a_table_of_which_the_last_element_is_wanted_takes_a_row():
    """65 kB in plain JAX."""
    assert memory(optimize(lambda x: corner(x, whole=False)), 1.0) < 4096


def test_a_table_takes_no_second_one():
    plain = memory(lambda x: jnp.sin(corner(x, whole=True)), 1.0)
    others = optimize(lambda x: jnp.sin(corner(x, whole=True)), skip=["compile-small-loops"])
    assert memory(others, 1.0) <= plain


def test_a_table_is_narrowed_for_its_gradient():
    """Whether it will be differentiated was not known when the value was optimised."""

    def loss(a):
        return jnp.sum(jnp.cos(BETTER_LEFT["what another loop has left"](jnp.sin(a))))

    a = jnp.ones((8, 4))
    assert memory(jax.grad(optimize(loss)), a) <= memory(optimize(jax.grad(loss)), a) + 64


def summed(*windows):
    """A loop that adds its input to windows of a vector."""

    def program(flat, xs):
        def step(flat, x):
            for start, stop in windows:
                flat = flat.at[start:stop].add(x[: stop - start])
            return flat, None

        return lax.scan(step, flat, xs)[0]

    return program


def carried(graph):
    """The shapes that the loop carries."""
    loop = next(op for op in graph.walk() if op.name == "scan")
    return [carry.param.shape for carry in loop.carries]


def test_slices_of_a_vector():
    """Each is a carry of its own; what is between them stays."""

    def program(flat, xs):
        def step(flat, x):
            for start in (2, 8):
                old = lax.dynamic_slice(flat, (start,), (4,))
                flat = lax.dynamic_update_slice(flat, old + x, (start,))
            return flat, None

        return lax.scan(step, flat, xs)[0]

    check_rewrite(
        NARROW,
        program,
        "f32[12]",
        "f32[5,4]",
        simplify=True,
        diff="""
          fn (flat:f32[12], xs:f32[5,4]) {
        +   d4:f32[4] = dynamic_slice flat 2
        +   d5:f32[4] = dynamic_slice flat 8
        -   c:f32[12] = scan[5] carry(c=flat) xs(x=xs) {
        +   c1:f32[4], c2:f32[4] = scan[5] carry(c1=d4, c2=d5) xs(x=xs) {
        -     d:f32[4] = dynamic_slice c 2
        -     a:f32[4] = add d x
        +     a:f32[4] = add c1 x
        -     d1:f32[12] = dynamic_update_slice c a 2
        -     d2:f32[4] = dynamic_slice d1 8
        -     a1:f32[4] = add d2 x
        +     a1:f32[4] = add c2 x
        -     d3:f32[12] = dynamic_update_slice d1 a1 8
        -     yield carry(d3)
        +     yield carry(a, a1)
            }
        +   d6:f32[12] = dynamic_update_slice flat c1 2
        +   d7:f32[12] = dynamic_update_slice d6 c2 8
        -   return c
        +   return d7
          }
        """,
    )


APART = {
    "overlapping": (((1, 4), (3, 6), (8, 10)), [(5,), (2,)]),
    "side by side": (((0, 5), (5, 12)), [(5,), (7,)]),
    "not in order": (((7, 9), (0, 4), (4, 7)), [(4,), (3,), (2,)]),
    "one inside of another": (((2, 7), (3, 4), (8, 9)), [(5,), (1,)]),
    "few rows": (((2, 4),), [(2,)]),
}


@pytest.mark.parametrize("case", APART)
def test_windows_at_constants(case):
    """(2) The same bits; those that overlap are in one block."""
    windows, blocks = APART[case]
    assert carried(alone(NARROW, summed(*windows), "f32[12]", "f32[4,7]", fires=True)) == blocks


def test_columns_at_constants():
    """(3) Along the other axis they may be anywhere."""

    def program(a, xs, rows):
        def step(a, both):
            x, row = both
            a = lax.dynamic_update_slice(a, lax.dynamic_slice(a, (row, 1), (1, 4)) + x, (row, 1))
            return lax.dynamic_update_slice(a, jnp.sin(x[:, :3]), (2, 6)), None

        return lax.scan(step, a, (xs, rows))[0]

    graph = alone(NARROW, program, "f32[3,9]", "f32[5,1,4]", "i32[5]", fires=True)
    assert carried(graph) == [(3, 4), (3,)]  # the last row only


def fields(a):
    """A step reads a row, writes another, and then over the first."""

    def step(a, _):
        old = a[0]
        a = a.at[1].set(a[1] * old[::-1])
        return a.at[0].set(old + a[1]), None

    return lax.scan(step, a, length=4)[0]


def test_few_rows():
    """XLA copies the array, as a row is read before another is written: each is carried."""
    check_rewrite(
        NarrowCarriedArrays(),
        fields,
        "f32[2,4000]",
        simplify=True,
        diff="""
          fn (a:f32[2,4000]) {
        +   d2:f32[1,4000] = dynamic_slice a 0 0
        +   d3:f32[1,4000] = dynamic_slice a 1 0
        +   r3:f32[4000] = reshape d2
        +   r4:f32[4000] = reshape d3
        -   c:f32[2,4000] = scan[4] carry(c=a) {
        +   c1:f32[4000], c2:f32[4000] = scan[4] carry(c1=r3, c2=r4) {
        -     s:f32[1,4000] = slice[:1, :] c
        -     s1:f32[4000] = squeeze s
        -     s2:f32[1,4000] = slice[1:, :] c
        -     s3:f32[4000] = squeeze s2
        -     r:f32[4000] = rev[dimensions=(0,)] s1
        +     r:f32[4000] = rev[dimensions=(0,)] c1
        -     m:f32[4000] = mul s3 r
        +     m:f32[4000] = mul c2 r
        -     r1:f32[1,4000] = reshape m
        -     d:f32[2,4000] = dynamic_update_slice c r1 1 0
        -     s4:f32[1,4000] = slice[1:, :] d
        -     s5:f32[4000] = squeeze s4
        -     a:f32[4000] = add s1 s5
        +     a:f32[4000] = add c1 m
        -     r2:f32[1,4000] = reshape a
        -     d1:f32[2,4000] = dynamic_update_slice d r2 0 0
        -     yield carry(d1)
        +     yield carry(a, m)
            }
        +   r5:f32[1,4000] = reshape c1
        +   r6:f32[1,4000] = reshape c2
        +   d4:f32[2,4000] = dynamic_update_slice a r5 0 0
        +   d5:f32[2,4000] = dynamic_update_slice d4 r6 1 0
        -   return c
        +   return d5
          }
        """,
    )


def test_few_rows_that_stay():
    """Cost: nothing is copied; or the array is copied as fast as one more is carried."""

    def in_place(a):
        step = lambda a, _: (a.at[1].set(jnp.sin(a[1])), None)
        return lax.scan(step, a, length=4)[0]

    check_refuses(NarrowCarriedArrays(), fields, "f32[2,8]", because="as fast as one more")
    check_refuses(NarrowCarriedArrays(), in_place, "f32[2,4000]", because="adds to windows")

    def partly(a, places):
        step = lambda a, i: (a.at[1, i].set(a[0, i]).at[0, i - 1].set(a[1, i] + a[0, i]), None)
        return lax.scan(step, a, places)[0]

    check_refuses(
        NarrowCarriedArrays(), partly, "f32[2,4000]", "i32[5000]", because="adds to windows"
    )


def test_windows_at_constants_that_stay():
    """Cost: nothing is gained, or scalars would be carried."""
    alone(NARROW, summed((0, 9), (3, 12)), "f32[12]", "f32[4,9]", fires=False)
    elements = summed(*((k, k + 1) for k in range(12)))
    check_refuses(NARROW, elements, "f32[12]", "f32[4,9]", because="one by one")


def test_a_vector_of_few_numbers_at_constants(monkeypatch):
    """Cost: the vector is written as fast as blocks are carried; XLA adds in place, or does not."""
    known = [lambda in_one_function: True, lambda in_one_function: not in_one_function]
    ways = "as fast as one more array is carried", "adds to windows"
    for goes_through, because in zip(known, ways, strict=True):
        monkeypatch.setattr(narrow_carried_arrays, "goes_through_at_constants", goes_through)
        few, many = ("f32[12]", "f32[4,7]"), ("f32[4000]", "f32[4,7]")
        check_refuses(NarrowCarriedArrays(), summed((2, 4)), *few, because=because)
        alone(NarrowCarriedArrays(), summed((2, 4)), *many, fires="fast" in because)

    def multiplied(flat, xs, w):
        return lax.scan(lambda c, x: (c.at[2:9].add((x @ w)[0]), None), flat, xs)[0]

    alone(NarrowCarriedArrays(), multiplied, "f32[4000]", "f32[4,16,64]", "f32[64,7]", fires=True)


@pytest.mark.parametrize("copies", [False, True])
def test_the_gradient_of_a_flat_vector(copies, monkeypatch):
    """No loop carries an array as large as the vector, if XLA would copy it in each step."""
    name = "goes_through_at_constants"
    monkeypatch.setattr(narrow_carried_arrays, name, lambda in_one_function: copies)

    def loss(flat, xs):
        def step(h, x):
            w, b, c = flat[:1024].reshape(32, 32), flat[1024:1056], flat[1056:1088]
            return jnp.tanh(h @ w + b) * c + x, None

        return jnp.sum(lax.scan(step, jnp.ones(32), xs)[0])

    given = jnp.ones(1088), jnp.ones((20, 32))
    lowered = jax.jit(optimize(jax.grad(loss))).lower(*given).as_text()
    loops = [line for line in lowered.splitlines() if "stablehlo.while" in line]
    assert loops
    assert any("tensor<1088xf32>" in line for line in loops) != copies
