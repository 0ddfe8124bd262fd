"""What a step reads between two writes is read of the array as it was before them."""
# ruff: noqa: E501 - the parameters of a scatter

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.passes.in_place.read_around_writes import ReadAroundWrites
from jaxpr_opt.testing import assert_same_bits, check_refuses, check_rewrite
from tests.loops import alone

PASS = ReadAroundWrites()
GIVEN = "f32[40]", "f32[4]", "i32[4]", "i32[4]"


def scanned(step):
    """A loop of ``c, y = step(c, x, i, j)``."""
    return lambda c, xs, i, j: lax.scan(lambda c, t: step(c, *t), c, (xs, i, j))


def hands_on(c, x, i, j):
    """What is written at one place is handed on to another."""
    c = c.at[i].set(x, mode="drop")
    return c.at[j].set(lax.dynamic_index_in_dim(c, i, keepdims=False), mode="drop"), None


def test_read_back_and_written_elsewhere():
    check_rewrite(
        PASS,
        lambda c, xs, i, j: scanned(hands_on)(c, xs, i, j)[0],
        *GIVEN,
        diff="""
          fn (c:f32[40], xs:f32[4], i:i32[4], j:i32[4]) {
            c1:f32[40] = scan[4] carry(c=c) xs(x=xs, x1=i, x2=j) {
              l:bool[] = lt x1 0
              a:i32[] = add x1 40
              s:i32[] = select_n l x1 a
              b:i32[1] = broadcast_in_dim s
              s1:f32[40] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b x
              l1:bool[] = lt x1 0
              a1:i32[] = add x1 40
              s2:i32[] = select_n l1 x1 a1
        -     d:f32[1] = dynamic_slice s1 s2
        +     d:f32[1] = dynamic_slice c s2
        +     r:f32[1] = reshape x
        +     r1:i32[1] = reshape s2
        +     s6:i32[1] = slice[:] b
        +     s7:i32[] = squeeze s6
        +     r2:i32[] = reshape s7
        +     r3:i32[1] = reshape r2
        +     g:bool[1] = ge r3 0
        +     l3:bool[1] = le r3 39
        +     a3:bool[1] = and g l3
        +     c2:i32[1] = clamp 0 r1 39
        +     c3:i32[1] = clamp 0 r3 39
        +     e:bool[1] = eq c2 c3
        +     a4:bool[1] = and a3 e
        +     s8:f32[1] = select_n a4 d r
        -     s3:f32[] = squeeze d
        +     s3:f32[] = squeeze s8
              l2:bool[] = lt x2 0
              a2:i32[] = add x2 40
              s4:i32[] = select_n l2 x2 a2
              b1:i32[1] = broadcast_in_dim s4
              s5:f32[40] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] s1 b1 s3
              yield carry(s5)
            }
            return c1
          }
        """,
    )


def swapped(c, x, i, j):
    a = c[i]
    c = c.at[i].set(c[j] * x)
    return c.at[j].set(a + c[j]), None


def of_rows(c, x, i, j):
    c = c.reshape(-1, 5)
    c = c.at[i].add(x)
    return c.at[j].set(jnp.sin(c[i])).reshape(-1), None


def of_points(c, x, i, j):
    c = c.reshape(-1, 5)
    c = c.at[i, j].set(x + c[j, j])
    return c.at[j, i].add(c[j, j]).reshape(-1), None


def filled(c, x, i, j):
    read = lambda c: c.at[j - 1].get(mode="fill", fill_value=7)
    c = c.at[i].add(read(c))
    return c.at[j].set(read(c)), None


def around_two(c, x, i, j):
    c = c.at[i].set(c[j + 1]).at[j].add(x)
    return c.at[i + 1].set(c[j + 1]), None


def given_back(c, x, i, j):
    c = c.at[i].set(c[j] * x)
    read = c[j]
    return c.at[j + 2].set(x), read


def written_later(c, x, i, j):
    c = c.at[i].set(x)
    c = c.at[i + 1].set(c[j])
    return c.at[j].set(x), None


