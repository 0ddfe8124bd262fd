"""Exponents: of sequences of numbers, of limits, of programs."""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jaxpr_opt.insight.growth import growth
from jaxpr_opt.insight.powers import WORDS, exponent, order_text, parse_limit
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced

SIZES = (64, 128, 256)


def at(function, sizes=SIZES):
    return [function(size) for size in sizes]


@given(
    st.floats(0.2, 4), st.floats(1, 1e6), st.floats(0, 1e6), st.sampled_from([SIZES, (3, 10, 70)])
)
def test_a_power_is_found_beside_what_does_not_grow(power, factor, constant, sizes):
    amounts = at(lambda n: factor * n**power + constant, sizes)
    assert exponent(sizes, amounts) == pytest.approx(power, abs=0.01)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda n: 7, 0),
        (lambda n: -n, 0),
        (lambda n: 0, 0),
        (math.log, 0),
        (lambda n: n - 50, 1),
        (lambda n: n * (n - 2), 2),
    ],
)
def test_exponents(function, expected):
    assert exponent(SIZES, at(function)) == pytest.approx(expected, abs=0.02)


def test_two_sizes_are_a_straight_line():
    assert exponent((8, 16), (5, 20)) == 2


def test_what_starts_at_a_size_has_an_exponent():
    assert exponent((1, 2, 4), (0, 0, 9)) == 0
    assert exponent((2, 4, 8), (0, 16, 64)) > 1


@pytest.mark.parametrize(
    ("function", "slowest"),
    [
        (lambda n: 3, "constant"),
        (lambda n: 5 + math.log(n), "logarithmic"),
        (lambda n: 3 * n, "linear"),
        (lambda n: n - 50, "linear"),
        (lambda n: n * math.log(n), "linearithmic"),
        (lambda n: n**2, "quadratic"),
        (lambda n: n**3 + n, "cubic"),
    ],
)
def test_limits_are_in_order(function, slowest):
    allowed = [name for name in WORDS if parse_limit(name).allows(SIZES, at(function))]
    assert allowed == list(WORDS)[list(WORDS).index(slowest) :]


@pytest.mark.parametrize(
    ("text", "power", "logs"),
    [
        ("O(1)", 0, 0),
        ("O(log T)", 0, 1),
        ("O(T)", 1, 0),
        ("O(n)", 1, 0),
        ("linear", 1, 0),
        ("Quadratic", 2, 0),
        ("O(T log T)", 1, 1),
        ("O(T*log T)", 1, 1),
        ("O(T^2)", 2, 0),
        ("O(T**1.5)", 1.5, 0),
        ("O(T³)", 3, 0),
        ("O(T^2 log T)", 2, 1),
    ],
)
def test_limits_are_read(text, power, logs):
    assert parse_limit(text, "T") == (text, power, logs)


@pytest.mark.parametrize("text", ["", "T", "O()", "O(T^x)", "O(T", "O(2)", "exponential"])
def test_what_is_no_limit_is_told_what_one_is(text):
    with pytest.raises(ValueError, match=r"growth is .*: expected O\(1\), .* linear"):
        parse_limit(text)


def test_a_limit_is_of_the_size_that_there_is():
    with pytest.raises(ValueError, match=r"growth is 'O\(N\)': the size is called T"):
        parse_limit("O(N)", "T")
    with pytest.raises(ValueError, match="expected one size"):
        parse_limit("O(N log T)")
    assert parse_limit("O(N)").power == 1


def test_orders_are_written_like_limits():
    assert [order_text(p, "T") for p in (0.01, 0.98, 2.04, 1.63)] == [
        "O(1)",
        "O(T)",
        "O(T^2)",
        "O(T^1.63)",
    ]


def grown(fun, spec="f32[{}]", sizes=SIZES):
    """How a function of one array grows."""
    return growth({n: import_jaxpr(traced(fun, spec.format(n)), "final") for n in sizes})


def carried(xs):
    def step(ys, i):
        return ys.at[i].set(jnp.sin(xs[i])), None  # the line

    return jnp.sum(lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))[0] ** 2)


def by_hand(xs):
    return jnp.sum(lax.scan(lambda _, x: (None, jnp.sin(x)), None, xs)[1] ** 2)


def stored(xs):
    step = lambda c, i: (jnp.sin(c) * xs[i], None)  # the line
    return jnp.sum(lax.scan(step, xs, jnp.arange(xs.size))[0])


def line_of(fun):
    """Where the comment is."""
    import inspect

    lines, first = inspect.getsourcelines(fun)
    return next(first + n for n, line in enumerate(lines) if "# the line" in line)


def test_the_gradient_of_a_carried_array_is_quadratic_work():
    plain, hand = grown(jax.grad(carried)), grown(jax.grad(by_hand))
    assert [round(t.exponent, 1) for t in plain.trends] == [1, 2, 1]
    assert [round(t.exponent, 1) for t in hand.trends] == [1, 1, 1]


def test_the_line_that_grows_faster_is_named():
    (residuals, work, memory) = grown(jax.grad(stored)).trends
    for trend in (residuals, work, memory):
        worst = trend.faster(parse_limit("linear"))
        assert worst
        assert not trend.faster(parse_limit("quadratic"))
    frames = {term.place.frame for term in residuals.faster(parse_limit("linear"))}
    assert {frame[:2] for frame in frames} == {(__file__, line_of(stored))}


def test_a_small_quadratic_term_is_seen_at_small_sizes():
    def program(xs):
        many = jnp.sum(jnp.sin(xs[:, None] * jnp.ones(500)))
        return many + jnp.sum(xs[:, None] * xs)

    assert grown(program)["work"].exponent == pytest.approx(2, abs=0.02)


def test_what_does_not_show_does_not_matter():
    def program(xs):
        return jnp.sum(jnp.ones((500, 500)) @ jnp.ones((500, 500))) + jnp.sum(xs)

    assert grown(program)["work"].exponent == 0


def test_one_iteration_of_a_while():
    def program(xs):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, xs)

    trend = grown(program)["work"]
    assert trend.iteration == pytest.approx(1, abs=0.01)
    assert grown(jnp.sum)["work"].iteration is None


def test_a_stack_is_the_memory_of_the_line_that_makes_it():
    trend = grown(jax.grad(stored))["peak_bytes"]
    worst = {term.place for term in trend.faster(parse_limit("linear")) if term.place.frame}
    assert {(place.what, place.frame[1]) for place in worst} == {
        ("sin", line_of(stored)),
        ("cos", line_of(stored)),
    }


def test_memory_of_many_small_arrays():
    """No array of an unrolled loop is large, all of them are."""

    def program(xs):
        kept = [jnp.sin(xs[i]) for i in range(xs.size)]
        return jnp.stack([jnp.cos(k) for k in kept]) + jnp.stack(kept)

    trend = grown(program, sizes=(8, 16, 32))["peak_bytes"]
    assert trend.exponent == pytest.approx(1, abs=0.05)
    assert trend.faster(parse_limit("O(1)"))
