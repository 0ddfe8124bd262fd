"""Loops that only make rows for a loop that stops, stop with it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.testing import check_rewrite
from tests.loops import alone
from tests.prices import EAGER
from tests.stopping import KNOWN, XS

EXIT = ExitLoopEarly()
MODEL = EAGER
"""Programs here are small: asking whether to go on is free."""


def added(total, row):
    return total + row[0] * row[1], None


def fed(
    what=lambda g, h, ys: g,
    *,
    seen=lambda i, y, n: i < n,
    made=lambda h, x, n: jnp.sin(h) * x,
    start=lambda h: jnp.ones(3),
    **options,
):
    """A loop makes rows, another one reads the first of them, from the last to the first."""

    def program(h, xs, n):
        step = lambda h, x: ((y := made(h, x, n)), y)
        h, ys = lax.scan(step, h, xs, **options)
        back = lambda g, row: (jnp.where(seen(*row, n), g * row[1] + 1.0, g), None)
        g = lax.scan(back, start(h), (lax.iota(jnp.int32, 5), ys), reverse=True)[0]
        return what(g, h, ys)

    return program


def fed_again(h, xs, n):
    """The same rows are read in each step of another loop."""
    ys = lax.scan(lambda h, x: ((y := jnp.sin(h) * x), y), h, xs)[1]
    back = lambda g, row: (jnp.where(row[0] < n, g * row[1] + 1.0, g), None)
    rows = lax.iota(jnp.int32, 5), ys
    return lax.fori_loop(0, 3, lambda _, g: lax.scan(back, g, rows, reverse=True)[0], h)


def fed_until(h, xs, n):
    """How many rows are read is known when they are."""
    ys = lax.scan(lambda h, x: ((y := jnp.sin(h) * x), y), h, xs)[1]
    step = lambda g, y: (jnp.where(g[0] < n, g * y + 1.0, g), None)
    return lax.scan(step, h, ys)[0]


def fed_by_all(h, xs, n):
    """Devices make rows together, and read as many of them as each likes."""
    program = fed(made=lambda h, x, n: jnp.sin(lax.pmean(h, "i")) * x)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec()
    run = jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return run(h, xs, n)


def test_a_loop_that_makes_rows_for_a_loop_that_begins_late():
    """(10) It makes as many as that one reads."""
    check_rewrite(
        EXIT,
        fed(),
        *KNOWN,
        simplify=True,
        diff="""
          fn (h:f32[3], xs:f32[5,3], n:i32[]) {
        -   c:f32[3], ys:f32[5,3] = scan[5] carry(c=h) xs(x=xs) {
        -     s:f32[3] = sin c
        -     m:f32[3] = mul s x
        -     yield carry(m) ys(m)
        -   }
            b:f32[3] = broadcast_in_dim 1.0
        -   i:i32[5] = iota
        -   c1:f32[3] = scan[5, reverse] carry(c=b) xs(x=i, x1=ys) {
        -     l:bool[] = lt x n
        -     m:f32[3] = mul c x1
        -     a:f32[3] = add m 1.0
        -     s:f32[3] = select_n l c a
        -     yield carry(s)
        -   }
        +   c2:i32[] = clamp 0 n 5
        +   u:f32[5,3] = undefined
        +   c3:i32[], c4:f32[3], c5:f32[5,3] = while carry(c3=0, h1=h, c4=u) {
        +     l1:bool[] = lt c3 c2
        +     yield l1
        +   } do {
        +     d:f32[1,3] = dynamic_slice xs c3 0
        +     s1:f32[3] = squeeze d
        +     s:f32[3] = sin h1
        +     m1:f32[3] = mul s s1
        +     b1:f32[1,3] = broadcast_in_dim m1
        +     d1:f32[5,3] = dynamic_update_slice c4 b1 c3 0
        +     a1:i32[] = add c3 1
        +     yield carry(a1, m1, d1)
        +   }
        +   s1:i32[] = sub c2 1
        +   c6:i32[], c7:f32[3] = while carry(c2=s1, c3=b) {
        +     g:bool[] = ge c2 0
        +     yield g
        +   } do {
        +     d:f32[1,3] = dynamic_slice c5 c2 0
        +     s1:f32[3] = squeeze d
        +     m1:f32[3] = mul c3 s1
        +     a1:f32[3] = add m1 1.0
        +     s2:i32[] = sub c2 1
        +     yield carry(s2, a1)
        +   }
        -   return c1
        +   return c7
          }
        """,
    )


@pytest.mark.parametrize("n", [-3, 0, 1, 4, 5, 100])
def test_how_many_rows_are_made(n):
    """(10) Rows between that are not read are made, too."""
    for seen in (lambda i, y, n: i < n, lambda i, y, n: (i < n) & (i != 1)):
        graph = alone(EXIT, fed(seen=seen), XS[0], XS, jnp.int32(n), fires=True)
        assert sum(isinstance(op, While) for op in graph.body.ops) == 2


def test_rows_that_are_made_behind_a_barrier():
    """(10) It has no effects."""
    made = lambda h, x, n: lax.optimization_barrier(jnp.sin(h) * x)
    graph = alone(EXIT, fed(made=made), XS[0], XS, jnp.int32(3), fires=True)
    assert sum(isinstance(op, While) for op in graph.body.ops) == 2


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(fed(lambda g, h, ys: (g, h)), id="its state is read"),
        pytest.param(fed(lambda g, h, ys: (g, ys.sum())), id="its rows are read elsewhere"),
        pytest.param(
            fed(lambda g, h, ys: (g, lax.scan(added, g, (lax.iota(jnp.float32, 5), ys))[0])),
            id="another loop reads all of its rows",
        ),
        pytest.param(fed(start=lambda h: h), id="another loop begins with its state"),
        pytest.param(fed_again, id="another loop reads its rows again and again"),
        pytest.param(fed_until, id="another loop ends by what it makes of them"),
        pytest.param(fed_by_all, id="it communicates"),
        pytest.param(fed(seen=lambda i, y, n: y > 0.5), id="its rows say which are read"),
        pytest.param(fed(reverse=True), id="it runs in reverse"),
        pytest.param(
            fed(made=lambda h, x, n: (jax.debug.print("{}", x), jnp.sin(h) * x)[1]),
            id="it has effects",
        ),
    ],
)
def test_loops_that_make_all_rows(program):
    """(10)"""
    graph = alone(EXIT, program, *KNOWN, fires=True)
    assert sum(isinstance(op, While) for op in graph.walk()) == 1


def test_a_loop_that_makes_rows_in_no_time(real_questions):
    """(10) It takes longer to ask than to make them."""

    def program(h, xs, n, w):
        ys = lax.scan(lambda h, x: ((y := h * x), y), h, xs)[1]
        back = lambda g, row: (jnp.where(row[0] < n, jnp.tanh(w @ g) + row[1][0], g), None)
        return lax.scan(back, w[0], (lax.iota(jnp.int32, 5), ys), reverse=True)[0]

    graph = alone(EXIT, program, *KNOWN, "f32[300,300]", fires=True)
    assert [type(op) for op in graph.walk() if isinstance(op, Scan | While)] == [Scan, While]