def branched(c, x, i, j):
    """XLA makes no part of a write of what is read between others, where a branch writes, too."""
    c = lax.cond(x > 0, lambda c: c.at[i].set(x), lambda c: c, c)
    c = c.at[i].set(x)
    return c.at[i].set(c[i] * x), None


def twice_at_a_point(c, x, i, j):
    """XLA makes no part of a write of what is read where the step has written before."""
    c = c.reshape(-1, 5)
    for row, column in ((i, j), (j, i), (i, j)):
        c = c.at[row, column].set(c[row, column] * x)
    return c.reshape(-1), None


SERVED = [
    of_rows, twice_at_a_point, of_points, filled, around_two, given_back, written_later, branched,
]  # fmt: skip


@pytest.mark.parametrize("step", SERVED, ids=lambda step: step.__name__)
def test_other_shapes(step):
    """(1) Places may be one, out of range, or negative."""
    alone(PASS, scanned(step), *GIVEN, fires=True)


@pytest.mark.parametrize("dtype", ["f16", "i8", "bool", "c64", "u32"])
def test_types(dtype):
    alone(PASS, scanned(hands_on), f"{dtype}[400]", f"{dtype}[4]", *GIVEN[2:], fires=True)


def multiplied(c, x, i, j):
    """In one piece, where the next write is: XLA reads it in that."""
    for place in (i, j, i):
        c = c.at[place].set(c[place] * x)
    return c, None


@pytest.mark.parametrize("batch", [False, True])
def test_where_the_next_write_is(batch):
    """(3) An element of each row of a batch lies in pieces, a single one does not."""
    step = scanned(multiplied)
    given = (jnp.ones(40), jnp.arange(4.0), jnp.arange(4), jnp.arange(4) - 2)
    if batch:
        given = (jnp.ones((3, 40)), jnp.ones((3, 4)), *given[2:])
        step = jax.vmap(step, (0, 0, None, None))
    alone(PASS, step, *given, fires=batch)


def two_elements(c, x, i, j):
    """(1) They may overlap."""
    c = lax.dynamic_update_slice(c, jnp.stack([x, x]), (i,))
    return lax.dynamic_update_slice(c, lax.dynamic_slice(c, (j,), (2,)), (i + 1,)), None


def of_other_sizes(c, x, i, j):
    """(1) One element of two."""
    c = lax.dynamic_update_slice(c, jnp.stack([x, x]), (i,))
    return c.at[j + 1].set(c[j]), None


def written_once(c, x, i, j):
    """(3) Nothing is written between the read and the end of the step."""
    c = c.at[i].set(x * c[j])
    return c, c[j]


def places_of_their_own(c, x, i, j):
    """(3) XLA makes one op of both writes, and reads before it."""
    c = c.at[i].set(x)
    return c.at[j].set(c[j + 1] * c[j + 1]), None


def beside_a_branch(c, x, i, j):
    """(3) A branch writes, too."""
    c = lax.cond(x > 0, lambda c: c.at[i].set(x), lambda c: c, c)
    c = c.at[i].set(x)
    return c.at[j].set(c[j + 1] * x), None


def in_the_next_write_only(c, x, i, j):
    """(3) In each row of a batch, too."""
    c = c.at[i].set(x)
    return c.at[j].set(c[j] * 2), None


def read_in_a_branch(c, x, i, j):
    """(3) The branch is not taken in each step."""
    c = c.at[i].set(x)
    return c.at[j].set(lax.cond(x > 0, lambda: c[j + 1], lambda: x)), None


LEFT = [two_elements, of_other_sizes, written_once, read_in_a_branch]
ONCE = [places_of_their_own, beside_a_branch, in_the_next_write_only]


@pytest.mark.parametrize("step", [*LEFT, *ONCE], ids=lambda step: step.__name__)
@pytest.mark.parametrize("batch", [False, True])
def test_left_alone(step, batch):
    program, given = scanned(step), GIVEN
    if batch:
        program = jax.vmap(program, (0, 0, None, None))
        given = "f32[3,40]", "f32[3,4]", *GIVEN[2:]
    alone(PASS, program, *given, fires=False)


