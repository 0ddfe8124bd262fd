"""Temporary buffers live in the rooms of results that are written later."""

import functools

import jax
import jax.numpy as jnp
import pytest

from bench import transformer
from jaxpr_opt import optimize
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.memory.planner import collect_plans
from jaxpr_opt.reports import observe

X = jnp.ones((64, 64))
ROWS = jnp.ones((8, 64))
KB = 1024


def compiled(program, *args, donated=()):
    """Temporary bytes of a program as XLA compiles it."""
    jitted = jax.jit(program, donate_argnums=donated)
    return jitted.lower(*args).compile().memory_analysis().temp_size_in_bytes


def estimated(program, *args, donated=()):
    """The same as predicted."""
    graph = import_jaxpr(jax.make_jaxpr(program)(*args), "final")
    graph.given_up = frozenset(donated)
    return temporary_bytes(graph)


def step(w, v, x):
    """A step of gradient descent with momentum."""
    g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    v = 0.9 * v + g
    return w - 0.1 * v, v


def products(count):
    """So many products, each of the one before; the last is the result."""

    def program(x, y):
        for _ in range(count):
            x = x @ y
        return x

    return program


def early_and_late(x):
    """One result is written first, and one last."""
    first, y = x @ x, jnp.sin(x) @ x
    return first, (y @ x) @ x


def larger(x, wide, high):
    """A product that is larger than the result."""
    return ((x @ wide) @ high) @ x


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (products(1), (X, X)),
        (products(2), (X, X)),
        (products(3), (X, X)),
        (products(4), (X, X)),
        (early_and_late, (X,)),
        (larger, (X, jnp.ones((64, 256)), jnp.ones((256, 64)))),
        (step, (X, X, ROWS)),
    ],
)
def test_the_estimate_is_what_is_compiled(program, args):
    assert estimated(program, *args) == pytest.approx(compiled(program, *args), abs=KB)


V = jnp.linspace(-1.0, 1.0, 8192)
PLACES = (jnp.arange(64) * 5) % 64


@pytest.mark.parametrize(
    ("name", "program", "args"),
    [
        ("all of a chain", lambda v: jnp.sum((jnp.exp(v) - 0.5) ** 2 / (1 + v**2)), (V,)),
        ("distances", lambda x: jnp.sum((x[:, None] - x[None]) ** 2, -1), (X,)),
        ("a choice comes first", lambda v: jnp.sum(jnp.where(v > 0, v, 0.0)), (V,)),
        ("a short sum", lambda v: jnp.sum(v[:2048] ** 2), (V,)),
        ("a sum of rows of few", lambda x: jnp.sum(x**2, 1), (jnp.ones((64, 32)),)),
        ("integers", lambda v: jnp.max(v * 3), (jnp.arange(8192),)),
        ("the largest place", lambda v: jnp.argmax(jnp.where(v > 0, v, 0.0)), (V,)),
        ("a product of all", lambda v: jnp.prod(v * 2), (V,)),
    ],
)
def test_what_a_reduction_takes_in(name, program, args):
    assert estimated(program, *args) == pytest.approx(compiled(program, *args), abs=1.1 * KB)


def test_a_reduction_runs_after_what_else_reads_its_operand():
    """So what the rows of a gradient are doubled into is an array beside them."""

    def program(v):
        def step(total, x):
            return total + jnp.sin(total) * x, total

        return jnp.sum(jax.lax.scan(step, 0.0, v)[1] ** 2)

    both = jax.value_and_grad(program)
    assert estimated(both, V) == pytest.approx(compiled(both, V), abs=2 * KB)


