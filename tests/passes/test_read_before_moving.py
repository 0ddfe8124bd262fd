"""A window of a buffer that a step moves is read before it is moved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.carried.read_before_moving import ReadBeforeMoving
from jaxpr_opt.testing import (
    assert_close,
    assert_same_derivatives,
    check_refuses,
    check_rewrite,
    run_alone,
    traced,
)
from tests.loops import alone, memory

READ = ReadBeforeMoving()


def read(array, *starts, sizes):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_slice(array, starts, sizes, allow_negative_indices=False)


def stepping(read_moved, write=lambda c, i, x: c.at[i].set(x, mode="drop")):
    """A loop that reads something of what it moves, and writes to it."""

    def program(c, places, xs):
        def step(c, ix):
            i, x = ix
            v = read_moved(c, i)
            return write(c, i, x + jnp.sum(v)), v

        return lax.scan(step, c, (places, xs))

    return program


def test_an_element_of_all_rows_in_one():
    """(1) One element of a reshape; its place is clamped, as it was."""
    check_rewrite(
        READ,
        stepping(lambda c, i: read(c.reshape(-1), i, sizes=(1,)), lambda c, i, x: c.at[1].set(x)),
        "f32[6,4]",
        "i32[3]",
        "f32[3]",
        diff="""
          fn (c:f32[6,4], places:i32[3], xs:f32[3]) {
            c1:f32[6,4], ys:f32[3,1] = scan[3] carry(c=c) xs(x=places, x1=xs) {
              r:f32[24] = reshape c
        -     d:f32[1] = dynamic_slice r x
        +     c2:i32[] = clamp 0 x 23
        +     m:i32[] = mul c2 1
        +     r2:i32[] = rem m 4
        +     d1:i32[] = div m 4
        +     d2:f32[1,1] = dynamic_slice c d1 r2
        +     r3:f32[1] = reshape d2
        -     r1:f32[] = reduce_sum[axes=(0,)] d
        +     r1:f32[] = reduce_sum[axes=(0,)] r3
              a:f32[] = add x1 r1
              b:i32[1] = broadcast_in_dim 1
              b1:f32[4] = broadcast_in_dim a
              s:f32[6,4] = scatter[update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b b1
        -     yield carry(s) ys(d)
        +     yield carry(s) ys(r3)
            }
            return c1, ys
          }
        """,  # noqa: E501
    )


def test_neighbours_across_the_ends():
    """(1) An array that is rolled is two slices of one: which of them, a number says."""
    check_rewrite(
        READ,
        stepping(lambda c, i: read(jnp.roll(c, 1), i, sizes=(1,)), lambda c, i, x: c.at[1].set(x)),
        "f32[24]",
        "i32[3]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (c:f32[24], places:i32[3], xs:f32[3]) {
            c1:f32[24], ys:f32[3,1] = scan[3] carry(c=c) xs(x=places, x1=xs) {
        -     s:f32[1] = slice[23:] c
        -     s1:f32[23] = slice[:23] c
        -     c1:f32[24] = concatenate[dimension=0] s s1
        +     c2:i32[] = clamp 0 x 23
        +     s2:i32[] = sub c2 1
        +     a1:i32[] = add c2 23
        +     g:bool[] = ge c2 1
        +     s3:i32[] = select_n g a1 s2
        -     d:f32[1] = dynamic_slice c1 x
        +     d:f32[1] = dynamic_slice c s3
              r:f32[] = reshape d
              a:f32[] = add x1 r
              r1:f32[1] = reshape a
              d1:f32[24] = dynamic_update_slice c r1 1
              yield carry(d1) ys(d)
            }
            return c1, ys
          }
        """,
    )


