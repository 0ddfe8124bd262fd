"""Zeros around a window, added to scatters, become a scatter of the window."""
# ruff: noqa: E501 - the parameters of a scatter

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.sparse.scatter_padded_windows import ScatterPaddedWindows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone, looped

SCATTER = ScatterPaddedWindows()
KNOTS = 4096


def scattered(c, u, i, **how):
    return jnp.zeros_like(c).at[i].add(u, mode="promise_in_bounds", **how)


def padded(c, v, at=3):
    low = np.broadcast_to(at, c.ndim)
    config = [(int(n), c.shape[d] - v.shape[d] - int(n), 0) for d, n in enumerate(low)]
    return lax.pad(v, jnp.zeros((), v.dtype), config)


TYPES = "f32[200]", "f32[4,5]", "i32[4,5]"


def test_a_window_of_a_table():
    """`c + (pad + scatter)`."""

    def step(c, u, i):
        return c + (padded(c, u[:2]) + scattered(c, u, i))

    check_rewrite(
        SCATTER,
        looped(step),
        *TYPES,
        simplify=True,
        diff="""
          fn (c:f32[200], us:f32[4,5], idx:i32[4,5]) {
            c1:f32[200] = scan[4] carry(c=c) xs(x=us, x1=idx) {
              s:f32[2] = slice[:2] x
        -     p:f32[200] = pad[padding_config=((3, 195, 0),)] s 0.0
              b:f32[200] = broadcast_in_dim 0.0
        +     g:f32[2] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=promise_in_bounds] s const:i32[2,1]
        +     s3:f32[200] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b const:i32[2,1] g
              l:bool[5] = lt x1 0
              a:i32[5] = add x1 200
              s1:i32[5] = select_n l x1 a
              b1:i32[5,1] = broadcast_in_dim[dims=(0,)] s1
              s2:f32[200] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=promise_in_bounds] b b1 x
        -     a1:f32[200] = add p s2
        +     a1:f32[200] = add s3 s2
              a2:f32[200] = add c a1
              yield carry(a2)
            }
            return c1
          }
        """,
    )


def ends(c, u, i):
    """As the transpose of `jnp.interp`: the last and the first number, and several scatters."""
    pads = padded(c, u[:1] * 3, c.shape[0] - 1) + padded(c, u[1:2], 0)
    return c + (pads + scattered(c, u, i) + scattered(c, u * 2, i + 1))


def one_after_another(c, u, i):
    return c + scattered(c, u, i) + padded(c, u[:1], 3) + padded(c, u[1:4], 0)


def scatter_first(c, u, i):
    return (scattered(c, u, i) + padded(c, u[1:4], 7)) + c


def concatenated(c, u, i):
    """Zeros and a window, end to end."""
    zeros = jnp.zeros(c.shape[0] - 8, u.dtype)
    return c + (scattered(c, u, i) + jnp.concatenate([jnp.zeros(3, u.dtype), u, zeros]))


def in_a_branch(c, u, i):
    return lax.cond(u[0] > 0, lambda: scatter_first(c, u, i), lambda: c)


def after_another_write(c, u, i):
    return scatter_first(c.at[i[0]].set(1), u, i)


def and_a_number(c, u, i):
    """A scatter of one window is joined, too."""
    return c + (scattered(c, u, i) + padded(c, u[:2]) + scattered(c, u[:1], i[:1]))


STEPS = [
    ends, one_after_another, scatter_first, concatenated, in_a_branch, after_another_write,
    and_a_number,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "i32", "bf16", "c64"])
@pytest.mark.parametrize("step", STEPS)
def test_sums(step, dtype):
    """In any order, in branches, of any numbers."""
    graph = alone(SCATTER, looped(step), *(t.replace("f32", dtype) for t in TYPES), fires=True)
    assert "pad" not in {op.name for op in graph.walk()}


def rows(c, u, i):
    """Rows of a table of two axes, one of them scattered."""
    return c + (scattered(c, u[:, None] * jnp.ones(3), i) + padded(c, u[None, :3], (4, 0)))


