"""A step that reads a carried buffer and then overwrites it does not copy it."""
# ruff: noqa: E501 - the parameters of a scatter

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.passes.in_place.read_before_overwriting import ReadBeforeOverwriting
from jaxpr_opt.testing import check_refuses, check_rewrite, traced
from tests.loops import alone, memory
from tests.prices import EAGER

BARRED = ReadBeforeOverwriting()
PLACES = ("f32[8]", "i32[4]", "i32[4]")

MODEL = EAGER
"""Programs here are small, and about what is done where it helps."""

pytestmark = pytest.mark.usefixtures("barriers")


def read(c, i, n=2):
    return lax.dynamic_slice(c, (i,), (n,), allow_negative_indices=False)


def write(c, x, i):
    return lax.dynamic_update_slice(c, x, (i,), allow_negative_indices=False)


def stepping(step):
    """A loop that hands a buffer through `step(c, i, j) -> c, y`."""
    return lambda c, i, j: lax.scan(lambda c, ij: step(c, *ij), c, (i, j))


def moved(c, i, j):
    """Read at one place, for the caller too, and written at another."""
    x = read(c, i)
    return write(c, x, j), x


def test_a_window_moves():
    """(1, 2, 3) Read at one place, for the caller too, and written at another."""
    check_rewrite(
        BARRED,
        stepping(moved),
        *PLACES,
        diff="""
          fn (c:f32[8], i:i32[4], j:i32[4]) {
            c1:f32[8], ys:f32[4,2] = scan[4] carry(c=c) xs(x=i, x1=j) {
              d:f32[2] = dynamic_slice c x
        +     o:f32[2], o1:f32[8] = optimization_barrier d c
        -     d1:f32[8] = dynamic_update_slice c d x1
        +     d1:f32[8] = dynamic_update_slice o1 o x1
        -     yield carry(d1) ys(d)
        +     yield carry(d1) ys(o)
            }
            return c1, ys
          }
        """,
    )


def test_all_windows_of_a_version_are_read_first():
    """(2) One is read for the caller, and after the write."""

    def step(c, i, j):
        d = write(c, jnp.sin(read(c, i)), j)
        return d, read(c, i + 1)

    check_rewrite(
        BARRED,
        stepping(step),
        *PLACES,
        diff="""
          fn (c:f32[8], i:i32[4], j:i32[4]) {
            c1:f32[8], ys:f32[4,2] = scan[4] carry(c=c) xs(x=i, x1=j) {
              d:f32[2] = dynamic_slice c x
        -     s:f32[2] = sin d
        -     d1:f32[8] = dynamic_update_slice c s x1
              a:i32[] = add x 1
              d2:f32[2] = dynamic_slice c a
        +     o:f32[2], o1:f32[2], o2:f32[8] = optimization_barrier d d2 c
        +     s1:f32[2] = sin o
        +     d3:f32[8] = dynamic_update_slice o2 s1 x1
        -     yield carry(d1) ys(d2)
        +     yield carry(d3) ys(o1)
            }
            return c1, ys
          }
        """,
    )


def test_two_writes():
    """(1) The version in between is read as well: XLA would write twice rather than wait."""

    def step(c, i, j):
        d = c.at[j].set(0, mode="drop")
        return moved(d, i, j)

    check_rewrite(
        BARRED,
        stepping(step),
        *PLACES,
        diff="""
          fn (c:f32[8], i:i32[4], j:i32[4]) {
            c1:f32[8], ys:f32[4,2] = scan[4] carry(c=c) xs(x=i, x1=j) {
              l:bool[] = lt x1 0
              a:i32[] = add x1 8
              s:i32[] = select_n l x1 a
              b:i32[1] = broadcast_in_dim s
              s1:f32[8] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b 0.0
        +     o:f32[8] = optimization_barrier s1
        -     d:f32[2] = dynamic_slice s1 x
        +     d:f32[2] = dynamic_slice o x
        +     o1:f32[2], o2:f32[8] = optimization_barrier d o
        -     d1:f32[8] = dynamic_update_slice s1 d x1
        +     d1:f32[8] = dynamic_update_slice o2 o1 x1
        -     yield carry(d1) ys(d)
        +     yield carry(d1) ys(o1)
            }
            return c1, ys
          }
        """,
    )


def test_something_is_added_to_the_whole():
    """(1, 3) XLA would fuse the addition with the write, and so with the read."""

    def step(c, i, j):
        return write(c, jnp.sin(read(c, i)), i) + j, None

    check_rewrite(
        BARRED,
        stepping(step),
        *PLACES,
        diff="""
          fn (c:f32[8], i:i32[4], j:i32[4]) {
            c1:f32[8] = scan[4] carry(c=c) xs(x=i, x1=j) {
              d:f32[2] = dynamic_slice c x
              s:f32[2] = sin d
              d1:f32[8] = dynamic_update_slice c s x
        +     o:f32[8] = optimization_barrier d1
              c1:f32[] = convert_element_type x1
        -     a:f32[8] = add d1 c1
        +     a:f32[8] = add o c1
              yield carry(a)
            }
            return c1
          }
        """,
    )


