"""Under which predicate a loop skips, and when that is known."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.residuals.unread_rows import is_by_zeros, without_zeros
from jaxpr_opt.analysis.steps import skips
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.steps.skips import Skip, find_skip, find_skips
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.registry import default_pipeline
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced
from tests.graphs import scans


def first_loop(program, *types):
    graph = import_jaxpr(traced(program, *types))
    return scans(graph)[0]


def carrying(step):
    """A loop over ``(x, i)`` and rows ``(r, p)``; `step` gets them and a bound."""

    def program(x, rows, mask, n):
        body = lambda carry, row: (step(*carry, *row, n), None)
        return lax.scan(body, (x, jnp.int32(0)), (rows, mask))[0]

    return first_loop(program, "f32[3]", "f32[4,3]", "bool[4]", "i32[]")


def both(p, yes, no):
    return lax.cond(p, lambda: yes, lambda: no)


def test_a_predicate_that_takes_as_long_as_a_step_comes_last():
    """Boxes that overlap the best one are left out, if one is left."""

    def program(scores, boxes):
        def step(scores, _):
            best = jnp.argmax(scores)
            overlaps = jnp.prod(jnp.abs(boxes - boxes[best]) < 1, axis=1) > 0
            left = jnp.where(overlaps, 0.0, scores)
            return jnp.where(scores[best] > 0.1, left, scores), best

        return lax.scan(step, scores, length=8)

    first, second = find_skips(first_loop(program, "f32[1000]", "f32[1000,4]"))
    assert isinstance(first, Skip) and isinstance(second, Skip)
    assert (first.predicate.size, second.predicate.size) == (1, 1000)


@pytest.mark.parametrize(
    ("step", "kind", "taken_when", "counters"),
    [
        (lambda x, i, r, p, n: both(i < n, (x + r, i + 1), (x, i)), "carried", True, 0),
        (lambda x, i, r, p, n: both(i >= n, (x, i), (x + r, i + 1)), "carried", False, 0),
        (lambda x, i, r, p, n: both(~(i < n), (x, i), (x + r, i + 1)), "carried", True, 0),
        (lambda x, i, r, p, n: both(x[0] < 1, (x + r, i * 2), (x, i)), "carried", True, 0),
        (lambda x, i, r, p, n: (both(i < n, x + r, x), i + 1), "upfront", True, 1),
        (lambda x, i, r, p, n: (both(p, x + r, x), i), "upfront", True, 0),
        (lambda x, i, r, p, n: (both(p & (i < n), x + r, x), i + n), "upfront", True, 1),
        (lambda x, i, r, p, n: (jnp.where(r[0] < 1, x + r, x), i + 1), "upfront", True, 1),
        (lambda x, i, r, p, n: (jnp.where(x < 9, x + r, x), i), "carried", True, 0),
        (lambda x, i, r, p, n: (x + jnp.where(p, r, 0.0), i), "upfront", True, 0),
    ],
)
def test_loops_that_skip(step, kind, taken_when, counters):
    skip = find_skip(carrying(step))
    assert skip is not None
    assert (skip.kind, skip.taken_when, len(skip.counters)) == (kind, taken_when, counters)
    assert len(skip.kept) == len(skip.scan.carries) - counters


@pytest.mark.parametrize(
    "step",
    [
        lambda x, i, r, p, n: (x + r, i + 1),
        lambda x, i, r, p, n: (both(i < n, x + r, x * 1.5), i + 1),
        lambda x, i, r, p, n: (both(p, x + r, x), i * 2),
        lambda x, i, r, p, n: (both(p, x + r, x), i + i),
        lambda x, i, r, p, n: (both(p, x + r, x), i - 1),
        lambda x, i, r, p, n: (x * jnp.where(p, r, 0.0), i),
        lambda x, i, r, p, n: lax.switch(i, [lambda: (x, i), lambda: (x + r, i), lambda: (r, i)]),
    ],
)
def test_loops_that_do_not(step):
    """Something changes in every step, counters apart."""
    assert find_skip(carrying(step)) is None


@pytest.mark.parametrize(
    ("step", "because"),
    [
        (lambda x, i, r, p, n: (both(x[0] < r[0], x + r, x), i), "mixes carries with streams"),
        (lambda x, i, r, p, n: (both(x[0] < i, x + r, x), i + 1), "mixes carries with streams"),
        (lambda x, i, r, p, n: (both(p ^ (x[0] < 1), x + r, x), i), "mixes carries with streams"),
        (
            lambda x, i, r, p, n: (
                both(lax.while_loop(lambda c: c < 0, lambda c: c + 1, x[0]) < 1, x + r, x), i),
            "may not end",
        ),
    ],
)  # fmt: skip
def test_predicates_that_are_no_reason_to_stop(step, because):
    found = list(find_skips(carrying(step)))
    assert found
    assert all(isinstance(each, str) and because in each for each in found)


@pytest.mark.parametrize(
    ("mask", "kinds"),
    [
        (lambda x, p: p & (x[0] < 1), ["upfront", "carried"]),
        (lambda x, p: ~(p | (x[0] < 1)), ["upfront", "carried"]),
        (lambda x, p: ~p & ((x[0] < 1) & (x[1] < x[2])), ["upfront", "carried", "carried"]),
        (lambda x, p: p | (x[0] < 1), []),
        (lambda x, p: p ^ (x[0] < 1), []),
    ],
)
def test_parts_of_predicates(mask, kinds):
    """What is false of a conjunction, or true of what is negated, skips a step by itself."""
    found = find_skips(carrying(lambda x, i, r, p, n: (both(mask(x, p), x + r, x), i)))
    assert [each.kind for each in found if not isinstance(each, str)][-len(kinds) :] == kinds


def writing(began, value, at, *, fun=lambda ys: ys):
    """A loop that writes what `value` makes of a row where its mask is true, at a place of the
    step's own or not.
    """

    def program(x, rows, mask):
        def body(carry, row):
            x, ys = carry
            t, r, p = row
            ys = fun(lax.dynamic_update_slice(ys, value(p, r), (at(t, x), 0)))
            return (jnp.where(p, x + r, x), ys), None

        return lax.scan(body, (x, began(x)), (jnp.arange(4), rows, mask))[0]

    return first_loop(program, "f32[3]", "f32[4,3]", "bool[4]")


def zeros(_):
    return jnp.zeros((8, 3))


def row_or_zero(p, r):
    return jnp.where(p, r, 0.0)[None]


def two_rows(p, r):
    return jnp.stack([jnp.where(p, r, 0.0)] * 2)


@pytest.mark.parametrize(
    "loop",
    [
        writing(zeros, row_or_zero, lambda t, x: t),
        writing(zeros, row_or_zero, lambda t, x: 7 - t),
        writing(zeros, two_rows, lambda t, x: 2 * t),
        writing(
            lambda _: jnp.full((8, 3), -1.5),
            lambda p, r: jnp.where(p, r, -1.5)[None],
            lambda t, x: t + 2,
        ),
    ],
)
def test_a_write_of_what_an_array_began_with_leaves_it_alone(loop):
    skip = find_skip(loop)
    assert skip is not None
    assert len(skip.blanks) == 1
    assert skip.kind == "upfront"


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(writing(lambda x: jnp.outer(x, x)[:1] + jnp.zeros((8, 3)), row_or_zero,
                             lambda t, x: t), id="began with anything"),
        pytest.param(writing(lambda _: jnp.ones((8, 3)), row_or_zero, lambda t, x: t),
                     id="another number"),
        pytest.param(writing(zeros, lambda p, r: r[None], lambda t, x: t), id="any number"),
        pytest.param(writing(zeros, two_rows, lambda t, x: t), id="windows overlap"),
        pytest.param(writing(zeros, row_or_zero, lambda t, x: t // 2), id="a row twice"),
        pytest.param(writing(zeros, row_or_zero, lambda t, x: x[0].astype(int)), id="anywhere"),
        pytest.param(writing(zeros, row_or_zero, lambda t, x: 3 * t), id="clamped"),
        pytest.param(writing(zeros, row_or_zero, lambda t, x: t, fun=lambda ys: ys[::-1]),
                     id="moved"),
    ],
)  # fmt: skip
def test_other_writes_change_an_array(loop):
    assert find_skip(loop) is None


def test_keys_are_carried():
    def program(key, n):
        step = lambda c, _: (both(c[1] < n, (jax.random.fold_in(c[0], 1), c[1] + 1), c), None)
        return lax.scan(step, (key, jnp.int32(0)), None, length=4)[0]

    graph = import_jaxpr(jax.make_jaxpr(program)(jax.random.key(0), 3))
    skip = find_skip(scans(graph)[0])
    assert skip is not None
    assert skip.kind == "carried"


def test_a_loop_of_counters_only_does_not_skip():
    loop = first_loop(lambda i: lax.scan(lambda i, _: (i + 1, i < 3), i, None, length=4), "i32[]")
    assert find_skip(loop) is None


def transposed(weight):
    """The transpose of a masked loop, its first: cotangents of skipped steps are zero."""

    def program(x, rows, mask, ct):
        body = lambda c, row: (jnp.where(row[1], weight(c) * row[0], c), None)
        return jax.vjp(lambda x: lax.scan(body, x, (rows, mask))[0], x)[1](ct)

    graph = import_jaxpr(traced(program, "f32[3]", "f32[4,3]", "bool[4]", "f32[3]"))
    return next(op for op in scans(graph) if op.reverse)


def test_the_transpose_skips_as_the_loop_does():
    """A cotangent of zero stays zero whatever it is multiplied with."""
    loop = transposed(jnp.sin)
    assert loop.source.transposed
    skip = find_skip(loop)
    assert isinstance(skip, Skip)
    assert skip.kind == "upfront"


def test_the_same_in_a_loop_of_the_users_own_does_not():
    """``0 * inf`` is NaN there."""

    def program(x, rows, mask):
        body = lambda c, row: (c + jnp.where(row[1], c, 0.0) * row[0], None)
        return lax.scan(body, x, (rows, mask), reverse=True)[0]

    assert find_skip(first_loop(program, "f32[3]", "f32[4,3]", "bool[4]")) is None


def test_values_of_a_skipped_step():
    loop = carrying(lambda x, i, r, p, n: both(i < n, (x + r, i + 1), (x, i)))
    skip = find_skip(loop)
    assert skip is not None
    assert [skip.skipped[c.next] is c.param for c in loop.carries] == [True, True]
    assert isinstance(skip.skipped[skip.predicate], Splat)


@pytest.mark.parametrize(("shape", "skips"), [((), True), ((3,), False)])
def test_elements_that_draw_their_own_numbers_skip_no_step(shape, skips):
    """Dropout: one of them takes the step; a layer that is left out as a whole is skipped."""

    def program(x, seeds):
        def step(x, seed):
            keep = jax.random.bernoulli(jax.random.key(seed), 0.9, shape)
            return x + jnp.where(keep, jnp.sin(x), 0.0), None

        return lax.scan(step, x, seeds)[0]

    (found,) = find_skips(first_loop(program, "f32[3]", "u32[4]"))
    assert isinstance(found, Skip) if skips else "drawn at random" in found


def settled(x, row):
    """A fixed point, of which no more is computed once it is found."""

    def step(state, _):
        z, done = state
        new = jnp.tanh(z + row)
        return (jnp.where(done, z, new), done | (jnp.max(jnp.abs(new - z)) < 0.1)), None

    return lax.scan(step, (x, False), None, length=5)[0][0]


def loops_back(inner):
    """The loops of the gradient of a loop of such loops, those of the forward pass first."""

    def loss(x, rows):
        step = lambda x, row: (inner(x, row) + x, None)
        return jnp.sum(lax.scan(step, x, rows)[0])

    graph = import_jaxpr(traced(jax.grad(loss), "f32[3]", "f32[4,3]"))
    return [op for op in scans(graph) if op.length == 5]


def test_a_loop_in_a_loop_of_cotangents_carries_cotangents():
    """What they are multiplied with does not matter where they are zero."""
    forward, back = loops_back(settled)
    assert not carries_cotangents(forward)
    assert carries_cotangents(back)
    assert find_skip(back) is not None


def test_carries_of_the_forward_pass_among_cotangents():
    """A version of a buffer that is walked back is not linear; what is computed of it is none."""

    def loss(x, rows):
        def step(state, i):
            x, rows = state
            x = settled(x, rows.sum(0)) + x
            return (x, rows.at[i].set(jnp.tanh(x))), None

        return jnp.sum(lax.scan(step, (x, rows), jnp.arange(4))[0][0])

    jaxpr = traced(jax.grad(loss), "f32[3]", "f32[4,3]")
    graph = import_jaxpr(default_pipeline().run(jaxpr).jaxpr)
    loops = [op for op in scans(graph) if op.length == 5]
    assert [carries_cotangents(loop) for loop in loops] == [False, True]


def test_a_rule_of_a_user_is_not_linear():
    """Zero divided by its absolute value is NaN, not zero: no step is skipped."""

    @jax.custom_vjp
    def settled(x, mask):
        return x

    def back(mask, ct):
        def step(a, p):
            taken = jnp.where(p, a, 0.0)
            return taken / jnp.abs(taken) + jnp.where(p, 0.0, a), None

        return lax.scan(step, ct, mask, reverse=True)[0], None

    settled.defvjp(lambda x, mask: (x, mask), back)
    gradient = jax.grad(lambda x, mask: jnp.sum(settled(x, mask)))
    loop = first_loop(gradient, "f32[3]", "bool[5]")
    assert loop.source.transposed and not carries_cotangents(loop)
    assert find_skip(loop) is None
    args = jnp.ones(3), jnp.arange(5) < 3
    assert jnp.isnan(optimize(gradient)(*args)).all()


def test_a_loop_that_is_run_again_among_cotangents_does_not():
    """It is in a loop that was transposed, but computes what the forward loop computed."""
    loops = loops_back(jax.checkpoint(settled))
    assert [carries_cotangents(loop) for loop in loops] == [False, False, True]


def test_a_loop_that_stops_where_what_it_carries_says_so():
    """The predicate that chooses is made of what is carried and of what a step finds out."""

    def program(x):
        def body(state, _):
            x, done = state
            done |= x[0] > 9
            return (jnp.where(done, x, x + 1), done), None

        return lax.scan(body, (x, False), None, length=5)[0][0]

    loop = first_loop(program, "f32[3]")
    skip = find_skip(loop)
    assert skip is not None
    assert (skip.kind, skip.taken_when) == ("carried", False)
    assert skip.predicate is loop.carries[1].param


def test_stacks_that_are_zero_as_products_with_zeros_are():
    """The carry of the loop back is kept as it is; what it stacks is zero times a residual."""

    def loss(c, xs, masks):
        def step(c, row):
            x, p = row
            y = c + jnp.sqrt(x + jnp.sin(lax.stop_gradient(c)))
            return jnp.where(p, y, c), None

        return jnp.sum(lax.scan(step, c, (xs, masks))[0])

    graph = import_jaxpr(traced(jax.grad(loss, 1), "f32[2]", "f32[6,2]", "bool[6,2]"))
    (back,) = (op for op in scans(graph) if op.source.transposed)
    skip = find_skip(back)
    assert skip is not None and is_by_zeros(skip)
    assert all(without_zeros(skip).keeps(carry) for carry in skip.kept)


MASKS = {
    "the first in all": (lambda n, i, m: n + i < 8, False),
    "none in the last": (lambda n, i, m: n + i < 4, False),
    "some in each step": (lambda n, i, m: n % (2 << i) == 0, False),
    "of a number from outside": (lambda n, i, m: n + i < m[0], True),
    "of numbers from outside": (lambda n, i, m: i < m, True),
    "of no elements' numbers": (lambda n, i, m: jnp.asarray([3, 1, 2, 1, 0]) > i, True),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_of_numbers_alone_chooses_elements_not_steps(case):
    mask, skips = MASKS[case]

    def program(x, m):
        step = lambda x, i: (jnp.where(mask(jnp.arange(5), i, m), jnp.sin(x), x), None)
        return lax.scan(step, x, jnp.arange(5))[0]

    found = find_skips(first_loop(program, "f32[5]", "i32[5]"))
    assert [isinstance(each, Skip) for each in found] == [skips]


def test_no_more_predicates_are_looked_at_once_that_takes_long(monkeypatch):
    """Each of many tells of all ops after it, in a transposed step: all are no cotangents then."""
    made = []

    class Seen(Assumable):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    def loss(c, xs):
        def step(c, x):
            for k in range(60):
                c = jnp.where(x > k, jnp.sin(c), x)
            return c, None

        return lax.scan(step, c, xs)[0].sum()

    monkeypatch.setattr(skips, "Assumable", Seen)
    monkeypatch.setattr(limits, "WALKS", 2)
    graph = import_jaxpr(traced(jax.grad(loss), "f32[8]", "f32[4,8]"))
    loops = [op for op in graph.body.ops if isinstance(op, Scan)]
    assert not any(isinstance(each, Skip) for op in loops for each in find_skips(op))
    assert any(each.is_worn for each in made)
    assert all(each.walked <= 4 * len(each.ops) for each in made)
