"""A step that is skipped becomes a branch, where nobody looks at what it leaves out."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.insight.journal import collect_journals
from jaxpr_opt.ir.graph import TERMINATOR, UNDEFINED, Cond, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.traits import dead_ops
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.passes.steps.isolate_skipped_steps import IsolateSkippedSteps
from jaxpr_opt.testing import assert_close, check_refuses, run_alone, traced
from tests.graphs import scans
from tests.loops import alone, paths, unspecified
from tests.prices import EAGER

ISOLATE = IsolateSkippedSteps()
SCALARS = IsolateSkippedSteps("scalars")
AT_LAST = IsolateSkippedSteps("scalars", at_last=True)
TYPES = ("f32[2]", "f32[6,2]", "bool[6,2]")


def pair(handed, back, mask=lambda p: p, step=jnp.sin):
    """A loop over a batch that hands `handed` to a loop back, which skips with it."""

    def program(c, xs, masks):
        def body(c, row):
            x, p = row
            return jnp.where(p, step(c) + x, c), (handed(c, x, p), mask(p))

        c, (rows, taken) = lax.scan(body, c, (xs, masks))
        return lax.scan(lambda a, row: (back(a, *row), None), c, (rows, taken), reverse=True)[0]

    return program


def masked(a, r, p):
    """A step back that skips as the step did."""
    return jnp.where(p, a * r, a)


def test_the_step_of_a_batch_becomes_a_branch():
    graph = alone(ISOLATE, pair(lambda c, x, p: jnp.cos(c) * x, masked), *TYPES, fires=True)
    forward = scans(graph)[0]
    assert sum(isinstance(op, Cond) for op in forward.body.ops) == 1


def test_a_residual_that_no_step_gives_a_value():
    """It is made in the branch, and unspecified in the other one as well."""

    def program(c, xs, masks):
        def body(c, row):
            x, p = row
            nothing = unspecified(c)
            row = jnp.cos(c) * x, jnp.where(p, jnp.sin(x), nothing), p
            return jnp.where(p, jnp.sin(c) + x, c), row

        c, rows = lax.scan(body, c, (xs, masks))
        back = lambda a, row: (jnp.where(row[2], a * row[0] + row[1], a), None)
        return lax.scan(back, c, rows, reverse=True)[0]

    alone(ISOLATE, program, *TYPES, fires=True)


def test_what_is_written_of_a_step_is_written_after_the_branch():
    """XLA would copy an array that a branch writes into."""

    def program(c, xs, masks):
        def body(carry, row):
            (c, ys), (t, x, p) = carry, row
            y = jnp.sin(c) + x
            ys = lax.dynamic_update_slice(ys, jnp.where(p, y, 0.0)[None], (t, 0))
            return (jnp.where(p, y, c), ys), (jnp.cos(c) * x, p)

        given = jnp.arange(6), xs, masks
        (c, ys), (rows, taken) = lax.scan(body, (c, jnp.zeros((6, 2))), given)
        back = lambda a, row: (masked(a, *row), None)
        return lax.scan(back, c, (rows, taken), reverse=True)[0], ys

    graph = alone(ISOLATE, program, *TYPES, fires=True)
    forward = scans(graph)[0]
    (branch,) = (op for op in forward.body.ops if isinstance(op, Cond))
    assert [v.shape for v in branch.results] == [(2,), (2,), (1, 2)]


@pytest.mark.parametrize(
    ("back", "mask"),
    [
        (lambda a, r, p: a + r, lambda p: p),
        (masked, lambda p: ~p),
        (lambda a, r, p: jnp.where(p, a, a * r), lambda p: p),
        (lambda a, r, p: jnp.where(r > 0, a * 2, a), lambda p: p),
    ],
)
def test_a_loop_back_that_looks(back, mask):
    """(2) Always, in the steps that are skipped, or to know whether to skip."""
    program = pair(lambda c, x, p: jnp.cos(c) * x, back, mask)
    check_refuses(ISOLATE, program, *TYPES, because="is read in skipped steps")


def test_a_predicate_that_is_handed_over_as_a_number():
    """(2) It is zero in steps that are skipped, and compared with one."""
    back = lambda a, r, p: jnp.where(p == 1, a * r, a)
    program = pair(lambda c, x, p: jnp.cos(c) * x, back, lambda p: p.astype(jnp.int32))
    alone(ISOLATE, program, *TYPES, fires=True)


ONE = ("f32[]", "f32[6]", "bool[6]")
"""A predicate of all rows."""


def test_a_predicate_of_all_rows():
    """(1) It was looked at before, where a step takes longer than asking."""
    program = pair(lambda c, x, p: jnp.cos(c) * x, masked)
    alone(ISOLATE, program, *ONE, fires=False)
    alone(SCALARS, program, *ONE, fires=False)
    with using(EAGER):
        alone(SCALARS, program, *ONE, fires=True)
        alone(SCALARS, program, *TYPES, fires=False)


def test_nothing_is_computed_in_a_skipped_step_for_nobody():
    """Nor what could be computed there: what it keeps is enough for it."""
    program = pair(lambda c, x, p: (jnp.cos(c) * x, jnp.cos(c)), lambda a, r, p: masked(a, r[1], p))
    with using(EAGER):
        graph = alone(SCALARS, program, *ONE, fires=True)
    (cond,) = (op for op in graph.walk() if isinstance(op, Cond))
    assert {op.name for op in cond.branches[0].ops} == {UNDEFINED, TERMINATOR}


def test_what_would_be_computed_of_what_is_kept():
    """It is left out where nobody reads it, of one predicate a step."""

    def program(c):
        def body(c, _):
            p = c < 1
            return jnp.where(p, jnp.sin(c) + 0.3, c), (jnp.cos(c), p)

        c, rows = lax.scan(body, c, None, length=6)
        return lax.scan(lambda a, row: (masked(a, *row), None), c, rows, reverse=True)[0]

    with using(EAGER):
        alone(SCALARS, program, "f32[]", fires=True)


def keeping(back):
    """A loop that hands over what a skipped step keeps, and a loop back."""

    def program(c):
        def body(c, _):
            p = c < 1
            return jnp.where(p, c + 0.3, c), (c, p)

        c, rows = lax.scan(body, c, None, length=6)
        return lax.scan(lambda a, row: (back(a, *row), None), c, rows, reverse=True)[0]

    return program


def powers(w):
    """Its gradient multiplies rows by cotangents, which are zero in skipped steps."""
    body = lambda c, _: (jnp.where(c < 1, w * c, c), None)
    return lax.scan(body, 0.1 + 0.0 * w, None, length=6)[0]


@pytest.mark.parametrize(("program", "branches"), [(keeping(masked), 0), (jax.grad(powers), 1)])
def test_rows_of_what_a_skipped_step_keeps(program, branches):
    """(2, 5) At last they are anything; where they are multiplied by zeros, that is in a branch."""
    with using(EAGER):
        alone(SCALARS, program, "f32[]", fires=False)
        graph = alone(AT_LAST, program, "f32[]", fires=True)
    ops = list(graph.walk())
    assert any(op.name == UNDEFINED for op in ops)
    assert sum(isinstance(op, Cond) for op in ops) == branches


@pytest.mark.parametrize("back", [lambda a, r, p: a + r, lambda a, r, p: jnp.where(p, a, a * r)])
def test_rows_of_what_a_skipped_step_keeps_are_read(back):
    """(2) Then they stay, as do rows of a batch."""
    with using(EAGER):
        alone(AT_LAST, keeping(back), "f32[]", fires=False)
        alone(AT_LAST, keeping(back), "f32[3]", fires=False)


def counted_on(offset=3, *, first=3, count=lambda p: p.astype(jnp.int32), start=0):
    """A loop that goes on counting where another has stopped, and a loop back over its steps."""

    def program(c, bound):
        def taken(c, k, counted):
            p = c[0] < bound
            return jnp.where(p, c + 1, c), k + counted(p)

        before = lambda carry, _: (taken(*carry, count), None)
        then = lambda carry, _: (taken(*carry, lambda p: p.astype(jnp.int32)), carry[0])
        state, _ = lax.scan(before, (c, jnp.int32(start)), None, length=first)
        (c, k), rows = lax.scan(then, state, None, length=5)
        numbers = lax.slice(lax.iota(jnp.int32, 12), (offset,), (offset + 5,))
        back = lambda a, row: (lax.cond(row[0] < k, lambda: a * row[1] - 3, lambda: a), None)
        return lax.scan(back, c, (numbers, rows), reverse=True)[0]

    return program


@pytest.mark.parametrize("bound", [-9.0, 0.0, 2.0, 3.0, 5.0, 99.0, jnp.nan])
@pytest.mark.parametrize("offset", [3, 4])
def test_rows_of_a_loop_that_goes_on_counting(bound, offset):
    """(2) As many steps were counted before as there are numbers before the loop's, or fewer."""
    with using(EAGER):
        alone(AT_LAST, counted_on(offset), jnp.zeros(3), jnp.float32(bound), fires=True)


