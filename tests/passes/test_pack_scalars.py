"""Scalars that a loop computes alike are computed as vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import jaxpr_opt
from jaxpr_opt.builders import packed_step
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.traits import same_in_vectors
from jaxpr_opt.passes import CLEANUP
from jaxpr_opt.passes.codegen.pack_scalars import PackScalars
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.graphs import scans
from tests.loops import alone

PACK = PackScalars()


def carried(scan):
    """The shapes of what a loop carries."""
    return [c.param.shape for c in scan.carries]


def names(scan):
    """The ops of its step."""
    return [op.name for op in scan.body.ops]


def loop(step, xs, *, count=8, **options):
    """A loop that carries scalars in a list, all of them beginning with one."""
    return lax.scan(step, [jnp.ones(())] * count, xs, **options)


def relaxed(make, count=8):
    """A loop whose scalars each become what `make` makes of them, of the input and of the number
    of the scalar.
    """
    step = lambda c, x: ([make(v, x, i) for i, v in enumerate(c)], None)
    return lambda xs: loop(step, xs, count=count)[0]


def test_a_chain_of_filters():
    """(1) Each follows the one before it, the first the input."""

    def program(xs):
        def step(levels, x):
            below, new = x, []
            for level in levels:
                new.append(level + 0.5 * (below - level))
                below = level
            return new, None

        return loop(step, xs, count=4)[0][3]

    check_rewrite(
        PACK,
        program,
        "f32[6]",
        simplify=True,
        diff="""
          fn (xs:f32[6]) {
        +   b:f32[4] = broadcast_in_dim 1.0
        -   c:f32[], c1:f32[], c2:f32[], c3:f32[] = scan[6] carry(c=1.0, c1=1.0, c2=1.0, c3=1.0) xs(x=xs) {
        +   c4:f32[4] = scan[6] carry(row=b) xs(x=xs) {
        -     s:f32[] = sub x c
        -     m:f32[] = mul 0.5 s
        -     a:f32[] = add c m
        -     s1:f32[] = sub c c1
        -     m1:f32[] = mul 0.5 s1
        -     a1:f32[] = add c1 m1
        -     s2:f32[] = sub c1 c2
        -     m2:f32[] = mul 0.5 s2
        -     a2:f32[] = add c2 m2
        -     s3:f32[] = sub c2 c3
        -     m3:f32[] = mul 0.5 s3
        -     a3:f32[] = add c3 m3
        +     r:f32[1] = reshape x
        +     s4:f32[3] = slice[:3] row
        +     c4:f32[4] = concatenate[dimension=0] r s4
        +     s5:f32[4] = sub c4 row
        +     b:f32[4] = broadcast_in_dim 0.5
        +     m4:f32[4] = mul b s5
        +     a4:f32[4] = add row m4
        -     yield carry(a, a1, a2, a3)
        +     yield carry(a4)
            }
        +   s4:f32[3], s5:f32[1] = split[axis=0] c4
        +   r:f32[] = reshape s5
        -   return c3
        +   return r
          }
        """,  # noqa: E501
    )


def test_what_is_in_no_vector_before():
    """(1) The same in all lanes is spread; what is from outside is put beside each other there."""

    def program(xs, *gains):
        def step(c, x):
            return [v * x + jnp.sqrt(g) for v, g in zip(c, gains, strict=True)], None

        return sum(loop(step, xs, count=4)[0])

    check_rewrite(
        PACK,
        program,
        "f32[6]",
        *["f32[]"] * 4,
        simplify=True,
        diff="""
          fn (xs:f32[6], gains_0:f32[], gains_1:f32[], gains_2:f32[], gains_3:f32[]) {
        +   b:f32[4] = broadcast_in_dim 1.0
        +   r:f32[1] = reshape gains_0
        +   r1:f32[1] = reshape gains_1
        +   r2:f32[1] = reshape gains_2
        +   r3:f32[1] = reshape gains_3
        +   c4:f32[4] = concatenate[dimension=0] r r1 r2 r3
        -   c:f32[], c1:f32[], c2:f32[], c3:f32[] = scan[6] carry(c=1.0, c1=1.0, c2=1.0, c3=1.0) xs(x=xs) {
        +   c5:f32[4] = scan[6] carry(row=b) xs(x=xs) {
        -     m:f32[] = mul c x
        -     s:f32[] = sqrt gains_0
        -     a:f32[] = add m s
        -     m1:f32[] = mul c1 x
        -     s1:f32[] = sqrt gains_1
        -     a1:f32[] = add m1 s1
        -     m2:f32[] = mul c2 x
        -     s2:f32[] = sqrt gains_2
        -     a2:f32[] = add m2 s2
        -     m3:f32[] = mul c3 x
        -     s3:f32[] = sqrt gains_3
        -     a3:f32[] = add m3 s3
        +     b:f32[4] = broadcast_in_dim x
        +     m4:f32[4] = mul row b
        +     s4:f32[4] = sqrt c4
        +     a4:f32[4] = add m4 s4
        -     yield carry(a, a1, a2, a3)
        +     yield carry(a4)
            }
        +   s4:f32[1], s5:f32[1], s6:f32[1], s7:f32[1] = split[axis=0] c5
        +   r4:f32[] = reshape s4
        +   r5:f32[] = reshape s5
        +   r6:f32[] = reshape s6
        +   r7:f32[] = reshape s7
        -   a:f32[] = add c c1
        +   a:f32[] = add r4 r5
        -   a1:f32[] = add a c2
        +   a1:f32[] = add a r6
        -   a2:f32[] = add a1 c3
        +   a2:f32[] = add a1 r7
            return a2
          }
        """,  # noqa: E501
    )


def test_a_gradient():
    """What one loop keeps of each scalar for the other are rows."""

    def program(xs):
        step = lambda c, x: ([0.5 * v + jnp.sin(jnp.tanh(v * x) + v) for v in c], None)
        return sum(loop(step, xs)[0])

    tidy = import_jaxpr(traced(jax.grad(program), "f32[6]"))
    run_alone(CLEANUP, tidy)
    forward, backward = scans(alone(PACK, tidy, "f32[6]", fires=True))
    assert carried(forward) == carried(backward) == [(8,)]
    assert {s.result.shape for s in forward.stacks} == {(6, 8)}
    assert {s.param.shape for s in backward.streams} == {(), (8,)}


def test_sums_stay_in_their_order():
    """(1) A sum needs the one before it; its terms are taken out of their vector."""

    def program(xs):
        def step(c, x):
            squares = [jnp.tanh(v - x) ** 2 for v in c]
            return [v + 0.1 * s for v, s in zip(c, squares, strict=True)], sum(squares)

        return loop(step, xs)

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert carried(scan) == [(8,)]
    assert names(scan).count("tanh") == 1
    assert names(scan).count("add") == 1 + 8


def test_each_made_of_the_one_before_it():
    """(1) They are computed alike, but one after another."""

    def program(xs):
        def step(c, x):
            new = []
            for v in c:
                x = v * 0.5 + jnp.sin(x)
                new.append(x)
            return new, None

        return loop(step, xs)[0]

    alone(PACK, program, "f32[6]", fires=False)


def test_two_vectors_that_need_each_other():
    """(1) Each lane of one needs a lane of the other: one of the two stays scalars."""

    def program(xs):
        def step(c, x):
            low = [jnp.sin(c[0] + x), jnp.sin(c[1] + x)]
            high = [jnp.cos(low[0] * c[2]), jnp.cos(low[1] * c[3])]
            low += [jnp.sin(high[0] + x), jnp.sin(high[1] + x)]
            high += [jnp.cos(low[2] * c[0]), jnp.cos(low[3] * c[1])]
            return [a * b for a, b in zip(low, high, strict=True)], None

        return loop(step, xs, count=4)[0]

    check_refuses(PACK, program, "f32[6]", because="as many operations")


@pytest.mark.slow
@pytest.mark.parametrize("function", [jnp.exp, jnp.tanh, jnp.sqrt])
def test_vectors_of_any_length(function):
    """(2) A remainder would be rounded otherwise: a vector of 29 is made one of 32."""
    program = relaxed(lambda v, x, i: 0.1 * function(jnp.abs(v + x + i)), count=29)
    (scan,) = scans(alone(PACK, program, "f32[64]", fires=True, phase="final"))
    assert carried(scan) == [(29,)]
    assert ("pad" in names(scan)) == (function is not jnp.sqrt)


@pytest.mark.slow
def test_what_is_rounded_by_place():
    """(2) An arc tangent of a vector is not that of its elements."""
    make = lambda v, x, i: jnp.sin((v * x + v) * 0.3) * x - jnp.arctan(v * v) * jnp.cos(v)
    (scan,) = scans(alone(PACK, relaxed(make), "f32[64]", fires=True))
    assert names(scan).count("atan") == 8
    assert names(scan).count("sub") == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_types(dtype):
    """(2) Wider and narrower numbers, and what is decided with them."""

    def make(v, x, i):
        small = jnp.abs(v) < 0.5 * i
        return jnp.where(small, v + x, jnp.clip(v.astype(jnp.float32) ** 3, -1, 1).astype(dtype))

    def program(xs):
        step = lambda c, x: ([make(v, x, i) for i, v in enumerate(c)], None)
        return lax.scan(step, [jnp.zeros((), dtype)] * 8, xs)[0]

    with jax.enable_x64(dtype == "float64"):
        (scan,) = scans(alone(PACK, program, jnp.linspace(-2, 2, 8, dtype=dtype), fires=True))
        assert carried(scan) == [(8,)]


def test_integers_stay():
    """They are counters and masks, which other passes look at."""
    program = lambda xs: lax.scan(
        lambda c, x: ([jnp.where(v < 5, v * 2 + x, v) for v in c], None), [0] * 8, xs
    )[0]
    alone(PACK, program, "i32[6]", fires=False)


def test_weak_types():
    """What is of weak type is so again where it is read."""

    def program(x):
        step = lambda c, _: ([jnp.sin(v * (i + 0.5)) * 2.0 + v for i, v in enumerate(c)], c[3])
        return lax.scan(step, [0.5] * 8, length=6), x

    (scan,) = scans(alone(PACK, program, "f32[]", fires=True))
    assert carried(scan) == [(8,)]


def test_weak_numbers_and_literals():
    """What enters is of weak type, what is carried is not."""

    def program(xs):
        step = lambda c, x: ([v * (i + 1.0) + x for i, v in enumerate(c)], None)
        return lax.scan(step, [0.1, 0.2, 0.3, 0.4, 0.5], xs)[0]

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert carried(scan) == [(5,)]


def test_rows_of_a_batch_stay():
    """They are no scalars."""
    program = jax.vmap(relaxed(lambda v, x, i: jnp.tanh(v * x)))
    alone(PACK, program, "f32[3,6]", fires=False)


def test_effects_stay_in_their_order(capsys):
    """(3) Each is told before the next."""

    def program(xs):
        def step(c, x):
            new = []
            for i, v in enumerate(c):
                new.append(jnp.sin(v) * 0.5 + x)
                jax.debug.print("{i} {v:.1f}", i=i, v=new[-1], ordered=True)
            return new, None

        return loop(step, xs)[0]

    xs = jnp.arange(3.0)
    jax.block_until_ready(program(xs))
    jax.effects_barrier()
    plain = capsys.readouterr().out
    optimized = jaxpr_opt.optimize(program)
    explained = " ".join(str(jaxpr_opt.explain(program, xs).in_full()).split())
    assert "operations on scalars become" in explained
    jax.block_until_ready(optimized(xs))
    jax.effects_barrier()
    assert capsys.readouterr().out == plain


def test_effects_before_a_vector():
    """(3) The second call is needed first, as part of a vector: it still runs after the first."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    def told(times):
        return lambda x: io_callback(lambda x: np.float32(times * x), scalar, x, ordered=True)

    def program(xs):
        def step(c, x):
            new = [jnp.sin(v) * 0.5 for v in c[:7]]
            told(1)(x)
            return [*new, jnp.sin(c[7] + told(2)(x)) * 0.5], None

        return loop(step, xs)[0]

    graph = import_jaxpr(traced(program, "f32[6]"), PACK.phase)
    before = [op.params["callback"] for op in graph.walk() if op.name == "io_callback"]
    assert run_alone((PACK,), graph).record(PACK.name, PACK.cleanup).rewrites
    assert [op.params["callback"] for op in graph.walk() if op.name == "io_callback"] == before


def test_what_branches_read():
    """Elements that a branch reads are taken out of the vector."""

    def program(xs):
        def step(c, x):
            new = [jnp.sin(v) * 0.5 + x for v in c]
            return new, lax.cond(x > 0, lambda: new[1] * c[2], lambda: c[3])

        return loop(step, xs)

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert carried(scan) == [(8,)]


def test_stacks_that_are_returned():
    """The caller wants each of them."""

    def program(xs):
        def step(c, x):
            new = [jnp.sin(v * x) * 0.5 + v for v in c]
            return new, new

        return loop(step, xs)

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert [s.result.shape for s in scan.stacks] == [(6,)] * 8


def test_stacks_that_others_read_as_well():
    """They stay what they are, in the loop that makes them and for all who read them."""

    def program(xs):
        _, ys = loop(lambda c, x: ([v + x for v in c], [v * x for v in c]), xs)
        step = lambda c, row: ([jnp.sin(v * y) + v for v, y in zip(c, row, strict=True)], None)
        return loop(step, ys)[0], ys[0]

    graph = alone(PACK, program, "f32[6]", fires=True)
    assert [s.result.shape for s in scans(graph)[0].stacks] == [(6,), (6, 7)]


def read_back(read, stacked=lambda v, x: v * x):
    """Two loops, the second of which makes scalars of what the first has stacked."""

    def program(xs):
        _, ys = loop(lambda c, x: ([v + x for v in c], [stacked(v, x) for v in c]), xs)
        return loop(lambda c, row: ([waves(v) for v in read(c, row)], None), ys)[0]

    return program


def waves(v):
    return jnp.sin(jnp.cos(jnp.sin(v)))


def multiplied(c, row):
    return [v * y for v, y in zip(c, row, strict=True)]


def stacks_of(program, *types):
    """What the first loop stacks after packing."""
    return [s.result.shape for s in scans(alone(PACK, program, *types, fires=True))[0].stacks]


def test_stacks_that_one_loop_reads_twice():
    """(4) One of the two readings is no part of a vector."""

    def program(xs):
        _, ys = loop(lambda c, x: ([v + x for v in c], [v * x for v in c]), xs)

        def step(c, rows):
            row, other = rows
            return [waves(v) for v in multiplied(c, row)], jnp.cos(other)

        return loop(step, (ys, ys[0]))

    assert stacks_of(read_back(multiplied), "f32[6]") == [(6, 8)]
    assert stacks_of(program, "f32[6]") == [(6,), (6, 7)]


def test_rows_that_no_loop_stacks():
    """(4) Arguments are put together where they are read."""

    def program(*rows):
        return loop(lambda c, row: ([waves(v) for v in multiplied(c, row)], None), list(rows))[0]

    (scan,) = scans(alone(PACK, program, *["f32[6]"] * 8, fires=True))
    assert [s.operand.shape for s in scan.streams] == [(6,)] * 8


def test_rows_of_vectors():
    """(4) The second element of each row is no row of scalars."""
    second = lambda c, row: [v * y[1] for v, y in zip(c, row, strict=True)]
    program = read_back(second, lambda v, x: jnp.stack([v, v * x]))
    assert (6, 2) in stacks_of(program, "f32[6]")


def test_rows_of_truth_values():
    """(4) A stack of truth values stays as it is: vectors are of floats."""
    chosen = lambda c, row: [jnp.where(p, v, 1.0) for v, p in zip(c, row, strict=True)]
    assert stacks_of(read_back(chosen, lambda v, x: v > x), "f32[6]") == [(6,)] * 8


def test_arrays_written_element_by_element():
    """What is added to each element of an array is added to the array."""

    def program(xs):
        def step(carry, x):
            c, total = carry
            new = [jnp.sin(v * x) * 0.5 + v for v in c]
            for i, v in enumerate(new):
                total = total.at[i].add(v, mode="promise_in_bounds")
            return (new, total), None

        return lax.scan(step, ([jnp.ones(())] * 8, jnp.zeros(8)), xs)[0]

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert sorted(carried(scan)) == [(8,), (8,)]


def test_arrays_put_together_of_scalars():
    """And taken apart again: the vector was there all the time."""

    def program(xs):
        def step(state, x):
            a, b, c, d = state
            rates = [jnp.sqrt(v) * x for v in (b, c, d, a)]
            return jnp.stack([v + 0.1 * r for v, r in zip((a, b, c, d), rates, strict=True)]), None

        return lax.scan(step, jnp.ones(4), xs)[0]

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert names(scan).count("sqrt") == 1


def test_an_array_of_two_kinds_of_scalars():
    """(1) Eight sines and eight cosines are two vectors."""

    def program(xs):
        def step(row, x):
            angles = [row[i] * x for i in range(16)]
            return jnp.stack([*map(jnp.sin, angles[:8]), *map(jnp.cos, angles[8:])]), None

        return lax.scan(step, jnp.ones(16), xs)[0]

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert names(scan).count("sin") == names(scan).count("cos") == 1


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_short_loops_and_reversed_ones(length, reverse):
    step = lambda c, x: ([jnp.sin(v) * 0.5 + x for v in c], c[0])
    program = lambda xs: loop(step, xs, reverse=reverse)
    alone(PACK, program, f"f32[{length}]", fires=True)


def test_families_on_lines_of_their_own():
    """Computed alike, but not the same: what is written on one line are the lanes of a vector."""

    def program(xs):
        def step(cells, x):
            new = []
            for a, b in cells:
                u = a + 0.1 * (b - a) * x
                w = b + 0.1 * (a - b) * x
                new.append((u, w))
            return new, None

        return lax.scan(step, [(jnp.ones(()), jnp.zeros(()))] * 8, xs)[0]

    (scan,) = scans(alone(PACK, program, "f32[6]", fires=True))
    assert carried(scan) == [(8,), (8,)]
    assert names(scan).count("concatenate") == 0


def test_few_lanes():
    """Cost: three scalars are no vector."""
    program = lambda xs: loop(lambda c, x: ([jnp.sin(v * x) for v in c], None), xs, count=3)[0]
    alone(PACK, program, "f32[6]", fires=False)


def test_few_lanes_of_which_nothing_is_stored():
    """Cost: XLA computes up to 23 scalars as fast, unless they are stored one by one."""
    for count in (23, 24):
        program = relaxed(lambda v, x, i: 0.5 * v + x * i, count)
        alone(PACK, program, "f32[6]", fires=count == 24, phase="final")
        alone(PACK, program, "f32[6]", fires=True, phase="differentiated")


def test_lanes_of_which_more_would_be_stored():
    """Cost: the derivatives of a vector that is made longer are as long."""
    program = relaxed(lambda v, x, i: jnp.sin(v * x), count=7)
    check_refuses(PACK, program, "f32[6]", because="would store padded vectors of sin")
    tidy = import_jaxpr(traced(jax.grad(lambda xs: sum(program(xs))), "f32[6]"))
    run_alone(CLEANUP, tidy)
    forward, _ = scans(alone(PACK, tidy, "f32[6]", fires=True))
    assert {s.result.shape for s in forward.stacks} == {(6, 7)}


def test_nothing_in_common():
    """Cost: what each reads is all over the place."""
    around = np.random.default_rng(0).permuted(np.tile(np.arange(6), (4, 1)), axis=1)

    def program(xs):
        def step(c, x):
            new = [c[i] * x + c[j] * c[k] + c[m] for i, j, k, m in around.T]
            return new, None

        return loop(step, xs, count=6)[0]

    check_refuses(PACK, program, "f32[6]", because="building and splitting the vectors")


def test_what_is_about_to_be_differentiated():
    """Cost: a value is computed of scalars, its gradient of vectors."""
    program = lambda xs: sum(relaxed(lambda v, x, i: 0.5 * v + x * i)(xs))
    loops = lambda fun: scans(import_jaxpr(traced(fun, "f32[6]")))
    (evaluated,) = loops(jaxpr_opt.optimize(program))
    assert carried(evaluated) == [()] * 8
    backward = loops(jax.grad(jaxpr_opt.optimize(program)))[-1]
    assert carried(backward) == [(8,)]


def oscillators(count):
    """A ring of oscillators, each drawn to its neighbours: a list of phases, one of speeds."""

    def program(coupling, drive):
        def step(state, x):
            phases, speeds = state
            pulls = [
                jnp.sin(phases[(i + 1) % count] - p) + jnp.sin(phases[i - 1] - p)
                for i, p in enumerate(phases)
            ]
            moved = zip(phases, speeds, pulls, strict=True)
            new = [p + 0.01 * (v + coupling * pull + x) for p, v, pull in moved]
            return (new, [0.999 * v for v in speeds]), sum(map(jnp.cos, new))

        init = [0.1 * i for i in range(count)], [1.0 + 0.01 * i for i in range(count)]
        return jnp.mean(lax.scan(step, init, drive)[1])

    return program


def optimizer(count):
    """Parameters by name, each with its two moments."""

    def program(rate, inputs):
        names = [f"p{i}" for i in range(count)]

        def loss(params, x):
            return sum((params[name] * x - 0.1 * i) ** 2 for i, name in enumerate(names))

        def step(state, x):
            params, first, second = state
            slopes = jax.grad(loss)(params, x)
            first = {name: 0.9 * first[name] + 0.1 * slopes[name] for name in names}
            second = {name: 0.99 * second[name] + 0.01 * slopes[name] ** 2 for name in names}
            new = {n: params[n] - rate * first[n] / (jnp.sqrt(second[n]) + 1e-3) for n in names}
            return (new, first, second), loss(new, x)

        init = (dict.fromkeys(names, value) for value in (0.3, 0.0, 0.0))
        return jnp.mean(lax.scan(step, tuple(init), inputs)[1])

    return program


def neurons(count):
    """Cells by name that leak, fire and are reset, each driven by two others."""

    def program(gain, drive):
        names = [f"cell_{i}" for i in range(count)]

        def step(cells, x):
            new = {}
            for i, name in enumerate(names):
                others = (cells[names[(i * 3 + k) % count]]["trace"] for k in (1, 2))
                level, trace = cells[name]["level"], cells[name]["trace"]
                level += 0.1 * (0.2 * gain * x + 0.3 * sum(others) - level)
                fires = jax.nn.sigmoid(4 * (level - 0.5))
                new[name] = {
                    "level": jnp.where(level > 0.5, 0.1 * level, level),
                    "trace": 0.5 * trace + fires,
                }
            return new, new[names[0]]["trace"]

        init = {name: {"level": jnp.zeros(()), "trace": jnp.zeros(())} for name in names}
        return jnp.mean(lax.scan(step, init, drive)[1])

    return program


@pytest.mark.slow
@pytest.mark.parametrize("make", [oscillators, neurons, optimizer])
def test_programs_as_they_are_written(make):
    """Forward and gradient, whichever way round, and what is made of them."""
    program, given = make(4), (jnp.float32(0.1), 1.2 + jnp.sin(jnp.arange(20.0)))
    optimize = jaxpr_opt.optimize
    explained = " ".join(str(jaxpr_opt.explain(program, *given).in_full()).split())
    assert "operations on scalars become" in explained
    value, slope = jax.jit(program)(*given), jax.jit(jax.grad(program))(*given)
    assert_close(optimize(program)(*given), value)
    assert_close(optimize(jax.grad(program))(*given), slope)
    assert_close(jax.jit(jax.grad(optimize(program)))(*given), slope)
    twice = lambda fun: jax.jit(jax.grad(jax.grad(fun)))(*given)
    assert_close(twice(optimize(program)), twice(program))
    batch = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), given)
    of_rows = lambda fun: jax.jit(jax.vmap(fun))(*batch)
    assert_close(of_rows(optimize(program)), of_rows(program))


