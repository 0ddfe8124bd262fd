"""A window of a select is selected from windows, a window of a broadcast is one."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.windows.narrow_reads import NarrowReads
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone, memory

NARROW = NarrowReads()


def read(b, *starts, sizes):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_slice(b, starts, sizes, allow_negative_indices=False)


def test_one_predicate_for_all():
    """(1) Nothing else of the select is wanted."""

    def program(p, a, b, i):
        return read(lax.select_n(p, a, b), i, sizes=(2,))

    check_rewrite(
        NARROW,
        program,
        "bool[]",
        "f32[8]",
        "f32[8]",
        "i32[]",
        diff="""
            fn (p:bool[], a:f32[8], b:f32[8], i:i32[]) {
              s:f32[8] = select_n p a b
          -   d:f32[2] = dynamic_slice s i
          +   d:f32[2] = dynamic_slice a i
          +   d1:f32[2] = dynamic_slice b i
          +   s1:f32[2] = select_n p d d1
          -   return d
          +   return s1
            }
        """,
    )


def test_several_windows():
    """(1) Each is read for itself; the predicate of a row is the window's."""

    def program(p, a, b, i):
        selected = jnp.where(p[:, None], a, b)
        return read(selected, 0, i, sizes=(3, 1)), read(selected, 1, i, sizes=(2, 2))

    check_rewrite(
        NARROW,
        program,
        "bool[3]",
        "f32[3,8]",
        "f32[3,8]",
        "i32[]",
        diff="""
            fn (p:bool[3], a:f32[3,8], b:f32[3,8], i:i32[]) {
              b1:bool[3,1] = broadcast_in_dim[dims=(0,)] p
              b2:bool[3,8] = broadcast_in_dim b1
              s:f32[3,8] = select_n b2 b a
          -   d:f32[3,1] = dynamic_slice s 0 i
          +   d:f32[3,1] = dynamic_slice b 0 i
          +   d2:f32[3,1] = dynamic_slice a 0 i
          +   b3:bool[3,1] = broadcast_in_dim[dims=(0,)] p
          +   s1:f32[3,1] = select_n b3 d d2
          -   d1:f32[2,2] = dynamic_slice s 1 i
          +   d1:f32[2,2] = dynamic_slice b 1 i
          +   d3:f32[2,2] = dynamic_slice a 1 i
          +   d4:bool[2,2] = dynamic_slice b2 1 i
          +   s2:f32[2,2] = select_n d4 d1 d3
          -   return d, d1
          +   return s1, s2
            }
        """,
    )


def test_rows_that_are_out_of_range():
    """(2) They are filled, whichever case is selected."""

    def program(p, a, b, i):
        rows = jax.vmap(
            lambda b, i: b.at[i].get(mode="fill", fill_value=7.0, wrap_negative_indices=False)
        )
        return rows(lax.select_n(p, a, b), i)

    args = "bool[3,8]", "f32[3,8]", "f32[3,8]", "i32[3]"
    check_rewrite(
        NARROW,
        program,
        *args,
        diff="""
            fn (p:bool[3,8], a:f32[3,8], b:f32[3,8], i:i32[3]) {
              s:f32[3,8] = select_n p a b
              b1:i32[3,1] = broadcast_in_dim[dims=(0,)] i
          -   g:f32[3] = gather[collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=7.0] s b1
          +   g:f32[3] = gather[collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=7.0] a b1
          +   g1:f32[3] = gather[collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=7.0] b b1
          +   g2:bool[3] = gather[collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,), slice_sizes=(1, 1), unique_indices, indices_are_sorted, mode=fill_or_drop] p b1
          +   s1:f32[3] = select_n g2 g g1
          -   return g
          +   return s1
            }
        """,  # noqa: E501
    )


def test_a_window_of_a_broadcast():
    """(3) It is the same everywhere."""

    def program(x, i):
        spread = lax.broadcast_in_dim(x, (3, 8), (0,))
        return read(spread, 0, i, sizes=(3, 2)), read(jnp.zeros((3, 8)), i, i, sizes=(1, 2))

    check_rewrite(
        NARROW,
        program,
        "f32[3]",
        "i32[]",
        diff="""
            fn (x:f32[3], i:i32[]) {
              b:f32[3,8] = broadcast_in_dim[dims=(0,)] x
          -   d:f32[3,2] = dynamic_slice b 0 i
          +   b2:f32[3,2] = broadcast_in_dim[dims=(0,)] x
              b1:f32[3,8] = broadcast_in_dim 0.0
          -   d1:f32[1,2] = dynamic_slice b1 i i
          +   b3:f32[1,2] = broadcast_in_dim 0.0
          -   return d, d1
          +   return b2, b3
            }
        """,
    )


