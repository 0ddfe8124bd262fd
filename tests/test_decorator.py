"""`optimize` as a decorator: what it accepts, returns and refuses, and its switches."""

import functools
import importlib
import inspect
import re
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxpr_opt
from jaxpr_opt import Optimized, settings
from jaxpr_opt.bridge import guard
from jaxpr_opt.decorator import optimize, unwrap
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.testing import assert_close
from tests import typed

X = jnp.arange(4.0)


class Rename(Pass):
    """A pass for tests: `sub` becomes whatever `made` makes of it."""

    name = "rename-sub"

    def __init__(self, made=lambda x, y: lax.add(x, lax.neg(y)), op="sub"):
        self.made, self.op = made, op

    def find(self, op):
        if op.name == self.op:
            yield Match(op, "sub becomes something else")

    def rewrite(self, match, rw):
        rw.replace(match.op.result, rw.insert(self.made, *match.op.operands, before=match.op))
        rw.erase(match.op)


@pytest.fixture(autouse=True)
def _strict():
    with settings.override(strict=True):
        yield


opt = functools.partial(optimize, passes=[Rename()])
JITTED = type(jax.jit(lambda: 0))


# ---------------------------------------------------------------- what it returns


def test_it_is_a_jitted_function():
    """So calls take `jax.jit`'s fast path: there is nothing of ours in a cached call."""
    f = opt(lambda x: x - 1)
    assert type(f) is JITTED
    assert isinstance(f.lower(X), jax.stages.Lowered)
    assert f.lower(X).compile()(X).tolist() == [-1, 0, 1, 2]
    assert f.trace(X).jaxpr.out_avals[0].shape == (4,)
    assert f.eval_shape(X) == jax.ShapeDtypeStruct((4,), "float32")


def test_a_cached_call_traces_nothing():
    traced = []

    @opt
    def f(x):
        traced.append(x)
        return x - 1

    for _ in range(3):
        f(X)
    assert len(traced) == 1
    f(jnp.arange(3.0))
    assert len(traced) == 2


def test_it_keeps_name_signature_and_documentation():
    @opt
    def loss(params, *, scale=2.0):
        """The loss."""
        return params - scale

    assert loss.__name__ == "loss"
    assert loss.__doc__ == "The loss."
    assert list(inspect.signature(loss).parameters) == ["params", "scale"]
    assert "@jit_loss" in loss.lower(X).as_text()


def test_messages_name_the_users_arguments():
    @opt
    def branchy(flag, x):
        return x if flag else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"branchy at .*argument flag"):
        branchy(X[0], X)


def test_bare_and_with_arguments():
    @optimize(passes=[Rename()], static_argnums=1)
    def f(x, n):
        return x - n

    assert f(X, 1).tolist() == [-1, 0, 1, 2]
    assert optimize(lambda x: x - 1)(X).tolist() == [-1, 0, 1, 2]


def test_unwrap_gives_the_function_the_pipeline_and_the_options():
    def f(x, n):
        return x - n

    origin = unwrap(opt(f, static_argnums=1))
    assert origin.fun is f
    assert [each.name for each in origin.pipeline.passes] == ["rename-sub"]
    assert origin.jit_options == {"static_argnums": 1}
    assert unwrap(jax.jit(f)) is None
    assert unwrap(f) is None


def test_the_function_is_there_as_it_was_given():
    class Scaled:
        def by(self, x):
            return x - 1

    def f(x):
        return x - 1

    for given in (f, jax.jit(f), functools.partial(f), Scaled().by, opt(f)):
        assert opt(given, inline=True).__wrapped__ is given
        assert opt(given, inline=False).__wrapped__ is given
        assert opt(given, donate="auto").__wrapped__ is given
    assert inspect.unwrap(opt(jax.jit(f))) is f


def test_type_checkers_see_what_there_is():
    made = opt(typed.scaled)
    assert made(X, by=3.0).tolist() == (X * 3).tolist()
    assert typed.Model().loss(X) == X.sum()
    public = [name for name in vars(Optimized) if not name.startswith("_")]
    for each in (made, opt(typed.scaled, donate="matched")):
        assert [name for name in public if not hasattr(each, name)] == []


# ---------------------------------------------------------------- what users see of an error


def wrong(x):
    raise ValueError("theirs")


def frames_of(call):
    with pytest.raises(Exception) as raised:  # noqa: PT011 -- the user's, whatever it is
        call()
    return [Path(frame.filename) for frame in traceback.extract_tb(raised.value.__traceback__)]