@pytest.mark.parametrize("bound", [2.0, 5.0])
@pytest.mark.parametrize(
    "program",
    [
        counted_on(2),
        counted_on(first=4),
        counted_on(start=2),
        counted_on(count=lambda p: 2 * p.astype(jnp.int32)),
        counted_on(count=lambda p: 7),
    ],
)
def test_rows_of_a_loop_that_goes_on_from_more(bound, program):
    """(2) More may have been counted: the loop back reads rows of steps that were skipped."""
    with using(EAGER):
        alone(AT_LAST, program, jnp.zeros(3), jnp.float32(bound), fires=False)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_value_that_is_stacked_twice(order):
    """(2) Nobody reads one of the stacks in skipped steps; the other one is read always."""

    def program(c, xs, masks):
        def body(c, row):
            (x, p), r = row, jnp.cos(c)
            return jnp.where(p, jnp.sin(c) + x, c), (r, r, p)

        c, rows = lax.scan(body, c, (xs, masks))
        some, every = (rows[k] for k in order)
        skips = lambda a, row: (jnp.where(row[1], a * row[0], a), None)
        adds = lambda a, r: (a + r, None)
        a = lax.scan(skips, c, (some, rows[2]), reverse=True)[0]
        return a, lax.scan(adds, c, every, reverse=True)[0]

    with using(EAGER):
        alone(SCALARS, program, *ONE, fires=True)