@pytest.mark.parametrize(
    ("name", "program", "args"),
    [
        ("random numbers", lambda v: v + jax.random.normal(jax.random.key(0), v.shape), (V,)),
        ("sums up to each", jnp.cumsum, (V,)),
        ("of what is computed", lambda v: jnp.cumsum(jnp.sin(v)), (V,)),
        ("of few", lambda x: jnp.cumsum(x, 1), (jnp.ones((512, 16)),)),
        ("one number to many places", lambda x: x.at[PLACES].add(1.0), (X,)),
        ("into zeros", lambda x: jnp.zeros((64, 64)).at[PLACES].add(2 * x), (X,)),
        ("sorted where it is", lambda x: jnp.sort(jnp.sin(x)) @ x, (X,)),
        ("sorted twice", lambda x: jnp.sort(jnp.sort(jnp.sin(x)), 0) @ x, (X,)),
        ("sorted with others", lambda x: jax.lax.sort((jnp.sin(x), 2 * x))[1] @ x, (X,)),
        ("copied by name only", lambda x: (jnp.copy(x @ x) @ x) @ jnp.copy(x), (X,)),
    ],
)
def test_what_an_op_needs_while_it_runs(name, program, args):
    assert estimated(program, *args) == pytest.approx(compiled(program, *args), abs=2.1 * KB)


def noise(v):
    """Random numbers of three keys that are there at once: XLA draws them in turns."""
    keys = jax.random.split(jax.random.key(0), 3)
    return sum(jnp.sum(jax.random.normal(key, v.shape) * v) for key in keys)


def dropout(x):
    """Random numbers that the gradient reads again, as the two words that they are made of."""
    for key in jax.random.split(jax.random.key(0), 4):
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x @ x), 0)
    return jnp.sum(x)


@pytest.mark.parametrize(
    ("program", "x"), [(noise, jnp.ones(4096)), (dropout, X), (jax.grad(dropout), X)]
)
def test_random_numbers_of_several_keys(program, x):
    assert estimated(program, x) == pytest.approx(compiled(program, x), rel=0.15)


def table(x):
    """Rows that a loop picks, each after the one before."""

    def step(total, place):
        total = jnp.tanh(0.9 * total + x[place])
        return total, None

    return jnp.sum(jax.lax.scan(step, x[0], PLACES)[0])


def bands(x):
    """A loop that reads windows."""

    def step(total, place):
        window = jax.lax.dynamic_slice(x, (place, 0), (2, 64))
        return jnp.tanh(0.9 * total + window), None

    return jnp.sum(jax.lax.scan(step, jnp.zeros((2, 64)), PLACES % 32)[0])


def columns(x):
    """A loop that reads columns."""

    def step(total, place):
        return jnp.tanh(0.9 * total + x[:, place]), None

    return jnp.sum(jax.lax.scan(step, x[0], PLACES)[0])


@pytest.mark.parametrize("program", [table, bands, columns])
def test_a_window_of_zeros_is_added_where_it_belongs(program):
    """A cotangent of one row is no array of all rows."""
    gradient = jax.grad(program)
    assert estimated(gradient, X) == pytest.approx(compiled(gradient, X), abs=4 * KB)


def late(x):
    """What is small to compute goes through a barrier, and is read last."""
    y = x @ x
    scaled, other = jax.lax.optimization_barrier((2 * y, jnp.sin(y) @ x))
    for _ in range(3):
        other = jnp.tanh(other @ x)
    return (other * jnp.tanh(scaled)) @ y


def fenced_twice(x):
    """The same of values that go through two barriers."""
    y, z = x @ x, x @ x.T
    both = jax.lax.optimization_barrier((y + z, y - z))
    plus, minus = jax.lax.optimization_barrier((both[0] * 2, both[1]))
    return ((y @ z) @ (plus * minus)) @ z


@pytest.mark.parametrize("program", [late, fenced_twice])
def test_what_goes_through_a_barrier_is_an_array_where_the_device_keeps_barriers(program):
    assert estimated(program, X) == pytest.approx(compiled(program, X), abs=KB)


def dense(x, w):
    """A layer of two products."""
    return jnp.tanh(jnp.tanh(x @ w) @ w), None


def attention(x, w):
    """A layer that reads its input at its end, too."""
    return jax.nn.softmax(jnp.tanh(x @ w) @ w.T) @ w + x, None