def test_an_array_needed_whole():
    """(1) Then it is made anyway."""

    def program(p, a, b, i):
        selected = lax.select_n(p, a, b)
        return read(selected, i, sizes=(2,)), selected.sum()

    args = "bool[]", "f32[8]", "f32[8]", "i32[]"
    check_refuses(NARROW, program, *args, because="reduce_sum reads the whole array")


def test_an_array_that_is_its_own_index():
    """(1) As an index it is read, but not for a window."""

    def program(p, a, b):
        selected = lax.select_n(p, a, b)
        return selected.at[selected].get(mode="clip"), read(selected, 1, sizes=(2,))

    args = "bool[]", "i32[8]", "i32[8]"
    check_refuses(NARROW, program, *args, because="reads the whole array")


def test_most_of_the_array():
    """Five elements of each case are more than eight."""

    def program(p, a, b, i):
        return read(lax.select_n(p, a, b), i, sizes=(5,))

    args = "bool[]", "f32[8]", "f32[8]", "i32[]"
    check_refuses(NARROW, program, *args, because="the window is most of the array")


@pytest.mark.parametrize("is_given", [True, False])
def test_a_select_before_a_loop(is_given):
    """What the loop reads is kept: two cases and a mask, unless they are arguments."""

    def program(x, a, b, rows):
        p, a, b = (x > 0, a, b) if is_given else (jnp.sin(x) > 0, a, jnp.sin(b))
        selected = lax.select_n(p, a, b)
        return lax.scan(lambda c, i: (c + read(selected, i, 0, sizes=(1, 8)), None), a[:1], rows)[0]

    args = "f32[64,8]", "f32[64,8]", "f32[64,8]", "i32[9]"
    if is_given:
        alone(NARROW, program, *args, fires=True)
    else:
        check_refuses(NARROW, program, *args, because="take more memory, which the loop would keep")


def test_a_broadcast_out_of_range():
    """(3) Filled with something else."""

    def program(i):
        return jnp.zeros(8).at[i].get(mode="fill", fill_value=7.0, wrap_negative_indices=False)

    check_refuses(NARROW, program, "i32[]", because="rows out of range are filled")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            lambda x, p, i: read(lax.broadcast_in_dim(x, (3, 8), (1,)), 0, i, sizes=(3, 2)),
            id="a broadcast along another axis",
        ),
        pytest.param(
            lambda x, p, i: read(lax.select_n(p, x, -x, x), i, sizes=(2,)), id="three cases"
        ),
        pytest.param(lambda x, p, i: read(-x, i, sizes=(2,)), id="another op"),
    ],
)
def test_left_alone(program):
    """(2, 3) Where the window is matters, or is not known to be the predicate's."""
    graph = import_jaxpr(traced(program, "f32[8]", "i32[]", "i32[]"))
    assert not run_alone((NARROW,), graph).record(NARROW.name, False).rewrites


def filled(xs, axis=0):
    """A table that a loop stacks, and one more row."""
    last, rows = lax.scan(lambda c, x: (jnp.sin(c + x), c), xs[0], xs)
    return jnp.moveaxis(jnp.concatenate([rows, last[None]]), 0, axis)


def looped(step):
    """A loop over places, each step of which has arrays `a` and a row of `b`."""

    def program(a, b, at):
        return lax.scan(lambda n, ib: (n, step(a, ib[1], ib[0])), 0.0, (at, b))[1]

    return program


def test_a_window_of_a_product():
    """(5) What is out of range is zero, whatever it is of."""
    check_rewrite(
        NARROW,
        looped(lambda a, b, i: (a * b).at[i].get(mode="fill", fill_value=0)),
        "f32[8]",
        "f32[3,8]",
        "i32[3]",
        diff="""
            fn (a:f32[8], b:f32[3,8], at:i32[3]) {
              ys:f32[3] = scan[3] xs(x=at, x1=b) {
                m:f32[8] = mul a x1
                l:bool[] = lt x 0
                a1:i32[] = add x 8
                s:i32[] = select_n l x a1
                b:i32[1] = broadcast_in_dim s
          -     g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=0] m b
          +     g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=0] a b
          +     g1:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=0] x1 b
          +     m1:f32[] = mul g g1
          -     yield ys(g)
          +     yield ys(m1)
              }
              return ys
            }
        """,  # noqa: E501
    )


PLACES = jnp.array([-20, -16, -1, 0, 3, 15, 16, 99])


@pytest.mark.parametrize(
    "make", [lax.add, lax.sub, lax.mul, lambda a, b: -b, lambda a, b: lax.stop_gradient(b)]
)
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_windows_of_sums_and_products(make, mode):
    """(5) In range or not; NaN and infinity stay where they are."""
    special = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.0, 1.0, 3.0, 1e-40, 7.0], jnp.float32)
    a, b = jnp.repeat(special, 2), jnp.stack([jnp.roll(jnp.tile(special, 2), n) for n in range(8)])
    step = lambda a, b, i: make(a, b).at[i].get(mode=mode, fill_value=0)
    alone(NARROW, looped(step), a, b, PLACES, fires=True)


