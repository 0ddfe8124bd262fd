"""The carries of every k-th step are kept, and the steps between them computed again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.residuals.replay_segments import ReplaySegments
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.graphs import lengths, scans
from tests.loops import alone, keep

SEGMENTS = ReplaySegments()


MODEL = cost_model().at(1.0)
"""A byte is worth a second: the smallest program is the cheapest."""


def gradient(step, *, length=16, **options):
    """Value and gradient of a loop whose steps read a weight."""

    def program(c, w):
        run = lambda c, w: lax.scan(lambda c, _: step(c, w), c, length=length, **options)
        out, pull = jax.vjp(run, c, w)
        return out, pull(jax.tree.map(jnp.ones_like, out))

    return program


def sines(c, w):
    """A step that keeps its carry and three numbers more."""
    return jnp.sin(c * w) * jnp.exp(c), None


def stacked(c, w):
    """A loop that stacks two arrays."""
    return lax.scan(lambda c, _: (sines(c, w)[0], (jnp.cos(c), jnp.exp(c))), c, length=16)


def test_segments_are_replayed():
    """Carries of four segments are stacked, not residuals of 16 steps."""
    check_rewrite(
        SEGMENTS,
        gradient(sines),
        "f32[4]",
        "f32[4]",
        simplify=True,
        diff="""
      fn (c:f32[4], w:f32[4]) {
    -   c1:f32[4], ys:f32[16,4], ys1:f32[16,4], ys2:f32[16,4], ys3:f32[16,4] = scan[16] carry(c=c) {
    +   c1:f32[4], ys4:f32[4,4] = scan[4] carry(c=c) {
    -     m:f32[4] = mul c w
    -     s:f32[4] = sin m
    -     c1:f32[4] = cos m
    -     e:f32[4] = exp c
    -     m1:f32[4] = mul s e
    +     c4:f32[4] = scan[4] carry(c4=c) {
    +       m6:f32[4] = mul c4 w
    +       s1:f32[4] = sin m6
    +       e1:f32[4] = exp c4
    +       m7:f32[4] = mul s1 e1
    +       yield carry(m7)
    +     }
    -     yield carry(m1) ys(c, c1, e, s)
    +     yield carry(c4) ys(c)
        }
        b:f32[4] = broadcast_in_dim 1.0
        b1:f32[4] = broadcast_in_dim 0.0
    -   c2:f32[4], c3:f32[4] = scan[16, reverse] carry(c=b1, c1=b) xs(x=ys, x1=ys1, x2=ys2, x3=ys3) {
    +   c2:f32[4], c3:f32[4] = scan[4, reverse] carry(c=b1, c1=b) xs(x=ys4) {
    -     m:f32[4] = mul x3 c1
    -     m1:f32[4] = mul c1 x2
    -     m2:f32[4] = mul m x2
    -     m3:f32[4] = mul m1 x1
    -     m4:f32[4] = mul x m3
    -     a:f32[4] = add_any c m4
    -     m5:f32[4] = mul m3 w
    -     a1:f32[4] = add_any m2 m5
    +     c4:f32[4], ys4:f32[4,4] = scan[4] carry(c4=x) {
    +       m6:f32[4] = mul c4 w
    +       s1:f32[4] = sin m6
    +       e1:f32[4] = exp c4
    +       m7:f32[4] = mul s1 e1
    +       yield carry(m7) ys(c4)
    +     }
    +     c5:f32[4], c6:f32[4] = scan[4, reverse] carry(c4=c, c5=c1) xs(x4=ys4) {
    +       m6:f32[4] = mul x4 w
    +       c6:f32[4] = cos m6
    +       e1:f32[4] = exp x4
    +       s1:f32[4] = sin m6
    +       m7:f32[4] = mul s1 c5
    +       m8:f32[4] = mul c5 e1
    +       m9:f32[4] = mul m7 e1
    +       m10:f32[4] = mul m8 c6
    +       m11:f32[4] = mul x4 m10
    +       a2:f32[4] = add_any c4 m11
    +       m12:f32[4] = mul m10 w
    +       a3:f32[4] = add_any m9 m12
    +       yield carry(a2, a3)
    +     }
    -     yield carry(a, a1)
    +     yield carry(c5, c6)
        }
        return c1, c3, c2
      }
        """,  # noqa: E501
    )


def test_nothing_is_replayed_where_memory_is_free():
    with using(cost_model().at(0.0)):
        alone(SEGMENTS, gradient(sines), "f32[4]", "f32[4]", fires=False)


def test_a_loop_that_is_left_alone_costs_less():
    """A byte that is worth next to nothing is no reason to compute anything again."""
    with using(cost_model().at(1e-12)):
        alone(SEGMENTS, gradient(sines), "f32[4]", "f32[4]", fires=False)


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_that_are_left_over(reverse):
    """17 steps are four segments of four, and a step that is not computed again."""
    graph = alone(
        SEGMENTS, gradient(sines, length=17, reverse=reverse), "f32[4]", "f32[4]", fires=True
    )
    assert lengths(graph) == [4, 4, 1, 1, 4, 4, 4]


def test_several_levels():
    """Where memory is dearer, the steps of a segment are replayed in segments, too."""
    program = gradient(sines, length=64)
    graph = alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == [4, 16, 4, 4, 4, 4, 4, 4]


def test_results_of_each_step_stay():
    """What else reads a stack reads the rows of all segments, one after the other."""
    step = lambda c, x: (sines(c, x)[0], jnp.cos(c))
    graph = alone(SEGMENTS, gradient(step), "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == [4, 4, 4, 4, 4]


def test_what_a_residual_does_not_depend_on_is_not_kept():
    """A sum that no step reads is not among the carries that are kept."""

    step = lambda s, w: ((sines(s[0], w)[0], s[1] + s[0]), None)
    program = gradient(step)
    graph = alone(SEGMENTS, lambda c, w: program((c, c), w), "f32[4]", "f32[4]", fires=True)
    forward = scans(graph)[0]
    assert [stack.result.shape for stack in forward.stacks] == [(4, 4)]


def test_keys_come_out_the_same():
    """Random numbers are made of keys, which are data."""

    def step(state, _):
        c, key = state
        key, this = jax.random.split(key)
        return (sines(c, jax.random.normal(this, c.shape))[0], key), None

    def program(c):
        run = lambda c: lax.scan(step, (c, jax.random.key(3)), length=16)[0][0]
        out, pull = jax.vjp(run, c)
        return out, pull(out)

    alone(SEGMENTS, program, "f32[4]", fires=True)


def test_two_loops_that_read():
    """Each loop that reads the residuals computes them again for itself."""

    def program(c, w):
        _, ys = stacked(c, w)
        back = lambda d, y: (d * y[0] * y[1], None)
        return lax.scan(back, c, ys, reverse=True)[0], lax.scan(back, c, ys)[0]

    graph = alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == [4, 4, 4, 4, 4, 4, 4, 4]


def test_rows_are_read_and_stacked():
    """Of the streams, the loops over segments read the rows of a segment; gradients of them are
    stacked.
    """

    def program(c, xs):
        run = lambda c, xs: lax.scan(lambda c, x: sines(c, x[0] + jnp.sin(x[1])), c, xs)[0]
        out, pull = jax.vjp(run, c, xs)
        return out, pull(out)

    graph = alone(SEGMENTS, program, "f32[4]", "f32[36,2,4]", fires=True)
    assert lengths(graph) == [18, 2, 18, 2, 2]


def test_integers_and_trees_are_carried():
    def step(state, w):
        i, tree = state
        made = {"a": sines(tree["a"] * i, w)[0], "b": tree["b"] * tree["a"]}
        return (i + 1, made), made["b"]

    def program(c, w):
        run = lambda c, w: lax.scan(lambda s, _: step(s, w), (0, {"a": c, "b": c}), length=16)
        out, pull = jax.vjp(lambda c, w: run(c, w)[0][1]["b"], c, w)
        return out, pull(out)

    alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)


def test_a_batch():
    program = jax.vmap(gradient(sines))
    alone(SEGMENTS, program, "f32[2,4]", "f32[2,4]", fires=True)


def test_condition_1_what_is_read_as_a_whole():
    """The loop that reads the stack shifted needs rows of other segments."""

    def program(c, w):
        _, (ys, zs) = stacked(c, w)
        read = jnp.roll(ys, 1, 0), jnp.roll(zs, 1, 0)
        return lax.scan(lambda d, y: (d * y[0] * y[1], None), c, read, reverse=True)[0]

    alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=False)


def test_condition_1_what_is_carried():
    """A loop that carries the stack reads all of it in each step."""

    def program(c, w):
        _, ys = stacked(c, w)
        step = lambda d, y: (jax.tree.map(lambda d, y: d * y, d, y), None)
        return lax.scan(step, ys, ys, reverse=True)[0]

    alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=False)


def test_condition_1_what_a_branch_reads():
    """The loop that reads the stack may not run, and is not beside the loop that stacks."""

    def program(c, w):
        _, ys = stacked(c, w)
        back = lambda d, y: (d * y[0] * y[1], None)
        return lax.cond(w[0] > 0, lambda: lax.scan(back, c, ys, reverse=True)[0], lambda: c)

    alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=False)


def test_branches_of_a_step_are_replayed():
    """(2) What is in a branch has no effects either."""

    def step(c, w):
        c = lax.cond(w[0] > 0, jnp.sin, jnp.cos, c)
        return sines(c, w)

    def program(c, w):
        _, ys = lax.scan(lambda c, _: (step(c, w)[0], jnp.cos(step(c, w)[0])), c, length=16)
        return lax.scan(lambda d, y: (d * y, None), c, ys, reverse=True)[0]

    alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)


def test_what_is_asked_whether_it_is_a_number():
    """(3) A number that is compared with itself is rounded once, as in the forward algorithm."""

    def step(c, w):
        return jnp.logaddexp(c * w, jnp.flip(c) + w), None

    alone(SEGMENTS, gradient(step), "f32[4]", "f32[4]", fires=True)


def test_condition_2_effects_in_a_branch():
    """Whoever counts in a branch would count twice."""

    def step(c, w):
        return sines(lax.cond(w[0] > 0, counted, jnp.cos, c), w)

    because = "replaying the loop would repeat"
    check_refuses(SEGMENTS, gradient(step), "f32[4]", "f32[4]", because=because)


@jax.custom_jvp
def counted(x):
    """The cosine, of which somebody counts how often it is computed."""
    return io_callback(np.cos, jax.typeof(x), x)


@counted.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return counted(x), -jnp.sin(x) * t


def test_condition_2_effects():
    """Whoever counts would count twice."""
    step = lambda c, w: sines(counted(c), w)
    because = "replaying the loop would repeat"
    check_refuses(SEGMENTS, gradient(step), "f32[4]", "f32[4]", because=because)


def test_effects_that_are_not_repeated():
    """What is printed is no residual: it is printed once for each step."""

    def step(c, w):
        jax.debug.callback(lambda _: None, c)
        return sines(c, w)

    graph = alone(SEGMENTS, gradient(step), "f32[4]", "f32[4]", fires=True)
    printing = [op for op in graph.walk() if op.name == "debug_callback"]
    assert len(printing) == 1
    outer, *others = [op for op in graph.body.ops if isinstance(op, Scan)]
    assert outer.effects and not any(op.effects for op in others)


def test_condition_2_collectives():
    """Devices would wait for each other once more."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    step = lambda c, w: sines(lax.psum(c, "i"), w)
    program = jax.shard_map(gradient(step), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    because = "devices may wait for each other in psum"
    check_refuses(SEGMENTS, program, "f32[4]", "f32[4]", because=because)


def until_close(c, w, length=16):
    """Value and gradient of a loop of which all that follows a small step is skipped."""

    def run(c, w):
        def step(state, _):
            c, is_done = state
            new = sines(c, w)[0]
            is_close = jnp.abs(new - c).max() < 0.1
            return (jnp.where(is_done, c, new), is_done | is_close), None

        return lax.scan(step, (c, False), length=length)[0][0]

    out, pull = jax.vjp(run, c, w)
    return out, pull(out)


def in_branches(c, w):
    """The same, where a branch takes the step, while a number is small."""
    step = lambda c, w: (lax.cond(c[0] < 0.9, lambda c: sines(c, w)[0], keep, c), None)
    return gradient(step)(c, w)


def of_lengths(c, w):
    """The same, where the number of steps is known before."""

    def run(c, w):
        step = lambda c, t: (jnp.where(t < 5, sines(c, w)[0], c), None)
        return lax.scan(step, c, jnp.arange(16))[0]

    out, pull = jax.vjp(run, c, w)
    return out, pull(out)


@pytest.mark.parametrize("program", [until_close, in_branches, of_lengths])
def test_loops_that_skip(program):
    """A segment skips the steps again that the loop has skipped."""
    graph = alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == [4, 4, 4, 4, 4]


@pytest.mark.parametrize(("steps", "found"), [(17, [4, 4, 1, 1, 4, 4, 4]), (64, [4, 16, *6 * [4]])])
def test_more_steps_that_may_be_skipped(steps, found):
    """Steps that are left over, and two levels."""
    program = lambda c, w: until_close(c, w, steps)
    graph = alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)
    assert lengths(graph) == found


def test_a_batch_of_loops_that_skip():
    """Each row has a predicate of its own."""
    alone(SEGMENTS, jax.vmap(until_close), "f32[3,4]", "f32[3,4]", fires=True)


@pytest.mark.parametrize("steps", [16, 17, 64])
def test_condition_3_predicates_are_not_computed_again(steps):
    """A comparison of what may be rounded otherwise runs in the loop that skips, and nowhere."""
    program = lambda c, w: until_close(c, w, steps)
    graph = alone(SEGMENTS, program, "f32[4]", "f32[4]", fires=True)
    first, *others = [op for op in graph.body.ops if isinstance(op, Scan)]
    last = others[-1]
    asked = lambda loop: [op for op in loop.walk() if op.name == "reduce_max"]
    assert asked(first) and not asked(last)


def test_condition_3_a_predicate_that_a_branch_makes():
    """With it, the branch makes a residual."""

    def step(c, w):
        sine = lambda c: (c[0] < 9.0, jnp.sin(c))
        goes_on, x = lax.cond(w[0] > 0, sine, lambda c: (c[1] < 9.0, c), c)
        return lax.cond(goes_on, lambda c: sines(c * x, w)[0], keep, c), None

    because = "an op makes the predicate of the steps that are taken, and something else"
    check_refuses(SEGMENTS, gradient(step), "f32[4]", "f32[4]", because=because)
