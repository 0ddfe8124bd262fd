"""What is live while each op runs adds up to the peak, and loops repeat."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.insight.liveness import peak_bytes
from jaxpr_opt.insight.timeline import Loop, timeline
from tests.graphs import graph_of
from tests.programs import PROGRAMS


def ticks(fun, *args, at_most=10_000, steps=100):
    return list(timeline(graph_of(fun, *args)).unrolled(at_most, steps))


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_the_highest_point_is_the_estimated_peak(fun, args):
    graph = graph_of(fun, *args)
    assert timeline(graph).peak.live == peak_bytes(graph)


def test_a_value_lives_from_its_op_to_its_last_reader():
    program = lambda x: jnp.cos(jnp.concatenate([x, x])).sum()
    told = [(tick.instant.op.name, tick.instant.live) for tick in ticks(program, "f32[100]")]
    assert told == [
        ("concatenate", 1200),
        ("cos", 2000),
        ("reduce_sum", 1204),
        ("yield", 404),
    ]


def test_a_loop_holds_its_stack_throughout_and_its_steps_are_alike():
    program = lambda x: lax.scan(lambda c, _: (jnp.sin(c), jnp.cos(c)), x, None, length=4)
    steps = {}
    for tick in ticks(program, "f32[100]"):
        steps.setdefault(tick.steps, []).append(tick.instant.live)
    assert steps.pop(()) == [400 + 400 + 1600] * 2  # the loop before its first step, the return
    assert list(steps) == [(0,), (1,), (2,), (3,)]
    assert list(steps.values()) == [[2800, 3200, 3200]] * 4


def test_long_loops_are_told_by_their_first_steps_and_the_last():
    nested = lambda x: lax.scan(
        lambda c, _: (lax.fori_loop(0, 5, lambda _, d: d * 2, c), None), x, None, length=1000
    )
    told = ticks(nested, "f32[3]", steps=3)
    outer = [tick.steps[0] for tick in told if tick.steps]
    assert list(dict.fromkeys(outer)) == [0, 1, 999]
    assert [tick.steps for tick in told if tick.skipped] == [
        *((step, 4) for step in (0, 1)),
        (999,),
        (999, 4),
    ]


def test_fewer_steps_are_told_of_a_program_with_many_instants():
    program = lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=64)[0]
    everything = ticks(program, "f32[3]")
    assert len({tick.steps for tick in everything if tick.steps}) == 64
    assert len(ticks(program, "f32[3]", at_most=20)) <= 20
    assert len(ticks(program, "f32[3]", at_most=1)) == len(everything) - 63 * 2


def test_a_while_runs_nobody_knows_how_often():
    (loop,) = (
        span
        for span in timeline(
            graph_of(lambda x: lax.while_loop(lambda c: c < 9, lambda c: c * 2, x), "f32[]")
        ).spans
        if isinstance(span, Loop)
    )
    assert loop.times is None
    assert [each.op.name for each in loop.body] == ["lt", "yield", "mul", "yield"]


def test_of_two_branches_the_larger_is_reported():
    program = lambda p, x: lax.cond(p, lambda: jnp.sin(jnp.cos(x)).sum(), x.sum)
    names = [tick.instant.op.name for tick in ticks(program, "bool[]", "f32[9]")]
    assert names[names.index("cond") :] == ["cond", "cos", "sin", "reduce_sum", "yield", "yield"]


def test_what_waits_for_the_backward_pass_is_told_apart():
    program = jax.grad(lambda x: jnp.sin(jnp.sin(x)).sum())
    told = ticks(program, "f32[100]")
    assert max(tick.instant.residual for tick in told) == 2 * 400  # the two cosines
    assert [tick.instant.residual for tick in told][-1] == 0
    names = [tick.instant.op.name for tick in told if tick.instant.backward]
    assert names == ["broadcast_in_dim", "mul", "mul"]


def test_a_program_that_differentiates_nothing_keeps_nothing():
    told = ticks(lambda x: jnp.sin(jnp.sin(x)), "f32[100]")
    assert not any(tick.instant.residual or tick.instant.backward for tick in told)


def test_the_largest_values_are_named_also_those_around_a_loop():
    def program(x):
        big, small = jnp.outer(x, x), jnp.cos(x)
        return lax.scan(lambda c, _: (jnp.sin(c) * small, None), x, None, length=2)[0], big

    inside = [tick.instant for tick in ticks(program, "f32[100]") if tick.steps]
    assert all(instant.largest[0].value.shape == (100, 100) for instant in inside)
    assert {len(instant.largest) for instant in inside} == {4, 5}
