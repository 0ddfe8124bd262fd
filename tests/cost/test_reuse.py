"""Who may write into which buffer."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.cost.reuse import takes_over
from jaxpr_opt.ir.graph import Use
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced


def in_place(fun, *args):
    """For each write of a program, whether it needs no copy."""
    graph = import_jaxpr(traced(fun, *args), "final")
    writes = [op for op in graph.walk() if op.name in ("dynamic_update_slice", "scatter")]
    return [takes_over(Use(op, 0)) for op in writes]


def write(xs, x, i=0):
    return lax.dynamic_update_slice(xs, jnp.reshape(x, (1,)), (i,))


def read(xs, i=0):
    return lax.dynamic_slice(xs, (i,), (1,))[0]


def ordered(xs, i):
    """A read that a barrier puts before the write."""
    x, xs = lax.optimization_barrier((read(xs, i), xs))
    return write(xs, 0.0, i), x


def looped(step):
    """The step as a loop's, on an array of its own."""
    return lambda xs, i: lax.scan(lambda c, _: step(c, i), xs + 1, None, length=3)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda xs, i: write(xs, 1.0), False),  # the caller's
        (lambda xs, i: write(xs + 1, 1.0), True),
        (lambda xs, i: write((xs + 1).reshape(2, 2).reshape(4), 1.0), True),
        (lambda xs, i: write(jnp.arange(4.0), 1.0), True),
        (lambda xs, i: (write(y := xs + 1, 1.0), y), False),  # needed afterwards
        (lambda xs, i: (write(y := xs + 1, 1.0), y.reshape(2, 2) + 1), False),
        (lambda xs, i: write(y := xs + 1, jnp.sum(y)), True),  # waits for the read
    ],
)
def test_a_write_takes_over_what_nobody_needs_any_more(program, expected):
    assert in_place(program, "f32[4]", "i32[]") == [expected]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda c, i: (write(c, 1.0, i), None), True),
        (lambda c, i: (write(c, jnp.sin(read(c, i)), i), None), True),
        (lambda c, i: (write(c, 0.0, i), read(c, i)), False),  # jax#17845
        (lambda c, i: (new := write(c, 0.0, i), read(new, i)), True),
        (ordered, True),
        (lambda c, i: (c, write(c, 1.0, i)), False),  # the next step's, unchanged
    ],
)
def test_a_step_takes_over_its_carry(step, expected):
    assert in_place(looped(step), "f32[4]", "i32[]") == [expected]


def test_what_is_outside_of_a_loop_stays():
    def program(xs):
        ys = xs + 1
        return lax.scan(lambda c, _: (c + jnp.sum(write(ys, c)), None), 0.0, None, length=3)[0]

    assert in_place(program, "f32[4]") == [False]


def test_a_branch_takes_over_what_only_the_other_branch_reads():
    def program(p, xs):
        ys = xs + 1
        return lax.cond(p, lambda: write(ys, 1.0), lambda: ys * 2)

    def kept(p, xs):
        ys = xs + 1
        return lax.cond(p, lambda: write(ys, 1.0), lambda: ys * 2), ys

    assert in_place(program, "bool[]", "f32[4]") == [True]
    assert in_place(kept, "bool[]", "f32[4]") == [False]


def test_a_call_takes_over_what_its_caller_may():
    called = jax.jit(lambda xs: write(xs, 1.0), donate_argnums=0)

    def program(xs):
        return called(xs + 1)

    def kept(xs):
        ys = xs + 1
        return called(ys), ys

    assert in_place(program, "f32[4]") == [True]
    assert in_place(kept, "f32[4]") == [False]
    assert in_place(called, "f32[4]") == [False]
