"""Two parts of an array are added: it is the array, with what was written to one of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.windows.join_selected_parts import JoinSelectedParts
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone

JOIN = JoinSelectedParts()
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
          +   a3:f32[2] = add d3 m
          -   d2:f32[16] = dynamic_update_slice d1 u a1
          +   d2:f32[16] = dynamic_update_slice s4 a3 i
          -   a2:f32[16] = add d2 s
          +   d4:f32[2] = dynamic_slice s a1
          +   a4:f32[2] = add d4 u
          +   d5:f32[16] = dynamic_update_slice d2 a4 a1
          -   return a2
          +   return d5
            }
        """,  # noqa: E501
    )


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


@pytest.mark.parametrize(
    "program",
    [
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
