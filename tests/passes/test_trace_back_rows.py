"""Rows of a carried buffer are rearranged after the loop, not in each step."""
# ruff: noqa: E501 - the parameters of a gather

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.passes.carried.trace_back_rows import TraceBackRows
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone

TRACE = TraceBackRows()
T, N = 24, 5


def paths(ancestors, values):
    """The paths of particles: of each step, the values of the ancestors of the last."""

    def step(paths, here):
        t, a, x = here
        return jnp.take(paths, a, axis=1, mode="clip").at[t].set(x), None

    return lax.scan(step, jnp.zeros((T, N)), (jnp.arange(T), ancestors, values))[0]


def test_paths():
    """(1, 2, 3)"""
    check_rewrite(
        TRACE,
        paths,
        "i32[24,5]",
        "f32[24,5]",
        diff="""
          fn (ancestors:i32[24,5], values:f32[24,5]) {
            b:f32[24,5] = broadcast_in_dim 0.0
            i:i32[24] = iota
        -   c:f32[24,5] = scan[24] carry(c=b) xs(x=i, x1=ancestors, x2=values) {
        +   ys:u8[24,5], ys1:f32[24,5] = scan[24] xs(x=i, x1=ancestors, x2=values) {
              b:i32[5,1] = broadcast_in_dim[dims=(0,)] x1
        -     g:f32[24,5] = gather[offset_dims=(0,), collapsed_slice_dims=(1,), start_index_map=(1,), slice_sizes=(24, 1), mode=clip] c b
              l:bool[] = lt x 0
              a:i32[] = add x 24
              s:i32[] = select_n l x a
              b1:i32[1] = broadcast_in_dim s
        -     s1:f32[24,5] = scatter[update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] g b1 x2
        +     i1:i32[5] = iota
        +     g1:i32[5] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=clip] i1 b
        +     c1:u8[5] = convert_element_type g1
        +     r:f32[1,5] = reshape x2
        +     s2:f32[5] = squeeze r
        -     yield carry(s1)
        +     yield ys(c1, s2)
            }
        +   i1:i32[5] = iota
        +   c1:i32[5], ys2:f32[24,5] = scan[24, reverse] carry(c1=i1) xs(x3=ys, x4=ys1) {
        +     b2:i32[5,1] = broadcast_in_dim[dims=(0,)] c1
        +     g1:f32[5] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=promise_in_bounds] x4 b2
        +     b3:i32[5,1] = broadcast_in_dim[dims=(0,)] c1
        +     g2:u8[5] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=promise_in_bounds] x3 b3
        +     c2:i32[5] = convert_element_type g2
        +     yield carry(c2) ys(g1)
        +   }
        -   return c
        +   return ys2
          }
        """,
    )


def loop(step, length=T, start=0, reverse=False):
    """A buffer that each step makes anew."""

    def program(buffer, indices, rows):
        def body(carry, here):
            return step(carry, *here), None

        xs = (jnp.arange(start, start + length), indices[:length], rows[:length])
        return lax.scan(body, buffer, xs, reverse=reverse)[0]

    return program


FOUND = {
    "filled": loop(lambda h, t, a, x: h.at[:, a].get(mode="fill").at[t].set(x)),
    "filled with a number": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="fill", fill_value=3).at[t].set(x)
    ),
    "not wrapped around": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="fill", wrap_negative_indices=False).at[t].set(x)
    ),
    "clamped": loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x)),
    "written first": loop(lambda h, t, a, x: h.at[t].set(x).at[:, a].get(mode="fill")),
    "twice, filled and clamped": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x).at[:, a[::-1]].get(mode="fill")
    ),
    "some rows written": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="fill").at[t].set(x), length=9, start=4
    ),
    "backwards": loop(lambda h, t, a, x: h.at[:, a].get(mode="fill").at[t].set(x), reverse=True),
    "descending": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="fill").at[T - 2 - t].set(x), length=9
    ),
    "the last row read": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="fill").at[t].set(x + h[t - 1]), length=9, start=1
    ),
    "the last row read, rearranged": loop(
        lambda h, t, a, x: (
            (g := h.at[:, a].get(mode="fill")).at[t].set(x * g[t - 1, ::-1] + h[t - 1, 2])
        ),
        length=9,
        start=3,
    ),
    "the next row read, backwards": loop(
        lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x + h[t + 1]),
        length=9,
        start=2,
        reverse=True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "bf16", "i8", "u16", "bool", "c64"])