def test_two_arrays_are_updated_whole_and_in_part():
    """(1, 3) The transpose of a step that reads a buffer whole."""

    def program(c, d, i, j):
        def step(carry, ij):
            c, d = carry
            i, j = ij
            x = read(c, i)
            c = write(c, jnp.zeros(2), i) + x[0]
            d = write(d, read(d, j) + x, j) + x[1] * c
            return (c, d), None

        return lax.scan(step, (c, d), (i, j))

    graph = alone(BARRED, program, "f32[8]", *PLACES, fires=True)
    barred = [len(op.results) for op in graph.walk() if op.name == "optimization_barrier"]
    assert barred == [2, 1, 1]


def test_the_place_of_a_read_was_read():
    """(2) What is read on the way to the last read needs no barrier."""

    def step(c, i, j):
        k = read(c, i, 1)[0]
        return write(c, read(c, k), j), k

    check_rewrite(
        BARRED,
        stepping(step),
        "i32[8]",
        *PLACES[1:],
        diff="""
          fn (c:i32[8], i:i32[4], j:i32[4]) {
            c1:i32[8], ys:i32[4] = scan[4] carry(c=c) xs(x=i, x1=j) {
              d:i32[1] = dynamic_slice c x
              s:i32[] = squeeze d
              d1:i32[2] = dynamic_slice c s
        +     o:i32[1], o1:i32[2], o2:i32[8] = optimization_barrier d d1 c
        -     d2:i32[8] = dynamic_update_slice c d1 x1
        +     d2:i32[8] = dynamic_update_slice o2 o1 x1
              yield carry(d2) ys(s)
            }
            return c1, ys
          }
        """,
    )


def test_a_batch_of_ring_buffers():
    """(2) Gathered and scattered, each row at its own place."""

    def rollout(c, i, j):
        return stepping(lambda c, i, j: (c.at[j % 8].set(jnp.sin(c[i])), c[i]))(c, i, j)

    graph = alone(BARRED, jax.vmap(rollout), "f32[3,8]", "i32[3,4]", "i32[3,4]", fires=True)
    assert sum(op.name == "optimization_barrier" for op in graph.walk()) == 1


def cleared(c, i, j):
    """Several elements are read, and others are cleared."""
    x = c.at[i].get(mode="clip", wrap_negative_indices=False)
    return c.at[j].set(0.0, mode="clip", wrap_negative_indices=False), x


def test_several_windows():
    """(1, 2) One op reads them and one writes them."""
    check_rewrite(
        BARRED,
        stepping(cleared),
        "f32[8]",
        "i32[4,3]",
        "i32[4,3]",
        diff="""
          fn (c:f32[8], i:i32[4,3], j:i32[4,3]) {
            c1:f32[8], ys:f32[4,3] = scan[4] carry(c=c) xs(x=i, x1=j) {
              b:i32[3,1] = broadcast_in_dim[dims=(0,)] x
              g:f32[3] = gather[collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1,), mode=clip] c b
        +     o:f32[3], o1:f32[8] = optimization_barrier g c
              b1:i32[3,1] = broadcast_in_dim[dims=(0,)] x1
              b2:f32[3] = broadcast_in_dim 0.0
        -     s:f32[8] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] c b1 b2
        +     s:f32[8] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] o1 b1 b2
        -     yield carry(s) ys(g)
        +     yield carry(s) ys(o)
            }
            return c1, ys
          }
        """,
    )


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda c, i, j: (c.at[j].add(c[i]), c[i]), id="added to"),
        pytest.param(lambda c, i, j: (c.at[j].set(0.0), c[i]), id="cleared"),
        pytest.param(lambda c, i, j: (c.at[j[0]].set(0.0), c[i]), id="one is written"),
        pytest.param(lambda c, i, j: (c.at[j].set(0.0), c[i[0]]), id="one is read"),
        pytest.param(lambda c, i, j: (c.at[i].set(jnp.sin(c[i])), c[j]), id="those, and others"),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_windows_here_and_there(step, kept, monkeypatch):
    """At places out of range and twice at one, too."""
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", kept)
    places = jnp.array([[0, 5, 5], [4999, 5000, -1], [2, 2, 2], [9999, -9000, 7]], jnp.int32)
    args = jnp.arange(5000.0), places, places[::-1, ::-1]
    alone(BARRED, stepping(step), *args, fires=True)


def test_windows_that_are_most_of_the_buffer():
    """(4) The fence would move as much as the copy."""
    alone(BARRED, stepping(cleared), "f32[8]", "i32[4,8]", "i32[4,8]", fires=False)