CALLS = [
    lambda: opt(wrong)(X),
    lambda: opt(wrong)("a static leaf"),
    lambda: jax.grad(opt(wrong))(1.0),
    lambda: jax.vmap(jax.jit(opt(wrong)))(X),
    lambda: opt(wrong, donate="auto")(X),
    lambda: opt(wrong).lower(X),
    lambda: opt(lambda x: x)(X, X),
    lambda: opt(lambda x: x, static_argnum=0),
    lambda: opt(3),
    lambda: jaxpr_opt.explain(wrong, X),
    lambda: jaxpr_opt.diff(wrong, X),
    lambda: jaxpr_opt.residuals(wrong, X),
    lambda: jaxpr_opt.growth(wrong, lambda n: (X,)),
]
OURS = Path(jaxpr_opt.__file__).parent


@pytest.mark.parametrize("call", CALLS)
def test_no_frame_of_ours_is_in_a_users_error(call):
    assert not [path for path in frames_of(call) if path.is_relative_to(OURS)]


def test_all_frames_are_there_for_those_who_ask():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        for call in CALLS:
            assert [path for path in frames_of(call) if path.is_relative_to(OURS)]
    finally:
        jax.config.update("jax_traceback_filtering", before)


# ---------------------------------------------------------------- what it accepts


def test_arguments_of_every_kind():
    @opt
    def f(tree, /, x, *rest, scale, **more):
        assert tree["none"] is None
        return {
            "out": tree["w"] * x - scale,
            "rest": [r - 1 for r in rest],
            "more": more,
            "none": None,
        }

    args = ({"w": X, "none": None}, X, 1, np.float32(2))
    kwargs = {"scale": 3, "a": X, "b": True}
    expected = jax.jit(unwrap(f).fun)(*args, **kwargs)
    got = f(*args, **kwargs)
    assert jax.tree.structure(expected) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        assert (a.dtype, a.weak_type, a.tolist()) == (b.dtype, b.weak_type, b.tolist())


def test_callables():
    class Scaled:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by - 1

    assert opt(Scaled(2))(X).tolist() == [-1, 1, 3, 5]
    assert opt(functools.partial(lambda y, x: x - y, 1))(X).tolist() == [-1, 0, 1, 2]
    assert opt(jnp.negative)(X).tolist() == [0, -1, -2, -3]


def test_methods():
    @jax.tree_util.register_pytree_node_class
    class Model:
        def __init__(self, w):
            self.w = w

        tree_flatten = lambda self: ((self.w,), None)
        tree_unflatten = classmethod(lambda cls, _, leaves: cls(*leaves))

        @opt
        def loss(self, x):
            return jnp.sum(self.w * x - 1)

        @staticmethod
        @opt
        def plain(x):
            return x - 1

    class Config:
        scale = 3.0

        @functools.partial(optimize, passes=[Rename()], static_argnums=0)
        def apply(self, x):
            return x * self.scale - 1

    model = Model(X)
    assert model.loss(X) == 10
    assert jax.grad(Model.loss)(model, X).w.tolist() == X.tolist()
    assert model.plain(X).tolist() == [-1, 0, 1, 2]
    assert Config().apply(X).tolist() == [-1, 2, 5, 8]


def test_static_arguments():
    def f(x, mode, options=(), *, flag=False):
        return x - 1 if mode == "less" and not flag else x * len(options)

    by_name = opt(f, static_argnames=("mode", "options", "flag"))
    assert by_name(X, "less", flag=False).tolist() == [-1, 0, 1, 2]
    assert by_name(X, "more", (1, (2, "a"))).tolist() == [0, 2, 4, 6]
    assert by_name(X, mode="less", flag=True, options=(1,)).tolist() == X.tolist()
    by_number = opt(f, static_argnums=(1, 2))
    assert by_number(X, "more", (1, 2, 3)).tolist() == [0, 3, 6, 9]
    assert jax.grad(lambda x: by_name(x, "less").sum())(X).tolist() == [1, 1, 1, 1]


def test_donation():
    f = opt(lambda x, y: (x - y, y), donate_argnums=0)
    x = jnp.arange(4.0)
    assert f(x, X)[0].tolist() == [0, 0, 0, 0]
    assert x.is_deleted()
    assert (
        "jax.buffer_donor" in f.lower(X, X).as_text()
        or "tf.aliasing_output" in f.lower(X, X).as_text()
    )


