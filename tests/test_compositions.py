"""`optimize` above and below every transformation gives what JAX gives without it.

Each composition is written once, as a function of the decorator, and run three times: with
`jax.jit`, with a pipeline that leaves programs alone, and with a pass that rewrites every program,
so that gradients are traced as one program, optimised and split.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, jet
from jax.sharding import Mesh, PartitionSpec

from jaxpr_opt import settings
from jaxpr_opt.boundary.gradients import LinearMap, linearized
from jaxpr_opt.boundary.program import Program, optimized_p
from jaxpr_opt.decorator import optimize
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.engine.pipeline import Pipeline
from tests.sets import crossed


class PlainSums(Pass):
    """`a - b` is `a + (-b)`, AD's sums are sums: something to do in every gradient."""

    name = "plain-sums"

    def find(self, op):
        if op.name in ("sub", "add_any"):
            yield Match(op, "becomes an addition")

    def rewrite(self, match, rw):
        plain = {"sub": lambda x, y: lax.add(x, lax.neg(y)), "add_any": lax.add}[match.op.name]
        rw.replace(match.op.result, rw.insert(plain, *match.op.operands, before=match.op))
        rw.erase(match.op)


PIPELINE = Pipeline(((PlainSums(),),))
REWRITING = functools.partial(optimize, passes=[PlainSums()])
UNTOUCHED = functools.partial(optimize, passes=[])


@pytest.fixture(autouse=True)
def _strict():
    with settings.override(strict=True):
        yield


def same(expected, got, tolerance=2e-5):
    assert jax.tree.structure(expected) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        assert a.dtype == b.dtype
        assert getattr(a, "weak_type", False) == getattr(b, "weak_type", False)
        if a.dtype == jax.dtypes.float0:
            continue
        np.testing.assert_allclose(numbers(a), numbers(b), rtol=tolerance, atol=tolerance)


