"""Rows of a gradient are scaled and added one by one."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.reassociating.add_scaled_rows import AddScaledRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

ADD = AddScaledRows()


def rows(t, ids, u):
    return jnp.zeros_like(t).at[ids].add(u, mode="clip")


def trained(step):
    def program(t, ids, us):
        return lax.scan(lambda t, b: (step(t, *b), ()), t, (ids, us))[0]

    return program


TYPES = ("f32[64,4]", "i32[8,2]", "f32[8,2,4]")


def test_a_step_of_descent():
    """(1)"""
    check_rewrite(
        ADD,
        trained(lambda t, ids, u: t - 0.1 * rows(t, ids, u)),
        *TYPES,
        simplify=True,
        diff="""
              fn (t:f32[64,4], ids:i32[8,2], us:f32[8,2,4]) {
                c:f32[64,4] = scan[8] carry(c=t) xs(x=ids, x1=us) {
            -     b:f32[64,4] = broadcast_in_dim 0.0
                  l:bool[2] = lt x 0
                  a:i32[2] = add x 64
                  s:i32[2] = select_n l x a
                  b1:i32[2,1] = broadcast_in_dim[dims=(0,)] s
            +     m1:f32[2,4] = mul 0.1 x1
            +     n:f32[2,4] = neg m1
            -     s1:f32[64,4] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b b1 x1
            +     s1:f32[64,4] = scatter-add[update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] c b1 n
            -     m:f32[64,4] = mul 0.1 s1
            -     s2:f32[64,4] = sub c m
            -     yield carry(s2)
            +     yield carry(s1)
                }
                return c
              }
        """,  # noqa: E501
    )


def test_rows_of_two_tables_of_cotangents():
    """(1) Without a scale, and where two ops add to rows that may be the same."""

    def program(t, ids, us):
        def step(t, b):
            i, u = b
            return t + (rows(t, i, u) + rows(t, i + 1, u)), ()

        return lax.scan(step, t, (ids, us))[0]

    wanted = program(*arguments())
    optimized = optimize(program, reassociate=True)
    assert_close(optimized(*arguments()), wanted)
    text = str(jax.make_jaxpr(optimized)(*arguments()))
    assert text.count("scatter-add") == 2
    assert "f32[64,4] = add" not in text


@pytest.mark.parametrize("rate", [0.1, jnp.nan, jnp.inf, 0.0])
def test_an_unknown_rate_may_be_no_number(rate):
    """(2) Then all elements become NaN, as in the program."""

    def program(t, ids, us, rate):
        step = lambda t, b: (t - rate * rows(t, *b), ())
        return lax.scan(step, t, (ids, us))[0]

    optimized = optimize(program, reassociate=True, passes=["add-scaled-rows"])
    assert "scatter-add" in str(jax.make_jaxpr(optimized)(*arguments(), rate))
    assert_close(optimized(*arguments(), rate), program(*arguments(), rate))


def test_a_step_that_may_be_left_out():
    """(1) The sum or the table, by a truth value of the step."""

    def program(t, ids, us):
        step = lambda t, b: (jnp.where(jnp.isfinite(b[1].sum()), t - 0.1 * rows(t, *b), t), ())
        return lax.scan(step, t, (ids, us))[0]

    t, ids, us = arguments()
    optimized = optimize(program, reassociate=True, passes=["add-scaled-rows"])
    assert "f32[64,4] = sub" not in str(jax.make_jaxpr(optimized)(t, ids, us))
    for given in (us, us.at[2, 0, 1].set(jnp.inf)):
        assert_close(optimized(t, ids, given), program(t, ids, given))


def arguments():
    t = jnp.cos(jnp.arange(256.0)).reshape(64, 4)
    ids = jnp.array([[1, 1], [5, 70], [-1, 63], [0, 2]])
    return t, ids, jnp.sin(jnp.arange(32.0)).reshape(4, 2, 4)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda t, i, u: (g := rows(t, i, u), t - 0.1 * g + g)[1], "read elsewhere"),  # (1)
        (lambda t, i, u: (t - 0.1 * rows(t, i, u)) * jnp.cos(t), "read afterwards"),
        (lambda t, i, u: jnp.sin(t) - 0.1 * rows(t, i, u), "is new in each step"),
    ],
)
def test_other_steps_are_refused(step, reason):
    check_refuses(ADD, trained(step), *TYPES, because=reason, simplify=True)


def test_as_many_rows_as_the_table_are_refused():
    check_refuses(
        ADD,
        trained(lambda t, i, u: t - 0.1 * rows(t, i, u)),
        "f32[4,4]",
        "i32[8,4]",
        "f32[8,4,4]",
        because="as large as",
        simplify=True,
    )


def test_arrays_that_are_not_zero_elsewhere_are_left():
    """(1)"""
    alone(ADD, trained(lambda t, i, u: t - t.at[i].add(u)), *TYPES, fires=False)


def test_straight_line_code_is_left():
    alone(
        ADD, lambda t, i, u: t - 0.1 * rows(t, i, u), "f32[64,4]", "i32[2]", "f32[2,4]", fires=False
    )