def gated(x, w):
    """A layer of which parts are read late."""
    gate, value = jax.nn.sigmoid(x @ w), jnp.tanh(x @ w.T)
    return x * (1 - gate) + (gate * value) @ w, None


@pytest.mark.parametrize("layer", [dense, attention, gated])
@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_what_a_recomputed_step_reads_is_there_until_its_last_op_that_does(layer, policy):
    def loss(x, weights):
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)[0] ** 2)

    gradient, args = jax.grad(loss, argnums=(0, 1)), (jnp.ones((256, 64)), jnp.stack((X,) * 6))
    assert estimated(gradient, *args) == pytest.approx(compiled(gradient, *args), rel=0.12)


def contracted(*numbers):
    """A product between elementwise ops, by the axes that are summed up and those of a batch."""
    return lambda x, y: jnp.sin(jax.lax.dot_general(jnp.sin(x), jnp.sin(y), numbers))


def convolved(x, y):
    """A convolution between elementwise ops."""
    kinds = ("NHWC", "HWIO", "NHWC")
    image, filters = jnp.sin(x), jnp.sin(y)
    made = jax.lax.conv_general_dilated(image, filters, (1, 1), "SAME", dimension_numbers=kinds)
    return jnp.sin(made)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (contracted(((1,), (0,)), ((), ())), [(128, 64), (64, 32)]),
        (contracted(((1,), (1,)), ((), ())), [(128, 64), (32, 64)]),
        (contracted(((0,), (0,)), ((), ())), [(64, 128), (64, 32)]),
        (contracted(((2,), (1,)), ((0,), (0,))), [(8, 32, 64), (8, 64, 32)]),
        (contracted(((1,), (1,)), ((0,), (0,))), [(8, 64, 32), (8, 64, 32)]),
        (contracted(((0, 1), (0, 1)), ((), ())), [(8, 16, 64), (8, 16, 32)]),
        (convolved, [(8, 16, 16, 16), (3, 3, 16, 16)]),
    ],
)
def test_products_of_16_bits_are_computed_of_copies_of_32(program, shapes, dtype):
    args = [jnp.ones(shape, dtype) for shape in shapes]
    assert estimated(program, *args) == pytest.approx(compiled(program, *args), rel=0.02, abs=KB)


def mixed(layers, x, f):
    """A network of layers that compute in 16 bits, with weights of 32."""
    for w in layers:
        x = f(x @ w.astype(x.dtype))
    return jnp.mean(x.astype(jnp.float32) ** 2)


@pytest.mark.parametrize("f", [jnp.tanh, jax.nn.gelu, lambda x: x * jax.nn.softplus(x)])
def test_the_gradient_of_layers_in_16_bits(f):
    """No rounding is repeated: what an op of `bfloat16` computes is in memory, if two read it."""
    args = [X] * 4, jnp.ones((256, 64), jnp.bfloat16)
    gradient = jax.grad(functools.partial(mixed, f=f))
    assert estimated(gradient, *args) == pytest.approx(compiled(gradient, *args), rel=0.25)


def pooled(x, size, padding="VALID"):
    """The gradient of the largest numbers of windows."""
    window = (1, *(size,) * (x.ndim - 2), 1)
    largest = lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, padding)
    out, pull = jax.vjp(largest, x)
    return pull(jnp.sin(out))


@pytest.mark.parametrize(
    ("shape", "size", "padding"),
    [
        ((4, 16, 16, 8), 2, "VALID"),
        ((4, 64, 8), 8, "VALID"),
        ((2, 8, 8, 8, 4), 2, "VALID"),
        ((4, 16, 16, 8), 3, "SAME"),
    ],
)
def test_the_gradient_of_the_largest_of_windows(shape, size, padding):
    """Each element's number along each axis is an array."""
    program, x = functools.partial(pooled, size=size, padding=padding), jnp.ones(shape)
    assert estimated(program, x) == pytest.approx(compiled(program, x), rel=0.15)