@pytest.mark.parametrize("case", FOUND)
def test_same_bits(case, kind):
    """(1, 2, 3) With ancestors that are negative, or out of range."""
    program = lambda h, a, x: FOUND[case](h, a % 13 - 6, x)
    if kind == "bool":
        program = lambda h, a, x: FOUND[case](h, a % 13 - 6, x) ^ True
    alone(TRACE, program, f"{kind}[24,5]", "i32[24,5]", f"{kind}[24,5]", fires=True)


def test_two_buffers_are_traced_together():
    """Cost: one loop back, in which both read one array of places."""

    def program(a, x, y):
        def step(carry, here):
            (p, q), (t, a, x, y) = carry, here
            moved = jax.tree.map(lambda h: jnp.take(h, a, axis=1, mode="clip"), (p, q))
            return (moved[0].at[t].set(x), moved[1].at[t].set(y)), None

        buffers = jnp.zeros((T, N)), jnp.zeros((T, N, 3))
        return lax.scan(step, buffers, (jnp.arange(T), a, x, y))[0]

    types = [jax.ShapeDtypeStruct((T, N), k) for k in ("int32", "f")]
    fast = jaxpr_opt.optimize(program)
    text = str(jax.make_jaxpr(fast)(*types, jax.ShapeDtypeStruct((T, N, 3), "f")))
    assert text.count(" scan[") == 2


def beams(parents, tokens, axis_first):
    """Beams of a batch: the tokens so far, of the chosen parents."""

    def step(t, kept):
        p, tok = parents[:, t] % 4, tokens[:, t]
        if axis_first == "vmap":
            return jax.vmap(lambda s, p, k: s[p].at[:, t].set(k))(kept, p, tok)
        if axis_first == "two indices":
            return kept[jnp.arange(3)[:, None], p].at[:, :, t].set(tok)
        moved = jnp.take_along_axis(kept, p[:, :, None], axis=1)
        return lax.dynamic_update_slice(moved, tok[:, :, None], (0, 0, t))

    return lax.fori_loop(0, T, step, jnp.zeros((3, 4, T), int))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["vmap", "two indices", "along an axis"])
def test_beams(form):
    """(2) A batch of beams, each with parents of its own."""
    program = lambda p, t: beams(p, t, form)
    alone(TRACE, program, "i32[3,24,4]", "i32[3,24,4]", fires=True)


def test_many_places():
    """Places are numbered by integers as small as their number allows."""
    program = lambda n: (
        lambda a, x: lax.scan(
            lambda h, here: (h[:, here[1] % n].at[here[0]].set(here[2]), None),
            jnp.zeros((T, n)),
            (jnp.arange(T), a, x),
        )[0]
    )
    for n, small in (255, "u8"), (256, "u16"):
        graph = alone(TRACE, program(n), f"i32[24,{n}]", f"f32[24,{n}]", fires=True)
        assert f"{small}[24,{n}]" in to_text(graph)


def test_nested_loops():
    """The outer loop makes a buffer in each of its steps."""

    def program(a, x):
        return lax.scan(lambda c, here: (c + 1, paths(*here)), 0, (a, x))[1]

    alone(TRACE, program, "i32[3,24,5]", "f32[3,24,5]", fires=True)


def test_what_vmap_makes_of_it():
    alone(TRACE, jax.vmap(paths), "i32[3,24,5]", "f32[3,24,5]", fires=True)


def test_doubles():
    with jax.enable_x64(True):
        alone(TRACE, paths, "i64[24,5]", "f64[24,5]", fires=True)


def test_weak_types_stay():
    def program(a):
        start = lax.full_like(jnp.asarray(1.0), 2.0, shape=(T, N)) * 1.0
        step = lambda h, here: (h.at[:, here[1]].get(mode="clip").at[here[0]].set(2.0), None)
        return lax.scan(step, start, (jnp.arange(T), a))[0]

    alone(TRACE, program, "i32[24,5]", fires=True)


