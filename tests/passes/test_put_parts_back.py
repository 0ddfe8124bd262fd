"""Parts of an array that are written to and put together again are put back into it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.writes.put_parts_back import PutPartsBack
from jaxpr_opt.testing import assert_same_derivatives, check_refuses, check_rewrite
from jaxpr_opt.testing.agreement import assert_close
from tests.loops import alone, measured, memory

BACK = PutPartsBack()
TYPES = "f32[3,8,2]", "f32[1,2]", "i32[]"
"""The caches of 3 layers, what is written, and where."""
ZERO = jnp.int32(0)


def put(w, v, t):
    return lax.dynamic_update_slice(w, v, (t, ZERO), allow_negative_indices=False)


def test_a_part_is_put_back():
    check_rewrite(
        BACK,
        lambda a, v, t: lax.concatenate([put(a[0], v, t)[None], a[1:]], 0),
        *TYPES,
        simplify=True,
        diff="""
              fn (a:f32[3,8,2], v:f32[1,2], t:i32[]) {
                s:f32[1,8,2] = slice[:1, :, :] a
                s1:f32[8,2] = squeeze s
                d:f32[8,2] = dynamic_update_slice s1 v t 0
            -   b:f32[1,8,2] = broadcast_in_dim d
            -   s2:f32[2,8,2] = slice[1:, :, :] a
            -   c:f32[3,8,2] = concatenate[dimension=0] b s2
            +   r:f32[1,8,2] = reshape d
            +   d1:f32[3,8,2] = dynamic_update_slice a r 0 0 0
            -   return c
            +   return d1
              }
        """,
    )


def _two(a, v, t):
    """A part is written to twice and read between, another one after it."""
    first = put(put(a[0], v, t), v + 1.0, 2)
    second = put(a[2], first[3:4], t)
    return jnp.stack([first, a[1], second]), jnp.sum(first * second)


def _nested(a, v, t):
    """Keys and values of each layer, stacked in the layer and then together."""
    caches = a.reshape(3, 2, 4, 2)
    made = [jnp.stack([put(layer[0], v, t), put(layer[1], -v, t)]) for layer in caches]
    return jnp.stack(made), sum(jnp.sum(each) for each in made)


def _rows(a, v, t):
    """Parts along the second axis: as many elements come before it."""
    parts = [a[:, :3], a[:, 3:4].at[t].set(v), a[:, 4:]]
    return jnp.concatenate(parts, 1), jnp.sum(parts[1])


def _scattered(a, v, t):
    w = a[1].at[t].add(v[0])
    return jnp.concatenate([a[:1], w[None], a[2:]]), jnp.sum(w)


def _read_first(a, v, t):
    """Rows of the array are read before it is written."""
    row = lax.dynamic_index_in_dim(a[1], t, 0)
    w = put(a[0], v * row, t)
    return jnp.stack([w, a[1], a[2]]), jnp.sum(w)


PROGRAMS = {
    "read first": _read_first,
    "two": _two,
    "nested": _nested,
    "rows": _rows,
    "scattered": _scattered,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_parts_of_many_kinds(program):
    alone(BACK, program, *TYPES, fires=True)
    a, v = jnp.arange(48.0).reshape(3, 8, 2), jnp.array([[50.0, 70.0]])
    for t in map(jnp.int32, (-1, 2, 9)):
        assert_close(optimize(program, passes=[BACK])(a, v, t), program(a, v, t))


def _step_place(a, v, t):
    """The second part is one or two, by the step."""

    def step(total, i):
        second = lax.dynamic_index_in_dim(a, i + 1, 0, False)
        return total + jnp.stack([put(a[0], v, t), second, a[2]]), None

    return lax.scan(step, jnp.zeros_like(a), jnp.arange(2))[0]


def _crossed(a, v, t):
    """Parts that change places before they are together as large as the array."""
    left = jnp.stack([put(a[0, :2], v, t), a[1, 2:], a[2, :2]])
    return jnp.concatenate([left, jnp.stack([a[0, 2:], a[1, :2], a[2, 2:]])], 1)


def _batched(a, v, t):
    """Rows that are read with their axes in another order."""
    read = jax.vmap(lambda x, i: x[i], (1, 0))(a, jnp.zeros(2, int))
    return jnp.stack([put(read, v, t), a[1]])


def _turned(a, v, t):
    """The same, at a known place."""
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,), (2,), (0,))
    read = lax.gather(a, np.zeros((2, 1), "int32"), numbers, (1, 2, 1), mode="clip")
    return jnp.stack([put(read, v, t), a[1]])


def _stacked(*order):
    return lambda a, v, t: jnp.stack([put(a[i], v, t) if i == 0 else a[i] for i in order])


FOREIGN = {
    "not all parts": (_stacked(0, 1), TYPES),
    "another shape": (lambda a, v, t: jnp.concatenate([put(a[0], v, t), a[1], a[2]]), TYPES),
    "another order": (_stacked(0, 2, 1), TYPES),
    "a part twice": (_stacked(0, 1, 1), TYPES),
    "a part of another array": (
        lambda a, v, t: jnp.stack([put(a[0], v, t), a[1], jnp.cos(a)[2]]),
        TYPES,
    ),
    "an unknown place": (
        lambda a, v, t: jnp.stack([put(a[0], v, t), lax.dynamic_index_in_dim(a, t, 0, False)]),
        ("f32[2,8,2]", *TYPES[1:]),
    ),
    "a place of the step": (_step_place, TYPES),
    "crossed": (_crossed, ("f32[3,4,2]", *TYPES[1:])),
    "of a batch": (_batched, ("f32[2,2,2]", *TYPES[1:])),
    "turned": (_turned, ("f32[2,2,2]", *TYPES[1:])),
    "transposed": (
        lambda a, v, t: jnp.stack([put(a[0].T, v, t), a[1]]),
        ("f32[2,2,2]", *TYPES[1:]),
    ),
    "along another axis": (
        lambda a, v, t: jnp.stack([put(a[0], v, t), a[1]], 1),
        ("f32[2,2,2]", *TYPES[1:]),
    ),
    "of two axes": (
        lambda a, v, t: jnp.stack([put(a[0, :2], v, t), a[1, 2:]]),
        ("f32[2,4,2]", *TYPES[1:]),
    ),
}


@pytest.mark.parametrize(("program", "types"), FOREIGN.values(), ids=FOREIGN)
def test_other_parts_are_not_put_back(program, types):
    alone(BACK, program, *types, fires=False)


def _old_part(a, v, t):
    w = put(a[0], v, t)
    return jnp.stack([w, a[1], a[2]]), jnp.sum(w * a[0])


def _old_version(a, v, t):
    once = put(a[0], v, t)
    twice = put(once, v, 2)
    return jnp.stack([twice, a[1], a[2]]), jnp.sum(twice * once)


REFUSED = {
    "the array is read as it was": lambda a, v, t: (_stacked(0, 1, 2)(a, v, t), jnp.sum(a)),
    "a part is read as it was before": _old_version,
    "most of a part": lambda a, v, t: _stacked(0, 1, 2)(a, jnp.ones((7, 2)), t),
}


@pytest.mark.parametrize("because", REFUSED)
def test_refused(because):
    check_refuses(BACK, REFUSED[because], *TYPES, because=because, simplify=True)


def test_a_part_that_is_read_before_it_is_written_stays():
    check_refuses(BACK, _old_part, *TYPES, because="a part is read as it was", simplify=True)


def stepping(step):
    """A loop that carries an array of parts, and writes at places of the data."""

    def program(c, places, xs):
        return lax.scan(lambda c, ix: step(c, *ix), c, (places, xs))

    return program


def _late(c, i, x):
    """What a part was is read after the next version is written, in the text of the step."""
    a, b = c[:, 0], c[:, 1]
    new = a.at[i].set(x)
    old = a[i + 1] * b[i]
    return jnp.stack([new, b.at[i].add(old)], 1), old


def _added(c, i, x):
    """The transpose of slices: each part in zeros where the others are."""
    a, b = c[:2], c[2:5]
    v = b[0, i]
    first = lax.pad(a.at[1, i].set(x), 0.0, [(0, 4, 0), (0, 0, 0)])
    second = lax.pad(b.at[i % 3, 2].set(2 * x), 0.0, [(2, 1, 0), (0, 0, 0)])
    return lax.add(lax.add(second, first), lax.pad(c[5:], 0.0, [(5, 0, 0), (0, 0, 0)])), v


STEPS = {"late": (_late, (24, 2)), "added": (_added, (6, 24))}


@pytest.mark.parametrize(("step", "shape"), STEPS.values(), ids=STEPS)
def test_parts_of_what_a_loop_carries(step, shape):
    """(3) Old windows stay what they were; the buffer is updated in place."""
    c = jnp.sin(jnp.arange(float(shape[0] * shape[1]))).reshape(shape)
    places, xs = jnp.array([3, 0, 22, 7]), jnp.cos(jnp.arange(4.0))
    program = stepping(step)
    alone(BACK, program, c, places, xs, fires=True)
    loss = lambda c, xs: sum(map(jnp.sum, map(jnp.sin, program(c, places, xs))))
    assert_same_derivatives(loss, optimize(loss), c, xs)
    assert_close(jax.jit(program)(c, places, xs), optimize(program)(c, places, xs))


def test_a_buffer_of_two_columns_stays_in_place():
    c, places, xs = jnp.ones((4000, 2)), jnp.arange(4), jnp.ones(4)
    program = stepping(_late)
    loss = lambda c: jnp.sum(program(c, places, xs)[1])
    assert memory(optimize(program), c, places, xs) < 0.1 * c.nbytes
    assert memory(optimize(jax.grad(loss)), c) < 1.1 * c.nbytes


LOW = [(0, 4, 0), (0, 0, 0)]
"""How the first two of six rows are padded."""

PADDED = {
    "tiles": (lambda c: lax.pad(c[2:], 0.0, [(2, 0, 0), (0, 0, 0)]), True),
    "one over another": (lambda c: lax.pad(c[2:], 0.0, [(1, 1, 0), (0, 0, 0)]), False),
    "numbers in between": (
        lambda c: (
            lax.pad(c[2:4], 0.0, [(2, 1, 1), (0, 0, 0)])
            + lax.pad(c[4:], 0.0, [(4, 0, 0), (0, 0, 0)])
        ),
        False,
    ),
    "along two axes": (lambda c: lax.pad(c[2:, 1:], 0.0, [(2, 0, 0), (1, 0, 0)]), False),
    "along another axis": (
        lambda c: lax.pad(c[2:], 0.0, [(2, 0, 0), (1, -1, 0)]),
        False,
    ),
}


@pytest.mark.parametrize(("rest", "fires"), PADDED.values(), ids=PADDED)
def test_padded_parts(rest, fires):
    """(3) They tile the array, or stay."""
    step = lambda c, i, x: (lax.pad(c[:2].at[1, i].set(x), 0.0, LOW) + rest(c), x)
    alone(BACK, stepping(step), "f32[6,24]", "i32[3]", "f32[3]", fires=fires)


def test_a_part_that_is_added_twice():
    """(3) They are no parts side by side."""

    def step(c, i, x):
        first = lax.pad(c[:2].at[1, i].set(x), 0.0, [(0, 4, 0), (0, 0, 0)])
        again = lax.pad(jnp.full((2, 24), x), 0.0, [(0, 4, 0), (0, 0, 0)])
        return (first + again) + lax.pad(c[2:], 0.0, [(2, 0, 0), (0, 0, 0)]), x

    alone(BACK, stepping(step), "f32[6,24]", "i32[3]", "f32[3]", fires=False)


def test_parts_around_another_number():
    """(3) Where the others are must be zeros."""
    step = lambda c, i, x: (
        lax.pad(c[:2].at[1, i].set(x), 1.0, [(0, 4, 0), (0, 0, 0)])
        + lax.pad(c[2:], 0.0, [(2, 0, 0), (0, 0, 0)]),
        x,
    )
    alone(BACK, stepping(step), "f32[6,24]", "i32[3]", "f32[3]", fires=False)


@pytest.mark.slow
def test_a_decoder_writes_its_caches_in_place():
    """https://github.com/keras-team/keras-hub/pull/2781: a cache of layers, keys and values."""

    def decode(w, x):
        def step(carry, t):
            x, caches = carry
            new = []
            for layer in range(2):
                keys, values = caches[layer]
                keys, values = put(keys, (x @ w[layer])[None], t), put(values, x[None], t)
                new.append(jnp.stack([keys, values]))
                x = jnp.tanh(x + jax.nn.softmax(keys @ x) @ values)
            return (x, jnp.stack(new)), x

        return jnp.sum(lax.scan(step, (x, jnp.zeros((2, 2, 64, 8))), jnp.arange(64))[1] ** 2)

    plain, fast = jax.grad(decode), jax.grad(optimize(decode))
    arguments = jnp.ones((2, 8, 8)) / 8, jnp.ones(8)
    wanted, usual = measured(plain, *arguments)
    given, used = measured(fast, *arguments)
    assert_close(given, wanted)
    assert used < usual / 4


def test_an_array_that_is_read_outside_of_the_branch():
    """It is needed as it was after the branch, but not before it."""

    def program(a, v, t, after):
        before = jnp.sum(a[1])
        whole = lambda: jnp.stack([put(a[0], v, t), a[1], a[2]])
        made = lax.cond(t > 1, whole, lambda: jnp.zeros_like(a))
        return made, jnp.sum(a) if after else before

    alone(BACK, partial(program, after=False), *TYPES, fires=True)
    alone(BACK, partial(program, after=True), *TYPES, fires=False)
