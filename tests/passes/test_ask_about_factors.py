"""Factors that make a step do nothing where they are zero are asked whether they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.passes.steps.ask_about_factors import AskAboutFactors
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    assert_same_derivatives,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone
from tests.prices import EAGER

ASK = AskAboutFactors()
STEPS, ROWS, SIZE = 6, 2, 3
ROWS_GIVEN = 0.3 * jnp.arange(1.0, 1 + STEPS * ROWS * SIZE).reshape(STEPS, ROWS, SIZE)
WEIGHTS = 0.2 * jnp.eye(SIZE) + 0.1
LENGTHS = [[2, 4], [6, 1], [0, 0], [3, 3]]


def mask_of(lengths):
    return (jnp.arange(STEPS)[:, None] < jnp.array(lengths)).astype("float32")


def blended(weights, h, rows, mask):
    """The state of each sequence stays as it is where the mask is zero."""

    def step(h, z):
        row, m = z
        new = jnp.tanh(row + h @ weights)
        return m[:, None] * new + (1 - m[:, None]) * h, None

    return lax.scan(step, h, (rows, mask))[0]


def moved_on(weights, h, rows, mask):
    """The same by a difference, which is zero."""

    def step(h, z):
        row, m = z
        return h + m[:, None] * (jnp.tanh(row + h @ weights) - h), None

    return lax.scan(step, h, (rows, mask))[0]


def summed(weights, h, rows, mask):
    """Losses of which those of padded steps are dropped; the state goes on."""

    def step(c, z):
        (h, total), (row, m) = c, z
        h = jnp.tanh(row + h @ weights)
        return (h, total + jnp.sum(m * jnp.mean(h**2, axis=1))), None

    return lax.scan(step, (h, 0.0), (rows, mask))[0][1] / jnp.sum(mask)


def two_states(weights, h, rows, mask):
    """Both states of a network, in reverse."""

    def step(c, z):
        (h, s), (row, m) = c, z
        m = m[:, None]
        new = jax.nn.sigmoid(row) * s + jnp.tanh(h @ weights)
        h, s = m * jnp.tanh(new) + (1 - m) * h, m * new + (1 - m) * s
        return (h, s), None

    return lax.scan(step, (h, h + 1.0), (rows, mask), reverse=True)[0]


def each(weights, h, rows, mask):
    """A sequence by itself, in a batch."""

    def one(h, rows, mask):
        step = lambda h, z: (z[1] * jnp.tanh(z[0] + h @ weights) + (1 - z[1]) * h, None)
        return lax.scan(step, h, (rows, mask))[0]

    return jax.vmap(one, in_axes=(0, 1, 1))(h, rows, mask)


def two_masks(weights, h, rows, mask):
    """Two states, which end at lengths of their own."""

    def step(c, z):
        (h, s), (row, m, k) = c, z
        m, k = m[:, None], k[:, None]
        new = m * jnp.tanh(row + h @ weights) + (1 - m) * h
        return (new, k * jnp.sin(row + s) + (1 - k) * s), None

    return lax.scan(step, (h, h + 1.0), (rows, mask, mask[:, ::-1]))[0]


def unlike_batches(weights, h, rows, mask):
    """A batch, one sequence, and a number that is no mask, of which a factor is made."""

    def step(c, z):
        (h, s), (row, m, one, k) = c, z
        new = m[:, None] * jnp.tanh(row + (1 - k[:, None]) * h @ weights) + (1 - m[:, None]) * h
        return (new, one * jnp.sin(row[0] + s) + (1 - one) * s), None

    rest = mask[:, 0], jnp.flip(mask, 0)
    return lax.scan(step, (h, h[0]), (rows, mask, *rest))[0]


PROGRAMS = {
    f.__name__: f for f in (blended, moved_on, summed, two_states, each, two_masks, unlike_batches)
}


def test_text():
    check_rewrite(
        ASK,
        blended,
        "f32[3,3]",
        "f32[2,3]",
        "f32[6,2,3]",
        "f32[6,2]",
        diff="""
        fn (weights:f32[3,3], h:f32[2,3], rows:f32[6,2,3], mask:f32[6,2]) {
          c:f32[2,3] = scan[6] carry(c=h) xs(x=rows, x1=mask) {
      +     b2:f32[2] = broadcast_in_dim 0.0
      +     n:bool[2] = ne x1 b2
      +     s1:f32[2] = select_n n x1 x1
            d:f32[2,3] = dot_general c weights
            a:f32[2,3] = add x d
            t:f32[2,3] = tanh a
      -     b:f32[2,1] = broadcast_in_dim[dims=(0,)] x1
      +     b:f32[2,1] = broadcast_in_dim[dims=(0,)] s1
            m:f32[2,3] = mul b t
      -     b1:f32[2,1] = broadcast_in_dim[dims=(0,)] x1
      +     b1:f32[2,1] = broadcast_in_dim[dims=(0,)] s1
            s:f32[2,1] = sub 1.0 b1
            m1:f32[2,3] = mul s c
            a1:f32[2,3] = add m m1
            yield carry(a1)
          }
          return c
        }
        """,
    )


def args_of(lengths, bad=None):
    rows = ROWS_GIVEN if bad is None else ROWS_GIVEN.at[5, 1, 0].set(bad)
    return WEIGHTS, jnp.ones((ROWS, SIZE)), rows, mask_of(lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, lengths):
    """Also if a row that does not count is no number."""
    args = args_of(lengths)
    plain, asked = traced(PROGRAMS[name], *args), alone(ASK, PROGRAMS[name], *args, fires=True)
    with using(EAGER):
        found, _ = observe.optimized(PROGRAMS[name], args, {})
    for bad in (None, jnp.inf, jnp.nan):
        args = args_of(lengths, bad)
        want = evaluate_exactly(plain, *args)
        assert_same_bits(evaluate_exactly(asked, *args), want)
        assert_same_bits(evaluate_exactly(found, *args), want)


def test_as_few_as_are_needed():
    """Of three factors, two together make a step do nothing: one truth value asks about these."""
    for program, asked in ((two_masks, 2), (unlike_batches, 2), (two_states, 1)):
        graph = alone(ASK, program, *args_of([2, 4]), fires=True)
        (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
        assert sum(op.name == "ne" for op in loop.body.ops) == asked


@pytest.mark.parametrize("factor", [-0.0, 1e-45, -2.0, jnp.nan, jnp.inf])
def test_factors_that_are_no_mask(factor):
    """Any number is a factor, and nothing but zero is one of a step that does nothing."""
    weights, h, rows, mask = args_of([2, 4])
    mask = mask.at[4, 1].set(factor)
    for program in (blended, moved_on, summed):
        graph = alone(ASK, program, weights, h, rows, mask, fires=True)
        want = evaluate_exactly(traced(program, weights, h, rows, mask), weights, h, rows, mask)
        assert_same_bits(evaluate_exactly(graph, weights, h, rows, mask), want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name):
    """By the mask, too: the derivative by a factor is the other one."""

    def loss(*args):
        return sum(jnp.sum(each**2) for each in jax.tree.leaves(PROGRAMS[name](*args)))

    args = args_of([2, 4])
    with using(EAGER):
        assert_same_derivatives(loss, optimize(loss), *args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loop_back_begins_with_the_last_row_that_counts(name):
    def loss(weights, *rest):
        return sum(jnp.sum(each**2) for each in jax.tree.leaves(PROGRAMS[name](weights, *rest)))

    args = args_of([2, 4])
    with using(EAGER):
        graph, _ = observe.optimized(jax.grad(loss), args, {})
    assert sum(isinstance(op, While) for op in graph.walk()) >= 1
    assert_close(evaluate_exactly(graph, *args), [jax.grad(loss)(*args)])


def test_a_derivative_by_the_mask():
    """(1) It is not zero where the mask is."""

    def program(x, rows, mask):
        step = lambda x, z: (x + z[1][:, None] * z[0], None)
        return jnp.sum(lax.scan(step, x, (rows, mask))[0])

    args = jnp.ones((ROWS, SIZE)), ROWS_GIVEN, mask_of([2, 4])
    found = jax.grad(optimize(program), argnums=2)(*args)
    np.testing.assert_allclose(found, jnp.sum(ROWS_GIVEN, axis=2), rtol=1e-6)


def test_a_derivative_of_the_gradient_by_the_mask():
    """(1) How the gradient changes with the weight of a sequence that does not count."""
    weights, h, rows, mask = args_of([2, 4])

    def gradient(loss):
        return lambda mask: jax.grad(loss)(weights, h, rows, mask)

    def loss(weights, h, rows, mask):
        return jnp.sum(blended(weights, h, rows, mask) ** 2)

    with using(EAGER):
        want = jax.jacfwd(gradient(loss))(mask)
        for found in (jax.jacfwd(gradient(optimize(loss))), jax.jacfwd(optimize(gradient(loss)))):
            np.testing.assert_allclose(found(mask), want, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- what is not asked


def scanned(step):
    return lambda h, rows, mask: lax.scan(step, h, (rows, mask))[0]


NOT_ASKED = {
    "a step that does something": lambda h, z: (0.9 * h + z[1][:, None] * z[0], None),
    "what is added": lambda h, z: (h + z[1][:, None], None),
    "what is divided by": lambda h, z: (h + z[1][:, None] / z[1][:, None], None),
    "a number for each element": lambda h, z: (h + z[0] * jnp.tanh(h), None),
}


@pytest.mark.parametrize("step", NOT_ASKED.values(), ids=NOT_ASKED)
def test_what_is_not_asked(step):
    alone(ASK, scanned(step), "f32[2,3]", "f32[6,2,3]", "f32[6,2]", fires=False)


def test_scales_of_layers():
    """Layers whose scales are all zero do nothing; but scales are no masks."""

    def layers(x, weights, first, second):
        def step(x, z):
            a, b = z
            x = x + (jnp.sin(x) * a) @ weights
            return x + (jnp.cos(x) * b) @ weights, None

        return lax.scan(step, x, (first, second))[0]

    scales = f"f32[{STEPS},{SIZE}]"
    alone(ASK, layers, f"f32[8,{SIZE}]", f"f32[{SIZE},{SIZE}]", scales, scales, fires=False)


def selective(by):
    """Rows scale what they are mapped to (`by` says how), and what comes of it alone is read."""

    def program(rows, b, c):
        def step(s, row):
            s = 0.9 * s + row[:, None] * by(row, b)
            return s, s @ by(row, c)

        return lax.scan(step, jnp.zeros((SIZE, 2)), rows)[1]

    return program


def test_rows_that_are_data():
    """The inputs of a selective scan do nothing where they are zero; but they are no mask. What
    no weights are multiplied by may be one.
    """
    args = f"f32[{STEPS},{SIZE}]", f"f32[{SIZE},2]", f"f32[{SIZE},2]"
    mapped = [
        lambda row, b: row @ b,
        lambda row, b: b.T @ row,
        lambda row, b: jnp.einsum("bi,bij->bj", row.reshape(1, -1), b[None])[0],
    ]
    for by in mapped:
        alone(ASK, selective(by), *args, fires=False)
    alone(ASK, selective(lambda row, b: jnp.sum(row[:, None] * b, axis=0)), *args, fires=True)


def test_a_mask_by_which_products_sum():
    """What a step makes is summed over the rows that count, by no weights."""

    def counted(h, rows, mask):
        def step(c, z):
            h, total = c
            row, m = z
            new = jnp.tanh(h + row)
            return (m[:, None] * new + (1 - m[:, None]) * h, total + m @ new), None

        return lax.scan(step, (h, jnp.zeros(SIZE)), (rows, mask))[0]

    alone(ASK, counted, "f32[2,3]", "f32[6,2,3]", "f32[6,2]", fires=True)


def test_a_number_of_each_step():
    """It is rather a rate, unless it is subtracted from one."""
    rate = lambda h, z: (h + z[1] * (z[0] - h), None)
    step = lambda h, z: (h + z[1] * (z[0] - z[1]), None)
    for each in (rate, step):
        alone(ASK, scanned(each), "f32[2,3]", "f32[6,2,3]", "f32[6]", fires=False)
    blend = lambda h, z: (z[1] * z[0] + (1 - z[1]) * h, None)
    alone(ASK, scanned(blend), "f32[2,3]", "f32[6,2,3]", "f32[6]", fires=True)


def test_a_mask_that_is_moved():
    step = lambda h, z: (h + z[1][:, None] * (z[0] - h), None)
    program = lambda h, rows, mask: scanned(step)(h, rows, mask.T[::-1])
    alone(ASK, program, "f32[2,3]", "f32[6,2,3]", "f32[2,6]", fires=True)


def test_what_the_program_computes():
    """It is no argument, and probably never zero."""

    def program(h, rows, scores):
        step = lambda h, z: (h + z[1][:, None] * (z[0] - h), None)
        return lax.scan(step, h, (rows, jax.nn.softmax(scores)))[0]

    alone(ASK, program, "f32[2,3]", "f32[6,2,3]", "f32[6,2]", fires=False)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_mask_that_is_made_before_the_loop(lengths):
    """A step sees numbers; that they were truth values is known."""

    def program(h, rows, lengths):
        mask = (lax.iota(jnp.int32, STEPS)[:, None] < lengths).astype(jnp.float32)
        return blended(WEIGHTS, h, rows, mask)

    args = jnp.ones((ROWS, SIZE)), ROWS_GIVEN, jnp.int32(lengths)
    alone(ASK, program, *args, fires=True)
    with using(EAGER):
        graph, _ = observe.optimized(program, args, {})
    assert any(isinstance(op, While) for op in graph.walk())
    assert_close(evaluate_exactly(graph, *args), [program(*args)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "complex64", "int32"])
def test_dtypes(dtype):
    with jax.enable_x64(True):
        rows, mask = ROWS_GIVEN.astype(dtype), mask_of([2, 4]).astype(dtype)
        program = scanned(lambda h, z: (z[1][:, None] * z[0] + (1 - z[1][:, None]) * h, None))
        args = jnp.ones((ROWS, SIZE), dtype), rows, mask
        graph = alone(ASK, program, *args, fires=dtype.endswith(("16", "64")) and dtype[0] != "c")
        assert_same_bits(
            evaluate_exactly(graph, *args), evaluate_exactly(traced(program, *args), *args)
        )


def test_residuals():
    """They are arguments of a backward half, and rather slopes than masks."""
    types = "f32[3,3]", "f32[2,3]", "f32[6,2,3]", "f32[6,2]"
    for is_backward in (False, True):
        graph = import_jaxpr(traced(blended, *types), "final")
        graph.is_backward = is_backward
        assert bool(run_alone((ASK,), graph).record(ASK.name, False).rewrites) is not is_backward


def test_residuals_of_a_batch(monkeypatch):
    """JAX batches the backward half of an optimised function by itself."""
    is_backward = []

    def asked(self, op):
        program = program_of(op)
        is_backward.append(program.is_backward or not op.source.transposed or program.cotangents)
        yield from ()

    def loss(h, rows):
        return jnp.sum(lax.scan(lambda h, x: (jnp.tanh(x + h) * h, None), h, rows)[0])

    monkeypatch.setattr(AskAboutFactors, "find", asked)
    args = jnp.ones((4, SIZE)), jnp.ones((4, STEPS, SIZE))
    jax.jit(jax.vmap(jax.grad(optimize(loss)))).lower(*args)
    assert len(is_backward) > 2 and all(is_backward)


def test_a_loop_that_skips_by_another_predicate():
    def program(h, rows, mask):
        def step(h, z):
            row, m = z
            new = h + m[:, None] * row
            return jnp.where(jnp.sum(h) < 9.0, new, h), None

        return lax.scan(step, h, (rows, mask))[0]

    graph = alone(ASK, program, "f32[2,3]", "f32[6,2,3]", "f32[6,2]", fires=False)
    assert any(isinstance(op, Scan) for op in graph.walk())
