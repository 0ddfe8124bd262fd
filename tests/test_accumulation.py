"""Gradients into mutable arrays: in place where JAX adds in place, and equal everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params

from jaxpr_opt import optimize
from jaxpr_opt.boundary.accumulation import onto
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.reports.diff import diff_graphs

TABLE = jnp.arange(80.0).reshape(20, 4) / 50
ROWS = jnp.array([1, 3, 1, 7, 2])
W = jnp.ones(4)


def one_row(t, i):
    return jnp.sum(jnp.sin(t[i[0]]))


def some_rows(t, i):
    return jnp.sum(jnp.sin(t[i]) * t[i + 1])


def static_rows(t, i):
    return jnp.sum(jnp.sin(t[2:4]) * t[i[0]])


def looped(t, i):
    step = lambda c, j: (jnp.tanh(c * t[j] + t[j + 1]), c[0])
    c, ys = lax.scan(step, W, i)
    return jnp.sum(c) + jnp.sum(ys)


def masked(t, i):
    step = lambda c, j: (jnp.where(j < 3, jnp.tanh(c * t[j]), c), None)
    return jnp.sum(lax.scan(step, W, i)[0])


def branched(t, i):
    step = lambda c, j: (lax.cond(j < 3, lambda c: jnp.tanh(c * t[j]), lambda c: c, c), None)
    return jnp.sum(lax.scan(step, W, i)[0])


def nested(t, i):
    def outer(c, j):
        inner = lambda c, k: (jnp.tanh(c * t[j + k]), None)
        return lax.scan(inner, c, jnp.arange(2))[0], None

    return jnp.sum(lax.scan(outer, W, i)[0])


def twice(t, i):
    return looped(t, i) * masked(t, i) + one_row(t, i)


PROGRAMS = [one_row, some_rows, static_rows, looped, masked, branched, nested, twice]


def into_a_ref(o, f):
    """The gradient of `f`, added to an array."""
    optimized = o(f)

    def run(t, i, total):
        ref = jax.new_ref(total)
        value, pull = jax.vjp(lambda t: optimized(t, i), t)
        pull.with_refs(ref)(1.0)
        return value, jax.freeze(ref)

    return run


def fresh_tables(jaxpr):
    """Names of equations that make a table of something else."""
    for eqn in jaxpr.eqns:
        is_table = lambda v: getattr(v.aval, "shape", None) == TABLE.shape
        if any(map(is_table, eqn.outvars)) and not any(map(is_table, eqn.invars)):
            yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from fresh_tables(inner)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_rows_are_added_in_place(f):
    """No table of zeros, in no step."""
    args = TABLE, ROWS, 1 + TABLE
    run = into_a_ref(optimize, f)
    jaxpr = jax.make_jaxpr(run)(*args)
    assert set(fresh_tables(jaxpr)) <= {"new_ref", "ref"}
    expected = f(TABLE, ROWS), 1 + TABLE + jax.grad(f)(TABLE, ROWS)
    for a, b in zip(expected, jax.jit(run)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def microbatches(o):
    """Gradients of many calls are added up in one array, as for large batches."""
    f = o(looped)

    def run(t, batches, total):
        ref = jax.new_ref(total)

        def step(_, i):
            value, pull = jax.vjp(lambda t: f(t, i), t)
            pull.with_refs(ref)(1.0)
            return None, value

        return lax.scan(step, None, batches)[1], jax.freeze(ref)

    return jax.jit(run)


def loop_around(o):
    """The gradient of a loop around the function."""
    f = o(one_row)
    return into_a_ref(jax.jit, lambda t, i: jnp.sum(lax.map(lambda j: f(t, j[None]), i)))


@pytest.mark.parametrize(
    ("run", "rows"), [(microbatches, jnp.stack([ROWS, ROWS + 1])), (loop_around, ROWS)]
)
def test_loops_around_carry_no_table_of_zeros(run, rows):
    args = TABLE, rows, 1 + TABLE
    assert set(fresh_tables(jax.make_jaxpr(run(optimize))(*args))) <= {"new_ref", "ref"}
    for a, b in zip(run(jax.jit)(*args), run(optimize)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_some_arguments_have_refs_and_others_none():
    f = lambda t, w: looped(t, ROWS) * jnp.sum(w * t[0])
    ref = jax.new_ref(TABLE)
    _, pull = jax.vjp(optimize(f), TABLE, W)
    _, rest = pull.with_refs(ref, jax.ad.GradValue())(1.0)
    of_table, of_w = jax.grad(f, (0, 1))(TABLE, W)
    np.testing.assert_allclose(rest, of_w, rtol=1e-6)
    np.testing.assert_allclose(ref[...], TABLE + of_table, rtol=1e-6)


def test_two_arguments_may_have_one_ref():
    """What is added for both is there; before JAX 0.12 a `jax.jit` of the function loses one."""
    f = lambda t, s: looped(t, ROWS) + one_row(s, ROWS)

    def run():
        ref = jax.new_ref(TABLE)
        jax.vjp(optimize(f), TABLE, TABLE)[1].with_refs(ref, ref)(1.0)
        return jax.freeze(ref)

    first, second = jax.grad(f, (0, 1))(TABLE, TABLE)
    np.testing.assert_allclose(jax.jit(run)(), TABLE + first + second, rtol=1e-6)


# ---------------------------------------------------------------- conditions


def added(f, *args):
    """The diff between a program and the one that adds its last output; they agree."""
    plain = jax.make_jaxpr(lambda *args: jax.tree.leaves(f(*args)))(*args)
    marks = [False] * (len(plain.out_avals) - 1) + [True]
    made = onto(plain, marks)
    base = np.arange(plain.out_avals[-1].size, dtype=np.float32).reshape(plain.out_avals[-1].shape)
    *others, last = jaxpr_as_fun(plain)(*args)
    *same, total = jaxpr_as_fun(made)(*args, base)
    np.testing.assert_allclose(total, base + last, rtol=1e-6)
    for a, b in zip(others, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return diff_graphs(import_jaxpr(plain), import_jaxpr(made)).to_text()


FIRST = jnp.int32(1)
U = jnp.array([2.0, 3.0])


def zeros():
    return jnp.zeros((4, 2))


def put(c, u, i):
    """Read a row, add to it, write it back."""
    start = i, np.int32(0)
    row = lax.dynamic_slice(c, start, (1, 2), allow_negative_indices=False)
    return lax.dynamic_update_slice(c, row + u[None], start, allow_negative_indices=False)


def with_sine(x):
    return jnp.sin(x), x


def of_branches(u):
    """A sum with what a conditional makes, which could add to an array by itself."""
    return zeros() + u + lax.cond(u[0] > 0, lambda: put(zeros(), u, FIRST), zeros)


def scattered(a):
    """An array that is added to, and that is added."""
    return a.at[jnp.array([2, 0, 1, 3])].add(a)


def written(a):
    """The same, by a slice that is all of it."""
    start = np.int32(0), np.int32(0)
    whole = lax.dynamic_slice_p.bind(a, *start, slice_sizes=a.shape)
    return lax.dynamic_update_slice_p.bind(a, whole + a, *start)


def test_a_gradient_of_two_arguments_that_is_added_to_one_ref():
    """Both have the same gradient."""

    def f(x, y):
        z = x + y
        return jnp.sum(lax.cond(z[0] > 0, jnp.sin, jnp.cos, z)) + jnp.sum(z**3)

    ref, args = jax.new_ref(U), (U, 3 * U)
    _, rest = jax.vjp(optimize(f), *args)[1].with_refs(ref, jax.ad.GradValue())(1.0)
    of_x, of_y = jax.grad(f, (0, 1))(*args)
    np.testing.assert_allclose(rest, of_y, rtol=1e-6)
    np.testing.assert_allclose(ref[...], U + of_x, rtol=1e-6)


def test_a_window_in_zeros():
    f = lambda u, i: ((), lax.dynamic_update_slice(zeros(), u[None], (i, np.int32(0))))
    for i in (1, -1, -9, 9):  # from the end, and out of range
        assert "broadcast_in_dim 0.0" not in after(added(f, U, jnp.int32(i)))


@pytest.mark.parametrize(
    "f",
    [
        lambda u, xs: ((), lax.scan(lambda c, x: (put(c, u, x), None), zeros(), xs)[0]),
        lambda u, xs: ((), zeros().at[xs].add(u[None]) + put(zeros(), u, FIRST)),
        lambda u, xs: ((), lax.cond(u[0] > 0, lambda: put(zeros(), u, FIRST), zeros)),
        lambda u, xs: (
            (),
            lax.scan(lambda c, x: (c + put(zeros(), u, x), None), put(zeros(), u, FIRST), xs)[0],
        ),
        lambda u, xs: ((), jax.checkpoint(lambda u: put(zeros(), u, FIRST))(u)),
    ],
    ids=["loop", "sum", "branches", "sum_in_loop", "checkpoint"],
)
def test_what_is_added_in_place(f):
    """No op adds two whole arrays any more."""
    assert "f32[4,2] = add" not in after(added(f, U, jnp.array([1, 3])))


@pytest.mark.parametrize(
    "f",
    [
        lambda u, xs: 2 * put(zeros(), u, FIRST),  # (1)
        lambda u, xs: (put(zeros(), u, FIRST)).at[xs].set(u),  # (1)
        lambda u, xs: with_sine(put(zeros(), u, FIRST)),  # (2)
        lambda u, xs: with_sine(lax.scan(lambda c, x: (put(c, u, x), None), zeros(), xs)[0]),  # (2)
        lambda u, xs: lax.scan(lambda c, x: (put(c, u, x), c), zeros(), xs)[::-1],  # (2), (4)
        lambda u, xs: lax.scan(lambda c, x: (put(c, u + c[0], x), None), zeros(), xs)[0],  # (4)
        lambda u, xs: lax.scan(lambda c, x: (c + put(c, u, x), None), zeros(), xs)[0],  # (4)
        lambda u, xs: lax.scan(lambda c, x: (c + c, None), put(zeros(), u, FIRST), xs)[0],  # (4)
        lambda u, xs: lax.scan(lambda c, x: (put(c, u, x), None), zeros() + u, xs)[0] * 1.5,  # (1)
        lambda u, xs: lax.scan(lambda c, x: (c, put(zeros(), u, x)), u, xs)[1][0],  # a stack
        lambda u, xs: (of_branches(u),) * 2,  # (2)
        lambda u, xs: jnp.add(*(of_branches(u),) * 2),  # (2)
        lambda u, xs: scattered(of_branches(u)),  # (2)
        lambda u, xs: written(of_branches(u)),  # (2)
    ],
)
def test_what_is_added_as_it_is(f):
    assert "f32[4,2] = add" in after(added(f, U, jnp.array([1, 3])))


def test_what_else_a_conditional_computes_may_be_added_to_it():
    """(3): the conditional comes first, whatever the order of the sum."""

    def f(u, xs):
        table, row = lax.cond(
            u[0] > 0, lambda: (put(zeros(), u, FIRST), u), lambda: (zeros(), 2 * u)
        )
        return (), put(zeros(), row, FIRST) + table

    assert "f32[4,2] = add" not in after(added(f, U, jnp.array([1, 3])))


def test_a_loop_that_comes_before_what_it_would_begin_with():
    """(3): one loop is added in place, and the other one as it is."""

    def f(u, xs):
        first = lax.scan(lambda c, x: (put(c, u, x), None), zeros(), xs)[0]
        second = lax.scan(lambda c, x: (put(c, 2 * u, x), None), zeros(), xs)[0]
        return (), first.at[xs].add(u) + second

    assert after(added(f, U, jnp.array([1, 3]))).count("f32[4,2] = add") == 1


def after(text):
    """The program after the change."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("-"))


def added_up(n):
    """A sum of so many terms."""
    return lambda x, y: sum((jnp.sin(y * k) for k in range(1, n)), jnp.sin(x))


def added_one_by_one(n):
    """So many rows, each added to what the one before was added to."""

    def f(x, i):
        rows = jnp.zeros(8)
        for k in range(n):
            rows = rows.at[i + k].add(x[k % 8])
        return rows

    return f


@pytest.mark.slow
@pytest.mark.parametrize(("made", "other"), [(added_up, jnp.ones(8)), (added_one_by_one, 1)])
def test_long_sums(made, other):
    """Sums in sums are followed so far that Python's stack has room for them."""
    args = jnp.arange(8.0), other
    same = jaxpr_as_fun(onto(jax.make_jaxpr(made(6))(*args), (True,)))(*args, jnp.ones(8))
    np.testing.assert_allclose(same[0], made(6)(*args) + 1, 1e-5)
    onto(jax.make_jaxpr(made(1200))(jnp.arange(8.0), other), (True,))
