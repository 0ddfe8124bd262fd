"""Parts of an array are added: it is the array, with what was written to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode
from jaxpr_opt.passes.masks.join_selected_parts import JoinSelectedParts
from jaxpr_opt.passes.writes.forward_written_windows import ForwardWrittenWindows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.graphs import scans
from tests.loops import alone, memory

JOIN = JoinSelectedParts()
FORWARD = ForwardWrittenWindows()
TYPES = "bool[]", "f32[16]", "f32[2]", "i32[]"


def write(b, u, i):
    return lax.dynamic_update_slice(b, u, (i,), allow_negative_indices=False)


def read(b, i):
    return lax.dynamic_slice(b, (i,), (2,), allow_negative_indices=False)


def parts(p, c):
    """Where the predicate is false, and where it is true."""
    zeros = jnp.zeros_like(c)
    return lax.select_n(p, c, zeros), lax.select_n(p, zeros, c)


def test_one_part_is_written_to():
    """Outside of the window one of the two is zero."""

    def program(p, c, u, i):
        a, b = parts(p, c)
        return a + write(b, u, i)

    check_rewrite(
        JOIN,
        program,
        *TYPES,
        diff="""
            fn (p:bool[], c:f32[16], u:f32[2], i:i32[]) {
              b:f32[16] = broadcast_in_dim 0.0
              s:f32[16] = select_n p c b
              s1:f32[16] = select_n p b c
          +   d1:f32[2] = dynamic_slice s i
          +   a1:f32[2] = add d1 u
          -   d:f32[16] = dynamic_update_slice s1 u i
          +   d:f32[16] = dynamic_update_slice c a1 i
          -   a:f32[16] = add s d
          -   return a
          +   return d
            }
        """,
    )


def test_an_addition_and_writes():
    """Each in its place; in a sum the other way round."""

    def program(p, c, u, i):
        a, b = parts(p, c)
        written = write(b.at[i].add(7.0, mode="drop"), read(b, 3) * u, i)
        return lax.add(write(written, u, i + 1), a)

    check_rewrite(
        JOIN,
        program,
        *TYPES,
        diff="""
            fn (p:bool[], c:f32[16], u:f32[2], i:i32[]) {
              b:f32[16] = broadcast_in_dim 0.0
              s:f32[16] = select_n p c b
              s1:f32[16] = select_n p b c
              l:bool[] = lt i 0
              a:i32[] = add i 16
              s2:i32[] = select_n l i a
              b1:i32[1] = broadcast_in_dim s2
          -   s3:f32[16] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] s1 b1 7.0
              d:f32[2] = dynamic_slice s1 3
              m:f32[2] = mul d u
          -   d1:f32[16] = dynamic_update_slice s3 m i
              a1:i32[] = add i 1
          +   s4:f32[16] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b1 7.0
          +   d3:f32[2] = dynamic_slice s i
          +   a3:f32[2] = add m d3
          -   d2:f32[16] = dynamic_update_slice d1 u a1
          +   d2:f32[16] = dynamic_update_slice s4 a3 i
          -   a2:f32[16] = add d2 s
          +   d4:f32[2] = dynamic_slice s a1
          +   a4:f32[2] = add u d4
          +   d5:f32[16] = dynamic_update_slice d2 a4 a1
          -   return a2
          +   return d5
            }
        """,  # noqa: E501
    )


def element(b, u, i):
    return lax.dynamic_update_slice(b, u[None], (i,), allow_negative_indices=False)


def test_both_parts_are_written_to():
    """(3) Each window of the sum is the sum of what both have there."""

    def program(p, c, u, v, i, j):
        a, b = parts(p, c)
        return lax.add(element(a, u, i), element(b, v, j))

    check_rewrite(
        JOIN,
        program,
        *("bool[]", "f32[16]", "f32[]", "f32[]", "i32[]", "i32[]"),
        diff="""
            fn (p:bool[], c:f32[16], u:f32[], v:f32[], i:i32[], j:i32[]) {
              b:f32[16] = broadcast_in_dim 0.0
              s:f32[16] = select_n p c b
              s1:f32[16] = select_n p b c
              b1:f32[1] = broadcast_in_dim u
              d:f32[16] = dynamic_update_slice s b1 i
              b2:f32[1] = broadcast_in_dim v
              d1:f32[16] = dynamic_update_slice s1 b2 j
          -   a:f32[16] = add d d1
          +   d2:f32[1] = dynamic_slice d1 j
          +   d3:f32[1] = dynamic_slice d j
          +   a1:f32[1] = add d3 d2
          +   d4:f32[16] = dynamic_update_slice c a1 j
          +   d5:f32[1] = dynamic_slice d1 i
          +   d6:f32[1] = dynamic_slice d i
          +   a2:f32[1] = add d6 d5
          +   d7:f32[16] = dynamic_update_slice d4 a2 i
          -   return a
          +   return d7
            }
        """,
    )


def test_parts_of_a_switch():
    """(1) As many as there are branches, of which some may have a part together."""

    def program(k, c, u, i):
        zeros = jnp.zeros_like(c)
        a = element(lax.select_n(k, c, zeros, zeros, c), u, i)
        b = element(lax.select_n(k, zeros, c, zeros, zeros), u * 2, i + 1)
        d = element(lax.select_n(k, zeros, zeros, c, zeros), u * 3, i - 1)
        return lax.add(lax.add(b, a), d)

    for k in range(4):
        for i in (0, 3, 15, 16, -1):
            args = jnp.int32(k), jnp.arange(16.0), jnp.float32(0.3), jnp.int32(i)
            graph = alone(JOIN, program, *args, fires=True)
    assert (
        sum(op.name in ("add", "add_any") and op.result.shape == (16,) for op in graph.walk()) == 0
    )


def test_an_addition_to_what_was_written():
    """(3) Where the two coincide, in the order of the sum."""

    def program(p, c, u, i, j):
        a, b = parts(p, c)
        return element(b, u, i).at[j].add(7.3, mode="drop") + a

    for i, j in ((3, 3), (3, 4), (15, 16), (0, -16), (99, 15)):
        for p in (False, True):
            args = (
                jnp.array(p),
                jnp.arange(16.0) + 0.1,
                jnp.float32(1e8),
                jnp.int32(i),
                jnp.int32(j),
            )
            alone(JOIN, program, *args, fires=True)


def test_a_window_read_between_two_writes():
    """(4) It is read of the part, or of what was written."""

    def program(p, c, u, i, j):
        a, b = parts(p, c)
        first = element(b, u, i)
        between = lax.dynamic_slice(first, (j,), (1,), allow_negative_indices=False)
        return a + element(first, between[0] * 2, j), between

    graph = alone(JOIN, program, "bool[]", "f32[16]", "f32[]", "i32[]", "i32[]", fires=True)
    run_alone((FORWARD,), graph)
    run_alone((EliminateDeadCode(),), graph)
    assert [op.name for op in graph.walk()].count("dynamic_update_slice") == 2


def test_nothing_is_written():
    """Then it is the array."""

    def program(p, c):
        a, b = parts(p, c)
        return b + a

    check_rewrite(
        JOIN,
        program,
        *TYPES[:2],
        diff="""
            fn (p:bool[], c:f32[16]) {
              b:f32[16] = broadcast_in_dim 0.0
              s:f32[16] = select_n p c b
              s1:f32[16] = select_n p b c
          -   a:f32[16] = add s1 s
          -   return a
          +   return c
            }
        """,
    )


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("change", ["set", "add"])
@pytest.mark.parametrize("case", [False, True])
def test_wherever_both_windows_are(mode, change, case):
    """(2), (3) One of each row of a batch, the other at one place for all rows; any two places."""

    def program(p, c, u, i, j):
        a, b = parts(p, c)
        one = lambda b, u, i: getattr(b.at[i].set(u, **how).at[i + 1], change)(u, **how)
        ours = jax.vmap(one)(b, u, i)
        return a.at[:, j].set(u[0], **how) + ours

    how = {"mode": mode, "wrap_negative_indices": False}
    count = len(PLACES)
    c = jnp.arange(16.0 * count).reshape(count, 16) + 0.1
    u, i = jnp.arange(1.0, count + 1), jnp.array(PLACES)
    for j in (-1, 0, 15, 16):
        alone(JOIN, program, jnp.array(case), c, u, i, jnp.int32(j), fires=True)


ZEROS = np.zeros(16, np.float32)
PLACES = [-20, -1, 0, 3, 14, 15, 16, 99]


@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("change", ["set", "add"])
@pytest.mark.parametrize("case", [False, True])
def test_wherever_the_window_is(mode, change, case):
    """(2) In each row of a batch, in range or not."""

    def program(p, c, u, i):
        a, b = parts(p, c)
        one = lambda b, u, i: getattr(b.at[i], change)(u, mode=mode, wrap_negative_indices=False)
        return a + jax.vmap(one)(b, u, i)

    within = [i for i in PLACES if mode != "promise_in_bounds" or 0 <= i < 16]
    count = len(within)
    c = jnp.arange(16.0 * count).reshape(count, 16) + 0.1
    u, i = jnp.arange(1.0, count + 1), jnp.array(within)
    alone(JOIN, program, jnp.array(case), c, u, i, fires=True)


def test_nan():
    """NaN and infinity stay where they are, and are written where they would be."""

    def program(p, c, u, i):
        a, b = parts(p, c)
        return a + write(b, read(b, i) * u, i)

    c = jnp.full(16, jnp.nan, jnp.float32).at[::2].set(jnp.inf)
    for case in (False, True):
        for number in (jnp.nan, jnp.inf):
            u, p, i = jnp.array([number, 1.0]), jnp.array(case), jnp.int32(3)
            alone(JOIN, program, p, c, u, i, fires=True)
            alone(JOIN, program, p, jnp.ones(16), u, i, fires=True)


@pytest.mark.parametrize("dtype", ["i8", "u32", "bf16", "c64"])
def test_dtypes(dtype):
    program = lambda p, c, u, i: write(parts(p, c)[0], u, i) + parts(p, c)[1]
    alone(JOIN, program, "bool[]", f"{dtype}[16]", f"{dtype}[2]", "i32[]", fires=True)


def test_64_bits():
    with jax.enable_x64(True):
        alone(
            JOIN,
            lambda p, c, u, i: parts(p, c)[0] + write(parts(p, c)[1], u, i),
            "bool[]",
            "f64[16]",
            "f64[2]",
            "i64[]",
            fires=True,
        )


def test_weak_types():
    """The sum is of the type that it was."""

    def program(p):
        c = jax.lax.full((16,), 3.0) * 1.0
        weak = lax.broadcast(jnp.asarray(2.0) * 1, (16,))
        a, b = lax.select_n(p, weak, jnp.zeros_like(c)), lax.select_n(p, jnp.zeros_like(c), weak)
        return a + b

    alone(JOIN, program, "bool[]", fires=True)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        pytest.param(
            lambda p, c, u, i: parts(p, c)[0] + write(parts(p, c)[1], u, i).at[3].add(u[0]),
            "a written window is added to, and the order of the sum would change",
            id="3",
        ),
        pytest.param(
            lambda p, c, u, i: write(parts(p, c)[0], u, i) + write(parts(p, c)[1], u, i + 1),
            "a written window is added to, and the order of the sum would change",
            id="3 windows that overlap",
        ),
        pytest.param(
            lambda p, c, u, i: (
                parts(p, c)[0] + (w := write(parts(p, c)[1], u, i)),
                read(w, i + 1),
            ),
            "what dynamic_update_slice makes is read elsewhere",
            id="4 a window that overlaps",
        ),
        pytest.param(
            lambda p, c, u, i: (parts(p, c)[0] + (w := write(parts(p, c)[1], u, i)), w),
            "what dynamic_update_slice makes is read elsewhere",
            id="4 what is written",
        ),
        pytest.param(
            lambda p, c, u, i: ((a := parts(p, c)[0]) + write(parts(p, c)[1], u, i), jnp.sin(a)),
            "sin reads a whole part",
            id="4 a part",
        ),
    ],
)
def test_refusals(program, because):
    check_refuses(JOIN, program, *TYPES, because=because)


BESIDE = {
    "before": lambda d, a, b: (d + a) + b,
    "between": lambda d, a, b: (a + d) + b,
    "after": lambda d, a, b: (a + b) + d,
    "to the second": lambda d, a, b: a + (b + d),
}


@pytest.mark.parametrize("add", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize(("clears", "adds"), [(False, False), (True, False), (False, True)])
def test_another_array_is_added(add, clears, adds):
    """(1) In the order of the sum, where both parts have a number, too."""

    def program(p, c, u, i, d):
        a, b = parts(p, c)
        written = b.at[i].add(u[0], mode="drop") if adds else b
        return add(d, a, write(written, jnp.zeros(2) if clears else u, i))

    alone(JOIN, program, *TYPES, "f32[16]", fires=True)
    numbers = jnp.exp(jnp.arange(16.0)), jnp.array([1e-3, 3e-3])
    for which, place in ((True, 3), (False, 3), (True, -3), (False, 99)):
        args = jnp.array(which), numbers[0], numbers[1], jnp.int32(place), numbers[0] * 1e-4
        alone(JOIN, program, *args, fires=True)


def test_rows_that_are_written_and_read_under_a_mask():
    """The cotangent of what is read is added to the parts; nothing whole is made in a step."""

    def program(table, us, ids, masks):
        def step(t, x):
            u, i, p = x
            return jnp.where(p, t.at[i].set(u + t[i]), t), jnp.sum(t[i])

        return jnp.sum(lax.scan(step, table, (us, ids, masks))[1])

    args = (
        jnp.ones((4000, 2)),
        jnp.ones((3, 2)),
        jnp.array([5, 5, 7]),
        jnp.array([True, False, True]),
    )
    gradient = jax.grad(program, (0, 1))
    assert_close(gradient(*args), optimize(gradient)(*args))
    assert memory(optimize(gradient), *args) < 1.25 * args[0].nbytes
    without = optimize(jax.vmap(gradient, (0, None, None, None)), skip=["join-selected-parts"])
    many = jnp.stack([args[0], 2 * args[0]])
    assert_close(
        jax.vmap(gradient, (0, None, None, None))(many, *args[1:]), without(many, *args[1:])
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            lambda p, c, u, i: c + parts(p, c)[0] + u[0] * c + write(parts(p, c)[1], u, i),
            id="1 two arrays beside",
        ),
        pytest.param(
            lambda p, c, u, i: lax.add(c[None], write(parts(p, c)[1], u, i)[None]),
            id="1 another array in place of a part",
        ),
        pytest.param(
            lambda p, c, u, i: parts(p, c)[0] + write(parts(i > 0, c)[1], u, i),
            id="1 another predicate",
        ),
        pytest.param(
            lambda p, c, u, i: parts(p, c)[0] + write(parts(p, -c)[1], u, i), id="1 another array"
        ),
        pytest.param(
            lambda p, c, u, i: parts(p, c)[0] + write(parts(p, c)[0], u, i),
            id="1 the same part twice",
        ),
        pytest.param(
            lambda p, c, u, i: (parts(p, c)[0] + (w := write(parts(p, c)[1], u, i))) + w,
            id="1 a written part twice",
        ),
        pytest.param(
            lambda p, c, u, i: lax.select_n(p, c, jnp.ones(16)) + write(parts(p, c)[1], u, i),
            id="1 ones",
        ),
        pytest.param(
            lambda p, c, u, i: lax.select_n(k := i % 3, c, ZEROS, c) + lax.select_n(k, ZEROS, c, c),
            id="1 one of three",
        ),
        pytest.param(
            lambda p, c, u, i: lax.clamp(low := -c, c, ZEROS) + lax.clamp(low, ZEROS, c),
            id="1 limits",
        ),
        pytest.param(
            lambda p, c, u, i: lax.add(
                parts(p, c)[0], lax.dynamic_slice(parts(p, c)[1], (i,), (1,))
            ),
            id="2 read, not written",
        ),
        pytest.param(
            lambda p, c, u, i: parts(p, c)[0] + parts(p, c)[1].at[i + jnp.arange(2)].set(u),
            id="2 two windows",
        ),
        pytest.param(
            lambda p, c, u, i: parts(p, c)[0] + -write(parts(p, c)[1], u, i),
            id="2 not only written",
        ),
    ],
)
def test_other_sums(program):
    graph = import_jaxpr(traced(program, *TYPES))
    assert not run_alone((JOIN,), graph).record(JOIN.name, False).rewrites


def reservoir(kept, rows, at):
    """Rows take the places that are free, then others, or none."""

    def step(kept, x):
        i, row, place = x
        later = jnp.where(place < 64, kept.at[place].set(row), kept)
        return jnp.where(i < 64, kept.at[i].set(row), later), None

    return lax.scan(step, kept, (jnp.arange(len(rows)), rows, at))[0]


def swaps(x, gains, pairs):
    """Two elements change places, or one grows."""

    def step(x, given):
        gain, (i, j) = given
        a, b = x[i], x[j]
        return jnp.where(i < j, x.at[i].set(b).at[j].set(a), x.at[i].add(gain)), a * b

    return lax.scan(step, x, (gains, pairs))[1]


def rows_of_branches(x, gains, places):
    """A row is written in some branches of a branch, from another row."""

    def step(x, given):
        gain, i = given
        inner = lambda x: lax.cond(
            gain > 0, lambda x: x.at[i].set(jnp.sin(x[i - 3]) * gain), same, x
        )
        return lax.cond(gain > 1, lambda x: x.at[i].set(gain), inner, x), None

    same = lambda x: x
    return lax.scan(step, x, (gains, places))[0]


@pytest.mark.slow
@pytest.mark.parametrize("program", [reservoir, swaps, rows_of_branches])
@pytest.mark.parametrize("batch", [False, True])
def test_gradients_of_steps_that_write_here_or_there(program, batch):
    """They write there, and make no other array in a step; and so do those of a batch."""
    shape = () if program is swaps else (4,)
    x, gains = np.random.default_rng(0).normal(size=(64, *shape)), np.linspace(-1, 2, 90)
    places = np.random.default_rng(1).integers(0, 99, (90, 2) if program is swaps else 90) % 64
    given = gains if program is not reservoir else gains[:, None] * np.ones(4)
    loss = lambda x, g, i: (program(x, g, i) ** 2).sum()
    gradient = jax.grad(loss, (0, 1))
    args = jnp.float32(x), jnp.float32(given), jnp.int32(places)
    if batch:
        gradient = jax.vmap(gradient)
        args = jax.tree.map(lambda a: jnp.stack([a, a[::-1], a], dtype=a.dtype), args)
    wanted = jax.jit(gradient)(*args)
    assert_close(wanted, optimize(gradient)(*args))
    assert_close(wanted, jax.jit(above(loss, batch))(*args))
    graph = import_jaxpr(jax.make_jaxpr(optimize(gradient))(*args))
    *_, loop = scans(graph)
    carried = {carry.param.shape for carry in loop.carries if carry.param.shape}
    whole = [op for op in loop.body.walk() if {v.shape for v in op.results} & carried]
    assert all(op.name in WRITES or isinstance(op, Cond) for op in whole), whole


def above(loss, batch):
    """The same with the optimiser below the gradient."""
    gradient = jax.grad(optimize(loss), (0, 1))
    return jax.vmap(gradient) if batch else gradient