def test_shardings():
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("d",)), PartitionSpec("d"))
    f = opt(
        lambda x: lax.with_sharding_constraint(x - 1, sharding),
        in_shardings=sharding,
        out_shardings=sharding,
    )
    assert f(X).sharding == sharding
    assert f(X).tolist() == [-1, 0, 1, 2]


def test_a_mesh_known_only_inside_is_found():
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    body = lambda x: lax.psum(x - 1, "d")
    spec = PartitionSpec
    f = opt(jax.shard_map(body, mesh=mesh, in_specs=spec("d"), out_specs=spec()))
    assert f(X).tolist() == [-1, 0, 1, 2]


def test_closed_over_arrays_and_tracers():
    table = jnp.arange(8.0)
    assert opt(lambda x: table[:4] - x)(X).tolist() == [0, 0, 0, 0]
    outer = jax.jit(lambda y: opt(lambda x: y * table[:4] - x)(X))
    assert outer(X).tolist() == [0, 0, 2, 6]
    assert (
        jax.grad(lambda y: opt(lambda x: jnp.sum(y * x - table[:4]))(X))(X).tolist() == X.tolist()
    )


def test_a_jitted_function_keeps_its_options():
    f = opt(jax.jit(lambda x, n: x - n, static_argnums=1, donate_argnums=0, keep_unused=True))
    x = jnp.arange(4.0)
    assert f(x, 1).tolist() == [-1, 0, 1, 2]
    assert x.is_deleted()
    options = unwrap(f).jit_options
    assert options["static_argnums"] == (1,)
    assert options["donate_argnums"] == (0,)
    assert options["keep_unused"] is True
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("d",)), PartitionSpec("d"))
    jitted = jax.jit(lambda x: x - 1, in_shardings=(sharding,), out_shardings=sharding)
    assert opt(jitted)(X).sharding == sharding


def test_options_are_joined_with_those_of_a_jitted_function():
    inner = jax.jit(lambda x, n: x - n, static_argnums=1)
    f = opt(inner, donate_argnums=0, static_argnums=(1,))
    x = jnp.arange(4.0)
    f(x, 1)
    assert x.is_deleted()
    with pytest.raises(
        ValueError, match=r"^optimize: static_argnums=0 conflicts with static_argnums=\(1,\)"
    ):
        opt(inner, static_argnums=0)


def test_optimizing_twice_is_optimizing_once():
    f = optimize(lambda x: x - 1)
    assert optimize(f) is f
    twice = opt(f, donate_argnums=0)
    assert twice(jnp.arange(4.0)).tolist() == [-1, 0, 1, 2]
    assert twice is not f


def test_a_wrapper_around_an_optimised_function_is_not_one():
    """`functools.wraps` copies every attribute, those by which JAX knows a jitted function too."""
    inner = opt(lambda x: x - 1)

    @functools.wraps(inner)
    def doubled(x):
        return 2 * inner(x)

    assert unwrap(doubled) is None
    assert unwrap(jax.jit(doubled)) is None
    assert type(opt(doubled)) is JITTED
    assert opt(doubled)(X).tolist() == [-2, 0, 2, 4]


def test_references_are_left_alone():
    """A program that reads or writes mutable arrays from outside is run as `jax.jit` would."""
    ref = jax.new_ref(jnp.zeros(4))

    @opt
    def f(ref, x):
        ref[...] = ref[...] - x
        return ref[...] - 1

    assert f(ref, X).tolist() == [-1, -2, -3, -4]
    assert ref[...].tolist() == [0, -1, -2, -3]

    @opt
    def inside(x):
        local = jax.new_ref(x - 1)
        local[0] = 5.0
        return local[...]

    assert inside(X).tolist() == [5, 0, 1, 2]


# ---------------------------------------------------------------- what it refuses


async def _awaited(x):
    return x


def _yields(x):
    yield x


