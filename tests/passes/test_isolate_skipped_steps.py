"""The step of a batch becomes a branch, where nobody looks at what it leaves out."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jaxpr_opt.engine.ir import Cond, Scan
from jaxpr_opt.passes.steps.isolate_skipped_steps import IsolateSkippedSteps
from jaxpr_opt.testing import check_refuses
from tests.loops import alone, unspecified

ISOLATE = IsolateSkippedSteps()
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
    forward = next(op for op in graph.walk() if isinstance(op, Scan))
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
    forward = next(op for op in graph.walk() if isinstance(op, Scan))
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
    check_refuses(ISOLATE, program, *TYPES, because="is read where no step was taken")


def test_a_predicate_that_is_handed_over_as_a_number():
    """(2) It is zero in steps that are skipped, and compared with one."""
    back = lambda a, r, p: jnp.where(p == 1, a * r, a)
    program = pair(lambda c, x, p: jnp.cos(c) * x, back, lambda p: p.astype(jnp.int32))
    alone(ISOLATE, program, *TYPES, fires=True)


def test_a_predicate_of_all_rows():
    """(1) There is a branch already, or XLA makes one."""
    program = pair(lambda c, x, p: jnp.cos(c) * x, masked)
    alone(ISOLATE, program, "f32[]", "f32[6]", "bool[6]", fires=False)


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

    because = "is read where no step was taken"
    check_refuses(ISOLATE, program, *TYPES, "bool[6,2]", because=because)


def test_a_reader_whose_predicate_is_not_known_in_skipped_steps():
    """(2) What is stacked for it is no number then."""

    def program(c, xs, p, q):
        def body(c, row):
            x, p, q = row
            return jnp.where(p, jnp.sin(c) + x, c), (jnp.cos(c) * x, q | (c > 0))

        c, (rows, others) = lax.scan(body, c, (xs, p, q))
        return another(c, rows, p, others)

    because = "is read where no step was taken"
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


@pytest.mark.parametrize("step", [told, lambda r: lax.psum(r, "rows"), doubled])
def test_a_loop_back_that_acts(step):
    """(4) What is made of a row that no step has computed is printed, or sent; or never ends."""
    back = lambda a, r, p: jnp.where(p, a * step(r), a)
    program = across(pair(lambda c, x, p: jnp.cos(c) * x, back))
    check_refuses(ISOLATE, program, *TYPES, because="is read where no step was taken")


def across(program):
    """The program on devices each of which has some rows of the batch."""
    spec = PartitionSpec
    specs = spec("rows"), spec(None, "rows"), spec(None, "rows")
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    return jax.shard_map(
        program, mesh=mesh, in_specs=specs, out_specs=spec("rows"), check_vma=False
    )
