"""A step that writes into a carried buffer and then reads windows of it does not copy it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.passes.in_place.read_after_writing import ReadAfterWriting
from jaxpr_opt.testing import check_refuses, check_rewrite, traced
from tests.loops import alone, memory
from tests.prices import EAGER

FENCED = ReadAfterWriting()
CACHE = ("f32[8]", "f32[4]")

MODEL = EAGER
"""Programs here are small, and about what is done where it helps."""

pytestmark = pytest.mark.usefixtures("barriers")


def read(c, i, n=2):
    return lax.dynamic_slice(c, (i,), (n,), allow_negative_indices=False)


def write(c, x, i):
    return lax.dynamic_update_slice(c, x, (i,), allow_negative_indices=False)


def stepping(step, of=lambda x, t: t):
    """A loop that hands a buffer through `step(c, x, t) -> c, y`; `t` counts."""

    def program(c, xs):
        def body(carry, x):
            c, t = carry
            c, y = step(c, x, of(x, t))
            return (c, t + 1), y

        (c, _), ys = lax.scan(body, (c, 1), xs)
        return c, ys

    return program


def squared(window):
    return window @ window


def cached(c, x, t):
    """Written at one place; what is before it is multiplied."""
    c = write(c, x[None], t)
    return c, squared(read(c, t - 1))


def test_a_cache():
    """(1, 2)"""
    check_rewrite(
        FENCED,
        stepping(cached),
        *CACHE,
        diff="""
          fn (c:f32[8], xs:f32[4]) {
            c1:f32[8], c2:i32[], ys:f32[4] = scan[4] carry(c=c, c1=1) xs(x=xs) {
              b:f32[1] = broadcast_in_dim x
              d:f32[8] = dynamic_update_slice c b c1
        +     o:f32[8] = optimization_barrier d
              s:i32[] = sub c1 1
        -     d1:f32[2] = dynamic_slice d s
        +     d1:f32[2] = dynamic_slice o s
              d2:f32[] = dot_general d1 d1
              a:i32[] = add c1 1
        -     yield carry(d, a) ys(d2)
        +     yield carry(o, a) ys(d2)
            }
            return c1, ys
          }
        """,
    )


def test_a_cache_where_barriers_are_dropped(dividing):
    """(4) The window is divided by one; of two, each."""

    def step(c, x, t):
        c, y = cached(c, x, t)
        return c, (y, squared(read(c, t + 1)))

    check_rewrite(
        FENCED,
        stepping(step),
        *CACHE,
        diff="""
          fn (c:f32[8], xs:f32[4]) {
            c1:f32[8], c2:i32[], ys:f32[4], ys1:f32[4] = scan[4] carry(c=c, c1=1) xs(x=xs) {
              b:f32[1] = broadcast_in_dim x
              d:f32[8] = dynamic_update_slice c b c1
              s:i32[] = sub c1 1
              d1:f32[2] = dynamic_slice d s
        +     b1:u32[2] = bitcast_convert_type[new_dtype=uint32] d1
        +     p:u32[2] = population_count b1
        +     b2:u32[2] = broadcast_in_dim 6
        +     s1:u32[2] = shift_right_logical p b2
        +     b3:u32[2] = broadcast_in_dim 1
        +     a2:u32[2] = add s1 b3
        +     d5:u32[2] = div b1 a2
        +     b4:f32[2] = bitcast_convert_type[new_dtype=float32] d5
        -     d2:f32[] = dot_general d1 d1
        +     d2:f32[] = dot_general b4 b4
              a:i32[] = add c1 1
              d3:f32[2] = dynamic_slice d a
        +     b5:u32[2] = bitcast_convert_type[new_dtype=uint32] d3
        +     p1:u32[2] = population_count b5
        +     b6:u32[2] = broadcast_in_dim 6
        +     s2:u32[2] = shift_right_logical p1 b6
        +     b7:u32[2] = broadcast_in_dim 1
        +     a3:u32[2] = add s2 b7
        +     d6:u32[2] = div b5 a3
        +     b8:f32[2] = bitcast_convert_type[new_dtype=float32] d6
        -     d4:f32[] = dot_general d3 d3
        +     d4:f32[] = dot_general b8 b8
              a1:i32[] = add c1 1
              yield carry(d, a1) ys(d2, d4)
            }
            return c1, ys, ys1
          }
        """,
    )


def of_two(c, x, t):
    """Written twice: the last counts."""
    return cached(write(c, jnp.zeros(2), t), x, t)


def scattered(c, x, t):
    c = c.at[t].set(x)
    return c, squared(read(c, t - 1))


def shown(c, x, t):
    c = write(c, x[None], t)
    return c, jnp.eye(2) @ jnp.reshape(read(c, t - 1), (2, 1))


def in_a_while(c, xs):
    def step(state):
        t, c, total = state
        c, y = cached(c, xs[t], t)
        return t + 1, c, total + y

    return lax.while_loop(lambda state: state[0] < 4, step, (0, c, 0.0))[1:]


FIRES = {
    "two writes": stepping(of_two),
    "in a while": in_a_while,
    "a scatter": stepping(scattered),
    "in another shape": stepping(shown),
    "at a place that is put together": stepping(cached, lambda x, t: jnp.stack([t, t - 1])[0]),
    "in a batch": jax.vmap(stepping(cached)),
}


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("case", FIRES)
def test_others(case, divided, monkeypatch):
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", not divided)
    args = ("f32[3,8]", "f32[3,4]") if case == "in a batch" else CACHE
    alone(FENCED, FIRES[case], *args, fires=True)


def before(c, x, t):
    return write(c, x[None], t), squared(read(c, t))


def whole(c, x, t):
    c = write(c, x[None], t)
    return c, squared(c)


def in_a_branch(c, x, t):
    c = write(c, x[None], t)
    return c, lax.cond(x < 1, lambda: squared(read(c, t)), lambda: 0.0)


def written_over(c, x, t):
    c, y = cached(c, x, t)
    return write(c, jnp.zeros(2), t), y


def computed_with(c, x, t):
    c = write(c, x[None], t)
    return c, squared(jnp.sin(read(c, t - 1)))


STAYS = {
    "of the version before": stepping(before),
    "all of it": stepping(whole),
    "in a branch": stepping(in_a_branch),
    "of a version that is overwritten": stepping(written_over),
    "not as it is": stepping(computed_with),
    "at a place from a stream": stepping(cached, lambda x, t: x.astype(int)),
    "at a place that is read": stepping(cached, lambda x, t: jnp.arange(8)[::-1][t]),
}


@pytest.mark.parametrize("program", STAYS.values(), ids=STAYS)
def test_other_reads(program):
    """(1, 2)"""
    alone(FENCED, program, *CACHE, fires=False)


def test_a_buffer_that_is_replaced():
    """(1)"""
    program = stepping(lambda c, x, t: cached(jnp.sort(c), x, t))
    check_refuses(FENCED, program, *CACHE, because="not one buffer throughout")


@pytest.mark.parametrize(("size", "fires"), [(1023, False), (1024, True)])
def test_a_small_buffer(size, fires):
    """(3) Copying it takes no longer than the step."""
    with using(CostModel()):
        alone(FENCED, stepping(cached), f"f32[{size}]", "f32[4]", fires=fires)


def test_only_at_the_end():
    """(4) A barrier in a differentiated program would be transposed, too."""
    program = traced(stepping(cached), *CACHE)
    assert not resolve([FENCED]).run(program, "differentiable").changed
    assert resolve([FENCED]).run(program, "final").changed


def test_not_in_a_loop():
    """(1) Outside of one there is one copy at most."""
    alone(FENCED, lambda c, xs: cached(c, xs[0], xs[1].astype(int)), *CACHE, fires=False)


def test_a_constant_place(dividing):
    """(4) What XLA must not find out does not hang on it."""

    def step(c, x, t):
        c = write(c, x[None], t)
        return c, squared(c[2:4])

    alone(FENCED, stepping(step), *CACHE, fires=True)


def test_on_a_mesh(dividing):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.PartitionSpec("i")

    def program(c, xs):
        run = stepping(cached)
        return jax.shard_map(run, mesh=mesh, in_specs=spread, out_specs=spread)(c, xs)

    alone(FENCED, program, *CACHE, fires=True)


def test_elements_of_half_a_byte(dividing):
    """(4)"""

    def program(c, xs):
        run = stepping(cached)
        return jax.tree.map(lambda x: x.astype("int8"), run(c.astype("int4"), xs.astype("int4")))

    check_refuses(
        FENCED, program, "i8[8]", "i8[4]", because="not of numbers that a division can fence"
    )


def test_not_on_other_devices(dividing, monkeypatch):
    """(4) They may divide again in each fusion."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    check_refuses(FENCED, stepping(cached), *CACHE, because="drops barriers")


