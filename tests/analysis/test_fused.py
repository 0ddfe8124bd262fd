"""What XLA computes inside of what reads it is no array; what that is computed from is one."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bench import memory as bench_memory
from bench import memory_unrolled
from jaxpr_opt.analysis.liveness.fused import fused
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.graph import Constant
from jaxpr_opt.ir.importer import import_jaxpr
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


def test_halves_are_read_where_they_are():
    """No half of an array that a product makes is an array, unless a product reads it."""

    def program(x):
        a, b = jnp.split(x @ x, 2)
        return jnp.sin(a) @ x, b @ x

    found = arrays(program, X)
    assert found["sin"] == ["dot_general"]


NETS = dict(memory_unrolled._nets(4))


@pytest.mark.parametrize("name", NETS)
def test_the_estimate_is_what_is_compiled(name):
    """Without fusion it was up to twice as much."""
    net = NETS[name]
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


LOOPS = dict(bench_memory._loops(40))
HOW = {name: bench_memory.BY_HAND[f"by hand, {name}"] for name in ("none", "each step")}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["wave equation", "chunked cross-entropy", "MAML"])
def test_the_estimate_of_a_loop_is_what_is_compiled(name, how):
    """Rows of what it reads are no arrays, and what it hands on is written over what it had."""
    loop = LOOPS[name]
    gradient = jax.grad(functools.partial(bench_memory._loss, loop, HOW[how]))
    given = (loop.weights, loop.rows), loop.start
    graph = import_jaxpr(jax.make_jaxpr(gradient)(*given), "final")
    assert temporary_bytes(graph) == pytest.approx(memory(gradient, *given), rel=0.25)