def numbers(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


# ---------------------------------------------------------------- programs: (w, x) -> scalar

W = {"a": jnp.array([0.3, -0.2, 0.5]), "b": jnp.float32(0.7)}
X = jnp.array([0.1, 0.4, -0.3])


def arithmetic(w, x):
    h = jnp.sin(w["a"] * x) - w["b"]
    return jnp.sum(h * jnp.tanh(h - x))


def recurrent(w, x):
    def step(h, xi):
        h = jnp.tanh(w["a"] * h - xi)
        return h, h[0] * w["b"]

    h, ys = lax.scan(step, x, jnp.stack([x, 2 * x, x - 1, x]))
    return jnp.sum(h) + jnp.sum(ys**2)


def bounded_while(w, x, bound=4, steps=2):
    """The seed's program: nested `scan` of `cond`, the carry kept when the predicate is false."""

    def body(v):
        return jnp.tanh(w["a"] * v[0] - w["b"]), v[1] + 1

    def level(data, n):
        if n == 1:
            pred, val = data
            new = jax.tree.map(functools.partial(jnp.where, pred), body(val), val)
            return new[1] < steps, new
        step = lambda d, _: (lax.cond(d[0], lambda d: level(d, n // 2), lambda d: d, d), None)
        return lax.scan(step, data, None, length=2)[0]

    init = (x, jnp.int32(0))
    return jnp.sum(level((init[1] < steps, init), bound)[1][0])


@jax.custom_vjp
def clipped(x):
    return x - 0.1


clipped.defvjp(lambda x: (x - 0.1, x), lambda x, ct: (jnp.clip(ct, -0.5, 0.5) * jnp.cos(x),))


@jax.custom_jvp
def halved(x):
    return jnp.abs(x)


@halved.defjvp
def _(primals, tangents):
    return halved(*primals), 0.5 * jnp.sign(primals[0]) * tangents[0]


def custom_reverse(w, x):
    return jnp.sum(clipped(w["a"] * x - w["b"]) ** 2)


def custom_forward(w, x):
    return jnp.sum(halved(w["a"] * x - w["b"]) ** 2) + jax.nn.relu(w["b"])


# ------------------------------------- compositions: (decorator, function) -> (w, x) -> anything

C = {}
composition_of = C.__setitem__


def composition(make):
    C[make.__name__] = make
    return make


composition_of("call", lambda o, f: o(f))
composition_of("jit_of", lambda o, f: jax.jit(o(f)))
composition_of("of_jit", lambda o, f: o(jax.jit(f)))
composition_of("of_itself", lambda o, f: o(lambda w, x: o(f)(w, x) * 2))
composition_of("grad", lambda o, f: jax.grad(o(f)))
composition_of("grad_wrt_both", lambda o, f: jax.grad(o(f), (0, 1)))
composition_of("value_and_grad", lambda o, f: jax.value_and_grad(o(f)))
composition_of("of_grad", lambda o, f: o(jax.grad(f)))
composition_of("jit_of_grad", lambda o, f: jax.jit(jax.grad(o(f))))
composition_of("grad_of_jit", lambda o, f: jax.grad(jax.jit(o(f))))
composition_of("grad_of_itself", lambda o, f: jax.grad(o(lambda w, x: o(f)(w, x) * 2)))
composition_of("vmap", lambda o, f: lambda w, x: jax.vmap(o(f), (None, 0))(w, rows(x)))
composition_of("of_vmap", lambda o, f: lambda w, x: o(jax.vmap(f, (None, 0)))(w, rows(x)))
composition_of("vmap_last_axis", lambda o, f: lambda w, x: jax.vmap(o(f), (None, 1))(w, rows(x).T))
composition_of(
    "vmap_of_grad", lambda o, f: lambda w, x: jax.vmap(jax.grad(o(f)), (None, 0))(w, rows(x))
)
composition_of(
    "grad_of_vmap",
    lambda o, f: jax.grad(lambda w, x: jnp.sum(jax.vmap(o(f), (None, 0))(w, rows(x)))),
)
composition_of("jvp", lambda o, f: lambda w, x: jax.jvp(o(f), (w, x), (w, x)))
composition_of("jvp_in_one", lambda o, f: lambda w, x: jax.jvp(lambda x: o(f)(w, x), (x,), (x,)))
composition_of("jacfwd", lambda o, f: jax.jacfwd(o(f), (0, 1)))
composition_of("jacrev", lambda o, f: jax.jacrev(o(f), (0, 1)))
composition_of("hessian", lambda o, f: jax.hessian(o(f), 1))
composition_of("reverse_over_reverse", lambda o, f: jax.jacrev(jax.grad(o(f), 1), 1))
composition_of("reverse_over_forward", lambda o, f: jax.jacrev(jax.jacfwd(o(f), 1), 1))
composition_of("forward_over_forward", lambda o, f: jax.jacfwd(jax.jacfwd(o(f), 1), 1))
composition_of("grad_of_of_grad", lambda o, f: jax.jacrev(o(jax.grad(f, 1)), 1))
composition_of("checkpoint", lambda o, f: jax.grad(jax.checkpoint(o(f))))
composition_of("of_checkpoint", lambda o, f: jax.grad(o(jax.checkpoint(f))))
composition_of(
    "checkpoint_value", lambda o, f: jax.jit(jax.value_and_grad(jax.checkpoint(o(f)), (0, 1)))
)
composition_of("hessian_of_checkpoint", lambda o, f: jax.hessian(jax.checkpoint(o(f)), 1))
composition_of(
    "forward_of_checkpoint", lambda o, f: lambda w, x: jax.jvp(jax.checkpoint(o(f)), (w, x), (w, x))
)


@composition
def linearize(o, f):
    def run(w, x):
        y, tangent = jax.linearize(lambda x: o(f)(w, x), x)
        return y, tangent(x), jax.linear_transpose(tangent, x)(y)

    return run


@composition
def vjp(o, f):
    def run(w, x):
        y, pull = jax.vjp(o(f), w, x)
        return y, pull(2 * y)

    return run


def checkpoint_with(policy):
    return lambda o, f: jax.grad(
        jax.checkpoint(lambda w, x: o(f)(w, jnp.sin(x)) ** 2, policy=policy)
    )


composition_of(
    "checkpoint_everything", checkpoint_with(jax.checkpoint_policies.everything_saveable)
)
composition_of("checkpoint_dots", checkpoint_with(jax.checkpoint_policies.dots_saveable))


def scanned(wrap):
    def make(o, f):
        def run(w, x):
            def step(carry, s):
                return carry - 0.1 * o(f)(w, carry * s), None

            return jnp.sum(lax.scan(wrap(step), x, jnp.arange(3.0))[0])

        return run

    return make


plainly = lambda f: f
composition_of("scan", scanned(plainly))
composition_of("grad_of_scan", lambda o, f: jax.jit(jax.grad(scanned(plainly)(o, f), (0, 1))))
composition_of("hessian_of_scan", lambda o, f: jax.hessian(scanned(plainly)(o, f), 1))
composition_of("grad_of_scan_of_checkpoint", lambda o, f: jax.grad(scanned(jax.checkpoint)(o, f)))
composition_of(
    "vmap_of_grad_of_scan",
    lambda o, f: lambda w, x: jax.vmap(jax.grad(scanned(plainly)(o, f)), (None, 0))(w, rows(x)),
)
composition_of(
    "grad_of_checkpoint_of_scan", lambda o, f: jax.grad(jax.checkpoint(scanned(plainly)(o, f)))
)
composition_of(
    "linearize_scan",
    lambda o, f: lambda w, x: jax.linearize(functools.partial(scanned(plainly)(o, f), w), x)[1](x),
)


@composition
def cond(o, f):
    def run(w, x):
        return lax.cond(x[0] > 0, lambda x: o(f)(w, x), lambda x: o(f)(w, 2 * x) - 1, x)

    return jax.value_and_grad(run, (0, 1))


@composition
def vmap_of_cond(o, f):
    def run(w, x):
        return lax.cond(x[0] > 0, lambda x: o(f)(w, x), lambda x: 3.0 - x[0], x)

    return lambda w, x: jax.vmap(jax.grad(run), (None, 0))(w, rows(x))


@composition
def switch_of_checkpoint(o, f):
    def run(w, x):
        branches = [
            lambda x: o(f)(w, x),
            lambda x: x[0] - 1,
            jax.checkpoint(lambda x: o(f)(w, 2 * x)),
        ]
        return sum(lax.switch(jnp.int32(x[0] * 0) + i, branches, x) for i in range(3))

    return jax.jit(jax.grad(run, (0, 1)))


@composition
def while_forward(o, f):
    def run(w, x):
        return lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] - 0.1 * o(f)(w, c[1])), (0, x)
        )[1]

    return lambda w, x: (run(w, x), jax.jvp(run, (w, x), (w, x)), jax.jacfwd(run, 1)(w, x))


@composition
def custom_vjp_around(o, f):
    @jax.custom_vjp
    def g(w, x):
        return o(f)(w, x)

    g.defvjp(lambda w, x: jax.vjp(o(f), w, x), lambda pull, ct: pull(2 * ct))
    return jax.value_and_grad(g, (0, 1))


@composition
def custom_jvp_around(o, f):
    @jax.custom_jvp
    def g(w, x):
        return o(f)(w, x)

    @g.defjvp
    def _(primals, tangents):
        y, t = jax.jvp(o(f), primals, tangents)
        return y, 3 * t

    return lambda w, x: (jax.grad(g, (0, 1))(w, x), jax.jvp(g, (w, x), (w, x)))


@composition
def closed_over_tracer(o, f):
    return jax.value_and_grad(lambda w, x: jnp.sum(o(lambda s: f(w, x * s))(2.0)), (0, 1))


@composition
def psum_over_vmap_axis(o, f):
    def run(w, x):
        return lax.psum(f(w, x), "i") * f(w, x) - lax.axis_index("i")

    def batched(w, x):
        return jax.vmap(o(run), (None, 0), axis_name="i")(w, rows(x))

    return lambda w, x: (batched(w, x), jax.jacrev(batched)(w, x), jax.jvp(batched, (w, x), (w, x)))


@composition
def grad_inside_named_vmap(o, f):
    run = lambda w, x: lax.psum(f(w, x), "i") * f(w, x)
    return lambda w, x: jax.vmap(jax.grad(o(run)), (None, 0), axis_name="i")(w, rows(x))


@composition
def checkified(o, f):
    def checked(w, x):
        checkify.check(x[0] > 0, "x is {}", x[0])
        return f(w, x)

    def run(w, x):
        errors = [checkify.checkify(o(checked))(w, x * s)[0].get() for s in (1, -1)]
        assert errors[0] is None
        assert errors[1].startswith("x is -0.1")
        return checkify.checkify(o(f), errors=checkify.float_checks)(w, x)[1]

    return run


@composition
def shard_map_around(o, f):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec

    def run(w, x):
        body = lambda w, x: lax.pmean(o(f)(w, x[0]) - x[0, 0], "d")[None]
        return jnp.sum(
            jax.shard_map(body, mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec())(
                w, x[None]
            )
        )

    return lambda w, x: (
        run(w, x),
        jax.grad(run, (0, 1))(w, x),
        jax.jit(jax.grad(run, (0, 1)))(w, x),
    )


@composition
def shard_map_inside(o, f):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec

    def run(w, x):
        body = lambda w, x: lax.psum(f(w, x[0]) - x[0, 0], "d")[None]
        return jnp.sum(
            jax.shard_map(body, mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec())(
                w, x[None]
            )
        )

    return lambda w, x: (o(run)(w, x), jax.grad(o(run), (0, 1))(w, x))


def rows(x):
    return jnp.stack([x, 0.5 * x, x - 1])


@functools.cache
def expected(name, program):
    return C[name](jax.jit, program)(W, X)


def check(name, program, *decorators):
    for decorator in decorators:
        same(expected(name, program), C[name](decorator, program)(W, X))


@pytest.mark.parametrize("name", C)
def test_composition(name):
    check(name, arithmetic, REWRITING)


PLAIN = ["call", "of_jit", "of_itself", "grad", "of_grad", "vmap_of_grad", "jvp", "hessian", "vjp",
         "linearize", "checkpoint", "checkpoint_everything", "grad_of_scan", "cond"]  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_composition_of_what_no_pass_touches(name):
    check(name, arithmetic, UNTOUCHED)


LOOPS = ["call", "grad", "of_grad", "vmap_of_grad", "jvp", "hessian", "reverse_over_reverse",
         "checkpoint", "grad_of_scan", "cond", "linearize", "of_itself"]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "name"),
    crossed([recurrent, bounded_while], LOOPS),
    ids=lambda f: getattr(f, "__name__", f),
)
def test_composition_of_loops(program, name):
    check(name, program, REWRITING, optimize)