@pytest.mark.parametrize(
    ("n", "windows", "fires"), [(2000, 9, True), (1000, 9, False), (2000, 900, False)]
)
def test_many_windows_where_barriers_are_dropped(dividing, n, windows, fires):
    """(4) Each number is divided, and a copy of few takes no longer."""
    places = f"i32[4,{windows}]"
    with using(CostModel()):
        alone(BARRED, stepping(cleared), f"f32[{n}]", places, places, fires=fires)


@pytest.mark.parametrize(("n", "fires"), [(200, False), (5000, True)])
def test_a_batch_where_barriers_are_dropped(dividing, n, fires):
    """(4) The places of a batch are several, too."""
    program = jax.vmap(stepping(lambda c, i, j: (write(c, jnp.ones(2), j), read(c, i))))
    with using(CostModel()):
        alone(BARRED, program, f"f32[3,{n}]", "i32[3,4]", "i32[3,4]", fires=fires)


def test_several_windows_by_a_function():
    """XLA does not write those one by one."""
    step = lambda c, i, j: (c.at[j].apply(jnp.sin), c[i])
    alone(BARRED, stepping(step), "f32[32]", "i32[4,3]", "i32[4,3]", fires=False)


def test_a_window_that_is_combined():
    """(1) It is read for another array."""

    def step(c, i, j):
        return c.at[i].multiply(0.5, mode="clip"), c[i]

    alone(BARRED, stepping(step), *PLACES, fires=True)


def test_in_a_while():
    def program(c, i, n):
        def step(state):
            t, c, _ = state
            return t + 1, *moved(c, i, t)

        return lax.while_loop(lambda state: state[0] < n, step, (0, c, c[:2]))

    # It runs for long on random arguments.
    alone(BARRED, program, jnp.arange(8.0), jnp.int32(3), jnp.int32(4), fires=True)


def test_sums_and_products_of_single_numbers():
    """(3) XLA computes them where they are read, so that a row is read for two writes."""

    def step(tables, i, j, k):
        one, two = tables
        x, y = (lax.dynamic_slice(c, (at, 0), (1, 8)) for c, at in ((one, i), (two, j)))
        u, v = jnp.sum(x, 0), jnp.sum(y, 0)
        both = u @ v
        x, y = x + jnp.tensordot(v, k, 0) * both, y + jnp.tensordot(u, k, 0) * both
        one = lax.dynamic_update_slice(one, x, (i, 0))
        return (one, lax.dynamic_update_slice(two, y, (j, 0))), None

    program = lambda one, two, *xs: lax.scan(lambda c, x: step(c, *x), (one, two), xs)
    types = "f32[999,8]", "f32[999,8]", "i32[3]", "i32[3]", "f32[3]"
    alone(BARRED, program, *types, fires=True)


@pytest.mark.parametrize(("again", "fires"), [(jnp.sin, True), (jnp.cumsum, False)])
def test_a_loop_after_the_write(again, fires):
    """(1) It may run no step, and hands on the buffer if each step does."""

    def step(c, i, j):
        x = read(c, i)
        c = write(c, x, j)
        done = lambda state: (False, again(state[1]))
        return lax.while_loop(lambda state: state[0], done, (j > 99, c))[1], x

    alone(BARRED, stepping(step), *PLACES, fires=fires)


def test_a_read_that_a_branch_uses():
    """What is inside of other ops reads the barred value too."""

    def step(c, i, j):
        x = read(c, i)
        y = lax.cond(j > 2, lambda: jnp.sin(x), lambda: x * 2)
        return write(c, y, j), x

    alone(BARRED, stepping(step), *PLACES, fires=True)


def test_a_buffer_that_a_branch_writes_to():
    """(1) Both branches hand on the same buffer."""

    def step(c, i, j, taken=write, otherwise=lambda c, x, j: c):
        d = lax.cond(i > 1, lambda: taken(c, jnp.ones(2), i), lambda: otherwise(c, jnp.ones(2), j))
        return write(d, jnp.sin(read(d, i)), j), read(d, i)

    alone(BARRED, stepping(step), *PLACES, fires=True)
    other = partial(step, otherwise=lambda c, x, j: c[::-1])
    alone(BARRED, stepping(other), *PLACES, fires=False)


def test_a_buffer_that_is_replaced():
    """(1) There is nothing to be done in place."""
    check_refuses(
        BARRED,
        stepping(lambda c, i, j: (jnp.sort(write(c, read(c, i), j)), read(c, i))),
        *PLACES,
        because="not one buffer throughout the step",
    )


@pytest.mark.parametrize(
    "neighbours",
    {
        "shifted": lambda c: jnp.roll(c, 1),
        "at the ends there are none": lambda c: jnp.pad(c[1:], (0, 1)),
        "reversed": lambda c: c[::-1] * 2,
    }.values(),
)
def test_a_stencil(neighbours):
    """(1) It reads other elements than it makes: XLA does not make it in place of the array."""

    def step(c, i, j):
        new = c + neighbours(c)
        return new.at[j].add(1.0, mode="clip"), read(new, i)

    check_refuses(BARRED, stepping(step), *PLACES, because="not one buffer throughout the step")


