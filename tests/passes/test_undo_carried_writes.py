"""A buffer that a loop writes to is not stacked: the transposed loop undoes the writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.residuals.versions import restorable, undoable
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.residuals.narrow_residuals import NarrowResiduals
from jaxpr_opt.passes.residuals.undo_carried_writes import UndoCarriedWrites
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.graphs import graph_of, op_of, scans
from tests.loops import alone, measured

UNDO = UndoCarriedWrites()


def forth_and_back(step, read=lambda a, v: a * 0.5 + v, **options):
    """A loop that writes to a buffer and stacks it, and one that reads it in the other order.

    `step(buffer, index, x)` gives the new buffer and what is stacked.
    """
    forth = {"reverse": False, **options}
    back = {**forth, "reverse": not forth["reverse"]}

    def program(b, at, xs):
        b, versions = lax.scan(lambda b, ix: step(b, *ix), b, (at, xs), **forth)
        start = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), versions)
        body = lambda a, v: (jax.tree.map(read, a, v), None)
        return b, lax.scan(body, start, versions, **back)[0]

    return program


def put(b, i, x):
    """Write an element, wherever the index is: it is clamped."""
    return lax.dynamic_update_slice(b, x[None], (i,), allow_negative_indices=False)


def drop(b, i, x):
    """Write an element if the index is in range."""
    return b.at[i].set(x, mode="drop", wrap_negative_indices=False)


TYPES = "f32[8]", "i32[6]", "f32[6]"
ARRAYS = jnp.arange(8.0), jnp.array([3, 1, 3, 7, 0, 3]), jnp.arange(6.0) + 100


def test_the_version_before_the_write():
    """Only the elements that are overwritten are stacked, and written back in reverse order."""
    check_rewrite(
        UNDO,
        forth_and_back(lambda b, i, x: (put(b, i, x + b.sum()), b)),
        *TYPES,
        saves_bytes=6 * (32 - 4),
        diff="""
          fn (b:f32[8], at:i32[6], xs:f32[6]) {
        -   c:f32[8], ys:f32[6,8] = scan[6] carry(c=b) xs(x=at, x1=xs) {
        +   c:f32[8], ys1:f32[6,1] = scan[6] carry(c=b) xs(x=at, x1=xs) {
              r:f32[] = reduce_sum[axes=(0,)] c
              a:f32[] = add x1 r
              b:f32[1] = broadcast_in_dim a
        +     d1:f32[1] = dynamic_slice c x
              d:f32[8] = dynamic_update_slice c b x
        -     yield carry(d) ys(c)
        +     yield carry(d) ys(d1)
            }
            b1:f32[8] = broadcast_in_dim 0.0
        -   c1:f32[8] = scan[6, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[8], c2:f32[8] = scan[6, reverse] carry(c=b1, c2=c) xs(x2=ys1, at1=at) {
        +     d1:f32[8] = dynamic_update_slice c2 x2 at1
        +     o:f32[8] = optimization_barrier d1
              m:f32[8] = mul c 0.5
        -     a:f32[8] = add m x
        +     a:f32[8] = add m o
        -     yield carry(a)
        +     yield carry(a, o)
            }
            return c, c1
          }
        """,
    )


def test_the_version_after_the_write():
    """What it reads comes before the undoing."""
    check_rewrite(
        UNDO,
        forth_and_back(lambda b, i, x: (c := put(b, i, x + b.sum()), c)),
        *TYPES,
        saves_bytes=6 * (32 - 4),
        diff="""
          fn (b:f32[8], at:i32[6], xs:f32[6]) {
        -   c:f32[8], ys:f32[6,8] = scan[6] carry(c=b) xs(x=at, x1=xs) {
        +   c:f32[8], ys1:f32[6,1] = scan[6] carry(c=b) xs(x=at, x1=xs) {
              r:f32[] = reduce_sum[axes=(0,)] c
              a:f32[] = add x1 r
              b:f32[1] = broadcast_in_dim a
        +     d1:f32[1] = dynamic_slice c x
              d:f32[8] = dynamic_update_slice c b x
        -     yield carry(d) ys(d)
        +     yield carry(d) ys(d1)
            }
            b1:f32[8] = broadcast_in_dim 0.0
        -   c1:f32[8] = scan[6, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[8], c2:f32[8] = scan[6, reverse] carry(c=b1, c2=c) xs(x2=ys1, at1=at) {
              m:f32[8] = mul c 0.5
        -     a:f32[8] = add m x
        +     a:f32[8] = add m c2
        +     o:f32[8], o1:f32[8] = optimization_barrier c2 a
        +     d1:f32[8] = dynamic_update_slice o x2 at1
        -     yield carry(a)
        +     yield carry(o1, d1)
            }
            return c, c1
          }
        """,
    )


def test_a_version_between_two_writes():
    """It is reached by undoing the second; the first is undone at the end of the step."""

    def step(b, i, x):
        c = put(b, i, x)
        return put(c, i, x + 1.0), c

    check_rewrite(
        UNDO,
        forth_and_back(step),
        "f32[32]",
        *TYPES[1:],
        saves_bytes=6 * (128 - 8),
        diff="""
          fn (b:f32[32], at:i32[6], xs:f32[6]) {
        -   c:f32[32], ys:f32[6,32] = scan[6] carry(c=b) xs(x=at, x1=xs) {
        +   c:f32[32], ys1:f32[6,1], ys2:f32[6,1] = scan[6] carry(c=b) xs(x=at, x1=xs) {
              b:f32[1] = broadcast_in_dim x1
        +     d2:f32[1] = dynamic_slice c x
              d:f32[32] = dynamic_update_slice c b x
              a:f32[] = add x1 1.0
              b1:f32[1] = broadcast_in_dim a
        +     d3:f32[1] = dynamic_slice d x
              d1:f32[32] = dynamic_update_slice d b1 x
        -     yield carry(d1) ys(d)
        +     yield carry(d1) ys(d3, d2)
            }
            b1:f32[32] = broadcast_in_dim 0.0
        -   c1:f32[32] = scan[6, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[32], c2:f32[32] = scan[6, reverse] carry(c=b1, c2=c) xs(x2=ys1, x3=ys2, at1=at) {
        +     d2:f32[32] = dynamic_update_slice c2 x2 at1
        +     o:f32[32] = optimization_barrier d2
              m:f32[32] = mul c 0.5
        -     a:f32[32] = add m x
        +     a:f32[32] = add m o
        +     o1:f32[32], o2:f32[32] = optimization_barrier o a
        +     d3:f32[32] = dynamic_update_slice o1 x3 at1
        -     yield carry(a)
        +     yield carry(o2, d3)
            }
            return c, c1
          }
        """,
    )


def far(b, i, x):
    """Indices far out of range, on both sides."""
    return put(b, (i - 2) * 100, x)


def rows(b, i, x):
    """Some rows of one write are out of range, some are the same."""
    return b.at[jnp.stack([i, i, i + 6, i - 9])].set(x + jnp.arange(4.0), mode="drop")


def clipped(b, i, x):
    return b.at[i * 3].set(x, mode="clip")


def promised(b, i, x):
    return b.at[i].set(x, mode="promise_in_bounds")


def full(b, i, x):
    """A window of everything but one element."""
    return lax.dynamic_update_slice(b, x + b[1:], (i,))


def test_what_was_there_from_the_start():
    """Nothing is read or stacked of a place that no other step writes to."""

    def program(xs):
        step = lambda b, i, x: (c := put(b, i, x + b.sum()), c)
        return forth_and_back(step)(jnp.full(8, 7.0, jnp.float32), jnp.arange(6), xs)

    check_rewrite(
        UNDO,
        program,
        "f32[6]",
        saves_bytes=6 * 32,
        diff="""
          fn (xs:f32[6]) {
            b:f32[8] = broadcast_in_dim 7.0
            i:i32[6] = iota
        +   b2:f32[1] = broadcast_in_dim 7.0
        -   c:f32[8], ys:f32[6,8] = scan[6] carry(c=b) xs(x=i, x1=xs) {
        +   c:f32[8] = scan[6] carry(c=b) xs(x=i, x1=xs) {
              r:f32[] = reduce_sum[axes=(0,)] c
              a:f32[] = add x1 r
              b:f32[1] = broadcast_in_dim a
              d:f32[8] = dynamic_update_slice c b x
        -     yield carry(d) ys(d)
        +     yield carry(d)
            }
            b1:f32[8] = broadcast_in_dim 0.0
        -   c1:f32[8] = scan[6, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[8], c2:f32[8] = scan[6, reverse] carry(c=b1, c2=c) xs(x2=i) {
              m:f32[8] = mul c 0.5
        -     a:f32[8] = add m x
        +     a:f32[8] = add m c2
        +     o:f32[8], o1:f32[8] = optimization_barrier c2 a
        +     d1:f32[8] = dynamic_update_slice o b2 x2
        -     yield carry(a)
        +     yield carry(o1, d1)
            }
            return c, c1
          }
        """,
    )


def overlapping(b, i, x):
    """A window of two elements, one of which the next step overwrites."""
    c = lax.dynamic_update_slice(b, jnp.stack([x, x]), (i,), allow_negative_indices=False)
    return c, c


@pytest.mark.parametrize(
    ("step", "buffer", "at"),
    [
        pytest.param(lambda b, i, x: (c := put(b, i, x), c), jnp.arange(32.0), 1, id="not one"),
        pytest.param(lambda b, i, x: (c := put(b, i, x), c), jnp.zeros(32), 0, id="twice"),
        pytest.param(lambda b, i, x: (c := put(b, i, x), c), jnp.zeros(32), 9, id="clamped"),
        pytest.param(overlapping, jnp.zeros(32), 1, id="overlapping"),
        pytest.param(
            lambda b, i, x: (c := put(put(b, i, x), i + 1, x), c), jnp.zeros(32), 1, id="two"
        ),
    ],
)
def test_what_was_not_there_from_the_start(step, buffer, at):
    """It is stacked, as other steps write to the same places, or it is not one number."""
    program = lambda xs: forth_and_back(step)(buffer, jnp.arange(6) * at, xs)
    graph = alone(UNDO, program, "f32[6]", fires=True)
    forward = scans(graph)[0]
    assert forward.stacks


def added(b, i, x):
    """To three elements, two of which may be the same."""
    return b.at[jnp.stack([i, i, i + 1])].add(x)


@pytest.mark.parametrize("write", [put, drop, far, rows, clipped, promised, full, added])
def test_wherever_the_window_is(write):
    """Data-dependent, repeated, clamped, dropped: the very elements are restored."""
    long = lambda b: jnp.concatenate([b, jnp.ones(64)])
    fires = write is not full

    def step(b, i, x):
        return write(b, i, x), b

    alone(UNDO, forth_and_back(step), long(ARRAYS[0]), *ARRAYS[1:], fires=fires)
    alone(UNDO, forth_and_back(step), "f32[72]", *TYPES[1:], fires=fires)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_windows_that_overlap(which):
    """Two writes in a step are undone last first, before what reads the buffer or after it."""

    def step(b, i, x):
        one = lax.dynamic_update_slice(b, b[:3] + x, (i,))
        two = lax.dynamic_update_slice(one, one[4:6] * x, (i + 1,))
        return two, (b, one, two)[which]

    alone(UNDO, forth_and_back(step), jnp.arange(64.0), *ARRAYS[1:], fires=True)


@pytest.mark.parametrize("last", [True, False])
def test_all_versions_are_read(last):
    """Those before, between and after the writes, each where it is reached."""

    def step(b, i, x):
        c = put(b, i, x)
        d = drop(c, i + 1, x * 2)
        return d, (b, c, d) if last else (b, c)

    read = lambda a, v: a * 2.0 + v
    alone(UNDO, forth_and_back(step, read), jnp.arange(32.0), *ARRAYS[1:], fires=True)


def test_what_is_at_nan():
    """What is overwritten is restored, not computed."""
    buffer = jnp.full(32, jnp.nan).at[3].set(jnp.inf)
    alone(UNDO, forth_and_back(lambda b, i, x: (put(b, i, x), b)), buffer, *ARRAYS[1:], fires=True)


@pytest.mark.parametrize("dtype", ["bool", "i8", "u32", "bf16", "c64"])
def test_dtypes(dtype):
    """Integers are restored as exactly as floats."""

    def step(b, i, x):
        return put(b, i, (x > 0).astype(b.dtype)), b

    program = forth_and_back(step, lambda a, v: (a + v).astype(a.dtype))
    alone(UNDO, program, f"{dtype}[64]", *TYPES[1:], fires=True)


def test_64_bits():
    with jax.enable_x64(True):
        step = lambda b, i, x: (put(b, i, x), b)
        alone(UNDO, forth_and_back(step), "f64[64]", "i64[6]", "f64[6]", fires=True)


def test_weak_types():
    """JAX stacks a carry whose type is weak as it starts, though no write gives a weak type."""

    def program(at, xs):
        def step(b, i):
            return put(b, i, xs[0]), b

        b, versions = lax.scan(step, lax.broadcast(1.0, (32,)), at)
        assert jax.typeof(versions).weak_type
        assert not jax.typeof(b).weak_type
        return lax.scan(lambda a, v: (v, a), lax.broadcast(0.0, (32,)), versions, reverse=True)

    alone(UNDO, program, *TYPES[1:], fires=True)


def test_other_names():
    """A copy and a conversion to the same dtype make no other version."""

    def step(b, i, x):
        c = put(jnp.copy(b), i, x)
        return c, lax.convert_element_type(c, jnp.float32)

    alone(UNDO, forth_and_back(step), "f32[32]", *TYPES[1:], fires=True)


def test_a_view():
    """As for `q @ keys.T`: it is made of the version again."""
    check_rewrite(
        UNDO,
        forth_and_back(lambda b, i, x: (at_row(b, i, x), b.T)),
        "f32[4,2]",
        *TYPES[1:],
        saves_bytes=6 * (32 - 8),
        diff="""
          fn (b:f32[4,2], at:i32[6], xs:f32[6]) {
        -   c:f32[4,2], ys:f32[6,2,4] = scan[6] carry(c=b) xs(x=at, x1=xs) {
        +   c:f32[4,2], ys1:f32[6,1,2] = scan[6] carry(c=b) xs(x=at, x1=xs) {
              b:f32[1,2] = broadcast_in_dim x1
        +     d1:f32[1,2] = dynamic_slice c x 0
              d:f32[4,2] = dynamic_update_slice c b x 0
              t:f32[2,4] = transpose c
        -     yield carry(d) ys(t)
        +     yield carry(d) ys(d1)
            }
            b1:f32[2,4] = broadcast_in_dim 0.0
        -   c1:f32[2,4] = scan[6, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[2,4], c2:f32[4,2] = scan[6, reverse] carry(c=b1, c2=c) xs(x2=ys1, at1=at) {
        +     d1:f32[4,2] = dynamic_update_slice c2 x2 at1 0
        +     o:f32[4,2] = optimization_barrier d1
        +     t1:f32[2,4] = transpose o
              m:f32[2,4] = mul c 0.5
        -     a:f32[2,4] = add m x
        +     a:f32[2,4] = add m t1
        -     yield carry(a)
        +     yield carry(a, o)
            }
            return c, c1
          }
        """,
    )


def at_row(b, i, x):
    row = jnp.full((1, *b.shape[1:]), x)
    return lax.dynamic_update_slice(b, row, (i, 0), allow_negative_indices=False)


PAGES = jnp.array([5, 2, 2, 9, *range(28)])[:, None]


def rows(b, at):
    """As a table of pages says."""
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(b, at, numbers, (1, b.shape[1]), mode="clip")


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda b: b.T.reshape(4, 16), id="of a view"),
        pytest.param(lambda b: b.astype(jnp.bfloat16), id="rounded"),
        pytest.param(lambda b: rows(b, PAGES), id="rows gathered"),
        pytest.param(lambda b: b[:24], id="a part"),
        pytest.param(lambda b: (b, b.T, b * 2.0), id="several"),
        pytest.param(lambda b: jnp.copy(b).T, id="of another name"),
    ],
)
def test_views(view):
    """Which one is read: the one before the write, and the one after it."""
    for step in (
        lambda b, i, x: (at_row(b, i, x), view(b)),
        lambda b, i, x: ((c := at_row(b, i, x)), view(c)),
    ):
        alone(UNDO, forth_and_back(step), "f32[32,2]", *TYPES[1:], fires=True)


def test_a_view_of_weak_type():
    def program(at, xs):
        def step(b, i):
            return put(b, i, xs[0]), b.reshape(2, 16)

        _, views = lax.scan(step, lax.broadcast(1.0, (32,)), at)
        start = jnp.zeros((2, 16))
        return lax.scan(lambda a, v: (a + v, None), start, views, reverse=True)[0]

    alone(UNDO, program, *TYPES[1:], fires=True)


def test_a_batch():
    """Each row has an index of its own."""
    program = jax.vmap(forth_and_back(lambda b, i, x: (put(b, i, x), b)), (0, 0, None))
    alone(UNDO, program, "f32[3,64]", "i32[3,6]", "f32[6]", fires=True)


def test_the_forward_loop_runs_backwards():
    """Then the other one runs forwards."""
    program = forth_and_back(lambda b, i, x: (put(b, i, x), b), reverse=True)
    alone(UNDO, program, jnp.arange(32.0), *ARRAYS[1:], fires=True)


@pytest.mark.parametrize(("length", "fires"), [(0, False), (1, False), (2, False), (6, True)])
def test_short_loops(length, fires):
    """One version of the buffer must be kept, whatever is stacked."""
    at, xs = ARRAYS[1][:length], ARRAYS[2][:length]
    program = forth_and_back(lambda b, i, x: (put(b, i, x), b))
    alone(UNDO, program, jnp.arange(32.0), at, xs, fires=fires)


def test_read_in_a_branch():
    """The writes are undone in every step, whether it reads the buffer or not."""

    def program(b, at, xs):
        b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
        body = lambda a, vx: (lax.cond(vx[1] > 0, lambda: a + vx[0], lambda: a * 2.0), None)
        return b, lax.scan(body, b, (versions, xs), reverse=True)[0]

    alone(UNDO, program, "f32[32]", *TYPES[1:], fires=True)


def test_two_loops_read_it():
    """Each has a buffer of its own."""

    def program(b, at, xs):
        b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
        one = lax.scan(lambda a, v: (a + v, None), b, versions, reverse=True)[0]
        return b, lax.scan(lambda a, v: (a * v, v + a), one, versions, reverse=True)

    alone(UNDO, program, "f32[32]", *TYPES[1:], fires=True)


def test_two_buffers():
    """They share the index, which is stacked once."""

    def program(b, at, xs):
        def step(c, ix):
            i, x = ix[0] + 1, ix[1]
            c = put(c[0], i, x), put(c[1], i, x * 2.0)
            return c, c

        (k, v), versions = lax.scan(step, (b, b), (at, xs))
        read = lambda a, kv: (a + kv[0] * kv[1], None)
        return k, lax.scan(read, v, versions, reverse=True)[0]

    graph = alone(UNDO, program, "f32[32]", *TYPES[1:], fires=True)
    forward = scans(graph)[0]
    assert [s.result.shape for s in forward.stacks] == [(6, 1), (6,), (6, 1)]


def test_an_index_from_outside():
    """It is there in both loops."""

    def program(b, at, xs):
        i = at[0]
        b, versions = lax.scan(lambda b, x: (put(b, i, x), b), b, xs)
        return b, lax.scan(lambda a, v: (a + v, None), b, versions, reverse=True)[0]

    graph = alone(UNDO, program, "f32[32]", *TYPES[1:], fires=True)
    forward = scans(graph)[0]
    assert [s.result.shape for s in forward.stacks] == [(6, 1)]


def test_the_buffer_is_its_own_index():
    """The index is a version of the buffer: it is kept as an index."""

    def step(b, i, x):
        return b.at[b[:1]].set(i), b

    program = forth_and_back(step, lambda a, v: a * 2 + v)
    alone(UNDO, program, "i32[32]", *TYPES[1:], fires=True)


def test_effects_stay(capfd):
    """Nothing is moved, removed or run again."""

    def step(b, i, x):
        jax.debug.print("write {}", i)
        return put(b, i, x), b

    program = forth_and_back(step)
    check = lambda f: (jax.block_until_ready(f(jnp.arange(32.0), *ARRAYS[1:])), capfd.readouterr())
    assert check(optimize(program, passes=[UNDO]))[1].out == check(program)[1].out


OTHER = np.arange(32, dtype=np.float32)


def first_of_all(b, at, xs):
    b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
    return b, lax.scan(lambda a, v: (a + v, None), b, versions, reverse=True)[0], versions[0]


def half_of_it(b, at, xs):
    b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
    return b, lax.scan(lambda a, v: (a + v, None), b, versions[:3], reverse=True)[0]


def carried(b, at, xs):
    b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
    return b, lax.scan(lambda a, _: (a * 2.0, None), versions, None, length=3, reverse=True)[0]


def same_direction(b, at, xs):
    b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
    return b, lax.scan(lambda a, v: (a + v, None), b, versions)[0]


def split(b, at, xs):
    b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))
    inner = lambda a, rows: lax.scan(lambda a, v: (a + v, None), a, rows, reverse=True)
    return b, lax.scan(inner, b, versions.reshape(2, 3, 32), reverse=True)[0]


def two_ways(b, at, xs):
    """A loop reads a version of the same sweep, and one of another sweep."""

    def sweep(b, _):
        def step(b, ix):
            c = put(b, *ix)
            return c, (b, c)

        return lax.scan(step, b, (at, xs))

    b, (before, after) = lax.scan(sweep, b, length=4)
    read = lambda a, vw: (a * 0.5 + vw[0] + vw[1], None)

    def of_both(rows):
        return lambda a, others: lax.scan(read, a, (rows, others), reverse=True)

    back = lambda a, rows: lax.scan(of_both(rows), a, after, reverse=True)
    return b, lax.scan(lambda a, rows: (back(a, rows)[0], None), b, before, reverse=True)[0]


def stops(b, at, xs):
    """The loop that reads it does nothing from some step on."""
    b, versions = lax.scan(lambda b, ix: (put(b, *ix), b), b, (at, xs))

    def body(c, v):
        a, n = c
        return lax.cond(n < 3, lambda: (a + v, n + 1), lambda: (a, n)), None

    return b, lax.scan(body, (b, 0), versions, reverse=True)[0][0]


def ending(steps_back):
    """Steps from the fifth on write what is there; the loop back takes the first so many steps."""

    def program(b, at, xs):
        def forth(b, tix):
            t, i, x = tix
            old = lax.dynamic_slice(b, (i,), (1,), allow_negative_indices=False)[0]
            return put(b, i, jnp.where(t < 4, x + b.sum(), old)), b

        steps = jnp.arange(6)
        b, versions = lax.scan(forth, b, (steps, at, xs))
        back = lambda a, tv: (jnp.where(tv[0] < steps_back, a * 0.5 + tv[1], a), None)
        return b, lax.scan(back, b, (steps, versions), reverse=True)[0]

    return program


def test_a_loop_that_stops_where_nothing_is_written():
    """(4) The step that it skips would write what is there; it does not hinder that."""
    graph = alone(UNDO, ending(4), "f32[32]", *TYPES[1:], fires=True)
    forth, back = scans(graph)
    assert [stack.value.shape for stack in forth.stacks] == [(1,)]
    assert find_skip(back) is not None


def counting(
    ends=lambda on, x: on & (x < 103),
    count=lambda k, on: k + on.astype(jnp.int32),
    is_taken=lambda t, taken: t < taken,
    start=0,
    kept=lambda old, x: old,
    now=lambda on, x: on,
    first=0,
    reverse=False,
):
    """A loop that stops for good, and counts its steps; the loop back takes as many."""

    def program(b, at, xs):
        def forth(c, ix):
            b, was, k = c
            i, x = ix
            on = now(was, x)
            old = lax.dynamic_slice(b, (i,), (1,), allow_negative_indices=False)[0]
            new = put(b, i, lax.select_n(on, kept(old, x), x + b.sum()))
            return (new, ends(was, x), count(k, on)), b

        init = b, jnp.bool_(True), jnp.int32(start)
        (b, _, taken), versions = lax.scan(forth, init, (at, xs), reverse=reverse)
        back = lambda a, tv: (jnp.where(is_taken(tv[0], taken), a * 0.5 + tv[1], a), None)
        steps = lax.iota(jnp.int32, first + 6)[first:]
        return b, lax.scan(back, b, (steps, versions), reverse=not reverse)[0]

    return program


def test_what_an_inner_loop_may_read_again():
    """(1) Of a carry that is replaced, no version comes back."""
    step = lambda c, x: ((c[0].at[0].set(x), jnp.sin(c[1])), None)
    graph = graph_of(lambda b, xs: lax.scan(step, (b, b), xs)[0], "f32[3]", "f32[5]")
    written = op_of(graph, "scan").carries[0]
    assert undoable(op_of(graph, "scan")) == {written.param: 4, written.next: 4}


def test_as_many_steps_as_the_loop_has_counted():
    """(4) The loop back skips the steps in which the loop has kept the buffer."""
    alone(UNDO, counting(), jnp.arange(32.0), *ARRAYS[1:], fires=True)


def counting_whole_steps(b, at, xs):
    """Of a batch, steps that all rows take."""

    def forth(c, ix):
        b, on, k = c
        i, x = ix
        old = lax.dynamic_slice(b, (i, 0), (1, 2), allow_negative_indices=False)
        new = jnp.where(on, x + b.sum(), old)
        b_next = lax.dynamic_update_slice(b, new, (i, 0), allow_negative_indices=False)
        return (b_next, on & (x < jnp.float32([102, 104])), k + on.all().astype(jnp.int32)), b

    init = b.reshape(16, 2), jnp.ones(2, bool), jnp.int32(0)
    (b, _, taken), versions = lax.scan(forth, init, (at % 16, xs))
    back = lambda a, tv: (jnp.where(tv[0] < taken, a * 0.5 + tv[1], a), None)
    return b, lax.scan(back, b, (jnp.arange(6), versions), reverse=True)[0]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(counting_whole_steps, id="those of all rows of a batch"),
        pytest.param(counting(is_taken=lambda t, taken: t < taken - 1), id="one less"),
        pytest.param(counting(is_taken=lambda t, taken: t >= taken), id="the others"),
        pytest.param(counting(start=-1), id="counted from below zero"),
        pytest.param(counting(count=lambda k, on: k + 2 * on.astype(jnp.int32)), id="by two"),
        pytest.param(counting(count=lambda k, on: k + 1), id="all steps"),
        pytest.param(counting(count=lambda k, on: k - on.astype(jnp.int32)), id="downwards"),
        pytest.param(counting(ends=lambda on, x: x < 103), id="may go on again"),
        pytest.param(counting(kept=lambda old, x: x), id="writes in skipped steps"),
        pytest.param(counting(first=1), id="one less, by another number"),
        pytest.param(counting(lambda on, x: on, now=lambda on, x: x < 103), id="some between them"),
        pytest.param(counting(reverse=True), id="the first of those taken last"),
    ],
)
def test_other_steps_than_the_loop_has_counted(program):
    """(4) A step that is skipped may have written to the buffer."""
    alone(UNDO, program, jnp.arange(32.0), *ARRAYS[1:], fires=False)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        pytest.param(
            ending(3), "skips steps that may write to it", id="4 a loop that stops before"
        ),
        pytest.param(
            forth_and_back(lambda b, i, x: (put(b, i, x) * 2.0, b)),
            "is replaced by mul, not written to",
            id="1 multiplied after the write",
        ),
        pytest.param(
            forth_and_back(lambda b, i, x: (put(b * 2.0, i, x), b)),
            "is replaced by mul, not written to",
            id="1 multiplied before the write",
        ),
        pytest.param(
            forth_and_back(lambda b, i, x: (b.at[i].multiply(put(b, i, x)[0]), b)),
            "is replaced by scatter-mul, not written to",
            id="1 multiplied in place",
        ),
        pytest.param(
            forth_and_back(lambda b, i, x: (put(b, i, x).at[i].apply(jnp.sin), b)),
            "is replaced by scatter, not written to",
            id="1 changed in place",
        ),
        pytest.param(
            forth_and_back(lambda b, i, x: (lax.cond(x > 0, put, drop, b, i, x), b)),
            "is replaced by cond, not written to",
            id="1 written in a branch",
        ),
        pytest.param(
            forth_and_back(lambda b, i, x: (put(OTHER, i, x), b)),
            "is replaced by another value, not written to",
            id="1 written into another",
        ),
        pytest.param(first_of_all, "is not only read row by row", id="2 a row is read"),
        pytest.param(half_of_it, "is not only read row by row", id="2 another length"),
        pytest.param(carried, "is not only read row by row", id="2 not row by row"),
        pytest.param(
            same_direction, "read in the order in which it is written", id="2 same direction"
        ),
        pytest.param(split, "is split before it is read", id="2 split"),
        pytest.param(
            two_ways, "versions of the carry f32[32] from different steps", id="2 two ways"
        ),
        pytest.param(stops, "skips steps that may write to it", id="4 a loop that skips others"),
        pytest.param(
            forth_and_back(lambda b, i, x: (full(b, i, x), b)),
            "are stacked; the buffer and what is overwritten take",
            id="cost: windows as large as the buffer",
        ),
    ],
)
def test_refusals(program, because):
    """Each condition, and each way in which it fails."""
    check_refuses(UNDO, program, "f32[32]", *TYPES[1:], because=because)


def test_nothing_to_say_of_a_carry_that_is_not_written_to():
    """A hidden state that is stacked is no buffer."""
    step = lambda b, i, x: (jnp.tanh(b + x), b)
    graph = alone(UNDO, forth_and_back(step), *TYPES, fires=False)
    assert not any(list(UNDO.find(op)) for op in scans(graph))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda b, x: b * x, id="with something of the step"),
        pytest.param(
            lambda b, x: rows(b[:, None], jnp.int32(b)[:, None]), id="rows at indices of it"
        ),
        pytest.param(lambda b, _: jnp.exp(b), id="more work than reading it"),
    ],
)
def test_what_is_no_view(made):
    step = lambda b, i, x: (put(b, i, x), made(b, x))
    alone(UNDO, forth_and_back(step), "f32[32]", *TYPES[1:], fires=False)


def test_a_version_that_no_stack_holds_yet():
    """What is computed of it, and of a number of the step, is computed again of both."""
    program = forth_and_back(lambda b, i, x: (put(b, i, x), 2.0 * (b - x)))
    types = "f32[32]", "i32[40]", "f32[40]"
    check_rewrite(
        NarrowResiduals(),
        program,
        *types,
        diff="""
          fn (b:f32[32], at:i32[40], xs:f32[40]) {
            c:f32[32], ys:f32[40,32] = scan[40] carry(c=b) xs(x=at, x1=xs) {
              b:f32[1] = broadcast_in_dim x1
              d:f32[32] = dynamic_update_slice c b x
              s:f32[32] = sub c x1
              m:f32[32] = mul 2.0 s
        -     yield carry(d) ys(m)
        +     yield carry(d) ys(c)
            }
            b1:f32[32] = broadcast_in_dim 0.0
        -   c1:f32[32] = scan[40, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[32] = scan[40, reverse] carry(c=b1) xs(x=ys, xs1=xs) {
        +     s1:f32[32] = sub x xs1
        +     m1:f32[32] = mul 2.0 s1
              m:f32[32] = mul c 0.5
        -     a:f32[32] = add m x
        +     a:f32[32] = add m m1
              yield carry(a)
            }
            return c, c1
          }
        """,
    )
    graph = import_jaxpr(traced(program, *types))
    records = run_alone((NarrowResiduals(), UNDO), graph).records
    assert len(records[UNDO.name].rewrites) == 1


@pytest.mark.parametrize(
    ("step", "fires"),
    [
        pytest.param(lambda b, i, x: (put(b, i, x), jnp.abs(b * x)), True, id="a product"),
        pytest.param(
            lambda b, i, x: (w := put(b, i, x), x - w),
            True,
            id="of the version after the write",
        ),
        pytest.param(
            lambda b, i, x: (put(b, i, x), b[None] - jnp.arange(3.0)[:, None] * x),
            True,
            id="repeated",
        ),
        pytest.param(
            lambda b, i, x: (put(b, i, x), (b - x, jnp.where(b * x < 0, 0.0, x))),
            True,
            id="several stacks",
        ),
        pytest.param(
            lambda b, i, x: (put(put(b, i, x), i + 1, -x), b * x), True, id="of two writes"
        ),
        pytest.param(lambda b, i, x: (put(b, i, x), b[:4] * x), False, id="a part: it is as small"),
        pytest.param(lambda b, i, x: (put(b, i, x), jnp.exp(b * x)), False, id="a function"),
        pytest.param(lambda b, i, x: (b * x, b - x), False, id="the buffer is no buffer"),
    ],
)
def test_what_is_computed_of_versions(step, fires):
    """It is made of what the loop back has once the writes are undone."""
    types = "f32[32]", "i32[40]", "f32[40]"
    graph = import_jaxpr(traced(forth_and_back(step), *types))
    records = run_alone((NarrowResiduals(), UNDO), graph).records
    assert bool(records[UNDO.name].rewrites) == fires


def test_versions_that_cannot_be_undone_are_not_stacked_instead():
    """(1), (2) Condition: the other order, and written to."""
    step = lambda b, i, x: (put(b, i, x), 2.0 * (b - x))

    def program(b, at, xs):
        b, made = lax.scan(lambda b, ix: step(b, *ix), b, (at, xs))
        return b, lax.scan(lambda a, v: (a * 0.5 + v, None), jnp.zeros(32), made)[0]

    types = "f32[32]", "i32[40]", "f32[40]"
    graph = import_jaxpr(traced(program, *types))
    assert not restorable(op_of(graph, "scan"))
    replaced = lambda b, i, x: (b * x, b - x)
    graph = import_jaxpr(traced(forth_and_back(replaced), *types))
    assert not restorable(op_of(graph, "scan"))
    graph = import_jaxpr(traced(forth_and_back(step), *types))
    # The buffer and 40 numbers, in 40 steps.
    assert list(restorable(op_of(graph, "scan")).values()) == [-(-(32 + 40) * 4 // 40)]


def test_what_is_computed_in_many_ways_is_looked_at_once():
    """Fifty squares, each of the one before, have a quadrillion ways to what they are made of."""

    def step(b, i, x):
        value = x + jnp.arange(32.0)
        for _ in range(50):
            value = value * value
        return put(b, i, x), value

    graph = import_jaxpr(traced(forth_and_back(step), "f32[32]", "i32[40]", "f32[40]"))
    assert not restorable(op_of(graph, "scan"))


def row(b, i):
    """Elements from wherever the index is: it is clamped."""
    return lax.dynamic_slice(b, (i,), (24,), allow_negative_indices=False)


def test_a_window_that_the_step_chooses():
    """(3) The index is stacked, and the window is read again."""
    check_rewrite(
        UNDO,
        forth_and_back(lambda b, i, x: ((c := put(b, i, x)), row(c, i * 2))),
        "f32[32]",
        *TYPES[1:],
        saves_bytes=6 * (96 - 4 - 4),
        diff="""
          fn (b:f32[32], at:i32[6], xs:f32[6]) {
        -   c:f32[32], ys:f32[6,24] = scan[6] carry(c=b) xs(x=at, x1=xs) {
        +   c:f32[32], ys1:f32[6,1], ys2:i32[6] = scan[6] carry(c=b) xs(x=at, x1=xs) {
              b:f32[1] = broadcast_in_dim x1
        +     d2:f32[1] = dynamic_slice c x
              d:f32[32] = dynamic_update_slice c b x
              m:i32[] = mul x 2
              d1:f32[24] = dynamic_slice d m
        -     yield carry(d) ys(d1)
        +     yield carry(d) ys(d2, m)
            }
            b1:f32[24] = broadcast_in_dim 0.0
        -   c1:f32[24] = scan[6, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[24], c2:f32[32] = scan[6, reverse] carry(c=b1, c2=c) xs(x2=ys1, x3=ys2, at1=at) {
        +     d2:f32[24] = dynamic_slice c2 x3
              m:f32[24] = mul c 0.5
        -     a:f32[24] = add m x
        +     a:f32[24] = add m d2
        +     o:f32[32], o1:f32[24] = optimization_barrier c2 a
        +     d3:f32[32] = dynamic_update_slice o x2 at1
        -     yield carry(a)
        +     yield carry(o1, d3)
            }
            return c, c1
          }
        """,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda b, i: row(b, i - 40), id="clamped"),
        pytest.param(lambda b, i: row(b, i * 2).reshape(4, 6), id="of a view"),
        pytest.param(lambda b, i: row(b[::-1], i), id="a view of it"),
        pytest.param(lambda b, i: (row(b, i), row(b, i + 7), b[:24]), id="several"),
        pytest.param(lambda b, i: b.reshape(2, 16).at[i % 3].get(mode="fill"), id="filled"),
        pytest.param(lambda b, i: (b * 2.0, row(b, i)), id="and all of it"),
    ],
)
def test_windows_that_the_step_chooses(read):
    for step in (
        lambda b, i, x: (put(b, i, x), read(b, i)),
        lambda b, i, x: ((c := put(b, i, x)), read(c, i)),
        lambda b, i, x: ((c := put(b, i, x)), read(put(c, i + 1, x), i)),
    ):
        alone(UNDO, forth_and_back(step), "f32[32]", *TYPES[1:], fires=True)


def test_windows_that_are_read_otherwise_stay_stacks():
    """The versions are undone; a window that is a result, too, is stacked."""

    def program(b, at, xs):
        def step(b, ix):
            i, x = ix
            return put(b, i, x), (b, row(b, i))

        b, (versions, windows) = lax.scan(step, b, (at, xs))
        back = lambda a, v: (a * 0.5 + v, None)
        return windows, lax.scan(back, b * 0.0, versions, reverse=True)[0]

    graph = alone(UNDO, program, "f32[32]", *TYPES[1:], fires=True)
    shapes = [s.result.shape for op in scans(graph) for s in op.stacks]
    assert (6, 24) in shapes
    assert (6, 32) not in shapes


def test_little_windows_stay_stacks():
    """What they take is less than the buffer."""
    step = lambda b, i, x: (put(b, i, x), row(b, i))
    alone(UNDO, forth_and_back(step), "f32[320]", *TYPES[1:], fires=False)


def test_a_stack_that_is_made_of_nothing():
    """(3) It is no view of the buffer: it stays a stack."""
    step = lambda b, i, x: (put(b, i, x), (b, lax.iota(jnp.float32, 5)))
    graph = alone(UNDO, forth_and_back(step), *TYPES, fires=True)
    (forth,) = (op for op in scans(graph) if op.stacks)
    assert (6, 5) in [stack.result.shape for stack in forth.stacks]


def sweeps(
    step=lambda b, i, x: (put(b, i, x + b.sum()), b),
    between=lambda b: b,
    around=lambda reads, a, rows: reads(a, rows),
    read=lambda a, v: a * 0.5 + v,
    reverse=True,
):
    """Sweeps of a loop that stacks versions, `between` which the buffer changes, and loops back."""

    def program(b, at, xs):
        def sweep(b, _):
            b, versions = lax.scan(lambda b, ix: step(b, *ix), b, (at, xs))
            return between(b), versions

        def reads(a, rows):
            body = lambda a, v: (jax.tree.map(lambda v: read(a, v), v), None)
            return lax.scan(body, a, rows, reverse=True)[0]

        b, versions = lax.scan(sweep, b, length=4)
        back = lambda a, rows: (around(reads, a, rows), None)
        return b, lax.scan(back, b * 0.0, versions, reverse=reverse)[0]

    return program


def test_sweeps():
    """(5) The loops back carry the buffer through all sweeps: only elements are stacked."""
    check_rewrite(
        UNDO,
        sweeps(),
        *TYPES,
        saves_bytes=4 * 6 * (32 - 4),
        diff="""
          fn (b:f32[8], at:i32[6], xs:f32[6]) {
        -   c:f32[8], ys:f32[4,6,8] = scan[4] carry(c=b) {
        +   c:f32[8], ys1:f32[4,6,1] = scan[4] carry(c=b) {
        -     c1:f32[8], ys:f32[6,8] = scan[6] carry(c=c) xs(x=at, x1=xs) {
        +     c1:f32[8], ys1:f32[6,1] = scan[6] carry(c=c) xs(x=at, x1=xs) {
                r:f32[] = reduce_sum[axes=(0,)] c
                a:f32[] = add x1 r
                b:f32[1] = broadcast_in_dim a
        +       d1:f32[1] = dynamic_slice c x
                d:f32[8] = dynamic_update_slice c b x
        -       yield carry(d) ys(c)
        +       yield carry(d) ys(d1)
              }
        -     yield carry(c1) ys(ys)
        +     yield carry(c1) ys(ys1)
            }
            m:f32[8] = mul c 0.0
        -   c1:f32[8] = scan[4, reverse] carry(c=m) xs(x=ys) {
        +   c1:f32[8], c2:f32[8] = scan[4, reverse] carry(c=m, c2=c) xs(x2=ys1) {
        -     c1:f32[8] = scan[6, reverse] carry(c=c) xs(x=x) {
        +     c1:f32[8], c3:f32[8] = scan[6, reverse] carry(c=c, c2=c2) xs(x2=x2, at1=at) {
        +       d1:f32[8] = dynamic_update_slice c2 x2 at1
        +       o:f32[8] = optimization_barrier d1
                m:f32[8] = mul c 0.5
        -       a:f32[8] = add m x
        +       a:f32[8] = add m o
        -       yield carry(a)
        +       yield carry(a, o)
              }
        -     yield carry(c1)
        +     yield carry(c1, c3)
            }
            return c, c1
          }
        """,
    )


SWEEPS = {
    "carried": (sweeps(), False),
    "changed between sweeps": (sweeps(between=lambda b: b / (1.0 + b @ b)), True),
    "written between sweeps": (sweeps(between=lambda b: b.at[0].set(1.0)), True),
    "read in the order of the sweeps": (sweeps(reverse=False), True),
    "read twice in each": (
        sweeps(around=lambda reads, a, rows: lax.fori_loop(0, 2, lambda _, a: reads(a, rows), a)),
        True,
    ),
    "read in a branch": (
        sweeps(
            around=lambda reads, a, rows: lax.cond(
                a[0] < 1.0, reads, lambda a, rows: a + rows[0], a, rows
            )
        ),
        None,
    ),
    "read in a few sweeps": (
        sweeps(
            around=lambda reads, a, rows: jnp.where(
                jnp.all(a[:1] < 2e2), reads(a, rows).at[:1].set(a[:1] + 1), a
            )
        ),
        True,
    ),
}


@pytest.mark.parametrize("which", SWEEPS)
def test_where_the_buffer_of_a_sweep_comes_from(which):
    """(5) From the sweep that is undone before, if nothing else changes it; else it is stacked."""
    program, is_stacked = SWEEPS[which]
    graph = alone(UNDO, program, "f32[48]", *TYPES[1:], fires=is_stacked is not None)
    shapes = [s.result.shape for op in scans(graph) for s in op.stacks]
    assert ((4, 48) in shapes) == bool(is_stacked)
    assert ((4, 6, 48) in shapes) == (is_stacked is None)


@pytest.mark.parametrize("write", [put, drop, far, clipped, promised])
def test_sweeps_wherever_the_window_is(write):
    """Out of range, twice, dropped."""
    step = lambda b, i, x: (write(b, i, x + b.sum()), b)
    for between in (lambda b: b, lambda b: b * 0.5):
        program = sweeps(step, between)
        alone(UNDO, program, jnp.arange(72.0), *ARRAYS[1:], fires=True)


def test_sweeps_of_weak_type():
    """(5) A buffer of weak type is that of the sweep before, under another name."""
    convert = lax.convert_element_type_p.bind
    weak = lambda b: convert(b, new_dtype=b.dtype, weak_type=True, sharding=None)
    program = sweeps(between=weak)
    graph = alone(UNDO, lambda b, *args: program(weak(b), *args), *TYPES, fires=True)
    loops = scans(graph)
    assert (4, 8) not in [stack.result.shape for op in loops for stack in op.stacks]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_sweeps_of_two_writes(which):
    """A version before, between or after them."""

    def step(b, i, x):
        one = put(b, i, x + b.sum())
        two = drop(one, i + 1, x)
        return two, (b, one, two)[which]

    alone(UNDO, sweeps(step), jnp.arange(72.0), *ARRAYS[1:], fires=True)


def test_three_loops():
    """Each carries the buffer; a number of the loop between is a row for each of its steps."""

    def program(b, at, xs):
        def step(i):
            return lambda b, x: (put(b, i, x + b.sum()), b * 2.0)

        middle = lambda b, i: lax.scan(step(jnp.abs(i) // 2), b, xs)
        b, versions = lax.scan(lambda b, _: lax.scan(middle, b, at), b, length=3)

        def back(a, rows):
            return (
                (a * 0.5 + rows, None) if rows.ndim == 1 else lax.scan(back, a, rows, reverse=True)
            )

        return b, back(b, versions)[0]

    graph = alone(UNDO, program, "f32[48]", *TYPES[1:], fires=True)
    assert not any(48 in s.result.shape for op in scans(graph) for s in op.stacks)


def test_sweeps_from_one_number():
    """What is known to be overwritten is not stacked, for no sweep."""

    def program(xs):
        def sweep(total, _):
            step = lambda b, ix: (put(b, *ix), b)
            b, versions = lax.scan(step, jnp.full(32, 7.0), (jnp.arange(6), xs * total))
            return b.sum(), versions

        total, versions = lax.scan(sweep, 1.0, length=4)
        reads = lambda a, rows: lax.scan(lambda a, v: (a * 0.5 + v, None), a, rows, reverse=True)
        return total, lax.scan(reads, jnp.zeros(32), versions, reverse=True)[0]

    graph = alone(UNDO, program, "f32[6]", fires=True)
    shapes = [s.result.shape for op in scans(graph) for s in op.stacks]
    assert (4, 32) in shapes
    assert (4, 6, 1) not in shapes


def swept(a, b):
    """Gauss and Seidel's method."""

    def step(i, x):
        return x.at[i].set((b[i] - a[i] @ x + a[i, i] * x[i]) / a[i, i])

    sweep = lambda _, x: lax.fori_loop(0, len(b), step, x)
    return jnp.sum(lax.fori_loop(0, 8, sweep, jnp.zeros_like(b)) ** 2)


def within_bound(a, b):
    """Sweeps until a mask says that it is enough."""

    def sweep(c, _):
        x, on = c
        step = lambda i, x: x.at[i].set((b[i] - a[i] @ x + a[i, i] * x[i]) / a[i, i])
        new = lax.fori_loop(0, len(b), step, x)
        on = on & (jnp.max(jnp.abs(new - x)) > 1e-3)
        return (jnp.where(on, new, x), on), None

    return jnp.sum(lax.scan(sweep, (jnp.zeros_like(b), jnp.bool_(True)), length=8)[0][0] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "batch"), [(swept, False), (swept, True), (within_bound, True)])
def test_gradients_of_sweeps_in_little_memory(sweep, batch):
    """In every order, and differentiated again."""
    rng = np.random.default_rng(0)
    b = jnp.asarray(rng.normal(size=48), jnp.float32)
    a = jnp.asarray(rng.normal(size=(48, 48)) / 48, jnp.float32) + 2 * jnp.eye(48)
    over = (lambda f: jax.vmap(f, (None, 0))) if batch else lambda f: f
    b = jnp.stack([b, b + 1.0]) if batch else b
    plain = over(jax.grad(sweep, 1))
    gradients = [over(jax.grad(optimize(sweep), 1)), optimize(plain)]
    wanted, usual = measured(plain, a, b)
    for gradient in gradients:
        given, used = measured(gradient, a, b)
        assert_close(wanted, given)
        assert sweep is not swept or used < usual / 2
    if not batch:
        along = lambda f: jax.jit(lambda: jax.jvp(lambda a: f(a, b), (a,), (jnp.ones_like(a),)))()
        assert_close(along(plain), along(gradients[0]))


def loss(xs):
    """Each element is computed from all before it."""

    def step(c, i):
        ys, total = c
        s = jnp.dot(ys, xs)
        return (ys.at[i].set(jnp.sin(xs[i] + s)), total + s), None

    (ys, total), _ = lax.scan(step, (jnp.zeros(len(xs)), 0.0), jnp.arange(len(xs)))
    return jnp.sum(ys**2) + total


@pytest.mark.slow
@pytest.mark.parametrize(
    "gradient",
    [
        pytest.param(optimize(jax.grad(loss), passes=[UNDO]), id="the gradient is optimised"),
        pytest.param(
            jax.grad(optimize(loss, passes=[UNDO])), id="an optimised function's gradient"
        ),
    ],
)
def test_a_gradient_in_little_memory(gradient):
    """A few buffers where JAX takes one a step; and it can be differentiated again."""
    xs = jnp.linspace(0.0, 0.1, 200)
    (wanted, usual), (given, used) = (measured(f, xs) for f in (jax.grad(loss), gradient))
    assert usual > 200 * xs.nbytes
    assert used < 20 * xs.nbytes
    assert_close(wanted, given)
    along = lambda f: jax.jit(jax.grad(lambda x: jnp.vdot(f(x), xs)))(xs)
    assert_close(along(jax.grad(loss)), along(gradient))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scores",
    [
        pytest.param(lambda q, keys: q @ keys.T, id="transposed"),
        pytest.param(lambda q, keys: (keys.astype(jnp.bfloat16) @ q).astype(q.dtype), id="rounded"),
        pytest.param(lambda q, keys: keys[::-1] @ q, id="in another order"),
    ],
)
def test_attention_in_little_memory(scores):
    """Neither views of the cache nor the rows that are multiplied with them are stacked."""

    def loss(xs):
        def step(keys, i):
            keys = keys.at[i].set(jnp.sin(xs[i]))
            return keys, jax.nn.softmax(scores(xs[i], keys)) @ keys

        return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(len(xs)))[1] ** 2)

    xs = jnp.linspace(0.0, 1.0, 200 * 4).reshape(200, 4)
    wanted, usual = measured(jax.grad(loss), xs)
    assert usual > 200 * xs.nbytes
    for gradient in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        given, used = measured(gradient, xs)
        assert used < 20 * xs.nbytes
        assert_close(wanted, given)


@pytest.mark.slow
def test_distances_in_little_memory():
    """Of all places to one, which then moves: neither places nor differences are stacked."""

    def loss(xs):
        def step(places, i):
            apart = jnp.sum((places - xs[i]) ** 2, axis=-1)
            return places.at[i].set(jnp.sin(xs[i])), jnp.sum(jnp.sqrt(1.0 + apart))

        return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(len(xs)))[1] ** 2)

    xs = jnp.linspace(0.0, 1.0, 200 * 4).reshape(200, 4)
    wanted, usual = measured(jax.grad(loss), xs)
    assert usual > 200 * xs.nbytes
    for gradient in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        given, used = measured(gradient, xs)
        assert used < 70 * xs.nbytes  # a number of each place, a quarter of it
        assert_close(wanted, given)


def one_array(caches, k, layer, t):
    return caches.at[layer, t].set(k), lambda caches: caches[layer]


def put_back(caches, k, layer, t):
    return caches.at[layer].set(caches[layer].at[t].set(k)), lambda caches: caches[layer]


def last_first(caches, k, layer, t):
    layer = 2 - layer
    return caches.at[:, layer, t].set(k), lambda caches: caches[1, layer]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "shape"),
    [(one_array, (3,)), (put_back, (3,)), (last_first, (2, 3))],
)
def test_layers_in_an_inner_loop_in_little_memory(write, shape):
    """A cache of all layers, of which each layer of an inner loop reads its own."""

    def loss(xs):
        def step(t, state):
            def layer(n, state):
                x, caches = state
                caches, read = write(caches, jnp.sin(x), n, t)
                return x + jax.nn.softmax(read(caches) @ x) @ read(caches), caches

            x, caches, total = state
            x, caches = lax.fori_loop(0, 3, layer, (x + xs[t], caches))
            return x, caches, total + jnp.sum(x**2)

        start = jnp.zeros(4), jnp.zeros((*shape, *xs.shape)), 0.0
        return lax.fori_loop(0, len(xs), step, start)[2]

    xs = jnp.linspace(0.0, 1.0, 200 * 4).reshape(200, 4)
    wanted, usual = measured(jax.grad(loss), xs)
    assert usual > 200 * 3 * xs.nbytes
    for gradient in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        given, used = measured(gradient, xs)
        assert used < 50 * xs.nbytes
        assert_close(wanted, given)


def test_what_it_keeps_is_no_version_to_be_undone():
    """The rows that writes replace are read of the buffer: they are stacked, whatever it costs."""

    def program(x):
        last, rows = lax.scan(lambda c, _: (c.at[1].set(c[7]), c), x, length=4)
        return last, lax.scan(lambda d, c: (d * 0.5 + c, None), last, rows, reverse=True)[0]

    graph = import_jaxpr(traced(program, "f32[8]"))
    assert len(run_alone((UNDO,), graph).records[UNDO.name].rewrites) == 1
