"""An unrolled loop asks after as many steps as it takes at once."""

from functools import partial

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.graphs import scans
from tests.loops import alone, keep
from tests.prices import EAGER
from tests.stopping import counted

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def test_a_loop_that_is_unrolled_asks_after_as_many_steps():
    """(9) What it runs together is what it ran together before."""

    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
        return lax.scan(body, c, None, length=8, unroll=2)[0]

    check_rewrite(
        EXIT,
        program,
        "f32[3]",
        "f32[]",
        simplify=True,
        diff="""
          fn (c:f32[3], bound:f32[]) {
        -   c1:f32[3] = scan[8, unroll=2] carry(c=c) {
        -     s:f32[1] = slice[:1] c
        -     s1:f32[] = squeeze s
        -     l:bool[] = lt s1 bound
        -     r:f32[3] = cond l {
        -       s:f32[3] = sin c
        -       yield s
        -     } else {
        -       yield c
        -     }
        -     yield carry(r)
        -   }
        +   c2:i32[], c3:f32[3] = while carry(c2=0, c3=c) {
        +     l1:bool[] = lt c2 8
        +     s:f32[1] = slice[:1] c3
        +     s1:f32[] = squeeze s
        +     l:bool[] = lt s1 bound
        +     r1:bool[] = reduce_or l
        +     a:bool[] = and l1 r1
        +     yield a
        +   } do {
        +     c4:i32[], c5:f32[3] = scan[2, unroll=2] carry(c2=c2, c3=c3) {
        +       s2:f32[1] = slice[:1] c3
        +       s3:f32[] = squeeze s2
        +       l1:bool[] = lt s3 bound
        +       r1:f32[3] = cond l1 {
        +         s2:f32[3] = sin c3
        +         yield s2
        +       } else {
        +         yield c3
        +       }
        +       a:i32[] = add c2 1
        +       yield carry(a, r1)
        +     }
        +     yield carry(c4, c5)
        +   }
        -   return c1
        +   return c3
          }
        """,
    )


@pytest.mark.parametrize(
    ("length", "unroll", "block"),
    [
        (8, 4, 4),
        (8, 3, 2),
        (12, 5, 4),
        (6, 3, 3),
        (12, 9, 6),
        (7, 3, 1),
        (6, 6, None),
        (6, 8, None),
    ],
)
def test_steps_that_are_unrolled(length, unroll, block):
    """(9) Their number divides that of all."""

    def program(c, bound, reverse=False):
        body = lambda c, _: (lax.cond(c[0] < bound, lambda c: c + 1, keep, c), None)
        return lax.scan(body, c, None, length=length, reverse=reverse, unroll=unroll)[0]

    for bound in (-1.0, 1.5, 4.0, 99.0):
        for reverse in (False, True):
            args = partial(program, reverse=reverse), jnp.zeros(3), jnp.float32(bound)
            graph = alone(EXIT, *args, fires=block is not None)
    blocks = [(op.length, unroll_of(op)) for op in scans(graph)]
    assert blocks == {None: [(length, unroll)], 1: []}.get(block, [(block, block)])


def test_an_unrolled_loop_that_writes_rows_runs_step_by_step():
    """What several steps write in place would be copied between them."""

    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), c)
        return lax.scan(body, c, None, length=8, unroll=2)

    graph = alone(EXIT, program, "f32[3]", "f32[]", fires=True)
    assert not any(isinstance(op, Scan) for op in graph.walk())


def test_loops_of_which_one_is_unrolled():
    """(9) The loop back asks before as many steps as the one whose rows it reads."""
    program = counted(lambda a, row: a * row - 3, length=8, unroll=2)
    graph = alone(EXIT, program, jnp.zeros(3), jnp.float32(2), fires=True)
    assert [type(op) for op in graph.walk() if isinstance(op, Scan | While)] == [While, While]


@pytest.mark.parametrize(
    ("options", "because"), [({"unroll": 5}, "asks to be unrolled"), ({"length": 1}, "1 steps")]
)
def test_loops_that_are_meant_to_run(options, because):
    def program(c, bound):
        body = lambda c, _: (lax.cond(c[0] < bound, jnp.sin, keep, c), None)
        return lax.scan(body, c, None, **{"length": 5, **options})[0]

    check_refuses(EXIT, program, "f32[3]", "f32[]", because=because)