def test_what_one_element_makes():
    """(1) It is added to all others: it is a number, read before."""

    def step(c, i, j):
        new = c + c[0]
        return new.at[j].add(1.0, mode="clip"), read(new, i)

    alone(BARRED, stepping(step), *PLACES, fires=True)


def test_two_buffers_that_swap():
    """(1) What is overwritten is the other's at the end of the step."""

    def program(c, d, i, j):
        def step(carry, ij):
            c, d = carry
            c, x = moved(c, *ij)
            return (d, c), x

        return lax.scan(step, (c, d), (i, j))[0]

    check_refuses(
        BARRED,
        program,
        "f32[8]",
        *PLACES,
        because="not one buffer throughout the step",
    )


@pytest.mark.parametrize(
    ("step", "reader"),
    [
        (lambda c, i, j: (write(c, read(c, i), j), jnp.sum(c)), "reduce_sum"),
        (lambda c, i, j: (write(c, read(c, i), j), c), "yield"),
        (lambda c, i, j: (write(c, read(c, i), j), c[::2]), "slice"),
    ],
)
def test_a_buffer_that_is_read_whole(step, reader):
    """(2) The copy is needed, or the reader makes one."""
    check_refuses(BARRED, stepping(step), *PLACES, because=f"{reader} reads all of ")


def test_a_buffer_that_is_read_in_a_branch():
    """(2) It is read before, if the write needs what the branch makes; a fence would not order it."""

    def step(c, i, j, needed):
        x = lax.cond(i > 2, lambda: read(c, i), lambda: jnp.zeros(2))
        return write(c, x if needed else jnp.ones(2), j), (read(c, i + 1), x)

    alone(BARRED, stepping(lambda *xs: step(*xs, True)), *PLACES, fires=True)
    unneeded = stepping(lambda *xs: step(*xs, False))
    check_refuses(BARRED, unneeded, *PLACES, because="is read inside a cond")


@pytest.mark.parametrize("counts", [True, False])
def test_a_loop_that_overwrites(counts, dividing):
    """(2, 5) The first number of the loop waits for the read."""

    def step(c, i, j):
        more = lambda c, k: (write(c, jnp.sin(read(c, j)), k), None)
        ahead = lambda n, c: more(c, j + n)[0]
        new = lax.fori_loop(0, 3, ahead, c) if counts else lax.scan(more, c, jnp.arange(3))[0]
        return new, read(c, i)

    program = stepping(step)
    if counts:
        alone(BARRED, program, *PLACES, fires=True)
    else:
        check_refuses(BARRED, program, *PLACES, because="nothing that scan begins with can wait")


@pytest.mark.parametrize("kept", {False, compat_devices.KEEPS_BARRIERS})
@pytest.mark.parametrize("later", [False, True])
def test_no_copy_before_an_inner_loop(kept, later, monkeypatch):
    """What it is for; it does not matter which comes first in a step."""
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", kept)

    def step(c, i):
        seen = c[i]
        new = lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1].at[i + s[0]].add(s[1][i])), (0, c)
        )[1]
        return new, c[i] if later else seen

    program = lambda c, i: lax.scan(step, c, i)
    args = jnp.zeros(8192), jnp.arange(4)
    assert memory(optimize(program), *args) < args[0].nbytes < memory(program, *args)


def test_a_place_that_depends_on_the_write():
    """(2) The old version is read where the new one tells: both are needed."""

    def step(c, i, j):
        d = write(c, read(c, i), j)
        return d, read(c, read(d, i, 1)[0])

    check_refuses(BARRED, stepping(step), "i32[8]", *PLACES[1:], because="depends on the write")


def test_a_place_that_must_stay():
    """(2) The place of the read is known behind another op, and a barrier."""

    def step(c, i, j):
        y = jnp.sin(j)
        i, y = lax.optimization_barrier((i, y))
        c, x = moved(c, i, j)
        return c, (x, y)

    alone(BARRED, stepping(step), *PLACES, fires=True)

    def behind(c, i, j):
        y = jnp.sin(j)
        c, x = moved(c, lax.optimization_barrier(i), j)
        return c, (x, y)

    check_refuses(BARRED, stepping(behind), *PLACES, because="cannot move")


@pytest.mark.parametrize(
    "step",
    [
        lambda c, i, j: (write(c, jnp.sin(read(c, i)), i), i),
        lambda c, i, j: (write(c, jnp.sin(read(c, i)) + read(c, j), j), None),
        lambda c, i, j: (c.at[i].add(c[j]), None),
        lambda c, i, j: (write(c, jnp.ones(2), read(c, i, 1)[0].astype(int)), None),
        lambda c, i, j: (write(c, jnp.ones(2), i) + 1, None),
    ],
)
def test_what_is_read_for_the_write_alone(step):
    """(3) XLA orders them by itself: there is nothing to find."""
    alone(BARRED, stepping(step), *PLACES, fires=False)