def nest(back, mask=lambda p: p):
    """A loop of such loops, and a loop back of loops back."""

    def program(c, xs, masks):
        def body(c, row):
            x, p = row
            return jnp.where(p, jnp.sin(c) + x, c), (jnp.cos(c) * x, mask(p))

        outer = lambda c, rows: lax.scan(body, c, rows)
        c, rows = lax.scan(outer, c, (xs, masks))
        inner = lambda a, row: (back(a, *row), None)
        outer = lambda a, rows: (lax.scan(inner, a, rows, reverse=True)[0], None)
        return lax.scan(outer, c, rows, reverse=True)[0]

    return program


NEST = ("f32[2]", "f32[3,6,2]", "bool[3,6,2]")


def test_a_nest():
    """(2) The rows are stacked by the loop around, and read in a loop of loops."""
    alone(ISOLATE, nest(masked), *NEST, fires=True)
    with using(EAGER):
        alone(SCALARS, nest(masked), "f32[]", "f32[3,6]", "bool[3,6]", fires=True)


@pytest.mark.parametrize(
    ("back", "mask"), [(lambda a, r, p: a + r, lambda p: p), (masked, lambda p: ~p)]
)
def test_a_nest_back_that_looks(back, mask):
    """(2) Always, or in the steps that are skipped."""
    check_refuses(ISOLATE, nest(back, mask), *NEST, because="is read in skipped steps")


def test_a_nest_that_is_read_in_another_order():
    """(2) Row `i, j` of one is row `j, i` of the other."""

    def program(c, xs, masks):
        def body(c, row):
            x, p = row
            return jnp.where(p, jnp.sin(c) + x, c), jnp.cos(c) * x

        c, rows = lax.scan(lambda c, rows: lax.scan(body, c, rows), c, (xs, masks))
        inner = lambda a, row: (masked(a, *row), None)
        outer = lambda a, rows: (lax.scan(inner, a, rows, reverse=True)[0], None)
        turned = masks.swapaxes(0, 1)
        return lax.scan(outer, c, (rows, turned), reverse=True)[0]

    types = "f32[2]", "f32[3,3,2]", "bool[3,3,2]"
    check_refuses(ISOLATE, program, *types, because="is read in skipped steps")


def whole(c, rows, p, q):
    return rows + c