def test_a_write_after_the_next_is_of_a_row():
    """(3) An element and the row that it is in do not coincide."""

    def step(c, x, i, j):
        c = lax.dynamic_update_slice(c, x[None, None], (i, j))
        element = lax.dynamic_slice(c, (j, j), (1, 1))
        c = lax.dynamic_update_slice(c, element, (i, j))
        return lax.dynamic_update_slice(c, jnp.ones((1, 8)), (j, 0)), None

    alone(PASS, scanned(step), "f32[40,8]", "f32[4]", "i32[4]", "i32[4]", fires=False)


@pytest.mark.parametrize("step", [hands_on, given_back, of_points], ids=lambda step: step.__name__)
def test_places_of_each_row(step):
    """(3) XLA reads and writes one row after the other."""
    given = "f32[3,40]", "f32[3,4]", "i32[3,4]", "i32[3,4]"
    alone(PASS, jax.vmap(scanned(step)), *given, fires=False)


def test_what_may_be_differentiated():
    """(4)"""
    alone(PASS, scanned(hands_on), *GIVEN, fires=False, phase="differentiable")


@pytest.mark.parametrize("writes", [limits.WRITES_OF_A_STEP, limits.WRITES_OF_A_STEP + 1])
def test_many_writes(writes):
    """(3) Each read would be compared with all writes before it."""

    def step(c, x, i, j):
        for k in range(writes):
            c = c.at[i + k].set(x if k == 0 else c[i + (k - 1)] * x)
        return c, None

    program, few = scanned(step), writes <= limits.WRITES_OF_A_STEP
    alone(PASS, program, "f32[4000]", *GIVEN[1:], fires=few)


def test_most_of_the_array():
    """(3) Ten of 17 elements, and so many comparisons."""

    def step(c, x, i, j):
        for k in range(5):
            c = c.at[i + k].set(x if k else x * c[j + 1])
        return c.at[j].set(c[j + 1]), None

    alone(PASS, scanned(step), "f32[17]", *GIVEN[1:], fires=False)


def test_outside_of_loops():
    """(3)"""
    alone(PASS, lambda c, x, i, j: hands_on(c, x, i, j)[0], "f32[40]", "f32[]", "i32[]", "i32[]", fires=False)  # fmt: skip


def test_keys():
    """(2)"""

    def program(seeds, xs, i, j):
        return scanned(hands_on)(jax.vmap(jax.random.key)(seeds), jax.vmap(jax.random.key)(xs), i, j)[0]  # fmt: skip

    check_refuses(PASS, program, "u32[40]", "u32[4]", *GIVEN[2:], because="are not selected")


def test_where_each_op_is_a_kernel():
    """(3) What XLA repeats there is not known."""
    with using(CostModel(GPU)):
        alone(PASS, scanned(hands_on), *GIVEN, fires=False)


@pytest.mark.parametrize(
    "step", [*SERVED, *ONCE, hands_on, multiplied, swapped], ids=lambda step: step.__name__
)
@pytest.mark.parametrize("batch", [False, True])
def test_nothing_is_copied(step, batch):
    """As compiled, for a buffer much larger than what is read of it."""
    program = scanned(step)
    places = jnp.array([3, 39_999, -1, 3]), jnp.array([3, 7, 50_000, 2])
    given = (jnp.arange(40_000.0), jnp.arange(4.0) - 1, *places)
    if batch:
        program = jax.vmap(program, (0, 0, None, None))
        given = (jnp.stack([given[0]] * 3), jnp.stack([given[1]] * 3), *places)
    compiled = jax.jit(optimize(program)).lower(*given).compile()
    inside = compiled.as_text().split("ENTRY")[0]
    assert not re.findall(r"\[(?:3,)?(?:40000|8000,5)\]\S* copy\(", inside)
    assert_same_bits(jax.jit(program)(*given), optimize(program)(*given))
