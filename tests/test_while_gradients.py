"""Gradients of loops of unknown length, which JAX has none of, against those of unrolled loops."""

from dataclasses import dataclass
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxpr_opt import optimize, settings
from jaxpr_opt.cli.main import main
from jaxpr_opt.cost import limits
from jaxpr_opt.ir import checkpointed

W = 0.3 * jax.random.normal(jax.random.key(0), (4, 4))
X = jnp.array([0.3, -1.2, 0.8, 2.0])


def same(got, expected, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)


def unrolled(running, step, carry):
    """What `lax.while_loop` computes, for predicates that are known."""
    while running(carry):
        carry = step(carry)
    return carry


def of_weights(loop, n):
    def loss(w):
        return jnp.sum(
            loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(w @ c[1])), (0, X))[1]
        )

    return loss


def of_rows_by_keys(loop, n):
    """Integers and keys are carried, rows of a table are read, and what no step changes, too."""

    def step(carry):
        i, key, x, table = carry
        key, draw = jax.random.split(key)
        row = table[jax.random.randint(draw, (), 0, 4)]
        return i + 1, key, x * jnp.cos(row).sum() + table.mean(), table

    def loss(table):
        return loop(lambda c: c[0] < n, step, (0, jax.random.key(1), jnp.float32(1), table))[2]

    return lambda w: loss(w[:, :3])


def of_swapped(loop, n):
    def step(carry):
        i, x, y = carry
        return i + 1, y * 1.5, jnp.sin(x)

    return lambda w: jnp.sum(loop(lambda c: c[0] < n, step, (0, w[0], w[1]))[1])


def of_nested(loop, n):
    def step(carry):
        i, x = carry
        inner = loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) + x), (0, x))
        return i + 1, inner[1] / 2

    return lambda w: jnp.sum(loop(lambda c: c[0] < n, step, (0, w))[1])


def of_complex(loop, n):
    def step(carry):
        i, z = carry
        return i + 1, z * jnp.exp(1j * jnp.abs(z))

    return lambda w: jnp.sum(jnp.abs(loop(lambda c: c[0] < n, step, (0, w + 1j * w.T))[1].real))


def of_halves(loop, n):
    def step(carry):
        return carry[0] + 1, jnp.tanh(carry[1] * 1.25)

    return lambda w: jnp.sum(loop(lambda c: c[0] < n, step, (0, w.astype(jnp.bfloat16)))[1])


def of_nans(loop, n):
    """The second step is not a number."""

    def step(carry):
        i, x = carry
        return i + 1, jnp.where(i == 1, jnp.sqrt(-(x**2) - 1), jnp.sin(x))

    return lambda w: jnp.sum(loop(lambda c: c[0] < n, step, (0, w))[1])


def of_a_branch(loop, n):
    def step(carry):
        i, x = carry
        return i + 1, lax.cond(x[0, 0] > 0, jnp.cos, lambda x: x * 2, x)

    return lambda w: jnp.sum(loop(lambda c: c[0] < n, step, (0, w))[1])


LOSSES = [of_weights, of_rows_by_keys, of_swapped, of_nested, of_complex, of_halves, of_nans]
LOSSES += [of_a_branch]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch):
    """So few that short loops compute steps again."""
    monkeypatch.setattr(limits, "MOST_ROWS", 3)
    monkeypatch.setattr(limits, "LEAST_ROWS", 3)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_is_that_of_the_steps(loss):
    gradient = jax.jit(jax.grad(lambda w, n: optimize(loss(lax.while_loop, n))(w)))
    for n in (0, 1, 3, 4, 11) if loss is not of_nested else (0, 2, 4):
        same(gradient(W, n), jax.grad(loss(unrolled, n))(W), 1e-2 if loss is of_halves else 1e-5)


def newton(a):
    """The square root of `a`, in as many steps as it takes."""
    going = lambda c: jnp.abs(c[0] ** 2 - a) > 1e-5 * a
    return lax.while_loop(going, lambda c: ((c[0] + a / c[0]) / 2, c[1] + 1), (a, 0))[0]


AS = jnp.array([2.0, 3.0, 100.0])
SLOPES = 0.5 / jnp.sqrt(AS)


