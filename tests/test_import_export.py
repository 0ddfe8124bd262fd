"""A program that no pass touched comes back as it was, whatever primitives it is made of."""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import compute_on, io_callback
from jax.experimental import pallas as pl
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpr_opt import compat
from jaxpr_opt.exporter import export
from jaxpr_opt.importer import import_jaxpr
from jaxpr_opt.ir import Call, Cond, Op, Remat, Scan, While
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, random_inputs
from jaxpr_opt.verify import verify

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
    return lax.scan(lambda k, row: (row, jax.random.bits(k)), keys[0], keys)[1] + x.astype("u4").sum()


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
    scan_without_streams, scan_of_nothing, while_loop, while_with_a_batched_predicate, cond,
    cond_on_an_integer, vmapped_switch, remat, remat_untouched, trivial_jit, jit_that_donates,
    jit_with_shardings, custom_jvp, custom_vjp, custom_root,
    linear_solve, shard_map, pallas_call, on_the_host, pure_callback, random_numbers, scan_over_keys, refs,
    float_zeros, weak_types, constants, half_precision, complex_numbers, barrier, named,
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


def round_trip(fun, *args, phase="differentiable"):
    before = jax.make_jaxpr(fun)(*args)
    graph = import_jaxpr(before, phase)
    verify(graph, types=True)
    return before, graph, export(graph)


def hlo(jaxpr, args):
    """The instructions of the compiled program, without names, metadata and order of printing."""
    text = jax.jit(jaxpr_as_fun(jaxpr)).lower(*args).compile().as_text().partition("\n")[2]
    text = re.sub(r", metadata=\{[^{}]*\}", "", text)
    text = re.sub(r"[\w.-]+: (?=[a-z0-9]+\[|\()", "", text)  # names of parameters
    lines = re.sub(r"%[\w.-]+", "%", text).splitlines()
    return sorted(line for line in lines if " = " in line or line.endswith("{"))


SIMPLER = {
    "remat": "a literal operand becomes part of the body, where XLA folds it",
    "gradient_of_loops": "the stacked index of a branch is read as a bool and converted back",
}
"""Programs whose HLO differs by a few scalar instructions, and why."""


@pytest.mark.parametrize("phase", ["differentiable", "final"])
@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_comes_back_as_it_was(fun, args, phase):
    before, _, after = round_trip(fun, *args, phase=phase)
    compat.check_jaxpr(after)
    assert [*map(repr, after.in_avals)] == [*map(repr, before.in_avals)]
    assert [*map(repr, after.out_avals)] == [*map(repr, before.out_avals)]
    assert after.effects == before.effects
    ours, theirs = hlo(after, args), hlo(before, args)
    assert ours == theirs or (fun.__name__ in SIMPLER and abs(len(ours) - len(theirs)) <= 3)


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_exact_evaluation_agrees_with_jax(fun, args):
    before, graph, _ = round_trip(fun, *args)
    wanted = jax.tree.leaves(fun(*args))
    for program in (graph, before):
        for a, b in zip(wanted, evaluate_exactly(program, *args), strict=True):
            if jnp.result_type(a) != jax.dtypes.float0:
                a, b = np.asarray(a, np.complex64), np.asarray(b, np.complex64)
                np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-5)


def kinds(fun, *args):
    """The classes of the structured ops of a program, outermost first."""
    _, graph, _ = round_trip(fun, *args)
    return [type(op) for op in graph.walk() if type(op) is not Op]


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (nested_scan, (X, XS), [Scan, Scan]),
        (while_loop, (X,), [While]),
        (while_with_a_batched_predicate, (X,), []),
        (cond, (X,), [Cond]),
        (switch, (X, 1), [Cond]),
        (remat_untouched, (X,), [Remat]),
        (trivial_jit, (X,), []),
        (jit_that_donates, (X,), [Call]),
        (jit_with_shardings, (X,), [Call]),
        (shard_map, (X,), [Call, Scan]),
        (custom_jvp, (X,), []),
        (pallas_call, (X,), []),
    ],
)
def test_what_becomes_structured(fun, args, expected):
    assert kinds(fun, *args) == expected


