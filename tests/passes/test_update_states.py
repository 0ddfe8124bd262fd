"""A step of an optimizer updates the rows that a gradient has, of a table and of its own state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.in_place.update_states import UpdateStates
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.graphs import scans
from tests.loops import memory
from tests.sets import crossed

UPDATE = UpdateStates()
IDS = np.array([[4, 4, -1], [7, -99, 4], [120, 120, 130], [0, 1, 2]], np.int32)
OTHERS = np.array([[4, 9], [0, 1], [120, 7], [2, 2]], np.int32)
N = 20_000


def trained(step, *, state=True, **options):
    """A loop that carries a table, and what an optimizer keeps, whose gradient two ops make."""

    def program(table, kept, ids, others, us, vs, rates):
        outside = rates[0]

        def one(carry, x):
            i, j, u, v, rate = x
            zeros = jnp.zeros_like(table)
            g = zeros.at[i].add(u, **options) + zeros.at[j].add(v, **options)
            new = step(*carry, g, rate, outside)
            return (new if state else (new, carry[1])), None

        return lax.scan(one, (table, kept), (ids, others, us, vs, rates))[0]

    return program


def adagrad(p, a, g, rate, outside):
    b = a + g**2
    return p - 0.1 * g / (jnp.sqrt(b) + 1e-3), b


def chosen(a, g):
    """The gradient, or what does not become zero with it."""
    return jnp.where(a > 1, g, a + g)


def arguments(dtype="float32", **given):
    values = (10.0 ** jnp.arange(24.0) / 3e9).reshape(4, 3, 2).astype(dtype)
    table = jnp.arange(2.0 * N).reshape(N, 2).astype(dtype)
    kept = jnp.ones_like(table)
    others = -values[:, :2]
    found = {"table": table, "kept": kept, "ids": IDS, "others": OTHERS, "us": values}
    return tuple({**found, "vs": others, "rates": jnp.ones(4, dtype), **given}.values())


def same(program, *args, fires=True):
    before, after = (import_jaxpr(traced(program, *args), "final") for _ in range(2))
    assert bool(run_alone((UPDATE,), after).record(UPDATE.name, False).rewrites) == fires
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))
    return after


def loops(graph):
    *_, scan = scans(graph.body)
    return scan, [op for op in scan.body.ops if isinstance(op, While)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("unwrapped", [True, False])
def test_the_same_bits(dtype, mode, unwrapped):
    """(3) Rows that are the same, of one op or of two; clamped, and dropped."""
    program = trained(adagrad, mode=mode, wrap_negative_indices=not unwrapped)
    scan, whole = loops(same(program, *arguments(dtype)))
    assert scan.num_carries == 3 and len(whole) == 1
    made = {op.name for op in scan.body.ops for v in op.results if v.shape == (N, 2)}
    assert made == {"broadcast_in_dim", "scatter", "while"}


def descent(p, g, rate, outside):
    return p - 0.1 * g


def clipped(p, g, rate, outside):
    return p - 0.1 * jnp.minimum(jnp.maximum(g, -1), 1)


@pytest.mark.parametrize("step", [descent, clipped])
def test_what_is_known_to_stay(step):
    """(2) Nothing is asked where only finite numbers are on the way."""
    program = trained(lambda p, a, g, *_: step(p, g, *_), state=False)
    scan, whole = loops(same(program, *arguments()))
    assert scan.num_carries == 1 and not whole


STEPS = {
    "momentum of squares": lambda p, a, g, r, o: (p - 0.1 * lax.rsqrt(a + g * g) * g, a + g * g),
    "chosen": lambda p, a, g, r, o: (p - jnp.where(a > 1, g, 2 * g), a + jnp.abs(g)),
    "no epsilon": lambda p, a, g, r, o: (p - g / jnp.sqrt(a + g * g), a + g * g),
    "rate from outside": lambda p, a, g, r, o: (p - o * g, a + g * g),
    "both read both": lambda p, a, g, r, o: (p + g / a, a - g * p),
    "made of the new": lambda p, a, g, r, o: ((q := p - 0.5 * g), a + g * q),
    "where there is a gradient": lambda p, a, g, r, o: (
        jnp.where(g != 0, p - 0.1 * (b := 0.9 * a + g), p),
        jnp.where(g != 0, b, a),
    ),
    "where it is large": lambda p, a, g, r, o: (
        p - lax.select(jnp.abs(g) > 2, g / a, jnp.zeros_like(g)),
        jnp.maximum(jnp.minimum(g, 3), -3) * a + (a - g),
    ),
    "added to": lambda p, a, g, r, o: (g * 0.5 + p, g * g + a),
}


@pytest.mark.parametrize("number", [1.0, 0.0, np.inf, -np.inf, np.nan, -1.0])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_elements_that_do_not_stay(step, number):
    """(2) One element, of which the gradient is zero, that a product or a quotient changes."""
    args = list(arguments())
    args[1] = args[1].at[200, 1].set(number)
    same(trained(step), *args)


@pytest.mark.parametrize("number", [np.inf, np.nan, 0.0])
def test_rows_that_no_longer_stay(number):
    """(2) What a step has made of a row is asked, too: the next step changes it."""
    args = list(arguments())
    args[4] = args[4].at[0, 0, 0].set(number)
    same(trained(STEPS["no epsilon"]), *args)
    args[1] = jnp.zeros_like(args[1]) + 1e-30
    same(trained(lambda p, a, g, r, o: (p + g / a, a - g)), *args)


@pytest.mark.parametrize("rate", [np.inf, np.nan, 0.0])
@pytest.mark.parametrize("step", [0, 2])
def test_rates_that_make_nan_of_zeros(rate, step):
    """(2) From outside, or of one step."""
    rates = jnp.ones(4).at[step].set(rate)
    same(trained(STEPS["rate from outside"]), *arguments(rates=rates))
    same(trained(lambda p, a, g, r, o: (p - r * g / a, a + g / r)), *arguments(rates=rates))


def test_arrays_from_outside():
    """(1, 2) A rate for each element."""

    def program(table, rates, ids, us):
        def one(p, x):
            g = jnp.zeros_like(p).at[x[0]].add(x[1])
            return p - rates * g, None

        return lax.scan(one, table, (ids, us))[0]

    table, rates, ids, _, us, *_ = arguments()
    for number in (1.0, np.inf):
        same(program, table, rates.at[100, 0].set(number), ids, us)


def rows(step, **options):
    """A loop that carries a table and a number for each row of it."""

    def program(table, kept, ids, others, us, vs, rates):
        outside, count = rates[:2], jnp.ones(N, jnp.int32)

        def one(carry, x):
            i, j, u, _, rate = x
            return step(*carry, i, j, u, rate, outside, options), None

        return lax.scan(one, (table, kept[:, 0], count), (ids, others, us, vs, rates))[0]

    return program


def averaged(p, a, n, i, j, u, r, o, options):
    hits = jnp.zeros_like(n).at[i].add(1, **options)
    total = jnp.zeros_like(p).at[i].add(u, **options)
    n = n + hits
    return p + (total - hits[:, None] * p) / jnp.maximum(n, 1)[:, None], a, n


def lazy(p, a, n, i, j, u, r, o, options):
    g = jnp.zeros_like(p).at[i].add(u, **options)
    changes = jnp.any(g != 0, axis=-1)
    a = jnp.where(changes, r + 0.9 * a, a)
    return jnp.where(changes[:, None], p - r * g / (a[:, None] + r), p), a, n


def limited(p, a, n, i, j, u, r, o, options):
    g = jnp.zeros_like(p).at[i].add(u, **options)
    g = g * jnp.minimum(1, 1 / (jnp.max(jnp.abs(g), axis=1) + a))[:, None]
    return p - o * g, a, n


def touched(p, a, n, i, j, u, r, o, options):
    here = jnp.zeros(N, bool).at[j].set(True, **options)
    g = jnp.zeros_like(p).at[i].add(u, **options)
    a = a + jnp.zeros_like(a).at[i].set(0.5, **options) * a
    p = jnp.where(here[:, None], p * a[:, None] + g, p + g * 0.25)
    return p, a, n + 2 * here.astype(n.dtype)


def aged(p, a, n, i, j, u, r, o, options):
    here = jnp.zeros(N, jnp.int32).at[i].add(1, **options) > 0
    return jnp.where(here[:, None], r * p, p), jnp.where(here, r, a), n


ROWS = {"aged": aged, "averaged": averaged, "lazy": lazy, "limited": limited, "touched": touched}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "number"), [("drop", n) for n in (1.0, 0.0, np.inf, np.nan)] + [("clip", 1.0)]
)
@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_a_number_for_each_row(step, mode, number):
    """(1, 2, 3) Arrays of other shapes, with the same rows; ops that lay them out, or pick of each;
    marks where rows are. Whatever the numbers of a row are of which the gradient is zero.
    """
    args = list(arguments())
    args[1] = args[1].at[200].set(number)
    after = same(rows(step, mode=mode), *args)
    scan, _ = loops(after)
    made = {op.name for op in scan.body.ops for v in op.results if v.shape[:1] == (N,)}
    assert made <= {"broadcast_in_dim", "scatter", "while"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["averaged", "lazy", "touched", "limited"])
def test_a_number_for_each_row_of_a_batch(name):
    """(1, 3) Rows lie along two axes: those of each table are its own."""
    args = [jnp.stack([each, each[::-1]]) for each in arguments()]
    program = jax.vmap(rows(ROWS[name]), (0, 0, 0, 0, 0, 0, None))
    same(program, *args[:-1], args[-1][0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [1.0, np.inf, np.nan])
def test_rows_that_are_marked_once(number):
    """(2) Elsewhere a select leaves the array as it is, whatever its numbers are: none is asked."""

    def program(table, kept, ids, us, rate):
        here = jnp.zeros(N, bool).at[ids].set(True)
        g = jnp.zeros_like(table).at[ids].add(us)
        changes = jnp.any(g * rate != 0, axis=1, keepdims=True)
        new = jnp.where(here[:, None], table * kept + g, table)
        return new, jnp.where(changes, kept / g, kept)

    table, kept, ids, _, us, *_ = arguments()
    given = ids[0], us[0], np.float32(number)
    after = same(program, table.at[9].set(number), kept.at[200, 1].set(number), *given)
    loops = [op for op in after.body.ops if isinstance(op, While)]
    assert len(loops) == 1 and not scans(after.body)


@pytest.mark.parametrize("number", [1.0, 0.0, np.inf, np.nan])
@pytest.mark.parametrize(
    "rates",
    [lambda o: o, lambda o: o * 2, lambda o: o[:1], lambda o: jnp.repeat(o[:1], N)[:, None]],
)
def test_one_row_for_all(rates, number):
    """(1) A rate for each column, made in the step or outside, or one; or a rate for each row."""

    def program(table, ids, us, given):
        outside = rates(given)

        def one(p, x):
            g = jnp.zeros_like(p).at[x[0]].add(x[1])
            return p - (outside + 0 * given[:1] if outside.ndim == 1 else outside) * g, None

        return lax.scan(one, table, (ids, us))[0]

    table, _, ids, _, us, *_ = arguments()
    same(program, table, ids, us, np.array([0.5, number], np.float32))


MORE = "does more than scale"
NO_ROWS = [
    pytest.param(lambda p, g, u, x: p - g / jnp.sum(g * g, 1)[:, None], "reads all", id="sum"),
    pytest.param(lambda p, g, u, x: p - g * jnp.max(g, 0), "reads all", id="columns"),
    pytest.param(lambda p, g, u, x: p - g * jnp.max(g, 1), "reads all", id="turned"),
    pytest.param(lambda p, g, u, x: p - (g + u[:1]), MORE, id="row added"),
    pytest.param(lambda p, g, u, x: p - (g + p[:1] * u[0, 0]), MORE, id="row of it added"),
    pytest.param(lambda p, g, u, x: p - g * u[0][:, None], "reads all", id="turned row"),
    pytest.param(
        lambda p, g, u, x: p - g * jnp.zeros_like(g).at[x].set(u), "reads all", id="set"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("step", "because"), NO_ROWS)
def test_rows_that_are_not_apart(step, because):
    """(1, 3) Sums of a row round otherwise; other rows; what one of several writes leaves."""

    def program(table, ids, us):
        def one(p, x):
            return step(p, jnp.zeros_like(p).at[x[0]].add(x[1]), x[1], x[0]), None

        return lax.scan(one, table, (ids, us))[0]

    types = "f32[256,256]", "i32[4,3]", "f32[4,3,256]"
    check_refuses(UPDATE, program, *types, because=because)


def summed(one, other):
    """What a loop of two results makes of two arrays."""
    given = one, jnp.zeros_like(other)
    return sum(lax.while_loop(lambda c: c[1][0, 0] < 9, lambda c: (c[0] + 1, c[1] + other), given))


@pytest.mark.parametrize("number", [np.inf, np.nan, 0.0, 2.0])
@pytest.mark.parametrize("step", [lambda p, g, n: p - g / n, lambda p, g, n: p - g * n])
def test_known_numbers_that_make_nan_of_zeros(step, number):
    """(2) Of all elements, as written; or it is known that they do (1)."""
    program = trained(lambda p, a, g, *_: step(p, g, np.float32(number)), state=False)
    with np.errstate(all="ignore"):
        changes = step(*np.zeros(2, np.float32), np.float32(number)) != 0
    same(program, *arguments(), fires=not changes or np.isnan(number))


def test_a_gradient_that_is_kept():
    """(1) As it is, beside the table."""

    def program(table, ids, us):
        def one(p, x):
            g = jnp.zeros_like(p).at[x[0]].add(x[1]) * p
            return p - g, g

        return lax.scan(one, table, (ids, us))

    table, _, ids, _, us, *_ = arguments()
    check_refuses(UPDATE, program, table, ids, us, because="other values depend")


def once(step, **options):
    """A step outside of loops, with a table whose gradient two ops make."""

    def program(table, kept, i, j, u, v, rate):
        zeros = jnp.zeros_like(table)
        return step(
            table, kept, zeros.at[i].add(u, **options) + zeros.at[j].add(v, **options), rate
        )

    return program


def scaled_by_finite(p, a, g, *_):
    """Adagrad of optax: a factor that is finite whatever the sums of squares are."""
    b = a + g * g
    return p - 0.1 * (lax.select(b > 0, lax.rsqrt(b + 1e-7), jnp.zeros_like(b)) * g), b


@pytest.mark.parametrize("number", [0.0, np.inf, np.nan, -1.0])
def test_factors_that_are_finite_whatever_they_are_made_of(number):
    """(2) Nothing is asked of them."""
    args = list(arguments())
    args[1] = args[1].at[200, 1].set(number)
    scan, whole = loops(same(trained(scaled_by_finite), *args))
    assert scan.num_carries == 2 and not whole
    table, kept, ids, others, us, vs, _ = args
    same(once(scaled_by_finite), table, kept, ids[2], others[2], us[2], vs[2], np.float32(0.5))


ONCE = {
    "descent": lambda p, a, g, r: p - 0.1 * g,
    "a rate": lambda p, a, g, r: (p - r * g, r),
    "divided": lambda p, a, g, r: p - g / r,
    "if it is finite": lambda p, a, g, r: jnp.where(jnp.isfinite(r), p - r * g, p),
    "or as it was": lambda p, a, g, r: jnp.where(r > 0.2, p, p - jnp.where(r < 1, r * g, 0)),
    "two tables": lambda p, a, g, r: (p + r * g, a - jnp.sign(g)),
    "added": lambda p, a, g, r: (p + g, a + g * 0.5),
}


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("step", ONCE.values(), ids=ONCE)
def test_arguments(step, rate):
    """(1, 2, 3) Rows of two ops, which may be the same; factors that make NaN of zeros."""
    table, kept, ids, others, us, vs, _ = arguments()
    for mode in ("clip", "drop"):
        given = ids[2], others[2], us[2], vs[2], np.float32(rate)
        after = same(once(step, mode=mode), table, kept, *given)
        large = {op.name for op in after.body.ops for v in op.results if v.shape == (N, 2)}
        assert large <= {"broadcast_in_dim", "scatter", "while"}


LATE = "read after the gradient is known"
REFUSED_ONCE = [
    (lambda p, a, g, r: (p - 0.1 * g, g), "other values depend"),  # (1)
    (lambda p, a, g, r: (p - 0.1 * g, p + g), "other values depend"),
    (lambda p, a, g, r: jnp.where(r > 0, p - 0.1 * g, a), "other values depend"),
    (lambda p, a, g, r: (p - 0.1 * g, jnp.sin(p[9] + r)), LATE),
    (lambda p, a, g, r: (p - 0.1 * g, p), LATE),
    (lambda p, a, g, r: p - (g + r), "other values depend"),
    (lambda p, a, g, r: (p - g / a, a + g), "takes as long as the test"),  # (2)
    (lambda p, a, g, r: p - a * g, "takes as long as the test"),
    (lambda p, a, g, r: p - jnp.where(a > 0, lax.rsqrt(a), 0) * g, "takes as long as the test"),
    (lambda p, a, g, r: p + g, "in place"),
]


@pytest.mark.parametrize(("step", "because"), REFUSED_ONCE)
def test_what_is_not_only_rows_of_arguments(step, because):
    table, kept, ids, others, us, vs, _ = arguments()
    given = ids[2], others[2], us[2], vs[2], np.float32(0.5)
    check_refuses(UPDATE, once(step), table, kept, *given, because=because)


def test_word_vectors():
    """A table that a loss reads in two places: no gradient as large as the table is made."""

    def train(table, i, j, rate):
        loss = lambda table: -jax.nn.log_sigmoid((table[i] * table[j]).sum(-1)).mean()
        return table - rate * jax.grad(loss)(table)

    args = jnp.sin(jnp.arange(16.0 * N)).reshape(2 * N, 8), IDS[0], IDS[3], np.float32(0.1)
    ours = optimize(jax.jit(train, donate_argnums=0))
    assert ours.lower(*args).compile().memory_analysis().temp_size_in_bytes < args[0].nbytes / 100
    want = jax.jit(train)(*args)
    assert_same_bits(ours(args[0].copy(), *args[1:]), want)


REFUSED = [
    pytest.param(lambda p, a, g, r, o: (p - 0.1 * (m := 0.9 * a + g), m), "change", id="momentum"),
    pytest.param(lambda p, a, g, r, o: (0.9 * p - g / a, a + g), "change", id="decay"),
    pytest.param(lambda p, a, g, r, o: (p - g / jnp.sum(g), a + g), "reads all", id="norm"),
    pytest.param(lambda p, a, g, r, o: (p - jnp.exp(g), a + g), "change", id="not zero"),
    pytest.param(lambda p, a, g, r, o: (p - jnp.maximum(g, 0.1), a + g), "change", id="clipped"),
    pytest.param(lambda p, a, g, r, o: (jnp.where(g == 0, a, p), a + g), "change", id="where zero"),
    pytest.param(lambda p, a, g, r, o: (p - a / g, a + g), "change", id="divided by"),
    pytest.param(lambda p, a, g, r, o: (p - g**-1, a + g), "change", id="inverse"),
    pytest.param(lambda p, a, g, r, o: (g - p, a + g), "change", id="subtracted from"),
    pytest.param(lambda p, a, g, r, o: (p + g, p + a * g), "change", id="of another"),
    pytest.param(lambda p, a, g, r, o: (p[::-1] + g, a + g), "reads all", id="moved"),
    pytest.param(lambda p, a, g, r, o: (p - summed(g, g * p), a + g), "reads all", id="a loop"),
    pytest.param(lambda p, a, g, r, o: (p - (a + g) / a, a + g), "change", id="quotient"),
    pytest.param(lambda p, a, g, r, o: (p - g / g, a + g), "change", id="divided by itself"),
    pytest.param(lambda p, a, g, r, o: (p - (a + g) ** 2, a + g), "change", id="square"),
    pytest.param(lambda p, a, g, r, o: (p - chosen(a, g), a + g), "change", id="chosen"),
    pytest.param(lambda p, a, g, r, o: (p - (g + 0.9 * a), a + g), "change", id="sum"),
    pytest.param(lambda p, a, g, r, o: (p * g, a + g), "change", id="product"),
    pytest.param(lambda p, a, g, r, o: (g + a, p + g), "change", id="exchanged"),
    pytest.param(lambda p, a, g, r, o: (g + a, a + g * p), "change", id="to another"),
    pytest.param(lambda p, a, g, r, o: ((a + g) + p, a + g), "change", id="sum before"),
    pytest.param(lambda p, a, g, r, o: (p - g * a, 0.5 * a), "combined", id="of another carry"),
    pytest.param(lambda p, a, g, r, o: (g * 2, (p, a))[1], "combined", id="for nobody"),
    pytest.param(lambda p, a, g, r, o: (p - g * (a + r), a + g), MORE, id="scalar added"),
    pytest.param(lambda p, a, g, r, o: (p - r * a * g, a + g), MORE, id="scalar times array"),
    pytest.param(lambda p, a, g, r, o: (p - (g + r), a + g), MORE, id="scalar plus zero"),
    pytest.param(lambda p, a, g, r, o: (p, jnp.where(g * p != 0, r, a + g)), MORE, id="maybe set"),
    pytest.param(lambda p, a, g, r, o: (p + (g - r), a + g), MORE, id="zero minus scalar"),
    pytest.param(lambda p, a, g, r, o: (p - a * (r / g), a + g), MORE, id="scalar by zero"),
    pytest.param(
        lambda p, a, g, r, o: (jnp.where(r > 2, p, p - g / a), a + g), "chooses", id="chosen by one"
    ),
]


@pytest.mark.parametrize(("step", "because"), REFUSED)
def test_what_is_not_only_rows(step, because):
    """(1)"""
    check_refuses(UPDATE, trained(step), *arguments(), because=because)


@pytest.mark.parametrize(
    ("gradient", "factor"),
    [
        # Columns, one for each row of what is turned.
        (lambda p, i, u: lax.reshape(p.at[:, i].add(u), p.shape, (1, 0)), lambda u: 1.0),
        # Single elements, times a number for each row.
        (
            lambda p, i, u: p.at[i, -i].add(u[0]),
            lambda u: lax.broadcast_in_dim(jnp.sin(u), (200, 200), (0,)),
        ),
    ],
)
def test_ops_that_mix_rows(gradient, factor):
    """(1)"""

    def program(p, places, us):
        def one(p, x):
            return p - gradient(jnp.zeros_like(p), *x) * p * factor(x[1]), None

        return lax.scan(one, p, (places, us))[0]

    check_refuses(UPDATE, program, "f32[200,200]", "i32[4]", "f32[4,200]", because="reads all of")


def test_a_number_for_each_column_of_another_array():
    """(1) Which has columns of its own."""

    def program(p, a, ids, us, vs):
        def one(carry, x):
            (p, a), (i, u, v) = carry, x
            g = jnp.zeros_like(p).at[i].add(u)
            return (p - g * p, a + jnp.max(g, 1, keepdims=True) * v), None

        return lax.scan(one, (p, a), (ids, us, vs))[0]

    types = "f32[9000,2]", "f32[9000,3]", "i32[4]", "f32[4,2]", "f32[4,3]"
    check_refuses(UPDATE, program, *types, because="has other rows than the gradient")


def test_windows_that_meet_in_part():
    """(3)"""

    def program(vector, starts, us):
        dims = lax.ScatterDimensionNumbers((1,), (), (0,))

        def one(p, x):
            g = lax.scatter_add(jnp.zeros_like(p), x[0], x[1], dims, mode="clip")
            return p - g * p, None

        return lax.scan(one, vector, (starts, us))[0]

    types = "f32[999]", "i32[4,3,1]", "f32[4,3,2]"
    check_refuses(UPDATE, program, *types, because="overlap in part")


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize("axes", [(None, None), (0, None), (0, 0)])
def test_slices_that_meet_in_part(sizes, axes):
    """(3) Of several rows; of a part of a row, or all of it, they are equal or disjoint."""

    def program(table, starts):
        def one(p, i):
            loss = lambda p: sum(
                jnp.sum(jnp.sin(lax.dynamic_slice(p, (at, at), sizes))) for at in (i, i + 1)
            )
            g = jax.grad(loss)(p)
            return p - g * jnp.maximum(g, 0), None

        return lax.scan(one, table, starts)[0]

    tables, starts = jnp.arange(32000.0).reshape(2, 8000, 2), jnp.array([[4, 99], [4, 5]])
    batched = program if axes[0] is None else jax.vmap(program, axes)
    args = [x if axis == 0 else x[0] for x, axis in zip((tables, starts), axes, strict=True)]
    same(batched, *args, fires=sizes[0] == 1)


@pytest.mark.slow
@pytest.mark.parametrize("compared", [1e-15, 1.0])
@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("index", [np.int32, np.int8, np.uint32])
def test_a_batch_of_tables(compared, mode, index):
    """(3) Each table has rows of its own, whether pairs of windows are compared, or marked; of
    more tables than a small index can number, too.
    """
    many = 130 if index is np.int8 else 2
    given = arguments(ids=np.clip(IDS, -128, 127).astype(index), others=OTHERS.astype(index))
    table, kept, ids, others, *rest = (jnp.stack([each] * many) for each in given)
    small = (each[:, :3000] * (1 + jnp.arange(many)[:, None, None]) for each in (table, kept))
    program = jax.vmap(trained(adagrad, mode=mode, wrap_negative_indices=False))
    with using(cost_model().but(predicate=compared, kernel=0.0)):
        same(program, *small, ids.at[1, 2].set(0), others, *rest)


def at_rows(step, *, rows=1):
    """A loop whose steps read one row of a table, or several, at places of their own."""

    def program(table, kept, ids, rates):
        def one(carry, x):
            i, rate = x
            loss = lambda p: sum(jnp.sum(jnp.sin((k + 1) * p[i[k]])) for k in range(rows))
            return step(*carry, jax.grad(loss)(carry[0]), rate), None

        return lax.scan(one, (table, kept), (ids, rates))[0]

    return program


AT_ROWS = {
    "adagrad": lambda p, a, g, r: ((p - r * g / (jnp.sqrt(b := a + g**2) + 1e-3)), b),
    "by column": lambda p, a, g, r: (p - (r * jnp.array([0.5, 2.0])) * g / (a + g * g), a + g * g),
    "divided": lambda p, a, g, r: (p - g / a / (r * jnp.array([0.5, 2.0])), a + g * g),
    "chosen by column": lambda p, a, g, r: (
        jnp.where(r * jnp.array([0.5, 2.0]) > 0.7, p - g / a, p),
        a + g * g,
    ),
}


@pytest.mark.parametrize(
    ("batch", "name", "rate"),
    crossed(["alone", "tables", "places"], AT_ROWS, [1.0, 0.0, np.inf, np.nan]),
)
def test_one_row_in_each_step(name, rate, batch):
    """(1, 2, 3) Also of each table of a batch, each with a rate, at the same place or another; and
    where two places are the same.
    """
    table, kept = (each[:4096] for each in arguments()[:2])
    rates, ids = jnp.ones(4).at[2].set(rate), jnp.array([[4, 4], [7, -1], [9999, 7], [-9999, 0]])
    fires = name != "chosen by column"
    for rows in (1, 2):
        program = at_rows(AT_ROWS[name], rows=rows)
        if batch == "alone":
            same(program, table, kept, ids, rates, fires=fires)
            continue
        many = jnp.stack([ids, ids[::-1] + 1])
        axes = 0, 0, 0 if batch == "places" else None, 0
        given = jnp.stack([rates, rates[::-1] / 2])
        two = (jnp.stack([each, 2 * each]) for each in (table, kept))
        places = many if batch == "places" else ids
        same(jax.vmap(program, axes), *two, places, given, fires=fires)


@pytest.mark.parametrize("number", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_rates_from_outside_of_a_batch(number, shape):
    """(1, 2) One for each table, or for each column of each."""

    def program(table, kept, ids, rate):
        step = lambda p, a, g, _: AT_ROWS["adagrad"](p, a, g, jnp.sin(rate))
        return at_rows(step)(table, kept, ids, jnp.ones(4))

    table, kept = (each[:4096] for each in arguments()[:2])
    two = [jnp.stack([each, 2 * each]) for each in (table, kept)]
    ids, rates = jnp.array([[4], [7], [4], [0]]), jnp.ones((2, *shape)).at[1].set(number)
    for axes in (None, 0):
        places = ids if axes is None else jnp.stack([ids, ids + 1])
        same(jax.vmap(program, (0, 0, axes, 0)), *two, places, rates)
    table, kept = (jnp.stack([each, 2 * each], 1) for each in (table, kept))
    same(jax.vmap(program, (1, 1, None, 0), 1), table, kept, ids, rates)


@pytest.mark.parametrize("index", [np.uint8, np.int8, np.uint32])
def test_places_of_one_row_in_other_types(index):
    """(3) They are clamped as a slice is."""
    table, kept = (each[:4096] for each in arguments()[:2])
    ids = jnp.array([[4], [255], [7], [127]]).astype(index)
    same(at_rows(AT_ROWS["adagrad"]), table, kept, ids, jnp.ones(4))


@pytest.mark.parametrize("axes", [(None, None), (0, None)])
def test_two_elements_of_one_row(axes):
    """(3) Their places have one number in common, or both."""

    def program(table, places):
        def one(carry, at):
            p, a = carry
            i, j, k = at
            g = jax.grad(lambda p: jnp.sin(p[i, j]) + 2 * jnp.cos(p[i, k]))(p)
            a = a + g**2
            return (p - 0.1 * g / (jnp.sqrt(a) + 1e-3), a), None

        return lax.scan(one, (table, jnp.zeros_like(table)), places)[0]

    tables = jnp.sin(jnp.arange(64000.0)).reshape(2, 8000, 4)
    places = jnp.array([[4, 0, 1], [7, 2, 2], [4, 1, 3], [-1, 0, 9]])
    args = (tables if axes[0] == 0 else tables[0]), places
    batched = program if axes[0] is None else jax.vmap(program, axes)
    same(batched, *args)
    assert_close(batched(*args), optimize(batched)(*args))


@pytest.mark.parametrize("axes", [(None, None), (0, None), (0, 0)])
def test_a_row_beside_several(axes):
    """(3) One word, and those that are drawn: some may be the same."""

    def program(table, ids):
        def one(p, i):
            loss = lambda p: jnp.sum(jnp.sin(p[i[0]] @ p[i[1:]].T))
            g = jax.grad(loss)(p)
            return p - 0.1 * g, None

        return lax.scan(one, table, ids)[0]

    ids = jnp.array([[4, 4, 7, 7], [250, 9, 250, 4], [0, 1, 2, 3]])
    tables, many = jnp.sin(jnp.arange(32000.0)).reshape(2, 8000, 2), jnp.stack([ids, ids + 1])
    batched = program if axes[0] is None else jax.vmap(program, axes)
    args = [x if axis == 0 else x[0] for x, axis in zip((tables, many), axes, strict=True)]
    same(batched, *args, fires=axes != (0, 0))


def test_windows_of_several_shapes():
    """(3)"""

    def program(table, ids, us):
        def one(p, x):
            zeros = jnp.zeros_like(p)
            return p - (zeros.at[x[0]].add(x[1]) + zeros.at[:, 1].add(x[1][0, 0])), None

        return lax.scan(one, table, (ids, us))[0]

    types = "f32[999,2]", "i32[4,3]", "f32[4,3,2]"
    check_refuses(UPDATE, program, *types, because="ops add windows of several shapes")


def test_arrays_that_are_read_late():
    def late(p, a, g, r, rs):
        return p - g / a + 0 * jnp.sum(a[g[0, 0].astype(int)]), a + g

    check_refuses(UPDATE, trained(late), *arguments(), because="reads all of scatter-add")


def test_a_gradient_that_an_op_of_several_results_reads():
    def program(table, ids, us):
        def one(p, x):
            g = jnp.zeros_like(p).at[x[0]].add(x[1])
            return p - jnp.concatenate(jnp.split(g, 2)[::-1]), None

        return lax.scan(one, table, (ids, us))[0]

    check_refuses(
        UPDATE, program, "f32[256,2]", "i32[4,3]", "f32[4,3,2]", because="reads all of scatter-add"
    )


def test_tables_that_are_computed_fast():
    """Cost: some twenty ops are started in the time that moving 30 kB takes."""
    args = [x[:256] if x.shape[0] == N else x for x in arguments()]
    check_refuses(UPDATE, trained(adagrad), *args, because="as fast as the ops")


@pytest.mark.parametrize(("ops", "rows", "fires"), [(1, 1, False), (8, 1, True), (8, 8, False)])
def test_a_gradient_that_many_ops_add_to(ops, rows, fires):
    """Cost: each makes an array of its own; for the rows, a sum of all that are added to."""

    def program(table, at):
        def one(p, i):
            zeros = jnp.zeros_like(p)
            parts = [zeros.at[i[k]].add(jnp.sin(p[i[k]])) for k in range(ops)]
            return p - 0.1 * sum(parts[1:], parts[0]), None

        return lax.scan(one, table, at)[0]

    at = jnp.arange(4 * ops * rows, dtype=jnp.int32).reshape(4, ops, rows) % 300
    args = jnp.ones((300, 16)), at
    if fires:
        same(program, *args)
    else:
        check_refuses(UPDATE, program, *args, because="as fast as the ops")


def test_all_elements_are_tested_in_blocks_of_rows():
    """Cost: XLA stores what it reduces, a byte for each element."""
    graph = import_jaxpr(traced(trained(adagrad), *arguments()), "final")
    run_alone((UPDATE,), graph)
    blocks = next(op for op in graph.body.ops if isinstance(op, Scan))
    assert blocks.length == -(-N // cost_model().block(2))
    assert all(v.nbytes < N for op in blocks.body.walk() for v in op.results if v.dtype == bool)


def test_small_tables():
    args = [x[:8] if x.shape[0] == N else x for x in arguments()]
    check_refuses(UPDATE, trained(adagrad), *args, because="as large as")


@pytest.mark.parametrize("step", [lambda p, a, g, *_: p + g, lambda p, a, g, *_: g + p])
def test_what_is_only_added(step):
    """XLA adds the windows to the carried array."""
    args = arguments()
    check_refuses(UPDATE, trained(step, state=False), *args, because="XLA adds to the rows")
    same(trained(lambda p, a, g, *_: (p + g, a + g)), *args)


def test_a_loop_of_one_step():
    args = (*arguments()[:2], *(rows[:1] for rows in arguments()[2:]))
    check_refuses(UPDATE, trained(adagrad), *args, because="as long as the test")


def test_the_whole_pipeline():
    """What a user writes: a loss that reads one table in two places."""

    def loss(table, i, j):
        return jnp.sum(jax.nn.softplus(-jnp.sum(table[i] * table[j], -1)))

    def train(table, ids, others):
        def step(carry, ij):
            p, a = carry
            g = jax.grad(loss)(p, *ij)
            a = a + g**2
            return (p - 0.1 * g / (jnp.sqrt(a) + 1e-8), a), None

        return lax.scan(step, (table, jnp.zeros_like(table)), (ids, others))[0]

    table = jax.random.normal(jax.random.key(0), (4000, 4))
    ids, others = np.abs(IDS), np.abs(IDS[::-1])
    fast = optimize(train)
    for one, other in zip(train(table, ids, others), fast(table, ids, others), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    ours, plain = (memory(each, table, ids, others) for each in (fast, train))
    assert ours <= 1.02 * plain + 1000