def accumulated(x):
    """A loop that adds a product to what it carries, in steps that are computed again."""
    step = jax.checkpoint(lambda total, row: total + jnp.sin(row[:, None] @ row[None]) @ x)
    return jnp.sort(jax.lax.scan(lambda t, row: (step(t, row), None), x, x)[0])


def test_what_a_step_writes_over_its_carry_has_no_room_of_its_own():
    assert estimated(accumulated, X) == pytest.approx(compiled(accumulated, X), abs=2 * KB)


def rows(w, x):
    """A loop that reads a matrix in each step, and does not need it to the end."""
    step = lambda x, w: (jnp.sort(jnp.sort(x @ w), 0) @ x, None)
    return jax.lax.scan(step, x, w)[0]


def test_a_row_of_what_a_loop_reads_is_free_after_its_last_read():
    w = jnp.ones((8, 64, 64))
    assert estimated(rows, w, X) == pytest.approx(compiled(rows, w, X), abs=2 * KB)


def two_loops(x):
    """What the second loop stacks is cleared before the first one runs."""
    first = jax.lax.scan(lambda s, row: (s, jnp.tanh(s @ row)), x, jnp.stack([x] * 4))[1]
    wide = jax.lax.sort(first) @ x
    second = jax.lax.scan(lambda s, row: (s, jnp.sin(s @ row)), x, wide)[1]
    return jax.lax.sort(second).sum()


def test_what_a_loop_stacks_has_its_memory_from_the_start():
    assert estimated(two_loops, X) == pytest.approx(compiled(two_loops, X), rel=0.1)


def turned(x):
    """Rows of a batch are turned, computed with, and turned back for the next loop."""
    rows = jax.lax.scan(lambda s, _: (jnp.sin(s), s), x, None, 64)[1]
    factor = jnp.cos(jnp.sum(rows * rows))
    rows = 2 * jnp.transpose(jnp.transpose(rows, (1, 0, 2)) * factor, (1, 0, 2))
    rows = jax.lax.scan(lambda s, row: (s * row, s * row), x, rows)[1]
    return jnp.transpose(rows, (1, 2, 0))


def test_axes_that_are_moved_back_are_written_over_where_they_were():
    assert estimated(turned, X[:3]) == pytest.approx(compiled(turned, X[:3]), rel=0.1)


def adam(p, m, v, tokens):
    """A step of adam of a transformer's layers in a scan, nothing donated."""
    gradient = jax.grad(functools.partial(transformer.loss, scanned=True))(p, tokens)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)
    return jax.tree.map(lambda p, m, v: p - m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v


def test_a_step_of_adam():
    """Its results leave room for the products' copies: 1.4 times was missing without these."""
    p = jax.eval_shape(lambda: transformer.make_params(8, 64, 256))
    given = p, p, p, jnp.zeros((8, 65), jnp.int32)
    made = optimize(adam)
    graph, _ = observe.optimized(made, given, {})
    assert temporary_bytes(graph) == pytest.approx(compiled(made, *given), rel=0.2)


def test_a_donated_argument_leaves_no_room():
    """The gradient needs a buffer of its own if the results are written over arguments."""
    free, donating = (estimated(step, X, X, ROWS, donated=each) for each in ((), (0, 1)))
    assert free < X.nbytes <= donating
    assert donating == pytest.approx(compiled(step, X, X, ROWS, donated=(0, 1)), abs=KB)


@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_the_planner_knows_what_is_donated(donated):
    """A donated argument of the whole program is one of what is planned."""
    made = optimize(step, memory="minimal", donate_argnums=donated)
    with collect_plans() as plans:
        made.lower(X, X, ROWS)
    (plan,) = plans
    assert plan.frontier[0].nbytes == estimated(step, X, X, ROWS, donated=donated)


def test_a_budget_that_is_met_does_not_warn(recwarn):
    """The gradient lives in the room of a result."""
    optimize(step, memory="8 KiB").lower(X, X, ROWS)
    assert not recwarn.list