@pytest.mark.parametrize("kept", {False, compat_devices.KEEPS_BARRIERS})
def test_the_copy_is_gone(kept, monkeypatch):
    """What it is all for: XLA's program has no copy of the buffer left in the loop, whichever fence
    keeps it away, of those that this XLA heeds.
    """
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", kept)
    args = jnp.zeros((1024, 8)), jnp.ones((4, 8))

    def step(c, x, t):
        c = lax.dynamic_update_slice(c, x[None], (t, 0), allow_negative_indices=False)
        return c, lax.dynamic_slice(c, (t - 1, 0), (2, 8), allow_negative_indices=False) @ x

    program = stepping(step)
    jaxpr = resolve([FENCED]).run(traced(program, *args), "final").jaxpr
    ours = jax.extend.core.jaxpr_as_fun(jaxpr)
    assert memory(program, *args) > args[0].nbytes > memory(ours, *args)


def test_while_it_may_be_differentiated():
    """(4) A barrier would be in the way of what is made of the transpose."""
    alone(FENCED, stepping(cached), *CACHE, fires=False, phase="differentiable")


def test_other_writes():
    """(3) Outside of loops, and of several windows."""

    def apart(c, x, t):
        c = c.at[jnp.stack([t, t + 1])].set(jnp.stack([x, x]))
        return c, squared(read(c, t))

    def outside(c, xs):
        c = write(c, xs, 1)
        return c, squared(read(c, 2))

    for program in (stepping(apart), outside):
        alone(FENCED, program, *CACHE, fires=False)
