"""One small program for everything that JAX programs are made of, and arguments to run it on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import compute_on
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

X, XS = jnp.linspace(-1.0, 1.0, 3), jnp.linspace(-1.0, 1.0, 24).reshape(8, 3)


def mesh():
    return jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def scan(x, xs):
    return lax.scan(lambda c, row: (c * 0.5 + row, jnp.sin(c)), x, xs)


def scan_reversed_with_options(x, xs):
    def step(c, row):
        return c + row * x, (c, row)

    return lax.scan(step, x, xs, reverse=True, unroll=2)


def scan_without_streams(x):
    return lax.scan(lambda c, _: (c * 2.0, None), x, None, length=3)[0]


def scan_of_nothing(x):
    return lax.scan(lambda c, row: (c + row, c), x, jnp.zeros((0, 3)))


def nested_scan(x, xs):
    def outer(c, row):
        return lax.scan(lambda d, r: (d + jnp.tanh(r) * row, d), c, xs[:2])

    return lax.scan(outer, x, xs)


def while_loop(x):
    limit = x.sum() + 10
    return lax.while_loop(lambda c: c[1] < limit, lambda c: (c[0] * 1.5 + x, c[1] + 1.0), (x, 0.0))


def while_with_a_batched_predicate(x):
    return jax.vmap(lambda a: lax.while_loop(lambda c: c < 3, lambda c: c + a, a))(jnp.abs(x) + 1)


def while_with_a_predicate_in_two_batches(x):
    def loop(a, key):
        body = lambda c: (c[0] + a, jax.random.fold_in(c[1], 1), c[2] * 2)
        carry = lax.while_loop(lambda c: c[0] < 3, body, (a, key, jnp.ones(2)))
        return carry[0], jax.random.key_data(carry[1]), carry[2]

    keys = jax.random.split(jax.random.key(0), (2, x.size))
    return jax.vmap(jax.vmap(loop))(jnp.stack([jnp.abs(x) + 1, jnp.abs(x) + 0.25]), keys)


def while_over_devices(x):
    """One carry varies over devices, the other does not, and neither does the predicate."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def loop(a):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + a, c[1] * 2), (a, 1.0))

    fun = lambda x: jax.vmap(loop)(jnp.abs(x) + 1)
    return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def cond(x):
    return lax.cond(x.sum() > 0, lambda a: (jnp.sin(a), a), lambda a: (x, jnp.cos(a) * x), x)


def cond_on_an_integer(x):
    return lax.cond(jnp.argmax(x), jnp.sin, jnp.cos, x)


def switch(x, i):
    return lax.switch(i, [jnp.sin, lambda a: a * x, jnp.zeros_like, jnp.tan], x)


def vmapped_switch(x):
    return jax.vmap(lambda i: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x[0]))(jnp.arange(4))


def remat(x):
    body = jax.checkpoint(
        lambda a: jnp.sin(jnp.sin(a @ a)), policy=jax.checkpoint_policies.dots_saveable
    )
    return jax.grad(lambda a: body(a * X[0]))(x)


def remat_untouched(x):
    return jax.checkpoint(lambda a: jnp.sin(a) * x + jnp.arange(3.0), prevent_cse=False)(x)


def remat_in_scan(x, xs):
    def loss(a):
        step = jax.checkpoint(lambda c, row: (jnp.tanh(c * row), None))
        return lax.scan(step, a, xs)[0].sum()

    return jax.grad(loss)(x)


def trivial_jit(x):
    return jax.jit(lambda a: jnp.where(a > 0, a, 0.0))(x)


def jit_that_donates(x):
    return jax.jit(lambda a: a + 1, donate_argnums=0)(x * 2)


def jit_with_shardings(x):
    sharding = NamedSharding(mesh(), P())
    return jax.jit(lambda a: a * 2, in_shardings=sharding, out_shardings=sharding)(x) + 1


@jax.custom_jvp
def clipped(x):
    return jnp.clip(x, -0.5, 0.5)


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0]))


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def custom_jvp(x):
    return clipped(x) + jax.nn.relu(x)


def custom_vjp(x):
    return rounded(x * 3)


def custom_root(x):
    def solve(f, guess):
        del f
        return guess

    return lax.custom_root(lambda y: y - x, x, solve, lambda g, y: y / g(jnp.ones(3)))


def linear_solve(x):
    return jnp.linalg.solve(jnp.eye(3) * 2 + x, x)


