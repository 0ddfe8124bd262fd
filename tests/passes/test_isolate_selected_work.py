"""What a step computes for a select becomes a branch, forward and backward."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.analysis.windows.window_primitives import INDEXED_WRITES, WRITES
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.ir.graph import Cond, Scan
from jaxpr_opt.passes.steps.isolate_selected_work import IsolateSelectedWork
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import (
    assert_close,
    check_refuses,
    check_rewrite,
    traced,
)
from tests.graphs import scans
from tests.loops import alone
from tests.prices import FREE

ISOLATE = IsolateSelectedWork()
AT_LAST = IsolateSelectedWork(at_last=True)
MODEL = CostModel(dataclasses.replace(FREE, unsure=0.0))
"""Asking costs nothing."""


def pair(step):
    """The cotangent of what a loop carries, by the transpose of its steps."""

    def program(h, xs, asked, g):
        loop = lambda h: lax.scan(lambda h, row: (step(h, *row), None), h, (xs, asked))[0]
        return jax.vjp(loop, h)[1](g)[0]

    return program


def where(h, x, p):
    """A step that drops what it computes, now and then."""
    return jnp.where(p, jnp.exp(h) + x, h)


def test_a_select_of_a_step_and_its_transpose():
    """(1, 2) The residuals of other steps are unspecified."""
    check_rewrite(
        ISOLATE,
        pair(lambda h, x, p: where(jnp.sin(h), x, p)),
        *TYPES,
        simplify=True,
        diff="""
      fn (h:f32[3], xs:f32[4,3], asked:bool[4], g:f32[3]) {
        c:f32[3], ys:f32[4,3], ys1:f32[4,3] = scan[4] carry(c=h) xs(x=xs, x1=asked) {
          s:f32[3] = sin c
          c1:f32[3] = cos c
    -     e:f32[3] = exp s
    -     a:f32[3] = add e x
    -     s1:f32[3] = select_n x1 s a
    +     r:f32[3], r1:f32[3] = cond x1 {
    +       e:f32[3] = exp s
    +       a:f32[3] = add e x
    +       yield e, a
    +     } else {
    +       u:f32[3] = undefined
    +       yield u, s
    +     }
    -     yield carry(s1) ys(c1, e)
    +     yield carry(r1) ys(c1, r)
        }
        c1:f32[3] = scan[4, reverse] carry(c=g) xs(x=ys, x1=ys1, x2=asked) {
    -     b:f32[3] = broadcast_in_dim 0.0
    -     s:f32[3] = select_n x2 c b
    -     s1:f32[3] = select_n x2 b c
    +     r:f32[3] = cond x2 {
    +       m2:f32[3] = mul c x1
    +       yield m2
    +     } else {
    +       yield c
    +     }
    -     m:f32[3] = mul s1 x1
    +     m:f32[3] = mul r x
    -     a:f32[3] = add_any s m
    -     m1:f32[3] = mul a x
    -     yield carry(m1)
    +     yield carry(m)
        }
        return c1
      }
    """,
    )


TYPES = ("f32[3]", "f32[4,3]", "bool[4]", "f32[3]")
ROWS = ("f32[2,3]", "f32[4,2,3]", "bool[4,2]", "f32[2,3]")
NUMBERS = ("f32[3]", "f32[4,3]", "i32[4]", "f32[3]")


def rows_in_a_branch(g, r, p):
    """A step of a loop of cotangents that reads a row if some row of the batch does."""
    return lax.cond(jnp.any(p), lambda g: jnp.where(p[:, None], g * r, g), lambda g: g, g)


def test_one_truth_value_a_row():
    """(1) A branch runs if some row takes it."""
    graph = alone(ISOLATE, handed(rows_in_a_branch), *ROWS, fires=True)
    assert [len(branches(scan)) for scan in scans(graph)] == [1, 1]


def branches(scan: Scan) -> list[Cond]:
    return [op for op in scan.body.ops if isinstance(op, Cond)]


def cases(h, x, i):
    """A step that selects by an integer."""
    return lax.select_n(jnp.clip(i, 0, 2), jnp.sin(h), jnp.exp(h) * x, jnp.cos(h))


def test_an_integer_that_selects():
    """(1) Each case is a branch; JAX 0.10 transposes it by comparisons with each number."""
    graph = alone(ISOLATE, pair(cases), *NUMBERS, fires=True)
    assert [len(cond.branches) for cond in branches(scans(graph)[1])] == [3]


def test_an_integer_that_may_be_another():
    """(1) Each number is asked for by itself, the innermost first."""
    step = lambda h, x, i: jnp.where(i == 5, jnp.sin(h), jnp.where(i == 7, jnp.exp(h), h * x))
    graph = alone(ISOLATE, pair(step), *NUMBERS, fires=True)
    assert [len(branches(scan)) for scan in scans(graph)] == [2, 3]
    chosen = lambda i, x: lax.scan(lambda h, row: (step(h, *row), None), x[0], (x, i))[0]
    check = jnp.array([5, 7, 6, -1]), jnp.ones((4, 3))
    assert_close(optimize(chosen)(*check), chosen(*check))


def test_a_forward_loop_that_selects_by_an_integer():
    """Where no pass looks at residuals any more."""
    loop = lambda h, xs, i: lax.scan(lambda h, row: (cases(h, *row), None), h, (xs, i))[0]
    alone(ISOLATE, loop, *NUMBERS[:3], fires=False)
    check_rewrite(
        AT_LAST,
        loop,
        *NUMBERS[:3],
        simplify=True,
        diff="""
      fn (h:f32[3], xs:f32[4,3], i:i32[4]) {
        c:f32[3] = scan[4] carry(c=h) xs(x=xs, x1=i) {
          m:i32[] = max 0 x1
          m1:i32[] = min 2 m
    -     s:f32[3] = sin c
    -     e:f32[3] = exp c
    -     m2:f32[3] = mul e x
    -     c1:f32[3] = cos c
    -     s1:f32[3] = select_n m1 s m2 c1
    +     r:f32[3] = switch m1 case 0 {
    +       s:f32[3] = sin c
    +       yield s
    +     } case 1 {
    +       e:f32[3] = exp c
    +       m2:f32[3] = mul e x
    +       yield m2
    +     } case 2 {
    +       c1:f32[3] = cos c
    +       yield c1
    +     }
    -     yield carry(s1)
    +     yield carry(r)
        }
        return c
      }
    """,
    )


def test_two_cases_of_a_forward_loop():
    """Each computes something of its own; one that takes a value needs no branch here."""
    both = lambda h, x, p: jnp.where(p, jnp.exp(h) + x, jnp.sin(h))
    for step, fires in ((both, True), (lambda h, x, p: where(jnp.cos(h), x, p), False)):
        loop = lambda h, xs, p, step=step: lax.scan(
            lambda h, row: (step(h, *row), None), h, (xs, p)
        )
        alone(AT_LAST, loop, *TYPES[:3], fires=fires)


def test_what_others_compute_between():
    """It is divided into layers: the second reads what the step makes of the first."""

    def step(h, x, p):
        h = jnp.where(p, jnp.exp(h), h)
        h = jnp.sin(h) + x
        return jnp.where(p, jnp.cos(h), h)

    graph = alone(ISOLATE, pair(step), *TYPES, fires=True)
    assert [len(branches(scan)) for scan in scans(graph)] == [2, 2]


def test_a_window_is_added_in_the_branch():
    """Where the other case leaves the array as it is: XLA adds in place."""

    def program(table, xs, i, g):
        def loop(table):
            def step(h, row):
                _, i = row
                return sum(jnp.where(i == k, jnp.exp(table[k] * h), 0.1 * h) for k in (0, 2)), None

            return lax.scan(step, g, (xs, i))[0]

        return jax.vjp(loop, table)[1](g)[0]

    args = jnp.ones((4, 3)), jnp.ones((4, 3)), jnp.array([0, 2, 1, 0]), jnp.ones(3)
    with using(MODEL):
        graph, *_ = observe.optimized(program, args, {})
    back = scans(graph)[-1]
    assert any(op.name in WRITES for cond in branches(back) for op in cond.walk())
    assert_close(optimize(program)(*args), program(*args))


@pytest.mark.parametrize("seen", ["the place", "another place", "what is asked"])
def test_a_window_of_an_array_that_others_read(seen):
    """XLA need not read before the branch, and would copy the array for it."""

    def step(carry, row):
        (table, total), (i, x) = carry, row
        known, other = table[i], table[i // 2]
        is_new = known == 0 if seen != "another place" else x > 0
        table = lax.cond(is_new, lambda: table.at[i].set(x), lambda: table)
        shown = {"the place": known, "another place": other, "what is asked": known + 1}
        return (table, total + shown[seen]), None

    program = lambda table, ids, xs: lax.scan(step, (table, 0.0), (ids, xs))[0]
    args = jnp.zeros(200_000), jnp.array([7, 2, 7, 5, 2]), jnp.array([1.0, -2.0, 3.0, 4.0, 5.0])
    args = args[0], *(jnp.tile(v, 100) for v in args[1:])
    graph, *_ = observe.optimized(program, args, {})
    chosen = [op for op in graph.walk() if isinstance(op, Cond)]
    assert chosen
    assert not any(op.name in WRITES | INDEXED_WRITES for cond in chosen for op in cond.walk())
    assert_close(optimize(program)(*args), program(*args))


@pytest.mark.parametrize("asked", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("step", [where, lambda h, x, p: jnp.where(p, h * x, jnp.sin(h))])
def test_the_gradient_of_what_is_asked(step, asked):
    """In both orders, whichever steps take it."""
    xs, flags = jnp.linspace(0.1, 2.0, 12).reshape(4, 3), jnp.array(asked, bool)

    def loss(h, xs):
        return jnp.sum(lax.scan(lambda h, row: (step(h, *row), h), h, (xs, flags))[1] ** 2)

    h = jnp.array([0.5, -0.3, 0.2])
    expected = jax.grad(loss, (0, 1))(h, xs)
    assert_close(optimize(jax.grad(loss, (0, 1)))(h, xs), expected)
    assert_close(jax.grad(optimize(loss), (0, 1))(h, xs), expected)
    assert_close(jax.jvp(optimize(loss), (h, xs), (h, xs)), jax.jvp(loss, (h, xs), (h, xs)))


def test_a_product_with_zeros_of_no_cotangent():
    """(1) Zero times infinity is NaN: each step computes the product."""
    step = lambda h, x, p: h + jnp.where(p, jnp.exp(h), 0.0) * x
    alone(ISOLATE, forward(step), *TYPES[:3], fires=False)
    alone(AT_LAST, forward(step), *TYPES[:3], fires=False)


def forward(step):
    """A loop without its transpose."""
    return lambda h, xs, asked: lax.scan(lambda h, row: (step(h, *row), h), h, (xs, asked))


def handed(reads, seen=lambda h: None):
    """A loop that hands the exponential that it may drop to a loop of cotangents."""

    def program(h, xs, asked, g):
        def step(h, row):
            x, p = row
            seen(h)
            e = jnp.exp(h)
            return jnp.where(p[..., None], e + x, jnp.sin(h)), e

        h, rows = lax.scan(step, h, (xs, asked))
        return h, lax.scan(lambda g, row: (reads(g, *row), None), g, (rows, asked))[0]

    return program


def in_a_branch(g, r, p):
    return lax.cond(p, lambda g: g * r, lambda g: g, g)


def test_a_row_that_is_read_in_a_branch():
    """(2) Of the same truth value, and in no other."""
    alone(ISOLATE, handed(in_a_branch), *TYPES, fires=True)
    for other in (
        lambda g, r, p: g * r,
        lambda g, r, p: lax.cond(p, lambda g: g, lambda g: g * r, g),
        lambda g, r, p: lax.cond(g[0] > 0, lambda g: g * r, lambda g: g, g),
        lambda g, r, p: jnp.where(p, g, g + 0 * r),
    ):
        alone(ISOLATE, handed(other), *TYPES, fires=False)


def test_an_effect_of_a_row():
    """(3) Nobody sees what it is where it is not read."""

    def reads(g, r, p):
        def shown(g):
            jax.debug.callback(lambda r: None, r)
            return g * r

        return lax.cond(p, shown, lambda g: g, g)

    alone(ISOLATE, handed(reads), *TYPES, fires=False)


def test_a_loop_of_unknown_length_of_a_row():
    """(3) It may not end for what the row holds."""
    grown = lambda g, r: lax.while_loop(lambda g: jnp.all(g < r), lambda g: g * 2, g)
    reads = lambda g, r, p: lax.cond(p, lambda g: grown(g, r), lambda g: g, g)
    alone(ISOLATE, handed(reads), *TYPES, fires=False)


def test_a_step_with_effects():
    """(4) They stay in order."""
    shown = handed(in_a_branch, seen=lambda h: jax.debug.callback(lambda h: None, h))
    check_refuses(ISOLATE, shown, *TYPES, because="has effects or communicates")


def test_ops_into_which_xla_may_insert_collectives():
    """(4) Devices that take other branches would wait for each other."""
    mesh = AbstractMesh((2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    specs = PartitionSpec("d")
    program = jax.shard_map(
        lambda *given: handed(in_a_branch)(*given)[1],
        mesh=mesh,
        axis_names={"d"},
        in_specs=(specs, PartitionSpec(None, "d"), PartitionSpec(), specs),
        out_specs=specs,
        check_vma=False,
    )
    types = "f32[6]", "f32[4,6]", "bool[4]", "f32[6]"
    check_refuses(ISOLATE, program, *types, because="may insert collectives")


def test_loops_that_jax_is_about_to_differentiate():
    """(5) The rows of steps that are dropped would be multiplied by zeros."""
    program = traced(pair(lambda h, x, p: where(jnp.sin(h), x, p)), *TYPES)
    pipeline = resolve([ISOLATE])
    assert not pipeline.run(program, "differentiated").journal.record(ISOLATE.name, False).rewrites
    alone(ISOLATE, pair(lambda h, x, p: where(jnp.sin(h), x, p)), *TYPES, fires=True)


def test_loops_that_skip_whole_steps():
    """What a loop stacks, `isolate-skipped-steps` looks at; the loop back stacks nothing."""
    graph = alone(ISOLATE, pair(where), *TYPES, fires=True)
    loops = [op for op in graph.walk() if isinstance(op, Scan)]
    assert [any(isinstance(op, Cond) for op in loop.walk()) for loop in loops] == [False, True]


def test_rows_that_xla_divides():
    """(4) Devices would ask each other."""
    mesh = AbstractMesh((2,), ("d",), axis_types=(AxisType.Explicit,))

    def program(h, xs, asked, g):
        with jax.sharding.use_abstract_mesh(mesh):
            spec = PartitionSpec(None, "d")
            h, g = (jax.sharding.reshard(v, PartitionSpec("d")) for v in (h, g))
            xs, asked = (jax.sharding.reshard(v, spec) for v in (xs, asked))
            return handed(rows_in_a_branch)(h, xs, asked, g)

    check_refuses(ISOLATE, program, *ROWS, because="divide the rows over devices")