CUSTOM = [
    "call",
    "grad",
    "of_grad",
    "grad_of_itself",
    "vmap_of_grad",
    "grad_of_vmap",
    "checkpoint",
    "grad_of_scan",
]


@pytest.mark.parametrize("name", CUSTOM)
def test_composition_of_custom_reverse_rules(name):
    check(name, custom_reverse, REWRITING)


@pytest.mark.parametrize("name", [*CUSTOM, "jvp", "hessian", "linearize"])
def test_composition_of_custom_forward_rules(name):
    check(name, custom_forward, REWRITING)


# ---------------------------------------------------------------- what the boundary looks like


def equations(jaxpr, inside=()):
    """`(name, names of what it is inside of)` of every equation, at any depth."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name, inside
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(inner, (*inside, eqn.primitive.name))


def count(name, jaxpr):
    return sum(found == name for found, _ in equations(jaxpr))


GRADIENTS = {
    "grad": (2, jax.grad),
    "jit_of_value_and_grad": (2, lambda f: jax.jit(jax.value_and_grad(f, (0, 1)))),
    "checkpoint": (3, lambda f: jax.grad(jax.checkpoint(f))),
    "checkpoint_saving": (
        2,
        lambda f: jax.grad(jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable)),
    ),
    "checkpoint_in_jit": (3, lambda f: jax.grad(jax.jit(jax.checkpoint(jax.jit(f))))),
    "scan": (
        3,
        lambda f: jax.grad(
            lambda w, x: lax.scan(lambda c, _: (f(w, c) * x, None), x, None, length=2)[0][0]
        ),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_optimised_programs(name):
    """Forward, backward, again with `checkpoint`, hoisted out of `scan`: all are rewritten."""
    programs, transform = GRADIENTS[name]
    jaxpr = jax.make_jaxpr(transform(REWRITING(arithmetic)))(W, X)
    assert count("optimized", jaxpr) == programs
    assert count("optimized_linear", jaxpr) == 0
    assert not [
        name
        for name, inside in equations(jaxpr)
        if name in ("sub", "add_any") and "optimized" in inside
    ]


def test_forward_mode_is_one_program_without_residuals():
    jaxpr = jax.make_jaxpr(lambda w, x: jax.jvp(REWRITING(arithmetic), (w, x), (w, x)))(W, X)
    (eqn,) = jaxpr.eqns
    (program,) = eqn.params["jaxpr"].eqns if eqn.primitive.name == "jit" else [eqn]
    assert program.primitive is optimized_p
    assert len(program.outvars) == 2


def test_an_output_without_cotangent_costs_nothing():
    """Its part of the backward program is gone, and so are the residuals only it would read."""
    two = lambda x: (jnp.sum(x - jnp.sin(x) * x), jnp.sum(jnp.exp(x) * jnp.tan(x) - x))
    grad = lambda o: jax.jit(jax.grad(lambda x: o(two)(x)[0]))
    same(grad(jax.jit)(X), grad(REWRITING)(X))
    assert " cos(" in hlo(grad(REWRITING), X).replace("cosine(", "cos(")
    for gone in ("exponential(", "tan("):
        assert f" {gone}" in hlo(REWRITING(two), X)
        assert f" {gone}" not in hlo(grad(REWRITING), X)


def hlo(f, *args):
    return f.lower(*args).compile().as_text()


def test_the_linear_map_can_be_evaluated_batched_and_differentiated():
    """JAX only ever transposes it; the other rules are for whoever evaluates such a jaxpr."""
    program = Program.optimized(jax.make_jaxpr(recurrent)(W, X), PIPELINE, "recurrent")
    halves = linearized(program, (False, False, True), True)
    _, residuals = halves.run_forward([W["a"], W["b"], X])
    assert isinstance(halves.tangent, LinearMap)
    push = lambda t: halves.tangent(*residuals, t)[0]
    expected = lambda t: jax.jvp(functools.partial(recurrent, W), (X,), (t,))[1]
    same(expected(X), push(X))
    same(jax.vmap(expected)(rows(X)), jax.jit(jax.vmap(push))(rows(X)))
    same(jax.jvp(expected, (X,), (2 * X,)), jax.jvp(push, (X,), (2 * X,)))
    same(jax.linear_transpose(expected, X)(1.0), jax.linear_transpose(push, X)(jnp.float32(1)))


# ---------------------------------------------------------------- values of every kind


def mixed(tree, n, flag, key, none_and_empty):
    none, empty = none_and_empty
    x = tree["x"] - jax.random.uniform(key, (3,))
    assert none is None
    outputs = {
        "float": jnp.sum(jnp.where(flag, x * n, x)),
        "int": n + 1,
        "key": jax.random.split(key)[0],
        "input": tree["x"],
        "empty": empty - 1,
        "none": None,
        "weak": n * 2.0,
        "number": 3.0,
        "stopped": lax.stop_gradient(x),
    }
    return outputs, ()


MIXED = ({"x": X}, jnp.int32(2), jnp.array(True), jax.random.key(0), (None, jnp.zeros((0, 2))))


def test_values_of_every_kind():
    for decorator in (UNTOUCHED, REWRITING):
        same(jax.jit(mixed)(*MIXED), decorator(mixed)(*MIXED))
        same(
            jax.vmap(mixed, (0, None, None, None, None))({"x": rows(X)}, *MIXED[1:]),
            jax.vmap(decorator(mixed), (0, None, None, None, None))({"x": rows(X)}, *MIXED[1:]),
        )


def test_gradients_beside_integers_keys_and_unused_outputs():
    loss = lambda f: lambda *args: (f(*args)[0]["float"] * f(*args)[0]["weak"], f(*args))
    for decorator in (UNTOUCHED, REWRITING):
        grad = lambda o: jax.value_and_grad(loss(o(mixed)), has_aux=True)(*MIXED)
        same(grad(jax.jit), grad(decorator))
        allowed = lambda o: jax.grad(
            loss(o(mixed)), argnums=(0, 1, 2), has_aux=True, allow_int=True
        )(*MIXED)
        same(allowed(jax.jit), allowed(decorator))


def test_forward_mode_beside_integers():
    zero = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    f = lambda x, n: (x - n, n + 1, x * 2.0)
    run = lambda o: jax.jvp(o(f), (X, jnp.int32(2)), (X, zero(jnp.int32(2))))
    for decorator in (UNTOUCHED, REWRITING):
        same(run(jax.jit), run(decorator))


def test_outputs_that_do_not_depend_on_the_input_have_zero_gradient():
    f = lambda x, y: (jnp.sum(y - 1), jnp.sum(lax.stop_gradient(x) - y))
    for decorator in (UNTOUCHED, REWRITING):
        for i in range(2):
            run = lambda o, i=i: jax.grad(lambda x, y: o(f)(x, y)[i], (0, 1))(X, X)
            same(run(jax.jit), run(decorator))


def test_a_checkpoint_around_a_used_and_an_unused_output():
    """JAX 0.10.2 cannot transpose a scan without any cotangent: it must be gone by then."""

    def two(w, x):
        return jnp.sum(w["a"] * x - w["b"]), lax.scan(lambda c, y: (c * y - 1, c), w["b"], x)

    for decorator in (UNTOUCHED, REWRITING):
        for wrap in (jax.checkpoint, lambda f: f):
            run = lambda o, wrap=wrap: jax.grad(wrap(lambda w, x: o(two)(w, x)[0]), (0, 1))(W, X)
            same(run(jax.jit), run(decorator))


@pytest.mark.parametrize(
    "f", [lambda: (), lambda: jnp.arange(3.0) - 1, lambda: None, lambda: (1, 2.0)]
)
def test_functions_without_inputs(f):
    same(jax.jit(f)(), REWRITING(f)())
    assert jax.eval_shape(f) == REWRITING(f).eval_shape()


def test_forwarded_outputs_are_the_inputs():
    """As with `jax.jit`, an output that is an input is not copied."""
    f = lambda x, y: (y, x, x - y, y)
    pointers = lambda out: [a.unsafe_buffer_pointer() for a in out]
    plain, optimised = pointers(jax.jit(f)(X, rows(X))), pointers(REWRITING(f)(X, rows(X)))
    inputs = [X.unsafe_buffer_pointer()]
    assert [p in inputs for p in plain] == [p in inputs for p in optimised]


# ---------------------------------------------------------------- effects


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("transform", ["call", "grad", "jvp", "vmap", "of_grad"])
def test_effects_happen_as_often(transform, ordered, capfd):
    def f(w, x):
        if not (ordered and transform == "vmap"):
            jax.debug.print("x = {}", x, ordered=ordered)
        return arithmetic(w, x)

    jax.block_until_ready(C[transform](jax.jit, f)(W, X))
    jax.effects_barrier()
    expected = capfd.readouterr().out
    jax.block_until_ready(C[transform](REWRITING, f)(W, X))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(expected.splitlines())
    assert expected or (ordered and transform == "vmap")


def test_ordered_callbacks_keep_their_order():
    seen = []

    def f(x):
        for i in range(4):
            jax.experimental.io_callback(lambda v, i=i: seen.append(i), None, x - i, ordered=True)
        return x - 1

    jax.block_until_ready(REWRITING(f)(X))
    jax.effects_barrier()
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("f", [arithmetic, bounded_while, custom_forward], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["call", "of_grad"])
def test_an_untouched_program_compiles_to_the_same_code(name, f):
    text = lambda o: C[name](o, f).lower(W, X).as_text()
    assert text(jax.jit) == text(UNTOUCHED)


def trajectory(x, ys):
    return lax.scan(lambda x, y: (jnp.sin(x * y), x), x, ys)[1]


def test_batches_come_first_in_what_a_batched_program_returns():
    """So that the final phase sees the transpose; residuals stay as they are."""
    xs, ys = jnp.linspace(0.1, 1.0, 3), jnp.linspace(0.5, 1.5, 8)
    rows = jax.vmap(optimize(trajectory), (0, None))
    assert programs(jax.make_jaxpr(rows)(xs, ys)) == [[(3, 8)]]
    assert jnp.array_equal(rows(xs, ys), jax.vmap(trajectory, (0, None))(xs, ys))

    loss = lambda x, ys: jnp.sum(REWRITING(trajectory)(x, ys))
    forward, _ = programs(jax.make_jaxpr(jax.vmap(jax.grad(loss), (0, None)))(xs, ys))
    assert (8, 3) in forward


def programs(jaxpr):
    """The shapes of what each optimised program returns, at any depth."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is optimized_p:
            found.append([v.aval.shape for v in eqn.outvars])
        else:
            inner = jax.extend.core.jaxprs_in_params(eqn.params)
            found += [shapes for each in inner for shapes in programs(each)]
    return found