@pytest.mark.parametrize("combined", [jnp.array, jnp.negative, lambda x: jnp.sin(x) + x])
def test_several_windows_that_the_write_needs(combined):
    """(3) XLA does not repeat a read of several windows, as it does one of a single window: what
    else needs what is read does not make it copy the buffer.
    """

    def step(c, i, j):
        x = combined(c[j])
        return c.at[i].add(x), x

    args = jnp.arange(5000.0), *(jnp.arange(12, dtype=jnp.int32).reshape(4, 3) for _ in range(2))
    alone(BARRED, stepping(step), *args, fires=False)
    alone(BARRED, stepping(step), args[0], args[1][:, 0], args[2][:, 0], fires=True)
    assert memory(stepping(step), *args) < args[0].nbytes


@pytest.mark.parametrize(
    ("combined", "fires"),
    [
        (lambda a: jax.nn.logsumexp(jnp.stack([a, 2 * a, 3 * a]), axis=0), True),
        (lambda a: jnp.max(jnp.concatenate([a[None], 2 * a[None]]), axis=0), True),
        (lambda a: jnp.max(jnp.stack([a, 2 * a]), axis=1), False),
        (lambda a: jnp.max(jnp.concatenate([a, 2 * a]), keepdims=True).repeat(2), False),
    ],
)
def test_the_greatest_of_some_values(combined, fires):
    """(3) Of rows that are put beside each other, XLA computes it wherever it is needed: 100 steps
    copied 2 MB each.
    """

    def step(c, i, j):
        x = combined(read(c, j))
        return write(c, x, i), x

    places = (jnp.arange(12, dtype=jnp.int32) for _ in range(2))
    alone(BARRED, stepping(step), jnp.arange(5000.0), *places, fires=fires)


@pytest.mark.parametrize(
    ("weighed", "fires"),
    [
        (lambda d: d * jnp.exp(-jnp.sum(d * d)), False),
        (lambda d: d * jnp.sum(d), False),
        (lambda d: d / (jnp.max(jnp.abs(d)) + 1), False),
        (lambda d: d * jnp.where(jnp.sqrt(jnp.sum(d * d)) < 1, 0.5, 0.0), True),
        (lambda d: d - jnp.mean(d), True),
        (lambda d: d * jnp.exp(-jnp.sum(d.reshape(2, 2) ** 2, 1)).repeat(2), True),
        (lambda d: d * d[0], True),
        (lambda d: d * 0.5, True),
    ],
)
def test_a_difference_that_something_costly_is_made_of(weighed, fires):
    """(3) XLA makes it once, and reads both windows before the first write, if what moves the two
    rows needs it, and something costly of it: a constraint that pulls two rows together.
    """

    def step(c, i, j):
        d = weighed(c[i] - c[j])
        return c.at[i].add(-d).at[j].add(d), None

    c, places = jnp.arange(4096.0).reshape(-1, 4) % 7, jnp.arange(8, dtype=jnp.int32)
    args = c, places, places[::-1] + 3
    alone(BARRED, stepping(step), *args, fires=fires)
    compiled = jax.jit(stepping(step)).lower(*args).compile()
    assert (compiled.memory_analysis().temp_size_in_bytes > c.nbytes) == fires


def test_a_difference_on_a_device_that_fuses_otherwise():
    """(3) The same is fenced there."""

    def step(c, i, j):
        d = (c[i] - c[j]) * jnp.sum(c[i] - c[j])
        return c.at[i].add(-d).at[j].add(d), None

    args = jnp.ones((16, 4)), jnp.arange(8, dtype=jnp.int32), jnp.arange(8, dtype=jnp.int32)
    with using(EAGER.but(fuses_all_or_none=False)):
        alone(BARRED, stepping(step), *args, fires=True)


@pytest.mark.parametrize(
    ("combined", "fires"),
    [
        (lambda q: jnp.ones(2) / q, True),
        (lambda q: jnp.ones(2) / jnp.full(2, q), True),
        (lambda q: jnp.full(2, q) / 3.0, False),
        (lambda q: jnp.ones(2) * q, False),
    ],
)
def test_a_quotient(combined, fires):
    """(3) XLA computes the reciprocal of one, by which much is divided, of the same window again:
    it orders neither read before the write.
    """

    def step(c, i, j):
        quotient = j / read(c, i, 1)[0]
        return write(c, combined(quotient), i), quotient

    alone(BARRED, stepping(step), *PLACES, fires=fires)


