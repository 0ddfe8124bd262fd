"""Every dtype of JAX, in programs of the kinds that passes rewrite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.bridge import dtypes

INTEGERS = ("int2", "int4", "int8", "int16", "int32", "uint2", "uint4", "uint8", "uint16", "uint32")
FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
FLOATS = (*(f"float8_{each}" for each in FLOAT8), "float4_e2m1fn", "bfloat16", "float16", "float32")
WIDE = ("int64", "uint64", "float64", "complex128")
NARROW = ("bool", *INTEGERS, *FLOATS, "complex64")
SOME = ("bool", "int4", "uint8", "float8_e4m3fn", "float8_e8m0fnu", "bfloat16", "complex64")
COUNTERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "int64", "uint64")
STEPS = 8


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("JAXPR_OPT_STRICT", "1")


def numbers(dtype, shape, seed=0):
    """Small numbers that all dtypes hold, of both signs where there are two."""
    drawn = np.random.default_rng(seed).integers(-2, 2, shape)
    least, most = dtypes.extremes(dtype) or (-2, 1)
    return jnp.asarray(np.clip(drawn, float(max(least, -2)), float(min(most, 1)))).astype(dtype)


def same(want, got):
    """The same bits, up to the sign of zero, leaf by leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(want)
    for (path, a), b in zip(leaves, jax.tree.leaves(got), strict=True):
        assert a.dtype == b.dtype
        plain = np.float32 if a.dtype.kind == "V" else a.dtype
        where = jax.tree_util.keystr(path)
        np.testing.assert_array_equal(np.asarray(b, plain), np.asarray(a, plain), where)


def check(program, *args):
    """The optimised program, compiled, gives the same bits, and nobody is warned."""
    quickly = {"xla_backend_optimization_level": 0}  # a third of the time
    plain, optimised = (jax.jit(f, compiler_options=quickly) for f in (program, optimize(program)))
    same(plain(*args), optimised(*args))


def updated(c, row):
    """A buffer for each way to write, written where the row says so."""
    xs, p, i = row
    for name, buffers in c.items():
        x = xs[name]
        c[name] = {w: jnp.where(p, getattr(b.at[i], w)(x), b) for w, b in buffers.items()}
    return c, {name: buffers["max"][i] for name, buffers in c.items()}


def buffers(dtype):
    """A buffer for each way that a dtype can be written."""
    ways = ("max", "min") if dtype == np.bool_ else ("max", "min", "add")
    return dict.fromkeys(ways, numbers(dtype, 5))


@pytest.mark.parametrize("names", [NARROW, WIDE], ids=["narrow", "wide"])
def test_buffers(names):
    """Carried, written under a predicate, read row by row."""
    with jax.enable_x64(names is WIDE):
        kinds = {name: jnp.dtype(name) for name in names}
        taken = jnp.arange(STEPS) % 3 > 0
        xs = {name: numbers(dtype, STEPS, 1) for name, dtype in kinds.items()}
        rows = xs, taken, jnp.arange(STEPS) % 5
        carried = {name: buffers(dtype) for name, dtype in kinds.items()}
        check(lambda c, rows: lax.scan(updated, c, rows), carried, rows)


def masked(c, row):
    """Arrays of each type, changed and read where a mask is true at one place, and mixed."""
    xs, i = row
    here = jnp.arange(5) == i
    one, read = {}, {}
    for name, array in c.items():
        zeros = jnp.zeros_like(array)
        one[name] = jnp.where(here, xs[name], array)
        if array.dtype != bool:
            mask = here.astype(array.dtype)
            one[name] = one[name] + jnp.where(here, xs[name], zeros) - mask
            one[name] = one[name] * (1 - mask) * (1 - xs[name]) + xs[name]
        read[name] = (
            jnp.any(one[name] & here) if array.dtype == bool else jnp.where(here, array, zeros)[0]
        )
    return one, read


@pytest.mark.parametrize("names", [NARROW, WIDE], ids=["narrow", "wide"])
def test_masks_of_one_place(names):
    """Where nothing is at times, and a difference from one is."""
    with jax.enable_x64(names is WIDE):
        c = {name: numbers(jnp.dtype(name), 5) for name in names}
        xs = {name: numbers(jnp.dtype(name), STEPS, 1) for name in names}
        check(lambda c, rows: lax.scan(masked, c, rows), c, (xs, jnp.arange(STEPS) - 2))


@pytest.mark.parametrize("names", [SOME, WIDE], ids=["narrow", "wide"])
def test_loops_that_stop(names):
    """What skipped steps of a batch keep and stack."""

    def program(c, xs, n):
        def step(c, row):
            i, x = row
            flip = lambda c: {k: jnp.where(x[k] == c[k], c[k], x[k]) for k in c}
            c = lax.cond(i < n, flip, lambda c: c, c)
            return c, (c, {k: jnp.where(i < n, x[k], c[k]) for k in c})

        return lax.scan(step, c, (jnp.arange(STEPS), xs))

    with jax.enable_x64(names is WIDE):
        kinds = {name: jnp.dtype(name) for name in names}
        c = {name: numbers(dtype, (2, 3)) for name, dtype in kinds.items()}
        xs = {name: numbers(dtype, (2, STEPS, 3), 1) for name, dtype in kinds.items()}
        check(jax.vmap(program), c, xs, jnp.array([2, 5]))


