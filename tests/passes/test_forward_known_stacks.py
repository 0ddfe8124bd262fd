"""What a loop stacks is taken from where the loop has read it, if that is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.passes.residuals.forward_known_stacks import ForwardKnownStacks
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone

FORWARD = ForwardKnownStacks()


def stacking(row, *, length=4, **options):
    """A loop that stacks `row(array, step)`."""
    return lambda array: lax.scan(
        lambda c, i: (c, row(array, i)), None, jnp.arange(length), **options
    )[1]


def read(array, i, n=1):
    return lax.dynamic_slice_in_dim(array, i, n)


def test_parameters_by_layer():
    """(2, 3) The weights that the forward loop has read are the weights."""

    def program(ws, x):
        def layer(x, i):
            w = lax.dynamic_index_in_dim(ws, i, keepdims=False)
            return jnp.tanh(w @ x), w

        return lax.scan(layer, x, jnp.arange(4))

    check_rewrite(
        FORWARD,
        program,
        "f32[4,3,3]",
        "f32[3]",
        simplify=True,
        saves_bytes=4 * 3 * 3 * 4,
        diff="""
          fn (ws:f32[4,3,3], x:f32[3]) {
            i:i32[4] = iota
        -   c:f32[3], ys:f32[4,3,3] = scan[4] carry(c=x) xs(x=i) {
        +   c:f32[3] = scan[4] carry(c=x) xs(x=i) {
              d:f32[1,3,3] = dynamic_slice ws x 0 0
              s:f32[3,3] = squeeze d
              d1:f32[3] = dot_general s c
              t:f32[3] = tanh d1
        -     yield carry(t) ys(s)
        +     yield carry(t)
            }
        -   return c, ys
        +   return c, ws
          }
        """,
    )


def test_a_counter():
    """(1)"""

    def program(x):
        def step(c, x):
            i, total = c
            return (i + 2, total + x * i), (i, jnp.full(2, 1 - i))

        return lax.scan(step, (3, x[0]), x)

    check_rewrite(
        FORWARD,
        program,
        "f32[4]",
        simplify=True,
        diff="""
          fn (x:f32[4]) {
            s:f32[1] = slice[:1] x
            s1:f32[] = squeeze s
        -   c:i32[], c1:f32[], ys:i32[4], ys1:i32[4,2] = scan[4] carry(c=3, c1=s1) xs(x=x) {
        +   c:i32[], c1:f32[] = scan[4] carry(c=3, c1=s1) xs(x=x) {
              a:i32[] = add c 2
              c2:f32[] = convert_element_type c
              m:f32[] = mul x c2
              a1:f32[] = add c1 m
        -     s:i32[] = sub 1 c
        -     b:i32[2] = broadcast_in_dim s
        -     yield carry(a, a1) ys(c, b)
        +     yield carry(a, a1)
            }
        +   b1:i32[4,2] = broadcast_in_dim -2
        +   i:i32[4] = iota
        +   b2:i32[4,2] = broadcast_in_dim[dims=(0,)] i
        +   m1:i32[4,2] = mul b2 -2
        +   a2:i32[4,2] = add b1 m1
        +   c3:i32[4,2] = convert_element_type a2
        +   b3:i32[4] = broadcast_in_dim 3
        +   m2:i32[4] = mul i 2
        +   a3:i32[4] = add b3 m2
        +   c4:i32[4] = convert_element_type a3
        -   return c, c1, ys, ys1
        +   return c, c1, c4, c3
          }
        """,
    )


@pytest.mark.parametrize(
    "row",
    [
        read,
        lambda xs, i: read(xs, i + 3),
        lambda xs, i: read(xs, 7 - i),
        lambda xs, i: read(xs, 2 * i),
        lambda xs, i: read(xs, 6 - 2 * i),
        lambda xs, i: read(xs, 2 * i, 2),
        lambda xs, i: read(xs, 6 - 2 * i, 2),
        lambda xs, i: lax.dynamic_slice(xs, (i, 1), (1, 2)),
        lambda xs, i: lax.dynamic_slice(xs, (2, i), (3, 1)).T,
        lambda xs, i: read(xs, i)[0, ::-1].reshape(2, 2)[..., None],
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_windows(row, reverse):
    """(2, 3) From anywhere, either way, in strides, in part, moved on the way."""
    graph = alone(FORWARD, stacking(row, reverse=reverse), "f32[8,4]", fires=True)
    (scan,) = (op for op in graph.walk() if op.name == "scan")
    assert not any(stack.result.uses for stack in scan.stacks)


@pytest.mark.parametrize("dtype", ["i32", "bool", "c64", "bf16"])
def test_any_type(dtype):
    alone(FORWARD, stacking(read), f"{dtype}[4,2]", fires=True)


def test_keys():
    def program(seed):
        return jax.random.key_data(stacking(read)(jax.random.split(seed, 4)))

    alone(FORWARD, program, jax.random.key(0), fires=True)


def test_in_a_nest():
    """(3) The row of the outer loop stays where it is."""

    def program(xs):
        def outer(total, i):
            def inner(total, j):
                x = lax.dynamic_slice(xs, (i, j), (1, 1))[0, 0]
                return total * x, x

            return lax.scan(inner, total, jnp.arange(4))

        return lax.scan(outer, 1.0, jnp.arange(3))

    alone(FORWARD, program, "f32[3,4]", fires=True)


def test_what_was_computed():
    """(2) Not a copy of anything: there is nothing to find."""
    alone(FORWARD, stacking(lambda xs, i: jnp.sin(read(xs, i))), "f32[4]", fires=False)
    alone(FORWARD, stacking(lambda xs, i: read(xs, i) + read(xs, 0)), "f32[4]", fires=False)


def test_what_was_counted_in_floating_point():
    """(2) Movement of nothing."""
    alone(FORWARD, stacking(lambda xs, i: lax.iota("float32", 2)), "f32[4]", fires=False)


def test_what_was_written():
    """(2) Neither is an array with a window written."""
    alone(FORWARD, stacking(lambda xs, i: xs.at[i].set(7.0)), "f32[4]", fires=False)


def test_what_is_read_of_a_carry():
    """(2) It changes while the loop runs."""

    def program(xs):
        def step(xs, i):
            return xs.at[0].add(1.0), lax.dynamic_index_in_dim(xs, i)

        return lax.scan(step, xs, jnp.arange(4))

    alone(FORWARD, program, "f32[4]", fires=False)


def test_a_loop_that_takes_no_step():
    """(4)"""
    check_refuses(FORWARD, stacking(read, length=0), "f32[4]", because="the loop has no steps")


@pytest.mark.parametrize(
    "place", [lambda i: i + 1, lambda i: i - 1, lambda i: i * i, lambda i: 2 * i, lambda i: -i - 1]
)
def test_a_window_out_of_range(place):
    """(4) It would be clamped; or who knows."""

    def row(xs, i):
        return lax.dynamic_slice_in_dim(xs, place(i), 1, allow_negative_indices=False)

    check_refuses(FORWARD, stacking(row), "f32[4]", because="is unknown, or may be out of range")


def test_an_index_from_the_data():
    def program(xs, ids):
        return lax.scan(lambda c, i: (c, read(xs, i)), None, ids)

    check_refuses(
        FORWARD, program, "f32[4]", "i32[4]", because="is unknown, or may be out of range"
    )


@pytest.mark.parametrize(("stride", "size"), [(1, 2), (3, 2)])
def test_windows_that_overlap_or_leave_out(stride, size):
    """(3)"""
    row = lambda xs, i: read(xs, stride * i, size)
    check_refuses(FORWARD, stacking(row, length=3), "f32[8]", because="overlap, or leave")


def test_a_window_that_moves_along_the_diagonal():
    """(3)"""
    row = lambda xs, i: lax.dynamic_slice(xs, (i, i), (1, 1))
    check_refuses(FORWARD, stacking(row), "f32[4,4]", because="along 2 axes")


def test_a_counter_of_outer_steps():
    """(1)"""

    def program(x):
        def outer(c, i):
            c, ys = lax.scan(lambda c, j: (c + x, i * 4 + j), c, jnp.arange(4))
            return c, jnp.sum(ys * c)

        return lax.scan(outer, x, jnp.arange(3))

    check_refuses(FORWARD, program, "f32[]", because="it depends on an outer step")


def test_a_counter_that_wraps():
    """(1) It is no affine function then."""

    def program(x):
        step = lambda c, x: ((c[0] + np.int8(100), c[1] + x), c[0])
        return lax.scan(step, (np.int8(0), x[0]), x)

    alone(FORWARD, program, "f32[4]", fires=False)