def test_it_ends_where_types_are_weak():
    """What it inserts only moves elements, so there is ever less for it to find."""
    record = run_alone((PACK,), import_jaxpr(traced(jax.grad(optimizer(5)), 0.1, jnp.ones(3))))
    assert len(record.record(PACK.name, PACK.cleanup).rewrites) < 10


UNARY = (
    "abs acos asin asinh atan atanh cbrt ceil cos cosh erf erf_inv erfc exp exp2 expm1 floor log"
    " log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh"
)
BINARY = "add atan2 div max min mul nextafter pow rem sub"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_give_what_their_elements_give(dtype):
    """(2) Whatever is said of a primitive holds for what is made of it, bit by bit."""
    given = np.random.default_rng(0).normal(size=(2, 15)).astype(dtype) * 2

    def packed(name):
        op = import_jaxpr(jax.make_jaxpr(getattr(lax, name))(*drawn[:, 0])).body.first
        return op if same_in_vectors(op) else None

    with jax.enable_x64(dtype == np.float64):
        for name in (*UNARY.split(), *BINARY.split()):
            drawn = given[: 1 + (name in BINARY.split())]
            op = packed(name)
            if op is None:
                continue
            one = jax.jit(getattr(lax, name))
            wanted = [one(*each) for each in drawn.T]
            for count in (5, 15):
                rows = drawn.reshape(len(drawn), -1, count)
                made = [evaluated(op, rows[:, i]) for i in range(rows.shape[1])]
                assert_same_bits([np.asarray(wanted)], [np.concatenate(made)])


def evaluated(op, operands):
    """An op on vectors, equation by equation."""
    traced_op = jax.make_jaxpr(lambda *xs: packed_step.bind_padded(op, xs))(*operands)
    return evaluate_exactly(traced_op, *operands)[0]