def columns(c, u, i):
    made = jnp.zeros_like(c).at[:, i].add(jnp.ones((3, 1)) * u, mode="promise_in_bounds")
    return c + (padded(c, jnp.ones((3, 2)) * u[0], (0, 1)) + made)


def corners(c, u, i):
    """Places along both axes: a corner, a part of a row, a block."""
    pads = padded(c, u[:1, None], (0, 0)) + padded(c, u[None, :2], (9, 1))
    return c + (pads + padded(c, u[:4].reshape(2, 2), (20, 1)) + scattered(c, u, (i, i % 3)))


def backwards(c, u, i):
    """The index names the second axis first."""
    numbers = lax.ScatterDimensionNumbers((), (0, 1), (1, 0))
    made = lax.scatter_add(jnp.zeros_like(c), jnp.stack([i % 3, i], -1), u, numbers)
    return c + (padded(c, u[:4].reshape(2, 2), (20, 1)) + made)


@pytest.mark.parametrize("step", [rows, columns, corners, backwards])
def test_tables_of_two_axes(step):
    """(3) Windows are single places along the axes of the index, and whole along the others."""
    table = "f32[3,200]" if step is columns else "f32[200,3]"
    alone(SCATTER, looped(step), table, *TYPES[1:], fires=True)


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_indices_of_several_axes(size):
    """XLA joins indices that differ along one axis: windows too many add zeros."""

    def step(c, u, i):
        return c + (padded(c, u.reshape(-1)[:size]) + scattered(c, u, i))

    graph = alone(SCATTER, looped(step), "f32[200]", "f32[4,2,3]", "i32[4,2,3]", fires=True)
    shapes = [op.operands[1].shape for op in graph.walk() if op.name == "scatter-add"]
    assert shapes == [(-(-size // 3), 3, 1), (2, 3, 1)]


def test_a_batch_of_tables():
    """Each row of a batch has a table, and the index of a scatter its number."""

    def step(c, u, i):
        return jax.vmap(ends)(c, u, i)

    types = "f32[2,200]", "f32[4,2,5]", "i32[4,2,5]"
    graph = alone(SCATTER, looped(step), *types, fires=True)
    assert "pad" not in [op.name for op in graph.walk()]


def test_a_sum_that_is_read_twice():
    """It is a sum of its own, and an array that is new to what adds to it."""

    def step(c, u, i):
        first = scatter_first(c, u, i)
        return scatter_first(first, first[:5], i + 1)

    graph = alone(SCATTER, looped(step), *TYPES, fires=True)
    assert [op.name for op in graph.walk()].count("pad") == 1


def test_in_a_while():
    def program(c, u, i):
        def step(s):
            return s[0] + 1, ends(s[1], u[s[0]], i[s[0]])

        return lax.while_loop(lambda s: s[0] < 4, step, (0, c))[1]

    alone(SCATTER, program, *TYPES, fires=True)


def zeros_only_below(c, u, i):
    return c + (scattered(c, u, i) + lax.pad(u, 1.0, [(3, 192, 0)]))


def spread(c, u, i):
    return c + (scattered(c, u, i) + lax.pad(u, 0.0, [(3, 188, 1)]))


def of_something(c, u, i):
    return c + (jnp.arange(200.0).at[i].add(u) + padded(c, u))


def of_one_number(c, u, i):
    """`accumulate-sparse-cotangents` adds such windows."""
    return c + (scattered(c, u[:1], i[:1]) + padded(c, u))


def of_none(c, u, i):
    return c + padded(c, u)


def dense(c, u, i):
    return c + (scattered(c, u, i) + padded(c, u) + jnp.sum(u))


def two_arrays(c, u, i):
    return c + (scattered(c, u, i) + padded(c, u) + c.at[0].set(1.0))


def written(c, u, i):
    """XLA joins scatters that add."""
    made = jnp.zeros_like(c).at[i].set(u, mode="promise_in_bounds", unique_indices=True)
    return c + (scattered(c, u, i) + padded(c, u) + made)


def new_in_each_step(c, u, i):
    return jnp.sin(c) + (scattered(c, u, i) + padded(c, u))


@pytest.mark.parametrize(
    "step",
    [
        zeros_only_below, spread, of_something, of_one_number, of_none, dense, two_arrays,
        written, new_in_each_step,
    ],
)  # fmt: skip
def test_other_sums(step):
    """(1) All terms but the array are zero but for windows, and the array is updated in place."""
    alone(SCATTER, looped(step), *TYPES, fires=False)


def test_outside_of_a_loop():
    alone(SCATTER, ends, "f32[200]", "f32[5]", "i32[5]", fires=False)


def test_a_padded_window_that_is_read_elsewhere():
    """(1) The zeros around it are."""

    def program(c, us, idx):
        def step(c, x):
            pad = padded(c, x[0])
            return c + (pad + scattered(c, *x)), pad

        return lax.scan(step, c, (us, idx))

    alone(SCATTER, program, *TYPES, fires=False)


def test_a_scatter_that_is_read_elsewhere():
    """XLA would not join it."""

    def program(c, us, idx):
        def step(c, x):
            made = scattered(c, *x)
            return c + (padded(c, x[0]) + made), made

        return lax.scan(step, c, (us, idx))

    alone(SCATTER, program, *TYPES, fires=False)


def test_the_array_is_read_afterwards():
    def program(c, us, idx):
        return lax.scan(lambda c, x: (ends(c, *x), jnp.cumsum(c)), c, (us, idx))

    check_refuses(SCATTER, program, *TYPES, because="is read afterwards")


def test_the_array_is_read_between():
    """After it has been added to, and before the sum is done."""

    def program(c, us, idx):
        def step(c, x):
            first = c + scattered(c, *x)
            total = jnp.sum(c)
            return first + padded(c, x[0]), total

        return lax.scan(step, c, (us, idx))

    check_refuses(SCATTER, program, *TYPES, because="is read afterwards")


@pytest.mark.parametrize("second", [3, 5])
def test_windows_that_overlap(second):
    """(2) Each element would get two terms in another order."""

    def step(c, u, i):
        return c + (padded(c, u[:3]) + padded(c, u[:2], second) + scattered(c, u, i))

    check_refuses(SCATTER, looped(step), *TYPES, because="padded windows overlap")


def blocks(c, u, i):
    """The windows of the scatter are two numbers wide."""
    numbers = lax.ScatterDimensionNumbers((1,), (), (0,))
    made = lax.scatter_add(jnp.zeros_like(c), i[:, None], jnp.ones((5, 2)), numbers)
    return c + (padded(c, u[:2]) + made)


def test_wide_windows():
    """(3) They do not tile a window of any width."""
    check_refuses(
        SCATTER, looped(blocks), *TYPES, because="the scatter adds windows of another form"
    )


def of_rows(c, u, i):
    """The padded window is a part of a row, those of the scatter are rows."""
    return c + (scattered(c, u[:, None] * jnp.ones(3), i) + padded(c, u[None, :2], (4, 0)))


def of_parts_of_rows(c, u, i):
    """The padded window is a row, those of the scatter are two numbers of one."""
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    made = lax.scatter_add(jnp.zeros_like(c), i[:, None], jnp.ones((5, 2)), numbers)
    return c + (made + padded(c, u[None, :3], (4, 0)))


@pytest.mark.parametrize("step", [of_rows, of_parts_of_rows])
def test_parts_of_rows(step):
    """(3) Windows are whole along the axes that the index leaves out."""
    check_refuses(
        SCATTER,
        looped(step),
        "f32[200,3]",
        *TYPES[1:],
        because="the scatter adds windows of another form",
    )


def test_small_indices():
    """(3) They cannot say where the window is."""
    types = "f32[200]", "f32[4,5]", "i8[4,5]"

    def step(c, u, i):
        numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        made = lax.scatter_add(jnp.zeros_like(c), i[:, None], u, numbers)
        return c + (padded(c, u[:1], 150) + made)

    check_refuses(SCATTER, looped(step), *types, because="the scatter adds windows of another form")


def test_one_window_for_each_row_of_a_batch():
    """(3) The index has no axis that numbers windows."""
    numbers = lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))

    def step(c, u, i):
        made = lax.scatter_add(jnp.zeros_like(c), i[:, None], u, numbers)
        return c + (padded(c, u[:, None], (0, 3)) + made)

    types = "f32[5,200]", "f32[4,5]", "i32[4,5]"
    check_refuses(SCATTER, looped(step), *types, because="the scatter adds windows of another form")


@pytest.mark.parametrize("shape", [(4, 1), (4,), (1, 2, 2)])
def test_scatters_that_xla_does_not_join(shape):
    """Their indices differ along another axis than the first, or have other axes."""

    def step(c, u, i):
        first = scattered(c, u[:4].reshape(2, 2), i[:4].reshape(2, 2))
        other = scattered(c, u[:4].reshape(shape), i[:4].reshape(shape))
        return c + (padded(c, u[:1]) + first + other)

    check_refuses(SCATTER, looped(step), *TYPES, because="does not join")


def test_most_of_a_table():
    def step(c, u, i):
        return c + (padded(c, jnp.sin(c[:150]), 0) + scattered(c, u, i))

    check_refuses(SCATTER, looped(step), *TYPES, because="as large as")


def curve(table, x, push):
    """A state that a characteristic curve drives: `jnp.interp` in each step."""
    knots = jnp.linspace(-2.0, 2.0, KNOTS)

    def step(x, u):
        x = x + 0.1 * (jnp.interp(x, knots, table) + u)
        return x, jnp.sum(x**2)

    return jnp.mean(lax.scan(step, x, push)[1])


def first_last_or_between(table, x, push):
    """Selects by hand, in a table of rows."""

    def step(x, u):
        i = jnp.clip((x * 1000).astype(int) + 2000, 0, KNOTS - 1)
        low, high = (x < -2.0)[:, None], (x > 2.0)[:, None]
        row = jnp.where(low, table[0], jnp.where(high, table[-1], table[i]))
        x = x + 0.1 * (row[:, 0] + row[:, 1] * x + u)
        return x, jnp.sum(x**2)

    return jnp.mean(lax.scan(step, x, push)[1])


def flat(weights, x, push):
    """A vector of all parameters: a matrix, and numbers looked up."""

    def step(x, u):
        i = (jnp.abs(x) * 300).astype(int) % 1000
        x = jnp.tanh(weights[:25].reshape(5, 5) @ x + weights[25:30] + weights[30 + i] + u)
        return x, jnp.sum(x)

    return jnp.mean(lax.scan(step, x, push)[1])


LOSSES = [(curve, (KNOTS,)), (first_last_or_between, (KNOTS, 2)), (flat, (KNOTS,))]


@pytest.mark.parametrize(("loss", "shape"), LOSSES)
@pytest.mark.parametrize("order", ["grad", "optimize"])
def test_gradients(loss, shape, order):
    """XLA joins all scatters into one, and the step makes no array around a window."""
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=shape), "float32")
    x, push = jnp.linspace(-2.5, 2.5, 5), jnp.asarray(rng.normal(size=40), "float32")
    ours = jax.grad(optimize(loss)) if order == "optimize" else optimize(jax.grad(loss))
    compiled = jax.jit(ours).lower(table, x, push).compile()
    assert_close(compiled(table, x, push), jax.jit(jax.grad(loss))(table, x, push))
    text = compiled.as_text()
    assert len(re.findall(r" scatter\(", text)) == 1
    assert not re.findall(rf"\[{KNOTS}[,0-9]*\]\S* (?:pad|add|select)\(", text)


@pytest.mark.parametrize(("loss", "shape"), LOSSES)
def test_forward_mode_of_gradients(loss, shape):
    """A Hessian times a vector: both loops add windows."""
    rng = np.random.default_rng(1)
    table, along = (jnp.asarray(rng.normal(size=shape), "float32") for _ in range(2))
    x, push = jnp.linspace(-2.5, 2.5, 5), jnp.asarray(rng.normal(size=10), "float32")

    def product(grad):
        return jax.jit(lambda t, v: jax.jvp(lambda t: grad(t, x, push), (t,), (v,)))

    wanted = product(jax.grad(loss))(table, along)
    for grad in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        assert_close(product(grad)(table, along), wanted)