MOVED = {
    "turned round": lambda c, i: read(c[::-1], i, 1, sizes=(3, 2)),
    "padded": lambda c, i: read(jnp.pad(c, ((2, 1), (0, 0))), i, 0, sizes=(3, 4)),
    "padded on both axes": lambda c, i: read(jnp.pad(c, 1), i, i, sizes=(3, 3)),
    "padded, one element": lambda c, i: read(jnp.pad(c, 1), i, i, sizes=(1, 1)),
    "a part": lambda c, i: read(c[1:20], i, 0, sizes=(2, 4)),
    "with an edge repeated": lambda c, i: read(jnp.pad(c, 1, mode="edge"), i, 0, sizes=(3, 6)),
    "around": lambda c, i: read(jnp.pad(c, 2, mode="wrap"), i, 0, sizes=(4, 2)),
    "rolled": lambda c, i: read(jnp.roll(c, 3, 0), i, 0, sizes=(2, 4)),
    "rolled by a number of the data": lambda c, i: jnp.roll(c, i, 0)[5, 1:2],
    "joined": lambda c, i: read(jnp.concatenate([c, 2 * c[:2]]), i, 0, sizes=(3, 4)),
    "joined, at a known place": lambda c, i: jnp.concatenate([2 * c, c])[22:25, 1],
    "stacked": lambda c, i: read(jnp.stack([c, -c], 1), i, i, 0, sizes=(2, 1, 4)),
    "stacked, all of them": lambda c, i: read(jnp.stack([c, -c], 1), i, 0, 0, sizes=(1, 2, 4)),
    "split": lambda c, i: read(jnp.split(c, 2, 1)[1], i, 0, sizes=(2, 2)),
    "transposed": lambda c, i: read(c.T, 1, i, sizes=(2, 3)),
    "all rows in one": lambda c, i: read(c.reshape(-1), i, sizes=(1,)),
    "rows of one": lambda c, i: read(c.reshape(96), i, sizes=(1,)),
    "in groups": lambda c, i: read(c.reshape(6, 4, 4), i, i, 0, sizes=(1, 1, 4)),
    "with an axis more": lambda c, i: read(c[:, None], i, 0, 1, sizes=(2, 1, 2)),
    "repeated": lambda c, i: read(jnp.broadcast_to(c[:, 1:2], (24, 9)), i, i, sizes=(2, 3)),
    "rows at several places": lambda c, i: c[::-1][jnp.array([0, 5, 23])] * i,
    "filled": lambda c, i: jnp.pad(c, 1).at[i + jnp.arange(2)].get(mode="fill", fill_value=7),
    "clipped": lambda c, i: c.reshape(-1).at[i * 5 + jnp.arange(2)].get(mode="clip"),
}


@pytest.mark.parametrize("moved", MOVED.values(), ids=MOVED)
def test_values(moved):
    """(1, 2) In range and out of it, on both sides."""
    c = jnp.sin(jnp.arange(96.0)).reshape(24, 4)
    places, xs = jnp.array([0, 23, 7, -1, -30, 24, 22, 99]), jnp.cos(jnp.arange(8.0))
    program = stepping(moved)
    assert alone(READ, program, c, places, xs, fires=True)
    assert_close(jax.jit(program)(c, places, xs), optimize(program)(c, places, xs))
    loss = lambda c, xs: jnp.sum(jnp.sin(program(c, places, xs)[1]))
    assert_same_derivatives(loss, optimize(loss), c, xs)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, 0), (0, 0, None)], ids=str)
@pytest.mark.parametrize("name", ["turned round", "padded", "rolled", "joined", "in groups"])
def test_batches(name, axes):
    """(3) Each row is read at a place of its own, or all at one."""
    c = jnp.sin(jnp.arange(288.0)).reshape(3, 24, 4)
    places = jnp.array([[0, 23, 7, -1], [5, 5, 30, 2], [22, 1, 0, 9]])
    xs = jnp.cos(jnp.arange(12.0)).reshape(3, 4)
    args = [v if a == 0 else v[0] for v, a in zip((c, places, xs), axes, strict=True)]
    program = jax.vmap(stepping(MOVED[name]), axes)
    graph = alone(READ, program, *args, fires=True)
    assert_close(jax.jit(program)(*args), optimize(program)(*args))
    assert any(op.name in {"gather", "dynamic_slice"} for op in graph.walk())


def test_no_axis_of_the_batch():
    """(3) Rows of a batch that are joined are none of the operand."""
    joined = lambda c, i: jax.vmap(lambda row, i: read(row, i, sizes=(1,)))(
        c.reshape(8, 12), jnp.full(8, i)
    )
    alone(READ, stepping(joined), "f32[24,4]", "i32[3]", "f32[3]", fires=False)


REFUSED = {
    "all of it is read": (
        lambda c, i: read(c[::-1], i, 0, sizes=(1, 4)) + jnp.sum(c[::-1]),
        "reads all that rev makes",
    ),
    "most of it is read": (lambda c, i: read(c[::-1], i, 0, sizes=(7, 4)), "most of the array"),
}


@pytest.mark.parametrize(("moved", "because"), REFUSED.values(), ids=REFUSED)
def test_refused(moved, because):
    once = lambda c, i: jnp.sum(moved(c, i))
    check_refuses(
        READ, stepping(once), "f32[24,4]", "i32[3]", "f32[3]", because=because, simplify=True
    )