def test_a_product_in_range():
    """(5) Nothing is filled in, whatever the number is."""
    step = lambda a, b, i: (a * b).at[3].get(mode="fill", fill_value=7.0)
    alone(NARROW, looped(step), "f32[8]", "f32[3,8]", "i32[3]", fires=True)


@pytest.mark.parametrize("dtype", ["i8", "u32", "bf16", "c64"])
def test_products_of_dtypes(dtype):
    """(5) Several windows, each for itself; overflow wraps around as it does."""

    def step(a, b, i):
        made = a * b - a
        window = lambda j: made.at[j].get(mode="clip")
        return window(i), window(i + 1), lax.dynamic_slice(made, (i,), (2,))

    alone(NARROW, looped(step), f"{dtype}[16]", f"{dtype}[8,16]", PLACES, fires=True)


def summed(a, b, i):
    made = a * b
    return made[i], made.sum()


def before_the_loop(a, b, at):
    made = a * b[0]
    return lax.scan(lambda n, i: (n, made[i]), 0.0, at)[1]


@pytest.mark.parametrize(
    ("step", "because"),
    [
        pytest.param(summed, "reduce_sum reads the whole", id="needed whole"),
        pytest.param(
            lambda a, b, i: read(a * b, i, sizes=(5,)),
            "the window is most of the array",
            id="most of it",
        ),
    ],
)
def test_refused_products(step, because):
    """(5) and cost."""
    check_refuses(NARROW, looped(step), "f32[8]", "f32[3,8]", "i32[3]", because=because)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(before_the_loop, id="made before the loop"),
        pytest.param(lambda a, b, at: (a * b[0])[at[0]], id="not in a loop"),
        pytest.param(looped(lambda a, b, i: jnp.sin(b)[i]), id="another function"),
        pytest.param(looped(lambda a, b, i: (a * b).at[i].get(mode="fill")), id="NaN out of range"),
        pytest.param(looped(lambda a, b, i: (a * 2.0).at[i].get(mode="clip")), id="by one number"),
    ],
)
def test_products_left_alone(program):
    """(5) XLA reads what it makes, or makes it once."""
    alone(NARROW, program, "f32[8]", "f32[3,8]", "i32[3]", fires=False)


def test_the_last_row_of_a_table():
    """(4) Not read through the table, transposed or not."""
    check_rewrite(
        NARROW,
        lambda xs: filled(xs, axis=1)[1:, 8:],
        "f32[8,3]",
        diff="""
          fn (xs:f32[8,3]) {
            s:f32[1,3] = slice[:1, :] xs
            s1:f32[3] = squeeze s
            c:f32[3], ys:f32[8,3] = scan[8] carry(c=s1) xs(x=xs) {
              a:f32[3] = add c x
              s:f32[3] = sin a
              yield carry(s) ys(c)
            }
            b:f32[1,3] = broadcast_in_dim c
            c1:f32[9,3] = concatenate[dimension=0] ys b
            t:f32[3,9] = transpose c1
        -   s2:f32[2,1] = slice[1:, 8:] t
        +   s3:f32[1,2] = slice[:, 1:] b
        +   t1:f32[2,1] = transpose s3
        -   return s2
        +   return t1
          }
        """,
    )


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda t: (t[8], t[8, 1:]), id="two slices"),
        pytest.param(lambda t: (t[8], t[2:7:2]), id="a slice of the other part"),
        pytest.param(lambda t: lax.slice(t, (8, 0), (9, 3), (1, 2)), id="strided"),
        pytest.param(lambda t: t.T[1:, 8], id="transposed"),
        pytest.param(lambda t: t[:8], id="the stack alone"),
    ],
)
def test_parts_of_a_table(read):
    """(4)"""
    alone(NARROW, lambda xs: read(filled(xs)), "f32[8,3]", fires=True)


@pytest.mark.parametrize(
    ("read", "because"),
    [
        (lambda t: (t[8], t.sum()), "reduce_sum reads the whole"),
        (lambda t: (t[8], t[7:]), "slice reads the whole"),
        (lambda t: (t[8], t), "yield reads the whole"),
        (lambda t: (t[8], t[jnp.argmax(t[8])]), "reads the whole"),
    ],
)
def test_a_table_needed_whole(read, because):
    """(4) Then it is made anyway."""
    check_refuses(NARROW, lambda xs: read(filled(xs)), "f32[8,3]", because=because)


def test_parts_that_no_loop_stacks():
    """(4) XLA does as well."""
    program = lambda x, y: jnp.concatenate([jnp.sin(x), y]).T[:, 8:]
    alone(NARROW, program, "f32[8,3]", "f32[2,3]", fires=False)


