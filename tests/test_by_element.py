"""Functions of each element that have a rule for their derivative, of arrays of another shape."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.ir.by_element import by_element
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import assert_close, traced


def with_rule(fun, rule, **options):
    made = jax.custom_jvp(fun)
    made.defjvp(rule, **options)
    return made


def safe_log_rule(xs, ts):
    (x,), (t,) = xs, ts
    return safe_log(x), t / jnp.where(x > 0, x, 1)


safe_log = with_rule(lambda x: jnp.log(jnp.maximum(x, 1e-6)), safe_log_rule)
spike = with_rule(
    lambda v: (v > 0).astype(v.dtype),
    lambda xs, ts: (spike(xs[0]), ts[0] / (1 + 9 * jnp.abs(xs[0])) ** 2),
)
floored = with_rule(jnp.maximum, lambda xs, ts: (floored(*xs), ts[0] + 0.1 * ts[1]))
of_another = with_rule(jnp.tanh, lambda xs, ts: (jax.nn.relu(xs[0]), ts[0] * safe_log(xs[0])))
plain = with_rule(jnp.sin, lambda xs, ts: (jnp.sin(xs[0]), ts[0] * 2))
FOUND = {
    "relu": jax.nn.relu,
    "softplus": lambda x: jnp.logaddexp(x, 0.0),
    "of two arrays": lambda x: floored(x, x * 0.5),
    "of an array and a number": lambda x: floored(x, jnp.sum(x)),
    "of the user": safe_log,
    "of another kind": spike,
    "with a rule of others": of_another,
    "with a rule of its own": plain,
}
ordinary = with_rule(jnp.sin, lambda xs, ts: (jnp.sin(xs[0]), ts[0] / jnp.sum(xs[0])))
OTHERS = {
    "not of each element": with_rule(lambda x: x / jnp.sum(x), lambda xs, ts: (xs[0], ts[0])),
    "a derivative of all elements": ordinary,
    "a derivative of a derivative of all": with_rule(
        jnp.sin, lambda xs, ts: (ordinary(xs[0]), ts[0])
    ),
    "one that moves elements": with_rule(lambda x: x[::-1], lambda xs, ts: (xs[0], ts[0])),
    "a constant array": with_rule(
        lambda x: x * jnp.arange(12.0).reshape(3, 4), lambda xs, ts: (xs[0], ts[0])
    ),
    "told of zeros": with_rule(
        jnp.sin, lambda xs, ts: (jnp.sin(xs[0]), ts[0]), symbolic_zeros=True
    ),
    "of integers": lambda x: floored(x.astype("int32"), x),
    "of rows": lambda x: floored(x, x[0]),
    "another primitive": jnp.sin,
}


def call(fun, *types):
    """The op that calls a function."""
    graph = import_jaxpr(traced(fun, *types))
    ops = [op for op in graph.body.ops if op.name.startswith("custom_jvp")]
    return ops[0] if ops else next(iter(graph.body.ops))


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("shape", [(2, 5), (7,), ()])
def test_the_same_function_of_other_shapes(name, shape):
    """With its derivatives: forward, backward and twice, also where it is not smooth."""
    fun = FOUND[name]
    op = call(fun, "f32[3,4]")
    made = by_element(op)
    x = jnp.linspace(-1.0, 1.0, 11)[:10].reshape(2, 5) if shape == (2, 5) else jnp.zeros(shape)
    x = x.ravel()[:7] if shape == (7,) else x
    given = [x, x * 0.5] if name == "of two arrays" else [x, 0.25][: len(op.operands)]
    same = {"softplus": lambda x, _: jnp.logaddexp(x, 0.25), "relu": jax.nn.relu}.get(name)
    want = same or (floored if len(given) == 2 else fun)
    one = lambda f: lambda x: f(x, *given[1:])
    assert_close(made(*given), want(*given))
    tangent = jnp.ones_like(x)
    assert_close(jax.jvp(one(made), (x,), (tangent,)), jax.jvp(one(want), (x,), (tangent,)))
    square = lambda f: lambda x: jnp.sum(one(f)(x) ** 2)
    assert_close(jax.grad(square(made))(x), jax.grad(square(want))(x))
    twice = lambda f: jax.grad(lambda x: jnp.sum(jax.grad(square(f))(x) ** 2))
    assert_close(twice(made)(x), twice(want)(x))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name):
    assert by_element(call(OTHERS[name], "f32[3,4]")) is None


def test_a_name_and_numbers_that_are_not():
    made = by_element(call(jax.nn.relu, "f32[3,4]"))
    assert "relu" in str(jax.make_jaxpr(made)(jnp.ones(2)))
    x = jnp.array([jnp.inf, -jnp.inf, jnp.nan, -0.0])
    assert_close(made(x), jax.nn.relu(x))
    assert_close(jax.vmap(jax.grad(made))(x), jax.vmap(jax.grad(jax.nn.relu))(x))


def layers(table, w, ids):
    """Rows of what is made before the loop."""
    made = jax.nn.relu(table @ w)
    return lax.scan(lambda h, i: (jnp.tanh(h + made[i]), None), jnp.zeros(w.shape[1]), ids)[0]


def queue(table, w, ids):
    """What is made of each row that has entered lately."""

    def step(rows, i):
        rows = jnp.concatenate([rows[1:], table[i][None]])
        return rows, jax.nn.softplus(rows @ w).max(0)

    return lax.scan(step, table[:64], ids)[1]


@pytest.mark.parametrize(("program", "whole"), [(layers, 0), (queue, 1)])
def test_rows_before_jax_differentiates(program, whole):
    """In `jax.grad(optimize(f))`, too; those that a queue begins with are made once."""
    table = jnp.cos(jnp.arange(512.0 * 64)).reshape(512, 64)
    w = jnp.sin(jnp.arange(64.0 * 64)).reshape(64, 64)
    ids = jnp.arange(16) * 7 % 40
    loss = lambda f: lambda *args: jnp.sum(f(*args, ids) ** 2)
    got = jax.grad(loss(optimize(program)), (0, 1))(table, w)
    assert_close(got, jax.grad(loss(program), (0, 1))(table, w))
    text = str(jax.make_jaxpr(optimize(program))(table, w, ids))
    made = [line for line in text.splitlines() if "custom_jvp_call[" in line]
    assert len(made) == whole + 1
    assert sum("f32[512,64]" in line or "f32[64,64]" in line for line in made) == whole