NOT_FOUND = {
    "with strides": lambda c, i: read(c[::2], i, 0, sizes=(1, 4)),
    "with numbers in between": lambda c, i: read(
        lax.pad(c, np.float32(0), [(0, 0, 1), (0, 0, 0)]), i, 0, sizes=(1, 4)
    ),
    "out of range, against a promise": lambda c, i: c[::-1][jnp.array([0, 5, 23]) - i],
    "of many parts": lambda c, i: read(
        jnp.concatenate([c + k for k in range(limits.READS_OF_ROWS + 1)]), i, 0, sizes=(1, 4)
    ),
    "of nothing": lambda c, i: read(jnp.concatenate([c, c[:0]]), i, 0, sizes=(1, 4)),
    "a run over two axes": lambda c, i: read(c.reshape(-1), i, sizes=(3,)),
}


@pytest.mark.parametrize("moved", NOT_FOUND.values(), ids=NOT_FOUND)
def test_no_window(moved):
    """(1, 2)"""
    alone(READ, stepping(moved), "f32[24,4]", "i32[3]", "f32[3]", fires=False)


def test_one_of_many_parts():
    """(1) All of them are parts of one array."""
    n = limits.READS_OF_ROWS + 1
    moved = lambda c, i: read(lax.split(c, [1] * (24 - n) + [n], 0)[-1], i, 0, sizes=(1, 4))
    alone(READ, stepping(moved), "f32[24,4]", "i32[3]", "f32[3]", fires=True)


@pytest.mark.parametrize("size", [limits.COUNTED - 1, limits.COUNTED])
def test_more_than_an_index_counts(size):
    """(2) Places are computed in 32 bits."""
    program = stepping(lambda c, i: read(c[::-1], i, sizes=(1,)), lambda c, i, x: c.at[0].set(x))
    graph = import_jaxpr(traced(program, f"f32[{size}]", "i32[3]", "f32[3]"))
    assert bool(run_alone((READ,), graph).record(READ.name, READ.cleanup).rewrites) == (
        size < limits.COUNTED
    )


def test_a_table_that_no_step_writes_to():
    """XLA reads no more of it than the window."""
    program = stepping(lambda c, i: read(c[::-1], i, 0, sizes=(1, 4)), lambda c, i, x: c)
    alone(READ, program, "f32[24,4]", "i32[3]", "f32[3]", fires=False)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "bool", "bfloat16", "complex64", "float8_e4m3fn"]
)
def test_dtypes(dtype):
    """Numbers are moved, whatever they are."""
    c = (jnp.arange(300) % 2).reshape(300, 1).astype(dtype)

    def moved(c, i):
        padded = jnp.pad(jnp.roll(c, 3, 0), ((0, 3), (0, 0)))
        return read(padded, i, jnp.zeros_like(i), sizes=(2, 1))

    def program(c, places):
        def step(c, i):
            v = moved(c, i)
            return lax.dynamic_update_slice(c, v[:1], (i, jnp.zeros_like(i))), v

        return lax.scan(step, c, places)

    for places in (
        jnp.array([0, 5, 250]),
        jnp.array([0, 5, 40], "uint8"),
        jnp.array([-9], "int8"),
    ):
        alone(READ, program, c, places, fires=True)
        assert_close(jax.jit(program)(c, places), optimize(program)(c, places))


def test_the_buffer_stays_in_place():
    """XLA copies nothing: neither forward nor for the gradient."""
    c, places, xs = jnp.ones((4000, 4)), jnp.arange(20), jnp.ones(20)
    program = stepping(lambda c, i: read(jnp.pad(c, 1), i, 0, sizes=(3, 6)))
    loss = lambda c, xs: jnp.sum(program(c, places, xs)[1])
    for each in (loss, jax.grad(loss)):
        assert memory(optimize(each), c, xs) < 1.2 * c.nbytes


def test_a_buffer_that_has_been_written_to():
    """What was written in the step is a version of the buffer, too."""

    def program(c, places, xs):
        def step(c, ix):
            i, x = ix
            c = c.at[i].add(x)
            v = read(c[:, 1:], i + 1, 0, sizes=(1, 2))
            return c.at[i - 1, 0].set(jnp.sum(v)), v

        return lax.scan(step, c, (places, xs))

    alone(READ, program, "f32[24,4]", "i32[5]", "f32[5]", fires=True)