@pytest.mark.parametrize("rows", [slice(7, 9), slice(0, 0)])
def test_a_slice_of_two_parts_or_of_none(rows):
    """(4)"""
    alone(NARROW, lambda xs: filled(xs)[rows], "f32[8,3]", fires=False)


def upwards(table, *, low=0, steps=8, rows=1):
    """A loop that reads rows of a table in the opposite order."""

    def step(c, i):
        at = low + steps - 1 - i
        return c * jnp.sum(read(table, at, 0, sizes=(rows, 3))) + 1.0, None

    return lax.scan(step, 1.0, jnp.arange(steps))[0]


def test_a_loop_reads_one_part():
    """(6) Not put together for a loop that reads the stacked rows only."""
    check_rewrite(
        NARROW,
        lambda xs: upwards(filled(xs)),
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (xs:f32[8,3]) {
            s:f32[1,3] = slice[:1, :] xs
            s1:f32[3] = squeeze s
            c:f32[3], ys:f32[8,3] = scan[8] carry(c=s1) xs(x=xs) {
              a:f32[3] = add c x
              s:f32[3] = sin a
              yield carry(s) ys(c)
            }
        -   b:f32[1,3] = broadcast_in_dim c
        -   c1:f32[9,3] = concatenate[dimension=0] ys b
            i:i32[8] = iota
            c2:f32[] = scan[8] carry(c=1.0) xs(x=i) {
              s:i32[] = sub 7 x
        -     d:f32[1,3] = dynamic_slice c1 s 0
        +     d:f32[1,3] = dynamic_slice ys s 0
              r:f32[] = reduce_sum[axes=(0, 1)] d
              c2:f32[] = convert_element_type c
              m:f32[] = mul c2 r
              a:f32[] = add m 1.0
              yield carry(a)
            }
            return c2
          }
        """,
    )


PARTS = {
    "the last part": lambda table: upwards(table, low=8, steps=1),
    "one and then another": lambda table: upwards(table) + upwards(table, low=8, steps=1),
    "and a slice": lambda table: upwards(table) + table[8, 0],
    "transposed": lambda table: upwards(table.T.T),
    "checked indices": lambda table: lax.scan(
        lambda c, i: (c + table[7 - i], None), jnp.zeros(3), jnp.arange(8)
    )[0],
    "of a transposed table": lambda table: lax.scan(
        lambda c, i: (c + table.T[:, 7 - i], None), jnp.zeros(3), jnp.arange(8)
    )[0],
}


@pytest.mark.parametrize("reads", PARTS)
def test_windows_of_one_part(reads):
    """(6)"""
    alone(NARROW, lambda xs: PARTS[reads](filled(xs)), "f32[8,3]", fires=True)


WHOLE = {
    "of two parts": lambda table: upwards(table, steps=9),
    "of both at once": lambda table: upwards(table, rows=2),
    "wanted whole": lambda table: (upwards(table), table),
    "from the data": lambda table: lax.scan(
        lambda c, _: (c + read(table, jnp.int32(c[0]), 0, sizes=(1, 3))[0], None),
        jnp.zeros(3), jnp.arange(8),
    )[0],
    "read once": lambda table: read(table, jnp.int32(3), 0, sizes=(1, 3)),
}  # fmt: skip


@pytest.mark.parametrize("reads", WHOLE)
def test_windows_of_what_is_put_together(reads):
    """(6) It is needed whole, or XLA does not put it together."""
    alone(NARROW, lambda xs: WHOLE[reads](filled(xs)), "f32[8,3]", fires=False)


def test_what_is_solved_backwards_takes_no_copy_of_what_was_eliminated():
    """Coefficients that XLA copies in every step, so that they are stacked; 49 kB before.

    A loop that is one function (JAX 0.10) takes up to 64 bytes for pointers to its results.
    """

    def solve(a):
        def forward(i, cd):
            c, d = cd
            pivot = 4.0 - c[i - 1]
            return c.at[i].set(1.0 / pivot), d.at[i].set((a[i] - d[i - 1]) / pivot)

        def back(i, x):
            j = 4094 - i
            return x.at[j].set(d[j] - c[j] * x[j + 1])

        start = jnp.zeros(4096).at[0].set(0.25)
        c, d = lax.fori_loop(1, 4096, forward, (start, start))
        return lax.fori_loop(0, 4095, back, jnp.zeros(4096).at[4095].set(d[4095]))

    a = jnp.ones(4096)
    assert memory(optimize(solve), a) <= memory(solve, a) + 64
    batch = jnp.ones((3, 4096))
    assert memory(optimize(jax.vmap(solve)), batch) <= memory(jax.vmap(solve), batch)