def test_a_window_of_no_elements():
    """(3) Nothing is read: the pass once put a barrier before the write again and again."""
    step = lambda c, i, j: (write(c, jnp.ones(1), j), read(c, i, 0))
    check_refuses(BARRED, stepping(step), *PLACES, because="no window of f32[8] is read")


def test_a_window_of_no_elements_beside_another():
    """(3) It stays on its side of the barrier, and is no reason for a second one."""
    step = lambda c, i, j: (write(c, read(c, i), j), (read(c, i), read(c, i, 0)))
    check_rewrite(
        BARRED,
        stepping(step),
        *PLACES,
        diff="""
          fn (c:f32[8], i:i32[4], j:i32[4]) {
            c1:f32[8], ys:f32[4,2], ys1:f32[4,0] = scan[4] carry(c=c) xs(x=i, x1=j) {
              d:f32[2] = dynamic_slice c x
        -     d1:f32[8] = dynamic_update_slice c d x1
              d2:f32[2] = dynamic_slice c x
              d3:f32[0] = dynamic_slice c x
        +     o:f32[2], o1:f32[2], o2:f32[8] = optimization_barrier d d2 c
        +     d4:f32[8] = dynamic_update_slice o2 o x1
        -     yield carry(d1) ys(d2, d3)
        +     yield carry(d4) ys(o1, d3)
            }
            return c1, ys, ys1
          }
        """,
    )


def test_a_window_that_is_cleared():
    """(3) The same window, but the write does not wait for the read."""
    step = stepping(lambda c, i, j: (write(c, jnp.zeros(2), i), read(c, i)))
    alone(BARRED, step, *PLACES, fires=True)


@pytest.mark.parametrize(("size", "fires"), [(15, False), (16, True)])
def test_a_small_buffer(size, fires):
    """(4) Less than a line of the cache."""
    with using(CostModel()):
        alone(BARRED, stepping(moved), f"f32[{size}]", *PLACES[1:], fires=fires)


@pytest.mark.parametrize(("size", "fires"), [(1023, False), (1024, True)])
def test_a_small_buffer_of_which_all_is_read(size, fires):
    """(4) A copy is little besides."""
    step = stepping(lambda c, i, j: (write(c, jnp.sin(read(c, i)), i) + 1, read(c, i)))
    with using(CostModel()):
        alone(BARRED, step, f"f32[{size}]", *PLACES[1:], fires=fires)


def divisions(graph):
    return sum(op.name == "div" for op in graph.walk())


@pytest.mark.parametrize(("n", "fires"), [(1, True), (2, True), (5, False)])
def test_large_windows_of_a_buffer_that_is_read_whole(n, fires):
    """(4) As in a stencil: behind a fence they take as much memory as a copy."""
    step = stepping(lambda c, i, j: (write(c, jnp.sin(read(c, i, n)), i) + 1, read(c, i, n)))
    alone(BARRED, step, *PLACES, fires=fires)


@pytest.mark.parametrize(("n", "fires"), [(3, True), (4, False)])
def test_windows_that_are_as_large_as_the_buffer_together(n, fires):
    """(4) As in a stencil that also keeps its ends."""

    def step(c, i, j):
        left, right = lax.slice(c, (0,), (n,)), lax.slice(c, (8 - n,), (8,))
        return write(c, left + right, j), left

    alone(BARRED, stepping(step), *PLACES, fires=fires)


def test_a_window_moves_where_barriers_are_dropped(dividing):
    """(5) It is divided by one, and the write waits for a zero that is made of the quotient."""
    check_rewrite(BARRED, stepping(moved), *PLACES, diff="""
          fn (c:f32[8], i:i32[4], j:i32[4]) {
            c1:f32[8], ys:f32[4,2] = scan[4] carry(c=c) xs(x=i, x1=j) {
              d:f32[2] = dynamic_slice c x
        +     b:u32[2] = bitcast_convert_type[new_dtype=uint32] d
        +     p:u32[2] = population_count b
        +     b1:u32[2] = broadcast_in_dim 6
        +     s:u32[2] = shift_right_logical p b1
        +     b2:u32[2] = broadcast_in_dim 1
        +     a:u32[2] = add s b2
        +     d2:u32[2] = div b a
        +     b3:f32[2] = bitcast_convert_type[new_dtype=float32] d2
        +     s1:u32[1] = slice[:1] d2
        +     p1:u32[1] = population_count s1
        +     b4:u32[1] = broadcast_in_dim 6
        +     s2:u32[1] = shift_right_logical p1 b4
        +     r:u32[] = reshape s2
        +     c2:i32[] = convert_element_type r
        +     a1:i32[] = add x1 c2
        -     d1:f32[8] = dynamic_update_slice c d x1
        +     d1:f32[8] = dynamic_update_slice c b3 a1
        -     yield carry(d1) ys(d)
        +     yield carry(d1) ys(b3)
            }
            return c1, ys
          }
        """,
    )  # fmt: skip