def test_taylor_mode():
    """Of two arguments, one of which does not move, in a jitted function and by itself."""

    def f(x, y):
        for _ in range(3):
            x = jnp.sin(x) * jnp.exp(x * y)
        return x, y, x * 2

    x = jnp.linspace(0.1, 1.0, 4)
    series = [x, x], [x, 0 * x]
    want = jet.jet(f, (x, 2 * x), series)
    for how in (lambda run: run, jax.jit):
        got = how(lambda *args: jet.jet(optimize(f), args, series))(x, 2 * x)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), got, want)


def test_sparse_arrays():
    """`sparsify` sees through an optimised function, also where that was made before."""
    looped = optimize(lambda m, x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(m @ c), x).sum())
    from jax.experimental import sparse

    m, x = jnp.array([[1.0, 2.0], [0.0, 3.0]]), jnp.array([1.0, 2.0])
    for f in (looped, optimize(lambda m, x: (m @ x).sum())):
        run = sparse.sparsify(f)
        given = sparse.BCOO.fromdense(m), x
        for how in (run, jax.jit(run), sparse.sparsify(f, use_tracer=True)):
            np.testing.assert_allclose(how(*given), f.__wrapped__(m, x), rtol=1e-6)
        want = jax.grad(f.__wrapped__, 1)(m, x)
        np.testing.assert_allclose(jax.grad(run, 1)(*given), want, rtol=1e-6)


def test_kernels():
    """A Pallas kernel that calls an optimised function can be lowered."""
    from jax.experimental import pallas as pl

    helper = optimize(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + x, x))

    def kernel(x, y):
        y[...] = helper(x[...])

    def call(x, **options):
        return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)

    x = jnp.ones((8, 128))
    jax.jit(call).trace(x).lower(lowering_platforms=("tpu",))
    np.testing.assert_allclose(call(x, interpret=True), helper(x), rtol=1e-6)