class _Mute(Pass):
    pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimize(3), r"^optimize: fun must be callable, got 3$"),
        (
            lambda: optimize(functools.partial(_awaited)),
            r"^optimize: fun must return arrays, but _awaited is a coroutine$",
        ),
        (
            lambda: optimize(_yields),
            r"^optimize: fun must return arrays, but _yields is a generator$",
        ),
        (
            lambda: optimize(jnp.sin, donate_argnums="x"),
            r"^optimize: donate_argnums='x': expected a position or several, as 0 or \(0, 2\)$",
        ),
        (
            lambda: optimize(jnp.sin, static_argnames=(0,)),
            r"^optimize: static_argnames=\(0,\): expected a name or several, as 'x' or \('x', 'y'",
        ),
        (
            lambda: optimize(jnp.sin, static_argnum=0),
            r"^optimize: unknown argument 'static_argnum'; did you mean 'static_argnums'\?$",
        ),
        (lambda: optimize(jnp.sin, passes="simplify"), r"passes must be .*, got 'simplify'$"),
        (lambda: optimize(jnp.sin, passes=3), r"passes must be .*, got 3$"),
        (lambda: optimize(jnp.sin, skip="simplify"), r"skip must be .*, got 'simplify'$"),
        (lambda: optimize(jnp.sin, skip=[4]), r"skip must be .*, got \[4\]$"),
        (lambda: optimize(jnp.sin, skip=None), r"skip must be .*, got None$"),
        (
            lambda: optimize(jnp.sin, passes=[_Mute]),
            r"^optimize: passes: _Mute is a class: write _M",
        ),
        (
            lambda: optimize(jnp.sin, passes=[_Mute()]),
            r"^optimize: passes: _Mute does not define a name$",
        ),
        (
            lambda: settings.override(fast=True).__enter__(),
            r"^unknown setting 'fast': expected one of check, ",
        ),
    ],
)
def test_bad_arguments_get_one_clear_line(call, message):
    with pytest.raises(TypeError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("argument", ["passes", "skip"])
def test_unknown_passes_get_one_clear_line(argument):
    message = rf"{argument}: there is no pass 'simplfy'; did you mean 'simplify'\?$"
    with pytest.raises(ValueError, match=rf"^optimize: {message}") as error:
        optimize(jnp.sin, **{argument: ["simplfy"]})
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=rf"^everywhere: {message}"):
        jaxpr_opt.everywhere(**{argument: ["simplfy"]}).__enter__()


def test_passes_are_chosen_by_name_with_dashes_or_underscores():
    names = lambda f: [each.name for each in unwrap(f).pipeline.passes]
    assert names(optimize(jnp.sin, passes=["collapse-loops"])) == ["collapse-loops"]
    assert names(optimize(jnp.sin, passes=["collapse_loops"])) == ["collapse-loops"]
    everything = names(optimize(lambda x: x))
    assert names(optimize(lambda x: x, skip=["collapse_loops"])) == [
        n for n in everything if n != "collapse-loops"
    ]


def test_a_pass_that_is_gone_may_still_be_left_out():
    with pytest.warns(DeprecationWarning, match="there is no pass 'join_scalar_stacks' any more"):
        fun = optimize(lambda x: x, skip=["join_scalar_stacks"])
    assert unwrap(fun).pipeline == unwrap(optimize(lambda x: x)).pipeline


def test_a_second_copy_of_a_pass_gets_one_clear_line(monkeypatch):
    """`import passes.laws.simplify` in the repository makes classes that are not ours."""
    from jaxpr_opt.passes.laws import simplify

    spec = importlib.util.spec_from_file_location("passes.laws.simplify", simplify.__file__)
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "passes.laws.simplify", copy)
    spec.loader.exec_module(copy)
    message = (
        r"^optimize: passes: Simplify comes from passes.laws.simplify, a second copy of"
        r" jaxpr_opt.passes.laws.simplify: import it from there, or write 'simplify'$"
    )
    with pytest.raises(TypeError, match=message):
        optimize(jnp.sin, passes=[copy.Simplify()])
    assert optimize(jnp.sin, passes=[simplify.Simplify()])(X).shape == (4,)


# ---------------------------------------------------------------- one within another


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.vmap(jax.grad(f)),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: jax.grad(lambda x: lax.scan(lambda c, y: (f(y) * c, c), 1.0, x[None])[0]),
    ],
    ids=["value", "grad", "jit_of_grad", "vmap", "jvp", "checkpoint", "scan"],
)
def test_passes_are_those_of_the_innermost(transform):
    """A pass that would make another function of it shows where it runs."""
    inner = optimize(lambda x: jnp.sin(x) - x**2, passes=[])
    written = lambda x: jnp.sum(inner(x) * 3 - x)
    expected = lambda x: jnp.sum((jnp.sin(x) - x**2) * 3 + x)
    point = jnp.linspace(0.1, 1, 4)
    with settings.override(strict=True, verify=True):
        got = transform(optimize(written, passes=[Rename(lax.add)]))(point)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5), got, transform(expected)(point)
    )


def test_passes_of_the_inner_run_under_an_outer_that_skips_them():
    inner = optimize(lambda x: x - 1, passes=[Rename(lax.mul)])
    assert optimize(lambda x: inner(x) + 1, passes=[])(X).tolist() == (X + 1).tolist()


