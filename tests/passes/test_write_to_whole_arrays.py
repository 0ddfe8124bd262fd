"""A window that is read, written to and put back is written to the array."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.writes.write_to_whole_arrays import WriteToWholeArrays
from jaxpr_opt.testing import check_refuses, check_rewrite
from jaxpr_opt.testing.agreement import assert_close
from tests.loops import alone, measured

WHOLE = WriteToWholeArrays()
TYPES = "f32[3,8,2]", "f32[2]", "i32[]", "i32[]"
"""The caches of 3 layers, what is written, the layer, and where in it."""
ZERO = jnp.int32(0)


def get(a, i):
    return lax.dynamic_slice(a, (i, ZERO, ZERO), (1, 8, 2), allow_negative_indices=False)


def put(a, w, *at):
    at = (*at, *(ZERO for _ in range(a.ndim - len(at))))
    return lax.dynamic_update_slice(a, w, at, allow_negative_indices=False)


def drop(a, w, *at):
    return a.at[at].set(w, wrap_negative_indices=False)


def test_a_window_is_written_in_the_array():
    def program(a, v, i, t):
        w = put(get(a, i)[0], v[None], t)
        return put(a, w[None], i), jnp.sum(w)

    check_rewrite(
        WHOLE,
        program,
        *TYPES,
        simplify=True,
        diff="""
            fn (a:f32[3,8,2], v:f32[2], i:i32[], t:i32[]) {
          +   r1:f32[1,1,2] = reshape v
          +   d3:f32[3,8,2] = dynamic_update_slice a r1 i t 0
          -   d:f32[1,8,2] = dynamic_slice a i 0 0
          +   d:f32[1,8,2] = dynamic_slice d3 i 0 0
              s:f32[8,2] = squeeze d
          -   b:f32[1,2] = broadcast_in_dim v
          -   d1:f32[8,2] = dynamic_update_slice s b t 0
          -   b1:f32[1,8,2] = broadcast_in_dim d1
          -   d2:f32[3,8,2] = dynamic_update_slice a b1 i 0 0
          -   r:f32[] = reduce_sum[axes=(0, 1)] d1
          +   r:f32[] = reduce_sum[axes=(0, 1)] s
          -   return d2, r
          +   return d3, r
            }
        """,
    )


def put_row(w, v, t):
    return put(w, v[None], t)


def _known(a, v, t, write):
    w = write(a[1], v, t)
    return a.at[1].set(w), jnp.sum(w * w, 0)


def _clamped(a, v, i, t):
    w = put(get(a, i)[0], v[None], t)
    return put(a, w[None], i), jnp.sum(w * w, 0)


def _two(a, v, i, t):
    first = drop(a[0], v, t)
    second = drop(a[2], jnp.sum(first, 0), t)
    total = jnp.sum(second)
    return a.at[0].set(first).at[2].set(second), total


PROGRAMS = {
    "a known window": lambda a, v, i, t: _known(a, v, t, put_row),
    "a row that is dropped": lambda a, v, i, t: _known(a, v, t, drop),
    "a row that is added": lambda a, v, i, t: _known(
        a, v, t, lambda w, v, t: w.at[t].add(v, wrap_negative_indices=False)
    ),
    "a clamped window": _clamped,
    "an element": lambda a, v, i, t: _known(a, v[0], t, lambda w, v, t: drop(w, v, t, 1)),
    "several rows": lambda a, v, i, t: _known(a, jnp.stack([v, -v]), t, put),
    "windows of two layers": _two,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("i", [2, 5])
@pytest.mark.parametrize("t", [7, 8, -3])
def test_out_of_range_it_is_as_before(program, i, t):
    a = jnp.arange(48.0).reshape(3, 8, 2)
    arguments = a, jnp.array([50.0, 70.0]), jnp.int32(i), jnp.int32(t)
    fast = optimize(program, passes=[WHOLE])
    assert_close(fast(*arguments), program(*arguments))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_windows_of_many_kinds(program):
    alone(WHOLE, program, *TYPES, fires=True)


def _elsewhere(a, v, i, t):
    w = put_row(a[0], v, t)
    return a.at[1].set(w), jnp.sum(w)


def _dropped_but_clamped(a, v, i, t):
    w = put_row(get(a, i)[0], v, t)
    return drop(a, w, i), jnp.sum(w)


def _changed_since(a, v, i, t):
    w = put_row(a[1], v, t)
    return a.at[1:, 0].set(v).at[1].set(w), jnp.sum(w)


def _maybe_changed_since(a, v, i, t):
    w = put_row(a[1], v, t)
    return put(a, jnp.ones((1, 8, 2)), i).at[1].set(w), jnp.sum(w)


def _transposed(a, v, i, t):
    w = put_row(jnp.transpose(a[1]), jnp.ones(8), t)
    return a.at[1].set(jnp.transpose(w)), jnp.sum(w)


def _reordered(a, v, i, t):
    """A square window, put back with its axes in another order."""
    w = put_row(a[:, 1], jnp.ones(3), t)
    return a.at[0].set(w), jnp.sum(w)


FOREIGN = {
    "another window": (_elsewhere, TYPES),
    "one is dropped, one clamped": (_dropped_but_clamped, TYPES),
    "it is changed": (_changed_since, TYPES),
    "it may be changed": (_maybe_changed_since, TYPES),
    "it is transposed": (_transposed, TYPES),
    "it is of other axes": (_reordered, ("f32[3,3,3]", *TYPES[1:])),
}


@pytest.mark.parametrize(("program", "types"), FOREIGN.values(), ids=FOREIGN)
def test_other_windows_are_not_put_back(program, types):
    alone(WHOLE, program, *types, fires=False)


def _both_of_one_axis(a, v, i, t):
    w = put_row(a[1, 2:7], v, t)
    return a.at[1, 2:7].set(w), jnp.sum(w)


def _small_index(a, v, i, t):
    at = t, jnp.int8(0)
    w = lax.dynamic_update_slice(a[1], v[None], at, allow_negative_indices=False)
    return a.at[1].set(w), jnp.sum(w)


def _later(a, v, i, t):
    w = put_row(a[1], v, t)
    return a.at[0].set(w + 1.0).at[1].set(w), jnp.sum(w)


def _old_window(a, v, i, t):
    old = a[1]
    w = put_row(old, v, t)
    return a.at[1].set(w), jnp.sum(w * old)


def _old_array(a, v, i, t):
    w = put_row(a[1], v, t)
    return a.at[1].set(w), jnp.sum(a * w)


def _all_of_it(a, v, i, t):
    w = put(a[1], jnp.ones((7, 2)), t)
    return a.at[1].set(w), jnp.sum(w)


REFUSED = {
    "both windows are part of one axis": (_both_of_one_axis, TYPES),
    "the dtype of an index": (_small_index, ("f32[200,8,2]", *TYPES[1:3], "i8[]")),
    "the array is made after": (_later, TYPES),
    "the window is read as it was": (_old_window, TYPES),
    "the array is read as it was": (_old_array, TYPES),
    "most of the window": (_all_of_it, TYPES),
}


@pytest.mark.parametrize("because", REFUSED)
def test_it_is_refused(because):
    program, types = REFUSED[because]
    check_refuses(WHOLE, program, *types, because=because, simplify=True)


def test_old_windows_that_are_read_late():
    """(2) In a loop they may be read before the write; they are what they were."""

    def program(a, places, xs):
        def step(a, ix):
            i, x = ix
            old = a[1]
            w = old.at[i].set(x)
            read = lax.dynamic_index_in_dim(old, i, 0) + a[1, i] + a[0, i]
            return a.at[1].set(w), jnp.sum(read)

        return lax.scan(step, a, (places, xs))

    a = jnp.arange(48.0).reshape(3, 8, 2)
    args = a, jnp.array([3, 0, 7]), jnp.array([[9.0, 8.0], [7.0, 6.0], [5.0, 4.0]])
    alone(WHOLE, program, *args, fires=True)
    assert_close(jax.jit(program)(*args), optimize(program)(*args))


def decoder(write, read, put_back, layers=2, steps=64, d=4):
    """Decoding with the caches of all layers in one array."""

    def program(weights, xs, caches):
        def step(caches, t_and_x):
            t, x = t_and_x
            for layer in range(layers):
                cache = write(read(caches, layer), weights[layer] @ x, t)
                x = jnp.tanh(jax.nn.softmax(cache @ x) @ cache + x)
                caches = put_back(caches, cache, layer)
            return caches, x

        return jnp.sum(lax.scan(step, caches, (jnp.arange(steps), xs))[1] ** 2)

    return program, (
        jnp.cos(jnp.arange(layers * d * d * 1.0)).reshape(layers, d, d),
        jnp.sin(jnp.arange(steps * d * 1.0)).reshape(steps, d),
        jnp.zeros((layers, steps, d)),
    )


DECODERS = {
    "indices": decoder(
        lambda w, v, t: w.at[t].set(v), lambda a, i: a[i], lambda a, w, i: a.at[i].set(w)
    ),
    "slices": decoder(
        lambda w, v, t: lax.dynamic_update_slice(w, v[None], (t, 0)),
        lambda a, i: lax.dynamic_index_in_dim(a, i, keepdims=False),
        lambda a, w, i: lax.dynamic_update_index_in_dim(a, w, i, 0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments"), DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("batched", [False, True])
def test_the_gradient_of_decoding_stores_no_caches(program, arguments, batched):
    over = (lambda f: jax.vmap(f, (None, 0, 0))) if batched else lambda f: f
    weights, xs, caches = arguments
    if batched:
        arguments = weights, jnp.stack([xs, -xs]), jnp.stack([caches] * 2)
    plain = over(jax.grad(program, (0, 1)))
    wanted, usual = measured(plain, *arguments)
    for fast in (over(jax.grad(optimize(program), (0, 1))), optimize(plain)):
        given, used = measured(fast, *arguments)
        assert_close(given, wanted, rtol=1e-4)
        assert used < usual / 2
