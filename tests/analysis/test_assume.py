"""What values are known to be, when some predicates are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced


def known(fun, *types, fact=False, linear=False):
    """The outputs of ``fun(p, ...)`` if `p` is false: a number, the name of an input, or None."""
    graph = import_jaxpr(traced(fun, *(types or ("bool[]", "f32[3]"))))
    assumed = Assumed(graph.body, {graph.inputs[0]: fact}, linear=linear)
    assert_is_found_again(graph, linear)
    found = []
    for value in graph.outputs:
        what = assumed[value]
        if isinstance(what, Splat):
            found.append(what.value)
        else:
            found.append(what.name if what in graph.inputs else None)
    return found[0] if len(found) == 1 else found


def assert_is_found_again(graph, linear):
    """What only a predicate changes, for one after another, is what a whole walk finds."""
    values = [value for op in graph.body.ops for value in op.results]
    step = Assumable(graph.body, linear=linear)
    for predicate in [value for value in (*graph.inputs, *values) if value.dtype == bool]:
        for fact in (True, False):
            whole = Assumed(graph.body, {predicate: fact}, linear=linear)
            again = step.under({predicate: fact})
            assert all(is_alike(again[value], whole[value]) for value in values)


def is_alike(a, b):
    return a is b or (isinstance(a, Splat) and isinstance(b, Splat) and a.value == b.value)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda p, x: lax.cond(p, lambda: x * 2, lambda: x), "x"),
        (lambda p, x: lax.cond(~p, lambda: x, lambda: x * 2), "x"),
        (lambda p, x: jnp.where(p, x * 2, x), "x"),
        (lambda p, x: jnp.where(p, x, 0.0), 0.0),
        (lambda p, x: x + jnp.where(p, x, 0.0), "x"),
        (lambda p, x: jnp.concatenate([jnp.where(p, x, 0.0), jnp.zeros(2)]), 0.0),
        (lambda p, x: jnp.concatenate([jnp.where(p, x, 0.0), jnp.ones(2)]), None),
        (lambda p, x: x - jnp.where(p, x, 0.0), "x"),
        (lambda p, x: lax.switch(p.astype(int) + 0, [lambda: x, lambda: x * 2]), "x"),
        (lambda p, x: ~p, True),
        (lambda p, x: lax.stop_gradient(p), False),
        (lambda p, x: p & (x[0] < 1), False),
        (lambda p, x: ~p | (x[0] < 1), True),
        (lambda p, x: (p ^ True) & (p == False), True),  # noqa: E712
        (lambda p, x: jnp.broadcast_to(p, (3,)).any(), False),
        (lambda p, x: lax.clamp(0, p.astype(jnp.int32), 1) != 0, False),
        (lambda p, x: p.astype(jnp.float32), 0.0),
        (lambda p, x: x - jnp.where(p, x, 0.0).sum(), "x"),
        (lambda p, x: x + jnp.cumsum(jnp.where(p, x, 0.0)), "x"),
        (lambda p, x: x * jnp.where(p, x, 1.0).prod(), "x"),
        (lambda p, x: jnp.maximum(x, jnp.where(p, x, -jnp.inf).max()), "x"),
        (lambda p, x: jnp.minimum(jnp.where(p, x, jnp.inf), x), "x"),
        (lambda p, x: x.at[jnp.array([0, 5])].add(jnp.where(p, x[0], 0.0)), "x"),
        (lambda p, x: x.at[1].multiply(jnp.where(p, x[0], 1.0)), "x"),
        (lambda p, x: x.at[1].max(jnp.where(p, x[0], -jnp.inf)), "x"),
        (lambda p, x: jnp.where(p, x, 0.0) * lax.stop_gradient(jnp.float32(0.5)), 0.0),
        (lambda p, x: p * 0.9 ** jnp.arange(3), 0.0),
        (lambda p, x: jnp.where(p, 3, 0) * x.astype(jnp.int32), 0),
        # Of these nothing is known.
        (lambda p, x: p * 0.9 ** -jnp.arange(3), None),
        (lambda p, x: x * 2, None),
        (lambda p, x: x + jnp.where(p, x, 1.0).sum(), None),
        (lambda p, x: x * jnp.where(p, x, 2.0).prod(), None),
        (lambda p, x: jnp.maximum(x, jnp.where(p, x, 0.0).max()), None),
        (lambda p, x: x.at[1].add(jnp.where(p, x[0], 1.0)), None),
        (lambda p, x: x.at[1].set(jnp.where(p, x[0], 0.0)), None),
        (lambda p, x: x * jnp.where(p, x, 0.0), None),
        (lambda p, x: lax.cond(x[0] < 1, lambda: x * 2, lambda: x), None),
        (lambda p, x: jnp.broadcast_to(p, (0,)).all(), None),
        (lambda p, x: jnp.broadcast_to(~p, (0,)).any(), None),
        (lambda p, x: lax.while_loop(lambda c: p, lambda c: c * 2, x), None),
        (lambda p, x: lax.scan(lambda c, _: (c, None), x * 2, None, length=2)[0], None),
    ],
)
def test_what_is_known_where_a_predicate_is_false(fun, expected):
    assert known(fun) == expected


def test_a_discount_that_is_not_positive():
    """A number from zero to one is zero then."""

    def discounted(decide):
        def program(x):
            def body(d, x):
                p = decide(d, x)
                return d * 0.9 * jnp.where(x > 1, 1.0, 0.0), jnp.where(p, d * x, d)

            return lax.scan(body, 1.0, x)[1]

        scan = next(
            op for op in import_jaxpr(traced(program, "f32[3]")).body.ops if isinstance(op, Scan)
        )
        which = scan.stacks[0].value.op.operands[0]
        return Assumed(scan.body, {which: False})[scan.carries[0].next]

    assert discounted(lambda d, x: d > 0) == Splat(0)
    assert discounted(lambda d, x: ~(d <= 0)) == Splat(0)
    for decide in (lambda d, x: d > 0.5, lambda d, x: d >= 0, lambda d, x: x > 0):
        assert not isinstance(discounted(decide), Splat)


def test_both_branches_of_a_cond_nothing_is_known_about():
    """Under another predicate both leave `x` alone: one says so, the other is known to."""
    fun = lambda p, x: lax.cond(x[0] < 1, lambda: jnp.where(p, x * 2, x), lambda: x)
    assert known(fun) == "x"
    assert known(fun, fact=True) is None


def test_what_is_undefined_in_a_branch():
    """It may be what the others make."""
    nothing = lambda: compat_types.undefined(jax.core.ShapedArray((3,), jnp.float32))
    fun = lambda p, x: lax.cond(x[0] < 1, lambda: jnp.where(p, x * 2, x), nothing)
    assert known(fun) == "x"
    assert known(fun, fact=True) is None
    both = lambda p, x: lax.cond(x[0] < 1, nothing, nothing)
    assert known(both) is None


@pytest.mark.parametrize(
    ("made", "fact", "what"),
    [
        (lambda p, q: (p | q).any(), False, [False, False]),
        (lambda p, q: (p & ~q).all(), True, [True, False]),
        (
            lambda p, q: jnp.broadcast_to((p[None] | q)[:, :, None], (1, 3, 2)),
            False,
            [False, False],
        ),
        (lambda p, q: (p & q).any(), False, [None, None]),
        (lambda p, q: jnp.broadcast_to((p | q).any(), (0,)), False, [None, None]),
        (lambda p, q: (p | q).all(), True, [None, None]),
        (lambda p, q: p.all() ^ q.all(), False, [None, None]),
        (lambda p, q: (p.astype(int) + q).any(), False, [None, None]),
    ],
)
def test_what_a_predicate_is_made_of(made, fact, what):
    graph = import_jaxpr(traced(made, "bool[3]", "bool[3]"))
    assumed = Assumed(graph.body, {graph.outputs[0]: fact})
    found = (assumed[value] for value in graph.inputs)
    assert [known.value if isinstance(known, Splat) else None for known in found] == what


def test_constants_have_the_precision_of_their_type():
    """0.1 is 0.1 in float32: not less than the double it was rounded from."""

    def fun(p, x):
        y = jnp.where(p, x, jnp.float32(0.1))
        return (y > 0.1)[0], (y < 0.1)[0], (y == 0.1)[0]

    assert known(fun) == [False, False, True]


def test_zeros_from_outside_of_the_region():
    """Where an array of zeros was made makes no difference."""

    def fun(p, xs):
        zeros = jnp.zeros(3)
        step = lambda c, x: (c + jnp.where(p, x, zeros), None)
        return lax.scan(step, zeros, xs)[0]

    graph = import_jaxpr(jax.make_jaxpr(fun)(True, jnp.ones((2, 3))))
    (scan,) = [op for op in graph.walk() if op.name == "scan"]
    (carry,) = scan.carries
    assert Assumed(scan.body, {graph.inputs[0]: False}).keeps(carry)
    assert not Assumed(scan.body, {graph.inputs[0]: True}).keeps(carry)


@pytest.mark.parametrize("number", [np.nan, np.inf, -1.0, 1e20, 300.0])
def test_numbers_that_integers_cannot_hold(number):
    """NumPy wraps them around, XLA clamps them: nothing is said."""
    fun = lambda p, x: jnp.where(p, 1.0, number).astype(jnp.uint8)
    assert known(fun) is None


@pytest.mark.filterwarnings("error")
def test_the_real_part_of_a_complex_number():
    """A conversion drops the imaginary part without a warning."""
    params = {"new_dtype": np.dtype("float32"), "weak_type": False, "sharding": None}

    def fun(p, x):
        return lax.convert_element_type_p.bind(jnp.where(p, x, 2.0 + 1.0j), **params)

    assert known(fun) == 2.0


def test_zeros_of_cotangents_only():
    """In a linear loop zero times anything is zero; elsewhere ``0 * inf`` is NaN."""

    def fun(p, x):
        ct = jnp.where(p, x, 0.0)
        return (
            x + ct * x,
            x + (ct @ jnp.outer(x, x)),
            x + lax.scan(lambda c, r: (c + r * x, None), ct * 0.5, ct)[0],
        )

    assert known(fun)[:2] == [None, None]
    graph = import_jaxpr(jax.make_jaxpr(fun)(True, jnp.ones(3)))
    assert_is_found_again(graph, linear=True)
    assumed = Assumed(graph.body, {graph.inputs[0]: False}, linear=True)
    assert all(assumed[value] is graph.inputs[1] for value in graph.outputs)


@pytest.mark.parametrize(
    "made",
    [
        lambda ct, a: lax.split(ct, (1, 2))[1],
        lambda ct, a: jax.scipy.linalg.solve_triangular(a, ct),
        lambda ct, a: jnp.linalg.solve(a, ct),
        lambda ct, a: jnp.zeros(3).at[jnp.int32(a[0, 0])].set(ct[0]),
    ],
)
def test_zeros_that_are_taken_apart_solved_for_or_written(made):
    """Zero of what they are linear in, and of nothing else."""
    types = "bool[]", "f32[3]", "f32[3,3]"
    assert known(lambda p, x, a: made(jnp.where(p, x, 0.0), a), *types, linear=True) == 0.0
    if made(jnp.ones(3), 2 * jnp.eye(3)).shape == (3,):
        other = lambda p, x, a: made(x, jnp.where(p, a, 0.0))
        assert known(other, *types, linear=True) is None


def test_what_is_known_without_facts_and_not_under_them():
    """Both cases are `x`, until one is known to be something else."""

    def fun(p, x):
        q = p | (x[0] < 1)
        first = jnp.where(p | True, jnp.zeros(3), x)
        carried = lax.scan(lambda c, r: (c * r, None), first, x)[0]
        ways = lax.cond(q, lambda: jnp.where(p, q, q), lambda: q)
        return jnp.where(x[1] < 1, q, ways), jnp.where(p, carried, x), ways & p

    for linear in (False, True):
        assert_is_found_again(import_jaxpr(traced(fun, "bool[]", "f32[3]")), linear)


def test_a_value_of_another_type_does_not_stand_in():
    """`x` in bfloat16 is not `x`."""
    fun = lambda p, x: jnp.where(p, x * 2, x).astype(jnp.bfloat16)
    assert known(fun) is None


def test_a_carry_that_is_kept():
    def fun(p, x):
        return lax.scan(lambda c, _: (jnp.where(p, c * 2, c), None), x, None, length=3)[0]

    graph = import_jaxpr(traced(fun, "bool[]", "f32[3]"))
    (scan,) = (op for op in graph.body.ops if op.name == "scan")
    p = graph.inputs[0]
    assert Assumed(scan.body, {p: False}).keeps(scan.carries[0])
    assert not Assumed(scan.body, {p: True}).keeps(scan.carries[0])


DROP, CLIP = lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.CLIP


def put(b, at, u, mode):
    """One element, at an index of one component."""
    return lax.scatter(b, at, u, lax.ScatterDimensionNumbers((), (0,), (0,)), mode=mode)


def got(b, at, mode):
    return lax.gather(b, at, lax.GatherDimensionNumbers((), (0,), (0,)), (1,), mode=mode)


def sliced(b, i, size=1):
    return lax.dynamic_slice(b, (i,), (size,), allow_negative_indices=False)


def updated(b, i, u):
    return lax.dynamic_update_slice(b, u, (i,), allow_negative_indices=False)


WRITES = [
    pytest.param(
        lambda p, x, i, at: updated(x, i, jnp.where(p, x[:1], sliced(x, i))), "x", id="slice"
    ),
    pytest.param(
        lambda p, x, i, at: updated(x, i, jnp.where(p, x[0], sliced(x, i)[0])[None]),
        "x",
        id="reshaped",
    ),
    pytest.param(
        lambda p, x, i, at: updated(x, i, sliced(jnp.where(p, x * 2, x), i)), "x", id="of the same"
    ),
    pytest.param(
        lambda p, x, i, at: updated(
            x, i, lax.reshape(lax.reshape(sliced(jnp.where(p, x * 2, x), i), ()), (1,))
        ),
        "x",
        id="of the same, reshaped",
    ),
    pytest.param(
        lambda p, x, i, at: put(x, at, jnp.where(p, 1.0, got(x, at, CLIP)), CLIP),
        "x",
        id="clamped",
    ),
    pytest.param(
        lambda p, x, i, at: put(x, jnp.where(p, at, 3), 1.0, DROP), "x", id="out of range"
    ),
    pytest.param(
        lambda p, x, i, at: put(x, jnp.where(p, at, 2), 1.0, DROP), None, id="the last place"
    ),
    pytest.param(
        lambda p, x, i, at: put(x, jnp.where(p, at, 3), 1.0, CLIP), None, id="clamped to the last"
    ),
    pytest.param(
        lambda p, x, i, at: put(x, at, jnp.where(p, 1.0, got(x, at, DROP)), CLIP),
        None,
        id="filled, clamped",
    ),
    pytest.param(
        lambda p, x, i, at: updated(x, i, jnp.where(p, x[:1], sliced(x, i + 1))),
        None,
        id="the next",
    ),
    pytest.param(
        lambda p, x, i, at: updated(x, i, jnp.where(p, x[:1], sliced(x * 2, i))),
        None,
        id="of another",
    ),
    pytest.param(
        lambda p, x, i, at: updated(x, i, jnp.where(p, x[:2], lax.rev(sliced(x, i, 2), (0,)))),
        None,
        id="reversed",
    ),
    pytest.param(
        lambda p, x, i, at: updated(
            x, i, jnp.where(p, x[:2], lax.broadcast(sliced(x, i)[0], (2,)))
        ),
        None,
        id="spread",
    ),
]


@pytest.mark.parametrize(("fun", "expected"), WRITES)
def test_writes_of_what_is_there(fun, expected):
    """Or out of range."""
    assert known(fun, "bool[]", "f32[3]", "i32[]", "i32[1]") == expected


def test_what_another_type_does_not_hold():
    """It is infinite, as XLA makes it, and NumPy does not warn."""
    half = lambda p, x: jnp.where(p, x, 1e6).astype(jnp.float16)
    assert known(half) == np.inf
    assert known(lambda p, x: jnp.where(p, x, jnp.full(3, 10**6).astype(jnp.float16))) == np.inf
    assert known(lambda p, x: jnp.where(p, x, jnp.nan).astype(int)) is None


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({"mode": "fill", "fill_value": 0.0}, 0.0),
        ({"mode": "clip"}, 0.0),
        ({"mode": "fill", "fill_value": 3.0}, None),
        ({"mode": "fill", "fill_value": np.nan}, None),
    ],
)
def test_zeros_that_are_read_out_of_range(of, expected):
    """Another number may be there."""
    read = lambda p, x, i: jnp.where(p, x, 0.0).at[i].get(**of)
    assert known(read, "bool[]", "f32[3]", "i32[2]", linear=True) == expected
    within = lambda p, x: jnp.where(p, x, 0.0).at[jnp.int32(2)].get(**of)
    assert known(within, linear=True) == (None if of.get("fill_value") == 3.0 else 0.0)


# ---------------------------------------------------------------- one of some numbers


def told(fun, *types):
    """The outputs but the first of ``fun(s, ...)`` if that is false, as in `known`."""
    graph = import_jaxpr(traced(fun, "i32[]", "f32[3]"))
    predicate, *outputs = graph.outputs
    whole = Assumed(graph.body, {predicate: False})
    again = Assumable(graph.body).under({predicate: False})
    for value in (*graph.inputs, *(v for op in graph.body.ops for v in op.results)):
        assert is_alike(again[value], whole[value])
    found = (whole[value] for value in outputs)
    return [
        v.value if isinstance(v, Splat) else v.name if v in graph.inputs else None for v in found
    ]


def rests(s, x):
    """What a state machine does with its array, and its next state."""
    cases = [
        lambda: (x * 2, 1, 2),
        lambda: (x + 1, 1, 3),
        lambda: (x, 2, 4),
        lambda: (x, 3, 4),
    ]
    return lax.switch(s, cases)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (lambda s: s != 2, ["x", 2, 4]),
        (lambda s: ~(s == 3), ["x", 3, 4]),
        (lambda s: (s != 2) & (s != 3), ["x", "s", 4]),
        (lambda s: ~((s == 2) | (s == 3)), ["x", "s", 4]),
        (lambda s: (s != 1) & (s != 2), [None, "s", None]),
        (lambda s: (s != 0) & (s != 2), [None, None, None]),
        (lambda s: (s != 2) & (s != 7), [None, None, None]),
        (lambda s: lax.clamp(0, s, 3) != 2, ["x", 2, 4]),
        (lambda s: lax.clamp(0, s, 3) != 3, [None, None, None]),  # it may be more
        (lambda s: (s != 2) | (s != 3), ["x", 2, 4]),  # never: anything may be said of it
        (lambda s: s == 2, [None, None, None]),
        (lambda s: s > 2, [None, None, None]),
        (lambda s: (s != 2) & (s > 2), [None, None, None]),
    ],
)
def test_a_number_that_is_compared(predicate, expected):
    assert told(lambda s, x: (predicate(s), *rests(s, x))) == expected


def test_numbers_of_a_batch():
    """Each row has its own number."""

    def fun(s, x):
        rows = jnp.broadcast_to(s[:, None], x.shape)
        kept = lax.select_n(rows, x + 1, x * 2, x, x)
        state = lax.select_n(s, *(jnp.full(2, number) for number in (1, 1, 2, 3)))
        return (s != 2) & (s != 3), kept, state, lax.select_n(s, s, s + 1, s, s)

    graph = import_jaxpr(traced(fun, "i32[2]", "f32[2,3]"))
    predicate, *outputs = graph.outputs
    assumed = Assumed(graph.body, {predicate: False})
    s, x = graph.inputs
    assert [assumed[value] for value in outputs] == [x, s, s]


@pytest.mark.parametrize(
    ("moved", "is_same"),
    [
        (lambda s: s, True),
        (lambda s: s.astype("int8").astype("int32"), True),
        (lambda s: s[::-1], False),
        (lambda s: s.T, False),
    ],
)
def test_numbers_that_are_moved(moved, is_same):
    def fun(s):
        cases = (jnp.full_like(s, number) for number in (0, 0, 2, 3))
        return (s != 2) & (s != 3), lax.select_n(moved(s), *cases)

    graph = import_jaxpr(traced(fun, "i32[2,2]"))
    predicate, state = graph.outputs
    assert (Assumed(graph.body, {predicate: False})[state] is graph.inputs[0]) == is_same