TRANSFORMED = {
    "grad": lambda f: jnp.stack([jax.grad(f)(a) for a in AS]),
    "vmap(grad)": lambda f: jax.vmap(jax.grad(f))(AS),
    "grad(vmap)": lambda f: jax.grad(lambda xs: jnp.sum(jax.vmap(f)(xs)))(AS),
    "value_and_grad": lambda f: jax.vmap(jax.value_and_grad(f))(AS)[1],
    "jit(grad(jit))": lambda f: jax.vmap(jax.jit(jax.grad(jax.jit(f))))(AS),
    "grad(checkpoint)": lambda f: jax.vmap(jax.grad(jax.checkpoint(f)))(AS),
    "grad(scan)": lambda f: jax.grad(lambda xs: jnp.sum(lax.map(f, xs)))(AS),
    "vjp": lambda f: jax.vjp(jax.vmap(f), AS)[1](jnp.ones(3))[0],
    "jacrev": lambda f: jnp.diag(jax.jacrev(jax.vmap(f))(AS)),
    "optimize(grad(optimize))": lambda f: jax.vmap(optimize(jax.grad(f)))(AS),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_under_transformations(name):
    same(TRANSFORMED[name](optimize(newton)), SLOPES, 1e-4)


@pytest.mark.parametrize("second", [jax.jacfwd, jax.grad])
def test_second_derivatives(second):
    curvature = second(jax.grad(optimize(newton)))(2.0)
    same(curvature, -0.25 * 2.0**-1.5, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("second", [jax.jacfwd, jax.grad])
def test_second_derivatives_of_nested_loops(second):
    of_scale = lambda loop: lambda a: of_nested(loop, 2)(a * W)
    curvature = jax.jit(second(jax.grad(optimize(of_scale(lax.while_loop)))))(0.7)
    same(curvature, jax.grad(jax.grad(of_scale(unrolled)))(0.7), 1e-4)


def test_forward_mode_is_as_before():
    same(jax.jvp(optimize(newton), (2.0,), (1.0,)), jax.jvp(newton, (2.0,), (1.0,)))
    same(
        jax.grad(lambda a: jax.jvp(optimize(newton), (a,), (1.0,))[1])(2.0), -0.25 * 2.0**-1.5, 1e-3
    )


def test_it_is_checked(monkeypatch):
    with settings.override(check=True, strict=True):
        same(jax.grad(optimize(newton))(2.0), 0.5 / 2.0**0.5)


def test_on_devices_that_take_as_many_steps():
    mesh = jax.make_mesh((1,), ("x",))
    mapped = jax.shard_map(newton, mesh=mesh, in_specs=P(), out_specs=P())
    same(jax.grad(optimize(mapped))(2.0), 0.5 / 2.0**0.5)


# ---------------------------------------------------------------- what stays as it is


def printing(a):
    """Effects must not be repeated."""

    def step(a):
        jax.debug.print("{}", a)
        return a / 2

    return lax.while_loop(lambda a: a > 1, step, a)


def alone(a):
    """Each device decides for itself how many steps it takes."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(jax.vmap(newton), mesh=mesh, in_specs=P("x"), out_specs=P("x"))(a[None])[0]


@pytest.mark.parametrize("left", [printing, alone])
def test_a_loop_that_is_left_raises_what_jax_raises(left):
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(optimize(left))(3.0)


def test_an_error_says_where_optimize_belongs():
    """A gradient inside of what is optimised is JAX's."""
    with pytest.raises(ValueError, match="Reverse-mode") as raised:
        optimize(jax.grad(newton))(2.0)
    assert any("jax.grad(optimize(f))" in note for note in raised.value.__notes__)
    step = optimize(lambda x: x - 0.1 * jax.grad(optimize(newton))(x))
    same(step(2.0), 2.0 - 0.1 * jax.grad(optimize(newton))(2.0))


def test_without_a_gradient_the_loop_is_jax_s_own():
    assert str(jax.make_jaxpr(optimize(newton))(2.0)).count("while") == 1
    assert optimize(newton).lower(2.0).as_text() == jax.jit(newton).lower(2.0).as_text()


def test_what_is_no_number_is_no_gradient():
    def collatz(n):
        odd = lambda n: 3 * n + 1
        return lax.while_loop(
            lambda n: n > 1, lambda n: lax.cond(n % 2, odd, lambda n: n // 2, n), n
        )

    same(jax.grad(lambda x: x * optimize(collatz)(jnp.int32(x)))(7.0), 1.0)


# ---------------------------------------------------------------- how much work it is


@dataclass
class Counter:
    """How often each step was computed."""

    steps: Any

    def __call__(self, i, x):
        @jax.custom_jvp
        def seen(i, x):
            return jax.pure_callback(self.see, jax.ShapeDtypeStruct((), x.dtype), i, x)

        seen.defjvp(lambda primals, tangents: (seen(*primals), tangents[1]))
        return seen(i, x)

    def see(self, i, x):
        self.steps[int(i)] += 1
        return np.asarray(x)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("again", [0, 1, 2])
def test_how_often_a_step_is_computed(rows, again):
    def gradient(x, n):
        def loss(x):
            step = lambda _, c: [c[0] + 1, jnp.sin(count(c[0], c[1]))]
            return checkpointed.while_loop(lambda k, c: c[0] < k[0], step, [n], [0, x], rows)[1]

        return jax.grad(loss)(x)

    most = comb(rows + again, again + 1)
    count = Counter(np.zeros(most + 1, int))
    run = jax.jit(gradient)
    for n, most_often in ((most, 2 + again), (most + 1, 3 + again)):
        count.steps[:] = 0
        jax.block_until_ready(run(0.5, n))
        assert max(count.steps) == most_often
        assert min(count.steps[:n]) == 2


def test_loops_in_a_loop_keep_fewer_carries(monkeypatch):
    """So that those of all steps of the loop around take as little."""
    for name, limit in (("MOST_ROWS", 64), ("LEAST_ROWS", 4), ("BYTES_OF_ROWS", 2**10)):
        monkeypatch.setattr(limits, name, limit)

    def rooted(x):
        return lax.while_loop(lambda x: x > 1.1, jnp.sqrt, x)

    def steps(x):
        return lax.scan(lambda x, _: (rooted(x), None), x, length=16)[0]

    for program, rows in ((rooted, 64), (steps, 16)):
        gradient = jax.jit(jax.grad(optimize(program)))
        assert f"tensor<{rows}xf32>" in gradient.lower(9.0).as_text()


# ---------------------------------------------------------------- what people see of it


@pytest.mark.parametrize("command", ["explain --grad", "diff --grad --stat", "residuals"])
@pytest.mark.parametrize("target", ["newton", "optimized"])
def test_commands_show_the_gradient_that_it_has(command, target, capsys):
    name, *options = command.split()
    assert main([name, f"{__file__}:{target}", *options, "--args", "f32[]"]) == 0
    seen = {"explain": "grad(newton)", "diff": "kept for the gradient", "residuals": "f32[3]"}
    assert seen[name] in capsys.readouterr().out


optimized = optimize(newton)