def test_passes_are_those_of_the_innermost_where_a_while_is_differentiated():
    """What gives loops a reverse mode reads the program again, and leaves inner programs alone."""
    inner = optimize(lambda x: lax.atan2(x, jnp.ones_like(x)), passes=[])

    def written(x):
        _, total = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (0, inner(x)))
        return jnp.sum(total * x)

    with settings.override(strict=True, verify=True):
        got = jax.grad(optimize(written, passes=[Rename(lax.add, "atan2")]))(X)
    expected = 4 * jnp.atan(X) + 4 * X / (1 + X**2)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_programs_of_one_pipeline_are_one_program():
    rename = Rename()
    inner = optimize(lambda x: jnp.sin(x) - 1, passes=[rename])
    outer = optimize(lambda x: inner(x) - 2, passes=[rename])
    assert str(jax.make_jaxpr(outer)(X)).count("optimized[") == 1


# ---------------------------------------------------------------- switches


def failing(x, y):
    raise RuntimeError("no such luck")


def test_a_failing_pass_raises_in_strict_mode_and_warns_otherwise():
    f = lambda x: x - 1
    with pytest.raises(Exception, match=r"rename-sub.*no such luck"):
        optimize(f, passes=[Rename(failing)])(X)
    with (
        settings.override(strict=False),
        pytest.warns(UserWarning, match=r"rename-sub.*no such luck"),
    ):
        assert optimize(f, passes=[Rename(failing)])(X).tolist() == [-1, 0, 1, 2]


def test_a_pass_that_fails_on_the_gradient_leaves_the_gradient():
    f = lambda x: jnp.sum(x * x * jnp.sin(x))
    with settings.override(strict=False), pytest.warns(UserWarning, match="no such luck"):
        got = jax.grad(optimize(f, passes=[Rename(failing, "add_any")]))(X)
    np.testing.assert_allclose(got, jax.grad(f)(X), rtol=1e-6)


def test_disabled_it_is_jax_jit():
    with settings.override(disable=True):
        f = opt(lambda x: x - 1)
        assert unwrap(f) is None
        assert "optimized" not in str(jax.make_jaxpr(f)(X))
    before = opt(lambda x: x - 1)
    with settings.override(disable=True):
        assert "optimized" not in str(jax.make_jaxpr(before)(X))


def test_switches_come_from_the_environment(monkeypatch):
    for value, on in (("1", True), ("true", True), ("0", False), ("off", False), ("", False)):
        monkeypatch.setenv("JAXPR_OPT_CHECK", value)
        assert settings.current().check is on
    monkeypatch.setenv("JAXPR_OPT_VERIFY", "1")
    with settings.override(verify=False):
        assert settings.current().verify is False
    assert settings.current().verify is True


def test_under_disable_jit_the_function_runs_as_it_is():
    seen = []

    @opt
    def f(x):
        seen.append(isinstance(x, jax.core.Tracer))
        return x - 1

    with jax.disable_jit():
        assert f(X).tolist() == [-1, 0, 1, 2]
    assert seen == [False]


# ---------------------------------------------------------------- JAXPR_OPT_CHECK


WRONG = Rename(lax.add)


@pytest.fixture
def _check():
    with settings.override(check=True):
        yield


def complains(run, pattern):
    def run_to_the_end():
        jax.block_until_ready(run())
        jax.effects_barrier()

    with pytest.raises(Exception, match=pattern):
        run_to_the_end()


@pytest.mark.usefixtures("_check")
def test_check_passes_what_is_right():
    f = lambda w, x: (jnp.sum(w * x - jnp.sin(x)), lax.scan(lambda c, y: (c * y - 1, c), w, x))
    g = opt(f)
    key = opt(lambda k, n: (jax.random.split(k), n - 1, n > 0, jnp.float32("nan") - n))
    jax.block_until_ready([g(2.0, X), key(jax.random.key(0), jnp.int32(3))])
    jax.block_until_ready(jax.jit(jax.grad(lambda w, x: g(w, x)[0], (0, 1)))(2.0, X))
    jax.block_until_ready(jax.vmap(jax.grad(lambda w, x: g(w, x)[1][0]), (0, None))(X, X))
    jax.block_until_ready(jax.jvp(g, (2.0, X), (1.0, X)))
    jax.block_until_ready(jax.hessian(lambda w: g(w, X)[1][0])(2.0))
    jax.block_until_ready(jax.grad(jax.checkpoint(lambda w: g(w, X)[0]))(2.0))
    jax.effects_barrier()