STAYS = {
    "(1) all of it is read": (
        loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x + h.sum(0))),
        "reads the buffer as a whole",
    ),
    "(1) what is written is read": (
        loop(lambda h, t, a, x: jnp.tanh(h.at[:, a].get(mode="clip").at[t].set(x))),
        "or replaces it",
    ),
    "(1) an older row is read": (
        loop(
            lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x + h[t - 2]),
            length=9,
            start=2,
        ),
        "other rows of the buffer than the last",
    ),
    "(1) it is read when it has been written": (
        loop(
            lambda h, t, a, x: (
                (w := h.at[t].set(x)).at[:, (a + (w[t - 1] > 0)) % N].get(mode="clip")
            ),
            length=9,
            start=1,
        ),
        "other rows of the buffer than the last",
    ),
    "(1) two rows are written": (
        loop(
            lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x).at[t + 1].set(x), length=9
        ),
        "more than one row",
    ),
    "(1) it is added to": (
        loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].add(x)),
        "more than one row",
    ),
    "(2) other rows change places": (
        loop(lambda h, t, a, x: h.at[jnp.roll(jnp.arange(T), a[0])].get(mode="clip").at[t].set(x)),
        "rearrange all rows",
    ),
    "(2) filled differently": (
        loop(
            lambda h, t, a, x: (
                h.at[:, a]
                .get(mode="fill", fill_value=1)
                .at[:, a]
                .get(mode="fill", fill_value=2)
                .at[t]
                .set(x)
            )
        ),
        "filled differently",
    ),
    "(3) out of range": (
        loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t].set(x), start=1),
        "may be out of range",
    ),
    "(3) at a place from the data": (
        loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[a[0]].set(x)),
        "may be out of range",
    ),
    "(3) every second row": (
        loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[2 * t].set(x), length=9),
        "one after the other",
    ),
    "(3) a part of a row": (
        loop(lambda h, t, a, x: h.at[:, a].get(mode="clip").at[t, 1:3].set(x[:2])),
        "one whole row",
    ),
    "(3) no steps": (
        lambda h, a, x: lax.scan(
            lambda c, _: ((c[0].at[:, a[0]].get(mode="clip").at[c[1]].set(x[0]), c[1] + 1), None),
            (h, 0),
            length=0,
        )[0][0],
        "no steps",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_stays(case):
    program, because = STAYS[case]
    program_of = lambda h, a, x: program(h, a % 13 - 6, x)
    if because:
        check_refuses(TRACE, program_of, "f32[24,5]", "i32[24,5]", "f32[24,5]", because=because)
    else:
        alone(TRACE, program_of, "f32[24,5]", "i32[24,5]", "f32[24,5]", fires=False)


def test_few_rows_stay():
    """Cost: rearranging six rows is as quick as storing where they are from."""
    program = lambda a, x: lax.fori_loop(
        0, 6, lambda t, h: h.at[:, a[t]].get(mode="clip").at[t].set(x[t]), jnp.zeros((6, N))
    )
    check_refuses(TRACE, program, "i32[6,5]", "f32[6,5]", because="a large part of the buffer")


def test_gradients():
    """Of the optimised program, and of the program; and forward-mode."""
    rng = np.random.default_rng(0)
    a, x = jnp.asarray(rng.integers(-8, 8, (T, N))), jnp.asarray(rng.normal(size=(T, N)))
    weights = jnp.arange(float(T * N)).reshape(T, N)
    loss = lambda x, f: jnp.sum(jnp.sin(f(a, x)) * weights)
    fast = jaxpr_opt.optimize(paths)
    want = jax.grad(loss)(x, paths)
    np.testing.assert_allclose(jax.grad(loss)(x, fast), want, rtol=1e-5)
    np.testing.assert_allclose(
        jaxpr_opt.optimize(jax.grad(lambda x: loss(x, paths)))(x), want, rtol=1e-5
    )
    for found, wanted in zip(
        jax.jvp(lambda x: fast(a, x), (x,), (x,)),
        jax.jvp(lambda x: paths(a, x), (x,), (x,)),
        strict=True,
    ):
        np.testing.assert_array_equal(found, wanted)


def test_the_whole_pipeline_traces_back():
    """No step of the optimised program touches the buffer."""
    text = str(jax.make_jaxpr(jaxpr_opt.optimize(paths))(jnp.zeros((T, N), int), jnp.ones((T, N))))
    assert "u8[24,5]" in text
