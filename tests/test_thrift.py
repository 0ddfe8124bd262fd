"""Without a budget, large stacks become smaller where that takes hardly any time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import CPU, GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.engine.registry import library_passes
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.passes.residuals.narrow_residuals import NarrowResiduals
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_rewrite
from tests.loops import memory

WIDE, NARROW = 128, 8
STEPS = 12


def layers(ws, x):
    """Layers of which each keeps a wide array, which a short product makes of a narrow one."""

    def layer(x, w):
        up, down = w
        return x + (x @ up) ** 3 @ down, None

    return (lax.scan(layer, x, ws)[0] ** 2).sum()


def arguments(rows):
    key = jax.random.key(0)
    up = jax.random.normal(key, (STEPS, NARROW, WIDE)) / 30
    return (up, up.transpose(0, 2, 1) / 10), jax.random.normal(key, (rows, NARROW))


def fastest(f, *args):
    """The memory of the fastest program."""
    return memory(optimize(f, memory=1.0), *args)


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_large_stacks_become_smaller(outside, batched):
    """A product of eight numbers is computed again; the values are those of plain JAX."""
    args = arguments(1024)
    way = (lambda f: jax.vmap(f, (None, 0))) if batched else lambda f: f
    if batched:
        args = args[0], args[1].reshape(4, 256, NARROW)
    plain = way(jax.grad(layers))
    if outside:
        ours = optimize(way(jax.grad(layers)))
    else:
        ours = jax.jit(way(jax.grad(optimize(functools.partial(layers)))))
    assert memory(ours, *args) < 0.6 * fastest(way(jax.grad(layers)), *args)
    want = plain(*args)
    assert all(map(np.isfinite, map(np.sum, jax.tree.leaves(want))))
    assert_close(want, ours(*args))


def test_forward_mode_of_the_gradient():
    """A Hessian times a vector."""
    ws, x = arguments(1024)
    times = lambda f: jax.jvp(lambda x: f(ws, x), (x,), (jnp.cos(x),))[1]
    gradient = jax.grad(layers, 1)
    assert_close(times(gradient), times(optimize(gradient)))


def texts(f, *args):
    """What a program lowers to with and without thrift."""
    return [optimize(f, memory=m).lower(*args).as_text() for m in (None, 1.0)]


def test_small_stacks_stay():
    """They are read and written in less time than anything is computed."""
    ours, plain = texts(jax.grad(layers), *arguments(16))
    assert ours == plain


@pytest.mark.parametrize(
    "figures",
    [{"worth": 0.0}, {"slack": -1.0}, {"spared": 1 << 30}, {"kernel": 1.0}, {"spares": 0.01}],
    ids=["worth nothing", "too slow", "too few bytes", "short rows", "hardly smaller"],
)
def test_each_condition(figures):
    """Of the program above, with one figure of the device changed."""
    with using(CostModel().but(**figures)):
        ours, plain = texts(jax.grad(layers), *arguments(1024))
    assert ours == plain


@pytest.mark.parametrize(
    ("activation", "starts_each", "repeated"),
    [(jax.nn.gelu, False, False), (jax.nn.gelu, True, True), (jax.nn.silu, False, True)],
    ids=["one function", "ops started one by one", "of which it computes several numbers at once"],
)
def test_functions_that_one_function_of_a_loop_computes_number_by_number(
    activation, starts_each, repeated
):
    """The gradient took 1.3 times as long with `tanh` again in it (jax 0.12)."""

    def loss(x, ws):
        return lax.scan(lambda h, w: (activation(h * w), None), x, ws)[0].sum()

    x = jnp.ones(1000)
    with using(CostModel().but(starts_each=starts_each)):
        text = optimize(jax.grad(loss)).lower(x, jnp.ones((400, 1000))).as_text()
    name = "tanh" if activation is jax.nn.gelu else "exponential"
    assert text.count(f"stablehlo.{name}") == 1 + repeated


def test_other_devices_keep_what_is_fastest():
    assert CostModel(CPU).thrifty()
    assert not CostModel(GPU).thrifty()


def test_inner_loops_are_not_run_again():
    """Only a budget asks for that: what a loop takes is not known so well."""

    def step(x, w):
        up, down = w
        y, _ = lax.scan(lambda y, _: (jnp.tanh(y), None), x @ up, length=3)
        return x + y @ down, None

    loss = lambda ws, x: (lax.scan(step, x, ws)[0] ** 2).sum()
    with using(CostModel().but(slack=100.0)):
        ours, plain = texts(jax.grad(loss), *arguments(1024))
    assert ours.count("stablehlo.while") == plain.count("stablehlo.while")


def test_one_pass_asks_for_it():
    """Skipped, it leaves the fastest program; others make less of what it stores."""
    f, args = jax.grad(layers), arguments(1024)
    ours = optimize(f, skip=["narrow-residuals"]).lower(*args).as_text()
    assert ours == optimize(f, skip=["narrow-residuals"], memory=1.0).lower(*args).as_text()
    thrifty = [each.name for each in library_passes() if each.thrifty]
    assert thrifty == ["narrow-residuals", "pack-truth-values", "stack-narrow-integers"]


def test_what_it_does():
    """The product is repeated where its derivative is read."""

    def program(up, down, x, ct):
        def layer(x, w):
            u = x @ w[0]
            return x + u**3 @ w[1], 3 * u**2

        def back(g, w):
            up, down, d = w
            return g + (g @ down.T * d) @ up.T, None

        y, ds = lax.scan(layer, x, (up, down))
        return y, lax.scan(back, ct, (up, down, ds), reverse=True)[0]

    model = CostModel().but(spared=0, kernel=0.0, starts_each=True)
    with using(model.thrifty()[0]):
        check_rewrite(
            NarrowResiduals(),
            program,
            "f32[4,2,64]",
            "f32[4,64,2]",
            "f32[8,2]",
            "f32[8,2]",
            simplify=True,
            saves_bytes=4 * 8 * 62 * 4,
            diff="""
              fn (up:f32[4,2,64], down:f32[4,64,2], x:f32[8,2], ct:f32[8,2]) {
            -   c:f32[8,2], ys:f32[4,8,64] = scan[4] carry(c=x) xs(x=up, x1=down) {
            +   c:f32[8,2], ys1:f32[4,8,2] = scan[4] carry(c=x) xs(x=up, x1=down) {
                  d:f32[8,64] = dot_general c x
                  i:f32[8,64] = integer_pow[y=3] d
                  d1:f32[8,2] = dot_general i x1
                  a:f32[8,2] = add c d1
            -     i1:f32[8,64] = integer_pow[y=2] d
            -     m:f32[8,64] = mul 3.0 i1
            -     yield carry(a) ys(m)
            +     yield carry(a) ys(c)
                }
            -   c1:f32[8,2] = scan[4, reverse] carry(c=ct) xs(x=up, x1=down, x2=ys) {
            +   c1:f32[8,2] = scan[4, reverse] carry(c=ct) xs(x=up, x1=down, x3=ys1) {
            +     d2:f32[8,64] = dot_general x3 x
            +     i2:f32[8,64] = integer_pow[y=2] d2
            +     m1:f32[8,64] = mul 3.0 i2
                  t:f32[2,64] = transpose x1
                  d:f32[8,64] = dot_general c t
            -     m:f32[8,64] = mul d x2
            +     m:f32[8,64] = mul d m1
                  t1:f32[64,2] = transpose x
                  d1:f32[8,2] = dot_general m t1
                  a:f32[8,2] = add c d1
                  yield carry(a)
                }
                return c, c1
              }
            """,
        )


def summed(w, c):
    """The neighbours of a field, summed: each number is looked up in two arrays put together."""
    return c + 0.1 * w * (jnp.roll(c, 1, 1) - 2 * c + jnp.roll(c, -1, 1)) + 0.01 * c * c


def multiplied(w, c):
    """One neighbour: an array that is put together is a copy."""
    return c + 0.1 * w * jnp.roll(c, 1, 0) * c


@pytest.mark.parametrize(
    ("step", "mixes", "stacks"), [(summed, True, 2), (summed, False, 1), (multiplied, True, 1)]
)
def test_arrays_put_together_and_mixed_are_stored(step, mixes, stacks):
    """Where the device looks each number up, in what several of them are combined in."""

    def program(w, c):
        return lax.scan(lambda c, _: (step(w, c), None), c, length=200)[0].sum()

    args = jnp.float32(0.3), jnp.linspace(0.0, 1.0, 64 * 64, dtype=jnp.float32).reshape(64, 64)
    with using(CostModel().but(mixes_by_places=mixes, starts_each=False)):
        graph = observe.optimized(jax.grad(program), args, {})[0]
        found = optimize(jax.grad(program))(*args)
    forward = next(op for op in graph.walk() if isinstance(op, Scan))
    assert len(forward.stacks) == stacks
    assert_close(jax.jit(jax.grad(program))(*args), found)
