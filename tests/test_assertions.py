"""What tests can say of a program, and what they say when it is not so."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.testing import assert_growth, assert_residual_bytes, assert_same

X = jax.ShapeDtypeStruct((256,), "float32")


def stored(xs):
    step = lambda c, x: (jnp.sin(c) * x, None)  # the line
    return jnp.sum(lax.scan(step, xs, xs)[0])


def written(xs):
    def step(ys, i):
        return ys.at[i].set(jnp.sin(xs[i])), None  # the line

    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))[0] ** 2)


def line_of(fun):
    lines, first = inspect.getsourcelines(fun)
    return next(first + n for n, line in enumerate(lines) if "# the line" in line)


def types(n):
    return (jax.ShapeDtypeStruct((n,), "float32"),)


# -- residuals -----------------------------------------------------------------------------------

STORED = 2 * 4 * 256**2
"""Sine and cosine of every step."""


def test_what_a_gradient_keeps():
    assert_residual_bytes(stored, (X,), STORED)
    with pytest.raises(AssertionError) as failure:
        assert_residual_bytes(stored, (X,), at_most="300 KiB")
    says = str(failure.value).splitlines()
    assert says[0] == (
        "the gradient of stored keeps 524 kB (512 KiB), 217 kB (212 KiB) more than 300 KiB:"
    )
    assert says[1].split()[:2] == ["524", "kB"]
    assert says[1].endswith(f"tests/test_assertions.py:{line_of(stored)} in <lambda>)")
    assert "`jaxpr_opt.residuals`" in says[-1]


def test_a_gradient_is_taken_as_it_is():
    assert_residual_bytes(jax.grad(stored), (X,), at_most=STORED)
    with pytest.raises(AssertionError, match="keeps 524 kB"):
        assert_residual_bytes(jax.value_and_grad(stored), (X,), at_most=STORED - 1)


def test_arguments_are_there_anyway():
    assert_residual_bytes(lambda x: jnp.sum(x * x), (X,), at_most=0)


def test_what_is_optimised_is_looked_at_optimised():
    with pytest.raises(AssertionError):
        assert_residual_bytes(written, (X,), at_most=2 * X.size * 4)
    assert_residual_bytes(jaxpr_opt.optimize(written), (X,), at_most=2 * X.size * 4)


def test_arrays_are_fine_and_keywords():
    power = lambda x, n: jnp.sum(jnp.sin(x) ** n)
    assert_residual_bytes(power, ((jnp.ones(4),), {"n": 2}), at_most="1 kB")


def test_the_argument_to_differentiate_by():
    scaled = lambda w, x: jnp.sum(jnp.sin(x) * w)
    assert_residual_bytes(scaled, (1.0, X), at_most=X.size * 4, argnums=0)
    with pytest.raises(AssertionError):
        assert_residual_bytes(scaled, (1.0, X), at_most=0, argnums=(0, 1))


# -- growth --------------------------------------------------------------------------------------


def test_how_a_program_grows():
    assert_growth(written, types)
    assert_growth(jax.grad(written), types, "O(n^2)")
    assert_growth(jax.grad(jaxpr_opt.optimize(written)), types, "linear")
    assert_growth(jax.grad(written), types, "linear", measures=["residual_bytes"])


def test_the_lines_that_grow_faster_are_named():
    with pytest.raises(AssertionError) as failure:
        assert_growth(jax.grad(written), types, "linear")
    first, *lines = str(failure.value).splitlines()
    assert first == "written grows faster than linear, at 64, 128, 256:"
    (line,) = lines
    assert line.startswith("  O(n^2) work in scatter")
    assert f"tests/test_assertions.py:{line_of(written)} in step)" in line


def test_what_no_line_is_to_blame_for():
    with pytest.raises(AssertionError, match=r"O\(n\) peak memory in .*arguments: 2"):
        assert_growth(lambda x: x[0], types, "constant", measures=["peak_bytes"])


# -- agreement -----------------------------------------------------------------------------------


def test_types_become_random_arrays():
    assert_same(lambda x, n: x * n, lambda x, n: n * x, (X, 3))
    with pytest.raises(AssertionError, match="values should be"):
        assert_same(lambda x: x, jnp.sin, (X,))
    with pytest.raises(AssertionError, match="forward derivatives"):
        assert_same(lambda x: x, lax.stop_gradient, (X,))
    assert_same(lambda x: x, lax.stop_gradient, (X,), grad=False)


def test_the_largest_error_is_told_and_where():
    x, error = jnp.arange(6.0).reshape(2, 3), jnp.array([[0.1, 0, 0], [0, 0, 0.5]])
    with pytest.raises(AssertionError) as failure:
        assert_same(lambda x: {"y": x}, lambda x: {"y": x + error}, (x,))
    assert str(failure.value) == (
        "values['y'] should be 5.0 and is 5.5 at [1, 2]: the largest error, 0.5, 0.1 of the largest"
        " value; 2 of 6 elements differ"
    )
    with pytest.raises(AssertionError, match=r"values should be 15.* and is 15.5: the lar"):
        assert_same(jnp.sum, lambda x: x.sum() + 0.5, (x,))
    with pytest.raises(AssertionError, match=r"and is nan at \[0\]: the largest error, inf; 1 of"):
        assert_same(lambda x: x, lambda x: x.at[0].set(jnp.nan), (jnp.ones(3),))


def test_a_tolerance_of_ones_own():
    assert_same(lambda x: x, lambda x: 1.01 * x, (jnp.ones(3),), rtol=0.02)
    with pytest.raises(AssertionError, match=r"largest error, 0\.01"):
        assert_same(lambda x: x, lambda x: 1.01 * x, (jnp.ones(3),), rtol=0.001)


def test_rounding_is_no_defect():
    """Of 1e8 + 1 - 1e8 single precision leaves nothing, in one order."""
    x = jnp.array([1e8, 1.0, -1e8])
    first, second = lambda x: x[0] + x[2] + x[1], lambda x: x[0] + x[1] + x[2]
    assert_same(first, second, (x,))
    with pytest.raises(AssertionError, match="largest error"):
        assert_same(first, second, (x,), rtol=1e-3)
    with pytest.raises(AssertionError, match="largest error"):  # and a defect is not rounding
        assert_same(first, lambda x: second(x) + 0.1, (x,))


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: assert_residual_bytes(stored, X, at_most=1),
            TypeError,
            "assert_residual_bytes: args must be a tuple of arguments, got a ShapeDtypeStruct",
        ),
        (
            lambda: assert_residual_bytes(3, (X,), at_most=1),
            TypeError,
            "assert_residual_bytes: expected a function, got 3",
        ),
        (
            lambda: assert_residual_bytes(stored, (X,), at_most="much"),
            ValueError,
            "at_most is 'much': expected bytes",
        ),
        (lambda: assert_same(stored, 3, (X,)), TypeError, "expected a function, got 3"),
        (
            lambda: assert_growth(stored, (X,), "linear"),
            TypeError,
            "growth: args_at must be callable, got ",
        ),
        (lambda: assert_growth(stored, types, "slow"), ValueError, "growth is 'slow': expected"),
        (
            lambda: assert_growth(stored, types, sizes=(64,)),
            ValueError,
            "growth: sizes must be two positive integers or more, got (64,)",
        ),
        (
            lambda: assert_growth(stored, types, measures=["time"]),
            ValueError,
            "measures has 'time': expected residual_bytes, work, peak_bytes",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(call, error, says):
    with pytest.raises(error) as failure:
        call()
    assert says in str(failure.value)
    assert "\n" not in str(failure.value)