def carried(c, rows, p, q):
    return lax.scan(lambda a, p: (jnp.where(p, a * 2, a), None), rows, p)[0]


def another(c, rows, p, q):
    return lax.scan(lambda a, x: (jnp.where(x[1], a * x[0], a), None), c, (rows, q))[0]


def stacked(c, rows, p, q):
    step = lambda a, x: (jnp.where(x[1], a * x[0], a), a * x[0])
    return lax.scan(step, c, (rows, p))


@pytest.mark.parametrize("later", [whole, carried, another, stacked])
def test_readers_that_look(later):
    """(2) They need every row, skip by another predicate, or stack what they make of a row."""

    def program(c, xs, p, q):
        def body(c, row):
            x, p = row
            return jnp.where(p, jnp.sin(c) + x, c), jnp.cos(c) * x

        c, rows = lax.scan(body, c, (xs, p))
        return later(c, rows, p, q)

    because = "is read in skipped steps"
    check_refuses(ISOLATE, program, *TYPES, "bool[6,2]", because=because)


def test_a_reader_whose_predicate_is_not_known_in_skipped_steps():
    """(2) What is stacked for it is no number then."""

    def program(c, xs, p, q):
        def body(c, row):
            x, p, q = row
            return jnp.where(p, jnp.sin(c) + x, c), (jnp.cos(c) * x, q | (c > 0))

        c, (rows, others) = lax.scan(body, c, (xs, p, q))
        return another(c, rows, p, others)

    because = "is read in skipped steps"
    check_refuses(ISOLATE, program, *TYPES, "bool[6,2]", because=because)


def told(x):
    """A number that is also printed."""
    jax.debug.callback(lambda _: None, x)
    return x


def doubled(x):
    """A number doubled as often as it takes; never enough if it is 0."""
    return lax.while_loop(lambda x: jnp.all(x < 9), lambda x: x * 2, x)


@pytest.mark.parametrize("step", [told, lambda c: lax.psum(c, "rows")])
def test_a_step_that_acts(step):
    """(3) Whoever prints what a step computes, or waits for it, does so in each."""
    program = across(pair(lambda c, x, p: jnp.cos(c) * x, masked, step=step))
    check_refuses(ISOLATE, program, *TYPES, because="a step has effects or communicates")


def test_a_loop_back_that_acts_otherwise():
    """(4) What is printed is of another array."""
    back = lambda a, r, p: masked(a, r, told(p))
    program = pair(lambda c, x, p: jnp.cos(c) * x, back)
    alone(ISOLATE, program, *TYPES, fires=True)


def solved(r):
    """The solution of a system of equations, found by a loop."""
    return lax.custom_linear_solve(lambda x: 2 * x, r, lambda _, r: doubled(r), symmetric=True)


@pytest.mark.parametrize("step", [told, lambda r: lax.psum(r, "rows"), doubled, solved])
def test_a_loop_back_that_acts(step):
    """(4) What is made of a row that no step has computed is printed, or sent; or never ends."""
    back = lambda a, r, p: jnp.where(p, a * step(r), a)
    program = across(pair(lambda c, x, p: jnp.cos(c) * x, back))
    check_refuses(ISOLATE, program, *TYPES, because="is read in skipped steps")


def across(program):
    """The program on devices each of which has some rows of the batch."""
    spec = PartitionSpec
    specs = spec("rows"), spec(None, "rows"), spec(None, "rows")
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    return jax.shard_map(
        program, mesh=mesh, in_specs=specs, out_specs=spec("rows"), check_vma=False
    )


def test_a_nest_back_that_multiplies_with_zeros():
    """(5) Zero divided by what was left out is none: its steps become branches, too."""

    def settled(x, row):
        def step(state, _):
            z, done = state
            w = z + jnp.tanh(row)
            w = w / jnp.sqrt(jnp.sum(w * w))
            return (jnp.where(done, z, w), done | (jnp.sum((w - z) ** 2) < 1e-2)), None

        return lax.scan(step, (x, False), None, length=6)[0][0]

    def loss(x, rows):
        step = lambda x, row: (settled(x, row) + x, None)
        return jnp.sum(lax.scan(step, x, rows)[0])

    with using(EAGER):
        args = jnp.arange(1.0, 4.0), jnp.ones((3, 3))
        graph = alone(SCALARS, jax.grad(loss), *args, fires=True)
    loops = [op for op in scans(graph) if op.length == 6]
    assert [sum(isinstance(op, Cond) for op in loop.body.ops) for loop in loops] == [1, 1]
    assert all(op.name != "select_n" for op in loops[1].body.ops)  # the branch is enough