def test_custom_derivatives_are_kept_until_the_final_phase():
    for fun, name in ((custom_jvp, "custom_jvp_call"), (custom_vjp, "custom_vjp_call")):
        for phase, kept in (("differentiable", True), ("final", False)):
            _, graph, _ = round_trip(fun, X, phase=phase)
            assert any(op.name == name for op in graph.walk()) == kept
        _, _, after = round_trip(fun, X)
        ours = jax.grad(lambda x: jnp.sum(jaxpr_as_fun(after)(x)[0]))(X)
        assert_same_bits(ours, jax.grad(lambda x: fun(x).sum())(X))


def test_effects_keep_their_order():
    def fun(x, say):
        io_callback(partial(say, "first"), None, ordered=True)

        def step(c, i):
            io_callback(partial(say, "step"), None, i, ordered=True)
            return c + 1, None

        y, _ = lax.scan(step, x, jnp.arange(2))
        lax.cond(y > 1, lambda: io_callback(partial(say, "yes"), None, ordered=True), lambda: None)
        io_callback(partial(say, "last"), None, ordered=True)
        return y

    heard = []
    before, graph, after = round_trip(
        lambda x: fun(x, lambda *words: heard.append(tuple(map(str, words)))), 0
    )
    expected = [("first",), ("step", "0"), ("step", "1"), ("yes",), ("last",)]
    for run in (jaxpr_as_fun(before), jaxpr_as_fun(after), partial(evaluate_exactly, graph)):
        heard.clear()
        jax.block_until_ready(run(jnp.asarray(0)))
        jax.effects_barrier()
        assert heard == expected
    assert len(graph.outputs[0].op.effects) == 1, "the loop has the effect of its body"


def test_debug_print_survives(capsys):
    def fun(x):
        jax.debug.print("x is {}", x)
        return lax.scan(lambda c, _: (c + 1, jax.debug.print("c is {}", c)), x, None, length=2)[0]

    _, _, after = round_trip(fun, 1)
    jax.block_until_ready(jaxpr_as_fun(after)(jnp.asarray(1)))
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["c is 1", "c is 2", "x is 1"]


def test_names_and_source_lines_survive():
    before, graph, after = round_trip(named, X)
    lowered = jax.jit(jaxpr_as_fun(after)).lower(X).as_text(debug_info=True)
    assert "attention/sin" in lowered
    assert compat.debug_info(after).arg_names == compat.debug_info(before).arg_names
    sin = next(op for op in graph.walk() if op.name == "sin")
    file, line, function = compat.user_frame(sin.source.info)
    assert file == __file__ and function == "named"
    assert "jnp.sin(x)" in Path(file).read_text().splitlines()[line - 1]
    assert compat.user_frame(after.eqns[0].source_info) == (file, line, function)


def test_the_name_of_an_inlined_function_goes_in_front():
    @jax.jit
    def inner(a):
        return jnp.sin(a)

    def outer(x):
        with jax.named_scope("outer"):
            return inner(x)

    _, _, after = round_trip(outer, X)
    (eqn,) = after.eqns
    assert eqn.primitive.name == "sin" and "outer" in str(eqn.source_info.name_stack)


def test_double_precision():
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 3, dtype=jnp.float64)
        assert x.dtype == jnp.float64
        fun = lambda a: lax.scan(lambda c, _: (c * 1.1, jnp.sin(c)), a, None, length=3)
        before, graph, after = round_trip(fun, x)
        assert_same_bits(jaxpr_as_fun(before)(x), jaxpr_as_fun(after)(x))
        assert_same_bits(evaluate_exactly(graph, x), evaluate_exactly(before, x))


def test_the_context_of_an_equation_survives():
    def fun(x):
        with set_xla_metadata(colour="blue"):
            y = jnp.sin(x)
        return y + 1

    _, _, after = round_trip(fun, X)
    assert [eqn.ctx.xla_metadata for eqn in after.eqns] == [{"colour": "blue"}, None]
    assert 'colour="blue"' in jax.jit(jaxpr_as_fun(after)).lower(X).compile().as_text()


def test_random_arguments_have_the_types_they_are_asked_for():
    jaxpr = jax.make_jaxpr(lambda *xs: xs)(X, 1, True, jax.random.key(0), X.astype("bfloat16"))
    for special in (False, True):
        drawn = random_inputs(jaxpr.in_avals, special=special)
        assert [(x.shape, x.dtype) for x in drawn] == [(v.shape, v.dtype) for v in jaxpr.in_avals]
    assert not jnp.isfinite(random_inputs([jax.typeof(XS)], special=True)[0]).all()