@pytest.mark.parametrize("reverse", [False, True])
def test_counters(reverse):
    """Streamed, carried and computed, ascending and descending, up to the limits of the dtype."""

    def step(xs, ys, c, i):
        up, down = c
        top = jnp.asarray(dtypes.limits(i.dtype)[1], i.dtype)
        counted = up, down, i * 3, i * 40, top - i, top - 3 + i
        read = xs[up], xs[down], xs[STEPS - i], ys.at[i].add(xs[up])[i]
        return (up + 1, down - 1), (read, counted)

    def program(xs, ys):
        starts = {name: (jnp.asarray(0, name), jnp.asarray(STEPS, name)) for name in COUNTERS}
        numbers = {name: jnp.arange(STEPS, dtype=name) for name in COUNTERS}

        def all_of_them(c, i):
            made = {name: step(xs, ys, c[name], i[name]) for name in COUNTERS}
            return {k: v[0] for k, v in made.items()}, {k: v[1] for k, v in made.items()}

        return lax.scan(all_of_them, starts, numbers, reverse=reverse)

    with jax.enable_x64(True):
        check(program, jnp.arange(9.0), jnp.ones(9))


def test_long_arrays():
    """Places that a uint8 holds, in an array whose size it does not.

    They are those that an int32 names: XLA clamps a place in its own type, in some fusions, and
    plain JAX is wrong there, too, on JAX 0.12.
    """

    def loss(places):
        def program(ys, xs):
            def step(c, row):
                i, x = row
                to, of = (i - 3).astype(places), (i - 5).astype(places)
                return c.at[to].set(x), c[of]

            c, read = lax.scan(step, ys, (jnp.arange(STEPS, dtype=jnp.uint8), xs))
            return jnp.sum(c * c) + jnp.sum(read * read)

        return jax.grad(program, (0, 1))

    args = jnp.arange(300.0), jnp.arange(8.0) + 1
    same(jax.jit(loss(jnp.int32))(*args), jax.jit(optimize(loss(jnp.uint8)))(*args))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "complex64", "float64"])
@pytest.mark.parametrize("above", [True, False])
def test_gradients(name, above):
    """Tables read and buffers written, in steps of which some are skipped."""

    def loss(table, xs):
        def step(c, row):
            i, x = row
            c = jnp.where(i % 3 > 0, c.at[i % 4].add(x * table[i % 5]), c)
            return lax.cond(i < 6, lambda c: c * table[0], lambda c: c, c), c[0]

        c, ys = lax.scan(step, table[:4], (jnp.arange(STEPS), xs))
        return jnp.sum(jnp.real(c)) + jnp.sum(jnp.real(ys))

    with jax.enable_x64(name in WIDE):
        dtype = jnp.dtype(name)
        args = numbers(dtype, 5), numbers(dtype, STEPS, 1)
        fun = optimize(jax.grad(loss, (0, 1))) if above else jax.grad(optimize(loss), (0, 1))
        same(jax.jit(jax.grad(loss, (0, 1)))(*args), jax.jit(fun)(*args))


def test_keys():
    """Arrays of keys, written, read and kept under a predicate."""

    def program(keys, taken):
        def step(c, row):
            i, p = row
            key = jax.random.fold_in(c[i], 1)
            c = jnp.where(p, c.at[i].set(key), c)
            return c, jax.random.bits(key)

        c, drawn = lax.scan(step, keys, (jnp.arange(4), taken))
        return jax.random.key_data(c), drawn

    check(program, jax.random.split(jax.random.key(0), 4), jnp.array([True, False, True, False]))


COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
LACKING = {
    ("bool", "mul"), *(("complex64", way) for way in ("mul", "min", "max")),
    *(("float8_e8m0fnu", way) for way in COMBINE),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("way", COMBINE)
def test_neutral(name, way):
    """It changes nothing, or there is none: 1 is 1 + 0i, there is no order, or no zero."""
    dtype = jnp.dtype(name)
    e = dtypes.neutral(dtype, way)
    assert (e is None) == ((name, way) in LACKING)
    if e is not None:
        ends = np.asarray(dtypes.extremes(dtype) or (-np.inf, np.inf)).astype(dtype)
        x = np.concatenate([np.asarray(numbers(dtype, 16)), ends])
        np.testing.assert_array_equal(COMBINE[way](x, np.full_like(x, e)), x)


@pytest.mark.parametrize("name", INTEGERS)
def test_wrapped(name):
    """Integers wrap around as XLA converts them."""
    dtype, wide = jnp.dtype(name), np.arange(-300, 300, 7)
    want = jnp.asarray(wide).astype(dtype)
    np.testing.assert_array_equal([dtypes.wrapped(dtype, int(n)) for n in wide], want)


@pytest.mark.parametrize("names", [NARROW, WIDE], ids=["narrow", "wide"])
def test_bytes(names):
    """What XLA says an array takes."""
    with jax.enable_x64(names is WIDE):
        for name in names:
            dtype = jnp.dtype(name)
            lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((33,), dtype))
            size = lowered.compile().memory_analysis().argument_size_in_bytes
            assert dtypes.nbytes((33,), dtype) == size, name