@jax.custom_vjp
def heard(x, t):
    """A number whose cotangent is printed with another one."""
    return x


heard.defvjp(lambda x, t: (x, t), lambda t, ct: (ct + 0 * told(t), None))


def test_a_loop_back_that_acts_and_multiplies_with_zeros():
    """(3) It would have to become a branch, too."""

    def settled(x, row):
        def step(state, t):
            z, done = state
            w = z + jnp.tanh(row)
            w = heard(w / jnp.sqrt(jnp.sum(w * w)), t)
            return (jnp.where(done, z, w), done | (jnp.sum((w - z) ** 2) < 1e-2)), None

        return lax.scan(step, (x, False), jnp.arange(6.0))[0][0]

    loss = jax.grad(lambda x, row: jnp.sum(settled(x, row)))
    with using(EAGER):
        check_refuses(SCALARS, loss, *["f32[3]"] * 2, because="cannot become a branch")


def rooted(w, c, xs, masks):
    """A sum of what a loop over a batch computes, whose derivative divides by residuals."""

    def row(c, xs, mask):
        def step(state, row):
            (c, count), (x, p) = state, row
            y = (c + w[count]) / (jnp.abs(c) + x)
            return (jnp.where(p, y, c), count + 1), None

        return lax.scan(step, (c, 0), (xs, mask))[0][0]

    return jnp.sum(jax.vmap(row)(c, xs, masks))


@pytest.mark.parametrize("argnums", [0, 1, (0, 1, 2)])
def test_what_a_batch_keeps_of_products_with_zeros(argnums):
    """(5) What a loop back carries is selected: a branch would copy sums of the batch."""
    masks = (jnp.arange(6) % 5 < 2) & (jnp.arange(3)[:, None] < 2)
    xs = jnp.arange(1.0, 91.0).reshape(3, 6, 5)
    args = jnp.arange(1.0, 7.0), jnp.ones((3, 5)), xs, masks
    graph = alone(ISOLATE, jax.grad(rooted, argnums), *args, fires=True)
    forward, back = scans(graph)
    assert any(isinstance(op, Cond) for op in forward.body.ops)
    assert not any(isinstance(op, Cond) for op in back.body.ops)


def looked_up(w, c, xs, masks):
    """Each row of the batch reads a place of its own."""
    at = (xs[:, :, 0].astype(int) * 7) % 6

    def row(c, x, i, p):
        def step(c, row):
            x, i, p = row
            return jnp.where(p, (c + w[i]) / (jnp.abs(c) + x), c), None

        return lax.scan(step, c, (x, i, p))[0]

    return jnp.sum(jax.vmap(row)(c, xs, at, masks))


def put_together(w, c, xs, masks):
    """A step reads what is at a known place, twice."""

    def row(c, xs, mask):
        def step(c, row):
            x, p = row
            return jnp.where(p, (c + w[1]) / (jnp.abs(c) + x) + w[4] * c, c), None

        return lax.scan(step, c, (xs, mask))[0]

    return jnp.sum(jax.vmap(row)(c, xs, masks))


def whole_and_part(w, c, xs, masks):
    """All of it is read, too."""

    def row(c, xs, mask):
        def step(c, row):
            x, p = row
            return jnp.where(p, (c + w[1]) / (jnp.abs(c) + x) + jnp.sum(w * w) * c, c), None

        return lax.scan(step, c, (xs, mask))[0]

    return jnp.sum(jax.vmap(row)(c, xs, masks))


@pytest.mark.parametrize(
    ("program", "selects"),
    [(rooted, 0), (looked_up, 0), (put_together, 0), (whole_and_part, 1)],
)
def test_what_a_batch_adds_to_windows(program, selects):
    """(5) What is added is selected, not the sums: XLA would copy these in each step."""
    masks = (jnp.arange(6) % 5 < 2) & (jnp.arange(3)[:, None] < 2)
    xs = jnp.arange(1.0, 91.0).reshape(3, 6, 5)
    args = jnp.arange(1.0, 7.0), jnp.ones((3, 5)), xs, masks
    graph = alone(ISOLATE, jax.grad(program), *args, fires=True)
    back = scans(graph)[1]
    whole = [op for op in back.body.ops if op.name == "select_n" and op.result.shape == (6,)]
    assert len(whole) == selects


