"""Which case a select takes where another one takes a certain case."""

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.analysis.values.selected_cases import case_within
from tests.graphs import graph_of

NONE = [None] * 3


def cases(asks, *, which=lambda i: lax.clamp(0, i, 2), i="i32[]", x="f32[]", count=2):
    """What a select of so many cases takes where one of three, by `which`, takes each of them."""

    def program(i, x):
        chosen = which(i)
        first = lax.select_n(chosen, x, 2 * x, 3 * x)
        return first, lax.select_n(asks(i, chosen), *(k + x for k in range(count)))

    graph = graph_of(program, i, x)
    first, second = (op for op in graph.body.ops if op.name == "select_n")
    return [case_within(second, first.operands[0], case, 3) for case in range(3)]


@pytest.mark.parametrize(
    ("asks", "known"),
    [
        (lambda i, which: which == 1, [0, 1, 0]),
        (lambda i, which: which == 7, [0, 0, 0]),
        (lambda i, which: which != 1, NONE),
        (lambda i, which: which == i, NONE),
        (lambda i, which: i == 1, NONE),
        (lambda i, which: i > 1, NONE),
        (lambda i, which: i, NONE),
    ],
)
def test_a_question_about_the_number_of_the_case(asks, known):
    assert cases(asks) == known


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (0, 3), (-9, 9)])
def test_a_number_that_may_be_of_no_case(low, high):
    """The first or the last one is taken then."""
    assert cases(lambda i, which: which == 0, which=lambda i: lax.clamp(low, i, high)) == NONE


@pytest.mark.parametrize("of", [lambda which: which, lambda which: jnp.broadcast_to(which, (3,))])
@pytest.mark.parametrize(("count", "known"), [(3, [0, 1, 2]), (2, NONE)])
def test_the_same_number(of, count, known):
    """The same case of as many; of fewer, one of which the number is another."""
    assert cases(lambda i, which: of(which), x="f32[3]", count=count) == known


@pytest.mark.parametrize(("axis", "known"), [(0, [0, 1, 2]), (1, NONE)])
def test_rows_and_columns(axis, known):
    spread = lambda i, axis: lax.broadcast_in_dim(i, (3, 3), (axis,))
    asks, which = lambda i, _: spread(i, axis), lambda i: spread(i, 0)
    assert cases(asks, which=which, i="i32[3]", x="f32[3,3]", count=3) == known