def test_a_batch_waits_along_an_axis_that_its_window_does_not_fill(dividing):
    """(5) Along those that it fills, XLA knows that it starts at zero, and drops what is added."""

    def rows(c, i, j):
        x = lax.dynamic_slice(c, (0, i), (3, 2), allow_negative_indices=False)
        return lax.dynamic_update_slice(c, x, (0, j), allow_negative_indices=False), x

    graph = alone(BARRED, stepping(rows), "f32[3,8]", *PLACES[1:], fires=True)
    (written,) = (op for op in graph.walk() if op.name == "dynamic_update_slice")
    assert [at.op is not None and at.op.name == "add" for at in written.operands[2:]] == [0, 1]


def test_the_whole_is_read_where_barriers_are_dropped(dividing):
    """(5) What a write needs is kept apart from it, too: the rest is fused and done in place."""

    def step(c, i, j):
        return write(c, jnp.sin(read(c, i)), i) + j, None

    assert divisions(alone(BARRED, stepping(step), *PLACES, fires=True)) == 1


def test_a_product_with_the_whole_where_barriers_are_dropped(dividing):
    """(2) The write waits for it anyway; not so for the window that is kept."""

    def step(c, i, j):
        return write(c, jnp.sum(c * j)[None], i), read(c, i, 1)

    assert divisions(alone(BARRED, stepping(step), *PLACES, fires=True)) == 1


def test_what_cannot_be_divided_beside_the_whole(dividing):
    """(2) It is no reason for a second division: there was one after the other, for ever."""

    def sorted_for_the_write(c, i, j):
        return write(c, jnp.sin(read(jnp.sort(c), i)), i) + 1.0, read(c, i)

    def nothing_for_the_write(c, i, j):
        return write(c, jnp.sum(read(c, j, 0)) + read(c, i), i) + 1.0, read(c, i)

    for step, windows in ((sorted_for_the_write, 1), (nothing_for_the_write, 2)):
        assert divisions(alone(BARRED, stepping(step), *PLACES, fires=True)) == windows


def test_one_window_after_the_other_where_barriers_are_dropped(dividing):
    """Where a window is read depends on another: that one stays where it is, and goes through."""

    def step(c, i, j):
        first = read(c, i, 1)
        x = read(c, first[0])
        return write(c, x, j), (x, first)

    graph = alone(BARRED, stepping(step), "i32[8]", *PLACES[1:], fires=True)
    assert divisions(graph) == 2


def test_a_place_that_is_kept_where_barriers_are_dropped(dividing):
    """What is made of a read on the way to the last goes through as well, if it is needed later."""

    def step(c, i, j):
        k = read(c, i, 1)[0]
        return write(c, read(c, k), j), k

    graph = alone(BARRED, stepping(step), "i32[8]", *PLACES[1:], fires=True)
    assert divisions(graph) == 3

    def into_another(c, i, j):
        """What is on the way may be another buffer, which would be copied."""
        d = write(c + 1, read(c, i, 1), j)
        return write(c, read(c, read(d, j, 1)[0]), j), (d, read(c, i))

    graph = alone(BARRED, stepping(into_another), "i32[8]", *PLACES[1:], fires=True)
    assert divisions(graph) == 3


def test_a_read_of_what_such_a_write_made(dividing):
    """(3) XLA would repeat the first write in it, even where it is for its own write alone; not so
    where it is read and written at one place.
    """

    def elsewhere(c, i, j):
        c, x = moved(c, i, j)
        return write(c, read(c, i, 1), j), x

    assert divisions(alone(BARRED, stepping(elsewhere), *PLACES, fires=True)) == 2

    def there(c, i, j):
        c, x = moved(c, i, j)
        return write(c, read(c, i, 1) + 1, i), x

    assert divisions(alone(BARRED, stepping(there), *PLACES, fires=True)) == 1


@pytest.mark.parametrize("dtype", ["bool", "i8", "u32", "c64", "bf16"])
def test_bits_of_every_kind(dividing, dtype):
    """(5)"""
    alone(BARRED, stepping(moved), f"{dtype}[8]", *PLACES[1:], fires=True)


def test_bits_are_kept(dividing):
    """Of numbers that are not normal, and of NaNs that signal, which a division of floats loses."""
    bits = jnp.array([1, 0x116C2, 0x80000001, 0x7F800001, 0xFF812345, 0x80000000, 0, 7], "uint32")
    args = jax.lax.bitcast_convert_type(bits, "float32"), jnp.array([5, 2, 1]), jnp.array([0, 3, 6])
    jaxpr = resolve([BARRED]).run(traced(stepping(moved), *args), "final").jaxpr
    given = jax.jit(jax.extend.core.jaxpr_as_fun(jaxpr))(*args)
    for one, other in zip(given, stepping(moved)(*args), strict=True):
        same = [jax.lax.bitcast_convert_type(each, "uint32") for each in (one, other)]
        assert (same[0] == same[1]).all()


