"""What is combined in place is read, combined and written, for other passes to go on from there."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.writes.expand_combining_scatters import ExpandCombiningScatters
from jaxpr_opt.testing import check_refuses, check_rewrite
from jaxpr_opt.testing.agreement import assert_close
from tests.loops import alone, memory

EXPAND = ExpandCombiningScatters()
TYPES = "f32[16]", "f32[6]", "i32[6]"


def looped(step):
    """A loop that carries an array and gets numbers and indices."""

    def program(b, us, at):
        return lax.scan(lambda b, x: (step(b, *x), None), b, (us, at))[0]

    return program


def unless(step):
    """The step, but for some numbers."""
    return looped(lambda b, u, i: jnp.where(u > 0, step(b, u, i), b))


def differentiated(step):
    """The loop, in a program that computes a gradient of something else."""

    def program(b, us, at):
        return looped(step)(b, us, at), jax.grad(lambda x: x * x)(at.sum() * 0.5)

    return program


def multiplied(b, u, i):
    return b.at[i].multiply(u)


def test_an_array_of_no_elements():
    """(2) Nothing is read of it."""
    rows = lax.ScatterDimensionNumbers((), (0,), (0,))
    step = lambda b, u, i: lax.scatter_mul(b, i[None], u, rows)
    types = "f32[0]", "f32[6]", "i32[6]"
    check_refuses(EXPAND, differentiated(step), *types, because="the array has no elements")


def test_a_gradient():
    """Both halves of it multiply in place."""
    loss = lambda *args: looped(multiplied)(*args).sum()
    check_rewrite(
        EXPAND,
        jax.grad(loss),
        *TYPES,
        diff="""
            fn (args_0:f32[16], args_1:f32[6], args_2:i32[6]) {
              c:f32[16], ys:i32[6,1] = scan[6] carry(c=args_0) xs(x=args_1, x1=args_2) {
                l:bool[] = lt x1 0
                a:i32[] = add x1 16
                s:i32[] = select_n l x1 a
                b:i32[1] = broadcast_in_dim s
          -     s1:f32[16] = scatter-mul[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b x
          +     g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=0] c b
          +     m:f32[] = mul g x
          +     s2:f32[16] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b m
          -     yield carry(s1) ys(b)
          +     yield carry(s2) ys(b)
              }
              r:f32[] = reduce_sum[axes=(0,)] c
              b:f32[16] = broadcast_in_dim 1.0
              c1:f32[16] = scan[6, reverse] carry(c=b) xs(x=ys, x1=args_1) {
          -     s:f32[16] = scatter-mul[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c x x1
          +     g:f32[] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), unique_indices, indices_are_sorted, mode=fill_or_drop, fill_value=0] c x
          +     m:f32[] = mul g x1
          +     s2:f32[16] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c x m
          -     yield carry(s)
          +     yield carry(s2)
              }
              return c1
            }
        """,  # noqa: E501
    )


PLACES = [-99, -16, -1, 0, 3, 15, 16, 99]


@pytest.mark.parametrize("how", ["multiply", "min", "max"])
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_wherever_the_window_is(how, mode):
    """(1), (2) In each row of a batch, in range or not, of numbers and of NaN."""

    @jax.vmap
    def one(b, u, i):
        return getattr(b.at[i], how)(u, mode=mode)

    within = [i for i in PLACES if mode != "promise_in_bounds" or 0 <= i < 16]
    count = len(within)
    b = jnp.linspace(-1.0, 1.0, count * 16, dtype=jnp.float32).reshape(count, 16)
    b = b.at[::2, ::3].set(jnp.nan).at[1::2, ::3].set(jnp.inf)
    us = jnp.linspace(-2.0, 2.0, 3 * count, dtype=jnp.float32).reshape(3, count)
    at = jnp.stack([jnp.roll(jnp.array(within), n) for n in range(3)])
    alone(EXPAND, differentiated(one), b, us.at[1, 0].set(jnp.nan), at, fires=True)


@pytest.mark.parametrize("dtype", ["i8", "u32", "bf16"])
def test_dtypes(dtype):
    alone(EXPAND, differentiated(multiplied), f"{dtype}[16]", f"{dtype}[6]", "i32[6]", fires=True)


def test_64_bits():
    with jax.enable_x64(True):
        alone(EXPAND, differentiated(multiplied), "f64[16]", "f64[6]", "i64[6]", fires=True)


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length):
    alone(
        EXPAND,
        differentiated(multiplied),
        "f32[16]",
        f"f32[{length}]",
        f"i32[{length}]",
        fires=True,
    )


def test_complex_numbers():
    """(3) Their products are rounded otherwise."""
    types = "c64[16]", "f32[6]", "i32[6]"
    check_refuses(
        EXPAND, differentiated(multiplied), *types, because="rounds products of complex numbers"
    )


def test_nothing_to_gain():
    """In place it is as fast as can be, if nobody is about to differentiate it."""
    alone(EXPAND, looped(multiplied), *TYPES, fires=False, phase="final")
    alone(EXPAND, looped(multiplied), *TYPES, fires=True)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(
            lambda b, u, i: b.at[jnp.stack([i, i])].multiply(u), id="1 several, maybe the same"
        ),
        pytest.param(lambda b, u, i: b.at[i].apply(jnp.sin), id="any function"),
    ],
)
def test_other_scatters(step):
    alone(EXPAND, differentiated(step), *TYPES, fires=False)


def test_not_in_a_loop():
    """There the whole array is touched once."""
    program = jax.grad(lambda b, u, i: multiplied(b, u, i).sum())
    alone(EXPAND, program, "f32[16]", "f32[]", "i32[]", fires=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["multiply", "min", "max"])
@pytest.mark.parametrize("condition", [looped, unless])
def test_gradients_take_memory_for_windows(how, condition):
    """In plain JAX the gradient of a product keeps all of the array for each step, and that of a
    minimum counts ties in arrays of zeros.
    """
    loop = condition(lambda b, u, i: getattr(b.at[i], how)(u))
    grad = jax.grad(lambda *args: jnp.sin(loop(*args)).sum(), (0, 1))
    keys = jax.random.split(jax.random.key(0), 3)
    b, us = jax.random.normal(keys[0], (512,)), jax.random.normal(keys[1], (256,))
    args = b, us, jax.random.randint(keys[2], (256,), 0, 512)
    for optimized in (
        optimize(grad),
        jax.grad(optimize(lambda *a: jnp.sin(loop(*a)).sum()), (0, 1)),
    ):
        assert_close(optimized(*args), grad(*args))
        assert memory(optimized, *args) < 4 * (b.nbytes + 2 * us.nbytes)
