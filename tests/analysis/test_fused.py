"""What XLA computes inside of what reads it is no array; what that is computed from is one."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bench import memory as bench_memory
from bench import memory_unrolled
from jaxpr_opt import optimize
from jaxpr_opt.analysis.liveness.fused import fused
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.graph import Constant
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.memory.planner import collect_plans
from jaxpr_opt.testing import traced
from tests.loops import memory

X = "f32[64,64]"


def arrays(program, *types):
    """The names of ops whose results are in memory, each with those of what it reads there."""
    graph = import_jaxpr(traced(program, *types), "final")
    read = fused(graph.body.terminator).read
    name = lambda value: value.name if value.op is None else value.op.name
    return {
        op.name: sorted(name(v) for v in values if not isinstance(v, Constant))
        for op, values in read.items()
        if op.results
    }


def test_a_chain_of_elementwise_ops():
    assert arrays(lambda x: jnp.exp(jnp.sin(x) + 1.0) @ x, X) == {
        "exp": ["x"],
        "dot_general": ["exp", "x"],
    }


def test_what_is_dear_is_computed_once():
    """Two products read what is made of it; a sum of two is cheap to recompute, `exp` is not."""
    twice = lambda f: lambda x: (jnp.sin(f(x)) @ x, jnp.cos(f(x)) @ x)
    assert "add" not in arrays(twice(lambda x: x + 1.0), X)

    def program(x):
        y = jnp.exp(x)
        return jnp.sin(y) @ x, jnp.cos(y) @ x

    assert arrays(program, X)["exp"] == ["x"]


def test_a_reduction_takes_in_what_it_alone_reads():
    """Its operands are in memory, though others compute them again."""

    def program(x):
        y = x - 1.0
        return jnp.sum(y * y), jnp.sin(y) @ x

    found = arrays(program, X)
    assert found["reduce_sum"] == ["sub"]
    assert found["sin"] == ["x"] and found["sub"] == ["x"]


def test_what_is_made_of_two_arrays_is_computed_once_where_it_is_one():
    """A product needs the array; a sine reads it, and would read two otherwise."""

    def program(x, y):
        z = x * y
        return z @ x, jnp.sin(z) @ x

    assert arrays(program, X, X)["sin"] == ["mul"]
    assert arrays(program, X, "f32[64]")["sin"] == ["x", "y"]


def _recur(p, q):
    return p[0] * q[0], q[0] * p[1] + q[1]


def test_what_one_loop_reads_twice_is_computed_there_once():
    """Also a tanh; of an op that computes nothing that is needed, no array is made."""

    def program(x):
        y = jnp.tanh(x @ x)
        jnp.cos(y) @ x
        return (y * jnp.exp(y)) @ x

    assert arrays(program, X)["mul"] == ["dot_general"]
    assert "tanh" not in arrays(program, X)
    both = lambda x: (jnp.cos(jnp.tanh(x)) @ x, jnp.sin(jnp.tanh(x)) @ x)
    assert "tanh" not in arrays(both, X)

    def shared(x):
        y = jnp.tanh(x)
        return jnp.cos(y) @ x, jnp.sin(y) @ x

    assert arrays(shared, X)["tanh"] == ["x"]


def test_nothing_is_fused_through_a_barrier(monkeypatch):
    """What goes through one is an array, where XLA keeps barriers."""

    def program(x):
        y = lax.optimization_barrier(jnp.sort(x) + 1.0)
        return jnp.sin(y) @ x, jnp.cos(y) @ x

    for keeps, read in ((True, ["add"]), (False, ["sort"])):
        monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", keeps)
        assert arrays(program, X)["sin"] == read


@functools.cache
def nets(depth):
    return dict(memory_unrolled._nets(depth))


@functools.cache
def loops(length):
    return dict(bench_memory._loops(length))


@pytest.mark.parametrize("part", [0.5, 0.3, "minimal"])
def test_the_estimate_of_what_a_budget_buys(part):
    """It was 1.8 times of what the smallest transformer takes, which was warned about."""
    net = nets(8)["transformer"]
    loss = functools.partial(memory_unrolled._loss, net.layers, memory_unrolled.ByHand())
    made, given = optimize(jax.grad(loss), memory=part), (net.weights, net.start)
    with collect_plans() as plans:
        made.lower(*given)
    assert plans[-1].chosen.nbytes == pytest.approx(memory(made, *given), rel=0.25)


def test_what_puts_arrays_together_is_computed_at_one_place():
    """The rows are read at two places of one loop, or by two loops."""
    padded = lambda x: jnp.pad(jnp.sort(x), ((1, 0), (0, 0)))
    assert "pad" not in arrays(lambda x: jnp.sin(padded(x)) + 1.0, X)
    read = {"places": lambda y: y[:64] * y[1:], "loops": lambda y: (jnp.sin(y), jnp.cos(y))}
    for program in read.values():
        assert "pad" in arrays(lambda x, program=program: program(padded(x)), X)


def test_what_would_be_computed_at_many_places_is_in_memory():
    """Each halving reads what the one before makes at two places."""

    def halved(times):
        def program(x):
            y = jnp.sort(x)
            for _ in range(times):
                y = y[::2] + y[1::2] * 2.0
            return y

        return arrays(program, "f32[256,64]")["add"]

    assert halved(3) == ["sort"]
    assert halved(6) == ["add"]


GATHERED = {
    "products so far": (lambda x: lax.associative_scan(jnp.multiply, x), (512, 256)),
    "gradient of sums so far": (
        jax.grad(lambda x: (lax.associative_scan(jnp.add, jnp.sin(x)) ** 2).sum()),
        (1024, 64),
    ),
    "gradient of a linear recurrence": (
        jax.grad(lambda x: (lax.associative_scan(_recur, (jax.nn.sigmoid(x), x))[1] ** 2).sum()),
        (256, 128),
    ),
    "gradient of gelus of a convolution": (
        jax.grad(lambda x: (jax.nn.gelu(lax.conv(x, x[:8, :, :3, :3], (1, 1), "SAME")) ** 2).sum()),
        (8, 8, 32, 32),
    ),
    "a derivative of a gradient": (
        lambda x: jax.jvp(jax.grad(lambda x: (jnp.tanh(x @ x) ** 2).sum()), (x,), (x,))[1],
        (128, 128),
    ),
}


@pytest.mark.parametrize("name", GATHERED)
def test_the_estimate_of_what_is_read_at_several_places(name):
    """It was 0 to 2 times the temporary memory."""
    program, shape = GATHERED[name]
    x = jnp.ones(shape)
    graph = import_jaxpr(jax.make_jaxpr(program)(x), "final")
    assert temporary_bytes(graph) == pytest.approx(memory(program, x), rel=0.25)


def test_halves_are_read_where_they_are():
    """No half of an array that a product makes is an array, unless a product reads it."""

    def program(x):
        a, b = jnp.split(x @ x, 2)
        return jnp.sin(a) @ x, b @ x

    found = arrays(program, X)
    assert found["sin"] == ["dot_general"]


@pytest.mark.parametrize("name", ["MLP", "transformer", "ResNet", "U-Net"])
def test_the_estimate_is_what_is_compiled(name):
    """Without fusion it was up to twice as much."""
    net = nets(4)[name]
    loss = functools.partial(memory_unrolled._loss, net.layers, memory_unrolled.ByHand())
    gradient, given = jax.grad(loss), (net.weights, net.start)
    graph = import_jaxpr(jax.make_jaxpr(gradient)(*given), "final")
    assert temporary_bytes(graph) == pytest.approx(memory(gradient, *given), rel=0.25)


@pytest.mark.parametrize(("numbers", "copies"), [(("NHWC", "HWIO"), 0), (("NCHW", "OIHW"), 1)])
def test_convolutions_read_features_last(numbers, copies):
    """XLA:CPU copies operands that are laid out otherwise: in the gradient of a kernel both."""
    x = jnp.ones((8, 32, 32, 16)) if numbers[0] == "NHWC" else jnp.ones((8, 16, 32, 32))
    w = jnp.ones((3, 3, 16, 16)) if numbers[1] == "HWIO" else jnp.ones((16, 16, 3, 3))
    dims = (*numbers, numbers[0])
    convolved = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
    of_kernel = lambda x, w, ct: jax.vjp(lambda w: convolved(x, w), w)[1](ct)[0]
    for program, args, copied in ((convolved, (x, w), copies), (of_kernel, (x, w, x), 2)):
        estimate = temporary_bytes(import_jaxpr(traced(program, *args), "final"))
        assert estimate // x.nbytes == memory(program, *args) // x.nbytes == copied


PRODUCTS = {
    "the terms are all but the last axis": ("btk,btn->kn", (8, 64, 64), (8, 64, 64), 1),
    "its result is transposed": ("btn,btk->kn", (8, 64, 64), (8, 64, 64), 1),
    "heads are not the first axes": ("bqhd,bkhd->bhqk", (8, 64, 4, 16), (8, 64, 4, 16), 2),
    "the second operand has the terms last": ("kn,abk->nab", (64, 64), (8, 64, 64), 1),
    "matrices": ("tk,tn->kn", (512, 64), (512, 64), 0),
    "matrices of a batch": ("btk,btn->bkn", (8, 64, 64), (8, 64, 64), 0),
    "rows of several axes": ("btk,kn->btn", (8, 64, 64), (64, 64), 0),
    "an axis of one element": ("atk,atn->kn", (1, 512, 64), (1, 512, 64), 1),
}
"""Products, and how many of their operands are copied first."""


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_read_batches_rows_and_columns(name):
    """Both versions of XLA:CPU copy operands whose axes are in another order."""
    spec, *shapes, copied = PRODUCTS[name]
    x, y = map(jnp.ones, shapes)
    names, axes = spec.split("->")[0].split(","), spec.split("->")[1]
    summed = [each for each in names[0] if each in names[1] and each not in axes]
    batch = [each for each in names[0] if each in names[1] and each in axes]
    numbers = tuple(tuple(tuple(map(n.index, of)) for n in names) for of in (summed, batch))
    product = lambda x, y: lax.dot_general(x, y, numbers)
    program = (lambda x, y: product(x, y).T) if "transposed" in name else product
    graph = import_jaxpr(traced(program, x, y), "final")
    nbytes = 4 * 8 * 64 * 64
    assert temporary_bytes(graph) == nbytes * copied
    assert memory(program, x, y) // nbytes == copied


def test_a_product_of_a_transposed_matrix_reads_the_matrix():
    """No array is made of either: rows and columns change places where they are read or made."""
    found = arrays(lambda x, y: jnp.sort(jnp.swapaxes(y @ jnp.sort(x).T, 0, 1)), X, X)
    assert found == {"sort": ["dot_general"], "dot_general": ["sort", "y"]}


def test_what_a_product_reads_in_another_shape_is_computed_again_for_others():
    """What the product reads is the result of a fusion of its own."""

    def program(x, y, w):
        z = jnp.sort(x) + jnp.sort(y)
        return jnp.sin(z), z @ w

    assert arrays(program, "f32[64,64]", "f32[64,64]", X)["sin"] == ["add"]
    wide = "f32[8,8,64]"
    assert arrays(program, wide, wide, X)["sin"] == ["sort", "sort"]


def test_a_copy_is_computed_from_what_its_operand_is():
    """The sum is no array, but for the product of another shape."""

    def program(x, y, g):
        z = jnp.sort(x) + jnp.sort(y)
        return lax.dot_general(z, g, (((0, 1), (0, 1)), ((), ())))

    x = jnp.ones((8, 64, 64))
    graph = import_jaxpr(traced(program, x, x, x), "final")
    assert temporary_bytes(graph) == pytest.approx(memory(program, x, x, x), abs=1024)


HOW = {name: bench_memory.BY_HAND[f"by hand, {name}"] for name in ("none", "each step")}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["wave equation", "chunked cross-entropy", "MAML", "LSTM"])
def test_the_estimate_of_a_loop_is_what_is_compiled(name, how):
    """Rows of what it reads are no arrays, and what it hands on is written over what it had."""
    loop = loops(40)[name]
    gradient = jax.grad(functools.partial(bench_memory._loss, loop, HOW[how]))
    given = (loop.weights, loop.rows), loop.start
    graph = import_jaxpr(jax.make_jaxpr(gradient)(*given), "final")
    assert temporary_bytes(graph) == pytest.approx(memory(gradient, *given), rel=0.25)


def test_a_softmax_of_half_precision_on_a_gpu():
    """Its reductions take in what others read, too, and so does what normalizes: of float32 there
    are only numbers of rows, which nothing stores that is to be kept. A CPU computes `exp` once.
    """

    def program(scores, values):
        return jax.nn.softmax(scores.astype("float32")).astype("bfloat16") @ values

    def large(repeats):
        graph = import_jaxpr(traced(program, *types), "final")
        made = fused(graph.body.terminator, repeats=repeats).read
        return {op.name for op in made for v in op.results if v.type == "f32[8,1024,1024]"}

    types = "bf16[8,1024,1024]", "bf16[8,1024,64]"
    assert "exp" in large(repeats=True) and "exp" in large(repeats=False)
    with using(CostModel(GPU)):
        assert large(repeats=True) == large(repeats=False) == set()
        assert arrays(program, *types)["reduce_sum"] == ["reduce_max", "scores"]