@jax.custom_vjp
def settling(w, c, xs, masks):
    """A loop of a batch whose rule counts the steps back, and gives something for each."""
    return settling_forth(w, c, xs, masks)[0]


def settling_forth(w, c, xs, masks):
    def step(c, row):
        x, p = row
        d = jnp.abs(c) + x
        return jnp.where(p, (c + 1) / d, c), d

    c, ds = lax.scan(step, c, (xs, masks))
    return c, (w, ds, masks)


def settling_back(residuals, ct):
    w, *rows = residuals

    def step(state, row):
        (a, count), (d, p) = state, row
        made = jnp.where(p, a, 0.0) / d
        return (made * w[count] + jnp.where(p, 0.0, a), count + 1), made * 2

    (a, _), cts = lax.scan(step, (ct, 0), tuple(rows), reverse=True)
    return None, a, cts, None


settling.defvjp(settling_forth, settling_back)


def test_what_a_batch_counts_and_stacks():
    """(5) Steps are counted that no row takes, and give zeros, not zero divided by anything."""

    def loss(w, c, xs, masks):
        return jnp.sum(jax.vmap(settling, (None, 0, 1, 1))(w, c, xs, masks))

    masks = (jnp.arange(6)[:, None] % 5 < 2) & (jnp.arange(3) < 2)
    args = jnp.arange(1.0, 7.0), jnp.arange(1.0, 4.0), jnp.arange(1.0, 19.0).reshape(6, 3), masks
    alone(ISOLATE, jax.grad(loss, (1, 2)), *args, fires=True)


PATHS = ("f32[]", "f32[64,256]", "f32[]")


def test_cheap_steps_of_a_batch():
    """They are left: `exit-loop-early` stops both loops, and asks after several steps."""
    alone(ISOLATE, jax.grad(paths()), *PATHS, fires=False)
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), (64, 256), ())]
    with collect_journals() as journals:
        optimize(jax.grad(paths())).lower(*types)
    assert not journals[-1].records[ISOLATE.name].rewrites
    assert len(journals[-1].records["exit-loop-early"].rewrites) == 1


def test_a_choice_of_nothing_that_a_loop_makes_that_stops():
    """The loop stacks what it computes: no step asks for that whether any row takes it."""

    def program(c, xs):
        def body(c, x):
            p = c < 1
            row = jnp.where(jnp.any(p), jnp.cos(c) * x, unspecified(c))
            return jnp.where(p, c + jnp.exp(x), c), row

        return lax.scan(body, c, xs)

    graph = alone(ExitLoopEarly(), program, "f32[256]", "f32[64,256]", fires=True)
    (loop,) = (op for op in graph.walk() if isinstance(op, While))
    assert not any(op.name == "reduce_or" for op in {*loop.body.ops} - dead_ops(loop.body))


@pytest.mark.slow
@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("order", ["above grad", "below grad"])
def test_a_batch_whose_rows_all_skip_in_between(order, stacks):
    """(5) What is left out of a step that no row takes is divided by in the loop back."""

    def row(w, c, xs, mask):
        def step(c, row):
            x, p = row
            y = jnp.sqrt(jnp.abs(c) + x) * w
            return jnp.where(p, y, c), jnp.where(p, y, 0.0) if stacks else None

        c, ys = lax.scan(step, c, (xs, mask))
        return jnp.sum(c) + sum(map(jnp.sum, jax.tree.leaves(ys)))

    loss = lambda w, *args: jnp.sum(jax.vmap(row, (None, 0, 0, 0))(w, *args))
    gradient = jax.grad(loss)
    optimised = optimize(gradient) if order == "above grad" else jax.grad(optimize(loss))
    xs, masks = jnp.arange(1.0, 721.0).reshape(6, 24, 5), jnp.arange(24) % 5 < jnp.full((6, 1), 2)
    args = jnp.ones(5), jnp.ones((6, 5)), xs, masks
    with collect_journals() as journals:
        found = jax.jit(optimised)(*args)
    records = [journal.records.get(ISOLATE.name) for journal in journals]
    assert any(record.rewrites for record in records if record is not None)
    assert jnp.allclose(found, jax.jit(gradient)(*args), rtol=1e-6)