def test_a_scatter_where_barriers_are_dropped(dividing):
    """A row that is out of range stays so."""

    def step(c, i, j):
        return c.at[j - 2].set(c[i], mode="drop", wrap_negative_indices=False), c[i]

    alone(BARRED, stepping(step), *PLACES, fires=True)


def test_constant_places(dividing):
    """(5) What XLA must not find out does not hang on them."""
    alone(
        BARRED, stepping(lambda c, i, j: (write(c, read(c, 2), 0), read(c, 2))), *PLACES, fires=True
    )


def test_on_a_mesh(dividing):
    """(5) What is divided varies as what is written to."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.PartitionSpec("i")

    def program(c, i, j):
        return jax.shard_map(stepping(moved), mesh=mesh, in_specs=spread, out_specs=spread)(c, i, j)

    alone(BARRED, program, *PLACES, fires=True)


def test_keys(dividing):
    """(5)"""

    def program(seed, i, j):
        keys = jax.random.split(jax.random.key(seed), 8)
        return jax.random.key_data(stepping(moved)(keys, i, j)[0])

    check_refuses(
        BARRED, program, "u32[]", *PLACES[1:], because="not of numbers that a division can fence"
    )


def test_elements_of_half_a_byte(dividing):
    """(5)"""

    def program(c, i, j):
        return stepping(moved)(c.astype("int4"), i, j)[0].astype("int8")

    check_refuses(
        BARRED, program, "i8[8]", *PLACES[1:], because="not of numbers that a division can fence"
    )


@pytest.mark.parametrize(
    "step",
    [
        lambda c, i, j: (write(c, jnp.sum(c)[None], j) + 1, None),
        lambda c, i, j: (write(c, jnp.ones(1), j), read(c, i, 0)),
    ],
)
def test_no_window_is_read(dividing, step):
    """(5) A division of all of it would copy it, and of nothing makes no zero."""
    check_refuses(BARRED, stepping(step), *PLACES, because="no window of f32[8] is read")


def test_not_on_other_devices(dividing, monkeypatch):
    """(5) They may divide again in each fusion."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    check_refuses(BARRED, stepping(moved), *PLACES, because="drops barriers")


def test_only_at_the_end():
    """(5) A barrier in a differentiated program would be transposed, too."""
    program = traced(stepping(moved), *PLACES)
    assert not resolve([BARRED]).run(program, "differentiable").changed
    assert resolve([BARRED]).run(program, "final").changed


def test_not_in_a_loop():
    """(1) Outside of one there is one copy at most."""

    def program(c, i, j):
        return write(c, read(c, i[0]), j[0])

    alone(BARRED, program, *PLACES, fires=False)


def columns(a, x):
    """Columns of a matrix are changed in turn, divided by what was made of their diagonal."""

    def step(c, k):
        a, x = c
        r = jnp.sqrt(a[k, k] ** 2 + x[k] ** 2)
        column = (a[:, k] + x * (x[k] / a[k, k])) / (r / a[k, k])
        return (a.at[:, k].set(column), x * (r / a[k, k]) - column), None

    return lax.scan(step, (a, x), jnp.arange(64))[0]


@pytest.mark.parametrize("kept", {False, compat_devices.KEEPS_BARRIERS})
def test_no_copy_for_a_quotient_and_its_reciprocal(kept, monkeypatch):
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", kept)
    batch = jax.vmap(columns, (None, 0))
    args = jnp.eye(64) + 1, jnp.ones((3, 64))
    assert 2 * memory(optimize(batch), *args) < memory(batch, *args) + 4096


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kept", {False, compat_devices.KEEPS_BARRIERS})
def test_the_copy_is_gone(kept, several, monkeypatch):
    """What it is all for: XLA's program has no copy of the buffer left in the loop, whichever fence
    keeps it away, of those that this XLA heeds.
    """
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", kept)
    program = stepping(lambda c, i, j: (write(c, read(c, i + 1), i), read(c, i, 1)))
    args = jnp.zeros(8192), jnp.arange(4), jnp.arange(4)
    if several:
        program = stepping(lambda c, i, j: (c.at[j].set(jnp.sin(c[i + 1])), c[i]))
        args = args[0], *(jnp.arange(12).reshape(4, 3) for _ in range(2))
    jaxpr = resolve([BARRED]).run(traced(program, *args), "final").jaxpr

    ours = jax.extend.core.jaxpr_as_fun(jaxpr)
    assert memory(program, *args) > args[0].nbytes > memory(ours, *args)


def test_while_it_may_be_differentiated():
    """(5) A barrier would be in the way of what is made of the transpose."""
    alone(BARRED, stepping(moved), *PLACES, fires=False, phase="differentiable")


def test_outside_of_loops():
    """(4) There is nothing to copy in each step."""
    alone(BARRED, moved, "f32[8]", "i32[]", "i32[]", fires=False)