def shard_map(x):
    spread = partial(jax.shard_map, mesh=mesh(), in_specs=P(), out_specs=P(), axis_names={"i"})

    @spread
    def body(a):
        return lax.scan(lambda c, _: (c + lax.psum(a, "i"), None), a, None, length=2)[0]

    return body(x)


def pallas_call(x):
    def kernel(source, target):
        target[...] = source[...] * 2

    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)


def on_the_host(x):
    elsewhere = getattr(compute_on, "compute_on2", compute_on.compute_on)  # its name before 0.12
    place = {"compute_type": "device_host", "out_memory_spaces": jax.memory.Space.Device}
    return elsewhere(jnp.sin, **place)(x) + 1


def pure_callback(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), x)


def random_numbers(x):
    keys = jax.random.split(jax.random.key(7), 3)
    return jax.vmap(jax.random.uniform)(keys) + x


def scan_over_keys(x):
    keys = jax.random.split(jax.random.key(7), 4)
    return (
        lax.scan(lambda k, row: (row, jax.random.bits(k)), keys[0], keys)[1] + x.astype("u4").sum()
    )


def refs(x):
    ref = jax.new_ref(x)
    ref[0] = 5.0

    def step(c, row):
        ref[...] = ref[...] * row
        return c + ref[0], None

    total, _ = lax.scan(step, 0.0, x)
    return total, ref[...]


def float_zeros(x):
    primals, tangents = (x, jnp.arange(3)), (x, np.zeros(3, jax.dtypes.float0))
    return jax.jvp(lambda a, i: (a * i, i), primals, tangents)


def weak_types(x):
    total = lax.fori_loop(0, 3, lambda i, c: c + 1.0, 0.0)
    return total, x + total, 2.0, lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0)


def constants(x):
    table = jnp.asarray(np.arange(12.0, dtype=np.float32).reshape(4, 3))
    return lax.scan(lambda c, row: (c + row @ table.T, None), jnp.zeros(4), table)[0], x


def unused_and_repeated(x, xs):
    return x, x, jnp.zeros(2), ()


def half_precision(x):
    return lax.scan(lambda c, _: (c * 1.5, c), x.astype(jnp.bfloat16), None, length=2)


def complex_numbers(x):
    return jnp.fft.fft(x * 1j).real + jnp.abs(x + 2j)


def sorting(x, xs):
    order = jnp.argsort(xs, axis=0)
    return jnp.take_along_axis(xs, order, 0), lax.top_k(x, 2), xs.at[order[0]].add(x)


def convolution(xs):
    return lax.conv_general_dilated(xs[None, None], xs[None, None, :2, :2], (1, 1), "SAME")


def barrier(x):
    return lax.optimization_barrier((x * 2, x + 1))


def gradient_of_loops(x, xs):
    def loss(a):
        def step(c, row):
            return lax.cond(row[0] > 0, lambda: jnp.tanh(c * row), lambda: c), None

        return lax.scan(step, a, xs)[0].sum()

    return jax.value_and_grad(loss)(x)


def second_derivatives(x, xs):
    return jax.hessian(lambda a: scan(a, xs)[0].sum() ** 2)(x)


def named(x):
    with jax.named_scope("attention"):
        return jnp.sin(x) * 2


UNARY = [
    scan_without_streams, scan_of_nothing, while_loop, while_with_a_batched_predicate,
    while_with_a_predicate_in_two_batches, while_over_devices, cond,
    cond_on_an_integer, vmapped_switch, remat, remat_untouched, trivial_jit, jit_that_donates,
    jit_with_shardings, custom_jvp, custom_vjp, custom_root,
    linear_solve, shard_map, pallas_call, on_the_host, pure_callback, random_numbers,
    scan_over_keys, refs, float_zeros, weak_types, constants, half_precision, complex_numbers,
    barrier, named,
]  # fmt: skip
BINARY = [
    scan, scan_reversed_with_options, nested_scan, remat_in_scan, unused_and_repeated, sorting,
    gradient_of_loops, second_derivatives,
]  # fmt: skip
PROGRAMS = [
    *(pytest.param(f, (X,), id=f.__name__) for f in UNARY),
    *(pytest.param(f, (X, XS), id=f.__name__) for f in BINARY),
    pytest.param(convolution, (XS,), id="convolution"),
    *(pytest.param(switch, (X, i), id=f"switch-{i}") for i in (-1, 2, 9)),
]