def test_a_gradient_is_checked_where_the_caller_gives_its_arguments_up():
    """The loop back is checked against the arguments, which do not exist any more."""

    def decayed(x, ys, key):
        c, kept = lax.scan(lambda c, y: (c * jnp.sin(y) + 1, c), x[0], ys)
        return x + c + jax.random.normal(key), kept

    def loss(fun):
        return lambda x, ys, key: sum(map(jnp.sum, fun(x, ys, key)))

    given = lambda: (jnp.ones(3), jnp.arange(4.0), jax.random.key(0))
    with settings.override(check=True):
        got = jax.grad(loss(optimize(decayed, donate_argnums=0)))(*given())
    assert_close(got, jax.grad(loss(decayed))(*given()))


@pytest.mark.usefixtures("_check")
@pytest.mark.filterwarnings("ignore")
def test_check_names_the_pass_the_output_and_the_difference():
    f = optimize(lambda x: (x * 2, x - 1), passes=[WRONG])
    complains(lambda: f(X), r"pass rename-sub changed output [01], by up to 2")


@pytest.mark.usefixtures("_check")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.jit(jax.grad(f)),
        jax.grad,
        lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x])),
        lambda f: jax.grad(jax.checkpoint(f)),
    ],
    ids=["jit_of_grad", "grad", "vmap_of_grad", "checkpoint"],
)
def test_check_sees_a_wrong_gradient(transform):
    """The pass breaks only what AD made: the value is right, the backward program is not."""
    wrong = Rename(lax.mul, "add_any")
    f = optimize(lambda x: jnp.sum(x * jnp.sin(x)), passes=[wrong])
    complains(lambda: transform(f)(X), r"vjp.*pass rename-sub changed output 0")


@pytest.mark.usefixtures("_check")
@pytest.mark.filterwarnings("ignore")
def test_check_sees_a_wrong_derivative_of_a_right_value():
    """The value is right but no longer differentiates to the same: `stop_gradient` crept in."""
    wrong = Rename(lambda x, y: lax.add(x, lax.stop_gradient(lax.neg(y))))
    f = optimize(lambda x: jnp.sum(x * 2 - jnp.sin(x)), passes=[wrong])
    complains(lambda: jax.grad(f)(X), r"pass rename-sub changed output 0")


@pytest.mark.usefixtures("_check")
def test_check_leaves_programs_with_effects_alone():
    @opt
    def f(x):
        jax.debug.callback(lambda _: None, x)
        return x - 1

    with pytest.warns(UserWarning, match=r"f has effects.*not checked"):
        f(X)


@pytest.mark.parametrize("shape", ["4", "n"])
def test_check_leaves_what_is_exported_alone(shape, monkeypatch):
    """JAX exports no callback."""
    monkeypatch.setenv("JAXPR_OPT_CHECK", "1")
    x = jax.ShapeDtypeStruct(export.symbolic_shape(shape), X.dtype)

    def f(x):
        return lax.scan(lambda c, row: (jnp.tanh(c + row), c), 0.0, x)[0]

    with pytest.warns(UserWarning, match=r"f is exported.*not checked"):
        exported = export.export(optimize(f))(x)
    assert exported.call(X) == jax.jit(f)(X)


# ---------------------------------------------------------------- both orders agree


def test_gradient_of_optimized_is_optimized_gradient():
    def loss(w, x):
        h = lax.scan(lambda c, y: (jnp.tanh(c * w - y), None), x[0], x)[0]
        return h**2 - jnp.sum(x)

    for passes in ([], [Rename()], None):
        above = optimize(jax.grad(loss, (0, 1)), passes=passes)(0.5, X)
        below = jax.jit(jax.grad(optimize(loss, passes=passes), (0, 1)))(0.5, X)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), above, below)


def test_program_text_is_readable():
    text = str(jax.make_jaxpr(opt(lambda x: x - 1))(X))
    assert re.search(r"optimized\[\s+jaxpr=\{", text)
    assert "program=<<lambda>>" in text


def test_deeply_nested():
    """Those deep inside are optimised with what calls them: Python's stack is limited."""
    f = jnp.sin
    for _ in range(45):
        f = optimize(lambda x, f=f: 2 * f(x))
    np.testing.assert_allclose(jax.grad(f)(1.0), 2.0**45 * np.cos(1.0), rtol=1e-5)
    assert guard.depth() == 0