def test_a_step_that_is_a_branch_already():
    """A batch in a nest: its predicate is reduced to one, of which the step is a branch then."""

    def solved(y0):
        def go(c):
            y = jnp.linalg.solve(jnp.eye(3) + jnp.outer(c[0], c[0]), y0)
            return y, lax.stop_gradient(jnp.max(jnp.abs(y - c[0])))

        body = lambda c, _: (lax.cond(c[1] > 1e-3, go, lambda c: c, c), None)
        return lax.scan(body, (y0, 1.0), None, length=6)[0][0]

    def loss(ys):
        step = lambda y, _: (y := solved(y), jnp.sum(y**2))
        return jnp.sum(jax.vmap(lambda y: lax.scan(step, y, None, length=4)[1])(ys))

    with collect_journals() as journals, using(EAGER):
        optimize(jax.grad(loss)).lower(jnp.ones((2, 3)))
    fired = [r for j in journals for r in j.records.values() if r.name == ISOLATE.name]
    assert 0 < sum(len(record.rewrites) for record in fired) < 9


@pytest.mark.parametrize(
    ("row", "is_read"),
    [(lambda i, after: i, True), (lambda i, after: after, True), (lambda i, after: -i, False)],
)
def test_rows_that_a_branch_would_not_leave_out(row, is_read):
    """They are made outside of it, or nobody reads them: it would be put into a branch forever."""

    def program(c, k):
        def body(state, _):
            c, i = state
            p, after = c < 6, i + k
            return (jnp.where(p, jnp.sin(c) + 2, c), after), (row(i, after), p)

        (c, _), (rows, taken) = lax.scan(body, (c, k), None, length=6)
        back = lambda a, row: (jnp.where(row[-1], a * row[0], a), None)
        return lax.scan(back, c, (rows, taken) if is_read else (taken,), reverse=True)[0]

    with using(EAGER):
        alone(SCALARS, program, "f32[]", "i32[]", fires=False)


def smoothed(how, made, read):
    """A masked loop, and a masked loop back that reads its rows as long as they are finite."""

    def program(c, bound):
        def body(c, _):
            p, v = c[0] < bound, jnp.sin(c) ** 2 + 0.3
            new = (
                jnp.where(p, c + v, c) if how == "where" else lax.cond(p, lambda: c + v, lambda: c)
            )
            return new, (c if made == "kept" else v * 2, p)

        def back(a, each):
            row, p = each
            taken = lambda: a * jnp.log(row) + a if read == "log" else a / row
            return (
                jnp.where(p, taken(), a) if how == "where" else lax.cond(p, taken, lambda: a)
            ), None

        c, rows = lax.scan(body, c, None, length=9)
        return lax.scan(back, c, rows, reverse=True)[0].sum()

    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "made", "read"),
    [("where", "kept", "log"), ("where", "made", "over"), ("cond", "kept", "over")],
)
def test_what_jax_differentiates_later(how, made, read):
    """(6) In a batch, it multiplies zeros by functions of the rows of steps that others take."""
    program = smoothed(how, made, read)
    cs, bounds = jnp.ones((3, 4)), jnp.array([1.5, 9.0, 3.0])
    loss = lambda f: lambda c, bounds: jnp.sum(jax.vmap(f)(c, bounds))
    ways = [
        lambda f: jax.grad(loss(f)),
        lambda f: jax.grad(loss(jax.checkpoint(f))),
        lambda f: jax.grad(lambda *args: jnp.sum(jax.vmap(jax.grad(f))(*args) ** 2)),
    ]
    with using(EAGER):
        optimized = optimize(program)
        for way in ways:
            assert_close(jax.jit(way(program))(cs, bounds), jax.jit(way(optimized))(cs, bounds))
        final = import_jaxpr(traced(program, cs[0], bounds[0]), "final")
        run_alone((AT_LAST if made == "kept" else SCALARS,), final)
    assert any(op.name == UNDEFINED for op in final.walk())
